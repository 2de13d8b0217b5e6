//! Example requests and responses, built with the code that produces real responses, so that they stay correct.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::super::{
    backups, deliveries,
    instances::{self, actions},
    keys, monitoring, networks,
    response::error::{self, Detail, ErrorCode},
    webhooks,
};
use crate::service::{
    self,
    alerts::ShownAlert,
    backups::{IndexedBackup, ShownBackup, check_backup_state},
    console::check_console_state,
    deliveries::When,
    error::{Error, suspended},
    idempotency,
    index::Indexed as _,
    instances::{IndexedInstance, check_state},
    networks::IndexedNetwork,
    precondition,
    webhooks::IndexedWebhook,
};
use api::{
    Console, ConsoleType, CursorList, CursorPagination, InstanceMetrics, InstanceSeries, List, Pagination,
    Seconds, Single,
};
use domain::{
    event::{EventType, catalogue},
    instance::Action,
    provider::{Series, Window},
};
use resources::{
    ApiKey, Backup, Delivery, DeliveryPhase, Instance, Plan, PrivateNetwork, Webhook,
    quota::{SizeQuotas, Sizes},
};

/// The id of an instance.
pub(super) const ID: &str = "i-4q7hz0c9k2m8x1ta";
/// The id of a private network.
const NETWORK_ID: &str = "pn-hz0c9k2m8x1ta4q7";
/// The id of a backup.
const BACKUP_ID: &str = "bkp_9c2m8x1ta4q7hz0k";
/// The id of a webhook.
const WEBHOOK_ID: &str = "wh_0c9k2m8x1ta4q7hz";
/// The id of a delivery.
const DELIVERY_ID: &str = "dlv_2m8x1ta4q7hz0c9k";
/// The id of an API key.
const KEY_ID: &str = "key-ta4q7hz0c9k2m8x1";
/// The id of an event.
const EVENT_ID: &str = "evt_5m2k8x1ta4q7hz0c";
/// The id of an invoice.
const INVOICE_ID: &str = "inv_1ta4q7hz0c9k2m8x";
pub(super) const ETAG: &str = "\"7c1b7f0e-6a55-4c7e-9a3a-0c1d2e3f4a5b-1\"";
pub(super) const REQUEST_ID: &str = "9b2f4c0a8d7e4f1ca6b5d4e3f2a1b0c9";

