//! The commands, against the cluster of the current kubeconfig: for administrators accounts, keys and CRDs, for everybody who
//! has kubectl instances, webhooks and deliveries.
//!
//! A command acts as its user, on the objects themselves: what it may do is what kubectl may do. [`objects`] finds them by name
//! or id, [`change`] asks for an operation in one guarded patch, [`wait`] waits until an operation is done, [`output`] prints for people and for scripts.

mod account;
mod change;
pub mod completions;
mod connect;
mod crds;
mod delivery;
mod duration;
mod instance;
mod key;
mod listen;
mod objects;
mod output;
mod program;
mod secret;
mod wait;
mod webhook;

use std::path::PathBuf;

use clap::Subcommand;
use thiserror::Error;

pub use crds::render_crd;
pub use program::{PLUGIN, program};

/// The exit code after Ctrl-C, as shells have it: 128 and the number of SIGINT.
const INTERRUPTED: u8 = 130;

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List, show and operate instances
    #[command(subcommand, visible_alias = "instances", alias = "inst")]
    Instance(instance::InstanceCommand),
    /// List, show, test and enable webhooks, and rotate their secrets
    #[command(subcommand, visible_alias = "webhooks", alias = "wh")]
    Webhook(webhook::WebhookCommand),
    /// List and show what was sent to webhooks, and send it again
    #[command(subcommand, visible_alias = "deliveries", alias = "dlv")]
    Delivery(delivery::DeliveryCommand),
    /// Create, list and show accounts
    #[command(subcommand)]
    Account(account::AccountCommand),
    /// Create, list and revoke API keys
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Print the events of an account as they happen, and pass them on to a receiver
    ///
    /// For those who write a receiver on a laptop: what is passed on is signed as a delivery is. Events go to stdout, one a
    /// line; everything else goes to stderr. Ctrl-C ends it.
    Listen(listen::ListenArgs),
    /// Print the CRDs, for `kubectl apply -f -`
    Crds(crds::CrdsArgs),
}

/// Runs one command to its end. Results go to stdout, everything else to stderr.
pub async fn run(command: Command) -> Result<(), CliError> {
    match command {
        Command::Instance(command) => instance::run(command).await,
        Command::Webhook(command) => webhook::run(command).await,
        Command::Delivery(command) => delivery::run(command).await,
        Command::Account(command) => account::run(command).await,
        Command::Key(command) => key::run(command).await,
        Command::Listen(args) => listen::run(args).await,
        Command::Crds(args) => crds::run(&args),
    }
}

/// A command that failed. The message says what to do about it.
#[derive(Debug, Error)]
pub enum CliError {
    /// There is no usable kubeconfig.
    #[error(
        "no usable kubeconfig: {0}\nSet KUBECONFIG to the kubeconfig of a cluster administrator, or put it at ~/.kube/config."
    )]
    Kubeconfig(String),
    /// No answer.
    #[error(
        "cannot reach the API server at {url}: {reason}\nIs the cluster running, and does `kubectl version` reach it with the same kubeconfig?"
    )]
    Unreachable {
        /// The API server.
        url: String,
        /// What went wrong.
        reason: String,
    },
    /// The API server does not know the kind.
    #[error(
        "this cluster does not know the kinds of stellage.dev\nInstall them: {stellage} crds --with-policies | kubectl apply --server-side -f -",
        stellage = program()
    )]
    CrdsMissing,
    /// Not allowed.
    #[error(
        "not allowed to {doing}: {reason}\nUse the kubeconfig of a user who may do so; `kubectl auth whoami` shows who you are."
    )]
    Forbidden {
        /// What was being done.
        doing: String,
        /// The API server's own words.
        reason: String,
    },
    /// Any other refusal.
    #[error("cannot {doing}: {reason}")]
    Refused {
        /// What was being done.
        doing: String,
        /// The API server's own words.
        reason: String,
    },
    /// There is no such account.
    #[error(
        "there is no account {0}\n`{stellage} account list` shows those that are there; `{stellage} account create {0} --email E` makes it.",
        stellage = program()
    )]
    NoAccount(String),
    /// The account is there already.
    #[error(
        "account {0} already exists\n`{stellage} account show {0}` shows it; `kubectl edit account {0}` changes it; or choose another name.",
        stellage = program()
    )]
    AccountExists(String),
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
        "account {account} has no key {name}; maybe it is revoked already\n`{stellage} key list --account {account}` shows those that are there.",
        stellage = program()
    )]
    NoKey {
        /// The account.
        account: String,
        /// The key's name.
        name: String,
    },
    /// There is a key of that name.
    #[error(
        "account {account} already has a key {name}\nChoose another --name, or leave it out for a random one; a key is never shown twice, so to replace this one: {stellage} key revoke {name} --account {account}",
        stellage = program()
    )]
    KeyExists {
        /// The account.
        account: String,
        /// The key's name.
        name: String,
    },
    /// There is no such object.
    #[error(
        "there is no {word} {name} in namespace {namespace}\n`{list}` shows those that are there; --namespace (-n) names another namespace."
    )]
    NoObject {
        /// The kind.
        word: &'static str,
        /// The name or id that was given.
        name: String,
        /// Where it was looked for.
        namespace: String,
        /// The command that lists what is there.
        list: String,
    },
    /// There is no such namespace.
    #[error(
        "there is no namespace {0}\nName the account's with --namespace (-n), or as the default of your kubeconfig's context: kubectl config set-context --current --namespace=NAMESPACE"
    )]
    NoNamespace(String),
    /// The object is not in a state in which that can be done.
    #[error("{what} {why}\n{fix}")]
    WrongState {
        /// The object.
        what: String,
        /// The state that it is in, and those that are needed.
        why: String,
        /// What to do.
        fix: String,
    },
    /// An object is changed all the time.
    #[error("{0} is changed by others all the time, so that no change of it holds; try again")]
    Contended(String),
    /// What was waited for failed.
    #[error("{what} {why}\n`{look}` shows more.")]
    Failed {
        /// The object.
        what: String,
        /// What became of it.
        why: String,
        /// The command that shows it.
        look: String,
    },
    /// What was waited for takes longer.
    #[error(
        "{what} is not done after {seconds} s; last seen: {last}\nIt goes on by itself: `{look}` shows how far it is; --timeout waits longer."
    )]
    TimedOut {
        /// The object.
        what: String,
        /// How long it was waited for.
        seconds: u64,
        /// What was seen last.
        last: String,
        /// The command that shows it.
        look: String,
    },
    /// Ctrl-C while something was waited for.
    #[error("stopped waiting for {what}; what was asked for goes on: `{look}` shows how far it is")]
    Interrupted {
        /// The object.
        what: String,
        /// The command that shows it.
        look: String,
    },
    /// There is nothing to check a receiver's certificate against.
    #[error(
        "cannot load the root certificates of this machine: {0}\nInstall them (Debian: apt-get install ca-certificates), or name a PEM file with SSL_CERT_FILE."
    )]
    Certificates(String),
    /// The HTTP client cannot be set up.
    #[error("cannot set up the HTTP client: {0}")]
    HttpClient(String),
    /// A file that a flag names cannot be read.
    #[error("{flag}: cannot read {path}: {source}", path = path.display())]
    Unreadable {
        /// The flag.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What a flag gives is not valid.
    #[error("{flag}: {why}")]
    Value {
        /// The flag.
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
    /// Something cannot be shown.
    #[error("cannot render: {0}")]
    Render(String),
}

impl CliError {
    /// What the program exits with.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted { .. } => INTERRUPTED,
            _ => 1,
        }
    }
}
