//! Invoices as pages show them.

use crate::console::page::Shown;
use api::{InvoiceLine, InvoiceStatus};

pub type Invoice = Shown<api::Invoice>;

impl Invoice {
    /// A page of its lines.
    pub fn lines(&self) -> &[InvoiceLine] {
        self.lines.as_deref().unwrap_or_default()
    }

    /// Whether it is issued, and so never changes again.
    pub fn is_issued(&self) -> bool {
        self.status == InvoiceStatus::Issued
    }

    pub fn title(&self) -> String {
        match &self.number {
            Some(number) => format!("Invoice {number}"),
            None => "This month".to_owned(),
        }
    }
}
