//! Tracks the rate of writes, so that writes of low priority can be deferred.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Changes a second from which on there is much to write: a tenth of what an API server on two cores takes.
const BUSY: u32 = 20;
const SECOND: Duration = Duration::from_secs(1);

/// Counts the changes that a controller writes. Cheap to clone; all clones count together.
#[derive(Clone, Debug, Default)]
pub struct WritePressure(Arc<Mutex<Option<Counts>>>);

#[derive(Clone, Copy, Debug)]
struct Counts {
    /// When the current second began.
    began: Instant,
    now: u32,
    before: u32,
}

impl WritePressure {
    /// Counts a change that has been written.
    pub fn wrote(&self) {
        self.wrote_at(Instant::now());
    }

    /// Whether there is much to write: at least twenty changes within this second or the last one.
    pub fn is_busy(&self) -> bool {
        self.is_busy_at(Instant::now())
    }

    fn wrote_at(&self, now: Instant) {
        let mut counts = self.0.lock();
        let mut current = Self::counts_at(*counts, now);
        current.now += 1;
        *counts = Some(current);
    }

    fn is_busy_at(&self, now: Instant) -> bool {
        let counts = Self::counts_at(*self.0.lock(), now);
        counts.now.max(counts.before) >= BUSY
    }

    fn counts_at(counts: Option<Counts>, now: Instant) -> Counts {
        let fresh = |before| Counts {
            began: now,
            now: 0,
            before,
        };
        match counts {
            Some(counts) if now < counts.began + SECOND => counts,
            Some(counts) if now < counts.began + SECOND * 2 => fresh(counts.now),
            _ => fresh(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_is_busy_until_it_has_written_little_for_a_second() {
        let (write_pressure, began) = (WritePressure::default(), Instant::now());
        let at = |milliseconds| began + Duration::from_millis(milliseconds);
        for _ in 1..BUSY {
            write_pressure.wrote_at(at(0));
        }
        assert!(!write_pressure.is_busy_at(at(0)));
        write_pressure.clone().wrote_at(at(999));
        assert!(write_pressure.is_busy_at(at(999)) && write_pressure.is_busy_at(at(1500)));
        write_pressure.wrote_at(at(1500));
        assert!(write_pressure.is_busy_at(at(2400)));
        assert!(!write_pressure.is_busy_at(at(2600)));
        assert!(!write_pressure.is_busy_at(at(60_000)));
    }
}
