//! Tests against a real API server: one module a subject. They share one control plane and one operator; a test that
//! kills something, or counts every write, starts its own.

mod examples;
mod facade;
mod instances;
mod resilience;
mod support;
mod writes;
