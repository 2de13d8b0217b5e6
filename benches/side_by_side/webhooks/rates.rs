//! (a) and (b): stops and starts instances as fast as possible, with 0, 1, 5 and 50 webhooks in the account and both settings
//! of the delivery log; then at half of that rate, for the events' age at the receiver.
//!
//! A rate is the number of transitions in the measured time, divided by the time until the last of their deliveries has
//! arrived and, if every delivery is logged, was logged. No work is left over, so the rate is sustainable.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{
    Stage,
    churn::{Churn, Pace},
    receivers::{self, Receivers},
};
use crate::{
    Result,
    load::as_f64,
    objects,
    processes::{load_average, processor_time, processor_time_of},
    say,
    sizes::Sizes,
    table::{Aim, Table},
    writes::Writes,
};

/// Instances, and so the maximum of concurrent transitions.
const INSTANCES: u64 = 32;
/// Timeout for all events to arrive.
const PATIENCE: Duration = Duration::from_mins(5);
/// Timeout for the outboxes to be cleared; events stay in them for ten seconds.
const LINGER: Duration = Duration::from_secs(60);
/// Clearing begins ten seconds after an event at the earliest.
const BEFORE_CLEARING: Duration = Duration::from_secs(8);
/// Counts the writes of Deliveries.
const DELIVERY_WRITES: &str = "stellage_delivery_writes_total{";

/// Which deliveries that succeed at once are recorded.
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

/// The results with some number of webhooks.
struct Rated {
    webhooks: usize,
    /// Transitions per second.
    rate: f64,
    events: u64,
    writes: Writes,
    /// CPU time per event of all processes together, in milliseconds. Unlike the rate, it does not depend on other load on the
    /// machine.
    cost: f64,
    /// Ages at half of the rate, in milliseconds.
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

/// Measures both settings.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    say("webhooks (a), (b) events from real transitions");
    let receivers = Receivers::start(sizes.webhooks.iter().copied().max().unwrap_or(1), receivers::BOTH)?;
    // The setting without Deliveries first, because those of `all` are pruned in the background.
    let mut stage = Stage::start(&["--delivery-log=failures"]).await?;
    let churn = Churn::prepare(&stage.cluster, &stage.product, &stage.account, INSTANCES).await?;
    for log in [Log::Failures, Log::All] {
        if log == Log::All {
            let path = objects::webhooks(&stage.account.namespace);
            stage.cluster.admin.call("DELETE", &path, None).await?;
            stage.restart(&["--delivery-log=all"]).await?;
        }
        let (mut all, mut made) = (Vec::new(), 0);
        for &webhooks in sizes.webhooks {
            stage.webhooks(&receivers, made, webhooks).await?;
            made = webhooks;
            all.push(rated(&stage, &receivers, &churn, log, webhooks, sizes).await?);
        }
        report(table, log, &all);
    }
    table.note(&format!("    load average at the end: {}", load_average()));
    stage.stop().await
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
    let owed = Owed::now(stage, receivers).await?;
    let events = churn.run(Pace::Full, sizes.warm_up).await?.events;
    owed.arrived(stage, receivers, log, events, webhooks).await?;

    let servers = stage.cluster.api_server_pids();
    let used = || -> Result<_> {
        Ok([
            processor_time(stage.product.pid)?,
            processor_time_of(&servers)?,
            receivers.processor_time()?,
        ])
    };
    let owed = Owed::now(stage, receivers).await?;
    let (before, used_before, begun) = (
        Writes::count(&stage.cluster.admin).await?,
        used()?,
        Instant::now(),
    );
    let events = churn.run(Pace::Full, extent).await?.events;
    let changed = begun.elapsed();
    owed.arrived(stage, receivers, log, events, webhooks).await?;
    let took = begun.elapsed();
    let used_after = used()?;
    let writes = Writes::count(&stage.cluster.admin).await? - before;
    let rate = as_f64(events) / took.as_secs_f64();
    let [own, api, theirs] = std::array::from_fn(|n| (used_after[n] - used_before[n]) / as_f64(events) * 1e3);
    let surplus = receivers.count() - owed.arrived - events * webhooks as u64;
    say(&format!(
        "  {webhooks} webhooks, {}: {events} events in {changed:.1?}, all arrived{} after {took:.1?}: {rate:.0}/s; \
         {surplus} receipts beyond what was owed; processor time an event: stellage {own:.2} ms, API server and etcd {api:.2} ms, receivers \
         {theirs:.2} ms; load {}",
        log.name(),
        if log == Log::All { " and logged" } else { "" },
        load_average()
    ));

