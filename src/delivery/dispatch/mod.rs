//! What is sent when, and what is written down of it. Pure: facts and outcomes go in, [`Command`]s come out, and time is a
//! parameter, so any interleaving of crashes, slow answers and failed writes can be tried in memory.
//!
//! An event of an outbox becomes a *job* for each webhook that wants it. Jobs wait in the queue of their webhook; the accounts
//! take turns, and so do the webhooks of one account. A job starts without anything being written; a Delivery is created for
//! it once something is owed (decisions, section 5): its attempt failed, has no outcome within a second, or the webhook has a
//! backlog or may not be sent to. The outbox entry is *settled* once every job of it has its Delivery, or is delivered where
//! that is not logged, and the webhooks have been looked up anew. Until then it stays in the outbox, so that a crash loses
//! nothing.
//!
//! This file has the [`Dispatcher`], its vocabulary and its timers; its other methods are beside what they are about:
//!
//! - `outbox`: entries of outboxes, from their recording until they are settled;
//! - `job`: one event for one webhook, on its way;
//! - `webhook_queue`: the jobs of one webhook, and how many of them are sent at a time;
//! - `first_attempts`: the part of that queue in which events of one object keep their order;
//! - `fair_queue`: a round-robin queue, in which accounts take turns;
//! - `attempts`: which job is sent next, and what comes of an attempt;
//! - `requests`: deliveries that are requested to be sent now, before they are due;
//! - `writes`: what is written down of a job;
//! - `observed`: the Deliveries that exist, as the watch and lists show them;
//! - `webhooks`: webhooks that come, change and go, and what that means for their jobs.

mod attempts;
mod fair_queue;
mod first_attempts;
mod job;
mod observed;
mod outbox;
mod requests;
#[cfg(test)]
mod tests;
mod webhook_queue;
mod webhooks;
mod writes;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;

pub use fair_queue::FairQueue;
pub use job::Event;
pub use outbox::Origin;
pub use webhook_queue::{Gate, Tally, WebhookFacts};
pub use writes::{WriteRequest, Written};

use self::{
    attempts::Flight,
    job::{Job, State, Writing},
    observed::{Orphans, Tombstone},
    outbox::Entries,
    webhook_queue::WebhookQueue,
};
use super::schedule::RetrySchedule;
use crate::{
    events::EventType,
    resources::{Attempt, DisableReason, Webhook},
};

/// A webhook: `namespace/name`.
pub type WebhookKey = Arc<str>;
/// A job: `namespace/name` of its Delivery, whether that is there or not.
pub type JobKey = Arc<str>;

/// A retry that a receiver asks to be later is so by at most this factor (decisions, section 5).
const MAX_STRETCH: u32 = 2;
/// First pause after a write or a lookup failed; it doubles from there.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What is written down of deliveries that succeed at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DeliveryLog {
    /// Each, as one Delivery.
    #[default]
    All,
    /// Nothing; only what failed at least once has a Delivery.
    Failures,
}

/// Bounds.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Attempts under way at the same time for one webhook.
    pub in_flight_per_webhook: usize,
    /// Attempts under way at the same time.
    pub in_flight: usize,
    /// Held deliveries of one webhook; the oldest are dropped.
    pub held_per_webhook: usize,
    /// Jobs of one webhook that wait without a Delivery.
    pub unrecorded_per_webhook: usize,
    /// How long a job may be without an outcome before its Delivery is created (decisions, section 5).
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            in_flight_per_webhook: 16,
            in_flight: 512,
            held_per_webhook: 1000,
            unrecorded_per_webhook: 256,
            patience: Duration::from_secs(1),
        }
    }
}

