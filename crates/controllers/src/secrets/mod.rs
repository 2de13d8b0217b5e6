//! The signing secrets of webhooks.
//!
//! - `reads`: reads them from the API server;
//! - `cache`: caches and validates them;
//! - `unread`: those to read first.

mod cache;
mod reads;
mod unread;

pub(crate) use cache::{SecretProblem, Secrets};
pub(crate) use reads::{NoKeys, keys, poll};
#[cfg(test)]
pub(crate) use reads::{forget_deleted, old};
