//! The Kubernetes Events that `kubectl describe` shows.

use super::{
    cloud::Fault,
    world::{World, spec},
};
use crate::{instance::Action, provider::OffCause};
use resources::{Plan, PowerState};

/// A world whose past Events are ignored.
fn from_now_on(mut world: World) -> World {
    world.new_notes();
    world
}

/// The Events from here until nothing more happens.
fn until_settled(world: &mut World) -> Vec<String> {
    world.settle();
    world.new_notes()
}

#[test]
fn the_beginning_and_the_end_of_every_operation_is_told() {
    assert_eq!(
        until_settled(&mut World::new(spec())),
        [
            "Provisioning: the server is being created",
            "Provisioned: the server was created with plan starter and image debian-13 and is running",
        ]
    );
    for (action, world, expected) in [
        (
            Action::Start,
            World::stopped(),
            [
                "Starting: the server is being powered on",
                "Started: the server was powered on and is running",
            ],
        ),
        (
            Action::Stop,
            World::running(),
            [
                "Stopping: the guest has been asked to shut down",
                "Stopped: the server was shut down and is stopped",
            ],
        ),
        (
            Action::PowerOff,
            World::running(),
            [
                "PoweringOff: the power is being cut",
                "PoweredOff: the server was powered off and is stopped",
            ],
        ),
        (
            Action::Reboot,
            World::running(),
            [
                "Rebooting: the server is being rebooted",
                "Rebooted: the server was rebooted with plan starter and is running",
            ],
        ),
        (
            Action::Rebuild,
            World::stopped(),
            [
                "Rebuilding: the server is being reinstalled",
                "Rebuilt: the server was reinstalled with image debian-13 and is stopped",
            ],
        ),
    ] {
        let mut world = from_now_on(world);
        world.act(action);
        assert_eq!(until_settled(&mut world), expected);
    }
    let mut world = from_now_on(World::running());
    world.edit(|spec| spec.plan = Plan::Business);
    assert_eq!(
        until_settled(&mut world),
        [
            "Resizing: the server is changing to another plan",
            "Resized: the server now has plan business and is running",
        ]
    );
    world.delete();
    assert_eq!(
        until_settled(&mut world),
        ["Deleting: the server is being removed"]
    );
}

#[test]
fn the_end_of_an_operation_is_told_before_the_beginning_of_the_next() {
    let mut world = from_now_on(World::running());
    world.act(Action::Reboot);
    world.pass();
    world.edit(|spec| spec.power_state = PowerState::Stopped);
    assert_eq!(
        until_settled(&mut world),
        [
            "Rebooting: the server is being rebooted",
            "Rebooted: the server was rebooted with plan starter and is running",
            "Stopping: the guest has been asked to shut down",
            "Stopped: the server was shut down and is stopped",
        ]
    );
}

#[test]
fn an_operation_that_is_cut_short_has_not_ended_well() {
    let mut world = World::running();
    world.act(Action::Reboot);
    world.pass();
    let mut world = from_now_on(world);
    world.act(Action::PowerOff);
    assert_eq!(
        until_settled(&mut world),
        [
            "PoweringOff: the power is being cut",
            "PoweredOff: the server was powered off and is stopped",
        ]
    );
}

#[test]
fn a_guest_that_ends_by_itself_and_one_that_must_be_forced_are_told() {
    let mut world = from_now_on(World::running());
    world.exit(OffCause::GuestShutdown);
    assert_eq!(
        until_settled(&mut world),
        ["GuestShutdown: the guest shut itself down"]
    );
    let mut world = from_now_on(World::running());
    world.exit(OffCause::Crashed);
    assert_eq!(
        until_settled(&mut world),
        [
            "Warning Crashed: the server crashed",
            "Starting: the server is being powered on",
            "Started: the server was powered on and is running",
        ]
    );
    let mut world = from_now_on(World::running());
    world.fault(Fault::HangsSoftStop);
    world.act(Action::Stop);
    assert_eq!(
        until_settled(&mut world),
        [
            "Stopping: the guest has been asked to shut down",
            "Warning ForcedStop: the guest did not shut down in time, so its power is cut",
            "Stopped: the server was shut down and is stopped",
        ]
    );
}

#[test]
fn trouble_is_told_once_and_so_is_its_end() {
    let mut world = from_now_on(World::running());
    world.fault(Fault::Fails);
    world.act(Action::Reboot);
    for _ in 0..5 {
        world.pass();
    }
    assert_eq!(
        world.new_notes(),
        [
            "Rebooting: the server is being rebooted",
            "Warning RebootFailed: broken",
        ]
    );
    world.fault(Fault::None);
    assert_eq!(
        until_settled(&mut world),
        ["Rebooted: the server was rebooted with plan starter and is running"]
    );
    let servers = world.cloud.servers.clone();
    world.lose_server();
    world.pass();
    world.pass();
    assert_eq!(
        world.new_notes(),
        [
            "Warning ServerMissing: the provider no longer has this server; a start makes it again if its disk is still there, else rebuild or delete the instance"
        ]
    );
    world.cloud.servers = servers;
    world.pass();
    assert_eq!(world.new_notes(), ["Recovered: the server is running again"]);
}

#[test]
fn what_changes_neither_the_state_nor_the_operation_is_not_told() {
    let mut world = from_now_on(World::running());
    let writes = world.writes;
    world.edit(|spec| {
        spec.plan = Plan::Business;
        spec.plan_on_reboot = Some(Plan::Business);
    });
    assert!(until_settled(&mut world).is_empty());
    assert!(world.writes > writes);
}
