//! One event for one webhook.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use jiff::Timestamp;

use super::{FIRST_PAUSE, JobKey, LONGEST_PAUSE, TimerId, WebhookKey};
use crate::event::{EventType, OutboxEntry, catalogue};
use resources::{Delivery, DeliveryPhase, DeliveryStatus, event_log::page_of, revision};

/// An event to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Id of the event, `evt_…`.
    pub id: Arc<str>,
    pub event_type: EventType,
    /// When it happened.
    pub created_at: Timestamp,
    /// Sequence number among the events of its object.
    pub sequence: i64,
    /// UID of the object that the event is about; empty if unknown. First attempts of an object's events are made in
    /// order.
    pub subject: Arc<str>,
    /// What is sent, unless nobody will send it any more. Apart, because it lives shorter, and so that an event takes less memory
    /// than what lives long in an instance: where the two have one size, they leave gaps.
    pub(super) content: Option<Arc<Content>>,
}

/// What is sent of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    body: Bytes,
    traceparent: Option<Arc<str>>,
}

impl Event {
    /// The event of an outbox entry.
    pub fn of_entry(entry: &OutboxEntry, subject: &Arc<str>) -> Self {
        Self {
            id: entry.id.as_str().into(),
            event_type: entry.event_type,
            created_at: entry.created_at,
            sequence: entry.sequence,
            subject: subject.clone(),
            content: Some(Content::of(&entry.body, entry.traceparent.as_deref())),
        }
    }

    /// The request body, byte for byte; empty once nobody will send it any more.
    pub fn body(&self) -> &Bytes {
        static EMPTY: Bytes = Bytes::new();
        self.content.as_ref().map_or(&EMPTY, |content| &content.body)
    }

    /// The W3C traceparent of the span that recorded it, if that is traced.
    pub fn traceparent(&self) -> Option<&str> {
        self.content.as_ref()?.traceparent.as_deref()
    }

    /// The event without its body, once nobody will send it any more.
    pub(super) fn without_body(&self) -> Self {
        Self {
            id: self.id.clone(),
            subject: self.subject.clone(),
            content: None,
            ..*self
        }
    }

    fn of_record(record: &Delivery, subject: &Arc<str>) -> Self {
        Self {
            id: record.spec.event_id.as_str().into(),
            event_type: record.spec.event_type,
            created_at: record.spec.event_created_at,
            sequence: record.spec.sequence,
            subject: subject.clone(),
            content: Some(Content::of(
                &catalogue::body_of(&record.spec),
                record.spec.traceparent.as_deref(),
            )),
        }
    }
}

impl Content {
    fn of(body: &str, traceparent: Option<&str>) -> Arc<Self> {
        Arc::new(Self {
            body: Bytes::copy_from_slice(body.as_bytes()),
            traceparent: traceparent.map(Into::into),
        })
    }
}

/// The order in which the events of a webhook are sent: by time, then by sequence number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EventOrder {
    pub(super) created_at: Timestamp,
    pub(super) sequence: i64,
    /// Makes the order unique, even if somebody creates a second Delivery for an event.
    pub(super) job: JobKey,
}

/// Where the event is stored.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// In the outbox of its object.
    Outbox(Arc<Event>),
    /// In a Delivery; this is its latest known version.
    Record(Arc<Delivery>),
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Waits for a lookup of its record.
    Checking,
    /// In the queue of its webhook, with this ticket.
    Ready(u64),
    Waiting(TimerId),
    /// An attempt is in flight.
    InFlight,
    /// Kept until its webhook can be sent to.
    Held,
    /// Nothing more is sent; that may not have been written yet.
    Over,
}

/// The state of the write of a job's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writing {
    No,
    /// Queued, but not started.
    Queued,
    Running,
    /// Failed; queued again after a pause.
    Paused,
}

/// How a job counts towards the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// It waits for an attempt, or is in flight.
    Owed,
    /// It is held, or is sent only once because that was requested.
    Held,
}

/// How urgent a job that can give way is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wanted {
    /// It was requested to be sent now.
    Now,
    /// It is sent when it is due.
    InTime,
}

