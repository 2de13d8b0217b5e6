//! Real servers through KubeVirt: its own API server and controller, with the node played by a puppet (`support::kubevirt`).
//!
//! - `plane`: what KubeVirt does that the provider is built on;
//! - `installation`: Stellage with a region there;
//! - `servers`: what becomes of servers.

mod installation;
mod plane;
mod servers;
