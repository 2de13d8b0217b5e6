//! Finds and changes objects with optimistic concurrency: a change is decided on the indexed version, written only if that is
//! still the current version, and otherwise decided again.

use std::{sync::Arc, time::Duration};

use kube::Resource as _;
use rand::RngExt as _;
use serde_json::json;

use super::Store;
use crate::service::{
    error::{Error, ErrorCode},
    id::PublicId as _,
    index::{Index, Indexed, Object as _},
};
use resources::{merge_patch, tracking};

/// Attempts at a change while others keep changing the same object.
pub const MAX_ATTEMPTS: u32 = 10;
/// Upper bound of the random pause after the first conflict; it grows with each further one.
const MAX_PAUSE: Duration = Duration::from_millis(20);

/// A decision about an object.
pub enum Verdict<S> {
    /// Leave it as it is.
    Leave,
    /// Write this spec and these annotations.
    Write {
        spec: Box<S>,
        /// The annotations to set.
        annotations: Vec<(&'static str, String)>,
    },
}

/// An object, and whether it was read from the API server rather than the index.
struct Found<E> {
    item: Arc<E>,
    fresh: bool,
}

type IdOf<X> = <<X as Index>::Item as Indexed>::Id;
type SpecOf<X> = <<X as Index>::Item as Indexed>::Spec;

impl<X: Index> Store<X> {
    /// The object with this id; `not_found` if it is not in this namespace. If the index does not have it, the API server is asked.
    pub async fn find(&self, namespace: &str, id: Option<IdOf<X>>) -> Result<Arc<X::Item>, Error> {
        Ok(self.look_up(namespace, id).await?.item)
    }

    /// The current version of an object, read from the API server; `not_found` if it is gone.
    pub async fn find_now(&self, namespace: &str, item: &X::Item) -> Result<Arc<X::Item>, Error> {
        Ok(self.fetch(namespace, item.object().name(), item.id()).await?.item)
    }

    async fn look_up(&self, namespace: &str, id: Option<IdOf<X>>) -> Result<Found<X::Item>, Error> {
        let id = id.ok_or_else(Self::unknown)?;
        match self.index().get(namespace, id) {
            Some(item) => Ok(Found { item, fresh: false }),
            // Boxed, so that the future of the usual case stays small: it is allocated for every request.
            None => Box::pin(self.fetch(namespace, &id.name(), id)).await,
        }
    }

    async fn fetch(&self, namespace: &str, name: &str, id: IdOf<X>) -> Result<Found<X::Item>, Error> {
        let object = self.get(namespace, name).await?;
        let item = object
            .filter(|object| !object.is_terminating())
            .map(|object| X::Item::of(Arc::new(object)))
            // An object recreated under the same name has another id, unless the id is the name.
            .filter(|item| item.id() == id)
            .ok_or_else(Self::unknown)?;
        Ok(Found {
            item: Arc::new(item),
            fresh: true,
        })
    }

    async fn refresh(&self, found: &Found<X::Item>) -> Result<Found<X::Item>, Error> {
        let object = found.item.object();
        self.fetch(object.namespace(), object.name(), found.item.id())
            .await
    }

    fn unknown() -> Error {
        Error::no_such(X::Item::WORD)
    }

