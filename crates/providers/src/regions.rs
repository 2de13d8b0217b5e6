//! The one provider of the process: each region is simulated, or runs in a cluster of its own.

use std::{
    collections::{BTreeMap, HashMap},
    future::ready,
    sync::Arc,
    time::Duration,
};

use futures::future::{BoxFuture, join_all, try_join_all};
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tokio_util::sync::CancellationToken;

use crate::{
    Instances, Provider, Step, UsageSource,
    ipam::{self, Ipam},
    kubevirt::{
        cluster::{self, Cluster, ConnectError},
        usage::RegionUsage,
    },
    simulator::{SimulatedUsage, Simulator},
};
use domain::{
    catalogue::region::{KubeVirt, Namespaces},
    provider::{
        Addresses, BackupObservation, Deadlines, Observation, PROVIDER, Progress, ProviderError, Series,
        Usage, Window,
    },
};
use resources::{Backup, Instance, PrivateNetwork, origin};
use runtime::{Metrics, metrics::RegionLabels, shared_catalogue::SharedCatalogue};

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
    /// The servers that are gone, in this term, by the UID of their Instance.
    gone: Arc<Mutex<HashMap<String, cluster::Gone>>>,
    /// Says which regions are simulated.
    catalogue: SharedCatalogue,
    metrics: Metrics,
    /// When this process began to watch them.
    since: Timestamp,
}

/// A region of the catalogue with its cluster.
struct Running {
    settings: Arc<KubeVirt>,
    /// `None` until its kubeconfig can be used.
    cluster: Option<Arc<Cluster>>,
    /// The addresses of its servers.
    ipam: Arc<Ipam>,
    /// The kubeconfig that it was connected with.
    kubeconfig: Vec<u8>,
    /// Ends its watches.
    end: CancellationToken,
    /// What the log has said about its kubeconfig.
    complaint: String,
}

/// A term as leader: while it lasts, the clusters run the servers of the Instances.
struct Term<'a>(&'a Clusters);

impl Drop for Term<'_> {
    fn drop(&mut self) {
        self.0.set_instances(None);
    }
}

/// Where the servers of a region run.
enum Place {
    Simulated,
    In(Arc<Cluster>),
    /// In a cluster that is not connected, or that the catalogue does not name any more.
    OutOfReach,
}

impl Clusters {
    /// No clusters yet: [`follow`](Self::follow) connects those of the catalogue.
    pub fn new(catalogue: SharedCatalogue, metrics: Metrics, now: Timestamp) -> Self {
        Self(Arc::new(Shared {
            running: RwLock::default(),
            instances: Arc::default(),
            gone: Arc::default(),
            catalogue,
            metrics,
            since: now,
        }))
    }

