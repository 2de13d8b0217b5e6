//! Deletes old finished Deliveries: they are kept for a day, and at most a thousand per webhook (decisions, section 5). `log_retention`
//! limits their total size per account. Also deletes unfinished Deliveries that nobody will ever send, because no limit counts them: those
//! that have no owner, and test events for an unknown webhook.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::StreamExt as _;
use jiff::{SignedDuration, Timestamp};
use kube::Api;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    finished::{self, Finished},
    store,
};
use crate::webhook::shared::{AT_ONCE, Shared};
use domain::delivery::{JobKey, WebhookKey};
use resources::{Delivery, delivery::WEBHOOK_LABEL};
use runtime::client::CallError;

/// How often to check for webhooks with too many finished deliveries.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// How often to prune every webhook.
const ROUND: Duration = Duration::from_secs(600);
/// A webhook with this many newly finished deliveries is pruned at the next check.
const MANY: u64 = 100;
/// A webhook that exceeds its limit with fewer is pruned this long after its last pruning.
const PAUSE: Duration = Duration::from_secs(30);
/// Number of webhooks pruned, or of unfinished deliveries deleted, at the same time.
const CONCURRENCY: usize = 4;
/// How many batches of [`AT_ONCE`] unfinished deliveries without a known webhook each check examines, to see whether they will
/// ever be sent.
const LOOKS: usize = 8;
/// Minimum age at which a test event without a known webhook is deleted: its webhook may just not be known yet.
const LOST_AFTER: SignedDuration = SignedDuration::from_mins(5);

/// Runs until shutdown.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let work = async {
        // Start with a round, to prune what the previous leader left behind.
        let mut next_round = Instant::now();
        let mut pruned: HashMap<WebhookKey, Pruned> = HashMap::new();
        let mut looked_at = None;
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
            looked_at = delete_stray(&shared, looked_at).await;
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
        // Drop the entries of deleted webhooks.
        pruned.clear();
    }
    due
}

/// Whether to prune a webhook: `finished` deliveries have finished since its last pruning, which was this long `ago` and
/// `left` that many; `kept` is the limit.
fn is_due(finished: u64, left: u64, ago: Duration, kept: u64) -> bool {
    finished >= MANY || ago >= PAUSE && left.saturating_add(finished) > kept
}

/// Deletes the surplus deliveries of a webhook. Returns how many finished ones are left.
async fn prune(shared: &Shared, webhook_key: &WebhookKey) -> Result<u64, CallError> {
    let (namespace, webhook) = webhook_key.split_once('/').unwrap_or_default();
    let labels = format!(",{WEBHOOK_LABEL}={webhook}");
    let finished = finished::list(&shared.deps.client, namespace, &labels).await?;
    let settings = &shared.deps.settings;
    let kept = usize::try_from(settings.delivery_retention).unwrap_or(usize::MAX);
    let age = SignedDuration::from_hours(i64::from(settings.delivery_retention_hours));
    let count = finished.len();
    // The API server has just answered, so its time is known. Ours may be wrong.
    let surplus = surplus(finished, kept, shared.deps.server_time.since(age));
    let deleted = finished::delete(shared, namespace, surplus).await;
    Ok(u64::try_from(count.saturating_sub(deleted)).unwrap_or(u64::MAX))
}

/// The deliveries that finished before `since` or exceed the limit. `finished` must be sorted, most recent first.
fn surplus(finished: Vec<Finished>, kept: usize, since: Timestamp) -> Vec<Finished> {
    finished
        .into_iter()
        .enumerate()
        .filter(|(rank, delivery)| *rank >= kept || delivery.at < since)
        .map(|(_, delivery)| delivery)
        .collect()
}

