//! Providers run the servers behind instances. A provider carries out one idempotent step at a time and reports the
//! observed state; it never decides the desired state (decisions, section 4).
//!
//! - [`simulator`]: the embedded default, a pure function of spec, status and time;
//! - [`ipam`]: the addresses of servers;

#![warn(missing_docs)]

pub mod ipam;
pub mod simulator;

use std::{future::Future, sync::Arc};

use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use domain::provider::{
    Addresses, BackupObservation, Deadlines, Observation, ProviderError, Series, Usage, Window,
};
use resources::{Account, Backup, Instance};

/// Called with namespace and name of each Instance whose observation may have changed. Only a hint: a call may be missed, or
/// made for nothing.
pub type Changed = Arc<dyn Fn(&str, &str) + Send + Sync>;

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

    /// Watches the servers until shutdown, and tells of changes. A provider whose servers only change as time passes has
    /// nothing to watch.
    fn run(&self, changed: Changed, shutdown: CancellationToken) -> impl Future<Output = ()> + Send {
        let _ = changed;
        async move { shutdown.cancelled().await }
    }

    /// Reserves addresses before there is a server. Answered from memory, without waiting.
    fn reserve(&self, instance: &Instance) -> Addresses;

    /// Releases the addresses reserved for an Instance that is gone.
    fn release(&self, instance: &Instance);

    /// Removes what is left of an account whose Instances and Backups are all gone. Returns whether nothing is left. The
    /// caller sets a timeout.
    fn forget_account(&self, account: &Account) -> impl Future<Output = Result<bool, ProviderError>> + Send {
        let _ = account;
        std::future::ready(Ok(true))
    }

    /// Advances `status.operation` by one step, if there is one, and returns the server's state. If the operation
    /// restores a backup, `backup` is that backup, unless it has been deleted since the operation began. The caller
    /// sets a timeout.
    fn step(
        &self,
        instance: &Instance,
        backup: Option<&Backup>,
        now: Timestamp,
    ) -> impl Future<Output = Result<Observation, ProviderError>> + Send;

    /// Begins the backup of an instance's disk as it is now, or finds the one that has already begun: a backup is named
    /// by the Backup's UID. What happens to the server later does not change it. The caller sets a timeout.
    fn create_backup(
        &self,
        backup: &Backup,
        instance: &Instance,
        now: Timestamp,
    ) -> impl Future<Output = Result<BackupObservation, ProviderError>> + Send;

    /// The state of a backup of this instance. The caller sets a timeout.
    fn backup_state(
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
