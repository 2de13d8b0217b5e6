//! The state shared by the modules of the controller: the dispatcher, the latest version of each webhook, and wake-ups.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    ops::Bound,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kube::runtime::reflector::{ObjectRef, Store};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    Deps, Stores,
    mail_limiter::MailLimiter,
    mail_queue::MailQueue,
    secret_cache::{Problem, SecretCache},
};
use crate::{
    delivery::{
        ReceiverUrl,
        dispatch::{
            Disablement, Dispatcher, Gate, Now, Origin, WebhookFacts, WebhookKey, key, sort_for_adoption,
        },
    },
    events::{Outbox, OutboxEntry},
    resources::{Delivery, Instance, Webhook, WebhookStatus},
    runtime::{ReconcileQueue, clock::milliseconds, lease::Tenure, watch::revision},
};

/// How long an outbox entry seen in the watch is left to the reconcile that wrote it, before the worker takes it over.
const CLAIM_GRACE: Duration = Duration::from_secs(2);

/// Reason of a webhook that belongs to a former account of its namespace.
pub(super) const FORMER_ACCOUNT: &str = "FormerAccount";

/// The state shared by the modules of the controller.
pub(super) struct Shared {
    pub(super) deps: Deps,
    /// The queue of the instance controller, to requeue instances.
    pub(super) instances: ReconcileQueue<Instance>,
    pub(super) state: Mutex<State>,
    /// Wakes the worker.
    pub(super) wake: Notify,
    /// Wakes the lookup: an event waits for a list of webhooks.
    pub(super) unverified: Notify,
    /// Wakes the status writer: a status must be written now.
    pub(super) urgent: Notify,
    /// Wakes the poll of secrets: there is one that has never been read.
    pub(super) unread: Notify,
    pub(super) secrets: SecretCache,
}

/// The mutable state, under one lock that is never held across an await.
pub(super) struct State {
    /// Set once this replica is the leader; until then changes are ignored.
    pub(super) tenure: Option<Tenure>,
    pub(super) dispatcher: Dispatcher,
    pub(super) webhooks: BTreeMap<WebhookKey, CachedWebhook>,
    /// Webhooks whose status may have to be written.
    pub(super) dirty: HashSet<WebhookKey>,
    /// Webhooks whose status has to be written later, and when.
    pub(super) later: BTreeSet<(Instant, WebhookKey)>,
    /// Webhooks with a disablement or a backlog that the account holder has not been notified of.
    pub(super) mails: MailQueue,
    pub(super) mail_limiter: MailLimiter,
    /// Disabled webhooks.
    pub(super) disabled: HashSet<WebhookKey>,
    /// Instances with unclaimed outbox entries, and since when.
    pub(super) unclaimed: VecDeque<(Instant, ObjectRef<Instance>)>,
    instances: Option<Store<Instance>>,
    /// resourceVersion of the initial list of Deliveries; older versions from the watch are stale.
    pub(super) floor: u64,
    /// Deleted instances whose last event is still pending, by UID.
    pub(super) ending: HashMap<String, ObjectRef<Instance>>,
}

/// Webhooks handled while the lock is held once. Others wait for it, so that must not grow with the number of webhooks.
pub(super) const AT_ONCE: usize = 64;

impl State {
    /// Some webhooks, in the order of their keys: those after this one.
    pub(super) fn webhooks_after(&self, last: Option<&WebhookKey>) -> Vec<WebhookKey> {
        let after = last.map_or(Bound::Unbounded, |last| Bound::Excluded(last.clone()));
        let keys = self.webhooks.range((after, Bound::Unbounded)).map(|(key, _)| key);
        keys.take(AT_ONCE).cloned().collect()
    }

    /// Removes and returns the deleted instance with this UID.
    pub(super) fn take_ending(&mut self, uid: &str) -> Option<Arc<Instance>> {
        let place = self.ending.remove(uid)?;
        self.instances.as_ref()?.get(&place)
    }
}

