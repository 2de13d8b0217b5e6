//! Webhooks: list, find, create, change, delete, test, rotate their secret.
//!
//! A webhook consists of two objects: the Webhook, which is indexed, and the Secret with its signing secret, which is read from
//! the API server when needed and never cached.
//!
//! - `spec`: builds the Webhook object;
//! - `secret`: the Secret with the signing secret.

mod secret;
mod spec;

use std::sync::Arc;

use jiff::Timestamp;
use kube::api::{Patch, PatchParams};

pub use self::secret::Rotated;
pub use domain::webhook::{Complaint, health};

use self::secret::Written;
use super::{
    Service,
    credentials::Tenant,
    error::{Detail, Error, ErrorCode, check_quota},
    id::{PublicId as _, WebhookId},
    idempotency::{self, IdempotentRequest, REQUEST_HASH_ANNOTATION},
    index::{Indexed, Object as _, Paging},
    precondition::Precondition,
    store::{Created, KeyedCreate, KeyedLock, Verdict},
};
use api::{ChangeWebhook, CreateWebhook};
use domain::{
    event::EventType,
    webhook::{Untestable, changed_spec, example, example_type},
};
use resources::{Delivery, Webhook, WebhookSpec, ids, merge_patch, webhook::random_secret};
use runtime::{client::bounded, traces};

/// A webhook with values derived from it.
#[derive(Debug)]
pub struct IndexedWebhook {
    /// The object, shared with the watch's store.
    pub webhook: Arc<Webhook>,
    /// Its public id.
    pub id: WebhookId,
}

impl Indexed for IndexedWebhook {
    type Object = Webhook;
    type Id = WebhookId;
    type Spec = WebhookSpec;

    const WORD: &'static str = "webhook";

    fn of(webhook: Arc<Webhook>) -> Self {
        Self {
            id: WebhookId::of(&webhook),
            webhook,
        }
    }

    fn id(&self) -> WebhookId {
        self.id
    }

    fn object(&self) -> &Webhook {
        &self.webhook
    }

    fn spec(&self) -> &WebhookSpec {
        &self.webhook.spec
    }
}

/// A created webhook with its secret, which is shown only once.
pub struct CreatedWebhook {
    pub item: Arc<IndexedWebhook>,
    /// Its signing secret; `None` if an earlier request created it more than a day ago.
    pub secret: Option<String>,
    /// Whether an earlier request with the same key created it.
    pub replayed: bool,
}

/// A test delivery that is being sent.
pub struct SentTest {
    pub item: Arc<IndexedWebhook>,
    /// The test delivery.
    pub delivery: Delivery,
    /// Whether an earlier request with the same key created it.
    pub replayed: bool,
}

/// The type of the test event for a webhook: `invalid_input` if the webhook does not subscribe to it, `invalid_state` if `active`
/// is `false`.
fn test_type(webhook: &Webhook, wanted: Option<EventType>) -> Result<EventType, Error> {
    example_type(webhook, wanted).map_err(|refusal| match refusal {
        Untestable::NotActive => not_active(),
        Untestable::NotSubscribed => {
            let types: Vec<_> = webhook.spec.events.iter().map(|event| event.as_str()).collect();
            Error::invalid_value(
                "type",
                format!("must be one of the webhook's event types: {}", types.join(", ")),
            )
        }
    })
}

/// `invalid_state` for sending to a webhook with `active: false`.
pub fn not_active() -> Error {
    Error {
        details: vec![Detail::new(
            "active",
            "invalid_state",
            "is false; set it to true first",
        )],
        ..Error::new(
            ErrorCode::InvalidState,
            "the webhook is not active; set active to true first",
        )
    }
}

impl Service {
    /// One page of an account's webhooks, newest first, and their total number.
    pub fn list_webhooks(&self, namespace: &str, paging: Paging) -> (Vec<Arc<IndexedWebhook>>, usize) {
        self.webhooks.index().page(namespace, paging)
    }

    /// The webhook with this id; `not_found` if it is not in the namespace.
    pub async fn webhook(
        &self,
        namespace: &str,
        id: Option<WebhookId>,
    ) -> Result<Arc<IndexedWebhook>, Error> {
        self.webhooks.find(namespace, id).await
    }

