//! Read-your-writes: how far the watch has come, and who waits for it to come further.

use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// How long an answer is held back for the watch to show what was written. The write itself is done by then, so the
/// answer is given in any case.
const PATIENCE: Duration = Duration::from_secs(5);

/// The watch delivers the changes of a kind in the order of their revisions, whatever object they are of, so one number
/// says what it has shown.
#[derive(Debug)]
pub struct Progress {
    /// Every request asks for it.
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
    /// Whether the first list is there.
    pub fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }

    /// A list came in whose newest object has this revision. It may be lower than what was seen before, where the API
    /// server's data was restored from a backup.
    pub fn listed(&self, newest: u64) {
        let mut inner = self.inner.lock();
        self.synced.store(true, Ordering::Release);
        inner.seen = newest;
        inner.wake();
        // What was removed is not known one by one: everybody looks again.
        inner.removals.clear();
    }

    /// A change with this revision is shown.
    pub fn reached(&self, revision: u64) {
        let mut inner = self.inner.lock();
        if revision > inner.seen {
            inner.seen = revision;
            inner.wake();
        }
    }

    /// An object is no longer shown.
    pub fn removed(&self, uid: &str) {
        self.inner.lock().removals.remove(uid);
    }

    /// Waits until everything up to `revision` is shown. Returns whether it is.
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

    /// Waits until an object is no longer shown, which `is_gone` tells now.
    pub async fn wait_for_removal(&self, uid: &str, is_gone: impl Fn() -> bool) -> bool {
        let (sender, receiver) = oneshot::channel();
        self.inner
            .lock()
            .removals
            .entry(uid.to_owned())
            .or_default()
            .push(sender);
        // Only now: a removal between a look and the registration would be waited for in vain.
        if is_gone() {
            return true;
        }
        // An end of the channel without a word is the word.
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
            // Whoever gave up waiting is not there to be told.
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
    async fn a_removal_that_already_shows_is_not_waited_for() {
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
