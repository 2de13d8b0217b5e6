//! The cluster of a region: its watches, and the thin shell around the planner, which makes the calls that it plans; what is there about
//! backups is in `backups`, about private networks in `networks`.

mod backups;
mod networks;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use http::{Method, Request, header};
use ipnet::Ipv4Net;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        authentication::v1::SelfSubjectReview,
        core::v1::{PersistentVolumeClaim, Pod},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
    runtime::watcher,
};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::json;
use thiserror::Error;
use tokio::sync::{OnceCell, Semaphore};
use tokio_util::sync::CancellationToken;

use super::{
    backup,
    names::{
        self, INSTALLATION, INSTANCE, INSTANCE_UID, IPV4, IPV6, NetworkNames, STELLAGE, Server, Snapshot,
    },
    plan::{Action, Answer, Conversation, Joined, Kind, Plan, Reach, Refusal, Seen, plan},
    slim::{DataVolume, NetworkAttachment, VirtualMachine, VirtualMachineInstance},
};
use crate::{
    Instances, Membership, Step,
    ipam::{self, Ipam, Reservation},
};
use domain::{
    catalogue::region::KubeVirt,
    network,
    provider::{Addresses, Notice, Observation, OffCause, PROVIDER, Power, Progress, ProviderError, Trouble},
};
use resources::{Instance, origin, revision};
use runtime::{
    Health, Metrics, ObjectRef, Store,
    client::Observers,
    metrics::RegionLabels,
    watch::{Change, Watches, key},
};

/// How long a step goes on making calls. A call that is in progress then has what is left of the provider's timeout.
const STEP: Duration = Duration::from_secs(8);
/// Most calls of one step. None needs as many, so a plan that goes round in circles ends.
const CALLS_A_STEP: usize = 24;
/// When the same call is made again.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// When a step that ran out of time or calls is continued.
const CONTINUE_AFTER: Duration = Duration::from_secs(1);
/// How long the UID of a server that is gone is remembered: a call that the cluster carries out late may make it again.
const GONE: Duration = Duration::from_hours(1);
/// When the disks and Secrets of a server that is gone are looked for once more. They are not watched, and by then a call that this
/// process had given up is over: an API server gives each a minute.
const LATE_AFTER: Duration = Duration::from_secs(75);
/// Most servers that one call concerns.
const SERVERS_A_CALL: usize = 50;
/// After how long a server without an Instance counts as an orphan: an import may create the Instances later.
const ORPHAN_AFTER: Duration = Duration::from_mins(10);
/// How often a server is looked at whose address another one has.
const TROUBLE_AGAIN: Duration = Duration::from_mins(1);
/// Objects on a page of a list. They are large, although little of them is kept.
const PAGE: u32 = 500;

/// What a cluster works with.
pub(crate) struct Context {
    /// Whose servers it runs, while this process leads.
    pub(crate) instances: Arc<RwLock<Option<Arc<dyn Instances>>>>,
    /// The addresses of its servers. They outlive it when its settings change.
    pub(crate) ipam: Arc<Ipam>,
    /// Servers that are gone, by the UID of their Instance.
    pub(crate) gone: Arc<Mutex<HashMap<String, Gone>>>,
    pub(crate) metrics: Metrics,
    /// Ends the watches.
    pub(crate) shutdown: CancellationToken,
    /// Selects the servers that concern it, if not all of this installation do.
    pub(crate) only: Option<String>,
}

