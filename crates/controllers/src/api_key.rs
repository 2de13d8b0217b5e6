//! The ApiKey controller: makes the keys that are to be written into a Secret (`spec.writeSecretRef`). Those of all others are made elsewhere, and
//! only their digests come here.
//!
//! The Secret is written before the status, which makes the key work; so a key that works is in its Secret. After a crash in between, the
//! next attempt replaces what is in the Secret, and never takes it over: somebody who may write Secrets, but create no ApiKey, may have put it there.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
    runtime::watcher,
};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::account::AccountDirectory;
use resources::{
    ApiKey, MANAGED_BY,
    api_key::{WriteSecretReference, new_key},
    conditions::{self, Desired, READY},
    origin,
};
use runtime::{
    Backoffs, Clock, Metrics, ObjectRef, ReconcileQueue, Store,
    client::{CallError, bounded, replace_status},
    metrics::KindLabels,
    watch::Watches,
    work_queue::{self, Class, Reconcile},
};

/// Field manager of this controller.
const CONTROLLER: &str = "stellage-api-key-controller";
/// Maximum number of concurrent reconciles: keys are rarely made.
const CONCURRENCY: u16 = 4;
/// Selects the keys with a `writeSecretRef`.
const SELECTED: &str = "spec.writeSecretRef.name!=";

/// The controller, and what it depends on.
pub struct ApiKeyController {
    /// Client of the API server.
    pub client: Client,
    /// Maps namespaces to the Accounts that own them.
    pub directory: AccountDirectory,
    /// Where reconciles are counted.
    pub metrics: Metrics,
    /// Source of the time.
    pub clock: Arc<dyn Clock>,
}

impl ApiKeyController {
    /// Makes keys until shutdown.
    pub async fn run(self, watches: &Watches, shutdown: CancellationToken) {
        let queue = ReconcileQueue::default();
        let selected = watcher::Config::default().fields(SELECTED);
        let store = watches.spawn_selected::<ApiKey>(selected, vec![Box::new(queue.clone())]);
        let (triggers, _) = queue.open(&store);
        let kind = KindLabels { kind: "ApiKey" };
        let depth = self.metrics.queue_depth.get_or_create_owned(&kind);
        let reconciler = Reconciler {
            controller: self,
            store,
            backoffs: Backoffs::default(),
        };
        work_queue::run(&reconciler, triggers, CONCURRENCY, depth, &shutdown).await;
    }

    /// Makes the key, unless there is one. Returns whether it is made.
    async fn make(&self, shown: &ApiKey) -> Result<bool, CallError> {
        let Some(reference) = &shown.spec.write_secret_ref else {
            return Ok(true);
        };
        if shown.sha256().is_some() || shown.metadata.deletion_timestamp.is_some() {
            return Ok(true);
        }
        let namespace = shown.namespace().unwrap_or_default();
        // Without an Account yet, or one that another has to give up first.
        let Some(account) = self.directory.account_of(&namespace) else {
            return Ok(false);
        };
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &namespace);
        let keys: Api<ApiKey> = Api::namespaced(self.client.clone(), &namespace);
        // The Secret first: if the key is made elsewhere after this read, the Secret has another version.
        let existing = bounded(secrets.get_opt(&reference.name)).await?;
        let Some(key) = bounded(keys.get_opt(&shown.name_any())).await? else {
            return Ok(true);
        };
        if key.sha256().is_some() || key.metadata.uid != shown.metadata.uid {
            return Ok(true);
        }
        let uid = origin::uid(&account.metadata);
        let (value, made) = new_key(account.installation(), uid, key.spec.scope, key.spec.expires_at);
        let is_free = match &existing {
            None => create(&secrets, &key, reference, value).await?,
            Some(secret) if owns(&key, secret) => {
                replace(&secrets, secret, reference, value).await?;
                true
            }
            Some(_) => false,
        };
        let mut status = key.status.clone().unwrap_or_default();
        let desired = if is_free {
            status.sha256 = made.sha256;
            status.last_characters = made.last_characters;
            Desired {
                type_: READY,
                status: Some(true),
                reason: "Made",
                message: format!("the key is in Secret {}", reference.name),
            }
        } else {
            Desired {
                type_: READY,
                status: Some(false),
                reason: "SecretExists",
                message: format!(
                    "Secret {} exists and is not this key's: delete it, or delete this ApiKey and create one with another name in spec.writeSecretRef",
                    reference.name
                ),
            }
        };
        conditions::set(
            &mut status.conditions,
            desired,
            key.metadata.generation,
            self.clock.now(),
        );
        if key.status.as_ref() != Some(&status) {
            bounded(replace_status(&self.client, &key, &status, CONTROLLER)).await?;
        }
        Ok(is_free)
    }
}

/// Whether the Secret is that of this key.
fn owns(key: &ApiKey, secret: &Secret) -> bool {
    let is_it = |uid: &String| Some(uid) == key.metadata.uid.as_ref();
    secret
        .owner_references()
        .iter()
        .any(|owner| owner.controller == Some(true) && is_it(&owner.uid))
}

/// Creates the Secret. Returns whether its name was free.
async fn create(
    secrets: &Api<Secret>,
    key: &ApiKey,
    reference: &WriteSecretReference,
    value: String,
) -> Result<bool, CallError> {
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(reference.name.clone()),
            labels: Some(
                [MANAGED_BY]
                    .map(|(label, value)| (label.to_owned(), value.to_owned()))
                    .into(),
            ),
            owner_references: key.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".to_owned()),
        string_data: Some(BTreeMap::from([(reference.key.clone(), value)])),
        ..Secret::default()
    };
    match bounded(secrets.create(&PostParams::default(), &secret)).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_already_exists() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Puts another key into this version of the Secret.
