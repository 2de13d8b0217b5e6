//! What the facade asks of the API server: bounded in time and in number, and waited for until the watch shows it.

use std::sync::Arc;

use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::index::{InstanceIndex, Shown};
use crate::{
    resources::Instance,
    runtime::{
        client::{CallError, bounded},
        watch,
    },
};

/// The facade's name in managedFields.
pub const FIELD_MANAGER: &str = "stellage-api";

/// API calls under way at the same time; the API server's own default is 400 reads and 200 writes for all its clients.
const MAX_CALLS: usize = 128;

/// The instances of the API server.
pub struct Store {
    client: Client,
    index: Arc<InstanceIndex>,
    calls: Semaphore,
}

impl Store {
    /// A store that writes through `client` and is shown by `index`.
    pub fn new(client: Client, index: Arc<InstanceIndex>) -> Self {
        Self {
            client,
            index,
            calls: Semaphore::new(MAX_CALLS),
        }
    }

    fn api(&self, namespace: &str) -> Api<Instance> {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.calls.acquire().await.ok()
    }

    /// The object as it is now, if it is there.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Option<Instance>, CallError> {
        let _turn = self.turn().await;
        bounded(self.api(namespace).get_opt(name)).await
    }

    /// Creates an object and waits until it is shown.
    pub async fn create(&self, namespace: &str, instance: &Instance) -> Result<Shown, CallError> {
        let parameters = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let created = {
            let _turn = self.turn().await;
            bounded(self.api(namespace).create(&parameters, instance)).await?
        };
        Ok(self.shown(created).await)
    }

    /// Changes an object with a merge patch and waits until that is shown.
    pub async fn patch(&self, shown: &Shown, patch: &Value) -> Result<Shown, CallError> {
        let parameters = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patched = {
            let _turn = self.turn().await;
            let api = self.api(shown.namespace());
            bounded(api.patch(shown.name(), &parameters, &Patch::Merge(patch))).await?
        };
        Ok(self.shown(patched).await)
    }

    /// Deletes this very object, if `exactly` in this very version, and waits until it is no longer shown.
    pub async fn delete(&self, shown: &Shown, exactly: bool) -> Result<(), CallError> {
        let metadata = &shown.instance.metadata;
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: metadata.uid.clone(),
                resource_version: metadata.resource_version.clone().filter(|_| exactly),
            }),
            ..DeleteParams::background()
        };
        let answer = {
            let _turn = self.turn().await;
            bounded(self.api(shown.namespace()).delete(shown.name(), &parameters)).await?
        };
        let progress = self.index.progress();
        let is_shown = if let Some(deleting) = answer.left() {
            // A finalizer holds it back: what is waited for is its deletionTimestamp.
            progress.wait_for(watch::revision(&deleting)).await
        } else {
            let uid = metadata.uid.as_deref().unwrap_or_default();
            progress.wait_for_removal(uid, || self.index.is_gone(shown)).await
        };
        if !is_shown {
            tracing::warn!(
                instance = shown.name(),
                "the watch does not show a deletion in time"
            );
        }
        Ok(())
    }

    async fn shown(&self, instance: Instance) -> Shown {
        let revision = watch::revision(&instance);
        let shown = Shown::of(Arc::new(instance));
        if !self.index.progress().wait_for(revision).await {
            tracing::warn!(instance = shown.name(), "the watch does not show a write in time");
        }
        shown
    }
}
