//! Backups as pages show them.

use crate::console::page::Shown;
use api::BackupStatus;

pub type Backup = Shown<api::Backup>;

impl Backup {
    /// Whether it is in progress.
    pub fn is_running(&self) -> bool {
        self.status == BackupStatus::Running
    }

    /// Whether it can be restored.
    pub fn is_completed(&self) -> bool {
        self.status == BackupStatus::Completed
    }

    /// The colour of its status.
    pub fn tone(&self) -> &'static str {
        match self.status {
            BackupStatus::Completed => "good",
            BackupStatus::Failed => "bad",
            BackupStatus::Running => "busy",
        }
    }

    pub fn size(&self) -> String {
        self.size_gb
            .map_or_else(|| "–".to_owned(), |size| format!("{size:.1} GB"))
    }
}
