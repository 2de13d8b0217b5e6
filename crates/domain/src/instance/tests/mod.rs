//! The lifecycle against a model of a provider and of time.
//!
//! - `cloud`: a provider that does what it is asked, however unwise;
//! - `world`: one instance, its controller and its provider;
//! - `table`: the table in the decisions, section 3, checked against each write;
//! - `operations`, `events`, `notes`, `trouble`, `backups`, `deletion`, `metering`, `restored`, `refused`: one subject
//!   each;
//! - `history`: random histories.

mod alerts;
mod backups;
mod cloud;
mod deletion;
mod events;
mod history;
mod metering;
mod notes;
mod operations;
mod refused;
mod restored;
mod table;
mod trouble;
mod world;
