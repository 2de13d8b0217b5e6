//! HTTP/1.1 on a listener: limits on connections and request heads, deadlines for slow peers, and a graceful shutdown. A connection that is
//! upgraded to another protocol leaves all of that to its handler.
//!
//! - `admission`: which connections are open, and which is closed to make room;
//! - `arriving`: the body of a request;
//! - `forwarded`: where a request comes from, behind proxies;
//! - [`tls`]: the server's certificate;
//! - `stream`: the deadline of a peer that does not read, and the responses to heads that cannot be parsed.

mod admission;
mod arriving;
mod forwarded;
mod stream;
#[cfg(test)]
mod tests;
pub mod tls;

use std::{
    convert::Infallible,
    error::Error,
    fmt::Write as _,
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use hyper::{
    body::{Body as _, Incoming},
    server::conn::http1,
    service::Service,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use ipnet::IpNet;
use rustix::{io::Errno, net::sockopt::set_ipv6_v6only};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::arriving::Arriving;
use self::{
    admission::{Admission, Admitted, NoRoom},
    stream::{Impatient, Refusing},
    tls::Certificate,
};

/// Timeout for the next head on a connection that has been used. Longer than the 60 to 600 s after which load balancers close idle
/// connections, so that the load balancer closes first and sends no request on a closed connection. Where room is needed, idle
/// connections are closed before.
const NEXT_HEAD_TIMEOUT: Duration = Duration::from_secs(620);
/// Largest head of a request, in bytes, and so the most memory that a connection takes before its request is read.
const MAX_HEAD: usize = 32 * 1024;
/// Most headers of a request.
const MAX_HEADERS: usize = 100;
/// Connections that the kernel keeps until they are accepted, as in the standard library.
const BACKLOG: u32 = 1024;
/// Pause after a failed accept, usually because the process has run out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a refused client may take to read its answer, and to stop sending. A connection that is closed while it is still
/// sending may lose the answer (RFC 9112, section 9.6).
const LINGER: Duration = Duration::from_secs(1);
/// Bytes of a refused request that are read and discarded.
const MAX_DISCARDED: u64 = 1024 * 1024;

/// What a server grants its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Maximum number of simultaneous connections. Beyond it, the one that has been idle the longest is closed.
    pub connections: usize,
    /// The same per address; an IPv6 /64 network counts as one address.
    pub per_peer: usize,
    /// Addresses of proxies, which serve many clients: `per_peer` does not apply to them, and they say where a request comes from.
    pub trusted: Vec<IpNet>,
    /// Timeout for the TLS handshake and the first head of a connection.
    pub first_head: Duration,
    /// How long a write may make no progress before the connection is closed.
    pub write_progress: Duration,
}

impl ConnectionLimits {
    /// These numbers of connections, no trusted proxies, and the usual times.
    pub fn of(connections: usize, per_peer: usize) -> Self {
        Self {
            connections,
            per_peer,
            trusted: Vec::new(),
            first_head: Duration::from_secs(10),
            write_progress: Duration::from_secs(20),
        }
    }
}

/// Listens at an address: at `[::]` for IPv4 as well, whatever the system's default is, and for IPv4 alone where there is no IPv6.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    };
    let socket = match socket {
        Err(error)
            if address.ip() == IpAddr::from(Ipv6Addr::UNSPECIFIED)
                && error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error()) =>
        {
            return listen((Ipv4Addr::UNSPECIFIED, address.port()).into());
        }
        socket => socket?,
    };
    socket.set_reuseaddr(true)?;
    if address.ip() == IpAddr::from(Ipv6Addr::UNSPECIFIED) {
        set_ipv6_v6only(&socket, false)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// The address that a request came from, as a request extension: that of the client, or of the nearest proxy that is not
/// [trusted](ConnectionLimits::trusted). An IPv4 address is one also where the listener is that of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

/// The answer to a request whose head cannot be parsed (400), did not arrive in time (408) or is too large (431).
pub type Unreadable = fn(StatusCode) -> Response<Bytes>;

/// How to serve connections.
#[derive(Clone, Debug)]
pub struct Options {
    /// What clients are granted.
    pub limits: ConnectionLimits,
    /// The answer to an unreadable request.
    pub unreadable: Unreadable,
    /// The certificate, for TLS; without one the server speaks plain HTTP.
    pub certificate: Option<Certificate>,
    /// How long requests that are running at the shutdown may take to finish.
    pub grace: Duration,
    /// Set before the shutdown: each answer is then the last one on its connection, so that clients open new
    /// connections, which a load balancer passes to other replicas.
    pub leaving: Arc<AtomicBool>,
}

/// Serves until `shutdown`. Then it accepts nothing more, closes idle connections, and gives running requests time to finish.
pub async fn connections<S, B, F>(
    listener: TcpListener,
    service: S,
    options: Options,
    shutdown: CancellationToken,
) where
    S: Service<Request<Arriving>, Response = Response<B>, Error = Infallible, Future = F>
        + Clone
        + Send
        + Sync
        + 'static,
    F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
    B: hyper::body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(NEXT_HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS);
    let grace = options.grace;
    let reloading = options.certificate.clone().map(|certificate| {
        let shutdown = shutdown.clone();
        tokio::spawn(async move { certificate.reload_until(&shutdown).await })
    });
    let server = Server {
        tls: options.certificate.as_ref().map(Certificate::acceptor),
        admission: Arc::new(Admission::new(options.limits.clone())),
        http: Arc::new(http),
        options: Arc::new(options),
        shutdown,
    };
    let running = TaskTracker::new();
    while let Some((stream, admitted)) = server.next(&listener).await {
        let (server, service) = (server.clone(), service.clone());
        running.spawn(async move { server.serve(stream, service, admitted).await });
    }
    drop(listener);
    if let Some(reloading) = reloading {
        reloading.abort();
    }
    running.close();
    if timeout(grace, running.wait()).await.is_err() {
        tracing::warn!("requests were still running after the grace period");
    }
}

