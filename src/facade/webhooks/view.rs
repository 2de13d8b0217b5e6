//! How answers show webhooks and deliveries, field by field (specification, section 2.4; decisions, section 6).

use std::fmt;

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::json;
use utoipa::{
    ToSchema,
    openapi::{Ref, RefOr, schema::Schema},
};

use super::ShownWebhook;
use crate::{
    events::EventType,
    facade::{
        id::{DeliveryId, PublicId as _, WebhookId},
        view::{Seconds, schema},
    },
    resources::{Attempt, Delivery, DeliveryPhase, Disabled, delivery::MAX_ATTEMPTS_KEPT},
};

/// A webhook, without its secret.
#[derive(Serialize, ToSchema)]
#[schema(as = Webhook)]
pub struct WebhookView<'a> {
    /// Identifier.
    #[schema(schema_with = webhook_id)]
    id: WebhookId,
    /// Where events are sent.
    #[schema(example = "https://hooks.example.com/stellage")]
    url: &'a str,
    /// Types of events that are sent.
    #[schema(example = json!(["instance.created"]))]
    events: &'a [EventType],
    /// Whether events are sent: it is wanted, and the webhook is not disabled.
    active: bool,
    /// When it was created.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:00:00Z")]
    created_at: Seconds,
    /// Why nothing is sent although it is wanted; there only while the webhook is disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    disabled: Option<DisabledView<'a>>,
}

/// Since when and why a webhook is disabled.
#[derive(Serialize, ToSchema)]
#[schema(as = WebhookDisabled)]
pub struct DisabledView<'a> {
    /// Since when.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T18:36:00Z")]
    at: Seconds,
    /// Why, for programs.
    #[schema(schema_with = disable_reason)]
    reason: &'static str,
    /// Why, for people.
    #[schema(value_type = String)]
    message: &'a str,
    /// The delivery that failed for good.
    #[schema(schema_with = delivery_id)]
    delivery_id: String,
    /// Its event.
    #[schema(value_type = String, example = "evt_5m2k8x1ta4q7hz0c")]
    event_id: &'a str,
}

impl<'a> DisabledView<'a> {
    fn of(disabled: &'a Disabled) -> Self {
        Self {
            at: Seconds(disabled.at),
            reason: match disabled.reason {
                crate::resources::DisableReason::RetriesExhausted => "retries_exhausted",
                crate::resources::DisableReason::Gone => "gone",
            },
            message: &disabled.message,
            delivery_id: crate::resources::ids::delivery_id(&disabled.delivery),
            event_id: &disabled.event_id,
        }
    }
}

impl<'a> WebhookView<'a> {
    /// How a list and a detail show a webhook.
    pub fn of(shown: &'a ShownWebhook) -> Self {
        let webhook = &*shown.webhook;
        Self {
            id: shown.id,
            url: &webhook.spec.url,
            events: &webhook.spec.events,
            active: webhook.is_active(),
            created_at: Seconds(webhook.created_at()),
            disabled: webhook.disabled().map(DisabledView::of),
        }
    }
}

/// A webhook with its secret, which nobody is shown again.
#[derive(Serialize, ToSchema)]
pub struct WebhookWithSecret<'a> {
    /// Identifier, for all other requests.
    #[schema(schema_with = webhook_id)]
    id: WebhookId,
    /// Where events are sent.
    #[schema(example = "https://hooks.example.com/stellage")]
    url: &'a str,
    /// Types of events that are sent.
    #[schema(example = json!(["instance.created"]))]
    events: &'a [EventType],
    /// The signing secret.
    #[schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=")]
    secret: &'a str,
    /// Whether events are sent.
    active: bool,
    /// When it was created.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:00:00Z")]
    created_at: Seconds,
    /// After a rotation: until when deliveries are signed with the previous secret too; there only while that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, format = DateTime, example = "2026-11-22T10:00:00Z")]
    previous_secret_expires_at: Option<Seconds>,
}

impl<'a> WebhookWithSecret<'a> {
    /// How the answers to a create and to a rotation show a webhook.
    pub fn of(shown: &'a ShownWebhook, secret: &'a str, previous_until: Option<Timestamp>) -> Self {
        let webhook = &*shown.webhook;
        Self {
            id: shown.id,
            url: &webhook.spec.url,
            events: &webhook.spec.events,
            secret,
            active: webhook.is_active(),
            created_at: Seconds(webhook.created_at()),
            previous_secret_expires_at: previous_until.map(Seconds),
        }
    }
}

/// What a recovery does.
#[derive(Serialize, ToSchema)]
pub struct Recovery {
    /// Deliveries that are sent again.
    #[schema(minimum = 0)]
    pub recovered: usize,
}

