//! `make bench`: what Stellage costs compared with what it is built on, measured in one run against the same API server on
//! loopback.
//!
//! Absolute numbers say more about the machine than about the program. So each number is a ratio of two that were measured
//! within seconds of each other, in turns (A-B-A-B-A-B), with the same load generator on the same cores, and is shown as the
//! median of the rounds with the minimum and maximum. A measurement with only one turn is shown as one number. Clients run
//! in separate processes:
//!
//! - `transitions`: the CPU time of a transition, with webhooks and without, which hardly depends on the machine's load; also
//!   compared with another build;
//! - `convergence`: the time until 5,000 instances run, compared with a bare client that writes each of them twice, and with another
//!   build;
//! - `memory`: memory and CPU time of `stellage run`;
//! - `reads`: reads through the facade, compared with the API server's answer to the same question, with an axum handler that just
//!   sends the same bytes, and with another build;
//! - `webhooks-sender`, `webhooks-rates`, `webhooks-hostile`, `webhooks-fairness`: see `webhooks`;
//! - `availability`: the time until a process serves and leads, and until another one follows a dead leader, and the requests that fail
//!   while replicas are replaced;
//! - `invoices`: the month's end of many accounts, and of one with very many lines;
//! - `regions`: servers in a cluster with KubeVirt, compared with a bare client that applies the same objects, and with simulated ones;
//! - `regions-drain`: the nodes of many such servers are drained;
//! - `backup`: a backup of an installation with very many accounts: time, memory and size;
//! - `usage`: asking Prometheus about all servers of a region.
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
mod availability;
mod backup;
mod bare_client;
mod bare_handler;
mod churn;
mod client;
mod cluster;
mod convergence;
mod fill;
mod invoices;
mod latencies;
mod load;
mod memory;
mod objects;
mod page;
mod processes;
mod product;
mod reads;
mod regions;
mod samples;
mod sizes;
#[path = "../../tests/support/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    clippy::enum_glob_use,
    clippy::expect_used,
    clippy::large_futures,
    clippy::panic,
    clippy::similar_names,
    clippy::too_many_lines,
    clippy::unwrap_used,
    reason = "what the tests share, some of which serves here: whatever fails there ends the run"
)]
mod support;
mod table;
mod usage;
mod webhooks;
mod wire;
mod writes;

use std::{
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use clap::{Parser as _, ValueEnum};
use futures::{StreamExt as _, stream};
use sizes::Sizes;
use table::Table;

/// Any error ends the run with its message.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Error>;

/// Number of parts that run concurrently with `--quick`: most of a part is waiting.
const QUICK_AT_ONCE: usize = 8;
/// Timeout of the whole run.
const LONGEST: Duration = Duration::from_mins(240);
/// The same with `--quick`, which is for trying the bench itself.
const LONGEST_QUICK: Duration = Duration::from_mins(3);

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
    let wanted = Arguments::parse();
    let measured = tokio::time::timeout(wanted.longest(), wanted.measure()).await;
    measured.map_err(|_| format!("not done within {} s", wanted.longest().as_secs()))?
}

/// A part that can be selected by name, in the order of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Transitions,
    Convergence,
    Memory,
    Reads,
    WebhooksSender,
    WebhooksRates,
    WebhooksHostile,
    WebhooksFairness,
    Availability,
    Invoices,
    Regions,
    RegionsDrain,
    Usage,
    Backup,
}

impl Part {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether the part can compare this build with another one.
    fn has_baseline(self) -> bool {
        matches!(self, Self::Transitions | Self::Convergence | Self::Reads)
    }

    async fn measure(self, table: &mut Table, baseline: Option<&Path>, sizes: &Sizes) -> Result<()> {
        match self {
            Self::Transitions => webhooks::transitions::measure(table, baseline, sizes).await,
            Self::Convergence => convergence::measure(table, baseline, sizes).await,
            Self::Memory => memory::measure(table, sizes).await,
            Self::Reads => reads::measure(table, baseline, sizes).await,
            Self::WebhooksSender => webhooks::sender::measure(table, sizes).await,
            Self::WebhooksRates => webhooks::rates::measure(table, sizes).await,
            Self::WebhooksHostile => webhooks::hostile::measure(table, sizes).await,
            Self::WebhooksFairness => webhooks::fairness::measure(table, sizes).await,
            Self::Availability => availability::measure(table, sizes).await,
            Self::Invoices => invoices::measure(table, sizes).await,
            Self::Regions => regions::measure(table, sizes).await,
            Self::RegionsDrain => regions::measure_drain(table, sizes).await,
            Self::Usage => usage::measure(table, sizes).await,
            Self::Backup => backup::measure(table, sizes).await,
        }
    }
}

