//! Stellage, virt-controller and the region's API server are killed at random while servers go through operations, are backed up and
//! restored, and join private networks, until all rest.
//!
//! In the suite it is small. For a long run: `STELLAGE_TEST_KUBEVIRT_SERVERS=200 STELLAGE_TEST_KUBEVIRT_KILLS=100 cargo test --test
//! integration -- kubevirt::kills --show-output`. `STELLAGE_TEST_KUBEVIRT_SEED` makes the choices of another run again, though not
//! at the same moments.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use control_plane::Identity;
use futures::{StreamExt as _, future::join_all};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams},
    runtime::{WatchStreamExt as _, watcher, watcher::Event},
};
use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use resources::{Backup, BackupPhase, Instance, InstanceState, Plan, PowerState, PrivateNetwork};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::kubevirt::entry::{REGION, entry, region_rights_with, write_catalogue};
use crate::{
    support::{
        Operator, OwnPlane, PATIENCE, Tenant, eventually, kubectl,
        kubevirt::{self, Region, kinds, storage},
    },
    webhooks::setting,
};
use runtime::watch::backoff;

const PREFIX: &str = "kills-";
/// The label by which everything of a server is known.
const INSTANCE_UID: &str = "stellage.dev/instance-uid";
/// The same of backups and of private networks.
const BACKUP_UID: &str = "stellage.dev/backup-uid";
const NETWORK_UID: &str = "stellage.dev/network-uid";
/// The annotation of a run that says which operation powered it on.
const BOOT: &str = "stellage.dev/boot";
/// The private network that many servers share.
const SHARED_NETWORK: &str = "pn-shared";
/// Networks that come and go, one after the other, while servers live in others.
const PASSING_NETWORKS: u32 = 2;
/// Most backups that one server keeps.
const MOST_BACKUPS: usize = 3;
/// Operations of each server at least. They go on until the last kill.
const OPERATIONS: usize = 3;
/// Events that REST shows at once.
const PAGE: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Stellage,
    VirtController,
    ApiServer,
    StellageAndApiServer,
}

const VICTIMS: [Victim; 4] = [
    Victim::Stellage,
    Victim::VirtController,
    Victim::ApiServer,
    Victim::StellageAndApiServer,
];

/// What nobody may be told, for it is never the case.
const UNTRUE: [&str; 11] = [
    "ClusterFault",
    "DiskCannotGrow",
    "ImageFailed",
    "NameTaken",
    "NamespaceUnusable",
    "NoFreeAddress",
    "PrivateNetworkChanged",
    "PrivateNetworkMissing",
    "PrivateNetworksUnavailable",
    "Refused",
    "ServerMissing",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Start,
    Stop,
    PowerOff,
    Reboot,
    Resize(Plan),
    /// From the newest backup, if the server is patient and has one; else from its image.
    Rebuild,
}

/// A backup that a server has.
#[derive(Debug)]
struct Kept {
    name: String,
    uid: String,
    /// Name of its snapshot in the region.
    snapshot: String,
}

/// What was asked of a server, and what must come of it.
#[derive(Debug)]
struct Life {
    id: String,
    uid: String,
    /// Whether each operation was awaited before the next one was asked for, so that exactly these things had to happen.
    is_patient: bool,
    is_on: bool,
    is_deleted: bool,
    asked: Vec<Ask>,
    /// How often it had to be powered on.
    boots: usize,
    events: Vec<&'static str>,
    /// The private network that it is in.
    network: Option<String>,
    /// How many backups there have been of it, and those that there are.
    backed_up: usize,
    backups: Vec<Kept>,
    /// The snapshot that its disk is made of, if it was restored last.
    restored: Option<String>,
}

impl Life {
    fn tell(&mut self, event: &'static str) {
        self.events.push(event);
    }

    fn boot(&mut self) {
        self.boots += 1;
        self.tell("instance.started");
    }

