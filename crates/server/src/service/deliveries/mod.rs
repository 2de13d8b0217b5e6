//! Deliveries: list, find, send again. They are read from the API server in pages, because there may be too many to watch. Those
//! that succeeded at the first attempt are in the event log; the others are Deliveries.
//!
//! - `selection`: filters, and the status of a delivery;
//! - `logged`: deliveries in the event log;
//! - `bulk`: requests for many deliveries of a webhook at once.

mod bulk;
mod logged;
mod selection;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    ops::ControlFlow,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _};
use kube::{
    api::ListParams,
    core::{DeserializeGuard, ObjectMeta},
};
use serde_json::json;

pub use self::{
    bulk::Counted,
    selection::{Selection, created_at, newest_first},
};
pub use domain::delivery::{When, next_attempt, shown_phase};

use self::selection::is_of;
use super::{
    Service,
    cost::Cost,
    credentials::Tenant,
    error::{Error, ErrorCode},
    events::{Cursor, ListedPage, Newest, Position, Slice, not_kept},
    id::{DeliveryId, PublicId as _, WebhookId},
    idempotency::IdempotentRequest,
    index::Object as _,
    precondition::Precondition,
    store::{LongRead, MAX_ATTEMPTS, contended, pause},
    webhooks::IndexedWebhook,
};
use domain::delivery::{logged_event, send_now};
use resources::{
    Delivery, DeliveryPhase, EventLog, PageIndex, Webhook, event_log::page_of, ids,
    instance::IDEMPOTENCY_ANNOTATION,
};
use runtime::client::Pages;

/// Deliveries of a page that are read concurrently.
const READS_AT_ONCE: usize = 8;
/// How long a request may read deliveries in total.
const DEADLINE: Duration = Duration::from_secs(30);
/// The name of the kind in messages.
const WORD: &str = "delivery";

/// The result of a request to send a delivery.
pub struct Redelivered {
    pub webhook: Arc<IndexedWebhook>,
    pub delivery: Delivery,
    /// Whether an earlier request with the same key was carried out instead.
    pub replayed: bool,
    /// When it will be sent.
    pub when: When,
}

impl Service {
    /// One page of a webhook's deliveries, newest first, without bodies; with `events`, of those of these events. A selection of
    /// `None` selects nothing. `invalid_input` if the delivery that it is to follow is not kept.
    pub async fn list_deliveries(
        &self,
        tenant: &Tenant,
        webhook: Option<WebhookId>,
        selection: Option<Selection>,
        events: Option<BTreeSet<String>>,
        cursor: Cursor<DeliveryId>,
        cost: &Cost,
    ) -> Result<Slice<Delivery>, Error> {
        let item = self.webhook(&tenant.namespace, webhook).await?;
        let Some(selection) = selection else {
            return Ok(Slice::empty());
        };
        let reading = async {
            let after = match cursor.after {
                Some(id) => Some(self.position_of(tenant, &item.webhook, id, cost).await?),
                None => None,
            };
            let (webhook, limit) = (&*item.webhook, cursor.limit);
            if let Some(events) = events {
                self.read_deliveries_of(tenant, webhook, selection, events, Newest::of(limit, after), cost)
                    .await
            } else {
                self.read_deliveries(tenant, webhook, selection, Newest::of(limit, after), cost)
                    .await
            }
        };
        tokio::time::timeout(DEADLINE, reading)
            .await
            .map_err(|_| too_slow())?
    }

    /// The position of a delivery in the list; `invalid_input` if it is not kept.
    async fn position_of(
        &self,
        tenant: &Tenant,
        webhook: &Webhook,
        id: DeliveryId,
        cost: &Cost,
    ) -> Result<Position, Error> {
        match self.delivery_of(tenant, webhook, Some(id), cost).await {
            Ok(Found::Stored(delivery) | Found::Logged(delivery)) => Ok(newest_first(&delivery.metadata)),
            Err(error) if error.code == ErrorCode::NotFound => Err(not_kept(WORD)),
            Err(error) => Err(error),
        }
    }