    let last = if webhooks == 1 {
        Some(last_events(stage, receivers, churn, log, sizes).await?)
    } else {
        None
    };
    receivers.take_ages()?;
    let owed = Owed::now(stage, receivers).await?;
    let events_at_half = churn.run(Pace::Rate(rate / 2.0), extent).await?.events;
    owed.arrived(stage, receivers, log, events_at_half, webhooks)
        .await?;
    let ages = receivers.take_ages()?;
    let millis = |quantile| as_f64(ages.value_at_quantile(quantile));
    if webhooks > 0 {
        say(&format!(
            "    at {:.0} events/s: p50 {:.0} ms, p99 {:.0} ms, longest {:.0} ms; load {}",
            as_f64(events_at_half) / extent.as_secs_f64(),
            millis(0.5),
            millis(0.99),
            millis(1.0),
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
        last,
    })
}

/// The numbers of arrived and logged events before a measurement.
struct Owed {
    arrived: u64,
    logged: u64,
}

impl Owed {
    async fn now(stage: &Stage, receivers: &Receivers) -> Result<Self> {
        Ok(Self {
            arrived: receivers.count(),
            logged: stage.product.counter(DELIVERY_WRITES, "stored").await?,
        })
    }

    /// Waits until every webhook has all events since.
    async fn arrived(
        &self,
        stage: &Stage,
        receivers: &Receivers,
        log: Log,
        events: u64,
        webhooks: usize,
    ) -> Result<()> {
        let wanted = events * webhooks as u64;
        let look = async || {
            let is_there = receivers.count() - self.arrived >= wanted;
            let is_logged = log == Log::Failures
                || stage.product.counter(DELIVERY_WRITES, "stored").await? - self.logged >= wanted;
            Ok((is_there && is_logged).then_some(()))
        };
        stage
            .product
            .until(PATIENCE, "all events to arrive and be logged", look)
            .await
    }
}

/// Writes for the last event of each instance: from when all events have arrived until the outboxes are empty.
async fn last_events(
    stage: &Stage,
    receivers: &Receivers,
    churn: &Churn,
    log: Log,
    sizes: &Sizes,
) -> Result<f64> {
    let begun = Instant::now();
    let owed = Owed::now(stage, receivers).await?;
    let events = churn.run(Pace::Full, sizes.warm_up).await?.events;
    owed.arrived(stage, receivers, log, events, 1).await?;
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

fn report(table: &mut Table, log: Log, all: &[Rated]) {
    let Some(none) = all.first() else { return };
    for rated in &all[1..] {
        let Rated { webhooks, rate, .. } = rated;
        let aim = (*webhooks == 1).then_some(Aim::AtLeast(log.share_of_none()));
        table.ratio(
            &format!(
                "webhooks (a) events/s, log {}, {webhooks} webhooks : none",
                log.name()
            ),
            &format!("{rate:.0}/s"),
            &format!("{:.0}/s", none.rate),
            rate / none.rate,
            aim,
        );
        table.ratio(
            "    CPU time per event, all processes",
            &format!("{:.1} ms", rated.cost),
            &format!("{:.1} ms", none.cost),
            rated.cost / none.cost,
            None,
        );
        let aim = (*webhooks == 5 && log == Log::Failures).then_some(Aim::AtLeast(1500.0));
        let deliveries = rated.deliveries();
        table.value("    deliveries/s", deliveries, &format!("{deliveries:.0}/s"), aim);
        table.value(
            "    event to receipt at half of that rate, p50",
            rated.p50,
            &format!("{:.0} ms", rated.p50),
            None,
        );
        table.value(
            "    the same, p99",
            rated.p99,
            &format!("{:.0} ms", rated.p99),
            Some(Aim::AtMost(100.0)),
        );
    }
    let per_event = none.an_event(none.writes.instances);
    for rated in &all[1..] {
        let mine = rated.an_event(rated.writes.instances);
        table.value(
            &format!(
                "webhooks (b) writes of instances per event, log {}, {} webhooks, beyond none's {per_event:.2}",
                log.name(),
                rated.webhooks
            ),
            mine - per_event,
            &format!("{:.2}", mine - per_event),
            Some(Aim::AtMost(0.1)),
        );
        let creations = rated.an_event(rated.writes.deliveries) / rated.webhooks_f64();
        let aim = match log {
            Log::Failures => 0.01,
            Log::All => 1.01,
        };
        table.value(
            "    Deliveries created per delivery",
            creations,
            &format!("{creations:.2}"),
            Some(Aim::AtMost(aim)),
        );
        let rest = rated.an_event(rated.writes.delivery_changes + rated.writes.webhooks);
        table.value(
            "    other writes per event: pruned Deliveries, status of webhooks",
            rest,
            &format!("{rest:.2}"),
            None,
        );
        if let Some(last) = rated.last {
            table.value(
                "    writes of an instance for its last event",
                last,
                &format!("{last:.2}"),
                Some(Aim::AtMost(1.0)),
            );
        }
    }
}
