//! A mutex that measures how long it is held.

use std::{
    ops::{Deref, DerefMut},
    time::Instant,
};

use parking_lot::{Mutex, MutexGuard};
use prometheus_client::metrics::histogram::Histogram;

/// A mutex that reports to a histogram how many seconds it was held each time.
pub struct TimedMutex<T> {
    mutex: Mutex<T>,
    holds: Histogram,
}

/// Access to the value until it is dropped.
pub struct TimedGuard<'a, T> {
    // Fields are dropped in this order, so nobody waits for the report.
    guard: MutexGuard<'a, T>,
    _report: Report<'a>,
}

struct Report<'a> {
    since: Instant,
    holds: &'a Histogram,
}

impl<T> TimedMutex<T> {
    /// An unlocked mutex that reports to `holds`.
    pub fn new(value: T, holds: Histogram) -> Self {
        Self {
            mutex: Mutex::new(value),
            holds,
        }
    }

    /// Waits until nobody else holds it.
    pub fn lock(&self) -> TimedGuard<'_, T> {
        let guard = self.mutex.lock();
        TimedGuard {
            guard,
            _report: Report {
                since: Instant::now(),
                holds: &self.holds,
            },
        }
    }
}

impl<T> Deref for TimedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for TimedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        self.holds.observe(self.since.elapsed().as_secs_f64());
    }
}
