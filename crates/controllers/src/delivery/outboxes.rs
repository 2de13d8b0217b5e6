//! Where events come from: the objects of each kind with an outbox, as the kind's watch and controller know them.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::webhook::shared::{Shared, State};
use domain::{
    delivery::{DeliveryLog, Now, Origin},
    event::{Outbox, OutboxEntry, OutboxVersion},
};
use resources::HasOutbox;
use runtime::{ReconcileQueue, Store};

/// How long an outbox entry seen in the watch is left to the reconcile that wrote it, before the worker takes it over.
const CLAIM_GRACE: Duration = Duration::from_secs(2);
/// Outboxes taken over each time the lock is held. Each may have dozens of events, and each event as many jobs.
const CLAIMS_AT_ONCE: usize = 8;

/// What is known of the objects with outboxes, besides what the dispatcher knows.
#[derive(Default)]
pub(crate) struct Outboxes {
    pub(super) sources: Sources,
    /// Objects with unclaimed outbox entries, and since when.
    pub(crate) unclaimed: VecDeque<(Instant, SourceRef)>,
    /// Deleted objects whose last event is still pending, by UID.
    pub(super) ending: HashMap<String, SourceRef>,
}

impl State {
    /// Passes the outbox of an object to the dispatcher.
    pub(super) fn outbox_seen(&mut self, outbox: &OutboxVersion<'_>, origin: Origin, now: Now) {
        if outbox.is_deleting && !outbox.uid.is_empty() {
            let ending = &mut self.outboxes.ending;
            ending.insert(outbox.uid.to_owned(), SourceRef::of(outbox));
        }
        self.dispatcher.outbox_seen(outbox, origin, now);
    }
}

impl Shared {
    /// Notes an outbox that the watch has shown. The worker takes over entries that remain unclaimed.
    pub(super) fn outbox_shown(&self, outbox: &OutboxVersion<'_>) {
        let now = self.now().mono;
        let mut state = self.state.lock();
        state.dispatcher.outbox_shown(outbox);
        let mut entries = outbox.entries.iter();
        if entries.any(|entry| !state.dispatcher.knows(&entry.id)) {
            let unclaimed = &mut state.outboxes.unclaimed;
            unclaimed.push_back((now, SourceRef::of(outbox)));
        }
    }

    /// Takes over some of the outbox entries that stayed unclaimed for [`CLAIM_GRACE`]. Returns when to check again.
    pub(crate) fn claim(&self, state: &mut State, now: Now) -> Option<Instant> {
        for _ in 0..CLAIMS_AT_ONCE {
            let is_due = |(since, _): &mut (Instant, _)| *since + CLAIM_GRACE <= now.mono;
            let Some((_, source)) = state.outboxes.unclaimed.pop_front_if(is_due) else {
                break;
            };
            // Use the current version, which no longer has entries that were claimed and removed since.
            state.outboxes.sources.clone().current(&source, |outbox| {
                state.outbox_seen(outbox, Origin::Found, now);
                self.wake.lookup.notify_one();
            });
        }
        let next = state.outboxes.unclaimed.front();
        next.map(|(since, _)| *since + CLAIM_GRACE)
    }

    /// Requeues the deleted object whose last event has been settled.
    pub(super) fn requeue(&self, uid: &str) {
        let (source, sources) = {
            let outboxes = &mut self.state.lock().outboxes;
            (outboxes.ending.remove(uid), outboxes.sources.clone())
        };
        if let Some(source) = source {
            sources.requeue(&source);
        }
    }
}

impl Outbox for Shared {
    fn is_settled(&self, event_id: &str) -> bool {
        self.state.lock().dispatcher.is_settled(event_id)
    }

    fn is_logged(&self) -> bool {
        self.deps.settings.delivery_log == DeliveryLog::All
    }

    fn has_unattempted(&self, namespace: &str) -> bool {
        self.state.lock().dispatcher.has_unattempted(namespace)
    }