/// The time, told twice: for people and records, and for measuring. A clock that is set moves only the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// What the clock on the wall says.
    pub wall: Timestamp,
    /// What never goes back.
    pub mono: Instant,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Send; answer with [`Dispatcher::attempted`].
    Attempt {
        /// The job.
        job: JobKey,
        /// Its webhook.
        webhook: WebhookKey,
        /// What to send.
        event: Arc<Event>,
    },
    /// Look up whether the Delivery is there; answer with [`Dispatcher::checked`].
    Check(JobKey),
    /// Take a [`Dispatcher::begin_write`] when there is room.
    Write {
        /// The job.
        job: JobKey,
        /// What else may go before it.
        class: WriteClass,
    },
    /// Disable the webhook; answer with [`Dispatcher::disablement_written`].
    Disable(Disablement),
    /// The last event of the object with this UID is settled.
    Settled(Arc<str>),
}

/// Which writes go before which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteClass {
    /// Something waits for it.
    Owed,
    /// The record of a webhook whose receiver fails or is slow: there may be very many of them.
    Suspect,
    /// A success that is merely logged.
    Log,
}

/// A webhook that is to be disabled.
#[derive(Clone, Debug, PartialEq)]
pub struct Disablement {
    /// The webhook.
    pub webhook: WebhookKey,
    /// Its UID: another one of that name is not meant.
    pub uid: Arc<str>,
    /// The generation whose ladder is over.
    pub generation: i64,
    /// When the last attempt ended.
    pub at: Timestamp,
    /// Why.
    pub reason: DisableReason,
    /// Name of the Delivery.
    pub delivery: String,
    /// Its event.
    pub event_id: Arc<str>,
    /// The event's type.
    pub event_type: EventType,
    /// Status code of the last answer, if there was one.
    pub last_status_code: Option<i32>,
    /// Attempts of it.
    pub attempts: i32,
    /// Why the last one failed.
    pub error: String,
}

impl Disablement {
    /// Whether it is this very webhook that is meant, with the spec as it is.
    pub fn is_of(&self, webhook: &Webhook) -> bool {
        webhook.metadata.uid.as_deref() == Some(&self.uid)
            && webhook.metadata.generation == Some(self.generation)
    }
}

/// What came of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// It was sent.
    Sent {
        /// For the record.
        attempt: Attempt,
        /// When the receiver wants the next attempt, counted from the end of this one.
        retry_after: Option<Duration>,
    },
    /// It was not: the webhook cannot be sent to now. Its [`Gate`] has been told before.
    Blocked(String),
    /// It was not, for a reason that passes.
    Unready,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Timer {
    /// A job's next attempt.
    Due(JobKey),
    /// A job without an outcome.
    Patience(JobKey),
    /// A failed write or lookup.
    Again(JobKey),
}

type TimerId = (Instant, u64);

/// Decides what is sent when.
#[derive(Debug)]
pub struct Dispatcher {
    limits: Limits,
    schedule: RetrySchedule,
    log: DeliveryLog,
    queues: HashMap<WebhookKey, WebhookQueue>,
    by_namespace: HashMap<Arc<str>, Vec<WebhookKey>>,
    /// UIDs of webhooks that are gone, and after which revision, the latest last.
    gone: VecDeque<(Arc<str>, u64)>,
    jobs: HashMap<JobKey, Job>,
    /// What is being sent, whether its job is still there or not.
    flights: HashMap<JobKey, Flight>,
    suspects_in_flight: usize,
    /// Records that are over, which the watch may still show as they were.
    tombstones: HashMap<JobKey, Tombstone>,
    /// Records of webhooks that are not known, yet or any more.
    orphans: HashMap<WebhookKey, Orphans>,
    entries: Entries,
    /// Webhooks with something to send.
    ready: FairQueue,
    /// Webhooks that wait for another suspect's attempt to end.
    parked: FairQueue,
    timers: BTreeMap<TimerId, Timer>,
    timer_count: u64,
    /// Whether nothing new is sent.
    stopped: bool,
    commands: VecDeque<Command>,
}

/// `namespace/name`.
pub fn key(namespace: &str, name: &str) -> Arc<str> {
    format!("{namespace}/{name}").into()
}

/// The name in a key.
fn name_of(key: &str) -> &str {
    key.split_once('/').map_or(key, |(_, name)| name)
}