/// One event for one webhook, and every attempt to send it.
#[derive(Serialize, ToSchema)]
#[schema(as = Delivery)]
pub struct DeliveryView<'a> {
    /// Identifier.
    #[schema(schema_with = delivery_id)]
    id: String,
    /// Identifier of the event, the same in every attempt.
    #[schema(pattern = "^evt_", example = "evt_5m2k8x1ta4q7hz0c")]
    event_id: &'a str,
    /// Type of the event.
    event_type: EventType,
    /// `pending`: waits for its next attempt; `held`: until the webhook can be sent to again; `delivered`: answered with 2xx;
    /// `exhausted`: its last retry failed, the receiver said 410, or it is a test that could not be sent.
    #[schema(schema_with = delivery_status)]
    status: &'static str,
    /// When it was recorded.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:02:31Z")]
    created_at: Seconds,
    /// When the next attempt is due, while it is pending; else `null`, and so in the moment before one that is to be sent
    /// again is taken up.
    #[schema(required, value_type = Option<String>, format = DateTime, example = "2026-11-21T10:08:31Z")]
    next_attempt_at: Option<Seconds>,
    /// The attempts, oldest first; of many the last 21.
    #[schema(max_items = 21)]
    attempts: Vec<AttemptView<'a>>,
}

/// One attempt to send it, and what came of it.
#[derive(Serialize, ToSchema)]
#[schema(as = DeliveryAttempt)]
pub struct AttemptView<'a> {
    /// When it began.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:02:31.250Z")]
    at: Milliseconds,
    /// How long it took.
    #[schema(minimum = 0, example = 42)]
    duration_ms: i64,
    /// Status code of the answer; `null` if there was none.
    #[schema(required, minimum = 100, maximum = 999, example = 503)]
    status_code: Option<i32>,
    /// Why it failed; `null` for a success.
    #[schema(required, example = "the receiver answered 503")]
    error: Option<&'a str>,
    /// The beginning of the answer's body, at most 4 KiB; `null` if there was none.
    #[schema(required, example = "try later")]
    response: Option<&'a str>,
}

/// A time in UTC, cut to milliseconds.
struct Milliseconds(Timestamp);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}", self.0)
    }
}

impl Serialize for Milliseconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'a> AttemptView<'a> {
    fn of(attempt: &'a Attempt) -> Self {
        Self {
            at: Milliseconds(attempt.at),
            duration_ms: attempt.duration_ms,
            status_code: attempt.status_code,
            error: attempt.error.as_deref(),
            response: attempt.response.as_deref(),
        }
    }
}

/// Where a delivery is, as REST shows it: one that is to be sent again is pending from that request on.
pub fn phase(delivery: &Delivery) -> DeliveryPhase {
    match &delivery.status {
        Some(status) if !status.phase.is_finished() || delivery.is_finished() => status.phase,
        _ => DeliveryPhase::Pending,
    }
}

impl<'a> DeliveryView<'a> {
    /// How lists and answers show a delivery.
    pub fn of(delivery: &'a Delivery) -> Self {
        let phase = phase(delivery);
        let status = delivery.status.as_ref();
        let attempts = status
            .map(|status| status.attempts.as_slice())
            .unwrap_or_default();
        let first = attempts.len().saturating_sub(MAX_ATTEMPTS_KEPT);
        Self {
            id: delivery.id(),
            event_id: &delivery.spec.event_id,
            event_type: delivery.spec.event_type,
            status: phase.as_str(),
            created_at: Seconds(created_at(delivery)),
            next_attempt_at: status
                .filter(|_| phase == DeliveryPhase::Pending)
                .and_then(|status| status.next_attempt_at)
                .map(Seconds),
            attempts: attempts[first..].iter().map(AttemptView::of).collect(),
        }
    }
}

