//! Memory and records are bounded.

use super::{
    super::*,
    world::{Fate, Receiver, World},
};

/// A webhook that cannot be sent to, with this limit of held deliveries.
fn holding(held_per_webhook: usize) -> (World, WebhookKey) {
    let limits = Limits {
        held_per_webhook,
        ..Limits::default()
    };
    let mut world = World::with(limits, DeliveryLog::Failures);
    let webhook = world.add_hook("ns", "one");
    world.settle();
    world.set_secret(&webhook, false);
    (world, webhook)
}

#[test]
fn of_too_many_held_ones_the_oldest_are_dropped_and_counted() {
    let (mut world, webhook) = holding(5);
    let events: Vec<_> = (0..12)
        .map(|number| {
            let event = world.record("ns", &format!("i-{number}"), Fate::Good).unwrap();
            world.pass(std::time::Duration::from_secs(1));
            world.settle();
            event
        })
        .collect();
    let (tally, pending, held) = world.tally(&webhook);
    assert_eq!((tally.dropped, pending, held), (7, 0, 5));
    let kept: Vec<_> = events[7..]
        .iter()
        .map(|event| world.job(&webhook, event))
        .collect();
    assert_eq!(world.deliveries.len(), 5);
    assert!(kept.iter().all(|job| world.deliveries.contains_key(job)));
    world.heal();
    assert_eq!(world.arrived.len(), 5);
    world.audit_end();
}

#[test]
fn what_never_was_written_is_dropped_without_a_trace() {
    let (mut world, webhook) = holding(1);
    world.record("ns", "i-1", Fate::Good);
    world.record("ns", "i-2", Fate::Good);
    world.settle();
    assert_eq!(world.writes.creates, 1);
    assert_eq!(world.tally(&webhook).0.dropped, 1);
    world.heal();
    world.audit_end();
}

#[test]
fn a_dropped_one_whose_creation_went_unheard_is_deleted_all_the_same() {
    let (mut world, webhook) = holding(1);
    world.record("ns", "i-1", Fate::Good);
    world.execute(0, Fate::Good);
    world.write(0, Fate::Unheard);
    world.answer(0);
    world.record("ns", "i-2", Fate::Good);
    world.run();
    assert_eq!(world.deliveries.len(), 1);
    assert_eq!(world.tally(&webhook).0.dropped, 1);
    world.heal();
    world.audit_end();
}

#[test]
fn attempts_keep_to_the_window_of_their_webhook_and_the_bound_of_all() {
    let limits = Limits {
        in_flight: 40,
        in_flight_per_webhook: 6,
        ..Limits::default()
    };
    let mut world = World::with(limits, DeliveryLog::Failures);
    for number in 0..20 {
        world.add_hook("ns", &format!("wh-{number}"));
    }
    for number in 0..50 {
        world.record("ns", &format!("i-{number}"), Fate::Good);
    }
    world.work(false);
    let mut most = 0;
    while !world.sendings.is_empty() {
        world.audit();
        most = most.max(world.sendings.len());
        world.land(0);
        world.work(false);
    }
    assert_eq!(most, 40);
    world.run();
    world.audit_end();
}

#[test]
fn a_long_ladder_keeps_only_the_last_attempts() {
    let mut world = World::new(DeliveryLog::Failures);
    let webhook = world.add_hook("ns", "one");
    world.settle();
    world.receivers.insert(webhook.clone(), Receiver::Down);
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    let job = world.job(&webhook, &event);
    for _ in 0..5 {
        world.run();
        world.redeliver(&job);
        world.change_hook(&webhook, true);
    }
    let status = world.status(&job);
    assert_eq!((status.attempt_count, status.attempts.len()), (30, 21));
}

#[test]
fn what_a_list_of_the_objects_no_longer_has_is_forgotten() {
    let mut world = World::new(DeliveryLog::Failures);
    world.add_hook("ns", "one");
    world.settle();
    let [kept, gone] = ["i-1", "i-2"].map(|uid| world.record("ns", uid, Fate::Good).unwrap());
    let listed = std::collections::HashSet::from(["i-1"]);
    let dispatcher = &mut world.dispatcher;
    assert!(
        dispatcher.objects_listed(&listed, 0).is_empty(),
        "the list is older"
    );
    assert_eq!(dispatcher.objects_listed(&listed, u64::MAX), ["i-2".into()]);
    assert!(dispatcher.knows(&kept) && !dispatcher.knows(&gone));
}
