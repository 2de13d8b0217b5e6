//! Where events come from: the objects of each kind with an outbox, as the kind's watch and controller know them.

use std::sync::Arc;

use domain::event::OutboxVersion;
use resources::HasOutbox;
use runtime::{ReconcileQueue, Store};

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
