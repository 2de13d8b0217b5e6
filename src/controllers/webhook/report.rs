//! Writes the status of Webhooks, and has account holders told when one is disabled.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use kube::{Api, api::PostParams};
use tokio_util::sync::CancellationToken;

use super::{
    health::{self, Facts},
    hub::{Hub, Known, Notification, State, lane_of},
    secret_cache::Problem,
    store::FIELD_MANAGER,
};
use crate::{
    delivery::dispatch::{Disablement, LaneKey},
    mail::{DisabledWebhook, MailError, Reason},
    resources::{DisableReason, Disabled, Webhook, WebhookStatus, ids},
    runtime::{
        client::{CallError, bounded, this_version},
        events::Events,
        metrics::OutcomeLabels,
    },
};

/// Numbers are written at most this often for each webhook (decisions, section 5).
const NUMBERS_EVERY: Duration = Duration::from_secs(10);
/// How often it is looked for numbers to be written.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Statuses written at the same time.
const WRITES: usize = 8;
/// Pause of a webhook whose status could not be written.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// Changes of so long are written together.
const GATHER: Duration = Duration::from_millis(20);
/// First pause after a mail failed; it doubles from there.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// Longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Runs until shutdown.
pub(super) async fn run(hub: Arc<Hub>, events: Events, shutdown: CancellationToken) {
    let mut counted: Option<Instant> = None;
    loop {
        flush(&hub, &events).await;
        if counted.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            count(&hub);
            counted = Some(Instant::now());
        }
        for (lane, disabled) in to_notify(&hub) {
            let (hub, shutdown) = (hub.clone(), shutdown.clone());
            tokio::spawn(async move {
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    () = notify(hub, lane, disabled) => {}
                }
            });
        }
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = hub.urgent.notified() => tokio::time::sleep(GATHER).await,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// Writes the statuses that are to be written now.
pub(super) async fn flush(hub: &Arc<Hub>, events: &Events) {
    let writes = due(hub)
        .into_iter()
        .map(|(webhook, status)| write(hub, events, webhook, status));
    let writes: Vec<_> = writes.collect();
    futures::stream::iter(writes)
        .buffer_unordered(WRITES)
        .collect::<()>()
        .await;
}

/// Statuses that are to be written now.
fn due(hub: &Hub) -> Vec<(Arc<Webhook>, WebhookStatus)> {
    let now = hub.now();
    let mut state = hub.state.lock();
    let dirty: Vec<LaneKey> = state.dirty.iter().cloned().collect();
    let mut due = Vec::new();
    for lane in dirty {
        let Some(known) = state.webhooks.get(&lane) else {
            state.dirty.remove(&lane);
            continue;
        };
        // Of a new one nothing is said before its secret was read, which takes some milliseconds.
        if known.webhook.status.is_none()
            && hub.secrets.get(&lane, &known.webhook).is_unread()
            && hub.obstacle(&known.webhook, &lane).is_none()
        {
            continue;
        }
        let status = status_of(hub, &state, &lane, known, now.wall);
        let before = known.webhook.status.clone().unwrap_or_default();
        if status == before {
            state.dirty.remove(&lane);
            release(&mut state, &lane);
            continue;
        }
        if known.failed.is_some_and(|at| at.elapsed() < AFTER_FAILURE) {
            continue;
        }
        let rested = known.written.is_none_or(|at| at.elapsed() >= NUMBERS_EVERY);
        if rested || health::is_urgent(&before, &status) {
            due.push((known.webhook.clone(), status));
        }
    }
    due
}

/// A disablement that is written, or that the spec has overtaken, is over.
fn release(state: &mut State, lane: &LaneKey) {
    let Some(known) = state.webhooks.get_mut(lane) else {
        return;
    };
    let is_over =
        |disablement: &Disablement| known.webhook.disabled().is_some() || !disablement.is_of(&known.webhook);
    if known.disablement.as_ref().is_some_and(is_over) {
        known.disablement = None;
        state.dispatcher.disablement_written(lane);
    }
}

fn status_of(hub: &Hub, state: &State, lane: &LaneKey, known: &Known, now: jiff::Timestamp) -> WebhookStatus {
    let (tally, pending, held) = state.dispatcher.tally(lane).unwrap_or_default();
    let secret = hub.secrets.get(lane, &known.webhook);
    let facts = Facts {
        base: &known.base,
        tally: &tally,
        pending,
        held,
        obstacle: hub.obstacle(&known.webhook, lane),
        is_secret_known: secret.was_read(),
        secret_problem: secret.problem().map(Problem::told),
        overlap: secret.overlap(),
        disablement: known.disablement.as_ref(),
        notification: known.notification.as_ref(),
    };
    health::status(&known.webhook, &facts, now)
}

