//! Ends the period of an invoice and issues it.

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use sha2::{Digest as _, Sha256};

use super::{Books, Facts, GRACE, Step, carry::carry, entry};
use crate::{
    event::payload::{InvoiceIssued, invoice_event},
    invoice::{Total, total},
};
use resources::{
    Invoice, InvoiceLine, InvoicePeriod, InvoicePhase, LedgerEntry,
    conditions::whole_seconds,
    invoice_number::{NUMBER_LABEL, ROW_LABEL, row_of},
    money::Cents,
    origin,
    times::milliseconds,
};

/// The time after the end of a month over which the invoices of all accounts are spread (decisions, section 7).
pub const SPREAD: SignedDuration = SignedDuration::from_mins(10);

/// Why an invoice is held.
const NO_SELLER: &str =
    "the catalogue names no seller: set seller.name in the file of --catalogue (docs/invoices.md)";

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
    // Only once everything is gone: a subject that has ended but still exists would be taken for new after the issue.
    if facts.holder.is_closing {
        let own = invoice.spec.entries.iter().filter_map(entry::last_moment);
        let last = own
            .chain(books.pages_of(invoice.name()).filter_map(|page| page.last))
            .max();
        // Not beyond the month: what happened later is on the next invoice.
        let ended = whole_second_after(last.max(Some(facts.now)).unwrap_or(facts.now));
        if ended < to && from < ended {
            return End {
                at: ended,
                due: facts.now,
                is_early: true,
            };
        }
    }
    let nothing_until = invoice.content().nothing_until;
    let requested = facts
        .holder
        .closed_until
        .filter(|until| nothing_until != Some(*until));
    let early = [requested, invoice.content().full_at].into_iter().flatten();
    let early = early.filter(|until| from < *until && *until < to).min();
    // No invoice would carry over what an earlier end leaves out.
    if let Some(at) = early.filter(|_| !facts.holder.is_closing) {
        return End {
            at,
            due: at.saturating_add(GRACE).unwrap_or(Timestamp::MAX),
            is_early: true,
        };
    }
    // So that not all accounts are closed in the same second.
    let share = SPREAD.as_secs() * i64::from(spread_of(facts.holder.uid)) / i64::from(u16::MAX);
    let wait = if facts.holder.is_closing {
        GRACE
    } else {
        GRACE + SignedDuration::from_secs(share)
    };
    End {
        at: to,
        due: to.saturating_add(wait).unwrap_or(Timestamp::MAX),
        is_early: false,
    }
}

fn whole_second_after(moment: Timestamp) -> Timestamp {
    let whole = whole_seconds(moment);
    if whole == moment {
        moment
    } else {
        whole
            .saturating_add(SignedDuration::from_secs(1))
            .unwrap_or(moment)
    }
}

/// A number that is derived from an account's origin, spread evenly.
fn spread_of(uid: &str) -> u16 {
    let digest = Sha256::digest(uid.as_bytes());
    u16::from_be_bytes([digest[0], digest[1]])
}

/// Whether an invoice has as many lines as it may have, and the next one would have at most half as many: only what exists is carried
/// over.
fn is_full(books: &Books, invoice: &Invoice, facts: &Facts<'_>) -> bool {
    let of_pages = books.pages_of(invoice.name()).map(|page| page.count);
    let lines = invoice.spec.entries.len() + of_pages.sum::<usize>();
    lines >= facts.max_lines && 2 * facts.subjects.len() <= lines
}

fn has_full_entry(books: &Books, invoice: &Invoice) -> bool {
    invoice.spec.entries.iter().any(entry::is_full) || books.pages_of(invoice.name()).any(|page| page.is_full)
}

/// The lines of entries, with the names that there are now.
fn lines(entries: &[LedgerEntry], at: Timestamp, facts: &Facts<'_>) -> Vec<InvoiceLine> {
    let renamed = |entry: &LedgerEntry| entry::renamed(entry, facts.subjects.get(entry.uid.as_str()));
    entry::lines_of(&entries.iter().map(renamed).collect::<Vec<_>>(), at, facts.prices)
}

