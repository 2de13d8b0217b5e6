//! (e): the speed of the sender alone: signed posts to fifty receivers without an API server, compared with the same number of
//! posts by a bare client: hyper and rustls, open connections, constant headers, no signature, no deadline, no check of the
//! address. The two take turns, over HTTP/2 and over HTTP/1.1.
//!
//! The receivers run on the same two cores. Their CPU time is shown, because in production they run elsewhere.

use std::{
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use bytes::Bytes;
use domain::event::{EventType, OutboxEntry};
use http::{HeaderMap, Method, Request, header::HOST};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::Timestamp;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use sender::{
    ClientSettings, ReceiverClient, TargetRules,
    signature::{self, SigningKeys},
};
use tokio::{net::TcpStream, task::JoinSet};
use tokio_rustls::TlsConnector;

use super::{
    kit::Authority,
    receivers::{self, Receivers},
};
use crate::{
    Result,
    latencies::as_f64,
    objects,
    processes::{load_average, processor_time},
    samples::{self, Samples, Unit},
    say,
    sizes::Sizes,
    table::{Aim, Table},
};

const RECEIVERS: usize = 50;
/// Concurrent posts to each receiver.
const EACH: usize = 4;

/// One turn of a side.
struct Turn {
    rate: f64,
    /// CPU time per post, in microseconds.
    cost: f64,
    receivers_cost: f64,
}

/// Measures both protocols.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    for (name, alpn) in [("HTTP/2", receivers::BOTH), ("HTTP/1.1", receivers::HTTP1)] {
        say(&format!("webhooks (e) the sender alone, {name}"));
        let receivers = Receivers::start(RECEIVERS, alpn)?;
        let (mut ours, mut bares) = (Vec::new(), Vec::new());
        for _ in 0..sizes.rounds {
            ours.push(turn("sender", sizes, &receivers, our_posts(&receivers)?).await?);
            bares.push(
                turn(
                    "bare client",
                    sizes,
                    &receivers,
                    bare_posts(&receivers, alpn).await?,
                )
                .await?,
            );
        }
        report(table, name, &ours, &bares);
    }
    Ok(())
}

fn report(table: &mut Table, name: &str, ours: &[Turn], bares: &[Turn]) {
    let each = |turns: &[Turn], of: fn(&Turn) -> f64| -> Samples { turns.iter().map(of).collect() };
    let mut line = |what: &str, of: fn(&Turn) -> f64, unit: Unit| {
        table.compare(what, &each(ours, of), &each(bares, of), unit, None);
    };
    line(
        &format!("webhooks (e) posts/s over {name}, signed : bare client"),
        |turn| turn.rate,
        samples::PER_SECOND,
    );
    line("    sender's CPU time a post", |turn| turn.cost, samples::MICROS);
    line(
        "    receivers' CPU time a post",
        |turn| turn.receivers_cost,
        samples::MICROS,
    );
    table.value(
        "    signed posts/s, receivers on the same cores",
        &each(ours, |turn| turn.rate),
        samples::PER_SECOND,
        Some(Aim::AtLeast(5000.0)),
    );
}

/// Sends one post. Returns whether it was answered with 200.
type Post = Box<dyn FnMut() -> Sending + Send>;
type Sending = futures::future::BoxFuture<'static, bool>;

