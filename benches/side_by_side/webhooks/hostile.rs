//! (d): healthy receivers, in turns without and with fifty hostile ones in the same account that get the same events.
//!
//! Every event is a failed delivery for each hostile receiver, and failed deliveries are recorded, which limits the rate; the CPU
//! time of the whole machine shows whether it is saturated. The receipts of an event depend on each other, so a p99 needs many
//! events rather than many receipts.
//!
//! The age of an event includes the time until the API server has recorded it, alongside those writes, and the floods of the
//! hostile receivers use the same cores. Therefore the durations of the transitions themselves, as shown by a watch, are
//! reported as well, and (`alone`) the latency of the same client's posts without an API server.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use super::{
    Stage,
    kit::{Hostile, HostileReceiver},
    receivers::{self, Receivers},
    sender::Sender,
};
use crate::{
    Result,
    churn::{Churn, Pace},
    latencies::{Latencies, as_f64},
    processes::{load_average, processor_time, processor_time_of_machine, resident_mib},
    samples::{self, Samples, Unit},
    say,
    sizes::Sizes,
    table::{Aim, Table},
    writes::Writes,
};

const HEALTHY: usize = 10;
const HOSTILE: usize = 50;
pub const INSTANCES: u64 = 32;
pub const AT_A_TIME: usize = 32;
/// Events per second.
pub const RATE: f64 = 10.0;
/// Half a second after the program's default deadline.
const LATE: Duration = Duration::from_millis(30_500);
/// Timeout for all events to arrive at the healthy receivers.
const PATIENCE: Duration = Duration::from_mins(2);

/// Interval of the posts of `alone` to a hostile receiver.
const PAUSE: Duration = Duration::from_millis(500);
/// Interval of its posts to healthy receivers.
const PACE: Duration = Duration::from_millis(20);

/// The results of one measurement.
pub struct Seen {
    pub events: u64,
    pub p50: f64,
    pub p99: f64,
    /// Durations of the transitions, in milliseconds.
    transitions: f64,
    /// CPU usage, in cores.
    used: f64,
    /// CPU usage of the whole machine, in cores.
    used_by_all: f64,
    resident: f64,
}

/// Measures without and with hostile receivers.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    say("webhooks (d) healthy receivers next to hostile ones");
    let receivers = Receivers::start(HEALTHY, receivers::BOTH)?;
    let stage = Stage::start(&[]).await?;
    let churn = stage.churn("churn", INSTANCES).await?;
    stage.webhooks(&receivers, 0, HEALTHY).await?;
    let kinds = Hostile::all(LATE);
    let hostile: Vec<HostileReceiver> = kinds
        .iter()
        .cycle()
        .take(HOSTILE)
        .map(|kind| HostileReceiver::start(*kind))
        .collect();
    churn.drain(&stage.cluster, AT_A_TIME, sizes).await?;
    watch(&stage, &receivers, &churn, sizes.warm_up * 3).await?;
    let (mut quiet, mut beside) = (Vec::new(), Vec::new());
    let mut names = Vec::new();
    for round in 0..sizes.rounds {
        quiet.push(counted(&stage, &receivers, &churn, sizes).await?);
        if round == 0 {
            for (n, receiver) in hostile.iter().enumerate() {
                let name = format!("hostile-{n:03}");
                stage.create_webhook(&name, &receiver.url()).await?;
                names.push(name);
            }
        } else {
            stage.activate_all(&names, true).await?;
        }
        beside.push(counted(&stage, &receivers, &churn, sizes).await?);
        if round + 1 < sizes.rounds {
            stage.activate_all(&names, false).await?;
            // Attempts that hang on a hostile receiver end at their deadline.
            tokio::time::sleep(LATE).await;
        }
    }
    let connections: usize = hostile.iter().map(HostileReceiver::accepted).sum();
    say(&format!("  {connections} connections to the hostile receivers"));
    stage.stop().await?;
    let (mut quiet_alone, mut beside_alone) = (Vec::new(), Vec::new());
    for _ in 0..sizes.rounds {
        quiet_alone.push(alone(&receivers, &[], sizes.hostile / 8).await?);
        beside_alone.push(alone(&receivers, &hostile, sizes.hostile / 8).await?);
    }

    let fewest = quiet.iter().chain(&beside).map(|seen| seen.events).min();
    let fewest = fewest.unwrap_or(0);
    let mut line = |what: &str, unit: Unit, aim, of: fn(&Seen) -> f64| {
        let each = |turns: &[Seen]| -> Samples { turns.iter().map(of).collect() };
        table.compare(what, &each(&beside), &each(&quiet), unit, aim);
    };
    line(
        &format!(
            "webhooks (d) event to receipt p99, {HEALTHY} healthy ({fewest} events a turn), with {HOSTILE} hostile : without"
        ),
        samples::MILLIS,
        Some(Aim::AtMost(2.0)),
        |seen| seen.p99,
    );
    line("    the same, p50", samples::MILLIS, None, |seen| seen.p50);
    line(
        "    the transitions themselves, from patch to watch, p99",
        samples::MILLIS,
        None,
        |seen| seen.transitions,
    );
    line(
        &format!("    stellage's CPU time at {RATE} events/s"),
        Unit(" % of a core", 1),
        None,
        |seen| seen.used * 100.0,
    );
    line(
        "    the whole machine's CPU time",
        Unit(" % of a core", 0),
        None,
        |seen| seen.used_by_all * 100.0,
    );
    line(
        "    stellage's resident memory",
        samples::MEBIBYTES,
        None,
        |seen| seen.resident,
    );
    let alone = |values: Vec<f64>| values.into_iter().collect::<Samples>();
    table.compare(
        "    the same client's posts without an API server, p99",
        &alone(beside_alone),
        &alone(quiet_alone),
        samples::MILLIS,
        None,
    );
    Ok(())
}

