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

/// Maximum number of concurrent API calls. The API server's default limit for all clients is 400 reads and 200 writes.
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

    /// Waits for a permit to make a call; hold it during the call.
    pub async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.permits.acquire().await.ok()
    }

    /// The current object, if it exists.
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

    /// Deletes the object with this UID; with `exactly` only in this version. Returns the terminating object if a finalizer
    /// delays the deletion.
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
