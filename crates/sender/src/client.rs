//! The HTTP client for deliveries: an attempt is one POST, whatever the receiver does.
//!
//! It is built on hyper-util's client rather than on reqwest, because a receiver may be hostile, and reqwest limits neither
//!
//! - the head of an HTTP/1.1 response: hyper buffers some 400 KiB by default, and reqwest has no setting for it (here: 32 KiB
//!   and 100 headers), nor
//! - the bytes received on a connection, because it has no hook for a stream that counts them (here: an allowance per
//!   request for all bytes, including endless 1xx responses or HTTP/2 frames).
//!
//! Also, unlike reqwest, it has no redirects, cookies, decoding or proxies from the environment that would have to be switched off.
//!
//! An attempt costs at most one connection, some 150 KiB of buffers including the kernel's, the total timeout, and reading
//! some 200 KiB.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response,
    header::{LOCATION, RETRY_AFTER, USER_AGENT},
};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::capture_connection},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{
    ClientConfig, RootCertStore,
    client::Resumption,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use rustls_native_certs::{CertificateResult, load_native_certs};
use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use super::{
    AttemptError, AttemptOutcome, ProxyUrl, ReceiverUrl, RetryAfter, TargetRules,
    answer::{Exchange, Payload, SharedHead},
    attempt::MAX_RESPONSE,
    connector::Connector,
    failure::of_http,
    resolver::GuardedResolver,
    signature,
};

/// User-Agent, unless the headers of the delivery have one.
const AGENT: HeaderValue = HeaderValue::from_static(signature::AGENT);
/// Largest head of an HTTP/1.1 response, and so the largest buffer for one, in bytes.
const MAX_HEAD: usize = 32 * 1024;
/// Most headers of an HTTP/1.1 response.
const MAX_HEADERS: usize = 100;
/// Largest header list of an HTTP/2 response, in bytes.
const MAX_HEADER_LIST: u32 = 16 * 1024;
/// HTTP/2 flow-control window of a stream, in bytes: many times what is kept of a response body.
const STREAM_WINDOW: u32 = 16 * 1024;
/// HTTP/2 flow-control window of a connection, in bytes: eight responses at once.
const CONNECTION_WINDOW: u32 = 128 * 1024;
/// Interval and timeout of HTTP/2 pings on a connection with a request in flight.
const PING: Duration = Duration::from_secs(10);
/// Idle connections kept per receiver.
const MAX_IDLE: usize = 32;
/// Receivers whose TLS sessions are kept for resumption: few, because their tickets can be large.
const SESSIONS: usize = 64;

/// Timeouts and other settings of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSettings {
    /// Total timeout of an attempt, and of its status line (specification, section 6.5: 30 s).
    pub timeout: Duration,
    /// Timeout from the start of the attempt to the end of the TLS handshake.
    pub connect_timeout: Duration,
    /// Timeout from the status line to the end of the first 4 KiB of the body. Short, because they are only logged, and an
    /// endless body must not delay the next delivery.
    pub response_timeout: Duration,
    /// How long an idle connection is kept for the next delivery. Shorter than the 5 s after which many servers close idle
    /// connections, so that a request rarely meets a connection that is being closed.
    pub idle_timeout: Duration,
    /// PEM file with certificate authorities to trust in addition to the system's.
    pub extra_ca: Option<PathBuf>,
    /// DNS servers to use instead of the system's.
    pub name_servers: Vec<SocketAddr>,
    /// The proxy to connect through. It looks up names, so it must check their addresses.
    pub proxy: Option<ProxyUrl>,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(30),
            response_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(4),
            extra_ca: None,
            name_servers: Vec::new(),
            proxy: None,
        }
    }
}

/// Why the client could not be built.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The file of certificate authorities cannot be read.
    #[error("cannot read the certificate authorities for receivers in {}: {reason}; give --receiver-ca a PEM file", path.display())]
    Ca {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There are no certificate authorities.
    #[error(
        "the system has no certificate authorities, so no receiver could be trusted: install them (Debian: apt-get install \
         ca-certificates), name a PEM file in SSL_CERT_FILE, or give one with --receiver-ca{}",
        .0.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default()
    )]
    NoRoots(Option<String>),
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The resolver cannot be set up.
    #[error("cannot set up the DNS resolver: {0}")]
    Dns(#[from] hickory_resolver::net::NetError),
}

/// Posts to receivers. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct ReceiverClient {
    http: Client<Connector, Payload>,
    rules: Arc<TargetRules>,
    timeout: Duration,
    response_timeout: Duration,
}

impl ReceiverClient {
    /// A client that calls only receivers that the rules allow. Reads the system's certificate authorities, DNS servers and
    /// hosts file.
    pub fn new(settings: ClientSettings, rules: TargetRules) -> Result<Self, ClientError> {
        let rules = Arc::new(rules);
        let resolver = GuardedResolver::new(&settings.name_servers, rules.clone())?;
        let roots = authorities(load_native_certs(), settings.extra_ca.as_deref())?;
        let tls = Arc::new(tls(roots)?);
        let connector = match &settings.proxy {
            Some(proxy) => Connector::through(proxy, tls, settings.connect_timeout),
            None => Connector::new(resolver, tls, settings.connect_timeout),
        };
        let http = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(settings.idle_timeout)
            .pool_max_idle_per_host(MAX_IDLE)
            // Retries only if no byte was written, because an idle connection turned out to be closed.
            .retry_canceled_requests(true)
            .http1_title_case_headers(true)
            .http1_max_buf_size(MAX_HEAD)
            .http1_max_headers(MAX_HEADERS)
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size(CONNECTION_WINDOW)
            .http2_max_header_list_size(MAX_HEADER_LIST)
            .http2_keep_alive_interval(PING)
            .http2_keep_alive_timeout(PING)
            .build(connector);
        Ok(Self {
            http,
            rules,
            timeout: settings.timeout,
            response_timeout: settings.response_timeout,
        })
    }

