//! Usage samples of the servers, and the alerts that follow from them.
//!
//! - [`schedule`]: when each instance is sampled, on a monotonic clock;
//! - [`series`]: the samples of a day in memory, some 6 KiB per instance;
//! - [`evaluation`]: what the samples of an instance mean for each rule, and [`alerts`]: what that changes in its status. Both are
//!   pure;
//! - [`monitor`]: the monitored instances of this process, fed by the watch;
//! - [`measurements`]: answers questions about usage; [`wire`]: the protocol that replicas use to ask the leader; [`remote`]:
//!   asks the leader.
//!
//! The history of an alert is in the status of its instance, written only when an alert fires or ends. Everything else is in the memory
//! of the leader, and is lost at a restart.

pub mod alerts;
pub mod evaluation;
pub mod measurements;
pub mod monitor;
pub mod remote;
pub mod schedule;
pub mod series;
#[cfg(test)]
mod tests;
pub mod wire;

pub use measurements::{LeaderSlot, Measurements};
pub use monitor::Monitor;
pub use series::{Measured, Window};
pub use wire::Unavailable;
