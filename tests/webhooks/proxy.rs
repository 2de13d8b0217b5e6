//! A proxy between the operator and the API server that can hold back the watch of Webhooks.

use std::{net::Ipv4Addr, path::PathBuf, sync::Arc};

use bytes::Bytes;
use control_plane::{ControlPlane, Identity};
use futures::stream;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Body, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use kube::Client;
use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type BoxBody = UnsyncBoxBody<Bytes, BoxError>;

/// Forwards everything with the operator's credentials; holds back the watch of Webhooks after [`hold`](Self::hold). Ends when
/// dropped.
pub struct Proxy {
    /// The kubeconfig for the operator.
    pub kubeconfig: PathBuf,
    gate: Gate,
    _task: JoinSet<()>,
}

#[derive(Clone)]
struct Gate {
    holds: Arc<watch::Sender<bool>>,
    /// The data held back, as text.
    waiting: Arc<Mutex<String>>,
}

impl Proxy {
    pub async fn start(plane: &ControlPlane) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let kubeconfig = plane.folder().join("proxied.kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "clusters": [{ "name": "proxy", "cluster": { "server": server } }],
            "users": [{ "name": "proxy", "user": {} }],
            "contexts": [{ "name": "proxy", "context": { "cluster": "proxy", "user": "proxy" } }],
        });
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        let client = plane.client(Identity::Operator).await.unwrap();
        let gate = Gate {
            holds: Arc::new(watch::Sender::new(false)),
            waiting: Arc::default(),
        };
        let shared = gate.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                let (client, gate) = (client.clone(), shared.clone());
                connections.spawn(async move {
                    let service = service_fn(move |request| forward(request, client.clone(), gate.clone()));
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ = http.serve_connection(TokioIo::new(tcp), service).await;
                });
            }
        });
        Self {
            kubeconfig,
            gate,
            _task: task,
        }
    }

    /// Holds back the watch from now on.
    pub fn hold(&self) {
        self.gate.holds.send_replace(true);
    }

    /// Releases the data held back, and stops holding.
    pub fn release(&self) {
        self.gate.waiting.lock().clear();
        self.gate.holds.send_replace(false);
    }

    /// Whether the data held back contains this text.
    pub fn holds(&self, text: &str) -> bool {
        self.gate.waiting.lock().contains(text)
    }
}

async fn forward(
    request: Request<Incoming>,
    client: Client,
    gate: Gate,
) -> Result<Response<BoxBody>, BoxError> {
    let (head, body) = request.into_parts();
    let is_watch = head.uri.path().ends_with("/webhooks")
        && head.uri.query().is_some_and(|query| query.contains("watch=true"));
    let body = body.collect().await?.to_bytes();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut forwarded = Request::builder().method(head.method).uri(path);
    for name in ["accept", "content-type"] {
        if let Some(value) = head.headers.get(name) {
            forwarded = forwarded.header(name, value);
        }
    }
    let answer = match client.send(forwarded.body(body.to_vec().into())?).await {
        Ok(answer) => answer,
        Err(error) => {
            let body = Full::from(error.to_string()).map_err(Into::into).boxed_unsync();
            let mut answer = Response::new(body);
            *answer.status_mut() = StatusCode::BAD_GATEWAY;
            return Ok(answer);
        }
    };
    let (head, body) = answer.into_parts();
    let body = body.map_err(BoxError::from);
    let mut through = Response::builder().status(head.status);
    if let Some(value) = head.headers.get("content-type") {
        through = through.header("content-type", value);
    }
    let body = if is_watch {
        held(body, gate)
    } else {
        body.boxed_unsync()
    };
    Ok(through.body(body)?)
}

/// The body, which waits while the proxy holds.
fn held(body: impl Body<Data = Bytes, Error = BoxError> + Send + 'static, gate: Gate) -> BoxBody {
    let (sender, frames) = mpsc::unbounded_channel();
    let holds = gate.holds.subscribe();
    tokio::spawn(async move {
        let mut body = Box::pin(body);
        while let Some(frame) = body.frame().await {
            if let Ok(Some(data)) = frame.as_ref().map(|frame| frame.data_ref())
                && *gate.holds.borrow()
            {
                gate.waiting.lock().push_str(&String::from_utf8_lossy(data));
            }
            if sender.send(frame).is_err() {
                return;
            }
        }
    });
    let through = stream::unfold((frames, holds), async |(mut frames, mut holds)| {
        let frame = frames.recv().await?;
        holds.wait_for(|holds| !holds).await.ok()?;
        Some((frame, (frames, holds)))
    });
    StreamBody::new(through).boxed_unsync()
}
