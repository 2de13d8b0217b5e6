//! The state shared by the modules of the controller: the dispatcher, the latest version of each webhook, and wake-ups.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::{Deps, write_budget::WriteBudget};
use crate::{
    delivery::{
        resend_queue::Requests,
        sources::{SourceRef, Sources},
    },
    event_log::LogTally,
    secrets::{SecretCache, SecretProblem, UnreadSecrets},
};
use domain::{
    delivery::{
        DeliveryLog, Disablement, Dispatcher, Now, Origin, WebhookFacts, WebhookGate, WebhookKey, key,
        keys_after,
    },
    event::{Outbox, OutboxEntry, OutboxVersion},
};
use resources::{
    Delivery, Webhook, WebhookStatus,
    origin::{self, ORIGIN_ANNOTATION},
    revision,
    times::milliseconds,
};
use runtime::{TimedMutex, lease::Tenure, watch::Change};
use sender::ReceiverUrl;

/// How long an outbox entry seen in the watch is left to the reconcile that wrote it, before the worker takes it over.
const CLAIM_GRACE: Duration = Duration::from_secs(2);

/// Reason of a webhook that is a copy of an older one.
pub(crate) const ORIGIN_TAKEN: &str = "OriginTaken";

/// The state shared by the modules of the controller.
pub(crate) struct Shared {
    pub(crate) deps: Deps,
    pub(crate) state: TimedMutex<State>,
    /// Wakes the worker.
    pub(crate) wake: Notify,
    /// Wakes the lookup: an event waits for a list of webhooks.
    pub(crate) unverified: Notify,
    /// Wakes the status writer: a status must be written now.
    pub(crate) urgent: Notify,
    /// Wakes the poll of secrets: there is one that has never been read.
    pub(crate) unread: Notify,
    pub(crate) secrets: SecretCache,
}

/// The mutable state, under one lock that is never held across an await.
pub(crate) struct State {
    /// Set once this replica is the leader and has loaded the initial state. Until then, changes are ignored or kept in
    /// `inbox`.
    pub(crate) tenure: Option<Tenure>,
    /// What the watches have shown while the initial state is being loaded, to be handled afterwards.
    pub(crate) inbox: Option<VecDeque<Shown>>,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) webhooks: BTreeMap<WebhookKey, CachedWebhook>,
    /// resourceVersion up to which the watch has shown all changes of webhooks.
    pub(crate) webhooks_shown: u64,
    /// Webhooks that are copies of older ones.
    pub(crate) copies: HashSet<WebhookKey>,
    /// Webhooks whose status may have to be written.
    pub(crate) dirty: HashSet<WebhookKey>,
    /// Whether the process is shutting down, so that no write may be deferred.
    pub(crate) is_ending: bool,
    /// Webhooks whose status has to be written later, and when.
    pub(crate) later: BTreeSet<(Instant, WebhookKey)>,
    /// The budget for writes of counters.
    pub(super) counter_writes: WriteBudget,
    /// The budget for writes of changed health.
    pub(super) health_writes: WriteBudget,
    pub(crate) log_tally: LogTally,
    /// Disabled webhooks.
    pub(crate) disabled: HashSet<WebhookKey>,
    /// Requests to resend a delivery that is in the event log.
    pub(crate) requests: Requests,
    /// Webhooks whose secrets have never been read.
    pub(crate) unread: UnreadSecrets,
    /// Objects with unclaimed outbox entries, and since when.
    pub(crate) unclaimed: VecDeque<(Instant, SourceRef)>,
    pub(crate) sources: Sources,
    /// resourceVersion of the initial list of Deliveries; older versions from the watch are stale.
    pub(crate) floor: u64,
    /// Deleted objects whose last event is still pending, by UID.
    pub(crate) ending: HashMap<String, SourceRef>,
}

/// Number of keys copied, or of small steps taken, each time the lock is held. Others wait for the lock, so the hold time must
/// not grow with the number of webhooks, deliveries or instances.
pub(crate) const AT_ONCE: usize = 64;
/// Outboxes taken over each time the lock is held. Each may have dozens of events, and each event as many jobs.
const CLAIMS_AT_ONCE: usize = 8;

/// A change that a watch has shown.
pub(crate) enum Shown {
    Webhook(Change<Webhook>),
    Delivery(Change<Delivery>),
    /// A change of a kind with an outbox, as the function that handles it.
    Outbox(Box<dyn FnOnce(&Shared) + Send>),
}

