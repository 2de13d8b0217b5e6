//! One process of the operator: the controllers of instances, backups and invoices, and the sampler, wired as the program wires
//! them, but with a clock that only advances when it is set.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    future::Future,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _, future::LocalBoxFuture, stream::BoxStream};
use http::{HeaderMap, HeaderValue, header::DATE};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::api_server::{ApiServer, Stored};
use crate::{
    account::AccountDirectory,
    backup::{BackupController, BackupIndex, backup_listener, instance_listener},
    instance::InstanceController,
    invoice::{self, InvoiceController},
    ledger::Ledger,
    monitoring::Monitor,
    network::Networks,
};
use domain::{
    backup::BackupLimits,
    event::{EventType, Outbox, OutboxVersion},
    invoice::{Period, ledger::SPREAD},
    provider::{BackupObservation, Deadlines, Observation, ProviderError, Timings, Usage},
};
use providers::{
    Provider, Step,
    simulator::{FAULT_ANNOTATION, Faults, Pools, Simulator},
};
use resources::{Account, Backup, HasOutbox, Instance, Invoice, OutboxEntry, PowerState, origin};
use runtime::{
    ByNamespace, Clock, Metrics, ObjectRef, ReconcileQueue, ServerTime, Store,
    events::Events,
    objects::{Writer, store},
    reconcile_queue::Queued,
    shared_catalogue::SharedCatalogue,
    testing::TestClock,
    watch::{Change, Listener},
    work_queue::Reconcile,
    write_pressure::WritePressure,
};

/// Limits on manual backups, per account and per instance.
pub const LIMITS: BackupLimits = BackupLimits {
    per_instance: 5,
    per_account: 60,
};
/// Time between two samples. Some are missing, but not for an hour, which would end an alert.
pub const SAMPLES: Duration = Duration::from_mins(15);
/// Annotation with the CPU usage of a server in percent.
pub const CPU: &str = "simulator.stellage.dev/cpu";
/// One in this many provider calls fails.
const PROVIDER_FAILURES: u32 = 100;
/// One in this many writes is seen late by the watches.
const LATE: u32 = 30;
/// How often the controller reconciles an account with an open invoice in case the clock is set, which does
/// not happen here.
const IN_CASE: Duration = Duration::from_secs(60);
/// How often this test reconciles it instead.
const SELDOM: SignedDuration = SignedDuration::from_hours(6);

/// What receivers have got, by event id.
#[derive(Default)]
pub struct Inbox {
    pub events: BTreeMap<String, Received>,
    /// Ids of events that have not been looked at yet.
    pub new: Vec<String>,
}

pub struct Received {
    pub event_type: EventType,
    pub body: String,
    /// UID of the object that the event is about.
    pub uid: String,
    /// When it was recorded.
    pub at: Timestamp,
}

/// Delivers recorded events. What a process knows about them dies with it.
struct TestOutbox {
    inbox: Arc<Mutex<Inbox>>,
    clock: Arc<TestClock>,
    settled: Mutex<HashMap<String, Timestamp>>,
    rng: Mutex<StdRng>,
}

impl TestOutbox {
    fn deliver(&self, uid: &str, entry: &OutboxEntry) {
        let late = if self.rng.lock().random_bool(0.02) { 40 } else { 0 };
        let settled_at = self.clock.now() + SignedDuration::from_secs(late);
        self.settled.lock().entry(entry.id.clone()).or_insert(settled_at);
        let Inbox { events, new } = &mut *self.inbox.lock();
        let received = events.entry(entry.id.clone()).or_insert_with(|| {
            new.push(entry.id.clone());
            Received {
                event_type: entry.event_type,
                body: entry.body.clone(),
                uid: uid.to_owned(),
                at: entry.created_at,
            }
        });
        assert_eq!(received.body, entry.body, "an event has two bodies");
    }

    fn deliver_all<K: HasOutbox>(&self, object: &K) {
        for entry in object.outbox() {
            self.deliver(origin::uid(object.meta()), entry);
        }
    }

