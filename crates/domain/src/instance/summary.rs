//! Conditions and Events for a status: conditions for programs and `kubectl wait`, Events for `kubectl describe`.

use jiff::Timestamp;

use super::decision::{Gate, Note};
use crate::provider::{OffCause, Trouble};
use resources::{
    Alert, Instance, InstanceState, InstanceStatus, Operation, OperationKind, Plan, PowerState,
    conditions::{self, Desired, READY, RECONCILING, RESTART_REQUIRED, STALLED},
};

/// The content of the conditions. kstatus readers (Argo CD, Flux) take Reconciling as in progress and Stalled as failed.
struct Summary {
    ready: Option<bool>,
    reconciling: bool,
    stalled: bool,
    reason: &'static str,
    message: String,
}

/// Writes `conditions` and `observedGeneration`.
pub(super) fn describe(
    instance: &Instance,
    gate: &Gate,
    trouble: Option<&Trouble>,
    off_cause: Option<OffCause>,
    status: &mut InstanceStatus,
    now: Timestamp,
) {
    let generation = instance.metadata.generation;
    status.observed_generation = generation;
    let Summary {
        ready,
        reconciling,
        stalled,
        reason,
        message,
    } = summarise(instance, gate, trouble, off_cause, status);
    let list = &mut status.conditions;
    let mut set = |type_, state, message: String| {
        conditions::set(
            list,
            Desired {
                type_,
                status: state,
                reason,
                message,
            },
            generation,
            now,
        );
    };
    let message_if = |holds: bool| if holds { message.clone() } else { String::new() };
    set(RECONCILING, Some(reconciling), message_if(reconciling));
    set(STALLED, Some(stalled), message_if(stalled));
    set(READY, ready, message.clone());
    match status.plan {
        Some(plan)
            if plan != instance.spec.plan
                && instance.spec.plan_on_reboot == Some(instance.spec.plan)
                && status.refused_plan != Some(instance.spec.plan)
                && !reconciling
                && gate.is_open(status) =>
        {
            let message = plan_change_pending(instance.spec.plan, plan);
            let desired = Desired {
                type_: RESTART_REQUIRED,
                status: Some(true),
                reason: "PlanChangePending",
                message,
            };
            conditions::set(&mut status.conditions, desired, generation, now);
        }
        _ => conditions::remove(&mut status.conditions, RESTART_REQUIRED),
    }
}

/// Text about a plan that is not in effect yet, and the one that is.
pub(super) fn plan_change_pending(wanted: Plan, in_effect: Plan) -> String {
    format!(
        "plan {} takes effect at the next reboot, or stop and start; {} is in effect",
        wanted.as_str(),
        in_effect.as_str()
    )
}

