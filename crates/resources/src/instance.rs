//! `Instance`: one virtual server. `spec` is the desired state, `status` the observed one.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{CustomResource, KubeSchema, ResourceExt as _};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{
    alert::{Alert, MAX_ALERTS},
    conditions,
    event::{HasOutbox, OutboxEntry},
    ids,
    metering::Metering,
    names, origin,
    plan::Plan,
    times, traceparent, validation,
};

/// Keeps an Instance until its server is gone.
pub const FINALIZER: &str = "stellage.dev/server";

/// Annotation with the Idempotency-Keys of the latest actions. Written in the same patch as the request's nonce, so that
/// the same key never acts twice.
pub const IDEMPOTENCY_ANNOTATION: &str = "stellage.dev/idempotency-keys";

/// Annotation with the generation of the spec that was last written through REST, and the id of the API key that asked for it, such as
/// `3 key-7hz0c9k2`. Written in the same patch as that spec. Nobody else may write it (the admission policy requested-by.stellage.dev), and
/// after a change of the spec by somebody else, its generation is no longer the current one.
pub const REQUESTED_BY_ANNOTATION: &str = "stellage.dev/requested-by";

/// Who asked for a spec that was not written through REST: the API server's audit log says more.
pub const REQUESTED_IN_KUBERNETES: &str = "kubernetes";

/// Label, `true`, of the Secrets that instances may use although they are not theirs. Without it any Secret of the namespace would be
/// copied to a server for whoever may create an Instance.
pub const USER_DATA_LABEL: &str = "stellage.dev/user-data-secret";

/// Key in the Secret that holds the user data, unless `spec.userDataRef.key` names another.
pub const USER_DATA_KEY: &str = "user-data";

/// Whether a server should be running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum PowerState {
    /// Powered on.
    #[default]
    Running,
    /// Powered off.
    Stopped,
}

/// Where an instance is in its lifecycle (decisions, section 3).
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Deserialize,
    Serialize,
    JsonSchema,
    utoipa::ToSchema,
    strum::IntoStaticStr,
    strum::VariantArray,
    strum::Display,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum InstanceState {
    /// The server is being created.
    Provisioning,
    /// Powered on.
    Running,
    /// Shutting down, or having its power cut.
    Stopping,
    /// Powered off.
    Stopped,
    /// Being powered on.
    Starting,
    /// Being rebooted.
    Rebooting,
    /// Changing to another plan.
    Resizing,
    /// Being reinstalled from an image.
    Rebuilding,
    /// The last operation failed or is overdue. Clears by itself when the provider recovers.
    Error,
    /// Being deleted. Never shown through REST, where the id is unknown as soon as DELETE has been accepted.
    Deleting,
}

impl InstanceState {
    /// Every state.
    pub const ALL: [Self; 10] = [
        Self::Provisioning,
        Self::Running,
        Self::Stopping,
        Self::Stopped,
        Self::Starting,
        Self::Rebooting,
        Self::Resizing,
        Self::Rebuilding,
        Self::Error,
        Self::Deleting,
    ];

    /// The state as REST and `status.state` spell it.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// What the provider has been asked to do.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    Deserialize,
    Serialize,
    JsonSchema,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
pub enum OperationKind {
    /// Create the server.
    Create,
    /// Power on.
    Start,
    /// Ask the guest to shut down; cut the power after a grace period.
    Stop,
    /// Cut the power.
    PowerOff,
    /// Power-cycle; a pending plan takes effect.
    Reboot,
    /// Change to another plan, with a power cycle if the server is running.
    Resize,
    /// Reinstall from an image.
    Rebuild,
    /// Remove the server.
    Delete,
}

impl OperationKind {
    /// The kind as `status.operation.kind` spells it.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether the operation makes the server if there is none.
    pub const fn makes_server(self) -> bool {
        !matches!(self, Self::Stop | Self::PowerOff | Self::Delete)
    }
}

/// What a spec asked to install on a server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RefusedInstallation {
    /// `spec.image`.
    pub image: String,
    /// `spec.restoreFrom`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_from: Option<String>,
    /// `spec.rebuildRequestedAt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuild_requested_at: Option<String>,
}

