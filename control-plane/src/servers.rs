//! The command lines and readiness checks of the three servers.

use crate::{Assets, Error, Identity, Options, audit, credentials::Tokens, loopback, random};
use http::Method;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

pub(crate) const ETCD: &str = "etcd";
pub(crate) const APISERVER: &str = "kube-apiserver";
pub(crate) const CONTROLLER_MANAGER: &str = "kube-controller-manager";

/// The layout of a control plane's folder.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) folder: PathBuf,
}

impl Layout {
    pub(crate) fn etcd_data(&self) -> PathBuf {
        self.folder.join("etcd")
    }

    pub(crate) fn certificates(&self) -> PathBuf {
        self.folder.join("pki")
    }

    pub(crate) fn kubeconfig(&self, identity: Identity) -> PathBuf {
        self.folder.join(identity.kubeconfig())
    }

    pub(crate) fn audit_policy(&self) -> PathBuf {
        self.folder.join("audit-policy.yaml")
    }

    pub(crate) fn audit_log(&self) -> PathBuf {
        self.folder.join("audit.log")
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    fn tokens(&self) -> PathBuf {
        self.folder.join("tokens.csv")
    }

    /// Everything except the logs.
    pub(crate) fn disposable(&self) -> Vec<PathBuf> {
        vec![
            self.etcd_data(),
            self.certificates(),
            self.kubeconfig(Identity::Admin),
            self.kubeconfig(Identity::Operator),
            self.audit_policy(),
            self.tokens(),
        ]
    }

    /// The API server's key. It also signs service accounts' tokens, which is the default.
    fn key(&self) -> PathBuf {
        self.certificates().join("apiserver.key")
    }

    /// The certificates of the API server and of the authority that it has created for itself. The API server writes
    /// the key after the certificates, so while there is no key they may be incomplete.
    pub(crate) fn read_certificates(&self) -> Option<Vec<u8>> {
        if !self.key().is_file() {
            return None;
        }
        fs::read(self.certificates().join("apiserver.crt")).ok()
    }
}

/// etcd on two ports.
#[derive(Debug)]
pub(crate) struct Etcd {
    /// Random, so that another etcd on the same port is not mistaken for this one.
    name: String,
    client_port: u16,
    peer_port: u16,
}

impl Etcd {
    pub(crate) fn new(client_port: u16, peer_port: u16) -> Result<Self, Error> {
        Ok(Self {
            name: random::hex(8)?,
            client_port,
            peer_port,
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.client_port)
    }

    pub(crate) fn command(&self, assets: &Assets, layout: &Layout, extra: &[String]) -> Command {
        let client = self.url();
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let mut command = Command::new(&assets.etcd);
        command
            .arg(format!("--name={}", self.name))
            .arg(format!("--data-dir={}", layout.etcd_data().display()))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster={}={peer}", self.name))
            // The data is removed after the run, so it need not survive a power cut.
            .arg("--unsafe-no-fsync")
            .arg("--log-level=warn")
            .args(extra);
        command
    }

    /// Whether it has a leader, and is the etcd that was started.
    pub(crate) async fn is_ready(&self) -> bool {
        let authority = format!("127.0.0.1:{}", self.client_port);
        loopback::request(&authority, Method::POST, "/v3/cluster/member/list", &[], "{}")
            .await
            .is_ok_and(|(status, body)| status == 200 && body.contains(&self.name))
    }
}

pub(crate) fn apiserver(
    assets: &Assets,
    layout: &Layout,
    tokens: &Tokens,
    etcd_url: &str,
    port: u16,
    options: &Options,
) -> Command {
    let key = layout.key();
    let mut command = Command::new(&assets.kube_apiserver);
    command
        .arg(format!("--etcd-servers={etcd_url}"))
        .arg(format!("--secure-port={port}"))
        .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
        // Loopback is not a valid endpoint of the `kubernetes` service, which nothing here needs.
        .arg("--endpoint-reconciler-type=none")
        .arg(format!("--cert-dir={}", layout.certificates().display()))
        .arg("--authorization-mode=RBAC")
        .arg(format!("--token-auth-file={}", tokens.file.display()))
        .arg("--service-account-issuer=https://kubernetes.default.svc")
        .arg(format!("--service-account-key-file={}", key.display()))
        .arg(format!("--service-account-signing-key-file={}", key.display()))
        .arg("--service-cluster-ip-range=10.0.0.0/24")
        // It delays objects until their namespace has a service account, which only pods need; there are no pods.
        .arg("--disable-admission-plugins=ServiceAccount");
    if options.audit_log {
        command
            .arg(format!("--audit-policy-file={}", layout.audit_policy().display()))
            .arg(format!("--audit-log-path={}", layout.audit_log().display()))
            // Megabytes. After the default of 100, the log would go on in another file.
            .arg("--audit-log-maxsize=1000000")
            // Requests are logged before they are answered, so that a test can count its own.
            .arg("--audit-log-mode=blocking-strict");
    }
    command.args(&options.apiserver_args);
    command
}

/// Writes the files that the API server reads at its start.
pub(crate) fn prepare(layout: &Layout, options: &Options) -> Result<Tokens, Error> {
    let folder: &Path = &layout.certificates();
    fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
    if options.audit_log {
        let path = layout.audit_policy();
        fs::write(&path, audit::POLICY).map_err(Error::file("write", path))?;
    }
    Tokens::create(&layout.folder)
}

pub(crate) fn controller_manager(assets: &Assets, layout: &Layout, extra: &[String]) -> Command {
    let mut command = Command::new(&assets.kube_controller_manager);
    command
        .arg(format!(
            "--kubeconfig={}",
            layout.kubeconfig(Identity::Admin).display()
        ))
        .arg(format!(
            "--service-account-private-key-file={}",
            layout.key().display()
        ))
        .args(["--leader-elect=false", "--secure-port=0"])
        .arg(
            "--controllers=garbage-collector-controller,namespace-controller,resourcequota-controller,\
             serviceaccount-controller,serviceaccount-token-controller",
        )
        // The default limits would slow down the tests.
        .args(["--kube-api-qps=200", "--kube-api-burst=400"])
        .args(extra);
    command
}
