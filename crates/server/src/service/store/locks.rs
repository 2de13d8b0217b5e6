//! Locks by key, for competing requests.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::{Mutex as Lock, OwnedMutexGuard};

use runtime::client::CallError;

/// How long a request may wait for earlier ones that change the same object or have the same key, all of one account. It is
/// longer than the wait for a permit, because forty changes of one object take seconds on a busy cluster.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

type Locks = Arc<Mutex<HashMap<Arc<str>, Arc<Lock<()>>>>>;

/// A lock for each key that is in use: requests with the same key, or for the same object, are serialised.
pub struct KeyedLocks {
    locks: Locks,
    longest_wait: Duration,
}

/// A lock that is held until this is dropped.
pub struct KeyedLock {
    // Dropped before the claim.
    _guard: OwnedMutexGuard<()>,
    _claim: Claim,
}

/// A claim to a lock, held or waited for. The last claim to a key removes the lock.
struct Claim {
    locks: Locks,
    key: Arc<str>,
    lock: Arc<Lock<()>>,
}

impl Default for KeyedLocks {
    fn default() -> Self {
        Self {
            locks: Locks::default(),
            longest_wait: LONGEST_WAIT,
        }
    }
}

impl KeyedLocks {
    /// Waits for the lock of a key; [`CallError::Busy`] if that takes too long.
    pub async fn lock(&self, key: &str) -> Result<KeyedLock, CallError> {
        let claim = self.claim(key);
        let waiting = tokio::time::timeout(self.longest_wait, claim.lock.clone().lock_owned());
        let guard = waiting.await.map_err(|_| CallError::Busy)?;
        Ok(KeyedLock {
            _guard: guard,
            _claim: claim,
        })
    }

    fn claim(&self, key: &str) -> Claim {
        let key: Arc<str> = key.into();
        let lock = self.locks.lock().entry(key.clone()).or_default().clone();
        Claim {
            locks: self.locks.clone(),
            key,
            lock,
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut locks = self.locks.lock();
        // Only the table and this claim refer to the lock: other claims are made and dropped under the table's lock.
        if Arc::strong_count(&self.lock) <= 2 {
            locks.remove(&self.key);
        }
        // Drop this reference before another claim counts them.
        self.lock = Arc::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_is_locked_alone_and_a_wait_that_takes_too_long_is_refused() {
        let locks = KeyedLocks {
            longest_wait: Duration::from_millis(20),
            ..KeyedLocks::default()
        };
        let held = locks.lock("a").await.ok().unwrap();
        for n in 0..5000 {
            assert!(locks.lock(&n.to_string()).await.is_ok(), "{n}");
        }
        assert!(matches!(locks.lock("a").await, Err(CallError::Busy)));
        let ((), again) = tokio::join!(async { drop(held) }, locks.lock("a"));
        assert!(again.is_ok());
        drop(again);
        assert!(locks.locks.lock().is_empty());
    }
}
