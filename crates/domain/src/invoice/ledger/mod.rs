//! The ledger of one account: its invoices that have not been issued, and their pages. What to write next is a pure
//! function of what is stored, of the existing instances and backups, and of the time. So a process may die after any
//! write: the next one reads what is stored and continues.
//!
//! - `sync`: copies what is metered to the open invoice;
//! - `close`: ends its period, opens the next one and issues it;
//! - `entry`: the line of an entry, and what the next invoice carries over from it.
//!
//! Closing at a time T has these steps, each of them repeatable:
//!
//! 1. What is metered is copied one last time.
//! 2. The pages of the next invoice are created, with everything that continues, and then that invoice. From then on,
//!    nothing that the old one says about the time before T changes.
//! 3. Each page of the old invoice is written with its lines.
//! 4. The old invoice gets a number, and is issued with the number, its own lines and its event in one write.
//!
//! Once its event is settled, the invoice is marked as settled. So an account whose entries fit into its invoice costs
//! three writes: the next invoice, the issue and the mark. It costs one more if step 1 finds something to copy. Numbers
//! are handed out in a ConfigMap, to many invoices in one write.
//!
//! If nothing continues, step 2 has nothing to do. Then the first page with lines, or else the issue, marks the point
//! after which nothing changes: everything has ended, so anything still found before that point only adds lines, and
//! the number is not wasted.

mod close;
mod entry;
mod sync;

use std::collections::{BTreeMap, HashMap};

use jiff::{SignedDuration, Timestamp};

use super::PriceHistory;
use crate::catalogue::InvoiceTerms;
use resources::{Invoice, InvoicePage, LedgerEntry, metering::Metering};

pub use entry::lines_of;

/// How long after the end of a period its invoice is closed: until then, changes from its last moments are still being
/// written. A change that takes even longer is on the next invoice.
pub const GRACE: SignedDuration = SignedDuration::from_secs(5);

/// What is billed for a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Metered<'a> {
    /// An instance with these hours.
    Instance(&'a Metering),
    Backup {
        /// Its public id.
        id: &'a str,
        /// When it was completed.
        since: Timestamp,
        /// Its size in thousandths of a GB.
        megabytes: u64,
    },
}

/// An instance or a backup that is billed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject<'a> {
    /// Public id of the instance.
    pub instance_id: String,
    /// Display name.
    pub name: &'a str,
    /// What is billed.
    pub metered: Metered<'a>,
    /// When its deletion was accepted.
    pub ended: Option<Timestamp>,
}

impl Subject<'_> {
    /// When it began.
    pub const fn since(&self) -> Timestamp {
        match self.metered {
            Metered::Instance(metering) => metering.since,
            Metered::Backup { since, .. } => since,
        }
    }
}

/// The account holder, as invoices name them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder<'a> {
    /// UID of the Account.
    pub uid: &'a str,
    /// Name of the Account.
    pub name: &'a str,
    /// E-mail address.
    pub email: &'a str,
    /// Address lines.
    pub address: &'a [String],
    /// Time until which invoices are to be closed.
    pub closed_until: Option<Timestamp>,
    /// Whether the Account is deleted, and nothing is left in it; there are no subjects then.
    pub is_closing: bool,
}

/// Everything that decisions depend on besides the books.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// The account holder.
    pub holder: Holder<'a>,
    /// Everything that is billed, by UID: what exists, and what was deleted and has not been copied since.
    pub subjects: &'a HashMap<&'a str, Subject<'a>>,
    pub prices: &'a PriceHistory,
    /// What invoices say besides their lines.
    pub terms: &'a InvoiceTerms,
    pub now: Timestamp,
}

