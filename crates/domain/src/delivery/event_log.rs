//! The event log: which events go on which page, and when.
//!
//! An event is logged together with those of its deliveries that succeeded at once. It is logged as soon as each of its
//! webhooks has either received it or has a Delivery for it, but not much later than the first of them received it,
//! because a crash repeats whatever is not logged. Its later deliveries are recorded as Delivery objects. Only one page
//! per account is written at a time; events that are close in time share a page.
//!
//! An entry stays in its outbox until it is on a page. After a crash, the pages show which entries were logged, and to which
//! webhooks they were delivered.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;

use super::{
    Command, DeliveryLog, Dispatcher, Event, JobKey, Now, Timer,
    job::{Job, State, pause_after},
};
use resources::{
    Attempt, LoggedDelivery, LoggedEvent,
    event_log::{MAX_DELIVERIES, MAX_EVENTS, event_bytes},
};

/// How long an event that can be logged waits for other events of its account, and how long an event that was delivered
/// to one webhook waits for its other webhooks. Including the time of a write, a success is on a page within two
/// seconds (decisions, section 5).
const WAIT: Duration = Duration::from_secs(1);
/// A page with this many events is worth its own write and need not wait: the sooner events are logged, the fewer
/// entries the outboxes carry.
const ENOUGH_EVENTS: usize = 64;
/// Longest pause after a failed write of a page.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Maximum size of a page as stored, in bytes, approximately. etcd takes 1.5 MiB.
const MAX_BYTES: usize = 256 * 1024;
/// How often in a row the API server may refuse to show the pages before the log counts as empty: for half a minute, in which
/// the right may be granted.
const MAX_REFUSALS: u32 = 5;
/// Maximum number of events that are looked up in the pages at once.
const LOOKED_UP_AT_ONCE: usize = 500;

/// Whether an entry is on a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Logged {
    /// An earlier process may have logged it; a lookup is under way.
    Unknown,
    /// It will be logged.
    Awaited,
    /// It is on a page, which says that it was delivered to the webhooks with these UIDs. Or there is no log.
    Done(HashSet<String>),
}

/// A page to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// When the page was begun. This and its name stay the same for each attempt to write it.
    pub at: Timestamp,
    pub events: Vec<LoggedEvent>,
    /// Number of consecutive failed writes of it.
    pub failures: u32,
}

/// The outcome of writing a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageWritten {
    Stored,
    /// It can never be written; its events are not logged.
    Impossible,
    /// The write failed and must be retried.
    Failed,
}

/// What to look up in the pages of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogQuestion {
    /// The ids of the events.
    pub events: Vec<Arc<str>>,
    /// When the earliest of them happened.
    pub since: Timestamp,
}

/// Why the pages could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The API server refuses it: the operator lacks the right, or the kind does not exist.
    Refused,
    /// For another reason.
    Failed,
}

/// For each event found on a page, the UIDs of the webhooks that pages say it was delivered to.
pub type Mentions = HashMap<Arc<str>, HashSet<String>>;

/// An entry that is no longer in its outbox.
#[derive(Debug)]
pub(super) struct Removed {
    pub(super) namespace: Arc<str>,
    pub(super) event: Arc<str>,
    pub(super) created_at: Timestamp,
    /// Jobs that wait for its lookup in the log.
    pub(super) waiting: Vec<JobKey>,
}

/// The events to be logged.
#[derive(Debug, Default)]
pub(super) struct Logs {
    drafts: HashMap<Arc<str>, Draft>,
    /// By namespace.
    accounts: HashMap<Arc<str>, AccountLog>,
    /// Namespaces whose logs have changed since the last [`Dispatcher::schedule_pages`].
    changed: BTreeSet<Arc<str>>,
    /// Entries that are being looked up in the pages, because an earlier process may have logged them; by namespace.
    unknown: HashMap<Arc<str>, Unknown>,
}

/// An event to be logged.
#[derive(Debug)]
struct Draft {
    namespace: Arc<str>,
    event: Arc<Event>,
    deliveries: Vec<LoggedDelivery>,
    bytes: usize,
    state: DraftState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DraftState {
    /// Some of its webhooks have neither received it nor have a Delivery for it.
    Open,
    /// Waits for the next page.
    Ready,
    /// On the page that is being written.
    Paged,
}

impl Draft {
    fn is_delivered_to(&self, webhook_uid: &str) -> bool {
        self.deliveries.iter().any(|it| it.webhook_uid == webhook_uid)
    }

