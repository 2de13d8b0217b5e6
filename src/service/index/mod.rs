//! In-memory indexes of what the account holders see, fed by the program's watches.
//!
//! - `progress`: read-your-writes, or how far a watch has come;
//! - `ordered`: an index in the order of lists, for kinds without filters.

mod ordered;
mod progress;

pub use ordered::OrderedIndex;
pub use progress::Progress;

use std::{fmt::Debug, sync::Arc};

use k8s_openapi::NamespaceResourceScope;
use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};

use super::id::PublicId;
use crate::runtime::watch::{self, Change, Listener};

/// A namespaced object of the API server.
pub trait Object:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// The name of the object.
    fn name(&self) -> &str {
        self.meta().name.as_deref().unwrap_or_default()
    }

    /// The namespace of the object.
    fn namespace(&self) -> &str {
        self.meta().namespace.as_deref().unwrap_or_default()
    }

    /// The UID of the object.
    fn uid(&self) -> &str {
        self.meta().uid.as_deref().unwrap_or_default()
    }

    /// Whether the object is being deleted: account holders no longer see it.
    fn is_terminating(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }

    /// The value of an annotation.
    fn annotation_of(&self, key: &str) -> Option<&str> {
        self.meta().annotations.as_ref()?.get(key).map(String::as_str)
    }
}

impl<K> Object for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// An object with what is derived from it, as an index holds it.
pub trait Indexed: Send + Sync + 'static {
    /// The object's type.
    type Object: Object;
    /// Its public id's.
    type Id: PublicId;
    /// Its spec's.
    type Spec: Serialize + Send + Sync;

    /// The kind as messages to account holders call it.
    const WORD: &'static str;

    /// Derives what lists and answers need from an object.
    fn of(object: Arc<Self::Object>) -> Self;

    /// The public id.
    fn id(&self) -> Self::Id;

    /// The object.
    fn object(&self) -> &Self::Object;

    /// The object's spec.
    fn spec(&self) -> &Self::Spec;
}

/// The objects of a kind as the watch has them, without those that are being deleted.
pub trait Index: Send + Sync + 'static {
    /// What is in it.
    type Item: Indexed;

    /// How far the watch has come.
    fn progress(&self) -> &Progress;

    /// The object with this id. Of two, the one whose name it is.
    fn get(&self, namespace: &str, id: <Self::Item as Indexed>::Id) -> Option<Arc<Self::Item>>;

    /// These are all there are.
    fn replace(&self, objects: &[Arc<ObjectOf<Self>>]);

    /// This one is new or changed, and not being deleted.
    fn apply(&self, object: &Arc<ObjectOf<Self>>);

    /// This one is gone.
    fn remove(&self, object: &ObjectOf<Self>);

    /// Whether this very object is no longer shown under its id.
    fn is_gone(&self, item: &Self::Item) -> bool {
        self.get(item.object().namespace(), item.id())
            .is_none_or(|found| found.object().uid() != item.object().uid())
    }
}

/// The type of the objects in an index.
pub type ObjectOf<X> = <<X as Index>::Item as Indexed>::Object;

/// The listener that feeds an index.
pub fn listener<X: Index>(index: &Arc<X>) -> Box<dyn Listener<ObjectOf<X>>> {
    let index = index.clone();
    Box::new(move |change: &Change<ObjectOf<X>>| changed(&*index, change))
}

/// Brings an index up to date, and then wakes who waits for that.
pub(in crate::service) fn changed<X: Index>(index: &X, change: &Change<ObjectOf<X>>) {
    let progress = index.progress();
    let gone = |object: &ObjectOf<X>| {
        index.remove(object);
        progress.removed(object.uid());
    };
    match change {
        Change::Replaced(objects) => {
            let newest = objects.iter().map(|object| watch::revision(&**object)).max();
            index.replace(objects);
            progress.listed(newest.unwrap_or(0));
        }
        Change::Applied(object) => {
            if object.is_terminating() {
                gone(object);
            } else {
                index.apply(object);
            }
            progress.reached(watch::revision(&**object));
        }
        Change::Deleted(object) => {
            gone(object);
            progress.reached(watch::revision(&**object));
        }
        Change::Unreadable(object) => {
            let revision = object.metadata.resource_version.as_deref();
            progress.reached(revision.and_then(|r| r.parse().ok()).unwrap_or(0));
        }
    }
}
