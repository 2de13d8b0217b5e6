//! Webhooks: what a change of one writes, how healthy its deliveries are, and its test events.

mod change;
mod example;
mod health;
mod secret;

pub use change::WebhookChange;
pub use example::{Untestable, example, example_type};
pub use health::{Complaint, Health, health};
pub use secret::SecretChange;