    /// Makes one attempt. It always ends within the total timeout, and sends the request at most once.
    pub async fn post(&self, url: &str, headers: HeaderMap, body: Bytes) -> AttemptOutcome {
        let begun = Instant::now();
        match self.attempt(url, headers, body, begun + self.timeout).await {
            Ok(answer) => AttemptOutcome {
                duration: answer.at - begun,
                status: Some(answer.status),
                response: answer.response,
                retry_after: answer.retry_after,
                error: answer.error,
            },
            Err(error) => AttemptOutcome {
                duration: begun.elapsed(),
                status: None,
                response: String::new(),
                retry_after: None,
                error: Some(error),
            },
        }
    }

    async fn attempt(
        &self,
        url: &str,
        headers: HeaderMap,
        body: Bytes,
        deadline: Instant,
    ) -> Result<Answer, AttemptError> {
        let url = ReceiverUrl::parse(url, &self.rules)?;
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = url.into();
        *request.headers_mut() = headers;
        request.headers_mut().entry(USER_AGENT).or_insert(AGENT);
        let connection = capture_connection(&mut request);
        let seen = SharedHead::default();
        let request = request.map(|()| Payload::new(body, connection.clone(), seen.clone()));
        let failure = match timeout_at(deadline, self.http.request(request)).await {
            Ok(Ok(response)) => return Ok(self.answer(response, deadline).await),
            Ok(Err(error)) => {
                let exchange = Exchange::of(&connection);
                of_http(&error, exchange.and_then(|exchange| exchange.failure()))
            }
            Err(_) => match &*connection.connection_metadata() {
                None => AttemptError::ConnectTimeout(self.timeout),
                Some(connection) => {
                    // An HTTP/2 connection outlives its requests; the next request must not use a dead one.
                    connection.poison();
                    AttemptError::Timeout(self.timeout)
                }
            },
        };
        // A status line counts, whatever the client thought of the rest.
        let seen = seen.lock();
        let (status, at) = seen.status().ok_or(failure)?;
        let error = AttemptError::of_status(status, seen.location());
        let retry_after = error.as_ref().and(seen.retry_after());
        Ok(Answer {
            at,
            status,
            retry_after: retry_after.and_then(RetryAfter::parse),
            error,
            response: String::new(),
        })
    }

    /// Reads the answer.
    async fn answer(&self, response: Response<Incoming>, deadline: Instant) -> Answer {
        let (head, body) = response.into_parts();
        let at = Instant::now();
        let status = head.status.as_u16();
        let value = |name| head.headers.get(name).map(HeaderValue::as_bytes);
        let error = AttemptError::of_status(status, value(LOCATION));
        let retry_after = error.as_ref().and(value(RETRY_AFTER));
        Answer {
            at,
            status,
            retry_after: retry_after.and_then(RetryAfter::parse),
            error,
            response: beginning(body, deadline.min(at + self.response_timeout)).await,
        }
    }
}

struct Answer {
    /// When the status line or the head of the response arrived.
    at: Instant,
    status: u16,
    retry_after: Option<RetryAfter>,
    error: Option<AttemptError>,
    response: String,
}

/// Reads the body until the deadline, up to 4 KiB. The rest is dropped with the connection.
async fn beginning(mut body: Incoming, deadline: Instant) -> String {
    let mut kept = Vec::new();
    while kept.len() < MAX_RESPONSE {
        match timeout_at(deadline, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    kept.extend_from_slice(&data[..data.len().min(MAX_RESPONSE - kept.len())]);
                }
            }
            Ok(Some(Err(_)) | None) | Err(_) => break,
        }
    }
    let mut text = String::from_utf8_lossy(&kept).into_owned();
    // The replacement for an invalid byte is longer than the byte.
    text.truncate(text.floor_char_boundary(MAX_RESPONSE));
    text
}

/// The certificate authorities of the system and of the administrator.
fn authorities(system: CertificateResult, extra: Option<&Path>) -> Result<RootCertStore, ClientError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(system.certs);
    if let Some(path) = extra {
        let wrong = |reason: String| ClientError::Ca {
            path: path.to_owned(),
            reason,
        };
        let before = roots.len();
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))? {
            let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
            roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
        }
        if roots.len() == before {
            return Err(wrong("it contains no certificate".to_owned()));
        }
    }
    if roots.is_empty() {
        return Err(ClientError::NoRoots(
            system.errors.first().map(ToString::to_string),
        ));
    }
    Ok(roots)
}

/// TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1.
fn tls(roots: RootCertStore) -> Result<ClientConfig, ClientError> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.resumption = Resumption::in_memory_sessions(SESSIONS);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_any_authority_there_is_no_client_and_the_error_names_the_fix() {
        let message = authorities(CertificateResult::default(), None)
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("ca-certificates") && message.contains("--receiver-ca"),
            "{message}"
        );
    }

    #[test]
    fn an_attempt_can_run_as_a_task_of_its_own() {
        fn task<F: Future + Send + 'static>(_: impl Fn(ReceiverClient) -> F) {}
        task(|client| async move { client.post("", HeaderMap::new(), Bytes::new()).await });
    }

    #[test]
    fn the_administrators_authority_is_enough() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        std::fs::write(file.path(), params.self_signed(&key).unwrap().pem()).unwrap();
        let roots = authorities(CertificateResult::default(), Some(file.path())).unwrap();
        assert_eq!(roots.len(), 1);
    }
}
