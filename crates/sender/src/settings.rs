//! Settings of the client for receivers: flags and their environment variables.

use std::{ffi::OsStr, net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Arg, Args, Command, Error, builder::TypedValueParser, error::ErrorKind};
use ipnet::IpNet;

use super::{ClientSettings, OwnRanges, ProxyUrl, TargetRules};

/// Which receivers webhooks may call, and how.
#[derive(Args, Clone, Debug)]
pub struct ReceiverSettings {
    /// PEM file with certificate authorities to trust for receivers, in addition to the system's
    #[arg(long, env = "STELLAGE_RECEIVER_CA", value_name = "FILE")]
    pub receiver_ca: Option<PathBuf>,

    /// Address ranges to allow for receivers although they are not public, such as 10.20.0.0/16; may be given more than once
    /// or as a comma-separated list. If a denied range matches too, the narrower one applies
    #[arg(long = "receiver-allow", env = "STELLAGE_RECEIVER_ALLOW", value_name = "CIDR", value_delimiter = ',', value_parser = range)]
    pub receiver_allow: Vec<IpNet>,

    /// Address ranges to deny for receivers, such as those of the cluster's pods, services and nodes if they are public
    #[arg(long = "receiver-deny", env = "STELLAGE_RECEIVER_DENY", value_name = "CIDR", value_delimiter = ',', value_parser = range)]
    pub receiver_deny: Vec<IpNet>,

    /// Internal names to allow for receivers, including their subdomains, such as hooks.svc.cluster.local; their addresses
    /// must be allowed too, with --receiver-allow
    #[arg(long = "receiver-allow-name", env = "STELLAGE_RECEIVER_ALLOW_NAME", value_name = "SUFFIX", value_delimiter = ',', value_parser = suffix)]
    pub receiver_allow_name: Vec<String>,

    /// Names to deny for receivers, including their subdomains, such as corp.example.com
    #[arg(long = "receiver-deny-name", env = "STELLAGE_RECEIVER_DENY_NAME", value_name = "SUFFIX", value_delimiter = ',', value_parser = suffix)]
    pub receiver_deny_name: Vec<String>,

    /// DNS servers for looking up receivers; default: the system's
    #[arg(
        long = "receiver-name-server",
        env = "STELLAGE_RECEIVER_NAME_SERVER",
        value_name = "ADDR:PORT",
        value_delimiter = ','
    )]
    pub receiver_name_server: Vec<SocketAddr>,

    /// DNS domain of the cluster, whose names are denied for receivers
    #[arg(long, env = "STELLAGE_CLUSTER_DOMAIN", value_name = "NAME", default_value = "cluster.local", value_parser = suffix)]
    pub cluster_domain: String,

    /// Let receivers have addresses of the cluster itself (its services, pods and nodes, this pod) where --receiver-allow allows
    /// them or they are public; by default they are denied
    #[arg(long, env = "STELLAGE_RECEIVER_ALLOW_CLUSTER")]
    pub receiver_allow_cluster: bool,

    /// Addresses of this pod and its node, which receivers may not have: status.podIPs and status.hostIPs, through the downward
    /// API; those of network interfaces are known anyway
    #[arg(long, env = "STELLAGE_OWN_ADDRESSES", value_name = "ADDRESS", value_delimiter = ',', value_parser = range)]
    pub own_addresses: Vec<IpNet>,

    /// Ports to allow for receivers although they belong to other protocols than HTTP, such as 6379
    #[arg(
        long = "receiver-allow-port",
        env = "STELLAGE_RECEIVER_ALLOW_PORT",
        value_name = "PORT",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub receiver_allow_port: Vec<u16>,

    /// Proxy that connects to receivers (HTTP CONNECT) and checks their addresses, as http://HOST:PORT or http://USER:PASSWORD@HOST:PORT
    #[arg(long, env = "STELLAGE_RECEIVER_PROXY", value_name = "URL", hide_env_values = true, value_parser = ProxyUrlParser)]
    pub receiver_proxy: Option<ProxyUrl>,

    /// Seconds until a receiver must have answered an attempt, including the connection
    #[arg(long, env = "STELLAGE_RECEIVER_TIMEOUT_SECONDS", value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=300))]
    pub receiver_timeout_seconds: u64,

    /// Seconds that the DNS lookup, TCP connection and TLS handshake of an attempt may take together
    #[arg(long, env = "STELLAGE_RECEIVER_CONNECT_TIMEOUT_SECONDS", value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=300))]
    pub receiver_connect_timeout_seconds: u64,
}

