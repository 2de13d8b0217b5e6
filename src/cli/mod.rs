//! The commands for administrators: accounts, keys, events and CRDs, against the cluster of the current kubeconfig.

mod account;
mod connect;
mod crds;
mod duration;
mod key;
mod listen;
mod output;

use std::path::PathBuf;

use clap::Subcommand;
use thiserror::Error;

pub use crds::render_crd;

/// The commands for administrators.
#[derive(Debug, Subcommand)]
pub enum Command {
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
        "this cluster does not know the kinds of stellage.dev\nInstall them: stellage crds --with-policies | kubectl apply --server-side -f -"
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
        "there is no account {0}\n`stellage account list` shows those that are there; `stellage account create {0} --email E` makes it."
    )]
    NoAccount(String),
    /// The account is there already.
    #[error(
        "account {0} already exists\n`stellage account show {0}` shows it; `kubectl edit account {0}` changes it; or choose another name."
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
        "account {account} has no key {name}; maybe it is revoked already\n`stellage key list --account {account}` shows those that are there."
    )]
    NoKey {
        /// The account.
        account: String,
        /// The key's name.
        name: String,
    },
    /// There is a key of that name.
    #[error(
        "account {account} already has a key {name}\nChoose another --name, or leave it out for a random one; a key is never shown twice, so to replace this one: stellage key revoke {name} --account {account}"
    )]
    KeyExists {
        /// The account.
        account: String,
        /// The key's name.
        name: String,
    },
    /// There is nothing to check a receiver's certificate against.
    #[error(
        "cannot load the root certificates of this machine: {0}\nInstall them (Debian: apt-get install ca-certificates), or name a PEM file with SSL_CERT_FILE."
    )]
    Certificates(String),
    /// The HTTP client cannot be set up.
    #[error("cannot set up the HTTP client: {0}")]
    HttpClient(String),
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
