//! The `stellage` program without its arguments: [`serve`] connects the parts for `stellage run`, `api` and `controller`, configured by the
//! flags in [`settings`].

pub mod serve;
pub mod settings;
