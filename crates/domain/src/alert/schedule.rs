//! When each instance is sampled: once per interval, at a moment derived from its UID, so that the calls are spread evenly.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

/// A clock that is never set: it starts from the wall clock and then runs steadily. Its milliseconds are near Unix time
/// as long as nobody sets the wall clock.
#[derive(Clone, Copy, Debug)]
pub struct Timeline {
    started: Instant,
    anchor: i64,
}

impl Timeline {
    /// Begins at this time.
    pub fn start(now: Timestamp) -> Self {
        Self {
            started: Instant::now(),
            anchor: now.as_millisecond(),
        }
    }

    /// The current moment in milliseconds.
    pub fn now(&self) -> i64 {
        let elapsed = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.anchor.saturating_add(elapsed)
    }
}

/// The wall-clock time of the moment `of` on a [`Timeline`], in milliseconds; `now` and `moment` are the current times
/// of the two clocks.
pub fn wall(of: i64, now: Timestamp, moment: i64) -> i64 {
    now.as_millisecond() - (moment - of)
}

/// The fraction of the interval, in 2⁻³², after which the instance with this UID is sampled.
pub fn phase(uid: &str) -> u32 {
    let digest = Sha256::digest(uid.as_bytes());
    digest
        .iter()
        .take(4)
        .fold(0, |n, byte| (n << 8) | u32::from(*byte))
}

/// The last moment, not after `moment`, at which an instance with this phase is sampled. All in milliseconds.
pub fn last_due(phase: u32, interval: Duration, moment: i64) -> i64 {
    let interval = milliseconds(interval);
    let offset = (interval * i64::from(phase)) >> 32;
    (moment - offset).div_euclid(interval) * interval + offset
}

/// An interval in milliseconds; at least one.
pub fn milliseconds(interval: Duration) -> i64 {
    i64::try_from(interval.as_millis())
        .unwrap_or(i64::MAX >> 32)
        .max(1)
}

/// The phases whose samples are due after `from` and not after `to`, as one or two inclusive ranges. Looks back one
/// interval at most: samples missed before that stay missed.
pub fn due(interval: Duration, from: i64, to: i64) -> Vec<(u32, u32)> {
    let interval = milliseconds(interval);
    if to <= from {
        return Vec::new();
    }
    if to - from >= interval {
        return vec![(0, u32::MAX)];
    }
    // The first phase whose offset is at least this.
    let first = |offset: i64| {
        let phase = (i128::from(offset) << 32) + i128::from(interval) - 1;
        u32::try_from(phase / i128::from(interval)).ok()
    };
    let (start, end) = ((from + 1).rem_euclid(interval), (to + 1).rem_euclid(interval));
    let until = |end: i64| match first(end) {
        Some(0) => None,
        Some(next) => Some(next - 1),
        None => Some(u32::MAX),
    };
    let range = |start: i64, last: Option<u32>| {
        let (first, last) = (first(start)?, last?);
        (first <= last).then_some((first, last))
    };
    if start < end {
        range(start, until(end)).into_iter().collect()
    } else {
        let wrapped = [range(start, Some(u32::MAX)), range(0, until(end))];
        wrapped.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_instance_is_due_once_an_interval_however_often_one_looks(
            phase: u32,
            interval in 1_000_i64..60_000,
            start in 1_800_000_000_000_i64..1_800_000_100_000,
            looks in prop::collection::vec(1_i64..30_000, 1..40),
        ) {
            let every = Duration::from_millis(u64::try_from(interval).unwrap());
            let mut from = start;
            for look in looks {
                let to = from + look;
                let is_due = due(every, from, to)
                    .iter()
                    .any(|(first, last)| (*first..=*last).contains(&phase));
                // Slow and obvious: the last moment at which it was due.
                let expected = last_due(phase, every, to) > from;
                prop_assert_eq!(is_due, expected, "{} to {}", from, to);
                prop_assert!(last_due(phase, every, to) <= to && last_due(phase, every, to) > to - interval);
                from = to;
            }
        }
    }

    #[test]
    fn instances_are_spread_over_the_interval() {
        let interval = Duration::from_mins(1);
        let mut seconds = [0_u32; 60];
        for number in 0..6_000 {
            let at = last_due(phase(&format!("uid-{number}")), interval, 1_800_000_059_999);
            seconds[usize::try_from(at / 1000 % 60).unwrap()] += 1;
        }
        assert!(
            seconds.iter().all(|count| (50..160).contains(count)),
            "{seconds:?}"
        );
    }

    #[test]
    fn a_moment_is_as_long_ago_by_the_wall_clock_however_that_was_set() {
        let start = Timestamp::from_second(1_800_000_000).unwrap();
        assert!(Timeline::start(start).now() - start.as_millisecond() < 60_000);
        // It has been set back by an hour.
        let now = Timestamp::from_second(1_800_000_002 - 3_600).unwrap();
        assert_eq!(
            wall(1_800_000_001_500, now, 1_800_000_002_500),
            now.as_millisecond() - 1_000
        );
    }
}
