//! What an issued invoice or credit note says as an e-invoice.

use jiff::{SignedDuration, Timestamp, tz::TimeZone};

use super::ubl::{self, Corrected, Document, Line};
use resources::{Invoice, InvoiceLine, InvoiceStatus, invoice::Party, money::TaxRate};

/// What EN 16931 requires and the invoice lacks, such as `buyer.country`.
pub fn missing(invoice: &Invoice) -> Vec<&'static str> {
    with(invoice, ubl::missing)
}

pub(super) fn head(invoice: &Invoice) -> String {
    with(invoice, |document| {
        let mut text = ubl::head(document);
        // It has at least one line.
        if let Some(credit) = &invoice.spec.credit {
            let line = Line {
                id: "",
                name: &credit.reason,
                description: &format!("Credit for invoice {}", credit.number),
                net: document.net,
            };
            text.push_str(&ubl::line(document, 1, &line));
        }
        text
    })
}

pub(super) fn lines(invoice: &Invoice, first: usize, lines: &[InvoiceLine]) -> String {
    with(invoice, |document| {
        let lines = lines.iter().zip(first..).map(|(line, number)| {
            let shown = Line {
                id: &line.instance_id,
                name: &line.name,
                description: &description(line),
                net: line.amount_cents,
            };
            ubl::line(document, number, &shown)
        });
        lines.collect()
    })
}

pub(super) fn foot(invoice: &Invoice) -> String {
    with(invoice, ubl::foot)
}

/// The rows of a line, such as `starter: 720 × 0.00745 = 5.36400; reduction: -0.36400`.
fn description(line: &InvoiceLine) -> String {
    let rows = line.rows().into_iter().map(|row| {
        if row.hours.is_empty() {
            format!("{} {}: {}", row.plan, row.note, row.amount)
        } else {
            format!(
                "{}: {} × {} = {}",
                row.plan, row.hours, row.unit_price, row.amount
            )
        }
    });
    rows.collect::<Vec<_>>().join("; ")
}

fn day(moment: Timestamp) -> String {
    moment.to_zoned(TimeZone::UTC).date().to_string()
}

fn with<T>(invoice: &Invoice, read: impl FnOnce(&Document<'_>) -> T) -> T {
    let nobody = Party::default();
    let unknown = InvoiceStatus::default();
    let status = invoice.status.as_ref().unwrap_or(&unknown);
    let (seller, buyer) = (
        status.seller.as_ref().unwrap_or(&nobody),
        status.buyer.as_ref().unwrap_or(&nobody),
    );
    let issued_on = status.issued_at.map(day).unwrap_or_default();
    let period = invoice.spec.period;
    // The last day is the one of the last moment.
    let last = period
        .to
        .checked_sub(SignedDuration::from_nanos(1))
        .unwrap_or(period.to);
    let (from, to) = (day(period.from), day(last));
    let none = TaxRate::default().to_string();
    let credit = invoice.spec.credit.as_ref();
    let corrected_on = status.corrected_on.as_deref().unwrap_or(&issued_on);
    let document = Document {
        number: status.number.as_deref().unwrap_or_default(),
        corrects: credit.map(|credit| Corrected {
            number: &credit.number,
            issued_on: corrected_on,
        }),
        issued_on: &issued_on,
        due_date: status.due_date.as_deref().unwrap_or_default(),
        period: (&from, &to),
        currency: &invoice.spec.currency,
        seller: party(seller),
        buyer: party(buyer),
        reference: buyer.reference.as_deref(),
        note: credit.map(|credit| credit.reason.as_str()),
        net: status.net_cents,
        tax: status.tax_cents,
        tax_rate: status.tax_rate.as_deref().unwrap_or(&none),
        tax_note: status.tax_note.as_deref(),
    };
    read(&document)
}

fn party(party: &Party) -> ubl::Party<'_> {
    ubl::Party {
        name: &party.name,
        address: &party.address,
        country: party.country.as_deref(),
        vat_id: party.vat_id.as_deref(),
        email: party.email.as_deref(),
    }
}
