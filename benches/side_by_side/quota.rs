//! What a native `ResourceQuota` costs a create through REST: the API server writes the quota's status, too, one create after
//! the other.
//!
//! Creates in an account with its quota and in one whose quota was deleted take turns, on one `stellage api`; no controller
//! runs, which would put the quota back. Writes are those of etcd.

use std::time::Duration;

use serde_json::Value;

use crate::{
    Result,
    account::Account,
    cluster::Cluster,
    load::{self, CONNECTIONS, Extent, Load, as_f64},
    objects,
    processes::processor_time_of,
    product::Product,
    reads::median,
    say,
    sizes::Sizes,
    table::Table,
    wire::Target,
};

const PATH: &str = "/v1/instances";
const PATIENCE: Duration = Duration::from_mins(2);

/// What creates in one account cost.
struct Turn {
    rate: f64,
    /// Milliseconds of processor time of API server and etcd for each create.
    processor: f64,
    /// Writes of etcd for each create.
    writes: f64,
}

/// Measures both sides.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    let cluster = Cluster::start().await?;
    let mut product = Product::run(&cluster).await?;
    let limited = Account::create(&cluster, &product).await?;
    let unlimited = Account::create_as(&cluster, &product, "bench-without-quota").await?;
    let quotas = |account: &Account| format!("/api/v1/namespaces/{}/resourcequotas", account.namespace);
    // Kubernetes begins to count a new kind half a minute after its definition was created.
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

    let medians = |of: fn(&Turn) -> f64| {
        let each = |turns: &[Turn]| median(turns.iter().map(of).collect());
        (each(&with), each(&without))
    };
    let mut row = |what: &str, (with, without): (f64, f64), shown: fn(f64) -> String| {
        table.ratio(what, &shown(with), &shown(without), with / without, None);
    };
    row(
        "creates/s with a native quota : without",
        medians(|turn| turn.rate),
        |rate| format!("{rate:.0}/s"),
    );
    row(
        "    processor time of API server and etcd, each",
        medians(|turn| turn.processor),
        |millis| format!("{millis:.2} ms"),
    );
    row(
        "    writes of etcd, each",
        medians(|turn| turn.writes),
        |writes| format!("{writes:.2}"),
    );
    Ok(())
}

async fn turn(name: &str, cluster: &Cluster, facade: &Target, sizes: &Sizes) -> Result<Turn> {
    let create = facade.request("POST", PATH, Some(("application/json", &objects::rest_body())));
    let creates = |count| Load {
        target: facade.clone(),
        connections: CONNECTIONS,
        requests: load::same(create.clone()),
        status: 201,
        extent: Extent::Count(count),
    };
    // Warm up.
    creates(sizes.creates / 10).run().await?;
    let servers = cluster.api_server_pids();
    let (writes, processor) = (etcd_writes(cluster).await?, processor_time_of(&servers)?);
    let measured = creates(sizes.creates).run().await?;
    let each = |total: f64| total / as_f64(measured.answered);
    let turn = Turn {
        rate: measured.rate(),
        processor: each(processor_time_of(&servers)? - processor) * 1000.0,
        writes: each(etcd_writes(cluster).await? - writes),
    };
    say(&format!(
        "  {name}: {:.0} creates/s, {:.2} ms of API server and etcd, {:.2} writes each",
        turn.rate, turn.processor, turn.writes
    ));
    Ok(turn)
}

/// Number of values that etcd has written.
async fn etcd_writes(cluster: &Cluster) -> Result<f64> {
    let etcd = Target::plain(&cluster.plane.etcd_url(), "")?;
    let page = etcd.call("GET", "/metrics", None).await?.body;
    let page = String::from_utf8_lossy(&page);
    let value = page
        .lines()
        .find_map(|line| line.strip_prefix("etcd_mvcc_put_total "));
    Ok(value.ok_or("etcd has no etcd_mvcc_put_total")?.parse()?)
}
