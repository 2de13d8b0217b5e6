//! A real control plane for the local run, the tests and the benchmarks: etcd, kube-apiserver and
//! kube-controller-manager on free loopback ports, ready in a few seconds. When the process that started them ends,
//! however it ends, they are stopped and their data is removed.
//!
//! ```no_run
//! # async fn example() -> Result<(), control_plane::Error> {
//! use control_plane::{ControlPlane, Identity};
//!
//! let control_plane = ControlPlane::start().await?;
//! let version = control_plane.client(Identity::Admin).await?.apiserver_version().await;
//! control_plane.stop().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Tests that do not kill servers share one control plane: [`shared`].
//!
//! - `plane`: starts the servers in order, kills and restarts them on request, stops them; `options`: its options;
//! - `servers`: their command lines and readiness checks; `assets`: their binaries;
//! - `credentials`: the users of the API server; [`audit`]: its audit log;
//! - `daemon`: a long-running child process with its log; `group`: processes that end with this one;
//! - [`loopback`]: a small HTTP client for readiness checks; `panics`: those in the servers' logs; `ports`: free ports; `random`: tokens and names;
//! - `error`: the error type.

mod assets;
pub mod audit;
mod credentials;
mod daemon;
mod error;
mod group;
pub mod loopback;
mod options;
mod panics;
mod plane;
mod ports;
mod random;
mod servers;

pub use assets::{
    Assets, KUBEBUILDER_ASSETS, STELLAGE_HELM, STELLAGE_KUBEVIRT, STELLAGE_PROMETHEUS, STELLAGE_PROMTOOL,
    cache_folder, helm, kinds, kubevirt, newest_kubevirt, prometheus, promtool, storage,
};
pub use credentials::{Identity, write_private};
pub use daemon::Daemon;
pub use error::Error;
pub use group::ProcessGroup;
pub use options::Options;
pub use plane::ControlPlane;
pub use ports::free as free_port;

/// The control plane that all tests of this process share, with an audit log; the first caller starts it, installs CRDs, and then
/// starts kube-controller-manager.
///
/// It is a static, so it is never dropped; it ends with the process. Create a new [`client`](ControlPlane::client) in each
/// test, because a client belongs to the runtime that it was created on.
pub async fn shared() -> Result<&'static ControlPlane, Error> {
    static SHARED: tokio::sync::OnceCell<ControlPlane> = tokio::sync::OnceCell::const_new();
    SHARED
        .get_or_try_init(|| {
            ControlPlane::options()
                .audit_log()
                .without_controller_manager()
                .start()
        })
        .await
}
