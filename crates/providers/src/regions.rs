//! The one provider of the process: each region is simulated, or runs in a cluster of its own.

use std::{
    collections::{BTreeMap, HashMap},
    future::ready,
    sync::Arc,
    time::Duration,
};

use futures::future::{BoxFuture, join_all, try_join_all};
use jiff::Timestamp;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use crate::{
    Instances, Provider, Step, UsageSource,
    kubevirt::cluster::{self, Cluster},
    simulator::{SimulatedUsage, Simulator},
};
use domain::{
    catalogue::region::KubeVirt,
    provider::{Addresses, BackupObservation, Deadlines, Observation, ProviderError, Series, Usage, Window},
};
use resources::{Backup, Instance};
use runtime::{Metrics, shared_catalogue::SharedCatalogue};

/// How often the catalogue is looked at, and a cluster that could not be connected is tried again.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// The clusters of the catalogue's regions. They are watched for as long as the process runs, so that a new leader knows at once
/// what is there. Cheap to clone.
#[derive(Clone)]
pub struct Clusters(Arc<Shared>);

struct Shared {
    /// By region code.
    running: RwLock<HashMap<String, Running>>,
    /// Those whose servers they run, in a term as leader.
    instances: Arc<RwLock<Option<Arc<dyn Instances>>>>,
    metrics: Metrics,
    /// When this process began to watch them.
    since: Timestamp,
}

/// A region of the catalogue with its cluster.
struct Running {
    settings: Arc<KubeVirt>,
    /// `None` until its kubeconfig can be used.
    cluster: Option<Arc<Cluster>>,
    /// The kubeconfig that it was connected with.
    kubeconfig: Vec<u8>,
    /// Ends its watches.
    end: CancellationToken,
    /// What the log has said about its kubeconfig.
    complaint: String,
}

/// The cluster of a region is not connected.
struct NotConnected;

/// Where the servers of a region run.
enum Place {
    Simulated,
    In(Arc<Cluster>),
    /// In a cluster that is not connected, or that the catalogue does not name any more.
    OutOfReach,
}

impl Clusters {
    /// No clusters yet: [`follow`](Self::follow) connects them.
    pub fn new(metrics: Metrics, now: Timestamp) -> Self {
        Self(Arc::new(Shared {
            running: RwLock::default(),
            instances: Arc::default(),
            metrics,
            since: now,
        }))
    }

