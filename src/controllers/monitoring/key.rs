//! The key that all replicas share. The leader makes it if there is none.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use tokio_util::sync::CancellationToken;

use crate::{
    monitoring::wire::{Key, SECRET_ENTRY, SECRET_NAME, new_key},
    resources::MANAGED_BY,
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
                Ok(None) => "it has no key; delete it, and another is made".to_owned(),
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

async fn read_or_make(api: &Api<Secret>) -> Result<Option<Key>, CallError> {
    if let Some(secret) = bounded(api.get_opt(SECRET_NAME)).await? {
        return Ok(Key::of(&secret));
    }
    let (label, value) = MANAGED_BY;
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(SECRET_NAME.to_owned()),
            labels: Some(BTreeMap::from([(label.to_owned(), value.to_owned())])),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(
            SECRET_ENTRY.to_owned(),
            ByteString(new_key().into_bytes()),
        )])),
        ..Secret::default()
    };
    match bounded(api.create(&PostParams::default(), &secret)).await {
        Ok(made) => Ok(Key::of(&made)),
        // The next attempt reads it.
        Err(error) => Err(error),
    }
}
