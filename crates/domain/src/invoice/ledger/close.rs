//! Ends the period of an invoice, opens the next one and issues it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};

use super::{Books, Facts, GRACE, Step, entry, sync};
use crate::{
    event::payload::{InvoiceIssued, invoice_event},
    invoice::{Total, total},
};
use resources::{
    Invoice, InvoicePage, InvoicePeriod, InvoicePhase, LedgerEntry, invoice_page::has_room, money::Cents,
    origin, times::milliseconds,
};

/// The end of the period of an invoice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// The first moment that the invoice does not cover.
    at: Timestamp,
    /// When the invoice is closed.
    due: Timestamp,
    /// Whether the period ends before the end of the month.
    is_early: bool,
}

impl End {
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.due <= now
    }
}

/// When an invoice is to be closed, if closing has not begun.
pub(super) fn end(books: &Books, invoice: &Invoice, facts: &Facts<'_>) -> End {
    let InvoicePeriod { from, to } = invoice.spec.period;
    let requested = facts.holder.closed_until;
    let nothing_until = invoice.status.as_ref().and_then(|status| status.nothing_until);
    let early = requested.filter(|until| from < *until && *until < to && nothing_until != Some(*until));
    // Only once everything is gone: a subject that has ended but still exists would be taken for new after the issue.
    if facts.holder.is_closing {
        // Include the first hour of what began just now: `facts.now` and deletions are truncated to seconds.
        let begun = |entry: &LedgerEntry| entry.since.saturating_add(SignedDuration::from_millis(1)).ok();
        let last = books
            .entries_of(invoice)
            .flat_map(|entry| [entry.ended, begun(entry)])
            .max()
            .flatten();
        // Not beyond the month: what happened later is on the next invoice.
        let ended = last.max(Some(facts.now)).unwrap_or(facts.now);
        if ended < to && from < ended {
            return End {
                at: ended,
                due: facts.now,
                is_early: true,
            };
        }
    }
    // No invoice would carry over what an earlier end leaves out.
    let early = early.filter(|_| !facts.holder.is_closing);
    let at = early.unwrap_or(to);
    End {
        at,
        due: at.saturating_add(GRACE).unwrap_or(Timestamp::MAX),
        is_early: early.is_some(),
    }
}

/// The next step for the oldest invoice.
pub(super) fn close(books: &Books, facts: &Facts<'_>) -> Step {
    let mut invoices = books.invoices.values();
    let Some(invoice) = invoices.next() else {
        return Step::Rest(None);
    };
    let successor = invoices.next().map(|next| next.spec.period.from);
    let end = end(books, invoice, facts);
    let at = successor.unwrap_or(end.at);
    if successor.is_none() && !books.has_lines(invoice.name()) {
        if !end.is_due(facts.now) {
            return Step::Rest(Some(end.due));
        }
        if let Some(step) = prepare(books, invoice, facts, end) {
            return step;
        }
    }
    let without_lines = |page: &&InvoicePage| page.spec.lines.is_none();
    if let Some(page) = books.pages_of(invoice.name()).find(without_lines) {
        return Step::Page {
            page: Box::new(
                page.clone()
                    .with_lines(entry::lines_of(&page.spec.entries, at, facts.prices)),
            ),
            is_urgent: true,
        };
    }
    issue(books, invoice, facts, at)
}

