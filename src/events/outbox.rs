//! The interface between the controllers that record events and the one that delivers them.

use crate::resources::Instance;

/// Takes over the events in the outboxes of objects.
pub trait Outbox: Send + Sync {
    /// Whether nothing is left to do for the outbox entry with this id, so that it may be removed.
    fn is_settled(&self, event_id: &str) -> bool;

    /// Reports that `instance` was just written. Events with a sequence number above `before` are new and are sent.
    fn recorded(&self, instance: &Instance, before: i64);
}
