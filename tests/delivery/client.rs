//! Attempts: their requests, their outcomes, and what they must never do.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Version, header};
use sender::{ClientError, ClientSettings, ReceiverClient, RetryAfter, TargetRules};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

use super::{Sender, keeping, loopback, short};
use crate::support::receivers::{Answer, Authority, Options, Protocols, Receiver};

#[tokio::test]
async fn a_delivery_arrives_byte_for_byte_and_the_answer_is_noted_down() {
    for (protocols, version) in [
        (Protocols::Http1, Version::HTTP_11),
        (Protocols::Http2, Version::HTTP_2),
        (Protocols::Both, Version::HTTP_2),
    ] {
        let options = Options {
            protocols,
            ..Options::default()
        };
        let receiver = Receiver::with(options, |_| Answer::status(202).body("thanks")).await;
        let sender = Sender::patient(loopback());
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert("x-service-event-id", HeaderValue::from_static("evt_1"));
        let body = Bytes::from_static("{\"naïve\" :  [1,2 ]}\n".as_bytes());
        let outcome = sender
            .client
            .post(&receiver.url("/hook?a=b%20c"), headers, body.clone())
            .await;
        assert!(outcome.is_success(), "{outcome:?}");
        assert_eq!((outcome.status, outcome.response.as_str()), (Some(202), "thanks"));
        assert_eq!(outcome.retry_after, None);
        let request = &receiver.received()[0];
        assert_eq!(request.version, version);
        assert_eq!(
            (request.method.as_str(), request.path.as_str()),
            ("POST", "/hook?a=b%20c")
        );
        assert_eq!(request.body, body);
        assert_eq!(request.header("content-type"), "application/json");
        assert_eq!(request.header("x-service-event-id"), "evt_1");
        assert!(request.header("user-agent").starts_with("Stellage/"));
        for absent in ["accept-encoding", "cookie", "authorization", "transfer-encoding"] {
            assert_eq!(request.header(absent), "", "{absent}");
        }
    }
}

#[tokio::test]
async fn a_connection_is_used_again_even_by_a_receiver_that_answers_at_length() {
    for protocols in [Protocols::Http1, Protocols::Http2] {
        let options = Options {
            protocols,
            ..Options::default()
        };
        let receiver = Receiver::with(options, |_| {
            Answer::ok()
                .header("x-long", &"h".repeat(8000))
                .body(vec![b'x'; 4000])
        })
        .await;
        let sender = Sender::new(keeping(), loopback());
        for _ in 0..200 {
            let outcome = sender.post(&receiver.url("/")).await;
            assert!(outcome.is_success(), "{outcome:?}");
            assert_eq!(outcome.response.len(), 4000);
        }
        assert_eq!(
            (receiver.count(), receiver.connections()),
            (200, 1),
            "{protocols:?}"
        );
    }
}

