//! Deliveries in the event log: those that succeeded at the first attempt. They are shown as the Deliveries that they would be.

use jiff::Timestamp;
use kube::core::ObjectMeta;

use super::attempt_nonce;
use crate::{
    events::EventType,
    resources::{
        Delivery, EventLog, PageIndex, Webhook,
        delivery::{ATTEMPT_REQUESTED_AT_ANNOTATION, FINISHED_LABEL},
        event_log::{LOGGED_IN_ANNOTATION, written_at},
        ids,
        instance::IDEMPOTENCY_ANNOTATION,
    },
    service::{idempotency::IdempotentRequest, index::Object as _},
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

/// The event on a page whose delivery to the Webhook with this UID has this name, if the page may have that delivery.
pub fn event_of(index: &PageIndex, webhook_uid: &str, delivery: &str) -> Option<String> {
    if index.delivered_to(webhook_uid, None) == 0 {
        return None;
    }
    index
        .event_ids()
        .find(|event| ids::delivery_name(webhook_uid, event) == delivery)
}

/// The delivery of an event on a page to the Webhook with this UID, if it is there.
pub fn delivery_in(page: &EventLog, event_id: &str, webhook_uid: &str) -> Option<Delivery> {
    let event = page.spec.events.iter().find(|event| event.id == event_id)?;
    event.delivery_to(webhook_uid, page)
}

/// The page that a Delivery was made from.
pub(super) fn page_of(metadata: &ObjectMeta) -> Option<&str> {
    let annotations = metadata.annotations.as_ref()?;
    let page = annotations.get(LOGGED_IN_ANNOTATION)?;
    // Tenants may write annotations, and a list keeps these.
    (page.len() < 64 && written_at(page).is_some()).then_some(page)
}

/// The Delivery to create, so that a delivery in the event log is sent again.
pub(super) fn sent_again(
    mut delivery: Delivery,
    webhook: &Webhook,
    request: Option<&IdempotentRequest>,
    now: Timestamp,
) -> Delivery {
    let nonce = attempt_nonce(&delivery, now);
    let annotations = delivery.metadata.annotations.get_or_insert_default();
    annotations.insert(ATTEMPT_REQUESTED_AT_ANNOTATION.to_owned(), nonce);
    if let Some(request) = request {
        let done = request.remember(&delivery, "");
        let annotations = delivery.metadata.annotations.get_or_insert_default();
        annotations.insert(IDEMPOTENCY_ANNOTATION.to_owned(), done);
    }
    let metadata = &mut delivery.metadata;
    // Without this label, the controller sends it.
    metadata.labels.get_or_insert_default().remove(FINISHED_LABEL);
    metadata.owner_references = Some(vec![Webhook::owner_reference(webhook.name(), webhook.uid())]);
    delivery
}
