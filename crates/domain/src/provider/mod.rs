//! What a provider reports about servers and backups: the observations that decisions are made from.
//!
//! - [`deadlines`]: how long operations may take; [`timings`]: how long simulated ones take; [`usage`]: the usage of servers.

pub mod deadlines;
pub mod timings;
pub mod usage;

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use thiserror::Error;

pub use self::{
    deadlines::Deadlines,
    timings::Timings,
    usage::{Series, Usage, Window},
};
use resources::{OperationKind, Plan};

/// Key in `status.providerState` under which a provider of real servers puts its name, so that no other takes the server for its own.
/// The simulator puts nothing there.
pub const PROVIDER: &str = "provider";

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
    /// The cluster of a region cannot be reached. What its servers do is unknown, and nothing is concluded from that.
    #[error("region {region} has not answered since {since}; what is asked for is done once it does")]
    Unreachable {
        /// Code of the region.
        region: String,
        /// When it last answered, or when this process began to ask it.
        since: Timestamp,
    },
}

impl ProviderError {
    /// A CamelCase reason for conditions, Events and metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Timeout(_) => "ProviderTimeout",
            Self::Unavailable(_) => "ProviderUnavailable",
            Self::Nonsense(_) => "ProviderNonsense",
            Self::Unreachable { .. } => "RegionUnreachable",
        }
    }

    /// Whether the reason of a condition is that of a failed provider call.
    pub fn is_reason(reason: &str) -> bool {
        matches!(
            reason,
            "ProviderTimeout" | "ProviderUnavailable" | "ProviderNonsense" | "RegionUnreachable"
        )
    }
}

/// The addresses of a server; `None` while unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// IPv4 address.
    pub ipv4: Option<String>,
    /// IPv6 address.
    pub ipv6: Option<String>,
    /// Address in its private network.
    pub private: Option<String>,
}

/// Why a server is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffCause {
    /// A stop was requested.
    Requested,
    /// Its guest shut itself down.
    GuestShutdown,
    /// It crashed.
    Crashed,
    /// Its platform shut it down, for example to drain a node, and it is to be started again.
    Interrupted,
    /// Somebody stopped it behind our back. It stays off, because somebody meant it.
    Outside,
}

/// Whether a server is powered on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// On.
    On,
    /// Off, and why.
    Off(OffCause),
}

/// What is wrong with a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// CamelCase reason, for conditions and Events.
    pub reason: &'static str,
    /// Message for the account holder.
    pub message: String,
}

impl Trouble {
    /// An operation of this kind cannot be done now; the reason of its kind.
    pub const fn failed(kind: OperationKind, message: String) -> Self {
        let reason = match kind {
            OperationKind::Create => "ProvisioningFailed",
            OperationKind::Start => "StartFailed",
            OperationKind::Stop => "StopFailed",
            OperationKind::PowerOff => "PowerOffFailed",
            OperationKind::Reboot => "RebootFailed",
            OperationKind::Resize => "ResizeFailed",
            OperationKind::Rebuild => "RebuildFailed",
            OperationKind::Delete => "DeleteFailed",
        };
        Self { reason, message }
    }
}

/// The progress of the operation in `status.operation`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// There is no operation.
    #[default]
    Idle,
    /// In progress.
    Busy,
    /// Finished.
    Done,
    /// The provider cannot do it now, for this reason. It is asked again with growing delays.
    Failed(Trouble),
}

/// Something that is wrong with a server although no operation has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It is shown in the condition Ready.
    Told(Trouble),
    /// It makes the state of the instance `error` as well, until it is over.
    Error(Trouble),
}

/// The observed state of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Whether the server is powered on; `None` if there is no server.
    pub power: Option<Power>,
    /// The server's plan, if the provider knows it. It may differ from `status.plan` if an operation was dropped after the provider
    /// had carried it out.
    pub plan: Option<Plan>,
    /// Why the provider has power-cycled the server by itself since the state that `status.providerState` stands for, if it has.
    pub restarted: Option<OffCause>,
    /// What is wrong with the server, if anything is.
    pub notice: Option<Notice>,
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
