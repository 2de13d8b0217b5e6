//! Writes the status of Webhooks.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    FIELD_MANAGER,
    shared::{AT_ONCE, CachedWebhook, Shared, State, key_of},
    status::{self, Facts, Urgency},
};
use crate::secrets::SecretProblem;
use domain::delivery::{Disablement, WebhookKey};
use resources::{Webhook, WebhookStatus, origin, tracking::forget_foreign};
use runtime::{
    client::{self, CallError, bounded},
    events::Events,
};

/// Minimum time between two writes of a webhook's counters or failures (decisions, section 5).
const EVERY: Duration = Duration::from_secs(10);
/// How often to check for counters to write.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Statuses written at the same time.
const WRITES: usize = 8;
/// Pause after a failed write of a webhook's status.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
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
            () = shared.urgent.notified() => tokio::time::sleep(GATHER).await,
            () = tokio::time::sleep(CHECK_EVERY) => {}
        }
    }
}

/// Writes the statuses that are due.
pub(super) async fn flush(shared: &Arc<Shared>, events: &Events) {
    while wake_some(&mut shared.state.lock()) {}
    let mut dirty = std::mem::take(&mut shared.state.lock().dirty).into_iter();
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
    {
        let mut state = shared.state.lock();
        state.is_ending = true;
        let later = std::mem::take(&mut state.later);
        let mut left: Vec<WebhookKey> = later.into_iter().map(|(_, key)| key).collect();
        left.extend(state.counter_writes.close());
        left.extend(state.health_writes.close());
        state.dirty.extend(left);
    }
    let writing = async {
        while !shared.state.lock().dirty.is_empty() {
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

/// Marks some of the statuses that are due as dirty. Returns whether there may be more.
fn wake_some(state: &mut State) -> bool {
    let now = Instant::now();
    for _ in 0..AT_ONCE {
        let is_due = state.later.first().is_some_and(|(at, _)| *at <= now);
        let due = if is_due {
            state.later.pop_first().map(|(_, key)| key)
        } else {
            let admitted = state.health_writes.admit_next(now);
            admitted.or_else(|| state.counter_writes.admit_next(now))
        };
        let Some(key) = due else { return false };
        state.dirty.insert(key);
    }
    true
}

/// Returns which of these statuses to write now. Those to write later are put into [`State::later`].
fn due(shared: &Shared, dirty: Vec<WebhookKey>) -> Vec<(Arc<Webhook>, WebhookStatus)> {
    let now = shared.now();
    let mut state = shared.state.lock();
    let mut due = Vec::new();
    for key in dirty {
        let Some(cached) = state.webhooks.get(&key) else {
            continue;
        };
        // Do not write a first status before the secret has been read, which takes a few milliseconds.
        if cached.webhook.status.is_none()
            && shared.secrets.get(&key, &cached.webhook).is_unread()
            && shared.obstacle(&state, &cached.webhook, &key).is_none()
        {
            state.later.insert((now.mono + CHECK_EVERY, key));
            continue;
        }
        let status = status_of(shared, &state, &key, cached, now.wall);
        let before = cached.webhook.status.clone().unwrap_or_default();
        if status == before {
            status_done(&mut state, &key);
            continue;
        }
        let may_be_tried = cached.failed.map(|at| at + AFTER_FAILURE);
        let webhook = cached.webhook.clone();
        let urgency = status::urgency(&before, &status);
        let when = may_be_tried
            .filter(|at| *at > now.mono && !state.is_ending)
            .map_or_else(|| when(&mut state, &key, urgency, now.mono), When::NotBefore);
        match when {
            When::Now => due.push((webhook, status)),
            When::NotBefore(at) => {
                state.later.insert((at, key));
            }
            When::Queued => {}
        }
    }
    due
}

/// When a status may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Now,
    /// Not yet; ask again then.
    NotBefore(Instant),
    /// Once the budget admits it.
    Queued,
}

/// When a webhook's status may be written: some time after its last write, and within the budget shared by all webhooks.
pub(super) fn when(state: &mut State, key: &WebhookKey, urgency: Urgency, now: Instant) -> When {
    let written = state.webhooks.get(key).and_then(|cached| cached.written);
    let may_be_repeated = written.map(|at| at + EVERY).filter(|at| *at > now);
    let budget = match urgency {
        _ if state.is_ending => return When::Now,
        Urgency::Now => return When::Now,
        Urgency::Failure | Urgency::Recovery => &mut state.health_writes,
        Urgency::Counters => &mut state.counter_writes,
    };
    match may_be_repeated {
        Some(at) if urgency != Urgency::Recovery => When::NotBefore(at),
        _ if budget.admit(key, now) => When::Now,
        _ => When::Queued,
    }
}

/// Notes that a status is as it should be.
fn status_done(state: &mut State, key: &WebhookKey) {
    state.counter_writes.done(key);
    state.health_writes.done(key);
    release(state, key);
}

/// Forgets a disablement that has been written, or that a change of the spec has made obsolete.
fn release(state: &mut State, key: &WebhookKey) {
    let Some(cached) = state.webhooks.get_mut(key) else {
        return;
    };
    let is_over = |disablement: &Disablement| {
        cached.webhook.disabled().is_some() || !disablement.is_of(&cached.webhook)
    };
    if cached.disablement.as_ref().is_some_and(is_over) {
        cached.disablement = None;
        state.dispatcher.disablement_written(key);
    }
}

fn status_of(
    shared: &Shared,
    state: &State,
    key: &WebhookKey,
    cached: &CachedWebhook,
    now: jiff::Timestamp,
) -> WebhookStatus {
    let (tally, pending, held) = state.dispatcher.tally(key).unwrap_or_default();
    let secret = shared.secrets.get(key, &cached.webhook);
    let facts = Facts {
        base: &cached.base,
        tally: &tally,
        pending,
        held,
        obstacle: shared.obstacle(state, &cached.webhook, key),
        is_secret_known: secret.was_read(),
        secret_problem: secret.problem().map(SecretProblem::reason_and_message),
        overlap: secret.overlap(),
        disablement: cached.disablement.as_ref(),
    };
    status::decide(&cached.webhook, &facts, now)
}

async fn write(shared: &Shared, events: &Events, webhook: Arc<Webhook>, status: WebhookStatus) {
    let webhook = &*webhook;
    let api: Api<Webhook> = Api::namespaced(
        shared.deps.client.clone(),
        webhook.metadata.namespace.as_deref().unwrap_or_default(),
    );
    let key = key_of(webhook);
    let client = &shared.deps.client;
    let write = async {
        let marked = marked(shared, &api, webhook).await?;
        bounded(client::replace_status(client, &*marked, &status, FIELD_MANAGER)).await
    };
    match write.await {
        Ok(metadata) => {
            let mut written = Webhook {
                metadata,
                spec: webhook.spec.clone(),
                status: Some(status),
            };
            written.metadata.managed_fields = None;
            forget_foreign(&mut written);
            publish(events, webhook, &written);
            let now = shared.now();
            let mut state = shared.state.lock();
            shared.webhook_seen(&mut state, Arc::new(written), now);
            if let Some(cached) = state.webhooks.get_mut(&key) {
                cached.written = Some(Instant::now());
            }
            status_done(&mut state, &key);
            drop(state);
            shared.wake.notify_one();
        }
        // The webhook has changed or is gone.
        Err(error) if error.is_conflict() || error.is_not_found() => {
            look_up(shared, &api, &key, webhook).await;
            shared.state.lock().dirty.insert(key);
        }
        Err(error) => {
            tracing::warn!(webhook = %key, %error, "cannot write the status; will retry");
            let mut state = shared.state.lock();
            if let Some(cached) = state.webhooks.get_mut(&key) {
                cached.failed = Some(Instant::now());
                state.dirty.insert(key);
            }
        }
    }
}

/// The webhook with its origin, which is written if it is missing: a webhook has no finalizer whose patch could add it.
async fn marked<'a>(
    shared: &Shared,
    api: &Api<Webhook>,
    webhook: &'a Webhook,
) -> Result<Cow<'a, Webhook>, CallError> {
    let metadata = &webhook.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    if !origin::is_missing(metadata) || shared.deps.directory.account_of(namespace).is_none() {
        return Ok(Cow::Borrowed(webhook));
    }
    let mut patch =
        json!({ "metadata": { "resourceVersion": metadata.resource_version, "uid": metadata.uid } });
    origin::add_to(&mut patch, metadata);
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let name = metadata.name.as_deref().unwrap_or_default();
    let written = bounded(api.patch_metadata(name, &params, &Patch::Merge(&patch))).await?;
    let mut marked = webhook.clone();
    marked.metadata = written.metadata;
    Ok(Cow::Owned(marked))
}

