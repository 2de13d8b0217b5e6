//! Outbox entries, from their recording until they are settled.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    ops::Bound,
    sync::Arc,
};

use jiff::SignedDuration;

use super::{
    Command, Dispatcher, Event, JobKey, Now, Timer,
    event_log::{Logged, Removed},
    job::{Job, State},
    key, keys_after,
    webhook_queue::{WebhookFacts, WebhookGate},
};
use crate::event::{EventType, OutboxVersion};
use resources::{Delivery, ids};

/// Tolerance for deciding that an event happened before a webhook was created, and so is not sent to it, when only
/// clocks can tell the order. It is large because sending one event too many is harmless, while missing one is not.
/// Entries are rarely older than a few seconds.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_hours(24);

/// Where an entry comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This process has just recorded it, so it has not been sent yet.
    Fresh,
    /// It was found in an outbox: an earlier process may have sent and logged it.
    Found,
}

/// An entry whose webhooks have not been listed since it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unverified {
    /// The namespace of its object.
    pub namespace: Arc<str>,
    /// The id of its event.
    pub event: Arc<str>,
    /// The version of its object in which it was seen. A list of webhooks as of this version or later has all webhooks
    /// that existed before the event.
    pub revision: u64,
}

#[derive(Debug, Default)]
pub(super) struct Entries {
    by_event: HashMap<Arc<str>, Entry>,
    by_object: BTreeMap<Arc<str>, Object>,
    /// The jobs of all entries, including finished ones.
    jobs: HashSet<JobKey>,
    /// Entries whose webhooks have not been listed since they were recorded: namespace and id of the event.
    unverified: BTreeSet<(Arc<str>, Arc<str>)>,
    /// Entries that are no longer in their outboxes and that the log does not know about yet.
    removed: Vec<Removed>,
}

#[derive(Debug, Default)]
struct Object {
    kind: &'static str,
    /// The latest known version.
    revision: u64,
    /// The events in its outbox.
    events: Vec<Arc<str>>,
}

#[derive(Debug)]
struct Entry {
    namespace: Arc<str>,
    event: Arc<Event>,
    origin: Origin,
    /// The version of its object in which it was seen.
    revision: u64,
    /// Whether the webhooks have been listed since.
    is_verified: bool,
    /// All its jobs, including finished ones, so that none is created twice.
    jobs: Vec<JobKey>,
    /// Number of jobs that are not settled.
    open: usize,
    logged: Logged,
}

impl Entry {
    /// Whether only logging is left to do.
    fn is_complete(&self) -> bool {
        self.is_verified && self.open == 0
    }

    fn is_settled(&self) -> bool {
        self.is_complete() && matches!(self.logged, Logged::Done(_))
    }
}

impl Entries {
    fn insert(&mut self, namespace: Arc<str>, event: Arc<Event>, origin: Origin, revision: u64) {
        self.unverified.insert((namespace.clone(), event.id.clone()));
        let entry = Entry {
            namespace,
            origin,
            revision,
            is_verified: false,
            jobs: Vec::new(),
            open: 0,
            logged: Logged::Unknown,
            event: event.clone(),
        };
        self.by_event.insert(event.id.clone(), entry);
    }

    fn remove(&mut self, id: &Arc<str>) {
        self.verify(id);
        let Some(entry) = self.by_event.remove(id) else {
            return;
        };
        for job in &entry.jobs {
            self.jobs.remove(job);
        }
        let is_unknown = entry.logged == Logged::Unknown;
        self.removed.push(Removed {
            namespace: entry.namespace,
            event: id.clone(),
            created_at: entry.event.created_at,
            waiting: if is_unknown { entry.jobs } else { Vec::new() },
        });
    }

    /// The entries that have been removed since the last call.
    pub(super) fn take_removed(&mut self) -> Vec<Removed> {
        std::mem::take(&mut self.removed)
    }

    pub(super) fn logged(&self, id: &str) -> Option<&Logged> {
        Some(&self.by_event.get(id)?.logged)
    }

    pub(super) fn set_logged(&mut self, id: &str, logged: Logged) {
        if let Some(entry) = self.by_event.get_mut(id) {
            entry.logged = logged;
        }
    }

