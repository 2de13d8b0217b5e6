//! A webhook receiver in Rust. It uses axum, hyper, hmac and sha2, and rustls to terminate TLS.
//!
//!     WEBHOOK_SECRET=whsec_… PORT=8443 TLS_CERT=cert.pem TLS_KEY=key.pem cargo run --example webhook-receiver

use std::{
    collections::{HashSet, VecDeque},
    env,
    error::Error,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes, HttpBody as _, to_bytes},
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use parking_lot::Mutex;
use serde::Deserialize;
use sha2::Sha256;
use tokio::{
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};

/// Largest body in bytes; an event has a few hundred.
const MAX_BODY: usize = 256 * 1024;
/// Most events that are accepted but not yet processed.
const MAX_WAITING: usize = 1_000;
/// How many event ids are remembered.
const MAX_REMEMBERED: usize = 10_000;
/// Time limit for the handshake, the headers and the body each, so a slow client cannot hold a connection.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
struct Event {
    id: String,
    #[serde(rename = "type")]
    what: String,
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    instance: Option<Instance>,
}

#[derive(Deserialize)]
struct Instance {
    name: String,
}

struct Receiver {
    key: Hmac<Sha256>,
    waiting: mpsc::Sender<Event>,
    seen: Mutex<Seen>,
}

/// The latest ids, in memory only. To survive a restart, insert the id into a table with a unique index, in the transaction
/// that does the work.
#[derive(Default)]
struct Seen {
    ids: HashSet<String>,
    order: VecDeque<String>,
}

impl Receiver {
    /// Checks the raw bytes: JSON that is parsed and serialised again has different bytes. `verify_slice` compares in constant time,
    /// so a signature cannot be guessed byte by byte.
    fn is_authentic(&self, body: &[u8], headers: &HeaderMap) -> bool {
        let signature = headers.get("x-service-signature").map(hex::decode);
        let Some(Ok(signature)) = signature else {
            return false;
        };
        self.key
            .clone()
            .chain_update(body)
            .verify_slice(&signature)
            .is_ok()
    }

    /// Queues an event unless it has been seen before; false if the queue is full. Every event arrives at least once, sometimes
    /// twice.
    fn accept(&self, event: Event) -> bool {
        let mut seen = self.seen.lock();
        if seen.ids.contains(&event.id) {
            return true;
        }
        let id = event.id.clone();
        if self.waiting.try_send(event).is_err() {
            return false;
        }
        seen.ids.insert(id.clone());
        seen.order.push_back(id);
        if seen.order.len() > MAX_REMEMBERED
            && let Some(oldest) = seen.order.pop_front()
        {
            seen.ids.remove(&oldest);
        }
        true
    }
}

async fn receive(State(receiver): State<Arc<Receiver>>, headers: HeaderMap, body: Body) -> StatusCode {
    let body = match read(body).await {
        Ok(body) => body,
        Err(status) => return status,
    };
    if !receiver.is_authentic(&body, &headers) {
        return StatusCode::UNAUTHORIZED;
    }
    let Ok(event) = serde_json::from_slice::<Event>(&body) else {
        return StatusCode::BAD_REQUEST;
    };
    // The signature covers only the body: without this check, an old event with another id in the header would pass as new.
    if headers
        .get("x-service-event-id")
        .is_none_or(|id| id != event.id.as_str())
    {
        return StatusCode::UNAUTHORIZED;
    }
    if receiver.accept(event) {
        StatusCode::OK
    } else {
        // The queue is full. Any response other than 2xx makes the sender try again later.
        StatusCode::SERVICE_UNAVAILABLE
    }
}

/// Reads the body, unless it is too long or too slow.
async fn read(body: Body) -> Result<Bytes, StatusCode> {
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    match timeout(PATIENCE, to_bytes(body, MAX_BODY)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(_)) => Err(StatusCode::PAYLOAD_TOO_LARGE),
        Err(_) => Err(StatusCode::REQUEST_TIMEOUT),
    }
}

/// Processes accepted events until the queue is closed.
async fn work(mut waiting: mpsc::Receiver<Event>) {
    while let Some(event) = waiting.recv().await {
        let name = event
            .data
            .instance
            .map_or_else(|| "-".to_owned(), |instance| instance.name);
        println!("received {} {} for {name}", event.what, event.id);
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let secret = env::var("WEBHOOK_SECRET").unwrap_or_default();
    if secret.is_empty() {
        return Err("set WEBHOOK_SECRET to the secret of the webhook".into());
    }
    let host = env::var("HOST").map_or(Ok(Ipv4Addr::LOCALHOST.into()), |host| host.parse::<IpAddr>())?;
    let port = env::var("PORT").map_or(Ok(8443), |port| port.parse())?;
    let tls = match env::var("TLS_CERT") {
        Ok(certificate) => Some(acceptor(&certificate, &env::var("TLS_KEY")?)?),
        Err(_) => None,
    };

    let (sender, waiting) = mpsc::channel(MAX_WAITING);
    let worker = tokio::spawn(work(waiting));
    let app = Router::new()
        .fallback(post(receive))
        .with_state(Arc::new(Receiver {
            key: Hmac::new_from_slice(secret.as_bytes())?,
            waiting: sender,
            seen: Mutex::default(),
        }));

    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let listener = TcpListener::bind((host, port)).await?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    println!("listening on {scheme}://{}/", listener.local_addr()?);
    let connections = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // Too many open files, for instance; some will be closed soon.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        tokio::spawn(serve(stream, tls.clone(), app.clone(), connections.watcher()));
    }

    // Accept no more connections, answer the requests in progress, and process what was accepted.
    drop((listener, app));
    let _ = timeout(PATIENCE, connections.shutdown()).await;
    timeout(PATIENCE, worker).await??;
    Ok(())
}

/// Serves one connection. The handshake happens here, so a slow one does not hold up the others.
async fn serve(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    app: Router,
    watcher: hyper_util::server::graceful::Watcher,
) {
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE);
    let service = TowerToHyperService::new(app);
    // If the connection breaks, the sender tries again.
    if let Some(tls) = tls {
        if let Ok(Ok(stream)) = timeout(PATIENCE, tls.accept(stream)).await {
            let _ = watcher
                .watch(http.serve_connection(TokioIo::new(stream), service).into_owned())
                .await;
        }
    } else {
        let _ = watcher
            .watch(http.serve_connection(TokioIo::new(stream), service).into_owned())
            .await;
    }
}

fn acceptor(certificate: &str, key: &str) -> Result<TlsAcceptor, Box<dyn Error>> {
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
