//! Existing Deliveries, from the watch and lists.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;

use super::{
    Dispatcher, JobKey, Now, WebhookKey,
    attempts::wait_until,
    job::{Job, Source, State, Writing},
    key, keys_after,
    webhook_queue::{WebhookFacts, WebhookGate},
};
use resources::{Delivery, DeliveryPhase, delivery::is_unowned, revision};

/// A record that is finished or deleted.
#[derive(Debug)]
pub(super) struct Tombstone {
    /// Versions up to this one are stale.
    version: u64,
    /// As [`Job::is_missed`].
    is_missed: bool,
}

/// Records whose webhook is not known yet, or no longer known.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    by_webhook: HashMap<WebhookKey, OrphansOfWebhook>,
    webhooks: BTreeMap<JobKey, WebhookKey>,
}

type OrphansOfWebhook = BTreeMap<JobKey, Orphan>;

/// A Delivery whose webhook is not known.
#[derive(Debug)]
struct Orphan {
    record: Arc<Delivery>,
    /// Whether it existed at the start.
    at_start: bool,
    /// Whether the latest list lacks it.
    is_missed: bool,
}

impl Orphans {
    fn insert(&mut self, job_key: JobKey, webhook: WebhookKey, record: Arc<Delivery>, at_start: bool) {
        self.webhooks.insert(job_key.clone(), webhook.clone());
        let of_webhook = self.by_webhook.entry(webhook).or_default();
        let orphan = Orphan {
            record,
            at_start,
            is_missed: false,
        };
        of_webhook.insert(job_key, orphan);
    }

    fn contains(&self, job_key: &JobKey) -> bool {
        self.webhooks.contains_key(job_key)
    }

    fn get(&self, job_key: &JobKey) -> Option<&Orphan> {
        let webhook = self.webhooks.get(job_key)?;
        self.by_webhook.get(webhook)?.get(job_key)
    }

    fn get_mut(&mut self, job_key: &JobKey) -> Option<&mut Orphan> {
        let webhook = self.webhooks.get(job_key)?;
        self.by_webhook.get_mut(webhook)?.get_mut(job_key)
    }

    fn remove(&mut self, job_key: &JobKey) {
        let Some(webhook) = self.webhooks.remove(job_key) else {
            return;
        };
        if let Some(of_webhook) = self.by_webhook.get_mut(&webhook) {
            of_webhook.remove(job_key);
            if of_webhook.is_empty() {
                self.by_webhook.remove(&webhook);
            }
        }
    }

    fn take(&mut self, webhook: &WebhookKey) -> OrphansOfWebhook {
        let orphans = self.by_webhook.remove(webhook).unwrap_or_default();
        for job_key in orphans.keys() {
            self.webhooks.remove(job_key);
        }
        orphans
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_webhook.is_empty() && self.webhooks.is_empty()
    }
}

fn webhook_key_of(record: &Delivery) -> WebhookKey {
    let namespace = record.metadata.namespace.as_deref().unwrap_or_default();
    key(namespace, &record.spec.webhook)
}

/// Whether a record belongs to this webhook, rather than to another of the same name.
fn is_for(record: &Delivery, facts: &WebhookFacts) -> bool {
    let mut owners = record.metadata.owner_references.iter().flatten();
    owners.any(|owner| *owner.uid == *facts.object_uid)
}

