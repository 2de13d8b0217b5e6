//! Simulates an API server, lagging watches, receivers and the controller around a dispatcher. Nothing happens by itself: the
//! test takes each step, in any order.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;

use super::super::{job::Counted, *};
use crate::event::{EventType, OutboxEntry, OutboxVersion};
use resources::{
    Delivery, DeliveryPhase, DeliverySpec, DeliveryStatus, EventLog,
    delivery::{ATTEMPT_REQUESTED_AT_ANNOTATION, FINISHED_LABEL},
    event_log::MAX_EVENTS,
    ids, revision,
};

/// The outbox of an instance.
pub fn outbox_version<'a>(
    namespace: &'a str,
    uid: &'a str,
    revision: u64,
    entries: &'a [OutboxEntry],
) -> OutboxVersion<'a> {
    OutboxVersion {
        kind: "Instance",
        account_namespace: namespace,
        namespace,
        name: uid,
        uid,
        revision,
        is_deleting: false,
        entries,
    }
}

/// What a receiver does with the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    Up,
    Down,
    Gone,
}

/// The fate of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Good,
    /// It does not arrive.
    Lost,
    /// It arrives, but its response is lost.
    Unheard,
}

#[derive(Clone, Debug)]
pub struct Hook {
    pub facts: WebhookFacts,
    active: bool,
    disabled: Option<i64>,
    disabled_by: Option<Arc<str>>,
}

#[derive(Debug, Default)]
pub struct Object {
    namespace: String,
    pub revision: u64,
    sequence: i64,
    pub outbox: Vec<OutboxEntry>,
}

#[derive(Debug)]
enum Change {
    Delivery(Arc<Delivery>),
    DeliveryGone(Arc<Delivery>),
}

#[derive(Debug)]
enum HookChange {
    Is(WebhookFacts),
    Gone(WebhookKey, Arc<str>),
}

#[derive(Debug)]
pub enum Answer {
    Written(JobKey, Written),
    Checked(JobKey, Result<Option<Arc<Delivery>>, ()>),
    Paged(Arc<str>, PageWritten),
    LogChecked(Arc<str>, Vec<Arc<str>>, Result<Mentions, Unreadable>),
}

#[derive(Clone, Debug)]
pub struct Sending {
    pub job: JobKey,
    pub webhook: WebhookKey,
    pub event: Arc<Event>,
    pub at: Duration,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Writes {
    pub creates: usize,
    pub replaces: usize,
    pub deletes: usize,
    pub pages: usize,
}

pub struct World {
    pub limits: DeliveryLimits,
    pub schedule: RetrySchedule,
    pub log: DeliveryLog,
    pub dispatcher: Dispatcher,
    began: Instant,
    pub elapsed: Duration,
    pub wall: Timestamp,
    revision: u64,
    pub objects: BTreeMap<String, Object>,
    pub hooks: BTreeMap<WebhookKey, Hook>,
    pub deliveries: BTreeMap<JobKey, Arc<Delivery>>,
    delivery_watch: VecDeque<Change>,
    hook_watch: VecDeque<HookChange>,
    object_watch: VecDeque<(String, u64)>,
    versions: HashMap<(String, u64), Vec<OutboxEntry>>,
    /// What the controller knows about webhooks.
    webhook_facts: HashMap<WebhookKey, WebhookFacts>,
    pub no_secret: HashSet<WebhookKey>,
    /// Maximum number of Deliveries.
    pub quota: usize,
    pub commands: Vec<Command>,
    pub requests: Vec<(JobKey, WriteRequest)>,
    /// Pages that are being written.
    pub page_requests: Vec<(Arc<str>, Page)>,
    /// The pages of the event log, by namespace and time.
    pub pages: BTreeMap<(Arc<str>, Timestamp, Vec<String>), Page>,
    pub answers: Vec<Answer>,
    pub sendings: Vec<Sending>,
    lookup: Option<(Vec<Arc<str>>, Vec<WebhookFacts>)>,
    pub receivers: HashMap<WebhookKey, Receiver>,
    /// Every attempt that began.
    pub begun: Vec<Sending>,
    /// Every attempt that succeeded.
    pub arrived: HashSet<JobKey>,
    /// How they got there, of events that are no tests.
    pub receipts: Vec<Receipt>,
    pub writes: Writes,
    pub disablements: Vec<Disablement>,
    /// The revision when this process began.
    pub floor: u64,
    bodies: HashMap<String, String>,
    /// Events that must arrive.
    pub owed: HashMap<JobKey, (WebhookKey, String)>,
    /// Deliveries recorded or logged as delivered and not requested again.
    logged: HashSet<JobKey>,
    /// Events that were recorded.
    recorded: HashSet<String>,
    /// Deliveries that were dropped for lack of room and need not arrive.
    dropped: HashSet<JobKey>,
}

pub const START: &str = "2026-11-21T10:00:00Z";

impl World {
    pub fn new(log: DeliveryLog) -> Self {
        Self::with(DeliveryLimits::default(), log)
    }

