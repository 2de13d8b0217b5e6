//! What to do next about a server in a cluster with KubeVirt: a pure function of the Instance, and of what is known of its region.
//!
//! A step of the provider is a loop around [`plan()`]: carry out the [`Action`] of the [`Plan`], hand the [`Answer`] to
//! [`Seen::take`], and plan again, until there is no action or no time left; then report the outcome. If a call has no answer, the step
//! fails, and the next one begins anew: whatever it finds, it continues.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::slim::{DataVolume, VirtualMachine, VirtualMachineInstance};
use domain::{
    catalogue::region::KubeVirt,
    provider::{Addresses, Observation, ProviderError},
};
use resources::{Backup, Instance};

/// A kind of object in a region's cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `v1 Namespace`, the only one without a namespace.
    Namespace,
    /// `rbac.authorization.k8s.io/v1 RoleBinding`.
    RoleBinding,
    /// `networking.k8s.io/v1 NetworkPolicy`.
    NetworkPolicy,
    /// `v1 Secret`; it may neither be read nor listed.
    Secret,
    /// `cdi.kubevirt.io/v1beta1 DataVolume`.
    DataVolume,
    /// `kubevirt.io/v1 VirtualMachine`.
    VirtualMachine,
    /// `kubevirt.io/v1 VirtualMachineInstance`.
    Run,
    /// `v1 PersistentVolumeClaim`.
    Claim,
    /// `v1 Pod`.
    Pod,
    /// `k8s.cni.cncf.io/v1 NetworkAttachmentDefinition`.
    NetworkAttachment,
}

impl Kind {
    /// Group, version, and the name in paths.
    pub const fn path(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Namespace => ("", "v1", "namespaces"),
            Self::RoleBinding => ("rbac.authorization.k8s.io", "v1", "rolebindings"),
            Self::NetworkPolicy => ("networking.k8s.io", "v1", "networkpolicies"),
            Self::Secret => ("", "v1", "secrets"),
            Self::DataVolume => ("cdi.kubevirt.io", "v1beta1", "datavolumes"),
            Self::VirtualMachine => ("kubevirt.io", "v1", "virtualmachines"),
            Self::Run => ("kubevirt.io", "v1", "virtualmachineinstances"),
            Self::Claim => ("", "v1", "persistentvolumeclaims"),
            Self::Pod => ("", "v1", "pods"),
            Self::NetworkAttachment => ("k8s.cni.cncf.io", "v1", "network-attachment-definitions"),
        }
    }
}

/// A call to the region's cluster. All are in the namespace of [`Server`](super::names::Server), but for those about [`Kind::Namespace`].
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Create an object.
    Post {
        /// Its kind.
        kind: Kind,
        /// The object, with apiVersion, kind, name and namespace.
        object: Value,
    },
    /// Read an object.
    Get {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: String,
    },
    /// List objects by label. Of claims and Pods, only the metadata is needed.
    List {
        /// Their kind.
        kind: Kind,
        /// The label selector.
        selector: String,
    },
    /// Change an object by a merge patch.
    Patch {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: String,
        /// The merge patch. That of a virtual machine has its UID and resourceVersion, so a change that comes late is refused.
        patch: Value,
        /// Whether to ask only if it would be done.
        dry_run: bool,
    },
    /// Change the status of a virtual machine by a JSON patch: take away the requests to start it.
    ClearRequests {
        /// The virtual machine's name.
        name: String,
        /// The JSON patch.
        patch: Value,
    },
    /// `PUT /apis/subresources.kubevirt.io/v1/namespaces/…/virtualmachines/…/stop` with `{"gracePeriod": 0}`: end the run of a virtual
    /// machine at once.
    Stop {
        /// The virtual machine's name.
        name: String,
    },
    /// Delete an object, in the background.
    Delete {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: String,
        /// Its UID, as precondition.
        uid: String,
    },
    /// Delete objects by label. The answer, which may have secrets in it, is not to be read.
    DeleteAll {
        /// Their kind.
        kind: Kind,
        /// The label selector.
        selector: String,
    },
}

/// What the region's cluster has answered to an [`Action`].
#[derive(Clone, Debug)]
pub enum Answer {
    /// A virtual machine: created, read or changed.
    VirtualMachine(Arc<VirtualMachine>),
    /// A run.
    Run(Arc<VirtualMachineInstance>),
    /// A disk.
    DataVolume(DataVolume),
    /// A list of disks.
    DataVolumes(Vec<DataVolume>),
    /// Another object.
    Object(ObjectMeta),
    /// A list of other objects.
    Objects(Vec<ObjectMeta>),
    /// It is accepted, and there is nothing more to know.
    Done,
    /// It is refused.
    Refused(Refusal),
}

/// The region's cluster does not do something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// The reason, such as `AlreadyExists`.
    pub reason: String,
    /// The text. It is for the operator: it may name nodes and storage.
    pub message: String,
}

/// Whether what is known of a region is up to date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Both stores have seen a full list, and both watches are alive.
    Live,
    /// Something of this is missing, since then.
    Cut(Timestamp),
}

/// What is known about a server and its region when a step is planned.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Whether the stores can be believed.
    pub reach: Reach,
    /// The virtual machine with the server's name, from the store or from the latest write.
    pub vm: Option<Arc<VirtualMachine>>,
    /// The run with the server's name, from the store.
    pub run: Option<Arc<VirtualMachineInstance>>,
    /// Whether the namespace is known to be complete: this process has made it so, or it has another virtual machine of ours.
    pub has_namespace: bool,
    /// UID of the Account.
    pub account_uid: String,
    /// The addresses that are reserved for the server.
    pub addresses: Addresses,
    /// What the account holder wants cloud-init to do, as it was given: plain, or compressed by gzip.
    pub user_data: Option<Arc<[u8]>>,
    /// What the calls of this step have answered.
    answers: Answers,
}

/// What the calls of a step have answered.
#[derive(Clone, Debug, Default)]
struct Answers {}

impl Seen {
    /// What is known before the first call of a step.
    pub fn new(reach: Reach, account_uid: String) -> Self {
        Self {
            reach,
            vm: None,
            run: None,
            has_namespace: false,
            account_uid,
            addresses: Addresses::default(),
            user_data: None,
            answers: Answers::default(),
        }
    }

    /// Takes note of an answer.
    pub fn take(&mut self, action: &Action, answer: Answer) {
        let _ = (action, answer);
    }
}

/// What to do next, and what to report if nothing is done.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The next call.
    pub action: Option<Action>,
    /// What the step reports if there is no action, or no time for it.
    pub outcome: Result<Observation, ProviderError>,
    /// What the cluster says about a problem, for the log and for operators. Account holders get fixed words instead, without
    /// the names of nodes.
    pub raw: Option<String>,
    /// The action repairs a start that KubeVirt has lost. For a metric.
    pub repairs_lost_start: bool,
}

/// Plans the next call of a step. `backup` is the backup that the operation restores, if it restores one and that still exists.
pub fn plan(
    instance: &Instance,
    backup: Option<&Backup>,
    seen: &Seen,
    region: &KubeVirt,
    now: Timestamp,
) -> Plan {
    let _ = (instance, backup, seen, region, now);
    Plan {
        action: None,
        outcome: Ok(Observation::default()),
        raw: None,
        repairs_lost_start: false,
    }
}
