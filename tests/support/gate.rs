//! Decides which of the waiting tests is next: cargo starts tests in the order of their names, and a long one that starts last would
//! let a core idle.

use std::{collections::BTreeSet, pin::pin};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// When a test's turn comes, among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// For tests that take minutes.
    First,
    Usual,
    /// For tests of what the others have left behind.
    Last,
}

/// A number of permits.
pub struct Gate {
    queue: Mutex<Queue>,
    changed: Notify,
}

struct Queue {
    free: usize,
    arrivals: usize,
    /// The waiting tests, in order.
    waiting: BTreeSet<(Turn, usize)>,
}

/// A waiting test; no longer once this is dropped.
struct Waiting {
    gate: &'static Gate,
    place: (Turn, usize),
}

/// Permits, which go back to the gate when this is dropped.
pub struct Permit {
    gate: &'static Gate,
    count: usize,
}

impl Gate {
    pub const fn new(permits: usize) -> Self {
        Self {
            queue: Mutex::new(Queue {
                free: permits,
                arrivals: 0,
                waiting: BTreeSet::new(),
            }),
            changed: Notify::const_new(),
        }
    }

    /// Waits for this many permits.
    pub async fn acquire(&'static self, turn: Turn, count: usize) -> Permit {
        let waiting = self.arrive(turn);
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(permit) = self.take(waiting.place, count) {
                return permit;
            }
            changed.await;
        }
    }

    /// Whether nobody waits for a permit, and all of them, this many, are free.
    pub fn is_idle(&self, permits: usize) -> bool {
        let queue = self.queue.lock();
        queue.waiting.is_empty() && queue.free == permits
    }

    fn arrive(&'static self, turn: Turn) -> Waiting {
        let mut queue = self.queue.lock();
        queue.arrivals += 1;
        let place = (turn, queue.arrivals);
        queue.waiting.insert(place);
        Waiting { gate: self, place }
    }

    fn take(&'static self, place: (Turn, usize), count: usize) -> Option<Permit> {
        let mut queue = self.queue.lock();
        let is_next = queue.free >= count && queue.waiting.first() == Some(&place);
        is_next.then(|| {
            queue.free -= count;
            Permit { gate: self, count }
        })
    }
}

impl Permit {
    /// Takes one of several permits out.
    pub fn split(&mut self) -> Self {
        assert!(self.count > 1, "there is only one");
        self.count -= 1;
        Self {
            gate: self.gate,
            count: 1,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.gate.queue.lock().waiting.remove(&self.place);
        self.gate.changed.notify_waiters();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gate.queue.lock().free += self.count;
        self.gate.changed.notify_waiters();
    }
}

#[tokio::test]
async fn of_the_waiting_tests_the_long_ones_come_first_and_those_of_what_is_left_behind_last() {
    let gate: &'static Gate = Box::leak(Box::new(Gate::new(2)));
    let held = gate.acquire(Turn::Usual, 2).await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    for turn in [Turn::Last, Turn::Usual, Turn::First] {
        let tell = tell.clone();
        tokio::spawn(async move {
            let _permit = gate.acquire(turn, 2).await;
            tell.send(turn).unwrap();
        });
    }
    while gate.queue.lock().waiting.len() < 3 {
        tokio::task::yield_now().await;
    }
    drop(held);
    for turn in [Turn::First, Turn::Usual, Turn::Last] {
        assert_eq!(told.recv().await, Some(turn));
    }
}
