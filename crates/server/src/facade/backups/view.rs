//! Backups as responses show them (decisions, section 7).

use crate::service::backups::ShownBackup;
use api::{Backup, BackupError, Seconds};

/// A backup as lists and its detail show it.
pub fn backup(shown: &ShownBackup) -> Backup {
    let backup = &*shown.item.backup;
    let (status, source) = (backup.status.as_ref(), shown.source.as_ref());
    Backup {
        id: shown.item.id.to_string(),
        instance_id: shown.instance_id.clone(),
        instance_name: source
            .map_or(&backup.spec.instance, |source| &source.name)
            .clone(),
        instance_deleted: shown.is_instance_deleted,
        name: backup.display_name().to_owned(),
        status: shown.status(),
        scheduled: backup.is_scheduled(),
        size_gb: status.and_then(|status| status.size_gb),
        disk_size: source.map(|source| source.disk_size_gb),
        image: source.map(|source| source.image.clone()),
        region: source.map(|source| source.region.clone()),
        created_at: Seconds(backup.created_at()),
        completed_at: status.and_then(|status| status.completed_at).map(Seconds),
        error: status
            .and_then(|status| status.error.as_ref())
            .map(|error| BackupError {
                code: error.code.clone(),
                message: error.message.clone(),
            }),
    }
}
