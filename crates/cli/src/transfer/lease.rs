//! The Lease of the controllers: its holder may change anything at any time, so nobody may hold it while an installation is exported or
//! imported.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, api::PostParams};
use tokio::time::{Instant, sleep};

use crate::{CliError, connect::Cluster, output::note};
use runtime::lease::{LEASE_NAME, LeaseTimes};

/// What the holder is called while an import is under way, before the id of the export.
pub(crate) const IMPORT: &str = "stellage-import-";

/// The Lease of an installation.
pub(crate) struct Leadership<'a> {
    cluster: &'a Cluster,
    api: Api<Lease>,
    namespace: &'a str,
    lease: Option<Lease>,
}

impl<'a> Leadership<'a> {
    pub(crate) async fn read(cluster: &'a Cluster, namespace: &'a str) -> Result<Self, CliError> {
        let api: Api<Lease> = Api::namespaced(cluster.client.clone(), namespace);
        let lease = cluster.call("read the Lease", api.get_opt(LEASE_NAME)).await?;
        Ok(Self {
            cluster,
            api,
            namespace,
            lease,
        })
    }

    fn spec(&self) -> Option<&LeaseSpec> {
        self.lease.as_ref()?.spec.as_ref()
    }

    /// Who holds it.
    pub(crate) fn holder(&self) -> Option<&str> {
        let holder = self.spec()?.holder_identity.as_deref();
        holder.filter(|holder| !holder.is_empty())
    }

    /// The export that is being imported, if an import holds it.
    pub(super) fn import(&self) -> Option<&str> {
        self.holder()?.strip_prefix(IMPORT)
    }

    /// The version of the Lease.
    pub(super) fn version(&self) -> Option<String> {
        self.lease.as_ref()?.metadata.resource_version.clone()
    }

    /// Waits until the Lease of a process that died has expired. Returns whether it is free; not if its holder lives.
    pub(crate) async fn is_free(&mut self) -> Result<bool, CliError> {
        let Some(holder) = self.holder().map(str::to_owned) else {
            return Ok(true);
        };
        let promised = self.spec().and_then(|spec| spec.lease_duration_seconds);
        let promised = promised.and_then(|seconds| u64::try_from(seconds).ok());
        let promised = promised.unwrap_or(LeaseTimes::DEFAULT_SECONDS.into());
        note(&format!(
            "looking for up to {promised} s whether {holder}, which holds the Lease {LEASE_NAME}, still runs"
        ));
        let (version, end) = (self.version(), Instant::now() + Duration::from_secs(promised));
        while Instant::now() < end {
            sleep(Duration::from_millis(500)).await;
            *self = Self::read(self.cluster, self.namespace).await?;
            if self.holder().is_none() {
                return Ok(true);
            }
            if self.version() != version {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes the Lease for an import. It does not expire: no operator may work on what is half imported.
    pub(super) async fn take(&mut self, id: &str) -> Result<(), CliError> {
        self.write(&format!("{IMPORT}{id}"), i32::MAX).await
    }

    /// Lets operators lead.
    pub(super) async fn release(&mut self) -> Result<(), CliError> {
        self.write("", 1).await
    }

    async fn write(&mut self, holder: &str, seconds: i32) -> Result<(), CliError> {
        let now = Some(MicroTime(Timestamp::now()));
        let metadata = ObjectMeta {
            name: Some(LEASE_NAME.to_owned()),
            resource_version: self.version(),
            ..ObjectMeta::default()
        };
        let lease = Lease {
            metadata,
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                lease_duration_seconds: Some(seconds),
                acquire_time: now.clone(),
                renew_time: now,
                lease_transitions: self.spec().and_then(|spec| spec.lease_transitions),
                ..LeaseSpec::default()
            }),
        };
        let params = PostParams::default();
        let doing = "write the Lease";
        self.lease = Some(match self.lease {
            Some(_) => {
                let write = self.api.replace(LEASE_NAME, &params, &lease);
                self.cluster.call(doing, write).await?
            }
            None => self.cluster.call(doing, self.api.create(&params, &lease)).await?,
        });
        Ok(())
    }
}
