//! Which addresses and names receivers may have: built-in rules, and changes made by the administrator.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use thiserror::Error;

use super::{OwnRanges, addresses, ports};

/// Suffixes of names in the local network or cluster (RFC 6762, RFC 8375, ICANN's reservation of `internal`, and those of
/// Kubernetes). The cluster's domain is checked in addition.
const INTERNAL_NAMES: &[&str] = &[
    "local",
    "internal",
    "localdomain",
    "home.arpa",
    "svc",
    "kubernetes.default",
];

/// The administrator's changes to the built-in rules.
///
/// If an allowed and a denied range (or name) both match, the narrower one applies; if they are equal, the denial
/// applies. So both "private addresses except these" and "only these" can be expressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetRules {
    /// Address ranges to allow even though the built-in rules forbid them.
    pub allow: Vec<IpNet>,
    /// Address ranges to deny.
    pub deny: Vec<IpNet>,
    /// Internal names to allow, including their subdomains. Their addresses must be allowed too.
    pub allow_names: Vec<String>,
    /// Names to deny, including their subdomains.
    pub deny_names: Vec<String>,
    /// The DNS domain of the cluster, whose names are internal.
    pub cluster_domain: String,
    /// Address ranges of the cluster itself. They count as denied.
    pub own: OwnRanges,
    /// Ports to allow even though they belong to protocols other than HTTP.
    pub allow_ports: Vec<u16>,
}

impl Default for TargetRules {
    /// Only the built-in rules, for a cluster with the domain `cluster.local`.
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            deny: Vec::new(),
            allow_names: Vec::new(),
            deny_names: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            own: OwnRanges::default(),
            allow_ports: Vec::new(),
        }
    }
}

/// Why an address is forbidden.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Forbidden {
    /// The built-in rules forbid it.
    #[error("{0}")]
    BuiltIn(&'static str),
    /// It is in a range that the administrator has denied, or belongs to the cluster. Tenants need not know which.
    #[error("an address that the administrator has denied")]
    Denied,
}

/// Why a name is forbidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForbiddenName {
    /// It belongs to the local machine, cluster or network.
    Internal,
    /// The administrator has denied it.
    Denied,
}

impl TargetRules {
    /// Checks whether an address is allowed. An IPv4-mapped address is allowed only if the administrator allows it or the
    /// IPv4 address in it. A NAT64 or 6to4 address is allowed only if the administrator allows it and the IPv4 address in it
    /// is not forbidden.
    pub fn check_address(&self, address: IpAddr) -> Result<(), Forbidden> {
        match self.administrator_on(address) {
            Some(false) => Err(Forbidden::Denied),
            Some(true) => match addresses::translated(address) {
                Some(inner) => self.check_address(inner.into()),
                None => Ok(()),
            },
            None => addresses::special(address).map_or(Ok(()), |what| Err(Forbidden::BuiltIn(what))),
        }
    }

    /// Whether a name is `localhost` or a subdomain of it (RFC 6761, section 6.3).
    pub fn is_localhost(name: &str) -> bool {
        depth_below(name, "localhost").is_some()
    }

    /// The allowed addresses of `localhost`.
    pub fn loopback(&self) -> impl Iterator<Item = IpAddr> + '_ {
        [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
            .into_iter()
            .filter(|address| self.check_address(*address).is_ok())
    }

    /// Whether the administrator's ranges allow the address; `None` if none of them matches.
    fn administrator_on(&self, address: IpAddr) -> Option<bool> {
        let inner = addresses::mapped(address).map(IpAddr::from);
        // The prefix lengths of IPv4 ranges are converted to those of mapped addresses, to compare them with IPv6 ones.
        let width = |range: &IpNet| range.prefix_len() + if range.addr().is_ipv4() { 96 } else { 0 };
        let narrowest = |ranges: &[IpNet]| {
            ranges
                .iter()
                .filter(|range| range.contains(&address) || inner.is_some_and(|inner| range.contains(&inner)))
                .map(width)
                .max()
        };
        let own = self.own.narrowest(inner.unwrap_or(address));
        let denied = narrowest(&self.deny).max(own.as_ref().map(width));
        narrower(narrowest(&self.allow), denied)
    }