async fn write(hub: &Hub, events: &Events, webhook: Arc<Webhook>, status: WebhookStatus) {
    let webhook = &*webhook;
    let object = Webhook {
        metadata: this_version(&webhook.metadata),
        spec: webhook.spec.clone(),
        status: Some(status),
    };
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    let api: Api<Webhook> = Api::namespaced(
        hub.deps.client.clone(),
        webhook.metadata.namespace.as_deref().unwrap_or_default(),
    );
    let lane = lane_of(webhook);
    let written = bounded(api.replace_status(
        webhook.metadata.name.as_deref().unwrap_or_default(),
        &params,
        &object,
    ))
    .await;
    match written {
        Ok(mut written) => {
            written.metadata.managed_fields = None;
            tell(events, webhook, &written);
            let now = hub.now();
            let mut state = hub.state.lock();
            hub.webhook_seen(&mut state, Arc::new(written), now);
            if let Some(known) = state.webhooks.get_mut(&lane) {
                known.written = Some(Instant::now());
            }
            release(&mut state, &lane);
            drop(state);
            hub.wake.notify_one();
        }
        // The watch brings the version that is there now, or that there is none.
        Err(error) if error.is_conflict() || error.is_not_found() => look_up(hub, &api, &lane, webhook).await,
        Err(error) => {
            tracing::warn!(webhook = %lane, %error, "the status cannot be written; it will be tried again");
            if let Some(known) = hub.state.lock().webhooks.get_mut(&lane) {
                known.failed = Some(Instant::now());
            }
        }
    }
}

/// The watch may be far behind: what is there is asked for.
async fn look_up(hub: &Hub, api: &Api<Webhook>, lane: &LaneKey, webhook: &Webhook) {
    let found: Result<Option<Webhook>, CallError> =
        bounded(api.get_opt(webhook.metadata.name.as_deref().unwrap_or_default())).await;
    let now = hub.now();
    match found {
        Ok(Some(mut found)) => {
            found.metadata.managed_fields = None;
            hub.webhook_seen(&mut hub.state.lock(), Arc::new(found), now);
        }
        Ok(None) => hub.webhook_gone(&mut hub.state.lock(), lane, webhook),
        Err(error) => tracing::debug!(webhook = %lane, %error, "a webhook cannot be looked up"),
    }
}

/// Events for `kubectl describe`: what has changed with this write.
fn tell(events: &Events, before: &Webhook, after: &Webhook) {
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
                "the webhook is enabled again; held events go out",
            );
        }
        (Some(before), Some(disabled)) if before.notified_at.is_none() && disabled.notified_at.is_some() => {
            events.publish(
                after,
                false,
                "Notified",
                "Notify",
                "the account holder was told by e-mail",
            );
        }
        _ => {}
    }
}

fn count(hub: &Hub) {
    let state = hub.state.lock();
    let (mut pending, mut held, mut disabled) = (0, 0, 0);
    for (lane, known) in &state.webhooks {
        disabled += i64::from(known.webhook.disabled().is_some());
        if let Some((_, waiting, kept)) = state.dispatcher.tally(lane) {
            pending += waiting;
            held += kept;
        }
    }
    drop(state);
    let metrics = &hub.deps.metrics;
    metrics.deliveries_pending.set(pending);
    metrics.deliveries_held.set(held);
    metrics.webhooks_disabled.set(disabled);
}

/// Disablements that nobody has been told of, and nobody is being told of.
fn to_notify(hub: &Hub) -> Vec<(LaneKey, Disabled)> {
    let mut state = hub.state.lock();
    let mut due = Vec::new();
    for (lane, known) in &mut state.webhooks {
        let Some(disabled) = known.webhook.disabled() else {
            continue;
        };
        if disabled.notified_at.is_none() && !known.tells_of(disabled) {
            due.push((lane.clone(), disabled.clone()));
        }
    }
    for (lane, disabled) in &due {
        if let Some(known) = state.webhooks.get_mut(lane) {
            let error = disabled.notification_error.clone();
            known.notification = Some(Notification {
                disabled_at: disabled.at,
                result: Err(error.unwrap_or_else(|| "the e-mail is being sent".to_owned())),
            });
        }
    }
    due
}

