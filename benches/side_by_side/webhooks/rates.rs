//! (a) and (b): stops and starts instances as fast as possible, with 0, 1, 5 and 50 webhooks in the account and both settings
//! of the delivery log; then at half that rate, for the age of the events at the receiver. All combinations take turns in
//! each round.
//!
//! A rate is the number of transitions in the measured time, divided by the time until the last of their deliveries has
//! arrived. The log is written within a second or two after that; `transitions` includes its full cost.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{
    Stage,
    receivers::{self, Receivers},
};
use crate::{
    Result,
    churn::{Churn, Pace},
    latencies::as_f64,
    objects,
    processes::{load_average, processor_time, processor_time_of},
    samples::{self, Samples},
    say,
    sizes::Sizes,
    table::{Aim, Table},
    writes::Writes,
};

/// Number of instances, and so the maximum number of concurrent transitions.
const INSTANCES: u64 = 32;
const AT_A_TIME: usize = 32;
const FULL: Pace = Pace::AtATime(AT_A_TIME);
/// Timeout for all events to arrive.
const PATIENCE: Duration = Duration::from_mins(5);
/// Timeout for the outboxes to be cleared; events stay in them for ten seconds.
const LINGER: Duration = Duration::from_secs(60);
/// Clearing begins ten seconds after an event at the earliest.
const BEFORE_CLEARING: Duration = Duration::from_secs(8);
/// Which of the deliveries that succeed immediately are recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Log {
    Failures,
    All,
}

impl Log {
    const fn name(self) -> &'static str {
        match self {
            Self::Failures => "failures",
            Self::All => "all",
        }
    }

    const fn share_of_none(self) -> f64 {
        match self {
            Self::Failures => 0.7,
            Self::All => 0.5,
        }
    }
}

/// The results with a given number of webhooks.
struct Rated {
    webhooks: usize,
    /// Transitions per second.
    rate: f64,
    events: u64,
    writes: Writes,
    /// CPU time of all processes together per event, in milliseconds. Unlike the rate, it does not depend on other load on the
    /// machine.
    cost: f64,
    /// Ages at half the rate, in milliseconds.
    p50: f64,
    p99: f64,
    /// Writes for the last event of each instance.
    last: Option<f64>,
}

impl Rated {
    fn deliveries(&self) -> f64 {
        self.rate * self.webhooks_f64()
    }

    fn webhooks_f64(&self) -> f64 {
        as_f64(self.webhooks as u64)
    }

    fn an_event(&self, count: u64) -> f64 {
        as_f64(count) / as_f64(self.events)
    }
}

/// Measures both settings of the delivery log.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    say("webhooks (a), (b) events from real transitions");
    let most = sizes.webhooks.iter().copied().max().unwrap_or(1);
    let receivers = Receivers::start(most, receivers::BOTH)?;
    let mut stage = Stage::start(&[]).await?;
    let churn = stage.churn("churn", INSTANCES).await?;
    stage.webhooks(&receivers, 0, most).await?;
    // The measurements of all rounds, for each setting and each number of webhooks.
    let mut logs = [Log::Failures, Log::All]
        .map(|log| (log, sizes.webhooks.iter().map(|_| Vec::new()).collect::<Vec<_>>()));
    for round in 0..sizes.rounds {
        for (log, all) in &mut logs {
            let argument = format!("--delivery-log={}", log.name());
            stage.restart(&[&argument]).await?;
            stage.activate(0, most, false).await?;
            churn.drain(&stage.cluster, AT_A_TIME, sizes).await?;
            let mut active = 0;
            for (rounds, &webhooks) in all.iter_mut().zip(sizes.webhooks) {
                stage.activate(active, webhooks, true).await?;
                active = webhooks;
                let mut rated = rated(&stage, &receivers, &churn, *log, webhooks, sizes).await?;
                if webhooks == 1 && round == 0 {
                    rated.last = Some(last_events(&stage, &receivers, &churn, sizes).await?);
                }
                rounds.push(rated);
            }
        }
    }
    stage.stop().await?;
    for (log, all) in &logs {
        report(table, *log, all);
    }
    Ok(())
}

async fn rated(
    stage: &Stage,
    receivers: &Receivers,
    churn: &Churn,
    log: Log,
    webhooks: usize,
    sizes: &Sizes,
) -> Result<Rated> {
    let extent = sizes.webhooks_measured;
    let arrived = receivers.count();
    let events = churn.run(FULL, sizes.warm_up).await?.events;
    until_arrived(stage, receivers, arrived, events, webhooks).await?;

    let servers = stage.cluster.api_server_pids();
    let used = || -> Result<_> {
        Ok([
            processor_time(stage.product.pid)?,
            processor_time_of(&servers)?,
            receivers.processor_time()?,
        ])
    };
    let arrived = receivers.count();
    let before = Writes::count(&stage.cluster.admin).await?;
    let (used_before, begun) = (used()?, Instant::now());
    let churned = churn.run(FULL, extent).await?;
    let (events, ended) = (churned.events, Instant::now());
    until_arrived(stage, receivers, arrived, events, webhooks).await?;
    // The client's start does not count.
    let took = churned.took + ended.elapsed();
    let elapsed = begun.elapsed();
    let used_after = used()?;
    let writes = Writes::count(&stage.cluster.admin).await? - before;
    let rate = as_f64(events) / took.as_secs_f64();
    let [own, api, theirs] = std::array::from_fn(|n| (used_after[n] - used_before[n]) / as_f64(events) * 1e3);
    let surplus = receivers.count() - arrived - events * webhooks as u64;
    say(&format!(
        "  {webhooks} webhooks, {}: {events} events, all arrived after {elapsed:.1?}: {rate:.0}/s; {surplus} receipts beyond what \
         was owed; CPU time an event: stellage {own:.2} ms, API server and etcd {api:.2} ms, receivers {theirs:.2} ms; load {}",
        log.name(),
        load_average()
    ));

    receivers.take_ages()?;
    let arrived = receivers.count();
    let events_at_half = churn.run(Pace::Rate(rate / 2.0), extent).await?.events;
    until_arrived(stage, receivers, arrived, events_at_half, webhooks).await?;
    let ages = receivers.take_ages()?;
    let millis = |quantile| as_f64(ages.value_at_quantile(quantile));
    if webhooks > 0 {
        say(&format!(
            "    at {:.0} events/s: p50 {:.0} ms, p99 {:.0} ms, longest {:.0} ms of {} receipts; load {}",
            as_f64(events_at_half) / extent.as_secs_f64(),
            millis(0.5),
            millis(0.99),
            millis(1.0),
            ages.len(),
            load_average()
        ));
    }
    Ok(Rated {
        webhooks,
        rate,
        events,
        writes,
        cost: own + api + theirs,
        p50: millis(0.5),
        p99: millis(0.99),
        last: None,
    })
}

