//! Reads and writes of one kind: what the API server has, and the index that shows it to account holders.
//!
//! - `calls`: calls to the API server, bounded in time and in number;
//! - `locks`: one lock for each key that requests compete for;
//! - `create`: creates, done once for each `Idempotency-Key`;
//! - `modify`: changes and deletions, decided on the version that is there.

mod calls;
mod create;
mod locks;
mod modify;

use std::sync::Arc;

use serde_json::Value;

pub use self::{
    calls::ApiCalls,
    create::{Created, KeyedCreate},
    modify::{Verdict, contended, merge_patch, pause},
};

use self::locks::KeyedLocks;
use super::index::{Index, Indexed, Object as _, ObjectOf};
use crate::runtime::{client::CallError, watch};

/// The objects of a kind.
pub struct Store<X> {
    calls: Arc<ApiCalls>,
    index: Arc<X>,
    locks: KeyedLocks,
}

impl<X: Index> Store<X> {
    /// A store that writes through `calls` and reads from `index`.
    pub fn new(calls: Arc<ApiCalls>, index: Arc<X>) -> Self {
        Self {
            calls,
            index,
            locks: KeyedLocks::default(),
        }
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
    pub async fn create(&self, namespace: &str, object: &ObjectOf<X>) -> Result<X::Item, CallError> {
        let created = self.calls.create(namespace, object).await?;
        Ok(self.shown(created).await)
    }

    /// Changes an object with a merge patch and waits until that is shown.
    pub async fn patch(&self, item: &X::Item, patch: &Value) -> Result<X::Item, CallError> {
        let (namespace, name) = (item.object().namespace(), item.object().name());
        let patched = self.calls.patch(namespace, name, patch).await?;
        Ok(self.shown(patched).await)
    }

    /// Deletes this very object, if `exactly` in this very version, and waits until it is no longer shown.
    pub async fn delete(&self, item: &X::Item, exactly: bool) -> Result<(), CallError> {
        let object = item.object();
        let progress = self.index.progress();
        let is_shown = if let Some(deleting) = self.calls.delete(object, exactly).await? {
            // A finalizer holds it back: what is waited for is its deletionTimestamp.
            progress.wait_for(watch::revision(&deleting)).await
        } else {
            let is_gone = || self.index.is_gone(item);
            progress.wait_for_removal(object.uid(), is_gone).await
        };
        if !is_shown {
            Self::late("a deletion", object);
        }
        Ok(())
    }

    async fn shown(&self, object: ObjectOf<X>) -> X::Item {
        if !self.index.progress().wait_for(watch::revision(&object)).await {
            Self::late("a write", &object);
        }
        X::Item::of(Arc::new(object))
    }

    fn late(what: &'static str, object: &ObjectOf<X>) {
        let kind = X::Item::WORD;
        tracing::warn!(
            kind,
            name = object.name(),
            "the watch does not show {what} in time"
        );
    }
}
