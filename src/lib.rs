//! Stellage turns a Kubernetes cluster into a small cloud: instances through a REST API or `kubectl apply`.
//!
//! The modules from top to bottom; each names only what is below it (a test, `tests/imports.rs`, keeps it so):
//!
//! - [`serve`] puts the parts together for `stellage run`, `api` and `controller`, as the flags in [`settings`] say;
//! - [`facade`] answers REST, [`controllers`] carry out what the kinds ask for, [`cli`] has the other commands;
//! - [`lifecycle`] decides what happens to an instance next, [`delivery`] what is sent to a receiver when, and sends it; [`mail`]
//!   tells account holders;
//! - [`events`] has the bodies of events, [`providers`] make servers real, [`catalogue`] says what can be had, [`runtime`] is what
//!   all parts stand on: watches, leader election, clock, metrics;
//! - [`resources`] are the kinds.

pub mod catalogue;
pub mod cli;
pub mod controllers;
pub mod delivery;
pub mod events;
pub mod facade;
pub mod lifecycle;
pub mod mail;
pub mod providers;
pub mod resources;
pub mod runtime;
pub mod serve;
pub mod service;
pub mod settings;