    /// Connects the clusters of the catalogue's regions, and follows its changes, until shutdown.
    pub async fn follow(self, shutdown: CancellationToken) {
        loop {
            self.adjust(&shutdown).await;
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(CHECK_EVERY) => {}
            }
            let now = Timestamp::now();
            join_all(self.all().iter().map(|cluster| cluster.look_after(now))).await;
        }
    }

    async fn adjust(&self, shutdown: &CancellationToken) {
        let catalogue = self.0.catalogue.current();
        let wanted: BTreeMap<&str, &Arc<KubeVirt>> = catalogue.real_regions().collect();
        self.0.running.write().retain(|code, running| {
            let stays = wanted.contains_key(code.as_str());
            if !stays {
                running.end.cancel();
                self.0.metrics.forget_region(code);
            }
            stays
        });
        for (code, settings) in wanted {
            // Without the file, it goes on with what it has.
            let kubeconfig = std::fs::read(&settings.kubeconfig).unwrap_or_default();
            let (is_connected, has_these) = {
                let running = self.0.running.read();
                let before = running.get(code).filter(|before| before.cluster.is_some());
                let before = before.filter(|before| before.settings == *settings);
                let is_same = |it: &Running| kubeconfig.is_empty() || it.kubeconfig == kubeconfig;
                (before.is_some(), before.is_some_and(is_same))
            };
            if has_these {
                continue;
            }
            // Until that is known, the cluster with the settings before goes on.
            let config = cluster::config(&settings.kubeconfig).await;
            if let (true, Err(error)) = (is_connected, &config) {
                // The new kubeconfig is wrong; the old one may still do.
                self.complain(code, &error.to_string());
                continue;
            }
            self.exchange(code, settings, kubeconfig, shutdown, |context| {
                Cluster::connect(code, settings, config?, context)
            });
        }
    }

    /// Puts a cluster with these settings in the place of the one before, if there was one. Its addresses stay.
    fn exchange(
        &self,
        code: &str,
        settings: &Arc<KubeVirt>,
        kubeconfig: Vec<u8>,
        shutdown: &CancellationToken,
        connect: impl FnOnce(cluster::Context) -> Result<Cluster, ConnectError>,
    ) {
        let mut running = self.0.running.write();
        let before = running.remove(code);
        if let Some(before) = &before {
            before.end.cancel();
        }
        let (ipam, said) = if let Some(before) = before {
            (before.ipam, before.complaint)
        } else {
            let ipam = Ipam::new(code, Vec::new(), None).with_metrics(&self.0.metrics);
            (Arc::new(ipam), String::new())
        };
        let network = &settings.network;
        ipam.replace(network.ipv4.clone(), network.ipv6.clone());
        // It may have been away, or have had fewer prefixes, when the term began.
        for instance in self.known() {
            adopt(code, &ipam, &instance);
        }
        let end = shutdown.child_token();
        let context = cluster::Context {
            instances: self.0.instances.clone(),
            ipam: ipam.clone(),
            gone: self.0.gone.clone(),
            metrics: self.0.metrics.clone(),
            shutdown: end.clone(),
            only: None,
        };
        let (cluster, complaint) = match connect(context) {
            Ok(cluster) => (Some(Arc::new(cluster)), String::new()),
            Err(error) => (None, error.to_string()),
        };
        if !complaint.is_empty() && complaint != said {
            tracing::error!(
                region = code,
                error = complaint,
                "cannot reach the region's cluster"
            );
        }
        if cluster.is_none() {
            let region = code.to_owned();
            let up = &self.0.metrics.region_up;
            up.get_or_create_owned(&RegionLabels { region }).set(0);
        }
        let now = Running {
            settings: settings.clone(),
            cluster,
            ipam,
            kubeconfig,
            end,
            complaint,
        };
        running.insert(code.to_owned(), now);
    }

    /// Says once what is wrong with a new kubeconfig.
    fn complain(&self, code: &str, error: &str) {
        if let Some(running) = self.0.running.write().get_mut(code)
            && running.complaint != error
        {
            tracing::error!(
                region = code,
                error,
                "cannot use the new kubeconfig of the region"
            );
            error.clone_into(&mut running.complaint);
        }
    }

    /// Begins a term as leader.
    fn lead(&self, instances: Arc<dyn Instances>) -> Term<'_> {
        self.set_instances(Some(instances));
        Term(self)
    }

    /// Takes anew which addresses are taken: those of the servers, and in a term as leader those that its Instances have been given.
    fn set_instances(&self, instances: Option<Arc<dyn Instances>>) {
        // So that no cluster is connected meanwhile.
        let running = self.0.running.read();
        *self.0.instances.write() = instances;
        self.0.gone.lock().clear();
        let known = self.known();
        for (code, running) in &*running {
            running.ipam.forget();
            for instance in &known {
                adopt(code, &running.ipam, instance);
            }
            if let Some(cluster) = &running.cluster {
                cluster.adopt_all();
            }
        }
    }

    /// The Instances of a term as leader, the oldest first.
    fn known(&self) -> Vec<Arc<Instance>> {
        let all = self.0.instances.read().as_ref().map(|instances| instances.all());
        ipam::oldest_first(all.unwrap_or_default())
    }

    /// Removes what is left in the regions of an account whose Instances and Backups are all gone. `namespace` is the account's own,
    /// and `account` its public id.
    pub async fn forget_account(&self, namespace: &str, account: &str) -> Result<(), ProviderError> {
        let now = Timestamp::now();
        let catalogue = self.0.catalogue.current();
        let managed = catalogue
            .real_regions()
            .filter(|(_, settings)| settings.namespaces == Namespaces::Managed);
        let all = managed.map(async |(region, _)| match self.place(region) {
            Place::In(cluster) => cluster.forget_account(namespace, account, now).await,
            Place::OutOfReach | Place::Simulated => Err(self.unreachable(region)),
        });
        try_join_all(all).await.map(drop)
    }

    fn unreachable(&self, region: &str) -> ProviderError {
        ProviderError::Unreachable {
            region: region.to_owned(),
            since: self.0.since,
        }
    }

    fn all(&self) -> Vec<Arc<Cluster>> {
        let running = self.0.running.read();
        running
            .values()
            .filter_map(|running| running.cluster.clone())
            .collect()
    }

    /// Where the servers of a region run, by the catalogue: its cluster may not be connected yet.
    fn place(&self, code: &str) -> Place {
        let cluster = self
            .0
            .running
            .read()
            .get(code)
            .map(|running| running.cluster.clone());
        match cluster {
            Some(Some(cluster)) => Place::In(cluster),
            Some(None) => Place::OutOfReach,
            None if self.0.catalogue.current().kubevirt(code).is_some() => Place::OutOfReach,
            None => Place::Simulated,
        }
    }
}

