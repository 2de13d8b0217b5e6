//! The key that all replicas share. The leader generates it if the Secret has none.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use crate::{
    monitoring::wire::{Key, SECRET_ENTRY, SECRET_NAME, new_key},
    runtime::shared_key,
};

/// Pause after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The key, once it has been read.
#[derive(Clone, Default)]
pub(super) struct SharedKey(Arc<OnceLock<Key>>);

impl SharedKey {
    /// The key.
    pub(super) fn get(&self) -> Option<&Key> {
        self.0.get()
    }

    /// Reads or creates the key, retrying until that succeeds.
    pub(super) async fn make(&self, client: &Client, namespace: &str, shutdown: &CancellationToken) {
        let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
        loop {
            let reason = match read_or_make(&api).await {
                Ok(key) => {
                    let _ = self.0.set(key);
                    return;
                }
                Err(reason) => reason,
            };
            tracing::warn!(
                reason,
                "cannot use the Secret {SECRET_NAME}: other replicas get no samples"
            );
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(RETRY_AFTER) => {}
            }
        }
    }
}

async fn read_or_make(api: &Api<Secret>) -> Result<Key, String> {
    let text = shared_key::read_or_make(api, SECRET_NAME, SECRET_ENTRY, || new_key().into_bytes())
        .await
        .map_err(|error| error.to_string())?;
    Key::of(&text)
        .ok_or_else(|| format!("its entry {SECRET_ENTRY} is no key; delete the entry to get another"))
}
