//! The interface between the controllers that record events and the one that delivers them.

use std::time::Duration;

use jiff::Timestamp;

use resources::{EventType, HasOutbox, OutboxEntry, origin};

/// How long a settled event waits in the outbox for another status update to remove it (decisions, section 5). After that
/// it is removed in a write of its own.
const LINGER: Duration = Duration::from_secs(10);

/// Removes settled events from an outbox, together with another change of the status (`has_changed`) or once they have
/// waited for ten seconds, or a minute if it `may_wait`. Events with a sequence number above `before` are new, and
/// stay. Returns the time until the next check.
pub fn clear(
    outbox: &mut Vec<OutboxEntry>,
    has_changed: bool,
    may_wait: bool,
    before: i64,
    is_settled: &dyn Fn(&str) -> bool,
    now: Timestamp,
) -> Option<Duration> {
    // While other events are not settled yet, wait longer: one write for all is better than one for each.
    let linger = if !may_wait && outbox.iter().all(|entry| is_settled(&entry.id)) {
        LINGER
    } else {
        LINGER * 6
    };
    let lingered = |entry: &OutboxEntry| {
        // The age is negative if the clock went back.
        let age = Duration::try_from(now.duration_since(entry.created_at)).unwrap_or(linger);
        linger.saturating_sub(age)
    };
    let overdue = |entry: &OutboxEntry| lingered(entry).is_zero() && is_settled(&entry.id);
    if has_changed || outbox.iter().any(overdue) {
        outbox.retain(|entry| entry.sequence > before || !is_settled(&entry.id));
    }
    let waits = outbox.iter().map(lingered).min()?;
    Some(waits.clamp(Duration::from_secs(1), LINGER))
}

/// Makes the events with a sequence number above `before` carry the `traceparent` of the span that records them. Alerts
/// carry none: they result from what a server does, not from a request.
pub fn carry_trace(outbox: &mut [OutboxEntry], before: i64, traceparent: Option<&str>) {
    let Some(traceparent) = traceparent else { return };
    for entry in outbox {
        if entry.sequence > before && entry.event_type != EventType::AlertTriggered {
            entry.traceparent = Some(traceparent.to_owned());
        }
    }
}

/// The outbox of an object, in one version of the object.
#[derive(Clone, Copy, Debug)]
pub struct OutboxVersion<'a> {
    /// Kind of the object, such as `Instance`.
    pub kind: &'static str,
    /// Namespace of the account whose webhooks are told.
    pub account_namespace: &'a str,
    /// Namespace of the object.
    pub namespace: &'a str,
    /// Name of the object.
    pub name: &'a str,
    /// UID of the object.
    pub uid: &'a str,
    /// resourceVersion of the object.
    pub revision: u64,
    /// Whether the object is being deleted: it goes once its last event is settled.
    pub is_deleting: bool,
    /// The events in the outbox.
    pub entries: &'a [OutboxEntry],
}

impl<'a> OutboxVersion<'a> {
    /// The outbox of this version of an object.
    pub fn of<K: HasOutbox>(object: &'a K) -> Self {
        let metadata = object.meta();
        let revision = metadata.resource_version.as_deref();
        Self {
            kind: K::KIND,
            account_namespace: object.account_namespace(),
            namespace: metadata.namespace.as_deref().unwrap_or_default(),
            name: metadata.name.as_deref().unwrap_or_default(),
            uid: origin::uid(metadata),
            revision: revision.and_then(|version| version.parse().ok()).unwrap_or(0),
            is_deleting: metadata.deletion_timestamp.is_some(),
            entries: object.outbox(),
        }
    }
}

/// Receives the events in the outboxes of objects of any kind.
pub trait Outbox: Send + Sync {
    /// Whether nothing is left to do for the outbox entry with this id, so that it may be removed.
    fn is_settled(&self, event_id: &str) -> bool;

    /// Whether settled events are in the event log, too. If not, those still in an outbox are sent again after a crash.
    fn is_logged(&self) -> bool;

    /// Whether a webhook in this namespace that can be sent to has events for which no attempt has ended.
    fn has_unattempted(&self, namespace: &str) -> bool;

    /// Reports the outbox of an object that was just written. Events with a sequence number above `before` are new and are
    /// sent.
    fn recorded(&self, outbox: &OutboxVersion<'_>, before: i64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settled_events_are_removed_after_ten_seconds_or_a_minute_where_other_writes_go_first() {
        let entry: OutboxEntry = serde_json::from_value(serde_json::json!({
            "id": "evt_1", "type": "instance.started", "sequence": 1, "createdAt": "2026-11-21T10:00:00Z", "body": "{}",
        }))
        .unwrap();
        let clear_after = |seconds, may_wait| {
            let mut outbox = vec![entry.clone()];
            let now = entry.created_at + Duration::from_secs(seconds);
            let next = clear(&mut outbox, false, may_wait, 1, &|_| true, now);
            (outbox.is_empty(), next)
        };
        let again = |seconds| (false, Some(Duration::from_secs(seconds)));
        assert_eq!(clear_after(4, false), again(6));
        assert_eq!(clear_after(10, false), (true, None));
        assert_eq!(clear_after(10, true), again(10));
        assert_eq!(clear_after(55, true), again(5));
        assert_eq!(clear_after(60, true), (true, None));
    }
}
