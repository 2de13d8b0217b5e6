//! In-memory indexes of the objects that account holders see, fed by the program's watches.
//!
//! - `progress`: read-your-writes, by tracking how far a watch has come;
//! - `ordered`: the index, sorted newest first.

mod ordered;
mod progress;

pub use ordered::OrderedIndex;
pub use progress::Progress;

use std::{fmt::Debug, sync::Arc};

use k8s_openapi::NamespaceResourceScope;
use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};
use utoipa::IntoParams;

use super::id::PublicId;
use resources::origin;
use runtime::watch::{Change, Listener};

/// The page of a list to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Paging {
    /// Number of the page, counted from 1. A page past the end is empty.
    #[param(
        required = false,
        minimum = 1,
        maximum = 9_007_199_254_740_991_u64,
        default = 1
    )]
    pub page: u64,
    /// Maximum number of items per page.
    #[param(required = false, minimum = 1, maximum = 100, default = 20)]
    pub limit: usize,
}

impl Paging {
    /// The first page of up to `limit` items.
    pub const fn first(limit: usize) -> Self {
        Self { page: 1, limit }
    }

    /// How many items come before the page.
    pub fn skip(self) -> usize {
        let pages = usize::try_from(self.page.saturating_sub(1)).unwrap_or(usize::MAX);
        pages.saturating_mul(self.limit)
    }

    /// The page of these items, and their total number.
    pub fn cut<T>(self, mut all: impl Iterator<Item = T>) -> (Vec<T>, usize) {
        let before = all.by_ref().take(self.skip()).count();
        let page: Vec<_> = all.by_ref().take(self.limit).collect();
        let total = before + page.len() + all.count();
        (page, total)
    }
}

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

    /// The UID that the object was first created with.
    fn origin_uid(&self) -> &str {
        origin::uid(self.meta())
    }

    /// The UID of the object.
    fn uid(&self) -> &str {
        self.meta().uid.as_deref().unwrap_or_default()
    }

    /// Whether the object is being deleted; account holders no longer see it then.
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

/// An object with values derived from it, as an index stores it.
pub trait Indexed: Send + Sync + 'static {
    /// The type of the object.
    type Object: Object;
    /// The type of its public id.
    type Id: PublicId;
    /// The type of its spec.
    type Spec: Serialize + PartialEq + Send + Sync;

    /// The name of the kind in messages to account holders.
    const WORD: &'static str;

    /// Derives the values that lists and answers need.
    fn of(object: Arc<Self::Object>) -> Self;

    /// The public id.
    fn id(&self) -> Self::Id;

    fn object(&self) -> &Self::Object;

    /// The object's spec.
    fn spec(&self) -> &Self::Spec;
}

/// The objects of a kind, as far as the watch has shown them, without those being deleted.
pub trait Index: Send + Sync + 'static {
    /// The indexed objects.
    type Item: Indexed;

    /// How far the watch has come.
    fn progress(&self) -> &Progress;

    /// The object with this id. If two objects have the id, the one whose name it is.
    fn get(&self, namespace: &str, id: <Self::Item as Indexed>::Id) -> Option<Arc<Self::Item>>;

    /// Replaces the contents with these objects.
    fn replace(&self, objects: &[Arc<ObjectOf<Self>>]);

    /// Adds or updates an object that is not being deleted.
    fn apply(&self, object: &Arc<ObjectOf<Self>>);

    fn remove(&self, object: &ObjectOf<Self>);

    /// Whether the index no longer has the object with this UID.
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

/// Applies a change to an index, then wakes the requests that wait for it.
pub(in crate::service) fn changed<X: Index>(index: &X, change: &Change<ObjectOf<X>>) {
    let progress = index.progress();
    let gone = |object: &ObjectOf<X>| {
        index.remove(object);
        progress.removed(object.uid());
    };
    match change {
        Change::Replaced(objects) => {
            let newest = objects.iter().map(|object| resources::revision(&**object)).max();
            index.replace(objects);
            progress.listed(newest.unwrap_or(0));
        }
        Change::Applied(object) => {
            if object.is_terminating() {
                gone(object);
            } else {
                index.apply(object);
            }
            progress.reached(resources::revision(&**object));
        }
        Change::Deleted(object) => {
            gone(object);
            progress.reached(resources::revision(&**object));
        }
        Change::Unreadable(object) => {
            let revision = object.metadata.resource_version.as_deref();
            progress.reached(revision.and_then(|r| r.parse().ok()).unwrap_or(0));
        }
    }
}
