//! Deletes old pages of the event log, and what exceeds the limits per account or in total (decisions, section 8). The size limits
//! count pages and finished Deliveries together, and the oldest are deleted first. Also deletes finished Deliveries that have no owner.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::StreamExt as _;
use jiff::{SignedDuration, Timestamp};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
    core::ObjectMeta,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::tally::{LogTally, Size};
use crate::{
    delivery::finished::{self, Finished},
    webhook::shared::Shared,
};
use resources::{Delivery, EventLog, PageIndex, origin};
use runtime::client::{CallError, Pages, bounded};

/// How often to check for accounts that have logged a lot.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// How often to prune all accounts.
const ROUND: Duration = Duration::from_secs(600);
/// Pause after a round that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
/// Divisor of a bound: an account, or all accounts together, may exceed the bound by this fraction between
/// two prunings.
const SLACK: u64 = 10;
/// Maximum number of concurrent deletions, so that pages are deleted as fast as they are written.
const CONCURRENCY: usize = 8;

impl Shared {
    /// Notes that a page has been written.
    pub(crate) fn logged(&self, namespace: &str, events: u64, bytes: u64) {
        let tally = &mut self.log_tally.lock();
        let size = tally.by_namespace.entry(namespace.into()).or_default();
        *size = size.plus(Size { events, bytes });
        tally.bytes += bytes;
    }

    /// Notes that a finished Delivery has been written.
    pub(crate) fn finished(&self, delivery: &Delivery) {
        let namespace = delivery.metadata.namespace.as_deref().unwrap_or_default();
        self.logged(namespace, 0, delivery.bytes());
    }
}

/// The bounds of the event logs.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    age: SignedDuration,
    account: Size,
    total_bytes: u64,
}

impl Bounds {
    fn of(shared: &Shared) -> Self {
        const MEBIBYTE: u64 = 1 << 20;
        let settings = &shared.deps.settings;
        Self {
            age: SignedDuration::from_hours(i64::from(settings.delivery_retention_hours)),
            account: Size {
                events: settings.logged_events_per_account.into(),
                bytes: u64::from(settings.logged_mebibytes_per_account) * MEBIBYTE,
            },
            total_bytes: u64::from(settings.logged_mebibytes_in_all) * MEBIBYTE,
        }
    }
}

/// Runs until shutdown.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let work = async {
        let bounds = Bounds::of(&shared);
        let mut next_round = Instant::now();
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            let (due, is_full) = due(&shared, &bounds);
            let is_round = is_full || Instant::now() >= next_round;
            let pruned = if is_round {
                next_round = Instant::now() + ROUND;
                round(&shared, &bounds).await
            } else {
                let mut pruned = Ok(());
                for namespace in due {
                    let one = prune(&shared, &namespace, &bounds, bounds.account).await;
                    if one.is_err() {
                        again(&shared, &namespace, &bounds);
                    }
                    pruned = pruned.and(one);
                }
                pruned
            };
            if let Err(error) = pruned {
                if is_round {
                    next_round = Instant::now() + AFTER_FAILURE;
                }
                tracing::warn!(%error, "cannot delete old pages of the event log; will retry");
            }
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

/// The namespaces to prune now, and whether to prune all.
fn due(shared: &Shared, bounds: &Bounds) -> (Vec<Arc<str>>, bool) {
    let limit = Size {
        events: bounds.account.events / SLACK,
        bytes: bounds.account.bytes / SLACK,
    };
    let tally = &mut shared.log_tally.lock();
    if tally.bytes > bounds.total_bytes / SLACK {
        **tally = LogTally::default();
        return (Vec::new(), true);
    }
    let due = tally.by_namespace.extract_if(|_, size| size.exceeds(limit));
    (due.map(|(namespace, _)| namespace).collect(), false)
}

/// Schedules the pruning of an account for the next check.
fn again(shared: &Shared, namespace: &str, bounds: &Bounds) {
    shared.logged(namespace, bounds.account.events, 0);
}

