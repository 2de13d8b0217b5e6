//! Stellage turns a Kubernetes cluster into a small cloud: instances through a REST API or `kubectl apply`.
//!
//! The modules, in the order in which data flows: a manifest or a request becomes a resource ([`resources`]), the
//! controllers decide ([`lifecycle`]) what to ask of a provider, and write down what it shows.

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