    fn logged(&self) -> LoggedEvent {
        let event = &self.event;
        LoggedEvent {
            id: event.id.to_string(),
            event_type: event.event_type,
            created_at: event.created_at,
            sequence: event.sequence,
            subject: event.subject.to_string(),
            body: String::from_utf8_lossy(event.body()).into_owned(),
            traceparent: event.traceparent().map(ToOwned::to_owned),
            deliveries: self.deliveries.clone(),
        }
    }
}

/// The events of an account that are to be logged.
#[derive(Debug, Default)]
struct AccountLog {
    ready: VecDeque<Arc<str>>,
    ready_bytes: usize,
    /// Events that were delivered to a webhook, each with the time of its first delivery.
    delivered: VecDeque<(Instant, Arc<str>)>,
    /// Whether there is a [`Timer::Log`].
    is_timed: bool,
    page: Option<PageUnderWay>,
    /// Number of consecutive failed writes.
    failures: u32,
}

impl AccountLog {
    /// Puts an event on the next page.
    fn add_ready(&mut self, id: Arc<str>, draft: &mut Draft) {
        draft.state = DraftState::Ready;
        self.ready_bytes += draft.bytes;
        self.ready.push_back(id);
    }
}

#[derive(Debug)]
struct PageUnderWay {
    at: Timestamp,
    events: Vec<Arc<str>>,
    /// Whether there were more events than the page has room for.
    is_full: bool,
    /// Whether its write failed and is to be retried.
    is_paused: bool,
}

/// Entries of a namespace that may be on a page.
#[derive(Debug, Default)]
struct Unknown {
    /// By the time of the event, so that those that are looked up together are on few pages.
    events: BTreeMap<(Timestamp, Arc<str>), LookUp>,
    /// Whether a [`Command::CheckLog`] or a [`Timer::CheckLog`] is outstanding.
    is_asked: bool,
    /// Those that are being looked up, and their times. An entry that disappears and reappears in the meantime is looked up
    /// again.
    asked: HashMap<Arc<str>, Timestamp>,
    failures: u32,
    /// Number of consecutive refusals.
    refusals: u32,
}

#[derive(Debug, Default)]
struct LookUp {
    /// Jobs of an entry that has since disappeared. An entry that still exists lists its own jobs.
    left: Vec<JobKey>,
}

#[cfg(test)]
impl Logs {
    pub(super) fn is_empty(&self) -> bool {
        self.changed.is_empty()
            && self.drafts.is_empty()
            && self.accounts.is_empty()
            && self.unknown.is_empty()
    }
}

impl Dispatcher {
    /// Starts the log record of an entry that is on no page.
    pub(super) fn open_draft(&mut self, namespace: &Arc<str>, event: &Arc<Event>) -> Logged {
        if self.log == DeliveryLog::Failures {
            return Logged::Done(HashSet::new());
        }
        let draft = || Draft {
            namespace: namespace.clone(),
            event: event.clone(),
            deliveries: Vec::new(),
            bytes: event_bytes(&String::from_utf8_lossy(event.body())),
            state: DraftState::Open,
        };
        // There already is one if the entry was thought to be gone.
        self.logs.drafts.entry(event.id.clone()).or_insert_with(draft);
        Logged::Awaited
    }

