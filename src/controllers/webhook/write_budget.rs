//! Spreads writes of statuses over time. No I/O.

use std::time::{Duration, Instant};

/// Minimum time between two writes of counters, across all webhooks: five a second in all (decisions, section
/// 5).
const COUNTERS_PACE: Duration = Duration::from_millis(200);
/// Minimum time between two writes of changed health, across all webhooks: twenty a second in all, so that 200 webhooks
/// whose receivers fail together are shown as failing within ten seconds.
const HEALTH_PACE: Duration = Duration::from_millis(50);

/// A write rate shared by all webhooks. Each write reserves its own time.
#[derive(Debug)]
pub(super) struct WriteBudget {
    /// Time between two writes.
    pace: Duration,
    /// The earliest time that is not reserved.
    next: Option<Instant>,
}

impl WriteBudget {
    /// The budget for counters and times.
    pub(super) const fn of_counters() -> Self {
        Self {
            pace: COUNTERS_PACE,
            next: None,
        }
    }

    /// The budget for changes of health.
    pub(super) const fn of_health() -> Self {
        Self {
            pace: HEALTH_PACE,
            next: None,
        }
    }

    /// Reserves the time of a write: now, or after the writes that have already reserved theirs. Unused time is lost: it allows
    /// no burst later.
    pub(super) fn reserve(&mut self, now: Instant) -> Instant {
        let write_at = self.next.map_or(now, |next| next.max(now));
        self.next = Some(write_at + self.pace);
        write_at
    }
}
