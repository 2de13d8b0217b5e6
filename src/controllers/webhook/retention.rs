//! Clears finished Deliveries away: they are kept for a day, and at most a thousand of each webhook (decisions, section 5).

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use jiff::{SignedDuration, Timestamp};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
    core::PartialObjectMeta,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::hub::Hub;
use crate::{
    delivery::dispatch::LaneKey,
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
/// Deletions at the same time: clearing away is never in the way of anything.
const CONCURRENCY: usize = 4;

/// Runs until shutdown.
pub(super) async fn run(hub: Arc<Hub>, shutdown: CancellationToken) {
    let work = async {
        // What the leader before left is looked at first.
        let mut next_round = Instant::now();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let everybody = Instant::now() >= next_round;
            if everybody {
                next_round = Instant::now() + ROUND;
            }
            for lane in due(&hub, everybody) {
                if let Err(error) = clear(&hub, &lane).await {
                    tracing::warn!(webhook = %lane, %error, "finished deliveries cannot be cleared away; it will be tried again");
                }
            }
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

fn due(hub: &Hub, everybody: bool) -> Vec<LaneKey> {
    let mut state = hub.state.lock();
    let lanes: Vec<LaneKey> = state.webhooks.keys().cloned().collect();
    let has_many = |lane: &LaneKey| {
        let tally = state.dispatcher.tally(lane);
        tally.is_some_and(|(tally, ..)| tally.finished >= MANY)
    };
    let due: Vec<LaneKey> = lanes
        .into_iter()
        .filter(|lane| everybody || has_many(lane))
        .collect();
    for lane in &due {
        state.dispatcher.finished_counted(lane);
    }
    due
}

async fn clear(hub: &Hub, lane: &LaneKey) -> Result<(), CallError> {
    let (namespace, webhook) = lane.split_once('/').unwrap_or_default();
    let api: Api<Delivery> = Api::namespaced(hub.deps.client.clone(), namespace);
    let mut params = ListParams::default()
        .labels(&format!("{WEBHOOK_LABEL}={webhook},{FINISHED_LABEL}"))
        .limit(PAGE);
    let mut finished: Vec<(Timestamp, String)> = Vec::new();
    loop {
        let page = bounded(api.list_metadata(&params)).await?;
        let next = page.metadata.continue_.filter(|token| !token.is_empty());
        finished.extend(
            page.items
                .into_iter()
                .filter_map(|meta| Some((finished_at(&meta), meta.metadata.name?))),
        );
        match next {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    let settings = &hub.deps.settings;
    let kept = usize::try_from(settings.delivery_retention).unwrap_or(usize::MAX);
    let age = SignedDuration::from_hours(i64::from(settings.delivery_retention_hours));
    let names = surplus(finished, kept, age, hub.deps.clock.now());
    futures::stream::iter(names)
        .for_each_concurrent(CONCURRENCY, |name| {
            let api = api.clone();
            async move {
                // What fails is found again in the next round.
                if let Err(error) = bounded(api.delete(&name, &DeleteParams::default())).await
                    && !error.is_not_found()
                {
                    tracing::debug!(delivery = name, %error, "a finished delivery cannot be deleted");
                }
            }
        })
        .await;
    Ok(())
}

fn finished_at(meta: &PartialObjectMeta<Delivery>) -> Timestamp {
    let annotations = meta.metadata.annotations.as_ref();
    let told = annotations.and_then(|all| all.get(FINISHED_AT_ANNOTATION)?.parse().ok());
    told.or(meta.metadata.creation_timestamp.as_ref().map(|time| time.0))
        .unwrap_or(Timestamp::MAX)
}

/// The names of those that are too old, or too many.
fn surplus(
    mut finished: Vec<(Timestamp, String)>,
    kept: usize,
    age: SignedDuration,
    now: Timestamp,
) -> Vec<String> {
    finished.sort_by(|a, b| b.cmp(a));
    finished
        .into_iter()
        .enumerate()
        .filter(|(rank, (at, _))| *rank >= kept || now.duration_since(*at) > age)
        .map(|(_, (_, name))| name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_when_there_are_too_many_or_they_are_too_old() {
        let at = |hour: i64| Timestamp::from_second(hour * 3600).unwrap();
        let all: Vec<_> = (0..6).map(|hour| (at(hour), format!("d{hour}"))).collect();
        let day = SignedDuration::from_hours(24);
        assert_eq!(surplus(all.clone(), 4, day, at(6)), ["d1", "d0"]);
        assert_eq!(
            surplus(all, 100, SignedDuration::from_hours(3), at(6)),
            ["d2", "d1", "d0"]
        );
    }
}
