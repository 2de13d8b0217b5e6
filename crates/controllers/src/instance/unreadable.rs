//! Sets the conditions of objects that do not match their schema, without parsing them as an Instance.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
    core::error_boundary::InvalidObject,
};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use resources::{
    Instance,
    conditions::{self, Desired, READY, RECONCILING, STALLED},
};
use runtime::client::{CallError, bounded};

/// Sets the conditions of each object that does not match its schema, once.
pub(super) async fn report(
    client: Client,
    mut unreadable: mpsc::UnboundedReceiver<Arc<InvalidObject>>,
    shutdown: CancellationToken,
) {
    let resource = ApiResource::erase::<Instance>(&());
    while let Some(object) = tokio::select! {
        () = shutdown.cancelled() => None,
        object = unreadable.recv() => object,
    } {
        if let Err(error) = set_conditions(&client, &resource, &object).await {
            tracing::warn!(%error, name = object.metadata.name, "cannot write the conditions of an unreadable instance");
        }
    }
}

async fn set_conditions(
    client: &Client,
    resource: &ApiResource,
    object: &InvalidObject,
) -> Result<(), CallError> {
    let (Some(namespace), Some(name)) = (&object.metadata.namespace, &object.metadata.name) else {
        return Ok(());
    };
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, resource);
    let Some(current) = bounded(api.get_opt(name)).await? else {
        return Ok(());
    };
    let before: Vec<Condition> = current
        .data
        .pointer("/status/conditions")
        .and_then(|list| serde_json::from_value(list.clone()).ok())
        .unwrap_or_default();
    let mut after = before.clone();
    let message = format!(
        "the object does not match its schema, so it is ignored; fix it with kubectl edit, for a status without the policy \
         operator-status.stellage.dev meanwhile: {}",
        object.error
    );
    for (type_, status) in [(RECONCILING, false), (STALLED, true), (READY, false)] {
        let desired = Desired {
            type_,
            status: Some(status),
            reason: "Unreadable",
            message: message.clone(),
        };
        conditions::set(&mut after, desired, current.metadata.generation, Timestamp::now());
    }
    if after != before {
        let patch = json!({
            "metadata": { "resourceVersion": current.metadata.resource_version },
            "status": { "conditions": after },
        });
        bounded(api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))).await?;
    }
    Ok(())
}
