//! The samples of a day: one point a minute for the last hour, and the five-minute averages for a day. A point takes 18 bytes, so
//! an instance takes some 6 KiB.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::providers::Usage;

/// Seconds of a fine point.
const FINE: i64 = 60;
/// Fine points that are kept: an hour.
const FINE_POINTS: usize = 60;
/// Fine points in a coarse one.
const FINE_IN_COARSE: i64 = 5;
/// Seconds of a coarse point.
const COARSE: i64 = FINE * FINE_IN_COARSE;
/// Coarse points that are kept: a day.
const COARSE_POINTS: usize = 288;

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
            Self::Hour => FINE,
            Self::Day => COARSE,
        }
    }

    /// Number of points.
    pub const fn points(self) -> usize {
        match self {
            Self::Hour => FINE_POINTS,
            Self::Day => COARSE_POINTS,
        }
    }
}

/// A percentage in hundredths; [`Self::UNKNOWN`] if it is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Percent(u16);

impl Percent {
    const UNKNOWN: Self = Self(u16::MAX);

    fn of(value: Option<f64>) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is from 0 to 10,000"
        )]
        let hundredths = |value: f64| (value.clamp(0.0, 100.0) * 100.0).round() as u16;
        value
            .filter(|value| value.is_finite())
            .map_or(Self::UNKNOWN, |value| Self(hundredths(value)))
    }

    fn value(self) -> Option<f64> {
        (self != Self::UNKNOWN).then(|| f64::from(self.0) / 100.0)
    }

    /// The average of the known ones.
    fn average(all: impl Iterator<Item = Self>) -> Self {
        let known = all.filter(|one| *one != Self::UNKNOWN);
        let (sum, count) = known.fold((0_u32, 0_u32), |(sum, count), one| {
            (sum + u32::from(one.0), count + 1)
        });
        // Rounded half up.
        let average = (2 * sum + count).checked_div(2 * count);
        average
            .and_then(|average| u16::try_from(average).ok())
            .map_or(Self::UNKNOWN, Self)
    }
}

/// A number of bytes below 2⁴⁸ (281 TB), in six bytes; [`Self::UNKNOWN`] if it is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counter([u8; 6]);

impl Counter {
    const UNKNOWN: Self = Self([u8::MAX; 6]);
    const MOST: u64 = (1 << 48) - 2;

    fn of(value: Option<i64>) -> Self {
        let Some(value) = value.and_then(|value| u64::try_from(value).ok()) else {
            return Self::UNKNOWN;
        };
        let mut bytes = [0; 6];
        bytes.copy_from_slice(&value.min(Self::MOST).to_le_bytes()[..6]);
        Self(bytes)
    }

    fn value(self) -> Option<i64> {
        let mut bytes = [0; 8];
        bytes[..6].copy_from_slice(&self.0);
        (self != Self::UNKNOWN).then(|| i64::from_le_bytes(bytes))
    }

    /// This one, or the other one if this one is not known.
    fn or(self, other: Self) -> Self {
        if self == Self::UNKNOWN { other } else { self }
    }
}

/// What is known about a minute, or about five.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    cpu: Percent,
    memory: Percent,
    disk: Percent,
    network_in: Counter,
    network_out: Counter,
}

impl Point {
    const UNKNOWN: Self = Self {
        cpu: Percent::UNKNOWN,
        memory: Percent::UNKNOWN,
        disk: Percent::UNKNOWN,
        network_in: Counter::UNKNOWN,
        network_out: Counter::UNKNOWN,
    };

    fn of(usage: &Usage) -> Self {
        Self {
            cpu: Percent::of(usage.cpu_usage),
            memory: Percent::of(usage.memory_usage),
            disk: Percent::of(usage.disk_usage),
            network_in: Counter::of(usage.network_in),
            network_out: Counter::of(usage.network_out),
        }
    }