    /// Other webhooks of its account that send an event of this one to the same URL: at most a few, and how many there are.
    pub fn webhooks_beside(&self, item: &IndexedWebhook) -> (Vec<Arc<IndexedWebhook>>, usize) {
        let spec = &item.webhook.spec;
        let is_beside = |other: &IndexedWebhook| {
            let its = &other.webhook.spec;
            other.id != item.id
                && its.url == spec.url
                && its.events.iter().any(|event| spec.events.contains(event))
        };
        let index = self.webhooks.index();
        index.page_of(item.webhook.namespace(), Paging::first(3), is_beside)
    }

    /// Creates a webhook and its Secret, once per idempotency key.
    pub async fn create_webhook(
        &self,
        tenant: &Tenant,
        new: &CreateWebhook,
        request: Option<&IdempotentRequest>,
    ) -> Result<CreatedWebhook, Error> {
        // The Webhook gets the digest of the body without the secret, because tenants can read it and could guess the secret
        // from a full one. The digest of the whole body is stored in the Secret.
        let keyed = KeyedCreate::of(request, &tenant.uid)?;
        // The ResourceQuota decides. This check avoids failed attempts, which would be charged to it, and also works before
        // Kubernetes has computed it.
        let has_room = || {
            tenant.check_not_terminating()?;
            let count = self.webhooks.index().count(&tenant.namespace);
            check_quota(count, tenant.webhook_quota, "webhooks")
        };
        let build = |name: &str, hash: Option<String>| spec::object(new, name, hash, self.clock.now());
        let created = self
            .webhooks
            .create_once(&tenant.namespace, keyed.as_ref(), has_room, build)
            .await?;
        let (item, replayed) = (created.item.clone(), created.replayed);
        let shown = self.with_secret(created, new.secret.as_deref(), request).await;
        // Without a secret, no receiver could verify its deliveries.
        if shown.is_err()
            && !replayed
            && let Err(error) = self.webhooks.delete(&item, false).await
        {
            tracing::warn!(webhook = %item.id, %error, "cannot delete a webhook without a secret");
        }
        shown
    }

    /// The webhook that an earlier request with the same idempotency key has created. `secret` is that of the request.
    pub async fn webhook_created_by(
        &self,
        tenant: &Tenant,
        secret: Option<&str>,
        request: Option<&IdempotentRequest>,
    ) -> Result<Option<CreatedWebhook>, Error> {
        let Some(keyed) = KeyedCreate::of(request, &tenant.uid)? else {
            return Ok(None);
        };
        match self.webhooks.created_by(&tenant.namespace, &keyed).await? {
            Some(created) => self.with_secret(created, secret, request).await.map(Some),
            None => Ok(None),
        }
    }

    /// A created webhook with its secret, which is made if it is missing.
    async fn with_secret(
        &self,
        created: Created<IndexedWebhook>,
        secret: Option<&str>,
        request: Option<&IdempotentRequest>,
    ) -> Result<CreatedWebhook, Error> {
        let Created { item, replayed } = created;
        let hash = request.map(|request| request.body_hash().to_owned());
        let secret = self
            .secret_of_create(&item.webhook, secret, hash, replayed)
            .await?;
        // Announcing the secret has made another version of the webhook.
        let current = self.webhooks.find(item.webhook.namespace(), Some(item.id)).await;
        Ok(CreatedWebhook {
            item: current.unwrap_or(item),
            secret,
            replayed,
        })
    }

    /// Serialises the changes of a webhook's secret: of two for the same version of the webhook, the second is refused.
    async fn lock_secret(&self, namespace: &str, id: Option<WebhookId>) -> Result<Option<KeyedLock>, Error> {
        Ok(match id {
            Some(id) => Some(
                self.secret_locks
                    .lock(&format!("{namespace}/{}", id.name()))
                    .await?,
            ),
            None => None,
        })
    }