/// The operation in progress. One that interrupts a server is written before the provider is called, so that after a crash in
/// between it is repeated instead of another one started.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// What the operation does.
    pub kind: OperationKind,
    /// When it began; of a creation, when the instance was created. With the kind, this tells the provider one operation from
    /// another, so it never changes.
    #[schemars(schema_with = "times::time")]
    pub started_at: Timestamp,
    /// The time from which its duration counts, if that is not startedAt: of a creation, when the controller accepted the
    /// instance; or the clock was set back since the operation began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub counted_from: Option<Timestamp>,
    /// Power state at the end of the operation.
    pub ends_in: PowerState,
    /// Plan in effect at the end of the operation.
    pub plan: Plan,
    /// Image installed at the end of the operation.
    pub image: String,
    /// Name of the Backup restored by the operation, if it restores one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_from: Option<String>,
    /// The guest did not shut down within the grace period, so its power is cut.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forced: bool,
    /// The W3C traceparent of the request that the operation carries out, if that is traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "traceparent::optional")]
    pub traceparent: Option<String>,
}

impl Operation {
    /// What tells one operation from another: its kind and its beginning.
    pub const fn id(&self) -> (OperationKind, Timestamp) {
        (self.kind, self.started_at)
    }

    /// The time from which its duration counts.
    pub fn counted_from(&self) -> Timestamp {
        self.counted_from.unwrap_or(self.started_at)
    }
}

/// Where the user data is stored.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UserDataReference {
    /// Name of a Secret in the same namespace. It must carry the label `stellage.dev/user-data-secret: "true"`, or be the
    /// instance's own: one that Stellage created for it, with the Instance as its controlling owner. No other Secret is used.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = names::of_object())]
    pub name: String,
    /// Key in that Secret. Its value is what cloud-init takes as user data: text, or gzip of it, also in base64; at most 32 KiB.
    #[serde(default = "default_user_data_key")]
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

fn default_user_data_key() -> String {
    USER_DATA_KEY.to_owned()
}

/// The desired state of one virtual server.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[kube(
    group = "stellage.dev",
    version = "v1",
    kind = "Instance",
    plural = "instances",
    shortname = "inst",
    category = "stellage",
    namespaced,
    status = "InstanceStatus",
    derive = "PartialEq",
    doc = "One virtual server of the account whose namespace it is in.",
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Plan", type_ = "string", json_path = ".status.plan"),
    printcolumn(name = "Region", type_ = "string", json_path = ".spec.region"),
    printcolumn(name = "IP", type_ = "string", json_path = ".status.ipAddress"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].reason",
        priority = 1
    ),
    printcolumn(
        name = "Alert",
        type_ = "string",
        json_path = ".status.alerts[?(@.phase=='Firing')].rule",
        priority = 1
    ),
    printcolumn(name = "Display-Name", type_ = "string", json_path = ".spec.name", priority = 1),
    printcolumn(name = "ID", type_ = "string", json_path = ".status.id", priority = 1),
    printcolumn(name = "Image", type_ = "string", json_path = ".status.image", priority = 1),
    printcolumn(
        name = "Requested-By",
        type_ = "string",
        json_path = ".status.lastRequestedBy",
        priority = 1
    ),
    printcolumn(
        name = "IPv6",
        type_ = "string",
        json_path = ".status.ipv6Address",
        priority = 1
    ),
    validation = Rule::new("size(self.metadata.name) <= 63 || has(self.spec.name)")
        .message("metadata.name is also the instance's name, so it must be at most 63 characters; or set spec.name"),
    selectable = ".spec.region",
    selectable = ".spec.deletionProtection",
    selectable = ".status.state"
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.privateNetwork) ? has(oldSelf.privateNetwork) && self.privateNetwork == oldSelf.privateNetwork : !has(oldSelf.privateNetwork)")
    .message("spec.privateNetwork is immutable: create another instance in that network instead"))]
#[x_kube(validation = Rule::new("has(self.sshKeys) ? has(oldSelf.sshKeys) && self.sshKeys == oldSelf.sshKeys : !has(oldSelf.sshKeys)")
    .message("spec.sshKeys is immutable: keys are installed when the server is created; create another instance instead"))]
