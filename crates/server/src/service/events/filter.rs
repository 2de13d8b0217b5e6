//! Selects the events of a log that a request asks for.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::Deserialize;

use super::window::Segment;
use crate::service::id::InstanceId;
use domain::event::EventType;
use resources::{LoggedEvent, PageIndex};

/// The filters of a request for events. Events must match all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// The type of the events.
    pub event_type: Option<EventType>,
    /// The instance that the events are about.
    pub instance: Option<InstanceId>,
    /// The events happened at this time or later.
    pub since: Option<Timestamp>,
}

impl EventFilter {
    /// Whether an event matches. The instance is looked up in its body.
    pub fn matches(&self, event: &LoggedEvent) -> bool {
        self.event_type.is_none_or(|wanted| wanted == event.event_type)
            && self.since.is_none_or(|since| event.created_at >= since)
            && self
                .instance
                .is_none_or(|instance| is_about(&event.body, &instance.to_string()))
    }

    /// The events of a page that may match, by its index alone; `None` if there are none.
    pub fn selected(&self, index: &PageIndex) -> Option<Segment> {
        let count = index.count(self.event_type);
        let from = self.since.map_or(index.from, |since| since.max(index.from));
        (count > 0 && from <= index.to).then_some(Segment {
            from,
            to: index.to,
            count,
        })
    }

    /// Whether the index of a page does not tell how many of its events match.
    pub fn cuts(&self, index: &PageIndex) -> bool {
        self.instance.is_some() || self.since.is_some_and(|since| index.from < since)
    }
}

/// Whether the data in the body of an event has this instance.
fn is_about(body: &str, instance: &str) -> bool {
    instance_of(body).is_some_and(|found| found.id == instance)
}

/// The instance in the data of an event.
#[derive(Debug, Deserialize)]
pub struct EventInstance<'a> {
    #[serde(borrow)]
    pub id: Cow<'a, str>,
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
    use serde_json::json;

    use super::*;
    use crate::service::id::PublicId as _;
    use resources::EventLog;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn event(number: u8, event_type: EventType, time: &str, instance: &str) -> LoggedEvent {
        LoggedEvent {
            id: format!("evt_{number:0>16}"),
            event_type,
            created_at: at(time),
            sequence: 1,
            subject: "u".to_owned(),
            body: json!({ "data": { "user": { "id": "i-0000000000000009" }, "instance": { "id": instance, "name": "a\u{e9}\"b" } } })
                .to_string(),
            traceparent: None,
            deliveries: Vec::new(),
        }
    }

    #[test]
    fn a_filter_agrees_with_the_index_of_a_page_or_says_that_it_cannot() {
        let types = [EventType::InstanceCreated, EventType::InstanceStarted];
        let times = [
            "2026-11-21T10:00:00Z",
            "2026-11-21T10:00:01Z",
            "2026-11-21T10:00:02Z",
        ];
        let instances = ["i-0000000000000001", "i-0000000000000002"];
        let events: Vec<_> = (0..12_u8)
            .map(|n| {
                let number = usize::from(n);
                event(n, types[number % 2], times[number % 3], instances[number % 2])
            })
            .collect();
        let page = EventLog::page("demo", "u", at(times[2]), events.clone()).unwrap();
        let index = PageIndex::read(&page.metadata).unwrap();
        let sinces = [
            None,
            Some("2026-11-21T09:00:00Z"),
            Some(times[0]),
            Some(times[1]),
            Some("2026-11-21T11:00:00Z"),
        ];
        for event_type in [None, Some(types[0]), Some(EventType::BackupFailed)] {
            for since in sinces.map(|since| since.map(at)) {
                for instance in [
                    None,
                    InstanceId::parse(instances[0]),
                    InstanceId::parse("i-0000000000000009"),
                ] {
                    let filter = EventFilter {
                        event_type,
                        instance,
                        since,
                    };
                    let matching = events.iter().filter(|event| filter.matches(event)).count();
                    let selected = filter.selected(&index);
                    let may_match = selected.map_or(0, |segment| segment.count);
                    assert!(matching <= may_match, "{filter:?}");
                    if !filter.cuts(&index) {
                        assert_eq!(matching, may_match, "{filter:?}");
                    }
                }
            }
        }
        let of_one = EventFilter {
            instance: InstanceId::parse(instances[1]),
            ..EventFilter::default()
        };
        assert_eq!(events.iter().filter(|event| of_one.matches(event)).count(), 6);
    }

    #[test]
    fn the_instance_of_an_event_is_in_its_data() {
        let body = event(1, EventType::InstanceCreated, "2026-11-21T10:00:00Z", "i-1").body;
        let found = instance_of(&body).unwrap();
        assert_eq!((found.id.as_ref(), found.name.as_ref()), ("i-1", "a\u{e9}\"b"));
        assert!(instance_of(r#"{"data":{"invoice":{"id":"i-1"}}}"#).is_none());
        assert!(instance_of("nonsense").is_none());
    }
}
