//! `make bench`: what Stellage costs compared with what it is built on, measured in one run against the same API server on
//! loopback.
//!
//! Absolute numbers say more about the machine than about the program. So each number is a ratio of two that were measured
//! within seconds of each other, in turns (A-B-A-B, medians), with the same load generator on the same cores:
//!
//! - (a), (b) reads through the facade (`reads`), compared with the API server's answer to the same question, and with an
//!   axum handler that just sends the same bytes;
//! - (c) creates through REST (`creates`), compared with posting the same objects to the API server;
//! - creates with a native quota (`quota`), compared with creates without one;
//! - (d) the time until 5,000 instances run (`convergence`), compared with the time a bare client takes for as many writes;
//! - (e) memory and CPU time of `stellage run` (`footprint`);
//! - a client's latency under hostile connections (`attack`), compared with the same client without them;
//! - start-up, memory and locks with very many webhooks and instances (`scale`), compared with a tenth of them;
//! - `webhooks` has its own (a) to (e).
//!
//! Shared parts: `cluster` (the API server), `account`, `product` (a running `stellage`), `objects` (manifests), `load` and
//! `wire` (the load generator and its HTTP client), `bare_client` and `bare_handler` (the comparisons), `writes` (counts the API
//! server's writes), `processes` (memory and CPU time), `sizes` (numbers of instances and the like), `table`.
//!
//! The program under test is the shipped one with its default settings, except for ports, a provisioning time of 0, and an
//! account with a rate limit too high to be reached. The API server keeps no audit log, and etcd does not sync to disk, which
//! makes the API server faster and so the comparisons harder.
//!
//! Progress goes to stderr, the table to stdout. `--quick` tests the bench itself; its numbers are meaningless. Parts can be
//! selected by name: `instances`, `reads` (only (a) and (b) of them), `connections` (the attack), `quota`, `scale`, `webhooks`, or one of `webhooks-sender`,
//! `webhooks-rates`, `webhooks-hostile`, `webhooks-memory`, as in `make bench ARGS='--quick webhooks-rates'`. With
//! `--baseline PATH`, reads are also compared with another build of `stellage`.

mod account;
mod attack;
mod bare_client;
mod bare_handler;
mod cluster;
mod convergence;
mod creates;
mod footprint;
mod load;
mod objects;
mod processes;
mod product;
mod quota;
mod reads;
mod scale;
mod sizes;
mod table;
mod webhooks;
mod wire;
mod writes;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use account::Account;
use cluster::Cluster;
use product::Product;
use sizes::Sizes;
use table::Table;
use webhooks::Part;

/// Any error ends the run with its message.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Error>;

/// Timeout of the whole run.
const LONGEST: Duration = Duration::from_mins(60);

#[tokio::main]
async fn main() -> Result<()> {
    if let Some(answers) = bare_handler::wanted() {
        return bare_handler::serve(answers).await;
    }
    let wanted = Wanted::of(std::env::args().skip(1))?;
    let table = tokio::time::timeout(LONGEST, wanted.measure()).await??;
    println!("{table}");
    Ok(())
}

/// The command line.
#[expect(clippy::struct_excessive_bools, reason = "one for each part")]
struct Wanted {
    sizes: Sizes,
    instances: bool,
    reads: bool,
    connections: bool,
    quota: bool,
    scale: bool,
    /// Another build of `stellage` to compare reads with.
    baseline: Option<PathBuf>,
    webhooks: Vec<Part>,
}

impl Wanted {
    fn of(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut wanted = Self {
            sizes: Sizes::FULL,
            instances: false,
            reads: false,
            connections: false,
            quota: false,
            scale: false,
            baseline: None,
            webhooks: Vec::new(),
        };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                // `cargo bench` adds it.
                "--bench" => {}
                "--quick" => wanted.sizes = Sizes::QUICK,
                "--baseline" => {
                    let path = arguments
                        .next()
                        .ok_or("--baseline needs the path of a stellage binary")?;
                    wanted.baseline = Some(path.into());
                }
                "instances" => wanted.instances = true,
                "reads" => wanted.reads = true,
                "connections" => wanted.connections = true,
                "quota" => wanted.quota = true,
                "scale" => wanted.scale = true,
                "webhooks" => wanted.webhooks.extend(Part::ALL),
                name => {
                    let part = Part::ALL.into_iter().find(|part| part.name() == name);
                    let names = Part::ALL.map(Part::name).join(", ");
                    let complaint = || {
                        format!(
                            "{name} is neither an option (--quick, --baseline PATH) nor a part (instances, reads, connections, quota, scale, webhooks, {names})"
                        )
                    };
                    wanted.webhooks.push(part.ok_or_else(complaint)?);
                }
            }
        }
        let Self {
            instances,
            reads,
            connections,
            quota,
            scale,
            ..
        } = wanted;
        if !(instances || reads || connections || quota || scale) && wanted.webhooks.is_empty() {
            wanted.instances = true;
            wanted.connections = true;
            wanted.quota = true;
            wanted.scale = true;
            wanted.webhooks.extend(Part::ALL);
        }
        Ok(wanted)
    }

    async fn measure(self) -> Result<Table> {
        let mut table = Table::default();
        if self.instances {
            measure(&mut table, self.baseline.as_deref(), &self.sizes).await?;
        } else if self.reads {
            measure_reads(&mut table, self.baseline.as_deref(), &self.sizes).await?;
        }
        if self.connections {
            attack::measure(&mut table, &self.sizes).await?;
        }
        if self.quota {
            quota::measure(&mut table, &self.sizes).await?;
        }
        if self.scale {
            scale::measure(&mut table, &self.sizes).await?;
        }
        for part in self.webhooks {
            part.measure(&mut table, &self.sizes).await?;
        }
        Ok(table)
    }
}

