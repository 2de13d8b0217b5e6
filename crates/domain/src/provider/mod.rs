//! What a provider reports about servers and backups: the observations that decisions are made from.
//!
//! - [`timings`]: durations and deadlines of operations; [`usage`]: the usage of servers.

pub mod timings;
pub mod usage;

use std::{collections::BTreeMap, time::Duration};

use thiserror::Error;

pub use self::{
    timings::Timings,
    usage::{Series, Usage, Window},
};
use resources::Plan;

/// Why a provider call failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ProviderError {
    /// No response within the timeout of a call.
    #[error("the provider did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The provider reported that it cannot do this now.
    #[error("the provider reports: {0}")]
    Unavailable(String),
    /// The provider's answer contradicts its interface.
    #[error("unexpected answer from the provider: {0}")]
    Nonsense(String),
}

impl ProviderError {
    /// A CamelCase reason for conditions, Events and metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Timeout(_) => "ProviderTimeout",
            Self::Unavailable(_) => "ProviderUnavailable",
            Self::Nonsense(_) => "ProviderNonsense",
        }
    }
}

/// The addresses of a server; `None` while unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// IPv4 address.
    pub ipv4: Option<String>,
    /// IPv6 address.
    pub ipv6: Option<String>,
}

/// Why a server is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffCause {
    /// A stop was requested.
    Requested,
    /// Its guest shut itself down.
    GuestShutdown,
    Crashed,
}

/// Whether a server is powered on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// On.
    On,
    /// Off, and why.
    Off(OffCause),
}

/// The progress of the operation in `status.operation`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is no operation.
    Idle,
    /// In progress.
    Busy,
    /// Finished.
    Done,
    /// The provider cannot do it now, for this reason. It is asked again with growing delays.
    Failed(String),
}

/// The observed state of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Whether the server is powered on; `None` if there is no server.
    pub power: Option<Power>,
    /// The server's plan, if the provider knows it. It may differ from `status.plan` if an operation was dropped after the provider
    /// had carried it out.
    pub plan: Option<Plan>,
    /// The progress of the current operation.
    pub progress: Progress,
    /// Known addresses.
    pub addresses: Addresses,
    /// The provider's own data, to be stored in `status.providerState`.
    pub state: BTreeMap<String, String>,
    /// Time until something is expected to change by itself, if anything is.
    pub recheck_after: Option<Duration>,
}

/// The progress of a backup.
#[derive(Clone, Debug, PartialEq)]
pub enum BackupProgress {
    /// The provider does not know it: it has not begun.
    Unknown,
    /// In progress.
    Busy,
    /// Finished, with this size in GB.
    Done { size_gb: f64 },
    /// It cannot be made.
    Failed {
        /// Why, for programs: a word in lower case.
        code: &'static str,
        /// Why, for people.
        message: String,
    },
}

/// The observed state of one backup.
#[derive(Clone, Debug, PartialEq)]
pub struct BackupObservation {
    pub progress: BackupProgress,
    /// The provider's own data, to be stored in `status.providerState`.
    pub state: BTreeMap<String, String>,
    /// Time until something is expected to change by itself, if anything is.
    pub recheck_after: Option<Duration>,
}
