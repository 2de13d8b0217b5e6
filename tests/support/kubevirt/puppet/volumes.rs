//! What kube-controller-manager does with the volumes that a CSI driver has made: gives each to its claim, and releases it once that is gone.
//! Its own binder would also want a volume for each claim that the puppet serves.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::controller::Action,
};
use serde_json::json;

use super::Context;

pub(super) async fn play(
    volume: Arc<PersistentVolume>,
    context: Arc<Context>,
) -> Result<Action, kube::Error> {
    let its = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone());
    let its = its.unwrap_or_default();
    let claims = Api::<PersistentVolumeClaim>::namespaced(
        context.client.clone(),
        its.namespace.as_deref().unwrap_or_default(),
    );
    let name = its.name.unwrap_or_default();
    let claim = claims
        .get_opt(&name)
        .await?
        .filter(|claim| claim.uid() == its.uid);
    let params = PatchParams::default();
    let phase = if claim.is_some() { "Bound" } else { "Released" };
    let known = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    if known != Some(phase) {
        let change = json!({ "metadata": { "uid": volume.metadata.uid }, "status": { "phase": phase } });
        Api::<PersistentVolume>::all(context.client.clone())
            .patch_status(&volume.name_any(), &params, &Patch::Merge(change))
            .await?;
    }
    if claim.is_some_and(|claim| claim.spec.is_none_or(|spec| spec.volume_name.is_none())) {
        let change = json!({ "metadata": { "uid": its.uid }, "spec": { "volumeName": volume.name_any() } });
        claims.patch(&name, &params, &Patch::Merge(change)).await?;
    }
    Ok(Action::await_change())
}
