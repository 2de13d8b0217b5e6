//! What a request costs in addition to being one. The cost is recorded while the request is carried out, so that it is known even if the
//! request fails, takes too long, or nobody waits for its response.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of objects whose reading or writing one by one costs as much as another request.
const OBJECTS_PER_REQUEST: usize = 5;

/// What a request has cost so far.
#[derive(Debug, Default)]
pub struct Cost {
    /// Pages of lists read from the API server, without the first page of each list.
    pages: AtomicUsize,
    objects: AtomicUsize,
}

impl Cost {
    /// Counts another page of a list, which is read next.
    pub(super) fn add_page(&self) {
        self.pages.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the read or write of one of many objects.
    pub(super) fn add_object(&self) {
        self.objects.fetch_add(1, Ordering::Relaxed);
    }

    /// How many additional requests this one counts as.
    pub fn requests(&self) -> u32 {
        let objects = self.objects.load(Ordering::Relaxed) / OBJECTS_PER_REQUEST;
        let requests = self.pages.load(Ordering::Relaxed).saturating_add(objects);
        u32::try_from(requests).unwrap_or(u32::MAX)
    }
}
