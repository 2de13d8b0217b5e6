//! Delivering events: what is sent when, signed, past every guard, and again until it arrives.

pub mod dispatch;
pub mod schedule;
pub mod signature;
