//! Invoices as answers show them (decisions, section 7).

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::{
    ToSchema,
    openapi::{Ref, RefOr, schema::Schema},
};

use crate::{
    facade::{
        catalogue::{Money, UnitMoney},
        view::Seconds,
    },
    resources::{
        Invoice, InvoiceLine, InvoiceStatus,
        money::{Cents, UnitPrice},
    },
    service::{
        id::{InvoiceId, PublicId as _},
        invoices::{Lines, OpenedInvoice},
    },
};

/// The time that an invoice covers.
#[derive(Serialize, ToSchema)]
pub struct InvoicePeriod {
    /// The first moment.
    #[schema(value_type = String, format = DateTime, example = "2026-11-01T00:00:00Z")]
    from: Seconds,
    /// The first moment after it.
    #[schema(value_type = String, format = DateTime, example = "2026-12-01T00:00:00Z")]
    to: Seconds,
}

/// An issued invoice.
#[derive(Serialize, ToSchema)]
#[schema(as = InvoiceSummary)]
pub struct InvoiceSummaryView {
    #[serde(flatten)]
    common: Common,
}

/// An invoice with some of its lines.
#[derive(Serialize, ToSchema)]
#[schema(as = Invoice)]
pub struct InvoiceView {
    #[serde(flatten)]
    common: Common,
    /// The lines, in the order in which they began.
    lines: Vec<InvoiceLineView>,
}

/// What all views of an invoice have.
#[derive(Serialize, ToSchema)]
struct Common {
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
    period: InvoicePeriod,
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
    crate::facade::view::schema(&json!({
        "type": ["string", "null"], "pattern": format!("^{}[a-z0-9]{{16}}$", InvoiceId::PREFIX),
        "description": "Identifier; `null` if there is nothing to bill in this month yet.",
    }))
}

fn status() -> RefOr<Schema> {
    crate::facade::view::schema(&json!({
        "type": "string", "enum": ["open", "issued"],
        "description": "`open`: its period goes on. `issued`: it has a number and never changes.",
    }))
}

impl InvoiceSummaryView {
    /// An issued invoice.
    pub fn issued(invoice: &Invoice) -> Self {
        let status = invoice.status.clone().unwrap_or_default();
        let money = |cents| Money::of(Cents(cents), &invoice.spec.currency);
        let count = usize::try_from(status.lines_count).unwrap_or(usize::MAX);
        let period = &invoice.spec.period;
        Self {
            common: Common {
                net: money(status.net_cents),
                tax: money(status.tax_cents),
                amount: money(status.net_cents + status.tax_cents),
                lines_count: count,
                period: InvoicePeriod {
                    from: Seconds(period.from),
                    to: Seconds(period.to),
                },
                ..Common::of(Some(invoice.id()), status)
            },
        }
    }
}

impl Common {
    /// Without period and sums.
    fn of(id: Option<String>, status: InvoiceStatus) -> Self {
        let none = || Money::of(Cents(0), "");
        let epoch = Seconds(jiff::Timestamp::UNIX_EPOCH);
        Self {
            id,
            status: if status.number.is_some() { "issued" } else { "open" },
            number: status.number,
            period: InvoicePeriod {
                from: epoch,
                to: epoch,
            },
            issued_at: status.issued_at.map(Seconds),
            due_date: status.due_date,
            net: none(),
            tax: none(),
            amount: none(),
            lines_count: 0,
        }
    }
}

impl InvoiceView {
    /// An invoice with some of its lines.
    pub fn of(opened: &OpenedInvoice, lines: &Lines) -> Self {
        let invoice = opened.invoice.as_deref();
        let status = invoice
            .and_then(|invoice| invoice.status.clone())
            .unwrap_or_default();
        let money = |cents| Money::of(cents, &opened.currency);
        let total = lines.total;
        Self {
            common: Common {
                net: money(total.net),
                tax: money(total.tax),
                amount: money(total.amount),
                lines_count: lines.count,
                period: InvoicePeriod {
                    from: Seconds(opened.period.from),
                    to: Seconds(opened.period.to),
                },
                ..Common::of(invoice.map(Invoice::id), status)
            },
            lines: lines
                .lines
                .iter()
                .map(|line| InvoiceLineView::of(line, &opened.currency))
                .collect(),
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

#[expect(dead_code, reason = "kept for references to the shared schema")]
fn invoice_id() -> RefOr<Schema> {
    Ref::from_schema_name("InvoiceId").into()
}
