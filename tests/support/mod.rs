//! The control plane, the operator, and a separate account for every test.
//!
//! - [`gate`]: which of the waiting tests is next;
//! - [`helm`]: Helm, and the charts;
//! - [`kubevirt`]: KubeVirt's own servers, and a puppet for the node below them;
//! - [`network`]: a network between an operator and the API server, which fails on demand;
//! - [`npm`]: npm packages;
//! - [`oidc`]: an OpenID Connect provider on loopback;
//! - [`otlp`]: a receiver of traces, which records what it gets;
//! - [`prometheus`]: a stand-in for Prometheus with the usage of servers;
//! - [`receivers`]: normal and hostile receivers on loopback, and a DNS server;
//! - [`refusals`]: what the API server refused to the operator because it has no right to it;
//! - [`rolling`]: a load balancer, and clients that must not notice that replicas are replaced;
//! - [`s3`]: a service that speaks the protocol of S3, on loopback;
//! - [`smtp`]: a mail server on loopback;
//! - [`walkthrough`]: the commands that the documentation shows.

pub mod einvoice;
pub mod gate;
pub mod helm;
pub mod kubevirt;
pub mod network;
pub mod npm;
pub mod oidc;
pub mod otlp;
pub mod prometheus;
pub mod receivers;
pub mod refusals;
pub mod rolling;
pub mod s3;
pub mod smtp;
pub mod walkthrough;