    /// Finds events whose write was stored although it seemed to fail.
    fn listener<K: HasOutbox>(self: &Arc<Self>) -> Box<dyn Listener<K>> {
        let outbox = self.clone();
        Box::new(move |change: &Change<K>| match change {
            Change::Applied(object) => outbox.deliver_all(&**object),
            Change::Replaced(all) => all.iter().for_each(|object| outbox.deliver_all(&**object)),
            Change::Deleted(_) | Change::Unreadable(_) => {}
        })
    }
}

impl Outbox for TestOutbox {
    fn is_settled(&self, event_id: &str) -> bool {
        let now = self.clock.now();
        self.settled.lock().get(event_id).is_some_and(|at| *at <= now)
    }

    fn is_logged(&self) -> bool {
        false
    }

    fn has_unattempted(&self, _: &str) -> bool {
        false
    }

    fn recorded(&self, outbox: &OutboxVersion<'_>, before: i64) {
        for entry in outbox.entries.iter().filter(|entry| entry.sequence > before) {
            self.deliver(outbox.uid, entry);
        }
    }
}

/// The simulator, with occasional failures.
struct Flaky {
    simulator: Simulator,
    /// The API server whose next write the first answer waits for.
    waits_for: Mutex<Option<ApiServer>>,
    rng: Mutex<StdRng>,
}

impl Flaky {
    /// A failure here instead of in the simulator, which would keep callers waiting; that takes time in this
    /// world.
    fn fails(&self, instance: Option<&Instance>) -> Result<(), ProviderError> {
        if instance.and_then(|instance| instance.annotation(FAULT_ANNOTATION)) == Some("unreachable") {
            return Err(ProviderError::Timeout(Duration::from_secs(10)));
        }
        if self.rng.lock().random_range(0..PROVIDER_FAILURES) == 0 {
            return Err(ProviderError::Unavailable("away".to_owned()));
        }
        Ok(())
    }
}

impl Provider for Flaky {
    fn name(&self, _: &str) -> &'static str {
        "flaky"
    }

    fn deadlines(&self, region: &str) -> Deadlines {
        self.simulator.deadlines(region)
    }

    fn reserve(&self, instance: &Instance) -> domain::provider::Addresses {
        self.simulator.reserve(instance)
    }

    fn release(&self, instance: &Instance) {
        self.simulator.release(instance);
    }

    async fn step(&self, step: Step<'_>) -> Result<Observation, ProviderError> {
        self.fails(Some(step.instance))?;
        let waits_for = self.waits_for.lock().take();
        if let Some(server) = waits_for {
            while !server.has_writes() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        self.simulator.step(step).await
    }

    async fn create_backup(
        &self,
        backup: &Backup,
        instance: &Instance,
        now: Timestamp,
    ) -> Result<BackupObservation, ProviderError> {
        self.fails(Some(instance))?;
        self.simulator.create_backup(backup, instance, now).await
    }

    async fn delete_backup(&self, backup: &Backup) -> Result<(), ProviderError> {
        self.fails(None)?;
        self.simulator.delete_backup(backup).await
    }
}

/// The watch of a kind. It shows writes in order, some of them late.
struct Watch<K: Queued + std::fmt::Debug + DeserializeOwned> {
    plural: &'static str,
    reader: Store<K>,
    writer: Writer<K>,
    listeners: Vec<Box<dyn Listener<K>>>,
    backlog: VecDeque<(Timestamp, Stored)>,
}

impl<K: Queued + std::fmt::Debug + DeserializeOwned> Watch<K> {
    fn new(plural: &'static str) -> Self {
        let (reader, writer) = store();
        Self {
            plural,
            reader,
            writer,
            listeners: Vec::new(),
            backlog: VecDeque::new(),
        }
    }