/// The latest version of a webhook, and what has still to be written to its status.
pub(super) struct CachedWebhook {
    /// The latest version.
    pub(super) webhook: Arc<Webhook>,
    /// Its status when this replica first saw it as leader; the counts since then are added to it.
    pub(super) base: WebhookStatus,
    /// Whether the watch has shown it. A webhook from a lookup may be newer than the watch's list.
    pub(super) shown: bool,
    /// A disablement to write to its status.
    pub(super) disablement: Option<Disablement>,
    /// The last e-mail about it.
    pub(super) notification: Option<Notification>,
    /// When its status was last written.
    pub(super) written: Option<Instant>,
    /// When a write of its status last failed.
    pub(super) failed: Option<Instant>,
}

/// What an e-mail tells of a webhook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// When the webhook was disabled.
    pub(super) disabled_at: Option<Timestamp>,
    /// When its backlog began.
    pub(super) backlog_since: Option<Timestamp>,
}

impl Told {
    /// What the account holder has still to be told, according to the status.
    pub(super) fn untold(webhook: &Webhook) -> Self {
        Self {
            disabled_at: webhook.untold().map(|disabled| disabled.at),
            backlog_since: webhook.untold_backlog().map(|backlog| backlog.since),
        }
    }

    pub(super) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Whether both tell of the same disablement or the same backlog.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let same = |one: Option<Timestamp>, other| one.is_some() && one == other;
        same(self.disabled_at, other.disabled_at) || same(self.backlog_since, other.backlog_since)
    }
}

/// The outcome of an e-mail to the account holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Notification {
    /// What it tells.
    pub(super) told: Told,
    /// When the e-mail was sent, or why it has not been sent yet.
    pub(super) result: Result<Timestamp, String>,
}

impl Shared {
    pub(super) fn new(deps: Deps, instances: ReconcileQueue<Instance>) -> Self {
        let settings = &deps.settings;
        let dispatcher = Dispatcher::new(
            settings.limits(),
            settings.retry_schedule.clone(),
            settings.delivery_log,
        );
        Self {
            secrets: SecretCache::default(),
            instances,
            state: Mutex::new(State {
                tenure: None,
                dispatcher,
                webhooks: BTreeMap::new(),
                dirty: HashSet::new(),
                later: BTreeSet::new(),
                mails: MailQueue::default(),
                mail_limiter: MailLimiter::new(deps.mail_limits),
                disabled: HashSet::new(),
                unclaimed: VecDeque::new(),
                instances: None,
                floor: 0,
                ending: HashMap::new(),
            }),
            wake: Notify::new(),
            unverified: Notify::new(),
            urgent: Notify::new(),
            unread: Notify::new(),
            deps,
        }
    }

    pub(super) fn now(&self) -> Now {
        Now {
            wall: milliseconds(self.deps.clock.now()),
            mono: Instant::now(),
        }
    }

    /// Whether this replica is the leader now. Check it before sending anything out of the cluster: another leader may
    /// already have sent it.
    pub(super) fn leads(&self) -> bool {
        self.state.lock().tenure.as_ref().is_some_and(Tenure::holds)
    }

    /// Loads the initial state: webhooks, then owed deliveries, then outboxes. The first two come from a fresh list, because
    /// the watches may lag behind the previous leader's writes.
    pub(super) fn open(&self, stores: &Stores, listed: Listed, tenure: Tenure) {
        let now = self.now();
        let mut state = self.state.lock();
        state.tenure = Some(tenure);
        state.instances = Some(stores.instances.clone());
        state.floor = listed.revision;
        // The list first: counting continues from the first status that is seen, and the watch may lag behind.
        for webhook in listed.webhooks {
            self.webhook_seen(&mut state, Arc::new(webhook), now);
        }
        for webhook in stores.webhooks.state() {
            self.webhook_shown(&mut state, &webhook, now);
        }
        let mut deliveries = listed.deliveries;
        sort_for_adoption(&mut deliveries);
        for delivery in deliveries {
            state.dispatcher.delivery_seen(delivery, true, now);
        }
        for instance in stores.instances.state() {
            if !outbox(&instance).is_empty() {
                see_outbox(&mut state, &instance, Origin::Found, now);
            }
        }
        drop(state);
        self.wake.notify_one();
        self.unverified.notify_one();
    }

