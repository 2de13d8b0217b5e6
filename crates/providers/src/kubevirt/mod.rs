//! Servers that are virtual machines of KubeVirt, in a cluster of their region.
//!
//! - [`names`]: names, labels and annotations, and the identity of operations;
//! - [`slim`]: what is read of KubeVirt's objects;
//! - [`plan`](mod@plan): what to do next; pure.

pub mod names;
pub mod plan;
pub mod slim;
