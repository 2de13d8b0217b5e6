//! What account holders use: the REST API and the console, over one service.
//!
//! - [`service`]: everything that an account holder can do, independent of HTTP;
//! - [`facade`]: the REST API;
//! - [`console`]: the customer console, on top of the REST API;
//! - [`public_url`]: where clients see both.

pub mod console;
pub mod facade;
pub mod public_url;
pub mod service;
