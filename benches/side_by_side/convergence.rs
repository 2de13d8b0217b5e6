//! (d): the time from the first of 5,000 instances applied to the last one running, with servers that are ready at once,
//! compared with the time that a bare client takes for as many writes.
//!
//! The writes of Instances and their status, creates included, are counted from the API server's metrics. Kubernetes Events
//! are left out: the operator writes them in the background, nothing waits for them, and they are dropped if the API server
//! cannot keep up. But they use the same machine, so a second line includes them. The two take turns, and neither runs during
//! those of the other.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{
    Result,
    account::Account,
    bare_client::{self, CREATORS},
    cluster::Cluster,
    latencies::as_f64,
    load::{Client, Extent},
    objects,
    processes::{processor_time, processor_time_of},
    product::Product,
    samples::{self, Samples},
    say,
    table::{Aim, Table},
    writes::Writes,
};

/// Timeout for all instances.
pub const PATIENCE: Duration = Duration::from_mins(5);

/// The result of bringing instances to run.
pub struct Converged {
    instances: u64,
    took: Duration,
    writes: Writes,
}

impl Converged {
    /// Writes per instance, in addition to its create.
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
    connection.exchange(total_request.as_bytes()).await?;
    let wanted = total(&connection.body())? + count;

    let servers = cluster.api_server_pids();
    let used = || -> Result<_> { Ok((processor_time(product.pid)?, processor_time_of(&servers)?)) };
    let (before, (own_before, servers_before)) = (Writes::count(&cluster.admin).await?, used()?);
    let begun = Instant::now();
    let create = objects::create(&cluster.operator, &account.namespace, prefix);
    let apply = Client {
        status: 201,
        ..Client::repeating(&cluster.operator, CREATORS, create, Extent::Count(count))
    };
    let applied = apply.run().await?.took;
    // Ask the facade, whose index answers at almost no cost.
    product
        .until(PATIENCE, "all instances running", async || {
            connection.exchange(running_request.as_bytes()).await?;
            Ok((total(&connection.body())? == wanted).then_some(()))
        })
        .await?;
    let took = begun.elapsed();
    let (own, of_servers) = used()?;
    let writes = Writes::count(&cluster.admin).await? - before;
    say(&format!(
        "  {took:.1?} (applied in {applied:.1?}): {} writes of instances, {} refused, {} Events; processor time: \
         stellage {:.1} s, API server and etcd {:.1} s",
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

/// The lines of (d): each round of the program's, beside the round of the bare client before it.
pub fn report(table: &mut Table, rounds: &[(bare_client::Turn, Converged)]) {
    let Some((_, first)) = rounds.first() else { return };
    let mut line = |what: &str, writes: fn(&Writes) -> u64, aim| {
        let own: Samples = rounds.iter().map(|(_, own)| own.took.as_secs_f64()).collect();
        // The time of the bare client for as many writes.
        let bare = rounds
            .iter()
            .map(|(bare, own)| bare.took.as_secs_f64() * as_f64(writes(&own.writes)) / as_f64(bare.writes));
        table.compare(what, &own, &bare.collect(), samples::SECONDS, aim);
    };
    line(
        &format!(
            "(d) {} instances applied to running, {} writes : bare client",
            first.instances, first.writes.instances
        ),
        |writes| writes.instances,
        Some(Aim::AtMost(1.3)),
    );
    line(
        "    the same, including the operator's Events",
        |writes| writes.instances + writes.events,
        None,
    );
}
