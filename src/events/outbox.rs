//! The way of recorded events to whoever has them delivered, as the controllers that record them see it.

use crate::resources::Instance;

/// Takes the events that are in the outboxes of objects on their way.
pub trait Outbox: Send + Sync {
    /// Whether nothing is left to do for the outbox entry with this id, so that it may be cleared away.
    fn is_settled(&self, event_id: &str) -> bool;

    /// `instance` was written just now, and its events up to the number `before` had been recorded earlier: what is newer goes
    /// out.
    fn recorded(&self, instance: &Instance, before: i64);
}
