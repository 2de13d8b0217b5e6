//! What is sent when, and what is written down of it. Pure: facts and outcomes go in, [`Command`]s come out, and time is a
//! parameter, so any interleaving of crashes, slow answers and failed writes can be tried in memory.
//!
//! An event of an outbox becomes a *job* for each webhook that wants it. Jobs wait in the *lane* of their webhook; lanes take
//! turns. A job starts without anything being written; a Delivery is created for it once something is owed (decisions,
//! section 5): its attempt failed, has no outcome within a second, or the lane has a backlog or is closed. The outbox entry
//! is *settled* once every job of it is delivered or has its Delivery, and the webhooks have been looked up anew.

mod job;
mod lane;
mod outbox;
mod records;
#[cfg(test)]
mod tests;
mod turns;

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;

pub use job::Event;
pub use lane::{Gate, Tally, WebhookFacts};
pub use outbox::Origin;
pub use records::{WriteOrder, Written};

use self::{
    job::{Job, State, Writing},
    lane::Lane,
    outbox::Entries,
    turns::Turns,
};
use super::schedule::RetrySchedule;
use crate::events::EventType;
use crate::resources::{
    Attempt, Delivery, DeliveryPhase, DeliveryStatus, DisableReason, delivery::MAX_ATTEMPTS_KEPT,
};

/// A webhook: `namespace/name`.
pub type LaneKey = Arc<str>;
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
        lane: LaneKey,
        /// What to send.
        event: Arc<Event>,
    },
    /// Look up whether the Delivery is there; answer with [`Dispatcher::checked`].
    Check(JobKey),
    /// Take a [`Dispatcher::begin_write`] when there is room; `owed` goes before what is merely a log.
    Write {
        /// The job.
        job: JobKey,
        /// Whether something waits for it.
        owed: bool,
    },
    /// Disable the webhook; answer with [`Dispatcher::disablement_written`].
    Disable(Disablement),
    /// The last event of the object with this UID is settled.
    Settled(Arc<str>),
}

/// A webhook that is to be disabled.
#[derive(Clone, Debug, PartialEq)]
pub struct Disablement {
    /// The webhook.
    pub lane: LaneKey,
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

/// Decides what is sent when.
#[derive(Debug)]
pub struct Dispatcher {
    limits: Limits,
    schedule: RetrySchedule,
    log: DeliveryLog,
    lanes: HashMap<LaneKey, Lane>,
    by_namespace: HashMap<Arc<str>, Vec<LaneKey>>,
    jobs: HashMap<JobKey, Job>,
    /// Finished records that the watch may still show as they were: name and the version that finished them.
    finished: HashMap<JobKey, u64>,
    entries: Entries,
    turns: Turns,
    /// Lanes that wait for another suspect to end.
    parked: Vec<LaneKey>,
    timers: BTreeMap<(Instant, u64), Timer>,
    timer_count: u64,
    in_flight: usize,
    suspects_in_flight: usize,
    /// Whether nothing new is sent.
    stopped: bool,
    commands: VecDeque<Command>,
}

/// `namespace/name`.
pub fn key(namespace: &str, name: &str) -> Arc<str> {
    format!("{namespace}/{name}").into()
}

impl Dispatcher {
    /// One that knows nothing.
    pub fn new(limits: Limits, schedule: RetrySchedule, log: DeliveryLog) -> Self {
        Self {
            limits,
            schedule,
            log,
            lanes: HashMap::new(),
            by_namespace: HashMap::new(),
            jobs: HashMap::new(),
            finished: HashMap::new(),
            entries: Entries::default(),
            turns: Turns::default(),
            parked: Vec::new(),
            timers: BTreeMap::new(),
            timer_count: 0,
            in_flight: 0,
            suspects_in_flight: 0,
            stopped: false,
            commands: VecDeque::new(),
        }
    }

