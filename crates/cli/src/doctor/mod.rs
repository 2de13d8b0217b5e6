//! `stellage doctor`: checks a whole installation, says what is wrong and what to do, and collects what a bug report needs.
//!
//! `snapshot` reads the cluster, `checks` evaluates what was read (pure), `rights` is the longest of the
//! checks, and `bundle` writes what was read into an archive, without secrets and personal data. `region` does the same for the
//! cluster of a region.

mod bundle;
mod checks;
mod region;
mod rights;
mod snapshot;

use std::{fmt, path::PathBuf};

use clap::Args;
use serde::Serialize;

use self::{
    region::{RegionSnapshot, TrialArgs},
    snapshot::Snapshot,
};
use super::{
    CliError,
    connect::Cluster,
    objects,
    output::{self, Output},
    region::CatalogueArgs,
};
use runtime::kubeconfig::ClusterArgs;

const EXAMPLES: &str = "\
Examples:
  stellage doctor
  stellage doctor --output json
  stellage doctor --bundle stellage.tar.gz
  kubectl -n stellage-system exec deploy/stellage-controller -- /stellage doctor --region de-fra-1
  stellage doctor --region de-fra-1 --catalogue catalogue.yaml --region-kubeconfig de-fra-1/kubeconfig
  stellage doctor --region de-fra-1 --catalogue catalogue.yaml --test --image debian-13 --timeout 5m";

/// Check an installation, and say what to do.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Namespace of the operator
    #[arg(long, value_name = "NAMESPACE", default_value = "stellage-system", value_parser = objects::name)]
    operator_namespace: String,

    /// A service account of the operator; give both if the REST API and the controllers have one each; by default those with the
    /// label app.kubernetes.io/part-of=stellage
    #[arg(long = "service-account", value_name = "NAME")]
    service_accounts: Vec<String>,

    /// Also write an archive (tar.gz) for a bug report: what was looked at, Events and logs; without secrets, keys, payloads, e-mail
    /// addresses, and paths of receivers
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,

    /// Check the cluster of this region instead, whose servers KubeVirt runs, with the identity that Stellage has there
    #[arg(long, value_name = "CODE", conflicts_with_all = ["operator_namespace", "service_accounts", "bundle"])]
    region: Option<String>,

    #[command(flatten)]
    catalogue: CatalogueArgs,

    #[command(flatten)]
    trial: TrialArgs,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
enum Outcome {
    /// Nothing to do.
    Ok,
    /// Something should be looked after; the installation works.
    Warning,
    /// It could not be looked at.
    Unknown,
    /// The installation does not work as it should.
    Failed,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A check and what it found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Check {
    /// What was looked at.
    name: &'static str,
    outcome: Outcome,
    /// What was found.
    message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Check {
    /// `unread` is what to do if a check could not read its objects.
    fn of(name: &'static str, verdict: Verdict, unread: &str) -> Self {
        let (outcome, message, fix) = match verdict {
            Ok(message) => (Outcome::Ok, message, None),
            Err(problem) => {
                let fix = problem.fix.unwrap_or_else(|| unread.to_owned());
                (problem.outcome, problem.message, Some(fix))
            }
        };
        Self {
            name,
            outcome,
            message,
            fix,
        }
    }
}

/// What was found, if nothing is to do.
type Verdict = Result<String, Problem>;

/// Why a check is not ok.
#[derive(Debug)]
struct Problem {
    outcome: Outcome,
    message: String,
    /// What to do about it; `None` if the objects of the check could not be read.
    fix: Option<String>,
}

/// From the reason why the objects could not be read.
impl<T: fmt::Display + ?Sized> From<&T> for Problem {
    fn from(why: &T) -> Self {
        Self {
            outcome: Outcome::Unknown,
            message: format!("not checked: {why}"),
            fix: None,
        }
    }
}

/// What `--output json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    /// The worst of the checks.
    outcome: Outcome,
    /// The version of this program.
    version: &'static str,
    checks: &'a [Check],
}

impl<'a> Report<'a> {
    fn of(checks: &'a [Check]) -> Self {
        let outcomes = checks.iter().map(|check| check.outcome);
        Self {
            outcome: outcomes.max().unwrap_or(Outcome::Ok),
            version: env!("CARGO_PKG_VERSION"),
            checks,
        }
    }
}

pub(super) async fn run(args: DoctorArgs, which: &ClusterArgs) -> Result<(), CliError> {
    if let Some(code) = &args.region {
        let region = args.catalogue.connect(code).await?;
        let snapshot = RegionSnapshot::take(&region.cluster, &region.settings).await?;
        let mut checks = region::checks(&snapshot, &region.settings);
        if args.trial.test {
            checks.push(region::test(code, &region, &args.trial).await?);
        }
        if args.trial.test_storage {
            checks.push(region::test_storage(code, &region, &args.trial).await?);
        }
        show(&Report::of(&checks), args.output)?;
        return conclude(&checks);
    }
    let cluster = Cluster::of(which).await?;
    let snapshot = Snapshot::take(&cluster, &args.operator_namespace, &args.service_accounts).await?;
    let checks = checks::all(&snapshot);
    let report = Report::of(&checks);
    show(&report, args.output)?;
    if let Some(path) = args.bundle {
        bundle::write(&cluster, &args.operator_namespace, &snapshot, &report, &path).await?;
        output::note(&format!(
            "wrote {}: look through it before you pass it on",
            path.display()
        ));
    }
    conclude(&checks)
}

fn show(report: &Report<'_>, output: Output) -> Result<(), CliError> {
    match output {
        Output::Json => output::json(report)?,
        Output::Text => report.checks.iter().for_each(print),
    }
    Ok(())
}

/// Fails if a check has failed, or could not be made.
fn conclude(checks: &[Check]) -> Result<(), CliError> {
    let (found, of) = (Report::of(checks).outcome, checks.len());
    let count = checks.iter().filter(|check| check.outcome == found).count();
    match found {
        Outcome::Ok | Outcome::Warning => Ok(()),
        Outcome::Unknown => Err(CliError::Unchecked { unchecked: count, of }),
        Outcome::Failed => Err(CliError::Unwell { failed: count, of }),
    }
}

fn print(check: &Check) {
    let mut lines = check.message.lines();
    let first = lines.next().unwrap_or_default();
    output::line(&format!(
        "{:<8} {:<12} {first}",
        check.outcome.as_str(),
        check.name
    ));
    let fix = check
        .fix
        .iter()
        .flat_map(|fix| fix.lines())
        .map(|line| format!("→ {line}"));
    for line in lines.map(ToOwned::to_owned).chain(fix) {
        output::line(&format!("{:22}{line}", ""));
    }
}
