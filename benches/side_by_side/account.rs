//! The account for the measurements.

use std::{path::Path, process::Command, time::Duration};

use control_plane::Identity;
use serde_json::{Value, json};

use crate::{
    Result,
    cluster::{Cluster, STELLAGE, run},
    product::Product,
};

/// Path of all accounts.
const ACCOUNTS: &str = "/apis/stellage.dev/v1/accounts";
const ACCOUNT: &str = "bench";
/// Timeout for the account to be ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// The account that owns the measured instances.
pub struct Account {
    /// Its namespace.
    pub namespace: String,
    /// A key with the scope `write`.
    pub key: String,
}

impl Account {
    /// Creates the account; `product` sets up its namespace. Rate limit and webhook quota are enforced, but too high to be
    /// reached.
    pub async fn create(cluster: &Cluster, product: &Product) -> Result<Self> {
        Self::named(cluster, product, ACCOUNT).await
    }

    /// The same with another name.
    pub async fn named(cluster: &Cluster, product: &Product, name: &str) -> Result<Self> {
        Ok(Self {
            namespace: Self::namespace(cluster, product, name).await?,
            key: new_key(cluster, Path::new(STELLAGE), name)?,
        })
    }

    /// Creates an account with this name. Returns its namespace.
    pub async fn namespace(cluster: &Cluster, product: &Product, name: &str) -> Result<String> {
        let object = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Account", "metadata": { "name": name },
            "spec": { "email": "bench@example.com", "rateLimitPerHour": 1_000_000_000, "webhookQuota": 1_000 },
        });
        let body = object.to_string();
        cluster
            .admin
            .call("POST", ACCOUNTS, Some(("application/json", &body)))
            .await?;
        product
            .until(PATIENCE, "the account's namespace", async || {
                let account = cluster
                    .admin
                    .call("GET", &format!("{ACCOUNTS}/{name}"), None)
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
            .await
    }

    /// Creates a key with another build of `stellage`, which can then recognise its digest.
    pub fn key_of(cluster: &Cluster, program: &Path) -> Result<String> {
        new_key(cluster, program, ACCOUNT)
    }
}

fn new_key(cluster: &Cluster, program: &Path, account: &str) -> Result<String> {
    let create = [
        "key",
        "create",
        "--account",
        account,
        "--scope",
        "write",
        "--output",
        "json",
    ];
    let admin = cluster.plane.kubeconfig(Identity::Admin);
    let printed = run(Command::new(program).args(create).env("KUBECONFIG", admin), "")?;
    let printed: Value = serde_json::from_str(&printed)?;
    Ok(printed["key"].as_str().ok_or("no key was printed")?.to_owned())
}
