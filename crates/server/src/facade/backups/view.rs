//! Backups as responses show them (decisions, section 7).

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::{
    ToSchema,
    openapi::{Ref, RefOr, schema::Schema},
};

use crate::{
    facade::response::view::{Seconds, schema},
    service::{
        backups::ShownBackup,
        id::{BackupId, PublicId as _},
    },
};

/// A backup of an instance.
#[derive(Serialize, ToSchema)]
#[schema(as = Backup)]
pub struct BackupView<'a> {
    /// Identifier.
    #[schema(schema_with = backup_id)]
    id: BackupId,
    /// Identifier of the instance; `null` if there never was such an instance.
    #[schema(required, pattern = "^i-[a-z0-9]{16}$", example = "i-4q7hz0c9k2m8x1ta")]
    instance_id: Option<&'a str>,
    /// Display name of the instance when the backup began.
    #[schema(example = "web-1")]
    instance_name: &'a str,
    /// Whether the instance has been deleted.
    instance_deleted: bool,
    /// Display name; need not be unique.
    #[schema(example = "before-upgrade")]
    name: &'a str,
    /// Status of the backup.
    #[schema(schema_with = backup_status)]
    status: &'static str,
    /// Whether the daily schedule made it. The last seven of these are kept; others stay until they are deleted.
    scheduled: bool,
    /// Size in GB; `null` until the backup is completed.
    #[schema(required, minimum = 0, example = 12.4)]
    size_gb: Option<f64>,
    /// Disk of the instance in GB. The backup can be restored to a disk that is as large.
    #[schema(required, example = 40)]
    disk_size: Option<i32>,
    /// Image of the instance. A restored instance has it.
    #[schema(required, example = "debian-13")]
    image: Option<&'a str>,
    /// When the backup was requested.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:00:00Z")]
    created_at: Seconds,
    /// When it was completed, or failed; `null` until then.
    #[schema(required, value_type = Option<String>, format = DateTime, example = "2026-11-21T10:00:48Z")]
    completed_at: Option<Seconds>,
    /// Why it failed; `null` unless it did.
    #[schema(required)]
    error: Option<BackupErrorView<'a>>,
}

/// Why a backup failed.
#[derive(Serialize, ToSchema)]
#[schema(as = BackupError)]
pub struct BackupErrorView<'a> {
    /// For programs: `instance_deleted`, `timeout`, or a code of the provider.
    #[schema(value_type = String, example = "instance_deleted")]
    code: &'a str,
    /// For people.
    #[schema(value_type = String, example = "the instance was deleted before the backup was completed")]
    message: &'a str,
}

impl<'a> BackupView<'a> {
    /// A backup as lists and its detail show it.
    pub fn of(shown: &'a ShownBackup) -> Self {
        let backup = &*shown.item.backup;
        let (status, source) = (backup.status.as_ref(), shown.source.as_ref());
        Self {
            id: shown.item.id,
            instance_id: shown.instance_id.as_deref(),
            instance_name: source.map_or(&backup.spec.instance, |source| &source.name),
            instance_deleted: shown.is_instance_deleted,
            name: backup.display_name(),
            status: shown.status(),
            scheduled: backup.is_scheduled(),
            size_gb: status.and_then(|status| status.size_gb),
            disk_size: source.map(|source| source.disk_size_gb),
            image: source.map(|source| source.image.as_str()),
            created_at: Seconds(backup.created_at()),
            completed_at: status.and_then(|status| status.completed_at).map(Seconds),
            error: status
                .and_then(|status| status.error.as_ref())
                .map(|error| BackupErrorView {
                    code: &error.code,
                    message: &error.message,
                }),
        }
    }

    pub(super) const fn instance_name(&self) -> &str {
        self.instance_name
    }
}

fn backup_id() -> RefOr<Schema> {
    Ref::from_schema_name("BackupId").into()
}

fn backup_status() -> RefOr<Schema> {
    schema(&json!({
        "type": "string", "enum": ["running", "completed", "failed"],
        "description": "`running`: it is being made, or waits until the instance is running or stopped. `completed`: it can be restored. `failed`: see `error`.",
    }))
}

/// Schemas shared by several answers that have no Rust type, by name.
pub(in crate::facade) fn shared_schemas() -> Value {
    let prefix = BackupId::PREFIX;
    json!({
        "BackupId": {
            "type": "string", "pattern": format!("^{prefix}[a-z0-9]{{16}}$"), "description": "Identifier of a backup.",
            "examples": [format!("{prefix}9c2m8x1ta4q7hz0k")],
        },
    })
}
