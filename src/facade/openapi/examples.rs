//! Example requests and responses, built with the code that produces real responses, so that they stay correct.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::{
    account::AccountView,
    backups::view::BackupView,
    deliveries::view::{DeliveryView, Retry},
    instances::view::{InstanceView, ListItem, NewInstance},
    keys::view::{KeyView, NewKey},
    monitoring::{
        view::{AlertView, SeriesView},
        wrong_window,
    },
    response::{
        error::{ApiError, Detail, ErrorCode},
        view::Pagination,
    },
    webhooks::view::{Recovery, WebhookView, WebhookWithSecret},
};
use crate::{
    events::{EventType, catalogue},
    lifecycle::Action,
    providers::{Series, Usage, Window},
    resources::{ApiKey, Backup, Delivery, DeliveryPhase, Instance, Webhook},
    service::{
        alerts::ShownAlert,
        backups::{IndexedBackup, ShownBackup, check_backup_state, still_running, too_many},
        deliveries::When,
        error::{Error, not_monitored, protected, quota_used_up},
        events::not_logged,
        idempotency,
        index::Indexed as _,
        instances::{IndexedInstance, check_state},
        precondition,
        webhooks::{IndexedWebhook, not_active},
    },
};

/// The id of an instance.
pub(super) const ID: &str = "i-4q7hz0c9k2m8x1ta";
/// The id of a backup.
pub(super) const BACKUP_ID: &str = "bkp_9c2m8x1ta4q7hz0k";
/// The id of a webhook.
pub(super) const WEBHOOK_ID: &str = "wh_0c9k2m8x1ta4q7hz";
/// The id of a delivery.
pub(super) const DELIVERY_ID: &str = "dlv_2m8x1ta4q7hz0c9k";
/// The id of an API key.
pub(super) const KEY_ID: &str = "key-ta4q7hz0c9k2m8x1";
/// The id of an event.
pub(super) const EVENT_ID: &str = "evt_5m2k8x1ta4q7hz0c";
/// The id of an invoice.
pub(super) const INVOICE_ID: &str = "inv_1ta4q7hz0c9k2m8x";
/// An ETag.
pub(super) const ETAG: &str = "\"7c1b7f0e-6a55-4c7e-9a3a-0c1d2e3f4a5b-1\"";
/// A request id.
pub(super) const REQUEST_ID: &str = "9b2f4c0a8d7e4f1ca6b5d4e3f2a1b0c9";

fn instance(state: &str, power: &str, operation: Option<&str>) -> Option<IndexedInstance> {
    let mut object = json!({
        "metadata": {
            "name": ID, "namespace": "demo", "uid": "7c1b7f0e-6a55-4c7e-9a3a-0c1d2e3f4a5b", "generation": 1,
            "creationTimestamp": "2026-11-21T10:00:00Z",
        },
        "spec": {
            "name": "web-1", "plan": "starter", "region": "fr-par-1", "image": "debian-13", "tags": ["env:prod"],
            "powerState": power,
        },
        "status": {
            "state": state, "power": power, "powerState": power, "plan": "starter", "image": "debian-13", "diskSizeGB": 40,
            "ipAddress": "198.18.0.7", "ipv6Address": "2001:db8::7", "updatedAt": "2026-11-21T10:02:31Z",
        },
    });
    if let Some(kind) = operation {
        object["status"]["operation"] = json!({
            "kind": kind, "startedAt": "2026-11-21T11:00:00Z", "endsIn": power, "plan": "starter", "image": "debian-13",
        });
    }
    let instance: Instance = serde_json::from_value(object).ok()?;
    Some(IndexedInstance::of(Arc::new(instance)))
}

fn webhook() -> Option<IndexedWebhook> {
    let object = json!({
        "metadata": { "name": WEBHOOK_ID.replace('_', "-"), "namespace": "demo", "creationTimestamp": "2026-11-21T10:00:00Z" },
        "spec": {
            "url": "https://hooks.example.com/stellage", "events": ["instance.created", "instance.deleted"],
            "secretRef": { "name": WEBHOOK_ID.replace('_', "-") },
        },
    });
    let webhook: Webhook = serde_json::from_value(object).ok()?;
    Some(IndexedWebhook::of(Arc::new(webhook)))
}