/// The key of a Delivery's job.
pub fn job_key_of(record: &Delivery) -> JobKey {
    let metadata = &record.metadata;
    key(
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

/// Sorts records into the order in which to pass them to [`Dispatcher::delivery_seen`]: held ones must not take room
/// from those that wait for an attempt, and the earliest events go first.
pub fn sort_for_adoption(records: &mut [Arc<Delivery>]) {
    records.sort_by_cached_key(|record| adoption_order(record));
}

fn adoption_order(record: &Delivery) -> (bool, Timestamp, i64) {
    let phase = record.status.as_ref().map(|status| status.phase);
    let is_held = phase == Some(DeliveryPhase::Held);
    (is_held, record.spec.event_created_at, record.spec.sequence)
}

impl Dispatcher {
    /// Records an unfinished Delivery from the API server, at the start or later.
    pub fn delivery_seen(&mut self, record: Arc<Delivery>, at_start: bool, now: Now) {
        let (job_key, version) = (job_key_of(&record), revision(&*record));
        // Account holders may create test events, with any name.
        let is_of_another = |job: &Job| *job.event_id != *record.spec.event_id;
        if self.jobs.get(&job_key).is_some_and(is_of_another) {
            return;
        }
        if self
            .tombstones
            .get(&job_key)
            .is_some_and(|over| over.version >= version)
        {
            return;
        }
        self.tombstones.remove(&job_key);
        match self.jobs.get_mut(&job_key) {
            Some(job) if job.is_stored() && job.version() >= version => {
                if job.version() == version {
                    // Share the object with the watch's store.
                    job.source = Source::Record(record);
                }
            }
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
            self.orphans.insert(job_key, webhook, record, at_start);
            return;
        };
        queue.jobs.insert(job_key.clone());
        let is_open = queue.gate() == WebhookGate::Open;
        let job = Job::of_record(job_key.clone(), webhook, record, subject.unwrap_or_default());
        let (mut status, test) = (job.status(), job.test);
        let job = self.jobs.entry(job_key.clone()).insert_entry(job).into_mut();
        if status.phase.is_finished() {
            // Its label was removed to have it sent again.
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
        let is_held = status.phase == DeliveryPhase::Held;
        if is_requested && is_held {
            self.send_once(&job_key);
            return;
        }
        if !self.make_room(&webhook) {
            if is_requested {
                self.send_once(&job_key);
            } else if test {
                let why = "too many deliveries wait already; try again later".to_owned();
                self.end_test(&job_key, why, now);
            } else {
                self.hold(&job_key);
            }
            return;
        }
        if is_held {
            self.readmit(&job_key, true, now);
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
        let mut orphans: Vec<_> = self.orphans.take(webhook).into_iter().collect();
        orphans.sort_by_cached_key(|(_, orphan)| adoption_order(&orphan.record));
        for (job_key, orphan) in orphans {
            self.adopt(job_key, orphan.record, orphan.at_start, now);
        }
    }

    /// Keeps the records of a webhook that is gone. It may come back, if it was only unreadable. If it was deleted,
    /// Kubernetes also deletes the records or removes their owner.
    pub(super) fn orphan(&mut self, job_key: &JobKey) {
        let Some(job) = self.jobs.get(job_key) else { return };
        if let Some(record) = job.record()
            && !job.left_watch
            && !job.dropped
            && !record.is_finished()
        {
            let (webhook, record) = (job.webhook.clone(), record.clone());
            self.orphans.insert(job_key.clone(), webhook, record, true);
        }
    }

    /// Records that a Delivery was deleted or is finished.
    pub fn delivery_gone(&mut self, namespace: &str, name: &str) {
        let job_key = key(namespace, name);
        self.tombstones.remove(&job_key);
        self.orphans.remove(&job_key);
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

    /// Ends a job whose record is finished or deleted. Keeps a tombstone if the watch has yet to show that.
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

    /// Forgets the Deliveries of a webhook that are missing from a new list of all unfinished ones, whose latest
    /// revision is `as_of`. A known Delivery that is newer than everything in the list may have been created during the
    /// list call; it is kept until the next list lacks it too.
    pub fn forget_unlisted(&mut self, webhook: &WebhookKey, listed: &HashSet<JobKey>, as_of: u64) {
        for key in self.jobs_of(webhook) {
            let Some(job) = self.jobs.get_mut(&key) else {
                continue;
            };
            if listed.contains(&key) {
                job.is_missed = false;
            } else if job.is_stored() && is_lost(job.version(), as_of, &mut job.is_missed) {
                if job.writing == Writing::Running {
                    job.left_watch = true;
                } else {
                    self.forget(&key);
                }
            }
        }
    }

    /// Some Deliveries without a known webhook, in the order of their keys: those after `last`, at most `limit`.
    pub fn orphans_after(&self, last: Option<&JobKey>, limit: usize) -> Vec<JobKey> {
        keys_after(&self.orphans.webhooks, last, limit)
    }

    /// The record of a Delivery without a known webhook, if it will never get one because it has no owner.
    pub fn unowned(&self, key: &JobKey) -> Option<&Arc<Delivery>> {
        let record = &self.orphans.get(key)?.record;
        is_unowned(&record.metadata).then_some(record)
    }

    /// The record of a test event without a known webhook, if it was created before `since`. A test is sent at once or
    /// never. Account holders create tests, and no bound counts those without a webhook.
    pub fn lost_test(&self, key: &JobKey, since: Timestamp) -> Option<&Arc<Delivery>> {
        let record = &self.orphans.get(key)?.record;
        let created = record.metadata.creation_timestamp.as_ref()?.0;
        (record.spec.test && created < since).then_some(record)
    }

    /// Forgets a Delivery without a known webhook that is not in a new list, as [`Self::forget_unlisted`] does.
    pub fn forget_orphan(&mut self, key: &JobKey, as_of: u64) {
        let orphan = self.orphans.get_mut(key);
        if orphan.is_some_and(|it| is_lost(revision(&*it.record), as_of, &mut it.is_missed)) {
            self.orphans.remove(key);
        }
    }

    /// Some Deliveries that are finished or deleted, in the order of their keys: those after `last`, at most `limit`.
    pub fn tombstones_after(&self, last: Option<&JobKey>, limit: usize) -> Vec<JobKey> {
        keys_after(&self.tombstones, last, limit)
    }

    /// Forgets a finished or deleted Delivery that is not in a new list, as [`Self::forget_unlisted`] does.
    pub fn forget_tombstone(&mut self, key: &JobKey, as_of: u64) {
        let over = self.tombstones.get_mut(key);
        if over.is_some_and(|over| is_lost(over.version, as_of, &mut over.is_missed)) {
            self.tombstones.remove(key);
        }
    }

    /// Records a Delivery from a new list. An unknown one that is not newer than `floor`, the revision of the initial list, is
    /// stale and ignored.
    pub fn delivery_listed(&mut self, record: &Arc<Delivery>, floor: u64, now: Now) {
        let key = job_key_of(record);
        let is_known = self.jobs.contains_key(&key) || self.orphans.contains(&key);
        if is_known || revision(&**record) > floor {
            self.delivery_seen(record.clone(), false, now);
        }
    }
}

/// Whether a Delivery that a list lacks is gone.
fn is_lost(version: u64, as_of: u64, is_missed: &mut bool) -> bool {
    version <= as_of || std::mem::replace(is_missed, true)
}
