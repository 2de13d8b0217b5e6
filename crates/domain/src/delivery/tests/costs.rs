//! The number of writes to the API server.

use std::time::{Duration, Instant};

use super::{
    super::*,
    world::{Fate, Receiver, World, Writes, outbox_version},
};

fn world(log: DeliveryLog) -> (World, WebhookKey) {
    let limits = DeliveryLimits {
        unrecorded_per_webhook: 3,
        ..DeliveryLimits::default()
    };
    let mut world = World::with(limits, log);
    let webhook = world.add_hook("ns", "one");
    world.settle();
    (world, webhook)
}

const fn writes(creates: usize, replaces: usize) -> Writes {
    Writes {
        creates,
        replaces,
        deletes: 0,
        pages: 0,
    }
}

#[test]
fn a_success_at_once_costs_nothing_or_one_write() {
    for (log, pages) in [(DeliveryLog::Failures, 0), (DeliveryLog::All, 1)] {
        let (mut world, _) = world(log);
        world.record("ns", "i-1", Fate::Good);
        world.run();
        let expected = Writes {
            pages,
            ..writes(0, 0)
        };
        assert_eq!(world.writes, expected);
        world.audit_end();
    }
}

#[test]
fn the_records_of_failures_let_others_go_first() {
    for receiver in [Receiver::Down, Receiver::Gone] {
        let (mut world, webhook) = world(DeliveryLog::All);
        world.receivers.insert(webhook, receiver);
        world.record("ns", "i-1", Fate::Good);
        world.execute(0, Fate::Good);
        world.land(0);
        if receiver == Receiver::Gone {
            assert!(matches!(world.commands.first(), Some(Command::Disable(_))));
            world.execute(0, Fate::Good);
        }
        let is_it = |command: &Command| matches!(command, Command::Write { class, .. } if *class == WriteClass::Suspect);
        assert!(
            world.commands.iter().any(is_it),
            "{receiver:?}: {:?}",
            world.commands
        );
    }
}

#[test]
fn every_failed_attempt_costs_one() {
    for log in [DeliveryLog::Failures, DeliveryLog::All] {
        let (mut world, webhook) = world(log);
        world.receivers.insert(webhook, Receiver::Down);
        world.record("ns", "i-1", Fate::Good);
        world.run();
        assert_eq!(world.begun.len(), 6);
        assert_eq!((world.writes.creates, world.writes.replaces), (1, 5));
    }
}

#[test]
fn what_is_held_costs_one_and_its_end_another() {
    let (mut world, webhook) = world(DeliveryLog::Failures);
    world.set_secret(&webhook, false);
    world.record("ns", "i-1", Fate::Good);
    world.run();
    assert_eq!(world.writes, writes(1, 0));
    world.set_secret(&webhook, true);
    world.run();
    assert_eq!(world.writes, writes(1, 1));
    world.audit_end();
}

#[test]
fn a_gate_that_flaps_costs_nothing_more() {
    let (mut world, webhook) = world(DeliveryLog::Failures);
    world.set_secret(&webhook, false);
    for _ in 0..20 {
        world.record("ns", "i-1", Fate::Good);
    }
    world.run();
    for _ in 0..10 {
        world.set_secret(&webhook, true);
        world.work(false);
        world.set_secret(&webhook, false);
        world.work(false);
    }
    assert_eq!(world.writes.creates, 20);
    assert!(world.writes.replaces <= 1, "{:?}", world.writes);
    world.heal();
    world.audit_end();
}

#[test]
fn a_release_while_its_hold_is_being_written_costs_nothing_more() {
    let (mut world, webhook) = world(DeliveryLog::Failures);
    world.set_secret(&webhook, false);
    world.record("ns", "i-1", Fate::Good);
    world.execute(0, Fate::Good);
    world.set_secret(&webhook, true);
    world.write(0, Fate::Good);
    world.answer(0);
    assert!(
        matches!(world.commands[..], [Command::Attempt { .. }]),
        "{:?}",
        world.commands
    );
    world.run();
    assert_eq!(world.writes, writes(1, 1));
    world.audit_end();
}

#[test]
fn no_outcome_within_a_second_costs_one_and_the_end_another() {
    let (mut world, _) = world(DeliveryLog::Failures);
    world.record("ns", "i-1", Fate::Good);
    world.work(false);
    world.pass(Duration::from_millis(999));
    world.work(false);
    assert_eq!(world.writes, writes(0, 0));
    world.pass(Duration::from_millis(1));
    world.work(false);
    assert_eq!(world.writes, writes(1, 0));
    world.run();
    assert_eq!(world.writes, writes(1, 1));
    world.audit_end();
}

#[test]
fn a_backlog_costs_one_and_the_end_another() {
    let (mut world, webhook) = world(DeliveryLog::Failures);
    for _ in 0..10 {
        world.record("ns", "i-1", Fate::Good);
    }
    world.work(false);
    // One is in flight, three wait, the other six are recorded.
    assert_eq!(world.writes, writes(6, 0));
    assert_eq!(world.tally(&webhook).1, 6);
    world.run();
    assert_eq!(world.writes, writes(6, 6));
    world.audit_end();
}

