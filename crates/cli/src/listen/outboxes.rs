//! Finds new events in the outboxes of the objects of an account.

use std::{
    collections::{HashMap, HashSet},
    fmt::Debug,
};

use futures::{Stream, StreamExt as _};
use kube::{
    Api,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;

use domain::event::{OutboxEntry, OutboxVersion};
use resources::HasOutbox;
use runtime::watch;

/// An event that was just recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    /// UID of its object.
    pub(super) object: String,
    /// The event.
    pub(super) entry: OutboxEntry,
}

/// The outboxes as last seen. A watch shows the versions of an object in order, so an event that was not in the previous
/// version is new. Memory use is bounded by the size of the outboxes.
#[derive(Debug, Default)]
pub(super) struct Outboxes {
    seen: HashMap<String, HashSet<String>>,
    /// The outboxes of the list being received.
    listed: HashMap<String, HashSet<String>>,
    /// Whether the first list is complete. Its events were recorded before the start, so they are not new.
    started: bool,
}

impl Outboxes {
    /// Applies a change and returns the new events.
    fn changed<K: HasOutbox>(&mut self, change: Event<DeserializeGuard<K>>) -> Vec<Recorded> {
        match change {
            Event::Init => {
                self.listed.clear();
                Vec::new()
            }
            Event::InitApply(DeserializeGuard(Ok(object))) => {
                let outbox = OutboxVersion::of(&object);
                remember(&mut self.listed, &outbox);
                if !self.started {
                    return Vec::new();
                }
                // Remember them immediately: the list may fail and start again.
                let new = self.unseen(&outbox);
                remember(&mut self.seen, &outbox);
                new
            }
            Event::InitDone => {
                self.seen = std::mem::take(&mut self.listed);
                self.started = true;
                Vec::new()
            }
            Event::Apply(DeserializeGuard(Ok(object))) => {
                let outbox = OutboxVersion::of(&object);
                let new = self.unseen(&outbox);
                remember(&mut self.seen, &outbox);
                new
            }
            Event::Delete(DeserializeGuard(Ok(object))) => {
                let outbox = OutboxVersion::of(&object);
                let new = self.unseen(&outbox);
                self.seen.remove(outbox.uid);
                new
            }
            // The operator, too, ignores objects that do not match their schema.
            Event::InitApply(_) | Event::Apply(_) | Event::Delete(_) => Vec::new(),
        }
    }

    fn unseen(&self, outbox: &OutboxVersion<'_>) -> Vec<Recorded> {
        let seen = self.seen.get(outbox.uid);
        outbox
            .entries
            .iter()
            .filter(|entry| seen.is_none_or(|seen| !seen.contains(&entry.id)))
            .map(|entry| Recorded {
                object: outbox.uid.to_owned(),
                entry: entry.clone(),
            })
            .collect()
    }
}

fn remember(outboxes: &mut HashMap<String, HashSet<String>>, outbox: &OutboxVersion<'_>) {
    let ids: HashSet<String> = outbox.entries.iter().map(|entry| entry.id.clone()).collect();
    if ids.is_empty() {
        outboxes.remove(outbox.uid);
    } else {
        outboxes.insert(outbox.uid.to_owned(), ids);
    }
}

/// What a change to objects of a kind brings.
#[derive(Debug)]
pub(super) struct News {
    /// The new events.
    pub(super) recorded: Vec<Recorded>,
    /// Whether a list is starting, which does not prove yet that the API server works.
    pub(super) is_beginning: bool,
    /// Whether the first list of the kind has just been completed.
    pub(super) has_started: bool,
}

/// Watches the objects of a kind.
pub(super) fn follow<K>(
    api: Api<DeserializeGuard<K>>,
) -> impl Stream<Item = watcher::Result<News>> + Send + use<K>
where
    K: HasOutbox + DeserializeOwned + Debug,
{
    let mut outboxes = Outboxes::default();
    let changes = watcher(api, watcher::Config::default()).backoff(watch::backoff());
    changes.map(move |change| {
        let change = change?;
        let was_started = outboxes.started;
        Ok(News {
            is_beginning: matches!(change, Event::Init),
            recorded: outboxes.changed(change),
            has_started: outboxes.started && !was_started,
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use resources::{Instance, testing};

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
        let patch = json!({ "metadata": { "name": uid, "uid": uid }, "status": { "outbox": outbox } });
        DeserializeGuard(Ok(testing::instance(patch)))
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
        assert!(!outboxes.started);
        assert!(new_in(&mut outboxes, Event::InitDone).is_empty());
        assert!(outboxes.started);
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
