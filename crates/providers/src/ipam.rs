//! The addresses of a region's servers, in memory: which are given, to whom, and which rest.

use std::{
    collections::{HashMap, HashSet},
    net::{Ipv4Addr, Ipv6Addr},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use domain::{
    catalogue::region::{Ipv4Prefix, Ipv6Prefix},
    provider::{Addresses, Trouble},
};
use resources::{Instance, origin};
use runtime::Metrics;

/// How long a released address is given to nobody by default: routers and peers still send to it what was for the server before, and a
/// creation that was called off may still come through.
const REST: Duration = Duration::from_mins(10);

/// The addresses of a region. An address that is in a status, or that a server has, is taken however it came there; only others are
/// given.
pub struct Ipam {
    region: String,
    metrics: Option<Metrics>,
    state: Mutex<State>,
}

/// Only hashes of the UIDs are kept, which are a third as large.
#[derive(Default)]
struct State {
    ipv4: Vec<Ipv4Prefix>,
    /// Number of IPv4 addresses that servers may have.
    size: u64,
    ipv6: Option<Ipv6Prefix>,
    by_holder: HashMap<u64, Ipv4Addr>,
    by_address: HashMap<Ipv4Addr, Holder>,
    /// How long a released address is given to nobody.
    rest: Duration,
    /// Released addresses, and when they were released.
    resting: HashMap<Ipv4Addr, Instant>,
}

/// Who has an address.
#[derive(Clone, Copy)]
struct Holder {
    uid: u64,
    /// When its server was made; [`Timestamp::MAX`] if none is known.
    made_at: Timestamp,
}

/// The addresses of a server, and why it must wait for one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// The addresses that it has or will have.
    pub addresses: Addresses,
    /// Why a server that has not been made must not be made now.
    pub trouble: Option<Trouble>,
}

/// These Instances, the oldest first: of several with one address, the first keeps it.
pub fn oldest_first<I: std::borrow::Borrow<Instance>>(mut instances: Vec<I>) -> Vec<I> {
    instances.sort_by_cached_key(|instance| {
        let metadata = &instance.borrow().metadata;
        (origin::created_at(metadata), origin::uid(metadata).to_owned())
    });
    instances
}

/// The addresses in the status of an Instance.
pub(crate) fn in_status(instance: &Instance) -> Addresses {
    let status = instance.status.as_ref();
    Addresses {
        ipv4: status.and_then(|status| status.ip_address.clone()),
        ipv6: status.and_then(|status| status.ipv6_address.clone()),
        private: None,
    }
}

impl Ipam {
    /// The addresses of a region, none of which is taken. Without an IPv4 prefix, it gives no IPv4 addresses.
    pub fn new(region: impl Into<String>, ipv4: Vec<Ipv4Prefix>, ipv6: Option<Ipv6Prefix>) -> Self {
        Self {
            region: region.into(),
            metrics: None,
            state: Mutex::new(State {
                rest: REST,
                size: size(&ipv4),
                ipv4,
                ipv6,
                ..State::default()
            }),
        }
    }

    /// The same, with metrics of how many addresses are free.
    #[must_use]
    pub fn with_metrics(mut self, metrics: &Metrics) -> Self {
        self.metrics = Some(metrics.clone());
        self.show(&self.state.lock());
        self
    }

    /// The same, whose released addresses are given to nobody for this long.
    #[must_use]
    pub fn with_rest(mut self, rest: Duration) -> Self {
        self.state.get_mut().rest = rest;
        self
    }

    /// Goes on with other prefixes. Servers keep their addresses.
    pub fn replace(&self, ipv4: Vec<Ipv4Prefix>, ipv6: Option<Ipv6Prefix>) {
        let state = &mut *self.state.lock();
        (state.size, state.ipv4, state.ipv6) = (size(&ipv4), ipv4, ipv6);
        let prefixes = &state.ipv4;
        let is_served = |address: &Ipv4Addr| prefixes.iter().any(|prefix| prefix.serves(*address));
        state.by_holder.retain(|_, address| is_served(address));
        state.by_address.retain(|address, _| is_served(address));
        state.resting.retain(|address, _| is_served(address));
        self.show(state);
    }

