//! The delivery scheduler: decides what is sent when, and what is recorded. It does no I/O: facts and outcomes go in,
//! [`Command`]s come out, and time is a parameter, so tests can try any interleaving of crashes, slow responses and
//! failed writes in memory.
//!
//! An outbox event becomes a *job* for each webhook that subscribes to it. Jobs wait in the queue of their webhook;
//! accounts take turns, and so do the webhooks of one account. Starting a job needs no write. A Delivery is created for
//! it only once it cannot be delivered at once (decisions, section 5): its attempt failed or has no outcome within a
//! second, the webhook has a backlog, or nothing can be sent to it. An outbox entry is *settled* once the webhooks have
//! been listed after it was recorded, each of its jobs has a Delivery or was delivered without needing one, and the
//! event is in the log. Until then it stays in the outbox, so that a crash loses nothing.
//!
//! A webhook is a *suspect* if its last attempt failed or was slow, if one in flight is slow, or if it has had no success
//! yet. Suspects share a limited part of the slots and writes.
//!
//! This file has the [`Dispatcher`], its types and its timers. Its other methods are in these modules:
//!
//! - `outbox`: outbox entries, from their recording until they are settled;
//! - `job`: one event for one webhook;
//! - `webhook_queue`: the jobs of one webhook, and how many of them are sent at a time;
//! - `first_attempts`: the part of that queue which keeps the events of one object in order;
//! - `attempts`: starts attempts and evaluates their outcomes;
//! - `slots`: how accounts share the attempts in flight;
//! - `requests`: requests to send deliveries now, before they are due;
//! - `writes`: the records of jobs;
//! - `event_log`: the log of events, and of the deliveries that succeeded at once;
//! - `bounds`: how many deliveries are waiting or held, and who has the most;
//! - `held`: deliveries that are held, released, or dropped because there are too many;
//! - `observed`: existing Deliveries, from the watch and lists;
//! - [`schedule`]: the retry schedule; [`settings`]: the flags;
//! - `webhooks`: new, changed and deleted webhooks, and the effect on their jobs.

mod attempts;
mod bounds;
mod event_log;
mod first_attempts;
mod held;
mod job;
mod observed;
mod outbox;
mod redelivery;
mod requests;
pub mod schedule;
pub mod settings;
mod slots;
#[cfg(test)]
mod tests;
mod webhook_queue;
mod webhooks;
mod writes;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ops,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;

pub use bounds::Bound;
pub use event_log::{LogQuestion, Mentions, Page, PageWritten, Unreadable};
pub use job::Event;
pub use observed::{job_key_of, sort_for_adoption};
pub use outbox::{Origin, Unverified};
pub use redelivery::{When, logged_again, logged_event, next_attempt, send_now, shown_phase};
pub use schedule::RetrySchedule;
pub use settings::{DEFAULT_RETENTION_HOURS, DeliverySettings};
pub use webhook_queue::{Backlog, Tally, WebhookFacts, WebhookGate};
pub use writes::{WriteRequest, Written};

use self::{
    attempts::Flight,
    bounds::{Counts, Scope},
    event_log::Logs,
    job::{Job, State, Writing},
    observed::{Orphans, Tombstone},
    outbox::Entries,
    slots::Slots,
    webhook_queue::WebhookQueue,
};
use crate::{FairQueue, event::EventType};
use resources::{Attempt, DisableReason, Webhook, origin};

/// A webhook: `namespace/name`.
pub type WebhookKey = Arc<str>;
/// A job: `namespace/name` of its Delivery, whether that exists or not.
pub type JobKey = Arc<str>;

/// `Retry-After` can lengthen a delay by at most this factor (decisions, section 5).
const MAX_STRETCH: u32 = 2;
/// First pause after a failed write or lookup; it doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Timers handled in one call of [`Dispatcher::tick`], so that it takes a few milliseconds however many have expired.
const TIMERS_AT_ONCE: usize = 256;
/// Held deliveries released in one call for which there is room again. A timer releases the others.
const RELEASED_AT_ONCE: usize = 64;
/// Longest pause after a failed write or lookup.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Whether events, and their deliveries that succeed at the first attempt, are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DeliveryLog {
    /// They are, in the account's EventLogs.
    #[default]
    All,
    /// They are not; only deliveries that failed at least once are recorded.
    Failures,
}

