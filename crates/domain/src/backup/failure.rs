//! Whose business it is that a backup failed.

use resources::Backup;

/// The codes of `status.error` that come from what the customer has done.
const OF_THE_CUSTOMER: [&str; 4] = [
    "backup_deleted",
    "instance_deleted",
    "instance_not_ready",
    "resource_limit_exceeded",
];

/// The code with which a backup failed because of what its customer has done. `None` if it failed for another reason, or did not fail.
pub fn of_the_customer(backup: &Backup) -> Option<&'static str> {
    let error = backup.status.as_ref()?.error.as_ref()?;
    OF_THE_CUSTOMER.into_iter().find(|code| *code == error.code)
}
