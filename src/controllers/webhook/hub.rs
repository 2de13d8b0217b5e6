//! What the parts of the controller share.

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
        dispatch::{Disablement, Dispatcher, Gate, LaneKey, Now, Origin, WebhookFacts, key},
    },
    events::{Outbox, OutboxEntry},
    resources::{Delivery, Instance, Webhook, WebhookStatus},
    runtime::{
        ReconcileQueue,
        clock::milliseconds,
        lease::Tenure,
        watch::{Change, Listener, revision},
    },
};

/// How long an outbox entry that the watch shows is left to whoever has just written it.
const CLAIM_GRACE: Duration = Duration::from_secs(2);

impl Outbox for Hub {
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

/// Shared state.
pub(super) struct Hub {
    pub(super) deps: Deps,
    /// Has instances looked at again.
    pub(super) instances: ReconcileQueue<Instance>,
    pub(super) state: Mutex<State>,
    /// The driver has something to look at.
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
    tenure: Option<Tenure>,
    pub(super) dispatcher: Dispatcher,
    pub(super) webhooks: HashMap<LaneKey, Known>,
    /// Webhooks whose status may differ from what is written.
    pub(super) dirty: HashSet<LaneKey>,
    /// Instances with an outbox entry that nobody has claimed, since when.
    unclaimed: VecDeque<(Instant, ObjectRef<Instance>)>,
    instances: Option<Store<Instance>>,
    deliveries: Option<Store<Delivery>>,
    /// The version of the list that was begun with: what the watch of Deliveries shows of before is old.
    floor: u64,
    /// Instances that are gone but for their last event, by UID.
    ending: HashMap<String, ObjectRef<Instance>>,
}

impl State {
    /// The instance with this UID whose last event was on its way.
    pub(super) fn take_ending(&mut self, uid: &str) -> Option<Arc<Instance>> {
        let place = self.ending.remove(uid)?;
        self.instances.as_ref()?.get(&place)
    }
}

/// A webhook as it is known.
pub(super) struct Known {
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

impl Hub {
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
        let lane = lane_of(&webhook);
        let known = state.webhooks.get_mut(&lane);
        match known {
            Some(known) if revision(&*known.webhook) > revision(&*webhook) => return,
            _ if webhook.is_deleting() => {
                self.webhook_gone(state, &lane, &webhook);
                return;
            }
            Some(known) if known.webhook.metadata.uid == webhook.metadata.uid => {
                if revision(&*known.webhook) == revision(&*webhook) {
                    return;
                }
                known.webhook = webhook;
            }
            _ => {
                self.secrets.forget(&lane);
                let base = webhook.status.clone().unwrap_or_default();
                let known = Known {
                    webhook,
                    base,
                    shown: false,
                    disablement: None,
                    notification: None,
                    written: None,
                    failed: None,
                };
                state.webhooks.insert(lane.clone(), known);
                self.look_again(state, &lane, now);
                take_up(state, &lane, now);
                return;
            }
        }
        self.look_again(state, &lane, now);
    }

    /// A webhook as the watch shows it.
    fn webhook_shown(&self, state: &mut State, webhook: &Arc<Webhook>, now: Now) {
        self.webhook_seen(state, webhook.clone(), now);
        if let Some(known) = state.webhooks.get_mut(&lane_of(webhook)) {
            known.shown = true;
        }
    }

    /// Tells the dispatcher what holds of a webhook: something that this depends on has changed.
    pub(super) fn look_again(&self, state: &mut State, lane: &LaneKey, now: Now) {
        let Some(known) = state.webhooks.get(lane) else {
            return;
        };
        let facts = self.facts(&known.webhook, lane);
        if self.secrets.get(lane, &known.webhook).is_unread() {
            self.unread.notify_one();
        }
        state.dispatcher.webhook_seen(facts, now);
        state.dirty.insert(lane.clone());
        self.wake.notify_one();
        self.urgent.notify_one();
    }

