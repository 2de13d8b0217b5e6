//! First attempts of a webhook: in the order of the events, and those of one object one at a time, by their numbers.

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
    /// Those that may be sent now, with their subjects.
    ready: BTreeMap<EventOrder, Arc<str>>,
    subjects: HashMap<Arc<str>, Subject>,
    waiting: usize,
}

/// The object that events are about. Where that is not known, events are not kept apart.
#[derive(Debug, Default)]
struct Subject {
    /// By number. Without an order: not to be sent yet, or under way. Later ones wait for it all the same.
    places: BTreeMap<(i64, JobKey), Option<EventOrder>>,
    /// That which is in `ready`.
    head: Option<EventOrder>,
    is_busy: bool,
}

fn place(job: &Job) -> (i64, JobKey) {
    (job.order.sequence, job.order.job.clone())
}

impl FirstAttempts {
    /// How many wait to be sent.
    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// Keeps later events of its subject behind a job that may not be sent yet.
    pub(super) fn reserve(&mut self, job: &Job) {
        if !job.subject.is_empty() {
            let subject = self.subjects.entry(job.subject.clone()).or_default();
            subject.places.insert(place(job), None);
            self.refresh(&job.subject);
        }
    }

    /// A job waits to be sent.
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

    /// The next job, to be sent now. Its subject is busy until [`Self::attempt_ended`].
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

    /// An attempt about this subject is over.
    pub(super) fn attempt_ended(&mut self, name: &Arc<str>) {
        if let Some(subject) = self.subjects.get_mut(name) {
            subject.is_busy = false;
            self.refresh(name);
        }
    }

    /// A job is no longer before its first attempt: the next of its subject may go.
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