fn backup(phase: &str) -> Option<ShownBackup> {
    let mut object = json!({
        "metadata": {
            "name": BACKUP_ID.replace('_', "-"), "namespace": "demo", "uid": "5a4b3c2d-6a55-4c7e-9a3a-0c1d2e3f7c1b",
            "generation": 1, "creationTimestamp": "2026-11-21T10:00:00Z",
        },
        "spec": { "instance": ID, "name": "before-upgrade" },
        "status": { "phase": phase, "source": {
            "id": ID, "uid": "7c1b7f0e-6a55-4c7e-9a3a-0c1d2e3f4a5b", "name": "web-1", "region": "fr-par-1",
            "plan": "starter", "image": "debian-13", "diskSizeGB": 40,
        } },
    });
    if phase == "Completed" {
        object["status"]["sizeGB"] = json!(12.4);
        object["status"]["completedAt"] = json!("2026-11-21T10:00:48Z");
    }
    let backup: Backup = serde_json::from_value(object).ok()?;
    Some(ShownBackup {
        source: backup.status.as_ref()?.source.clone(),
        instance_id: Some(ID.to_owned()),
        is_instance_deleted: false,
        item: Arc::new(IndexedBackup::of(Arc::new(backup))),
    })
}

fn alert() -> Option<ShownAlert> {
    let mut object = serde_json::to_value(&*instance("running", "Running", None)?.instance).ok()?;
    object["status"]["alerts"] = json!([{
        "id": "alr_2m8x1ta4q7hz0c9k", "rule": "cpu_usage_high", "phase": "Firing", "metric": "cpu_usage",
        "threshold": 90.0, "value": 96.4, "since": "2026-11-21T09:57:31Z", "firedAt": "2026-11-21T10:02:31Z",
    }]);
    let instance: Instance = serde_json::from_value(object).ok()?;
    Some(ShownAlert::first_of(Arc::new(IndexedInstance::of(Arc::new(
        instance,
    )))))
}

fn series() -> SeriesView {
    let time = |second| Timestamp::from_second(second).unwrap_or_default();
    let usage = Usage {
        cpu_usage: Some(12.5),
        memory_usage: Some(41.0),
        disk_usage: Some(23.9),
        network_in: Some(1_048_576),
        network_out: Some(524_288),
    };
    let series = Series {
        known_since: Some(time(1_795_255_231)),
        points: vec![
            (time(1_795_255_200), Usage::default()),
            (time(1_795_255_260), usage),
        ],
    };
    SeriesView::of(Window::Hour, &series)
}

fn delivery(phase: DeliveryPhase) -> Option<Delivery> {
    let mut status = json!({ "phase": phase, "attemptCount": 0 });
    if phase == DeliveryPhase::Pending {
        status["nextAttemptAt"] = json!("2026-11-21T10:02:31Z");
    } else {
        status["attempts"] = json!([{ "at": "2026-11-21T10:02:31.25Z", "durationMs": 42, "statusCode": 200, "response": "ok" }]);
    }
    let (event, created_at) = (EVENT_ID, "2026-11-21T10:02:31Z");
    let body = catalogue::example_body(EventType::InstanceCreated, event, created_at.parse().ok()?);
    let object = json!({
        "metadata": {
            "name": DELIVERY_ID.replace('_', "-"), "creationTimestamp": "2026-11-21T10:02:31Z",
            "labels": { "stellage.dev/finished": "true" },
        },
        "spec": {
            "webhook": WEBHOOK_ID.replace('_', "-"), "eventId": event, "eventType": "instance.created",
            "eventCreatedAt": created_at, "body": body,
        },
        "status": status,
    });
    serde_json::from_value(object).ok()
}

fn key() -> Option<ApiKey> {
    let mut object = serde_json::to_value(new_key()?).ok()?;
    object["status"] = json!({ "lastUsedOn": "2026-11-21" });
    serde_json::from_value(object).ok()
}

