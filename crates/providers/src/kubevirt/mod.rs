//! Servers that are virtual machines of KubeVirt, in a cluster of their region.
//!
//! - `cluster`: the cluster of a region, and the shell that makes the calls; `console`: the consoles of servers, with other rights;
//! - [`names`]: names, labels and annotations, and the identity of operations;
//! - [`slim`]: what is read of KubeVirt's objects;
//! - [`objects`]: what is written;
//! - [`plan`](mod@plan): what to do next; pure;
//! - [`backup`]: what to do next about a backup; pure; [`network`]: about a private network;
//! - `namespace`: the namespaces of servers; pure;
//! - [`trial`]: a server without an Instance, for a test of the region;
//! - [`observe`]: what the objects of a server say about it; pure;
//! - `usage`: what its servers use.

pub mod backup;
pub(crate) mod cluster;
pub(crate) mod console;
pub mod names;
mod namespace;
pub mod network;
pub mod objects;
pub mod observe;
pub mod plan;
pub mod slim;
pub mod trial;
pub(crate) mod usage;

pub use cluster::ConnectError;
pub use usage::{Known, known};

#[cfg(test)]
mod model;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
