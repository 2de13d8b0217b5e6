//! The account's invoices and credit notes: list, find and read. They are in the operator's namespace, with those of all accounts; what is
//! read here is selected by the account. They are read from the API server, not watched, because their number grows.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::ListParams};
use parking_lot::Mutex;

use super::{
    Service,
    cost::Cost,
    credentials::Tenant,
    error::Error,
    id::{InvoiceId, PublicId as _},
    index::Paging,
    store::ApiCalls,
};
use domain::invoice::{Period, PriceHistory, Total, ledger::lines_of, stored_prices, total};
use resources::{
    Invoice, InvoiceLine, InvoicePage, InvoicePeriod, InvoiceSpec, LedgerEntry,
    invoice::{ACCOUNT_ORIGIN_LABEL, InvoiceType, SETTLED_LABEL},
    money::{Cents, TaxRate},
};
use runtime::client::{Pages, bounded};

/// Maximum number of an account's invoices that a list reads: those of 80 years.
const MOST: usize = 1000;
/// How long a request may read in total.
const DEADLINE: Duration = Duration::from_secs(30);
/// How long the sums of an open invoice are used for further pages of its lines.
const SUMS_LAST: Duration = Duration::from_secs(30);
/// Most open invoices whose sums are kept.
const MOST_SUMS: usize = 100;
/// The name of the kind in messages.
const WORD: &str = "invoice";

/// An invoice whose lines can be read.
#[derive(Clone)]
pub struct OpenedInvoice {
    calls: Arc<ApiCalls>,
    /// Namespace of the account, whose turn a call takes.
    turns: Box<str>,
    /// Namespace of the invoice.
    namespace: String,
    /// The object. An open one says what it would say if it were issued now; it has no name if nothing has been billed this month.
    pub invoice: Arc<Invoice>,
    /// How to compute an open invoice; `None` if it is issued.
    open: Option<Arc<Open>>,
    sums: Arc<OpenSums>,
}

/// The sums of open invoices with pages, as of a short while ago, by name.
#[derive(Default)]
pub struct OpenSums(Mutex<HashMap<String, (Instant, Arc<Sums>)>>);

struct Sums {
    /// Number of lines in the invoice itself, and on each page.
    counts: Vec<usize>,
    net: Cents,
    /// Only hours that begin before this time count.
    until: Timestamp,
}

impl Sums {
    fn count(&self) -> usize {
        self.counts.iter().sum()
    }
}

impl OpenSums {
    fn get(&self, name: &str) -> Option<Arc<Sums>> {
        let known = self.0.lock();
        let (at, sums) = known.get(name)?;
        (at.elapsed() < SUMS_LAST).then(|| sums.clone())
    }

    fn put(&self, name: &str, sums: Sums) {
        let mut known = self.0.lock();
        known.retain(|_, (at, _)| at.elapsed() < SUMS_LAST);
        if known.len() < MOST_SUMS {
            known.insert(name.to_owned(), (Instant::now(), Arc::new(sums)));
        }
    }
}

/// How the lines of an open invoice are computed.
struct Open {
    prices: PriceHistory,
    tax_rate: TaxRate,
    /// Only hours that begin before this time count.
    until: Timestamp,
}

/// Some lines of an invoice, and its sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lines {
    pub lines: Vec<InvoiceLine>,
    /// Number of all lines.
    pub count: usize,
    /// Sums over all lines.
    pub total: Total,
}

impl Service {
    /// One page of the account's issued invoices and credit notes, of periods that begin in `year` if that is given, the latest period
    /// first and credit notes after their invoice, and their number.
    pub async fn list_invoices(
        &self,
        tenant: &Tenant,
        year: Option<i16>,
        paging: Paging,
        cost: &Cost,
    ) -> Result<(Vec<Invoice>, usize), Error> {
        let mut all = self
            .in_time(self.all_invoices(tenant, "", Invoice::forget_lines, cost))
            .await?;
        all.retain(Invoice::is_issued);
        all.retain(|invoice| {
            let begun = invoice.spec.period.from.to_zoned(TimeZone::UTC).year();
            year.is_none_or(|year| year == begun)
        });
        all.sort_by(Invoice::listed_before);
        Ok(paging.cut(all.into_iter()))
    }

    /// The invoice with this id, issued or open.
    pub async fn invoice(&self, tenant: &Tenant, id: Option<InvoiceId>) -> Result<OpenedInvoice, Error> {
        let unknown = || Error::no_such(WORD);
        let name = id.ok_or_else(unknown)?.name();
        let found = self
            .calls
            .get_in(&self.settings.operator_namespace, &name, &tenant.namespace)
            .await?;
        // Those of others, and credit notes that are only asked for, do not exist.
        let is_shown = |invoice: &Invoice| {
            invoice.spec.account == *tenant.uid && (invoice.is_invoice() || invoice.is_issued())
        };
        let invoice = found.filter(is_shown).ok_or_else(unknown)?;
        self.opened(tenant, invoice).await
    }

