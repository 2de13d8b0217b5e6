//! What has happened, as the API server's log has it, and what must follow from that by the rules of the decisions, section 7. Slow
//! and obvious; uses none of the code that decides.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{api_server::Stored, operator::Inbox};
use crate::{
    backups::schedule::next_run,
    billing::{
        stored_prices,
        tests::reference::{self, History, PriceChanges},
    },
    events::EventType,
    resources::{
        Backup, BackupPhase, Instance, Invoice, InvoicePage, Plan, PowerState,
        money::{Cents, UnitPrice},
    },
};

/// Around a change or a kill, a run of the schedule may have been made or not.
const UNSURE: SignedDuration = SignedDuration::from_mins(10);

#[derive(Default)]
pub struct Chronicle {
    /// By UID.
    lives: BTreeMap<String, Life>,
    backups: BTreeMap<String, Kept>,
    /// When the things in the pages of the ledger ended, by UID.
    ended: HashMap<String, Timestamp>,
    /// Monthly prices of the plans, and of a GB of backups.
    prices: PriceChanges,
    backup_prices: Vec<(Timestamp, u64)>,
    /// Created Backups of the schedule: UID of the instance, time, whether it is a second try.
    scheduled: HashMap<(String, Timestamp, bool), usize>,
    missed: BTreeSet<(String, Timestamp)>,
    /// Backups of deleted instances that gave way to others.
    replaced: usize,
    load: Vec<Load>,
    is_up: bool,
    /// The operator's clock when it was last started.
    up_since: Timestamp,
    /// When the operator was down: by the true time.
    outages: Vec<(Timestamp, Timestamp)>,
}

struct Life {
    namespace: String,
    id: String,
    history: Option<History>,
    plan: Option<Plan>,
    /// When that was last changed.
    changed: Timestamp,
    is_deleted: bool,
    deleted: Option<Deletion>,
    schedule: Schedule,
}

/// A deletion, by the API server's clock and by the operator's.
#[derive(Clone, Copy)]
struct Deletion {
    at: Timestamp,
    operators: Timestamp,
}

/// A backup that was completed.
struct Kept {
    namespace: String,
    id: String,
    /// When it was completed, and its size in thousandths of a GB.
    completed: Option<(Timestamp, u64)>,
    has_ended: bool,
    deleted: Option<Deletion>,
}

/// A server whose CPU is busy for a while, and that is left alone meanwhile.
struct Load {
    uid: String,
    from: Timestamp,
    to: Timestamp,
    /// When it ended: some time after that.
    ended: Option<Timestamp>,
}

/// Of an instance or a backup: its identifier; plan, price and number of hours; and the amount.
type Line = (String, Vec<(String, u64, u64)>, u64);

/// Which backups the schedule must have made. All times are the operator's.
#[derive(Default)]
struct Schedule {
    is_wanted: bool,
    /// Until when the runs are accounted for; none while the operator knows of no schedule.
    covered: Option<Timestamp>,
    /// Runs until then may have been made or not.
    unsure_until: Option<Timestamp>,
    /// While the operator is down: since when, and whether even the first run is unsure.
    down: Option<(Timestamp, bool)>,
    must: BTreeSet<Timestamp>,
    may: BTreeSet<Timestamp>,
}

/// All runs after `from` until `to`.
fn runs(id: &str, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
    let mut runs = Vec::new();
    let mut run = next_run(id, from);
    while run <= to {
        runs.push(run);
        run += SignedDuration::from_hours(24);
    }
    runs
}

impl Schedule {
    /// Accounts for the runs until now, with the operator up.
    fn cover(&mut self, id: &str, now: Timestamp) {
        let Some(covered) = self.covered.filter(|covered| *covered < now) else {
            return;
        };
        for run in runs(id, covered, now) {
            let is_sure =
                now.duration_since(run) > UNSURE && self.unsure_until.is_none_or(|until| run > until);
            if is_sure { &mut self.must } else { &mut self.may }.insert(run);
        }
        self.covered = Some(now);
    }

    fn want(&mut self, id: &str, is_wanted: bool, is_up: bool, now: Timestamp) {
        if self.is_wanted == is_wanted {
            return;
        }
        self.is_wanted = is_wanted;
        if let Some((_, is_unsure)) = &mut self.down {
            *is_unsure = true;
        }
        if !is_up {
            return;
        }
        if is_wanted {
            self.covered = Some(now);
            self.unsure_until = Some(now + UNSURE);
        } else {
            self.cover(id, now);
            self.covered = None;
        }
    }