    /// Nothing new is sent from now on; what is under way can still be written down.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// The next thing to do.
    pub fn next_command(&mut self) -> Option<Command> {
        self.commands.pop_front().or_else(|| self.start_next())
    }

    /// When [`Self::tick`] is to be called, if nothing happens until then.
    pub fn next_timer(&self) -> Option<Instant> {
        self.timers.keys().next().map(|(at, _)| *at)
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Now) {
        while let Some(entry) = self.timers.first_entry() {
            let (at, _) = *entry.key();
            if at > now.mono {
                break;
            }
            match entry.remove() {
                Timer::Due(key) => {
                    if self
                        .jobs
                        .get(&key)
                        .is_some_and(|job| job.state == State::Waiting(at))
                    {
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
                Timer::Again(key) => match self.jobs.get(&key) {
                    Some(job) if job.state == State::Checking => self.commands.push_back(Command::Check(key)),
                    Some(_) => self.write(&key),
                    None => {}
                },
            }
        }
    }

    fn timer(&mut self, at: Instant, timer: Timer) {
        self.timer_count += 1;
        self.timers.insert((at, self.timer_count), timer);
    }

    // Webhooks.

    /// A webhook is as the facts say. Older facts than those that are known are ignored.
    pub fn webhook_seen(&mut self, facts: WebhookFacts, now: Now) {
        let lane_key = key(&facts.namespace, &facts.name);
        let lane = self.lanes.entry(lane_key.clone()).or_insert_with(Lane::new);
        if let Some(known) = &lane.facts {
            if known.uid != facts.uid && known.revision < facts.revision {
                self.webhook_gone(&lane_key);
                self.webhook_seen(facts, now);
                return;
            }
            if known.revision > facts.revision {
                return;
            }
        }
        if lane
            .disabling
            .is_some_and(|generation| generation != facts.generation)
        {
            lane.disabling = None;
        }
        let before = lane.gate();
        if lane.facts.is_none() {
            let siblings = self.by_namespace.entry(facts.namespace.clone()).or_default();
            siblings.push(lane_key.clone());
        }
        lane.facts = Some(facts);
        let after = lane.gate();
        if before == Gate::Open && after != Gate::Open {
            self.hold_all(&lane_key);
        } else if before != Gate::Open && after == Gate::Open {
            self.release_all(&lane_key, now);
        }
        self.offer(&lane_key);
    }

    /// A webhook is no longer there, and with it everything that is owed to it.
    pub fn webhook_gone(&mut self, lane_key: &LaneKey) {
        let Some(lane) = self.lanes.remove(lane_key) else {
            return;
        };
        if let Some(facts) = &lane.facts
            && let Some(siblings) = self.by_namespace.get_mut(&facts.namespace)
        {
            siblings.retain(|sibling| sibling != lane_key);
            if siblings.is_empty() {
                self.by_namespace.remove(&facts.namespace);
            }
        }
        for job in lane.jobs {
            self.forget(&job);
        }
    }

    fn lanes_of(&self, namespace: &str) -> impl Iterator<Item = (&LaneKey, &WebhookFacts)> {
        let lanes = self.by_namespace.get(namespace).into_iter().flatten();
        lanes.filter_map(|key| Some((key, self.lanes.get(key)?.facts.as_ref()?)))
    }

    /// The webhooks that are known.
    pub fn webhooks(&self) -> impl Iterator<Item = (&LaneKey, &WebhookFacts)> {
        self.lanes
            .iter()
            .filter_map(|(key, lane)| Some((key, lane.facts.as_ref()?)))
    }

    /// How a webhook fares, with the numbers of its pending and held deliveries.
    pub fn tally(&self, lane: &LaneKey) -> Option<(Tally, i64, i64)> {
        let lane = self.lanes.get(lane)?;
        let held = lane.held.len();
        let recorded = lane.jobs.iter().filter_map(|key| self.jobs.get(key));
        let pending =
            recorded.filter(|job| job.is_stored() && !matches!(job.state, State::Over | State::Held));
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        Some((lane.tally.clone(), count(pending.count()), count(held)))
    }

    /// Finished records of a webhook were counted anew: [`Tally::finished`] starts over.
    pub fn finished_counted(&mut self, lane: &LaneKey) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.tally.finished = 0;
        }
    }