    /// The event and the jobs of an entry, if it is not known yet whether the entry is on a page.
    pub(super) fn if_unknown_to_log(&self, id: &str) -> Option<(Arc<Event>, Vec<JobKey>)> {
        let entry = self.by_event.get(id)?;
        (entry.logged == Logged::Unknown).then(|| (entry.event.clone(), entry.jobs.clone()))
    }

    fn verify(&mut self, id: &Arc<str>) {
        let Some(entry) = self.by_event.get_mut(id) else {
            return;
        };
        entry.is_verified = true;
        self.unverified.remove(&(entry.namespace.clone(), id.clone()));
    }

    /// Removes the entries that the outbox of an object no longer has. Returns `false` if this version is stale.
    fn shown(&mut self, outbox: &OutboxVersion<'_>) -> bool {
        let Some(object) = self.by_object.get_mut(outbox.uid) else {
            return true;
        };
        if outbox.revision < object.revision {
            return false;
        }
        object.revision = outbox.revision;
        let is_there = |id: &mut Arc<str>| outbox.entries.iter().any(|entry| entry.id == **id);
        let left: Vec<_> = object.events.extract_if(.., |id| !is_there(id)).collect();
        for id in left {
            self.remove(&id);
        }
        true
    }

    fn forget_emptied(&mut self, uid: &str) {
        if self
            .by_object
            .get(uid)
            .is_some_and(|object| object.events.is_empty())
        {
            self.by_object.remove(uid);
        }
    }

    /// The jobs of each entry, and how many of them it waits for.
    #[cfg(test)]
    pub(super) fn open(&self) -> impl Iterator<Item = (&[JobKey], usize)> {
        self.by_event.values().map(|entry| (&*entry.jobs, entry.open))
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_event.is_empty()
            && self.by_object.is_empty()
            && self.unverified.is_empty()
            && self.jobs.is_empty()
            && self.removed.is_empty()
    }
}

impl Dispatcher {
    /// Records the outbox of an object in this version. Call it with [`Origin::Fresh`] for every status that this process
    /// writes, even without entries: the watch may show older versions for a while, and this makes them recognisable as stale.
    /// Call it with [`Origin::Found`] for entries from the watch.
    pub fn outbox_seen(&mut self, outbox: &OutboxVersion<'_>, origin: Origin, now: Now) {
        if !self.entries.shown(outbox) {
            return;
        }
        let mut object: Option<Arc<str>> = None;
        let mut namespace_key: Option<Arc<str>> = None;
        for entry in outbox.entries {
            if self.knows(&entry.id) {
                continue;
            }
            let uid = object.get_or_insert_with(|| outbox.uid.into());
            let event = Arc::new(Event::of_entry(entry, uid));
            let id = event.id.clone();
            let known = self.entries.by_object.entry(uid.clone()).or_default();
            known.kind = outbox.kind;
            known.revision = outbox.revision;
            known.events.push(id.clone());
            let namespace = namespace_key.get_or_insert_with(|| outbox.account_namespace.into());
            self.entries
                .insert(namespace.clone(), event.clone(), origin, outbox.revision);
            match origin {
                Origin::Fresh => {
                    let logged = self.open_draft(namespace, &event);
                    self.entries.set_logged(&id, logged);
                }
                Origin::Found => self.check_log(namespace, &id, event.created_at, Vec::new()),
            }
            self.create_jobs(&id, origin == Origin::Fresh, now);
        }
        if origin == Origin::Found {
            self.entries.forget_emptied(outbox.uid);
        }
    }

    /// Forgets the entries that are no longer in the outbox of an object, as the watch shows it at this version.
    /// Ignores new entries, which go to [`Self::outbox_seen`].
    pub fn outbox_shown(&mut self, outbox: &OutboxVersion<'_>) {
        if self.entries.shown(outbox) {
            self.entries.forget_emptied(outbox.uid);
        }
    }

    /// Forgets a deleted object and its outbox.
    pub fn object_gone(&mut self, uid: &str) {
        let object = self.entries.by_object.remove(uid);
        for id in object.into_iter().flat_map(|object| object.events) {
            self.entries.remove(&id);
        }
    }

    /// The UIDs of some objects with outbox entries, in their order: those after `last`, at most `limit`.
    pub fn objects_after(&self, last: Option<&Arc<str>>, limit: usize) -> Vec<Arc<str>> {
        keys_after(&self.entries.by_object, last, limit)
    }