    /// Connects the clusters of the catalogue's regions, and follows its changes, until shutdown.
    pub async fn follow(self, catalogue: SharedCatalogue, shutdown: CancellationToken) {
        loop {
            self.adjust(&catalogue, &shutdown).await;
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(CHECK_EVERY) => {}
            }
            let now = Timestamp::now();
            join_all(self.all().iter().map(|cluster| cluster.look_after(now))).await;
        }
    }

    async fn adjust(&self, catalogue: &SharedCatalogue, shutdown: &CancellationToken) {
        let catalogue = catalogue.current();
        let wanted: BTreeMap<&String, &Arc<KubeVirt>> = catalogue
            .regions
            .iter()
            .filter_map(|region| Some((&region.code, region.kubevirt.as_ref()?)))
            .collect();
        self.0.running.write().retain(|code, running| {
            let stays = wanted
                .get(code)
                .is_some_and(|settings| **settings == running.settings);
            if !stays {
                running.end.cancel();
            }
            if !wanted.contains_key(code) {
                self.0.metrics.forget_region(code);
            }
            stays
        });
        for (code, settings) in wanted {
            // Without the file, it goes on with what it has.
            let kubeconfig = std::fs::read(&settings.kubeconfig).unwrap_or_default();
            let (connected, before) = {
                let running = self.0.running.read();
                let before = running.get(code);
                let cluster = before.filter(|running| running.cluster.is_some());
                if cluster.is_some_and(|it| kubeconfig.is_empty() || it.kubeconfig == kubeconfig) {
                    continue;
                }
                let complaint = before.map(|running| running.complaint.clone());
                let connected = cluster.and_then(|running| running.cluster.clone());
                (connected, complaint.unwrap_or_default())
            };
            let end = shutdown.child_token();
            let context = cluster::Context {
                instances: self.0.instances.clone(),
                metrics: self.0.metrics.clone(),
                shutdown: end.clone(),
                ipam: connected.as_ref().map(|cluster| cluster.ipam()),
                only: None,
            };
            let (cluster, complaint) = match Cluster::connect(code, settings, context).await {
                Ok(cluster) => (Some(Arc::new(cluster)), String::new()),
                Err(error) => (None, error.to_string()),
            };
            if !complaint.is_empty() && complaint != before {
                tracing::error!(
                    region = code,
                    error = complaint,
                    "cannot reach the region's cluster"
                );
            }
            let mut running = self.0.running.write();
            if connected.is_some() {
                let Some(running) = running.get_mut(code) else {
                    continue;
                };
                if cluster.is_none() {
                    // The new kubeconfig is wrong; the old one may still do.
                    running.complaint = complaint;
                    continue;
                }
                tracing::info!(region = code, "the kubeconfig of the region has changed");
                running.end.cancel();
            }
            let next = Running {
                settings: settings.clone(),
                cluster,
                kubeconfig,
                end,
                complaint,
            };
            running.insert(code.clone(), next);
        }
    }

    /// Removes what is left in the regions of an account whose Instances and Backups are all gone. `account` is its namespace.
    pub async fn forget_account(&self, account: &str) -> Result<(), ProviderError> {
        let now = Timestamp::now();
        let clusters = self.all();
        let all = clusters
            .iter()
            .map(|cluster| cluster.forget_account(account, now));
        try_join_all(all).await.map(|_| ())
    }

    fn all(&self) -> Vec<Arc<Cluster>> {
        let running = self.0.running.read();
        running
            .values()
            .filter_map(|running| running.cluster.clone())
            .collect()
    }

    /// The cluster of a region; an error if it is not connected, and `None` if the catalogue names none for it.
    fn get(&self, code: &str) -> Option<Result<Arc<Cluster>, NotConnected>> {
        let running = self.0.running.read();
        running
            .get(code)
            .map(|running| running.cluster.clone().ok_or(NotConnected))
    }
}

/// The provider of all regions.
pub struct Regions {
    simulator: Simulator,
    clusters: Clusters,
}

impl Regions {
    /// The simulator, and the clusters. `known` are the existing instances, whose addresses are taken.
    pub fn new<'a>(
        simulator: Simulator,
        clusters: Clusters,
        known: impl IntoIterator<Item = &'a Instance>,
    ) -> Self {
        let regions = Self { simulator, clusters };
        for instance in known {
            if let Place::In(cluster) = regions.of(instance) {
                cluster.adopt(instance);
            }
        }
        regions
    }

    fn of(&self, instance: &Instance) -> Place {
        match self.clusters.get(&instance.spec.region) {
            Some(Ok(cluster)) => Place::In(cluster),
            Some(Err(NotConnected)) => Place::OutOfReach,
            None if cluster::has_real_server(instance) => Place::OutOfReach,
            None => Place::Simulated,
        }
    }

    fn unreachable(&self, region: &str) -> ProviderError {
        ProviderError::Unreachable {
            region: region.to_owned(),
            since: self.clusters.0.since,
        }
    }
}