/// Marks the addresses in the status of an Instance as taken, if it is in this region.
fn adopt(region: &str, ipam: &Ipam, instance: &Instance) {
    if instance.spec.region == region {
        let uid = origin::uid(&instance.metadata);
        ipam.adopt(uid, &ipam::in_status(instance), None);
    }
}

/// The provider of all regions.
pub struct Regions {
    simulator: Simulator,
    clusters: Clusters,
}

impl Regions {
    /// The simulator, and the clusters.
    pub const fn new(simulator: Simulator, clusters: Clusters) -> Self {
        Self { simulator, clusters }
    }

    fn of(&self, instance: &Instance) -> Place {
        match self.clusters.place(&instance.spec.region) {
            Place::Simulated if cluster::has_real_server(instance) => Place::OutOfReach,
            place => place,
        }
    }

    /// Nothing tells a network that was simulated from one that is in a cluster, so one whose region is not listed is not forgotten.
    fn of_network(&self, network: &PrivateNetwork) -> Place {
        let region = &network.spec.region;
        match self.clusters.place(region) {
            Place::Simulated if self.clusters.0.catalogue.current().offer(region).is_none() => {
                Place::OutOfReach
            }
            place => place,
        }
    }
}

impl Provider for Regions {
    fn name(&self, region: &str) -> &'static str {
        match self.clusters.place(region) {
            Place::In(_) | Place::OutOfReach => "kubevirt",
            Place::Simulated => self.simulator.name(region),
        }
    }

    fn deadlines(&self, region: &str) -> Deadlines {
        match self.clusters.0.catalogue.current().kubevirt(region) {
            Some(settings) => settings.deadlines,
            None => self.simulator.deadlines(region),
        }
    }

    async fn run(&self, instances: Arc<dyn Instances>, shutdown: CancellationToken) {
        // Ends also if this is called off.
        let _term = self.clusters.lead(instances);
        shutdown.cancelled().await;
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
            Place::OutOfReach => Err(self.clusters.unreachable(&step.instance.spec.region)),
        }
    }

    async fn make_network(&self, network: &PrivateNetwork, account: &str) -> Result<Progress, ProviderError> {
        match self.of_network(network) {
            Place::Simulated => self.simulator.make_network(network, account).await,
            Place::In(cluster) => cluster.make_network(network, account, Timestamp::now()).await,
            Place::OutOfReach => Err(self.clusters.unreachable(&network.spec.region)),
        }
    }

    async fn remove_network(&self, network: &PrivateNetwork) -> Result<Progress, ProviderError> {
        match self.of_network(network) {
            Place::Simulated => self.simulator.remove_network(network).await,
            Place::In(cluster) => cluster.remove_network(network, Timestamp::now()).await,
            Place::OutOfReach => Err(self.clusters.unreachable(&network.spec.region)),
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
            Place::In(cluster) => cluster.backup(backup, instance, now).await,
            Place::OutOfReach => Err(self.clusters.unreachable(&instance.spec.region)),
        }
    }

    async fn delete_backup(&self, backup: &Backup) -> Result<(), ProviderError> {
        let Some(status) = &backup.status else {
            return Ok(());
        };
        // Without one, it has never begun.
        let Some(source) = &status.source else {
            return Ok(());
        };
        let is_real = status.provider_state.contains_key(PROVIDER);
        match self.clusters.place(&source.region) {
            Place::Simulated if !is_real => self.simulator.delete_backup(backup).await,
            Place::In(cluster) => cluster.delete_backup(backup, Timestamp::now()).await,
            Place::Simulated | Place::OutOfReach => Err(self.clusters.unreachable(&source.region)),
        }
    }
}

