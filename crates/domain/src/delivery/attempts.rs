//! Starts attempts and evaluates their outcomes.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;

use super::{
    Command, DeliveryLog, Disablement, Dispatcher, JobKey, MAX_STRETCH, Now, Receipt, Report, Timer, TimerId,
    WebhookKey,
    job::{Job, State},
    name_of,
    webhook_queue::{Outcome, ReadyQueue, WebhookGate, WebhookQueue},
};
use crate::delivery::schedule::RetrySchedule;
use resources::{Attempt, DeliveryPhase, DeliveryStatus, DisableReason, delivery::MAX_ATTEMPTS_KEPT};

/// An attempt that takes this long makes its webhook a suspect. A suspect shares its slots with the other suspects,
/// however many slots it may use by itself.
const SLOW: Duration = Duration::from_secs(2);

/// An attempt in flight.
#[derive(Debug)]
pub(super) struct Flight {
    /// `None` once the webhook is gone.
    pub(super) webhook: Option<WebhookKey>,
    /// Its account, which has the slot even if the webhook is gone.
    account: Arc<str>,
    /// The generation of the webhook when the attempt began.
    generation: i64,
    /// Whether its slot counts among the suspects'.
    is_suspect: bool,
    /// Whether nothing delayed it, see [`Receipt::was_expected`].
    is_expected: bool,
    /// When it is slow. `None` once it is.
    slow: Option<TimerId>,
    /// Its subject, if this is a first attempt.
    subject: Option<Arc<str>>,
    /// The nonce of the request that it answers, if there is one.
    request: Option<String>,
}

#[cfg(test)]
impl Flight {
    pub(super) fn account(&self) -> (&Arc<str>, bool) {
        (&self.account, self.is_suspect)
    }

    pub(super) fn webhook(&self) -> Option<&WebhookKey> {
        self.webhook.as_ref()
    }

    pub(super) fn subject(&self) -> Option<&Arc<str>> {
        self.subject.as_ref()
    }
}

impl Dispatcher {
    /// Puts a job into the queue of its webhook.
    pub(super) fn enqueue(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let Some(queue) = self.queues.get_mut(&job.webhook) else {
            return;
        };
        // An attempt of an earlier job with this key may still be in flight; its outcome then counts for this job.
        job.state = if self.flights.contains_key(key) {
            State::InFlight
        } else {
            State::Ready(queue.enqueue(key, job))
        };
        queue.count(job, &mut self.totals);
        let webhook = job.webhook.clone();
        self.make_ready(&webhook);
    }

    /// Puts a webhook into the queue of ready webhooks, unless it is in a queue already.
    pub(super) fn make_ready(&mut self, webhook: &WebhookKey) {
        if let Some(queue) = self.queues.get_mut(webhook)
            && (queue.waits_in == ReadyQueue::Idle
                || queue.waits_in == ReadyQueue::Parked && !queue.is_suspect())
        {
            queue.waits_in = ReadyQueue::Ready;
            self.ready.push(&queue.facts.namespace, webhook.clone());
        }
    }

    /// Takes a webhook that has something to send, of an account that can have another slot.
    fn next_webhook(&mut self, now: Now) -> Option<(WebhookKey, ReadyQueue)> {
        let slots = &self.slots;
        if slots.are_taken() {
            return None;
        }
        if !slots.are_taken_by_suspects()
            && let Some(webhook) = self
                .parked
                .pop_of(|account| slots.has_room_for_suspect(account, now.mono))
        {
            return Some((webhook, ReadyQueue::Parked));
        }
        let webhook = self.ready.pop_of(|account| slots.has_room(account, now.mono))?;
        Some((webhook, ReadyQueue::Ready))
    }

    /// Starts the next attempt.
    pub(super) fn start_next(&mut self, now: Now) -> Option<Command> {
        while !self.stopped
            && let Some((webhook, from)) = self.next_webhook(now)
        {
            let Some(queue) = self
                .queues
                .get_mut(&webhook)
                .filter(|queue| queue.waits_in == from)
            else {
                continue;
            };
            let account = queue.facts.namespace.clone();
            let (is_suspect, delays) = (queue.is_suspect(), queue.delays());
            if is_suspect && !self.slots.has_room_for_suspect(&account, now.mono) {
                queue.waits_in = ReadyQueue::Parked;
                self.parked.push(&account, webhook);
                continue;
            }
            let generation = queue.facts.generation;
            queue.waits_in = ReadyQueue::Idle;
            let Some((key, subject)) = queue.next(self.limits.in_flight_per_webhook) else {
                continue;
            };
            let Some(job) = self.jobs.get_mut(&key) else {
                continue;
            };
            job.state = State::InFlight;
            queue.count(job, &mut self.totals);
            let event = job.event();
            let number = job.next_attempt();
            let request = job.request().map(ToOwned::to_owned);
            let is_expected = !delays && job.is_sent_at_once();
            self.slots.take(&account, is_suspect);
            let slow = self.timer(now.mono + SLOW, Timer::Slow(key.clone()));
            let flight = Flight {
                webhook: Some(webhook.clone()),
                account,
                generation,
                is_suspect,
                is_expected,
                slow: Some(slow),
                subject,
                request,
            };
            self.flights.insert(key.clone(), flight);
            self.make_ready(&webhook);
            return Some(Command::Attempt {
                job: key,
                webhook,
                event,
                number,
            });
        }
        None
    }

