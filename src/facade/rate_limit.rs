//! Rate limits: one bucket per key (GCRA), refilled evenly over the hour.

use std::{
    collections::{HashMap, HashSet},
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use governor::{
    Quota, RateLimiter,
    clock::{Clock, DefaultClock},
    middleware::StateInformationMiddleware,
    state::{InMemoryState, NotKeyed},
};
use parking_lot::{Mutex, RwLock};

use crate::{
    resources::ApiKey,
    runtime::watch::{Change, Listener},
    service::credentials::Credential,
};

/// The allowance of a key after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Requests per hour, which is also the largest burst.
    pub limit: u32,
    /// Requests left.
    pub remaining: u32,
    /// Seconds until the bucket is full again.
    pub reset: u64,
    /// Seconds to wait, if this request exceeded the limit.
    pub retry_after: Option<u64>,
}

/// The buckets of all keys that have been used, by the key's UID.
#[derive(Default)]
pub struct RateLimits(RwLock<HashMap<Box<str>, Arc<Mutex<Bucket>>>>);

impl RateLimits {
    /// Counts a request against its key's limit.
    pub fn spend(&self, credential: &Credential) -> Allowance {
        let (uid, limit) = (credential.key_uid(), credential.tenant.rate_limit);
        let bucket = self.0.read().get(uid).cloned();
        let bucket = bucket.unwrap_or_else(|| {
            let mut buckets = self.0.write();
            let fresh = || Arc::new(Mutex::new(Bucket::new(limit, DefaultClock::default())));
            buckets.entry(uid.into()).or_insert_with(fresh).clone()
        });
        let mut bucket = bucket.lock();
        if !bucket.has_limit(limit) {
            *bucket = Bucket::new(limit, DefaultClock::default());
        }
        bucket.take()
    }

    /// The listener that drops the buckets of deleted keys.
    pub fn listener(self: &Arc<Self>) -> Box<dyn Listener<ApiKey>> {
        let limits = self.clone();
        Box::new(move |change: &Change<ApiKey>| limits.keys_changed(change))
    }

    fn keys_changed(&self, change: &Change<ApiKey>) {
        match change {
            Change::Replaced(keys) => {
                let existing: HashSet<&str> = keys
                    .iter()
                    .filter_map(|key| key.metadata.uid.as_deref())
                    .collect();
                self.0.write().retain(|uid, _| existing.contains(&**uid));
            }
            Change::Deleted(key) => {
                self.0
                    .write()
                    .remove(key.metadata.uid.as_deref().unwrap_or_default());
            }
            Change::Applied(_) | Change::Unreadable(_) => {}
        }
    }
}

/// The bucket of one key.
struct Bucket<C: Clock = DefaultClock> {
    limit: NonZeroU32,
    clock: C,
    limiter: RateLimiter<NotKeyed, InMemoryState, C, StateInformationMiddleware>,
}

impl<C: Clock + Clone> Bucket<C> {
    /// A full bucket of `limit` requests per hour; 0 counts as 1.
    fn new(limit: u32, clock: C) -> Self {
        let limit = NonZeroU32::new(limit).unwrap_or(NonZeroU32::MIN);
        Self {
            limit,
            limiter: RateLimiter::direct_with_clock(Quota::per_hour(limit), clock.clone()).with_middleware(),
            clock,
        }
    }

    /// Whether this bucket was made for `limit`.
    fn has_limit(&self, limit: u32) -> bool {
        self.limit.get() == limit.max(1)
    }

    /// Takes one request out of the bucket, if one is left.
    fn take(&self) -> Allowance {
        let limit = self.limit.get();
        match self.limiter.check() {
            Ok(state) => {
                let remaining = state.remaining_burst_capacity();
                Allowance {
                    limit,
                    remaining,
                    reset: refill_seconds(limit, limit.saturating_sub(remaining)),
                    retry_after: None,
                }
            }
            Err(until) => Allowance {
                limit,
                remaining: 0,
                reset: refill_seconds(limit, limit),
                retry_after: Some(ceil_seconds(until.wait_time_from(self.clock.now()))),
            },
        }
    }
}

/// Seconds until `missing` requests are refilled, rounded up.
fn refill_seconds(limit: u32, missing: u32) -> u64 {
    (u64::from(missing) * 3600).div_ceil(u64::from(limit))
}

fn ceil_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    #[test]
    fn a_bucket_empties_and_refills_evenly() {
        let clock = FakeRelativeClock::default();
        let bucket = Bucket::new(3600, clock.clone());
        let first = bucket.take();
        assert_eq!(
            (first.limit, first.remaining, first.reset, first.retry_after),
            (3600, 3599, 1, None)
        );
        for _ in 1..3600 {
            assert_eq!(bucket.take().retry_after, None);
        }
        let empty = bucket.take();
        assert_eq!(
            (empty.remaining, empty.reset, empty.retry_after),
            (0, 3600, Some(1))
        );
        clock.advance(Duration::from_secs(2));
        assert_eq!(bucket.take().remaining, 1);
        clock.advance(Duration::from_secs(7200));
        assert_eq!(bucket.take().remaining, 3599);
    }

    #[test]
    fn a_small_limit_says_how_long_to_wait() {
        let clock = FakeRelativeClock::default();
        let bucket = Bucket::new(2, clock.clone());
        assert_eq!((bucket.take().remaining, bucket.take().remaining), (1, 0));
        assert_eq!(bucket.take().retry_after, Some(1800));
        clock.advance(Duration::from_millis(1_799_500));
        assert_eq!(bucket.take().retry_after, Some(1), "half a second is rounded up");
        clock.advance(Duration::from_millis(500));
        assert_eq!(bucket.take().retry_after, None);
    }

    #[test]
    fn the_largest_limit_works() {
        let bucket = Bucket::new(1_000_000_000, DefaultClock::default());
        assert!(bucket.take().retry_after.is_none() && bucket.has_limit(1_000_000_000));
    }
}
