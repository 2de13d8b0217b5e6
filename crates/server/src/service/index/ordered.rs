//! An index sorted newest first, without filters, for kinds with tens of objects per account, not thousands.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use kube::Resource as _;
use parking_lot::RwLock;

use super::{Index, Indexed, Object as _, Progress, items_before};
use crate::service::id::PublicId as _;
use resources::origin;

/// Sorts newest first, then by id. The last part separates an id that is an object's name from the same id derived from a UID.
type SortKey<I> = (Reverse<i64>, I, bool);

/// All objects of a kind that are not being deleted, by namespace.
pub struct OrderedIndex<T: Indexed> {
    namespaces: RwLock<HashMap<Box<str>, Namespace<T>>>,
    progress: Progress,
}

struct Namespace<T: Indexed> {
    ordered: BTreeMap<SortKey<T::Id>, Arc<T>>,
    /// Creation time in seconds, by id and whether the id is derived.
    created: HashMap<(T::Id, bool), Reverse<i64>>,
}

impl<T: Indexed> Default for OrderedIndex<T> {
    fn default() -> Self {
        Self {
            namespaces: RwLock::default(),
            progress: Progress::default(),
        }
    }
}

impl<T: Indexed> Default for Namespace<T> {
    fn default() -> Self {
        Self {
            ordered: BTreeMap::new(),
            created: HashMap::new(),
        }
    }
}

impl<T: Indexed> OrderedIndex<T> {
    /// Number of objects in a namespace.
    pub fn count(&self, namespace: &str) -> usize {
        let namespaces = self.namespaces.read();
        namespaces
            .get(namespace)
            .map_or(0, |namespace| namespace.ordered.len())
    }

    /// One page of the objects that match, newest first, and their total number. `page` counts from 1. Scans all objects of the
    /// namespace.
    pub fn page_of(
        &self,
        namespace: &str,
        page: u64,
        limit: usize,
        matches: impl Fn(&T) -> bool,
    ) -> (Vec<Arc<T>>, usize) {
        let namespaces = self.namespaces.read();
        let Some(namespace) = namespaces.get(namespace) else {
            return (Vec::new(), 0);
        };
        let skip = items_before(page, limit);
        let (mut shown, mut total) = (Vec::new(), 0);
        for item in namespace.ordered.values().filter(|item| matches(item)) {
            if total >= skip && shown.len() < limit {
                shown.push(item.clone());
            }
            total += 1;
        }
        (shown, total)
    }

    /// One page, newest first, and the total number. `page` counts from 1.
    pub fn page(&self, namespace: &str, page: u64, limit: usize) -> (Vec<Arc<T>>, usize) {
        let namespaces = self.namespaces.read();
        let Some(namespace) = namespaces.get(namespace) else {
            return (Vec::new(), 0);
        };
        let skip = items_before(page, limit);
        let shown = namespace.ordered.values().skip(skip).take(limit);
        (shown.cloned().collect(), namespace.ordered.len())
    }
}

impl<T: Indexed> Namespace<T> {
    fn apply(&mut self, item: T) {
        self.remove(&item);
        let (created, id, derived) = sort_key(&item);
        self.created.insert((id, derived), created);
        self.ordered.insert((created, id, derived), Arc::new(item));
    }

    fn remove(&mut self, item: &T) {
        let (_, id, derived) = sort_key(item);
        if let Some(created) = self.created.remove(&(id, derived)) {
            self.ordered.remove(&(created, id, derived));
        }
    }

    fn get(&self, id: T::Id, derived: bool) -> Option<&Arc<T>> {
        let created = *self.created.get(&(id, derived))?;
        self.ordered.get(&(created, id, derived))
    }
}

fn sort_key<T: Indexed>(item: &T) -> SortKey<T::Id> {
    let (object, id) = (item.object(), item.id());
    let created = origin::created_at(object.meta());
    (
        Reverse(created.map_or(0, jiff::Timestamp::as_second)),
        id,
        id.name() != object.name(),
    )
}

