//! Providers make instances real. A provider is asked for one idempotent step at a time and shows what is; it never
//! decides what shall be (decisions, section 4).
//!
//! - [`simulator`]: the embedded default, a pure function of spec, status and time;
//! - [`timings`]: how long operations take and may take.

pub mod simulator;
pub mod timings;

use std::{collections::BTreeMap, future::Future, time::Duration};

use jiff::Timestamp;
use thiserror::Error;

pub use timings::Timings;

use crate::resources::Instance;

/// Why a provider call brought nothing.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ProviderError {
    /// No answer within the time that a call may take.
    #[error("the provider did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The provider answered that it cannot do this now.
    #[error("the provider reports: {0}")]
    Unavailable(String),
    /// The provider answered something that cannot be.
    #[error("the provider's answer makes no sense: {0}")]
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

/// The addresses of a server, as far as they are known.
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
    /// It was asked to be.
    Requested,
    /// Its guest shut itself down.
    GuestShutdown,
    /// It died.
    Crashed,
}

/// Whether a server is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// On.
    On,
    /// Off, and why.
    Off(OffCause),
}

/// How far the operation in `status.operation` is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is none.
    Idle,
    /// Under way.
    Busy,
    /// Finished.
    Done,
    /// The provider cannot do it for now; it is asked again with growing delays. The text says why.
    Failed(String),
}

/// What a provider shows of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Whether the server is on; `None` if there is no server.
    pub power: Option<Power>,
    /// How far the operation is.
    pub progress: Progress,
    /// Addresses, as far as they are known.
    pub addresses: Addresses,
    /// What the provider wants to find in `status.providerState` the next time.
    pub state: BTreeMap<String, String>,
    /// When something is expected to change by itself, if anything is.
    pub recheck_after: Option<Duration>,
}

/// One snapshot of a server's usage (specification, section 2.2). Percentages are 0–100; network counters are bytes since
/// the last start; `None` is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// CPU usage in percent.
    pub cpu_usage: Option<f64>,
    /// Memory usage in percent.
    pub memory_usage: Option<f64>,
    /// Disk usage in percent.
    pub disk_usage: Option<f64>,
    /// Bytes received since the last start.
    pub network_in: Option<i64>,
    /// Bytes sent since the last start.
    pub network_out: Option<i64>,
}

/// Makes servers real. Calls are idempotent: the same call after a crash finds the same server, named by the
/// Instance's UID, and carries on with the same operation.
pub trait Provider: Send + Sync + 'static {
    /// Static name for logs and metrics.
    fn name(&self) -> &'static str;

    /// Addresses that can be promised before there is a server: answered from memory, at once.
    fn reserve(&self, instance: &Instance) -> Addresses;

    /// Forgets what [`Provider::reserve`] keeps for an Instance that is gone.
    fn release(&self, uid: &str);

    /// Carries `status.operation` one step on, if there is one, and shows the server. The caller bounds the time.
    fn step(
        &self,
        instance: &Instance,
        now: Timestamp,
    ) -> impl Future<Output = Result<Observation, ProviderError>> + Send;
}

/// Where the facade gets a server's usage from. Never from the API server: metrics stay out of status.
pub trait UsageSource: Send + Sync + 'static {
    /// The usage at `now`.
    fn usage(
        &self,
        instance: &Instance,
        now: Timestamp,
    ) -> impl Future<Output = Result<Usage, ProviderError>> + Send;
}
