//! Test deliveries, which show account holders what their receivers will get.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::{Resource as _, ResourceExt as _};

use crate::event::EventType;
use resources::{
    Delivery, DeliveryPhase, DeliverySpec, Webhook,
    delivery::{EVENT_TYPE_LABEL, PHASE_LABEL, WEBHOOK_LABEL},
    ids, origin,
};

/// Why a webhook cannot be tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untestable {
    /// `active` is `false`.
    NotActive,
    /// It does not subscribe to the type.
    NotSubscribed,
}

/// The type of the test event for a webhook, by default its first. A disabled webhook can be tested, to check whether its receiver
/// works again.
pub fn example_type(webhook: &Webhook, wanted: Option<EventType>) -> Result<EventType, Untestable> {
    if !webhook.spec.active {
        return Err(Untestable::NotActive);
    }
    let events = &webhook.spec.events;
    let wanted = wanted.or_else(|| events.first().copied());
    wanted
        .filter(|event| events.contains(event))
        .ok_or(Untestable::NotSubscribed)
}

/// The Delivery of a test event, due at once. Only the controller may write a body or a status: it sends its own example, so that
/// nothing else is ever signed.
pub fn example(webhook: &Webhook, event_id: &str, event_type: EventType, now: Timestamp) -> Delivery {
    let name = webhook.name_any();
    let mut delivery = Delivery::new(
        &ids::delivery_name(origin::uid(&webhook.metadata), event_id),
        DeliverySpec {
            webhook: name.clone(),
            event_id: event_id.to_owned(),
            event_type,
            event_created_at: now,
            sequence: 0,
            subject: String::new(),
            body: String::new(),
            traceparent: None,
            test: true,
        },
    );
    delivery.metadata.labels = Some(BTreeMap::from(
        [
            (WEBHOOK_LABEL, name.as_str()),
            (PHASE_LABEL, DeliveryPhase::Pending.as_str()),
            (EVENT_TYPE_LABEL, event_type.as_str()),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned())),
    ));
    delivery.metadata.owner_references = webhook.controller_owner_ref(&()).map(|owner| vec![owner]);
    delivery
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::event::catalogue;
    use resources::testing;

    fn webhook(disabled: bool, active: bool) -> Webhook {
        let status = disabled.then(testing::disabled);
        testing::webhook(json!({
            "metadata": { "generation": 3 },
            "spec": { "events": ["instance.stopped"], "active": active },
            "status": status,
        }))
    }

    #[test]
    fn a_test_sends_a_type_that_the_webhook_subscribes_to() {
        assert_eq!(
            example_type(&webhook(false, true), None),
            Ok(EventType::InstanceStopped)
        );
        assert!(example_type(&webhook(true, true), None).is_ok());
        assert_eq!(
            example_type(&webhook(false, false), None),
            Err(Untestable::NotActive)
        );
        assert_eq!(
            example_type(&webhook(false, true), Some(EventType::InvoiceCreated)),
            Err(Untestable::NotSubscribed)
        );
    }

    #[test]
    fn a_test_delivery_is_due_at_once_owned_by_its_webhook_and_marked_as_a_test() {
        let webhook: Webhook = serde_json::from_value(json!({
            "metadata": { "name": "orders", "namespace": "demo", "uid": "u" },
            "spec": { "url": "https://example.com", "events": ["backup.failed"], "secretRef": { "name": "s" } },
        }))
        .unwrap();
        let now: Timestamp = "2026-11-21T10:00:00.5Z".parse().unwrap();
        let id = "evt_test_abcdefgh01234567";
        let delivery = example(&webhook, id, EventType::BackupFailed, now);
        assert_eq!(delivery.metadata.name, Some(ids::delivery_name("u", id)));
        assert!(delivery.spec.test && delivery.spec.event_id == id);
        assert_eq!(delivery.status, None);
        let labels = delivery.metadata.labels.unwrap();
        assert_eq!(labels["stellage.dev/webhook"], "orders");
        assert_eq!(labels["stellage.dev/phase"], "pending");
        assert_eq!(labels["stellage.dev/event-type"], "backup.failed");
        assert_eq!(delivery.metadata.owner_references.unwrap()[0].uid, "u");
        assert_eq!(delivery.spec.body, "", "the controller's alone");
        let body: serde_json::Value = serde_json::from_str(&catalogue::body_of(&delivery.spec)).unwrap();
        assert_eq!(
            (&body["id"], &body["created_at"]),
            (&json!(id), &json!("2026-11-21T10:00:00.500Z"))
        );
    }
}
