//! The ledger of an account over any history of its instances, with processes that die after any write.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
};

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use proptest::prelude::*;

use crate::invoice::reference::{self, History, PriceChanges};
use crate::{
    catalogue::{Catalogue, InvoiceTerms, Prices},
    invoice::{
        Period, PriceHistory, Total,
        ledger::{
            Books, Facts, GRACE, Holder, Metered, SPREAD, SeenBackup, Step, Subject, Subjects, backups_key,
            credit, next,
        },
        metering,
        render::Form,
    },
};
use resources::{
    Invoice, InvoiceLine, InvoicePage, LedgerEntry, Plan,
    invoice::{Credit, InvoiceType, Party},
    invoice_page::{DIFFERENCE, MAX_ENTRIES},
    metering::Metering,
    money::{Cents, Currency, Exact, TaxRate},
};

const START: &str = "2026-11-28T00:00:00Z";

#[derive(Clone, Debug)]
enum Op {
    /// Some time passes, in seconds.
    Advance(u32),
    /// Another process leads, whose clock is this many milliseconds ahead.
    Ahead(u32),
    Begin(Plan),
    /// A backup of this many thousandths of a GB is completed.
    BackUp(u64),
    Change(usize, Plan),
    /// A deletion is accepted.
    Delete(usize),
    /// The objects of deleted instances go, if they may.
    Finish,
    /// The finalizer is removed by hand, and nobody sees it.
    Vanish(usize),
    /// What is gone is written back, without its deletion.
    WriteBack(usize),
    /// The account's invoices are to be closed until this many seconds ago.
    Close(u32),
    /// The account is deleted; it goes once it is empty.
    Leave,
    /// The prices of the plans and of a GB, and the tax in percent, change.
    Prices([u64; 4], u64, u32),
    /// A part of an issued invoice is taken back: cents, or all that is left.
    Credit(usize, Option<u64>),
    /// The operator works, at most this many steps.
    Run(u8),
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let plan = || prop::sample::select(Plan::ALL.to_vec());
    let plans = prop::array::uniform4(0..10_000_u64);
    let backups = prop_oneof![Just(0_u64), 1..500_u64];
    let prices = (plans, backups, 0..30_u32).prop_map(|(mut prices, backups, tax)| {
        prices.sort_unstable();
        Op::Prices(prices, backups, tax)
    });
    prop_oneof![
        4 => prop_oneof![0..20_u32, 0..7200_u32, 0..400_000_u32, 0..6_000_000_u32].prop_map(Op::Advance),
        2 => prop_oneof![Just(0_u32), 0..60_000_u32].prop_map(Op::Ahead),
        4 => plan().prop_map(Op::Begin),
        2 => (1..200_000_u64).prop_map(Op::BackUp),
        4 => (0..8_usize, plan()).prop_map(|(index, plan)| Op::Change(index, plan)),
        3 => (0..8_usize).prop_map(Op::Delete),
        2 => Just(Op::Finish),
        1 => (0..8_usize).prop_map(Op::Vanish),
        1 => (0..8_usize).prop_map(Op::WriteBack),
        1 => prop_oneof![Just(0_u32), 0..300_000_u32].prop_map(Op::Close),
        1 => prices,
        1 => (0..4_usize, prop::option::of(0..5_000_u64)).prop_map(|(index, cents)| Op::Credit(index, cents)),
        1 => Just(Op::Leave),
        6 => prop_oneof![Just(u8::MAX), 0..6_u8].prop_map(Op::Run),
        2 => Just(Op::Restart),
    ]
}

/// An instance, or a backup.
struct Machine {
    uid: String,
    /// The size of a backup.
    megabytes: Option<u64>,
    metering: Metering,
    history: History,
    exists: bool,
    /// Whether it went without a deletion.
    has_vanished: bool,
    /// Whether it was seen that its end is recorded.
    recorded: bool,
}

impl Machine {
    fn begun(index: usize, plan: Plan, now: Timestamp) -> Self {
        Self {
            uid: format!("u{index}"),
            megabytes: None,
            metering: metering::begin(plan, now),
            history: History {
                since: now,
                plan,
                changes: Vec::new(),
                ended: None,
            },
            exists: true,
            has_vanished: false,
            recorded: false,
        }
    }

    fn backed_up(index: usize, megabytes: u64, now: Timestamp) -> Self {
        let mut backup = Self::begun(index, Plan::Starter, now);
        backup.megabytes = Some(megabytes);
        backup.metering.changes.clear();
        backup
    }

    /// The name of the line that it is on: that of the instance, or of the one that backups are of.
    fn line(&self) -> String {
        match self.megabytes {
            None => self.uid.clone(),
            Some(megabytes) => format!("of-{}", megabytes % 2),
        }
    }

    /// Thousandths of hours, what they cost without rounding in millionths of a cent, and the monthly price so far, as the reference
    /// has them.
    fn of_reference(
        &self,
        history: &History,
        period: (Timestamp, Timestamp),
        prices: &[PriceChange],
        earlier: (u64, u64),
        before: Option<(&History, Timestamp)>,
    ) -> Option<(u64, u64, u64)> {
        if let Some(megabytes) = self.megabytes {
            let prices: Vec<_> = prices.iter().map(|change| (change.0, change.2)).collect();
            return reference::backup(history, megabytes, period, &prices, earlier);
        }
        let prices: PriceChanges = prices.iter().map(|change| (change.0, change.1)).collect();
        let extra = before.and_then(|(before, at)| reference::difference(before, history, at, &prices));
        let (by_plan, amount) = reference::line(history, period, &prices, earlier, extra)?;
        let hours: u64 = by_plan.iter().map(|(_, _, hours)| hours).sum();
        let caps = by_plan.iter().map(|(_, monthly, _)| *monthly);
        let cap = caps.chain(extra.map(|(_, cap)| cap)).max()?;
        Some((hours * 1000, amount, cap))
    }
}

/// The hours of a line, in thousandths, without one that was billed before.
fn of_plans(line: &InvoiceLine) -> u64 {
    let hours = line.hours.iter().filter(|hours| hours.plan != DIFFERENCE);
    hours.map(|hours| hours.thousandths).sum()
}

/// When prices change, and the monthly prices of the plans and of a GB of backup from then on, in cents, and the tax in percent.
type PriceChange = (Timestamp, [u64; 4], u64, u32);

/// By UID.
type Histories = Vec<(String, History)>;

/// What is stored, the instances, and the operator's copy of the books.
struct World {
    now: Timestamp,
    /// How far the clock that sets the times of beginnings and changes is ahead. Ends have the API server's time.
    ahead: SignedDuration,
    machines: Vec<Machine>,
    closed_until: Option<Timestamp>,
    price_changes: Vec<PriceChange>,
    prices: PriceHistory,
    invoices: BTreeMap<String, Invoice>,
    pages: BTreeMap<(String, u32), InvoicePage>,
    numbers: HashMap<String, String>,
    last_number: u32,
    books: Option<Books>,
    /// The histories at the time when an invoice could no longer change.
    frozen: HashMap<String, Histories>,
    /// The histories when the operator began to make the next invoice, while it does.
    carried: Option<Histories>,
    /// Invoices that came to nothing, what they would have covered, and the histories then: there may be another one of that name.
    dropped: Vec<(String, (Timestamp, Timestamp), Histories)>,
    version: u64,
    /// The credit notes that were issued.
    notes: Vec<Invoice>,
    /// Whether the account is deleted. What is left in it is what the operator still sees.
    is_closing: bool,
    terms: InvoiceTerms,
    max_lines: usize,
    max_entries: usize,
    /// Pages that were read because their entries were needed.
    reads: usize,
}

