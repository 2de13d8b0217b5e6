//! Which operation a spec asks for next.

use jiff::Timestamp;

use crate::resources::{
    Instance, InstanceSpec, InstanceState, InstanceStatus, Operation, OperationKind, PlanChange, PowerState,
};
use crate::runtime::clock::milliseconds;

/// The status as it will be once the controller has seen the spec: what the facade shows after it wrote one.
pub fn project(instance: &Instance, now: Timestamp) -> InstanceStatus {
    let mut status = instance.status.clone().unwrap_or_default();
    take_on(instance, &mut status, now);
    status
}

/// The status to show to people: [`project`]ed only while the controller has not seen the spec. Once it has, the stored status
/// tells what it made of the spec, also if it refused it.
pub fn current(instance: &Instance) -> InstanceStatus {
    let seen = |status: &&InstanceStatus| {
        status.observed_generation.is_some() && status.observed_generation == instance.metadata.generation
    };
    match instance.status.as_ref().filter(seen) {
        Some(status) => status.clone(),
        // The time is only that of an operation that begins, which is not shown.
        None => project(instance, Timestamp::UNIX_EPOCH),
    }
}

/// Takes on an instance that is new.
pub fn accept(instance: &Instance, status: &mut InstanceStatus, now: Timestamp) {
    let spec = &instance.spec;
    echo_all(spec, status);
    begin(status, spec, OperationKind::Create, spec.power_state, now);
    status.plan = Some(spec.plan);
    status.image = Some(spec.image.clone());
    status.disk_size_gb = Some(spec.plan.size().disk_gb);
}

/// Takes on what the spec asks for and the status does not show yet, as far as the operation under way allows: at most
/// one operation begins. Nonces are echoed when their operation begins, for from then on the operation itself is in the
/// status; whatever cannot begin yet stays different from the spec and is found again.
pub fn take_on(instance: &Instance, status: &mut InstanceStatus, now: Timestamp) {
    let spec = &instance.spec;
    if instance.is_deleting() {
        if status
            .operation
            .as_ref()
            .is_none_or(|op| op.kind != OperationKind::Delete)
        {
            begin(status, spec, OperationKind::Delete, PowerState::Stopped, now);
        }
        return;
    }
    let Some(state) = status.state else {
        accept(instance, status, now);
        return;
    };
    // An operation that fails is asked for again and again; meanwhile any request may take its place.
    let failing = state == InstanceState::Error;
    let power_off = differs(
        spec.power_off_requested_at.as_ref(),
        status.power_off_requested_at.as_ref(),
    );
    if let Some(operation) = &status.operation
        && !failing
    {
        let cut_short = matches!(
            operation.kind,
            OperationKind::Start | OperationKind::Stop | OperationKind::Reboot
        );
        if power_off && cut_short {
            begin_power_off(status, spec, now);
        }
        return;
    }
    if power_off {
        if failing || status.power != Some(PowerState::Stopped) {
            begin_power_off(status, spec, now);
            return;
        }
        status
            .power_off_requested_at
            .clone_from(&spec.power_off_requested_at);
    }
    let as_before = if failing {
        spec.power_state
    } else {
        status.power.unwrap_or(spec.power_state)
    };
    if differs(
        spec.rebuild_requested_at.as_ref(),
        status.rebuild_requested_at.as_ref(),
    ) || (status.image.as_ref() != Some(&spec.image)
        && !is_under_way(status, OperationKind::Rebuild, spec))
    {
        status.rebuild_requested_at.clone_from(&spec.rebuild_requested_at);
        begin(status, spec, OperationKind::Rebuild, as_before, now);
        return;
    }
    match spec.power_state {
        PowerState::Stopped => want_stopped(spec, status, now),
        PowerState::Running => want_running(spec, status, as_before, failing, now),
    }
}

fn want_stopped(spec: &InstanceSpec, status: &mut InstanceStatus, now: Timestamp) {
    // Whoever wants the server off wants no reboot and no start of it.
    status.reboot_requested_at.clone_from(&spec.reboot_requested_at);
    status.start_requested_at.clone_from(&spec.start_requested_at);
    let operation = status.operation.as_ref().map(|op| op.kind);
    let stopping = matches!(operation, Some(OperationKind::Stop | OperationKind::PowerOff));
    let newly_wanted = operation.is_some() && status.power_state != Some(PowerState::Stopped);
    if !stopping && (newly_wanted || status.power == Some(PowerState::Running)) {
        begin(status, spec, OperationKind::Stop, PowerState::Stopped, now);
    } else if wants_resize(spec, status) {
        begin(status, spec, OperationKind::Resize, PowerState::Stopped, now);
    }
    status.power_state = Some(PowerState::Stopped);
}

