//! Deliveries as responses show them (decisions, section 6).

use std::{borrow::Cow, fmt};

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::json;
use utoipa::{
    ToSchema,
    openapi::{Ref, RefOr, schema::Schema},
};

use crate::{
    facade::response::view::Seconds,
    service::{
        deliveries::{created_at, next_attempt, shown_phase},
        id::{DeliveryId, PublicId as _},
    },
};
use domain::event::{EventType, catalogue};
use resources::{Attempt, Delivery, DeliveryPhase, Webhook, delivery::MAX_ATTEMPTS_KEPT};
use sender::signature;

/// The delivery of an event to a webhook, with its attempts.
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
    /// `pending`: waiting for its next attempt. `held`: waiting until the webhook works again and there is room. `delivered`: answered with 2xx.
    /// `exhausted`: all retries failed, the receiver answered 410, or it is a test event that failed.
    #[schema(schema_with = delivery_status)]
    status: &'static str,
    /// When the event occurred.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:02:31Z")]
    created_at: Seconds,
    /// When the next attempt is due. `null` unless the delivery is pending, and while a requested attempt has not been made yet.
    #[schema(required, value_type = Option<String>, format = DateTime, example = "2026-11-21T10:08:31Z")]
    next_attempt_at: Option<Seconds>,
    /// The last 21 attempts, oldest first.
    #[schema(max_items = 21)]
    attempts: Vec<AttemptView<'a>>,
    /// The request to the receiver. Present only if a single delivery is shown, not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    request: Option<RequestView<'a>>,
}

/// The request to the receiver.
#[derive(Serialize, ToSchema)]
#[schema(as = DeliveryRequest)]
pub struct RequestView<'a> {
    /// Current URL of the webhook.
    #[schema(example = "https://hooks.example.com/stellage")]
    url: &'a str,
    /// The headers, without the signatures.
    headers: HeadersView<'a>,
    /// The body, byte for byte; the same in every attempt.
    #[schema(example = "{\"id\":\"evt_5m2k8x1ta4q7hz0c\",\"type\":\"instance.created\"}")]
    #[schema(value_type = String)]
    body: Cow<'a, str>,
}

/// The headers of the request, without the two signatures, which are computed with the secret for each attempt and not stored.
/// `X-Service-Signature` is the lower-case hexadecimal HMAC-SHA256 of `body`, keyed with the characters of the secret.
/// `webhook-signature` is `v1,` and the base64 of the HMAC-SHA256 of `<webhook-id>.<webhook-timestamp>.<body>`. The HMAC key of a
/// secret `whsec_<base64>` is the decoded base64; that of any other secret is its own bytes.
#[derive(Serialize, ToSchema)]
#[schema(as = DeliveryHeaders)]
pub struct HeadersView<'a> {
    /// The media type of the body.
    #[serde(rename = "Content-Type")]
    #[schema(example = "application/json")]
    content_type: &'static str,
    /// The operator and its version, as of now.
    #[serde(rename = "User-Agent")]
    #[schema(pattern = "^Stellage/", example = "Stellage/0.1.0")]
    user_agent: &'static str,
    /// Identifier of the event, the same in every attempt.
    #[serde(rename = "X-Service-Event-ID")]
    #[schema(example = "evt_5m2k8x1ta4q7hz0c")]
    event_id: &'a str,
    /// Type of the event.
    #[serde(rename = "X-Service-Event-Type")]
    event_type: EventType,
    /// When the event happened, in seconds since 1970.
    #[serde(rename = "X-Service-Timestamp")]
    #[schema(pattern = "^-?[0-9]+$", example = "1795255351")]
    timestamp: String,
    /// The same as `X-Service-Event-ID` (Standard Webhooks).
    #[serde(rename = "webhook-id")]
    #[schema(example = "evt_5m2k8x1ta4q7hz0c")]
    webhook_id: &'a str,
    /// When the last attempt was made, in seconds since 1970 (Standard Webhooks); `null` before the first.
    #[serde(rename = "webhook-timestamp")]
    #[schema(required, pattern = "^-?[0-9]+$", example = "1795255351")]
    webhook_timestamp: Option<String>,
}

/// An attempt to send a delivery, and its outcome.
#[derive(Serialize, ToSchema)]
#[schema(as = DeliveryAttempt)]
pub struct AttemptView<'a> {
    /// When the attempt began.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:02:31.250Z")]
    at: Milliseconds,
    /// Duration in milliseconds.
    #[schema(minimum = 0, example = 42)]
    duration_ms: i64,
    /// Status code of the answer; `null` if there was none.
    #[schema(required, minimum = 100, maximum = 999, example = 503)]
    status_code: Option<i32>,
    /// Why the attempt failed; `null` if it succeeded.
    #[schema(required, example = "the receiver answered 503")]
    error: Option<&'a str>,
    /// The start of the answer's body, at most 1 KiB by default, of the last attempt; `null` for the others, or if there was none.
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

