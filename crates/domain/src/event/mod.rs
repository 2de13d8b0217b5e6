//! Events of an account, as receivers get them (specification, section 6).
//!
//! - [`payload`]: the bodies, serialised once;
//! - [`catalogue`]: an example and a JSON Schema of every type;
//! - [`EventFilter`]: which events are asked for;
//! - [`outbox`]: where a controller hands over the events that it has recorded.
//!
//! An event is recorded in the outbox of its object, in the same status write as the change that it reports (decisions,
//! section 5).

pub mod catalogue;
mod filter;
pub mod outbox;
pub mod payload;

pub use filter::{EventFilter, EventInstance, Period, instance_of};
pub use outbox::{Outbox, OutboxVersion};

pub use resources::event::{EventType, OutboxEntry};
