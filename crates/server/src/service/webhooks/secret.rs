//! The Secret with a webhook's signing secret: created with the webhook, replaced and rotated in one write that is guarded by
//! the resourceVersion.
//!
//! The service may read and write all Secrets of an account's namespace, but people who may change a Webhook may not. So it uses
//! only the Secrets that [`Webhook::may_use`] allows, and gives the same response whether another Secret exists or not.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::Resource as _;
use serde_json::json;
use tokio::time::timeout;

use super::IndexedWebhook;
use crate::service::{
    Service,
    error::{Error, ErrorCode},
    id::WebhookId,
    idempotency::{self, IdempotentRequest, REQUEST_HASH_ANNOTATION},
    index::Object as _,
    precondition::{self, Precondition},
    store::{MAX_ATTEMPTS, Verdict, contended, pause},
};
use domain::webhook::SecretChange;
use resources::{
    MANAGED_BY, SecretReference, Webhook, ids,
    instance::IDEMPOTENCY_ANNOTATION,
    webhook::{SECRET_CHANGED_ANNOTATION, random_secret},
};
use runtime::client::CallError;

/// For how long after the creation of the Secret the answer to a repeated create shows the secret.
const SHOWN_FOR: SignedDuration = SignedDuration::from_hours(24);

/// How long the answer about a webhook waits for its Secret, which only says more than the status just after a rotation.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// Annotation of a Secret: the version of the webhook whose secret was last rotated. It is written with the secret, before that
/// makes another version of the webhook.
const ROTATED_ANNOTATION: &str = "stellage.dev/rotated-version";

fn text(secret: &Secret, key: &str) -> Option<String> {
    let bytes = secret.data.as_ref()?.get(key)?;
    String::from_utf8(bytes.0.clone())
        .ok()
        .filter(|text| !text.is_empty())
}

/// Until when the previous secret of a webhook also signs.
fn previous_until(secret: &Secret, webhook: &Webhook, now: Timestamp) -> Option<Timestamp> {
    let reference = &webhook.spec.secret_ref;
    text(secret, &reference.previous_key())?;
    let until = text(secret, &reference.previous_expires_key())?.parse().ok();
    until.filter(|until| *until > now)
}

/// The result of a write of a Secret.
pub(super) struct Written {
    pub(super) secret: Secret,
    /// The previous version of the Secret, if there was one.
    before: Option<Secret>,
    /// Whether an earlier request with the same key was carried out instead.
    replayed: bool,
}

impl Written {
    /// Whether the write made a new version of the Secret: one that already has the content stays as it is.
    pub(super) fn is_new_version(&self) -> bool {
        let before = self.before.as_ref();
        before.is_none_or(|before| before.metadata.resource_version != self.secret.metadata.resource_version)
    }
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
        Some(Self {
            secret: text(secret, &webhook.spec.secret_ref.key)?,
            previous_until: previous_until(secret, webhook, now),
            replayed,
        })
    }
}