    /// Takes the address that a server has, which was made at this time; `None` if it may not have been made yet. Where several have
    /// the same one, it is that of the server that was made first, or else of the first that is adopted: adopt the oldest first.
    /// Returns whether the address is this server's.
    pub fn adopt(&self, uid: &str, addresses: &Addresses, made_at: Option<Timestamp>) -> bool {
        let Some(address) = parsed(addresses) else {
            return true;
        };
        let state = &mut *self.state.lock();
        let is_own = state.adopt(holder(uid, made_at), address);
        self.show(state);
        is_own
    }

    /// Forgets what is taken, to be adopted anew. What rests goes on resting.
    pub fn forget(&self) {
        let state = &mut *self.state.lock();
        state.by_holder.clear();
        state.by_address.clear();
        self.show(state);
    }

    /// The addresses of a server: those that are `known` from its status, and for others the ones that it is given.
    pub fn reserve(&self, uid: &str, known: &Addresses, now: Instant) -> Reservation {
        let own = holder(uid, None);
        let state = &mut *self.state.lock();
        let (ipv4, trouble) = match &known.ipv4 {
            Some(text) => {
                let is_own = parsed(known).is_none_or(|address| state.adopt(own, address));
                (Some(text.clone()), (!is_own).then(|| taken(text)))
            }
            None if state.ipv4.is_empty() => (None, None),
            None => {
                let leased = state.lease(own, uid, now);
                (
                    leased.map(|address| address.to_string()),
                    leased.is_none().then(none_free),
                )
            }
        };
        self.show(state);
        let given = || state.ipv6.as_ref().map(|prefix| ipv6(prefix, uid).to_string());
        Reservation {
            addresses: Addresses {
                ipv4,
                ipv6: known.ipv6.clone().or_else(given),
                private: None,
            },
            trouble,
        }
    }

    /// Releases the address of a server that is gone. It rests for a while.
    pub fn release(&self, uid: &str, now: Instant) {
        let state = &mut *self.state.lock();
        state.wake(now);
        state.release(key(uid), now);
        self.show(state);
    }

    /// Releases the addresses of all servers but these.
    pub fn retain<'a>(&self, uids: impl IntoIterator<Item = &'a str>, now: Instant) {
        let kept: HashSet<u64> = uids.into_iter().map(key).collect();
        let state = &mut *self.state.lock();
        state.wake(now);
        let all = state.by_holder.keys();
        let gone: Vec<u64> = all.filter(|uid| !kept.contains(uid)).copied().collect();
        for uid in gone {
            state.release(uid, now);
        }
        self.show(state);
    }

    fn show(&self, state: &State) {
        if let Some(metrics) = &self.metrics
            && !state.ipv4.is_empty()
        {
            let used = state.by_address.len() as u64;
            metrics.show_addresses(&self.region, "ipv4", state.size.saturating_sub(used), used);
        }
    }
}

impl State {
    /// Takes an address, unless somebody else has it. A server that was made before it was known takes it from whoever has been given
    /// it meanwhile. Addresses of other prefixes are nobody's concern here.
    fn adopt(&mut self, own: Holder, address: Ipv4Addr) -> bool {
        if !self.ipv4.iter().any(|prefix| prefix.serves(address)) {
            return true;
        }
        match self.by_address.get_mut(&address) {
            Some(holder) if holder.uid == own.uid => {
                holder.made_at = holder.made_at.min(own.made_at);
                return true;
            }
            Some(holder) if holder.made_at <= own.made_at => return false,
            Some(holder) => {
                self.by_holder.remove(&holder.uid);
            }
            None => {}
        }
        self.by_address.insert(address, own);
        self.resting.remove(&address);
        // It had been given another one, which never got into its status.
        if let Some(before) = self.by_holder.insert(own.uid, address) {
            self.by_address.remove(&before);
        }
        true
    }

    /// Takes its address from a server, by the hash of its UID.
    fn release(&mut self, uid: u64, now: Instant) {
        if let Some(address) = self.by_holder.remove(&uid) {
            self.by_address.remove(&address);
            self.resting.insert(address, now);
        }
    }

    /// The address that has been given to a server, or else a free one. The search begins at a place that depends on the UID, so that
    /// another process, which does not know yet what this one has given, is not likely to give the same one to another server.
    fn lease(&mut self, own: Holder, uid: &str, now: Instant) -> Option<Ipv4Addr> {
        if let Some(address) = self.by_holder.get(&own.uid) {
            return Some(*address);
        }
        self.wake(now);
        let taken = self.by_address.len() + self.resting.len();
        if taken as u64 >= self.size {
            return None;
        }
        let space: u64 = self.ipv4.iter().map(span).sum();
        let start = seed(uid, b"ipv4").checked_rem(space)?;
        let mut all = (start..space).chain(0..start).filter_map(|index| self.at(index));
        let is_free = |address: &Ipv4Addr| {
            !self.by_address.contains_key(address)
                && !self.resting.contains_key(address)
                && self.ipv4.iter().any(|prefix| prefix.serves(*address))
        };
        let free = all.find(is_free)?;
        self.by_address.insert(free, own);
        self.by_holder.insert(own.uid, free);
        Some(free)
    }