    /// The disablement is written (or the webhook was changed before it could be): what waited for that goes on.
    pub fn disablement_written(&mut self, lane: &LaneKey) {
        let Some(lane) = self.lanes.get(lane) else { return };
        let waiting: Vec<JobKey> = lane.jobs.iter().cloned().collect();
        for key in waiting {
            if let Some(job) = self.jobs.get_mut(&key)
                && job.awaits_disablement
            {
                job.awaits_disablement = false;
                self.write(&key);
            }
        }
    }

    fn hold_all(&mut self, lane_key: &LaneKey) {
        let Some(lane) = self.lanes.get(lane_key) else {
            return;
        };
        for key in lane.jobs.iter().cloned().collect::<Vec<_>>() {
            let job = self.jobs.get(&key);
            if job.is_some_and(|job| !job.test && matches!(job.state, State::Ready | State::Waiting(_))) {
                self.hold(&key);
            }
        }
    }

    /// In the order of their events, each with a fresh ladder.
    fn release_all(&mut self, lane_key: &LaneKey, now: Now) {
        let Some(lane) = self.lanes.get_mut(lane_key) else {
            return;
        };
        for (_, key) in std::mem::take(&mut lane.held) {
            let Some(job) = self.jobs.get_mut(&key) else {
                continue;
            };
            let mut status = job.status();
            status.phase = DeliveryPhase::Pending;
            status.retries = 0;
            status.next_attempt_at = Some(now.wall);
            // Its outcome is written soon; this alone is not worth a write.
            job.desired = Some(Box::new(status));
            job.drains = true;
            self.enqueue(&key);
        }
    }

    /// Keeps a job until its lane is open, with a record of it.
    fn hold(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let Some(lane) = self.lanes.get_mut(&job.lane) else {
            return;
        };
        lane.dequeue(key, job);
        job.state = State::Held;
        job.drains = false;
        let mut status = job.status();
        let is_news =
            !job.is_stored() || status.phase != DeliveryPhase::Held || status.next_attempt_at.is_some();
        status.phase = DeliveryPhase::Held;
        status.next_attempt_at = None;
        // A record whose webhook is not known is on its way out, or was made by somebody else.
        if is_news && lane.facts.is_some() {
            job.desired = Some(Box::new(status));
        }
        lane.held.insert(job.order.clone(), key.clone());
        let oldest = (lane.held.len() > self.limits.held_per_webhook)
            .then(|| lane.held.pop_first())
            .flatten();
        self.write(key);
        if let Some((_, oldest)) = oldest {
            self.drop_job(&oldest);
        }
    }

    /// Gives a held delivery up, because there are too many.
    fn drop_job(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        if let Some(lane) = self.lanes.get_mut(&job.lane) {
            lane.tally.dropped += 1;
        }
        job.state = State::Over;
        job.dropped = true;
        self.write(key);
    }

    // Sending.

    fn enqueue(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let Some(lane) = self.lanes.get_mut(&job.lane) else {
            return;
        };
        job.state = State::Ready;
        lane.enqueue(key, job);
        let lane = job.lane.clone();
        self.offer(&lane);
    }

    fn offer(&mut self, lane_key: &LaneKey) {
        if let Some(lane) = self.lanes.get_mut(lane_key)
            && !lane.queued
            && let Some(facts) = &lane.facts
        {
            lane.queued = true;
            self.turns.offer(&facts.namespace, lane_key.clone());
        }
    }

