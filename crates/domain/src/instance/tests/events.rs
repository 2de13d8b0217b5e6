//! Which events are recorded, and how long they stay in the outbox.

use std::time::Duration;

use jiff::SignedDuration;

use super::world::{World, spec};
use crate::{
    instance::{Action, Audience, Gate, Seen, decide},
    provider::{Addresses, Observation, OffCause, Power, Progress, Timings},
};
use resources::{Plan, PowerState};

#[test]
fn every_operation_records_the_decided_events() {
    type Step = Box<dyn Fn(&mut World)>;
    let plan = |on_reboot| {
        move |world: &mut World| {
            world.edit(|spec| {
                spec.plan = Plan::Business;
                spec.plan_on_reboot = on_reboot;
            });
        }
    };
    let act = |action| move |world: &mut World| world.act(action);
    let delete = |world: &mut World| world.delete();
    let shut_down = |world: &mut World| {
        world.exit(OffCause::GuestShutdown);
    };
    let crash = |world: &mut World| {
        world.exit(OffCause::Crashed);
    };
    let cases: Vec<(&str, World, Step, &[&str])> = vec![
        (
            "create",
            World::new(spec()),
            Box::new(|_| {}),
            &["created", "started"],
        ),
        (
            "start",
            World::stopped(),
            Box::new(act(Action::Start)),
            &["started"],
        ),
        (
            "stop",
            World::running(),
            Box::new(act(Action::Stop)),
            &["stopped"],
        ),
        (
            "poweroff",
            World::running(),
            Box::new(act(Action::PowerOff)),
            &["stopped"],
        ),
        (
            "reboot",
            World::running(),
            Box::new(act(Action::Reboot)),
            &["started"],
        ),
        (
            "rebuild on",
            World::running(),
            Box::new(act(Action::Rebuild)),
            &["started"],
        ),
        (
            "rebuild off",
            World::stopped(),
            Box::new(act(Action::Rebuild)),
            &[],
        ),
        ("plan on", World::running(), Box::new(plan(None)), &["started"]),
        ("plan off", World::stopped(), Box::new(plan(None)), &[]),
        (
            "plan pending",
            World::running(),
            Box::new(plan(Some(Plan::Business))),
            &[],
        ),
        ("delete on", World::running(), Box::new(delete), &["deleted"]),
        ("delete off", World::stopped(), Box::new(delete), &["deleted"]),
        (
            "guest shutdown",
            World::running(),
            Box::new(shut_down),
            &["stopped"],
        ),
        ("crash", World::running(), Box::new(crash), &["started"]),
    ];
    for (name, mut world, step, expected) in cases {
        let mut seen = 0;
        world.new_events(&mut seen);
        if name == "create" {
            seen = 0;
        }
        step(&mut world);
        world.settle();
        assert_eq!(world.new_events(&mut seen), expected, "{name}");
    }
}

#[test]
fn a_power_cycle_records_started_alone() {
    let power_off = |world: &mut World| {
        world.edit(|spec| spec.power_off_requested_at = Some("2026-11-21T10:00:00Z".to_owned()));
    };
    let stop_and_start_again = |world: &mut World| {
        world.act(Action::Stop);
        world.pass();
        world.edit(|spec| spec.power_state = PowerState::Running);
    };
    let cycles: [fn(&mut World); 2] = [power_off, stop_and_start_again];
    for cycle in cycles {
        let mut world = World::running();
        let mut seen = world.events.len();
        cycle(&mut world);
        world.settle();
        assert_eq!(world.new_events(&mut seen), ["started"]);
        assert_eq!((world.cloud.power_cuts, world.cloud.is_on()), (1, true));
    }
}

#[test]
fn a_server_that_crashes_and_is_stopped_before_it_runs_again_records_stopped() {
    let mut world = World::running();
    let mut seen = world.events.len();
    world.exit(OffCause::Crashed);
    world.pass();
    world.act(Action::PowerOff);
    world.settle();
    assert_eq!(world.new_events(&mut seen), ["stopped"]);
}

#[test]
fn an_event_stays_in_the_outbox_until_it_is_settled_and_the_object_until_its_last_is() {
    let mut world = World::running();
    world.delete();
    world.settle();
    let last = world.events.last().unwrap().clone();
    assert!(world.gone && last.event_type.as_str() == "instance.deleted");
    let mut instance = world.instance.clone();
    instance.status.as_mut().unwrap().outbox = vec![last];
    let observation = Observation {
        progress: Progress::Done,
        ..Observation::default()
    };
    // If it were removed from the outbox, however late, it would be recorded again.
    for (settled, later) in [(false, 0), (true, 0), (true, 3600)] {
        let decision = decide(
            &instance,
            &Gate::Open,
            Seen::Observed(&observation),
            Audience {
                user: Some(&world.user),
                is_settled: &|_| settled,
                is_backed_up_now: false,
                may_wait: false,
                findings: None,
                is_billed: true,
            },
            world.now() + SignedDuration::from_secs(later),
            &Timings::default().deadlines(),
        );
        assert_eq!(decision.finished, settled);
        assert_eq!(decision.status.outbox.len(), 1);
    }
    let mut world = World::new(spec());
    world.pass();
    let decide_with = |world: &World, settled: bool, later: i64| {
        let audience = Audience {
            user: Some(&world.user),
            is_settled: &|_| settled,
            is_backed_up_now: false,
            may_wait: false,
            findings: None,
            is_billed: true,
        };
        let now = world.now() + SignedDuration::from_secs(later);
        let busy = Observation {
            addresses: Addresses {
                ipv4: Some("198.18.0.7".into()),
                ..Addresses::default()
            },
            progress: Progress::Busy,
            ..Observation::default()
        };
        let decision = decide(
            &world.instance,
            &Gate::Open,
            Seen::Observed(&busy),
            audience,
            now,
            &Timings::default().deadlines(),
        );
        decision.status.outbox.len()
    };
    // The address is new, so the same write removes the settled event.
    assert_eq!(decide_with(&world, false, 1), 1);
    assert_eq!(decide_with(&world, true, 1), 0);
    world.pass();
}

#[test]
fn a_settled_event_waits_longer_for_a_write_while_others_are_not_settled() {
    let mut world = World::new(spec());
    world.set_settles(false);
    world.wait(Duration::from_secs(200));
    let recorded: Vec<String> = world
        .status()
        .outbox
        .iter()
        .map(|entry| entry.id.clone())
        .collect();
    assert_eq!(recorded.len(), 2);
    let observation = Observation {
        power: Some(Power::On),
        ..Observation::default()
    };
    let left_after = |settled: &[String], seconds: i64| {
        let last = world.status().outbox.last().unwrap().created_at;
        let audience = Audience {
            user: Some(&world.user),
            is_settled: &|id| settled.iter().any(|settled| settled == id),
            is_backed_up_now: false,
            may_wait: false,
            findings: None,
            is_billed: true,
        };
        let (now, seen) = (
            last + SignedDuration::from_secs(seconds),
            Seen::Observed(&observation),
        );
        let decision = decide(
            &world.instance,
            &Gate::Open,
            seen,
            audience,
            now,
            &Timings::default().deadlines(),
        );
        decision.status.outbox.len()
    };
    let newer = &recorded[1..];
    assert_eq!((left_after(newer, 59), left_after(newer, 60)), (2, 1));
}
