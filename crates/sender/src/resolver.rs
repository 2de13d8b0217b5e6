//! Looks up names for the connector, and returns only allowed addresses. The connector dials exactly those, so there is no
//! second lookup between check and dial that could have another result (DNS rebinding).
//!
//! If a name has both allowed and forbidden addresses, the forbidden ones are dropped: only allowed ones are ever dialled, and
//! a public host with one stray address keeps working. If none is left, the attempt fails.

use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
    vec,
};

use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, NameServerConfig, ProtocolConfig, ResolverConfig, ResolverOpts},
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::rr::Name,
};
use hyper_util::client::legacy::connect::dns;
use tower::Service;

use super::{TargetRules, connect_error::ConnectError};

/// Timeout of a lookup, including its retries. Shorter than the connect timeout, of which it is a part.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(6);
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
    dns: TokioResolver,
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
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        Ok(Self {
            dns: builder.build()?,
            rules,
        })
    }

    /// The allowed addresses of a name, one to eight.
    pub(super) async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, ConnectError> {
        if TargetRules::is_localhost(name) {
            let addresses: Vec<IpAddr> = self.rules.loopback().collect();
            return non_empty(addresses, ConnectError::Forbidden);
        }
        let mut absolute = Name::from_ascii(name).map_err(|_| ConnectError::NoAddress)?;
        absolute.set_fqdn(true);
        let found = tokio::time::timeout(LOOKUP_TIMEOUT, self.dns.lookup_ip(absolute))
            .await
            .map_err(|_| ConnectError::Lookup)?
            .map_err(|error| {
                if error.is_nx_domain() || error.is_no_records_found() {
                    ConnectError::NoAddress
                } else {
                    ConnectError::Lookup
                }
            })?;
        let found = non_empty(found.iter().collect(), ConnectError::NoAddress)?;
        let allowed = found
            .into_iter()
            .filter(|address| self.rules.check_address(*address).is_ok())
            .take(MAX_ADDRESSES)
            .collect();
        non_empty(allowed, ConnectError::Forbidden)
    }
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