/// What is stored.
#[derive(Clone, Debug, Default)]
pub struct Books {
    /// Namespace of the account.
    pub namespace: String,
    /// The invoices that have not been issued, by the start of their periods: the open one, and earlier ones that are
    /// being issued.
    pub invoices: BTreeMap<Timestamp, Invoice>,
    /// Their pages, and those of an invoice that is being prepared, by invoice name and number.
    pub pages: BTreeMap<(String, u32), InvoicePage>,
    /// The end of the last issued invoice; `None` if that is not known yet.
    pub issued_until: Option<Timestamp>,
    /// Numbers given to invoices that have not been issued with them yet, by name.
    pub numbers: HashMap<String, String>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing before this time, if nothing changes. Everything has been copied.
    Rest(Option<Timestamp>),
    /// Find out how far the account's issued invoices reach.
    LookBack,
    /// Create or replace a page. An urgent write must not wait for more changes.
    Page {
        /// The page; it has a resourceVersion if it is to be replaced.
        page: Box<InvoicePage>,
        /// Whether it must not wait.
        is_urgent: bool,
    },
    DeletePage(Box<InvoicePage>),
    Create(Box<Invoice>),
    /// Replace an invoice. An urgent write must not wait for more changes.
    Replace {
        invoice: Box<Invoice>,
        /// Whether it must not wait.
        is_urgent: bool,
    },
    /// Delete an invoice that has no lines.
    Delete(Box<Invoice>),
    /// Take a number for the invoice with this name.
    TakeNumber(String),
}

/// What to do next. Each step must be done, and [applied](Books) to the books, before the next one is asked for.
pub fn next(books: &Books, facts: &Facts<'_>) -> Step {
    let Some(newest) = books.invoices.values().next_back() else {
        return sync::open(books, facts);
    };
    let end = close::end(books, newest, facts);
    if !books.has_lines(newest.name())
        && let Some(step) = sync::sync(books, newest, facts, end.is_due(facts.now))
    {
        return step;
    }
    close::close(books, facts)
}

impl Books {
    /// The pages of an invoice, in order.
    pub fn pages_of<'a>(&'a self, invoice: &'a str) -> impl DoubleEndedIterator<Item = &'a InvoicePage> {
        let from = (invoice.to_owned(), 0);
        let to = (invoice.to_owned(), u32::MAX);
        self.pages.range(from..=to).map(|(_, page)| page)
    }

    fn page(&self, invoice: &str, number: u32) -> Option<&InvoicePage> {
        self.pages.get(&(invoice.to_owned(), number))
    }

    /// The entries of an invoice, in order.
    fn entries_of<'a>(&'a self, invoice: &'a Invoice) -> impl Iterator<Item = &'a LedgerEntry> {
        let pages = self.pages_of(invoice.name());
        let of_pages = pages.flat_map(|page| &page.spec.entries);
        invoice.spec.entries.iter().chain(of_pages)
    }

    /// Whether a page of the invoice has its lines.
    fn has_lines(&self, invoice: &str) -> bool {
        self.pages_of(invoice).any(|page| page.spec.lines.is_some())
    }

    /// Records a page that was written.
    pub fn put_page(&mut self, mut page: InvoicePage) {
        shrink(&mut page.spec.entries);
        let key = (page.spec.invoice.clone(), page.spec.number);
        self.pages.insert(key, page);
    }

    /// Records that a page was deleted.
    pub fn remove_page(&mut self, page: &InvoicePage) {
        self.pages.remove(&(page.spec.invoice.clone(), page.spec.number));
    }

    /// Records an invoice that was written. An issued invoice leaves the books, with its pages.
    pub fn put_invoice(&mut self, mut invoice: Invoice) {
        shrink(&mut invoice.spec.entries);
        let from = invoice.spec.period.from;
        if invoice.is_issued() {
            self.issued_until = self.issued_until.max(Some(invoice.spec.period.to));
            self.remove_invoice(&invoice);
        } else {
            self.invoices.insert(from, invoice);
        }
    }

    /// Records that an invoice was issued or deleted.
    pub fn remove_invoice(&mut self, invoice: &Invoice) {
        self.invoices.remove(&invoice.spec.period.from);
        self.pages.retain(|(name, _), _| name != invoice.name());
        self.numbers.remove(invoice.name());
    }
}

/// Gives back spare capacity, which parsing leaves: the books stay in memory.
fn shrink(entries: &mut Vec<LedgerEntry>) {
    entries.shrink_to_fit();
    for entry in entries {
        entry.changes.shrink_to_fit();
    }
}
