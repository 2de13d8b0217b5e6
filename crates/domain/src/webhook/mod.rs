//! Webhooks as pure functions: the status of one (decisions, section 5), what a change writes, how healthy its deliveries are, and its
//! test events. What is sent to it when is up to [`delivery`](crate::delivery).
//!
//! - [`decide()`]: the status to write;
//! - [`urgency()`]: how soon.

mod change;
mod decide;
mod example;
mod health;
mod secret;

pub use change::changed_spec;
pub use decide::{ORIGIN_TAKEN, Obstacle, Situation, Urgency, decide, urgency};
pub use example::{Untestable, example, example_type};
pub use health::{Complaint, health};
pub use secret::SecretChange;