/// What all connections of a listener share.
#[derive(Clone)]
struct Server {
    admission: Arc<Admission>,
    http: Arc<http1::Builder>,
    options: Arc<Options>,
    tls: Option<TlsAcceptor>,
    shutdown: CancellationToken,
}

impl Server {
    /// The next connection; `None` at the shutdown.
    async fn next(&self, listener: &TcpListener) -> Option<(TcpStream, Admitted)> {
        loop {
            let accepted = tokio::select! {
                () = self.shutdown.cancelled() => return None,
                accepted = listener.accept() => accepted,
            };
            let (stream, address) = match accepted {
                Ok((stream, address)) => (stream, address.ip().to_canonical()),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // A response is written at once, so Nagle's algorithm would only delay it.
            let _ = stream.set_nodelay(true);
            let admitted = tokio::select! {
                () = self.shutdown.cancelled() => return None,
                admitted = self.admit(address) => admitted,
            };
            if let Some(admitted) = admitted {
                return Some((stream, admitted));
            }
            tracing::debug!(%address, "closed a connection beyond its peer's share");
        }
    }

    /// Waits for room; `None` if the peer has used up its share.
    async fn admit(&self, address: IpAddr) -> Option<Admitted> {
        loop {
            let mut no_room = NoRoom::Server;
            for _ in 0..self.admission.looks() {
                match self.admission.admit(address) {
                    Ok(admitted) => return Some(admitted),
                    Err(reason) => no_room = reason,
                }
                tokio::task::yield_now().await;
            }
            match no_room {
                NoRoom::Peer => return None,
                NoRoom::Server => self.admission.room().await,
            }
        }
    }

    async fn serve<S, B, F>(&self, stream: TcpStream, service: S, admitted: Admitted)
    where
        S: Service<Request<Arriving>, Response = Response<B>, Error = Infallible, Future = F> + Send + Sync,
        F: Future<Output = Result<Response<B>, Infallible>> + Send,
        B: hyper::body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let limits = &self.options.limits;
        let deadline = Instant::now() + limits.first_head;
        let peer = stream
            .peer_addr()
            .ok()
            .map(|address| Peer(address.ip().to_canonical()));
        let stream = Impatient::new(stream, limits.write_progress);
        let Some(tls) = &self.tls else {
            return self.speak(stream, service, &admitted, peer, deadline).await;
        };
        let handshake = tokio::select! {
            handshake = timeout_at(deadline, tls.accept(stream)) => handshake,
            () = admitted.must_close() => return,
            () = self.shutdown.cancelled() => return,
        };
        match handshake {
            Ok(Ok(stream)) => self.speak(stream, service, &admitted, peer, deadline).await,
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(late) => tracing::debug!(%late, "a TLS handshake took too long"),
        }
    }