/// Measures what Stellage costs; docs/benchmarks.md describes how.
#[derive(clap::Parser)]
#[command(name = "make bench ARGS=…")]
struct Arguments {
    /// The parts to measure [default: all]
    parts: Vec<Part>,

    /// Try the bench itself; the numbers mean nothing
    #[arg(long)]
    quick: bool,

    /// Replace the tables in docs/benchmarks.md
    #[arg(long, conflicts_with = "quick")]
    readme: bool,

    /// Another build of stellage to compare with: only for transitions, convergence and reads
    #[arg(long, value_name = "PATH", value_parser = program)]
    baseline: Option<PathBuf>,

    /// Added by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The absolute path, since processes are started in other folders.
fn program(path: &str) -> std::io::Result<PathBuf> {
    std::fs::canonicalize(path)
}

impl Arguments {
    const fn sizes(&self) -> &'static Sizes {
        if self.quick { &Sizes::QUICK } else { &Sizes::FULL }
    }

    /// Timeout of the whole run.
    fn longest(&self) -> Duration {
        if self.quick { LONGEST_QUICK } else { LONGEST }
    }

    /// Measures each part and prints its table immediately, so that an error in one part loses no earlier
    /// results. With `--quick`, in the order in which they are done.
    async fn measure(&self) -> Result<()> {
        let is_compared = self.parts.is_empty() || self.parts.iter().any(|part| part.has_baseline());
        if self.baseline.is_some() && !is_compared {
            return Err("--baseline is only for transitions, convergence and reads".into());
        }
        // Whoever works on the checkout meanwhile does not change what is measured.
        let commit = if self.readme { Some(page::commit()?) } else { None };
        let measure = async |part: &Part| {
            say(&format!("== {}", part.name()));
            let mut table = Table::default();
            let baseline = self.baseline.as_deref();
            part.measure(&mut table, baseline, self.sizes()).await?;
            Ok::<_, Error>((*part, table))
        };
        let is_wanted = |part: &&Part| self.parts.is_empty() || self.parts.contains(part);
        let parts = Part::value_variants().iter().filter(is_wanted);
        let at_once = if self.quick { QUICK_AT_ONCE } else { 1 };
        let mut measured = pin!(stream::iter(parts).map(measure).buffer_unordered(at_once));
        while let Some(part) = measured.next().await {
            let (part, table) = part?;
            println!("{}\n{table}", part.name());
            if let Some(commit) = &commit {
                let names: Vec<_> = Part::value_variants().iter().map(|part| part.name()).collect();
                page::update(&names, &part.name(), &table, commit, &self.how(part))?;
            }
        }
        if self.quick {
            println!("--quick: these numbers mean nothing");
        }
        say("done");
        Ok(())
    }

    /// How a part was measured, for the documentation.
    fn how(&self, part: Part) -> String {
        let baseline = self.baseline.as_deref().filter(|_| part.has_baseline());
        let name = baseline
            .and_then(Path::file_name)
            .map(|name| name.to_string_lossy());
        let beside = name.map_or(String::new(), |name| format!("; baseline: {name}"));
        // Memory needs a fresh cluster and minutes of setup, and an hour is billed once.
        let rounds = if matches!(part, Part::Memory | Part::Invoices | Part::Backup) {
            1
        } else {
            self.sizes().rounds
        };
        let plural = if rounds == 1 { "" } else { "s" };
        format!("{rounds} round{plural}{beside}")
    }
}

/// Prints a line of progress.
fn say(line: &str) {
    static BEGUN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let seconds = BEGUN.get_or_init(std::time::Instant::now).elapsed().as_secs();
    eprintln!("[{seconds:>4} s] {line}");
}
