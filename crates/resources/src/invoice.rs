//! `Invoice`: what an account owes for one calendar month, or a part of it. It lies in the operator's namespace, where tenants cannot
//! delete it and it outlives its account.
//!
//! Like a Delivery, it is a record without a status subresource, so that one write creates it with its status, and one write
//! issues it together with its event. It contains its first lines; the others are in [`InvoicePage`](super::InvoicePage)s: an account
//! with up to [`MAX_ENTRIES`] instances and backups has no other object to write at the end of a month.

use std::{cmp::Ordering, sync::LazyLock};

use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{
    event::{HasOutbox, OutboxEntry},
    ids,
    invoice_page::{InvoiceLine, LedgerEntry, MAX_ENTRIES},
    times,
};

/// Label of an Invoice about which nothing is left to do: it is issued, and its event is settled. The operator does not watch
/// those, so its memory does not grow with their number.
pub const SETTLED_LABEL: &str = "stellage.dev/settled";
/// Label of an Invoice and its InvoicePages: the origin of their Account, which is the UID that it was created with.
pub const ACCOUNT_ORIGIN_LABEL: &str = "stellage.dev/account-origin";
/// Most lines of an address.
pub const MAX_ADDRESS_LINES: usize = 6;
/// Most characters of a line of an address.
pub const MAX_ADDRESS_LINE: usize = 100;
/// Most characters of a name, a VAT identifier, a reference or a note on an invoice.
pub const MAX_TEXT: usize = 200;
/// Most pages of an invoice: ten times as many lines as it has before it is issued and the next one begins (decisions, section 8),
/// for an account that has more than those at once.
pub const MAX_PAGES: usize = 10_000;

/// Whether it bills something, or takes back some of that.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema, strum::AsRefStr,
)]
pub enum InvoiceType {
    /// It bills hours.
    #[default]
    Invoice,
    /// It takes back some or all of an issued invoice.
    CreditNote,
}

/// Whether an invoice can still change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum InvoicePhase {
    /// Its period goes on, or it is about to be issued.
    #[default]
    Open,
    /// It has a number, and never changes again.
    Issued,
    /// It is a credit note that was asked for and cannot be issued; status.held says why.
    Refused,
}

/// A seller or a buyer, as an invoice names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Party {
    /// Name of the company or person.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_TEXT))]
    pub name: String,
    /// Address lines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "address")]
    pub address: Vec<String>,
    /// Country, as an ISO 3166-1 code of two letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2))]
    pub country: Option<String>,
    /// VAT identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_TEXT))]
    pub vat_id: Option<String>,
    /// E-mail address.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 254))]
    pub email: Option<String>,
    /// What the buyer wants to find on an invoice, such as an order number.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_TEXT))]
    pub reference: Option<String>,
}

impl Party {
    /// What is printed, line by line.
    pub fn lines(&self) -> Vec<String> {
        let vat_id = self.vat_id.as_ref().map(|id| format!("VAT ID {id}"));
        let reference = self.reference.as_ref().map(|text| format!("Reference {text}"));
        [self.name.clone()]
            .into_iter()
            .chain(self.address.iter().cloned())
            .chain(self.country.clone())
            .chain(vat_id)
            .chain(self.email.clone())
            .chain(reference)
            .filter(|line| !line.is_empty())
            .collect()
    }
}

/// What a credit note takes back, and why.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Credit {
    /// Name of the Invoice.
    #[schemars(length(max = 63))]
    pub invoice: String,
    /// Number of that invoice.
    #[schemars(length(max = 64))]
    pub number: String,
    /// The amount with tax, in cents; absent for all that is left of the invoice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int64", "minimum" = 1))]
    pub amount_cents: Option<u64>,
    /// Why, for the buyer.
    #[schemars(length(min = 1, max = MAX_TEXT), regex(pattern = "\\S"))]
    pub reason: String,
}

/// The time that an invoice covers, half-open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct InvoicePeriod {
    /// The first moment.
    #[schemars(schema_with = "times::time")]
    pub from: Timestamp,
    /// The first moment after it. While the invoice is open: the end of the month.
    #[schemars(schema_with = "times::time")]
    pub to: Timestamp,
}

