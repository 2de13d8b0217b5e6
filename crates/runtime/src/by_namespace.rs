//! The objects of a kind, by namespace.

use std::sync::Arc;

use kube::Resource;
use parking_lot::Mutex;

use super::{
    objects::Objects,
    watch::{Change, Listener},
};

/// An index that listens to the watch of a kind, so that finding the objects of one namespace need not look at the
/// others. Cheap to clone.
pub struct ByNamespace<K> {
    objects: Arc<Mutex<Objects<K>>>,
}

impl<K> Default for ByNamespace<K> {
    fn default() -> Self {
        Self {
            objects: Arc::default(),
        }
    }
}

impl<K> Clone for ByNamespace<K> {
    fn clone(&self) -> Self {
        Self {
            objects: self.objects.clone(),
        }
    }
}

impl<K> ByNamespace<K> {
    /// The number of objects of a namespace.
    pub fn count(&self, namespace: &str) -> usize {
        self.objects.lock().count(namespace)
    }

    /// The objects of a namespace, in no order.
    pub fn of(&self, namespace: &str) -> Vec<Arc<K>> {
        self.objects.lock().of(namespace).cloned().collect()
    }
}

impl<K: Resource + Send + Sync + 'static> Listener<K> for ByNamespace<K> {
    fn changed(&mut self, change: &Change<K>) {
        match change {
            Change::Replaced(all) => {
                let listed = all.iter().cloned().collect();
                *self.objects.lock() = listed;
            }
            Change::Applied(object) => self.objects.lock().insert(object.clone()),
            Change::Deleted(object) => drop(self.objects.lock().remove(object.meta())),
            Change::Unreadable(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn object(namespace: &str, name: &str) -> Arc<ConfigMap> {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some(namespace.to_owned());
        object.metadata.name = Some(name.to_owned());
        Arc::new(object)
    }

    #[test]
    fn it_knows_what_the_watch_has_shown_of_a_namespace() {
        let mut index = ByNamespace::default();
        let names = |index: &ByNamespace<ConfigMap>, namespace: &str| {
            let mut names: Vec<_> = index
                .of(namespace)
                .iter()
                .filter_map(|it| it.metadata.name.clone())
                .collect();
            names.sort();
            names
        };
        index.changed(&Change::Applied(object("old", "x")));
        index.changed(&Change::Replaced(vec![
            object("a", "1"),
            object("a", "2"),
            object("b", "1"),
        ]));
        index.changed(&Change::Applied(object("a", "3")));
        index.changed(&Change::Deleted(object("a", "1")));
        index.changed(&Change::Deleted(object("b", "1")));
        assert_eq!(names(&index, "a"), ["2", "3"]);
        assert!(names(&index, "b").is_empty() && names(&index, "old").is_empty());
        assert_eq!(index.objects.lock().len(), 2);
    }
}