    /// The change of the spec that asks for something, taken note of.
    fn ask(&mut self, ask: Ask) -> Value {
        self.asked.push(ask);
        let count = self.asked.len();
        let nonce = format!(
            "2026-11-27T{:02}:{:02}:{:02}Z",
            count / 3600,
            count / 60 % 60,
            count % 60
        );
        match ask {
            Ask::Start => self.is_on = true,
            Ask::Stop | Ask::PowerOff => self.is_on = false,
            Ask::Reboot | Ask::Resize(_) | Ask::Rebuild => {}
        }
        match ask {
            Ask::Stop | Ask::PowerOff => self.tell("instance.stopped"),
            _ if self.is_on => self.boot(),
            // It may be seen before the stop that was asked for just before.
            Ask::Rebuild if !self.is_patient => self.boot(),
            _ => {}
        }
        match ask {
            Ask::Start => json!({ "powerState": "Running" }),
            Ask::Stop => json!({ "powerState": "Stopped" }),
            Ask::PowerOff => json!({ "powerState": "Stopped", "powerOffRequestedAt": nonce }),
            Ask::Reboot => json!({ "rebootRequestedAt": nonce }),
            Ask::Resize(plan) => json!({ "plan": plan }),
            Ask::Rebuild => {
                let backup = self.backups.last().filter(|_| self.is_patient);
                self.restored = backup.map(|backup| backup.snapshot.clone());
                json!({ "rebuildRequestedAt": nonce, "restoreFrom": backup.map(|backup| &backup.name) })
            }
        }
    }
}

/// What the watches have shown.
#[derive(Default)]
struct Shown {
    instances: HashMap<String, Instance>,
    /// Of each server, by its name, all its runs by their UIDs, and what was seen of each.
    runs: HashMap<String, BTreeMap<String, Vec<String>>>,
    /// By UID of the instance.
    addresses: HashMap<String, String>,
    /// The same within private networks, with the network's name.
    private_addresses: HashMap<String, String>,
    faults: Vec<String>,
}

/// Takes note of an address, which nobody else may have, and which stays the same.
fn take(all: &mut HashMap<String, String>, faults: &mut Vec<String>, uid: &str, address: String) {
    if let Some((other, _)) = all
        .iter()
        .find(|(other, taken)| *other != uid && **taken == address)
    {
        faults.push(format!("{other} and {uid} have {address}"));
    }
    let before = all.insert(uid.to_owned(), address.clone());
    if before.is_some_and(|before| before != address) {
        faults.push(format!("{uid} has another address: {address}"));
    }
}

impl Shown {
    fn instance(&mut self, instance: Instance) {
        let uid = instance.uid().unwrap();
        let status = instance.status.as_ref();
        if let Some(address) = status.and_then(|status| status.ip_address.clone()) {
            take(&mut self.addresses, &mut self.faults, &uid, address);
        }
        let private = status.and_then(|status| status.private_ip_address.as_ref());
        if let Some((network, address)) = instance.spec.private_network.as_ref().zip(private) {
            let address = format!("{address} in {network}");
            take(&mut self.private_addresses, &mut self.faults, &uid, address);
        }
        let conditions = instance.status.iter().flat_map(|status| &status.conditions);
        let untrue = conditions.filter(|condition| UNTRUE.contains(&condition.reason.as_str()));
        self.faults.extend(
            untrue.map(|condition| format!("{uid} is told {}: {}", condition.reason, condition.message)),
        );
        self.instances.insert(instance.name_any(), instance);
    }
}

struct World {
    region: Region,
    tenant: Tenant,
    namespace: String,
    shown: Mutex<Shown>,
    /// Nobody is killed any more.
    is_over: CancellationToken,
    patience: Duration,
    /// How often a server came to rest.
    done: AtomicUsize,
    /// When somebody was killed last.
    killed_at: Mutex<Instant>,
}

impl World {
    async fn watch_instances(&self) {
        let events = watcher(self.tenant.instances(), watcher::Config::default()).backoff(backoff());
        let see = async |event: Event<Instance>| {
            let mut shown = self.shown.lock();
            match event {
                Event::Apply(instance) | Event::InitApply(instance) => shown.instance(instance),
                Event::Delete(instance) => {
                    let uid = instance.uid().unwrap();
                    shown.addresses.remove(&uid);
                    shown.private_addresses.remove(&uid);
                    shown.instances.remove(&instance.name_any());
                }
                Event::Init | Event::InitDone => {}
            }
        };
        events.filter_map(async |event| event.ok()).for_each(see).await;
    }

    async fn watch_runs(&self) {
        let runs = self.region.api(&kinds::RUN, &self.namespace).await;
        let events = watcher(runs, watcher::Config::default()).backoff(backoff());
        let see = async |event: Event<DynamicObject>| {
            let is_gone = matches!(event, Event::Delete(_));
            if let Event::Apply(run) | Event::InitApply(run) | Event::Delete(run) = event {
                let seen = format!(
                    "{}: {} {:?} {}{}",
                    jiff::Timestamp::now(),
                    run.data["status"]["phase"],
                    run.annotations().get(BOOT),
                    if run.metadata.deletion_timestamp.is_some() {
                        "is being deleted"
                    } else {
                        ""
                    },
                    if is_gone { ", gone" } else { "" },
                );
                let mut shown = self.shown.lock();
                let runs = shown.runs.entry(run.name_any()).or_default();
                runs.entry(run.uid().unwrap()).or_default().push(seen);
            }
        };
        events.filter_map(async |event| event.ok()).for_each(see).await;
    }