use std::{
    cell::RefCell,
    collections::BTreeSet,
    num::NonZero,
    path::{Path, PathBuf},
    pin::pin,
    process::{Command, ExitStatus, Stdio},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use control_plane::{ControlPlane, Daemon, Identity};
use futures::StreamExt as _;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{coordination::v1::Lease, core::v1::ResourceQuota},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    runtime::wait::{Condition, await_condition},
};
use parking_lot::Mutex;
use reqwest::{Method, StatusCode, header::HeaderMap};
use resources::{
    Account, AccountSpec, ApiKey, Instance, InstanceSpec, InstanceState, conditions, ids, quota,
};
use runtime::lease::LEASE_NAME;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{sync::OnceCell, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use self::gate::{Gate, Permit, Turn};

/// Timeout for everything that tests wait for. It is generous, because tests run in parallel on a busy machine, and it
/// matters only when a test fails.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// The binary under test.
pub const STELLAGE: &str = env!("CARGO_BIN_EXE_stellage");

static SECRETS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Remembers a secret that must not appear in any operator's log.
pub fn remember_secret(secret: &str) {
    SECRETS.lock().insert(secret.to_owned());
}

/// Remembers the secrets in an answer of the REST API: new keys and webhook secrets.
fn remember_secrets_in(answer: &str) {
    if !answer.contains("\"secret\"") && !answer.contains("\"key\"") {
        return;
    }
    let answer: Value = serde_json::from_str(answer).unwrap_or_default();
    for field in ["secret", "key"] {
        if let Some(secret) = answer["data"][field].as_str().filter(|secret| secret.len() > 12) {
            remember_secret(secret);
        }
    }
}

/// What must not appear in a log: the secrets that tests have used so far, anything that looks like one, and event bodies.
pub fn secrets_in(log: &str) -> Vec<String> {
    let used = SECRETS.lock().clone();
    let shapes = ["whsec_", "stl_", r#"{"id":"evt_"#, r#"{\"id\":\"evt_"#].map(ToOwned::to_owned);
    let found = used.into_iter().chain(shapes);
    found.filter(|secret| log.contains(secret.as_str())).collect()
}

/// Reports that something was not tested, and why.
pub fn say_not_run(what: &str) {
    use std::io::Write as _;
    // Not `eprintln!`: the test harness shows its output only for failing tests.
    let _ = writeln!(std::io::stderr(), "\nNOT RUN: {what}");
}

/// Polls `look` until `condition` holds for its result; fails with `what` after [`PATIENCE`].
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> T, condition: impl Fn(&T) -> bool) -> T
where
    T: std::fmt::Debug,
{
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let seen = look().await;
        if condition(&seen) {
            return seen;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "waited in vain for {what}; last seen: {seen:#?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Duration of an operator's Lease in tests. If it is not released, it expires before [`PATIENCE`] ends.
pub const LEASE_SECONDS: i32 = 90;
/// The default duration of a Lease, for tests in which a leader loses it.
pub const USUAL_LEASE: &str = "--lease-duration-seconds=15";

/// A running `stellage`. Prints the end of its log when a failing test drops it.
pub struct Operator {
    daemon: Mutex<Daemon>,
    log: PathBuf,
    pub url: String,
    pub metrics_url: String,
}

impl Operator {
    /// Starts `stellage <arguments>` as the operator's service account and waits until it is ready.
    ///
    /// Unless the arguments say otherwise, its Lease lasts longer than the default, so that it does not expire if the machine
    /// is busy for ten seconds. A test that kills the operator and starts another one must therefore use [`die`](Self::die).
    pub async fn start(plane: &ControlPlane, arguments: &[&str]) -> Self {
        Self::start_with(plane, arguments, &plane.kubeconfig(Identity::Operator)).await
    }

    /// Like [`Self::start`], with another kubeconfig.
    pub async fn start_with(plane: &ControlPlane, arguments: &[&str], kubeconfig: &Path) -> Self {
        Self::serving(spawn_operator(plane, arguments, kubeconfig)).await
    }

    /// Starts `stellage <arguments>` with exactly this environment, except for the ports, which are free ones,
    /// and waits until it is ready.
    pub async fn start_in(
        plane: &ControlPlane,
        arguments: &[&str],
        environment: &[(String, String)],
        kubeconfig: &Path,
    ) -> Self {
        Self::serving(spawn(plane, arguments, environment, kubeconfig)).await
    }

    /// Waits until a process is ready.
    pub async fn serving(spawned: Spawned) -> Self {
        let Spawned {
            mut daemon,
            log,
            ready_file,
        } = spawned;
        let ready = eventually(
            "stellage to serve",
            async || {
                assert!(
                    daemon.exited().is_none(),
                    "stellage has ended: {}",
                    daemon.log_tail()
                );
                std::fs::read_to_string(&ready_file)
                    .ok()
                    .and_then(|text| serde_json::from_str::<Value>(&text).ok())
            },
            Option::is_some,
        )
        .await
        .unwrap();
        let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
        Self {
            daemon: Mutex::new(daemon),
            log,
            url: text("url"),
            metrics_url: text("metrics_url"),
        }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.daemon.lock().pid()
    }

    /// Sends SIGKILL, then releases its Lease, since the next leader would otherwise wait until it expires. Fails the test if
    /// the operator had already ended by itself, or if a task of it panicked.
    pub async fn die(&mut self, plane: &ControlPlane) {
        self.assert_well();
        self.daemon.get_mut().kill();
        self.assert_no_panic();
        self.assert_no_secret();
        let leases: Api<Lease> =
            Api::namespaced(plane.client(Identity::Admin).await.unwrap(), "stellage-system");
        // The annotation guarantees that this changes the object, so that a late write of the dead process is
        // refused.
        let free = json!({
            "metadata": { "annotations": { "test/killed": self.pid().to_string() } },
            "spec": { "holderIdentity": "" },
        });
        leases
            .patch(LEASE_NAME, &PatchParams::default(), &Patch::Merge(&free))
            .await
            .unwrap();
    }

    /// Sends SIGSTOP.
    pub fn halt(&self) {
        self.daemon.lock().halt();
    }

    /// Sends SIGCONT.
    pub fn resume(&self) {
        self.daemon.lock().resume();
    }

    /// The exit status, if it has ended by itself.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.daemon.lock().exited()
    }

    /// Sends SIGTERM. Fails the test if the operator had already ended by itself, does not exit with 0 in time, or if a task
    /// of it panicked.
    pub async fn stop(&mut self) {
        self.assert_well();
        let status = self.daemon.get_mut().stop(Duration::from_secs(120)).await;
        assert!(
            status.is_some_and(|status| status.success()),
            "{} ended with {status:?}; {}",
            self.name(),
            self.end_of_log()
        );
        self.assert_no_panic();
        self.assert_no_secret();
    }

    /// Fails the test if the operator has ended by itself, or if a task of it panicked.
    fn assert_well(&self) {
        let ended = self.ended();
        assert!(
            ended.is_none(),
            "{} ended by itself with {ended:?}; {}",
            self.name(),
            self.end_of_log()
        );
        self.assert_no_panic();
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Checked once the operator has ended, not at the end of every test: the log of the shared operator is
    /// long.
    fn assert_no_secret(&self) {
        assert_eq!(
            secrets_in(&self.log()),
            Vec::<String>::new(),
            "in the log of {}",
            self.name()
        );
    }

    /// A panic in a background task does not end the process, so it shows up only in the log.
    fn assert_no_panic(&self) {
        let log = self.log();
        let panics: Vec<&str> = log.lines().filter(|line| line.contains("panicked at")).collect();
        assert!(panics.is_empty(), "{} panicked: {panics:#?}", self.name());
    }

    fn name(&self) -> String {
        self.daemon.lock().name().to_owned()
    }

    fn end_of_log(&self) -> String {
        format!("the end of its log:\n{}", self.daemon.lock().log_tail())
    }

    /// A size from `/proc/PID/status`, such as `VmRSS` (resident memory) or `VmHWM` (its peak), in kB.
    pub fn memory_kb(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let value = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap().split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Resets `VmHWM` to the current memory.
    pub fn forget_peak_of_memory(&self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.pid()), "5").unwrap();
    }

    /// The value of a metric, summed over the label sets that contain `labels`.
    pub async fn metric(&self, name: &str, labels: &str) -> f64 {
        let page = reqwest::get(format!("{}/metrics", self.metrics_url))
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        page.lines()
            .filter(|line| line.starts_with(name) && line.contains(labels))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let ended = self.ended().map_or_else(
                || "was running".to_owned(),
                |status| format!("had ended ({status})"),
            );
            eprintln!("{} {ended}; {}", self.name(), self.end_of_log());
        } else {
            self.assert_no_panic();
        }
    }
}

/// A process that has just been started.
pub struct Spawned {
    daemon: Daemon,
    log: PathBuf,
    /// The file that it writes once it is ready.
    ready_file: PathBuf,
}

/// Starts `stellage <arguments>` with the settings that most tests need. Use [`Operator::serving`] to wait
/// for it.
pub fn spawn_operator(plane: &ControlPlane, arguments: &[&str], kubeconfig: &Path) -> Spawned {
    let environment = [
        (
            "STELLAGE_LEASE_DURATION_SECONDS",
            LEASE_SECONDS.to_string().as_str(),
        ),
        ("STELLAGE_SIMULATOR_FAULTS", "true"),
        ("STELLAGE_BILL_SIMULATED", "true"),
        // Some tests create thousands of instances.
        ("STELLAGE_DEFAULT_INSTANCE_QUOTA", "100000"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()));
    // Without a seller, no invoice is issued.
    let catalogue = plane.folder().join("seller.yaml");
    if !catalogue.exists() {
        std::fs::write(&catalogue, format!("{SELLER}\n")).unwrap();
    }
    let of_catalogue = ("STELLAGE_CATALOGUE".to_owned(), catalogue.display().to_string());
    let environment: Vec<_> = environment.into_iter().chain([of_catalogue]).collect();
    spawn(plane, arguments, &environment, kubeconfig)
}

/// The seller in the catalogues of the tests.
pub const SELLER: &str =
    "seller: {name: Stellage Ltd, address: [1 Main Street, 10115 Berlin], country: DE, vatId: DE123456789}";

/// Starts `stellage <arguments>` on free ports, except for the metrics port if the arguments set one.
fn spawn(
    plane: &ControlPlane,
    arguments: &[&str],
    environment: &[(String, String)],
    kubeconfig: &Path,
) -> Spawned {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("stellage-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let ready_file = plane.folder().join(format!("{name}.json"));
    let mut command = Command::new(STELLAGE);
    command.args(arguments).arg("--ready-file").arg(&ready_file);
    if !arguments
        .iter()
        .any(|argument| argument.starts_with("--metrics-listen="))
    {
        command.args(["--metrics-listen", "127.0.0.1:0"]);
    }
    if !["controller", "console-gateway"].contains(arguments.first().unwrap_or(&"")) {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command
        .env("RUST_LOG", "info")
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .env("KUBECONFIG", kubeconfig);
    let log = plane.folder().join(format!("{name}.log"));
    let daemon = Daemon::spawn(&name, command, plane.group(), &log).unwrap();
    Spawned {
        daemon,
        log,
        ready_file,
    }
}

/// An operator that is restarted whenever it exits, as in Kubernetes.
pub struct Supervised {
    stop: CancellationToken,
    task: JoinHandle<(Operator, usize)>,
}

impl Supervised {
    /// Takes over an operator that was started with these arguments. The URLs of `operator` become invalid.
    pub fn new(plane: &Arc<OwnPlane>, mut operator: Operator, arguments: &[&str]) -> Self {
        let stop = CancellationToken::new();
        let (stopped, plane) = (stop.clone(), plane.clone());
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let task = tokio::spawn(async move {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let mut restarts = 0;
            while !stopped.is_cancelled() {
                if let Some(status) = operator.ended() {
                    operator.assert_no_panic();
                    assert!(status.code().is_some(), "{} ended with {status}", operator.name());
                    let next = spawn_operator(&plane, &arguments, &plane.kubeconfig(Identity::Operator));
                    (operator.daemon, operator.log) = (Mutex::new(next.daemon), next.log);
                    restarts += 1;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            (operator, restarts)
        });
        Self { stop, task }
    }

    /// Stops it as [`Operator::stop`] does. Returns the number of restarts.
    pub async fn stop(self) -> usize {
        self.stop.cancel();
        let (mut operator, restarts) = self.task.await.unwrap();
        operator.stop().await;
        restarts
    }
}

/// Installs CRDs, admission policy and RBAC, and then starts kube-controller-manager, as `make run` does.
pub fn install(plane: &ControlPlane) {
    // Every reqwest client needs a default crypto provider, even without TLS. The call fails if there already
    // is one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let crds = Command::new(STELLAGE)
        .args(["crds", "--with-policies"])
        .output()
        .unwrap();
    assert!(crds.status.success(), "{}", String::from_utf8_lossy(&crds.stderr));
    kubectl(
        plane,
        "apply --server-side --force-conflicts -f -",
        Some(&String::from_utf8(crds.stdout).unwrap()),
    )
    .unwrap();
    install_rights(plane);
    wait_for_kinds(plane);
    plane.start_controller_manager().unwrap();
}

/// Installs only the operator's namespace and RBAC.
pub fn install_rights(plane: &ControlPlane) {
    let rbac = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/rbac.yaml");
    let apply = format!("apply --server-side -f {}", rbac.display());
    kubectl(plane, &apply, None).unwrap();
}

/// Waits until Kubernetes counts webhooks against an account's quota.
pub async fn wait_until_webhooks_are_counted(quotas: &Api<ResourceQuota>) {
    let used = async || {
        let quota = quotas.get_opt("stellage").await.unwrap();
        quota.and_then(|quota| quota.status?.used)
    };
    eventually("webhooks to be counted", used, |used| {
        used.as_ref()
            .is_some_and(|used| used.contains_key("count/webhooks.stellage.dev"))
    })
    .await;
}

/// A client that impersonates the operator with an administrator's rights, for tests that write what the admission policies let
/// only the operator write, although the operator itself has no use for it.
pub async fn as_operator(plane: &ControlPlane) -> Client {
    let mut config = plane.config(Identity::Admin).await.unwrap();
    config.auth_info.impersonate = Some(Identity::Operator.user().to_owned());
    config.auth_info.impersonate_groups = Some(vec!["system:masters".to_owned()]);
    Client::try_from(config).unwrap()
}

/// Changes of objects, which must succeed.
pub trait Change<K> {
    async fn merge(&self, name: &str, change: &Value) -> K;
    async fn merge_status(&self, name: &str, change: &Value) -> K;
}

impl<K: Clone + std::fmt::Debug + serde::de::DeserializeOwned> Change<K> for Api<K> {
    async fn merge(&self, name: &str, change: &Value) -> K {
        let patch = Patch::Merge(change);
        self.patch(name, &PatchParams::default(), &patch).await.unwrap()
    }

    async fn merge_status(&self, name: &str, change: &Value) -> K {
        let patch = Patch::Merge(change);
        self.patch_status(name, &PatchParams::default(), &patch)
            .await
            .unwrap()
    }
}

/// Waits until the API server serves all kinds that it has been given.
pub fn wait_for_kinds(plane: &ControlPlane) {
    let established = "wait --for=condition=Established crd --all --timeout=180s";
    kubectl(plane, established, None).unwrap();
}

/// Runs kubectl as the administrator, with arguments that have no blanks in them; returns its stdout, or its stderr if it fails.
pub fn kubectl(plane: &ControlPlane, line: &str, input: Option<&str>) -> Result<String, String> {
    kubectl_words(plane, &line.split(' ').collect::<Vec<_>>(), input)
}

/// Like [`kubectl`], with any arguments.
pub fn kubectl_words(
    plane: &ControlPlane,
    arguments: &[&str],
    input: Option<&str>,
) -> Result<String, String> {
    run(
        Command::new(plane.assets().kubectl())
            .args(arguments)
            .env("KUBECONFIG", plane.kubeconfig(Identity::Admin)),
        input,
    )
}

/// Runs the binary under test as the administrator, with arguments that have no blanks in them.
pub fn stellage(plane: &ControlPlane, line: &str) -> Result<String, String> {
    stellage_words(plane, &line.split(' ').collect::<Vec<_>>())
}

/// Like [`stellage`], with any arguments.
pub fn stellage_words(plane: &ControlPlane, arguments: &[&str]) -> Result<String, String> {
    run(
        Command::new(STELLAGE)
            .args(arguments)
            .env("KUBECONFIG", plane.kubeconfig(Identity::Admin)),
        None,
    )
}

/// Runs a command; returns its stdout, or both outputs if it fails.
pub fn run(command: &mut Command, input: Option<&str>) -> Result<String, String> {
    use std::io::Write as _;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        stdin.write_all(input.as_bytes()).map_err(|e| e.to_string())?;
    }
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stdout) + text(&output.stderr).as_str())
    }
}

/// Path of promtool, which is built once if it does not exist.
pub async fn promtool() -> PathBuf {
    static PROGRAM: OnceCell<PathBuf> = OnceCell::const_new();
    let find = async || {
        let found = tokio::task::spawn_blocking(|| control_plane::promtool(|line| eprintln!("{line}"))).await;
        found.unwrap().unwrap()
    };
    PROGRAM.get_or_init(find).await.clone()
}

/// Path of Prometheus, which is built with promtool.
pub async fn prometheus() -> PathBuf {
    promtool().await;
    let find = || control_plane::prometheus(|line| eprintln!("{line}"));
    tokio::task::spawn_blocking(find).await.unwrap().unwrap()
}

/// The shared control plane with one operator, which takes half a second to provision.
pub struct Cluster {
    pub plane: &'static ControlPlane,
    pub operator: Operator,
    pub gateway: Operator,
}

/// The URL of the console gateway at a port, for the REST API.
pub fn gateway_url(port: u16) -> String {
    format!("--console-gateway-url=ws://127.0.0.1:{port}/v1/console")
}

/// Starts a console gateway with these settings at a port, and waits until it is ready.
pub async fn start_gateway(plane: &ControlPlane, port: u16, settings: &[&str]) -> Operator {
    let listen = format!("--console-listen=127.0.0.1:{port}");
    let arguments = [&["console-gateway", &listen][..], settings].concat();
    Operator::start(plane, &arguments).await
}

/// Arguments that let an operator send to the tests' receivers, and write mails into `mail/` in the plane's folder.
pub fn receiver_arguments(plane: &ControlPlane) -> Vec<String> {
    let ca = plane.folder().join("receivers.pem");
    std::fs::write(&ca, receivers::Receiver::ca_pem()).unwrap();
    vec![
        format!("--receiver-ca={}", ca.display()),
        "--receiver-allow=127.0.0.0/8,::1/128".to_owned(),
        "--receiver-connect-timeout-seconds=30".to_owned(),
        format!("--smtp-url=file://{}", mail_folder(plane).display()),
    ]
}

/// The folder with the mails of an operator started with [`receiver_arguments`].
pub fn mail_folder(plane: &ControlPlane) -> std::path::PathBuf {
    plane.folder().join("mail")
}

static SHARED: OnceCell<Cluster> = OnceCell::const_new();

/// Permits of the tests that use the shared cluster concurrently: more would only slow each other down.
static SHARERS: Gate = Gate::new(MAX_SHARERS);
const MAX_SHARERS: usize = 3;

thread_local! {
    /// The permit of the current test: every test has a thread of its own, which ends with it.
    static SHARES: RefCell<Option<Permit>> = const { RefCell::new(None) };
}

/// The cluster shared by all tests that neither kill processes nor count writes.
pub async fn shared() -> &'static Cluster {
    if SHARES.with_borrow(Option::is_none) {
        let permit = SHARERS.acquire(Turn::Usual, 1).await;
        SHARES.set(Some(permit));
    }
    SHARED
        .get_or_init(|| async {
            let plane = control_plane::shared().await.unwrap();
            install(plane);
            let mut arguments = vec!["run", "--provisioning-seconds", "0.5"];
            let receivers = receiver_arguments(plane);
            arguments.extend(receivers.iter().map(String::as_str));
            arguments.extend(["--retry-schedule", "200ms,200ms,200ms,200ms,200ms"]);
            let port = control_plane::free_port().unwrap();
            let gateway = gateway_url(port);
            arguments.push(&gateway);
            let operator = Operator::start(plane, &arguments).await;
            let gateway = start_gateway(plane, port, &[]).await;
            Cluster {
                plane,
                operator,
                gateway,
            }
        })
        .await
}