    fn begin(&mut self, server: &ApiServer, listeners: Vec<Box<dyn Listener<K>>>) {
        self.listeners = listeners;
        self.writer
            .replace(server.list(self.plural).into_iter().map(Arc::new));
        self.notify(&Change::Replaced(self.reader.state()));
    }

    fn notify(&mut self, change: &Change<K>) {
        for listener in &mut self.listeners {
            listener.changed(change);
        }
    }

    fn push(&mut self, stored: &Stored, due: Timestamp) {
        if stored.plural == self.plural {
            let last = self.backlog.back().map(|(due, _)| *due);
            self.backlog
                .push_back((last.map_or(due, |last| last.max(due)), stored.clone()));
        }
    }

    fn next(&self) -> Option<Timestamp> {
        self.backlog.front().map(|(due, _)| *due)
    }

    /// Shows the next write if it is due.
    fn show(&mut self, now: Timestamp) -> bool {
        let Some((_, stored)) = self.backlog.pop_front_if(|(due, _)| *due <= now) else {
            return false;
        };
        let parse = |object: serde_json::Value| -> K { serde_json::from_value(object).unwrap() };
        if let Some(after) = stored.after {
            let object = Arc::new(parse(after));
            self.writer.apply(object.clone());
            self.notify(&Change::Applied(object));
        } else if let Some(before) = stored.before {
            let object = parse(before);
            self.writer.delete(object.meta());
            self.notify(&Change::Deleted(Arc::new(object)));
        }
        true
    }
}

/// A reconciler and its queue.
struct Work {
    reconcile: Box<dyn Fn(ObjectRef) -> LocalBoxFuture<'static, Option<Duration>>>,
    triggers: BoxStream<'static, ObjectRef>,
}

impl Work {
    fn new(
        reconciler: impl Reconcile + 'static,
        triggers: impl futures::Stream<Item = ObjectRef> + Send + 'static,
    ) -> Self {
        let reconciler = Arc::new(reconciler);
        let reconcile = move |object_ref: ObjectRef| {
            let reconciler = reconciler.clone();
            let reconcile = async move {
                let class = reconciler.class(&object_ref);
                reconciler.reconcile(&object_ref, class).await
            };
            reconcile.boxed_local()
        };
        Self {
            reconcile: Box::new(reconcile),
            triggers: triggers.boxed(),
        }
    }

