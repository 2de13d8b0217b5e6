//! The API server's time, as its answers tell it. Ages of what it has stored are measured with it, because the clock of this
//! machine may be wrong.

use std::{sync::Arc, time::Instant};

use http::{HeaderMap, header::DATE};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

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
