//! Issues the credit notes that were asked for, one after another: how much is left of an invoice depends on those before.

use jiff::tz::TimeZone;
use kube::Api;

use super::{
    apply::settled,
    books,
    reconcile::{Reconciler, State},
};
use domain::invoice::ledger::{Facts, credit};
use resources::{Invoice, InvoicePhase};
use runtime::client::{CallError, bounded};

/// Annotation of an invoice: the name of the last credit note for it.
const CREDITED_ANNOTATION: &str = "stellage.dev/credited-by";

impl Reconciler {
    /// Issues or refuses every credit note that was asked for.
    pub(super) async fn credit(&self, state: &mut State, facts: &Facts<'_>) -> Result<(), CallError> {
        if state.credits.is_empty() {
            return Ok(());
        }
        let deps = &self.shared.deps;
        let mut issued = books::issued(&deps.client, &deps.namespace, facts.holder.uid).await?;
        while let Some(request) = state.credits.first() {
            let wanted = request
                .spec
                .credit
                .as_ref()
                .map_or("", |credit| credit.invoice.as_str());
            let invoice = issued
                .iter()
                .find(|invoice| invoice.is_invoice() && invoice.name() == wanted);
            let total = match invoice {
                Some(invoice) => credit::total(request, invoice, credit::left(invoice, &issued)),
                None => Err(format!("the account has no issued invoice {wanted}")),
            };
            let written = match (invoice, total) {
                (Some(invoice), Ok(total)) => {
                    let year = facts.now.to_zoned(TimeZone::UTC).year();
                    let number = self.shared.numbers.take(request, year).await?;
                    self.claim(invoice, request).await?;
                    self.put(credit::issued(request, invoice, &number, total, facts))
                        .await?
                }
                (_, refused) => {
                    self.put(refuse(request, refused.err().unwrap_or_default()))
                        .await?
                }
            };
            state.credits.remove(0);
            if written.is_issued() {
                self.issued(&written).await;
                // The invoice has been noted on.
                issued = books::issued(&deps.client, &deps.namespace, facts.holder.uid).await?;
                state.issued.push(written);
            }
        }
        Ok(())
    }

    /// Notes on the invoice that a credit note is about to be issued. It fails if another process has noted one since the invoice was
    /// read: together they might take back more than there is.
    async fn claim(&self, invoice: &Invoice, request: &Invoice) -> Result<(), CallError> {
        let deps = &self.shared.deps;
        let api: Api<Invoice> = Api::namespaced(deps.client.clone(), &deps.namespace);
        let mut claimed = bounded(api.get(invoice.name())).await?;
        let annotations = claimed.metadata.annotations.get_or_insert_default();
        let before = annotations.insert(CREDITED_ANNOTATION.to_owned(), request.name().to_owned());
        if before.as_deref() == Some(request.name()) {
            return Ok(());
        }
        claimed
            .metadata
            .resource_version
            .clone_from(&invoice.metadata.resource_version);
        self.put(claimed).await.map(drop)
    }
}

fn refuse(request: &Invoice, why: String) -> Invoice {
    let mut refused = settled(request.clone());
    let status = refused.status.get_or_insert_default();
    (status.phase, status.held) = (InvoicePhase::Refused, Some(why));
    refused
}