/// Prunes all accounts. If together they are still over their bound, prunes the largest ones again.
async fn round(shared: &Shared, bounds: &Bounds) -> Result<(), CallError> {
    *shared.log_tally.lock() = LogTally::default();
    let kept = prune_pages(shared, None, bounds, bounds.account, Vec::new()).await?;
    let finished::All { mut sizes, unowned } = finished::all(&shared.deps.client).await?;
    for (namespace, unowned) in unowned {
        finished::delete(shared, &namespace, unowned).await;
    }
    for (namespace, kept) in kept {
        *sizes.entry(namespace).or_default() += kept.size.bytes;
    }
    let most = bounds.account.bytes;
    let bounded = sizes.values().map(|bytes| most.min(*bytes)).collect();
    let level = level(bounded, bounds.total_bytes);
    if let Some(level) = level {
        tracing::warn!(
            level,
            "the event log has reached its bound; what accounts have logged beyond this many bytes is deleted, oldest first"
        );
    }
    let limit = Size {
        bytes: level.unwrap_or(most),
        ..bounds.account
    };
    let mut pruned = Ok(());
    for (namespace, _) in sizes.iter().filter(|(_, bytes)| **bytes > limit.bytes) {
        pruned = pruned.and(prune(shared, namespace, bounds, limit).await);
    }
    pruned
}

/// The maximum size of each account at which all together stay within `total`; `None` if they do so anyway.
fn level(mut sizes: Vec<u64>, total: u64) -> Option<u64> {
    sizes.sort_unstable();
    let mut left = total;
    let mut others = sizes.len() as u64;
    for size in sizes {
        if size > left / others {
            return Some(left / others);
        }
        left -= size;
        others -= 1;
    }
    None
}

async fn prune(shared: &Shared, namespace: &str, bounds: &Bounds, limit: Size) -> Result<(), CallError> {
    let finished = finished::list(&shared.deps.client, namespace, "").await?;
    prune_pages(shared, Some(namespace), bounds, limit, finished)
        .await
        .map(drop)
}

/// Deletes the surplus pages of a namespace and the surplus of its finished Deliveries, which must be sorted newest first; or
/// the surplus pages of all namespaces. Returns what is kept of each account.
async fn prune_pages(
    shared: &Shared,
    namespace: Option<&str>,
    bounds: &Bounds,
    limit: Size,
    finished: Vec<Finished>,
) -> Result<HashMap<String, Kept>, CallError> {
    let client = shared.deps.client.clone();
    let api: Api<EventLog> = match namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let mut kept: HashMap<String, Kept> = HashMap::new();
    let mut finished = finished.into_iter().peekable();
    let mut surplus_deliveries = Vec::new();
    let mut pages = Pages::of(api, ListParams::default());
    while let Some(list) = pages.next_metadata().await? {
        // The API server has just answered, so its time is known.
        let since = shared.deps.server_time.since(bounds.age);
        let listed = list.items.into_iter().map(|page| page.metadata);
        let surplus: Vec<_> = listed
            .filter(|page| {
                let newer = std::iter::from_fn(|| finished.next_if(|delivery| !is_older(delivery, page)));
                surplus_deliveries.extend(beyond(newer, of_page(&mut kept, page), limit));
                let Some(surplus) = surplus(page, &mut kept, limit, since) else {
                    return false;
                };
                if !is_needed(shared, page) {
                    return true;
                }
                // The page is deleted once the event has left the outbox. If it is only old, the next round will do.
                if surplus == Surplus::Excess {
                    again(shared, page.namespace.as_deref().unwrap_or_default(), bounds);
                }
                false
            })
            .filter_map(|page| Some((page.namespace?, page.name?)))
            .collect();
        futures::stream::iter(surplus)
            .for_each_concurrent(CONCURRENCY, async |(namespace, name)| {
                let api: Api<EventLog> = Api::namespaced(shared.deps.client.clone(), &namespace);
                // A failed deletion is retried in the next round.
                if let Err(error) = bounded(api.delete(&name, &DeleteParams::default())).await
                    && !error.is_not_found()
                {
                    tracing::debug!(namespace, name, %error, "cannot delete a page of the event log");
                }
            })
            .await;
    }
    if let Some(namespace) = namespace {
        let kept = kept.entry(namespace.to_owned()).or_default();
        surplus_deliveries.extend(beyond(finished, kept, limit));
        finished::delete(shared, namespace, surplus_deliveries).await;
    }
    Ok(kept)
}

