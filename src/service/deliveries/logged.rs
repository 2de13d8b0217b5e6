//! Deliveries in the event log: those that succeeded at the first attempt. They are shown as the Deliveries that they would be.

use super::attempt_nonce;
use crate::{
    events::EventType,
    resources::{Delivery, EventLog, PageIndex, Webhook, ids, instance::IDEMPOTENCY_ANNOTATION},
    service::idempotency::IdempotentRequest,
};
use jiff::Timestamp;

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

/// The event on a page whose delivery to the Webhook with this UID has this name, if the page may have that delivery.
pub fn event_of(index: &PageIndex, webhook_uid: &str, delivery: &str) -> Option<String> {
    if index.delivered_to(webhook_uid, None) == 0 {
        return None;
    }
    index
        .event_ids()
        .find(|event| ids::delivery_name(webhook_uid, event) == delivery)
}

/// The Delivery to create, so that a delivery in the event log is sent again.
pub(super) fn sent_again(
    mut delivery: Delivery,
    webhook: &Webhook,
    request: Option<&IdempotentRequest>,
    now: Timestamp,
) -> Delivery {
    let nonce = attempt_nonce(&delivery, now);
    delivery = delivery.requested_again(webhook, nonce);
    if let Some(request) = request {
        let done = request.remember(&delivery, "");
        let annotations = delivery.metadata.annotations.get_or_insert_default();
        annotations.insert(IDEMPOTENCY_ANNOTATION.to_owned(), done);
    }
    delivery
}
