//! Rate limits: one bucket per key (GCRA), refilled evenly over the hour. Buckets are in memory: each replica has its own, and
//! they are full after a restart. They even out load; what an account may have is limited by quotas.

use std::{
    collections::HashSet,
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use foldhash::HashMap;
use governor::{
    Quota, RateLimiter,
    clock::{Clock, DefaultClock},
    middleware::StateInformationMiddleware,
    state::{InMemoryState, NotKeyed},
};
use kube::Resource;
use parking_lot::{Mutex, RwLock};

use crate::{
    resources::{Account, ApiKey},
    runtime::watch::{Change, Listener},
    service::credentials::Credential,
};

/// The limit of all keys of an account together, as a multiple of the limit of one key (decisions, section 1).
const ACCOUNT_FACTOR: u32 = 10;

/// The allowance of a key after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Requests per hour, which is also the largest burst.
    pub limit: u32,
    /// Requests left.
    pub remaining: u32,
    /// Seconds until the bucket is full again.
    pub reset: u64,
    /// The limit that this request exceeded, if it did.
    pub exceeded: Option<Exceeded>,
}

/// A limit that a request exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// Requests per hour.
    pub limit: u32,
    /// Whether it is the limit of all keys of the account together.
    pub by_account: bool,
    /// Seconds to wait before trying again.
    pub retry_after: u64,
}

/// Time in which any bucket is full again.
const REFILL: Duration = Duration::from_secs(3600);
/// Number of buckets from which on full ones are looked for.
const FEW: usize = 64;

/// Buckets by the UID of a key or account.
#[derive(Default)]
struct Buckets(RwLock<ByUid>);

#[derive(Default)]
struct ByUid {
    buckets: HashMap<Box<str>, Arc<Mutex<Bucket>>>,
    /// Number of buckets after full ones were last dropped.
    left: usize,
}

impl ByUid {
    /// The bucket of a UID, created full if there is none. Drops full ones, which are worth nothing, each time their number
    /// has doubled: so those of keys that were deleted while they were in use do not pile up either.
    fn of(&mut self, uid: &str, limit: u32, now: Instant) -> Arc<Mutex<Bucket>> {
        if self.buckets.len() >= FEW.max(2 * self.left) {
            self.buckets.retain(|_, bucket| !bucket.lock().is_full(now));
            self.left = self.buckets.len();
        }
        let fresh = || Arc::new(Mutex::new(Bucket::new(limit, DefaultClock::default())));
        self.buckets.entry(uid.into()).or_insert_with(fresh).clone()
    }
}

impl Buckets {
    /// Takes one request out of a bucket, which is created if there is none with this limit.
    fn take(&self, uid: &str, limit: u32) -> Taken {
        let now = Instant::now();
        let bucket = self.0.read().buckets.get(uid).cloned();
        let bucket = bucket.unwrap_or_else(|| self.0.write().of(uid, limit, now));
        let mut bucket = bucket.lock();
        bucket.used = now;
        if !bucket.has_limit(limit) {
            *bucket = Bucket::new(limit, DefaultClock::default());
        }
        bucket.take()
    }

    /// Drops the buckets of deleted keys or accounts.
    fn changed<K: Resource>(&self, change: &Change<K>) {
        match change {
            Change::Replaced(objects) => {
                let uids = objects.iter().filter_map(|object| object.meta().uid.as_deref());
                let existing: HashSet<&str> = uids.collect();
                self.0.write().buckets.retain(|uid, _| existing.contains(&**uid));
            }
            Change::Deleted(object) => {
                let uid = object.meta().uid.as_deref().unwrap_or_default();
                self.0.write().buckets.remove(uid);
            }
            Change::Applied(_) | Change::Unreadable(_) => {}
        }
    }
}

/// The buckets of all keys and accounts that have been used.
#[derive(Default)]
pub struct RateLimits {
    keys: Buckets,
    accounts: Buckets,
}