#[tokio::test]
async fn an_idle_connection_is_closed_soon() {
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let settings = ClientSettings {
        idle_timeout: Duration::from_millis(50),
        ..ClientSettings::default()
    };
    let sender = Sender::new(settings, loopback());
    for _ in 0..2 {
        assert!(sender.post(&receiver.url("/")).await.is_success());
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    assert_eq!(receiver.connections(), 2);
}

#[tokio::test]
async fn a_redirect_is_a_failure_that_names_where_it_leads_and_is_not_followed() {
    let elsewhere = Receiver::start(|_| Answer::ok()).await;
    let location = elsewhere.url("/secret");
    for status in [300, 301, 302, 303, 304, 307, 308] {
        let location = location.clone();
        let receiver = Receiver::start(move |_| Answer::status(status).header("location", &location)).await;
        let outcome = Sender::patient(loopback()).post(&receiver.url("/")).await;
        assert_eq!((outcome.label(), outcome.status), ("redirect", Some(status)));
        assert!(
            outcome
                .error
                .unwrap()
                .to_string()
                .contains(&elsewhere.url("/secret"))
        );
        assert_eq!(receiver.count(), 1);
    }
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test]
async fn only_2xx_is_a_success_and_a_failure_may_say_when_to_come_again() {
    let answers = [
        (200, "success", None),
        (204, "success", None),
        (299, "success", None),
        (400, "status", Some("7")),
        (410, "status", None),
        (429, "status", Some("120")),
        (500, "status", Some("soon")),
        (503, "status", Some("3600")),
    ];
    let receiver = Receiver::queue(answers.map(|(status, _, after)| {
        let answer = Answer::status(status);
        match after {
            Some(after) => answer.header("retry-after", after),
            None => answer,
        }
    }))
    .await;
    let sender = Sender::patient(loopback());
    for (status, label, after) in answers {
        let outcome = sender.post(&receiver.url("/")).await;
        assert_eq!((outcome.status, outcome.label()), (Some(status), label));
        assert_eq!(outcome.is_success(), label == "success");
        let seconds = after.and_then(|after| after.parse().ok());
        let expected = seconds.map(|seconds| RetryAfter::Delay(Duration::from_secs(seconds)));
        assert_eq!(outcome.retry_after, expected, "{status}");
    }
    let receiver = Receiver::queue([Answer::ok().header("retry-after", "120")]).await;
    assert_eq!(sender.post(&receiver.url("/")).await.retry_after, None);
}

#[tokio::test]
async fn the_answer_is_kept_undecoded_and_up_to_four_kilobytes() {
    let answers = [
        Answer::ok()
            .header("content-encoding", "gzip")
            .body("\x1f not packed at all"),
        Answer::ok().body("é".repeat(3000)),
        Answer::ok().body(vec![0xff; 5000]),
        Answer::status(500).body(vec![b'x'; 1_000_000]),
    ];
    let receiver = Receiver::queue(answers).await;
    let sender = Sender::patient(loopback());
    let mut responses = Vec::new();
    for _ in 0..4 {
        let outcome = sender.post(&receiver.url("/")).await;
        assert!(outcome.status.is_some(), "{outcome:?}");
        responses.push(outcome.response);
    }
    assert_eq!(responses[0], "\x1f not packed at all");
    assert_eq!(responses[1], "é".repeat(2048));
    assert_eq!(responses[2], "\u{fffd}".repeat(4096 / 3));
    assert_eq!(responses[3], "x".repeat(4096));
    assert_eq!(receiver.count(), 4);
}

/// A receiver that closes each connection after one request, either after or before the answer. It counts
/// requests.
async fn closing(
    tls: Arc<ServerConfig>,
    answers: &'static [&'static str],
) -> (String, Arc<AtomicUsize>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let seen = requests.clone();
    let tls = TlsAcceptor::from(tls);
    let mut server = JoinSet::new();
    server.spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let mut stream = tls.accept(tcp).await.unwrap();
            for answer in answers {
                let mut request = Vec::new();
                while !request.ends_with(b"}") {
                    if stream.read_buf(&mut request).await.unwrap() == 0 {
                        break;
                    }
                }
                seen.fetch_add(usize::from(!request.is_empty()), Ordering::SeqCst);
                stream.write_all(answer.as_bytes()).await.unwrap();
                stream.flush().await.unwrap();
            }
        }
    });
    (url, requests, server)
}

const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

