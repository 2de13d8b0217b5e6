//! The addresses that are forbidden for receivers unless the administrator allows them (decisions, section 5: SSRF).
//!
//! IPv4: IANA's special-purpose registry (RFC 6890), multicast, reserved addresses, and Azure's metadata address.
//! IPv6: everything outside global unicast (2000::/3), and within it special-purpose ranges and those that embed an IPv4
//! address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

const fn v4(a: u8, b: u8, c: u8, d: u8, length: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length)
}

const fn v6(a: u16, b: u16, c: u16, length: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), length)
}

/// IPv4-mapped: the last four bytes are an IPv4 address (RFC 4291, section 2.5.5.2).
const MAPPED: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96);
/// NAT64: the last four bytes are an IPv4 address (RFC 6052, section 2.1).
const NAT64: Ipv6Net = v6(0x64, 0xff9b, 0, 96);
/// 6to4: the four bytes after the first two are an IPv4 address (RFC 3056, section 2).
const SIX_TO_FOUR: Ipv6Net = v6(0x2002, 0, 0, 16);
/// The addresses assigned for use on the Internet (RFC 4291, section 2.4).
const GLOBAL_UNICAST: Ipv6Net = v6(0x2000, 0, 0, 3);

/// Forbidden IPv4 ranges. The first that matches gives the reason.
const IPV4: &[(Ipv4Net, &str)] = &[
    (v4(0, 0, 0, 0, 8), "an address of \"this network\""),
    (v4(10, 0, 0, 0, 8), "a private address"),
    (v4(100, 64, 0, 0, 10), "a carrier-grade NAT address"),
    (v4(127, 0, 0, 0, 8), "a loopback address"),
    (
        v4(168, 63, 129, 16, 32),
        "the address of a cloud's metadata service",
    ),
    (
        v4(169, 254, 169, 254, 32),
        "the address of a cloud's metadata service",
    ),
    (v4(169, 254, 0, 0, 16), "a link-local address"),
    (v4(172, 16, 0, 0, 12), "a private address"),
    (v4(192, 0, 0, 0, 24), "a protocol assignment"),
    (v4(192, 0, 2, 0, 24), "an address for documentation"),
    (v4(192, 31, 196, 0, 24), "a protocol assignment"),
    (v4(192, 52, 193, 0, 24), "a protocol assignment"),
    (v4(192, 88, 99, 0, 24), "a 6to4 relay"),
    (v4(192, 168, 0, 0, 16), "a private address"),
    (v4(192, 175, 48, 0, 24), "a protocol assignment"),
    (v4(198, 18, 0, 0, 15), "an address for benchmarks"),
    (v4(198, 51, 100, 0, 24), "an address for documentation"),
    (v4(203, 0, 113, 0, 24), "an address for documentation"),
    (v4(224, 0, 0, 0, 4), "a multicast address"),
    (v4(240, 0, 0, 0, 4), "a reserved address"),
];

/// Forbidden IPv6 ranges. The first that matches gives the reason.
const IPV6: &[(Ipv6Net, &str)] = &[
    (
        Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 128),
        "the unspecified address",
    ),
    (
        Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128),
        "a loopback address",
    ),
    (MAPPED, "an IPv4 address in IPv6 form"),
    (v6(0, 0, 0, 96), "an IPv4-compatible address"),
    (NAT64, "a NAT64 address"),
    (v6(0x64, 0xff9b, 1, 48), "a NAT64 address"),
    (v6(0x100, 0, 0, 64), "a discard address"),
    (v6(0x5f00, 0, 0, 16), "a segment routing address"),
    (v6(0xfc00, 0, 0, 7), "a private address"),
    (v6(0xfe80, 0, 0, 10), "a link-local address"),
    (v6(0xfec0, 0, 0, 10), "a site-local address"),
    (v6(0xff00, 0, 0, 8), "a multicast address"),
    (v6(0x2001, 0, 0, 32), "a Teredo address"),
    (v6(0x2001, 2, 0, 48), "an address for benchmarks"),
    (v6(0x2001, 0, 0, 23), "a protocol assignment"),
    (v6(0x2001, 0xdb8, 0, 32), "an address for documentation"),
    (SIX_TO_FOUR, "a 6to4 address"),
    (v6(0x2620, 0x4f, 0x8000, 48), "a protocol assignment"),
    (v6(0x3fff, 0, 0, 20), "an address for documentation"),
];

/// What kind of forbidden address this is, such as "a loopback address"; `None` if it is public.
pub(super) fn special(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => IPV4
            .iter()
            .find(|(range, _)| range.contains(&address))
            .map(|(_, what)| *what),
        IpAddr::V6(address) => IPV6
            .iter()
            .find(|(range, _)| range.contains(&address))
            .map(|(_, what)| *what)
            .or_else(|| (!GLOBAL_UNICAST.contains(&address)).then_some("not a public address")),
    }
}

/// The IPv4 address in an IPv4-mapped one, which is what the kernel dials.
pub(super) fn mapped(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V6(address) => address.to_ipv4_mapped(),
        IpAddr::V4(_) => None,
    }
}

/// The IPv4 address that a gateway would dial for a NAT64 address with the well-known prefix, or for a 6to4 address.
pub(super) fn translated(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(address) = address else {
        return None;
    };
    let bytes = address.octets();
    let at = |i: usize| Ipv4Addr::new(bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]);
    if NAT64.contains(&address) {
        Some(at(12))
    } else if SIX_TO_FOUR.contains(&address) {
        Some(at(2))
    } else {
        None
    }
}