    /// The averages of the fine points of a coarse one. The counters are those of the first fine point. So the counters
    /// of two coarse points were read as far apart as the points are, and a rate can be computed from them, even while
    /// the newer one is incomplete.
    fn average(points: &[Self]) -> Self {
        let first = points.first().copied().unwrap_or(Self::UNKNOWN);
        Self {
            cpu: Percent::average(points.iter().map(|point| point.cpu)),
            memory: Percent::average(points.iter().map(|point| point.memory)),
            disk: Percent::average(points.iter().map(|point| point.disk)),
            network_in: first.network_in,
            network_out: first.network_out,
        }
    }
}

/// The latest points, by slot number.
#[derive(Debug)]
struct Ring {
    points: Box<[Point]>,
    /// The last slot that has been reached.
    newest: i64,
}

impl Ring {
    fn new(length: usize, newest: i64) -> Self {
        Self {
            points: vec![Point::UNKNOWN; length].into(),
            newest,
        }
    }

    fn index(&self, slot: i64) -> usize {
        let length = i64::try_from(self.points.len()).unwrap_or(i64::MAX);
        usize::try_from(slot.rem_euclid(length)).unwrap_or(0)
    }

    fn keeps(&self, slot: i64) -> bool {
        let length = i64::try_from(self.points.len()).unwrap_or(i64::MAX);
        slot <= self.newest && slot > self.newest - length
    }

    /// Advances to a slot. Slots that are passed over are unknown.
    fn reach(&mut self, slot: i64) {
        if slot <= self.newest {
            return;
        }
        let passed = usize::try_from(slot - self.newest).unwrap_or(usize::MAX);
        if passed >= self.points.len() {
            self.points.fill(Point::UNKNOWN);
        } else {
            for slot in self.newest + 1..=slot {
                let index = self.index(slot);
                self.points[index] = Point::UNKNOWN;
            }
        }
        self.newest = slot;
    }

    fn put(&mut self, slot: i64, point: Point) {
        self.reach(slot);
        if self.keeps(slot) {
            let index = self.index(slot);
            self.points[index] = point;
        }
    }

    fn get(&self, slot: i64) -> Point {
        if self.keeps(slot) {
            self.points[self.index(slot)]
        } else {
            Point::UNKNOWN
        }
    }
}

/// The samples of one instance. All times are moments in seconds, see [`Timeline`](super::schedule::Timeline).
#[derive(Debug)]
pub struct Series {
    fine: Ring,
    coarse: Ring,
    since: i64,
}

impl Series {
    /// A series that begins now.
    pub fn new(at: i64) -> Self {
        Self {
            fine: Ring::new(FINE_POINTS, at.div_euclid(FINE)),
            coarse: Ring::new(COARSE_POINTS, at.div_euclid(COARSE)),
            since: at,
        }
    }

    /// Adds the sample that was due at a moment; `None` if there is none. Of several samples in a minute, the last
    /// known one counts, but with the counters of the first.
    pub fn add(&mut self, at: i64, usage: Option<&Usage>) {
        let (slot, coarse) = (at.div_euclid(FINE), at.div_euclid(COARSE));
        self.fine.reach(slot);
        self.coarse.reach(coarse);
        let Some(usage) = usage else { return };
        let earlier = self.fine.get(slot);
        let point = Point::of(usage);
        let point = Point {
            network_in: earlier.network_in.or(point.network_in),
            network_out: earlier.network_out.or(point.network_out),
            ..point
        };
        self.fine.put(slot, point);
        let first = coarse * FINE_IN_COARSE;
        let points: Vec<Point> = (first..first + FINE_IN_COARSE)
            .map(|slot| self.fine.get(slot))
            .collect();
        self.coarse.put(coarse, Point::average(&points));
    }

    /// The points of a window that ends now: `now` by the wall clock, `moment` in seconds.
    pub fn window(&self, window: Window, now: Timestamp, moment: i64) -> Measured {
        let ring = match window {
            Window::Hour => &self.fine,
            Window::Day => &self.coarse,
        };
        let known_since = Timestamp::from_second(self.since + now.as_second() - moment).ok();
        Measured::of(window, ring.newest, known_since, now, moment, |slot| {
            ring.get(slot)
        })
    }
}

