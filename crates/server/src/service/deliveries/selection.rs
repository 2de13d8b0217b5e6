//! Filters for the deliveries of a webhook, and the status of a delivery.

use std::cmp::Reverse;

use jiff::Timestamp;
use kube::{Resource as _, core::ObjectMeta};

use crate::service::{
    id::{DeliveryId, PublicId as _},
    index::Object as _,
};
use domain::delivery::shown_phase;
use domain::event::{EventType, Period};
use resources::{
    Delivery, DeliveryPhase, Webhook,
    delivery::{EVENT_TYPE_LABEL, FINISHED_LABEL, PHASE_LABEL, WEBHOOK_LABEL, event_order, is_unowned},
    ids,
};

/// The filters of a request for deliveries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Their status.
    pub status: Option<DeliveryPhase>,
    /// Their event type.
    pub event_type: Option<EventType>,
    /// When their events happened.
    pub period: Period,
}

impl Selection {
    /// The label selector for the deliveries of a webhook. A delivery that was requested again still has its old phase label, but
    /// the label `finished` was removed.
    pub(super) fn labels(self, webhook: &Webhook) -> String {
        let phase = match self.status {
            Some(phase) if phase.is_finished() => {
                format!(",{FINISHED_LABEL},{PHASE_LABEL}={}", phase.as_str())
            }
            Some(DeliveryPhase::Pending) => {
                format!(
                    ",!{FINISHED_LABEL},{PHASE_LABEL}!={}",
                    DeliveryPhase::Held.as_str()
                )
            }
            Some(held) => format!(",{PHASE_LABEL}={}", held.as_str()),
            None => String::new(),
        };
        let event_type = self.event_type.map_or_else(String::new, |event_type| {
            format!(",{EVENT_TYPE_LABEL}={event_type}")
        });
        format!("{WEBHOOK_LABEL}={}{phase}{event_type}", webhook.name())
    }

    /// Whether the selection may include deliveries in the event log, all of which were delivered.
    pub(super) fn has_logged(self) -> bool {
        self.status
            .is_none_or(|status| status == DeliveryPhase::Delivered)
    }

    /// Like [`Self::has`], but judges what the label selector has found by its metadata.
    pub(super) fn has_key(self, metadata: &ObjectMeta, webhook: &Webhook) -> bool {
        let label = |name: &str| metadata.labels.as_ref().and_then(|labels| labels.get(name));
        let is_finished = label(FINISHED_LABEL).is_some();
        // As in `shown_phase`.
        let phase = label(PHASE_LABEL)
            .and_then(|text| {
                DeliveryPhase::ALL
                    .into_iter()
                    .find(|phase| phase.as_str() == text)
            })
            .filter(|phase| !phase.is_finished() || is_finished)
            .unwrap_or(DeliveryPhase::Pending);
        metadata.deletion_timestamp.is_none()
            && self.status.is_none_or(|status| status == phase)
            && self.period.has(event_order(metadata).0)
            && is_owned(metadata, webhook)
    }

    /// Whether the selection includes this Delivery, and it belongs to this webhook.
    pub(super) fn has(self, delivery: &Delivery, webhook: &Webhook) -> bool {
        self.includes(delivery) && is_of(delivery, webhook)
    }

    /// Whether the selection includes this delivery of the webhook, stored or logged.
    pub(super) fn includes(self, delivery: &Delivery) -> bool {
        self.status.is_none_or(|status| status == shown_phase(delivery))
            && self
                .event_type
                .is_none_or(|wanted| wanted == delivery.spec.event_type)
            && self.period.has(created_at(delivery))
    }
}

/// Whether a delivery belongs to this webhook, and not to a deleted one of the same name.
pub(super) fn is_of(delivery: &Delivery, webhook: &Webhook) -> bool {
    delivery.spec.webhook == webhook.name() && is_owned(&delivery.metadata, webhook)
}

/// Whether the delivery has an id, and does not belong to a deleted webhook of the same name.
fn is_owned(metadata: &ObjectMeta, webhook: &Webhook) -> bool {
    let mut owners = metadata.owner_references.iter().flatten();
    let name = metadata.name.as_deref().unwrap_or_default();
    DeliveryId::parse(&ids::delivery_id(name)).is_some()
        && !is_unowned(metadata)
        && owners.all(|owner| owner.kind != Webhook::kind(&()) || owner.uid == webhook.uid())
}

/// When the delivery came into being: the time of the event, since the object may be written only after the first attempt.
pub fn created_at(delivery: &Delivery) -> Timestamp {
    delivery.spec.event_created_at
}

