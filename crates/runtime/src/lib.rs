//! Infrastructure that all parts of the program use.
//!
//! - [`audit`]: who did what;
//! - [`backoff`]: retry delays per object;
//! - [`by_namespace`]: the objects of a kind, by namespace;
//! - [`client`]: the client of the API server, and calls with a timeout;
//! - [`clock`]: time as a parameter;
//! - [`cluster_addresses`]: the addresses of the cluster and of this machine;
//! - [`events`]: Kubernetes Events, published in the background;
//! - [`fair_permits`]: a semaphore for which accounts take turns;
//! - [`health`]: readiness of components, and progress of watches;
//! - [`http`]: serves HTTP connections;
//! - [`installation_backup`]: how old the last backup of the installation is;
//! - [`instance_metrics`]: the usage of instances as metrics;
//! - [`lease`]: leader election;
//! - [`metrics`]: all metrics of the program;
//! - [`log_throttle`]: keeps the log readable while everything fails;
//! - [`open_files`]: how many files and connections the process may have open;
//! - [`objects`]: the objects of a kind in memory, such as those of a watch;
//! - [`ops`]: the port of `/healthz`, `/readyz` and `/metrics`;
//! - [`write_pressure`]: the rate of writes, so that writes of low priority can be deferred;
//! - [`object_ref`]: namespace and name of an object;
//! - [`recent_accounts`]: how many accounts something has happened to lately;
//! - [`reconcile_queue`]: the objects of a kind that a controller has to reconcile; [`work_queue`]: reconciles them,
//!   round-robin over the accounts;
//! - [`restored`]: notices that the API server's data was put back to an older state;
//! - [`server_time`]: the API server's time;
//! - [`shared_key`]: random keys that all replicas share, in Secrets;
//! - [`shared_catalogue`]: the catalogue in use, replaced when its file changes;
//! - [`system_tls`]: TLS for clients of servers that the administrator names;
//! - [`telemetry`]: set-up of logging;
//! - [`timed_mutex`]: a mutex that measures how long it is held;
//! - [`traces`]: traces and audit lines over OTLP;
//! - [`unparsed`]: an object of a watch as text, which may not match its schema;
//! - [`watch`]: all watches of the API server.

pub mod audit;
pub mod backoff;
pub mod by_namespace;
pub mod client;
pub mod clock;
pub mod cluster_addresses;
pub mod events;
pub mod fair_permits;
pub mod health;
pub mod http;
pub mod installation_backup;
pub mod instance_metrics;
pub mod kubeconfig;
pub mod lease;
pub mod log_throttle;
pub mod metrics;
pub mod object_ref;
pub mod objects;
pub mod open_files;
pub mod ops;
#[cfg(target_os = "linux")]
mod process_metrics;
pub mod recent_accounts;
pub mod reconcile_queue;
pub mod restored;
pub mod server_time;
pub mod shared_catalogue;
pub mod shared_key;
pub mod system_tls;
pub mod telemetry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod timed_mutex;
pub mod traces;
pub mod unparsed;
pub mod watch;
pub mod work_queue;
pub mod write_pressure;

pub use backoff::Backoffs;
pub use by_namespace::ByNamespace;
pub use clock::{Clock, SystemClock};
pub use fair_permits::FairPermits;
pub use health::Health;
pub use metrics::Metrics;
pub use object_ref::ObjectRef;
pub use objects::Store;
pub use reconcile_queue::ReconcileQueue;
pub use server_time::{CheckedClock, ServerTime};
pub use shared_catalogue::SharedCatalogue;
pub use timed_mutex::TimedMutex;
