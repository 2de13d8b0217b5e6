//! `InvoicePage`: the lines of an Invoice that do not fit into it, or some of them.
//!
//! The lines of an invoice are in several objects, so that neither the number of instances nor that of their changes is limited
//! by the size of an object. The invoice and each page have at most [`MAX_ENTRIES`] instances and backups, and start with at most
//! [`SOFT_BYTES`]; one that has grown beyond that moves entries to a later page. An instance with 40 changes takes some 2 KiB, so
//! an account with 10,000 of them has 100 objects of 220 KiB each.
//!
//! While the invoice is open, a page has entries: what was metered. It is written when an interval begins or ends, never just because
//! time passes. When the invoice is issued, each page is written once more, with the lines in place of the entries.

use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    invoice::{ACCOUNT_ORIGIN_LABEL, Invoice},
    metering::{MAX_CHANGES, MeteredHour},
    money::{Cents, Exact, Hours, Reduction, UnitPrice},
    times,
};

/// Most entries or lines in an invoice, and on a page.
pub const MAX_ENTRIES: usize = 100;
/// Bytes of entries from which on an invoice or a page takes no more. It may be exceeded by one entry, which has at most some 900 KiB.
pub const SOFT_BYTES: usize = 256 * 1024;
/// Most plans and prices in a line: four plans, each at every price that it may have within two months.
pub const MAX_HOURS: usize = 100;

/// Label of a page: the name of its Invoice.
pub const INVOICE_LABEL: &str = "stellage.dev/invoice";
/// Label of a page whose invoice is open, so that it has entries and no lines.
pub const OPEN_LABEL: &str = "stellage.dev/open";

/// Most backups of an instance in an entry, some 900 KiB. Those that can exist at once are less than half as many; with so many, the
/// invoice is issued, and the next one begins without those that are gone.
pub const MAX_BACKUPS: usize = 5000;

/// What was metered of an instance, or of its backups, as far as it has not been invoiced.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LedgerEntry {
    /// Origin of the Instance; of backups, what they are kept under.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// Identifier of the instance, `i-…`.
    #[schemars(length(max = 64))]
    pub instance_id: String,
    /// Display name of the instance.
    #[schemars(length(max = 253))]
    pub name: String,
    /// When the instance first ran, or the first backup was completed.
    #[schemars(schema_with = "times::time")]
    pub since: Timestamp,
    /// The plans of an instance, as in its status.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_CHANGES))]
    pub changes: Vec<MeteredHour>,
    /// The backups of an instance, in an entry about these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_BACKUPS))]
    pub backups: Vec<MeteredBackup>,
    /// When its deletion was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub ended: Option<Timestamp>,
    /// Hours that began before this are on an earlier invoice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub billed_until: Option<Timestamp>,
    /// What earlier invoices have billed for it in the same calendar month, in cents.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    #[schemars(extend("format" = "int64"))]
    pub billed_cents: u64,
    /// The month's price of the dearest plan on them, in cents.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    #[schemars(extend("format" = "int64"))]
    pub cap_cents: u64,
    /// The hour that was in progress when the last invoice was closed early: it is billed there, and if it ends up with a dearer plan,
    /// the difference is billed here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_hour: Option<OpenHour>,
}

/// An hour that has been billed before it was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OpenHour {
    /// Its number, from the first one that is billed.
    #[schemars(extend("format" = "int64"))]
    pub hour: i64,
    /// The price that it was billed at, in thousandths of a cent.
    #[schemars(extend("format" = "int64"))]
    pub unit_price: u64,
}

/// What was metered of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MeteredBackup {
    /// Origin of the Backup.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// When it was completed.
    #[schemars(schema_with = "times::time")]
    pub since: Timestamp,
    /// Its size in thousandths of a GB.
    #[schemars(extend("format" = "int64"))]
    pub megabytes: u64,
    /// When its data was gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub ended: Option<Timestamp>,
    /// Hours that began before this are on an earlier invoice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub billed_until: Option<Timestamp>,
    /// What earlier invoices have billed for it in the same calendar month, in millionths of a cent.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    #[schemars(extend("format" = "int64"))]
    pub billed: u64,
    /// The highest month's price of a GB on them, in cents.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    #[schemars(extend("format" = "int64"))]
    pub cap_cents: u64,
}

