//! What the parts stand on: clock, API client, watches, leader election, backoff, health, metrics.

pub mod backoff;
pub mod client;
pub mod clock;
pub mod events;
pub mod health;
pub mod http;
pub mod lease;
pub mod metrics;
pub mod ops;
pub mod telemetry;
pub mod watch;

pub use backoff::Backoffs;
pub use clock::{Clock, SystemClock};
pub use health::Health;
pub use metrics::Metrics;
