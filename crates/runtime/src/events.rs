//! Kubernetes Events, which `kubectl describe` shows. A background task writes them and drops them if the API server
//! cannot keep up, so no reconcile waits for an Event or fails because of one.
//!
//! kube's own `Recorder` keeps every Event in memory for six minutes to count repetitions. Here callers publish an Event only
//! when the status changes, so there are no repetitions to count. The rate per object is limited as in client-go, for
//! example for an instance that is started and stopped all day.

use std::{
    borrow::Cow,
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
    state::{InMemoryState, NotKeyed, keyed::HashMapStateStore},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Client, Resource, api::PostParams};
use tokio::sync::{Semaphore, mpsc};

use super::{
    client::{self, bounded},
    write_pressure::WritePressure,
};

/// Events that may wait to be written; further ones are dropped.
const BACKLOG: usize = 8192;
/// How long an Event gives way at least to what else a controller has to write, unless half of the backlog is used up.
const GIVES_WAY: SignedDuration = SignedDuration::from_secs(10);
/// Normal Events that are written per second, and at once, if there is still much else to write (the kubelet's defaults of
/// `eventRecordQPS` and `eventBurst`). A Warning no longer waits then.
const WHILE_BUSY: NonZeroU32 = NonZeroU32::new(50).unwrap();
const AT_ONCE_WHILE_BUSY: NonZeroU32 = NonZeroU32::new(100).unwrap();
/// How often to check whether an Event may be written.
const LOOK_EVERY: Duration = Duration::from_millis(100);
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

/// Which Kubernetes Events are published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum EventLevel {
    /// None.
    Off,
    /// Those of the type Warning.
    Warnings,
    /// Those of the types Normal and Warning.
    #[default]
    All,
}

/// Publishes the Events of one controller. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<Published>,
    level: EventLevel,
    controller: &'static str,
    instance: Arc<str>,
    filter: Arc<SpamFilter>,
}

/// An Event that waits to be written, in a fifth of the size of what is sent.
struct Published {
    /// Namespace of its object, unless the object is cluster-scoped.
    namespace: Option<String>,
    name: String,
    uid: Option<String>,
    /// `apiVersion` and `kind` of its object.
    api_version: Cow<'static, str>,
    kind: Cow<'static, str>,
    warning: bool,
    reason: Box<str>,
    action: Box<str>,
    note: Box<str>,
    time: Timestamp,
    controller: &'static str,
    instance: Arc<str>,
}

/// Limits the Events per object. Warnings have their own limit, so that Normal Events do not crowd them out.
struct SpamFilter<C: Clock = DefaultClock> {
    limiter: RateLimiter<u64, HashMapStateStore<u64>, C, NoOpMiddleware<C::Instant>>,
    /// Buckets are keyed by a hash: a rare collision of two objects does no harm.
    hasher: RandomState,
    seen: AtomicUsize,
}

/// Decides when an Event is written, so that Events take little from what else there is to write.
struct WriteGate<C: Clock = DefaultClock> {
    write_pressure: WritePressure,
    limiter: RateLimiter<NotKeyed, InMemoryState, C, NoOpMiddleware<C::Instant>>,
}

impl<C: Clock> WriteGate<C> {
    fn new(write_pressure: WritePressure, clock: C) -> Self {
        let quota = Quota::per_second(WHILE_BUSY).allow_burst(AT_ONCE_WHILE_BUSY);
        Self {
            write_pressure,
            limiter: RateLimiter::direct_with_clock(quota, clock),
        }
    }

    /// Whether to write an Event now that has this age, and so many others behind it. If so, it counts towards the limit.
    fn lets_through(&self, age: SignedDuration, warning: bool, waiting: usize) -> bool {
        !self.write_pressure.is_busy()
            || waiting >= BACKLOG / 2
            || (age >= GIVES_WAY && (warning || self.limiter.check().is_ok()))
    }
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
        Self::behind(WritePressure::default(), client, controller, instance)
    }

    /// Like [`Self::new`], but while there is much else to write, Events wait for at least ten seconds, and only a limited number a
    /// second are then written, unless half of the backlog is used up.
    pub fn behind(
        write_pressure: WritePressure,
        client: Client,
        controller: &'static str,
        instance: &str,
    ) -> Self {
        let (queue, waiting) = mpsc::channel(BACKLOG);
        tokio::spawn(write(client, waiting, write_pressure));
        Self {
            queue,
            level: EventLevel::All,
            controller,
            instance: instance.into(),
            filter: Arc::new(SpamFilter::new(DefaultClock::default())),
        }
    }

    /// The same, but it publishes no others than these.
    #[must_use]
    pub fn limited_to(self, level: EventLevel) -> Self {
        Self { level, ..self }
    }

    /// Publishes one Event about `object`; `action` is what the controller was doing.
    pub fn publish<K>(&self, object: &K, warning: bool, reason: &str, action: &str, note: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        if self.level == EventLevel::Off || self.level == EventLevel::Warnings && !warning {
            return;
        }
        if !self.filter.lets_through(object.meta().uid.as_deref(), warning) {
            tracing::debug!(reason, "dropped an Event: there are too many about this object");
            return;
        }
        let end = (0..=note.len().min(MAX_NOTE))
            .rev()
            .find(|i| note.is_char_boundary(*i))
            .unwrap_or(0);
        let published = Published {
            namespace: object.meta().namespace.clone(),
            name: object.meta().name.clone().unwrap_or_default(),
            uid: object.meta().uid.clone(),
            api_version: K::api_version(&()),
            kind: K::kind(&()),
            warning,
            reason: reason.into(),
            action: action.into(),
            note: note[..end].into(),
            time: Timestamp::now(),
            controller: self.controller,
            instance: self.instance.clone(),
        };
        if self.queue.try_send(published).is_err() {
            tracing::debug!(reason, "dropped an Event: the API server does not keep up");
        }
    }
}

