//! What the parts stand on.
//!
//! - [`backoff`]: growing pauses per object after failures;
//! - [`client`]: the client of the API server, and bounded calls;
//! - [`clock`]: time as a parameter;
//! - [`events`]: Kubernetes Events, published without holding anything up;
//! - [`health`]: what is ready, and whether watches make progress;
//! - [`http`]: the loop that serves HTTP connections;
//! - [`lease`]: leader election;
//! - [`metrics`]: all metrics of the program;
//! - [`ops`]: the port of `/healthz`, `/readyz` and `/metrics`;
//! - [`reconcile_queue`]: which objects of a kind are to be reconciled;
//! - [`telemetry`]: where logs go, and in what form;
//! - [`watch`]: the one place through which every watch goes.

pub mod backoff;
pub mod client;
pub mod clock;
pub mod events;
pub mod health;
pub mod http;
pub mod lease;
pub mod metrics;
pub mod ops;
pub mod reconcile_queue;
pub mod telemetry;
pub mod watch;

pub use backoff::Backoffs;
pub use clock::{Clock, SystemClock};
pub use health::Health;
pub use metrics::Metrics;
pub use reconcile_queue::ReconcileQueue;
