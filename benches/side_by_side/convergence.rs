//! (d): 5,000 instances, from the first one applied to the last one running, with servers that are ready at once; beside
//! the time in which a bare client does as many writes.
//!
//! How many writes that are is counted from the API server's metrics: of Instances and their status, creations included.
//! Kubernetes Events are not among them: the operator writes them in the background, nobody waits for them, and it drops
//! them when the API server cannot keep up. They do share the machine, so a second line counts them too.
//!
//! The bare client is as cheap as one can be. It has the same number of connections for creating as here applies the
//! instances, and as many for the rest as the operator has writes under way at most; it creates the same manifests, its
//! other writes are merge patches of one number of the status, it reads nothing and decides nothing. It has the machine
//! to itself, has the operator's identity, and goes twice: before and after.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{
    sync::{Mutex, mpsc},
    task::JoinSet,
};

use crate::{
    Result,
    census::Writes,
    cluster::{Account, Cluster},
    load::{Extent, Load, as_f64},
    objects,
    processes::processor_time_of,
    product::Product,
    say,
    sizes::Sizes,
    table::{Aim, Table},
};

/// Connections over which instances are applied.
const CREATORS: usize = 32;
/// The default of `--write-concurrency`.
const WRITERS: usize = 16;
/// How long all of them may take.
const PATIENCE: Duration = Duration::from_mins(5);
/// Where the bare client's instances are: a namespace of nobody.
const NOBODYS: &str = "nobodys";

/// Instances that came to run.
pub struct Converged {
    instances: u64,
    took: Duration,
    writes: Writes,
}

impl Converged {
    /// Writes of each instance beside its creation.
    pub fn patches_each(&self) -> u64 {
        (self.writes.instances - self.instances).div_ceil(self.instances)
    }
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
    connection.exchange(&total_request).await?;
    let wanted = total(&connection.body())? + count;

    let servers = cluster.api_server_pids();
    let used = || -> Result<_> { Ok((processor_time_of(&[product.pid])?, processor_time_of(&servers)?)) };
    let (before, (own_before, servers_before)) = (Writes::count(&cluster.admin).await?, used()?);
    let begun = Instant::now();
    let apply = Load {
        target: cluster.operator.clone(),
        connections: CREATORS,
        requests: objects::create(&cluster.operator, &account.namespace, prefix),
        status: 201,
        extent: Extent::Count(count),
    };
    let applied = apply.run().await?.took;
    // Asked of the facade, whose index answers at next to no cost.
    product
        .until(PATIENCE, "all instances running", async || {
            connection.exchange(&running_request).await?;
            Ok((total(&connection.body())? == wanted).then_some(()))
        })
        .await?;
    let took = begun.elapsed();
    let (own, of_servers) = used()?;
    let writes = Writes::count(&cluster.admin).await? - before;
    say(&format!(
        "  {took:.1?} (applied in {applied:.1?}): {} writes of instances, {} refused, {} Events; processor time: \
         stellage {:.1?}, API server and etcd {:.1?}",
        writes.instances,
        writes.refused,
        writes.events,
        own - own_before,
        of_servers - servers_before
    ));
    confirm(cluster, account, wanted).await?;
    Ok(Converged {
        instances: count,
        took,
        writes,
    })
}

fn total(page: &[u8]) -> Result<u64> {
    let page: Value = serde_json::from_slice(page)?;
    Ok(page["pagination"]["total"]
        .as_u64()
        .ok_or_else(|| format!("not a page: {page}"))?)
}

/// What the facade said is what the API server has.
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

/// What the bare client did.
#[derive(Clone, Copy)]
pub struct Bare {
    writes: u64,
    took: Duration,
}

