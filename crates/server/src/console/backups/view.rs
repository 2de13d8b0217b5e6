//! Backups as `/v1` shows them.

use serde::Deserialize;

use crate::console::text::Moment;

/// A backup.
#[derive(Debug, Deserialize)]
pub struct Backup {
    /// Identifier.
    pub id: String,
    /// Its instance.
    pub instance_id: Option<String>,
    /// Display name of the instance.
    pub instance_name: String,
    /// Whether the instance has been deleted.
    pub instance_deleted: bool,
    /// Display name.
    pub name: String,
    /// `running`, `completed` or `failed`.
    pub status: String,
    /// Whether the daily schedule made it.
    pub scheduled: bool,
    /// Size in GB.
    pub size_gb: Option<f64>,
    /// Disk of the instance in GB.
    pub disk_size: Option<i32>,
    /// Image of the instance.
    pub image: Option<String>,
    /// When it was requested.
    pub created_at: Moment,
    /// When it ended.
    pub completed_at: Option<Moment>,
    /// Why it failed.
    pub error: Option<Failure>,
}

/// Why a backup failed.
#[derive(Debug, Deserialize)]
pub struct Failure {
    /// For people.
    pub message: String,
}

impl Backup {
    /// Whether it is in progress.
    pub fn is_running(&self) -> bool {
        self.status == "running"
    }

    /// Whether it can be restored.
    pub fn is_completed(&self) -> bool {
        self.status == "completed"
    }

    /// The colour of its status.
    pub fn tone(&self) -> &'static str {
        match self.status.as_str() {
            "completed" => "good",
            "failed" => "bad",
            _ => "busy",
        }
    }

    /// Its size.
    pub fn size(&self) -> String {
        self.size_gb
            .map_or_else(|| "–".to_owned(), |size| format!("{size:.1} GB"))
    }
}