    fn recorded(&self, outbox: &OutboxVersion<'_>, before: i64) {
        let entries = outbox.entries;
        let now = self.now();
        if !self.opening.lock().is_over() {
            return;
        }
        let mut state = self.state.lock();
        let is_news = entries.last().is_some_and(|entry| entry.sequence > before);
        // An earlier process may already have sent entries that the watch has not shown yet.
        let is_left_over =
            |entry: &OutboxEntry| entry.sequence <= before && !state.dispatcher.knows(&entry.id);
        let origin = if entries.iter().any(is_left_over) {
            Origin::Found
        } else {
            Origin::Fresh
        };
        // Even without new events, so that older versions from the watch are recognised as stale.
        state.outbox_seen(outbox, origin, now);
        drop(state);
        if is_news {
            self.wake.worker.notify_one();
            self.wake.lookup.notify_one();
        }
    }
}

/// The kind, namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceRef {
    kind: &'static str,
    object: runtime::ObjectRef,
}

impl SourceRef {
    pub(crate) fn of(outbox: &OutboxVersion<'_>) -> Self {
        Self {
            kind: outbox.kind,
            object: runtime::ObjectRef::new(outbox.namespace, outbox.name),
        }
    }
}

/// The objects of one kind: the store of its watch, and the queue of its controller. Cheap to clone.
#[derive(Clone)]
pub struct Source {
    kind: &'static str,
    objects: Arc<dyn Objects>,
}

impl Source {
    /// The objects of the kind `K`. A deleted object is put into `queue` again once its last event is settled.
    pub fn new<K: HasOutbox>(store: Store<K>, queue: ReconcileQueue<K>) -> Self {
        Self {
            kind: K::KIND,
            objects: Arc::new((store, queue)),
        }
    }
}

/// The sources of all kinds. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Sources(Arc<[Source]>);

impl Sources {
    pub(crate) fn new(sources: &[Source]) -> Self {
        Self(sources.into())
    }

    /// The objects that have events in their outboxes.
    pub(crate) fn with_events(&self) -> Vec<SourceRef> {
        self.0
            .iter()
            .flat_map(|source| source.objects.with_events())
            .collect()
    }

    /// Calls `see` with the outbox of the current version of an object, if the object exists.
    pub(crate) fn current(&self, object: &SourceRef, mut see: impl FnMut(&OutboxVersion<'_>)) {
        if let Some(source) = self.of(object) {
            source.objects.current(object, &mut see);
        }
    }

    /// Queues an object for its controller.
    pub(crate) fn requeue(&self, object: &SourceRef) {
        if let Some(source) = self.of(object) {
            source.objects.requeue(object);
        }
    }

    fn of(&self, object: &SourceRef) -> Option<&Source> {
        self.0.iter().find(|source| source.kind == object.kind)
    }
}

/// The objects of one kind, with the kind erased.
trait Objects: Send + Sync {
    fn with_events(&self) -> Vec<SourceRef>;
    fn current(&self, object: &SourceRef, see: &mut dyn FnMut(&OutboxVersion<'_>));
    fn requeue(&self, object: &SourceRef);
}

impl<K: HasOutbox> Objects for (Store<K>, ReconcileQueue<K>) {
    fn with_events(&self) -> Vec<SourceRef> {
        let all = self.0.state();
        let have_events = all.iter().filter(|object| !object.outbox().is_empty());
        have_events
            .map(|object| SourceRef::of(&OutboxVersion::of(&**object)))
            .collect()
    }

    fn current(&self, object: &SourceRef, see: &mut dyn FnMut(&OutboxVersion<'_>)) {
        if let Some(object) = self.0.get(&object.object) {
            see(&OutboxVersion::of(&*object));
        }
    }

    fn requeue(&self, object: &SourceRef) {
        self.1.again(self.0.get(&object.object));
    }
}