    /// Whether receivers may use this port.
    pub(super) fn allows_port(&self, port: u16) -> bool {
        !ports::is_of_another_protocol(port) || self.allow_ports.contains(&port)
    }

    /// Checks whether a name is allowed. `name` must be in lower case and without a final dot.
    pub(super) fn check_name(&self, name: &str) -> Result<(), ForbiddenName> {
        let longest = |suffixes: &[String]| {
            suffixes
                .iter()
                .filter_map(|suffix| depth_below(name, suffix))
                .max()
        };
        match narrower(longest(&self.allow_names), longest(&self.deny_names)) {
            Some(true) => return Ok(()),
            Some(false) => return Err(ForbiddenName::Denied),
            None => {}
        }
        let internal = if Self::is_localhost(name) {
            self.loopback().next().is_none()
        } else {
            !name.contains('.')
                || depth_below(name, &self.cluster_domain).is_some()
                || INTERNAL_NAMES
                    .iter()
                    .any(|suffix| depth_below(name, suffix).is_some())
        };
        if internal {
            return Err(ForbiddenName::Internal);
        }
        Ok(())
    }
}

/// Whether the narrower of two matches is the allowing one; `None` if there is no match.
fn narrower<T: Ord>(allowed: Option<T>, denied: Option<T>) -> Option<bool> {
    match (&allowed, &denied) {
        (None, None) => None,
        _ => Some(allowed > denied),
    }
}

