//! The Backup controller: asks the provider, decides ([`domain::backup`]), and writes the status.
//!
//! - `reconcile`: one reconcile of one Backup: `observe` gathers what the decision depends on, `apply` writes it;
//! - `index`: the backups by instance, also for the Instance controller;
//! - `create`: creates scheduled backups.

mod apply;
mod create;
mod index;
mod observe;
mod reconcile;

use std::{sync::Arc, time::Duration};

use kube::Client;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use create::{create, is_final_refusal, scheduled};
pub use index::BackupIndex;
use reconcile::{Reconciler, namespace};

use super::{account::AccountDirectory, census};
use domain::{backup::BackupLimits, event::Outbox};
use providers::Provider;
use resources::{Backup, BackupPhase, BackupStatus, Instance};
use runtime::{
    ByNamespace, Clock, Metrics, ReconcileQueue, Store,
    backoff::Backoffs,
    events::Events,
    metrics::KindLabels,
    shared_catalogue::SharedCatalogue,
    watch::{Change, Listener},
    work_queue,
};

/// The controller, and what it depends on.
pub struct BackupController<P> {
    /// Client of the API server.
    pub client: Client,
    /// Makes the backups.
    pub provider: Arc<P>,
    /// Maps namespaces to the Accounts that own them.
    pub directory: AccountDirectory,
    /// Accepts recorded events for delivery.
    pub outbox: Arc<dyn Outbox>,
    pub index: BackupIndex,
    /// The instances, as shown by their watch.
    pub instances: Store<Instance>,
    /// The same, by namespace.
    pub instances_of: ByNamespace<Instance>,
    /// The reconcile queue of instances, which also knows the versions that their controller has written.
    pub instance_queue: ReconcileQueue<Instance>,
    /// Tells which regions are simulated.
    pub catalogue: SharedCatalogue,
    /// How many manual backups an account and an instance may have.
    pub limits: BackupLimits,
    /// Source of the time.
    pub clock: Arc<dyn Clock>,
    /// Where reconciles and provider calls are counted.
    pub metrics: Metrics,
    /// Publishes Kubernetes Events.
    pub events: Events,
    /// Maximum number of concurrent Backup reconciles.
    pub concurrency: u16,
    /// Maximum number of concurrent writes to the API server.
    pub write_concurrency: u16,
    /// Timeout of a provider call.
    pub provider_timeout: Duration,
}

impl<P: Provider> BackupController<P> {
    /// Reconciles until shutdown, then finishes the running reconciles. Reconciles every Backup in the store once at startup,
    /// so that no earlier change is missed.
    pub async fn run(self, queue: ReconcileQueue<Backup>, store: Store<Backup>, shutdown: CancellationToken) {
        let (triggers, _) = queue.open(&store);
        for backup in store.state() {
            if let Some(status) = &backup.status {
                self.show_completed(status);
            }
        }
        let reconciler = self.with(queue);
        let controller = &reconciler.controller;
        let kind = KindLabels { kind: "Backup" };
        let depth = controller.metrics.queue_depth.get_or_create_owned(&kind);
        work_queue::run(&reconciler, triggers, controller.concurrency, depth, &shutdown).await;
    }

    /// Shows the time of a completed backup, if it is the last of its region.
    fn show_completed(&self, status: &BackupStatus) {
        if let (Some(BackupPhase::Completed), Some(at), Some(source)) =
            (status.phase, status.completed_at, &status.source)
        {
            let region = census::region_label(&self.catalogue.current(), &source.region);
            self.metrics.backed_up(region, at);
        }
    }

    fn with(self, queue: ReconcileQueue<Backup>) -> Reconciler<P> {
        Reconciler {
            writes: Semaphore::new(usize::from(self.write_concurrency)),
            backoffs: Backoffs::default(),
            beginning: Mutex::default(),
            queue,
            controller: self,
        }
    }

