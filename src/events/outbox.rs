//! The interface between the controllers that record events and the one that delivers them.

use crate::resources::{HasOutbox, OutboxEntry};

/// The outbox of an object, in one version of the object.
#[derive(Clone, Copy, Debug)]
pub struct OutboxVersion<'a> {
    /// Kind of the object, such as `Instance`.
    pub kind: &'static str,
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
            namespace: metadata.namespace.as_deref().unwrap_or_default(),
            name: metadata.name.as_deref().unwrap_or_default(),
            uid: metadata.uid.as_deref().unwrap_or_default(),
            revision: revision.and_then(|version| version.parse().ok()).unwrap_or(0),
            is_deleting: metadata.deletion_timestamp.is_some(),
            entries: object.outbox(),
        }
    }
}

/// Takes over the events in the outboxes of objects of any kind.
pub trait Outbox: Send + Sync {
    /// Whether nothing is left to do for the outbox entry with this id, so that it may be removed.
    fn is_settled(&self, event_id: &str) -> bool;

    /// Reports the outbox of an object that was just written. Events with a sequence number above `before` are new and are
    /// sent.
    fn recorded(&self, outbox: &OutboxVersion<'_>, before: i64);
}
