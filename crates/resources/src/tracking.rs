//! The API server's tracking of who wrote which field of an object (`metadata.managedFields`).
//!
//! It is half of the API server's work in an update, and nearly half of a stored Instance. People who apply objects need it, so it
//! stays for everything that others have written. If only REST has written an object, the first change removes the tracking: the
//! API server tracks nothing of an object whose list is empty until somebody applies the object.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, Time};
use kube::Resource;

use super::GROUP;

/// The field manager of the REST API.
pub const API_MANAGER: &str = "stellage-api";
/// The field manager of the controllers.
pub const CONTROLLER_MANAGER: &str = "stellage-controller";

/// Annotation of an Instance that is not tracked: when REST last changed its spec.
pub const SPEC_CHANGED_AT_ANNOTATION: &str = "stellage.dev/spec-changed-at";

/// What kubectl leaves on an object that was applied on the client's side.
const LAST_APPLIED_ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Drops the unused metadata that takes the most memory. Of managedFields a single entry is kept: with the time of the last write of the
/// spec, and with the manager [`API_MANAGER`] if nobody else has written the object.
pub fn prune(metadata: &mut ObjectMeta) {
    if metadata.managed_fields.is_some() {
        let entry = ManagedFieldsEntry {
            manager: is_ours_alone(metadata).then(|| API_MANAGER.to_owned()),
            time: last_write_of_spec(metadata).map(Time),
            ..ManagedFieldsEntry::default()
        };
        metadata.managed_fields = Some(vec![entry]);
    }
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove(LAST_APPLIED_ANNOTATION);
        if annotations.is_empty() {
            metadata.annotations = None;
        }
    }
}

/// Drops what account holders may put into the metadata of their objects, and the program does not read: the labels and annotations
/// of others, owners, and what a name was made of.
pub fn forget_foreign<K: Resource>(object: &mut K) {
    let metadata = object.meta_mut();
    metadata.owner_references = None;
    metadata.generate_name = None;
    for entries in [&mut metadata.labels, &mut metadata.annotations] {
        if let Some(own) = entries {
            own.retain(|key, _| {
                let domain = key.split_once('/').map_or("", |(domain, _)| domain);
                domain == GROUP || domain.strip_suffix(GROUP).is_some_and(|sub| sub.ends_with('.'))
            });
            if own.is_empty() {
                *entries = None;
            }
        }
    }
}

/// Whether an object is tracked. Works, as all that is here, for objects from a watch and straight from the API server.
pub fn is_tracked(metadata: &ObjectMeta) -> bool {
    metadata.managed_fields.is_some()
}

/// Whether an object is tracked, and was made through REST and written by nobody else since, its status apart.
pub fn is_ours_alone(metadata: &ObjectMeta) -> bool {
    let entries = metadata.managed_fields.as_deref().unwrap_or_default();
    let managers = || {
        let written = entries.iter().filter(|entry| is_of_main_resource(entry));
        written.map(|entry| {
            entry
                .manager
                .as_deref()
                .filter(|_| entry.operation.as_deref() != Some("Apply"))
        })
    };
    let was_applied = metadata
        .annotations
        .as_ref()
        .is_some_and(|annotations| annotations.contains_key(LAST_APPLIED_ANNOTATION));
    !was_applied
        && managers().any(|manager| manager == Some(API_MANAGER))
        && managers().all(|manager| matches!(manager, Some(API_MANAGER | CONTROLLER_MANAGER)))
}

/// When the spec of an object was last written.
pub fn spec_written_at(object: &impl Resource) -> Option<Timestamp> {
    let metadata = object.meta();
    if !is_tracked(metadata) {
        return spec_changed_at(metadata);
    }
    last_write_of_spec(metadata)
}

fn last_write_of_spec(metadata: &ObjectMeta) -> Option<Timestamp> {
    let entries = metadata.managed_fields.iter().flatten();
    let times = entries
        .filter(|entry| writes_spec(entry))
        .filter_map(|entry| entry.time.as_ref());
    times.map(|Time(time)| *time).max()
}

/// When REST last changed the spec of an Instance that is not tracked.
pub fn spec_changed_at(metadata: &ObjectMeta) -> Option<Timestamp> {
    let annotations = metadata.annotations.as_ref()?;
    annotations.get(SPEC_CHANGED_AT_ANNOTATION)?.parse().ok()
}

fn is_of_main_resource(entry: &ManagedFieldsEntry) -> bool {
    entry.subresource.as_deref().unwrap_or_default().is_empty()
}

