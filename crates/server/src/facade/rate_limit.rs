//! Rate limits: the requests of a key, those of all keys of an account together, and the account's reads in the console. An allowance may be
//! spent at once and refills evenly over the hour. Each replica counts for itself, in memory (decisions, section 1). Rate limits smooth the
//! load; quotas limit what an account may have.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use governor::{
    NotUntil, Quota, RateLimiter,
    clock::{Clock, DefaultClock},
    middleware::{StateInformationMiddleware, StateSnapshot},
    state::keyed::HashMapStateStore,
};
use parking_lot::RwLock;

use super::extract::Caller;

/// The limit of all keys of an account together, as a multiple of the limit of one key (decisions, section 1).
const ACCOUNT_FACTOR: u32 = 10;
/// After how many requests the allowances that are full again are forgotten.
const FORGET_EVERY: u32 = 10_000;

/// Requests per hour that all keys of an account together may make, if one key may make `of_a_key`.
pub const fn of_account(of_a_key: u32) -> u32 {
    of_a_key.saturating_mul(ACCOUNT_FACTOR)
}

/// Whose limit a request exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// Seconds until the allowance is full again.
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

/// The UID of a key or account, and which of its requests are meant.
type Requests = (Whose, Box<str>);

type Limiter<C> = RateLimiter<Requests, HashMapStateStore<Requests>, C, StateInformationMiddleware>;

/// The rate limits of all keys and accounts.
#[derive(Default)]
pub struct RateLimits<C: Clock = DefaultClock> {
    clock: C,
    /// By requests per hour. An account whose limit is changed begins with a full allowance.
    by_limit: RwLock<HashMap<NonZeroU32, Limiter<C>>>,
    /// Requests since the last time that full allowances were forgotten.
    counted: AtomicU32,
}

impl<C: Clock + Clone> RateLimits<C> {
    /// Counts a request against the limit of its key, and of all keys of its account. Pages of the console that refresh themselves must not
    /// use up the limit of the key, so reads there have a limit of their own, as large as that of all the account's keys together.
    pub fn spend(&self, caller: &Caller) -> Allowance {
        let (credential, tenant) = (&caller.credential, &caller.credential.tenant);
        let together = of_account(tenant.rate_limit);
        if caller.reads_in_console {
            return self.take(Whose::Console, &tenant.uid, together);
        }
        let by_key = self.take(Whose::Key, credential.key_uid(), tenant.rate_limit);
        if by_key.exceeded.is_some() {
            return by_key;
        }
        let by_account = self.take(Whose::Account, &tenant.uid, together);
        Allowance {
            exceeded: by_account.exceeded,
            ..by_key
        }
    }

    /// Counts this many more requests, or as many as are left.
    pub fn charge(&self, caller: &Caller, requests: u32) {
        for _ in 0..requests {
            if self.spend(caller).exceeded.is_some() {
                break;
            }
        }
    }

    /// Takes one request out of an allowance of `limit` requests per hour; 0 counts as 1.
    fn take(&self, whose: Whose, uid: &str, limit: u32) -> Allowance {
        let limit = NonZeroU32::new(limit).unwrap_or(NonZeroU32::MIN);
        let (remaining, retry_after) = match self.check(limit, &(whose, uid.into())) {
            Ok(state) => (state.remaining_burst_capacity(), None),
            Err(refused) => (0, Some(ceil_seconds(refused.wait_time_from(self.clock.now())))),
        };
        let limit = limit.get();
        let missing = u64::from(limit.saturating_sub(remaining));
        Allowance {
            limit,
            remaining,
            reset: (missing * 3600).div_ceil(limit.into()),
            exceeded: retry_after.map(|retry_after| Exceeded {
                limit,
                whose,
                retry_after,
            }),
        }
    }

    fn check(&self, limit: NonZeroU32, requests: &Requests) -> Result<StateSnapshot, NotUntil<C::Instant>> {
        if self.counted.fetch_add(1, Ordering::Relaxed) % FORGET_EVERY == FORGET_EVERY - 1 {
            self.forget_full();
        }
        if let Some(limiter) = self.by_limit.read().get(&limit) {
            return limiter.check_key(requests);
        }
        let mut by_limit = self.by_limit.write();
        let limiter = by_limit.entry(limit).or_insert_with(|| {
            let states = HashMapStateStore::default();
            RateLimiter::new(Quota::per_hour(limit), states, self.clock.clone())
        });
        limiter.check_key(requests)
    }

    /// Forgets the allowances that are full again, so that those of deleted keys do not pile up.
    fn forget_full(&self) {
        self.by_limit.write().retain(|_, limiter| {
            limiter.retain_recent();
            !limiter.is_empty()
        });
    }
}

