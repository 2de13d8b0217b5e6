//! Requests to send deliveries now: a retry before it is due, or a held delivery of a webhook that is disabled
//! or has too large a backlog, which is sent only once, like a test.
//!
//! A request is a nonce in an annotation of the Delivery. An attempt answers the request that was known when it began; the nonce
//! is copied to the status together with the attempt's outcome. After a crash in between, the attempt is made again. A request
//! that arrives during an attempt is answered if that attempt succeeds. If it fails, another one follows at once, because the
//! receiver may have been fixed in the meantime.
//!
//! A requested attempt does not change the retry schedule: if it fails before the next retry was due, that retry stays scheduled
//! as it was. If the retry has become due in the meantime, the requested attempt counts as that retry.

use super::{
    Dispatcher, JobKey, WebhookKey,
    job::State,
    webhook_queue::{WebhookGate, WebhookQueue},
};
use resources::DeliveryPhase;

impl Dispatcher {
    /// Enqueues a requested job, if it is waiting and may be sent.
    pub(super) fn attempt_if_requested(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get(key) else { return };
        let Some(queue) = self.queues.get(&job.webhook) else {
            return;
        };
        let is_kept = job.phase() == DeliveryPhase::Held;
        match (queue.gate(), job.state, job.request()) {
            // A first attempt never waits for long, and keeps its place in the order.
            (WebhookGate::Open, State::Waiting(_), Some(_)) if !job.is_first_attempt() => {}
            (WebhookGate::Open | WebhookGate::Disabled, State::Held, Some(_)) => {}
            // The request was withdrawn.
            (WebhookGate::Open | WebhookGate::Disabled, State::Waiting(_) | State::Ready(_), None)
                if is_kept =>
            {
                self.hold(key);
                return;
            }
            _ => return,
        }
        self.withdraw(key);
        self.enqueue(key);
    }

    /// Enqueues all requested jobs of a webhook that may be sent.
    pub(super) fn attempt_requested(&mut self, webhook: &WebhookKey) {
        for key in self.jobs_of(webhook) {
            self.attempt_if_requested(&key);
        }
    }

    /// Adopts a record of a webhook that must not be sent to: it is held, or sent once if that was requested.
    pub(super) fn adopt_held(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get(key) else { return };
        let gate = self.queues.get(&job.webhook).map(WebhookQueue::gate);
        if gate != Some(WebhookGate::Disabled) || job.request().is_none() {
            self.hold(key);
            return;
        }
        self.send_once(key);
    }

    /// Sends a job that stays held, so that it takes no room from others. This is not recorded until there is an
    /// outcome.
    pub(super) fn send_once(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let gate = self.queues.get(&job.webhook).map(WebhookQueue::gate);
        if job.phase() != DeliveryPhase::Held {
            let mut status = job.status();
            status.phase = DeliveryPhase::Held;
            if gate != Some(WebhookGate::Open) {
                status.retries = 0;
            }
            status.next_attempt_at = None;
            job.set_status(status);
        }
        self.enqueue(key);
    }
}
