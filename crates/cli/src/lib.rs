//! The commands, which work on the cluster of the current kubeconfig, or that of `--context` and `--kubeconfig`: accounts, keys and
//! CRDs for administrators; instances, backups, webhooks and deliveries for everybody who can use kubectl.
//!
//! A command changes the objects directly, with its user's own permissions, as kubectl does. `objects` finds them by name or id,
//! `change` requests an operation with a guarded patch, `wait` waits until it is done, and `output` prints for people and
//! scripts. There is no command for what kubectl does as well: `kubectl get` lists and `kubectl describe` shows.

mod account;
mod backup;
mod change;
pub mod completions;
mod connect;
mod console;
mod crd_differences;
mod crds;
mod delivery;
mod doctor;
mod duration;
mod events;
mod http;
mod instance;
mod invoice;
mod key;
mod listen;
mod objects;
mod orphans;
mod output;
mod program;
mod region;
mod secret;
mod serial;
mod transfer;
mod uninstall;
mod wait;
mod webhook;

use std::path::PathBuf;

use clap::Subcommand;
use thiserror::Error;

pub use crds::render_crd;
pub use output::printable;
pub use program::{PLUGIN, program};

use runtime::kubeconfig::ClusterArgs;

/// The exit code after Ctrl-C, by the convention of shells: 128 plus the number of SIGINT.
const INTERRUPTED: u8 = 130;

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Operate instances
    #[command(subcommand, visible_alias = "instances", alias = "inst")]
    Instance(instance::InstanceCommand),
    /// Make backups of instances
    #[command(subcommand, visible_alias = "backups", alias = "bkp")]
    Backup(backup::BackupCommand),
    /// Test and enable webhooks, and rotate their secrets
    #[command(subcommand, visible_alias = "webhooks", alias = "wh")]
    Webhook(webhook::WebhookCommand),
    /// Send deliveries to webhooks again
    #[command(subcommand, visible_alias = "deliveries", alias = "dlv")]
    Delivery(delivery::DeliveryCommand),
    /// Create accounts
    #[command(subcommand)]
    Account(account::AccountCommand),
    /// List and show invoices, issue them early, and take back what they bill
    #[command(subcommand, visible_alias = "invoices", alias = "inv")]
    Invoice(invoice::InvoiceCommand),
    /// Create and revoke API keys
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Open the serial console of an instance, or make sign-in links for the customer console
    Console(console::ConsoleArgs),
    /// Print the events of an account as they happen, and forward them to a receiver
    ///
    /// For developing a receiver on a laptop: forwarded events are signed like deliveries. Events go to stdout, one per line;
    /// everything else goes to stderr. Ctrl-C ends it.
    Listen(listen::ListenArgs),
    /// Print the events of an account from its log, oldest first
    ///
    /// The log has the events of the last 24 hours, unless the operator is set to log none. Events go to stdout, one per line;
    /// everything else goes to stderr.
    Events(events::EventsArgs),
    /// Check an installation, and say what to do
    ///
    /// Exits with 1 if something is broken, and with 2 if nothing is but something could not be checked.
    Doctor(doctor::DoctorArgs),
    /// List servers in the cluster of a region that belong to no instance, and delete them with --delete
    ///
    /// Of all servers that have the label of this installation there, those that were made for an Instance that this cluster does
    /// not have. If instances were lost, restore them first: they find their servers again.
    Orphans(orphans::OrphansArgs),
    /// Write all accounts and what they have into a file, to move or restore an installation
    ///
    /// Instances with their user data, backups, webhooks with their secrets, deliveries, logs, keys, invoices, and what the operator's
    /// replicas share. Stop the operator first: kubectl scale deployment --all --replicas=0 -n stellage-system. The file has the user
    /// data and the signing secrets of all accounts, so it is made readable for you alone: keep it so.
    Export(transfer::ExportArgs),
    /// Create all that is in a file of `export` in an empty installation
    ///
    /// The operator there goes on where the other one stopped: with the same ids, keys, addresses and pending deliveries. CRDs,
    /// policies and rights must be installed, no operator may run, and there must be no accounts yet. Until the import is
    /// finished, no operator can become the leader; if it is interrupted, run it again. You need all rights in the cluster.
    Import(transfer::ImportArgs),
    /// Back up the installation, and restore it
    #[command(subcommand)]
    Installation(transfer::InstallationCommand),
    /// Remove all that Stellage has in the cluster, or what it has of one account
    ///
    /// Says what that is, and asks. All objects go without their finalizers, which nobody acts on any more, so servers stay where they are; refused
    /// while there are instances or invoices, unless with --force. What Helm has installed is left to `helm uninstall`.
    Uninstall(uninstall::UninstallArgs),
    /// Print the CRDs, for `kubectl apply --server-side -f -`
    Crds(crds::CrdsArgs),
}

/// Runs one command to its end. Results go to stdout, everything else to stderr.
pub async fn run(command: Command, which: &ClusterArgs) -> Result<(), CliError> {
    match command {
        Command::Instance(command) => instance::run(command, which).await,
        Command::Backup(command) => backup::run(command, which).await,
        Command::Webhook(command) => webhook::run(command, which).await,
        Command::Delivery(command) => delivery::run(command, which).await,
        Command::Account(command) => account::run(command, which).await,
        Command::Invoice(command) => invoice::run(command, which).await,
        Command::Key(command) => key::run(command, which).await,
        Command::Console(args) => console::run(args, which).await,
        Command::Listen(args) => listen::run(args, which).await,
        Command::Events(args) => events::run(args, which).await,
        Command::Doctor(args) => doctor::run(args, which).await,
        Command::Orphans(args) => orphans::run(args, which).await,
        Command::Export(args) => transfer::export(args, which).await,
        Command::Import(args) => transfer::import(args, which).await,
        Command::Installation(command) => transfer::installation(command, which).await,
        Command::Uninstall(args) => uninstall::run(args, which).await,
        Command::Crds(args) => crds::run(&args),
    }
}

