//! The queue of a webhook's first attempts, in the order of the events. Events about the same object are sent one at a
//! time, in the order of their sequence numbers.

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
    /// By sequence number. `None`: in flight or not ready to be sent; later events of the subject wait for it.
    places: BTreeMap<(i64, JobKey), Option<EventOrder>>,
    /// The entry that is in `ready`.
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

    /// Whether there are no first attempts to make or in flight, apart from those in flight for unknown objects.
    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.subjects.is_empty() && self.waiting == 0
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Event, *};
    use crate::event::EventType;

    fn job(subject: &str, sequence: i64) -> Job {
        let event = Event {
            id: format!("evt_{sequence}").into(),
            event_type: EventType::InstanceStarted,
            created_at: jiff::Timestamp::UNIX_EPOCH,
            sequence,
            subject: subject.into(),
            content: None,
        };
        Job::of_event(format!("ns/{sequence}").into(), "ns/one".into(), Arc::new(event))
    }

    #[test]
    fn events_of_unknown_objects_wait_for_none_of_each_other() {
        let mut queue = FirstAttempts::default();
        let jobs = [1, 2, 3].map(|sequence| job("", sequence));
        for job in jobs.iter().rev() {
            queue.reserve(job);
            queue.push(job);
            queue.push(job);
        }
        assert_eq!(queue.len(), 3);
        queue.remove(&jobs[1]);
        queue.remove(&jobs[1]);
        assert_eq!(queue.len(), 2);
        let order = std::iter::from_fn(|| queue.pop()).map(|(job, _)| job.to_string());
        assert_eq!(order.collect::<Vec<_>>(), ["ns/1", "ns/3"]);
        assert!(queue.is_empty());
    }

    #[test]
    fn an_event_waits_for_earlier_ones_of_its_object_until_their_attempt_has_ended_or_they_are_removed() {
        let mut queue = FirstAttempts::default();
        let jobs = [1, 2, 3].map(|sequence| job("i-1", sequence));
        queue.reserve(&jobs[0]);
        for job in &jobs[1..] {
            queue.push(job);
            queue.push(job);
        }
        assert_eq!((queue.len(), queue.pop()), (2, None));
        queue.push(&jobs[0]);
        let (first, subject) = queue.pop().unwrap();
        assert_eq!((&*first, queue.len(), queue.pop()), ("ns/1", 2, None));
        queue.remove(&jobs[0]);
        assert_eq!(queue.pop(), None, "its attempt is in flight");
        queue.attempt_ended(&subject);
        let (second, _) = queue.pop().unwrap();
        assert_eq!((&*second, queue.len()), ("ns/2", 1));
        queue.remove(&jobs[1]);
        queue.remove(&jobs[2]);
        assert_eq!(queue.len(), 0);
        assert!(!queue.is_empty(), "an attempt is in flight");
        queue.attempt_ended(&subject);
        assert!(queue.is_empty());
    }
}
