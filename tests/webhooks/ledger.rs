//! Instances that change all the time, and a ledger of expected and received events.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use backon::ExponentialBuilder;
use bytes::Bytes;
use futures::StreamExt as _;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::{
        WatchStreamExt as _,
        reflector::{ObjectRef, Store, store},
        watcher::{self, Event, watcher},
    },
};
use parking_lot::Mutex;
use rand::RngExt as _;
use resources::{EventLog, Instance, InstanceState, ids};
use serde_json::json;
use tokio::{task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::support::{
    PATIENCE, Tenant, eventually,
    receivers::{Answer, Options, Received, Receiver},
    spec,
};

/// Watches that survive restarts of the API server.
fn patient() -> watcher::ExponentialBackoff {
    let backoff = ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_secs(1));
    watcher::ExponentialBackoff::from(backoff.without_max_times())
}

/// What a workload has done.
#[derive(Clone, Default)]
pub struct Done {
    /// Number of changes of each instance that still exists.
    pub changes: HashMap<String, usize>,
    /// Names and UIDs of the instances that were created, and deleted once they were running.
    pub passed: Vec<(String, String)>,
}

/// Repeatedly stops and starts instances with random pauses, and creates and deletes others, regardless of
/// failures.
pub struct Workload {
    done: Arc<Mutex<Done>>,
    count: Arc<AtomicUsize>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    _watch: JoinSet<()>,
}

impl Workload {
    /// A workload for these running instances.
    pub async fn start(tenant: &Tenant, names: &[String], pause: Duration) -> Self {
        let (reader, writer) = store::<Instance>();
        let stream = watcher(tenant.instances(), watcher::Config::default()).backoff(patient());
        let mut watch = JoinSet::new();
        watch.spawn(async move {
            let mut writer = writer;
            let mut stream = std::pin::pin!(stream);
            while let Some(event) = stream.next().await {
                if let Ok(event) = event {
                    writer.apply_watcher_event(&event);
                }
            }
        });
        reader.wait_until_ready().await.unwrap();
        let mut workload = Self {
            done: Arc::default(),
            count: Arc::default(),
            stop: CancellationToken::new(),
            tasks: JoinSet::new(),
            _watch: watch,
        };
        for name in names {
            let work = Work {
                api: tenant.instances(),
                seen: reader.clone(),
                place: ObjectRef::new(name).within(&tenant.namespace),
                done: workload.done.clone(),
                count: workload.count.clone(),
                pause,
            };
            let stop = workload.stop.clone();
            workload.tasks.spawn(async move { work.run(&stop).await });
        }
        let passing = Passing {
            api: tenant.instances(),
            done: workload.done.clone(),
            pause,
        };
        let stop = workload.stop.clone();
        workload.tasks.spawn(async move { passing.run(&stop).await });
        workload
    }

    /// Number of completed changes.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Waits until all requested changes are done.
    pub async fn stop(mut self) -> Done {
        self.stop.cancel();
        let all = async {
            while let Some(ended) = self.tasks.join_next().await {
                ended.unwrap();
            }
        };
        let in_time = timeout(PATIENCE, all).await;
        assert!(in_time.is_ok(), "a change is never done");
        self.done.lock().clone()
    }
}

struct Work {
    api: Api<Instance>,
    seen: Store<Instance>,
    place: ObjectRef<Instance>,
    done: Arc<Mutex<Done>>,
    count: Arc<AtomicUsize>,
    pause: Duration,
}

