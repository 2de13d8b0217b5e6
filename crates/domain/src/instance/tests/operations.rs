//! What each operation does, from request to end.

use std::time::Duration;

use InstanceState::{Provisioning, Rebooting, Rebuilding, Resizing, Running, Starting, Stopped, Stopping};
use jiff::SignedDuration;

use super::{
    cloud::Fault,
    world::{World, spec},
};
use crate::instance::{Action, current, project};
use resources::{
    InstanceSpec, InstanceState, OperationKind, Plan, PowerState,
    conditions::{self, READY, RECONCILING},
};

#[test]
fn every_operation_takes_the_decided_path() {
    assert_eq!(World::new(spec()).path(), [Provisioning, Running]);
    let running: fn() -> World = World::running;
    let stopped: fn() -> World = World::stopped;
    for (action, begin, path) in [
        (Action::Start, stopped, [Starting, Running]),
        (Action::Stop, running, [Stopping, Stopped]),
        (Action::PowerOff, running, [Stopping, Stopped]),
        (Action::Reboot, running, [Rebooting, Running]),
        (Action::Rebuild, running, [Rebuilding, Running]),
        (Action::Rebuild, stopped, [Rebuilding, Stopped]),
    ] {
        let mut world = begin();
        world.act(action);
        assert_eq!(world.path(), path, "{action:?}");
    }
    for (mut world, path) in [
        (World::running(), [Resizing, Running]),
        (World::stopped(), [Resizing, Stopped]),
    ] {
        world.edit(|spec| spec.plan = Plan::Business);
        assert_eq!(world.path(), path);
        assert_eq!(
            (world.status().plan, world.status().disk_size_gb),
            (Some(Plan::Business), Some(80))
        );
    }
}

#[test]
fn the_facade_shows_at_once_what_the_controller_will_write() {
    for (action, mut world) in [
        (Action::Start, World::stopped()),
        (Action::Stop, World::running()),
        (Action::PowerOff, World::running()),
        (Action::Reboot, World::running()),
        (Action::Rebuild, World::running()),
    ] {
        world.act(action);
        let projected = project(&world.instance, world.now());
        world.pass();
        assert_eq!(projected.state, world.state(), "{action:?}");
        assert_eq!(projected.operation, world.status().operation, "{action:?}");
    }
}

#[test]
fn people_are_shown_what_is_stored_only_once_the_controller_has_seen_the_spec() {
    let mut world = World::running();
    world.act(Action::Stop);
    assert_eq!(world.state(), Some(Running));
    assert_eq!(current(&world.instance).state, Some(Stopping));
    world.pass();
    assert_eq!(*current(&world.instance), world.status());
}

#[test]
fn conditions_say_which_operation_is_in_progress() {
    let mut world = World::running();
    world.act(Action::Reboot);
    world.pass();
    let conditions = world.status().conditions;
    let ready = conditions::find(&conditions, READY).unwrap();
    assert_eq!(
        (
            ready.status.as_str(),
            ready.reason.as_str(),
            ready.message.as_str()
        ),
        ("False", "Rebooting", "the server is being rebooted")
    );
    assert!(conditions::is_true(&conditions, RECONCILING));
}

#[test]
fn a_rebuild_is_done_once_whatever_follows_it() {
    let mut world = World::running();
    world.act(Action::Rebuild);
    world.settle();
    for action in [Action::Reboot, Action::Stop, Action::Start] {
        world.act(action);
        world.settle();
    }
    assert_eq!(world.cloud.rebuilds, 1);
}

#[test]
fn a_plan_change_on_reboot_waits_for_the_next_reboot_or_stop_and_start() {
    for actions in [vec![Action::Reboot], vec![Action::Stop, Action::Start]] {
        let mut world = World::running();
        world.edit(|spec| {
            spec.plan = Plan::Enterprise;
            spec.plan_on_reboot = Some(Plan::Enterprise);
        });
        world.settle();
        assert_eq!(
            (world.state(), world.status().plan),
            (Some(Running), Some(Plan::Starter))
        );
        assert!(conditions::is_true(
            &world.status().conditions,
            conditions::RESTART_REQUIRED
        ));
        for action in actions {
            assert_eq!(world.status().plan, Some(Plan::Starter));
            world.act(action);
            world.settle();
        }
        assert_eq!(
            (world.state(), world.status().plan),
            (Some(Running), Some(Plan::Enterprise))
        );
        assert!(conditions::find(&world.status().conditions, conditions::RESTART_REQUIRED).is_none());
    }
}

