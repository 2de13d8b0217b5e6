//! Rate limits: one bucket per key (GCRA), refilled evenly over the hour. The cost of a request is known only once it has ended, and may be
//! more than is left. The difference is a debt, which is worked off before the bucket fills again. Buckets are in memory; replicas share
//! notable spending, which also survives restarts, see [`kept`]. Rate limits smooth the load; quotas limit what an account may have.

pub mod kept;

use std::{
    collections::HashSet,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use foldhash::HashMap;
use governor::clock::{Clock, DefaultClock, Reference as _};
use jiff::Timestamp;
use kube::Resource;
use parking_lot::RwLock;

use crate::{
    resources::{Account, ApiKey, origin},
    runtime::watch::{Change, Listener},
    service::credentials::Credential,
};

/// The limit of all keys of an account together, as a multiple of the limit of one key (decisions, section 1).
const ACCOUNT_FACTOR: u32 = 10;

/// Requests per hour that all keys of an account together may make, if one key may make `of_a_key`.
pub const fn of_account(of_a_key: u32) -> u32 {
    of_a_key.saturating_mul(ACCOUNT_FACTOR)
}

/// Whose limit a request exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The limit of its key.
    Key,
    /// The limit of all keys of the account together.
    Account,
    /// The limit of what the account's users read in the console.
    Console,
}

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
    /// Whose limit it is.
    pub whose: Whose,
    /// Seconds to wait before trying again.
    pub retry_after: u64,
}

/// Full buckets are dropped only if there are at least this many buckets.
const SWEEP_THRESHOLD: usize = 64;

/// How long an empty bucket takes to fill.
pub(super) const FULL_AFTER: Duration = Duration::from_secs(3600);
/// The longest debt, so that nobody waits for more than an hour.
const LONGEST_DEBT: Duration = Duration::from_secs(3600);
/// The longest time that a bucket takes to fill.
pub(super) const FULL_AFTER_DEBT: Duration = FULL_AFTER.saturating_add(LONGEST_DEBT);

/// Buckets by the UID of a key or account.
#[derive(Default)]
struct Buckets<C: Clock = DefaultClock> {
    clock: C,
    by_uid: RwLock<ByUid<C>>,
}

struct ByUid<C: Clock> {
    buckets: HashMap<Box<str>, Bucket<C>>,
    /// When those buckets will be full that only other, or earlier, processes have used.
    unused: HashMap<Box<str>, C::Instant>,
    /// Number of buckets left when full ones were last dropped.
    left: usize,
}

// Not derived: that would require a default instant.
impl<C: Clock> Default for ByUid<C> {
    fn default() -> Self {
        Self {
            buckets: HashMap::default(),
            unused: HashMap::default(),
            left: 0,
        }
    }
}

impl<C: Clock + Clone> ByUid<C> {
    /// The bucket of a UID; a new one if there is none with this limit. Drops full buckets, which are worth nothing, each time
    /// the number of buckets has doubled, so that buckets of keys deleted while in use do not pile up either.
    fn of(&mut self, uid: &str, limit: NonZeroU32, clock: &C) -> &Bucket<C> {
        if self.buckets.len() >= SWEEP_THRESHOLD.max(2 * self.left) {
            self.buckets.retain(|_, bucket| !bucket.is_worthless());
            self.left = self.buckets.len();
        }
        let unused = self.unused.remove(uid);
        let new = || Bucket::new(limit, clock.clone());
        let bucket = self.buckets.entry(uid.into()).or_insert_with(new);
        if bucket.limit != limit {
            *bucket = new();
        }
        if let Some(full_at) = unused {
            bucket.spend_to(full_at.duration_since(clock.now()).into());
        }
        bucket
    }
}

impl<C: Clock + Clone> Buckets<C> {
    /// Takes one request out of a bucket of `limit` requests per hour; 0 counts as 1.
    fn take(&self, uid: &str, limit: u32) -> Taken {
        self.with(uid, limit, Bucket::take)
    }

