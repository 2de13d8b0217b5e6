//! The controllers: one folder a kind, with the pure decision apart from the calls that act on it.

pub mod account;
pub mod instance;
pub mod webhook;
