//! What goes into a decision, and what comes out of it.

use std::time::Duration;

use crate::{
    events::payload::User,
    providers::{Addresses, Observation, ProviderError},
    resources::InstanceStatus,
};

/// Who is told of events, and which of them every webhook has.
#[derive(Clone, Copy)]
pub struct Audience<'a> {
    /// The account holder; without one nobody is told.
    pub user: Option<&'a User>,
    /// Whether nothing is left to do for the outbox entry with this id.
    pub is_settled: &'a dyn Fn(&str) -> bool,
}

/// Whether the instance may be worked on at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It may.
    Open,
    /// Its namespace belongs to no Account; the text says so.
    NoAccount(String),
    /// Its spec asks for what cannot be had; the text names field and fix.
    InvalidSpec(String),
}

/// What is known of the server.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'a> {
    /// The provider was not asked: there is no server yet, or the gate is closed.
    NotAsked(&'a Addresses),
    /// What the provider shows.
    Observed(&'a Observation),
    /// The provider call failed.
    Failed(&'a ProviderError),
}

/// A line for `kubectl describe`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Warning rather than Normal.
    pub warning: bool,
    /// CamelCase reason.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// What to do now.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The status to write, if it differs from the one that is there.
    pub status: InstanceStatus,
    /// The transitions, to be told once the status is written.
    pub notes: Vec<Note>,
    /// When to look again if nothing happens until then.
    pub recheck_after: Option<Duration>,
    /// The provider could not do it: look again with growing delays.
    pub retry: bool,
    /// The server is gone: the finalizer may go.
    pub finished: bool,
}

/// What keeps an operation from being done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) reason: &'static str,
    pub(super) message: String,
}
