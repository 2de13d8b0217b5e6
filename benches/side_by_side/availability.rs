//! How soon a process is ready and leads with many instances, how soon another leader takes over from one that is killed, the
//! memory of the facade and of the controllers separately, and how many requests fail while the facade's replicas are replaced.

use std::time::{Duration, Instant};

use crate::{
    Result,
    account::Account,
    cluster::Cluster,
    convergence, fill,
    latencies::as_f64,
    product::Product,
    samples::{MEBIBYTES, SECONDS, Samples, Unit},
    say,
    sizes::Sizes,
    support::rolling::{Answers, Balancer, Clients},
    table::{Aim, Table},
};

/// The Lease duration set by the chart.
const LEASE: [&str; 2] = ["--lease-duration-seconds", "4"];
/// Seconds from the start of a process until it is ready.
const READY: Aim = Aim::AtMost(1.0);
/// Seconds from a leader's death until the next one leads.
const FAILOVER: Aim = Aim::AtMost(5.0);
/// REST requests that fail in a rolling restart.
const FAILED: Aim = Aim::AtMost(0.0);
/// How long the chart lets load balancers take to notice that a replica is ending.
const LEAVING: [&str; 2] = ["--shutdown-delay-seconds", "5"];
/// Timeout until a process leads.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures everything.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    say("availability");
    let count = sizes.large;
    let cluster = Cluster::start().await?;
    let mut product = Product::run(&cluster).await?;
    let account = Account::create(&cluster, &product).await?;
    convergence::converge(&cluster, &product, &account, "first", 1).await?;
    let template = convergence::settled_instance(&cluster, &product, &account, "first").await?;
    product.stop().await?;
    fill::instances(&cluster, &account, &template, 0, count - 1).await?;

    let mut rounds = Vec::new();
    for _ in 0..sizes.rounds {
        rounds.push(round(&cluster, sizes).await?);
    }
    let row = |of: fn(&Round) -> f64| rounds.iter().map(of).collect::<Samples>();
    let with = format!("with {count} instances");
    table.value(
        &format!("`stellage api` from start to ready, {with}"),
        &row(|round| round.api_ready),
        SECONDS,
        Some(READY),
    );
    table.value(
        &format!("`stellage controller` from start to ready, {with}"),
        &row(|round| round.controller_ready),
        SECONDS,
        Some(READY),
    );
    table.value("    to leading", &row(|round| round.leading), SECONDS, None);
    table.value(
        "from the death of a leader whose Lease lasts for 4 s until the other replica leads",
        &row(|round| round.failover),
        SECONDS,
        Some(FAILOVER),
    );
    table.value(
        &format!("resident memory of `stellage api`, {with}"),
        &row(|round| round.api_mib),
        MEBIBYTES,
        None,
    );
    table.value(
        &format!("resident memory of `stellage controller`, {with}"),
        &row(|round| round.controller_mib),
        MEBIBYTES,
        None,
    );
    let Answers { succeeded, failed } = rolling_restart(&cluster, &account).await?;
    table.value(
        &format!("REST requests that fail while two replicas of `stellage api` are replaced, compared with {succeeded} that do not"),
        &as_f64(u64::try_from(failed.len())?).into(),
        Unit("", 0),
        Some(FAILED),
    );
    for why in failed.iter().take(3) {
        say(why);
    }
    cluster.stop().await
}

/// Replaces two replicas of the facade one after the other, as a Deployment does.
async fn rolling_restart(cluster: &Cluster, account: &Account) -> Result<Answers> {
    let balancer = Balancer::start().await;
    let start = async || {
        let replica = Product::api_with(cluster, &LEAVING).await?;
        balancer.add(&replica.url, &replica.metrics_url).await;
        Result::Ok(replica)
    };
    let old = [start().await?, start().await?];
    let clients = Clients::start(&balancer.url, &account.key);
    let mut new = Vec::new();
    for mut replica in old {
        new.push(start().await?);
        replica.stop().await?;
        balancer.remove(&replica.metrics_url);
    }
    let answers = clients.stop().await;
    for mut replica in new {
        replica.stop().await?;
    }
    Ok(answers)
}

struct Round {
    api_ready: f64,
    controller_ready: f64,
    leading: f64,
    failover: f64,
    api_mib: f64,
    controller_mib: f64,
}

async fn round(cluster: &Cluster, sizes: &Sizes) -> Result<Round> {
    let begun = Instant::now();
    let mut api = Product::api(cluster).await?;
    let api_ready = begun.elapsed().as_secs_f64();
    let api_mib = api.settled_mib(sizes).await?;
    api.stop().await?;

    let begun = Instant::now();
    let mut first = Product::controller(cluster, &LEASE).await?;
    let controller_ready = begun.elapsed().as_secs_f64();
    leads(&first).await?;
    let leading = begun.elapsed().as_secs_f64();
    let mut second = Product::controller(cluster, &LEASE).await?;
    let controller_mib = first.settled_mib(sizes).await?;
    let killed = Instant::now();
    first.kill();
    leads(&second).await?;
    let failover = killed.elapsed().as_secs_f64();
    second.stop().await?;
    say(&format!(
        "ready {api_ready:.2} s and {controller_ready:.2} s, leading {leading:.2} s, failover {failover:.2} s"
    ));
    Ok(Round {
        api_ready,
        controller_ready,
        leading,
        failover,
        api_mib,
        controller_mib,
    })
}

async fn leads(product: &Product) -> Result<()> {
    product
        .until(PATIENCE, "it to lead", async || {
            let page = product.metrics().await?;
            Ok(page.lines().any(|line| line == "stellage_leader 1").then_some(()))
        })
        .await
}
