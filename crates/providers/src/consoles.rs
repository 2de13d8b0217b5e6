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
    clients: Mutex<HashMap<String, (Arc<KubeVirt>, Client)>>,
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
        if let Some((of, client)) = self.clients.lock().get(region)
            && of == settings
        {
            return Ok(client.clone());
        }
        let client = console::client(settings).await?;
        let known = (settings.clone(), client.clone());
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
