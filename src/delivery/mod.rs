//! Deliveries: how events get to their receivers.

pub mod schedule;
