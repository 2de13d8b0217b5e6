//! Selects the events of a log that a request asks for.

use super::window::Segment;
use domain::event::EventFilter;
use resources::PageIndex;

/// The events of a page that may match, by its index alone; `None` if there are none.
pub fn selected(filter: &EventFilter, index: &PageIndex) -> Option<Segment> {
    let count = index.count(filter.event_type);
    let from = filter.since.map_or(index.from, |since| since.max(index.from));
    (count > 0 && from <= index.to).then_some(Segment {
        from,
        to: index.to,
        count,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use domain::event::EventType;
    use jiff::Timestamp;
    use resources::{
        EventLog, LoggedEvent,
        public_id::{InstanceId, PublicId as _},
    };

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
                    let selected = selected(&filter, &index);
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
}
