//! The conditions of a Backup.

use jiff::Timestamp;

use resources::{
    BackupPhase, BackupStatus,
    conditions::{self, Desired, READY, RECONCILING, STALLED},
};

/// Writes the conditions: why a backup waits, runs, or has failed.
pub(super) fn describe(
    status: &mut BackupStatus,
    reason: &'static str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) {
    let phase = status.phase;
    let is_ready = phase == Some(BackupPhase::Completed);
    let is_reconciling = matches!(phase, Some(BackupPhase::Waiting | BackupPhase::Running));
    let mut set = |type_, holds: bool, message: &str| {
        let desired = Desired {
            type_,
            status: Some(holds),
            reason,
            message: message.to_owned(),
        };
        conditions::set(&mut status.conditions, desired, generation, now);
    };
    let message_if = |holds: bool| if holds { message } else { "" };
    let is_stalled = !is_ready && !is_reconciling;
    set(RECONCILING, is_reconciling, message_if(is_reconciling));
    set(STALLED, is_stalled, message_if(is_stalled));
    set(READY, is_ready, message);
}
