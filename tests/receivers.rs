//! The receivers in `examples/receivers/`: each is run as its README says, and does what a receiver must do.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::Full;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use jiff::Timestamp;
use sender::signature::{self, SigningKeys};

use crate::support::{PATIENCE, STELLAGE, say_not_run};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Where the examples are.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples/receivers")
        .join(name)
}

/// Whether a program is installed that `make test` does not require. If not, reports what was not tested.
pub fn there_is(program: &str) -> bool {
    let there = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !there {
        say_not_run(&format!(
            "what needs the example receiver for {program}, since {program} is not installed"
        ));
    }
    there
}

/// The receiver in Rust.
pub async fn rust_example() -> PathBuf {
    // `cargo test` has built it already, unless it builds a single test.
    let profile = Path::new(STELLAGE).parent().unwrap();
    let mut build = Command::new(env!("CARGO"));
    build
        .args([
            "build",
            "--quiet",
            "--locked",
            "--workspace",
            "--example",
            "webhook-receiver",
        ])
        .args((profile.file_name().unwrap() == "release").then_some("--release"))
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    // What cargo tells this test about its package: ring would be built anew for it, and most of the rest with it.
    let of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars().filter(|(name, _)| of_package(name)) {
        build.env_remove(name);
    }
    let status = tokio::task::spawn_blocking(move || build.status()).await.unwrap();
    assert!(status.unwrap().success());
    profile.join("examples/webhook-receiver")
}

/// A self-signed certificate for 127.0.0.1.
pub struct Certificate {
    pub folder: tempfile::TempDir,
    pem: String,
}

impl Certificate {
    pub fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let pem = made.cert.pem();
        std::fs::write(folder.path().join("cert.pem"), &pem).unwrap();
        std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        Self { folder, pem }
    }
}

/// A running receiver. Killed when dropped.
pub struct Receiver {
    child: Child,
    lines: mpsc::Receiver<String>,
    url: String,
}

impl Receiver {
    /// Starts it on a free port, with the secret of these tests unless the command has another one.
    pub fn start(mut command: Command, certificate: Option<&Certificate>) -> Self {
        if command.get_envs().all(|(name, _)| name != "WEBHOOK_SECRET") {
            command.env("WEBHOOK_SECRET", SECRET);
        }
        command
            .env("PORT", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if let Some(certificate) = certificate {
            command
                .env("TLS_CERT", certificate.folder.path().join("cert.pem"))
                .env("TLS_KEY", certificate.folder.path().join("key.pem"));
        }
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut receiver = Self {
            child,
            lines,
            url: String::new(),
        };
        let first = receiver.line();
        first
            .strip_prefix("listening on ")
            .unwrap_or_else(|| panic!("not the first line of a receiver: {first}"))
            .clone_into(&mut receiver.url);
        receiver
    }

    /// The next line of its output.
    pub fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line in time")
    }

    pub fn port(&self) -> u16 {
        let (_, port) = self.url.trim_end_matches('/').rsplit_once(':').unwrap();
        port.parse().unwrap()
    }

    /// Sends a delivery and returns the status of the answer.
    async fn post(&self, headers: HeaderMap, body: &str, certificate: Option<&Certificate>) -> u16 {
        let mut roots = rustls::RootCertStore::empty();
        if let Some(certificate) = certificate {
            use rustls::pki_types::{CertificateDer, pem::PemObject as _};
            roots
                .add(CertificateDer::from_pem_slice(certificate.pem.as_bytes()).unwrap())
                .unwrap();
        }
        let tls =
            rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth();
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .build();
        let mut request = Request::new(Full::new(Bytes::from(body.to_owned())));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.parse().unwrap();
        *request.headers_mut() = headers;
        let answer = Client::builder(TokioExecutor::new())
            .build(connector)
            .request(request);
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        answer.expect("an answer in time").unwrap().status().as_u16()
    }

