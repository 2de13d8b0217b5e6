//! Creates. The name of the object is derived from the `Idempotency-Key`, so that a repetition finds the object.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;

use super::Store;
use crate::service::{
    error::{Error, ErrorCode},
    id::PublicId,
    idempotency::{self, IdempotentRequest, REQUEST_HASH_ANNOTATION},
    index::{Index, Indexed, Object as _, ObjectOf},
};
use resources::{
    ids,
    origin::{self, ORIGIN_ANNOTATION},
    quota,
    traceparent::TRACEPARENT_ANNOTATION,
};
use runtime::{client::CallError, traces};

/// Attempts at a create. A random name is practically never taken; a name derived from an Idempotency-Key may be, by an
/// object whose deletion ends during the request.
const MAX_NAMES: u32 = 3;

/// A create with an `Idempotency-Key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedCreate<I> {
    /// The id of the object, derived from the key.
    id: I,
    /// Digest of the body, for the annotation.
    hash: String,
}

impl<I: PublicId> KeyedCreate<I> {
    /// The keyed create of a request; `None` if the request has no key.
    pub fn of(request: Option<&IdempotentRequest>, account_uid: &str) -> Result<Option<Self>, Error> {
        let Some(request) = request else { return Ok(None) };
        Ok(Some(Self {
            id: I::of_suffix(&request.name_suffix(account_uid)).ok_or_else(Error::fault)?,
            hash: request.visible_hash().to_owned(),
        }))
    }
}