#[x_kube(validation = Rule::new("has(self.userDataRef) ? has(oldSelf.userDataRef) && self.userDataRef == oldSelf.userDataRef : !has(oldSelf.userDataRef)")
    .message("spec.userDataRef is immutable: user data is used when the server is created; create another instance instead"))]
#[x_kube(validation = Rule::new("!(has(self.deletionProtection) && self.deletionProtection && has(oldSelf.deletionProtection) && oldSelf.deletionProtection) || self.image == oldSelf.image && (!has(self.rebuildRequestedAt) || has(oldSelf.rebuildRequestedAt) && self.rebuildRequestedAt == oldSelf.rebuildRequestedAt)")
    .message("spec.deletionProtection is true: set it to false before reinstalling the server, which erases its disk"))]
pub struct InstanceSpec {
    /// Display name and host name: 1 to 63 letters, digits, '.' or '-'. Need not be unique. Default: metadata.name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$')").message("must be 1 to 63 letters, digits, '.' or '-', with a letter or digit at both ends"))]
    pub name: Option<String>,

    /// Size and price class. A change takes effect at once, with a reboot if the server is running, unless planOnReboot is the
    /// same plan. The disk never shrinks.
    pub plan: Plan,

    /// Set to the same plan as spec.plan to have that plan take effect at the next reboot, or stop and start. Any other value has
    /// no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Plan")]
    pub plan_on_reboot: Option<Plan>,

    /// Region code `<country>-<city>-<n>`, such as fr-par-1. Immutable.
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z]{2}-[a-z]{3,}-[1-9][0-9]*$')").message("must be a region code <country>-<city>-<n> such as fr-par-1"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("is immutable: create another instance in that region instead"))]
    pub region: String,

    /// Operating-system image, such as debian-13. Changing it reinstalls the server and erases its disk.
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')").message("must be an image identifier such as debian-13: lower-case letters, digits, '.' or '-'"))]
    pub image: String,

    /// SSH public keys that may log in, one OpenSSH line each; at most 16,384 characters in all. Immutable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "ssh_keys")]
    pub ssh_keys: Vec<String>,

    /// The Secret in the same namespace that holds the user data: what the server does at its first boot, and again when it is
    /// reinstalled, as cloud-init takes it. It is read then, and no server is installed without it. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data_ref: Option<UserDataReference>,

    /// Name of the PrivateNetwork to attach the server to, `pn-…`, in the same namespace and region. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^pn-[a-z0-9]+(-[a-z0-9]+)*$')").message("must be the identifier of a private network, pn- followed by lower-case letters and digits"))]
    pub private_network: Option<String>,

    /// Whether the instance is backed up daily, at a time of day that follows from its id. The last seven of these backups are
    /// kept.
    #[serde(default)]
    pub backup_enabled: bool,

    /// Whether the server's usage is sampled every minute, and alerts are fired by the rules of the catalogue.
    #[serde(default)]
    pub monitoring_enabled: bool,

    /// Free-form labels for finding instances, at most 50.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "tags")]
    pub tags: Vec<String>,

    /// Whether the server should be running: Running or Stopped. Stopped asks the guest to shut down, and cuts the power
    /// after a grace period. Changing it from Stopped to Running starts the server.
    #[serde(default)]
    pub power_state: PowerState,

    /// Set to a new RFC 3339 time, such as the current one, to start a server that is off although powerState is Running
    /// (its guest shut itself down). Any value that differs from the one in status is acted on, whatever time it names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_rfc3339")]
    pub start_requested_at: Option<String>,

    /// Set to a new RFC 3339 time to cut the server's power at once. The server stays off only if powerState is Stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_rfc3339")]
    pub power_off_requested_at: Option<String>,

    /// Set to a new RFC 3339 time to reboot the server; a pending plan takes effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_rfc3339")]
    pub reboot_requested_at: Option<String>,

    /// Set to a new RFC 3339 time to reinstall the server from spec.image. This erases its disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_rfc3339")]
    pub rebuild_requested_at: Option<String>,

    /// Name of the Backup to restore when the server is created or reinstalled. spec.image must be that backup's image, and the
    /// disk at least as large as its disk. To restore it to an existing server, also set rebuildRequestedAt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = names::of_object())]
    pub restore_from: Option<String>,

    /// Whether deletion of this instance, and the reinstallation of its server, are refused, through REST and with kubectl.
    #[serde(default)]
    pub deletion_protection: bool,
}

