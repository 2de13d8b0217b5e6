//! How much has been logged since the event logs were last pruned.

use std::{collections::HashMap, sync::Arc};

/// What has been logged since the last pruning.
#[derive(Debug, Default)]
pub(super) struct LogTally {
    pub(super) by_namespace: HashMap<Arc<str>, Size>,
    /// Bytes logged since the last round.
    pub(super) bytes: u64,
}

/// Size of a part of an event log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) events: u64,
    pub(super) bytes: u64,
}

impl Size {
    pub(super) const fn plus(self, other: Self) -> Self {
        Self {
            events: self.events + other.events,
            bytes: self.bytes + other.bytes,
        }
    }

    pub(super) const fn exceeds(self, limit: Self) -> bool {
        self.events > limit.events || self.bytes > limit.bytes
    }
}
