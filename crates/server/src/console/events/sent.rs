//! The webhooks that events were sent to.

use futures::{StreamExt as _, TryStreamExt as _};
use http::StatusCode;

use super::view::Event;
use crate::console::{
    call::{Call, with_query},
    refusal::Refusal,
    session_request::SessionRequest,
    webhooks::view::{Delivery, Webhook},
};
use api::{CursorList, List};

/// Webhooks to ask about concurrently: as many as the long reads that an account may have.
const READS_AT_ONCE: usize = 2;

/// A webhook, and the deliveries of some events to it.
pub struct Sent {
    pub webhook: Webhook,
    /// `None` if reading them took too long.
    deliveries: Option<Vec<Delivery>>,
    /// The request that returns this.
    pub call: Call,
}

impl Sent {
    /// The delivery of an event, if there is one.
    pub fn delivery_of(&self, event: &Event) -> Option<&Delivery> {
        self.kept().find(|delivery| delivery.event_id == event.id)
    }

    /// Why there is no delivery to show.
    pub const fn reason_for_none(&self) -> &'static str {
        if self.deliveries.is_some() {
            "No delivery to it is kept: it was switched off, did not want these events yet, or has had too many deliveries since."
        } else {
            "Reading its deliveries took too long. Reload the page to try again."
        }
    }

    /// Whether an attempt is being made, or is about to be.
    pub fn is_under_way(&self, now: jiff::Timestamp) -> bool {
        self.webhook.is_sent_to() && self.kept().any(|delivery| delivery.is_under_way(now))
    }

    fn kept(&self) -> impl Iterator<Item = &Delivery> {
        self.deliveries.iter().flatten()
    }
}

/// Reads the deliveries of these events to some of the account's webhooks.
pub async fn sent(
    request: &SessionRequest,
    events: &[Event],
    is_asked: impl Fn(&Webhook) -> bool,
) -> Result<Vec<Sent>, Refusal> {
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<&str> = events.iter().map(|event| event.id.as_str()).collect();
    let ids = &ids.join(",");
    let webhooks: List<Webhook> = request.get(&Call::get("/v1/webhooks?limit=100")).await?;
    let reads = webhooks.data.into_iter().filter(is_asked).map(async |webhook| {
        let path = format!("/v1/webhooks/{}/deliveries", webhook.id);
        let call = Call::get(with_query(&path, &[("event_id", ids)]));
        let deliveries = match request.find(&call).await {
            // It has been deleted since.
            Ok(None) => return Ok(None),
            Ok(Some(CursorList::<Delivery> { data, .. })) => Some(data),
            // The page is useful without them.
            Err(refusal) if refusal.status == StatusCode::SERVICE_UNAVAILABLE => None,
            Err(refusal) => return Err(refusal),
        };
        Ok(Some(Sent {
            webhook,
            deliveries,
            call,
        }))
    });
    let sent: Vec<_> = futures::stream::iter(reads)
        .buffered(READS_AT_ONCE)
        .try_collect()
        .await?;
    Ok(sent.into_iter().flatten().collect())
}
