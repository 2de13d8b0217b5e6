//! The webhooks whose status may have to be written, and when. No I/O.

use std::{
    collections::{BTreeSet, HashSet},
    mem,
    time::{Duration, Instant},
};

use super::{shared::AT_ONCE, write_budget::WriteBudget};
use domain::{delivery::WebhookKey, webhook::Urgency};

/// Minimum time between two writes of a webhook's counters or failures (decisions, section 5).
const EVERY: Duration = Duration::from_secs(10);
/// Pause after a failed write of a webhook's status.
const AFTER_FAILURE: Duration = Duration::from_secs(2);

/// The queue of statuses to look at and to write.
#[derive(Debug)]
pub(crate) struct StatusQueue {
    /// Webhooks whose status may have to be written.
    dirty: HashSet<WebhookKey>,
    /// Webhooks whose status has to be written later, and when.
    later: BTreeSet<(Instant, WebhookKey)>,
    /// The budget for writes of counters.
    counters: WriteBudget,
    /// The budget for writes of changed health.
    health: WriteBudget,
    /// Whether the process is shutting down, so that no write may be deferred.
    is_ending: bool,
}

/// When a status may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Now,
    /// Not yet; ask again then.
    NotBefore(Instant),
    /// Once the budget admits it.
    Queued,
}

/// When a webhook's status was last written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastWrites {
    pub(super) succeeded: Option<Instant>,
    pub(super) failed: Option<Instant>,
}

impl Default for StatusQueue {
    fn default() -> Self {
        Self {
            dirty: HashSet::new(),
            later: BTreeSet::new(),
            counters: WriteBudget::of_counters(),
            health: WriteBudget::of_health(),
            is_ending: false,
        }
    }
}

impl StatusQueue {
    /// Notes that the status of a webhook may have to be written.
    pub(crate) fn touch(&mut self, webhook: WebhookKey) {
        self.dirty.insert(webhook);
    }

    /// Removes and returns the webhooks to look at now.
    pub(super) fn take(&mut self) -> HashSet<WebhookKey> {
        mem::take(&mut self.dirty)
    }

    /// Whether there is nothing to look at now.
    pub(super) fn is_empty(&self) -> bool {
        self.dirty.is_empty()
    }

    /// Has a webhook looked at again at this time.
    pub(super) fn postpone(&mut self, webhook: WebhookKey, until: Instant) {
        self.later.insert((until, webhook));
    }

    /// Has some of the webhooks looked at that are due. Returns whether there may be more.
    pub(super) fn wake_some(&mut self, now: Instant) -> bool {
        for _ in 0..AT_ONCE {
            let is_due = self.later.first().is_some_and(|(at, _)| *at <= now);
            let due = if is_due {
                self.later.pop_first().map(|(_, key)| key)
            } else {
                let admitted = self.health.admit_next(now);
                admitted.or_else(|| self.counters.admit_next(now))
            };
            let Some(key) = due else { return false };
            self.dirty.insert(key);
        }
        true
    }

    /// When a webhook's status may be written: some time after its last write, and within the budget shared by all webhooks.
    pub(super) fn when(
        &mut self,
        webhook: &WebhookKey,
        urgency: Urgency,
        last_writes: LastWrites,
        now: Instant,
    ) -> When {
        let from = |last: Option<Instant>, pause| last.map(|at| at + pause).filter(|at| *at > now);
        if self.is_ending {
            return When::Now;
        }
        if let Some(at) = from(last_writes.failed, AFTER_FAILURE) {
            return When::NotBefore(at);
        }
        let budget = match urgency {
            Urgency::Now => return When::Now,
            Urgency::Failure | Urgency::Recovery => &mut self.health,
            Urgency::Counters => &mut self.counters,
        };
        match from(last_writes.succeeded, EVERY) {
            Some(at) if urgency != Urgency::Recovery => When::NotBefore(at),
            _ if budget.admit(webhook, now) => When::Now,
            _ => When::Queued,
        }
    }

    /// Notes that a status is as it should be.
    pub(super) fn done(&mut self, webhook: &WebhookKey) {
        self.counters.done(webhook);
        self.health.done(webhook);
    }

    /// Forgets a deleted webhook.
    pub(super) fn forget(&mut self, webhook: &WebhookKey) {
        self.dirty.remove(webhook);
        self.counters.forget(webhook);
        self.health.forget(webhook);
    }

    /// Has all webhooks looked at that wait. From now on, nothing waits.
    pub(super) fn end(&mut self) {
        self.is_ending = true;
        let later = mem::take(&mut self.later);
        self.dirty.extend(later.into_iter().map(|(_, key)| key));
        self.dirty.extend(self.counters.close());
        self.dirty.extend(self.health.close());
    }

    /// Whether there is nothing to look at or to write, now or later.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        let budgets = [&self.counters, &self.health];
        self.dirty.is_empty() && self.later.is_empty() && budgets.iter().all(|budget| budget.is_idle())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_health_waits_for_other_changes_of_health_alone() {
        let mut queue = StatusQueue::default();
        let keys: Vec<WebhookKey> = (0..3).map(|number| format!("ns/{number}").into()).collect();
        let now = Instant::now();
        let mut when =
            |number: usize, urgency| queue.when(&keys[number], urgency, LastWrites::default(), now);
        assert_eq!(when(0, Urgency::Counters), When::Now);
        assert_eq!(when(1, Urgency::Counters), When::Queued);
        assert_eq!(when(1, Urgency::Failure), When::Now);
        assert_eq!(when(2, Urgency::Recovery), When::Queued);
        assert_eq!(when(2, Urgency::Now), When::Now);
        // It may be written for its health, but its health is what it was: its counters wait like those of others.
        let admitted = queue.health.admit_next(now + Duration::from_secs(1));
        assert_eq!(admitted.as_ref(), Some(&keys[2]));
        let counters = queue.when(&keys[2], Urgency::Counters, LastWrites::default(), now);
        assert_eq!(counters, When::Queued);
    }

    #[test]
    fn a_webhook_that_recovers_is_written_at_once_however_short_ago_its_failure_was() {
        let mut queue = StatusQueue::default();
        let now = Instant::now();
        let last_writes = LastWrites {
            succeeded: Some(now),
            failed: None,
        };
        let mut when = |urgency| queue.when(&"ns/hook".into(), urgency, last_writes, now);
        let later = When::NotBefore(now + Duration::from_secs(10));
        assert_eq!(when(Urgency::Failure), later);
        assert_eq!(when(Urgency::Counters), later);
        assert_eq!(when(Urgency::Recovery), When::Now);
        assert_eq!(when(Urgency::Now), When::Now);
    }
}
