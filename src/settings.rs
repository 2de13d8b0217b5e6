//! Settings of the serving commands: flags, each with an environment variable of the same name prefixed with `STELLAGE_`.

use std::{net::SocketAddr, ops::RangeInclusive, path::PathBuf, time::Duration};

use clap::Args;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use controllers::{invoice::InvoiceSettings, mail::MailSettings};
use domain::{
    delivery::{DEFAULT_RETENTION_HOURS, DeliveryLog, DeliverySettings},
    provider::Timings,
};
use providers::simulator::Pools;
use resources::{
    account::DEFAULT_INSTANCE_QUOTA,
    api_key::DEFAULT_KEY_QUOTA,
    backup::{DEFAULT_PER_ACCOUNT, DEFAULT_PER_INSTANCE},
    private_network::DEFAULT_NETWORK_QUOTA,
    validation,
};
use runtime::{
    Metrics,
    events::EventLevel,
    http::{
        ConnectionLimits,
        tls::{Certificate, CertificateError},
    },
    lease::LeaseTimes,
    traces::TraceSettings,
};
use sender::ReceiverSettings;
use server::{
    console::OidcSettings,
    console_gateway::{ConsoleLimits, GatewayUrl},
    public_url::PublicUrl,
};

/// Allowed durations of the Lease. A shorter one leaves no time to retry a renewal; with a longer one, a takeover from a dead
/// leader takes too long.
const LEASE_SECONDS: RangeInclusive<i64> = 4..=600;

/// Settings of every process that serves.
#[derive(Args, Clone, Debug)]
pub struct ProcessSettings {
    /// Namespace of the operator, which holds the Lease, the invoices and the keys of the consoles; no Account may use it
    #[arg(long, env = "STELLAGE_NAMESPACE", default_value = "stellage-system")]
    pub namespace: String,

    /// Address for /healthz, /readyz and /metrics; all addresses by default, of IPv4 too; port 0 takes a free one
    #[arg(long, env = "STELLAGE_METRICS_LISTEN", default_value = "[::]:9090")]
    pub metrics_listen: SocketAddr,

    /// YAML file with regions, images and prices; read again when it changes; default: the built-in catalogue
    #[arg(long, env = "STELLAGE_CATALOGUE", value_name = "FILE")]
    pub catalogue: Option<PathBuf>,

    /// File to write once everything is ready: JSON with `url` (of what is served, if anything is) and `metrics_url`
    #[arg(long, env = "STELLAGE_READY_FILE")]
    pub ready_file: Option<PathBuf>,

    /// Seconds to wait for running requests and reconciles after SIGTERM
    #[arg(long, env = "STELLAGE_SHUTDOWN_GRACE_SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(..=3600))]
    pub shutdown_grace_seconds: u64,

    /// Which Kubernetes Events are written: none (`off`), only Warnings, or all
    #[arg(long, env = "STELLAGE_KUBERNETES_EVENTS", value_enum, default_value_t)]
    pub kubernetes_events: EventLevel,

    /// Log lines as JSON rather than text
    #[arg(long, env = "STELLAGE_LOG_JSON")]
    pub log_json: bool,
}

impl ProcessSettings {
    /// How long to wait for running requests, reconciles and deliveries at shutdown.
    pub fn shutdown_grace(&self) -> Duration {
        Duration::from_secs(self.shutdown_grace_seconds)
    }
}

/// Settings of the console gateway.
#[derive(Args, Clone, Debug)]
pub struct GatewaySettings {
    /// Address of the WebSockets; all addresses by default, of IPv4 too; port 0 takes a free one
    #[arg(
        long = "console-listen",
        env = "STELLAGE_CONSOLE_LISTEN",
        default_value = "[::]:8081"
    )]
    pub listen: SocketAddr,

    /// How many consoles may be open, and for how long
    #[command(flatten)]
    pub limits: ConsoleLimits,

    /// The certificate of the WebSockets
    #[command(flatten)]
    pub tls: TlsSettings,
}

/// The certificate of what is served.
#[derive(Args, Clone, Debug)]
pub struct TlsSettings {
    /// PEM file with the certificate of the REST API, or of the console gateway, and its intermediates; with it, they speak TLS only
    #[arg(long, env = "STELLAGE_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// PEM file with the private key of --tls-cert; both are read again when they change
    #[arg(long, env = "STELLAGE_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

impl TlsSettings {
    /// The certificate, if there is one.
    pub fn certificate(&self, metrics: &Metrics) -> Result<Option<Certificate>, CertificateError> {
        let files = self.tls_cert.as_deref().zip(self.tls_key.as_deref());
        files
            .map(|(chain, key)| Certificate::load(chain, key, metrics))
            .transpose()
    }
}

/// Settings that the facade and the controllers share.
#[derive(Args, Clone, Debug)]
pub struct CommonSettings {
    /// Settings of every process that serves
    #[command(flatten)]
    pub process: ProcessSettings,

