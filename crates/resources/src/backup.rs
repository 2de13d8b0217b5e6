//! `Backup`: one backup of one instance. It outlives the instance.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema, ResourceExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Instance, conditions,
    event::{HasOutbox, OutboxEntry},
    ids, names, origin,
    plan::Plan,
    times,
};

/// Keeps a Backup until the provider has deleted its data, and its event has been delivered.
pub const FINALIZER: &str = "stellage.dev/backup";

/// Manual backups of one instance that count towards the limit: those that wait, run or are completed (decisions, section 8).
pub const DEFAULT_PER_INSTANCE: u32 = 30;
/// Manual backups of an account (decisions, section 8).
pub const DEFAULT_PER_ACCOUNT: u32 = 1000;

/// Which instance to back up. Immutable.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[kube(
    group = "stellage.dev",
    version = "v1",
    kind = "Backup",
    plural = "backups",
    shortname = "bkp",
    category = "stellage",
    namespaced,
    status = "BackupStatus",
    derive = "PartialEq",
    doc = "One backup of one instance of the account whose namespace it is in. It stays when the instance is deleted.",
    printcolumn(name = "Instance", type_ = "string", json_path = ".spec.instance"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Size-GB", type_ = "number", json_path = ".status.sizeGB"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Display-Name", type_ = "string", json_path = ".spec.name", priority = 1),
    printcolumn(name = "Scheduled-For", type_ = "date", json_path = ".spec.scheduledFor", priority = 1),
    printcolumn(name = "Image", type_ = "string", json_path = ".status.source.image", priority = 1),
    printcolumn(name = "Disk-GB", type_ = "integer", json_path = ".status.source.diskSizeGB", priority = 1),
    printcolumn(
        name = "Instance-Deleted",
        type_ = "boolean",
        json_path = ".status.instanceDeleted",
        priority = 1
    ),
    printcolumn(name = "Error", type_ = "string", json_path = ".status.error.code", priority = 1),
    printcolumn(name = "ID", type_ = "string", json_path = ".status.id", priority = 1),
    validation = Rule::new("size(self.metadata.name) <= 63 || has(self.spec.name)")
        .message("metadata.name is also the backup's name, so it must be at most 63 characters; or set spec.name"),
    selectable = ".spec.instance",
    selectable = ".status.phase"
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf").message("a Backup is immutable: delete it and create another"))]
pub struct BackupSpec {
    /// Name of the Instance to back up (its metadata.name), in the same namespace. The backup begins once the instance is
    /// running or stopped, and no other backup of it is under way.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = names::of_object())]
    pub instance: String,

    /// UID of the Instance. Without it, the Instance of that name is meant that there is when the operator first sees the
    /// Backup, or the next one. With it, the backup fails if there is no longer an Instance with this UID.
    #[serde(default, rename = "instanceUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub instance_uid: Option<String>,

    /// Display name: 1 to 63 letters, digits, '.' or '-'. Need not be unique. Default: metadata.name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$')").message("must be 1 to 63 letters, digits, '.' or '-', with a letter or digit at both ends"))]
    pub name: Option<String>,

    /// The time of the daily schedule that this backup was made for. Set by the operator alone; without it, the backup is a
    /// manual one, which the schedule never deletes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub scheduled_for: Option<Timestamp>,

    /// Whether this is the second try of a scheduled backup. Set by the operator alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retry: bool,
}

/// Where a backup is.
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
pub enum BackupPhase {
    /// It waits until the instance is running or stopped and no other backup of it is under way.
    Waiting,
    /// It is being made.
    Running,
    /// It can be restored.
    Completed,
    /// It could not be made.
    Failed,
}

impl BackupPhase {
    /// The phase as `status.phase` spells it.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The instance as it was when the backup began, or when the operator first saw the Backup.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupSource {
    /// Public identifier of the instance, `i-…`.
    pub id: String,
    /// UID of the Instance.
    pub uid: String,
    /// Display name of the instance.
    pub name: String,
    /// Region code.
    pub region: String,
    /// Plan in effect.
    pub plan: Plan,
    /// Installed image; a restored instance has it.
    pub image: String,
    /// Size of its disk in GB; a restored instance needs one as large.
    #[serde(rename = "diskSizeGB")]
    #[schemars(extend("format" = "int32"))]
    pub disk_size_gb: i32,
    /// IPv4 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_address: Option<String>,
}

