//! The controllers: one folder a kind, with the pure decision apart from the I/O.

pub mod instance;
