//! Notifies account holders by e-mail about disabled webhooks and backlogs. Everything that an account holder has not been told yet goes
//! into one mail.

use std::{collections::BTreeSet, ops::Bound, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{
    shared::{AT_ONCE, CachedWebhook, Notification, NotificationContent, Sent, Shared, State, key_of},
    store::FIELD_MANAGER,
};
use crate::{
    delivery::dispatch::WebhookKey,
    mail::{
        AffectedWebhook, BackloggedWebhook, DisabledWebhook, Fingerprint, MAX_LISTED, MailError, Problem,
        Problems, Reason,
    },
    resources::{
        Account, BacklogPeriod, DisableReason, Disabled, Webhook, conditions, ids, origin, webhook::BACKLOG,
    },
    runtime::{client::bounded, metrics::OutcomeLabels},
};

/// First pause after a failed mail; it doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// Longest pause after a failed mail.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// The namespaces whose account holder may be due a mail now. [`send`] must be called for each.
pub(super) fn due(shared: &Shared) -> Vec<Arc<str>> {
    let now = shared.now().wall;
    let mut state = shared.state.lock();
    let due = std::iter::from_fn(|| state.mails.next_due(now));
    due.take(AT_ONCE).collect()
}

/// Sends the account holder one mail about everything that is unreported and may be reported now, and retries that mail until it
/// succeeds. A mail may have arrived although sending it seemed to fail, so its content and its Message-ID stay the same. A
/// disablement is reported even if the webhook has been enabled again in the meantime, since the event was still not delivered.
pub(super) async fn send(shared: &Shared, namespace: &str) {
    let mut pause = FIRST_PAUSE;
    let mut collected = None;
    while let Some(account) = shared.deps.directory.account_of(namespace) {
        let uid = origin::uid(&account.metadata).to_owned();
        if collected.is_none()
            && let Err(later) = check_limit(shared, namespace, &uid)
        {
            wait(shared, namespace, Some(later));
            return;
        }
        let found = collected.get_or_insert_with(|| untold(shared, namespace));
        let Some(mail) = problems(namespace, &account, &found.webhooks) else {
            wait(shared, namespace, found.next);
            return;
        };
        if !shared.leads() {
            return;
        }
        let result = {
            let _permit = shared.mailing.acquire().await;
            shared.deps.mailer.send(&mail.notification()).await
        };
        let outcome = result.as_ref().map_or_else(MailError::label, |()| "ok");
        let labels = OutcomeLabels { outcome };
        shared.deps.metrics.mails.get_or_create(&labels).inc();
        // Without a mail server, only a restart with other settings can help.
        let is_over = matches!(result, Ok(()) | Err(MailError::NotConfigured));
        if let Err(error) = &result
            && !is_over
        {
            tracing::warn!(namespace, %error, retry_in = ?pause, "cannot send the e-mail to the account holder; will retry");
        }
        // Count it only now: it is one mail however often it is retried, and the next one waits until it is done.
        let sent = |()| {
            let at = shared.now().wall;
            let within_day = shared.state.lock().mail_limiter.count(&uid, at);
            Sent { at, within_day }
        };
        let result = result.map(sent).map_err(|error| error.public_message());
        record(shared, namespace, &found.webhooks, &result, is_over);
        if let Ok(sent) = &result {
            remember(shared, &account, &sent.within_day).await;
        }
        if is_over {
            wait(shared, namespace, found.next);
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    // The webhooks are added again when the namespace gets an Account again, which may have happened by now.
    let now = shared.now().wall;
    let mut state = shared.state.lock();
    if shared.deps.directory.account_of(namespace).is_some() {
        state.mails.wait(namespace, None, now);
    } else {
        state.mails.forget(namespace);
    }
}

fn wait(shared: &Shared, namespace: &str, until: Option<Timestamp>) {
    let now = shared.now().wall;
    shared.state.lock().mails.wait(namespace, until, now);
}

/// Whether a mail to an account may be sent now. If not, returns when.
fn check_limit(shared: &Shared, namespace: &str, account: &str) -> Result<(), Timestamp> {
    if !shared.state.lock().mail_limiter.knows(account) {
        let mut earlier = sent_earlier(shared, namespace);
        let owner = shared.deps.directory.account_of(namespace);
        let owner = owner.filter(|owner| origin::uid(&owner.metadata) == account);
        if let Some(status) = owner.as_ref().and_then(|owner| owner.status.as_ref()) {
            earlier.extend(status.notified_at.iter().copied());
        }
        shared.state.lock().mail_limiter.begin(account, earlier);
    }
    let now = shared.now().wall;
    shared.state.lock().mail_limiter.check(account, now)
}

/// Writes the times of a day's mails to the status of the Account, which outlasts its webhooks. If that fails, only the
/// statuses of the webhooks have them.
async fn remember(shared: &Shared, account: &Account, within_day: &[Timestamp]) {
    let (Some(name), Some(uid)) = (&account.metadata.name, &account.metadata.uid) else {
        return;
    };
    let api: Api<Account> = Api::all(shared.deps.client.clone());
    let patch = json!({ "metadata": { "uid": uid }, "status": { "notifiedAt": within_day } });
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    if let Err(error) = bounded(api.patch_status(name, &params, &Patch::Merge(&patch))).await {
        tracing::warn!(account = name, %error, "cannot record in the status of the Account when it was sent an e-mail");
    }
}

/// When mails were sent to an account, according to the statuses of its existing webhooks.
fn sent_earlier(shared: &Shared, namespace: &str) -> BTreeSet<Timestamp> {
    let mut times = BTreeSet::new();
    let mut after: WebhookKey = format!("{namespace}/").into();
    loop {
        let state = shared.state.lock();
        let webhooks = state
            .webhooks
            .range((Bound::Excluded(after.clone()), Bound::Unbounded))
            .take_while(|(_, cached)| cached.webhook.metadata.namespace.as_deref() == Some(namespace));
        let mut last = None;
        for (key, cached) in webhooks.take(AT_ONCE) {
            last = Some(key.clone());
            if let Some(status) = &cached.webhook.status {
                times.extend(status.account_notified_at.iter().copied());
                times.extend(status.notified_at);
            }
        }
        drop(state);
        match last {
            Some(last) => after = last,
            None => return times,
        }
    }
}

/// What may be reported about an account's webhooks now.
#[derive(Default)]
struct PendingNotification {
    webhooks: Vec<(Arc<Webhook>, NotificationContent)>,
    /// When the others may be reported.
    next: Option<Timestamp>,
}

/// Collects what may be reported about an account's webhooks now. Removes webhooks that have nothing to report from the
/// queue.
fn untold(shared: &Shared, namespace: &str) -> PendingNotification {
    let now = shared.now().wall;
    let can_send = shared.deps.mailer.is_configured();
    let mut found = PendingNotification::default();
    let mut last: Option<WebhookKey> = None;
    loop {
        let mut guard = shared.state.lock();
        let state: &mut State = &mut guard;
        let keys = state.mails.after(namespace, last.as_ref(), AT_ONCE);
        let Some(end) = keys.last() else { return found };
        last = Some(end.clone());
        for key in &keys {
            let cached = state.webhooks.get(key);
            let Some((cached, told)) = cached.and_then(|cached| Some((cached, cached.untold(can_send)?)))
            else {
                state.mails.remove(namespace, key);
                continue;
            };
            let next = cached
                .notified_at()
                .map(|last| state.mail_limiter.next_of_webhook(last))
                .filter(|next| *next > now);
            match next {
                Some(next) => found.next = Some(found.next.map_or(next, |earliest| earliest.min(next))),
                None => found.webhooks.push((cached.webhook.clone(), told)),
            }
        }
    }
}

/// Records the outcome of a mail about these webhooks.
fn record(
    shared: &Shared,
    namespace: &str,
    webhooks: &[(Arc<Webhook>, NotificationContent)],
    result: &Result<Sent, String>,
    is_over: bool,
) {
    for some in webhooks.chunks(AT_ONCE) {
        let mut guard = shared.state.lock();
        let state: &mut State = &mut guard;
        for (webhook, told) in some {
            let key = key_of(webhook);
            let is_it = |cached: &&mut CachedWebhook| cached.webhook.metadata.uid == webhook.metadata.uid;
            let Some(cached) = state.webhooks.get_mut(&key).filter(is_it) else {
                continue;
            };
            cached.notification = Some(Notification {
                told: *told,
                result: result.clone(),
            });
            if is_over {
                // If there is something new by now, the write of its status adds it again.
                state.mails.remove(namespace, &key);
            }
            state.dirty.insert(key);
        }
    }
    shared.urgent.notify_one();
}

impl CachedWebhook {
    /// When the account holder was last sent a mail about this webhook.
    fn notified_at(&self) -> Option<Timestamp> {
        let recorded = self.webhook.status.as_ref().and_then(|status| status.notified_at);
        let sent = self.notification.as_ref().and_then(Notification::sent);
        sent.map(|sent| sent.at).max(recorded)
    }

    /// What can be reported about this webhook, if anything.
    fn untold(&self, can_send: bool) -> Option<NotificationContent> {
        let untold = NotificationContent::untold(&self.webhook);
        let is_done = |last: &Notification| match &last.result {
            // It has been reported, but that has not been recorded yet.
            Ok(_) => last.told.overlaps(&untold),
            Err(_) => !can_send && last.told == untold,
        };
        let is_done = self.notification.as_ref().is_some_and(is_done);
        Some(untold).filter(|untold| !untold.is_nothing() && !is_done)
    }
}

/// The mail about these webhooks; `None` if there is nothing to report.
fn problems(
    namespace: &str,
    account: &Account,
    webhooks: &[(Arc<Webhook>, NotificationContent)],
) -> Option<Problems> {
    let mut all: Vec<(Timestamp, Cause<'_>, &Webhook)> = Vec::new();
    for (webhook, _) in webhooks {
        let disabled = webhook.untold().map(|it| (it.at, Cause::Disabled(it)));
        let backlog = webhook.untold_backlog().map(|it| (it.since, Cause::Backlog(it)));
        let causes = disabled.into_iter().chain(backlog);
        all.extend(causes.map(|(at, cause)| (at, cause, &**webhook)));
    }
    all.sort_by_key(|(at, ..)| *at);
    let (latest, ..) = *all.last()?;
    let mut fingerprint = Fingerprint::default();
    for (at, cause, webhook) in &all {
        let uid = origin::uid(&webhook.metadata);
        fingerprint.add(uid, cause.kind(), *at);
    }
    let is_disabled = |cause: &Cause<'_>| matches!(cause, Cause::Disabled(_));
    let disabled = all.iter().filter(|(_, cause, _)| is_disabled(cause)).count();
    let listed = all.iter().take(MAX_LISTED);
    Some(Problems {
        account_email: account.spec.email.clone(),
        account_name: account.metadata.name.clone().unwrap_or_default(),
        account_uid: origin::uid(&account.metadata).to_owned(),
        namespace: namespace.to_owned(),
        listed: listed
            .map(|(_, cause, webhook)| cause.problem(account, webhook))
            .collect(),
        disabled,
        backlogged: all.len() - disabled,
        latest,
        fingerprint: fingerprint.finish(),
    })
}

/// What is wrong with a webhook.
#[derive(Clone, Copy)]
enum Cause<'a> {
    Disabled(&'a Disabled),
    Backlog(&'a BacklogPeriod),
}

impl Cause<'_> {
    fn kind(&self) -> &'static str {
        match self {
            Self::Disabled(_) => "disabled",
            Self::Backlog(_) => "backlog",
        }
    }

    fn problem(&self, account: &Account, webhook: &Webhook) -> Problem {
        match self {
            Self::Disabled(it) => Problem::Disabled(disabled_webhook(account, webhook, it)),
            Self::Backlog(it) => Problem::Backlog(backlogged_webhook(account, webhook, it)),
        }
    }
}

fn affected_webhook(account: &Account, webhook: &Webhook) -> AffectedWebhook {
    AffectedWebhook {
        account_email: account.spec.email.clone(),
        account_name: account.metadata.name.clone().unwrap_or_default(),
        uid: origin::uid(&webhook.metadata).to_owned(),
        id: webhook.id(),
        name: webhook.metadata.name.clone().unwrap_or_default(),
        namespace: webhook.metadata.namespace.clone().unwrap_or_default(),
        url: webhook.spec.url.clone(),
    }
}

fn disabled_webhook(account: &Account, webhook: &Webhook, disabled: &Disabled) -> DisabledWebhook {
    DisabledWebhook {
        webhook: affected_webhook(account, webhook),
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
    }
}

fn backlogged_webhook(account: &Account, webhook: &Webhook, backlog: &BacklogPeriod) -> BackloggedWebhook {
    let status = webhook.status.as_ref();
    let condition = status.and_then(|status| conditions::find(&status.conditions, BACKLOG));
    let ended = condition.filter(|condition| condition.status != "True");
    BackloggedWebhook {
        webhook: affected_webhook(account, webhook),
        since: backlog.since,
        until: ended.map(|condition| condition.last_transition_time.0),
        held: status.map_or(0, |status| status.held),
        dropped: status.map_or(0, |status| status.dropped - backlog.dropped_before),
    }
}
