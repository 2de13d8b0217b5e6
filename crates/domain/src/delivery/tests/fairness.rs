//! A slow or dead receiver does not affect other webhooks.

use std::collections::HashMap;

use super::{
    super::*,
    world::{Fate, Receiver, World},
};

/// One healthy webhook among others that never answer.
fn world(dead: usize, limits: DeliveryLimits) -> (World, WebhookKey) {
    let mut world = World::with(limits, DeliveryLog::Failures);
    let healthy = world.add_hook("healthy", "one");
    for number in 0..dead {
        world.add_hook(&format!("dead-{}", number / 20), &format!("wh-{number}"));
    }
    world.settle();
    world.record("healthy", "i-0", Fate::Good);
    world.settle();
    world.begun.clear();
    (world, healthy)
}

fn is_under_way(world: &World, event: &str) -> bool {
    world.sendings.iter().any(|it| &*it.event.id == event)
}

fn land(world: &mut World, event: &str) {
    let index = world.sendings.iter().position(|it| &*it.event.id == event);
    world.land(index.unwrap());
}

#[test]
fn receivers_that_never_answer_hold_back_no_healthy_one() {
    for (dead, in_flight) in [(50, 512), (50, 100), (50, 2), (300, 512)] {
        let limits = DeliveryLimits {
            in_flight,
            ..DeliveryLimits::default()
        };
        let (mut world, healthy) = world(dead, limits);
        for number in 0..200 {
            world.record(
                &format!("dead-{}", number % dead.div_ceil(20)),
                &format!("i-{number}"),
                Fate::Good,
            );
        }
        world.work(false);
        assert!(
            world.sendings.len() <= (in_flight / 2).max(1),
            "suspects have half"
        );
        world.audit();
        for number in 0..50 {
            let event = world
                .record("healthy", &format!("h-{number}"), Fate::Good)
                .unwrap();
            world.work(false);
            assert!(is_under_way(&world, &event), "{dead} of {in_flight}: {number}");
            land(&mut world, &event);
            world.audit();
        }
        assert_eq!(world.tally(&healthy).0.delivered, 51);
    }
}

#[test]
fn suspects_take_turns_for_their_half() {
    let limits = DeliveryLimits {
        in_flight: 4,
        ..DeliveryLimits::default()
    };
    let (mut world, _) = world(40, limits);
    for account in 0..2 {
        world.record(&format!("dead-{account}"), &format!("i-{account}"), Fate::Good);
    }
    world.work(false);
    while !world.sendings.is_empty() {
        assert!(world.sendings.len() <= 2);
        let report = world.report(500, None);
        world.report_of(0, report);
        world.work(false);
    }
    let mut attempts: HashMap<_, usize> = HashMap::new();
    for sending in &world.begun {
        *attempts.entry(sending.webhook.clone()).or_default() += 1;
    }
    assert_eq!(attempts.len(), 40);
    assert!(attempts.values().all(|count| *count == 1));
}

#[test]
fn an_account_with_many_webhooks_and_a_long_backlog_delays_no_other() {
    let mut world = World::with(DeliveryLimits::default(), DeliveryLog::Failures);
    for number in 0..100 {
        world.add_hook("big", &format!("wh-{number}"));
    }
    let small = world.add_hook("small", "one");
    world.settle();
    world.record("small", "s", Fate::Good);
    world.record("big", "b", Fate::Good);
    world.settle();
    for number in 0..100 {
        world.record("big", &format!("i-{number}"), Fate::Good);
    }
    world.work(false);
    assert_eq!(world.sendings.len(), 500, "the window of each is five by now");
    for number in 0..20 {
        let event = world.record("small", &format!("s-{number}"), Fate::Good).unwrap();
        // It starts once two attempts at most have ended: one slot may first go to another event of
        // its account.
        for _ in 0..2 {
            world.work(false);
            if !is_under_way(&world, &event) {
                world.land(0);
            }
        }
        world.work(false);
        assert!(is_under_way(&world, &event));
        assert!(world.sendings.len() <= 512);
        world.audit();
        land(&mut world, &event);
    }
    assert_eq!(world.tally(&small).0.delivered, 21);
    world.run();
    world.audit_end();
}

#[test]
fn a_webhook_that_recovers_while_it_waits_among_suspects_does_not_wait_on() {
    let limits = DeliveryLimits {
        in_flight: 4,
        in_flight_per_webhook: 2,
        ..DeliveryLimits::default()
    };
    let mut world = World::with(limits, DeliveryLog::Failures);
    world.add_hook("a", "one");
    world.add_hook("b", "one");
    world.settle();
    // Each has one attempt in flight and more to send, so both are parked.
    for number in 0..3 {
        world.record("a", &format!("a-{number}"), Fate::Good);
        world.record("b", &format!("b-{number}"), Fate::Good);
    }
    world.work(false);
    assert_eq!(world.sendings.len(), 2);
    world.land(0);
    world.work(false);
    world.audit();
    let of_a = world.sendings.iter().filter(|it| &*it.webhook == "a/one").count();
    assert_eq!(of_a, 2, "{:?}", world.sendings);
}

