//! Kubernetes Events, which `kubectl describe` shows. A background task writes them and drops them if the API server
//! cannot keep up, so no reconcile waits for an Event or fails because of one.
//!
//! kube's own `Recorder` keeps every Event in memory for six minutes to count repetitions. Here callers publish an Event only
//! when the status changes, so there are no repetitions to count. The rate per object is limited as in client-go, for
//! example for an instance that is started and stopped all day.

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

/// Events that may wait to be written; further ones are dropped.
const BACKLOG: usize = 4096;
/// Events written at the same time.
const WRITERS: usize = 4;
/// Longest note that the API server accepts, in bytes.
const MAX_NOTE: usize = 1024;
/// Burst of Events per object, and the time after which one more is allowed (client-go's
/// `EventSourceObjectSpamFilter`: `defaultSpamBurst`, `defaultSpamQPS`).
const BURST: NonZeroU32 = NonZeroU32::new(25).unwrap();
const REFILL: Duration = Duration::from_mins(5);
/// Number of Events after which objects without recent Events are forgotten.
const FORGET_EVERY: usize = 1024;

/// Publishes the Events of one controller. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<(String, Event)>,
    controller: &'static str,
    instance: Arc<str>,
    filter: Arc<SpamFilter>,
}

/// Limits the Events per object. Warnings have their own limit, so that Normal Events do not crowd them out.
struct SpamFilter<C: Clock = DefaultClock> {
    limiter: RateLimiter<u64, HashMapStateStore<u64>, C, NoOpMiddleware<C::Instant>>,
    /// Buckets are keyed by a hash: a rare collision of two objects does no harm.
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
            tracing::debug!(reason, "dropped an Event: there are too many about this object");
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
            tracing::debug!(reason, "dropped an Event: the API server does not keep up");
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
            // Ignored: a namespace that is being deleted, for example, accepts no Events.
            if let Err(error) = bounded(api.create(&PostParams::default(), &event)).await {
                tracing::debug!(%error, namespace, "cannot write an Event");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    #[test]
    fn events_about_a_busy_object_are_limited_without_dropping_its_warnings_or_those_of_others() {
        let clock = FakeRelativeClock::default();
        let filter = SpamFilter::new(clock.clone());
        let published = |uid, warning| {
            (0..100)
                .filter(|_| filter.lets_through(Some(uid), warning))
                .count()
        };
        assert_eq!(published("busy", false), 25);
        assert_eq!(published("busy", true), 25);
        assert_eq!(published("other", false), 25);
        clock.advance(REFILL);
        assert_eq!(published("busy", false), 1);
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
