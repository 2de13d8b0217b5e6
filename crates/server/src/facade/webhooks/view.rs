//! Webhooks as responses show them (specification, section 2.4; decisions, section 6).

use std::borrow::Cow;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use utoipa::{
    ToSchema,
    openapi::{Ref, RefOr, schema::Schema},
};

use crate::{
    facade::{
        deliveries::view::delivery_id,
        response::view::{Seconds, schema, snake_case},
    },
    service::{
        id::{PublicId as _, WebhookId},
        webhooks::{Health, IndexedWebhook, health},
    },
};
use domain::event::EventType;
use resources::{DisableReason, Disabled, ids};

/// A webhook, without its secret.
#[derive(Serialize, ToSchema)]
#[schema(as = Webhook)]
pub struct WebhookView<'a> {
    /// Identifier.
    #[schema(schema_with = webhook_id)]
    id: WebhookId,
    /// URL that events are POSTed to.
    #[schema(example = "https://hooks.example.com/stellage")]
    url: &'a str,
    /// Event types that are sent.
    #[schema(example = json!(["instance.created"]))]
    events: &'a [EventType],
    /// Whether events are sent. `false` if the webhook is switched off or disabled.
    active: bool,
    /// Health of the deliveries.
    #[schema(schema_with = webhook_health)]
    health: &'static str,
    /// Why the webhook is not healthy, for programs: `attempt_failed`, `retries_exhausted`, `gone`, `secret_missing`,
    /// `secret_unusable`, `invalid_url` and others; more may be added. Present only while it is not healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, pattern = "^[a-z_]+$", example = "attempt_failed")]
    health_reason: Option<String>,
    /// The reason for people. Present only together with `health_reason`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(
        nullable = false,
        example = "the last attempt failed: the receiver answered 503"
    )]
    health_message: Option<Cow<'a, str>>,
    /// When a delivery last succeeded; `null` if none has.
    #[schema(required, value_type = Option<String>, format = DateTime, example = "2026-11-21T10:02:31Z")]
    last_success_at: Option<Seconds>,
    /// When an attempt last failed; `null` if none has.
    #[schema(required, value_type = Option<String>, format = DateTime, example = "2026-11-21T10:01:31Z")]
    last_failure_at: Option<Seconds>,
    /// Number of deliveries waiting for an attempt. This and the other counters and times are some ten seconds old, or minutes if
    /// hundreds of webhooks are busy.
    #[schema(minimum = 0, example = 2)]
    pending: i64,
    /// Number of deliveries held until the webhook works again and there is room for them.
    #[schema(minimum = 0, example = 0)]
    held: i64,
    /// Number of deliveries dropped since the webhook was created, because too many were held or a quota allowed no more.
    #[schema(minimum = 0, example = 0)]
    dropped: i64,
    /// When it was created.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:00:00Z")]
    created_at: Seconds,
    /// Since when and why the webhook is disabled. Present only while it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    disabled: Option<DisabledView<'a>>,
}

/// Since when and why a webhook is disabled.
#[derive(Serialize, ToSchema)]
#[schema(as = WebhookDisabled)]
pub struct DisabledView<'a> {
    /// When the webhook was disabled.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T18:36:00Z")]
    at: Seconds,
    /// The reason, for programs.
    #[schema(schema_with = disable_reason)]
    reason: &'static str,
    /// The reason, for people.
    #[schema(value_type = String)]
    message: &'a str,
    /// The delivery that could not be delivered.
    #[schema(schema_with = delivery_id)]
    delivery_id: String,
    /// Identifier of its event.
    #[schema(value_type = String, example = "evt_5m2k8x1ta4q7hz0c")]
    event_id: &'a str,
}

impl<'a> DisabledView<'a> {
    fn of(disabled: &'a Disabled) -> Self {
        Self {
            at: Seconds(disabled.at),
            reason: match disabled.reason {
                DisableReason::RetriesExhausted => "retries_exhausted",
                DisableReason::Gone => "gone",
            },
            message: &disabled.message,
            delivery_id: ids::delivery_id(&disabled.delivery),
            event_id: &disabled.event_id,
        }
    }
}

impl<'a> WebhookView<'a> {
    /// A webhook as lists and its detail show it.
    pub fn of(item: &'a IndexedWebhook) -> Self {
        let webhook = &*item.webhook;
        let status = webhook.status.as_ref();
        let (health, complaint) = health(webhook);
        Self {
            id: item.id,
            url: &webhook.spec.url,
            events: &webhook.spec.events,
            active: webhook.is_active(),
            health: health.as_str(),
            health_reason: complaint.map(|complaint| snake_case(complaint.reason_for_api())),
            health_message: complaint.map(|complaint| complaint.for_api()),
            last_success_at: status.and_then(|status| status.last_success_at).map(Seconds),
            last_failure_at: status.and_then(|status| status.last_failure_at).map(Seconds),
            pending: status.map_or(0, |status| status.pending),
            held: status.map_or(0, |status| status.held),
            dropped: status.map_or(0, |status| status.dropped),
            created_at: Seconds(webhook.created_at()),
            disabled: webhook.disabled().map(DisabledView::of),
        }
    }
}

