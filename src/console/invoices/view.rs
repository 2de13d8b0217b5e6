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
    /// Both together.
    pub amount: Money,
    /// Number of lines.
    pub lines_count: usize,
    /// A page of the lines; only of a single invoice.
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

/// One instance or backup in the period.
#[derive(Debug, Deserialize)]
pub struct Line {
    /// Identifier of the instance.
    pub instance_id: String,
    /// Identifier of the backup, of a line about one.
    pub backup_id: Option<String>,
    /// Display name.
    pub name: String,
    /// Hours by plan and price.
    pub hours: Vec<Charge>,
    /// What is to be paid.
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
    /// Whether it is issued, and never changes any more.
    pub fn is_issued(&self) -> bool {
        self.status == "issued"
    }

    /// What it is called.
    pub fn title(&self) -> String {
        match &self.number {
            Some(number) => format!("Invoice {number}"),
            None => "This month".to_owned(),
        }
    }
}
