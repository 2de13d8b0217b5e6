//! The operation that a spec requests next.

use std::borrow::Cow;

use jiff::{SignedDuration, Timestamp};

use super::decision::Gate;
use resources::{
    Instance, InstanceSpec, InstanceState, InstanceStatus, Operation, OperationKind, Plan, PowerState,
    instance::RefusedInstallation, origin, times::milliseconds,
};

/// The status as it will be once the controller has seen the spec. The facade shows it after writing a spec.
pub fn project(instance: &Instance, now: Timestamp) -> InstanceStatus {
    let mut status = instance.status.clone().unwrap_or_default();
    note_request(instance, &mut status);
    take_on(instance, &mut status, now);
    status
}

/// Records who asked for the spec, once for each.
fn note_request(instance: &Instance, status: &mut InstanceStatus) {
    if status.observed_generation.is_none() || status.observed_generation != instance.metadata.generation {
        status.last_requested_by = Some(instance.requested_by().to_owned());
    }
}

/// Like [`project`], for an instance whose gate the controller knows.
pub fn project_behind(gate: &Gate, instance: &Instance, now: Timestamp) -> InstanceStatus {
    let mut status = instance.status.clone().unwrap_or_default();
    refuse(instance, &mut status, gate);
    take_on(instance, &mut status, now);
    status
}

/// Whether the spec asks for a restore that has not begun, perhaps because something else is in progress.
pub fn wants_restore(instance: &Instance) -> bool {
    let spec = &instance.spec;
    let is_installed =
        |status: &InstanceStatus| status.provisioned_at.is_some() && !wants_rebuild(spec, status);
    spec.restore_from.is_some()
        && !instance.is_deleting()
        && !instance.status.as_ref().is_some_and(is_installed)
}

/// Records in the status who asked for the spec, and what of it is refused, so that [`take_on`] leaves it out, also in the facade.
pub(super) fn refuse(instance: &Instance, status: &mut InstanceStatus, gate: &Gate) {
    note_request(instance, status);
    let Some(refused) = gate.refused() else { return };
    let spec = &instance.spec;
    status.refused_installation = refused.installation.as_ref().map(|_| installation(spec));
    status.refused_plan = refused.plan.as_ref().map(|_| spec.plan);
    // A server that was off by itself before is not to start afterwards.
    status.suspended = refused.power.is_some() && (status.suspended || !is_off_by_itself(status));
}

/// Whether the server is off although that was not asked for: its guest shut itself down, or somebody outside did.
fn is_off_by_itself(status: &InstanceStatus) -> bool {
    status.operation.is_none()
        && status.power == Some(PowerState::Stopped)
        && status.power_state == Some(PowerState::Running)
}

/// What the spec asks for, without what is refused.
pub(super) fn granted<'a>(spec: &'a InstanceSpec, status: &InstanceStatus) -> Cow<'a, InstanceSpec> {
    let in_effect = status.plan.filter(|_| status.refused_plan == Some(spec.plan));
    if in_effect.is_none() && !status.suspended {
        return Cow::Borrowed(spec);
    }
    let mut spec = spec.clone();
    if let Some(plan) = in_effect {
        (spec.plan, spec.plan_on_reboot) = (plan, None);
    }
    if status.suspended {
        spec.power_state = PowerState::Stopped;
    }
    Cow::Owned(spec)
}

/// The installation that a spec asks for.
fn installation(spec: &InstanceSpec) -> RefusedInstallation {
    RefusedInstallation {
        image: spec.image.clone(),
        restore_from: spec.restore_from.clone(),
        rebuild_requested_at: spec.rebuild_requested_at.clone(),
    }
}

/// The status to show to people: the [`project`]ed one until the controller has seen the spec, then the stored one, which also
/// says whether the controller refused the spec.
pub fn current(instance: &Instance) -> Cow<'_, InstanceStatus> {
    let seen = |status: &&InstanceStatus| {
        status.observed_generation.is_some() && status.observed_generation == instance.metadata.generation
    };
    match instance.status.as_ref().filter(seen) {
        Some(status) => Cow::Borrowed(status),
        // The time matters only to an operation that begins, where it is not shown.
        None => Cow::Owned(project(instance, Timestamp::UNIX_EPOCH)),
    }
}

/// The state and the plan in effect, as account holders see them.
pub fn shown(instance: &Instance) -> (InstanceState, Plan) {
    let status = current(instance);
    (
        status.state.unwrap_or(InstanceState::Provisioning),
        status.plan.unwrap_or(instance.spec.plan),
    )
}

/// Accepts a new instance: begins to create its server. However often this is decided, the operation is the same, so a
/// process that dies before storing it leaves no second server behind.
pub fn accept(instance: &Instance, status: &mut InstanceStatus, now: Timestamp) {
    let spec = &instance.spec;
    echo_all(spec, status);
    begin(status, spec, OperationKind::Create, spec.power_state, now);
    if let Some(operation) = &mut status.operation
        && let Some(created) = origin::created_at(&instance.metadata)
    {
        operation.counted_from = Some(operation.started_at);
        operation.started_at = created;
    }
    status.plan = Some(spec.plan);
    status.image = Some(spec.image.clone());
    status.disk_size_gb = Some(spec.plan.size().disk_gb);
}

