//! Deliveries: list, find, send again. They are read from the API server in pages, because there may be too many to watch.
//!
//! - `selection`: filters, and the status of a delivery;
//! - `bulk`: requests for many deliveries of a webhook at once.

mod bulk;
mod selection;

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc, time::Duration};

use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use kube::{
    Api,
    api::ListParams,
    core::{DeserializeGuard, ObjectMeta},
};
use serde_json::{Value, json};

pub use self::{
    bulk::Counted,
    selection::{Selection, created_at, newest_first, next_attempt, shown_phase},
};

use self::selection::is_of;
use super::{
    Service,
    error::{Detail, Error},
    id::{DeliveryId, PublicId as _, WebhookId},
    idempotency::IdempotentRequest,
    index::Object as _,
    nonce::nonce,
    precondition::Precondition,
    store::{contended, pause},
    webhooks::{Health, IndexedWebhook, health},
};
use crate::{
    resources::{
        Delivery, DeliveryPhase, Webhook,
        delivery::{ATTEMPT_REQUESTED_AT_ANNOTATION, FINISHED_LABEL},
        instance::IDEMPOTENCY_ANNOTATION,
    },
    runtime::client::{bounded, next_page},
};

/// Deliveries per page of a list call.
const PAGE: u32 = 500;
/// How deep a list can be paged into: of each delivery up to there, the request keeps its name in memory.
const DEEPEST: usize = 10_000;
/// Deliveries of a page that are read at the same time.
const READS_AT_ONCE: usize = 8;
/// How long a request may read deliveries in total.
const DEADLINE: Duration = Duration::from_secs(30);
/// Attempts to change a delivery that others keep changing.
const MAX_ATTEMPTS: u32 = 10;
/// The complaint about a page beyond [`DEEPEST`].
const TOO_DEEP: &str =
    "must not lead beyond the newest 10000 deliveries; use the filters status and event_type";
/// The name of the kind in messages.
const WORD: &str = "delivery";

/// The result of a request to send a delivery.
pub struct Redelivered {
    /// The webhook.
    pub webhook: Arc<IndexedWebhook>,
    /// The delivery.
    pub delivery: Delivery,
    /// Whether an earlier request with the same key was carried out instead.
    pub replayed: bool,
    /// When it will be sent.
    pub when: When,
}

/// When a requested delivery will be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Now.
    Now,
    /// Now, but only once, because the webhook is disabled.
    NowOnce,
    /// As soon as the webhook is active.
    OnceActive,
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
            Health::Disabled => Self::NowOnce,
            Health::Blocked => Self::OnceUnblocked,
            Health::Healthy | Health::Failing => Self::Now,
        }
    }

    /// A description, which follows "delivery dlv_…" in messages.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Now => "is being sent now",
            Self::NowOnce => "is being sent now, but only once, because its webhook is disabled",
            Self::OnceActive => "will be sent as soon as its webhook is active",
            Self::OnceUnblocked => "will be sent as soon as its webhook is no longer blocked",
            Self::Delivered => "has just been delivered",
        }
    }

    /// Whether it need not wait for a change of the webhook.
    pub const fn is_now(self) -> bool {
        !matches!(self, Self::OnceActive | Self::OnceUnblocked)
    }
}

/// Where a page lies in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    /// Items before it.
    skip: usize,
    /// Items up to its end, of which the request keeps the names; none if that is deeper than [`DEEPEST`].
    depth: usize,
}

impl Span {
    /// The span of a page, counted from 1, of `limit` items.
    fn of(page: u64, limit: usize) -> Self {
        let skip = usize::try_from(page.saturating_sub(1))
            .unwrap_or(usize::MAX)
            .saturating_mul(limit);
        let depth = skip.saturating_add(limit);
        Self {
            skip,
            depth: if depth > DEEPEST { 0 } else { depth },
        }
    }

    /// `invalid_input` if the page is too deep, unless it lies past the end of the list.
    fn check(self, total: usize) -> Result<(), Error> {
        if self.depth == 0 && self.skip < total {
            let complaint = Detail::new("page", "invalid_value", TOO_DEEP);
            return Err(Error::invalid(vec![complaint]));
        }
        Ok(())
    }
}

impl Service {
    /// One page of a webhook's deliveries, newest first, without bodies, and their total number. `page` counts from 1. `None` as
    /// the selection selects nothing. `invalid_input` if the page is too deep, but not past the end.
    pub async fn list_deliveries(
        &self,
        namespace: &str,
        webhook: Option<WebhookId>,
        selection: Option<Selection>,
        page: u64,
        limit: usize,
    ) -> Result<(Vec<Delivery>, usize), Error> {
        let item = self.webhook(namespace, webhook).await?;
        let Some(selection) = selection else {
            return Ok((Vec::new(), 0));
        };
        let span = Span::of(page, limit);
        let mut newest = Newest::of(span.depth);
        let reading = async {
            self.each_key(&item.webhook, selection, |metadata| newest.add(&metadata))
                .await?;
            let total = newest.total;
            span.check(total)?;
            let names = newest.keys.into_iter().skip(span.skip).map(|(_, name)| name);
            let page = self.read_all(&item.webhook, selection, names).await?;
            Ok((page, total))
        };
        tokio::time::timeout(DEADLINE, reading)
            .await
            .map_err(|_| too_slow())?
    }