impl State {
    /// Some of the webhooks after `last`, in key order.
    fn webhooks_after(&self, last: Option<&WebhookKey>) -> Vec<WebhookKey> {
        keys_after(&self.webhooks, last, AT_ONCE)
    }

    /// The name of an older webhook of the account with the same origin: this one is a copy of it.
    fn older_twin(&self, webhook: &Webhook) -> Option<String> {
        let metadata = &webhook.metadata;
        if !origin::is_restored(metadata) {
            return None;
        }
        let first: WebhookKey = key(metadata.namespace.as_deref().unwrap_or_default(), "");
        let others = self
            .webhooks
            .range(first..)
            .map(|(_, cached)| &cached.webhook.metadata);
        origin::older_twin(
            metadata,
            others.take_while(|other| other.namespace == metadata.namespace),
        )
    }
}

/// The latest version of a webhook, and what still has to be written to its status.
pub(crate) struct CachedWebhook {
    /// The latest version.
    pub(crate) webhook: Arc<Webhook>,
    /// Its status when this replica first saw it as leader; the counts since then are added to it.
    pub(crate) base: WebhookStatus,
    /// Whether the watch has shown it. A webhook from a lookup may be newer than the watch's list.
    pub(crate) shown: bool,
    /// A disablement to write to its status.
    pub(crate) disablement: Option<Disablement>,
    /// When its status was last written.
    pub(crate) written: Option<Instant>,
    /// When a write of its status last failed.
    pub(crate) failed: Option<Instant>,
}

