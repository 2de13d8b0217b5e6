//! Invoices as responses show them (decisions, section 7).

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::{
    ToSchema,
    openapi::{RefOr, schema::Schema},
};

use crate::{
    facade::{
        catalogue::{Money, UnitMoney},
        response::view::Seconds,
    },
    service::{
        id::{InvoiceId, PublicId as _},
        invoices::{Lines, OpenedInvoice},
    },
};
use domain::invoice::Total;
use resources::{
    Invoice, InvoiceLine, InvoicePeriod, InvoicePhase, InvoiceStatus,
    money::{Cents, UnitPrice},
};

/// The time that an invoice covers.
#[derive(Serialize, ToSchema)]
#[schema(as = InvoicePeriod)]
pub struct PeriodView {
    /// The first moment.
    #[schema(value_type = String, format = DateTime, example = "2026-11-01T00:00:00Z")]
    from: Seconds,
    /// The first moment after it.
    #[schema(value_type = String, format = DateTime, example = "2026-12-01T00:00:00Z")]
    to: Seconds,
}

/// An invoice.
#[derive(Serialize, ToSchema)]
#[schema(as = Invoice)]
pub struct InvoiceView {
    /// Identifier; `null` if there is nothing to bill in this month yet.
    #[schema(required, schema_with = nullable_id)]
    id: Option<String>,
    /// Its number, without gaps within the year in which it was issued; `null` until then.
    #[schema(required, pattern = "^[0-9]{4}-[0-9]{6,}$", example = "2026-000042")]
    number: Option<String>,
    /// `open` or `issued`.
    #[schema(schema_with = status)]
    status: &'static str,
    /// The time that it covers.
    period: PeriodView,
    /// When it was issued; `null` until then.
    #[schema(required, value_type = Option<String>, format = DateTime, example = "2026-12-01T00:00:05Z")]
    issued_at: Option<Seconds>,
    /// The day on which it is due; `null` until it is issued.
    #[schema(required, format = Date, example = "2026-12-15")]
    due_date: Option<String>,
    /// The sum of the lines.
    net: Money,
    /// The tax on it.
    tax: Money,
    /// What is to be paid: both together.
    amount: Money,
    /// Number of lines.
    #[schema(minimum = 0)]
    lines_count: usize,
    /// A page of the lines, in the order in which they began. Not in lists of invoices.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    lines: Option<Vec<InvoiceLineView>>,
}

/// One instance or backup in the period.
#[derive(Serialize, ToSchema)]
#[schema(as = InvoiceLine)]
pub struct InvoiceLineView {
    /// Identifier of the instance.
    #[schema(pattern = "^i-[a-z0-9]{16}$", example = "i-4q7hz0c9k2m8x1ta")]
    instance_id: String,
    /// Identifier of the backup, of a line about a backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(
        nullable = false,
        pattern = "^bkp_[a-z0-9]{16}$",
        example = "bkp_9c2m8x1ta4q7hz0k"
    )]
    backup_id: Option<String>,
    /// Display name of the instance or backup.
    #[schema(example = "web-1")]
    name: String,
    /// Hours begun, by plan and price.
    hours: Vec<InvoiceHours>,
    /// What is to be paid: the sum of the hours, at most a month's price of the dearest plan, rounded to cents.
    amount: Money,
}

/// Hours at one price.
#[derive(Serialize, ToSchema)]
pub struct InvoiceHours {
    /// The plan; `backup` for a backup.
    #[schema(example = "starter")]
    plan: String,
    /// Number of hours begun.
    #[schema(minimum = 1, example = 720)]
    hours: u64,
    /// Price of an hour.
    unit_price: UnitMoney,
}

fn nullable_id() -> RefOr<Schema> {
    crate::facade::response::view::schema(&json!({
        "type": ["string", "null"], "pattern": format!("^{}[a-z0-9]{{16}}$", InvoiceId::PREFIX),
        "description": "Identifier; `null` if there is nothing to bill in this month yet.",
    }))
}

fn status() -> RefOr<Schema> {
    crate::facade::response::view::schema(&json!({
        "type": "string", "enum": ["open", "issued"],
        "description": "`open`: its period goes on. `issued`: it has a number and never changes.",
    }))
}

impl InvoiceView {
    /// An issued invoice, without its lines.
    pub fn issued(invoice: &Invoice) -> Self {
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
        Self::new(Some(invoice.id()), status, (from, to), sums, count)
    }

    /// An invoice with some of its lines.
    pub fn of(opened: &OpenedInvoice, lines: &Lines) -> Self {
        let invoice = opened.invoice.as_deref();
        let status = invoice
            .and_then(|invoice| invoice.status.clone())
            .unwrap_or_default();
        let period = (opened.period.from, opened.period.to);
        let sums = (lines.total, opened.currency.as_str());
        let shown = lines.lines.iter();
        Self {
            lines: Some(
                shown
                    .map(|line| InvoiceLineView::of(line, &opened.currency))
                    .collect(),
            ),
            ..Self::new(invoice.map(Invoice::id), status, period, sums, lines.count)
        }
    }

    fn new(
        id: Option<String>,
        status: InvoiceStatus,
        (from, to): (Timestamp, Timestamp),
        (total, currency): (Total, &str),
        lines_count: usize,
    ) -> Self {
        Self {
            id,
            status: match status.phase {
                InvoicePhase::Open => "open",
                InvoicePhase::Issued => "issued",
            },
            number: status.number,
            period: PeriodView {
                from: Seconds(from),
                to: Seconds(to),
            },
            issued_at: status.issued_at.map(Seconds),
            due_date: status.due_date,
            net: Money::of(total.net, currency),
            tax: Money::of(total.tax, currency),
            amount: Money::of(total.amount, currency),
            lines_count,
            lines: None,
        }
    }
}

impl InvoiceLineView {
    fn of(line: &InvoiceLine, currency: &str) -> Self {
        let hours = line.hours.iter().map(|hours| InvoiceHours {
            plan: hours.plan.clone(),
            hours: hours.hours,
            unit_price: UnitMoney::of(UnitPrice(hours.unit_price), currency),
        });
        Self {
            instance_id: line.instance_id.clone(),
            backup_id: line.backup_id.clone(),
            name: line.name.clone(),
            hours: hours.collect(),
            amount: Money::of(Cents(line.amount_cents), currency),
        }
    }
}

/// Schemas that have no Rust type, by name.
pub(in crate::facade) fn shared_schemas() -> Value {
    let prefix = InvoiceId::PREFIX;
    json!({
        "InvoiceId": {
            "type": "string", "pattern": format!("^{prefix}[a-z0-9]{{16}}$"), "description": "Identifier of an invoice.",
            "examples": [format!("{prefix}1ta4q7hz0c9k2m8x")],
        },
    })
}