/// When a delivery was recorded.
pub fn created_at(delivery: &Delivery) -> Timestamp {
    let created = delivery.metadata.creation_timestamp.as_ref();
    created.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

fn webhook_id() -> RefOr<Schema> {
    Ref::from_schema_name("WebhookId").into()
}

fn delivery_id() -> RefOr<Schema> {
    Ref::from_schema_name("DeliveryId").into()
}

fn delivery_status() -> RefOr<Schema> {
    Ref::from_schema_name("DeliveryStatus").into()
}

fn disable_reason() -> RefOr<Schema> {
    schema(&json!({
        "type": "string", "enum": ["retries_exhausted", "gone"],
        "description": "`retries_exhausted`: the last retry of a delivery failed; `gone`: the receiver answered 410.",
    }))
}

/// The schemas that several answers share and no type of this crate has, by name.
pub(in crate::facade) fn shared_schemas() -> serde_json::Value {
    let id = |prefix: &str, of: &str| {
        json!({
            "type": "string", "pattern": format!("^{prefix}[a-z0-9]{{16}}$"), "description": format!("Identifier of a {of}."),
            "examples": [format!("{prefix}4q7hz0c9k2m8x1ta")],
        })
    };
    json!({
        "WebhookId": id(WebhookId::PREFIX, "webhook"),
        "DeliveryId": id(DeliveryId::PREFIX, "delivery"),
        "DeliveryStatus": {
            "type": "string", "enum": DeliveryPhase::ALL.map(DeliveryPhase::as_str), "description": "Where a delivery is.",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(phase: &str, finished: bool) -> Delivery {
        let mut object = json!({
            "metadata": {
                "name": "dlv-abcdefgh01234567", "namespace": "demo", "creationTimestamp": "2026-11-21T10:00:00Z",
                "labels": {},
            },
            "spec": {
                "webhook": "orders", "eventId": "evt_1", "eventType": "instance.created",
                "eventCreatedAt": "2026-11-21T09:59:59Z", "body": "{}",
            },
            "status": {
                "phase": phase, "nextAttemptAt": "2026-11-21T10:05:00.9Z", "attemptCount": 1,
                "attempts": [{ "at": "2026-11-21T10:00:00.1234Z", "durationMs": 7, "statusCode": 500, "error": "no", "response": "oops" }],
            },
        });
        if finished {
            object["metadata"]["labels"] = json!({ "stellage.dev/finished": "true" });
        }
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_delivery_has_the_decided_fields() {
        let shown = serde_json::to_value(DeliveryView::of(&delivery("Pending", false))).unwrap();
        assert_eq!(
            shown,
            json!({
                "id": "dlv_abcdefgh01234567", "event_id": "evt_1", "event_type": "instance.created", "status": "pending",
                "created_at": "2026-11-21T10:00:00Z", "next_attempt_at": "2026-11-21T10:05:00Z",
                "attempts": [{
                    "at": "2026-11-21T10:00:00.123Z", "duration_ms": 7, "status_code": 500, "error": "no", "response": "oops",
                }],
            })
        );
    }

    #[test]
    fn what_is_asked_for_again_is_pending_before_the_controller_has_seen_it() {
        for (is, finished, expected) in [
            ("Pending", false, DeliveryPhase::Pending),
            ("Held", false, DeliveryPhase::Held),
            ("Delivered", true, DeliveryPhase::Delivered),
            ("Exhausted", true, DeliveryPhase::Exhausted),
            ("Delivered", false, DeliveryPhase::Pending),
            ("Exhausted", false, DeliveryPhase::Pending),
        ] {
            assert_eq!(phase(&delivery(is, finished)), expected, "{is} {finished}");
        }
        let mut without = delivery("Held", false);
        without.status = None;
        assert_eq!(phase(&without), DeliveryPhase::Pending);
    }

    #[test]
    fn a_webhook_shows_its_secret_only_where_it_must() {
        let object = json!({
            "metadata": { "name": "wh-abcdefgh01234567", "generation": 2, "creationTimestamp": "2026-11-21T10:00:00Z" },
            "spec": { "url": "https://example.com", "events": ["instance.created"], "secretRef": { "name": "s" } },
            "status": { "disabled": {
                "at": "2026-11-21T11:00:00Z", "reason": "RetriesExhausted", "message": "m",
                "delivery": "dlv-abcdefgh01234567", "eventId": "evt_1", "eventType": "instance.created",
                "attempts": 6, "error": "no", "generation": 2,
            } },
        });
        let shown =
            crate::facade::entry::Entry::of(std::sync::Arc::new(serde_json::from_value(object).unwrap()));
        let plain = serde_json::to_value(WebhookView::of(&shown)).unwrap();
        assert_eq!(
            plain,
            json!({
                "id": "wh_abcdefgh01234567", "url": "https://example.com", "events": ["instance.created"], "active": false,
                "created_at": "2026-11-21T10:00:00Z",
                "disabled": {
                    "at": "2026-11-21T11:00:00Z", "reason": "retries_exhausted", "message": "m",
                    "delivery_id": "dlv_abcdefgh01234567", "event_id": "evt_1",
                },
            })
        );
        let created = serde_json::to_value(WebhookWithSecret::of(&shown, "s3cret", None)).unwrap();
        let fields: Vec<_> = created.as_object().unwrap().keys().cloned().collect();
        assert_eq!(fields, ["active", "created_at", "events", "id", "secret", "url"]);
    }
}