/// What is billed, and to whom.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[kube(
    group = "stellage.dev",
    version = "v1",
    kind = "Invoice",
    plural = "invoices",
    shortname = "inv",
    category = "stellage",
    namespaced,
    status = "InvoiceStatus",
    derive = "PartialEq",
    selectable = ".spec.accountName",
    doc = "What an account owes for one month, or a part of it, or a credit note. Opened, issued and written by the operator alone; its first 100 lines are in it, the others in InvoicePages. To read it: stellage invoice show NUMBER. To issue it before the end of the month: stellage invoice close --account NAME. To take something back: stellage invoice credit NUMBER",
    printcolumn(name = "Account", type_ = "string", json_path = ".spec.accountName"),
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Number", type_ = "string", json_path = ".status.number"),
    printcolumn(name = "From", type_ = "string", json_path = ".spec.period.from"),
    printcolumn(name = "To", type_ = "string", json_path = ".spec.period.to"),
    printcolumn(name = "Amount", type_ = "string", json_path = ".status.amount"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Lines",
        type_ = "integer",
        json_path = ".status.linesCount",
        priority = 1
    ),
    printcolumn(name = "Due", type_ = "string", json_path = ".status.dueDate", priority = 1),
    printcolumn(name = "ID", type_ = "string", json_path = ".status.id", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct InvoiceSpec {
    /// Origin of the Account: the UID that it was created with.
    #[schemars(length(max = 64))]
    pub account: String,
    /// Name of the Account.
    #[schemars(length(max = 63))]
    pub account_name: String,
    /// Namespace of the account, whose webhooks are told.
    #[schemars(length(max = 63))]
    pub account_namespace: String,
    /// Invoice or CreditNote.
    #[serde(default, rename = "type")]
    pub invoice_type: InvoiceType,
    /// The time that it covers; of a credit note, the time that its invoice covers.
    pub period: InvoicePeriod,
    /// Of a credit note: what it takes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credit: Option<Credit>,
    /// Currency of all amounts, as an ISO 4217 code.
    #[schemars(length(max = 3))]
    pub currency: String,
    /// What was metered of the first instances and backups, while it is open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_ENTRIES))]
    pub entries: Vec<LedgerEntry>,
    /// The lines in place of the entries, once it is issued.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_ENTRIES))]
    pub lines: Vec<InvoiceLine>,
}

/// What has become of the invoice.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InvoiceStatus {
    /// Public identifier, `inv_…`.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub id: String,
    /// Open or Issued.
    #[serde(default)]
    pub phase: InvoicePhase,
    /// Its number, such as 2026-000001: without gaps within the installation and the year in which its period ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub number: Option<String>,
    /// When it was issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub issued_at: Option<Timestamp>,
    /// The day on which it is due, such as 2026-12-15.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10))]
    pub due_date: Option<String>,
    /// The total with its currency, such as 17.85 EUR.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub amount: Option<String>,
    /// The sum of the lines, in cents.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    #[schemars(extend("format" = "int64"))]
    pub net_cents: u64,
    /// The tax on it, in cents.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    #[schemars(extend("format" = "int64"))]
    pub tax_cents: u64,
    /// The tax rate in percent, such as 19.00.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    pub tax_rate: Option<String>,
    /// Number of lines.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    #[schemars(extend("format" = "int32"))]
    pub lines_count: u32,
    /// Number of lines on each InvoicePage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "page_lines")]
    pub page_lines: Vec<u32>,
    /// Why there is no tax, or another one, such as reverse charge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_TEXT))]
    pub tax_note: Option<String>,
    /// The seller, as it was when the invoice was issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seller: Option<Party>,
    /// The account holder, as it was when the invoice was issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buyer: Option<Party>,
    /// Of a credit note: the day on which its invoice was issued, such as 2026-12-01.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10))]
    pub corrected_on: Option<String>,
    /// Why it cannot be issued, if it is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub held: Option<String>,
    /// Of an open invoice: when it had as many lines as it may have. It ends then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub full_at: Option<Timestamp>,
    /// Of an open invoice: the time until which it was to be closed, if no hour had begun before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub nothing_until: Option<Timestamp>,
    /// Sequence number of the last event.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    #[schemars(extend("format" = "int64"))]
    pub event_sequence: i64,
    /// The event of its issue, until every webhook of the account has received it or has a Delivery for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub outbox: Vec<OutboxEntry>,
}

impl InvoiceStatus {
    /// The tax rate in percent, such as 19.00.
    pub fn tax_rate(&self) -> &str {
        self.tax_rate.as_deref().unwrap_or("0.00")
    }
}

impl Invoice {
    /// The public id, `inv_…`.
    pub fn id(&self) -> String {
        ids::invoice_id(self.metadata.name.as_deref().unwrap_or_default())
    }

    /// The name of the object.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Whether it bills hours; if not, it is a credit note.
    pub fn is_invoice(&self) -> bool {
        self.spec.invoice_type == InvoiceType::Invoice
    }

    /// What messages call it.
    pub fn word(&self) -> &'static str {
        if self.is_invoice() {
            "invoice"
        } else {
            "credit note"
        }
    }

    /// Leaves out what only its reader needs, so that it takes little memory.
    pub fn forget_lines(&mut self) {
        (self.spec.entries, self.spec.lines) = (Vec::new(), Vec::new());
    }

    /// What it says besides its lines; nothing if it has no status yet.
    pub fn content(&self) -> &InvoiceStatus {
        static NOTHING: LazyLock<InvoiceStatus> = LazyLock::new(InvoiceStatus::default);
        self.status.as_ref().unwrap_or(&NOTHING)
    }

    /// Whether it can still change.
    pub fn phase(&self) -> InvoicePhase {
        self.content().phase
    }

    /// Whether it is issued.
    pub fn is_issued(&self) -> bool {
        self.phase() == InvoicePhase::Issued
    }

    /// Its number, once it is issued.
    pub fn number(&self) -> Option<&str> {
        self.content().number.as_deref()
    }

    /// Why it cannot be issued.
    pub fn held(&self) -> Option<&str> {
        self.content().held.as_deref()
    }

    /// The order in which invoices are listed: the latest period first, and credit notes after their invoice, in the order of their issue.
    pub fn listed_before(&self, other: &Self) -> Ordering {
        let place = |invoice: &Self| (!invoice.is_invoice(), invoice.content().issued_at);
        (other.spec.period.from.cmp(&self.spec.period.from))
            .then_with(|| place(self).cmp(&place(other)))
            .then_with(|| self.number().cmp(&other.number()))
    }
}

impl HasOutbox for Invoice {
    const KIND: &'static str = "Invoice";

    fn outbox(&self) -> &[OutboxEntry] {
        &self.content().outbox
    }

    fn account_namespace(&self) -> &str {
        &self.spec.account_namespace
    }
}

fn address(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "maxItems": MAX_ADDRESS_LINES,
        "items": { "type": "string", "description": "One line." },
    })
}

fn page_lines(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "maxItems": MAX_PAGES,
        "items": { "type": "integer", "format": "int32", "minimum": 0, "description": "Lines on one page." },
    })
}
