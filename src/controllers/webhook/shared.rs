//! What the parts of the controller share: the dispatcher, the webhooks as they were last seen, and whom to wake.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kube::runtime::reflector::{ObjectRef, Store};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    Deps, Stores,
    secret_cache::{Problem, SecretCache},
};
use crate::{
    delivery::{
        ReceiverUrl,
        dispatch::{Disablement, Dispatcher, Gate, Now, Origin, WebhookFacts, WebhookKey, key},
    },
    events::{Outbox, OutboxEntry},
    resources::{Delivery, Instance, Webhook, WebhookStatus},
    runtime::{ReconcileQueue, clock::milliseconds, lease::Tenure, watch::revision},
};

/// How long an outbox entry that the watch shows is left to whoever has just written it.
const CLAIM_GRACE: Duration = Duration::from_secs(2);

/// What all parts of the controller work with.
pub(super) struct Shared {
    pub(super) deps: Deps,
    /// Has instances looked at again.
    pub(super) instances: ReconcileQueue<Instance>,
    pub(super) state: Mutex<State>,
    /// The worker has something to look at.
    pub(super) wake: Notify,
    /// An event waits for the webhooks to be looked up.
    pub(super) unverified: Notify,
    /// A webhook's status is to be written now.
    pub(super) urgent: Notify,
    /// There is a secret that nobody has read yet.
    pub(super) unread: Notify,
    pub(super) secrets: SecretCache,
}

/// What is known, under one lock that is never held across a wait.
pub(super) struct State {
    /// Since this replica leads: until then nothing is taken in.
    pub(super) tenure: Option<Tenure>,
    pub(super) dispatcher: Dispatcher,
    pub(super) webhooks: HashMap<WebhookKey, CachedWebhook>,
    /// Webhooks whose status may differ from what is written.
    pub(super) dirty: HashSet<WebhookKey>,
    /// Instances with an outbox entry that nobody has claimed, since when.
    pub(super) unclaimed: VecDeque<(Instant, ObjectRef<Instance>)>,
    instances: Option<Store<Instance>>,
    deliveries: Option<Store<Delivery>>,
    /// The version of the list that was begun with: what the watch of Deliveries shows of before is old.
    pub(super) floor: u64,
    /// Instances that are gone but for their last event, by UID.
    pub(super) ending: HashMap<String, ObjectRef<Instance>>,
}

impl State {
    /// The instance with this UID whose last event was on its way.
    pub(super) fn take_ending(&mut self, uid: &str) -> Option<Arc<Instance>> {
        let place = self.ending.remove(uid)?;
        self.instances.as_ref()?.get(&place)
    }
}

/// A webhook as it was last seen, and what is still to be written into its status.
pub(super) struct CachedWebhook {
    /// The latest version.
    pub(super) webhook: Arc<Webhook>,
    /// Its status when this replica began to lead: what it counts comes on top.
    pub(super) base: WebhookStatus,
    /// Whether the watch has shown it. One that was looked up may be newer than what the watch lists.
    pub(super) shown: bool,
    /// To be written into its status.
    pub(super) disablement: Option<Disablement>,
    /// What became of the e-mail about a disablement at that time.
    pub(super) notification: Option<Notification>,
    /// When its status was last written.
    pub(super) written: Option<Instant>,
    /// When a write of its status last failed.
    pub(super) failed: Option<Instant>,
}

