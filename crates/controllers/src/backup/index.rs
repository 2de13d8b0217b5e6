//! The backups, by namespace, name and instance. No I/O: fed by the watch.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use parking_lot::Mutex;

use domain::backup::retention::{Age, age, counts, is_left_over};
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
    /// Manual backups that count towards the account's limit, by name.
    manual: HashMap<String, Arc<Backup>>,
    /// Scheduled backups of deleted instances, which share that limit.
    left_over: BTreeMap<Age, Arc<Backup>>,
}

impl Namespace {
    fn insert(&mut self, backup: &Arc<Backup>) {
        let name = backup.metadata.name.clone().unwrap_or_default();
        let of_instance = self.by_instance.entry(backup.spec.instance.clone());
        of_instance.or_default().insert(name.clone());
        if counts(backup) {
            self.manual.insert(name.clone(), backup.clone());
        } else if is_left_over(backup) {
            self.left_over.insert(age(backup), backup.clone());
        }
        self.by_name.insert(name, backup.clone());
    }

    fn remove(&mut self, backup: &Backup) {
        let name = backup.metadata.name.as_deref().unwrap_or_default();
        self.by_name.remove(name);
        self.manual.remove(name);
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

    /// Passes the backups that share their account's limit to `look`: first the manual ones, then the scheduled ones of
    /// deleted instances, youngest first. There are hardly more than the limit, however many backups the account has.
    pub(super) fn sharing<T>(
        &self,
        namespace: &str,
        look: impl FnOnce(&mut dyn Iterator<Item = &Backup>) -> T,
    ) -> T {
        let namespaces = self.namespaces.lock();
        let mut sharing = namespaces.get(namespace).into_iter().flat_map(|namespace| {
            let left_over = namespace.left_over.values().rev();
            namespace.manual.values().chain(left_over).map(|backup| &**backup)
        });
        look(&mut sharing)
    }

    /// The oldest scheduled backup of a deleted instance.
    pub(super) fn oldest_left_over(&self, namespace: &str) -> Option<Arc<Backup>> {
        let namespaces = self.namespaces.lock();
        let (_, oldest) = namespaces.get(namespace)?.left_over.first_key_value()?;
        Some(oldest.clone())
    }

    /// Number of backups in a namespace.
    pub fn count(&self, namespace: &str) -> usize {
        let namespaces = self.namespaces.lock();
        namespaces
            .get(namespace)
            .map_or(0, |namespace| namespace.by_name.len())
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
        self.any_of(instance, Backup::is_unfinished)
    }

    /// Whether a scheduled backup of the instance other than the one for `due` is waiting or running.
    pub fn has_other_unfinished_scheduled(&self, instance: &Instance, due: Timestamp) -> bool {
        let is_other = |at: Timestamp| at.as_second() != due.as_second();
        self.any_of(instance, |backup| {
            backup.is_unfinished() && backup.spec.scheduled_for.is_some_and(is_other)
        })
    }

    fn any_of(&self, instance: &Instance, is_one: impl Fn(&Backup) -> bool) -> bool {
        let metadata = &instance.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let of_name = self.of(namespace, metadata.name.as_deref().unwrap_or_default());
        of_name
            .iter()
            .any(|backup| backup.is_of(instance) && !backup.is_abandoned() && is_one(backup))
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
    use jiff::SignedDuration;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;
    use resources::BackupPhase;

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
        let due: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        assert!(index.has_unfinished(&instance) && !index.has_other_unfinished_scheduled(&instance, due));
        let mut scheduled = (*backup("e", "web", Some("new"), "Running")).clone();
        scheduled.spec.scheduled_for = Some(due);
        scheduled.metadata.finalizers = Some(vec!["example.com/theirs".to_owned()]);
        index.changed(&Change::Applied(Arc::new(scheduled.clone())));
        assert!(!index.has_other_unfinished_scheduled(&instance, due), "its own");
        let tomorrow = due + SignedDuration::from_hours(24);
        assert!(index.has_other_unfinished_scheduled(&instance, tomorrow));
        // Somebody removed the operator's finalizer and deleted it, so nothing will ever finish it.
        scheduled.metadata.deletion_timestamp = Some(Time(due));
        index.changed(&Change::Applied(Arc::new(scheduled.clone())));
        assert!(!index.has_other_unfinished_scheduled(&instance, tomorrow));
        assert!(index.get("ns", "d").is_some() && index.get("other", "d").is_none());
        // Deleted, and created again for another instance.
        index.changed(&Change::Applied(backup("d", "other", None, "Waiting")));
        assert!(!index.has_unfinished(&instance));
        // Backups that share a limit, in whichever way they came to share it.
        let sharing = || {
            index.sharing("ns", |all| {
                all.map(|backup| backup.metadata.name.clone().unwrap())
                    .collect::<BTreeSet<_>>()
            })
        };
        assert_eq!(
            sharing(),
            BTreeSet::from(["a", "b", "c", "d"].map(ToOwned::to_owned))
        );
        let mut left_over = scheduled.clone();
        left_over.metadata.deletion_timestamp = None;
        left_over.status.as_mut().unwrap().phase = Some(BackupPhase::Completed);
        left_over.status.as_mut().unwrap().instance_deleted = true;
        index.changed(&Change::Applied(Arc::new(left_over.clone())));
        assert!(sharing().contains("e"));
        let mut older = left_over.clone();
        older.metadata.name = Some("f".to_owned());
        older.metadata.uid = Some("f".to_owned());
        older.spec.scheduled_for = Some(due - SignedDuration::from_hours(24));
        index.changed(&Change::Applied(Arc::new(older)));
        let oldest = index.oldest_left_over("ns").unwrap();
        assert_eq!(oldest.metadata.name.as_deref(), Some("f"));
        index.changed(&Change::Applied(backup("c", "other", None, "Failed")));
        assert!(!sharing().contains("c"));
        for name in ["a", "b", "c", "d", "e", "f"] {
            let backup = index.get("ns", name).unwrap();
            index.changed(&Change::Deleted(backup));
        }
        assert!(index.namespaces.lock().is_empty());
    }
}
