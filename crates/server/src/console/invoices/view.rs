//! Invoices as pages show them.

use crate::console::page::Shown;
use api::{InvoiceLine, InvoiceStatus, Party};

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

    /// The seller and the buyer, as far as they are known.
    pub fn parties(&self) -> Vec<(&'static str, &Party)> {
        let both = [("Seller", &self.seller), ("Buyer", &self.buyer)];
        both.into_iter()
            .filter(|(_, party)| !party.name.is_empty())
            .collect()
    }

    /// Whether it says what an e-invoice needs.
    pub fn has_e_invoice(&self) -> bool {
        let needed = [&self.seller.country, &self.seller.vat_id, &self.buyer.country];
        self.is_issued() && needed.into_iter().all(Option::is_some)
    }

    pub fn title(&self) -> String {
        match &self.number {
            Some(number) if self.corrects.is_none() => format!("Invoice {number}"),
            Some(number) => format!("Credit note {number}"),
            None => "This month".to_owned(),
        }
    }
}