    /// Notes a delivery that succeeded at once. Returns whether it will be logged, so that it needs no Delivery.
    pub(super) fn log_success(&mut self, key: &JobKey, attempt: &Attempt, now: Now) -> bool {
        let Some(job) = self.jobs.get(key) else {
            return false;
        };
        let Some(queue) = self.queues.get(&job.webhook) else {
            return false;
        };
        let Some(draft) = self.logs.drafts.get_mut(&job.event_id) else {
            return false;
        };
        if draft.is_delivered_to(&queue.facts.uid) {
            return true;
        }
        let delivery = LoggedDelivery {
            webhook: queue.facts.name.to_string(),
            webhook_uid: queue.facts.uid.to_string(),
            attempt: attempt.clone(),
        };
        let bytes = delivery.bytes();
        if draft.state == DraftState::Paged
            || draft.deliveries.len() >= MAX_DELIVERIES
            || draft.bytes + bytes > MAX_BYTES
        {
            return false;
        }
        draft.bytes += bytes;
        draft.deliveries.push(delivery);
        let account = self.logs.accounts.entry(draft.namespace.clone()).or_default();
        if draft.state == DraftState::Ready {
            account.ready_bytes += bytes;
        }
        if draft.deliveries.len() == 1 {
            account.delivered.push_back((now.mono, job.event_id.clone()));
        }
        self.logs.changed.insert(draft.namespace.clone());
        true
    }

    /// Schedules an event for the next page.
    pub(super) fn finish_draft(&mut self, id: &Arc<str>) {
        let draft = self.logs.drafts.get_mut(id);
        let Some(draft) = draft.filter(|draft| draft.state == DraftState::Open) else {
            return;
        };
        let account = self.logs.accounts.entry(draft.namespace.clone()).or_default();
        account.add_ready(id.clone(), draft);
        self.logs.changed.insert(draft.namespace.clone());
    }

    /// Makes the next [`Self::schedule_pages`] log everything that can be logged.
    pub(super) fn log_all(&mut self) {
        for (namespace, account) in &mut self.logs.accounts {
            if let Some(page) = &mut account.page
                && std::mem::take(&mut page.is_paused)
            {
                self.commands.push_back(Command::Log(namespace.clone()));
            }
            self.logs.changed.insert(namespace.clone());
        }
    }

    /// Begins pages that are full, and makes sure that the others are begun in time. [`Self::tick`] does this too.
    pub fn schedule_pages(&mut self, now: Now) {
        for removed in self.entries.take_removed() {
            self.entry_gone(removed);
        }
        for namespace in std::mem::take(&mut self.logs.changed) {
            self.schedule_page(&namespace, now);
        }
    }

    fn schedule_page(&mut self, namespace: &Arc<str>, now: Now) {
        let Some(account) = self.logs.accounts.get_mut(namespace) else {
            return;
        };
        if account.page.is_some() {
            return;
        }
        if account.ready.len() >= ENOUGH_EVENTS || account.ready_bytes >= MAX_BYTES || self.stopped {
            self.begin_page(namespace, now);
            return;
        }
        if !std::mem::replace(&mut account.is_timed, true) {
            let since = account.delivered.front().map_or(now.mono, |(since, _)| *since);
            self.timer(since + WAIT, Timer::Log(namespace.clone()));
        }
    }

    /// Handles a [`Timer::Log`].
    pub(super) fn page_due(&mut self, namespace: &Arc<str>, now: Now) {
        let Some(account) = self.logs.accounts.get_mut(namespace) else {
            return;
        };
        account.is_timed = false;
        match &mut account.page {
            None => self.begin_page(namespace, now),
            Some(page) => {
                if std::mem::take(&mut page.is_paused) {
                    self.commands.push_back(Command::Log(namespace.clone()));
                }
            }
        }
    }

    fn begin_page(&mut self, namespace: &Arc<str>, now: Now) {
        let Some(account) = self.logs.accounts.get_mut(namespace) else {
            return;
        };
        // Events that were delivered to a webhook stop waiting for their other webhooks.
        while let Some((since, id)) = account.delivered.front() {
            let draft = self
                .logs
                .drafts
                .get_mut(id)
                .filter(|draft| draft.state == DraftState::Open);
            if draft.is_some() && *since + WAIT > now.mono && !self.stopped {
                break;
            }
            if let Some((_, id)) = account.delivered.pop_front()
                && let Some(draft) = draft
            {
                account.add_ready(id, draft);
            }
        }
        let (mut events, mut bytes) = (Vec::new(), 0);
        while events.len() < MAX_EVENTS
            && let Some(id) = account.ready.pop_front()
        {
            let Some(draft) = self.logs.drafts.get_mut(&id) else {
                continue;
            };
            if !events.is_empty() && bytes + draft.bytes > MAX_BYTES {
                account.ready.push_front(id);
                break;
            }
            draft.state = DraftState::Paged;
            bytes += draft.bytes;
            events.push(id);
        }
        account.ready_bytes = account.ready_bytes.saturating_sub(bytes);
        if !events.is_empty() {
            account.page = Some(PageUnderWay {
                at: now.wall,
                events,
                is_full: !account.ready.is_empty(),
                is_paused: false,
            });
            self.commands.push_back(Command::Log(namespace.clone()));
        } else if !account.delivered.is_empty() {
            self.schedule_page(namespace, now);
        } else if !account.is_timed {
            self.logs.accounts.remove(namespace);
        }
    }