fn prices_of(monthly: [u64; 4], backup_gb: u64, tax: u32) -> Prices {
    let by_plan = Plan::ALL.into_iter().zip(monthly.map(Cents)).collect();
    Prices::of(&Currency::default(), &by_plan)
        .with_backups(Cents(backup_gb))
        .with_tax(TaxRate::from_hundredths(tax * 100).unwrap())
}

impl World {
    fn new() -> Self {
        let monthly = [5_00, 15_00, 30_00, 60_00];
        Self {
            now: START.parse().unwrap(),
            ahead: SignedDuration::ZERO,
            machines: Vec::new(),
            closed_until: None,
            price_changes: vec![(Timestamp::MIN, monthly, 0, 19)],
            prices: PriceHistory::new(prices_of(monthly, 0, 19)),
            invoices: BTreeMap::new(),
            pages: BTreeMap::new(),
            numbers: HashMap::new(),
            last_number: 0,
            books: None,
            frozen: HashMap::new(),
            carried: None,
            dropped: Vec::new(),
            version: 0,
            notes: Vec::new(),
            is_closing: false,
            terms: InvoiceTerms {
                seller: Party {
                    name: "Stellage Ltd".to_owned(),
                    ..Party::default()
                },
                ..InvoiceTerms::default()
            },
            max_lines: 100_000,
            max_entries: MAX_ENTRIES,
            reads: 0,
        }
    }

    /// Makes instances begin now, up to this number.
    fn crowd(&mut self, count: usize) {
        for index in self.machines.len()..count {
            self.machines.push(Machine::begun(index, Plan::Starter, self.now));
        }
    }