fn new_key() -> Option<ApiKey> {
    let object = json!({
        "metadata": {
            "name": KEY_ID, "namespace": "demo", "uid": "0c1d2e3f-6a55-4c7e-9a3a-7c1b7f0e4a5b", "generation": 1,
            "creationTimestamp": "2026-11-21T10:00:00Z",
        },
        "spec": { "sha256": "", "scope": "read", "expiresAt": "2027-02-21T00:00:00Z", "lastCharacters": "xRtY" },
    });
    serde_json::from_value(object).ok()
}

/// The body of a request.
pub(super) fn request(operation: &str) -> Option<Value> {
    match operation {
        "createInstance" => Some(json!({
            "name": "web-1", "plan": "starter", "region": "fr-par-1", "image": "debian-13", "tags": ["env:prod"],
        })),
        "changeInstance" => Some(json!({ "plan": "business", "reboot": false })),
        "rebuildInstance" => Some(json!({ "image": "debian-13" })),
        "createBackup" => Some(json!({ "name": "before-upgrade" })),
        "createWebhook" => Some(json!({
            "url": "https://hooks.example.com/stellage", "events": ["instance.created", "instance.deleted"],
        })),
        "changeWebhook" => Some(json!({ "events": ["instance.created"], "active": true })),
        "testWebhook" => Some(json!({ "type": "instance.created" })),
        "rotateWebhookSecret" => Some(json!({ "overlap_seconds": 86_400 })),
        "recoverWebhook" => Some(json!({ "since": "2026-11-21T00:00:00Z" })),
        "createKey" => Some(json!({ "scope": "read", "expires_at": "2027-02-21T00:00:00Z" })),
        _ => None,
    }
}

/// The body of a success.
pub(super) fn success(operation: &str) -> Option<Value> {
    let running = instance("running", "Running", None)?;
    let in_progress = |state, power, operation, message: &str| {
        let item = instance(state, power, Some(operation))?;
        Some(json!({ "data": InstanceView::of(&item, None), "message": message }))
    };
    let list = |data: Value| {
        let total = data.as_array().map_or(0, Vec::len);
        Some(json!({ "data": data, "pagination": Pagination::new(1, 20, total) }))
    };
    match operation {
        "listInstances" => list(json!([ListItem::of(&running)])),
        "createInstance" => {
            let item = instance("provisioning", "Running", Some("Create"))?;
            Some(json!({
                "data": NewInstance::of(&item),
                "message": "Instance web-1 is being created; this takes about 2 to 3 minutes.",
            }))
        }
        "getInstance" | "changeInstance" => Some(json!({ "data": InstanceView::of(&running, None) })),
        "startInstance" => in_progress("starting", "Running", "Start", "Instance web-1 is being started."),
        "stopInstance" => in_progress(
            "stopping",
            "Stopped",
            "Stop",
            "Instance web-1 is being shut down.",
        ),
        "powerOffInstance" => in_progress(
            "stopping",
            "Stopped",
            "PowerOff",
            "The power of instance web-1 is being cut.",
        ),
        "rebootInstance" => in_progress(
            "rebooting",
            "Running",
            "Reboot",
            "Instance web-1 is being rebooted.",
        ),
        "rebuildInstance" => in_progress(
            "rebuilding",
            "Running",
            "Rebuild",
            "Instance web-1 is being reinstalled from debian-13.",
        ),
        "listBackups" | "listInstanceBackups" => list(json!([BackupView::of(&backup("Completed")?)])),
        "getBackup" => Some(json!({ "data": BackupView::of(&backup("Completed")?) })),
        "createBackup" => Some(json!({
            "data": BackupView::of(&backup("Running")?), "message": "Instance web-1 is being backed up.",
        })),
        "listAlerts" => list(json!([AlertView::of(&alert()?)?])),
        "getInstanceMetrics" => Some(json!({ "data": series() })),
        "listWebhooks"
        | "createWebhook"
        | "getWebhook"
        | "changeWebhook"
        | "testWebhook"
        | "rotateWebhookSecret"
        | "recoverWebhook"
        | "listDeliveries"
        | "getDelivery"
        | "redeliver"
        | "retryDeliveries" => webhooks(operation),
        "listEvents" => list(json!([catalogue::example(EventType::InstanceCreated)])),
        "getEvent" => Some(json!({ "data": catalogue::example(EventType::InstanceCreated) })),
        "getAccount" => Some(json!({ "data": AccountView::example() })),
        "listKeys" => list(json!([KeyView::of(&key()?)])),
        "getKey" => Some(json!({ "data": KeyView::of(&key()?) })),
        "createKey" => Some(json!({
            "data": NewKey::of(&new_key()?, Some("0Zr1kN6jS8d5wq9XyTn2uVb4cLm7aHgE3fPoKiJxRtY")),
            "message": "Store the key now; it will not be shown again.",
        })),
        "listInvoices" => list(json!([invoice(true)])),
        "getInvoice" | "getCurrentInvoice" => {
            let mut shown = invoice(operation == "getInvoice");
            shown["lines"] = json!([{
                "instance_id": ID, "name": "web-1",
                "hours": [{ "plan": "starter", "hours": 720, "unit_price": { "value": "0.00745", "currency": "EUR" } }],
                "amount": { "value": "5.00", "currency": "EUR" },
            }]);
            Some(json!({ "data": shown, "pagination": Pagination::new(1, 20, 1) }))
        }
        "listPlans" => list(json!([{
            "id": "starter", "vcpu": 1, "memory": 2, "disk_size": 40,
            "price_monthly": { "value": "5.00", "currency": "EUR" },
            "price_hourly": { "value": "0.00745", "currency": "EUR" },
        }])),
        "listRegions" => list(json!([{ "id": "fr-par-1", "country": "fr", "city": "par" }])),
        "listImages" => list(json!([{ "id": "debian-13", "distribution": "debian", "version": "13" }])),
        _ => None,
    }
}

