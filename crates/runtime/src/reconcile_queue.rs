//! The objects of a kind that a controller has to reconcile, and the latest known version of each.

use std::{collections::HashMap, sync::Arc};

use futures::{Stream, StreamExt as _, stream};
use kube::{Resource, core::error_boundary::InvalidObject};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{
    ObjectRef, Store,
    watch::{Change, Listener},
};
use resources::revision;

/// A kind that can be queued.
pub trait Queued: Resource<DynamicType = ()> + Clone + Send + Sync + 'static {}

impl<K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static> Queued for K {}

/// The messages of a channel, such as what a [work queue](super::work_queue) takes.
pub fn messages<T: Send>(receiver: mpsc::UnboundedReceiver<T>) -> impl Stream<Item = T> + Send + use<T> {
    stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|next| (next, receiver))
    })
}

/// Listens to the watch of a kind and feeds its controller. Closed until [`ReconcileQueue::open`]: a replica that does not
/// hold the Lease queues nothing. Cheap to clone; other controllers use a clone to requeue objects with
/// [`again`](Self::again).
pub struct ReconcileQueue<K: Queued> {
    inner: Arc<Mutex<Inner<K>>>,
}

struct Inner<K: Queued> {
    triggers: Option<mpsc::UnboundedSender<Arc<K>>>,
    unreadable: Option<mpsc::UnboundedSender<Arc<InvalidObject>>>,
    store: Option<Store<K>>,
    /// Our latest write of each object, by UID, until the watch has shown it.
    written: HashMap<String, Arc<K>>,
    /// Objects that do not match their schema, by namespace and name: some may have been seen before the queue was opened.
    unreadable_objects: HashMap<ObjectRef, Arc<InvalidObject>>,
}

impl<K: Queued> Default for ReconcileQueue<K> {
    fn default() -> Self {
        Self {
            inner: Arc::new(Mutex::new(Inner {
                triggers: None,
                unreadable: None,
                store: None,
                written: HashMap::new(),
                unreadable_objects: HashMap::new(),
            })),
        }
    }
}

impl<K: Queued> Clone for ReconcileQueue<K> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<K: Queued> ReconcileQueue<K> {
    /// Starts queueing, beginning with everything in the store. Returns the stream of objects to reconcile, and the
    /// stream of objects that do not match their schema.
    pub fn open(
        &self,
        store: &Store<K>,
    ) -> (
        impl Stream<Item = ObjectRef> + Send + use<K>,
        mpsc::UnboundedReceiver<Arc<InvalidObject>>,
    ) {
        let (triggers, pending) = mpsc::unbounded_channel();
        let (report, unreadable) = mpsc::unbounded_channel();
        let mut inner = self.inner.lock();
        for object in store.state() {
            let _ = triggers.send(object);
        }
        inner.triggers = Some(triggers);
        for object in inner.unreadable_objects.values() {
            let _ = report.send(Arc::clone(object));
        }
        inner.unreadable = Some(report);
        inner.store = Some(store.clone());
        (
            messages(pending).map(|object: Arc<K>| ObjectRef::of(&*object)),
            unreadable,
        )
    }

    /// Queues objects because something that they depend on has changed.
    pub fn again(&self, objects: impl IntoIterator<Item = Arc<K>>) {
        let inner = self.inner.lock();
        if let Some(triggers) = &inner.triggers {
            for object in objects {
                let _ = triggers.send(object);
            }
        }
    }

    /// Remembers an object that was just written, but for its `managedFields`, so that no decision is based on an older version.
    pub fn wrote(&self, mut object: K) -> Arc<K> {
        object.meta_mut().managed_fields = None;
        let object = Arc::new(object);
        if let Some(uid) = object.meta().uid.clone() {
            self.inner.lock().written.insert(uid, object.clone());
        }
        object
    }

    /// The newer of the watch's current version and our last write; `None` if the watch does not have the object.
    pub fn current(&self, object_ref: &ObjectRef) -> Option<Arc<K>> {
        let shown = self.inner.lock().store.as_ref()?.get(object_ref)?;
        Some(self.freshest(shown))
    }

    /// The newer of the watch's current version and our last write. `shown` may be outdated by the time it is dequeued.
    pub fn freshest(&self, shown: Arc<K>) -> Arc<K> {
        let mut inner = self.inner.lock();
        let current = inner
            .store
            .as_ref()
            .and_then(|store| store.get(&ObjectRef::of(&*shown)));
        let shown = current.unwrap_or(shown);
        let Some(uid) = shown.meta().uid.as_deref() else {
            return shown;
        };
        match inner.written.get(uid) {
            Some(written) if revision(&**written) > revision(&*shown) => Arc::clone(written),
            Some(_) => {
                inner.written.remove(uid);
                shown
            }
            None => shown,
        }
    }
}

impl<K: Queued> Inner<K> {
    /// Whether the watch shows only our own latest write, which the reconcile that wrote it has already seen.
    fn is_echo(&mut self, object: &K) -> bool {
        let Some(uid) = object.meta().uid.as_deref() else {
            return false;
        };
        match self.written.get(uid).map(|written| revision(&**written)) {
            Some(ours) if ours == revision(object) => {
                self.written.remove(uid);
                true
            }
            Some(ours) => ours > revision(object),
            None => false,
        }
    }

    fn gone(&mut self, object: &K) {
        if let Some(uid) = object.meta().uid.as_deref() {
            self.written.remove(uid);
        }
    }
}

impl<K: Queued> Listener<K> for ReconcileQueue<K> {
    fn changed(&mut self, change: &Change<K>) {
        let mut inner = self.inner.lock();
        match change {
            Change::Replaced(all) => {
                // A new list does not report deletions. Forget all our writes: because writes are guarded, the worst
                // that can happen is a conflict.
                inner.written.clear();
                inner.unreadable_objects.clear();
                if let Some(triggers) = &inner.triggers {
                    for object in all {
                        let _ = triggers.send(Arc::clone(object));
                    }
                }
            }
            Change::Applied(object) => {
                if !inner.unreadable_objects.is_empty() {
                    inner.unreadable_objects.remove(&ObjectRef::of(&**object));
                }
                if !inner.is_echo(object)
                    && let Some(triggers) = &inner.triggers
                {
                    let _ = triggers.send(Arc::clone(object));
                }
            }
            Change::Deleted(object) => inner.gone(object),
            Change::Unreadable(object) => {
                inner
                    .unreadable_objects
                    .insert(ObjectRef::in_metadata(&object.metadata), Arc::clone(object));
                if let Some(unreadable) = &inner.unreadable {
                    let _ = unreadable.send(Arc::clone(object));
                }
            }
        }
    }
}
