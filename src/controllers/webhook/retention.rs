//! Clears finished Deliveries away: they are kept for a day, and at most a thousand of each webhook (decisions, section 5).

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::StreamExt as _;
use jiff::{SignedDuration, Timestamp};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Preconditions},
    core::PartialObjectMeta,
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
    runtime::client::{CallError, bounded},
};

/// How often it is looked for webhooks with much that is finished.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Every webhook has its turn this often.
const ROUND: Duration = Duration::from_secs(600);
/// With so many new ones a webhook has its turn at once; with fewer too many, after this pause.
const MANY: u64 = 100;
const FEW_AFTER: Duration = Duration::from_secs(30);
/// Objects on one page of a list.
const PAGE: u32 = 500;
/// Webhooks cleared at the same time, and deletions for each of them.
const CONCURRENCY: usize = 4;

/// Runs until shutdown.
pub(super) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let work = async {
        // What the leader before left is looked at first.
        let mut next_round = Instant::now();
        let mut cleared: HashMap<WebhookKey, Cleared> = HashMap::new();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let everybody = Instant::now() >= next_round;
            if everybody {
                next_round = Instant::now() + ROUND;
            }
            let due = futures::stream::iter(due(&shared, everybody, &mut cleared));
            let left = due.map(|key| {
                let shared = shared.clone();
                async move {
                    let left = clear(&shared, &key).await.unwrap_or_else(|error| {
                        tracing::warn!(webhook = %key, %error, "finished deliveries cannot be cleared away; it will be tried again");
                        u64::MAX
                    });
                    (key, Cleared { left, at: Instant::now() })
                }
            });
            cleared.extend(left.buffer_unordered(CONCURRENCY).collect::<Vec<_>>().await);
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

/// When a webhook had its turn, and how many were left.
struct Cleared {
    left: u64,
    at: Instant,
}

fn due(shared: &Shared, everybody: bool, cleared: &mut HashMap<WebhookKey, Cleared>) -> Vec<WebhookKey> {
    let kept = u64::from(shared.deps.settings.delivery_retention);
    let mut state = shared.state.lock();
    cleared.retain(|key, _| state.webhooks.contains_key(key));
    let has_too_many = |key: &WebhookKey| {
        let tally = state.dispatcher.tally(key);
        let finished = tally.map_or(0, |(tally, ..)| tally.finished);
        let (left, ago) = cleared
            .get(key)
            .map_or((0, Duration::MAX), |cleared| (cleared.left, cleared.at.elapsed()));
        is_due(finished, left, ago, kept)
    };
    let keys = state.webhooks.keys();
    let due: Vec<WebhookKey> = keys
        .filter(|key| everybody || has_too_many(key))
        .cloned()
        .collect();
    for key in &due {
        state.dispatcher.finished_counted(key);
    }
    due
}

/// Whether a webhook has too many: so many are finished since its last turn, which was so long `ago` and had so many `left`.
fn is_due(finished: u64, left: u64, ago: Duration, kept: u64) -> bool {
    finished >= MANY || ago >= FEW_AFTER && left.saturating_add(finished) > kept
}

/// Returns how many are left.
async fn clear(shared: &Shared, webhook_key: &WebhookKey) -> Result<u64, CallError> {
    let (namespace, webhook) = webhook_key.split_once('/').unwrap_or_default();
    let api: Api<Delivery> = Api::namespaced(shared.deps.client.clone(), namespace);
    let mut params = ListParams::default()
        .labels(&format!("{WEBHOOK_LABEL}={webhook},{FINISHED_LABEL}"))
        .limit(PAGE);
    let mut finished: Vec<(Timestamp, Preconditions, String)> = Vec::new();
    loop {
        let page = bounded(api.list_metadata(&params)).await?;
        let next = page.metadata.continue_.filter(|token| !token.is_empty());
        finished.extend(page.items.into_iter().filter_map(|meta| {
            // Only as it was listed: it may be sent again meanwhile.
            let exactly = Preconditions {
                uid: meta.metadata.uid.clone(),
                resource_version: meta.metadata.resource_version.clone(),
            };
            Some((finished_at(&meta), exactly, meta.metadata.name?))
        }));
        match next {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    let settings = &shared.deps.settings;
    let kept = usize::try_from(settings.delivery_retention).unwrap_or(usize::MAX);
    let age = SignedDuration::from_hours(i64::from(settings.delivery_retention_hours));
    let count = finished.len();
    let mut surplus = surplus(finished, kept, age, shared.deps.clock.now());
    // What is in an outbox still would be sent again by a leader that does not find it logged.
    let in_use = shared.state.lock().dispatcher.made_of_outboxes(namespace);
    surplus.retain(|(_, name)| !in_use.contains(&key(namespace, name)));
    let left = u64::try_from(count.saturating_sub(surplus.len())).unwrap_or(u64::MAX);
    futures::stream::iter(surplus)
        .for_each_concurrent(CONCURRENCY, |(exactly, name)| {
            let api = api.clone();
            async move {
                let params = DeleteParams {
                    preconditions: Some(exactly),
                    ..DeleteParams::default()
                };
                // What fails is found again in the next round.
                if let Err(error) = bounded(api.delete(&name, &params)).await
                    && !error.is_not_found()
                    && !error.is_conflict()
                {
                    tracing::debug!(delivery = name, %error, "a finished delivery cannot be deleted");
                }
            }
        })
        .await;
    Ok(left)
}

fn finished_at(meta: &PartialObjectMeta<Delivery>) -> Timestamp {
    delivery::finished_at(&meta.metadata)
        .or(meta.metadata.creation_timestamp.as_ref().map(|time| time.0))
        .unwrap_or(Timestamp::MAX)
}

/// Those that are too old, or too many.
fn surplus<P>(
    mut finished: Vec<(Timestamp, P, String)>,
    kept: usize,
    age: SignedDuration,
    now: Timestamp,
) -> Vec<(P, String)> {
    finished.sort_by(|(a, _, a_name), (b, _, b_name)| (b, b_name).cmp(&(a, a_name)));
    finished
        .into_iter()
        .enumerate()
        .filter(|(rank, (at, ..))| *rank >= kept || now.duration_since(*at) > age)
        .map(|(_, (_, exactly, name))| (exactly, name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_has_its_turn_when_it_has_many_at_once_and_few_too_many_after_a_pause() {
        let soon = Duration::from_secs(1);
        assert!(is_due(MANY, 0, soon, 1000));
        assert!(!is_due(1, 1000, soon, 1000));
        assert!(is_due(1, 1000, FEW_AFTER, 1000));
        assert!(!is_due(1, 999, FEW_AFTER, 1000));
        // What could not be cleared away.
        assert!(is_due(0, u64::MAX, FEW_AFTER, 1000));
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_or_they_are_too_old() {
        let at = |hour: i64| Timestamp::from_second(hour * 3600).unwrap();
        let all: Vec<_> = (0..6).map(|hour| (at(hour), (), format!("d{hour}"))).collect();
        let surplus = |kept, hours| {
            let age = SignedDuration::from_hours(hours);
            let names = surplus(all.clone(), kept, age, at(6))
                .into_iter()
                .map(|((), name)| name);
            names.collect::<Vec<_>>()
        };
        assert_eq!(surplus(4, 24), ["d1", "d0"]);
        assert_eq!(surplus(100, 3), ["d2", "d1", "d0"]);
    }
}
