//! (e): memory and CPU time of `stellage run` in one account. With ten thousand instances two processes are measured, because
//! an allocator does not return all memory: one that has brought the instances to run, in two halves, and a new one that finds
//! them running. With a hundred thousand, most are stored as if they had been running for a long time. Each process is measured
//! once its outboxes are cleared and its invoices and Kubernetes Events written; again a minute later, when the ledger of the idle
//! account has left memory; and again after a client has read all lists and all details through REST twice: the facade keeps what it
//! serialises from the second request on.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    Result,
    account::Account,
    cluster::Cluster,
    convergence, fill,
    load::{CONNECTIONS, Extent, Load, Requests},
    processes::{allocated_mib, of_files_mib, processor_time},
    product::Product,
    samples::{self, Unit},
    say,
    sizes::Sizes,
    table::{Aim, Table},
};

/// Megabytes per mebibyte.
const MEGABYTES_OF_MEBIBYTE: f64 = 1.048_576;
/// Page size of the walk: the maximum.
const PAGE: usize = 100;
/// Number of walks: what is read only once is not kept.
const WALKS: usize = 2;
const FIRST: &str = "first";
/// How long the ledger of an account stays in memory after its last change.
const LEDGER_STAYS: Duration = Duration::from_secs(60);
/// Maximum memory of the process in megabytes, with [`Sizes::large`] and with [`Sizes::most`] instances.
const AIMS: [Aim; 2] = [Aim::AtMost(96.0), Aim::AtMost(500.0)];

async fn megabytes(product: &Product, sizes: &Sizes) -> Result<f64> {
    Ok(product.settled_mib(sizes).await? * MEGABYTES_OF_MEBIBYTE)
}

/// The share of one core that an idle process uses.
async fn idle(product: &Product, sizes: &Sizes) -> Result<f64> {
    say(&format!("idle for {} s", sizes.idle.as_secs()));
    let (before, begun) = (processor_time(product.pid)?, Instant::now());
    tokio::time::sleep(sizes.idle).await;
    let used = processor_time(product.pid)? - before;
    Ok(used / begun.elapsed().as_secs_f64())
}

/// Memory of a process in megabytes.
struct Resident {
    /// Once everything is written.
    before: f64,
    /// The part of it that the process has allocated.
    allocated: f64,
    /// The part of it that is pages of files.
    of_files: f64,
    /// A minute later.
    at_rest: f64,
    /// After the walks.
    after: f64,
}

impl Resident {
    async fn measure(
        cluster: &Cluster,
        product: &Product,
        account: &Account,
        count: u64,
        sizes: &Sizes,
    ) -> Result<Self> {
        convergence::until_quiet(cluster, sizes).await?;
        let before = megabytes(product, sizes).await?;
        let (allocated, of_files) = (allocated_mib(product.pid)?, of_files_mib(product.pid)?);
        if sizes.drained {
            tokio::time::sleep(LEDGER_STAYS).await;
        }
        let at_rest = megabytes(product, sizes).await?;
        for _ in 0..WALKS {
            walk(product, account, count).await?;
        }
        Ok(Self {
            before,
            allocated: allocated * MEGABYTES_OF_MEBIBYTE,
            of_files: of_files * MEGABYTES_OF_MEBIBYTE,
            at_rest,
            after: megabytes(product, sizes).await?,
        })
    }

    fn report(&self, table: &mut Table, what: &str, aim: Aim) {
        let mut row = |when: &str, megabytes: f64, aim| {
            table.value(
                &format!("    {what}{when}"),
                &megabytes.into(),
                samples::MEGABYTES,
                aim,
            );
        };
        row("", self.before, Some(aim));
        row(", of it allocated (RssAnon)", self.allocated, None);
        row(", of it pages of files (RssFile)", self.of_files, None);
        row(", a minute later", self.at_rest, Some(aim));
        row(
            ", after reading all lists and details twice",
            self.after,
            Some(aim),
        );
    }
}

/// Measures everything.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    let large = sizes.large;
    let [aim, aim_of_most] = AIMS;
    let cluster = Cluster::start().await?;
    let mut product = Product::run(&cluster).await?;
    let account = Account::create(&cluster, &product).await?;
    let empty = megabytes(&product, sizes).await?;
    table.value(
        "(e) resident, 0 instances",
        &empty.into(),
        samples::MEGABYTES,
        None,
    );

    for half in [FIRST, "second"] {
        convergence::converge(&cluster, &product, &account, half, large / 2).await?;
    }
    let resident = Resident::measure(&cluster, &product, &account, large, sizes).await?;
    resident.report(
        table,
        &format!("{large} instances, having brought them to run"),
        aim,
    );
    let template = convergence::settled_instance(&cluster, &product, &account, FIRST).await?;
    product.stop().await?;

    let mut product = Product::run(&cluster).await?;
    let resident = Resident::measure(&cluster, &product, &account, large, sizes).await?;
    resident.report(table, &format!("{large} instances, new process"), aim);
    let idle = idle(&product, sizes).await?;
    let seconds = sizes.idle.as_secs();
    let what = format!("    CPU while idle at {large} instances, over {seconds} s");
    table.value(&what, &(idle * 100.0).into(), Unit(" % of a core", 2), None);
    product.stop().await?;

    if let Some(most) = sizes.most {
        fill::instances(&cluster, &account, &template, 0, most - large).await?;
        let mut product = Product::run(&cluster).await?;
        let resident = Resident::measure(&cluster, &product, &account, most, sizes).await?;
        resident.report(table, &format!("{most} instances, new process"), aim_of_most);
        product.stop().await?;
    }
    cluster.stop().await
}

/// Reads all pages of the list, and the detail of every instance, once.
async fn walk(product: &Product, account: &Account, count: u64) -> Result<()> {
    let facade = product.facade(&account.key)?;
    let mut connection = facade.connect().await?;
    let mut ids: Vec<String> = Vec::new();
    for page in 1.. {
        let path = format!("/v1/instances?limit={PAGE}&page={page}");
        connection
            .exchange(facade.request("GET", &path, None).as_bytes())
            .await?;
        let list: Value = serde_json::from_slice(&connection.body())?;
        let items = list["data"].as_array().into_iter().flatten();
        let before = ids.len();
        ids.extend(items.filter_map(|item| item["id"].as_str().map(str::to_owned)));
        if ids.len() < before + PAGE {
            break;
        }
    }
    if u64::try_from(ids.len())? != count {
        return Err(format!("the lists have {} instances, not {count}", ids.len()).into());
    }
    let target = facade.clone();
    let requests: Arc<Requests> = Arc::new(move |n, buffer| {
        let id = usize::try_from(n).ok().and_then(|n| ids.get(n));
        let path = format!("/v1/instances/{}", id.map_or("", String::as_str));
        *buffer = target.request("GET", &path, None).into_bytes();
    });
    let load = Load {
        target: facade,
        connections: CONNECTIONS,
        requests,
        status: 200,
        extent: Extent::Count(count),
    };
    load.run().await?;
    Ok(())
}
