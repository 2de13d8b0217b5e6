//! The retry schedule: how long to wait before each retry of a failed delivery.

use std::{fmt, str::FromStr, time::Duration};

use thiserror::Error;

/// Delays of the specification (section 6.5): 1 m, 5 m, 30 m, 2 h, 6 h.
const DEFAULT_SECONDS: [u64; 5] = [60, 300, 1800, 7200, 21_600];
/// Maximum number of steps in a schedule (decisions, section 5).
const MOST_STEPS: usize = 20;
/// Longest single delay: 30 days.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);
/// Units in milliseconds, largest first.
const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

/// The delays before the retries of a delivery, each counted from the previous failure; 1 to 20 of them. If the last retry
/// fails, the webhook is disabled.
///
/// Written as `1m,5m,30m,2h,6h`: whole numbers with a unit (ms, s, m, h or d), from 1 ms to 30 days each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetrySchedule(Vec<Duration>);

/// Why a retry schedule cannot be parsed. The message names the step and the fix.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScheduleError {
    /// There is no step, or there are more than 20.
    #[error("must have 1 to 20 steps, such as 1m,5m,30m,2h,6h; it has {0}")]
    Steps(usize),
    /// A step is not a number with a unit.
    #[error("step {step} ({text:?}) must be a whole number with a unit, ms, s, m, h or d, such as 90s or 2h")]
    Step {
        /// Number of the step, from 1.
        step: usize,
        /// Text of the step.
        text: String,
    },
    /// A step is zero or longer than 30 days.
    #[error("step {step} ({text:?}) must be from 1ms to 30d")]
    Range {
        /// Number of the step, from 1.
        step: usize,
        /// Text of the step.
        text: String,
    },
}

impl RetrySchedule {
    /// The delay before retry number `retry`, counted from 0; `None` if there are no more retries.
    pub fn delay(&self, retry: usize) -> Option<Duration> {
        self.0.get(retry).copied()
    }

    /// The number of retries. A delivery has one attempt more than that.
    #[expect(clippy::len_without_is_empty, reason = "it has at least one step")]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl Default for RetrySchedule {
    fn default() -> Self {
        Self(DEFAULT_SECONDS.map(Duration::from_secs).to_vec())
    }
}

impl FromStr for RetrySchedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        if text.trim().is_empty() {
            return Err(ScheduleError::Steps(0));
        }
        let steps: Vec<&str> = text.split(',').map(str::trim).collect();
        if steps.len() > MOST_STEPS {
            return Err(ScheduleError::Steps(steps.len()));
        }
        let steps = steps.iter().enumerate();
        steps
            .map(|(index, text)| delay(index + 1, text))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

fn delay(step: usize, text: &str) -> Result<Duration, ScheduleError> {
    let text = text.to_owned();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = UNITS.iter().find(|(name, _)| *name == unit);
    let (Some((_, unit)), false) = (unit, number.is_empty()) else {
        return Err(ScheduleError::Step { step, text });
    };
    // A number that overflows is out of range too.
    let milliseconds = number.parse::<u64>().ok().and_then(|n| n.checked_mul(*unit));
    milliseconds
        .map(Duration::from_millis)
        .filter(|delay| !delay.is_zero() && *delay <= LONGEST)
        .ok_or(ScheduleError::Range { step, text })
}

impl fmt::Display for RetrySchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, delay) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let milliseconds = delay.as_millis();
            let unit = UNITS
                .iter()
                .find(|(_, unit)| milliseconds.is_multiple_of(u128::from(*unit)));
            let (name, unit) = unit.unwrap_or(&("ms", 1));
            write!(f, "{comma}{}{name}", milliseconds / u128::from(*unit))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_default_is_the_schedule_of_the_specification() {
        let schedule = RetrySchedule::default();
        assert_eq!(schedule.to_string(), "1m,5m,30m,2h,6h");
        assert_eq!(schedule.len(), 5);
        assert_eq!(schedule.delay(0), Some(Duration::from_mins(1)));
        assert_eq!(schedule.delay(4), Some(Duration::from_hours(6)));
        assert_eq!(schedule.delay(5), None);
        let total: Duration = schedule.0.iter().sum();
        assert_eq!(total, Duration::from_mins(8 * 60 + 36));
    }

    #[test]
    fn steps_have_units_down_to_milliseconds() {
        let schedule: RetrySchedule = "200ms, 90s,2h,1d".parse().unwrap();
        assert_eq!(schedule.delay(0), Some(Duration::from_millis(200)));
        assert_eq!(schedule.delay(1), Some(Duration::from_secs(90)));
        assert_eq!(schedule.delay(3), Some(Duration::from_hours(24)));
        assert_eq!(schedule.to_string(), "200ms,90s,2h,1d");
    }

    #[test]
    fn a_wrong_step_is_named_with_the_fix() {
        for (text, expected) in [
            ("", "must have 1 to 20 steps, such as 1m,5m,30m,2h,6h; it has 0"),
            (
                "1m,5",
                "step 2 (\"5\") must be a whole number with a unit, ms, s, m, h or d, such as 90s or 2h",
            ),
            ("1m,,2h", "step 2 (\"\") must be a whole number with a unit"),
            ("1m,", "step 2 (\"\") must be a whole number with a unit"),
            ("-1m", "step 1 (\"-1m\") must be a whole number with a unit"),
            ("1.5h", "step 1 (\"1.5h\") must be a whole number with a unit"),
            ("1m 5m", "step 1 (\"1m 5m\") must be a whole number with a unit"),
            ("9ä", "step 1 (\"9ä\") must be a whole number with a unit"),
            ("0s", "step 1 (\"0s\") must be from 1ms to 30d"),
            ("1s,31d", "step 2 (\"31d\") must be from 1ms to 30d"),
            (
                "99999999999999999999d",
                "step 1 (\"99999999999999999999d\") must be from",
            ),
        ] {
            let error = text.parse::<RetrySchedule>().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
        let of = |steps: usize| vec!["1s"; steps].join(",").parse::<RetrySchedule>();
        assert_eq!(of(20).unwrap().len(), 20);
        assert_eq!(of(21), Err(ScheduleError::Steps(21)));
    }

    proptest! {
        #[test]
        fn what_it_shows_it_reads(steps in prop::collection::vec(1..=2_592_000_000_u64, 1..=20)) {
            let schedule = RetrySchedule(steps.into_iter().map(Duration::from_millis).collect());
            prop_assert_eq!(schedule.to_string().parse(), Ok(schedule));
        }
    }
}
