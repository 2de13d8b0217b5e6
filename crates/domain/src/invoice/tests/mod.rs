//! Property tests: any history of an instance, against a reference that goes through it hour by hour.
//!
//! - `histories`: random histories, billed period by period;
//! - `ledger`: the ledger of an account, with processes that die after any write;
//! - `examples`: invoices that can be checked by hand.

mod examples;
mod histories;
mod ledger;
