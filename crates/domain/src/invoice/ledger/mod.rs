//! The ledger of one account: its invoices that have not been issued, and their pages. What to write next is a pure
//! function of what is stored, of the existing instances and backups, and of the time. So a process may die after any
//! write: the next one reads what is stored and continues.
//!
//! - `sync`: copies what is metered to the open invoice;
//! - `close`: ends its period and issues it; `carry`: opens the next one with what continues;
//! - `credit`: credit notes;
//! - `entry`: the line of an entry, and what the next invoice carries over from it;
//! - `pages`: which entries are in memory.
//!
//! Closing at a time T has these steps, each of them repeatable:
//!
//! 1. What is metered is copied.
//! 2. The pages of the next invoice are created, with everything that continues, and then that invoice. Nothing that the old one says
//!    about the time before T changes from then on, nor meanwhile, unless the process dies and the next one begins this step anew.
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
mod pages;
mod sync;

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
};

use jiff::{SignedDuration, Timestamp};

use super::PriceHistory;
use crate::catalogue::InvoiceTerms;
use resources::{
    Invoice, InvoicePage, LedgerEntry, invoice::Party, invoice_page::has_room, metering::Metering,
    money::TaxRate,
};

pub use close::SPREAD;
use pages::{Page, Pages, shrink};

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
pub type Subjects<'a> = BTreeMap<Cow<'a, str>, Subject<'a>>;

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
    /// Most entries in an invoice, and on a page.
    pub max_entries: usize,
    pub now: Timestamp,
}

impl Facts<'_> {
    /// Whether nothing can be issued, because the catalogue names no seller.
    const fn is_held(&self) -> bool {
        self.terms.seller.name.is_empty()
    }

    /// Whether an invoice or a page with these entries has room for one more.
    fn has_room(&self, entries: &[LedgerEntry], one_more: &LedgerEntry) -> bool {
        entries.len() < self.max_entries && has_room(entries, one_more)
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
    /// Their pages, and those of an invoice that is being prepared, by the name of the invoice.
    pages: BTreeMap<String, Pages>,
    /// The end of the last issued invoice; `None` if that is not known yet.
    pub issued_until: Option<Timestamp>,
    /// Numbers given to invoices that have not been issued with them yet, by name.
    pub numbers: HashMap<String, String>,
    /// Whether everything that is metered has been copied, as of these facts,
    is_copied: bool,
    /// and how far it has been looked through.
    scan: sync::Scan,
    /// What the next invoice takes over, from when it begins to be made: nothing on the old one changes from then on.
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
    /// Read pages, which are needed in memory.
    Read {
        /// Name of the invoice.
        invoice: String,
        /// Their numbers.
        numbers: Vec<u32>,
    },
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
    let name = newest.name().to_owned();
    // What is new while the next invoice is being made is copied to that one.
    if !books.has_lines(&name) && !books.is_copied && books.carry.is_none() {
        if let Some(step) = sync::sync(books, &name, facts) {
            return step;
        }
        books.is_copied = true;
        if let Some(pages) = books.pages.get_mut(&name) {
            pages.shelve_all(facts.subjects);
        }
    }
    let step = close::close(books, facts);
    if matches!(step, Step::Rest(_)) && books.carry.take().is_some() {
        // The next invoice is not made after all.
        return Step::Continue;
    }
    step
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
    fn pages_of(&self, invoice: &str) -> impl DoubleEndedIterator<Item = &Page> {
        self.pages.get(invoice).into_iter().flat_map(Pages::iter)
    }

    fn page(&self, invoice: &str, number: u32) -> Option<&Page> {
        self.pages.get(invoice)?.get(number)
    }

    fn invoice(&self, name: &str) -> Option<&Invoice> {
        self.invoices.values().find(|invoice| invoice.name() == name)
    }

    /// The entries on a page of an invoice, or in the invoice itself if `number` is 0. The error is the step that reads them.
    fn entries_on(&self, invoice: &str, number: u32) -> Result<&[LedgerEntry], Step> {
        if number == 0 {
            return Ok(self.invoice(invoice).map_or(&[], |invoice| &invoice.spec.entries));
        }
        match self.page(invoice, number) {
            Some(page) if page.is_loaded => Ok(&page.object.spec.entries),
            _ => Err(Step::Read {
                invoice: invoice.to_owned(),
                numbers: vec![number],
            }),
        }
    }

    /// The number of the page after this one.
    fn page_after(&self, invoice: &str, number: u32) -> Option<u32> {
        self.pages.get(invoice)?.after(number)
    }

    /// Whether a page has nothing that continues at this time, so that it need not be read.
    fn is_over(&self, invoice: &str, number: u32, at: Timestamp) -> bool {
        let pages = self.pages.get(invoice);
        pages.is_some_and(|pages| pages.is_over(number, at))
    }

    /// Forgets the entries of a page, which are up to date.
    fn shelve(&mut self, invoice: &str, number: u32, facts: &Facts<'_>) {
        if let Some(pages) = self.pages.get_mut(invoice) {
            pages.shelve(number, facts.subjects);
        }
    }

    /// A page of an invoice that does not exist, from a close that was given up.
    fn left_over(&self) -> Option<&InvoicePage> {
        let mut unknown = self.pages.iter().filter(|(name, _)| self.invoice(name).is_none());
        unknown.find_map(|(_, pages)| Some(&pages.iter().next()?.object))
    }

    /// Whether a page of the invoice has its lines.
    fn has_lines(&self, invoice: &str) -> bool {
        // They are written in order.
        let first = self.pages_of(invoice).next();
        first.is_some_and(|page| page.lines.is_some())
    }

    /// The number of the first page of an invoice; `None` if it has none.
    pub fn first_page(&self, invoice: &str) -> Option<u32> {
        self.pages_of(invoice).next().map(|page| page.object.spec.number)
    }

    /// The number of entries of pages that are in memory, and of others that are looked at because of what exists.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        let sizes = self.pages.values().map(Pages::sizes);
        sizes.fold((0, 0), |sum, (loaded, live)| (sum.0 + loaded, sum.1 + live))
    }

    /// Whether the newest invoice stays as it is, because the next one is being made.
    #[cfg(test)]
    pub(super) const fn is_final(&self) -> bool {
        self.carry.is_some()
    }

    /// Says that what is metered may have changed. To be called whenever the facts are others than before, but for the time.
    pub fn look_again(&mut self) {
        (self.is_copied, self.scan) = (false, sync::Scan::default());
    }

    /// Records a page that was read with all others, or written.
    pub fn put_page(&mut self, page: InvoicePage) {
        self.pages.entry(page.spec.invoice.clone()).or_default().put(page);
    }

    /// Records a page that was [to be read](Step::Read). Returns false if it has changed meanwhile: what is stored must be read anew.
    #[must_use]
    pub fn load_page(&mut self, page: InvoicePage) -> bool {
        let pages = self.pages.get_mut(&page.spec.invoice);
        pages.is_some_and(|pages| pages.load(page))
    }

    /// Records that a page was deleted.
    pub fn remove_page(&mut self, page: &InvoicePage) {
        if let Some(pages) = self.pages.get_mut(&page.spec.invoice) {
            pages.remove(page.spec.number);
        }
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
        self.look_again();
        self.carry = None;
    }

    /// Records that an invoice was deleted.
    pub fn remove_invoice(&mut self, invoice: &Invoice) {
        self.invoices.remove(&invoice.spec.period.from);
        self.pages.remove(invoice.name());
        self.numbers.remove(invoice.name());
        self.look_again();
        self.carry = None;
    }
}