#[test]
fn a_later_change_of_the_plan_alone_is_immediate() {
    let mut world = World::running();
    world.edit(|spec| (spec.plan, spec.plan_on_reboot) = (Plan::Business, Some(Plan::Business)));
    world.settle();
    assert_eq!(world.status().plan, Some(Plan::Starter));
    world.edit(|spec| spec.plan = Plan::Performance);
    world.pass();
    assert_eq!(world.state(), Some(Resizing));
    world.settle();
    assert_eq!(world.status().plan, Some(Plan::Performance));
}

#[test]
fn a_disk_never_shrinks() {
    let mut world = World::running();
    world.edit(|spec| spec.plan = Plan::Performance);
    world.settle();
    world.edit(|spec| spec.plan = Plan::Starter);
    world.settle();
    assert_eq!(
        (world.status().plan, world.status().disk_size_gb),
        (Some(Plan::Starter), Some(160))
    );
}

#[test]
fn a_soft_stop_is_forced_after_the_grace() {
    let mut world = World::running();
    world.fault(Fault::HangsSoftStop);
    world.act(Action::Stop);
    world.wait(Duration::from_secs(119));
    assert!(!world.status().operation.unwrap().forced);
    world.wait(Duration::from_secs(1));
    assert_eq!((world.state(), world.cloud.power_cuts), (Some(Stopped), 1));
}

#[test]
fn a_clock_that_goes_back_repeats_no_operation_and_does_not_lengthen_it() {
    let mut world = World::new(spec());
    world.wait(Duration::from_secs(1));
    world.set_clock(SignedDuration::from_hours(-1));
    world.pass();
    world.wait(Duration::from_secs(151));
    assert_eq!((world.state(), world.cloud.made), (Some(Running), 1));
    for action in [Action::Reboot, Action::Rebuild, Action::Stop] {
        let mut world = World::running();
        world.fault(Fault::HangsSoftStop);
        world.act(action);
        world.wait(Duration::from_secs(1));
        let begun = world.status().operation.unwrap();
        world.set_clock(SignedDuration::from_hours(-1));
        world.pass();
        let now = world.status().operation.unwrap();
        assert_eq!((now.kind, now.started_at), (begun.kind, begun.started_at));
        world.wait(Duration::from_secs(180));
        assert_eq!(world.status().operation, None, "{action:?}");
        assert!(world.cloud.boots <= 2, "{action:?}");
    }
}

#[test]
fn an_operation_counts_from_its_own_beginning_while_clocks_differ_by_no_more_than_a_minute() {
    for (seconds, is_counted_anew) in [(0, false), (60, false), (61, true)] {
        let mut world = World::running();
        world.act(Action::Reboot);
        world.pass();
        world.set_clock(SignedDuration::from_secs(-seconds));
        world.pass();
        let counted_from = world.status().operation.unwrap().counted_from;
        assert_eq!(counted_from.is_some(), is_counted_anew, "{seconds} s");
    }
}

#[test]
fn only_a_soft_stop_is_looked_at_again_when_its_grace_is_over() {
    for (action, seconds) in [
        (Action::Stop, 120),
        (Action::PowerOff, 900),
        (Action::Reboot, 900),
    ] {
        let mut world = World::running();
        world.act(action);
        world.pass();
        world.fault(Fault::Stuck);
        let steps = world.cloud.steps;
        world.wait(Duration::from_secs(seconds - 1));
        let at_once = world.cloud.steps;
        assert!(at_once <= steps + 1, "{action:?}");
        world.wait(Duration::from_secs(1));
        assert!(world.cloud.steps > at_once, "{action:?}");
    }
}

