//! Existing Deliveries, from the watch and lists.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use super::{
    Dispatcher, JobKey, Now, WebhookKey,
    attempts::wait_until,
    job::{Job, Source, State, Writing},
    key,
    webhook_queue::{Gate, WebhookFacts},
};
use crate::{
    resources::{Delivery, DeliveryPhase},
    runtime::watch::revision,
};

/// A record that is finished or deleted.
#[derive(Debug)]
pub(super) struct Tombstone {
    /// Versions up to this one are stale.
    version: u64,
    /// As [`Job::is_missed`].
    is_missed: bool,
}

/// Records by name, and whether they existed at the start.
pub(super) type Orphans = BTreeMap<JobKey, (Arc<Delivery>, bool)>;

fn webhook_key_of(record: &Delivery) -> WebhookKey {
    let namespace = record.metadata.namespace.as_deref().unwrap_or_default();
    key(namespace, &record.spec.webhook)
}

/// Whether a record belongs to this webhook, and not to another one of the same name. A record without owner was created by
/// hand, and belongs to any webhook of that name.
fn is_for(record: &Delivery, facts: &WebhookFacts) -> bool {
    let mut owners = record.metadata.owner_references.iter().flatten().peekable();
    owners.peek().is_none() || owners.any(|owner| *owner.uid == *facts.uid)
}