impl Published {
    /// The namespace of the Event.
    fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }

    fn event(self) -> Event {
        Event {
            metadata: ObjectMeta {
                // Named as client-go names them.
                name: Some(format!("{}.{:x}", self.name, self.time.as_nanosecond())),
                namespace: Some(self.namespace().to_owned()),
                ..ObjectMeta::default()
            },
            type_: Some(if self.warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(self.reason.into()),
            action: Some(self.action.into()),
            note: Some(self.note.into()),
            event_time: Some(MicroTime(self.time)),
            regarding: Some(ObjectReference {
                api_version: Some(self.api_version.into_owned()),
                kind: Some(self.kind.into_owned()),
                namespace: self.namespace,
                name: Some(self.name),
                uid: self.uid,
                ..ObjectReference::default()
            }),
            reporting_controller: Some(format!("stellage.dev/{}", self.controller)),
            reporting_instance: Some(self.instance.to_string()),
            ..Event::default()
        }
    }
}

async fn write(client: Client, mut waiting: mpsc::Receiver<Published>, write_pressure: WritePressure) {
    let writers = Arc::new(Semaphore::new(WRITERS));
    let gate = WriteGate::new(write_pressure, DefaultClock::default());
    while let Some(published) = waiting.recv().await {
        let age = || Timestamp::now().duration_since(published.time);
        while !gate.lets_through(age(), published.warning, waiting.len()) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let Ok(permit) = Arc::clone(&writers).acquire_owned().await else {
            return;
        };
        let client = client.clone();
        tokio::spawn(async move {
            let event = published.event();
            let _permit = permit;
            // Ignored: a namespace that is being deleted, for example, accepts no Events.
            if let Err(error) = bounded(client::create(&client, &event, &PostParams::default())).await {
                tracing::debug!(%error, namespace = event.metadata.namespace, "cannot write an Event");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::testing::answered_by;

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
    fn events_give_way_to_other_writes_and_then_take_little_from_them_unless_too_many_wait() {
        let (clock, write_pressure) = (FakeRelativeClock::default(), WritePressure::default());
        let gate = WriteGate::new(write_pressure.clone(), clock.clone());
        let written = |age, warning, waiting| {
            let let_through = |_: &usize| {
                // Busy at the moment, however long this test takes.
                (0..100).for_each(|_| write_pressure.wrote());
                gate.lets_through(age, warning, waiting)
            };
            (0..1000).filter(let_through).count()
        };
        assert!(gate.lets_through(SignedDuration::ZERO, false, 0));
        let young = GIVES_WAY - SignedDuration::from_millis(1);
        assert_eq!(written(young, true, BACKLOG / 2 - 1), 0);
        assert_eq!(written(young, false, BACKLOG / 2), 1000);
        assert_eq!(written(GIVES_WAY, false, 0), 100);
        clock.advance(Duration::from_secs(1));
        assert_eq!(written(GIVES_WAY, true, 0), 1000);
        assert_eq!(written(GIVES_WAY, false, 0), 50);
    }

    #[tokio::test]
    async fn nobody_waits_for_an_api_server_that_does_not_answer_and_what_is_too_much_is_dropped() {
        let (answers, written) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let (may_answer, count) = (answers.clone(), written.clone());
        let client = answered_by(move |_, _, event| {
            let (may_answer, count) = (may_answer.clone(), count.clone());
            async move {
                let _permit = may_answer.acquire().await;
                count.fetch_add(1, Ordering::Relaxed);
                (201, event)
            }
        });
        let events = Events::new(client, "test", "test");
        for number in 0..2 * BACKLOG {
            let mut object = ConfigMap::default();
            object.metadata.uid = Some(number.to_string());
            events.publish(&object, false, "Started", "Start", "");
        }
        // Nothing has been written meanwhile: this thread runs the writers, too.
        assert_eq!(events.queue.capacity(), 0);
        answers.add_permits(WRITERS);
        while written.load(Ordering::Relaxed) < BACKLOG {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(events.queue.capacity(), BACKLOG);
    }

    #[tokio::test]
    async fn only_the_events_that_are_wanted_are_published() {
        let client = answered_by(async |_, _, event| (201, event));
        for (level, published) in [
            (EventLevel::Off, 0),
            (EventLevel::Warnings, 1),
            (EventLevel::All, 2),
        ] {
            let events = Events::new(client.clone(), "test", "test").limited_to(level);
            for warning in [false, true] {
                events.publish(&ConfigMap::default(), warning, "Started", "Start", "");
            }
            // Nothing has been written meanwhile: this thread runs the writers, too.
            assert_eq!(BACKLOG - events.queue.capacity(), published, "{level:?}");
        }
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
