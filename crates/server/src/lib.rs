//! What account holders use: the REST API and the console, over one service.
//!
//! - [`service`]: everything that an account holder can do, independent of HTTP;
//! - [`facade`]: the REST API;
//! - [`console`]: the customer console, on top of the REST API;
//! - [`console_gateway`]: the consoles of servers, in a process of its own;
//! - [`public_url`]: where clients see them; [`sealing_key`], with `seal`: what they tell each other through clients.

pub mod console;
pub mod console_gateway;
pub mod facade;
pub mod public_url;
mod seal;
pub mod sealing_key;
pub mod service;
