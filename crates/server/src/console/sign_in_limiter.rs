//! Limits failed attempts to sign in, per client address. An attempt is what tests a secret: a key, a link's token, a provider's code.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// Maximum number of failed attempts from one address (one /64 with IPv6) within [`WINDOW`].
const MOST: u32 = 10;
/// How long failed attempts count.
const WINDOW: SignedDuration = SignedDuration::from_mins(5);
/// Maximum number of addresses remembered. Beyond that, those whose window began first are forgotten.
const MOST_ADDRESSES: usize = 10_000;

/// The failed attempts of an address.
#[derive(Clone, Copy, Debug)]
struct Failed {
    since: Timestamp,
    count: u32,
}

impl Failed {
    /// Seconds to wait, if there are too many.
    fn wait(&self, now: Timestamp) -> Option<u64> {
        let left = WINDOW - now.duration_since(self.since);
        (self.count >= MOST && left.is_positive()).then(|| u64::try_from(left.as_secs()).unwrap_or(0).max(1))
    }
}

/// An attempt that has begun. It counts as failed unless it is taken back.
pub struct Attempt<'a> {
    limiter: &'a SignInLimiter,
    address: IpAddr,
    since: Timestamp,
}

impl Attempt<'_> {
    /// The attempt has succeeded, or nothing was tested.
    pub fn take_back(self) {
        let mut by_address = self.limiter.by_address.lock();
        if let Some(failed) = by_address.get_mut(&self.address)
            && failed.since == self.since
        {
            failed.count = failed.count.saturating_sub(1);
        }
    }
}

/// The recent failed attempts.
#[derive(Default)]
pub struct SignInLimiter {
    by_address: Mutex<HashMap<IpAddr, Failed>>,
}

impl SignInLimiter {
    /// Seconds to wait until an address may try again; `None` if it may now.
    pub fn wait(&self, address: IpAddr, now: Timestamp) -> Option<u64> {
        self.by_address.lock().get(&sharing(address))?.wait(now)
    }

    /// Begins an attempt, or says how many seconds to wait. It counts from now on, so that attempts at the same time do not exceed the
    /// limit together.
    pub fn begin(&self, address: IpAddr, now: Timestamp) -> Result<Attempt<'_>, u64> {
        let address = sharing(address);
        let mut by_address = self.by_address.lock();
        if let Some(seconds) = by_address.get(&address).and_then(|failed| failed.wait(now)) {
            return Err(seconds);
        }
        if by_address.len() >= MOST_ADDRESSES && !by_address.contains_key(&address) {
            by_address.retain(|_, failed| now.duration_since(failed.since) < WINDOW);
            if by_address.len() >= MOST_ADDRESSES {
                let oldest = by_address.iter().min_by_key(|(_, failed)| failed.since);
                if let Some(oldest) = oldest.map(|(address, _)| *address) {
                    by_address.remove(&oldest);
                }
            }
        }
        let failed = by_address
            .entry(address)
            .or_insert(Failed { since: now, count: 0 });
        if now.duration_since(failed.since) >= WINDOW {
            *failed = Failed { since: now, count: 0 };
        }
        failed.count = failed.count.saturating_add(1);
        Ok(Attempt {
            limiter: self,
            address,
            since: failed.since,
        })
    }
}

/// The address under which attempts are counted: for IPv6 the /64 network, which usually belongs to one household.
fn sharing(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_that_has_failed_too_often_waits_until_its_window_ends() {
        let attempts = SignInLimiter::default();
        let start: Timestamp = "2026-11-22T10:00:00Z".parse().unwrap();
        let later = |seconds: i64| start + SignedDuration::from_secs(seconds);
        for _ in 0..MOST {
            assert!(attempts.begin(ip("192.0.2.1"), start).is_ok());
        }
        assert_eq!(attempts.wait(ip("192.0.2.1"), later(10)), Some(290));
        assert_eq!(attempts.wait(ip("::ffff:192.0.2.1"), later(10)), Some(290));
        assert_eq!(attempts.wait(ip("192.0.2.2"), later(10)), None);
        assert_eq!(attempts.wait(ip("192.0.2.1"), later(300)), None);
        assert_eq!(attempts.begin(ip("192.0.2.1"), later(299)).err(), Some(1));
        assert!(attempts.begin(ip("192.0.2.1"), later(300)).is_ok());
        assert_eq!(attempts.wait(ip("192.0.2.1"), later(300)), None, "a new window");
        for host in 1..=MOST {
            assert!(attempts.begin(ip(&format!("2001:db8::{host}")), start).is_ok());
        }
        assert!(
            attempts.wait(ip("2001:db8::ffff"), start).is_some(),
            "one /64 counts as one"
        );
        assert_eq!(attempts.wait(ip("2001:db8:0:1::1"), start), None);
    }

    #[test]
    fn attempts_count_as_soon_as_they_begin_and_those_that_succeed_are_taken_back() {
        let attempts = SignInLimiter::default();
        let now: Timestamp = "2026-11-22T10:00:00Z".parse().unwrap();
        let begin = || attempts.begin(ip("192.0.2.1"), now);
        let open: Vec<_> = (0..MOST).map(|_| begin().ok().unwrap()).collect();
        assert_eq!(begin().err(), Some(300), "none of them has ended");
        open.into_iter().for_each(Attempt::take_back);
        assert_eq!(attempts.wait(ip("192.0.2.1"), now), None);
        for _ in 0..3 * MOST {
            begin().ok().unwrap().take_back();
        }
        assert!(begin().is_ok());
    }

    #[test]
    fn the_number_of_addresses_is_bounded() {
        let attempts = SignInLimiter::default();
        let start: Timestamp = "2026-11-22T10:00:00Z".parse().unwrap();
        for number in 0..u32::try_from(MOST_ADDRESSES).unwrap() + 10 {
            let address = IpAddr::V4(std::net::Ipv4Addr::from_bits(number));
            let begun = attempts.begin(address, start + SignedDuration::from_millis(number.into()));
            assert!(begun.is_ok());
        }
        assert_eq!(attempts.by_address.lock().len(), MOST_ADDRESSES);
    }
}