/// Ends the oldest attempt with this status code after this many seconds.
fn land_after(world: &mut World, code: i32, seconds: i64) {
    let mut report = world.report(code, None);
    if let Report::Sent { attempt, .. } = &mut report {
        attempt.duration_ms = seconds * 1000;
    }
    world.report_of(0, report);
}

#[test]
fn a_receiver_that_accepts_everything_slowly_gets_as_many_at_a_time_as_a_fast_one() {
    let mut world = World::with(DeliveryLimits::default(), DeliveryLog::Failures);
    let webhook = world.add_hook("ns", "slow");
    world.settle();
    for number in 0..100 {
        world.record("ns", &format!("i-{number}"), Fate::Good);
    }
    world.work(false);
    // It failed at first, so the window has shrunk to one.
    while world.sendings.len() > 1 {
        land_after(&mut world, 500, 30);
        world.work(false);
    }
    for _ in 0..20 {
        land_after(&mut world, 200, 3);
        world.work(false);
    }
    assert_eq!(world.sendings.len(), 16);
    assert!(
        world.dispatcher.queues[&webhook].is_suspect,
        "it still shares the slots of the slow"
    );
    world.run();
    world.audit_end();
}

#[test]
fn a_retry_that_is_due_waits_for_no_first_attempt() {
    let mut world = World::with(DeliveryLimits::default(), DeliveryLog::Failures);
    world.add_hook("ns", "never-answers");
    world.settle();
    let events: Vec<_> = (0..13)
        .map(|number| world.record("ns", &format!("i-{number}"), Fate::Good).unwrap())
        .collect();
    world.work(false);
    let timeout = std::time::Duration::from_secs(30);
    let mut first_retry = None;
    for second in 0..200 {
        world.pass(std::time::Duration::from_secs(1));
        let now = world.elapsed;
        while world.sendings.first().is_some_and(|it| now >= it.at + timeout) {
            land_after(&mut world, 0, 30);
        }
        world.work(false);
        world.audit();
        let of_first = world.begun.iter().filter(|it| *it.event.id == *events[0]);
        if of_first.count() == 2 && first_retry.is_none() {
            first_retry = Some(second + 1);
        }
    }
    assert_eq!(first_retry, Some(90), "a minute after the first attempt failed");
}

#[test]
fn a_retry_has_a_slot_of_its_own_however_many_first_attempts_are_in_flight() {
    let mut world = World::new(DeliveryLog::Failures);
    let webhook = world.add_hook("ns", "one");
    world.receivers.insert(webhook, Receiver::Down);
    world.settle();
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.settle();
    world.pass(std::time::Duration::from_secs(59));
    for uid in ["i-2", "i-3", "i-4"] {
        world.record("ns", uid, Fate::Good);
    }
    world.work(false);
    assert_eq!(world.sendings.len(), 2, "the failure has halved their number");
    world.pass(std::time::Duration::from_secs(1));
    world.work(false);
    assert!(is_under_way(&world, &event));
    world.heal();
    world.audit_end();
}

#[test]
fn the_webhooks_of_an_account_take_turns_however_many_events_wait_for_one_of_them() {
    let limits = DeliveryLimits {
        in_flight: 1,
        ..DeliveryLimits::default()
    };
    let mut world = World::with(limits, DeliveryLog::Failures);
    let [first, second, ..] = crate::event::EventType::ALL;
    for (name, event_type) in [("a", first), ("b", second)] {
        let webhook = world.add_hook("ns", name);
        world.hooks.get_mut(&webhook).unwrap().facts.events = vec![event_type];
        world.change_hook(&webhook, true);
    }
    world.settle();
    for event_type in [first, second] {
        world.record_typed("ns", "i-0", event_type, Fate::Good);
        world.settle();
    }
    world.begun.clear();
    for number in 1..=3 {
        world.record_typed("ns", &format!("i-{number}"), first, Fate::Good);
    }
    world.record_typed("ns", "i-4", second, Fate::Good);
    world.settle();
    let order: Vec<_> = world.begun.iter().map(|it| &*it.webhook).collect();
    assert_eq!(order, ["ns/a", "ns/a", "ns/b", "ns/a"]);
}

#[test]
fn a_failure_halves_how_many_are_sent_at_a_time_and_a_success_adds_one() {
    let mut world = World::with(DeliveryLimits::default(), DeliveryLog::Failures);
    world.add_hook("ns", "one");
    world.settle();
    for number in 0..20 {
        world.record("ns", &format!("i-{number}"), Fate::Good);
    }
    let mut at_once = Vec::new();
    for code in [500, 200, 200, 500, 500, 200, 200] {
        world.work(false);
        at_once.push(world.sendings.len());
        let report = world.report(code, None);
        world.report_of(0, report);
    }
    assert_eq!(at_once, [4, 3, 3, 4, 3, 2, 2]);
}