/// Why a cluster cannot be connected.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be read, or is wrong.
    #[error("its kubeconfig cannot be used: {0}")]
    Kubeconfig(#[from] KubeconfigError),
    /// No client can be made of it.
    #[error(transparent)]
    Client(#[from] kube::Error),
}

/// The cluster of a region.
pub(crate) struct Cluster {
    code: String,
    settings: Arc<KubeVirt>,
    client: Client,
    machines: Store<VirtualMachine>,
    runs: Store<VirtualMachineInstance>,
    /// Of the two watches.
    health: Health,
    metrics: Metrics,
    labels: RegionLabels,
    instances: Arc<RwLock<Option<Arc<dyn Instances>>>>,
    ipam: Arc<Ipam>,
    /// Whether the addresses of all its servers have been adopted. Before that, nobody gets a new one.
    is_listed: Arc<AtomicBool>,
    ended: Arc<Mutex<Ended>>,
    calls: Semaphore,
    written: Arc<Mutex<Written>>,
    /// The user name of this process there.
    user: OnceCell<String>,
    /// Namespaces of servers that are complete, with the isolation that these settings ask for.
    namespaces: Mutex<HashSet<String>>,
    /// Since when it cannot be reached.
    cut_since: Mutex<Option<Timestamp>>,
    /// Whether all Instances of the region are to be looked at. A list does not show what went while nobody watched, and nobody
    /// learned anything of a region out of reach.
    look_at_all: Arc<AtomicBool>,
    /// Servers that are gone, by the UID of their Instance.
    gone: Arc<Mutex<HashMap<String, Gone>>>,
    /// Virtual machines without an Instance, by UID, and since when.
    orphans: Mutex<HashMap<String, Instant>>,
}

/// Virtual machines as the cluster has answered the writes of this process, until the watch shows these.
#[derive(Default)]
struct Written(HashMap<ObjectRef, Arc<VirtualMachine>>);

impl Written {
    /// The newer of what the watch shows and what was written.
    fn freshest(&self, name: &ObjectRef, shown: Option<Arc<VirtualMachine>>) -> Option<Arc<VirtualMachine>> {
        let written = self.0.get(name);
        let is_newer = |written: &&Arc<VirtualMachine>| {
            shown
                .as_ref()
                .is_none_or(|shown| revision(&**shown) < revision(&***written))
        };
        written.filter(is_newer).cloned().or(shown)
    }

    fn note(&mut self, machine: &Arc<VirtualMachine>) {
        let name = ObjectRef::of(&**machine);
        let is_newer = |known: &Arc<VirtualMachine>| revision(&**known) < revision(&**machine);
        if self.0.get(&name).is_none_or(is_newer) {
            self.0.insert(name, machine.clone());
        }
    }

    /// Forgets what the watch shows.
    fn shown(&mut self, change: &Change<VirtualMachine>) {
        match change {
            Change::Applied(machine) | Change::Deleted(machine) => {
                let name = ObjectRef::of(&**machine);
                let is_shown = |known: &Arc<VirtualMachine>| revision(&**known) <= revision(&**machine);
                if self.0.get(&name).is_some_and(is_shown) {
                    self.0.remove(&name);
                }
            }
            // Should the list be older than a write, the next call finds out: its plan carries the version that it was made for.
            Change::Replaced(_) => self.0.clear(),
            Change::Unreadable(_) => {}
        }
    }
}

/// Of each server that there is, the last run that is gone.
#[derive(Default)]
struct Ended(HashMap<ObjectRef, Arc<VirtualMachineInstance>>);

impl Ended {
    fn note(&mut self, run: &VirtualMachineInstance, machines: &Store<VirtualMachine>) {
        let name = ObjectRef::of(run);
        // The other watch may have shown before this that its virtual machine is gone.
        if machines.get(&name).is_some() {
            let mut run = run.clone();
            run.prune();
            self.0.insert(name, Arc::new(run));
        }
    }

    /// Forgets servers that are gone.
    fn shown(&mut self, change: &Change<VirtualMachine>) {
        match change {
            Change::Deleted(machine) => {
                self.0.remove(&ObjectRef::of(&**machine));
            }
            Change::Replaced(machines) => {
                let there: HashSet<_> = machines.iter().map(|machine| ObjectRef::of(&**machine)).collect();
                self.0.retain(|name, _| there.contains(name));
            }
            Change::Applied(_) | Change::Unreadable(_) => {}
        }
    }
}

/// A server that is gone.
#[derive(Debug)]
pub(crate) struct Gone {
    since: Instant,
    /// Where it was.
    region: String,
    namespace: String,
    /// Whether its disks and Secrets have been looked for once more.
    is_swept: bool,
}

/// The servers of a region whose disks and Secrets are to be looked for once more, by namespace.
fn to_sweep(region: &str, gone: &HashMap<String, Gone>, now: Instant) -> BTreeMap<String, Vec<String>> {
    let mut due: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (uid, server) in gone {
        if server.region == region && !server.is_swept && now.duration_since(server.since) >= LATE_AFTER {
            due.entry(server.namespace.clone()).or_default().push(uid.clone());
        }
    }
    due
}

/// How a cluster is connected. This may run a program that the kubeconfig names.
pub(crate) async fn config(kubeconfig: &Path) -> Result<Config, ConnectError> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    Ok(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)
}

impl Cluster {
    /// Connects a cluster, and begins to watch it.
    pub(crate) fn connect(
        code: &str,
        settings: &Arc<KubeVirt>,
        config: Config,
        context: Context,
    ) -> Result<Self, ConnectError> {
        // Those of the process are about its own API server.
        let observers = Observers::default();
        let watches = Watches::connect(config, observers, context.shutdown.clone())?;
        Ok(Self::new(code, settings, watches, context))
    }

    /// Begins to watch a cluster.
    pub(crate) fn new(code: &str, settings: &Arc<KubeVirt>, watches: Watches, context: Context) -> Self {
        let Context {
            instances,
            ipam,
            gone,
            metrics,
            only,
            ..
        } = context;
        watches.health.require_watch("virtualmachines");
        watches.health.require_watch("virtualmachineinstances");
        let mut ours = format!("{INSTALLATION}={}", settings.installation);
        if let Some(only) = &only {
            ours = format!("{ours},{only}");
        }
        let ours = watcher::Config::default().labels(&ours).page_size(PAGE);
        let written = Arc::<Mutex<Written>>::default();
        let is_listed = Arc::<AtomicBool>::default();
        let look_at_all = Arc::<AtomicBool>::default();
        let ended = Arc::<Mutex<Ended>>::default();
        let on_machine = {
            let (written, instances) = (written.clone(), instances.clone());
            let (ipam, is_listed) = (ipam.clone(), is_listed.clone());
            let (gone, ended) = (gone.clone(), ended.clone());
            let look_at_all = look_at_all.clone();
            move |change: &Change<VirtualMachine>| {
                written.lock().shown(change);
                ended.lock().shown(change);
                {
                    // Held, so that no term begins or ends meanwhile.
                    let leader = instances.read();
                    adopt_shown(&ipam, change, leader.is_some(), &gone.lock());
                }
                match change {
                    Change::Applied(machine) | Change::Deleted(machine) => tell(&instances, machine),
                    Change::Replaced(_) => {
                        is_listed.store(true, Ordering::Release);
                        look_at_all.store(true, Ordering::Release);
                    }
                    Change::Unreadable(_) => {}
                }
            }
        };
        let machines = watches.spawn_without(ours.clone(), VirtualMachine::prune, vec![Box::new(on_machine)]);
        let on_run = {
            let (machines, instances) = (machines.clone(), instances.clone());
            let (ended, look_at_all) = (ended.clone(), look_at_all.clone());
            move |change: &Change<VirtualMachineInstance>| {
                if let Change::Deleted(run) = change {
                    ended.lock().note(run, &machines);
                }
                match change {
                    Change::Applied(run) | Change::Deleted(run) => {
                        if let Some(machine) = machines.get(&ObjectRef::of(&**run)) {
                            tell(&instances, &machine);
                        }
                    }
                    Change::Replaced(_) => look_at_all.store(true, Ordering::Release),
                    Change::Unreadable(_) => {}
                }
            }
        };
        let runs = watches.spawn_without(ours, VirtualMachineInstance::prune, vec![Box::new(on_run)]);
        Self {
            code: code.to_owned(),
            settings: settings.clone(),
            client: watches.client,
            health: watches.health,
            machines,
            runs,
            metrics,
            labels: RegionLabels {
                region: code.to_owned(),
            },
            instances,
            ipam,
            is_listed,
            ended,
            calls: Semaphore::new(settings.calls_at_once),
            written,
            user: OnceCell::new(),
            namespaces: Mutex::default(),
            cut_since: Mutex::default(),
            look_at_all,
            gone,
            orphans: Mutex::default(),
        }
    }