    /// Changes a webhook and its secret.
    pub async fn change_webhook(
        &self,
        namespace: &str,
        id: Option<WebhookId>,
        change: &ChangeWebhook,
        precondition: &Precondition,
    ) -> Result<Arc<IndexedWebhook>, Error> {
        // The secret first: a change that enables the webhook releases held events, which must be signed with the new one. A
        // crash in between leaves a version that `If-Match` still names, so repeating the request completes the change.
        let mut lock = None;
        let replaced = match &change.secret {
            Some(secret) => {
                lock = self.lock_secret(namespace, id).await?;
                let item = self
                    .check_webhook(namespace, id, precondition, |_| Ok(()))
                    .await?;
                self.rehearse(&item, change).await?;
                let written = self.replace_secret(&item.webhook, secret).await?;
                Some((item, written))
            }
            None => None,
        };
        let announced = replaced
            .as_ref()
            .map(|(_, written)| secret::announcement(&written.secret));
        let is_unmistakable = replaced
            .as_ref()
            .is_some_and(|(_, written)| written.is_new_version());
        let decide = |item: &IndexedWebhook| {
            // Only this request knew the version that it gave the Secret, so it has written the webhook: the client retries when the API
            // server answers 503 or 504, although it may have carried out the request.
            if let Some((annotation, version)) = &announced
                && is_unmistakable
                && item.webhook.annotation_of(annotation) == Some(version.as_str())
            {
                return Ok(Verdict::Leave);
            }
            precondition.check(&*item.webhook)?;
            Ok(Verdict::Write {
                spec: Box::new(changed_spec(change, &item.webhook, self.clock.now())),
                annotations: announced.clone().into_iter().collect(),
            })
        };
        let changed = self.webhooks.modify(namespace, id, decide).await;
        drop(lock);
        match (changed, replaced) {
            // The webhook has changed since it was checked. After any other kind of error it may have been written.
            (Err(refusal), Some((item, written)))
                if !matches!(
                    refusal.code,
                    ErrorCode::ServerError | ErrorCode::ServiceUnavailable
                ) =>
            {
                Err(self.without_the_secret(&item, &written, refusal).await)
            }
            (changed, _) => changed,
        }
    }

    /// Reverts the change of the secret for a request that is refused after all. If that fails, the refusal says so.
    async fn without_the_secret(&self, item: &IndexedWebhook, written: &Written, refusal: Error) -> Error {
        match self.put_back(&item.webhook, written).await {
            Ok(()) => refusal,
            Err(error) => {
                tracing::warn!(webhook = %item.id, %error, "cannot put the former signing secret back");
                Error {
                    message: format!("{}; its secret has been replaced nevertheless", refusal.message).into(),
                    ..refusal
                }
            }
        }
    }

    /// Asks the API server whether admission accepts the changed spec, without writing it, so that a refused request leaves the
    /// secret as it was.
    async fn rehearse(&self, item: &IndexedWebhook, change: &ChangeWebhook) -> Result<(), Error> {
        let spec = changed_spec(change, &item.webhook, self.clock.now());
        let Some(patch) = merge_patch(&item.webhook.metadata, &item.webhook.spec, &spec, &[]) else {
            return Ok(());
        };
        let parameters = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let api = self.calls.api::<Webhook>(item.webhook.namespace());
        let _permit = self.calls.permit(item.webhook.namespace()).await?;
        match bounded(api.patch(item.webhook.name(), &parameters, &Patch::Merge(&patch))).await {
            // The webhook has changed since: the write will be decided on the new version.
            Err(error) if error.is_conflict() => Ok(()),
            outcome => Ok(outcome.map(drop)?),
        }
    }

    /// Deletes a webhook. Its deliveries, and the Secret created for it, are garbage-collected.
    pub async fn delete_webhook(
        &self,
        namespace: &str,
        id: Option<WebhookId>,
        precondition: &Precondition,
    ) -> Result<(), Error> {
        let check = |item: &IndexedWebhook| precondition.check(&*item.webhook);
        self.webhooks
            .remove(namespace, id, precondition.is_some(), check)
            .await
    }

