//! Keys that seal what replicas and processes of Stellage tell each other through a browser: each in a Secret of the operator's namespace.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::sync::OnceCell;

use crate::seal::{KEY, Seal};
use runtime::{client::bounded, shared_key};

/// The only entry of the Secrets.
const ENTRY: &str = "sealing-key";

/// What a key seals. Each has a Secret of its own, so that whoever may read one cannot forge the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// The cookies of the customer console.
    Cookies,
    /// The tickets of servers' consoles.
    Tickets,
}

impl Sealed {
    /// Name of the Secret.
    const fn secret(self) -> &'static str {
        match self {
            Self::Cookies => "stellage-console",
            Self::Tickets => "stellage-console-tickets",
        }
    }

    /// What does not work without the key.
    const fn without(self) -> &'static str {
        match self {
            Self::Cookies => "nobody can sign in to the console",
            Self::Tickets => "no console of a server can be opened",
        }
    }
}

/// A key, once it has been read.
pub struct SealingKey {
    api: Api<Secret>,
    of: Sealed,
    is_maker: bool,
    seal: OnceCell<Seal>,
}

impl SealingKey {
    /// The key in this namespace. It is read when it is first needed, and created if it does not exist.
    pub fn new(client: Client, namespace: &str, of: Sealed) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            of,
            is_maker: true,
            seal: OnceCell::new(),
        }
    }

    /// The same for a process that may only read the Secret, and waits for another to create the key.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self {
            is_maker: false,
            ..self
        }
    }

    /// The seal; `None` if the Secret cannot be read, which is logged.
    pub async fn seal(&self) -> Option<&Seal> {
        let read = self.seal.get_or_try_init(|| self.read()).await;
        read.inspect_err(|error| {
            let (secret, without) = (self.of.secret(), self.of.without());
            tracing::warn!(%error, "cannot use the Secret {secret}: {without}");
        })
        .ok()
    }

    async fn read(&self) -> Result<Seal, String> {
        let name = self.of.secret();
        let key = if self.is_maker {
            let made =
                shared_key::read_or_make(&self.api, name, ENTRY, || rand::random::<[u8; KEY]>().to_vec());
            made.await.map_err(|error| error.to_string())?
        } else {
            let secret = bounded(self.api.get(name))
                .await
                .map_err(|error| error.to_string())?;
            let entry = secret.data.unwrap_or_default().remove(ENTRY);
            entry.ok_or("the REST API has not put a key into it yet")?.0
        };
        Seal::new(&key).ok_or_else(|| {
            format!("its entry {ENTRY} must have {KEY} bytes; delete the entry to get another")
        })
    }
}
