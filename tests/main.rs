//! Tests with a real API server, one module per subject. They share one control plane and one operator; a test that kills
//! something, or counts all writes, starts its own.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::similar_names,
    clippy::too_many_lines,
    clippy::unwrap_used,
    reason = "tests fail by panicking, in functions that tests share too; and tell a story from its beginning to its end"
)]

mod accounts;
mod all_events;
mod audit;
mod backups;
mod browser;
mod catalogue;
mod chart;
mod clients;
mod commands;
mod console;
mod console_access;
mod console_oidc;
mod delivery;
mod docs;
mod doctor;
mod etcd;
mod examples;
mod facade;
mod game_day;
mod gitops;
mod high_availability;
mod installation_backup;
mod instances;
mod invoices;
mod key_use;
mod kinds;
mod kubevirt;
mod leader;
mod listen;
mod local_run;
mod logs;
mod made_keys;
mod mail;
mod metrics;
mod monitoring;
mod privacy;
mod receivers;
mod resilience;
mod restore;
mod support;
mod suspension;
mod tenants;
mod traces;
mod transfer;
mod uninstall;
mod usage;
mod user_data;
mod versions;
mod webhooks;
mod writes;
