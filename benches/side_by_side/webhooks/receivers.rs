//! Receivers that cost as little as possible: all on one thread of this process, each with a port and a certificate, with
//! keep-alive, and HTTP/2 or HTTP/1.1 as negotiated. They answer 200, at once unless told otherwise, count, and compute the event's age in milliseconds from
//! the `created_at` in its body, which was written by the same clock. They read nothing else in the body.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use bytes::Bytes;
use hdrhistogram::Histogram;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::kit::Authority;
use crate::{Result, processes};

/// The protocols to negotiate, preferred first.
pub const BOTH: &[&str] = &["h2", "http/1.1"];
/// How long a receiver takes for its n-th answer.
pub type Delay = fn(u64) -> Duration;

/// HTTP/1.1 only.
pub const HTTP1: &[&str] = &["http/1.1"];

/// Running receivers. Their thread runs until the process ends.
pub struct Receivers {
    addresses: Vec<SocketAddr>,
    seen: Arc<Seen>,
    thread: u32,
}

struct Seen {
    count: AtomicU64,
    connections: AtomicU64,
    ages: Mutex<Histogram<u64>>,
}

impl Receivers {
    /// Starts this many receivers.
    pub fn start(count: usize, alpn: &'static [&'static str]) -> Result<Self> {
        Self::slow(count, alpn, |_| Duration::ZERO)
    }

    /// Starts this many receivers that take this long to answer.
    pub fn slow(count: usize, alpn: &'static [&'static str], delay: Delay) -> Result<Self> {
        let seen = Arc::new(Seen {
            count: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            ages: Mutex::new(Histogram::new(3)?),
        });
        let (tell, told) = mpsc::channel();
        let shared = Arc::clone(&seen);
        std::thread::Builder::new()
            .name("receivers".to_owned())
            .spawn(move || {
                let result = serve(count, alpn, delay, &shared, &tell);
                if let Err(error) = result {
                    // The closed channel informs the caller, who is waiting for the addresses.
                    eprintln!("the receivers have ended: {error}");
                }
            })?;
        let (addresses, thread) = told.recv()?;
        Ok(Self {
            addresses,
            seen,
            thread,
        })
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// URL of the n-th receiver.
    pub fn url(&self, n: usize) -> String {
        format!("https://{}/hook", self.addresses[n % self.addresses.len()])
    }

    /// Requests so far.
    pub fn count(&self) -> u64 {
        self.seen.count.load(Ordering::Relaxed)
    }

    /// Connections so far.
    pub fn connections(&self) -> u64 {
        self.seen.connections.load(Ordering::Relaxed)
    }

    /// CPU time of their thread, in seconds.
    pub fn processor_time(&self) -> Result<f64> {
        processes::processor_time_of_thread(self.thread)
    }

    /// The ages of the events that have arrived since the last call, on arrival, in milliseconds.
    pub fn take_ages(&self) -> Result<Histogram<u64>> {
        Ok(std::mem::replace(&mut *self.seen.ages.lock(), Histogram::new(3)?))
    }
}

fn serve(
    count: usize,
    alpn: &[&str],
    delay: Delay,
    seen: &Arc<Seen>,
    tell: &mpsc::Sender<(Vec<SocketAddr>, u32)>,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let tls = TlsAcceptor::from(Authority::shared().server(&["127.0.0.1"], alpn));
        let mut addresses = Vec::new();
        for _ in 0..count {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            addresses.push(listener.local_addr()?);
            tokio::spawn(accept(listener, tls.clone(), delay, Arc::clone(seen)));
        }
        tell.send((addresses, processes::this_thread()?))?;
        std::future::pending().await
    })
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, delay: Delay, seen: Arc<Seen>) {
    let answers = Arc::new(AtomicU64::new(0));
    while let Ok((tcp, _)) = listener.accept().await {
        let _ = tcp.set_nodelay(true);
        seen.connections.fetch_add(1, Ordering::Relaxed);
        let (tls, seen, answers) = (tls.clone(), Arc::clone(&seen), Arc::clone(&answers));
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(tcp).await else {
                return;
            };
            let service = service_fn(move |request| {
                let delay = delay(answers.fetch_add(1, Ordering::Relaxed));
                answer(request, delay, Arc::clone(&seen))
            });
            let http = auto::Builder::new(TokioExecutor::new());
            // Ignore senders that hang up.
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    delay: Duration,
    seen: Arc<Seen>,
) -> std::result::Result<Response<Empty<Bytes>>, Infallible> {
    if let Ok(body) = request.into_body().collect().await {
        let age = created_at(&body.to_bytes()).map(|at| Timestamp::now().duration_since(at).as_millis());
        if let Some(age) = age.and_then(|age| u64::try_from(age).ok()) {
            seen.ages.lock().saturating_record(age);
        }
        seen.count.fetch_add(1, Ordering::Relaxed);
    }
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    Ok(Response::new(Empty::new()))
}

/// The event's time: the first `created_at` in the body.
fn created_at(body: &[u8]) -> Option<Timestamp> {
    const KEY: &[u8] = b"\"created_at\":\"";
    let at = body.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
    let length = body[at..].iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(&body[at..at + length]).ok()?.parse().ok()
}