    async fn read_deliveries_of(
        &self,
        tenant: &Tenant,
        webhook: &Webhook,
        selection: Selection,
        events: BTreeSet<String>,
        mut newest: Newest<Delivery>,
        cost: &Cost,
    ) -> Result<Slice<Delivery>, Error> {
        let uid = webhook.origin_uid();
        let reads = events.into_iter().map(async |event| {
            let name = ids::delivery_name(uid, &event);
            cost.add_object();
            let stored = self.stored_delivery(webhook, &name).await?;
            Ok::<_, Error>((event, stored))
        });
        let read: Vec<_> = futures::stream::iter(reads)
            .buffered(READS_AT_ONCE)
            .try_collect()
            .await?;
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for (event, stored) in read {
            match stored {
                Some(delivery) => found.push(delivery),
                None => missing.push(event),
            }
        }
        if !missing.is_empty() {
            found.extend(self.logged_deliveries_of(tenant, uid, missing, cost).await?);
        }
        for delivery in found.into_iter().filter(|delivery| selection.includes(delivery)) {
            newest.add(newest_first(&delivery.metadata), without_body(delivery));
        }
        Ok(slice(newest))
    }

    /// The deliveries of these events to the Webhook with this UID that are in the event log.
    async fn logged_deliveries_of(
        &self,
        tenant: &Tenant,
        uid: &str,
        events: Vec<String>,
        cost: &Cost,
    ) -> Result<Vec<Delivery>, Error> {
        let pages = self.pages(tenant, cost).await?;
        let (mut names, mut left) = (Vec::new(), events.clone());
        let see = |page: ListedPage| {
            let index = &page.index;
            let before = left.len();
            if index.delivered_to(uid, None) > 0 {
                left.retain(|event| !index.has(event));
            }
            if left.len() < before {
                names.push(page.name);
            }
            if left.is_empty() {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        pages.each(see).await?;
        let mut found = Vec::new();
        let mut contents = std::pin::pin!(pages.read(names));
        while let Some(page) = contents.try_next().await? {
            let logged = |event: &String| page.as_ref()?.delivery_of(event, uid);
            found.extend(events.iter().filter_map(logged));
        }
        Ok(found)
    }

    async fn read_deliveries(
        &self,
        tenant: &Tenant,
        webhook: &Webhook,
        selection: Selection,
        mut newest: Newest<Shown>,
        cost: &Cost,
    ) -> Result<Slice<Delivery>, Error> {
        let pages = self.pages(tenant, cost).await?;
        let mut replaced = Replaced::default();
        let listed = if selection.has_logged() {
            // Of any status: a Delivery that is being sent again also replaces its entry in the log.
            Selection {
                status: None,
                ..selection
            }
        } else {
            selection
        };
        let see = |metadata: ObjectMeta| {
            replaced.add(&metadata);
            if selection.has_key(&metadata, webhook) {
                let position = newest_first(&metadata);
                let name = position.1.clone();
                newest.add(position, Shown::Stored(name));
            }
        };
        self.each_key(pages.reading(), webhook, listed, cost, see).await?;
        if selection.has_logged() {
            let uid = webhook.origin_uid();
            let count = |page: &str, index: &PageIndex| {
                let delivered = index.delivered_to(uid, selection.event_type);
                delivered.saturating_sub(replaced.count_in(page, index, uid))
            };
            let selected = pages.select(&newest, selection.period, true, count).await?;
            let items = |page: EventLog| {
                let deliveries = logged::deliveries_to(uid, &page, selection.event_type);
                deliveries
                    .filter(|delivery| selection.includes(delivery) && !replaced.has(&page, delivery.name()))
                    .map(|delivery| {
                        let delivery = without_body(delivery);
                        (
                            newest_first(&delivery.metadata),
                            Shown::Logged(Box::new(delivery)),
                        )
                    })
                    .collect()
            };
            pages.merge(selected, &mut newest, items).await?;
        }
        let Slice { items, next } = slice(newest);
        Ok(Slice {
            items: self.read_all(webhook, selection, items.into_iter(), cost).await?,
            next,
        })
    }

    /// The delivery with this id, and its webhook; `not_found` if the delivery does not belong to the webhook.
    pub async fn delivery(
        &self,
        tenant: &Tenant,
        webhook: Option<WebhookId>,
        id: Option<DeliveryId>,
        cost: &Cost,
    ) -> Result<(Arc<IndexedWebhook>, Delivery), Error> {
        let item = self.webhook(&tenant.namespace, webhook).await?;
        let found = self.delivery_of(tenant, &item.webhook, id, cost).await?;
        let (Found::Stored(delivery) | Found::Logged(delivery)) = found;
        Ok((item, *delivery))
    }

    /// Sends a delivery now, whatever its phase, once per idempotency key. If it is only in the event log, creates a Delivery.
    pub async fn redeliver(
        &self,
        tenant: &Tenant,
        webhook: Option<WebhookId>,
        id: Option<DeliveryId>,
        request: Option<&IdempotentRequest>,
        precondition: &Precondition,
        cost: &Cost,
    ) -> Result<Redelivered, Error> {
        let webhook = self.webhook(&tenant.namespace, webhook).await?;
        let redelivered = |delivery, replayed, when| Redelivered {
            webhook: webhook.clone(),
            delivery,
            replayed,
            when,
        };
        let mut was_unfinished = false;
        for attempt in 1..=MAX_ATTEMPTS {
            let mut when = When::of(&webhook.webhook);
            let delivery = match self.delivery_of(tenant, &webhook.webhook, id, cost).await? {
                Found::Stored(delivery) => *delivery,
                Found::Logged(delivery) => {
                    precondition.check(&*delivery)?;
                    tenant.check_not_terminating()?;
                    let wanted = logged::keyed_request((*delivery).clone(), &webhook.webhook, request);
                    match self.calls.create(&tenant.namespace, &wanted).await {
                        Ok(created) => {
                            let delivery = logged::completed(created, *delivery);
                            return Ok(redelivered(delivery, false, when));
                        }
                        // Another request was faster.
                        Err(error) if error.is_conflict() => pause(attempt).await,
                        Err(error) => return Err(error.into()),
                    }
                    continue;
                }
            };
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

    /// The delivery with this id: the object, or else its entry in the event log. `not_found` if it does not belong to the webhook.
    async fn delivery_of(
        &self,
        tenant: &Tenant,
        webhook: &Webhook,
        id: Option<DeliveryId>,
        cost: &Cost,
    ) -> Result<Found, Error> {
        let unknown = || Error::no_such(WORD);
        let name = id.ok_or_else(unknown)?.name();
        if let Some(delivery) = self.stored_delivery(webhook, &name).await? {
            return Ok(Found::Stored(Box::new(delivery)));
        }
        let finding = async {
            let pages = self.pages(tenant, cost).await?;
            let found = pages.find(|index| logged_event(index, webhook.origin_uid(), &name));
            let (page, event) = found.await?.ok_or_else(unknown)?;
            let page = pages.get(&page).await?.ok_or_else(unknown)?;
            page.delivery_of(&event, webhook.origin_uid()).ok_or_else(unknown)
        };
        let delivery = tokio::time::timeout(DEADLINE, finding)
            .await
            .map_err(|_| too_slow())??;
        Ok(Found::Logged(Box::new(delivery)))
    }

    /// The Delivery with this name, if it belongs to the webhook. One that only requests sending a logged delivery again is shown as
    /// the controller will complete it; `None` if the log does not have that delivery.
    async fn stored_delivery(&self, webhook: &Webhook, name: &str) -> Result<Option<Delivery>, Error> {
        let delivery: Option<Delivery> = self.calls.get(webhook.namespace(), name).await?;
        let delivery = delivery.filter(|delivery| is_of(delivery, webhook) && !delivery.is_terminating());
        let Some(request) = delivery.as_ref().filter(|delivery| delivery.is_request()) else {
            return Ok(delivery);
        };
        let Some(page) = page_of(&request.metadata) else {
            return Ok(None);
        };
        let page: Option<EventLog> = {
            // Like everyone who reads pages, which are large. No caller holds such a permit yet: if requests needed two of them, they could
            // wait for each other.
            let reading = self.calls.long_read(webhook.namespace()).await?;
            let _turn = reading.turn().await?;
            self.calls.get(webhook.namespace(), page).await?
        };
        let logged = page.and_then(|page| page.delivery_of(&request.spec.event_id, webhook.origin_uid()));
        let logged = logged.filter(|logged| logged.name() == name);
        Ok(delivery
            .zip(logged)
            .map(|(request, logged)| logged::completed(request, logged)))
    }

    /// Reads these deliveries, without bodies, in this order. Leaves out those that were deleted or changed their status since.
    async fn read_all(
        &self,
        webhook: &Webhook,
        selection: Selection,
        shown: impl Iterator<Item = Shown>,
        cost: &Cost,
    ) -> Result<Vec<Delivery>, Error> {
        let reads =
            shown.map(async |shown| match shown {
                Shown::Logged(delivery) => Ok::<_, Error>(Some(*delivery)),
                Shown::Stored(name) => {
                    cost.add_object();
                    let delivery: Option<Delivery> = self.calls.get(webhook.namespace(), &name).await?;
                    let delivery = delivery.map(without_body);
                    Ok(delivery
                        .filter(|delivery| !delivery.is_terminating() && selection.has(delivery, webhook)))
                }
            });
        let read: Vec<_> = futures::stream::iter(reads)
            .buffered(READS_AT_ONCE)
            .try_collect()
            .await?;
        Ok(read.into_iter().flatten().collect())
    }

    /// Passes the metadata of all selected deliveries of a webhook to `see`, in any order.
    async fn each_key(
        &self,
        reading: &LongRead<'_>,
        webhook: &Webhook,
        selection: Selection,
        cost: &Cost,
        mut see: impl FnMut(ObjectMeta),
    ) -> Result<(), Error> {
        let mut pages = reading.pages::<Delivery>(selected(webhook, selection));
        while let Some((page, _turn)) = reading.page(&mut pages, Pages::next_metadata).await? {
            let metadata = page.items.into_iter().map(|object| object.metadata);
            metadata
                .filter(|metadata| selection.has_key(metadata, webhook))
                .for_each(&mut see);
            if pages.has_next() {
                cost.add_page();
            }
        }
        Ok(())
    }

    /// Passes all selected deliveries of a webhook to `see`, without bodies, in pages and in any order.
    async fn each_delivery(
        &self,
        reading: &LongRead<'_>,
        webhook: &Webhook,
        selection: Selection,
        cost: &Cost,
        mut see: impl FnMut(Vec<Delivery>),
    ) -> Result<(), Error> {
        // `DeserializeGuard`, so that one delivery that does not match the schema does not hide the others.
        let mut pages = reading.pages::<DeserializeGuard<Delivery>>(selected(webhook, selection).limit(100));
        while let Some((page, _turn)) = reading.page(&mut pages, Pages::next).await? {
            let readable = page.items.into_iter().filter_map(|object| object.0.ok());
            let selected =
                readable.filter(|delivery| !delivery.is_terminating() && selection.has(delivery, webhook));
            see(selected.map(without_body).collect());
            if pages.has_next() {
                cost.add_page();
            }
        }
        Ok(())
    }
}

/// The parameters to list the selected deliveries of a webhook.
fn selected(webhook: &Webhook, selection: Selection) -> ListParams {
    ListParams::default().labels(&selection.labels(webhook))
}

/// A delivery, and where it was found.
enum Found {
    Stored(Box<Delivery>),
    /// In the event log.
    Logged(Box<Delivery>),
}

/// A delivery on a page of a list.
enum Shown {
    /// A Delivery, by its name.
    Stored(String),
    /// In the event log.
    Logged(Box<Delivery>),
}

/// The Deliveries created from the event log, by the name of the page. They replace the entries on those pages.
#[derive(Default)]
struct Replaced(HashMap<String, HashSet<String>>);

impl Replaced {
    fn add(&mut self, metadata: &ObjectMeta) {
        if let Some(page) = page_of(metadata) {
            let names = self.0.entry(page.to_owned()).or_default();
            names.insert(metadata.name.clone().unwrap_or_default());
        }
    }

    /// The number of Deliveries created from a page. Account holders may claim that of any number of Deliveries, so the names are derived
    /// from the events of the page, and only once.
    fn count_in(&self, page: &str, index: &PageIndex, webhook_uid: &str) -> usize {
        let Some(names) = self.0.get(page) else {
            return 0;
        };
        if index.delivered_to(webhook_uid, None) == 0 {
            return 0;
        }
        let derived = index
            .event_ids()
            .map(|event| ids::delivery_name(webhook_uid, &event));
        derived.filter(|name| names.contains(name)).count()
    }

    fn has(&self, page: &EventLog, delivery: &str) -> bool {
        let names = self.0.get(page.name());
        names.is_some_and(|names| names.contains(delivery))
    }
}

/// The page that these deliveries are.
fn slice<T>(newest: Newest<T>) -> Slice<T> {
    let (found, has_more) = newest.finish();
    let last = found.last().map(|((_, name), _)| ids::delivery_id(name));
    Slice {
        items: found.into_iter().map(|(_, delivery)| delivery).collect(),
        next: last.filter(|_| has_more),
    }
}

fn without_body(mut delivery: Delivery) -> Delivery {
    delivery.spec.body = String::new();
    delivery.metadata.managed_fields = None;
    delivery
}

/// The error for a request that takes too long.
fn too_slow() -> Error {
    Error::unavailable("reading the deliveries took too long; try again")
}

/// A pending delivery, by number, as the API server stores it.
#[cfg(test)]
pub(crate) fn pending_delivery(number: usize) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "stellage.dev/v1", "kind": "Delivery",
        "metadata": {
            "namespace": "demo", "name": format!("dlv-{number:016}"), "uid": format!("d{number}"),
            "resourceVersion": "1", "labels": { "stellage.dev/webhook": "wh-abcdefgh01234567" },
            "ownerReferences": [{
                "apiVersion": "stellage.dev/v1", "kind": "Webhook", "name": "wh-abcdefgh01234567", "uid": "u",
            }],
        },
        "spec": {
            "webhook": "wh-abcdefgh01234567", "eventId": format!("evt_{number}"), "eventType": "instance.created",
            "eventCreatedAt": "2026-11-22T10:00:00Z", "subject": format!("instance-{number}"), "body": "{}",
        },
        "status": { "phase": "Pending" },
    })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use parking_lot::Mutex;
    use serde_json::Value;

    use super::*;
    use domain::event::EventType;
    use resources::{LoggedDelivery, LoggedEvent, event_log::LOGGED_IN_ANNOTATION};
    use runtime::testing::answered_by;

    fn event(number: u32) -> LoggedEvent {
        LoggedEvent {
            id: format!("evt_{number:0>16}"),
            event_type: EventType::InstanceStarted,
            created_at: "2026-11-22T10:00:00Z".parse().unwrap(),
            sequence: 1,
            subject: "i".to_owned(),
            body: "{}".to_owned(),
            traceparent: None,
            deliveries: vec![LoggedDelivery {
                webhook: "wh-abcdefgh01234567".to_owned(),
                webhook_uid: "u".to_owned(),
                attempt: serde_json::from_value(
                    json!({ "at": "2026-11-22T10:00:00Z", "durationMs": 1, "statusCode": 200 }),
                )
                .unwrap(),
            }],
        }
    }

    fn page_with(numbers: impl IntoIterator<Item = u32>) -> EventLog {
        let events = numbers.into_iter().map(event).collect();
        EventLog::page("demo", "uid", Timestamp::now(), events).unwrap()
    }

    /// The webhook that the events were delivered to.
    fn webhook() -> Value {
        json!({
            "metadata": { "namespace": "demo", "name": "wh-abcdefgh01234567", "uid": "u", "resourceVersion": "1" },
            "spec": { "url": "https://example.com", "events": ["instance.created"], "secretRef": { "name": "s" } },
        })
    }

    #[tokio::test]
    async fn for_a_request_to_send_again_its_page_is_read_as_others_are_in_the_accounts_turn() {
        let page = page_with([1]);
        let id = event(1).id;
        let logged = page.delivery_of(&id, "u").unwrap();
        let request = domain::delivery::logged_again(logged, &serde_json::from_value(webhook()).unwrap());
        let reads = Arc::new(Mutex::new(0));
        let counted = reads.clone();
        let client = answered_by(move |_, path, _| {
            let answer = if path.contains("/webhooks/") {
                (200, webhook())
            } else if path.contains("/eventlogs/") {
                *counted.lock() += 1;
                (200, json!(page))
            } else {
                (200, json!(request))
            };
            async move { answer }
        });
        let service = Service::with_client(client);
        service.show_demo_account();
        let tenant = service.credentials().account_named("demo").unwrap();
        let delivery = DeliveryId::parse(&ids::delivery_id(&ids::delivery_name("u", &id)));
        let cost = Cost::default();
        let held = [
            service.calls.long_read("demo").await.unwrap(),
            service.calls.long_read("demo").await.unwrap(),
        ];
        let reading = service.delivery(&tenant, WebhookId::of_suffix("abcdefgh01234567"), delivery, &cost);
        let watching = async {
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            assert_eq!(*reads.lock(), 0, "the account is reading twice already");
            drop(held);
        };
        let (read, ()) = tokio::join!(reading, watching);
        assert_eq!(read.unwrap().1.spec.body, "{}");
        assert_eq!(*reads.lock(), 1);
    }

    #[test]
    fn of_what_is_said_to_be_made_from_a_page_only_what_the_page_has_counts_and_once() {
        let page = page_with(1..=200);
        let index = PageIndex::read(&page.metadata).unwrap();
        let mut replaced = Replaced::default();
        let mut add = |name: String| {
            replaced.add(&ObjectMeta {
                name: Some(name),
                annotations: Some([(LOGGED_IN_ANNOTATION.to_owned(), page.name().to_owned())].into()),
                ..ObjectMeta::default()
            });
        };
        let name = |number: u32| ids::delivery_name("u", &event(number).id);
        for number in [7, 8, 7] {
            add(name(number));
        }
        for number in 0..1000 {
            add(format!("forged-{number}"));
        }
        let count = |page: &str, uid: &str| replaced.count_in(page, &index, uid);
        assert_eq!(count(page.name(), "u"), 2);
        assert_eq!((count("another", "u"), count(page.name(), "another")), (0, 0));
        assert!(replaced.has(&page, &name(8)) && !replaced.has(&page, &name(9)));
    }

    #[tokio::test]
    async fn the_event_log_is_listed_only_until_all_deliveries_asked_for_are_found() {
        let pages = [3, 2, 1].map(|number| page_with([number]));
        let lists = Arc::new(Mutex::new(0));
        let listed = lists.clone();
        let client = answered_by(move |_, path, _| {
            let unknown = json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404 });
            let answer = if path.contains("/webhooks/") {
                (200, webhook())
            } else if path.contains("/eventlogs?") {
                *listed.lock() += 1;
                let next: usize = path
                    .split_once("continue=")
                    .map_or(0, |(_, next)| next.parse().unwrap());
                let more = (next + 1 < pages.len()).then(|| (next + 1).to_string());
                let items = [json!({ "metadata": pages[next].metadata })];
                (200, json!({ "metadata": { "continue": more }, "items": items }))
            } else {
                let found = pages.iter().find(|page| path.ends_with(page.name()));
                found.map_or((404, unknown), |page| (200, json!(page)))
            };
            async move { answer }
        });
        let service = Service::with_client(client);
        service.show_demo_account();
        let tenant = service.credentials().account_named("demo").unwrap();
        let webhook = WebhookId::of_suffix("abcdefgh01234567");
        for (events, expected) in [(vec![3], 1), (vec![2, 3], 2), (vec![3, 4], 3)] {
            *lists.lock() = 0;
            let asked = events.iter().map(|number| event(*number).id).collect();
            let (cost, all) = (Cost::default(), Some(Selection::default()));
            let cursor = Cursor {
                after: None,
                limit: 20,
            };
            let found = service.list_deliveries(&tenant, webhook, all, Some(asked), cursor, &cost);
            let logged = events.iter().filter(|number| **number < 4).count();
            assert_eq!(found.await.unwrap().items.len(), logged);
            assert_eq!(*lists.lock(), expected, "{events:?}");
            assert_eq!(cost.requests(), expected - 1);
        }
    }
}
