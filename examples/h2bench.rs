#![allow(missing_docs, clippy::all, clippy::pedantic)]
use std::{sync::Arc, time::Instant};
use axum::body::Body;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use stellage::{facade::{Facade, Dependencies}, runtime::{Metrics, SystemClock, watch::Change}, catalogue::Catalogue, lifecycle::Timings, providers::simulator::SimulatedUsage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
fn parse<T: serde::de::DeserializeOwned>(v: Value) -> Arc<T> { Arc::new(serde_json::from_value(v).unwrap()) }
fn rss() -> u64 { std::fs::read_to_string("/proc/self/status").unwrap().lines().find(|l| l.starts_with("VmRSS")).unwrap().split_whitespace().nth(1).unwrap().parse().unwrap() }
async fn load(addr: std::net::SocketAddr, req: String, n: usize) -> f64 {
    let start = Instant::now();
    let tasks: Vec<_> = (0..16).map(|_| { let req = req.clone(); tokio::spawn(async move {
        let mut s = tokio::net::TcpStream::connect(addr).await.unwrap(); s.set_nodelay(true).unwrap();
        let mut buf = vec![0u8; 65536];
        for _ in 0..n { s.write_all(req.as_bytes()).await.unwrap();
            let mut got = 0; let mut want = usize::MAX;
            while got < want { let k = s.read(&mut buf[got..]).await.unwrap(); assert!(k > 0); got += k;
                if want == usize::MAX { if let Some(h) = buf[..got].windows(4).position(|w| w == b"\r\n\r\n") {
                    let head = std::str::from_utf8(&buf[..h]).unwrap().to_ascii_lowercase(); assert!(head.contains("200 ok"), "{head}");
                    let l: usize = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap().parse().unwrap(); want = h + 4 + l; } } } }
    }) }).collect();
    for t in tasks { t.await.unwrap(); }
    (16 * n) as f64 / start.elapsed().as_secs_f64()
}
fn main() {
    let server = tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("server").enable_all().build().unwrap();
    let client = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    server.block_on(async {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let facade = Facade::new(Dependencies { client: kube::Client::try_from(config).unwrap(), clock: Arc::new(SystemClock), metrics: Metrics::new(), catalogue: Catalogue::default(), timings: Timings::default(), usage: Box::new(SimulatedUsage) });
        let mut l = facade.listeners();
        l.accounts.changed(&Change::Replaced(vec![parse(json!({ "metadata": { "name": "demo", "uid": "a" }, "spec": { "email": "a@e.c", "rateLimitPerHour": 1000000000 }, "status": { "namespace": "demo", "conditions": [{ "type": "NamespaceReady", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-11-21T10:00:00Z" }] } }))]));
        let digest = { use sha2::Digest; hex::encode(sha2::Sha256::digest("stl_0123456789012345678901234567890123456789012")) };
        l.keys.changed(&Change::Replaced(vec![parse(json!({ "metadata": { "name": "k", "namespace": "demo", "uid": "k" }, "spec": { "sha256": digest } }))]));
        let n = 10_000;
        let objects: Vec<Arc<stellage::resources::Instance>> = (0..n).map(|i| parse(json!({
            "metadata": { "name": format!("i-{i:0>16}"), "namespace": "demo", "uid": format!("00000000-0000-4000-8000-{i:0>12}"), "generation": 1, "resourceVersion": i.to_string(), "creationTimestamp": format!("2026-11-{:02}T10:{:02}:{:02}Z", 1 + i / 3600 % 28, i / 60 % 60, i % 60), "finalizers": ["stellage.dev/server"], "managedFields": [{ "time": "2026-11-21T10:00:00Z" }] },
            "spec": { "name": format!("web-{i}"), "plan": "starter", "region": "fr-par-1", "image": "debian-13", "tags": ["env:prod"] },
            "status": { "id": format!("i-{i:0>16}"), "state": "running", "power": "Running", "powerState": "Running", "plan": "starter", "image": "debian-13", "ipAddress": "198.18.0.7", "ipv6Address": "2001:db8::1", "diskSizeGB": 40, "updatedAt": "2026-11-21T10:02:30Z", "conditions": [{ "type": "Ready", "status": "True", "reason": "Running", "message": "the server is on", "lastTransitionTime": "2026-11-21T10:00:00Z" }] }
        }))).collect();
        let before = rss();
        let t = Instant::now();
        l.instances.changed(&Change::Replaced(objects.clone()));
        println!("index of {n}: {:?}, {} KiB", t.elapsed(), rss() - before);
        let key = "stl_0123456789012345678901234567890123456789012";
        for path in ["/v1/instances", "/v1/instances/i-0000000000000777"] {
            let ask = || http::Request::get(path).header("authorization", format!("Bearer {key}")).header("host", "localhost").body(Body::empty()).unwrap();
            let r = facade.answer(ask()).await; assert_eq!(r.status(), 200);
            let bytes = r.into_body().collect().await.unwrap().to_bytes();
            let copy = bytes.clone();
            let bare: axum::Router = axum::Router::new().route("/v1/instances", axum::routing::get({ let b = copy.clone(); async move || ([("content-type", "application/json")], b.clone()) })).route("/v1/instances/{id}", axum::routing::get({ let b = copy.clone(); async move || ([("content-type", "application/json")], b.clone()) }));
            let rounds = 30_000;
            let t = Instant::now(); for _ in 0..rounds { let r = facade.answer(ask()).await; std::hint::black_box(r.into_body().collect().await.unwrap()); }
            let ours = t.elapsed().as_nanos() / rounds;
            let t = Instant::now(); for _ in 0..rounds { let r = tower::ServiceExt::oneshot(bare.clone(), ask()).await.unwrap(); std::hint::black_box(r.into_body().collect().await.unwrap()); }
            let theirs = t.elapsed().as_nanos() / rounds;
            println!("{path}: {} bytes; in process {ours} ns, bare axum {theirs} ns", bytes.len());
            let (la, lb) = (tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap(), tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
            let (aa, ab) = (la.local_addr().unwrap(), lb.local_addr().unwrap());
            let f = facade.clone(); tokio::spawn(async move { f.serve(la, Default::default(), std::time::Duration::from_secs(1)).await });
            tokio::spawn(async move { axum::serve(lb, bare).await.unwrap() });
            let req = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\r\n");
            let mut best = [0.0f64; 2];
            for _ in 0..9 { for (i, a) in [aa, ab].into_iter().enumerate() { if std::env::var("ONLY").is_ok_and(|o| o != i.to_string()) { continue; } let r = client.spawn(load(a, req.clone(), 2500)).await.unwrap(); best[i] = best[i].max(r); } }
            println!("   over TCP: {:.0}/s, bare {:.0}/s, ratio {:.2}", best[0], best[1], best[0] / best[1]);
        }
        println!("rss {} KiB", rss());
        std::process::exit(0);
    });
}
