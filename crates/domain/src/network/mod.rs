//! Private networks: what to do next with one, and the prefixes that they have.

mod decide;
mod prefix;

pub use decide::{Decision, Question, Seen, Situation, decide, question};
pub use prefix::{addresses, choose, overlaps, parse};