/// Lets the bare client do its writes, and deletes what it made.
pub async fn bare_client(cluster: &Cluster, patches: u64, sizes: &Sizes) -> Result<Bare> {
    static TURN: AtomicU64 = AtomicU64::new(0);
    let turn = TURN.fetch_add(1, Ordering::Relaxed);
    let count = sizes.converging;
    say(&format!(
        "a bare client's turn: {count} creations and {patches} patches each"
    ));
    if turn == 0 {
        let namespace = json!({ "metadata": { "name": NOBODYS } }).to_string();
        let body = Some(("application/json", namespace.as_str()));
        cluster.admin.call("POST", "/api/v1/namespaces", body).await?;
    }
    let prefix = format!("bare{turn}");
    let before = Writes::count(&cluster.admin).await?;
    let begun = Instant::now();
    write(cluster, &prefix, count, patches).await?;
    let took = begun.elapsed();
    let writes = (Writes::count(&cluster.admin).await? - before).instances;
    say(&format!("  {took:.1?}: {writes} writes"));
    let delete = Load {
        target: cluster.admin.clone(),
        connections: CREATORS,
        requests: objects::delete(&cluster.admin, NOBODYS, &prefix),
        status: 200,
        extent: Extent::Count(count),
    };
    delete.run().await?;
    Ok(Bare { writes, took })
}

async fn write(cluster: &Cluster, prefix: &str, count: u64, patches: u64) -> Result<()> {
    let (created, waiting) = mpsc::unbounded_channel::<u64>();
    let waiting = Arc::new(Mutex::new(waiting));
    let next = Arc::new(AtomicU64::new(0));
    let requests = objects::create(&cluster.operator, NOBODYS, prefix);
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    for _ in 0..CREATORS {
        let (target, created) = (cluster.operator.clone(), created.clone());
        let (next, requests) = (Arc::clone(&next), Arc::clone(&requests));
        tasks.spawn(async move {
            let mut connection = target.connect().await?;
            let mut request = Vec::new();
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= count {
                    return Ok(());
                }
                request.clear();
                requests(n, &mut request);
                let status = connection.exchange(&request).await?;
                if status != 201 {
                    return Err(format!("a creation was answered with {status}").into());
                }
                created.send(n)?;
            }
        });
    }
    drop(created);
    for _ in 0..WRITERS {
        let (target, prefix) = (cluster.operator.clone(), prefix.to_owned());
        let waiting = Arc::clone(&waiting);
        tasks.spawn(async move {
            let mut connection = target.connect().await?;
            loop {
                let next = waiting.lock().await.recv().await;
                let Some(n) = next else { return Ok(()) };
                let path = format!("{}/status?fieldManager=bench", objects::path(NOBODYS, &prefix, n));
                for step in 1..=patches {
                    // A different number each time: a patch that changes nothing is no write.
                    let patch = json!({ "status": { "observedGeneration": step } }).to_string();
                    let body = Some(("application/merge-patch+json", patch.as_str()));
                    let status = connection.exchange(&target.request("PATCH", &path, body)).await?;
                    if status != 200 {
                        return Err(format!("a patch was answered with {status}").into());
                    }
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// The lines of (d).
pub fn report(table: &mut Table, converged: &Converged, bare: &[Bare]) {
    let per_write = |took: Duration, writes: u64| took.as_secs_f64() / as_f64(writes);
    let bare_writes: u64 = bare.iter().map(|bare| bare.writes).sum();
    let bare_took: Duration = bare.iter().map(|bare| bare.took).sum();
    let reference = per_write(bare_took, bare_writes);
    let Converged {
        instances,
        took,
        writes,
    } = converged;
    table.ratio(
        &format!("(d) {instances} instances applied to running, PROVISIONING=0"),
        &format!("{:.1} s, {} writes", took.as_secs_f64(), writes.instances),
        &format!("{:.1} s, bare client", reference * as_f64(writes.instances)),
        per_write(*took, writes.instances) / reference,
        Some(Aim::AtMost(1.3)),
    );
    let all = writes.instances + writes.events;
    table.ratio(
        "    the same, the operator's Events among the writes",
        &format!("{:.1} s, {all} writes", took.as_secs_f64()),
        &format!("{:.1} s, bare client", reference * as_f64(all)),
        per_write(*took, all) / reference,
        None,
    );
}
