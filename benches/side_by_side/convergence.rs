//! (d): the time from applying the first of 5,000 instances until the last one runs, with servers that are ready immediately.
//! Compared with the time that a bare client takes for the minimum of writes: a create and a status for each instance, of the
//! same contents. With `--baseline`, another build of `stellage` does the same.
//!
//! The instances have finalizer and origin from the start, as those created through REST do, and the API server counts them for a
//! native quota, including those of the bare client. The status that the bare client writes is one that this build has written for
//! another instance. The writes of Instances and of their status are counted from the API server's metrics. Kubernetes Events are
//! written in the background; nothing waits for them, but they use the same machine. All sides take turns, and none runs during
//! the turn of another. The CPU time of the API server and etcd is compared as well; that of what is written after all run has its
//! own line.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    Result,
    account::Account,
    bare_client::{BareClient, CREATORS, Minimum},
    cluster::{Cluster, STELLAGE},
    latencies::as_f64,
    load::{Client, Extent},
    objects,
    processes::{processor_time, processor_time_of},
    product::Product,
    samples::{self, Samples},
    say,
    sizes::Sizes,
    table::{Aim, Table},
    writes::{Writes, until_steady},
};

/// Timeout for all instances.
pub const PATIENCE: Duration = Duration::from_mins(5);

/// A little longer than a settled event stays in its outbox, waiting for another write.
const OUTBOX_LINGERS: Duration = Duration::from_secs(12);
/// Timeout for nothing to be left to write: the invoices of a hundred thousand new instances take a quarter of an hour.
const UNTIL_QUIET: Duration = Duration::from_mins(20);

/// The result of bringing instances to run.
pub struct Converged {
    took: Duration,
    /// CPU time of the API server and etcd, in seconds.
    servers: f64,
    writes: Writes,
}

/// A build's turn.
struct Turn {
    converged: Converged,
    /// CPU time of the API server and etcd until nothing was left to write, in seconds.
    settled: f64,
    /// Writes of instances until the outboxes were cleared.
    cleared: u64,
}

/// Measures this build against the bare client, and against the baseline if there is one.
pub async fn measure(table: &mut Table, baseline: Option<&Path>, sizes: &Sizes) -> Result<()> {
    let cluster = Cluster::start().await?;
    let mut product = Product::run(&cluster).await?;
    let account = Account::create(&cluster, &product).await?;
    cluster.until_created(&account.namespace).await?;
    let status = written_status(&cluster, &product, &account).await?;
    product.stop().await?;
    let client = BareClient::prepare(&cluster, status).await?;
    let (mut bare, mut own, mut before) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..sizes.rounds {
        let prefix = format!("bare{round}");
        bare.push(client.turn(&cluster, &prefix, sizes.converging).await?);
        own.push(
            turn(
                &cluster,
                &account,
                Path::new(STELLAGE),
                &format!("own{round}"),
                sizes,
            )
            .await?,
        );
        if let Some(program) = baseline {
            before.push(turn(&cluster, &account, program, &format!("before{round}"), sizes).await?);
        }
    }
    cluster.stop().await?;
    report(table, sizes, &bare, &own, &before);
    Ok(())
}

/// The status that this build writes for an instance that runs, with the events that it has yet to hand over.
async fn written_status(cluster: &Cluster, product: &Product, account: &Account) -> Result<Value> {
    const PREFIX: &str = "template";
    converge(cluster, product, account, PREFIX, 1).await?;
    let path = objects::path(&account.namespace, PREFIX, 0);
    let mut instance: Value = cluster.admin.call("GET", &path, None).await?.json()?;
    let status = instance["status"].take();
    if status["outbox"].as_array().is_none_or(Vec::is_empty) {
        return Err("the outbox of an instance was cleared before it was read".into());
    }
    Ok(status)
}

/// Starts a new process of a build, which brings instances to run.
async fn turn(
    cluster: &Cluster,
    account: &Account,
    program: &Path,
    prefix: &str,
    sizes: &Sizes,
) -> Result<Turn> {
    let account = Account {
        namespace: account.namespace.clone(),
        // Each build has its own format of keys.
        key: Account::key_of(cluster, program)?,
    };
    let mut product = Product::run_of(cluster, program, &[]).await?;
    let before = Writes::count(&cluster.admin).await?;
    let servers = cluster.api_server_pids();
    let used = processor_time_of(&servers)?;
    let converged = converge(cluster, &product, &account, prefix, sizes.converging).await?;
    until_quiet(cluster, sizes).await?;
    let settled = processor_time_of(&servers)? - used;
    let cleared = (Writes::count(&cluster.admin).await? - before).instances;
    product.stop().await?;
    Ok(Turn {
        converged,
        settled,
        cleared,
    })
}

/// Waits until the outboxes have been cleared, the invoices have everything and the Kubernetes Events are written. Otherwise that
/// would be part of what is measured next. Returns at once unless [`Sizes::drained`].
pub async fn until_quiet(cluster: &Cluster, sizes: &Sizes) -> Result<()> {
    if !sizes.drained {
        return Ok(());
    }
    until_steady(&cluster.admin, OUTBOX_LINGERS, UNTIL_QUIET, |writes| {
        format!(
            "{} writes of instances, {} of invoices and {} of Kubernetes Events",
            writes.instances, writes.invoices, writes.events
        )
    })
    .await
}

/// The first of the converged instances with this prefix, once nothing is left to do for it.
pub async fn settled_instance(
    cluster: &Cluster,
    product: &Product,
    account: &Account,
    prefix: &str,
) -> Result<Value> {
    let path = objects::path(&account.namespace, prefix, 0);
    product
        .until(PATIENCE, "an instance without events", async || {
            let instance: Value = cluster.admin.call("GET", &path, None).await?.json()?;
            let outbox = instance["status"]["outbox"].as_array();
            Ok(outbox.is_none_or(Vec::is_empty).then_some(instance))
        })
        .await
}