    /// Applies a function to a bucket of `limit` requests per hour; 0 counts as 1.
    fn with<T>(&self, uid: &str, limit: u32, what: impl FnOnce(&Bucket<C>) -> T) -> T {
        let limit = NonZeroU32::new(limit).unwrap_or(NonZeroU32::MIN);
        if let Some(bucket) = self.by_uid.read().buckets.get(uid)
            && bucket.limit == limit
        {
            return what(bucket);
        }
        what(self.by_uid.write().of(uid, limit, &self.clock))
    }

    /// Drops the buckets of deleted keys or accounts.
    fn changed<K: Resource>(&self, change: &Change<K>) {
        match change {
            Change::Replaced(objects) => {
                let uids = objects.iter().map(|object| origin::uid(object.meta()));
                let existing: HashSet<&str> = uids.collect();
                let mut by_uid = self.by_uid.write();
                by_uid.buckets.retain(|uid, _| existing.contains(&**uid));
                by_uid.unused.retain(|uid, _| existing.contains(&**uid));
            }
            Change::Deleted(object) => {
                let uid = origin::uid(object.meta());
                let mut by_uid = self.by_uid.write();
                by_uid.buckets.remove(uid);
                by_uid.unused.remove(uid);
            }
            Change::Applied(_) | Change::Unreadable(_) => {}
        }
    }

    /// What this process has taken from each bucket, if at least `at_least`.
    fn taken(&self, at_least: Duration) -> Vec<(Box<str>, OwnShare)> {
        let by_uid = self.by_uid.read();
        let used = by_uid.buckets.iter();
        used.map(|(uid, bucket)| (uid, bucket.own_share()))
            .filter(|(_, share)| share.taken >= at_least)
            .map(|(uid, share)| (uid.clone(), share))
            .collect()
    }

    /// Subtracts what other processes have taken.
    fn others_took(&self, taken: impl IntoIterator<Item = (Box<str>, OthersShare)>) {
        let now = self.clock.now();
        let mut by_uid = self.by_uid.write();
        by_uid.unused.retain(|_, full_at| *full_at > now);
        for (uid, share) in taken {
            if let Some(bucket) = by_uid.buckets.get(&uid) {
                bucket.spend_to(share.full_after);
                bucket.spend(share.more);
            } else {
                let before = by_uid.unused.get(&uid);
                let before = before.map_or(Duration::ZERO, |full_at| full_at.duration_since(now).into());
                let spent = before.max(share.full_after.min(FULL_AFTER_DEBT));
                let full_after = spent.saturating_add(share.more).min(FULL_AFTER).max(spent);
                by_uid.unused.insert(uid, now + full_after.into());
            }
        }
    }
}

/// What a process has taken from a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnShare {
    /// Distinguishes the bucket from one that the process had before for the same UID.
    pub(super) bucket: i64,
    /// Everything that it has ever taken from the bucket, as the time that refilling it takes.
    pub(super) taken: Duration,
    /// How long the bucket takes to fill, whoever has taken from it.
    pub(super) full_after: Duration,
}

/// What other processes have taken from a bucket, as the time that refilling it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OthersShare {
    /// The minimum time that the bucket takes to fill.
    pub(super) full_after: Duration,
    /// What to take in addition.
    pub(super) more: Duration,
}

/// Values for keys, for accounts, and for accounts' reads in the console, by UID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ByHolder<T> {
    pub(super) keys: Vec<(Box<str>, T)>,
    pub(super) accounts: Vec<(Box<str>, T)>,
    pub(super) console: Vec<(Box<str>, T)>,
}

/// The buckets of all keys and accounts that have been used.
#[derive(Default)]
pub struct RateLimits {
    keys: Buckets,
    accounts: Buckets,
    /// The buckets for an account's reads in the console.
    console: Buckets,
}

