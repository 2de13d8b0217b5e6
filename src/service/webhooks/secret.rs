//! The Secret with a webhook's signing secret: created with the webhook, replaced and rotated in one write that is guarded by
//! the resourceVersion.

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource as _;
use serde_json::{Map, Value, json};

use super::IndexedWebhook;
use crate::{
    resources::{
        Webhook,
        instance::IDEMPOTENCY_ANNOTATION,
        webhook::{PREVIOUS_EXPIRES_KEY, PREVIOUS_SECRET_KEY, SECRET_CHANGED_ANNOTATION},
    },
    service::{
        Service,
        error::{Error, ErrorKind},
        idempotency::{self, IdempotentRequest, REQUEST_HASH_ANNOTATION},
        index::{Indexed as _, Object as _},
        store::{contended, pause},
    },
};

/// Label of the Secrets that the service creates.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "stellage");
/// Attempts to write a Secret that others keep changing.
const MAX_ATTEMPTS: u32 = 10;

/// A random secret in the form of Standard Webhooks.
pub fn random_secret() -> String {
    format!("whsec_{}", BASE64_STANDARD.encode(rand::random::<[u8; 32]>()))
}

/// A change of a webhook's Secret.
pub struct SecretChange<'a> {
    /// The webhook, whose spec names the Secret and the key in it.
    pub webhook: &'a Webhook,
    /// The new signing secret.
    pub secret: &'a str,
    /// Until when the present secret also signs.
    pub previous_until: Option<Timestamp>,
    /// Annotations to set.
    pub annotations: Vec<(&'static str, String)>,
}

impl SecretChange<'_> {
    /// The keys to change in `data`; `None` removes a key.
    fn data(&self, before: Option<&Secret>) -> BTreeMap<String, Option<ByteString>> {
        let key = &self.webhook.spec.secret_ref.key;
        let old = before
            .and_then(|secret| secret.data.as_ref()?.get(key))
            .filter(|old| !old.0.is_empty() && old.0 != self.secret.as_bytes());
        let overlap = self.previous_until.zip(old);
        let bytes = |text: String| ByteString(text.into_bytes());
        BTreeMap::from([
            (
                PREVIOUS_SECRET_KEY.to_owned(),
                overlap.map(|(_, old)| old.clone()),
            ),
            (
                PREVIOUS_EXPIRES_KEY.to_owned(),
                overlap.map(|(until, _)| bytes(format!("{until:.0}"))),
            ),
            // Last, so that it wins if the webhook names one of the keys above.
            (key.clone(), Some(bytes(self.secret.to_owned()))),
        ])
    }

    /// Whether the present secret also signs for a while.
    pub fn overlaps(&self, before: Option<&Secret>) -> bool {
        self.data(before)
            .get(PREVIOUS_SECRET_KEY)
            .is_some_and(Option::is_some)
    }

    /// A new Secret, owned by the webhook.
    pub fn object(&self) -> Secret {
        let owner = self.webhook.controller_owner_ref(&());
        let annotations = self.annotations.iter();
        Secret {
            metadata: ObjectMeta {
                name: Some(self.webhook.spec.secret_ref.name.clone()),
                namespace: self.webhook.metadata.namespace.clone(),
                labels: Some(BTreeMap::from([(
                    MANAGED_BY.0.to_owned(),
                    MANAGED_BY.1.to_owned(),
                )])),
                annotations: Some(
                    annotations
                        .map(|(key, value)| ((*key).to_owned(), value.clone()))
                        .collect(),
                ),
                owner_references: owner.map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            type_: Some("Opaque".to_owned()),
            data: Some(
                self.data(None)
                    .into_iter()
                    .filter_map(|(key, value)| Some((key, value?)))
                    .collect(),
            ),
            ..Secret::default()
        }
    }

    /// A merge patch that is valid for this version of the Secret only.
    pub fn patch(&self, before: &Secret) -> Value {
        let annotations: Map<String, Value> = self
            .annotations
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect();
        json!({
            "metadata": { "resourceVersion": before.metadata.resource_version, "annotations": annotations },
            "data": self.data(Some(before)),
        })
    }
}

fn text(secret: &Secret, key: &str) -> Option<String> {
    let bytes = secret.data.as_ref()?.get(key)?;
    String::from_utf8(bytes.0.clone())
        .ok()
        .filter(|text| !text.is_empty())
}

/// The result of a rotation.
pub struct Rotated {
    /// The signing secret.
    pub secret: String,
    /// Until when the previous secret also signs; `None` without an overlap.
    pub previous_until: Option<Timestamp>,
    /// Whether an earlier request with the same key was carried out instead.
    pub replayed: bool,
}

impl Rotated {
    fn of(secret: &Secret, webhook: &Webhook, replayed: bool, now: Timestamp) -> Option<Self> {
        let previous_until = text(secret, PREVIOUS_EXPIRES_KEY).and_then(|until| until.parse().ok());
        Some(Self {
            secret: text(secret, &webhook.spec.secret_ref.key)?,
            previous_until: previous_until.filter(|until| *until > now),
            replayed,
        })
    }
}