/// Limits of the dispatcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryLimits {
    /// Attempts in flight per webhook.
    pub in_flight_per_webhook: usize,
    /// Attempts in flight, of which one account has at most half.
    pub in_flight: usize,
    /// Deliveries that wait for an attempt or are in flight; more are held.
    pub pending: Bound,
    /// Held deliveries; if there are more, the oldest are dropped.
    pub held: Bound,
    /// Waiting jobs without a Delivery per webhook.
    pub unrecorded_per_webhook: usize,
    /// How long a job may have no outcome before its Delivery is created (decisions, section 5).
    pub patience: Duration,
}

impl Default for DeliveryLimits {
    fn default() -> Self {
        Self {
            in_flight_per_webhook: 16,
            in_flight: 512,
            pending: Bound {
                webhook: 1000,
                account: 5000,
                total: 100_000,
            },
            held: Bound {
                webhook: 1000,
                account: 5000,
                total: 50_000,
            },
            unrecorded_per_webhook: 256,
            patience: Duration::from_secs(1),
        }
    }
}

/// The current time: wall-clock time for records, and monotonic time for measuring, which setting the clock does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Wall-clock time.
    pub wall: Timestamp,
    /// Monotonic time.
    pub mono: Instant,
}

/// What the caller has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Make an attempt, then call [`Dispatcher::attempted`].
    Attempt {
        job: JobKey,
        webhook: WebhookKey,
        /// The event to send.
        event: Arc<Event>,
        /// The number of the attempt, from 1.
        number: i32,
    },
    /// Read the Delivery, if it exists, then call [`Dispatcher::checked`].
    Check(JobKey),
    /// Look up the entries of [`Dispatcher::unknown_to_log`] in the pages of this namespace, then call
    /// [`Dispatcher::log_checked`].
    CheckLog(Arc<str>),
    /// Write the [`Dispatcher::page`] of this namespace when there is a permit for a write, then call
    /// [`Dispatcher::page_written`].
    Log(Arc<str>),
    /// Call [`Dispatcher::begin_write`] when there is a permit for a write.
    Write {
        job: JobKey,
        /// The priority of the write.
        class: WriteClass,
    },
    /// Disable the webhook in its status, then call [`Dispatcher::disablement_written`].
    Disable(Disablement),
    /// The last event of the object with this UID is settled.
    Settled(Arc<str>),
}

/// The priority of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteClass {
    /// Something waits for it.
    Owed,
    /// A record of a suspect webhook. There may be very many of them.
    Suspect,
}

/// A webhook to disable.
#[derive(Clone, Debug, PartialEq)]
pub struct Disablement {
    pub webhook: WebhookKey,
    /// Its UID, to tell it from another webhook of the same name.
    pub uid: Arc<str>,
    /// The generation of its spec to disable.
    pub generation: i64,
    /// When the last attempt ended.
    pub at: Timestamp,
    /// Why it is disabled.
    pub reason: DisableReason,
    /// Name of the Delivery that failed.
    pub delivery: String,
    pub event_id: Arc<str>,
    pub event_type: EventType,
    /// Status code of the last response, if there was one.
    pub last_status_code: Option<i32>,
    /// Number of attempts.
    pub attempts: i32,
    /// Why the last attempt failed.
    pub error: String,
}

impl Disablement {
    /// Whether it applies to this webhook with its current spec.
    pub fn is_of(&self, webhook: &Webhook) -> bool {
        origin::uid(&webhook.metadata) == &*self.uid && webhook.metadata.generation == Some(self.generation)
    }
}

/// The outcome of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// The event was sent.
    Sent {
        /// The attempt, for the record.
        attempt: Attempt,
        /// Delay that the receiver asked for with `Retry-After`, from the end of this attempt.
        retry_after: Option<Duration>,
    },
    /// It was not sent, because the webhook cannot be sent to, for this reason. Its [`WebhookGate`] has been updated before.
    Blocked(String),
    /// It was not sent, for a temporary reason.
    Unready,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Timer {
    /// The next attempt of a job is due.
    Due(JobKey),
    /// A job has had no outcome for [`DeliveryLimits::patience`].
    Patience(JobKey),
    /// An attempt in flight is slow.
    Slow(JobKey),
    /// A failed write or lookup can be retried.
    Again(JobKey),
    /// The next page of this namespace is due.
    Log(Arc<str>),
    /// The pages of this namespace can be read again.
    CheckLog(Arc<str>),
    /// There may be room for more held deliveries.
    Room,
}

type TimerId = (Instant, u64);

