//! (d): healthy receivers, without and with fifty hostile ones in the same account, that get the same events.
//!
//! The pace is slow: every event is a failed delivery for each hostile receiver, and these are written down.

use std::time::{Duration, Instant};

use super::{
    Stage,
    churn::{Churn, Pace},
    kit::{Hostile, HostileReceiver},
    receivers::{self, Receivers},
};
use crate::{
    Result,
    census::Writes,
    load::as_f64,
    processes::{load_average, processor_time, resident_mib},
    say,
    sizes::Sizes,
    table::{Aim, Table},
};

const HEALTHY: usize = 10;
const HOSTILE: usize = 50;
const INSTANCES: u64 = 8;
/// Events a second.
const RATE: f64 = 2.0;
/// Half a second behind the deadline of the program as shipped.
const LATE: Duration = Duration::from_millis(30_500);
/// How long what healthy receivers are owed may take to arrive.
const PATIENCE: Duration = Duration::from_mins(2);

/// What was seen in a while.
struct Seen {
    p50: f64,
    p99: f64,
    /// Cores.
    used: f64,
    resident: f64,
}

/// Measures both.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    say("webhooks (d) healthy receivers beside hostile ones");
    let receivers = Receivers::start(HEALTHY, receivers::BOTH)?;
    let stage = Stage::start(&["--delivery-log=failures"]).await?;
    let churn = Churn::prepare(&stage.cluster, &stage.product, &stage.account, INSTANCES).await?;
    stage.webhooks(&receivers, 0, HEALTHY).await?;
    watch(&stage, &receivers, &churn, sizes.warm_up * 3).await?;
    let quiet = watch(&stage, &receivers, &churn, sizes.hostile).await?;
    let kinds = Hostile::all(LATE);
    let hostile: Vec<HostileReceiver> = kinds
        .iter()
        .cycle()
        .take(HOSTILE)
        .map(|kind| HostileReceiver::start(*kind))
        .collect();
    for (n, receiver) in hostile.iter().enumerate() {
        stage
            .create_webhook(&format!("hostile-{n:03}"), &receiver.url())
            .await?;
    }
    let beside = watch(&stage, &receivers, &churn, sizes.hostile).await?;
    let connections: usize = hostile.iter().map(HostileReceiver::accepted).sum();
    say(&format!("  {connections} connections to the hostile receivers"));
    stage.stop().await?;

    let millis = |value: f64| format!("{value:.0} ms");
    table.ratio(
        &format!("webhooks (d) event to receipt p99, {HEALTHY} healthy, with {HOSTILE} hostile : without"),
        &millis(beside.p99),
        &millis(quiet.p99),
        beside.p99 / quiet.p99,
        Some(Aim::AtMost(2.0)),
    );
    table.ratio(
        "    the same, p50",
        &millis(beside.p50),
        &millis(quiet.p50),
        beside.p50 / quiet.p50,
        None,
    );
    let cores = |value: f64| format!("{:.1} % of a core", value * 100.0);
    table.ratio(
        &format!("    stellage's processor time at {RATE} events/s"),
        &cores(beside.used),
        &cores(quiet.used),
        beside.used / quiet.used,
        None,
    );
    let mib = |value: f64| format!("{value:.1} MiB");
    table.ratio(
        "    stellage's resident memory",
        &mib(beside.resident),
        &mib(quiet.resident),
        beside.resident / quiet.resident,
        None,
    );
    Ok(())
}

async fn watch(stage: &Stage, receivers: &Receivers, churn: &Churn, extent: Duration) -> Result<Seen> {
    receivers.take_ages()?;
    let before = receivers.count();
    let writes = Writes::count(&stage.cluster.admin).await?;
    let (used, begun) = (processor_time(stage.product.pid)?, Instant::now());
    let events = churn.run(Pace::Rate(RATE), extent).await?;
    let wanted = events * HEALTHY as u64;
    stage
        .product
        .until(PATIENCE, "the healthy receivers' events", async || {
            Ok((receivers.count() - before >= wanted).then_some(()))
        })
        .await?;
    let used = (processor_time(stage.product.pid)? - used) / begun.elapsed().as_secs_f64();
    let writes = Writes::count(&stage.cluster.admin).await? - writes;
    let ages = receivers.take_ages()?;
    let millis = |quantile| as_f64(ages.value_at_quantile(quantile));
    let seen = Seen {
        p50: millis(0.5),
        p99: millis(0.99),
        used,
        resident: resident_mib(stage.product.pid)?,
    };
    say(&format!(
        "  {events} events, {} receipts: p50 {:.0} ms, p99 {:.0} ms, longest {:.0} ms; writes of Deliveries: {}; load {}",
        ages.len(),
        seen.p50,
        seen.p99,
        millis(1.0),
        writes.deliveries + writes.delivery_changes,
        load_average()
    ));
    Ok(seen)
}
