//! Checks the URL of a receiver, when a webhook is written and again before each attempt. No I/O.
//!
//! This module checks only the text of a name. The name's addresses are checked when it is resolved ([`super::resolver`]), with
//! the same [`TargetRules::check_address`].

use std::net::IpAddr;

use http::{Uri, uri::InvalidUri};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use thiserror::Error;
use url::{Host, Position, Url};

use super::{Forbidden, TargetRules, rules::ForbiddenName};

/// Maximum length of a URL, in characters; this length works everywhere.
pub const MAX_URL: usize = 2048;
/// Longest name and longest label of a name, in bytes (RFC 1035, section 2.3.4).
const MAX_HOST: usize = 253;
const MAX_LABEL: usize = 63;
/// What path and query of no URI have (RFC 3986, section 3.3), beside what is not ASCII, and what no server has to take. The
/// others of this kind, such as `{` and `|`, are what signed URLs and templates are written with.
const IN_NO_URI: &AsciiSet = &CONTROLS.add(b'"').add(b'<').add(b'>').add(b'`');

/// Why a URL is refused. `Display` says what it must be instead.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum UrlError {
    /// Longer than [`MAX_URL`].
    #[error("must be at most {MAX_URL} characters long")]
    TooLong,
    /// Characters that parsers drop or interpret differently.
    #[error("must have no spaces, control characters or backslashes; percent-encode them")]
    Characters,
    /// Another scheme, or none.
    #[error("must begin with https://")]
    Scheme,
    /// A user name or password.
    #[error("must have no user name or password; receivers authenticate deliveries by their signature")]
    UserInfo,
    #[error("must have no fragment, the part from # on; it would never be sent")]
    Fragment,
    /// An IPv6 address with a zone.
    #[error("must have no zone identifier, the part from % on, in its address")]
    Zone,
    #[error("must have a port from 1 to 65535, or none for 443")]
    Port,
    /// A port of another protocol than HTTP.
    #[error(
        "must have another port: {0} belongs to another protocol than HTTP; only an administrator can allow it"
    )]
    ForbiddenPort(u16),
    /// Not a URL, for this reason.
    #[error("must be a URL such as https://hooks.example.com/stellage ({0})")]
    Malformed(String),
    /// Not a valid DNS name.
    #[error("must have a fully qualified host name such as hooks.example.com; \"{0}\" is not one")]
    Host(String),
    /// A forbidden address.
    #[error("must point to a public address: {address} is {reason}; only an administrator can allow it")]
    Address {
        /// The address, in its usual form.
        address: IpAddr,
        /// Why it is forbidden.
        reason: Forbidden,
    },
    /// A name of the local machine, cluster or network.
    #[error("must point to a public host: {0} is an internal name; only an administrator can allow it")]
    InternalName(String),
    /// A name that the administrator has denied.
    #[error("must point to another host: the administrator has denied {0}")]
    DeniedName(String),
}

impl UrlError {
    /// A static label for metrics and logs.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Address { .. } => "forbidden_address",
            Self::InternalName(_) | Self::DeniedName(_) => "forbidden_name",
            Self::ForbiddenPort(_) => "forbidden_port",
            _ => "invalid_url",
        }
    }
}

/// An allowed URL of a receiver. Its host is normalised: in lower case and punycode, addresses in their usual form, no final dot
/// in a name. Path and query stay as they were written, since the URL may be signed; only what can be in no URI is
/// percent-encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverUrl(Uri);

