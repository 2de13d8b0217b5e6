//! `PrivateNetwork`: a network that servers of one account in one region share, and nobody else is in.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema, ResourceExt as _};
use serde::{Deserialize, Serialize};

use super::{conditions, ids, origin};

/// Keeps a `PrivateNetwork` while instances are in it, and until nothing of it is left in its region.
pub const FINALIZER: &str = "stellage.dev/private-network";

/// Private networks that an account may have unless the operator's settings say otherwise.
pub const DEFAULT_NETWORK_QUOTA: u32 = 10;

/// A private network of the account whose namespace it is in.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[kube(
    group = "stellage.dev",
    version = "v1",
    kind = "PrivateNetwork",
    plural = "privatenetworks",
    shortname = "pn",
    category = "stellage",
    namespaced,
    status = "PrivateNetworkStatus",
    derive = "PartialEq",
    doc = "A private network of the account whose namespace it is in. Instances of the same region that name it in spec.privateNetwork are attached to it when they are created, and each has an address in it.",
    printcolumn(name = "Region", type_ = "string", json_path = ".spec.region"),
    printcolumn(name = "Prefix", type_ = "string", json_path = ".status.prefix"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Display-Name", type_ = "string", json_path = ".spec.name", priority = 1),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason", priority = 1),
    printcolumn(name = "ID", type_ = "string", json_path = ".status.id", priority = 1),
    validation = Rule::new("size(self.metadata.name) <= 63 && self.metadata.name.matches('^pn-[a-z0-9]+(-[a-z0-9]+)*$')")
        .message("metadata.name must be pn- followed by lower-case letters and digits, at most 63 characters: instances name the network by it")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.prefix) ? has(oldSelf.prefix) && self.prefix == oldSelf.prefix : !has(oldSelf.prefix)")
    .message("spec.prefix is immutable: create another private network instead"))]
pub struct PrivateNetworkSpec {
    /// Display name: 1 to 63 letters, digits, '.' or '-'. Need not be unique. Default: metadata.name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$')").message("must be 1 to 63 letters, digits, '.' or '-', with a letter or digit at both ends"))]
    pub name: Option<String>,

    /// Region code `<country>-<city>-<n>`, such as fr-par-1. Only instances of this region can be attached. Immutable.
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z]{2}-[a-z]{3,}-[1-9][0-9]*$')").message("must be a region code <country>-<city>-<n> such as fr-par-1"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("is immutable: create another private network in that region instead"))]
    pub region: String,

    /// IPv4 prefix from 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16, such as 10.128.4.0/24: a /16 at the largest, a /28 at the
    /// smallest. It must not overlap another network of the account, nor 10.0.2.0/24, which servers may use for themselves. Default: a
    /// free /24. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 18))]
    #[x_kube(validation = Rule::new("isCIDR(self) && cidr(self).ip().family() == 4 && cidr(self) == cidr(self).masked() && cidr(self).prefixLength() >= 16 && cidr(self).prefixLength() <= 28 && (cidr('10.0.0.0/8').containsCIDR(cidr(self)) || cidr('172.16.0.0/12').containsCIDR(cidr(self)) || cidr('192.168.0.0/16').containsCIDR(cidr(self)))")
        .message("must be an IPv4 prefix from 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16, from /16 to /28, that begins at its first address, such as 10.128.4.0/24"))]
    #[x_kube(validation = Rule::new("!isCIDR(self) || cidr(self).ip().family() != 4 || !cidr(self).containsCIDR(cidr('10.0.2.0/24')) && !cidr('10.0.2.0/24').containsCIDR(cidr(self))")
        .message("must not overlap 10.0.2.0/24, which servers may use for themselves"))]
    pub prefix: Option<String>,
}

/// What has become of the network.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PrivateNetworkStatus {
    /// Public identifier, `pn-…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,

    /// The prefix that instances get their addresses from. Once known, it never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,

    /// Ready (instances can be attached), Reconciling, Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions::schema")]
    pub conditions: Vec<Condition>,
}

impl PrivateNetwork {
    /// The public id, a pure function of the object (decisions, section 2).
    pub fn id(&self) -> String {
        ids::network_id(
            self.metadata.name.as_deref().unwrap_or_default(),
            origin::uid(&self.metadata),
        )
    }

    /// The display name: `spec.name`, else `metadata.name`.
    pub fn display_name(&self) -> &str {
        let name = self.metadata.name.as_deref();
        self.spec.name.as_deref().or(name).unwrap_or_default()
    }

    /// The prefix: the one that is in effect, else the one that is wanted.
    pub fn prefix(&self) -> Option<&str> {
        let in_effect = self.status.as_ref().and_then(|status| status.prefix.as_deref());
        in_effect.or(self.spec.prefix.as_deref())
    }

    /// When the object was created.
    pub fn created_at(&self) -> Timestamp {
        origin::created_at(&self.metadata).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Whether the object is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether [`FINALIZER`] is on the object.
    pub fn has_finalizer(&self) -> bool {
        self.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
    }

    /// The condition Ready.
    pub fn ready(&self) -> Option<&Condition> {
        let status = self.status.as_ref()?;
        conditions::find(&status.conditions, conditions::READY)
    }
}