    /// Seconds that provisioning takes; the simulator's other times and the create message scale with it; 0 = at once
    #[arg(long, env = "STELLAGE_PROVISIONING_SECONDS", default_value = "150", value_parser = seconds)]
    pub provisioning_seconds: f64,

    /// Let annotations make the simulator misbehave; for trying things out, since any account holder can set them
    #[arg(long, env = "STELLAGE_SIMULATOR_FAULTS")]
    pub simulator_faults: bool,

    /// Instances that an account may have, unless its spec.instanceQuota says otherwise
    #[arg(long, env = "STELLAGE_DEFAULT_INSTANCE_QUOTA", default_value_t = DEFAULT_INSTANCE_QUOTA, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub default_instance_quota: u32,

    /// API keys that an account may have
    #[arg(long, env = "STELLAGE_API_KEYS_PER_ACCOUNT", default_value_t = DEFAULT_KEY_QUOTA, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub api_keys_per_account: u32,

    /// Private networks that an account may have
    #[arg(long, env = "STELLAGE_PRIVATE_NETWORKS_PER_ACCOUNT", default_value_t = DEFAULT_NETWORK_QUOTA, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub private_networks_per_account: u32,

    /// Manual backups of one instance that may wait, run or be completed
    #[arg(long, env = "STELLAGE_BACKUPS_PER_INSTANCE", default_value_t = DEFAULT_PER_INSTANCE, value_parser = clap::value_parser!(u32).range(1..=2000))]
    pub backups_per_instance: u32,

    /// Manual backups, and scheduled ones of deleted instances, that an account may have
    #[arg(long, env = "STELLAGE_BACKUPS_PER_ACCOUNT", default_value_t = DEFAULT_PER_ACCOUNT, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub backups_per_account: u32,

    /// Whether events, and their deliveries that succeed at the first attempt, are logged (`all`) or not (`failures`)
    #[arg(long, env = "STELLAGE_DELIVERY_LOG", value_enum, default_value_t)]
    pub delivery_log: DeliveryLog,

    /// Hours to keep logged events and finished deliveries
    #[arg(long, env = "STELLAGE_DELIVERY_RETENTION_HOURS", default_value_t = DEFAULT_RETENTION_HOURS, value_parser = clap::value_parser!(u32).range(1..=8760))]
    pub delivery_retention_hours: u32,

    /// Which receivers webhooks may call, and how
    #[command(flatten)]
    pub receivers: ReceiverSettings,

    /// Where traces are sent, and how many
    #[command(flatten)]
    pub traces: TraceSettings,
}

impl CommonSettings {
    /// The times that follow from `--provisioning-seconds`.
    pub fn timings(&self) -> Timings {
        Timings::for_provisioning(self.provisioning_seconds)
    }
}

/// Settings of the facade.
#[derive(Args, Clone, Debug)]
pub struct ApiSettings {
    /// Address of the REST API; all addresses by default, of IPv4 too; port 0 takes a free one
    #[arg(long, env = "STELLAGE_LISTEN", default_value = "[::]:8080")]
    pub listen: SocketAddr,

    /// Connections at the same time; beyond that, the one that has been idle for the longest time is closed
    #[arg(long, env = "STELLAGE_MAX_CONNECTIONS", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: u32,

    /// Connections at the same time from one address (from one /64, with IPv6)
    #[arg(long, env = "STELLAGE_MAX_CONNECTIONS_PER_PEER", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections_per_peer: u32,

    /// Seconds for which requests are still accepted after SIGTERM, while /readyz already fails, so that load balancers have time to
    /// stop sending any; --shutdown-grace-seconds begins after that
    #[arg(long, env = "STELLAGE_SHUTDOWN_DELAY_SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=300))]
    pub shutdown_delay_seconds: u16,

