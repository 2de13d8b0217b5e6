//! How long to wait before trying an object again: exponential, per object, with jitter and a cap.

use std::{collections::HashMap, hash::Hash, time::Duration};

use parking_lot::Mutex;
use rand::RngExt as _;

/// The first delay; each further one doubles.
const FIRST: Duration = Duration::from_secs(1);
/// The longest delay.
const LONGEST: Duration = Duration::from_mins(5);

/// Failures in a row by key (an object's UID, so that a new object of an old name starts afresh).
#[derive(Debug)]
pub struct Backoffs<K> {
    failures: Mutex<HashMap<K, u32>>,
}

impl<K> Default for Backoffs<K> {
    fn default() -> Self {
        Self {
            failures: Mutex::default(),
        }
    }
}

impl<K: Eq + Hash + Clone> Backoffs<K> {
    /// Counts one more failure, and says how long to wait: 1 s, 2 s, 4 s … 5 min, each between three quarters and all
    /// of it, lest objects that failed together come back together.
    pub fn next(&self, key: &K) -> Duration {
        let mut all = self.failures.lock();
        let failures = all.entry(key.clone()).or_insert(0);
        let delay = FIRST.saturating_mul(1 << (*failures).min(16)).min(LONGEST);
        *failures = failures.saturating_add(1);
        delay.mul_f64(rand::rng().random_range(0.75..=1.0))
    }

    /// Forgets the failures of `key`: it succeeded, or it is gone.
    pub fn reset(&self, key: &K) {
        self.failures.lock().remove(key);
    }

    /// How many keys are failing.
    pub fn len(&self) -> usize {
        self.failures.lock().len()
    }

    /// Whether nothing is failing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_five_minutes_and_start_afresh_after_a_success() {
        let backoffs = Backoffs::default();
        let mut full = 1.0;
        for _ in 0..40 {
            let delay = backoffs.next(&"uid").as_secs_f64();
            assert!((full * 0.75..=full).contains(&delay), "{delay} of {full}");
            full = f64::min(full * 2.0, 300.0);
        }
        assert!(backoffs.next(&"another").as_secs_f64() <= 1.0, "keys are apart");
        backoffs.reset(&"uid");
        assert!(backoffs.next(&"uid").as_secs_f64() <= 1.0);
        backoffs.reset(&"uid");
        backoffs.reset(&"another");
        assert!(backoffs.is_empty(), "nothing is remembered of what is gone");
    }
}
