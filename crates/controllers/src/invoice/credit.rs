//! Issues the credit notes that were asked for, one after another: how much is left of an invoice depends on those before.

use jiff::tz::TimeZone;

use super::{
    apply::settled,
    books,
    reconcile::{Reconciler, State},
};
use domain::invoice::ledger::{Facts, credit};
use resources::{Invoice, InvoicePhase};
use runtime::client::CallError;

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
                    // The same year in every process that tries.
                    let asked = request
                        .metadata
                        .creation_timestamp
                        .as_ref()
                        .map_or(facts.now, |time| time.0);
                    let year = asked.to_zoned(TimeZone::UTC).year();
                    let number = self.shared.numbers.take(request, year).await?;
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
                issued.push(written.clone());
                state.issued.push(written);
            }
        }
        Ok(())
    }
}

fn refuse(request: &Invoice, why: String) -> Invoice {
    let mut refused = settled(request.clone());
    let status = refused.status.get_or_insert_default();
    (status.phase, status.held) = (InvoicePhase::Refused, Some(why));
    refused
}