    /// An attempt has been in flight for so long that it counts among the suspects', whatever its webhook did before.
    pub(super) fn is_slow(&mut self, key: &JobKey, timer: TimerId, now: Now) {
        let is_it = |flight: &&mut Flight| flight.slow == Some(timer);
        let Some(flight) = self.flights.get_mut(key).filter(is_it) else {
            return;
        };
        flight.slow = None;
        self.slots.slow(&flight.account, now.mono);
        if !std::mem::replace(&mut flight.is_suspect, true) {
            self.slots.suspect(&flight.account);
        }
        let webhook = flight.webhook.as_ref();
        if let Some(queue) = webhook.and_then(|webhook| self.queues.get_mut(webhook)) {
            queue.slow_in_flight += 1;
        }
    }

    /// Reports the outcome of a [`Command::Attempt`]. Call it once for each, even if its job or webhook is gone. Returns how the event
    /// got to the webhook, if it did; test events do not count.
    pub fn attempted(&mut self, key: &JobKey, report: Report, now: Now) -> Option<Receipt> {
        let flight = self.flights.remove(key)?;
        let receipt = self.receipt(key, &report, &flight, now);
        self.slots.give_back(&flight.account, flight.is_suspect);
        if let Some(timer) = flight.slow {
            self.timers.remove(&timer);
        }
        let webhook = flight.webhook.as_ref();
        if let Some(queue) = webhook.and_then(|webhook| self.queues.get_mut(webhook)) {
            let outcome = match &report {
                Report::Sent { attempt, .. } if attempt.error.is_none() => Some(Outcome::Success {
                    is_slow: Duration::from_millis(attempt.duration_ms.unsigned_abs()) >= SLOW,
                }),
                Report::Sent { .. } => Some(Outcome::Failure),
                Report::Blocked(_) | Report::Unready => None,
            };
            let cap = self.limits.in_flight_per_webhook;
            queue.slow_in_flight -= usize::from(flight.slow.is_none());
            queue.attempt_ended(flight.subject.as_ref(), outcome, cap);
        }
        self.evaluate(key, report, &flight, now);
        self.count(key);
        self.fill_up(now);
        if let Some(webhook) = &flight.webhook {
            self.make_ready(webhook);
        }
        receipt
    }

    fn receipt(&self, key: &JobKey, report: &Report, flight: &Flight, now: Now) -> Option<Receipt> {
        let Report::Sent { attempt, .. } = report else {
            return None;
        };
        let is_received = |job: &&Job| job.state == State::InFlight && !job.test && attempt.error.is_none();
        let job = self.jobs.get(key).filter(is_received)?;
        let after = now.wall.duration_since(job.order.created_at);
        Some(Receipt {
            after: Duration::try_from(after).unwrap_or_default(),
            was_expected: flight.is_expected && flight.slow.is_some(),
        })
    }

    fn evaluate(&mut self, key: &JobKey, report: Report, flight: &Flight, now: Now) {
        let is_it = |job: &&mut Job| job.state == State::InFlight;
        let Some(job) = self.jobs.get_mut(key).filter(is_it) else {
            return;
        };
        let gate = self
            .queues
            .get(&job.webhook)
            .map_or(WebhookGate::Blocked, WebhookQueue::gate);
        match report {
            Report::Sent { attempt, retry_after } => {
                self.withdraw(key);
                self.sent(key, attempt, retry_after, flight, now);
            }
            // Without an Account the secret is never read, so waiting would be pointless.
            Report::Unready if job.test && gate == WebhookGate::Blocked => {
                let why = "nothing can be sent to the webhook; its conditions say why".to_owned();
                self.evaluate(key, Report::Blocked(why), flight, now);
            }
            Report::Blocked(why) if job.test => self.end_test(key, why, now),
            // Recorded as an attempt, so that the delivery shows why nothing was sent.
            Report::Blocked(why) if gate == WebhookGate::Disabled && flight.request.is_some() => {
                let mut status = job.status();
                record_attempt(&mut status, not_sent(why, now), flight.request.as_ref());
                job.set_status(status);
                self.hold(key);
                self.attempt_if_requested(key);
            }
            Report::Unready if gate == WebhookGate::Disabled && job.phase() == DeliveryPhase::Held => {
                self.wait_longer(key, now);
            }
            Report::Blocked(_) | Report::Unready if gate != WebhookGate::Open && !job.test => {
                self.hold(key);
                self.attempt_if_requested(key);
            }
            // The job keeps its place before later events of its object.
            Report::Blocked(_) | Report::Unready => self.wait_longer(key, now),
        }
    }

