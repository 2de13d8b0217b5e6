//! Reads what is stored of an account's ledger.

use jiff::Timestamp;
use kube::{Api, Client, Resource, api::ListParams, core::DeserializeGuard};
use serde::de::DeserializeOwned;

use domain::invoice::ledger::Books;
use resources::{
    Invoice, InvoicePage, LedgerEntry,
    invoice::SETTLED_LABEL,
    invoice_page::{INVOICE_LABEL, OPEN_LABEL},
};
use runtime::client::{CallError, Pages};

/// Reads the books of an account, and its issued invoices whose events are not settled.
pub(super) async fn read(
    client: &Client,
    namespace: &str,
    account: &str,
) -> Result<(Books, Vec<Invoice>), CallError> {
    let mut books = Books {
        namespace: namespace.to_owned(),
        ..Books::default()
    };
    let unsettled = format!("!{SETTLED_LABEL}");
    let (mut issued, mut open) = (Vec::new(), Vec::new());
    each(client, namespace, &unsettled, |invoice: Invoice| {
        if invoice.spec.account == account {
            let list = if invoice.is_issued() {
                &mut issued
            } else {
                &mut open
            };
            list.push(invoice);
        }
    })
    .await?;
    each(client, namespace, OPEN_LABEL, |page: InvoicePage| {
        if page.spec.account == account {
            books.put_page(page);
        }
    })
    .await?;
    open.sort_by_key(|invoice| invoice.spec.period.from);
    let last = open.len().saturating_sub(1);
    for (index, invoice) in open.into_iter().enumerate() {
        // Pages with lines no longer have the label of open ones.
        if index < last || lacks_pages(&books, &invoice) {
            let of_invoice = format!("{INVOICE_LABEL}={}", invoice.name());
            each(client, namespace, &of_invoice, |page: InvoicePage| {
                books.put_page(page);
            })
            .await?;
        }
        books.put_invoice(invoice);
    }
    Ok((books, issued))
}

/// Whether pages of the last open invoice may be missing from the list, as the first ones are once they have their lines.
/// Pages can be missing only if none of its entries is still running.
fn lacks_pages(books: &Books, invoice: &Invoice) -> bool {
    let mut numbers = books.pages_of(invoice.name()).map(|page| page.spec.number);
    let goes_on = |entry: &LedgerEntry| entry.ended.is_none();
    numbers.next() != Some(1) && !invoice.spec.entries.iter().any(goes_on)
}

/// The end of the last issued invoice with a label in a namespace; the beginning of time if there is none.
pub(super) async fn issued_until(
    client: &Client,
    namespace: &str,
    label: &str,
) -> Result<Timestamp, CallError> {
    let mut last = Timestamp::MIN;
    each(client, namespace, label, |invoice: Invoice| {
        if invoice.is_issued() {
            last = last.max(invoice.spec.period.to);
        }
    })
    .await?;
    Ok(last)
}

/// Passes the objects of a kind with a label to `see`. Objects that do not match their schema are skipped.
pub(super) async fn each<K>(
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
    // Each object has at most about 256 KiB.
    let mut pages = Pages::of(api, ListParams::default().limit(50).labels(label));
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