    /// When something begins now.
    fn beginning(&self) -> Timestamp {
        let begun = self.machines.iter().map(|machine| machine.history.since);
        let latest = begun.max().map(|latest| latest + SignedDuration::from_millis(1));
        let closed = self.invoices.values().filter(|invoice| invoice.is_issued());
        let closed = closed.map(|invoice| invoice.spec.period.to).max();
        // Nothing begins in an account that has been closed.
        let after = latest.max(closed).filter(|_| self.is_closing);
        (self.now + self.ahead).max(after.unwrap_or(Timestamp::MIN))
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Advance(seconds) => self.now += SignedDuration::from_secs((*seconds).into()),
            Op::Ahead(milliseconds) => self.ahead = SignedDuration::from_millis((*milliseconds).into()),
            Op::Begin(plan) if self.machines.len() < 8 => {
                let machine = Machine::begun(self.machines.len(), *plan, self.beginning());
                self.machines.push(machine);
                // Nothing else happens in the same moment.
                self.now += SignedDuration::from_millis(1);
            }
            Op::BackUp(megabytes) if self.machines.len() < 8 => {
                let machine = Machine::backed_up(self.machines.len(), *megabytes, self.beginning());
                self.machines.push(machine);
                self.now += SignedDuration::from_millis(1);
            }
            Op::Change(index, plan) => {
                let now = self.now + self.ahead;
                if let Some(machine) = self.machines.get_mut(*index)
                    && machine.exists
                    && machine.megabytes.is_none()
                    && machine.history.ended.is_none()
                    && metering::change(&mut machine.metering, *plan, now)
                {
                    machine.history.changes.push((now, *plan));
                }
            }
            Op::Delete(index) => {
                let now = self.now;
                if let Some(machine) = self.machines.get_mut(*index)
                    && machine.exists
                    && machine.history.ended.is_none()
                {
                    machine.history.ended = Some(now);
                }
            }
            Op::Finish => {
                for machine in &mut self.machines {
                    machine.exists &= !machine.recorded;
                }
            }
            Op::Vanish(index) => {
                let entries = self.entries().cloned().collect::<Vec<_>>();
                let backups = entries.iter().flat_map(|entry| &entry.backups);
                let known: HashMap<&String, _> = entries
                    .iter()
                    .map(|entry| (&entry.uid, entry.changes.last().copied()))
                    .chain(backups.map(|backup| (&backup.uid, None)))
                    .collect();
                // What has not been copied before is lost.
                if let Some(machine) = self.machines.get_mut(*index)
                    && known.get(&machine.uid) == Some(&machine.metering.changes.last().copied())
                    && machine.history.ended.is_none()
                {
                    machine.exists = false;
                }
            }
            Op::WriteBack(index) => {
                let open = self.invoices.values().filter(|invoice| !invoice.is_issued());
                let newest = open.max_by_key(|invoice| invoice.spec.period.from);
                let Some(newest) = newest.filter(|_| !self.is_closing && self.carried.is_none()) else {
                    return;
                };
                // What is on no open invoice has been billed, or is about to be; and what ended before that, until then.
                let is_known = |machine: &&Machine| {
                    let (uid, from) = (&machine.uid, newest.spec.period.from);
                    let mut entries = self.entries_of(newest.name());
                    entries.any(|entry| entry.uid == *uid || entry.backups.iter().any(|it| it.uid == *uid))
                        && machine.history.ended.is_none_or(|ended| from <= ended)
                };
                let known = self.machines.get(*index).as_ref().is_some_and(is_known);
                if let Some(machine) = self.machines.get_mut(*index).filter(|_| known) {
                    machine.history.ended = None;
                    (machine.exists, machine.has_vanished, machine.recorded) = (true, false, false);
                    // If it ended again before anyone saw it, it would keep the end that it had.
                    self.run(u8::MAX);
                }
            }
            Op::Close(ago) => self.closed_until = Some(self.now - SignedDuration::from_secs((*ago).into())),
            Op::Leave => self.is_closing = true,
            Op::Prices(monthly, backup_gb, tax) => {
                // The last invoice of a deleted account ends with the second in which it is issued.
                self.now += SignedDuration::from_secs(self.is_closing.into());
                let catalogue = Catalogue {
                    prices: prices_of(*monthly, *backup_gb, *tax),
                    ..Catalogue::default()
                };
                self.prices.record(&catalogue, self.now);
                self.price_changes.push((self.now, *monthly, *backup_gb, *tax));
            }
            Op::Credit(index, cents) => self.credit(*index, *cents),
            Op::Run(steps) => {
                self.run(*steps);
            }
            Op::Restart => self.books = None,
            Op::Begin(_) | Op::BackUp(_) => {}
        }
    }

    fn entries_of(&self, name: &str) -> impl Iterator<Item = &LedgerEntry> {
        let pages = self
            .pages
            .range((name.to_owned(), 0)..=(name.to_owned(), u32::MAX));
        let of_pages = pages.flat_map(|(_, page)| &page.spec.entries);
        self.invoices[name].spec.entries.iter().chain(of_pages)
    }

    fn entries(&self) -> impl Iterator<Item = &LedgerEntry> {
        let of_invoices = self.invoices.values().flat_map(|invoice| &invoice.spec.entries);
        of_invoices.chain(self.pages.values().flat_map(|page| &page.spec.entries))
    }

    /// The operator begins, with what is stored.
    fn read(&self) -> Books {
        let open = self.invoices.values().filter(|invoice| !invoice.is_issued());
        let issued = |name: &str| self.invoices.get(name).is_some_and(Invoice::is_issued);
        let pages = self.pages.iter().filter(|((name, _), _)| !issued(name));
        let mut books = Books::of("sys");
        books.invoices = open
            .map(|invoice| (invoice.spec.period.from, invoice.clone()))
            .collect();
        pages.for_each(|(_, page)| books.put_page(page.clone()));
        books.numbers.clone_from(&self.numbers);
        books
    }

    /// Takes back a part of an issued invoice, or all that is left of it.
    fn credit(&mut self, index: usize, cents: Option<u64>) {
        let mut issued = self.invoices.values().filter(|invoice| invoice.is_issued());
        let Some(invoice) = issued.nth(index) else { return };
        let status = invoice.status.as_ref().unwrap();
        let mut note = invoice.clone();
        note.spec.credit = Some(Credit {
            invoice: invoice.name().to_owned(),
            number: status.number.clone().unwrap(),
            amount_cents: cents,
            reason: "outage".to_owned(),
        });
        let left = credit::left(invoice, &self.notes);
        if let Ok(total) = credit::total(&note, invoice, left) {
            let status = note.status.as_mut().unwrap();
            (status.net_cents, status.tax_cents) = (total.net.0, total.tax.0);
            self.notes.push(note);
        }
    }

    /// What exists.
    fn subjects(&self) -> Subjects<'_> {
        let mut subjects = Subjects::new();
        for machine in self.machines.iter().filter(|machine| machine.exists) {
            match machine.megabytes {
                None => {
                    let subject = Subject {
                        instance_id: format!("i-{}", machine.uid).into(),
                        name: &machine.uid,
                        metered: Metered::Instance(&machine.metering),
                        ended: machine.history.ended,
                    };
                    subjects.insert(Cow::Borrowed(&machine.uid), subject);
                }
                Some(megabytes) if self.prices.has_backup_price() => {
                    let name = ["of-0", "of-1"][usize::try_from(megabytes % 2).unwrap()];
                    let seen = SeenBackup {
                        uid: &machine.uid,
                        since: machine.metering.since,
                        megabytes,
                        ended: machine.history.ended,
                    };
                    let subject = subjects.entry(backups_key(name).into()).or_insert(Subject {
                        instance_id: name.into(),
                        name,
                        metered: Metered::Backups(Vec::new()),
                        ended: None,
                    });
                    if let Metered::Backups(backups) = &mut subject.metered {
                        backups.push(seen);
                        backups.sort_by_key(|backup| (backup.since, backup.uid));
                    }
                }
                Some(_) => {}
            }
        }
        subjects
    }

    /// Does at most this many steps. Returns the last one if it came to rest.
    #[expect(clippy::too_many_lines, reason = "one arm for each step")]
    fn run(&mut self, most: u8) -> Option<Step> {
        let known = self.books.take();
        self.carried = self.carried.take().filter(|_| known.is_some());
        let mut books = known.unwrap_or_else(|| self.read());
        // Anything that vanished unseen ends when that is noticed and stored.
        let backups = self.entries().flat_map(|entry| &entry.backups);
        let ends: HashMap<String, Option<Timestamp>> = self
            .entries()
            .map(|entry| (&entry.uid, entry.ended))
            .chain(backups.map(|backup| (&backup.uid, backup.ended)))
            .fold(HashMap::new(), |mut ends, (uid, ended)| {
                let known = ends.entry(uid.clone()).or_default();
                *known = ended.or(*known);
                ends
            });
        let now = self.now;
        for machine in &mut self.machines {
            let is_stored = ends.get(&machine.uid).is_none_or(Option::is_some);
            let is_new = machine.history.ended.is_none();
            if !machine.exists && most > 0 && (is_new || machine.has_vanished && !is_stored) {
                machine.history.ended = Some(now);
                machine.has_vanished = true;
            }
        }
        books.look_again();
        let mut rest = None;
        let mut count = 0;
        loop {
            assert!(count < 500 && self.reads < 100_000, "it does not come to rest");
            if most != u8::MAX && count >= u32::from(most) {
                break;
            }
            count += 1;
            let subjects = self.subjects();
            let facts = Facts {
                holder: Holder {
                    uid: "a",
                    name: "demo",
                    namespace: "demo",
                    buyer: Party::default(),
                    tax_rate: None,
                    tax_note: None,
                    created: Timestamp::MIN,
                    is_gone: false,
                    closed_until: self.closed_until.filter(|until| *until <= self.now),
                    is_closing: self.is_closing && !self.machines.iter().any(|machine| machine.exists),
                },
                subjects: &subjects,
                prices: &self.prices,
                terms: &self.terms,
                max_lines: self.max_lines,
                max_entries: self.max_entries,
                now: self.now,
            };
            let step = next(&mut books, &facts);
            let carried = self.carried.take().unwrap_or_else(|| self.histories());
            self.carried = books.is_final().then_some(carried);
            self.version += u64::from(!matches!(step, Step::Continue | Step::Read { .. }));
            let version = Some(self.version.to_string());
            match step {
                // It only computes.
                Step::Continue => count -= 1,
                Step::Read { invoice, numbers } => {
                    count -= 1;
                    self.reads += numbers.len();
                    for number in numbers {
                        let page = self.pages[&(invoice.clone(), number)].clone();
                        assert!(books.load_page(page), "nobody else writes");
                    }
                }
                Step::Rest(until) => {
                    for machine in &mut self.machines {
                        machine.recorded |= machine.history.ended.is_some();
                    }
                    rest = Some(Step::Rest(until));
                    break;
                }
                Step::LookBack => {
                    let issued = self.invoices.values().filter(|invoice| invoice.is_issued());
                    let last = issued.map(|invoice| invoice.spec.period.to).max();
                    books.issued_until = Some(last.unwrap_or(Timestamp::MIN));
                }
                Step::Page { mut page, .. } => {
                    let key = (page.spec.invoice.clone(), page.spec.number);
                    assert_eq!(
                        page.metadata.resource_version,
                        self.pages
                            .get(&key)
                            .and_then(|page| page.metadata.resource_version.clone())
                    );
                    assert!(page.spec.entries.len() <= self.max_entries);
                    let before = (key.0.clone(), key.1 - 1);
                    assert!(key.1 == 1 || self.pages.contains_key(&before), "no gaps");
                    page.metadata.resource_version = version;
                    if page.spec.lines.is_some() {
                        self.freeze(&key.0);
                    }
                    self.pages.insert(key, (*page).clone());
                    books.put_page(*page);
                }
                Step::DeletePage(page) => {
                    self.pages
                        .remove(&(page.spec.invoice.clone(), page.spec.number))
                        .unwrap();
                    books.remove_page(&page);
                }
                Step::Create(mut invoice) => {
                    if let Some(before) = books.invoices.values().next_back() {
                        let name = before.name().to_owned();
                        self.freeze(&name);
                    }
                    assert!(!self.invoices.contains_key(invoice.name()));
                    invoice.metadata.resource_version = version;
                    invoice.metadata.uid = Some(format!("uid-{}", invoice.name()));
                    self.invoices
                        .insert(invoice.name().to_owned(), (*invoice).clone());
                    books.put_invoice(*invoice);
                }
                Step::Replace { mut invoice, .. } => {
                    assert!(invoice.spec.entries.len() <= self.max_entries);
                    assert!(invoice.spec.entries.is_empty() || invoice.spec.lines.is_empty());
                    if invoice.is_issued() {
                        self.freeze(invoice.name());
                    }
                    invoice.metadata.resource_version = version;
                    self.invoices
                        .insert(invoice.name().to_owned(), (*invoice).clone());
                    books.put_invoice(*invoice);
                }
                Step::Delete(invoice) => {
                    self.freeze(invoice.name());
                    let period = invoice.spec.period;
                    let next = books.invoices.values().nth(1);
                    let to = next.map_or(period.to, |next| next.spec.period.from);
                    let histories = self.frozen.remove(invoice.name()).unwrap();
                    self.dropped
                        .push((invoice.name().to_owned(), (period.from, to), histories));
                    self.invoices.remove(invoice.name()).unwrap();
                    books.remove_invoice(&invoice);
                }
                Step::TakeNumber { invoice: name, year } => {
                    assert_eq!(year, self.now.to_zoned(TimeZone::UTC).year());
                    self.last_number += 1;
                    let number = format!("2026-{:06}", self.last_number);
                    assert!(self.numbers.insert(name.clone(), number.clone()).is_none());
                    books.numbers.insert(name, number);
                }
            }
        }
        self.books = Some(books);
        rest
    }

    fn histories(&self) -> Histories {
        let histories = self
            .machines
            .iter()
            .map(|machine| (machine.uid.clone(), machine.history.clone()));
        histories.collect()
    }

    fn freeze(&mut self, invoice: &str) {
        let histories = self.carried.clone().unwrap_or_else(|| self.histories());
        self.frozen.entry(invoice.to_owned()).or_insert(histories);
    }

    fn lines(&self, invoice: &str) -> Vec<&InvoiceLine> {
        let pages = self
            .pages
            .range((invoice.to_owned(), 0)..=(invoice.to_owned(), u32::MAX));
        let of_pages = pages.flat_map(|(_, page)| page.spec.lines.as_ref().unwrap());
        self.invoices[invoice].spec.lines.iter().chain(of_pages).collect()
    }

    /// Continues until everything that began before now has been issued.
    fn finish(&mut self) {
        for _ in 0..8 {
            self.apply(&Op::Advance(31 * 24 * 3600));
            assert!(self.run(u8::MAX).is_some());
        }
    }

    /// Compares the issued invoices with the reference.
    #[expect(clippy::too_many_lines, reason = "a list of what must hold")]
    fn check(&self) -> Result<(), TestCaseError> {
        let mut issued: Vec<&Invoice> = self
            .invoices
            .values()
            .filter(|invoice| invoice.is_issued())
            .collect();
        issued.sort_by_key(|invoice| invoice.spec.period.from);
        let mut numbers: Vec<_> = issued
            .iter()
            .map(|invoice| invoice.status.clone().unwrap().number.unwrap())
            .collect();
        numbers.sort_unstable();
        let expected: Vec<_> = (1..=issued.len())
            .map(|number| format!("2026-{number:06}"))
            .collect();
        prop_assert_eq!(numbers, expected);
        prop_assert_eq!(self.last_number as usize, issued.len());
        for pair in issued.windows(2) {
            prop_assert!(pair[0].spec.period.to <= pair[1].spec.period.from);
        }
        let mut hours: HashMap<String, u64> = HashMap::new();
        let mut earlier: HashMap<(String, String), (u64, u64)> = HashMap::new();
        let of_issued = issued.iter().map(|invoice| {
            let period = invoice.spec.period;
            let histories = &self.frozen[invoice.name()];
            (
                invoice.name(),
                (period.from, period.to),
                histories,
                Some(*invoice),
            )
        });
        let dropped = self.dropped.iter();
        let of_dropped = dropped.map(|(name, period, histories)| (name.as_str(), *period, histories, None));
        let mut all: Vec<_> = of_dropped.chain(of_issued).collect();
        all.sort_by_key(|(_, period, ..)| *period);
        let mut last: Option<(&Histories, Timestamp)> = None;
        // What was on one that came to nothing is not on another one of that name.
        let mut seen = HashSet::new();
        for (name, period, histories, invoice) in &all {
            let month = period.0.to_string()[..7].to_owned();
            let mut of_reference: BTreeMap<String, (u64, Exact)> = BTreeMap::new();
            for (uid, history) in *histories {
                if !seen.insert((*name, uid)) {
                    continue;
                }
                let before = earlier.entry((uid.clone(), month.clone())).or_default();
                let machine = self.machines.iter().find(|machine| machine.uid == *uid).unwrap();
                let is_same_month = |to: &Timestamp| *to == period.0 && Period::month_of(*to).from < *to;
                let previous = last.filter(|(_, to)| is_same_month(to)).and_then(|(last, to)| {
                    let known = last.iter().find(|(known, _)| known == uid);
                    known.map(|(_, known)| (known, to))
                });
                let line = machine.of_reference(history, *period, &self.price_changes, *before, previous);
                if let Some((hours, amount, cap)) = line {
                    *before = (before.0 + amount, before.1.max(cap));
                    let exact = match machine.megabytes {
                        None => Exact::from(Cents(amount)),
                        Some(_) => Exact(amount),
                    };
                    let sum = of_reference.entry(machine.line()).or_default();
                    *sum = (sum.0 + hours, sum.1.plus(exact));
                }
            }
            last = Some((histories, period.1));
            let rounded = of_reference.into_iter();
            let of_reference: Vec<(String, u64, u64)> = rounded
                .map(|(line, (hours, exact))| (line, hours, exact.rounded().0))
                .collect();
            let Some(invoice) = invoice else {
                for (line, count, amount) in of_reference {
                    prop_assert_eq!(amount, 0, "{} of {}, which came to nothing", line, name);
                    *hours.entry(line).or_default() += count;
                }
                continue;
            };
            let mut lines = self.lines(name);
            lines.sort_by(|a, b| a.name.cmp(&b.name));
            for line in &lines {
                let exact: u64 = line.hours.iter().map(|hours| hours.amount().0).sum();
                let rounded = Exact(exact - line.reduction).rounded();
                prop_assert_eq!(rounded, Cents(line.amount_cents), "what is shown adds up");
            }
            let of_lines: Vec<_> = lines
                .iter()
                .map(|line| (line.name.clone(), of_plans(line), line.amount_cents))
                .collect();
            prop_assert_eq!(&of_lines, &of_reference, "{:?}", period);
            let status = invoice.status.clone().unwrap();
            prop_assert_eq!(status.lines_count as usize, lines.len());
            prop_assert_eq!(status.net_cents, of_lines.iter().map(|line| line.2).sum::<u64>());
            prop_assert!(!lines.is_empty());
            let taxes = self.price_changes.iter().take_while(|change| change.0 < period.1);
            let tax = TaxRate::from_hundredths(taxes.last().unwrap().3 * 100).unwrap();
            prop_assert_eq!(
                status.tax_cents,
                tax.of(Cents(status.net_cents)).0,
                "the tax at the period's end"
            );
            for (line, count, _) in of_lines {
                *hours.entry(line).or_default() += count;
            }
            let left = credit::left(invoice, &self.notes);
            let notes = self
                .notes
                .iter()
                .map(|note| (note, note.status.as_ref().unwrap()));
            let notes = notes.filter(|(note, _)| note.spec.credit.as_ref().unwrap().invoice == *name);
            let (net, tax) = notes.fold((left.net.0, left.tax.0), |(net, tax), (_, note)| {
                (net + note.net_cents, tax + note.tax_cents)
            });
            prop_assert_eq!(
                (net, tax),
                (status.net_cents, status.tax_cents),
                "credit notes add up"
            );
        }
        // Each hour begun of an instance is billed once.
        for machine in self.machines.iter().filter(|machine| machine.megabytes.is_none()) {
            let end = all.iter().map(|(_, period, ..)| period.1).max().unwrap();
            let begun = reference::hours(&machine.history, end).len();
            prop_assert_eq!(
                hours.get(&machine.uid).copied().unwrap_or(0),
                1000 * u64::try_from(begun).unwrap(),
                "{}",
                &machine.uid
            );
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").map_or(300, |cases| cases.parse().unwrap()),
        ..ProptestConfig::default()
    })]

    /// With few entries on a page, most pages are not in memory.
    #[test]
    fn whatever_happens_each_hour_is_billed_once_as_the_reference_has_it(
        ops in prop::collection::vec(op(), 1..40),
        max_entries in prop_oneof![Just(MAX_ENTRIES), 1..4_usize],
    ) {
        let mut world = World::new();
        world.max_entries = max_entries;
        for op in &ops {
            world.apply(op);
        }
        world.books = None;
        world.run(u8::MAX);
        world.finish();
        if world.machines.is_empty() {
            prop_assert!(world.invoices.is_empty());
        } else {
            world.check()?;
        }
    }
}