    /// The open invoice, with the hours that have begun. If there is none, one without lines, which begins with the month, or where the
    /// last invoice has ended in it.
    pub async fn current_invoice(&self, tenant: &Tenant, cost: &Cost) -> Result<OpenedInvoice, Error> {
        let unsettled = format!("!{SETTLED_LABEL}");
        let mut all = self
            .in_time(self.all_invoices(tenant, &unsettled, |_| (), cost))
            .await?;
        all.retain(|invoice| invoice.is_invoice() && !invoice.is_issued());
        let newest = all.into_iter().max_by_key(|invoice| invoice.spec.period.from);
        let invoice = match newest {
            Some(invoice) => invoice,
            None => self.nothing_yet(tenant, cost).await?,
        };
        self.opened(tenant, invoice).await
    }

    /// An open invoice without lines and without a name.
    async fn nothing_yet(&self, tenant: &Tenant, cost: &Cost) -> Result<Invoice, Error> {
        let (last, _) = self.list_invoices(tenant, None, Paging::first(1), cost).await?;
        let ended = last.first().map(|invoice| invoice.spec.period.to);
        let Period { from, to } = Period::month_of(self.now());
        let from = from.max(ended.unwrap_or(from));
        let spec = InvoiceSpec {
            account: tenant.uid.to_string(),
            account_name: tenant.account.to_string(),
            account_namespace: tenant.namespace.to_string(),
            invoice_type: InvoiceType::Invoice,
            period: InvoicePeriod { from, to },
            credit: None,
            currency: self.catalogue().prices.currency.to_string(),
            entries: Vec::new(),
            lines: Vec::new(),
        };
        Ok(Invoice::new("", spec))
    }

    async fn opened(&self, tenant: &Tenant, mut invoice: Invoice) -> Result<OpenedInvoice, Error> {
        let (now, period) = (self.now(), invoice.spec.period);
        let mut open = None;
        if !invoice.is_issued() {
            let prices = self.prices().await?;
            // The end of the month is not known to come before another tax.
            let tax_rate = tenant.tax_rate.unwrap_or_else(|| prices.tax_until(period.to));
            let status = invoice.status.get_or_insert_default();
            status.tax_rate = Some(tax_rate.to_string());
            status.tax_note = tenant.tax_note.as_deref().map(str::to_owned);
            status.seller = Some(self.catalogue().invoices.seller.clone());
            status.buyer = Some(tenant.buyer.clone());
            let of_before = self.open_sums.get(invoice.name()).map(|sums| sums.until);
            open = Some(Arc::new(Open {
                prices,
                tax_rate,
                // An hour that begins exactly now has begun.
                until: of_before.unwrap_or_else(|| {
                    let begun = now.saturating_add(SignedDuration::from_nanos(1)).unwrap_or(now);
                    begun.min(period.to)
                }),
            }));
        }
        Ok(OpenedInvoice {
            calls: self.calls.clone(),
            turns: tenant.namespace.clone(),
            namespace: self.settings.operator_namespace.clone(),
            invoice: Arc::new(invoice),
            open,
            sums: self.open_sums.clone(),
        })
    }

    /// Past and present prices.
    async fn prices(&self) -> Result<PriceHistory, Error> {
        let api: Api<ConfigMap> = self.calls.api(&self.settings.operator_namespace);
        let _permit = self.calls.permit(&self.settings.operator_namespace).await?;
        let stored = bounded(api.get_opt(stored_prices::NAME)).await?;
        stored
            .as_ref()
            .and_then(stored_prices::read)
            .ok_or_else(|| Error::unavailable("the prices are not known at the moment; try again"))
    }

    /// All invoices of the account with these labels, each without what `leave_out` removes.
    async fn all_invoices(
        &self,
        tenant: &Tenant,
        labels: &str,
        leave_out: fn(&mut Invoice),
        cost: &Cost,
    ) -> Result<Vec<Invoice>, Error> {
        let reading = self.calls.long_read(&tenant.namespace).await?;
        let of_account = format!("{ACCOUNT_ORIGIN_LABEL}={},{labels}", tenant.uid);
        let params = ListParams::default()
            .limit(100)
            .labels(of_account.trim_end_matches(','));
        let mut pages = reading.pages_in::<Invoice>(&self.settings.operator_namespace, params);
        let mut all = Vec::new();
        while all.len() < MOST
            && let Some((page, _turn)) = reading.page(&mut pages, Pages::next).await?
        {
            let of_account = page
                .items
                .into_iter()
                .filter(|invoice| invoice.spec.account == *tenant.uid);
            all.extend(of_account.map(|mut invoice| {
                leave_out(&mut invoice);
                invoice
            }));
            if pages.has_next() {
                cost.add_page();
            }
        }
        Ok(all)
    }

