//! How an object is found and changed: decided on the version that the watch shows, written only if that is still the
//! one that is there, and decided again if not.

use std::{sync::Arc, time::Duration};

use kube::Resource as _;
use rand::RngExt as _;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Store;
use crate::{
    resources::instance::IDEMPOTENCY_ANNOTATION,
    service::{
        error::{Error, ErrorKind},
        id::PublicId as _,
        index::{Index, Indexed, Object as _},
    },
};

/// Decisions on one request before it gives way to whoever else changes the same object.
const MAX_ATTEMPTS: u32 = 10;
/// Longest pause after a lost race, growing with each.
const MAX_PAUSE: Duration = Duration::from_millis(20);

/// What is to be done to an object.
pub enum Verdict<S> {
    /// Nothing.
    Leave,
    /// The spec shall be this one, and the annotation of done actions that.
    Write {
        /// The spec.
        spec: Box<S>,
        /// The annotation's value, if it changes.
        done: Option<String>,
    },
}

/// An object, and whether it came from the API server just now.
struct Found<E> {
    item: Arc<E>,
    fresh: bool,
}

type IdOf<X> = <<X as Index>::Item as Indexed>::Id;
type SpecOf<X> = <<X as Index>::Item as Indexed>::Spec;

impl<X: Index> Store<X> {
    /// The object with this id. What the watch does not know is asked of the API server before it is called
    /// unknown; 404 for what is not in this namespace, whatever is elsewhere.
    pub async fn find(&self, namespace: &str, id: Option<IdOf<X>>) -> Result<Arc<X::Item>, Error> {
        Ok(self.look_up(namespace, id).await?.item)
    }

    async fn look_up(&self, namespace: &str, id: Option<IdOf<X>>) -> Result<Found<X::Item>, Error> {
        let id = id.ok_or_else(Self::unknown)?;
        match self.index().get(namespace, id) {
            Some(item) => Ok(Found { item, fresh: false }),
            None => self.fetch(namespace, &id.name(), id).await,
        }
    }

    async fn fetch(&self, namespace: &str, name: &str, id: IdOf<X>) -> Result<Found<X::Item>, Error> {
        let object = self.get(namespace, name).await?;
        let item = object
            .filter(|object| !object.is_terminating())
            .map(|object| X::Item::of(Arc::new(object)))
            // An object made anew under the same name has another id, unless the name is the id.
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

    /// Changes an object as `decide` says. It is asked again whenever somebody else was faster, and a refusal holds only
    /// for what the API server has, since the watch may be a moment behind. Returns the object as it is then.
    pub async fn modify(
        &self,
        namespace: &str,
        id: Option<IdOf<X>>,
        decide: impl Fn(&X::Item) -> Result<Verdict<SpecOf<X>>, Error> + Send,
    ) -> Result<Arc<X::Item>, Error> {
        let mut found = self.look_up(namespace, id).await?;
        let mut lock = None;
        for attempt in 1..=MAX_ATTEMPTS {
            let verdict = decide(&found.item);
            let patch = match &verdict {
                Err(_) | Ok(Verdict::Leave) => None,
                Ok(Verdict::Write { spec, done }) => merge_patch(&*found.item, &**spec, done.as_deref()),
            };
            let Some(patch) = patch else {
                if found.fresh {
                    return verdict.map(|_| found.item);
                }
                found = self.refresh(&found).await?;
                continue;
            };
            match self.patch(&found.item, &patch).await {
                Ok(item) => return Ok(Arc::new(item)),
                Err(error) if error.is_conflict() => {
                    if lock.is_none() {
                        lock = Some(self.locks.lock(&(namespace, found.item.id())).await);
                    } else {
                        pause(attempt).await;
                    }
                    found = self.refresh(&found).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(contended(X::Item::WORD))
    }

    /// Deletes an object once `check` has nothing against it. 404 for one that is not there.
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
                Err(error) if error.is_conflict() => {
                    found = self.refresh(&found).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(contended(X::Item::WORD))
    }
}

/// The pause after a lost race.
pub async fn pause(attempt: u32) {
    let pause = MAX_PAUSE.mul_f64(rand::rng().random_range(0.0..1.0)) * attempt;
    tokio::time::sleep(pause).await;
}

/// 409 after too many lost races.
pub fn contended(word: &str) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("the {word} is changed by others all the time; read it and try again"),
    )
}

/// A JSON merge patch of what differs, for this version of the object only; `None` if nothing does.
pub fn merge_patch<E: Indexed>(item: &E, spec: &E::Spec, done: Option<&str>) -> Option<Value> {
    let before = to_map(item.spec());
    let after = to_map(spec);
    let mut changes = Map::new();
    for (field, value) in &after {
        if before.get(field) != Some(value) {
            changes.insert(field.clone(), value.clone());
        }
    }
    for field in before.keys().filter(|field| !after.contains_key(*field)) {
        changes.insert(field.clone(), Value::Null);
    }
    if changes.is_empty() && done.is_none() {
        return None;
    }
    let version = &item.object().meta().resource_version;
    let mut patch = json!({ "metadata": { "resourceVersion": version } });
    if let Some(done) = done {
        patch["metadata"]["annotations"] = json!({ IDEMPOTENCY_ANNOTATION: done });
    }
    if !changes.is_empty() {
        patch["spec"] = Value::Object(changes);
    }
    Some(patch)
}

fn to_map(spec: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(spec) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::instances::IndexedInstance;

    fn shown() -> IndexedInstance {
        let object = json!({
            "metadata": { "name": "web", "namespace": "demo", "uid": "u", "resourceVersion": "7" },
            "spec": {
                "plan": "starter", "region": "fr-par-1", "image": "debian-13", "tags": ["a"],
                "rebootRequestedAt": "2026-11-21T10:00:00.000001Z",
            },
        });
        IndexedInstance::of(Arc::new(serde_json::from_value(object).unwrap()))
    }

    #[test]
    fn a_patch_has_what_changed_and_the_version_it_is_for() {
        let shown = shown();
        let mut spec = shown.instance.spec.clone();
        assert_eq!(merge_patch(&shown, &spec, None), None);
        spec.tags.clear();
        spec.backup_enabled = true;
        assert_eq!(
            merge_patch(&shown, &spec, None),
            Some(
                json!({ "metadata": { "resourceVersion": "7" }, "spec": { "tags": null, "backupEnabled": true } })
            )
        );
        assert_eq!(
            merge_patch(&shown, &shown.instance.spec, Some("[]")),
            Some(
                json!({ "metadata": { "resourceVersion": "7", "annotations": { IDEMPOTENCY_ANNOTATION: "[]" } } })
            )
        );
    }
}