    pub fn with(limits: DeliveryLimits, log: DeliveryLog) -> Self {
        let schedule = RetrySchedule::default();
        Self {
            dispatcher: Dispatcher::new(limits.clone(), schedule.clone(), log),
            limits,
            schedule,
            log,
            began: Instant::now(),
            elapsed: Duration::ZERO,
            wall: START.parse().unwrap(),
            revision: 100,
            objects: BTreeMap::new(),
            hooks: BTreeMap::new(),
            deliveries: BTreeMap::new(),
            delivery_watch: VecDeque::new(),
            hook_watch: VecDeque::new(),
            object_watch: VecDeque::new(),
            versions: HashMap::new(),
            webhook_facts: HashMap::new(),
            no_secret: HashSet::new(),
            quota: usize::MAX,
            commands: Vec::new(),
            requests: Vec::new(),
            page_requests: Vec::new(),
            pages: BTreeMap::new(),
            answers: Vec::new(),
            sendings: Vec::new(),
            lookup: None,
            receivers: HashMap::new(),
            begun: Vec::new(),
            arrived: HashSet::new(),
            receipts: Vec::new(),
            writes: Writes::default(),
            disablements: Vec::new(),
            floor: 0,
            bodies: HashMap::new(),
            owed: HashMap::new(),
            logged: HashSet::new(),
            recorded: HashSet::new(),
            dropped: HashSet::new(),
        }
    }

    pub fn now(&self) -> Now {
        Now {
            wall: self.wall,
            mono: self.began + self.elapsed,
        }
    }

