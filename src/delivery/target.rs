//! What a receiver's URL may be: pure rules, asked when a webhook is written down, and again before each attempt.
//!
//! Names are checked here by what they are called; where they lead is checked when they are looked up
//! ([`super::resolver`]), by the same [`TargetRules::check_address`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::Uri;
use ipnet::IpNet;
use thiserror::Error;
use url::{Host, Url};

use super::addresses;

/// Longest URL, in characters: what is sure to work everywhere.
pub const MAX_URL: usize = 2048;
/// Longest name and longest label of a name, in bytes (RFC 1035, section 2.3.4).
const MAX_HOST: usize = 253;
const MAX_LABEL: usize = 63;

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

/// Why a URL cannot be a receiver's. `Display` says what it must be instead.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum UrlError {
    /// Longer than [`MAX_URL`].
    #[error("must be at most {MAX_URL} characters long")]
    TooLong,
    /// Characters that parsers drop or read differently.
    #[error("must have no spaces, control characters or backslashes; percent-encode them")]
    Characters,
    /// Another scheme, or none.
    #[error("must begin with https://")]
    Scheme,
    /// A user name or password.
    #[error("must have no user name or password; a receiver knows a delivery by its signature")]
    UserInfo,
    /// A fragment.
    #[error("must have no fragment, the part from # on; it would never be sent")]
    Fragment,
    /// An IPv6 address with a zone.
    #[error("must have no zone identifier, the part from % on, in its address")]
    Zone,
    /// Port 0.
    #[error("must have a port from 1 to 65535, or none for 443")]
    Port,
    /// No URL, for the reason given.
    #[error("must be a URL such as https://hooks.example.com/stellage ({0})")]
    Malformed(String),
    /// No name that DNS could hold.
    #[error("must name a host in full, such as hooks.example.com: \"{0}\" is no such name")]
    Host(String),
    /// A forbidden address, written as such.
    #[error("must lead to a public address: {address} is {reason}; only an administrator can allow it")]
    Address {
        /// The address, in its usual form.
        address: IpAddr,
        /// Why not.
        reason: Forbidden,
    },
    /// A name of the machine, the cluster or the network that this runs in.
    #[error("must lead to a public host: {0} is an internal name; only an administrator can allow it")]
    InternalName(String),
    /// A name that the administrator denied.
    #[error("must lead to another host: the administrator has denied {0}")]
    DeniedName(String),
}

impl UrlError {
    /// A static label for metrics and logs.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Address { .. } => "forbidden_address",
            Self::InternalName(_) | Self::DeniedName(_) => "forbidden_name",
            _ => "invalid_url",
        }
    }
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
    fn check_name(&self, name: &str) -> Result<(), UrlError> {
        let longest = |suffixes: &[String]| {
            suffixes
                .iter()
                .filter_map(|suffix| depth_below(name, suffix))
                .max()
        };
        match narrower(longest(&self.allow_names), longest(&self.deny_names)) {
            Some(true) => return Ok(()),
            Some(false) => return Err(UrlError::DeniedName(name.to_owned())),
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
            return Err(UrlError::InternalName(name.to_owned()));
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

/// A URL that a receiver may have, in its normal form: host in lower case and punycode, addresses in their usual form, no dot
/// at the end of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverUrl {
    url: Url,
    uri: Uri,
}

impl ReceiverUrl {
    /// Reads a URL and checks it against the rules, all without looking a name up.
    pub fn parse(text: &str, rules: &TargetRules) -> Result<Self, UrlError> {
        if text.chars().count() > MAX_URL {
            return Err(UrlError::TooLong);
        }
        // Parsers drop or turn these; what is checked should be what was written.
        if text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '\\') {
            return Err(UrlError::Characters);
        }
        if !text
            .get(..8)
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"))
        {
            return Err(UrlError::Scheme);
        }
        let rest = &text[8..];
        let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
        // An empty one too, which the parser would drop.
        if authority.contains('@') {
            return Err(UrlError::UserInfo);
        }
        if authority.starts_with('[') && authority.contains('%') {
            return Err(UrlError::Zone);
        }
        if text.contains('#') {
            return Err(UrlError::Fragment);
        }
        if rest.starts_with('/') {
            return Err(UrlError::Malformed("empty host".to_owned()));
        }
        let mut url = Url::parse(text).map_err(|error| UrlError::Malformed(error.to_string()))?;
        if url.port() == Some(0) {
            return Err(UrlError::Port);
        }
        match url.host() {
            Some(Host::Ipv4(address)) => check_literal(rules, address.into())?,
            Some(Host::Ipv6(address)) => check_literal(rules, address.into())?,
            Some(Host::Domain(written)) => {
                let name = written.strip_suffix('.').unwrap_or(written).to_owned();
                check_form(&name)?;
                rules.check_name(&name)?;
                url.set_host(Some(&name))
                    .map_err(|error| UrlError::Malformed(error.to_string()))?;
            }
            None => return Err(UrlError::Malformed("empty host".to_owned())),
        }
        // The two parsers have to agree on who is called.
        let uri: Uri = url
            .as_str()
            .parse()
            .map_err(|error: http::uri::InvalidUri| UrlError::Malformed(error.to_string()))?;
        if uri.host() != url.host_str() || uri.port_u16() != url.port() {
            return Err(UrlError::Malformed("unclear host".to_owned()));
        }
        Ok(Self { url, uri })
    }

    /// The URL in its normal form.
    pub fn as_str(&self) -> &str {
        self.url.as_str()
    }

    /// The same, as the HTTP client takes it.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }
}

fn check_literal(rules: &TargetRules, address: IpAddr) -> Result<(), UrlError> {
    rules
        .check_address(address)
        .map_err(|reason| UrlError::Address { address, reason })
}

/// A name that DNS could hold. Underscores occur, though not in the names of hosts by the book.
fn check_form(name: &str) -> Result<(), UrlError> {
    let label = |label: &str| {
        (1..=MAX_LABEL).contains(&label.len())
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    if name.len() <= MAX_HOST && name.split('.').all(label) {
        Ok(())
    } else {
        Err(UrlError::Host(name.to_owned()))
    }
}

#[cfg(test)]
mod tests;
