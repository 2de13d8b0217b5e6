//! The ledger of one account: its invoices that have not been issued, and their pages. What to write next is a pure
//! function of what is stored, of the existing instances and backups, and of the time. So a process may die after any
//! write: the next one reads what is stored and continues.
//!
//! - `sync`: copies what is metered to the open invoice;
//! - `close`: ends its period and issues it; `carry`: opens the next one with what continues;
//! - `credit`: credit notes;
//! - `entry`: the line of an entry, and what the next invoice carries over from it.
//!
//! Closing at a time T has these steps, each of them repeatable:
//!
//! 1. What is metered is copied one last time.
//! 2. The pages of the next invoice are created, with everything that continues, and then that invoice. From then on,
//!    nothing that the old one says about the time before T changes.
//! 3. Each page of the old invoice is written with its lines.
//! 4. The old invoice gets a number, which is an object of its own, and is issued with the number, its own lines and its event in one
//!    write.
//!
//! Once its event is settled, the invoice is marked as settled. So an account whose entries fit into its invoice costs
//! four writes: the next invoice, the number, the issue and the mark. It costs one more if step 1 finds something to copy.
//!
//! If nothing continues, step 2 has nothing to do. Then the first page with lines, or else the issue, marks the point
//! after which nothing changes: everything has ended, so anything still found before that point only adds lines, and
//! the number is not wasted.

mod carry;
mod close;
pub mod credit;
mod entry;
mod sync;

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
};

use jiff::{SignedDuration, Timestamp};

use super::PriceHistory;
use crate::catalogue::InvoiceTerms;
use resources::{Invoice, InvoicePage, LedgerEntry, invoice::Party, metering::Metering, money::TaxRate};

pub use close::SPREAD;
pub use entry::{is_over, lines_of};

/// How long after the end of a period its invoice is closed: until then, changes from its last moments are still being
/// written. A change that takes even longer is on the next invoice.
pub const GRACE: SignedDuration = SignedDuration::from_secs(5);

/// What is billed for a subject.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Metered<'a> {
    /// An instance with these hours.
    Instance(&'a Metering),
    /// The completed backups of an instance, in the order in which they were completed; never none.
    Backups(Vec<SeenBackup<'a>>),
}

/// A backup that is billed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SeenBackup<'a> {
    /// Its origin.
    pub uid: &'a str,
    /// When it was completed.
    pub since: Timestamp,
    /// Its size in thousandths of a GB.
    pub megabytes: u64,
    /// When its data was gone.
    pub ended: Option<Timestamp>,
}

/// An instance that is billed, or its backups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject<'a> {
    /// Public id of the instance.
    pub instance_id: Cow<'a, str>,
    /// Display name of the instance.
    pub name: &'a str,
    /// What is billed.
    pub metered: Metered<'a>,
    /// When the deletion of the instance was accepted.
    pub ended: Option<Timestamp>,
}

/// Everything that is billed, by what it is kept under: the origin of an instance, or [`backups_key`].
pub type Subjects<'a> = HashMap<Cow<'a, str>, Subject<'a>>;

/// What the backups of an instance are kept under.
pub fn backups_key(instance_id: &str) -> String {
    format!("{instance_id}/backups")
}

impl Subject<'_> {
    /// When it began.
    pub fn since(&self) -> Timestamp {
        match &self.metered {
            Metered::Instance(metering) => metering.since,
            Metered::Backups(backups) => backups.first().map_or(Timestamp::MAX, |backup| backup.since),
        }
    }

    fn has_backup(&self, uid: &str) -> bool {
        matches!(&self.metered, Metered::Backups(backups) if backups.iter().any(|backup| backup.uid == uid))
    }
}

/// The account holder, as invoices name them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder<'a> {
    /// UID of the Account.
    pub uid: &'a str,
    /// Name of the Account.
    pub name: &'a str,
    /// Namespace of the account.
    pub namespace: &'a str,
    /// What invoices say of the buyer.
    pub buyer: Party,
    /// The tax rate instead of the general one.
    pub tax_rate: Option<TaxRate>,
    /// Why there is no tax, or another one.
    pub tax_note: Option<&'a str>,
    /// When an Account that was written back was created here; the beginning of time for any other. Nothing before that is billed, unless
    /// the ledger knows of it: what was written back without its invoices has been billed before.
    pub created: Timestamp,
    /// Time until which invoices are to be closed.
    pub closed_until: Option<Timestamp>,
    /// Whether the Account is deleted, and nothing is left in it; there are no subjects then.
    pub is_closing: bool,
    /// Whether the Account no longer exists. What its invoice says of it is what it said when it was closed, and nobody is told.
    pub is_gone: bool,
}

