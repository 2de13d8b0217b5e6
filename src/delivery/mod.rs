//! Delivering events: what is sent when, signed, past every guard, and again until it arrives.
//!
//! What is sent when, without I/O:
//!
//! - [`dispatch`]: the scheduler, from an outbox to attempts and records;
//! - [`schedule`]: the retry ladder;
//! - [`signature`]: the headers of a delivery, signatures among them.
//!
//! Whom it may go to:
//!
//! - [`target`]: what a receiver's URL may be;
//! - [`rules`]: which addresses and names receivers may have; `addresses`: those that none may have.
//!
//! The HTTP client:
//!
//! - [`client`]: one attempt is one POST, whatever the receiver does;
//! - [`resolver`]: looks names up and passes on only allowed addresses; `connector`: dials exactly those, and meters what a
//!   receiver sends; `connect_error`: why there is no connection;
//! - [`attempt`]: what came of an attempt, in words for the account holder.
//!
//! - [`settings`]: the flags of all of it.
//!
//! The client is built on hyper and not, as elsewhere, on reqwest, which bounds neither of two things that a hostile receiver
//! decides: the head of an HTTP/1.1 answer, and the bytes that come on a connection.

mod addresses;
pub mod attempt;
pub mod client;
mod connect_error;
mod connector;
pub mod dispatch;
pub mod resolver;
pub mod rules;
pub mod schedule;
pub mod settings;
pub mod signature;
pub mod target;

pub use attempt::{AttemptError, AttemptOutcome, RetryAfter};
pub use client::{ClientError, ClientSettings, ReceiverClient};
pub use rules::{Forbidden, TargetRules};
pub use schedule::RetrySchedule;
pub use settings::{DeliverySettings, ReceiverSettings};
pub use target::{ReceiverUrl, UrlError};