/// Waits until every webhook has this many events more than had `arrived`.
async fn until_arrived(
    stage: &Stage,
    receivers: &Receivers,
    arrived: u64,
    events: u64,
    webhooks: usize,
) -> Result<()> {
    let wanted = events * webhooks as u64;
    stage
        .product
        .until(PATIENCE, "all events to arrive", async || {
            Ok((receivers.count() - arrived >= wanted).then_some(()))
        })
        .await
}

/// Counts the writes for the last event of each instance: from the arrival of all events until the outboxes
/// are empty.
async fn last_events(stage: &Stage, receivers: &Receivers, churn: &Churn, sizes: &Sizes) -> Result<f64> {
    let begun = Instant::now();
    let arrived = receivers.count();
    let events = churn.run(FULL, sizes.warm_up).await?.events;
    until_arrived(stage, receivers, arrived, events, 1).await?;
    if begun.elapsed() > BEFORE_CLEARING {
        return Err("what is owed took so long that outboxes may have been cleared meanwhile".into());
    }
    let before = Writes::count(&stage.cluster.admin).await?;
    let path = objects::collection(&stage.account.namespace);
    stage
        .product
        .until(LINGER, "the outboxes to be cleared", async || {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let list: Value = stage.cluster.admin.call("GET", &path, None).await?.json()?;
            let mut instances = list["items"].as_array().into_iter().flatten();
            let is_empty =
                |instance: &Value| instance["status"]["outbox"].as_array().is_none_or(Vec::is_empty);
            Ok(instances.all(is_empty).then_some(()))
        })
        .await?;
    let writes = Writes::count(&stage.cluster.admin).await? - before;
    Ok(as_f64(writes.instances) / as_f64(INSTANCES))
}

fn report(table: &mut Table, log: Log, all: &[Vec<Rated>]) {
    let [none, others @ ..] = all else { return };
    let each = |rounds: &[Rated], of: fn(&Rated) -> f64| -> Samples { rounds.iter().map(of).collect() };
    let changes = |rated: &Rated| rated.an_event(rated.writes.instances);
    for rounds in others {
        let Some(Rated { webhooks, .. }) = rounds.first() else {
            continue;
        };
        table.compare(
            &format!(
                "webhooks (a) events/s, log {}, {webhooks} webhooks : none",
                log.name()
            ),
            &each(rounds, |rated| rated.rate),
            &each(none, |rated| rated.rate),
            samples::PER_SECOND,
            (*webhooks == 1).then_some(Aim::AtLeast(log.share_of_none())),
        );
        table.compare(
            "    CPU time an event: stellage, API server, etcd and receivers",
            &each(rounds, |rated| rated.cost),
            &each(none, |rated| rated.cost),
            samples::CORE_MILLIS,
            None,
        );
        let mut line = |what: &str, of: fn(&Rated) -> f64, unit, aim| {
            table.value(what, &each(rounds, of), unit, aim);
        };
        line(
            "    deliveries/s",
            Rated::deliveries,
            samples::PER_SECOND,
            (*webhooks == 5 && log == Log::Failures).then_some(Aim::AtLeast(1500.0)),
        );
        line(
            "    event to receipt at half of that rate, p50",
            |rated| rated.p50,
            samples::MILLIS,
            None,
        );
        line(
            "    the same, p99",
            |rated| rated.p99,
            samples::MILLIS,
            Some(Aim::AtMost(100.0)),
        );
        let beyond = each(rounds, changes).minus(&each(none, changes));
        table.value(
            "    (b) writes of instances an event, beyond those without webhooks",
            &beyond,
            samples::EACH,
            Some(Aim::AtMost(0.1)),
        );
        let mut line = |what: &str, of: fn(&Rated) -> f64, aim| {
            table.value(what, &each(rounds, of), samples::EACH, aim);
        };
        line(
            "    Deliveries created a delivery",
            |rated| rated.an_event(rated.writes.deliveries) / rated.webhooks_f64(),
            Some(Aim::AtMost(0.01)),
        );
        line(
            "    other writes an event: pages of the log, pruned Deliveries, status of webhooks",
            |rated| {
                let Writes {
                    event_logs,
                    delivery_changes,
                    webhooks,
                    ..
                } = rated.writes;
                rated.an_event(event_logs + delivery_changes + webhooks)
            },
            None,
        );
        if let Some(last) = rounds.iter().find_map(|rated| rated.last) {
            table.value(
                "    writes of an instance for its last event",
                &last.into(),
                samples::EACH,
                Some(Aim::AtMost(1.0)),
            );
        }
    }
}