impl RateLimits {
    /// Counts a request against the limit of its key, and of all keys of its account.
    pub fn spend(&self, credential: &Credential) -> Allowance {
        let tenant = &credential.tenant;
        let taken = self.keys.take(credential.key_uid(), tenant.rate_limit);
        let exceeded = |limit, by_account, retry_after| Exceeded {
            limit,
            by_account,
            retry_after,
        };
        let by_key = taken
            .retry_after
            .map(|seconds| exceeded(taken.limit, false, seconds));
        let limit = tenant.rate_limit.saturating_mul(ACCOUNT_FACTOR);
        let by_account = || {
            let together = self.accounts.take(&tenant.uid, limit);
            together.retry_after.map(|seconds| exceeded(limit, true, seconds))
        };
        Allowance {
            limit: taken.limit,
            remaining: taken.remaining,
            reset: taken.reset,
            exceeded: by_key.or_else(by_account),
        }
    }

    /// The listener that drops the buckets of deleted keys.
    pub fn key_listener(self: &Arc<Self>) -> Box<dyn Listener<ApiKey>> {
        let limits = self.clone();
        Box::new(move |change: &Change<ApiKey>| limits.keys.changed(change))
    }

    /// The listener that drops the buckets of deleted accounts.
    pub fn account_listener(self: &Arc<Self>) -> Box<dyn Listener<Account>> {
        let limits = self.clone();
        Box::new(move |change: &Change<Account>| limits.accounts.changed(change))
    }
}

/// The state of a bucket after a request.
struct Taken {
    limit: u32,
    remaining: u32,
    reset: u64,
    /// Seconds to wait, if this request exceeded the limit.
    retry_after: Option<u64>,
}

/// A bucket of requests.
struct Bucket<C: Clock = DefaultClock> {
    limit: NonZeroU32,
    /// When it was last used.
    used: Instant,
    clock: C,
    limiter: RateLimiter<NotKeyed, InMemoryState, C, StateInformationMiddleware>,
}

impl<C: Clock + Clone> Bucket<C> {
    /// A full bucket of `limit` requests per hour; 0 counts as 1.
    fn new(limit: u32, clock: C) -> Self {
        let limit = NonZeroU32::new(limit).unwrap_or(NonZeroU32::MIN);
        Self {
            limit,
            used: Instant::now(),
            limiter: RateLimiter::direct_with_clock(Quota::per_hour(limit), clock.clone()).with_middleware(),
            clock,
        }
    }

    /// Whether it has not been used for so long that it is full.
    fn is_full(&self, now: Instant) -> bool {
        now.duration_since(self.used) > REFILL
    }

    /// Whether this bucket was made for `limit`.
    fn has_limit(&self, limit: u32) -> bool {
        self.limit.get() == limit.max(1)
    }

