//! Nodes with a thousand servers are drained: their launchers' Pods are deleted, the guests shut down, and Stellage starts them again.
//! virt-controller runs, and the puppet plays the node for all servers. Another customer reads meanwhile.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    Stage, Tenants,
    asked::Asked,
    copies::{exchange, name},
    idle::synced,
    seen::Seen,
};
use crate::{
    Result,
    account::Account,
    latencies::{Latencies, as_f64},
    load::CONNECTIONS,
    objects,
    product::Product,
    samples::{self, MILLIS, SECONDS, Samples, Unit},
    say,
    sizes::Sizes,
    table::{Aim, Table},
    wire::Target,
};

/// How long a guest takes to shut down: Debian's with systemd, on the node that it was tried on.
const SHUTDOWN: Duration = Duration::from_secs(8);
/// After how long without another server that starts again the others are given up.
const PATIENCE: Duration = Duration::from_mins(10);
/// Timeout for virt-controller to have looked at all servers, and to have written what it writes once.
const SETTLES: Duration = Duration::from_mins(10);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// virt-controller's identity.
const VIRT_CONTROLLER: &str = "system:serviceaccount:kubevirt:kubevirt-controller";
const NEIGHBOUR: &str = "neighbour";
/// Number of the other customer's instances, and how often they read.
const READ: u64 = 20;
const READS_EVERY: Duration = Duration::from_millis(50);

/// Measures it.
#[expect(clippy::too_many_lines, reason = "one step after another")]
pub async fn measure(table: &mut Table, stage: &mut Stage, tenants: &Tenants, sizes: &Sizes) -> Result<()> {
    say("(g) starting virt-controller with all servers");
    let begun = Instant::now();
    stage.region.start_virt_controller().await;
    until_settled(stage).await?;
    say(&format!("  it has settled after {:.0?}", begun.elapsed()));
    stage.say_memory()?;

    let mut product = stage.product().await?;
    synced(&product, Instant::now(), sizes.servers, true).await?;
    let neighbour = Account::named(&stage.cluster, &product, NEIGHBOUR).await?;
    for n in 0..READ {
        let instance = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Instance", "metadata": { "name": objects::name("read", n) },
            "spec": { "plan": "starter", "region": "nl-ams-1", "image": "debian-13" },
        });
        let (path, body) = (objects::collection(&neighbour.namespace), instance.to_string());
        let body = Some(("application/json", body.as_str()));
        stage.cluster.admin.call("POST", &path, body).await?;
    }
    stage.until_quiet(sizes).await?;
    let seen = Seen::watch(&stage.region).await?;
    let wanted = usize::try_from(sizes.servers)?;
    seen.until("all runs", |times| (times.runs.len() == wanted).then_some(()))
        .await?;
    let facade = product.facade(&neighbour.key)?;
    let before = reading(&facade, tokio::time::sleep(sizes.resting / 2)).await?;

    let first = tenants.first_copy();
    let numbers = first..first + sizes.drained_servers;
    let drained: Vec<String> = numbers.clone().map(name).collect();
    let runs: HashMap<String, String> = seen.look(|times| {
        times
            .runs
            .iter()
            .map(|(name, (uid, _))| (name.clone(), uid.clone()))
            .collect()
    });
    let servers = numbers.zip(&drained);
    let servers = servers.map(|(n, name)| (tenants.of(n).namespace.clone(), name.clone()));
    stage.region.puppet.order_all(servers, |guest| {
        guest.shutdown_takes = SHUTDOWN;
    });
    let launchers = launchers(stage).await?;
    stage.own.take(&stage.cluster.plane)?;
    stage.there.take(&stage.region.plane)?;
    say(&format!("(g) draining {} servers", drained.len()));
    let begun = Instant::now();
    let drain = async {
        delete(stage, &drained, &launchers).await?;
        say(&format!("  their Pods are deleted after {:.1?}", begun.elapsed()));
        let started = until_started(&seen, &drained, &runs).await;
        until_told(&product, tenants, sizes, started.len() == drained.len()).await?;
        Result::Ok((started, begun.elapsed()))
    };
    let (sender, mut receiver) = watch::channel(());
    let meanwhile = reading(&facade, async {
        let _ = receiver.changed().await;
    });
    let drain = async {
        let drained = drain.await;
        let _ = sender.send(());
        drained
    };
    let (drained_all, meanwhile) = tokio::join!(drain, meanwhile);
    let ((started, took), meanwhile) = (drained_all?, meanwhile?);
    stage.until_quiet(sizes).await?;
    let there = stage.there.take(&stage.region.plane)?;
    let own = stage.own.take(&stage.cluster.plane)?;
    say(&format!("  in the region {there}; own API server {own}"));
    stage.say_memory()?;
    product.stop().await?;

    let count = drained.len();
    let times: Samples = started.iter().map(|at| (*at - begun).as_secs_f64()).collect();
    let whole = Unit("", 0);
    table.value(
        &format!(
            "{count} of {} servers drained at once: started again",
            sizes.servers
        ),
        &as_f64(u64::try_from(started.len())?).into(),
        whole,
        Some(Aim::AtLeast(as_f64(sizes.drained_servers))),
    );
    let last = started
        .iter()
        .max()
        .map_or(f64::NAN, |at| (*at - begun).as_secs_f64());
    table.value(
        "    half of them run again after",
        &times.median().into(),
        SECONDS,
        None,
    );
    table.value("    all of them", &last.into(), SECONDS, None);
    table.value(
        "    until REST shows that",
        &took.as_secs_f64().into(),
        SECONDS,
        None,
    );
    let each = |count: f64| -> Samples { (count / as_f64(sizes.drained_servers)).into() };
    table.value(
        "    writes in the region, each",
        &each(there.writes()),
        samples::EACH,
        None,
    );
    table.value(
        "    reads in the region, each",
        &each(there.reads()),
        samples::EACH,
        None,
    );
    table.value(
        "    writes in Stellage's own API server, each",
        &each(own.writes()),
        samples::EACH,
        None,
    );
    for (quantile, what) in [(0.5, "median"), (0.99, "p99")] {
        table.compare(
            &format!("    another customer's reads through REST meanwhile, {what} : before"),
            &meanwhile.millis(quantile).into(),
            &before.millis(quantile).into(),
            MILLIS,
            None,
        );
    }
    Ok(())
}

