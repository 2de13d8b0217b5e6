//! `stellage listen` with a real API server. No controller runs; the tests write the outboxes themselves.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader},
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, routing::post};
use control_plane::{ControlPlane, Identity};
use kube::{Api, api::PostParams};
use resources::Instance;
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc as async_mpsc},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring},
    server::TlsStream,
};

use crate::support::{
    Change as _, Operator, OwnPlane, PATIENCE, STELLAGE, Tenant, own_plane, spec, stellage_words,
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// An account on its own control plane, whose operator has been stopped.
async fn account(name: &str) -> (OwnPlane, Api<Instance>) {
    let plane = own_plane().await;
    let mut operator = Operator::start(&plane, &["run"]).await;
    let tenant = Tenant::on(&plane, &operator, name).await;
    operator.stop().await;
    let client = crate::support::as_operator(&plane).await;
    (plane, Api::namespaced(client, &tenant.namespace))
}

async fn create(instances: &Api<Instance>, name: &str) {
    instances
        .create(&PostParams::default(), &Instance::new(name, spec()))
        .await
        .unwrap();
}

fn body(id: &str, event_type: &str, name: &str) -> String {
    format!(
        r#"{{"id":"{id}","type":"{event_type}","created_at":"2026-11-21T10:00:00.000Z","data":{{"instance":{{"name":"{name}","status":"running"}}}}}}"#
    )
}

fn entry(id: &str, event_type: &str, name: &str) -> Value {
    json!({
        "id": id, "type": event_type, "sequence": 1, "createdAt": "2026-11-21T10:00:00Z",
        "body": body(id, event_type, name),
    })
}

/// Writes the status as the controller does, with these `instance.started` events in the outbox.
async fn record(instances: &Api<Instance>, name: &str, ids: &[&str]) {
    let outbox: Vec<_> = ids.iter().map(|id| entry(id, "instance.started", name)).collect();
    record_entries(instances, name, &outbox).await;
}

async fn record_entries(instances: &Api<Instance>, name: &str, outbox: &[Value]) {
    instances
        .merge_status(name, &json!({ "status": { "outbox": outbox } }))
        .await;
}

/// A running `stellage listen`. Killed when dropped.
struct Listen {
    child: Child,
    output: mpsc::Receiver<String>,
    notes: mpsc::Receiver<String>,
}

impl Listen {
    /// Starts it and waits until it listens. It trusts the certificates in the file `roots`.
    fn start(plane: &ControlPlane, arguments: &[&str], roots: &Path) -> Self {
        let mut child = Command::new(STELLAGE)
            .args(["listen", "--account"])
            .args(arguments)
            .env("KUBECONFIG", plane.kubeconfig(Identity::Admin))
            .env_remove("STELLAGE_WEBHOOK_SECRET")
            .env("SSL_CERT_FILE", roots)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = lines(child.stdout.take().unwrap());
        let notes = lines(child.stderr.take().unwrap());
        let listen = Self { child, output, notes };
        let first = listen.note();
        assert!(first.starts_with("Listening to the events of account"), "{first}");
        listen
    }

    /// The next line on stdout.
    fn line(&self) -> String {
        self.output.recv_timeout(PATIENCE).expect("a line in time")
    }

    /// The next line on stderr.
    fn note(&self) -> String {
        self.notes.recv_timeout(PATIENCE).expect("a note in time")
    }

    /// The next `count` notes, by event.
    fn outcomes(&self, count: usize) -> HashMap<String, String> {
        let outcomes = (0..count).map(|_| {
            let note = self.note();
            let (id, outcome) = note.split_once(": ").unwrap();
            (id.to_owned(), outcome.to_owned())
        });
        outcomes.collect()
    }

    /// Sends Ctrl-C. Fails unless it exits successfully and without another event.
    fn interrupt(mut self) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-INT", &pid]).status().unwrap();
        assert!(sent.success());
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "still runs after Ctrl-C");
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(status.success(), "{status}");
        let rest: Vec<String> = self.output.iter().collect();
        assert!(rest.is_empty(), "{rest:?}");
    }
}

impl Drop for Listen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(pipe: impl std::io::Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    receiver
}

/// A receiver on loopback. It answers `evt_slow…` only when it is released.
struct Receiver {
    url: String,
    received: async_mpsc::UnboundedReceiver<(HeaderMap, Bytes)>,
    may_answer: Arc<Semaphore>,
    server: tokio::task::JoinHandle<()>,
}

#[derive(Clone)]
struct Shared {
    received: async_mpsc::UnboundedSender<(HeaderMap, Bytes)>,
    may_answer: Arc<Semaphore>,
}

/// A self-signed certificate for `localhost`.
struct Certificate {
    pem: tempfile::NamedTempFile,
    acceptor: TlsAcceptor,
}

impl Certificate {
    fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let pem = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(pem.path(), made.cert.pem()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.into()], made.signing_key.into())
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Self { pem, acceptor }
    }
}

struct Tls(TcpListener, TlsAcceptor);

impl axum::serve::Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, peer) = self.0.accept().await.unwrap();
        (self.1.accept(stream).await.unwrap(), peer)
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

impl Receiver {
    /// Starts a receiver, with TLS if there is a certificate.
    async fn start(certificate: Option<&Certificate>) -> Self {
        let (sender, received) = async_mpsc::unbounded_channel();
        let may_answer = Arc::new(Semaphore::new(0));
        let shared = Shared {
            received: sender,
            may_answer: Arc::clone(&may_answer),
        };
        let app = Router::new().route("/hook", post(receive)).with_state(shared);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (url, server) = if let Some(certificate) = certificate {
            let listener = Tls(listener, certificate.acceptor.clone());
            let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
            (format!("https://localhost:{port}/hook"), server)
        } else {
            let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
            (format!("http://127.0.0.1:{port}/hook"), server)
        };
        Self {
            url,
            received,
            may_answer,
            server,
        }
    }