    /// Takes one request out of the bucket, if one is left.
    fn take(&self) -> Taken {
        let limit = self.limit.get();
        match self.limiter.check() {
            Ok(state) => {
                let remaining = state.remaining_burst_capacity();
                Taken {
                    limit,
                    remaining,
                    reset: refill_seconds(limit, limit.saturating_sub(remaining)),
                    retry_after: None,
                }
            }
            Err(until) => Taken {
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
    use crate::service::credentials::Credentials;

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

    fn account(rate_limit: i32) -> Arc<Account> {
        let account = serde_json::json!({
            "metadata": { "name": "acme", "uid": "account-uid" },
            "spec": { "email": "ada@example.com", "namespace": "demo", "rateLimitPerHour": rate_limit },
            "status": { "namespace": "demo", "conditions": [{
                "type": "NamespaceReady", "status": "True", "reason": "Ready", "message": "",
                "lastTransitionTime": "2026-11-21T10:00:00Z",
            }] },
        });
        Arc::new(serde_json::from_value(account).unwrap())
    }

    fn key(number: usize) -> Arc<ApiKey> {
        let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(number.to_string()));
        let key = serde_json::json!({
            "metadata": { "name": format!("key-{number}"), "namespace": "demo", "uid": format!("key-uid-{number}") },
            "spec": { "sha256": digest },
        });
        Arc::new(serde_json::from_value(key).unwrap())
    }

    /// An account with this limit, with twelve keys, and their rate limits.
    fn twelve_keys(rate_limit: i32) -> (Arc<Credentials>, Arc<RateLimits>) {
        let (credentials, limits) = (Arc::<Credentials>::default(), Arc::<RateLimits>::default());
        let keys = (0..12).map(key).collect();
        credentials.key_listener().changed(&Change::Replaced(keys));
        let accounts = Change::Replaced(vec![account(rate_limit)]);
        credentials.account_listener().changed(&accounts);
        (credentials, limits)
    }

    fn spend(credentials: &Credentials, limits: &RateLimits, number: usize) -> Allowance {
        let credential = credentials.authenticate(&number.to_string(), jiff::Timestamp::now);
        limits.spend(&credential.ok().unwrap())
    }

    #[test]
    fn a_limit_survives_changes_of_its_key_and_is_replaced_by_another_limit() {
        let (credentials, limits) = twelve_keys(3600);
        assert_eq!(spend(&credentials, &limits, 0).remaining, 3599);
        for change in [Change::Applied(key(0)), Change::Replaced(vec![key(0)])] {
            credentials.key_listener().changed(&change);
            limits.key_listener().changed(&change);
        }
        assert_eq!(spend(&credentials, &limits, 0).remaining, 3598);
        let other = Change::Applied(account(2));
        credentials.account_listener().changed(&other);
        limits.account_listener().changed(&other);
        assert_eq!(spend(&credentials, &limits, 0).remaining, 1);
        assert_eq!(spend(&credentials, &limits, 0).remaining, 0);
        let exceeded = spend(&credentials, &limits, 0).exceeded.unwrap();
        assert_eq!((exceeded.limit, exceeded.by_account), (2, false));
    }

    #[test]
    fn a_wait_is_announced_in_whole_seconds_that_are_enough() {
        for (milliseconds, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (59_999, 60)] {
            assert_eq!(
                ceil_seconds(Duration::from_millis(milliseconds)),
                seconds,
                "{milliseconds} ms"
            );
        }
    }

    #[test]
    fn all_keys_of_an_account_together_may_make_ten_times_the_requests_of_one() {
        let (credentials, limits) = twelve_keys(2);
        for number in 0..10 {
            for _ in 0..2 {
                assert_eq!(spend(&credentials, &limits, number).exceeded, None, "{number}");
            }
        }
        let exceeded = spend(&credentials, &limits, 10).exceeded.unwrap();
        assert_eq!((exceeded.limit, exceeded.by_account), (20, true));
    }

    #[test]
    fn buckets_that_are_full_again_do_not_pile_up() {
        let mut buckets = ByUid::default();
        let begun = Instant::now();
        for hour in 0..5 {
            let now = begun + hour * (REFILL + Duration::from_secs(1));
            for number in 0..100 {
                buckets.of(&format!("{hour}-{number}"), 10, now).lock().used = now;
            }
            assert!(buckets.buckets.len() <= 200, "{}", buckets.buckets.len());
            // What is in use stays.
            assert!(buckets.buckets.contains_key(format!("{hour}-0").as_str()));
        }
    }

    #[test]
    fn what_is_deleted_leaves_nothing_behind() {
        let (credentials, limits) = twelve_keys(2);
        spend(&credentials, &limits, 0);
        limits.key_listener().changed(&Change::Deleted(key(0)));
        limits.account_listener().changed(&Change::Deleted(account(2)));
        assert!(limits.keys.0.read().buckets.is_empty() && limits.accounts.0.read().buckets.is_empty());
    }
}
