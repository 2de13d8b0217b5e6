//! Which instances are restored from which backup. No I/O: fed by the watch of Instances. When a backup changes, only the instances
//! that name it are looked at, however many the account has.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;

use resources::{Backup, Instance};
use runtime::{
    ObjectRef, ReconcileQueue,
    watch::{Change, Listener},
};

/// The instances that name a backup to restore, as shown by the watch. Cheap to clone.
#[derive(Clone, Default)]
pub struct Restores {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Instances by name, keyed by the namespace and name of the backup.
    targets: HashMap<ObjectRef, BTreeMap<String, Arc<Instance>>>,
    /// Names of backups, keyed by the namespace and name of the instance.
    named: HashMap<ObjectRef, Vec<String>>,
}

/// The backup that the instance's spec names, and the one that is being restored to it.
fn named(instance: &Instance) -> impl Iterator<Item = &str> {
    let status = instance.status.as_ref();
    let operation = status.and_then(|status| status.operation.as_ref());
    let under_way = operation.and_then(|operation| operation.restore_from.as_deref());
    instance.spec.restore_from.as_deref().into_iter().chain(under_way)
}

impl State {
    fn insert(&mut self, instance: &Arc<Instance>) {
        let object_ref = ObjectRef::of(&**instance);
        for backup in named(instance) {
            let targets = self.targets.entry(ObjectRef::new(object_ref.namespace(), backup));
            targets
                .or_default()
                .insert(object_ref.name().to_owned(), instance.clone());
            self.named
                .entry(object_ref.clone())
                .or_default()
                .push(backup.to_owned());
        }
    }

    fn remove(&mut self, instance: &Instance) {
        let object_ref = ObjectRef::of(instance);
        let backups = self.named.remove(&object_ref);
        for backup in backups.into_iter().flatten() {
            let of_backup = ObjectRef::new(object_ref.namespace(), &backup);
            if let Some(targets) = self.targets.get_mut(&of_backup) {
                targets.remove(object_ref.name());
                if targets.is_empty() {
                    self.targets.remove(&of_backup);
                }
            }
        }
    }
}

impl Restores {
    /// The instances that name this backup.
    pub(super) fn targets(&self, backup: &Backup) -> Vec<Arc<Instance>> {
        let state = self.state.lock();
        let targets = state.targets.get(&ObjectRef::of(backup)).into_iter();
        targets.flat_map(BTreeMap::values).cloned().collect()
    }

    /// The listener for the watch of Instances.
    pub fn listener(&self) -> Box<dyn Listener<Instance>> {
        let restores = self.clone();
        Box::new(move |change: &Change<Instance>| restores.changed(change))
    }

    /// The listener for the watch of Backups. It queues the instances that are to be restored from a changed backup, and must be
    /// called after the index's listener.
    pub fn backup_listener(&self, queue: ReconcileQueue<Instance>) -> Box<dyn Listener<Backup>> {
        let restores = self.clone();
        Box::new(move |change: &Change<Backup>| {
            if let Change::Applied(backup) | Change::Deleted(backup) = change {
                queue.again(restores.targets(backup));
            }
        })
    }

    fn changed(&self, change: &Change<Instance>) {
        let mut state = self.state.lock();
        match change {
            Change::Replaced(all) => {
                *state = State::default();
                for instance in all {
                    state.insert(instance);
                }
            }
            Change::Applied(instance) => {
                state.remove(instance);
                state.insert(instance);
            }
            Change::Deleted(instance) => state.remove(instance),
            Change::Unreadable(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn instance(name: &str, wanted: Option<&str>, under_way: Option<&str>) -> Arc<Instance> {
        let operation = under_way.map(|backup| {
            json!({
                "kind": "Rebuild", "startedAt": "2026-11-21T10:00:00Z", "plan": "starter", "image": "debian-13",
                "restoreFrom": backup, "endsIn": "Running",
            })
        });
        let instance = json!({
            "metadata": { "name": name, "namespace": "ns" },
            "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13", "restoreFrom": wanted },
            "status": { "operation": operation },
        });
        Arc::new(serde_json::from_value(instance).unwrap())
    }

    fn targets(restores: &Restores, backup: &str) -> Vec<String> {
        let backup =
            json!({ "metadata": { "name": backup, "namespace": "ns" }, "spec": { "instance": "web" } });
        let targets = restores.targets(&serde_json::from_value(backup).unwrap());
        let names = targets
            .into_iter()
            .map(|target| target.metadata.name.clone().unwrap());
        names.collect()
    }

    #[test]
    fn it_knows_who_names_a_backup_and_forgets_who_no_longer_does() {
        let restores = Restores::default();
        restores.changed(&Change::Applied(instance("old", Some("a"), None)));
        restores.changed(&Change::Replaced(vec![
            instance("one", Some("a"), None),
            instance("two", Some("a"), Some("b")),
            instance("three", None, None),
        ]));
        assert_eq!(targets(&restores, "a"), ["one", "two"]);
        assert_eq!(targets(&restores, "b"), ["two"]);
        restores.changed(&Change::Applied(instance("one", Some("b"), None)));
        restores.changed(&Change::Applied(instance("two", None, None)));
        restores.changed(&Change::Applied(instance("three", Some("c"), Some("c"))));
        assert_eq!(targets(&restores, "b"), ["one"]);
        assert_eq!(targets(&restores, "c"), ["three"]);
        restores.changed(&Change::Deleted(instance("one", Some("b"), None)));
        restores.changed(&Change::Deleted(instance("three", None, None)));
        let state = restores.state.lock();
        assert!(state.targets.is_empty() && state.named.is_empty());
    }
}