    /// Forgets an object that is missing from a new list of all objects of a kind, unless it is of another kind or is
    /// known at a version newer than `newest`, the latest in the list. Returns whether it was forgotten.
    pub fn forget_unlisted_object(&mut self, kind: &str, uid: &str, newest: u64) -> bool {
        let object = self.entries.by_object.get(uid);
        let is_gone = object.is_some_and(|object| object.kind == kind && object.revision <= newest);
        if is_gone {
            self.object_gone(uid);
        }
        is_gone
    }

    /// Whether an entry is known.
    pub fn knows(&self, event_id: &str) -> bool {
        self.entries.by_event.contains_key(event_id)
    }

    /// Whether an entry is settled: nothing is left to do for it.
    pub fn is_settled(&self, event_id: &str) -> bool {
        self.entries.by_event.get(event_id).is_some_and(Entry::is_settled)
    }

    /// Whether an event is still in an outbox and has this job, finished or not.
    pub fn is_in_outbox(&self, job: &str) -> bool {
        self.entries.jobs.contains(job)
    }

    /// Some entries whose webhooks have not been listed since they were recorded, in order: at most `limit` after
    /// `last`.
    pub fn unverified_after(&self, last: Option<&Unverified>, limit: usize) -> Vec<Unverified> {
        let after = last.map(|last| (last.namespace.clone(), last.event.clone()));
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let unverified = self.entries.unverified.range((after, Bound::Unbounded));
        let revision = |event| {
            self.entries
                .by_event
                .get(event)
                .map_or(0, |entry: &Entry| entry.revision)
        };
        unverified
            .take(limit)
            .map(|(namespace, event)| Unverified {
                namespace: namespace.clone(),
                event: event.clone(),
                revision: revision(event),
            })
            .collect()
    }

    /// Marks these entries as verified. The webhooks must have been listed after the entries were recorded, and
    /// [`Self::webhook_seen`] called for each, so that no subscribed webhook can be unknown.
    pub fn verified(&mut self, event_ids: &[Arc<str>], now: Now) {
        for id in event_ids {
            self.create_jobs(id, false, now);
            self.entries.verify(id);
            self.entry_changed(id);
        }
    }

    /// Creates a job for each webhook that subscribes to the event and has none yet. If the event `is_just_recorded`, all known
    /// webhooks existed before it, whatever clocks say.
    fn create_jobs(&mut self, id: &Arc<str>, is_just_recorded: bool, now: Now) {
        // All webhooks that existed before a settled entry have been listed, and the entry no longer has a body.
        let Some(entry) = self.entries.by_event.get(id).filter(|entry| !entry.is_settled()) else {
            return;
        };
        let (event, origin, namespace) = (entry.event.clone(), entry.origin, entry.namespace.clone());
        let revision = entry.revision;
        let was_there = |facts: &WebhookFacts| {
            is_just_recorded
                || facts.revision < revision
                || facts.created_at.duration_since(event.created_at) <= CLOCKS_DIFFER
        };
        let wants = |facts: &WebhookFacts| {
            facts.gate != WebhookGate::Inactive
                && facts.events.contains(&event.event_type)
                && was_there(facts)
        };
        let webhooks: Vec<_> = self
            .webhooks_of(&namespace)
            .filter(|(_, facts)| wants(facts))
            .map(|(webhook, facts)| {
                (
                    webhook.clone(),
                    key(&namespace, &ids::delivery_name(&facts.uid, id)),
                )
            })
            .collect();
        for (webhook, job_key) in webhooks {
            // Account holders may create test events, with any name.
            let is_in_the_way = |job: &Job| job.event_id != *id && job.state != State::InFlight;
            if self.jobs.get(&job_key).is_some_and(is_in_the_way) {
                self.forget(&job_key);
            }
            let (Some(entry), Some(queue)) =
                (self.entries.by_event.get_mut(id), self.queues.get_mut(&webhook))
            else {
                continue;
            };
            // A job belongs to one event, so the set of all events' jobs shows whether this event already has it.
            if !self.entries.jobs.insert(job_key.clone()) {
                continue;
            }
            entry.jobs.push(job_key.clone());
            if let Some(job) = self.jobs.get(&job_key) {
                // The job exists already, from a record or from an earlier version of this outbox.
                entry.open += usize::from(job.settles_entry);
                self.look_up(&job_key);
                continue;
            }
            if self.tombstones.contains_key(&job_key) {
                continue;
            }
            entry.open += 1;
            let job = Job::of_event(job_key.clone(), webhook, event.clone());
            queue.first_attempts.reserve(&job);
            queue.jobs.insert(job_key.clone());
            self.jobs.insert(job_key.clone(), job);
            match origin {
                Origin::Fresh => self.start(&job_key, now),
                Origin::Found => self.look_up(&job_key),
            }
        }
    }