impl<T: Indexed> Index for OrderedIndex<T> {
    type Item = T;

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn get(&self, namespace: &str, id: T::Id) -> Option<Arc<T>> {
        let namespaces = self.namespaces.read();
        let namespace = namespaces.get(namespace)?;
        namespace
            .get(id, false)
            .or_else(|| namespace.get(id, true))
            .cloned()
    }

    fn replace(&self, objects: &[Arc<T::Object>]) {
        let mut all: HashMap<Box<str>, Namespace<T>> = HashMap::new();
        for object in objects.iter().filter(|object| !object.is_terminating()) {
            let namespace = all.entry(object.namespace().into()).or_default();
            namespace.apply(T::of(object.clone()));
        }
        *self.namespaces.write() = all;
    }

    fn apply(&self, object: &Arc<T::Object>) {
        let mut namespaces = self.namespaces.write();
        let namespace = namespaces.entry(object.namespace().into()).or_default();
        namespace.apply(T::of(object.clone()));
    }

    fn remove(&self, object: &T::Object) {
        let mut namespaces = self.namespaces.write();
        if let Some(namespace) = namespaces.get_mut(object.namespace()) {
            namespace.remove(&T::of(Arc::new(object.clone())));
            if namespace.ordered.is_empty() {
                namespaces.remove(object.namespace());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::changed, *};
    use crate::service::webhooks::IndexedWebhook;
    use resources::{Webhook, testing};
    use runtime::watch::Change;

    fn webhook(name: &str, second: u8, deleting: bool) -> Arc<Webhook> {
        Arc::new(testing::webhook(json!({ "metadata": {
            "name": name, "uid": name, "resourceVersion": "7",
            "creationTimestamp": format!("2026-11-21T10:00:0{second}Z"),
            "deletionTimestamp": deleting.then_some("2026-11-21T11:00:00Z"),
        } })))
    }

    #[tokio::test]
    async fn lists_are_newest_first_and_without_deleted_objects() {
        let index = OrderedIndex::<IndexedWebhook>::default();
        let (a, b, c) = ("wh-aaaaaaaaaaaaaaaa", "wh-bbbbbbbbbbbbbbbb", "orders");
        changed(
            &index,
            &Change::Replaced(vec![webhook(b, 1, false), webhook(a, 1, false)]),
        );
        changed(&index, &Change::Applied(webhook(c, 2, false)));
        let names = |page, limit| {
            let (shown, total) = index.page("demo", page, limit);
            let names: Vec<String> = shown.iter().map(|s| s.object().name().to_owned()).collect();
            (names, total)
        };
        assert_eq!(names(1, 2), (vec![c.to_owned(), a.to_owned()], 3));
        assert_eq!(names(2, 2), (vec![b.to_owned()], 3));
        assert_eq!(names(u64::MAX, 100), (vec![], 3));
        assert_eq!(index.page("other", 1, 9).1, 0);
        let derived = IndexedWebhook::of(webhook(c, 2, false));
        assert!(!index.is_gone(&derived));
        // Recreated a second later under the same name.
        changed(&index, &Change::Applied(webhook(a, 3, false)));
        assert_eq!(names(1, 1), (vec![a.to_owned()], 3));
        changed(&index, &Change::Applied(webhook(c, 2, true)));
        changed(&index, &Change::Deleted(webhook(b, 1, false)));
        assert!(index.is_gone(&derived) && index.progress().wait_for(7).await);
        assert_eq!(names(1, 9), (vec![a.to_owned()], 1));
    }

    #[test]
    fn of_two_objects_with_one_id_the_one_with_that_name_is_found() {
        let index = OrderedIndex::<IndexedWebhook>::default();
        let derived = webhook("orders", 1, false);
        let id = crate::service::id::WebhookId::of(&derived);
        let copy = webhook(&id.name(), 2, false);
        changed(&index, &Change::Replaced(vec![copy.clone(), derived.clone()]));
        let found = |index: &OrderedIndex<IndexedWebhook>| {
            index.get("demo", id).map(|s| s.object().name().to_owned())
        };
        assert_eq!(found(&index).as_deref(), copy.metadata.name.as_deref());
        changed(&index, &Change::Deleted(copy));
        assert_eq!(found(&index).as_deref(), Some("orders"));
    }
}
