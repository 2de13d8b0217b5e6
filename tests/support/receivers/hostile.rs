//! Hostile receivers.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::authority::{Authority, NAMES};

/// Interval between the bytes of slow receivers.
const PACE: Duration = Duration::from_secs(1);
/// Send buffer of flooders, small so that nearly all bytes counted as sent were received.
const SEND_BUFFER: u32 = 32 * 1024;
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n";

/// The behaviour of a hostile receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hostile {
    /// Accepts the connection and does nothing.
    SilentTcp,
    /// Sends its part of the TLS handshake at one byte a second.
    SlowHandshake,
    /// Does not speak TLS.
    GarbageForTls,
    /// Speaks TLS 1.1 at best.
    OldTls,
    /// A certificate that expired in 2001.
    ExpiredCertificate,
    /// A self-signed certificate.
    SelfSignedCertificate,
    /// A certificate for another name.
    WrongNameCertificate,
    /// Resets the connection as soon as it is established.
    ResetOnAccept,
    /// Takes the request and never answers.
    SilentHttp,
    /// Takes an HTTP/2 request and never answers.
    SilentHttp2,
    /// The head of an interim answer at one byte a second.
    SlowHead,
    /// A status line that is too late.
    LateStatus(Duration),
    /// Resets the connection in the middle of the status line.
    ResetInStatusLine,
    /// Resets the connection in the middle of the headers.
    ResetInHead,
    /// Resets the connection in the middle of the body.
    ResetInBody,
    /// Random bytes instead of HTTP.
    GarbageForHttp,
    /// A header without end.
    EndlessHeader,
    /// Headers without end.
    EndlessHeaders,
    /// Header frames without end over HTTP/2.
    EndlessHttp2Headers,
    /// Ping frames without end over HTTP/2.
    PingFlood,
    /// `102 Processing` without end.
    InformationalFlood,
    /// `103 Early Hints` without end over HTTP/2.
    InformationalHttp2Flood,
    /// Refuses the stream over HTTP/2, which invites a retry.
    RefusedStream,
    /// Sends GOAWAY over HTTP/2 without processing the request, which invites a retry.
    GoAway,
    /// 200, and the body at one byte a second.
    SlowBody,
    /// 200, and a body without end.
    EndlessBody,
    /// 200, and a body of 512 MiB.
    HugeBody,
    /// 200, and some kilobytes that decompress to gigabytes.
    GzipBomb,
}

impl Hostile {
    /// All behaviours. `late` is the delay of the late status line.
    pub fn all(late: Duration) -> Vec<Self> {
        use Hostile::*;
        vec![
            SilentTcp,
            SlowHandshake,
            GarbageForTls,
            OldTls,
            ExpiredCertificate,
            SelfSignedCertificate,
            WrongNameCertificate,
            ResetOnAccept,
            SilentHttp,
            SilentHttp2,
            SlowHead,
            LateStatus(late),
            ResetInStatusLine,
            ResetInHead,
            ResetInBody,
            GarbageForHttp,
            EndlessHeader,
            EndlessHeaders,
            EndlessHttp2Headers,
            PingFlood,
            InformationalFlood,
            InformationalHttp2Flood,
            RefusedStream,
            GoAway,
            SlowBody,
            EndlessBody,
            HugeBody,
            GzipBomb,
        ]
    }

