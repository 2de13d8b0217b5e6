//! The jobs of one webhook: which is next, and how many are sent at a time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;

use super::{
    JobKey, Totals, WebhookKey,
    first_attempts::FirstAttempts,
    job::{Counted, EventOrder, Job, State, Wanted},
    key,
};
use crate::event::EventType;
use resources::DeliveryPhase;

/// Initial limit of attempts in flight to a webhook.
const FIRST_WINDOW: usize = 4;

/// Whether a webhook can be sent to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WebhookGate {
    /// It can be sent to.
    #[default]
    Open,
    /// `spec.active` is false: events are neither sent nor recorded.
    Inactive,
    /// It was disabled: events are held.
    Disabled,
    /// Its secret is missing or unusable, its URL is forbidden, or its namespace has no Account: events are held.
    Blocked,
}

/// What the dispatcher knows about a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookFacts {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// The UID that it was first created with, which identifies it in records.
    pub uid: Arc<str>,
    /// The UID that it has now, for owner references.
    pub object_uid: Arc<str>,
    /// Revision of the Webhook that these facts come from.
    pub revision: u64,
    /// The generation of its spec.
    pub generation: i64,
    /// When it was created.
    pub created_at: Timestamp,
    /// Event types that it subscribes to.
    pub events: Vec<EventType>,
    /// Whether it can be sent to.
    pub gate: WebhookGate,
    /// Name of the Delivery that disabled it.
    pub disabled_by: Option<Arc<str>>,
}

/// Counters of a webhook since this replica became the leader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Deliveries that succeeded.
    pub delivered: i64,
    pub failed_attempts: i64,
    /// Deliveries that were dropped because there were too many.
    pub dropped: i64,
    /// What happens to its deliveries because there are too many.
    pub backlog: Option<Backlog>,
    /// Whether the API server has accepted a new record of it.
    pub has_stored: bool,
    /// When a delivery last succeeded.
    pub last_success_at: Option<Timestamp>,
    /// When an attempt last failed.
    pub last_failure_at: Option<Timestamp>,
    /// Why that attempt failed.
    pub last_failure: Option<String>,
    /// Finished deliveries recorded since the last pruning.
    pub finished: u64,
}

/// What happens to the deliveries of a webhook because there are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backlog {
    /// They are held until others have been sent.
    Held,
    /// The oldest held ones have been dropped.
    Dropped,
    /// The API server refused their records because of a quota, so they were dropped. Ends when it accepts one.
    Refused,
}

/// The outcome of an attempt that sent something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The receiver answered 2xx.
    Success {
        /// Whether it took so long that others should not wait for its slot.
        is_slow: bool,
    },
    /// Anything else.
    Failure,
}

/// The queue in which a webhook waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadyQueue {
    /// None: it has nothing to send, or has reached its limit of attempts in flight.
    Idle,
    /// [`Dispatcher::ready`](super::Dispatcher).
    Ready,
    /// [`Dispatcher::parked`](super::Dispatcher), where suspects wait.
    Parked,
}

/// The jobs of one webhook, and the state that decides when the next is sent.
#[derive(Debug)]
pub(super) struct WebhookQueue {
    pub(super) facts: WebhookFacts,
    /// The generation that is being disabled, before the API server shows it.
    pub(super) disabling: Option<i64>,
    pub(super) jobs: BTreeSet<JobKey>,
    pub(super) first_attempts: FirstAttempts,
    /// By ticket, like `tests`.
    retries: BTreeMap<u64, JobKey>,
    tests: BTreeMap<u64, JobKey>,
    /// Jobs requested before they are due: retries, and held jobs if the webhook is disabled.
    requested: BTreeSet<EventOrder>,
    tickets: u64,
    pub(super) held: BTreeMap<EventOrder, JobKey>,
    /// Jobs that count as owed and can give way because they are waiting for an attempt: requested ones first, then the
    /// others. The last one gives way first.
    pub(super) yielding: BTreeSet<(Wanted, EventOrder)>,
    /// Whether it holds deliveries that wait for room.
    expects_room: bool,
    /// Number of jobs in a backlog. While there are any, jobs are sent one after another.
    pub(super) draining: usize,
    /// Number of jobs with a record that wait for an attempt or are in flight.
    pub(super) pending: usize,
    pub(super) in_flight: usize,
    /// Number of first attempts among those in flight.
    first_in_flight: usize,
    window: usize,
    /// Whether the last job taken was not a first attempt.
    was_retry: bool,
    /// Whether the last attempt that ended was a quick success, if one has ended.
    went_well: Option<bool>,
    /// Number of slow attempts among those in flight.
    pub(super) slow_in_flight: usize,
    pub(super) waits_in: ReadyQueue,
    pub(super) tally: Tally,
}