/// What is kept of an account.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    size: Size,
    /// Whether a page exceeded the limit, and therefore all older ones do.
    is_full: bool,
    /// Whether the limit in bytes has been reached, so that older deliveries exceed it, too.
    is_too_large: bool,
}

impl Kept {
    /// Whether something of this size, older than what is kept, exceeds the limit. The newest never does.
    fn is_beyond(&mut self, size: Size, limit: Size) -> bool {
        let with_it = self.size.plus(size);
        self.is_too_large |= self.size != Size::default() && with_it.bytes > limit.bytes;
        self.is_full |= self.is_too_large || self.size.events > 0 && with_it.events > limit.events;
        self.is_full
    }
}

fn of_page<'a>(kept: &'a mut HashMap<String, Kept>, page: &ObjectMeta) -> &'a mut Kept {
    kept.entry(page.namespace.clone().unwrap_or_default())
        .or_default()
}

/// Whether a delivery was finished before a page was created.
fn is_older(delivery: &Finished, page: &ObjectMeta) -> bool {
    origin::created_at(page).is_some_and(|created| delivery.at < created)
}

/// The deliveries that exceed the limit in bytes. They must be sorted newest first and be older than everything kept so far.
fn beyond(deliveries: impl Iterator<Item = Finished>, kept: &mut Kept, limit: Size) -> Vec<Finished> {
    let mut surplus = Vec::new();
    for delivery in deliveries {
        let size = Size {
            events: 0,
            bytes: delivery.bytes,
        };
        kept.is_beyond(size, limit);
        if kept.is_too_large {
            surplus.push(delivery);
        } else {
            kept.size = kept.size.plus(size);
        }
    }
    surplus
}

/// Why a page is to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Surplus {
    /// It exceeds the limit.
    Excess,
    /// It is too old.
    Old,
}

/// Why a page is to be deleted, if it is. An account's newest page never exceeds the limit. Pages must be passed in the order of their
/// names, newest first. A page that is being deleted still takes up room.
fn surplus(
    page: &ObjectMeta,
    kept: &mut HashMap<String, Kept>,
    limit: Size,
    since: Timestamp,
) -> Option<Surplus> {
    let size = PageIndex::read(page).map_or_else(Size::default, |index| Size {
        events: index.ids.len() as u64,
        bytes: index.bytes,
    });
    // Both times are the API server's: the clock of this leader, or of an earlier one, may be wrong.
    let is_old = origin::created_at(page).is_some_and(|at| at < since);
    let kept = of_page(kept, page);
    let surplus = if kept.is_beyond(size, limit) {
        Some(Surplus::Excess)
    } else {
        is_old.then_some(Surplus::Old)
    };
    let is_deleting = page.deletion_timestamp.is_some();
    if surplus.is_none() || is_deleting {
        kept.size = kept.size.plus(size);
    }
    surplus.filter(|_| !is_deleting)
}