/// The length of `suffix` if `name` equals it or is a subdomain of it. Ignores a leading `*.` and dots at both ends of
/// `suffix`.
fn depth_below(name: &str, suffix: &str) -> Option<usize> {
    let suffix = suffix.trim_start_matches('*').trim_matches('.');
    let start = name.len().checked_sub(suffix.len())?;
    let ends = !suffix.is_empty() && name.get(start..)?.eq_ignore_ascii_case(suffix);
    (ends && (start == 0 || name.as_bytes()[start - 1] == b'.')).then_some(suffix.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{ReceiverUrl, UrlError};

    fn parse(url: &str, rules: &TargetRules) -> Result<String, UrlError> {
        ReceiverUrl::parse(url, rules).map(|url| url.uri().to_string())
    }

    fn allowing(ranges: &[&str]) -> TargetRules {
        TargetRules {
            allow: ranges.iter().map(|range| range.parse().unwrap()).collect(),
            ..TargetRules::default()
        }
    }

    #[test]
    fn of_the_administrators_ranges_the_narrower_holds_and_of_equals_the_denial() {
        let rules = TargetRules {
            allow: ["10.0.0.0/8", "203.0.113.0/24", "64:ff9b::/96", "::ffff:0:0/96"]
                .map(|range| range.parse().unwrap())
                .into(),
            deny: ["10.96.0.0/12", "0.0.0.0/0", "203.0.113.0/24"]
                .map(|range| range.parse().unwrap())
                .into(),
            ..TargetRules::default()
        };
        let check = |address: &str| rules.check_address(address.parse().unwrap());
        assert_eq!(check("10.1.2.3"), Ok(()));
        assert_eq!(check("10.96.0.1"), Err(Forbidden::Denied));
        assert_eq!(check("::ffff:10.96.0.1"), Err(Forbidden::Denied));
        assert_eq!(check("8.8.8.8"), Err(Forbidden::Denied));
        assert_eq!(check("203.0.113.7"), Err(Forbidden::Denied));
        // A NAT64 or 6to4 address counts as the IPv4 address in it.
        assert_eq!(check("64:ff9b::10.1.2.3"), Ok(()));
        assert_eq!(check("64:ff9b::10.96.0.1"), Err(Forbidden::Denied));
        let gateway = allowing(&["64:ff9b::/96", "2002::/16"]);
        let check = |address: &str| gateway.check_address(address.parse().unwrap()).is_ok();
        assert!(check("64:ff9b::8.8.8.8") && check("2002:808:808::1"));
        assert!(
            !check("64:ff9b::127.0.0.1") && !check("64:ff9b::169.254.169.254") && !check("2002:a00:1::1")
        );
    }

    #[test]
    fn the_clusters_own_addresses_are_denied_even_in_an_allowed_range() {
        let rules = allowing(&["10.0.0.0/8", "127.0.0.0/8", "10.96.7.0/24"]);
        let ranges = ["10.96.0.0/12", "198.51.7.9/32", "127.0.0.1/32", "2a00:1::/48"];
        // Clones share what is learned later.
        let clone = rules.clone();
        rules.own.replace(ranges.map(|range| range.parse().unwrap()));
        let check = |address: &str| clone.check_address(address.parse().unwrap());
        for denied in ["10.96.0.1", "::ffff:10.97.0.1", "198.51.7.9", "2a00:1::5"] {
            assert_eq!(check(denied), Err(Forbidden::Denied), "{denied}");
        }
        for allowed in ["10.1.2.3", "10.96.7.1", "127.0.0.1", "198.51.7.8", "2a00:2::5"] {
            assert_eq!(check(allowed), Ok(()), "{allowed}");
        }
    }

    #[test]
    fn a_port_of_another_protocol_is_refused_unless_it_is_allowed() {
        let rules = TargetRules {
            allow_ports: vec![6379],
            ..TargetRules::default()
        };
        for port in [22, 25, 5432, 10250] {
            let error = parse(&format!("https://example.com:{port}/"), &rules).unwrap_err();
            let message = error.to_string();
            assert!(
                error.label() == "forbidden_port" && message.contains(&port.to_string()),
                "{message}"
            );
        }
        for port in [443, 6379, 8443] {
            assert!(
                parse(&format!("https://example.com:{port}/"), &rules).is_ok(),
                "{port}"
            );
        }
    }

    #[test]
    fn the_administrator_can_allow_an_internal_name_and_deny_any() {
        let rules = TargetRules {
            allow_names: vec!["hooks.svc.cluster.local".to_owned()],
            deny_names: vec![
                "*.corp.example.com".to_owned(),
                "secret.hooks.svc.cluster.local".to_owned(),
            ],
            ..TargetRules::default()
        };
        for host in [
            "hooks.svc.cluster.local",
            "a.hooks.svc.cluster.local",
            "example.com",
            "xcorp.example.com",
        ] {
            assert!(parse(&format!("https://{host}/"), &rules).is_ok(), "{host}");
        }
        for host in [
            "corp.example.com",
            "A.Corp.Example.com.",
            "secret.hooks.svc.cluster.local",
        ] {
            let error = parse(&format!("https://{host}/"), &rules).unwrap_err();
            assert!(matches!(error, UrlError::DeniedName(_)), "{host}: {error}");
        }
        let error = parse("https://xhooks.svc.cluster.local/", &rules).unwrap_err();
        assert!(matches!(error, UrlError::InternalName(_)), "{error}");
    }

    proptest! {
        #[test]
        fn what_the_standard_library_knows_as_special_is_refused(bits: u32) {
            let address = Ipv4Addr::from(bits);
            let special = address.is_private() || address.is_loopback() || address.is_link_local()
                || address.is_broadcast() || address.is_documentation() || address.is_multicast()
                || address.is_unspecified();
            let rules = TargetRules::default();
            prop_assert!(!special || rules.check_address(address.into()).is_err());
            prop_assert!(rules.check_address(address.to_ipv6_mapped().into()).is_err());
        }
    }
}
