//! Servers that fail by themselves, providers that fail, and closed gates.

use std::time::Duration;

use InstanceState::{Error, Provisioning, Rebooting, Running, Starting, Stopped, Stopping};

use super::{
    cloud::Fault,
    world::{World, cannot_install, spec},
};
use crate::{
    instance::{Action, Gate, changed_spec, project, shown, user_data::USER_DATA_MISSING},
    provider::{Notice, OffCause, Trouble},
};
use resources::{
    InstanceState, OperationKind, Plan, PowerState, Refusal,
    conditions::{self, READY, STALLED},
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
    world.pass();
    assert_eq!(world.state(), Some(Stopped));
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
            Gate::InvalidSpec(Refusal::invalid("spec.image x is not available")),
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
fn nothing_is_concluded_about_a_server_whose_region_is_gone_even_if_the_instance_is_deleted() {
    let mut world = World::running();
    let (steps, mut since) = (world.cloud.steps, world.events.len());
    world.set_gate(Gate::NoRegion(
        "region fr-par-1 is not available at the moment".into(),
    ));
    world.wait(Duration::from_secs(3600));
    let reason = |world: &World| {
        let conditions = world.status().conditions;
        conditions::find(&conditions, READY).unwrap().reason.clone()
    };
    assert_eq!(
        (world.state(), reason(&world).as_str()),
        (Some(Running), "RegionNotAvailable")
    );
    world.act(Action::Reboot);
    world.delete();
    world.wait(Duration::from_secs(3600));
    assert_eq!((world.gone, world.cloud.steps), (false, steps));
    assert_eq!(reason(&world), "RegionNotAvailable");
    assert!(world.new_events(&mut since).is_empty());
    world.set_gate(Gate::Open);
    world.settle();
    assert!(world.gone && world.cloud.servers.is_empty());
    assert_eq!(world.new_events(&mut since), ["deleted"]);
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
    world.fault(Fault::None);
    world.settle();
    assert_eq!((world.state(), world.cloud.rebuilds), (Some(Running), 1));
}

/// The reason and the message of the Ready condition.
fn ready(world: &World) -> (String, String) {
    let conditions = world.status().conditions;
    let ready = conditions::find(&conditions, READY).unwrap();
    (ready.reason.clone(), ready.message.clone())
}

#[test]
fn a_provider_that_never_ends_an_operation_leads_to_an_error_that_says_so_and_clears() {
    let mut world = World::running();
    world.fault(Fault::Stuck);
    world.act(Action::Reboot);
    world.wait(Duration::from_secs(15 * 60 - 1));
    assert_eq!(world.state(), Some(Rebooting));
    world.wait(Duration::from_secs(1));
    assert_eq!(world.state(), Some(Error));
    let (reason, message) = ready(&world);
    assert_eq!(reason, "DeadlineExceeded");
    assert!(message.contains("after 15 minutes"), "{message}");
    world.fault(Fault::None);
    world.settle();
    assert_eq!(world.state(), Some(Running));
}

#[test]
fn an_error_clears_as_soon_as_the_provider_goes_on_with_the_operation() {
    let mut world = World::running();
    world.fault(Fault::Fails);
    world.act(Action::Reboot);
    world.wait(Duration::from_secs(1));
    assert_eq!(world.state(), Some(Error));
    world.fault(Fault::None);
    world.pass();
    assert_eq!(world.state(), Some(Rebooting));
}

#[test]
fn an_operation_that_fails_says_which() {
    for (action, mut world, expected) in [
        (Action::Start, World::stopped(), "StartFailed"),
        (Action::Stop, World::running(), "StopFailed"),
        (Action::PowerOff, World::running(), "PowerOffFailed"),
        (Action::Reboot, World::running(), "RebootFailed"),
        (Action::Rebuild, World::running(), "RebuildFailed"),
    ] {
        world.fault(Fault::Fails);
        world.act(action);
        world.wait(Duration::from_secs(1));
        assert_eq!(ready(&world), (expected.to_owned(), "broken".to_owned()));
    }
}

#[test]
fn a_stopped_server_that_is_lost_is_an_error_until_a_start_makes_another() {
    let mut world = World::stopped();
    world.lose_server();
    world.pass();
    assert_eq!(world.state(), Some(Error));
    assert_eq!(ready(&world).0, "ServerMissing");
    world.act(Action::Start);
    world.settle();
    assert_eq!((world.state(), world.cloud.made), (Some(Running), 2));
}

#[test]
fn a_failing_plan_change_goes_on_as_one_operation_until_another_plan_is_asked_for() {
    let mut world = World::running();
    world.fault(Fault::Fails);
    world.edit(|spec| spec.plan = Plan::Business);
    world.wait(Duration::from_secs(1));
    let first = world.status().operation.unwrap();
    world.wait(Duration::from_secs(600));
    assert_eq!(world.status().operation.unwrap().started_at, first.started_at);
    world.edit(|spec| spec.plan = Plan::Performance);
    world.wait(Duration::from_secs(1));
    let second = world.status().operation.unwrap();
    assert_eq!((first.plan, second.plan), (Plan::Business, Plan::Performance));
    world.fault(Fault::None);
    world.settle();
    assert_eq!(
        (world.state(), world.status().plan),
        (Some(Running), Some(Plan::Performance))
    );
}

#[test]
fn a_failing_plan_change_is_dropped_once_the_plan_in_effect_is_asked_for_or_the_new_one_may_wait() {
    for on_reboot in [false, true] {
        for (mut world, state) in [(World::running(), Running), (World::stopped(), Stopped)] {
            let boots = world.cloud.boots;
            world.fault(Fault::Fails);
            world.edit(|spec| spec.plan = Plan::Business);
            world.wait(Duration::from_secs(1));
            assert_eq!(world.state(), Some(Error));
            world.new_notes();
            if on_reboot {
                world.edit(|spec| spec.plan_on_reboot = Some(Plan::Business));
            } else {
                world.edit(|spec| spec.plan = Plan::Starter);
            }
            let shown = project(&world.instance, world.now());
            assert_eq!((shown.state, shown.operation), (Some(state), None));
            world.pass();
            assert_eq!(world.status().operation, None);
            let told = "ResizeDropped: the change to plan business is dropped; the server keeps plan starter";
            assert_eq!(world.new_notes(), [told]);
            world.wait(Duration::from_secs(600));
            assert_eq!(world.state(), Some(state));
            world.fault(Fault::None);
            world.settle();
            let status = world.status();
            assert_eq!((status.state, status.plan), (Some(state), Some(Plan::Starter)));
            assert_eq!(world.cloud.boots, boots, "it was power-cycled");
            assert_eq!(world.cloud.server().unwrap().plan, Plan::Starter);
        }
    }
}

#[test]
fn a_plan_change_that_fails_is_taken_back_through_rest() {
    for (mut world, state) in [(World::running(), Running), (World::stopped(), Stopped)] {
        let boots = world.cloud.boots;
        let patch = |world: &mut World, plan| {
            let change = api::ChangeInstance {
                plan: Some(plan),
                ..api::ChangeInstance::default()
            };
            let changed = changed_spec(&change, &world.instance).unwrap();
            world.edit(|spec| *spec = changed);
        };
        world.fault(Fault::Fails);
        patch(&mut world, Plan::Business);
        world.wait(Duration::from_secs(1));
        assert_eq!(shown(&world.instance), (Error, Plan::Starter));
        patch(&mut world, Plan::Starter);
        assert_eq!(shown(&world.instance), (state, Plan::Starter));
        world.pass();
        world.fault(Fault::None);
        world.settle();
        assert_eq!(shown(&world.instance), (state, Plan::Starter));
        assert_eq!(world.status().operation, None);
        assert_eq!(world.cloud.boots, boots, "it was power-cycled");
    }
}

#[test]
fn a_plan_change_that_was_dropped_after_the_provider_had_carried_it_out_is_undone() {
    let mut world = World::running();
    world.edit(|spec| spec.plan = Plan::Business);
    world.pass();
    world.pass();
    world.outage(Duration::from_secs(20));
    world.reconcile(false, true);
    assert_eq!(world.cloud.server().unwrap().plan, Plan::Business);
    world.fault(Fault::Unreachable);
    world.wait(Duration::from_secs(60 * 60));
    assert_eq!(world.state(), Some(Error));
    world.edit(|spec| spec.plan = Plan::Starter);
    world.pass();
    assert_eq!(world.status().operation, None);
    world.fault(Fault::None);
    world.settle();
    assert_eq!(
        (world.state(), world.status().plan),
        (Some(Running), Some(Plan::Starter))
    );
    assert_eq!(world.cloud.server().unwrap().plan, Plan::Starter);
}

#[test]
fn a_boot_that_fails_with_a_new_plan_goes_on_with_the_old_one_once_that_is_asked_for() {
    for (action, mut world) in [
        (Action::Reboot, World::running()),
        (Action::Start, World::stopped()),
    ] {
        world.fault(Fault::Fails);
        world.edit(|spec| (spec.plan, spec.plan_on_reboot) = (Plan::Business, Some(Plan::Business)));
        world.act(action);
        world.wait(Duration::from_secs(1));
        let failing = world.status().operation.unwrap();
        assert_eq!((world.state(), failing.plan), (Some(Error), Plan::Business));
        world.edit(|spec| spec.plan = Plan::Starter);
        world.pass();
        let next = world.status().operation.unwrap();
        assert_eq!((next.kind, next.plan), (failing.kind, Plan::Starter));
        world.fault(Fault::None);
        world.settle();
        assert_eq!(
            (world.state(), world.status().plan),
            (Some(Running), Some(Plan::Starter))
        );
    }
}

#[test]
fn a_start_that_fails_is_given_up_when_the_server_is_to_be_stopped() {
    let mut world = World::stopped();
    world.fault(Fault::Fails);
    world.act(Action::Start);
    world.wait(Duration::from_secs(1));
    assert_eq!(world.state(), Some(Error));
    world.edit(|spec| spec.power_state = PowerState::Stopped);
    world.wait(Duration::from_secs(1));
    assert_eq!(world.status().operation.unwrap().kind, OperationKind::Stop);
    world.fault(Fault::None);
    world.settle();
    assert_eq!((world.state(), world.cloud.is_on()), (Some(Stopped), false));
}

#[test]
fn what_cannot_be_installed_leaves_the_rest_of_the_spec_in_force() {
    let mut world = World::running();
    world.edit(|spec| spec.image = "unknown-1".into());
    world.set_gate(cannot_install());
    world.settle();
    let ready = |world: &World| {
        conditions::find(&world.status().conditions, READY)
            .unwrap()
            .reason
            .clone()
    };
    assert_eq!(
        (world.state(), ready(&world).as_str()),
        (Some(Running), "InvalidSpec")
    );
    world.edit(|spec| spec.power_state = PowerState::Stopped);
    let shown = project(&world.instance, world.now()).state;
    assert_eq!(shown, Some(Stopping), "REST shows what the controller will do");
    world.settle();
    assert_eq!(
        (world.state(), ready(&world).as_str()),
        (Some(Stopped), "InvalidSpec")
    );
    // A larger plan is applied, too: it may be what the installation lacks.
    world.edit(|spec| spec.plan = Plan::Business);
    world.settle();
    assert_eq!(world.status().plan, Some(Plan::Business));
    assert_eq!(world.status().image.as_deref(), Some("debian-13"));
    // A crash is noticed.
    world.act(Action::Start);
    world.settle();
    world.exit(OffCause::Crashed);
    world.settle();
    assert_eq!(world.state(), Some(Running));
    world.set_gate(Gate::Open);
    world.settle();
    let status = world.status();
    assert_eq!(
        (status.state, status.image.as_deref()),
        (Some(Running), Some("unknown-1"))
    );
    assert_eq!(
        (ready(&world).as_str(), status.refused_installation),
        ("Running", None)
    );
}

#[test]
fn a_server_that_its_platform_interrupts_is_started_again_and_one_stopped_outside_stays_off() {
    let mut world = World::running();
    world.exit(OffCause::Interrupted);
    assert_eq!(world.path(), [Starting, Running]);
    world.exit(OffCause::Outside);
    world.settle();
    assert_eq!(world.state(), Some(Stopped));
    let status = world.status();
    let ready = conditions::find(&status.conditions, READY).unwrap();
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_str()),
        ("False", "StoppedOutside")
    );
    world.act(Action::Start);
    world.settle();
    assert_eq!(world.state(), Some(Running));
}

