//! What to do next, as pure functions of spec, status, what was observed, and the time.
//!
//! - [`account`], [`instance`], [`network`], [`backup`], [`webhook`], [`delivery`], [`alert`], [`invoice`]: what is decided about each;
//! - [`event`]: the bodies of events, and the outbox;
//! - [`provider`]: what a provider reports;
//! - [`catalogue`]: what can be ordered, and what it costs;
//! - [`user_data`]: what a new server does at its first boot;
//! - [`nonce`]: times that request an action once;
//! - [`FairQueue`]: a queue in which accounts take turns.

pub mod account;
pub mod alert;
pub mod backup;
pub mod catalogue;
pub mod delivery;
pub mod event;
mod fair_queue;
pub mod instance;
pub mod invoice;
pub mod network;
pub mod nonce;
pub mod provider;
pub mod user_data;
pub mod webhook;

pub use fair_queue::FairQueue;