/// The observed state of the server, and how much of the spec has been acted on.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStatus {
    /// Public identifier, `i-…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,

    /// Where the instance is in its lifecycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "InstanceState")]
    pub state: Option<InstanceState>,

    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int64"))]
    pub observed_generation: Option<i64>,

    /// Who last asked for a change of the spec: the id of the API key, or kubernetes if it was not changed through REST.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_requested_by: Option<String>,

    /// IPv4 address. Once known, it is never removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_address: Option<String>,

    /// IPv6 address. Once known, it is never removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6_address: Option<String>,

    /// Address in the private network. Once known, it is never removed.
    #[serde(default, rename = "privateIPAddress", skip_serializing_if = "Option::is_none")]
    pub private_ip_address: Option<String>,

    /// The plan in effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Plan")]
    pub plan: Option<Plan>,

    /// The installed image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,

    /// Disk size in GB. It never shrinks.
    #[serde(default, rename = "diskSizeGB", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int32"))]
    pub disk_size_gb: Option<i32>,

    /// Whether the server is running, as last observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PowerState")]
    pub power: Option<PowerState>,

    /// The spec.powerState that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PowerState")]
    pub power_state: Option<PowerState>,

    /// The operation in progress, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,

    /// The spec.startRequestedAt that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_requested_at: Option<String>,

    /// The spec.powerOffRequestedAt that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_off_requested_at: Option<String>,

    /// The spec.rebootRequestedAt that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot_requested_at: Option<String>,

    /// The spec.rebuildRequestedAt that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuild_requested_at: Option<String>,

    /// Name of the Backup that was last restored to the server, if it has not been reinstalled from an image since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored_from: Option<String>,

    /// The installation that the spec asks for and that cannot be done; the condition Ready says why. The instance is not
    /// reinstalled until that changes; all else that the spec asks for is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_installation: Option<RefusedInstallation>,

    /// The plan that the spec asks for and for which the account's quotas have no room; the condition Ready says more. The plan in effect
    /// stays until that changes; all else that the spec asks for is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Plan")]
    pub refused_plan: Option<Plan>,

    /// Whether the server is kept off because the account is suspended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,

    /// When the next backup of the daily schedule is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub next_backup_at: Option<Timestamp>,

    /// The hours for which the instance is billed, as far as they may not have been invoiced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metering: Option<Metering>,

    /// When the server was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub provisioned_at: Option<Timestamp>,

    /// When the server was last powered on; network counters count from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub started_at: Option<Timestamp>,

    /// When this status last changed in a way that an account holder can see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub updated_at: Option<Timestamp>,

    /// The power state that the last power event announced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PowerState")]
    pub announced_power: Option<PowerState>,

    /// Sequence number of the last event.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    #[schemars(extend("format" = "int64"))]
    pub event_sequence: i64,

    /// Events not yet handed to all webhooks of the account. Each is written together with the change that it reports, and
    /// removed once every webhook has received it or has a Delivery for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub outbox: Vec<OutboxEntry>,

    /// The alerts that are firing, and the last ones that have ended: at most four of each rule. Those that ended more than a day
    /// ago are removed with the next change of the status.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_ALERTS))]
    pub alerts: Vec<Alert>,

    /// The value of the annotation stellage.dev/traceparent that was last taken up with a change of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "traceparent::optional")]
    pub traceparent: Option<String>,

    /// The provider's own data about this server.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub provider_state: BTreeMap<String, String>,

    /// Ready, Reconciling, Stalled; RestartRequired while a plan change waits for a reboot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions::schema")]
    pub conditions: Vec<Condition>,
}

impl Instance {
    /// The public id, a pure function of the object (decisions, section 2).
    pub fn id(&self) -> String {
        ids::instance_id(
            self.metadata.name.as_deref().unwrap_or_default(),
            origin::uid(&self.metadata),
        )
    }

    /// Who asked for the current spec: the id of an API key, or [`REQUESTED_IN_KUBERNETES`].
    pub fn requested_by(&self) -> &str {
        let noted = self.annotation(REQUESTED_BY_ANNOTATION);
        let noted = noted.and_then(|noted| noted.split_once(' '));
        let current = noted.filter(|(generation, _)| generation.parse().ok() == self.metadata.generation);
        current.map_or(REQUESTED_IN_KUBERNETES, |(_, key)| key)
    }