fn instance_object(state: &str, power: &str, operation: Option<&str>) -> Option<IndexedInstance> {
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

fn webhook_object() -> Option<IndexedWebhook> {
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

fn backup_object(phase: &str) -> Option<ShownBackup> {
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

/// A private network.
pub fn network() -> Option<api::PrivateNetwork> {
    let object = json!({
        "metadata": { "name": NETWORK_ID, "namespace": "demo", "creationTimestamp": "2026-11-21T10:00:00Z" },
        "spec": { "name": "backend", "region": "fr-par-1" },
        "status": { "prefix": "10.128.4.0/24", "conditions": [{
            "type": "Ready", "status": "True", "reason": "Ready", "message": "",
            "lastTransitionTime": "2026-11-21T10:00:00Z",
        }] },
    });
    let network: PrivateNetwork = serde_json::from_value(object).ok()?;
    Some(networks::view(&IndexedNetwork::of(Arc::new(network)), 2))
}

fn alert_object() -> Option<ShownAlert> {
    let mut object = serde_json::to_value(&*instance_object("running", "Running", None)?.instance).ok()?;
    object["status"]["alerts"] = json!([{
        "id": "alr_2m8x1ta4q7hz0c9k", "rule": "cpu_usage_high", "phase": "Firing", "metric": "cpu_usage",
        "threshold": 90.0, "value": 96.4, "since": "2026-11-21T09:57:31Z", "firedAt": "2026-11-21T10:02:31Z",
    }]);
    let instance: Instance = serde_json::from_value(object).ok()?;
    Some(ShownAlert::first_of(Arc::new(IndexedInstance::of(Arc::new(
        instance,
    )))))
}

/// The usage of an instance.
pub fn series() -> InstanceSeries {
    let time = |second| Timestamp::from_second(second).unwrap_or_default();
    let usage = InstanceMetrics {
        cpu_usage: Some(12.5),
        memory_usage: Some(41.0),
        disk_usage: Some(23.9),
        network_in: Some(1_048_576),
        network_out: Some(524_288),
    };
    let series = Series {
        known_since: Some(time(1_795_255_231)),
        points: vec![
            (time(1_795_255_200), InstanceMetrics::default()),
            (time(1_795_255_260), usage),
        ],
    };
    monitoring::view::series(Window::Hour, &series)
}

fn delivery_object(phase: DeliveryPhase) -> Option<Delivery> {
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

fn key_object() -> Option<ApiKey> {
    let mut object = serde_json::to_value(new_key_object()?).ok()?;
    object["status"] = json!({ "lastUsedOn": "2026-11-21" });
    serde_json::from_value(object).ok()
}

fn new_key_object() -> Option<ApiKey> {
    let object = json!({
        "metadata": {
            "name": KEY_ID, "namespace": "demo", "uid": "0c1d2e3f-6a55-4c7e-9a3a-7c1b7f0e4a5b", "generation": 1,
            "creationTimestamp": "2026-11-21T10:00:00Z",
        },
        "spec": { "sha256": "", "scope": "read", "expiresAt": "2027-02-21T00:00:00Z", "lastCharacters": "xRtY" },
    });
    serde_json::from_value(object).ok()
}

/// The body of a list with one item.
pub fn page(item: impl Serialize) -> Value {
    json!(List {
        data: vec![item],
        pagination: Pagination::new(1, 20, 1),
    })
}

/// The body of an answer with a page of a list with cursors, which has one item and no others.
pub fn cursor_page(item: impl Serialize) -> Value {
    json!(CursorList {
        data: vec![item],
        pagination: CursorPagination {
            limit: 20,
            next: None
        },
    })
}

/// The body of an answer that shows one object.
pub fn single(data: impl Serialize) -> Value {
    json!(Single { data, message: None })
}

/// The body of an answer that says what the request has begun.
pub fn begun(data: impl Serialize, message: &str) -> Value {
    let message = Some(message.to_owned());
    json!(Single { data, message })
}

/// The body of an error answer.
pub fn error(error: Error) -> Value {
    serde_json::from_slice(&error::body(&error, REQUEST_ID)).unwrap_or_default()
}

/// An example as JSON. The tests of the document would notice one that cannot be made.
fn shown(example: Option<impl Serialize>) -> Value {
    example.map_or(Value::Null, |example| json!(example))
}

/// An instance in a list.
pub fn instance_summary() -> Value {
    let item = instance_object("running", "Running", None);
    shown(item.as_ref().map(instances::view::summary))
}

/// The body of an answer that shows an instance.
pub fn instance() -> Value {
    let item = instance_object("running", "Running", None);
    single(item.as_ref().map(|item| instances::view::detail(item, None)))
}

/// A plan for which the account's quotas have no room.
pub fn no_room() -> Error {
    let quotas = SizeQuotas {
        vcpu: Some(8),
        ..SizeQuotas::default()
    };
    let others = Sizes {
        vcpu: 6,
        ..Sizes::default()
    };
    let exceeded = quotas.exceeded(others, Sizes::of(Plan::Starter), Sizes::of(Plan::Performance));
    exceeded.map_or_else(Error::fault, |exceeded| {
        service::error::no_room(Plan::Performance, &exceeded)
    })
}

/// The body of the answer to a create of an instance.
pub fn new_instance() -> Value {
    let item = instance_object("provisioning", "Running", Some("Create"));
    let message = "Instance web-1 is being created; this takes about 2 to 3 minutes.";
    begun(item.as_ref().map(instances::view::created), message)
}

/// The body of the answer to an action on an instance.
pub fn acting(action: Action) -> Value {
    let (state, power, operation) = match action {
        Action::Start => ("starting", "Running", "Start"),
        Action::Stop => ("stopping", "Stopped", "Stop"),
        Action::PowerOff => ("stopping", "Stopped", "PowerOff"),
        Action::Reboot => ("rebooting", "Running", "Reboot"),
        Action::Rebuild => ("rebuilding", "Running", "Rebuild"),
        Action::ChangePlan => ("resizing", "Running", "Resize"),
    };
    let item = instance_object(state, power, Some(operation));
    let view = item.as_ref().map(|item| instances::view::detail(item, None));
    begun(view, &actions::message(action, "web-1", "debian-13"))
}

/// A console that can be opened.
pub fn console() -> Console {
    Console {
        r#type: ConsoleType::Serial,
        url: "wss://cloud.example.com/v1/console?token=0Zr1kN6jS8d5wq9XyTn2uVb4cLm7aHgE3fPoKiJxRtY"
            .to_owned(),
        expires_at: Seconds("2026-11-21T10:01:00Z".parse().unwrap_or_default()),
    }
}

/// The refusal of a console of a server that is off.
pub fn no_console() -> Error {
    let item = instance_object("stopped", "Stopped", None);
    let refused = item.and_then(|item| check_console_state(&item).err());
    refused.unwrap_or_else(Error::fault)
}

/// The refusal of an action in an unsuitable status.
pub fn not_running() -> Error {
    let item = instance_object("stopped", "Stopped", None);
    let refused = item.and_then(|item| check_state(Action::Reboot, &item).err());
    refused.unwrap_or_else(Error::fault)
}

pub fn backup() -> Value {
    shown(backup_object("Completed").as_ref().map(backups::view::backup))
}

/// The body of the answer to a create of a backup.
pub fn new_backup() -> Value {
    let backup = backup_object("Running");
    begun(
        backup.as_ref().map(backups::view::backup),
        "Instance web-1 is being backed up.",
    )
}

/// The refusal of a backup in an unsuitable status.
pub fn not_backed_up_now() -> Error {
    let item = instance_object("stopping", "Stopped", Some("Stop"));
    let refused = item.and_then(|item| check_backup_state(&item).err());
    refused.unwrap_or_else(Error::fault)
}

pub fn alert() -> Value {
    let alert = alert_object();
    shown(alert.as_ref().and_then(monitoring::view::alert))
}

/// A webhook, without its secret.
pub fn webhook() -> Value {
    shown(webhook_object().as_ref().map(webhooks::view::webhook))
}

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=";

/// The body of the answer to a create of a webhook.
pub fn new_webhook() -> Value {
    let webhook = webhook_object();
    single(
        webhook
            .as_ref()
            .map(|item| webhooks::view::with_secret(item, Some(SECRET.to_owned()), None)),
    )
}

/// The body of the answer to a rotation of a secret.
pub fn rotated_webhook() -> Value {
    let (webhook, until) = (webhook_object(), "2026-11-22T10:00:00Z".parse().ok());
    begun(
        webhook
            .as_ref()
            .map(|item| webhooks::view::with_secret(item, Some(SECRET.to_owned()), until)),
        "X-Service-Signature is made with the new secret from now on. Until the overlap ends, webhook-signature lists the signatures of both.",
    )
}

/// A delivery in a list.
pub fn delivery_summary() -> Value {
    let delivery = delivery_object(DeliveryPhase::Delivered);
    shown(delivery.as_ref().map(deliveries::view::delivery))
}

/// A delivery with its request.
pub fn delivery() -> Value {
    with_request(DeliveryPhase::Delivered)
}

fn with_request(phase: DeliveryPhase) -> Value {
    let (webhook, delivery) = (webhook_object(), delivery_object(phase));
    let both = webhook.as_ref().zip(delivery.as_ref());
    shown(both.map(|(webhook, delivery)| deliveries::view::with_request(delivery, &webhook.webhook)))
}

/// The body of the answer to a test of a webhook.
pub fn test_event() -> Value {
    begun(
        with_request(DeliveryPhase::Pending),
        "A test event of type instance.created is being sent to https://hooks.example.com/stellage.",
    )
}

/// The body of the answer to a redelivery.
pub fn redelivery() -> Value {
    let message = format!("Delivery {DELIVERY_ID} {}.", When::Now.describe());
    begun(with_request(DeliveryPhase::Pending), &message)
}

pub fn event() -> Value {
    catalogue::example(EventType::InstanceCreated)
}

/// An API key.
pub fn key() -> Value {
    shown(key_object().as_ref().map(keys::view::key))
}

/// The body of the answer to a create of an API key.
pub fn new_key() -> Value {
    let (object, key) = (new_key_object(), "0Zr1kN6jS8d5wq9XyTn2uVb4cLm7aHgE3fPoKiJxRtY");
    let view = object
        .as_ref()
        .map(|object| keys::view::created(object, Some(key.to_owned())));
    begun(view, "Store the key now; it will not be shown again.")
}

/// An invoice without its lines.
pub fn invoice(is_issued: bool) -> Value {
    let money = |value: &str| json!({ "value": value, "currency": "EUR" });
    json!({
        "id": INVOICE_ID, "number": is_issued.then_some("2026-000042"), "type": "invoice", "status": if is_issued { "issued" } else { "open" },
        "period": { "from": "2026-11-01T00:00:00Z", "to": "2026-12-01T00:00:00Z" },
        "issued_at": is_issued.then_some("2026-12-01T00:00:05Z"), "due_date": is_issued.then_some("2026-12-15"),
        "seller": {
            "name": "Stellage Ltd", "address": ["1 Main Street", "10115 Berlin"], "country": "DE", "vat_id": "DE123456789",
            "email": "billing@stellage.example", "reference": null,
        },
        "buyer": {
            "name": "Ada Ltd", "address": ["2 Side Street", "75001 Paris"], "country": "FR", "vat_id": "FR12345678901",
            "email": "ada@example.com", "reference": "PO 4711",
        },
        "corrects": null, "reason": null, "tax_rate": "19.00", "tax_note": null,
        "net": money("5.00"), "tax": money("0.95"), "amount": money("5.95"), "lines_count": 1,
    })
}

/// The body of an answer that shows an invoice with a page of its lines.
pub fn invoice_with_lines(is_issued: bool) -> Value {
    let mut data = invoice(is_issued);
    data["lines"] = json!([{
        "instance_id": ID, "name": "web-1",
        "hours": [{ "plan": "starter", "hours": 720, "unit_price": { "value": "0.00745", "currency": "EUR" }, "amount": { "value": "5.36400", "currency": "EUR" } }],
        "reduction": { "value": "-0.36400", "currency": "EUR" },
        "amount": { "value": "5.00", "currency": "EUR" },
    }]);
    json!({ "data": data, "pagination": Pagination::new(1, 20, 1) })
}

/// An error that any operation can have. `kind` is the kind of object that its path names.
pub(super) fn general_error(code: ErrorCode, kind: &str, takes_body: bool, has_query: bool) -> Error {
    match code {
        ErrorCode::JsonError => Error::new(code, "the body is not JSON: expected `:` at line 2 column 6"),
        ErrorCode::Unauthorized => Error::new(
            code,
            "the API key is missing; send the header Authorization: Bearer <API_KEY>",
        ),
        ErrorCode::Forbidden => Error::new(
            code,
            "a policy of the cluster refuses this: images from last year are not allowed",
        ),
        ErrorCode::TokenReadonly => Error::new(
            code,
            "this needs a key with the scope write; this key has the scope read",
        ),
        ErrorCode::AccountSuspended => suspended("invoice 2026-000042 is overdue"),
        ErrorCode::NotFound => Error::no_such(kind),
        ErrorCode::Conflict => Error::new(
            code,
            "the object changed during the request; read it and try again",
        ),
        ErrorCode::PreconditionFailed => precondition::failed(),
        ErrorCode::PayloadTooLarge => Error::new(code, "the body is larger than 64 KiB"),
        ErrorCode::UnsupportedMediaType => Error::new(code, "the Content-Type must be application/json"),
        ErrorCode::InvalidInput if takes_body => Error::invalid(vec![Detail::new(
            "rebot",
            "unknown_field",
            "is not a known field",
        )]),
        ErrorCode::InvalidInput if !has_query => Error::invalid(vec![Detail::new(
            "limit",
            "unknown_field",
            "is not known; this request has no query parameters",
        )]),
        ErrorCode::InvalidInput => Error::invalid_value("limit", "must be an integer from 1 to 100"),
        ErrorCode::IdempotencyKeyReused => idempotency::reused(),
        ErrorCode::RateLimitExceeded => Error::new(
            code,
            "the key has used up its 3600 requests per hour; try again in 1 s",
        ),
        ErrorCode::ServiceUnavailable => {
            Error::unavailable("the service cannot reach its database at the moment; try again")
        }
        _ => Error::fault(),
    }
}
