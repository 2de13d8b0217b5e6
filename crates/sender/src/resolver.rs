//! Looks up names for the connector, and returns only allowed addresses. The connector dials exactly those, so there is no
//! second lookup between check and dial that could have another result (DNS rebinding).
//!
//! If a name has both allowed and forbidden addresses, the forbidden ones are dropped: only allowed ones are ever dialled, and
//! a public host with one stray address keeps working. If none is left, the attempt fails.

use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
    vec,
};

use hickory_resolver::{
    TokioResolver,
    config::{
        ConnectionConfig, LookupIpStrategy, NameServerConfig, ProtocolConfig, ResolverConfig, ResolverOpts,
    },
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::rr::Name,
};
use hyper_util::client::legacy::connect::dns;
use tower::Service;

use super::{TargetRules, connect_error::ConnectError};

/// Timeout of a lookup, including its retries. Shorter than the connect timeout, of which it is a part.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(6);
/// How long the addresses of one family wait for those of the other: some name servers never answer a query for IPv6 addresses. RFC
/// 8305, section 3, proposes 50 ms, for people who wait.
const OTHER_FAMILY: Duration = Duration::from_millis(500);
/// Timeout of one query; then another DNS server is asked, or the same one again.
const TRY_TIMEOUT: Duration = Duration::from_secs(2);
/// Retries of a query.
const RETRIES: usize = 2;
/// Cap on the TTL of cached addresses, because receivers move.
const LONGEST_TTL: Duration = Duration::from_secs(300);
/// Cap on the TTL of cached failures, so that a fixed name works at the next retry.
const LONGEST_NEGATIVE_TTL: Duration = Duration::from_secs(30);
/// Number of cached lookups: few, because the owner of a name decides how large its records are.
const CACHE_SIZE: u64 = 512;
/// Maximum number of addresses of a name that are dialled.
const MAX_ADDRESSES: usize = 8;

/// Looks up names of receivers. Cheap to clone.
#[derive(Clone)]
pub struct GuardedResolver {
    /// For IPv6, and for IPv4.
    dns: Arc<[TokioResolver; 2]>,
    rules: Arc<TargetRules>,
}

impl GuardedResolver {
    /// A resolver that asks `name_servers`, or those of the system if the list is empty. The hosts file takes precedence;
    /// search domains are never used.
    ///
    /// Errors: an invalid resolver configuration.
    pub fn new(name_servers: &[SocketAddr], rules: Arc<TargetRules>) -> Result<Self, NetError> {
        let (config, mut options) = if name_servers.is_empty() {
            system()
        } else {
            let servers = name_servers.iter().map(|address| server(*address)).collect();
            (
                ResolverConfig::from_name_servers(servers),
                ResolverOpts::default(),
            )
        };
        options.timeout = TRY_TIMEOUT;
        options.attempts = RETRIES;
        options.cache_size = CACHE_SIZE;
        options.positive_max_ttl = Some(LONGEST_TTL);
        options.negative_max_ttl = Some(LONGEST_NEGATIVE_TTL);
        // A search domain could turn a name into a service of the cluster, so drop them all; names are looked up as absolute.
        let servers = config.name_servers().to_vec();
        let config = ResolverConfig::from_parts(None, Vec::new(), servers);
        let of_family = |ip_strategy| {
            let provider = TokioRuntimeProvider::default();
            let mut builder = TokioResolver::builder_with_config(config.clone(), provider);
            *builder.options_mut() = options.clone();
            builder.options_mut().ip_strategy = ip_strategy;
            builder.build()
        };
        Ok(Self {
            dns: Arc::new([
                of_family(LookupIpStrategy::Ipv6Only)?,
                of_family(LookupIpStrategy::Ipv4Only)?,
            ]),
            rules,
        })
    }

