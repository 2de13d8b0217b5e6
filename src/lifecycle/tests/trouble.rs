//! Servers that fail by themselves, providers that fail, and closed gates.

use std::time::Duration;

use InstanceState::{Error, Provisioning, Running, Starting, Stopped};

use super::{
    cloud::Fault,
    world::{World, spec},
};
use crate::{
    lifecycle::{Action, Gate},
    providers::OffCause,
    resources::{
        InstanceState, OperationKind, PowerState,
        conditions::{self, READY, STALLED},
    },
};

#[test]
fn a_guest_that_shuts_itself_down_stays_off_until_a_start_is_requested() {
    for by_toggle in [false, true] {
        let mut world = World::running();
        world.exit(OffCause::GuestShutdown);
        world.settle();
        assert_eq!(world.state(), Some(Stopped));
        let ready = conditions::find(&world.status().conditions, READY)
            .unwrap()
            .clone();
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_str()),
            ("False", "GuestShutdown")
        );
        assert!(conditions::is_true(&world.status().conditions, STALLED));
        if by_toggle {
            world.edit(|spec| spec.power_state = PowerState::Stopped);
            world.settle();
            world.edit(|spec| spec.power_state = PowerState::Running);
        } else {
            world.act(Action::Start);
        }
        world.settle();
        assert_eq!(world.state(), Some(Running));
    }
}

#[test]
fn a_server_that_its_guest_shut_down_and_that_is_lost_while_it_is_rebuilt_is_made_again_and_stays_off() {
    let mut world = World::running();
    world.exit(OffCause::GuestShutdown);
    world.settle();
    world.act(Action::Rebuild);
    world.lose_server();
    world.settle();
    assert_eq!((world.state(), world.cloud.servers.len()), (Some(Stopped), 1));
    assert!(conditions::is_true(&world.status().conditions, STALLED));
    world.act(Action::Start);
    world.settle();
    assert_eq!(world.state(), Some(Running));
}

#[test]
fn a_server_that_crashes_is_started_again() {
    let mut world = World::running();
    world.exit(OffCause::Crashed);
    assert_eq!(world.path(), [Starting, Running]);
}

#[test]
fn error_is_shown_past_the_deadline_and_clears_by_itself() {
    let mut world = World::new(spec());
    world.pass();
    world.fault(Fault::Unreachable);
    world.wait(Duration::from_secs(14 * 60));
    world.pass();
    assert_eq!(world.state(), Some(Provisioning));
    world.wait(Duration::from_secs(60));
    world.pass();
    assert_eq!(world.state(), Some(Error));
    assert!(conditions::is_true(&world.status().conditions, STALLED));
    world.fault(Fault::None);
    world.settle();
    assert_eq!(world.state(), Some(Running));
    assert!(conditions::is_true(&world.status().conditions, READY));
    assert_eq!(world.cloud.made, 1);
}

#[test]
fn from_a_failed_creation_every_allowed_operation_leads_on_once_the_provider_recovers() {
    for (action, end) in [
        (Action::Start, Running),
        (Action::Reboot, Running),
        (Action::Rebuild, Running),
        (Action::PowerOff, Stopped),
    ] {
        assert!(action.allowed_from().contains(&Error));
        let mut world = World::new(spec());
        world.pass();
        world.fault(Fault::Fails);
        world.pass();
        assert_eq!(world.state(), Some(Error));
        world.fault(Fault::None);
        world.act(action);
        world.settle();
        assert_eq!(world.state(), Some(end), "{action:?}");
    }
}

#[test]
fn a_server_that_was_stopped_before_it_was_created_is_created_by_the_first_start() {
    let mut world = World::new(spec());
    world.pass();
    world.fault(Fault::Fails);
    world.pass();
    world.fault(Fault::None);
    world.act(Action::PowerOff);
    world.settle();
    world.act(Action::Start);
    world.settle();
    assert_eq!((world.state(), world.cloud.made), (Some(Running), 1));
}

#[test]
fn a_closed_gate_starts_nothing_says_why_and_goes_on_once_open() {
    let cases = [
        (
            Gate::NoAccount("namespace x belongs to no Account".into()),
            "NoAccount",
        ),
        (
            Gate::InvalidSpec("spec.image x is not available".into()),
            "InvalidSpec",
        ),
    ];
    for (gate, reason) in cases {
        let mut world = World::new(spec());
        world.set_gate(gate.clone());
        world.settle();
        assert_eq!(
            (world.state(), world.status().operation, world.cloud.steps),
            (None, None, 0)
        );
        let conditions = world.status().conditions;
        assert_eq!(conditions::find(&conditions, READY).unwrap().reason, reason);
        assert!(conditions::is_true(&conditions, STALLED));
        world.set_gate(Gate::Open);
        world.settle();
        assert_eq!(world.state(), Some(Running));

        // In the middle of an operation.
        world.act(Action::Reboot);
        world.pass();
        world.set_gate(gate);
        world.wait(Duration::from_secs(3600));
        assert_eq!(world.status().operation.unwrap().kind, OperationKind::Reboot);
        world.set_gate(Gate::Open);
        world.settle();
        assert_eq!((world.state(), world.cloud.boots), (Some(Running), 2));
    }
}

#[test]
fn an_operation_that_replaces_a_failing_one_in_the_same_millisecond_is_another_one() {
    let mut world = World::running();
    world.act(Action::Rebuild);
    world.fault(Fault::Fails);
    world.pass();
    world.pass();
    assert_eq!(world.state(), Some(Error));
    let first = world.status().operation.unwrap();
    world.edit(|spec| spec.image = "debian-12".into());
    world.pass();
    let second = world.status().operation.unwrap();
    assert_eq!(
        (first.kind, second.kind),
        (OperationKind::Rebuild, OperationKind::Rebuild)
    );
    assert_ne!(first.started_at, second.started_at);
}