    /// Changes an object as `decide` says, and returns the result. `decide` is called again after each conflict. A refusal based on
    /// the indexed version is checked against the current one, since the index may lag behind.
    pub async fn modify(
        &self,
        namespace: &str,
        id: Option<IdOf<X>>,
        decide: impl Fn(&X::Item) -> Result<Verdict<SpecOf<X>>, Error> + Send,
    ) -> Result<Arc<X::Item>, Error> {
        let mut found = self.look_up(namespace, id).await?;
        let mut lock = None;
        let mut written = None;
        for attempt in 1..=MAX_ATTEMPTS {
            // The API server refuses what it has carried out if the client sends it again, after an answer of 503 or 504.
            if written
                .as_ref()
                .is_some_and(|written| is_in(&*found.item, written))
            {
                return Ok(found.item);
            }
            let verdict = decide(&found.item);
            let patch = match &verdict {
                Err(_) | Ok(Verdict::Leave) => None,
                Ok(Verdict::Write { spec, annotations }) => merge_patch(
                    found.item.object().meta(),
                    found.item.spec(),
                    &**spec,
                    annotations,
                ),
            };
            let Some(mut patch) = patch else {
                if found.fresh {
                    return verdict.map(|_| found.item);
                }
                found = self.refresh(&found).await?;
                continue;
            };
            if tracking::is_ours_alone(found.item.object().meta()) {
                // From now on the API server does not track the owners of fields, until somebody applies the object.
                patch["metadata"]["managedFields"] = json!([{}]);
            }
            match self.patch(&found.item, &patch).await {
                Ok(item) => return Ok(Arc::new(item)),
                Err(error) if error.is_conflict() => {
                    if lock.is_none() {
                        let key = format!("{namespace}/{}", found.item.id().name());
                        lock = Some(self.locks.lock(&key).await?);
                    } else {
                        pause(attempt).await;
                    }
                    found = self.refresh(&found).await?;
                    written = verdict.ok();
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(contended(X::Item::WORD))
    }

    /// Deletes an object if `check` allows it; `not_found` if it does not exist.
    pub async fn remove(
        &self,
        namespace: &str,
        id: Option<IdOf<X>>,
        exactly: bool,
        check: impl Fn(&X::Item) -> Result<(), Error> + Send,
    ) -> Result<(), Error> {
        let mut found = self.look_up(namespace, id).await?;
        for _ in 0..MAX_ATTEMPTS {
            if let Err(refusal) = check(&found.item) {
                if found.fresh {
                    return Err(refusal);
                }
                found = self.refresh(&found).await?;
                continue;
            }
            match self.delete(&found.item, exactly).await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_conflict() => match self.refresh(&found).await {
                    // Perhaps an earlier attempt of this call started the deletion, which made another version of the object.
                    Err(gone) if gone.code == ErrorCode::NotFound => {
                        self.wait_until_gone(&found.item).await;
                        return Ok(());
                    }
                    refreshed => found = refreshed?,
                },
                Err(error) => return Err(error.into()),
            }
        }
        Err(contended(X::Item::WORD))
    }
}

/// Annotation with a random text for each write, so that a request recognises its own: another may ask for the same.
pub const WRITE_ANNOTATION: &str = "stellage.dev/last-write";

/// Whether an object is as a verdict, which has a [`WRITE_ANNOTATION`], has it.
fn is_in<E: Indexed>(item: &E, verdict: &Verdict<E::Spec>) -> bool {
    match verdict {
        Verdict::Leave => false,
        Verdict::Write { spec, annotations } => {
            let mut marks = annotations.iter().filter(|(name, _)| *name == WRITE_ANNOTATION);
            *item.spec() == **spec
                && marks.any(|(name, value)| item.object().annotation_of(name) == Some(value.as_str()))
        }
    }
}

/// Waits for a random time after a conflict.
pub async fn pause(attempt: u32) {
    let pause = MAX_PAUSE.mul_f64(rand::rng().random_range(0.0..1.0)) * attempt;
    tokio::time::sleep(pause).await;
}

/// `conflict`, after too many conflicts.
pub fn contended(word: &str) -> Error {
    Error::new(
        ErrorCode::Conflict,
        format!("the {word} keeps being changed by other requests; read it and try again"),
    )
}

#[cfg(test)]
mod tests {
    use http::Method;
    use parking_lot::Mutex;

    use super::{super::ApiCalls, *};
    use crate::service::{
        Service,
        credentials::Requester,
        id::InstanceId,
        idempotency::IdempotentRequest,
        instances::{Installation, InstanceIndex},
        precondition::Precondition,
    };
    use api::ChangeInstance;
    use domain::instance::Action;
    use runtime::testing::answered_by;

    #[tokio::test]
    async fn an_action_or_change_that_is_refused_because_its_own_first_try_was_carried_out_has_been_done() {
        let actions = [
            Action::Start,
            Action::Stop,
            Action::PowerOff,
            Action::Reboot,
            Action::Rebuild,
        ];
        for action in actions.map(Some).into_iter().chain([None]) {
            for key in [None, Some("k")] {
                let power = if action == Some(Action::Start) {
                    "Stopped"
                } else {
                    "Running"
                };
                let stored = Arc::new(Mutex::new(json!({
                    "metadata": {
                        "name": "i-abcdefgh01234567", "namespace": "demo", "uid": "u", "resourceVersion": "7",
                        "generation": 1, "managedFields": [{ "manager": "stellage-api" }],
                    },
                    "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13", "powerState": power },
                    "status": {
                        "state": power.to_lowercase(), "power": power, "powerState": power, "plan": "starter",
                        "image": "debian-13", "observedGeneration": 1, "provisionedAt": "2026-11-21T10:00:00Z",
                    },
                })));
                let server = stored.clone();
                let client = answered_by(move |method, _, body| {
                    let mut object = server.lock();
                    let failure =
                        |code: u16| (code, json!({ "status": "Failure", "code": code, "reason": "x" }));
                    let answer = if method == Method::GET {
                        (200, object.clone())
                    } else if body["metadata"]["resourceVersion"] == object["metadata"]["resourceVersion"] {
                        for part in ["spec", "metadata"] {
                            for (name, value) in body[part].as_object().into_iter().flatten() {
                                object[part][name] = value.clone();
                            }
                        }
                        object["metadata"]["resourceVersion"] = json!("8");
                        object["metadata"]["generation"] = json!(2);
                        failure(504)
                    } else {
                        failure(409)
                    };
                    async move { answer }
                });
                let service = Service::with_client(client);
                service.show_demo_account();
                let tenant = service.credentials.account_named("demo").unwrap();
                let requester = Requester {
                    tenant: &tenant,
                    key: "key-1",
                };
                let id = InstanceId::of_suffix("abcdefgh01234567");
                let precondition = Precondition::OneOf(vec!["u-1".to_owned()]);
                let request = key.map(|key| IdempotentRequest::new("/x", key, b"{}", b"{}"));
                let Some(action) = action else {
                    let change = ChangeInstance {
                        plan: Some(resources::Plan::Business),
                        ..ChangeInstance::default()
                    };
                    let changed = service
                        .change_instance(requester, id, &change, &precondition)
                        .await;
                    assert_eq!(changed.unwrap().instance.spec.plan, resources::Plan::Business);
                    continue;
                };
                let image = Installation::Image("debian-13".to_owned());
                let image = (action == Action::Rebuild).then_some(&image);
                let done = service
                    .act_on_instance(requester, id, action, image, request.as_ref(), &precondition)
                    .await;
                let done = done.unwrap();
                assert!(!done.replayed, "{action:?}");
                assert_ne!(done.item.state.as_str(), power.to_lowercase(), "{action:?}");
                assert_eq!(stored.lock()["metadata"]["resourceVersion"], "8");
            }
        }
    }

    #[tokio::test]
    async fn a_delete_that_is_refused_because_its_own_first_try_was_carried_out_has_deleted_the_object() {
        for has_finalizer in [false, true] {
            let failure = |code: u16, reason: &str| {
                (
                    code,
                    json!({ "kind": "Status", "status": "Failure", "code": code, "reason": reason }),
                )
            };
            let tries = Arc::new(Mutex::new(0));
            let counted = tries.clone();
            let client = answered_by(move |method, _, _| {
                let mut tries = counted.lock();
                let object = json!({
                    "metadata": {
                        "name": "i-abcdefgh01234567", "namespace": "demo", "uid": "u", "resourceVersion": "7",
                        "deletionTimestamp": (*tries > 0).then_some("2026-11-21T10:00:00Z"),
                    },
                    "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
                });
                let is_gone = *tries > 0 && !has_finalizer;
                let answer = match method {
                    Method::DELETE if *tries == 0 => failure(504, "Timeout"),
                    _ if is_gone => failure(404, "NotFound"),
                    Method::DELETE => failure(409, "Conflict"),
                    _ => (200, object),
                };
                *tries += u32::from(method == Method::DELETE);
                async move { answer }
            });
            let store: Store<InstanceIndex> = Store::new(Arc::new(ApiCalls::new(client, 4)), Arc::default());
            let id = crate::service::id::InstanceId::of_suffix("abcdefgh01234567");
            assert_eq!(store.remove("demo", id, true, |_| Ok(())).await, Ok(()));
            assert_eq!(*tries.lock(), 2);
            // After that, there is nothing to delete.
            let again = store.remove("demo", id, true, |_| Ok(())).await;
            assert_eq!(again.unwrap_err().code, ErrorCode::NotFound);
        }
    }
}
