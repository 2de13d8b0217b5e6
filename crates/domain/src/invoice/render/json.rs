//! Invoices as `/v1` shows them (decisions, section 7).

use crate::invoice::Total;
use api::{Corrected, Hours, InvoiceHours, Money, Seconds, UnitMoney};
use resources::{
    Invoice, InvoiceLine, InvoicePeriod, ids,
    money::{Cents, Exact, Reduction, UnitPrice},
};

/// An issued invoice, without its lines.
pub fn issued(invoice: &Invoice) -> api::Invoice {
    let count = usize::try_from(invoice.content().lines_count).unwrap_or(usize::MAX);
    shown(invoice, Total::of(invoice), count)
}

/// An invoice with some of its lines, the sums over all of them, and their number.
pub fn with_lines(invoice: &Invoice, lines: &[InvoiceLine], total: Total, count: usize) -> api::Invoice {
    let shown_lines = lines.iter().map(|it| line(it, &invoice.spec.currency));
    api::Invoice {
        lines: Some(shown_lines.collect()),
        ..shown(invoice, total, count)
    }
}

fn shown(invoice: &Invoice, total: Total, lines_count: usize) -> api::Invoice {
    let status = invoice.content().clone();
    let tax_rate = status.tax_rate().to_owned();
    let InvoicePeriod { from, to } = invoice.spec.period;
    let currency = &invoice.spec.currency;
    let credit = invoice.spec.credit.as_ref();
    api::Invoice {
        id: Some(invoice.id()).filter(|id| !id.is_empty()),
        status: status.phase.into(),
        number: status.number,
        invoice_type: invoice.spec.invoice_type.into(),
        period: api::InvoicePeriod {
            from: Seconds(from),
            to: Seconds(to),
        },
        issued_at: status.issued_at.map(Seconds),
        due_date: status.due_date.filter(|_| invoice.is_invoice()),
        seller: status.seller.unwrap_or_default().into(),
        buyer: status.buyer.unwrap_or_default().into(),
        corrects: credit.map(|credit| Corrected {
            id: ids::invoice_id(&credit.invoice),
            number: credit.number.clone(),
        }),
        reason: credit.map(|credit| credit.reason.clone()),
        net: Money::new(total.net, currency),
        tax_rate,
        tax_note: status.tax_note,
        tax: Money::new(total.tax, currency),
        amount: Money::new(total.amount, currency),
        lines_count,
        lines: None,
    }
}

fn line(line: &InvoiceLine, currency: &str) -> api::InvoiceLine {
    let hours = line.hours.iter().map(|hours| InvoiceHours {
        plan: hours.plan.clone(),
        hours: Hours(hours.hours()),
        unit_price: UnitMoney::new(UnitPrice(hours.unit_price), currency),
        amount: UnitMoney::exact(hours.amount(), currency),
    });
    api::InvoiceLine {
        instance_id: line.instance_id.clone(),
        name: line.name.clone(),
        hours: hours.collect(),
        reduction: UnitMoney::reduction(Reduction(Exact(line.reduction)), currency),
        amount: Money::new(Cents(line.amount_cents), currency),
    }
}
