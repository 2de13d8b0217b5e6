//! The controllers together, with an API server in memory and a clock of their own.
//!
//! - `year`: what happens in a simulated year;
//! - `late`: a provider that takes its time to answer;
//! - `operator`: one process of the operator, with a clock that goes from one moment at which there is something to do to the next;
//! - `api_server`: an API server in memory, which fails at times, and at whose writes a process can be killed;
//! - `chronicle`: what must follow from what happened.

mod api_server;
mod chronicle;
mod late;
mod operator;
mod year;