    async fn watching<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            done = work => done,
            () = self.watch_instances() => unreachable!("a watch has no end"),
            () = self.watch_runs() => unreachable!("a watch has no end"),
        }
    }

    /// Waits until an instance has become what this generation of its spec asks for.
    async fn rests(&self, name: &str, generation: i64) {
        let rests = |instance: &Instance| {
            instance.metadata.generation.is_some_and(|now| now >= generation) && is_at_rest(instance)
        };
        self.wait(name, async || {
            self.shown.lock().instances.get(name).is_some_and(rests)
        })
        .await;
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    async fn wait(&self, name: &str, is_reached: impl AsyncFn() -> bool) {
        let begun = Instant::now();
        while !is_reached().await {
            // As long as something is killed again and again, there need be no end.
            let undisturbed = begun.max(*self.killed_at.lock());
            if undisturbed.elapsed() >= self.patience {
                let instance = self.shown.lock().instances.get(name).cloned();
                let backup = self.tenant.backups().get_opt(name).await.unwrap();
                let there = self.there().await;
                panic!(
                    "waited in vain for {name}: {}\n{}\nIn the region:\n{there}",
                    json!(instance.map(|instance| instance.status)),
                    json!(backup.map(|backup| backup.status)),
                );
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// What is in the region, in a line each.
    async fn there(&self) -> String {
        let claims = ApiResource::erase::<PersistentVolumeClaim>(&());
        let mut there = String::new();
        for kind in [&kinds::VM, &kinds::RUN, &kinds::DISK, &claims, &kinds::SNAPSHOT] {
            let all = self.region.api(kind, &self.namespace).await;
            for object in all.list(&ListParams::default()).await.unwrap() {
                let (metadata, status) = (&object.metadata, &object.data["status"]);
                let _ = writeln!(
                    there,
                    "{} {}: made {:?}, deleted {:?}, {:?}, {status}",
                    kind.kind,
                    object.name_any(),
                    metadata.creation_timestamp,
                    metadata.deletion_timestamp,
                    metadata.finalizers,
                );
            }
        }
        there
    }

    fn networks(&self) -> Api<PrivateNetwork> {
        Api::namespaced(self.tenant.kube.clone(), &self.tenant.namespace)
    }

    async fn order_network(&self, name: &str) {
        let spec = serde_json::from_value(json!({ "region": REGION })).unwrap();
        self.tenant.create(&PrivateNetwork::new(name, spec)).await;
    }

    /// Deletes a network, and waits until it is gone.
    async fn delete_network(&self, name: &str) {
        let networks = self.networks();
        networks.delete(name, &DeleteParams::default()).await.unwrap();
        let is_gone = async || networks.get_opt(name).await.unwrap().is_none();
        self.wait(name, is_gone).await;
    }

    /// Orders networks, one after the other, and deletes each again, every second one before it need be made. Returns how many.
    async fn pass_networks(&self, number: u32, mut rng: StdRng) -> usize {
        let mut count = 0;
        while count < OPERATIONS || !self.is_over.is_cancelled() {
            let name = format!("pn-passing-{number}-{count}");
            self.order_network(&name).await;
            pause(&mut rng, 0..1500).await;
            if count % 2 == 0 {
                let is_ready = async || {
                    let network = self.networks().get(&name).await.unwrap();
                    network.ready().is_some_and(|ready| ready.status == "True")
                };
                self.wait(&name, is_ready).await;
            }
            self.delete_network(&name).await;
            count += 1;
        }
        count
    }

    /// Backs a server up. A patient one waits for that, and deletes a backup if there are many.
    async fn back_up(&self, server: &str, life: &mut Life) {
        let backups = self.tenant.backups();
        let name = format!("{server}-{}", life.backed_up);
        let spec = serde_json::from_value(json!({ "instance": server })).unwrap();
        let made = self.tenant.create(&Backup::new(&name, spec)).await;
        life.backed_up += 1;
        life.backups.push(Kept {
            uid: made.uid().unwrap(),
            snapshot: made.id().replace('_', "-"),
            name: name.clone(),
        });
        if !life.is_patient {
            return;
        }
        let is_completed = async || {
            let backup = backups.get(&name).await.unwrap();
            assert_ne!(backup.phase(), BackupPhase::Failed, "{backup:#?}");
            backup.phase() == BackupPhase::Completed
        };
        self.wait(&name, is_completed).await;
        if life.backups.len() == MOST_BACKUPS {
            let oldest = life.backups.remove(0).name;
            backups.delete(&oldest, &DeleteParams::default()).await.unwrap();
            let is_gone = async || backups.get_opt(&oldest).await.unwrap().is_none();
            self.wait(&oldest, is_gone).await;
        }
    }

    async fn live(&self, number: u32, mut rng: StdRng) -> Life {
        pause(&mut rng, 0..2000).await;
        let name = format!("web-{number}");
        // Some share a network, some have one that goes with them, and some none.
        let own = format!("pn-{name}");
        let network = match number % 3 {
            0 => Some(SHARED_NETWORK),
            1 => {
                self.order_network(&own).await;
                Some(own.as_str())
            }
            _ => None,
        };
        let order = |instance: &mut Instance| {
            REGION.clone_into(&mut instance.spec.region);
            instance.spec.private_network = network.map(ToOwned::to_owned);
        };
        let mut instance = self.tenant.apply(&name, order).await;
        let mut life = Life {
            id: instance.id(),
            uid: instance.uid().unwrap(),
            is_patient: number % 4 != 3,
            is_on: true,
            is_deleted: false,
            asked: Vec::new(),
            boots: 0,
            events: vec!["instance.created"],
            network: network.map(ToOwned::to_owned),
            backed_up: 0,
            backups: Vec::new(),
            restored: None,
        };
        life.boot();
        if rng.random_ratio(1, 6) {
            self.region
                .puppet
                .order(&self.namespace, &life.id, |guest| guest.is_deaf = true);
        }
        let rests =
            async |instance: &Instance| self.rests(&name, instance.metadata.generation.unwrap()).await;
        while life.asked.len() < OPERATIONS || !self.is_over.is_cancelled() {
            if life.is_patient {
                rests(&instance).await;
            }
            if rng.random_ratio(1, 2) && life.backups.len() < MOST_BACKUPS {
                self.back_up(&name, &mut life).await;
            }
            pause(&mut rng, if life.is_patient { 0..1500 } else { 0..3000 }).await;
            let ask = choose(&mut rng, life.is_on, instance.spec.plan);
            let change = json!({ "spec": life.ask(ask) });
            instance = self.tenant.merge(&name, &change).await;
        }
        if life.is_patient || rng.random_ratio(1, 2) {
            rests(&instance).await;
        }
        if rng.random_ratio(1, 4) {
            let params = DeleteParams::default();
            self.tenant.instances().delete(&name, &params).await.unwrap();
            let is_gone = async || !self.shown.lock().instances.contains_key(&name);
            // The network waits for its server.
            let with_network = async {
                if network == Some(own.as_str()) {
                    self.delete_network(&own).await;
                }
            };
            tokio::join!(self.wait(&name, is_gone), with_network);
            life.is_deleted = true;
            life.tell("instance.deleted");
        } else {
            rests(&instance).await;
        }
        life
    }

    async fn kill(&self, victim: Victim, stellage: &mut Stellage<'_>, rng: &mut StdRng) {
        *self.killed_at.lock() = Instant::now();
        let plane = &self.region.plane;
        if matches!(victim, Victim::ApiServer | Victim::StellageAndApiServer) {
            plane.kill_apiserver().unwrap();
        }
        match victim {
            Victim::Stellage | Victim::StellageAndApiServer => {
                stellage.operator.die(stellage.plane).await;
                pause(rng, 0..1000).await;
                stellage.operator = Operator::start(stellage.plane, &stellage.arguments()).await;
            }
            Victim::VirtController => {
                self.region.kill_virt_controller();
                pause(rng, 0..2000).await;
                self.region.start_virt_controller().await;
            }
            Victim::ApiServer => pause(rng, 0..2000).await,
        }
        if matches!(victim, Victim::ApiServer | Victim::StellageAndApiServer) {
            plane.start_apiserver().await.unwrap();
            self.region.revive().await;
        }
    }

    async fn list<K>(&self) -> Vec<(String, K)>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        let client = self.region.plane.client(Identity::Admin).await.unwrap();
        by_uid(Api::<K>::namespaced(client, &self.namespace), INSTANCE_UID).await
    }

    async fn list_of(&self, kind: &ApiResource) -> Vec<(String, DynamicObject)> {
        by_uid(self.region.api(kind, &self.namespace).await, INSTANCE_UID).await
    }

    /// The UIDs of the backups that have a snapshot, and of the networks that have each of their parts.
    async fn kept_beside_servers(&self) -> [(&'static str, Vec<String>); 4] {
        let client = self.region.plane.client(Identity::Admin).await.unwrap();
        let snapshots = self.region.api(&kinds::SNAPSHOT, &self.namespace).await;
        let of_cluster = |kind| Api::<DynamicObject>::all_with(client.clone(), kind);
        let attachments = self.region.api(&kinds::NETWORK_ATTACHMENT, &self.namespace).await;
        let found = [
            ("snapshots", by_uid(snapshots, BACKUP_UID).await),
            ("vpcs", by_uid(of_cluster(&kinds::VPC), NETWORK_UID).await),
            ("subnets", by_uid(of_cluster(&kinds::SUBNET), NETWORK_UID).await),
            ("attachments", by_uid(attachments, NETWORK_UID).await),
        ];
        found.map(|(what, found)| (what, found.into_iter().map(first).collect()))
    }

    /// What is there that should not be, or is missing.
    async fn differences(&self, lives: &[Life]) -> Vec<String> {
        let of = |is_wanted: fn(&Life) -> bool| -> Vec<&str> {
            let wanted = lives.iter().filter(|life| is_wanted(life));
            let mut uids: Vec<&str> = wanted.map(|life| life.uid.as_str()).collect();
            uids.sort_unstable();
            uids
        };
        let (kept, on) = (
            of(|life| !life.is_deleted),
            of(|life| !life.is_deleted && life.is_on),
        );
        let uids = |mut uids: Vec<String>| {
            uids.sort_unstable();
            uids
        };
        let machines = self.list_of(&kinds::VM).await;
        let runs = self.list_of(&kinds::RUN).await;
        let disks = self.list_of(&kinds::DISK).await;
        let (claims, pods) = (
            self.list::<PersistentVolumeClaim>().await,
            self.list::<Pod>().await,
        );
        let mut secrets = uids(self.list::<Secret>().await.into_iter().map(first).collect());
        // Those of former disks stay until their server is deleted.
        secrets.dedup();
        let found = [
            ("machines", uids(machines.into_iter().map(first).collect()), &kept),
            ("runs", uids(runs.into_iter().map(first).collect()), &on),
            ("disks", uids(disks.into_iter().map(first).collect()), &kept),
            ("claims", uids(claims.into_iter().map(first).collect()), &kept),
            ("pods", uids(pods.into_iter().map(first).collect()), &on),
            ("secrets", secrets, &kept),
        ];
        let differ = found.into_iter().filter_map(|(what, found, wanted)| {
            let wanted: Vec<String> = wanted.iter().map(|uid| (*uid).to_owned()).collect();
            difference(what, &found, &wanted)
        });

        let networks = self.networks().list(&ListParams::default()).await.unwrap().items;
        let mut names: Vec<String> = networks.iter().map(kube::ResourceExt::name_any).collect();
        names.sort_unstable();
        let its_own = lives.iter().filter(|life| !life.is_deleted);
        let its_own = its_own.filter_map(|life| life.network.clone());
        let mut wanted: Vec<String> = its_own.chain([SHARED_NETWORK.to_owned()]).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let wrong = difference("networks", &names, &wanted);
        let networks = uids(networks.iter().filter_map(kube::ResourceExt::uid).collect());
        let backups = self.tenant.all_backups().await.into_iter();
        let backups = backups.filter(|backup| backup.phase() != BackupPhase::Failed);
        let backups = uids(backups.filter_map(|backup| backup.uid()).collect());
        let beside = self.kept_beside_servers().await.into_iter();
        let beside = beside.filter_map(|(what, found)| {
            let wanted = if what == "snapshots" { &backups } else { &networks };
            difference(what, &uids(found), wanted)
        });
        differ.chain(wrong).chain(beside).collect()
    }

    /// The last events of a server and its backups.
    async fn events(&self, id: &str) -> Vec<String> {
        let path = format!("/v1/events?instance_id={id}&limit={PAGE}");
        let answer = self.tenant.call(reqwest::Method::GET, &path, None).await;
        let events = answer.json()["data"].as_array().cloned().unwrap();
        let types = events
            .iter()
            .rev()
            .map(|event| event["type"].as_str().unwrap().to_owned());
        types.collect()
    }

    async fn check(&self, lives: &[Life]) {
        assert_eq!(self.shown.lock().faults, Vec::<String>::new());
        eventually(
            "exactly what was ordered to be in the region",
            async || self.differences(lives).await,
            Vec::is_empty,
        )
        .await;
        let machines: HashMap<_, _> = self.list_of(&kinds::VM).await.into_iter().collect();
        let claims: HashMap<_, _> = self.list::<PersistentVolumeClaim>().await.into_iter().collect();
        let disks: HashMap<_, _> = self.list_of(&kinds::DISK).await.into_iter().collect();
        for life in lives {
            let runs = self.shown.lock().runs.get(&life.id).cloned().unwrap_or_default();
            if life.is_patient {
                assert_eq!(runs.len(), life.boots, "power-ons of {life:#?}: {runs:#?}");
            } else {
                assert!(
                    (1..=life.boots).contains(&runs.len()),
                    "power-ons of {life:#?}: {runs:#?}"
                );
            }
            let all = life.events.len() + life.backed_up;
            let told = eventually(
                "the last event",
                async || self.events(&life.id).await,
                |told| told.len() >= all.min(PAGE) || !life.is_patient,
            )
            .await;
            let is_page = told.len() == PAGE;
            let (of_backups, told): (Vec<String>, Vec<String>) =
                told.into_iter().partition(|event| event.starts_with("backup."));
            if life.is_patient {
                let from = if is_page {
                    life.events.len() - told.len()
                } else {
                    0
                };
                assert_eq!(told, life.events[from..], "events of {life:#?}");
                assert!(
                    is_page || of_backups == vec!["backup.completed"; life.backed_up],
                    "{of_backups:?} of {life:#?}"
                );
            } else {
                Self::check_order(life, &told);
            }
            self.check_backups(life).await;
            if life.is_deleted {
                continue;
            }
            let instance = self
                .shown
                .lock()
                .instances
                .values()
                .find(|it| it.id() == life.id)
                .cloned();
            let instance = instance.unwrap();
            let size = instance.spec.plan.size();
            let spec = &machines[&life.uid].data["spec"];
            let strategy = if life.is_on { "RerunOnFailure" } else { "Halted" };
            assert_eq!(spec["runStrategy"], strategy, "{life:#?}");
            let memory = &spec["template"]["spec"]["domain"]["memory"]["guest"];
            assert_eq!(*memory, format!("{}Gi", size.memory_gb), "{life:#?}");
            if let Some(network) = &life.network {
                let address = instance.status.as_ref().unwrap().private_ip_address.clone();
                let annotations = spec["template"]["metadata"]["annotations"].to_string();
                assert!(
                    address.is_some_and(|address| annotations.contains(&address)),
                    "{network}: {annotations} of {life:#?}"
                );
            }
            if life.is_patient {
                let source = &disks[&life.uid].data["spec"]["source"]["snapshot"]["name"];
                assert_eq!(*source, json!(life.restored), "{life:#?}");
            }
            let claimed = claims[&life.uid]
                .spec
                .as_ref()
                .and_then(|spec| spec.resources.as_ref());
            let claimed = claimed.and_then(|resources| resources.requests.as_ref()).unwrap();
            let disk = instance
                .status
                .as_ref()
                .and_then(|status| status.disk_size_gb)
                .unwrap();
            assert_eq!(claimed["storage"].0, format!("{disk}Gi"), "{life:#?}");
        }
    }

    /// The backups that a server has kept, or left behind, and their snapshots.
    async fn check_backups(&self, life: &Life) {
        let snapshots = self.region.api(&kinds::SNAPSHOT, &self.namespace).await;
        for kept in &life.backups {
            let backups = self.tenant.backups();
            let phase = async || backups.get(&kept.name).await.unwrap().phase();
            let has_ended =
                |phase: &BackupPhase| matches!(phase, BackupPhase::Completed | BackupPhase::Failed);
            let phase = eventually("the backup to end", phase, has_ended).await;
            // One that had not begun when the server was deleted.
            if life.is_deleted && !life.is_patient && phase == BackupPhase::Failed {
                continue;
            }
            assert_eq!(phase, BackupPhase::Completed, "{kept:?} of {life:#?}");
            let snapshot = snapshots.get(&kept.snapshot).await.unwrap();
            assert_eq!(snapshot.labels()[BACKUP_UID], kept.uid);
            assert_eq!(snapshot.labels()[INSTANCE_UID], life.uid);
        }
    }

    /// The events of a server that was asked for something else before the last was done.
    fn check_order(life: &Life, told: &[String]) {
        let mut on_or_off = told.iter().filter(|event| *event != "instance.created");
        if life.is_deleted {
            assert_eq!(on_or_off.next_back().unwrap(), "instance.deleted", "{life:#?}");
        } else {
            let last = on_or_off.next_back().unwrap();
            assert_eq!(last == "instance.started", life.is_on, "{told:?} of {life:#?}");
        }
        let stops = told
            .iter()
            .map(|event| event == "instance.stopped")
            .collect::<Vec<_>>();
        assert!(
            !stops.windows(2).any(|two| two == [true, true]),
            "{told:?} of {life:#?}"
        );
    }
}

/// Stellage, with what it is started with.
struct Stellage<'a> {
    plane: &'a OwnPlane,
    operator: Operator,
    catalogue: String,
}

impl Stellage<'_> {
    fn arguments(&self) -> [&str; 4] {
        arguments(&self.catalogue)
    }
}

fn arguments(catalogue: &str) -> [&str; 4] {
    [
        "run",
        "--provisioning-seconds=0.5",
        "--private-networks-per-account=1000",
        catalogue,
    ]
}

/// What is there too much of, and what is missing. Both are sorted.
fn difference(what: &str, found: &[String], wanted: &[String]) -> Option<String> {
    let without = |all: &[String], others: &[String]| -> Vec<String> {
        all.iter().filter(|one| !others.contains(one)).cloned().collect()
    };
    (found != wanted).then(|| {
        let (surplus, missing) = (without(found, wanted), without(wanted, found));
        format!(
            "{what}: {surplus:?} too much, {missing:?} missing, {} of {}",
            found.len(),
            wanted.len()
        )
    })
}

fn first<T>(pair: (String, T)) -> String {
    pair.0
}

/// The objects with the UID that this label has.
async fn by_uid<K>(api: Api<K>, label: &str) -> Vec<(String, K)>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let all = api.list(&ListParams::default().labels(label)).await.unwrap();
    let of = |object: K| (object.labels()[label].clone(), object);
    all.items.into_iter().map(of).collect()
}

