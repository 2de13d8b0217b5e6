//! Real servers through KubeVirt: its own API server and controller, with the node played by a puppet (`support::kubevirt`).
//!
//! - `plane`: what KubeVirt does that the provider is built on;
//! - `consoles`: the consoles of servers;
//! - `installation`: Stellage with a region there;
//! - `servers`: what becomes of servers.

mod consoles;
mod installation;
mod plane;
mod servers;
