//! How an instance is found and changed: decided on the version that the watch shows, written only if that is still the
//! one that is there, and decided again if not.

use std::{sync::Arc, time::Duration};

use rand::RngExt as _;
use serde_json::{Map, Value, json};

use super::{
    App,
    error::{ApiError, ErrorCode},
    id::InstanceId,
    index::Shown,
};
use crate::resources::{InstanceSpec, instance::IDEMPOTENCY_ANNOTATION};

/// Decisions on one request before it gives way to whoever else changes the same instance.
const MAX_ATTEMPTS: u32 = 10;
/// Longest pause after a lost race, growing with each.
const MAX_PAUSE: Duration = Duration::from_millis(20);

/// What is to be done to an instance.
pub enum Verdict {
    /// Nothing.
    Leave,
    /// The spec shall be this one, and the annotation of done actions that.
    Write {
        /// The spec.
        spec: Box<InstanceSpec>,
        /// The annotation's value, if it changes.
        done: Option<String>,
    },
}

/// An instance, and whether it came from the API server just now.
struct Found {
    shown: Arc<Shown>,
    fresh: bool,
}

impl App {
    /// The instance that a path names. What the watch does not know is asked of the API server before it is called
    /// unknown; 404 for what is not in this namespace, whatever is elsewhere.
    pub async fn find(&self, namespace: &str, id: Option<InstanceId>) -> Result<Arc<Shown>, ApiError> {
        Ok(self.look_up(namespace, id).await?.shown)
    }

    async fn look_up(&self, namespace: &str, id: Option<InstanceId>) -> Result<Found, ApiError> {
        let id = id.ok_or_else(ApiError::no_such_instance)?;
        match self.index.get(namespace, id) {
            Some(shown) => Ok(Found { shown, fresh: false }),
            None => self.fetch(namespace, &id.to_string(), id).await,
        }
    }

    async fn fetch(&self, namespace: &str, name: &str, id: InstanceId) -> Result<Found, ApiError> {
        let instance = self.store.get(namespace, name).await?;
        let shown = instance
            .filter(|instance| !instance.is_deleting())
            .map(|instance| Shown::of(Arc::new(instance)))
            // An object made anew under the same name has another id, unless the name is the id.
            .filter(|shown| shown.id == id)
            .ok_or_else(ApiError::no_such_instance)?;
        Ok(Found {
            shown: Arc::new(shown),
            fresh: true,
        })
    }

    async fn refresh(&self, found: &Found) -> Result<Found, ApiError> {
        let shown = &found.shown;
        self.fetch(shown.namespace(), shown.name(), shown.id).await
    }

    /// Changes an instance as `decide` says. It is asked again whenever somebody else was faster, and a refusal holds only
    /// for what the API server has, since the watch may be a moment behind. Returns the instance as it is then.
    pub async fn modify(
        &self,
        namespace: &str,
        id: Option<InstanceId>,
        decide: impl Fn(&Shown) -> Result<Verdict, ApiError> + Send,
    ) -> Result<Arc<Shown>, ApiError> {
        let mut found = self.look_up(namespace, id).await?;
        for attempt in 1..=MAX_ATTEMPTS {
            let verdict = decide(&found.shown);
            let patch = match &verdict {
                Err(_) | Ok(Verdict::Leave) => None,
                Ok(Verdict::Write { spec, done }) => merge_patch(&found.shown, spec, done.as_deref()),
            };
            let Some(patch) = patch else {
                if found.fresh {
                    return verdict.map(|_| found.shown);
                }
                found = self.refresh(&found).await?;
                continue;
            };
            match self.store.patch(&found.shown, &patch).await {
                Ok(shown) => return Ok(Arc::new(shown)),
                Err(error) if error.is_conflict() => {
                    let pause = MAX_PAUSE.mul_f64(rand::rng().random_range(0.0..1.0)) * attempt;
                    tokio::time::sleep(pause).await;
                    found = self.refresh(&found).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(contended())
    }

    /// Deletes an instance once `check` has nothing against it. 404 for one that is not there.
    pub async fn remove(
        &self,
        namespace: &str,
        id: Option<InstanceId>,
        exactly: bool,
        check: impl Fn(&Shown) -> Result<(), ApiError> + Send,
    ) -> Result<(), ApiError> {
        let mut found = self.look_up(namespace, id).await?;
        for _ in 0..MAX_ATTEMPTS {
            if let Err(refusal) = check(&found.shown) {
                if found.fresh {
                    return Err(refusal);
                }
                found = self.refresh(&found).await?;
                continue;
            }
            match self.store.delete(&found.shown, exactly).await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_conflict() => {
                    found = self.refresh(&found).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(contended())
    }
}

fn contended() -> ApiError {
    ApiError::new(
        ErrorCode::Conflict,
        "the instance is changed by others all the time; read it and try again",
    )
}

/// A JSON merge patch of what differs, for this version of the object only; `None` if nothing does.
fn merge_patch(shown: &Shown, spec: &InstanceSpec, done: Option<&str>) -> Option<Value> {
    let before = to_map(&shown.instance.spec);
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
    let mut patch = json!({ "metadata": { "resourceVersion": shown.instance.metadata.resource_version } });
    if let Some(done) = done {
        patch["metadata"]["annotations"] = json!({ IDEMPOTENCY_ANNOTATION: done });
    }
    if !changes.is_empty() {
        patch["spec"] = Value::Object(changes);
    }
    Some(patch)
}

fn to_map(spec: &InstanceSpec) -> Map<String, Value> {
    match serde_json::to_value(spec) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

/// An RFC 3339 time in microseconds that is none of the nonces in the spec.
pub fn nonce(now: jiff::Timestamp, spec: &InstanceSpec) -> String {
    let taken = [
        &spec.start_requested_at,
        &spec.power_off_requested_at,
        &spec.reboot_requested_at,
        &spec.rebuild_requested_at,
    ];
    let mut time = now;
    loop {
        let text = format!("{time:.6}");
        match time.checked_add(jiff::SignedDuration::from_micros(1)) {
            Ok(next) if taken.iter().any(|nonce| nonce.as_ref() == Some(&text)) => time = next,
            _ => return text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown() -> Shown {
        let object = json!({
            "metadata": { "name": "web", "namespace": "demo", "uid": "u", "resourceVersion": "7" },
            "spec": {
                "plan": "starter", "region": "fr-par-1", "image": "debian-13", "tags": ["a"],
                "rebootRequestedAt": "2026-11-21T10:00:00.000001Z",
            },
        });
        Shown::of(Arc::new(serde_json::from_value(object).unwrap()))
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

    #[test]
    fn a_nonce_is_new_even_when_the_clock_stands_still() {
        let now: jiff::Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        let mut spec = shown().instance.spec.clone();
        assert_eq!(nonce(now, &spec), "2026-11-21T10:00:00.000000Z");
        spec.start_requested_at = Some("2026-11-21T10:00:00.000000Z".to_owned());
        assert_eq!(nonce(now, &spec), "2026-11-21T10:00:00.000002Z");
    }
}
