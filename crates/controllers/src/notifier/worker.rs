//! Sends the mails of one account at a time: reads what there is to tell, sends one mail about all of it, and records that.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    Deps, FIELD_MANAGER, GATHER, limits,
    record::{Sent, record},
};
use crate::mail::{self, MailError};
use resources::{Account, Webhook, times::milliseconds};
use runtime::{
    ByNamespace, ObjectRef,
    client::{CallError, bounded},
    events::Events,
    lease::Tenure,
    metrics::OutcomeLabels,
    work_queue::{Class, Reconcile},
};

/// First pause after a failure; it doubles with each one.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// Longest pause after a failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// Maximum number of webhooks of an account that are read or written at the same time.
const CALLS_AT_ONCE: usize = 8;

/// Sends the mails of each account. Its places are the accounts' namespaces.
pub(super) struct Worker {
    deps: Deps,
    untold: ByNamespace<Webhook>,
    tenure: Tenure,
    events: Events,
    shutdown: CancellationToken,
    /// The mails that could not be sent or recorded yet, by namespace.
    failed: Mutex<HashMap<ObjectRef, Mail>>,
}

/// A mail that is being sent or recorded.
#[derive(Default)]
struct Mail {
    /// What it is about. A mail may have arrived although sending it seemed to fail, so a repetition is about the same.
    webhooks: Vec<Arc<Webhook>>,
    sent_at: Option<Timestamp>,
    /// The pause after the last failure, and when it ends.
    pause: Duration,
    retry_at: Timestamp,
}

/// Something failed, and has been logged; try again later.
struct Failed;

impl Reconcile for Worker {
    /// Accounts whose mails fail do not delay others.
    fn class(&self, object_ref: &ObjectRef) -> Class {
        if self.failed.lock().contains_key(object_ref) {
            Class::Suspect
        } else {
            Class::Normal
        }
    }

    async fn reconcile(&self, object_ref: &ObjectRef, _: Class) -> Option<Duration> {
        let mut mail = self.failed.lock().remove(object_ref).unwrap_or_default();
        let pause = Duration::try_from(mail.retry_at.duration_since(self.now())).unwrap_or_default();
        let next = if pause.is_zero() {
            let next = self.proceed(object_ref.name(), &mut mail).await;
            next.map_err(|Failed| mail.failed(self.now()))
        } else {
            Err(pause)
        };
        next.unwrap_or_else(|pause| {
            self.failed.lock().insert(object_ref.clone(), mail);
            Some(pause)
        })
    }
}

impl Mail {
    /// Returns when to try again.
    fn failed(&mut self, now: Timestamp) -> Duration {
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.retry_at = now + self.pause;
        self.pause
    }
}

