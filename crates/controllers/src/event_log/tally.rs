//! How much has been logged since the event logs were last pruned.

use std::{collections::HashMap, sync::Arc};

/// What has been logged since the last pruning.
#[derive(Debug, Default)]
pub(crate) struct LogTally {
    pub(crate) by_namespace: HashMap<Arc<str>, Size>,
    /// Bytes logged since the last round.
    pub(crate) bytes: u64,
}

/// Size of a part of an event log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) events: u64,
    pub(crate) bytes: u64,
}

impl Size {
    pub(crate) const fn plus(self, other: Self) -> Self {
        Self {
            events: self.events + other.events,
            bytes: self.bytes + other.bytes,
        }
    }

    pub(crate) const fn exceeds(self, limit: Self) -> bool {
        self.events > limit.events || self.bytes > limit.bytes
    }
}