#[test]
fn an_invoice_is_issued_though_nothing_on_any_of_its_pages_continues() {
    let mut world = World::new();
    world.max_entries = 1;
    world.crowd(4);
    world.run(u8::MAX);
    for machine in 0..4 {
        world.apply(&Op::Delete(machine));
    }
    world.run(u8::MAX);
    world.apply(&Op::Finish);
    world.run(u8::MAX);
    world.finish();
    let issued = world.invoices.values().map(Invoice::is_issued);
    assert_eq!(issued.collect::<Vec<_>>(), [true]);
    world.check().unwrap();
}

/// An account with very many pages may never be without a change for as long as that takes.
#[test]
fn what_is_new_while_the_next_invoice_is_made_neither_begins_it_anew_nor_is_billed_twice() {
    let mut world = World::new();
    world.max_entries = 2;
    world.crowd(20);
    world.run(u8::MAX);
    world.now = "2026-11-30T23:59:59Z".parse().unwrap();
    let mut plans = Plan::ALL.into_iter().cycle();
    let due = "2026-12-01T00:10:05Z".parse().unwrap();
    let late = world.now;
    world.now = due;
    let mut steps = 0;
    while !world.invoices.values().any(Invoice::is_issued) {
        world.run(1);
        steps += 1;
        assert!(steps < 60, "it begins anew");
        world.apply(&Op::Change(steps % 20, plans.next().unwrap()));
        world.now += SignedDuration::from_millis(1);
        if steps == 3 {
            // Seen late.
            world.machines.push(Machine::begun(20, Plan::Starter, late));
        }
    }
    world.finish();
    // The reference knows nothing of what is seen late.
    let late = world.machines.pop().unwrap();
    let invoices = world.invoices.values().filter(|invoice| invoice.is_issued());
    let end = invoices
        .clone()
        .map(|invoice| invoice.spec.period.to)
        .max()
        .unwrap();
    let lines = invoices.flat_map(|invoice| world.lines(invoice.name()));
    let billed: u64 = lines.filter(|line| line.name == late.uid).map(of_plans).sum();
    let begun = reference::hours(&late.history, end).len();
    assert_eq!(billed, 1000 * u64::try_from(begun).unwrap());
}

