//! What the next invoice takes over from one that is being closed, made page by page: an account may have very many.

use std::{collections::VecDeque, mem};

use jiff::Timestamp;

use super::{Books, Facts, Step, entry, sync};
use resources::{Invoice, InvoicePage, LedgerEntry};

/// How far the next invoice has been made.
#[derive(Clone, Debug)]
pub(super) struct Carry {
    /// The next invoice, with its first entries.
    successor: Invoice,
    /// The page of the old invoice that is looked at next, as long as nothing on it was found that costs something. `None` if that need
    /// not be known.
    free: Option<u32>,
    /// The page of the old invoice that is carried over next; 0 is the invoice itself. `None` after the last one.
    source: Option<u32>,
    /// The entries of pages that are full and not written yet.
    full: VecDeque<Vec<LedgerEntry>>,
    /// The entries of the page that is being filled; none while the invoice itself has room.
    filling: Vec<LedgerEntry>,
    /// The number of the page that is written next.
    number: u32,
}

/// The next step to make the invoice that begins at `at`; `None` once it needs no more, or there is nothing that continues. `is_same_month`
/// says whether the old one ends within a month. If it `may_be_nothing` and comes to nothing until then, it just stays open.
pub(super) fn carry(
    books: &mut Books,
    name: &str,
    facts: &Facts<'_>,
    at: Timestamp,
    is_same_month: bool,
    may_be_nothing: bool,
) -> Option<Step> {
    if books
        .carry
        .as_ref()
        .is_some_and(|carry| carry.successor.spec.period.from != at)
    {
        // It ends at another time.
        books.carry = None;
        return Some(Step::Continue);
    }
    let mut carry = books.carry.take().unwrap_or_else(|| {
        let successor = sync::invoice(books, facts, at);
        if let Some(left_over) = books.pages.get_mut(successor.name()) {
            left_over.forget();
        }
        Carry {
            successor,
            free: may_be_nothing.then_some(0),
            source: Some(0),
            full: VecDeque::new(),
            filling: Vec::new(),
            number: 1,
        }
    });
    let step = match carry.free {
        Some(number) => carry.look(books, name, number, facts, at),
        None => carry.step(books, name, facts, at, is_same_month),
    };
    // Also if nothing continues: it is not looked at again before the old invoice is issued.
    books.carry = Some(carry);
    step
}

impl Carry {
    /// Looks whether something on a page costs something.
    fn look(
        &mut self,
        books: &mut Books,
        name: &str,
        number: u32,
        facts: &Facts<'_>,
        at: Timestamp,
    ) -> Option<Step> {
        let entries = match books.entries_on(name, number) {
            Ok(entries) => entries,
            Err(read) => return Some(read),
        };
        let mut lines = entries
            .iter()
            .filter_map(|entry| entry::line_of(entry, at, facts.prices));
        let is_free = lines.all(|line| line.amount_cents == 0);
        self.free = books.page_after(name, number).filter(|_| is_free);
        if is_free && self.free.is_none() {
            let mut marked = Box::new(books.invoice(name)?.clone());
            marked.status.get_or_insert_default().nothing_until = Some(at);
            let is_urgent = true;
            return Some(Step::Replace {
                invoice: marked,
                is_urgent,
            });
        }
        books.shelve(name, number, facts);
        Some(Step::Continue)
    }

    fn step(
        &mut self,
        books: &mut Books,
        name: &str,
        facts: &Facts<'_>,
        at: Timestamp,
        is_same_month: bool,
    ) -> Option<Step> {
        if let Some(entries) = self.full.pop_front() {
            return Some(self.page(books, entries));
        }
        let Some(source) = self.source else {
            return self.end(books);
        };
        let entries = match books.entries_on(name, source) {
            _ if books.is_over(name, source, at) => &[],
            Ok(entries) => entries,
            Err(read) => return Some(read),
        };
        for entry in entries {
            let subject = facts.subjects.get(entry.uid.as_str());
            if let Some(entry) = entry::carried(entry, at, facts.prices, subject, is_same_month) {
                self.add(facts, entry);
            }
        }
        self.source = books.page_after(name, source);
        books.shelve(name, source, facts);
        Some(Step::Continue)
    }

    fn add(&mut self, facts: &Facts<'_>, entry: LedgerEntry) {
        let is_first = self.full.is_empty() && self.number == 1 && self.filling.is_empty();
        let own = &mut self.successor.spec.entries;
        if is_first && facts.has_room(own, &entry) {
            own.push(entry);
            return;
        }
        if !self.filling.is_empty() && !facts.has_room(&self.filling, &entry) {
            self.full.push_back(mem::take(&mut self.filling));
        }
        self.filling.push(entry);
    }

    /// The step that writes the next page. An earlier process may have written it, too.
    fn page(&mut self, books: &Books, entries: Vec<LedgerEntry>) -> Step {
        let mut page = InvoicePage::open(&self.successor, self.number, entries);
        self.number += 1;
        if let Some(stored) = books.page(self.successor.name(), page.spec.number) {
            page.metadata = stored.object.metadata.clone();
        }
        Step::Page {
            page: Box::new(page),
            is_urgent: true,
        }
    }

    /// The steps after the last entry: the last page, pages of an earlier process that are too many, and the invoice.
    fn end(&mut self, books: &Books) -> Option<Step> {
        if !self.filling.is_empty() {
            let entries = mem::take(&mut self.filling);
            return Some(self.page(books, entries));
        }
        let pages = books.pages_of(self.successor.name());
        let mut pages = pages.map(|page| &page.object);
        if let Some(page) = pages.find(|page| page.spec.number >= self.number) {
            return Some(Step::DeletePage(Box::new(page.clone())));
        }
        let entries = &self.successor.spec.entries;
        (!entries.is_empty()).then(|| Step::Create(Box::new(self.successor.clone())))
    }
}
