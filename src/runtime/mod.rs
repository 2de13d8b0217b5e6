//! What the parts stand on: clock, API client, watches, health, metrics.

pub mod client;
pub mod clock;
pub mod health;
pub mod metrics;
pub mod ops;
pub mod serve;
pub mod watch;

pub use clock::{Clock, SystemClock};
pub use health::Health;
pub use metrics::Metrics;