    /// Sends a test delivery, once per idempotency key. The default type is the webhook's first event type.
    pub async fn test_webhook(
        &self,
        tenant: &Tenant,
        id: Option<WebhookId>,
        event_type: Option<EventType>,
        request: Option<&IdempotentRequest>,
        precondition: &Precondition,
    ) -> Result<SentTest, Error> {
        let namespace = &tenant.namespace;
        let suffix = request.map_or_else(ids::random_suffix, |request| request.name_suffix(&tenant.uid));
        let event_id = format!("evt_test_{suffix}");
        let item = self.webhooks.find(namespace, id).await?;
        let name = ids::delivery_name(item.webhook.origin_uid(), &event_id);
        if let Some(request) = request
            && let Some(delivery) = self.calls.get(namespace, &name).await?
        {
            return replayed_test(item, delivery, request);
        }
        let item = self.check_webhook(namespace, id, precondition, |item| {
            test_type(&item.webhook, event_type).map(drop)
        });
        let item = item.await?;
        let event_type = test_type(&item.webhook, event_type)?;
        let mut delivery = example(&item.webhook, &event_id, event_type, self.clock.now());
        delivery.spec.traceparent = traces::current();
        delivery.metadata.annotations = request.map(|request| {
            [(
                REQUEST_HASH_ANNOTATION.to_owned(),
                request.visible_hash().to_owned(),
            )]
            .into()
        });
        match (self.calls.create(namespace, &delivery).await, request) {
            (Ok(delivery), _) => Ok(SentTest {
                item,
                delivery,
                replayed: false,
            }),
            (Err(error), request) if error.is_conflict() => {
                match (self.calls.get(namespace, &name).await?, request) {
                    (Some(delivery), Some(request)) => replayed_test(item, delivery, request),
                    // Its id is random, so an earlier attempt of this call created it.
                    (Some(delivery), None) => Ok(SentTest {
                        item,
                        delivery,
                        replayed: false,
                    }),
                    (None, _) => Err(error.into()),
                }
            }
            (Err(error), _) => Err(error.into()),
        }
    }

    /// Replaces the signing secret, once per idempotency key. The previous one also signs until `previous_until`.
    pub async fn rotate_webhook_secret(
        &self,
        namespace: &str,
        id: Option<WebhookId>,
        secret: Option<String>,
        previous_until: Option<Timestamp>,
        request: Option<&IdempotentRequest>,
        precondition: &Precondition,
    ) -> Result<(Arc<IndexedWebhook>, Rotated), Error> {
        let _lock = self.lock_secret(namespace, id).await?;
        let item = match self.check_webhook(namespace, id, precondition, |_| Ok(())).await {
            Ok(item) => item,
            // The rotation itself has changed the version.
            Err(refusal) => {
                let rotated = self.webhook_rotated_by(namespace, id, request).await?;
                rotated.ok_or(refusal)?
            }
        };
        let secret = secret.unwrap_or_else(random_secret);
        let rotated = self
            .rotate_secret(&item.webhook, &secret, previous_until, request, precondition)
            .await?;
        // Announcing the secret has made another version of the webhook.
        let current = self.webhooks.find(namespace, id).await;
        Ok((current.unwrap_or(item), rotated))
    }

    /// The webhook with this id, if an earlier request with the same idempotency key has rotated its secret.
    async fn webhook_rotated_by(
        &self,
        namespace: &str,
        id: Option<WebhookId>,
        request: Option<&IdempotentRequest>,
    ) -> Result<Option<Arc<IndexedWebhook>>, Error> {
        let Some(request) = request else { return Ok(None) };
        let shown = self.webhooks.find(namespace, id).await?;
        let item = self.webhooks.find_now(namespace, &shown).await?;
        let was_rotated = self.was_rotated(&item.webhook, request).await?;
        Ok(was_rotated.then_some(item))
    }

    /// The webhook, if the precondition and `check` allow the request. A refusal is checked against the current version.
    async fn check_webhook(
        &self,
        namespace: &str,
        id: Option<WebhookId>,
        precondition: &Precondition,
        check: impl Fn(&IndexedWebhook) -> Result<(), Error> + Send + Sync,
    ) -> Result<Arc<IndexedWebhook>, Error> {
        let decide = |item: &IndexedWebhook| {
            precondition.check(&*item.webhook)?;
            check(item)?;
            Ok(Verdict::Leave)
        };
        self.webhooks.modify(namespace, id, decide).await
    }
}

fn replayed_test(
    item: Arc<IndexedWebhook>,
    delivery: Delivery,
    request: &IdempotentRequest,
) -> Result<SentTest, Error> {
    if delivery.annotation_of(REQUEST_HASH_ANNOTATION) != Some(request.visible_hash()) {
        return Err(idempotency::reused());
    }
    Ok(SentTest {
        item,
        delivery,
        replayed: true,
    })
}