    /// The delivery with this id, and its webhook; `not_found` if it does not belong to the webhook.
    pub async fn delivery(
        &self,
        namespace: &str,
        webhook: Option<WebhookId>,
        id: Option<DeliveryId>,
    ) -> Result<(Arc<IndexedWebhook>, Delivery), Error> {
        let item = self.webhook(namespace, webhook).await?;
        let delivery = self.delivery_of(&item.webhook, id).await?;
        Ok((item, delivery))
    }

    /// Sends a delivery now, whatever its phase, once per idempotency key.
    pub async fn redeliver(
        &self,
        namespace: &str,
        webhook: Option<WebhookId>,
        id: Option<DeliveryId>,
        request: Option<&IdempotentRequest>,
        precondition: &Precondition,
    ) -> Result<Redelivered, Error> {
        let webhook = self.webhook(namespace, webhook).await?;
        let redelivered = |delivery, replayed, when| Redelivered {
            webhook: webhook.clone(),
            delivery,
            replayed,
            when,
        };
        let mut was_unfinished = false;
        for attempt in 1..=MAX_ATTEMPTS {
            let delivery = self.delivery_of(&webhook.webhook, id).await?;
            let mut when = When::of(&webhook.webhook);
            if let Some(request) = request
                && request.was_done(&delivery)?
            {
                return Ok(redelivered(delivery, true, when));
            }
            precondition.check(&delivery)?;
            let phase = shown_phase(&delivery);
            let mut patch = send_now(&delivery, self.now());
            if was_unfinished && phase == DeliveryPhase::Delivered {
                // An attempt in flight has succeeded, so do not send the event again.
                when = When::Delivered;
                patch = json!({ "metadata": { "annotations": {} } });
                if request.is_none() {
                    return Ok(redelivered(delivery, false, when));
                }
            }
            was_unfinished |= !phase.is_finished();
            patch["metadata"]["resourceVersion"] = json!(delivery.metadata.resource_version);
            if let Some(request) = request {
                let done = request.remember(&delivery, "");
                patch["metadata"]["annotations"][IDEMPOTENCY_ANNOTATION] = json!(done);
            }
            let patched = self
                .calls
                .patch::<Delivery>(delivery.namespace(), delivery.name(), &patch);
            match patched.await {
                Ok(delivery) => return Ok(redelivered(delivery, false, when)),
                Err(error) if error.is_conflict() => pause(attempt).await,
                Err(error) => return Err(error.into()),
            }
        }
        Err(contended(WORD))
    }

    /// The delivery with this id; `not_found` if it does not belong to the webhook.
    async fn delivery_of(&self, webhook: &Webhook, id: Option<DeliveryId>) -> Result<Delivery, Error> {
        let unknown = || Error::no_such(WORD);
        let name = id.ok_or_else(unknown)?.name();
        let delivery: Option<Delivery> = self.calls.get(webhook.namespace(), &name).await?;
        delivery
            .filter(|delivery| is_of(delivery, webhook) && !delivery.is_terminating())
            .ok_or_else(unknown)
    }

    /// Reads these deliveries, without bodies, in this order; those that have ended or changed their status since are left out.
    async fn read_all(
        &self,
        webhook: &Webhook,
        selection: Selection,
        names: impl Iterator<Item = String>,
    ) -> Result<Vec<Delivery>, Error> {
        let reads = names.map(async |name| {
            let delivery: Option<Delivery> = self.calls.get(webhook.namespace(), &name).await?;
            Ok::<_, Error>(delivery.map(without_body))
        });
        let read: Vec<_> = futures::stream::iter(reads)
            .buffered(READS_AT_ONCE)
            .try_collect()
            .await?;
        let read = read.into_iter().flatten();
        Ok(read
            .filter(|delivery| !delivery.is_terminating() && selection.has(delivery, webhook))
            .collect())
    }

    /// Passes the metadata of all selected deliveries of a webhook to `see`, in no order.
    async fn each_key(
        &self,
        webhook: &Webhook,
        selection: Selection,
        mut see: impl FnMut(ObjectMeta),
    ) -> Result<(), Error> {
        let _reading = self.calls.long_read(webhook.namespace()).await?;
        let api: Api<Delivery> = self.calls.api(webhook.namespace());
        let mut parameters = first_page(webhook, selection);
        loop {
            let page = {
                let _permit = self.calls.permit(webhook.namespace()).await?;
                bounded(api.list_metadata(&parameters)).await?
            };
            let metadata = page.items.into_iter().map(|object| object.metadata);
            metadata
                .filter(|metadata| selection.has_key(metadata, webhook))
                .for_each(&mut see);
            if !next_page(&mut parameters, &page.metadata) {
                return Ok(());
            }
        }
    }

