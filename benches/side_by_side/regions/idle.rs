//! Ten thousand servers that nobody asks anything of: how long a new process takes until it has looked at all of them, and what it costs
//! then; next to a process with as many simulated servers, on another API server, which runs afterwards. Measured once. virt-controller does
//! not run.

use std::time::{Duration, Instant};

use control_plane::{ControlPlane, Identity};
use serde_json::Value;

use super::{
    Stage,
    asked::{Asked, Requests},
};
use crate::{
    Result,
    account::Account,
    cluster::{Cluster, STELLAGE},
    convergence::{self, PATIENCE},
    fill,
    latencies::as_f64,
    processes::{processor_time, resident_mib},
    product::Product,
    samples::{self, SECONDS, Unit},
    say,
    sizes::Sizes,
    table::{Aim, Table},
};

/// Megabytes per mebibyte.
const MEGABYTES_OF_MEBIBYTE: f64 = 1.048_576;
/// Longer than a process takes to notice that a region is reached.
const STEADY: Duration = Duration::from_secs(6);
const POLL_EVERY: Duration = Duration::from_millis(50);

/// What one start of a process took and cost.
struct Start {
    leads: f64,
    synced: f64,
    /// Seconds of CPU time until then.
    used: f64,
    megabytes: f64,
    /// After a minute.
    megabytes_later: f64,
    /// Percent of a core in that minute.
    idle: f64,
    own: Requests,
    there: Requests,
}

/// Measures it.
pub async fn measure(table: &mut Table, stage: &mut Stage, sizes: &Sizes) -> Result<()> {
    say("(g) as many simulated instances, on another API server");
    let simulated = Cluster::start_with(ControlPlane::options().audit_log()).await?;
    let mut product = Product::run(&simulated).await?;
    let account = Account::create(&simulated, &product).await?;
    simulated.until_created(&account.namespace).await?;
    convergence::converge(&simulated, &product, &account, "template", 1).await?;
    let template: Value = convergence::settled_instance(&simulated, &product, &account, "template").await?;
    product.stop().await?;
    fill::instances(&simulated, &account, &template, 1, sizes.servers).await?;
    let mut own = Asked::of(Identity::Operator.user());

    // The first process has new accounts to bill.
    for mut product in [Product::run(&simulated).await?, stage.product().await?] {
        synced(&product, Instant::now(), sizes.servers, false).await?;
        convergence::until_quiet(&simulated, sizes).await?;
        stage.until_quiet(sizes).await?;
        product.stop().await?;
    }
    let real = start(stage, sizes).await?;
    let beside = start_simulated(&simulated, &mut own, sizes).await?;
    simulated.stop().await?;
    report(table, sizes, &real, &beside);
    Ok(())
}

async fn start(stage: &mut Stage, sizes: &Sizes) -> Result<Start> {
    say("  a process with the region");
    let begun = Instant::now();
    let mut product = stage.product().await?;
    let mut start = Start::of(&product, begun, sizes, true).await?;
    stage.until_quiet(sizes).await?;
    stage.own.take(&stage.cluster.plane)?;
    stage.there.take(&stage.region.plane)?;
    start.rest(&product, sizes).await?;
    start.own = stage.own.take(&stage.cluster.plane)?;
    start.there = stage.there.take(&stage.region.plane)?;
    start.tell();
    product.stop().await?;
    Ok(start)
}

async fn start_simulated(cluster: &Cluster, own: &mut Asked, sizes: &Sizes) -> Result<Start> {
    say("  a process with simulated servers");
    let begun = Instant::now();
    let mut product = Product::run_of(cluster, STELLAGE.as_ref(), &[]).await?;
    let mut start = Start::of(&product, begun, sizes, false).await?;
    convergence::until_quiet(cluster, sizes).await?;
    own.take(&cluster.plane)?;
    start.rest(&product, sizes).await?;
    start.own = own.take(&cluster.plane)?;
    start.tell();
    product.stop().await?;
    Ok(start)
}