impl ReceiverUrl {
    /// Parses a URL and checks it against the rules, without looking up its name.
    pub fn parse(text: &str, rules: &TargetRules) -> Result<Self, UrlError> {
        if text.chars().count() > MAX_URL {
            return Err(UrlError::TooLong);
        }
        // Parsers drop or convert these characters, so the URL would not be the one that was written.
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
        // This also refuses an empty user name, which the parser would drop.
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
        if let Some(port) = url.port()
            && !rules.allows_port(port)
        {
            return Err(UrlError::ForbiddenPort(port));
        }
        match url.host() {
            Some(Host::Ipv4(address)) => check_literal(rules, address.into())?,
            Some(Host::Ipv6(address)) => check_literal(rules, address.into())?,
            Some(Host::Domain(written)) => {
                let name = written.strip_suffix('.').unwrap_or(written).to_owned();
                check_form(&name)?;
                rules.check_name(&name).map_err(|why| match why {
                    ForbiddenName::Internal => UrlError::InternalName(name.clone()),
                    ForbiddenName::Denied => UrlError::DeniedName(name.clone()),
                })?;
                url.set_host(Some(&name))
                    .map_err(|error| UrlError::Malformed(error.to_string()))?;
            }
            None => return Err(UrlError::Malformed("empty host".to_owned())),
        }
        let host = &url[Position::BeforeHost..Position::AfterPort];
        let path = &rest[authority.len()..];
        let slash = if path.starts_with('/') { "" } else { "/" };
        let path = utf8_percent_encode(path, IN_NO_URI);
        let uri: Uri = format!("https://{host}{slash}{path}")
            .parse()
            .map_err(|error: InvalidUri| UrlError::Malformed(error.to_string()))?;
        // The two parsers must agree on the host.
        if uri.host() != url.host_str() || uri.port_u16() != url.port() {
            return Err(UrlError::Malformed("unclear host".to_owned()));
        }
        Ok(Self(uri))
    }

    /// The URL, for the HTTP client.
    pub fn uri(&self) -> &Uri {
        &self.0
    }
}

impl From<ReceiverUrl> for Uri {
    fn from(url: ReceiverUrl) -> Self {
        url.0
    }
}

fn check_literal(rules: &TargetRules, address: IpAddr) -> Result<(), UrlError> {
    rules
        .check_address(address)
        .map_err(|reason| UrlError::Address { address, reason })
}

