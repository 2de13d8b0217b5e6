//! KubeVirt without a node: its own API server and controller, with its kinds, admission and aggregated API, on a control plane;
//! [`puppet`] plays the node, the importer of disks and storage without snapshots; [`handler`] plays virt-handler where it is asked for
//! consoles (the [`screen`] is a VNC server), and to freeze guests. [`storage`], with snapshots, is real but for its driver, and is started by the tests that need it.
//!
//! ```ignore
//! let kubevirt = kubevirt::shared().await;
//! kubevirt.namespace("deaf").await;
//! kubevirt.puppet.order("deaf", "vm", |guest| guest.is_deaf = true);
//! let vms = kubevirt.api(&kinds::VM, "deaf").await;
//! ```

pub mod entry;
pub mod handler;
pub mod kinds;
pub mod puppet;
pub mod screen;
pub mod storage;

use std::{
    ops::Deref,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use control_plane::{ControlPlane, Daemon, Identity, free_port, write_private};
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    coordination::v1::Lease,
    core::v1::{ConfigMap, Namespace, ServiceAccount},
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
    config::Kubeconfig,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use self::{handler::Handler, puppet::Puppet, storage::Storage};
use super::{
    Change as _, OwnPlane, eventually,
    gate::{Gate, Permit, Turn},
    kubectl, own_plane_on, plane_permit, plane_permits,
    receivers::Authority,
    turn_among, wait_for_kinds,
};

/// The namespace of KubeVirt itself.
const NAMESPACE: &str = "kubevirt";
/// The name by which the aggregator and the webhooks know virt-api.
const VIRT_API: &str = "virt-api.kubevirt.svc";
/// The common name of kube-apiserver's certificate as a client of virt-api.
const AGGREGATOR: &str = "aggregator";
const PORT_ATTEMPTS: u32 = 5;

/// A region with KubeVirt. Dropping it ends all processes.
pub struct KubeVirt {
    // The order of the fields is the order of dropping.
    pub puppet: Puppet,
    storage: OnceCell<Storage>,
    virt_controller: Server,
    virt_api: Server,
    pub handler: Handler,
    authority: Authority,
    programs: PathBuf,
    pub plane: ControlPlane,
}

/// One of KubeVirt's servers, unless a test has killed it.
struct Server {
    name: &'static str,
    port: u16,
    daemon: Mutex<Option<Daemon>>,
}

impl Server {
    fn new(name: &'static str) -> Self {
        let port = free_port().unwrap();
        Self {
            name,
            port,
            daemon: Mutex::new(None),
        }
    }

    fn assert_runs(&self) {
        if let Some(daemon) = self.daemon.lock().as_mut() {
            let ended = daemon.exited();
            assert!(ended.is_none(), "{} {ended:?}: {}", self.name, daemon.log_tail());
        }
    }

    fn kill(&self) {
        self.assert_runs();
        *self.daemon.lock() = None;
    }

    fn has_ended(&self) -> bool {
        let mut daemon = self.daemon.lock();
        daemon.as_mut().is_some_and(|daemon| daemon.exited().is_some())
    }

    /// Whether it did not get its port.
    fn lost_its_port(&self) -> bool {
        let mut daemon = self.daemon.lock();
        daemon.as_mut().is_some_and(|daemon| {
            daemon.exited().is_some() && daemon.log_tail().contains("address already in use")
        })
    }
}

/// A region for one test: the shared one, or one of its own.
pub struct Region {
    place: Place,
    permit: Option<Permit>,
}

enum Place {
    Shared(&'static KubeVirt),
    Own(Box<KubeVirt>),
}

impl Deref for Region {
    type Target = KubeVirt;

    fn deref(&self) -> &KubeVirt {
        match &self.place {
            Place::Shared(region) => region,
            Place::Own(region) => region,
        }
    }
}

/// Nothing stops the shared region at the end, so each test checks it.
impl Drop for Region {
    fn drop(&mut self) {
        self.permit = None;
        if SHARERS.is_idle(MAX_SHARERS) {
            PERMITS.lock().clear();
        }
        if !std::thread::panicking() {
            self.assert_runs();
        }
    }
}

/// The region that all tests of this process share, each with namespaces of its own. Waits for its turn, and starts the region if
/// this is the first test that needs it.
pub async fn shared() -> Region {
    share(turn_among(&LONG), 1).await
}

/// Like [`shared`], but waits until no other test is using it, or waiting for it.
pub async fn shared_at_last() -> Region {
    share(Turn::Last, MAX_SHARERS).await
}

/// Where the tests are that wait longest: for tokens to end, or in vain.
const LONG: [&str; 3] = [
    "kubevirt::networks::each_network",
    "kubevirt::regions",
    "kubevirt::upkeep",
];

static SHARERS: Gate = Gate::new(MAX_SHARERS);
const MAX_SHARERS: usize = 6;

/// Permits of the control planes of the installations with the shared region.
static PERMITS: Mutex<Vec<Permit>> = Mutex::new(Vec::new());

/// Keeps a plane's permit until no test uses the shared region any more: the plane is not stopped then, and has nothing to do.
pub fn keep_permit_while_shared(plane: &mut OwnPlane) {
    PERMITS.lock().extend(plane.take_permit());
}

async fn share(turn: Turn, permits: usize) -> Region {
    static REGION: OnceCell<KubeVirt> = OnceCell::const_new();
    let permit = SHARERS.acquire(turn, permits).await;
    Region {
        place: Place::Shared(REGION.get_or_init(KubeVirt::start).await),
        permit: Some(permit),
    }
}

/// A region of its own, for a test that kills a server of it.
pub async fn own() -> Region {
    let permit = plane_permit().await;
    Region {
        place: Place::Own(Box::new(KubeVirt::start().await)),
        permit: Some(permit),
    }
}

/// A region of its own, and a plane of its own for Stellage.
pub async fn own_with_plane() -> (Region, OwnPlane) {
    let mut permit = plane_permits(2).await;
    let of_plane = permit.split();
    let (region, plane) = tokio::join!(KubeVirt::start(), own_plane_on(of_plane));
    let region = Region {
        place: Place::Own(Box::new(region)),
        permit: Some(permit),
    };
    (region, plane)
}

impl KubeVirt {
    async fn start() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let programs = tokio::task::spawn_blocking(|| control_plane::kubevirt(|line| eprintln!("{line}")));
        let programs = programs.await.unwrap().unwrap();
        let of_others = tokio::task::spawn_blocking(|| control_plane::kinds(|line| eprintln!("{line}")));
        let of_others = std::fs::read_to_string(of_others.await.unwrap().unwrap()).unwrap();
        let folder = tempfile::Builder::new().prefix("stellage-kubevirt-").tempdir();
        let folder = folder.unwrap().keep();
        let authority = Authority::new();
        let certificates = folder.join("certificates");
        write_certificates(&certificates, &authority);
        let file = |name: &str| certificates.join(name).display().to_string();
        let plane = ControlPlane::options()
            .folder(&folder)
            .remove([folder])
            .audit_log()
            .without_controller_manager()
            // With ten thousand servers in it, as in the bench, it exceeds the default of 2 GB.
            .etcd_arg(format!("--quota-backend-bytes={}", 8_u64 << 30))
            .apiserver_arg(format!("--requestheader-client-ca-file={}", file("ca.pem")))
            .apiserver_arg(format!("--requestheader-allowed-names={AGGREGATOR}"))
            .apiserver_arg("--requestheader-username-headers=X-Remote-User")
            .apiserver_arg("--requestheader-group-headers=X-Remote-Group")
            .apiserver_arg("--requestheader-extra-headers-prefix=X-Remote-Extra-")
            .apiserver_arg(format!("--proxy-client-cert-file={}", file("client.pem")))
            .apiserver_arg(format!("--proxy-client-key-file={}", file("client.key")))
            // They keep a claim as long as a Pod uses it, and a volume as long as it has a claim.
            .controller_manager_arg(
                "--controllers=persistentvolumeclaim-protection-controller,persistentvolume-protection-controller",
            )
            .start()
            .await
            .unwrap();
        let parts = Parts::read(&programs);
        kubectl(&plane, "create -f -", Some(&of_others)).unwrap();
        install(&plane, &parts, &authority).await;
        puppet::add_node(plane.client(Identity::Admin).await.unwrap()).await;
        let puppet = Puppet::start(
            plane.kubeconfig(Identity::Admin),
            kubeconfig(&plane, NAMESPACE, "kubevirt-handler", Some(puppet::NODE)).await,
        );
        let mut region = Self {
            puppet,
            storage: OnceCell::new(),
            virt_controller: Server::new("virt-controller"),
            virt_api: Server::new("virt-api"),
            handler: Handler::start(&certificates),
            authority,
            programs,
            plane,
        };
        region.first_start(&parts).await;
        let client = region.plane.client(Identity::Admin).await.unwrap();
        handler::announce(Api::namespaced(client, NAMESPACE), puppet::NODE).await;
        region
    }

    async fn first_start(&mut self, parts: &Parts) {
        for _ in 0..PORT_ATTEMPTS {
            self.start_virt_api().await;
            if !self.virt_api.lost_its_port() {
                break;
            }
            self.virt_api = Server::new("virt-api");
        }
        parts.open_virt_api(&self.plane, self.virt_api.port, &self.authority);
        for _ in 0..PORT_ATTEMPTS {
            self.start_virt_controller().await;
            if !self.virt_controller.lost_its_port() {
                break;
            }
            self.virt_controller = Server::new("virt-controller");
        }
        self.plane.start_controller_manager().unwrap();
        let available =
            "wait --for=condition=Available apiservice v1.subresources.kubevirt.io --timeout=180s";
        kubectl(&self.plane, available, None).unwrap();
    }

    /// Starts virt-api on its previous port, and returns when it serves.
    pub async fn start_virt_api(&self) {
        let identity = kubeconfig(&self.plane, NAMESPACE, "kubevirt-apiserver", None).await;
        let mut command = self.command(&self.virt_api, &identity);
        command.arg(format!("--console-server-port={}", self.handler.port));
        for (flag, name) in [
            ("tls-cert-file", "server.pem"),
            ("tls-key-file", "server.key"),
            ("handler-cert-file", "client.pem"),
            ("handler-key-file", "client.key"),
        ] {
            command.arg(format!(
                "--{flag}={}",
                self.plane.folder().join("certificates").join(name).display()
            ));
        }
        self.spawn(
            &self.virt_api,
            command,
            "/apis/subresources.kubevirt.io/v1/healthz",
            |_| true,
        )
        .await;
    }

    /// Starts virt-controller on its previous port, and returns when it leads.
    pub async fn start_virt_controller(&self) {
        self.release_lease().await;
        let identity = kubeconfig(&self.plane, NAMESPACE, "kubevirt-controller", None).await;
        let mut command = self.command(&self.virt_controller, &identity);
        for (flag, name) in [("prom-cert-file", "server.pem"), ("prom-key-file", "server.key")] {
            command.arg(format!(
                "--{flag}={}",
                self.plane.folder().join("certificates").join(name).display()
            ));
        }
        command.arg("--launcher-image=virt-launcher");
        let leads = |answer: &str| answer.contains("\"true\"");
        self.spawn(&self.virt_controller, command, "/leader", leads).await;
    }

    /// Takes the Lease from a virtual controller that is dead: the next one would wait until it expires.
    async fn release_lease(&self) {
        let leases: Api<Lease> =
            Api::namespaced(self.plane.client(Identity::Admin).await.unwrap(), NAMESPACE);
        let free = Patch::Merge(json!({"spec": {"holderIdentity": ""}}));
        match leases
            .patch("virt-controller", &PatchParams::default(), &free)
            .await
        {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts those of KubeVirt's servers again that have ended by themselves, as they do when their API server is away for long.
    pub async fn revive(&self) {
        if self.virt_api.has_ended() {
            self.start_virt_api().await;
        }
        if self.virt_controller.has_ended() {
            self.start_virt_controller().await;
        }
    }

    /// Sends SIGKILL to virt-api. Fails the test if it had already ended by itself.
    pub fn kill_virt_api(&self) {
        self.virt_api.kill();
    }

    /// Sends SIGKILL to virt-controller. Fails the test if it had already ended by itself.
    pub fn kill_virt_controller(&self) {
        self.virt_controller.kill();
    }

    fn command(&self, server: &Server, identity: &Path) -> Command {
        let mut command = Command::new(self.programs.join(server.name));
        command
            .args(["--listen=127.0.0.1", &format!("--port={}", server.port)])
            .arg(format!("--kubeconfig={}", identity.display()));
        command
    }

    /// Starts a server, and waits until its answer is as expected, or it did not get its port.
    async fn spawn(&self, server: &Server, command: Command, path: &str, is_ready: impl Fn(&str) -> bool) {
        let log = self.plane.folder().join(format!("{}.log", server.name));
        let daemon = Daemon::spawn(server.name, command, self.plane.group(), &log).unwrap();
        *server.daemon.lock() = Some(daemon);
        let authority = reqwest::Certificate::from_pem(self.authority.pem().as_bytes()).unwrap();
        let client = reqwest::Client::builder()
            .tls_certs_only([authority])
            .timeout(Duration::from_secs(10))
            .build()
            .unwrap();
        let url = format!("https://127.0.0.1:{}{path}", server.port);
        let ready = async || {
            if server.lost_its_port() {
                return true;
            }
            server.assert_runs();
            let Ok(answer) = client.get(&url).send().await else {
                return false;
            };
            answer.status().is_success() && is_ready(&answer.text().await.unwrap_or_default())
        };
        eventually(server.name, ready, |ready| *ready).await;
    }

    /// Names and process ids of the servers that run.
    #[allow(dead_code, reason = "for the benches")]
    pub fn pids(&self) -> Vec<(&'static str, u32)> {
        let own = [&self.virt_api, &self.virt_controller];
        let own = own
            .into_iter()
            .filter_map(|server| Some((server.name, server.daemon.lock().as_ref()?.pid())));
        self.plane.pids().into_iter().chain(own).collect()
    }

    /// Storage with snapshots. The first test that asks for it starts it.
    pub async fn storage(&self) -> &Storage {
        self.storage.get_or_init(|| Storage::start(&self.plane)).await
    }

    /// Fails the test if a server has ended by itself.
    pub fn assert_runs(&self) {
        self.plane.check().unwrap();
        self.virt_api.assert_runs();
        self.virt_controller.assert_runs();
        if let Some(storage) = self.storage.get() {
            storage.assert_runs();
        }
    }

    /// A kubeconfig of a service account, which must exist.
    pub async fn kubeconfig(&self, namespace: &str, account: &str) -> PathBuf {
        kubeconfig(&self.plane, namespace, account, None).await
    }

    /// Creates a namespace.
    pub async fn namespace(&self, name: &str) {
        let client = self.plane.client(Identity::Admin).await.unwrap();
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        Api::all(client)
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
    }

    /// Objects of a kind in a namespace, for an administrator.
    pub async fn api(&self, kind: &ApiResource, namespace: &str) -> Api<DynamicObject> {
        let client = self.plane.client(Identity::Admin).await.unwrap();
        Api::namespaced_with(client, namespace, kind)
    }

    /// Makes the API server refuse each new run (VirtualMachineInstance) in a namespace, until called with `false`. Returns when it
    /// does.
    pub async fn refuse_runs(&self, namespace: &str, refuse: bool) {
        let client = self.plane.client(Identity::Admin).await.unwrap();
        let value = if refuse {
            json!("virtualmachineinstances")
        } else {
            Value::Null
        };
        let change = json!({"metadata": {"labels": {"test/refuses": value}}});
        Api::<Namespace>::all(client).merge(namespace, &change).await;
        let runs = self.api(&kinds::RUN, namespace).await;
        let probe: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "probe"},
            "spec": {"domain": {"devices": {}, "memory": {"guest": "64Mi"}}},
        }))
        .unwrap();
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let is_refused = async || match runs.create(&params, &probe).await {
            Ok(_) => false,
            Err(kube::Error::Api(status)) if status.message.contains("refused by the test") => true,
            Err(error) => panic!("{error}"),
        };
        eventually("the policy to act", is_refused, |is| *is == refuse).await;
    }
}

