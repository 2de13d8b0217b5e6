//! Billing as pure functions (decisions, section 7).
//!
//! - [`metering`]: records in the status of an instance which plans it had in which hours;
//! - [`period`]: periods of invoices;
//! - [`prices`]: which prices were in effect when; [`stored_prices`]: where they are stored;
//! - [`line`](mod@line), [`backup`]: hours and amount of one instance, and of its backups, in one period;
//! - [`total`](mod@total): net amount, tax and total of an invoice;
//! - [`ledger`]: what is written about an account, and when; [`render`]: invoices as documents.
//!
//! All arithmetic uses integers: amounts in cents, unit prices in thousandths of a cent, exact sums in millionths.

pub mod backup;
pub mod ledger;
pub mod line;
pub mod metering;
pub mod period;
pub mod prices;
#[cfg(any(test, feature = "testing"))]
pub mod reference;
pub mod render;
pub mod stored_prices;
#[cfg(test)]
pub(crate) mod tests;
pub mod total;

pub use line::{Billed, Line, line};
pub use period::Period;
pub use prices::PriceHistory;
pub use total::{Total, total};
