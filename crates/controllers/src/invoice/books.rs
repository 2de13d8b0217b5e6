//! Reads what is stored of an account's ledger.

use jiff::Timestamp;
use kube::{Api, Client, Resource, api::ListParams, core::DeserializeGuard};
use serde::de::DeserializeOwned;

use super::reconcile::State;
use domain::invoice::ledger::{Books, is_over};
use resources::{
    Invoice, InvoicePage, InvoicePhase,
    invoice::ACCOUNT_ORIGIN_LABEL,
    invoice_page::{INVOICE_LABEL, OPEN_LABEL},
};
use runtime::client::{CallError, Pages, bounded};

/// Reads the books of an account: the invoices with these names, which are those that are not settled, and their pages. The invoices are
/// read by name, because a list would go through those of all accounts.
pub(super) async fn read(
    client: &Client,
    namespace: &str,
    account: &str,
    names: impl IntoIterator<Item = String>,
) -> Result<State, CallError> {
    let mut stored = State {
        account: account.to_owned(),
        books: Books::of(namespace),
        issued: Vec::new(),
        credits: Vec::new(),
        written: None,
    };
    let books = &mut stored.books;
    let api: Api<Invoice> = Api::namespaced(client.clone(), namespace);
    let mut open = Vec::new();
    for name in names {
        let Some(invoice) = bounded(api.get_opt(&name))
            .await?
            .filter(|it| it.spec.account == account)
        else {
            continue;
        };
        match invoice.phase() {
            InvoicePhase::Issued => stored.issued.push(invoice),
            InvoicePhase::Open if invoice.is_invoice() => open.push(invoice),
            InvoicePhase::Open => stored.credits.push(invoice),
            InvoicePhase::Refused => {}
        }
    }
    // Always in the same order: one that a dead process has given a number to is issued first.
    stored.credits.sort_by_key(|request| {
        let created = request.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (created, request.name().to_owned())
    });
    let of_account = format!("{ACCOUNT_ORIGIN_LABEL}={account},{OPEN_LABEL}");
    each(client, namespace, &of_account, |page: InvoicePage| {
        books.put_page(page);
    })
    .await?;
    open.sort_by_key(|invoice| invoice.spec.period.from);
    let last = open.len().saturating_sub(1);
    for (index, invoice) in open.into_iter().enumerate() {
        // Pages with lines no longer have the label of open ones.
        if index < last || lacks_pages(books, &invoice) {
            let of_invoice = format!("{INVOICE_LABEL}={}", invoice.name());
            each(client, namespace, &of_invoice, |page: InvoicePage| {
                books.put_page(page);
            })
            .await?;
        }
        books.put_invoice(invoice);
    }
    Ok(stored)
}

/// Whether pages of the last open invoice may be missing from the list, as the first ones are once they have their lines.
/// Pages can be missing only if none of its entries is still running.
fn lacks_pages(books: &Books, invoice: &Invoice) -> bool {
    books.first_page(invoice.name()) != Some(1) && invoice.spec.entries.iter().all(is_over)
}

/// A page of an invoice.
pub(super) async fn page(
    client: &Client,
    namespace: &str,
    invoice: &str,
    number: u32,
) -> Result<InvoicePage, CallError> {
    let api: Api<InvoicePage> = Api::namespaced(client.clone(), namespace);
    let mut page = bounded(api.get(&InvoicePage::name_of(invoice, number))).await?;
    page.metadata.managed_fields = None;
    Ok(page)
}

/// The invoices and credit notes of an account that have been issued.
pub(super) async fn issued(
    client: &Client,
    namespace: &str,
    account: &str,
) -> Result<Vec<Invoice>, CallError> {
    let mut all = Vec::new();
    let of_account = format!("{ACCOUNT_ORIGIN_LABEL}={account}");
    each(client, namespace, &of_account, |mut invoice: Invoice| {
        if invoice.spec.account == account && invoice.is_issued() {
            invoice.forget_lines();
            all.push(invoice);
        }
    })
    .await?;
    Ok(all)
}

/// The end of the last of these invoices; the beginning of time if there is none.
pub(super) fn last_end(issued: &[Invoice]) -> Timestamp {
    let invoices = issued.iter().filter(|invoice| invoice.is_invoice());
    let last = invoices.map(|invoice| invoice.spec.period.to).max();
    last.unwrap_or(Timestamp::MIN)
}

/// Passes the objects of a kind with a label to `see`. Objects that do not match their schema are skipped.
async fn each<K>(
    client: &Client,
    namespace: &str,
    label: &str,
    mut see: impl FnMut(K) + Send,
) -> Result<(), CallError>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let api: Api<DeserializeGuard<K>> = Api::namespaced(client.clone(), namespace);
    // Few at a time, because others wait while they are parsed.
    let mut pages = Pages::of(api, ListParams::default().limit(10).labels(label));
    while let Some(page) = pages.next().await? {
        for object in page.items {
            match object.0 {
                Ok(object) => see(object),
                Err(error) => {
                    tracing::error!(namespace, %error, "an object of the ledger does not match its schema");
                }
            }
        }
    }
    Ok(())
}