/// Applies `count` instances and waits until all of the account's are running.
pub async fn converge(
    cluster: &Cluster,
    product: &Product,
    account: &Account,
    prefix: &str,
    count: u64,
) -> Result<Converged> {
    say(&format!("applying {count} instances, until all are running"));
    let facade = product.facade(&account.key)?;
    let mut connection = facade.connect().await?;
    let total_request = facade.request("GET", "/v1/instances?limit=1", None);
    let running_request = facade.request("GET", "/v1/instances?limit=1&status=running", None);
    let already = product
        .until(PATIENCE, "the key to be known", async || {
            // The watch may not have shown it yet.
            let is_known = connection.exchange(total_request.as_bytes()).await? != 401;
            is_known.then(|| total(&connection.body())).transpose()
        })
        .await?;
    let wanted = already + count;

    let servers = cluster.api_server_pids();
    let used = || -> Result<_> { Ok((processor_time(product.pid)?, processor_time_of(&servers)?)) };
    let (before, (own_before, servers_before)) = (Writes::count(&cluster.admin).await?, used()?);
    let begun = Instant::now();
    let create = objects::create_marked(&cluster.operator, &account.namespace, prefix);
    let apply = Client {
        status: 201,
        ..Client::repeating(&cluster.operator, CREATORS, create, Extent::Count(count))
    };
    let applied = apply.run().await?.took;
    // Ask the facade, whose index can answer at almost no cost.
    product
        .until(PATIENCE, "all instances running", async || {
            connection.exchange(running_request.as_bytes()).await?;
            Ok((total(&connection.body())? == wanted).then_some(()))
        })
        .await?;
    let took = begun.elapsed();
    let (own, servers) = used()?;
    let servers = servers - servers_before;
    let writes = Writes::count(&cluster.admin).await? - before;
    say(&format!(
        "  {took:.1?} (applied in {applied:.1?}): {} writes of instances, {} refused, {} Events; CPU time: \
         stellage {:.1} s, API server and etcd {servers:.1} s",
        writes.instances,
        writes.refused,
        writes.events,
        own - own_before
    ));
    confirm(cluster, account, wanted).await?;
    Ok(Converged {
        took,
        servers,
        writes,
    })
}

fn total(page: &[u8]) -> Result<u64> {
    let page: Value = serde_json::from_slice(page)?;
    Ok(page["pagination"]["total"]
        .as_u64()
        .ok_or_else(|| format!("not a page: {page}"))?)
}

/// Checks the facade's answer against the API server.
async fn confirm(cluster: &Cluster, account: &Account, wanted: u64) -> Result<()> {
    let path = format!(
        "{}?fieldSelector=status.state%3Drunning",
        objects::collection(&account.namespace)
    );
    let list: Value = cluster.admin.call("GET", &path, None).await?.json()?;
    let running = list["items"].as_array().map_or(0, Vec::len);
    if u64::try_from(running)? == wanted {
        return Ok(());
    }
    Err(format!("{running} instances are running, not {wanted}").into())
}

/// Reports the lines of (d).
fn report(table: &mut Table, sizes: &Sizes, bare: &[Minimum], own: &[Turn], before: &[Turn]) {
    let count = sizes.converging;
    let seconds = |turns: &[Turn]| -> Samples {
        turns
            .iter()
            .map(|turn| turn.converged.took.as_secs_f64())
            .collect()
    };
    let millis_each = |seconds: f64| seconds * 1000.0 / as_f64(count);
    let each = |turns: &[Turn], of: fn(&Turn) -> u64| -> Samples {
        turns
            .iter()
            .map(|turn| as_f64(of(turn)) / as_f64(count))
            .collect()
    };
    table.compare(
        &format!(
            "(d) {count} instances applied to running : a bare client's minimum, two writes each, of the same contents"
        ),
        &seconds(own),
        &bare.iter().map(|turn| turn.took.as_secs_f64()).collect(),
        samples::SECONDS,
        Some(Aim::AtMost(1.3)),
    );
    table.compare(
        "    CPU time of API server and etcd until all run, each : the bare client of the same contents",
        &own.iter()
            .map(|turn| millis_each(turn.converged.servers))
            .collect(),
        &bare.iter().map(|turn| millis_each(turn.servers)).collect(),
        samples::CORE_MILLIS,
        None,
    );
    table.value(
        "    the same until nothing is left to write",
        &own.iter().map(|turn| millis_each(turn.settled)).collect(),
        samples::CORE_MILLIS,
        None,
    );
    if !before.is_empty() {
        table.compare(
            "    the time, this build : baseline",
            &seconds(own),
            &seconds(before),
            samples::SECONDS,
            None,
        );
    }
    let mut writes = |what: &str, of: fn(&Turn) -> u64| {
        if before.is_empty() {
            table.value(what, &each(own, of), samples::EACH, None);
        } else {
            let what = format!("{what}, this build : baseline");
            table.compare(&what, &each(own, of), &each(before, of), samples::EACH, None);
        }
    };
    writes(
        "    writes of instances until all run, each, creates included",
        |turn| turn.converged.writes.instances,
    );
    writes(
        "    writes of instances until the outboxes are cleared, each",
        |turn| turn.cleared,
    );
    table.value(
        "    Kubernetes Events that are written until all run, each",
        &each(own, |turn| turn.converged.writes.events),
        samples::EACH,
        None,
    );
}
