//! The consoles of KubeVirt's servers: a WebSocket through the API server, virt-api and virt-handler to the guest.

use std::sync::Arc;

use http::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use kube::{Client, client::Body};
use thiserror::Error;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        handshake::client::generate_key,
        protocol::{Role, WebSocketConfig},
    },
};

use super::{
    cluster::{self, ConnectError},
    names::Server,
};
use api::ConsoleType;
use domain::catalogue::region::KubeVirt;
use resources::Instance;
use runtime::client::{self, Observers};

/// An open console: binary messages carry the bytes of the serial line, or of VNC.
pub(crate) type Upgraded = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

/// KubeVirt's name for that.
const PROTOCOL: &str = "plain.kubevirt.io";
/// Largest message of a server. KubeVirt's have 32 KiB.
const LARGEST: usize = 1 << 20;

/// Why a console cannot be opened.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error("the server is not running")]
    NotRunning,
    #[error(transparent)]
    Config(#[from] ConnectError),
    #[error(transparent)]
    Client(#[from] kube::Error),
    #[error("the region's cluster answers {0}: {1}")]
    Refused(StatusCode, String),
    #[error("the region's cluster does not upgrade the connection: {0}")]
    NotUpgraded(#[from] hyper::Error),
}

/// A client of a region's cluster. It speaks HTTP/1.1, the only version in which a connection can be upgraded.
pub(crate) async fn client(settings: &KubeVirt) -> Result<Client, Failure> {
    let config = cluster::config(&settings.kubeconfig).await?;
    Ok(client::connect(config, Observers::default())?)
}

/// Opens a console of a server. The newest viewer has it: KubeVirt ends the one before.
pub(crate) async fn connect(
    client: &Client,
    settings: &Arc<KubeVirt>,
    instance: &Instance,
    r#type: ConsoleType,
) -> Result<Upgraded, Failure> {
    let answer = client
        .send(request(&Server::of(instance, settings), r#type)?)
        .await?;
    let status = answer.status();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        let body = answer.into_body().collect_bytes().await.unwrap_or_default();
        let text: String = String::from_utf8_lossy(&body).chars().take(512).collect();
        return Err(match status {
            StatusCode::NOT_FOUND | StatusCode::CONFLICT => Failure::NotRunning,
            // virt-api's words, with a status of 400 or 500.
            _ if text.contains("is not running") => Failure::NotRunning,
            _ => Failure::Refused(status, text),
        });
    }
    let stream = TokioIo::new(hyper::upgrade::on(answer).await?);
    let limits = WebSocketConfig::default()
        .max_message_size(Some(LARGEST))
        .max_frame_size(Some(LARGEST));
    Ok(WebSocketStream::from_raw_socket(stream, Role::Client, Some(limits)).await)
}

fn request(server: &Server, r#type: ConsoleType) -> Result<Request<Body>, Failure> {
    let Server { namespace, name, .. } = server;
    let subresource = match r#type {
        ConsoleType::Serial => "console",
        ConsoleType::Vnc => "vnc",
    };
    let path = format!(
        "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances/{name}/{subresource}"
    );
    let request = Request::get(path)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, generate_key())
        .header(header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL)
        .body(Body::empty());
    Ok(request.map_err(kube::Error::HttpError)?)
}
