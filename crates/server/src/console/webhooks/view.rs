//! Webhooks and deliveries as pages show them.

use serde_json::Value;

use crate::console::page::Shown;
use api::{DeliveryAttempt, DeliveryStatus, EventType, Seconds};

pub type Webhook = Shown<api::Webhook>;

impl Webhook {
    /// Whether the account holder has switched it off.
    pub fn is_off(&self) -> bool {
        !self.active && self.disabled.is_none()
    }

    /// Whether it subscribes to events of this type.
    pub fn wants(&self, event_type: EventType) -> bool {
        self.events.contains(&event_type)
    }

    /// Whether attempts are made.
    pub fn is_sent_to(&self) -> bool {
        matches!(self.state(), "healthy" | "failing")
    }

    /// Its state in a word.
    pub fn state(&self) -> &str {
        if self.is_off() {
            "off"
        } else {
            self.health.as_ref()
        }
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

/// The delivery of an event to a webhook.
pub type Delivery = Shown<api::Delivery>;

impl Delivery {
    /// The headers of its request, without the signatures.
    pub fn headers(&self) -> Vec<(String, String)> {
        let headers = self
            .request
            .as_ref()
            .map(|request| serde_json::to_value(&request.headers));
        let Some(Ok(Value::Object(headers))) = headers else {
            return Vec::new();
        };
        let known = headers.into_iter();
        known
            .filter_map(|(name, value)| Some((name, value.as_str()?.to_owned())))
            .collect()
    }

    /// The colour of its status.
    pub fn tone(&self) -> &'static str {
        match self.status {
            DeliveryStatus::Delivered => "good",
            DeliveryStatus::Exhausted => "bad",
            DeliveryStatus::Held => "quiet",
            DeliveryStatus::Pending => "busy",
        }
    }

    /// Whether an attempt is being made, or is about to be.
    pub fn is_under_way(&self, now: jiff::Timestamp) -> bool {
        // A delivery that is long overdue waits for something else, such as its webhook's secret.
        let soon = |at: Seconds| (-60..10).contains(&at.0.duration_since(now).as_secs());
        self.status == DeliveryStatus::Pending && self.next_attempt_at.is_none_or(soon)
    }

    /// Whether it is a test event.
    pub fn is_test(&self) -> bool {
        self.event_id.starts_with("evt_test_")
    }

    /// The outcome of the last attempt.
    pub fn outcome(&self) -> String {
        match self.attempts.last() {
            Some(DeliveryAttempt {
                error: Some(error), ..
            }) => error.clone(),
            Some(DeliveryAttempt {
                status_code: Some(status),
                duration_ms,
                ..
            }) => format!("{status} in {duration_ms} ms"),
            _ => "–".to_owned(),
        }
    }
}
