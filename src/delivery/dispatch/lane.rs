//! The jobs of one webhook: which of them is next, and how many at a time.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::Arc,
};

use jiff::Timestamp;

use super::{
    JobKey,
    job::{Job, Order},
};
use crate::events::EventType;

/// How many queued jobs are looked at for one whose object has no attempt under way.
const LOOK_AHEAD: usize = 64;
/// In flight to a webhook of which nothing is known yet.
const FIRST_WINDOW: usize = 4;

/// Whether a webhook may be sent to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    /// It may.
    #[default]
    Open,
    /// `spec.active` is false: nothing is recorded either.
    Inactive,
    /// It was disabled: events are held.
    Disabled,
    /// Its secret is missing, its URL forbidden, or its namespace nobody's: events are held.
    Blocked,
}

/// What is known of a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookFacts {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its UID.
    pub uid: Arc<str>,
    /// The version that this is known from.
    pub revision: u64,
    /// The generation of its spec.
    pub generation: i64,
    /// When it was created.
    pub created_at: Timestamp,
    /// Types that it wants.
    pub events: Vec<EventType>,
    /// Whether it may be sent to.
    pub gate: Gate,
}

/// How a webhook fared since this process leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Deliveries that succeeded.
    pub delivered: i64,
    /// Attempts that failed.
    pub failed_attempts: i64,
    /// Held deliveries that were given up.
    pub dropped: i64,
    /// When one last succeeded.
    pub last_success_at: Option<Timestamp>,
    /// When an attempt last failed.
    pub last_failure_at: Option<Timestamp>,
    /// Why it did.
    pub last_failure: Option<String>,
    /// Finished deliveries that were written down.
    pub finished: u64,
}

#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) facts: Option<WebhookFacts>,
    /// The generation that is being disabled, before the API server shows it.
    pub(super) disabling: Option<i64>,
    pub(super) jobs: HashSet<JobKey>,
    first: BTreeMap<Order, JobKey>,
    retries: VecDeque<JobKey>,
    tests: VecDeque<JobKey>,
    pub(super) held: BTreeMap<Order, JobKey>,
    /// Objects with a first attempt in flight.
    busy: HashSet<Arc<str>>,
    /// Queued or in flight, and to go one after the other.
    pub(super) draining: usize,
    pub(super) in_flight: usize,
    window: usize,
    /// Whether its last attempt failed, or it has not had a success yet.
    pub(super) suspect: bool,
    /// Whether it waits for its turn.
    pub(super) queued: bool,
    /// Retries and first attempts take turns.
    retry_next: bool,
    pub(super) tally: Tally,
}

impl Lane {
    pub(super) fn new() -> Self {
        Self {
            window: FIRST_WINDOW,
            suspect: true,
            ..Self::default()
        }
    }

    pub(super) fn gate(&self) -> Gate {
        match &self.facts {
            None => Gate::Blocked,
            Some(facts) if facts.gate == Gate::Inactive => Gate::Inactive,
            Some(facts) if self.disabling == Some(facts.generation) => Gate::Disabled,
            Some(facts) => facts.gate,
        }
    }

    pub(super) fn enqueue(&mut self, key: &JobKey, job: &Job) {
        if job.test {
            self.tests.push_back(key.clone());
        } else if job.is_first_attempt() {
            self.first.insert(job.order.clone(), key.clone());
            self.draining += usize::from(job.drains);
        } else {
            self.retries.push_back(key.clone());
        }
    }

    /// Takes a job out of whatever queue it is in.
    pub(super) fn dequeue(&mut self, key: &JobKey, job: &Job) {
        if self.first.remove(&job.order).is_some() {
            self.draining -= usize::from(job.drains);
        }
        self.held.remove(&job.order);
        self.retries.retain(|queued| queued != key);
        self.tests.retain(|queued| queued != key);
    }

    /// First attempts that wait.
    pub(super) fn backlog(&self) -> usize {
        self.first.len()
    }

    /// The next job to send, if one may be sent now.
    pub(super) fn next(
        &mut self,
        cap: usize,
        subject_of: impl Fn(&JobKey) -> Option<Arc<str>>,
    ) -> Option<JobKey> {
        let limit = if self.draining > 0 {
            1
        } else {
            self.window.min(cap)
        };
        if self.in_flight >= limit.max(1) {
            return None;
        }
        if let Some(key) = self.tests.pop_front() {
            return Some(key);
        }
        if self.gate() != Gate::Open {
            return None;
        }
        self.retry_next = !self.retry_next;
        if self.retry_next
            && let Some(key) = self.retries.pop_front()
        {
            return Some(key);
        }
        let free = self.first.iter().take(LOOK_AHEAD).find_map(|(order, key)| {
            let subject = subject_of(key)?;
            (subject.is_empty() || !self.busy.contains(&subject)).then(|| (order.clone(), subject))
        });
        match free {
            Some((order, subject)) => {
                if !subject.is_empty() {
                    self.busy.insert(subject);
                }
                self.first.remove(&order)
            }
            None => self.retries.pop_front(),
        }
    }

    /// An attempt ended.
    pub(super) fn ended(&mut self, job: &Job, outcome: Option<bool>, cap: usize) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.busy.remove(&job.subject);
        match outcome {
            Some(true) => {
                self.suspect = false;
                self.window = (self.window + 1).min(cap);
            }
            Some(false) => {
                self.suspect = true;
                self.window = (self.window / 2).max(1);
            }
            None => {}
        }
    }
}
