//! A real control plane for the local run, the tests and the benchmarks: etcd, kube-apiserver and
//! kube-controller-manager on loopback, on free ports, ready in a few seconds, and gone without a trace when the process
//! that started them ends, whatever way it ends.
//!
//! ```no_run
//! # async fn example() -> Result<(), control_plane::Error> {
//! use control_plane::{ControlPlane, Identity};
//!
//! let control_plane = ControlPlane::start().await?;
//! let version = control_plane.client(Identity::Admin).await?.apiserver_version().await;
//! control_plane.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! Tests that do not kill anything share one: [`shared`].
//!
//! - `plane`: starts the servers in order, kills and restarts them on request, stops them; `options`: what can be chosen;
//! - `servers`: their command lines, and how each shows that it is ready; `assets`: their binaries;
//! - `credentials`: who may talk to the API server; [`audit`]: its audit log;
//! - `daemon`: one long-running child with its log; `group`: the processes that end with this one;
//! - [`loopback`]: a small HTTP client for readiness checks; `ports`: free ports; `random`: tokens and names;
//! - `error`: what can go wrong.

mod assets;
pub mod audit;
mod credentials;
mod daemon;
mod error;
mod group;
pub mod loopback;
mod options;
mod plane;
mod ports;
mod random;
mod servers;

pub use assets::{Assets, KUBEBUILDER_ASSETS, cache_folder};
pub use credentials::{Identity, write_private};
pub use daemon::Daemon;
pub use error::Error;
pub use group::ProcessGroup;
pub use options::Options;
pub use plane::ControlPlane;

/// The control plane that all tests of this process share, with an audit log; the first caller starts it.
///
/// It is never dropped, as statics are not: it ends with the process. Take a fresh
/// [`client`](ControlPlane::client) in each test: a client belongs to the runtime that it was made on.
pub async fn shared() -> Result<&'static ControlPlane, Error> {
    static SHARED: tokio::sync::OnceCell<ControlPlane> = tokio::sync::OnceCell::const_new();
    SHARED
        .get_or_try_init(|| ControlPlane::options().audit_log().start())
        .await
}
