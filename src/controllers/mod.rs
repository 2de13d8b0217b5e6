//! The controllers: one folder a kind, with the pure decision apart from the calls that act on it. They know nothing of each
//! other but whose namespace is whose; what else passes between them, they are given.
//!
//! - [`account`]: gives each Account its namespace, quota and rights;
//! - [`instance`]: carries instances on, one provider step at a time, and records their events;
//! - [`webhook`]: has these events delivered, and keeps the records.

pub mod account;
pub mod instance;
pub mod webhook;