impl ReceiverSettings {
    /// The rules for receivers' addresses and names.
    pub fn rules(&self) -> TargetRules {
        TargetRules {
            allow: self.receiver_allow.clone(),
            deny: self.receiver_deny.clone(),
            allow_names: self.receiver_allow_name.clone(),
            deny_names: self.receiver_deny_name.clone(),
            cluster_domain: self.cluster_domain.clone(),
            own: OwnRanges::default(),
            allow_ports: self.receiver_allow_port.clone(),
        }
    }

    /// The settings of the HTTP client.
    pub fn client(&self) -> ClientSettings {
        ClientSettings {
            timeout: Duration::from_secs(self.receiver_timeout_seconds),
            connect_timeout: Duration::from_secs(self.receiver_connect_timeout_seconds),
            extra_ca: self.receiver_ca.clone(),
            name_servers: self.receiver_name_server.clone(),
            proxy: self.receiver_proxy.clone(),
            ..ClientSettings::default()
        }
    }
}

/// Parses an address range or a single address.
pub fn range(text: &str) -> Result<IpNet, &'static str> {
    let text = text.trim();
    text.parse()
        .or_else(|_| text.parse().map(|address: std::net::IpAddr| IpNet::from(address)))
        .map_err(|_| "must be an address range such as 10.20.0.0/16 or 2001:db8::/32")
}

/// Parses the URL of a proxy. Its errors do not quote the value, which may have a password.
#[derive(Clone)]
struct ProxyUrlParser;

impl TypedValueParser for ProxyUrlParser {
    type Value = ProxyUrl;

    fn parse_ref(&self, command: &Command, flag: Option<&Arg>, value: &OsStr) -> Result<ProxyUrl, Error> {
        ProxyUrl::parse(&value.to_string_lossy()).map_err(|why| {
            let flag = flag.map(ToString::to_string).unwrap_or_default();
            let message = format!("invalid value for '{flag}': {why}\n");
            Error::raw(ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }
}

/// Parses a DNS name, with or without a leading `*.`.
fn suffix(text: &str) -> Result<String, &'static str> {
    let name = text.trim().trim_start_matches("*.").trim_matches('.');
    let known = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if !name.is_empty()
        && name
            .split('.')
            .all(|label| !label.is_empty() && label.bytes().all(known))
    {
        Ok(name.to_ascii_lowercase())
    } else {
        Err("must be a DNS name such as corp.example.com")
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        settings: ReceiverSettings,
    }

    #[test]
    fn without_flags_the_built_in_rules_and_the_times_of_the_specification_hold() {
        let settings = Flags::parse_from(["stellage"]).settings;
        assert_eq!(settings.rules(), TargetRules::default());
        assert_eq!(settings.client(), ClientSettings::default());
    }

    #[test]
    fn looking_up_a_receiver_and_connecting_to_it_may_take_the_30_seconds_of_the_whole_attempt() {
        let client = Flags::parse_from(["stellage"]).settings.client();
        let whole = Duration::from_secs(30);
        assert_eq!([client.timeout, client.connect_timeout], [whole, whole]);
    }

    #[test]
    fn flags_take_lists_and_refuse_what_they_cannot_mean() {
        let settings = Flags::parse_from([
            "stellage",
            "--receiver-allow=127.0.0.0/8,::1",
            "--receiver-deny=10.0.0.0/8",
            "--receiver-deny-name=*.Corp.example.com.,b.example",
            "--receiver-name-server=127.0.0.1:5353",
            "--cluster-domain=k8s.example.net",
            "--receiver-timeout-seconds=5",
        ])
        .settings;
        let rules = settings.rules();
        assert_eq!(rules.allow.len(), 2);
        assert!(rules.check_address("127.0.0.1".parse().unwrap()).is_ok());
        assert_eq!(rules.deny_names, ["corp.example.com", "b.example"]);
        assert_eq!(rules.cluster_domain, "k8s.example.net");
        assert_eq!(settings.client().timeout, Duration::from_secs(5));
        for wrong in [
            "--receiver-allow=everything",
            "--receiver-deny-name=..",
            "--receiver-timeout-seconds=0",
            "--receiver-name-server=127.0.0.1",
            "--receiver-allow-port=ssh",
            "--receiver-proxy=socks5://proxy.example",
            "--own-addresses=here",
        ] {
            assert!(Flags::try_parse_from(["stellage", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_mistyped_proxy_is_refused_without_its_password() {
        let wrong = "--receiver-proxy=https://ada:secret@proxy.example:4750";
        let error = Flags::try_parse_from(["stellage", wrong])
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains("--receiver-proxy <URL>") && error.contains("must be a URL of the form"),
            "{error}"
        );
        assert!(!error.contains("secret"), "{error}");
    }
}
