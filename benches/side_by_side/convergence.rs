//! (d): the time from the first of 5,000 instances applied to the last one running, with servers that are ready at once,
//! compared with the time that a bare client takes for as many writes.
//!
//! The writes of Instances and their status, creates included, are counted from the API server's metrics. Kubernetes Events
//! are left out: the operator writes them in the background, nothing waits for them, and they are dropped if the API server
//! cannot keep up. But they use the same machine, so a second line includes them.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{
    Result,
    account::Account,
    bare_client::{self, CREATORS},
    cluster::Cluster,
    load::{Extent, Load, as_f64},
    objects,
    processes::{processor_time, processor_time_of},
    product::Product,
    say,
    table::{Aim, Table},
    writes::Writes,
};

/// Timeout for all instances.
const PATIENCE: Duration = Duration::from_mins(5);

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
    connection.exchange(&total_request).await?;
    let wanted = total(&connection.body())? + count;

    let servers = cluster.api_server_pids();
    let used = || -> Result<_> { Ok((processor_time(product.pid)?, processor_time_of(&servers)?)) };
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
    // Ask the facade, whose index answers at almost no cost.
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

/// The lines of (d).
pub fn report(table: &mut Table, converged: &Converged, bare: &[bare_client::Turn]) {
    let per_write = |took: Duration, writes: u64| took.as_secs_f64() / as_f64(writes);
    let bare_writes: u64 = bare.iter().map(|turn| turn.writes).sum();
    let bare_took: Duration = bare.iter().map(|turn| turn.took).sum();
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
        "    the same, including the operator's Events",
        &format!("{:.1} s, {all} writes", took.as_secs_f64()),
        &format!("{:.1} s, bare client", reference * as_f64(all)),
        per_write(*took, all) / reference,
        None,
    );
}
