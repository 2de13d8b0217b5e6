//! Tests with a real API server, one module per subject. They share one control plane and one operator; a test that kills
//! something, or counts all writes, starts its own. `imports` needs none, because it reads the source.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::similar_names,
    clippy::too_many_lines,
    clippy::unwrap_used,
    reason = "tests fail by panicking, in functions that tests share too; and tell a story from its beginning to its end"
)]

// Tests start in the order of their names. Tests that start their own control planes take longest and wait for each other, so
// their modules have names that sort first.
#[path = "browser/mod.rs"]
mod a_browser;
#[path = "chart/mod.rs"]
mod a_chart;
#[path = "high_availability.rs"]
mod a_high_availability;
#[path = "key_use.rs"]
mod a_key_use;
#[path = "listen.rs"]
mod a_listen;
#[path = "local_run.rs"]
mod a_local_run;
#[path = "metrics.rs"]
mod a_metrics;
#[path = "monitoring.rs"]
mod a_monitoring;
#[path = "resilience.rs"]
mod a_resilience;
#[path = "restore.rs"]
mod a_restore;
#[path = "traces.rs"]
mod a_traces;
#[path = "transfer.rs"]
mod a_transfer;
#[path = "webhooks/mod.rs"]
mod a_webhooks;
#[path = "writes.rs"]
mod a_writes;

use a_webhooks as webhooks;

mod accounts;
mod all_events;
mod backups;
mod catalogue;
mod clients;
mod commands;
mod console;
mod console_oidc;
mod delivery;
mod docs;
mod doctor;
mod examples;
mod facade;
mod imports;
mod instances;
mod invoices;
mod kinds;
mod leader;
mod mail;
mod receivers;
mod support;
mod tenants;
// Last, because by then the other tests have logged the most.
#[path = "logs.rs"]
mod z_logs;
