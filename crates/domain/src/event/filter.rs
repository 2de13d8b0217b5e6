//! Selects the events of a log that a request asks for.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::Deserialize;

use resources::{EventType, LoggedEvent, public_id::InstanceId};

/// The filters of a request for events. Events must match all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// The type of the events.
    pub event_type: Option<EventType>,
    /// The instance that the events are about.
    pub instance: Option<InstanceId>,
    /// When the events happened.
    pub period: Period,
}

/// A period of time, possibly without a beginning or an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Period {
    /// Its beginning, which is part of it.
    pub since: Option<Timestamp>,
    /// Its end, which is not.
    pub until: Option<Timestamp>,
}

impl Period {
    /// Whether this time lies in it.
    pub fn has(&self, time: Timestamp) -> bool {
        self.since.is_none_or(|since| time >= since) && self.until.is_none_or(|until| time < until)
    }

    /// Whether any time from `from` to `to`, both included, may lie in it.
    pub fn overlaps(&self, from: Timestamp, to: Timestamp) -> bool {
        self.since.is_none_or(|since| to >= since) && self.until.is_none_or(|until| from < until)
    }
}

impl EventFilter {
    /// Whether an event matches. The instance is looked up in its body.
    pub fn matches(&self, event: &LoggedEvent) -> bool {
        self.event_type.is_none_or(|wanted| wanted == event.event_type)
            && self.period.has(event.created_at)
            && self
                .instance
                .is_none_or(|instance| is_about(&event.body, &instance.to_string()))
    }
}

/// Whether the data in the body of an event has this instance.
fn is_about(body: &str, instance: &str) -> bool {
    instance_of(body).is_some_and(|found| found.id == instance)
}

/// The instance in the data of an event.
#[derive(Debug, Deserialize)]
pub struct EventInstance<'a> {
    /// Its id.
    #[serde(borrow)]
    pub id: Cow<'a, str>,
    /// Its name.
    #[serde(borrow, default)]
    pub name: Cow<'a, str>,
}

/// The instance in the data of an event, if it is about one.
pub fn instance_of(body: &str) -> Option<EventInstance<'_>> {
    #[derive(Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        data: Data<'a>,
    }
    #[derive(Deserialize)]
    struct Data<'a> {
        #[serde(borrow)]
        instance: Option<EventInstance<'a>>,
    }
    serde_json::from_str::<Body<'_>>(body).ok()?.data.instance
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_has_its_beginning_but_not_its_end() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let period = Period {
            since: Some(at(10)),
            until: Some(at(20)),
        };
        assert_eq!(
            [9, 10, 19, 20].map(|second| period.has(at(second))),
            [false, true, true, false]
        );
        let overlaps = |from, to| period.overlaps(at(from), at(to));
        assert!(overlaps(0, 10) && overlaps(19, 30) && overlaps(0, 30) && overlaps(12, 13));
        assert!(!overlaps(0, 9) && !overlaps(20, 30));
        assert!(Period::default().has(Timestamp::MIN) && Period::default().overlaps(at(1), at(1)));
    }

    #[test]
    fn the_instance_of_an_event_is_in_its_data() {
        let body = r#"{"data":{"user":{"id":"i-9"},"instance":{"id":"i-1","name":"a\u00e9\"b"}}}"#;
        let found = instance_of(body).unwrap();
        assert_eq!((found.id.as_ref(), found.name.as_ref()), ("i-1", "a\u{e9}\"b"));
        assert!(instance_of(r#"{"data":{"invoice":{"id":"i-1"}}}"#).is_none());
        assert!(instance_of("nonsense").is_none());
    }
}