/// Like [`shared`], but waits until no other test is using it, or waiting for it.
pub async fn shared_at_last() -> &'static Cluster {
    SHARES.set(None);
    SHARES.set(Some(SHARERS.acquire(Turn::Last, MAX_SHARERS).await));
    shared().await
}

/// A control plane of one test. Only a limited number runs at a time: more of them than cores slow each other down until
/// something times out.
pub struct OwnPlane {
    plane: ControlPlane,
    /// Whether the test fails if the operator asked for what it has no right to.
    checks_refusals: bool,
    permit: Option<Permit>,
}

impl OwnPlane {
    /// Its permit, which otherwise goes back when it is stopped.
    pub fn take_permit(&mut self) -> Option<Permit> {
        self.permit.take()
    }

    /// For a test that takes rights away from the operator, or asks for more in its name.
    pub fn expecting_refusals(mut self) -> Self {
        self.checks_refusals = false;
        self
    }
}

/// Fails the test if a server has ended that the test did not kill, if one has panicked, or if the operator asked for what it
/// has no right to.
impl Drop for OwnPlane {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.plane.check().unwrap();
        let panics = self.plane.panics();
        assert!(panics.is_empty(), "{panics:#?}");
        if self.checks_refusals {
            let requests = self.plane.requests().unwrap();
            let refused = refusals::refusals(&requests).unexcused;
            assert!(refused.is_empty(), "the operator has no right to {refused:#?}");
        }
    }
}

