//! What account holders use: the REST API and the console, over one service.
//!
//! - [`service`]: everything that an account holder can do, independent of HTTP;
//! - [`facade`]: the REST API;
//! - [`console`]: the customer console, on top of the REST API.

pub mod console;
pub mod facade;
pub mod service;
