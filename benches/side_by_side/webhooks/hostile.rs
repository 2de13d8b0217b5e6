//! (d): healthy receivers, without and with fifty hostile ones in the same account that get the same events.
//!
//! The rate is low, because every event is a failed delivery for each hostile receiver, and those are recorded. The age of an
//! event includes its recording by the API server, next to those writes, and the floods of the hostile receivers use the same
//! cores. So the durations of the transitions themselves, as a watch shows them, are shown, too, and (`alone`) the latency of
//! the same client's posts without an API server.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use super::{
    Stage,
    churn::{Churn, Pace},
    kit::{Hostile, HostileReceiver},
    receivers::{self, Receivers},
    sender::Sender,
};
use crate::{
    Result,
    load::as_f64,
    processes::{load_average, processor_time, resident_mib},
    say,
    sizes::Sizes,
    table::{Aim, Table},
    writes::Writes,
};

const HEALTHY: usize = 10;
const HOSTILE: usize = 50;
const INSTANCES: u64 = 8;
/// Events per second.
const RATE: f64 = 2.0;
/// Half a second after the program's default deadline.
const LATE: Duration = Duration::from_millis(30_500);
/// Timeout for all events to arrive at the healthy receivers.
const PATIENCE: Duration = Duration::from_mins(2);

/// Interval of the posts of `alone` to a hostile receiver.
const PAUSE: Duration = Duration::from_millis(500);
/// Interval of its posts to healthy receivers.
const PACE: Duration = Duration::from_millis(20);

/// The results of one measurement.
struct Seen {
    p50: f64,
    p99: f64,
    /// Durations of the transitions, in milliseconds.
    transitions: f64,
    /// CPU usage, in cores.
    used: f64,
    resident: f64,
}

/// Measures without and with hostile receivers.
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
    let [quiet_alone, beside_alone] = alone(&receivers, &hostile, sizes.hostile / 3).await?;

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
    table.ratio(
        "    the transitions themselves, from patch to watch, p99",
        &millis(beside.transitions),
        &millis(quiet.transitions),
        beside.transitions / quiet.transitions,
        None,
    );
    let fine = |value: f64| format!("{value:.1} ms");
    table.ratio(
        "    the same client's posts without an API server, p99",
        &fine(beside_alone),
        &fine(quiet_alone),
        beside_alone / quiet_alone,
        None,
    );
    let cores = |value: f64| format!("{:.1} % of a core", value * 100.0);
    table.ratio(
        &format!("    stellage's CPU time at {RATE} events/s"),
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

/// The p99 of posts to healthy receivers by the client alone, in milliseconds: first without, then with one post always in
/// flight to each hostile one.
async fn alone(receivers: &Receivers, hostile: &[HostileReceiver], extent: Duration) -> Result<[f64; 2]> {
    let sender = Arc::new(Sender::new()?);
    let mut results = [0.0; 2];
    let mut bad = JoinSet::new();
    for (n, result) in results.iter_mut().enumerate() {
        if n == 1 {
            for receiver in hostile {
                let (sender, url) = (Arc::clone(&sender), receiver.url());
                bad.spawn(async move {
                    loop {
                        sender.post(&url).await;
                        tokio::time::sleep(PAUSE).await;
                    }
                });
            }
        }
        let mut latencies: Histogram<u64> = Histogram::new(3)?;
        let begun = Instant::now();
        let mut number = 0;
        while begun.elapsed() < extent {
            let posted = Instant::now();
            if !sender.post(&receivers.url(number)).await {
                return Err("a post to a healthy receiver failed".into());
            }
            latencies.record(u64::try_from(posted.elapsed().as_micros())?)?;
            number += 1;
            tokio::time::sleep(PACE).await;
        }
        *result = as_f64(latencies.value_at_quantile(0.99)) / 1000.0;
        say(&format!(
            "  alone, {} hostile posts in flight: p50 {:.1} ms, p99 {:.1} ms of {number} posts; load {}",
            bad.len(),
            as_f64(latencies.value_at_quantile(0.5)) / 1000.0,
            *result,
            load_average()
        ));
    }
    Ok(results)
}

async fn watch(stage: &Stage, receivers: &Receivers, churn: &Churn, extent: Duration) -> Result<Seen> {
    receivers.take_ages()?;
    let before = receivers.count();
    let writes = Writes::count(&stage.cluster.admin).await?;
    let (used, begun) = (processor_time(stage.product.pid)?, Instant::now());
    let churned = churn.run(Pace::Rate(RATE), extent).await?;
    let events = churned.events;
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
        transitions: churned.millis(0.99),
        used,
        resident: resident_mib(stage.product.pid)?,
    };
    say(&format!(
        "  {events} events, {} receipts: p50 {:.0} ms, p99 {:.0} ms, longest {:.0} ms; transitions p50 {:.0} ms, p99 {:.0} ms; writes of \
         Deliveries: {}; load {}",
        ages.len(),
        seen.p50,
        seen.p99,
        millis(1.0),
        churned.millis(0.5),
        seen.transitions,
        writes.deliveries + writes.delivery_changes,
        load_average()
    ));
    Ok(seen)
}
