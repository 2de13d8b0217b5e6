//! The Secret with a webhook's signing secret: made with the webhook, replaced and rotated in one guarded write.

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

/// Label that tells who made a Secret.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "stellage");
/// Reads and writes of one Secret before a request gives way to whoever else changes it.
const MAX_ATTEMPTS: u32 = 10;

/// A secret that nobody can guess, in the form of Standard Webhooks.
pub fn random_secret() -> String {
    format!("whsec_{}", BASE64_STANDARD.encode(rand::random::<[u8; 32]>()))
}

/// What a Secret shall have: the secret, and what is before it.
pub struct SecretChange<'a> {
    /// The webhook, which names the Secret and the key in it.
    pub webhook: &'a Webhook,
    /// The signing secret.
    pub secret: &'a str,
    /// Until when the secret that is there now signs too.
    pub previous_until: Option<Timestamp>,
    /// Annotations of the Secret.
    pub annotations: Vec<(&'static str, String)>,
}

impl SecretChange<'_> {
    /// The data of the keys that change; `None` for a key that goes.
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
            // The last, so that it holds whatever key the webhook names.
            (key.clone(), Some(bytes(self.secret.to_owned()))),
        ])
    }

    /// Whether a secret that is there now signs too for a while.
    pub fn overlaps(&self, before: Option<&Secret>) -> bool {
        self.data(before)
            .get(PREVIOUS_SECRET_KEY)
            .is_some_and(Option::is_some)
    }

    /// A Secret that is not there yet; it goes with the webhook.
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

    /// A merge patch for this version of a Secret only.
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

/// A signing secret, and until when the one before it signs too.
pub struct Rotated {
    /// The secret.
    pub secret: String,
    /// `None`: there is no overlap.
    pub previous_until: Option<Timestamp>,
    /// Whether an earlier request with the same key made it.
    pub before: bool,
}

impl Rotated {
    fn of(secret: &Secret, webhook: &Webhook, before: bool, now: Timestamp) -> Option<Self> {
        let previous_until = text(secret, PREVIOUS_EXPIRES_KEY).and_then(|until| until.parse().ok());
        Some(Self {
            secret: text(secret, &webhook.spec.secret_ref.key)?,
            previous_until: previous_until.filter(|until| *until > now),
            before,
        })
    }
}