/// Also of the entry that [`prune`] keeps, which alone has no fields.
fn writes_spec(entry: &ManagedFieldsEntry) -> bool {
    is_of_main_resource(entry)
        && entry
            .fields_v1
            .as_ref()
            .is_none_or(|fields| fields.0.get("f:spec").is_some())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::{Value, json};

    use super::*;

    fn metadata(managed: Value) -> ObjectMeta {
        serde_json::from_value(json!({ "managedFields": managed })).unwrap()
    }

    fn entry(manager: &str, operation: &str, subresource: &str) -> Value {
        json!({
            "manager": manager, "operation": operation, "subresource": subresource, "time": "2026-11-21T10:05:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": {} },
        })
    }

    #[test]
    fn large_metadata_of_others_adds_nothing_to_what_is_kept_in_memory() {
        let stored: super::super::Instance = serde_json::from_value(json!({
            "metadata": {
                "name": "web", "generateName": "x".repeat(253),
                "ownerReferences": [{ "apiVersion": "v1", "kind": "X", "name": "x".repeat(253), "uid": "u" }],
                "labels": { "app": "x".repeat(63), "stellage.dev/app": "x" },
                "annotations": {
                    "notes": "x".repeat(1 << 18), "example.com/notes": "x", "notstellage.dev/notes": "x",
                    "stellage.dev/request-hash": "h", "simulator.stellage.dev/fault": "hang",
                },
            },
            "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
        }))
        .unwrap();
        let mut kept = stored.clone();
        forget_foreign(&mut kept);
        assert_eq!(
            json!(kept.metadata),
            json!({ "name": "web", "labels": { "stellage.dev/app": "x" }, "annotations": {
                "stellage.dev/request-hash": "h", "simulator.stellage.dev/fault": "hang",
            } })
        );
        assert_eq!(kept.spec, stored.spec);
        kept.metadata.annotations = Some([("notes".to_owned(), "x".to_owned())].into());
        forget_foreign(&mut kept);
        assert_eq!(kept.metadata.annotations, None);
    }

    #[test]
    fn only_what_nobody_but_rest_has_written_is_ours_before_and_after_pruning() {
        let ours = || entry(API_MANAGER, "Update", "");
        for (managed, is_ours) in [
            (json!([ours()]), true),
            (json!([ours(), entry(CONTROLLER_MANAGER, "Update", "")]), true),
            (json!([ours(), entry("kubectl", "Update", "status")]), true),
            (json!([ours(), entry("kubectl-edit", "Update", "")]), false),
            (json!([ours(), entry("argocd", "Apply", "")]), false),
            (json!([entry(API_MANAGER, "Apply", "")]), false),
            (json!([entry("kubectl-create", "Update", ""), ours()]), false),
            (json!([entry(CONTROLLER_MANAGER, "Update", "status")]), false),
            (Value::Null, false),
        ] {
            let mut metadata = metadata(managed);
            let tracked = is_tracked(&metadata);
            assert_eq!(is_ours_alone(&metadata), is_ours, "{metadata:?}");
            prune(&mut metadata);
            assert_eq!(
                (is_ours_alone(&metadata), is_tracked(&metadata)),
                (is_ours, tracked),
                "{metadata:?}"
            );
        }
        let mut applied = metadata(json!([ours()]));
        applied.annotations = Some([(LAST_APPLIED_ANNOTATION.to_owned(), "{}".to_owned())].into());
        assert!(!is_ours_alone(&applied));
        prune(&mut applied);
        assert!(!is_ours_alone(&applied) && applied.annotations.is_none());
    }

    #[test]
    fn the_time_of_the_last_write_of_the_spec_survives_pruning() {
        let written = |fields: &str, time: &str| {
            json!({
                "manager": "kubectl", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": { fields: {} }, "time": time,
            })
        };
        let metadata = metadata(json!([
            written("f:spec", "2026-11-01T10:00:00Z"),
            written("f:spec", "2026-11-01T10:00:05Z"),
            written("f:metadata", "2026-11-01T10:00:09Z"),
            entry(CONTROLLER_MANAGER, "Update", "status"),
        ]));
        let mut object = ConfigMap {
            metadata,
            ..ConfigMap::default()
        };
        for _ in 0..3 {
            assert_eq!(spec_written_at(&object), "2026-11-01T10:00:05Z".parse().ok());
            prune(&mut object.metadata);
            assert_eq!(object.metadata.managed_fields.as_ref().unwrap().len(), 1);
        }
    }
}
