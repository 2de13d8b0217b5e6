//! Deliveries in the event log: those that succeeded at the first attempt. They are shown as if they were Delivery objects.

use crate::service::idempotency::IdempotentRequest;
use domain::{delivery::logged_again, event::EventType};
use resources::{
    Delivery, EventLog, Webhook,
    delivery::{ATTEMPT_REQUESTED_AT_ANNOTATION, set_event_order},
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

/// What [`logged_again`] makes, once per idempotency key.
pub(super) fn keyed_request(
    logged: Delivery,
    webhook: &Webhook,
    idempotent: Option<&IdempotentRequest>,
) -> Delivery {
    let (at, sequence) = (logged.spec.event_created_at, logged.spec.sequence);
    let mut delivery = logged_again(logged, webhook);
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