    /// The allowed addresses of a name, one to eight; where there are both, IPv6 and IPv4 in turn.
    pub(super) async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, ConnectError> {
        if TargetRules::is_localhost(name) {
            let addresses: Vec<IpAddr> = self.rules.loopback().collect();
            return non_empty(addresses, ConnectError::Forbidden);
        }
        let mut absolute = Name::from_ascii(name).map_err(|_| ConnectError::NoAddress)?;
        absolute.set_fqdn(true);
        let [ipv6, ipv4] = &*self.dns;
        let (ipv6, ipv4) = both(lookup(ipv6, &absolute), lookup(ipv4, &absolute)).await;
        let error = match (&ipv6, &ipv4) {
            (Err(ConnectError::NoAddress), Err(ConnectError::NoAddress)) => ConnectError::NoAddress,
            (Err(_), Err(_)) => ConnectError::Lookup,
            _ => ConnectError::Forbidden,
        };
        let allowed = |found: Result<Vec<IpAddr>, ConnectError>| -> Vec<IpAddr> {
            let found = found.unwrap_or_default().into_iter();
            found
                .filter(|address| self.rules.check_address(*address).is_ok())
                .collect()
        };
        let (ipv6, ipv4) = (allowed(ipv6), allowed(ipv4));
        let in_turn = (0..MAX_ADDRESSES).flat_map(|index| [ipv6.get(index), ipv4.get(index)]);
        let allowed = in_turn.flatten().take(MAX_ADDRESSES).copied().collect();
        non_empty(allowed, error)
    }
}

/// The addresses of one family; never an empty list.
async fn lookup(dns: &TokioResolver, name: &Name) -> Result<Vec<IpAddr>, ConnectError> {
    let found = tokio::time::timeout(LOOKUP_TIMEOUT, dns.lookup_ip(name.clone()))
        .await
        .map_err(|_| ConnectError::Lookup)?
        .map_err(|error| {
            if error.is_nx_domain() || error.is_no_records_found() {
                ConnectError::NoAddress
            } else {
                ConnectError::Lookup
            }
        })?;
    non_empty(found.iter().collect(), ConnectError::NoAddress)
}

/// The outcomes of both. Once one has succeeded, the other has only [`OTHER_FAMILY`] left.
async fn both<T>(
    one: impl Future<Output = Result<T, ConnectError>>,
    other: impl Future<Output = Result<T, ConnectError>>,
) -> (Result<T, ConnectError>, Result<T, ConnectError>) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    tokio::select! {
        first = &mut one => {
            let second = after(&first, other).await;
            (first, second)
        }
        first = &mut other => (after(&first, one).await, first),
    }
}

async fn after<T>(
    first: &Result<T, ConnectError>,
    second: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    if first.is_err() {
        return second.await;
    }
    let in_time = tokio::time::timeout(OTHER_FAMILY, second).await;
    in_time.unwrap_or(Err(ConnectError::Lookup))
}

fn non_empty(addresses: Vec<IpAddr>, error: ConnectError) -> Result<Vec<IpAddr>, ConnectError> {
    if addresses.is_empty() {
        Err(error)
    } else {
        Ok(addresses)
    }
}

/// The system's DNS servers; if none are configured, the one on this machine, as in the C library.
fn system() -> (ResolverConfig, ResolverOpts) {
    match hickory_resolver::system_conf::read_system_conf() {
        Ok((config, options)) if !config.name_servers().is_empty() => (config, options),
        read => {
            let error = read.err().map(|error| error.to_string());
            tracing::warn!(error, "no DNS servers are configured; using 127.0.0.1");
            let local = SocketAddr::from(([127, 0, 0, 1], 53));
            (
                ResolverConfig::from_name_servers(vec![server(local)]),
                ResolverOpts::default(),
            )
        }
    }
}

fn server(address: SocketAddr) -> NameServerConfig {
    let connections = [ProtocolConfig::Udp, ProtocolConfig::Tcp].map(|protocol| {
        let mut connection = ConnectionConfig::new(protocol);
        connection.port = address.port();
        connection
    });
    NameServerConfig::new(address.ip(), true, connections.into())
}

impl Service<dns::Name> for GuardedResolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: dns::Name) -> Self::Future {
        let resolver = self.clone();
        Box::pin(async move {
            let addresses = resolver.addresses(name.as_str()).await?;
            // The connector sets the port.
            let addresses: Vec<_> = addresses
                .into_iter()
                .map(|address| SocketAddr::new(address, 0))
                .collect();
            Ok(addresses.into_iter())
        })
    }
}
