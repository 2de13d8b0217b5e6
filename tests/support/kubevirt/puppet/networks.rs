//! What kube-ovn does with each Subnet: says that servers can be in it, and holds it until nothing of it is left.

use std::sync::Arc;

use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams},
    runtime::controller::Action,
};
use serde_json::json;

use super::{super::kinds, Context};

/// With this finalizer, a Subnet waits until its logical switch is gone.
const HELD: &str = "kubeovn.io/kube-ovn-controller";

pub(super) async fn play(subnet: Arc<DynamicObject>, context: Arc<Context>) -> Result<Action, kube::Error> {
    let name = subnet.name_any();
    let api = Api::<DynamicObject>::all_with(context.client.clone(), &kinds::SUBNET);
    let params = PatchParams::default();
    if subnet.metadata.deletion_timestamp.is_some() {
        if subnet.finalizers().iter().any(|it| it == HELD) {
            let release = json!({"metadata": {"uid": subnet.metadata.uid, "finalizers": null}});
            api.patch(&name, &params, &Patch::Merge(release)).await?;
        }
        return Ok(Action::await_change());
    }
    if subnet.finalizers().is_empty() {
        let hold = json!({"metadata": {"uid": subnet.metadata.uid, "finalizers": [HELD]}});
        api.patch(&name, &params, &Patch::Merge(hold)).await?;
    }
    if subnet.data["status"]["conditions"].is_array() {
        return Ok(Action::await_change());
    }
    let status = json!({"conditions": [{"type": "Ready", "status": "True", "reason": "SetPrivateLogicalSwitchSuccess"}]});
    let change = json!({"metadata": {"uid": subnet.metadata.uid}, "status": status});
    api.patch_status(&name, &params, &Patch::Merge(change)).await?;
    Ok(Action::await_change())
}
