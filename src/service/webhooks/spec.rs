//! The objects that requests about webhooks make and change, decided. No I/O.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::{
    events::EventType,
    resources::{SecretReference, Webhook, WebhookSpec, webhook::SECRET_KEY},
    service::{idempotency::REQUEST_HASH_ANNOTATION, nonce::nonce},
};

/// A webhook to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewWebhook {
    /// HTTPS URL that events are POSTed to.
    pub url: String,
    /// Types of events to send.
    pub events: Vec<EventType>,
    /// Signing secret; without one a random one is made.
    pub secret: Option<String>,
    /// Whether events are recorded and sent.
    pub active: bool,
}

impl NewWebhook {
    /// The object under this name. Its Secret will have the same.
    pub(super) fn object(&self, name: &str, request_hash: Option<String>) -> Webhook {
        let mut webhook = Webhook::new(
            name,
            WebhookSpec {
                url: self.url.clone(),
                events: self.events.clone(),
                secret_ref: SecretReference {
                    name: name.to_owned(),
                    key: SECRET_KEY.to_owned(),
                },
                active: self.active,
                enable_requested_at: None,
            },
        );
        webhook.metadata.annotations =
            request_hash.map(|hash| BTreeMap::from([(REQUEST_HASH_ANNOTATION.to_owned(), hash)]));
        webhook
    }
}

/// What to change; what is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookChange {
    /// Another URL.
    pub url: Option<String>,
    /// The types of events, all of them.
    pub events: Option<Vec<EventType>>,
    /// Whether events are recorded and sent; `true` also enables a webhook that was disabled.
    pub active: Option<bool>,
    /// Another signing secret, from now on the only one.
    pub secret: Option<String>,
}

impl WebhookChange {
    /// The spec as it will be.
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
            spec.enable_requested_at = Some(nonce(now, &[&spec.enable_requested_at]));
        }
        spec
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_object_names_the_secret_that_will_have_its_name() {
        let new = NewWebhook {
            url: "https://hooks.example.com/in".to_owned(),
            events: vec![EventType::InstanceCreated],
            secret: None,
            active: true,
        };
        let webhook = new.object("wh-abcdefgh01234567", Some("hash".into()));
        assert_eq!(webhook.spec.secret_ref.name, "wh-abcdefgh01234567");
        assert_eq!(webhook.spec.secret_ref.key, "secret");
        assert_eq!(webhook.id(), "wh_abcdefgh01234567");
    }

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
    fn active_enables_what_was_disabled_and_changes_nothing_otherwise() {
        let now: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        let active = |active| WebhookChange {
            active: Some(active),
            ..WebhookChange::default()
        };
        let enabled = active(true).apply(&webhook(true), now);
        assert_eq!(
            enabled.enable_requested_at.as_deref(),
            Some("2026-11-21T10:00:00.000001Z"),
            "another nonce than the one before"
        );
        let healthy = webhook(false);
        assert_eq!(active(true).apply(&healthy, now), healthy.spec);
        let off = active(false).apply(&webhook(true), now);
        assert!(!off.active && off.enable_requested_at == healthy.spec.enable_requested_at);
    }
}
