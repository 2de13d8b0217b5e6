//! Plays what a cluster has around KubeVirt's servers: the node with its kubelet and virt-handler ([`guests`]), and the importer of
//! disks with storage that has no snapshots ([`disks`]), what binds the volumes of [`storage`](super::storage) ([`volumes`]), and kube-ovn
//! ([`networks`]). Everything happens at once, and well, unless a test has ordered otherwise.

mod disks;
mod guests;
mod networks;
mod volumes;

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, channel::mpsc, future::join5};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{
    Api, Client, Config,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    runtime::{
        WatchStreamExt as _,
        controller::{Action, Controller},
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::kinds;
use runtime::watch::backoff;

/// The only node.
pub const NODE: &str = "node-1";
const HEARTBEAT_EVERY: Duration = Duration::from_secs(30);
const REPEAT_AFTER: Duration = Duration::from_millis(100);

/// How a virtual machine's guest, and the node below it, behave: in this run and the following ones.
#[derive(Clone, Debug)]
pub struct Guest {
    pub boot: Boot,
    /// How long it takes to shut down when asked to: by a soft stop, or by the deletion of its Pod. If that is longer than the
    /// grace period, it is killed, and the run has failed.
    pub shutdown_takes: Duration,
    /// Whether it does not hear that it should shut down.
    pub is_deaf: bool,
    /// Whether it is paused because its disk failed.
    pub is_paused: bool,
    /// Whether its node no longer answers: the Pod is not ready, and nothing that is asked happens.
    pub is_lost: bool,
    /// Ends the current run, or the next one if there is none; then it is none again.
    pub ends: Option<End>,
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            boot: Boot::Succeeds,
            shutdown_takes: Duration::from_millis(200),
            is_deaf: false,
            is_paused: false,
            is_lost: false,
            ends: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boot {
    Succeeds,
    /// virt-handler does not get around to it: the run stays Scheduled.
    Waits,
    /// The run fails before it was ever Running.
    Crashes,
    /// No node has room for the Pod.
    FindsNoNode,
    /// The launcher's image cannot be pulled.
    FindsNoImage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest has shut itself down.
    ShutsDown,
    /// QEMU has crashed.
    Crashes,
}

/// How the disks of a namespace are filled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Import {
    #[default]
    Succeeds,
    /// It has got this far, such as `42.0%`, and goes on.
    IsAt(String),
    /// The importer's Pod stops with this error, and is started again: `ImportInProgress` with `Running=False`.
    Fails(String),
    /// The importer has given up: `Failed`.
    GivesUp,
    /// The claim exceeds a quota.
    ExceedsQuota,
}

/// The puppet, on a thread of its own, which ends when this is dropped.
pub struct Puppet {
    stage: Arc<Stage>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

/// What tests have ordered.
#[derive(Default)]
struct Stage {
    guests: Mutex<HashMap<(String, String), Guest>>,
    imports: Mutex<HashMap<String, Import>>,
    /// Namespaces in which claims are not enlarged.
    not_growing: Mutex<HashSet<String>>,
    /// The namespaces whose guests have an agent.
    agents: Mutex<HashSet<String>>,
    /// By UID of the run: when it was first seen that it should end.
    asked: Mutex<HashMap<String, Instant>>,
    /// Makes the puppet look at everything again.
    again: Mutex<Vec<mpsc::UnboundedSender<()>>>,
}

struct Context {
    stage: Arc<Stage>,
    client: Client,
    /// virt-handler's own rights: KubeVirt lets nobody else change a run.
    handler: Client,
    pods: Store<Pod>,
}

impl Puppet {
    /// Starts it with the kubeconfigs of an administrator, and of virt-handler.
    pub fn start(admin: PathBuf, handler: PathBuf) -> Self {
        let stage = Arc::new(Stage::default());
        let (guests, disks) = (stage.listen(), stage.listen());
        let stop = CancellationToken::new();
        let (playing, stopped) = (stage.clone(), stop.clone());
        // A test's runtime ends with the test, but the puppet plays for all of them.
        let play = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let (client, handler) = (client(&admin).await, client(&handler).await);
                let (pods, writer) = reflector::store();
                let context = Arc::new(Context {
                    stage: playing,
                    client,
                    handler,
                    pods,
                });
                let play = join5(
                    heartbeat(context.client.clone()),
                    play_guests(context.clone(), writer, guests),
                    play_disks(context.clone(), disks),
                    play_volumes(context.clone()),
                    play_networks(context),
                );
                stopped.run_until_cancelled(Box::pin(play)).await;
            });
        };
        let thread = std::thread::Builder::new().name("puppet".to_owned()).spawn(play);
        Self {
            stage,
            stop,
            thread: Some(thread.unwrap()),
        }
    }

    /// Changes how the guest of a virtual machine behaves, which need not exist yet.
    pub fn order(&self, namespace: &str, vm: &str, change: impl Fn(&mut Guest)) {
        self.order_all([(namespace.to_owned(), vm.to_owned())], change);
    }

    /// The same for several virtual machines, each with its namespace.
    pub fn order_all(&self, vms: impl IntoIterator<Item = (String, String)>, change: impl Fn(&mut Guest)) {
        for key in vms {
            change(self.stage.guests.lock().entry(key).or_default());
        }
        self.stage.look_again();
    }

    /// Lets the guests of a namespace have an agent.
    pub fn install_agents(&self, namespace: &str) {
        self.stage.agents.lock().insert(namespace.to_owned());
        self.stage.look_again();
    }

    /// Changes how the disks of a namespace are filled, except for those that are.
    pub fn import(&self, namespace: &str, import: Import) {
        self.stage.imports.lock().insert(namespace.to_owned(), import);
        self.stage.look_again();
    }

    /// Has the storage of a namespace enlarge claims, or only say that it will when they are mounted.
    pub fn grow(&self, namespace: &str, grow: bool) {
        let mut not_growing = self.stage.not_growing.lock();
        if grow {
            not_growing.remove(namespace);
        } else {
            not_growing.insert(namespace.to_owned());
        }
        drop(not_growing);
        self.stage.look_again();
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Stage {
    fn listen(&self) -> mpsc::UnboundedReceiver<()> {
        let (sender, receiver) = mpsc::unbounded();
        self.again.lock().push(sender);
        receiver
    }

    fn look_again(&self) {
        for sender in self.again.lock().iter() {
            let _ = sender.unbounded_send(());
        }
    }
}

async fn client(kubeconfig: &PathBuf) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    Client::try_from(config.unwrap()).unwrap()
}

async fn play_guests(
    context: Arc<Context>,
    writer: reflector::store::Writer<Pod>,
    again: mpsc::UnboundedReceiver<()>,
) {
    let launchers = watcher::Config::default().labels("kubevirt.io=virt-launcher");
    let pods = watcher(Api::all(context.client.clone()), launchers);
    // The default one grows to half a minute, after which a guest would seem dead.
    let pods = pods.backoff(backoff()).reflect(writer).touched_objects();
    let runs = Api::<DynamicObject>::all_with(context.client.clone(), &kinds::RUN);
    Controller::new_with(runs, watcher::Config::default(), kinds::RUN.clone())
        .trigger_backoff(backoff())
        .owns_stream(pods)
        .reconcile_all_on(again)
        .run(guests::play, repeat, context)
        .for_each(async |_| {})
        .await;
}

async fn play_disks(context: Arc<Context>, again: mpsc::UnboundedReceiver<()>) {
    let disks = Api::<DynamicObject>::all_with(context.client.clone(), &kinds::DISK);
    let claims = Api::<PersistentVolumeClaim>::all(context.client.clone());
    Controller::new_with(disks, watcher::Config::default(), kinds::DISK.clone())
        .trigger_backoff(backoff())
        .owns(claims, watcher::Config::default())
        .reconcile_all_on(again)
        .run(disks::play, repeat, context)
        .for_each(async |_| {})
        .await;
}

async fn play_volumes(context: Arc<Context>) {
    let volumes = Api::<PersistentVolume>::all(context.client.clone());
    let claims = Api::<PersistentVolumeClaim>::all(context.client.clone());
    Controller::new(volumes, watcher::Config::default())
        .trigger_backoff(backoff())
        .watches(claims, watcher::Config::default(), |claim| {
            let volume = claim.spec?.volume_name?;
            Some(ObjectRef::new(&volume))
        })
        .run(volumes::play, repeat, context)
        .for_each(async |_| {})
        .await;
}

async fn play_networks(context: Arc<Context>) {
    let subnets = Api::<DynamicObject>::all_with(context.client.clone(), &kinds::SUBNET);
    Controller::new_with(subnets, watcher::Config::default(), kinds::SUBNET.clone())
        .trigger_backoff(backoff())
        .run(networks::play, repeat, context)
        .for_each(async |_| {})
        .await;
}

/// What a step met is out of date, or the API server away: the next step sees what is there.
fn repeat<K>(_: Arc<K>, error: &kube::Error, _: Arc<Context>) -> Action {
    if !matches!(error, kube::Error::Api(status) if [404, 409].contains(&status.code)) {
        eprintln!("puppet: {error}");
    }
    Action::requeue(REPEAT_AFTER)
}

/// Creates the node.
pub async fn add_node(client: Client) {
    let node = serde_json::from_value(json!({
        "metadata": {
            "name": NODE,
            "labels": {"kubernetes.io/hostname": NODE, "kubernetes.io/arch": "amd64", "kubevirt.io/schedulable": "true"},
        },
        "status": {
            "addresses": [{"type": "InternalIP", "address": "10.1.0.1"}],
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }));
    let nodes = Api::<Node>::all(client);
    nodes
        .create(&PostParams::default(), &node.unwrap())
        .await
        .unwrap();
}

/// Says from time to time that virt-handler lives on the node: otherwise virt-controller fails its guests.
async fn heartbeat(client: Client) {
    let nodes = Api::<Node>::all(client);
    loop {
        let beat = json!({"metadata": {"annotations": {"kubevirt.io/heartbeat": now()}}});
        let beaten = nodes
            .patch(NODE, &PatchParams::default(), &Patch::Merge(beat))
            .await;
        let pause = if beaten.is_ok() {
            HEARTBEAT_EVERY
        } else {
            REPEAT_AFTER
        };
        tokio::time::sleep(pause).await;
    }
}

/// The time as Kubernetes writes it.
fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