/// Among the next unfinished deliveries after `last`, deletes those that will never be sent. Returns where to continue, or `None`
/// to start over.
async fn delete_stray(shared: &Shared, mut last: Option<JobKey>) -> Option<JobKey> {
    let since = shared.deps.server_time.since(LOST_AFTER);
    let mut stray: Vec<Arc<Delivery>> = Vec::new();
    for _ in 0..LOOKS {
        let dispatcher = &shared.state.lock().dispatcher;
        let keys = dispatcher.orphans_after(last.as_ref(), AT_ONCE);
        let of_nobody = |key: &JobKey| {
            let unowned = dispatcher.unowned(key);
            unowned.or_else(|| dispatcher.lost_test(key, since))
        };
        stray.extend(keys.iter().filter_map(of_nobody).cloned());
        last = keys.last().cloned();
        if last.is_none() {
            break;
        }
    }
    futures::stream::iter(stray)
        .for_each_concurrent(CONCURRENCY, async |delivery| {
            let namespace = delivery.metadata.namespace.as_deref().unwrap_or_default();
            let api: Api<Delivery> = Api::namespaced(shared.deps.client.clone(), namespace);
            // A failed deletion is retried after all others have been examined.
            if let Err(error) = store::delete(&api, &delivery, None).await {
                tracing::debug!(namespace, delivery = delivery.metadata.name, %error, "cannot delete a delivery that nobody will ever send");
            }
        })
        .await;
    last
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, Method, header::DATE};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;
    use crate::webhook::{Deps, WebhookController, tests::deps};
    use runtime::testing::answered_by;

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
        let delivery = |hour: i64| {
            let metadata = ObjectMeta {
                name: Some(format!("d{hour}")),
                creation_timestamp: Some(Time(Timestamp::from_second(hour * 3600).unwrap())),
                ..ObjectMeta::default()
            };
            Finished::of(metadata).unwrap()
        };
        let all: Vec<_> = (0..6).rev().map(delivery).collect();
        let surplus = |kept, hour: i64| {
            let since = Timestamp::from_second(hour * 3600).unwrap();
            let names = surplus(all.clone(), kept, since).into_iter().map(|it| it.name);
            names.collect::<Vec<_>>()
        };
        assert_eq!(surplus(4, 0), ["d1", "d0"]);
        assert_eq!(surplus(100, 3), ["d2", "d1", "d0"]);
    }

    /// An unfinished Delivery for an unknown webhook.
    fn stray(name: &str, test: bool, owner: Option<Value>, created: &str) -> Arc<Delivery> {
        let delivery = json!({
            "metadata": {
                "namespace": "ns", "name": name, "uid": name, "resourceVersion": "7", "creationTimestamp": created,
                "ownerReferences": Vec::from_iter(owner),
            },
            "spec": {
                "webhook": "nope", "eventId": format!("evt_{name}"), "eventType": "instance.created",
                "eventCreatedAt": created, "body": "", "test": test,
            },
            "status": { "phase": "Pending" },
        });
        Arc::new(serde_json::from_value(delivery).unwrap())
    }

    #[tokio::test]
    async fn what_nobody_will_ever_send_is_deleted_and_what_is_owed_to_an_unknown_webhook_stays() {
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let log = deleted.clone();
        let client = answered_by(move |method, path, _| {
            assert_eq!(method, Method::DELETE);
            let path = path.split('?').next().unwrap_or_default();
            log.lock()
                .push(path.rsplit('/').next().unwrap_or_default().to_owned());
            let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 200 });
            async move { (200, status) }
        });
        let shared = WebhookController::new(Deps { client, ..deps(&[]) }).shared;
        let (long_ago, just_now) = ("1994-11-06T08:40:00Z", "1994-11-06T08:48:00Z");
        let webhook = || {
            Some(json!({ "apiVersion": "stellage.dev/v1", "kind": "Webhook", "name": "hook", "uid": "u" }))
        };
        for delivery in [
            stray("unowned", false, None, just_now),
            stray("lost", true, webhook(), long_ago),
            stray("new", true, webhook(), just_now),
            stray("owed", false, webhook(), long_ago),
        ] {
            let now = shared.now();
            shared.state.lock().dispatcher.delivery_seen(delivery, false, now);
        }
        let delete = async || {
            assert_eq!(delete_stray(&shared, None).await, None);
            let mut deleted = std::mem::take(&mut *deleted.lock());
            deleted.sort();
            deleted
        };
        assert_eq!(delete().await, ["unowned"], "the time is not known yet");
        let told = HeaderValue::from_static("Sun, 06 Nov 1994 08:49:37 GMT");
        shared
            .deps
            .server_time
            .answered(&HeaderMap::from_iter([(DATE, told)]));
        assert_eq!(delete().await, ["lost", "unowned"]);
    }
}