/// Waits until virt-controller has nothing to write.
async fn until_settled(stage: &Stage) -> Result<()> {
    let mut asked = Asked::of(VIRT_CONTROLLER);
    asked.take(&stage.region.plane)?;
    let begun = Instant::now();
    while begun.elapsed() < SETTLES {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let requests = asked.take(&stage.region.plane)?;
        say(&format!("  virt-controller: {requests}"));
        if requests.writes.is_empty() {
            return Ok(());
        }
    }
    Err("virt-controller writes for ever".into())
}

/// The path of the launcher's Pod of each server.
async fn launchers(stage: &Stage) -> Result<HashMap<String, String>> {
    let list: Value = stage.admin.call("GET", "/api/v1/pods", None).await?.json()?;
    let pods = list["items"].as_array().into_iter().flatten();
    Ok(pods
        .filter_map(|pod| {
            let metadata = &pod["metadata"];
            let run = metadata["ownerReferences"][0]["name"].as_str()?;
            let (namespace, name) = (metadata["namespace"].as_str()?, metadata["name"].as_str()?);
            Some((
                run.to_owned(),
                format!("/api/v1/namespaces/{namespace}/pods/{name}"),
            ))
        })
        .collect())
}

/// Deletes the Pods, as the eviction of a drain does.
async fn delete(stage: &Stage, drained: &[String], launchers: &HashMap<String, String>) -> Result<()> {
    let workers = (0..CONNECTIONS).map(async |worker| {
        let mut connection = stage.admin.connect().await?;
        for name in drained.iter().skip(worker).step_by(CONNECTIONS) {
            let path = launchers.get(name).ok_or_else(|| format!("{name} has no Pod"))?;
            exchange(&mut connection, &stage.admin, "DELETE", path, None).await?;
        }
        Result::Ok(())
    });
    futures::future::try_join_all(workers).await.map(|_| ())
}

/// Waits until all servers have another run, or no more of them get one. Returns when they did.
async fn until_started(seen: &Seen, drained: &[String], before: &HashMap<String, String>) -> Vec<Instant> {
    let (mut known, mut changed) = (0, Instant::now());
    loop {
        let started: Vec<Instant> = seen.look(|times| {
            let started = drained.iter().filter_map(|name| {
                let (uid, at) = times.runs.get(name)?;
                (before.get(name) != Some(uid)).then_some(*at)
            });
            started.collect()
        });
        if started.len() != known {
            (known, changed) = (started.len(), Instant::now());
        }
        if known == drained.len() || changed.elapsed() > PATIENCE {
            say(&format!("  {known} of {} run again", drained.len()));
            return started;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Waits until REST shows all servers as running, if they are.
async fn until_told(
    product: &Product,
    tenants: &Tenants,
    sizes: &Sizes,
    are_all_started: bool,
) -> Result<()> {
    let begun = Instant::now();
    loop {
        let running = tenants.count(product, Some("running")).await?;
        if running == sizes.servers || !are_all_started {
            let stopped = tenants.count(product, Some("stopped")).await?;
            say(&format!("  REST: {running} running, {stopped} stopped"));
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("only {running} are shown as running").into());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Reads pages of the other customer's list until then.
async fn reading(facade: &Target, until: impl Future<Output = ()>) -> Result<Latencies> {
    let mut connection = facade.connect().await?;
    let request = facade.request("GET", "/v1/instances?limit=20", None);
    let mut latencies = Latencies::new()?;
    let mut ticks = tokio::time::interval(READS_EVERY);
    let mut until = std::pin::pin!(until);
    loop {
        tokio::select! {
            () = &mut until => return Ok(latencies),
            _ = ticks.tick() => {}
        }
        let sent = Instant::now();
        let status = connection.exchange(request.as_bytes()).await?;
        if status != 200 {
            return Err(format!("a read was answered with {status}").into());
        }
        latencies.record(sent.elapsed())?;
    }
}