#[test]
fn a_deleted_account_is_billed_at_once_for_all_that_it_had_and_once_only() {
    // Also for what has just begun.
    for age in [5000, 60] {
        let mut world = World::new();
        for _ in 0..2 {
            world.apply(&Op::Begin(Plan::Starter));
            world.apply(&Op::Advance(age));
        }
        world.run(u8::MAX);
        world.apply(&Op::Delete(0));
        world.apply(&Op::Leave);
        world.apply(&Op::Advance(age));
        assert!(world.run(u8::MAX).is_some());
        assert_eq!(world.last_number, 0, "one still runs");
        world.apply(&Op::Delete(1));
        world.apply(&Op::Advance(1));
        world.run(u8::MAX);
        assert_eq!(world.last_number, 0, "the objects are still there");
        // A process dies at each step.
        for _ in 0..20 {
            world.run(1);
            world.apply(&Op::Finish);
            world.apply(&Op::Advance(1));
            world.apply(&Op::Restart);
        }
        let issued: Vec<bool> = world.invoices.values().map(Invoice::is_issued).collect();
        assert_eq!(issued, [true], "{age}");
        world.check().unwrap();
    }
}

#[test]
fn what_is_deleted_with_its_account_in_the_second_in_which_it_began_is_billed_for_an_hour() {
    let mut world = World::new();
    world.now += SignedDuration::from_millis(900);
    world.apply(&Op::Begin(Plan::Starter));
    world.run(u8::MAX);
    world.now -= SignedDuration::from_millis(900);
    world.apply(&Op::Delete(0));
    world.apply(&Op::Leave);
    for _ in 0..3 {
        world.run(u8::MAX);
        world.apply(&Op::Finish);
    }
    let lines = world.invoices.values().map(|invoice| invoice.spec.lines.len());
    assert_eq!(lines.collect::<Vec<_>>(), [1]);
}