impl Work {
    async fn run(self, stop: &CancellationToken) {
        let name = &self.place.name;
        for (power, state) in [
            ("Stopped", InstanceState::Stopped),
            ("Running", InstanceState::Running),
        ]
        .into_iter()
        .cycle()
        {
            if stop.is_cancelled() {
                return;
            }
            let patch = json!({ "spec": { "powerState": power } });
            let generation = loop {
                match self
                    .api
                    .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
                    .await
                {
                    Ok(instance) => break instance.metadata.generation,
                    // The API server is down. Repeating the request is harmless.
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            };
            let is_done = |instance: &Instance| {
                instance.status.as_ref().is_some_and(|status| {
                    status.observed_generation >= generation
                        && status.operation.is_none()
                        && status.state == Some(state)
                })
            };
            while !self
                .seen
                .get(&self.place)
                .is_some_and(|instance| is_done(&instance))
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            self.count.fetch_add(1, Ordering::Relaxed);
            *self.done.lock().changes.entry(name.clone()).or_default() += 1;
            let pause = self.pause.mul_f64(rand::rng().random_range(0.0..2.0));
            tokio::time::sleep(pause).await;
        }
    }
}

/// Instances that come and go, one after the other.
struct Passing {
    api: Api<Instance>,
    done: Arc<Mutex<Done>>,
    pause: Duration,
}

impl Passing {
    async fn run(self, stop: &CancellationToken) {
        for number in 0.. {
            if stop.is_cancelled() {
                return;
            }
            let name = format!("passing-{number}");
            let uid = self.create(&name).await;
            self.until(&name, |found| {
                let status = found.and_then(|instance| instance.status.as_ref());
                status.is_some_and(|status| status.state == Some(InstanceState::Running))
            })
            .await;
            // The API server may be down. Repeating the request is harmless.
            while let Err(error) = self.api.delete(&name, &DeleteParams::default()).await {
                if is_code(&error, 404) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            self.until(&name, |found| found.is_none()).await;
            self.done.lock().passed.push((name, uid));
            tokio::time::sleep(self.pause).await;
        }
    }

    /// Creates an instance, and returns its UID.
    async fn create(&self, name: &str) -> String {
        let mut instance = Instance::new(name, spec());
        instance.metadata.name = Some(name.to_owned());
        loop {
            match self.api.create(&PostParams::default(), &instance).await {
                Ok(created) => return created.uid().unwrap(),
                // An earlier attempt succeeded, but its answer was lost.
                Err(error) if is_code(&error, 409) => {
                    if let Ok(found) = self.api.get(name).await {
                        return found.uid().unwrap();
                    }
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    async fn until(&self, name: &str, condition: impl Fn(Option<&Instance>) -> bool) {
        loop {
            if let Ok(found) = self.api.get_opt(name).await
                && condition(found.as_ref())
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// When each delivery was seen to be finished, by webhook and event.
#[derive(Clone)]
pub struct Logged {
    seen: Arc<Mutex<HashMap<(String, String), Instant>>>,
    /// Events that are on more than one page, each with the names of two of the pages.
    twice: Arc<Mutex<Vec<String>>>,
    /// Whether deliveries that succeed immediately are logged, too.
    is_complete: bool,
}

impl Logged {
    /// Watches the log of an account for as long as the runtime lives.
    pub fn watch(tenant: &Tenant, is_complete: bool) -> Self {
        let logged = Self {
            seen: Arc::default(),
            twice: Arc::default(),
            is_complete,
        };
        let log = logged.clone();
        let pages: Api<EventLog> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
        let stream = watcher(pages, watcher::Config::default()).backoff(patient());
        tokio::spawn(async move {
            let mut stream = std::pin::pin!(stream);
            let mut pages: HashMap<String, String> = HashMap::new();
            while let Some(event) = stream.next().await {
                let Ok(Event::Apply(page) | Event::InitApply(page)) = event else {
                    continue;
                };
                let name = page.name_any();
                for event in page.spec.events {
                    let earlier = pages.insert(event.id.clone(), name.clone());
                    if let Some(earlier) = earlier.filter(|earlier| *earlier != name) {
                        log.twice.lock().push(format!("{} ({earlier}, {name})", event.id));
                        continue;
                    }
                    for delivery in event.deliveries {
                        let key = (delivery.webhook, event.id.clone());
                        log.seen.lock().entry(key).or_insert_with(Instant::now);
                    }
                }
            }
        });
        let log = logged.clone();
        let stream = watcher(tenant.deliveries(), watcher::Config::default()).backoff(patient());
        tokio::spawn(async move {
            let mut stream = std::pin::pin!(stream);
            while let Some(event) = stream.next().await {
                if let Ok(Event::Apply(delivery) | Event::InitApply(delivery)) = event
                    && delivery.is_finished()
                {
                    let key = (delivery.spec.webhook.clone(), delivery.spec.event_id.clone());
                    log.seen.lock().entry(key).or_insert_with(Instant::now);
                }
            }
        });
        logged
    }
}

/// The requests of a receiver, by event.
#[derive(Clone, Default)]
pub struct Book(Arc<Mutex<Pages>>);

#[derive(Default)]
struct Pages {
    events: HashMap<String, Page>,
    requests: usize,
}

/// When each request arrived, and whether it was answered with success.
type Arrivals = Vec<(Instant, bool)>;

struct Page {
    event_type: String,
    bodies: HashSet<Bytes>,
    /// The number of the first request.
    first: usize,
    arrivals: Arrivals,
}

impl Book {
    /// Starts a receiver that records its requests, and answers as `answer` says.
    pub async fn start(&self, answer: impl Fn() -> Answer + Send + Sync + 'static) -> Receiver {
        let book = self.clone();
        let options = Options {
            record: false,
            ..Options::default()
        };
        Receiver::with(options, move |request| {
            let answer = answer();
            book.note(request, answer.status.is_success());
            answer
        })
        .await
    }

    fn note(&self, request: &Received, accepted: bool) {
        let mut pages = self.0.lock();
        pages.requests += 1;
        let first = pages.requests;
        let id = request.header("x-service-event-id").to_owned();
        let event_type = request.header("x-service-event-type").to_owned();
        let page = pages.events.entry(id).or_insert_with(|| Page {
            event_type,
            bodies: HashSet::new(),
            first,
            arrivals: Vec::new(),
        });
        page.bodies.insert(request.body.clone());
        page.arrivals.push((request.at, accepted));
    }

    /// The events that were answered with success.
    fn accepted(&self) -> Vec<String> {
        let pages = self.0.lock();
        let accepted = pages.events.iter().filter(|(_, page)| page.is_accepted());
        accepted.map(|(id, _)| id.clone()).collect()
    }

    /// Waits until all that has been answered with success is logged.
    pub async fn is_logged(&self, webhook: &str, logged: &Logged) {
        let accepted = self.accepted();
        let unlogged = async || {
            let log = logged.seen.lock();
            let is_logged = |id: &&String| log.contains_key(&(webhook.to_owned(), (*id).clone()));
            accepted.iter().filter(|id| !is_logged(id)).count()
        };
        eventually("what was sent to be logged", unlogged, |count| *count == 0).await;
    }

    /// The events among these that were not answered with success, or (if all are logged) whose Delivery does not say so.
    fn missing(&self, expected: &Expected, webhook: &str, logged: &Logged) -> Vec<(String, i64, String)> {
        let (pages, log) = (self.0.lock(), logged.seen.lock());
        let is_done = |id: &String| {
            let is_logged = || !logged.is_complete || log.contains_key(&(webhook.to_owned(), id.clone()));
            pages.events.get(id).is_some_and(Page::is_accepted) && is_logged()
        };
        let events = expected.iter().filter(|(id, _)| !is_done(id));
        events
            .map(|(id, (instance, sequence, _))| (instance.clone(), *sequence, id.clone()))
            .collect()
    }
}

/// Event ids, with the instance, the sequence number and the type of each.
pub type Expected = BTreeMap<String, (String, i64, &'static str)>;

/// The events that must arrive, according to the API server. The instances were created and started, and then stopped and
/// started in turn, as often as `done` says; others were created, started and deleted.
pub async fn expected(tenant: &Tenant, done: &Done) -> Expected {
    let (instances, changes) = (tenant.all_instances().await, &done.changes);
    assert_eq!(instances.len(), changes.len());
    let mut all = Expected::new();
    for (name, uid) in &done.passed {
        for (sequence, event_type) in (1..).zip(["instance.created", "instance.started", "instance.deleted"])
        {
            all.insert(ids::event_id(uid, sequence), (name.clone(), sequence, event_type));
        }
    }
    for instance in instances {
        let (name, uid) = (instance.name_any(), instance.uid().unwrap());
        let last = instance.status.as_ref().unwrap().event_sequence;
        let transitions = 2 + i64::try_from(changes[&name]).unwrap();
        assert_eq!(last, transitions, "{name}: an event for each transition");
        for sequence in 1..=last {
            let event_type = match sequence {
                1 => "instance.created",
                n if n % 2 == 0 => "instance.started",
                _ => "instance.stopped",
            };
            let event = (name.clone(), sequence, event_type);
            all.insert(ids::event_id(&uid, sequence), event);
        }
    }
    all
}

/// The results.
#[derive(Debug, PartialEq, Eq)]
pub struct Balance {
    events: usize,
    requests: usize,
    /// Requests that repeat an event already answered with success.
    duplicates: usize,
    /// Events that first arrived before an earlier one of the same instance.
    early: usize,
}

impl std::fmt::Display for Balance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            events,
            requests,
            duplicates,
            early,
        } = self;
        write!(
            f,
            "{events} events in {requests} requests, {duplicates} of them duplicates, {early} out of order"
        )
    }
}

/// Waits until all expected events are accepted and logged. Checks that no others arrived, that none arrived after it was
/// logged as delivered, and that what had been accepted came again at most once for each of these interruptions before it. (How
/// soon it is logged is held by the unit tests of the log, which have a clock of their own.) Events out of order are counted and
/// printed with their details, but do not fail the test.
pub async fn balance(
    tenant: &Tenant,
    book: &Book,
    expected: &Expected,
    webhook: &str,
    logged: &Logged,
    interruptions: &[Instant],
) -> Balance {
    let what = format!("every event to arrive at {webhook}, and to be logged");
    let missing = async || book.missing(expected, webhook, logged);
    eventually(&what, missing, Vec::is_empty).await;
    let early = book.early(expected);
    if !early.is_empty() {
        let mut deliveries = tenant.deliveries_of(webhook).await;
        deliveries.retain(|delivery| early.iter().any(|(id, ..)| *id == delivery.spec.event_id));
        println!("out of order at {webhook}: {early:#?}, of which is written down: {deliveries:#?}");
    }
    Balance {
        early: early.len() / 2,
        ..book.check(expected, webhook, logged, interruptions)
    }
}

impl Book {
    /// Pairs of events of one instance where the later one arrived first, each with its id, number and time of arrival.
    fn early(&self, expected: &Expected) -> Vec<(String, i64, Arrivals)> {
        let pages = self.0.lock();
        let mut all: Vec<_> = pages
            .events
            .iter()
            .filter_map(|(id, page)| Some((expected.get(id)?, id, page)))
            .collect();
        all.sort_by_key(|(event, ..)| *event);
        let is_early = |pair: &&[(&(String, i64, &str), &String, &Page)]| {
            pair[0].0.0 == pair[1].0.0 && pair[0].2.first > pair[1].2.first
        };
        let pairs = all.windows(2).filter(is_early).flatten();
        pairs
            .map(|(event, id, page)| ((*id).clone(), event.1, page.arrivals.clone()))
            .collect()
    }

    fn check(
        &self,
        expected: &Expected,
        webhook: &str,
        logged: &Logged,
        interruptions: &[Instant],
    ) -> Balance {
        let (pages, log) = (self.0.lock(), logged.seen.lock());
        let twice = logged.twice.lock();
        assert!(twice.is_empty(), "events are on two pages: {twice:?}");
        let mut balance = Balance {
            events: pages.events.len(),
            requests: pages.requests,
            duplicates: 0,
            early: 0,
        };
        for (id, page) in &pages.events {
            let Some((instance, sequence, event_type)) = expected.get(id) else {
                panic!("{id} is no event of any instance: {:?}", page.bodies);
            };
            assert_eq!(page.bodies.len(), 1, "{id} has two bodies: {:?}", page.bodies);
            assert_eq!(page.event_type, *event_type, "{instance} {sequence}");
            let logged_at = log.get(&(webhook.to_owned(), id.clone()));
            assert!(logged_at.is_some() || !logged.is_complete, "{id} is not logged");
            assert!(
                logged_at.is_none_or(|logged_at| page.arrivals.iter().all(|(at, _)| at < logged_at)),
                "{id} was sent again although it was logged as delivered: {:?}, logged at {logged_at:?}",
                page.arrivals
            );
            let repeated = page.repeated();
            for (number, at) in (1..).zip(&repeated) {
                let earlier = interruptions
                    .iter()
                    .filter(|interruption| *interruption < at)
                    .count();
                assert!(
                    number <= earlier,
                    "{id} was repeated {number} times after {earlier} interruptions: {:?}",
                    page.arrivals
                );
            }
            balance.duplicates += repeated.len();
        }
        balance
    }
}

impl Page {
    fn is_accepted(&self) -> bool {
        self.arrivals.iter().any(|(_, accepted)| *accepted)
    }

    /// When this event came again after it had been answered with success.
    fn repeated(&self) -> Vec<Instant> {
        let pairs = self.arrivals.windows(2).filter(|pair| pair[0].1);
        pairs.map(|pair| pair[1].0).collect()
    }
}
