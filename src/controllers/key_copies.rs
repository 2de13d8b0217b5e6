//! Marks copies of `ApiKeys`: if the digest covers only the key, whoever can read an `ApiKey` can plant its digest in a namespace
//! of their own, and wait until the original is revoked while its holder goes on using it. A marked copy never works.
//!
//! An admission policy rejects new copies; this module handles those from before the policy, and clusters without it.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
    core::DeserializeGuard,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    resources::{ApiKey, origin},
    runtime::client::{CallError, bounded, next_page},
};

/// How often to look for copies.
const ROUND: Duration = Duration::from_secs(600);
/// Pause after a round that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
/// Keys on one page of a list.
const PAGE: u32 = 500;

/// Marks copies immediately, then every ten minutes, until shutdown.
pub async fn run(client: Client, shutdown: CancellationToken) {
    let work = async {
        loop {
            let pause = match mark(&client).await {
                Ok(()) => ROUND,
                Err(error) => {
                    tracing::warn!(%error, "cannot mark copies of API keys; will retry");
                    AFTER_FAILURE
                }
            };
            tokio::time::sleep(pause).await;
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

/// Marks every copy that exists now.
pub async fn mark(client: &Client) -> Result<(), CallError> {
    let api: Api<DeserializeGuard<ApiKey>> = Api::all(client.clone());
    let mut keys = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = bounded(api.list(&params)).await?;
        let has_more = next_page(&mut params, &page.metadata);
        let readable = page.items.into_iter().filter_map(|key| key.0.ok());
        keys.extend(readable.filter(|key| key.is_outdated() && !key.spec.is_copy));
        if !has_more {
            break;
        }
    }
    let mut marked = Ok(());
    for copy in copies(&keys) {
        let namespace = copy.namespace().unwrap_or_default();
        let api: Api<ApiKey> = Api::namespaced(client.clone(), &namespace);
        let patch = json!({
            "metadata": { "uid": copy.metadata.uid, "resourceVersion": copy.metadata.resource_version },
            "spec": { "isCopy": true },
        });
        let patch = Patch::Merge(&patch);
        match bounded(api.patch(&copy.name_any(), &PatchParams::default(), &patch)).await {
            Ok(_) => {
                let name = copy.name_any();
                tracing::warn!(
                    namespace,
                    name,
                    "an ApiKey has the digest of another account's key: marked as a copy"
                );
            }
            Err(error) if error.is_not_found() => {}
            // Carry on with the other keys.
            Err(error) => marked = Err(error),
        }
    }
    marked
}

/// The keys whose digest an older key in another namespace already has.
fn copies(keys: &[ApiKey]) -> Vec<&ApiKey> {
    fn age(key: &ApiKey) -> (Timestamp, &str) {
        let created = origin::created_at(&key.metadata);
        (created.unwrap_or(Timestamp::MAX), origin::uid(&key.metadata))
    }
    let mut oldest: HashMap<&str, &ApiKey> = HashMap::new();
    for key in keys {
        let oldest = oldest.entry(&key.spec.sha256).or_insert(key);
        if age(key) < age(oldest) {
            *oldest = key;
        }
    }
    let is_copy = |key: &&ApiKey| {
        let oldest = oldest.get(key.spec.sha256.as_str());
        oldest.is_some_and(|oldest| oldest.metadata.namespace != key.metadata.namespace)
    };
    keys.iter().filter(is_copy).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, name: &str, digest: &str, second: i64) -> ApiKey {
        serde_json::from_value(json!({
            "metadata": {
                "namespace": namespace, "name": name, "uid": format!("{namespace}-{name}"),
                "creationTimestamp": Timestamp::from_second(second).unwrap(),
            },
            "spec": { "sha256": digest },
        }))
        .unwrap()
    }

    #[test]
    fn younger_keys_of_other_namespaces_with_the_same_digest_are_copies() {
        let keys = [
            key("evil", "copy", "1", 20),
            key("demo", "original", "1", 10),
            key("demo", "again", "1", 30),
            key("evil", "own", "2", 5),
            key("more", "tie", "3", 7),
            key("least", "tie", "3", 7),
        ];
        let named: Vec<_> = copies(&keys)
            .into_iter()
            .map(|key| (key.namespace().unwrap(), key.name_any()))
            .collect();
        assert_eq!(
            named,
            [
                ("evil".to_owned(), "copy".to_owned()),
                ("more".to_owned(), "tie".to_owned())
            ]
        );
    }
}
