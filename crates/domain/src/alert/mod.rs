//! Usage samples of the servers, and the alerts that follow from them.
//!
//! - [`schedule`]: when each instance is sampled, on a monotonic clock;
//! - [`evaluation`]: what the samples of an instance mean for each rule, and [`alerts`]: what that changes in its status. Both are
//!   pure.
//!
//! The history of an alert is in the status of its instance, written only when an alert fires or ends. How long a metric has been above
//! its threshold is in the memory of the leader, and is lost at a restart. Nobody keeps series: the provider is asked for them.

pub mod alerts;
pub mod evaluation;
pub mod schedule;
#[cfg(test)]
mod tests;
