//! The kinds of `stellage.dev/v1`: one file each with types, schema, admission rules and printer columns; no I/O.
//!
//! - [`account`], [`api_key`], [`instance`], [`private_network`], [`backup`], [`webhook`], [`delivery`], [`event_log`], [`invoice`],
//!   [`invoice_page`], [`invoice_number`]: the kinds;
//! - [`event`]: event types and outbox entries; [`alert`]: alerts in the status of an instance;
//! - [`ids`]: public identifiers, derived from names and UIDs;
//! - [`conditions`]: the schema of `metav1.Condition`s and the function that sets them;
//! - [`origin`]: the identity of an object that may have been saved and written back;
//! - [`traceparent`]: the traces that changes and events belong to;
//! - [`tracking`]: who wrote which field, and when the spec was written;
//! - [`validation`]: rules for spec values, shared by REST and the controllers;
//! - [`metering`]: what invoices need to know about an instance; [`money`]: amounts and prices, in integers; [`plan`]: the plans;
//! - [`quota`]: what an account may have, and rejections by a quota; [`refusal`]: why the spec of an instance is rejected;
//! - [`size`]: how large texts become when they are stored;
//! - `crd`: improvements to the derived schemas; `times`: schemas of times.

#![warn(missing_docs)]
#![expect(
    clippy::duplicated_attributes,
    reason = "printer columns of one type repeat `type_` in one attribute each"
)]

pub mod account;
pub mod alert;
pub mod api_key;
pub mod backup;
pub mod conditions;
mod crd;
pub mod delivery;
pub mod event;
pub mod event_log;
pub mod ids;
pub mod instance;
pub mod invoice;
pub mod invoice_number;
pub mod invoice_page;
mod merge_patch;
pub mod metering;
pub mod money;
mod names;
pub mod origin;
pub mod plan;
pub mod private_network;
pub mod public_id;
pub mod quota;
pub mod refusal;
mod revision;
pub mod size;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod text;
pub mod times;
pub mod traceparent;
pub mod tracking;
pub mod validation;
pub mod webhook;

pub use account::{Account, AccountSpec, AccountStatus};
pub use alert::{Alert, AlertMetric, AlertPhase};
pub use api_key::{ApiKey, ApiKeySpec, KeyScope};
pub use backup::{Backup, BackupError, BackupPhase, BackupSource, BackupSpec, BackupStatus};
pub use delivery::{Attempt, Delivery, DeliveryPhase, DeliverySpec, DeliveryStatus};
pub use event::{EventType, HasOutbox, OutboxEntry};
pub use event_log::{EventLog, EventLogSpec, LoggedDelivery, LoggedEvent, PageIndex};
pub use instance::{
    Instance, InstanceSpec, InstanceState, InstanceStatus, Operation, OperationKind, PowerState,
};
pub use invoice::{Invoice, InvoicePeriod, InvoicePhase, InvoiceSpec, InvoiceStatus};
pub use invoice_number::{InvoiceNumber, InvoiceNumberSpec};
pub use invoice_page::{InvoiceLine, InvoicePage, InvoicePageSpec, InvoicedHours, LedgerEntry};
pub use merge_patch::merge_patch;
pub use plan::{Plan, PlanSize};
pub use private_network::{PrivateNetwork, PrivateNetworkSpec, PrivateNetworkStatus};
pub use refusal::Refusal;
pub use revision::revision;
pub use webhook::{
    BacklogPeriod, DisableReason, Disabled, SecretReference, Webhook, WebhookSpec, WebhookStatus,
};

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{CustomResourceExt as _, Resource};

/// Whether an object is the controlling owner of the one with this metadata.
fn controls<K: Resource<DynamicType = ()>>(owner: &K, metadata: &ObjectMeta) -> bool {
    let mut owners = metadata.owner_references.iter().flatten();
    owners.any(|reference| {
        reference.controller == Some(true)
            && reference.kind == K::kind(&())
            && reference.api_version == K::api_version(&())
            && Some(&reference.uid) == owner.meta().uid.as_ref()
    })
}

/// Whether a status need not mention a number.
fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

/// The API group of every kind (decisions, preamble).
pub const GROUP: &str = "stellage.dev";

/// Label on a namespace that names the [`Account`] it belongs to. A cluster administrator sets it to let an
/// Account adopt an existing namespace.
pub const ACCOUNT_LABEL: &str = "stellage.dev/account";

/// Label and its value on objects of Kubernetes' own kinds that Stellage creates.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "stellage");

/// The CRDs, in the order in which an installer applies them.
pub fn crds() -> Vec<CustomResourceDefinition> {
    [
        Account::crd(),
        ApiKey::crd(),
        Instance::crd(),
        PrivateNetwork::crd(),
        Backup::crd(),
        Webhook::crd(),
        crd::without_subresources(Delivery::crd()),
        EventLog::crd(),
        crd::without_subresources(Invoice::crd()),
        InvoicePage::crd(),
        InvoiceNumber::crd(),
    ]
    .map(crd::polish)
    .into()
}

/// The admission policies, as YAML documents: one file each in `crds/`, under these names.
pub const POLICIES: [(&str, &str); 6] = [
    // The namespace of an Account stays as long as the Account.
    (
        "account-namespaces.yaml",
        include_str!("../../../crds/account-namespaces.yaml"),
    ),
    // `spec.deletionProtection` holds for every client.
    (
        "deletion-protection.yaml",
        include_str!("../../../crds/deletion-protection.yaml"),
    ),
    // No account fills etcd with the metadata of its objects.
    (
        "metadata-bounds.yaml",
        include_str!("../../../crds/metadata-bounds.yaml"),
    ),
    // Only the operator writes statuses, Deliveries, EventLogs, Invoices, InvoicePages and InvoiceNumbers.
    (
        "operator-only.yaml",
        include_str!("../../../crds/operator-only.yaml"),
    ),
    // The operator itself binds no other role, and touches no other namespace, than those that are its own.
    (
        "operator-rights.yaml",
        include_str!("../../../crds/operator-rights.yaml"),
    ),
    // Who holds a suspended Account can only read.
    (
        "suspended-accounts.yaml",
        include_str!("../../../crds/suspended-accounts.yaml"),
    ),
];

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use strum::VariantArray;

    use super::*;

    fn check<T: VariantArray + Serialize + Copy + Into<&'static str>>() {
        for variant in T::VARIANTS {
            let name: &str = (*variant).into();
            assert_eq!(serde_json::to_value(variant).unwrap(), name);
        }
    }

    #[test]
    fn a_value_is_called_in_messages_as_it_is_stored() {
        check::<AlertMetric>();
        check::<BackupPhase>();
        check::<DisableReason>();
        check::<EventType>();
        check::<InstanceState>();
        check::<OperationKind>();
        check::<Plan>();
    }
}
