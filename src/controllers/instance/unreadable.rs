//! Objects that do not parse get a condition, written without reading them as an Instance.

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

use crate::{
    resources::{
        Instance,
        conditions::{self, Desired, READY, RECONCILING, STALLED},
    },
    runtime::client::{CallError, bounded},
};

/// Tells each object that does not parse so, once.
pub(super) async fn complain(
    client: Client,
    mut unreadable: mpsc::UnboundedReceiver<Arc<InvalidObject>>,
    shutdown: CancellationToken,
) {
    let resource = ApiResource::erase::<Instance>(&());
    while let Some(object) = tokio::select! {
        () = shutdown.cancelled() => None,
        object = unreadable.recv() => object,
    } {
        if let Err(error) = complain_once(&client, &resource, &object).await {
            tracing::warn!(%error, name = object.metadata.name, "the condition of an unreadable instance could not be written");
        }
    }
}

async fn complain_once(
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
        "the object does not parse and is left alone; mend it with kubectl edit: {}",
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
