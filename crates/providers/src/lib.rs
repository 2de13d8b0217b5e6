//! Providers run the servers behind instances. A provider carries out one idempotent step at a time and reports the
//! observed state; it never decides the desired state (decisions, section 4).
//!
//! - [`simulator`]: the embedded default, a pure function of spec, status and time;
//! - [`kubevirt`]: virtual machines in a cluster with KubeVirt;
//! - [`Regions`]: the provider of the process, in which each region has one of these;
//! - [`ipam`]: the addresses of servers;
//! - [`consoles`]: the consoles of servers; `serial_line`: that of a simulated one.

#![warn(missing_docs)]

pub mod consoles;
pub mod ipam;
pub mod kubevirt;
mod regions;
mod serial_line;
pub mod simulator;

use std::{future::Future, sync::Arc};

use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use domain::{
    provider::{
        Addresses, BackupObservation, Deadlines, Observation, Progress, ProviderError, Series, Trouble,
        Usage, Window,
    },
    user_data::UserData,
};
use resources::{Backup, Instance, PrivateNetwork};

pub use self::regions::{Clusters, RegionalUsage, Regions};

/// The Instances whose servers a provider runs.
pub trait Instances: Send + Sync + 'static {
    /// The observation of the server of this Instance may have changed. Only a hint: a call may be missed, or made for nothing.
    fn changed(&self, namespace: &str, name: &str);

    /// All of them.
    fn all(&self) -> Vec<Arc<Instance>>;

    /// Whether there is this Instance, first created with this UID.
    fn has(&self, namespace: &str, name: &str, uid: &str) -> bool;
}

/// What a provider needs to know for one step.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The instance.
    pub instance: &'a Instance,
    /// Public id of its account; empty if there is no Account.
    pub account: &'a str,
    /// The user data, if the operation may install the server and there is any; or why it cannot be had. Without it, no server is
    /// installed, but one that is installed already is made to run.
    pub user_data: Result<Option<&'a UserData>, &'a Trouble>,
    /// The Backup that the operation in progress restores, if it restores one and that is there.
    pub restore: Option<&'a Backup>,
    /// The private network that the instance names, if it names one and that is there.
    pub network: Option<Membership<'a>>,
    /// The time.
    pub now: Timestamp,
}

/// The private network of an instance.
#[derive(Clone, Copy, Debug)]
pub struct Membership<'a> {
    /// The network.
    pub network: &'a PrivateNetwork,
    /// The address of the server there; `None` where the network gives it by itself.
    pub address: Option<&'a str>,
}

/// Runs servers. Calls are idempotent: the same call after a crash finds the same server, named by the UID that the
/// Instance was first created with ([`origin`](resources::origin)), and continues the same operation, named by
/// its kind and `startedAt`. A creation whose end was never stored may be repeated with another plan or image: the
/// server that it made is then changed to these, or replaced. Once a server has been deleted, no late call makes
/// another one for the same UID.
pub trait Provider: Send + Sync + 'static {
    /// Name of what runs the servers of a region, for metrics.
    fn name(&self, region: &str) -> &'static str;

    /// How long operations may take in a region. A provider bounds the soft part of a reboot, resize or rebuild itself.
    fn deadlines(&self, region: &str) -> Deadlines;

    /// Tells of changes until shutdown. A provider whose servers only change as time passes has nothing to tell.
    fn run(
        &self,
        instances: Arc<dyn Instances>,
        shutdown: CancellationToken,
    ) -> impl Future<Output = ()> + Send {
        let _ = instances;
        async move { shutdown.cancelled().await }
    }

    /// Reserves addresses before there is a server. Answered from memory, without waiting.
    fn reserve(&self, instance: &Instance) -> Addresses;

    /// Releases the addresses reserved for an Instance that is gone.
    fn release(&self, instance: &Instance);

    /// Advances `status.operation` by one step, if there is one, and returns the server's state. The caller sets a timeout.
    fn step(&self, step: Step<'_>) -> impl Future<Output = Result<Observation, ProviderError>> + Send;

    /// Makes a private network, as far as that is left to the provider, and says whether servers can be attached to it. `account` is the
    /// public id of its account. The caller sets a timeout.
    fn make_network(
        &self,
        network: &PrivateNetwork,
        account: &str,
    ) -> impl Future<Output = Result<Progress, ProviderError>> + Send {
        let _ = (network, account);
        async { Ok(Progress::Done) }
    }

    /// Removes what [`make_network`](Self::make_network) has made, and says whether it is gone. The caller sets a timeout.
    fn remove_network(
        &self,
        network: &PrivateNetwork,
    ) -> impl Future<Output = Result<Progress, ProviderError>> + Send {
        let _ = network;
        async { Ok(Progress::Done) }
    }

    /// Begins the backup of an instance's disk as it is now, or finds the one that has already begun, and says how far it is: a backup
    /// is named by the Backup's UID. What happens to the server later does not change it. The caller sets a timeout.
    fn create_backup(
        &self,
        backup: &Backup,
        instance: &Instance,
        now: Timestamp,
    ) -> impl Future<Output = Result<BackupObservation, ProviderError>> + Send;

    /// Deletes a backup, finished or not; it need not exist. Once this has succeeded, none of its data is left, and no
    /// late call makes another one for the same UID. The caller sets a timeout.
    fn delete_backup(&self, backup: &Backup) -> impl Future<Output = Result<(), ProviderError>> + Send;
}

/// A source of the usage of servers. Every replica asks it; the caller sets a timeout.
pub trait UsageSource: Send + Sync + 'static {
    /// The newest usage.
    fn usage<'a>(
        &'a self,
        instance: &'a Instance,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Usage, ProviderError>>;

    /// The usage over a window that ends now; `None` if no metrics system keeps it.
    fn series<'a>(
        &'a self,
        instance: &'a Instance,
        window: Window,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Option<Series>, ProviderError>>;
}
