//! Copies what is metered to the open invoice.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;

use super::{Books, Facts, Step, entry};
use crate::{
    billing::Period,
    resources::{Invoice, InvoicePage, InvoicePeriod, InvoiceSpec, InvoiceStatus, LedgerEntry, ids},
};

/// The step of an account without an open invoice: to open one with its first line.
pub(super) fn open(books: &Books, facts: &Facts<'_>) -> Step {
    if facts.subjects.is_empty() {
        return Step::Rest(None);
    }
    let Some(issued_until) = books.issued_until else {
        return Step::LookBack;
    };
    let firsts = facts.subjects.iter().filter_map(|(uid, subject)| {
        let entry = entry::new(uid, subject, issued_until)?;
        Some(entry.billed_until.unwrap_or(entry.since))
    });
    let Some(first) = firsts.min() else {
        return Step::Rest(None);
    };
    let from = Period::month_of(first).from.max(issued_until);
    Step::Create(Box::new(invoice(books, facts, from)))
}

/// A new invoice whose period begins at `from`.
pub(super) fn invoice(books: &Books, facts: &Facts<'_>, from: Timestamp) -> Invoice {
    let name = ids::invoice_name(facts.holder.uid, &from.to_string());
    let period = Period::starting_at(from);
    let spec = InvoiceSpec {
        account: facts.holder.uid.to_owned(),
        account_name: facts.holder.name.to_owned(),
        period: InvoicePeriod { from, to: period.to },
        currency: facts.prices.currency().to_string(),
    };
    let mut invoice = Invoice::new(&name, spec);
    invoice.metadata.namespace = Some(books.namespace.clone());
    invoice.status = Some(InvoiceStatus {
        id: ids::invoice_id(&name),
        ..InvoiceStatus::default()
    });
    invoice
}

/// The next page to write, so that the open invoice has all that is metered; `None` if it has. Just before the invoice is closed
/// (`is_due`), names are brought up to date, too.
pub(super) fn sync(books: &Books, invoice: &Invoice, facts: &Facts<'_>, is_due: bool) -> Option<Step> {
    let mut draft = Draft::new(books, invoice);
    let mut is_urgent = is_due;
    for (number, index, uid) in draft.places() {
        let subject = facts.subjects.get(uid);
        let Some(known) = draft.entry(number, index) else {
            continue;
        };
        let mut updated = known.clone();
        entry::update(&mut updated, subject, facts.now, is_due);
        if updated != *known {
            is_urgent |= updated.ended != known.ended;
            draft.replace(number, index, updated);
        }
    }
    let known = draft.uids();
    let mut new: Vec<LedgerEntry> = facts
        .subjects
        .iter()
        .filter(|(uid, _)| !known.contains(**uid))
        .filter_map(|(uid, subject)| entry::new(uid, subject, invoice.spec.period.from))
        .collect();
    // In the order in which they began, so that a list of lines has an order.
    new.sort_by(|a, b| (a.since, &a.uid).cmp(&(b.since, &b.uid)));
    for entry in new {
        is_urgent |= entry.ended.is_some();
        draft.add(entry);
    }
    draft.last_changed().map(|page| Step::Page {
        page: Box::new(page),
        is_urgent,
    })
}

/// The pages of the open invoice with changes.
struct Draft<'a> {
    account: &'a str,
    invoice: &'a str,
    namespace: &'a str,
    stored: BTreeMap<u32, &'a InvoicePage>,
    changed: BTreeMap<u32, InvoicePage>,
}

impl<'a> Draft<'a> {
    fn new(books: &'a Books, invoice: &'a Invoice) -> Self {
        Self {
            account: &invoice.spec.account,
            invoice: invoice.name(),
            namespace: &books.namespace,
            stored: books
                .pages_of(invoice.name())
                .map(|page| (page.spec.number, page))
                .collect(),
            changed: BTreeMap::new(),
        }
    }

