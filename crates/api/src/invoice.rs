//! Invoices: `/v1/invoices` (decisions, section 7).

use serde::{Deserialize, Serialize};
use utoipa::{PartialSchema as _, ToSchema};

use crate::{
    envelope::Pagination,
    money::{Money, UnitMoney},
    schema,
    time::Seconds,
};
use resources::InvoicePhase;

/// An invoice.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct Invoice {
    /// Identifier; `null` if there is nothing to bill in this month yet.
    #[schema(required, schema_with = schema::nullable_invoice_id)]
    pub id: Option<String>,
    /// Its number, without gaps within the year in which it was issued; `null` until then.
    #[schema(required, pattern = "^[0-9]{4}-[0-9]{6,}$", example = "2026-000042")]
    pub number: Option<String>,
    /// `open` or `issued`.
    #[schema(schema_with = InvoiceStatus::schema)]
    pub status: InvoiceStatus,
    /// The time that it covers.
    pub period: InvoicePeriod,
    /// When it was issued; `null` until then.
    #[schema(required, value_type = Option<String>, format = DateTime, example = "2026-12-01T00:00:05Z")]
    pub issued_at: Option<Seconds>,
    /// The day on which it is due; `null` until it is issued.
    #[schema(required, format = Date, example = "2026-12-15")]
    pub due_date: Option<String>,
    /// The sum of the lines.
    pub net: Money,
    /// The tax on it.
    pub tax: Money,
    /// What is to be paid: both together.
    pub amount: Money,
    /// Number of lines.
    #[schema(minimum = 0)]
    pub lines_count: usize,
    /// A page of the lines, in the order in which they began. Not in lists of invoices.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub lines: Option<Vec<InvoiceLine>>,
}

/// The time that an invoice covers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct InvoicePeriod {
    /// The first moment.
    #[schema(value_type = String, format = DateTime, example = "2026-11-01T00:00:00Z")]
    pub from: Seconds,
    /// The first moment after it.
    #[schema(value_type = String, format = DateTime, example = "2026-12-01T00:00:00Z")]
    pub to: Seconds,
}

/// One instance or backup in the period.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct InvoiceLine {
    /// Identifier of the instance.
    #[schema(pattern = "^i-[a-z0-9]{16}$", example = "i-4q7hz0c9k2m8x1ta")]
    pub instance_id: String,
    /// Identifier of the backup, of a line about a backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(
        nullable = false,
        pattern = "^bkp_[a-z0-9]{16}$",
        example = "bkp_9c2m8x1ta4q7hz0k"
    )]
    pub backup_id: Option<String>,
    /// Display name of the instance or backup.
    #[schema(example = "web-1")]
    pub name: String,
    /// Hours begun, by plan and price.
    pub hours: Vec<InvoiceHours>,
    /// By how much the hours exceed the month's price of the dearest plan: 0 or negative.
    pub reduction: UnitMoney,
    /// What is to be paid: the sum of the hours and the reduction, rounded half up to cents.
    pub amount: Money,
}

impl InvoiceLine {
    /// Whether there is a reduction.
    pub fn is_reduced(&self) -> bool {
        self.reduction.value.starts_with('-')
    }
}

/// Hours at one price.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct InvoiceHours {
    /// The plan; `backup` for a backup.
    #[schema(example = "starter")]
    pub plan: String,
    /// Number of hours begun.
    #[schema(minimum = 1, example = 720)]
    pub hours: u64,
    /// Price of an hour.
    pub unit_price: UnitMoney,
    /// What these hours cost, exactly.
    pub amount: UnitMoney,
}

/// An invoice with a page of its lines.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct InvoiceAnswer {
    /// The invoice.
    pub data: Invoice,
    /// The position of this page of lines.
    pub pagination: Pagination,
}

/// The status of an invoice.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, ToSchema, strum::AsRefStr, strum::Display,
)]
#[schema(description = "`open`: its period goes on. `issued`: it has a number and never changes.")]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum InvoiceStatus {
    /// Its period goes on.
    Open,
    /// It has a number and never changes.
    Issued,
}

impl From<InvoicePhase> for InvoiceStatus {
    fn from(phase: InvoicePhase) -> Self {
        match phase {
            InvoicePhase::Open => Self::Open,
            InvoicePhase::Issued => Self::Issued,
        }
    }
}
