//! Reads and writes the objects of one kind: through the API server, and from the index fed by the watch.
//!
//! - `calls`: calls to the API server, bounded in time and in number;
//! - `locks`: locks by key, for competing requests;
//! - `create`: creates, carried out once per `Idempotency-Key`;
//! - `modify`: changes and deletions, with optimistic concurrency.

mod calls;
mod create;
mod locks;
mod modify;

use std::{sync::Arc, time::Duration};

use serde_json::Value;

pub use self::{
    calls::{ApiCalls, LongRead, MAX_CALLS},
    create::{Created, KeyedCreate, annotations},
    locks::{KeyedLock, KeyedLocks},
    modify::{MAX_ATTEMPTS, Verdict, WRITE_ANNOTATION, contended, pause},
};

use super::index::{Index, Indexed, Object as _, ObjectOf};
use runtime::client::CallError;

/// The objects of a kind.
pub struct Store<X> {
    calls: Arc<ApiCalls>,
    index: Arc<X>,
    locks: KeyedLocks,
    quota_timeout: Duration,
}

impl<X: Index> Store<X> {
    /// A store that writes through `calls` and reads from `index`.
    pub fn new(calls: Arc<ApiCalls>, index: Arc<X>) -> Self {
        Self {
            calls,
            index,
            locks: KeyedLocks::default(),
            quota_timeout: create::QUOTA_TIMEOUT,
        }
    }

    pub fn index(&self) -> &X {
        &self.index
    }

    /// The index, for the listener that feeds it.
    pub fn shared_index(&self) -> &Arc<X> {
        &self.index
    }

    /// The current object, read from the API server, if it exists.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Option<ObjectOf<X>>, CallError> {
        self.calls.get(namespace, name).await
    }

    /// Creates an object and waits until the index has it.
    pub async fn create(&self, namespace: &str, object: &ObjectOf<X>) -> Result<X::Item, CallError> {
        let created = self.calls.create(namespace, object).await?;
        Ok(self.indexed(created).await)
    }

    /// Changes an object with a merge patch and waits until the index has the new version.
    pub async fn patch(&self, item: &X::Item, patch: &Value) -> Result<X::Item, CallError> {
        let (namespace, name) = (item.object().namespace(), item.object().name());
        let patched = self.calls.patch(namespace, name, patch).await?;
        Ok(self.indexed(patched).await)
    }

    /// Deletes the object with this UID (with `exactly`: only in this version), and waits until the index no longer has it.
    pub async fn delete(&self, item: &X::Item, exactly: bool) -> Result<(), CallError> {
        let object = item.object();
        let Some(deleting) = self.calls.delete(object, exactly).await? else {
            self.wait_until_gone(item).await;
            return Ok(());
        };
        // A finalizer delays the deletion: wait for the deletionTimestamp.
        let progress = self.index.progress();
        if !progress.wait_for(resources::revision(&deleting)).await {
            Self::warn_late("a deletion", object);
        }
        Ok(())
    }

    /// Waits until the index no longer has a deleted object.
    async fn wait_until_gone(&self, item: &X::Item) {
        let object = item.object();
        let is_gone = || self.index.is_gone(item);
        if !self
            .index
            .progress()
            .wait_for_removal(object.uid(), is_gone)
            .await
        {
            Self::warn_late("a deletion", object);
        }
    }

    async fn indexed(&self, object: ObjectOf<X>) -> X::Item {
        if !self.index.progress().wait_for(resources::revision(&object)).await {
            Self::warn_late("a write", &object);
        }
        X::Item::of(Arc::new(object))
    }

    fn warn_late(what: &'static str, object: &ObjectOf<X>) {
        let kind = X::Item::WORD;
        tracing::warn!(
            kind,
            name = object.name(),
            "the watch has not shown {what} in time"
        );
    }
}