impl std::ops::Deref for OwnPlane {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        &self.plane
    }
}

/// A new control plane for one test, with everything installed but no operator. It logs each request, and must refuse the operator
/// nothing.
pub async fn own_plane() -> OwnPlane {
    own_plane_on(plane_permit().await).await
}

/// Like [`own_plane`], for a test that needs other planes, too, and so has got all its permits at once.
pub async fn own_plane_on(permit: Permit) -> OwnPlane {
    let options = ControlPlane::options().audit_log().without_controller_manager();
    let mut plane = start_plane(options, permit).await;
    install(&plane);
    plane.checks_refusals = true;
    plane
}

/// Like [`own_plane`], with other options.
pub async fn plane_with(options: control_plane::Options) -> OwnPlane {
    let plane = bare_plane(options.without_controller_manager()).await;
    install(&plane);
    plane
}

/// Like [`plane_with`], with nothing installed.
pub async fn bare_plane(options: control_plane::Options) -> OwnPlane {
    start_plane(options, plane_permit().await).await
}

/// Two of them.
pub async fn bare_planes(one: control_plane::Options, other: control_plane::Options) -> (OwnPlane, OwnPlane) {
    let mut permit = plane_permits(2).await;
    let of_other = permit.split();
    tokio::join!(start_plane(one, permit), start_plane(other, of_other))
}

