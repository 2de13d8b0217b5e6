//! What is written down of a job.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource as _, api::ObjectMeta};

use super::{
    Command, DeliveryLog, Dispatcher, FIRST_PAUSE, JobKey, LONGEST_PAUSE, Now, Timer,
    job::{Job, Source, State, Writing},
    lane::WebhookFacts,
};
use crate::{
    resources::{
        Delivery, DeliveryPhase, DeliverySpec, DeliveryStatus, Webhook,
        delivery::{EVENT_TYPE_LABEL, FINISHED_AT_ANNOTATION, FINISHED_LABEL, PHASE_LABEL, WEBHOOK_LABEL},
    },
    runtime::watch::revision,
};

/// A write to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum WriteOrder {
    /// Create this Delivery.
    Create(Box<Delivery>),
    /// Put this in the place of the version that it names.
    Replace(Box<Delivery>),
    /// Delete this version, whatever it says by now.
    Delete(Arc<Delivery>),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Written {
    /// It is done; this is the Delivery now.
    Stored(Arc<Delivery>),
    /// It is refused, because the Delivery is another one than was thought: this one.
    Found(Arc<Delivery>),
    /// It is deleted, or there was none, or there can be none any more since its namespace is going.
    Gone,
    /// It failed, and is to be tried again.
    Failed,
}

impl Dispatcher {
    /// Asks for the record of a job to be brought up to date.
    pub(super) fn write(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let is_due = job.dropped || (job.desired.is_some() && !job.awaits_disablement);
        if job.writing != Writing::No || !is_due {
            return;
        }
        job.writing = Writing::Queued;
        let is_log = !job.is_stored() && job.state == State::Over && !job.dropped;
        self.commands.push_back(Command::Write {
            job: key.clone(),
            owed: !is_log,
        });
    }

    /// Has a Delivery created for a job that is under way.
    pub(super) fn record_as_pending(&mut self, key: &JobKey, now: Now) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        job.desired = Some(Box::new(DeliveryStatus::new(
            DeliveryPhase::Pending,
            Some(now.wall),
        )));
        self.write(key);
    }

    /// What is to be written for a job now, if it still is.
    pub fn begin_write(&mut self, key: &JobKey, now: Now) -> Option<WriteOrder> {
        let job = self.jobs.get_mut(key)?;
        job.writing = Writing::No;
        if job.dropped {
            if let Source::Record(record) = &job.source {
                let order = WriteOrder::Delete(record.clone());
                job.writing = Writing::Running;
                return Some(order);
            }
            self.forget(key);
            return None;
        }
        let status = (**job.desired.as_ref()?).clone();
        if self.log == DeliveryLog::Failures
            && !job.is_stored()
            && status.phase == DeliveryPhase::Delivered
            && !job.test
            && status.attempt_count == 1
        {
            self.forget(key);
            return None;
        }
        let order = match &job.source {
            Source::Record(record) => {
                let mut delivery = (**record).clone();
                label(&mut delivery, &status, now);
                delivery.status = Some(status);
                WriteOrder::Replace(Box::new(delivery))
            }
            Source::Outbox(_) => {
                let facts = self.lanes.get(&job.lane)?.facts.as_ref()?;
                let name = key.split_once('/').map_or("", |(_, name)| name);
                WriteOrder::Create(Box::new(delivery(job, name, facts, status, now)))
            }
        };
        if let Some(job) = self.jobs.get_mut(key) {
            job.writing = Writing::Running;
        }
        Some(order)
    }

    /// What came of a write.
    pub fn written(&mut self, key: &JobKey, result: Written, now: Now) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        job.writing = Writing::No;
        match result {
            Written::Stored(record) => {
                job.write_failures = 0;
                let was_stored = job.is_stored();
                if record.status.as_ref() == job.desired.as_deref() {
                    job.desired = None;
                }
                let is_finished = record.is_finished();
                let version = revision(&*record);
                job.source = Source::Record(record);
                if job.state == State::Over && is_finished && job.desired.is_none() && !job.dropped {
                    if let Some(lane) = self.lanes.get_mut(&job.lane) {
                        lane.tally.finished += 1;
                    }
                    let may_come_back = was_stored && !job.left_watch;
                    self.forget(key);
                    if may_come_back {
                        self.finished.insert(key.clone(), version);
                    }
                    return;
                }
                self.settle(key);
                if self.must_write(key) {
                    self.write(key);
                }
            }
            Written::Found(record) => {
                if record.is_finished() {
                    // Our own write that seemed to have failed, or an earlier process's.
                    let version = revision(&*record);
                    self.forget(key);
                    self.finished.insert(key.clone(), version);
                    return;
                }
                job.source = Source::Record(record);
                self.settle(key);
                self.write(key);
            }
            Written::Gone => self.forget(key),
            Written::Failed => {
                job.write_failures += 1;
                let doubled = FIRST_PAUSE.saturating_mul(1 << (job.write_failures - 1).min(8));
                self.timer(now.mono + doubled.min(LONGEST_PAUSE), Timer::Again(key.clone()));
            }
        }
    }

    /// Whether what is desired is worth a write of its own. A held delivery that was released is not: its outcome is.
    fn must_write(&self, key: &JobKey) -> bool {
        self.jobs.get(key).is_some_and(|job| {
            job.dropped
                || job
                    .desired
                    .as_ref()
                    .is_some_and(|status| status.attempt_count > 0 || status.phase == DeliveryPhase::Held)
        })
    }
}

fn label(delivery: &mut Delivery, status: &DeliveryStatus, now: Now) {
    let labels = delivery.metadata.labels.get_or_insert_default();
    labels.insert(PHASE_LABEL.to_owned(), status.phase.as_str().to_owned());
    labels.insert(WEBHOOK_LABEL.to_owned(), delivery.spec.webhook.clone());
    labels.insert(
        EVENT_TYPE_LABEL.to_owned(),
        delivery.spec.event_type.as_str().to_owned(),
    );
    if status.phase.is_finished() {
        labels.insert(FINISHED_LABEL.to_owned(), "true".to_owned());
        delivery
            .metadata
            .annotations
            .get_or_insert_default()
            .insert(FINISHED_AT_ANNOTATION.to_owned(), format!("{:.3}", now.wall));
    } else {
        labels.remove(FINISHED_LABEL);
    }
}

fn delivery(job: &Job, name: &str, facts: &WebhookFacts, status: DeliveryStatus, now: Now) -> Delivery {
    let event = job.event();
    let owner = OwnerReference {
        api_version: Webhook::api_version(&()).into_owned(),
        kind: Webhook::kind(&()).into_owned(),
        name: facts.name.to_string(),
        uid: facts.uid.to_string(),
        ..OwnerReference::default()
    };
    let mut delivery = Delivery {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(facts.namespace.to_string()),
            labels: Some(BTreeMap::new()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: DeliverySpec {
            webhook: facts.name.to_string(),
            event_id: event.id.to_string(),
            event_type: event.event_type,
            event_created_at: event.created_at,
            sequence: event.sequence,
            body: String::from_utf8_lossy(&event.body).into_owned(),
            test: false,
        },
        status: None,
    };
    label(&mut delivery, &status, now);
    delivery.status = Some(status);
    delivery
}
