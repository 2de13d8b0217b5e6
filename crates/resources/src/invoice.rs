//! `Invoice`: what an account owes for one calendar month, or a part of it.
//!
//! Like a Delivery, it is a record without a status subresource, so that one write creates it with its status, and one write
//! issues it together with its event. It contains its first lines; the others are in [`InvoicePage`](super::InvoicePage)s: an account
//! with up to [`MAX_ENTRIES`] instances and backups has no other object to write at the end of a month.

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
/// Label of the Invoices and InvoicePages of a deleted Account, in the operator's namespace: the name of the Account.
pub const FORMER_ACCOUNT_LABEL: &str = "stellage.dev/former-account";
/// Most lines of an address.
pub const MAX_ADDRESS_LINES: usize = 6;
/// Most characters of a line of an address.
pub const MAX_ADDRESS_LINE: usize = 100;
/// Most pages of an invoice: a million lines.
pub const MAX_PAGES: usize = 10_000;

/// Whether an invoice can still change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum InvoicePhase {
    /// Its period goes on, or it is about to be issued.
    #[default]
    Open,
    /// It has a number, and never changes again.
    Issued,
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
    doc = "What an account owes for one month, or a part of it. Opened, issued and written by the operator alone; its first 100 lines are in it, the others in InvoicePages. To read it: stellage invoice show NAME. To issue it before the end of the month: stellage invoice close --account NAME",
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
    /// UID of the Account.
    #[schemars(length(max = 64))]
    pub account: String,
    /// Name of the Account.
    #[schemars(length(max = 63))]
    pub account_name: String,
    /// The time that it covers.
    pub period: InvoicePeriod,
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
    /// Its number, such as 2026-000001: without gaps within the installation and the year in which it was issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
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
    /// Address lines of the seller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "address")]
    pub seller: Vec<String>,
    /// Address lines of the account holder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "address")]
    pub buyer: Vec<String>,
    /// E-mail address of the account holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 254))]
    pub email: Option<String>,
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

impl Invoice {
    /// The public id, `inv_…`.
    pub fn id(&self) -> String {
        ids::invoice_id(self.metadata.name.as_deref().unwrap_or_default())
    }

    /// The name of the object.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Leaves out what only its reader needs, so that it takes little memory.
    pub fn forget_lines(&mut self) {
        (self.spec.entries, self.spec.lines) = (Vec::new(), Vec::new());
    }

    /// Whether it is issued.
    pub fn is_issued(&self) -> bool {
        let status = self.status.as_ref();
        status.is_some_and(|status| status.phase == InvoicePhase::Issued)
    }
}

impl HasOutbox for Invoice {
    const KIND: &'static str = "Invoice";

    fn outbox(&self) -> &[OutboxEntry] {
        self.status.as_ref().map_or(&[], |status| &status.outbox)
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
