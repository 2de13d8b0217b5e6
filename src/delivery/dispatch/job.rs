//! One event for one webhook, on its way.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use jiff::Timestamp;

use super::LaneKey;
use crate::{
    events::{EventType, OutboxEntry},
    resources::{Delivery, DeliveryPhase, DeliveryStatus},
};

/// What is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Identifier, `evt_…`.
    pub id: Arc<str>,
    /// Its type.
    pub event_type: EventType,
    /// When it happened.
    pub created_at: Timestamp,
    /// Its number among those of its object.
    pub sequence: i64,
    /// The body, byte for byte.
    pub body: Bytes,
    /// UID of the object that it is about; empty where that is not known any more. Events of one object are first attempted
    /// in order.
    pub subject: Arc<str>,
}

impl Event {
    /// An entry of an object's outbox.
    pub fn of_entry(entry: &OutboxEntry, subject: &Arc<str>) -> Self {
        Self {
            id: entry.id.as_str().into(),
            event_type: entry.event_type,
            created_at: entry.created_at,
            sequence: entry.sequence,
            body: Bytes::copy_from_slice(entry.body.as_bytes()),
            subject: subject.clone(),
        }
    }

    fn of_record(record: &Delivery) -> Self {
        Self {
            id: record.spec.event_id.as_str().into(),
            event_type: record.spec.event_type,
            created_at: record.spec.event_created_at,
            sequence: record.spec.sequence,
            body: Bytes::copy_from_slice(record.spec.body.as_bytes()),
            subject: "".into(),
        }
    }
}

/// Events of a webhook go out in this order: when they happened, then by their number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    created_at: Timestamp,
    sequence: i64,
    id: Arc<str>,
}

/// Where the event is kept.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// In the outbox of its object.
    Outbox(Arc<Event>),
    /// In a Delivery; this is the latest version known.
    Record(Arc<Delivery>),
}

/// What a job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is being looked up whether a record of it is there.
    Checking,
    /// In one of its lane's queues.
    Ready,
    /// Waits for this moment.
    Waiting(Instant),
    /// Being sent.
    InFlight,
    /// Kept until its lane is open.
    Held,
    /// Nothing more is sent; maybe that is still to be written.
    Over,
}

/// Whether the record is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writing {
    No,
    Queued,
    Running,
}

#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) lane: LaneKey,
    pub(super) order: Order,
    pub(super) subject: Arc<str>,
    pub(super) test: bool,
    pub(super) source: Source,
    /// What the record shall say, where it says something else or is not there.
    pub(super) desired: Option<Box<DeliveryStatus>>,
    pub(super) state: State,
    pub(super) writing: Writing,
    pub(super) write_failures: u32,
    /// Its entry in an outbox waits for it.
    pub(super) settles_entry: bool,
    /// Its webhook had not had a success when it was sent.
    pub(super) sent_as_suspect: bool,
    /// The watch has shown its record's end while that was being written.
    pub(super) left_watch: bool,
    /// Not written before the webhook's disablement is.
    pub(super) awaits_disablement: bool,
    /// Shall be given up, and its record deleted.
    pub(super) dropped: bool,
    /// Was held, or left over by an earlier process: goes out one after the other.
    pub(super) drains: bool,
}

impl Job {
    pub(super) fn of_event(lane: LaneKey, event: Arc<Event>) -> Self {
        Self {
            lane,
            order: Order {
                created_at: event.created_at,
                sequence: event.sequence,
                id: event.id.clone(),
            },
            subject: event.subject.clone(),
            test: false,
            source: Source::Outbox(event),
            desired: None,
            state: State::Over,
            writing: Writing::No,
            write_failures: 0,
            settles_entry: true,
            sent_as_suspect: false,
            left_watch: false,
            awaits_disablement: false,
            dropped: false,
            drains: false,
        }
    }

    pub(super) fn of_record(lane: LaneKey, record: Arc<Delivery>) -> Self {
        Self {
            lane,
            order: Order {
                created_at: record.spec.event_created_at,
                sequence: record.spec.sequence,
                id: record.spec.event_id.as_str().into(),
            },
            subject: "".into(),
            test: record.spec.test,
            source: Source::Record(record),
            desired: None,
            state: State::Over,
            writing: Writing::No,
            write_failures: 0,
            settles_entry: false,
            sent_as_suspect: false,
            left_watch: false,
            awaits_disablement: false,
            dropped: false,
            drains: false,
        }
    }

    /// What is sent.
    pub(super) fn event(&self) -> Arc<Event> {
        match &self.source {
            Source::Outbox(event) => event.clone(),
            Source::Record(record) => Arc::new(Event::of_record(record)),
        }
    }

    pub(super) fn event_id(&self) -> Arc<str> {
        self.order.id.clone()
    }

    pub(super) fn record(&self) -> Option<&Arc<Delivery>> {
        match &self.source {
            Source::Outbox(_) => None,
            Source::Record(record) => Some(record),
        }
    }

    pub(super) fn is_stored(&self) -> bool {
        self.record().is_some()
    }

    /// How it stands, whether written or not.
    pub(super) fn status(&self) -> DeliveryStatus {
        if let Some(desired) = &self.desired {
            return (**desired).clone();
        }
        let known = self.record().and_then(|record| record.status.clone());
        known.unwrap_or(DeliveryStatus::new(DeliveryPhase::Pending, None))
    }

    /// Whether the next attempt is the first of its ladder.
    pub(super) fn is_first_attempt(&self) -> bool {
        self.desired
            .as_deref()
            .or(self.record().and_then(|record| record.status.as_ref()))
            .is_none_or(|status| status.retries == 0)
    }
}