impl RateLimits {
    /// Counts a request against the limit of its key, and of all keys of its account.
    pub fn spend(&self, credential: &Credential) -> Allowance {
        let tenant = &credential.tenant;
        let taken = self.keys.take(credential.key_uid(), tenant.rate_limit);
        let exceeded = |limit, whose, retry_after| Exceeded {
            limit,
            whose,
            retry_after,
        };
        let by_key = taken
            .retry_after
            .map(|seconds| exceeded(taken.limit, Whose::Key, seconds));
        let limit = of_account(tenant.rate_limit);
        let by_account = || {
            let together = self.accounts.take(&tenant.uid, limit);
            together
                .retry_after
                .map(|seconds| exceeded(limit, Whose::Account, seconds))
        };
        Allowance {
            limit: taken.limit,
            remaining: taken.remaining,
            reset: taken.reset,
            exceeded: by_key.or_else(by_account),
        }
    }

    /// Charges this many more requests that read in the console, even if fewer are left.
    pub fn charge_in_console(&self, credential: &Credential, requests: u32) {
        let tenant = &credential.tenant;
        let charge = |bucket: &Bucket<_>| bucket.charge(requests);
        self.console
            .with(&tenant.uid, of_account(tenant.rate_limit), charge);
    }

    /// Charges this many more requests to the limits of a key and of all keys of its account, even if fewer are left.
    pub fn charge(&self, credential: &Credential, requests: u32) {
        let tenant = &credential.tenant;
        let charge = |bucket: &Bucket<_>| bucket.charge(requests);
        self.keys.with(credential.key_uid(), tenant.rate_limit, charge);
        self.accounts
            .with(&tenant.uid, of_account(tenant.rate_limit), charge);
    }

    /// Counts a request that reads in the console. Pages that refresh themselves must not use up the limit of the key, so
    /// an account's reads in the console have a limit of their own, as large as that of all its keys together.
    pub fn spend_in_console(&self, credential: &Credential) -> Allowance {
        let tenant = &credential.tenant;
        let taken = self.console.take(&tenant.uid, of_account(tenant.rate_limit));
        Allowance {
            limit: taken.limit,
            remaining: taken.remaining,
            reset: taken.reset,
            exceeded: taken.retry_after.map(|retry_after| Exceeded {
                limit: taken.limit,
                whose: Whose::Console,
                retry_after,
            }),
        }
    }

    /// What this process has taken from buckets, if at least `at_least`.
    pub(super) fn taken(&self, at_least: Duration) -> ByHolder<OwnShare> {
        ByHolder {
            keys: self.keys.taken(at_least),
            accounts: self.accounts.taken(at_least),
            console: self.console.taken(at_least),
        }
    }

    /// Subtracts what other processes, and earlier ones, have taken.
    pub(super) fn others_took(&self, taken: ByHolder<OthersShare>) {
        self.keys.others_took(taken.keys);
        self.accounts.others_took(taken.accounts);
        self.console.others_took(taken.console);
    }

    /// The listener that drops the buckets of deleted keys.
    pub fn key_listener(self: &Arc<Self>) -> Box<dyn Listener<ApiKey>> {
        let limits = self.clone();
        Box::new(move |change: &Change<ApiKey>| limits.keys.changed(change))
    }

