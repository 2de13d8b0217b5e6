//! Streams around a connection: one sets a deadline for a peer that does not read, the other replaces hyper's own responses.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::StatusCode;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// A stream that fails once a write has made no progress for some time, because the peer does not read.
pub(super) struct Impatient<S> {
    inner: S,
    patience: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    pub(super) fn new(inner: S, patience: Duration) -> Self {
        Self {
            inner,
            patience,
            stalled: None,
        }
    }

    fn unless_stalled<T>(
        &mut self,
        cx: &mut Context<'_>,
        progress: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            self.stalled = None;
            return progress;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.unless_stalled(cx, progress)
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
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.unless_stalled(cx, progress)
    }
}

/// A stream that replaces hyper's own answers to heads that it cannot parse. hyper has no hook for them.
pub(super) struct Refusing<S, R> {
    inner: S,
    /// The bytes to write in place of an answer with this status.
    refusal: R,
    /// What is left to write of a replacement.
    replacement: Option<(Vec<u8>, usize)>,
    has_refused: bool,
}

impl<S, R> Refusing<S, R> {
    pub(super) fn new(inner: S, refusal: R) -> Self {
        Self {
            inner,
            refusal,
            replacement: None,
            has_refused: false,
        }
    }

    /// Whether an answer was replaced.
    pub(super) fn has_refused(&self) -> bool {
        self.has_refused
    }
}

impl<S: AsyncWrite + Unpin, R: Fn(StatusCode) -> Vec<u8>> Refusing<S, R> {
    /// Writes the replacement if `buf` is one of hyper's own answers.
    fn poll_refuse(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Option<Poll<io::Result<usize>>> {
        if self.replacement.is_none() {
            let status = status_of_own(buf)?;
            self.has_refused = true;
            self.replacement = Some(((self.refusal)(status), 0));
        }
        let (bytes, written) = self.replacement.as_mut()?;
        while *written < bytes.len() {
            match Pin::new(&mut self.inner).poll_write(cx, &bytes[*written..]) {
                Poll::Ready(Ok(0)) => return Some(Poll::Ready(Err(io::ErrorKind::WriteZero.into()))),
                Poll::Ready(Ok(count)) => *written += count,
                Poll::Ready(Err(error)) => return Some(Poll::Ready(Err(error))),
                Poll::Pending => return Some(Poll::Pending),
            }
        }
        self.replacement = None;
        Some(Poll::Ready(Ok(buf.len())))
    }
}

/// The status of hyper's own answer to a head that it cannot parse: an answer with neither a body nor a Content-Type.
fn status_of_own(answer: &[u8]) -> Option<StatusCode> {
    let head = answer.strip_prefix(b"HTTP/1.")?;
    let status = [
        StatusCode::BAD_REQUEST,
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    ]
    .into_iter()
    .find(|status| head.get(2..5) == Some(status.as_str().as_bytes()))?;
    let head = head.strip_suffix(b"\r\n\r\n")?.to_ascii_lowercase();
    let has_type = head.windows(13).any(|window| window == b"content-type:");
    (!has_type && !head.windows(4).any(|window| window == b"\r\n\r\n")).then_some(status)
}

impl<S: AsyncRead + Unpin, R: Unpin> AsyncRead for Refusing<S, R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin, R: Fn(StatusCode) -> Vec<u8> + Unpin> AsyncWrite for Refusing<S, R> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.poll_refuse(cx, buf) {
            Some(refused) => refused,
            None => Pin::new(&mut self.inner).poll_write(cx, buf),
        }
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
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = bufs.iter().find(|buf| !buf.is_empty());
        match first.and_then(|buf| self.poll_refuse(cx, buf)) {
            Some(refused) => refused,
            None => Pin::new(&mut self.inner).poll_write_vectored(cx, bufs),
        }
    }
}
