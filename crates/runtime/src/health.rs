//! The state behind `/healthz` and `/readyz`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Every watch is restarted at least every 200 s (`runtime/watch.rs`). If none has begun or failed for three times as
/// long, the process is stuck and needs a restart. An unreachable API server is no reason for a restart: reads are
/// still answered.
const WEDGED_AFTER: Duration = Duration::from_secs(600);
/// The component that stands for the start of the process: until it is ready, others may not have been registered yet.
const START: &str = "start";

/// Readiness of each component, and the progress of watches. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Health {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    waiting: BTreeMap<String, &'static str>,
    /// Components that are ready, or have been.
    known: BTreeSet<String>,
    watch_progress: Instant,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            known: BTreeSet::new(),
            watch_progress: Instant::now(),
        }
    }
}

impl Health {
    /// The health of a process that is starting. It is not ready before [`started`](Self::started) is called.
    pub fn starting() -> Self {
        let health = Self::default();
        health.expect(START, "the watches to be started");
        health
    }

    /// Says that everything that readiness waits for is registered.
    pub fn started(&self) {
        self.ready(START);
    }

    /// Registers a component that is not ready yet, and what it waits for. Readiness concerns only the start: a
    /// component that was ready once and is started again is not waited for.
    pub fn expect(&self, component: impl Into<String>, waits_for: &'static str) {
        let component = component.into();
        let mut inner = self.inner.lock();
        if !inner.known.contains(&component) {
            inner.waiting.insert(component, waits_for);
        }
    }

    /// Marks a component as ready.
    pub fn ready(&self, component: &str) {
        let mut inner = self.inner.lock();
        if inner.waiting.remove(component).is_some() {
            inner.known.insert(component.to_owned());
        }
    }

    /// The components that are not ready, as `name: what it waits for`; empty when all are.
    pub fn not_ready(&self) -> Vec<String> {
        self.inner
            .lock()
            .waiting
            .iter()
            .map(|(name, waits_for)| format!("{name}: {waits_for}"))
            .collect()
    }

    /// Records that a watch has begun, or failed.
    pub fn watch_progressed(&self) {
        self.inner.lock().watch_progress = Instant::now();
    }

    /// Pretends that no watch has begun or failed for a long time.
    #[cfg(test)]
    pub(super) fn stall(&self) {
        let mut inner = self.inner.lock();
        inner.watch_progress = inner.watch_progress.checked_sub(WEDGED_AFTER).unwrap();
    }

    /// Whether watches make progress.
    pub fn is_live(&self) -> bool {
        self.inner.lock().watch_progress.elapsed() < WEDGED_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_not_ready_before_it_has_registered_what_readiness_waits_for() {
        let health = Health::starting();
        assert_eq!(health.not_ready(), ["start: the watches to be started"]);
        health.expect("watch instances", "the first list");
        health.started();
        assert_eq!(health.not_ready(), ["watch instances: the first list"]);
        health.ready("watch instances");
        assert!(health.not_ready().is_empty());
    }

    #[test]
    fn readiness_names_what_is_missing() {
        let health = Health::default();
        health.expect("watch instances", "the first list");
        assert_eq!(health.not_ready(), ["watch instances: the first list"]);
        health.ready("watch instances");
        assert!(health.not_ready().is_empty() && health.is_live());
        health.expect("watch instances", "the first list");
        assert!(health.not_ready().is_empty(), "it is only started again");
    }
}
