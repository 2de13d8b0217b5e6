//! Deliveries in the event log: those that succeeded at the first attempt. They are shown as if they were Delivery objects.

use crate::service::idempotency::IdempotentRequest;
use domain::event::EventType;
use resources::{
    Delivery, EventLog, PageIndex, Webhook,
    delivery::{ATTEMPT_REQUESTED_AT_ANNOTATION, set_event_order},
    event_log::LOGGED_IN_ANNOTATION,
    ids,
    instance::IDEMPOTENCY_ANNOTATION,
};

/// The deliveries of a page to the Webhook with this UID, of all events or those of one type.
pub fn deliveries_to<'a>(
    webhook_uid: &'a str,
    page: &'a EventLog,
    event_type: Option<EventType>,
) -> impl Iterator<Item = Delivery> + 'a {
    let events = page.spec.events.iter();
    events
        .filter(move |event| event_type.is_none_or(|wanted| wanted == event.event_type))
        .filter_map(move |event| event.delivery_to(webhook_uid, page))
}

/// The event on a page that belongs to this delivery to the Webhook with this UID, if the page may have the delivery.
pub fn event_of(index: &PageIndex, webhook_uid: &str, delivery: &str) -> Option<String> {
    if index.delivered_to(webhook_uid, None) == 0 {
        return None;
    }
    index
        .event_ids()
        .find(|event| ids::delivery_name(webhook_uid, event) == delivery)
}

/// The Delivery to create so that the controller sends a delivery in the event log again: see [`Delivery::is_request`].
pub fn request(logged: Delivery, webhook: &Webhook) -> Delivery {
    let mut request = logged.requested_again(webhook, String::new());
    request.spec.body.clear();
    request.status = None;
    let annotations = request.metadata.annotations.get_or_insert_default();
    annotations.retain(|key, _| key == LOGGED_IN_ANNOTATION);
    request
}

/// The same for the facade, once per idempotency key.
pub(super) fn keyed_request(
    logged: Delivery,
    webhook: &Webhook,
    idempotent: Option<&IdempotentRequest>,
) -> Delivery {
    let (at, sequence) = (logged.spec.event_created_at, logged.spec.sequence);
    let mut delivery = request(logged, webhook);
    // Lists are sorted by this order.
    set_event_order(&mut delivery.metadata, at, sequence);
    if let Some(idempotent) = idempotent {
        let done = idempotent.remember(&delivery, "");
        let annotations = delivery.metadata.annotations.get_or_insert_default();
        annotations.insert(IDEMPOTENCY_ANNOTATION.to_owned(), done);
    }
    delivery
}

/// A request as it will be once the controller has completed it from the log.
pub(super) fn completed(mut request: Delivery, logged: Delivery) -> Delivery {
    request.spec = logged.spec;
    request.status = logged.status;
    let annotations = request.metadata.annotations.get_or_insert_default();
    annotations
        .entry(ATTEMPT_REQUESTED_AT_ANNOTATION.to_owned())
        .or_default();
    request
}