    /// Whether the watches can be believed. The log says when that changes.
    fn reach(&self, now: Timestamp) -> Reach {
        let mut cut_since = self.cut_since.lock();
        let missing = self.health.not_ready();
        if missing.is_empty() {
            if cut_since.take().is_some() {
                self.look_at_all.store(true, Ordering::Release);
                tracing::info!(region = self.code, "the region can be reached");
            }
            return Reach::Live;
        }
        Reach::Cut(*cut_since.get_or_insert_with(|| {
            let why = missing.join("; ");
            tracing::warn!(
                region = self.code,
                why,
                "the region cannot be reached; its operations wait"
            );
            now
        }))
    }

    /// To be called every few seconds: shows whether the region is reached, has all its Instances looked at where that is due, and
    /// removes servers that were made too late.
    pub(crate) async fn look_after(&self, now: Timestamp) {
        let is_live = self.reach(now) == Reach::Live;
        let labels = &self.labels;
        self.metrics
            .region_up
            .get_or_create_owned(labels)
            .set(is_live.into());
        let servers = i64::try_from(self.machines.len()).unwrap_or(i64::MAX);
        self.metrics
            .region_servers
            .get_or_create_owned(labels)
            .set(servers);
        if !is_live {
            return;
        }
        let look_at_all = self.look_at_all.swap(false, Ordering::AcqRel);
        if let Some(instances) = &*self.instances.read() {
            if look_at_all {
                let all = instances.all();
                for instance in all.iter().filter(|instance| instance.spec.region == self.code) {
                    let name = ObjectRef::of(&**instance);
                    instances.changed(name.namespace(), name.name());
                }
            }
            let orphans = i64::try_from(self.count_orphans(&**instances)).unwrap_or(i64::MAX);
            self.metrics
                .orphan_servers
                .get_or_create_owned(labels)
                .set(orphans);
        }
        let leads = self.instances.read().is_some();
        if leads {
            self.remove_late_ones().await;
        }
    }

    /// Number of servers without an Instance that have had none for a while.
    fn count_orphans(&self, instances: &dyn Instances) -> usize {
        let machines = self.machines.state();
        let is_orphan = |machine: &&Arc<VirtualMachine>| {
            let uid = machine.label(INSTANCE_UID).unwrap_or_default();
            instance_of(machine).is_none_or(|(namespace, name)| !instances.has(namespace, name, uid))
        };
        let orphans = machines.iter().filter(is_orphan);
        let uids: HashSet<String> = orphans
            .filter_map(|machine| machine.metadata.uid.clone())
            .collect();
        let mut since = self.orphans.lock();
        since.retain(|uid, _| uids.contains(uid));
        for uid in uids {
            since.entry(uid).or_insert_with(Instant::now);
        }
        since
            .values()
            .filter(|since| since.elapsed() >= ORPHAN_AFTER)
            .count()
    }

    /// Deletes the servers of Instances that are gone: a call that this process had given up has made them.
    async fn remove_late_ones(&self) {
        let gone: HashSet<String> = {
            let mut gone = self.gone.lock();
            gone.retain(|_, server| server.since.elapsed() < GONE);
            gone.keys().cloned().collect()
        };
        if gone.is_empty() {
            return;
        }
        self.remove_late_disks().await;
        for machine in self.machines.state() {
            let is_gone = machine.label(INSTANCE_UID).is_some_and(|uid| gone.contains(uid));
            if !is_gone || machine.is_deleting() {
                continue;
            }
            tracing::warn!(
                region = self.code,
                machine = key(&*machine),
                "removing a server whose instance is gone"
            );
            let name = ObjectRef::of(&*machine);
            let action = Action::delete(Kind::VirtualMachine, &machine.metadata);
            if let Err(error) = self.call(name.namespace(), &action).await {
                tracing::warn!(region = self.code, machine = key(&*machine), %error, "cannot remove the server");
            }
        }
    }

    /// The same for their disks and Secrets, once for each server.
    async fn remove_late_disks(&self) {
        let due = to_sweep(&self.code, &self.gone.lock(), Instant::now());
        for (namespace, uids) in due {
            for uids in uids.chunks(SERVERS_A_CALL) {
                match self.sweep(&namespace, uids).await {
                    Ok(true) => {}
                    // It is tried again.
                    Ok(false) => continue,
                    Err(error) => {
                        tracing::warn!(region = self.code, namespace, %error, "cannot look for disks of servers that are gone");
                        continue;
                    }
                }
                let mut gone = self.gone.lock();
                for uid in uids {
                    if let Some(server) = gone.get_mut(uid) {
                        server.is_swept = true;
                    }
                }
            }
        }
    }

