//! What REST serializes of one version of an instance.

use std::sync::{Arc, atomic::AtomicBool};

use bytes::Bytes;
use parking_lot::Mutex;

/// The serialized detail of one version of an instance.
#[derive(Debug)]
pub struct CachedDetail {
    /// The body of the answer.
    pub body: Bytes,
    /// The version as used in preconditions, in quotes.
    pub tag: Bytes,
}

/// The renderings of one version of an instance.
#[derive(Debug, Default)]
pub(super) struct Rendered {
    pub(super) list_item: Slot<[u8]>,
    pub(super) detail: Slot<CachedDetail>,
}

/// A rendering that is kept from the second request on. The first one is not kept: a client that reads everything once would
/// replace what others poll.
#[derive(Debug)]
pub(super) struct Slot<T: ?Sized> {
    pub(super) kept: Mutex<Option<Arc<T>>>,
    pub(super) was_asked: AtomicBool,
}

impl<T: ?Sized> Default for Slot<T> {
    fn default() -> Self {
        Self {
            kept: Mutex::new(None),
            was_asked: AtomicBool::new(false),
        }
    }
}
