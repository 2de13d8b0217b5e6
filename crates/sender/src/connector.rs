//! Connects to receivers: DNS lookup, TCP and TLS with one timeout, and a stream with a limit on received bytes.

use std::{
    error::Error as StdError,
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use http::Uri;
use hyper_util::{
    client::legacy::connect::{Connected, Connection, HttpConnector},
    rt::TokioIo,
};
use parking_lot::Mutex;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite, Join, ReadBuf},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::Instant,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tower::Service;

use super::{
    ProxyUrl,
    answer::Exchange,
    connect_error::{ConnectError, find},
    resolver::GuardedResolver,
    tunnel,
};

/// Share of the connect timeout that a proxy may use.
const PROXY_SHARE: f64 = 0.9;
/// How long a connection made by the proxy counts as proof that it works.
const WORKED_LATELY: Duration = Duration::from_secs(60);
/// The kernel's receive buffer of a connection, in bytes; larger than any single read.
const RECEIVE_BUFFER: usize = 64 * 1024;
/// Bytes that a receiver may send on a new connection: enough for the longest handshake and the first response.
const FIRST_ALLOWANCE: u64 = 128 * 1024;
/// Additional bytes for each request: more than is ever read of a response, which is 32 KiB at most. It stops endless 1xx
/// responses or HTTP/2 frames long before the timeout.
const ALLOWANCE_PER_REQUEST: u64 = 64 * 1024;
/// Cap on a connection's unused allowance, in bytes.
const LARGEST_ALLOWANCE: u64 = 2 * 1024 * 1024;

/// Opens connections for the HTTP client. Cheap to clone.
#[derive(Clone)]
pub(super) struct Connector {
    tcp: Dialer,
    tls: TlsConnector,
    timeout: Duration,
}

/// Opens TCP connections to receivers.
#[derive(Clone)]
enum Dialer {
    /// To the addresses that the resolver allows.
    Direct(HttpConnector<GuardedResolver>),
    /// Through a proxy, to the host of the URL.
    Proxy(HttpConnector, ProxyUrl, ProxyRecord),
}

/// When the proxy last made a connection to any receiver. While the proxy works for others, a receiver that it cannot
/// reach has itself failed; otherwise a receiver could pass off its own silence as the proxy's and would never be
/// disabled. Clones share it.
#[derive(Clone, Default)]
struct ProxyRecord(Arc<Mutex<Option<Instant>>>);

impl ProxyRecord {
    fn connected(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    /// Whether a failure of the proxy counts as the receiver's failure. A refusal of our credentials never does.
    fn judge(&self, error: ConnectError) -> ConnectError {
        let works = self.0.lock().is_some_and(|at| at.elapsed() < WORKED_LATELY);
        match error {
            ConnectError::BrokenProxy(why) if works && why != tunnel::CREDENTIALS => ConnectError::Proxy(why),
            error => error,
        }
    }
}

impl Connector {
    pub(super) fn new(resolver: GuardedResolver, tls: Arc<ClientConfig>, timeout: Duration) -> Self {
        let tcp = Dialer::Direct(dialer(HttpConnector::new_with_resolver(resolver), timeout));
        Self {
            tcp,
            tls: tls.into(),
            timeout,
        }
    }

    /// A connector that goes through a proxy.
    pub(super) fn through(proxy: &ProxyUrl, tls: Arc<ClientConfig>, timeout: Duration) -> Self {
        // Half of the time, so that an unreachable proxy is not taken for one that does not answer.
        let tcp = dialer(HttpConnector::new(), timeout / 2);
        Self {
            tcp: Dialer::Proxy(tcp, proxy.clone(), ProxyRecord::default()),
            tls: tls.into(),
            timeout,
        }
    }

    async fn dial(&mut self, uri: Uri) -> Result<TokioIo<TcpStream>, ConnectError> {
        match &mut self.tcp {
            Dialer::Direct(tcp) => tcp.call(uri).await.map_err(|error| self.of_tcp(&error)),
            Dialer::Proxy(tcp, proxy, record) => {
                // Less than the whole time, so that a silent proxy is not taken for a silent receiver.
                let until = Instant::now() + self.timeout.mul_f64(PROXY_SHARE);
                let tcp = tcp.call(proxy.uri().clone()).await.map_err(|error| {
                    tracing::debug!(%error, "cannot connect to the proxy");
                    ConnectError::BrokenProxy("the proxy cannot be reached")
                })?;
                let opened =
                    tokio::time::timeout_at(until, tunnel::open(tcp, &uri, proxy.authorization())).await;
                opened
                    .unwrap_or(Err(ConnectError::BrokenProxy("the proxy does not answer")))
                    .inspect(|_| record.connected())
                    .map_err(|error| record.judge(error))
            }
        }
    }

