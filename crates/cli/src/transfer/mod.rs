//! `stellage export` and `stellage import`: move all accounts of an installation and their objects through a file. `installation` backs them
//! up into a store, and restores them from there.
//!
//! `file` is the format, `packing` compresses and encrypts it, `store` is where backups are, `kinds` lists what is in a file, and `lease`
//! keeps operators from working in the meantime.

mod export;
mod file;
mod import;
mod installation;
mod kinds;
mod lease;
mod packing;
mod store;

pub use export::ExportArgs;
pub(super) use export::run as export;
pub use import::ImportArgs;
pub(super) use import::run as import;
pub use installation::InstallationCommand;
pub(super) use installation::run as installation;
pub(super) use kinds::is_part_of_account;
pub(super) use lease::{IMPORT, Leadership};
