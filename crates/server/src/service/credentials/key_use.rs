//! Records in the status of each ApiKey on which day it was last used. The first request of a day with a key queues the key; a background
//! task writes the day, one key after the other. This costs one write per key and day, whatever the number of requests and replicas.
//!
//! Only the queue is kept in memory, with each key once. Days that are not written when the process ends are lost, unless the
//! key is used again on that day.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use prometheus_client::metrics::gauge::Gauge;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Credential;
use crate::service::Service;
use resources::ApiKey;
use runtime::{
    Backoffs, ObjectRef,
    client::CallError,
    reconcile_queue::messages,
    work_queue::{self, Class, Reconcile},
};

/// Pause after each write, which limits them to five a second, since many keys have their first request of a day at the same time.
const PAUSE: Duration = Duration::from_millis(200);

impl Service {
    /// Notes that a key is being used now.
    pub fn note_use(&self, credential: &Credential) {
        if credential.note_use(self.now())
            && let Some(first_uses) = self.first_uses.get()
        {
            // It fails only if the recorder has ended.
            let _ = first_uses.send(credential.key_object().clone());
        }
    }
}

/// Records on which days keys are used, until shutdown. Uses count from this call on, not only once the future is polled. Call it
/// once.
pub fn record(
    service: &Arc<Service>,
    shutdown: CancellationToken,
) -> impl Future<Output = ()> + Send + use<> {
    let (first_uses, used) = mpsc::unbounded_channel();
    // A second recorder would have nothing to do.
    let _ = service.first_uses.set(first_uses);
    let recorder = Recorder {
        service: service.clone(),
        backoffs: Backoffs::default(),
        pause: PAUSE,
    };
    recorder.run(used, shutdown)
}

struct Recorder {
    service: Arc<Service>,
    backoffs: Backoffs,
    /// Pause after each write.
    pause: Duration,
}

impl Recorder {
    async fn run(self, used: mpsc::UnboundedReceiver<Arc<ApiKey>>, shutdown: CancellationToken) {
        let used = messages(used).map(|key| ObjectRef::of(&*key));
        work_queue::run(&self, used, 1, Gauge::default(), &shutdown).await;
    }
}

impl Reconcile for Recorder {
    fn class(&self, _: &ObjectRef) -> Class {
        Class::Normal
    }