impl Service {
    /// The secret of a webhook that this request has created, or (`replayed`) an earlier one with the same key. Whichever
    /// request creates the Secret first decides its content, and all of them answer with that. If the Secret is missing, no
    /// answer has been given yet, so any random secret will do.
    pub(super) async fn secret_of_create(
        &self,
        webhook: &Webhook,
        wanted: Option<&str>,
        hash: Option<String>,
        replayed: bool,
    ) -> Result<String, Error> {
        let (namespace, name) = (webhook.namespace(), webhook.name());
        if webhook.spec.secret_ref.name != name {
            return Err(Error::new(
                ErrorKind::Conflict,
                "the webhook that was created with this Idempotency-Key now takes its secret from another Secret",
            ));
        }
        let secret = wanted.map_or_else(random_secret, str::to_owned);
        let change = SecretChange {
            webhook,
            secret: &secret,
            previous_until: None,
            annotations: hash
                .iter()
                .map(|hash| (REQUEST_HASH_ANNOTATION, hash.clone()))
                .collect(),
        };
        let mut found: Option<Secret> = if replayed {
            self.calls.get(namespace, name).await?
        } else {
            None
        };
        for _ in 0..MAX_ATTEMPTS {
            let Some(existing) = found else {
                match self.calls.create(namespace, &change.object()).await {
                    Ok(created) => {
                        // The controller may already have looked for the Secret and not found it.
                        self.announce_secret(webhook, &created).await;
                        return Ok(secret);
                    }
                    Err(taken) if taken.is_conflict() => found = self.calls.get(namespace, name).await?,
                    Err(error) => return Err(error.into()),
                }
                continue;
            };
            if is_owned_by(&existing, webhook) {
                let is_other = existing
                    .annotation_of(REQUEST_HASH_ANNOTATION)
                    .is_some_and(|was| hash.as_deref().is_some_and(|is| is != was));
                return if is_other {
                    Err(idempotency::reused())
                } else {
                    text(&existing, &webhook.spec.secret_ref.key).ok_or_else(unusable)
                };
            }
            if !is_left_over(&existing) {
                return Err(taken());
            }
            // Left over from a deleted webhook of the same name; Kubernetes has not garbage-collected it yet.
            match self.calls.delete(&existing, false).await {
                Ok(_) => found = None,
                Err(error) if error.is_not_found() || error.is_conflict() => {
                    found = self.calls.get(namespace, name).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(contended("Secret of the webhook"))
    }

    /// Replaces the secret without an overlap.
    pub(super) async fn replace_secret(&self, webhook: &Webhook, secret: &str) -> Result<(), Error> {
        let change = SecretChange {
            webhook,
            secret,
            previous_until: None,
            annotations: Vec::new(),
        };
        self.write_secret(&change, None).await.map(drop)
    }

    /// Replaces the secret; the previous one also signs until `previous_until`. Once per idempotency key.
    pub(super) async fn rotate_secret(
        &self,
        webhook: &Webhook,
        secret: &str,
        previous_until: Option<Timestamp>,
        request: Option<&IdempotentRequest>,
    ) -> Result<Rotated, Error> {
        let change = SecretChange {
            webhook,
            secret,
            previous_until,
            annotations: Vec::new(),
        };
        self.write_secret(&change, request).await
    }

    /// Writes the change, guarded by the version that was read, so that a concurrent rotation is never overwritten.
    async fn write_secret(
        &self,
        change: &SecretChange<'_>,
        request: Option<&IdempotentRequest>,
    ) -> Result<Rotated, Error> {
        let (namespace, name) = (
            change.webhook.namespace(),
            change.webhook.spec.secret_ref.name.as_str(),
        );
        // Stands in for a missing Secret.
        let missing = Secret::default();
        for attempt in 1..=MAX_ATTEMPTS {
            let before: Option<Secret> = self.calls.get(namespace, name).await?;
            let current = before.as_ref().unwrap_or(&missing);
            let mut annotations = change.annotations.clone();
            if let Some(request) = request {
                if request.was_done(current)? {
                    return Rotated::of(current, change.webhook, true, self.clock.now()).ok_or_else(unusable);
                }
                annotations.push((IDEMPOTENCY_ANNOTATION, request.remember(current, "")));
            }
            let change = SecretChange {
                annotations,
                ..*change
            };
            let written = match &before {
                Some(before) if before.immutable == Some(true) => return Err(immutable(name)),
                Some(before) => self.calls.patch(namespace, name, &change.patch(before)).await,
                None => self.calls.create(namespace, &change.object()).await,
            };
            match written {
                Ok(secret) => {
                    self.announce_secret(change.webhook, &secret).await;
                    return Rotated::of(&secret, change.webhook, false, self.clock.now())
                        .ok_or_else(unusable);
                }
                Err(error) if error.is_conflict() || error.is_not_found() => pause(attempt).await,
                Err(error) => return Err(error.into()),
            }
        }
        Err(contended("Secret of the webhook"))
    }
}

impl Service {
    /// Makes the controller read a changed Secret at once, by annotating the webhook, so that events of later requests are
    /// signed with it. Otherwise the controller would read it some seconds later.
    async fn announce_secret(&self, webhook: &Webhook, secret: &Secret) {
        let version = secret.metadata.resource_version.as_deref();
        let patch = json!({ "metadata": {
            "uid": webhook.metadata.uid,
            "annotations": { SECRET_CHANGED_ANNOTATION: version },
        }});
        let item = IndexedWebhook::of(Arc::new(webhook.clone()));
        if let Err(error) = self.webhooks.patch(&item, &patch).await {
            let (namespace, name) = (webhook.namespace(), webhook.name());
            tracing::warn!(namespace, name, %error, "cannot announce a new secret to the controller");
        }
    }
}

fn is_owned_by(secret: &Secret, webhook: &Webhook) -> bool {
    let owners = secret.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| owner.uid == webhook.uid())
}

/// Whether the service created the Secret, for a webhook that no longer exists.
fn is_left_over(secret: &Secret) -> bool {
    let labels = secret.metadata.labels.as_ref();
    let is_ours = labels
        .and_then(|labels| labels.get(MANAGED_BY.0))
        .map(String::as_str)
        == Some(MANAGED_BY.1);
    let mut owners = secret.metadata.owner_references.iter().flatten();
    is_ours && owners.any(|owner| owner.kind == Webhook::kind(&()))
}

fn taken() -> Error {
    Error::new(
        ErrorKind::Conflict,
        "another Secret already has the name of the webhook's Secret; delete it first",
    )
}

fn unusable() -> Error {
    Error::new(
        ErrorKind::Conflict,
        "the webhook's Secret was changed and contains no signing secret; rotate it",
    )
}

fn immutable(name: &str) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!(
            "the webhook takes its secret from the Secret {name}, which is immutable; replace it with kubectl"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook(key: &str) -> Webhook {
        serde_json::from_value(json!({
            "apiVersion": "stellage.dev/v1", "kind": "Webhook",
            "metadata": { "name": "wh-1", "namespace": "demo", "uid": "u" },
            "spec": { "url": "https://example.com", "events": ["instance.created"], "secretRef": { "name": "s", "key": key } },
        }))
        .unwrap()
    }

    fn secret(data: &[(&str, &str)]) -> Secret {
        let data = data.iter();
        Secret {
            data: Some(
                data.map(|(key, text)| ((*key).to_owned(), ByteString((*text).into())))
                    .collect(),
            ),
            ..Secret::default()
        }
    }

    fn after(before: &Secret, change: &SecretChange<'_>) -> BTreeMap<String, String> {
        let mut data = before.data.clone().unwrap_or_default();
        for (key, value) in change.data(Some(before)) {
            match value {
                Some(value) => data.insert(key, value),
                None => data.remove(&key),
            };
        }
        let data = data.into_iter();
        data.map(|(key, value)| (key, String::from_utf8(value.0).unwrap()))
            .collect()
    }

    #[test]
    fn a_rotation_keeps_the_previous_secret_and_leaves_other_keys_alone() {
        let webhook = webhook("signing");
        let mut change = SecretChange {
            webhook: &webhook,
            secret: "new",
            previous_until: Some("2026-11-22T10:00:00.5Z".parse().unwrap()),
            annotations: Vec::new(),
        };
        let before = secret(&[("signing", "old"), ("other", "x"), ("previous-secret", "older")]);
        let rotated = after(&before, &change);
        let expected = [
            ("other", "x"),
            ("previous-expires-at", "2026-11-22T10:00:00Z"),
            ("previous-secret", "old"),
            ("signing", "new"),
        ];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(rotated, expected.clone().into());
        // Guarded by the version that was read: a concurrent rotation has answered with another secret.
        let mut versioned = before.clone();
        versioned.metadata.resource_version = Some("7".to_owned());
        assert_eq!(change.patch(&versioned)["metadata"]["resourceVersion"], "7");
        change.previous_until = None;
        let at_once = after(&before, &change);
        assert_eq!(at_once.len(), 2);
        // An unchanged secret has no previous one.
        change.previous_until = Some(Timestamp::UNIX_EPOCH);
        assert_eq!(after(&secret(&[("signing", "new")]), &change).len(), 1);
    }

    #[test]
    fn a_new_secret_is_owned_by_its_webhook() {
        let webhook = webhook("secret");
        let change = SecretChange {
            webhook: &webhook,
            secret: "new",
            previous_until: None,
            annotations: vec![(REQUEST_HASH_ANNOTATION, "hash".to_owned())],
        };
        let object = change.object();
        assert!(is_owned_by(&object, &webhook) && is_left_over(&object));
        assert_eq!(text(&object, "secret").as_deref(), Some("new"));
        assert_eq!(object.data.map(|data| data.len()), Some(1));
        assert!(!is_left_over(&Secret::default()));
    }

    #[test]
    fn a_random_secret_has_the_form_of_standard_webhooks() {
        let secret = random_secret();
        let encoded = secret.strip_prefix("whsec_").unwrap();
        assert_eq!(BASE64_STANDARD.decode(encoded).unwrap().len(), 32);
        assert_ne!(secret, random_secret());
    }
}