async fn replace(
    secrets: &Api<Secret>,
    secret: &Secret,
    reference: &WriteSecretReference,
    value: String,
) -> Result<(), CallError> {
    let patch = json!({
        "metadata": { "resourceVersion": secret.metadata.resource_version },
        "stringData": { &*reference.key: value },
    });
    let params = PatchParams::default();
    bounded(secrets.patch(&reference.name, &params, &Patch::Merge(patch))).await?;
    Ok(())
}

struct Reconciler {
    controller: ApiKeyController,
    store: Store<ApiKey>,
    backoffs: Backoffs,
}

impl Reconcile for Reconciler {
    fn class(&self, object_ref: &ObjectRef) -> Class {
        self.backoffs.class(object_ref)
    }

    async fn reconcile(&self, object_ref: &ObjectRef, _: Class) -> Option<Duration> {
        let Some(key) = self.store.get(object_ref) else {
            self.backoffs.reset(object_ref);
            return None;
        };
        let begun = Instant::now();
        let outcome = self.controller.make(&key).await;
        let label = outcome.as_ref().map_or_else(CallError::label, |_| "ok");
        self.controller
            .metrics
            .reconciled("ApiKey", begun.elapsed(), label);
        match outcome {
            Ok(true) => {
                self.backoffs.reset(object_ref);
                return None;
            }
            Ok(false) => {}
            Err(error) if error.is_conflict() => {
                tracing::debug!(key = %object_ref, %error, "decided on an outdated version");
            }
            Err(error) => {
                tracing::warn!(key = %object_ref, %error, "cannot make the API key; will retry");
            }
        }
        Some(self.backoffs.next(object_ref))
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use parking_lot::Mutex;
    use serde_json::Value;

    use super::*;
    use resources::{Account, api_key};
    use runtime::{SystemClock, testing::answered_by, watch::Change};

    /// A controller that knows the account `ada`.
    fn controller(client: Client) -> ApiKeyController {
        let directory = AccountDirectory::default();
        let ready = json!({
            "type": "NamespaceReady", "status": "True", "reason": "a", "message": "", "lastTransitionTime": "2026-11-27T10:00:00Z",
        });
        let account: Account = serde_json::from_value(json!({
            "apiVersion": "stellage.dev/v1", "kind": "Account", "metadata": { "name": "ada", "uid": "uid-a" },
            "spec": { "email": "ada@example.com" }, "status": { "namespace": "ada", "conditions": [ready] },
        }))
        .unwrap();
        let accounts = vec![Arc::new(account)];
        directory.listener(|_| {}).changed(&Change::Replaced(accounts));
        ApiKeyController {
            client,
            directory,
            metrics: Metrics::new(),
            clock: Arc::new(SystemClock),
        }
    }

    fn key(status: &Value) -> Value {
        json!({
            "apiVersion": "stellage.dev/v1", "kind": "ApiKey",
            "metadata": { "name": "first", "namespace": "ada", "uid": "uid-k", "resourceVersion": "7" },
            "spec": { "writeSecretRef": { "name": "first-key", "key": "key" } }, "status": status,
        })
    }

    /// A Secret whose controller has this UID, with content that somebody knows.
    fn secret(owner: &str) -> Value {
        let owner = json!({ "apiVersion": "stellage.dev/v1", "kind": "ApiKey", "name": "first", "uid": owner, "controller": true });
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": "first-key", "namespace": "ada", "resourceVersion": "5", "ownerReferences": [owner] },
            "data": { "key": "a25vd24=" },
        })
    }

    /// Makes the key where the cluster has these objects; returns whether it was made, and the writes.
    async fn make(stored: Value, found: Value) -> (bool, Vec<(Method, Value)>) {
        let writes = Arc::new(Mutex::new(Vec::new()));
        let seen = writes.clone();
        let client = answered_by(move |method, path, body| {
            let answer = match (&method, path.contains("/secrets/")) {
                (&Method::GET, true) => found.clone(),
                (&Method::GET, false) => stored.clone(),
                _ => {
                    seen.lock().push((method, body));
                    json!({ "metadata": { "name": "first" } })
                }
            };
            async move { (200, answer) }
        });
        let shown: ApiKey = serde_json::from_value(key(&json!({}))).unwrap();
        let is_made = controller(client).make(&shown).await.unwrap();
        let writes = writes.lock().clone();
        (is_made, writes)
    }

    #[tokio::test]
    async fn what_is_in_a_secret_of_the_key_is_replaced_before_the_key_works_and_never_taken_over() {
        let (is_made, writes) = make(key(&json!({})), secret("uid-k")).await;
        let [(Method::PATCH, patch), (Method::PUT, status)] = &writes[..] else {
            panic!("{writes:?}")
        };
        assert!(is_made);
        assert_eq!(patch["metadata"]["resourceVersion"], "5");
        let value = patch["stringData"]["key"].as_str().unwrap();
        assert!(api_key::account_of(value).is_some(), "{value}");
        assert_eq!(status["metadata"]["resourceVersion"], "7");
        assert_eq!(
            status["status"]["sha256"],
            hex::encode(api_key::digest("uid-a", value))
        );
    }

    #[tokio::test]
    async fn the_secret_of_another_key_and_one_whose_key_has_been_made_meanwhile_are_left_alone() {
        let (is_made, writes) = make(key(&json!({})), secret("uid-other")).await;
        let [(Method::PUT, status)] = &writes[..] else {
            panic!("{writes:?}")
        };
        assert!(!is_made && status["status"].get("sha256").is_none(), "{status}");
        let made = json!({ "sha256": "0".repeat(64) });
        let (is_made, writes) = make(key(&made), secret("uid-k")).await;
        assert!(is_made && writes.is_empty(), "{writes:?}");
    }
}