/// Measures everything, in an order in which each part leaves behind what the next one needs.
async fn measure(table: &mut Table, baseline: Option<&Path>, sizes: &Sizes) -> Result<()> {
    let cluster = Cluster::start().await?;

    // A cluster without instances, then the first thousand.
    let mut product = Product::run(&cluster).await?;
    let account = Account::create(&cluster, &product).await?;
    let empty = footprint::settled(&product, sizes).await?;
    let first = convergence::converge(&cluster, &product, &account, "first", sizes.small).await?;
    let small_after = footprint::settled(&product, sizes).await?;
    product.stop().await?;

    // (d), between two runs of the bare client, while nothing else runs.
    let patches = first.patches_each();
    let bare_before = bare_client::turn(&cluster, patches, sizes).await?;
    let mut product = Product::run(&cluster).await?;
    let small_fresh = footprint::settled(&product, sizes).await?;
    let converged = convergence::converge(&cluster, &product, &account, "converge", sizes.converging).await?;
    let rest = sizes.large - sizes.small - sizes.converging;
    convergence::converge(&cluster, &product, &account, "rest", rest).await?;
    let large_after = footprint::settled(&product, sizes).await?;
    product.stop().await?;
    let bare_after = bare_client::turn(&cluster, patches, sizes).await?;

    // (e), (a) and (b), on new processes with all ten thousand instances.
    let mut product = Product::run(&cluster).await?;
    let large_fresh = footprint::settled(&product, sizes).await?;
    let idle = footprint::idle(&product, sizes).await?;
    product.stop().await?;
    measure_facades(table, &cluster, baseline, &account, sizes).await?;

    // (c) is last, because no other part can use its objects.
    creates::measure(table, &cluster, &account, sizes).await?;
    cluster.stop().await?;

    convergence::report(table, &converged, &[bare_before, bare_after]);
    let (small, large) = ([small_fresh, small_after], [large_fresh, large_after]);
    footprint::report(table, sizes, empty, small, large, idle);
    Ok(())
}

/// Measures only (a) and (b).
async fn measure_reads(table: &mut Table, baseline: Option<&Path>, sizes: &Sizes) -> Result<()> {
    let cluster = Cluster::start().await?;
    let mut product = Product::run(&cluster).await?;
    let account = Account::create(&cluster, &product).await?;
    convergence::converge(&cluster, &product, &account, "all", sizes.large).await?;
    product.stop().await?;
    measure_facades(table, &cluster, baseline, &account, sizes).await?;
    cluster.stop().await?;
    Ok(())
}

/// Measures (a) and (b) of this build, and of another one if there is one, both started as `stellage api`.
async fn measure_facades(
    table: &mut Table,
    cluster: &Cluster,
    baseline: Option<&Path>,
    account: &Account,
    sizes: &Sizes,
) -> Result<()> {
    let mut product = Product::api(cluster).await?;
    let mut before = match baseline {
        Some(program) => {
            let key = Account::key_of(cluster, program)?;
            Some((Product::api_of(cluster, program).await?, key))
        }
        None => None,
    };
    reads::measure(table, cluster, &product, before.as_ref(), account, sizes).await?;
    if let Some((before, _)) = &mut before {
        before.stop().await?;
    }
    product.stop().await
}

/// Prints a line of progress.
fn say(line: &str) {
    static BEGUN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let seconds = BEGUN.get_or_init(std::time::Instant::now).elapsed().as_secs();
    eprintln!("[{seconds:>4} s] {line}");
}
