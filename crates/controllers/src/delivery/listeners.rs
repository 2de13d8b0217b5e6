//! Passes changes from the watches to the dispatcher. Ignores them until this replica is the leader.

use std::{collections::HashSet, sync::Arc};

use super::{initial_state::Shown, resend};
use crate::webhook::shared::{AT_ONCE, Shared};
use domain::{
    delivery::{JobKey, job_key_of, sort_for_adoption},
    event::OutboxVersion,
};
use resources::{Delivery, HasOutbox, Webhook, origin, revision};
use runtime::watch::{Change, Listener};

/// Listener for the watch of Webhooks.
pub(crate) fn webhooks(shared: &Arc<Shared>) -> Box<dyn Listener<Webhook>> {
    let shared = shared.clone();
    Box::new(move |change: &Change<Webhook>| {
        if shared.opening.lock().admits(|| Shown::Webhook(change.clone())) {
            shared.webhook_changed(change);
        }
    })
}

/// Listener for the watch of unfinished Deliveries.
pub(crate) fn deliveries(shared: &Arc<Shared>) -> Box<dyn Listener<Delivery>> {
    let shared = shared.clone();
    Box::new(move |change: &Change<Delivery>| {
        if shared.opening.lock().admits(|| Shown::Delivery(change.clone())) {
            delivery_changed(&shared, change);
        }
    })
}

/// Listener for the watch of a kind with an outbox.
pub(crate) fn outboxes<K: HasOutbox>(shared: &Arc<Shared>) -> Box<dyn Listener<K>> {
    let shared = shared.clone();
    Box::new(move |change: &Change<K>| {
        let for_later = || {
            let change = change.clone();
            Shown::Outbox(Box::new(move |shared| object_changed(shared, &change)))
        };
        if shared.opening.lock().admits(for_later) {
            object_changed(&shared, change);
        }
    })
}

/// Handles a change that a watch has shown.
pub(super) fn handle(shared: &Shared, shown: Shown) {
    match shown {
        Shown::Webhook(change) => shared.webhook_changed(&change),
        Shown::Delivery(change) => delivery_changed(shared, &change),
        Shown::Outbox(handle) => handle(shared),
    }
}

fn delivery_changed(shared: &Shared, change: &Change<Delivery>) {
    match change {
        Change::Replaced(all) => deliveries_listed(shared, all),
        Change::Applied(delivery) => {
            let mut state = shared.state.lock();
            if revision(&**delivery) <= state.floor {
                return;
            }
            if !resend::take(shared, delivery) {
                state
                    .dispatcher
                    .delivery_seen(delivery.clone(), false, shared.now());
            }
        }
        Change::Deleted(delivery) => {
            let mut state = shared.state.lock();
            if revision(&**delivery) <= state.floor {
                return;
            }
            let metadata = &delivery.metadata;
            state.dispatcher.delivery_gone(
                metadata.namespace.as_deref().unwrap_or_default(),
                metadata.name.as_deref().unwrap_or_default(),
            );
        }
        Change::Unreadable(_) => return,
    }
    shared.wake.worker.notify_one();
}

/// Handles a new list of all unfinished Deliveries.
fn deliveries_listed(shared: &Shared, all: &[Arc<Delivery>]) {
    let floor = shared.state.lock().floor;
    let listed: HashSet<JobKey> = all.iter().map(|delivery| job_key_of(delivery)).collect();
    let as_of = all
        .iter()
        .map(|delivery| revision(&**delivery))
        .max()
        .unwrap_or(0);
    shared.for_each_webhook(|state, key| state.dispatcher.forget_unlisted(key, &listed, as_of));
    // Likewise for Deliveries whose webhook is not known, and for finished ones.
    shared.for_each_key(
        |state, last| state.dispatcher.tombstones_after(last, AT_ONCE),
        |state, key| {
            if !listed.contains(key) {
                state.dispatcher.forget_tombstone(key, as_of);
            }
        },
    );
    shared.for_each_key(
        |state, last| state.dispatcher.orphans_after(last, AT_ONCE),
        |state, key| {
            if !listed.contains(key) {
                state.dispatcher.forget_orphan(key, as_of);
            }
        },
    );
    let mut sorted = all.to_vec();
    sort_for_adoption(&mut sorted);
    for delivery in &sorted {
        let mut state = shared.state.lock();
        if !resend::take(shared, delivery) {
            state.dispatcher.delivery_listed(delivery, floor, shared.now());
        }
    }
}

fn object_changed<K: HasOutbox>(shared: &Shared, change: &Change<K>) {
    match change {
        Change::Replaced(all) => objects_listed(shared, all),
        Change::Applied(object) => shared.outbox_shown(&OutboxVersion::of(&**object)),
        Change::Deleted(object) => {
            let uid = origin::uid(object.meta());
            let mut state = shared.state.lock();
            state.dispatcher.object_gone(uid);
            state.outboxes.ending.remove(uid);
        }
        Change::Unreadable(_) => return,
    }
    // The worker takes over entries that remain unclaimed.
    shared.wake.worker.notify_one();
}

/// Handles a new list of all objects of a kind.
fn objects_listed<K: HasOutbox>(shared: &Shared, all: &[Arc<K>]) {
    for object in all {
        shared.outbox_shown(&OutboxVersion::of(&**object));
    }
    let uids = all.iter().map(|object| origin::uid(object.meta()));
    let listed: HashSet<&str> = uids.collect();
    let newest = all.iter().map(|object| revision(&**object)).max().unwrap_or(0);
    shared.for_each_key(
        |state, last| state.dispatcher.objects_after(last, AT_ONCE),
        |state, uid| {
            if !listed.contains(&**uid) && state.dispatcher.forget_unlisted_object(K::KIND, uid, newest) {
                state.outboxes.ending.remove(&**uid);
            }
        },
    );
}
