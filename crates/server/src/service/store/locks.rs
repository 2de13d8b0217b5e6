//! Locks by key, for competing requests.

use std::{sync::Arc, time::Duration};

use runtime::{FairPermits, client::CallError, fair_permits::Permit};

/// How long a request may wait for earlier ones that change the same object or have the same key, all of one account. It is
/// longer than the wait for a permit, because forty changes of one object take seconds on a busy cluster.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// A lock for each key that is in use: requests with the same key, or for the same object, are serialised.
pub struct KeyedLocks {
    locks: Arc<FairPermits>,
    longest_wait: Duration,
}

/// A lock that is held until this is dropped.
pub type KeyedLock = Permit;

impl Default for KeyedLocks {
    fn default() -> Self {
        Self {
            locks: FairPermits::new(usize::MAX, 1),
            longest_wait: LONGEST_WAIT,
        }
    }
}

impl KeyedLocks {
    /// Waits for the lock of a key; [`CallError::Busy`] if that takes too long.
    pub async fn lock(&self, key: &str) -> Result<KeyedLock, CallError> {
        tokio::time::timeout(self.longest_wait, self.locks.acquire(key))
            .await
            .map_err(|_| CallError::Busy)
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
    }
}