async fn start_plane(options: control_plane::Options, permit: Permit) -> OwnPlane {
    // Every reqwest client needs a default crypto provider, even without TLS. The call fails if there already
    // is one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let plane = options.start().await.unwrap();
    OwnPlane {
        plane,
        // There may be no audit log.
        checks_refusals: false,
        permit: Some(permit),
    }
}

/// Where the tests are that take longest.
const LONG: [&str; 10] = [
    "chart::installed",
    "high_availability",
    "kubevirt",
    "resilience",
    "webhooks::backlog",
    "webhooks::chaos",
    "webhooks::crashes",
    "webhooks::fairness",
    "webhooks::full",
    "writes",
];

/// Waits until another control plane may be started. Twice as many as there are cores may run, besides those that tests share, since
/// their tests mostly wait.
pub async fn plane_permit() -> Permit {
    plane_permits(1).await
}

/// Waits until this many may be started. A test that waited for its second one while it has the first could wait for itself.
pub async fn plane_permits(count: usize) -> Permit {
    static PLANES: LazyLock<Gate> = LazyLock::new(|| {
        let cores = std::thread::available_parallelism().map_or(2, NonZero::get);
        // The installations that the tests with KubeVirt share keep two at first, and some tests need two.
        Gate::new(cores.max(2) * 2 + 2)
    });
    PLANES.acquire(turn_among(&LONG), count).await
}

