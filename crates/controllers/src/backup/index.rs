//! The backups, by namespace, name and instance. No I/O: fed by the watch.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;

use domain::backup::retention::{Age, FAILED_KEPT, age, counts, is_left_over};
use resources::{Backup, Instance};
use runtime::{
    ReconcileQueue,
    watch::{Change, Listener},
};

/// All backups, as shown by the watch or by a later write of this process. Cheap to clone.
#[derive(Clone)]
pub struct BackupIndex {
    namespaces: Arc<Mutex<HashMap<String, Namespace>>>,
    queue: ReconcileQueue<Backup>,
}

#[derive(Default)]
struct Namespace {
    by_name: HashMap<String, Arc<Backup>>,
    /// Names of backups by the name of their instance.
    by_instance: HashMap<String, BTreeSet<String>>,
    /// Backups that count towards the account's limit, by name.
    counted: HashMap<String, Arc<Backup>>,
    /// Failed backups of deleted instances.
    left_over: BTreeMap<Age, Arc<Backup>>,
}

impl Namespace {
    fn insert(&mut self, backup: &Arc<Backup>) {
        let name = backup.metadata.name.clone().unwrap_or_default();
        let of_instance = self.by_instance.entry(backup.spec.instance.clone());
        of_instance.or_default().insert(name.clone());
        if counts(backup) {
            self.counted.insert(name.clone(), backup.clone());
        } else if is_left_over(backup) {
            self.left_over.insert(age(backup), backup.clone());
        }
        self.by_name.insert(name, backup.clone());
    }

    fn remove(&mut self, backup: &Backup) {
        let name = backup.metadata.name.as_deref().unwrap_or_default();
        self.by_name.remove(name);
        self.counted.remove(name);
        self.left_over.remove(&age(backup));
        if let Some(names) = self.by_instance.get_mut(&backup.spec.instance) {
            names.remove(name);
            if names.is_empty() {
                self.by_instance.remove(&backup.spec.instance);
            }
        }
    }
}

impl BackupIndex {
    /// An empty index. `queue` knows this process's own writes.
    pub fn new(queue: ReconcileQueue<Backup>) -> Self {
        Self {
            namespaces: Arc::default(),
            queue,
        }
    }

