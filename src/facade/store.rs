//! What the facade asks of the API server: bounded in time and in number, and for kinds with an index waited for until the
//! watch shows it.

use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    create::Turns,
    entry::{Entry, Index, Kept, ObjectOf},
};
use crate::runtime::{
    client::{CallError, bounded},
    watch,
};

/// The facade's name in managedFields.
pub const FIELD_MANAGER: &str = "stellage-api";

/// API calls under way at the same time; the API server's own default is 400 reads and 200 writes for all its clients.
const MAX_CALLS: usize = 128;

/// The API server, for objects of any kind.
pub struct Calls {
    client: Client,
    turns: Semaphore,
}

impl Calls {
    /// Calls through `client`.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            turns: Semaphore::new(MAX_CALLS),
        }
    }

    /// The objects of a kind in a namespace.
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Has to be held during a call.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.turns.acquire().await.ok()
    }

    /// The object as it is now, if it is there.
    pub async fn get<K: Kept>(&self, namespace: &str, name: &str) -> Result<Option<K>, CallError> {
        let _turn = self.turn().await;
        bounded(self.api(namespace).get_opt(name)).await
    }

    /// Creates an object.
    pub async fn create<K: Kept>(&self, namespace: &str, object: &K) -> Result<K, CallError> {
        let parameters = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let _turn = self.turn().await;
        bounded(self.api(namespace).create(&parameters, object)).await
    }

    /// Changes an object with a merge patch.
    pub async fn patch<K: Kept>(&self, namespace: &str, name: &str, patch: &Value) -> Result<K, CallError> {
        let parameters = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let _turn = self.turn().await;
        bounded(self.api(namespace).patch(name, &parameters, &Patch::Merge(patch))).await
    }

    /// Deletes this very object, if `exactly` in this very version. Returns what is left of it while a finalizer holds it
    /// back.
    pub async fn delete<K: Kept>(&self, object: &K, exactly: bool) -> Result<Option<K>, CallError> {
        let metadata = object.meta();
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: metadata.uid.clone(),
                resource_version: metadata.resource_version.clone().filter(|_| exactly),
            }),
            ..DeleteParams::background()
        };
        let _turn = self.turn().await;
        let api = self.api::<K>(object.namespace());
        Ok(bounded(api.delete(object.name(), &parameters)).await?.left())
    }
}

/// The objects of a kind: what the API server has, and the index that shows it.
pub struct Store<X> {
    calls: Arc<Calls>,
    index: Arc<X>,
    turns: Turns,
}

impl<X: Index> Store<X> {
    /// A store that writes through `calls` and is shown by `index`.
    pub fn new(calls: Arc<Calls>, index: Arc<X>) -> Self {
        Self {
            calls,
            index,
            turns: Turns::default(),
        }
    }

    /// For creates with a key, and for changes that have lost a race.
    pub(super) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// What the watch shows.
    pub fn index(&self) -> &X {
        &self.index
    }

    /// The index itself, to be fed.
    pub fn shared_index(&self) -> &Arc<X> {
        &self.index
    }

    /// The object as it is now, if it is there.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Option<ObjectOf<X>>, CallError> {
        self.calls.get(namespace, name).await
    }

    /// Creates an object and waits until it is shown.
    pub async fn create(&self, namespace: &str, object: &ObjectOf<X>) -> Result<X::Entry, CallError> {
        let created = self.calls.create(namespace, object).await?;
        Ok(self.shown(created).await)
    }

    /// Changes an object with a merge patch and waits until that is shown.
    pub async fn patch(&self, entry: &X::Entry, patch: &Value) -> Result<X::Entry, CallError> {
        let (namespace, name) = (entry.object().namespace(), entry.object().name());
        let patched = self.calls.patch(namespace, name, patch).await?;
        Ok(self.shown(patched).await)
    }

    /// Deletes this very object, if `exactly` in this very version, and waits until it is no longer shown.
    pub async fn delete(&self, entry: &X::Entry, exactly: bool) -> Result<(), CallError> {
        let object = entry.object();
        let progress = self.index.progress();
        let is_shown = if let Some(deleting) = self.calls.delete(object, exactly).await? {
            // A finalizer holds it back: what is waited for is its deletionTimestamp.
            progress.wait_for(watch::revision(&deleting)).await
        } else {
            let is_gone = || self.index.is_gone(entry);
            progress.wait_for_removal(object.uid(), is_gone).await
        };
        if !is_shown {
            Self::late("a deletion", object);
        }
        Ok(())
    }

    async fn shown(&self, object: ObjectOf<X>) -> X::Entry {
        if !self.index.progress().wait_for(watch::revision(&object)).await {
            Self::late("a write", &object);
        }
        X::Entry::of(Arc::new(object))
    }

    fn late(what: &'static str, object: &ObjectOf<X>) {
        let kind = X::Entry::WORD;
        tracing::warn!(
            kind,
            name = object.name(),
            "the watch does not show {what} in time"
        );
    }
}
