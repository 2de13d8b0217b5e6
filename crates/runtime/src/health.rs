//! The state behind `/healthz` and `/readyz`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Every watch is restarted at least every 200 s (`runtime/watch.rs`). If none has begun or failed for three times as
/// long, the process is stuck and needs a restart. An unreachable API server is no reason for a restart: reads are
/// still answered for a while, and it would not help.
const WEDGED_AFTER: Duration = Duration::from_secs(600);
/// How long what a required watch has shown is trusted after it was lost. That a peer is gone is noticed within ten seconds
/// (`runtime/client.rs`), so after a network loss 30 s pass at most.
const TRUSTED_FOR: Duration = Duration::from_secs(20);
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
    /// The watches, by resource, without which the process does not know whom to answer, and since when each is lost.
    required: BTreeMap<&'static str, Option<Instant>>,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            known: BTreeSet::new(),
            watch_progress: Instant::now(),
            required: BTreeMap::new(),
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

    /// Registers a component that is not ready yet, and what it waits for. Readiness concerns only the start, and [required
    /// watches](Self::require_watch): a component that was ready once and is started again is not waited for.
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
        let inner = self.inner.lock();
        let waiting = inner.waiting.iter();
        let waiting = waiting.map(|(name, waits_for)| format!("{name}: {waits_for}"));
        let lost = inner.stale().map(|(resource, since)| {
            let seconds = since.elapsed().as_secs();
            format!("watch of {resource}: lost {seconds} s ago")
        });
        waiting.chain(lost).collect()
    }

    /// Says that the process must not go on for long without the watch of this resource.
    pub fn require_watch(&self, resource: &'static str) {
        self.inner.lock().required.entry(resource).or_default();
    }

    /// Records that the watch of a resource has failed.
    pub fn watch_lost(&self, resource: &str) {
        if let Some(lost) = self.inner.lock().required.get_mut(resource) {
            lost.get_or_insert_with(Instant::now);
        }
    }

    /// Records that the API server has begun to answer the watch of a resource.
    pub fn watch_answered(&self, resource: &str) {
        if let Some(lost) = self.inner.lock().required.get_mut(resource) {
            *lost = None;
        }
    }

    /// Whether a required watch has been lost for so long that what it showed is no longer to be trusted.
    pub fn is_stale(&self) -> bool {
        self.inner.lock().stale().next().is_some()
    }

    /// Pretends that the watch of a resource has been lost for as long as it is trusted.
    #[cfg(any(test, feature = "testing"))]
    pub fn lose_watch_for_long(&self, resource: &'static str) {
        let since = Instant::now().checked_sub(TRUSTED_FOR);
        self.inner.lock().required.insert(resource, since);
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

impl Inner {
    fn stale(&self) -> impl Iterator<Item = (&'static str, Instant)> {
        let lost = self.required.iter();
        let lost = lost.filter_map(|(resource, since)| Some((*resource, (*since)?)));
        lost.filter(|(_, since)| since.elapsed() >= TRUSTED_FOR)
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
    fn a_process_whose_required_watch_is_lost_for_long_is_not_ready_until_it_is_back() {
        let health = Health::default();
        health.lose_watch_for_long("instances");
        health.watch_answered("instances");
        health.require_watch("apikeys");
        health.watch_lost("pods");
        health.watch_lost("apikeys");
        assert!(
            !health.is_stale() && health.not_ready().is_empty(),
            "not for long"
        );
        health.lose_watch_for_long("apikeys");
        health.watch_lost("apikeys");
        assert!(health.is_stale());
        let [lost] = &health.not_ready()[..] else {
            panic!("{:?}", health.not_ready());
        };
        assert!(lost.starts_with("watch of apikeys: lost 20 s ago"), "{lost}");
        health.watch_answered("apikeys");
        assert!(!health.is_stale() && health.not_ready().is_empty());
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
