//! The real Helm, which is built once if it is not there, and the folders of the charts.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use control_plane::{ControlPlane, Identity};
use serde_json::Value;
use tokio::sync::OnceCell;

use super::{kubectl, run};

/// The folder of the chart.
pub fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/stellage")
}

/// The folder of the chart of a region.
pub fn region_chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/stellage-region")
}

/// Helm, with folders of its own.
pub struct Helm {
    program: PathBuf,
    pub folder: tempfile::TempDir,
    kubeconfig: Option<PathBuf>,
}

impl Helm {
    /// For tests that need no cluster.
    pub async fn alone() -> Self {
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

    /// The program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// As the administrator of a cluster.
    pub async fn on(plane: &ControlPlane) -> Self {
        Self {
            kubeconfig: Some(plane.kubeconfig(Identity::Admin)),
            ..Self::alone().await
        }
    }

    /// Runs Helm; returns its output, or its errors if it fails.
    pub fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.program);
        command.args(arguments).env_remove("KUBECONFIG");
        for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(name, self.folder.path());
        }
        if let Some(kubeconfig) = &self.kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
        }
        run(&mut command, None)
    }

    /// Runs Helm with a file of values at the end of its arguments.
    pub fn with(&self, arguments: &[&str], values: &Value) -> Result<String, String> {
        let file = self.folder.path().join("values.json");
        std::fs::write(&file, values.to_string()).unwrap();
        self.run(&[arguments, &["--values", file.to_str().unwrap()]].concat())
    }

    /// The objects of the chart, as text.
    pub fn template(&self, namespace: &str, values: &Value) -> Result<String, String> {
        self.template_of(&chart(), "stellage", namespace, values)
    }

    /// The objects of a release of this chart, as text.
    pub fn template_of(
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
    kubectl(plane, "apply --server-side -f -", Some(&manifests)).unwrap();
}