/// The scheduler of deliveries.
#[derive(Debug)]
pub struct Dispatcher {
    limits: DeliveryLimits,
    schedule: RetrySchedule,
    log: DeliveryLog,
    queues: HashMap<WebhookKey, WebhookQueue>,
    by_namespace: HashMap<Arc<str>, Vec<WebhookKey>>,
    /// UIDs of deleted webhooks and their last revisions, latest last.
    gone: VecDeque<(Arc<str>, u64)>,
    jobs: HashMap<JobKey, Job>,
    /// Attempts in flight, including those of forgotten jobs.
    flights: HashMap<JobKey, Flight>,
    slots: Slots,
    /// Records that are finished or deleted, but that the watch may still show in an earlier version.
    tombstones: BTreeMap<JobKey, Tombstone>,
    orphans: Orphans,
    entries: Entries,
    logs: Logs,
    totals: Totals,
    /// Webhooks with something to send.
    ready: FairQueue,
    /// Suspect webhooks that wait for the attempt of another suspect to end.
    parked: FairQueue,
    timers: BTreeMap<TimerId, Timer>,
    timer_count: u64,
    /// Whether there is a [`Timer::Room`].
    expects_room: bool,
    /// Whether no new attempts are started.
    stopped: bool,
    commands: VecDeque<Command>,
}

/// The deliveries of all webhooks.
#[derive(Debug)]
struct Totals {
    /// Those that wait for an attempt or are in flight, recorded or not.
    owed: Counts,
    held: Counts,
    /// Number of recorded ones that wait for an attempt or are in flight.
    pending: usize,
    /// When the events of those that are owed happened, and how many happened then.
    owed_since: BTreeMap<Timestamp, usize>,
    dropped: Dropped,
    #[cfg(test)]
    dropped_jobs: Vec<JobKey>,
}

/// Numbers of deliveries dropped since the start, by the limit that left no room for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// That of their webhook.
    pub webhook: u64,
    /// That of their account.
    pub account: u64,
    /// That of all accounts together.
    pub total: u64,
}

impl Dropped {
    /// All of them.
    pub const fn sum(self) -> u64 {
        self.webhook + self.account + self.total
    }
}

/// How an event got to a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The time from the event to its receipt.
    pub after: Duration,
    /// Whether nothing about the webhook has delayed it: this was the first attempt, its receiver neither failed nor was slow, and
    /// nobody asked for the event once more.
    pub was_expected: bool,
}

impl Totals {
    /// Counts an owed delivery of an event of this time.
    fn owe(&mut self, created_at: Timestamp) {
        *self.owed_since.entry(created_at).or_default() += 1;
    }

    /// Counts one that is no longer owed.
    fn owe_no_more(&mut self, created_at: Timestamp) {
        if let Some(count) = self.owed_since.get_mut(&created_at) {
            *count -= 1;
            if *count == 0 {
                self.owed_since.remove(&created_at);
            }
        }
    }

    /// Counts a delivery that is dropped.
    #[cfg_attr(not(test), expect(unused_variables, reason = "only tests ask which they are"))]
    fn count_dropped(&mut self, job: &JobKey, bound: Scope) {
        let number = match bound {
            Scope::Webhook => &mut self.dropped.webhook,
            Scope::Account => &mut self.dropped.account,
            Scope::Total => &mut self.dropped.total,
        };
        *number += 1;
        #[cfg(test)]
        self.dropped_jobs.push(job.clone());
    }
}

/// `namespace/name`.
pub fn key(namespace: &str, name: &str) -> Arc<str> {
    format!("{namespace}/{name}").into()
}

/// The range of the keys after `last`, or of all.
pub fn after(last: Option<&Arc<str>>) -> (ops::Bound<&Arc<str>>, ops::Bound<&Arc<str>>) {
    let after = last.map_or(ops::Bound::Unbounded, ops::Bound::Excluded);
    (after, ops::Bound::Unbounded)
}

/// Some keys of a map, in their order: those after `last`, at most `limit`.
pub fn keys_after<V>(map: &BTreeMap<Arc<str>, V>, last: Option<&Arc<str>>, limit: usize) -> Vec<Arc<str>> {
    let keys = map.range::<Arc<str>, _>(after(last)).map(|(key, _)| key);
    keys.take(limit).cloned().collect()
}

/// The namespace in a [`key`]; a key without a name is a namespace.
pub fn namespace_of(key: &str) -> &str {
    key.split_once('/').map_or(key, |(namespace, _)| namespace)
}

/// The name in a key.
fn name_of(key: &str) -> &str {
    key.split_once('/').map_or(key, |(_, name)| name)
}

