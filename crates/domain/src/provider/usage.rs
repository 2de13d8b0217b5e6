//! The usage of servers, now and over time. It is not in the API server: metrics are not part of the status.

use jiff::Timestamp;

pub use api::InstanceMetrics as Usage;

/// How far back a series goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// An hour, a point a minute.
    Hour,
    /// A day, a point every five minutes.
    Day,
}

impl Window {
    /// Every window.
    pub const ALL: [Self; 2] = [Self::Hour, Self::Day];

    /// The window as REST spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "1h",
            Self::Day => "24h",
        }
    }

    /// The window that REST spells like this.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|window| window.as_str() == text)
    }

    /// Seconds from one point to the next.
    pub const fn resolution_seconds(self) -> i64 {
        match self {
            Self::Hour => 60,
            Self::Day => 300,
        }
    }

    /// Number of points.
    pub const fn points(self) -> i64 {
        match self {
            Self::Hour => 60,
            Self::Day => 288,
        }
    }

    /// The times of the points: multiples of the resolution, the last one not after `now`.
    pub fn times(self, now: Timestamp) -> impl Iterator<Item = Timestamp> {
        let step = self.resolution_seconds();
        let last = now.as_second().div_euclid(step);
        let slots = last - self.points() + 1..=last;
        slots.filter_map(move |slot| Timestamp::from_second(slot * step).ok())
    }
}

/// The usage of a server over a [`Window`].
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Since when anything is known, within the window; `None` if nothing is.
    pub known_since: Option<Timestamp>,
    /// The usage at each of [`Window::times`].
    pub points: Vec<(Timestamp, Usage)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_points_of_a_window_are_at_full_minutes_or_full_five_minutes_up_to_now() {
        let now: Timestamp = "2026-11-21T10:07:31Z".parse().unwrap();
        for (window, first, last) in [
            (Window::Hour, "2026-11-21T09:08:00Z", "2026-11-21T10:07:00Z"),
            (Window::Day, "2026-11-20T10:10:00Z", "2026-11-21T10:05:00Z"),
        ] {
            let times: Vec<_> = window.times(now).collect();
            let ends = [times[0], times[times.len() - 1]].map(|time| time.to_string());
            assert_eq!(ends, [first, last]);
            let step = window.resolution_seconds();
            assert!(
                times
                    .windows(2)
                    .all(|two| (two[1] - two[0]).get_seconds() == step)
            );
            assert_eq!(i64::try_from(times.len()), Ok(window.points()));
        }
    }
}
