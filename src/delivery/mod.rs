//! Delivering events: what is sent when, signed, past every guard, and again until it arrives.

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