impl Worker {
    pub(super) fn new(
        deps: Deps,
        untold: ByNamespace<Webhook>,
        tenure: Tenure,
        events: Events,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            deps,
            untold,
            tenure,
            events,
            shutdown,
            failed: Mutex::default(),
        }
    }

    /// Begins a mail, or goes on with one that failed. Returns after how long there may be something to tell again.
    async fn proceed(&self, namespace: &str, mail: &mut Mail) -> Result<Option<Duration>, Failed> {
        let shown = self.untold.of(namespace);
        let Some(owner) = self.deps.directory.account_of(namespace) else {
            // The namespace may soon have an Account again.
            return if shown.is_empty() { Ok(None) } else { Err(Failed) };
        };
        if !self.deps.mailer.is_configured() {
            return self.give_up(namespace, &shown).await;
        }
        let (limits, now) = (self.deps.limits, self.now());
        let after = |next: Timestamp| Duration::try_from(next.duration_since(now)).unwrap_or_default();
        if mail.webhooks.is_empty() {
            let (due, next) = limits::due(limits, shown, now);
            let next_mail = |account: &Account| {
                let sent = account.status.as_ref().map(|status| &*status.notified_at);
                limits::next_mail(limits, sent.unwrap_or_default(), now)
            };
            if due.is_empty() {
                return Ok(next.map(after));
            }
            if let Some(next) = next_mail(&owner) {
                return Ok(Some(after(next)));
            }
            // The watches may not show yet that these were told of.
            let account = logged(namespace, self.account(&owner).await)?;
            if let Some(next) = next_mail(&account.ok_or(Failed)?) {
                return Ok(Some(after(next)));
            }
            let fresh = logged(namespace, self.webhooks(namespace, &due).await)?;
            let (due, next) = limits::due(limits, fresh, now);
            if due.is_empty() {
                return Ok(next.map(after));
            }
            mail.webhooks = due;
        }
        let sent_at = match mail.sent_at {
            Some(at) => at,
            None if !self.tenure.holds() => return Ok(None),
            None => {
                let sending = self.shutdown.run_until_cancelled(self.send(&owner, mail));
                match sending.await {
                    Some(sent) => sent?,
                    None => return Ok(None),
                }
            }
        };
        mail.sent_at = Some(sent_at);
        self.record(namespace, &mail.webhooks, &Ok(sent_at)).await?;
        logged(namespace, self.count(&owner, sent_at).await)?;
        // Whatever has happened in the meantime.
        Ok(Some(GATHER))
    }

    fn now(&self) -> Timestamp {
        milliseconds(self.deps.clock.now())
    }

    /// Sends the mail, and returns when it was sent.
    async fn send(&self, account: &Account, mail: &Mail) -> Result<Timestamp, Failed> {
        let sent = match mail::report(account, &mail.webhooks) {
            Ok(notification) => self.deps.mailer.send(&notification).await,
            Err(error) => Err(error),
        };
        self.counted(sent.as_ref().map_or_else(MailError::label, |()| "ok"));
        let Err(error) = sent else {
            return Ok(self.now());
        };
        let namespace = account.owned_namespace().unwrap_or_default();
        tracing::warn!(namespace, %error, "cannot send the e-mail to the account holder; will retry");
        self.record(namespace, &mail.webhooks, &Err(error.public_message()))
            .await?;
        Err(Failed)
    }

    /// Records that there is no mail server: only a restart with other settings can help.
    async fn give_up(&self, namespace: &str, webhooks: &[Arc<Webhook>]) -> Result<Option<Duration>, Failed> {
        let error = MailError::NotConfigured;
        if self
            .record(namespace, webhooks, &Err(error.public_message()))
            .await?
        {
            self.counted(error.label());
        }
        Ok(None)
    }

    fn counted(&self, outcome: &'static str) {
        let labels = OutcomeLabels { outcome };
        self.deps.metrics.mails.get_or_create(&labels).inc();
    }

    /// Records the outcome of a mail in the statuses of the webhooks. Returns whether there was anything to write.
    async fn record(&self, namespace: &str, webhooks: &[Arc<Webhook>], sent: &Sent) -> Result<bool, Failed> {
        let recording = stream::iter(webhooks.to_vec()).map(|webhook| async move {
            let is_new = record(&self.deps.client, &webhook, sent).await?;
            if is_new && sent.is_ok() {
                let note = "the account holder was notified by e-mail";
                self.events.publish(&*webhook, false, "Notified", "Notify", note);
            }
            Ok::<_, CallError>(is_new)
        });
        let recorded: Vec<_> = recording.buffer_unordered(CALLS_AT_ONCE).collect().await;
        // One that cannot be recorded must not keep the others from being so.
        let all: Result<Vec<bool>, _> = recorded.into_iter().collect();
        Ok(logged(namespace, all)?.contains(&true))
    }

    /// Counts a mail in the status of the Account, which outlasts its webhooks.
    async fn count(&self, owner: &Account, sent_at: Timestamp) -> Result<(), CallError> {
        let Some(account) = self.account(owner).await? else {
            return Ok(());
        };
        let sent = account.status.as_ref().map(|status| &*status.notified_at);
        let times = limits::with(self.deps.limits, sent.unwrap_or_default(), sent_at);
        let patch = json!({ "metadata": { "uid": account.metadata.uid }, "status": { "notifiedAt": times } });
        let params = PatchParams::apply(FIELD_MANAGER);
        let api: Api<Account> = Api::all(self.deps.client.clone());
        let name = account.metadata.name.as_deref().unwrap_or_default();
        match bounded(api.patch_status(name, &params, &Patch::Merge(&patch))).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Reads the current version of an Account; `None` if it is gone.
    async fn account(&self, owner: &Account) -> Result<Option<Account>, CallError> {
        let api: Api<Account> = Api::all(self.deps.client.clone());
        let name = owner.metadata.name.as_deref().unwrap_or_default();
        // The operator has the right to list Accounts, not to get one.
        let only = ListParams::default().fields(&format!("metadata.name={name}"));
        let mut found = bounded(api.list(&only)).await?.items.into_iter();
        Ok(found.find(|found| found.metadata.uid == owner.metadata.uid))
    }

    /// Reads the current versions of these webhooks, and returns those that still have something to tell.
    async fn webhooks(
        &self,
        namespace: &str,
        shown: &[Arc<Webhook>],
    ) -> Result<Vec<Arc<Webhook>>, CallError> {
        let api: &Api<Webhook> = &Api::namespaced(self.deps.client.clone(), namespace);
        let reading = stream::iter(shown.to_vec()).map(|webhook| async move {
            let name = webhook.metadata.name.as_deref().unwrap_or_default();
            bounded(api.get_opt(name)).await
        });
        let found = reading
            .buffered(CALLS_AT_ONCE)
            .try_filter_map(|found| async { Ok(found.filter(super::has_news).map(Arc::new)) });
        found.try_collect().await
    }
}

fn logged<T>(namespace: &str, result: Result<T, CallError>) -> Result<T, Failed> {
    result.map_err(|error| {
        tracing::warn!(namespace, %error, "cannot read or record what an account holder was told; will retry");
        Failed
    })
}
