//! Stellage turns a Kubernetes cluster into a small cloud: instances through a REST API or `kubectl apply`.
//!
//! The modules from top to bottom; each imports only those below it (`tests/imports.rs` checks this):
//!
//! - [`serve`] connects the parts for `stellage run`, `api` and `controller`, configured by the flags in [`settings`];
//! - [`facade`] serves the REST API and [`console`] the customer console, [`controllers`] reconcile the kinds, [`cli`] has the other commands;
//! - [`service`] is what an account holder can do, independent of HTTP;
//! - [`lifecycle`] decides what happens next to an instance, [`backups`] to a backup, [`monitoring`] samples the usage of instances,
//!   [`billing`] computes what they cost, [`delivery`] schedules and sends events to receivers, [`mail`] notifies account holders;
//! - [`events`] has the bodies of events, [`providers`] run the servers, [`catalogue`] lists what can be ordered, [`runtime`] is
//!   the common infrastructure: watches, leader election, clock, metrics;
//! - [`resources`] are the kinds.

pub mod backups;
pub mod billing;
pub mod catalogue;
pub mod cli;
pub mod console;
pub mod controllers;
pub mod delivery;
pub mod events;
pub mod facade;
pub mod lifecycle;
pub mod mail;
pub mod monitoring;
pub mod providers;
pub mod resources;
pub mod runtime;
pub mod serve;
pub mod service;
pub mod settings;