    fn facts(&self, webhook: &Webhook, lane: &LaneKey) -> WebhookFacts {
        let metadata = &webhook.metadata;
        let gate = if !webhook.spec.active {
            Gate::Inactive
        } else if webhook.disabled().is_some() {
            Gate::Disabled
        } else if self.obstacle(webhook, lane).is_some() {
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
    pub(super) fn obstacle(&self, webhook: &Webhook, lane: &LaneKey) -> Option<(&'static str, String)> {
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
        self.secrets.get(lane, webhook).problem().map(Problem::told)
    }

    /// A webhook is no longer there. Another one that has its name by now stays.
    pub(super) fn webhook_gone(&self, state: &mut State, lane: &LaneKey, gone: &Webhook) {
        let is_it = |known: &Known| known.webhook.metadata.uid == gone.metadata.uid;
        if !state.webhooks.get(lane).is_some_and(is_it) {
            return;
        }
        let Some(known) = state.webhooks.remove(lane) else {
            return;
        };
        state.dirty.remove(lane);
        let uid = known.webhook.metadata.uid.as_deref().unwrap_or_default();
        let after = revision(&*known.webhook);
        state.dispatcher.webhook_gone(lane, uid, after);
        self.secrets.forget(lane);
        self.wake.notify_one();
    }

    pub(super) fn owner_changed(&self, namespace: &str) {
        let now = self.now();
        let mut state = self.state.lock();
        let of_it = |known: &&Known| known.webhook.metadata.namespace.as_deref() == Some(namespace);
        let lanes: Vec<LaneKey> = state
            .webhooks
            .values()
            .filter(of_it)
            .map(|k| lane_of(&k.webhook))
            .collect();
        for lane in lanes {
            self.look_again(&mut state, &lane, now);
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

/// What there is when a replica begins to lead.
pub(super) struct Listed {
    pub(super) webhooks: Vec<Webhook>,
    pub(super) deliveries: Vec<Arc<Delivery>>,
    /// The version of the list of Deliveries.
    pub(super) revision: u64,
}

/// Takes up what is owed to a webhook that could not be read for a while.
fn take_up(state: &mut State, lane: &LaneKey, now: Now) {
    let Some(deliveries) = &state.deliveries else {
        return;
    };
    let (namespace, name) = lane.split_once('/').unwrap_or_default();
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

fn outbox(instance: &Instance) -> &[OutboxEntry] {
    instance
        .status
        .as_ref()
        .map_or(&[], |status| status.outbox.as_slice())
}

/// The key of a webhook.
pub(super) fn lane_of(webhook: &Webhook) -> LaneKey {
    let metadata = &webhook.metadata;
    key(
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

pub(super) fn webhook_listener(hub: &Arc<Hub>) -> Box<dyn Listener<Webhook>> {
    let hub = hub.clone();
    Box::new(move |change: &Change<Webhook>| {
        let now = hub.now();
        let mut state = hub.state.lock();
        if state.tenure.is_none() {
            return;
        }
        match change {
            Change::Replaced(all) => {
                let listed: HashSet<LaneKey> = all.iter().map(|webhook| lane_of(webhook)).collect();
                let gone: Vec<(LaneKey, Arc<Webhook>)> = state
                    .webhooks
                    .iter()
                    .filter(|(lane, known)| known.shown && !listed.contains(*lane))
                    .map(|(lane, known)| (lane.clone(), known.webhook.clone()))
                    .collect();
                for (lane, webhook) in gone {
                    hub.webhook_gone(&mut state, &lane, &webhook);
                }
                for webhook in all {
                    hub.webhook_shown(&mut state, webhook, now);
                }
            }
            Change::Applied(webhook) => hub.webhook_shown(&mut state, webhook, now),
            Change::Deleted(webhook) => hub.webhook_gone(&mut state, &lane_of(webhook), webhook),
            Change::Unreadable(_) => {}
        }
    })
}

pub(super) fn delivery_listener(hub: &Arc<Hub>) -> Box<dyn Listener<Delivery>> {
    let hub = hub.clone();
    Box::new(move |change: &Change<Delivery>| {
        let now = hub.now();
        let mut state = hub.state.lock();
        if state.tenure.is_none() {
            return;
        }
        match change {
            Change::Replaced(all) => {
                let floor = state.floor;
                state.dispatcher.deliveries_listed(all, floor, now);
            }
            Change::Applied(delivery) | Change::Deleted(delivery) if revision(&**delivery) <= state.floor => {
                return;
            }
            Change::Applied(delivery) => state.dispatcher.delivery_seen(delivery.clone(), false, now),
            Change::Deleted(delivery) => {
                let metadata = &delivery.metadata;
                state.dispatcher.delivery_gone(
                    metadata.namespace.as_deref().unwrap_or_default(),
                    metadata.name.as_deref().unwrap_or_default(),
                );
            }
            Change::Unreadable(_) => return,
        }
        drop(state);
        hub.wake.notify_one();
    })
}

pub(super) fn instance_listener(hub: &Arc<Hub>) -> Box<dyn Listener<Instance>> {
    let hub = hub.clone();
    Box::new(move |change: &Change<Instance>| {
        let now = hub.now();
        let mut state = hub.state.lock();
        if state.tenure.is_none() {
            return;
        }
        let mut see = |instance: &Arc<Instance>| {
            let entries = outbox(instance);
            let uid = instance.metadata.uid.as_deref().unwrap_or_default();
            state.dispatcher.outbox_shown(uid, revision(&**instance), entries);
            if entries.iter().any(|entry| !state.dispatcher.knows(&entry.id)) {
                state
                    .unclaimed
                    .push_back((now.mono, ObjectRef::from_obj(&**instance)));
            }
        };
        match change {
            Change::Replaced(all) => {
                all.iter().for_each(see);
                let uids = all.iter().filter_map(|instance| instance.metadata.uid.as_deref());
                let newest = all.iter().map(|instance| revision(&**instance)).max();
                let gone = state
                    .dispatcher
                    .objects_listed(&uids.collect(), newest.unwrap_or(0));
                for uid in gone {
                    state.ending.remove(&*uid);
                }
            }
            Change::Applied(instance) => see(instance),
            Change::Deleted(instance) => {
                let uid = instance.metadata.uid.as_deref().unwrap_or_default();
                state.dispatcher.object_gone(uid);
                state.ending.remove(uid);
            }
            Change::Unreadable(_) => {}
        }
        drop(state);
        // The driver looks after what nobody claims.
        hub.wake.notify_one();
    })
}
