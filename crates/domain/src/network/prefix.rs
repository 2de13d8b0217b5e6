//! The prefixes of private networks: which there may be, and which is free.

use ipnet::Ipv4Net;

use crate::catalogue::region::Ipv4Prefix;
use resources::{PrivateNetwork, ids};

/// Where prefixes are from (RFC 1918).
const PRIVATE: [&str; 3] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"];
/// What a server behind its platform's address translation has on its first interface.
const OF_SERVERS: &str = "10.0.2.0/24";
/// Where prefixes are chosen from. Neither home networks nor container engines are there.
const CHOSEN_FROM: &str = "10.128.0.0/10";
/// The length of a prefix that is chosen.
const CHOSEN_LENGTH: u8 = 24;
/// The lengths that a prefix may have: the largest network first.
const LENGTHS: std::ops::RangeInclusive<u8> = 16..=28;

fn net(text: &str) -> Ipv4Net {
    text.parse().unwrap_or_default()
}

fn overlap(one: Ipv4Net, other: Ipv4Net) -> bool {
    one.contains(&other) || other.contains(&one)
}

/// Reads a prefix, as the schema of `PrivateNetwork` allows it.
pub fn parse(text: &str) -> Result<Ipv4Net, &'static str> {
    let prefix = text.parse::<Ipv4Net>().ok().filter(|prefix| {
        *prefix == prefix.trunc()
            && prefix.to_string() == text
            && LENGTHS.contains(&prefix.prefix_len())
            && PRIVATE.iter().any(|range| net(range).contains(prefix))
    });
    let prefix = prefix.ok_or(
        "must be an IPv4 prefix from 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16, from /16 to /28, that begins at its first address, such as 10.128.4.0/24",
    )?;
    if overlap(prefix, net(OF_SERVERS)) {
        return Err("must not overlap 10.0.2.0/24, which servers may use for themselves");
    }
    Ok(prefix)
}

/// Whether the prefix of a network overlaps this one.
pub fn overlaps(prefix: Ipv4Net, network: &PrivateNetwork) -> bool {
    of(network).is_some_and(|taken| overlap(prefix, taken))
}

/// One of these networks whose prefix overlaps this one.
pub(super) fn overlapping<'a>(
    prefix: Ipv4Net,
    others: impl IntoIterator<Item = &'a PrivateNetwork>,
) -> Option<&'a PrivateNetwork> {
    others.into_iter().find(|other| overlaps(prefix, other))
}

fn of(network: &PrivateNetwork) -> Option<Ipv4Net> {
    network.prefix().and_then(|text| text.parse().ok())
}

/// A free prefix for the network with this name, beside the `others` of its account. Of an object with the same name among the same others, it is always the
/// same.
pub fn choose<'a>(name: &str, others: impl IntoIterator<Item = &'a PrivateNetwork>) -> Option<Ipv4Net> {
    let taken: Vec<_> = others.into_iter().filter_map(of).collect();
    let all = net(CHOSEN_FROM);
    let count = 1_u32 << (CHOSEN_LENGTH - all.prefix_len());
    let seed = ids::derived_suffix(name.as_bytes());
    let start = seed.bytes().fold(0_u32, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u32::from(byte))
    });
    let mut candidates = (0..count).filter_map(|step| {
        let index = start.wrapping_add(step) % count;
        let first = u32::from(all.network()) + (index << (32 - CHOSEN_LENGTH));
        Ipv4Net::new(first.into(), CHOSEN_LENGTH).ok()
    });
    candidates.find(|candidate| !taken.iter().any(|taken| overlap(*candidate, *taken)))
}

/// The addresses that servers may have in a network: all but the first, which is that of a gateway.
pub fn addresses(prefix: Ipv4Net) -> Ipv4Prefix {
    let gateway = u32::from(prefix.network()).saturating_add(1).into();
    Ipv4Prefix {
        prefix,
        gateway,
        exclude: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn network(prefix: &str) -> PrivateNetwork {
        serde_json::from_value(json!({
            "metadata": { "name": "pn-other", "namespace": "demo" },
            "spec": { "region": "fr-par-1", "prefix": prefix },
        }))
        .unwrap()
    }

    #[test]
    fn a_prefix_is_private_of_a_useful_size_and_begins_at_its_first_address() {
        for text in ["10.128.4.0/24", "172.31.0.0/16", "192.168.7.16/28", "10.0.3.0/24"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        for text in [
            "",
            "10.128.4.0",
            "10.128.4.1/24",
            "10.0.0.0/8",
            "10.128.4.0/29",
            "172.32.0.0/16",
            "192.0.2.0/24",
            "203.0.113.0/24",
            "fd00::/64",
            "010.1.0.0/16",
            "10.128.4.0/024",
        ] {
            assert!(
                parse(text).unwrap_err().starts_with("must be an IPv4 prefix"),
                "{text}"
            );
        }
        for text in ["10.0.0.0/16", "10.0.2.0/24", "10.0.2.128/28"] {
            assert!(parse(text).unwrap_err().starts_with("must not overlap"), "{text}");
        }
    }

    #[test]
    fn a_chosen_prefix_is_allowed_stays_the_same_and_overlaps_no_other_of_the_account() {
        let mut others: Vec<PrivateNetwork> = Vec::new();
        for i in 0..40 {
            let name = format!("pn-{i}");
            let chosen = choose(&name, &others).unwrap();
            assert_eq!(parse(&chosen.to_string()), Ok(chosen));
            assert_eq!(choose(&name, &others), Some(chosen));
            assert!(overlapping(chosen, &others).is_none());
            others.push(network(&chosen.to_string()));
            let next = choose(&name, &others).unwrap();
            assert_ne!(next, chosen);
        }
    }

    #[test]
    fn without_a_free_prefix_none_is_chosen() {
        let all: Vec<_> = (128..192).map(|i| network(&format!("10.{i}.0.0/16"))).collect();
        assert_eq!(choose("pn-a", &all), None);
        assert_eq!(
            choose("pn-a", &all[1..]).map(|it| it.network().octets()[1]),
            Some(128)
        );
    }

    #[test]
    fn servers_get_all_addresses_but_those_of_network_gateway_and_broadcast() {
        let all = addresses("10.128.4.0/28".parse().unwrap());
        assert_eq!(all.size(), 13);
        let serves = |last: u8| all.serves([10, 128, 4, last].into());
        assert!(!serves(0) && !serves(1) && serves(2) && serves(14) && !serves(15));
    }
}
