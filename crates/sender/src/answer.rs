//! What a receiver has answered over HTTP/1, read beside the HTTP client.
//!
//! Any status line counts, whatever follows it (decisions, section 5), but an HTTP client reports nothing of an answer that it
//! cannot parse: a blank before a header's colon, lengths that contradict each other. It could be told to accept some of that,
//! but would then use the connection again, although sender and receiver may disagree on where the answer ends. So the client
//! stays strict, the stream below it remembers the head of the answer ([`AnswerHead`]), and the connection is dropped.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::Extensions;
use hyper::body::{Body, Frame, SizeHint};
use hyper_util::client::legacy::connect::CaptureConnection;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{connect_error::ConnectError, connector::Allowance};

/// Longest line of a head that is remembered, in bytes; the rest of a longer one is dropped.
const MAX_LINE: usize = 1024;

/// The head of an answer, as far as it has been received: what decides the outcome of an attempt.
#[derive(Debug, Default)]
pub struct AnswerHead {
    part: Part,
    /// The line that has not ended yet.
    line: Vec<u8>,
    status: Option<(u16, Instant)>,
    location: Option<Vec<u8>>,
    retry_after: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    StatusLine,
    Headers,
    /// The head has ended, or this is not HTTP.
    Rest,
}

impl AnswerHead {
    /// Continues with these bytes.
    pub fn read(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while self.part != Part::Rest && !rest.is_empty() {
            let end = rest.iter().position(|byte| *byte == b'\n');
            let piece = &rest[..end.unwrap_or(rest.len())];
            let room = MAX_LINE - self.line.len();
            self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            let Some(end) = end else {
                // A status line may be cut off behind its code.
                self.read_status();
                return;
            };
            self.end_line();
            rest = &rest[end + 1..];
        }
    }

    /// The status of the answer, and when it arrived.
    pub fn status(&self) -> Option<(u16, Instant)> {
        self.status.filter(|(status, _)| !is_interim(*status))
    }

    /// The value of the `Location` header.
    pub fn location(&self) -> Option<&[u8]> {
        self.location.as_deref()
    }

    /// The value of the `Retry-After` header.
    pub fn retry_after(&self) -> Option<&[u8]> {
        self.retry_after.as_deref()
    }

    fn read_status(&mut self) {
        if self.part == Part::StatusLine {
            let status = status_of(&self.line);
            if status != self.status.map(|(status, _)| status) {
                self.status = status.map(|status| (status, Instant::now()));
            }
        }
    }

    fn end_line(&mut self) {
        self.read_status();
        let line = std::mem::take(&mut self.line);
        let line = line.trim_ascii_end();
        self.part = match (self.part, self.status) {
            // Empty lines may precede a status line (RFC 9112, section 2.2).
            (Part::StatusLine, _) if line.is_empty() => Part::StatusLine,
            (Part::StatusLine, Some(_)) => Part::Headers,
            (Part::Headers, Some((status, _))) if line.is_empty() && is_interim(status) => {
                *self = Self::default();
                return;
            }
            (Part::Headers, _) if !line.is_empty() => {
                self.read_header(line);
                Part::Headers
            }
            _ => Part::Rest,
        };
    }

    fn read_header(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return;
        };
        let (name, value) = (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii());
        let header = if name.eq_ignore_ascii_case(b"location") {
            &mut self.location
        } else if name.eq_ignore_ascii_case(b"retry-after") {
            &mut self.retry_after
        } else {
            return;
        };
        header.get_or_insert_with(|| value.to_vec());
    }
}

/// Whether another status line follows the head with this status.
fn is_interim(status: u16) -> bool {
    (100..200).contains(&status) && status != 101
}

/// The code in a status line: `HTTP/`, a version, blanks, three digits.
fn status_of(line: &[u8]) -> Option<u16> {
    let (protocol, rest) = line.split_at_checked(5)?;
    if !protocol.eq_ignore_ascii_case(b"http/") {
        return None;
    }
    let version = rest.iter().position(u8::is_ascii_whitespace)?;
    let is_version = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
    if version == 0 || !rest[..version].iter().all(is_version) {
        return None;
    }
    let (code, rest) = rest[version..].trim_ascii_start().split_at_checked(3)?;
    if rest.first().is_some_and(u8::is_ascii_digit) {
        return None;
    }
    let status = std::str::from_utf8(code).ok()?.parse().ok()?;
    (100..=999).contains(&status).then_some(status)
}

/// What an attempt shares with the stream that its answer comes from.
pub(super) type SharedHead = Arc<Mutex<AnswerHead>>;

/// What a connection shares with the requests on it.
#[derive(Clone)]
pub(super) struct Exchange {
    pub(super) allowance: Allowance,
    /// Where the answer to the latest request is noted down.
    answer: Arc<Mutex<SharedHead>>,
    /// What ended the connection: an HTTP/2 client passes on only the text of it.
    failure: Arc<Mutex<Option<ConnectError>>>,
}

impl Exchange {
    pub(super) fn new(allowance: Allowance) -> Self {
        Self {
            allowance,
            answer: Arc::default(),
            failure: Arc::default(),
        }
    }

    /// What a connection shares.
    pub(super) fn of(connection: &CaptureConnection) -> Option<Self> {
        let mut extras = Extensions::new();
        connection.connection_metadata().as_ref()?.get_extras(&mut extras);
        extras.remove()
    }

    pub(super) fn failed(&self, error: ConnectError) {
        *self.failure.lock() = Some(error);
    }

    pub(super) fn failure(&self) -> Option<ConnectError> {
        self.failure.lock().clone()
    }

