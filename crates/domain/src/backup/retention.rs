//! Which backups are deleted automatically, and how many there may be.

use std::cmp::Reverse;

use jiff::Timestamp;

use resources::{Backup, BackupPhase};

/// Completed scheduled backups that are kept per instance (decisions, section 7). As many failed ones are kept, for
/// people to read.
pub const KEPT: usize = 7;

/// Failed manual backups that are kept per instance (decisions, section 7), and failed ones of deleted instances per account.
pub const FAILED_KEPT: usize = 10;

/// Whether a backup has been replaced by newer ones, so that it is deleted. `others` are the backups of the same instance; the
/// backup itself may be among them. Completed manual backups are never replaced.
pub fn is_replaced<'a>(backup: &Backup, others: impl IntoIterator<Item = &'a Backup>) -> bool {
    let phase = backup.phase();
    let kept = match (phase, backup.is_scheduled()) {
        (BackupPhase::Completed | BackupPhase::Failed, true) if !needs_retry(backup) => KEPT,
        (BackupPhase::Failed, false) => FAILED_KEPT,
        _ => return false,
    };
    let newer = others.into_iter().filter(|other| {
        other.is_scheduled() == backup.is_scheduled()
            && !other.is_deleting()
            && other.phase() == phase
            && order(other) > order(backup)
    });
    newer.count() >= kept
}

/// Whether a failed scheduled backup may still have to be tried once more.
pub fn needs_retry(backup: &Backup) -> bool {
    let has_been = backup.status.as_ref().is_some_and(|status| status.retried);
    backup.is_scheduled() && !backup.spec.retry && backup.phase() == BackupPhase::Failed && !has_been
}

/// Orders backups of an instance by age: scheduled ones by the time for which each was made, then first and second try.
fn order(backup: &Backup) -> impl Ord + use<'_> {
    (
        backup.spec.scheduled_for,
        backup.spec.retry,
        backup.created_at(),
        backup.metadata.name.as_deref(),
    )
}

/// Whether a backup counts when a manual one is to be made: manual ones that wait, run or are completed, and completed
/// scheduled ones of deleted instances, which nothing replaces.
pub fn counts(backup: &Backup) -> bool {
    let counts = if backup.is_scheduled() {
        is_of_deleted(backup) && backup.phase() == BackupPhase::Completed
    } else {
        backup.phase() != BackupPhase::Failed
    };
    counts && !backup.is_deleting()
}

/// Whether this is a failed backup of a deleted instance. Only the newest of an account are kept.
pub fn is_left_over(backup: &Backup) -> bool {
    is_of_deleted(backup) && backup.phase() == BackupPhase::Failed && !backup.is_deleting()
}

fn is_of_deleted(backup: &Backup) -> bool {
    let status = backup.status.as_ref();
    status.is_some_and(|status| status.instance_deleted)
}

/// Whether a failed backup of a deleted instance is to be deleted, because there are enough newer ones among `left_over`, those of
/// its account.
pub fn gives_way<'a>(backup: &Backup, left_over: impl IntoIterator<Item = &'a Backup>) -> bool {
    let is_newer = |other: &&Backup| is_left_over(other) && age(other) > age(backup);
    let newer = left_over.into_iter().filter(is_newer);
    backup.phase() == BackupPhase::Failed && newer.take(FAILED_KEPT).count() >= FAILED_KEPT
}

/// When a backup ended.
pub type Age = (Option<Timestamp>, Option<String>);

/// Orders backups that have ended, of one account.
pub fn age(backup: &Backup) -> Age {
    let status = backup.status.as_ref();
    (
        status.and_then(|status| status.completed_at),
        backup.metadata.uid.clone(),
    )
}

/// Whether a manual backup is among the first `limit` of those that count. `others` are the backups that share the limit; the
/// backup itself may be among them.
pub fn has_room<'a>(backup: &Backup, others: impl IntoIterator<Item = &'a Backup>, limit: usize) -> bool {
    let begun_or_older = |other: &&Backup| {
        counts(other)
            && other.metadata.uid != backup.metadata.uid
            && (other.phase() != BackupPhase::Waiting || queue_key(other) < queue_key(backup))
    };
    backup.is_scheduled() || others.into_iter().filter(begun_or_older).count() < limit
}

/// Sort key of the backups that wait: those made first go first.
fn queue_key(backup: &Backup) -> impl Ord + use<'_> {
    (backup.created_at(), backup.metadata.uid.as_deref())
}

/// Whether a waiting backup may begin: none of the same instance runs, and none has waited for longer.
pub fn is_next<'a>(backup: &Backup, others: impl IntoIterator<Item = &'a Backup>) -> bool {
    !others.into_iter().any(|other| {
        other.metadata.uid != backup.metadata.uid
            && (other.phase() == BackupPhase::Running
                || other.phase() == BackupPhase::Waiting && queue_key(other) < queue_key(backup))
    })
}

/// Whether a failed scheduled backup is the newest of its instance. Only that one is tried once more.
pub fn is_newest<'a>(backup: &Backup, others: impl IntoIterator<Item = &'a Backup>) -> bool {
    let newest = others.into_iter().filter(|other| other.is_scheduled());
    let newest = newest.min_by_key(|other| Reverse(other.spec.scheduled_for));
    newest.is_none_or(|newest| newest.spec.scheduled_for <= backup.spec.scheduled_for)
}
