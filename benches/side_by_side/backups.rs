//! Start-up and memory of `stellage run` with very many completed backups of deleted instances, compared with the same cluster
//! without them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    Result,
    account::Account,
    cluster::Cluster,
    convergence,
    load::{CONNECTIONS, Extent, Load, NUMBER, numbered},
    objects,
    processes::processor_time,
    product::Product,
    samples, say,
    sizes::Sizes,
    table::Table,
};

const FIRST: &str = "first";
const PATIENCE: Duration = Duration::from_mins(1);
/// The highest limits that can be set.
const LIMITS: [&str; 2] = ["--backups-per-instance=10000", "--backups-per-account=1000000"];

struct Measured {
    ready: Duration,
    /// CPU time until nothing is left to do, in seconds.
    used: f64,
    mib: f64,
}

async fn run(cluster: &Cluster) -> Result<Product> {
    Product::run_with(cluster, &LIMITS.map(ToOwned::to_owned)).await
}

impl Measured {
    async fn of(cluster: &Cluster, sizes: &Sizes) -> Result<Self> {
        let begun = Instant::now();
        let mut product = run(cluster).await?;
        let ready = begun.elapsed();
        let mib = product.settled_mib(sizes).await?;
        let used = processor_time(product.pid)?;
        product.stop().await?;
        Ok(Self { ready, used, mib })
    }
}

/// Measures with and without backups.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    let count = sizes.backups;
    let cluster = Cluster::start().await?;
    let mut product = run(&cluster).await?;
    let account = Account::create(&cluster, &product).await?;
    convergence::converge(&cluster, &product, &account, FIRST, 1).await?;
    let instance = convergence::settled_instance(&cluster, &product, &account, FIRST).await?;
    let template = completed(&cluster, &product, &account, &instance).await?;
    product.stop().await?;
    let without = Measured::of(&cluster, sizes).await?;
    fill(&cluster, &account, &template, count).await?;
    let with = Measured::of(&cluster, sizes).await?;
    cluster.stop().await?;

    table.note(&format!(
        "{count} completed backups of as many deleted instances, compared with one"
    ));
    let mut row = |what: &str, with: f64, without: f64, unit: samples::Unit| {
        let shown = |value: f64| format!("{value:.1}{}", unit.0);
        table.ratio(
            what,
            &shown(with),
            &shown(without),
            &(with / without).into(),
            None,
        );
    };
    let seconds = Duration::as_secs_f64;
    row(
        "start until ready",
        seconds(&with.ready),
        seconds(&without.ready),
        samples::SECONDS,
    );
    row("CPU time until idle", with.used, without.used, samples::SECONDS);
    row("resident", with.mib, without.mib, samples::MEBIBYTES);
    Ok(())
}

fn collection(account: &Account) -> String {
    format!("/apis/stellage.dev/v1/namespaces/{}/backups", account.namespace)
}

/// A backup that the program has completed and whose event is settled.
async fn completed(
    cluster: &Cluster,
    product: &Product,
    account: &Account,
    instance: &Value,
) -> Result<Value> {
    let manifest = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Backup", "metadata": { "name": "template" },
        "spec": { "instance": instance["metadata"]["name"] },
    });
    let (path, body) = (collection(account), manifest.to_string());
    let json = Some(("application/json", body.as_str()));
    cluster.admin.call("POST", &path, json).await?;
    let path = format!("{path}/template");
    product
        .until(PATIENCE, "a backup without events", async || {
            let backup: Value = cluster.admin.call("GET", &path, None).await?.json()?;
            let outbox = backup["status"]["outbox"].as_array();
            let is_settled = backup["status"]["phase"] == "Completed" && outbox.is_none_or(Vec::is_empty);
            Ok(is_settled.then_some(backup))
        })
        .await
}

/// Stores backups as if they had been completed long ago, each of a different instance.
async fn fill(cluster: &Cluster, account: &Account, template: &Value, count: u64) -> Result<()> {
    say(&format!("  filling up to {count} backups"));
    // The operator itself replaces whole statuses instead of patching them.
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "bench-backups" },
        "rules": [{ "apiGroups": ["stellage.dev"], "resources": ["backups/status"], "verbs": ["patch"] }],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "bench-backups" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "bench-backups" },
        "subjects": [{ "kind": "ServiceAccount", "name": "stellage", "namespace": "stellage-system" }],
    });
    for (kind, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/{kind}");
        let body = object.to_string();
        let json = Some(("application/json", body.as_str()));
        cluster.admin.call("POST", &path, json).await?;
    }
    let target = &cluster.operator;
    let object = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Backup",
        "metadata": {
            "name": format!("bkp-{NUMBER}"), "finalizers": template["metadata"]["finalizers"],
            "annotations": objects::origin(&format!("bkp-{NUMBER}")),
        },
        "spec": { "instance": format!("i-{NUMBER}"), "instanceUID": format!("uid-{NUMBER}") },
    });
    let mut status = template["status"].clone();
    status["id"] = json!(format!("bkp_{NUMBER}"));
    status["source"]["id"] = json!(format!("i-{NUMBER}"));
    status["source"]["uid"] = json!(format!("uid-{NUMBER}"));
    status["instanceDeleted"] = json!(true);
    let path = collection(account);
    let create = target.request("POST", &path, Some(("application/json", &object.to_string())));
    let change = target.request(
        "PATCH",
        &format!("{path}/bkp-{NUMBER}/status"),
        Some((
            "application/merge-patch+json",
            &json!({ "status": status }).to_string(),
        )),
    );
    for (request, status) in [(create, 201), (change, 200)] {
        let load = Load {
            target: target.clone(),
            connections: CONNECTIONS,
            requests: numbered(request, 0),
            status,
            extent: Extent::Count(count),
            pace: None,
        };
        load.run().await?;
    }
    Ok(())
}