/// The turn of the current test, which comes first if its name begins with one of these.
fn turn_among(long: &[&str]) -> Turn {
    // The thread of a test has its name.
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    if long.iter().any(|place| test.starts_with(place)) {
        Turn::First
    } else {
        Turn::Usual
    }
}

/// An account with a key, and the clients of a test.
pub struct Tenant {
    pub namespace: String,
    pub key: String,
    pub kube: Client,
    pub url: String,
    pub http: reqwest::Client,
}

/// An answer of the REST API.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("not JSON ({error}): {self:?}"))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }
}

/// Fails the test if anything shared by tests has ended or panicked. Nothing stops the shared cluster at the end, so each test
/// checks it.
impl Drop for Tenant {
    fn drop(&mut self) {
        if let Some(shared) = SHARED.get()
            && !std::thread::panicking()
        {
            shared.plane.check().unwrap();
            shared.operator.assert_well();
        }
    }
}

impl Tenant {
    /// A new account on the shared cluster.
    pub async fn new(name: &str) -> Self {
        let cluster = shared().await;
        Self::on(cluster.plane, &cluster.operator, name).await
    }

    /// A new account on any control plane, with a `write` key.
    pub async fn on(plane: &ControlPlane, operator: &Operator, name: &str) -> Self {
        Self::with(plane, operator, name, |_| {}).await
    }

