//! The write of finalizers, with which an object also gets its origin.

use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::json;

use resources::{origin, tracking::CONTROLLER_MANAGER};
use runtime::client::{CallError, bounded};

/// Replaces the finalizers of this version of an object.
pub(crate) async fn replace<K>(client: &Client, object: &K, finalizers: Vec<&str>) -> Result<K, CallError>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let metadata = object.meta();
    let mut patch = json!({
        "metadata": { "finalizers": finalizers, "resourceVersion": metadata.resource_version, "uid": metadata.uid },
    });
    origin::add_to(&mut patch, metadata);
    let params = PatchParams {
        field_manager: Some(CONTROLLER_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let name = metadata.name.as_deref().unwrap_or_default();
    bounded(api.patch(name, &params, &Patch::Merge(&patch))).await
}
