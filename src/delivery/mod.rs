//! Deliveries of events to receivers.

mod addresses;
pub mod attempt;
pub mod client;
mod connector;
pub mod resolver;
pub mod rules;
pub mod settings;
pub mod target;

pub use attempt::{AttemptError, AttemptOutcome, RetryAfter};
pub use client::{ClientError, ClientSettings, ReceiverClient};
pub use rules::{Forbidden, TargetRules};
pub use settings::ReceiverSettings;
pub use target::{ReceiverUrl, UrlError};
