//! The API server's time, as its responses report it. Ages of stored objects are measured with it, because the clock of this
//! machine may be wrong.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::{HeaderMap, header::DATE};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::Clock;

/// How far a machine's clock may differ from the API server's time, which has no fractions of a second and takes some
/// time to arrive.
const TOLERANCE: SignedDuration = SignedDuration::from_mins(1);
/// How close a clock that was off must come to count as right again, so that a clock at the edge does not keep changing
/// sides.
const AGREEMENT: SignedDuration = SignedDuration::from_secs(30);
/// The time stands still rather than going back by this or less, as it would when the other clock is used, or when API
/// servers with different clocks answer by turns.
const STEP_BACK: SignedDuration = SignedDuration::from_mins(2);
/// Minimum time between two log lines about which clock is used.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// The time of the API server. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ServerTime(Arc<Mutex<Option<Reading>>>);

#[derive(Clone, Copy, Debug)]
struct Reading {
    /// The time in an answer.
    time: Timestamp,
    /// When that answer arrived.
    at: Instant,
}

impl ServerTime {
    /// Reads the time in the head of an answer. One without a time is ignored.
    pub fn answered(&self, head: &HeaderMap) {
        let text = head.get(DATE).and_then(|value| value.to_str().ok());
        let time = text.and_then(|text| httpdate::parse_http_date(text).ok());
        if let Some(time) = time.and_then(|time| Timestamp::try_from(time).ok()) {
            let at = Instant::now();
            *self.0.lock() = Some(Reading { time, at });
        }
    }

    /// The time now; `None` before the first answer.
    pub fn now(&self) -> Option<Timestamp> {
        let told = (*self.0.lock())?;
        told.later(Instant::now())
    }

    /// The time `age` ago: anything that happened before it is older than `age`. Before the first answer, a time so
    /// early that nothing is older.
    pub fn since(&self, age: SignedDuration) -> Timestamp {
        let since = self.now().and_then(|now| now.saturating_sub(age).ok());
        since.unwrap_or(Timestamp::MIN)
    }

    /// The earlier of this time and a machine's time, so that neither clock alone ends a period too early.
    pub fn or_earlier(&self, machine: Timestamp) -> Timestamp {
        self.now().map_or(machine, |server| server.min(machine))
    }
}

/// The clock of this machine, as long as it agrees with the API server's time to the minute; otherwise the API server's
/// time. So times that are stored next to the API server's own, such as when a server first ran, are right even if the
/// machine's clock was set. It does not go back by small steps.
pub struct CheckedClock {
    machine: Arc<dyn Clock>,
    server: ServerTime,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the machine's clock is off.
    is_off: bool,
    /// What was last logged about that, and when.
    said: Option<(bool, Instant)>,
    /// The time that was last returned.
    last: Option<Timestamp>,
}

impl CheckedClock {
    /// The clock of a machine, checked against the API server's time.
    pub fn new(machine: Arc<dyn Clock>, server: ServerTime) -> Self {
        Self {
            machine,
            server,
            state: Mutex::default(),
        }
    }
}

impl Clock for CheckedClock {
    fn now(&self) -> Timestamp {
        // Read under the lock, so that no later time is returned before this one.
        let mut state = self.state.lock();
        let (machine, server) = (self.machine.now(), self.server.now());
        if let Some(server) = server
            && state.is_news(machine.duration_since(server).abs(), Instant::now())
        {
            if state.is_off {
                tracing::warn!(%machine, %server, "this machine's clock is off: the API server's time is used; set one of them right");
            } else {
                tracing::info!("this machine's clock agrees with the API server's again");
            }
        }
        let time = server.filter(|_| state.is_off).unwrap_or(machine);
        state.held(time)
    }
}

impl State {
    /// Records how far apart the two clocks are. Returns whether to log which one is used.
    fn is_news(&mut self, apart: SignedDuration, now: Instant) -> bool {
        self.is_off = apart > if self.is_off { AGREEMENT } else { TOLERANCE };
        let is_news = self.is_off != self.said.is_some_and(|(is_off, _)| is_off);
        let may_say = self
            .said
            .is_none_or(|(_, at)| now.saturating_duration_since(at) >= SAY_EVERY);
        if is_news && may_say {
            self.said = Some((self.is_off, now));
        }
        is_news && may_say
    }

    /// This time, or the last one if this time is slightly before it.
    fn held(&mut self, time: Timestamp) -> Timestamp {
        let is_back = |last: &Timestamp| *last > time && last.duration_since(time) <= STEP_BACK;
        let held = self.last.filter(is_back).unwrap_or(time);
        self.last = Some(held);
        held
    }
}