    /// The place of each entry. One that is in two pages, because it was moved when a process died, counts in the later one, and is
    /// taken out of the other.
    fn places(&mut self) -> Vec<(u32, usize, &'a str)> {
        let latest: HashMap<&'a str, u32> = self
            .stored
            .iter()
            .flat_map(|(number, page)| {
                let uids = page.spec.entries.iter().map(|entry| entry.uid.as_str());
                uids.map(|uid| (uid, *number))
            })
            .collect();
        let mut places = Vec::with_capacity(latest.len());
        for (number, page) in &self.stored {
            let entries = &page.spec.entries;
            let is_current = |entry: &LedgerEntry| latest.get(entry.uid.as_str()) == Some(number);
            if entries.iter().all(is_current) {
                let all = entries.iter().enumerate();
                places.extend(all.map(|(index, entry)| (*number, index, entry.uid.as_str())));
            } else {
                let mut cleaned = (*page).clone();
                cleaned.spec.entries.retain(is_current);
                self.changed.insert(*number, cleaned);
            }
        }
        places
    }

    fn page(&self, number: u32) -> Option<&InvoicePage> {
        self.changed
            .get(&number)
            .or_else(|| self.stored.get(&number).copied())
    }

    fn page_mut(&mut self, number: u32) -> &mut InvoicePage {
        let stored = self.stored.get(&number).copied();
        self.changed.entry(number).or_insert_with(|| {
            let new = || InvoicePage::open(self.namespace, self.account, self.invoice, number, Vec::new());
            stored.cloned().unwrap_or_else(new)
        })
    }

    fn last(&self) -> u32 {
        let numbers = self.stored.keys().chain(self.changed.keys());
        numbers.copied().max().unwrap_or(0)
    }

    fn entry(&self, number: u32, index: usize) -> Option<&LedgerEntry> {
        self.page(number)?.spec.entries.get(index)
    }

    /// Replaces an entry. A page that has grown too large is relieved of it by [`relieve`](Self::relieve) later.
    fn replace(&mut self, number: u32, index: usize, entry: LedgerEntry) {
        if let Some(place) = self.page_mut(number).spec.entries.get_mut(index) {
            *place = entry;
        }
    }

    /// Adds an entry to the last page, or to a new one.
    fn add(&mut self, entry: LedgerEntry) {
        let last = self.last();
        let has_room = self.page(last).is_some_and(|page| page.has_room(entry.bytes()));
        let number = if has_room { last } else { last + 1 };
        self.page_mut(number).spec.entries.push(entry);
    }

    fn uids(&mut self) -> HashSet<String> {
        self.relieve();
        let numbers: Vec<u32> = self.stored.keys().chain(self.changed.keys()).copied().collect();
        let pages = numbers.iter().filter_map(|number| self.page(*number));
        pages
            .flat_map(|page| page.spec.entries.iter().map(|entry| entry.uid.clone()))
            .collect()
    }

    /// Moves entries of pages that have grown too large to the last page.
    fn relieve(&mut self) {
        let numbers: Vec<u32> = self.changed.keys().copied().collect();
        for number in numbers {
            while let Some(page) = self.changed.get_mut(&number)
                && page.spec.entries.len() > 1
                && page.bytes() > crate::resources::invoice_page::SOFT_BYTES
                && let Some(moved) = page.spec.entries.pop()
            {
                if number == self.last() {
                    let next = self.page_mut(number + 1);
                    next.spec.entries.push(moved);
                } else {
                    self.add(moved);
                }
            }
        }
    }

    /// The last changed page. Entries move to later pages alone, so what has moved is written there before it goes from the other.
    fn last_changed(mut self) -> Option<InvoicePage> {
        let stored = std::mem::take(&mut self.stored);
        let is_new = |(number, page): &(u32, InvoicePage)| stored.get(number).copied() != Some(page);
        self.changed.into_iter().rev().find(is_new).map(|(_, page)| page)
    }
}
