//! What is exported, in the order in which it is imported: owners come before the objects they own, and Accounts come last, because
//! until then the operator leaves alone what is in their namespaces.

use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace, Secret},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client, Resource,
    core::{ApiResource, DynamicObject},
};

use resources::{
    Account, ApiKey, Backup, Delivery, EventLog, Instance, Invoice, InvoiceNumber, InvoicePage,
    PrivateNetwork, Webhook, instance::USER_DATA_LABEL, webhook::WEBHOOK_SECRET_LABEL,
};

/// Secrets and ConfigMaps in the operator's namespace that all replicas share: the key that seals sessions, and the prices.
const SHARED_SECRETS: &[&str] = &["stellage-console"];
const SHARED_MAPS: &[&str] = &["stellage-prices"];

/// A kind of objects in a file.
pub(super) struct Kind {
    pub(super) resource: ApiResource,
    pub(super) which: Which,
    /// Whether it has a status that is written separately.
    pub(super) has_status: bool,
    /// Whether people write its objects, so that it matters who wrote which field, and when.
    pub(super) is_tracked: bool,
    /// Objects per page of a list: small for kinds whose objects may be large.
    pub(super) page: u32,
}

/// Which objects of a kind are in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// All: it is a kind in this program's API group.
    Ours,
    /// Those in the operator's namespace, labelled with the origin of the account that they belong to.
    Invoices,
    /// All: those of one account alone would be numbers of another installation.
    Numbers,
    /// The namespaces of accounts, and others that have objects of ours.
    Namespaces,
    /// In those namespaces, the Secrets of webhooks, instances and API keys: what signs deliveries, user data, and keys that the operator made.
    Secrets,
    /// In the operator's namespace, those with these names.
    Shared(&'static [&'static str]),
}

impl Which {
    /// Whether it is a kind in this program's API group.
    pub(super) const fn is_ours(self) -> bool {
        matches!(self, Self::Ours | Self::Invoices | Self::Numbers)
    }

    /// Whether its objects are in the operator's namespace.
    pub(super) const fn is_operators(self) -> bool {
        matches!(self, Self::Invoices | Self::Shared(_))
    }
}

pub(super) fn all() -> [Kind; 15] {
    [
        foreign::<Namespace>(Which::Namespaces),
        foreign::<Secret>(Which::Shared(SHARED_SECRETS)),
        foreign::<ConfigMap>(Which::Shared(SHARED_MAPS)),
        written::<Webhook>(),
        // Before the instances that are in them.
        written::<PrivateNetwork>(),
        written::<Instance>(),
        written::<ApiKey>(),
        Kind {
            page: 100,
            ..foreign::<Secret>(Which::Secrets)
        },
        written::<Backup>(),
        record::<Delivery>(),
        record::<EventLog>(),
        Kind {
            which: Which::Invoices,
            ..record::<Invoice>()
        },
        Kind {
            which: Which::Invoices,
            ..record::<InvoicePage>()
        },
        // After the invoices: if they are read one after the other while the operator runs, no invoice has a number that is not in the file.
        Kind {
            which: Which::Numbers,
            page: 500,
            ..record::<InvoiceNumber>()
        },
        written::<Account>(),
    ]
}

fn written<K: Resource<DynamicType = ()>>() -> Kind {
    Kind {
        resource: ApiResource::erase::<K>(&()),
        which: Which::Ours,
        has_status: true,
        is_tracked: true,
        page: 500,
    }
}

fn record<K: Resource<DynamicType = ()>>() -> Kind {
    Kind {
        has_status: false,
        is_tracked: false,
        page: 50,
        ..written::<K>()
    }
}

fn foreign<K: Resource<DynamicType = ()>>(which: Which) -> Kind {
    Kind {
        which,
        page: 500,
        ..record::<K>()
    }
}

/// The API for the kind of an object.
pub(super) fn api(client: &Client, resource: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

/// Whether a Secret is for webhooks, or belongs to an instance or an API key.
pub(crate) fn is_part_of_account(secret: &ObjectMeta) -> bool {
    let labels = secret.labels.as_ref();
    let is_labelled = [WEBHOOK_SECRET_LABEL, USER_DATA_LABEL].iter().any(|label| {
        labels
            .and_then(|labels| labels.get(*label))
            .is_some_and(|value| value == "true")
    });
    is_labelled || secret.owner_references.iter().flatten().any(owns_all)
}

/// Whether an owner has Secrets or Deliveries of its own, which are worth nothing without it.
pub(super) fn owns_all(owner: &OwnerReference) -> bool {
    let is_a = |kind: &str, version: &str| owner.kind == kind && owner.api_version == version;
    is_a(&Webhook::kind(&()), &Webhook::api_version(&()))
        || is_a(&Instance::kind(&()), &Instance::api_version(&()))
        || is_a(&ApiKey::kind(&()), &ApiKey::api_version(&()))
}
