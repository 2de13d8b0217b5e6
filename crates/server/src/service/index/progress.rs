//! Read-your-writes: tracks how far a watch has come, and lets requests wait for it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// How long an answer waits for the watch to show a write. The write has already succeeded, so the answer is given in any
/// case.
const PATIENCE: Duration = Duration::from_secs(5);

/// How far a watch has come. A watch delivers the changes of a kind in the order of their revisions, so one number is enough.
#[derive(Debug)]
pub struct Progress {
    /// Outside of the mutex, because every request reads it.
    synced: AtomicBool,
    inner: Mutex<Inner>,
    patience: Duration,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            synced: AtomicBool::new(false),
            inner: Mutex::default(),
            patience: PATIENCE,
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    seen: u64,
    revisions: BTreeMap<u64, Vec<oneshot::Sender<()>>>,
    removals: HashMap<String, Vec<oneshot::Sender<()>>>,
}

impl Progress {
    /// Whether the first list has been received.
    pub fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }

    /// Records a list whose newest object has this revision. The revision may be lower than before, if the API server's data
    /// was restored from a backup.
    pub fn listed(&self, newest: u64) {
        let mut inner = self.inner.lock();
        self.synced.store(true, Ordering::Release);
        inner.seen = newest;
        inner.wake();
        // A list does not say which objects were removed, so wake all waiting requests to check for themselves.
        inner.removals.clear();
    }

    /// Records a change with this revision.
    pub fn reached(&self, revision: u64) {
        let mut inner = self.inner.lock();
        if revision > inner.seen {
            inner.seen = revision;
            inner.wake();
        }
    }

    /// Records that an object was removed from the index.
    pub fn removed(&self, uid: &str) {
        self.inner.lock().removals.remove(uid);
    }

    /// Waits until the index has everything up to `revision`. Returns `false` after a timeout.
    pub async fn wait_for(&self, revision: u64) -> bool {
        let reached = {
            let mut inner = self.inner.lock();
            if inner.seen >= revision {
                return true;
            }
            let (sender, receiver) = oneshot::channel();
            inner.revisions.entry(revision).or_default().push(sender);
            receiver
        };
        matches!(tokio::time::timeout(self.patience, reached).await, Ok(Ok(())))
    }

    /// Waits until an object is removed from the index; `is_gone` checks whether it already is. Returns `false` after a
    /// timeout.
    pub async fn wait_for_removal(&self, uid: &str, is_gone: impl Fn() -> bool) -> bool {
        let (sender, receiver) = oneshot::channel();
        self.inner
            .lock()
            .removals
            .entry(uid.to_owned())
            .or_default()
            .push(sender);
        // Check after registering: a removal in between would otherwise be missed.
        if is_gone() {
            return true;
        }
        // A closed channel means that the object was removed.
        tokio::time::timeout(self.patience, receiver).await.is_ok()
    }
}

impl Inner {
    fn wake(&mut self) {
        let later = self.revisions.split_off(&(self.seen.saturating_add(1)));
        for waiter in std::mem::replace(&mut self.revisions, later)
            .into_values()
            .flatten()
        {
            // Sending fails if the waiter has timed out.
            let _ = waiter.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn a_wait_ends_with_the_revision_and_not_before() {
        let progress = Arc::new(Progress::default());
        progress.listed(10);
        assert!(progress.wait_for(10).await);
        let waiting = tokio::spawn({
            let progress = progress.clone();
            async move { progress.wait_for(12).await }
        });
        tokio::task::yield_now().await;
        progress.reached(11);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        progress.reached(15);
        assert!(waiting.await.unwrap());
        assert!(progress.inner.lock().revisions.is_empty());
    }

    #[tokio::test]
    async fn a_wait_is_bounded() {
        let progress = Progress {
            patience: Duration::from_millis(20),
            ..Progress::default()
        };
        assert!(!progress.wait_for(1).await);
        assert!(!progress.wait_for_removal("uid", || false).await);
    }

    #[tokio::test]
    async fn waiting_for_a_removal_that_has_happened_returns_at_once() {
        assert!(Progress::default().wait_for_removal("uid", || true).await);
        let progress = Arc::new(Progress::default());
        let waiting = tokio::spawn({
            let progress = progress.clone();
            async move { progress.wait_for_removal("uid", || false).await }
        });
        tokio::task::yield_now().await;
        progress.removed("uid");
        assert!(waiting.await.unwrap());
    }
}