    /// The Backup with this name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Backup>> {
        let shown = self.namespaces.lock().get(namespace)?.by_name.get(name).cloned();
        shown.map(|shown| self.queue.freshest(shown))
    }

    /// The backups of the Instance with this name, including those of earlier Instances with the same name.
    pub fn of(&self, namespace: &str, instance: &str) -> Vec<Arc<Backup>> {
        let shown: Vec<Arc<Backup>> = {
            let namespaces = self.namespaces.lock();
            let Some(namespace) = namespaces.get(namespace) else {
                return Vec::new();
            };
            let names = namespace.by_instance.get(instance).into_iter().flatten();
            names
                .filter_map(|name| namespace.by_name.get(name).cloned())
                .collect()
        };
        shown
            .into_iter()
            .map(|shown| self.queue.freshest(shown))
            .collect()
    }

    /// All backups in a namespace.
    pub fn within(&self, namespace: &str) -> Vec<Arc<Backup>> {
        let namespaces = self.namespaces.lock();
        let of_it = namespaces
            .get(namespace)
            .into_iter()
            .flat_map(|namespace| namespace.by_name.values());
        of_it.cloned().collect()
    }

    /// Passes the backups that count towards their account's limit to `look`.
    pub(super) fn counted<T>(
        &self,
        namespace: &str,
        look: impl FnOnce(&mut dyn Iterator<Item = &Backup>) -> T,
    ) -> T {
        let namespaces = self.namespaces.lock();
        let counted = namespaces.get(namespace).into_iter();
        let counted = counted.flat_map(|namespace| namespace.counted.values());
        look(&mut counted.map(|backup| &**backup))
    }

    /// Passes the failed backups of deleted instances to `look`, youngest first.
    pub(super) fn left_over<T>(
        &self,
        namespace: &str,
        look: impl FnOnce(&mut dyn Iterator<Item = &Backup>) -> T,
    ) -> T {
        let namespaces = self.namespaces.lock();
        let left_over = namespaces.get(namespace).into_iter();
        let left_over = left_over.flat_map(|namespace| namespace.left_over.values().rev());
        look(&mut left_over.map(|backup| &**backup))
    }

    /// The oldest failed backup of a deleted instance, if there are more than are kept.
    pub(super) fn surplus(&self, namespace: &str) -> Option<Arc<Backup>> {
        let namespaces = self.namespaces.lock();
        let left_over = &namespaces.get(namespace)?.left_over;
        let (_, oldest) = left_over.first_key_value()?;
        (left_over.len() > FAILED_KEPT).then(|| oldest.clone())
    }

    pub fn all(&self) -> Vec<Arc<Backup>> {
        let namespaces = self.namespaces.lock();
        let all = namespaces
            .values()
            .flat_map(|namespace| namespace.by_name.values());
        all.cloned().collect()
    }

    /// Whether a backup of the instance is waiting or running.
    pub fn has_unfinished(&self, instance: &Instance) -> bool {
        let metadata = &instance.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let of_name = self.of(namespace, metadata.name.as_deref().unwrap_or_default());
        of_name
            .iter()
            .any(|backup| backup.is_of(instance) && !backup.is_abandoned() && backup.is_unfinished())
    }

    /// The listener for the watch of Backups.
    pub fn listener(&self) -> Box<dyn Listener<Backup>> {
        let index = self.clone();
        Box::new(move |change: &Change<Backup>| index.changed(change))
    }

    fn changed(&self, change: &Change<Backup>) {
        let namespace = |backup: &Backup| backup.metadata.namespace.clone().unwrap_or_default();
        match change {
            Change::Replaced(all) => {
                let mut listed: HashMap<String, Namespace> = HashMap::new();
                for backup in all {
                    listed.entry(namespace(backup)).or_default().insert(backup);
                }
                *self.namespaces.lock() = listed;
            }
            Change::Applied(backup) => {
                let mut namespaces = self.namespaces.lock();
                let of_namespace = namespaces.entry(namespace(backup)).or_default();
                // An earlier backup of the same name may have belonged to another instance.
                if let Some(before) = of_namespace
                    .by_name
                    .get(backup.metadata.name.as_deref().unwrap_or_default())
                    .cloned()
                {
                    of_namespace.remove(&before);
                }
                of_namespace.insert(backup);
            }
            Change::Deleted(backup) => {
                let mut namespaces = self.namespaces.lock();
                let namespace = namespace(backup);
                if let Some(of_namespace) = namespaces.get_mut(&namespace) {
                    of_namespace.remove(backup);
                    if of_namespace.by_name.is_empty() {
                        namespaces.remove(&namespace);
                    }
                }
            }
            Change::Unreadable(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;

    fn backup(name: &str, instance: &str, uid: Option<&str>, phase: &str) -> Arc<Backup> {
        let backup = json!({
            "metadata": { "name": name, "namespace": "ns", "uid": name, "resourceVersion": "1" },
            "spec": { "instance": instance, "instanceUID": uid },
            "status": { "phase": phase },
        });
        Arc::new(serde_json::from_value(backup).unwrap())
    }

    #[test]
    fn it_finds_the_backups_of_an_instance_and_not_those_of_an_earlier_one_of_its_name() {
        let index = BackupIndex::new(ReconcileQueue::default());
        let instance: Instance = serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "ns", "uid": "new" },
            "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
        }))
        .unwrap();
        index.changed(&Change::Replaced(vec![
            backup("a", "web", Some("old"), "Running"),
            backup("b", "web", Some("new"), "Completed"),
            backup("c", "other", None, "Running"),
        ]));
        assert_eq!(index.of("ns", "web").len(), 2);
        assert!(!index.has_unfinished(&instance));
        index.changed(&Change::Applied(backup("d", "web", None, "Waiting")));
        assert!(index.has_unfinished(&instance));
        let mut abandoned = (*backup("e", "web", Some("new"), "Running")).clone();
        abandoned.metadata.finalizers = Some(vec!["example.com/theirs".to_owned()]);
        // Somebody removed the operator's finalizer and deleted it, so nothing will ever finish it.
        abandoned.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        index.changed(&Change::Applied(Arc::new(abandoned)));
        assert!(index.get("ns", "d").is_some() && index.get("other", "d").is_none());
        // Deleted, and created again for another instance.
        index.changed(&Change::Applied(backup("d", "other", None, "Waiting")));
        assert!(!index.has_unfinished(&instance));
        // Those that count, in whichever way they came to count.
        let counted = || {
            index.counted("ns", |all| {
                all.map(|backup| backup.metadata.name.clone().unwrap())
                    .collect::<BTreeSet<_>>()
            })
        };
        assert_eq!(
            counted(),
            BTreeSet::from(["a", "b", "c", "d"].map(ToOwned::to_owned))
        );
        let of_deleted = |name: &str, phase: &str| {
            let mut backup = (*backup(name, "web", Some("old"), phase)).clone();
            backup.spec.scheduled_for = Some(Timestamp::UNIX_EPOCH);
            backup.status.as_mut().unwrap().instance_deleted = true;
            Change::Applied(Arc::new(backup))
        };
        index.changed(&of_deleted("f", "Completed"));
        assert!(counted().contains("f"));
        index.changed(&Change::Applied(backup("c", "other", None, "Failed")));
        assert!(!counted().contains("c"));
        for number in 0..FAILED_KEPT {
            index.changed(&of_deleted(&format!("failed-{number}"), "Failed"));
        }
        assert!(index.surplus("ns").is_none());
        index.changed(&of_deleted("failed-x", "Failed"));
        assert!(index.surplus("ns").is_some());
        for backup in index.within("ns") {
            index.changed(&Change::Deleted(backup));
        }
        assert!(index.namespaces.lock().is_empty());
    }
}
