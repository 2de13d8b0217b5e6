//! Real servers through KubeVirt: its own API server and controller, with the node played by a puppet (`support::kubevirt`).
//!
//! - `backups`: backups and restores, and regions that have none;
//! - `plane`: what KubeVirt does that the provider is built on;
//! - `consoles`: the consoles of servers;
//! - `installation`: Stellage with a region there;
//! - `kills`: what becomes of servers while all that looks after them is killed;
//! - `namespaces`: those of servers;
//! - `networks`: private networks;
//! - `regions`: several regions, one of which is cut off;
//! - `rights`: that Stellage has the rights there that it uses, and no others;
//! - `servers`: what becomes of servers;
//! - `upkeep`: tokens that change, places that are taken, what is left over, and `stellage doctor --test`.

mod backups;
mod consoles;
pub mod installation;
mod kills;
mod namespaces;
mod networks;
mod plane;
mod regions;
mod rights;
mod servers;
mod upkeep;