/// The usage of the servers of all regions.
pub struct RegionalUsage {
    catalogue: SharedCatalogue,
    simulated: SimulatedUsage,
    /// By code, those of the regions with real servers that somebody has asked about.
    real: Mutex<HashMap<String, Arc<RegionUsage>>>,
}

/// What knows the usage of a server.
enum UsageOf {
    Simulated,
    Real(Arc<RegionUsage>),
    /// It is in a cluster that the catalogue does not name any more.
    Unknown,
}

impl RegionalUsage {
    /// The usage of simulated servers, and of those in the clusters of the catalogue.
    pub fn new(catalogue: SharedCatalogue, simulated: SimulatedUsage) -> Self {
        Self {
            catalogue,
            simulated,
            real: Mutex::default(),
        }
    }

    fn of(&self, instance: &Instance) -> UsageOf {
        let code = instance.spec.region.as_str();
        let catalogue = self.catalogue.current();
        let Some(settings) = catalogue.kubevirt(code) else {
            return if cluster::has_real_server(instance) {
                UsageOf::Unknown
            } else {
                UsageOf::Simulated
            };
        };
        let mut real = self.real.lock();
        let known = real
            .get(code)
            .filter(|region| region.settings() == settings)
            .cloned();
        UsageOf::Real(known.unwrap_or_else(|| {
            let region = RegionUsage::new(code, settings);
            real.insert(code.to_owned(), region.clone());
            region
        }))
    }
}

