//! The API server for the measurements, with the CRDs, policies and rights that Stellage needs.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use control_plane::{ControlPlane, Identity, Options};

use crate::{
    Result, objects, say,
    wire::{Server, Target},
};

/// The binary under test.
pub const STELLAGE: &str = env!("CARGO_BIN_EXE_stellage");

const POLICIES: &str = "validatingadmissionpolicies,validatingadmissionpolicybindings";
/// Timeout for the API server to know the schema of Instances.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(200);

/// The API server, and the identities that send requests to it.
pub struct Cluster {
    /// etcd, kube-apiserver, kube-controller-manager.
    pub plane: ControlPlane,
    /// The administrator, whose requests bypass RBAC and priority queues.
    pub admin: Target,
    /// The operator's identity.
    pub operator: Target,
}

impl Cluster {
    /// Starts the API server without an audit log, and installs the CRDs, the admission policies and the
    /// operator's rights.
    pub async fn start() -> Result<Self> {
        Self::start_with(ControlPlane::options()).await
    }

    /// The same with options of the API server.
    pub async fn start_with(options: Options) -> Result<Self> {
        say("starting etcd, kube-apiserver and kube-controller-manager");
        let plane = options.without_controller_manager().start().await?;
        let target = async |identity| {
            let kubeconfig = plane.kubeconfig(identity);
            Target::of(Server::Cluster { kubeconfig }).await
        };
        let (admin, operator) = (target(Identity::Admin).await?, target(Identity::Operator).await?);
        let cluster = Self {
            plane,
            admin,
            operator,
        };
        cluster.define(STELLAGE.as_ref())?;
        cluster.plane.start_controller_manager()?;
        let rbac = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/rbac.yaml");
        cluster.kubectl(&["apply", "--server-side", "-f", &rbac.to_string_lossy()], "")?;
        Ok(cluster)
    }

    /// Installs the CRDs and the admission policies of a build, in place of those of another one. The API server takes some
    /// seconds to know them.
    pub fn define(&self, program: &Path) -> Result<()> {
        let crds = run(Command::new(program).args(["crds", "--with-policies"]), "")?;
        self.kubectl(&["delete", POLICIES, "--all"], "")?;
        self.kubectl(&["apply", "--server-side", "-f", "-"], &crds)?;
        self.kubectl(&["wait", "--for=condition=Established", "crd", "--all"], "")?;
        Ok(())
    }

    /// Waits until an instance can be created in a namespace.
    pub async fn until_created(&self, namespace: &str) -> Result<()> {
        let path = format!("{}?dryRun=All", objects::collection(namespace));
        let body = objects::manifest("try");
        let request = self
            .admin
            .request("POST", &path, Some(("application/json", &body)));
        let mut connection = self.admin.connect().await?;
        let begun = Instant::now();
        loop {
            match connection.exchange(request.as_bytes()).await? {
                201 => return Ok(()),
                503 if begun.elapsed() < PATIENCE => tokio::time::sleep(POLL_EVERY).await,
                status => return Err(format!("a create was answered with {status}").into()),
            }
        }
    }

    fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String> {
        let kubeconfig = self.plane.kubeconfig(Identity::Admin);
        let mut command = Command::new(self.plane.assets().kubectl());
        run(command.args(arguments).env("KUBECONFIG", kubeconfig), input)
    }

    /// The processes of the API server: etcd and kube-apiserver.
    pub fn api_server_pids(&self) -> Vec<u32> {
        let servers = self.plane.pids().into_iter();
        servers
            .filter(|(name, _)| *name != "kube-controller-manager")
            .map(|(_, pid)| pid)
            .collect()
    }

    /// The process id of one server: `etcd`, `kube-apiserver` or `kube-controller-manager`.
    pub fn pid(&self, name: &str) -> Result<u32> {
        let mut servers = self.plane.pids().into_iter();
        let found = servers.find(|(server, _)| *server == name);
        Ok(found.ok_or_else(|| format!("{name} does not run"))?.1)
    }

    /// Number of values that etcd has written.
    pub async fn etcd_writes(&self) -> Result<f64> {
        let etcd = Target::plain(&self.plane.etcd_url(), "")?;
        let page = etcd.call("GET", "/metrics", None).await?.body;
        let page = String::from_utf8_lossy(&page);
        let value = page
            .lines()
            .find_map(|line| line.strip_prefix("etcd_mvcc_put_total "));
        Ok(value.ok_or("etcd has no etcd_mvcc_put_total")?.parse()?)
    }

    /// Stops it, and removes its data.
    pub async fn stop(self) -> Result<()> {
        Ok(self.plane.stop().await?)
    }
}

/// Runs a command and returns its stdout. If it fails, the error contains its stderr.
pub fn run(command: &mut Command, input: &str) -> Result<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout)?);
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?} ended with {}: {complaint}", output.status).into())
}
