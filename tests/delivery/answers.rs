//! What receivers on the Internet answer, well-formed or not, and what becomes of it.

use std::{
    io,
    iter::{once, repeat_n},
    net::SocketAddr,
    sync::Arc,
};

use bytes::Bytes;
use futures::future::join_all;
use http::HeaderMap;
use jiff::Timestamp;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, date_time_ymd};
use sender::{
    AttemptOutcome, RetryAfter,
    signature::{self, SigningKeys},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig, server::TlsStream};

use super::{Sender, keeping, loopback, short};
use crate::support::receivers::{Authority, frame};

/// How a receiver ends the connection after its answer.
#[derive(Clone, Copy, Debug)]
enum End {
    /// Properly.
    Close,
    /// Without saying so in TLS.
    Cut,
    Reset,
    /// Not at all.
    Stay,
}
use End::{Close, Cut, Reset, Stay};

/// How much of a request is read before it is answered, in bytes.
const MOST_READ: usize = 100_000;

/// A receiver that answers a request with these bytes.
struct RawReceiver {
    address: SocketAddr,
    /// The bytes of the last request over HTTP/1.
    request: Arc<Mutex<Vec<u8>>>,
    _tasks: JoinSet<()>,
}

impl RawReceiver {
    async fn start(tls: Arc<ServerConfig>, answer: Vec<u8>, end: End) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let request = Arc::<Mutex<Vec<u8>>>::default();
        let seen = request.clone();
        let tls = TlsAcceptor::from(tls);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                // A reset discards what has not been sent yet.
                tcp.set_nodelay(true).unwrap();
                let Ok(stream) = tls.accept(tcp).await else {
                    continue;
                };
                // The sender may hang up first.
                let _ = serve(stream, &answer, end, &seen).await;
            }
        });
        Self {
            address,
            request,
            _tasks: tasks,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }
}

async fn serve(
    mut stream: TlsStream<TcpStream>,
    answer: &[u8],
    end: End,
    seen: &Mutex<Vec<u8>>,
) -> io::Result<()> {
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).await?;
        stream.write_all(&frame(4, 0, 0, &[])).await?;
        let mut head = [0; 9];
        // Until a frame ends the request.
        while head[3] > 1 || head[4] & 1 == 0 {
            stream.read_exact(&mut head).await?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            stream.read_exact(&mut vec![0; length as usize]).await?;
        }
    } else {
        let mut request = Vec::new();
        while !request.ends_with(b"}") && request.len() < MOST_READ {
            if stream.read_buf(&mut request).await? == 0 {
                break;
            }
        }
        *seen.lock() = request;
    }
    stream.write_all(answer).await?;
    stream.flush().await?;
    match end {
        Close => stream.shutdown().await?,
        Cut => stream.get_mut().0.shutdown().await?,
        Reset => {
            stream.get_ref().0.set_zero_linger()?;
            return Ok(());
        }
        Stay => {}
    }
    tokio::io::copy(&mut stream, &mut tokio::io::sink())
        .await
        .map(drop)
}

/// An outcome in words.
fn words(outcome: &AttemptOutcome) -> String {
    let (status, error) = (outcome.status, &outcome.error);
    let text = match error {
        None => format!("delivered with {}", status.unwrap()),
        Some(error) => error.to_string(),
    };
    match outcome.retry_after {
        Some(RetryAfter::Delay(delay)) => format!("{text}; again after {} s", delay.as_secs()),
        _ => text,
    }
}

