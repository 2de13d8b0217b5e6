//! Deliveries: what a webhook is sent, and how.

pub mod signature;
