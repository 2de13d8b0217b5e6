//! How a delivery is shown, and what sends it again.

use api::WebhookHealth;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{nonce::nonce, webhook::health};
use resources::{
    Delivery, DeliveryPhase, PageIndex, Webhook,
    delivery::{ATTEMPT_REQUESTED_AT_ANNOTATION, FINISHED_LABEL},
    event_log::LOGGED_IN_ANNOTATION,
    ids,
};

/// When a requested delivery will be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// Now.
    Now,
    /// Now, but only once, because the webhook is disabled.
    NowOnce,
    /// As soon as the webhook is active.
    OnceActive,
    /// As soon as the webhook is enabled.
    OnceEnabled,
    /// As soon as the webhook is no longer blocked.
    OnceUnblocked,
    /// Not again: it was delivered during the request.
    Delivered,
}

impl When {
    /// When a requested delivery to this webhook will be sent.
    pub fn of(webhook: &Webhook) -> Self {
        if !webhook.spec.active {
            return Self::OnceActive;
        }
        match health(webhook).0 {
            WebhookHealth::Disabled => Self::NowOnce,
            WebhookHealth::Blocked => Self::OnceUnblocked,
            WebhookHealth::Healthy | WebhookHealth::Failing => Self::Now,
        }
    }

    /// A description, which follows "delivery dlv_…" in messages.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Now => "is being sent now",
            Self::NowOnce => "is being sent now, but only once, because its webhook is disabled",
            Self::OnceActive => "will be sent as soon as its webhook is active",
            Self::OnceEnabled => "will be sent as soon as its webhook is enabled",
            Self::OnceUnblocked => "will be sent as soon as its webhook is no longer blocked",
            Self::Delivered => "has just been delivered",
        }
    }

    /// Like [`describe`](Self::describe), after "20 deliveries".
    pub const fn describe_many(self) -> &'static str {
        match self {
            Self::Now => "are being sent now",
            Self::NowOnce => "are being sent now, but only once, because their webhook is disabled",
            Self::OnceActive => "will be sent as soon as their webhook is active",
            Self::OnceEnabled => "will be sent as soon as their webhook is enabled",
            Self::OnceUnblocked => "will be sent as soon as their webhook is no longer blocked",
            Self::Delivered => "have just been delivered",
        }
    }

    /// Whether it does not have to wait for a change of the webhook.
    pub const fn is_now(self) -> bool {
        !matches!(self, Self::OnceActive | Self::OnceEnabled | Self::OnceUnblocked)
    }
}

/// The phase shown in answers: a delivery that was requested again is pending at once.
pub fn shown_phase(delivery: &Delivery) -> DeliveryPhase {
    match &delivery.status {
        Some(status) if !status.phase.is_finished() || delivery.is_finished() => status.phase,
        _ => DeliveryPhase::Pending,
    }
}

/// When the next attempt is due, if the delivery is pending and no attempt was requested.
pub fn next_attempt(delivery: &Delivery) -> Option<Timestamp> {
    let is_due_later = shown_phase(delivery) == DeliveryPhase::Pending && !delivery.is_attempt_requested();
    let status = delivery.status.as_ref().filter(|_| is_due_later)?;
    status.next_attempt_at
}

/// The value of the annotation that requests an attempt now.
fn attempt_nonce(delivery: &Delivery, now: Timestamp) -> String {
    let status = delivery.status.as_ref();
    let taken_up = status.and_then(|status| status.attempt_requested_at.as_deref());
    nonce(now, &[delivery.requested_attempt(), taken_up])
}

/// The merge patch that requests an attempt now, whatever the delivery's phase. An unfinished delivery that is finished by the
/// time the patch is applied stays as it is.
pub fn send_now(delivery: &Delivery, now: Timestamp) -> Value {
    let nonce = attempt_nonce(delivery, now);
    let mut metadata = json!({ "annotations": { ATTEMPT_REQUESTED_AT_ANNOTATION: nonce } });
    if delivery.is_finished() {
        metadata["labels"] = json!({ FINISHED_LABEL: null });
    }
    json!({ "metadata": metadata })
}

