//! Webhooks: `/v1/webhooks` (specification, section 2.4; decisions, section 6).

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{PartialSchema as _, ToSchema};

use crate::{schema, time::Seconds};
use resources::EventType;

/// How long deliveries are also signed with the previous secret by default: 24 h (decisions, section 5).
pub const DEFAULT_OVERLAP_SECONDS: u64 = 86_400;

/// A webhook, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct Webhook {
    /// Identifier.
    #[schema(schema_with = schema::webhook_id)]
    pub id: String,
    /// URL that events are POSTed to.
    #[schema(example = "https://hooks.example.com/stellage")]
    pub url: String,
    /// Event types that are sent.
    #[schema(example = json!(["instance.created"]))]
    pub events: Vec<EventType>,
    /// What the webhook is for; `null` if that was not said.
    #[schema(required, max_length = 255, example = "orders")]
    pub description: Option<String>,
    /// Whether events are sent. `false` if the webhook is switched off or disabled.
    #[schema(example = true)]
    pub active: bool,
    /// Health of the deliveries.
    #[schema(schema_with = WebhookHealth::schema)]
    pub health: WebhookHealth,
    /// Why the webhook is not healthy, for programs: `attempt_failed`, `retries_exhausted`, `gone`, `secret_missing`,
    /// `secret_unusable`, `invalid_url` and others; more may be added. Present only while it is not healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, pattern = "^[a-z_]+$", example = "attempt_failed")]
    pub health_reason: Option<String>,
    /// The reason for people. Present only together with `health_reason`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(
        nullable = false,
        example = "the last attempt failed: the receiver answered 503"
    )]
    pub health_message: Option<String>,
    /// When a delivery last succeeded; `null` if none has.
    #[schema(required, value_type = Option<String>, format = DateTime, example = "2026-11-21T10:02:31Z")]
    pub last_success_at: Option<Seconds>,
    /// When an attempt last failed; `null` if none has.
    #[schema(required, value_type = Option<String>, format = DateTime, example = "2026-11-21T10:01:31Z")]
    pub last_failure_at: Option<Seconds>,
    /// Number of deliveries waiting for an attempt. This and the other counters and times are some ten seconds old, or minutes if
    /// hundreds of webhooks are busy.
    #[schema(minimum = 0, example = 2)]
    pub pending: i64,
    /// Number of deliveries held until the webhook works again and there is room for them.
    #[schema(minimum = 0, example = 0)]
    pub held: i64,
    /// Number of deliveries dropped since the webhook was created, because too many were held or a quota allowed no more.
    #[schema(minimum = 0, example = 0)]
    pub dropped: i64,
    /// When it was created.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:00:00Z")]
    pub created_at: Seconds,
    /// Since when and why the webhook is disabled. Present only while it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub disabled: Option<WebhookDisabled>,
    /// Until when deliveries are also signed with the previous secret. Present only after a rotation with an overlap; in lists, some
    /// seconds later.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, format = DateTime, example = "2026-11-22T10:00:00Z")]
    pub previous_secret_expires_at: Option<Seconds>,
}

/// Since when and why a webhook is disabled.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct WebhookDisabled {
    /// When the webhook was disabled.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T18:36:00Z")]
    pub at: Seconds,
    /// The reason, for programs.
    #[schema(schema_with = DisableReason::schema)]
    pub reason: DisableReason,
    /// The reason, for people.
    #[schema(value_type = String)]
    pub message: String,
    /// The delivery that could not be delivered.
    #[schema(schema_with = schema::delivery_id)]
    pub delivery_id: String,
    /// Identifier of its event.
    #[schema(value_type = String, example = "evt_5m2k8x1ta4q7hz0c")]
    pub event_id: String,
}

/// A webhook with its secret, which is shown only here.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct WebhookWithSecret {
    /// Identifier.
    #[schema(schema_with = schema::webhook_id)]
    pub id: String,
    /// URL that events are POSTed to.
    #[schema(example = "https://hooks.example.com/stellage")]
    pub url: String,
    /// Event types that are sent.
    #[schema(example = json!(["instance.created"]))]
    pub events: Vec<EventType>,
    /// What the webhook is for; `null` if that was not said.
    #[schema(required, max_length = 255, example = "orders")]
    pub description: Option<String>,
    /// The signing secret; `null` in the answer to a create that is repeated more than a day later.
    #[schema(required, example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=")]
    pub secret: Option<String>,
    /// Whether events are sent.
    #[schema(example = true)]
    pub active: bool,
    /// When it was created.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:00:00Z")]
    pub created_at: Seconds,
    /// Until when deliveries are also signed with the previous secret. Present only after a rotation with an overlap.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, format = DateTime, example = "2026-11-22T10:00:00Z")]
    pub previous_secret_expires_at: Option<Seconds>,
}

