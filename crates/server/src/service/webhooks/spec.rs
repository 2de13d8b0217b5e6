//! Builds and changes Webhook objects. No I/O.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::service::{idempotency::REQUEST_HASH_ANNOTATION, nonce::nonce};
use api::{ChangeWebhook, CreateWebhook};
use resources::{
    SecretReference, Webhook, WebhookSpec,
    origin::{self, ORIGIN_ANNOTATION},
    webhook::{SECRET_CHANGED_ANNOTATION, SECRET_KEY, SECRET_PENDING},
};

/// The object with this name. Its Secret gets the same name.
pub(super) fn object(
    new: &CreateWebhook,
    name: &str,
    request_hash: Option<String>,
    now: Timestamp,
) -> Webhook {
    let mut webhook = Webhook::new(
        name,
        WebhookSpec {
            url: new.url.clone(),
            events: new.events.clone(),
            secret_ref: SecretReference {
                name: name.to_owned(),
                key: SECRET_KEY.to_owned(),
            },
            active: new.active,
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

/// The spec with a change applied.
pub fn changed_spec(change: &ChangeWebhook, webhook: &Webhook, now: Timestamp) -> WebhookSpec {
    let mut spec = webhook.spec.clone();
    if let Some(url) = &change.url {
        spec.url.clone_from(url);
    }
    if let Some(events) = &change.events {
        spec.events.clone_from(events);
    }
    spec.active = change.active.unwrap_or(spec.active);
    if change.active == Some(true) && webhook.disabled().is_some() {
        spec.enable_requested_at = Some(nonce(now, &[spec.enable_requested_at.as_deref()]));
    }
    spec
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use resources::{EventType, testing};

    #[test]
    fn the_object_refers_to_a_secret_of_its_own_name() {
        let new = CreateWebhook {
            url: "https://hooks.example.com/in".to_owned(),
            events: vec![EventType::InstanceCreated],
            secret: None,
            active: true,
        };
        let webhook = object(&new, "wh-abcdefgh01234567", Some("hash".into()), Timestamp::now());
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
        let active = |active| ChangeWebhook {
            active: Some(active),
            ..ChangeWebhook::default()
        };
        let enabled = changed_spec(&active(true), &webhook(true), now);
        assert_eq!(
            enabled.enable_requested_at.as_deref(),
            Some("2026-11-21T10:00:00.000001Z"),
            "must differ from the previous nonce"
        );
        let healthy = webhook(false);
        assert_eq!(changed_spec(&active(true), &healthy, now), healthy.spec);
        let off = changed_spec(&active(false), &webhook(true), now);
        assert!(!off.active && off.enable_requested_at == healthy.spec.enable_requested_at);
    }
}