/// Makes an attempt for each of these answers, and compares its outcome.
async fn check(alpn: &str, answers: impl IntoIterator<Item = (Vec<u8>, End, String)>) -> usize {
    let sender = &Sender::new(short(), loopback());
    let tls = Authority::shared().server(&["127.0.0.1"], &[alpn]);
    let attempts = answers.into_iter().map(async |(answer, end, expected)| {
        let receiver = RawReceiver::start(tls.clone(), answer.clone(), end).await;
        let outcome = sender.post(&receiver.url("/")).await;
        let found = words(&outcome);
        let beginning = String::from_utf8_lossy(&answer[..answer.len().min(120)]).into_owned();
        // The longest messages are written down in part.
        let as_expected = found == expected || expected.len() > 30 && found.contains(&expected);
        (!as_expected).then(|| format!("{beginning:?} {end:?}\n  {found}\n  instead of {expected}"))
    });
    let results = join_all(attempts).await;
    let wrong: Vec<_> = results.iter().flatten().cloned().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    results.len()
}

const CLOSED: &str = "the receiver closed the connection before it answered";
const NOT_HTTP: &str =
    "the receiver's answer is not valid HTTP: it must begin with a status line such as HTTP/1.1 200 OK";

#[tokio::test]
async fn over_http1_any_status_line_counts_whatever_follows_it() {
    let ok = |status: u16| format!("delivered with {status}");
    let answered = |status: u16| format!("the receiver answered {status}");
    let mut answers: Vec<(Vec<u8>, End, String)> = Vec::new();
    let mut add = |answer: &str, end: End, expected: String| {
        answers.push((answer.as_bytes().to_vec(), end, expected));
    };

    // Status lines.
    for (line, status) in [
        ("HTTP/1.1 200 OK", 200),
        ("HTTP/1.1 200", 200),
        ("HTTP/1.1 200 ", 200),
        ("HTTP/1.1  200  OK", 200),
        ("HTTP/1.1\t200\tOK", 200),
        ("HTTP/1.1 200OK", 200),
        ("http/1.1 200 ok", 200),
        ("HTTP/1.0 200 OK", 200),
        ("HTTP/1.2 204 No Content", 204),
        ("HTTP/2 200", 200),
        ("HTTP/2.0 201 Created", 201),
        ("HTTP/3 202 Accepted", 202),
        ("HTTP/1.1 203 Très bien", 203),
        ("HTTP/1.1 206 \u{1}\u{2}\u{7f}", 206),
        ("HTTP/1.1 226 \0", 226),
        ("HTTP/1.1 299 Whatever", 299),
        ("\r\n\r\nHTTP/1.1 200 OK", 200),
    ] {
        add(&format!("{line}\r\nContent-Length: 0\r\n\r\n"), Close, ok(status));
        add(&format!("{line}\n\n"), Close, ok(status));
    }
    for end in [Close, Cut, Reset] {
        for cut in [
            "",
            " OK",
            " OK\r",
            " OK\r\n",
            " OK\r\nContent-",
            " OK\r\nContent-Length: 2\r\n",
        ] {
            add(&format!("HTTP/1.1 200{cut}"), end, ok(200));
        }
        for body in ["", "o", "ok and more"] {
            add(
                &format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{body}"),
                end,
                ok(200),
            );
        }
        add(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhal",
            end,
            ok(200),
        );
        add("HTTP/1.1 503 Busy", end, answered(503));
    }
    add("HTTP/1.1 200 OK\r\r", Close, ok(200));
    add(
        &format!("HTTP/1.1 200 {}\r\n\r\n", "x".repeat(10_000)),
        Stay,
        ok(200),
    );
    add(
        &format!("HTTP/1.1 200 {}\r\n\r\n", "x".repeat(50_000)),
        Stay,
        ok(200),
    );
    add("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", Stay, ok(200));

    // Heads.
    for headers in [
        "Content-Type : text/plain",
        "Content-Type\t: text/plain",
        "X: a\r\n folded",
        " folded at once",
        "no colon",
        ": no name",
        "X: a\0b",
        "X: a\u{1}b\u{7f}",
        "X: a\rb",
        "Gr\u{fc}n: x",
        "(x): y",
        "X-\"quoted\": y",
        "Content-Length: ten",
        "Content-Length: -1",
        "Content-Length: +5",
        "Content-Length: 0x10",
        "Content-Length: 1.0",
        "Content-Length:",
        "Content-Length: 5, 5",
        "Content-Length: 5, 6",
        "Content-Length: 99999999999999999999999",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length : 5\r\nContent-Length: 6",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked, gzip",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: nonsense",
        "Transfer-Encoding : chunked",
        "Content-Encoding: gzip",
        "Connection: upgrade\r\nUpgrade: h2c",
    ] {
        for (line, expected) in [
            ("HTTP/1.1 200 OK", ok(200)),
            ("HTTP/1.0 202 Accepted", ok(202)),
            ("HTTP/1.1 404 Not Found", answered(404)),
        ] {
            add(&format!("{line}\r\n{headers}\r\n\r\nhello"), Close, expected);
        }
    }
    add(
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        Close,
        ok(200),
    );
    add(
        "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello",
        Close,
        ok(204),
    );
    add(
        "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
        Close,
        ok(204),
    );
    add(
        &format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(200)),
        Close,
        ok(200),
    );
    add(
        &format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(50_000)),
        Close,
        ok(200),
    );
    add(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfive\r\nhello\r\n0\r\n\r\n",
        Close,
        ok(200),
    );
    add(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=\"y\"\r\nhello\r\n0\r\nno trailer\r\n\r\n",
        Close,
        ok(200),
    );

    // Interim answers.
    add(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        Close,
        ok(200),
    );
    add(
        "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
        Close,
        ok(204),
    );
    add(
        "HTTP/1.1 100 Continue\r\nno colon\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        Close,
        ok(200),
    );
    add("HTTP/1.1 100 Continue\r\n\r\n", Close, CLOSED.to_owned());
    add("HTTP/1.1 102 Processing\r\nX: y", Cut, CLOSED.to_owned());
    add(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        Close,
        answered(101),
    );

    // Failures that say more.
    let redirect =
        "the receiver answered 302, a redirect, which is never followed; it points to https://a.example/b?c";
    for broken in ["", "no colon\r\n", "Content-Length: 1\r\nContent-Length: 2\r\n"] {
        add(
            &format!("HTTP/1.1 410 Gone\r\n{broken}\r\n"),
            Close,
            answered(410),
        );
        add(
            &format!("HTTP/1.1 503 Busy\r\nRetry-After: 120\r\n{broken}\r\n"),
            Close,
            format!("{}; again after 120 s", answered(503)),
        );
        add(
            &format!("HTTP/1.1 429 Slow Down\r\n{broken}Retry-After: 7\r\n\r\n"),
            Close,
            format!("{}; again after 7 s", answered(429)),
        );
        add(
            &format!("HTTP/1.1 302 Found\r\n{broken}Location: https://a.example/b?c\r\n\r\n"),
            Close,
            redirect.to_owned(),
        );
    }
    add(
        "HTTP/1.1 301 Moved\r\nLocation: https://\u{202e}evil.example/\t\u{2066}\r\n\r\n",
        Close,
        "it points to https://\u{fffd}evil.example/\u{fffd}\u{fffd}".to_owned(),
    );

    // No answer.
    for end in [Close, Cut, Reset] {
        for nothing in ["", "\r\n", "HT", "HTTP/1.1 20", "HTTP/1.1 "] {
            add(nothing, end, CLOSED.to_owned());
        }
    }
    for other in [
        "OK",
        "200 OK\r\n\r\n",
        "ICY 200 OK\r\n\r\n",
        "<html>HTTP/1.1 200 OK</html>\r\n\r\n",
        "{\"status\": 200}\r\n",
        "220 mail.example ESMTP\r\n",
        "SSH-2.0-OpenSSH_9.9\r\n",
        "HTTP/1.1 2xx OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 OK 200\r\n\r\n",
        "HTTP/ 200 OK\r\n\r\n",
        "\0\0\0\u{4}\0\0\0\0\0",
    ] {
        add(other, Close, NOT_HTTP.to_owned());
    }
    let interim = "HTTP/1.1 102 Processing\r\n\r\n".repeat(20_000);
    add(
        &interim,
        Stay,
        "is not valid HTTP: more arrived than is read of one".to_owned(),
    );
    let interim = format!("HTTP/1.1 102 Processing\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    add(
        &interim,
        Stay,
        "is not valid HTTP: its head has more than 100 headers or 32 KiB".to_owned(),
    );

    assert!(check("http/1.1", answers).await > 200);
}