impl WebhookQueue {
    /// The empty queue of a new webhook.
    pub(super) fn new(facts: WebhookFacts) -> Self {
        Self {
            facts,
            disabling: None,
            jobs: BTreeSet::new(),
            first_attempts: FirstAttempts::default(),
            retries: BTreeMap::new(),
            tests: BTreeMap::new(),
            requested: BTreeSet::new(),
            tickets: 0,
            held: BTreeMap::new(),
            yielding: BTreeSet::new(),
            expects_room: false,
            draining: 0,
            pending: 0,
            in_flight: 0,
            first_in_flight: 0,
            window: FIRST_WINDOW,
            was_retry: false,
            went_well: None,
            slow_in_flight: 0,
            waits_in: ReadyQueue::Idle,
            tally: Tally::default(),
        }
    }

    pub(super) fn gate(&self) -> WebhookGate {
        let is_being_disabled = self.disabling == Some(self.facts.generation);
        match self.facts.gate {
            WebhookGate::Open | WebhookGate::Blocked if is_being_disabled => WebhookGate::Disabled,
            gate => gate,
        }
    }

    /// Whether others are not to wait for its attempts. A quick success does not clear it while another attempt is slow.
    pub(super) fn is_suspect(&self) -> bool {
        self.went_well != Some(true) || self.slow_in_flight > 0
    }

    /// Whether its receiver may keep its other events waiting.
    pub(super) fn delays(&self) -> bool {
        self.went_well == Some(false) || self.slow_in_flight > 0
    }

    /// Puts a job into its queue. Returns its ticket.
    pub(super) fn enqueue(&mut self, key: &JobKey, job: &Job) -> u64 {
        self.tickets += 1;
        if job.test {
            self.tests.insert(self.tickets, key.clone());
        } else if job.request().is_some() && (job.phase() == DeliveryPhase::Held || !job.is_first_attempt()) {
            self.requested.insert(job.order.clone());
        } else if job.is_first_attempt() {
            self.first_attempts.push(job);
        } else {
            self.retries.insert(self.tickets, key.clone());
        }
        self.tickets
    }

    /// Removes a job from whichever queue it is in.
    pub(super) fn dequeue(&mut self, job: &Job) {
        self.first_attempts.remove(job);
        if let State::Ready(ticket) = job.state {
            self.retries.remove(&ticket);
            self.tests.remove(&ticket);
            self.requested.remove(&job.order);
        }
        if job.state == State::Held {
            self.held.remove(&job.order);
        }
    }

    pub(super) fn set_drains(&mut self, job: &mut Job, drains: bool) {
        self.draining -= usize::from(job.drains);
        job.drains = drains && !job.test;
        self.draining += usize::from(job.drains);
    }

    /// Updates the counts of deliveries after a job has changed.
    pub(super) fn count(&mut self, job: &mut Job, totals: &mut Totals) {
        self.pending -= usize::from(job.is_counted);
        totals.pending -= usize::from(job.is_counted);
        job.is_counted = job.is_pending();
        self.pending += usize::from(job.is_counted);
        totals.pending += usize::from(job.is_counted);
        let counts_as = job.counts_as();
        if counts_as != job.counted {
            let account = &self.facts.namespace;
            match std::mem::replace(&mut job.counted, counts_as) {
                Some(Counted::Owed) => {
                    totals.owed.remove(account, &job.webhook);
                    totals.owe_no_more(job.order.created_at);
                }
                Some(Counted::Held) => totals.held.remove(account, &job.webhook),
                None => {}
            }
            match counts_as {
                Some(Counted::Owed) => {
                    totals.owed.add(account, &job.webhook);
                    totals.owe(job.order.created_at);
                }
                Some(Counted::Held) => totals.held.add(account, &job.webhook),
                None => {}
            }
        }
        let yields_as = job.yields_as();
        if yields_as != job.yielding {
            if let Some(before) = std::mem::replace(&mut job.yielding, yields_as) {
                self.yielding.remove(&(before, job.order.clone()));
            }
            if let Some(now) = yields_as {
                self.yielding.insert((now, job.order.clone()));
            }
        }
        let account = &self.facts.namespace;
        totals
            .owed
            .can_yield(account, &job.webhook, !self.yielding.is_empty());
        totals
            .held
            .can_yield(account, &job.webhook, !self.held.is_empty());
        self.expect_room(totals);
    }