    fn start_next(&mut self) -> Option<Command> {
        while !self.stopped && self.in_flight < self.limits.in_flight {
            let lane_key = self.turns.take()?;
            let Some(lane) = self.lanes.get_mut(&lane_key) else {
                continue;
            };
            lane.queued = false;
            // Receivers that fail or never answered hold at most half of the slots, whatever their number.
            if lane.suspect && self.suspects_in_flight >= (self.limits.in_flight / 2).max(1) {
                self.parked.push(lane_key);
                continue;
            }
            let jobs = &self.jobs;
            let subject = |key: &JobKey| jobs.get(key).map(|job| job.subject.clone());
            let Some(key) = lane.next(self.limits.in_flight_per_webhook, subject) else {
                continue;
            };
            lane.in_flight += 1;
            let suspect = lane.suspect;
            self.offer(&lane_key);
            let Some(job) = self.jobs.get_mut(&key) else {
                continue;
            };
            job.state = State::InFlight;
            job.sent_as_suspect = suspect;
            self.in_flight += 1;
            self.suspects_in_flight += usize::from(suspect);
            let event = job.event();
            return Some(Command::Attempt {
                job: key,
                lane: lane_key,
                event,
            });
        }
        None
    }

    /// What came of a [`Command::Attempt`].
    pub fn attempted(&mut self, key: &JobKey, report: Report, now: Now) {
        self.in_flight = self.in_flight.saturating_sub(1);
        for lane in std::mem::take(&mut self.parked) {
            self.offer(&lane);
        }
        let Some(job) = self.jobs.get_mut(key).filter(|job| job.state == State::InFlight) else {
            return;
        };
        if std::mem::take(&mut job.sent_as_suspect) {
            self.suspects_in_flight = self.suspects_in_flight.saturating_sub(1);
        }
        let lane_key = job.lane.clone();
        let Some(lane) = self.lanes.get_mut(&lane_key) else {
            return;
        };
        let outcome = match &report {
            Report::Sent { attempt, .. } => Some(attempt.error.is_none()),
            Report::Blocked(_) | Report::Unready => None,
        };
        lane.ended(job, outcome, self.limits.in_flight_per_webhook);
        if std::mem::take(&mut job.drains) && !matches!(report, Report::Unready) {
            lane.draining = lane.draining.saturating_sub(1);
        }
        match report {
            Report::Unready => {
                let at = now.mono + FIRST_PAUSE;
                job.state = State::Waiting(at);
                self.timer(at, Timer::Due(key.clone()));
            }
            Report::Blocked(why) if job.test => {
                let mut status = job.status();
                status.phase = DeliveryPhase::Exhausted;
                status.next_attempt_at = None;
                status.last_error = Some(why);
                job.desired = Some(Box::new(status));
                job.state = State::Over;
                self.write(key);
            }
            Report::Blocked(_) if lane.gate() == Gate::Open => {
                let at = now.mono + FIRST_PAUSE;
                job.state = State::Waiting(at);
                self.timer(at, Timer::Due(key.clone()));
            }
            Report::Blocked(_) => self.hold(key),
            Report::Sent { attempt, retry_after } => self.sent(key, attempt, retry_after, now),
        }
        self.offer(&lane_key);
    }

