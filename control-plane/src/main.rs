//! `control-plane`: a real Kubernetes control plane for Stellage's local run, tests and benchmarks.

mod exec;
mod run;
mod stop;

use clap::{Parser, Subcommand};
use control_plane::{Assets, Error};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

/// A real Kubernetes control plane (etcd, kube-apiserver, kube-controller-manager) on loopback, for Stellage's local
/// run, tests and benchmarks. However a command ends, even by kill -9, its servers are stopped and their data removed.
///
/// The binaries come from the folder in `KUBEBUILDER_ASSETS` if it is set. Otherwise they are put into
/// `${STELLAGE_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/stellage}` once: downloaded from their publishers, or built from pinned Go
/// modules (ten minutes on two cores) where that fails, or `STELLAGE_DOWNLOADS` is `never`.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Find, download or build the binaries, and print their folder
    Build,
    /// Find or build Helm, which the tests of the chart need, and print its path
    Helm,
    /// Find or build promtool and Prometheus, which the tests of metrics, alerts and usage need, and print the path of promtool
    Promtool,
    /// Find or build KubeVirt's virt-api and virt-controller, which the tests of real servers need, and print their folder
    Kubevirt {
        /// The newest version that can be built, for `STELLAGE_KUBEVIRT`
        #[arg(long)]
        newest: bool,
    },
    /// Find external-provisioner, external-snapshotter and a CSI driver, which the tests of backups need, or build them with Helm, and print
    /// their folder
    Storage,
    /// Start a control plane, run a command against it, stop it, and exit with the command's code
    Exec(exec::Arguments),
    /// Start the local run: a control plane with Stellage, with its files in .run/, until Ctrl-C
    Run(run::Settings),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    ControlPlane(#[from] Error),
    #[error("{0}")]
    Other(String),
}

impl Failure {
    /// For `map_err`: adds the file and the action to an I/O error.
    fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Error::File { action, path, source }.into()
    }
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Build => assets().map(|assets| print(assets.folder())),
        Command::Helm => print_found(control_plane::helm(say)),
        Command::Promtool => print_found(control_plane::promtool(say)),
        Command::Kubevirt { newest: false } => print_found(control_plane::kubevirt(say)),
        Command::Kubevirt { newest: true } => print_found(control_plane::newest_kubevirt(say)),
        Command::Storage => print_found(control_plane::storage(say)),
        Command::Exec(arguments) => exec::exec(&arguments),
        Command::Run(settings) => run::run(&settings),
    };
    result.unwrap_or_else(|failure| {
        say(&format!("control-plane: {failure}"));
        ExitCode::FAILURE
    })
}

fn print_found(found: Result<PathBuf, Error>) -> Result<ExitCode, Failure> {
    Ok(print(&found?))
}

/// Prints a path to stdout, for scripts.
fn print(path: &Path) -> ExitCode {
    println!("{}", path.display());
    ExitCode::SUCCESS
}

/// Called before the runtime is started, so that a signal ends a build at once; the watchdog cleans up.
fn assets() -> Result<Assets, Failure> {
    Ok(Assets::find_or_build(say)?)
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::Other(format!("cannot start the runtime: {error}")))
}

/// Prints a line to stderr. A closed pipe is not an error.
fn say(line: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{line}");
}
