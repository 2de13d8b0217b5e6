//! What the next invoice takes over from one that is being closed, made page by page: an account may have very many.

use std::{collections::VecDeque, mem};

use jiff::Timestamp;

use super::{Books, Facts, Step, entry, sync};
use resources::{Invoice, InvoicePage, LedgerEntry, invoice_page::has_room};

/// How far the next invoice has been made.
#[derive(Clone, Debug)]
pub(super) struct Carry {
    /// The next invoice, with its first entries.
    successor: Invoice,
    /// The page of the old invoice that is looked at next; 0 is the invoice itself. `None` after the last one.
    source: Option<u32>,
    /// The entries of pages that are full and not written yet.
    full: VecDeque<Vec<LedgerEntry>>,
    /// The entries of the page that is being filled; none while the invoice itself has room.
    filling: Vec<LedgerEntry>,
    /// The number of the page that is written next.
    number: u32,
}

/// The next step to make the invoice that begins at `at`; `None` once it needs no more, or there is nothing that continues. `is_same_month`
/// says whether the old one ends within a month.
pub(super) fn carry(
    books: &mut Books,
    name: &str,
    facts: &Facts<'_>,
    at: Timestamp,
    is_same_month: bool,
) -> Option<Step> {
    let begun = books
        .carry
        .take()
        .filter(|carry| carry.successor.spec.period.from == at);
    let mut carry = begun.unwrap_or_else(|| Carry {
        successor: sync::invoice(books, facts, at),
        source: Some(0),
        full: VecDeque::new(),
        filling: Vec::new(),
        number: 1,
    });
    let step = carry.step(books, name, facts, at, is_same_month);
    books.carry = step.is_some().then_some(carry);
    step
}

impl Carry {
    fn step(
        &mut self,
        books: &Books,
        name: &str,
        facts: &Facts<'_>,
        at: Timestamp,
        is_same_month: bool,
    ) -> Option<Step> {
        if let Some(entries) = self.full.pop_front() {
            return Some(self.page(books, entries).unwrap_or(Step::Continue));
        }
        let Some(source) = self.source else {
            return self.end(books);
        };
        for entry in books.entries_on(name, source) {
            let subject = facts.subjects.get(entry.uid.as_str());
            if let Some(entry) = entry::carried(entry, at, facts.prices, subject, is_same_month) {
                self.add(entry);
            }
        }
        self.source = books.page_after(name, source);
        Some(Step::Continue)
    }

    fn add(&mut self, entry: LedgerEntry) {
        let is_first = self.full.is_empty() && self.number == 1 && self.filling.is_empty();
        let own = &mut self.successor.spec.entries;
        if is_first && has_room(own, &entry) {
            own.push(entry);
            return;
        }
        if !self.filling.is_empty() && !has_room(&self.filling, &entry) {
            self.full.push_back(mem::take(&mut self.filling));
        }
        self.filling.push(entry);
    }

    /// The step that writes the next page, unless an earlier process has written the same.
    fn page(&mut self, books: &Books, entries: Vec<LedgerEntry>) -> Option<Step> {
        let mut page = InvoicePage::open(&self.successor, self.number, entries);
        self.number += 1;
        match books.page(self.successor.name(), page.spec.number) {
            Some(stored) if stored.spec == page.spec => return None,
            Some(stored) => page.metadata = stored.metadata.clone(),
            None => {}
        }
        Some(Step::Page {
            page: Box::new(page),
            is_urgent: true,
        })
    }

    /// The steps after the last entry: the last page, pages of an earlier process that are too many, and the invoice.
    fn end(&mut self, books: &Books) -> Option<Step> {
        if !self.filling.is_empty() {
            let entries = mem::take(&mut self.filling);
            return Some(self.page(books, entries).unwrap_or(Step::Continue));
        }
        let name = self.successor.name();
        if let Some(page) = books.pages_of(name).find(|page| page.spec.number >= self.number) {
            return Some(Step::DeletePage(Box::new(page.clone())));
        }
        let entries = &self.successor.spec.entries;
        (!entries.is_empty()).then(|| Step::Create(Box::new(self.successor.clone())))
    }
}