/// What became of the e-mail about a disablement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Notification {
    /// When the webhook was disabled.
    pub(super) disabled_at: Timestamp,
    /// When it was sent, or why it could not be yet.
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
            deps,
            instances,
            state: Mutex::new(State {
                tenure: None,
                dispatcher,
                webhooks: HashMap::new(),
                dirty: HashSet::new(),
                unclaimed: VecDeque::new(),
                instances: None,
                deliveries: None,
                floor: 0,
                ending: HashMap::new(),
            }),
            wake: Notify::new(),
            unverified: Notify::new(),
            urgent: Notify::new(),
            unread: Notify::new(),
        }
    }

    pub(super) fn now(&self) -> Now {
        Now {
            wall: milliseconds(self.deps.clock.now()),
            mono: Instant::now(),
        }
    }

    /// Whether this replica leads now. What leaves the cluster asks before it does: another replica may have done it.
    pub(super) fn leads(&self) -> bool {
        self.state.lock().tenure.as_ref().is_some_and(Tenure::holds)
    }

    /// Begins with all that is there: webhooks first, then what is owed to them, then what is not even that. The first two
    /// are as they were listed just now, since what the watches show may be older than what the leader before wrote.
    pub(super) fn open(&self, stores: &Stores, listed: Listed, tenure: Tenure) {
        let now = self.now();
        let mut state = self.state.lock();
        state.tenure = Some(tenure);
        state.instances = Some(stores.instances.clone());
        state.floor = listed.revision;
        // The list first: counting goes on from the first status that is seen, and the watch may lag.
        for webhook in listed.webhooks {
            self.webhook_seen(&mut state, Arc::new(webhook), now);
        }
        for webhook in stores.webhooks.state() {
            self.webhook_shown(&mut state, &webhook, now);
        }
        for delivery in listed.deliveries {
            state.dispatcher.delivery_seen(delivery, true, now);
        }
        state.deliveries = Some(stores.deliveries.clone());
        for instance in stores.instances.state() {
            if !outbox(&instance).is_empty() {
                see_outbox(&mut state, &instance, Origin::Found, now);
            }
        }
        drop(state);
        self.wake.notify_one();
        self.unverified.notify_one();
    }

    /// A webhook as it is now, from a watch, a list or a write. Older versions than the known one are ignored.
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
                self.look_again(state, &key, now);
                take_up(state, &key, now);
                return;
            }
        }
        self.look_again(state, &key, now);
    }

    /// A webhook as the watch shows it.
    pub(super) fn webhook_shown(&self, state: &mut State, webhook: &Arc<Webhook>, now: Now) {
        self.webhook_seen(state, webhook.clone(), now);
        if let Some(cached) = state.webhooks.get_mut(&key_of(webhook)) {
            cached.shown = true;
        }
    }

    /// Tells the dispatcher what holds of a webhook: something that this depends on has changed.
    pub(super) fn look_again(&self, state: &mut State, key: &WebhookKey, now: Now) {
        let Some(cached) = state.webhooks.get(key) else {
            return;
        };
        let facts = self.facts(&cached.webhook, key);
        if self.secrets.get(key, &cached.webhook).is_unread() {
            self.unread.notify_one();
        }
        state.dispatcher.webhook_seen(facts, now);
        state.dirty.insert(key.clone());
        self.wake.notify_one();
        self.urgent.notify_one();
    }

    fn facts(&self, webhook: &Webhook, key: &WebhookKey) -> WebhookFacts {
        let metadata = &webhook.metadata;
        let gate = if !webhook.spec.active {
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

    /// Why a webhook cannot be sent to although it wants to be: a reason and what to do about it.
    pub(super) fn obstacle(&self, webhook: &Webhook, key: &WebhookKey) -> Option<(&'static str, String)> {
        let namespace = webhook.metadata.namespace.as_deref().unwrap_or_default();
        if self.deps.directory.account_of(namespace).is_none() {
            let message = format!(
                "namespace {namespace} belongs to no Account; the webhook is left alone until one has spec.namespace {namespace}"
            );
            return Some(("NoAccount", message));
        }
        if let Err(complaint) = ReceiverUrl::parse(&webhook.spec.url, &self.deps.rules) {
            return Some(("InvalidURL", format!("spec.url {complaint}")));
        }
        self.secrets.get(key, webhook).problem().map(Problem::told)
    }

    /// A webhook is no longer there. Another one that has its name by now stays.
    pub(super) fn webhook_gone(&self, state: &mut State, key: &WebhookKey, gone: &Webhook) {
        let is_it = |cached: &CachedWebhook| cached.webhook.metadata.uid == gone.metadata.uid;
        if !state.webhooks.get(key).is_some_and(is_it) {
            return;
        }
        let Some(cached) = state.webhooks.remove(key) else {
            return;
        };
        state.dirty.remove(key);
        let uid = cached.webhook.metadata.uid.as_deref().unwrap_or_default();
        let after = revision(&*cached.webhook);
        state.dispatcher.webhook_gone(key, uid, after);
        self.secrets.forget(key);
        self.wake.notify_one();
    }

    pub(super) fn owner_changed(&self, namespace: &str) {
        let now = self.now();
        let mut state = self.state.lock();
        let of_it = |cached: &&CachedWebhook| cached.webhook.metadata.namespace.as_deref() == Some(namespace);
        let keys: Vec<WebhookKey> = state
            .webhooks
            .values()
            .filter(of_it)
            .map(|k| key_of(&k.webhook))
            .collect();
        for key in keys {
            self.look_again(&mut state, &key, now);
        }
    }

    /// Takes over what nobody has claimed within the grace. Returns when to look again.
    pub(super) fn claim(&self, state: &mut State, now: Now) -> Option<Instant> {
        let due = state
            .unclaimed
            .partition_point(|(since, _)| *since + CLAIM_GRACE <= now.mono);
        for (_, place) in state.unclaimed.drain(..due).collect::<Vec<_>>() {
            // As it is by now: what was claimed and cleared meanwhile is no longer there.
            let instance = state.instances.as_ref().and_then(|store| store.get(&place));
            if let Some(instance) = instance {
                see_outbox(state, &instance, Origin::Found, now);
                self.unverified.notify_one();
            }
        }
        state.unclaimed.front().map(|(since, _)| *since + CLAIM_GRACE)
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
        // What an earlier process left and the watch has not shown yet may have been sent.
        let is_left_over =
            |entry: &OutboxEntry| entry.sequence <= before && !state.dispatcher.knows(&entry.id);
        let origin = if entries.iter().any(is_left_over) {
            Origin::Found
        } else {
            Origin::Fresh
        };
        // Without news, too: what the watch shows of before is known to be old then.
        see_outbox(&mut state, instance, origin, now);
        drop(state);
        if is_news {
            self.wake.notify_one();
            self.unverified.notify_one();
        }
    }
}

/// What there is when a replica begins to lead.
pub(super) struct Listed {
    pub(super) webhooks: Vec<Webhook>,
    pub(super) deliveries: Vec<Arc<Delivery>>,
    /// The version of the list of Deliveries.
    pub(super) revision: u64,
}

/// Takes up what is owed to a webhook that could not be read for a while.
fn take_up(state: &mut State, key: &WebhookKey, now: Now) {
    let Some(deliveries) = &state.deliveries else {
        return;
    };
    let (namespace, name) = key.split_once('/').unwrap_or_default();
    let is_owed = |delivery: &Delivery| {
        delivery.spec.webhook == name && delivery.metadata.namespace.as_deref() == Some(namespace)
    };
    for delivery in deliveries.state_filter(is_owed) {
        state.dispatcher.delivery_seen(delivery, true, now);
    }
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

/// The events of an instance that are on their way.
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
