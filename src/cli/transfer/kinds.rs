//! What is exported, in the order in which it is imported: owners come before the objects they own.

use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace, Secret},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Client, Resource,
    core::{ApiResource, DynamicObject},
};

use crate::resources::{
    Account, ApiKey, Backup, Delivery, EventLog, Instance, Invoice, InvoicePage, Webhook,
};

/// Secrets and ConfigMaps in the operator's namespace that all replicas share: the key that seals sessions, the invoice
/// numbers, and former prices.
pub(super) const SHARED_SECRETS: [&str; 1] = ["stellage-console"];
pub(super) const SHARED_MAPS: [&str; 2] = ["stellage-invoice-numbers", "stellage-prices"];

/// A kind in this program's API group.
pub(super) struct Kind {
    pub(super) resource: ApiResource,
    /// Whether it has a status that is written separately.
    pub(super) has_status: bool,
    /// Whether people write its objects, so that it matters who wrote which field, and when.
    pub(super) is_tracked: bool,
    /// Objects per page of a list: small for kinds whose objects may be large.
    pub(super) page: u32,
}

/// The kinds in this program's API group.
pub(super) fn own() -> [Kind; 9] {
    [
        written::<Account>(true),
        written::<Webhook>(true),
        written::<Instance>(true),
        written::<Backup>(true),
        written::<ApiKey>(true),
        record::<Delivery>(),
        record::<EventLog>(),
        record::<Invoice>(),
        record::<InvoicePage>(),
    ]
}

fn written<K: Resource<DynamicType = ()>>(has_status: bool) -> Kind {
    Kind {
        resource: ApiResource::erase::<K>(&()),
        has_status,
        is_tracked: true,
        page: 500,
    }
}

fn record<K: Resource<DynamicType = ()>>() -> Kind {
    Kind {
        is_tracked: false,
        page: 50,
        ..written::<K>(false)
    }
}

/// Kubernetes' own kinds that a file contains.
pub(super) fn foreign(kind: &str) -> Option<ApiResource> {
    match kind {
        "Namespace" => Some(ApiResource::erase::<Namespace>(&())),
        "Secret" => Some(ApiResource::erase::<Secret>(&())),
        "ConfigMap" => Some(ApiResource::erase::<ConfigMap>(&())),
        _ => None,
    }
}

/// The API for the kind of an object.
pub(super) fn api(client: &Client, resource: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

/// Whether an owner is a Webhook.
pub(super) fn is_webhook(owner: &OwnerReference) -> bool {
    owner.kind == Webhook::kind(&()) && owner.api_version == Webhook::api_version(&())
}