fn is_at_rest(instance: &Instance) -> bool {
    let state = match instance.spec.power_state {
        PowerState::Running => InstanceState::Running,
        PowerState::Stopped => InstanceState::Stopped,
    };
    let (spec, status) = (&instance.spec, instance.status.as_ref());
    status.is_some_and(|status| {
        status.observed_generation == instance.metadata.generation
            && status.operation.is_none()
            && status.power == Some(spec.power_state)
            && status.state == Some(state)
            && status.plan == Some(spec.plan)
            && status.reboot_requested_at == spec.reboot_requested_at
            && status.rebuild_requested_at == spec.rebuild_requested_at
    })
}

fn choose(rng: &mut StdRng, is_on: bool, plan: Plan) -> Ask {
    let other: Vec<Plan> = Plan::ALL.into_iter().filter(|other| *other != plan).collect();
    let resize = Ask::Resize(*other.choose(rng).unwrap());
    let asks = if is_on {
        [
            Ask::Stop,
            Ask::PowerOff,
            Ask::Reboot,
            Ask::Reboot,
            resize,
            Ask::Rebuild,
        ]
    } else {
        [
            Ask::Start,
            Ask::Start,
            Ask::Start,
            Ask::Start,
            resize,
            Ask::Rebuild,
        ]
    };
    *asks.choose(rng).unwrap()
}