fn want_running(
    spec: &InstanceSpec,
    status: &mut InstanceStatus,
    as_before: PowerState,
    failing: bool,
    now: Timestamp,
) {
    let is_on = status.power == Some(PowerState::Running) && !failing;
    if wants_resize(spec, status) {
        if is_on {
            // The resize power-cycles the server, which is all that a reboot asks for.
            status.reboot_requested_at.clone_from(&spec.reboot_requested_at);
        }
        begin(status, spec, OperationKind::Resize, as_before, now);
        return;
    }
    let start = differs(
        spec.start_requested_at.as_ref(),
        status.start_requested_at.as_ref(),
    ) || status.power_state == Some(PowerState::Stopped);
    if differs(
        spec.reboot_requested_at.as_ref(),
        status.reboot_requested_at.as_ref(),
    ) {
        status.reboot_requested_at.clone_from(&spec.reboot_requested_at);
        status.start_requested_at.clone_from(&spec.start_requested_at);
        begin(status, spec, OperationKind::Reboot, PowerState::Running, now);
    } else if start {
        status.start_requested_at.clone_from(&spec.start_requested_at);
        if !is_on {
            begin(status, spec, OperationKind::Start, PowerState::Running, now);
        }
    }
    status.power_state = Some(PowerState::Running);
}

/// Begins an operation. A plan change comes along with everything that boots the server, an image only with what
/// installs one.
pub(super) fn begin(
    status: &mut InstanceStatus,
    spec: &InstanceSpec,
    kind: OperationKind,
    ends_in: PowerState,
    now: Timestamp,
) {
    let boots = matches!(
        kind,
        OperationKind::Create | OperationKind::Start | OperationKind::Reboot | OperationKind::Resize
    );
    let installs = matches!(kind, OperationKind::Create | OperationKind::Rebuild);
    let replaced = status.operation.as_ref().map(|op| op.kind);
    if replaced == Some(OperationKind::Rebuild) && kind != OperationKind::Rebuild {
        // A failing rebuild gives way, but is not forgotten: its request is found again afterwards.
        status.rebuild_requested_at = None;
    }
    if status.state == Some(InstanceState::Error) {
        // Nobody knows what was before, so what begins now settles what the server is brought to.
        status.power_state = Some(ends_in);
    }
    status.operation = Some(Operation {
        kind,
        started_at: milliseconds(now),
        ends_in,
        plan: if boots {
            spec.plan
        } else {
            status.plan.unwrap_or(spec.plan)
        },
        image: if installs {
            spec.image.clone()
        } else {
            status.image.clone().unwrap_or_else(|| spec.image.clone())
        },
        forced: false,
    });
    status.state = Some(state_during(kind));
}

fn begin_power_off(status: &mut InstanceStatus, spec: &InstanceSpec, now: Timestamp) {
    status
        .power_off_requested_at
        .clone_from(&spec.power_off_requested_at);
    // Off is what the server is brought to, whatever powerState says; where that is Running, a start follows.
    status.power_state = Some(PowerState::Stopped);
    begin(status, spec, OperationKind::PowerOff, PowerState::Stopped, now);
}

fn echo_all(spec: &InstanceSpec, status: &mut InstanceStatus) {
    status.power_state = Some(spec.power_state);
    status.start_requested_at.clone_from(&spec.start_requested_at);
    status
        .power_off_requested_at
        .clone_from(&spec.power_off_requested_at);
    status.reboot_requested_at.clone_from(&spec.reboot_requested_at);
    status.rebuild_requested_at.clone_from(&spec.rebuild_requested_at);
}

fn wants_resize(spec: &InstanceSpec, status: &InstanceStatus) -> bool {
    spec.plan_change == PlanChange::Immediate
        && status.plan != Some(spec.plan)
        && !is_under_way(status, OperationKind::Resize, spec)
}

/// Whether the operation in the status already brings about this very plan and image.
fn is_under_way(status: &InstanceStatus, kind: OperationKind, spec: &InstanceSpec) -> bool {
    status.operation.as_ref().is_some_and(|op| {
        op.kind == kind
            && match kind {
                OperationKind::Rebuild => op.image == spec.image,
                _ => op.plan == spec.plan,
            }
    })
}

fn differs(asked: Option<&String>, handled: Option<&String>) -> bool {
    asked.is_some() && asked != handled
}

/// The state that an operation under way shows as.
pub const fn state_during(kind: OperationKind) -> InstanceState {
    match kind {
        OperationKind::Create => InstanceState::Provisioning,
        OperationKind::Start => InstanceState::Starting,
        OperationKind::Stop | OperationKind::PowerOff => InstanceState::Stopping,
        OperationKind::Reboot => InstanceState::Rebooting,
        OperationKind::Resize => InstanceState::Resizing,
        OperationKind::Rebuild => InstanceState::Rebuilding,
        OperationKind::Delete => InstanceState::Deleting,
    }
}