impl Shared {
    pub(crate) fn new(deps: Deps) -> Self {
        let settings = &deps.settings;
        let dispatcher = Dispatcher::new(
            settings.limits(),
            settings.retry_schedule.clone(),
            settings.delivery_log,
        );
        Self {
            secrets: SecretCache::default(),
            state: TimedMutex::new(
                State {
                    tenure: None,
                    inbox: None,
                    dispatcher,
                    webhooks: BTreeMap::new(),
                    webhooks_shown: 0,
                    copies: HashSet::new(),
                    counter_writes: WriteBudget::of_counters(),
                    health_writes: WriteBudget::of_health(),
                    dirty: HashSet::new(),
                    is_ending: false,
                    later: BTreeSet::new(),
                    log_tally: LogTally::default(),
                    disabled: HashSet::new(),
                    requests: Requests::default(),
                    unread: UnreadSecrets::default(),
                    unclaimed: VecDeque::new(),
                    sources: Sources::default(),
                    floor: 0,
                    ending: HashMap::new(),
                },
                deps.metrics.webhook_lock_seconds.clone(),
            ),
            wake: Notify::new(),
            unverified: Notify::new(),
            urgent: Notify::new(),
            unread: Notify::new(),
            deps,
        }
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            wall: milliseconds(self.deps.clock.now()),
            mono: Instant::now(),
        }
    }

    /// Whether this replica is the leader now. Check this before sending anything out of the cluster: another leader
    /// may already have sent it.
    pub(crate) fn leads(&self) -> bool {
        self.state.lock().tenure.as_ref().is_some_and(Tenure::holds)
    }

    /// Whether to handle a change now. If not, it is either kept until the initial state has been loaded, or dropped
    /// because the initial state will be loaded later anyway.
    pub(crate) fn admits(&self, shown: impl FnOnce() -> Shown) -> bool {
        let mut state = self.state.lock();
        if let Some(inbox) = &mut state.inbox {
            inbox.push_back(shown());
            return false;
        }
        state.tenure.is_some()
    }

    /// Records a webhook from a watch, a list or a write. Ignores versions older than the known one.
    pub(crate) fn webhook_seen(&self, state: &mut State, webhook: Arc<Webhook>, now: Now) {
        let key = key_of(&webhook);
        let cached = state.webhooks.get_mut(&key);
        match cached {
            Some(cached) if revision(&*cached.webhook) > revision(&*webhook) => return,
            _ if webhook.is_deleting() => {
                self.webhook_gone(state, &key, &webhook);
                return;
            }
            Some(cached) if cached.webhook.metadata.uid == webhook.metadata.uid => {
                if revision(&*cached.webhook) == revision(&*webhook) {
                    return;
                }
                cached.webhook = webhook;
            }
            _ => {
                self.secrets.forget(&key);
                let base = webhook.status.clone().unwrap_or_default();
                let cached = CachedWebhook {
                    webhook,
                    base,
                    shown: false,
                    disablement: None,
                    written: None,
                    failed: None,
                };
                state.webhooks.insert(key.clone(), cached);
                self.update_facts(state, &key, now);
                return;
            }
        }
        self.update_facts(state, &key, now);
    }

    /// Records a webhook from the watch.
    pub(crate) fn webhook_shown(&self, state: &mut State, webhook: &Arc<Webhook>, now: Now) {
        self.webhook_seen(state, webhook.clone(), now);
        if let Some(cached) = state.webhooks.get_mut(&key_of(webhook)) {
            cached.shown = true;
        }
    }

    /// Updates the dispatcher's facts about a webhook, because something that they depend on has changed.
    pub(crate) fn update_facts(&self, state: &mut State, key: &WebhookKey, now: Now) {
        let Some(cached) = state.webhooks.get(key) else {
            return;
        };
        let facts = self.facts(state, &cached.webhook, key);
        if state.older_twin(&cached.webhook).is_some() {
            state.copies.insert(key.clone());
        }
        if self.secrets.get(key, &cached.webhook).is_unread() {
            state.unread.insert(key.clone());
            self.unread.notify_one();
        }
        match cached.webhook.disabled() {
            Some(_) => {
                state.disabled.insert(key.clone());
            }
            None => {
                state.disabled.remove(key);
            }
        }
        state.dispatcher.webhook_seen(facts, now);
        state.dirty.insert(key.clone());
        self.wake.notify_one();
        self.urgent.notify_one();
    }

    fn facts(&self, state: &State, webhook: &Webhook, key: &WebhookKey) -> WebhookFacts {
        let metadata = &webhook.metadata;
        let gate = if !webhook.spec.active || state.older_twin(webhook).is_some() {
            WebhookGate::Inactive
        } else if webhook.disabled().is_some() {
            WebhookGate::Disabled
        } else if self.obstacle(state, webhook, key).is_some() {
            WebhookGate::Blocked
        } else {
            WebhookGate::Open
        };
        WebhookFacts {
            namespace: metadata.namespace.as_deref().unwrap_or_default().into(),
            name: metadata.name.as_deref().unwrap_or_default().into(),
            uid: origin::uid(metadata).into(),
            object_uid: metadata.uid.as_deref().unwrap_or_default().into(),
            revision: revision(webhook),
            generation: metadata.generation.unwrap_or_default(),
            created_at: webhook.created_at(),
            events: webhook.spec.events.clone(),
            gate,
            disabled_by: webhook
                .disabled()
                .map(|disabled| disabled.delivery.as_str().into()),
        }
    }

    /// Why an active webhook cannot be sent to: reason and message of the condition.
    pub(crate) fn obstacle(
        &self,
        state: &State,
        webhook: &Webhook,
        key: &WebhookKey,
    ) -> Option<(&'static str, String)> {
        let namespace = webhook.metadata.namespace.as_deref().unwrap_or_default();
        if self.deps.directory.account_of(namespace).is_none() {
            let message = format!(
                "namespace {namespace} belongs to no Account, so nothing is sent; create an Account with spec.namespace {namespace}"
            );
            return Some(("NoAccount", message));
        }
        if let Some(older) = state.older_twin(webhook) {
            let message = format!(
                "this is a copy of webhook {older}, which is older: both have the same annotation {ORIGIN_ANNOTATION}, so nothing is sent to this one; delete it, or create it without the annotation"
            );
            return Some((ORIGIN_TAKEN, message));
        }
        if let Err(complaint) = ReceiverUrl::parse(&webhook.spec.url, &self.deps.rules) {
            return Some(("InvalidURL", format!("spec.url {complaint}")));
        }
        self.secrets
            .get(key, webhook)
            .problem()
            .map(SecretProblem::reason_and_message)
    }

    /// Forgets a deleted webhook, unless another one has taken its name by now.
    pub(crate) fn webhook_gone(&self, state: &mut State, key: &WebhookKey, gone: &Webhook) {
        let is_it = |cached: &CachedWebhook| cached.webhook.metadata.uid == gone.metadata.uid;
        if !state.webhooks.get(key).is_some_and(is_it) {
            return;
        }
        let Some(cached) = state.webhooks.remove(key) else {
            return;
        };
        state.dirty.remove(key);
        state.counter_writes.forget(key);
        state.health_writes.forget(key);
        state.disabled.remove(key);
        state.unread.remove(key);
        let uid = origin::uid(&cached.webhook.metadata);
        let after = revision(&*cached.webhook);
        state.dispatcher.webhook_gone(key, uid, after);
        // One of them may have its origin now.
        for copy in std::mem::take(&mut state.copies) {
            self.update_facts(state, &copy, self.now());
        }
        self.secrets.forget(key);
        self.wake.notify_one();
    }

    pub(crate) fn owner_changed(&self, namespace: &str) {
        let keys = self.state.lock().dispatcher.webhooks_in(namespace);
        for key in keys {
            self.update_facts(&mut self.state.lock(), &key, self.now());
        }
    }

    /// Takes over some of the outbox entries that stayed unclaimed for [`CLAIM_GRACE`]. Returns when to check again.
    pub(crate) fn claim(&self, state: &mut State, now: Now) -> Option<Instant> {
        for _ in 0..CLAIMS_AT_ONCE {
            let is_due = |(since, _): &mut (Instant, _)| *since + CLAIM_GRACE <= now.mono;
            let Some((_, source)) = state.unclaimed.pop_front_if(is_due) else {
                break;
            };
            // Use the current version, which no longer has entries that were claimed and removed since.
            state.sources.clone().current(&source, |outbox| {
                see_outbox(state, outbox, Origin::Found, now);
                self.unverified.notify_one();
            });
        }
        state.unclaimed.front().map(|(since, _)| *since + CLAIM_GRACE)
    }

    /// Calls `each` for every webhook, without holding the lock for all of them at once.
    pub(crate) fn for_each_webhook(&self, each: impl FnMut(&mut State, &WebhookKey)) {
        self.for_each_key(State::webhooks_after, each);
    }

    /// Calls `each` for every key, without holding the lock for all of them at once. `some_after` returns some of the keys
    /// that follow the given one.
    pub(crate) fn for_each_key(
        &self,
        some_after: impl Fn(&State, Option<&Arc<str>>) -> Vec<Arc<str>>,
        mut each: impl FnMut(&mut State, &Arc<str>),
    ) {
        let mut last: Option<Arc<str>> = None;
        loop {
            let keys = some_after(&self.state.lock(), last.as_ref());
            let Some(key) = keys.last() else { return };
            last = Some(key.clone());
            for key in &keys {
                each(&mut self.state.lock(), key);
            }
        }
    }
}

