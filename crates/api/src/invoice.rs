//! Invoices: `/v1/invoices` (decisions, section 7).

use serde::{Deserialize, Deserializer, Serialize, Serializer};
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
    /// Its number, without gaps within the year in which its period ends; `null` until it is issued.
    #[schema(
        required,
        pattern = "^([A-Za-z0-9][A-Za-z0-9-]*)?[0-9]{4}-[0-9]{6,}$",
        example = "2026-000042"
    )]
    pub number: Option<String>,
    /// Whether it bills something, or takes back some of that. Its amounts are positive in both.
    #[serde(rename = "type")]
    #[schema(schema_with = InvoiceType::schema)]
    pub invoice_type: InvoiceType,
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
    /// Who issues it: as it was then, or for an open invoice as it is now.
    pub seller: Party,
    /// The account holder: as it was when the invoice was issued, or for an open one as it is now.
    pub buyer: Party,
    /// Of a credit note: the invoice that it corrects.
    #[schema(required)]
    pub corrects: Option<Corrected>,
    /// Of a credit note: why.
    #[schema(required)]
    pub reason: Option<String>,
    /// The sum of the lines.
    pub net: Money,
    /// The tax rate in percent.
    #[schema(pattern = r"^[0-9]{1,3}\.[0-9]{2}$", example = "19.00")]
    pub tax_rate: String,
    /// Why there is no tax, or another one, such as reverse charge.
    #[schema(required)]
    pub tax_note: Option<String>,
    /// The tax on the sum.
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

/// A seller or a buyer, as an invoice names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct Party {
    /// Name of the company or person; empty if it is not known.
    pub name: String,
    /// Address lines.
    pub address: Vec<String>,
    /// ISO 3166-1 code of two letters.
    #[schema(required, example = "DE")]
    pub country: Option<String>,
    /// VAT identifier.
    #[schema(required, example = "DE123456789")]
    pub vat_id: Option<String>,
    /// E-mail address.
    #[schema(required)]
    pub email: Option<String>,
    /// What the buyer wants to find on invoices, such as an order number.
    #[schema(required)]
    pub reference: Option<String>,
}

impl From<resources::invoice::Party> for Party {
    fn from(party: resources::invoice::Party) -> Self {
        Self {
            name: party.name,
            address: party.address,
            country: party.country,
            vat_id: party.vat_id,
            email: party.email,
            reference: party.reference,
        }
    }
}

/// The invoice that a credit note corrects.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct Corrected {
    /// Its identifier.
    #[schema(pattern = "^inv_[a-z0-9]{16}$", example = "inv_1ta4q7hz0c9k2m8x")]
    pub id: String,
    /// Its number.
    #[schema(example = "2026-000042")]
    pub number: String,
}

/// One instance, or all its backups, in the period.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct InvoiceLine {
    /// Identifier of the instance.
    #[schema(pattern = "^i-[a-z0-9]{16}$", example = "i-4q7hz0c9k2m8x1ta")]
    pub instance_id: String,
    /// Display name of the instance.
    #[schema(example = "web-1")]
    pub name: String,
    /// Hours begun, by plan and price.
    pub hours: Vec<InvoiceHours>,
    /// By how much the hours exceed the month's price of the dearest plan, or that of the backups: 0 or negative.
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
    /// The plan; `backup` for backups.
    #[schema(example = "starter")]
    pub plan: String,
    /// Number of hours begun; of backups, GB-hours, with up to three decimals.
    #[schema(value_type = f64, minimum = 0, example = 720)]
    pub hours: Hours,
    /// Price of an hour, or of a GB-hour.
    pub unit_price: UnitMoney,
    /// What these hours cost, exactly.
    pub amount: UnitMoney,
}

/// A number of hours, in thousandths; in JSON a number with up to three decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours(pub resources::money::Hours);

impl Serialize for Hours {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let thousandths = self.0.0;
        if thousandths.is_multiple_of(1000) {
            return serializer.serialize_u64(thousandths / 1000);
        }
        #[expect(clippy::cast_precision_loss, reason = "the number is far below 2^53")]
        serializer.serialize_f64(thousandths as f64 / 1000.0)
    }
}

impl<'de> Deserialize<'de> for Hours {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let hours = f64::deserialize(deserializer)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is not negative, and far below 2^53"
        )]
        Ok(Self(resources::money::Hours(
            (hours.max(0.0) * 1000.0).round() as u64
        )))
    }
}

impl std::fmt::Display for Hours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
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
            InvoicePhase::Open | InvoicePhase::Refused => Self::Open,
            InvoicePhase::Issued => Self::Issued,
        }
    }
}

/// Whether an invoice bills something.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    Deserialize,
    Serialize,
    ToSchema,
    strum::AsRefStr,
    strum::Display,
)]
#[schema(
    description = "`invoice`: it bills hours. `credit_note`: it takes back some or all of an issued invoice."
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum InvoiceType {
    /// It bills hours.
    #[default]
    Invoice,
    /// It takes back some or all of an issued invoice.
    CreditNote,
}

impl From<resources::invoice::InvoiceType> for InvoiceType {
    fn from(invoice_type: resources::invoice::InvoiceType) -> Self {
        match invoice_type {
            resources::invoice::InvoiceType::Invoice => Self::Invoice,
            resources::invoice::InvoiceType::CreditNote => Self::CreditNote,
        }
    }
}
