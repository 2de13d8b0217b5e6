//! Writes what has been decided about a network.

use std::sync::Arc;

use super::reconcile::Reconciler;
use crate::finalizers;
use domain::network::Decision;
use providers::Provider;
use resources::{PrivateNetwork, private_network::FINALIZER, tracking::CONTROLLER_MANAGER};
use runtime::client::{self, CallError, bounded};

impl<P: Provider> Reconciler<P> {
    /// Adds the finalizer and the origin.
    pub(super) async fn mark(&self, network: &PrivateNetwork) -> Result<Arc<PrivateNetwork>, CallError> {
        let written = finalizers::add(&self.controller.client, network, FINALIZER).await?;
        Ok(self.queue.wrote(written))
    }

    /// Removes our finalizer. Other controllers' finalizers are left alone.
    pub(super) async fn finish(&self, network: &PrivateNetwork) -> Result<(), CallError> {
        finalizers::remove(&self.controller.client, network, FINALIZER).await
    }

    /// Stores the status, if it differs.
    pub(super) async fn store(
        &self,
        network: &PrivateNetwork,
        decision: &Decision,
    ) -> Result<Option<Arc<PrivateNetwork>>, CallError> {
        let status = &decision.status;
        if network.status.as_ref() == Some(status) {
            return Ok(None);
        }
        let write = client::replace_status(&self.controller.client, network, status, CONTROLLER_MANAGER);
        let metadata = bounded(write).await?;
        Ok(Some(self.queue.wrote(PrivateNetwork {
            metadata,
            spec: network.spec.clone(),
            status: Some(status.clone()),
        })))
    }
}
