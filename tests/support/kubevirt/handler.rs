//! Stands in for virt-handler where virt-api asks it for the consoles of guests, and to freeze them.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{
        Path as InPath,
        ws::{Message, WebSocket, WebSocketUpgrade},
    },
    response::Response,
    routing::{get, put},
};
use bytes::Bytes;
use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use parking_lot::Mutex;
use runtime::{
    Metrics,
    http::{self as server, ConnectionLimits, tls::Certificate},
};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tower::Service as _;

use super::{super::Change as _, screen};

/// The WebSocket protocol of consoles.
const PROTOCOL: &str = "plain.kubevirt.io";
/// The common name by which virt-api knows it.
pub const COMMON_NAME: &str = "kubevirt.io:system:node:virt-handler";

/// Serves until dropped.
pub struct Handler {
    pub port: u16,
    agents: Arc<Agents>,
    _serving: DropGuard,
}

/// The agents in guests, by the namespaces of these.
#[derive(Default)]
struct Agents {
    silent: Mutex<HashSet<String>>,
    /// What they were told: to freeze, and to unfreeze.
    told: Mutex<HashMap<String, Vec<&'static str>>>,
}

impl Agents {
    async fn hear(&self, namespace: String, what: &'static str) -> StatusCode {
        let is_silent = self.silent.lock().contains(&namespace);
        self.told.lock().entry(namespace).or_default().push(what);
        if is_silent && what == "freeze" {
            std::future::pending::<()>().await;
        }
        StatusCode::OK
    }
}

impl Handler {
    /// Starts it with the certificate in this folder, in a thread of its own: tests that share a region have a runtime each.
    pub fn start(certificates: &Path) -> Self {
        let file = |name: &str| certificates.join(name);
        let certificate =
            Certificate::load(&file("handler.pem"), &file("handler.key"), &Metrics::new()).unwrap();
        let serving = CancellationToken::new();
        let (told, port) = std::sync::mpsc::channel();
        let shutdown = serving.clone();
        let agents = Arc::<Agents>::default();
        let of_server = agents.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = server::listen("127.0.0.1:0".parse().unwrap()).unwrap();
                told.send(listener.local_addr().unwrap().port()).unwrap();
                serve(listener, certificate, of_server, shutdown).await;
            });
        });
        Self {
            port: port.recv().unwrap(),
            agents,
            _serving: serving.drop_guard(),
        }
    }

    /// From now on, the agents of a namespace do not answer when they are to freeze.
    pub fn silence_agents(&self, namespace: &str) {
        self.agents.silent.lock().insert(namespace.to_owned());
    }

    /// What the agents of a namespace were told.
    pub fn told(&self, namespace: &str) -> Vec<&'static str> {
        self.agents
            .told
            .lock()
            .get(namespace)
            .cloned()
            .unwrap_or_default()
    }
}

async fn serve(
    listener: TcpListener,
    certificate: Certificate,
    agents: Arc<Agents>,
    shutdown: CancellationToken,
) {
    let hear = |what: &'static str| {
        let agents = agents.clone();
        // A body that nobody reads breaks the connection, and virt-api may still be sending it.
        put(
            async move |InPath((namespace, _)): InPath<(String, String)>, _: Bytes| {
                agents.hear(namespace, what).await
            },
        )
    };
    let router = Router::new()
        .route(
            "/v1/namespaces/{namespace}/virtualmachineinstances/{name}/freeze",
            hear("freeze"),
        )
        .route(
            "/v1/namespaces/{namespace}/virtualmachineinstances/{name}/unfreeze",
            hear("unfreeze"),
        )
        .route(
            "/v1/namespaces/{namespace}/virtualmachineinstances/{name}/console",
            get(
                async |InPath((_, name)): InPath<(String, String)>, upgrade: WebSocketUpgrade| {
                    upgraded(upgrade, format!("console of {name}\r\n"))
                },
            ),
        )
        .route(
            "/v1/namespaces/{namespace}/virtualmachineinstances/{name}/vnc",
            get(async |upgrade: WebSocketUpgrade| upgrade.protocols([PROTOCOL]).on_upgrade(screen::serve)),
        );
    let service = hyper::service::service_fn(move |request: http::Request<server::Arriving>| {
        router.clone().call(request.map(Body::new))
    });
    let options = server::Options {
        limits: ConnectionLimits::of(1000, 1000),
        unreadable: |status: StatusCode| {
            let mut response = http::Response::new(Bytes::new());
            *response.status_mut() = status;
            response
        },
        certificate: Some(certificate),
        grace: Duration::ZERO,
        leaving: Arc::new(AtomicBool::new(false)),
    };
    server::connections(listener, service, options, shutdown).await;
}

/// Makes the Pod by which virt-api finds it: on this node.
pub async fn announce(pods: Api<Pod>, node: &str) {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "virt-handler", "labels": { "kubevirt.io": "virt-handler" } },
        "spec": { "nodeName": node, "containers": [{ "name": "virt-handler", "image": "virt-handler" }] },
    }))
    .unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let status =
        json!({ "status": { "phase": "Running", "podIP": "127.0.0.1", "podIPs": [{ "ip": "127.0.0.1" }] } });
    pods.merge_status("virt-handler", &status).await;
}

/// Greets, and then says again what it is told.
fn upgraded(upgrade: WebSocketUpgrade, greeting: String) -> Response {
    upgrade
        .protocols([PROTOCOL])
        .on_upgrade(async move |mut socket: WebSocket| {
            let mut next = Bytes::from(greeting);
            while socket.send(Message::Binary(next)).await.is_ok() {
                next = loop {
                    match socket.recv().await {
                        Some(Ok(Message::Binary(bytes))) => break bytes,
                        Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Text(_))) => {}
                        Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                    }
                };
            }
        })
}
