//! JSON merge patches of a spec.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// A JSON merge patch with the differences between two specs and these annotations, valid only for this version of the object;
/// `None` if nothing differs.
pub fn merge_patch<S: Serialize>(
    metadata: &ObjectMeta,
    before: &S,
    after: &S,
    annotations: &[(&'static str, String)],
) -> Option<Value> {
    let before = to_map(before);
    let after = to_map(after);
    let mut changes = Map::new();
    for (field, value) in &after {
        if before.get(field) != Some(value) {
            changes.insert(field.clone(), value.clone());
        }
    }
    for field in before.keys().filter(|field| !after.contains_key(*field)) {
        changes.insert(field.clone(), Value::Null);
    }
    if changes.is_empty() && annotations.is_empty() {
        return None;
    }
    let mut patch = json!({ "metadata": { "resourceVersion": metadata.resource_version } });
    if !annotations.is_empty() {
        let annotations = annotations
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)));
        patch["metadata"]["annotations"] = Value::Object(annotations.collect());
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
    use crate::{Instance, InstanceSpec, instance::IDEMPOTENCY_ANNOTATION};

    #[test]
    fn a_patch_has_the_changed_fields_and_the_resource_version() {
        let instance: Instance = serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "demo", "uid": "u", "resourceVersion": "7" },
            "spec": {
                "plan": "starter", "region": "fr-par-1", "image": "debian-13", "tags": ["a"],
                "rebootRequestedAt": "2026-11-21T10:00:00.000001Z",
            },
        }))
        .unwrap();
        let to = |spec: &InstanceSpec, annotations: &[(&'static str, String)]| {
            merge_patch(&instance.metadata, &instance.spec, spec, annotations)
        };
        let mut spec = instance.spec.clone();
        assert_eq!(to(&spec, &[]), None);
        spec.tags.clear();
        spec.backup_enabled = true;
        assert_eq!(
            to(&spec, &[]),
            Some(
                json!({ "metadata": { "resourceVersion": "7" }, "spec": { "tags": null, "backupEnabled": true } })
            )
        );
        assert_eq!(
            to(&instance.spec, &[(IDEMPOTENCY_ANNOTATION, "[]".to_owned())]),
            Some(
                json!({ "metadata": { "resourceVersion": "7", "annotations": { IDEMPOTENCY_ANNOTATION: "[]" } } })
            )
        );
    }
}