    /// A new account whose spec is changed by `change`.
    pub async fn with(
        plane: &ControlPlane,
        operator: &Operator,
        name: &str,
        change: impl FnOnce(&mut AccountSpec),
    ) -> Self {
        let kube = plane.client(Identity::Admin).await.unwrap();
        let mut account: Account = serde_json::from_value(serde_json::json!({
            "apiVersion": "stellage.dev/v1", "kind": "Account",
            "metadata": { "name": name }, "spec": { "email": format!("{name}@example.com") },
        }))
        .unwrap();
        change(&mut account.spec);
        let accounts: Api<Account> = Api::all(kube.clone());
        create_account(&accounts, &account).await;
        let is_ready = |account: Option<&Account>| {
            let status = account.and_then(|account| account.status.as_ref());
            status.is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY))
        };
        timeout(PATIENCE, await_condition(accounts, name, is_ready))
            .await
            .expect("account in time")
            .unwrap();
        let key = new_key(plane, name, "write");
        let mut tenant = Self {
            namespace: name.to_owned(),
            key: new_key(plane, name, "read"),
            kube,
            url: operator.url.clone(),
            http: reqwest::Client::new(),
        };
        // The facade's watch delivers keys in the order of their creation. So once the facade knows a key that was created
        // later, it also knows this one, and no request has counted against this one's rate limit.
        let answer = async || tenant.call(Method::GET, "/v1/plans", None).await.status;
        eventually("the key to be known", answer, |status| *status == StatusCode::OK).await;
        tenant.key = key;
        tenant
    }

    pub fn instances(&self) -> Api<Instance> {
        Api::namespaced(self.kube.clone(), &self.namespace)
    }

    /// All instances, as stored in the API server.
    pub async fn all_instances(&self) -> Vec<Instance> {
        self.instances().list(&ListParams::default()).await.unwrap().items
    }

    /// Waits until no instance has events in its outbox.
    pub async fn wait_for_clear_outboxes(&self) {
        let left = async || {
            let all = self.all_instances().await;
            let statuses = all.iter().filter_map(|instance| instance.status.as_ref());
            statuses.map(|status| status.outbox.len()).sum::<usize>()
        };
        eventually("the outboxes to be cleared", left, |left| *left == 0).await;
    }

    /// Waits until Kubernetes counts webhooks against the quota.
    pub async fn wait_until_webhooks_are_counted(&self) {
        let quotas = Api::namespaced(self.kube.clone(), &self.namespace);
        wait_until_webhooks_are_counted(&quotas).await;
    }

    /// Creates an Instance as kubectl would.
    pub async fn apply(&self, name: &str, change: impl FnOnce(&mut Instance)) -> Instance {
        let mut instance = Instance::new(name, spec());
        instance.metadata = ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        change(&mut instance);
        self.create(&instance).await
    }

    /// Creates an object, again as long as Kubernetes cannot count it because others change the same quota.
    pub async fn create<K>(&self, object: &K) -> K
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + Serialize
            + DeserializeOwned,
    {
        let objects = Api::namespaced(self.kube.clone(), &self.namespace);
        loop {
            match objects.create(&PostParams::default(), object).await {
                Err(kube::Error::Api(refusal)) if quota::is_contended(&refusal) => {}
                created => return created.unwrap(),
            }
        }
    }

    /// Changes an Instance as kubectl would.
    pub async fn merge(&self, name: &str, change: &Value) -> Instance {
        self.instances().merge(name, change).await
    }

    /// Changes whether an Instance is to be on.
    pub async fn power(&self, name: &str, state: &str) -> Instance {
        let change = serde_json::json!({ "spec": { "powerState": state } });
        self.merge(name, &change).await
    }

    /// Waits until an Instance satisfies a condition.
    pub async fn wait(&self, name: &str, what: &str, condition: impl Condition<Instance>) -> Instance {
        let found = timeout(PATIENCE, await_condition(self.instances(), name, condition)).await;
        match found {
            Ok(found) => found.unwrap().unwrap(),
            Err(tokio::time::error::Elapsed { .. }) => panic!(
                "waited in vain for {what}: {:#?}",
                self.instances().get_opt(name).await
            ),
        }
    }

    /// Waits until an Instance shows a state.
    pub async fn wait_for_state(&self, name: &str, state: InstanceState) -> Instance {
        self.wait(name, state.as_str(), move |instance: Option<&Instance>| {
            instance
                .and_then(|i| i.status.as_ref())
                .is_some_and(|status| status.state == Some(state))
        })
        .await
    }

    /// Sends a request with the account's key.
    pub async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        self.call_with(method, path, body, &[]).await
    }

    /// Sends a request with the account's key and additional headers.
    pub async fn call_with(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Answer {
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.url))
            .bearer_auth(&self.key)
            .timeout(PATIENCE);
        if let Some(body) = body {
            request = request.json(body);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.send().await.unwrap();
        let answer = Answer {
            status: answer.status(),
            headers: answer.headers().clone(),
            text: answer.text().await.unwrap(),
        };
        remember_secrets_in(&answer.text);
        answer
    }
}