    fn goes_down(&mut self, id: &str, up_since: Timestamp, now: Timestamp) {
        if self.covered.is_none() {
            return;
        }
        self.cover(id, now);
        let was_up = now.duration_since(up_since) > UNSURE;
        let is_unsure = !was_up
            || self.unsure_until.is_some_and(|until| until > now)
            || !runs(id, now - UNSURE, now).is_empty();
        self.down = Some((now, is_unsure));
    }

    fn comes_up(&mut self, id: &str, now: Timestamp) {
        let down = self.down.take();
        if let Some((since, is_unsure)) = down {
            let missed = runs(id, since, now);
            let is_sure = |run: &Timestamp| {
                !is_unsure && self.is_wanted && self.unsure_until.is_none_or(|until| *run > until)
            };
            match missed.first() {
                Some(first) if is_sure(first) => {
                    self.must.insert(*first);
                }
                _ => self.may.extend(missed),
            }
        }
        self.covered = self.is_wanted.then_some(now);
        if self.is_wanted && down.is_none() {
            self.unsure_until = self.unsure_until.max(Some(now + UNSURE));
        }
    }

    /// The clock is set: its timers go on as before, so for a day it is not known when it looks.
    fn jumps(&mut self, id: &str, before: Timestamp, after: Timestamp) {
        if self.covered.is_none() {
            return;
        }
        self.cover(id, before);
        let until = before.max(after) + SignedDuration::from_hours(26);
        self.may.extend(runs(id, before.min(after) - UNSURE, until));
        self.unsure_until = self.unsure_until.max(Some(until));
        self.covered = Some(after);
    }
}

fn parse<K: serde::de::DeserializeOwned>(object: &Value) -> K {
    serde_json::from_value(object.clone()).unwrap()
}

impl Chronicle {
    /// Takes over a write; `now` is the operator's clock.
    pub fn write(&mut self, stored: &Stored, now: Timestamp) {
        let now = Timestamp::from_millisecond(now.as_millisecond()).unwrap();
        match (stored.plural.as_str(), &stored.after) {
            ("instances", _) => self.instance(stored, now),
            ("backups", _) => self.backup(stored, now),
            ("invoicepages", Some(page)) => {
                let page: InvoicePage = parse(page);
                for entry in page.spec.entries {
                    if let Some(ended) = entry.ended {
                        self.ended.insert(entry.uid, ended);
                    }
                }
            }
            ("configmaps", Some(object)) if object["metadata"]["name"] == stored_prices::NAME => {
                let text = object["data"][stored_prices::ENTRY].as_str().unwrap();
                let all: Vec<Value> = serde_json::from_str(text).unwrap();
                let last = all.last().unwrap();
                let since = last["since"]
                    .as_str()
                    .map_or(Timestamp::MIN, |at| at.parse().unwrap());
                let monthly = Plan::ALL.map(|plan| last["plans"][plan.as_str()].as_u64().unwrap());
                if self.prices.last().is_none_or(|(at, _)| *at < since) {
                    self.prices.push((since, monthly));
                    self.backup_prices
                        .push((since, last["backupGb"].as_u64().unwrap()));
                }
            }
            _ => {}
        }
    }

    fn instance(&mut self, stored: &Stored, now: Timestamp) {
        let object = stored.after.as_ref().or(stored.before.as_ref()).unwrap();
        let instance: Instance = parse(object);
        let uid = instance.metadata.uid.clone().unwrap();
        let life = self.lives.entry(uid).or_insert_with(|| Life {
            namespace: instance.metadata.namespace.clone().unwrap(),
            id: instance.id(),
            history: None,
            plan: None,
            changed: now,
            is_deleted: false,
            deleted: None,
            schedule: Schedule::default(),
        });
        if let Some(deleted) = &instance.metadata.deletion_timestamp {
            life.deleted.get_or_insert(Deletion {
                at: deleted.0,
                operators: now,
            });
            life.is_deleted = true;
        }
        let status = instance.status.clone().unwrap_or_default();
        let is_wanted = instance.spec.backup_enabled && !life.is_deleted && status.provisioned_at.is_some();
        life.schedule.want(&life.id, is_wanted, self.is_up, now);
        if life.is_deleted {
            return;
        }
        let plan = status.plan.unwrap_or(instance.spec.plan);
        if life.plan != Some(plan) {
            life.changed = now;
        }
        match &mut life.history {
            None if status.power == Some(PowerState::Running) => {
                life.history = Some(History {
                    since: now,
                    plan,
                    changes: Vec::new(),
                    ended: None,
                });
                life.plan = Some(plan);
            }
            Some(history) if life.plan != Some(plan) => {
                history.changes.push((now, plan));
                life.plan = Some(plan);
            }
            _ => {}
        }
    }