async fn pause(rng: &mut StdRng, milliseconds: std::ops::Range<u64>) {
    tokio::time::sleep(Duration::from_millis(rng.random_range(milliseconds))).await;
}

/// The catalogue with a region whose addresses are Stellage's own.
async fn catalogue(region: &Region, plane: &OwnPlane) -> String {
    let attachment = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": { "name": "public" },
        "spec": { "config": r#"{"cniVersion":"0.3.1","name":"public","type":"bridge","bridge":"br-public","ipam":{}}"# },
    });
    region.namespace("networks").await;
    let apply = "-n networks apply -f -";
    kubectl(&region.plane, apply, Some(&attachment.to_string())).unwrap();
    let with_networks = json!({ "privateNetworks": "kubeOvn" });
    let account = region_rights_with(region, "kills", PREFIX, &with_networks).await;
    let mut entry = entry(REGION, &account, "kills", PREFIX);
    region.storage().await;
    entry["kubevirt"]["storageClass"] = storage::VOLUMES.into();
    entry["kubevirt"]["snapshotClass"] = storage::SNAPSHOTS.into();
    entry["kubevirt"]["network"] = json!({
        "profile": "bridge", "attachment": "networks/public", "antiSpoofing": "external",
        "ipv4": [{ "prefix": "10.77.0.0/20", "gateway": "10.77.0.1" }], "nameservers": ["9.9.9.9"],
        "privateNetworks": "kubeOvn",
    });
    format!(
        "--catalogue={}",
        write_catalogue(&[entry], plane.folder()).display()
    )
}

