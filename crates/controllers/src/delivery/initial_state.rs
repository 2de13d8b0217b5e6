//! Loads the state that a new leader starts with, in steps, so that the watches never have to wait for it.

use std::{collections::VecDeque, sync::Arc};

use super::{listeners, resend, sources::Sources};
use crate::webhook::{
    Stores,
    shared::{AT_ONCE, Shared, Shown, State, see_outbox},
};
use domain::delivery::{Now, Origin, sort_for_adoption};
use resources::{Delivery, Webhook};
use runtime::{lease::Tenure, watch::Change};

/// The initial lists of a new leader.
pub(crate) struct Listed {
    pub(crate) webhooks: Vec<Webhook>,
    pub(crate) deliveries: Vec<Arc<Delivery>>,
    /// resourceVersion of the list of Deliveries.
    pub(crate) revision: u64,
}

/// Buffers what the watches show from now on, until [`open`] has loaded the initial state.
pub(crate) fn prepare(shared: &Shared, stores: &Stores) {
    let mut state = shared.state.lock();
    state.inbox = Some(VecDeque::new());
    state.sources = Sources::new(&stores.sources);
}

/// Loads the initial state: webhooks, then unfinished deliveries, then outboxes. The first two come from a fresh list,
/// because the watches may lag behind the previous leader's writes. Then the changes that the watches have shown since
/// [`prepare`] are handled in order, so that nothing is lost or overtaken.
pub(crate) async fn open(shared: &Shared, stores: &Stores, listed: Listed, tenure: Tenure) {
    shared.state.lock().floor = listed.revision;
    // Load the list first: counting continues from the first status seen, and the watch may lag behind.
    load(shared, listed.webhooks, |state, webhook, now| {
        shared.webhook_seen(state, Arc::new(webhook), now);
    })
    .await;
    load(shared, stores.webhooks.state(), |state, webhook, now| {
        shared.webhook_shown(state, &webhook, now);
    })
    .await;
    let mut deliveries = listed.deliveries;
    sort_for_adoption(&mut deliveries);
    load(shared, deliveries, |state, delivery, now| {
        if !resend::take(state, &delivery) {
            state.dispatcher.delivery_seen(delivery, true, now);
        }
    })
    .await;
    let sources = Sources::new(&stores.sources);
    load(shared, sources.with_events(), |state, source, now| {
        sources.current(&source, |outbox| see_outbox(state, outbox, Origin::Found, now));
    })
    .await;
    loop {
        let next = {
            let mut state = shared.state.lock();
            let next = state.inbox.as_mut().and_then(VecDeque::pop_front);
            if next.is_none() {
                state.inbox = None;
                state.tenure = Some(tenure);
                break;
            }
            next
        };
        match next {
            // The store already includes what the watch has shown since, so use its current state.
            Some(Shown::Webhook(Change::Replaced(_))) => {
                let all = Change::Replaced(stores.webhooks.state());
                listeners::handle(shared, Shown::Webhook(all));
            }
            Some(Shown::Delivery(Change::Replaced(_))) => {
                let all = Change::Replaced(stores.deliveries.state());
                listeners::handle(shared, Shown::Delivery(all));
            }
            Some(shown) => listeners::handle(shared, shown),
            None => {}
        }
        tokio::task::yield_now().await;
    }
    shared.wake.notify_one();
    shared.unverified.notify_one();
}

/// Calls `each` for every item, without holding the lock or the thread for all of them.
async fn load<T>(shared: &Shared, all: Vec<T>, mut each: impl FnMut(&mut State, T, Now)) {
    for (number, item) in all.into_iter().enumerate() {
        each(&mut shared.state.lock(), item, shared.now());
        if number % AT_ONCE == 0 {
            tokio::task::yield_now().await;
        }
    }
}
