//! The address ranges of the cluster in which this program runs.

use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use parking_lot::RwLock;

/// Address ranges that are learned while the program runs. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct OwnRanges(Arc<RwLock<ByLength>>);

/// By prefix length, since there may be several for each of thousands of nodes.
type ByLength = BTreeMap<u8, HashSet<IpNet>>;

impl OwnRanges {
    /// Replaces all ranges. Those of the machine itself, such as loopback, are left out: built-in rules forbid them,
    /// and an administrator who allows them does so deliberately.
    pub fn replace(&self, ranges: impl IntoIterator<Item = IpNet>) {
        let mut by_length = ByLength::new();
        for range in ranges.into_iter().filter(|range| !is_of_machine(range.addr())) {
            by_length
                .entry(range.prefix_len())
                .or_default()
                .insert(range.trunc());
        }
        *self.0.write() = by_length;
    }

    /// The narrowest range that contains this address.
    pub(super) fn narrowest(&self, address: IpAddr) -> Option<IpNet> {
        let by_length = self.0.read();
        by_length.iter().rev().find_map(|(length, ranges)| {
            let range = IpNet::new(address, *length).ok()?.trunc();
            ranges.get(&range).copied()
        })
    }
}

fn is_of_machine(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    address.is_loopback() || address.is_unspecified() || is_link_local
}

impl PartialEq for OwnRanges {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || *self.0.read() == *other.0.read()
    }
}

impl Eq for OwnRanges {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_range_is_found_and_the_machines_own_are_left_out() {
        let ranges = OwnRanges::default();
        ranges.replace(
            [
                "10.96.0.0/12",
                "10.96.0.1/32",
                "203.0.113.77/24",
                "fd00:10::/64",
                "127.0.0.1/32",
                "fe80::1/128",
                "0.0.0.0/0",
            ]
            .map(|range| range.parse().unwrap()),
        );
        let narrowest = |address: &str| {
            let range = ranges.narrowest(address.parse().unwrap());
            range.map(|range| range.to_string())
        };
        assert_eq!(narrowest("10.96.0.1").as_deref(), Some("10.96.0.1/32"));
        assert_eq!(narrowest("10.97.0.1").as_deref(), Some("10.96.0.0/12"));
        assert_eq!(narrowest("203.0.113.1").as_deref(), Some("203.0.113.0/24"));
        assert_eq!(narrowest("fd00:10::5").as_deref(), Some("fd00:10::/64"));
        for address in ["127.0.0.1", "fe80::1", "8.8.8.8", "::ffff:8.8.8.8"] {
            assert_eq!(narrowest(address), None, "{address}");
        }
    }
}
