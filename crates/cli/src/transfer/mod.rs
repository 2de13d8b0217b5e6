//! `stellage export` and `stellage import`: move all accounts of an installation and their objects through a file.
//!
//! `file` is the format, `kinds` lists what is in it, and `lease` keeps operators from working in the meantime.

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
