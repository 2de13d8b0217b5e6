//! Finds new events in the outboxes of instances.

use std::collections::{HashMap, HashSet};

use kube::{ResourceExt as _, core::DeserializeGuard, runtime::watcher::Event};

use crate::{events::OutboxEntry, resources::Instance};

/// An event that was just recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    /// UID of the instance.
    pub(super) object: String,
    /// The event.
    pub(super) entry: OutboxEntry,
}

/// The events in the outboxes as last seen. A watch shows the versions of an object in order, so an event that was not in the
/// last version is new. Memory use is bounded by the size of the outboxes.
#[derive(Debug, Default)]
pub(super) struct Outboxes {
    seen: HashMap<String, HashSet<String>>,
    /// The outboxes of the list being received.
    listed: HashMap<String, HashSet<String>>,
    /// Whether the first list is complete. Its events were recorded before the start, so they are not new.
    started: bool,
}

impl Outboxes {
    /// Whether the first list is complete.
    pub(super) const fn has_started(&self) -> bool {
        self.started
    }

    /// Applies a change and returns the new events.
    pub(super) fn changed(&mut self, change: Event<DeserializeGuard<Instance>>) -> Vec<Recorded> {
        match change {
            Event::Init => {
                self.listed.clear();
                Vec::new()
            }
            Event::InitApply(DeserializeGuard(Ok(instance))) => {
                remember(&mut self.listed, &instance);
                if !self.started {
                    return Vec::new();
                }
                // Remember them at once: the list may fail and start again.
                let new = self.unseen(&instance);
                remember(&mut self.seen, &instance);
                new
            }
            Event::InitDone => {
                self.seen = std::mem::take(&mut self.listed);
                self.started = true;
                Vec::new()
            }
            Event::Apply(DeserializeGuard(Ok(instance))) => {
                let new = self.unseen(&instance);
                remember(&mut self.seen, &instance);
                new
            }
            Event::Delete(DeserializeGuard(Ok(instance))) => {
                let new = self.unseen(&instance);
                self.seen.remove(&instance.uid().unwrap_or_default());
                new
            }
            // The operator, too, ignores objects that do not match their schema.
            Event::InitApply(_) | Event::Apply(_) | Event::Delete(_) => Vec::new(),
        }
    }

    fn unseen(&self, instance: &Instance) -> Vec<Recorded> {
        let object = instance.uid().unwrap_or_default();
        let seen = self.seen.get(&object);
        outbox(instance)
            .iter()
            .filter(|entry| seen.is_none_or(|seen| !seen.contains(&entry.id)))
            .map(|entry| Recorded {
                object: object.clone(),
                entry: entry.clone(),
            })
            .collect()
    }
}

fn outbox(instance: &Instance) -> &[OutboxEntry] {
    instance
        .status
        .as_ref()
        .map(|status| status.outbox.as_slice())
        .unwrap_or_default()
}

fn remember(outboxes: &mut HashMap<String, HashSet<String>>, instance: &Instance) {
    let object = instance.uid().unwrap_or_default();
    let ids: HashSet<String> = outbox(instance).iter().map(|entry| entry.id.clone()).collect();
    if ids.is_empty() {
        outboxes.remove(&object);
    } else {
        outboxes.insert(object, ids);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn instance(uid: &str, ids: &[&str]) -> DeserializeGuard<Instance> {
        let outbox: Vec<_> = ids
            .iter()
            .map(|id| {
                json!({
                    "id": id, "type": "instance.started", "sequence": 1, "createdAt": "2026-11-21T10:00:00Z",
                    "body": "{}",
                })
            })
            .collect();
        let instance = json!({
            "metadata": { "name": uid, "uid": uid },
            "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
            "status": { "outbox": outbox },
        });
        DeserializeGuard(Ok(serde_json::from_value(instance).unwrap()))
    }

    fn new_in(outboxes: &mut Outboxes, change: Event<DeserializeGuard<Instance>>) -> Vec<String> {
        let new = outboxes.changed(change);
        new.into_iter().map(|recorded| recorded.entry.id).collect()
    }

    fn started(objects: &[(&str, &[&str])]) -> Outboxes {
        let mut outboxes = Outboxes::default();
        assert!(new_in(&mut outboxes, Event::Init).is_empty());
        for (uid, ids) in objects {
            assert!(new_in(&mut outboxes, Event::InitApply(instance(uid, ids))).is_empty());
        }
        assert!(!outboxes.has_started());
        assert!(new_in(&mut outboxes, Event::InitDone).is_empty());
        assert!(outboxes.has_started());
        outboxes
    }

    #[test]
    fn each_event_recorded_after_the_start_is_new_once() {
        let mut outboxes = started(&[("a", &["old"])]);
        assert_eq!(
            new_in(&mut outboxes, Event::Apply(instance("a", &["old", "1", "2"]))),
            ["1", "2"]
        );
        assert!(new_in(&mut outboxes, Event::Apply(instance("a", &["old", "1", "2"]))).is_empty());
        assert_eq!(
            new_in(&mut outboxes, Event::Apply(instance("a", &["2", "3"]))),
            ["3"]
        );
        assert_eq!(new_in(&mut outboxes, Event::Apply(instance("b", &["4"]))), ["4"]);
        assert_eq!(
            new_in(&mut outboxes, Event::Delete(instance("b", &["4", "5"]))),
            ["5"]
        );
    }

    #[test]
    fn after_a_new_list_only_events_recorded_since_are_new() {
        let mut outboxes = started(&[("a", &["old"]), ("gone", &["x"])]);
        new_in(&mut outboxes, Event::Apply(instance("a", &["old", "1"])));
        new_in(&mut outboxes, Event::Init);
        assert_eq!(
            new_in(
                &mut outboxes,
                Event::InitApply(instance("a", &["old", "1", "meanwhile"]))
            ),
            ["meanwhile"]
        );
        // The list fails and starts again.
        new_in(&mut outboxes, Event::Init);
        let again = Event::InitApply(instance("a", &["old", "1", "meanwhile"]));
        assert!(new_in(&mut outboxes, again).is_empty());
        new_in(&mut outboxes, Event::InitDone);
        assert!(
            new_in(
                &mut outboxes,
                Event::Apply(instance("a", &["old", "1", "meanwhile"]))
            )
            .is_empty()
        );
    }

    #[test]
    fn empty_and_deleted_outboxes_take_no_memory() {
        let mut outboxes = started(&[("a", &["1"]), ("b", &["2"]), ("c", &["3"])]);
        new_in(&mut outboxes, Event::Apply(instance("a", &[])));
        new_in(&mut outboxes, Event::Delete(instance("b", &["2"])));
        assert_eq!(outboxes.seen.len(), 1);
        new_in(&mut outboxes, Event::Init);
        new_in(&mut outboxes, Event::InitDone);
        assert!(outboxes.seen.is_empty() && outboxes.listed.is_empty());
    }
}