#[test]
fn an_open_invoice_gets_the_currency_in_which_it_will_be_issued() {
    let mut world = World::new();
    world.apply(&Op::Begin(Plan::Starter));
    world.run(u8::MAX);
    let mut invoice = world.invoices.values().next().unwrap().clone();
    "USD".clone_into(&mut invoice.spec.currency);
    world.invoices.insert(invoice.name().to_owned(), invoice);
    world.apply(&Op::Restart);
    world.run(u8::MAX);
    let currencies = world
        .invoices
        .values()
        .map(|invoice| invoice.spec.currency.clone());
    assert_eq!(
        currencies.collect::<Vec<_>>(),
        [world.prices.currency().to_string()]
    );
}

/// Ten minutes, since its process may have been down when it first ran. What is older has been invoiced before.
#[test]
fn what_is_seen_late_is_billed_for_the_hours_before_the_open_period_if_it_is_ten_minutes_old_at_most() {
    for (minutes, billed) in [(9, 1), (11, 0)] {
        let mut world = World::new();
        world.apply(&Op::Begin(Plan::Starter));
        world.run(u8::MAX);
        world.apply(&Op::Advance(minutes * 60));
        let began = world.now - SignedDuration::from_mins(minutes.into());
        world.apply(&Op::Close(0));
        world.now += GRACE;
        world.run(u8::MAX);
        assert_eq!(world.invoices.len(), 2);
        world.machines.push(Machine::begun(1, Plan::Starter, began));
        world.apply(&Op::Advance(60));
        world.run(u8::MAX);
        world.apply(&Op::Close(0));
        world.now += GRACE;
        world.run(u8::MAX);
        let lines: Vec<_> = world.invoices.keys().flat_map(|name| world.lines(name)).collect();
        let late = lines.iter().filter(|line| line.name == "u1").count();
        assert_eq!(late, billed, "{minutes} minutes");
    }
}

/// `since` is a time of the leader's clock, and an end is a time of the API server's clock.
#[test]
fn what_a_clock_that_was_ahead_has_begin_is_billed_for_an_hour_though_it_is_deleted_before_that() {
    let day = SignedDuration::from_hours(24);
    let month = Period::month_of(START.parse().unwrap()).to - SignedDuration::from_secs(20);
    for (now, ahead) in [
        (START.parse().unwrap(), SignedDuration::from_secs(45)),
        (month, SignedDuration::from_secs(45)),
        (START.parse().unwrap(), 40 * day),
    ] {
        let mut world = World::new();
        (world.now, world.ahead) = (now, ahead);
        world.apply(&Op::Begin(Plan::Starter));
        world.run(u8::MAX);
        world.apply(&Op::Delete(0));
        world.run(u8::MAX);
        world.apply(&Op::Finish);
        assert!(!world.machines[0].exists, "it goes once its end is recorded");
        world.finish();
        world.check().unwrap();
        let lines = world.invoices.values().map(|invoice| invoice.spec.lines.len());
        assert_eq!(lines.collect::<Vec<_>>(), [1], "{ahead:?}");
    }
}

#[test]
fn what_a_clock_that_was_ahead_has_begin_next_month_leaves_others_their_hours() {
    let mut world = World::new();
    let start = world.now;
    let later = start + SignedDuration::from_hours(40 * 24);
    world.machines.push(Machine::begun(0, Plan::Starter, later));
    world.run(u8::MAX);
    world.apply(&Op::Begin(Plan::Business));
    world.apply(&Op::Advance(5 * 3600));
    world.run(u8::MAX);
    let open: Vec<_> = world
        .invoices
        .values()
        .map(|invoice| invoice.spec.period.from)
        .collect();
    assert_eq!(open, [Period::month_of(start).from]);
    world.finish();
    world.check().unwrap();
}

#[test]
fn a_month_is_closed_with_two_writes_and_two_for_each_page() {
    let mut world = World::new();
    for _ in 0..8 {
        world.apply(&Op::Begin(Plan::Starter));
    }
    world.run(u8::MAX);
    assert_eq!((world.invoices.len(), world.pages.len()), (1, 0));
    let due: Timestamp = "2026-12-01T00:00:00Z".parse().unwrap();
    world.now = due;
    let Some(Step::Rest(Some(closed))) = world.run(u8::MAX) else {
        panic!("it is not due")
    };
    assert!(due + GRACE <= closed && closed < due + GRACE + SPREAD);
    world.now = closed;
    let before = world.version;
    world.run(u8::MAX);
    // The next invoice, the number, the issue; and the check that nothing is left to do.
    assert_eq!(world.version - before, 4);
    let phases: Vec<bool> = world.invoices.values().map(Invoice::is_issued).collect();
    assert_eq!(phases.iter().filter(|issued| **issued).count(), 1);
    world.check().unwrap();

    world.crowd(MAX_ENTRIES + 1);
    world.run(u8::MAX);
    assert_eq!(world.pages.len(), 1);
    world.now = "2027-01-01T00:10:05Z".parse().unwrap();
    let before = world.version;
    world.run(u8::MAX);
    // Plus the page of the next invoice, and the page with lines.
    assert_eq!(world.version - before, 6);
    world.check().unwrap();
}

#[test]
fn an_hour_that_gets_dearer_after_an_early_close_is_billed_in_full_with_the_next_invoice() {
    let mut world = World::new();
    world.apply(&Op::Begin(Plan::Starter));
    world.run(u8::MAX);
    world.apply(&Op::Advance(1800));
    world.apply(&Op::Close(0));
    world.now += GRACE;
    world.run(u8::MAX);
    world.apply(&Op::Change(0, Plan::Enterprise));
    world.run(u8::MAX);
    world.apply(&Op::Advance(1200));
    world.apply(&Op::Delete(0));
    world.run(u8::MAX);
    world.finish();
    world.check().unwrap();
    let mut issued: Vec<&Invoice> = world.invoices.values().filter(|it| it.is_issued()).collect();
    issued.sort_by_key(|invoice| invoice.spec.period.from);
    let hours: Vec<(&str, u64, u64)> = issued
        .iter()
        .flat_map(|invoice| &invoice.spec.lines[0].hours)
        .map(|hours| (hours.plan.as_str(), hours.thousandths, hours.unit_price))
        .collect();
    // 0.08929 in all.
    assert_eq!(hours, [("starter", 1000, 745), (DIFFERENCE, 1000, 8929 - 745)]);
}

#[test]
fn a_seller_that_goes_while_an_invoice_is_being_issued_holds_it_and_loses_nothing() {
    for steps in 0..6 {
        let mut world = World::new();
        world.apply(&Op::Begin(Plan::Starter));
        world.run(u8::MAX);
        world.apply(&Op::Advance(5_000_000));
        world.run(steps);
        let seller = std::mem::take(&mut world.terms.seller);
        assert!(world.run(u8::MAX).is_some());
        assert!(world.dropped.is_empty());
        world.terms.seller = seller;
        world.finish();
        world.check().unwrap();
    }
}

#[test]
fn without_a_seller_an_invoice_waits_for_one_and_says_so() {
    let mut world = World::new();
    let seller = std::mem::take(&mut world.terms.seller);
    world.apply(&Op::Begin(Plan::Starter));
    world.finish();
    let open: Vec<&Invoice> = world.invoices.values().collect();
    let [open] = open[..] else { panic!("one is open") };
    let held = open.status.as_ref().unwrap().held.clone();
    assert!(held.unwrap().contains("names no seller"));
    world.terms.seller = seller;
    world.finish();
    world.check().unwrap();
    let months = world.invoices.values().filter(|invoice| invoice.is_issued());
    assert!(months.count() > 10, "also those that went by");
}

