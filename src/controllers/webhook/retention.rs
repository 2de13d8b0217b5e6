//! Clears finished Deliveries away: they are kept for a day, and at most a thousand of each webhook (decisions, section 5).

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::StreamExt as _;
use jiff::{SignedDuration, Timestamp};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Preconditions},
    core::PartialObjectMeta,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::hub::Hub;
use crate::{
    delivery::dispatch::{LaneKey, key},
    resources::{
        Delivery,
        delivery::{FINISHED_AT_ANNOTATION, FINISHED_LABEL, WEBHOOK_LABEL},
    },
    runtime::client::{CallError, bounded},
};

/// How often it is looked for webhooks with much that is finished.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Every webhook has its turn this often.
const ROUND: Duration = Duration::from_secs(600);
/// With so many new ones a webhook has its turn at once.
const MANY: u64 = 100;
/// Objects on one page of a list.
const PAGE: u32 = 500;
/// Webhooks cleared at the same time, and deletions for each of them.
const CONCURRENCY: usize = 4;

/// Runs until shutdown.
pub(super) async fn run(hub: Arc<Hub>, shutdown: CancellationToken) {
    let work = async {
        // What the leader before left is looked at first.
        let mut next_round = Instant::now();
        let mut again: HashSet<LaneKey> = HashSet::new();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let everybody = Instant::now() >= next_round;
            if everybody {
                next_round = Instant::now() + ROUND;
            }
            let due = due(&hub, everybody, &std::mem::take(&mut again));
            let cleared = futures::stream::iter(due).map(|lane| {
                let hub = hub.clone();
                async move {
                    let is_done = clear(&hub, &lane).await.unwrap_or_else(|error| {
                        tracing::warn!(webhook = %lane, %error, "finished deliveries cannot be cleared away; it will be tried again");
                        false
                    });
                    (!is_done).then_some(lane)
                }
            });
            again = cleared
                .buffer_unordered(CONCURRENCY)
                .filter_map(std::future::ready)
                .collect()
                .await;
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

fn due(hub: &Hub, everybody: bool, again: &HashSet<LaneKey>) -> Vec<LaneKey> {
    let mut state = hub.state.lock();
    let lanes: Vec<LaneKey> = state.webhooks.keys().cloned().collect();
    let has_many = |lane: &LaneKey| {
        let tally = state.dispatcher.tally(lane);
        tally.is_some_and(|(tally, ..)| tally.finished >= MANY)
    };
    let due: Vec<LaneKey> = lanes
        .into_iter()
        .filter(|lane| everybody || again.contains(lane) || has_many(lane))
        .collect();
    for lane in &due {
        state.dispatcher.finished_counted(lane);
    }
    due
}

/// Returns whether nothing has to wait for a later turn.
async fn clear(hub: &Hub, lane: &LaneKey) -> Result<bool, CallError> {
    let (namespace, webhook) = lane.split_once('/').unwrap_or_default();
    let api: Api<Delivery> = Api::namespaced(hub.deps.client.clone(), namespace);
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
    let settings = &hub.deps.settings;
    let kept = usize::try_from(settings.delivery_retention).unwrap_or(usize::MAX);
    let age = SignedDuration::from_hours(i64::from(settings.delivery_retention_hours));
    let mut surplus = surplus(finished, kept, age, hub.deps.clock.now());
    // What is in an outbox still would be sent again by a leader that does not find it logged.
    let in_use = hub.state.lock().dispatcher.made_of_outboxes(namespace);
    let before = surplus.len();
    surplus.retain(|(_, name)| !in_use.contains(&key(namespace, name)));
    let is_done = surplus.len() == before;
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
    Ok(is_done)
}

fn finished_at(meta: &PartialObjectMeta<Delivery>) -> Timestamp {
    let annotations = meta.metadata.annotations.as_ref();
    let told = annotations.and_then(|all| all.get(FINISHED_AT_ANNOTATION)?.parse().ok());
    told.or(meta.metadata.creation_timestamp.as_ref().map(|time| time.0))
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