    /// A request is about to be written to the connection: what is read from now on is the answer to it.
    fn begin(&self, answer: &SharedHead) {
        self.allowance.grant();
        *self.answer.lock() = answer.clone();
    }

    pub(super) fn received(&self, bytes: &[u8]) {
        self.answer.lock().lock().read(bytes);
    }
}

/// The body of a request. The connection asks for it when it begins to send the request, which is when the answer to the previous
/// one is certainly over.
pub(super) struct Payload {
    bytes: Option<Bytes>,
    connection: CaptureConnection,
    answer: SharedHead,
}

impl Payload {
    pub(super) fn new(bytes: Bytes, connection: CaptureConnection, answer: SharedHead) -> Self {
        Self {
            bytes: Some(bytes),
            connection,
            answer,
        }
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(bytes) = self.bytes.take() else {
            return Poll::Ready(None);
        };
        if let Some(exchange) = Exchange::of(&self.connection) {
            exchange.begin(&self.answer);
        }
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn status(answer: &[u8]) -> Option<u16> {
        let mut head = AnswerHead::default();
        head.read(answer);
        head.status().map(|(status, _)| status)
    }

    #[test]
    fn a_status_line_counts_whatever_follows_it() {
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\n", Some(200)),
            ("HTTP/1.1 200 OK\n\n", Some(200)),
            ("HTTP/1.1 200\r\n\r\n", Some(200)),
            ("HTTP/1.1 200", Some(200)),
            ("HTTP/1.1 204 \x01\x7f\r\n: \r\n\r\n", Some(204)),
            (
                "HTTP/1.0 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                Some(202),
            ),
            ("\r\n\nHTTP/1.1 200 OK\r\n\r\n", Some(200)),
            ("http/1.1\t 299 Odd\r\n\r\n", Some(299)),
            ("HTTP/2 200\r\n\r\n", Some(200)),
            ("HTTP/1.1 200OK\r\n\r\n", Some(200)),
            ("HTTP/1.1 503 Busy\r\n folded\r\n\r\n", Some(503)),
            ("HTTP/1.1 101 Switching Protocols\r\n\r\n", Some(101)),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\n\r\n",
                Some(201),
            ),
            (
                "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 500 Oh\r\n",
                Some(500),
            ),
            ("HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 500 Oh\r\n\r\n", Some(200)),
            // Not an answer, or not yet.
            ("", None),
            ("\r\n", None),
            ("HTTP/1.1 20", None),
            ("HTTP/1.1 100 Continue\r\n\r\n", None),
            ("HTTP/1.1 102 Processing\r\nX: y\r\n", None),
            ("HTTP/1.1 2000 OK\r\n", None),
            ("HTTP/1.1 099 OK\r\n", None),
            ("HTTP/1.1 +20 OK\r\n", None),
            ("HTTP/1.1 OK\r\n", None),
            ("HTTP/ 200 OK\r\n", None),
            ("HTTP 200 OK\r\n", None),
            ("ICY 200 OK\r\n", None),
            ("200 OK\r\n", None),
            ("{\"status\": 200}", None),
            ("SSH-2.0-x\r\nHTTP/1.1 200 OK\r\n\r\n", None),
        ] {
            assert_eq!(status(answer.as_bytes()), expected, "{answer:?}");
        }
    }

    #[test]
    fn headers_are_read_although_others_are_no_headers() {
        let mut head = AnswerHead::default();
        head.read(b"HTTP/1.1 302 Found\r\nno colon\r\nRetry-After : 60 \r\nretry-after: 9\r\nLOCATION:/a:b\r\n\r\nLocation: c\r\n");
        assert_eq!(head.retry_after(), Some(&b"60"[..]));
        assert_eq!(head.location(), Some(&b"/a:b"[..]));
    }

    #[test]
    fn of_an_interim_answer_nothing_is_kept() {
        let mut head = AnswerHead::default();
        head.read(b"HTTP/1.1 103 Early Hints\r\nRetry-After: 60\r\n\r\nHTTP/1.1 503 Busy\r\n\r\n");
        assert_eq!((head.status().unwrap().0, head.retry_after()), (503, None));
    }

    #[test]
    fn a_line_without_end_takes_no_more_than_a_little_memory() {
        let mut head = AnswerHead::default();
        head.read(b"HTTP/1.1 200 OK\r\nLocation: ");
        for _ in 0..1000 {
            head.read(&[b'x'; 1000]);
        }
        assert_eq!(head.line.len(), MAX_LINE);
        head.read(b"\r\nRetry-After: 1\r\n");
        assert!(head.location().unwrap().len() < MAX_LINE);
        assert_eq!(head.retry_after(), Some(&b"1"[..]));
    }

    proptest! {
        #[test]
        fn where_the_pieces_of_an_answer_end_does_not_matter(
            answer in "(\r\n)?(HTTP/1.1 1[0-9]{2}[ a-z]{0,3}\r?\n\r?\n){0,2}(HTTP/1.1 [0-9]{1,4}|.{0,9})[ a-z]{0,3}\r?\n(Location ?: ?.{0,5}\r?\n|Retry-After: 1\r\n|.{0,5}\r?\n){0,4}",
            cut in any::<prop::sample::Index>(),
        ) {
            let (mut whole, mut pieces) = (AnswerHead::default(), AnswerHead::default());
            whole.read(answer.as_bytes());
            let (first, second) = answer.as_bytes().split_at(cut.index(answer.len()));
            pieces.read(first);
            pieces.read(second);
            prop_assert_eq!(whole.status().map(|(status, _)| status), pieces.status().map(|(status, _)| status));
            prop_assert_eq!(whole.location(), pieces.location());
            prop_assert_eq!(whole.retry_after(), pieces.retry_after());
        }
    }
}