    /// Enqueues or holds the job of an event that has not been sent yet.
    fn start(&mut self, job_key: &JobKey, now: Now) {
        let Some(job) = self.jobs.get(job_key) else { return };
        let webhook = job.webhook.clone();
        let Some(queue) = self.queues.get(&webhook) else {
            return;
        };
        // Those already held go first.
        if queue.gate() != WebhookGate::Open || !queue.held.is_empty() || !self.make_room(&webhook) {
            self.hold(job_key);
            return;
        }
        let Some(queue) = self.queues.get(&webhook) else {
            return;
        };
        let is_backlogged =
            queue.draining > 0 || queue.first_attempts.len() >= self.limits.unrecorded_per_webhook;
        self.enqueue(job_key);
        if is_backlogged {
            self.record_as_pending(job_key, now);
        } else {
            self.timer(now.mono + self.limits.patience, Timer::Patience(job_key.clone()));
        }
    }

    /// Reports the result of a [`Command::Check`].
    pub fn checked(&mut self, job_key: &JobKey, found: Result<Option<Arc<Delivery>>, ()>, now: Now) {
        let is_waiting = |job: &&mut Job| job.state == State::Checking;
        let Some(job) = self.jobs.get_mut(job_key).filter(is_waiting) else {
            return;
        };
        // Account holders may create test events, with any name.
        let found = found.map(|found| found.filter(|record| *record.spec.event_id == *job.event_id));
        match found {
            Ok(None) => {
                job.failures = 0;
                self.start(job_key, now);
            }
            Ok(Some(record)) if record.is_finished() => self.forget(job_key),
            Ok(Some(record)) => self.adopt(job_key.clone(), record, true, now),
            Err(()) => self.try_again(job_key, now),
        }
    }

    /// Marks a job as settled for its outbox entry: nothing is left to do for it, or its record has been written.
    pub(super) fn settle(&mut self, job_key: &JobKey) {
        let Some(job) = self.jobs.get_mut(job_key) else {
            return;
        };
        if !std::mem::take(&mut job.settles_entry) {
            return;
        }
        // The entry of an object that is found again does not wait for jobs whose webhooks no longer want its event.
        if !self.entries.jobs.contains(job_key) {
            return;
        }
        let id = job.event_id.clone();
        if let Some(entry) = self.entries.by_event.get_mut(&id) {
            entry.open = entry.open.saturating_sub(1);
            self.entry_changed(&id);
        }
    }

    /// Logs an entry once nothing else is left to do for it, and reports it if it is settled.
    pub(super) fn entry_changed(&mut self, id: &Arc<str>) {
        let entry = self.entries.by_event.get(id);
        if entry.is_some_and(|entry| entry.is_complete() && entry.logged == Logged::Awaited) {
            self.finish_draft(id);
        }
        self.report_if_settled(id);
    }

    /// Reports that the last event of an object is settled, once all events before it are settled too.
    pub(super) fn report_if_settled(&mut self, id: &Arc<str>) {
        let Some(entry) = self.entries.by_event.get_mut(id) else {
            return;
        };
        if entry.is_settled() && entry.event.content.is_some() {
            // It may stay in the outbox for a while.
            entry.event = Arc::new(entry.event.without_body());
        }
        let subject = entry.event.subject.clone();
        let Some(object) = self.entries.by_object.get(&subject) else {
            return;
        };
        let entries = || {
            object
                .events
                .iter()
                .filter_map(|id| self.entries.by_event.get(id))
        };
        let is_last = |entry: &Entry| entry.event.event_type == EventType::InstanceDeleted;
        if entries().all(Entry::is_settled) && entries().any(is_last) {
            self.commands.push_back(Command::Settled(subject));
        }
    }
}