    /// The label of the expected outcome.
    pub fn outcome(self) -> &'static str {
        match self {
            Self::SilentTcp | Self::SlowHandshake => "tls_timeout",
            Self::GarbageForTls | Self::OldTls => "tls",
            Self::ExpiredCertificate => "tls_expired",
            Self::SelfSignedCertificate => "tls_unknown_issuer",
            Self::WrongNameCertificate => "tls_wrong_name",
            Self::ResetOnAccept | Self::ResetInStatusLine | Self::RefusedStream | Self::GoAway => "reset",
            Self::SilentHttp | Self::SilentHttp2 | Self::SlowHead | Self::LateStatus(_) => "timeout",
            Self::GarbageForHttp
            | Self::EndlessHttp2Headers
            | Self::PingFlood
            | Self::InformationalFlood
            | Self::InformationalHttp2Flood => "protocol",
            Self::ResetInHead
            | Self::EndlessHeader
            | Self::EndlessHeaders
            | Self::ResetInBody
            | Self::SlowBody
            | Self::EndlessBody
            | Self::HugeBody
            | Self::GzipBomb => "success",
        }
    }

    fn http2(self) -> bool {
        matches!(
            self,
            Self::RefusedStream
                | Self::GoAway
                | Self::SilentHttp2
                | Self::EndlessHttp2Headers
                | Self::PingFlood
                | Self::InformationalHttp2Flood
        )
    }

    fn tls(self) -> Option<TlsAcceptor> {
        let alpn: &[&str] = if self.http2() { &["h2"] } else { &["http/1.1"] };
        let config = match self {
            Self::SilentTcp
            | Self::SlowHandshake
            | Self::GarbageForTls
            | Self::OldTls
            | Self::ResetOnAccept => {
                return None;
            }
            Self::ExpiredCertificate => Authority::shared().expired(NAMES, alpn),
            Self::SelfSignedCertificate => Authority::self_signed(NAMES, alpn),
            Self::WrongNameCertificate => Authority::shared().server(&["elsewhere.test"], alpn),
            _ => Authority::shared().server(NAMES, alpn),
        };
        Some(config.into())
    }
}

