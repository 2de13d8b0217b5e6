//! Webhooks as responses show them (specification, section 2.4; decisions, section 6).

use jiff::Timestamp;

use crate::{
    facade::response::snake_case,
    service::webhooks::{IndexedWebhook, health},
};
use api::{DisableReason, Seconds, Webhook, WebhookDisabled, WebhookWithSecret};
use resources::{Disabled, ids, webhook::has_outer_white_space};

/// A webhook as lists and its detail show it.
pub fn webhook(item: &IndexedWebhook) -> Webhook {
    let webhook = &*item.webhook;
    let status = webhook.status.as_ref();
    let (health, complaint) = health(webhook);
    Webhook {
        id: item.id.to_string(),
        url: webhook.spec.url.clone(),
        events: webhook.spec.events.clone(),
        description: webhook.spec.description.clone(),
        active: webhook.is_active(),
        health,
        health_reason: complaint.map(|complaint| snake_case(complaint.reason_for_api())),
        health_message: complaint.map(|complaint| complaint.for_api().into_owned()),
        last_success_at: status.and_then(|status| status.last_success_at).map(Seconds),
        last_failure_at: status.and_then(|status| status.last_failure_at).map(Seconds),
        pending: status.map_or(0, |status| status.pending),
        held: status.map_or(0, |status| status.held),
        dropped: status.map_or(0, |status| status.dropped),
        created_at: Seconds(webhook.created_at()),
        disabled: webhook.disabled().map(disabled),
        previous_secret_expires_at: status
            .and_then(|status| status.previous_secret_expires_at)
            .map(Seconds),
    }
}

fn disabled(disabled: &Disabled) -> WebhookDisabled {
    WebhookDisabled {
        at: Seconds(disabled.at),
        reason: match disabled.reason {
            resources::DisableReason::RetriesExhausted => DisableReason::RetriesExhausted,
            resources::DisableReason::Gone => DisableReason::Gone,
        },
        message: disabled.message.clone(),
        delivery_id: ids::delivery_id(&disabled.delivery),
        event_id: disabled.event_id.clone(),
    }
}

/// Says that the white space around a secret is part of it.
pub fn remark_on_secret(secret: Option<&str>) -> Option<String> {
    secret.filter(|secret| has_outer_white_space(secret)).map(|_| {
        "The secret begins or ends in white space, which is part of it: a receiver that trims its copy computes other signatures."
            .to_owned()
    })
}

/// The `message` of an answer: these sentences.
pub fn message(sentences: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    let sentences: Vec<_> = sentences.into_iter().flatten().collect();
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

/// A webhook as the answers to a create and a rotation show it.
pub fn with_secret(
    item: &IndexedWebhook,
    secret: Option<String>,
    previous_until: Option<Timestamp>,
) -> WebhookWithSecret {
    let webhook = &*item.webhook;
    WebhookWithSecret {
        id: item.id.to_string(),
        url: webhook.spec.url.clone(),
        events: webhook.spec.events.clone(),
        description: webhook.spec.description.clone(),
        secret,
        active: webhook.is_active(),
        created_at: Seconds(webhook.created_at()),
        previous_secret_expires_at: previous_until.map(Seconds),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_secret_is_shown_only_in_the_answer_to_a_create() {
        let object = json!({
            "metadata": { "name": "wh-abcdefgh01234567", "generation": 2, "creationTimestamp": "2026-11-21T10:00:00Z" },
            "spec": { "url": "https://example.com", "events": ["instance.created"], "secretRef": { "name": "s" } },
            "status": { "disabled": {
                "at": "2026-11-21T11:00:00Z", "reason": "RetriesExhausted", "message": "m",
                "delivery": "dlv-abcdefgh01234567", "eventId": "evt_1", "eventType": "instance.created",
                "attempts": 6, "error": "no", "generation": 2,
            } },
        });
        let item =
            crate::service::index::Indexed::of(std::sync::Arc::new(serde_json::from_value(object).unwrap()));
        let plain = serde_json::to_value(webhook(&item)).unwrap();
        assert_eq!(
            plain,
            json!({
                "id": "wh_abcdefgh01234567", "url": "https://example.com", "events": ["instance.created"], "description": null, "active": false,
                "health": "disabled", "health_reason": "retries_exhausted", "health_message": "m", "last_success_at": null, "last_failure_at": null,
                "pending": 0, "held": 0, "dropped": 0, "created_at": "2026-11-21T10:00:00Z",
                "disabled": {
                    "at": "2026-11-21T11:00:00Z", "reason": "retries_exhausted", "message": "m",
                    "delivery_id": "dlv_abcdefgh01234567", "event_id": "evt_1",
                },
            })
        );
        let created = serde_json::to_value(with_secret(&item, Some("s3cret".to_owned()), None)).unwrap();
        let fields: Vec<_> = created.as_object().unwrap().keys().cloned().collect();
        assert_eq!(
            fields,
            [
                "active",
                "created_at",
                "description",
                "events",
                "id",
                "secret",
                "url"
            ]
        );
    }
}
