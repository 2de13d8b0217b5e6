//! Real servers through KubeVirt: its own API server and controller, with the node played by a puppet (`support::kubevirt`).
//!
//! - `plane`: what KubeVirt does that the provider is built on;
//! - `installation`: Stellage with a region there;
//! - `kills`: what becomes of servers while all that looks after them is killed;
//! - `regions`: several regions, one of which is cut off;
//! - `servers`: what becomes of servers.

mod installation;
mod kills;
mod plane;
mod regions;
mod servers;