/// The points of a window, as replicas pass them on.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Measured {
    /// Since when samples are known; `None` if there is none yet.
    pub known_since: Option<Timestamp>,
    /// The time of the first point, in Unix seconds.
    pub first: i64,
    /// CPU usage in percent.
    pub cpu_usage: Vec<Option<f64>>,
    /// Memory usage in percent.
    pub memory_usage: Vec<Option<f64>>,
    /// Disk usage in percent.
    pub disk_usage: Vec<Option<f64>>,
    /// Bytes received since the last start.
    pub network_in: Vec<Option<i64>>,
    /// Bytes sent since the last start.
    pub network_out: Vec<Option<i64>>,
}

impl Measured {
    /// A window about which nothing is known.
    pub fn nothing(window: Window, now: Timestamp) -> Self {
        let second = now.as_second();
        Self::of(window, i64::MIN, None, now, second, |_| Point::UNKNOWN)
    }

    fn of(
        window: Window,
        newest: i64,
        known_since: Option<Timestamp>,
        now: Timestamp,
        moment: i64,
        point: impl Fn(i64) -> Point,
    ) -> Self {
        let step = window.resolution_seconds();
        // The current slot is included only once there is a sample in it.
        let current = moment.div_euclid(step);
        let last = if newest >= current { current } else { current - 1 };
        let length = i64::try_from(window.points()).unwrap_or(i64::MAX);
        let first = last - length + 1;
        let points: Vec<Point> = (first..=last).map(point).collect();
        // By how many steps the wall clock has been set since the timeline began.
        let set = now.as_second() - moment;
        let set = (set + step / 2).div_euclid(step) * step;
        Self {
            known_since,
            first: first * step + set,
            cpu_usage: points.iter().map(|point| point.cpu.value()).collect(),
            memory_usage: points.iter().map(|point| point.memory.value()).collect(),
            disk_usage: points.iter().map(|point| point.disk.value()).collect(),
            network_in: points.iter().map(|point| point.network_in.value()).collect(),
            network_out: points.iter().map(|point| point.network_out.value()).collect(),
        }
    }

