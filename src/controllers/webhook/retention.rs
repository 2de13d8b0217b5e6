//! Deletes old finished Deliveries: they are kept for a day, and at most a thousand per webhook (decisions, section 5).

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::StreamExt as _;
use jiff::{SignedDuration, Timestamp};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Preconditions},
    core::ObjectMeta,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::shared::Shared;
use crate::{
    delivery::dispatch::{WebhookKey, key},
    resources::{
        Delivery,
        delivery::{self, FINISHED_LABEL, WEBHOOK_LABEL},
    },
    runtime::client::{CallError, bounded, next_page},
};

/// How often to check for webhooks with too many finished deliveries.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// How often to prune every webhook.
const ROUND: Duration = Duration::from_secs(600);
/// A webhook with this many newly finished deliveries is pruned at the next check.
const MANY: u64 = 100;
/// A webhook that is over its limit by fewer is pruned this long after its last pruning.
const PAUSE: Duration = Duration::from_secs(30);
/// Objects on one page of a list.
const PAGE: u32 = 500;
/// Webhooks pruned at the same time, and deletions at the same time for each of them.
const CONCURRENCY: usize = 4;

/// Runs until shutdown.
pub(super) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let work = async {
        // Begin with a round, to prune what the previous leader left behind.
        let mut next_round = Instant::now();
        let mut pruned: HashMap<WebhookKey, Pruned> = HashMap::new();
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            let all = Instant::now() >= next_round;
            if all {
                next_round = Instant::now() + ROUND;
            }
            let due = futures::stream::iter(due(&shared, all, &mut pruned));
            let left = due.map(|key| {
                let shared = shared.clone();
                async move {
                    let left = prune(&shared, &key).await.unwrap_or_else(|error| {
                        tracing::warn!(webhook = %key, %error, "cannot delete finished deliveries; will retry");
                        u64::MAX
                    });
                    (key, Pruned { left, at: Instant::now() })
                }
            });
            pruned.extend(left.buffer_unordered(CONCURRENCY).collect::<Vec<_>>().await);
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

/// When a webhook was last pruned, and how many finished deliveries were left.
struct Pruned {
    left: u64,
    at: Instant,
}

/// The webhooks to prune now, or all of them.
fn due(shared: &Shared, all: bool, pruned: &mut HashMap<WebhookKey, Pruned>) -> Vec<WebhookKey> {
    let kept = u64::from(shared.deps.settings.delivery_retention);
    let mut due = Vec::new();
    shared.for_each_webhook(|state, key| {
        let tally = state.dispatcher.tally(key);
        let finished = tally.map_or(0, |(tally, ..)| tally.finished);
        let (left, ago) = pruned
            .get(key)
            .map_or((0, Duration::MAX), |pruned| (pruned.left, pruned.at.elapsed()));
        if all || is_due(finished, left, ago, kept) {
            state.dispatcher.finished_counted(key);
            due.push(key.clone());
        }
    });
    if all {
        // Those of deleted webhooks are forgotten.
        pruned.clear();
    }
    due
}

/// Whether to prune a webhook. `finished` deliveries have finished since its last pruning, which was this long `ago` and had
/// `left` of them; `kept` is the limit.
fn is_due(finished: u64, left: u64, ago: Duration, kept: u64) -> bool {
    finished >= MANY || ago >= PAUSE && left.saturating_add(finished) > kept
}

/// Deletes the surplus deliveries of a webhook. Returns how many finished ones are left.
async fn prune(shared: &Shared, webhook_key: &WebhookKey) -> Result<u64, CallError> {
    let (namespace, webhook) = webhook_key.split_once('/').unwrap_or_default();
    let api: Api<Delivery> = Api::namespaced(shared.deps.client.clone(), namespace);
    let mut params = ListParams::default()
        .labels(&format!("{WEBHOOK_LABEL}={webhook},{FINISHED_LABEL}"))
        .limit(PAGE);
    let mut finished: Vec<(Timestamp, Preconditions, String)> = Vec::new();
    loop {
        let page = bounded(api.list_metadata(&params)).await?;
        let has_more = next_page(&mut params, &page.metadata);
        finished.extend(page.items.into_iter().filter_map(|meta| {
            // Delete only the listed version: the delivery may have been sent again since.
            let exactly = Preconditions {
                uid: meta.metadata.uid.clone(),
                resource_version: meta.metadata.resource_version.clone(),
            };
            Some((finished_at(&meta.metadata), exactly, meta.metadata.name?))
        }));
        if !has_more {
            break;
        }
    }
    let settings = &shared.deps.settings;
    let kept = usize::try_from(settings.delivery_retention).unwrap_or(usize::MAX);
    let age = SignedDuration::from_hours(i64::from(settings.delivery_retention_hours));
    let count = finished.len();
    // It has just answered, so its time is known. Ours may be wrong.
    let mut surplus = surplus(finished, kept, shared.deps.server_time.since(age));
    // Keep records of events that are still in an outbox: without them, a new leader would send those events again.
    surplus.retain(|(_, name)| {
        let key = key(namespace, name);
        !shared.state.lock().dispatcher.is_in_outbox(&key)
    });
    let left = u64::try_from(count.saturating_sub(surplus.len())).unwrap_or(u64::MAX);
    futures::stream::iter(surplus)
        .for_each_concurrent(CONCURRENCY, |(exactly, name)| {
            let api = api.clone();
            async move {
                let params = DeleteParams {
                    preconditions: Some(exactly),
                    ..DeleteParams::default()
                };
                // A failed deletion is repeated in the next round.
                if let Err(error) = bounded(api.delete(&name, &params)).await
                    && !error.is_not_found()
                    && !error.is_conflict()
                {
                    tracing::debug!(delivery = name, %error, "cannot delete a finished delivery");
                }
            }
        })
        .await;
    Ok(left)
}

/// When a delivery was finished: certainly not before its creation, of which the API server wrote down the time.
fn finished_at(metadata: &ObjectMeta) -> Timestamp {
    let created = metadata.creation_timestamp.as_ref().map(|time| time.0);
    delivery::finished_at(metadata)
        .max(created)
        .unwrap_or(Timestamp::MAX)
}

/// The deliveries that were finished before `since`, or are beyond the limit.
fn surplus<P>(
    mut finished: Vec<(Timestamp, P, String)>,
    kept: usize,
    since: Timestamp,
) -> Vec<(P, String)> {
    finished.sort_by(|(a, _, a_name), (b, _, b_name)| (b, b_name).cmp(&(a, a_name)));
    finished
        .into_iter()
        .enumerate()
        .filter(|(rank, (at, ..))| *rank >= kept || *at < since)
        .map(|(_, (_, exactly, name))| (exactly, name))
        .collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::resources::delivery::FINISHED_AT_ANNOTATION;

    #[test]
    fn a_webhook_is_pruned_at_once_after_many_deliveries_and_after_a_pause_if_it_is_over_its_limit() {
        let soon = Duration::from_secs(1);
        assert!(is_due(MANY, 0, soon, 1000));
        assert!(!is_due(1, 1000, soon, 1000));
        assert!(is_due(1, 1000, PAUSE, 1000));
        assert!(!is_due(1, 999, PAUSE, 1000));
        // The last pruning failed.
        assert!(is_due(0, u64::MAX, PAUSE, 1000));
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_or_they_are_too_old() {
        let at = |hour: i64| Timestamp::from_second(hour * 3600).unwrap();
        let all: Vec<_> = (0..6).map(|hour| (at(hour), (), format!("d{hour}"))).collect();
        let surplus = |kept, hour| {
            let names = surplus(all.clone(), kept, at(hour))
                .into_iter()
                .map(|((), name)| name);
            names.collect::<Vec<_>>()
        };
        assert_eq!(surplus(4, 0), ["d1", "d0"]);
        assert_eq!(surplus(100, 3), ["d2", "d1", "d0"]);
    }

    #[test]
    fn a_delivery_is_no_older_than_its_object_although_the_clock_that_wrote_it_was_wrong() {
        let finished = |at: Option<&str>| {
            let mut metadata = ObjectMeta {
                creation_timestamp: Some(Time("2026-11-22T10:00:00Z".parse().unwrap())),
                ..ObjectMeta::default()
            };
            let at = at.map(|at| (FINISHED_AT_ANNOTATION.to_owned(), at.to_owned()));
            metadata.annotations = Some(at.into_iter().collect());
            finished_at(&metadata).to_string()
        };
        assert_eq!(finished(Some("2026-11-22T18:00:00Z")), "2026-11-22T18:00:00Z");
        for wrong in [Some("2026-11-20T10:00:00Z"), Some("now"), None] {
            assert_eq!(finished(wrong), "2026-11-22T10:00:00Z");
        }
    }
}
