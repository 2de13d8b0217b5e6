//! Copies what is metered to the open invoice.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    mem,
    ops::Bound,
};

use jiff::Timestamp;

use super::{Books, Facts, Pages, Step, entry};
use crate::invoice::Period;
use resources::{
    Invoice, InvoicePage, InvoicePeriod, InvoiceSpec, InvoiceStatus, LedgerEntry, ids,
    invoice::{ACCOUNT_ORIGIN_LABEL, InvoiceType},
    invoice_page::is_too_large,
};

/// How many subjects are looked at before others get a turn.
const AT_ONCE: usize = 500;

/// How far what exists has been looked through, for what is on no page yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Scan {
    /// The last one that was looked at, by what it is kept under.
    last: Option<String>,
    is_done: bool,
    /// What is new, in the order in which it began, so that the lines have a fixed order.
    new: BTreeSet<(Timestamp, String)>,
}

impl Scan {
    /// The first entries of what is new, so many that a page can be filled with them and what is left over is not the last.
    fn entries<'a>(
        &'a self,
        facts: &'a Facts<'_>,
        from: Timestamp,
    ) -> impl Iterator<Item = LedgerEntry> + 'a {
        let first = self.new.iter().take(2 * facts.max_entries);
        first.filter_map(move |(_, uid)| entry::new(uid, facts.subjects.get(uid.as_str())?, from))
    }
}

/// Looks at some of what exists, for the invoice of this name. Returns whether there is more. `from` is the start of the open period.
fn look(books: &mut Books, name: &str, facts: &Facts<'_>, from: Timestamp) -> bool {
    let Books {
        invoices,
        pages,
        scan,
        ..
    } = books;
    if scan.is_done {
        return false;
    }
    let mut pages = pages.get_mut(name);
    if scan.last.is_none()
        && let Some(pages) = &mut pages
    {
        pages.begin();
    }
    let own = invoices.values().filter(|invoice| invoice.name() == name);
    let own = own.flat_map(|invoice| &invoice.spec.entries);
    let own: HashSet<&str> = own.map(|entry| entry.uid.as_str()).collect();
    let after = scan.last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut rest = facts.subjects.range::<str, _>((after, Bound::Unbounded));
    let mut last = None;
    for (uid, subject) in rest.by_ref().take(AT_ONCE) {
        let is_known =
            own.contains(uid.as_ref()) || pages.as_mut().is_some_and(|pages| pages.saw(uid, subject));
        if !is_known && entry::new(uid, subject, from).is_some() {
            scan.new.insert((subject.since(), uid.to_string()));
        }
        last = Some(uid);
    }
    (scan.last, scan.is_done) = (last.map(ToString::to_string), rest.next().is_none());
    if scan.is_done
        && let Some(pages) = pages
    {
        pages.saw_all();
    }
    !scan.is_done
}

/// The step for an account without an open invoice: open one with its first line.
pub(super) fn open(books: &mut Books, facts: &Facts<'_>) -> Step {
    if facts.subjects.is_empty() {
        return Step::Rest(None);
    }
    let Some(issued_until) = books.issued_until else {
        return Step::LookBack;
    };
    let issued_until = issued_until.max(facts.holder.created);
    if look(books, "", facts, issued_until) {
        return Step::Continue;
    }
    let new = &books.scan.new;
    let firsts = new
        .iter()
        .map(|(since, _)| entry::from_when(*since, issued_until).unwrap_or(*since));
    let Some(first) = firsts.min() else {
        return Step::Rest(None);
    };
    // The clock of the process that recorded it may be ahead. An invoice for a future month would leave out what begins
    // before that.
    let from = Period::month_of(first.min(facts.now)).from.max(issued_until);
    let mut opened = invoice(books, facts, from);
    for entry in books.scan.entries(facts, from) {
        if facts.has_room(&opened.spec.entries, &entry) {
            opened.spec.entries.push(entry);
        }
    }
    Step::Create(Box::new(opened))
}

