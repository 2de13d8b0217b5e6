//! The queue of writes that wait for a permit, so that they do not overload the API server.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use domain::{
    FairQueue,
    delivery::{JobKey, WriteClass, namespace_of},
};

/// The queue of writes. Accounts take turns, and no class of writes can use all permits: records of failing receivers come in
/// bursts, which would delay the API server's handling of instances.
pub(crate) struct WriteQueue {
    /// Maximum number of concurrent writes.
    permits: usize,
    owed: CallQueue,
    suspect: CallQueue,
    pages: CallQueue,
}

/// A write that has a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NextWrite {
    /// The record of a job.
    Record(JobKey),
    /// The event log page of a namespace.
    Page(Arc<str>),
}

/// A queue of API calls, fair among accounts, that also counts the running ones.
#[derive(Default)]
pub(crate) struct CallQueue {
    waiting: FairQueue,
    running: Arc<AtomicUsize>,
}

/// The permit of a running call; released on drop.
pub(crate) struct Permit(Arc<AtomicUsize>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CallQueue {
    /// Adds a call for a job, or for a whole namespace.
    pub(crate) fn push(&mut self, key: Arc<str>) {
        self.waiting.push(&namespace_of(&key).into(), key);
    }

    /// The number of running calls.
    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Removes and returns the next call, which counts as running until its permit is dropped.
    pub(crate) fn pop(&mut self) -> Option<(Arc<str>, Permit)> {
        let key = self.waiting.pop()?;
        self.running.fetch_add(1, Ordering::Relaxed);
        Some((key, Permit(self.running.clone())))
    }
}

impl WriteQueue {
    pub(crate) fn new(permits: usize) -> Self {
        Self {
            permits,
            owed: CallQueue::default(),
            suspect: CallQueue::default(),
            pages: CallQueue::default(),
        }
    }

    pub(crate) fn push(&mut self, job: JobKey, class: WriteClass) {
        match class {
            WriteClass::Owed => self.owed.push(job),
            WriteClass::Suspect => self.suspect.push(job),
        }
    }

    pub(crate) fn push_page(&mut self, namespace: Arc<str>) {
        self.pages.push(namespace);
    }

    /// Removes and returns the next write that has a permit. An eighth of the permits is reserved for failing receivers,
    /// and another eighth for the event log.
    pub(crate) fn pop(&mut self) -> Option<(NextWrite, Permit)> {
        let share = (self.permits / 8).max(1);
        let others = self.owed.running() + self.pages.running();
        let mut next = None;
        if self.owed.running() < self.permits.saturating_sub(2 * share).max(1) {
            next = self.owed.pop();
        }
        if next.is_none() && self.suspect.running() < share {
            next = self.suspect.pop();
        }
        if let Some((job, permit)) = next {
            return Some((NextWrite::Record(job), permit));
        }
        if others < self.permits.div_ceil(2) || self.pages.running() < share {
            let (namespace, permit) = self.pages.pop()?;
            return Some((NextWrite::Page(namespace), permit));
        }
        None
    }

    /// Whether no write waits.
    pub(crate) fn is_empty(&self) -> bool {
        [&self.owed, &self.suspect, &self.pages]
            .iter()
            .all(|queue| queue.waiting.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(queue: &mut WriteQueue) -> Vec<(NextWrite, Permit)> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    fn names(started: &[(NextWrite, Permit)]) -> Vec<&str> {
        started
            .iter()
            .map(|(write, _)| match write {
                NextWrite::Record(key) | NextWrite::Page(key) => &**key,
            })
            .collect()
    }

    #[test]
    fn accounts_take_turns_however_much_one_of_them_has_to_write() {
        let mut queue = WriteQueue::new(8);
        for n in 0..1000 {
            queue.push(format!("big/{n}").into(), WriteClass::Owed);
        }
        queue.push("small/0".into(), WriteClass::Owed);
        let started = started(&mut queue);
        assert_eq!(names(&started)[..3], ["big/0", "small/0", "big/1"]);
        assert_eq!(started.len(), 6, "permits are left to suspects and the log");
        queue.push_page("other".into());
        assert_eq!(names(&self::started(&mut queue)), ["other"]);
    }

    #[test]
    fn what_is_owed_waits_neither_for_the_records_of_suspects_nor_for_the_log() {
        let mut queue = WriteQueue::new(16);
        for n in 0..1000 {
            queue.push(format!("bad/{n}").into(), WriteClass::Suspect);
            queue.push_page(format!("good-{n}").into());
        }
        let before = started(&mut queue);
        let of = |account| {
            names(&before)
                .iter()
                .filter(|key| key.starts_with(account))
                .count()
        };
        assert_eq!((of("bad"), of("good")), (2, 8));
        queue.push("good/owed".into(), WriteClass::Owed);
        assert_eq!(names(&started(&mut queue)), ["good/owed"]);
    }

    #[test]
    fn no_class_starves_even_with_a_single_permit() {
        let mut queue = WriteQueue::new(1);
        queue.push("account/owed".into(), WriteClass::Owed);
        queue.push("account/suspect".into(), WriteClass::Suspect);
        queue.push_page("account".into());
        let first = started(&mut queue);
        assert_eq!(names(&first), ["account/owed", "account/suspect", "account"]);
    }
}
