//! Tests of the dispatcher against a simulated API server and receivers.

mod any_order;
mod bounds;
mod clocks;
mod costs;
mod event_log;
mod fairness;
mod ladder;
mod races;
mod receipts;
mod records;
mod requests;
mod webhooks;
mod world;
