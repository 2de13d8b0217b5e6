//! Copies what is metered to the open invoice.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;

use super::{Books, Facts, Step, entry};
use crate::invoice::Period;
use resources::{
    Invoice, InvoicePage, InvoicePeriod, InvoiceSpec, InvoiceStatus, LedgerEntry, ids,
    invoice::{ACCOUNT_ORIGIN_LABEL, InvoiceType},
    invoice_page::is_too_large,
};

/// The step for an account without an open invoice: open one with its first line.
pub(super) fn open(books: &Books, facts: &Facts<'_>) -> Step {
    if facts.subjects.is_empty() {
        return Step::Rest(None);
    }
    let Some(issued_until) = books.issued_until else {
        return Step::LookBack;
    };
    let issued_until = issued_until.max(facts.holder.created);
    let firsts = new_entries(facts, |_| false, issued_until);
    let firsts = firsts
        .iter()
        .map(|entry| entry.billed_until.unwrap_or(entry.since));
    let Some(first) = firsts.min() else {
        return Step::Rest(None);
    };
    // The clock of the process that recorded it may be ahead. An invoice for a future month would leave out what begins
    // before that.
    let from = Period::month_of(first.min(facts.now)).from.max(issued_until);
    let mut opened = invoice(books, facts, from);
    for entry in new_entries(facts, |_| false, from) {
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
    if let Some(pages) = books.pages.get_mut(name) {
        let mut needed = pages.outdated(facts.subjects);
        // New entries are added to the last page.
        needed.extend(pages.last());
        needed.retain(|number| pages.get(*number).is_some_and(|page| !page.is_loaded));
        if !needed.is_empty() {
            return Some(Step::Read {
                invoice: name.to_owned(),
                numbers: needed.into_iter().collect(),
            });
        }
    }
    let invoice = books.invoice(name)?;
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
        entry::update(&mut updated, subject, invoice.spec.period.from, facts.now);
        if updated != *stored {
            is_urgent |= !entry::ends(&updated).eq(entry::ends(stored));
            draft.replace(number, index, updated);
        }
    }
    draft.relieve();
    let pages = books.pages.get(name);
    let is_known = |uid: &str| known.contains(uid) || pages.is_some_and(|pages| pages.has(uid));
    for entry in new_entries(facts, is_known, invoice.spec.period.from) {
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

/// The entries of everything that is not known yet, in the order in which it began, so that the lines have a fixed
/// order.
fn new_entries(facts: &Facts<'_>, is_known: impl Fn(&str) -> bool, from: Timestamp) -> Vec<LedgerEntry> {
    let unknown = facts.subjects.iter().filter(|(uid, _)| !is_known(uid));
    let entries = unknown.filter_map(|(uid, subject)| entry::new(uid, subject, from));
    let mut entries: Vec<LedgerEntry> = entries.collect();
    entries.sort_by(|a, b| (a.since, &a.uid).cmp(&(b.since, &b.uid)));
    entries
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
        let stored = std::mem::take(&mut self.stored);
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
