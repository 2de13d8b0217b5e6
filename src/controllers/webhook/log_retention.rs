//! Deletes old pages of the event log, and those beyond the bounds of an account or of all together (decisions, section 8).

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

use super::{
    log_tally::{LogTally, Size},
    shared::Shared,
};
use crate::{
    resources::{EventLog, PageIndex},
    runtime::client::{CallError, bounded, next_page},
};

/// How often to check for accounts that have logged much.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// How often to prune all accounts.
const ROUND: Duration = Duration::from_secs(600);
/// Pause after a round that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
/// An account, or all together, may exceed a bound by this part of it between two prunings.
const SLACK: u64 = 10;
/// Pages on one page of a list.
const PAGE: u32 = 100;
/// Deletions at the same time: as fast as pages are written.
const CONCURRENCY: usize = 8;

impl Shared {
    /// Notes that a page has been written.
    pub(super) fn logged(&self, namespace: &str, events: u64, bytes: u64) {
        let tally = &mut self.state.lock().log_tally;
        let size = tally.by_namespace.entry(namespace.into()).or_default();
        *size = size.plus(Size { events, bytes });
        tally.bytes += bytes;
    }
}

/// The bounds.
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
pub(super) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
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
    let tally = &mut shared.state.lock().log_tally;
    if tally.bytes > bounds.total_bytes / SLACK {
        *tally = LogTally::default();
        return (Vec::new(), true);
    }
    let due = tally.by_namespace.extract_if(|_, size| size.exceeds(limit));
    (due.map(|(namespace, _)| namespace).collect(), false)
}

/// Has an account pruned at the next check.
fn again(shared: &Shared, namespace: &str, bounds: &Bounds) {
    shared.logged(namespace, bounds.account.events, 0);
}

/// Prunes all accounts, and those with most again if all together are over their bound.
async fn round(shared: &Shared, bounds: &Bounds) -> Result<(), CallError> {
    shared.state.lock().log_tally = LogTally::default();
    let kept = prune_in(
        shared,
        &Api::all(shared.deps.client.clone()),
        bounds,
        bounds.account,
    )
    .await?;
    let sizes: Vec<u64> = kept.values().map(|kept| kept.size.bytes).collect();
    let Some(level) = level(sizes, bounds.total_bytes) else {
        return Ok(());
    };
    tracing::warn!(
        level,
        "the event log has reached its bound; what accounts have logged beyond this many bytes is deleted, oldest first"
    );
    let limit = Size {
        bytes: level,
        ..bounds.account
    };
    let mut pruned = Ok(());
    for (namespace, _) in kept.iter().filter(|(_, kept)| kept.size.bytes > level) {
        pruned = pruned.and(prune(shared, namespace, bounds, limit).await);
    }
    pruned
}

/// The most that each account may have so that all together have no more than `total`; `None` if they have no more anyway.
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
    let api = Api::namespaced(shared.deps.client.clone(), namespace);
    prune_in(shared, &api, bounds, limit).await.map(drop)
}

/// Deletes the surplus pages. Returns what is kept of each account.
async fn prune_in(
    shared: &Shared,
    api: &Api<EventLog>,
    bounds: &Bounds,
    limit: Size,
) -> Result<HashMap<String, Kept>, CallError> {
    let mut kept: HashMap<String, Kept> = HashMap::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let list = bounded(api.list_metadata(&params)).await?;
        let has_more = next_page(&mut params, &list.metadata);
        // It has just answered, so its time is known.
        let since = shared.deps.server_time.since(bounds.age);
        let pages = list.items.into_iter().map(|page| page.metadata);
        let surplus: Vec<_> = pages
            .filter(|page| {
                is_surplus(page, &mut kept, limit, since) && {
                    let is_needed = is_needed(shared, page);
                    if is_needed {
                        // It goes once the event has left the outbox.
                        again(shared, page.namespace.as_deref().unwrap_or_default(), bounds);
                    }
                    !is_needed
                }
            })
            .filter_map(|page| Some((page.namespace?, page.name?)))
            .collect();
        futures::stream::iter(surplus)
            .for_each_concurrent(CONCURRENCY, async |(namespace, name)| {
                let api: Api<EventLog> = Api::namespaced(shared.deps.client.clone(), &namespace);
                // A failed deletion is repeated in the next round.
                if let Err(error) = bounded(api.delete(&name, &DeleteParams::default())).await
                    && !error.is_not_found()
                {
                    tracing::debug!(namespace, name, %error, "cannot delete a page of the event log");
                }
            })
            .await;
        if !has_more {
            return Ok(kept);
        }
    }
}

/// What is kept of an account.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    size: Size,
    /// Whether a page was beyond the limit, and so are all older ones.
    is_full: bool,
}

/// Whether a page is too old or beyond the limit; an account's newest page is never beyond it. Pages must come in the order of
/// their names, the newest first. One that is being deleted still takes room.
fn is_surplus(page: &ObjectMeta, kept: &mut HashMap<String, Kept>, limit: Size, since: Timestamp) -> bool {
    let size = PageIndex::read(page).map_or_else(Size::default, |index| Size {
        events: index.ids.len() as u64,
        bytes: index.bytes,
    });
    // Both times are the API server's: the clock of this leader or an earlier one may be wrong.
    let created = page.creation_timestamp.as_ref().map(|time| time.0);
    let is_old = created.is_some_and(|at| at < since);
    let kept = kept
        .entry(page.namespace.clone().unwrap_or_default())
        .or_default();
    let with_it = kept.size.plus(size);
    kept.is_full |= kept.size != Size::default() && with_it.exceeds(limit);
    let is_surplus = is_old || kept.is_full;
    if !is_surplus || page.deletion_timestamp.is_some() {
        kept.size = with_it;
    }
    is_surplus && page.deletion_timestamp.is_none()
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
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::resources::{EventType, LoggedEvent};

    fn page(namespace: &str, at: i64, events: usize) -> ObjectMeta {
        let at = Timestamp::from_second(at).unwrap();
        let event = |number| LoggedEvent {
            id: format!("evt_{at}-{number}"),
            event_type: EventType::InstanceStarted,
            created_at: at,
            sequence: 1,
            subject: "uid".to_owned(),
            body: "{}".to_owned(),
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
            .filter(|page| is_surplus(page, &mut kept, limit, since));
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