impl Service {
    /// The secret of a webhook created by this request or, if `replayed`, by an earlier one with the same key. Whichever
    /// request creates the Secret first decides its content, and all of them answer with that; a day later it is no longer
    /// shown (`None`). If the Secret is missing, no answer has been given yet, so any random secret will do.
    pub(super) async fn secret_of_create(
        &self,
        webhook: &Webhook,
        wanted: Option<&str>,
        hash: Option<String>,
        replayed: bool,
    ) -> Result<Option<String>, Error> {
        let (namespace, name) = (webhook.namespace(), webhook.name());
        if webhook.spec.secret_ref.name != name {
            return Err(Error::new(
                ErrorCode::Conflict,
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
                        self.announce_secret(webhook, &created, None).await;
                        return Ok(Some(secret));
                    }
                    Err(taken) if taken.is_conflict() => found = self.calls.get(namespace, name).await?,
                    Err(error) => return Err(error.into()),
                }
                continue;
            };
            if webhook.owns(&existing) {
                let is_other = existing
                    .annotation_of(REQUEST_HASH_ANNOTATION)
                    .is_some_and(|was| hash.as_deref().is_some_and(|is| is != was));
                if is_other {
                    return Err(idempotency::reused());
                }
                let secret = text(&existing, &webhook.spec.secret_ref.key).ok_or_else(unusable)?;
                return Ok(Some(secret).filter(|_| is_shown(&existing, self.clock.now())));
            }
            if !is_left_over(&existing) {
                return Err(taken());
            }
            // Left over from a deleted webhook of the same name; Kubernetes has not garbage-collected it yet.
            match self.calls.delete(&existing, false).await {
                Ok(_) => found = None,
                Err(error) if error.is_conflict() => {
                    found = self.calls.get(namespace, name).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(contended("Secret of the webhook"))
    }

    /// Until when the previous secret of a webhook also signs; `None` without a rotation, or after its overlap. The status has it
    /// some seconds after a rotation, the Secret at once.
    pub async fn previous_secret_until(&self, webhook: &Webhook) -> Option<Timestamp> {
        let (name, now) = (&webhook.spec.secret_ref.name, self.clock.now());
        let read = self.calls.get::<Secret>(webhook.namespace(), name);
        match timeout(ANSWERED_WITHIN, read).await {
            Ok(Ok(Some(secret))) if webhook.may_use(&secret) => previous_until(&secret, webhook, now),
            _ => {
                let until = webhook.status.as_ref()?.previous_secret_expires_at;
                until.filter(|until| *until > now)
            }
        }
    }

    /// Replaces the secret without an overlap. The caller announces it.
    pub(super) async fn replace_secret(&self, webhook: &Webhook, secret: &str) -> Result<Written, Error> {
        let change = SecretChange {
            webhook,
            secret,
            previous_until: None,
            annotations: Vec::new(),
        };
        self.write_secret(&change, None, &Precondition::None).await
    }

    /// Reverts a replacement of the secret, unless the Secret has changed since.
    pub(super) async fn put_back(&self, webhook: &Webhook, replaced: &Written) -> Result<(), CallError> {
        let Some(before) = &replaced.before else {
            return self.calls.delete(&replaced.secret, true).await.map(drop);
        };
        let reference = &webhook.spec.secret_ref;
        let keys = [
            reference.key.clone(),
            reference.previous_key(),
            reference.previous_expires_key(),
        ];
        let data = keys.map(|key| {
            let value = before.data.as_ref().and_then(|data| data.get(&key).cloned());
            (key, value)
        });
        let patch = json!({
            "metadata": { "resourceVersion": replaced.secret.metadata.resource_version },
            "data": BTreeMap::from(data),
        });
        let patched = self
            .calls
            .patch::<Secret>(webhook.namespace(), &reference.name, &patch);
        patched.await.map(drop)
    }

    /// Replaces the secret; the previous one also signs until `previous_until`. Once per idempotency key: the Webhook remembers
    /// which secret was rotated, the Secret whether it has been.
    pub(super) async fn rotate_secret(
        &self,
        webhook: &Webhook,
        secret: &str,
        previous_until: Option<Timestamp>,
        request: Option<&IdempotentRequest>,
        precondition: &Precondition,
    ) -> Result<Rotated, Error> {
        let change = SecretChange {
            webhook,
            secret,
            previous_until,
            annotations: vec![(ROTATED_ANNOTATION, precondition::version(webhook))],
        };
        let written = self.write_secret(&change, request, precondition).await?;
        let Written { secret, replayed, .. } = written;
        // Not yet, if an earlier request crashed in between.
        let is_announced = request.is_some_and(|request| request.was_done(webhook) == Ok(true));
        if !is_announced {
            self.announce_secret(webhook, &secret, request).await;
        }
        Rotated::of(&secret, webhook, replayed, self.clock.now()).ok_or_else(unusable)
    }

    /// Whether an earlier request with the same key has rotated the secret. After a crash only the Secret says so.
    pub(super) async fn was_rotated(
        &self,
        webhook: &Webhook,
        request: &IdempotentRequest,
    ) -> Result<bool, Error> {
        if request.was_done(webhook)? {
            return Ok(true);
        }
        let name = &webhook.spec.secret_ref.name;
        match self.calls.get::<Secret>(webhook.namespace(), name).await? {
            Some(secret) if webhook.may_use(&secret) => request.with_secrets().was_done(&secret),
            _ => Ok(false),
        }
    }

    /// Writes the change, guarded by the version that was read, so that a concurrent rotation is never overwritten.
    async fn write_secret(
        &self,
        change: &SecretChange<'_>,
        request: Option<&IdempotentRequest>,
        precondition: &Precondition,
    ) -> Result<Written, Error> {
        let webhook = change.webhook;
        let reference = &webhook.spec.secret_ref;
        let (namespace, name) = (webhook.namespace(), reference.name.as_str());
        let rotated = request
            .map(|request| request.note(webhook))
            .transpose()?
            .flatten();
        if rotated
            .as_ref()
            .is_some_and(|place| *place != place_of(reference))
        {
            return Err(moved());
        }
        // Takes the place of a missing Secret.
        let missing = Secret::default();
        let mut refused: Option<Option<Secret>> = None;
        for attempt in 1..=MAX_ATTEMPTS {
            let before: Option<Secret> = self.calls.get(namespace, name).await?;
            // The API server refuses what it has carried out if the client sends it again, after an answer of 503 or 504.
            if let (Some(refused), Some(secret)) = (refused.take(), &before)
                && webhook.may_use(secret)
                && text(secret, &reference.key).as_deref() == Some(change.secret)
            {
                return Ok(Written {
                    secret: secret.clone(),
                    before: refused,
                    replayed: false,
                });
            }
            match &before {
                Some(before) if !webhook.may_use(before) => return Err(not_its_own()),
                Some(before) if before.immutable == Some(true) => return Err(immutable(name)),
                None if !names_its_own(webhook) => return Err(not_its_own()),
                _ => {}
            }
            let current = before.as_ref().unwrap_or(&missing);
            let mut annotations = change.annotations.clone();
            if let Some(request) = request {
                let request = request.with_secrets();
                match request.note(current)? {
                    Some(key) if key == reference.key || key.is_empty() => {
                        return Ok(Written {
                            secret: current.clone(),
                            before,
                            replayed: true,
                        });
                    }
                    None if rotated.is_none() => {}
                    // Another key of the Secret was rotated, or the Secret has been replaced.
                    Some(_) | None => return Err(moved()),
                }
                annotations.push((IDEMPOTENCY_ANNOTATION, request.remember(current, &reference.key)));
            }
            let rotated_version = current.annotation_of(ROTATED_ANNOTATION);
            if matches!(precondition, Precondition::OneOf(_))
                && rotated_version == Some(precondition::version(webhook).as_str())
            {
                // Another replica has rotated it, and may have failed to say so.
                self.announce_secret(webhook, current, None).await;
                return Err(precondition::failed());
            }
            let change = SecretChange {
                annotations,
                ..*change
            };
            let written = match &before {
                Some(before) => self.calls.patch(namespace, name, &change.patch(before)).await,
                None => self.calls.create(namespace, &change.object()).await,
            };
            match written {
                Ok(secret) => {
                    return Ok(Written {
                        secret,
                        before,
                        replayed: false,
                    });
                }
                Err(error) if error.is_conflict() || error.is_not_found() => {
                    refused = Some(before);
                    pause(attempt).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(contended("Secret of the webhook"))
    }

    /// Makes the controller read a changed Secret at once, by annotating the webhook, so that events of later requests are
    /// signed with it. Otherwise the controller would read it some seconds later. The same write remembers the request.
    async fn announce_secret(&self, webhook: &Webhook, secret: &Secret, request: Option<&IdempotentRequest>) {
        let decide = |item: &IndexedWebhook| {
            if item.webhook.metadata.uid != webhook.metadata.uid {
                return Ok(Verdict::Leave);
            }
            let mut annotations = vec![announcement(secret)];
            if let Some(request) = request {
                let place = place_of(&webhook.spec.secret_ref);
                annotations.push((IDEMPOTENCY_ANNOTATION, request.remember(&*item.webhook, &place)));
            }
            Ok(Verdict::Write {
                spec: Box::new(item.webhook.spec.clone()),
                annotations,
            })
        };
        let (namespace, id) = (webhook.namespace(), WebhookId::of(webhook));
        if let Err(error) = self.webhooks.modify(namespace, Some(id), decide).await {
            tracing::warn!(namespace, webhook = %id, %error, "cannot announce a new secret to the controller");
        }
    }
}

/// The annotation of a webhook that makes the controller read this version of its Secret at once.
pub(super) fn announcement(secret: &Secret) -> (&'static str, String) {
    let version = secret.metadata.resource_version.clone();
    (SECRET_CHANGED_ANNOTATION, version.unwrap_or_default())
}

/// Identifies what was rotated, in the note of a rotation.
fn place_of(reference: &SecretReference) -> String {
    // Neither part can contain a slash.
    format!("{}/{}", reference.name, reference.key)
}

/// Whether the webhook takes its secret from the Secret that is created with a webhook, which can be created again if it is
/// missing. Doing so for any name would tell whether a Secret of that name exists.
fn names_its_own(webhook: &Webhook) -> bool {
    let name = webhook.name();
    webhook.spec.secret_ref.name == name && ids::webhook_name(&webhook.id()).as_deref() == Some(name)
}

/// Whether the answer to a repeated create still shows the secret.
fn is_shown(secret: &Secret, now: Timestamp) -> bool {
    let created = secret.metadata.creation_timestamp.as_ref();
    created.is_none_or(|created| now.duration_since(created.0) < SHOWN_FOR)
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

/// The error for a Secret that must not be used. It is the same whether the Secret exists or not.
fn not_its_own() -> Error {
    Error::new(
        ErrorCode::Conflict,
        "the webhook's secretRef names a Secret that is neither the webhook's own nor labelled stellage.dev/webhook-secret=true; create or label it with kubectl, or name another",
    )
}

/// The error for a repetition after the webhook was given another secret.
fn moved() -> Error {
    Error::new(
        ErrorCode::Conflict,
        "the webhook's secretRef has changed, or its Secret was replaced, since this Idempotency-Key was used; use a new key to rotate the secret",
    )
}

fn taken() -> Error {
    Error::new(
        ErrorCode::Conflict,
        "another Secret already has the name of the webhook's Secret; delete it first",
    )
}

fn unusable() -> Error {
    Error::new(
        ErrorCode::Conflict,
        "the webhook's Secret was changed and contains no signing secret; rotate it",
    )
}

fn immutable(name: &str) -> Error {
    Error::new(
        ErrorCode::Conflict,
        format!(
            "the webhook takes its secret from the Secret {name}, which is immutable; replace it with kubectl"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use resources::testing;

    fn webhook(key: &str) -> Webhook {
        testing::webhook(json!({ "spec": { "secretRef": { "key": key } } }))
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
        assert!(webhook.owns(&object) && is_left_over(&object));
        assert_eq!(text(&object, "secret").as_deref(), Some("new"));
        assert_eq!(object.data.map(|data| data.len()), Some(1));
        assert!(!is_left_over(&Secret::default()));
    }

    #[test]
    fn the_secret_is_shown_again_for_a_day() {
        let created = "2026-11-21T10:00:00Z";
        let secret: Secret =
            serde_json::from_value(json!({ "metadata": { "creationTimestamp": created } })).unwrap();
        let shown = |now: &str| is_shown(&secret, now.parse().unwrap());
        assert!(shown("2026-11-22T09:59:59Z") && !shown("2026-11-22T10:00:00Z"));
    }
}
