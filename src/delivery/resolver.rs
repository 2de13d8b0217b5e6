//! Looks names up for the connector, and passes on only addresses that receivers may have. The connector dials exactly those,
//! so that between check and dial there is no second look-up which could be answered differently (DNS rebinding).
//!
//! Of mixed answers the forbidden ones are left out and the others dialled: what is dialled is allowed either way, and a
//! public host with one stray address keeps working. If none is left, the attempt fails.

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

/// How long a look-up may take, all its tries included. Within the connect deadline.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(6);
/// How long one name server has to answer; then another is asked, or the same again.
const TRY_TIMEOUT: Duration = Duration::from_secs(2);
/// Tries after the first.
const RETRIES: usize = 2;
/// Longest that an answer is kept, whatever its TTL: receivers move.
const LONGEST_TTL: Duration = Duration::from_secs(300);
/// Longest that it is kept that a name does not exist, so that a mended one works at the next retry.
const LONGEST_NEGATIVE_TTL: Duration = Duration::from_secs(30);
/// Answers kept: few, since whoever owns a name decides how long its answer is.
const CACHE_SIZE: u64 = 512;
/// Most addresses of a name that are tried.
const MAX_ADDRESSES: usize = 8;

/// Looks up names of receivers. Cheap to clone.
#[derive(Clone)]
pub struct GuardedResolver {
    dns: TokioResolver,
    rules: Arc<TargetRules>,
}

impl GuardedResolver {
    /// Asks `name_servers`, or those of the system if there are none. The hosts file comes first; search domains are never
    /// tried. Errors are those of the resolver's configuration.
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
        // Search domains would make `kubernetes.default` of a name: none is kept, and names are asked for as absolute ones.
        let servers = config.name_servers().to_vec();
        let config = ResolverConfig::from_parts(None, Vec::new(), servers);
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        Ok(Self {
            dns: builder.build()?,
            rules,
        })
    }

    /// The addresses of a name that receivers may have, at most eight, at least one.
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

/// The system's name servers. Without any the one on this machine, as the C library does it.
fn system() -> (ResolverConfig, ResolverOpts) {
    match hickory_resolver::system_conf::read_system_conf() {
        Ok((config, options)) if !config.name_servers().is_empty() => (config, options),
        read => {
            let error = read.err().map(|error| error.to_string());
            tracing::warn!(
                error,
                "the system names no DNS servers; the one on this machine is asked, if there is one"
            );
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
            // The connector puts in the port.
            let addresses: Vec<_> = addresses
                .into_iter()
                .map(|address| SocketAddr::new(address, 0))
                .collect();
            Ok(addresses.into_iter())
        })
    }
}
