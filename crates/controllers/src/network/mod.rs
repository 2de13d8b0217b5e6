//! The `PrivateNetwork` controller: asks the provider, decides ([`domain::network`]), and writes the status.
//!
//! - `reconcile`: one reconcile of one network: `observe` gathers what the decision depends on, `apply` writes it;
//! - `addresses`: the addresses of servers in networks, for the Instance controller.

mod addresses;
mod apply;
mod observe;
mod reconcile;

use std::{sync::Arc, time::Duration};

use kube::Client;
use tokio_util::sync::CancellationToken;

pub use addresses::Networks;
use reconcile::Reconciler;

use super::account::AccountDirectory;
use providers::Provider;
use resources::PrivateNetwork;
use runtime::{
    Clock, Metrics, ReconcileQueue, Store, backoff::Backoffs, metrics::KindLabels,
    shared_catalogue::SharedCatalogue, work_queue,
};

/// The controller, and what it depends on.
pub struct NetworkController<P> {
    /// Client of the API server.
    pub client: Client,
    /// Makes the networks.
    pub provider: Arc<P>,
    /// Maps namespaces to the Accounts that own them.
    pub directory: AccountDirectory,
    /// The networks and their instances.
    pub networks: Networks,
    /// Which regions have private networks.
    pub catalogue: SharedCatalogue,
    /// Source of the time.
    pub clock: Arc<dyn Clock>,
    /// Where reconciles and provider calls are counted.
    pub metrics: Metrics,
    /// Maximum number of concurrent reconciles.
    pub concurrency: u16,
    /// Timeout of a provider call.
    pub provider_timeout: Duration,
}

impl<P: Provider> NetworkController<P> {
    /// Reconciles until shutdown, then finishes the running reconciles. Reconciles every network in the store once at startup, so that
    /// no earlier change is missed.
    pub async fn run(
        self,
        queue: ReconcileQueue<PrivateNetwork>,
        store: Store<PrivateNetwork>,
        shutdown: CancellationToken,
    ) {
        let (triggers, _) = queue.open(&store);
        let kind = KindLabels {
            kind: "PrivateNetwork",
        };
        let depth = self.metrics.queue_depth.get_or_create_owned(&kind);
        let concurrency = self.concurrency;
        let reconciler = Reconciler {
            backoffs: Backoffs::default(),
            queue,
            controller: self,
        };
        work_queue::run(&reconciler, triggers, concurrency, depth, &shutdown).await;
    }
}