impl BackupSource {
    /// The source of a backup that begins now.
    pub fn of(instance: &Instance) -> Self {
        let status = instance.status.as_ref();
        let plan = status
            .and_then(|status| status.plan)
            .unwrap_or(instance.spec.plan);
        let disk = status.and_then(|status| status.disk_size_gb);
        Self {
            id: instance.id(),
            uid: origin::uid(&instance.metadata).to_owned(),
            name: instance.display_name().to_owned(),
            region: instance.spec.region.clone(),
            plan,
            image: status
                .and_then(|status| status.image.clone())
                .unwrap_or_else(|| instance.spec.image.clone()),
            disk_size_gb: disk.unwrap_or_else(|| plan.size().disk_gb),
            ip_address: status.and_then(|status| status.ip_address.clone()),
        }
    }
}

/// Why a backup failed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct BackupError {
    /// For programs: `instance_deleted`, `instance_not_ready`, `backup_deleted`, `resource_limit_exceeded`, `timeout`, or a code of the provider.
    #[schemars(length(max = 64))]
    pub code: String,
    /// For people.
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// What has become of the backup.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupStatus {
    /// Public identifier, `bkp_…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,

    /// Waiting, Running, Completed or Failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "BackupPhase")]
    pub phase: Option<BackupPhase>,

    /// The instance as it was when the backup began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<BackupSource>,

    /// Whether the instance has been deleted since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub instance_deleted: bool,

    /// When the backup began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub started_at: Option<Timestamp>,

    /// When the backup was completed, or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub completed_at: Option<Timestamp>,

    /// Size of the backup in GB.
    #[serde(default, rename = "sizeGB", skip_serializing_if = "Option::is_none")]
    pub size_gb: Option<f64>,

    /// Why the backup failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<BackupError>,

    /// Whether nothing is left to do about a scheduled backup that failed: it has been tried once more, or will not be.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retried: bool,

    /// Whether the provider may still have data of a backup that failed. It is being deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub data_left: bool,

    /// Sequence number of the last event.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    #[schemars(extend("format" = "int64"))]
    pub event_sequence: i64,

    /// The event of the backup's end, until every webhook of the account has received it or has a Delivery for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub outbox: Vec<OutboxEntry>,

    /// The provider's own data about this backup.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub provider_state: BTreeMap<String, String>,

    /// Ready (it can be restored), Reconciling, Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions::schema")]
    pub conditions: Vec<Condition>,
}

impl Backup {
    /// The public id, a pure function of the object (decisions, section 2).
    pub fn id(&self) -> String {
        ids::backup_id(
            self.metadata.name.as_deref().unwrap_or_default(),
            origin::uid(&self.metadata),
        )
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

    /// Whether the object is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether [`FINALIZER`] is on the object.
    pub fn has_finalizer(&self) -> bool {
        self.finalizers().iter().any(|f| f == FINALIZER)
    }

    /// Whether it is being deleted and does not wait for the operator, so that nobody ends it.
    pub fn is_abandoned(&self) -> bool {
        self.is_deleting() && !self.has_finalizer()
    }

    /// Whether the schedule made it.
    pub const fn is_scheduled(&self) -> bool {
        self.spec.scheduled_for.is_some()
    }

    /// The phase; `Waiting` before the controller has seen it.
    pub fn phase(&self) -> BackupPhase {
        self.status
            .as_ref()
            .and_then(|status| status.phase)
            .unwrap_or(BackupPhase::Waiting)
    }

    /// Whether it waits or runs.
    pub fn is_unfinished(&self) -> bool {
        matches!(self.phase(), BackupPhase::Waiting | BackupPhase::Running)
    }

    /// Whether it has failed, and the provider may still have data of it.
    pub fn has_data_left(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.data_left)
    }

    /// UID of its instance, as far as it is known.
    pub fn source_uid(&self) -> Option<&str> {
        let source = self.status.as_ref().and_then(|status| status.source.as_ref());
        source
            .map(|source| source.uid.as_str())
            .or(self.spec.instance_uid.as_deref())
    }

    /// Public identifier of its instance; `None` if there has been no Instance of that name yet.
    pub fn instance_id(&self) -> Option<String> {
        let source = self.status.as_ref().and_then(|status| status.source.as_ref());
        let (name, uid) = (&self.spec.instance, self.spec.instance_uid.as_deref());
        source.map(|source| source.id.clone()).or_else(|| {
            let is_known = uid.is_some() || ids::is_instance_id(name);
            is_known.then(|| ids::instance_id(name, uid.unwrap_or_default()))
        })
    }

    /// Whether it is a backup of this instance.
    pub fn is_of(&self, instance: &Instance) -> bool {
        let uid = origin::uid(&instance.metadata);
        Some(self.spec.instance.as_str()) == instance.metadata.name.as_deref()
            && self.source_uid().is_none_or(|source| source == uid)
    }
}

impl HasOutbox for Backup {
    const KIND: &'static str = "Backup";

    fn outbox(&self) -> &[OutboxEntry] {
        self.status.as_ref().map_or(&[], |status| &status.outbox)
    }
}
