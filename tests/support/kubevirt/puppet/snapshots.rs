//! What external-snapshotter and the storage do with each VolumeSnapshot: cut it, say when it is ready, and hold it until its data is
//! gone.

use std::sync::Arc;

use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams},
    runtime::controller::Action,
};
use serde_json::{Value, json};

use super::{super::kinds, Context, Snapshots, now};

/// With this finalizer, a snapshot waits until its data is gone.
const BOUND: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";

pub(super) async fn play(snapshot: Arc<DynamicObject>, context: Arc<Context>) -> Result<Action, kube::Error> {
    let (namespace, name) = (snapshot.namespace().unwrap_or_default(), snapshot.name_any());
    let wanted = context
        .stage
        .snapshots
        .lock()
        .get(&namespace)
        .copied()
        .unwrap_or_default();
    let api = Api::<DynamicObject>::namespaced_with(context.client.clone(), &namespace, &kinds::SNAPSHOT);
    let params = PatchParams::default();
    if snapshot.metadata.deletion_timestamp.is_some() {
        if wanted != Snapshots::Held && snapshot.finalizers().iter().any(|it| it == BOUND) {
            let release = json!({"metadata": {"uid": snapshot.metadata.uid, "finalizers": null}});
            api.patch(&name, &params, &Patch::Merge(release)).await?;
        }
        return Ok(Action::await_change());
    }
    if snapshot.finalizers().is_empty() {
        let hold = json!({"metadata": {"uid": snapshot.metadata.uid, "finalizers": [BOUND]}});
        api.patch(&name, &params, &Patch::Merge(hold)).await?;
    }
    let known = &snapshot.data["status"];
    let error = (wanted == Snapshots::Lost)
        .then(|| json!({"message": "VolumeSnapshotContent is missing", "time": now()}));
    let is_ready = matches!(wanted, Snapshots::Ready | Snapshots::Held);
    if known["readyToUse"] == is_ready && known["error"].is_object() == error.is_some() {
        return Ok(Action::await_change());
    }
    let cut = &known["creationTime"];
    let status = json!({
        "boundVolumeSnapshotContentName": format!("snapcontent-{}", snapshot.uid().unwrap_or_default()),
        "creationTime": if cut.is_string() { cut.clone() } else { now().into() },
        "readyToUse": is_ready, "restoreSize": "40Gi", "error": error.unwrap_or(Value::Null),
    });
    let change = json!({"metadata": {"uid": snapshot.metadata.uid}, "status": status});
    api.patch_status(&name, &params, &Patch::Merge(change)).await?;
    Ok(Action::await_change())
}