#[test]
fn poweroff_cuts_a_soft_stop_a_start_and_a_reboot_short() {
    for first in [Action::Stop, Action::Reboot] {
        let mut world = World::running();
        world.fault(Fault::HangsSoftStop);
        world.act(first);
        world.pass();
        world.wait(Duration::from_secs(1));
        world.act(Action::PowerOff);
        world.pass();
        assert_eq!(world.status().operation.unwrap().kind, OperationKind::PowerOff);
        world.settle();
        assert_eq!(world.state(), Some(Stopped));
    }
}

#[test]
fn an_instance_created_off_ends_off() {
    let mut world = World::new(InstanceSpec {
        power_state: PowerState::Stopped,
        ..spec()
    });
    assert_eq!(world.path(), [Provisioning, Stopped]);
    assert!(conditions::is_true(&world.status().conditions, READY));
}

#[test]
fn a_settled_world_is_never_written_again() {
    for mut world in [World::running(), World::stopped()] {
        let writes = world.writes;
        for _ in 0..50 {
            world.wait(Duration::from_secs(3600));
            world.pass();
        }
        assert_eq!(world.writes, writes);
        assert!(!conditions::is_true(&world.status().conditions, RECONCILING));
    }
}

#[test]
fn an_operation_that_begins_in_the_millisecond_of_the_one_before_is_not_taken_for_it() {
    let mut world = World::running();
    world.fault(Fault::Stuck);
    world.act(Action::Rebuild);
    world.wait(Duration::from_secs(120));
    world.fault(Fault::None);
    world.edit(|spec| spec.image = "debian-12".into());
    let begun = world.status().operation.unwrap().started_at;
    world.set_clock(begun.duration_since(world.now()));
    world.settle();
    assert_eq!((world.cloud.rebuilds, world.state()), (2, Some(Running)));
    assert_eq!(world.status().image.as_deref(), Some("debian-12"));
}

/// A running server of a provider for which nothing takes time.
fn at_once() -> World {
    let mut world = World::new(spec());
    world.provisioning = 0.0;
    // Clearing the outbox costs a write of its own.
    world.set_settles(false);
    world.settle();
    assert_eq!((world.state(), world.writes), (Some(Running), 1));
    world
}

#[test]
fn what_is_done_at_once_costs_one_write_unless_its_repetition_would_interrupt_the_server() {
    let mut world = at_once();
    for (action, writes) in [
        (Action::Stop, 1),
        (Action::Start, 1),
        (Action::PowerOff, 1),
        (Action::Start, 1),
        (Action::Reboot, 2),
        (Action::Rebuild, 2),
    ] {
        let before = world.writes;
        world.act(action);
        world.settle();
        assert_eq!(world.writes - before, writes, "{action:?}");
    }
    world.edit(|spec| spec.plan = Plan::Business);
    let before = world.writes;
    world.settle();
    assert_eq!(world.writes - before, 2);
}

#[test]
fn a_creation_that_is_lost_with_its_process_leaves_no_second_server_and_none_of_another_plan() {
    let mut world = World::new(spec());
    world.provisioning = 0.0;
    world.reconcile(false, true);
    assert!(world.cloud.is_on() && world.status().operation.is_none());
    world.edit(|spec| {
        spec.plan = Plan::Business;
        spec.image = "debian-12".into();
    });
    world.wait(Duration::from_secs(60));
    let server = world.cloud.server().unwrap();
    assert_eq!(
        (server.plan, server.image.as_str()),
        (Plan::Business, "debian-12")
    );
    assert_eq!((world.cloud.made, world.status().plan), (1, Some(Plan::Business)));
    assert_eq!(world.new_events(&mut 0), ["created", "started"]);
}

#[test]
fn an_opposite_request_while_nobody_looks_undoes_what_was_done_but_not_stored() {
    for (from, to) in [
        (PowerState::Running, PowerState::Stopped),
        (PowerState::Stopped, PowerState::Running),
    ] {
        let mut world = at_once();
        world.edit(|spec| spec.power_state = from);
        world.settle();
        world.edit(|spec| spec.power_state = to);
        world.reconcile(false, true);
        assert_eq!(world.cloud.is_on(), to == PowerState::Running);
        world.edit(|spec| spec.power_state = from);
        world.settle();
        assert_eq!(world.cloud.is_on(), from == PowerState::Running, "{from:?}");
        assert!(conditions::is_true(&world.status().conditions, READY));
    }
}
