//! Builds and changes Webhook objects. No I/O.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::service::{idempotency::REQUEST_HASH_ANNOTATION, nonce::nonce};
use domain::event::EventType;
use resources::{
    SecretReference, Webhook, WebhookSpec,
    origin::{self, ORIGIN_ANNOTATION},
    webhook::{SECRET_CHANGED_ANNOTATION, SECRET_KEY, SECRET_PENDING},
};

/// A webhook to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewWebhook {
    /// HTTPS URL that events are POSTed to.
    pub url: String,
    /// Event types to send.
    pub events: Vec<EventType>,
    /// Signing secret; by default a random one.
    pub secret: Option<String>,
    /// Whether events are recorded and sent.
    pub active: bool,
}

impl NewWebhook {
    /// The object with this name. Its Secret gets the same name.
    pub(super) fn object(&self, name: &str, request_hash: Option<String>, now: Timestamp) -> Webhook {
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
        let origin = origin::of_new(now);
        let mut annotations = BTreeMap::from([
            (ORIGIN_ANNOTATION.to_owned(), origin),
            (SECRET_CHANGED_ANNOTATION.to_owned(), SECRET_PENDING.to_owned()),
        ]);
        annotations.extend(request_hash.map(|hash| (REQUEST_HASH_ANNOTATION.to_owned(), hash)));
        webhook.metadata.annotations = Some(annotations);
        webhook
    }
}

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
    use resources::testing;

    #[test]
    fn the_object_refers_to_a_secret_of_its_own_name() {
        let new = NewWebhook {
            url: "https://hooks.example.com/in".to_owned(),
            events: vec![EventType::InstanceCreated],
            secret: None,
            active: true,
        };
        let webhook = new.object("wh-abcdefgh01234567", Some("hash".into()), Timestamp::now());
        assert_eq!(webhook.spec.secret_ref.name, "wh-abcdefgh01234567");
        assert_eq!(webhook.spec.secret_ref.key, "secret");
        assert_eq!(webhook.id(), "wh_abcdefgh01234567");
    }

    fn webhook(disabled: bool) -> Webhook {
        let status = disabled.then(|| {
            json!({ "disabled": {
                "at": "2026-11-21T09:00:00Z", "reason": "Gone", "message": "m", "delivery": "d", "eventId": "e",
                "eventType": "instance.created", "attempts": 1, "error": "no", "generation": 3,
            }})
        });
        testing::webhook(json!({
            "metadata": { "generation": 3 },
            "spec": { "events": ["instance.stopped"], "enableRequestedAt": "2026-11-21T10:00:00.000000Z" },
            "status": status,
        }))
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
