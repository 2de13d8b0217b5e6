//! The client that sends events to receivers, and protects the cluster from hostile URLs and receivers.
//!
//! - [`signature`]: the headers of a delivery, including its signatures.
//!
//! Allowed receivers:
//!
//! - [`target`]: checks the URL of a receiver;
//! - [`rules`]: which addresses, names and ports are allowed; `addresses`: those that are never public; [`own_ranges`]: those
//!   of the cluster itself; `ports`: those of other protocols.
//!
//! The HTTP client:
//!
//! - [`client`]: makes an attempt, which is one POST;
//! - [`resolver`]: looks up names and returns only allowed addresses; `connector`: dials exactly those, or goes through
//!   a [`proxy`] (`tunnel`), and limits how much a receiver may send; `connect_error`: why a connection failed;
//! - [`answer`]: the status line that counts although the client cannot parse what follows it;
//! - [`attempt`]: the outcome of an attempt, with messages for the account holder; `failure`: those for the errors of libraries.
//!
//! - [`settings`]: the flags for all of this.
//!
//! The client is built on hyper rather than on reqwest, which is used elsewhere, because reqwest limits neither of two
//! things that a hostile receiver controls: the size of a response's HTTP/1.1 head, and the number of bytes on a
//! connection.

mod addresses;
pub mod answer;
pub mod attempt;
pub mod client;
mod connect_error;
mod connector;
mod failure;
pub mod own_ranges;
mod ports;
pub mod proxy;
pub mod resolver;
pub mod rules;
pub mod settings;
pub mod signature;
pub mod target;
mod tunnel;

pub use attempt::{AttemptError, AttemptOutcome, RetryAfter};
pub use client::{ClientError, ClientSettings, ReceiverClient};
pub use own_ranges::OwnRanges;
pub use proxy::ProxyUrl;
pub use rules::{Forbidden, TargetRules};
pub use settings::ReceiverSettings;
pub use target::{ReceiverUrl, UrlError};