#[test]
fn a_server_that_the_provider_has_restarted_by_itself_is_told_as_started() {
    let mut world = World::running();
    let (before, started) = (world.events.len(), world.status().started_at);
    world.wait(Duration::from_secs(60));
    world.cloud.restarted = Some(OffCause::Crashed);
    world.pass();
    world.settle();
    let told: Vec<_> = world.events[before..]
        .iter()
        .map(|event| event.event_type.as_str())
        .collect();
    assert_eq!((world.state(), told), (Some(Running), vec!["instance.started"]));
    assert!(world.status().started_at > started);
    assert!(
        world
            .notes
            .iter()
            .any(|note| note.reason == "Crashed" && note.warning)
    );
}

#[test]
fn what_is_wrong_with_a_running_server_is_shown_and_only_an_error_changes_its_state() {
    let trouble = |reason| Trouble {
        reason,
        message: "the storage does not answer".to_owned(),
    };
    for (notice, state, ready) in [
        (Notice::Told(trouble("NodeUnreachable")), Running, "Unknown"),
        (Notice::Error(trouble("StorageUnavailable")), Error, "False"),
    ] {
        let mut world = World::running();
        let told = world.events.len();
        world.cloud.notice = Some(notice);
        world.pass();
        world.settle();
        let status = world.status();
        let seen = conditions::find(&status.conditions, READY).unwrap();
        assert_eq!((world.state(), seen.status.as_str()), (Some(state), ready));
        let writes = world.writes;
        world.pass();
        assert_eq!(world.writes, writes, "it is written once");
        world.cloud.notice = None;
        world.pass();
        world.settle();
        assert_eq!(world.state(), Some(Running));
        assert!(conditions::is_true(&world.status().conditions, READY));
        assert_eq!(world.events.len(), told, "the power has not changed");
    }
}

