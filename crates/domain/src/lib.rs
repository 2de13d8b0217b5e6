//! What to do next, as pure functions: with every kind, a decision is made from its spec, its status, what was observed and the time.
//!
//! - [`account`], [`instance`], [`backup`], [`webhook`], [`delivery`], [`alert`], [`invoice`]: one module for each kind that something is decided about;
//! - [`event`]: the bodies of events, and the outbox;
//! - [`provider`]: what a provider reports;
//! - [`catalogue`]: what can be ordered, and what it costs;
//! - [`nonce`]: times that request an action once;
//! - [`fair_queue`]: a queue in which accounts take turns.

pub mod account;
pub mod alert;
pub mod backup;
pub mod catalogue;
pub mod delivery;
pub mod event;
pub mod fair_queue;
pub mod instance;
pub mod invoice;
pub mod nonce;
pub mod provider;
pub mod webhook;

pub use fair_queue::FairQueue;
