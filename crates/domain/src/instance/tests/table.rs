//! The table in the decisions, section 3, checked against what the controller writes.

use InstanceState::{
    Deleting, Error, Provisioning, Rebooting, Rebuilding, Resizing, Running, Starting, Stopped, Stopping,
};

use resources::{InstanceState, InstanceStatus, OperationKind, PowerState};

/// Where an operation ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    On,
    Off,
    /// As `spec.powerState` says.
    AsAsked,
    /// As before the operation.
    AsBefore,
    /// Without a server.
    Gone,
}

struct Row {
    kind: OperationKind,
    /// From which states it begins; none for an instance that has no state yet.
    from: &'static [InstanceState],
    /// From which states it also begins with kubectl, whose spec is always accepted and converges.
    from_spec: &'static [InstanceState],
    during: InstanceState,
    end: End,
}

const fn row(
    kind: OperationKind,
    from: &'static [InstanceState],
    from_spec: &'static [InstanceState],
    during: InstanceState,
    end: End,
) -> Row {
    Row {
        kind,
        from,
        from_spec,
        during,
        end,
    }
}

const TABLE: [Row; 8] = [
    row(OperationKind::Create, &[], &[], Provisioning, End::AsAsked),
    row(OperationKind::Start, &[Stopped, Error], &[], Starting, End::On),
    row(OperationKind::Stop, &[Running], &[Error], Stopping, End::Off),
    row(
        OperationKind::PowerOff,
        &[Running, Stopping, Starting, Rebooting, Error],
        // Cuts short a start that was about to undo a stop that was never stored.
        &[Stopped],
        Stopping,
        End::Off,
    ),
    row(
        OperationKind::Reboot,
        &[Running, Error],
        &[Stopped],
        Rebooting,
        End::On,
    ),
    row(
        OperationKind::Resize,
        &[Running, Stopped, Error],
        &[],
        Resizing,
        End::AsBefore,
    ),
    row(
        OperationKind::Rebuild,
        &[Running, Stopped, Error],
        &[],
        Rebuilding,
        End::AsBefore,
    ),
    row(
        OperationKind::Delete,
        &[
            Provisioning,
            Running,
            Stopping,
            Stopped,
            Starting,
            Rebooting,
            Resizing,
            Rebuilding,
            Error,
        ],
        &[],
        Deleting,
        End::Gone,
    ),
];

fn row_of(kind: OperationKind) -> &'static Row {
    TABLE.iter().find(|row| row.kind == kind).unwrap()
}

/// Checks one write. `shown` is the state that the provider's answer leads to, from which the next operation begins.
pub fn check(
    before: &InstanceStatus,
    after: &InstanceStatus,
    shown: Option<InstanceState>,
    asked: PowerState,
) {
    let told = || {
        let brief = |status: &InstanceStatus| {
            format!("{:?}, {:?}, {:?}", status.state, status.power, status.operation)
        };
        format!("{}\nbecame {}", brief(before), brief(after))
    };
    let Some(operation) = &after.operation else {
        if let Some(state) = after.state {
            assert!(matches!(state, Running | Stopped | Error), "{}", told());
        }
        let is_failing_resize =
            |old: &resources::Operation| old.kind == OperationKind::Resize && shown == Some(Error);
        if before.operation.as_ref().is_some_and(is_failing_resize) {
            // It is dropped once the plan in effect is asked for.
            assert_ne!(after.state, Some(Error), "{}", told());
        } else if before.operation.is_some() {
            assert_eq!(after.state, shown, "{}", told());
        }
        return;
    };
    let row = row_of(operation.kind);
    let failing = after.state == Some(Error) && row.kind != OperationKind::Delete;
    assert!(failing || after.state == Some(row.during), "{}", told());
    let is_same = |old: &&_| {
        let old: &resources::Operation = old;
        old.id() == operation.id()
    };
    if let Some(old) = before.operation.as_ref().filter(is_same) {
        assert_eq!(
            (old.ends_in, old.plan, &old.image),
            (operation.ends_in, operation.plan, &operation.image),
            "{}",
            told()
        );
        assert!(operation.forced || !old.forced, "{}", told());
        return;
    }
    assert!(!operation.forced && after.state == Some(row.during), "{}", told());
    match shown {
        None => assert!(
            matches!(operation.kind, OperationKind::Create | OperationKind::Delete),
            "{}",
            told()
        ),
        Some(from) => assert!(
            row.from.contains(&from) || row.from_spec.contains(&from),
            "from {from:?}: {}",
            told()
        ),
    }
    let end = match (row.end, shown) {
        (End::On, _) | (End::AsBefore, Some(Running)) => PowerState::Running,
        (End::Off | End::Gone, _) | (End::AsBefore, Some(Stopped)) => PowerState::Stopped,
        (End::AsAsked | End::AsBefore, _) => asked,
    };
    assert_eq!(operation.ends_in, end, "{}", told());
}

/// The state during an operation.
pub fn during(kind: OperationKind) -> InstanceState {
    row_of(kind).during
}