    fn backup(&mut self, stored: &Stored, now: Timestamp) {
        let object = stored.after.as_ref().or(stored.before.as_ref()).unwrap();
        let backup: Backup = parse(object);
        if stored.before.is_none()
            && let Some(at) = backup.spec.scheduled_for
        {
            let instance = backup.spec.instance_uid.clone().unwrap();
            *self
                .scheduled
                .entry((instance, at, backup.spec.retry))
                .or_default() += 1;
        }
        let kept = self
            .backups
            .entry(backup.metadata.uid.clone().unwrap())
            .or_insert_with(|| Kept {
                namespace: backup.metadata.namespace.clone().unwrap(),
                id: backup.id(),
                completed: None,
                has_ended: false,
                deleted: None,
            });
        if let Some(deleted) = &backup.metadata.deletion_timestamp {
            kept.deleted.get_or_insert(Deletion {
                at: deleted.0,
                operators: now,
            });
        }
        let status = backup.status.clone().unwrap_or_default();
        let is_first = !kept.has_ended && !backup.is_unfinished();
        kept.has_ended |= is_first && (status.source.is_some() || backup.instance_id().is_some());
        if is_first && backup.phase() == BackupPhase::Completed {
            assert_eq!(status.completed_at, Some(now));
            let megabytes = format!("{:.0}", status.size_gb.unwrap() * 1000.0)
                .parse()
                .unwrap();
            kept.completed = Some((now, megabytes));
        }
    }

    /// Takes over a Kubernetes Event.
    pub fn event(&mut self, event: &Value) {
        self.replaced += usize::from(event["reason"] == "BackupReplaced");
        if event["reason"] != "BackupMissed" {
            return;
        }
        let uid = event["regarding"]["uid"].as_str().unwrap().to_owned();
        let note = event["note"].as_str().unwrap();
        // Those about a second try say nothing of the first.
        if let Some((_, rest)) = note.split_once("the backup for ") {
            let at = rest.split_once(' ').unwrap().0.parse().unwrap();
            self.missed.insert((uid, at));
        }
    }

    pub fn started(&mut self, now: Timestamp, time: Timestamp) {
        (self.is_up, self.up_since) = (true, now);
        for life in self.lives.values_mut() {
            life.schedule.comes_up(&life.id, now);
        }
        if let Some((_, until)) = self.outages.last_mut() {
            *until = time;
        }
    }

    pub fn died(&mut self, now: Timestamp, time: Timestamp) {
        self.is_up = false;
        for life in self.lives.values_mut() {
            life.schedule.goes_down(&life.id, self.up_since, now);
        }
        self.outages.push((time, Timestamp::MAX));
    }

    pub fn clock_was_set(&mut self, before: Timestamp, after: Timestamp) {
        self.up_since = after;
        for life in self.lives.values_mut() {
            life.schedule.jumps(&life.id, before, after);
        }
    }

    pub fn load(&mut self, uid: &str, from: Timestamp, to: Timestamp) {
        self.load.push(Load {
            uid: uid.to_owned(),
            from,
            to,
            ended: None,
        });
    }

    /// Ends the load of an instance if its time is over. Returns whether it was.
    pub fn unload(&mut self, uid: &str, time: Timestamp) -> bool {
        let mut of_it = self.load.iter_mut().filter(|load| load.uid == uid);
        match of_it.find(|load| load.ended.is_none() && load.to <= time) {
            Some(load) => {
                load.ended = Some(time);
                true
            }
            None => false,
        }
    }

    /// Whether what is billed of an instance has not changed for ten minutes, by the operator's clock.
    pub fn is_quiet(&self, uid: &str, now: Timestamp) -> bool {
        let changed = self.lives.get(uid).map(|life| life.changed);
        changed.is_some_and(|changed| now.duration_since(changed) > UNSURE)
    }

    /// Whether the instance with this UID is to be left alone.
    pub fn is_loaded(&self, uid: &str, time: Timestamp) -> bool {
        let margin = SignedDuration::from_hours(3);
        self.load
            .iter()
            .any(|load| load.uid == uid && load.ended.is_none_or(|ended| time <= ended + margin))
    }