#[cfg(test)]
mod tests {
    use http::Method;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;
    use runtime::testing::{answered_by, first_create_answered_with_504, refusals_of_a_second_try};

    const WEBHOOK: &str = "wh-abcdefgh01234567";

    /// Changes the webhook on the condition that it has the version of generation 1.
    async fn change_the_first(
        client: kube::Client,
        change: &ChangeWebhook,
    ) -> Result<Arc<IndexedWebhook>, Error> {
        let id = WebhookId::of_suffix("abcdefgh01234567");
        let precondition = Precondition::OneOf(vec!["u-1".to_owned(), "u-1-7".to_owned()]);
        let service = Service::with_client(client);
        service.change_webhook("demo", id, change, &precondition).await
    }

    /// A webhook of this generation, and its Secret.
    fn webhook(generation: u64) -> Value {
        json!({
            "metadata": {
                "namespace": "demo", "name": WEBHOOK, "uid": "u", "resourceVersion": "1", "generation": generation,
            },
            "spec": { "url": "https://example.com", "events": ["instance.created"], "secretRef": { "name": WEBHOOK } },
        })
    }

    fn its_secret(created: Timestamp) -> Value {
        json!({
            "metadata": {
                "namespace": "demo", "name": WEBHOOK, "resourceVersion": "7", "creationTimestamp": created,
                "ownerReferences": [{
                    "apiVersion": "stellage.dev/v1", "kind": "Webhook", "name": WEBHOOK, "uid": "u", "controller": true,
                }],
            },
            "data": { "secret": "b2xk" },
        })
    }

    #[tokio::test]
    async fn a_change_that_is_refused_because_the_webhook_has_changed_meanwhile_leaves_the_secret_as_it_was()
    {
        for puts_back in [true, false] {
            let stored = Arc::new(Mutex::new((1, its_secret(Timestamp::now()))));
            let server = stored.clone();
            let client = answered_by(move |method, path, body| {
                let mut stored = server.lock();
                let (generation, secret) = &mut *stored;
                let answer = match (method, path.contains("/secrets/")) {
                    (Method::GET, true) => (200, secret.clone()),
                    (_, true) if *generation == 2 && !puts_back => (
                        409,
                        json!({ "status": "Failure", "code": 409, "reason": "Conflict" }),
                    ),
                    (_, true) => {
                        assert_eq!(
                            body["metadata"]["resourceVersion"],
                            secret["metadata"]["resourceVersion"]
                        );
                        secret["metadata"]["resourceVersion"] = json!("8");
                        for (key, value) in body["data"].as_object().unwrap() {
                            match value {
                                Value::Null => secret["data"].as_object_mut().unwrap().remove(key),
                                value => secret["data"]
                                    .as_object_mut()
                                    .unwrap()
                                    .insert(key.clone(), value.clone()),
                            };
                        }
                        // Somebody else changes the webhook.
                        *generation = 2;
                        (200, secret.clone())
                    }
                    _ => (200, webhook(*generation)),
                };
                async move { answer }
            });
            let change = ChangeWebhook {
                secret: Some("new".to_owned()),
                ..ChangeWebhook::default()
            };
            let refusal = change_the_first(client, &change).await.unwrap_err();
            assert_eq!(refusal.code, ErrorCode::PreconditionFailed);
            let is_told = refusal
                .message
                .ends_with("its secret has been replaced nevertheless");
            let expected = if puts_back { "b2xk" } else { "bmV3" };
            assert_eq!(stored.lock().1["data"], json!({ "secret": expected }));
            assert_eq!(is_told, !puts_back, "{refusal}");
        }
    }

    #[tokio::test]
    async fn the_repetition_of_a_create_shows_the_secret_for_a_day_only() {
        for (hours, shown) in [(23, Some("old")), (25, None)] {
            let created = Timestamp::now() - jiff::SignedDuration::from_hours(hours);
            let client = answered_by(move |_, _, _| async move { (200, its_secret(created)) });
            let webhook: Webhook = serde_json::from_value(webhook(1)).unwrap();
            let secret = Service::with_client(client)
                .secret_of_create(&webhook, Some("old"), None, true)
                .await;
            assert_eq!(secret.unwrap().as_deref(), shown, "{hours} hours old");
        }
    }