/// Header fields, none of them indexed (RFC 7541, section 6.2.2).
fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    block
}

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A complete answer without a body.
fn head(all: &[(&str, &str)]) -> Vec<u8> {
    frame(1, END_HEADERS | END_STREAM, 1, &fields(all))
}

#[tokio::test]
async fn over_http2_a_complete_answer_counts_and_what_is_forbidden_is_said() {
    let ok = |status: u16| format!("delivered with {status}");
    let mut answers: Vec<(Vec<u8>, End, String)> = Vec::new();
    let mut add = |frames: &[Vec<u8>], end: End, expected: &str| {
        answers.push((frames.concat(), end, expected.to_owned()));
    };
    let begun = frame(1, END_HEADERS, 1, &fields(&[(":status", "200")]));
    let whole = head(&[(":status", "200")]);
    let data = |flags, text: &str| frame(0, flags, 1, text.as_bytes());
    let reset = |code: u32| frame(3, 0, 1, &code.to_be_bytes());
    let goaway = |last: u32, code: u32| frame(7, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat());

    // Answers, and what may follow them.
    for end in [Close, Cut, Reset, Stay] {
        add(std::slice::from_ref(&whole), end, &ok(200));
        add(&[begun.clone(), data(END_STREAM, "ok")], end, &ok(200));
        add(&[begun.clone(), data(0, "half")], end, &ok(200));
    }
    for code in [0, 1, 2, 7, 8, 11, 13] {
        add(&[whole.clone(), reset(code)], Stay, &ok(200));
        add(
            &[begun.clone(), data(END_STREAM, "ok"), reset(code)],
            Stay,
            &ok(200),
        );
        add(&[begun.clone(), reset(code)], Stay, &ok(200));
        add(&[whole.clone(), goaway(1, code)], Close, &ok(200));
    }
    let trailers = frame(1, END_HEADERS | END_STREAM, 1, &fields(&[("x", "y")]));
    add(&[begun.clone(), data(0, "ok"), trailers], Stay, &ok(200));
    let half = fields(&[(":status", "201"), ("x", "y")]);
    let (first, second) = half.split_at(9);
    add(
        &[frame(1, END_STREAM, 1, first), frame(9, END_HEADERS, 1, second)],
        Stay,
        &ok(201),
    );
    let interim = frame(1, END_HEADERS, 1, &fields(&[(":status", "103"), ("link", "x")]));
    add(&[interim, head(&[(":status", "204")])], Stay, &ok(204));
    // Padded, after frames of unknown types.
    let padded = [&[2][..], &fields(&[(":status", "202")]), &[0, 0]].concat();
    add(
        &[
            frame(0xee, 0xff, 0, b"?"),
            frame(0xef, 0, 1, b""),
            frame(1, 0x8 | END_HEADERS | END_STREAM, 1, &padded),
        ],
        Stay,
        &ok(202),
    );
    add(&[head(&[(":status", "410")])], Stay, "the receiver answered 410");
    add(
        &[head(&[(":status", "503"), ("retry-after", "60")])],
        Stay,
        "the receiver answered 503; again after 60 s",
    );
    add(
        &[head(&[(":status", "308"), ("location", "/a")])],
        Stay,
        "the receiver answered 308, a redirect, which is never followed; it points to /a",
    );

    // What HTTP/2 forbids.
    for (name, value) in [
        ("connection", "close"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "close"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2,h2c"),
        ("content-length", "5"),
        ("content-length", "five"),
    ] {
        let expected = "over HTTP/2 its headers break the rules; remove Connection";
        add(&[head(&[(":status", "200"), (name, value)])], Stay, expected);
    }
    let many: Vec<_> = once((":status", "200")).chain(repeat_n(("x", ""), 600)).collect();
    add(
        &[head(&many)],
        Stay,
        "does not match the body, and whatever exceeds 16 KiB",
    );

    // No answer.
    for (code, expected) in [
        (0, CLOSED),
        (
            2,
            "ended the request before it answered: unexpected internal error encountered",
        ),
        (
            7,
            "ended the request before it answered: refused stream before processing any application logic",
        ),
        (8, "ended the request before it answered: stream no longer needed"),
        (
            13,
            "it wants HTTP/1.1, but offers HTTP/2 in the TLS handshake (ALPN); switch HTTP/2 off there",
        ),
    ] {
        add(&[reset(code)], Stay, expected);
        add(&[goaway(0, code)], Close, expected);
    }
    for end in [Close, Cut, Reset] {
        add(&[], end, CLOSED);
        add(&[frame(1, END_HEADERS, 1, b"")[..5].to_vec()], end, CLOSED);
    }
    let broken = "over HTTP/2 its frames break the rules, for instance by a header with capitals in its name";
    for frames in [
        data(END_STREAM, "early"),
        head(&[(":status", "200"), ("Content-Type", "text/plain")]),
        frame(1, END_HEADERS | END_STREAM, 1, b"\xff\xff\xff"),
        frame(8, 0, 0, &[0; 4]),
        frame(4, 0, 0, &[0; 5]),
        head(&[(":status", "abc")]),
    ] {
        add(&[frames], Stay, broken);
    }
    let text = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec();
    add(&[text], Stay, "over HTTP/2: frame with invalid size");
    add(
        &[head(&[])],
        Stay,
        "over HTTP/2 its headers break the rules; remove Connection",
    );
    let pings = frame(6, 0, 0, b"pingping").repeat(20_000);
    add(
        &[pings],
        Stay,
        "is not valid HTTP: more arrived than is read of one",
    );

    assert!(check("h2", answers).await > 70);
}

#[tokio::test]
async fn over_http1_headers_and_url_are_spelled_as_they_were_written() {
    let tls = Authority::shared().server(&["127.0.0.1"], &["http/1.1"]);
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec();
    let receiver = RawReceiver::start(tls, answer, Close).await;
    let path = "/it's/a/../b/%7e{id}|^?sig='a+b/c=='&x[]=1&%27";
    let sender = Sender::patient(loopback());
    let body = Bytes::from_static(b"{}");
    let (keys, now) = (SigningKeys::new("secret", None), Timestamp::UNIX_EPOCH);
    let headers = signature::headers(&keys, "evt_1", "instance.created", now, now, &body);
    let outcome = sender.client.post(&receiver.url(path), headers, body).await;
    assert!(outcome.is_success(), "{outcome:?}");
    let request = String::from_utf8(receiver.request.lock().clone()).unwrap();
    let mut lines = request.lines();
    assert_eq!(lines.next().unwrap(), format!("POST {path} HTTP/1.1"));
    let lines: Vec<_> = lines.collect();
    for line in [
        "X-Service-Event-Id: evt_1",
        "X-Service-Event-Type: instance.created",
        "X-Service-Timestamp: 0",
        "Webhook-Id: evt_1",
        "Webhook-Timestamp: 0",
        "Content-Type: application/json",
        "Accept: */*",
        format!("User-Agent: {}", signature::AGENT).as_str(),
        "Content-Length: 2",
        format!("Host: {}", receiver.address).as_str(),
    ] {
        assert!(lines.contains(&line), "{line} in {request}");
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_certificate_is_said_with_its_fix() {
    let tls = |names: &[&str], change: fn(&mut CertificateParams)| {
        Authority::shared().server_with(&["http/1.1"], names, change)
    };
    let here = &["127.0.0.1"][..];
    for (tls, expected) in [
        (
            tls(here, |params| {
                params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            }),
            "its certificate is a certificate authority's; give the server one of its own",
        ),
        (
            tls(&[], |_| {}),
            "has no subjectAltName; get one whose subjectAltName has the URL's host",
        ),
        (
            tls(&["a.example"], |_| {}),
            "is not for the URL's host; get one whose subjectAltName has it",
        ),
        (
            tls(here, |params| {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            }),
            "not valid for servers; get one with extendedKeyUsage serverAuth",
        ),
        (
            tls(here, |params| params.not_before = date_time_ymd(3000, 1, 1)),
            "the receiver's certificate has expired or is not valid yet; renew it",
        ),
    ] {
        let receiver = RawReceiver::start(tls, Vec::new(), Close).await;
        let outcome = Sender::patient(loopback()).post(&receiver.url("/")).await;
        let found = words(&outcome);
        assert!(found.contains(expected), "{found}");
    }
}

#[tokio::test]
async fn an_answer_that_comes_before_the_end_of_the_request_counts() {
    let tls = Authority::shared().server(&["127.0.0.1"], &["http/1.1"]);
    let sender = Sender::patient(loopback());
    for (answer, expected) in [
        (
            "HTTP/1.1 413 Content Too Large\r\n\r\n",
            "the receiver answered 413",
        ),
        ("HTTP/1.1 202 Accepted\r\nno colon\r\n\r\n", "delivered with 202"),
    ] {
        let receiver = RawReceiver::start(tls.clone(), answer.into(), Reset).await;
        let body = Bytes::from(vec![b'x'; 40 * MOST_READ]);
        let outcome = sender
            .client
            .post(&receiver.url("/"), HeaderMap::new(), body)
            .await;
        assert_eq!(words(&outcome), expected);
    }
}

/// In TLS 1.3 it comes after the handshake.
#[tokio::test]
async fn a_demand_for_a_client_certificate_is_said_over_both_protocols() {
    for alpn in ["http/1.1", "h2"] {
        let tls = Authority::shared().server_for_clients_of_its_own(&["127.0.0.1"], &[alpn]);
        let receiver = RawReceiver::start(tls, Vec::new(), Close).await;
        let outcome = Sender::patient(loopback()).post(&receiver.url("/")).await;
        let found = words(&outcome);
        assert!(
            found.contains("it wants a client certificate, which deliveries do not have"),
            "{alpn}: {found}"
        );
    }
}

/// Once a connection is used again, what was read of the previous answer must not pass for the next one.
#[tokio::test]
async fn an_answer_counts_for_its_own_request_alone() {
    let tls = Authority::shared().server(&["127.0.0.1"], &["http/1.1"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let mut server = JoinSet::new();
    server.spawn(async move {
        let tls = TlsAcceptor::from(tls);
        let first: &[&str] = &["HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "nonsense\r\n\r\n"];
        for answers in [first, &["HTTP/1.1 204 No Content\r\n\r\n"]] {
            let (tcp, _) = listener.accept().await.unwrap();
            let mut stream = tls.accept(tcp).await.unwrap();
            for answer in answers {
                let mut request = Vec::new();
                while !request.ends_with(b"}") {
                    assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
                }
                stream.write_all(answer.as_bytes()).await.unwrap();
                stream.flush().await.unwrap();
            }
            let _ = stream.shutdown().await;
        }
    });
    let sender = Sender::new(keeping(), loopback());
    assert_eq!(words(&sender.post(&url).await), "delivered with 200");
    assert_eq!(words(&sender.post(&url).await), NOT_HTTP);
    assert_eq!(words(&sender.post(&url).await), "delivered with 204");
    while let Some(ended) = server.join_next().await {
        ended.unwrap();
    }
}
