//! Backups: `/v1/backups` and `/v1/instances/{id}/backups` (decisions, section 7).

use serde::{Deserialize, Serialize};
use utoipa::{PartialSchema as _, ToSchema};

use crate::{schema, time::Seconds};

/// A backup of an instance.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, ToSchema)]
pub struct Backup {
    /// Identifier.
    #[schema(schema_with = schema::backup_id)]
    pub id: String,
    /// Identifier of the instance; `null` if there never was such an instance.
    #[schema(required, pattern = "^i-[a-z0-9]{16}$", example = "i-4q7hz0c9k2m8x1ta")]
    pub instance_id: Option<String>,
    /// Display name of the instance when the backup began.
    #[schema(example = "web-1")]
    pub instance_name: String,
    /// Whether the instance has been deleted.
    pub instance_deleted: bool,
    /// Display name; need not be unique.
    #[schema(example = "before-upgrade")]
    pub name: String,
    /// Status of the backup.
    #[schema(schema_with = BackupStatus::schema)]
    pub status: BackupStatus,
    /// Whether the daily schedule made it. The last seven of these are kept; others stay until they are deleted.
    pub scheduled: bool,
    /// Size in GB; `null` until the backup is completed.
    #[schema(required, minimum = 0, example = 12.4)]
    pub size_gb: Option<f64>,
    /// Disk of the instance in GB. The backup can be restored to a disk that is as large.
    #[schema(required, example = 40)]
    pub disk_size: Option<i32>,
    /// Image of the instance. A restored instance has it.
    #[schema(required, example = "debian-13")]
    pub image: Option<String>,
    /// Region of the instance. Only a backup of a simulated server can be restored in another one.
    #[schema(required, example = "fr-par-1")]
    pub region: Option<String>,
    /// When the backup was requested.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:00:00Z")]
    pub created_at: Seconds,
    /// When it was completed, or failed; `null` until then.
    #[schema(required, value_type = Option<String>, format = DateTime, example = "2026-11-21T10:00:48Z")]
    pub completed_at: Option<Seconds>,
    /// Why it failed; `null` unless it did.
    #[schema(required)]
    pub error: Option<BackupError>,
}

/// Why a backup failed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct BackupError {
    /// For programs: `instance_deleted`, `instance_not_ready`, `backup_deleted`, `resource_limit_exceeded`, `timeout`, or a code of the
    /// provider.
    #[schema(value_type = String, example = "instance_deleted")]
    pub code: String,
    /// For people.
    #[schema(value_type = String, example = "the instance was deleted before the backup was completed")]
    pub message: String,
}

/// A backup to begin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[schema(example = json!({"name": "before-upgrade"}))]
#[serde(deny_unknown_fields)]
pub struct CreateBackup {
    /// Display name; need not be unique. By default the name of the Backup object.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(
        nullable = false,
        min_length = 1,
        max_length = 63,
        pattern = "^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$"
    )]
    pub name: Option<String>,
}

/// The status of a backup.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, ToSchema, strum::AsRefStr, strum::Display,
)]
#[schema(
    description = "`running`: it is being made, or waits until the instance is running or stopped. `completed`: it can be restored. `failed`: see `error`.",
    example = "completed"
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum BackupStatus {
    /// It is being made, or waits until the instance is running or stopped.
    Running,
    /// It can be restored.
    Completed,
    /// It could not be made; see `error`.
    Failed,
}
