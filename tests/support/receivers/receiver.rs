//! A receiver with configurable responses that records its requests.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use parking_lot::Mutex;
use tokio::{net::TcpListener, sync::Notify, task::JoinSet, time::timeout};
use tokio_rustls::TlsAcceptor;

use super::authority::{Authority, NAMES};

/// Timeout for everything that is waited for.
const PATIENCE: Duration = Duration::from_secs(180);

/// A received request.
#[derive(Clone, Debug)]
pub struct Received {
    /// When its last byte arrived.
    pub at: Instant,
    pub method: Method,
    /// Path and query.
    pub path: String,
    pub version: Version,
    pub headers: HeaderMap,
    /// The raw body.
    pub body: Bytes,
    /// Number of its connection, from 1.
    pub connection: usize,
}

impl Received {
    /// The value of a header; empty without it.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Delay before the status line.
    pub delay: Duration,
}

impl Answer {
    pub fn status(status: u16) -> Self {
        Self {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            delay: Duration::ZERO,
        }
    }

    pub fn ok() -> Self {
        Self::status(200)
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        let name: HeaderName = name.parse().unwrap();
        self.headers.append(name, HeaderValue::from_str(value).unwrap());
        self
    }

    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }
}

/// The protocol of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocols {
    Both,
    Http1,
    Http2,
}

impl Protocols {
    pub fn alpn(self) -> &'static [&'static str] {
        match self {
            Self::Both => &["h2", "http/1.1"],
            Self::Http1 => &["http/1.1"],
            Self::Http2 => &["h2"],
        }
    }
}

/// The configuration of a receiver.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub protocols: Protocols,
    /// Whether requests are kept; a bench only counts them.
    pub record: bool,
    /// Whether an HTTP/1.1 connection is kept open after an answer.
    pub keep_alive: bool,
    pub listen: SocketAddr,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            protocols: Protocols::Both,
            record: true,
            keep_alive: true,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        }
    }
}

/// A receiver on loopback, with TLS of [`Authority::shared`]. Ends when dropped.
pub struct Receiver {
    address: SocketAddr,
    seen: Arc<Seen>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    requests: Mutex<Vec<Received>>,
    count: AtomicUsize,
    connections: AtomicUsize,
    arrived: Notify,
}

impl Receiver {
    /// Answers as the closure says.
    pub async fn start(answer: impl Fn(&Received) -> Answer + Send + Sync + 'static) -> Self {
        Self::with(Options::default(), answer).await
    }

    /// Gives these answers in order, and repeats the last one.
    pub async fn queue(answers: impl IntoIterator<Item = Answer>) -> Self {
        let answers: Vec<Answer> = answers.into_iter().collect();
        let next = AtomicUsize::new(0);
        Self::start(move |_| {
            let index = next.fetch_add(1, Ordering::Relaxed).min(answers.len() - 1);
            answers[index].clone()
        })
        .await
    }

    pub async fn with(
        options: Options,
        answer: impl Fn(&Received) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(options.listen).await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Seen>::default();
        let tls = TlsAcceptor::from(Authority::shared().server(NAMES, options.protocols.alpn()));
        let answer = Arc::new(answer);
        let mut tasks = JoinSet::new();
        let shared = seen.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                let _ = tcp.set_nodelay(true);
                let number = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
                let (tls, seen, answer) = (tls.clone(), shared.clone(), answer.clone());
                connections.spawn(async move {
                    let Ok(stream) = tls.accept(tcp).await else {
                        return;
                    };
                    let service = service_fn(move |request| {
                        serve(request, number, options.record, seen.clone(), answer.clone())
                    });
                    let mut http = auto::Builder::new(TokioExecutor::new());
                    http.http1().keep_alive(options.keep_alive);
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self {
            address,
            seen,
            _tasks: tasks,
        }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL with this path, by address.
    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    /// Its URL by this host.
    pub fn url_by(&self, host: &str) -> String {
        format!("https://{host}:{}/hook", self.address.port())
    }

    /// The certificate of its authority.
    pub fn ca_pem() -> String {
        Authority::shared().pem()
    }

    /// Number of requests so far.
    pub fn count(&self) -> usize {
        self.seen.count.load(Ordering::Relaxed)
    }

    /// Number of connections so far, including those without a TLS handshake.
    pub fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::Relaxed)
    }

    /// The requests so far, in the order of arrival.
    pub fn received(&self) -> Vec<Received> {
        self.seen.requests.lock().clone()
    }

    /// Waits until it got `count` requests.
    pub async fn wait_for(&self, count: usize) -> Vec<Received> {
        let enough = async {
            loop {
                let arrived = self.seen.arrived.notified();
                if self.count() >= count {
                    return;
                }
                arrived.await;
            }
        };
        assert!(
            timeout(PATIENCE, enough).await.is_ok(),
            "waited in vain for {count} requests; {} came",
            self.count()
        );
        self.received()
    }
}

async fn serve(
    request: Request<Incoming>,
    connection: usize,
    record: bool,
    seen: Arc<Seen>,
    answer: Arc<impl Fn(&Received) -> Answer + Send + Sync + 'static>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return Ok(Response::new(Full::default()));
    };
    let received = Received {
        at: Instant::now(),
        method: head.method,
        path: head
            .uri
            .path_and_query()
            .map(ToString::to_string)
            .unwrap_or_default(),
        version: head.version,
        headers: head.headers,
        body: body.to_bytes(),
        connection,
    };
    let answer = answer(&received);
    if record {
        seen.requests.lock().push(received);
    }
    seen.count.fetch_add(1, Ordering::Relaxed);
    seen.arrived.notify_waiters();
    if !answer.delay.is_zero() {
        tokio::time::sleep(answer.delay).await;
    }
    let mut response = Response::new(Full::new(answer.body));
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    Ok(response)
}