    /// The display name: `spec.name`, else `metadata.name`.
    pub fn display_name(&self) -> &str {
        self.spec
            .name
            .as_deref()
            .or(self.metadata.name.as_deref())
            .unwrap_or_default()
    }

    /// When the object was created.
    pub fn created_at(&self) -> Timestamp {
        origin::created_at(&self.metadata).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Gives back the room for more entries that parsing leaves in lists: half a kilobyte.
    pub fn shrink_to_fit(&mut self) {
        self.spec.tags.shrink_to_fit();
        self.spec.ssh_keys.shrink_to_fit();
        if let Some(status) = &mut self.status {
            status.conditions.shrink_to_fit();
            status.outbox.shrink_to_fit();
            status.alerts.shrink_to_fit();
            if let Some(metering) = &mut status.metering {
                metering.changes.shrink_to_fit();
            }
        }
    }

    /// Whether this instance may use a Secret: its own, or one with the [`USER_DATA_LABEL`].
    pub fn may_use(&self, secret: &Secret) -> bool {
        let labels = secret.metadata.labels.as_ref();
        let is_labelled = labels.and_then(|labels| labels.get(USER_DATA_LABEL));
        is_labelled.is_some_and(|value| value == "true") || self.owns(secret)
    }

    /// Whether a Secret is the instance's own: this Instance is its controlling owner.
    pub fn owns(&self, secret: &Secret) -> bool {
        super::controls(self, &secret.metadata)
    }

    /// Whether the object is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether [`FINALIZER`] is on the object.
    pub fn has_finalizer(&self) -> bool {
        self.finalizers().iter().any(|f| f == FINALIZER)
    }

    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }
}

impl HasOutbox for Instance {
    const KIND: &'static str = "Instance";

    fn outbox(&self) -> &[OutboxEntry] {
        self.status.as_ref().map_or(&[], |status| &status.outbox)
    }
}

fn ssh_keys(_: &mut SchemaGenerator) -> Schema {
    let others = validation::OTHER_SSH_FORMATS.iter();
    let other = |(begin, must): &(&str, &str)| format!("self.startsWith('{begin}') ? '{must}' : ");
    let other_format = format!(
        "{}self.matches('[ \\t](ssh|ecdsa|sk)-') ? 'must have no options in front of the key, such as ' + self.find('^[ \\t]*[A-Za-z0-9-]+') : \"must be one line of an OpenSSH public key, such as 'ssh-ed25519 AAAA… you@example.com'\"",
        others.map(other).collect::<String>()
    );
    json_schema!({
        "type": "array", "maxItems": 20,
        "x-kubernetes-validations": [{
            "rule": format!("self.map(key, key.size()).sum() <= {}", validation::MAX_SSH_KEYS_CHARACTERS),
            "message": validation::too_long_ssh_keys(),
        }],
        "items": {
            "type": "string", "maxLength": 8192, "description": "One OpenSSH public key: type, base64, and an optional comment.",
            "x-kubernetes-validations": [
                { "rule": "!self.contains('PRIVATE KEY')", "message": "must be a public key; this is a private key, which you should never share" },
                { "rule": "self.contains('PRIVATE KEY') || self.matches('^[ \\t]*(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)|sk-ssh-ed25519@openssh[.]com|sk-ecdsa-sha2-nistp256@openssh[.]com)[ \\t]+[A-Za-z0-9+/]+=*([ \\t][^\\r\\n]*)?[\\r\\n]*$')",
                  "message": "must be one line of an OpenSSH public key, such as 'ssh-ed25519 AAAA… you@example.com'",
                  "messageExpression": other_format },
            ]
        }
    })
}

fn tags(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "maxItems": 50,
        "items": {
            "type": "string", "maxLength": 63, "description": "One tag: 1 to 63 of letters, digits, '_', '.', ':' and '-'.",
            "x-kubernetes-validations": [{
                "rule": "self.matches('^[A-Za-z0-9_.:-]+$')",
                "message": "must be 1 to 63 letters, digits, '_', '.', ':' or '-'",
            }]
        }
    })
}
