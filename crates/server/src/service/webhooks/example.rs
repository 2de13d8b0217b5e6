//! Test deliveries, which show account holders what their receivers will get.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::Resource as _;

use crate::service::{
    error::{Detail, Error, ErrorCode},
    idempotency::REQUEST_HASH_ANNOTATION,
    index::Object as _,
};
use domain::event::EventType;
use resources::{
    Delivery, DeliveryPhase, DeliverySpec, Webhook,
    delivery::{EVENT_TYPE_LABEL, PHASE_LABEL, WEBHOOK_LABEL},
    ids,
};
use runtime::traces;

/// The type of the test event for a webhook, by default its first: `invalid_input` if the webhook does not subscribe to it,
/// `invalid_state` if `active` is `false`. A disabled webhook can be tested, to check whether its receiver works again.
pub fn example_type(webhook: &Webhook, wanted: Option<EventType>) -> Result<EventType, Error> {
    if !webhook.spec.active {
        return Err(not_active());
    }
    let events = &webhook.spec.events;
    let wanted = wanted.or_else(|| events.first().copied());
    wanted.filter(|event| events.contains(event)).ok_or_else(|| {
        let types: Vec<_> = events.iter().map(|event| event.as_str()).collect();
        Error::invalid(vec![Detail::new(
            "type",
            "invalid_value",
            format!("must be one of the webhook's event types: {}", types.join(", ")),
        )])
    })
}

/// `invalid_state` for sending to a webhook with `active: false`.
pub fn not_active() -> Error {
    Error {
        details: vec![Detail::new(
            "active",
            "invalid_state",
            "is false; set it to true first",
        )],
        ..Error::new(
            ErrorCode::InvalidState,
            "the webhook is not active; set active to true first",
        )
    }
}

/// The Delivery of a test event, due at once. Only the controller may write a body or a status: it sends its own example, so that
/// nothing else is ever signed.
pub fn example(
    webhook: &Webhook,
    event_id: &str,
    event_type: EventType,
    request_hash: Option<String>,
    now: Timestamp,
) -> Delivery {
    let mut delivery = Delivery::new(
        &ids::delivery_name(webhook.origin_uid(), event_id),
        DeliverySpec {
            webhook: webhook.name().to_owned(),
            event_id: event_id.to_owned(),
            event_type,
            event_created_at: now,
            sequence: 0,
            subject: String::new(),
            body: String::new(),
            traceparent: traces::current(),
            test: true,
        },
    );
    delivery.metadata.labels = Some(BTreeMap::from(
        [
            (WEBHOOK_LABEL, webhook.name()),
            (PHASE_LABEL, DeliveryPhase::Pending.as_str()),
            (EVENT_TYPE_LABEL, event_type.as_str()),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned())),
    ));
    delivery.metadata.annotations =
        request_hash.map(|hash| BTreeMap::from([(REQUEST_HASH_ANNOTATION.to_owned(), hash)]));
    delivery.metadata.owner_references = webhook.controller_owner_ref(&()).map(|owner| vec![owner]);
    delivery
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use domain::event::catalogue;
    use resources::testing;

    fn webhook(disabled: bool, active: bool) -> Webhook {
        let status = disabled.then(|| {
            json!({ "disabled": {
                "at": "2026-11-21T09:00:00Z", "reason": "Gone", "message": "m", "delivery": "d", "eventId": "e",
                "eventType": "instance.created", "attempts": 1, "error": "no", "generation": 3,
            }})
        });
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
        let refusal = example_type(&webhook(false, false), None).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::InvalidState);
        let refusal = example_type(&webhook(false, true), Some(EventType::InvoiceCreated)).unwrap_err();
        assert_eq!(
            (refusal.code, refusal.details[0].field.as_ref()),
            (ErrorCode::InvalidInput, "type")
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
        let delivery = example(&webhook, id, EventType::BackupFailed, None, now);
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