/// An invoice without its lines.
fn invoice(is_issued: bool) -> Value {
    let money = |value: &str| json!({ "value": value, "currency": "EUR" });
    json!({
        "id": INVOICE_ID, "number": is_issued.then_some("2026-000042"), "status": if is_issued { "issued" } else { "open" },
        "period": { "from": "2026-11-01T00:00:00Z", "to": "2026-12-01T00:00:00Z" },
        "issued_at": is_issued.then_some("2026-12-01T00:00:05Z"), "due_date": is_issued.then_some("2026-12-15"),
        "net": money("5.00"), "tax": money("0.95"), "amount": money("5.95"), "lines_count": 1,
    })
}

fn webhooks(operation: &str) -> Option<Value> {
    let item = webhook()?;
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=";
    let sent = |message: &str| {
        let delivery = delivery(DeliveryPhase::Pending)?;
        Some(json!({ "data": DeliveryView::with_request(&delivery, &item.webhook), "message": message }))
    };
    let delivered = delivery(DeliveryPhase::Delivered)?;
    match operation {
        "listWebhooks" => {
            Some(json!({ "data": [WebhookView::of(&item)], "pagination": Pagination::new(1, 20, 1) }))
        }
        "createWebhook" => Some(json!({ "data": WebhookWithSecret::of(&item, Some(secret), None) })),
        "rotateWebhookSecret" => Some(json!({
            "data": WebhookWithSecret::of(&item, Some(secret), "2026-11-22T10:00:00Z".parse().ok()),
            "message": "X-Service-Signature is made with the new secret from now on. Until the overlap ends, webhook-signature lists the signatures of both.",
        })),
        "testWebhook" => {
            sent("A test event of type instance.created is being sent to https://hooks.example.com/stellage.")
        }
        "recoverWebhook" => Some(
            json!({ "data": Recovery { recovered: 3 }, "message": "3 deliveries are being sent again." }),
        ),
        "listDeliveries" => {
            Some(json!({ "data": [DeliveryView::of(&delivered)], "pagination": Pagination::new(1, 20, 1) }))
        }
        "getDelivery" => Some(json!({ "data": DeliveryView::with_request(&delivered, &item.webhook) })),
        "redeliver" => sent(&format!("Delivery {DELIVERY_ID} {}.", When::Now.describe())),
        "retryDeliveries" => {
            Some(json!({ "data": Retry { retried: 3 }, "message": "3 deliveries are being sent now." }))
        }
        _ => Some(json!({ "data": WebhookView::of(&item) })),
    }
}