/// Like [`watch`], for long enough. Fails if there are too few events for a p99.
pub(super) async fn counted(
    stage: &Stage,
    receivers: &Receivers,
    churn: &Churn,
    sizes: &Sizes,
) -> Result<Seen> {
    let seen = watch(stage, receivers, churn, sizes.hostile).await?;
    if seen.events < sizes.hostile_events {
        return Err(format!("{} events are too few for a p99", seen.events).into());
    }
    Ok(seen)
}

/// The p99, in milliseconds, of posts to healthy receivers by the client alone, with one post to each hostile receiver always
/// in flight.
async fn alone(receivers: &Receivers, hostile: &[HostileReceiver], extent: Duration) -> Result<f64> {
    let sender = Arc::new(Sender::new()?);
    // They end when this is dropped.
    let mut bad = JoinSet::new();
    for receiver in hostile {
        let (sender, url) = (Arc::clone(&sender), receiver.url());
        bad.spawn(async move {
            loop {
                sender.post(&url).await;
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
    let mut latencies = Latencies::new()?;
    let begun = Instant::now();
    let mut number = 0;
    while begun.elapsed() < extent {
        let posted = Instant::now();
        if !sender.post(&receivers.url(number)).await {
            return Err("a post to a healthy receiver failed".into());
        }
        latencies.record(posted.elapsed())?;
        number += 1;
        tokio::time::sleep(PACE).await;
    }
    say(&format!(
        "  alone, {} hostile posts in flight: p50 {:.1} ms, p99 {:.1} ms of {number} posts; load {}",
        bad.len(),
        latencies.millis(0.5),
        latencies.millis(0.99),
        load_average()
    ));
    Ok(latencies.millis(0.99))
}

pub(super) async fn watch(
    stage: &Stage,
    receivers: &Receivers,
    churn: &Churn,
    extent: Duration,
) -> Result<Seen> {
    receivers.take_ages()?;
    let before = receivers.count();
    let writes = Writes::count(&stage.cluster.admin).await?;
    let begun = Instant::now();
    let (used, used_by_all) = (processor_time(stage.product.pid)?, processor_time_of_machine()?);
    let churned = churn.run(Pace::Rate(RATE), extent).await?;
    let events = churned.events;
    let wanted = events * receivers.len() as u64;
    stage
        .product
        .until(PATIENCE, "the healthy receivers' events", async || {
            Ok((receivers.count() - before >= wanted).then_some(()))
        })
        .await?;
    let took = begun.elapsed().as_secs_f64();
    let used = (processor_time(stage.product.pid)? - used) / took;
    let used_by_all = (processor_time_of_machine()? - used_by_all) / took;
    let writes = Writes::count(&stage.cluster.admin).await? - writes;
    let ages = receivers.take_ages()?;
    let millis = |quantile| as_f64(ages.value_at_quantile(quantile));
    let seen = Seen {
        events,
        p50: millis(0.5),
        p99: millis(0.99),
        transitions: churned.latencies.millis(0.99),
        used,
        used_by_all,
        resident: resident_mib(stage.product.pid)?,
    };
    say(&format!(
        "  {events} events, {} receipts: p50 {:.0} ms, p99 {:.0} ms, longest {:.0} ms; transitions p50 {:.0} ms, p99 {:.0} ms; writes of \
         Deliveries: {}; CPU time of the machine: {used_by_all:.2} cores; load {}",
        ages.len(),
        seen.p50,
        seen.p99,
        millis(1.0),
        churned.latencies.millis(0.5),
        seen.transitions,
        writes.deliveries + writes.delivery_changes,
        load_average()
    ));
    Ok(seen)
}
