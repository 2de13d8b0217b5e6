//! Writes that wait for room at the API server.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::delivery::dispatch::{JobKey, Turns, WriteClass};

/// What is to be written. Accounts take turns, and no class of writes takes all the room: the records of receivers that fail
/// come in bursts, which would slow down the API server for the transitions that everybody waits for.
pub(super) struct WriteQueue {
    /// Writes under way at the same time.
    room: usize,
    owed: Pool,
    suspect: Pool,
    log: Pool,
}

/// Calls about jobs, of which some wait, in turns of their accounts, and some are under way.
#[derive(Default)]
pub(super) struct Pool {
    waiting: Turns,
    running: Arc<AtomicUsize>,
}

/// A place among the calls under way, until it is dropped.
pub(super) struct Slot(Arc<AtomicUsize>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pool {
    pub(super) fn push(&mut self, job: JobKey) {
        let account = job.split_once('/').map_or("", |(namespace, _)| namespace);
        self.waiting.offer(&account.into(), job);
    }

    /// How many are under way.
    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// The next one, which is under way from now on.
    pub(super) fn take(&mut self) -> Option<(JobKey, Slot)> {
        let job = self.waiting.take()?;
        self.running.fetch_add(1, Ordering::Relaxed);
        Some((job, Slot(self.running.clone())))
    }
}

impl WriteQueue {
    pub(super) fn new(room: usize) -> Self {
        Self {
            room,
            owed: Pool::default(),
            suspect: Pool::default(),
            log: Pool::default(),
        }
    }

    pub(super) fn push(&mut self, job: JobKey, class: WriteClass) {
        match class {
            WriteClass::Owed => self.owed.push(job),
            WriteClass::Suspect => self.suspect.push(job),
            WriteClass::Log => self.log.push(job),
        }
    }

    /// The next one that there is room for. An eighth of it is always there for suspects, and for the log.
    pub(super) fn next(&mut self) -> Option<(JobKey, Slot)> {
        let share = (self.room / 8).max(1);
        let others = self.owed.running() + self.log.running();
        let mut next = None;
        if self.owed.running() < self.room.saturating_sub(2 * share).max(1) {
            next = self.owed.take();
        }
        if next.is_none() && self.suspect.running() < share {
            next = self.suspect.take();
        }
        if next.is_none() && (others < self.room.div_ceil(2) || self.log.running() < share) {
            next = self.log.take();
        }
        next
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        [&self.owed, &self.suspect, &self.log]
            .iter()
            .all(|pool| pool.waiting.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(queue: &mut WriteQueue) -> Vec<(JobKey, Slot)> {
        std::iter::from_fn(|| queue.next()).collect()
    }

    fn names(started: &[(JobKey, Slot)]) -> Vec<&str> {
        started.iter().map(|(job, _)| &**job).collect()
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
        assert_eq!(started.len(), 6, "places are left to suspects and the log");
        queue.push("other/log".into(), WriteClass::Log);
        assert_eq!(names(&self::started(&mut queue)), ["other/log"]);
    }

    #[test]
    fn what_is_owed_waits_neither_for_the_records_of_suspects_nor_for_the_log() {
        let mut queue = WriteQueue::new(16);
        for n in 0..1000 {
            queue.push(format!("bad/{n}").into(), WriteClass::Suspect);
            queue.push(format!("good/{n}").into(), WriteClass::Log);
        }
        let before = started(&mut queue);
        let of = |account| {
            names(&before)
                .iter()
                .filter(|job| job.starts_with(account))
                .count()
        };
        assert_eq!((of("bad"), of("good")), (2, 8));
        queue.push("good/owed".into(), WriteClass::Owed);
        assert_eq!(names(&started(&mut queue)), ["good/owed"]);
    }

    #[test]
    fn no_class_starves_even_where_there_is_room_for_one_write_only() {
        let mut queue = WriteQueue::new(1);
        for class in [WriteClass::Owed, WriteClass::Suspect, WriteClass::Log] {
            queue.push(format!("account/{class:?}").into(), class);
        }
        let first = started(&mut queue);
        assert_eq!(names(&first), ["account/Owed", "account/Suspect", "account/Log"]);
    }
}
