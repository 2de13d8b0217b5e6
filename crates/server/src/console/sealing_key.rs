//! The key that seals the console's cookies: in a Secret of the operator's namespace, so that all replicas have the same key.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::sync::OnceCell;

use super::seal::{KEY, Seal};
use runtime::shared_key;

/// Name of the Secret.
const NAME: &str = "stellage-console";
/// Its only entry.
const ENTRY: &str = "sealing-key";

/// The key, once it has been read.
pub struct SealingKey {
    api: Api<Secret>,
    seal: OnceCell<Seal>,
}

impl SealingKey {
    /// The key in this namespace. It is read when it is first needed, and created if it does not exist.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            seal: OnceCell::new(),
        }
    }

    /// The seal; `None` if the Secret cannot be read, which is logged.
    pub async fn seal(&self) -> Option<&Seal> {
        let read = self.seal.get_or_try_init(|| self.read()).await;
        read.inspect_err(|error| {
            tracing::warn!(%error, "cannot use the Secret {NAME}: nobody can sign in to the console");
        })
        .ok()
    }

    async fn read(&self) -> Result<Seal, String> {
        let key = shared_key::read_or_make(&self.api, NAME, ENTRY, || rand::random::<[u8; KEY]>().to_vec())
            .await
            .map_err(|error| error.to_string())?;
        Seal::new(&key).ok_or_else(|| {
            format!("its entry {ENTRY} must have {KEY} bytes; delete the entry to get another")
        })
    }
}
