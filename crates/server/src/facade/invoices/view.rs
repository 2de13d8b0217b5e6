//! Invoices as responses show them (decisions, section 7).

use jiff::Timestamp;

use crate::service::invoices::{Lines, OpenedInvoice};
use api::{InvoiceHours, Money, Seconds, UnitMoney};
use domain::invoice::Total;
use resources::{
    Invoice, InvoiceLine, InvoicePeriod, InvoiceStatus,
    money::{Cents, Reduction, UnitPrice},
};

/// An issued invoice, without its lines.
pub fn issued(invoice: &Invoice) -> api::Invoice {
    let status = invoice.status.clone().unwrap_or_default();
    let (net, tax) = (Cents(status.net_cents), Cents(status.tax_cents));
    let total = Total {
        net,
        tax,
        amount: Cents(net.0 + tax.0),
    };
    let count = usize::try_from(status.lines_count).unwrap_or(usize::MAX);
    let InvoicePeriod { from, to } = invoice.spec.period;
    let sums = (total, invoice.spec.currency.as_str());
    shown(Some(invoice.id()), status, (from, to), sums, count)
}

/// An invoice with some of its lines.
pub fn with_lines(opened: &OpenedInvoice, lines: &Lines) -> api::Invoice {
    let invoice = opened.invoice.as_deref();
    let status = invoice
        .and_then(|invoice| invoice.status.clone())
        .unwrap_or_default();
    let period = (opened.period.from, opened.period.to);
    let sums = (lines.total, opened.currency.as_str());
    let shown_lines = lines.lines.iter().map(|it| line(it, &opened.currency));
    api::Invoice {
        lines: Some(shown_lines.collect()),
        ..shown(invoice.map(Invoice::id), status, period, sums, lines.count)
    }
}

fn shown(
    id: Option<String>,
    status: InvoiceStatus,
    (from, to): (Timestamp, Timestamp),
    (total, currency): (Total, &str),
    lines_count: usize,
) -> api::Invoice {
    api::Invoice {
        id,
        status: status.phase.into(),
        number: status.number,
        period: api::InvoicePeriod {
            from: Seconds(from),
            to: Seconds(to),
        },
        issued_at: status.issued_at.map(Seconds),
        due_date: status.due_date,
        net: Money::new(total.net, currency),
        tax: Money::new(total.tax, currency),
        amount: Money::new(total.amount, currency),
        lines_count,
        lines: None,
    }
}

fn line(line: &InvoiceLine, currency: &str) -> api::InvoiceLine {
    let hours = line.hours.iter().map(|hours| InvoiceHours {
        plan: hours.plan.clone(),
        hours: hours.hours,
        unit_price: UnitMoney::new(UnitPrice(hours.unit_price), currency),
        amount: UnitMoney::new(hours.amount(), currency),
    });
    api::InvoiceLine {
        instance_id: line.instance_id.clone(),
        backup_id: line.backup_id.clone(),
        name: line.name.clone(),
        hours: hours.collect(),
        reduction: UnitMoney::reduction(Reduction(line.reduction), currency),
        amount: Money::new(Cents(line.amount_cents), currency),
    }
}
