//! The Instance controller: asks the provider for one step, decides ([`domain::instance`]), and writes the status.
//!
//! - `reconcile`: one reconcile of one instance: `observe` gathers what the decision depends on, `apply` writes it;
//! - `room`: whether the account's quotas of vCPUs, memory and disk have room;
//! - `user_data`: reads the user data for a server that is installed;
//! - `trace`: the trace that it belongs to;
//! - `unreadable`: the condition of objects that do not match their schema.

mod apply;
mod observe;
mod reconcile;
mod room;
mod trace;
mod unreadable;
mod user_data;

use std::{sync::Arc, time::Duration};

use kube::Client;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use reconcile::Reconciler;
use room::Room;

use super::{account::AccountDirectory, backup::BackupIndex, invoice::InvoiceSettings, ledger::Ledger};
use crate::{monitoring::Monitor, network::Networks};
use domain::event::Outbox;
use providers::{Instances, Provider};
use resources::{Instance, origin};
use runtime::{
    ByNamespace, Clock, Metrics, ReconcileQueue, Store, backoff::Backoffs, events::Events,
    metrics::KindLabels, shared_catalogue::SharedCatalogue, work_queue, write_pressure::WritePressure,
};

/// The controller, and what it depends on.
pub struct InstanceController<P> {
    /// Client of the API server.
    pub client: Client,
    /// Runs the servers.
    pub provider: Arc<P>,
    /// Knows which Account a namespace belongs to.
    pub directory: AccountDirectory,
    pub instances: ByNamespace<Instance>,
    /// The backups of the instances.
    pub backups: BackupIndex,
    /// The private networks of the instances.
    pub networks: Networks,
    /// Turns samples of server usage into alerts.
    pub monitor: Arc<Monitor>,
    /// Tells whether the end of an instance has been recorded for billing.
    pub ledger: Ledger,
    /// Which servers are billed.
    pub invoices: InvoiceSettings,
    /// Accepts recorded events for delivery.
    pub outbox: Arc<dyn Outbox>,
    /// Available regions and images.
    pub catalogue: SharedCatalogue,
    /// Source of the time.
    pub clock: Arc<dyn Clock>,
    /// Where reconciles and provider calls are counted.
    pub metrics: Metrics,
    /// Publishes Kubernetes Events.
    pub events: Events,
    /// How much there is to write.
    pub write_pressure: WritePressure,
    /// Maximum number of concurrent instance reconciles.
    pub concurrency: u16,
    /// Maximum number of concurrent writes to the API server.
    pub write_concurrency: u16,
    /// Timeout of a provider call.
    pub provider_timeout: Duration,
}

/// The instances, for the provider.
struct Known {
    queue: ReconcileQueue<Instance>,
    store: Store<Instance>,
}

impl Instances for Known {
    fn changed(&self, namespace: &str, name: &str) {
        self.queue.again(self.store.named(namespace, name));
    }

    fn all(&self) -> Vec<Arc<Instance>> {
        self.store.state()
    }

    fn has(&self, namespace: &str, name: &str, uid: &str) -> bool {
        let instance = self.store.named(namespace, name);
        instance.is_some_and(|instance| origin::uid(&instance.metadata) == uid)
    }
}

impl<P: Provider> InstanceController<P> {
    /// Reconciles until shutdown, then finishes the running reconciles. Reconciles every instance in the store once at
    /// startup, so that no earlier change is missed.
    pub async fn run(
        self,
        queue: ReconcileQueue<Instance>,
        store: Store<Instance>,
        shutdown: CancellationToken,
    ) {
        let (triggers, unreadable) = queue.open(&store);
        let instances = Arc::new(Known {
            queue: queue.clone(),
            store: store.clone(),
        });
        let reports = tokio::spawn(unreadable::report(
            self.client.clone(),
            unreadable,
            shutdown.clone(),
        ));
        let reconciler = self.with(queue);
        let controller = &reconciler.controller;
        let kind = KindLabels { kind: "Instance" };
        let depth = controller.metrics.queue_depth.get_or_create_owned(&kind);
        tokio::join!(
            // First, so that it knows the instances before any is reconciled.
            controller.provider.run(instances, shutdown.clone()),
            work_queue::run(&reconciler, triggers, controller.concurrency, depth, &shutdown),
        );
        reports.abort();
    }

    fn with(self, queue: ReconcileQueue<Instance>) -> Reconciler<P> {
        Reconciler {
            writes: Semaphore::new(usize::from(self.write_concurrency)),
            backoffs: Backoffs::default(),
            lost_regions: parking_lot::Mutex::default(),
            room: Room::new(self.instances.clone(), queue.clone()),
            queue,
            controller: self,
        }
    }

    /// What [`run`](Self::run) runs, for tests that control the time.
    #[cfg(test)]
    pub(super) fn reconciler(
        self,
        queue: ReconcileQueue<Instance>,
    ) -> impl work_queue::Reconcile + Send + 'static {
        self.with(queue)
    }
}
