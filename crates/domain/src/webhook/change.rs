//! Applies a change to a webhook's spec.

use jiff::Timestamp;

use crate::{event::EventType, nonce::nonce};
use resources::{Webhook, WebhookSpec};

/// The fields to change; those that are `None` stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookChange {
    /// The new URL.
    pub url: Option<String>,
    /// The new event types; they replace all current ones.
    pub events: Option<Vec<EventType>>,
    /// Whether events are recorded and sent; `true` also enables a webhook that was disabled.
    pub active: Option<bool>,
    /// The new signing secret, which replaces the old one at once.
    pub secret: Option<String>,
}

impl WebhookChange {
    /// The changed spec.
    pub fn apply(&self, webhook: &Webhook, now: Timestamp) -> WebhookSpec {
        let mut spec = webhook.spec.clone();
        if let Some(url) = &self.url {
            spec.url.clone_from(url);
        }
        if let Some(events) = &self.events {
            spec.events.clone_from(events);
        }
        spec.active = self.active.unwrap_or(spec.active);
        if self.active == Some(true) && webhook.disabled().is_some() {
            spec.enable_requested_at = Some(nonce(now, &[spec.enable_requested_at.as_deref()]));
        }
        spec
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn webhook(disabled: bool) -> Webhook {
        let mut object = json!({
            "metadata": { "name": "orders", "namespace": "demo", "uid": "u", "generation": 3 },
            "spec": {
                "url": "https://example.com", "events": ["instance.stopped"], "secretRef": { "name": "s" },
                "enableRequestedAt": "2026-11-21T10:00:00.000000Z",
            },
        });
        if disabled {
            object["status"] = json!({ "disabled": {
                "at": "2026-11-21T09:00:00Z", "reason": "Gone", "message": "m", "delivery": "d", "eventId": "e",
                "eventType": "instance.created", "attempts": 1, "error": "no", "generation": 3,
            }});
        }
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn active_true_enables_a_disabled_webhook_and_changes_nothing_else() {
        let now: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        let active = |active| WebhookChange {
            active: Some(active),
            ..WebhookChange::default()
        };
        let enabled = active(true).apply(&webhook(true), now);
        assert_eq!(
            enabled.enable_requested_at.as_deref(),
            Some("2026-11-21T10:00:00.000001Z"),
            "must differ from the previous nonce"
        );
        let healthy = webhook(false);
        assert_eq!(active(true).apply(&healthy, now), healthy.spec);
        let off = active(false).apply(&webhook(true), now);
        assert!(!off.active && off.enable_requested_at == healthy.spec.enable_requested_at);
    }
}
