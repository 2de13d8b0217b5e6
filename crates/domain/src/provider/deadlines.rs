//! How long operations may take in a region.

use std::time::Duration;

use resources::OperationKind;

/// How long operations may take in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// How long a guest may take to shut down after a soft stop before its power is cut.
    pub soft_stop_grace: Duration,
    /// After how long a creation counts as failed. Like the others, it goes on being tried.
    pub create: Duration,
    /// After how long a rebuild counts as failed.
    pub rebuild: Duration,
    /// After how long any other operation counts as failed.
    pub other: Duration,
}

impl Deadlines {
    /// After how long an operation of this kind counts as failed.
    pub const fn of(&self, kind: OperationKind) -> Duration {
        match kind {
            OperationKind::Create => self.create,
            OperationKind::Rebuild => self.rebuild,
            _ => self.other,
        }
    }
}
