//! What has happened, according to the API server's log, and what must follow from that by the rules of the decisions, section 7. Slow
//! and obvious; uses none of the code that decides, except for the time of day at which an instance is backed up.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{
    api_server::Stored,
    operator::{Inbox, Received},
};
use domain::{
    backup::schedule::next_run,
    event::EventType,
    invoice::{
        Period,
        reference::{self, History, PriceChanges},
        stored_prices,
    },
};
use resources::{
    Backup, BackupPhase, Instance, Invoice, Plan, PowerState,
    money::{Cents, TaxRate, UnitPrice},
    origin,
};

/// How close to a change or a kill it is uncertain whether a scheduled backup was made.
const UNSURE: SignedDuration = SignedDuration::from_mins(10);
/// How long a server is left alone after its load, because the end may be noticed only then.
const CALM: SignedDuration = SignedDuration::from_hours(3);

#[derive(Default)]
pub struct Chronicle {
    /// By UID.
    lives: BTreeMap<String, Life>,
    backups: BTreeMap<String, Kept>,
    prices: PriceChanges,
    taxes: Vec<(Timestamp, TaxRate)>,
    /// Scheduled Backups that were created: UID of the instance, time, and whether it is a second attempt.
    scheduled: BTreeSet<(String, Timestamp, bool)>,
    /// Those that could not be created, which their instances tell.
    missed: BTreeSet<(String, Timestamp)>,
    load: Vec<Load>,
    /// Identifiers of alerts that were sent.
    alerts: BTreeSet<String>,
    is_up: bool,
    /// When the operator last started.
    up_since: Timestamp,
    /// When the operator was down.
    outages: Vec<(Timestamp, Timestamp)>,
}

struct Life {
    namespace: String,
    id: String,
    history: Option<History>,
    plan: Option<Plan>,
    schedule: Schedule,
}

#[derive(Default)]
struct Kept {
    has_ended: bool,
    is_completed: bool,
}

/// A server whose CPU is busy for a while, and which is left alone in that time.
struct Load {
    uid: String,
    from: Timestamp,
    to: Timestamp,
    /// When the load ended, which is some time after `to`.
    ended: Option<Timestamp>,
    /// Whether an alert was sent.
    has_fired: bool,
}

/// A line about an instance: its identifier; plan, price and number of hours; and the amount.
type Line = (String, Vec<(String, u64, u64)>, u64);

/// The backups that the schedule must have made.
#[derive(Default)]
struct Schedule {
    is_wanted: bool,
    /// Until when runs are accounted for; `None` while the operator knows of no schedule.
    covered: Option<Timestamp>,
    /// Runs until then may or may not have been made.
    unsure_until: Option<Timestamp>,
    /// While the operator is down: since when, and whether even the first run is uncertain.
    down: Option<(Timestamp, bool)>,
    must: BTreeSet<Timestamp>,
    may: BTreeSet<Timestamp>,
}

/// All runs after `from`, up to and including `to`.
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
    /// Accounts for the runs until now, with the operator running.
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
}

fn parse<K: serde::de::DeserializeOwned>(object: &Value) -> K {
    serde_json::from_value(object.clone()).unwrap()
}

