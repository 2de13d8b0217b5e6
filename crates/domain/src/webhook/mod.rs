//! The status of a Webhook as a pure function (decisions, section 5). What is sent to it when is up to [`delivery`](crate::delivery).
//!
//! - [`decide()`]: the status to write;
//! - [`urgency()`]: how soon.

mod decide;

pub use decide::{ORIGIN_TAKEN, Obstacle, Situation, Urgency, decide, urgency};
