//! The Helm charts, with the real Helm, which is built once if it is not there.
//!
//! - `alerts`: alerts, their runbooks and the dashboard, with the real promtool;
//! - `files`: what is generated, and what has to agree with the program;
//! - `optional`: what is in the chart only if values ask for it;
//! - `priority`: what an API server that has too much to do serves first;
//! - `region`: the chart of a region, and what its token grants;
//! - `rendered`: several sets of values, with a real API server;
//! - `installed`: the chart installed, run, upgraded, rolled back and uninstalled;
//! - `stolen`: what the operator's tokens grant in the wrong hands;
//! - `tenants`: what the roles for tenants allow.

mod alerts;
mod files;
mod installed;
mod optional;
mod priority;
mod region;
mod rendered;
mod stolen;
mod tenants;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use control_plane::{ControlPlane, Identity};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::support;

/// The folder of the chart.
fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/stellage")
}

/// The folder of the chart of a region.
fn region_chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/stellage-region")
}

/// Helm, with folders of its own.
struct Helm {
    program: PathBuf,
    folder: tempfile::TempDir,
    kubeconfig: Option<PathBuf>,
}

impl Helm {
    /// For tests that need no cluster.
    async fn alone() -> Self {
        static PROGRAM: OnceCell<PathBuf> = OnceCell::const_new();
        let find = async || {
            let found = tokio::task::spawn_blocking(|| control_plane::helm(|line| eprintln!("{line}"))).await;
            found.unwrap().unwrap()
        };
        Self {
            program: PROGRAM.get_or_init(find).await.clone(),
            folder: tempfile::tempdir().unwrap(),
            kubeconfig: None,
        }
    }

    /// As the administrator of a cluster.
    async fn on(plane: &ControlPlane) -> Self {
        Self {
            kubeconfig: Some(plane.kubeconfig(Identity::Admin)),
            ..Self::alone().await
        }
    }

    /// Runs Helm; returns its output, or its errors if it fails.
    fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.program);
        command.args(arguments).env_remove("KUBECONFIG");
        for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(name, self.folder.path());
        }
        if let Some(kubeconfig) = &self.kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
        }
        support::run(&mut command, None)
    }

    /// Runs Helm with a file of values at the end of its arguments.
    fn with(&self, arguments: &[&str], values: &Value) -> Result<String, String> {
        let file = self.folder.path().join("values.json");
        std::fs::write(&file, values.to_string()).unwrap();
        self.run(&[arguments, &["--values", file.to_str().unwrap()]].concat())
    }

    /// The objects of the chart, as text.
    fn template(&self, namespace: &str, values: &Value) -> Result<String, String> {
        self.template_of(&chart(), "stellage", namespace, values)
    }

    /// The objects of a release of this chart, as text.
    fn template_of(
        &self,
        chart: &Path,
        release: &str,
        namespace: &str,
        values: &Value,
    ) -> Result<String, String> {
        let chart = chart.to_str().unwrap();
        self.with(&["template", release, chart, "--namespace", namespace], values)
    }
}

/// Installs the chart of a region, for a service account that has the name of the release.
pub async fn install_region(plane: &ControlPlane, release: &str, namespace: &str, values: &Value) {
    let helm = Helm::alone().await;
    let manifests = helm
        .template_of(&region_chart(), release, namespace, values)
        .unwrap();
    support::kubectl(plane, &["apply", "--server-side", "-f", "-"], Some(&manifests)).unwrap();
}

/// The objects in a text of YAML documents.
fn objects(text: &str) -> Vec<Value> {
    let documents = format!("\n{text}");
    let documents = documents.split("\n---");
    documents
        .map(|document| {
            serde_saphyr::from_str::<Value>(document).unwrap_or_else(|error| panic!("{error}: {document}"))
        })
        .filter(|object| !object.is_null())
        .collect()
}

/// A kubeconfig with a token of a service account, as its pods have it.
fn kubeconfig_of(plane: &ControlPlane, namespace: &str, service_account: &str) -> PathBuf {
    let token = [
        "create",
        "token",
        service_account,
        "--namespace",
        namespace,
        "--duration=2h",
    ];
    let token = support::kubectl(plane, &token, None).unwrap();
    let text = std::fs::read_to_string(plane.kubeconfig(Identity::Admin)).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["users"][0]["user"] = json!({ "token": token.trim() });
    let path = plane.folder().join(format!("{service_account}.kubeconfig"));
    control_plane::write_private(&path, &config.to_string()).unwrap();
    path
}