    /// Ends a test for which nothing was sent.
    pub(super) fn end_test(&mut self, key: &JobKey, why: String, now: Now) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let mut status = job.status();
        status.phase = DeliveryPhase::Exhausted;
        record_attempt(&mut status, not_sent(why, now), None);
        job.set_status(status);
        job.state = State::Over;
        self.write(key);
    }

    /// Makes a job wait, longer after each attempt that could not be made.
    fn wait_longer(&mut self, key: &JobKey, now: Now) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let pause = job.next_pause();
        self.wait(key, pause, now);
    }

    pub(super) fn wait(&mut self, key: &JobKey, delay: Duration, now: Now) {
        let timer = self.timer(now.mono + delay, Timer::Due(key.clone()));
        if let Some(job) = self.jobs.get_mut(key) {
            job.state = State::Waiting(timer);
        }
    }

    fn delivered(&mut self, key: &JobKey, mut status: DeliveryStatus, now: Now) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        if let Some(queue) = self.queues.get_mut(&job.webhook) {
            queue.tally.delivered += 1;
            queue.tally.last_success_at = Some(now.wall);
        }
        status.phase = DeliveryPhase::Delivered;
        job.state = State::Over;
        let at_once = status.attempt_count == 1 && job.is_unrecorded();
        let needs_no_record = at_once
            && (self.log == DeliveryLog::Failures
                || status
                    .attempts
                    .first()
                    .is_some_and(|it| self.log_success(key, it, now)));
        if needs_no_record {
            self.forget(key);
        } else if let Some(job) = self.jobs.get_mut(key) {
            job.set_status(status);
            self.write(key);
        }
    }

    fn sent(
        &mut self,
        key: &JobKey,
        attempt: Attempt,
        retry_after: Option<Duration>,
        flight: &Flight,
        now: Now,
    ) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        job.failures = 0;
        let Some(queue) = self.queues.get_mut(&job.webhook) else {
            return;
        };
        let mut status = job.status();
        let scheduled = status
            .next_attempt_at
            .or_else(|| next_retry_at(&status, &self.schedule));
        let (code, error) = (attempt.status_code, attempt.error.clone());
        record_attempt(&mut status, attempt, flight.request.as_ref());
        let Some(error) = error else {
            return self.delivered(key, status, now);
        };
        queue.tally.failed_attempts += 1;
        queue.tally.last_failure_at = Some(now.wall);
        queue.tally.last_failure = Some(error.clone());
        let gate = queue.gate();
        let is_open = gate == WebhookGate::Open;
        // If the webhook was changed during the attempt, the failure does not disable it: the retry schedule starts again.
        let is_current = queue.facts.generation == flight.generation;
        // If several attempts end with 410 at the same time, one exhausts its delivery; the others are held.
        let gone = code == Some(410) && is_current && is_open;
        if status.phase == DeliveryPhase::Held {
            // The attempt was requested although the webhook is disabled or its backlog is too large.
            let webhook = job.webhook.clone();
            if !is_open || !gone && !self.make_room(&webhook) {
                if let Some(job) = self.jobs.get_mut(key) {
                    job.set_status(status);
                }
                self.hold(key);
                self.attempt_if_requested(key);
                return;
            }
        }
        let Some(job) = self.jobs.get_mut(key) else { return };
        let Some(queue) = self.queues.get_mut(&job.webhook) else {
            return;
        };
        let mut retry = usize::try_from(status.retries).unwrap_or(0);
        if self.schedule.delay(retry).is_none() && !is_current {
            retry = 0;
        }
        // If a requested attempt fails before the next retry was due, that retry keeps its scheduled time.
        let is_early = flight.request.is_some() && status.retries > 0 && scheduled > Some(now.wall);
        let is_requested_again = job
            .request()
            .is_some_and(|it| Some(it) != flight.request.as_deref());
        let delay = if gone || job.test {
            None
        } else if is_early {
            let wait = wait_until(scheduled, &status, &self.schedule, now);
            let asked = retry_after.map(|asked| asked.min(longest_wait(&status, &self.schedule)));
            Some(wait.max(asked.unwrap_or_default()))
        } else if let Some(delay) = self.schedule.delay(retry) {
            status.retries = i32::try_from(retry + 1).unwrap_or(i32::MAX);
            Some(retry_after.map_or(delay, |asked| asked.clamp(delay, delay * MAX_STRETCH)))
        } else {
            // Another attempt was requested after this one began; that one will be the last.
            is_requested_again.then_some(Duration::ZERO)
        };
        if let Some(delay) = delay {
            status.phase = DeliveryPhase::Pending;
            status.next_attempt_at = now.wall.checked_add(delay).ok();
            job.set_status(status);
            if is_open {
                self.wait(key, delay, now);
                self.write(key);
            } else {
                self.hold(key);
            }
            self.attempt_if_requested(key);
            return;
        }
        status.phase = DeliveryPhase::Exhausted;
        job.state = State::Over;
        let (attempts, last_status_code) = (status.attempt_count, status.last_status_code);
        job.set_status(status);
        if matches!(gate, WebhookGate::Open | WebhookGate::Blocked) && !job.test {
            job.awaits_disablement = true;
            queue.disabling = Some(queue.facts.generation);
            let webhook = job.webhook.clone();
            let disablement = Disablement {
                webhook: webhook.clone(),
                uid: queue.facts.uid.clone(),
                generation: queue.facts.generation,
                at: now.wall,
                reason: if gone {
                    DisableReason::Gone
                } else {
                    DisableReason::RetriesExhausted
                },
                delivery: name_of(key).to_owned(),
                event_id: job.event_id.clone(),
                event_type: job.event().event_type,
                last_status_code,
                attempts,
                error,
            };
            self.commands.push_back(Command::Disable(disablement));
            self.hold_all(&webhook);
        }
        self.write(key);
    }
}