    #[tokio::test]
    async fn a_test_that_is_refused_because_its_own_first_try_was_carried_out_is_sent_once() {
        let [taken, _] = refusals_of_a_second_try();
        let (client, stored) = first_create_answered_with_504(vec![webhook(1)], taken);
        let service = Service::with_client(client);
        service.show_demo_account();
        let tenant = service.credentials().account_named("demo").unwrap();
        let id = WebhookId::of_suffix("abcdefgh01234567");
        let sent = service.test_webhook(&tenant, id, None, None, &Precondition::None);
        let sent = sent.await.unwrap();
        let stored = stored.lock();
        assert_eq!(stored.len(), 2, "{stored:?}");
        assert_eq!(stored[1]["metadata"]["name"], sent.delivery.name());
        assert!(!sent.replayed);
    }

    /// Applies a merge patch, ignoring the version that it is for.
    fn merge(object: &mut Value, patch: &Value) {
        for (key, value) in patch.as_object().unwrap() {
            match value {
                _ if key == "resourceVersion" || key == "managedFields" => {}
                Value::Object(nothing) if nothing.is_empty() => {}
                Value::Null => drop(object.as_object_mut().unwrap().remove(key)),
                Value::Object(_) if object[key].is_object() => merge(&mut object[key], value),
                value => object[key] = value.clone(),
            }
        }
    }

    /// Changes the URL and the secret of a webhook, on the condition that it has the version of generation 1. The API server carries
    /// out the change of the Webhook, but answers 503. Returns the outcome, and the stored Webhook and Secret.
    async fn change_answered_with_503(secret: &str) -> (Result<Arc<IndexedWebhook>, Error>, Value, Value) {
        let mut webhook = webhook(1);
        // An earlier request has announced the present version.
        webhook["metadata"]["annotations"] = json!({ "stellage.dev/secret-changed": "7" });
        let stored = Arc::new(Mutex::new((webhook, its_secret(Timestamp::now()))));
        let server = stored.clone();
        let client = answered_by(move |method, path, body| {
            let mut stored = server.lock();
            let (webhook, secret) = &mut *stored;
            let is_secret = path.contains("/secrets/");
            let object = if is_secret { secret } else { webhook };
            let failure = |code: u16| (code, json!({ "status": "Failure", "code": code, "reason": "x" }));
            let is_write = method == Method::PATCH && !path.contains("dryRun");
            let version = &object["metadata"]["resourceVersion"];
            let answer = if is_write && body["metadata"]["resourceVersion"] != *version {
                failure(409)
            } else if is_write {
                let before = object.clone();
                merge(object, &body);
                if *object != before {
                    let version = if is_secret { "8" } else { "9" };
                    object["metadata"]["resourceVersion"] = json!(version);
                }
                if is_secret {
                    (200, object.clone())
                } else {
                    object["metadata"]["generation"] = json!(2);
                    failure(503)
                }
            } else {
                (200, object.clone())
            };
            async move { answer }
        });
        let change = ChangeWebhook {
            url: Some("https://example.com/new".to_owned()),
            secret: Some(secret.to_owned()),
            ..ChangeWebhook::default()
        };
        let changed = change_the_first(client, &change).await;
        let (webhook, secret) = stored.lock().clone();
        (changed, webhook, secret)
    }

    #[tokio::test]
    async fn a_change_that_is_refused_because_its_own_first_try_was_carried_out_is_answered_with_the_result()
    {
        let (changed, webhook, secret) = change_answered_with_503("new").await;
        assert_eq!(changed.unwrap().webhook.spec.url, "https://example.com/new");
        assert_eq!(webhook["spec"]["url"], "https://example.com/new");
        assert_eq!(secret["data"], json!({ "secret": "bmV3" }));
    }

    #[tokio::test]
    async fn a_change_to_the_secret_that_there_is_already_does_not_pass_for_one_that_was_carried_out() {
        let (_, webhook, secret) = change_answered_with_503("old").await;
        assert_eq!(webhook["spec"]["url"], "https://example.com/new");
        assert_eq!(secret["metadata"]["resourceVersion"], "7");
    }
}
