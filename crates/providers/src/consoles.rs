//! The consoles of servers. Only the console gateway uses them, with rights of its own: it can open consoles in a region, and do nothing
//! else there.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use jiff::Timestamp;
use kube::Client;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use crate::{
    kubevirt::console::{self, Upgraded},
    serial_line::SerialLine,
};
use api::ConsoleType;
use domain::catalogue::region::KubeVirt;
use resources::Instance;
use runtime::{shared_catalogue::SharedCatalogue, watch::key};

/// How long a server may take to accept what is sent to it.
const SENT_WITHIN: Duration = Duration::from_secs(20);

/// Why a console cannot be opened.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ConsoleError {
    /// The region does not have this console.
    #[error("the region does not have this console")]
    NotOffered,
    /// There is no running server, or it does not have this console now.
    #[error("the server is not running")]
    NotRunning,
    /// The cluster of the region cannot be reached, or refuses. The log says why.
    #[error("the console cannot be reached at the moment; try again")]
    Unavailable,
}

/// The consoles of all regions.
pub struct Consoles {
    catalogue: SharedCatalogue,
    /// Of the regions with real servers that were asked for.
    clients: Mutex<HashMap<String, Connected>>,
}

/// A client of a region's cluster, and what it was made from.
struct Connected {
    settings: Arc<KubeVirt>,
    /// The kubeconfig. Its token may be in a file of its own, which the client reads again by itself.
    kubeconfig: Vec<u8>,
    client: Client,
}

impl Consoles {
    /// The consoles of the regions of this catalogue.
    pub fn new(catalogue: SharedCatalogue) -> Self {
        Self {
            catalogue,
            clients: Mutex::default(),
        }
    }

    /// Opens a console of a server.
    pub async fn open(&self, instance: &Instance, r#type: ConsoleType) -> Result<Line, ConsoleError> {
        let catalogue = self.catalogue.current();
        let region = &instance.spec.region;
        let offer = catalogue.offer(region).ok_or(ConsoleError::NotOffered)?;
        if !offer.consoles.contains(&r#type) {
            return Err(ConsoleError::NotOffered);
        }
        let Some(settings) = catalogue.kubevirt(region) else {
            return Ok(Line(End::Simulated(Box::new(SerialLine::connected(instance)))));
        };
        let failed = |error: &dyn std::fmt::Display| {
            tracing::warn!(region, instance = key(instance), %error, "cannot open a console");
            ConsoleError::Unavailable
        };
        let client = self
            .client(region, settings)
            .await
            .map_err(|error| failed(&error))?;
        match console::connect(&client, settings, instance, r#type).await {
            Ok(stream) => Ok(Line(End::Server(Box::new(stream)))),
            Err(console::Failure::NotRunning) => Err(ConsoleError::NotRunning),
            Err(error) => Err(failed(&error)),
        }
    }

    async fn client(&self, region: &str, settings: &Arc<KubeVirt>) -> Result<Client, console::Failure> {
        // Without the file, it goes on with what it has.
        let kubeconfig = std::fs::read(&settings.kubeconfig).unwrap_or_default();
        let is_same = |known: &&Connected| {
            known.settings == *settings && (kubeconfig.is_empty() || known.kubeconfig == kubeconfig)
        };
        if let Some(known) = self.clients.lock().get(region).filter(is_same) {
            return Ok(known.client.clone());
        }
        let client = console::client(settings).await?;
        let known = Connected {
            settings: settings.clone(),
            kubeconfig,
            client: client.clone(),
        };
        self.clients.lock().insert(region.to_owned(), known);
        Ok(client)
    }
}

/// An open console.
pub struct Line(End);

enum End {
    /// The serial line of a simulated server.
    Simulated(Box<SerialLine>),
    /// That of a real one.
    Server(Box<Upgraded>),
}

impl Line {
    /// What the server sends next; `None` at the end. Can be dropped at any time without a loss.
    pub async fn receive(&mut self) -> Option<Bytes> {
        match &mut self.0 {
            End::Simulated(line) => match line.shown() {
                Some(shown) => Some(shown),
                None => std::future::pending().await,
            },
            End::Server(stream) => loop {
                match stream.next().await? {
                    Ok(Message::Binary(bytes)) => return Some(bytes),
                    Ok(Message::Text(text)) => return Some(text.into()),
                    Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => {}
                    Ok(Message::Close(_)) => return None,
                    Err(error) => {
                        tracing::debug!(%error, "a console ended");
                        return None;
                    }
                }
            },
        }
    }

    /// Sends to the server. Returns whether it could.
    pub async fn send(&mut self, bytes: Bytes) -> bool {
        match &mut self.0 {
            End::Simulated(line) => {
                line.typed(&bytes, Timestamp::now());
                true
            }
            End::Server(stream) => {
                let sent = timeout(SENT_WITHIN, stream.send(Message::Binary(bytes))).await;
                matches!(sent, Ok(Ok(())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;
    use crate::kubevirt::testing::instance;
    use domain::catalogue::Catalogue;

    /// An API server that answers everything with this status; its kubeconfig.
    async fn cluster(status: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "region",
            "contexts": [{ "name": "region", "context": { "cluster": "region", "user": "stellage" } }],
            "clusters": [{ "name": "region", "cluster": { "server": format!("http://{address}") } }],
            "users": [{ "name": "stellage", "user": { "token": "t" } }],
        })
        .to_string()
    }

    #[tokio::test]
    async fn a_changed_kubeconfig_is_used_for_the_next_console_and_a_lost_one_is_not_missed() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let region = json!({ "code": "de-fra-1", "kubevirt": {
            "kubeconfig": path, "installation": "prod-1", "storageClass": "disks", "network": { "profile": "pod" },
            "images": { "debian-13": { "pvc": "images/debian-13", "user": "debian" } },
        } });
        let catalogue = json!({ "regions": [region] }).to_string();
        let catalogue = Catalogue::parse(&catalogue, &path).unwrap();
        let consoles = Consoles::new(SharedCatalogue::new(catalogue));
        let instance = instance(&json!({ "state": "running" }));
        let open = async || {
            consoles
                .open(&instance, ConsoleType::Serial)
                .await
                .map(drop)
                .unwrap_err()
        };

        std::fs::write(&path, cluster("404 Not Found").await).unwrap();
        assert_eq!(open().await, ConsoleError::NotRunning);
        std::fs::write(&path, cluster("503 Service Unavailable").await).unwrap();
        assert_eq!(open().await, ConsoleError::Unavailable, "it is another cluster");
        std::fs::write(&path, cluster("404 Not Found").await).unwrap();
        assert_eq!(open().await, ConsoleError::NotRunning);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(open().await, ConsoleError::NotRunning);
    }
}