/// Creates an account, retrying if a busy API server fails.
async fn create_account(accounts: &Api<Account>, account: &Account) {
    for attempt in 0..5 {
        match accounts.create(&PostParams::default(), account).await {
            Ok(_) => return,
            // The earlier attempt created it, although its answer came too late.
            Err(kube::Error::Api(status)) if status.code == 409 && attempt > 0 => return,
            Err(kube::Error::Api(status)) if status.code < 500 && status.code != 429 => panic!("{status:?}"),
            Err(error) => println!("creating an account: {error}"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("cannot create the account {:?}", account.metadata.name);
}

/// Creates a key with the command that administrators use.
pub fn new_key(plane: &ControlPlane, account: &str, scope: &str) -> String {
    let name = format!("key-{}", &ids::random_suffix()[..8]);
    let of_account = ["--account", account];
    let create = ["key", "create", "--scope", scope, "--name", &name];
    let create = [&create[..], &of_account, &["--output", "json"]].concat();
    let printed = stellage_words(plane, &create).or_else(|error| {
        // On a busy machine, it may have been created although the answer came too late.
        println!("creating a key: {error}");
        let revoke = ["key", "revoke", &name];
        let _ = stellage_words(plane, &[&revoke[..], &of_account].concat());
        stellage_words(plane, &create)
    });
    let key: Value = serde_json::from_str(&printed.unwrap()).unwrap();
    let key = key["key"].as_str().unwrap();
    remember_secret(key);
    key.to_owned()
}

/// Revokes a key, and uses it with `is_accepted` until it is refused. Returns when the last accepted use began: how long after a
/// watch of the test's own had shown the deletion, because a busy machine delays that watch, too.
pub async fn accepted_after_revocation(
    keys: &Api<ApiKey>,
    name: &str,
    mut is_accepted: impl AsyncFnMut() -> bool,
) -> Duration {
    let listed = keys.list(&ListParams::default()).await.unwrap();
    let version = listed.metadata.resource_version.unwrap();
    let changes = keys.watch(&WatchParams::default(), &version).await.unwrap();
    let shown = async {
        let mut changes = pin!(changes);
        loop {
            let change = changes.next().await.expect("the watch has ended").unwrap();
            if let WatchEvent::Deleted(key) = change
                && key.name_any() == name
            {
                break Instant::now();
            }
        }
    };
    let mut last_accepted = None;
    let refused = async || {
        let begun = Instant::now();
        let is_accepted = is_accepted().await;
        if is_accepted {
            last_accepted = Some(begun);
        }
        !is_accepted
    };
    keys.delete(name, &DeleteParams::default()).await.unwrap();
    let (shown, _) = tokio::join!(shown, eventually("the key to be refused", refused, |it| *it));
    last_accepted.map_or(Duration::ZERO, |last| last.saturating_duration_since(shown))
}

/// The spec of a small instance.
pub fn spec() -> InstanceSpec {
    serde_json::from_value(
        serde_json::json!({ "plan": "starter", "region": "fr-par-1", "image": "debian-13" }),
    )
    .unwrap()
}
