//! Deliveries that somebody wants sent now: a retry before it is due, or a held one of a webhook that is disabled, once, as a
//! test is.
//!
//! A request is a nonce in an annotation; it is answered by an attempt that begins after it was seen, and the echo is written
//! with what comes of that attempt. So a crash in between repeats at most that attempt, and a second request before it begins
//! is the same request. One that is seen while an attempt is under way is answered by its success, but not by its failure:
//! the receiver may have been mended meanwhile, so another attempt follows at once.
//!
//! What was requested leaves the ladder alone: a retry that fails before it was due waits for its time as before. It takes a
//! step only if its time has come meanwhile, and then it is that step.

use super::{
    Dispatcher, JobKey, WebhookKey,
    job::State,
    webhook_queue::{Gate, WebhookQueue},
};
use crate::resources::DeliveryPhase;

impl Dispatcher {
    /// Has a job sent now if that is wanted, and it waits for something else.
    pub(super) fn attempt_if_requested(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get(key) else { return };
        let Some(queue) = self.queues.get(&job.webhook) else {
            return;
        };
        let is_kept = job.phase() == DeliveryPhase::Held;
        match (queue.gate(), job.state, job.request()) {
            // The first attempt of a ladder never waits for long, and keeps its place.
            (Gate::Open, State::Waiting(_), Some(_)) if !job.is_first_attempt() => {}
            (Gate::Disabled, State::Held, Some(_)) => {}
            // The request was taken back.
            (Gate::Disabled, State::Waiting(_) | State::Ready(_), None) if is_kept => {
                self.hold(key);
                return;
            }
            _ => return,
        }
        self.withdraw(key);
        self.enqueue(key);
    }

    /// The same for all jobs of a webhook.
    pub(super) fn attempt_requested(&mut self, webhook: &WebhookKey) {
        for key in self.jobs_of(webhook) {
            self.attempt_if_requested(&key);
        }
    }

    /// Takes on a record of a webhook that may not be sent to: it is held, or, if somebody wants that, sent once.
    pub(super) fn adopt_held(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let gate = self.queues.get(&job.webhook).map(WebhookQueue::gate);
        if gate != Some(Gate::Disabled) || job.request().is_none() {
            self.hold(key);
            return;
        }
        // Only what comes of it is worth a write.
        if job.phase() != DeliveryPhase::Held {
            let mut status = job.status();
            status.phase = DeliveryPhase::Held;
            status.next_attempt_at = None;
            job.set_status(status);
        }
        self.enqueue(key);
    }
}