fn summarise(
    instance: &Instance,
    gate: &Gate,
    trouble: Option<&Trouble>,
    off_cause: Option<OffCause>,
    status: &InstanceStatus,
) -> Summary {
    let stalled = |reason, message: &str| Summary {
        ready: Some(false),
        reconciling: false,
        stalled: true,
        reason,
        message: message.to_owned(),
    };
    let state = status.state;
    if let Gate::NoRegion(message) = gate {
        return stalled("RegionNotAvailable", message);
    }
    if !instance.is_deleting() {
        match gate {
            Gate::NoAccount(message) => return stalled("NoAccount", message),
            Gate::InvalidSpec(refusal) => return stalled(refusal.cause.reason(), &refusal.message),
            Gate::Open | Gate::InPart(_) | Gate::NoRegion(_) => {}
        }
    }
    if let Some(trouble) = trouble {
        if state == Some(InstanceState::Error) {
            return stalled(trouble.reason, &trouble.message);
        }
        // Without an operation, the server may well match its spec; it is just unknown.
        let ready = if status.operation.is_some() {
            Some(false)
        } else {
            None
        };
        return Summary {
            ready,
            reconciling: true,
            stalled: false,
            reason: trouble.reason,
            message: trouble.message.clone(),
        };
    }
    if let Some(operation) = &status.operation
        && state != Some(InstanceState::Error)
    {
        let forced = if operation.forced {
            "; it did not shut down in time, so its power is cut"
        } else {
            ""
        };
        let (reason, what) = in_progress(operation.kind);
        return Summary {
            ready: Some(false),
            reconciling: true,
            stalled: false,
            reason,
            message: format!("{what}{forced}"),
        };
    }
    let refused = gate.refused().filter(|_| !instance.is_deleting());
    if let Some(refused) = refused
        && let Some(refusal) = refused.installation.as_ref().or(refused.plan.as_ref())
    {
        return stalled(refusal.cause.reason(), &refusal.message);
    }
    if let Some(refusal) = refused.and_then(|refused| refused.power.as_ref())
        && status.suspended
        && state == Some(InstanceState::Stopped)
        && instance.spec.power_state == PowerState::Running
    {
        return stalled(refusal.cause.reason(), &refusal.message);
    }
    match (state, instance.spec.power_state) {
        (Some(InstanceState::Running), _) => good("Running", "the server is running"),
        (Some(InstanceState::Stopped), PowerState::Stopped) => {
            good("Stopped", "the server is stopped, as requested")
        }
        (Some(InstanceState::Stopped), PowerState::Running) => match off_cause {
            Some(OffCause::GuestShutdown) => stalled(
                "GuestShutdown",
                "the guest shut itself down; start it through REST or with a new spec.startRequestedAt",
            ),
            Some(OffCause::Outside) => stalled(
                "StoppedOutside",
                "the server was stopped by its platform's staff; start it through REST or with a new spec.startRequestedAt",
            ),
            _ => stalled(
                "Stopped",
                "the server is stopped; start it through REST or with a new spec.startRequestedAt",
            ),
        },
        _ => stalled("Error", "the last operation failed; it is being retried"),
    }
}

fn good(reason: &'static str, message: &str) -> Summary {
    Summary {
        ready: Some(true),
        reconciling: false,
        stalled: false,
        reason,
        message: message.to_owned(),
    }
}

pub(super) const fn in_progress(kind: OperationKind) -> (&'static str, &'static str) {
    match kind {
        OperationKind::Create => ("Provisioning", "the server is being created"),
        OperationKind::Start => ("Starting", "the server is being powered on"),
        OperationKind::Stop => ("Stopping", "the guest has been asked to shut down"),
        OperationKind::PowerOff => ("PoweringOff", "the power is being cut"),
        OperationKind::Reboot => ("Rebooting", "the server is being rebooted"),
        OperationKind::Resize => ("Resizing", "the server is changing to another plan"),
        OperationKind::Rebuild => ("Rebuilding", "the server is being reinstalled"),
        OperationKind::Delete => ("Deleting", "the server is being removed"),
    }
}

fn end_of(operation: &Operation) -> (&'static str, String) {
    let Operation { plan, image, .. } = operation;
    let plan = plan.as_str();
    match operation.kind {
        OperationKind::Create => (
            "Provisioned",
            format!("the server was created with plan {plan} and image {image}"),
        ),
        OperationKind::Start => ("Started", "the server was powered on".to_owned()),
        OperationKind::Stop => ("Stopped", "the server was shut down".to_owned()),
        OperationKind::PowerOff => ("PoweredOff", "the server was powered off".to_owned()),
        OperationKind::Reboot => ("Rebooted", format!("the server was rebooted with plan {plan}")),
        OperationKind::Resize => ("Resized", format!("the server now has plan {plan}")),
        OperationKind::Rebuild => (
            "Rebuilt",
            format!("the server was reinstalled with image {image}"),
        ),
        OperationKind::Delete => ("Deleted", "the server was removed".to_owned()),
    }
}

/// The operation that has begun.
pub(super) fn begun<'a>(before: &InstanceStatus, after: &'a InstanceStatus) -> Option<&'a Operation> {
    let old = before.operation.as_ref().map(Operation::id);
    after.operation.as_ref().filter(|op| old != Some(op.id()))
}