impl Provider for Regions {
    fn name(&self, region: &str) -> &'static str {
        match self.clusters.get(region) {
            Some(_) => "kubevirt",
            None => self.simulator.name(region),
        }
    }

    fn deadlines(&self, region: &str) -> Deadlines {
        let running = self.clusters.0.running.read();
        match running.get(region) {
            Some(running) => running.settings.deadlines,
            None => self.simulator.deadlines(region),
        }
    }

    async fn run(&self, instances: Arc<dyn Instances>, shutdown: CancellationToken) {
        *self.clusters.0.instances.write() = Some(instances);
        shutdown.cancelled().await;
        *self.clusters.0.instances.write() = None;
    }

    fn reserve(&self, instance: &Instance) -> Addresses {
        match self.of(instance) {
            Place::Simulated => self.simulator.reserve(instance),
            Place::In(cluster) => cluster.reserve(instance).addresses,
            Place::OutOfReach => Addresses::default(),
        }
    }

    fn release(&self, instance: &Instance) {
        match self.of(instance) {
            Place::Simulated => self.simulator.release(instance),
            Place::In(cluster) => cluster.release(instance),
            Place::OutOfReach => {}
        }
    }

    async fn step(&self, step: Step<'_>) -> Result<Observation, ProviderError> {
        match self.of(step.instance) {
            Place::Simulated => self.simulator.step(step).await,
            Place::In(cluster) => cluster.step(step).await,
            Place::OutOfReach => Err(self.unreachable(&step.instance.spec.region)),
        }
    }

    async fn create_backup(
        &self,
        backup: &Backup,
        instance: &Instance,
        now: Timestamp,
    ) -> Result<BackupObservation, ProviderError> {
        match self.of(instance) {
            Place::Simulated => self.simulator.create_backup(backup, instance, now).await,
            Place::In(_) => Ok(cluster::no_backups()),
            Place::OutOfReach => Err(self.unreachable(&instance.spec.region)),
        }
    }

    async fn backup_state(
        &self,
        backup: &Backup,
        instance: &Instance,
        now: Timestamp,
    ) -> Result<BackupObservation, ProviderError> {
        match self.of(instance) {
            Place::Simulated => self.simulator.backup_state(backup, instance, now).await,
            Place::In(_) => Ok(cluster::no_backups()),
            Place::OutOfReach => Err(self.unreachable(&instance.spec.region)),
        }
    }

    /// Regions in clusters have no backups.
    async fn delete_backup(&self, backup: &Backup) -> Result<(), ProviderError> {
        self.simulator.delete_backup(backup).await
    }
}

/// The usage of the servers of all regions. That of real servers is not known yet.
pub struct RegionalUsage {
    /// Says which regions are simulated.
    pub catalogue: SharedCatalogue,
    /// The usage of simulated servers.
    pub simulated: SimulatedUsage,
}

impl RegionalUsage {
    fn is_real(&self, instance: &Instance) -> bool {
        let catalogue = self.catalogue.current();
        catalogue.kubevirt(&instance.spec.region).is_some() || cluster::has_real_server(instance)
    }
}

impl UsageSource for RegionalUsage {
    fn usage<'a>(
        &'a self,
        instance: &'a Instance,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Usage, ProviderError>> {
        if self.is_real(instance) {
            return Box::pin(ready(Ok(Usage::default())));
        }
        self.simulated.usage(instance, now)
    }

    fn series<'a>(
        &'a self,
        instance: &'a Instance,
        window: Window,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Option<Series>, ProviderError>> {
        if self.is_real(instance) {
            return Box::pin(ready(Ok(None)));
        }
        self.simulated.series(instance, window, now)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use domain::catalogue::Catalogue;
    use runtime::metrics::{Format, RegionLabels};

    #[tokio::test]
    async fn a_region_that_leaves_the_catalogue_leaves_the_metrics() {
        let real = "{code: de-fra-1, kubevirt: {kubeconfig: /nowhere, installation: tests, storageClass: a, network: {profile: pod}, images: {debian-13: {pvc: a/b, user: debian}}}}";
        let catalogue = |regions: &str| {
            let text = format!("regions: [{regions}]");
            SharedCatalogue::new(Catalogue::parse(&text, Path::new("test")).unwrap())
        };
        let (metrics, shutdown) = (Metrics::new(), CancellationToken::new());
        let clusters = Clusters::new(metrics.clone(), Timestamp::UNIX_EPOCH);
        clusters
            .adjust(&catalogue(&format!("nl-ams-1, {real}")), &shutdown)
            .await;
        let region = "de-fra-1".to_owned();
        metrics
            .region_up
            .get_or_create_owned(&RegionLabels { region })
            .set(0);
        let is_shown = || {
            let page = metrics.render(Format::OpenMetrics).unwrap();
            page.contains("stellage_region_up{region=\"de-fra-1\"}")
        };
        assert!(is_shown());
        clusters.adjust(&catalogue("nl-ams-1"), &shutdown).await;
        assert!(!is_shown());
    }
}
