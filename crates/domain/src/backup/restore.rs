//! Whether a backup can be restored to an instance.

use resources::{
    Backup, BackupPhase, BackupSource, Instance, Refusal,
    conditions::{READY, find},
    refusal::Cause,
};

/// Reason in the conditions of a Backup that will be deleted once it has been restored.
pub(super) const HELD: &str = "RestorePending";

/// Why the Backup with this name cannot be restored to an instance whose spec names it. `backup` is that Backup, if
/// there is one; `moves` says whether one can be moved from one region to another.
pub fn complaint(
    name: &str,
    backup: Option<&Backup>,
    instance: &Instance,
    moves: impl Fn(&str, &str) -> bool,
) -> Option<Refusal> {
    let source = backup.filter(|backup| !backup.is_deleting() || is_held(backup));
    match source.and_then(completed) {
        Some(source) if !moves(&source.region, &instance.spec.region) => Some(Refusal {
            cause: Cause::BackupRegionDiffers,
            message: format!(
                "spec.restoreFrom {name} is in region {}, and cannot be restored in region {}; name a backup of that region, or remove spec.restoreFrom",
                source.region, instance.spec.region
            ),
        }),
        Some(source) => misfit(name, source, instance),
        None => Some(Refusal {
            cause: Cause::BackupUnavailable,
            message: format!(
                "spec.restoreFrom {name} is not a completed Backup in this namespace; name one that kubectl get backups shows as Completed, or remove spec.restoreFrom to install spec.image"
            ),
        }),
    }
}

/// Whether a backup can be restored to an instance, as far as that does not depend on whether it is being deleted, nor on regions.
pub fn fits(backup: &Backup, instance: &Instance) -> bool {
    let name = backup.metadata.name.as_deref().unwrap_or_default();
    completed(backup).is_some_and(|source| misfit(name, source, instance).is_none())
}

/// Whether a deleted backup waits until it has been restored. Its data is there until then.
pub(super) fn is_held(backup: &Backup) -> bool {
    let conditions = backup.status.as_ref().map(|status| status.conditions.as_slice());
    find(conditions.unwrap_or_default(), READY).is_some_and(|ready| ready.reason == HELD)
}

fn completed(backup: &Backup) -> Option<&BackupSource> {
    let is_completed = backup.phase() == BackupPhase::Completed;
    backup.status.as_ref().filter(|_| is_completed)?.source.as_ref()
}

fn misfit(name: &str, source: &BackupSource, instance: &Instance) -> Option<Refusal> {
    let image = &instance.spec.image;
    if source.image != *image {
        return Some(Refusal {
            cause: Cause::BackupImageDiffers,
            message: format!(
                "spec.image {image} is not the image of Backup {name}; set it to {}, or remove spec.restoreFrom",
                source.image
            ),
        });
    }
    let known = instance.status.as_ref().and_then(|status| status.disk_size_gb);
    let disk = known.unwrap_or_else(|| instance.spec.plan.size().disk_gb);
    (source.disk_size_gb > disk).then(|| Refusal {
        cause: Cause::BackupTooLarge,
        message: format!(
            "spec.restoreFrom {name} has a disk of {} GB, which does not fit on one of {disk} GB; choose a larger plan, or remove spec.restoreFrom",
            source.disk_size_gb
        ),
    })
}
