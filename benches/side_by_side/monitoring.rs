//! The cost of sampling ten thousand monitored instances: CPU time, memory and writes, compared with the same process before
//! anything was monitored. Nothing crosses a threshold. Both are measured once nothing else is left to write.

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    Result,
    account::Account,
    cluster::Cluster,
    convergence, fill,
    load::{CONNECTIONS, Extent, Load, numbered},
    processes::processor_time,
    product::Product,
    samples::{self, Unit},
    say,
    sizes::Sizes,
    table::{Aim, Table},
    writes::Writes,
};

const FIRST: &str = "first";
/// Timeout for all instances to be sampled, in addition to the interval.
const PATIENCE: Duration = Duration::from_mins(5);
const CORE: Unit = Unit(" % of a core", 2);

struct Measured {
    cpu: f64,
    mib: f64,
    writes: u64,
}

impl Measured {
    /// Measures over two sampling intervals.
    async fn of(cluster: &Cluster, product: &Product, sizes: &Sizes) -> Result<Self> {
        convergence::until_quiet(cluster, sizes).await?;
        tokio::time::sleep(sizes.settling).await;
        let time = sizes.sampling * 2;
        say(&format!("  measuring for {} s", time.as_secs()));
        let before = (processor_time(product.pid)?, Writes::count(&cluster.admin).await?);
        let begun = Instant::now();
        tokio::time::sleep(time).await;
        let used = processor_time(product.pid)? - before.0;
        let writes = Writes::count(&cluster.admin).await? - before.1;
        Ok(Self {
            cpu: used / begun.elapsed().as_secs_f64() * 100.0,
            mib: product.settled_mib(sizes).await?,
            writes: writes.instances + writes.refused + writes.events + writes.deliveries,
        })
    }
}

/// Measures with and without monitoring.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    let count = sizes.large;
    let cluster = Cluster::start().await?;
    let mut product = Product::run(&cluster).await?;
    let account = Account::create(&cluster, &product).await?;
    convergence::converge(&cluster, &product, &account, FIRST, sizes.few).await?;
    let template = convergence::settled_instance(&cluster, &product, &account, FIRST).await?;
    product.stop().await?;
    fill::instances(&cluster, &account, &template, 0, count).await?;

    let mut file = tempfile::NamedTempFile::new()?;
    writeln!(file, "alerts: {{interval: {}s}}", sizes.sampling.as_secs())?;
    let catalogue = format!("--catalogue={}", file.path().display());
    let mut product = Product::run_with(&cluster, &[catalogue]).await?;
    let without = Measured::of(&cluster, &product, sizes).await?;
    say(&format!("  {count} are monitored from now on"));
    let change = json!({ "spec": { "monitoringEnabled": true } }).to_string();
    let change = cluster.operator.request(
        "PATCH",
        &fill::path(&account),
        Some(("application/merge-patch+json", &change)),
    );
    let load = Load {
        target: cluster.operator.clone(),
        connections: CONNECTIONS,
        requests: numbered(change, 0),
        status: 200,
        extent: Extent::Count(count),
        pace: None,
    };
    load.run().await?;
    let patience = PATIENCE + sizes.sampling * 2;
    let sampled = format!("stellage_monitored_instances {count}");
    product
        .until(patience, "all to be monitored", async || {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let page = product.metrics().await?;
            Ok(page.lines().any(|line| line == sampled).then_some(()))
        })
        .await?;
    let with = Measured::of(&cluster, &product, sizes).await?;
    product.stop().await?;
    cluster.stop().await?;

    let seconds = sizes.sampling.as_secs();
    table.note(&format!(
        "{count} instances, each sampled every {seconds} s; none crosses a threshold"
    ));
    let mut rows = |what: &str, measured: &Measured, aims: [Option<Aim>; 2]| {
        let [most_writes, most_cpu] = aims;
        table.value(&format!("CPU, {what}"), &measured.cpu.into(), CORE, most_cpu);
        table.value(
            &format!("resident, {what}"),
            &measured.mib.into(),
            samples::MEBIBYTES,
            None,
        );
        #[expect(clippy::cast_precision_loss, reason = "there are few")]
        let writes = measured.writes as f64;
        table.value(
            &format!("writes, {what}"),
            &writes.into(),
            Unit("", 0),
            most_writes,
        );
    };
    rows("not monitored", &without, [None, None]);
    rows(
        "monitored",
        &with,
        [Some(Aim::AtMost(0.0)), Some(Aim::AtMost(5.0))],
    );
    Ok(())
}