/// The Event of an alert that has fired.
pub(super) fn fired(alert: &Alert) -> Note {
    let Alert {
        rule,
        metric,
        threshold,
        value,
        ..
    } = alert;
    let since = conditions::whole_seconds(alert.since);
    Note {
        warning: true,
        reason: "AlertTriggered",
        message: format!(
            "{rule}: {} is {value} %, and has been above {threshold} % since {since}",
            metric.as_str()
        ),
        begins: false,
    }
}

/// The Event of a server that went off by itself, and is started again.
const fn went_off(cause: OffCause) -> Option<(&'static str, &'static str)> {
    match cause {
        OffCause::Crashed => Some(("Crashed", "the server crashed")),
        OffCause::Interrupted => Some(("Interrupted", "the platform shut the server down")),
        OffCause::Requested | OffCause::GuestShutdown | OffCause::Outside => None,
    }
}

/// The Events of a transition: for changes of state or operation, and for new trouble. `ended` is the operation that
/// has just ended; `restarted` says why the provider has power-cycled the server by itself.
pub(super) fn notes(
    before: &InstanceStatus,
    after: &InstanceStatus,
    ended: Option<&Operation>,
    trouble: Option<&Trouble>,
    off_cause: Option<OffCause>,
    restarted: Option<OffCause>,
) -> Vec<Note> {
    let mut notes = Vec::new();
    let normal = |reason, message: String| Note {
        warning: false,
        reason,
        message,
        begins: false,
    };
    let warning = |reason, message: String| Note {
        warning: true,
        reason,
        message,
        begins: false,
    };
    let had = conditions::find(&before.conditions, READY).map(|c| (c.reason.as_str(), c.message.as_str()));
    if let Some(trouble) = trouble
        && had != Some((trouble.reason, trouble.message.as_str()))
    {
        notes.push(warning(trouble.reason, trouble.message.clone()));
    }
    if before.state != after.state && before.operation.is_none() {
        match off_cause {
            Some(OffCause::GuestShutdown) => {
                notes.push(normal("GuestShutdown", "the guest shut itself down".to_owned()));
            }
            Some(OffCause::Outside) => notes.push(warning(
                "StoppedOutside",
                "the server was stopped outside of Stellage; it stays off until it is started".to_owned(),
            )),
            Some(cause) => {
                notes.extend(went_off(cause).map(|(reason, message)| warning(reason, message.to_owned())));
            }
            None => {}
        }
    }
    if let Some((reason, message)) = restarted.and_then(went_off) {
        notes.push(warning(reason, format!("{message}; it is running again")));
    }
    let began = begun(before, after);
    // The end of the previous operation comes before the start of the next.
    if let Some(done) = ended {
        let (reason, what) = end_of(done);
        let power = if done.ends_in == PowerState::Running {
            "running"
        } else {
            "stopped"
        };
        notes.push(normal(reason, format!("{what} and is {power}")));
    } else if let (Some(dropped), None, Some(plan)) = (&before.operation, &after.operation, after.plan) {
        let (dropped, plan) = (dropped.plan.as_str(), plan.as_str());
        let message = format!("the change to plan {dropped} is dropped; the server keeps plan {plan}");
        notes.push(normal("ResizeDropped", message));
    } else if before.state == Some(InstanceState::Error) && after.state == Some(InstanceState::Running) {
        notes.push(normal("Recovered", "the server is running again".to_owned()));
    }
    if let Some(operation) = began {
        let (reason, message) = in_progress(operation.kind);
        notes.push(Note {
            begins: true,
            ..normal(reason, message.to_owned())
        });
    }
    let forced = |status: &InstanceStatus| status.operation.as_ref().is_some_and(|op| op.forced);
    if forced(after) && !forced(before) {
        notes.push(warning(
            "ForcedStop",
            "the guest did not shut down in time, so its power is cut".to_owned(),
        ));
    }
    notes
}
