//! Reads the pages of an account's event log: the metadata of all, and the contents of individual pages.

use std::{cmp::Reverse, ops::ControlFlow};

use futures::{Stream, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use kube::api::ListParams;

use super::newest::{Newest, Position};
use crate::service::{
    cost::Cost,
    credentials::Tenant,
    error::Error,
    store::{ApiCalls, LongRead},
};
use domain::event::Period;
use resources::{
    EventLog, PageIndex,
    event_log::{CLOCKS_DIFFER, written_at},
    origin,
};
use runtime::client;

/// Pages whose contents are in memory at the same time. Each has at most 1.5 MiB.
const READS_AT_ONCE: usize = 4;

/// The pages of an account, readable only with a permit to read many objects: a list of pages takes some MiB, and so do the
/// contents of a few.
pub struct Pages<'a> {
    calls: &'a ApiCalls,
    namespace: &'a str,
    account: &'a str,
    /// Older ones are not shown.
    since: Timestamp,
    cost: &'a Cost,
    reading: LongRead<'a>,
}

/// A page as lists show it.
pub struct ListedPage {
    pub name: String,
    /// When it was written, by the API server's clock.
    created: Option<Timestamp>,
    /// What its metadata says of its contents.
    pub index: PageIndex,
}

impl ListedPage {
    /// Whether this page and those listed after it were written before everything that happened at `since` or later.
    pub fn is_before(&self, since: Timestamp) -> bool {
        let since = since.saturating_sub(CLOCKS_DIFFER).unwrap_or(Timestamp::MIN);
        [written_at(&self.name), self.created]
            .iter()
            .all(|at| at.is_some_and(|at| at < since))
    }
}

/// A page that may have events to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected {
    name: String,
    /// When the latest of its events happened.
    to: Timestamp,
}

impl<'a> Pages<'a> {
    /// The pages of an account that were written at `since` or later; older ones may still exist, since the operator deletes them only
    /// every few minutes. Waits for a permit to read the pages.
    pub async fn of(
        calls: &'a ApiCalls,
        tenant: &'a Tenant,
        since: Timestamp,
        cost: &'a Cost,
    ) -> Result<Self, Error> {
        Self::open(calls, &tenant.namespace, &tenant.uid, since, cost).await
    }

    async fn open(
        calls: &'a ApiCalls,
        namespace: &'a str,
        account: &'a str,
        since: Timestamp,
        cost: &'a Cost,
    ) -> Result<Self, Error> {
        Ok(Self {
            calls,
            namespace,
            account,
            since,
            cost,
            reading: calls.long_read(namespace).await?,
        })
    }