/// Why a command failed. The message also says how to fix it.
#[derive(Debug, Error)]
pub enum CliError {
    /// There is no usable kubeconfig.
    #[error(
        "no usable kubeconfig: {0}\nSet KUBECONFIG to the kubeconfig of a cluster administrator, or put it at ~/.kube/config."
    )]
    Kubeconfig(String),
    /// The API server cannot be reached.
    #[error(
        "cannot reach the API server at {url}: {reason}\nIs the cluster running, and does `kubectl version` reach it with the same kubeconfig?"
    )]
    Unreachable {
        /// The API server.
        url: String,
        /// What went wrong.
        reason: String,
    },
    /// The CRDs are not installed.
    #[error(
        "this cluster does not know the kinds of stellage.dev\nInstall the chart; or, without Helm: {stellage} crds --with-policies --operator-namespace stellage-system | kubectl apply --server-side -f -",
        stellage = program()
    )]
    CrdsMissing,
    /// The user is not allowed to do it.
    #[error(
        "not allowed to {doing}: {reason}\nUse the kubeconfig of a user with this right; `kubectl auth whoami` shows who you are."
    )]
    Forbidden {
        /// What was being done.
        doing: String,
        /// The API server's message.
        reason: String,
    },
    /// Any other refusal.
    #[error("cannot {doing}: {reason}")]
    Refused {
        /// What was being done.
        doing: String,
        /// The API server's message.
        reason: String,
    },
    /// There is no such account.
    #[error(
        "there is no account {0}\n`kubectl get accounts` lists the accounts; `{stellage} account create {0} --email E` creates it.",
        stellage = program()
    )]
    NoAccount(String),
    /// The account is not ready, and why.
    #[error("account {name} {what}")]
    NotReady {
        /// The account.
        name: String,
        /// What is wrong, and what to do.
        what: String,
    },
    /// There is no such key.
    #[error(
        "account {account} has no key {name}; perhaps it was already revoked\n`kubectl get apikeys -n {namespace}` lists its keys."
    )]
    NoKey {
        account: String,
        /// The key's name.
        name: String,
        /// The account's namespace.
        namespace: String,
    },
    /// There is no such object.
    #[error(
        "there is no {word} {name} in namespace {namespace}\n`{list}` lists those that exist; --namespace (-n) selects another namespace."
    )]
    NoObject {
        /// The kind.
        word: String,
        /// The name or id that was given.
        name: String,
        namespace: String,
        /// The command that lists the objects.
        list: String,
    },
    /// There is no such namespace.
    #[error(
        "there is no namespace {0}\nPass the account's namespace with --namespace (-n), or make it the default of your kubeconfig's context: kubectl config set-context --current --namespace=NAMESPACE"
    )]
    NoNamespace(String),
    /// The object's state does not allow the operation.
    #[error("{what} {why}\n{fix}")]
    WrongState {
        /// The object.
        what: String,
        /// Its state, and the allowed ones.
        why: String,
        /// What to do.
        fix: String,
    },
    /// The operation waited for has failed.
    #[error("{what} {why}\n`{look}` shows details.")]
    Failed {
        /// The object.
        what: String,
        /// Why it failed.
        why: String,
        /// The command that shows it.
        look: String,
    },
    /// The operation waited for takes longer than the timeout.
    #[error(
        "{what} is not done after {seconds} s; last seen: {last}\nThe operation continues; `{look}` shows its progress."
    )]
    TimedOut {
        /// The object.
        what: String,
        /// The timeout.
        seconds: u64,
        /// What was seen last.
        last: String,
        /// The command that shows it.
        look: String,
    },
    /// Ctrl-C while waiting.
    #[error("stopped waiting for {what}; the operation continues, and `{look}` shows its progress")]
    Interrupted {
        /// The object.
        what: String,
        /// The command that shows it.
        look: String,
    },
    /// A file that a flag names cannot be read.
    #[error("{flag}: cannot read {path}: {source}", path = path.display())]
    Unreadable {
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The value of a flag is not valid.
    #[error("{flag}: {why}")]
    Value {
        flag: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A file cannot be written.
    #[error("cannot write {path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Ctrl-C while `doctor` tests a region.
    #[error("the test was interrupted; {left}")]
    TestInterrupted {
        /// What is left of it.
        left: String,
    },
    /// Checks of `doctor` have failed; it has printed them.
    #[error("{failed} of {of} checks failed")]
    Unwell {
        /// The checks that failed.
        failed: usize,
        /// All checks.
        of: usize,
    },
    /// Checks of `doctor` could not be made, and no others have failed; it has printed them.
    #[error("{unchecked} of {of} checks could not be made")]
    Unchecked {
        /// The checks that could not be made.
        unchecked: usize,
        /// All checks.
        of: usize,
    },
    /// What its message says.
    #[error("{0}")]
    Plain(String),
    /// The output cannot be serialized.
    #[error("cannot serialize the output: {0}")]
    Render(String),
}

impl CliError {
    /// The program's exit code.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted { .. } | Self::TestInterrupted { .. } => INTERRUPTED,
            Self::Unchecked { .. } => 2,
            _ => 1,
        }
    }
}
