//! Where events come from: the objects of each kind with an outbox, as the kind's watch and controller know them.

use std::sync::Arc;

use domain::event::OutboxVersion;
use resources::HasOutbox;
use runtime::{ReconcileQueue, Store};

/// The kind, namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    kind: &'static str,
    place: runtime::Place,
}

impl Place {
    pub(super) fn of(outbox: &OutboxVersion<'_>) -> Self {
        Self {
            kind: outbox.kind,
            place: runtime::Place::new(outbox.namespace, outbox.name),
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
pub(super) struct Sources(Arc<[Source]>);

impl Sources {
    pub(super) fn new(sources: &[Source]) -> Self {
        Self(sources.into())
    }

    /// The objects that have events in their outboxes.
    pub(super) fn with_events(&self) -> Vec<Place> {
        self.0
            .iter()
            .flat_map(|source| source.objects.with_events())
            .collect()
    }

    /// Calls `see` with the outbox of the current version of an object, if the object exists.
    pub(super) fn current(&self, place: &Place, mut see: impl FnMut(&OutboxVersion<'_>)) {
        if let Some(source) = self.of(place) {
            source.objects.current(place, &mut see);
        }
    }

    /// Queues an object for its controller.
    pub(super) fn requeue(&self, place: &Place) {
        if let Some(source) = self.of(place) {
            source.objects.requeue(place);
        }
    }

    fn of(&self, place: &Place) -> Option<&Source> {
        self.0.iter().find(|source| source.kind == place.kind)
    }
}

/// The objects of one kind, with the kind erased.
trait Objects: Send + Sync {
    fn with_events(&self) -> Vec<Place>;
    fn current(&self, place: &Place, see: &mut dyn FnMut(&OutboxVersion<'_>));
    fn requeue(&self, place: &Place);
}

impl<K: HasOutbox> Objects for (Store<K>, ReconcileQueue<K>) {
    fn with_events(&self) -> Vec<Place> {
        let all = self.0.state();
        let have_events = all.iter().filter(|object| !object.outbox().is_empty());
        have_events
            .map(|object| Place::of(&OutboxVersion::of(&**object)))
            .collect()
    }

    fn current(&self, place: &Place, see: &mut dyn FnMut(&OutboxVersion<'_>)) {
        if let Some(object) = self.0.get(&place.place) {
            see(&OutboxVersion::of(&*object));
        }
    }

    fn requeue(&self, place: &Place) {
        self.1.again(self.0.get(&place.place));
    }
}
