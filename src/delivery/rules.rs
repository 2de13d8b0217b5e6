//! Which addresses and names receivers may have: the built-in rules, and what the administrator changes of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use thiserror::Error;

use super::addresses;

/// Names that lead into the network or the cluster that this runs in, with all below them (RFC 6762, RFC 8375, ICANN's
/// reservation of `internal`, and Kubernetes' own). The cluster's domain comes on top.
const INTERNAL_NAMES: &[&str] = &[
    "local",
    "internal",
    "localdomain",
    "home.arpa",
    "svc",
    "kubernetes.default",
];

/// Which addresses and names receivers may have, beyond the built-in rules. All of it is the administrator's.
///
/// Where an allowed and a denied range (or name) both match, the narrower one holds, and of equals the denial. So "private
/// addresses, but not these" can be said, and "nothing but these".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetRules {
    /// Ranges that receivers may be in though the built-in rules forbid it.
    pub allow: Vec<IpNet>,
    /// Ranges that receivers may not be in.
    pub deny: Vec<IpNet>,
    /// Names that receivers may have, with all below them, though they are internal ones. Their addresses need to be allowed too.
    pub allow_names: Vec<String>,
    /// Names that receivers may not have, with all below them.
    pub deny_names: Vec<String>,
    /// The DNS domain of the cluster, whose names no receiver may have.
    pub cluster_domain: String,
}

impl Default for TargetRules {
    /// The built-in rules alone, in a cluster with the domain `cluster.local`.
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            deny: Vec::new(),
            allow_names: Vec::new(),
            deny_names: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
        }
    }
}

/// An address that a receiver may not have.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Forbidden {
    /// By the built-in rules.
    #[error("{0}")]
    BuiltIn(&'static str),
    /// By a range that the administrator denied.
    #[error("an address that the administrator has denied")]
    Denied,
}

/// Why a receiver may not have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForbiddenName {
    /// It is one of the machine, the cluster or the network that this runs in.
    Internal,
    /// The administrator has denied it.
    Denied,
}

impl TargetRules {
    /// Whether a receiver may have this address. An IPv4-mapped one is forbidden, unless the administrator allows it or the
    /// IPv4 address in it; a NAT64 or 6to4 one needs to be allowed itself, and to hold an IPv4 address that is not forbidden.
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

    /// Whether a name is one of this machine: `localhost` and all below it (RFC 6761, section 6.3).
    pub fn is_localhost(name: &str) -> bool {
        depth_below(name, "localhost").is_some()
    }

    /// What `localhost` stands for, as far as it is allowed.
    pub fn loopback(&self) -> impl Iterator<Item = IpAddr> + '_ {
        [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
            .into_iter()
            .filter(|address| self.check_address(*address).is_ok())
    }

    /// What the administrator's ranges say: allowed, denied, or nothing.
    fn administrator_on(&self, address: IpAddr) -> Option<bool> {
        let inner = addresses::mapped(address).map(IpAddr::from);
        // IPv4 lengths are counted from where they begin in a mapped address, to compare with IPv6 ones.
        let narrowest = |ranges: &[IpNet]| {
            ranges
                .iter()
                .filter(|range| range.contains(&address) || inner.is_some_and(|inner| range.contains(&inner)))
                .map(|range| range.prefix_len() + if range.addr().is_ipv4() { 96 } else { 0 })
                .max()
        };
        narrower(narrowest(&self.allow), narrowest(&self.deny))
    }

    /// Whether a receiver may have this name: lower case, without the dot at its end.
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

/// Whether the narrower of two matches is the one that allows.
fn narrower<T: Ord>(allowed: Option<T>, denied: Option<T>) -> Option<bool> {
    match (&allowed, &denied) {
        (None, None) => None,
        _ => Some(allowed > denied),
    }
}

/// The length of `suffix` if `name` is it or below it. Dots at its ends and a `*.` in front mean nothing.
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
    use crate::delivery::{ReceiverUrl, UrlError};

    fn parse(url: &str, rules: &TargetRules) -> Result<String, UrlError> {
        ReceiverUrl::parse(url, rules).map(|url| url.as_str().to_owned())
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
        // A gateway's address is as good as the one behind it.
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
