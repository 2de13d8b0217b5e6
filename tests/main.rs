//! Tests with a real API server, one module per subject. They share one control plane and one operator; a test that kills
//! something, or counts all writes, starts its own. `imports` needs none, because it reads the source.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::too_many_lines,
    clippy::unwrap_used,
    reason = "tests fail by panicking, in functions that tests share too; and tell a story from its beginning to its end"
)]

mod accounts;
mod clients;
mod commands;
mod delivery;
mod docs;
mod examples;
mod facade;
mod imports;
mod instances;
mod kinds;
mod leader;
mod listen;
mod mail;
mod receivers;
mod resilience;
mod support;
mod tenants;
mod webhooks;
mod writes;