/// The result of a recovery.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct Recovery {
    /// Number of deliveries to send again; `message` says when.
    #[schema(minimum = 0, example = 3)]
    pub recovered: usize,
}

/// A webhook to create.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateWebhook {
    /// HTTPS URL that events are POSTed to. Its host must have a public address; user name, password and fragment are not
    /// allowed.
    #[schema(max_length = 2048, pattern = "^https://[^/?#@\\s]+")]
    pub url: String,
    /// Event types to send; duplicates are ignored.
    #[schema(min_items = 1, max_items = 8)]
    pub events: Vec<EventType>,
    /// Signing secret. The default is `whsec_` and the base64 of 32 random bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, min_length = 1, max_length = 255)]
    pub secret: Option<String>,
    /// What the webhook is for, in your words.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(
        nullable = false,
        max_length = 255,
        pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]*$",
        example = "orders"
    )]
    pub description: Option<String>,
    /// Whether events are recorded and sent.
    #[serde(default = "active_by_default")]
    #[schema(required = false, default = true)]
    pub active: bool,
}

/// Fields to change; those left out stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(min_properties = 1)]
pub struct ChangeWebhook {
    /// The new URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 2048, pattern = "^https://[^/?#@\\s]+")]
    pub url: Option<String>,
    /// The new event types; they replace all present ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, min_items = 1, max_items = 8)]
    pub events: Option<Vec<EventType>>,
    /// What the webhook is for, in your words; an empty text removes what was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(
        nullable = false,
        max_length = 255,
        pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]*$"
    )]
    pub description: Option<String>,
    /// Whether events are recorded and sent; `true` also enables a webhook that was disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub active: Option<bool>,
    /// The new signing secret. It replaces the old one at once; a rotation lets both sign for a while.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, min_length = 1, max_length = 255)]
    pub secret: Option<String>,
}

/// The type of the test event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TestWebhook {
    /// One of the webhook's event types; by default its first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub r#type: Option<EventType>,
}

/// A rotation of the signing secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateSecret {
    /// The new secret. The default is `whsec_` and the base64 of 32 random bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, min_length = 1, max_length = 255)]
    pub secret: Option<String>,
    /// Seconds during which `webhook-signature` also lists the previous secret's signature; 0 for no overlap.
    #[serde(default = "overlap_by_default")]
    #[schema(required = false, minimum = 0, maximum = 604_800, default = 86_400)]
    pub overlap_seconds: u64,
}

/// The deliveries to send again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecoverWebhook {
    /// Only deliveries whose last attempt failed at this RFC 3339 time or later; by default all that are still stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>, format = DateTime)]
    pub since: Option<Timestamp>,
}

const fn active_by_default() -> bool {
    true
}

const fn overlap_by_default() -> u64 {
    DEFAULT_OVERLAP_SECONDS
}

/// The health of a webhook's deliveries.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, ToSchema, strum::AsRefStr, strum::Display,
)]
#[schema(
    description = "`healthy`: the last attempt succeeded, or nothing was sent yet. `failing`: the last attempt failed. `blocked`: nothing can be sent because of a problem with the URL or the Secret. `disabled`: all retries failed, or the receiver answered 410."
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum WebhookHealth {
    /// The last attempt succeeded, or nothing was sent yet.
    Healthy,
    /// The last attempt failed.
    Failing,
    /// Nothing can be sent because of a problem with the URL or the Secret.
    Blocked,
    /// All retries failed, or the receiver answered 410.
    Disabled,
}

/// Why a webhook is disabled.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, ToSchema, strum::AsRefStr, strum::Display,
)]
#[schema(
    description = "`retries_exhausted`: all retries of a delivery failed. `gone`: the receiver answered 410."
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum DisableReason {
    /// All retries of a delivery failed.
    RetriesExhausted,
    /// The receiver answered 410.
    Gone,
}
