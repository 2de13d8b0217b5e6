//! Takes events from outboxes and delivers them to webhooks. The dispatcher ([`domain::delivery`]) decides what to do; this folder does
//! the I/O.
//!
//! - `initial_state`: loads the state that a new leader starts with; `listeners`: passes changes from the watches to the dispatcher;
//! - `outboxes`: takes over events from the objects that have them;
//! - `lookup`: makes sure that no event misses a webhook;
//! - `worker`: carries out the dispatcher's commands; `send`: makes one attempt;
//! - `write_queue`: the queue of writes of Deliveries; `store`: carries out a write;
//! - `resend`: completes requests to send a delivery from the event log again; `resend_queue`: the queue of these requests;
//! - `retention`: deletes old finished Deliveries; `finished`: lists and deletes them.

pub(crate) mod finished;
pub(crate) mod initial_state;
pub(crate) mod listeners;
pub(crate) mod lookup;
mod outboxes;
pub(crate) mod resend;
mod resend_queue;
pub(crate) mod retention;
mod send;
pub(crate) mod store;
pub(crate) mod worker;
mod write_queue;

pub(crate) use initial_state::Opening;
pub(crate) use outboxes::Outboxes;
pub use outboxes::Source;
pub(crate) use resend_queue::Requests;
