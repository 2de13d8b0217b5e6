//! Deliveries: `/v1/webhooks/{id}/deliveries` (decisions, section 6).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    schema,
    time::{Milliseconds, Seconds},
};
use resources::{DeliveryPhase, EventType};

/// The delivery of an event to a webhook, with its attempts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct Delivery {
    /// Identifier.
    #[schema(schema_with = schema::delivery_id)]
    pub id: String,
    /// Identifier of the event, the same in every attempt.
    #[schema(pattern = "^evt_", example = "evt_5m2k8x1ta4q7hz0c")]
    pub event_id: String,
    /// Type of the event.
    pub event_type: EventType,
    /// `pending`: waiting for its next attempt. `held`: waiting until the webhook works again and there is room. `delivered`: answered with 2xx.
    /// `exhausted`: all retries failed, the receiver answered 410, or it is a test event that failed.
    #[schema(schema_with = schema::delivery_status)]
    pub status: DeliveryStatus,
    /// When the event occurred.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:02:31Z")]
    pub created_at: Seconds,
    /// When the next attempt is due. `null` unless the delivery is pending, and while a requested attempt has not been made yet.
    #[schema(required, value_type = Option<String>, format = DateTime, example = "2026-11-21T10:03:31Z")]
    pub next_attempt_at: Option<Seconds>,
    /// The last 21 attempts, oldest first.
    #[schema(max_items = 21)]
    pub attempts: Vec<DeliveryAttempt>,
    /// The request to the receiver. Present only if a single delivery is shown, not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub request: Option<DeliveryRequest>,
}

/// The request to the receiver.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct DeliveryRequest {
    /// The URL of the last attempt; before the first, the current one of the webhook.
    #[schema(example = "https://hooks.example.com/stellage")]
    pub url: String,
    /// The headers, without the signatures.
    pub headers: DeliveryHeaders,
    /// The body, byte for byte; the same in every attempt.
    #[schema(
        example = "{\"id\":\"evt_5m2k8x1ta4q7hz0c\",\"type\":\"instance.created\",\"created_at\":\"2026-11-21T10:02:31.000Z\",\"data\":{\"instance\":{\"id\":\"i-4q7hz0c9k2m8x1ta\",\"name\":\"web-1\",\"status\":\"provisioning\",\"plan\":\"starter\",\"region\":\"fr-par-1\",\"ip_address\":\"198.18.0.7\"},\"user\":{\"id\":\"usr_8x1ta4q7hz0c9k2m\",\"email\":\"ada@example.com\"}}}"
    )]
    pub body: String,
}

/// The headers of the request, without the two signatures, which are computed with the secret for each attempt and not stored.
/// `X-Service-Signature` is the lower-case hexadecimal HMAC-SHA256 of `body`, keyed with the characters of the secret.
/// `webhook-signature` is `v1,` and the base64 of the HMAC-SHA256 of `<webhook-id>.<webhook-timestamp>.<body>`. The HMAC key of a
/// secret `whsec_<base64>` is the decoded base64; that of any other secret is its own bytes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct DeliveryHeaders {
    /// The media type of the body.
    #[serde(rename = "Content-Type")]
    #[schema(example = "application/json")]
    pub content_type: String,
    /// The operator and its version, as of now.
    #[serde(rename = "User-Agent")]
    #[schema(pattern = "^Stellage/", example = "Stellage/0.1.0")]
    pub user_agent: String,
    /// Any answer will do.
    #[serde(rename = "Accept")]
    #[schema(example = "*/*")]
    pub accept: String,
    /// Identifier of the event, the same in every attempt.
    #[serde(rename = "X-Service-Event-ID")]
    #[schema(example = "evt_5m2k8x1ta4q7hz0c")]
    pub event_id: String,
    /// Type of the event.
    #[serde(rename = "X-Service-Event-Type")]
    pub event_type: EventType,
    /// When the event happened, in seconds since 1970.
    #[serde(rename = "X-Service-Timestamp")]
    #[schema(pattern = "^-?[0-9]+$", example = "1795255351")]
    pub timestamp: String,
    /// The same as `X-Service-Event-ID` (Standard Webhooks).
    #[serde(rename = "webhook-id")]
    #[schema(example = "evt_5m2k8x1ta4q7hz0c")]
    pub webhook_id: String,
    /// When the last attempt was made, in seconds since 1970 (Standard Webhooks); `null` before the first.
    #[serde(rename = "webhook-timestamp")]
    #[schema(required, pattern = "^-?[0-9]+$", example = "1795255351")]
    pub webhook_timestamp: Option<String>,
}

/// An attempt to send a delivery, and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct DeliveryAttempt {
    /// When the attempt began.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:02:31.250Z")]
    pub at: Milliseconds,
    /// Duration in milliseconds.
    #[schema(minimum = 0, example = 42)]
    pub duration_ms: i64,
    /// Status code of the answer; `null` if there was none.
    #[schema(required, minimum = 100, maximum = 999, example = 503)]
    pub status_code: Option<i32>,
    /// Why the attempt failed; `null` if it succeeded.
    #[schema(required, example = "the receiver answered 503")]
    pub error: Option<String>,
    /// The start of the answer's body, at most 1 KiB by default, of the last attempt; `null` for the others, or if there was none.
    #[schema(required, example = "try later")]
    pub response: Option<String>,
}

/// The result of sending all pending deliveries.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct Retry {
    /// Number of deliveries to send; `message` says when.
    #[schema(minimum = 0, example = 3)]
    pub retried: usize,
}

/// The status of a delivery.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, ToSchema, strum::AsRefStr, strum::Display,
)]
#[schema(description = "Status of a delivery.")]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum DeliveryStatus {
    /// It waits for its next attempt.
    Pending,
    /// It waits until the webhook works again and there is room.
    Held,
    /// It was answered with 2xx.
    Delivered,
    /// All retries failed, the receiver answered 410, or it is a test event that failed.
    Exhausted,
}

impl From<DeliveryPhase> for DeliveryStatus {
    fn from(phase: DeliveryPhase) -> Self {
        match phase {
            DeliveryPhase::Pending => Self::Pending,
            DeliveryPhase::Held => Self::Held,
            DeliveryPhase::Delivered => Self::Delivered,
            DeliveryPhase::Exhausted => Self::Exhausted,
        }
    }
}
