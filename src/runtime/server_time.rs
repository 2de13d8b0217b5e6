//! The API server's time, as its answers tell it. Ages of what it has stored are measured with it, because the clock of this
//! machine may be wrong.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use http::{HeaderMap, header::DATE};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::Clock;

/// How far the clock of a machine may be off the API server's time, which has no fractions of a second and is some time on the way.
const TOLERANCE: SignedDuration = SignedDuration::from_mins(1);

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

    /// The time `age` ago: what happened earlier is older than `age`. Before the first answer, a time so early that nothing is.
    pub fn since(&self, age: SignedDuration) -> Timestamp {
        let since = self.now().and_then(|now| now.saturating_sub(age).ok());
        since.unwrap_or(Timestamp::MIN)
    }

    /// The earlier of this time and that of a machine, so that neither clock alone ends a period too early.
    pub fn or_earlier(&self, machine: Timestamp) -> Timestamp {
        self.now().map_or(machine, |server| server.min(machine))
    }
}

/// The clock of this machine, as long as it agrees with the API server's time to the minute; else that time. So what is stored
/// beside the API server's own times, such as when a server first ran, is right although the machine's clock was set.
pub struct CheckedClock {
    machine: Arc<dyn Clock>,
    server: ServerTime,
    is_off: AtomicBool,
}

impl CheckedClock {
    /// The clock of a machine, checked against the API server's time.
    pub fn new(machine: Arc<dyn Clock>, server: ServerTime) -> Self {
        Self {
            machine,
            server,
            is_off: AtomicBool::new(false),
        }
    }
}

impl Clock for CheckedClock {
    fn now(&self) -> Timestamp {
        let machine = self.machine.now();
        let Some(server) = self.server.now() else {
            return machine;
        };
        let is_off = machine.duration_since(server).abs() > TOLERANCE;
        if self.is_off.swap(is_off, Ordering::Relaxed) != is_off {
            if is_off {
                tracing::warn!(%machine, %server, "this machine's clock is off: the API server's time is used; set one of them right");
            } else {
                tracing::info!("this machine's clock agrees with the API server's again");
            }
        }
        if is_off { server } else { machine }
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

    fn head(date: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(DATE, HeaderValue::from_static(date))])
    }

    struct SetTo(Mutex<Timestamp>);

    impl Clock for SetTo {
        fn now(&self) -> Timestamp {
            *self.0.lock()
        }
    }

    #[test]
    fn a_clock_that_is_more_than_a_minute_off_gives_way_to_the_api_servers_time() {
        let right: Timestamp = "1994-11-06T08:49:37.5Z".parse().unwrap();
        let (machine, server) = (Arc::new(SetTo(Mutex::new(right))), ServerTime::default());
        let clock = CheckedClock::new(machine.clone(), server.clone());
        let month = SignedDuration::from_hours(24 * 30);
        *machine.0.lock() = right + month;
        assert_eq!(clock.now(), right + month, "nothing else is known");
        server.answered(&head("Sun, 06 Nov 1994 08:49:37 GMT"));
        for off in [month, -month, SignedDuration::from_mins(2)] {
            *machine.0.lock() = right + off;
            assert!(clock.now().duration_since(right).abs() < TOLERANCE, "{off:?}");
            let earlier = server.or_earlier(right + off).duration_since(right);
            assert!(
                (earlier - off.min(SignedDuration::ZERO)).abs() < TOLERANCE,
                "{off:?}"
            );
        }
        for off in [SignedDuration::ZERO, SignedDuration::from_secs(30)] {
            *machine.0.lock() = right + off;
            assert_eq!(clock.now(), right + off, "to the fraction of a second");
        }
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