    /// The address with this index in all prefixes together.
    fn at(&self, mut index: u64) -> Option<Ipv4Addr> {
        for prefix in &self.ipv4 {
            if index < span(prefix) {
                let first = u64::from(u32::from(prefix.prefix.network()));
                return u32::try_from(first + index).ok().map(Ipv4Addr::from);
            }
            index -= span(prefix);
        }
        None
    }

    /// Forgets the addresses that have rested.
    fn wake(&mut self, now: Instant) {
        let rest = self.rest;
        self.resting
            .retain(|_, since| now.saturating_duration_since(*since) < rest);
    }
}

fn size(ipv4: &[Ipv4Prefix]) -> u64 {
    ipv4.iter().map(|prefix| u64::from(prefix.size())).sum()
}

/// Number of addresses in a prefix, including those that servers cannot have.
fn span(prefix: &Ipv4Prefix) -> u64 {
    1 << (32 - prefix.prefix.prefix_len())
}

fn parsed(addresses: &Addresses) -> Option<Ipv4Addr> {
    addresses.ipv4.as_ref()?.parse().ok()
}

/// 64 bits of the UID's digest: enough to be unique without bookkeeping.
fn ipv6(prefix: &Ipv6Prefix, uid: &str) -> Ipv6Addr {
    let network = u128::from(prefix.prefix.network());
    let mut host = seed(uid, b"ipv6");
    // The first address is that of all routers.
    while host == 0 || Ipv6Addr::from(network | u128::from(host)) == prefix.gateway {
        host = host.wrapping_add(1);
    }
    Ipv6Addr::from(network | u128::from(host))
}

fn none_free() -> Trouble {
    Trouble {
        reason: "NoFreeAddress",
        message: "no public IPv4 address is free in the region; the server is created once there is one"
            .to_owned(),
    }
}

fn taken(address: &str) -> Trouble {
    Trouble {
        reason: "AddressTaken",
        message: format!("another server has the address {address}; only one of the two can have it"),
    }
}

/// The key that stands for a server's UID.
fn key(uid: &str) -> u64 {
    seed(uid, b"lease")
}

fn holder(uid: &str, made_at: Option<Timestamp>) -> Holder {
    Holder {
        uid: key(uid),
        made_at: made_at.unwrap_or(Timestamp::MAX),
    }
}