/// Hours at one price.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InvoicedHours {
    /// The plan; `backup` for backups.
    #[schemars(length(max = 16))]
    pub plan: String,
    /// Number of hours, or of GB-hours of backups, in thousandths.
    #[schemars(extend("format" = "int64"))]
    pub thousandths: u64,
    /// Price of an hour, or of a GB-hour, in thousandths of a cent.
    #[schemars(extend("format" = "int64"))]
    pub unit_price: u64,
    /// The month's price that it comes from, of the plan or of a GB, in cents; absent from a difference.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    #[schemars(extend("format" = "int64"))]
    pub month_cents: u64,
}

/// The plan of the hours of backups.
pub const BACKUP: &str = "backup";
/// The plan of the difference for an hour that was billed before it was over.
pub const DIFFERENCE: &str = "difference";

impl InvoicedHours {
    /// What a reader needs to recompute the price.
    fn note(&self) -> String {
        let month = Cents(self.month_cents);
        match self.plan.as_str() {
            DIFFERENCE => "(an hour billed before, at its dearer plan)".to_owned(),
            BACKUP => format!("({month} a month for a GB)"),
            _ => format!("({month} a month)"),
        }
    }

    /// The number of hours, or of GB-hours.
    pub const fn hours(&self) -> Hours {
        Hours(self.thousandths)
    }

    /// What these hours cost, exactly.
    pub const fn amount(&self) -> Exact {
        Exact::of(self.thousandths, UnitPrice(self.unit_price))
    }
}

/// One instance, or all its backups, in the period of an invoice.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InvoiceLine {
    /// Identifier of the instance, `i-…`.
    #[schemars(length(max = 64))]
    pub instance_id: String,
    /// Display name of the instance.
    #[schemars(length(max = 253))]
    pub name: String,
    /// The hours.
    #[schemars(length(max = MAX_HOURS))]
    pub hours: Vec<InvoicedHours>,
    /// By how much the hours exceed the month's price, in millionths of a cent. It is not to be paid.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    #[schemars(extend("format" = "int64"))]
    pub reduction: u64,
    /// Of a line with a reduction: the month's price, of the dearest plan or of all backups, in millionths of a cent.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    #[schemars(extend("format" = "int64"))]
    pub month_price: u64,
    /// Of a line with a reduction: what earlier invoices have billed in the same month, in millionths of a cent.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    #[schemars(extend("format" = "int64"))]
    pub billed_before: u64,
    /// What is to be paid, in cents: the hours without the reduction, rounded half up.
    #[schemars(extend("format" = "int64"))]
    pub amount_cents: u64,
}

/// A row of a line, as tables show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineRow<'a> {
    /// The plan; `reduction` for the reduction, which has no hours.
    pub plan: &'a str,
    /// How its price or reduction comes about.
    pub note: String,
    /// Number of hours, or of GB-hours.
    pub hours: String,
    /// Price of an hour.
    pub unit_price: String,
    /// What the row comes to, exactly.
    pub amount: String,
}

impl InvoiceLine {
    /// What the hours are reduced to.
    fn limit(&self) -> String {
        let before = if self.billed_before == 0 {
            String::new()
        } else {
            format!(", of which {} was billed before", Exact(self.billed_before))
        };
        format!("(limit of the month {}{before})", Exact(self.month_price))
    }