/// The annotations of a new object that the controllers act on: its origin, so that they need not write it; the digest of the
/// request that creates the object, if the request has an `Idempotency-Key`; and its trace, if it has one.
pub fn annotations(request_hash: Option<String>, now: Timestamp) -> BTreeMap<String, String> {
    let origin = (ORIGIN_ANNOTATION, origin::of_new(now));
    let hash = request_hash.map(|hash| (REQUEST_HASH_ANNOTATION, hash));
    let trace = traces::current().map(|parent| (TRACEPARENT_ANNOTATION, parent));
    let all = [origin].into_iter().chain(hash).chain(trace);
    all.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// How long a create waits for Kubernetes to compute a new quota or to count the end of a deletion, and how often it retries.
pub(super) const QUOTA_TIMEOUT: Duration = Duration::from_secs(4);
const QUOTA_POLL: Duration = Duration::from_millis(200);

/// The result of a create.
pub struct Created<E> {
    /// The created object.
    pub item: Arc<E>,
    /// Whether an earlier request with the same key created it.
    pub replayed: bool,
}

impl<X: Index> Store<X> {
    /// Creates the object that `build` returns for a name and the digest of the request's body, or finds the object that the
    /// same request created before. `idempotency_key_reused` if the key was used with another body, `conflict` while the object is
    /// being deleted.
    pub async fn create_once(
        &self,
        namespace: &str,
        keyed: Option<&KeyedCreate<<X::Item as Indexed>::Id>>,
        check: impl Fn() -> Result<(), Error> + Send + Sync,
        build: impl Fn(&str, Option<String>) -> ObjectOf<X> + Send + Sync,
    ) -> Result<Created<X::Item>, Error> {
        // Serialised, because Kubernetes charges each attempt to the quota and refunds failed ones only minutes later.
        let _lock = match keyed {
            Some(keyed) => Some(
                self.locks
                    .lock(&format!("{namespace}/{}", keyed.id.name()))
                    .await?,
            ),
            None => None,
        };
        if let Some(keyed) = keyed
            && let Some(item) = self.index().get(namespace, keyed.id)
        {
            return replayed(item, keyed);
        }
        if let Err(refusal) = check() {
            // The index may lag behind: what the same request created uses the quota.
            let created = match keyed {
                Some(keyed) => self.created_by(namespace, keyed).await?,
                None => None,
            };
            return created.ok_or(refusal);
        }
        for _ in 0..MAX_NAMES {
            let random = || PublicId::of_suffix(&ids::random_suffix()).ok_or_else(Error::fault);
            let id: <X::Item as Indexed>::Id = keyed.map_or_else(random, |keyed| Ok(keyed.id))?;
            let object = build(&id.name(), keyed.map(|keyed| keyed.hash.clone()));
            let refusal = match self.create_within_quota(namespace, &object, &check).await {
                Ok(item) => {
                    return Ok(Created {
                        item: Arc::new(item),
                        replayed: false,
                    });
                }
                Err(refusal) => refusal,
            };
            let is_taken = refusal.is_already_exists();
            // Whatever the API server objects to (say, a quota that the first request used up), the first request's object may
            // exist.
            if refusal.status().is_some() {
                let created = match keyed {
                    Some(keyed) => self.created_by(namespace, keyed).await?,
                    None => self.created_before(namespace, &id.name()).await?,
                };
                if let Some(created) = created {
                    return Ok(created);
                }
            }
            if !is_taken {
                return Err(
                    if refusal.status().is_some_and(quota::is_exceeded) && check().is_ok() {
                        let word = X::Item::WORD;
                        Error::unavailable(format!(
                            "Kubernetes counts one {word} too many: one that is still being deleted, or one whose creation failed, for up to five minutes; or it still counts by the account's former quota. Try again"
                        ))
                    } else {
                        refusal.into()
                    },
                );
            }
        }
        Err(Error::new(
            ErrorCode::Conflict,
            "the Idempotency-Key is in use by another request; try again",
        ))
    }
}

impl<X: Index> Store<X> {
    /// The object that an earlier request with the same key created. `idempotency_key_reused` if that request had another body,
    /// `conflict` while the object is being deleted.
    pub async fn created_by(
        &self,
        namespace: &str,
        keyed: &KeyedCreate<<X::Item as Indexed>::Id>,
    ) -> Result<Option<Created<X::Item>>, Error> {
        if let Some(item) = self.index().get(namespace, keyed.id) {
            return replayed(item, keyed).map(Some);
        }
        match self.get(namespace, &keyed.id.name()).await? {
            Some(found) if found.is_terminating() => Err(Error::new(
                ErrorCode::Conflict,
                format!(
                    "the {} that was created with this Idempotency-Key is being deleted",
                    X::Item::WORD
                ),
            )),
            Some(found) => replayed(Arc::new(X::Item::of(Arc::new(found))), keyed).map(Some),
            None => Ok(None),
        }
    }

    /// The object with this random name. Nobody else can have known the name, so an earlier attempt of this create made it: the client
    /// retries when the API server answers 503 or 504, although it may have carried out the request.
    async fn created_before(&self, namespace: &str, name: &str) -> Result<Option<Created<X::Item>>, Error> {
        let Some(object) = self.get(namespace, name).await? else {
            return Ok(None);
        };
        Ok(Some(Created {
            item: Arc::new(self.indexed(object).await),
            replayed: false,
        }))
    }

    /// Creates an object. Waits a little if the quota refuses what `check` allows: Kubernetes computes a new quota within tenths
    /// of a second, and counts an object until its deletion is complete.
    async fn create_within_quota(
        &self,
        namespace: &str,
        object: &ObjectOf<X>,
        check: impl Fn() -> Result<(), Error> + Send + Sync,
    ) -> Result<X::Item, CallError> {
        let begun = Instant::now();
        loop {
            match self.create(namespace, object).await {
                Err(refusal)
                    if refusal.status().is_some_and(|status| {
                        quota::is_pending(status) || quota::is_exceeded(status) && check().is_ok()
                    }) && begun.elapsed() < self.quota_timeout =>
                {
                    tokio::time::sleep(QUOTA_POLL).await;
                }
                outcome => return outcome,
            }
        }
    }
}

fn replayed<E: Indexed>(item: Arc<E>, keyed: &KeyedCreate<E::Id>) -> Result<Created<E>, Error> {
    if item.object().annotation_of(REQUEST_HASH_ANNOTATION) != Some(keyed.hash.as_str()) {
        return Err(idempotency::reused());
    }
    Ok(Created { item, replayed: true })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kube::api::ObjectMeta;
    use serde_json::json;

    use super::{super::ApiCalls, *};
    use crate::service::instances::InstanceIndex;
    use resources::Instance;
    use runtime::testing::{answered_by, first_create_answered_with_504, refusals_of_a_second_try};

    fn instance(name: &str, _: Option<String>) -> Instance {
        Instance {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            spec: serde_json::from_value(
                json!({ "plan": "starter", "region": "fr-par-1", "image": "debian-13" }),
            )
            .unwrap(),
            status: None,
        }
    }

    /// The outcome of a create in a namespace with a new quota, which the API server computes after this many attempts, and
    /// the number of attempts made.
    async fn create_under_new_quota(
        computed_after: usize,
        timeout: Duration,
    ) -> (Result<Created<<InstanceIndex as Index>::Item>, Error>, usize) {
        let attempts = Arc::new(AtomicUsize::new(0));
        let counted = attempts.clone();
        let client = answered_by(move |method, _, mut object| {
            let is_create = method == http::Method::POST;
            let is_computed = is_create && counted.fetch_add(1, Ordering::Relaxed) >= computed_after;
            object["metadata"]["namespace"] = json!("demo");
            object["metadata"]["uid"] = json!("uid");
            let refusal = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
                "message": "instances.stellage.dev \"i-1\" is forbidden: status unknown for quota: stellage",
            });
            let unknown = json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404 });
            async move {
                match (is_create, is_computed) {
                    (false, _) => (404, unknown),
                    (true, true) => (201, object),
                    (true, false) => (403, refusal),
                }
            }
        });
        let mut store: Store<InstanceIndex> = Store::new(Arc::new(ApiCalls::new(client, 4)), Arc::default());
        store.quota_timeout = timeout;
        let created = store.create_once("demo", None, || Ok(()), instance).await;
        (created, attempts.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn a_create_that_only_kubernetes_has_no_room_for_names_the_causes() {
        let client = answered_by(|method, _, _| async move {
            let message = "instances.stellage.dev \"i-1\" is forbidden: exceeded quota: stellage, requested: count/instances.stellage.dev=1, used: count/instances.stellage.dev=2, limited: count/instances.stellage.dev=2";
            match method {
                http::Method::GET => (
                    404,
                    json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404 }),
                ),
                _ => (
                    403,
                    json!({ "kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": message }),
                ),
            }
        });
        let mut store: Store<InstanceIndex> = Store::new(Arc::new(ApiCalls::new(client, 4)), Arc::default());
        store.quota_timeout = Duration::ZERO;
        let error = store
            .create_once("demo", None, || Ok(()), instance)
            .await
            .err()
            .unwrap();
        assert_eq!(error.code, ErrorCode::ServiceUnavailable);
        for cause in ["still being deleted", "whose creation failed", "former quota"] {
            assert!(error.message.contains(cause), "{error}");
        }
    }

    #[tokio::test]
    async fn a_create_waits_while_kubernetes_computes_a_new_quota() {
        let (created, attempts) = create_under_new_quota(2, QUOTA_TIMEOUT).await;
        assert!(created.is_ok_and(|created| !created.replayed));
        assert_eq!(attempts, 3);
    }

    #[tokio::test]
    async fn a_create_under_a_quota_that_is_not_computed_in_time_may_be_tried_again() {
        let (created, attempts) = create_under_new_quota(usize::MAX, Duration::ZERO).await;
        let error = created.err().unwrap();
        assert_eq!(error.code, ErrorCode::ServiceUnavailable);
        assert!(
            error.retry_after.is_some() && error.message.contains("quota"),
            "{error}"
        );
        assert_eq!(attempts, 1);
    }

    #[tokio::test]
    async fn a_create_that_is_refused_because_its_own_first_try_was_carried_out_has_created_one_object() {
        for refusal in refusals_of_a_second_try() {
            let (client, stored) = first_create_answered_with_504(Vec::new(), refusal);
            let mut store: Store<InstanceIndex> =
                Store::new(Arc::new(ApiCalls::new(client, 4)), Arc::default());
            store.quota_timeout = Duration::ZERO;
            let created = store
                .create_once("demo", None, || Ok(()), instance)
                .await
                .unwrap();
            let stored = stored.lock();
            assert_eq!(stored.len(), 1, "{stored:?}");
            assert_eq!(stored[0]["metadata"]["name"], created.item.instance.name());
            assert!(!created.replayed);
        }
    }
}