    /// Checks everything but the invoices, at the end. Returns what there was.
    pub fn check(&mut self, inbox: &Inbox, now: Timestamp, time: Timestamp) -> Counts {
        let mut counts = Counts {
            instances: self.lives.len(),
            ..Counts::default()
        };
        for (uid, life) in &mut self.lives {
            life.schedule.cover(&life.id, now);
            for run in &life.schedule.must {
                if life.schedule.may.contains(run) {
                    continue;
                }
                let key = (uid.clone(), *run);
                let is_made = self.scheduled.contains_key(&(uid.clone(), *run, false));
                assert!(
                    is_made || self.missed.contains(&key),
                    "the backup of {} for {run} neither exists nor is reported missed",
                    life.id
                );
                counts.runs += usize::from(is_made);
            }
        }
        for ((uid, run, is_retry), made) in &self.scheduled {
            let life = &self.lives[uid];
            assert_eq!(
                *made, 1,
                "the backup of {} for {run} was made twice ({is_retry})",
                life.id
            );
            assert!(
                life.schedule.must.contains(run) || life.schedule.may.contains(run),
                "a backup of {} for {run} was not due",
                life.id
            );
        }
        (counts.missed, counts.replaced) = (self.missed.len(), self.replaced);
        let mut of: HashMap<(&str, EventType), usize> = HashMap::new();
        for event in inbox.events.values() {
            *of.entry((event.uid.as_str(), event.event_type)).or_default() += 1;
        }
        for (uid, kept) in &self.backups {
            let ends = [EventType::BackupCompleted, EventType::BackupFailed]
                .map(|of_type| of.get(&(uid.as_str(), of_type)).copied().unwrap_or_default());
            let expected = match (kept.has_ended, kept.completed) {
                (false, _) => [0, 0],
                (true, Some(_)) => [1, 0],
                (true, None) => [0, 1],
            };
            assert_eq!(ends, expected, "the events of backup {}", kept.id);
            counts.backups += 1;
        }
        for life in self.lives.keys() {
            for of_type in [EventType::InstanceCreated, EventType::InstanceDeleted] {
                let count = of.get(&(life.as_str(), of_type)).copied().unwrap_or_default();
                assert!(count <= 1, "{of_type} of {life}");
            }
        }
        self.check_alerts(inbox, time, &mut counts);
        counts
    }

    fn check_alerts(&self, inbox: &Inbox, time: Timestamp, counts: &mut Counts) {
        let mut ids = BTreeSet::new();
        let mut at: HashMap<&str, Vec<Timestamp>> = HashMap::new();
        for event in inbox.events.values() {
            if event.event_type == EventType::AlertTriggered {
                let body: Value = serde_json::from_str(&event.body).unwrap();
                let id = body["data"]["alert"]["id"].as_str().unwrap().to_owned();
                assert!(ids.insert(id), "an alert was sent twice: {body}");
                at.entry(event.uid.as_str()).or_default().push(event.at);
            }
        }
        let mut expected = 0;
        for load in &self.load {
            let to = load.ended.unwrap_or(time);
            let fired = at.get(load.uid.as_str()).into_iter().flatten();
            let fired = fired.filter(|at| load.from <= **at && **at <= to + SignedDuration::from_hours(3));
            let fired = fired.count();
            assert!(fired <= 1, "{} fired {fired} alerts for one crossing", load.uid);
            expected += fired;
            // Four samples in a row are needed, the first within an hour; some fail.
            let needed = SignedDuration::from_hours(8);
            let (mut calm, mut is_certain) = (load.from, false);
            for (down, up) in &self.outages {
                if *up > calm && *down < to {
                    is_certain |= down.duration_since(calm) > needed;
                    calm = *up;
                }
            }
            is_certain |= to.duration_since(calm) > needed;
            assert!(
                fired == 1 || !is_certain,
                "{} fired no alert from {} to {to}",
                load.uid,
                load.from
            );
        }
        assert_eq!(expected, ids.len(), "an alert without a cause");
        counts.alerts = ids.len();
    }