    /// The listener that drops the buckets of deleted accounts.
    pub fn account_listener(self: &Arc<Self>) -> Box<dyn Listener<Account>> {
        let limits = self.clone();
        Box::new(move |change: &Change<Account>| {
            limits.accounts.changed(change);
            limits.console.changed(change);
        })
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
struct Bucket<C: Clock> {
    limit: NonZeroU32,
    clock: C,
    made_at: C::Instant,
    /// When it is full, in nanoseconds since it was made. It is empty if that is as far ahead as refilling all requests takes, and
    /// in debt if it is further.
    full_at: AtomicU64,
    /// Everything that this process has taken from it, as the microseconds that refilling it takes.
    taken: AtomicU64,
    /// Distinguishes the bucket from others for the same UID.
    id: i64,
}

impl<C: Clock + Clone> Bucket<C> {
    /// A full bucket of `limit` requests per hour.
    fn new(limit: NonZeroU32, clock: C) -> Self {
        Self {
            limit,
            made_at: clock.now(),
            full_at: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            id: Timestamp::now().as_microsecond(),
            clock,
        }
    }

    /// Whether it is full, and so as good as a new one.
    fn is_worthless(&self) -> bool {
        self.full_after().is_zero()
    }

    /// Time since it was made.
    fn age(&self) -> Duration {
        self.clock.now().duration_since(self.made_at).into()
    }

    fn own_share(&self) -> OwnShare {
        OwnShare {
            bucket: self.id,
            taken: Duration::from_micros(self.taken.load(Ordering::Relaxed)),
            full_after: self.full_after(),
        }
    }

    /// How long it takes to fill.
    fn full_after(&self) -> Duration {
        Duration::from_nanos(self.full_at.load(Ordering::Relaxed)).saturating_sub(self.age())
    }

    /// How long refilling one request takes.
    fn request(&self) -> Duration {
        FULL_AFTER / self.limit.get()
    }

    /// How long an empty bucket takes to fill.
    fn capacity(&self) -> Duration {
        self.request() * self.limit.get()
    }

    /// Changes how long it takes to fill, unless `change` returns `None`. Returns how long it took before.
    fn change(&self, change: impl Fn(Duration) -> Option<Duration>) -> Result<Duration, Duration> {
        let age = self.age();
        let full_after = |full_at| Duration::from_nanos(full_at).saturating_sub(age);
        let changed = self
            .full_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| {
                let full_at = age.saturating_add(change(full_after(full_at))?);
                Some(u64::try_from(full_at.as_nanos()).unwrap_or(u64::MAX))
            });
        changed.map(full_after).map_err(full_after)
    }

    /// Takes as many requests as needed for the bucket to take this long to fill, if it is fuller.
    fn spend_to(&self, full_after: Duration) {
        let full_after = full_after.min(FULL_AFTER_DEBT);
        let _ = self.change(|spent| Some(spent.max(full_after)));
    }

    /// Takes as many requests as refill in this time, or as there are: replicas count separately between two reads, so what they have
    /// taken together is not a debt.
    fn spend(&self, time: Duration) {
        let capacity = self.capacity();
        let _ = self.change(|spent| Some(spent.saturating_add(time).min(capacity).max(spent)));
    }

    /// Takes this many requests on behalf of this process. If there are fewer, the rest is a debt.
    fn charge(&self, requests: u32) {
        let cost = self.request().saturating_mul(requests);
        // A request that comes after the debt must not wait longer than that, either.
        let most = (self.capacity() + LONGEST_DEBT).saturating_sub(self.request());
        let charged = |spent: Duration| spent.saturating_add(cost).min(most).max(spent);
        let (Ok(spent) | Err(spent)) = self.change(|spent| Some(charged(spent)));
        self.count(charged(spent).saturating_sub(spent));
    }

    /// Counts what this process has taken.
    fn count(&self, time: Duration) {
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.taken.fetch_add(time, Ordering::Relaxed);
    }

    /// Takes one request out of the bucket, if one is left.
    fn take(&self) -> Taken {
        let (request, capacity) = (self.request(), self.capacity());
        let one_more = |spent: Duration| Some(spent + request).filter(|spent| *spent <= capacity);
        let (spent, retry_after) = match self.change(one_more) {
            Ok(before) => {
                self.count(request);
                (before + request, None)
            }
            Err(spent) => {
                let wait = (spent + request).saturating_sub(capacity);
                (spent, Some(ceil_seconds(wait)))
            }
        };
        let limit = self.limit.get();
        let missing = u64::try_from(spent.as_nanos().div_ceil(request.as_nanos())).unwrap_or(u64::MAX);
        let remaining = u64::from(limit).saturating_sub(missing);
        Taken {
            limit,
            remaining: u32::try_from(remaining).unwrap_or(limit),
            reset: refill_seconds(limit, missing),
            retry_after,
        }
    }
}

/// Seconds until `missing` requests are refilled, rounded up.
fn refill_seconds(limit: u32, missing: u64) -> u64 {
    missing.saturating_mul(3600).div_ceil(u64::from(limit))
}

fn ceil_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;
    use crate::{resources::api_key, service::credentials::Credentials};