fn invalid_state(word: &str) -> ApiError {
    let refusal = match word {
        "series" => Some(not_monitored()),
        "webhook" => Some(not_active()),
        "backup" => Some(still_running()),
        "new backup" => {
            instance("stopping", "Stopped", Some("Stop")).and_then(|item| check_backup_state(&item).err())
        }
        _ => instance("stopped", "Stopped", None).and_then(|item| check_state(Action::Reboot, &item).err()),
    };
    refusal.map_or_else(ApiError::fault, ApiError::from)
}

fn invalid_input(word: &str) -> ApiError {
    if word == "series" {
        return wrong_window();
    }
    let (field, must) = match word {
        "webhook" => ("url", "must begin with https://"),
        "delivery" | "backup" | "alert" | "invoice" => ("limit", "must be an integer from 1 to 100"),
        "new backup" => (
            "name",
            "must be 1 to 63 letters, digits, '.' or '-', with a letter or digit at both ends",
        ),
        "key" => ("scope", "must be read or write"),
        "events" => ("since", "must be an RFC 3339 time such as 2026-11-21T10:00:00Z"),
        _ => ("plan", "must be starter, business, performance or enterprise"),
    };
    ApiError::invalid(vec![
        Detail::new(field, "invalid_value", must),
        Detail::new("rebot", "unknown_field", "is not a known field"),
    ])
}

/// The body of an error, for an operation on the kind named by `word`.
pub(super) fn error(code: ErrorCode, word: &str) -> Value {
    let error = match code {
        ErrorCode::JsonError => ApiError::new(code, "the body is not JSON: expected `:` at line 2 column 6"),
        ErrorCode::Unauthorized => ApiError::new(
            code,
            "the API key is missing; send the header Authorization: Bearer <API_KEY>",
        ),
        ErrorCode::Forbidden => ApiError::new(
            code,
            "a policy of the cluster refuses this: images from last year are not allowed",
        ),
        ErrorCode::TokenReadonly => ApiError::new(
            code,
            "this needs a key with the scope write; this key has the scope read",
        ),
        ErrorCode::ResourceLimitExceeded if word == "new backup" => too_many("the instance", 30).into(),
        ErrorCode::ResourceLimitExceeded => quota_used_up(match word {
            "webhook" => "webhooks",
            "delivery" => "deliveries",
            "key" => "API keys",
            _ => "instances",
        })
        .into(),
        ErrorCode::NotFound if word == "events" => not_logged().into(),
        ErrorCode::NotFound => Error::no_such(word).into(),
        ErrorCode::InvalidState => invalid_state(word),
        ErrorCode::Protected => protected().into(),
        ErrorCode::Conflict => ApiError::new(
            code,
            "the object changed during the request; read it and try again",
        ),
        ErrorCode::PreconditionFailed => precondition::failed().into(),
        ErrorCode::PayloadTooLarge => ApiError::new(code, "the body is larger than 64 KiB"),
        ErrorCode::UnsupportedMediaType => ApiError::new(code, "the Content-Type must be application/json"),
        ErrorCode::InvalidInput => invalid_input(word),
        ErrorCode::IdempotencyKeyReused => idempotency::reused().into(),
        ErrorCode::RateLimitExceeded => ApiError::new(
            code,
            "the key has used up its 3600 requests per hour; try again in 1 s",
        ),
        ErrorCode::BadRequest
        | ErrorCode::MethodNotAllowed
        | ErrorCode::RequestTimeout
        | ErrorCode::HeadersTooLarge
        | ErrorCode::ServerError => ApiError::fault(),
        ErrorCode::ServiceUnavailable => {
            ApiError::unavailable("the service cannot reach its database at the moment; try again")
        }
    };
    serde_json::from_slice(&error.body(REQUEST_ID)).unwrap_or_default()
}
