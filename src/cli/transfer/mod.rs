//! `stellage export` and `stellage import`: all accounts of an installation and what they have, through a file.
//!
//! `file` is the format, `kinds` what is in it, `lease` keeps operators from working meanwhile.

mod export;
mod file;
mod import;
mod kinds;
mod lease;

pub use export::ExportArgs;
pub(super) use export::run as export;
pub use import::ImportArgs;
pub(super) use import::run as import;
pub(super) use lease::IMPORT;
