//! `make bench`: what Stellage costs compared with what it is built on, measured in one run against the same API server on
//! loopback.
//!
//! Absolute numbers say more about the machine than about the program. So each number is a ratio of two that were measured
//! within seconds of each other, in turns (A-B-A-B-A-B), with the same load generator on the same cores, and is shown as the
//! median of the rounds with the minimum and maximum. A measurement with only one turn is shown as one number. Clients run
//! in separate processes:
//!
//! - the CPU time of a transition with webhooks (`webhooks::transitions`), which hardly depends on the machine's load,
//!   also compared with another build;
//! - (a), (b) reads through the facade (`reads`), compared with the API server's answer to the same question, and with an
//!   axum handler that just sends the same bytes;
//! - (c) creates through REST (`creates`), compared with posting the same objects to the API server;
//! - creates with a native quota (`quota`), compared with creates without one;
//! - (d) the time until 5,000 instances run (`convergence`), compared with bare clients that write each of them twice, and with
//!   another build;
//! - (e) memory and CPU time of `stellage run` (`memory`);
//! - a client's latency under hostile connections (`attack`), compared with the same client without them;
//! - start-up, memory and locks with very many webhooks and instances (`scale`), compared with a tenth of them; once, since
//!   filling the cluster takes minutes;
//! - the console's list, compared with the same list as JSON (`console`);
//! - the time until instances run, and memory, compared with KWOK (`kwok`);
//! - the samples of monitored instances (`monitoring`), compared with the same instances not monitored;
//! - the time until a process serves and leads, and until another one follows a dead leader, and the requests that fail while replicas
//!   are replaced (`availability`);
//! - the end of a month in many accounts at once (`month_end`);
//! - start-up and memory with very many backups (`backups`), compared with none;
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
mod availability;
mod backups;
mod bare_client;
mod bare_handler;
mod churn;
mod client;
mod cluster;
mod console;
mod convergence;
mod creates;
mod fill;
mod kwok;
mod latencies;
mod load;
mod memory;
mod monitoring;
mod month_end;
mod objects;
mod page;
mod processes;
mod product;
mod quota;
mod reads;
#[path = "../../tests/support/rolling.rs"]
#[allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "the tests' load balancer and clients, where whatever fails ends the run"
)]
mod rolling;
mod samples;
mod scale;
mod sizes;
mod table;
mod webhooks;
mod wire;
mod writes;

use std::{
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use futures::{StreamExt as _, stream};
use sizes::Sizes;
use table::Table;

/// Any error ends the run with its message.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Error>;

/// Number of parts that run concurrently with `--quick`: most of a part is waiting, such as for Kubernetes to count a new
/// kind.
const QUICK_AT_ONCE: usize = 8;
/// Timeout of the whole run.
const LONGEST: Duration = Duration::from_mins(300);
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
    let wanted = Wanted::of(std::env::args().skip(1))?;
    let measured = tokio::time::timeout(wanted.longest(), wanted.measure()).await;
    measured.map_err(|_| format!("not done within {} s", wanted.longest().as_secs()))?
}

/// A part that can be selected by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// (d).
    Convergence,
    /// (c).
    Creates,
    /// (e).
    Memory,
    /// (a) and (b).
    Reads,
    /// The attack.
    Connections,
    Console,
    Quota,
    Scale,
    Kwok,
    Monitoring,
    Availability,
    MonthEnd,
    Backups,
    Webhooks(webhooks::Part),
}

impl Part {
    /// All parts with their names, in the order of measurement.
    const ALL: [(&str, Self); 18] = [
        ("transitions", Self::Webhooks(webhooks::Part::Transitions)),
        ("convergence", Self::Convergence),
        ("creates", Self::Creates),
        ("memory", Self::Memory),
        ("reads", Self::Reads),
        ("console", Self::Console),
        ("connections", Self::Connections),
        ("quota", Self::Quota),
        ("webhooks-sender", Self::Webhooks(webhooks::Part::Sender)),
        ("webhooks-rates", Self::Webhooks(webhooks::Part::Rates)),
        ("webhooks-hostile", Self::Webhooks(webhooks::Part::Hostile)),
        ("webhooks-memory", Self::Webhooks(webhooks::Part::Memory)),
        ("scale", Self::Scale),
        ("kwok", Self::Kwok),
        ("monitoring", Self::Monitoring),
        ("availability", Self::Availability),
        ("month-end", Self::MonthEnd),
        ("backups", Self::Backups),
    ];
    /// Selects all parts whose names begin with this.
    const WEBHOOKS: &str = "webhooks";

