//! The queue of a webhook's first attempts: in the order of the events, and those about one object one at a time, in the order
//! of their sequence numbers.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{
    JobKey,
    job::{EventOrder, Job},
};

#[derive(Debug, Default)]
pub(super) struct FirstAttempts {
    /// The jobs that can be sent now, with their subjects.
    ready: BTreeMap<EventOrder, Arc<str>>,
    subjects: HashMap<Arc<str>, Subject>,
    waiting: usize,
}

/// The events about one object. Events whose object is unknown are not ordered by object.
#[derive(Debug, Default)]
struct Subject {
    /// By sequence number. `None`: in flight or not yet to be sent; later events of the subject wait for it.
    places: BTreeMap<(i64, JobKey), Option<EventOrder>>,
    /// The one in `ready`.
    head: Option<EventOrder>,
    is_busy: bool,
}

fn place(job: &Job) -> (i64, JobKey) {
    (job.order.sequence, job.order.job.clone())
}

impl FirstAttempts {
    /// Number of jobs that wait to be sent.
    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// Reserves the place of a job that cannot be sent yet, so that later events of its subject wait for it.
    pub(super) fn reserve(&mut self, job: &Job) {
        if !job.subject.is_empty() {
            let subject = self.subjects.entry(job.subject.clone()).or_default();
            subject.places.insert(place(job), None);
            self.refresh(&job.subject);
        }
    }

    /// Adds a job to be sent.
    pub(super) fn push(&mut self, job: &Job) {
        if job.subject.is_empty() {
            let is_new = self
                .ready
                .insert(job.order.clone(), job.subject.clone())
                .is_none();
            self.waiting += usize::from(is_new);
            return;
        }
        let subject = self.subjects.entry(job.subject.clone()).or_default();
        let before = subject.places.insert(place(job), Some(job.order.clone()));
        self.waiting += usize::from(before.flatten().is_none());
        self.refresh(&job.subject);
    }

    /// Takes the next job to send. Its subject is busy until [`Self::attempt_ended`].
    pub(super) fn pop(&mut self) -> Option<(JobKey, Arc<str>)> {
        let (order, name) = self.ready.pop_first()?;
        self.waiting -= 1;
        if let Some(subject) = self.subjects.get_mut(&name) {
            subject.is_busy = true;
            subject.head = None;
            subject.places.insert((order.sequence, order.job.clone()), None);
        }
        Some((order.job, name))
    }

    /// Records the end of an attempt about this subject.
    pub(super) fn attempt_ended(&mut self, name: &Arc<str>) {
        if let Some(subject) = self.subjects.get_mut(name) {
            subject.is_busy = false;
            self.refresh(name);
        }
    }

    /// Removes a job that no longer waits for its first attempt, so that the next one of its subject can be sent.
    pub(super) fn remove(&mut self, job: &Job) {
        if job.subject.is_empty() {
            self.waiting -= usize::from(self.ready.remove(&job.order).is_some());
        } else if let Some(subject) = self.subjects.get_mut(&job.subject) {
            let before = subject.places.remove(&place(job));
            self.waiting -= usize::from(before.flatten().is_some());
            self.refresh(&job.subject);
        }
    }

    fn refresh(&mut self, name: &Arc<str>) {
        let Some(subject) = self.subjects.get_mut(name) else {
            return;
        };
        let first = subject.places.values().next();
        let head = first.filter(|_| !subject.is_busy).cloned().flatten();
        if head != subject.head {
            if let Some(before) = std::mem::replace(&mut subject.head, head.clone()) {
                self.ready.remove(&before);
            }
            if let Some(head) = head {
                self.ready.insert(head, name.clone());
            }
        }
        if subject.places.is_empty() && !subject.is_busy {
            self.subjects.remove(name);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.subjects.is_empty() && self.waiting == 0
    }
}
