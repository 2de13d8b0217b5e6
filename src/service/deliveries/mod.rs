//! Deliveries: list, find, send again. Read from the API server, in pages: there may be so many that nobody should watch them.
//!
//! - `selection`: which deliveries a request is about, and where each is.

mod selection;

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc, time::Duration};

use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use kube::{Api, api::ListParams, core::DeserializeGuard};
use serde_json::{Value, json};

pub use self::selection::{Selection, created_at, shown_phase};

use self::selection::is_of;
use super::{
    Service,
    error::{Detail, Error, ErrorKind},
    id::{DeliveryId, PublicId as _, WebhookId},
    idempotency::IdempotentRequest,
    index::Object as _,
    precondition::Precondition,
    store::{Verdict, contended, pause},
    webhooks::IndexedWebhook,
};
use crate::{
    resources::{
        Delivery, DeliveryPhase, Webhook,
        delivery::{self, FINISHED_LABEL},
        instance::IDEMPOTENCY_ANNOTATION,
    },
    runtime::client::bounded,
};

/// Deliveries asked for at once.
const PAGE: u32 = 500;
/// How long a request may read deliveries in all.
const DEADLINE: Duration = Duration::from_secs(30);
/// Attempts at one delivery before a request gives way to whoever else changes it.
const MAX_ATTEMPTS: u32 = 10;
/// Deliveries whose labels are taken away at the same time.
const RECOVERED_AT_ONCE: usize = 16;
/// The kind as messages call it.
const WORD: &str = "delivery";

/// A delivery that is being sent again.
pub struct Redelivered {
    /// The webhook.
    pub webhook: Arc<IndexedWebhook>,
    /// The delivery as it is now.
    pub delivery: Delivery,
    /// Whether an earlier request with the same key had it sent.
    pub before: bool,
}

/// What a recovery did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Deliveries that are sent again.
    pub count: usize,
    /// Whether an earlier request with the same key did it.
    pub before: bool,
}