impl<'a> DeliveryView<'a> {
    /// A delivery as lists show it.
    pub fn of(delivery: &'a Delivery) -> Self {
        let phase = shown_phase(delivery);
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
            next_attempt_at: next_attempt(delivery).map(Seconds),
            attempts: attempts[first..].iter().map(AttemptView::of).collect(),
            request: None,
        }
    }

    /// A delivery of this webhook, with the request, as its detail shows it.
    pub fn with_request(delivery: &'a Delivery, webhook: &'a Webhook) -> Self {
        let (spec, attempts) = (&delivery.spec, delivery.status.as_ref().map(|it| &it.attempts));
        let last = attempts.and_then(|attempts| attempts.last());
        let headers = HeadersView {
            content_type: "application/json",
            user_agent: signature::AGENT,
            event_id: &spec.event_id,
            event_type: spec.event_type,
            timestamp: spec.event_created_at.as_second().to_string(),
            webhook_id: &spec.event_id,
            webhook_timestamp: last.map(|attempt| attempt.at.as_second().to_string()),
        };
        Self {
            request: Some(RequestView {
                url: &webhook.spec.url,
                headers,
                body: catalogue::body_of(spec),
            }),
            ..Self::of(delivery)
        }
    }
}

/// The result of sending all pending deliveries.
#[derive(Serialize, ToSchema)]
pub struct Retry {
    /// Number of deliveries to send; `message` says when.
    #[schema(minimum = 0)]
    pub retried: usize,
}

pub(in crate::facade) fn delivery_id() -> RefOr<Schema> {
    Ref::from_schema_name("DeliveryId").into()
}

fn delivery_status() -> RefOr<Schema> {
    Ref::from_schema_name("DeliveryStatus").into()
}

/// Schemas shared by several answers that have no Rust type, by name.
pub(in crate::facade) fn shared_schemas() -> serde_json::Value {
    let prefix = DeliveryId::PREFIX;
    json!({
        "DeliveryId": {
            "type": "string", "pattern": format!("^{prefix}[a-z0-9]{{16}}$"), "description": "Identifier of a delivery.",
            "examples": [format!("{prefix}4q7hz0c9k2m8x1ta")],
        },
        "DeliveryStatus": {
            "type": "string", "enum": DeliveryPhase::ALL.map(DeliveryPhase::as_str), "description": "Status of a delivery.",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use resources::delivery::ATTEMPT_REQUESTED_AT_ANNOTATION;

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
    fn a_delivery_has_exactly_its_fields() {
        let shown = serde_json::to_value(DeliveryView::of(&delivery("Pending", false))).unwrap();
        assert_eq!(
            shown,
            json!({
                "id": "dlv_abcdefgh01234567", "event_id": "evt_1", "event_type": "instance.created", "status": "pending",
                "created_at": "2026-11-21T09:59:59Z", "next_attempt_at": "2026-11-21T10:05:00Z",
                "attempts": [{
                    "at": "2026-11-21T10:00:00.123Z", "duration_ms": 7, "status_code": 500, "error": "no", "response": "oops",
                }],
            })
        );
    }

    #[test]
    fn a_delivery_whose_attempt_was_requested_shows_no_later_time() {
        let mut requested = delivery("Pending", false);
        let annotations = requested.metadata.annotations.get_or_insert_default();
        annotations.insert(
            ATTEMPT_REQUESTED_AT_ANNOTATION.to_owned(),
            "2026-11-21T10:01:00Z".to_owned(),
        );
        assert!(DeliveryView::of(&requested).next_attempt_at.is_none());
        requested.status.as_mut().unwrap().attempt_requested_at = Some("2026-11-21T10:01:00Z".to_owned());
        assert!(DeliveryView::of(&requested).next_attempt_at.is_some());
    }

    #[test]
    fn a_single_delivery_shows_the_request_without_signatures() {
        let webhook = serde_json::from_value(json!({
            "metadata": { "name": "orders" },
            "spec": { "url": "https://example.com/hook", "events": [], "secretRef": { "name": "s" } },
        }))
        .unwrap();
        let mut delivery = delivery("Pending", false);
        let shown = |delivery: &Delivery| {
            serde_json::to_value(DeliveryView::with_request(delivery, &webhook)).unwrap()
        };
        let mut expected = json!({
            "url": "https://example.com/hook",
            "headers": {
                "Content-Type": "application/json", "User-Agent": signature::AGENT,
                "X-Service-Event-ID": "evt_1", "X-Service-Event-Type": "instance.created", "X-Service-Timestamp": "1795255199",
                "webhook-id": "evt_1", "webhook-timestamp": "1795255200",
            },
            "body": "{}",
        });
        assert_eq!(shown(&delivery)["request"], expected);
        // Every header that is sent, except for the signatures.
        let keys = signature::SigningKeys::new("s", None);
        let at = Timestamp::UNIX_EPOCH;
        let sent = signature::headers(&keys, "evt_1", "instance.created", at, at, b"{}");
        let signatures = [signature::SERVICE_SIGNATURE, signature::WEBHOOK_SIGNATURE];
        let sent = sent.keys().filter(|name| !signatures.contains(name));
        let mut sent: Vec<_> = sent.map(|name| name.as_str().to_owned()).collect();
        sent.sort_unstable();
        let shown_headers = expected["headers"].as_object().unwrap().keys();
        let mut names: Vec<_> = shown_headers.map(|name| name.to_ascii_lowercase()).collect();
        names.sort_unstable();
        assert_eq!(names, sent);
        delivery.status = None;
        expected["headers"]["webhook-timestamp"] = json!(null);
        assert_eq!(shown(&delivery)["request"], expected);
    }
}
