//! Receivers on loopback, kind and hostile, and a DNS server that answers as told. Nothing here needs an API server; a bench
//! takes the folder in with `#[path]`.
//!
//! - `receiver`: a receiver that answers as told, and keeps what it receives;
//! - `hostile`: receivers that misbehave below HTTP;
//! - `authority`: certificates;
//! - `dns`: a DNS server.
//!
//! All certificates are from [`Authority::shared`], whose PEM the sender under test has to trust.

#![allow(
    dead_code,
    unused_imports,
    reason = "each who takes this in uses another part"
)]

mod authority;
mod dns;
mod hostile;
mod receiver;

pub use authority::Authority;
pub use dns::{DnsServer, Reply};
pub use hostile::{Hostile, HostileReceiver};
pub use receiver::{Answer, Options, Protocols, Received, Receiver};
