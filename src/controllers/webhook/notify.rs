//! Notifies account holders by e-mail when a webhook has been disabled.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;

use super::shared::{AT_ONCE, CachedWebhook, Notification, Shared, State};
use crate::{
    delivery::dispatch::WebhookKey,
    mail::{DisabledWebhook, MailError, Reason},
    resources::{DisableReason, Disabled, Webhook, ids},
    runtime::metrics::OutcomeLabels,
};

/// First pause after a failed mail; it doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// Longest pause after a failed mail.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Disablements without a notification, sent or in progress. Marks them as in progress.
pub(super) fn due(shared: &Shared) -> Vec<(WebhookKey, Disabled)> {
    let now = shared.now().wall;
    let mut state = shared.state.lock();
    let state = &mut *state;
    while let Some((at, _)) = state.untold_until.first()
        && *at <= now
    {
        state
            .untold
            .extend(state.untold_until.pop_first().map(|(_, key)| key));
    }
    let mut due = Vec::new();
    for _ in 0..AT_ONCE {
        let Some(key) = next_untold(state) else {
            break;
        };
        let Some(cached) = state.webhooks.get(&key) else {
            continue;
        };
        let Some(disabled) = cached.webhook.untold().cloned() else {
            continue;
        };
        if cached.notifies_of(&disabled) {
            continue;
        }
        // Looked at again once the namespace belongs to another Account.
        let Some(account) = shared.account_uid(&cached.webhook) else {
            continue;
        };
        let is_left_over = |webhook: &Webhook| webhook.is_of_another_account(&account);
        if is_left_over(&cached.webhook) {
            continue;
        }
        let notified_at = |key: &WebhookKey| {
            let cached = state.webhooks.get(key)?;
            cached.notified_at().filter(|_| !is_left_over(&cached.webhook))
        };
        let namespace = cached.webhook.metadata.namespace.as_deref().unwrap_or_default();
        let of_namespace = || {
            let webhooks = state.dispatcher.webhooks_in(namespace);
            webhooks.iter().filter_map(notified_at).collect()
        };
        let may_be_sent = state
            .mail_limiter
            .take(&account, cached.notified_at(), of_namespace, now);
        if let Err(later) = may_be_sent {
            state.untold_until.insert((later, key));
            continue;
        }
        let Some(cached) = state.webhooks.get_mut(&key) else {
            continue;
        };
        let error = disabled.notification_error.clone();
        cached.notification = Some(Notification {
            disabled_at: disabled.at,
            result: Err(error.unwrap_or_else(|| "the e-mail is being sent".to_owned())),
        });
        due.push((key, disabled));
    }
    due
}

/// Removes and returns the next untold webhook: of those of its namespace, which share the mails of an account, one that was
/// never told of first, then the one that was disabled first.
fn next_untold(state: &mut State) -> Option<WebhookKey> {
    let namespace = |key: &WebhookKey| key.split_once('/').map(|(namespace, _)| namespace.to_owned());
    let first = namespace(state.untold.first()?);
    let rank = |key: &&WebhookKey| {
        let cached = state.webhooks.get(*key);
        let is_told = cached.is_some_and(|cached| cached.notified_at().is_some());
        (
            is_told,
            cached.and_then(|cached| Some(cached.webhook.untold()?.at)),
        )
    };
    let of_namespace = state.untold.iter().take_while(|key| namespace(key) == first);
    let next = of_namespace.min_by_key(rank)?.clone();
    state.untold.remove(&next);
    Some(next)
}

/// Notifies the account holder, retrying until that succeeds, even if the webhook is enabled in the meantime: the event was
/// still not delivered. Sends one mail per disablement, unless there is a later one
/// by then.
pub(super) async fn send(shared: Arc<Shared>, key: WebhookKey, disabled: Disabled) {
    let mut pause = FIRST_PAUSE;
    // Once there is a later disablement, its mail covers this one.
    let current = |key: &WebhookKey| {
        let state = shared.state.lock();
        let cached = state.webhooks.get(key)?;
        cached.notifies_of(&disabled).then(|| cached.webhook.clone())
    };
    let first = current(&key);
    let is_same = |webhook: &Arc<Webhook>| {
        first
            .as_ref()
            .is_some_and(|first| first.metadata.uid == webhook.metadata.uid)
    };
    loop {
        let webhook = current(&key).filter(is_same);
        let Some(mail) = webhook.and_then(|webhook| mail(&shared, &webhook, &disabled)) else {
            // Clear the mark, so that it is tried again when the namespace has an Account again, which it may have by now.
            let mut state = shared.state.lock();
            if let Some(cached) = state.webhooks.get_mut(&key)
                && cached.notifies_of(&disabled)
            {
                cached.notification = None;
                let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
                if shared.deps.directory.account_of(namespace).is_some() {
                    state.untold.insert(key);
                }
            }
            return;
        };
        if !shared.leads() {
            return;
        }
        let result = shared.deps.mailer.send(&mail.notification()).await;
        let outcome = result.as_ref().map_or_else(MailError::label, |()| "ok");
        shared
            .deps
            .metrics
            .mails
            .get_or_create(&OutcomeLabels { outcome })
            .inc();
        let is_over = match &result {
            // Without a mail server only a restart with other settings can help.
            Ok(()) | Err(MailError::NotConfigured) => true,
            Err(error) => {
                tracing::warn!(webhook = %key, %error, retry_in = ?pause, "cannot send the e-mail to the account holder; will retry");
                false
            }
        };
        let now = shared.now();
        {
            let mut state = shared.state.lock();
            let cached = state.webhooks.get_mut(&key);
            if let Some(cached) = cached.filter(|cached| cached.notifies_of(&disabled)) {
                cached.notification = Some(Notification {
                    disabled_at: disabled.at,
                    result: result.map(|()| now.wall).map_err(|error| error.public_message()),
                });
                state.dirty.insert(key.clone());
            }
        }
        shared.urgent.notify_one();
        if is_over {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

impl CachedWebhook {
    /// When the account holder was last sent a mail about it.
    fn notified_at(&self) -> Option<Timestamp> {
        let recorded = self.webhook.status.as_ref().and_then(|status| status.notified_at);
        let sent = self.notification.as_ref().and_then(|it| it.result.clone().ok());
        sent.max(recorded)
    }

    /// Whether the notification of this disablement has been sent or is in progress.
    fn notifies_of(&self, disabled: &Disabled) -> bool {
        let notification = self.notification.as_ref();
        notification.is_some_and(|notification| notification.disabled_at == disabled.at)
    }
}

/// The mail to send; `None` if it has been sent already, or if the namespace has no Account, or another one.
fn mail(shared: &Shared, webhook: &Webhook, disabled: &Disabled) -> Option<DisabledWebhook> {
    let status = webhook.status.as_ref();
    let now = status.and_then(|status| status.disabled.as_ref());
    if now.is_some_and(|now| now.at == disabled.at && now.notified_at.is_some()) {
        return None;
    }
    let namespace = webhook.metadata.namespace.clone().unwrap_or_default();
    let account = shared.deps.directory.account_of(&namespace)?;
    if account
        .metadata
        .uid
        .as_deref()
        .is_some_and(|uid| webhook.is_of_another_account(uid))
    {
        return None;
    }
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
