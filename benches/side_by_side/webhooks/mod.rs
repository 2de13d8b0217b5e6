//! The cost of webhooks; each part has its own cluster:
//!
//! - (a), (b) events per second from real transitions, their age at the receiver, and their writes (`rates`), compared with
//!   the same account without webhooks;
//! - (c) memory with many finished and with pending deliveries (`memory`), compared with none;
//! - (d) a healthy receiver's latency and the program's CPU time with fifty hostile receivers (`hostile`), compared with none;
//! - (e) the sender without an API server (`sender`), compared with a bare client.
//!
//! Receivers are threads of the bench (`receivers`), so they share the cores with everything else; their CPU time is shown.

mod churn;
mod hostile;
#[path = "../../../tests/support/receivers/mod.rs"]
#[allow(
    clippy::unwrap_used,
    clippy::enum_glob_use,
    reason = "the tests' receivers, where whatever fails ends the run, and whose lints are those of tests"
)]
pub mod kit;
mod memory;
mod rates;
pub mod receivers;
mod sender;

use std::{fs, time::Duration};

use serde_json::Value;

use self::{kit::Authority, receivers::Receivers};
use crate::{
    Result, account::Account, cluster::Cluster, objects, product::Product, say, sizes::Sizes, table::Table,
};

/// Timeout for webhooks to be ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// A part that can be selected by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// (a) and (b).
    Rates,
    /// (c).
    Memory,
    /// (d).
    Hostile,
    /// (e).
    Sender,
}

impl Part {
    /// All parts, in the order of measurement.
    pub const ALL: [Self; 4] = [Self::Sender, Self::Rates, Self::Hostile, Self::Memory];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rates => "webhooks-rates",
            Self::Memory => "webhooks-memory",
            Self::Hostile => "webhooks-hostile",
            Self::Sender => "webhooks-sender",
        }
    }

    /// Measures the part.
    pub async fn measure(self, table: &mut Table, sizes: &Sizes) -> Result<()> {
        match self {
            Self::Rates => rates::measure(table, sizes).await,
            Self::Memory => memory::measure(table, sizes).await,
            Self::Hostile => hostile::measure(table, sizes).await,
            Self::Sender => sender::measure(table, sizes).await,
        }
    }
}

/// A cluster with an account and the signing secret, and a program that sends to loopback.
struct Stage {
    cluster: Cluster,
    account: Account,
    product: Product,
}

impl Stage {
    async fn start(arguments: &[&str]) -> Result<Self> {
        let cluster = Cluster::start().await?;
        let product = run(&cluster, arguments).await?;
        let account = Account::create(&cluster, &product).await?;
        let path = format!("/api/v1/namespaces/{}/secrets", account.namespace);
        let secret = objects::secret();
        let body = Some(("application/json", secret.as_str()));
        cluster.admin.call("POST", &path, body).await?;
        Ok(Self {
            cluster,
            account,
            product,
        })
    }

    /// Replaces the process by a new one.
    async fn restart(&mut self, arguments: &[&str]) -> Result<()> {
        self.product.stop().await?;
        self.product = run(&self.cluster, arguments).await?;
        Ok(())
    }

    async fn create_webhook(&self, name: &str, url: &str) -> Result<()> {
        let path = objects::webhooks(&self.account.namespace);
        let body = objects::webhook(name, url);
        let body = Some(("application/json", body.as_str()));
        self.cluster.admin.call("POST", &path, body).await?;
        Ok(())
    }

    /// Creates webhooks for the receivers from `first` up to, but not including, `end`, and waits until they are ready.
    async fn webhooks(&self, receivers: &Receivers, first: usize, end: usize) -> Result<()> {
        for n in first..end {
            self.create_webhook(&format!("hook-{n:03}"), &receivers.url(n))
                .await?;
        }
        let path = objects::webhooks(&self.account.namespace);
        self.product
            .until(PATIENCE, "all webhooks ready", async || {
                let list: Value = self.cluster.admin.call("GET", &path, None).await?.json()?;
                let items = list["items"].as_array().map_or(&[][..], Vec::as_slice);
                let is_ready = |webhook: &&Value| {
                    let conditions = webhook["status"]["conditions"].as_array();
                    let mut conditions = conditions.into_iter().flatten();
                    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
                };
                Ok((items.iter().filter(is_ready).count() == end).then_some(()))
            })
            .await
    }

    async fn stop(mut self) -> Result<()> {
        self.product.stop().await?;
        self.cluster.stop().await
    }
}

async fn run(cluster: &Cluster, arguments: &[&str]) -> Result<Product> {
    let ca = cluster.plane.folder().join("receivers.pem");
    fs::write(&ca, Authority::shared().pem())?;
    let mut all = vec![
        format!("--receiver-ca={}", ca.display()),
        "--receiver-allow=127.0.0.0/8".to_owned(),
    ];
    all.extend(arguments.iter().map(ToString::to_string));
    say(&format!("stellage run {}", arguments.join(" ")));
    Product::run_with(cluster, &all).await
}