impl UsageSource for RegionalUsage {
    fn usage<'a>(
        &'a self,
        instance: &'a Instance,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Usage, ProviderError>> {
        match self.of(instance) {
            UsageOf::Simulated => self.simulated.usage(instance, now),
            UsageOf::Real(region) => Box::pin(region.usage(instance, now)),
            UsageOf::Unknown => Box::pin(ready(Ok(Usage::default()))),
        }
    }

    fn series<'a>(
        &'a self,
        instance: &'a Instance,
        window: Window,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Option<Series>, ProviderError>> {
        match self.of(instance) {
            UsageOf::Simulated => self.simulated.series(instance, window, now),
            UsageOf::Real(region) => Box::pin(region.series(instance, window, now)),
            UsageOf::Unknown => Box::pin(ready(Ok(None))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use http::Method;
    use serde_json::{Value, json};
    use tokio::sync::watch;

    use super::*;
    use crate::{
        kubevirt::{
            names::{INSTANCE_UID, IPV4},
            testing::{at, bridge, instance as an_instance, merge, region_with_addresses, vm},
        },
        simulator::{Faults, Pools},
    };
    use domain::{catalogue::Catalogue, provider::Timings};
    use runtime::{Health, metrics::Format, testing::answered_by, watch::Watches};

    const REGION: &str = "de-fra-1";

    /// A catalogue with the region, whose cluster cannot be connected.
    const CATALOGUE: &str = "
regions:
  - fr-par-1
  - code: de-fra-1
    kubevirt:
      kubeconfig: /does/not/exist
      installation: prod-1
      storageClass: ceph-block
      images: {debian-13: {pvc: images/debian-13, user: debian}}
      network: {profile: pod}
";

    /// The Instances, and the names of those that may have changed.
    #[derive(Default)]
    struct Known {
        all: Vec<Arc<Instance>>,
        changed: Mutex<Vec<String>>,
    }

    impl Instances for Known {
        fn changed(&self, _: &str, name: &str) {
            self.changed.lock().push(name.to_owned());
        }

        fn all(&self) -> Vec<Arc<Instance>> {
            self.all.clone()
        }

        fn has(&self, _: &str, _: &str, _: &str) -> bool {
            true
        }
    }

    fn known(instances: &[&Instance]) -> Arc<Known> {
        let all = instances.iter().map(|instance| Arc::new((*instance).clone()));
        Arc::new(Known {
            all: all.collect(),
            changed: Mutex::default(),
        })
    }

    /// An Instance with this UID, and the last number of the address in its status.
    fn instance(uid: &str, address: Option<u8>) -> Instance {
        let address = address.map(|last| format!("203.0.113.{last}"));
        let mut instance = an_instance(&json!({ "state": "running", "ipAddress": address }));
        instance.metadata.uid = Some(uid.to_owned());
        instance.metadata.name = Some(uid.to_owned());
        instance
    }

    /// The server of an Instance, with the last number of its address.
    fn server(uid: &str, address: u8) -> Value {
        let instance = instance(uid, None);
        let mut server = vm(&instance, "Halted", &json!({}));
        let more = json!({ "metadata": {
            "creationTimestamp": at(0), "uid": format!("vm-{uid}"), "labels": { INSTANCE_UID: uid },
            "annotations": { IPV4: format!("203.0.113.{address}") },
        } });
        merge(&mut server, &more);
        server
    }

    /// Addresses 2 to 6.
    fn settings() -> KubeVirt {
        let mut settings = region_with_addresses(bridge());
        settings.network.ipv4[0].prefix = "203.0.113.0/29".parse().unwrap();
        settings
    }

    /// Clusters of which a test decides what they show.
    struct Case {
        clusters: Clusters,
        /// The paths that have been deleted.
        deleted: Arc<Mutex<Vec<String>>>,
        /// Whether every watch ends, so that what it watches is listed again.
        expired: watch::Sender<bool>,
    }

    impl Case {
        fn new() -> Self {
            let catalogue = Catalogue::parse(CATALOGUE, Path::new("test")).unwrap();
            let catalogue = SharedCatalogue::new(catalogue);
            Self {
                clusters: Clusters::new(catalogue, Metrics::new(), at(0)),
                deleted: Arc::default(),
                expired: watch::channel(false).0,
            }
        }

        /// Connects the region to a cluster with these servers, which shows them once the returned sender says so.
        fn connect(&self, settings: &KubeVirt, servers: Vec<Value>) -> watch::Sender<bool> {
            let (sender, open) = watch::channel(false);
            let (deleted, expired) = (self.deleted.clone(), self.expired.subscribe());
            let client = answered_by(move |method, path, _| {
                let (mut open, servers) = (open.clone(), servers.clone());
                let (deleted, mut expired) = (deleted.clone(), expired.clone());
                async move {
                    if method == Method::DELETE {
                        deleted.lock().push(path);
                        return (
                            200,
                            json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }),
                        );
                    }
                    if path.contains("watch=true") {
                        let _ = expired.wait_for(|has_expired| *has_expired).await;
                        let status =
                            json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410 });
                        return (200, json!({ "type": "ERROR", "object": status }));
                    }
                    let _ = open.wait_for(|is_open| *is_open).await;
                    let items = if path.contains("/virtualmachines?") {
                        servers
                    } else {
                        Vec::new()
                    };
                    let list = json!({
                        "apiVersion": "kubevirt.io/v1", "kind": "List",
                        "metadata": { "resourceVersion": "9" }, "items": items,
                    });
                    (200, list)
                }
            });
            let settings = Arc::new(settings.clone());
            let shutdown = CancellationToken::new();
            self.clusters
                .exchange(REGION, &settings, Vec::new(), &shutdown, |context| {
                    let watches = Watches {
                        streams: client.clone(),
                        client,
                        health: Health::default(),
                        metrics: Metrics::new(),
                        shutdown: context.shutdown.clone(),
                    };
                    Ok(Cluster::new(REGION, &settings, watches, context))
                });
            sender
        }

        fn cluster(&self) -> Arc<Cluster> {
            let Place::In(cluster) = self.clusters.place(REGION) else {
                panic!("it is not connected")
            };
            cluster
        }

        /// The last number of the address that an Instance is given.
        fn reserve(&self, instance: &Instance) -> Option<u8> {
            let address = self.cluster().reserve(instance).addresses.ipv4?;
            let address: std::net::Ipv4Addr = address.parse().unwrap();
            Some(address.octets()[3])
        }

        /// The same, once the cluster's servers are known.
        async fn given(&self, instance: &Instance) -> u8 {
            let given = async {
                loop {
                    if let Some(given) = self.reserve(instance) {
                        return given;
                    }
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), given)
                .await
                .unwrap()
        }
    }

    #[tokio::test]
    async fn a_region_whose_settings_change_gives_no_address_twice() {
        let case = Case::new();
        let mut settings = settings();
        let _term = case.clusters.lead(known(&[]));
        let servers = vec![server("a", 3), server("b", 4)];
        let open = case.connect(&settings, servers.clone());
        assert_eq!(case.reserve(&instance("new", None)), None, "nothing is known yet");
        open.send_replace(true);
        let given = case.given(&instance("new", None)).await;
        assert!([2, 5, 6].contains(&given));

        settings.node_selector.clear();
        let open = case.connect(&settings, servers);
        assert_eq!(
            case.reserve(&instance("newer", None)),
            None,
            "nothing is known yet"
        );
        assert_eq!(
            case.reserve(&instance("a", Some(3))),
            Some(3),
            "what is known stays"
        );
        open.send_replace(true);
        assert_eq!(case.given(&instance("new", None)).await, given);
        let mut all = vec![given, 3, 4];
        for uid in ["newer", "newest"] {
            all.push(case.given(&instance(uid, None)).await);
        }
        all.sort_unstable();
        assert_eq!(all, [2, 3, 4, 5, 6]);
        let none = case.cluster().reserve(&instance("last", None));
        assert_eq!(none.trouble.unwrap().reason, "NoFreeAddress");
    }

    #[tokio::test]
    async fn a_server_that_was_given_the_address_of_an_older_one_is_told_and_not_made() {
        let case = Case::new();
        let newer = instance("newer", Some(3));
        let _term = case.clusters.lead(known(&[&newer]));
        case.connect(&settings(), vec![server("older", 3)])
            .send_replace(true);
        case.given(&instance("probe", None)).await;
        let told = case.cluster().reserve(&newer);
        assert_eq!(told.trouble.unwrap().reason, "AddressTaken");
        assert_eq!(case.cluster().reserve(&instance("older", Some(3))).trouble, None);
    }

    #[tokio::test]
    async fn what_instances_have_is_taken_also_in_a_region_that_is_connected_after_the_term_began() {
        let case = Case::new();
        let instances: Vec<_> = (2..=5)
            .map(|last| instance(&format!("uid-{last}"), Some(last)))
            .collect();
        let _term = case.clusters.lead(known(&instances.iter().collect::<Vec<_>>()));
        case.connect(&settings(), Vec::new()).send_replace(true);
        assert_eq!(case.given(&instance("new", None)).await, 6);
    }

    #[tokio::test]
    async fn a_new_leader_takes_for_taken_what_instances_and_servers_have_and_nothing_else() {
        let case = Case::new();
        let before = [instance("uid-2", Some(2)), instance("uid-5", Some(5))];
        case.connect(&settings(), vec![server("uid-3", 3), server("uid-4", 4)])
            .send_replace(true);
        let term = case.clusters.lead(known(&[&before[0], &before[1]]));
        assert_eq!(case.given(&instance("given", None)).await, 6);
        drop(term);
        // While another one led, three of the five servers went.
        let _term = case.clusters.lead(known(&[]));
        let mut given = Vec::new();
        for i in 0..3 {
            given.push(case.given(&instance(&format!("new-{i}"), None)).await);
        }
        given.sort_unstable();
        assert_eq!(given, [2, 5, 6]);
    }

    #[tokio::test]
    async fn only_the_leader_removes_what_comes_late_and_not_a_server_that_was_restored() {
        let case = Case::new();
        let gone = instance("gone", Some(3));
        case.connect(&settings(), vec![server("gone", 3)])
            .send_replace(true);
        let term = case.clusters.lead(known(&[]));
        case.given(&instance("probe", None)).await;
        let is_removed = async || {
            case.cluster().look_after(at(0)).await;
            !std::mem::take(&mut *case.deleted.lock()).is_empty()
        };
        assert!(!is_removed().await);
        case.cluster().release(&gone);
        assert!(is_removed().await);
        let mut lagging = gone.clone();
        lagging.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
        case.reserve(&lagging);
        assert!(is_removed().await, "a watch that lags still shows its end");
        case.reserve(&gone);
        assert!(!is_removed().await, "the instance is back");
        case.cluster().release(&gone);
        drop(term);
        assert!(!is_removed().await, "another replica leads");
        let _term = case.clusters.lead(known(&[]));
        assert!(!is_removed().await, "another replica may have made it");
    }

    #[tokio::test]
    async fn all_instances_of_a_region_are_looked_at_once_it_is_back_or_listed_again_even_if_their_servers_are_gone()
     {
        let case = Case::new();
        let mut elsewhere = instance("elsewhere", Some(4));
        elsewhere.spec.region = "nl-ams-1".to_owned();
        let known = known(&[&instance("gone", Some(3)), &elsewhere]);
        let _term = case.clusters.lead(known.clone());
        let open = case.connect(&settings(), Vec::new());
        case.cluster().look_after(at(0)).await;
        assert!(known.changed.lock().is_empty(), "it is not back");
        open.send_replace(true);
        case.given(&instance("probe", None)).await;
        let looked_at = async || {
            let changed = async {
                while known.changed.lock().is_empty() {
                    case.cluster().look_after(at(0)).await;
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), changed)
                .await
                .unwrap();
            case.cluster().look_after(at(0)).await;
            std::mem::take(&mut *known.changed.lock())
        };
        assert_eq!(looked_at().await, ["gone"]);
        case.expired.send_replace(true);
        assert_eq!(looked_at().await[0], "gone");
    }

    #[tokio::test]
    async fn a_region_of_the_catalogue_is_never_simulated_and_out_of_reach_until_it_is_connected() {
        let case = Case::new();
        let simulator = Simulator::new(Timings::default(), Pools::default(), Faults::new(false), []);
        let regions = Regions::new(simulator, case.clusters.clone());
        let new = instance("new", None);
        let is_out_of_reach = async || {
            let step = Step {
                instance: &new,
                account: "acc",
                user_data: Ok(None),
                restore: None,
                network: None,
                now: at(0),
            };
            let answer = regions.step(step).await;
            regions.reserve(&new) == Addresses::default()
                && regions.name(REGION) == "kubevirt"
                && matches!(answer, Err(ProviderError::Unreachable { .. }))
        };
        assert!(
            is_out_of_reach().await,
            "before anybody has looked at the catalogue"
        );
        let nothing_left = case.clusters.forget_account("acme", "acc").await;
        assert!(nothing_left.is_err(), "nobody knows");
        case.clusters.adjust(&CancellationToken::new()).await;
        assert!(is_out_of_reach().await, "its kubeconfig cannot be read");
        let metrics = case.clusters.0.metrics.render(Format::OpenMetrics).unwrap();
        assert!(
            metrics.contains("stellage_region_up{region=\"de-fra-1\"} 0"),
            "{metrics}"
        );
        let nothing_left = case.clusters.forget_account("acme", "acc").await;
        assert!(nothing_left.is_err(), "nobody knows");
        let simulated = regions.clusters.place("fr-par-1");
        assert!(matches!(simulated, Place::Simulated));
    }

    #[tokio::test]
    async fn a_network_whose_region_is_not_available_is_out_of_reach_and_not_forgotten() {
        let case = Case::new();
        let simulator = Simulator::new(Timings::default(), Pools::default(), Faults::new(false), []);
        let regions = Regions::new(simulator, case.clusters.clone());
        let answers = async |region: &str| {
            let network = json!({
                "metadata": { "name": "pn-backend", "namespace": "acme", "uid": "uid-1" },
                "spec": { "region": region }, "status": { "prefix": "10.128.4.0/24" },
            });
            let network: PrivateNetwork = serde_json::from_value(network).unwrap();
            [
                regions.make_network(&network, "acc").await,
                regions.remove_network(&network).await,
            ]
        };
        for region in [REGION, "xx-gone-1"] {
            for answer in answers(region).await {
                assert!(
                    matches!(answer, Err(ProviderError::Unreachable { .. })),
                    "{region}"
                );
            }
        }
        assert!(answers("fr-par-1").await.iter().all(Result::is_ok));
        let simulated = Catalogue::parse("regions: [fr-par-1]", Path::new("test")).unwrap();
        case.clusters.0.catalogue.replace(simulated);
        let any = answers("xx-gone-1").await;
        assert!(any.iter().all(Result::is_ok), "any other is simulated, too");
    }

    #[tokio::test]
    async fn an_account_does_not_wait_for_regions_whose_namespaces_others_make() {
        let text = format!("{CATALOGUE}      namespaces: existing\n");
        let catalogue = SharedCatalogue::new(Catalogue::parse(&text, Path::new("test")).unwrap());
        let clusters = Clusters::new(catalogue, Metrics::new(), at(0));
        clusters.adjust(&CancellationToken::new()).await;
        clusters.forget_account("acme", "acc").await.unwrap();
    }

    #[tokio::test]
    async fn a_region_that_leaves_the_catalogue_leaves_the_metrics() {
        let case = Case::new();
        let is_shown = || {
            let page = case.clusters.0.metrics.render(Format::OpenMetrics).unwrap();
            page.contains("stellage_region_up{region=\"de-fra-1\"}")
        };
        case.clusters.adjust(&CancellationToken::new()).await;
        assert!(is_shown());
        let without = Catalogue::parse("regions: [fr-par-1]", Path::new("test")).unwrap();
        case.clusters.0.catalogue.replace(without);
        case.clusters.adjust(&CancellationToken::new()).await;
        assert!(!is_shown());
    }
}
