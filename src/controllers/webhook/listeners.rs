//! Passes changes from the watches to the dispatcher. Ignores them until this replica is the leader.

use std::{collections::HashSet, sync::Arc};

use kube::runtime::reflector::ObjectRef;

use super::shared::{AT_ONCE, CachedWebhook, Shared, key_of, outbox};
use crate::{
    delivery::dispatch::{JobKey, WebhookKey, job_key_of, sort_for_adoption},
    resources::{Delivery, Instance, Webhook},
    runtime::watch::{Change, Listener, revision},
};

/// Listener for the watch of Webhooks.
pub(super) fn webhooks(shared: &Arc<Shared>) -> Box<dyn Listener<Webhook>> {
    let shared = shared.clone();
    Box::new(move |change: &Change<Webhook>| {
        let now = shared.now();
        if let Change::Replaced(all) = change {
            webhooks_listed(&shared, all);
            return;
        }
        let mut state = shared.state.lock();
        if state.tenure.is_none() {
            return;
        }
        match change {
            Change::Applied(webhook) => shared.webhook_shown(&mut state, webhook, now),
            Change::Deleted(webhook) => shared.webhook_gone(&mut state, &key_of(webhook), webhook),
            Change::Replaced(_) | Change::Unreadable(_) => {}
        }
    })
}

/// Handles a new list of all webhooks.
fn webhooks_listed(shared: &Shared, all: &[Arc<Webhook>]) {
    if shared.state.lock().tenure.is_none() {
        return;
    }
    let listed: HashSet<WebhookKey> = all.iter().map(|webhook| key_of(webhook)).collect();
    shared.for_each_webhook(|state, key| {
        let is_gone = |cached: &&CachedWebhook| cached.shown && !listed.contains(key);
        let gone = state.webhooks.get(key).filter(is_gone);
        if let Some(webhook) = gone.map(|cached| cached.webhook.clone()) {
            shared.webhook_gone(state, key, &webhook);
        }
    });
    for some in all.chunks(AT_ONCE) {
        let now = shared.now();
        let mut state = shared.state.lock();
        for webhook in some {
            shared.webhook_shown(&mut state, webhook, now);
        }
    }
}

/// Handles a new list of all unfinished Deliveries.
fn deliveries_listed(shared: &Shared, all: &[Arc<Delivery>]) {
    let floor = {
        let state = shared.state.lock();
        if state.tenure.is_none() {
            return;
        }
        state.floor
    };
    let listed: HashSet<JobKey> = all.iter().map(|delivery| job_key_of(delivery)).collect();
    let as_of = all
        .iter()
        .map(|delivery| revision(&**delivery))
        .max()
        .unwrap_or(0);
    shared.for_each_webhook(|state, key| state.dispatcher.forget_unlisted(key, &listed, as_of));
    shared
        .state
        .lock()
        .dispatcher
        .forget_unlisted_orphans(&listed, as_of);
    let mut sorted = all.to_vec();
    sort_for_adoption(&mut sorted);
    for some in sorted.chunks(AT_ONCE) {
        let now = shared.now();
        let mut state = shared.state.lock();
        for delivery in some {
            state.dispatcher.delivery_listed(delivery, floor, now);
        }
    }
    shared.wake.notify_one();
}

/// Listener for the watch of unfinished Deliveries.
pub(super) fn deliveries(shared: &Arc<Shared>) -> Box<dyn Listener<Delivery>> {
    let shared = shared.clone();
    Box::new(move |change: &Change<Delivery>| {
        if let Change::Replaced(all) = change {
            deliveries_listed(&shared, all);
            return;
        }
        let now = shared.now();
        let mut state = shared.state.lock();
        if state.tenure.is_none() {
            return;
        }
        match change {
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
            Change::Replaced(_) | Change::Unreadable(_) => return,
        }
        drop(state);
        shared.wake.notify_one();
    })
}

/// Listener for the watch of Instances.
pub(super) fn instances(shared: &Arc<Shared>) -> Box<dyn Listener<Instance>> {
    let shared = shared.clone();
    Box::new(move |change: &Change<Instance>| {
        let now = shared.now();
        let mut state = shared.state.lock();
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
        // The worker takes over entries that remain unclaimed.
        shared.wake.notify_one();
    })
}