/// The next step before anything about the invoice is final: to make the next invoice. `None` if nothing continues.
fn prepare(books: &Books, invoice: &Invoice, facts: &Facts<'_>, end: End) -> Option<Step> {
    let costs = |entry: &LedgerEntry| {
        entry::line_of(entry, end.at, facts.prices).is_some_and(|(line, _)| line.amount_cents > 0)
    };
    if end.is_early && !books.entries_of(invoice).any(costs) {
        let mut marked = invoice.clone();
        let status = marked.status.get_or_insert_default();
        if facts.holder.is_closing {
            return None;
        }
        status.nothing_until = Some(end.at);
        return Some(Step::Replace {
            invoice: Box::new(marked),
            is_urgent: true,
        });
    }
    let carried = books.entries_of(invoice).filter_map(|entry| {
        let exists = facts.subjects.contains_key(entry.uid.as_str());
        entry::carried(entry, end.at, facts.prices, exists, end.is_early)
    });
    let mut successor = sync::invoice(books, facts, end.at);
    let mut wanted: BTreeMap<u32, InvoicePage> = BTreeMap::new();
    for entry in carried {
        if wanted.is_empty() && has_room(&successor.spec.entries, &entry) {
            successor.spec.entries.push(entry);
            continue;
        }
        let last = wanted.last_key_value().map_or(0, |(number, _)| *number);
        let has_room = wanted
            .get(&last)
            .is_some_and(|page| has_room(&page.spec.entries, &entry));
        let number = if has_room { last } else { last + 1 };
        let page = wanted.entry(number).or_insert_with(|| {
            InvoicePage::open(
                &books.namespace,
                facts.holder.uid,
                successor.name(),
                number,
                Vec::new(),
            )
        });
        page.spec.entries.push(entry);
    }
    // A process that died may have left some.
    let stored: BTreeMap<u32, &InvoicePage> = books
        .pages_of(successor.name())
        .map(|page| (page.spec.number, page))
        .collect();
    if let Some(page) = stored.iter().find(|(number, _)| !wanted.contains_key(number)) {
        return Some(Step::DeletePage(Box::new((*page.1).clone())));
    }
    for (number, mut page) in wanted {
        match stored.get(&number) {
            Some(stored) if stored.spec == page.spec => continue,
            Some(stored) => page.metadata = stored.metadata.clone(),
            None => {}
        }
        return Some(Step::Page {
            page: Box::new(page),
            is_urgent: true,
        });
    }
    (!successor.spec.entries.is_empty()).then(|| Step::Create(Box::new(successor)))
}

/// The next step for an invoice whose pages, if there are any, have their lines: issue it, or drop it if it comes to nothing.
fn issue(books: &Books, invoice: &Invoice, facts: &Facts<'_>, at: Timestamp) -> Step {
    let own = entry::lines_of(&invoice.spec.entries, at, facts.prices);
    let lines = || {
        let pages = books.pages_of(invoice.name());
        let of_pages = pages.flat_map(|page| page.spec.lines.iter().flatten());
        own.iter().chain(of_pages)
    };
    let Total { net, tax, amount } = total(lines().map(|line| Cents(line.amount_cents)), facts.terms.tax);
    if amount == Cents(0) {
        return match books.pages_of(invoice.name()).next() {
            Some(page) => Step::DeletePage(Box::new(page.clone())),
            None => Step::Delete(Box::new(invoice.clone())),
        };
    }
    let Some(number) = books.numbers.get(invoice.name()) else {
        return Step::TakeNumber(invoice.name().to_owned());
    };
    let mut issued = invoice.clone();
    issued.spec.period.to = at;
    let currency = &invoice.spec.currency;
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let now = milliseconds(facts.now);
    let status = issued.status.get_or_insert_default();
    status.phase = InvoicePhase::Issued;
    status.number = Some(number.clone());
    status.issued_at = Some(now);
    status.due_date = Some(due_date(now, facts.terms.due_days));
    status.amount = Some(format!("{amount} {currency}"));
    (status.net_cents, status.tax_cents) = (net.0, tax.0);
    status.tax_rate = (!facts.terms.tax.is_none()).then(|| facts.terms.tax.to_string());
    status.lines_count = count(lines().count());
    let pages = books.pages_of(invoice.name());
    status.page_lines = pages
        .map(|page| count(page.spec.lines.iter().flatten().count()))
        .collect();
    status.seller.clone_from(&facts.terms.seller);
    status.buyer = facts.holder.address.to_vec();
    status.email = Some(facts.holder.email.to_owned());
    status.nothing_until = None;
    status.event_sequence = 1;
    let event = InvoiceIssued {
        uid: origin::uid(&invoice.metadata),
        id: &invoice.id(),
        number,
        period: (issued.spec.period.from, at),
        due_date: status.due_date.as_deref().unwrap_or_default(),
        lines_count: status.lines_count,
        amount,
        currency,
    };
    status.outbox = vec![invoice_event(&event, now)];
    (issued.spec.entries, issued.spec.lines) = (Vec::new(), own);
    Step::Replace {
        invoice: Box::new(issued),
        is_urgent: true,
    }
}

/// The day on which an invoice that is issued now is due, such as 2026-12-15.
fn due_date(now: Timestamp, days: u16) -> String {
    let due = now
        .checked_add(SignedDuration::from_hours(24 * i64::from(days)))
        .unwrap_or(now);
    due.to_zoned(TimeZone::UTC).date().to_string()
}