#[tokio::test]
async fn a_request_on_a_connection_that_the_receiver_closes_is_not_sent_again() {
    let tls = Authority::shared().server(&["127.0.0.1"], &["http/1.1"]);
    let (url, requests, _server) = closing(tls, &[EMPTY, ""]).await;
    let sender = Sender::new(keeping(), loopback());
    assert_eq!(sender.post(&url).await.label(), "success");
    let outcome = sender.post(&url).await;
    assert_eq!((outcome.label(), outcome.status), ("reset", None), "{outcome:?}");
    assert_eq!(requests.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_connection_closed_while_it_is_taken_again_costs_no_request_and_doubles_none() {
    let tls = Authority::shared().server(&["127.0.0.1"], &["http/1.1"]);
    let (url, requests, _server) = closing(tls, &[EMPTY]).await;
    let sender = Sender::patient(loopback());
    let mut successes = 0;
    for _ in 0..50 {
        let outcome = sender.post(&url).await;
        assert!(outcome.is_success() || outcome.label() == "reset", "{outcome:?}");
        successes += usize::from(outcome.is_success());
    }
    assert_eq!(requests.load(Ordering::SeqCst), successes);
}

#[tokio::test]
async fn a_receiver_that_knows_tls_1_2_alone_is_reached() {
    let tls = Authority::shared().server_with_tls12(&["127.0.0.1"], &[]);
    let (url, requests, _server) = closing(tls, &[EMPTY]).await;
    assert!(Sender::patient(loopback()).post(&url).await.is_success());
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn after_a_timeout_over_http2_the_next_attempt_has_a_connection_of_its_own() {
    let receiver = Receiver::queue([
        Answer::ok(),
        Answer::ok().after(Duration::from_secs(60)),
        Answer::ok(),
    ])
    .await;
    let settings = ClientSettings {
        idle_timeout: keeping().idle_timeout,
        ..short()
    };
    let sender = Sender::new(settings, loopback());
    assert_eq!(sender.post(&receiver.url("/")).await.label(), "success");
    assert_eq!(sender.post(&receiver.url("/")).await.label(), "timeout");
    assert_eq!(sender.post(&receiver.url("/")).await.label(), "success");
    let connections: Vec<usize> = receiver
        .received()
        .iter()
        .map(|request| request.connection)
        .collect();
    assert_eq!(connections, [1, 1, 2]);
}

#[tokio::test]
async fn where_nobody_listens_the_outcome_says_so() {
    // Bound, so that nobody else gets its port, but not listening.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("https://{}/", socket.local_addr().unwrap());
    let outcome = Sender::patient(loopback()).post(&url).await;
    assert_eq!(outcome.label(), "connect");
    assert_eq!(
        outcome.error.unwrap().to_string(),
        "cannot connect to the receiver: connection refused"
    );
}

/// Runs this program again with a proxy in all the usual environment variables.
#[tokio::test]
async fn proxies_named_in_the_environment_are_ignored() {
    const CHILD: &str = "STELLAGE_TEST_WITH_PROXIES";
    if std::env::var_os(CHILD).is_some() {
        let receiver = Receiver::start(|_| Answer::ok()).await;
        let outcome = Sender::patient(loopback()).post(&receiver.url("/")).await;
        assert!(outcome.is_success(), "{outcome:?}");
        return;
    }
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = proxy.local_addr().unwrap();
    let itself = "delivery::client::proxies_named_in_the_environment_are_ignored";
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([itself, "--exact"])
        .env(CHILD, "1")
        .env_remove("NO_PROXY")
        .env_remove("no_proxy");
    for name in [
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "ALL_PROXY",
        "https_proxy",
        "http_proxy",
        "all_proxy",
    ] {
        command.env(name, format!("http://{address}"));
    }
    let output = tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    let called = tokio::time::timeout(Duration::from_millis(1), proxy.accept()).await;
    assert!(called.is_err(), "the proxy was called");
}

#[tokio::test]
async fn a_wrong_file_of_authorities_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let new = |name: &str| {
        let settings = ClientSettings {
            extra_ca: Some(folder.path().join(name)),
            ..ClientSettings::default()
        };
        ReceiverClient::new(settings, TargetRules::default()).err()
    };
    std::fs::write(folder.path().join("empty.pem"), "").unwrap();
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    std::fs::write(folder.path().join("broken.pem"), broken).unwrap();
    for name in ["missing.pem", "empty.pem", "broken.pem"] {
        let error = new(name).unwrap();
        assert!(matches!(error, ClientError::Ca { .. }), "{error}");
        let message = error.to_string();
        assert!(
            message.contains(name) && message.contains("--receiver-ca"),
            "{message}"
        );
    }
    std::fs::write(folder.path().join("good.pem"), Receiver::ca_pem()).unwrap();
    assert!(new("good.pem").is_none());
}

#[tokio::test]
async fn without_the_administrators_authority_its_receivers_are_unknown() {
    let receiver = Receiver::start(|_| Answer::ok()).await;
    // Another authority replaces the system's root certificates, which may be missing.
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.pem");
    std::fs::write(&other, Authority::new().pem()).unwrap();
    let settings = ClientSettings {
        extra_ca: Some(other),
        ..ClientSettings::default()
    };
    let client = ReceiverClient::new(settings, loopback()).unwrap();
    let outcome = client
        .post(&receiver.url("/"), HeaderMap::new(), Bytes::new())
        .await;
    assert_eq!(outcome.label(), "tls_unknown_issuer");
    assert_eq!(receiver.count(), 0);
}
