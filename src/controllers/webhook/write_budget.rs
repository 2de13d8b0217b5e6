//! Spreads writes of statuses over time. No I/O.

use std::time::{Duration, Instant};

/// Time between two writes of counters of any webhooks: five a second in all (decisions, section 5).
const COUNTERS_PACE: Duration = Duration::from_millis(200);
/// Time between two writes because the health of any webhook has changed: twenty a second in all, so that 200 webhooks whose
/// receivers fail together are shown as failing within ten seconds.
const HEALTH_PACE: Duration = Duration::from_millis(50);

/// A rate of writes that all webhooks share. Each write reserves a time of its own.
#[derive(Debug)]
pub(super) struct WriteBudget {
    /// Time between two writes.
    pace: Duration,
    /// The earliest time that is not reserved.
    next: Option<Instant>,
}

impl WriteBudget {
    /// For counters and times.
    pub(super) const fn of_counters() -> Self {
        Self {
            pace: COUNTERS_PACE,
            next: None,
        }
    }

    /// For changes of health.
    pub(super) const fn of_health() -> Self {
        Self {
            pace: HEALTH_PACE,
            next: None,
        }
    }

    /// Reserves the time of a write: now, or after the writes that have reserved theirs. Time in which nobody writes is lost: it
    /// allows no burst later.
    pub(super) fn reserve(&mut self, now: Instant) -> Instant {
        let write_at = self.next.map_or(now, |next| next.max(now));
        self.next = Some(write_at + self.pace);
        write_at
    }
}