    /// What [`run`](Self::run) runs, for tests that control the time.
    #[cfg(test)]
    pub(super) fn reconciler(
        self,
        queue: ReconcileQueue<Backup>,
    ) -> impl work_queue::Reconcile + Send + 'static {
        self.with(queue)
    }
}

/// The backup that the instance's spec names, and the one that is being restored to it.
fn named(instance: &Instance) -> impl Iterator<Item = &str> {
    let status = instance.status.as_ref();
    let operation = status.and_then(|status| status.operation.as_ref());
    let under_way = operation.and_then(|operation| operation.restore_from.as_deref());
    instance.spec.restore_from.as_deref().into_iter().chain(under_way)
}

/// The instances that name this backup, in the order of their names.
fn targets(instances: &ByNamespace<Instance>, backup: &Backup) -> Vec<Arc<Instance>> {
    let mut all = instances.of(namespace(backup));
    all.retain(|instance| named(instance).any(|name| backup.metadata.name.as_deref() == Some(name)));
    all.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    all
}

/// The listener for the watch of Backups. It queues the instances that are to be restored from a changed backup, and must be
/// called after the index's listener.
pub fn backup_listener(
    instances: ByNamespace<Instance>,
    queue: ReconcileQueue<Instance>,
) -> Box<dyn Listener<Backup>> {
    Box::new(move |change: &Change<Backup>| {
        if let Change::Applied(backup) | Change::Deleted(backup) = change {
            queue.again(targets(&instances, backup));
        }
    })
}

/// The listener for the watch of Instances. It queues the backups that depend on a changed instance.
pub fn instance_listener(index: BackupIndex, queue: ReconcileQueue<Backup>) -> Box<dyn Listener<Instance>> {
    Box::new(move |change: &Change<Instance>| {
        let of = |instance: &Instance| {
            let metadata = &instance.metadata;
            index.of(
                metadata.namespace.as_deref().unwrap_or_default(),
                metadata.name.as_deref().unwrap_or_default(),
            )
        };
        let restored = |instance: &Instance| {
            let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
            let backup = index.get(namespace, instance.spec.restore_from.as_deref()?)?;
            backup.is_deleting().then_some(backup)
        };
        if let Change::Applied(instance) | Change::Deleted(instance) = change {
            queue.again(restored(instance));
        }
        match change {
            Change::Applied(instance) => {
                let mut backups = of(instance);
                backups.retain(|backup| backup.is_unfinished() || instance.is_deleting());
                queue.again(backups);
            }
            Change::Deleted(instance) => queue.again(of(instance)),
            // Some instances may have been deleted.
            Change::Replaced(_) => queue.again(index.all()),
            Change::Unreadable(_) => {}
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn instance(name: &str, wanted: Option<&str>, under_way: Option<&str>) -> Arc<Instance> {
        let operation = under_way.map(|backup| {
            json!({
                "kind": "Rebuild", "startedAt": "2026-11-21T10:00:00Z", "plan": "starter", "image": "debian-13",
                "restoreFrom": backup, "endsIn": "Running",
            })
        });
        let instance = json!({
            "metadata": { "name": name, "namespace": "ns" },
            "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13", "restoreFrom": wanted },
            "status": { "operation": operation },
        });
        Arc::new(serde_json::from_value(instance).unwrap())
    }

    #[test]
    fn instances_that_name_a_backup_or_are_being_restored_from_it_are_its_targets() {
        let mut instances = ByNamespace::default();
        instances.changed(&Change::Replaced(vec![
            instance("two", None, Some("a")),
            instance("one", Some("a"), None),
            instance("three", Some("b"), None),
        ]));
        let backup = json!({ "metadata": { "name": "a", "namespace": "ns" }, "spec": { "instance": "web" } });
        let found = targets(&instances, &serde_json::from_value(backup).unwrap());
        let names: Vec<_> = found
            .iter()
            .map(|it| it.metadata.name.as_deref().unwrap())
            .collect();
        assert_eq!(names, ["one", "two"]);
    }
}