/// Whether an event of a page is still in an outbox: without the page, a new leader would log and send it again.
fn is_needed(shared: &Shared, page: &ObjectMeta) -> bool {
    let Some(index) = PageIndex::read(page) else {
        return false;
    };
    let dispatcher = &shared.state.lock().dispatcher;
    index.event_ids().any(|id| dispatcher.knows(&id))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, Method, header::DATE};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;
    use crate::webhook::{Deps, WebhookController, tests::deps};
    use domain::{delivery::Origin, event::OutboxVersion};
    use resources::{EventType, LoggedEvent};
    use runtime::{Clock, testing::answered_by};

    const NOON: &str = "2026-11-22T12:00:00Z";

    /// An operator's clock that is a day ahead.
    struct Tomorrow;

    impl Clock for Tomorrow {
        fn now(&self) -> Timestamp {
            NOON.parse::<Timestamp>().unwrap() + SignedDuration::from_hours(25)
        }
    }

    fn hours_ago(hours: i64) -> Time {
        Time(NOON.parse::<Timestamp>().unwrap() - SignedDuration::from_hours(hours))
    }

    fn stored_page(namespace: &str, hours: i64) -> ObjectMeta {
        page(namespace, hours_ago(hours).0.as_second(), 1)
    }

    fn stored_delivery(namespace: &str, hours: i64, bytes: u64) -> ObjectMeta {
        let delivery = json!({
            "namespace": namespace, "name": format!("dlv-{hours}"), "uid": "d", "resourceVersion": "1",
            "creationTimestamp": hours_ago(hours), "annotations": { "stellage.dev/bytes": bytes.to_string() },
            "ownerReferences": [{ "apiVersion": "stellage.dev/v1", "kind": "Webhook", "name": "w", "uid": "u" }],
        });
        serde_json::from_value(delivery).unwrap()
    }

    /// Returns which of the stored objects a round deletes, for a controller with these flags.
    async fn deleted_by_a_round(
        flags: &[&str],
        pages: Vec<ObjectMeta>,
        deliveries: Vec<ObjectMeta>,
    ) -> Vec<String> {
        a_round(flags, pages, deliveries, None).await.0
    }

    /// Returns which of the stored objects a round deletes, and which accounts are to be pruned again soon, for a controller with
    /// these flags while the `unsent` event is in an outbox. The API server's time is noon.
    async fn a_round(
        flags: &[&str],
        mut pages: Vec<ObjectMeta>,
        deliveries: Vec<ObjectMeta>,
        unsent: Option<&str>,
    ) -> (Vec<String>, Vec<Arc<str>>) {
        pages.sort_by_key(|page| (page.namespace.clone(), page.name.clone()));
        let names: HashMap<String, String> = pages
            .iter()
            .map(|page| {
                let hours = (NOON.parse::<Timestamp>().unwrap()
                    - page.creation_timestamp.as_ref().unwrap().0)
                    .get_seconds()
                    / 3600;
                (page.name.clone().unwrap(), format!("page-{hours}"))
            })
            .collect();
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let log = deleted.clone();
        let client = answered_by(move |method, path, _| {
            let path = path.split('?').next().unwrap_or_default().to_owned();
            let mut words = path.rsplit('/');
            let answer = if method == Method::DELETE {
                let name = words.next().unwrap_or_default().to_owned();
                let namespace = words.nth(1).unwrap_or_default();
                let name = names.get(&name).cloned().unwrap_or(name);
                log.lock().push(format!("{namespace}/{name}"));
                json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" })
            } else {
                let stored = if path.ends_with("/eventlogs") {
                    &pages
                } else {
                    &deliveries
                };
                let of = |object: &&ObjectMeta| {
                    !path.contains("/namespaces/")
                        || path.contains(&format!(
                            "/namespaces/{}/",
                            object.namespace.as_deref().unwrap_or_default()
                        ))
                };
                let items: Vec<Value> = stored
                    .iter()
                    .filter(of)
                    .map(|metadata| json!({ "metadata": metadata }))
                    .collect();
                json!({ "metadata": {}, "items": items })
            };
            async move { (200, answer) }
        });
        let deps = Deps {
            client,
            clock: Arc::new(Tomorrow),
            ..deps(flags)
        };
        let date = HeaderValue::from_static("Sun, 22 Nov 2026 12:00:00 GMT");
        deps.server_time.answered(&HeaderMap::from_iter([(DATE, date)]));
        let shared = WebhookController::new(deps).shared;
        if let Some(id) = unsent {
            let entry = json!({
                "id": id, "type": "instance.started", "sequence": 1, "createdAt": NOON, "body": "{}",
            });
            let outbox = OutboxVersion {
                kind: "Instance",
                account_namespace: "a",
                namespace: "a",
                name: "i",
                uid: "i",
                revision: 1,
                is_deleting: false,
                entries: &[serde_json::from_value(entry).unwrap()],
            };
            let now = shared.now();
            let dispatcher = &mut shared.state.lock().dispatcher;
            dispatcher.outbox_seen(&outbox, Origin::Found, now);
        }
        let bounds = Bounds::of(&shared);
        round(&shared, &bounds).await.unwrap();
        let mut deleted = std::mem::take(&mut *deleted.lock());
        deleted.sort();
        (deleted, due(&shared, &bounds).0)
    }

    #[tokio::test]
    async fn a_leader_whose_clock_is_a_day_ahead_deletes_only_what_is_old() {
        let pages = vec![stored_page("a", 1), stored_page("a", 23), stored_page("a", 25)];
        assert_eq!(deleted_by_a_round(&[], pages, Vec::new()).await, ["a/page-25"]);
    }

    #[tokio::test]
    async fn a_page_is_kept_while_one_of_its_events_is_in_an_outbox() {
        let event_of = |page: &ObjectMeta| PageIndex::read(page).unwrap().event_ids().next().unwrap();
        let excess = ["--logged-events-per-account=1"];
        for (flags, hours, is_due_again) in [(&[][..], 25, false), (&excess, 2, true)] {
            let pages = vec![stored_page("a", 1), stored_page("a", hours)];
            let unsent = event_of(&pages[1]);
            let (deleted, due) = a_round(flags, pages.clone(), Vec::new(), Some(&unsent)).await;
            assert!(deleted.is_empty(), "{deleted:?}");
            // One that is only old can wait for the next round.
            assert_eq!(due == [Arc::from("a")], is_due_again);
            let (deleted, due) = a_round(flags, pages, Vec::new(), Some("evt_of-another-page")).await;
            assert_eq!(deleted, [format!("a/page-{hours}")]);
            assert!(due.is_empty());
        }
    }

    #[tokio::test]
    async fn pages_and_finished_deliveries_of_an_account_share_its_bytes_and_the_oldest_go() {
        let pages = || vec![stored_page("a", 1), stored_page("a", 6), stored_page("b", 6)];
        let deliveries = || {
            (2..6)
                .map(|hours| stored_delivery("a", hours, 400 << 10))
                .collect()
        };
        let flags = ["--logged-mebibytes-per-account=1"];
        let deleted = deleted_by_a_round(&flags, pages(), deliveries()).await;
        assert_eq!(deleted, ["a/dlv-4", "a/dlv-5", "a/page-6"]);
        // All accounts together exceed the bound: the largest account is pruned.
        let flags = ["--logged-mebibytes-in-all=1"];
        assert_eq!(deleted_by_a_round(&flags, pages(), deliveries()).await, deleted);
        assert!(deleted_by_a_round(&[], pages(), deliveries()).await.is_empty());
    }

    #[tokio::test]
    async fn finished_deliveries_without_an_owner_go() {
        let mut unowned = stored_delivery("a", 2, 10);
        unowned.owner_references = None;
        let deliveries = vec![stored_delivery("a", 1, 10), unowned, stored_delivery("b", 2, 10)];
        assert_eq!(deleted_by_a_round(&[], Vec::new(), deliveries).await, ["a/dlv-2"]);
    }

    #[test]
    fn deliveries_do_not_count_as_events() {
        let mut kept = Kept::default();
        let limit = Size {
            events: 10,
            bytes: 1000,
        };
        assert!(
            !kept.is_beyond(
                Size {
                    events: 11,
                    bytes: 10
                },
                limit
            ),
            "the newest"
        );
        kept.size = Size {
            events: 11,
            bytes: 10,
        };
        assert!(kept.is_beyond(Size { events: 1, bytes: 10 }, limit));
        let delivery = Finished::of(stored_delivery("a", 1, 900)).unwrap();
        assert!(beyond([delivery.clone()].into_iter(), &mut kept, limit).is_empty());
        assert_eq!(beyond([delivery].into_iter(), &mut kept, limit).len(), 1);
    }

    fn page(namespace: &str, at: i64, events: usize) -> ObjectMeta {
        let at = Timestamp::from_second(at).unwrap();
        let event = |number| LoggedEvent {
            id: format!("evt_{at}-{number}"),
            event_type: EventType::InstanceStarted,
            created_at: at,
            sequence: 1,
            subject: "uid".to_owned(),
            body: "{}".to_owned(),
            traceparent: None,
            deliveries: Vec::new(),
        };
        let page = EventLog::page(namespace, "uid", at, (0..events).map(event).collect());
        let mut metadata = page.unwrap().metadata;
        metadata.creation_timestamp = Some(Time(at));
        metadata
    }

    fn deleted(mut pages: Vec<ObjectMeta>, limit: Size, since: i64) -> Vec<(String, i64)> {
        pages.sort_by_key(|page| (page.namespace.clone(), page.name.clone()));
        let mut kept = HashMap::new();
        let since = Timestamp::from_second(since).unwrap();
        let deleted = pages
            .into_iter()
            .filter(|page| surplus(page, &mut kept, limit, since).is_some());
        let times = deleted.map(|page| {
            let at = page.creation_timestamp.unwrap().0.as_second();
            (page.namespace.unwrap(), at)
        });
        times.collect()
    }

    #[test]
    fn of_each_account_the_oldest_pages_go_when_there_are_too_many_events_or_they_are_too_old() {
        let pages = || {
            let a = (0..5).map(|n| page("a", 1_800_000_000 + n, 10));
            a.chain([page("b", 1_800_000_000, 30)]).collect()
        };
        let limit = |events, bytes| Size { events, bytes };
        let of = |namespace: &str, times: &[i64]| -> Vec<(String, i64)> {
            times
                .iter()
                .map(|at| (namespace.to_owned(), 1_800_000_000 + at))
                .collect()
        };
        assert_eq!(deleted(pages(), limit(1000, u64::MAX), 0), []);
        assert_eq!(deleted(pages(), limit(30, u64::MAX), 0), of("a", &[1, 0]));
        let old = [of("a", &[2, 1, 0]), of("b", &[0])].concat();
        assert_eq!(deleted(pages(), limit(1000, u64::MAX), 1_800_000_003), old);
        assert_eq!(deleted(pages(), limit(5, u64::MAX), 0), of("a", &[3, 2, 1, 0]));
        let bytes = PageIndex::read(&page("a", 1_800_000_000, 10)).unwrap().bytes;
        assert_eq!(deleted(pages(), limit(1000, 4 * bytes), 0), of("a", &[0]));
    }

    #[test]
    fn where_one_page_goes_all_older_ones_go() {
        let pages = vec![
            page("a", 1_800_000_003, 8),
            page("a", 1_800_000_002, 5),
            page("a", 1_800_000_001, 1),
        ];
        let limit = Size {
            events: 10,
            bytes: u64::MAX,
        };
        let names: Vec<_> = deleted(pages, limit, 0).into_iter().map(|(_, at)| at).collect();
        assert_eq!(names, [1_800_000_002, 1_800_000_001]);
    }

    #[test]
    fn a_page_that_somebody_keeps_from_going_still_takes_room() {
        let mut stuck = page("a", 1_800_000_001, 8);
        stuck.deletion_timestamp.clone_from(&stuck.creation_timestamp);
        let pages = vec![page("a", 1_800_000_002, 1), stuck, page("a", 1_800_000_000, 3)];
        let limit = Size {
            events: 10,
            bytes: u64::MAX,
        };
        assert_eq!(deleted(pages, limit, 0), [("a".to_owned(), 1_800_000_000)]);
    }

    #[test]
    fn when_all_have_too_much_the_accounts_with_most_give() {
        assert_eq!(level(vec![10, 20, 30], 60), None);
        assert_eq!(level(vec![], 0), None);
        assert_eq!(level(vec![50, 10, 20], 60), Some(30));
        assert_eq!(level(vec![50, 50, 1], 41), Some(20));
        assert_eq!(level(vec![5, 5], 0), Some(0));
    }
}