    /// Passes all selected deliveries of a webhook to `see`, without bodies, in pages and in no order.
    async fn each_delivery(
        &self,
        webhook: &Webhook,
        selection: Selection,
        mut see: impl FnMut(Vec<Delivery>),
    ) -> Result<(), Error> {
        let _reading = self.calls.long_read(webhook.namespace()).await?;
        // `DeserializeGuard`, so that one that does not match its schema does not hide the others.
        let api: Api<DeserializeGuard<Delivery>> = self.calls.api(webhook.namespace());
        let mut parameters = first_page(webhook, selection);
        loop {
            let page = {
                let _permit = self.calls.permit(webhook.namespace()).await?;
                bounded(api.list(&parameters)).await?
            };
            let readable = page.items.into_iter().filter_map(|object| object.0.ok());
            let selected =
                readable.filter(|delivery| !delivery.is_terminating() && selection.has(delivery, webhook));
            see(selected.map(without_body).collect());
            if !next_page(&mut parameters, &page.metadata) {
                return Ok(());
            }
        }
    }
}

/// The parameters for the first page of the selected deliveries of a webhook.
fn first_page(webhook: &Webhook, selection: Selection) -> ListParams {
    ListParams::default()
        .labels(&selection.labels(webhook))
        .limit(PAGE)
}

/// The newest of the deliveries that were added.
struct Newest {
    most: usize,
    keys: BTreeSet<(Reverse<(Timestamp, i64)>, String)>,
    total: usize,
}

impl Newest {
    fn of(most: usize) -> Self {
        Self {
            most,
            keys: BTreeSet::new(),
            total: 0,
        }
    }

    fn add(&mut self, metadata: &ObjectMeta) {
        self.total += 1;
        self.keys.insert(newest_first(metadata));
        if self.keys.len() > self.most {
            self.keys.pop_last();
        }
    }
}

fn without_body(mut delivery: Delivery) -> Delivery {
    delivery.spec.body = String::new();
    delivery.metadata.managed_fields = None;
    delivery
}

/// The error of a request that takes too long.
fn too_slow() -> Error {
    Error::unavailable("reading the deliveries took too long; try again")
}

/// The merge patch that requests an attempt now, whatever the delivery's phase. If an unfinished delivery is finished by the time
/// the patch is applied, it stays as it is.
pub fn send_now(delivery: &Delivery, now: Timestamp) -> Value {
    let status = delivery.status.as_ref();
    let taken = [
        delivery.requested_attempt().map(ToOwned::to_owned),
        status.and_then(|status| status.attempt_requested_at.clone()),
    ];
    let nonce = nonce(now, &[&taken[0], &taken[1]]);
    let mut metadata = json!({ "annotations": { ATTEMPT_REQUESTED_AT_ANNOTATION: nonce } });
    if delivery.is_finished() {
        metadata["labels"] = json!({ FINISHED_LABEL: null });
    }
    json!({ "metadata": metadata })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::error::ErrorKind;

    #[test]
    fn of_all_deliveries_only_the_keys_of_the_newest_are_kept() {
        let mut newest = Newest::of(3);
        for second in [5, 1, 9, 7, 3, 9] {
            newest.add(
                &serde_json::from_value(json!({
                    "name": format!("dlv-{second}-{}", newest.total),
                    "creationTimestamp": format!("2026-11-22T10:00:0{second}Z"),
                }))
                .unwrap(),
            );
            assert!(newest.keys.len() <= 3);
        }
        let names: Vec<_> = newest.keys.into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["dlv-9-2", "dlv-9-5", "dlv-7-3"]);
        assert_eq!(newest.total, 6);
    }

    #[test]
    fn a_page_reaches_no_deeper_than_the_newest_ten_thousand_and_past_the_end_only_counts() {
        let span = |page, limit| {
            let Span { skip, depth } = Span::of(page, limit);
            (skip, depth)
        };
        assert_eq!(span(1, 20), (0, 20));
        assert_eq!(span(100, 100), (9_900, 10_000));
        assert_eq!(span(101, 100), (10_000, 0));
        assert_eq!(span(u64::MAX, 100), (usize::MAX, 0));
        let refused = Span::of(101, 100).check(10_001).unwrap_err();
        assert_eq!(
            (refused.kind, refused.details[0].field.as_ref()),
            (ErrorKind::InvalidInput, "page")
        );
        assert!(Span::of(101, 100).check(10_000).is_ok());
        assert!(Span::of(100, 100).check(usize::MAX).is_ok());
        assert!(Span::of(u64::MAX, 100).check(1_000_000).is_ok());
    }

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
