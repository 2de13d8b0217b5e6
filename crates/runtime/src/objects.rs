//! The objects of a kind in memory, found by namespace and name.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use parking_lot::RwLock;
use tokio::sync::watch;

use super::ObjectRef;

/// The objects of a kind, by namespace and name.
pub struct Objects<K> {
    namespaces: HashMap<String, HashMap<String, Arc<K>>>,
    count: usize,
}

impl<K> Default for Objects<K> {
    fn default() -> Self {
        Self {
            namespaces: HashMap::new(),
            count: 0,
        }
    }
}

fn names(metadata: &ObjectMeta) -> (&str, &str) {
    (
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

impl<K> Objects<K> {
    /// The number of objects of a namespace.
    pub fn count(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).map_or(0, HashMap::len)
    }

    /// The number of all objects.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
    }

    /// The objects of a namespace, in no order.
    pub fn of(&self, namespace: &str) -> impl Iterator<Item = &Arc<K>> {
        self.namespaces
            .get(namespace)
            .into_iter()
            .flat_map(HashMap::values)
    }

    /// All objects, in no order.
    pub fn all(&self) -> impl Iterator<Item = &Arc<K>> {
        self.namespaces.values().flat_map(HashMap::values)
    }

    /// The object with this name in this namespace, which is empty for a cluster-scoped kind.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<K>> {
        self.namespaces.get(namespace)?.get(name)
    }

    /// Removes the object with the names in this metadata.
    pub fn remove(&mut self, metadata: &ObjectMeta) -> Option<Arc<K>> {
        let (namespace, name) = names(metadata);
        let objects = self.namespaces.get_mut(namespace)?;
        let object = objects.remove(name)?;
        self.count -= 1;
        if objects.is_empty() {
            self.namespaces.remove(namespace);
        }
        Some(object)
    }
}

impl<K: Resource> Objects<K> {
    /// Adds an object, replacing any object with the same name.
    pub fn insert(&mut self, object: Arc<K>) {
        let (namespace, name) = names(object.meta());
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let before = self.namespaces.entry(namespace).or_default().insert(name, object);
        self.count += usize::from(before.is_none());
    }
}

impl<K: Resource> FromIterator<Arc<K>> for Objects<K> {
    fn from_iter<I: IntoIterator<Item = Arc<K>>>(all: I) -> Self {
        let mut objects = Self::default();
        for object in all {
            objects.insert(object);
        }
        objects
    }
}

/// The objects of a kind as a watch shows them. Cheap to clone.
pub struct Store<K> {
    objects: Arc<RwLock<Objects<K>>>,
    is_listed: watch::Receiver<bool>,
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self {
            objects: self.objects.clone(),
            is_listed: self.is_listed.clone(),
        }
    }
}

/// Writes a [`Store`].
pub struct Writer<K> {
    objects: Arc<RwLock<Objects<K>>>,
    is_listed: watch::Sender<bool>,
}

/// The watch has ended before it showed its first list.
#[derive(Clone, Copy, Debug)]
pub struct WatchEnded;

/// An empty store, and its writer.
pub fn store<K>() -> (Store<K>, Writer<K>) {
    let objects = Arc::new(RwLock::new(Objects::default()));
    let (sender, is_listed) = watch::channel(false);
    let store = Store {
        objects: objects.clone(),
        is_listed,
    };
    let writer = Writer {
        objects,
        is_listed: sender,
    };
    (store, writer)
}

impl<K> Store<K> {
    /// Waits until the watch has shown its first list.
    ///
    /// # Errors
    ///
    /// The watch ended before that.
    pub async fn wait_until_ready(&self) -> Result<(), WatchEnded> {
        let mut is_listed = self.is_listed.clone();
        let listed = is_listed.wait_for(|is_listed| *is_listed).await;
        listed.map(drop).map_err(|_| WatchEnded)
    }

    /// All objects, in no order.
    pub fn state(&self) -> Vec<Arc<K>> {
        self.objects.read().all().cloned().collect()
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        self.objects.read().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.objects.read().is_empty()
    }
}

impl<K: Resource> Store<K> {
    /// The object with this namespace and name.
    pub fn get(&self, object_ref: &ObjectRef) -> Option<Arc<K>> {
        self.named(object_ref.namespace(), object_ref.name())
    }

    /// The object with this name in this namespace, which is empty for a cluster-scoped kind.
    pub fn named(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.objects.read().get(namespace, name).cloned()
    }
}

impl<K: Resource> Writer<K> {
    /// Shows a new list; any other object is gone.
    pub fn replace(&self, all: impl IntoIterator<Item = Arc<K>>) {
        let listed = all.into_iter().collect();
        let before = std::mem::replace(&mut *self.objects.write(), listed);
        self.is_listed.send_replace(true);
        drop(before);
    }

    /// Shows a new object, or a new version of one.
    pub fn apply(&self, object: Arc<K>) {
        self.objects.write().insert(object);
    }

    /// Removes the object with the names in this metadata. Returns its last version.
    pub fn delete(&self, metadata: &ObjectMeta) -> Option<Arc<K>> {
        self.objects.write().remove(metadata)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn object(namespace: &str, name: &str, version: &str) -> Arc<ConfigMap> {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some(namespace.to_owned()).filter(|it| !it.is_empty());
        object.metadata.name = Some(name.to_owned());
        object.metadata.resource_version = Some(version.to_owned());
        Arc::new(object)
    }

    #[test]
    fn an_object_is_found_by_its_namespace_and_name_in_its_last_version() {
        let (store, writer) = store::<ConfigMap>();
        let version = |namespace: &str, name: &str| {
            let object = store.get(&ObjectRef::new(namespace, name))?;
            object.metadata.resource_version.clone()
        };
        writer.replace([object("gone", "x", "1")]);
        writer.replace((0..1000).map(|n| object("a", &n.to_string(), "1")));
        writer.apply(object("b", "1", "2"));
        writer.apply(object("a", "1", "3"));
        assert_eq!(store.len(), 1001);
        assert_eq!(version("a", "1").as_deref(), Some("3"));
        assert_eq!(version("b", "1").as_deref(), Some("2"));
        assert_eq!(version("a", "999").as_deref(), Some("1"));
        assert_eq!((version("b", "2"), version("gone", "x")), (None, None));
        let delete = |namespace: &str| writer.delete(object(namespace, "1", "5").meta());
        assert!(delete("a").is_some() && delete("a").is_none());
        assert!(delete("b").is_some());
        assert_eq!((version("a", "1"), store.len()), (None, 999));
        assert_eq!(store.objects.read().namespaces.len(), 1);
        writer.apply(object("", "cluster-wide", "4"));
        let object_ref = ObjectRef::of(&*object("", "cluster-wide", "4"));
        assert_eq!(
            (object_ref.namespace(), object_ref.as_str()),
            ("", "cluster-wide")
        );
        assert!(store.get(&object_ref).is_some());
    }

    #[tokio::test]
    async fn a_store_is_ready_once_there_was_a_list_and_says_when_there_will_be_none() {
        let (store, writer) = store::<ConfigMap>();
        assert!(futures::poll!(Box::pin(store.wait_until_ready())).is_pending());
        writer.replace([]);
        store.wait_until_ready().await.unwrap();
        let (store, writer) = super::store::<ConfigMap>();
        drop(writer);
        assert!(store.wait_until_ready().await.is_err());
    }
}