#[test]
fn an_invoice_that_is_full_is_issued_and_the_next_one_begins() {
    let mut world = World::new();
    world.max_lines = 20;
    for round in 0..4 {
        world.crowd(30 * (round + 1));
        world.apply(&Op::Advance(7200));
        world.run(u8::MAX);
        for index in 30 * round..30 * (round + 1) - 3 {
            world.apply(&Op::Delete(index));
        }
        for _ in 0..3 {
            world.apply(&Op::Advance(10));
            world.run(u8::MAX);
            world.apply(&Op::Finish);
        }
    }
    let issued = world
        .invoices
        .values()
        .filter(|invoice| invoice.is_issued())
        .count();
    assert_eq!(issued, 4, "one a round");
    world.finish();
    world.check().unwrap();
}

#[test]
fn without_a_seller_what_fills_an_invoice_is_dropped() {
    let mut world = World::new();
    (world.max_lines, world.terms.seller) = (20, Party::default());
    for round in 0..20 {
        world.crowd(30 * (round + 1));
        // A process that leads anew reads what is stored.
        world.apply(&Op::Restart);
        world.apply(&Op::Advance(7 * 24 * 3600));
        world.run(u8::MAX);
        for index in 30 * round..30 * (round + 1) {
            world.apply(&Op::Delete(index));
        }
        for _ in 0..3 {
            world.apply(&Op::Advance(10));
            world.run(u8::MAX);
            world.apply(&Op::Finish);
        }
        assert!(world.entries().count() <= 60, "{}", world.entries().count());
    }
    assert_eq!(world.last_number, 0);
}

/// The account of 20 instances at once that come and go: what has ended is neither kept in memory nor looked at.
#[test]
fn what_has_ended_costs_neither_memory_nor_work() {
    let mut world = World::new();
    world.max_entries = 10;
    let mut most = (0, 0, 0);
    for round in 1..=200 {
        world.crowd(10 * round);
        for index in 10 * (round - 1)..10 * round {
            world.apply(&Op::Delete(index.saturating_sub(10)));
        }
        let before = world.reads;
        for _ in 0..2 {
            world.apply(&Op::Advance(2));
            world.run(u8::MAX);
            world.apply(&Op::Finish);
        }
        let (loaded, live) = world.books.as_ref().unwrap().sizes();
        most = (
            most.0.max(loaded),
            most.1.max(live),
            most.2.max(world.reads - before),
        );
        // A process that begins reads everything once.
        if round % 50 == 0 {
            world.apply(&Op::Restart);
        }
    }
    assert!(world.pages.len() > 190);
    assert!(most.0 <= 10 && most.1 <= 20 && most.2 <= 4, "{most:?}");
    world.reads = 0;
    world.finish();
    world.check().unwrap();
    assert!(
        world.reads <= world.pages.len() + 8,
        "a page is read once to be issued: {}",
        world.reads
    );
}

#[test]
fn an_invoice_with_pages_is_right_if_the_operator_dies_at_each_step() {
    for steps in 1..4 {
        let mut world = World::new();
        world.crowd(2 * MAX_ENTRIES + 50);
        for round in 0..4_usize {
            for index in [3, 150, 249, 20 * round, 100 + 40 * round] {
                world.apply(&Op::Change(index, Plan::ALL[round]));
            }
            world.apply(&Op::Delete(60 * round + 5));
            world.apply(&Op::Advance(10 * 24 * 3600));
            for _ in 0..30 {
                world.run(steps);
                world.apply(&Op::Finish);
                world.apply(&Op::Restart);
            }
        }
        world.finish();
        world.check().unwrap();
    }
}

#[test]
fn nothing_is_written_as_time_passes_and_a_change_is_one_page() {
    let mut world = World::new();
    world.apply(&Op::Begin(Plan::Starter));
    world.run(u8::MAX);
    let before = world.version;
    for _ in 0..10 {
        world.apply(&Op::Advance(3600));
        world.run(u8::MAX);
    }
    assert_eq!(world.version - before, 10, "it only rests");
    world.apply(&Op::Change(0, Plan::Business));
    world.run(u8::MAX);
    assert_eq!(world.version - before, 12);
}

#[test]
fn an_account_that_never_had_a_running_instance_gets_no_invoice() {
    let mut world = World::new();
    world.finish();
    assert!(world.invoices.is_empty() && world.last_number == 0);
}

#[test]
fn what_comes_to_nothing_is_not_issued_takes_no_number_and_is_not_billed_later() {
    let mut world = World::new();
    world.prices = PriceHistory::new(prices_of([0; 4], 0, 19));
    world.apply(&Op::Begin(Plan::Starter));
    world.crowd(500);
    world.run(u8::MAX);
    world.apply(&Op::Close(5_000));
    world.finish();
    assert!(world.invoices.values().all(|invoice| !invoice.is_issued()));
    assert_eq!((world.invoices.len(), world.last_number), (1, 0));
    let open = world.invoices.values().next().unwrap();
    let since = open.spec.period.from;
    let unbilled = world.entries().filter(|entry| entry.billed_until < Some(since));
    assert_eq!(unbilled.count(), 0);
}

#[test]
fn closing_until_a_time_before_any_hour_bills_nothing_and_says_so() {
    let mut world = World::new();
    world.apply(&Op::Advance(10_000));
    world.apply(&Op::Begin(Plan::Starter));
    world.run(u8::MAX);
    world.apply(&Op::Advance(100));
    world.apply(&Op::Close(5_000));
    world.run(u8::MAX);
    let invoice = world.invoices.values().next().unwrap();
    assert_eq!((world.invoices.len(), world.last_number), (1, 0));
    assert_eq!(invoice.status.as_ref().unwrap().nothing_until, world.closed_until);
    world.finish();
    world.check().unwrap();
}

#[test]
fn ten_thousand_instances_with_forty_changes_each_fit_into_pages() {
    let mut world = World::new();
    let mut metering = metering::begin(Plan::Starter, world.now);
    for hour in 0..41 {
        let plan = [Plan::Starter, Plan::Enterprise][hour % 2];
        let at = world.now + SignedDuration::from_hours(i64::try_from(hour).unwrap());
        metering::change(&mut metering, plan, at);
    }
    assert_eq!(metering.changes.len(), 41);
    world.apply(&Op::Begin(Plan::Starter));
    let history = world.machines[0].history.clone();
    world.machines = (0..10_000)
        .map(|index| Machine {
            uid: format!("{index:036}"),
            megabytes: None,
            metering: metering.clone(),
            history: history.clone(),
            exists: true,
            has_vanished: false,
            recorded: false,
        })
        .collect();
    world.run(u8::MAX);
    assert!(world.pages.len() <= 110, "{}", world.pages.len());
    for page in world.pages.values() {
        let bytes = serde_json::to_string(page).unwrap().len();
        assert!(bytes < 512 * 1024, "{bytes}");
    }
    assert_eq!(world.entries().count(), 10_000);
}

