//! Webhooks and deliveries as `/v1` shows them.

use serde::Deserialize;
use serde_json::Value;

use crate::console::text::Moment;

/// A webhook.
#[derive(Debug, Deserialize)]
pub struct Webhook {
    /// Identifier.
    pub id: String,
    /// URL of the receiver.
    pub url: String,
    /// Event types that are sent.
    pub events: Vec<String>,
    /// Whether events are sent.
    pub active: bool,
    /// `healthy`, `failing`, `blocked` or `disabled`.
    pub health: String,
    /// Why it is not healthy.
    pub health_message: Option<String>,
    /// When a delivery last succeeded.
    pub last_success_at: Option<Moment>,
    /// When an attempt last failed.
    pub last_failure_at: Option<Moment>,
    /// Deliveries that wait for an attempt.
    pub pending: i64,
    /// Deliveries that are held.
    pub held: i64,
    /// Deliveries that were dropped.
    pub dropped: i64,
    /// When it was created.
    pub created_at: Moment,
    /// Since when it is disabled.
    pub disabled: Option<Disabled>,
}

/// Since when a webhook is disabled.
#[derive(Debug, Deserialize)]
pub struct Disabled {
    /// When it was disabled.
    pub at: Moment,
    /// The delivery that could not be delivered.
    pub delivery_id: String,
}

impl Webhook {
    /// Whether the account holder has switched it off.
    pub fn is_off(&self) -> bool {
        !self.active && self.disabled.is_none()
    }

    /// Whether it subscribes to events of this type.
    pub fn wants(&self, event_type: &str) -> bool {
        self.events.iter().any(|wanted| wanted == event_type)
    }

    /// Whether attempts are made.
    pub fn is_sent_to(&self) -> bool {
        matches!(self.state(), "healthy" | "failing")
    }

    /// Its state in a word.
    pub fn state(&self) -> &str {
        if self.is_off() { "off" } else { &self.health }
    }

    /// The colour of its state.
    pub fn tone(&self) -> &'static str {
        match self.state() {
            "healthy" => "good",
            "off" => "quiet",
            "failing" => "busy",
            _ => "bad",
        }
    }
}

/// A webhook with its secret, which is shown only once.
#[derive(Debug, Deserialize)]
pub struct WithSecret {
    /// Identifier.
    pub id: String,
    /// URL of the receiver.
    pub url: String,
    /// The secret; `None` if it was shown before.
    pub secret: Option<String>,
    /// Whether events are sent.
    pub active: bool,
    /// Until when the previous secret also signs.
    #[serde(default)]
    pub previous_secret_expires_at: Option<Moment>,
}

/// The delivery of an event to a webhook.
#[derive(Debug, Deserialize)]
pub struct Delivery {
    /// Identifier.
    pub id: String,
    /// Identifier of the event.
    pub event_id: String,
    /// Type of the event.
    pub event_type: String,
    /// `pending`, `held`, `delivered` or `exhausted`.
    pub status: String,
    /// When the event happened.
    pub created_at: Moment,
    /// When the next attempt is due.
    pub next_attempt_at: Option<Moment>,
    /// The attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// The request; only of a single delivery.
    #[serde(default)]
    pub request: Option<Request>,
}

/// The request to the receiver.
#[derive(Debug, Deserialize)]
pub struct Request {
    /// URL of the webhook.
    pub url: String,
    /// The headers without the signatures.
    pub headers: serde_json::Map<String, Value>,
    /// The body, byte for byte.
    pub body: String,
}

impl Request {
    /// The headers as text.
    pub fn lines(&self) -> Vec<(&str, &str)> {
        let lines = self.headers.iter();
        lines
            .filter_map(|(name, value)| Some((name.as_str(), value.as_str()?)))
            .collect()
    }
}

/// An attempt to send a delivery.
#[derive(Debug, Deserialize)]
pub struct Attempt {
    /// When it began.
    pub at: Moment,
    /// Duration in milliseconds.
    pub duration_ms: i64,
    /// Status of the answer.
    pub status_code: Option<i32>,
    /// Why it failed.
    pub error: Option<String>,
    /// The start of the answer's body.
    pub response: Option<String>,
}

impl Attempt {
    /// The colour of its outcome.
    pub fn tone(&self) -> &'static str {
        if self.error.is_some() { "bad" } else { "good" }
    }
}

impl Delivery {
    /// The colour of its status.
    pub fn tone(&self) -> &'static str {
        match self.status.as_str() {
            "delivered" => "good",
            "exhausted" => "bad",
            "held" => "quiet",
            _ => "busy",
        }
    }

    /// Whether an attempt is being made, or is about to be.
    pub fn is_under_way(&self, now: jiff::Timestamp) -> bool {
        // A delivery that is long overdue waits for something else, such as its webhook's secret.
        let soon = |at: Moment| (-60..10).contains(&at.0.duration_since(now).as_secs());
        self.status == "pending" && self.next_attempt_at.is_none_or(soon)
    }

    /// Whether it is a test event.
    pub fn is_test(&self) -> bool {
        self.event_id.starts_with("evt_test_")
    }

    /// The outcome of the last attempt.
    pub fn outcome(&self) -> String {
        match self.attempts.last() {
            Some(Attempt {
                error: Some(error), ..
            }) => error.clone(),
            Some(Attempt {
                status_code: Some(status),
                duration_ms,
                ..
            }) => format!("{status} in {duration_ms} ms"),
            _ => "–".to_owned(),
        }
    }
}