/// A hostile receiver on loopback. Ends when dropped.
pub struct HostileReceiver {
    address: SocketAddr,
    counts: Arc<Counts>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Counts {
    accepted: AtomicUsize,
    ended: AtomicUsize,
    requests: AtomicUsize,
    sent: AtomicU64,
}

impl HostileReceiver {
    pub fn start(kind: Hostile) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        // Accepted connections inherit it.
        socket.set_send_buffer_size(SEND_BUFFER).unwrap();
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let listener = socket.listen(1024).unwrap();
        let address = listener.local_addr().unwrap();
        let counts = Arc::<Counts>::default();
        let tls = kind.tls();
        let mut tasks = JoinSet::new();
        let shared = counts.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                shared.accepted.fetch_add(1, Ordering::Relaxed);
                let (counts, tls) = (shared.clone(), tls.clone());
                connections.spawn(async move {
                    // The sender is supposed to hang up.
                    let _ = misbehave(kind, tcp, tls, &counts).await;
                    counts.ended.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        Self {
            address,
            counts,
            _tasks: tasks,
        }
    }

    /// Its URL, by address.
    pub fn url(&self) -> String {
        format!("https://{}/hook", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections so far.
    pub fn accepted(&self) -> usize {
        self.counts.accepted.load(Ordering::Relaxed)
    }

    /// Number of open connections, as far as the receiver knows.
    pub fn open(&self) -> usize {
        self.accepted() - self.counts.ended.load(Ordering::Relaxed)
    }

    /// Requests so far.
    pub fn requests(&self) -> usize {
        self.counts.requests.load(Ordering::Relaxed)
    }

    /// Number of bytes sent so far, before TLS.
    pub fn sent(&self) -> u64 {
        self.counts.sent.load(Ordering::Relaxed)
    }
}

/// A stream that counts written bytes.
struct Wire<'a, S> {
    stream: S,
    counts: &'a Counts,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<'_, S> {
    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await?;
        self.counts.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Sends these bytes repeatedly, and discards whatever arrives.
    async fn flood(self, bytes: &[u8]) -> io::Result<()> {
        let (mut reader, writer) = tokio::io::split(self.stream);
        let mut out = Wire {
            stream: tokio::io::join(tokio::io::empty(), writer),
            counts: self.counts,
        };
        let mut sink = tokio::io::sink();
        tokio::select! {
            result = tokio::io::copy(&mut reader, &mut sink) => result.map(|_| ()),
            result = async { loop { out.send(bytes).await?; } } => result,
        }
    }

    async fn drip(&mut self, bytes: &[u8]) -> io::Result<()> {
        for byte in bytes {
            self.send(&[*byte]).await?;
            tokio::time::sleep(PACE).await;
        }
        Ok(())
    }

    /// Reads until the sender hangs up.
    async fn hold(mut self) -> io::Result<()> {
        tokio::io::copy(&mut self.stream, &mut tokio::io::sink())
            .await
            .map(|_| ())
    }

    /// Reads at least the head of a request.
    async fn request(&mut self) -> io::Result<()> {
        let mut seen = Vec::new();
        while !seen.windows(4).any(|end| end == b"\r\n\r\n") {
            if self.stream.read_buf(&mut seen).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Reads an HTTP/2 request's first frames and sends our settings.
    async fn http2(&mut self) -> io::Result<()> {
        let mut preface = [0; 24];
        self.stream.read_exact(&mut preface).await?;
        self.send(&frame(4, 0, 0, &[])).await?;
        let mut head = [0; 9];
        loop {
            self.stream.read_exact(&mut head).await?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            self.stream.read_exact(&mut payload).await?;
            if head[3] == 1 {
                self.counts.requests.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
        }
    }
}

/// An HTTP/2 frame (RFC 9113, section 4.1).
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Resets the connection instead of closing it.
fn reset(tcp: &TcpStream) {
    tcp.set_zero_linger().unwrap();
}

async fn misbehave(
    kind: Hostile,
    tcp: TcpStream,
    tls: Option<TlsAcceptor>,
    counts: &Counts,
) -> io::Result<()> {
    match tls {
        None => without_tls(kind, Wire { stream: tcp, counts }).await,
        Some(tls) => {
            let stream = tls.accept(tcp).await?;
            with_tls(kind, Wire { stream, counts }).await
        }
    }
}

async fn without_tls(kind: Hostile, mut wire: Wire<'_, TcpStream>) -> io::Result<()> {
    let mut hello = [0; 512];
    match kind {
        Hostile::ResetOnAccept => {
            reset(&wire.stream);
            Ok(())
        }
        Hostile::GarbageForTls => {
            let _ = wire.stream.read(&mut hello).await?;
            wire.flood(b"220 mail.example.com ESMTP\r\n").await
        }
        Hostile::SlowHandshake => {
            let _ = wire.stream.read(&mut hello).await?;
            wire.drip(&server_hello(3)).await?;
            wire.hold().await
        }
        Hostile::OldTls => {
            let _ = wire.stream.read(&mut hello).await?;
            wire.send(&server_hello(2)).await?;
            wire.hold().await
        }
        _ => wire.hold().await,
    }
}

/// A server's first message in TLS 1.(n-1) (RFC 5246, section 7.4.1.3): minor version 3 is TLS 1.2, 2 is TLS 1.1.
fn server_hello(minor: u8) -> Vec<u8> {
    let mut hello = vec![3, minor];
    hello.extend([7; 32]);
    // No session, TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, no compression.
    hello.extend([0, 0xc0, 0x13, 0]);
    let length = u8::try_from(hello.len()).unwrap();
    let mut record = vec![22, 3, minor, 0, length + 4, 2, 0, 0, length];
    record.extend(hello);
    record
}

async fn with_tls(kind: Hostile, mut wire: Wire<'_, TlsStream<TcpStream>>) -> io::Result<()> {
    if kind.http2() {
        wire.http2().await?;
    } else {
        wire.request().await?;
    }
    match kind {
        Hostile::SlowHead => {
            let head = format!("HTTP/1.1 102 Processing\r\nX-Slow: {}", "y".repeat(600));
            wire.drip(head.as_bytes()).await
        }
        Hostile::LateStatus(delay) => {
            tokio::time::sleep(delay).await;
            wire.send(HEAD).await?;
            wire.send(b"Content-Length: 0\r\n\r\n").await?;
            wire.hold().await
        }
        Hostile::ResetInStatusLine => {
            wire.send(&HEAD[..10]).await?;
            reset(wire.stream.get_ref().0);
            Ok(())
        }
        Hostile::ResetInHead => {
            wire.send(HEAD).await?;
            reset(wire.stream.get_ref().0);
            Ok(())
        }
        Hostile::ResetInBody => {
            wire.send(HEAD).await?;
            wire.send(b"Content-Length: 100\r\n\r\nhalf").await?;
            // The bytes should arrive before the reset.
            tokio::time::sleep(Duration::from_millis(100)).await;
            reset(wire.stream.get_ref().0);
            Ok(())
        }
        Hostile::GarbageForHttp => wire.flood(&[0x00, 0xff, 0x13, b'\n', 0x80]).await,
        Hostile::EndlessHeader => {
            wire.send(HEAD).await?;
            wire.send(b"X-Bomb: ").await?;
            wire.flood(&[b'x'; 8192]).await
        }
        Hostile::EndlessHeaders => {
            wire.send(HEAD).await?;
            wire.flood(&b"X-Bomb: x\r\n".repeat(500)).await
        }
        Hostile::EndlessHttp2Headers => {
            // Literal header fields without indexing (RFC 7541, section 6.2.2), in a block that no frame ends.
            let fields = b"\x00\x01x\x7e"
                .iter()
                .chain(&[b'x'; 0x7e])
                .copied()
                .collect::<Vec<_>>()
                .repeat(50);
            wire.send(&frame(1, 0, 1, b"\x88")).await?;
            wire.flood(&frame(9, 0, 1, &fields)).await
        }
        Hostile::PingFlood => wire.flood(&frame(6, 0, 0, b"pingping").repeat(100)).await,
        Hostile::InformationalFlood => wire.flood(&b"HTTP/1.1 102 Processing\r\n\r\n".repeat(100)).await,
        Hostile::InformationalHttp2Flood => wire.flood(&frame(1, 4, 1, b"\x08\x03103").repeat(100)).await,
        Hostile::RefusedStream => {
            wire.send(&frame(3, 0, 1, &7_u32.to_be_bytes())).await?;
            wire.hold().await
        }
        Hostile::GoAway => {
            wire.send(&frame(7, 0, 0, &[0; 8])).await?;
            wire.hold().await
        }
        Hostile::SlowBody => {
            wire.send(HEAD).await?;
            wire.send(b"Content-Length: 4000\r\n\r\n").await?;
            wire.drip(&[b'x'; 4000]).await
        }
        Hostile::EndlessBody => {
            wire.send(HEAD).await?;
            wire.send(b"Transfer-Encoding: chunked\r\n\r\n").await?;
            let chunk = [b"1000\r\n".as_slice(), &[b'x'; 0x1000], b"\r\n"].concat();
            wire.flood(&chunk).await
        }
        Hostile::HugeBody => {
            const CHUNK: usize = 16 * 1024;
            const COUNT: usize = 512 * 1024 * 1024 / CHUNK;
            wire.send(HEAD).await?;
            wire.send(format!("Content-Length: {}\r\n\r\n", CHUNK * COUNT).as_bytes())
                .await?;
            for _ in 0..COUNT {
                wire.send(&[b'x'; CHUNK]).await?;
            }
            wire.hold().await
        }
        Hostile::GzipBomb => {
            let bomb = gzip_bomb();
            wire.send(HEAD).await?;
            wire.send(format!("Content-Encoding: gzip\r\nContent-Length: {}\r\n\r\n", bomb.len()).as_bytes())
                .await?;
            wire.send(&bomb).await?;
            wire.hold().await
        }
        _ => wire.hold().await,
    }
}

/// Zeros, compressed by a factor of a thousand: a gzip member (RFC 1952) with one fixed-Huffman block (RFC 1951) of the longest matches.
fn gzip_bomb() -> Vec<u8> {
    let mut bomb = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let (mut bits, mut count) = (0_u64, 0_u32);
    let mut put = |value: u64, width: u32| {
        bits |= value << count;
        count += width;
        while count >= 8 {
            bomb.push((bits & 0xff) as u8);
            bits >>= 8;
            count -= 8;
        }
    };
    // Final block, fixed codes; the literal 0 (code 00110000).
    put(0b011, 3);
    put(0b0000_1100, 8);
    for _ in 0..20_000 {
        // Length 258 (code 11000101, its bits from the left), distance 1 (code 00000).
        put(0b1010_0011, 8);
        put(0, 5);
    }
    // End of block, and padding.
    put(0, 7);
    put(0, 7);
    bomb.extend([0; 8]);
    bomb
}
