//! Deliveries that are held, released, or dropped because there are too many.
//!
//! A delivery is held while nothing can be sent to its webhook. It is also held while a limit of [`DeliveryLimits::pending`]
//! leaves no room for it, and released once there is room. When the total is reached, the account with the largest
//! backlog gives way, and within it the webhook with the largest backlog. If more than [`DeliveryLimits::held`] are held, the
//! oldest are dropped: those of the webhook or account that exceeds its limit, or else of the account that holds the
//! most. Accounts and webhooks without anything that can give way are skipped: held deliveries that were requested are
//! not dropped, and those in flight are not held.
//!
//! [`DeliveryLimits::pending`]: super::DeliveryLimits::pending
//! [`DeliveryLimits::held`]: super::DeliveryLimits::held

use super::{
    Dispatcher, JobKey, Now, RELEASED_AT_ONCE, Timer, WebhookKey,
    attempts::{next_retry_at, wait_until},
    bounds::Scope,
    job::{Job, State, Writing},
    name_of,
    webhook_queue::{Backlog, WebhookGate},
};
use resources::DeliveryPhase;

impl Dispatcher {
    /// Whether one more delivery of a webhook may wait for an attempt. To make room, this may hold a delivery of a
    /// webhook with a larger backlog, in the same account or in an account with a larger backlog.
    pub(super) fn make_room(&mut self, webhook: &WebhookKey) -> bool {
        let Some(account) = self
            .queues
            .get(webhook)
            .map(|queue| queue.facts.namespace.clone())
        else {
            return false;
        };
        let owed = &self.totals.owed;
        let largest = match owed.full(&account, webhook) {
            None => return true,
            Some(Scope::Webhook) => return false,
            Some(Scope::Account) => None,
            Some(Scope::Total) => owed.largest_account(),
        };
        let of_account = |account: &str| owed.of_account(account);
        let other = largest.filter(|largest| of_account(largest) > of_account(&account) + 1);
        let gives_way = if let Some(other) = other {
            self.last_waiting(other)
        } else {
            // Within an account, too, a dead receiver must not take room from others.
            let of_webhook = |webhook: &WebhookKey| owed.of_webhook(&account, webhook);
            let largest = owed.largest_webhook(&account);
            let owes_more = largest.is_some_and(|largest| of_webhook(largest) > of_webhook(webhook) + 1);
            owes_more.then(|| self.last_waiting(&account)).flatten()
        };
        let Some(last) = gives_way else {
            return false;
        };
        self.hold(&last);
        // If it was requested, it is still sent, but only once.
        self.attempt_if_requested(&last);
        true
    }

    /// The latest waiting delivery of the webhook with the largest backlog in an account; a requested one only if there
    /// is no other.
    fn last_waiting(&self, account: &str) -> Option<JobKey> {
        let webhook = self.totals.owed.largest_webhook(account)?;
        let (_, order) = self.queues.get(webhook)?.yielding.last()?;
        Some(order.job.clone())
    }

    /// Releases some of the deliveries that were held only for lack of room, while there is room.
    pub(super) fn fill_up(&mut self, now: Now) {
        for _ in 0..RELEASED_AT_ONCE {
            let Some(webhook) = self.totals.owed.next_expecting() else {
                return;
            };
            let queue = self.queues.get(&webhook);
            let Some(oldest) = queue.and_then(|queue| queue.held.values().next().cloned()) else {
                return;
            };
            self.withdraw(&oldest);
            self.readmit(&oldest, false, now);
        }
        if !self.expects_room {
            self.expects_room = true;
            self.timer(now.mono, Timer::Room);
        }
    }

    pub(super) fn hold_all(&mut self, webhook: &WebhookKey) {
        for key in self.jobs_of(webhook) {
            if self
                .jobs
                .get(&key)
                .is_some_and(|job| !job.test && matches!(job.state, State::Ready(_) | State::Waiting(_)))
            {
                self.hold(&key);
            }
        }
        if let Some(queue) = self.queues.get_mut(webhook) {
            queue.expect_room(&mut self.totals);
        }
        self.attempt_requested(webhook);
    }

    /// Sends all held jobs for which there is room, in the order of their events, each with a new run of the retry schedule.
    pub(super) fn release_all(&mut self, webhook: &WebhookKey, now: Now) {
        let mut keys = self.jobs_of(webhook);
        // Includes those that were requested while the webhook was disabled and have not been sent yet.
        let is_kept = |job: &Job| {
            job.state == State::Held
                || job.phase() == DeliveryPhase::Held
                    && matches!(job.state, State::Ready(_) | State::Waiting(_))
        };
        keys.retain(|key| self.jobs.get(key).is_some_and(is_kept));
        keys.sort_by_cached_key(|key| self.jobs.get(key).map(|job| job.order.clone()));
        for key in keys {
            let has_room = self.make_room(webhook);
            // Making room may have dropped this one.
            if !self.jobs.get(&key).is_some_and(is_kept) {
                continue;
            }
            if has_room {
                self.withdraw(&key);
                self.release(&key, true, now);
            } else {
                self.hold(&key);
            }
        }
    }