    /// Records a webhook from a watch, a list or a write. Ignores versions older than the known one.
    pub(super) fn webhook_seen(&self, state: &mut State, webhook: Arc<Webhook>, now: Now) {
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
                    notification: None,
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
    pub(super) fn webhook_shown(&self, state: &mut State, webhook: &Arc<Webhook>, now: Now) {
        self.webhook_seen(state, webhook.clone(), now);
        if let Some(cached) = state.webhooks.get_mut(&key_of(webhook)) {
            cached.shown = true;
        }
    }

    /// Updates the dispatcher's facts about a webhook, because something that they depend on has changed.
    pub(super) fn update_facts(&self, state: &mut State, key: &WebhookKey, now: Now) {
        let Some(cached) = state.webhooks.get(key) else {
            return;
        };
        let facts = self.facts(&cached.webhook, key);
        if self.secrets.get(key, &cached.webhook).is_unread() {
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
        if !Told::untold(&cached.webhook).is_nothing() {
            let namespace = cached.webhook.metadata.namespace.as_deref();
            state.mails.add(namespace.unwrap_or_default(), key, now.wall);
        }
        state.dispatcher.webhook_seen(facts, now);
        state.dirty.insert(key.clone());
        self.wake.notify_one();
        self.urgent.notify_one();
    }

    fn facts(&self, webhook: &Webhook, key: &WebhookKey) -> WebhookFacts {
        let metadata = &webhook.metadata;
        let gate = if !webhook.spec.active || self.is_left_over(webhook) {
            Gate::Inactive
        } else if webhook.disabled().is_some() {
            Gate::Disabled
        } else if self.obstacle(webhook, key).is_some() {
            Gate::Blocked
        } else {
            Gate::Open
        };
        WebhookFacts {
            namespace: metadata.namespace.as_deref().unwrap_or_default().into(),
            name: metadata.name.as_deref().unwrap_or_default().into(),
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
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

    /// UID of the Account that a webhook's namespace belongs to.
    pub(super) fn account_uid(&self, webhook: &Webhook) -> Option<String> {
        let namespace = webhook.metadata.namespace.as_deref().unwrap_or_default();
        self.deps.directory.account_of(namespace)?.metadata.uid.clone()
    }

    /// Whether the webhook belongs to a former account of the namespace.
    fn is_left_over(&self, webhook: &Webhook) -> bool {
        let owner = self.account_uid(webhook);
        owner.is_some_and(|uid| webhook.is_of_another_account(&uid))
    }

    /// Why an active webhook cannot be sent to: reason and message of the condition.
    pub(super) fn obstacle(&self, webhook: &Webhook, key: &WebhookKey) -> Option<(&'static str, String)> {
        let namespace = webhook.metadata.namespace.as_deref().unwrap_or_default();
        if self.deps.directory.account_of(namespace).is_none() {
            let message = format!(
                "namespace {namespace} belongs to no Account, so nothing is sent; create an Account with spec.namespace {namespace}"
            );
            return Some(("NoAccount", message));
        }
        if self.is_left_over(webhook) {
            let message = format!(
                "the webhook was made for a former account of namespace {namespace}, so nothing is sent; delete it, and create another if you need one"
            );
            return Some((FORMER_ACCOUNT, message));
        }
        if let Err(complaint) = ReceiverUrl::parse(&webhook.spec.url, &self.deps.rules) {
            return Some(("InvalidURL", format!("spec.url {complaint}")));
        }
        self.secrets
            .get(key, webhook)
            .problem()
            .map(Problem::reason_and_message)
    }

    /// Forgets a deleted webhook, unless another one has its name by now.
    pub(super) fn webhook_gone(&self, state: &mut State, key: &WebhookKey, gone: &Webhook) {
        let is_it = |cached: &CachedWebhook| cached.webhook.metadata.uid == gone.metadata.uid;
        if !state.webhooks.get(key).is_some_and(is_it) {
            return;
        }
        let Some(cached) = state.webhooks.remove(key) else {
            return;
        };
        state.dirty.remove(key);
        state.disabled.remove(key);
        let namespace = cached.webhook.metadata.namespace.as_deref();
        state.mails.remove(namespace.unwrap_or_default(), key);
        let uid = cached.webhook.metadata.uid.as_deref().unwrap_or_default();
        let after = revision(&*cached.webhook);
        state.dispatcher.webhook_gone(key, uid, after);
        self.secrets.forget(key);
        self.wake.notify_one();
    }

    pub(super) fn owner_changed(&self, namespace: &str) {
        let now = self.now();
        let mut state = self.state.lock();
        let keys = state.dispatcher.webhooks_in(namespace);
        for key in keys {
            self.update_facts(&mut state, &key, now);
        }
    }

    /// Takes over outbox entries that stayed unclaimed for [`CLAIM_GRACE`]. Returns when to check again.
    pub(super) fn claim(&self, state: &mut State, now: Now) -> Option<Instant> {
        let due = state
            .unclaimed
            .partition_point(|(since, _)| *since + CLAIM_GRACE <= now.mono);
        for (_, place) in state.unclaimed.drain(..due).collect::<Vec<_>>() {
            // The current version: entries that were claimed and removed since are no longer in it.
            let instance = state.instances.as_ref().and_then(|store| store.get(&place));
            if let Some(instance) = instance {
                see_outbox(state, &instance, Origin::Found, now);
                self.unverified.notify_one();
            }
        }
        state.unclaimed.front().map(|(since, _)| *since + CLAIM_GRACE)
    }
}

impl Shared {
    /// Does something with every webhook, without holding the lock for all of them at once.
    pub(super) fn for_each_webhook(&self, mut each: impl FnMut(&mut State, &WebhookKey)) {
        let mut last: Option<WebhookKey> = None;
        loop {
            let mut state = self.state.lock();
            let keys = state.webhooks_after(last.as_ref());
            for key in &keys {
                each(&mut state, key);
            }
            drop(state);
            let Some(key) = keys.last() else { return };
            last = Some(key.clone());
        }
    }
}

impl Outbox for Shared {
    fn is_settled(&self, event_id: &str) -> bool {
        self.state.lock().dispatcher.is_settled(event_id)
    }

    fn recorded(&self, instance: &Instance, before: i64) {
        let entries = outbox(instance);
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
        // Also without new events, so that older versions from the watch are recognised as stale.
        see_outbox(&mut state, instance, origin, now);
        drop(state);
        if is_news {
            self.wake.notify_one();
            self.unverified.notify_one();
        }
    }
}

/// The initial lists of a new leader.
pub(super) struct Listed {
    pub(super) webhooks: Vec<Webhook>,
    pub(super) deliveries: Vec<Arc<Delivery>>,
    /// resourceVersion of the list of Deliveries.
    pub(super) revision: u64,
}

fn see_outbox(state: &mut State, instance: &Instance, origin: Origin, now: Now) {
    let metadata = &instance.metadata;
    if instance.is_deleting()
        && let Some(uid) = metadata.uid.clone()
    {
        state.ending.insert(uid, ObjectRef::from_obj(instance));
    }
    state.dispatcher.outbox_seen(
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.uid.as_deref().unwrap_or_default(),
        revision(instance),
        outbox(instance),
        origin,
        now,
    );
}

/// The outbox of an instance.
pub(super) fn outbox(instance: &Instance) -> &[OutboxEntry] {
    instance
        .status
        .as_ref()
        .map_or(&[], |status| status.outbox.as_slice())
}

/// The key of a webhook.
pub(super) fn key_of(webhook: &Webhook) -> WebhookKey {
    let metadata = &webhook.metadata;
    key(
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}