    /// Speaks HTTP until the connection ends.
    async fn speak<I, S, B, F>(
        &self,
        stream: I,
        service: S,
        admitted: &Admitted,
        peer: Option<Peer>,
        first_head: Instant,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        S: Service<Request<Arriving>, Response = Response<B>, Error = Infallible, Future = F> + Send + Sync,
        F: Future<Output = Result<Response<B>, Infallible>> + Send,
        B: hyper::body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let unreadable = self.options.unreadable;
        let stream = Refusing::new(stream, move |status| on_the_wire(unreadable(status)));
        let service = hyper::service::service_fn(|request: Request<Incoming>| {
            let mut request = request.map(|body| Arriving::new(body, admitted));
            if let Some(Peer(address)) = peer {
                let client = forwarded::client(address, request.headers(), &self.options.limits.trusted);
                request.extensions_mut().insert(Peer(client));
            }
            // hyper closes a connection on which an unread body is still to come, and does not say so.
            let is_left_unread = request.version() < Version::HTTP_2
                && (request.method().is_safe() || request.method() == Method::DELETE)
                && !request.body().is_end_stream();
            let answer = service.call(request);
            answer.map(move |answer| {
                admitted.end();
                answer.map(|mut answer| {
                    if is_left_unread || self.options.leaving.load(Ordering::Relaxed) {
                        answer
                            .headers_mut()
                            .insert(header::CONNECTION, HeaderValue::from_static("close"));
                    }
                    answer
                })
            })
        });
        let connection = self.http.serve_connection(TokioIo::new(stream), service);
        let mut connection = connection.with_upgrades();
        let (mut first_head, mut is_closing) = (Some(first_head), false);
        // The connection is woken for each request. In a set of futures, the signal awaited beside it is polled only
        // when it is woken itself.
        let mut signals = FuturesUnordered::new();
        let is_late = loop {
            if signals.is_empty() {
                signals.push(self.signal(admitted, first_head, is_closing));
            }
            tokio::select! {
                biased;
                ended = &mut connection => {
                    let error = ended.err();
                    if let Some(error) = &error {
                        tracing::debug!(%error, "a connection ended early");
                    }
                    break error.is_some_and(|error| error.is_timeout());
                }
                Some(signal) = signals.next() => match signal {
                    Signal::MakeRoom => return,
                    Signal::FirstHeadDue if !admitted.has_asked() => break true,
                    Signal::FirstHeadDue => first_head = None,
                    Signal::Shutdown => {
                        is_closing = true;
                        std::pin::Pin::new(&mut connection).graceful_shutdown();
                    }
                }
            }
        };
        drop(signals);
        // Whoever took over an upgraded connection has its stream.
        let Some(parts) = connection.into_parts() else {
            return;
        };
        let mut stream = parts.io.into_inner();
        // A connection that ends before the first byte of a request needs no answer.
        if is_late && !parts.read_buf.is_empty() {
            let answer = on_the_wire(unreadable(StatusCode::REQUEST_TIMEOUT));
            let answering = async {
                stream.write_all(&answer).await?;
                stream.shutdown().await
            };
            tokio::select! {
                _ = timeout(LINGER, answering) => {}
                () = admitted.must_close() => {}
            }
        } else if stream.has_refused() {
            let mut rest = stream.take(MAX_DISCARDED);
            let mut nowhere = tokio::io::sink();
            tokio::select! {
                _ = timeout(LINGER, tokio::io::copy(&mut rest, &mut nowhere)) => {}
                () = admitted.must_close() => {}
            }
        }
    }

    /// The next signal for a connection, apart from what its peer sends.
    async fn signal(&self, admitted: &Admitted, first_head: Option<Instant>, is_closing: bool) -> Signal {
        let first_head_due = async {
            match first_head {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = admitted.must_close() => Signal::MakeRoom,
            () = first_head_due => Signal::FirstHeadDue,
            () = self.shutdown.cancelled(), if !is_closing => Signal::Shutdown,
        }
    }
}

enum Signal {
    /// The connection has to make room for another.
    MakeRoom,
    /// The first head must have arrived by now.
    FirstHeadDue,
    /// The server shuts down.
    Shutdown,
}

/// The bytes of an answer that ends its connection.
fn on_the_wire(mut answer: Response<Bytes>) -> Vec<u8> {
    let status = answer.status();
    let length = answer.body().len();
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_LENGTH, length.into());
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    if let Ok(date) = HeaderValue::try_from(httpdate::fmt_http_date(std::time::SystemTime::now())) {
        headers.insert(header::DATE, date);
    }
    let mut head = String::new();
    // Writing to a string cannot fail.
    let _ = write!(head, "HTTP/1.1 {status}\r\n");
    let mut bytes = head.into_bytes();
    for (name, value) in answer.headers() {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(answer.body());
    bytes
}