/// The next step for the oldest invoice.
pub(super) fn close(books: &mut Books, facts: &Facts<'_>) -> Step {
    let mut invoices = books.invoices.values();
    let Some(invoice) = invoices.next() else {
        return Step::Rest(None);
    };
    let successor = invoices.next().map(|next| next.spec.period.from);
    let end = end(books, invoice, facts);
    let at = successor.unwrap_or(end.at);
    if successor.is_none() && !books.has_lines(invoice.name()) {
        let (is_held, is_due) = (facts.is_held(), end.is_due(facts.now));
        let may_end = if is_due { is_held } else { end.at > facts.now };
        let is_full = || is_full(books, invoice, facts) || !is_held && has_full_entry(books, invoice);
        if may_end && invoice.content().full_at.is_none() && is_full() {
            let mut full = Box::new(invoice.clone());
            full.status.get_or_insert_default().full_at = Some(whole_seconds(facts.now));
            return Step::Replace {
                invoice: full,
                is_urgent: true,
            };
        }
        if !is_due {
            return match books.left_over() {
                Some(page) => Step::DeletePage(Box::new(page.clone())),
                None => Step::Rest(Some(end.due)),
            };
        }
        if is_held && invoice.content().full_at.is_none() {
            return hold(invoice, facts);
        }
        if let Some(step) = prepare(books, facts, end) {
            return step;
        }
    }
    let Some(invoice) = books.invoices.values().next() else {
        return Step::Rest(None);
    };
    if let Some(page) = books.pages_of(invoice.name()).find(|page| page.lines.is_none()) {
        return match books.entries_on(invoice.name(), page.object.spec.number) {
            Ok(entries) => Step::Page {
                page: Box::new(page.object.clone().with_lines(lines(entries, at, facts))),
                is_urgent: true,
            },
            Err(read) => read,
        };
    }
    issue(books, invoice, facts, at)
}

/// The step for an invoice that cannot be issued: to say why, once, and to keep what it says of an account that goes.
fn hold(invoice: &Invoice, facts: &Facts<'_>) -> Step {
    let mut held = Box::new(invoice.clone());
    let status = held.status.get_or_insert_default();
    status.held = Some(NO_SELLER.to_owned());
    if facts.holder.is_closing && !facts.holder.is_gone {
        status.buyer = Some(facts.holder.buyer.clone());
        status.tax_rate = facts.holder.tax_rate.map(|rate| rate.to_string());
        status.tax_note = facts.holder.tax_note.map(str::to_owned);
    }
    if *held == *invoice {
        // It is looked at again when something changes, the seller included.
        return Step::Rest(facts.now.saturating_add(SignedDuration::from_hours(1)).ok());
    }
    Step::Replace {
        invoice: held,
        is_urgent: true,
    }
}

/// The next step before anything about the invoice is final: to make the next invoice. `None` if nothing continues.
fn prepare(books: &mut Books, facts: &Facts<'_>, end: End) -> Option<Step> {
    let invoice = books.invoices.values().next()?;
    // Everything has ended by then.
    if end.is_early && facts.holder.is_closing {
        return None;
    }
    let may_be_nothing = end.is_early && invoice.content().full_at != Some(end.at);
    let name = invoice.name().to_owned();
    carry(books, &name, facts, end.at, end.is_early, may_be_nothing)
}