#[test]
fn a_region_that_is_cut_off_costs_an_idle_server_no_write_and_an_operation_only_its_first_two() {
    let mut world = World::running();
    world.fault(Fault::CutOff);
    let (before, writes) = (world.status(), world.writes);
    for _ in 0..3 {
        world.pass();
    }
    assert_eq!((world.status(), world.writes), (before, writes));
    let boots = world.cloud.boots;
    world.act(Action::Reboot);
    for _ in 0..2 {
        world.pass();
    }
    let status = world.status();
    let ready = conditions::find(&status.conditions, READY).unwrap();
    assert_eq!(ready.reason, "RegionUnreachable");
    let writes = world.writes;
    world.pass();
    world.pass();
    assert_eq!(world.writes, writes);
    world.fault(Fault::None);
    world.settle();
    assert_eq!(world.state(), Some(Running));
    assert_eq!(world.cloud.boots, boots + 1);
}

#[test]
fn an_installation_waits_for_what_it_needs_and_other_requests_go_first() {
    let missing = || {
        Some(Trouble {
            reason: USER_DATA_MISSING,
            message: "there is no Secret boot".to_owned(),
        })
    };
    let mut world = World::new(spec());
    world.missing = missing();
    world.pass();
    world.pass();
    let ready = |world: &World| {
        conditions::find(&world.status().conditions, READY)
            .cloned()
            .unwrap()
    };
    assert_eq!(
        (world.state(), ready(&world).reason.as_str()),
        (Some(Error), USER_DATA_MISSING)
    );
    assert!(world.cloud.servers.is_empty() && ready(&world).message.contains("Secret boot"));
    world.missing = None;
    world.settle();
    assert_eq!(world.state(), Some(Running));

    world.missing = missing();
    world.act(Action::Rebuild);
    world.pass();
    world.pass();
    assert_eq!(
        (world.state(), ready(&world).reason.as_str()),
        (Some(Error), USER_DATA_MISSING)
    );
    world.act(Action::Reboot);
    world.pass();
    assert_eq!(world.state(), Some(Rebooting));
    world.missing = None;
    world.settle();
    assert_eq!((world.state(), world.cloud.servers.len()), (Some(Running), 1));
    assert_eq!(
        world.status().rebuild_requested_at,
        world.instance.spec.rebuild_requested_at
    );
}