    /// Address ranges of load balancers and proxies in front of the API: --max-connections-per-peer does not apply to them, their
    /// connections are the last to be closed, and their X-Forwarded-For counts when sign-ins to the console are limited
    #[arg(
        long = "trusted-proxies",
        env = "STELLAGE_TRUSTED_PROXIES",
        value_name = "CIDR",
        value_delimiter = ',',
        value_parser = sender::settings::range
    )]
    pub trusted_proxies: Vec<IpNet>,

    /// Calls of the API server that the REST API makes at the same time; accounts take turns, and one gets at most half of them
    #[arg(long, env = "STELLAGE_MAX_API_CALLS", default_value_t = 128, value_parser = clap::value_parser!(u16).range(2..=4096))]
    pub max_api_calls: u16,

    /// Where clients see the API and the console, such as `https://example.com/cloud`: behind a proxy, which may serve them below a path.
    /// Links begin with it
    #[arg(long, env = "STELLAGE_PUBLIC_URL", value_name = "URL")]
    pub public_url: Option<PublicUrl>,

    /// Whether the customer console is served, at /console
    #[arg(long, env = "STELLAGE_CONSOLE", value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub console: bool,

    /// Let people sign in to the console over plain HTTP on loopback, and there alone: its cookies then are not Secure
    #[arg(long, env = "STELLAGE_CONSOLE_INSECURE_COOKIE")]
    pub console_insecure_cookie: bool,

    /// How people sign in to the console through OpenID Connect
    #[command(flatten)]
    pub oidc: OidcSettings,

    /// Where clients reach the console gateway, such as `wss://example.com/v1/console`; without it, no console of an instance can be opened
    #[arg(long, env = "STELLAGE_CONSOLE_GATEWAY_URL", value_name = "URL")]
    pub console_gateway_url: Option<GatewayUrl>,

    /// The certificate of the REST API
    #[command(flatten)]
    pub tls: TlsSettings,
}

impl ApiSettings {
    /// For how long requests are still accepted after SIGTERM.
    pub fn shutdown_delay(&self) -> Duration {
        Duration::from_secs(self.shutdown_delay_seconds.into())
    }

    /// What the clients of the API are granted.
    pub fn limits(&self) -> ConnectionLimits {
        let number = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        ConnectionLimits {
            trusted: self.trusted_proxies.clone(),
            ..ConnectionLimits::of(
                number(self.max_connections),
                number(self.max_connections_per_peer),
            )
        }
    }
}

fn installation(text: &str) -> Result<String, &'static str> {
    validation::installation(text).map(|()| text.to_owned())
}

/// Settings of the controllers.
#[derive(Args, Clone, Debug)]
pub struct ControllerSettings {
    /// Service account of the operator in its namespace; it gets a RoleBinding in each account's namespace
    #[arg(long, env = "STELLAGE_SERVICE_ACCOUNT", default_value = "stellage")]
    pub service_account: String,

    /// Service account of `stellage api` in the operator's namespace, if it has one of its own; it gets another RoleBinding, with
    /// fewer rights
    #[arg(long, env = "STELLAGE_API_SERVICE_ACCOUNT")]
    pub api_service_account: Option<String>,

    /// Name of this installation, with which its new API keys begin, where there are several or may be one day: 1 to 12 lower-case
    /// letters and digits, the first a letter, such as eu1
    #[arg(long, env = "STELLAGE_INSTALLATION", value_parser = installation)]
    pub installation: Option<String>,

    /// Name of this replica in the Lease; default: the host's name and a random suffix
    #[arg(long, env = "STELLAGE_IDENTITY")]
    pub identity: Option<String>,

    /// Seconds until another replica takes over from a leader that no longer renews the Lease; a leader that cannot renew it
    /// for two thirds of that time stops leading, and stands for election again
    #[arg(long, env = "STELLAGE_LEASE_DURATION_SECONDS", default_value_t = LeaseTimes::DEFAULT_SECONDS, value_parser = clap::value_parser!(u16).range(LEASE_SECONDS))]
    pub lease_duration_seconds: u16,

    /// Instances reconciled at the same time; accounts take turns, and one gets at most half of them, and half of the quarter
    /// that is for instances whose last provider call failed
    #[arg(long, env = "STELLAGE_CONCURRENCY", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub concurrency: u16,

    /// Writes to the API server at the same time
    #[arg(long, env = "STELLAGE_WRITE_CONCURRENCY", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub write_concurrency: u16,

    /// IPv4 range of the simulator's servers
    #[arg(long, env = "STELLAGE_SIMULATOR_IPV4", default_value_t = Pools::default().ipv4)]
    pub simulator_ipv4: Ipv4Net,

