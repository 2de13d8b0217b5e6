//! Credit notes: each takes back some or all of an issued invoice, which itself never changes.

use jiff::tz::TimeZone;

use super::{Facts, close::finish};
use crate::invoice::Total;
use resources::{
    Invoice, InvoiceSpec,
    invoice::{ACCOUNT_ORIGIN_LABEL, Credit, InvoiceType},
    money::{Cents, TaxRate},
};

/// What is left of an issued invoice after its credit notes. Others among `others` do not count.
pub fn left(invoice: &Invoice, others: &[Invoice]) -> Total {
    let mut left = Total::of(invoice);
    let takes_back = |other: &&Invoice| {
        let credit = other.spec.credit.as_ref();
        other.is_issued() && credit.is_some_and(|credit| credit.invoice == invoice.name())
    };
    for credited in others.iter().filter(takes_back).map(Total::of) {
        left.net.0 = left.net.0.saturating_sub(credited.net.0);
        left.tax.0 = left.tax.0.saturating_sub(credited.tax.0);
    }
    left.amount = Cents(left.net.0 + left.tax.0);
    left
}

/// What a credit note comes to that was asked for, if `left` is left of its invoice. The error says why it cannot be issued.
pub fn total(request: &Invoice, invoice: &Invoice, left: Total) -> Result<Total, String> {
    let number = invoice.number().unwrap_or_default();
    let wanted = request
        .spec
        .credit
        .as_ref()
        .and_then(|credit| credit.amount_cents);
    let amount = wanted.map_or(left.amount, Cents);
    if left.amount == Cents(0) {
        return Err(format!(
            "nothing is left of invoice {number}: it has been credited in full"
        ));
    }
    if amount > left.amount || amount == Cents(0) {
        let currency = &invoice.spec.currency;
        return Err(format!(
            "{amount} {currency} is not between 0.01 and the {} {currency} that are left of invoice {number}",
            left.amount
        ));
    }
    if amount == left.amount {
        return Ok(left);
    }
    let rate: TaxRate = invoice.content().tax_rate().parse().unwrap_or_default();
    // Not more of either than is left, so that the last credit note is right, too.
    let tax = rate.contained_in(amount).min(left.tax);
    let net = Cents(amount.0 - tax.0).min(left.net);
    Ok(Total {
        net,
        tax: Cents(amount.0 - net.0),
        amount,
    })
}

/// The credit note as it is issued: of the same period, seller, buyer and tax as its invoice.
pub fn issued(
    request: &Invoice,
    invoice: &Invoice,
    number: &str,
    total: Total,
    facts: &Facts<'_>,
) -> Invoice {
    let mut issued = request.clone();
    // A request says how much and why; everything else is as on the invoice.
    let of = &invoice.spec;
    let credit = request.spec.credit.clone().map(|credit| Credit {
        number: invoice.number().unwrap_or_default().to_owned(),
        ..credit
    });
    issued.spec = InvoiceSpec {
        invoice_type: InvoiceType::CreditNote,
        credit,
        entries: Vec::new(),
        lines: Vec::new(),
        ..of.clone()
    };
    let label = (ACCOUNT_ORIGIN_LABEL.to_owned(), of.account.clone());
    issued.metadata.labels = Some([label].into());
    let of = invoice.status.clone().unwrap_or_default();
    let status = issued.status.get_or_insert_default();
    status.id = request.id();
    (status.tax_rate, status.tax_note) = (of.tax_rate, of.tax_note);
    (status.seller, status.buyer) = (of.seller, of.buyer);
    let corrected_on = of
        .issued_at
        .map(|at| at.to_zoned(TimeZone::UTC).date().to_string());
    status.corrected_on = corrected_on;
    finish(&mut issued, number, total, facts);
    issued
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn invoice(net: u64, tax: u64) -> Invoice {
        serde_json::from_value(json!({
            "metadata": { "name": "inv-a" },
            "spec": { "account": "u", "accountName": "ada", "accountNamespace": "ada", "currency": "EUR",
                "period": { "from": "2026-11-01T00:00:00Z", "to": "2026-12-01T00:00:00Z" } },
            "status": { "phase": "Issued", "number": "2026-000001", "netCents": net, "taxCents": tax, "taxRate": "19.00" },
        }))
        .unwrap()
    }

    fn credit(amount: Option<u64>, total: Option<Total>) -> Invoice {
        let mut note = invoice(0, 0);
        note.spec.credit = Some(resources::invoice::Credit {
            invoice: "inv-a".to_owned(),
            number: "2026-000001".to_owned(),
            amount_cents: amount,
            reason: "outage".to_owned(),
        });
        let status = note.status.as_mut().unwrap();
        (status.net_cents, status.tax_cents) = total.map_or((0, 0), |total| (total.net.0, total.tax.0));
        note
    }

    #[test]
    fn credit_notes_add_up_to_their_invoice_and_never_to_more() {
        let invoice = invoice(10_00, 1_90);
        let mut notes = Vec::new();
        for amount in [3_33, 3_33, 3_33, 1] {
            let total = total(&credit(Some(amount), None), &invoice, left(&invoice, &notes)).unwrap();
            assert_eq!((total.net.0 + total.tax.0, total.amount), (amount, Cents(amount)));
            notes.push(credit(None, Some(total)));
        }
        let left_over = left(&invoice, &notes);
        assert_eq!(left_over.amount, Cents(11_90 - 10_00));
        let error = total(&credit(Some(1_91), None), &invoice, left_over).unwrap_err();
        assert!(
            error.contains("the 1.90 EUR that are left of invoice 2026-000001"),
            "{error}"
        );
        let all = total(&credit(None, None), &invoice, left_over).unwrap();
        notes.push(credit(None, Some(all)));
        let sum = |of: fn(&Invoice) -> u64| notes.iter().map(of).sum::<u64>();
        assert_eq!(sum(|note| note.status.as_ref().unwrap().net_cents), 10_00);
        assert_eq!(sum(|note| note.status.as_ref().unwrap().tax_cents), 1_90);
        let error = total(&credit(None, None), &invoice, left(&invoice, &notes)).unwrap_err();
        assert!(error.contains("credited in full"), "{error}");
    }

    #[test]
    fn the_tax_of_a_part_is_that_part_of_the_tax() {
        let invoice = invoice(10_000, 1_900);
        let part = total(&credit(Some(11_90), None), &invoice, left(&invoice, &[])).unwrap();
        assert_eq!((part.net, part.tax), (Cents(1_000), Cents(190)));
    }
}
