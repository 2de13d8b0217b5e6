//! Servers that are virtual machines of KubeVirt, in a cluster of their region.
//!
//! - `cluster`: the cluster of a region, and the shell that makes the calls; `console`: the consoles of servers, with other rights;
//! - [`names`]: names, labels and annotations, and the identity of operations;
//! - [`slim`]: what is read of KubeVirt's objects;
//! - [`objects`]: what is written;
//! - [`plan`](mod@plan): what to do next; pure;
//! - [`observe`]: what the objects of a server say about it; pure.

pub(crate) mod cluster;
pub(crate) mod console;
pub mod names;
pub mod objects;
pub mod observe;
pub mod plan;
pub mod slim;

#[cfg(test)]
mod model;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
