//! The event log: what account holders and a new leader read about what was sent.
//!
//! - `pages`: writes and reads the pages;
//! - `retention`: deletes old ones, and `tally` knows when.

mod pages;
pub(crate) mod retention;
mod tally;

pub(crate) use pages::{mentions, unreadable, write};
pub(crate) use tally::LogTally;