/// The remaining wait of a retry that is due at `due`; never longer than the schedule allows, even if the clock was set.
pub(super) fn wait_until(
    due: Option<Timestamp>,
    status: &DeliveryStatus,
    schedule: &RetrySchedule,
    now: Now,
) -> Duration {
    let wait = due.and_then(|at| Duration::try_from(at.duration_since(now.wall)).ok());
    wait.unwrap_or_default().min(longest_wait(status, schedule))
}

/// When the next retry is due by the schedule, after the last attempt. `None` before the first retry.
pub(super) fn next_retry_at(status: &DeliveryStatus, schedule: &RetrySchedule) -> Option<Timestamp> {
    let retry = usize::try_from(status.retries).ok()?.checked_sub(1)?;
    let last = status.attempts.last()?;
    let ended = last
        .at
        .checked_add(jiff::SignedDuration::from_millis(last.duration_ms))
        .ok()?;
    ended.checked_add(schedule.delay(retry)?).ok()
}

/// The longest wait before the next retry that `Retry-After` can ask for.
fn longest_wait(status: &DeliveryStatus, schedule: &RetrySchedule) -> Duration {
    let retry = usize::try_from(status.retries).unwrap_or(0).checked_sub(1);
    let delay = retry.and_then(|retry| schedule.delay(retry));
    delay.map_or(Duration::ZERO, |delay| delay * MAX_STRETCH)
}

/// The record of an attempt that sent nothing.
fn not_sent(why: String, now: Now) -> Attempt {
    Attempt {
        at: now.wall,
        duration_ms: 0,
        status_code: None,
        error: Some(why),
        response: None,
        url: None,
    }
}

fn record_attempt(status: &mut DeliveryStatus, attempt: Attempt, request: Option<&String>) {
    if let Some(request) = request {
        status.attempt_requested_at = Some(request.clone());
    }
    status.attempt_count = status.attempt_count.saturating_add(1);
    status.next_attempt_at = None;
    status.last_status_code = attempt.status_code;
    status.last_error.clone_from(&attempt.error);
    // Only the last attempt keeps the receiver's text (decisions, section 8) and its URL.
    for earlier in &mut status.attempts {
        earlier.response = None;
        earlier.url = None;
    }
    status.attempts.push(attempt);
    let surplus = status.attempts.len().saturating_sub(MAX_ATTEMPTS_KEPT);
    status.attempts.drain(..surplus);
}
