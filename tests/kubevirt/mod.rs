//! Real servers through KubeVirt: its own API server and controller, with the node played by a puppet (`support::kubevirt`).
//!
//! - `plane`: what KubeVirt does that the provider is built on.

mod plane;