    /// Announces a body of this length without sending it, and returns the status of the answer.
    fn announce(&self, length: usize) -> u16 {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!("POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n{{");
        stream.write_all(head.as_bytes()).unwrap();
        let mut line = [0; 12];
        stream.read_exact(&mut line).unwrap();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// Sends SIGTERM; fails unless it exits in time, with success, and without further output.
    fn stop(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").arg(pid).status().unwrap().success());
        let deadline = std::time::Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(std::time::Instant::now() < deadline, "still runs after SIGTERM");
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(status.success(), "{status}");
        let rest: Vec<String> = self.lines.iter().collect();
        assert!(rest.is_empty(), "{rest:?}");
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn body(id: &str) -> String {
    format!(
        r#"{{"id":"{id}","type":"instance.started","created_at":"2026-11-21T10:00:00.000Z","data":{{"instance":{{"name":"wéb"}}}}}}"#
    )
}

fn signed(secret: &str, id: &str, body: &str) -> HeaderMap {
    let now = Timestamp::now();
    signature::headers(
        &SigningKeys::new(secret, None),
        id,
        "instance.started",
        now,
        now,
        body.as_bytes(),
    )
}

/// What every receiver must do (specification, sections 6.4 and 6.5).
async fn does_what_a_receiver_must(command: impl Fn() -> Command) {
    let receiver = Receiver::start(command(), None);
    let first = body("evt_first");
    let headers = signed(SECRET, "evt_first", &first);
    assert_eq!(receiver.post(headers.clone(), &first, None).await, 200);
    assert_eq!(receiver.line(), "received instance.started evt_first for wéb");

    // Again, as after a lost answer: accepted, but not processed again.
    assert_eq!(receiver.post(headers.clone(), &first, None).await, 200);
    // A changed body, another secret, no signature, a replay with another id, a body that is too long.
    let changed = first.replace("wéb", "web");
    assert_eq!(receiver.post(headers.clone(), &changed, None).await, 401);
    let forged = body("evt_forged");
    let wrong = signed("whsec_wrong", "evt_forged", &forged);
    assert_eq!(receiver.post(wrong, &forged, None).await, 401);
    assert_eq!(receiver.post(HeaderMap::new(), &forged, None).await, 401);
    let mut replayed = headers;
    replayed.insert("x-service-event-id", "evt_replayed".parse().unwrap());
    assert_eq!(receiver.post(replayed, &first, None).await, 401);
    assert_eq!(receiver.announce(300 * 1024), 413);

    // The next line is about the next event: none of those was processed.
    let last = body("evt_last");
    let headers = signed(SECRET, "evt_last", &last);
    assert_eq!(receiver.post(headers, &last, None).await, 200);
    assert_eq!(receiver.line(), "received instance.started evt_last for wéb");
    receiver.stop();

    let certificate = Certificate::new();
    let receiver = Receiver::start(command(), Some(&certificate));
    assert!(receiver.url.starts_with("https://"), "{}", receiver.url);
    let headers = signed(SECRET, "evt_first", &first);
    // A silent connection does not block others.
    let silent = TcpStream::connect((Ipv4Addr::LOCALHOST, receiver.port())).unwrap();
    assert_eq!(receiver.post(headers, &first, Some(&certificate)).await, 200);
    assert_eq!(receiver.line(), "received instance.started evt_first for wéb");
    drop(silent);
    receiver.stop();
}

#[tokio::test]
async fn the_receiver_in_python_does_what_a_receiver_must() {
    if there_is("python3") {
        does_what_a_receiver_must(|| {
            let mut command = Command::new("python3");
            command.arg(folder("python/receiver.py"));
            command
        })
        .await;
    }
}

#[tokio::test]
async fn the_receiver_in_node_does_what_a_receiver_must() {
    if there_is("node") {
        does_what_a_receiver_must(|| {
            let mut command = Command::new("node");
            command.arg(folder("node/receiver.mjs"));
            command
        })
        .await;
    }
}

#[tokio::test]
async fn the_receiver_in_go_does_what_a_receiver_must() {
    // `go run` would exit on SIGTERM without forwarding it.
    let output = tempfile::tempdir().unwrap();
    let binary = output.path().join("receiver");
    let mut build = Command::new("go");
    build
        .args(["build", "-o"])
        .arg(&binary)
        .arg("main.go")
        .current_dir(folder("go"));
    let status = tokio::task::spawn_blocking(move || build.status()).await.unwrap();
    assert!(status.unwrap().success());
    does_what_a_receiver_must(|| Command::new(&binary)).await;
}

#[tokio::test]
async fn the_receiver_in_rust_does_what_a_receiver_must() {
    let program = rust_example().await;
    does_what_a_receiver_must(|| Command::new(&program)).await;
}
