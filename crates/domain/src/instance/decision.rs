//! Input and output of a decision.

use std::time::Duration;

use jiff::Timestamp;

use crate::{
    alert::evaluation::Findings,
    event::payload::User,
    provider::{Addresses, Observation, ProviderError},
};
use resources::{InstanceStatus, Operation, Refusal};

/// Whose events to record, and which of them are settled.
#[derive(Clone, Copy)]
pub struct Audience<'a> {
    /// The account holder; without one no events are recorded.
    pub user: Option<&'a User>,
    /// Whether nothing is left to do for the outbox entry with this id.
    pub is_settled: &'a dyn Fn(&str) -> bool,
    /// Whether other writes go first, so that settled events may stay in the outbox for longer.
    pub may_wait: bool,
    /// Whether a backup of the instance is in progress. Its failure is reported before the deletion of the instance.
    pub is_backed_up_now: bool,
    /// What the samples of the server's usage mean for its alerts, if there are any.
    pub findings: Option<&'a Findings>,
    /// Whether the server is billed from when it first runs.
    pub is_billed: bool,
}

/// Whether the instance may be reconciled at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It may be reconciled.
    Open,
    /// Its namespace belongs to no Account; the text is the message for the conditions.
    NoAccount(String),
    /// Its spec is invalid or not available.
    InvalidSpec(Refusal),
    /// It has been accepted, but the catalogue no longer has its region, so nothing is concluded about its server; the text is the
    /// message for the conditions.
    NoRegion(String),
    /// It has been accepted, and everything that its spec asks for is done, except for what is refused.
    InPart(Refused),
}

/// What is refused to an accepted instance, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// To install what its spec has since asked for.
    pub installation: Option<Refusal>,
    /// The plan of its spec.
    pub plan: Option<Refusal>,
    /// To run.
    pub power: Option<Refusal>,
}

static NOTHING: Refused = Refused {
    installation: None,
    plan: None,
    power: None,
};

impl Refused {
    /// The gate of an accepted instance to which this is refused.
    pub fn gate(self) -> Gate {
        if self == NOTHING {
            Gate::Open
        } else {
            Gate::InPart(self)
        }
    }
}

impl Gate {
    /// Whether an instance with this status is reconciled, at least in part.
    pub const fn is_open(&self, status: &InstanceStatus) -> bool {
        match self {
            Self::Open => true,
            Self::InPart(_) => status.state.is_some(),
            Self::NoAccount(_) | Self::InvalidSpec(_) | Self::NoRegion(_) => false,
        }
    }

    /// What is refused to an accepted instance; `None` if nothing is decided about it.
    pub(super) fn refused(&self) -> Option<&Refused> {
        match self {
            Self::Open => Some(&NOTHING),
            Self::InPart(refused) => Some(refused),
            Self::NoAccount(_) | Self::InvalidSpec(_) | Self::NoRegion(_) => None,
        }
    }
}

/// What is known about the server.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'a> {
    /// The provider was not asked: there is no server yet, or the gate is closed.
    NotAsked(&'a Addresses),
    /// The provider's observation.
    Observed(&'a Observation),
    /// The provider call failed.
    Failed(&'a ProviderError),
}

/// A Kubernetes Event to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether its type is Warning; else it is Normal.
    pub warning: bool,
    /// CamelCase reason.
    pub reason: &'static str,
    /// Message for people.
    pub message: String,
    /// Whether it announces the start of an operation, which is not worth reporting once the operation has ended.
    pub begins: bool,
}

/// The Kubernetes Events of decisions that are stored together.
#[derive(Clone, Debug, Default)]
pub struct Notes(Vec<Note>);

impl Notes {
    /// Adds the notes of a decision that followed another one, which had this `operation`. If that operation has ended
    /// in the meantime, only its end is reported.
    pub fn add(&mut self, operation: Option<&Operation>, decision: &Decision) {
        if decision.status.operation.as_ref() != operation {
            self.0.retain(|note| !note.begins);
        }
        self.0.extend_from_slice(&decision.notes);
    }
}

impl IntoIterator for Notes {
    type Item = Note;
    type IntoIter = std::vec::IntoIter<Note>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// The output of a decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The status to write, if it differs from the current one.
    pub status: InstanceStatus,
    /// Events to publish once the status is written.
    pub notes: Vec<Note>,
    /// When to reconcile again if nothing happens before then.
    pub recheck_after: Option<Duration>,
    /// Whether the provider could not do it, so that the next reconcile comes after a backoff.
    pub retry: bool,
    /// Whether the server is gone, so that the finalizer can be removed.
    pub finished: bool,
    /// Whether an operation begins that may reach the provider before the status is stored. An operation that is done
    /// at once then costs one write.
    pub may_be_stored_later: bool,
    /// The scheduled time for which a backup is to be made before the status is stored.
    pub backup_due: Option<Timestamp>,
}

impl Decision {
    /// When to reconcile again, once the status has been written, if it was `changed`.
    pub fn next(&self, changed: bool) -> Next {
        if self.finished {
            Next::OnChange
        } else if self.retry {
            Next::AfterBackoff
        } else if changed && self.status.operation.is_some() {
            Next::Now
        } else {
            self.recheck_after.map_or(Next::OnChange, Next::After)
        }
    }
}

/// When to reconcile an instance again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At once: an operation has begun or made progress.
    Now,
    /// After this time, if nothing changes before then.
    After(Duration),
    /// After the object's backoff; any other outcome resets it.
    AfterBackoff,
    /// When something changes.
    OnChange,
}
