//! Entries of outboxes, from their recording until they are settled.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};

use super::{
    Command, Dispatcher, Event, JobKey, Now, Timer,
    job::{Job, State},
    key,
    lane::{Gate, WebhookFacts},
};
use crate::{
    events::{EventType, OutboxEntry},
    resources::{Delivery, ids},
};

/// An event from before a webhook's creation is not for it. As much as clocks may differ: an event too many is harmless, one
/// too few is not.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_secs(60);

/// How an entry came to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This process has just recorded it, so nobody has sent it yet.
    Fresh,
    /// It was found: an earlier process may have sent it, and logged that.
    Found,
}

#[derive(Debug, Default)]
pub(super) struct Entries {
    by_event: HashMap<Arc<str>, Entry>,
    by_object: HashMap<Arc<str>, Vec<Arc<str>>>,
}

#[derive(Debug)]
struct Entry {
    namespace: Arc<str>,
    event: Arc<Event>,
    origin: Origin,
    /// The version of the object that it is known from.
    revision: u64,
    /// Whether the webhooks were looked up since.
    verified: bool,
    /// The jobs of it, those that are over included: none is made twice.
    made: Vec<JobKey>,
    /// Those that are not settled.
    open: usize,
}

impl Entry {
    fn is_settled(&self) -> bool {
        self.verified && self.open == 0
    }
}

impl Dispatcher {
    /// An object has these entries in its outbox, in a version with this revision.
    pub fn outbox_seen(
        &mut self,
        namespace: &str,
        uid: &str,
        revision: u64,
        outbox: &[OutboxEntry],
        origin: Origin,
        now: Now,
    ) {
        self.outbox_shown(uid, revision, outbox);
        let mut uid_shared: Option<Arc<str>> = None;
        for entry in outbox {
            if self.entries.by_event.contains_key(entry.id.as_str()) {
                continue;
            }
            let uid = uid_shared.get_or_insert_with(|| uid.into()).clone();
            let event = Arc::new(Event::of_entry(entry, &uid));
            let id = event.id.clone();
            self.entries.by_object.entry(uid).or_default().push(id.clone());
            self.entries.by_event.insert(
                id.clone(),
                Entry {
                    namespace: namespace.into(),
                    event,
                    origin,
                    revision,
                    verified: false,
                    made: Vec::new(),
                    open: 0,
                },
            );
            self.send_to_all(&id, now);
        }
    }

    /// What is no longer in the outbox of an object needs no memory. Versions from before an entry was recorded say nothing
    /// about it.
    pub fn outbox_shown(&mut self, uid: &str, revision: u64, outbox: &[OutboxEntry]) {
        let Entries { by_event, by_object } = &mut self.entries;
        let Some(known) = by_object.get_mut(uid) else {
            return;
        };
        known.retain(|id| {
            let is_there = outbox.iter().any(|entry| entry.id == **id);
            let is_older = by_event.get(id).is_some_and(|entry| entry.revision >= revision);
            let keep = is_there || is_older;
            if !keep {
                by_event.remove(id);
            }
            keep
        });
        if known.is_empty() {
            by_object.remove(uid);
        }
    }

    /// An object is gone, and its outbox with it.
    pub fn object_gone(&mut self, uid: &str) {
        for id in self.entries.by_object.remove(uid).into_iter().flatten() {
            self.entries.by_event.remove(&id);
        }
    }

    /// Whether an entry is known.
    pub fn knows(&self, event_id: &str) -> bool {
        self.entries.by_event.contains_key(event_id)
    }

    /// Whether nothing is left to do for an entry.
    pub fn is_settled(&self, event_id: &str) -> bool {
        self.entries.by_event.get(event_id).is_some_and(Entry::is_settled)
    }

    /// Entries whose webhooks have not been looked up since they were recorded, by namespace.
    pub fn unverified(&self) -> BTreeMap<Arc<str>, Vec<Arc<str>>> {
        let mut all: BTreeMap<Arc<str>, Vec<Arc<str>>> = BTreeMap::new();
        for (id, entry) in self.entries.by_event.iter().filter(|(_, entry)| !entry.verified) {
            all.entry(entry.namespace.clone()).or_default().push(id.clone());
        }
        all
    }

    /// The webhooks were looked up after these entries were recorded, and [`Self::webhook_seen`] was told of all. Now nobody
    /// who wants one of them can be unknown.
    pub fn verified(&mut self, event_ids: &[Arc<str>], now: Now) {
        for id in event_ids {
            self.send_to_all(id, now);
            let Some(entry) = self.entries.by_event.get_mut(id) else {
                continue;
            };
            entry.verified = true;
            self.tell_if_settled(id);
        }
    }