/// A decimal number as an integer, in units of 10^-8.
fn exact(text: &str) -> i128 {
    let (sign, text) = text.strip_prefix('-').map_or((1, text), |text| (-1, text));
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let digits: i128 = format!("{whole}{decimals:0<8}").parse().unwrap();
    sign * digits
}

/// The cells of the rows of a table.
fn rows_of(html: &str) -> Vec<Vec<String>> {
    let rows = html.split("<tr").skip(1);
    rows.map(|row| {
        let row = row.split("</tr>").next().unwrap();
        let cells = row.split("<td").skip(1);
        cells
            .map(|cell| {
                let text = cell.split_once('>').unwrap().1;
                text.split("</td>").next().unwrap().replace("&apos;", "'")
            })
            .collect()
    })
    .collect()
}

/// Half up, to cents.
fn cents(exact: i128) -> i128 {
    (exact + 500_000) / 1_000_000 * 1_000_000
}

/// Recomputes every amount of a page to print from what else is on the page, as an accountant does.
fn recompute(html: &str) {
    let (mut net, mut hours, mut reduction) = (0, 0, 0);
    let mut sums = Vec::new();
    for row in rows_of(html).into_iter().filter(|row| !row.is_empty()) {
        let [_, _, plan, count, price, amount, to_pay] = &row[..] else {
            let (what, value) = (&row[0], row[1].split(' ').next().unwrap());
            sums.push((what.clone(), exact(value)));
            continue;
        };
        if let Some(limit) = plan.strip_prefix("reduction (limit of the month ") {
            let limit = limit.trim_end_matches(')');
            let (limit, before) = limit.split_once(", of which ").unwrap_or((limit, "0"));
            let before = before.trim_end_matches(" was billed before");
            reduction = exact(amount);
            assert_eq!(hours + reduction, exact(limit) - exact(before), "{row:?}");
        } else {
            let count = exact(count.trim_end_matches(" GB-h"));
            assert_eq!(count * exact(price) / 100_000_000, exact(amount), "{row:?}");
            // The price of an hour is the month's, of a plan or a GB, divided by 672 and rounded up to a thousandth of a cent.
            if let Some((_, month)) = plan.split_once('(').filter(|_| !plan.starts_with(DIFFERENCE)) {
                let month = exact(month.split(' ').next().unwrap());
                assert_eq!((month + 671_999) / 672_000 * 1000, exact(price), "{row:?}");
            }
            hours += exact(amount);
        }
        if !to_pay.is_empty() {
            assert_eq!(cents(hours + reduction), exact(to_pay), "{row:?}");
            net += exact(to_pay);
            (hours, reduction) = (0, 0);
        }
    }
    let [(_, shown_net), (tax_line, tax), (_, total)] = &sums[..] else {
        panic!("{sums:?}")
    };
    let rate = tax_line.strip_prefix("Tax, ").unwrap().split(' ').next().unwrap();
    if tax_line.contains("contained in the total") {
        let (total, rate) = (*total / 1_000_000, exact(rate) / 1_000_000);
        assert_eq!(
            (2 * total * rate + 10_000 + rate) / (20_000 + 2 * rate) * 1_000_000,
            *tax
        );
        assert_eq!(shown_net + tax, total * 1_000_000);
        return;
    }
    assert_eq!(
        (net, cents(net / 100 * exact(rate) / 100_000_000)),
        (*shown_net, *tax)
    );
    assert_eq!(net + tax, *total);
}

/// To look at the pages: `STELLAGE_TEST_PAGES=FOLDER cargo test -p stellage-domain --lib -- pocket_calculator`.
#[test]
fn three_months_of_an_account_can_be_recomputed_with_a_pocket_calculator_from_the_printed_pages() {
    let mut world = World::new();
    let day = |days: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a test")]
        Op::Advance((days * 86_400.0) as u32)
    };
    world.now = "2026-10-03T08:20:00Z".parse().unwrap();
    let monthly = [5_00, 15_00, 30_00, 60_00];
    world.price_changes = vec![(Timestamp::MIN, monthly, 5, 19)];
    world.prices = PriceHistory::new(prices_of(monthly, 5, 19));
    for plan in [Plan::Starter, Plan::Business, Plan::Starter] {
        world.apply(&Op::Begin(plan));
    }
    for (days, op) in [
        (2.3, Op::BackUp(12_345)),
        (3.1, Op::Change(0, Plan::Enterprise)),
        (4.7, Op::Change(0, Plan::Starter)),
        (6.2, Op::BackUp(7_890)),
        (1.4, Op::Close(0)),
        (0.002, Op::Change(1, Plan::Performance)),
        (9.0, Op::Delete(3)),
        (7.5, Op::Begin(Plan::Starter)),
        (8.8, Op::Prices([6_00, 16_00, 31_00, 61_00], 6, 19)),
        (5.5, Op::Delete(5)),
        (12.2, Op::Prices([6_00, 16_00, 31_00, 61_00], 6, 21)),
    ] {
        world.apply(&day(days));
        world.apply(&op);
        for _ in 0..3 {
            world.now += GRACE;
            world.run(u8::MAX);
            world.apply(&Op::Finish);
        }
    }
    world.apply(&day(35.0));
    world.run(u8::MAX);
    world.check().unwrap();
    let issued: Vec<Invoice> = world
        .invoices
        .values()
        .filter(|it| it.is_issued())
        .cloned()
        .collect();
    assert!(issued.len() >= 4, "an early close and three months");
    world.apply(&Op::Credit(0, Some(1_23)));
    let mut pages = Vec::new();
    for invoice in &issued {
        let lines: Vec<InvoiceLine> = world.lines(invoice.name()).into_iter().cloned().collect();
        let html = Form::Html.head(invoice)
            + &Form::Html.lines(invoice, 1, &lines)
            + &Form::Html.foot(invoice, Total::of(invoice));
        pages.push((number_of(invoice), html));
    }
    for note in &world.notes {
        let mut note = note.clone();
        note.spec.invoice_type = InvoiceType::CreditNote;
        note.status.as_mut().unwrap().number = Some("2027-000001".to_owned());
        let html = Form::Html.head(&note) + &Form::Html.foot(&note, Total::of(&note));
        pages.push(("credit-note".to_owned(), html));
    }
    let text: String = pages.iter().map(|(_, html)| html.as_str()).collect();
    for shown in [
        "difference",
        "limit of the month",
        "was billed before",
        "backup",
        "21.00 %",
        "19.00 %",
        "Credit note",
    ] {
        assert!(text.contains(shown), "{shown} does not occur");
    }
    for (name, html) in &pages {
        recompute(html);
        if let Some(folder) = std::env::var_os("STELLAGE_TEST_PAGES") {
            std::fs::write(std::path::Path::new(&folder).join(format!("{name}.html")), html).unwrap();
        }
    }
}

fn number_of(invoice: &Invoice) -> String {
    invoice.status.as_ref().unwrap().number.clone().unwrap()
}