impl Dispatcher {
    /// An empty dispatcher. Initialise it by calling, in this order, [`Self::webhook_seen`] for every webhook,
    /// [`Self::delivery_seen`] with `at_start` for every unfinished Delivery, and [`Self::outbox_seen`] with [`Origin::Found`]
    /// for every outbox. Before that, take no commands and record no events.
    pub fn new(limits: DeliveryLimits, schedule: RetrySchedule, log: DeliveryLog) -> Self {
        Self {
            totals: Totals {
                owed: Counts::new(limits.pending),
                held: Counts::new(limits.held),
                pending: 0,
                owed_since: BTreeMap::new(),
                dropped: Dropped::default(),
                #[cfg(test)]
                dropped_jobs: Vec::new(),
            },
            slots: Slots::new(limits.in_flight),
            limits,
            schedule,
            log,
            queues: HashMap::new(),
            by_namespace: HashMap::new(),
            gone: VecDeque::new(),
            jobs: HashMap::new(),
            flights: HashMap::new(),
            tombstones: BTreeMap::new(),
            orphans: Orphans::default(),
            entries: Entries::default(),
            logs: Logs::default(),
            ready: FairQueue::default(),
            parked: FairQueue::default(),
            timers: BTreeMap::new(),
            timer_count: 0,
            expects_room: false,
            stopped: false,
            commands: VecDeque::new(),
        }
    }

    /// Starts no new attempts from now on; outcomes of those in flight can still be recorded. Call [`Self::schedule_pages`]
    /// afterwards, so that they are logged.
    pub fn stop(&mut self) {
        self.stopped = true;
        self.log_all();
    }

    /// The next command. After every call that changes something, take commands until there is none.
    pub fn next_command(&mut self, now: Now) -> Option<Command> {
        self.commands.pop_front().or_else(|| self.start_next(now))
    }

    /// When to call [`Self::tick`] next.
    pub fn next_timer(&self) -> Option<Instant> {
        self.timers.keys().next().map(|(at, _)| *at)
    }

    /// Handles timers that have expired, a limited number of them. [`Self::next_timer`] says whether there are more.
    pub fn tick(&mut self, now: Now) {
        for _ in 0..TIMERS_AT_ONCE {
            let Some(entry) = self.timers.first_entry() else {
                break;
            };
            if entry.key().0 > now.mono {
                break;
            }
            let (id, timer) = entry.remove_entry();
            match timer {
                Timer::Due(key) => {
                    let is_it = |job: &Job| job.state == State::Waiting(id);
                    if self.jobs.get(&key).is_some_and(is_it) {
                        self.enqueue(&key);
                    }
                }
                Timer::Patience(key) => {
                    // The timer belongs to an earlier job with this key if this one is still being looked up.
                    let is_under_way = |job: &&Job| !matches!(job.state, State::Over | State::Checking);
                    let Some(job) = self.jobs.get(&key).filter(is_under_way) else {
                        continue;
                    };
                    if !job.is_stored() && job.desired.is_none() {
                        self.record_as_pending(&key, now);
                    } else {
                        self.write(&key);
                    }
                }
                Timer::Slow(key) => self.is_slow(&key, id, now),
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
                Timer::Log(namespace) => self.page_due(&namespace, now),
                Timer::CheckLog(namespace) => self.commands.push_back(Command::CheckLog(namespace)),
                Timer::Room => self.expects_room = false,
            }
        }
        self.schedule_pages(now);
        self.fill_up(now);
    }

    fn timer(&mut self, at: Instant, timer: Timer) -> TimerId {
        self.timer_count += 1;
        let id = (at, self.timer_count);
        self.timers.insert(id, timer);
        id
    }

    /// Schedules a retry of a failed write or lookup.
    fn try_again(&mut self, key: &JobKey, now: Now) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let pause = job.next_pause();
        self.timer(now.mono + pause, Timer::Again(key.clone()));
    }

    /// Removes a job from its queue, and its timer. The caller sets its new state.
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

    /// Updates the numbers of deliveries after a change of a job.
    fn count(&mut self, key: &JobKey) {
        if let Some(job) = self.jobs.get_mut(key)
            && let Some(queue) = self.queues.get_mut(&job.webhook)
        {
            queue.count(job, &mut self.totals);
        }
    }

    /// Removes a job for which nothing is left to do. If it is in flight, it keeps its slot until the attempt ends.
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
        queue.count(&mut job, &mut self.totals);
        queue.jobs.remove(key);
        self.make_ready(&job.webhook);
    }
}
