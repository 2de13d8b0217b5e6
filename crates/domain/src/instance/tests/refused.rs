//! What is refused to an accepted instance: to run while its account is suspended, and a plan for which the quotas have no room.

use super::world::{World, kept_off, no_room};
use crate::{
    instance::{Action, Gate, explain, project},
    provider::OffCause,
};
use resources::{
    InstanceState::{Running, Starting, Stopped},
    Plan, PowerState,
    conditions::{READY, RESTART_REQUIRED, find},
    instance::REQUESTED_BY_ANNOTATION,
};

fn reason(world: &World) -> String {
    find(&world.status().conditions, READY).unwrap().reason.clone()
}

#[test]
fn a_running_server_of_a_suspended_account_is_stopped_and_starts_again_afterwards() {
    let mut world = World::running();
    let mut told = world.events.len();
    world.set_gate(kept_off());
    world.settle();
    assert_eq!((world.state(), world.cloud.is_on()), (Some(Stopped), false));
    assert_eq!(reason(&world), "AccountSuspended");
    assert_eq!(world.new_events(&mut told), ["stopped"]);
    let shown = project(&world.instance, world.now());
    assert_eq!(
        shown.state,
        Some(Stopped),
        "REST shows what the controller will do"
    );
    assert_eq!(explain(&world.instance).unwrap().reason, "AccountSuspended");
    // An administrator may still ask for it.
    world.edit(|spec| spec.start_requested_at = Some("2026-11-21T10:00:00Z".to_owned()));
    world.settle();
    assert_eq!(world.state(), Some(Stopped));
    world.set_gate(Gate::Open);
    world.settle();
    assert_eq!((world.state(), world.cloud.is_on()), (Some(Running), true));
    assert_eq!(world.new_events(&mut told), ["started"]);
    assert!(!world.status().suspended);
}

#[test]
fn a_server_that_was_off_before_the_suspension_stays_off_afterwards() {
    let mut asked = World::stopped();
    let mut by_itself = World::running();
    by_itself.exit(OffCause::GuestShutdown);
    by_itself.settle();
    for world in [&mut asked, &mut by_itself] {
        let before = reason(world);
        for gate in [kept_off(), Gate::Open] {
            world.set_gate(gate);
            world.settle();
            assert_eq!((world.state(), reason(world)), (Some(Stopped), before.clone()));
        }
    }
}

#[test]
fn a_server_that_crashes_while_it_is_being_stopped_for_a_suspension_is_not_started() {
    let mut world = World::running();
    world.set_gate(kept_off());
    world.pass();
    world.exit(OffCause::Crashed);
    world.settle();
    assert_eq!((world.state(), world.cloud.is_on()), (Some(Stopped), false));
}

#[test]
fn an_operation_that_is_under_way_ends_before_the_server_is_stopped() {
    let mut world = World::running();
    world.edit(|spec| spec.plan = Plan::Business);
    world.pass();
    world.set_gate(kept_off());
    world.settle();
    assert_eq!(
        (world.state(), world.status().plan),
        (Some(Stopped), Some(Plan::Business))
    );
}

#[test]
fn a_plan_without_room_is_not_applied_and_everything_else_is() {
    let mut world = World::running();
    world.set_gate(no_room());
    world.edit(|spec| spec.plan = Plan::Enterprise);
    world.settle();
    assert_eq!(
        (world.state(), reason(&world).as_str()),
        (Some(Running), "QuotaExceeded")
    );
    for on_reboot in [None, Some(Plan::Enterprise)] {
        world.edit(|spec| spec.plan_on_reboot = on_reboot);
        world.act(Action::Reboot);
        world.settle();
        assert_eq!(world.status().plan, Some(Plan::Starter));
        assert!(find(&world.status().conditions, RESTART_REQUIRED).is_none());
    }
    world.edit(|spec| spec.power_state = PowerState::Stopped);
    world.settle();
    assert_eq!(world.state(), Some(Stopped));
    // Once there is room, it takes effect with the start that is asked for then.
    world.edit(|spec| spec.power_state = PowerState::Running);
    world.set_gate(Gate::Open);
    assert_eq!(project(&world.instance, world.now()).state, Some(Starting));
    world.settle();
    let status = world.status();
    assert_eq!((status.plan, status.refused_plan), (Some(Plan::Enterprise), None));
}

#[test]
fn who_asked_last_is_the_key_of_the_current_spec_and_shown_before_the_controller_has_seen_it() {
    let mut world = World::running();
    let by = |world: &World| world.status().last_requested_by;
    assert_eq!(by(&world).as_deref(), Some("kubernetes"));
    let note = |world: &mut World, text: &str| {
        let annotation = (REQUESTED_BY_ANNOTATION.to_owned(), text.to_owned());
        world.instance.metadata.annotations = Some([annotation].into());
    };
    note(&mut world, "2 key-1");
    world.edit(|spec| spec.tags = vec!["a".to_owned()]);
    assert_eq!(
        project(&world.instance, world.now()).last_requested_by.as_deref(),
        Some("key-1")
    );
    world.settle();
    assert_eq!(by(&world).as_deref(), Some("key-1"));
    // With kubectl, the annotation stays.
    world.edit(|spec| spec.tags = vec!["b".to_owned()]);
    world.settle();
    assert_eq!(by(&world).as_deref(), Some("kubernetes"));
}
