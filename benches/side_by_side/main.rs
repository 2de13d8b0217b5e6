//! `make bench`: what Stellage costs compared with what it is built on, measured in one run against the same API server on
//! loopback.
//!
//! Absolute numbers say more about the machine than about the program. So each number is a ratio of two that were measured
//! within seconds of each other, in turns (A-B-A-B-A-B), with the same load generator on the same cores, and is shown as the
//! median of the rounds with the least and the greatest. What takes only one turn is shown as one number. Clients run in
//! processes of their own:
//!
//! - the processor time of a transition with webhooks (`webhooks::transitions`), which hardly depends on the machine's load,
//!   also compared with another build;
//! - (a), (b) reads through the facade (`reads`), compared with the API server's answer to the same question, and with an
//!   axum handler that just sends the same bytes;
//! - (c) creates through REST (`creates`), compared with posting the same objects to the API server;
//! - creates with a native quota (`quota`), compared with creates without one;
//! - (d) the time until 2,000 instances run (`convergence`), compared with the time a bare client takes for as many writes;
//! - (e) memory and CPU time of `stellage run` (`footprint`);
//! - a client's latency under hostile connections (`attack`), compared with the same client without them;
//! - start-up, memory and locks with very many webhooks and instances (`scale`), compared with a tenth of them; once, since
//!   filling the cluster takes minutes;
//! - the time until instances run, and memory, compared with KWOK (`kwok`);
//! - `webhooks` has its own (a) to (e).
//!
//! Shared parts: `cluster` (the API server), `account`, `product` (a running `stellage`), `objects` (manifests), `fill` (many
//! running instances), `load` and `wire` (the load generator and its HTTP client), `client` (processes for clients), `churn`
//! (stops and starts instances), `bare_client` and `bare_handler` (the comparisons), `writes` (counts the API server's writes),
//! `processes` (memory and CPU time), `sizes` (numbers of instances and the like), `latencies`, `samples`, `table`, `page` (the
//! table in the documentation).
//!
//! The program under test is the shipped one with its default settings, except for ports, a provisioning time of 0, and an
//! account with a rate limit too high to be reached. The API server keeps no audit log, and etcd does not sync to disk, which
//! makes the API server faster and so the comparisons harder.
//!
//! Progress goes to stderr, the table to stdout. The options and the parts are in docs/benchmarks.md.

mod account;
mod attack;
mod bare_client;
mod bare_handler;
mod churn;
mod client;
mod cluster;
mod convergence;
mod creates;
mod fill;
mod footprint;
mod kwok;
mod latencies;
mod load;
mod objects;
mod page;
mod processes;
mod product;
mod quota;
mod reads;
mod samples;
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

/// Any error ends the run with its message.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Error>;

/// Timeout of the whole run.
const LONGEST: Duration = Duration::from_mins(90);

#[tokio::main]
async fn main() -> Result<()> {
    if let Some(answers) = bare_handler::wanted() {
        return bare_handler::serve(answers).await;
    }
    if let Some(kind) = client::wanted() {
        return match kind.as_str() {
            load::KIND => client::serve(load::Client::run_here).await,
            churn::KIND => client::serve(churn::Job::run_here).await,
            bare_client::KIND => client::serve(bare_client::Job::run_here).await,
            kind => Err(format!("no client is called {kind}").into()),
        };
    }
    let wanted = Wanted::of(std::env::args().skip(1))?;
    let table = tokio::time::timeout(LONGEST, wanted.measure()).await??;
    print!("{table}");
    if wanted.readme {
        page::update(&table, &wanted.how())?;
    }
    Ok(())
}

/// A part that can be selected by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// (c), (d) and (e).
    Instances,
    /// (a) and (b).
    Reads,
    /// The attack.
    Connections,
    Quota,
    Scale,
    Kwok,
    Webhooks(webhooks::Part),
}

impl Part {
    /// All parts with their names, in the order of measurement.
    const ALL: [(&str, Self); 11] = [
        ("transitions", Self::Webhooks(webhooks::Part::Transitions)),
        ("instances", Self::Instances),
        ("reads", Self::Reads),
        ("connections", Self::Connections),
        ("quota", Self::Quota),
        ("webhooks-sender", Self::Webhooks(webhooks::Part::Sender)),
        ("webhooks-rates", Self::Webhooks(webhooks::Part::Rates)),
        ("webhooks-hostile", Self::Webhooks(webhooks::Part::Hostile)),
        ("webhooks-memory", Self::Webhooks(webhooks::Part::Memory)),
        ("scale", Self::Scale),
        ("kwok", Self::Kwok),
    ];
    /// Selects all parts whose names begin with it.
    const WEBHOOKS: &str = "webhooks";

    async fn measure(self, table: &mut Table, baseline: Option<&Path>, sizes: &Sizes) -> Result<()> {
        match self {
            Self::Instances => measure_instances(table, sizes).await,
            Self::Reads => reads::measure(table, baseline, sizes).await,
            Self::Connections => attack::measure(table, sizes).await,
            Self::Quota => quota::measure(table, sizes).await,
            Self::Kwok => kwok::measure(table, sizes).await,
            Self::Scale => scale::measure(table, sizes).await,
            Self::Webhooks(part) => part.measure(table, baseline, sizes).await,
        }
    }
}