/// Everything that decisions depend on besides the books.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// The account holder.
    pub holder: Holder<'a>,
    /// What exists, and what was deleted and has not been copied since.
    pub subjects: &'a Subjects<'a>,
    pub prices: &'a PriceHistory,
    /// What invoices say besides their lines.
    pub terms: &'a InvoiceTerms,
    /// Number of lines from which on an invoice is issued and the next one begins.
    pub max_lines: usize,
    pub now: Timestamp,
}

impl Facts<'_> {
    /// Whether nothing can be issued, because the catalogue names no seller.
    const fn is_held(&self) -> bool {
        self.terms.seller.name.is_empty()
    }

    /// The tax on an invoice whose period ends at this time.
    fn tax_until(&self, end: Timestamp) -> TaxRate {
        self.holder.tax_rate.unwrap_or_else(|| self.prices.tax_until(end))
    }
}

/// What is stored.
#[derive(Clone, Debug, Default)]
pub struct Books {
    /// Namespace of the operator, where the invoices are.
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
    /// Whether everything that is metered has been copied, as of these facts; and whether names have been, too.
    copied: Option<bool>,
    /// What the next invoice takes over, while it is being made.
    carry: Option<carry::Carry>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing before this time, if nothing changes. Everything has been copied.
    Rest(Option<Timestamp>),
    /// Give others a turn, and ask again.
    Continue,
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
    /// Take a number.
    TakeNumber {
        /// Name of the invoice.
        invoice: String,
        /// The year in which its period ends, which is that of the number.
        year: i16,
    },
}

/// What to do next. Each step must be done, and [applied](Books) to the books, before the next one is asked for.
pub fn next(books: &mut Books, facts: &Facts<'_>) -> Step {
    let Some(newest) = books.invoices.values().next_back() else {
        return sync::open(books, facts);
    };
    let is_due = !facts.is_held() && close::end(books, newest, facts).is_due(facts.now);
    if !books.has_lines(newest.name()) && books.copied < Some(is_due) {
        if let Some(step) = sync::sync(books, newest, facts, is_due) {
            return step;
        }
        books.copied = Some(is_due);
    }
    close::close(books, facts)
}

impl Books {
    /// Nothing, in this namespace of the operator.
    pub fn of(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            ..Self::default()
        }
    }

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

    /// The entries on a page of an invoice, or in the invoice itself if `number` is 0.
    fn entries_on(&self, invoice: &str, number: u32) -> &[LedgerEntry] {
        if number > 0 {
            return self.page(invoice, number).map_or(&[], |page| &page.spec.entries);
        }
        let found = self.invoices.values().find(|one| one.name() == invoice);
        found.map_or(&[], |invoice| &invoice.spec.entries)
    }

    /// The number of the page after this one.
    fn page_after(&self, invoice: &str, number: u32) -> Option<u32> {
        let (from, to) = ((invoice.to_owned(), number + 1), (invoice.to_owned(), u32::MAX));
        self.pages.range(from..=to).next().map(|((_, number), _)| *number)
    }

    /// A page of an invoice that does not exist, from a close that was given up.
    fn left_over(&self) -> Option<&InvoicePage> {
        let is_known = |name: &str| self.invoices.values().any(|invoice| invoice.name() == name);
        self.pages.values().find(|page| !is_known(&page.spec.invoice))
    }

    /// Whether a page of the invoice has its lines.
    fn has_lines(&self, invoice: &str) -> bool {
        // They are written in order.
        self.pages_of(invoice)
            .next()
            .is_some_and(|page| page.spec.lines.is_some())
    }

    /// Says that what is metered may have changed. To be called whenever the facts are others than before, but for the time.
    pub const fn look_again(&mut self) {
        self.copied = None;
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
        // A page of the next invoice changes nothing about what is copied.
        self.copied = None;
    }

    /// Records that an invoice was issued or deleted.
    pub fn remove_invoice(&mut self, invoice: &Invoice) {
        self.invoices.remove(&invoice.spec.period.from);
        self.pages.retain(|(name, _), _| name != invoice.name());
        self.numbers.remove(invoice.name());
        self.carry = None;
    }
}

/// Gives back spare capacity, which parsing leaves: the books stay in memory.
fn shrink(entries: &mut Vec<LedgerEntry>) {
    entries.shrink_to_fit();
    for entry in entries {
        entry.changes.shrink_to_fit();
        entry.backups.shrink_to_fit();
    }
}
