//! Connects to receivers: look-up, TCP and TLS under one deadline, and a stream that a receiver cannot flood.

use std::{
    error::Error as StdError,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::connect::{Connected, Connection, HttpConnector},
    rt::TokioIo,
};
use rustls::{ClientConfig, pki_types::ServerName};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::Instant,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tower::Service;

use super::resolver::GuardedResolver;

/// What the kernel holds back for us on a connection, in bytes; all that is ever read at a time is smaller.
const RECEIVE_BUFFER: usize = 64 * 1024;
/// What a receiver may send before we send anything, in bytes: room for the longest of handshakes.
const FIRST_ALLOWANCE: u64 = 128 * 1024;
/// What it may send more for each byte that we send. A request has some 800 bytes, and an answer as far as it is read at
/// most 40 KiB; what answers without being asked (1xx without end, frames without meaning) ends here, not at the deadline.
const ALLOWANCE_PER_BYTE: u64 = 64;
/// The most that it may have left, in bytes, however much was sent on the connection.
const LARGEST_ALLOWANCE: u64 = 2 * 1024 * 1024;

/// Why there is no connection.
#[derive(Clone, Debug, Error)]
pub enum ConnectError {
    /// The name leads to forbidden addresses alone.
    #[error("no address of the name is allowed")]
    Forbidden,
    /// The name has no address.
    #[error("the name has no address")]
    NoAddress,
    /// The name could not be looked up.
    #[error("the name could not be looked up")]
    Lookup,
    /// No address could be dialled.
    #[error("{0}")]
    Tcp(&'static str),
    /// No address was reached in time.
    #[error("no connection in time")]
    TcpTimeout(Duration),
    /// The handshake did not end in time.
    #[error("no TLS in time")]
    TlsTimeout(Duration),
    /// The handshake failed.
    #[error(transparent)]
    Tls(rustls::Error),
    /// The connection was closed in the handshake.
    #[error("closed")]
    Closed,
    /// The receiver sent more than it may.
    #[error("more was sent than is allowed")]
    Flood,
}

/// The first error of type `E` in a chain of causes, looking into I/O errors too, which hide theirs.
pub(super) fn find<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        let hidden = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match hidden {
            Some(hidden) => Some(hidden),
            None => error.source(),
        };
    }
    None
}

/// Makes connections for the HTTP client. Cheap to clone.
#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector<GuardedResolver>,
    tls: TlsConnector,
    timeout: Duration,
}

impl Connector {
    pub(super) fn new(resolver: GuardedResolver, tls: Arc<ClientConfig>, timeout: Duration) -> Self {
        let mut tcp = HttpConnector::new_with_resolver(resolver);
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // Divided among the addresses, so that a dead first one leaves time for the others.
        tcp.set_connect_timeout(Some(timeout));
        tcp.set_recv_buffer_size(Some(RECEIVE_BUFFER));
        Self {
            tcp,
            tls: tls.into(),
            timeout,
        }
    }

    async fn connect(mut self, uri: Uri) -> Result<ReceiverStream, ConnectError> {
        let deadline = Instant::now() + self.timeout;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let tcp = tokio::time::timeout_at(deadline, self.tcp.call(uri))
            .await
            .map_err(|_| ConnectError::TcpTimeout(self.timeout))?
            .map_err(|error| self.of_tcp(&error))?;
        let name = ServerName::try_from(host).map_err(|_| ConnectError::NoAddress)?;
        let stream = Metered::new(tcp.into_inner());
        let tls = tokio::time::timeout_at(deadline, self.tls.connect(name, stream))
            .await
            .map_err(|_| ConnectError::TlsTimeout(self.timeout))?
            .map_err(|error| of_tls(&error))?;
        Ok(ReceiverStream(TokioIo::new(tls)))
    }

    fn of_tcp(&self, error: &(dyn StdError + 'static)) -> ConnectError {
        if let Some(error) = find::<ConnectError>(error) {
            return error.clone();
        }
        match find::<io::Error>(error).map(io::Error::kind) {
            Some(io::ErrorKind::TimedOut) => ConnectError::TcpTimeout(self.timeout),
            Some(io::ErrorKind::ConnectionRefused) => ConnectError::Tcp("it was refused"),
            Some(io::ErrorKind::ConnectionReset) => ConnectError::Tcp("it was reset"),
            Some(io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) => {
                ConnectError::Tcp("its address cannot be reached")
            }
            _ => {
                tracing::debug!(error, "no connection to a receiver");
                ConnectError::Tcp("its address cannot be dialled")
            }
        }
    }
}

fn of_tls(error: &io::Error) -> ConnectError {
    if let Some(error) = find::<ConnectError>(error) {
        return error.clone();
    }
    find::<rustls::Error>(error).map_or(ConnectError::Closed, |error| ConnectError::Tls(error.clone()))
}

impl Service<Uri> for Connector {
    type Response = ReceiverStream;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<ReceiverStream, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}

/// A connection to a receiver, as the HTTP client takes it.
pub(super) struct ReceiverStream(TokioIo<TlsStream<Metered<TcpStream>>>);

impl Connection for ReceiverStream {
    fn connected(&self) -> Connected {
        let connected = Connected::new();
        if self.0.inner().get_ref().1.alpn_protocol() == Some(b"h2") {
            connected.negotiated_h2()
        } else {
            connected
        }
    }
}

impl Read for ReceiverStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl Write for ReceiverStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }
}

/// A stream that fails once more was received than what was sent allows.
struct Metered<S> {
    inner: S,
    allowance: u64,
}

impl<S> Metered<S> {
    fn new(inner: S) -> Self {
        Self {
            inner,
            allowance: FIRST_ALLOWANCE,
        }
    }

    fn sent(&mut self, bytes: usize) {
        self.allowance = self
            .allowance
            .saturating_add(ALLOWANCE_PER_BYTE.saturating_mul(bytes as u64))
            .min(LARGEST_ALLOWANCE);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let received = (buf.filled().len() - before) as u64;
        match self.allowance.checked_sub(received) {
            Some(rest) => {
                self.allowance = rest;
                Poll::Ready(Ok(()))
            }
            None => Poll::Ready(Err(io::Error::other(ConnectError::Flood))),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, buf))?;
        self.sent(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write_vectored(cx, bufs))?;
        self.sent(written);
        Poll::Ready(Ok(written))
    }
}
