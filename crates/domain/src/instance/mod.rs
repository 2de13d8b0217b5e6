//! The Instance lifecycle as pure functions (decisions, section 3).
//!
//! - [`actions`]: the operations of an account holder: what each changes in the spec, and from which states it is allowed;
//! - [`changed_spec`]: a change of the spec; [`Installation`]: what is installed, an image or a backup;
//! - [`requests`]: the operation that a spec requests next, given a status. The controller writes it into the status, and
//!   the facade shows it before the controller has seen the object, so both agree;
//! - [`decide()`]: the next status, given the provider's observation;
//! - [`has_console()`]: whether its console can be opened;
//! - `decision`: input and output of a decision;
//! - [`question()`]: what to ask the provider before deciding;
//! - [`has_size()`]: what it has of vCPUs, memory and disk, for the account's quotas;
//! - [`explain()`]: why an instance differs from its spec;
//! - `summary`: conditions and Events for a status;
//! - [`user_data`]: the Secret with the user data, and what needs them.

pub mod actions;
mod change;
mod console;
mod decide;
mod decision;
mod explain;
mod installation;
mod question;
pub mod requests;
mod size;
mod summary;
#[cfg(test)]
mod tests;
pub mod user_data;

pub use actions::{Action, NotAllowed};
pub use change::changed_spec;
pub use console::has_console;
pub use decide::{creation_began, decide, is_overdue, tell_missed_backup, visible};
pub use decision::{Audience, Decision, Gate, Next, Note, Notes, Refused, Seen};
pub use explain::{Explanation, explain};
pub use installation::{DoesNotFit, Installation, RestorableBackup, disk_of};
pub use question::{Question, question};
pub use requests::{current, project, project_behind, shown, take_on, wants_restore};
pub use size::{has_size, waits_for_room, will_have_size};