impl Dispatcher {
    /// One that knows nothing. Then come, in this order: [`Self::webhook_seen`] of every webhook, [`Self::delivery_seen`] of
    /// every unfinished Delivery, `at_start`, and [`Self::outbox_seen`] of every outbox, as [`Origin::Found`]. No command is
    /// to be taken before, and nothing is to be recorded.
    pub fn new(limits: Limits, schedule: RetrySchedule, log: DeliveryLog) -> Self {
        Self {
            limits,
            schedule,
            log,
            queues: HashMap::new(),
            by_namespace: HashMap::new(),
            gone: VecDeque::new(),
            jobs: HashMap::new(),
            flights: HashMap::new(),
            suspects_in_flight: 0,
            tombstones: HashMap::new(),
            orphans: HashMap::new(),
            entries: Entries::default(),
            ready: FairQueue::default(),
            parked: FairQueue::default(),
            timers: BTreeMap::new(),
            timer_count: 0,
            stopped: false,
            commands: VecDeque::new(),
        }
    }

    /// Nothing new is sent from now on; what is under way can still be written down.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// The next thing to do. Take them until there is none after every call that tells something.
    pub fn next_command(&mut self) -> Option<Command> {
        self.commands.pop_front().or_else(|| self.start_next())
    }

    /// When [`Self::tick`] is to be called, if nothing happens until then.
    pub fn next_timer(&self) -> Option<Instant> {
        self.timers.keys().next().map(|(at, _)| *at)
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Now) {
        while let Some(entry) = self.timers.first_entry()
            && entry.key().0 <= now.mono
        {
            let (id, timer) = entry.remove_entry();
            match timer {
                Timer::Due(key) => {
                    let is_it = |job: &Job| job.state == State::Waiting(id);
                    if self.jobs.get(&key).is_some_and(is_it) {
                        self.enqueue(&key);
                    }
                }
                Timer::Patience(key) => {
                    let is_owed =
                        |job: &Job| !job.is_stored() && job.desired.is_none() && job.state != State::Over;
                    if self.jobs.get(&key).is_some_and(is_owed) {
                        self.record_as_pending(&key, now);
                    }
                }
                Timer::Again(key) => {
                    let Some(job) = self.jobs.get_mut(&key) else {
                        continue;
                    };
                    if job.state == State::Checking {
                        self.commands.push_back(Command::Check(key));
                    } else if job.writing == Writing::Paused {
                        job.writing = Writing::No;
                        self.write(&key);
                    }
                }
            }
        }
    }

    fn timer(&mut self, at: Instant, timer: Timer) -> TimerId {
        self.timer_count += 1;
        let id = (at, self.timer_count);
        self.timers.insert(id, timer);
        id
    }

    /// After a write or a lookup failed.
    fn try_again(&mut self, key: &JobKey, now: Now) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let pause = job.next_pause();
        self.timer(now.mono + pause, Timer::Again(key.clone()));
    }

    /// Takes a job out of its queue, and its timer away. Its state is to be set then.
    fn withdraw(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        if let State::Waiting(timer) = job.state {
            self.timers.remove(&timer);
        }
        if let Some(queue) = self.queues.get_mut(&job.webhook) {
            queue.dequeue(job);
            queue.set_drains(job, false);
        }
    }

    /// Keeps the number of pending deliveries after a change of a job.
    fn count(&mut self, key: &JobKey) {
        if let Some(job) = self.jobs.get_mut(key)
            && let Some(queue) = self.queues.get_mut(&job.webhook)
        {
            queue.count(job);
        }
    }

    /// Nothing more is to be done for a job. If it is being sent just now, it still takes its place until that ended.
    fn forget(&mut self, key: &JobKey) {
        self.settle(key);
        self.withdraw(key);
        let Some(mut job) = self.jobs.remove(key) else {
            return;
        };
        let Some(queue) = self.queues.get_mut(&job.webhook) else {
            return;
        };
        job.state = State::Over;
        queue.count(&mut job);
        queue.jobs.remove(key);
        self.make_ready(&job.webhook);
    }
}