    async fn connect(mut self, uri: Uri) -> Result<ReceiverStream, ConnectError> {
        let deadline = Instant::now() + self.timeout;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let tcp = tokio::time::timeout_at(deadline, self.dial(uri))
            .await
            .map_err(|_| ConnectError::TcpTimeout(self.timeout))??;
        let name = ServerName::try_from(host).map_err(|_| ConnectError::NoAddress)?;
        let (inner, writer) = tcp.into_inner().into_split();
        let allowance = Allowance::new();
        let exchange = Exchange::new(allowance.clone());
        let stream = tokio::io::join(Metered { inner, allowance }, writer);
        let tls = tokio::time::timeout_at(deadline, self.tls.connect(name, stream))
            .await
            .map_err(|_| ConnectError::TlsTimeout(self.timeout))?
            .map_err(|error| of_tls(&error))?;
        Ok(ReceiverStream { tls, exchange })
    }

    fn of_tcp(&self, error: &(dyn StdError + 'static)) -> ConnectError {
        if let Some(error) = find::<ConnectError>(error) {
            return error.clone();
        }
        match find::<io::Error>(error).map(io::Error::kind) {
            Some(io::ErrorKind::TimedOut) => ConnectError::TcpTimeout(self.timeout),
            Some(io::ErrorKind::ConnectionRefused) => ConnectError::Tcp("connection refused"),
            Some(io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted) => ConnectError::Closed,
            Some(io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) => {
                ConnectError::Tcp("its address is unreachable")
            }
            _ => {
                tracing::debug!(error, "cannot connect to a receiver");
                ConnectError::Tcp("the connection failed")
            }
        }
    }
}

fn dialer<R>(mut tcp: HttpConnector<R>, timeout: Duration) -> HttpConnector<R> {
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    // hyper divides this among the addresses, so that an unreachable first one leaves time for the others.
    tcp.set_connect_timeout(Some(timeout));
    tcp.set_recv_buffer_size(Some(RECEIVE_BUFFER));
    tcp
}

fn of_tls(error: &io::Error) -> ConnectError {
    if let Some(error) = find::<ConnectError>(error) {
        return error.clone();
    }
    find::<rustls::Error>(error).map_or(ConnectError::Closed, |error| ConnectError::Tls(error.clone()))
}

impl Service<Uri> for Connector {
    type Response = TokioIo<ReceiverStream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let stream = self.clone().connect(uri);
        Box::pin(async { stream.await.map(TokioIo::new) })
    }
}

/// A connection to a receiver, for the HTTP client.
pub(super) struct ReceiverStream {
    tls: TlsStream<MeteredStream>,
    exchange: Exchange,
}

impl ReceiverStream {
    fn is_http2(&self) -> bool {
        self.tls.get_ref().1.alpn_protocol() == Some(b"h2")
    }
}

impl Connection for ReceiverStream {
    fn connected(&self) -> Connected {
        let connected = Connected::new().extra(self.exchange.clone());
        if self.is_http2() {
            connected.negotiated_h2()
        } else {
            connected
        }
    }
}

impl AsyncRead for ReceiverStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if let Err(error) = ready!(Pin::new(&mut self.tls).poll_read(cx, buf)) {
            match of_tls(&error) {
                ConnectError::Closed => {}
                failure => self.exchange.failed(failure),
            }
            return Poll::Ready(Err(error));
        }
        if !self.is_http2() {
            self.exchange.received(&buf.filled()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ReceiverStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.tls.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write_vectored(cx, bufs)
    }
}

/// The number of bytes that a receiver may still send on a connection.
#[derive(Clone)]
pub(super) struct Allowance(Arc<AtomicU64>);

impl Allowance {
    fn new() -> Self {
        Self(Arc::new(AtomicU64::new(FIRST_ALLOWANCE)))
    }

    /// Adds the allowance of one request.
    pub(super) fn grant(&self) {
        self.update(|left| Some(left.saturating_add(ALLOWANCE_PER_REQUEST).min(LARGEST_ALLOWANCE)));
    }

    /// Subtracts received bytes. Returns whether they were allowed.
    fn spend(&self, bytes: u64) -> bool {
        self.update(|left| left.checked_sub(bytes))
    }

    fn update(&self, change: impl Fn(u64) -> Option<u64>) -> bool {
        // Relaxed is enough: no other data depends on this number.
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, change)
            .is_ok()
    }
}

/// The stream to a receiver.
type MeteredStream = Join<Metered, OwnedWriteHalf>;

/// What a receiver sends. Fails once that is more than allowed.
struct Metered {
    inner: OwnedReadHalf,
    allowance: Allowance,
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        if self.allowance.spend((buf.filled().len() - before) as u64) {
            Poll::Ready(Ok(()))
        } else {
            Poll::Ready(Err(io::Error::other(ConnectError::Flood)))
        }
    }
}
