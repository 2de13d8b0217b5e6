//! Deletes invoices that need not be kept any longer. Their numbers stay: none is given twice.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
    core::DeserializeGuard,
};
use tokio_util::sync::CancellationToken;

use super::Deps;
use resources::{
    Invoice, InvoiceNumber, InvoicePage,
    invoice::SETTLED_LABEL,
    invoice_number::{DELETED_ANNOTATION, object_name},
    invoice_page::INVOICE_LABEL,
    tracking::CONTROLLER_MANAGER,
};
use runtime::client::{CallError, Pages, bounded, written_by};

/// How often to look.
const EVERY: Duration = Duration::from_hours(6);
/// How long to wait after an error.
const AFTER_ERROR: Duration = Duration::from_mins(5);

/// Deletes what is old enough until shutdown, if anything ever is.
pub(super) async fn run(deps: &Deps, shutdown: CancellationToken) {
    let Some(retention) = deps.settings.retention else {
        return;
    };
    loop {
        let wait = match delete_old(deps, retention).await {
            Ok(()) => EVERY,
            Err(error) => {
                tracing::warn!(%error, "cannot delete old invoices; will retry");
                AFTER_ERROR
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

async fn delete_old(deps: &Deps, retention: Duration) -> Result<(), CallError> {
    // The API server's time: with the clock of a machine that is years ahead, all would go.
    let Ok(retention) = SignedDuration::try_from(retention) else {
        return Ok(());
    };
    let before = deps.server_time.since(retention);
    let api: Api<DeserializeGuard<Invoice>> = Api::namespaced(deps.client.clone(), &deps.namespace);
    let mut pages = Pages::of(api, ListParams::default().limit(50).labels(SETTLED_LABEL));
    while let Some(page) = pages.next().await? {
        for invoice in page.items.into_iter().filter_map(|invoice| invoice.0.ok()) {
            if ended(&invoice).is_some_and(|ended| ended < before) {
                delete(deps, &invoice).await?;
            }
        }
    }
    Ok(())
}

/// When an invoice was issued or refused.
fn ended(invoice: &Invoice) -> Option<Timestamp> {
    let created = invoice.metadata.creation_timestamp.as_ref().map(|time| time.0);
    invoice.content().issued_at.or(created)
}

/// Deletes an invoice after its pages, so that none is left if the process dies.
async fn delete(deps: &Deps, invoice: &Invoice) -> Result<(), CallError> {
    let api: Api<InvoicePage> = Api::namespaced(deps.client.clone(), &deps.namespace);
    let of_invoice = format!("{INVOICE_LABEL}={}", invoice.name());
    let mut names = Vec::new();
    let mut pages = Pages::of(api.clone(), ListParams::default().labels(&of_invoice));
    while let Some(page) = pages.next_metadata().await? {
        names.extend(page.items.into_iter().filter_map(|page| page.metadata.name));
    }
    for name in names {
        gone(bounded(api.delete(&name, &DeleteParams::default())).await)?;
    }
    mark_number(deps, invoice).await?;
    let api: Api<Invoice> = Api::namespaced(deps.client.clone(), &deps.namespace);
    gone(bounded(api.delete(invoice.name(), &DeleteParams::default())).await)
}

/// Notes on the number that its invoice is gone on purpose.
async fn mark_number(deps: &Deps, invoice: &Invoice) -> Result<(), CallError> {
    let Some(number) = invoice.number().map(object_name) else {
        return Ok(());
    };
    let api: Api<InvoiceNumber> = Api::all(deps.client.clone());
    let Some(mut stored) = bounded(api.get_opt(&number)).await? else {
        return Ok(());
    };
    let annotations = stored.metadata.annotations.get_or_insert_default();
    annotations.insert(DELETED_ANNOTATION.to_owned(), deps.clock.now().to_string());
    bounded(api.replace(&number, &written_by(CONTROLLER_MANAGER), &stored))
        .await
        .map(drop)
}

/// What is gone is deleted.
fn gone<T>(deleted: Result<T, CallError>) -> Result<(), CallError> {
    match deleted {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}
