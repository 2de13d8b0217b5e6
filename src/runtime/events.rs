//! Kubernetes Events, so that `kubectl describe` tells the story. They are told in the background and dropped when the API
//! server cannot keep up: no reconcile ever waits for one, or fails with one.
//!
//! kube's own `Recorder` keeps every Event in memory for six minutes to count repetitions; here a repetition is not
//! published in the first place, because callers compare with the status that they are about to write. What comes too often
//! all the same, such as the starts and stops of an instance that is switched all day, is limited as client-go limits it.

use std::{
    hash::{BuildHasher as _, RandomState},
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use governor::{
    Quota, RateLimiter,
    clock::{Clock, DefaultClock},
    middleware::NoOpMiddleware,
    state::keyed::HashMapStateStore,
};
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, Resource, api::PostParams};
use tokio::sync::{Semaphore, mpsc};

use super::client::bounded;

/// Events that may wait to be written; more are dropped.
const BACKLOG: usize = 4096;
/// Events written at the same time.
const WRITERS: usize = 4;
/// Longest note that the API server takes, in bytes.
const MAX_NOTE: usize = 1024;
/// Events about one object at once, and how long it takes until there is room for another (client-go's
/// `EventSourceObjectSpamFilter`: `defaultSpamBurst`, `defaultSpamQPS`).
const BURST: NonZeroU32 = NonZeroU32::new(25).unwrap();
const REFILL: Duration = Duration::from_mins(5);
/// After so many Events it is looked for objects that have had none lately.
const FORGET_EVERY: usize = 1024;

/// Publishes Events of one controller. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<(String, Event)>,
    controller: &'static str,
    instance: Arc<str>,
    filter: Arc<SpamFilter>,
}

/// Lets through so many Events about an object. Warnings have a share of their own, so that none is lost behind what is
/// normal.
struct SpamFilter<C: Clock = DefaultClock> {
    limiter: RateLimiter<u64, HashMapStateStore<u64>, C, NoOpMiddleware<C::Instant>>,
    /// What is limited is kept as a hash: two objects that share a bucket by chance do no harm.
    hasher: RandomState,
    seen: AtomicUsize,
}

impl<C: Clock> SpamFilter<C> {
    fn new(clock: C) -> Self {
        let quota = Quota::with_period(REFILL).map(|quota| quota.allow_burst(BURST));
        Self {
            limiter: RateLimiter::new(
                quota.unwrap_or(Quota::per_hour(BURST)),
                HashMapStateStore::default(),
                clock,
            ),
            hasher: RandomState::new(),
            seen: AtomicUsize::new(0),
        }
    }

    fn lets_through(&self, uid: Option<&str>, warning: bool) -> bool {
        if self.seen.fetch_add(1, Ordering::Relaxed) % FORGET_EVERY == FORGET_EVERY - 1 {
            self.limiter.retain_recent();
        }
        let bucket = self.hasher.hash_one((uid, warning));
        self.limiter.check_key(&bucket).is_ok()
    }
}

impl Events {
    /// Starts the background task. `controller` and `instance` name the reporter.
    pub fn new(client: Client, controller: &'static str, instance: &str) -> Self {
        let (queue, waiting) = mpsc::channel(BACKLOG);
        tokio::spawn(write(client, waiting));
        Self {
            queue,
            controller,
            instance: instance.into(),
            filter: Arc::new(SpamFilter::new(DefaultClock::default())),
        }
    }

    /// Publishes one Event about `object`; `action` is what the controller was doing.
    pub fn publish<K>(&self, object: &K, warning: bool, reason: &str, action: &str, note: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        if !self.filter.lets_through(object.meta().uid.as_deref(), warning) {
            tracing::debug!(reason, "an Event was dropped: there are too many of this object");
            return;
        }
        let namespace = object
            .meta()
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned());
        let end = (0..=note.len().min(MAX_NOTE))
            .rev()
            .find(|i| note.is_char_boundary(*i))
            .unwrap_or(0);
        let now = jiff::Timestamp::now();
        // Named as client-go names them.
        let name = format!(
            "{}.{:x}",
            object.meta().name.as_deref().unwrap_or_default(),
            now.as_nanosecond()
        );
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            type_: Some(if warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(reason.to_owned()),
            action: Some(action.to_owned()),
            note: Some(note[..end].to_owned()),
            event_time: Some(MicroTime(now)),
            regarding: Some(ObjectReference {
                resource_version: None,
                ..object.object_ref(&())
            }),
            reporting_controller: Some(format!("stellage.dev/{}", self.controller)),
            reporting_instance: Some(self.instance.to_string()),
            ..Event::default()
        };
        if self.queue.try_send((namespace, event)).is_err() {
            tracing::debug!(reason, "an Event was dropped: the API server does not keep up");
        }
    }
}

async fn write(client: Client, mut waiting: mpsc::Receiver<(String, Event)>) {
    let writers = Arc::new(Semaphore::new(WRITERS));
    while let Some((namespace, event)) = waiting.recv().await {
        let Ok(permit) = Arc::clone(&writers).acquire_owned().await else {
            return;
        };
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        tokio::spawn(async move {
            let _permit = permit;
            // A namespace that is going away takes no Events; nothing to be done about it.
            if let Err(error) = bounded(api.create(&PostParams::default(), &event)).await {
                tracing::debug!(%error, namespace, "an Event could not be written");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    #[test]
    fn an_object_that_is_told_of_all_the_time_is_limited_and_neither_warnings_nor_others_are_lost_behind_it()
    {
        let clock = FakeRelativeClock::default();
        let filter = SpamFilter::new(clock.clone());
        let told = |uid, warning| {
            (0..100)
                .filter(|_| filter.lets_through(Some(uid), warning))
                .count()
        };
        assert_eq!(told("busy", false), 25);
        assert_eq!(told("busy", true), 25);
        assert_eq!(told("other", false), 25);
        clock.advance(REFILL);
        assert_eq!(told("busy", false), 1);
    }

    #[test]
    fn objects_that_have_been_quiet_take_no_memory() {
        let clock = FakeRelativeClock::default();
        let filter = SpamFilter::new(clock.clone());
        for n in 0..FORGET_EVERY - 1 {
            assert!(filter.lets_through(Some(&n.to_string()), false));
        }
        clock.advance(REFILL * 2);
        assert!(filter.lets_through(Some("last"), false));
        assert_eq!(filter.limiter.len(), 1);
    }
}
