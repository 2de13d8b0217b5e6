//! Normal and hostile receivers on loopback, and a DNS server. Nothing here needs an API server; a bench includes the folder
//! with `#[path]`.
//!
//! - `receiver`: a receiver with configurable responses that records its requests;
//! - `hostile`: receivers that misbehave below HTTP;
//! - `authority`: certificates;
//! - `proxy`: a CONNECT proxy;
//! - `dns`: a DNS server.
//!
//! All certificates are issued by [`Authority::shared`]; the sender under test has to trust its PEM.

#![allow(
    dead_code,
    unused_imports,
    reason = "each who takes this in uses another part"
)]

mod authority;
mod dns;
mod hostile;
mod proxy;
mod receiver;

pub use authority::{Authority, OWN_ADDRESS};
pub use dns::{DnsServer, Reply};
pub use hostile::{Hostile, HostileReceiver, frame};
pub use proxy::{ConnectProxy, Proxying};
pub use receiver::{Answer, Options, Protocols, Received, Receiver};
