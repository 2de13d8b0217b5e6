//! An index sorted newest first. A page without a filter costs the same with 100 and with 100,000 objects; filters scan the objects of the
//! account.

use std::{cmp::Reverse, collections::HashMap, sync::Arc};

use kube::Resource as _;
use parking_lot::RwLock;

use super::{Index, Indexed, Object as _, Paging, Progress};
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
    /// Oldest first, by descending [`SortKey`], since the newest object is the usual one to add and goes to the end.
    ordered: Vec<Arc<T>>,
    /// By id and whether the id is derived.
    by_id: HashMap<(T::Id, bool), Arc<T>>,
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
            ordered: Vec::new(),
            by_id: HashMap::new(),
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

    /// Number of objects in a namespace that match. Scans all of them.
    pub fn count_of(&self, namespace: &str, matches: impl Fn(&T) -> bool) -> usize {
        let namespaces = self.namespaces.read();
        let Some(namespace) = namespaces.get(namespace) else {
            return 0;
        };
        namespace.ordered.iter().filter(|item| matches(item)).count()
    }

    /// The objects of a namespace, newest first.
    pub fn all(&self, namespace: &str) -> Vec<Arc<T>> {
        self.page(namespace, Paging::first(usize::MAX)).0
    }

    /// One page of the objects that match, newest first, and their total number. Scans all objects of the namespace.
    pub fn page_of(
        &self,
        namespace: &str,
        paging: Paging,
        matches: impl Fn(&T) -> bool,
    ) -> (Vec<Arc<T>>, usize) {
        // Compare after releasing the lock, because comparing takes longer than copying and all requests share the lock.
        let all = self.all(namespace);
        paging.cut(all.into_iter().filter(|item| matches(item)))
    }

    /// One page, newest first, and the total number.
    pub fn page(&self, namespace: &str, paging: Paging) -> (Vec<Arc<T>>, usize) {
        let namespaces = self.namespaces.read();
        let Some(namespace) = namespaces.get(namespace) else {
            return (Vec::new(), 0);
        };
        let newest_first = namespace.ordered.iter().rev();
        let shown = newest_first.skip(paging.skip()).take(paging.limit);
        (shown.cloned().collect(), namespace.ordered.len())
    }
}

impl<T: Indexed> Namespace<T> {
    fn apply(&mut self, item: Arc<T>) {
        let key = sort_key::<T>(&item);
        let (_, id, derived) = key;
        if let Some(former) = self.by_id.insert((id, derived), item.clone())
            && sort_key::<T>(&former) != key
        {
            self.take_out(&former);
        }
        match self.position(&key) {
            Ok(at) => self.ordered[at] = item,
            Err(at) => self.ordered.insert(at, item),
        }
    }

    fn remove(&mut self, item: &T) {
        let (_, id, derived) = sort_key(item);
        if let Some(former) = self.by_id.remove(&(id, derived)) {
            self.take_out(&former);
        }
    }

    fn take_out(&mut self, item: &T) {
        if let Ok(at) = self.position(&sort_key(item)) {
            self.ordered.remove(at);
        }
    }

    fn position(&self, key: &SortKey<T::Id>) -> Result<usize, usize> {
        self.ordered
            .binary_search_by(|item| key.cmp(&sort_key::<T>(item)))
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
        let by_id = &namespaces.get(namespace)?.by_id;
        let found = by_id.get(&(id, false)).or_else(|| by_id.get(&(id, true)));
        found.cloned()
    }

    fn replace(&self, objects: &[Arc<T::Object>]) {
        let shown = objects.iter().filter(|object| !object.is_terminating());
        let mut items: Vec<_> = shown.map(|object| Arc::new(T::of(object.clone()))).collect();
        // Sorted, so that every insertion appends.
        items.sort_by_cached_key(|item| Reverse(sort_key::<T>(item)));
        let mut all: HashMap<Box<str>, Namespace<T>> = HashMap::new();
        for item in items {
            let namespace = all.entry(item.object().namespace().into()).or_default();
            namespace.apply(item);
        }
        *self.namespaces.write() = all;
    }

    fn apply(&self, object: &Arc<T::Object>) {
        let item = Arc::new(T::of(object.clone()));
        let mut namespaces = self.namespaces.write();
        let namespace = namespaces.entry(object.namespace().into()).or_default();
        namespace.apply(item);
    }

    fn remove(&self, object: &T::Object) {
        let item = T::of(Arc::new(object.clone()));
        let mut namespaces = self.namespaces.write();
        if let Some(namespace) = namespaces.get_mut(object.namespace()) {
            namespace.remove(&item);
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
            let (shown, total) = index.page("demo", Paging { page, limit });
            let names: Vec<String> = shown.iter().map(|s| s.object().name().to_owned()).collect();
            (names, total)
        };
        assert_eq!(names(1, 2), (vec![c.to_owned(), a.to_owned()], 3));
        assert_eq!(names(2, 2), (vec![b.to_owned()], 3));
        assert_eq!(names(u64::MAX, 100), (vec![], 3));
        assert_eq!(index.page("other", Paging::first(9)).1, 0);
        let derived = IndexedWebhook::of(webhook(c, 2, false));
        assert!(!index.is_gone(&derived));
        // Recreated a second later under the same name.
        changed(&index, &Change::Applied(webhook(a, 3, false)));
        assert_eq!(names(1, 1), (vec![a.to_owned()], 3));
        changed(&index, &Change::Applied(webhook(c, 2, true)));
        changed(&index, &Change::Deleted(webhook(b, 1, false)));
        assert!(index.is_gone(&derived) && index.progress().wait_for(7).await);
        assert_eq!(names(1, 9), (vec![a.to_owned()], 1));
        changed(&index, &Change::Deleted(webhook(a, 3, false)));
        assert!(
            index.namespaces.read().is_empty(),
            "an empty namespace costs nothing"
        );
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
