//! Loads the state that a new leader starts with, in steps, so that the watches never have to wait for it.

use std::{collections::VecDeque, sync::Arc};

use super::{listeners, outboxes::Sources, resend};
use crate::webhook::{
    Stores,
    shared::{AT_ONCE, Shared, State},
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

/// Whether this replica is the leader.
#[derive(Default)]
pub(crate) struct Opening {
    /// Set once this replica is the leader and has loaded the initial state. Until then, changes are ignored or kept in
    /// `inbox`.
    pub(crate) tenure: Option<Tenure>,
    /// What the watches have shown while the initial state is being loaded, to be handled afterwards.
    inbox: Option<VecDeque<Shown>>,
}

/// A change that a watch has shown.
pub(super) enum Shown {
    Webhook(Change<Webhook>),
    Delivery(Change<Delivery>),
    /// A change of a kind with an outbox, as the function that handles it.
    Outbox(Box<dyn FnOnce(&Shared) + Send>),
}

impl Opening {
    /// Whether this replica is the leader now.
    pub(crate) fn leads(&self) -> bool {
        self.tenure.as_ref().is_some_and(Tenure::holds)
    }

    /// Whether this replica has become the leader and loaded the initial state.
    pub(super) fn is_over(&self) -> bool {
        self.tenure.is_some()
    }

    /// Whether to handle a change now. If not, it is either kept until the initial state has been loaded, or dropped
    /// because the initial state will be loaded later anyway.
    pub(super) fn admits(&mut self, shown: impl FnOnce() -> Shown) -> bool {
        if let Some(inbox) = &mut self.inbox {
            inbox.push_back(shown());
            return false;
        }
        self.is_over()
    }

    /// The next change to handle. If there is none, the initial state has been loaded.
    fn next(&mut self, tenure: &Tenure) -> Option<Shown> {
        let next = self.inbox.as_mut().and_then(VecDeque::pop_front);
        if next.is_none() {
            self.inbox = None;
            self.tenure = Some(tenure.clone());
        }
        next
    }
}

/// Buffers what the watches show from now on, until [`open`] has loaded the initial state.
pub(crate) fn prepare(shared: &Shared, stores: &Stores) {
    shared.opening.lock().inbox = Some(VecDeque::new());
    shared.state.lock().outboxes.sources = Sources::new(&stores.sources);
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
        if !resend::take(shared, &delivery) {
            state.dispatcher.delivery_seen(delivery, true, now);
        }
    })
    .await;
    let sources = Sources::new(&stores.sources);
    load(shared, sources.with_events(), |state, source, now| {
        sources.current(&source, |outbox| state.outbox_seen(outbox, Origin::Found, now));
    })
    .await;
    loop {
        let next = shared.opening.lock().next(&tenure);
        let Some(next) = next else { break };
        match next {
            // The store already includes what the watch has shown since, so use its current state.
            Shown::Webhook(Change::Replaced(_)) => {
                let all = Change::Replaced(stores.webhooks.state());
                listeners::handle(shared, Shown::Webhook(all));
            }
            Shown::Delivery(Change::Replaced(_)) => {
                let all = Change::Replaced(stores.deliveries.state());
                listeners::handle(shared, Shown::Delivery(all));
            }
            shown => listeners::handle(shared, shown),
        }
        tokio::task::yield_now().await;
    }
    shared.wake.worker.notify_one();
    shared.wake.lookup.notify_one();
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
