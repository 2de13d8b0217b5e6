//! Applies a change to a webhook's spec.

use api::ChangeWebhook;
use jiff::Timestamp;

use crate::nonce::nonce;
use resources::{Webhook, WebhookSpec};

/// The spec with a change applied.
pub fn changed_spec(change: &ChangeWebhook, webhook: &Webhook, now: Timestamp) -> WebhookSpec {
    let mut spec = webhook.spec.clone();
    if let Some(url) = &change.url {
        spec.url.clone_from(url);
    }
    if let Some(events) = &change.events {
        spec.events.clone_from(events);
    }
    if let Some(description) = &change.description {
        spec.description = Some(description.clone()).filter(|text| !text.is_empty());
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
    use resources::testing;

    fn webhook(disabled: bool) -> Webhook {
        let status = disabled.then(testing::disabled);
        testing::webhook(json!({
            "metadata": { "generation": 3 },
            "spec": { "events": ["instance.stopped"], "enableRequestedAt": "2026-11-21T10:00:00.000000Z" },
            "status": status,
        }))
    }

    #[test]
    fn an_empty_description_removes_it() {
        let described = |text: &str, webhook: &Webhook| {
            let change = ChangeWebhook {
                description: Some(text.to_owned()),
                ..ChangeWebhook::default()
            };
            changed_spec(&change, webhook, Timestamp::UNIX_EPOCH)
        };
        let mut webhook = webhook(false);
        webhook.spec = described("orders", &webhook);
        assert_eq!(webhook.spec.description.as_deref(), Some("orders"));
        assert_eq!(described("", &webhook).description, None);
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
