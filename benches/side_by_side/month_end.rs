//! The end of a month in many accounts at once: the time until all invoices are issued, the time until nothing is left to do
//! about them, and the writes of the API server. The clock cannot be set here, so all accounts are told to close at the same
//! moment, which takes the same steps.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    Result,
    account::{ACCOUNTS, Account},
    cluster::Cluster,
    convergence, fill,
    latencies::as_f64,
    load::{CONNECTIONS, Extent, Load, Requests},
    processes::processor_time,
    product::Product,
    samples::{self, Unit},
    say,
    sizes::Sizes,
    table::{Aim, Table},
    writes::Writes,
};

const FIRST: &str = "first";
const INVOICES: &str = "/apis/stellage.dev/v1/invoices";
const SETTLED: &str = "stellage.dev/settled";
const PATIENCE: Duration = Duration::from_mins(10);
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Maximum number of writes of an account's invoices and their pages.
const MOST_WRITES: f64 = 3.0;

fn namespace(account: u64) -> String {
    format!("month-{account:04}")
}

/// Measures one end of a month.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    let (accounts, instances) = sizes.month_end;
    let cluster = Cluster::start().await?;
    let mut product = Product::run(&cluster).await?;
    let account = Account::create(&cluster, &product).await?;
    convergence::converge(&cluster, &product, &account, FIRST, 1).await?;
    let template = convergence::settled_instance(&cluster, &product, &account, FIRST).await?;
    create_accounts(&cluster, &product, accounts).await?;
    product.stop().await?;
    let namespaces = (0..accounts).map(namespace).collect();
    fill::instances_of(&cluster, namespaces, &template, instances).await?;

    let mut product = Product::run(&cluster).await?;
    // The template's instance is in the ledger, too.
    let metered = usize::try_from(instances)? + 1;
    until(&product, "all instances to be in the ledger", async || {
        let open = items(&cluster, INVOICES).await?;
        let entries = |invoice: &Value| invoice["spec"]["entries"].as_array().map_or(0, Vec::len);
        Ok(open.iter().map(entries).sum::<usize>() >= metered)
    })
    .await?;
    tokio::time::sleep(sizes.settling).await;

    say(&format!("  {accounts} accounts are closed"));
    let before = (processor_time(product.pid)?, Writes::count(&cluster.admin).await?);
    let begun = Instant::now();
    close(&cluster, accounts).await?;
    let told = begun.elapsed();
    let wanted = usize::try_from(accounts)?;
    until(&product, "all invoices to be issued", async || {
        let all = items(&cluster, INVOICES).await?;
        let issued = all
            .iter()
            .filter(|invoice| invoice["status"]["phase"] == "Issued");
        Ok(issued.count() >= wanted)
    })
    .await?;
    let issued = begun.elapsed();
    until(&product, "all events to be settled", async || {
        let settled = items(&cluster, &format!("{INVOICES}?labelSelector={SETTLED}")).await?;
        Ok(settled.len() >= wanted)
    })
    .await?;
    let settled = begun.elapsed();
    let used = processor_time(product.pid)? - before.0;
    let writes = Writes::count(&cluster.admin).await? - before.1;
    product.stop().await?;
    cluster.stop().await?;

    table.note(&format!(
        "{instances} instances in {accounts} accounts; telling all of them to close took {:.1} s",
        told.as_secs_f64()
    ));
    let mut row = |what: &str, value: f64, unit, aim| table.value(what, &value.into(), unit, aim);
    row(
        "until all invoices are issued",
        issued.as_secs_f64(),
        samples::SECONDS,
        None,
    );
    row(
        "until all events are settled",
        settled.as_secs_f64(),
        samples::SECONDS,
        None,
    );
    row("CPU time of stellage", used, samples::SECONDS, None);
    let each = as_f64(writes.invoices) / as_f64(accounts);
    row(
        "writes of invoices and pages, an account",
        each,
        samples::EACH,
        Some(Aim::AtMost(MOST_WRITES)),
    );
    row(
        "writes of ConfigMaps, in all",
        as_f64(writes.config_maps),
        Unit("", 0),
        None,
    );
    Ok(())
}

async fn items(cluster: &Cluster, path: &str) -> Result<Vec<Value>> {
    let mut list: Value = cluster.admin.call("GET", path, None).await?.json()?;
    match list["items"].take() {
        Value::Array(items) => Ok(items),
        _ => Err(format!("{path} is no list").into()),
    }
}

async fn until(product: &Product, what: &str, mut is_so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    product
        .until(PATIENCE, what, async || {
            tokio::time::sleep(LOOK_EVERY).await;
            Ok(is_so().await?.then_some(()))
        })
        .await
}

fn load(cluster: &Cluster, count: u64, status: u16, requests: Arc<Requests>) -> Load {
    Load {
        target: cluster.admin.clone(),
        connections: CONNECTIONS,
        requests,
        status,
        extent: Extent::Count(count),
        pace: None,
    }
}

async fn create_accounts(cluster: &Cluster, product: &Product, count: u64) -> Result<()> {
    let target = cluster.admin.clone();
    let create = move |n: u64, buffer: &mut Vec<u8>| {
        let account = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Account", "metadata": { "name": namespace(n) },
            "spec": { "email": "bench@example.com" },
        });
        let body = account.to_string();
        *buffer = target
            .request("POST", ACCOUNTS, Some(("application/json", &body)))
            .into_bytes();
    };
    load(cluster, count, 201, Arc::new(create)).run().await?;
    let wanted = usize::try_from(count)?;
    until(product, "the accounts' namespaces", async || {
        let all = items(cluster, ACCOUNTS).await?;
        let is_ready = |account: &&Value| {
            let conditions = account["status"]["conditions"].as_array();
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        };
        Ok(all.iter().filter(is_ready).count() >= wanted)
    })
    .await
}

/// Tells all accounts to close their invoices now.
async fn close(cluster: &Cluster, accounts: u64) -> Result<()> {
    let target = cluster.admin.clone();
    let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second())?;
    let body = json!({ "spec": { "invoicesClosedUntil": now.to_string() } }).to_string();
    let change = move |n: u64, buffer: &mut Vec<u8>| {
        let path = format!("{ACCOUNTS}/{}", namespace(n));
        *buffer = target
            .request("PATCH", &path, Some(("application/merge-patch+json", &body)))
            .into_bytes();
    };
    load(cluster, accounts, 200, Arc::new(change)).run().await?;
    Ok(())
}