    async fn reconcile(&self, object_ref: &ObjectRef, _: Class) -> Option<Duration> {
        let (namespace, name) = (object_ref.namespace(), object_ref.name());
        // If there is none, the key was revoked, or another replica has recorded the day.
        if let Some((object, day)) = self.service.credentials.unrecorded_use(namespace, name) {
            let patch = json!({
                // So that this overwrites neither a later day from another replica nor the day of another key with this name.
                "metadata": { "resourceVersion": object.metadata.resource_version },
                "status": { "lastUsedOn": day },
            });
            let written: Result<ApiKey, CallError> =
                self.service.calls.patch_status(namespace, name, &patch).await;
            tokio::time::sleep(self.pause).await;
            match written {
                Ok(_) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    if !error.is_conflict() {
                        tracing::warn!(namespace, name, %error, "cannot record the day on which an API key was last used; will retry");
                    }
                    return Some(self.backoffs.next(object_ref));
                }
            }
        }
        self.backoffs.reset(object_ref);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU16, Ordering},
        time::Instant,
    };

    use http::Method;
    use parking_lot::Mutex;
    use serde_json::Value;
    use tokio::sync::mpsc::UnboundedReceiver;

    use super::*;
    use crate::service::{Dependencies, Settings, demo_account};
    use providers::simulator::SimulatedUsage;
    use resources::api_key::new_key;
    use runtime::{
        Health,
        shared_catalogue::SharedCatalogue,
        testing::{TestClock, answered_by},
        watch::{Change, Listener},
    };

    type Write = (Instant, String, Value);

    /// A service with a recorder, and what it has written. The API server answers with `code`.
    struct Recorded {
        recorder: Recorder,
        used: UnboundedReceiver<Arc<ApiKey>>,
        clock: TestClock,
        code: Arc<AtomicU16>,
        writes: Arc<Mutex<Vec<Write>>>,
        watch: Box<dyn Listener<ApiKey>>,
        objects: Vec<ApiKey>,
        texts: Vec<String>,
    }

    impl Recorded {
        fn with_keys(count: usize) -> Self {
            let clock = TestClock::at("2026-11-22T10:00:00Z".parse().unwrap());
            let (code, writes) = (Arc::new(AtomicU16::new(200)), Arc::<Mutex<Vec<Write>>>::default());
            let answer = {
                let (code, writes) = (code.clone(), writes.clone());
                move |method: Method, path: String, body: Value| {
                    assert_eq!(method, Method::PATCH);
                    writes.lock().push((Instant::now(), path, body));
                    let code = code.load(Ordering::Relaxed);
                    let body = match code {
                        200 => json!({ "metadata": { "name": "key" }, "spec": { "sha256": "" } }),
                        _ => json!({
                            "kind": "Status", "status": "Failure", "code": code, "message": "",
                            "reason": if code == 409 { "Conflict" } else { "NotFound" },
                        }),
                    };
                    async move { (code, body) }
                }
            };
            let dependencies = Dependencies {
                client: answered_by(answer),
                health: Health::default(),
                clock: Arc::new(clock.clone()),
                catalogue: SharedCatalogue::default(),
                usage: Arc::new(SimulatedUsage::default()),
                receiver_check: Arc::new(|_| Ok(())),
            };
            let service = Arc::new(Service::new(dependencies, Settings::default()));
            let (texts, objects): (Vec<String>, Vec<ApiKey>) = (0..count)
                .map(|number| {
                    let (text, spec) = new_key(None, "uid", resources::KeyScope::Read, None);
                    let mut object = ApiKey::new(&format!("key-{number}"), spec);
                    object.metadata.namespace = Some("demo".to_owned());
                    object.metadata.uid = Some(format!("uid-{number}"));
                    object.metadata.resource_version = Some(number.to_string());
                    (text, object)
                })
                .unzip();
            let mut listeners = service.listeners();
            listeners
                .accounts
                .changed(&Change::Replaced(vec![demo_account()]));
            let all = objects.iter().cloned().map(Arc::new).collect();
            listeners.keys.changed(&Change::Replaced(all));
            let (first_uses, used) = mpsc::unbounded_channel();
            service.first_uses.set(first_uses).unwrap();
            Self {
                recorder: Recorder {
                    service,
                    backoffs: Backoffs::default(),
                    pause: Duration::ZERO,
                },
                used,
                clock,
                code,
                writes,
                watch: listeners.keys,
                objects,
                texts,
            }
        }

        fn use_key(&self, number: usize) {
            let service = &self.recorder.service;
            let credentials = service.credentials();
            let credential = credentials.authenticate(&self.texts[number], || service.now());
            service.note_use(&credential.ok().unwrap());
        }

        /// The keys that were queued.
        fn queued(&mut self) -> Vec<String> {
            let queued = std::iter::from_fn(|| self.used.try_recv().ok());
            queued.map(|key| key.metadata.name.clone().unwrap()).collect()
        }

        /// Records the use of a key. Returns when to try again.
        async fn record(&self, number: usize) -> Option<Duration> {
            let key = ObjectRef::of(&self.objects[number]);
            self.recorder.reconcile(&key, Class::Normal).await
        }

        fn set_clock(&self, now: &str) {
            self.clock.set(now.parse().unwrap());
        }

        /// The watch shows a key whose last use was recorded.
        fn show(&mut self, number: usize, day: &str) {
            let mut object = self.objects[number].clone();
            object.status = Some(serde_json::from_value(json!({ "lastUsedOn": day })).unwrap());
            self.watch.changed(&Change::Applied(Arc::new(object)));
        }

        fn writes(&self) -> usize {
            self.writes.lock().len()
        }
    }

    #[tokio::test]
    async fn a_key_is_queued_once_a_day_and_costs_one_write_of_its_status_alone() {
        let mut recorded = Recorded::with_keys(2);
        for _ in 0..1000 {
            recorded.use_key(0);
        }
        assert_eq!(recorded.queued(), ["key-0"]);
        assert_eq!(recorded.record(0).await, None);
        let (_, path, body) = recorded.writes.lock()[0].clone();
        assert!(path.contains("/namespaces/demo/apikeys/key-0/status"), "{path}");
        let expected =
            json!({ "metadata": { "resourceVersion": "0" }, "status": { "lastUsedOn": "2026-11-22" } });
        assert_eq!(body, expected);
        // The watch shows the day, and the key is queued for some other reason.
        recorded.show(0, "2026-11-22");
        recorded.use_key(0);
        assert_eq!((recorded.queued().len(), recorded.record(0).await), (0, None));
        assert_eq!(recorded.writes(), 1);

        recorded.set_clock("2026-11-23T00:00:00Z");
        recorded.use_key(0);
        recorded.use_key(0);
        assert_eq!(recorded.queued(), ["key-0"]);
        recorded.record(0).await;
        let (.., body) = recorded.writes.lock()[1].clone();
        assert_eq!(body["status"]["lastUsedOn"], "2026-11-23");
        recorded.show(0, "2026-11-23");
        recorded.set_clock("2026-11-22T23:00:00Z");
        recorded.use_key(0);
        assert_eq!((recorded.queued().len(), recorded.record(0).await), (0, None));
        // The other was never used.
        assert_eq!((recorded.record(1).await, recorded.writes()), (None, 2));
    }

    #[tokio::test]
    async fn a_failed_write_is_retried_later_until_the_watch_shows_the_day_or_the_key_is_gone() {
        let mut recorded = Recorded::with_keys(2);
        recorded.code.store(409, Ordering::Relaxed);
        for number in [0, 1] {
            recorded.use_key(number);
            let mut before = Duration::ZERO;
            for _ in 0..4 {
                let delay = recorded.record(number).await.unwrap();
                assert!(delay >= Duration::from_secs(1) && delay > before, "{delay:?}");
                before = delay;
            }
        }
        assert_eq!(recorded.writes(), 8);
        // Another replica has written the day of one, and the other is revoked.
        recorded.show(0, "2026-11-22");
        let gone = recorded.objects[1].clone();
        recorded.watch.changed(&Change::Deleted(Arc::new(gone)));
        assert_eq!((recorded.record(0).await, recorded.record(1).await), (None, None));
        assert_eq!(recorded.writes(), 8);
        assert!(
            !recorded
                .recorder
                .backoffs
                .has_failed(&ObjectRef::new("demo", "key-1")),
            "it is forgotten"
        );
    }

    #[tokio::test]
    async fn a_key_that_the_api_server_does_not_find_is_forgotten() {
        let recorded = Recorded::with_keys(1);
        recorded.code.store(404, Ordering::Relaxed);
        recorded.use_key(0);
        assert_eq!((recorded.record(0).await, recorded.writes()), (None, 1));
    }

    #[tokio::test]
    async fn keys_that_are_used_at_the_same_time_are_recorded_one_after_the_other() {
        let recorded = Recorded::with_keys(5);
        (0..5).for_each(|number| recorded.use_key(number));
        let Recorded {
            mut recorder,
            used,
            writes,
            ..
        } = recorded;
        recorder.pause = Duration::from_millis(50);
        let shutdown = CancellationToken::new();
        let recording = tokio::spawn(recorder.run(used, shutdown.clone()));
        let all = async {
            while writes.lock().len() < 5 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
        shutdown.cancel();
        recording.await.unwrap();
        let writes = writes.lock();
        assert!(
            writes
                .windows(2)
                .all(|pair| pair[1].0 - pair[0].0 >= Duration::from_millis(50)),
            "{writes:?}"
        );
    }
}