    fn limit(requests: u32) -> NonZeroU32 {
        NonZeroU32::new(requests).unwrap()
    }

    #[test]
    fn a_bucket_empties_and_refills_evenly() {
        let clock = FakeRelativeClock::default();
        let bucket = Bucket::new(limit(3600), clock.clone());
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
        let bucket = Bucket::new(limit(2), clock.clone());
        assert_eq!((bucket.take().remaining, bucket.take().remaining), (1, 0));
        assert_eq!(bucket.take().retry_after, Some(1800));
        clock.advance(Duration::from_millis(1_799_500));
        assert_eq!(bucket.take().retry_after, Some(1), "half a second is rounded up");
        clock.advance(Duration::from_millis(500));
        assert_eq!(bucket.take().retry_after, None);
    }

    #[test]
    fn the_largest_limit_works() {
        let taken = Buckets::<DefaultClock>::default().take("key", 1_000_000_000);
        assert_eq!((taken.limit, taken.retry_after), (1_000_000_000, None));
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

    fn text(number: usize) -> String {
        api_key::test_key("account-uid", &number.to_string())
    }

    fn key(number: usize) -> Arc<ApiKey> {
        let digest = hex::encode(api_key::digest("account-uid", &text(number)));
        let key = serde_json::json!({
            "metadata": { "name": format!("key-{number}"), "namespace": "demo", "uid": format!("key-uid-{number}") },
            "spec": { "sha256": digest },
        });
        Arc::new(serde_json::from_value(key).unwrap())
    }

    /// An account with this limit and twelve keys, and their rate limits.
    fn twelve_keys(rate_limit: i32) -> (Arc<Credentials>, Arc<RateLimits>) {
        let (credentials, limits) = (Arc::<Credentials>::default(), Arc::<RateLimits>::default());
        let keys = (0..12).map(key).collect();
        credentials.key_listener().changed(&Change::Replaced(keys));
        let accounts = Change::Replaced(vec![account(rate_limit)]);
        credentials.account_listener().changed(&accounts);
        (credentials, limits)
    }

    fn spend(credentials: &Credentials, limits: &RateLimits, number: usize) -> Allowance {
        let credential = credentials.authenticate(&text(number), jiff::Timestamp::now);
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
        assert_eq!((exceeded.limit, exceeded.whose), (2, Whose::Key));
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
        assert_eq!((exceeded.limit, exceeded.whose), (20, Whose::Account));
    }

    #[test]
    fn what_is_charged_besides_counts_for_the_key_and_the_account_and_is_told_to_other_replicas() {
        let (credentials, limits) = twelve_keys(100);
        let credential = credentials
            .authenticate(&text(0), jiff::Timestamp::now)
            .ok()
            .unwrap();
        spend(&credentials, &limits, 0);
        limits.charge(&credential, 29);
        assert_eq!(spend(&credentials, &limits, 0).remaining, 69);
        assert_eq!(limits.accounts.take(&credential.tenant.uid, 1000).remaining, 968);
        let taken = limits.taken(Duration::ZERO).keys;
        assert_eq!(taken[0].1.taken, Duration::from_secs(31 * 36));
        limits.charge(&credential, 1000);
        let allowance = spend(&credentials, &limits, 0);
        let exceeded = allowance.exceeded.unwrap();
        assert_eq!(exceeded.whose, Whose::Key);
        // The debt is limited to an hour's worth.
        assert!((3590..=3600).contains(&exceeded.retry_after), "{exceeded:?}");
        assert_eq!((allowance.remaining, allowance.reset), (0, 199 * 36));
        let taken = limits.taken(Duration::ZERO).keys[0].1.taken.as_secs();
        assert!((199 * 36..199 * 36 + 10).contains(&taken), "{taken}");
    }

    #[test]
    fn what_a_request_costs_beyond_what_is_left_is_worked_off_before_the_next_one() {
        let clock = FakeRelativeClock::default();
        let bucket = Bucket::new(limit(3600), clock.clone());
        for _ in 0..3600 {
            assert_eq!(bucket.take().retry_after, None);
        }
        bucket.charge(200);
        let refused = bucket.take();
        assert_eq!(
            (refused.remaining, refused.reset, refused.retry_after),
            (0, 3800, Some(201))
        );
        clock.advance(Duration::from_secs(200));
        assert_eq!(bucket.take().retry_after, Some(1));
        clock.advance(Duration::from_secs(1));
        assert_eq!(bucket.take().retry_after, None);
        // However much it costs, the debt is worked off within an hour.
        for _ in 0..2 {
            bucket.charge(u32::MAX);
            assert_eq!(bucket.take().retry_after, Some(3600));
        }
        clock.advance(Duration::from_secs(3600));
        assert!(!bucket.is_worthless());
        assert_eq!(bucket.take().retry_after, None);
    }

    #[test]
    fn buckets_that_are_full_again_do_not_pile_up() {
        let clock = FakeRelativeClock::default();
        let buckets = Buckets {
            clock: clock.clone(),
            by_uid: RwLock::default(),
        };
        let len = || buckets.by_uid.read().buckets.len();
        for hour in 0..5 {
            for number in 0..100 {
                buckets.take(&format!("{hour}-{number}"), 10);
            }
            assert!(len() <= 200, "{}", len());
            // Buckets in use stay.
            assert_eq!(buckets.take(&format!("{hour}-0"), 10).remaining, 8);
            clock.advance(Duration::from_secs(3601));
        }
    }

    #[test]
    fn what_others_have_taken_is_taken_too_and_refills_meanwhile() {
        let clock = FakeRelativeClock::default();
        let buckets = || Buckets {
            clock: clock.clone(),
            by_uid: RwLock::default(),
        };
        let seconds = Duration::from_secs;
        let first = buckets();
        for _ in 0..3600 {
            first.take("busy", 3600);
        }
        assert!(first.take("busy", 3600).retry_after.is_some());
        first.take("idle", 3600);
        let taken = first.taken(seconds(300));
        let [(uid, busy)] = &taken[..] else {
            panic!("{taken:?}")
        };
        assert_eq!(
            (&**uid, busy.taken, busy.full_after),
            ("busy", seconds(3600), seconds(3600))
        );

        let others = |full_after: u64, more: u64| {
            let (full_after, more) = (seconds(full_after), seconds(more));
            [("busy".into(), OthersShare { full_after, more })]
        };
        let second = buckets();
        second.others_took(others(3000, 0));
        assert!(second.taken(seconds(1)).is_empty(), "that is not its own");
        clock.advance(seconds(60));
        assert_eq!(second.take("busy", 3600).remaining, 659);
        second.others_took(others(2900, 0));
        assert_eq!(
            second.take("busy", 3600).remaining,
            658,
            "it is less full already"
        );
        second.others_took(others(0, 100));
        assert_eq!(second.take("busy", 3600).remaining, 557);
        assert_eq!(second.taken(seconds(1))[0].1.taken, seconds(3));
        let third = buckets();
        third.others_took(others(1000, 0));
        third.others_took(others(0, 600));
        third.others_took(others(0, 600));
        assert_eq!(
            third.take("busy", 3600).remaining,
            1399,
            "also before it is used here"
        );

        second.others_took(others(0, 3600));
        assert!(
            second.take("busy", 3600).retry_after.is_some(),
            "there was not as much"
        );
        assert_eq!(second.take("idle", 3600).remaining, 3599);
        clock.advance(seconds(600));
        assert!((599..=601).contains(&second.take("busy", 3600).remaining));
    }

    #[test]
    fn what_is_deleted_leaves_nothing_behind() {
        let (credentials, limits) = twelve_keys(2);
        spend(&credentials, &limits, 0);
        limits.key_listener().changed(&Change::Deleted(key(0)));
        limits.account_listener().changed(&Change::Deleted(account(2)));
        assert!(
            limits.keys.by_uid.read().buckets.is_empty() && limits.accounts.by_uid.read().buckets.is_empty()
        );
    }
}
