//! Keeps the status of Webhooks: looks at those that something has happened to, and writes what is due.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;

use super::{
    apply::{release, write},
    shared::{AT_ONCE, Shared},
    status_queue::When,
};
use domain::{
    delivery::{Disablement, WebhookKey},
    webhook::urgency,
};
use resources::{Webhook, WebhookStatus};
use runtime::{events::Events, metrics::LimitLabels};

/// How often to check for counters to write.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Statuses written at the same time.
const WRITES: usize = 8;
/// How long the last writes may take at shutdown.
const FINISH: Duration = Duration::from_secs(3);
/// Changes within this window are written together.
const GATHER: Duration = Duration::from_millis(20);

/// Runs until shutdown.
pub(super) async fn run(shared: Arc<Shared>, events: Events, shutdown: CancellationToken) {
    let mut counted: Option<Instant> = None;
    loop {
        flush(&shared, &events).await;
        if counted.is_none_or(|at| at.elapsed() >= CHECK_EVERY) {
            count(&shared);
            counted = Some(Instant::now());
        }
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = shared.wake.statuses.notified() => tokio::time::sleep(GATHER).await,
            () = tokio::time::sleep(CHECK_EVERY) => {}
        }
    }
}

/// Writes the statuses that are due.
pub(super) async fn flush(shared: &Arc<Shared>, events: &Events) {
    while shared.statuses.lock().wake_some(Instant::now()) {}
    let mut dirty = shared.statuses.lock().take().into_iter();
    loop {
        let some: Vec<WebhookKey> = dirty.by_ref().take(AT_ONCE).collect();
        if some.is_empty() {
            return;
        }
        let writes = due(shared, some)
            .into_iter()
            .map(|(webhook, status)| write(shared, events, webhook, status));
        let writes: Vec<_> = writes.collect();
        futures::stream::iter(writes)
            .buffer_unordered(WRITES)
            .collect::<()>()
            .await;
    }
}

/// Writes everything that is left at shutdown, including counters: the next leader would not count them.
pub(super) async fn finish(shared: &Arc<Shared>, events: &Events) {
    shared.statuses.lock().end();
    let writing = async {
        while !shared.statuses.lock().is_empty() {
            flush(shared, events).await;
            tokio::time::sleep(GATHER).await;
        }
    };
    if tokio::time::timeout(FINISH, writing).await.is_err() {
        tracing::warn!(
            "the counts of some webhooks since their last write are lost: writing them takes too long"
        );
    }
}

/// Returns which of these statuses to write now. Those to write later go back into the queue.
fn due(shared: &Shared, dirty: Vec<WebhookKey>) -> Vec<(Arc<Webhook>, WebhookStatus)> {
    let now = shared.now();
    let mut state = shared.state.lock();
    let mut queue = shared.statuses.lock();
    let mut due = Vec::new();
    for key in dirty {
        let Some(cached) = state.webhooks.by_key.get(&key) else {
            continue;
        };
        // Do not write a first status before the secret has been read, which takes a few milliseconds.
        if cached.webhook.status.is_none()
            && shared.secrets.get(&key, &cached.webhook).is_unread()
            && shared.obstacle(&state.webhooks, &cached.webhook, &key).is_none()
        {
            queue.postpone(key, now.mono + CHECK_EVERY);
            continue;
        }
        let status = shared.decided(&state, &key, cached, now.wall);
        let before = cached.webhook.status.clone().unwrap_or_default();
        if status == before {
            queue.done(&key);
            release(&mut state, &key);
            continue;
        }
        match queue.when(&key, urgency(&before, &status), cached.last_writes, now.mono) {
            When::Now => due.push((cached.webhook.clone(), status)),
            When::NotBefore(at) => queue.postpone(key, at),
            When::Queued => {}
        }
    }
    due
}

/// Updates the metrics of deliveries and webhooks.
fn count(shared: &Shared) {
    let state = shared.state.lock();
    let (pending, held, _) = state.dispatcher.totals();
    let (oldest, dropped) = (state.dispatcher.oldest_owed(), state.dispatcher.dropped());
    let (disabled, accounts) = state.webhooks.disabled.counts();
    drop(state);
    let age = oldest.map(|oldest| shared.deps.clock.now().duration_since(oldest).as_secs_f64());
    let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    let metrics = &shared.deps.metrics;
    metrics.deliveries_pending.set(gauge(pending));
    metrics.deliveries_held.set(gauge(held));
    metrics.webhooks_disabled.set(gauge(disabled));
    metrics.accounts_with_disabled_webhooks.set(gauge(accounts));
    metrics.oldest_owed_seconds.set(age.unwrap_or_default().max(0.0));
    let limits = [
        ("webhook", dropped.webhook),
        ("account", dropped.account),
        ("all", dropped.total),
    ];
    for (limit, number) in limits {
        let counter = metrics
            .deliveries_dropped
            .get_or_create_owned(&LimitLabels { limit });
        counter.inc_by(number.saturating_sub(counter.get()));
    }
}

impl Shared {
    /// Tells the status writer to disable a webhook.
    pub(crate) fn disable(&self, disablement: Disablement) {
        let mut state = self.state.lock();
        let key = disablement.webhook.clone();
        tracing::warn!(webhook = %key, event = %disablement.event_id, error = disablement.error, "disabling a webhook");
        let Some(cached) = state.webhooks.by_key.get_mut(&key) else {
            return;
        };
        cached.disablement = Some(disablement);
        drop(state);
        self.statuses.lock().touch(key);
        self.wake.statuses.notify_one();
    }
}