    /// A row for each plan and price, and one for the reduction if there is one.
    pub fn rows(&self) -> Vec<LineRow<'_>> {
        let hours = self.hours.iter().map(|hours| LineRow {
            plan: &hours.plan,
            note: hours.note(),
            hours: hours.hours().to_string(),
            unit_price: UnitPrice(hours.unit_price).to_string(),
            amount: hours.amount().to_string(),
        });
        let reduction = (self.reduction > 0).then(|| LineRow {
            plan: "reduction",
            note: self.limit(),
            hours: String::new(),
            unit_price: String::new(),
            amount: Reduction(Exact(self.reduction)).to_string(),
        });
        hours.chain(reduction).collect()
    }

    /// The rows as people read them: instance and name, both in the first, plan, hours, price of an hour, amount, and, in the last, what is
    /// to be paid.
    pub fn table(&self) -> Vec<[String; 7]> {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let rows = rows.into_iter().enumerate().map(|(index, row)| {
            let only = |at: usize, text: &str| {
                if index == at {
                    text.to_owned()
                } else {
                    String::new()
                }
            };
            let unit = if row.plan == BACKUP { " GB-h" } else { "" };
            [
                only(0, &self.instance_id),
                only(0, &self.name),
                format!("{} {}", row.plan, row.note).trim_end().to_owned(),
                format!("{}{unit}", row.hours),
                row.unit_price,
                row.amount,
                only(last, &Cents(self.amount_cents).to_string()),
            ]
        });
        rows.collect()
    }
}

/// A page.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[kube(
    group = "stellage.dev",
    version = "v1",
    kind = "InvoicePage",
    plural = "invoicepages",
    shortname = "invpage",
    category = "stellage",
    namespaced,
    derive = "PartialEq",
    doc = "Some lines of an Invoice; while that is open, what was metered of instances and backups. Written by the operator alone. To read the lines of an invoice: stellage invoice show NAME",
    printcolumn(name = "Invoice", type_ = "string", json_path = ".spec.invoice"),
    printcolumn(name = "Page", type_ = "integer", json_path = ".spec.number"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct InvoicePageSpec {
    /// UID of the Account.
    #[schemars(length(max = 64))]
    pub account: String,
    /// Name of the Invoice.
    #[schemars(length(max = 63))]
    pub invoice: String,
    /// Number of the page, beginning with 1.
    #[schemars(extend("format" = "int32"))]
    pub number: u32,
    /// What was metered, while the invoice is open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_ENTRIES))]
    pub entries: Vec<LedgerEntry>,
    /// The lines, once the invoice is about to be issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_ENTRIES))]
    pub lines: Option<Vec<InvoiceLine>>,
}

impl LedgerEntry {
    /// Its bytes as it is stored, approximately.
    const fn bytes(&self) -> usize {
        300 + 56 * self.changes.len() + 220 * self.backups.len()
    }
}

impl InvoicePage {
    /// The name of a page.
    pub fn name_of(invoice: &str, number: u32) -> String {
        format!("{invoice}-{number:05}")
    }

    /// A page with these entries.
    pub fn open(invoice: &Invoice, number: u32, entries: Vec<LedgerEntry>) -> Self {
        let (account, name) = (invoice.spec.account.as_str(), invoice.name());
        let spec = InvoicePageSpec {
            account: account.to_owned(),
            invoice: name.to_owned(),
            number,
            entries,
            lines: None,
        };
        let mut page = Self::new(&Self::name_of(name, number), spec);
        page.metadata.namespace.clone_from(&invoice.metadata.namespace);
        let labels = [
            (INVOICE_LABEL, name),
            (ACCOUNT_ORIGIN_LABEL, account),
            (OPEN_LABEL, "true"),
        ];
        page.metadata.labels = Some(
            labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        );
        page
    }

    /// The page with lines in place of its entries.
    #[must_use]
    pub fn with_lines(mut self, lines: Vec<InvoiceLine>) -> Self {
        self.spec.entries = Vec::new();
        self.spec.lines = Some(lines);
        if let Some(labels) = &mut self.metadata.labels {
            labels.remove(OPEN_LABEL);
        }
        self
    }
}

/// Whether these entries of an invoice or a page are too many bytes.
pub fn is_too_large(entries: &[LedgerEntry]) -> bool {
    bytes(entries) > SOFT_BYTES
}

/// Whether there is room for one more entry beside these.
pub fn has_room(entries: &[LedgerEntry], one_more: &LedgerEntry) -> bool {
    entries.len() < MAX_ENTRIES && bytes(entries) + one_more.bytes() <= SOFT_BYTES
}

fn bytes(entries: &[LedgerEntry]) -> usize {
    entries.iter().map(LedgerEntry::bytes).sum()
}