/// A webhook with its secret, which is shown only here.
#[derive(Serialize, ToSchema)]
pub struct WebhookWithSecret<'a> {
    /// Identifier.
    #[schema(schema_with = webhook_id)]
    id: WebhookId,
    /// URL that events are POSTed to.
    #[schema(example = "https://hooks.example.com/stellage")]
    url: &'a str,
    /// Event types that are sent.
    #[schema(example = json!(["instance.created"]))]
    events: &'a [EventType],
    /// The signing secret; `null` in the answer to a create that is repeated more than a day later.
    #[schema(required, example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=")]
    secret: Option<&'a str>,
    /// Whether events are sent.
    active: bool,
    /// When it was created.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:00:00Z")]
    created_at: Seconds,
    /// Until when deliveries are also signed with the previous secret. Present only after a rotation with an overlap.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, format = DateTime, example = "2026-11-22T10:00:00Z")]
    previous_secret_expires_at: Option<Seconds>,
}

impl<'a> WebhookWithSecret<'a> {
    /// A webhook as the answers to a create and a rotation show it.
    pub fn of(item: &'a IndexedWebhook, secret: Option<&'a str>, previous_until: Option<Timestamp>) -> Self {
        let webhook = &*item.webhook;
        Self {
            id: item.id,
            url: &webhook.spec.url,
            events: &webhook.spec.events,
            secret,
            active: webhook.is_active(),
            created_at: Seconds(webhook.created_at()),
            previous_secret_expires_at: previous_until.map(Seconds),
        }
    }
}

/// The result of a recovery.
#[derive(Serialize, ToSchema)]
pub struct Recovery {
    /// Number of deliveries to send again; `message` says when.
    #[schema(minimum = 0)]
    pub recovered: usize,
}

fn webhook_id() -> RefOr<Schema> {
    Ref::from_schema_name("WebhookId").into()
}

fn webhook_health() -> RefOr<Schema> {
    schema(&json!({
        "type": "string", "enum": Health::ALL.map(Health::as_str),
        "description": "`healthy`: the last attempt succeeded, or nothing was sent yet. `failing`: the last attempt failed. `blocked`: nothing can be sent because of a problem with the URL or the Secret. `disabled`: all retries failed, or the receiver answered 410.",
    }))
}

fn disable_reason() -> RefOr<Schema> {
    schema(&json!({
        "type": "string", "enum": ["retries_exhausted", "gone"],
        "description": "`retries_exhausted`: all retries of a delivery failed. `gone`: the receiver answered 410.",
    }))
}

/// Schemas shared by several answers that have no Rust type, by name.
pub(in crate::facade) fn shared_schemas() -> serde_json::Value {
    let prefix = WebhookId::PREFIX;
    json!({
        "WebhookId": {
            "type": "string", "pattern": format!("^{prefix}[a-z0-9]{{16}}$"), "description": "Identifier of a webhook.",
            "examples": [format!("{prefix}4q7hz0c9k2m8x1ta")],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_is_shown_only_in_the_answer_to_a_create() {
        let object = json!({
            "metadata": { "name": "wh-abcdefgh01234567", "generation": 2, "creationTimestamp": "2026-11-21T10:00:00Z" },
            "spec": { "url": "https://example.com", "events": ["instance.created"], "secretRef": { "name": "s" } },
            "status": { "disabled": {
                "at": "2026-11-21T11:00:00Z", "reason": "RetriesExhausted", "message": "m",
                "delivery": "dlv-abcdefgh01234567", "eventId": "evt_1", "eventType": "instance.created",
                "attempts": 6, "error": "no", "generation": 2,
            } },
        });
        let item =
            crate::service::index::Indexed::of(std::sync::Arc::new(serde_json::from_value(object).unwrap()));
        let plain = serde_json::to_value(WebhookView::of(&item)).unwrap();
        assert_eq!(
            plain,
            json!({
                "id": "wh_abcdefgh01234567", "url": "https://example.com", "events": ["instance.created"], "active": false,
                "health": "disabled", "health_reason": "retries_exhausted", "health_message": "m", "last_success_at": null, "last_failure_at": null,
                "pending": 0, "held": 0, "dropped": 0, "created_at": "2026-11-21T10:00:00Z",
                "disabled": {
                    "at": "2026-11-21T11:00:00Z", "reason": "retries_exhausted", "message": "m",
                    "delivery_id": "dlv_abcdefgh01234567", "event_id": "evt_1",
                },
            })
        );
        let created = serde_json::to_value(WebhookWithSecret::of(&item, Some("s3cret"), None)).unwrap();
        let fields: Vec<_> = created.as_object().unwrap().keys().cloned().collect();
        assert_eq!(fields, ["active", "created_at", "events", "id", "secret", "url"]);
    }
}