impl Reading {
    /// The time at a later moment.
    fn later(self, now: Instant) -> Option<Timestamp> {
        let passed = SignedDuration::try_from(now.saturating_duration_since(self.at)).ok()?;
        self.time.saturating_add(passed).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderValue;

    use super::*;
    use crate::testing::TestClock;

    fn head(date: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(DATE, HeaderValue::from_static(date))])
    }

    #[test]
    fn a_clock_that_is_more_than_a_minute_off_gives_way_to_the_api_servers_time() {
        let right: Timestamp = "1994-11-06T08:49:37.5Z".parse().unwrap();
        let (machine, server) = (Arc::new(TestClock::at(right)), ServerTime::default());
        let clock = CheckedClock::new(machine.clone(), server.clone());
        let month = SignedDuration::from_hours(24 * 30);
        machine.set(right + month);
        assert_eq!(clock.now(), right + month, "nothing else is known");
        server.answered(&head("Sun, 06 Nov 1994 08:49:37 GMT"));
        for off in [month, -month, SignedDuration::from_mins(2)] {
            machine.set(right + off);
            assert!(clock.now().duration_since(right).abs() < TOLERANCE, "{off:?}");
            let earlier = server.or_earlier(right + off).duration_since(right);
            assert!(
                (earlier - off.min(SignedDuration::ZERO)).abs() < TOLERANCE,
                "{off:?}"
            );
        }
        for off in [SignedDuration::from_secs(5), SignedDuration::from_secs(59)] {
            machine.set(right + off);
            assert_eq!(clock.now(), right + off, "to the fraction of a second");
        }
    }

    #[test]
    fn a_clock_that_was_off_is_used_again_once_it_is_within_half_a_minute() {
        let mut state = State::default();
        let mut is_off = |seconds| {
            state.is_news(SignedDuration::from_secs(seconds), Instant::now());
            state.is_off
        };
        assert_eq!(
            [59, 60, 61, 60, 59, 31].map(&mut is_off),
            [false, false, true, true, true, true]
        );
        assert_eq!([30, 31, 60, 61].map(is_off), [false, false, false, true]);
    }

    #[test]
    fn it_is_said_at_most_once_a_minute_which_clock_is_used_and_in_the_end_the_one_that_is() {
        let mut state = State::default();
        let start = Instant::now();
        let mut said = Vec::new();
        for second in 0..=300_u64 {
            // API servers with different clocks answer by turns, until one of the clocks is set.
            let apart = if second % 2 == 0 && second < 200 { 90 } else { 0 };
            if state.is_news(
                SignedDuration::from_secs(apart),
                start + Duration::from_secs(second),
            ) {
                said.push((second, state.is_off));
            }
        }
        assert_eq!(said, [(0, true), (61, false), (122, true), (183, false)]);
        assert!(!state.is_off);
    }

    #[test]
    fn the_time_stands_still_rather_than_to_go_back_by_a_little() {
        let right: Timestamp = "1994-11-06T08:49:37Z".parse().unwrap();
        let seconds = SignedDuration::from_secs;
        let (machine, server) = (Arc::new(TestClock::at(right)), ServerTime::default());
        let clock = CheckedClock::new(machine.clone(), server.clone());
        machine.set(right + seconds(61));
        assert_eq!(clock.now(), right + seconds(61), "nothing else is known");
        server.answered(&head("Sun, 06 Nov 1994 08:49:37 GMT"));
        machine.set(right + seconds(63));
        assert_eq!(
            clock.now(),
            right + seconds(61),
            "the API server's time would be a minute before"
        );
        server.answered(&head("Sun, 06 Nov 1994 08:50:40 GMT"));
        machine.set(right + seconds(64));
        assert_eq!(clock.now(), right + seconds(64), "an API server that agrees");
        // The machine's clock was far ahead, and is set.
        machine.set(right);
        server.answered(&head("Sun, 06 Nov 1994 08:49:37 GMT"));
        assert_eq!(clock.now(), right + seconds(64));
        machine.set(right - seconds(57));
        server.answered(&head("Sun, 06 Nov 1994 08:48:40 GMT"));
        assert_eq!(clock.now(), right - seconds(57), "by more than a little");
    }

    #[test]
    fn the_time_goes_on_after_the_last_answer_that_has_one() {
        let time = ServerTime::default();
        let day = SignedDuration::from_hours(24);
        assert_eq!((time.now(), time.since(day)), (None, Timestamp::MIN));
        time.answered(&HeaderMap::new());
        time.answered(&head("yesterday"));
        assert_eq!(time.now(), None);
        time.answered(&head("Sun, 06 Nov 1994 08:49:37 GMT"));
        time.answered(&HeaderMap::new());
        let told = time.0.lock().unwrap();
        assert_eq!(told.time, "1994-11-06T08:49:37Z".parse().unwrap());
        let later = told.later(told.at + Duration::from_secs(90));
        assert_eq!(later, Some("1994-11-06T08:51:07Z".parse().unwrap()));
        assert!(time.since(day) >= "1994-11-05T08:49:37Z".parse().unwrap());
        assert!(time.since(day) < "1994-11-06T08:49:37Z".parse().unwrap());
        // The API server was restored, or its clock was set back.
        time.answered(&head("Sat, 05 Nov 1994 08:49:37 GMT"));
        assert!(time.now() < Some("1994-11-06T08:49:37Z".parse().unwrap()));
    }
}
