//! The records of jobs.

use std::sync::Arc;

use kube::api::ObjectMeta;

use super::{
    Command, Dispatcher, Event, JobKey, Now, WriteClass,
    bounds::Scope,
    job::{Source, State, Writing},
    name_of,
    webhook_queue::{Backlog, WebhookFacts, WebhookQueue},
};
use resources::{Delivery, DeliveryPhase, DeliverySpec, DeliveryStatus, Webhook, revision};

/// How often to retry creating a record that a quota refuses: for half a minute, in which others may finish.
const MAX_REFUSALS: u32 = 5;

/// A write to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum WriteRequest {
    Create(Box<Delivery>),
    /// Replace the Delivery, guarded by its resourceVersion.
    Replace(Box<Delivery>),
    /// Delete the Delivery with this UID, in any version.
    Delete(Arc<Delivery>),
}

/// The outcome of a write.
#[derive(Clone, Debug, PartialEq)]
pub enum Written {
    /// The write succeeded; this is the Delivery as stored.
    Stored(Arc<Delivery>),
    /// The write was refused because of a conflict; this is the current Delivery of the event.
    Found(Arc<Delivery>),
    /// The Delivery was deleted or did not exist, or cannot be created because its namespace is being deleted.
    Gone,
    /// The creation was refused because the quota of the namespace is used up.
    Refused,
    /// The write failed and must be retried.
    Failed,
}

impl Dispatcher {
    /// Queues a write of a job's record, if it is out of date.
    pub(super) fn write(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let is_due = job.dropped || (job.desired.is_some() && !job.awaits_disablement);
        if job.writing != Writing::No || !is_due {
            return;
        }
        job.writing = Writing::Queued;
        let is_suspect = WebhookQueue::is_suspect;
        let class = if !job.test && self.queues.get(&job.webhook).is_some_and(is_suspect) {
            WriteClass::Suspect
        } else {
            WriteClass::Owed
        };
        self.commands.push_back(Command::Write {
            job: key.clone(),
            class,
        });
    }

