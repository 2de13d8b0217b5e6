//! The write of finalizers, with which an object also gets its origin.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::json;

use resources::{origin, tracking::CONTROLLER_MANAGER};
use runtime::client::{CallError, bounded};

/// Adds a finalizer, and the origin, to this version of an object.
pub(crate) async fn add<K>(client: &Client, object: &K, finalizer: &str) -> Result<K, CallError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let mut finalizers = others(object, finalizer);
    finalizers.push(finalizer);
    replace(client, object, &finalizers).await
}

/// Removes a finalizer from this version of an object, if the object is still there. The finalizers of other controllers stay. What was
/// written is not returned: the watch may already have reported the deletion.
pub(crate) async fn remove<K>(client: &Client, object: &K, finalizer: &str) -> Result<(), CallError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    match replace(client, object, &others(object, finalizer)).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// The finalizers of an object besides this one.
pub(crate) fn others<'a, K: Resource>(object: &'a K, finalizer: &str) -> Vec<&'a str> {
    let all = object.finalizers().iter().map(String::as_str);
    all.filter(|name| *name != finalizer).collect()
}

async fn replace<K>(client: &Client, object: &K, finalizers: &[&str]) -> Result<K, CallError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let metadata = object.meta();
    let mut patch = json!({
        "metadata": { "finalizers": finalizers, "resourceVersion": metadata.resource_version, "uid": metadata.uid },
    });
    origin::add_to(&mut patch, metadata);
    let params = PatchParams::apply(CONTROLLER_MANAGER);
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let name = metadata.name.as_deref().unwrap_or_default();
    bounded(api.patch(name, &params, &Patch::Merge(&patch))).await
}