/// Tells the account holder, however often that has to be tried, and also when the webhook is enabled before it could be
/// done: that an event was given up is still so. One disablement, one mail.
async fn notify(hub: Arc<Hub>, lane: LaneKey, disabled: Disabled) {
    let mut pause = FIRST_PAUSE;
    let known = |lane: &LaneKey| Some(hub.state.lock().webhooks.get(lane)?.webhook.clone());
    let first = known(&lane);
    let is_same = |webhook: &Arc<Webhook>| {
        first
            .as_ref()
            .is_some_and(|first| first.metadata.uid == webhook.metadata.uid)
    };
    loop {
        let webhook = known(&lane).filter(is_same);
        let Some(mail) = webhook.and_then(|webhook| mail(&hub, &webhook, &disabled)) else {
            // Whoever looks next may find an account again.
            if let Some(known) = hub.state.lock().webhooks.get_mut(&lane)
                && known.tells_of(&disabled)
            {
                known.notification = None;
            }
            return;
        };
        if !hub.leads() {
            return;
        }
        let result = hub.deps.mailer.send(&mail.notification()).await;
        let outcome = result.as_ref().map_or_else(MailError::label, |()| "ok");
        hub.deps
            .metrics
            .mails
            .get_or_create(&OutcomeLabels { outcome })
            .inc();
        let is_over = match &result {
            // Without a mail server only a restart with other settings can help.
            Ok(()) | Err(MailError::NotConfigured) => true,
            Err(error) => {
                tracing::warn!(webhook = %lane, %error, retry_in = ?pause, "the account holder could not be told");
                false
            }
        };
        let now = hub.now();
        {
            let mut state = hub.state.lock();
            let known = state.webhooks.get_mut(&lane);
            if let Some(known) = known.filter(|known| known.tells_of(&disabled)) {
                known.notification = Some(Notification {
                    disabled_at: disabled.at,
                    result: result.map(|()| now.wall).map_err(|error| error.told()),
                });
                state.dirty.insert(lane.clone());
            }
        }
        hub.urgent.notify_one();
        if is_over {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

impl Known {
    /// Whether this disablement's e-mail is taken care of.
    fn tells_of(&self, disabled: &Disabled) -> bool {
        let notification = self.notification.as_ref();
        notification.is_some_and(|notification| notification.disabled_at == disabled.at)
    }
}

/// The mail, unless it was sent.
fn mail(hub: &Hub, webhook: &Webhook, disabled: &Disabled) -> Option<DisabledWebhook> {
    let status = webhook.status.as_ref();
    let now = status.and_then(|status| status.disabled.as_ref());
    if now.is_some_and(|now| now.at == disabled.at && now.notified_at.is_some()) {
        return None;
    }
    let namespace = webhook.metadata.namespace.clone().unwrap_or_default();
    let account = hub.deps.directory.account_of(&namespace)?;
    Some(DisabledWebhook {
        account_email: account.spec.email.clone(),
        account_name: account.metadata.name.clone().unwrap_or_default(),
        webhook_uid: webhook.metadata.uid.clone().unwrap_or_default(),
        webhook_id: webhook.id(),
        webhook_name: webhook.metadata.name.clone().unwrap_or_default(),
        namespace,
        url: webhook.spec.url.clone(),
        disabled_at: disabled.at,
        reason: match disabled.reason {
            DisableReason::RetriesExhausted => Reason::RetriesExhausted,
            DisableReason::Gone => Reason::Gone,
        },
        delivery_id: ids::delivery_id(&disabled.delivery),
        event_id: disabled.event_id.clone(),
        event_type: disabled.event_type.as_str().to_owned(),
        attempts: u32::try_from(disabled.attempts).unwrap_or_default(),
        last_status: disabled
            .last_status_code
            .and_then(|code| u16::try_from(code).ok()),
        last_error: Some(disabled.error.clone()),
        held: true,
    })
}

impl Hub {
    /// Has a webhook disabled in its status.
    pub(super) fn disable(&self, disablement: Disablement) {
        let mut state = self.state.lock();
        let lane = disablement.lane.clone();
        tracing::warn!(webhook = %lane, event = %disablement.event_id, error = disablement.error, "a webhook is disabled");
        let Some(known) = state.webhooks.get_mut(&lane) else {
            return;
        };
        known.disablement = Some(disablement);
        state.dirty.insert(lane);
        drop(state);
        self.urgent.notify_one();
    }
}
