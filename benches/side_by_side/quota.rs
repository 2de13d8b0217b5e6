//! The cost of a native `ResourceQuota` for a create through REST: the API server also writes the quota's status, one create
//! after the other.
//!
//! Creates in an account with its quota and in one whose quota was deleted take turns, on one `stellage api`. No controller
//! runs, since it would restore the quota. The writes counted are those of etcd.

use std::time::Duration;

use serde_json::Value;

use crate::{
    Result,
    account::Account,
    cluster::Cluster,
    latencies::as_f64,
    load::{CONNECTIONS, Client, Extent},
    objects,
    processes::processor_time_of,
    product::Product,
    samples::{self, Samples, Unit},
    say,
    sizes::Sizes,
    table::Table,
    wire::Target,
};

const PATH: &str = "/v1/instances";
const PATIENCE: Duration = Duration::from_mins(2);

/// The cost of creates in one account.
struct Turn {
    rate: f64,
    /// CPU time of the API server and etcd per create, in milliseconds.
    processor: f64,
    /// etcd writes per create.
    writes: f64,
}

/// Measures both sides.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    let cluster = Cluster::start().await?;
    let mut product = Product::run(&cluster).await?;
    let limited = Account::create(&cluster, &product).await?;
    let unlimited = Account::create_as(&cluster, &product, "bench-without-quota").await?;
    let quotas = |account: &Account| format!("/api/v1/namespaces/{}/resourcequotas", account.namespace);
    // Kubernetes begins to count a new kind half a minute after its CRD has been created.
    product
        .until(PATIENCE, "instances to be counted", async || {
            let list: Value = cluster.admin.call("GET", &quotas(&limited), None).await?.json()?;
            let used = &list["items"][0]["status"]["used"];
            Ok(used.get("count/instances.stellage.dev").is_some().then_some(()))
        })
        .await?;
    product.stop().await?;
    cluster.admin.call("DELETE", &quotas(&unlimited), None).await?;

    let mut product = Product::api(&cluster).await?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..sizes.rounds {
        with.push(turn("with a quota", &cluster, &product.facade(&limited.key)?, sizes).await?);
        without.push(turn("without", &cluster, &product.facade(&unlimited.key)?, sizes).await?);
    }
    product.stop().await?;
    cluster.stop().await?;

    let mut row = |what: &str, unit: Unit, of: fn(&Turn) -> f64| {
        let each = |turns: &[Turn]| -> Samples { turns.iter().map(of).collect() };
        table.compare(what, &each(&with), &each(&without), unit, None);
    };
    row(
        &format!(
            "{} creates, a second, with a native quota : without",
            sizes.creates
        ),
        samples::PER_SECOND,
        |turn| turn.rate,
    );
    row(
        "    CPU time of API server and etcd, each",
        samples::CORE_MILLIS,
        |turn| turn.processor,
    );
    row("    writes of etcd, each", samples::EACH, |turn| turn.writes);
    Ok(())
}

async fn turn(name: &str, cluster: &Cluster, facade: &Target, sizes: &Sizes) -> Result<Turn> {
    let create = facade.request("POST", PATH, Some(("application/json", &objects::rest_body())));
    let creates = |count| Client {
        status: 201,
        ..Client::repeating(facade, CONNECTIONS, create.clone(), Extent::Count(count))
    };
    // Warm up.
    creates(sizes.creates / 10).run().await?;
    let servers = cluster.api_server_pids();
    let (writes, processor) = (cluster.etcd_writes().await?, processor_time_of(&servers)?);
    let measured = creates(sizes.creates).run().await?;
    let each = |total: f64| total / as_f64(measured.answered);
    let turn = Turn {
        rate: measured.rate(),
        processor: each(processor_time_of(&servers)? - processor) * 1000.0,
        writes: each(cluster.etcd_writes().await? - writes),
    };
    say(&format!(
        "  {name}: {:.0} creates/s, {:.2} ms of API server and etcd, {:.2} writes each",
        turn.rate, turn.processor, turn.writes
    ));
    Ok(turn)
}
