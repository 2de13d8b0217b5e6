//! Invoices as `/v1` shows them.

use serde::Deserialize;

use crate::console::text::{Moment, Money};

/// An invoice.
#[derive(Debug, Deserialize)]
pub struct Invoice {
    /// Identifier; `None` if there is nothing to bill yet.
    pub id: Option<String>,
    /// Its number; `None` until it is issued.
    pub number: Option<String>,
    /// `open` or `issued`.
    pub status: String,
    /// The time that it covers.
    pub period: Period,
    /// When it was issued.
    pub issued_at: Option<Moment>,
    /// The day on which it is due.
    pub due_date: Option<String>,
    /// The sum of the lines.
    pub net: Money,
    /// The tax on it.
    pub tax: Money,
    /// The sum of both.
    pub amount: Money,
    /// Number of lines.
    pub lines_count: usize,
    /// A page of the lines; only in a single invoice.
    #[serde(default)]
    pub lines: Vec<Line>,
}

/// The time that an invoice covers.
#[derive(Debug, Deserialize)]
pub struct Period {
    /// The first moment.
    pub from: Moment,
    /// The first moment after it.
    pub to: Moment,
}

/// The charges for one instance or backup in the period.
#[derive(Debug, Deserialize)]
pub struct Line {
    /// Identifier of the instance.
    pub instance_id: String,
    /// Identifier of the backup, if the line is about one.
    pub backup_id: Option<String>,
    /// Display name.
    pub name: String,
    /// Hours by plan and price.
    pub hours: Vec<Charge>,
    /// The amount to be paid.
    pub amount: Money,
}

/// Hours at one price.
#[derive(Debug, Deserialize)]
pub struct Charge {
    /// The plan.
    pub plan: String,
    /// Number of hours.
    pub hours: u64,
    /// Price of an hour.
    pub unit_price: Money,
}

impl Invoice {
    /// Whether it is issued, and so never changes again.
    pub fn is_issued(&self) -> bool {
        self.status == "issued"
    }

    /// Its title.
    pub fn title(&self) -> String {
        match &self.number {
            Some(number) => format!("Invoice {number}"),
            None => "This month".to_owned(),
        }
    }
}
