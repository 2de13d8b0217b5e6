//! Retry delays per object, which grow with each failure and start over after a success.

use std::{collections::HashMap, time::Duration};

use kube::Resource;
use parking_lot::Mutex;
use rand::RngExt as _;

use super::{ObjectRef, client::CallError, watch::key, work_queue::Class};

/// Delay after the first failure.
const FIRST: Duration = Duration::from_secs(1);
/// Delay after a write conflict: the watch shows soon what others have written.
pub const AFTER_CONFLICT: Duration = Duration::from_secs(1);
/// Longest delay.
const LONGEST: Duration = Duration::from_secs(300);

/// Number of consecutive failures, by object. An entry is removed when the object succeeds or is deleted.
#[derive(Debug, Default)]
pub struct Backoffs {
    failures: Mutex<HashMap<ObjectRef, u32>>,
}

impl Backoffs {
    /// When to retry a reconcile that ended with this error. `None` if the object is gone.
    pub fn after<K: Resource<DynamicType = ()>>(&self, object: &K, error: &CallError) -> Option<Duration> {
        let object_ref = ObjectRef::of(object);
        if error.is_not_found() {
            self.reset(&object_ref);
            return None;
        }
        if error.is_conflict() {
            return Some(AFTER_CONFLICT);
        }
        let delay = self.next(&object_ref);
        tracing::warn!(kind = %K::kind(&()), object = key(object), %error, retry_in = ?delay, "reconcile failed");
        Some(delay)
    }

    /// Counts a failure and returns the delay after it: 1 s, doubling up to 5 minutes, plus up to a tenth, so that objects
    /// that failed together are not retried together.
    pub fn next(&self, object_ref: &ObjectRef) -> Duration {
        let mut failures = self.failures.lock();
        let count = failures.entry(object_ref.clone()).or_default();
        let delay = FIRST.saturating_mul(1 << (*count).min(16)).min(LONGEST);
        *count += 1;
        delay.mul_f64(1.0 + rand::rng().random_range(0.0..0.1))
    }

    /// Whether the object's last attempt failed.
    pub fn has_failed(&self, object_ref: &ObjectRef) -> bool {
        self.failures.lock().contains_key(object_ref)
    }

    /// The slots that the object needs, if the provider is asked about it each time.
    pub fn class(&self, object_ref: &ObjectRef) -> Class {
        if self.has_failed(object_ref) {
            Class::Suspect
        } else {
            Class::Normal
        }
    }

    /// Forgets the failures of an object that succeeded or was deleted.
    pub fn reset(&self, object_ref: &ObjectRef) {
        self.failures.lock().remove(object_ref);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_five_minutes_and_start_over_after_a_success() {
        let backoffs = Backoffs::default();
        let [a, b] = ["a", "b"].map(|name| ObjectRef::new("demo", name));
        let first = backoffs.next(&a);
        assert!((1.0..1.1).contains(&first.as_secs_f64()), "{first:?}");
        assert!(backoffs.next(&a) >= Duration::from_secs(2));
        for _ in 0..40 {
            let delay = backoffs.next(&a);
            assert!(delay <= LONGEST.mul_f64(1.1), "{delay:?}");
        }
        assert!(backoffs.has_failed(&a) && !backoffs.has_failed(&b));
        backoffs.reset(&a);
        assert!(backoffs.next(&a) < Duration::from_secs(2));
    }
}