    /// Deletes the disks and Secrets of these servers. Returns whether that was possible.
    async fn sweep(&self, namespace: &str, uids: &[String]) -> kube::Result<bool> {
        // " in " as it is in a URL.
        let selector = format!("{INSTANCE_UID}%20in%20({})", uids.join(","));
        let list = Action::list(Kind::DataVolume, selector.clone());
        let disks = match self.call(namespace, &list).await? {
            Answer::DataVolumes(disks) => disks,
            // The namespace is gone, too, and the rights in it.
            Answer::Refused(refusal) => return Ok(matches!(refusal.status, 403 | 404)),
            _ => return Ok(false),
        };
        for disk in &disks {
            let disk = disk.name();
            tracing::warn!(
                region = self.code,
                namespace,
                disk,
                "removing a disk whose instance is gone"
            );
        }
        // Secrets cannot be listed.
        let kinds = (!disks.is_empty()).then_some(Kind::DataVolume);
        for kind in kinds.into_iter().chain([Kind::Secret]) {
            let selector = selector.clone();
            let delete = Action::DeleteAll { kind, selector };
            if let Answer::Refused(_) = self.call(namespace, &delete).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The addresses that a server has or will have.
    pub(crate) fn reserve(&self, instance: &Instance) -> Reservation {
        let server = Server::of(instance, &self.settings);
        let mut known = ipam::in_status(instance);
        {
            let mut gone = self.gone.lock();
            if instance.is_deleting() && gone.contains_key(&server.uid) {
                // A watch that lags still shows it.
                return Reservation {
                    addresses: known,
                    trouble: None,
                };
            }
            // Somebody may have restored it.
            gone.remove(&server.uid);
        }
        // A creation may have reached the cluster before its status was stored.
        let name = ObjectRef::new(&server.namespace, &server.name);
        if let Some(machine) = self.machines.get(&name) {
            let shown = annotated(&machine);
            known.ipv4 = known.ipv4.or(shown.ipv4);
            known.ipv6 = known.ipv6.or(shown.ipv6);
        }
        if !self.is_listed.load(Ordering::Acquire) {
            return Reservation {
                addresses: known,
                trouble: None,
            };
        }
        self.ipam.reserve(&server.uid, &known, Instant::now())
    }

    /// Marks the addresses as taken that its servers have.
    pub(crate) fn adopt_all(&self) {
        let gone = self.gone.lock();
        for machine in self.machines.state() {
            adopt(&self.ipam, &machine, &gone);
        }
    }

    /// Releases the addresses of an Instance that is gone.
    pub(crate) fn release(&self, instance: &Instance) {
        let uid = origin::uid(&instance.metadata);
        self.ipam.release(uid, Instant::now());
        let server = Gone {
            since: Instant::now(),
            region: self.code.clone(),
            namespace: Server::of(instance, &self.settings).namespace,
            is_swept: false,
        };
        self.gone.lock().insert(uid.to_owned(), server);
    }

    /// What is known about a server before the first call of a step.
    async fn seen(&self, server: &Server, step: &Step<'_>) -> kube::Result<Seen> {
        let reach = self.reach(step.now);
        let user = match reach {
            Reach::Live => self.user().await?,
            Reach::Cut(_) => String::new(),
        };
        let mut seen = Seen::new(reach, step.account.to_owned(), user);
        seen.has_namespace = self.namespaces.lock().contains(&server.namespace);
        let name = ObjectRef::new(&server.namespace, &server.name);
        seen.vm = self.written.lock().freshest(&name, self.machines.get(&name));
        seen.ended = self.ended.lock().0.get(&name).cloned();
        seen.run = self.runs.get(&name);
        seen.user_data = step
            .user_data
            .map(|data| data.cloned().map(Arc::new))
            .map_err(Trouble::clone);
        seen.restore = step.restore.map(|backup| Snapshot::of(backup, &self.settings));
        seen.network = step.network.map(|membership| self.joined(&membership));
        Ok(seen)
    }

    /// The private network of a server.
    fn joined(&self, Membership { network, address }: &Membership<'_>) -> Joined {
        let prefix = network.prefix().and_then(|text| network::parse(text).ok());
        let address = address.as_ref().and_then(|text| text.parse().ok());
        Joined {
            names: NetworkNames::of(network, &self.settings),
            is_ready: network.ready().is_some_and(|ready| ready.status == "True"),
            address: address
                .zip(prefix)
                .and_then(|(address, prefix)| Ipv4Net::new(address, prefix.prefix_len()).ok()),
        }
    }

    /// Makes the calls that the planner plans, until there is none, or no time.
    pub(crate) async fn step(&self, step: Step<'_>) -> Result<Observation, ProviderError> {
        let mut observation = self.steps(step, &mut None).await?;
        let counter = match (observation.restarted, observation.power) {
            (Some(OffCause::Crashed), _) | (_, Some(Power::Off(OffCause::Crashed))) => {
                Some(&self.metrics.servers_crashed)
            }
            (Some(OffCause::Interrupted), _) | (_, Some(Power::Off(OffCause::Interrupted))) => {
                Some(&self.metrics.servers_interrupted)
            }
            _ => None,
        };
        if let Some(counter) = counter.filter(|_| observation.progress == Progress::Idle) {
            counter.get_or_create_owned(&self.labels).inc();
        }
        observation
            .state
            .insert(PROVIDER.to_owned(), "kubevirt".to_owned());
        Ok(observation)
    }

    /// The same, and takes note of what the cluster itself says of trouble.
    pub(crate) async fn steps(
        &self,
        step: Step<'_>,
        words: &mut Option<String>,
    ) -> Result<Observation, ProviderError> {
        let (region, instance) = (&*self.code, step.instance);
        let until = Instant::now() + STEP;
        let server = Server::of(instance, &self.settings);
        let unavailable =
            |error: kube::Error| self.unanswered(&format!("Instance {}", key(instance)), &error);
        let mut seen = self.seen(&server, &step).await.map_err(unavailable)?;
        let Reservation { addresses, trouble } = self.reserve(instance);
        seen.addresses = addresses;
        let is_made = seen.vm.is_some() || !needs_making(instance);
        if seen.reach == Reach::Live
            && let Some(trouble) = trouble.clone().filter(|_| !is_made)
        {
            return Ok(Observation {
                progress: Progress::Failed(trouble),
                ..Observation::default()
            });
        }
        for _ in 0..CALLS_A_STEP {
            let next = plan(instance, &seen, &self.settings, step.now);
            let Some(action) = next.action else {
                if let Some(says) = next.raw {
                    tracing::info!(
                        region,
                        instance = key(instance),
                        says,
                        "trouble in the region's cluster"
                    );
                    *words = Some(says);
                }
                return next.outcome.map(|observation| with_trouble(observation, trouble));
            };
            if Instant::now() >= until {
                return continued(next.outcome);
            }
            if next.repairs_lost_start {
                self.metrics.lost_starts.get_or_create_owned(&self.labels).inc();
            }
            let answer = self.call(&server.namespace, &action).await.map_err(unavailable)?;
            match (&action, &answer) {
                (_, Answer::VirtualMachine(machine)) => {
                    self.written.lock().note(machine);
                }
                (
                    Action::Get {
                        kind: Kind::VirtualMachine,
                        name,
                    },
                    Answer::Refused(refusal),
                ) if refusal.status == 404 => {
                    let name = ObjectRef::new(&server.namespace, name);
                    self.written.lock().0.remove(&name);
                }
                _ => {}
            }
            seen.take(&action, answer);
            if seen.has_namespace {
                self.namespaces.lock().insert(server.namespace.clone());
            }
        }
        let Plan { outcome, .. } = plan(instance, &seen, &self.settings, step.now);
        continued(outcome)
    }

    /// Makes one call after the other about an object, until there is no more to do or no time left. `object` is for the log.
    async fn carry_out<S: Conversation + Send, T: Send>(
        self: &Arc<Self>,
        object: &str,
        namespace: &str,
        seen: &mut S,
        plan: impl Fn(&S) -> backup::Plan<T> + Send,
    ) -> Result<T, ProviderError> {
        let region = &*self.code;
        let until = Instant::now() + STEP;
        let mut calls = 0;
        loop {
            let next = plan(seen);
            let has_time = Instant::now() < until && calls < CALLS_A_STEP;
            let Some(action) = next.action.filter(|_| has_time) else {
                if let Some(says) = next.raw {
                    tracing::warn!(region, object, says, "trouble in the region's cluster");
                }
                return next.outcome;
            };
            calls += 1;
            if seen.calls().answer(&action).is_some() {
                tokio::time::sleep(AGAIN_AFTER).await;
            }
            let answer = match &action {
                Action::Freeze { .. } => self.freeze(namespace, &action).await,
                Action::Thaw { .. } => {
                    self.thaw(namespace, &action);
                    Ok(Answer::Done)
                }
                _ => self.call(namespace, &action).await,
            };
            let answer = answer.map_err(|error| self.unanswered(object, &error))?;
            seen.take(action, answer);
        }
    }

    /// What is reported of a call about an object that has no answer.
    fn unanswered(&self, object: &str, error: &kube::Error) -> ProviderError {
        tracing::warn!(region = self.code, object, %error, "a call of the region's cluster failed");
        ProviderError::Unavailable("the cluster of the region does not answer".to_owned())
    }

    /// Deletes the namespace of an account's servers, which Stellage has made, unless there are any. `namespace` is the account's own,
    /// and `account` its public id.
    pub(crate) async fn forget_account(
        &self,
        namespace: &str,
        account: &str,
        now: Timestamp,
    ) -> Result<(), ProviderError> {
        if let Reach::Cut(since) = self.reach(now) {
            let region = self.code.clone();
            return Err(ProviderError::Unreachable { region, since });
        }
        let name = names::namespace(&self.settings.namespace_prefix, namespace);
        let unavailable = |error: kube::Error| self.unanswered(&format!("Namespace {name}"), &error);
        let get = Action::get(Kind::Namespace, &name);
        let Answer::Object(found) = self.call(&name, &get).await.map_err(unavailable)? else {
            return Ok(());
        };
        let labels = found.labels.as_ref();
        let ours = names::account_labels(&self.settings, account);
        let is_ours = ours
            .iter()
            .all(|(key, value)| labels.and_then(|labels| labels.get(*key)) == Some(value));
        let has_servers = self
            .machines
            .state()
            .iter()
            .any(|machine| machine.metadata.namespace.as_ref() == Some(&name));
        if is_ours && !has_servers {
            self.namespaces.lock().remove(&name);
            let delete = Action::delete(Kind::Namespace, &found);
            self.call(&name, &delete).await.map_err(unavailable)?;
        }
        Ok(())
    }

    /// What is missing until the cluster is reached.
    pub(crate) fn waits_for(&self) -> Vec<String> {
        self.health.not_ready()
    }

    /// Whether the agent in the guest of a server answers.
    pub(crate) async fn has_agent(&self, server: &Server) -> kube::Result<bool> {
        let request = request(&server.namespace, &Action::get(Kind::Run, &server.name))?;
        let run: VirtualMachineInstance = self.client.request(request).await?;
        let mut conditions = run.status.conditions.iter();
        Ok(conditions.any(|condition| condition.r#type == "AgentConnected" && condition.status == "True"))
    }

    /// Whether a namespace is gone.
    pub(crate) async fn is_namespace_gone(&self, name: &str) -> kube::Result<bool> {
        let answer = self.call(name, &Action::get(Kind::Namespace, name)).await?;
        Ok(matches!(answer, Answer::Refused(refusal) if refusal.status == 404))
    }

    /// The user name of this process there.
    pub(crate) async fn user(&self) -> kube::Result<String> {
        let user = self.user.get_or_try_init(|| who_am_i(&self.client)).await?;
        Ok(user.clone())
    }

    /// Makes a call. A refusal is an answer, too.
    pub(crate) async fn call(&self, namespace: &str, action: &Action) -> kube::Result<Answer> {
        let (namespace, action) = match action {
            Action::In { namespace, action } => (namespace.as_str(), &**action),
            action => (namespace, action),
        };
        // Never closed.
        let _permit = self.calls.acquire().await;
        self.call_now(namespace, action).await
    }

    /// The same for a caller who has a permit.
    async fn call_now(&self, namespace: &str, action: &Action) -> kube::Result<Answer> {
        match self.answer(action, request(namespace, action)?).await {
            Err(kube::Error::Api(status)) => Ok(Answer::Refused(Refusal {
                status: status.code,
                reason: status.reason.clone(),
                message: status.message.clone(),
            })),
            answer => answer,
        }
    }

    async fn answer(&self, action: &Action, request: Request<Vec<u8>>) -> kube::Result<Answer> {
        let client = &self.client;
        let kind = match action {
            Action::Stop { .. }
            | Action::Freeze { .. }
            | Action::Thaw { .. }
            | Action::Delete { .. }
            | Action::DeleteAll { .. }
            | Action::Patch { dry_run: true, .. } => {
                return client.request_text(request).await.map(|_| Answer::Done);
            }
            Action::List {
                kind: Kind::DataVolume,
                ..
            } => {
                let list: List<DataVolume> = client.request(request).await?;
                return Ok(Answer::DataVolumes(list.items));
            }
            Action::List {
                kind: Kind::NetworkAttachment,
                ..
            } => {
                let list: List<NetworkAttachment> = client.request(request).await?;
                return Ok(Answer::Attachments(list.items));
            }
            Action::List { kind: Kind::Pod, .. } => {
                let list: List<Pod> = client.request(request).await?;
                return Ok(Answer::Pods(list.items));
            }
            Action::List { .. } => {
                let list: List<PersistentVolumeClaim> = client.request(request).await?;
                return Ok(Answer::Claims(list.items));
            }
            // `call` has taken what is inside.
            Action::In { .. } => Kind::NetworkAttachment,
            Action::ClearRequests { .. } => Kind::VirtualMachine,
            Action::Post { kind, .. }
            | Action::Apply { kind, .. }
            | Action::Get { kind, .. }
            | Action::Patch { kind, .. } => *kind,
        };
        Ok(match kind {
            Kind::VirtualMachine => {
                let mut machine: VirtualMachine = client.request(request).await?;
                machine.prune();
                Answer::VirtualMachine(Arc::new(machine))
            }
            Kind::Run => {
                let mut run: VirtualMachineInstance = client.request(request).await?;
                run.prune();
                Answer::Run(Arc::new(run))
            }
            Kind::DataVolume => Answer::DataVolume(client.request(request).await?),
            Kind::Snapshot => Answer::Snapshot(client.request(request).await?),
            Kind::SnapshotContent => Answer::SnapshotContent(client.request(request).await?),
            Kind::SnapshotClass => Answer::SnapshotClass(client.request(request).await?),
            Kind::PersistentVolume => Answer::PersistentVolume(client.request(request).await?),
            Kind::NetworkAttachment => Answer::Attachment(client.request(request).await?),
            Kind::Subnet => Answer::Subnet(client.request(request).await?),
            _ => Answer::Object(client.request::<OnlyMetadata>(request).await?.metadata),
        })
    }
}

/// The user name by which a cluster knows this process.
async fn who_am_i(client: &Client) -> kube::Result<String> {
    let review = Api::<SelfSubjectReview>::all(client.clone());
    let review = review
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await?;
    let user = review.status.and_then(|status| status.user_info);
    Ok(user.and_then(|user| user.username).unwrap_or_default())
}

/// Tells of a change of a server.
fn tell(instances: &RwLock<Option<Arc<dyn Instances>>>, machine: &VirtualMachine) {
    if let (Some(instances), Some((namespace, name))) = (&*instances.read(), instance_of(machine)) {
        instances.changed(namespace, name);
    }
}

/// The addresses that a server was made with.
fn annotated(machine: &VirtualMachine) -> Addresses {
    Addresses {
        ipv4: machine.annotation(IPV4).map(str::to_owned),
        ipv6: machine.annotation(IPV6).map(str::to_owned),
        private: None,
    }
}

/// Namespace and name of the Instance that a server belongs to.
fn instance_of(machine: &VirtualMachine) -> Option<(&str, &str)> {
    machine.annotation(INSTANCE)?.split_once('/')
}

/// Takes the addresses that servers are shown to have. A replica that does not lead knows of no others, so that it has also to
/// release them.
fn adopt_shown(ipam: &Ipam, change: &Change<VirtualMachine>, leads: bool, gone: &HashMap<String, Gone>) {
    match change {
        Change::Replaced(machines) => {
            if !leads {
                ipam.forget();
            }
            for machine in machines {
                adopt(ipam, machine, gone);
            }
        }
        Change::Applied(machine) => adopt(ipam, machine, gone),
        Change::Deleted(machine) if !leads => {
            ipam.release(machine.label(INSTANCE_UID).unwrap_or_default(), Instant::now());
        }
        Change::Deleted(_) | Change::Unreadable(_) => {}
    }
}

/// Takes the address that a server has. If it is that of an older one, its Instance is told when it is looked at.
fn adopt(ipam: &Ipam, machine: &VirtualMachine, gone: &HashMap<String, Gone>) {
    let uid = machine.label(INSTANCE_UID);
    if let Some(uid) = uid.filter(|uid| !gone.contains_key(*uid)) {
        let made_at = machine.metadata.creation_timestamp.as_ref();
        ipam.adopt(uid, &annotated(machine), made_at.map(|time| time.0));
    }
}

/// Whether the operation in progress needs a server, and makes it if there is none.
fn needs_making(instance: &Instance) -> bool {
    let status = instance.status.as_ref();
    let operation = status.and_then(|status| status.operation.as_ref());
    operation.is_some_and(|operation| operation.kind.makes_server())
}

/// Tells of trouble with the address of a server that there is. It may have passed without anything that the watches show.
fn with_trouble(observation: Observation, trouble: Option<Trouble>) -> Observation {
    let is_at_rest = observation.progress == Progress::Idle
        && observation.power.is_some()
        && observation.addresses.ipv4.is_some();
    match trouble {
        Some(trouble) if is_at_rest && observation.notice.is_none() => Observation {
            notice: Some(Notice::Told(trouble)),
            recheck_after: Some(TROUBLE_AGAIN),
            ..observation
        },
        _ => observation,
    }
}

/// What a step reports that did not come to its end.
fn continued(outcome: Result<Observation, ProviderError>) -> Result<Observation, ProviderError> {
    outcome.map(|observation| Observation {
        recheck_after: Some(CONTINUE_AFTER),
        ..observation
    })
}

#[derive(Deserialize)]
#[serde(bound = "K: DeserializeOwned")]
struct List<K> {
    items: Vec<K>,
}

#[derive(Deserialize)]
struct OnlyMetadata {
    metadata: ObjectMeta,
}

/// The request for an action.
fn request(namespace: &str, action: &Action) -> kube::Result<Request<Vec<u8>>> {
    const JSON: &str = "application/json";
    const MERGE_PATCH: &str = "application/merge-patch+json";
    const JSON_PATCH: &str = "application/json-patch+json";
    const APPLY: &str = "application/apply-patch+yaml";
    // KubeVirt's CRDs would drop unknown fields silently.
    let strict = format!("?fieldManager={STELLAGE}&fieldValidation=Strict");
    let (method, path, media_type, body) = match action {
        Action::Post { kind, object } => {
            let path = path(namespace, *kind, None) + &strict;
            (Method::POST, path, JSON, Some(object.clone()))
        }
        Action::Apply { kind, object } => {
            let path = path(namespace, *kind, object["metadata"]["name"].as_str()) + &strict + "&force=true";
            (Method::PATCH, path, APPLY, Some(object.clone()))
        }
        Action::Get { kind, name } => (Method::GET, path(namespace, *kind, Some(name)), JSON, None),
        // Selectors consist of our own labels and their values, which need no escaping.
        Action::List { kind, selector } => {
            let path = path(namespace, *kind, None) + "?labelSelector=" + selector;
            (Method::GET, path, JSON, None)
        }
        Action::Patch {
            kind,
            name,
            patch,
            dry_run,
        } => {
            let dry_run = if *dry_run { "&dryRun=All" } else { "" };
            let path = path(namespace, *kind, Some(name)) + &strict + dry_run;
            (Method::PATCH, path, MERGE_PATCH, Some(patch.clone()))
        }
        Action::ClearRequests { name, patch } => {
            let path = path(namespace, Kind::VirtualMachine, Some(name)) + "/status" + &strict;
            (Method::PATCH, path, JSON_PATCH, Some(patch.clone()))
        }
        Action::Stop { name } => {
            let path = of_virt_api(namespace, "virtualmachines", name, "stop");
            (Method::PUT, path, JSON, Some(json!({ "gracePeriod": 0 })))
        }
        Action::Freeze { name } => {
            let path = of_virt_api(namespace, "virtualmachineinstances", name, "freeze");
            (Method::PUT, path, JSON, Some(json!({ "unfreezeTimeout": "30s" })))
        }
        Action::Thaw { name } => {
            let path = of_virt_api(namespace, "virtualmachineinstances", name, "unfreeze");
            (Method::PUT, path, JSON, None)
        }
        Action::Delete { kind, name, uid } => {
            let options = json!({
                "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background",
                "preconditions": { "uid": uid },
            });
            (
                Method::DELETE,
                path(namespace, *kind, Some(name)),
                JSON,
                Some(options),
            )
        }
        Action::DeleteAll { kind, selector } => {
            let path = path(namespace, *kind, None) + "?labelSelector=" + selector;
            (Method::DELETE, path, JSON, None)
        }
        Action::In { namespace, action } => return self::request(namespace, action),
    };
    let body = body.map(|body| serde_json::to_vec(&body)).transpose();
    Request::builder()
        .method(method)
        .uri(path)
        // virt-api answers a stop with nothing, which it does not call JSON.
        .header(header::ACCEPT, "application/json, */*")
        .header(header::CONTENT_TYPE, media_type)
        .body(body.map_err(kube::Error::SerdeError)?.unwrap_or_default())
        .map_err(kube::Error::HttpError)
}

/// The path of what virt-api does with an object.
fn of_virt_api(namespace: &str, plural: &str, name: &str, what: &str) -> String {
    format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/{plural}/{name}/{what}")
}

/// The path of a kind in a namespace, or of the object of that kind with this name.
fn path(namespace: &str, kind: Kind, name: Option<&str>) -> String {
    let (group, version, plural) = kind.path();
    let root = match group {
        "" => format!("/api/{version}"),
        group => format!("/apis/{group}/{version}"),
    };
    let within = match kind {
        Kind::Namespace
        | Kind::SnapshotContent
        | Kind::SnapshotClass
        | Kind::PersistentVolume
        | Kind::Vpc
        | Kind::Subnet => String::new(),
        _ => format!("/namespaces/{namespace}"),
    };
    let name = name.map(|name| format!("/{name}")).unwrap_or_default();
    format!("{root}{within}/{plural}{name}")
}

/// Whether the status of an Instance says that its server is in a cluster.
pub(crate) fn has_real_server(instance: &Instance) -> bool {
    let status = instance.status.as_ref();
    status.is_some_and(|status| status.provider_state.contains_key(PROVIDER))
}

#[cfg(test)]
mod tests {
    use runtime::objects;

    use super::*;
    use crate::kubevirt::testing::{
        at, bridge, idle, parse_run, parse_vm, region_with_addresses, run_of, vm,
    };

    /// A server of the Instance with this UID, with the last address of the region's prefix.
    fn machine(uid: &str) -> Arc<VirtualMachine> {
        let more = json!({ "metadata": {
            "name": uid, "creationTimestamp": at(0),
            "labels": { INSTANCE_UID: uid }, "annotations": { IPV4: "203.0.113.254" },
        } });
        parse_vm(&vm(&idle("Running", &json!({})), "Halted", &more))
    }

    #[test]
    fn a_replica_that_does_not_lead_releases_the_addresses_of_servers_that_are_gone() {
        let (applied, deleted) = (Change::Applied(machine("a")), Change::Deleted(machine("a")));
        let none = Change::Replaced(Vec::new());
        for (changes, is_taken, is_taken_by_leader) in [
            (vec![&applied], true, true),
            // The leader releases it with the Instance: until then, the server may be made again.
            (vec![&applied, &deleted], false, true),
            (vec![&applied, &none], false, true),
            (vec![&deleted], false, false),
        ] {
            for (leads, is_taken) in [(false, is_taken), (true, is_taken_by_leader)] {
                let ipam = Ipam::new("de-fra-1", region_with_addresses(bridge()).network.ipv4, None);
                for change in &changes {
                    adopt_shown(&ipam, change, leads, &HashMap::new());
                }
                let is_free = ipam.adopt("probe", &annotated(&machine("probe")), None);
                assert_eq!(is_free, !is_taken, "{leads} {changes:?}");
            }
        }
    }

    #[test]
    fn the_last_run_is_remembered_for_as_long_as_there_is_a_server() {
        let machine = parse_vm(&vm(&idle("Running", &json!({})), "RerunOnFailure", &json!({})));
        let run = run_of(
            &vm(&idle("Running", &json!({})), "RerunOnFailure", &json!({})),
            "run-1",
            "Failed",
            &json!({}),
        );
        let run = parse_run(&run);
        let (machines, writer) = objects::store();
        let mut ended = Ended::default();
        ended.note(&run, &machines);
        assert!(ended.0.is_empty(), "its server is gone already");
        writer.apply(machine.clone());
        for gone in [Change::Deleted(machine.clone()), Change::Replaced(Vec::new())] {
            ended.note(&run, &machines);
            ended.shown(&Change::Replaced(vec![machine.clone()]));
            assert_eq!(ended.0.len(), 1);
            ended.shown(&gone);
            assert!(ended.0.is_empty(), "{gone:?}");
        }
    }

    #[test]
    fn disks_of_a_server_that_is_gone_are_looked_for_once_when_no_call_can_make_them_any_more() {
        let begin = Instant::now();
        let server = |region: &str, namespace: &str, is_swept| Gone {
            since: begin,
            region: region.to_owned(),
            namespace: namespace.to_owned(),
            is_swept,
        };
        let gone = HashMap::from([
            ("a".to_owned(), server("fra", "acme", false)),
            ("b".to_owned(), server("fra", "acme", true)),
            ("c".to_owned(), server("fra", "other", false)),
            ("d".to_owned(), server("ams", "acme", false)),
        ]);
        assert!(
            to_sweep(
                "fra",
                &gone,
                begin + LATE_AFTER.saturating_sub(Duration::from_secs(1))
            )
            .is_empty()
        );
        let due = to_sweep("fra", &gone, begin + LATE_AFTER);
        let due: Vec<(&str, &str)> = due
            .iter()
            .map(|(namespace, uids)| (namespace.as_str(), uids[0].as_str()))
            .collect();
        assert_eq!(due, [("acme", "a"), ("other", "c")]);
    }
}
