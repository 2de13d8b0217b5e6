//! The key that all replicas share. The leader makes it if the Secret has none.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Api, Client, api::PostParams};
use tokio_util::sync::CancellationToken;

use crate::{
    monitoring::wire::{Key, SECRET_ENTRY, SECRET_NAME, new_key},
    runtime::client::{CallError, bounded},
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

    /// Reads the key, or makes it, until that has succeeded.
    pub(super) async fn make(&self, client: &Client, namespace: &str, shutdown: &CancellationToken) {
        let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
        loop {
            let reason = match read_or_make(&api).await {
                Ok(Some(key)) => {
                    let _ = self.0.set(key);
                    return;
                }
                Ok(None) => "there is none; apply deploy/rbac.yaml".to_owned(),
                Err(error) => error.to_string(),
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

/// `None` if there is no Secret. It comes with the operator's rights, so that these need not include creating Secrets.
async fn read_or_make(api: &Api<Secret>) -> Result<Option<Key>, CallError> {
    let Some(mut secret) = bounded(api.get_opt(SECRET_NAME)).await? else {
        return Ok(None);
    };
    if let Some(key) = Key::of(&secret) {
        return Ok(Some(key));
    }
    secret.metadata.managed_fields = None;
    let key = ByteString(new_key().into_bytes());
    secret
        .data
        .get_or_insert_default()
        .insert(SECRET_ENTRY.to_owned(), key);
    let params = PostParams::default();
    let made = bounded(api.replace(SECRET_NAME, &params, &secret)).await?;
    Ok(Key::of(&made))
}