fn write_certificates(folder: &Path, authority: &Authority) {
    std::fs::create_dir(folder).unwrap();
    let write = |name: &str, text: &str| write_private(&folder.join(name), text).unwrap();
    let (server, server_key) = authority.issue_to(VIRT_API, &[VIRT_API, "localhost", "127.0.0.1"]);
    let (client, client_key) = authority.issue_to(AGGREGATOR, &[AGGREGATOR]);
    let (handler, handler_key) = authority.issue_to(handler::COMMON_NAME, &["127.0.0.1"]);
    write("ca.pem", &authority.pem());
    write("server.pem", &server);
    write("server.key", &server_key);
    write("client.pem", &client);
    write("client.key", &client_key);
    write("handler.pem", &handler);
    write("handler.key", &handler_key);
}

/// What KubeVirt's operator would install.
struct Parts {
    /// Kinds, accounts, rights.
    first: Vec<Value>,
    /// The webhooks and the aggregated API, which need virt-api.
    of_virt_api: Vec<Value>,
}

impl Parts {
    fn read(programs: &Path) -> Self {
        let list: Value =
            serde_json::from_slice(&std::fs::read(programs.join("kubevirt.json")).unwrap()).unwrap();
        let items = list["items"].as_array().unwrap().clone();
        let (of_virt_api, first) = items.into_iter().partition(|item| {
            let kind = item["kind"].as_str().unwrap();
            kind == "APIService" || kind.ends_with("WebhookConfiguration")
        });
        Self { first, of_virt_api }
    }

