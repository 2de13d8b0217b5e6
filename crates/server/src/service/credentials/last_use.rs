//! The day on which something was last used, for the path of every request: recording another use on the same day takes one comparison.

use std::sync::atomic::{AtomicI32, Ordering};

use jiff::{Span, Timestamp, civil::Date};

/// Day 0.
const EPOCH: Date = Date::constant(1970, 1, 1);
/// Stands for "never used".
const NEVER: i32 = i32::MIN;
/// Seconds in a day.
const DAY: i64 = 86_400;

/// The latest day, in UTC, on which something was used. It is never set back, whatever the clock does.
#[derive(Debug)]
pub struct LastUse(AtomicI32);

impl Default for LastUse {
    fn default() -> Self {
        Self(AtomicI32::new(NEVER))
    }
}

impl LastUse {
    /// Notes a use at this time. Returns whether it is the first on a later day than before.
    pub fn note(&self, now: Timestamp) -> bool {
        let day = i32::try_from(now.as_second().div_euclid(DAY)).unwrap_or(NEVER);
        // The comparison comes first, because all processors can read at the same time.
        self.0.load(Ordering::Relaxed) < day && self.raise(day) < day
    }

    /// Takes over a day that was noted elsewhere.
    pub fn learn(&self, day: Date) {
        if let Ok(days) = day.since(EPOCH) {
            self.raise(days.get_days());
        }
    }

    /// The latest day; `None` if there was no use.
    pub fn day(&self) -> Option<Date> {
        // `NEVER` is out of range, so it gives `None`.
        let days = Span::new().try_days(self.0.load(Ordering::Relaxed)).ok()?;
        EPOCH.checked_add(days).ok()
    }

    /// Sets the day, unless it is later already. Returns the previous day.
    fn raise(&self, day: i32) -> i32 {
        self.0.fetch_max(day, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time: &str) -> Timestamp {
        time.parse().unwrap()
    }

    #[test]
    fn the_first_use_of_each_day_counts_and_a_clock_that_is_set_back_changes_nothing() {
        let last = LastUse::default();
        assert_eq!(last.day(), None);
        assert!(last.note(at("2026-11-22T23:59:59.999Z")));
        assert!(!last.note(at("2026-11-22T00:00:00Z")));
        assert!(last.note(at("2026-11-23T00:00:00Z")));
        assert!(!last.note(at("2026-11-22T12:00:00Z")));
        assert_eq!(last.day(), Some("2026-11-23".parse().unwrap()));
    }

    #[test]
    fn a_day_that_somebody_else_has_noted_is_not_noted_again_and_sets_nothing_back() {
        let last = LastUse::default();
        last.learn("2026-11-23".parse().unwrap());
        assert!(!last.note(at("2026-11-23T12:00:00Z")));
        last.learn("2026-11-01".parse().unwrap());
        assert_eq!(last.day(), Some("2026-11-23".parse().unwrap()));
        for end in [Date::MIN, Date::MAX] {
            let last = LastUse::default();
            last.learn(end);
            assert_eq!(last.day(), Some(end));
        }
    }

    #[test]
    fn of_many_uses_at_the_same_time_one_is_the_first() {
        let last = LastUse::default();
        let firsts = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        (0..1000)
                            .filter(|_| last.note(at("2026-11-23T12:00:00Z")))
                            .count()
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum::<usize>()
        });
        assert_eq!(firsts, 1);
    }
}
