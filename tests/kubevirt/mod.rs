//! Real servers through KubeVirt: its own API server and controller, with the node played by a puppet (`support::kubevirt`).
//!
//! - `plane`: what KubeVirt does that the provider is built on;
//! - `installation`: Stellage with a region there;
//! - `namespaces`: those of servers;
//! - `servers`: what becomes of servers.

mod installation;
mod namespaces;
mod plane;
mod servers;