/// 64 bits that depend on a UID and a name.
pub(crate) fn seed(uid: &str, name: &[u8]) -> u64 {
    let digest = Sha256::new().chain_update(uid).chain_update(name).finalize();
    digest
        .iter()
        .take(8)
        .fold(0, |n, byte| (n << 8) | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(prefix: &str, gateway: &str) -> Ipv4Prefix {
        Ipv4Prefix {
            prefix: prefix.parse().unwrap(),
            gateway: gateway.parse().unwrap(),
            exclude: Vec::new(),
        }
    }

    fn known(ipv4: &str) -> Addresses {
        Addresses {
            ipv4: Some(ipv4.to_owned()),
            ..Addresses::default()
        }
    }

    fn reserve(ipam: &Ipam, uid: &str, now: Instant) -> Result<Ipv4Addr, &'static str> {
        let Reservation { addresses, trouble } = ipam.reserve(uid, &Addresses::default(), now);
        trouble.map_or_else(|| Ok(parsed(&addresses).unwrap()), |trouble| Err(trouble.reason))
    }

    #[test]
    fn all_prefixes_are_used_up_before_a_create_must_wait_and_nobody_gets_a_gateway_or_an_excluded_address() {
        let now = Instant::now();
        let mut first = prefix("192.0.2.0/28", "192.0.2.1");
        first.exclude = vec!["192.0.2.2".parse().unwrap()..="192.0.2.5".parse().unwrap()];
        let ipam = Ipam::new(
            "de-fra-1",
            vec![first, prefix("198.51.100.0/30", "198.51.100.2")],
            None,
        );
        let given: HashSet<_> = (0..10)
            .map(|i| reserve(&ipam, &format!("uid-{i}"), now).unwrap())
            .collect();
        let last = |address: &Ipv4Addr| (address.octets()[0], address.octets()[3]);
        let mut lasts: Vec<_> = given.iter().map(last).collect();
        lasts.sort_unstable();
        let expected: Vec<_> = (6..=14).map(|last| (192, last)).chain([(198, 1)]).collect();
        assert_eq!(lasts, expected);
        assert_eq!(reserve(&ipam, "uid-10", now), Err("NoFreeAddress"));
        assert!(reserve(&ipam, "uid-3", now).is_ok(), "it has one already");
        ipam.replace(vec![prefix("203.0.113.0/30", "203.0.113.1")], None);
        let kept = ipam.reserve("uid-3", &known("192.0.2.7"), now);
        assert_eq!(
            kept,
            Reservation {
                addresses: known("192.0.2.7"),
                trouble: None
            }
        );
        assert_eq!(reserve(&ipam, "uid-10", now), Ok("203.0.113.2".parse().unwrap()));
    }

    #[test]
    fn a_released_address_rests_for_ten_minutes() {
        let now = Instant::now();
        let ipam = Ipam::new("de-fra-1", vec![prefix("192.0.2.7/32", "10.0.0.1")], None);
        let only = reserve(&ipam, "a", now).unwrap();
        ipam.release("a", now);
        assert_eq!(
            reserve(&ipam, "b", now + REST.saturating_sub(Duration::from_secs(1))),
            Err("NoFreeAddress")
        );
        assert_eq!(reserve(&ipam, "b", now + REST), Ok(only));
        // Whoever has had it all along need not wait.
        ipam.release("b", now);
        assert!(ipam.adopt("c", &known("192.0.2.7"), None));
        assert_eq!(reserve(&ipam, "b", now + REST), Err("NoFreeAddress"));
    }

    #[test]
    fn how_long_a_released_address_rests_can_be_chosen() {
        let now = Instant::now();
        let rest = Duration::from_mins(2);
        let ipam = Ipam::new("de-fra-1", vec![prefix("192.0.2.7/32", "10.0.0.1")], None).with_rest(rest);
        let only = reserve(&ipam, "a", now).unwrap();
        ipam.release("a", now);
        let early = now + rest.saturating_sub(Duration::from_secs(1));
        assert_eq!(reserve(&ipam, "b", early), Err("NoFreeAddress"));
        assert_eq!(reserve(&ipam, "b", now + rest), Ok(only));
    }

    #[test]
    fn the_addresses_of_servers_that_are_not_listed_any_more_are_released() {
        let now = Instant::now();
        let ipam = Ipam::new("de-fra-1", vec![prefix("192.0.2.0/29", "192.0.2.1")], None);
        let all = ["a", "b", "c", "d", "e"].map(|uid| reserve(&ipam, uid, now).unwrap());
        ipam.retain(["b", "c", "d", "e"], now);
        assert_eq!(reserve(&ipam, "f", now), Err("NoFreeAddress"), "it rests");
        assert_eq!(reserve(&ipam, "b", now), Ok(all[1]));
        assert_eq!(reserve(&ipam, "f", now + REST), Ok(all[0]));
    }

    /// Row 51 of the failure matrix (docs/kubevirt.md).
    #[test]
    fn what_servers_have_is_taken_and_of_two_with_one_address_the_second_is_told() {
        let now = Instant::now();
        let ipam = Ipam::new("de-fra-1", vec![prefix("192.0.2.0/29", "192.0.2.1")], None);
        assert!(ipam.adopt("old", &known("192.0.2.2"), None) && ipam.adopt("old", &known("192.0.2.2"), None));
        assert!(!ipam.adopt("new", &known("192.0.2.2"), None));
        assert!(
            ipam.adopt("elsewhere", &known("10.0.0.1"), None)
                && ipam.adopt("none", &Addresses::default(), None)
        );
        let told = ipam.reserve("new", &known("192.0.2.2"), now);
        assert_eq!(
            told.addresses,
            known("192.0.2.2"),
            "a known address is never taken away"
        );
        assert_eq!(told.trouble.unwrap().reason, "AddressTaken");
        for i in 0..4 {
            assert_ne!(reserve(&ipam, &format!("uid-{i}"), now).unwrap().octets()[3], 2);
        }
        ipam.release("old", now);
        assert_eq!(ipam.reserve("new", &known("192.0.2.2"), now).trouble, None);
    }

    #[test]
    fn of_two_servers_with_one_address_the_one_that_was_made_first_keeps_it_and_the_newer_is_told() {
        let now = Instant::now();
        let ipam = Ipam::new("de-fra-1", vec![prefix("192.0.2.0/30", "192.0.2.1")], None);
        let made_at = |seconds| Some(Timestamp::from_second(seconds).unwrap());
        // Given away before anybody knew of the server that has it.
        assert_eq!(reserve(&ipam, "new", now), Ok("192.0.2.2".parse().unwrap()));
        assert!(ipam.adopt("old", &known("192.0.2.2"), made_at(100)));
        let told = ipam.reserve("new", &known("192.0.2.2"), now);
        assert_eq!(told.trouble.unwrap().reason, "AddressTaken");
        assert_eq!(
            reserve(&ipam, "new", now),
            Err("NoFreeAddress"),
            "it has it no longer"
        );
        // Both were made, and the list has the newer one first.
        assert!(!ipam.adopt("new", &known("192.0.2.2"), made_at(200)));
        ipam.forget();
        assert!(ipam.adopt("new", &known("192.0.2.2"), made_at(200)));
        assert!(ipam.adopt("old", &known("192.0.2.2"), made_at(100)));
        assert!(!ipam.adopt("new", &known("192.0.2.2"), made_at(200)));
        assert_eq!(ipam.reserve("old", &known("192.0.2.2"), now).trouble, None);
    }

    #[test]
    fn what_rests_goes_on_resting_when_the_rest_is_forgotten() {
        let now = Instant::now();
        let ipam = Ipam::new("de-fra-1", vec![prefix("192.0.2.7/32", "10.0.0.1")], None);
        reserve(&ipam, "a", now).unwrap();
        ipam.forget();
        let only = reserve(&ipam, "b", now).unwrap();
        ipam.release("b", now);
        ipam.forget();
        assert_eq!(reserve(&ipam, "c", now), Err("NoFreeAddress"));
        assert_eq!(reserve(&ipam, "c", now + REST), Ok(only));
    }

    #[test]
    fn the_same_server_gets_the_same_addresses_in_another_process() {
        let now = Instant::now();
        let region = || {
            let ipv6 = Ipv6Prefix {
                prefix: "2001:db8:10::/64".parse().unwrap(),
                gateway: "fe80::1".parse().unwrap(),
            };
            Ipam::new("de-fra-1", vec![prefix("10.0.0.0/8", "10.0.0.1")], Some(ipv6))
        };
        let (one, other) = (region(), region());
        let mut all = HashSet::new();
        for i in 0..100 {
            let uid = format!("uid-{i}");
            let given = one.reserve(&uid, &Addresses::default(), now);
            assert_eq!(given, other.reserve(&uid, &Addresses::default(), now));
            assert!(
                given
                    .addresses
                    .ipv6
                    .as_ref()
                    .unwrap()
                    .starts_with("2001:db8:10:0:")
            );
            all.insert(given.addresses.ipv6);
        }
        assert_eq!(all.len(), 100);
    }

    #[test]
    fn a_region_without_prefixes_gives_no_addresses_and_nobody_waits_for_one() {
        let ipam = Ipam::new("de-fra-1", Vec::new(), None);
        assert_eq!(
            ipam.reserve("a", &Addresses::default(), Instant::now()),
            Reservation::default()
        );
    }

    #[test]
    fn metrics_say_how_many_addresses_are_free() {
        let now = Instant::now();
        let metrics = Metrics::new();
        let ipam =
            Ipam::new("de-fra-1", vec![prefix("192.0.2.0/29", "192.0.2.1")], None).with_metrics(&metrics);
        let shows = |free: u32, used: u32| {
            let page = metrics.render(runtime::metrics::Format::OpenMetrics).unwrap();
            for line in [
                format!("stellage_addresses_free{{region=\"de-fra-1\",family=\"ipv4\"}} {free}"),
                format!("stellage_addresses_used{{region=\"de-fra-1\",family=\"ipv4\"}} {used}"),
            ] {
                assert!(page.contains(&line), "{line}: {page}");
            }
        };
        shows(5, 0);
        reserve(&ipam, "a", now).unwrap();
        shows(4, 1);
        ipam.release("a", now);
        shows(5, 0);
    }
}
