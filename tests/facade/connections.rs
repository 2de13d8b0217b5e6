//! What clients see below HTTP: unreadable requests, TLS, and addresses that the operator discovers itself.

use std::{
    net::IpAddr,
    path::Path,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use reqwest::{Certificate, Client, Method};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::contract::code;
use crate::support::{Operator, PATIENCE, Tenant, eventually, receivers::Authority, shared, stellage_words};

/// An answer that takes longer was held up by the machine or by an attack.
const SLOW: Duration = Duration::from_secs(5);

/// Sends a text to the facade; returns the head and the body of the answer.
async fn answer_to(url: &str, text: &str) -> (String, Value) {
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut answer = Vec::new();
    timeout(PATIENCE, async {
        let _ = stream.write_all(text.as_bytes()).await;
        let _ = stream.read_to_end(&mut answer).await;
    })
    .await
    .unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("{answer:?}"));
    (head.to_ascii_lowercase(), serde_json::from_str(body).unwrap())
}

#[tokio::test]
async fn a_request_that_cannot_be_read_is_answered_in_the_format_of_all_errors() {
    let url = &shared().await.operator.url;
    let large = format!("GET /v1/plans HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(64 * 1024));
    for (text, status, code) in [
        ("GET /v1/plans HTTP/9.9\r\n\r\n", "400 bad request", "bad_request"),
        ("what is this\r\n\r\n", "400 bad request", "bad_request"),
        (&large, "431 request header fields too large", "headers_too_large"),
        // Its end never arrives.
        (
            "GET /v1/plans HTTP/1.1\r\nhost: a\r\n",
            "408 request timeout",
            "request_timeout",
        ),
    ] {
        let (head, body) = answer_to(url, text).await;
        assert!(head.starts_with(&format!("http/1.1 {status}\r\n")), "{head}");
        assert_eq!(body["error"]["code"], code);
        let id = body["error"]["request_id"].as_str().unwrap();
        assert!(head.contains(&format!("x-request-id: {id}")), "{head}");
        assert!(head.contains("content-type: application/json") && head.contains("cache-control: no-store"));
    }
}

#[tokio::test]
async fn a_connection_with_an_unread_body_to_come_is_said_to_be_closed() {
    let url = &shared().await.operator.url;
    let head = "GET /v1/openapi.json HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n";
    let (head, _) = answer_to(url, head).await;
    assert!(head.contains("connection: close"), "{head}");
    // Others are kept.
    let without = "GET /v1/plans HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n";
    let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap())
        .await
        .unwrap();
    for _ in 0..2 {
        stream.write_all(without.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"}") {
            assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0);
        }
        assert!(answer.starts_with(b"HTTP/1.1 401"));
    }
}

#[tokio::test]
async fn clients_and_probes_are_answered_while_another_address_makes_more_connections_to_the_api_than_it_takes()
 {
    const AT_ONCE: usize = 100;
    let mut operator = Operator::start(
        shared().await.plane,
        &["api", &format!("--max-connections={AT_ONCE}")],
    )
    .await;
    let address = operator.url.strip_prefix("http://").unwrap().to_owned();
    // Each probe has its own connection, like the kubelet's.
    let probe = Client::builder()
        .pool_max_idle_per_host(0)
        .timeout(Duration::from_secs(60))
        .build()
        .unwrap();
    let client = Client::builder()
        .local_address(IpAddr::from([127, 0, 0, 2]))
        .pool_max_idle_per_host(0)
        .timeout(Duration::from_secs(60))
        .build()
        .unwrap();
    let mut hostile = Vec::new();
    let (mut slowest, mut slow) = (Duration::ZERO, 0);
    for attack in [
        "",
        "GET /v1/plans HTTP/1.1\r\n",
        "GET /v1/openapi.json HTTP/1.1\r\nhost: a\r\n\r\n",
    ] {
        for _ in 0..AT_ONCE {
            let mut stream = TcpStream::connect(&address).await.unwrap();
            let _ = stream.write_all(attack.as_bytes()).await;
            hostile.push(stream);
            if hostile.len() % 10 == 0 {
                let begun = Instant::now();
                for path in ["healthz", "readyz"] {
                    let answer = probe.get(format!("{}/{path}", operator.metrics_url)).send().await;
                    assert_eq!(answer.unwrap().status(), 200, "{path} during {attack:?}");
                }
                let answer = client
                    .get(format!("{}/v1/openapi.json", operator.url))
                    .send()
                    .await;
                assert_eq!(answer.unwrap().status(), 200, "a client during {attack:?}");
                let took = begun.elapsed();
                slowest = slowest.max(took);
                slow += usize::from(took > SLOW);
            }
        }
    }
    println!(
        "a client and two probes took at most {slowest:.1?} while {} connections were opened",
        hostile.len()
    );
    // The machine may stall once.
    assert!(
        slow <= 1,
        "{slow} times a client and two probes took more than {SLOW:?}"
    );
    drop(hostile);
    operator.stop().await;
}

