//! Setting the wall clock: no retry is skipped, early, or made twice.

use std::time::Duration;

use jiff::SignedDuration;

use super::{
    super::*,
    world::{Fate, Receiver, World},
};

/// Ten deliveries that have failed once.
fn world() -> (World, WebhookKey) {
    let mut world = World::new(DeliveryLog::Failures);
    let webhook = world.add_hook("ns", "one");
    world.receivers.insert(webhook.clone(), Receiver::Down);
    world.settle();
    for number in 0..10 {
        world.record("ns", &format!("i-{number}"), Fate::Good);
    }
    world.settle();
    assert_eq!(world.begun.len(), 10);
    (world, webhook)
}

fn run_for(world: &mut World, time: Duration) {
    let until = world.elapsed + time;
    while let Some(at) = world.dispatcher.next_timer() {
        let wait = at.saturating_duration_since(world.now().mono);
        if world.elapsed + wait > until {
            break;
        }
        world.pass(wait);
        world.settle();
    }
    world.pass(until.saturating_sub(world.elapsed));
    world.settle();
}

#[test]
fn a_clock_that_is_set_while_it_runs_moves_no_retry() {
    for hours in [24, -1] {
        let (mut world, _) = world();
        run_for(&mut world, Duration::from_secs(30));
        world.wall += SignedDuration::from_hours(hours);
        run_for(&mut world, Duration::from_secs(29));
        assert_eq!(world.begun.len(), 10, "none is early");
        run_for(&mut world, Duration::from_secs(1));
        assert_eq!(world.begun.len(), 20, "each is due once");
        run_for(&mut world, Duration::from_secs(299));
        assert_eq!(world.begun.len(), 20);
        run_for(&mut world, Duration::from_secs(1));
        assert_eq!(world.begun.len(), 30);
    }
}

#[test]
fn after_a_restart_a_clock_a_day_ahead_makes_each_due_once() {
    let (mut world, _) = world();
    world.wall += SignedDuration::from_hours(24);
    world.crash(|_| true);
    world.settle();
    assert_eq!(world.begun.len(), 20);
    run_for(&mut world, Duration::from_secs(299));
    assert_eq!(world.begun.len(), 20);
    run_for(&mut world, Duration::from_secs(1));
    assert_eq!(world.begun.len(), 30);
}

#[test]
fn after_a_restart_a_clock_an_hour_behind_makes_none_wait_for_more_than_twice_its_delay() {
    let (mut world, _) = world();
    world.wall -= SignedDuration::from_hours(1);
    world.crash(|_| true);
    run_for(&mut world, Duration::from_secs(119));
    assert_eq!(world.begun.len(), 10);
    run_for(&mut world, Duration::from_secs(1));
    assert_eq!(world.begun.len(), 20);
}

#[test]
fn a_clock_behind_the_creation_of_a_webhook_loses_no_event_of_it() {
    let mut world = World::new(DeliveryLog::Failures);
    world.add_hook("ns", "known");
    world.settle();
    world.wall -= SignedDuration::from_hours(48);
    let hook = world.add_hook("ns", "late");
    // Clocks of the API server and of this process may differ as well.
    world.hooks.get_mut(&hook).unwrap().facts.created_at += SignedDuration::from_hours(48);
    world.record("ns", "i-1", Fate::Good);
    world.settle();
    assert_eq!(world.arrived.len(), 2);
    world.run();
    world.audit_end();
}

#[test]
fn a_clock_that_goes_back_does_not_turn_the_order_of_an_instance_around() {
    let mut world = World::new(DeliveryLog::Failures);
    world.add_hook("ns", "one");
    world.settle();
    let mut events = Vec::new();
    for _ in 0..5 {
        events.push(world.record("ns", "i-1", Fate::Good).unwrap());
        world.wall -= SignedDuration::from_hours(1);
    }
    world.run();
    let order: Vec<_> = world.begun.iter().map(|it| it.event.id.to_string()).collect();
    assert_eq!(order, events);
}