#[tokio::test]
async fn whatever_is_killed_and_when_nothing_happens_twice_and_nothing_is_lost() {
    let servers: u32 = setting("STELLAGE_TEST_KUBEVIRT_SERVERS", 12);
    let kills: usize = setting("STELLAGE_TEST_KUBEVIRT_KILLS", 4);
    let seed: u64 = setting("STELLAGE_TEST_KUBEVIRT_SEED", rand::rng().random());
    println!("STELLAGE_TEST_KUBEVIRT_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let (region, plane) = kubevirt::own_with_plane().await;
    let catalogue = catalogue(&region, &plane).await;
    let operator = Operator::start(&plane, &arguments(&catalogue)).await;
    let tenant = Tenant::with(&plane, &operator, "kills", |spec| {
        spec.rate_limit_per_hour = Some(1_000_000);
    })
    .await;
    let mut stellage = Stellage {
        plane: &plane,
        operator,
        catalogue,
    };
    let mut world = World {
        namespace: format!("{PREFIX}kills"),
        region,
        tenant,
        shown: Mutex::default(),
        is_over: CancellationToken::new(),
        patience: PATIENCE + Duration::from_secs(servers.into()),
        done: AtomicUsize::new(0),
        killed_at: Mutex::new(Instant::now()),
    };
    world.region.puppet.install_agents(&world.namespace);
    world.order_network(SHARED_NETWORK).await;
    let begun = Instant::now();
    let mut killed: BTreeMap<String, usize> = BTreeMap::new();
    let (lives, passed) = {
        let world = &world;
        let lives = join_all((0..servers).map(|number| {
            let rng = StdRng::seed_from_u64(rng.random());
            world.live(number, rng)
        }));
        let passing = join_all((0..PASSING_NETWORKS).map(|number| {
            let rng = StdRng::seed_from_u64(rng.random());
            world.pass_networks(number, rng)
        }));
        let killing = async {
            for round in 0..kills {
                pause(&mut rng, 300..3000).await;
                // Sometimes before everything has recovered.
                if round % 4 != 3 {
                    let done =
                        world.done.load(Ordering::Relaxed) + 1 + usize::try_from(servers / 20).unwrap();
                    let now = async || world.done.load(Ordering::Relaxed);
                    eventually("operations to go on", now, |now| *now >= done).await;
                }
                let victim = VICTIMS[(round + usize::try_from(seed % 4).unwrap()) % VICTIMS.len()];
                *killed.entry(format!("{victim:?}")).or_default() += 1;
                world.kill(victim, &mut stellage, &mut rng).await;
            }
            world.is_over.cancel();
        };
        let working = async {
            let (lives, passed, ()) = tokio::join!(lives, passing, killing);
            (lives, passed.into_iter().sum::<usize>())
        };
        Box::pin(world.watching(working)).await
    };
    // The last one has only what the others have left behind.
    stellage.operator.die(&plane).await;
    stellage.operator = Operator::start(&plane, &stellage.arguments()).await;
    world.tenant.url.clone_from(&stellage.operator.url);
    Box::pin(world.watching(world.check(&lives))).await;
    let asked: usize = lives.iter().map(|life| life.asked.len() + 1).sum();
    let boots: usize = world.shown.lock().runs.values().map(BTreeMap::len).sum();
    let backups: usize = lives.iter().map(|life| life.backed_up).sum();
    let restored = lives.iter().filter(|life| life.restored.is_some()).count();
    println!(
        "{kills} kills {killed:?}, {servers} servers, {asked} operations, {boots} power-ons, {backups} backups, {restored} servers restored, {passed} networks come and gone, {:.0?}",
        begun.elapsed()
    );
    stellage.operator.stop().await;
}
