//! The Instance lifecycle as pure functions (decisions, section 3).
//!
//! - [`actions`]: what a REST operation changes in the spec, and the states that it is allowed from;
//! - [`requests`]: which operation a spec asks for next, given a status. The controller persists the answer, and the
//!   facade shows it before the controller has seen the object, so both always tell the same;
//! - [`decide()`]: the next status, given what the provider shows;
//! - `decision`: what goes into a decision, and what comes out of it;
//! - [`explain()`]: why an instance is not as asked;
//! - `summary`: how a status is told, in conditions and Events.

pub mod actions;
mod decide;
mod decision;
mod explain;
pub mod requests;
mod summary;
#[cfg(test)]
mod tests;

pub use actions::Action;
pub use decide::decide;
pub use decision::{Audience, Decision, Gate, Note, Seen};
pub use explain::{Explanation, explain};
pub use requests::{project, take_on};

pub use crate::providers::Timings;