    /// The permit to read the pages.
    pub fn reading(&self) -> &LongRead<'a> {
        &self.reading
    }

    /// Passes the pages to `see`, newest first by the time they were written, until it breaks.
    pub async fn each(&self, mut see: impl FnMut(ListedPage) -> ControlFlow<()>) -> Result<(), Error> {
        let mut pages = self.reading.pages::<EventLog>(ListParams::default());
        while let Some((list, _turn)) = self
            .reading
            .page(&mut pages, client::Pages::next_metadata)
            .await?
        {
            for object in list.items {
                // By the API server's clock, like the operator when it deletes them.
                let created = origin::created_at(&object.metadata);
                if created.is_some_and(|created| created < self.since) {
                    continue;
                }
                let index = PageIndex::read(&object.metadata);
                // Whoever restored the namespace may have put pages of another account there.
                let index = index.filter(|index| index.account == self.account);
                if let Some((name, index)) = object.metadata.name.zip(index)
                    && see(ListedPage { name, created, index }).is_break()
                {
                    return Ok(());
                }
            }
            if pages.has_next() {
                self.cost.add_page();
            }
        }
        Ok(())
    }

    /// The name of the newest page for whose index `wanted` returns something, and what it returns.
    pub async fn find<T>(
        &self,
        mut wanted: impl FnMut(&PageIndex) -> Option<T>,
    ) -> Result<Option<(String, T)>, Error> {
        let mut found = None;
        let see = |page: ListedPage| match wanted(&page.index) {
            Some(it) => {
                found = Some((page.name, it));
                ControlFlow::Break(())
            }
            None => ControlFlow::Continue(()),
        };
        self.each(see).await?;
        Ok(found)
    }

    /// The contents of a page; `None` if it has been deleted.
    pub async fn get(&self, name: &str) -> Result<Option<EventLog>, Error> {
        let _turn = self.reading.turn().await?;
        self.read_one(name).await
    }

    async fn read_one(&self, name: &str) -> Result<Option<EventLog>, Error> {
        self.cost.add_object();
        let page: Option<EventLog> = self.calls.get(self.namespace, name).await?;
        Ok(page.filter(|page| page.spec.account == self.account))
    }

    /// The contents of pages, in this order, a few of them read concurrently; `None` for each that has been deleted.
    pub fn read(
        &self,
        names: impl IntoIterator<Item = String>,
    ) -> impl Stream<Item = Result<Option<EventLog>, Error>> {
        futures::stream::iter(names)
            .chunks(READS_AT_ONCE)
            .then(async |names| {
                let _turn = self.reading.turn().await?;
                let pages = names.iter().map(|name| self.read_one(name));
                let pages = futures::future::try_join_all(pages).await?;
                Ok::<_, Error>(futures::stream::iter(pages.into_iter().map(Ok)))
            })
            .try_flatten()
    }

    /// The pages that may have some of the newest items of a period. `count` tells from a page's name and index how many items it
    /// has: exactly, or at most. If exactly, older pages are not listed once there are enough.
    pub async fn select<T>(
        &self,
        newest: &Newest<T>,
        period: Period,
        is_exact: bool,
        count: impl Fn(&str, &PageIndex) -> usize,
    ) -> Result<Vec<Selected>, Error> {
        let mut selected = Vec::new();
        let (mut counted, mut earliest) = (0, Timestamp::MAX);
        // Nothing older is needed.
        let mut oldest = period.since;
        let see = |page: ListedPage| {
            if oldest.is_some_and(|oldest| page.is_before(oldest)) {
                return ControlFlow::Break(());
            }
            let (from, to) = (page.index.from, page.index.to);
            if !period.overlaps(from, to) || !newest.may_follow(from) {
                return ControlFlow::Continue(());
            }
            let count = count(&page.name, &page.index);
            if count == 0 {
                return ControlFlow::Continue(());
            }
            if is_exact
                && counted <= newest.limit()
                && period.has(from)
                && period.has(to)
                && newest.follows(to)
            {
                counted += count;
                earliest = earliest.min(from);
                if counted > newest.limit() {
                    oldest = oldest.max(Some(earliest));
                }
            }
            selected.push(Selected { name: page.name, to });
            ControlFlow::Continue(())
        };
        self.each(see).await?;
        Ok(selected)
    }

    /// Adds the items of pages to the newest, as long as they may be among them. `items` selects them.
    pub async fn merge<T>(
        &self,
        mut pages: Vec<Selected>,
        newest: &mut Newest<T>,
        mut items: impl FnMut(EventLog) -> Vec<(Position, T)>,
    ) -> Result<(), Error> {
        pages.sort_by_key(|page| Reverse(page.to));
        let latest: Vec<_> = pages.iter().map(|page| page.to).collect();
        let read = self.read(pages.into_iter().map(|page| page.name));
        let mut read = std::pin::pin!(read);
        for latest in latest {
            if !newest.may_have(latest) {
                break;
            }
            let page = read.try_next().await?.flatten();
            for (position, item) in page.map(&mut items).unwrap_or_default() {
                newest.add(position, item);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use kube::Client;
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tokio::sync::Semaphore;

    use super::*;
    use crate::service::events::position;
    use domain::event::EventType;
    use resources::LoggedEvent;
    use runtime::testing::answered_by;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn page(account: &str, seconds: &[i64]) -> EventLog {
        let events = seconds.iter().map(|second| LoggedEvent {
            id: format!("evt_{second:0>16}"),
            event_type: EventType::InstanceStarted,
            created_at: at(*second),
            sequence: 1,
            subject: "u".to_owned(),
            body: second.to_string(),
            traceparent: None,
            deliveries: Vec::new(),
        });
        let written = at(seconds.iter().max().unwrap() + 2);
        let mut page = EventLog::page("demo", account, written, events.collect()).unwrap();
        page.metadata.creation_timestamp = Some(Time(at(100)));
        page
    }

    /// An API server with these pages, one per answer to a list, and the paths of the requests that it receives. A page with an
    /// event of second 0 is listed, but is gone when it is read.
    fn server(pages: Vec<EventLog>) -> (Client, Arc<Mutex<Vec<String>>>) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let requests = seen.clone();
        let client = answered_by(move |_, path, _| {
            let (path, query) = path.split_once('?').unwrap_or((&path, ""));
            requests
                .lock()
                .push(path.rsplit('/').next().unwrap_or_default().to_owned());
            let answer = if path.ends_with("/eventlogs") {
                let of = |pair: &str| pair.strip_prefix("continue=").and_then(|n| n.parse().ok());
                let index: usize = query.split('&').find_map(of).unwrap_or(0);
                let next = (index + 1 < pages.len()).then(|| (index + 1).to_string());
                let page = pages.get(index).map(|page| json!({ "metadata": page.metadata }));
                let items: Vec<Value> = page.into_iter().collect();
                (200, json!({ "metadata": { "continue": next }, "items": items }))
            } else {
                let named = |page: &&EventLog| path.ends_with(page.metadata.name.as_deref().unwrap());
                let found = pages.iter().find(named).filter(|page| page.spec.from > at(0));
                let gone = json!({ "status": "Failure", "code": 404, "reason": "NotFound", "message": "" });
                found.map_or((404, gone), |page| (200, json!(page)))
            };
            async move { answer }
        });
        (client, seen)
    }

    async fn pages_through<'a>(calls: &'a ApiCalls, cost: &'a Cost) -> Pages<'a> {
        Pages::open(calls, "demo", "u", at(100), cost).await.unwrap()
    }

    #[tokio::test]
    async fn the_pages_of_the_account_are_listed_until_the_one_looked_for() {
        let (client, requests) = server(vec![
            page("u", &[30]),
            page("former", &[20]),
            page("u", &[10, 12]),
        ]);
        let calls = ApiCalls::new(client, 4);
        let cost = Cost::default();
        let pages = pages_through(&calls, &cost).await;
        let listed = async |last: i64| {
            let mut listed = Vec::new();
            let see = |page: ListedPage| {
                listed.push(page.index.to.as_second());
                if page.index.to == at(last) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            pages.each(see).await.unwrap();
            listed
        };
        assert_eq!(listed(30).await, [30]);
        assert_eq!(cost.requests(), 0);
        assert_eq!(listed(0).await, [30, 12]);
        // Two more pages of the list had to be read.
        assert_eq!(cost.requests(), 2);
        assert_eq!(requests.lock().len(), 1 + 3);
    }

    #[tokio::test]
    async fn an_account_reads_few_pages_at_once_however_many_requests_it_makes() {
        let reads = Arc::new(Semaphore::new(0));
        let at_once = Arc::new(Mutex::new((0_usize, 0_usize)));
        let (gate, counted) = (reads.clone(), at_once.clone());
        let client = answered_by(move |_, _, _| {
            let (gate, counted) = (gate.clone(), counted.clone());
            async move {
                {
                    let (now, most) = &mut *counted.lock();
                    *now += 1;
                    *most = (*most).max(*now);
                }
                gate.acquire().await.unwrap().forget();
                counted.lock().0 -= 1;
                let metadata = page("u", &[10]).metadata;
                (
                    200,
                    json!({ "metadata": {}, "items": [{ "metadata": metadata }] }),
                )
            }
        });
        let calls = ApiCalls::new(client, 128);
        let finding = (0..20).map(async |_| {
            let cost = Cost::default();
            let pages = pages_through(&calls, &cost).await;
            pages.find(|index| index.has("evt_unknown").then_some(())).await
        });
        let answering = async {
            // All requests that are let through arrive before the first is answered.
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            reads.add_permits(20);
        };
        let (found, ()) = tokio::join!(futures::future::join_all(finding), answering);
        assert!(found.iter().all(|found| found == &Ok(None)));
        let (_, most) = *at_once.lock();
        assert_eq!(most, 2);
    }

    #[tokio::test]
    async fn another_account_reads_between_two_pages_of_those_that_read_many() {
        let gate = Arc::new(Semaphore::new(0));
        let (lists, opens) = (Arc::new(Mutex::new(0)), gate.clone());
        let counted = lists.clone();
        let client = answered_by(move |_, _, _| {
            let (opens, counted) = (opens.clone(), counted.clone());
            async move {
                *counted.lock() += 1;
                opens.acquire().await.unwrap().forget();
                (200, json!({ "metadata": { "continue": "more" }, "items": [] }))
            }
        });
        let calls = ApiCalls::new(client, 128);
        let cost = Cost::default();
        let names: Vec<_> = (0..16).map(|number| format!("account-{}", number / 2)).collect();
        let reads = names.iter().map(async |name| {
            let pages = Pages::open(&calls, name, "u", at(100), &cost).await.unwrap();
            pages.each(|_| ControlFlow::Continue(())).await
        });
        let other = async {
            while *lists.lock() < names.len() {
                tokio::task::yield_now().await;
            }
            let reading = calls.long_read("other").await.unwrap();
            let turn = reading.turn();
            gate.add_permits(1);
            assert!(turn.await.is_ok());
        };
        tokio::select! {
            _ = futures::future::join_all(reads) => panic!("they never end"),
            () = other => {}
        }
    }

    #[tokio::test]
    async fn a_page_whose_time_is_over_is_neither_listed_nor_found_although_it_is_still_there() {
        let mut over = page("u", &[20]);
        over.metadata.creation_timestamp = Some(Time(at(99)));
        let (client, _) = server(vec![page("u", &[30]), over, page("u", &[10])]);
        let calls = ApiCalls::new(client, 4);
        let cost = Cost::default();
        let pages = pages_through(&calls, &cost).await;
        let mut listed = Vec::new();
        let see = |page: ListedPage| {
            listed.push(page.index.to.as_second());
            ControlFlow::Continue(())
        };
        pages.each(see).await.unwrap();
        assert_eq!(listed, [30, 10], "by the time of writing, not of the events");
        let is_there = async |second: i64| {
            let id = format!("evt_{second:0>16}");
            let found = pages.find(|index| index.has(&id).then_some(())).await;
            found.unwrap().is_some()
        };
        assert_eq!((is_there(10).await, is_there(20).await), (true, false));
    }

    #[tokio::test]
    async fn pages_are_merged_as_they_are_read_and_one_that_is_gone_is_skipped() {
        // Not in the order of their times.
        let all = vec![
            page("u", &[11, 17]),
            page("u", &[0, 13]),
            page("u", &[10, 15, 16]),
            page("u", &[14, 18]),
        ];
        let (client, requests) = server(all.clone());
        let calls = ApiCalls::new(client, 4);
        let selected = all.iter().map(|page| Selected {
            name: page.metadata.name.clone().unwrap(),
            to: page.spec.to,
        });
        let mut newest = Newest::of(4, None);
        let cost = Cost::default();
        let pages = pages_through(&calls, &cost).await;
        pages.merge(selected.collect(), &mut newest, items).await.unwrap();
        let (shown, has_more) = newest.finish();
        let shown: Vec<_> = shown.into_iter().map(|(_, body)| body).collect();
        assert_eq!(shown, ["18", "17", "16", "15"]);
        assert!(has_more);
        assert_eq!((requests.lock().len(), cost.requests()), (4, 0));
        let names = all.iter().filter_map(|page| page.metadata.name.clone());
        let read = pages.read(names.cycle().take(11));
        assert_eq!(read.count().await, 11);
        assert_eq!(cost.requests(), 3, "five of them cost as much as a request");
    }

    /// The items of a page.
    fn items(page: EventLog) -> Vec<(Position, String)> {
        let events = page.spec.events.into_iter();
        events.map(|event| (position(&event), event.body)).collect()
    }

    #[tokio::test]
    async fn a_list_is_read_no_further_than_what_is_shown_and_its_pages_lead_to_the_last_event() {
        let written: Vec<_> = (0..40)
            .rev()
            .map(|n| page("u", &[n * 1000 + 1, n * 1000 + 2]))
            .collect();
        let all: Vec<_> = written
            .iter()
            .flat_map(|page| page.spec.events.iter().rev())
            .map(|event| event.body.clone())
            .collect();
        let (client, requests) = server(written);
        let calls = ApiCalls::new(client, 4);
        let cost = Cost::default();
        let pages = pages_through(&calls, &cost).await;
        let (mut after, mut shown) = (None, Vec::new());
        loop {
            let mut newest = Newest::of(3, after);
            let count = |_: &str, index: &PageIndex| index.count(None);
            let selected = pages
                .select(&newest, Period::default(), true, count)
                .await
                .unwrap();
            pages.merge(selected, &mut newest, items).await.unwrap();
            if shown.is_empty() {
                let lists = requests.lock().iter().filter(|path| *path == "eventlogs").count();
                assert_eq!(
                    lists, 3,
                    "two pages with what is shown, and the one that shows that it is enough"
                );
                assert_eq!(requests.lock().len(), 3 + 2);
            }
            let (items, has_more) = newest.finish();
            after = items.last().map(|(position, _)| position.clone());
            shown.extend(items.into_iter().map(|(_, body)| body));
            if !has_more {
                break;
            }
        }
        assert_eq!(shown, all);
    }
}
