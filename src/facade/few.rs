//! An index for kinds of which an account has few: in the order of lists, without filters.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use kube::Resource as _;
use parking_lot::RwLock;

use super::{
    entry::{Entry, Index, Kept as _},
    id::PublicId as _,
    progress::Progress,
};

/// Newest first, then by id. The last part keeps apart an id that is a name from the same one derived from a UID.
type Order<I> = (Reverse<i64>, I, bool);

/// Every object of the kind that is not being deleted, by namespace.
pub struct Few<E: Entry> {
    namespaces: RwLock<HashMap<Box<str>, Namespace<E>>>,
    progress: Progress,
}

struct Namespace<E: Entry> {
    ordered: BTreeMap<Order<E::Id>, Arc<E>>,
    /// Seconds of creation, by id and whether that is derived.
    created: HashMap<(E::Id, bool), Reverse<i64>>,
}

impl<E: Entry> Default for Few<E> {
    fn default() -> Self {
        Self {
            namespaces: RwLock::default(),
            progress: Progress::default(),
        }
    }
}

impl<E: Entry> Default for Namespace<E> {
    fn default() -> Self {
        Self {
            ordered: BTreeMap::new(),
            created: HashMap::new(),
        }
    }
}

impl<E: Entry> Few<E> {
    /// How many there are in a namespace.
    pub fn count(&self, namespace: &str) -> usize {
        let namespaces = self.namespaces.read();
        namespaces
            .get(namespace)
            .map_or(0, |namespace| namespace.ordered.len())
    }

    /// One page, newest first, and how many there are in all. `page` counts from 1.
    pub fn page(&self, namespace: &str, page: u64, limit: usize) -> (Vec<Arc<E>>, usize) {
        let namespaces = self.namespaces.read();
        let Some(namespace) = namespaces.get(namespace) else {
            return (Vec::new(), 0);
        };
        let skip = usize::try_from(page.saturating_sub(1))
            .unwrap_or(usize::MAX)
            .saturating_mul(limit);
        let shown = namespace.ordered.values().skip(skip).take(limit);
        (shown.cloned().collect(), namespace.ordered.len())
    }
}

impl<E: Entry> Namespace<E> {
    fn apply(&mut self, entry: E) {
        self.remove(&entry);
        let (created, id, derived) = order(&entry);
        self.created.insert((id, derived), created);
        self.ordered.insert((created, id, derived), Arc::new(entry));
    }

    fn remove(&mut self, entry: &E) {
        let (_, id, derived) = order(entry);
        if let Some(created) = self.created.remove(&(id, derived)) {
            self.ordered.remove(&(created, id, derived));
        }
    }

    fn get(&self, id: E::Id, derived: bool) -> Option<&Arc<E>> {
        let created = *self.created.get(&(id, derived))?;
        self.ordered.get(&(created, id, derived))
    }
}

fn order<E: Entry>(entry: &E) -> Order<E::Id> {
    let (object, id) = (entry.object(), entry.id());
    let created = object.meta().creation_timestamp.as_ref();
    (
        Reverse(created.map_or(0, |time| time.0.as_second())),
        id,
        id.name() != object.name(),
    )
}

impl<E: Entry> Index for Few<E> {
    type Entry = E;

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn get(&self, namespace: &str, id: E::Id) -> Option<Arc<E>> {
        let namespaces = self.namespaces.read();
        let namespace = namespaces.get(namespace)?;
        namespace
            .get(id, false)
            .or_else(|| namespace.get(id, true))
            .cloned()
    }

    fn replace(&self, objects: &[Arc<E::Object>]) {
        let mut all: HashMap<Box<str>, Namespace<E>> = HashMap::new();
        for object in objects.iter().filter(|object| !object.is_leaving()) {
            let namespace = all.entry(object.namespace().into()).or_default();
            namespace.apply(E::of(object.clone()));
        }
        *self.namespaces.write() = all;
    }

    fn apply(&self, object: &Arc<E::Object>) {
        let mut namespaces = self.namespaces.write();
        let namespace = namespaces.entry(object.namespace().into()).or_default();
        namespace.apply(E::of(object.clone()));
    }

    fn take_out(&self, object: &E::Object) {
        let mut namespaces = self.namespaces.write();
        if let Some(namespace) = namespaces.get_mut(object.namespace()) {
            namespace.remove(&E::of(Arc::new(object.clone())));
            if namespace.ordered.is_empty() {
                namespaces.remove(object.namespace());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::{entry::changed, webhooks::ShownWebhook},
        *,
    };
    use crate::{resources::Webhook, runtime::watch::Change};

    fn webhook(name: &str, second: u8, deleting: bool) -> Arc<Webhook> {
        let mut object = json!({
            "metadata": {
                "name": name, "namespace": "demo", "uid": name, "resourceVersion": "7",
                "creationTimestamp": format!("2026-11-21T10:00:0{second}Z"),
            },
            "spec": { "url": "https://example.com", "events": ["instance.created"], "secretRef": { "name": "s" } },
        });
        if deleting {
            object["metadata"]["deletionTimestamp"] = json!("2026-11-21T11:00:00Z");
        }
        Arc::new(serde_json::from_value(object).unwrap())
    }

    #[tokio::test]
    async fn the_newest_comes_first_and_what_goes_is_shown_no_more() {
        let index = Few::<ShownWebhook>::default();
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
        let derived = ShownWebhook::of(webhook(c, 2, false));
        assert!(!index.is_gone(&derived));
        // Made anew a second later under the same name.
        changed(&index, &Change::Applied(webhook(a, 3, false)));
        assert_eq!(names(1, 1), (vec![a.to_owned()], 3));
        changed(&index, &Change::Applied(webhook(c, 2, true)));
        changed(&index, &Change::Deleted(webhook(b, 1, false)));
        assert!(index.is_gone(&derived) && index.progress().wait_for(7).await);
        assert_eq!(names(1, 9), (vec![a.to_owned()], 1));
    }

    #[test]
    fn of_two_with_one_id_the_one_that_has_it_as_its_name_is_found() {
        let index = Few::<ShownWebhook>::default();
        let derived = webhook("orders", 1, false);
        let id = crate::facade::id::WebhookId::of(&derived);
        let copy = webhook(&id.name(), 2, false);
        changed(&index, &Change::Replaced(vec![copy.clone(), derived.clone()]));
        let found = |index: &Few<ShownWebhook>| index.get("demo", id).map(|s| s.object().name().to_owned());
        assert_eq!(found(&index).as_deref(), copy.metadata.name.as_deref());
        changed(&index, &Change::Deleted(copy));
        assert_eq!(found(&index).as_deref(), Some("orders"));
    }
}
