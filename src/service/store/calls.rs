//! Calls to the API server, bounded in time and in number.

use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{
    runtime::client::{CallError, bounded},
    service::index::Object,
};

/// The service's name in managedFields.
pub const FIELD_MANAGER: &str = "stellage-api";

/// API calls under way at the same time; the API server's own default is 400 reads and 200 writes for all its clients.
const MAX_CALLS: usize = 128;

/// The API server, for objects of any kind.
pub struct ApiCalls {
    client: Client,
    permits: Semaphore,
}

impl ApiCalls {
    /// Calls through `client`.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            permits: Semaphore::new(MAX_CALLS),
        }
    }

    /// The objects of a kind in a namespace.
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Waits until another call may be made; hold the permit while it is under way.
    pub async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.permits.acquire().await.ok()
    }

    /// The object as it is now, if it is there.
    pub async fn get<K: Object>(&self, namespace: &str, name: &str) -> Result<Option<K>, CallError> {
        let _permit = self.permit().await;
        bounded(self.api(namespace).get_opt(name)).await
    }

    /// Creates an object.
    pub async fn create<K: Object>(&self, namespace: &str, object: &K) -> Result<K, CallError> {
        let parameters = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let _permit = self.permit().await;
        bounded(self.api(namespace).create(&parameters, object)).await
    }

    /// Changes an object with a merge patch.
    pub async fn patch<K: Object>(&self, namespace: &str, name: &str, patch: &Value) -> Result<K, CallError> {
        let parameters = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let _permit = self.permit().await;
        bounded(self.api(namespace).patch(name, &parameters, &Patch::Merge(patch))).await
    }

    /// Deletes this very object, if `exactly` in this very version. Returns what is left of it while a finalizer holds it
    /// back.
    pub async fn delete<K: Object>(&self, object: &K, exactly: bool) -> Result<Option<K>, CallError> {
        let metadata = object.meta();
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: metadata.uid.clone(),
                resource_version: metadata.resource_version.clone().filter(|_| exactly),
            }),
            ..DeleteParams::background()
        };
        let _permit = self.permit().await;
        let api = self.api::<K>(object.namespace());
        Ok(bounded(api.delete(object.name(), &parameters)).await?.left())
    }
}