/// Reads the current version of a webhook, because the watch may lag far behind.
async fn look_up(shared: &Shared, api: &Api<Webhook>, key: &WebhookKey, webhook: &Webhook) {
    let found: Result<Option<Webhook>, CallError> =
        bounded(api.get_opt(webhook.metadata.name.as_deref().unwrap_or_default())).await;
    let now = shared.now();
    match found {
        Ok(Some(mut found)) => {
            found.metadata.managed_fields = None;
            forget_foreign(&mut found);
            shared.webhook_seen(&mut shared.state.lock(), Arc::new(found), now);
        }
        Ok(None) => shared.webhook_gone(&mut shared.state.lock(), key, webhook),
        Err(error) => tracing::debug!(webhook = %key, %error, "cannot look up a webhook"),
    }
}

/// Publishes Kubernetes Events for the changes in this write.
fn publish(events: &Events, before: &Webhook, after: &Webhook) {
    let disabled = |webhook: &Webhook| webhook.status.as_ref().and_then(|status| status.disabled.clone());
    match (disabled(before), disabled(after)) {
        (None, Some(disabled)) => {
            events.publish(after, true, "Disabled", "Deliver", &disabled.message);
        }
        (Some(_), None) => {
            events.publish(
                after,
                false,
                "Enabled",
                "Deliver",
                "the webhook is enabled again; held events are being sent",
            );
        }
        _ => {}
    }
}

/// Updates the metrics of deliveries and webhooks.
fn count(shared: &Shared) {
    let state = shared.state.lock();
    let (pending, held, dropped) = state.dispatcher.totals();
    let disabled = state.disabled.len();
    drop(state);
    let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    let metrics = &shared.deps.metrics;
    metrics.deliveries_pending.set(gauge(pending));
    metrics.deliveries_held.set(gauge(held));
    metrics.webhooks_disabled.set(gauge(disabled));
    let counted = metrics.deliveries_dropped.get();
    metrics.deliveries_dropped.inc_by(dropped.saturating_sub(counted));
}

impl Shared {
    /// Tells the status writer to disable a webhook.
    pub(super) fn disable(&self, disablement: Disablement) {
        let mut state = self.state.lock();
        let key = disablement.webhook.clone();
        tracing::warn!(webhook = %key, event = %disablement.event_id, error = disablement.error, "disabling a webhook");
        let Some(cached) = state.webhooks.get_mut(&key) else {
            return;
        };
        cached.disablement = Some(disablement);
        state.dirty.insert(key);
        drop(state);
        self.urgent.notify_one();
    }
}