/// Begins the next operation that the spec asks for, if the operation in progress allows it; at most one. A nonce is
/// copied to the status when its operation begins. A request that cannot begin yet still differs between spec and
/// status, so it is found again later.
pub fn take_on(instance: &Instance, status: &mut InstanceStatus, now: Timestamp) {
    let granted = granted(&instance.spec, status);
    let spec = &*granted;
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
    // A failing operation is retried, but any other request may replace it.
    let failing = state == InstanceState::Error;
    let power_off = differs(
        spec.power_off_requested_at.as_deref(),
        status.power_off_requested_at.as_deref(),
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
    let is_refused = |refused: &RefusedInstallation| *refused == installation(spec);
    if wants_rebuild(spec, status) && !status.refused_installation.as_ref().is_some_and(is_refused) {
        status.rebuild_requested_at.clone_from(&spec.rebuild_requested_at);
        begin(status, spec, OperationKind::Rebuild, as_before, now);
        return;
    }
    match spec.power_state {
        PowerState::Stopped => want_stopped(spec, status, now),
        PowerState::Running => want_running(spec, status, as_before, failing, now),
    }
    drop_unwanted_resize(spec, status, now);
}

fn want_stopped(spec: &InstanceSpec, status: &mut InstanceStatus, now: Timestamp) {
    // A stop cancels pending requests for a reboot or start.
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
            // The resize power-cycles the server, which also satisfies a request for a reboot.
            status.reboot_requested_at.clone_from(&spec.reboot_requested_at);
        }
        begin(status, spec, OperationKind::Resize, as_before, now);
        return;
    }
    if let Some(operation) = status.operation.as_ref()
        && matches!(operation.kind, OperationKind::Start | OperationKind::Reboot)
        && operation.plan != spec.plan
    {
        // It fails, perhaps because the provider cannot apply that plan, which the spec no longer asks for.
        begin(status, spec, operation.kind, PowerState::Running, now);
        return;
    }
    let start = differs(
        spec.start_requested_at.as_deref(),
        status.start_requested_at.as_deref(),
    ) || status.power_state == Some(PowerState::Stopped);
    if differs(
        spec.reboot_requested_at.as_deref(),
        status.reboot_requested_at.as_deref(),
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

/// Begins an operation. Every operation that boots the server applies the plan of the spec; only one that installs an image
/// applies its image.
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
        // Another operation replaces a failing rebuild; without its nonce in the status, the rebuild begins again afterwards.
        status.rebuild_requested_at = None;
    }
    if status.state == Some(InstanceState::Error) {
        // The power state before the error is unknown, so this operation determines the one to converge to.
        status.power_state = Some(ends_in);
    }
    let begun = Operation {
        kind,
        started_at: milliseconds(now),
        counted_from: None,
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
        // The first operation that boots a server creates it.
        restore_from: spec
            .restore_from
            .clone()
            .filter(|_| installs || boots && status.provisioned_at.is_none()),
        forced: false,
        traceparent: None,
    };
    status.operation = Some(told_apart(begun, status.operation.as_ref()));
    status.state = Some(state_during(kind));
}

/// Makes the operation distinct from the last one, even if both begin in the same millisecond: an operation of the same
/// kind and start time is taken for a repetition.
pub(super) fn told_apart(mut operation: Operation, last: Option<&Operation>) -> Operation {
    if last.is_some_and(|last| last.id() == operation.id()) {
        operation.started_at += SignedDuration::from_millis(1);
    }
    operation
}

fn begin_power_off(status: &mut InstanceStatus, spec: &InstanceSpec, now: Timestamp) {
    status
        .power_off_requested_at
        .clone_from(&spec.power_off_requested_at);
    // The server goes off whatever spec.powerState is; if that is Running, a start follows.
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

fn wants_rebuild(spec: &InstanceSpec, status: &InstanceStatus) -> bool {
    differs(
        spec.rebuild_requested_at.as_deref(),
        status.rebuild_requested_at.as_deref(),
    ) || status.image.as_ref() != Some(&spec.image) && !is_rebuilding(status, spec)
}

/// Whether the plan of the spec is to take effect at once.
fn asks_for_resize(spec: &InstanceSpec, status: &InstanceStatus) -> bool {
    status.plan != Some(spec.plan) && spec.plan_on_reboot != Some(spec.plan)
}

fn wants_resize(spec: &InstanceSpec, status: &InstanceStatus) -> bool {
    match failing_resize(status) {
        Some(resize) => resize.plan != spec.plan && (asks_for_resize(spec, status) || !is_made(status)),
        None => asks_for_resize(spec, status),
    }
}

/// Drops a failing resize that the spec no longer asks for: the plan was set back, or is to wait for a reboot.
fn drop_unwanted_resize(spec: &InstanceSpec, status: &mut InstanceStatus, now: Timestamp) {
    let Some(resize) = failing_resize(status) else {
        return;
    };
    if asks_for_resize(spec, status) || !is_made(status) {
        return;
    }
    match (resize.ends_in, status.power) {
        // It has replaced a start.
        (PowerState::Running, Some(PowerState::Stopped)) => {
            begin(status, spec, OperationKind::Start, PowerState::Running, now);
        }
        (_, power) => {
            status.operation = None;
            status.state = Some(match power {
                Some(PowerState::Stopped) => InstanceState::Stopped,
                Some(PowerState::Running) | None => InstanceState::Running,
            });
        }
    }
}

fn failing_resize(status: &InstanceStatus) -> Option<&Operation> {
    let failing = status.state == Some(InstanceState::Error);
    let resize = |op: &&Operation| failing && op.kind == OperationKind::Resize;
    status.operation.as_ref().filter(resize)
}

/// Whether there is a server.
const fn is_made(status: &InstanceStatus) -> bool {
    status.provisioned_at.is_some()
}

/// Whether a rebuild with the spec's image is already in progress.
fn is_rebuilding(status: &InstanceStatus, spec: &InstanceSpec) -> bool {
    let same = |op: &Operation| op.kind == OperationKind::Rebuild && op.image == spec.image;
    status.operation.as_ref().is_some_and(same)
}

fn differs(asked: Option<&str>, handled: Option<&str>) -> bool {
    asked.is_some() && asked != handled
}

/// The state of an instance during an operation.
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