    /// The page to write for a [`Command::Log`]. Report its outcome with [`Self::page_written`].
    pub fn page(&self, namespace: &str) -> Option<Page> {
        let account = self.logs.accounts.get(namespace)?;
        let page = account.page.as_ref()?;
        let drafts = page.events.iter().filter_map(|id| self.logs.drafts.get(id));
        Some(Page {
            at: page.at,
            events: drafts.map(Draft::logged).collect(),
            failures: account.failures,
        })
    }

    /// Reports the outcome of writing a page.
    pub fn page_written(&mut self, namespace: &Arc<str>, written: PageWritten, now: Now) {
        let Some(account) = self.logs.accounts.get_mut(namespace) else {
            return;
        };
        if written == PageWritten::Failed {
            // Keep the pause short: after a crash, whatever is not logged is repeated.
            let pause = pause_after(&mut account.failures).min(LONGEST_PAUSE);
            if let Some(page) = &mut account.page {
                page.is_paused = true;
            }
            self.timer(now.mono + pause, Timer::Log(namespace.clone()));
            return;
        }
        account.failures = 0;
        let Some(page) = account.page.take() else { return };
        for id in page.events {
            let draft = self.logs.drafts.remove(&id);
            let deliveries = draft.into_iter().flat_map(|draft| draft.deliveries);
            let delivered = deliveries.map(|it| it.webhook_uid).collect();
            // An entry that was thought to be gone is being looked up.
            let found_again = self.entries.if_unknown_to_log(&id);
            self.entries.set_logged(&id, Logged::Done(delivered));
            for job in found_again.into_iter().flat_map(|(_, jobs)| jobs) {
                self.look_up(&job);
            }
            self.report_if_settled(&id);
        }
        if page.is_full {
            self.begin_page(namespace, now);
            return;
        }
        let account = self.logs.accounts.get(namespace);
        if account.is_some_and(|it| it.ready.is_empty() && it.delivered.is_empty() && !it.is_timed) {
            self.logs.accounts.remove(namespace);
        } else {
            self.schedule_page(namespace, now);
        }
    }

    /// Requests a lookup of an event in the pages. `left` are its jobs if its entry is gone; otherwise the entry lists
    /// them.
    pub(super) fn check_log(
        &mut self,
        namespace: &Arc<str>,
        id: &Arc<str>,
        created_at: Timestamp,
        left: Vec<JobKey>,
    ) {
        let unknown = self.logs.unknown.entry(namespace.clone()).or_default();
        unknown.asked.remove(id);
        let look_up = unknown.events.entry((created_at, id.clone())).or_default();
        look_up.left.extend(left);
        if !std::mem::replace(&mut unknown.is_asked, true) {
            self.commands.push_back(Command::CheckLog(namespace.clone()));
        }
    }

    /// What to look up in the pages of a namespace for a [`Command::CheckLog`]. Report the result with [`Self::log_checked`].
    pub fn unknown_to_log(&mut self, namespace: &str) -> Option<LogQuestion> {
        let unknown = self.logs.unknown.get_mut(namespace)?;
        let Some(((since, _), _)) = unknown.events.first_key_value() else {
            self.logs.unknown.remove(namespace);
            return None;
        };
        let since = *since;
        let asked = unknown.events.keys().take(LOOKED_UP_AT_ONCE);
        unknown.asked = asked.map(|(at, id)| (id.clone(), *at)).collect();
        Some(LogQuestion {
            events: unknown.asked.keys().cloned().collect(),
            since,
        })
    }