    /// Checks the invoices. `pages` are all pages.
    pub fn check_invoices(
        &mut self,
        invoices: &[Invoice],
        pages: &[InvoicePage],
        inbox: &Inbox,
        billed_until: Timestamp,
    ) -> usize {
        self.end_lives();
        self.respect_closings(invoices);
        let mut numbers: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        let mut by_namespace: BTreeMap<&str, Vec<&Invoice>> = BTreeMap::new();
        for invoice in invoices.iter().filter(|invoice| invoice.is_issued()) {
            let status = invoice.status.as_ref().unwrap();
            let (year, sequence) = status.number.as_deref().unwrap().split_once('-').unwrap();
            assert_eq!(year, &status.issued_at.unwrap().to_string()[..4]);
            numbers
                .entry(year.to_owned())
                .or_default()
                .push(sequence.parse().unwrap());
            let uid = invoice.metadata.uid.as_deref().unwrap();
            let told = inbox.events.values().filter(|event| event.uid == uid);
            assert_eq!(told.count(), 1, "the events of {}", invoice.name());
            let namespace = invoice.metadata.namespace.as_deref().unwrap();
            by_namespace.entry(namespace).or_default().push(invoice);
        }
        for (year, mut sequences) in numbers {
            sequences.sort_unstable();
            let count = u64::try_from(sequences.len()).unwrap();
            assert_eq!(
                sequences,
                (1..=count).collect::<Vec<_>>(),
                "the numbers of {year}"
            );
        }
        let mut count = 0;
        for (namespace, mut invoices) in by_namespace {
            invoices.sort_by_key(|invoice| invoice.spec.period.from);
            let mut until = None;
            // What was billed for a month: amount, and the dearest price.
            let mut billed: HashMap<(String, String), (u64, u64)> = HashMap::new();
            for invoice in invoices {
                let period = (invoice.spec.period.from, invoice.spec.period.to);
                if let Some(until) = until {
                    self.check_nothing_between(namespace, until, period.0);
                }
                until = Some(period.1);
                let month = period.0.to_string()[..7].to_owned();
                let mut expected = self.lines(namespace, period, &month, &mut billed);
                let of_it = pages.iter().filter(|page| page.spec.invoice == invoice.name());
                let mut lines: Vec<Line> = of_it
                    .flat_map(|page| page.spec.lines.clone().expect("an issued invoice has lines"))
                    .map(|line| {
                        let mut hours: Vec<_> = line
                            .hours
                            .iter()
                            .map(|of| (of.plan.clone(), of.unit_price, of.hours))
                            .collect();
                        hours.sort_unstable();
                        (
                            line.backup_id.unwrap_or(line.instance_id),
                            hours,
                            line.amount_cents,
                        )
                    })
                    .collect();
                lines.sort_unstable();
                expected.sort_unstable();
                assert_eq!(
                    lines,
                    expected,
                    "invoice {} of {namespace} for {period:?}",
                    invoice.name()
                );
                let status = invoice.status.as_ref().unwrap();
                let sum: u64 = lines.iter().map(|(_, _, amount)| amount).sum();
                assert_eq!(
                    (status.net_cents, usize::try_from(status.lines_count).unwrap()),
                    (sum, lines.len())
                );
                count += 1;
            }
            self.check_nothing_between(namespace, until.unwrap(), billed_until);
        }
        count
    }

    /// An hour that is on an invoice which was closed early stays as it was then: a plan that came later holds from the next hour.
    fn respect_closings(&mut self, invoices: &[Invoice]) {
        for invoice in invoices.iter().filter(|invoice| invoice.is_issued()) {
            let closed = invoice.spec.period.to;
            let of_it = self
                .lives
                .values_mut()
                .filter(|life| invoice.metadata.namespace.as_ref() == Some(&life.namespace));
            for history in of_it.filter_map(|life| life.history.as_mut()) {
                for (at, _) in history.changes.iter_mut().filter(|(at, _)| *at >= closed) {
                    let hours = at.duration_since(history.since).as_hours();
                    let hour = history.since + SignedDuration::from_hours(hours);
                    if hour < closed {
                        *at = hour + SignedDuration::from_hours(1);
                    }
                }
            }
        }
    }

    /// Takes over when what is gone ended: by the API server's clock, or, of what the operator did not see go, when it noticed.
    fn end_lives(&mut self) {
        let noticed = |uid: &str, deletion: Deletion| {
            let Some(ended) = self.ended.get(uid).copied().filter(|ended| *ended != deletion.at) else {
                return deletion.at;
            };
            // It may also have died before it had written down what it saw.
            let soon = deletion.at + SignedDuration::from_mins(1);
            let outage = self
                .outages
                .iter()
                .find(|(from, to)| *from <= soon && deletion.at <= *to);
            let back = outage.map_or(deletion.at, |(_, to)| *to);
            let off = deletion.operators.duration_since(deletion.at).abs() + SignedDuration::from_hours(2);
            assert!(
                ended >= deletion.at - off && ended <= back + off,
                "{uid} ended {ended}, but was deleted {}",
                deletion.at
            );
            ended
        };
        let ends: Vec<_> = self
            .lives
            .iter()
            .filter_map(|(uid, life)| Some((uid.clone(), noticed(uid, life.deleted?))))
            .collect();
        let backups: Vec<_> = self
            .backups
            .iter()
            .filter_map(|(uid, kept)| Some((uid.clone(), noticed(uid, kept.deleted?))))
            .collect();
        for (uid, ended) in ends {
            if let Some(history) = self.lives.get_mut(&uid).and_then(|life| life.history.as_mut()) {
                history.ended = Some(ended);
            }
        }
        for (uid, ended) in backups {
            self.ended.insert(uid, ended);
        }
    }