    /// Whether it has the points of this window.
    pub fn is_whole(&self, window: Window) -> bool {
        let length = window.points();
        [
            self.cpu_usage.len(),
            self.memory_usage.len(),
            self.disk_usage.len(),
            self.network_in.len(),
            self.network_out.len(),
        ]
        .iter()
        .all(|one| *one == length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_800_000_000;

    fn usage(cpu: f64, bytes: i64) -> Usage {
        Usage {
            cpu_usage: Some(cpu),
            memory_usage: None,
            disk_usage: Some(50.126),
            network_in: Some(bytes),
            network_out: Some(i64::MAX),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_series_of_an_instance_takes_some_six_kibibytes() {
        assert_eq!((size_of::<Point>(), size_of::<Series>()), (18, 56));
        let points = 18 * (FINE_POINTS + COARSE_POINTS);
        assert!(points + size_of::<Series>() < 6400, "{points}");
    }

    #[test]
    fn what_is_stored_is_what_is_read_to_a_hundredth() {
        let point = Point::of(&usage(95.126, 123_456_789_012));
        assert_eq!(point.cpu.value(), Some(95.13));
        assert_eq!((point.memory.value(), point.disk.value()), (None, Some(50.13)));
        assert_eq!(point.network_in.value(), Some(123_456_789_012));
        assert_eq!(point.network_out.value(), i64::try_from(Counter::MOST).ok());
        for wrong in [f64::NAN, f64::INFINITY] {
            assert_eq!(Percent::of(Some(wrong)), Percent::UNKNOWN);
        }
        assert_eq!(Percent::of(Some(-1.0)).value(), Some(0.0));
        assert_eq!(Counter::of(Some(-1)), Counter::UNKNOWN);
    }

    #[test]
    fn an_hour_has_a_point_a_minute_and_gaps_are_unknown() {
        let mut series = Series::new(START + 7);
        for minute in 0..30 {
            let known = usage(f64::from(minute), 0);
            let known = (minute != 10).then_some(&known);
            if minute != 20 {
                series.add(START + i64::from(minute) * 60 + 7, known);
            }
        }
        let now = START + 29 * 60 + 8;
        let shown = series.window(Window::Hour, at(now), now);
        assert!(shown.is_whole(Window::Hour));
        assert_eq!(shown.first, START - 30 * 60);
        assert_eq!(shown.known_since, Some(at(START + 7)));
        assert_eq!(shown.cpu_usage[..30], [None; 30]);
        for minute in 0..30_u32 {
            let expected = (![10, 20].contains(&minute)).then(|| f64::from(minute));
            let index = 30 + usize::try_from(minute).unwrap();
            assert_eq!(shown.cpu_usage[index], expected, "{minute}");
        }
        // In the next minute the window moves on only once there is a sample.
        let before = series.window(Window::Hour, at(now + 52), now + 52);
        assert_eq!(before.first, shown.first);
        series.add(now + 59, Some(&usage(1.0, 0)));
        let after = series.window(Window::Hour, at(now + 60), now + 60);
        assert_eq!((after.first, after.cpu_usage[59]), (shown.first + 60, Some(1.0)));
    }

    #[test]
    fn a_day_has_the_averages_of_five_minutes_and_the_first_of_their_counters() {
        let mut series = Series::new(START);
        for minute in 0..1_600 {
            series.add(
                START + minute * 60,
                Some(&usage(f64::from(u32::try_from(minute % 5).unwrap()), minute)),
            );
        }
        let now = START + 1_599 * 60;
        let shown = series.window(Window::Day, at(now), now);
        assert_eq!(shown.cpu_usage, vec![Some(2.0); 288]);
        assert_eq!(
            (shown.network_in[0], shown.network_in[287]),
            (Some(1_595 - 287 * 5), Some(1_595))
        );
        // Nothing for two days.
        let later = now + 2 * 86_400;
        let shown = series.window(Window::Day, at(later), later);
        assert_eq!(shown.cpu_usage, vec![None; 288]);
        series.add(later, None);
        assert_eq!(
            series.window(Window::Hour, at(later), later).cpu_usage,
            vec![None; 60]
        );
    }

    #[test]
    fn counters_of_two_points_are_as_far_apart_as_the_points_even_if_the_newer_one_is_not_complete() {
        // A byte a second, sampled every ten seconds from the middle of five minutes on; the sample at 900 s is missing.
        let mut series = Series::new(START + 130);
        for second in (130..1_750).step_by(10) {
            let usage = usage(1.0, second);
            series.add(START + second, (second != 900).then_some(&usage));
            let now = START + second;
            for window in Window::ALL {
                let shown = series.window(window, at(now), now);
                let known = shown
                    .network_in
                    .windows(2)
                    .filter_map(|pair| Some(pair[1]? - pair[0]?));
                let resolution = window.resolution_seconds();
                // The first minute began before the series; the minute of the missing sample is ten seconds late.
                let late = |more: i64| (resolution - more).abs() <= 10;
                assert!(known.into_iter().all(late), "{second} {:?}", shown.network_in);
            }
        }
    }

    #[test]
    fn times_follow_the_wall_clock_when_it_is_set() {
        let mut series = Series::new(START);
        series.add(START, Some(&usage(5.0, 0)));
        let shown = series.window(Window::Hour, at(START + 3_610), START + 10);
        assert_eq!(
            (shown.first, shown.cpu_usage[59]),
            (START + 3_600 - 59 * 60, Some(5.0))
        );
        assert_eq!(shown.known_since, Some(at(START + 3_600)));
        // A few seconds are no reason to move points off the minute.
        let shown = series.window(Window::Hour, at(START + 15), START + 10);
        assert_eq!(shown.first, START - 59 * 60);
    }
}