impl Service {
    /// The secret of a webhook that was created by this request, or `before` by the same one. Who makes the Secret first
    /// decides what is in it, and everybody answers that: of a random secret nobody was told before it was there, so that
    /// one that is missing can be any.
    pub(super) async fn secret_of_create(
        &self,
        webhook: &Webhook,
        wanted: Option<&str>,
        hash: Option<String>,
        before: bool,
    ) -> Result<String, Error> {
        let (namespace, name) = (webhook.namespace(), webhook.name());
        if webhook.spec.secret_ref.name != name {
            return Err(Error::new(
                ErrorKind::Conflict,
                "the webhook that was created with this Idempotency-Key takes its secret from elsewhere by now",
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
        let mut found: Option<Secret> = if before {
            self.calls.get(namespace, name).await?
        } else {
            None
        };
        for _ in 0..MAX_ATTEMPTS {
            let Some(there) = found else {
                match self.calls.create(namespace, &change.object()).await {
                    Ok(made) => {
                        // The controller may have looked for it already, and believe that it is missing.
                        self.announce_secret(webhook, &made).await;
                        return Ok(secret);
                    }
                    Err(taken) if taken.is_conflict() => found = self.calls.get(namespace, name).await?,
                    Err(error) => return Err(error.into()),
                }
                continue;
            };
            if is_owned_by(&there, webhook) {
                let is_other = there
                    .annotation_of(REQUEST_HASH_ANNOTATION)
                    .is_some_and(|was| hash.as_deref().is_some_and(|is| is != was));
                return if is_other {
                    Err(idempotency::reused())
                } else {
                    text(&there, &webhook.spec.secret_ref.key).ok_or_else(unusable)
                };
            }
            if !is_left_over(&there) {
                return Err(taken());
            }
            // Of a webhook of the same name that is gone; Kubernetes has not cleared it away yet.
            match self.calls.delete(&there, false).await {
                Ok(_) => found = None,
                Err(error) if error.is_not_found() || error.is_conflict() => {
                    found = self.calls.get(namespace, name).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(contended("Secret of the webhook"))
    }

    /// Makes a secret the only one.
    pub(super) async fn replace_secret(&self, webhook: &Webhook, secret: &str) -> Result<(), Error> {
        let change = SecretChange {
            webhook,
            secret,
            previous_until: None,
            annotations: Vec::new(),
        };
        self.write_secret(&change, None).await.map(drop)
    }

    /// Makes a secret the one that signs, and the one that did sign too for a while. With a key only once.
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

    /// One write, for the version that was read: a secret that somebody else made meanwhile is never lost unseen.
    async fn write_secret(
        &self,
        change: &SecretChange<'_>,
        request: Option<&IdempotentRequest>,
    ) -> Result<Rotated, Error> {
        let (namespace, name) = (
            change.webhook.namespace(),
            change.webhook.spec.secret_ref.name.as_str(),
        );
        // What remembers the key when there is nothing to remember it beside.
        let nothing = Secret::default();
        for attempt in 1..=MAX_ATTEMPTS {
            let before: Option<Secret> = self.calls.get(namespace, name).await?;
            let known = before.as_ref().unwrap_or(&nothing);
            let mut annotations = change.annotations.clone();
            if let Some(request) = request {
                if request.was_done(known)? {
                    return Rotated::of(known, change.webhook, true, self.clock.now()).ok_or_else(unusable);
                }
                annotations.push((IDEMPOTENCY_ANNOTATION, request.remember(known, "")));
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
    /// Has the controller read a changed Secret at once, and waits until the watch shows it: what is asked for next is
    /// signed with the new one. Without that the controller reads it some seconds later.
    async fn announce_secret(&self, webhook: &Webhook, secret: &Secret) {
        let version = secret.metadata.resource_version.as_deref();
        let patch = json!({ "metadata": {
            "uid": webhook.metadata.uid,
            "annotations": { SECRET_CHANGED_ANNOTATION: version },
        }});
        let item = IndexedWebhook::of(Arc::new(webhook.clone()));
        if let Err(error) = self.webhooks.patch(&item, &patch).await {
            let (namespace, name) = (webhook.namespace(), webhook.name());
            tracing::warn!(namespace, name, %error, "a webhook cannot be told of its new secret");
        }
    }
}

fn is_owned_by(secret: &Secret, webhook: &Webhook) -> bool {
    let owners = secret.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| owner.uid == webhook.uid())
}

/// Whether the Secret was made for a webhook, which is then another one than the one that has its name now.
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
        "a Secret that is not the service's has the name that the webhook's would have; it has to go first",
    )
}

fn unusable() -> Error {
    Error::new(
        ErrorKind::Conflict,
        "the webhook's Secret has been changed and holds no secret; rotate it",
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
    fn a_rotation_keeps_the_old_one_beside_the_new_one_and_leaves_other_keys_alone() {
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
        // Only of the version that was read: who was faster has told somebody another secret.
        let mut versioned = before.clone();
        versioned.metadata.resource_version = Some("7".to_owned());
        assert_eq!(change.patch(&versioned)["metadata"]["resourceVersion"], "7");
        change.previous_until = None;
        let at_once = after(&before, &change);
        assert_eq!(at_once.len(), 2);
        // The same secret again has nothing before it.
        change.previous_until = Some(Timestamp::UNIX_EPOCH);
        assert_eq!(after(&secret(&[("signing", "new")]), &change).len(), 1);
    }

    #[test]
    fn a_new_secret_goes_with_its_webhook() {
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