impl Outbox for Shared {
    fn is_settled(&self, event_id: &str) -> bool {
        self.state.lock().dispatcher.is_settled(event_id)
    }

    fn is_logged(&self) -> bool {
        self.deps.settings.delivery_log == DeliveryLog::All
    }

    fn has_unattempted(&self, namespace: &str) -> bool {
        self.state.lock().dispatcher.has_unattempted(namespace)
    }

    fn recorded(&self, outbox: &OutboxVersion<'_>, before: i64) {
        let entries = outbox.entries;
        let now = self.now();
        let mut state = self.state.lock();
        if state.tenure.is_none() {
            return;
        }
        let is_news = entries.last().is_some_and(|entry| entry.sequence > before);
        // An earlier process may already have sent entries that the watch has not shown yet.
        let is_left_over =
            |entry: &OutboxEntry| entry.sequence <= before && !state.dispatcher.knows(&entry.id);
        let origin = if entries.iter().any(is_left_over) {
            Origin::Found
        } else {
            Origin::Fresh
        };
        // Even without new events, so that older versions from the watch are recognised as stale.
        see_outbox(&mut state, outbox, origin, now);
        drop(state);
        if is_news {
            self.wake.notify_one();
            self.unverified.notify_one();
        }
    }
}

pub(crate) fn see_outbox(state: &mut State, outbox: &OutboxVersion<'_>, origin: Origin, now: Now) {
    if outbox.is_deleting && !outbox.uid.is_empty() {
        state.ending.insert(outbox.uid.to_owned(), SourceRef::of(outbox));
    }
    state.dispatcher.outbox_seen(outbox, origin, now);
}

/// The key of a webhook.
pub(crate) fn key_of(webhook: &Webhook) -> WebhookKey {
    let metadata = &webhook.metadata;
    key(
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}