impl Start {
    async fn of(product: &Product, begun: Instant, sizes: &Sizes, has_region: bool) -> Result<Self> {
        let (leads, synced) = synced(product, begun, sizes.servers, has_region).await?;
        Ok(Self {
            leads,
            synced,
            used: processor_time(product.pid)?,
            megabytes: resident_mib(product.pid)? * MEGABYTES_OF_MEBIBYTE,
            megabytes_later: 0.0,
            idle: 0.0,
            own: Requests::default(),
            there: Requests::default(),
        })
    }

    /// A minute of rest.
    async fn rest(&mut self, product: &Product, sizes: &Sizes) -> Result<()> {
        let (before, begun) = (processor_time(product.pid)?, Instant::now());
        tokio::time::sleep(sizes.resting).await;
        let used = processor_time(product.pid)? - before;
        self.idle = used / begun.elapsed().as_secs_f64() * 100.0;
        self.megabytes_later = resident_mib(product.pid)? * MEGABYTES_OF_MEBIBYTE;
        Ok(())
    }

    fn tell(&self) {
        say(&format!(
            "  leads after {:.1} s, has seen all after {:.1} s, {:.1} s of CPU time, {:.0} MB, then {:.0} MB; idle: {:.2} % of a core, \
             own API server: {}; region: {}",
            self.leads,
            self.synced,
            self.used,
            self.megabytes,
            self.megabytes_later,
            self.idle,
            self.own,
            self.there
        ));
    }
}

/// Waits until a process leads and has looked at all instances, the region included. Returns the seconds until each.
pub async fn synced(product: &Product, begun: Instant, count: u64, has_region: bool) -> Result<(f64, f64)> {
    let (mut leads, mut last, mut changed) = (None, 0.0, Instant::now());
    loop {
        let page = product.metrics().await?;
        let sum = |name: &str, label: &str| -> f64 {
            let lines = page.lines().filter(|line| {
                line.strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with(['{', ' ']))
                    && line.contains(label)
            });
            lines
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum()
        };
        if leads.is_none() && sum("stellage_leader", "") > 0.0 {
            leads = Some(begun.elapsed().as_secs_f64());
        }
        let reconciled = sum("stellage_reconciles_total", "kind=\"Instance\"");
        let waiting = sum("stellage_queue_depth", "kind=\"Instance\"");
        if reconciled > last || waiting > 0.0 {
            (last, changed) = (reconciled, Instant::now());
        }
        let is_up = !has_region || sum("stellage_region_up", "") > 0.0;
        let is_done = is_up && reconciled >= as_f64(count);
        if let Some(leads) = leads.filter(|_| is_done && changed.elapsed() > STEADY) {
            say(&format!("  {reconciled} reconciles of instances"));
            return Ok((leads, (changed - begun).as_secs_f64()));
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!(
                "not all instances were looked at: {reconciled}, waiting: {waiting}, region: {is_up}"
            )
            .into());
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}

fn report(table: &mut Table, sizes: &Sizes, real: &Start, beside: &Start) {
    let count = sizes.servers;
    let mut compare = |what: &str, unit, of: fn(&Start) -> f64| {
        table.compare(what, &of(real).into(), &of(beside).into(), unit, None);
    };
    compare(
        &format!(
            "{count} servers in the region, from the start of a process until it has looked at all : simulated servers"
        ),
        SECONDS,
        |start| start.synced,
    );
    compare("    until it leads", SECONDS, |start| start.leads);
    compare("    CPU time until it has looked at all", SECONDS, |start| {
        start.used
    });
    compare("    resident memory then", samples::MEGABYTES, |start| {
        start.megabytes
    });
    compare(
        "    resident memory after a minute of rest",
        samples::MEGABYTES,
        |start| start.megabytes_later,
    );
    compare("    CPU time in that minute", Unit(" % of a core", 2), |start| {
        start.idle
    });
    let none = Some(Aim::AtMost(0.0));
    let whole = Unit("", 0);
    let mut value = |what: &str, of: fn(&Start) -> f64| {
        table.value(what, &of(real).into(), whole, none);
    };
    value("    writes in the region in that minute", |start| {
        start.there.writes()
    });
    value(
        "    reads in the region in that minute, without watches",
        |start| start.there.reads(),
    );
    value(
        "    writes in Stellage's own API server in that minute, without the leader's Lease",
        |start| start.own.writes(),
    );
}