impl Service {
    /// One page of a webhook's deliveries, newest first, without bodies, and how many there are in all. `page` counts from 1.
    /// Without a selection nothing is selected.
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
        let skip = usize::try_from(page.saturating_sub(1))
            .unwrap_or(usize::MAX)
            .saturating_mul(limit);
        let mut newest: Vec<Delivery> = Vec::new();
        let mut total = 0;
        let reading = self.each_delivery(&item.webhook, selection, |page| {
            total += page.len();
            newest.extend(page);
            newest.sort_by_cached_key(|delivery| (Reverse(created_at(delivery)), delivery.id()));
            newest.truncate(skip.saturating_add(limit));
        });
        tokio::time::timeout(DEADLINE, reading)
            .await
            .map_err(|_| too_slow())??;
        Ok((newest.into_iter().skip(skip).collect(), total))
    }

    /// The delivery with this id; `not_found` for one that is not of this webhook.
    pub async fn delivery(
        &self,
        namespace: &str,
        webhook: Option<WebhookId>,
        id: Option<DeliveryId>,
    ) -> Result<Delivery, Error> {
        let item = self.webhook(namespace, webhook).await?;
        self.delivery_of(&item.webhook, id).await
    }

    /// Has a delivery sent again, once for each key.
    pub async fn redeliver(
        &self,
        namespace: &str,
        webhook: Option<WebhookId>,
        id: Option<DeliveryId>,
        request: Option<&IdempotentRequest>,
        precondition: &Precondition,
    ) -> Result<Redelivered, Error> {
        let webhook = self.webhook(namespace, webhook).await?;
        let redelivered = |delivery, before| Redelivered {
            webhook: webhook.clone(),
            delivery,
            before,
        };
        for attempt in 1..=MAX_ATTEMPTS {
            let delivery = self.delivery_of(&webhook.webhook, id).await?;
            let mut patch = unlabel(delivery.metadata.resource_version.as_deref());
            if let Some(request) = request {
                if request.was_done(&delivery)? {
                    return Ok(redelivered(delivery, true));
                }
                let done = request.remember(&delivery, "");
                patch["metadata"]["annotations"] = json!({ IDEMPOTENCY_ANNOTATION: done });
            }
            precondition.check(&delivery)?;
            check_finished(shown_phase(&delivery))?;
            let patched = self
                .calls
                .patch::<Delivery>(delivery.namespace(), delivery.name(), &patch);
            match patched.await {
                Ok(delivery) => return Ok(redelivered(delivery, false)),
                Err(error) if error.is_conflict() => pause(attempt).await,
                Err(error) => return Err(error.into()),
            }
        }
        Err(contended(WORD))
    }

    /// Sends again every exhausted delivery of a webhook that was not given up before `since`, once for each key.
    pub async fn recover(
        &self,
        namespace: &str,
        webhook: Option<WebhookId>,
        since: Option<Timestamp>,
        request: Option<&IdempotentRequest>,
        precondition: &Precondition,
    ) -> Result<Recovered, Error> {
        let decide = |item: &IndexedWebhook| {
            let was_done = request
                .map(|request| request.was_done(&*item.webhook))
                .transpose()?;
            if was_done != Some(true) {
                precondition.check(&*item.webhook)?;
            }
            Ok(Verdict::Leave)
        };
        let item = self.webhooks.modify(namespace, webhook, decide).await?;
        let note = request.map(|request| request.note(&*item.webhook)).transpose()?;
        if let Some(note) = note.flatten() {
            return Ok(Recovered {
                count: note.parse().unwrap_or(0),
                before: true,
            });
        }
        let recovery = self.recover_exhausted(&item.webhook, since);
        let count = tokio::time::timeout(DEADLINE, recovery)
            .await
            .map_err(|_| too_slow())??;
        if let Some(request) = request {
            // Only now: a crash before it leaves a request that, sent again, recovers the rest.
            let decide = |item: &IndexedWebhook| {
                Ok(Verdict::Write {
                    spec: Box::new(item.webhook.spec.clone()),
                    done: Some(request.remember(&*item.webhook, &count.to_string())),
                })
            };
            self.webhooks.modify(namespace, webhook, decide).await?;
        }
        Ok(Recovered { count, before: false })
    }

    /// The delivery of a webhook; `not_found` for any other.
    async fn delivery_of(&self, webhook: &Webhook, id: Option<DeliveryId>) -> Result<Delivery, Error> {
        let unknown = || Error::no_such(WORD);
        let name = id.ok_or_else(unknown)?.name();
        let delivery: Option<Delivery> = self.calls.get(webhook.namespace(), &name).await?;
        delivery
            .filter(|delivery| is_of(delivery, webhook) && !delivery.is_terminating())
            .ok_or_else(unknown)
    }

    /// Hands every selected delivery of a webhook on, some hundreds at a time, in no order, without bodies.
    async fn each_delivery(
        &self,
        webhook: &Webhook,
        selection: Selection,
        mut see: impl FnMut(Vec<Delivery>),
    ) -> Result<(), Error> {
        // One that does not parse must not hide the others.
        let api: Api<DeserializeGuard<Delivery>> = self.calls.api(webhook.namespace());
        let mut parameters = ListParams::default()
            .labels(&selection.labels(webhook))
            .limit(PAGE);
        loop {
            let page = {
                let _permit = self.calls.permit().await;
                bounded(api.list(&parameters)).await?
            };
            let readable = page.items.into_iter().filter_map(|object| object.0.ok());
            let selected =
                readable.filter(|delivery| !delivery.is_terminating() && selection.has(delivery, webhook));
            see(selected
                .map(|mut delivery| {
                    delivery.spec.body = String::new();
                    delivery.metadata.managed_fields = None;
                    delivery
                })
                .collect());
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(()),
            }
        }
    }

    /// Takes the label off every exhausted delivery that was not given up before `since`. Returns how many there were.
    async fn recover_exhausted(&self, webhook: &Webhook, since: Option<Timestamp>) -> Result<usize, Error> {
        let selection = Selection {
            status: Some(DeliveryPhase::Exhausted),
            event_type: None,
        };
        // Those about one object one after the other, so that they are first attempted in order.
        let mut exhausted: BTreeMap<String, Vec<_>> = BTreeMap::new();
        self.each_delivery(webhook, selection, |page| {
            let wanted = page
                .into_iter()
                .filter(|delivery| !delivery.spec.test)
                .filter(|delivery| {
                    let given_up = delivery::finished_at(&delivery.metadata);
                    since.is_none_or(|since| given_up.unwrap_or(delivery.spec.event_created_at) >= since)
                });
            for delivery in wanted {
                let (spec, metadata) = (delivery.spec, delivery.metadata);
                let place = (spec.event_created_at, spec.sequence);
                let name = metadata.name.unwrap_or_default();
                let of_object = exhausted.entry(spec.subject).or_default();
                of_object.push((place, name, metadata.resource_version));
            }
        })
        .await?;
        let mut exhausted: Vec<_> = exhausted.into_values().collect();
        for of_object in &mut exhausted {
            of_object.sort_unstable();
        }
        exhausted.sort_unstable();
        futures::stream::iter(exhausted)
            .map(async |of_object| {
                let mut count = 0;
                for (_, name, version) in of_object {
                    count += usize::from(self.send_again(webhook.namespace(), &name, version).await?);
                }
                Ok::<_, Error>(count)
            })
            .buffered(RECOVERED_AT_ONCE)
            .try_fold(0, async |sum, count| Ok(sum + count))
            .await
    }

    /// Returns whether the delivery was there still, in this version: another request may have had it sent already.
    async fn send_again(&self, namespace: &str, name: &str, version: Option<String>) -> Result<bool, Error> {
        let patch = unlabel(version.as_deref());
        match self.calls.patch::<Delivery>(namespace, name, &patch).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// The refusal of what takes too long.
fn too_slow() -> Error {
    Error::unavailable("the deliveries could not be read in time; try again")
}

/// Has a delivery sent again, in this version only: nothing is sent twice because two asked for it.
pub fn unlabel(version: Option<&str>) -> Value {
    json!({ "metadata": { "resourceVersion": version, "labels": { FINISHED_LABEL: null } } })
}

/// `invalid_state` for what is on its way anyway.
pub fn check_finished(phase: DeliveryPhase) -> Result<(), Error> {
    if phase.is_finished() {
        return Ok(());
    }
    let message = format!(
        "is {}; redeliver is allowed from delivered, exhausted",
        phase.as_str()
    );
    Err(Error {
        details: vec![Detail::new("status", "invalid_state", message.clone())],
        ..Error::new(ErrorKind::InvalidState, format!("the delivery {message}"))
    })
}