    fn next_revision(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    // Actions of users.

    /// A world with one webhook, whose receiver is in this state.
    pub fn with_hook(log: DeliveryLog, receiver: Receiver) -> (Self, WebhookKey) {
        let mut world = Self::new(log);
        let webhook = world.add_hook("ns", "one");
        world.receivers.insert(webhook.clone(), receiver);
        world.settle();
        (world, webhook)
    }

    pub fn add_hook(&mut self, namespace: &str, name: &str) -> WebhookKey {
        let revision = self.next_revision();
        let webhook = key(namespace, name);
        let facts = WebhookFacts {
            namespace: namespace.into(),
            name: name.into(),
            uid: format!("uid-{namespace}-{name}-{revision}").into(),
            object_uid: format!("uid-{namespace}-{name}-{revision}").into(),
            revision,
            generation: 1,
            created_at: self.wall,
            events: EventType::ALL.to_vec(),
            gate: WebhookGate::Open,
            disabled_by: None,
        };
        self.hook_watch.push_back(HookChange::Is(facts.clone()));
        let hook = Hook {
            facts,
            active: true,
            disabled: None,
            disabled_by: None,
        };
        self.hooks.insert(webhook.clone(), hook);
        webhook
    }

    fn touch(&mut self, webhook: &WebhookKey) {
        let revision = self.next_revision();
        let Some(hook) = self.hooks.get_mut(webhook) else {
            return;
        };
        hook.facts.revision = revision;
        hook.facts.gate = match (hook.active, hook.disabled) {
            (false, _) => WebhookGate::Inactive,
            (true, Some(generation)) if generation == hook.facts.generation => WebhookGate::Disabled,
            _ => WebhookGate::Open,
        };
        let is_disabled = hook.facts.gate == WebhookGate::Disabled;
        hook.facts.disabled_by = hook.disabled_by.clone().filter(|_| is_disabled);
        self.hook_watch.push_back(HookChange::Is(hook.facts.clone()));
    }

    /// Changes the spec in any way.
    pub fn change_hook(&mut self, webhook: &WebhookKey, active: bool) {
        let Some(hook) = self.hooks.get_mut(webhook) else {
            return;
        };
        hook.facts.generation += 1;
        hook.active = active;
        if !active {
            // Events recorded before that have no Delivery yet may be lost if the process crashes.
            self.owed.retain(|_, (owed_to, _)| owed_to != webhook);
        }
        self.touch(webhook);
    }

    pub fn set_secret(&mut self, webhook: &WebhookKey, there: bool) {
        if there {
            self.no_secret.remove(webhook);
        } else {
            self.no_secret.insert(webhook.clone());
        }
        if let Some(facts) = self.webhook_facts.get(webhook).cloned() {
            self.show_webhook(facts);
        }
        self.take_commands();
    }

    pub fn delete_hook(&mut self, webhook: &WebhookKey) {
        for job in self.remove_hook(webhook) {
            self.delete_delivery(&job);
        }
    }

    /// Deletes a webhook with `--cascade=orphan`.
    pub fn orphan_hook(&mut self, webhook: &WebhookKey) {
        for job in self.remove_hook(webhook) {
            let mut record = (*self.deliveries[&job]).clone();
            record.metadata.owner_references = None;
            self.store(&job, record);
        }
    }

    /// Removes a webhook. Returns its Deliveries.
    fn remove_hook(&mut self, webhook: &WebhookKey) -> Vec<JobKey> {
        let Some(hook) = self.hooks.remove(webhook) else {
            return Vec::new();
        };
        self.next_revision();
        self.hook_watch
            .push_back(HookChange::Gone(webhook.clone(), hook.facts.uid));
        self.owed.retain(|_, (owed_to, _)| owed_to != webhook);
        let all = self.deliveries.iter();
        let of_it = all.filter(|(_, record)| is_of(record, webhook));
        of_it.map(|(job, _)| job.clone()).collect()
    }

    pub fn delete_delivery(&mut self, job: &JobKey) {
        self.next_revision();
        self.owed.remove(job);
        self.logged.remove(job);
        if let Some(gone) = self.deliveries.remove(job)
            && !is_labelled(&gone)
        {
            self.delivery_watch.push_back(Change::DeliveryGone(gone));
        }
    }

    /// Removes the label of a finished Delivery.
    pub fn redeliver(&mut self, job: &JobKey) {
        let record = self.deliveries.get(job).map(|record| (**record).clone());
        let Some(mut record) = record.or_else(|| self.of_page(job)).filter(is_labelled) else {
            return;
        };
        record.metadata.labels.as_mut().unwrap().remove(FINISHED_LABEL);
        self.logged.remove(job);
        self.store(job, record);
    }

    /// The Delivery that REST creates from a delivery on a page.
    fn of_page(&self, job: &JobKey) -> Option<Delivery> {
        let hooks = self.hooks.values().map(|hook| &hook.facts);
        self.pages.iter().find_map(|((namespace, at, _), page)| {
            page.events.iter().find_map(|event| {
                let name = |uid: &str| ids::delivery_name(uid, &event.id);
                let facts = hooks
                    .clone()
                    .find(|facts| super::super::key(namespace, &name(&facts.uid)) == *job)?;
                let events = page.events.clone();
                let page = EventLog::page(namespace, "uid", *at, events)?;
                let mut delivery = event.delivery_to(&facts.uid, &page)?;
                let owner = Webhook::owner_reference(&facts.name, &facts.uid);
                delivery.metadata.owner_references = Some(vec![owner]);
                let status = delivery.status.take()?;
                delivery.set_status(status, *at);
                Some(delivery)
            })
        })
    }

    /// Requests that a Delivery be sent now, as REST does. Returns the nonce.
    pub fn request(&mut self, job: &JobKey) -> Option<String> {
        let mut record = (**self.deliveries.get(job)?).clone();
        let nonce = format!("2026-11-22T10:00:00.{}Z", self.revision);
        let annotations = record.metadata.annotations.get_or_insert_default();
        annotations.insert(ATTEMPT_REQUESTED_AT_ANNOTATION.to_owned(), nonce.clone());
        if let Some(labels) = &mut record.metadata.labels {
            labels.remove(FINISHED_LABEL);
        }
        self.logged.remove(job);
        self.store(job, record);
        Some(nonce)
    }

    /// Withdraws the request.
    pub fn take_back(&mut self, job: &JobKey) {
        let mut record = (*self.deliveries[job]).clone();
        if let Some(annotations) = &mut record.metadata.annotations {
            annotations.remove(ATTEMPT_REQUESTED_AT_ANNOTATION);
        }
        self.store(job, record);
    }

    pub fn add_test(&mut self, webhook: &WebhookKey, name: &str) -> JobKey {
        let (namespace, webhook_name) = webhook.split_once('/').unwrap();
        let job = key(namespace, name);
        let record = Delivery {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(namespace.to_owned()),
                owner_references: Some(vec![OwnerReference {
                    uid: self.hooks[webhook].facts.uid.to_string(),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            spec: DeliverySpec {
                webhook: webhook_name.to_owned(),
                event_id: format!("evt_test_{name}"),
                event_type: EventType::InstanceStarted,
                event_created_at: self.wall,
                sequence: 0,
                subject: String::new(),
                body: "{}".to_owned(),
                traceparent: None,
                test: true,
            },
            status: Some(DeliveryStatus::new(DeliveryPhase::Pending, None)),
        };
        self.bodies.insert(record.spec.event_id.clone(), "{}".to_owned());
        self.store(&job, record);
        job
    }

    /// Records an event of an instance. Returns the event's id.
    pub fn record(&mut self, namespace: &str, uid: &str, fate: Fate) -> Option<String> {
        self.record_typed(namespace, uid, EventType::InstanceStarted, fate)
    }

    pub fn record_typed(
        &mut self,
        namespace: &str,
        uid: &str,
        event_type: EventType,
        fate: Fate,
    ) -> Option<String> {
        if fate == Fate::Lost {
            return None;
        }
        let wall = self.wall;
        self.objects.entry(uid.to_owned()).or_default().namespace = namespace.to_owned();
        self.retain_unsettled(uid);
        let object = self.objects.get_mut(uid).unwrap();
        object.sequence += 1;
        let id = ids::event_id(uid, object.sequence);
        let body = format!("{{\"id\":\"{id}\",\"at\":\"{wall}\"}}");
        object.outbox.push(OutboxEntry {
            id: id.clone(),
            event_type,
            sequence: object.sequence,
            created_at: wall,
            body: body.clone(),
            traceparent: None,
        });
        self.bodies.insert(id.clone(), body);
        self.recorded.insert(id.clone());
        for (webhook, hook) in &self.hooks {
            if hook.active && *hook.facts.namespace == *namespace {
                let job = key(namespace, &ids::delivery_name(&hook.facts.uid, &id));
                self.owed.insert(job, (webhook.clone(), id.clone()));
            }
        }
        self.written_outbox(uid, fate);
        Some(id)
    }

    fn retain_unsettled(&mut self, uid: &str) -> bool {
        let (object, dispatcher) = (self.objects.get_mut(uid).unwrap(), &self.dispatcher);
        let before = object.outbox.len();
        object.outbox.retain(|entry| !dispatcher.is_settled(&entry.id));
        before != object.outbox.len()
    }

    fn written_outbox(&mut self, uid: &str, fate: Fate) {
        let revision = self.next_revision();
        let object = self.objects.get_mut(uid).unwrap();
        object.revision = revision;
        let (namespace, outbox) = (object.namespace.clone(), object.outbox.clone());
        self.object_watch.push_back((uid.to_owned(), revision));
        self.versions.insert((uid.to_owned(), revision), outbox.clone());
        if fate == Fate::Good {
            let now = self.now();
            // As in the controller: an earlier process may have sent events that this one does not know about.
            let newest = outbox.last().map(|entry| entry.sequence);
            let is_left_over =
                |entry: &OutboxEntry| Some(entry.sequence) != newest && !self.dispatcher.knows(&entry.id);
            let origin = if outbox.iter().any(is_left_over) {
                Origin::Found
            } else {
                Origin::Fresh
            };
            let version = outbox_version(&namespace, uid, revision, &outbox);
            self.dispatcher.outbox_seen(&version, origin, now);
            self.take_commands();
        }
    }

    /// Removes settled entries from the outboxes.
    pub fn clear_outboxes(&mut self, fate: Fate) -> bool {
        let mut any = false;
        for uid in self.objects.keys().cloned().collect::<Vec<_>>() {
            if fate != Fate::Lost && self.retain_unsettled(&uid) {
                any = true;
                self.written_outbox(&uid, fate);
            }
        }
        any
    }

    // The API server.

    fn store(&mut self, job: &JobKey, mut record: Delivery) -> Arc<Delivery> {
        record.metadata.resource_version = Some(self.next_revision().to_string());
        let record = Arc::new(record);
        let before = self.deliveries.insert(job.clone(), record.clone());
        if !is_labelled(&record) {
            self.delivery_watch.push_back(Change::Delivery(record.clone()));
        } else if before.is_some_and(|before| !is_labelled(&before)) {
            self.delivery_watch
                .push_back(Change::DeliveryGone(record.clone()));
        }
        if record.is_finished() && record.status.as_ref().unwrap().phase == DeliveryPhase::Delivered {
            self.logged.insert(job.clone());
        }
        record
    }

    fn apply(&mut self, job: &JobKey, request: WriteRequest) -> Written {
        match request {
            WriteRequest::Create(record) => {
                self.writes.creates += 1;
                if let Some(there) = self.deliveries.get(job) {
                    return Written::Found(there.clone());
                }
                if self.deliveries.len() >= self.quota {
                    return Written::Refused;
                }
                let owner = record.metadata.owner_references.as_ref().unwrap()[0].uid.clone();
                let stored = self.store(job, *record);
                if !self.hooks.values().any(|hook| *hook.facts.uid == *owner) {
                    self.delete_delivery(job);
                }
                Written::Stored(stored)
            }
            WriteRequest::Replace(record) => {
                self.writes.replaces += 1;
                match self.deliveries.get(job) {
                    None => Written::Gone,
                    Some(there) if revision(&**there) != revision(&*record) => Written::Found(there.clone()),
                    Some(_) => Written::Stored(self.store(job, *record)),
                }
            }
            WriteRequest::Delete(_) => {
                self.writes.deletes += 1;
                self.delete_delivery(job);
                Written::Gone
            }
        }
    }

    fn apply_page(&mut self, namespace: &Arc<str>, page: Page) -> PageWritten {
        self.writes.pages += 1;
        let ids: Vec<String> = page.events.iter().map(|event| event.id.clone()).collect();
        assert!(!ids.is_empty() && ids.len() <= MAX_EVENTS);
        let key = (namespace.clone(), page.at, ids);
        if let Some(there) = self.pages.get(&key) {
            assert_eq!(there.events, page.events, "another page of the same name");
            return PageWritten::Stored;
        }
        for event in &page.events {
            assert!(!self.is_logged(&event.id), "{} is logged twice", event.id);
            assert_eq!(event.body, self.bodies[&event.id]);
            for delivery in &event.deliveries {
                let name = ids::delivery_name(&delivery.webhook_uid, &event.id);
                self.logged.insert(super::super::key(namespace, &name));
            }
        }
        self.pages.insert(key, page);
        PageWritten::Stored
    }

    fn is_logged(&self, event: &str) -> bool {
        self.pages
            .values()
            .any(|page| page.events.iter().any(|it| it.id == event))
    }

    fn mentions(&self, namespace: &str, events: &[Arc<str>]) -> Mentions {
        let pages = self.pages.iter().filter(|((of, ..), _)| **of == *namespace);
        let logged = pages.flat_map(|(_, page)| &page.events);
        let asked = logged.filter_map(|it| Some((it, events.iter().find(|id| ***id == *it.id)?)));
        asked
            .map(|(it, id)| {
                let delivered = it.deliveries.iter().map(|it| it.webhook_uid.clone());
                (id.clone(), delivered.collect())
            })
            .collect()
    }

    // The controller.

    pub fn take_commands(&mut self) {
        let now = self.now();
        while let Some(command) = self.dispatcher.next_command(now) {
            if let Command::Attempt {
                job, webhook, number, ..
            } = &command
            {
                let (job, gate) = (&self.dispatcher.jobs[job], self.dispatcher.queues[webhook].gate());
                assert_eq!(*number, job.status().attempt_count + 1);
                let is_wanted = gate == WebhookGate::Disabled && job.request().is_some();
                assert!(
                    gate == WebhookGate::Open || job.test || is_wanted,
                    "{webhook} is {gate:?}"
                );
            }
            self.commands.push(command);
        }
    }

    /// Carries out one command, up to the point where another party must answer.
    pub fn execute(&mut self, index: usize, fate: Fate) {
        let now = self.now();
        match self.commands.remove(index) {
            Command::Attempt {
                job, webhook, event, ..
            } => self.send(job, webhook, event),
            Command::Check(job) => {
                let found = match fate {
                    Fate::Good => Ok(self.deliveries.get(&job).cloned()),
                    _ => Err(()),
                };
                self.answers.push(Answer::Checked(job, found));
            }
            Command::Write { job, .. } => {
                if let Some(request) = self.dispatcher.begin_write(&job, now) {
                    assert!(
                        self.requests.iter().all(|(other, _)| *other != job),
                        "two writes of {job}"
                    );
                    self.requests.push((job, request));
                }
            }
            Command::Log(namespace) => {
                if let Some(page) = self.dispatcher.page(&namespace) {
                    let others = self.page_requests.iter();
                    assert!(others.map(|(other, _)| other).all(|other| *other != namespace));
                    self.page_requests.push((namespace, page));
                }
            }
            Command::CheckLog(namespace) => {
                if let Some(LogQuestion { events, .. }) = self.dispatcher.unknown_to_log(&namespace) {
                    let found = match fate {
                        Fate::Good => Ok(self.mentions(&namespace, &events)),
                        _ => Err(Unreadable::Failed),
                    };
                    self.answers.push(Answer::LogChecked(namespace, events, found));
                }
            }
            Command::Disable(disablement) => self.disable(disablement, fate),
            Command::Settled(uid) => {
                let outbox = &self.objects[&*uid].outbox;
                assert!(outbox.iter().all(|entry| self.dispatcher.is_settled(&entry.id)));
            }
        }
        self.take_commands();
    }

    fn send(&mut self, job: JobKey, webhook: WebhookKey, event: Arc<Event>) {
        assert!(
            !self.logged.contains(&job),
            "{job} is logged as delivered, and sent again"
        );
        let body = self.bodies.get(&*event.id).expect("a known event");
        assert_eq!(*event.body(), body.as_bytes(), "another body of {}", event.id);
        let at = self.elapsed;
        let sending = Sending {
            job,
            webhook,
            event,
            at,
        };
        self.begun.push(sending.clone());
        self.sendings.push(sending);
    }

    fn disable(&mut self, disablement: Disablement, fate: Fate) {
        let webhook = disablement.webhook.clone();
        if fate != Fate::Lost
            && let Some(hook) = self.hooks.get_mut(&webhook)
            && (&hook.facts.uid, hook.facts.generation) == (&disablement.uid, disablement.generation)
        {
            let again = hook.disabled.replace(disablement.generation) == Some(disablement.generation);
            // Another webhook may have been disabled since.
            let mut of_it = self.disablements.iter().filter(|it| it.webhook == webhook);
            let is_repeat = of_it.next_back() == Some(&disablement);
            assert!(!again || is_repeat, "{webhook} is disabled twice");
            if !again {
                hook.disabled_by = Some(disablement.delivery.as_str().into());
                self.disablements.push(disablement.clone());
                self.touch(&webhook);
            }
        }
        if fate == Fate::Good {
            self.dispatcher.disablement_written(&webhook);
        } else {
            self.commands.push(Command::Disable(disablement));
        }
    }

    pub fn write(&mut self, index: usize, fate: Fate) {
        let (job, request) = self.requests.remove(index);
        let result = match fate {
            Fate::Good => self.apply(&job, request),
            Fate::Lost => Written::Failed,
            Fate::Unheard => {
                self.apply(&job, request);
                Written::Failed
            }
        };
        self.answers.push(Answer::Written(job, result));
    }

    pub fn write_page(&mut self, index: usize, fate: Fate) {
        let (namespace, page) = self.page_requests.remove(index);
        let result = match fate {
            Fate::Good => self.apply_page(&namespace, page),
            Fate::Lost => PageWritten::Failed,
            Fate::Unheard => {
                self.apply_page(&namespace, page);
                PageWritten::Failed
            }
        };
        self.answers.push(Answer::Paged(namespace, result));
    }

    pub fn answer(&mut self, index: usize) {
        let now = self.now();
        match self.answers.remove(index) {
            Answer::Written(job, result) => self.dispatcher.written(&job, result, now),
            Answer::Checked(job, result) => self.dispatcher.checked(&job, result, now),
            Answer::Paged(namespace, written) => self.dispatcher.page_written(&namespace, written, now),
            Answer::LogChecked(namespace, events, found) => {
                self.dispatcher.log_checked(&namespace, &events, found, now);
            }
        }
        self.take_commands();
    }

    /// Ends an attempt, with the outcome that the receiver's state gives.
    pub fn land(&mut self, index: usize) {
        let webhook = self.sendings[index].webhook.clone();
        let code = match self.receivers.get(&webhook).unwrap_or(&Receiver::Up) {
            Receiver::Up => 200,
            Receiver::Down => 500,
            Receiver::Gone => 410,
        };
        let report = if self.no_secret.contains(&webhook) {
            Report::Blocked("no secret".to_owned())
        } else {
            self.report(code, None)
        };
        self.report_of(index, report);
    }

    pub fn report(&self, code: i32, retry_after: Option<Duration>) -> Report {
        let attempt = Attempt {
            at: self.wall,
            duration_ms: 1,
            status_code: Some(code),
            error: (code / 100 != 2).then(|| format!("status {code}")),
            response: None,
            url: None,
        };
        Report::Sent { attempt, retry_after }
    }

    pub fn report_of(&mut self, index: usize, report: Report) {
        let sending = self.sendings.remove(index);
        if let Report::Sent { attempt, .. } = &report
            && attempt.error.is_none()
        {
            self.arrived.insert(sending.job.clone());
        }
        let now = self.now();
        let receipt = self.dispatcher.attempted(&sending.job, report, now);
        self.receipts.extend(receipt);
        self.take_commands();
    }

    fn show_webhook(&mut self, mut facts: WebhookFacts) {
        let webhook = key(&facts.namespace, &facts.name);
        if self
            .webhook_facts
            .get(&webhook)
            .is_none_or(|known| known.revision <= facts.revision)
        {
            self.webhook_facts.insert(webhook.clone(), facts.clone());
        }
        if facts.gate == WebhookGate::Open && self.no_secret.contains(&webhook) {
            facts.gate = WebhookGate::Blocked;
        }
        let now = self.now();
        self.dispatcher.webhook_seen(facts, now);
    }

    pub fn watch_hooks(&mut self) -> bool {
        let Some(change) = self.hook_watch.pop_front() else {
            return false;
        };
        match change {
            HookChange::Is(facts) => self.show_webhook(facts),
            HookChange::Gone(webhook, uid) => {
                if self
                    .webhook_facts
                    .get(&webhook)
                    .is_some_and(|known| known.uid == uid)
                {
                    self.webhook_facts.remove(&webhook);
                }
                self.dispatcher.webhook_gone(&webhook, &uid, u64::MAX);
            }
        }
        self.take_commands();
        true
    }

    pub fn watch_deliveries(&mut self) -> bool {
        let Some(change) = self.delivery_watch.pop_front() else {
            return false;
        };
        let now = self.now();
        match change {
            Change::Delivery(record) => self.dispatcher.delivery_seen(record, false, now),
            Change::DeliveryGone(record) => {
                let metadata = &record.metadata;
                let (namespace, name) = (metadata.namespace.as_ref(), metadata.name.as_ref());
                self.dispatcher.delivery_gone(namespace.unwrap(), name.unwrap());
            }
        }
        self.take_commands();
        true
    }

    pub fn watch_objects(&mut self) -> bool {
        let Some((uid, revision)) = self.object_watch.pop_front() else {
            return false;
        };
        let (namespace, now) = (self.objects[&uid].namespace.clone(), self.now());
        let outbox = self.versions.remove(&(uid.clone(), revision)).unwrap();
        let version = outbox_version(&namespace, &uid, revision, &outbox);
        self.dispatcher.outbox_seen(&version, Origin::Found, now);
        self.take_commands();
        true
    }

    /// An object becomes unreadable, so that it seems gone.
    pub fn lose_sight(&mut self, uid: &str) {
        self.dispatcher.object_gone(uid);
        self.take_commands();
    }

    /// The watch shows an object as it is.
    pub fn show_object(&mut self, uid: &str) {
        let Some(object) = self.objects.get(uid) else {
            return;
        };
        let now = self.now();
        let version = outbox_version(&object.namespace, uid, object.revision, &object.outbox);
        self.dispatcher.outbox_seen(&version, Origin::Found, now);
        self.take_commands();
    }

    /// Restarts the watch of Deliveries with a list that is already outdated when the dispatcher gets it.
    pub fn relist(&mut self) {
        self.delivery_watch.clear();
        self.list(&self.unfinished());
    }

    /// Gives the dispatcher a new list of all unfinished Deliveries.
    pub fn list(&mut self, all: &[Arc<Delivery>]) {
        let now = self.now();
        let listed = all.iter().map(|record| job_key_of(record)).collect();
        let as_of = all.iter().map(|record| revision(&**record)).max().unwrap_or(0);
        for webhook in self.dispatcher.queues.keys().cloned().collect::<Vec<_>>() {
            self.dispatcher.forget_unlisted(&webhook, &listed, as_of);
        }
        for key in self.dispatcher.tombstones_after(None, usize::MAX) {
            if !listed.contains(&key) {
                self.dispatcher.forget_tombstone(&key, as_of);
            }
        }
        for key in self.dispatcher.orphans_after(None, usize::MAX) {
            if !listed.contains(&key) {
                self.dispatcher.forget_orphan(&key, as_of);
            }
        }
        for record in all {
            self.dispatcher.delivery_listed(record, self.floor, now);
        }
        self.take_commands();
    }

    fn unfinished(&self) -> Vec<Arc<Delivery>> {
        let all = self.deliveries.values();
        let mut all: Vec<_> = all.filter(|record| !is_labelled(record)).cloned().collect();
        sort_for_adoption(&mut all);
        all
    }

    fn unverified(&self) -> Vec<Arc<str>> {
        let unverified = self.dispatcher.unverified_after(None, usize::MAX);
        unverified.into_iter().map(|entry| entry.event).collect()
    }

    pub fn begin_lookup(&mut self) {
        let ids = self.unverified();
        let hooks = self.hooks.values().map(|hook| hook.facts.clone()).collect();
        self.lookup = Some((ids, hooks));
    }

    pub fn end_lookup(&mut self) {
        let Some((ids, hooks)) = self.lookup.take() else {
            return;
        };
        for facts in hooks {
            self.show_webhook(facts);
        }
        let now = self.now();
        self.dispatcher.verified(&ids, now);
        self.take_commands();
    }

    pub fn tick(&mut self) {
        let now = self.now();
        self.dispatcher.tick(now);
        self.take_commands();
    }

    pub fn pass(&mut self, time: Duration) {
        self.elapsed += time;
        self.wall += SignedDuration::try_from(time).unwrap();
        self.tick();
    }

    /// The process crashes and another takes over. Attempts in flight may arrive; running writes arrive if `lands`
    /// returns true for them.
    pub fn crash(&mut self, lands: impl Fn(usize) -> bool) {
        for (index, (job, request)) in std::mem::take(&mut self.requests).into_iter().enumerate() {
            if lands(index) {
                self.apply(&job, request);
            }
        }
        for (index, (namespace, page)) in std::mem::take(&mut self.page_requests).into_iter().enumerate() {
            if lands(index + 2) {
                self.apply_page(&namespace, page);
            }
        }
        for (index, sending) in std::mem::take(&mut self.sendings).into_iter().enumerate() {
            if lands(index + 1) {
                self.arrived.insert(sending.job);
            }
        }
        self.count_dropped();
        self.commands.clear();
        self.answers.clear();
        self.lookup = None;
        self.delivery_watch.clear();
        self.hook_watch.clear();
        self.object_watch.clear();
        self.versions.clear();
        self.webhook_facts.clear();
        self.dispatcher = Dispatcher::new(self.limits.clone(), self.schedule.clone(), self.log);
        for facts in self
            .hooks
            .values()
            .map(|hook| hook.facts.clone())
            .collect::<Vec<_>>()
        {
            self.show_webhook(facts);
        }
        self.floor = self.revision;
        let now = self.now();
        for record in self.unfinished() {
            self.dispatcher.delivery_seen(record, true, now);
        }
        for (uid, object) in &self.objects {
            let version = outbox_version(&object.namespace, uid, object.revision, &object.outbox);
            self.dispatcher.outbox_seen(&version, Origin::Found, now);
        }
        self.take_commands();
    }

    fn count_dropped(&mut self) {
        let dropped = self.dispatcher.totals.dropped_jobs.iter().cloned();
        self.dropped.extend(dropped);
    }

    // Everything at once.

    /// Runs everything that can happen without time passing, including attempts.
    pub fn settle(&mut self) {
        self.work(true);
    }

    /// Like [`Self::settle`], but attempts stay in flight.
    pub fn work(&mut self, land: bool) {
        self.take_commands();
        for round in 0.. {
            assert!(round < 1_000_000, "it never ends");
            if !self.step(land) {
                return;
            }
        }
    }

    /// Runs the next step. Returns whether there was one.
    fn step(&mut self, land: bool) -> bool {
        self.tick();
        let is_any = self.watch_hooks() | self.watch_deliveries() | self.watch_objects();
        if !self.commands.is_empty() {
            self.execute(0, Fate::Good);
        } else if !self.requests.is_empty() {
            self.write(0, Fate::Good);
        } else if !self.page_requests.is_empty() {
            self.write_page(0, Fate::Good);
        } else if !self.answers.is_empty() {
            self.answer(0);
        } else if land && !self.sendings.is_empty() {
            self.land(0);
        } else if !self.unverified().is_empty() {
            self.begin_lookup();
            self.end_lookup();
        } else {
            return is_any || self.clear_outboxes(Fate::Good);
        }
        true
    }

    /// Runs and advances time until a condition holds.
    pub fn run_until(&mut self, is_so: impl Fn(&Self) -> bool) {
        self.take_commands();
        while !is_so(self) {
            if !self.step(true) {
                let at = self.dispatcher.next_timer().expect("it never is");
                self.pass(at.saturating_duration_since(self.now().mono));
            }
        }
    }

    /// Runs until no timer is left; returns the times of the timers.
    pub fn run(&mut self) {
        self.settle();
        while let Some(at) = self.dispatcher.next_timer() {
            self.pass(at.saturating_duration_since(self.now().mono));
            self.settle();
        }
    }

    /// Repairs all receivers, enables all webhooks, and advances time.
    pub fn heal(&mut self) {
        self.receivers.clear();
        self.no_secret.clear();
        for webhook in self.hooks.keys().cloned().collect::<Vec<_>>() {
            self.change_hook(&webhook, true);
        }
        self.run();
        for uid in self.objects.keys().cloned().collect::<Vec<_>>() {
            self.show_object(&uid);
        }
        self.run();
        // The next list corrects what an outdated one left out, and may show a delivery that is to be sent again.
        for _ in 0..2 {
            self.relist();
            self.run();
        }
    }

    // Questions.

    pub fn status(&self, job: &JobKey) -> DeliveryStatus {
        self.deliveries[job].status.clone().unwrap()
    }

    pub fn job(&self, webhook: &WebhookKey, event: &str) -> JobKey {
        let namespace = webhook.split_once('/').unwrap().0;
        key(
            namespace,
            &ids::delivery_name(&self.hooks[webhook].facts.uid, event),
        )
    }

    pub fn tally(&self, webhook: &WebhookKey) -> (Tally, i64, i64) {
        self.dispatcher.tally(webhook).unwrap()
    }

    /// Checks that the counters are right, as they must be at every moment.
    pub fn audit(&self) {
        let d = &self.dispatcher;
        let flights = d.flights.len();
        assert!(flights <= d.limits.in_flight);
        let (mut taken, mut suspects) = (HashMap::<Arc<str>, usize>::new(), HashMap::new());
        for (account, is_suspect) in d.flights.values().map(Flight::account) {
            *taken.entry(account.clone()).or_default() += 1;
            if is_suspect {
                *suspects.entry(account.clone()).or_default() += 1;
            }
        }
        assert_eq!(d.slots.taken(), [&taken, &suspects]);
        let half = (d.limits.in_flight / 2).max(1);
        assert!(taken.values().all(|taken| *taken <= half), "{taken:?}");
        let mut firsts = HashSet::new();
        for flight in d.flights.values() {
            if let (Some(webhook), Some(subject)) = (flight.webhook(), flight.subject())
                && !subject.is_empty()
            {
                assert!(
                    firsts.insert((webhook.clone(), subject.clone())),
                    "two first attempts of {subject}"
                );
            }
        }
        let under_way = |command: &Command| matches!(command, Command::Attempt { .. });
        let commanded = self.commands.iter().filter(|command| under_way(command)).count();
        assert_eq!(flights, self.sendings.len() + commanded);
        for (webhook, queue) in &d.queues {
            let jobs: Vec<_> = queue.jobs.iter().map(|job| &d.jobs[job]).collect();
            assert_eq!(queue.pending, jobs.iter().filter(|job| job.is_pending()).count());
            assert_eq!(queue.draining, jobs.iter().filter(|job| job.drains).count());
            let held = jobs.iter().filter(|job| job.state == State::Held).count();
            assert_eq!(queue.held.len(), held);
            let ready = jobs.iter().filter(|job| matches!(job.state, State::Ready(_)));
            assert_eq!(queue.waiting(), ready.count());
            let to_it = d
                .flights
                .values()
                .filter(|flight| flight.webhook() == Some(webhook));
            assert_eq!(queue.in_flight, to_it.count());
            assert!(queue.in_flight <= d.limits.in_flight_per_webhook);
        }
        let of = |what: Counted| d.jobs.values().filter(move |job| job.counts_as() == Some(what));
        for (what, counts) in [(Counted::Owed, &d.totals.owed), (Counted::Held, &d.totals.held)] {
            assert_eq!(counts.total(), of(what).count(), "{what:?}");
            for (webhook, queue) in &d.queues {
                let of_it = of(what).filter(|job| job.webhook == *webhook).count();
                assert_eq!(counts.of_webhook(&queue.facts.namespace, webhook), of_it);
            }
        }
        let mut since: BTreeMap<Timestamp, usize> = BTreeMap::new();
        for job in of(Counted::Owed) {
            *since.entry(job.order.created_at).or_default() += 1;
        }
        assert_eq!(d.totals.owed_since, since);
        let yielding = d.jobs.values().filter_map(|job| Some((job.yields_as()?, job)));
        let mut count = 0;
        for (wanted, job) in yielding {
            let queue = &d.queues[&job.webhook];
            assert!(queue.yielding.contains(&(wanted, job.order.clone())));
            count += 1;
        }
        assert_eq!(
            d.queues.values().map(|queue| queue.yielding.len()).sum::<usize>(),
            count
        );
        let can_yield = |queues: &mut dyn Iterator<Item = &WebhookQueue>| {
            queues.fold((false, false), |(owed, held), queue| {
                (owed || !queue.yielding.is_empty(), held || !queue.held.is_empty())
            })
        };
        for (namespace, webhooks) in &d.by_namespace {
            let (owed, held) = can_yield(&mut webhooks.iter().map(|webhook| &d.queues[webhook]));
            assert_eq!(d.totals.owed.largest_webhook(namespace).is_some(), owed);
            assert_eq!(d.totals.held.largest_webhook(namespace).is_some(), held);
        }
        let (owed, held) = can_yield(&mut d.queues.values());
        assert_eq!(d.totals.owed.largest_account().is_some(), owed);
        assert_eq!(d.totals.held.largest_account().is_some(), held);
        let pending: usize = d.queues.values().map(|queue| queue.pending).sum();
        assert_eq!(d.totals.pending, pending);
        for (jobs, open) in d.entries.open() {
            let settles = |job: &&JobKey| d.jobs.get(*job).is_some_and(|job| job.settles_entry);
            assert_eq!(jobs.iter().filter(settles).count(), open, "{jobs:?}");
        }
        let in_queues: usize = d.queues.values().map(|queue| queue.jobs.len()).sum();
        assert_eq!(in_queues, d.jobs.len());
    }

    /// Checks that nothing is left over, and that every event has arrived.
    pub fn audit_end(&mut self) {
        self.audit();
        self.count_dropped();
        let d = &self.dispatcher;
        assert!(
            d.jobs.is_empty(),
            "jobs left: {:#?} in {:#?}, with {:?}",
            d.jobs,
            d.queues,
            self.deliveries.keys()
        );
        assert!(d.tombstones.is_empty(), "tombstones: {:?}", d.tombstones);
        assert!(d.flights.is_empty() && d.slots.taken().iter().all(|it| it.is_empty()));
        assert!(d.entries.is_empty(), "entries left: {:?}", d.entries);
        assert!(d.logs.is_empty(), "to be logged: {:?}", d.logs);
        if self.log == DeliveryLog::All {
            for event in &self.recorded {
                assert!(self.is_logged(event), "{event} is not logged");
            }
        } else {
            assert!(self.pages.is_empty());
        }
        assert!(d.timers.is_empty() && d.orphans.is_empty());
        assert!(d.totals.owed.is_empty() && d.totals.held.is_empty());
        for (webhook, it) in &d.queues {
            assert!(self.hooks.contains_key(webhook), "{webhook} is left over");
            assert!(
                it.first_attempts.is_empty()
                    && it.waiting() == 0
                    && it.in_flight == 0
                    && it.slow_in_flight == 0
                    && it.draining == 0
                    && it.pending == 0
            );
        }
        for (job, record) in &self.deliveries {
            assert!(record.is_finished(), "{job} is not finished: {record:#?}");
        }
        for (job, (webhook, event)) in &self.owed {
            let phase = |record: &Arc<Delivery>| record.status.as_ref().unwrap().phase;
            let is_exhausted = self.deliveries.get(job).map(phase) == Some(DeliveryPhase::Exhausted);
            assert!(
                self.arrived.contains(job) || is_exhausted || self.dropped.contains(job),
                "{event} has not arrived at {webhook}"
            );
        }
    }
}

fn is_labelled(record: &Delivery) -> bool {
    let labels = record.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key(FINISHED_LABEL))
}

fn is_of(record: &Delivery, webhook: &WebhookKey) -> bool {
    key(
        record.metadata.namespace.as_deref().unwrap(),
        &record.spec.webhook,
    ) == *webhook
}
