//! What to ask the provider before deciding.

use jiff::Timestamp;

use super::{Gate, project_behind};
use resources::{Instance, origin};

/// What to ask the provider about an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Nothing: the instance is not reconciled, or the operation that it asks for is not in its status yet.
    Nothing,
    /// Which addresses it will have, because it is about to be accepted.
    Addresses,
    /// One step of the operation in its status, and the state of its server.
    Step,
}

/// What to ask the provider before [`decide`](super::decide()).
pub fn question(instance: &Instance, gate: &Gate, now: Timestamp) -> Question {
    let status = instance.status.as_ref();
    let is_accepted = status.is_some_and(|status| status.state.is_some());
    match (instance.is_deleting(), is_accepted) {
        // Whom to ask is not known.
        _ if matches!(gate, Gate::NoRegion(_)) => Question::Nothing,
        // It may have a server already.
        (false, false) if *gate == Gate::Open && origin::is_restored(&instance.metadata) => Question::Step,
        (false, false) if *gate == Gate::Open => Question::Addresses,
        (false, true) if status.is_some_and(|status| !gate.is_open(status)) => Question::Nothing,
        (_, false) => Question::Nothing,
        // An operation is decided on before the provider hears of it. Until then there is nothing to ask: a step
        // would continue an operation that is about to be replaced.
        (_, true)
            if status
                .is_some_and(|status| status.operation != project_behind(gate, instance, now).operation) =>
        {
            Question::Nothing
        }
        (_, true) => Question::Step,
    }
}