    /// A job for each webhook that wants the event and has none yet.
    fn send_to_all(&mut self, id: &Arc<str>, now: Now) {
        let Some(entry) = self.entries.by_event.get(id) else {
            return;
        };
        let (event, origin, namespace) = (entry.event.clone(), entry.origin, entry.namespace.clone());
        let wants = |facts: &WebhookFacts| {
            facts.namespace == namespace
                && facts.gate != Gate::Inactive
                && facts.events.contains(&event.event_type)
                && began_before(facts.created_at, event.created_at)
        };
        let lanes: Vec<_> = self
            .lanes_of(&namespace)
            .filter(|(_, facts)| wants(facts))
            .map(|(lane, facts)| (lane.clone(), key(&namespace, &ids::delivery_name(&facts.uid, id))))
            .collect();
        for (lane_key, job_key) in lanes {
            let Some(entry) = self.entries.by_event.get_mut(id) else {
                return;
            };
            // One that has its record already came with the records.
            let has_record = self.finished.contains_key(&job_key) || self.jobs.contains_key(&job_key);
            if entry.made.contains(&job_key) || has_record {
                continue;
            }
            entry.made.push(job_key.clone());
            entry.open += 1;
            let mut job = Job::of_event(lane_key.clone(), event.clone());
            job.state = State::Checking;
            self.jobs.insert(job_key.clone(), job);
            if let Some(lane) = self.lanes.get_mut(&lane_key) {
                lane.jobs.insert(job_key.clone());
            }
            match origin {
                Origin::Fresh => self.take_on(&job_key, now),
                Origin::Found => self.commands.push_back(Command::Check(job_key)),
            }
        }
    }

    /// An event that nobody has sent yet.
    fn take_on(&mut self, job_key: &JobKey, now: Now) {
        let Some(job) = self.jobs.get(job_key) else { return };
        let Some(lane) = self.lanes.get(&job.lane) else {
            return;
        };
        match lane.gate() {
            Gate::Inactive => self.forget(job_key),
            Gate::Disabled | Gate::Blocked => self.hold(job_key),
            Gate::Open => {
                let backlog = lane.draining > 0 || lane.backlog() >= self.limits.unrecorded_per_webhook;
                self.enqueue(job_key);
                if backlog {
                    self.record_as_pending(job_key, now);
                } else {
                    self.timer(now.mono + self.limits.patience, Timer::Patience(job_key.clone()));
                }
            }
        }
    }

    /// Whether the Delivery that a [`Command::Check`] asked for is there.
    pub fn checked(&mut self, job_key: &JobKey, found: Result<Option<Arc<Delivery>>, ()>, now: Now) {
        let is_waiting = |job: &&Job| job.state == State::Checking;
        if self.jobs.get(job_key).filter(is_waiting).is_none() {
            return;
        }
        match found {
            Ok(None) => self.take_on(job_key, now),
            Ok(Some(record)) if record.is_finished() => self.forget(job_key),
            Ok(Some(record)) => {
                self.settle(job_key);
                self.adopt(job_key.clone(), record, true, now);
            }
            Err(()) => self.timer(now.mono + super::FIRST_PAUSE, Timer::Again(job_key.clone())),
        }
    }

    /// A job is delivered, or its record is written.
    pub(super) fn settle(&mut self, job_key: &JobKey) {
        let Some(job) = self.jobs.get_mut(job_key) else {
            return;
        };
        if !std::mem::take(&mut job.settles_entry) {
            return;
        }
        let id = job.event_id();
        if let Some(entry) = self.entries.by_event.get_mut(&id) {
            entry.open = entry.open.saturating_sub(1);
            self.tell_if_settled(&id);
        }
    }

    fn tell_if_settled(&mut self, id: &Arc<str>) {
        if let Some(entry) = self.entries.by_event.get(id)
            && entry.is_settled()
            && entry.event.event_type == EventType::InstanceDeleted
        {
            self.commands
                .push_back(Command::Settled(entry.event.subject.clone()));
        }
    }
}

/// Whether a webhook that was created then may want an event that happened then.
fn began_before(created_at: Timestamp, event_at: Timestamp) -> bool {
    created_at.duration_since(event_at) <= CLOCKS_DIFFER
}