/// A new invoice whose period begins at `from`.
pub(super) fn invoice(books: &Books, facts: &Facts<'_>, from: Timestamp) -> Invoice {
    let name = ids::invoice_name(facts.holder.uid, &from.to_string());
    let period = Period::starting_at(from);
    let spec = InvoiceSpec {
        account: facts.holder.uid.to_owned(),
        account_name: facts.holder.name.to_owned(),
        account_namespace: facts.holder.namespace.to_owned(),
        invoice_type: InvoiceType::Invoice,
        period: InvoicePeriod { from, to: period.to },
        credit: None,
        currency: facts.prices.currency().to_string(),
        entries: Vec::new(),
        lines: Vec::new(),
    };
    let mut invoice = Invoice::new(&name, spec);
    invoice.metadata.namespace = Some(books.namespace.clone());
    let label = (ACCOUNT_ORIGIN_LABEL.to_owned(), facts.holder.uid.to_owned());
    invoice.metadata.labels = Some([label].into());
    invoice.status = Some(InvoiceStatus {
        id: ids::invoice_id(&name),
        ..InvoiceStatus::default()
    });
    invoice
}

/// What to do next so that the open invoice and its pages have everything that is metered; `None` if they do.
pub(super) fn sync(books: &mut Books, name: &str, facts: &Facts<'_>) -> Option<Step> {
    let from = books.invoice(name)?.spec.period.from;
    if look(books, name, facts, from) {
        return Some(Step::Continue);
    }
    let needed = books.pages.get(name).map_or_else(Vec::new, Pages::needed);
    if !needed.is_empty() {
        return Some(Step::Read {
            invoice: name.to_owned(),
            numbers: needed,
        });
    }
    let mut scan = mem::take(&mut books.scan);
    let step = change(books, &mut scan, name, facts);
    books.scan = scan;
    let is_outdated = |pages: &mut Pages| pages.are_up_to_date(facts.subjects);
    step.or_else(|| is_outdated(books.pages.get_mut(name)?).then_some(Step::Continue))
}

/// The next change of what is in memory, or `None` if that is up to date, and nothing is new.
fn change(books: &Books, scan: &mut Scan, name: &str, facts: &Facts<'_>) -> Option<Step> {
    let invoice = books.invoice(name)?;
    let from = invoice.spec.period.from;
    let currency = facts.prices.currency().to_string();
    if invoice.spec.currency != currency {
        let mut invoice = Box::new(invoice.clone());
        invoice.spec.currency = currency;
        let is_urgent = true;
        return Some(Step::Replace { invoice, is_urgent });
    }
    let mut draft = Draft::new(books, invoice, facts);
    let mut is_urgent = false;
    let places = draft.places();
    let known: HashSet<&str> = places.iter().map(|(_, _, uid)| *uid).collect();
    for (number, index, uid) in places {
        let subject = facts.subjects.get(uid);
        let Some(stored) = draft.entry(number, index) else {
            continue;
        };
        if subject.is_some_and(|subject| entry::is_current(stored, subject)) {
            continue;
        }
        let mut updated = stored.clone();
        entry::update(&mut updated, subject, from, facts.now);
        if updated != *stored {
            is_urgent |= !entry::ends(&updated).eq(entry::ends(stored));
            draft.replace(number, index, updated);
        }
    }
    draft.relieve();
    let pages = books.pages.get(name);
    let is_known = |uid: &str| known.contains(uid) || pages.is_some_and(|pages| pages.has(uid));
    while scan.new.first().is_some_and(|(_, uid)| is_known(uid)) {
        scan.new.pop_first();
    }
    for entry in scan.entries(facts, from).filter(|entry| !is_known(&entry.uid)) {
        is_urgent |= entry::ends(&entry).next().is_some();
        draft.add(entry);
    }
    let last = draft.last();
    let (number, entries) = draft.next_changed()?;
    // A new page that is not the last one is full: it would wait for nothing.
    let stored = books.page(name, number);
    is_urgent |= number < last && number > 0 && stored.is_none();
    if number == 0 {
        let mut invoice = Box::new(invoice.clone());
        invoice.spec.entries = entries;
        return Some(Step::Replace { invoice, is_urgent });
    }
    let mut page = InvoicePage::open(invoice, number, entries);
    if let Some(stored) = stored {
        page.metadata = stored.object.metadata.clone();
    }
    Some(Step::Page {
        page: Box::new(page),
        is_urgent,
    })
}

/// The entries of the open invoice and of its pages that are in memory, with changes. Number 0 is the invoice itself.
struct Draft<'a> {
    facts: &'a Facts<'a>,
    stored: BTreeMap<u32, &'a [LedgerEntry]>,
    changed: BTreeMap<u32, Vec<LedgerEntry>>,
}