    fn sent(&mut self, key: &JobKey, attempt: Attempt, retry_after: Option<Duration>, now: Now) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let Some(lane) = self.lanes.get_mut(&job.lane) else {
            return;
        };
        let mut status = job.status();
        status.attempt_count += 1;
        status.next_attempt_at = None;
        status.last_status_code = attempt.status_code;
        status.last_error.clone_from(&attempt.error);
        let (gone, error) = (attempt.status_code == Some(410), attempt.error.clone());
        status.attempts.push(attempt);
        let surplus = status.attempts.len().saturating_sub(MAX_ATTEMPTS_KEPT);
        status.attempts.drain(..surplus);
        let Some(error) = error else {
            lane.tally.delivered += 1;
            lane.tally.last_success_at = Some(now.wall);
            status.phase = DeliveryPhase::Delivered;
            job.state = State::Over;
            let is_unrecorded = !job.is_stored() && job.writing != Writing::Running;
            if is_unrecorded && self.log == DeliveryLog::Failures {
                self.forget(key);
                return;
            }
            job.desired = Some(Box::new(status));
            self.write(key);
            return;
        };
        lane.tally.failed_attempts += 1;
        lane.tally.last_failure_at = Some(now.wall);
        lane.tally.last_failure = Some(error.clone());
        let retry = usize::try_from(status.retries).unwrap_or(usize::MAX);
        let delay = self.schedule.delay(retry).filter(|_| !gone && !job.test);
        if let Some(delay) = delay {
            let delay = retry_after.map_or(delay, |asked| asked.clamp(delay, delay * MAX_STRETCH));
            status.retries += 1;
            status.phase = DeliveryPhase::Pending;
            status.next_attempt_at = now.wall.checked_add(delay).ok();
            job.desired = Some(Box::new(status));
            let at = now.mono + delay;
            job.state = State::Waiting(at);
            self.timer(at, Timer::Due(key.clone()));
            let open = self
                .lanes
                .get(&self.jobs[key].lane)
                .is_some_and(|lane| lane.gate() == Gate::Open);
            if open {
                self.write(key);
            } else {
                self.hold(key);
            }
            return;
        }
        status.phase = DeliveryPhase::Exhausted;
        job.state = State::Over;
        let (attempts, last_status_code) = (status.attempt_count, status.last_status_code);
        job.desired = Some(Box::new(status));
        let generation = lane.facts.as_ref().map(|facts| facts.generation);
        if !job.test
            && lane.gate() == Gate::Open
            && let Some(generation) = generation
        {
            job.awaits_disablement = true;
            lane.disabling = Some(generation);
            let (lane_key, event) = (job.lane.clone(), job.event());
            let disablement = Disablement {
                lane: lane_key.clone(),
                generation,
                at: now.wall,
                reason: if gone {
                    DisableReason::Gone
                } else {
                    DisableReason::RetriesExhausted
                },
                delivery: key.split_once('/').map_or("", |(_, name)| name).to_owned(),
                event_id: event.id.clone(),
                event_type: event.event_type,
                last_status_code,
                attempts,
                error,
            };
            self.commands.push_back(Command::Disable(disablement));
            self.hold_all(&lane_key);
        }
        self.write(key);
    }

    // Deliveries that are there.

    /// An unfinished Delivery is as the API server shows it, at the start or since.
    pub fn delivery_seen(&mut self, record: Arc<Delivery>, at_start: bool, now: Now) {
        let namespace = record.metadata.namespace.as_deref().unwrap_or_default();
        let job_key = key(namespace, record.metadata.name.as_deref().unwrap_or_default());
        let revision = crate::runtime::watch::revision(&*record);
        if self
            .finished
            .get(&job_key)
            .is_some_and(|finished| *finished >= revision)
        {
            return;
        }
        if let Some(job) = self.jobs.get_mut(&job_key) {
            match &job.record() {
                Some(known) if crate::runtime::watch::revision(&***known) >= revision => return,
                None if job.state == State::Checking => {}
                _ => {
                    job.source = job::Source::Record(record);
                    self.settle(&job_key);
                    return;
                }
            }
            self.settle(&job_key);
        }
        self.finished.remove(&job_key);
        self.adopt(job_key, record, at_start, now);
    }

