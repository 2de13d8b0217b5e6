//! What is metered: from the first run until the deletion, in writes that happen anyway.

use std::time::Duration;

use super::world::{World, spec};
use crate::instance::Action;
use resources::{Plan, PowerState, metering::Metering};

const DAY: Duration = Duration::from_hours(24);

fn metering(world: &World) -> Metering {
    world.status().metering.unwrap()
}

#[test]
fn an_instance_is_metered_from_its_first_run_on_whatever_its_power_state_without_a_write_of_its_own() {
    let mut world = World::running();
    let begun = metering(&world);
    assert_eq!(begun.since, world.status().started_at.unwrap());
    assert_eq!((begun.changes.len(), begun.changes[0].plan), (1, Plan::Starter));
    let writes = world.writes;
    world.wait(40 * DAY);
    assert_eq!(world.writes, writes, "none an hour");
    world.act(Action::Stop);
    world.settle();
    world.wait(DAY);
    world.act(Action::Start);
    world.settle();
    assert_eq!(metering(&world), begun);
}

#[test]
fn an_instance_that_has_never_run_is_not_metered() {
    let mut off = spec();
    off.power_state = PowerState::Stopped;
    let mut world = World::new(off);
    world.settle();
    world.wait(DAY);
    assert_eq!(world.status().metering, None);
    world.act(Action::Start);
    world.settle();
    assert!(metering(&world).since > world.instance.created_at());
    // Its deletion was accepted before it ran.
    let mut world = World::new(spec());
    world.pass();
    world.delete();
    world.settle();
    assert!(world.gone && world.status().metering.is_none());
}

#[test]
fn a_server_that_is_not_billed_is_not_metered_until_it_is_and_then_from_that_time_on() {
    let mut world = World::new(spec());
    world.is_billed = false;
    world.settle();
    world.wait(DAY);
    assert_eq!(world.status().metering, None);
    world.is_billed = true;
    let since = world.now();
    world.pass();
    assert!(metering(&world).since >= since);
    let begun = metering(&world);
    world.is_billed = false;
    world.act(Action::Stop);
    world.settle();
    assert_eq!(metering(&world), begun);
}

#[test]
fn a_plan_is_metered_once_it_is_in_effect() {
    let mut world = World::running();
    world.edit(|spec| {
        spec.plan = Plan::Enterprise;
        spec.plan_on_reboot = Some(Plan::Enterprise);
    });
    world.wait(DAY);
    assert_eq!(metering(&world).changes.len(), 1, "it is pending");
    world.act(Action::Reboot);
    world.settle();
    let entries = metering(&world).changes;
    assert_eq!(
        (entries.len(), entries[1].plan, entries[1].then),
        (2, Plan::Enterprise, Plan::Enterprise)
    );
    assert!(entries[1].hour >= 24);
}