    /// The id of the next event, verified.
    async fn next(&mut self) -> String {
        let next = tokio::time::timeout(PATIENCE, self.received.recv()).await;
        let (headers, bytes) = next.expect("an event in time").unwrap();
        Webhook::new(SECRET).unwrap().verify(&bytes, &headers).unwrap();
        let id = headers["x-service-event-id"].to_str().unwrap().to_owned();
        let name = if id.contains("_b") { "b" } else { "a" };
        let event_type = if id == "evt_b_off" {
            "instance.stopped"
        } else {
            "instance.started"
        };
        assert_eq!(bytes, body(&id, event_type, name));
        assert_eq!(headers["x-service-event-type"], event_type);
        assert_eq!(headers["content-type"], "application/json");
        id
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn receive(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) {
    let is_slow = headers["x-service-event-id"]
        .to_str()
        .unwrap()
        .starts_with("evt_slow");
    shared.received.send((headers, body)).unwrap();
    if is_slow {
        shared.may_answer.acquire().await.unwrap().forget();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn listen_shows_every_event_that_is_recorded_once_and_passes_it_on_signed_like_a_delivery() {
    let (plane, instances) = account("ada").await;
    create(&instances, "a").await;
    create(&instances, "b").await;
    record(&instances, "a", &["evt_old"]).await;

    let certificate = Certificate::new();
    let roots = certificate.pem.path();
    let mut receiver = Receiver::start(None).await;
    let url = receiver.url.clone();
    let to_it = ["ada", "--forward", &url, "--secret", SECRET];
    let listen = Listen::start(&plane, &to_it, roots);
    assert!(listen.note().contains(&url));
    let mut secure_receiver = Receiver::start(Some(&certificate)).await;
    let stopped = Listen::start(
        &plane,
        &[
            "ada",
            "--events",
            "instance.stopped,instance.deleted",
            "--output",
            "json",
            "--forward",
            &secure_receiver.url,
            "--secret",
            SECRET,
        ],
        roots,
    );
    assert!(stopped.note().contains("https://localhost:"));

    // As fast as the API server can write: an event may be in only one version of the object, or in several.
    let mut expected = Vec::new();
    for round in 0..20 {
        let (one, two) = (format!("evt_{round}"), format!("evt_{round}_and"));
        record(&instances, "a", &[&one]).await;
        record(&instances, "a", &[&one, &two]).await;
        record(&instances, "a", &[]).await;
        expected.extend([one, two]);
    }
    for id in &expected {
        let line = listen.line();
        assert_eq!(
            line,
            format!("2026-11-21T10:00:00.000Z   instance.started   {id}   a   running")
        );
        // Events of one instance arrive in order.
        assert_eq!(&receiver.next().await, id);
    }
    let outcomes = listen.outcomes(expected.len());
    for id in &expected {
        assert!(outcomes[id].starts_with("200 OK in "), "{outcomes:?}");
    }

    // A slow answer delays only events of the same instance.
    record(&instances, "b", &["evt_slow_b", "evt_after_b"]).await;
    assert_eq!(receiver.next().await, "evt_slow_b");
    record(&instances, "a", &["evt_meanwhile"]).await;
    assert_eq!(receiver.next().await, "evt_meanwhile");
    receiver.may_answer.add_permits(1);
    assert_eq!(receiver.next().await, "evt_after_b");
    let shown = [listen.line(), listen.line(), listen.line()].concat();
    for id in ["evt_slow_b", "evt_after_b", "evt_meanwhile"] {
        assert!(shown.contains(id), "{shown}");
    }
    assert_eq!(listen.outcomes(3).len(), 3);

    // A stopped receiver is reported, and the next event is still shown.
    drop(receiver);
    record(&instances, "a", &["evt_unheard"]).await;
    assert!(listen.line().contains("evt_unheard"));
    let outcomes = listen.outcomes(1);
    assert!(
        outcomes["evt_unheard"].starts_with("not delivered: "),
        "{outcomes:?}"
    );

    // The other one has shown nothing so far, because no event had its types.
    record_entries(&instances, "b", &[entry("evt_b_off", "instance.stopped", "b")]).await;
    assert_eq!(stopped.line(), body("evt_b_off", "instance.stopped", "b"));
    assert!(listen.line().contains("evt_b_off"));
    assert_eq!(secure_receiver.next().await, "evt_b_off");
    assert!(stopped.outcomes(1)["evt_b_off"].starts_with("200 OK in "));
    stopped.interrupt();

    // Events recorded just before and after an outage of the API server are not missed.
    plane.kill_apiserver().unwrap();
    plane.start_apiserver().await.unwrap();
    record(&instances, "b", &["evt_later"]).await;
    assert!(listen.line().contains("evt_later"));
    listen.interrupt();
}

#[tokio::test]
async fn listen_says_what_is_wrong_and_what_to_do() {
    let cluster = crate::support::shared().await;
    for (arguments, expected) in [
        (
            &["listen", "--account", "nobody"][..],
            "there is no account nobody",
        ),
        (
            &["listen", "--account", "nobody", "--forward", "localhost:80"],
            "must begin with http:// or https://",
        ),
        (
            &["listen", "--account", "nobody", "--secret", ""],
            "must have 1 to 255 characters",
        ),
        (
            &["listen", "--account", "nobody", "--events", "instance.moved"],
            "instance.created",
        ),
    ] {
        let error = stellage_words(cluster.plane, arguments).unwrap_err();
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}