    /// Updates whether held deliveries are waiting only for room.
    pub(super) fn expect_room(&mut self, totals: &mut Totals) {
        let is_open = self.gate() == WebhookGate::Open;
        let is_over = match self.tally.backlog {
            Some(Backlog::Held) => self.held.is_empty() || !is_open,
            Some(Backlog::Dropped) => self.held.is_empty(),
            Some(Backlog::Refused) | None => false,
        };
        if is_over {
            self.tally.backlog = None;
        }
        let expects_room = is_open && !self.held.is_empty();
        if expects_room != self.expects_room {
            self.expects_room = expects_room;
            let webhook = self.key();
            totals
                .owed
                .expect_room(&self.facts.namespace, &webhook, expects_room);
        }
    }

    /// Removes everything about the webhook from the totals.
    pub(super) fn uncount(&self, totals: &mut Totals) {
        let webhook = self.key();
        totals.pending -= self.pending;
        totals.owed.forget(&self.facts.namespace, &webhook);
        totals.held.forget(&self.facts.namespace, &webhook);
    }

    fn key(&self) -> WebhookKey {
        key(&self.facts.namespace, &self.facts.name)
    }

    /// Takes the next job to send, and its subject if it is a first attempt. A retry that is due goes before first
    /// attempts and does not wait for those in flight: each kind has its own window, within `cap` together.
    pub(super) fn next(&mut self, cap: usize) -> Option<(JobKey, Option<Arc<str>>)> {
        if self.in_flight >= cap.max(1) {
            return None;
        }
        let window = if self.draining > 0 { 1 } else { self.window };
        let gate = self.gate();
        // With a single slot, retries and first attempts take turns; otherwise a receiver that fails often would never
        // see a new event.
        if cap <= 1
            && self.was_retry
            && gate == WebhookGate::Open
            && let Some(first) = self.next_first(window)
        {
            return Some(first);
        }
        if self.in_flight - self.first_in_flight < window {
            let other = match (self.tests.pop_first(), gate) {
                (Some((_, key)), _) => Some(key),
                (None, WebhookGate::Open) => self.next_retry(),
                (None, WebhookGate::Disabled) => self.requested.pop_first().map(|order| order.job),
                (None, WebhookGate::Inactive | WebhookGate::Blocked) => None,
            };
            if let Some(key) = other {
                self.in_flight += 1;
                self.was_retry = true;
                return Some((key, None));
            }
        }
        if gate == WebhookGate::Open {
            self.next_first(window)
        } else {
            None
        }
    }

    fn next_first(&mut self, window: usize) -> Option<(JobKey, Option<Arc<str>>)> {
        if self.first_in_flight >= window {
            return None;
        }
        let (key, subject) = self.first_attempts.pop()?;
        self.in_flight += 1;
        self.first_in_flight += 1;
        self.was_retry = false;
        Some((key, Some(subject)))
    }

    fn next_retry(&mut self) -> Option<JobKey> {
        match self.requested.pop_first() {
            Some(order) => Some(order.job),
            None => self.retries.pop_first().map(|(_, key)| key),
        }
    }

    /// Records the end of an attempt. A success widens the window, however slow it was; a failure halves it.
    pub(super) fn attempt_ended(&mut self, subject: Option<&Arc<str>>, outcome: Option<Outcome>, cap: usize) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if let Some(subject) = subject {
            self.first_in_flight = self.first_in_flight.saturating_sub(1);
            self.first_attempts.attempt_ended(subject);
        }
        match outcome {
            Some(Outcome::Success { is_slow }) => {
                self.went_well = Some(!is_slow);
                self.window = (self.window + 1).min(cap);
            }
            Some(Outcome::Failure) => {
                self.went_well = Some(false);
                self.window = (self.window / 2).max(1);
            }
            None => {}
        }
    }

    /// Whether it can be sent to, and there are events for which no attempt has ended.
    pub(super) fn has_unattempted(&self) -> bool {
        self.gate() == WebhookGate::Open && (self.first_in_flight > 0 || !self.first_attempts.is_empty())
    }

    /// Number of jobs that wait to be sent.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.tests.len() + self.first_attempts.len() + self.retries.len() + self.requested.len()
    }
}