    /// Resumes the retry schedule of a job that was held for lack of room.
    pub(super) fn readmit(&mut self, key: &JobKey, drains: bool, now: Now) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        job.was_held = true;
        let mut status = job.status();
        if status.retries == 0 {
            self.release(key, drains, now);
            return;
        }
        let recorded = job.record().and_then(|record| record.status.as_ref());
        let unchanged = recorded.filter(|recorded| {
            job.writing != Writing::Running
                && recorded.phase == DeliveryPhase::Pending
                && recorded.attempt_count == status.attempt_count
        });
        if let Some(recorded) = unchanged.cloned() {
            // The hold has not been written, and need not be.
            status = recorded;
            job.desired = None;
        } else {
            status.phase = DeliveryPhase::Pending;
            status.next_attempt_at = next_retry_at(&status, &self.schedule).or(Some(now.wall));
            job.set_status(status.clone());
            self.timer(now.mono + self.limits.patience, Timer::Patience(key.clone()));
        }
        let wait = wait_until(status.next_attempt_at, &status, &self.schedule, now);
        if wait.is_zero() {
            self.enqueue(key);
        } else {
            self.wait(key, wait, now);
            self.count(key);
        }
    }

    /// Sends a held job with a new run of the retry schedule. This is recorded together with the outcome of its
    /// attempt, unless there is no outcome within [`DeliveryLimits::patience`](super::DeliveryLimits::patience).
    pub(super) fn release(&mut self, key: &JobKey, drains: bool, now: Now) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        job.was_held = true;
        let mut status = job.status();
        status.phase = DeliveryPhase::Pending;
        status.retries = 0;
        status.next_attempt_at = Some(now.wall);
        job.set_status(status);
        if let Some(queue) = self.queues.get_mut(&job.webhook) {
            queue.set_drains(job, drains);
        }
        self.timer(now.mono + self.limits.patience, Timer::Patience(key.clone()));
        self.enqueue(key);
    }

    /// Holds a job until its webhook can be sent to, and records that.
    pub(super) fn hold(&mut self, key: &JobKey) {
        self.withdraw(key);
        let Some(job) = self.jobs.get_mut(key) else { return };
        let Some(queue) = self.queues.get_mut(&job.webhook) else {
            return;
        };
        let mut status = job.status();
        // This delivery disabled the webhook, but the process ended between writing the webhook's status and writing
        // the delivery's. If the record shows no retries, the delivery has since been restarted, to be sent again.
        let has_disabled_it = queue.facts.disabled_by.as_deref() == Some(name_of(key))
            && (!job.is_stored() || status.phase == DeliveryPhase::Pending && status.retries > 0);
        if has_disabled_it {
            status.phase = DeliveryPhase::Exhausted;
            status.next_attempt_at = None;
            job.set_status(status);
            job.state = State::Over;
            queue.count(job, &mut self.totals);
            self.write(key);
            return;
        }
        job.state = State::Held;
        status.phase = DeliveryPhase::Held;
        if queue.gate() != WebhookGate::Open {
            // It starts over once the webhook can be sent to, perhaps in another process.
            status.retries = 0;
        }
        status.next_attempt_at = None;
        let recorded = job.record().and_then(|record| record.status.as_ref());
        let is_recorded = job.writing != Writing::Running
            && recorded.is_some_and(|recorded| {
                recorded.phase == DeliveryPhase::Held && recorded.attempt_count == status.attempt_count
            });
        if is_recorded {
            job.desired = None;
        } else {
            job.set_status(status);
        }
        queue.held.insert(job.order.clone(), key.clone());
        if queue.gate() == WebhookGate::Open {
            queue.tally.backlog = queue.tally.backlog.max(Some(Backlog::Held));
        }
        queue.count(job, &mut self.totals);
        let (account, webhook) = (queue.facts.namespace.clone(), job.webhook.clone());
        self.write(key);
        // A later event of its object may be waiting for it.
        self.make_ready(&webhook);
        while let Some(scope) = self.totals.held.exceeded(&account, &webhook)
            && self.drop_oldest(scope, &account, &webhook)
        {}
    }

    /// Drops the oldest held delivery of the webhook that holds the most within a scope. Returns whether there was one;
    /// it may be the one held last, if there is no other.
    fn drop_oldest(&mut self, scope: Scope, account: &str, webhook: &WebhookKey) -> bool {
        let held = &self.totals.held;
        let largest = match scope {
            Scope::Webhook => Some(webhook),
            Scope::Account => held.largest_webhook(account),
            Scope::Total => held
                .largest_account()
                .and_then(|account| held.largest_webhook(account)),
        };
        let Some(queue) = largest.cloned().and_then(|webhook| self.queues.get_mut(&webhook)) else {
            return false;
        };
        let Some(key) = queue.held.values().next().cloned() else {
            return false;
        };
        queue.tally.dropped += 1;
        queue.tally.backlog = Some(Backlog::Dropped);
        self.totals.count_dropped(&key, scope);
        self.withdraw(&key);
        if let Some(job) = self.jobs.get_mut(&key) {
            job.state = State::Over;
            job.dropped = true;
        }
        self.count(&key);
        self.write(&key);
        true
    }
}