    /// Queues the creation of a pending Delivery for a job.
    pub(super) fn record_as_pending(&mut self, key: &JobKey, now: Now) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        job.set_status(DeliveryStatus::new(DeliveryPhase::Pending, Some(now.wall)));
        self.write(key);
    }

    /// The write for a job, if it is still needed. The caller must report its outcome with [`Self::written`]; until then there
    /// is no other write for this job.
    pub fn begin_write(&mut self, key: &JobKey, now: Now) -> Option<WriteRequest> {
        let job = self.jobs.get_mut(key)?;
        if job.writing != Writing::Queued {
            return None;
        }
        job.writing = Writing::No;
        if job.awaits_disablement {
            return None;
        }
        if job.dropped && job.is_unrecorded() {
            self.forget(key);
            return None;
        }
        let request = match &job.source {
            Source::Record(record) if job.dropped => WriteRequest::Delete(record.clone()),
            Source::Record(record) => {
                let status = job.desired.as_deref()?.clone();
                let mut delivery = (**record).clone();
                delivery.set_status(status, now.wall);
                WriteRequest::Replace(Box::new(delivery))
            }
            Source::Outbox(event) => {
                let status = job.desired.as_deref()?.clone();
                let facts = &self.queues.get(&job.webhook)?.facts;
                job.may_be_stored = true;
                WriteRequest::Create(Box::new(delivery_of(event, name_of(key), facts, status, now)))
            }
        };
        job.is_creating = matches!(request, WriteRequest::Create(_));
        job.is_news = false;
        job.writing = Writing::Running;
        Some(request)
    }

    /// Reports the outcome of a write.
    pub fn written(&mut self, key: &JobKey, result: Written, now: Now) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        // The write was for an earlier job with this key, which has been forgotten.
        if job.writing != Writing::Running {
            return;
        }
        job.writing = Writing::No;
        let refusals = std::mem::take(&mut job.refusals);
        let is_refused = result == Written::Refused;
        match result {
            Written::Stored(record) => self.stored(key, record, now),
            Written::Found(record) if record.is_finished() => {
                // Written by an earlier process, or by a write of ours that seemed to have failed.
                self.count_finished(key);
                self.retire(key, revision(&*record));
            }
            Written::Found(record) => {
                job.source = Source::Record(record);
                self.settle(key);
                self.count(key);
                self.write(key);
                self.restart_if_unlabelled(key, now);
                self.attempt_if_requested(key);
            }
            Written::Gone => {
                let version = job.version();
                self.retire(key, version);
            }
            Written::Refused if refusals >= MAX_REFUSALS && job.state != State::InFlight => {
                // A success that is only logged is not lost.
                let is_lost = !job.dropped && job.phase() != DeliveryPhase::Delivered;
                if is_lost && let Some(queue) = self.queues.get_mut(&job.webhook) {
                    queue.tally.dropped += 1;
                    queue.tally.backlog = Some(Backlog::Refused);
                    self.totals.count_dropped(key, Scope::Account);
                }
                self.forget(key);
            }
            Written::Failed | Written::Refused => {
                if is_refused {
                    job.refusals = refusals + 1;
                }
                job.is_news = true;
                job.writing = Writing::Paused;
                self.try_again(key, now);
                // The write may have arrived nevertheless, and its label may have been removed since.
                self.restart_if_unlabelled(key, now);
            }
        }
    }

    fn stored(&mut self, key: &JobKey, record: Arc<Delivery>, now: Now) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        job.failures = 0;
        if !job.is_news {
            job.desired = None;
        }
        let (is_finished, version) = (record.is_finished(), revision(&*record));
        if let Some(queue) = self.queues.get_mut(&job.webhook)
            && job.is_creating
        {
            queue.tally.has_stored = true;
            queue
                .tally
                .backlog
                .take_if(|backlog| *backlog == Backlog::Refused);
        }
        // The watch may already have shown a newer version.
        let is_latest = job.version() <= version;
        let is_over = job.state == State::Over && job.desired.is_none() && !job.dropped;
        if is_finished && is_over {
            self.count_finished(key);
            if is_latest {
                self.retire(key, version);
            } else {
                self.restart_if_unlabelled(key, now);
            }
            return;
        }
        if job.left_watch && !is_finished {
            // It has been deleted in the meantime.
            self.forget(key);
            return;
        }
        if is_latest {
            job.source = Source::Record(record);
        }
        // The release of a held delivery is never written by itself, only together with the outcome of its attempt.
        let is_worth =
            |status: &DeliveryStatus| status.attempt_count > 0 || status.phase == DeliveryPhase::Held;
        let must_write = job.dropped || job.desired.as_deref().is_some_and(is_worth);
        self.settle(key);
        self.count(key);
        if must_write {
            self.write(key);
        }
    }

    fn count_finished(&mut self, key: &JobKey) {
        let webhook = self.jobs.get(key).map(|job| &job.webhook);
        if let Some(queue) = webhook.and_then(|webhook| self.queues.get_mut(webhook)) {
            queue.tally.finished += 1;
        }
    }
}

fn delivery_of(
    event: &Event,
    name: &str,
    facts: &WebhookFacts,
    status: DeliveryStatus,
    now: Now,
) -> Delivery {
    let mut delivery = Delivery {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(facts.namespace.to_string()),
            owner_references: Some(vec![Webhook::owner_reference(&facts.name, &facts.object_uid)]),
            ..ObjectMeta::default()
        },
        spec: DeliverySpec {
            webhook: facts.name.to_string(),
            event_id: event.id.to_string(),
            event_type: event.event_type,
            event_created_at: event.created_at,
            sequence: event.sequence,
            subject: event.subject.to_string(),
            body: String::from_utf8_lossy(event.body()).into_owned(),
            traceparent: event.traceparent().map(ToOwned::to_owned),
            test: false,
        },
        status: None,
    };
    delivery.set_status(status, now.wall);
    delivery
}