#[tokio::test]
async fn probes_are_answered_while_one_address_holds_many_connections_to_their_port() {
    let mut operator = Operator::start(shared().await.plane, &["api"]).await;
    let address = operator.metrics_url.strip_prefix("http://").unwrap().to_owned();
    let mut hostile = Vec::new();
    let mut give_way = false;
    // The machine may stall once.
    for _ in 0..2 {
        hostile.clear();
        for _ in 0..300 {
            hostile.push(TcpStream::connect(&address).await.unwrap());
        }
        // The oldest connections are closed to make room, long before the deadline for a first request.
        let closed = timeout(SLOW, hostile[0].read(&mut [0])).await;
        give_way |= matches!(closed, Ok(Ok(0) | Err(_)));
    }
    assert!(give_way, "one address keeps 300 connections");
    let probe = Client::builder()
        .timeout(Duration::from_secs(60))
        .build()
        .unwrap();
    for path in ["healthz", "readyz", "metrics"] {
        let answer = probe.get(format!("{}/{path}", operator.metrics_url)).send().await;
        assert_eq!(answer.unwrap().status(), 200, "{path}");
    }
    drop(hostile);
    operator.stop().await;
}

#[tokio::test]
async fn only_the_openapi_document_may_be_cached() {
    let tenant = Tenant::new("no-store").await;
    for path in ["/v1/keys", "/v1/plans", "/v1/nothing", "/v1/instances/x"] {
        let answer = tenant.call(Method::GET, path, None).await;
        assert_eq!(answer.header("cache-control"), "no-store", "{path}");
    }
    let created = tenant.post(201, "/v1/keys", &json!({ "scope": "read" })).await;
    assert_eq!(created.header("cache-control"), "no-store");
    let document = tenant.call(Method::GET, "/v1/openapi.json", None).await;
    assert_eq!(document.header("cache-control"), "public, max-age=300");
}

#[tokio::test]
async fn with_a_certificate_the_api_speaks_tls_and_takes_a_new_one_without_a_restart() {
    let plane = shared().await.plane;
    let folder = tempfile::tempdir().unwrap();
    let (chain, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    let write = |names: &[&str]| {
        let (certificate, secret) = Authority::shared().issue(names);
        std::fs::write(&chain, certificate).unwrap();
        std::fs::write(&key, secret).unwrap();
    };
    write(&["first.test"]);
    let (flag, path) = (
        |name: &str, path: &Path| format!("{name}={}", path.display()),
        "/v1/openapi.json",
    );
    let (certificate, secret) = (flag("--tls-cert", &chain), flag("--tls-key", &key));
    let arguments = ["api", certificate.as_str(), secret.as_str()];
    let mut operator = Operator::start(plane, &arguments).await;
    let address = operator.url.strip_prefix("https://").unwrap().parse().unwrap();
    let client = |name: &str| {
        Client::builder()
            .tls_certs_only([Certificate::from_pem(Authority::shared().pem().as_bytes()).unwrap()])
            .resolve(name, address)
            .pool_max_idle_per_host(0)
            .timeout(Duration::from_secs(30))
            .build()
            .unwrap()
    };
    let ask = async |name: &str| {
        let answer = client(name)
            .get(format!("https://{name}:{}{path}", address.port()))
            .send()
            .await;
        answer.map(|answer| answer.status().as_u16()).ok()
    };
    assert_eq!(
        (ask("first.test").await, ask("second.test").await),
        (Some(200), None)
    );
    write(&["second.test"]);
    eventually(
        "the new certificate",
        async || ask("second.test").await,
        |status| *status == Some(200),
    )
    .await;
    assert_eq!(ask("first.test").await, None);
    operator.stop().await;

    let half = stellage_words(plane, &arguments[..2]).unwrap_err();
    assert!(half.contains("--tls-key"), "{half}");
    let (missing, given) = (
        flag("--tls-cert", &folder.path().join("missing")),
        flag("--tls-key", &key),
    );
    let mut wrong = vec!["api", missing.as_str(), given.as_str()];
    wrong.extend(["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]);
    let wrong = stellage_words(plane, &wrong).unwrap_err();
    assert!(
        wrong.contains("cannot read --tls-cert") && wrong.contains("missing"),
        "{wrong}"
    );
}

#[tokio::test]
async fn addresses_of_the_cluster_are_refused_within_an_allowed_range() {
    let cluster = shared().await;
    let mut tenant = Tenant::new("own-ranges").await;
    let nodes: Api<Node> = Api::all(tenant.kube.clone());
    let node = json!({
        "metadata": { "name": "own-ranges" }, "spec": { "podCIDR": "10.77.0.0/24" },
        "status": { "addresses": [{ "type": "InternalIP", "address": "10.78.0.1" }] },
    });
    let node = serde_json::from_value(node).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let mut operator = Operator::start(cluster.plane, &["api", "--receiver-allow=10.0.0.0/8"]).await;
    tenant.url.clone_from(&operator.url);
    let create = async |host: &str| {
        let body = json!({ "url": format!("https://{host}/"), "events": ["instance.created"] });
        let answer = tenant.call(Method::POST, "/v1/webhooks", Some(&body)).await;
        (
            answer.status.as_u16(),
            if answer.status.is_success() {
                String::new()
            } else {
                code(&answer)
            },
        )
    };
    let refused = (422, "invalid_input".to_owned());
    // The range of services, as the plane sets it; of pods; of a node.
    for host in ["10.0.0.1", "10.77.0.9", "10.78.0.1"] {
        eventually(host, async || create(host).await, |answer| *answer == refused).await;
    }
    for host in ["10.78.0.2", "10.200.0.1"] {
        assert_eq!(create(host).await, (201, String::new()), "{host}");
    }
    operator.stop().await;
    nodes
        .delete("own-ranges", &DeleteParams::default())
        .await
        .unwrap();
}