fn ceil_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use governor::clock::FakeRelativeClock;

    use super::*;
    use crate::service::credentials::Credentials;
    use resources::{Account, ApiKey, api_key};
    use runtime::watch::Change;

    fn take(limits: &RateLimits<FakeRelativeClock>, limit: u32) -> Allowance {
        limits.take(Whose::Key, "key", limit)
    }

    fn retry_after(allowance: &Allowance) -> Option<u64> {
        allowance.exceeded.map(|exceeded| exceeded.retry_after)
    }

    #[test]
    fn an_allowance_is_spent_at_once_and_refills_evenly() {
        let limits = RateLimits::<FakeRelativeClock>::default();
        let first = Allowance {
            limit: 3600,
            remaining: 3599,
            reset: 1,
            exceeded: None,
        };
        assert_eq!(take(&limits, 3600), first);
        for left in (0..3599).rev() {
            assert_eq!(take(&limits, 3600).remaining, left);
        }
        let empty = take(&limits, 3600);
        assert_eq!(
            (empty.remaining, empty.reset, retry_after(&empty)),
            (0, 3600, Some(1))
        );
        limits.clock.advance(Duration::from_secs(2));
        assert_eq!(take(&limits, 3600).remaining, 1);
        limits.clock.advance(Duration::from_secs(7200));
        assert_eq!(take(&limits, 3600), first);
    }

    #[test]
    fn a_small_limit_says_how_long_to_wait() {
        let limits = RateLimits::<FakeRelativeClock>::default();
        assert_eq!((take(&limits, 2).remaining, take(&limits, 2).remaining), (1, 0));
        assert_eq!(retry_after(&take(&limits, 2)), Some(1800));
        limits.clock.advance(Duration::from_millis(1_799_500));
        assert_eq!(
            retry_after(&take(&limits, 2)),
            Some(1),
            "half a second is rounded up"
        );
        limits.clock.advance(Duration::from_millis(500));
        assert_eq!(take(&limits, 2).exceeded, None);
    }

    #[test]
    fn the_largest_limit_works() {
        let taken =
            RateLimits::<DefaultClock>::default().take(Whose::Account, "uid", of_account(1_000_000_000));
        assert_eq!((taken.limit, taken.exceeded), (u32::MAX, None));
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

    /// An account with this limit and twelve keys.
    fn twelve_keys(rate_limit: i32) -> Arc<Credentials> {
        let credentials = Arc::<Credentials>::default();
        let keys = (0..12).map(key).collect();
        credentials.key_listener().changed(&Change::Replaced(keys));
        let accounts = Change::Replaced(vec![account(rate_limit)]);
        credentials.account_listener().changed(&accounts);
        credentials
    }

    /// A caller with one of the keys.
    fn caller(credentials: &Credentials, number: usize) -> Caller {
        let credential = credentials.authenticate(&text(number), jiff::Timestamp::now);
        Caller {
            credential: credential.ok().unwrap(),
            reads_in_console: false,
        }
    }

    #[test]
    fn another_limit_of_the_account_holds_from_the_next_request_on() {
        let (credentials, limits) = (twelve_keys(3600), RateLimits::<FakeRelativeClock>::default());
        assert_eq!(limits.spend(&caller(&credentials, 0)).remaining, 3599);
        assert_eq!(limits.spend(&caller(&credentials, 0)).remaining, 3598);
        credentials
            .account_listener()
            .changed(&Change::Applied(account(2)));
        assert_eq!(limits.spend(&caller(&credentials, 0)).remaining, 1);
        assert_eq!(limits.spend(&caller(&credentials, 0)).remaining, 0);
        let exceeded = limits.spend(&caller(&credentials, 0)).exceeded.unwrap();
        assert_eq!((exceeded.limit, exceeded.whose), (2, Whose::Key));
    }

    #[test]
    fn all_keys_of_an_account_together_may_make_ten_times_the_requests_of_one() {
        let (credentials, limits) = (twelve_keys(2), RateLimits::<FakeRelativeClock>::default());
        for number in 0..10 {
            for _ in 0..2 {
                assert_eq!(
                    limits.spend(&caller(&credentials, number)).exceeded,
                    None,
                    "{number}"
                );
            }
        }
        let exceeded = limits.spend(&caller(&credentials, 10)).exceeded.unwrap();
        assert_eq!((exceeded.limit, exceeded.whose), (20, Whose::Account));
    }

    #[test]
    fn what_is_charged_besides_counts_for_the_key_and_the_account_as_far_as_so_much_is_left() {
        let (credentials, limits) = (twelve_keys(100), RateLimits::<FakeRelativeClock>::default());
        let caller = caller(&credentials, 0);
        limits.spend(&caller);
        limits.charge(&caller, 29);
        assert_eq!(limits.spend(&caller).remaining, 69);
        let of_account = limits.take(Whose::Account, &caller.credential.tenant.uid, 1000);
        assert_eq!(of_account.remaining, 968);
        limits.charge(&caller, u32::MAX);
        let empty = limits.spend(&caller);
        assert_eq!((empty.remaining, retry_after(&empty)), (0, Some(36)));
    }

    #[test]
    fn allowances_that_are_full_again_are_forgotten() {
        let limits = RateLimits::<FakeRelativeClock>::default();
        for number in 0..100 {
            limits.take(Whose::Key, &number.to_string(), 10);
        }
        limits.clock.advance(Duration::from_secs(3000));
        limits.take(Whose::Key, "0", 10);
        limits.take(Whose::Account, "used", 100);
        limits.forget_full();
        let left = |limit| {
            let limit = NonZeroU32::new(limit).unwrap();
            limits.by_limit.read().get(&limit).map(Limiter::len)
        };
        assert_eq!((left(10), left(100)), (Some(1), Some(1)));
        limits.clock.advance(Duration::from_secs(3000));
        for _ in 0..FORGET_EVERY {
            limits.take(Whose::Key, "1", 1_000_000);
        }
        assert_eq!((left(10), left(100), left(1_000_000)), (None, None, Some(1)));
    }
}
