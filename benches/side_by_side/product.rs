//! The program under test: the built `stellage`, started as users start it.

use std::{
    path::Path,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use control_plane::{Daemon, Identity};
use serde_json::Value;

use crate::{
    Result,
    cluster::{Cluster, STELLAGE},
    processes::resident_mib,
    say,
    sizes::Sizes,
    wire::Target,
};

/// Timeout until the program is ready; it lists everything first.
const PATIENCE: Duration = Duration::from_secs(300);
/// Timeout for its shutdown.
const GRACE: Duration = Duration::from_secs(30);
const CONTROLLER: &str = "controller";
const POLL_EVERY: Duration = Duration::from_millis(20);

/// A running `stellage`.
pub struct Product {
    daemon: Daemon,
    /// URL of the REST API, if it has one.
    pub url: String,
    /// URL of its metrics.
    pub metrics_url: String,
    /// Its process id.
    pub pid: u32,
}

impl Product {
    /// Starts `stellage run` with a provisioning time of 0.
    pub async fn run(cluster: &Cluster) -> Result<Self> {
        Self::start(cluster, STELLAGE.as_ref(), "run", &[]).await
    }

    /// Starts `run` of another build of `stellage` with more arguments.
    pub async fn run_of(cluster: &Cluster, program: &Path, arguments: &[String]) -> Result<Self> {
        Self::start(cluster, program, "run", arguments).await
    }

    /// Starts `stellage api`, the facade without controllers.
    pub async fn api(cluster: &Cluster) -> Result<Self> {
        Self::api_of(cluster, STELLAGE.as_ref()).await
    }

    /// Like [`Self::api`], with more arguments.
    pub async fn api_with(cluster: &Cluster, arguments: &[&str]) -> Result<Self> {
        Self::start(cluster, STELLAGE.as_ref(), "api", &owned(arguments)).await
    }

    /// Starts `api` of another build of `stellage`.
    pub async fn api_of(cluster: &Cluster, program: &Path) -> Result<Self> {
        Self::start(cluster, program, "api", &[]).await
    }

    /// Starts `stellage controller`, the controllers without the facade, with more arguments.
    pub async fn controller(cluster: &Cluster, arguments: &[&str]) -> Result<Self> {
        Self::start(cluster, STELLAGE.as_ref(), CONTROLLER, &owned(arguments)).await
    }

    async fn start(
        cluster: &Cluster,
        program: &Path,
        subcommand: &str,
        arguments: &[String],
    ) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("stellage-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let ready_file = cluster.plane.folder().join(format!("{name}.json"));
        let mut command = Command::new(program);
        command.args([subcommand, "--metrics-listen", "127.0.0.1:0"]);
        if subcommand != CONTROLLER {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command
            .args(["--provisioning-seconds", "0", "--ready-file"])
            .arg(&ready_file)
            .args(arguments)
            // A single account has all instances and deliveries.
            .env("STELLAGE_DEFAULT_INSTANCE_QUOTA", "1000000")
            // As real ones are.
            .env("STELLAGE_BILL_SIMULATED", "true")
            .env("KUBECONFIG", cluster.plane.kubeconfig(Identity::Operator))
            .env_remove("RUST_LOG");
        let log = cluster.plane.folder().join(format!("{name}.log"));
        let daemon = Daemon::spawn(&name, command, cluster.plane.group(), &log)?;
        let mut product = Self {
            pid: daemon.pid(),
            daemon,
            url: String::new(),
            metrics_url: String::new(),
        };
        (product.url, product.metrics_url) = product
            .until(PATIENCE, "stellage to serve", async || {
                let Ok(text) = std::fs::read(&ready_file) else {
                    return Ok(None);
                };
                // The file may be partly written.
                let ready: Option<Value> = serde_json::from_slice(&text).ok();
                // The controllers have no REST API.
                let text = |ready: &Value, field: &str| ready[field].as_str().unwrap_or_default().to_owned();
                Ok(ready.map(|ready| (text(&ready, "url"), text(&ready, "metrics_url"))))
            })
            .await?;
        Ok(product)
    }

    /// The facade as a target, with an account's key.
    pub fn facade(&self, key: &str) -> Result<Target> {
        Target::plain(&self.url, key)
    }

    /// Its metrics page.
    pub async fn metrics(&self) -> Result<String> {
        let target = Target::plain(&self.metrics_url, "")?;
        let page = target.call("GET", "/metrics", None).await?.body;
        Ok(String::from_utf8(page)?)
    }

    /// Its resident memory in MiB after it has been idle for a while.
    pub async fn settled_mib(&self, sizes: &Sizes) -> Result<f64> {
        tokio::time::sleep(sizes.settling).await;
        let resident = resident_mib(self.pid)?;
        say(&format!("resident memory: {resident:.1} MiB"));
        Ok(resident)
    }

    /// Waits until `look` finds something. After `patience`, returns an error with the end of the log.
    pub async fn until<T>(
        &self,
        patience: Duration,
        what: &str,
        mut look: impl AsyncFnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let begun = Instant::now();
        loop {
            if let Some(found) = look().await? {
                return Ok(found);
            }
            if begun.elapsed() > patience {
                let waited = format!("was waited for in vain: {what}");
                return Err(self.daemon.error(waited).into());
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        self.daemon.kill();
    }

    /// Stops it with SIGTERM. Fails unless it exits successfully.
    pub async fn stop(&mut self) -> Result<()> {
        match self.daemon.stop(GRACE).await {
            Some(status) if status.success() => Ok(()),
            status => Err(self
                .daemon
                .error(format!("did not end well after SIGTERM: {status:?}"))
                .into()),
        }
    }
}

fn owned(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| (*argument).to_owned()).collect()
}