    /// IPv6 range of the simulator's servers, a /64 or wider
    #[arg(long, env = "STELLAGE_SIMULATOR_IPV6", default_value_t = Pools::default().ipv6, value_parser = ipv6_range)]
    pub simulator_ipv6: Ipv6Net,

    /// Seconds that a provider call may take
    #[arg(long, env = "STELLAGE_PROVIDER_TIMEOUT_SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=300))]
    pub provider_timeout_seconds: u64,

    /// How the usage of instances is sampled
    #[command(flatten)]
    pub monitoring: MonitoringSettings,

    /// How invoices are numbered, bounded and kept
    #[command(flatten)]
    pub invoices: InvoiceArgs,

    /// How events are delivered and recorded
    #[command(flatten)]
    pub delivery: DeliverySettings,

    /// How account holders are notified
    #[command(flatten)]
    pub mail: MailSettings,
}

/// Settings of invoices.
#[derive(Args, Clone, Debug)]
pub struct InvoiceArgs {
    /// What invoice numbers begin with, such as B-; for one seller with several installations
    #[arg(long, env = "STELLAGE_INVOICE_PREFIX", default_value = "", hide_default_value = true, value_parser = invoice_prefix)]
    pub invoice_prefix: String,

    /// Lines of one invoice; with so many it is issued, and the next one begins
    #[arg(long, env = "STELLAGE_INVOICE_LINES", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..=500_000))]
    pub invoice_lines: u32,

    /// Days after its issue from which on an invoice is deleted; the law may ask for ten years or more; default: never
    #[arg(long, env = "STELLAGE_INVOICE_RETENTION", value_name = "DAYS", value_parser = clap::value_parser!(u32).range(90..=36_500))]
    pub invoice_retention: Option<u32>,

    /// Bill simulated servers and their backups, too; for trying things out. Only real servers are billed without it
    #[arg(long, env = "STELLAGE_BILL_SIMULATED")]
    pub bill_simulated: bool,
}

impl InvoiceArgs {
    /// As the controller takes them.
    pub fn settings(&self) -> InvoiceSettings {
        let day = Duration::from_hours(24);
        InvoiceSettings {
            prefix: self.invoice_prefix.clone(),
            max_lines: usize::try_from(self.invoice_lines).unwrap_or(usize::MAX),
            retention: self.invoice_retention.map(|days| day * days),
            bills_simulated: self.bill_simulated,
        }
    }
}

fn invoice_prefix(text: &str) -> Result<String, String> {
    let is_known = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let is_right = text.len() <= 16 && text.chars().all(is_known) && !text.starts_with('-');
    if is_right {
        Ok(text.to_owned())
    } else {
        Err("must have at most 16 letters, digits and '-', and not begin with '-', such as B-".to_owned())
    }
}

/// Settings of the samples of usage.
#[derive(Args, Clone, Debug)]
pub struct MonitoringSettings {
    /// Samples taken at the same time; accounts take turns, and one gets at most half of them
    #[arg(long, env = "STELLAGE_SAMPLING_CONCURRENCY", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub sampling_concurrency: u16,

    /// Show the usage of monitored instances among the metrics, labelled with namespace and instance
    #[arg(long, env = "STELLAGE_INSTANCE_METRICS")]
    pub instance_metrics: bool,

    /// Instances that --instance-metrics shows
    #[arg(long, env = "STELLAGE_INSTANCE_METRICS_LIMIT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub instance_metrics_limit: u32,
}

impl ControllerSettings {
    /// The times of the leader election.
    pub fn lease_times(&self) -> LeaseTimes {
        LeaseTimes::for_duration(Duration::from_secs(self.lease_duration_seconds.into()))
    }
}

fn ipv6_range(text: &str) -> Result<Ipv6Net, String> {
    match text.parse::<Ipv6Net>() {
        Ok(range) if range.prefix_len() <= 64 => Ok(range),
        _ => Err("must be an IPv6 range of a /64 or wider, such as 2001:db8::/32".to_owned()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=86_400.0).contains(&value) => Ok(value),
        _ => Err("must be a number of seconds from 0 to 86400".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        common: CommonSettings,
    }

    #[test]
    fn nobody_makes_the_simulator_misbehave_unless_the_operator_is_started_so() {
        let permitted = |flags: &[&str]| {
            let flags = [&["stellage"], flags].concat();
            Flags::parse_from(flags).common.simulator_faults
        };
        assert!(!permitted(&[]));
        assert!(permitted(&["--simulator-faults"]));
    }
}
