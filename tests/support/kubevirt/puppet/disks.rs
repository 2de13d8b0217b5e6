//! The importer of disks (CDI), and storage: makes each DataVolume's claim, fills it, and enlarges it on request. A claim of a class that
//! [`storage`] serves is left to it, which also restores snapshots, until it has a volume.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    runtime::controller::Action,
};
use serde_json::{Value, json};

use super::{
    super::{kinds, storage},
    Context, Import, now,
};

/// With this annotation, the importer does not make a claim again that was deleted.
const PRE_POPULATED: &str = "cdi.kubevirt.io/storage.prePopulated";
/// With this annotation, kube-controller-manager asks a driver for a volume.
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

pub(super) async fn play(disk: Arc<DynamicObject>, context: Arc<Context>) -> Result<Action, kube::Error> {
    let (namespace, name) = (disk.namespace().unwrap_or_default(), disk.name_any());
    if disk.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let claims = Api::<PersistentVolumeClaim>::namespaced(context.client.clone(), &namespace);
    let claim = claims.get_opt(&name).await?;
    let import = context.stage.imports.lock().get(&namespace).cloned();
    let import = import.unwrap_or_default();
    let is_filled = disk.data["status"]["phase"] == "Succeeded";
    let status = match claim {
        None if disk.annotations().contains_key(PRE_POPULATED) => json!({"phase": "Pending"}),
        None if import == Import::ExceedsQuota => progress(&name, &import),
        None => {
            let claim = claims.create(&PostParams::default(), &claim_of(&disk)).await?;
            if is_waiting(&claim) {
                return Ok(Action::await_change());
            }
            progress(&name, &import)
        }
        Some(claim) if is_waiting(&claim) => return Ok(Action::await_change()),
        Some(claim) => {
            let grows = !context.stage.not_growing.lock().contains(&namespace);
            serve(&claims, &claim, grows).await?;
            if is_filled {
                return Ok(Action::await_change());
            }
            progress(&name, &import)
        }
    };
    let is_told = status
        .as_object()
        .into_iter()
        .flatten()
        .all(|(field, value)| field == "conditions" || &disk.data["status"][field] == value)
        && reasons(&status) == reasons(&disk.data["status"]);
    if !is_told {
        let disks = Api::<DynamicObject>::namespaced_with(context.client.clone(), &namespace, &kinds::DISK);
        let change = json!({"metadata": {"uid": disk.metadata.uid}, "status": status});
        disks
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(change))
            .await?;
    }
    Ok(Action::await_change())
}

fn claim_of(disk: &DynamicObject) -> PersistentVolumeClaim {
    let storage = ["storage", "pvc"].map(|field| &disk.data["spec"][field]);
    let storage = storage
        .into_iter()
        .find(|it| it.is_object())
        .unwrap_or(&Value::Null);
    let modes = storage["accessModes"]
        .as_array()
        .filter(|modes| !modes.is_empty());
    let is_of_storage = storage["storageClassName"]
        .as_str()
        .is_some_and(storage::has_class);
    let mut annotations = disk.annotations().clone();
    if is_of_storage {
        annotations.insert(PROVISIONER.to_owned(), storage::DRIVER.to_owned());
    }
    let claim = json!({
        "metadata": {
            "name": disk.name_any(), "labels": disk.labels(), "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": disk.name_any(),
                "uid": disk.metadata.uid, "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "accessModes": modes.map_or_else(|| json!(["ReadWriteOnce"]), |modes| json!(modes)),
            "volumeMode": storage["volumeMode"],
            // As CDI has the storage restore a snapshot.
            "dataSource": disk.data["spec"]["source"]["snapshot"].is_object().then(|| json!({
                "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot",
                "name": disk.data["spec"]["source"]["snapshot"]["name"],
            })),
            "storageClassName": storage["storageClassName"],
            "resources": storage["resources"],
            "volumeName": (!is_of_storage).then(|| format!("pv-{}", disk.uid().unwrap_or_default())),
        },
    });
    serde_json::from_value(claim).unwrap()
}

/// Whether a claim has no volume yet.
fn is_waiting(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().is_none_or(|spec| spec.volume_name.is_none())
}

/// The storage: binds a claim, and enlarges it.
async fn serve(
    claims: &Api<PersistentVolumeClaim>,
    claim: &PersistentVolumeClaim,
    grows: bool,
) -> Result<(), kube::Error> {
    let spec = claim.spec.clone().unwrap_or_default();
    let wanted = spec.resources.and_then(|resources| resources.requests);
    let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref());
    if capacity == wanted.as_ref() {
        return Ok(());
    }
    let status = if grows || capacity.is_none() {
        json!({"phase": "Bound", "accessModes": spec.access_modes, "capacity": wanted, "conditions": null})
    } else {
        let conditions = claim
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref());
        if conditions.is_some_and(|conditions| !conditions.is_empty()) {
            return Ok(());
        }
        json!({"conditions": [condition("FileSystemResizePending", true, "", "waiting for the volume to be mounted")]})
    };
    let change = json!({"metadata": {"uid": claim.metadata.uid}, "status": status});
    claims
        .patch_status(&claim.name_any(), &PatchParams::default(), &Patch::Merge(change))
        .await?;
    Ok(())
}

fn progress(name: &str, import: &Import) -> Value {
    let bound = condition("Bound", true, "Bound", &format!("PVC {name} Bound"));
    let ready = |ready| condition("Ready", ready, "", "");
    match import {
        Import::Succeeds => json!({
            "phase": "Succeeded", "progress": "100.0%", "claimName": name,
            "conditions": [bound, ready(true), condition("Running", false, "Completed", "Import Complete")],
        }),
        Import::IsAt(progress) => json!({
            "phase": "ImportInProgress", "progress": progress, "claimName": name,
            "conditions": [
                bound, condition("Ready", false, "TransferRunning", ""), condition("Running", true, "Pod is running", ""),
            ],
        }),
        Import::Fails(message) => json!({
            "phase": "ImportInProgress", "progress": "N/A", "claimName": name, "restartCount": 1,
            "conditions": [bound, ready(false), condition("Running", false, "Error", message)],
        }),
        Import::GivesUp => json!({
            "phase": "Failed", "progress": "N/A", "claimName": name,
            "conditions": [bound, ready(false), condition("Running", false, "", "")],
        }),
        Import::ExceedsQuota => {
            let (reason, message) = ("ErrExceededQuota", "exceeded quota: requests.storage");
            json!({
                "phase": "Pending",
                "conditions": [
                    condition("Bound", false, reason, message), condition("Ready", false, reason, ""),
                    condition("Running", false, "", ""),
                ],
            })
        }
    }
}

fn condition(kind: &str, holds: bool, reason: &str, message: &str) -> Value {
    json!({
        "type": kind, "status": if holds { "True" } else { "False" }, "reason": reason, "message": message,
        "lastTransitionTime": now(), "lastHeartbeatTime": now(),
    })
}

/// Each condition without its times.
fn reasons(status: &Value) -> Vec<[String; 4]> {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let fields = ["type", "status", "reason", "message"];
    conditions
        .map(|it| fields.map(|field| it[field].as_str().unwrap_or_default().to_owned()))
        .collect()
}