async fn turn(name: &str, sizes: &Sizes, receivers: &Receivers, posts: Vec<Post>) -> Result<Turn> {
    let (sent, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for mut post in posts {
        let (sent, failed, over) = (Arc::clone(&sent), Arc::clone(&failed), Arc::clone(&over));
        tasks.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let counter = if post().await { &sent } else { &failed };
                counter.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tokio::time::sleep(sizes.warm_up).await;
    let own = std::process::id();
    let now = || -> Result<_> {
        let (all, theirs) = (processor_time(own)?, receivers.processor_time()?);
        Ok((sent.load(Ordering::Relaxed), all - theirs, theirs, Instant::now()))
    };
    let (count, used, theirs, begun) = now()?;
    tokio::time::sleep(sizes.measured).await;
    let (count_after, used_after, theirs_after, ended) = now()?;
    over.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended?;
    }
    if failed.load(Ordering::Relaxed) > 0 {
        return Err(format!("{name}: {failed:?} posts failed").into());
    }
    let posts = as_f64(count_after - count);
    let turn = Turn {
        rate: posts / (ended - begun).as_secs_f64(),
        cost: (used_after - used) / posts * 1e6,
        receivers_cost: (theirs_after - theirs) / posts * 1e6,
    };
    say(&format!(
        "  {name}: {:.0} posts/s, {:.0} µs of CPU time each, receivers {:.0} µs; {} connections so far; load {}",
        turn.rate,
        turn.cost,
        turn.receivers_cost,
        receivers.connections(),
        load_average()
    ));
    Ok(turn)
}

/// An event of the usual size.
fn event(n: i64) -> OutboxEntry {
    let now = Timestamp::now();
    let body = serde_json::json!({
        "id": format!("evt_{n:016}"), "type": "instance.stopped", "created_at": format!("{now:.3}"),
        "data": { "instance": {
            "id": "i-4q7hz0c9k2m8x1ta", "name": "web-1", "status": "stopped", "plan": "starter", "region": "fr-par-1",
            "ip_address": "198.18.0.7",
        } },
    });
    OutboxEntry {
        id: format!("evt_{n:016}"),
        sequence: n,
        event_type: EventType::InstanceStopped,
        created_at: now,
        body: body.to_string(),
        traceparent: None,
    }
}

/// The program's client and signature, with an event to send.
pub struct Sender {
    client: ReceiverClient,
    keys: SigningKeys,
    entry: OutboxEntry,
    body: Bytes,
}

impl Sender {
    /// A sender that trusts these receivers and may call loopback.
    pub fn new() -> Result<Self> {
        let mut ca = tempfile::NamedTempFile::new()?;
        ca.write_all(Authority::shared().pem().as_bytes())?;
        let settings = ClientSettings {
            extra_ca: Some(ca.path().to_owned()),
            ..ClientSettings::default()
        };
        let rules = TargetRules {
            allow: vec!["127.0.0.0/8".parse()?],
            ..TargetRules::default()
        };
        let entry = event(1);
        Ok(Self {
            client: ReceiverClient::new(settings, rules)?,
            keys: SigningKeys::new(objects::SIGNING_SECRET, None),
            body: Bytes::from(entry.body.clone()),
            entry,
        })
    }

    /// Signs and posts. Returns whether that succeeded.
    pub async fn post(&self, url: &str) -> bool {
        let Self {
            client,
            keys,
            entry,
            body,
        } = self;
        let kind = entry.event_type.as_str();
        let headers = signature::headers(keys, &entry.id, kind, entry.created_at, Timestamp::now(), body);
        client.post(url, headers, body.clone()).await.is_success()
    }
}

fn our_posts(receivers: &Receivers) -> Result<Vec<Post>> {
    let sender = Arc::new(Sender::new()?);
    let posts = (0..RECEIVERS * EACH).map(|n| {
        let sender = Arc::clone(&sender);
        let url: Arc<str> = receivers.url(n).into();
        let post: Post = Box::new(move || {
            let (sender, url) = (Arc::clone(&sender), Arc::clone(&url));
            Box::pin(async move { sender.post(&url).await })
        });
        post
    });
    Ok(posts.collect())
}

async fn bare_posts(receivers: &Receivers, alpn: &[&str]) -> Result<Vec<Post>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(
        Authority::shared().pem().as_bytes(),
    )?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let tls = TlsConnector::from(Arc::new(config));
    let body = Bytes::from(event(1).body);
    let keys = SigningKeys::new(objects::SIGNING_SECRET, None);
    let now = Timestamp::now();
    let headers = signature::headers(&keys, "evt_0000000000000001", "instance.stopped", now, now, &body);
    let mut posts = Vec::new();
    for n in 0..RECEIVERS {
        let url = receivers.url(n);
        let authority = url
            .trim_start_matches("https://")
            .trim_end_matches("/hook")
            .to_owned();
        let connect = async || -> Result<_> {
            let tcp = TcpStream::connect(&authority).await?;
            tcp.set_nodelay(true)?;
            let name = ServerName::try_from("127.0.0.1")?;
            Ok(TokioIo::new(tls.connect(name, tcp).await?))
        };
        if alpn == receivers::BOTH {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), connect().await?).await?;
            tokio::spawn(connection);
            for _ in 0..EACH {
                let (sender, url, headers, body) =
                    (sender.clone(), url.clone(), headers.clone(), body.clone());
                posts.push(Box::new(move || {
                    let mut sender = sender.clone();
                    let request = request(&url, None, &headers, &body);
                    Box::pin(async move {
                        match sender.send_request(request).await {
                            Ok(answer) => answer.status() == 200 && answer.collect().await.is_ok(),
                            Err(_) => false,
                        }
                    }) as Sending
                }) as Post);
            }
        } else {
            for _ in 0..EACH {
                let (sender, connection) = http1::handshake(connect().await?).await?;
                tokio::spawn(connection);
                let sender = Arc::new(tokio::sync::Mutex::new(sender));
                let (authority, headers, body) = (authority.clone(), headers.clone(), body.clone());
                posts.push(Box::new(move || {
                    let sender = Arc::clone(&sender);
                    let request = request("/hook", Some(&authority), &headers, &body);
                    Box::pin(async move {
                        let mut sender = sender.lock().await;
                        if sender.ready().await.is_err() {
                            return false;
                        }
                        match sender.send_request(request).await {
                            Ok(answer) => answer.status() == 200 && answer.collect().await.is_ok(),
                            Err(_) => false,
                        }
                    }) as Sending
                }) as Post);
            }
        }
    }
    Ok(posts)
}

fn request(uri: &str, host: Option<&str>, headers: &HeaderMap, body: &Bytes) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body.clone()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri.parse().unwrap_or_default();
    *request.headers_mut() = headers.clone();
    if let Some(host) = host.and_then(|host| host.parse().ok()) {
        request.headers_mut().insert(HOST, host);
    }
    request
}
