//! Backups as pure functions (decisions, section 7).
//!
//! - [`schedule`]: when backups are made, and how they are named;
//! - [`retention`]: which backups are deleted automatically, and how many there may be;
//! - [`restore`]: whether a backup can be restored to an instance;
//! - [`decide()`]: what to do next with a Backup;
//! - `failure`: whose business it is that a backup failed;
//! - `summary`: its conditions.

mod decide;
mod failure;
pub mod restore;
pub mod retention;
pub mod schedule;
mod summary;
#[cfg(test)]
mod tests;

pub use decide::{BackupLimits, Decision, Effect, Note, Question, Seen, Situation, Source, decide, question};
pub use failure::of_the_customer;