    /// Sends the API server to virt-api on loopback.
    fn open_virt_api(&self, plane: &ControlPlane, port: u16, authority: &Authority) {
        let bundle = k8s_openapi::ByteString(authority.pem().into_bytes());
        let mut items = self.of_virt_api.clone();
        for item in &mut items {
            for webhook in item["webhooks"].as_array_mut().into_iter().flatten() {
                let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap();
                webhook["clientConfig"] =
                    json!({"url": format!("https://127.0.0.1:{port}{path}"), "caBundle": bundle});
            }
            if item["kind"] == "APIService" {
                item["spec"]["service"]["port"] = port.into();
                item["spec"]["caBundle"] = json!(bundle);
            }
        }
        items.push(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "virt-api", "namespace": NAMESPACE},
            "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
        }));
        create(plane, &items);
    }
}

fn create(plane: &ControlPlane, items: &[Value]) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    kubectl(plane, "create --validate=false -f -", Some(&list)).unwrap();
}

/// Installs all that KubeVirt's servers expect to find.
async fn install(plane: &ControlPlane, parts: &Parts, authority: &Authority) {
    kubectl(plane, "create -f -", Some(include_str!("cluster.yaml"))).unwrap();
    create(plane, &parts.first);
    wait_for_kinds(plane);
    let client = plane.client(Identity::Admin).await.unwrap();
    let params = PostParams::default();
    let bundle: ConfigMap = serde_json::from_value(json!({
        "metadata": {"name": "kubevirt-ca"}, "data": {"ca-bundle": authority.pem()},
    }))
    .unwrap();
    Api::namespaced(client.clone(), NAMESPACE)
        .create(&params, &bundle)
        .await
        .unwrap();
    let installation: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"}, "spec": {},
    }))
    .unwrap();
    let api = Api::<DynamicObject>::namespaced_with(client, NAMESPACE, &kinds::KUBEVIRT);
    api.create(&params, &installation).await.unwrap();
    let status = json!({"status": {"phase": "Deployed", "defaultArchitecture": "amd64"}});
    api.merge_status("kubevirt", &status).await;
}

/// Writes a kubeconfig with a token of a service account, as a Pod on `node` has it: since 1.9, KubeVirt lets virt-handler change only
/// the runs on its node.
async fn kubeconfig(plane: &ControlPlane, namespace: &str, account: &str, node: Option<&str>) -> PathBuf {
    let client = plane.client(Identity::Admin).await.unwrap();
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: Vec::new(),
            expiration_seconds: Some(24 * 3600),
            bound_object_ref: node.map(|node| BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(node.to_owned()),
                uid: None,
            }),
        },
        ..TokenRequest::default()
    };
    let answer = Api::<ServiceAccount>::namespaced(client, namespace)
        .create_token_request(account, &PostParams::default(), &request)
        .await
        .unwrap();
    let mut config =
        serde_json::to_value(Kubeconfig::read_from(plane.kubeconfig(Identity::Admin)).unwrap()).unwrap();
    config["users"][0]["user"] = json!({"token": answer.status.unwrap().token});
    let path = plane.folder().join(format!("{namespace}.{account}.kubeconfig"));
    write_private(&path, &config.to_string()).unwrap();
    path
}
