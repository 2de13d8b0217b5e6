//! Accounts as pure functions: who gets a namespace (decisions, section 1), and what an Account that is deleted takes with it.
//!
//! - [`claim()`]: what to do about a namespace that one or more Accounts claim;
//! - [`removal()`], [`in_the_way()`]: what to do about an Account that is being deleted, and what holds it back;
//! - [`status()`]: the status to write.

mod decide;

pub use decide::{
    Claim, Claimant, Contents, NamespaceRefusal, NamespaceView, Outcome, Removal, claim, copy_of, enumerated,
    in_the_way, in_use, removal, set_mail, status,
};