/// The next step for an invoice whose pages, if there are any, have their lines: issue it, or drop it if it comes to nothing.
fn issue(books: &Books, invoice: &Invoice, facts: &Facts<'_>, at: Timestamp) -> Step {
    let own = lines(&invoice.spec.entries, at, facts);
    let own_net = own.iter().map(|line| Cents(line.amount_cents));
    let of_pages = || books.pages_of(invoice.name()).filter_map(|page| page.lines);
    let kept = invoice
        .status
        .clone()
        .filter(|_| facts.holder.is_gone)
        .unwrap_or_default();
    let own_rate = kept.tax_rate.as_deref().and_then(|rate| rate.parse().ok());
    let tax_rate = own_rate.unwrap_or_else(|| facts.tax_until(at));
    let total = total(own_net.chain(of_pages().map(|(_, net)| net)), tax_rate);
    if facts.is_held() && invoice.content().full_at.is_none() {
        return hold(invoice, facts);
    }
    // One that is full without a seller is dropped: nobody would ever issue what an installation without billing gathers.
    if total.amount == Cents(0) || facts.is_held() {
        return match books.pages_of(invoice.name()).next() {
            Some(page) => Step::DeletePage(Box::new(page.object.clone())),
            None => Step::Delete(Box::new(invoice.clone())),
        };
    }
    let Some(number) = books.numbers.get(invoice.name()) else {
        return Step::TakeNumber {
            invoice: invoice.name().to_owned(),
            year: facts.now.to_zoned(TimeZone::UTC).year(),
        };
    };
    let mut issued = invoice.clone();
    issued.spec.period.to = at;
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let status = issued.status.get_or_insert_default();
    status.page_lines = of_pages().map(|(lines, _)| count(lines)).collect();
    status.lines_count = count(own.len()) + status.page_lines.iter().sum::<u32>();
    status.tax_rate = Some(tax_rate.to_string());
    status.tax_note = kept.tax_note.or_else(|| facts.holder.tax_note.map(str::to_owned));
    status.seller = Some(facts.terms.seller.clone());
    status.buyer = Some(kept.buyer.unwrap_or_else(|| facts.holder.buyer.clone()));
    (status.nothing_until, status.full_at) = (None, None);
    (issued.spec.entries, issued.spec.lines) = (Vec::new(), own);
    finish(&mut issued, number, total, facts);
    Step::Replace {
        invoice: Box::new(issued),
        is_urgent: true,
    }
}

/// Issues an invoice or a credit note that says everything else, with this number and its event.
pub(super) fn finish(issued: &mut Invoice, number: &str, total: Total, facts: &Facts<'_>) {
    let now = milliseconds(facts.now);
    let (id, uid) = (issued.id(), origin::uid(&issued.metadata).to_owned());
    let (spec, status) = (&issued.spec, issued.status.get_or_insert_default());
    status.phase = InvoicePhase::Issued;
    status.number = Some(number.to_owned());
    status.issued_at = Some(now);
    status.due_date = Some(due_date(now, facts.terms.due_days));
    status.amount = Some(format!("{} {}", total.amount, spec.currency));
    (status.net_cents, status.tax_cents) = (total.net.0, total.tax.0);
    status.held = None;
    let labels = issued.metadata.labels.get_or_insert_default();
    for (label, value) in [(ROW_LABEL, row_of(number)), (NUMBER_LABEL, number)] {
        labels.insert(label.to_owned(), value.to_owned());
    }
    let status = issued.status.get_or_insert_default();
    if facts.holder.is_gone {
        return;
    }
    status.event_sequence = 1;
    let event = InvoiceIssued {
        uid: &uid,
        id: &id,
        number,
        invoice_type: spec.invoice_type,
        period: (spec.period.from, spec.period.to),
        due_date: status.due_date.as_deref().unwrap_or_default(),
        lines_count: status.lines_count,
        amount: total.amount,
        currency: &spec.currency,
    };
    status.outbox = vec![invoice_event(&event, now)];
}

/// The day on which an invoice that is issued now is due, such as 2026-12-15.
fn due_date(now: Timestamp, days: u16) -> String {
    let due = now
        .checked_add(SignedDuration::from_hours(24 * i64::from(days)))
        .unwrap_or(now);
    due.to_zoned(TimeZone::UTC).date().to_string()
}
