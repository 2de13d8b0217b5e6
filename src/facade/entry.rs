//! What all kinds that REST shows have in common: an object with what is derived from it, and an index of them that a watch
//! feeds.

use std::{fmt::Debug, sync::Arc};

use k8s_openapi::NamespaceResourceScope;
use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};

use super::{id::PublicId, progress::Progress};
use crate::runtime::watch::{self, Change, Listener};

/// What the API server needs to know of a kind in namespaces.
pub trait Kept:
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

    /// Whether the object is being deleted: REST shows it no more.
    fn is_leaving(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }

    /// The value of an annotation.
    fn annotation_of(&self, key: &str) -> Option<&str> {
        self.meta().annotations.as_ref()?.get(key).map(String::as_str)
    }
}

impl<K> Kept for K where
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

/// An object as REST shows it.
pub trait Entry: Send + Sync + 'static {
    /// The object's type.
    type Object: Kept;
    /// Its public id's.
    type Id: PublicId;
    /// Its spec's.
    type Spec: Serialize + Send + Sync;

    /// The kind as messages call it.
    const WORD: &'static str;

    /// What REST shows of an object.
    fn of(object: Arc<Self::Object>) -> Self;

    /// The public id.
    fn id(&self) -> Self::Id;

    /// The object.
    fn object(&self) -> &Self::Object;

    /// The object's spec.
    fn spec(&self) -> &Self::Spec;
}

/// The objects of a kind that REST shows, as the watch has them: those that are not being deleted.
pub trait Index: Send + Sync + 'static {
    /// What is in it.
    type Entry: Entry;

    /// How far the watch has come.
    fn progress(&self) -> &Progress;

    /// The entry with this id. Of two, the one whose name it is.
    fn get(&self, namespace: &str, id: <Self::Entry as Entry>::Id) -> Option<Arc<Self::Entry>>;

    /// These are all there are.
    fn replace(&self, objects: &[Arc<ObjectOf<Self>>]);

    /// This one is new or changed, and not being deleted.
    fn apply(&self, object: &Arc<ObjectOf<Self>>);

    /// This one is gone.
    fn take_out(&self, object: &ObjectOf<Self>);

    /// Whether this very object is no longer shown under its id.
    fn is_gone(&self, entry: &Self::Entry) -> bool {
        self.get(entry.object().namespace(), entry.id())
            .is_none_or(|found| found.object().uid() != entry.object().uid())
    }
}

/// The type of the objects in an index.
pub type ObjectOf<X> = <<X as Index>::Entry as Entry>::Object;

/// The listener that feeds an index.
pub fn listener<X: Index>(index: &Arc<X>) -> Box<dyn Listener<ObjectOf<X>>> {
    let index = index.clone();
    Box::new(move |change: &Change<ObjectOf<X>>| changed(&*index, change))
}

/// Brings an index up to date, and then wakes who waits for that.
pub(super) fn changed<X: Index>(index: &X, change: &Change<ObjectOf<X>>) {
    let progress = index.progress();
    let gone = |object: &ObjectOf<X>| {
        index.take_out(object);
        progress.removed(object.uid());
    };
    match change {
        Change::Replaced(objects) => {
            let newest = objects.iter().map(|object| watch::revision(&**object)).max();
            index.replace(objects);
            progress.listed(newest.unwrap_or(0));
        }
        Change::Applied(object) => {
            if object.is_leaving() {
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
