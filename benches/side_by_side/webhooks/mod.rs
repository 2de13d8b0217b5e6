//! The cost of webhooks; each part has its own cluster:
//!
//! - the CPU time of a transition (`transitions`), compared with that of another build;
//! - (a), (b) events per second from real transitions, their age at the receiver, and their writes (`rates`), compared with
//!   the same account without webhooks;
//! - (d) a healthy receiver's latency and the program's CPU time with fifty hostile receivers (`hostile`), compared with none;
//! - (f) a healthy account's latency next to two whose receivers gain trust and then answer after 29 s (`fairness`), compared with none;
//! - (e) the sender without an API server (`sender`), compared with a bare client.
//!
//! Receivers are threads of the bench (`receivers`), so they share the cores with everything else; their CPU time is shown.

pub mod fairness;
pub mod hostile;
pub mod rates;
pub mod receivers;
pub mod sender;
pub mod transitions;

use std::{fs, path::Path, time::Duration};

use serde_json::{Value, json};

use self::receivers::Receivers;
use crate::support::receivers::{self as kit, Authority};
use crate::{
    Result,
    account::Account,
    churn::Churn,
    cluster::{Cluster, STELLAGE},
    objects,
    product::Product,
    say,
};

/// Timeout for webhooks to be ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster with an account and the signing secret, and a program that may send to loopback.
struct Stage {
    cluster: Cluster,
    account: Account,
    product: Product,
}

impl Stage {
    async fn start(arguments: &[&str]) -> Result<Self> {
        let cluster = Cluster::start().await?;
        let product = run(&cluster, Path::new(STELLAGE), arguments).await?;
        let account = Account::create(&cluster, &product).await?;
        create_secret(&cluster, &account.namespace).await?;
        Ok(Self {
            cluster,
            account,
            product,
        })
    }

    /// This many instances of the account, which can be stopped and started.
    async fn churn(&self, prefix: &str, count: u64) -> Result<Churn> {
        Churn::prepare(
            &self.cluster,
            &self.product,
            &self.account.namespace,
            prefix,
            count,
        )
        .await
    }

    /// Replaces the process with a new one.
    async fn restart(&mut self, arguments: &[&str]) -> Result<()> {
        self.restart_as(Path::new(STELLAGE), arguments).await
    }

    /// Replaces the process with one of another build of `stellage`.
    async fn restart_as(&mut self, program: &Path, arguments: &[&str]) -> Result<()> {
        self.product.stop().await?;
        self.product = run(&self.cluster, program, arguments).await?;
        Ok(())
    }

    async fn create_webhook(&self, name: &str, url: &str) -> Result<()> {
        self.create_webhook_in(&self.account.namespace, name, url).await
    }

    async fn create_webhook_in(&self, namespace: &str, name: &str, url: &str) -> Result<()> {
        let path = objects::webhooks(namespace);
        let body = objects::webhook(name, url);
        let body = Some(("application/json", body.as_str()));
        self.cluster.admin.call("POST", &path, body).await?;
        Ok(())
    }

    /// Creates webhooks for the receivers from `first` up to, but not including, `end`, and waits until they are ready.
    async fn webhooks(&self, receivers: &Receivers, first: usize, end: usize) -> Result<()> {
        for n in first..end {
            self.create_webhook(&hook(n), &receivers.url(n)).await?;
        }
        let names: Vec<String> = (first..end).map(hook).collect();
        self.until_seen(&names, Some("Active")).await
    }

    /// Switches the webhooks of [`Self::webhooks`] on or off, and waits until the program has noticed.
    async fn activate(&self, first: usize, end: usize, active: bool) -> Result<()> {
        let names: Vec<String> = (first..end).map(hook).collect();
        self.activate_all(&names, active).await
    }

    /// Switches webhooks on or off, and waits until the program has noticed.
    async fn activate_all(&self, names: &[String], active: bool) -> Result<()> {
        let body = json!({ "spec": { "active": active } }).to_string();
        for name in names {
            let path = format!("{}/{name}", objects::webhooks(&self.account.namespace));
            let body = Some(("application/merge-patch+json", body.as_str()));
            self.cluster.admin.call("PATCH", &path, body).await?;
        }
        // The webhooks of hostile receivers may have been disabled meanwhile.
        self.until_seen(names, None).await
    }

    /// Waits until the conditions of the webhooks show that the program has seen their current spec, with this reason
    /// if it is given.
    async fn until_seen(&self, names: &[String], reason: Option<&str>) -> Result<()> {
        let path = objects::webhooks(&self.account.namespace);
        self.product
            .until(PATIENCE, "the webhooks' conditions", async || {
                let list: Value = self.cluster.admin.call("GET", &path, None).await?.json()?;
                let is_seen = |webhook: &&Value| {
                    let conditions = webhook["status"]["conditions"].as_array();
                    conditions.into_iter().flatten().any(|condition| {
                        condition["type"] == "Ready"
                            && reason.is_none_or(|reason| condition["reason"] == reason)
                            && condition["observedGeneration"] == webhook["metadata"]["generation"]
                    })
                };
                let seen = list["items"].as_array().into_iter().flatten().filter(is_seen);
                let seen: Vec<&str> = seen
                    .filter_map(|webhook| webhook["metadata"]["name"].as_str())
                    .collect();
                Ok(names
                    .iter()
                    .all(|name| seen.contains(&name.as_str()))
                    .then_some(()))
            })
            .await
    }

    async fn stop(mut self) -> Result<()> {
        self.product.stop().await?;
        self.cluster.stop().await
    }
}

/// Creates the signing secret.
async fn create_secret(cluster: &Cluster, namespace: &str) -> Result<()> {
    let path = format!("/api/v1/namespaces/{namespace}/secrets");
    let secret = objects::secret();
    let body = Some(("application/json", secret.as_str()));
    cluster.admin.call("POST", &path, body).await?;
    Ok(())
}

/// Name of the webhook of the n-th receiver.
fn hook(n: usize) -> String {
    format!("hook-{n:03}")
}

async fn run(cluster: &Cluster, program: &Path, arguments: &[&str]) -> Result<Product> {
    let ca = cluster.plane.folder().join("receivers.pem");
    fs::write(&ca, Authority::shared().pem())?;
    let mut all = vec![
        format!("--receiver-ca={}", ca.display()),
        "--receiver-allow=127.0.0.0/8".to_owned(),
    ];
    all.extend(arguments.iter().map(ToString::to_string));
    say(&format!("stellage run {}", arguments.join(" ")));
    Product::run_of(cluster, program, &all).await
}