impl Chronicle {
    /// Records a write.
    pub fn write(&mut self, stored: &Stored, now: Timestamp) {
        match (stored.plural.as_str(), &stored.after) {
            ("instances", _) => self.instance(stored, now),
            ("backups", _) => self.backup(stored),
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
                    self.taxes.push((since, parse(&last["tax"])));
                }
            }
            _ => {}
        }
    }

    fn instance(&mut self, stored: &Stored, now: Timestamp) {
        let object = stored.after.as_ref().or(stored.before.as_ref()).unwrap();
        let instance: Instance = parse(object);
        let uid = origin::uid(&instance.metadata).to_owned();
        if let Some(before) = &stored.before {
            let before = parse::<Instance>(before).status.unwrap_or_default();
            let status = instance.status.iter();
            let told = status.flat_map(|status| &status.outbox);
            let mut told = told.filter(|entry| entry.sequence > before.event_sequence);
            if told.any(|entry| entry.event_type == EventType::BackupFailed) {
                self.missed.insert((uid.clone(), before.next_backup_at.unwrap()));
            }
        }
        let life = self.lives.entry(uid).or_insert_with(|| Life {
            namespace: instance.metadata.namespace.clone().unwrap(),
            id: instance.id(),
            history: None,
            plan: None,
            schedule: Schedule::default(),
        });
        let deleted = instance.metadata.deletion_timestamp.as_ref().map(|at| at.0);
        let status = instance.status.clone().unwrap_or_default();
        let is_wanted = instance.spec.backup_enabled && deleted.is_none() && status.provisioned_at.is_some();
        life.schedule.want(&life.id, is_wanted, self.is_up, now);
        if deleted.is_some() {
            if let Some(history) = &mut life.history {
                history.ended = deleted;
            }
            return;
        }
        let plan = status.plan.unwrap_or(instance.spec.plan);
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

    fn backup(&mut self, stored: &Stored) {
        let object = stored.after.as_ref().or(stored.before.as_ref()).unwrap();
        let backup: Backup = parse(object);
        if stored.before.is_none()
            && let Some(at) = backup.spec.scheduled_for
        {
            let instance = backup.spec.instance_uid.clone().unwrap();
            let is_new = self.scheduled.insert((instance, at, backup.spec.retry));
            assert!(
                is_new,
                "the backup of {} for {at} was made twice",
                backup.spec.instance
            );
        }
        let kept = self
            .backups
            .entry(origin::uid(&backup.metadata).to_owned())
            .or_default();
        let status = backup.status.clone().unwrap_or_default();
        if !backup.is_unfinished() && (status.source.is_some() || backup.instance_id().is_some()) {
            kept.has_ended = true;
            kept.is_completed |= backup.phase() == BackupPhase::Completed;
        }
    }

    pub fn started(&mut self, now: Timestamp) {
        (self.is_up, self.up_since) = (true, now);
        for life in self.lives.values_mut() {
            life.schedule.comes_up(&life.id, now);
        }
        if let Some((_, until)) = self.outages.last_mut() {
            *until = now;
        }
    }

    pub fn died(&mut self, now: Timestamp) {
        self.is_up = false;
        for life in self.lives.values_mut() {
            life.schedule.goes_down(&life.id, self.up_since, now);
        }
        self.outages.push((now, Timestamp::MAX));
    }

    pub fn load(&mut self, uid: &str, from: Timestamp, to: Timestamp) {
        self.load.push(Load {
            uid: uid.to_owned(),
            from,
            to,
            ended: None,
            has_fired: false,
        });
    }

    /// Records an event that a receiver got.
    pub fn received(&mut self, event: &Received) {
        if event.event_type != EventType::AlertTriggered {
            return;
        }
        let body: Value = serde_json::from_str(&event.body).unwrap();
        let id = body["data"]["alert"]["id"].as_str().unwrap().to_owned();
        assert!(self.alerts.insert(id), "an alert was sent twice: {body}");
        let is_cause = |load: &&mut Load| {
            let to = load.ended.map_or(Timestamp::MAX, |ended| ended + CALM);
            load.uid == event.uid && load.from <= event.at && event.at <= to
        };
        let load = self.load.iter_mut().find(is_cause).expect("an alert has a cause");
        assert!(!load.has_fired, "two alerts for one crossing: {body}");
        load.has_fired = true;
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

    /// Whether the instance with this UID must be left alone.
    pub fn is_loaded(&self, uid: &str, time: Timestamp) -> bool {
        self.load
            .iter()
            .any(|load| load.uid == uid && load.ended.is_none_or(|ended| time <= ended + CALM))
    }

    /// Checks everything except the invoices, at the end. Returns what there was.
    pub fn check(&mut self, inbox: &Inbox, now: Timestamp) -> Counts {
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
                let is_made = self.scheduled.contains(&(uid.clone(), *run, false));
                assert!(
                    is_made || self.missed.contains(&key),
                    "the backup of {} for {run} neither exists nor is reported missed",
                    life.id
                );
                counts.runs += usize::from(is_made);
            }
        }
        for (uid, run, _) in &self.scheduled {
            let life = &self.lives[uid];
            assert!(
                life.schedule.must.contains(run) || life.schedule.may.contains(run),
                "a backup of {} for {run} was not due",
                life.id
            );
        }
        counts.missed = self.missed.len();
        let mut of: HashMap<(&str, EventType), usize> = HashMap::new();
        for event in inbox.events.values() {
            *of.entry((event.uid.as_str(), event.event_type)).or_default() += 1;
        }
        for (uid, kept) in &self.backups {
            let ends = [EventType::BackupCompleted, EventType::BackupFailed]
                .map(|of_type| of.get(&(uid.as_str(), of_type)).copied().unwrap_or_default());
            let expected = match (kept.has_ended, kept.is_completed) {
                (false, _) => [0, 0],
                (true, true) => [1, 0],
                (true, false) => [0, 1],
            };
            assert_eq!(ends, expected, "the events of backup {uid}");
            counts.backups += 1;
        }
        for uid in self.lives.keys() {
            let missed = self.missed.iter().filter(|(of, _)| of == uid).count();
            let told = of.get(&(uid.as_str(), EventType::BackupFailed));
            assert_eq!(
                told.copied().unwrap_or_default(),
                missed,
                "missed backups of {uid}"
            );
        }
        for life in self.lives.keys() {
            for of_type in [EventType::InstanceCreated, EventType::InstanceDeleted] {
                let count = of.get(&(life.as_str(), of_type)).copied().unwrap_or_default();
                assert!(count <= 1, "{of_type} of {life}");
            }
        }
        self.check_alerts(now);
        counts.alerts = self.alerts.len();
        counts
    }

    /// Checks that each load that lasted long enough has sent an alert.
    fn check_alerts(&self, now: Timestamp) {
        for load in &self.load {
            let to = load.ended.unwrap_or(now);
            // An alert takes four samples in a row; some samples fail.
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
                load.has_fired || !is_certain,
                "{} fired no alert from {} to {to}",
                load.uid,
                load.from
            );
        }
    }

    /// Checks the invoices and credit notes. Returns how many have been issued of each.
    pub fn check_invoices(
        &self,
        invoices: &[Invoice],
        inbox: &Inbox,
        billed_until: Timestamp,
    ) -> (usize, usize) {
        let mut numbers: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        let mut by_namespace: BTreeMap<&str, Vec<&Invoice>> = BTreeMap::new();
        let mut notes: Vec<&Invoice> = Vec::new();
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
            assert_eq!(invoice.metadata.namespace.as_deref(), Some("system"));
            if invoice.is_invoice() {
                let namespace = invoice.spec.account_namespace.as_str();
                by_namespace.entry(namespace).or_default().push(invoice);
            } else {
                notes.push(invoice);
            }
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
            for invoice in invoices {
                let period = (invoice.spec.period.from, invoice.spec.period.to);
                assert_eq!(
                    Period::month_of(period.0),
                    Period {
                        from: period.0,
                        to: period.1
                    }
                );
                if let Some(until) = until {
                    self.check_nothing_between(namespace, until, period.0);
                }
                until = Some(period.1);
                let mut expected = self.lines(namespace, period);
                let lines = invoice.spec.lines.iter().map(|line| {
                    let hours = line.hours.iter();
                    let mut hours: Vec<_> = hours
                        .map(|of| (of.plan.clone(), of.unit_price, of.thousandths / 1000))
                        .collect();
                    hours.sort_unstable();
                    (line.instance_id.clone(), hours, line.amount_cents)
                });
                let mut lines: Vec<Line> = lines.collect();
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
                let taxes = self.taxes.iter().take_while(|(since, _)| *since < period.1);
                let (_, tax) = taxes.last().unwrap();
                assert_eq!(
                    status.tax_cents,
                    tax.of(Cents(sum)).0,
                    "the tax of {}",
                    invoice.name()
                );
                check_notes(invoice, &notes);
                count += 1;
            }
            self.check_nothing_between(namespace, until.unwrap(), billed_until);
        }
        (count, notes.len())
    }

    /// Checks that there is nothing to bill between two invoices.
    fn check_nothing_between(&self, namespace: &str, from: Timestamp, to: Timestamp) {
        if from == to {
            return;
        }
        let lines = self.lines(namespace, (from, to));
        assert!(
            lines.is_empty(),
            "{namespace} was not billed from {from} to {to}: {lines:?}"
        );
    }

    /// The expected lines of an invoice, computed hour by hour.
    fn lines(&self, namespace: &str, period: (Timestamp, Timestamp)) -> Vec<Line> {
        let mut lines = Vec::new();
        let of_it = self.lives.values().filter(|life| life.namespace == namespace);
        for (life, history) in of_it.filter_map(|life| Some((life, life.history.as_ref()?))) {
            let Some((hours, amount)) = reference::line(history, period, &self.prices, (0, 0), None) else {
                continue;
            };
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
        lines
    }
}

/// Checks that the credit notes of an invoice are for what was asked, and never for more than there is.
fn check_notes(invoice: &Invoice, notes: &[&Invoice]) {
    let sums = |invoice: &Invoice| {
        let status = invoice.status.as_ref().unwrap();
        (status.net_cents, status.tax_cents)
    };
    let mut left = sums(invoice);
    let mut of_it: Vec<&&Invoice> = notes
        .iter()
        .filter(|note| note.spec.credit.as_ref().unwrap().invoice == invoice.name())
        .collect();
    of_it.sort_by_key(|note| note.status.as_ref().unwrap().number.clone());
    for note in of_it {
        let (net, tax) = sums(note);
        let asked_for = note.spec.credit.as_ref().unwrap().amount_cents;
        assert_eq!(net + tax, asked_for.unwrap_or(left.0 + left.1), "{}", note.name());
        left = (
            left.0.checked_sub(net).expect("not more than there is"),
            left.1.checked_sub(tax).expect("not more than there is"),
        );
    }
}

/// What happened in a year.
#[derive(Debug, Default)]
pub struct Counts {
    pub instances: usize,
    pub backups: usize,
    pub runs: usize,
    pub missed: usize,
    pub alerts: usize,
}