fn key_of(record: &Delivery) -> JobKey {
    let metadata = &record.metadata;
    key(
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

impl Dispatcher {
    /// Records an unfinished Delivery from the API server, at the start or later.
    pub fn delivery_seen(&mut self, record: Arc<Delivery>, at_start: bool, now: Now) {
        let (job_key, version) = (key_of(&record), revision(&*record));
        if self
            .tombstones
            .get(&job_key)
            .is_some_and(|over| over.version >= version)
        {
            return;
        }
        self.tombstones.remove(&job_key);
        match self.jobs.get_mut(&job_key) {
            // Share the object with the watch's store.
            Some(job) if job.is_stored() && job.version() == version => job.source = Source::Record(record),
            Some(job) if job.is_stored() && job.version() > version => {}
            Some(job) if job.state != State::Checking => {
                job.source = Source::Record(record);
                job.left_watch = false;
                self.settle(&job_key);
                self.count(&job_key);
                self.restart_if_unlabelled(&job_key, now);
                self.attempt_if_requested(&job_key);
            }
            _ => self.adopt(job_key, record, at_start, now),
        }
    }

    /// Sends a finished delivery again if its label was removed.
    pub(super) fn restart_if_unlabelled(&mut self, job_key: &JobKey, now: Now) {
        let Some(job) = self.jobs.get(job_key) else { return };
        if job.writing != Writing::Running
            && job.was_unlabelled()
            && let Some(record) = job.record().cloned()
        {
            self.adopt(job_key.clone(), record, false, now);
        }
    }

    /// Creates a job for a record, in place of any earlier one.
    pub(super) fn adopt(&mut self, job_key: JobKey, record: Arc<Delivery>, at_start: bool, now: Now) {
        let subject = self.jobs.get(&job_key).map(|job| job.subject.clone());
        self.forget(&job_key);
        let webhook = webhook_key_of(&record);
        let queue = self.queues.get_mut(&webhook);
        let Some(queue) = queue.filter(|queue| is_for(&record, &queue.facts)) else {
            let orphans = self.orphans.entry(webhook).or_default();
            orphans.insert(job_key, (record, at_start));
            return;
        };
        queue.jobs.insert(job_key.clone());
        let is_open = queue.gate() == Gate::Open;
        let job = Job::of_record(job_key.clone(), webhook, record, subject.unwrap_or_default());
        let (mut status, test) = (job.status(), job.test);
        let job = self.jobs.entry(job_key.clone()).insert_entry(job).into_mut();
        if status.phase.is_finished() {
            // Its label was removed to send it again.
            status.phase = DeliveryPhase::Pending;
            status.retries = 0;
            status.next_attempt_at = Some(now.wall);
            job.set_status(status.clone());
        }
        let is_requested = job.request().is_some();
        if !is_open && !test {
            self.adopt_held(&job_key);
            return;
        }
        let webhook = job.webhook.clone();
        if !self.make_room(&webhook) {
            if test {
                let why = "too many deliveries wait already; try again later".to_owned();
                self.end_test(&job_key, why, now);
            } else {
                self.hold(&job_key);
            }
            return;
        }
        if status.phase == DeliveryPhase::Held {
            self.release(&job_key, true, now);
            return;
        }
        if at_start
            && status.retries == 0
            && let Some(job) = self.jobs.get_mut(&job_key)
            && let Some(queue) = self.queues.get_mut(&webhook)
        {
            queue.set_drains(job, true);
        }
        let wait = wait_until(status.next_attempt_at, &status, &self.schedule, now);
        if wait.is_zero() || is_requested {
            self.enqueue(&job_key);
        } else {
            self.wait(&job_key, wait, now);
            self.count(&job_key);
        }
    }

    /// Adopts the records that were seen before their webhook.
    pub(super) fn adopt_orphans(&mut self, webhook: &WebhookKey, now: Now) {
        let orphans = self.orphans.remove(webhook);
        for (job_key, (record, at_start)) in orphans.into_iter().flatten() {
            self.adopt(job_key, record, at_start, now);
        }
    }

    fn forget_orphan(&mut self, job_key: &JobKey) {
        self.orphans.retain(|_, orphans| {
            orphans.remove(job_key);
            !orphans.is_empty()
        });
    }

    /// Records that a Delivery was deleted or is finished.
    pub fn delivery_gone(&mut self, namespace: &str, name: &str) {
        let job_key = key(namespace, name);
        self.tombstones.remove(&job_key);
        self.forget_orphan(&job_key);
        let Some(job) = self.jobs.get_mut(&job_key).filter(|job| job.is_stored()) else {
            return;
        };
        if job.writing == Writing::Running {
            // The outcome of the write will show what happened.
            job.left_watch = true;
        } else {
            self.forget(&job_key);
        }
    }

    /// Ends a job whose record is finished or deleted. Keeps a tombstone if the watch has still to show that.
    pub(super) fn retire(&mut self, job_key: &JobKey, version: u64) {
        let is_awaited = self
            .jobs
            .get(job_key)
            .is_some_and(|job| job.is_stored() && !job.left_watch);
        self.forget(job_key);
        if is_awaited {
            let is_missed = false;
            self.tombstones
                .insert(job_key.clone(), Tombstone { version, is_missed });
        }
    }

    /// Handles a new list of all unfinished Deliveries: other known ones are gone. A known Delivery that is newer than all of
    /// the list may have been created during the list call; it is kept until the next list lacks it too. An unknown one that
    /// is not newer than `floor`, the revision of the initial list, is stale and ignored.
    pub fn deliveries_listed(&mut self, all: &[Arc<Delivery>], floor: u64, now: Now) {
        let listed: HashSet<JobKey> = all.iter().map(|record| key_of(record)).collect();
        let as_of = all.iter().map(|record| revision(&**record)).max().unwrap_or(0);
        let is_lost =
            |version: u64, is_missed: &mut bool| version <= as_of || std::mem::replace(is_missed, true);
        self.tombstones
            .retain(|key, over| listed.contains(key) || !is_lost(over.version, &mut over.is_missed));
        let orphans = std::mem::take(&mut self.orphans);
        let is_orphan = |key: &JobKey| orphans.values().any(|known| known.contains_key(key));
        let mut lost = Vec::new();
        for (key, job) in &mut self.jobs {
            if listed.contains(key) {
                job.is_missed = false;
            } else if job.is_stored() && is_lost(job.version(), &mut job.is_missed) {
                if job.writing == Writing::Running {
                    job.left_watch = true;
                } else {
                    lost.push(key.clone());
                }
            }
        }
        for key in lost {
            self.forget(&key);
        }
        for record in all {
            let key = key_of(record);
            let is_known = self.jobs.contains_key(&key) || is_orphan(&key);
            if is_known || revision(&**record) > floor {
                self.delivery_seen(record.clone(), false, now);
            }
        }
    }
}