/// The event on a page that belongs to this delivery to the Webhook with this UID, if the page may have the delivery.
pub fn logged_event(index: &PageIndex, webhook_uid: &str, delivery: &str) -> Option<String> {
    if index.delivered_to(webhook_uid, None) == 0 {
        return None;
    }
    index
        .event_ids()
        .find(|event| ids::delivery_name(webhook_uid, event) == delivery)
}

/// The Delivery to create so that the controller sends a delivery in the event log again: see [`Delivery::is_request`].
pub fn logged_again(logged: Delivery, webhook: &Webhook) -> Delivery {
    let mut request = logged.requested_again(webhook, String::new());
    request.spec.body.clear();
    request.status = None;
    let annotations = request.metadata.annotations.get_or_insert_default();
    annotations.retain(|key, _| key == LOGGED_IN_ANNOTATION);
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nonce_of_a_request_differs_from_the_last_one_and_from_the_echo() {
        let now: Timestamp = "2026-11-22T10:00:00Z".parse().unwrap();
        let mut delivery: Delivery = serde_json::from_value(json!({
            "metadata": {
                "annotations": { ATTEMPT_REQUESTED_AT_ANNOTATION: "2026-11-22T10:00:00.000000Z" },
                "labels": { FINISHED_LABEL: "true" },
            },
            "spec": {
                "webhook": "orders", "eventId": "evt_1", "eventType": "instance.created",
                "eventCreatedAt": "2026-11-21T09:59:59Z", "body": "{}",
            },
            "status": { "phase": "Pending", "attemptRequestedAt": "2026-11-22T10:00:00.000001Z" },
        }))
        .unwrap();
        let annotations = json!({ ATTEMPT_REQUESTED_AT_ANNOTATION: "2026-11-22T10:00:00.000002Z" });
        let expected = json!({ "metadata": { "annotations": annotations } });
        assert_eq!(send_now(&delivery, now), expected);
        if let Some(status) = &mut delivery.status {
            status.phase = DeliveryPhase::Exhausted;
        }
        let label = json!({ FINISHED_LABEL: null });
        let expected = json!({ "metadata": { "annotations": annotations, "labels": label } });
        assert_eq!(send_now(&delivery, now), expected);
    }

    #[test]
    fn a_delivery_waits_for_a_webhook_that_is_inactive_or_blocked_but_not_for_a_disabled_one() {
        let when = |active: bool, disabled: bool, ready: Option<(&str, &str)>| {
            let mut webhook = json!({
                "metadata": { "generation": 1 },
                "spec": {
                    "url": "https://example.com", "events": ["instance.created"], "secretRef": { "name": "s" },
                    "active": active,
                },
                "status": {},
            });
            if disabled {
                webhook["status"]["disabled"] = json!({
                    "at": "2026-11-22T10:00:00Z", "reason": "Gone", "message": "", "delivery": "dlv-1", "eventId": "evt_1",
                    "eventType": "instance.created", "attempts": 1, "error": "", "generation": 1,
                });
            }
            if let Some((status, reason)) = ready {
                webhook["status"]["conditions"] = json!([{
                    "type": "Ready", "status": status, "reason": reason, "message": "", "observedGeneration": 1,
                    "lastTransitionTime": "2026-11-22T10:00:00Z",
                }]);
            }
            When::of(&serde_json::from_value(webhook).unwrap())
        };
        assert_eq!(when(true, false, None), When::Now);
        assert_eq!(when(true, false, Some(("True", "Active"))), When::Now);
        assert_eq!(when(true, false, Some(("False", "Disabled"))), When::Now);
        assert_eq!(
            when(true, false, Some(("False", "SecretMissing"))),
            When::OnceUnblocked
        );
        assert_eq!(when(true, true, Some(("False", "SecretMissing"))), When::NowOnce);
        assert_eq!(when(false, true, Some(("True", "Inactive"))), When::OnceActive);
    }
}