    /// Between two invoices there is nothing to bill.
    fn check_nothing_between(&self, namespace: &str, from: Timestamp, to: Timestamp) {
        if from == to {
            return;
        }
        let lines = self.lines(namespace, (from, to), "", &mut HashMap::new());
        assert!(
            lines.is_empty(),
            "{namespace} was not billed from {from} to {to}: {lines:?}"
        );
    }

    fn lines(
        &self,
        namespace: &str,
        period: (Timestamp, Timestamp),
        month: &str,
        billed: &mut HashMap<(String, String), (u64, u64)>,
    ) -> Vec<Line> {
        let mut lines = Vec::new();
        let of_it = self.lives.iter().filter(|(_, life)| life.namespace == namespace);
        for (uid, life) in of_it {
            let Some(history) = &life.history else { continue };
            let hour = SignedDuration::from_hours(1);
            if history.since >= period.1
                || history
                    .ended
                    .is_some_and(|ended| ended.max(history.since + hour) < period.0)
            {
                continue;
            }
            let earlier = billed.entry((uid.clone(), month.to_owned())).or_default();
            let Some((hours, amount)) = reference::line(history, period, &self.prices, *earlier) else {
                continue;
            };
            let dearest = hours.iter().map(|(_, monthly, _)| *monthly).max().unwrap();
            *earlier = (earlier.0 + amount, earlier.1.max(dearest));
            let mut merged: BTreeMap<(String, u64), u64> = BTreeMap::new();
            for (plan, monthly, count) in hours {
                let price = UnitPrice::hourly(Cents(monthly)).0;
                *merged.entry((plan.as_str().to_owned(), price)).or_default() += count;
            }
            let hours = merged
                .into_iter()
                .map(|((plan, price), count)| (plan, price, count));
            lines.push((life.id.clone(), hours.collect(), amount));
        }
        let of_it = self
            .backups
            .iter()
            .filter(|(_, kept)| kept.namespace == namespace);
        for (uid, kept) in of_it {
            let Some((since, megabytes)) = kept.completed else {
                continue;
            };
            let earlier = billed.entry((uid.clone(), month.to_owned())).or_default();
            let (mut hours, mut exact, mut cap) = (BTreeMap::<u64, u64>::new(), 0, earlier.1);
            if self
                .backup_prices
                .iter()
                .all(|(at, price)| *price == 0 || *at >= period.1)
            {
                continue;
            }
            let hours_before = period.0.duration_since(since).as_hours().max(0);
            let mut hour = since + SignedDuration::from_hours(hours_before);
            while hour < period.1 && self.ended.get(uid).is_none_or(|ended| hour < *ended) {
                let price = self.backup_prices.iter().rev().find(|(at, _)| *at <= hour);
                let monthly = (price.map_or(0, |(_, price)| *price) * megabytes).div_ceil(1000);
                if hour >= period.0 && monthly > 0 {
                    let price = (monthly * 1000).div_ceil(672);
                    *hours.entry(price).or_default() += 1;
                    exact += price;
                    cap = cap.max(monthly);
                }
                hour += SignedDuration::from_hours(1);
            }
            if hours.is_empty() {
                continue;
            }
            let amount = (exact.min((cap - earlier.0) * 1000) + 500) / 1000;
            *earlier = (earlier.0 + amount, cap);
            let hours = hours
                .into_iter()
                .map(|(price, count)| ("backup".to_owned(), price, count));
            lines.push((kept.id.clone(), hours.collect(), amount));
        }
        lines
    }
}

/// What there was in a year.
#[derive(Debug, Default)]
pub struct Counts {
    pub instances: usize,
    pub backups: usize,
    pub runs: usize,
    pub missed: usize,
    pub replaced: usize,
    pub alerts: usize,
}