/// Sorts deliveries by the order of their events, newest first. Only their metadata is needed.
pub fn newest_first(metadata: &ObjectMeta) -> (Reverse<(Timestamp, i64)>, String) {
    let name = metadata.name.clone().unwrap_or_default();
    (Reverse(event_order(metadata)), name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use resources::{delivery::set_event_order, testing};

    #[test]
    fn a_selection_becomes_a_label_selector() {
        let pending = Some(DeliveryPhase::Pending);
        for (status, event_type, expected) in [
            (None, None, "stellage.dev/webhook=orders"),
            (
                Some(DeliveryPhase::Exhausted),
                None,
                "stellage.dev/webhook=orders,stellage.dev/finished,stellage.dev/phase=exhausted",
            ),
            (
                pending,
                Some(EventType::BackupFailed),
                "stellage.dev/webhook=orders,!stellage.dev/finished,stellage.dev/phase!=held,stellage.dev/event-type=backup.failed",
            ),
            (
                Some(DeliveryPhase::Held),
                None,
                "stellage.dev/webhook=orders,stellage.dev/phase=held",
            ),
        ] {
            let selection = Selection {
                status,
                event_type,
                ..Selection::default()
            };
            assert_eq!(selection.labels(&testing::webhook(json!({}))), expected);
        }
    }

    #[test]
    fn a_delivery_of_a_deleted_webhook_of_the_same_name_does_not_belong_to_this_one() {
        let delivery = |webhook: &str, owner: Option<&str>| -> Delivery {
            let owner = owner.map(
                |uid| json!({ "apiVersion": "stellage.dev/v1", "kind": "Webhook", "name": webhook, "uid": uid }),
            );
            serde_json::from_value(json!({
                "metadata": {
                    "name": "dlv-abcdefgh01234567",
                    "ownerReferences": Vec::from_iter(owner),
                },
                "spec": {
                    "webhook": webhook, "eventId": "evt_1", "eventType": "instance.created",
                    "eventCreatedAt": "2026-11-21T10:00:00Z", "body": "{}",
                },
            }))
            .unwrap()
        };
        assert!(is_of(
            &delivery("orders", Some("u")),
            &testing::webhook(json!({}))
        ));
        assert!(!is_of(
            &delivery("orders", Some("other")),
            &testing::webhook(json!({}))
        ));
        assert!(!is_of(&delivery("orders", None), &testing::webhook(json!({}))));
        assert!(!is_of(
            &delivery("others", Some("u")),
            &testing::webhook(json!({}))
        ));
    }

    fn delivery(phase: &str, finished: bool) -> Delivery {
        let mut object = json!({
            "metadata": {
                "name": "dlv-abcdefgh01234567", "namespace": "demo", "creationTimestamp": "2026-11-21T10:00:00Z",
                "labels": {},
                "ownerReferences": [{ "apiVersion": "stellage.dev/v1", "kind": "Webhook", "name": "orders", "uid": "u" }],
            },
            "spec": {
                "webhook": "orders", "eventId": "evt_1", "eventType": "instance.created",
                "eventCreatedAt": "2026-11-21T09:59:59Z", "body": "{}",
            },
            "status": {
                "phase": phase, "nextAttemptAt": "2026-11-21T10:05:00.9Z", "attemptCount": 1,
                "attempts": [{ "at": "2026-11-21T10:00:00.1234Z", "durationMs": 7, "statusCode": 500, "error": "no", "response": "oops" }],
            },
        });
        if finished {
            object["metadata"]["labels"] = json!({ "stellage.dev/finished": "true" });
        }
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn deliveries_of_one_second_are_in_the_order_of_their_events() {
        let at = |time: &str, sequence: i64| {
            let mut it = delivery("Delivered", true);
            it.spec.sequence = sequence;
            set_event_order(&mut it.metadata, time.parse().unwrap(), sequence);
            it.metadata.name = Some(format!("dlv-{}", time.len()));
            it
        };
        let mut all = [
            at("2026-11-21T10:00:00.25Z", 1),
            at("2026-11-21T10:00:00.7Z", 3),
            at("2026-11-21T10:00:00.7Z", 4),
            at("2026-11-21T10:00:00.4Z", 2),
        ];
        all.sort_by_cached_key(|it| newest_first(&it.metadata));
        assert_eq!(all.map(|it| it.spec.sequence), [4, 3, 2, 1]);
        let logged = delivery("Delivered", true);
        assert!(created_at(&logged) <= logged.status.unwrap().attempts[0].at);
    }

    #[test]
    fn a_delivery_requested_again_is_pending_before_the_controller_has_seen_it() {
        for (is, finished, expected) in [
            ("Pending", false, DeliveryPhase::Pending),
            ("Held", false, DeliveryPhase::Held),
            ("Delivered", true, DeliveryPhase::Delivered),
            ("Exhausted", true, DeliveryPhase::Exhausted),
            ("Delivered", false, DeliveryPhase::Pending),
            ("Exhausted", false, DeliveryPhase::Pending),
        ] {
            assert_eq!(shown_phase(&delivery(is, finished)), expected, "{is} {finished}");
        }
        // What a list derives from their metadata is the same.
        for (phase, finished, expected) in [
            (Some("held"), false, DeliveryPhase::Held),
            (Some("delivered"), true, DeliveryPhase::Delivered),
            (Some("exhausted"), false, DeliveryPhase::Pending),
            (None, false, DeliveryPhase::Pending),
        ] {
            let mut metadata = delivery("Pending", finished).metadata;
            let labels = metadata.labels.get_or_insert_default();
            labels.extend(phase.map(|phase| (PHASE_LABEL.to_owned(), phase.to_owned())));
            for status in DeliveryPhase::ALL {
                let selection = Selection {
                    status: Some(status),
                    ..Selection::default()
                };
                assert_eq!(
                    selection.has_key(&metadata, &testing::webhook(json!({}))),
                    status == expected,
                    "{phase:?}"
                );
            }
        }
        let mut without = delivery("Held", false);
        without.status = None;
        assert_eq!(shown_phase(&without), DeliveryPhase::Pending);
    }
}
