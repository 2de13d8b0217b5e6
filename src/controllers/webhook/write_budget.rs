//! Spreads writes of statuses over time. No I/O.

use std::time::{Duration, Instant};

/// Time between two writes of counters of any webhooks: five a second in all (decisions, section 5).
const COUNTERS_PACE: Duration = Duration::from_millis(200);
/// Time between two writes because the health of any webhook has changed: twenty a second in all, so that 200 webhooks whose
/// receivers fail together are shown as failing within ten seconds.
const HEALTH_PACE: Duration = Duration::from_millis(50);

/// A number of writes in a time, which webhooks share by taking turns.
#[derive(Debug)]
pub(super) struct WriteBudget {
    /// Time between two turns.
    pace: Duration,
    /// When the next turn is.
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

    /// The next turn: now, unless others go before. Turns that nobody took are not made up for.
    pub(super) fn take(&mut self, now: Instant) -> Instant {
        let turn = self.next.map_or(now, |next| next.max(now));
        self.next = Some(turn + self.pace);
        turn
    }
}
