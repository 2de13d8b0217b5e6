//! Which backups are deleted automatically, and how many there may be.

use std::cmp::Reverse;

use jiff::Timestamp;

use resources::{Backup, BackupPhase};

/// Completed scheduled backups that are kept per instance (decisions, section 7). As many failed ones are kept, for
/// people to read.
pub const KEPT: usize = 7;

/// Whether a scheduled backup has been replaced by newer ones, so that it is deleted. `others` are the backups of the same
/// instance; the backup itself may be among them. Manual backups are never replaced.
pub fn is_replaced<'a>(backup: &Backup, others: impl IntoIterator<Item = &'a Backup>) -> bool {
    let phase = backup.phase();
    if !backup.is_scheduled() || backup.is_unfinished() || phase == BackupPhase::Failed && needs_retry(backup)
    {
        return false;
    }
    let newer = others.into_iter().filter(|other| {
        other.is_scheduled() && !other.is_deleting() && other.phase() == phase && order(other) > order(backup)
    });
    newer.count() >= KEPT
}

/// Whether a failed scheduled backup may still have to be tried once more.
pub fn needs_retry(backup: &Backup) -> bool {
    let has_been = backup.status.as_ref().is_some_and(|status| status.retried);
    backup.is_scheduled() && !backup.spec.retry && backup.phase() == BackupPhase::Failed && !has_been
}

/// Orders scheduled backups of an instance by age: by the time for which each was made, then first and second try.
fn order(backup: &Backup) -> impl Ord + use<'_> {
    (
        backup.spec.scheduled_for,
        backup.spec.retry,
        backup.metadata.name.as_deref(),
    )
}

/// Whether a manual backup counts towards the limits: it waits, runs or is completed.
pub fn counts(backup: &Backup) -> bool {
    !backup.is_scheduled() && !backup.is_deleting() && backup.phase() != BackupPhase::Failed
}

/// Whether this is a scheduled backup of a deleted instance that has come to its end. Nothing replaces such backups, so
/// they share the account's limit with the manual ones.
pub fn is_left_over(backup: &Backup) -> bool {
    let is_of_deleted = backup
        .status
        .as_ref()
        .is_some_and(|status| status.instance_deleted);
    backup.is_scheduled() && is_of_deleted && !backup.is_unfinished() && !backup.is_deleting()
}

/// Whether a left-over backup is to be deleted, because there are `limit` manual ones and newer left-over ones. `all`
/// are those that share the account's limit. Stops looking once that is certain.
pub fn gives_way<'a>(backup: &Backup, all: impl IntoIterator<Item = &'a Backup>, limit: usize) -> bool {
    let goes_before = |other: &&Backup| counts(other) || is_left_over(other) && age(other) > age(backup);
    all.into_iter().filter(goes_before).take(limit).count() >= limit
}

/// Orders scheduled backups of an account by age.
pub type Age = (Option<Timestamp>, bool, Option<String>);

/// The age of a backup among those of its account.
pub fn age(backup: &Backup) -> Age {
    (
        backup.spec.scheduled_for,
        backup.spec.retry,
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