/// The command line.
struct Wanted {
    sizes: Sizes,
    quick: bool,
    /// Whether the documentation's table is replaced.
    readme: bool,
    /// Another build of `stellage` to compare with.
    baseline: Option<PathBuf>,
    /// In their order; all of them if none is named.
    parts: Vec<(&'static str, Part)>,
}

impl Wanted {
    fn of(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let (mut quick, mut readme, mut baseline, mut named) = (false, false, None, Vec::new());
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                // `cargo bench` adds it.
                "--bench" => {}
                "--quick" => quick = true,
                "--readme" => readme = true,
                "--baseline" => {
                    let path = arguments
                        .next()
                        .ok_or("--baseline needs the path of a stellage binary")?;
                    // Processes are started in other folders.
                    baseline =
                        Some(std::fs::canonicalize(&path).map_err(|error| format!("{path}: {error}"))?);
                }
                name => {
                    let is_meant = |part: &str| {
                        part == name || name == Part::WEBHOOKS && part.starts_with(Part::WEBHOOKS)
                    };
                    if !Part::ALL.iter().any(|(part, _)| is_meant(part)) {
                        let parts = Part::ALL.map(|(part, _)| part).join(", ");
                        return Err(format!(
                            "{name} is neither an option (--quick, --readme, --baseline PATH) nor a part ({}, {parts})",
                            Part::WEBHOOKS
                        )
                        .into());
                    }
                    named.extend(Part::ALL.into_iter().filter(|(part, _)| is_meant(part)));
                }
            }
        }
        if quick && readme {
            return Err("the numbers of --quick mean nothing, so they are not for --readme".into());
        }
        let is_wanted = |part: &(&str, Part)| named.is_empty() || named.contains(part);
        Ok(Self {
            sizes: if quick { Sizes::QUICK } else { Sizes::FULL },
            quick,
            readme,
            baseline,
            parts: Part::ALL.into_iter().filter(is_wanted).collect(),
        })
    }

    async fn measure(&self) -> Result<Table> {
        let mut table = Table::default();
        for (name, part) in &self.parts {
            say(&format!("== {name}"));
            part.measure(&mut table, self.baseline.as_deref(), &self.sizes)
                .await?;
        }
        if self.quick {
            table.note("--quick: these numbers mean nothing");
        }
        say("done");
        Ok(table)
    }

    /// What was measured, for the documentation.
    fn how(&self) -> String {
        let names: Vec<&str> = self.parts.iter().map(|(name, _)| *name).collect();
        let beside = if self.baseline.is_some() {
            ", beside a baseline"
        } else {
            ""
        };
        format!("{}{beside}; {} rounds", names.join(", "), self.sizes.rounds)
    }
}

/// Measures (c), (d) and (e), in an order in which each part leaves behind what the next one needs.
async fn measure_instances(table: &mut Table, sizes: &Sizes) -> Result<()> {
    let cluster = Cluster::start().await?;

    // A cluster without instances, then the first thousand.
    let mut product = Product::run(&cluster).await?;
    let account = Account::create(&cluster, &product).await?;
    let empty = footprint::settled(&product, sizes).await?;
    let first = convergence::converge(&cluster, &product, &account, "first", sizes.small).await?;
    let small_after = footprint::settled(&product, sizes).await?;
    product.stop().await?;
    let mut product = Product::run(&cluster).await?;
    let small_fresh = footprint::settled(&product, sizes).await?;
    product.stop().await?;

    // (d): the bare client's turns are while nothing else runs.
    let patches = first.patches_each();
    let mut converged = Vec::new();
    let mut product = None;
    for round in 0..sizes.rounds {
        let bare = bare_client::turn(&cluster, patches, sizes).await?;
        let mut running = Product::run(&cluster).await?;
        let prefix = format!("converge{round}");
        let own = convergence::converge(&cluster, &running, &account, &prefix, sizes.converging).await?;
        converged.push((bare, own));
        if round + 1 < sizes.rounds {
            running.stop().await?;
        } else {
            product = Some(running);
        }
    }
    let mut product = product.ok_or("no rounds")?;
    let made = sizes.small + sizes.converging * u64::try_from(sizes.rounds)?;
    let rest = sizes.large - made;
    convergence::converge(&cluster, &product, &account, "rest", rest).await?;
    let large_after = footprint::settled(&product, sizes).await?;
    product.stop().await?;

    // (e), on a new process with all ten thousand instances.
    let mut product = Product::run(&cluster).await?;
    let large_fresh = footprint::settled(&product, sizes).await?;
    let idle = footprint::idle(&product, sizes).await?;
    product.stop().await?;

    // (c) is last, because no other part can use its objects.
    creates::measure(table, &cluster, &account, sizes).await?;
    cluster.stop().await?;

    convergence::report(table, &converged);
    let (small, large) = ([small_fresh, small_after], [large_fresh, large_after]);
    footprint::report(table, sizes, empty, small, large, idle);
    Ok(())
}

/// Prints a line of progress.
fn say(line: &str) {
    static BEGUN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let seconds = BEGUN.get_or_init(std::time::Instant::now).elapsed().as_secs();
    eprintln!("[{seconds:>4} s] {line}");
}
