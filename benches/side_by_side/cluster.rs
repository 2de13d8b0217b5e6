//! The API server that everything is measured against, with what Stellage needs in it.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use control_plane::{ControlPlane, Identity};
use serde_json::{Value, json};

use crate::{
    Result,
    product::{Product, STELLAGE},
    say,
    wire::Target,
};

const ACCOUNTS: &str = "/apis/stellage.dev/v1/accounts";
const ACCOUNT: &str = "bench";
/// How long an account may take to be ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// The API server, and the identities that talk to it.
pub struct Cluster {
    /// etcd, kube-apiserver, kube-controller-manager.
    pub plane: ControlPlane,
    /// Who may everything, at once: a request of an administrator passes neither RBAC nor a queue.
    pub admin: Target,
    /// Who Stellage is.
    pub operator: Target,
}

/// Whose instances are measured.
pub struct Account {
    /// Where they are.
    pub namespace: String,
    /// A key that may write.
    pub key: String,
}

impl Cluster {
    /// Starts it, without an audit log, and installs the CRDs, the admission policy and the operator's rights.
    pub async fn start() -> Result<Self> {
        say("starting etcd, kube-apiserver and kube-controller-manager");
        let plane = ControlPlane::options().start().await?;
        let admin = Target::api_server(&plane, Identity::Admin).await?;
        let operator = Target::api_server(&plane, Identity::Operator).await?;
        let cluster = Self {
            plane,
            admin,
            operator,
        };
        let crds = run(Command::new(STELLAGE).args(["crds", "--with-policies"]), "")?;
        cluster.kubectl(&["apply", "--server-side", "-f", "-"], &crds)?;
        let rbac = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/rbac.yaml");
        cluster.kubectl(&["apply", "--server-side", "-f", &rbac.to_string_lossy()], "")?;
        let established = ["wait", "--for=condition=Established", "crd", "--all"];
        cluster.kubectl(&established, "")?;
        Ok(cluster)
    }

    /// Makes the account; `product` gives it its namespace. Its rate limit is there, and counted, but never reached; so is its
    /// webhook quota.
    pub async fn account(&self, product: &Product) -> Result<Account> {
        let object = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Account", "metadata": { "name": ACCOUNT },
            "spec": { "email": "bench@example.com", "rateLimitPerHour": 1_000_000_000, "webhookQuota": 1_000 },
        });
        let body = object.to_string();
        self.admin
            .call("POST", ACCOUNTS, Some(("application/json", &body)))
            .await?;
        let namespace = product
            .until(PATIENCE, "the account's namespace", async || {
                let account = self
                    .admin
                    .call("GET", &format!("{ACCOUNTS}/{ACCOUNT}"), None)
                    .await?;
                let account: Value = account.json()?;
                let conditions = account["status"]["conditions"].as_array();
                let ready = conditions
                    .into_iter()
                    .flatten()
                    .any(|condition| condition["type"] == "NamespaceReady" && condition["status"] == "True");
                let namespace = account["status"]["namespace"].as_str().filter(|_| ready);
                Ok(namespace.map(str::to_owned))
            })
            .await?;
        let create = [
            "key",
            "create",
            "--account",
            ACCOUNT,
            "--scope",
            "write",
            "--output",
            "json",
        ];
        let admin = self.plane.kubeconfig(Identity::Admin);
        let printed = run(Command::new(STELLAGE).args(create).env("KUBECONFIG", admin), "")?;
        let printed: Value = serde_json::from_str(&printed)?;
        Ok(Account {
            namespace,
            key: printed["key"].as_str().ok_or("no key was printed")?.to_owned(),
        })
    }

    fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String> {
        let kubeconfig = self.plane.kubeconfig(Identity::Admin);
        let mut command = Command::new(self.plane.assets().kubectl());
        run(command.args(arguments).env("KUBECONFIG", kubeconfig), input)
    }

    /// The processes of the API server: etcd, without which it is none, and itself.
    pub fn api_server_pids(&self) -> Vec<u32> {
        let servers = self.plane.pids().into_iter();
        servers
            .filter(|(name, _)| *name != "kube-controller-manager")
            .map(|(_, pid)| pid)
            .collect()
    }

    /// Stops it, and removes its data.
    pub async fn stop(self) {
        self.plane.stop().await;
    }
}

fn run(command: &mut Command, input: &str) -> Result<String> {
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