    async fn in_time<T>(&self, reading: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        tokio::time::timeout(DEADLINE, reading)
            .await
            .map_err(|_| Error::unavailable("reading the invoices took too long; try again"))?
    }
}

impl OpenedInvoice {
    /// Whether the invoice is issued.
    pub fn is_issued(&self) -> bool {
        self.invoice.is_issued()
    }

    /// One page of the lines, and the sums.
    pub async fn lines(&self, paging: Paging, cost: &Cost) -> Result<Lines, Error> {
        let (skip, limit) = (paging.skip(), paging.limit);
        let reading = async {
            if !self.is_issued() {
                return self.open_lines(skip, limit, cost).await;
            }
            let status = self.invoice.content();
            let count = usize::try_from(status.lines_count).unwrap_or(usize::MAX);
            let on_pages = status
                .page_lines
                .iter()
                .map(|count| usize::try_from(*count).unwrap_or(usize::MAX));
            let counts: Vec<usize> = [self.invoice.spec.lines.len()]
                .into_iter()
                .chain(on_pages)
                .collect();
            let lines = self.lines_of(&counts, skip, limit, cost).await?;
            let total = self.total(Cents(status.net_cents));
            Ok(Lines { lines, count, total })
        };
        tokio::time::timeout(DEADLINE, reading)
            .await
            .map_err(|_| Error::unavailable("reading the invoice took too long; try again"))?
    }

    /// Reads only the pages that have these lines. `counts` are the numbers of lines in the invoice itself and on each page.
    async fn lines_of(
        &self,
        counts: &[usize],
        skip: usize,
        limit: usize,
        cost: &Cost,
    ) -> Result<Vec<InvoiceLine>, Error> {
        let (mut before, mut lines) = (0_usize, Vec::new());
        for (number, count) in (0_u32..).zip(counts) {
            let end = before.saturating_add(*count);
            if skip < end && lines.len() < limit && *count > 0 {
                let page = self.page(number, cost).await?.unwrap_or_default();
                let left = limit - lines.len();
                lines.extend(page.into_iter().skip(skip.saturating_sub(before)).take(left));
            }
            before = end;
        }
        Ok(lines)
    }

    /// The sums need all pages, one at a time; they are kept for a while, so that the next pages of lines cost no more than these.
    async fn open_lines(&self, skip: usize, limit: usize, cost: &Cost) -> Result<Lines, Error> {
        let name = self.invoice.name();
        if let Some(known) = self.sums.get(name) {
            let lines = self.lines_of(&known.counts, skip, limit, cost).await?;
            let (count, total) = (known.count(), self.total(known.net));
            return Ok(Lines { lines, count, total });
        }
        let (mut lines, mut counts, mut net) = (Vec::new(), Vec::new(), Cents(0));
        let mut count = 0_usize;
        for number in 0.. {
            let Some(page) = self.page(number, cost).await? else {
                break;
            };
            counts.push(page.len());
            for line in page {
                net.0 += line.amount_cents;
                if count >= skip && lines.len() < limit {
                    lines.push(line);
                }
                count += 1;
            }
        }
        let total = self.total(net);
        if let Some(open) = self.open.as_ref().filter(|_| counts.len() > 1) {
            let until = open.until;
            self.sums.put(name, Sums { counts, net, until });
        }
        Ok(Lines { lines, count, total })
    }

    /// The sums of an issued invoice. Those of an open one are computed from `net`, the sum of its lines.
    pub fn total(&self, net: Cents) -> Total {
        if let Some(open) = &self.open {
            return total([net], open.tax_rate);
        }
        Total::of(&self.invoice)
    }

    /// The lines in the invoice itself if `number` is 0, otherwise those on a page, counted from 1; `None` past the last page.
    pub async fn page(&self, number: u32, cost: &Cost) -> Result<Option<Vec<InvoiceLine>>, Error> {
        let invoice = &self.invoice;
        if number == 0 {
            return Ok(Some(self.shown(&invoice.spec.entries, &invoice.spec.lines)));
        }
        if invoice.name().is_empty() {
            return Ok(None);
        }
        let reading = self.calls.long_read(&self.turns).await?;
        let _turn = reading.turn().await?;
        cost.add_object();
        let name = InvoicePage::name_of(invoice.name(), number);
        let page: Option<InvoicePage> = self.calls.get_in(&self.namespace, &name, &self.turns).await?;
        let page = page.filter(|page| page.spec.account == invoice.spec.account);
        Ok(page.map(|page| self.shown(&page.spec.entries, &page.spec.lines.unwrap_or_default())))
    }

    /// The lines as of now: the final ones, or those for the hours of the entries that have begun.
    fn shown(&self, entries: &[LedgerEntry], lines: &[InvoiceLine]) -> Vec<InvoiceLine> {
        match &self.open {
            Some(open) if lines.is_empty() => lines_of(entries, open.until, &open.prices),
            _ => lines.to_vec(),
        }
    }
}