    /// Takes a record on that no job of this process was about.
    fn adopt(&mut self, job_key: JobKey, record: Arc<Delivery>, at_start: bool, now: Now) {
        let namespace = record.metadata.namespace.as_deref().unwrap_or_default();
        let lane_key = key(namespace, &record.spec.webhook);
        let lane = self.lanes.entry(lane_key.clone()).or_insert_with(Lane::new);
        lane.jobs.insert(job_key.clone());
        let gate = lane.gate();
        let mut job = Job::of_record(lane_key, record);
        let mut status = job.status();
        if status.phase.is_finished() {
            // Its label was taken away: somebody wants it sent again.
            status = DeliveryStatus {
                phase: DeliveryPhase::Pending,
                retries: 0,
                next_attempt_at: Some(now.wall),
                ..status
            };
            job.desired = Some(Box::new(status.clone()));
        } else if status.phase == DeliveryPhase::Held && gate == Gate::Open {
            status.phase = DeliveryPhase::Pending;
            status.retries = 0;
            status.next_attempt_at = Some(now.wall);
            job.desired = Some(Box::new(status.clone()));
            job.drains = true;
        }
        let is_first = status.retries == 0;
        job.drains |= at_start && is_first && !job.test;
        let test = job.test;
        self.jobs.insert(job_key.clone(), job);
        if gate != Gate::Open && !test {
            self.hold(&job_key);
            return;
        }
        // However the clock was set meanwhile, a retry waits no longer than its schedule allows.
        let retry = usize::try_from(status.retries).unwrap_or(0);
        let longest = retry
            .checked_sub(1)
            .and_then(|retry| self.schedule.delay(retry))
            .map_or(Duration::ZERO, |delay| delay * MAX_STRETCH);
        let wait = status
            .next_attempt_at
            .and_then(|at| Duration::try_from(at.duration_since(now.wall)).ok())
            .unwrap_or_default()
            .min(longest);
        if wait.is_zero() {
            self.enqueue(&job_key);
        } else if let Some(job) = self.jobs.get_mut(&job_key) {
            let at = now.mono + wait;
            job.state = State::Waiting(at);
            self.timer(at, Timer::Due(job_key));
        }
    }

    /// A Delivery is no longer there, or is finished.
    pub fn delivery_gone(&mut self, namespace: &str, name: &str) {
        let job_key = key(namespace, name);
        self.finished.remove(&job_key);
        let Some(job) = self.jobs.get_mut(&job_key).filter(|job| job.is_stored()) else {
            return;
        };
        if job.writing == Writing::Running {
            // What came of the write tells what it means.
            job.left_watch = true;
        } else {
            self.forget(&job_key);
        }
    }

    /// These are all unfinished Deliveries that there are; whatever else was known of is gone.
    pub fn deliveries_listed(&mut self, all: &[Arc<Delivery>], now: Now) {
        let listed: HashSet<JobKey> = all
            .iter()
            .map(|record| {
                let metadata = &record.metadata;
                key(
                    metadata.namespace.as_deref().unwrap_or_default(),
                    metadata.name.as_deref().unwrap_or_default(),
                )
            })
            .collect();
        self.finished.retain(|key, _| listed.contains(key));
        let lost: Vec<JobKey> = self
            .jobs
            .iter()
            .filter(|(key, job)| job.is_stored() && job.writing == Writing::No && !listed.contains(*key))
            .map(|(key, _)| key.clone())
            .collect();
        for key in lost {
            self.forget(&key);
        }
        for record in all {
            self.delivery_seen(record.clone(), false, now);
        }
    }

    /// Nothing more is to be done for a job.
    fn forget(&mut self, key: &JobKey) {
        self.settle(key);
        let Some(job) = self.jobs.remove(key) else { return };
        if job.state == State::InFlight && job.sent_as_suspect {
            self.suspects_in_flight = self.suspects_in_flight.saturating_sub(1);
        }
        if let Some(lane) = self.lanes.get_mut(&job.lane) {
            lane.dequeue(key, &job);
            lane.jobs.remove(key);
            if job.state == State::InFlight {
                lane.ended(&job, None, self.limits.in_flight_per_webhook);
                lane.draining -= usize::from(job.drains);
            }
        }
    }
}
