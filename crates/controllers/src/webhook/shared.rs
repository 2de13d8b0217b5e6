//! What the rooms of the controller share: the dispatcher with the webhooks and outboxes that it knows, and the parts that each room has
//! for itself. While [`Shared::state`] is locked, the lock of a part may be taken, but not the other way round.

use std::{sync::Arc, time::Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Deps, known::Webhooks, status_queue::StatusQueue};
use crate::{
    delivery::{Opening, Outboxes, Requests},
    event_log::LogTally,
    secrets::Secrets,
};
use domain::delivery::{Dispatcher, Now};
use resources::times::milliseconds;
use runtime::TimedMutex;

/// The state shared by the rooms of the controller.
pub(crate) struct Shared {
    pub(crate) deps: Deps,
    pub(crate) state: TimedMutex<State>,
    pub(crate) opening: Mutex<Opening>,
    pub(crate) statuses: Mutex<StatusQueue>,
    pub(crate) secrets: Secrets,
    pub(crate) log_tally: Mutex<LogTally>,
    /// Requests to resend a delivery that is in the event log.
    pub(crate) requests: Mutex<Requests>,
    pub(crate) wake: Wake,
}

/// Wake-ups of the controller's loops.
#[derive(Default)]
pub(crate) struct Wake {
    /// Wakes the worker.
    pub(crate) worker: Notify,
    /// Wakes the lookup: an event waits for a list of webhooks.
    pub(crate) lookup: Notify,
    /// Wakes the status writer: a status must be written now.
    pub(crate) statuses: Notify,
}

/// What must change together, under one lock that is never held across an await.
pub(crate) struct State {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) webhooks: Webhooks,
    pub(crate) outboxes: Outboxes,
    /// resourceVersion of the initial list of Deliveries; older versions from the watch are stale.
    pub(crate) floor: u64,
}

/// Number of keys copied, or of small steps taken, each time the lock is held. Others wait for the lock, so the hold time must
/// not grow with the number of webhooks, deliveries or instances.
pub(crate) const AT_ONCE: usize = 64;

impl Shared {
    pub(crate) fn new(deps: Deps) -> Self {
        let settings = &deps.settings;
        let dispatcher = Dispatcher::new(
            settings.limits(),
            settings.retry_schedule.clone(),
            settings.delivery_log,
        );
        let state = State {
            dispatcher,
            webhooks: Webhooks::default(),
            outboxes: Outboxes::default(),
            floor: 0,
        };
        Self {
            state: TimedMutex::new(state, deps.metrics.webhook_lock_seconds.clone()),
            opening: Mutex::default(),
            statuses: Mutex::default(),
            secrets: Secrets::default(),
            log_tally: Mutex::default(),
            requests: Mutex::default(),
            wake: Wake::default(),
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
        self.opening.lock().leads()
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