    /// Reports which of the `asked` events are on pages, and the webhooks to which they were delivered according to
    /// those pages.
    pub fn log_checked(
        &mut self,
        namespace: &Arc<str>,
        asked: &[Arc<str>],
        found: Result<Mentions, Unreadable>,
        now: Now,
    ) {
        let Some(unknown) = self.logs.unknown.get_mut(namespace) else {
            return;
        };
        unknown.refusals = match found {
            Err(Unreadable::Refused) => unknown.refusals + 1,
            _ => 0,
        };
        let found = match found {
            Ok(found) => found,
            Err(Unreadable::Refused) if unknown.refusals > MAX_REFUSALS => Mentions::new(),
            Err(_) => {
                let pause = pause_after(&mut unknown.failures);
                self.timer(now.mono + pause, Timer::CheckLog(namespace.clone()));
                return;
            }
        };
        unknown.failures = 0;
        let current = std::mem::take(&mut unknown.asked);
        let asked: Vec<_> = asked
            .iter()
            .filter_map(|id| Some((current.get(id)?, id)))
            .collect();
        let mut left = Vec::new();
        for (at, id) in &asked {
            let look_up = unknown.events.remove(&(**at, (*id).clone()));
            left.extend(look_up.into_iter().flat_map(|it| it.left).map(|job| (*id, job)));
        }
        if unknown.events.is_empty() {
            self.logs.unknown.remove(namespace);
        } else {
            self.commands.push_back(Command::CheckLog(namespace.clone()));
        }
        for (id, job) in left {
            if !self.is_in_outbox(&job) {
                let delivered = self.jobs.get(&job).zip(found.get(id));
                let is_delivered = delivered.is_some_and(|(job, delivered)| self.is_among(job, delivered));
                self.look_up_unless(&job, is_delivered);
            }
        }
        for (_, id) in asked {
            let Some((event, jobs)) = self.entries.if_unknown_to_log(id) else {
                continue;
            };
            let logged = match found.get(id) {
                Some(delivered) => Logged::Done(delivered.clone()),
                None => self.open_draft(namespace, &event),
            };
            self.entries.set_logged(id, logged);
            for job in jobs {
                self.look_up(&job);
            }
            self.entry_changed(id);
        }
    }

    /// Logs an entry that is gone, if it was to be logged.
    fn entry_gone(&mut self, removed: Removed) {
        if !self.knows(&removed.event) {
            self.finish_draft(&removed.event);
        }
        if !removed.waiting.is_empty() {
            let Removed {
                namespace,
                event,
                created_at,
                waiting,
            } = removed;
            self.check_log(&namespace, &event, created_at, waiting);
        }
    }

    /// Looks up the record of a job of a found entry, unless a page says that it was delivered.
    pub(super) fn look_up(&mut self, key: &JobKey) {
        let Some(job) = self.jobs.get(key) else { return };
        match self.entries.logged(&job.event_id) {
            Some(Logged::Unknown) => {}
            Some(Logged::Done(delivered)) => self.look_up_unless(key, self.is_among(job, delivered)),
            _ => self.look_up_unless(key, false),
        }
    }

    /// Whether the webhook of a job is among those with these UIDs.
    fn is_among(&self, job: &Job, delivered: &HashSet<String>) -> bool {
        let queue = self.queues.get(&job.webhook);
        queue.is_some_and(|queue| delivered.contains(&*queue.facts.uid))
    }

    /// Looks up the record of a job, unless its webhook has received the event.
    fn look_up_unless(&mut self, key: &JobKey, is_delivered: bool) {
        let is_it = |job: &&Job| job.state == State::Checking;
        let Some(job) = self.jobs.get(key).filter(is_it) else {
            return;
        };
        let uid = self.queues.get(&job.webhook).map(|queue| &*queue.facts.uid);
        // There already is a draft if the entry was thought to be gone.
        let draft = self.logs.drafts.get(&job.event_id);
        let is_drafted = draft
            .zip(uid)
            .is_some_and(|(draft, uid)| draft.is_delivered_to(uid));
        if is_delivered || is_drafted {
            self.forget(key);
        } else {
            self.commands.push_back(Command::Check(key.clone()));
        }
    }
}