    /// Whether the part can compare this build with another one.
    fn has_baseline(self) -> bool {
        matches!(
            self,
            Self::Convergence | Self::Reads | Self::Webhooks(webhooks::Part::Transitions)
        )
    }

    /// Whether the part needs a fresh cluster or minutes of setup, and is therefore measured only once.
    fn is_single(self) -> bool {
        matches!(
            self,
            Self::Memory
                | Self::Scale
                | Self::Monitoring
                | Self::MonthEnd
                | Self::Backups
                | Self::Webhooks(webhooks::Part::Memory)
        )
    }

    async fn measure(self, table: &mut Table, baseline: Option<&Path>, sizes: &Sizes) -> Result<()> {
        match self {
            Self::Convergence => convergence::measure(table, baseline, sizes).await,
            Self::Creates => creates::measure(table, sizes).await,
            Self::Memory => memory::measure(table, sizes).await,
            Self::Reads => reads::measure(table, baseline, sizes).await,
            Self::Console => console::measure(table, sizes).await,
            Self::Connections => attack::measure(table, sizes).await,
            Self::Quota => quota::measure(table, sizes).await,
            Self::Kwok => kwok::measure(table, sizes).await,
            Self::Monitoring => monitoring::measure(table, sizes).await,
            Self::Availability => availability::measure(table, sizes).await,
            Self::MonthEnd => month_end::measure(table, sizes).await,
            Self::Backups => backups::measure(table, sizes).await,
            Self::Scale => scale::measure(table, sizes).await,
            Self::Webhooks(part) => part.measure(table, baseline, sizes).await,
        }
    }
}

/// The command line.
struct Wanted {
    sizes: Sizes,
    quick: bool,
    /// Whether to replace the table in the documentation.
    readme: bool,
    /// Another build of `stellage` to compare with.
    baseline: Option<PathBuf>,
    /// The selected parts, in order of measurement; all parts if none is named.
    parts: Vec<(&'static str, Part)>,
}

impl Wanted {
    fn of(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let (mut quick, mut readme, mut baseline, mut named) = (false, false, None, Vec::new());
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                // Added by `cargo bench`.
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
        if baseline.is_some() && !named.is_empty() && !named.iter().any(|(_, part)| part.has_baseline()) {
            let comparable = Part::ALL.into_iter().filter(|(_, part)| part.has_baseline());
            let comparable: Vec<_> = comparable.map(|(name, _)| name).collect();
            return Err(format!("--baseline is only for {}", comparable.join(", ")).into());
        }
        Ok(Self {
            sizes: if quick { Sizes::QUICK } else { Sizes::FULL },
            quick,
            readme,
            baseline,
            parts: Part::ALL.into_iter().filter(is_wanted).collect(),
        })
    }

    /// Timeout of the whole run.
    fn longest(&self) -> Duration {
        if self.quick { LONGEST_QUICK } else { LONGEST }
    }

    /// Measures each part and prints its table immediately, so that an error in one part loses no earlier
    /// results. With `--quick`, in the order in which they are done.
    async fn measure(&self) -> Result<()> {
        // Whoever works on the checkout meanwhile does not change what is measured.
        let commit = if self.readme { Some(page::commit()?) } else { None };
        let measure = async |(name, part): &(&'static str, Part)| {
            say(&format!("== {name}"));
            let mut table = Table::default();
            let baseline = self.baseline.as_deref();
            part.measure(&mut table, baseline, &self.sizes).await?;
            Ok::<_, Error>((*name, *part, table))
        };
        let at_once = if self.quick { QUICK_AT_ONCE } else { 1 };
        let mut measured = pin!(stream::iter(&self.parts).map(measure).buffer_unordered(at_once));
        while let Some(part) = measured.next().await {
            let (name, part, table) = part?;
            println!("{name}\n{table}");
            if let Some(commit) = &commit {
                let names = Part::ALL.map(|(name, _)| name);
                page::update(&names, name, &table, commit, &self.how(part))?;
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
        let rounds = if part.is_single() { 1 } else { self.sizes.rounds };
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
