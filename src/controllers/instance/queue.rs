//! Which instances are to be reconciled, and the latest version of each that is known.

use std::{collections::HashMap, sync::Arc};

use futures::{Stream, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    core::error_boundary::InvalidObject,
    runtime::reflector::{ObjectRef, Store},
};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::{
    resources::Instance,
    runtime::watch::{Change, Listener, revision},
};

/// Hears the watch and feeds the controller. Closed until [`InstanceQueue::open`]: a replica that does not hold the Lease
/// queues nothing. Cheap to clone.
#[derive(Clone, Default)]
pub struct InstanceQueue {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    triggers: Option<mpsc::UnboundedSender<Arc<Instance>>>,
    unreadable: Option<mpsc::UnboundedSender<Arc<InvalidObject>>>,
    store: Option<Store<Instance>>,
    /// Our latest write of each object that the watch has not shown yet, by UID.
    written: HashMap<String, Arc<Instance>>,
    /// Objects that do not parse, by namespace and name: they may have come before the queue was opened.
    unreadable_objects: HashMap<(Option<String>, Option<String>), Arc<InvalidObject>>,
}

impl InstanceQueue {
    /// Starts queueing, beginning with all that is in the store.
    pub(super) fn open(
        &self,
        store: &Store<Instance>,
    ) -> (
        impl Stream<Item = Arc<Instance>> + Send + use<>,
        mpsc::UnboundedReceiver<Arc<InvalidObject>>,
    ) {
        let (triggers, pending) = mpsc::unbounded_channel();
        let (complain, unreadable) = mpsc::unbounded_channel();
        let mut inner = self.inner.lock();
        for instance in store.state() {
            let _ = triggers.send(instance);
        }
        inner.triggers = Some(triggers);
        for object in inner.unreadable_objects.values() {
            let _ = complain.send(Arc::clone(object));
        }
        inner.unreadable = Some(complain);
        inner.store = Some(store.clone());
        let stream = stream::unfold(pending, |mut pending| async {
            pending.recv().await.map(|next| (next, pending))
        });
        (stream, unreadable)
    }

    /// Queues instances again because something beside them changed.
    pub fn again(&self, instances: impl IntoIterator<Item = Arc<Instance>>) {
        let inner = self.inner.lock();
        if let Some(triggers) = &inner.triggers {
            for instance in instances {
                let _ = triggers.send(instance);
            }
        }
    }

    /// Remembers what was just written, so that nothing is decided on an older version.
    pub(super) fn wrote(&self, instance: Arc<Instance>) {
        if let Some(uid) = instance.metadata.uid.clone() {
            self.inner.lock().written.insert(uid, instance);
        }
    }

    /// The newer of what the watch shows by now and what was written. `shown` may have waited for its turn a while.
    pub(super) fn freshest(&self, shown: Arc<Instance>) -> Arc<Instance> {
        let mut inner = self.inner.lock();
        let current = inner
            .store
            .as_ref()
            .and_then(|store| store.get(&ObjectRef::from_obj(&*shown)));
        let shown = current.unwrap_or(shown);
        let Some(uid) = shown.metadata.uid.as_deref() else {
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

impl Inner {
    /// Whether the watch merely shows our own latest write. The pass that wrote it has looked at it already.
    fn is_echo(&mut self, instance: &Instance) -> bool {
        let Some(uid) = instance.metadata.uid.as_deref() else {
            return false;
        };
        match self.written.get(uid).map(|written| revision(&**written)) {
            Some(ours) if ours == revision(instance) => {
                self.written.remove(uid);
                true
            }
            Some(ours) => ours > revision(instance),
            None => false,
        }
    }

    fn gone(&mut self, instance: &Instance) {
        if let Some(uid) = instance.metadata.uid.as_deref() {
            self.written.remove(uid);
        }
    }
}

fn place(metadata: &ObjectMeta) -> (Option<String>, Option<String>) {
    (metadata.namespace.clone(), metadata.name.clone())
}

impl Listener<Instance> for InstanceQueue {
    fn changed(&mut self, change: &Change<Instance>) {
        let mut inner = self.inner.lock();
        match change {
            Change::Replaced(all) => {
                // What was deleted meanwhile is not told. Writes are guarded, so forgetting ours costs a conflict at worst.
                inner.written.clear();
                inner.unreadable_objects.clear();
                if let Some(triggers) = &inner.triggers {
                    for instance in all {
                        let _ = triggers.send(Arc::clone(instance));
                    }
                }
            }
            Change::Applied(instance) => {
                if !inner.unreadable_objects.is_empty() {
                    inner.unreadable_objects.remove(&place(&instance.metadata));
                }
                if !inner.is_echo(instance)
                    && let Some(triggers) = &inner.triggers
                {
                    let _ = triggers.send(Arc::clone(instance));
                }
            }
            Change::Deleted(instance) => inner.gone(instance),
            Change::Unreadable(object) => {
                inner
                    .unreadable_objects
                    .insert(place(&object.metadata), Arc::clone(object));
                if let Some(unreadable) = &inner.unreadable {
                    let _ = unreadable.send(Arc::clone(object));
                }
            }
        }
    }
}