/// Counts a failure, and returns the pause after it.
pub(super) fn pause_after(failures: &mut u32) -> Duration {
    let pause = FIRST_PAUSE.saturating_mul(1 << (*failures).min(8));
    *failures += 1;
    pause.min(LONGEST_PAUSE)
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(super) struct Job {
    pub(super) webhook: WebhookKey,
    pub(super) order: EventOrder,
    pub(super) event_id: Arc<str>,
    /// As [`Event::subject`].
    pub(super) subject: Arc<str>,
    pub(super) test: bool,
    pub(super) source: Source,
    /// The status to write to the record; `None` if the record already has it.
    pub(super) desired: Option<Box<DeliveryStatus>>,
    /// Whether `desired` has changed since the last write began.
    pub(super) is_news: bool,
    pub(super) state: State,
    pub(super) writing: Writing,
    /// Number of consecutive failed writes or lookups.
    pub(super) failures: u32,
    /// Number of consecutive writes that a quota refused.
    pub(super) refusals: u32,
    /// Whether a create was started, so that the record may exist although that is not confirmed.
    pub(super) may_be_stored: bool,
    /// Whether the write under way creates its record.
    pub(super) is_creating: bool,
    /// Whether its outbox entry is waiting for it.
    pub(super) settles_entry: bool,
    /// Whether the watch reported the end of its record while the record was being written.
    pub(super) left_watch: bool,
    /// Whether its record was missing from a list. The record may be newer than that list.
    pub(super) is_missed: bool,
    /// Whether its record must not be written before the webhook's disablement.
    pub(super) awaits_disablement: bool,
    /// Whether it is to be dropped, and its record deleted.
    pub(super) dropped: bool,
    /// Whether it was held, or left over by an earlier process. Such jobs are sent one after another, and are counted
    /// in `WebhookQueue::draining`.
    pub(super) drains: bool,
    /// Whether it was held before, as far as this process knows.
    pub(super) was_held: bool,
    /// Whether it is counted in `WebhookQueue::pending`.
    pub(super) is_counted: bool,
    /// What it is counted as in [`Totals`](super::Totals).
    pub(super) counted: Option<Counted>,
    /// Its urgency in `WebhookQueue::yielding`.
    pub(super) yielding: Option<Wanted>,
}

impl Job {
    pub(super) fn of_event(key: JobKey, webhook: WebhookKey, event: Arc<Event>) -> Self {
        Self {
            webhook,
            order: EventOrder {
                created_at: event.created_at,
                sequence: event.sequence,
                job: key,
            },
            event_id: event.id.clone(),
            subject: event.subject.clone(),
            test: false,
            source: Source::Outbox(event),
            desired: None,
            is_news: false,
            state: State::Checking,
            writing: Writing::No,
            failures: 0,
            refusals: 0,
            may_be_stored: false,
            is_creating: false,
            settles_entry: true,
            left_watch: false,
            is_missed: false,
            awaits_disablement: false,
            dropped: false,
            drains: false,
            was_held: false,
            is_counted: false,
            counted: None,
            yielding: None,
        }
    }

    pub(super) fn of_record(
        key: JobKey,
        webhook: WebhookKey,
        record: Arc<Delivery>,
        subject: Arc<str>,
    ) -> Self {
        let subject = if subject.is_empty() {
            record.spec.subject.as_str().into()
        } else {
            subject
        };
        let event = Arc::new(Event::of_record(&record, &subject));
        Self {
            test: record.spec.test,
            source: Source::Record(record),
            state: State::Over,
            settles_entry: false,
            ..Self::of_event(key, webhook, event)
        }
    }

    /// Counts a failed write or lookup, or an attempt that could not be made, and returns the pause after it.
    pub(super) fn next_pause(&mut self) -> Duration {
        pause_after(&mut self.failures)
    }

    /// The event to send.
    pub(super) fn event(&self) -> Arc<Event> {
        match &self.source {
            Source::Outbox(event) => event.clone(),
            Source::Record(record) => Arc::new(Event::of_record(record, &self.subject)),
        }
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

    /// The known version of the record; 0 if there is none.
    pub(super) fn version(&self) -> u64 {
        self.record().map_or(0, |record| revision(&**record))
    }

    /// Whether it is certain that no record exists.
    pub(super) fn is_unrecorded(&self) -> bool {
        !self.is_stored() && !self.may_be_stored
    }

    /// Whether it has a record, and waits for an attempt or is in flight.
    pub(super) fn is_pending(&self) -> bool {
        self.is_stored() && !matches!(self.state, State::Over | State::Held)
    }

    /// How it counts towards the bounds.
    pub(super) fn counts_as(&self) -> Option<Counted> {
        match (self.state, self.phase()) {
            (State::Over | State::Checking, _) => None,
            (_, DeliveryPhase::Held) => Some(Counted::Held),
            _ => Some(Counted::Owed),
        }
    }

    /// Whether it can give way to others, and how urgent it is. Jobs in flight and tests cannot give way.
    pub(super) fn yields_as(&self) -> Option<Wanted> {
        let is_waiting = matches!(self.state, State::Ready(_) | State::Waiting(_));
        let is_one = is_waiting && !self.test && self.counts_as() == Some(Counted::Owed);
        is_one.then(|| match self.request() {
            Some(_) => Wanted::Now,
            None => Wanted::InTime,
        })
    }

    /// The current status, unless nothing has been recorded or decided yet.
    fn latest_status(&self) -> Option<&DeliveryStatus> {
        let recorded = || self.record().and_then(|record| record.status.as_ref());
        self.desired.as_deref().or_else(recorded)
    }

    /// The current status, whether written or not.
    pub(super) fn status(&self) -> DeliveryStatus {
        let latest = self.latest_status().cloned();
        latest.unwrap_or(DeliveryStatus::new(DeliveryPhase::Pending, None))
    }

    /// Sets the current status, to be written.
    pub(super) fn set_status(&mut self, status: DeliveryStatus) {
        self.desired = Some(Box::new(status));
        self.is_news = true;
    }

    /// Whether the next attempt is the first of a run of the retry schedule.
    pub(super) fn is_first_attempt(&self) -> bool {
        self.latest_status().is_none_or(|status| status.retries == 0)
    }

    /// The number of the next attempt, from 1.
    pub(super) fn next_attempt(&self) -> i32 {
        let made = self.latest_status().map_or(0, |status| status.attempt_count);
        made.saturating_add(1)
    }

    /// The current phase, whether written or not.
    pub(super) fn phase(&self) -> DeliveryPhase {
        self.latest_status()
            .map_or(DeliveryPhase::Pending, |status| status.phase)
    }

    /// Whether nothing but its own first attempt has come before its receipt: it was neither held, nor sent before, nor asked for again.
    pub(super) fn is_sent_at_once(&self) -> bool {
        let is_resent = self.record().is_some_and(|record| {
            record.requested_attempt().is_some() || page_of(&record.metadata).is_some()
        });
        self.next_attempt() == 1 && !self.was_held && self.phase() != DeliveryPhase::Held && !is_resent
    }

    /// The nonce of a request to send it now that no attempt has answered yet. Tests are sent immediately anyway.
    pub(super) fn request(&self) -> Option<&str> {
        let answered = self
            .latest_status()
            .and_then(|status| status.attempt_requested_at.as_deref());
        let nonce = self.record()?.requested_attempt()?;
        (!self.test && answered != Some(nonce)).then_some(nonce)
    }

    /// Whether it finished, this was written, and its label was then removed to have it sent again.
    pub(super) fn was_unlabelled(&self) -> bool {
        let Some(record) = self.record() else { return false };
        let is_written = self.desired.is_none() || self.desired.as_deref() == record.status.as_ref();
        let ended = record
            .status
            .as_ref()
            .is_some_and(|status| status.phase.is_finished());
        self.state == State::Over && is_written && ended && !record.is_finished()
    }
}
