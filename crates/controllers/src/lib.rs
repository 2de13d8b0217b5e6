//! The controllers observe, have [`domain`] decide, and write: one folder for each kind or task. What connects them is passed to their
//! constructors.
//!
//! - [`account`]: gives each Account its namespace, quota and RoleBinding;
//! - [`instance`]: reconciles instances, one provider step at a time, and records their events;
//! - [`network`]: makes private networks, and gives addresses in them;
//! - [`backup`]: makes, keeps and deletes backups;
//! - [`invoice`]: keeps the ledger of each account, and issues its invoices; [`ledger`]: what the others need to know about that;
//! - [`census`]: counts objects for the metrics;
//! - [`monitoring`]: samples the usage of servers;
//! - [`webhook`]: keeps the status of webhooks; `delivery` sends them the events and keeps the records, `event_log` logs the events, and
//!   `secrets` has what signs them;
//! - [`notifier`]: tells account holders by e-mail what is wrong with their webhooks, in the words of [`mail`], which sends them;
//! - `provider_call`, `finalizers`: calls of the provider and writes of finalizers, for all.

pub mod account;
pub mod api_key;
pub mod backup;
pub mod census;
mod delivery;
mod event_log;
mod finalizers;
pub mod instance;
pub mod invoice;
pub mod ledger;
pub mod mail;
pub mod monitoring;
pub mod network;
pub mod notifier;
mod provider_call;
mod secrets;
#[cfg(test)]
mod tests;
pub mod webhook;
