//! Locks by key, for competing requests.

use std::hash::{DefaultHasher, Hash, Hasher as _};

use tokio::sync::{Mutex, MutexGuard};

/// Number of locks. Keys are mapped to them by hash, so two keys rarely share one.
const LOCKS: usize = 1024;

/// Striped locks: requests with the same key, or for the same object, are serialised.
pub struct KeyedLocks(Box<[Mutex<()>]>);

impl Default for KeyedLocks {
    fn default() -> Self {
        Self((0..LOCKS).map(|_| Mutex::new(())).collect())
    }
}

impl KeyedLocks {
    /// Waits for the lock of a key.
    pub async fn lock(&self, key: &impl Hash) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let index = usize::try_from(hasher.finish()).unwrap_or_default() % self.0.len();
        self.0[index].lock().await
    }
}