    fn next_trigger(&mut self) -> Option<ObjectRef> {
        self.triggers.next().now_or_never().flatten()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Job {
    Instance(ObjectRef),
    Backup(ObjectRef),
    Account(ObjectRef),
    Prices,
    Samples,
}

/// When each job is due; each is listed once.
#[derive(Default)]
struct Timers {
    at: HashMap<Job, (Timestamp, u64)>,
    order: BTreeMap<(Timestamp, u64), Job>,
    count: u64,
}

impl Timers {
    fn set(&mut self, job: Job, at: Timestamp) {
        if let Some(before) = self.at.remove(&job) {
            self.order.remove(&before);
        }
        self.count += 1;
        self.at.insert(job.clone(), (at, self.count));
        self.order.insert((at, self.count), job);
    }

    /// Like [`set`](Self::set), but never postpones a job.
    fn request(&mut self, job: Job, now: Timestamp) {
        if self.at.get(&job).is_none_or(|(at, _)| *at > now) {
            self.set(job, now);
        }
    }

    fn next(&self) -> Option<Timestamp> {
        self.order.first_key_value().map(|((at, _), _)| *at)
    }

    fn pop(&mut self, now: Timestamp) -> Option<Job> {
        if self.next()? > now {
            return None;
        }
        let (_, job) = self.order.pop_first()?;
        self.at.remove(&job);
        Some(job)
    }
}

pub struct Operator {
    clock: Arc<TestClock>,
    server_time: ServerTime,
    catalogue: SharedCatalogue,
    instances: Watch<Instance>,
    backups: Watch<Backup>,
    accounts: Watch<Account>,
    invoices: Watch<Invoice>,
    instance_work: Work,
    backup_work: Work,
    account_work: Work,
    settled: BoxStream<'static, ObjectRef>,
    requests: mpsc::UnboundedReceiver<String>,
    invoice_controller: InvoiceController,
    directory: AccountDirectory,
    queue: ReconcileQueue<Instance>,
    monitor: Arc<Monitor>,
    sampled: i64,
    time: Timestamp,
    timers: Timers,
    rng: StdRng,
}

/// What all processes share.
pub struct Surroundings {
    pub server: ApiServer,
    pub clock: Arc<TestClock>,
    pub inbox: Arc<Mutex<Inbox>>,
    /// How long the provider's operations take.
    pub timings: Timings,
    /// Whether the provider's first answer waits until something is written.
    pub waits_for_write: bool,
}

impl Surroundings {
    /// A world in which it is `now`.
    pub fn new(server: ApiServer, now: Timestamp, timings: Timings) -> Self {
        let clock = Arc::new(TestClock::at(now));
        Self {
            server,
            clock,
            inbox: Arc::default(),
            timings,
            waits_for_write: false,
        }
    }

    /// Lets time pass.
    pub fn set_time(&self, now: Timestamp) {
        self.clock.set(now);
        self.server.set_now(now);
    }
}

impl Operator {
    #[expect(clippy::too_many_lines, reason = "it connects the parts, as the program does")]
    pub fn start(surroundings: &Surroundings, catalogue: SharedCatalogue, seed: u64) -> Self {
        let Surroundings {
            server,
            clock,
            inbox,
            timings,
            waits_for_write,
        } = surroundings;
        let time = clock.now();
        let client = server.connect();
        let (metrics, server_time) = (Metrics::new(), ServerTime::default());
        tell(&server_time, time);
        let outbox = Arc::new(TestOutbox {
            inbox: inbox.clone(),
            clock: clock.clone(),
            settled: Mutex::default(),
            rng: Mutex::new(StdRng::seed_from_u64(seed)),
        });
        let directory = AccountDirectory::default();
        let (queue, backup_queue) = (ReconcileQueue::default(), ReconcileQueue::default());
        let invoice_queue = ReconcileQueue::default();
        let index = BackupIndex::new(backup_queue.clone());
        let by_namespace = ByNamespace::default();
        let ledger = Ledger::default();
        let events = |name| Events::new(client.clone(), name, "test");
        let billing = invoice::InvoiceSettings {
            bills_simulated: true,
            ..invoice::InvoiceSettings::default()
        };
        let invoice_controller = InvoiceController::new(invoice::Deps {
            client: client.clone(),
            namespace: "system".to_owned(),
            directory: directory.clone(),
            ledger: ledger.clone(),
            instances: by_namespace.clone(),
            settings: billing.clone(),
            backups: index.clone(),
            outbox: outbox.clone(),
            catalogue: catalogue.clone(),
            clock: clock.clone(),
            server_time: server_time.clone(),
            metrics: metrics.clone(),
            events: events("invoice-controller"),
        });
        let monitor = Monitor::new(clock.now());
        let (mut instances, mut backups) = (Watch::new("instances"), Watch::new("backups"));
        let (mut accounts, mut invoices) = (Watch::new("accounts"), Watch::new("invoices"));
        let [invoices_before, invoices_after] = invoice_controller.instance_listeners();
        instances.begin(
            server,
            vec![
                outbox.listener(),
                Box::new(queue.clone()),
                invoices_before,
                Box::new(by_namespace.clone()),
                monitor.listener(),
                invoices_after,
                instance_listener(index.clone(), backup_queue.clone()),
            ],
        );
        backups.begin(
            server,
            vec![
                outbox.listener(),
                index.listener(),
                backup_listener(by_namespace.clone(), queue.clone()),
                Box::new(backup_queue.clone()),
                invoice_controller.backup_listener(),
            ],
        );
        invoices.begin(
            server,
            vec![
                outbox.listener(),
                invoice_controller.invoice_listener(),
                Box::new(invoice_queue.clone()),
            ],
        );
        accounts.begin(
            server,
            vec![directory.listener(|_| {}), invoice_controller.account_listener()],
        );
        let known = instances.reader.state();
        let known = known.iter().map(|instance| &**instance);
        let provider = Arc::new(Flaky {
            waits_for: Mutex::new(waits_for_write.then(|| server.clone())),
            simulator: Simulator::new(*timings, Pools::default(), Faults::new(true), known),
            rng: Mutex::new(StdRng::seed_from_u64(seed + 1)),
        });
        let instance_controller = InstanceController {
            client: client.clone(),
            provider: provider.clone(),
            directory: directory.clone(),
            instances: by_namespace.clone(),
            backups: index.clone(),
            networks: Networks::new(by_namespace.clone()),
            monitor: monitor.clone(),
            ledger: ledger.clone(),
            invoices: billing,
            outbox: outbox.clone(),
            catalogue: catalogue.clone(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            events: events("instance-controller"),
            write_pressure: WritePressure::default(),
            concurrency: 8,
            write_concurrency: 8,
            provider_timeout: Duration::from_secs(10),
        };
        let backup_controller = BackupController {
            client: client.clone(),
            provider,
            directory: directory.clone(),
            outbox,
            index,
            instances: instances.reader.clone(),
            instances_of: by_namespace,
            instance_queue: queue.clone(),
            catalogue: catalogue.clone(),
            limits: LIMITS,
            clock: clock.clone(),
            metrics,
            events: events("backup-controller"),
            concurrency: 8,
            write_concurrency: 8,
            provider_timeout: Duration::from_secs(10),
        };
        let (triggers, _) = queue.open(&instances.reader);
        let instance_work = Work::new(instance_controller.reconciler(queue.clone()), triggers);
        let (triggers, _) = backup_queue.open(&backups.reader);
        let backup_work = Work::new(backup_controller.reconciler(backup_queue), triggers);
        let requests = ledger.open();
        let (settled, _) = invoice_queue.open(&invoices.reader);
        let reconciler = invoice_controller.reconciler(accounts.reader.clone(), invoices.reader.clone());
        let account_work = Work::new(reconciler, futures::stream::pending());
        let mut timers = Timers::default();
        for account in accounts.reader.state() {
            timers.set(Job::Account(ObjectRef::of(&*account)), time);
        }
        timers.set(Job::Prices, time);
        timers.set(Job::Samples, time);
        Self {
            clock: clock.clone(),
            server_time,
            catalogue,
            instances,
            backups,
            accounts,
            invoices,
            instance_work,
            backup_work,
            account_work,
            settled: settled.boxed(),
            requests,
            invoice_controller,
            directory,
            queue,
            sampled: monitor.moment(),
            monitor,
            time,
            timers,
            rng: StdRng::seed_from_u64(seed + 2),
        }
    }

    /// Queues writes for the watches, no matter who made them.
    pub fn saw(&mut self, writes: &[Stored]) {
        for stored in writes {
            let late = if self.rng.random_range(0..LATE) == 0 {
                1500
            } else {
                5
            };
            let due = self.time + SignedDuration::from_millis(late);
            self.instances.push(stored, due);
            self.backups.push(stored, due);
            self.accounts.push(stored, due);
            self.invoices.push(stored, due);
        }
    }

    /// When the next work is due. Queues what is waiting for its turn.
    pub fn next(&mut self) -> Option<Timestamp> {
        while let Some(instance) = self.instance_work.next_trigger() {
            self.timers.request(Job::Instance(instance), self.time);
        }
        while let Some(backup) = self.backup_work.next_trigger() {
            self.timers.request(Job::Backup(backup), self.time);
        }
        while let Some(Some(invoice)) = self.settled.next().now_or_never() {
            if let Some(invoice) = self.invoices.reader.get(&invoice) {
                self.request_account(&invoice.spec.account_namespace);
            }
        }
        while let Ok(namespace) = self.requests.try_recv() {
            self.request_account(&namespace);
        }
        let watches = [
            self.instances.next(),
            self.backups.next(),
            self.accounts.next(),
            self.invoices.next(),
        ];
        watches.into_iter().flatten().chain(self.timers.next()).min()
    }

    fn request_account(&mut self, namespace: &str) {
        if let Some(account) = self.directory.account_of(namespace) {
            let name = account.name_any();
            self.timers
                .request(Job::Account(ObjectRef::new("", &name)), self.time);
        }
    }

    /// Lets time pass.
    pub fn set_time(&mut self, time: Timestamp) {
        let passed = time.duration_since(self.time);
        self.time = time;
        tell(&self.server_time, time);
        self.monitor.skip(Duration::try_from(passed).unwrap());
    }

    /// Does one thing that is due. The future never completes if the process dies meanwhile.
    pub async fn step(&mut self) {
        let now = self.time;
        if self.accounts.show(now)
            || self.instances.show(now)
            || self.backups.show(now)
            || self.invoices.show(now)
        {
            return;
        }
        let Some(job) = self.timers.pop(now) else {
            return;
        };
        let again = match &job {
            Job::Instance(object_ref) => (self.instance_work.reconcile)(object_ref.clone()).await,
            Job::Backup(object_ref) => (self.backup_work.reconcile)(object_ref.clone()).await,
            Job::Account(object_ref) => {
                let again = (self.account_work.reconcile)(object_ref.clone()).await;
                again.map(|again| self.seldom(again))
            }
            Job::Prices => {
                let recorded = self.invoice_controller.record_prices().await;
                Some(Duration::from_secs(if recorded { 3600 } else { 5 }))
            }
            Job::Samples => {
                self.sample();
                Some(SAMPLES)
            }
        };
        if let Some(again) = again {
            // Work that takes no time in this world takes a little.
            let again = i64::try_from(again.as_millis()).unwrap() + 1;
            self.timers.request(job, now + SignedDuration::from_millis(again));
        }
    }

    /// Reconciles an account rarely if there is nothing to do, except after the end of a month.
    fn seldom(&self, again: Duration) -> Duration {
        if again != IN_CASE {
            return again;
        }
        let now = self.clock.now();
        let after = SignedDuration::from_secs(6) + SPREAD;
        let month = Period::month_of(now).to.duration_since(now) + after;
        Duration::try_from(SELDOM.min(month)).unwrap()
    }

    fn sample(&mut self) {
        let to = self.monitor.moment();
        let alerts = self.catalogue.current().alerts.clone();
        for due in self.monitor.due(alerts.interval, self.sampled, to) {
            let status = due.instance.status.as_ref();
            let is_on = status.is_some_and(|status| status.power == Some(PowerState::Running));
            let cpu = due
                .instance
                .annotation(CPU)
                .map_or(20.0, |text| text.parse().unwrap());
            let is_known = is_on && self.rng.random_range(0..50) != 0;
            let usage = is_known.then(|| Usage {
                cpu_usage: Some(cpu),
                ..Usage::default()
            });
            self.queue
                .again(self.monitor.record(&due, &alerts, usage.as_ref()));
        }
        self.sampled = to;
    }
}

/// Reports the API server's time.
fn tell(server_time: &ServerTime, time: Timestamp) {
    let text = httpdate::fmt_http_date(time.into());
    let head = HeaderMap::from_iter([(DATE, HeaderValue::from_str(&text).unwrap())]);
    server_time.answered(&head);
}

/// Runs a step until it ends or the process dies. Returns whether the process is still alive.
pub async fn alive(server: &ApiServer, step: impl Future<Output = ()>) -> bool {
    let mut step = std::pin::pin!(step);
    loop {
        tokio::select! {
            biased;
            () = &mut step => return !server.is_dead(),
            () = tokio::task::yield_now() => if server.is_dead() { return false },
        }
    }
}