#[test]
fn a_write_that_fails_is_tried_again_ever_more_slowly() {
    let (mut world, webhook) = world(DeliveryLog::Failures);
    world.receivers.insert(webhook, Receiver::Down);
    world.record("ns", "i-1", Fate::Good);
    world.execute(0, Fate::Good);
    world.land(0);
    let mut times = Vec::new();
    while times.len() < 8 {
        while !world.commands.is_empty() {
            world.execute(0, Fate::Good);
        }
        while !world.requests.is_empty() {
            times.push(world.elapsed.as_secs());
            world.write(0, Fate::Lost);
            world.answer(0);
        }
        if world.elapsed < Duration::from_secs(59) || times.len() < 8 {
            let at = world.dispatcher.next_timer().unwrap();
            world.pass(at.saturating_duration_since(world.now().mono));
            world.sendings.clear();
        }
    }
    let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(&pauses[..6], [1, 2, 4, 8, 16, 30]);
}

/// Generous, because debug builds are slow and machines are shared; quadratic code takes minutes here.
#[test]
fn nothing_is_quadratic() {
    const MANY: usize = 20_000;
    const MUCH: Bound = Bound {
        webhook: MANY,
        account: MANY,
        total: MANY,
    };
    let limits = DeliveryLimits {
        pending: MUCH,
        held: MUCH,
        unrecorded_per_webhook: MANY,
        ..DeliveryLimits::default()
    };
    let mut world = World::with(limits, DeliveryLog::Failures);
    let webhook = world.add_hook("ns", "one");
    world.settle();
    let (now, began) = (world.now(), Instant::now());
    let dispatcher = &mut world.dispatcher;
    for number in 0..MANY {
        let uid = format!("i-{}", number % 7000);
        let entry = crate::event::OutboxEntry {
            id: format!("evt_{number}"),
            event_type: crate::event::EventType::InstanceStarted,
            sequence: i64::try_from(number).unwrap(),
            created_at: now.wall,
            body: "{}".to_owned(),
            traceparent: None,
        };
        let revision = u64::try_from(number).unwrap() + 1;
        let entries = [entry];
        dispatcher.outbox_seen(
            &outbox_version("ns", &uid, revision, &entries),
            Origin::Fresh,
            now,
        );
        while dispatcher.next_command(now).is_some() {}
    }
    let unverified: Vec<_> = dispatcher
        .unverified_after(None, usize::MAX)
        .into_iter()
        .map(|entry| entry.event)
        .collect();
    dispatcher.verified(&unverified, now);
    let mut facts = dispatcher.webhooks().next().unwrap().1.clone();
    for gate in [
        WebhookGate::Disabled,
        WebhookGate::Open,
        WebhookGate::Blocked,
        WebhookGate::Open,
        WebhookGate::Inactive,
    ] {
        facts.gate = gate;
        dispatcher.webhook_seen(facts.clone(), now);
    }
    assert!(dispatcher.tally(&webhook).unwrap().2 > 19_000);
    for _ in 0..MANY {
        dispatcher.tally(&webhook);
        assert!(dispatcher.unverified_after(None, 1).is_empty());
    }
    dispatcher.webhook_gone(&webhook, &facts.uid, u64::MAX);
    assert!(dispatcher.jobs.is_empty());
    let took = began.elapsed();
    println!("{took:?}");
    assert!(took < Duration::from_mins(2), "{took:?}");
}

#[test]
fn what_comes_while_a_backlog_is_sent_is_recorded_at_once() {
    let (mut world, webhook) = world(DeliveryLog::Failures);
    world.set_secret(&webhook, false);
    for uid in ["i-1", "i-2"] {
        world.record("ns", uid, Fate::Good);
    }
    world.run();
    world.set_secret(&webhook, true);
    world.work(false);
    assert_eq!(world.writes, writes(2, 0));
    world.record("ns", "i-3", Fate::Good);
    world.work(false);
    assert_eq!(world.writes, writes(3, 0));
    world.run();
    world.record("ns", "i-4", Fate::Good);
    world.run();
    assert_eq!(world.writes, writes(3, 3));
    world.audit_end();
}

#[test]
fn the_records_of_tests_and_of_healthy_webhooks_wait_for_none_of_failing_ones() {
    let is_owed = |world: &World| {
        matches!(
            world.commands[..],
            [Command::Write {
                class: WriteClass::Owed,
                ..
            }]
        )
    };
    let (mut world, webhook) = world(DeliveryLog::Failures);
    world.receivers.insert(webhook.clone(), Receiver::Down);
    world.add_test(&webhook, "test");
    while world.watch_deliveries() {}
    world.execute(0, Fate::Good);
    world.land(0);
    assert!(is_owed(&world), "{:?}", world.commands);
    world.receivers.clear();
    world.record("ns", "i-1", Fate::Good);
    world.settle();
    world.record("ns", "i-2", Fate::Good);
    world.work(false);
    world.pass(Duration::from_secs(1));
    assert!(is_owed(&world), "{:?}", world.commands);
}