/// Checks the form of a DNS name. Underscores are allowed because they occur, although RFC 952 forbids them in host names.
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(url: &str, rules: &TargetRules) -> Result<String, UrlError> {
        ReceiverUrl::parse(url, rules).map(|url| url.uri().to_string())
    }

    fn allowing(ranges: &[&str]) -> TargetRules {
        TargetRules {
            allow: ranges.iter().map(|range| range.parse().unwrap()).collect(),
            ..TargetRules::default()
        }
    }

    /// All of them stand for 127.0.0.1.
    const LOOPBACK: &str = "127.0.0.1 127.0.0.1. 127.1 127.0.1 2130706433 0x7f000001 0X7F.1 0177.0.0.1 \
                             017700000001 0x7f.0.0x0.01 %31%32%37.0.0.1 127。0。0。1 ①②⑦.0.0.1 \
                             [::ffff:127.0.0.1] [::ffff:7f00:1] [0:0:0:0:0:ffff:7f00:0001]";

    #[test]
    fn a_loopback_address_is_refused_and_allowed_in_every_spelling() {
        let rules = allowing(&["127.0.0.0/8", "::1/128"]);
        for host in LOOPBACK.split_whitespace() {
            let url = format!("https://{host}:8443/hook");
            let error = parse(&url, &TargetRules::default()).unwrap_err();
            assert_eq!(error.label(), "forbidden_address", "{host}");
            assert!(parse(&url, &rules).is_ok(), "{host}");
        }
        for host in ["[::1]", "[0:0:0:0:0:0:0:1]", "[::0001]"] {
            let url = format!("https://{host}/");
            assert_eq!(
                parse(&url, &TargetRules::default()).unwrap_err().label(),
                "forbidden_address"
            );
            assert!(parse(&url, &rules).is_ok(), "{host}");
        }
        for host in [
            "localhost",
            "LOCALHOST",
            "localhost.",
            "a.localhost",
            "a.localhost.",
            "ⓛocalhost",
        ] {
            let url = format!("https://{host}/");
            assert_eq!(
                parse(&url, &TargetRules::default()).unwrap_err().label(),
                "forbidden_name",
                "{host}"
            );
            assert!(parse(&url, &rules).is_ok(), "{host}");
        }
        assert_eq!(
            parse("https://localhost.:1/", &rules).unwrap(),
            "https://localhost:1/"
        );
    }

    #[test]
    fn addresses_that_are_not_public_are_refused() {
        let hosts = "0.0.0.0 0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 100.100.100.200 \
                     127.255.255.255 168.63.129.16 169.254.0.1 169.254.169.254 172.16.0.1 172.31.255.255 \
                     192.0.0.8 192.0.0.192 192.0.2.1 192.31.196.1 192.52.193.1 192.88.99.1 192.168.0.1 \
                     192.175.48.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 \
                     239.255.255.255 240.0.0.1 255.255.255.255 [::] [::2] [::127.0.0.1] [::8.8.8.8] \
                     [::ffff:8.8.8.8] [::ffff:10.0.0.1] [::ffff:0:127.0.0.1] [64:ff9b::127.0.0.1] \
                     [64:ff9b::8.8.8.8] [64:ff9b:1::1] [64:ff9b:1:ffff::a00:1] [100::1] [100:0:0:1::1] \
                     [2001::1] [2001:0:4136:e378:8000:63bf:3fff:fdd2] [2001:2::1] [2001:10::1] [2001:20::1] \
                     [2001:1ff:ffff::1] [2001:db8::1] [2002:7f00:1::] [2002:a00:1::1] [2002:808:808::1] \
                     [2620:4f:8000::1] [3fff::1] [3fff:fff::1] [4000::1] [5f00::1] [fc00::1] [fd00:ec2::254] \
                     [fd12:3456:789a::1] [fe80::1] [febf::1] [fec0::1] [feff::1] [ff02::1] [ff0e::1]";
        for host in hosts.split_whitespace() {
            let error = parse(&format!("https://{host}/"), &TargetRules::default()).unwrap_err();
            assert_eq!(error.label(), "forbidden_address", "{host}: {error}");
            assert!(
                error.to_string().starts_with("must point to a public address: "),
                "{error}"
            );
        }
    }

    #[test]
    fn public_addresses_and_names_are_taken() {
        let hosts = "1.0.0.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 \
                     128.0.0.1 168.63.129.17 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 192.0.1.0 \
                     192.0.3.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 198.51.101.0 \
                     203.0.112.255 203.0.114.0 223.255.255.255 [2001:200::1] [2001:4860:4860::8888] \
                     [2003::1] [2606:4700::1111] [2a00:1450:4001::1] [3ffe::1] hooks.example.com \
                     HOOKS.Example.COM. a_b.example.com müller.example xn--mller-kva.example \
                     local.example.com svc.example.com my-localhost.example internal-hooks.example.com \
                     1.2.3.4.example default.example.com";
        for host in hosts.split_whitespace() {
            let parsed = parse(&format!("https://{host}/a?b=c"), &TargetRules::default());
            assert!(parsed.is_ok(), "{host}: {parsed:?}");
        }
        assert_eq!(
            parse(
                "HTTPS://HOOKS.Example.com.:443/A/../b?C=%7e d"
                    .replace(' ', "")
                    .as_str(),
                &TargetRules::default()
            ),
            Ok("https://hooks.example.com/A/../b?C=%7ed".to_owned())
        );
    }

    #[test]
    fn path_and_query_are_sent_as_they_were_written() {
        let parsed = |rest: &str| {
            let url = parse(
                &format!("https://Hooks.Example.com{rest}"),
                &TargetRules::default(),
            )
            .unwrap();
            url.strip_prefix("https://hooks.example.com").unwrap().to_owned()
        };
        for rest in [
            "/",
            "/?",
            "/a'b/c?d='e'&f=g",
            "/%27?%27",
            "/a//b/./c/../d/%2e%2E/",
            "/;v=1,2/(x)*!$&+=:@~-._",
            "/%7e%7E%zz%",
            "/{id}/a|b^c?q={\"x\"}|^".replace('"', "%22").as_str(),
            "/hook?sig=a+b/c==&se=2026-11-21T10:00:00Z&x[]=1&y=?&z=/",
            "/?a=%20&b=%C3%A9",
        ] {
            assert_eq!(parsed(rest), rest);
        }
        for (rest, sent) in [
            ("", "/"),
            ("?a=b", "/?a=b"),
            (":443/a", "/a"),
            ("/é?ü=√", "/%C3%A9?%C3%BC=%E2%88%9A"),
            ("/\"<`>?\"<`>", "/%22%3C%60%3E?%22%3C%60%3E"),
        ] {
            assert_eq!(parsed(rest), sent, "{rest}");
        }
    }

    #[test]
    fn names_of_the_cluster_and_of_the_network_are_refused() {
        let rules = TargetRules {
            cluster_domain: "K8s.Example.net.".to_owned(),
            // Allowing a range allows no name.
            allow: vec!["10.0.0.0/8".parse().unwrap()],
            ..TargetRules::default()
        };
        for host in [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.",
            "kubernetes.default.svc",
            "x.y.svc.",
            "kubernetes.default.svc.cluster.local",
            "KUBERNETES.DEFAULT.SVC.CLUSTER.LOCAL.",
            "cluster.local",
            "x.svc.k8s.example.net",
            "k8s.example.net",
            "db.local",
            "printer.local.",
            "metadata.google.internal",
            "instance-data.ec2.internal",
            "internal",
            "intranet",
            "router.home.arpa",
            "localhost.localdomain",
            "localhost",
            "x.localhost",
        ] {
            let error = parse(&format!("https://{host}/"), &rules).unwrap_err();
            assert_eq!(error.label(), "forbidden_name", "{host}: {error}");
        }
    }

    #[test]
    fn what_is_no_plain_https_url_is_refused_with_what_it_must_be() {
        let long = format!("https://example.com/{}", "x".repeat(2029));
        for (url, message) in [
            ("", "must begin with https://"),
            ("example.com", "must begin with https://"),
            ("http://example.com/", "must begin with https://"),
            ("ftp://example.com/", "must begin with https://"),
            ("https:example.com", "must begin with https://"),
            ("https:/example.com", "must begin with https://"),
            ("javascript:alert(1)", "must begin with https://"),
            (long.as_str(), "must be at most 2048 characters"),
            ("https://user@example.com/", "must have no user name"),
            ("https://user:pass@example.com/", "must have no user name"),
            ("https://@example.com/", "must have no user name"),
            ("https://:@example.com/", "must have no user name"),
            ("https://good.example@127.0.0.1/", "must have no user name"),
            ("https://example.com/#part", "must have no fragment"),
            ("https://example.com/#", "must have no fragment"),
            ("https://example.com#@127.0.0.1/", "must have no fragment"),
            ("https://[fe80::1%25eth0]/", "must have no zone"),
            ("https://[fe80::1%eth0]/", "must have no zone"),
            ("https://[::1%lo]/", "must have no zone"),
            ("https://", "must be a URL"),
            ("https:///example.com/", "must be a URL"),
            ("https://?x", "must be a URL"),
            ("https://example.com:port/", "must be a URL"),
            ("https://example.com:65536/", "must be a URL"),
            ("https://example.com:0/", "must have a port"),
            ("https://1.2.3.4.5/", "must be a URL"),
            ("https://256.1.1.1/", "must be a URL"),
            ("https://example.0x7f/", "must be a URL"),
            ("https://[::1/", "must be a URL"),
            ("https://exa mple.com/", "must have no spaces"),
            (" https://example.com/", "must have no spaces"),
            ("https://example.com/\n", "must have no spaces"),
            ("https://exam\tple.com/", "must have no spaces"),
            ("https://example.com\\@127.0.0.1/", "must have no spaces"),
            ("https://example..com/", "must have a fully qualified host name"),
            ("https://example.com../", "must have a fully qualified host name"),
            ("https://.example.com/", "must have a fully qualified host name"),
            (
                "https://a!b.example.com/",
                "must have a fully qualified host name",
            ),
            ("https://*.example.com/", "must have a fully qualified host name"),
        ] {
            let error = parse(url, &TargetRules::default()).unwrap_err();
            assert!(error.to_string().starts_with(message), "{url:?}: {error}");
        }
        let longest = format!("https://example.com/{}", "x".repeat(2028));
        assert!(parse(&longest, &TargetRules::default()).is_ok());
    }

    proptest! {
        #[test]
        fn whatever_is_written_both_parsers_agree_on_the_host(rest in "[a-z0-9./:@%#?\\[\\]\\\\|^`{}'\"<>é-]{0,40}") {
            if let Ok(url) = ReceiverUrl::parse(&format!("https://{rest}"), &TargetRules::default()) {
                let text = url.uri().to_string();
                let again = Url::parse(&text).unwrap();
                prop_assert_eq!(url.uri().host(), again.host_str());
                prop_assert_eq!(url.uri().scheme_str(), Some("https"));
                // Normalising twice changes nothing.
                prop_assert_eq!(&ReceiverUrl::parse(&text, &TargetRules::default()).unwrap(), &url);
            }
        }

    }
}