impl<'a> Draft<'a> {
    fn new(books: &'a Books, invoice: &'a Invoice, facts: &'a Facts<'a>) -> Self {
        let loaded = books.pages_of(invoice.name()).filter(|page| page.is_loaded);
        let mut stored: BTreeMap<u32, &'a [LedgerEntry]> = loaded
            .map(|page| (page.object.spec.number, page.object.spec.entries.as_slice()))
            .collect();
        stored.insert(0, &invoice.spec.entries);
        Self {
            facts,
            stored,
            changed: BTreeMap::new(),
        }
    }

    /// The place of each entry. An entry that is in two pages, because a process died while moving it, counts in the
    /// later page and is removed from the other.
    fn places(&mut self) -> Vec<(u32, usize, &'a str)> {
        let latest: HashMap<&'a str, u32> = self
            .stored
            .iter()
            .flat_map(|(number, entries)| entries.iter().map(|entry| (entry.uid.as_str(), *number)))
            .collect();
        let mut places = Vec::with_capacity(latest.len());
        for (number, entries) in &self.stored {
            let is_current = |entry: &LedgerEntry| latest.get(entry.uid.as_str()) == Some(number);
            if entries.iter().all(is_current) {
                let all = entries.iter().enumerate();
                places.extend(all.map(|(index, entry)| (*number, index, entry.uid.as_str())));
            } else {
                let current = entries.iter().filter(|entry| is_current(entry));
                self.changed.insert(*number, current.cloned().collect());
            }
        }
        places
    }

    fn entries(&self, number: u32) -> &[LedgerEntry] {
        let stored = || self.stored.get(&number).copied().unwrap_or_default();
        self.changed.get(&number).map_or_else(stored, Vec::as_slice)
    }

    fn entries_mut(&mut self, number: u32) -> &mut Vec<LedgerEntry> {
        let stored = self.stored.get(&number).copied().unwrap_or_default();
        self.changed.entry(number).or_insert_with(|| stored.to_vec())
    }

    fn last(&self) -> u32 {
        let numbers = self.stored.keys().chain(self.changed.keys());
        numbers.copied().max().unwrap_or(0)
    }

    fn entry(&self, number: u32, index: usize) -> Option<&LedgerEntry> {
        self.entries(number).get(index)
    }

    /// Replaces an entry. A page that has grown too large is relieved of it by [`relieve`](Self::relieve) later.
    fn replace(&mut self, number: u32, index: usize, entry: LedgerEntry) {
        if let Some(place) = self.entries_mut(number).get_mut(index) {
            *place = entry;
        }
    }

    /// Adds an entry to the last page, or to a new one.
    fn add(&mut self, entry: LedgerEntry) {
        let last = self.last();
        let number = last + u32::from(!self.facts.has_room(self.entries(last), &entry));
        self.entries_mut(number).push(entry);
    }

    /// Moves entries of pages that have grown too large to the last page.
    fn relieve(&mut self) {
        let numbers: Vec<u32> = self.changed.keys().copied().collect();
        for number in numbers {
            while let Some(entries) = self.changed.get_mut(&number)
                && entries.len() > 1
                && is_too_large(entries)
                && let Some(moved) = entries.pop()
            {
                if number == self.last() {
                    self.entries_mut(number + 1).push(moved);
                } else {
                    self.add(moved);
                }
            }
        }
    }

    /// The page to write next: first pages that only gain entries, in order, because page numbers have no gaps; then
    /// pages from which entries have moved, the last one first, because entries only move to later pages.
    fn next_changed(mut self) -> Option<(u32, Vec<LedgerEntry>)> {
        let stored = mem::take(&mut self.stored);
        let is_new = |(number, entries): &(u32, Vec<LedgerEntry>)| {
            stored.get(number).copied() != Some(entries.as_slice())
        };
        let only_gains = |(number, entries): &(u32, Vec<LedgerEntry>)| {
            let kept: HashSet<&str> = entries.iter().map(|entry| entry.uid.as_str()).collect();
            let before = stored.get(number).copied().unwrap_or_default();
            before.iter().all(|entry| kept.contains(entry.uid.as_str()))
        };
        let mut changed: Vec<_> = self.changed.into_iter().filter(is_new).collect();
        match changed.iter().position(only_gains) {
            Some(first) => Some(changed.swap_remove(first)),
            None => changed.pop(),
        }
    }
}
