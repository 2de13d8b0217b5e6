//! The key that seals the console's cookies: in a Secret of the operator's namespace, so that all replicas have the same.

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Api, Client, api::PostParams};
use tokio::sync::OnceCell;

use super::seal::{KEY, Seal};
use crate::runtime::client::{CallError, bounded};

/// Name of the Secret.
const NAME: &str = "stellage-console";
/// Its only entry.
const ENTRY: &str = "sealing-key";
/// Attempts to write the key while other replicas do so, too.
const MAX_ATTEMPTS: u32 = 5;

/// The key, once it has been read.
pub struct SealingKey {
    api: Api<Secret>,
    seal: OnceCell<Seal>,
}

impl SealingKey {
    /// The key in this namespace. It is read, and made if there is none yet, when it is first needed.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            seal: OnceCell::new(),
        }
    }

    /// The seal; `None` if the Secret cannot be read, as the log says.
    pub async fn seal(&self) -> Option<&Seal> {
        let read = self.seal.get_or_try_init(|| self.read()).await;
        read.inspect_err(|error| {
            tracing::warn!(%error, "cannot use the Secret {NAME}: nobody can sign in to the console");
        })
        .ok()
    }

    async fn read(&self) -> Result<Seal, String> {
        for _ in 0..MAX_ATTEMPTS {
            let found = bounded(self.api.get_opt(NAME)).await.map_err(in_words)?;
            let mut secret = found.ok_or("it does not exist; deploy/rbac.yaml has it")?;
            let data = secret.data.get_or_insert_default();
            if let Some(key) = data.get(ENTRY) {
                return Seal::new(&key.0).ok_or_else(|| {
                    format!("its entry {ENTRY} must have {KEY} bytes; delete the entry to get another")
                });
            }
            let key: [u8; KEY] = rand::random();
            data.insert(ENTRY.to_owned(), ByteString(key.to_vec()));
            // With the resourceVersion that was read: of several replicas, one writes its key.
            match bounded(self.api.replace(NAME, &PostParams::default(), &secret)).await {
                Err(error) if !error.is_conflict() => return Err(in_words(error)),
                _ => {}
            }
        }
        Err("other replicas keep changing it".to_owned())
    }
}

fn in_words(error: CallError) -> String {
    error.to_string()
}
