//! One lock for each key that requests compete for.

use std::hash::{DefaultHasher, Hash, Hasher as _};

use tokio::sync::{Mutex, MutexGuard};

/// Locks in all. Keys share them by their hash; two keys rarely meet.
const LOCKS: usize = 1024;

/// Lets the requests with one key, or those that compete for one object, through one by one.
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
