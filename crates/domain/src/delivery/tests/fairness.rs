//! A slow or dead receiver does not affect other webhooks.

use std::{collections::HashMap, time::Duration};

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
    assert_eq!(world.sendings.len(), 256, "half of all");
    for number in 0..20 {
        let event = world.record("small", &format!("s-{number}"), Fate::Good).unwrap();
        world.work(false);
        assert!(is_under_way(&world, &event));
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
        world.dispatcher.queues[&webhook].is_suspect(),
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
    let timeout = Duration::from_secs(30);
    let mut first_retry = None;
    for second in 0..200 {
        world.pass(Duration::from_secs(1));
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
    world.pass(Duration::from_secs(59));
    for uid in ["i-2", "i-3", "i-4"] {
        world.record("ns", uid, Fate::Good);
    }
    world.work(false);
    assert_eq!(world.sendings.len(), 2, "the failure has halved their number");
    world.pass(Duration::from_secs(1));
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

/// How long the events of a healthy account take from their recording to their arrival, with attempts of 50 ms; sorted. The
/// webhooks of the attackers take as long as `latency` says of the number of an attempt and the time of its beginning.
/// `interfere` is called every second. Only events count that are recorded after `since`.
fn times_of_healthy(
    attackers: usize,
    latency: impl Fn(usize, Duration) -> Duration,
    since: Duration,
    interfere: impl Fn(&mut World),
) -> Vec<Duration> {
    let limits = DeliveryLimits {
        in_flight: 51,
        ..DeliveryLimits::default()
    };
    let mut world = World::with(limits, DeliveryLog::Failures);
    let accounts: Vec<_> = (0..attackers)
        .map(|number| format!("attacker-{number}"))
        .collect();
    for account in &accounts {
        for name in ["one", "two"] {
            world.add_hook(account, name);
        }
    }
    world.add_hook("healthy", "one");
    world.settle();
    let mut attempts: HashMap<WebhookKey, usize> = HashMap::new();
    let mut under_way: Vec<(Duration, JobKey)> = Vec::new();
    let mut recorded = HashMap::new();
    let mut times = Vec::new();
    for step in 0..6_000 {
        if step % 100 == 0 {
            world.audit();
            interfere(&mut world);
        }
        for account in accounts.iter().filter(|_| step % 1_000 == 0) {
            for object in 0..80 {
                world.record(account, &format!("{account}-{object}"), Fate::Good);
            }
        }
        if step % 20 == 0 {
            let event = world.record("healthy", &format!("h-{}", step % 7), Fate::Good);
            if world.elapsed >= since {
                recorded.insert(event.unwrap(), world.elapsed);
            }
        }
        loop {
            world.work(false);
            for begun in std::mem::take(&mut world.begun) {
                let number = attempts.entry(begun.webhook.clone()).or_default();
                *number += 1;
                let latency = if begun.webhook.starts_with("healthy") {
                    Duration::from_millis(50)
                } else {
                    latency(*number, begun.at)
                };
                under_way.push((begun.at + latency, begun.job));
            }
            let Some(ended) = under_way.iter().position(|(at, _)| *at <= world.elapsed) else {
                break;
            };
            let (_, job) = under_way.swap_remove(ended);
            let index = world.sendings.iter().position(|it| it.job == job).unwrap();
            let sending = &world.sendings[index];
            if let Some(at) = recorded.remove(&*sending.event.id) {
                times.push(world.elapsed.saturating_sub(at));
            }
            let took = world.elapsed.saturating_sub(sending.at);
            let mut report = world.report(200, None);
            if let Report::Sent { attempt, .. } = &mut report {
                attempt.duration_ms = took.as_millis().try_into().unwrap();
            }
            world.report_of(index, report);
        }
        world.pass(Duration::from_millis(10));
    }
    times.extend(recorded.into_values().map(|at| world.elapsed.saturating_sub(at)));
    times.sort_unstable();
    times
}

/// At once until 16 attempts at a time are made, and then after 29 s, but one in 16 after a second.
fn trusted_then_slow(number: usize, _: Duration) -> Duration {
    match number {
        ..=16 => Duration::ZERO,
        number if number.is_multiple_of(16) => Duration::from_secs(1),
        _ => Duration::from_secs(29),
    }
}

fn p99(times: &[Duration]) -> Duration {
    times[times.len() * 99 / 100]
}

#[test]
fn receivers_that_gain_trust_and_then_answer_200_after_29_seconds_delay_no_other_account() {
    let quiet = times_of_healthy(0, trusted_then_slow, Duration::ZERO, |_| {});
    for attackers in [1, 2, 3] {
        let times = times_of_healthy(attackers, trusted_then_slow, Duration::ZERO, |_| {});
        assert_eq!(times.len(), quiet.len());
        let (beside, quiet) = (p99(&times), p99(&quiet));
        assert!(
            beside < quiet * 2,
            "{attackers} attackers: {beside:?}, {quiet:?} without"
        );
    }
}

/// At first nobody knows that they are slow, and ten accounts can take all slots together.
#[test]
fn ten_accounts_that_are_slow_again_and_again_delay_others_once_at_most() {
    let quick_at_first = |_: usize, at: Duration| {
        if at.as_secs() % 40 < 1 {
            Duration::ZERO
        } else {
            Duration::from_secs(29)
        }
    };
    let second_round = Duration::from_secs(40);
    let quiet = times_of_healthy(0, quick_at_first, second_round, |_| {});
    let times = times_of_healthy(10, quick_at_first, second_round, |_| {});
    assert_eq!(times.len(), quiet.len());
    let (beside, quiet) = (p99(&times), p99(&quiet));
    assert!(beside <= quiet * 2, "{beside:?}, {quiet:?} without");
}

#[test]
fn an_account_that_deletes_and_makes_webhooks_keeps_no_more_slots() {
    let quiet = times_of_healthy(0, trusted_then_slow, Duration::ZERO, |_| {});
    let times = times_of_healthy(1, trusted_then_slow, Duration::ZERO, |world| {
        let of_attacker = |webhook: &&WebhookKey| webhook.starts_with("attacker");
        for webhook in world
            .hooks
            .keys()
            .filter(of_attacker)
            .cloned()
            .collect::<Vec<_>>()
        {
            world.delete_hook(&webhook);
        }
        let second = world.elapsed.as_secs();
        world.add_hook("attacker-0", &format!("wh-{second}"));
        for object in 0..40 {
            world.record("attacker-0", &format!("{second}-{object}"), Fate::Good);
        }
    });
    let (beside, quiet) = (p99(&times), p99(&quiet));
    assert!(beside < quiet * 2, "{beside:?}, {quiet:?} without");
}

#[test]
fn an_attempt_counts_among_the_suspects_once_it_has_lasted_two_seconds() {
    let mut world = World::with(DeliveryLimits::default(), DeliveryLog::Failures);
    let webhook = world.add_hook("ns", "one");
    world.settle();
    for number in 0..2 {
        world.record("ns", &format!("i-{number}"), Fate::Good);
    }
    world.work(false);
    world.land(0);
    let is_suspect = |world: &World| world.dispatcher.queues[&webhook].is_suspect();
    assert!(!is_suspect(&world), "it has answered");
    for number in 2..4 {
        world.record("ns", &format!("i-{number}"), Fate::Good);
    }
    world.work(false);
    world.pass(Duration::from_secs(2));
    world.audit();
    assert!(is_suspect(&world));
    world.record("ns", "i-4", Fate::Good);
    world.work(false);
    let quick = world.sendings.len() - 1;
    let report = world.report(200, None);
    world.report_of(quick, report);
    assert!(
        is_suspect(&world),
        "a quick answer changes nothing while others are slow"
    );
    while !world.sendings.is_empty() {
        world.land(0);
    }
    assert!(!is_suspect(&world));
    world.run();
    world.audit_end();
}
