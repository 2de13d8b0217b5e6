//! Memory and records are bounded.

use super::{
    super::*,
    world::{Fate, Receiver, World, outbox_version},
};
use resources::DeliveryPhase;

/// A webhook that cannot be sent to, with this limit of held deliveries.
fn holding(held_per_webhook: usize) -> (World, WebhookKey) {
    let mut limits = DeliveryLimits::default();
    limits.held.webhook = held_per_webhook;
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
fn attempts_keep_to_the_window_of_their_webhook_and_half_of_the_bound_of_all() {
    let limits = DeliveryLimits {
        in_flight: 40,
        in_flight_per_webhook: 6,
        ..DeliveryLimits::default()
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
    assert_eq!(most, 20);
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
    let dispatcher = &mut world.dispatcher;
    assert!(
        !dispatcher.forget_unlisted_object("Instance", "i-2", 0),
        "the list is older"
    );
    assert!(
        !dispatcher.forget_unlisted_object("Backup", "i-2", u64::MAX),
        "the list is of another kind"
    );
    assert!(dispatcher.forget_unlisted_object("Instance", "i-2", u64::MAX));
    assert_eq!(dispatcher.objects_after(None, 2), ["i-1".into()]);
    assert!(dispatcher.knows(&kept) && !dispatcher.knows(&gone));
}

/// A world with these bounds on pending and held deliveries, and with webhooks `account/0` and so on in each account,
/// whose receivers are all down.
fn down(pending: (usize, usize, usize), held: (usize, usize, usize), accounts: &[(&str, usize)]) -> World {
    let bound = |(webhook, account, total)| Bound {
        webhook,
        account,
        total,
    };
    let limits = DeliveryLimits {
        pending: bound(pending),
        held: bound(held),
        ..DeliveryLimits::default()
    };
    let mut world = World::with(limits, DeliveryLog::Failures);
    for (account, webhooks) in accounts {
        for number in 0..*webhooks {
            let webhook = world.add_hook(account, &number.to_string());
            world.receivers.insert(webhook, Receiver::Down);
        }
    }
    world.settle();
    world
}

/// Records events of an account, a second apart.
fn flood(world: &mut World, account: &str, events: usize) -> Vec<String> {
    let record = |number| {
        let event = world.record(account, &format!("{account}-{number}"), Fate::Good);
        world.settle();
        world.pass(std::time::Duration::from_secs(1));
        world.settle();
        world.audit();
        event.unwrap()
    };
    (0..events).map(record).collect()
}

/// The numbers of pending, held and dropped deliveries of a webhook.
fn counts(world: &World, webhook: &str) -> (i64, i64, i64) {
    let (tally, pending, held) = world.tally(&webhook.into());
    (pending, held, tally.dropped)
}

#[test]
fn what_a_failing_receiver_is_owed_is_bounded_then_held_then_the_oldest_are_dropped() {
    let mut world = down((5, 100, 100), (4, 100, 100), &[("ns", 1)]);
    let webhook: WebhookKey = "ns/0".into();
    let events = flood(&mut world, "ns", 5);
    assert_eq!(
        (counts(&world, "ns/0"), world.tally(&webhook).0.backlog),
        ((5, 0, 0), None)
    );
    let more = flood(&mut world, "ns", 4);
    assert_eq!(counts(&world, "ns/0"), (5, 4, 0));
    assert_eq!(world.tally(&webhook).0.backlog, Some(Backlog::Held));
    flood(&mut world, "ns", 10);
    assert_eq!(counts(&world, "ns/0"), (5, 4, 10));
    assert_eq!(world.tally(&webhook).0.backlog, Some(Backlog::Dropped));
    assert_eq!(world.deliveries.len(), 9);
    let is_there = |event: &String| world.deliveries.contains_key(&world.job(&webhook, event));
    assert!(events.iter().all(is_there), "those that wait stay");
    assert!(!more.iter().any(is_there), "the oldest held ones are dropped");
    world.heal();
    world.audit_end();
    assert_eq!(world.tally(&webhook).0.backlog, None);
}

#[test]
fn what_is_held_for_want_of_room_is_sent_once_there_is_some() {
    let mut world = down((2, 100, 100), (100, 100, 100), &[("ns", 1)]);
    flood(&mut world, "ns", 10);
    assert_eq!(counts(&world, "ns/0"), (2, 8, 0));
    // The retries of the first two succeed.
    world.receivers.clear();
    world.begun.clear();
    world.run_until(|world| counts(world, "ns/0") == (0, 0, 0));
    let mut order: Vec<_> = world.begun.iter().map(|it| it.event.subject.clone()).collect();
    order.retain(|subject| !["ns-0", "ns-1"].contains(&&**subject));
    let expected: Vec<_> = (2..10).map(|number| format!("ns-{number}").into()).collect();
    assert_eq!(order, expected);
    world.run();
    world.audit_end();
}

#[test]
fn however_much_room_there_is_all_of_a_sudden_it_is_given_in_small_steps() {
    let mut world = down((1000, 200, 1000), (1000, 1000, 1000), &[("ns", 2)]);
    flood(&mut world, "ns", 300);
    assert_eq!(
        (counts(&world, "ns/0"), counts(&world, "ns/1")),
        ((100, 200, 0), (100, 200, 0))
    );
    world.delete_hook(&"ns/0".into());
    while world.watch_hooks() {}
    let now = world.now();
    world.dispatcher.tick(now);
    let held = counts(&world, "ns/1").1;
    assert!((200 - 64..200).contains(&held), "{held}");
    assert_eq!(world.dispatcher.next_timer(), Some(now.mono), "the others follow");
    world.settle();
    assert_eq!(counts(&world, "ns/1"), (200, 100, 0));
}

#[test]
fn the_webhooks_of_an_account_share_its_bound() {
    let mut world = down((5, 8, 100), (5, 6, 100), &[("ns", 3)]);
    flood(&mut world, "ns", 10);
    let all: Vec<_> = (0..3)
        .map(|number| counts(&world, &format!("ns/{number}")))
        .collect();
    assert_eq!(all.iter().map(|(pending, ..)| pending).sum::<i64>(), 8, "{all:?}");
    assert_eq!(all.iter().map(|(_, held, _)| held).sum::<i64>(), 6, "{all:?}");
    assert_eq!(
        all.iter().map(|(.., dropped)| dropped).sum::<i64>(),
        30 - 14,
        "{all:?}"
    );
    assert!(all.iter().all(|(_, held, _)| *held == 2), "{all:?}");
    world.heal();
    world.audit_end();
}

#[test]
fn dead_receivers_neither_stop_nor_drop_the_events_of_a_healthy_webhook_of_their_account() {
    for pending in [(4, 8, 100), (4, 100, 8)] {
        let mut world = down(pending, (2, 100, 100), &[("ns", 2)]);
        flood(&mut world, "ns", 8);
        assert_eq!([counts(&world, "ns/0"), counts(&world, "ns/1")], [(4, 2, 2); 2]);
        let healthy = world.add_hook("ns", "healthy");
        world.settle();
        for number in 0..10 {
            let event = world
                .record("ns", &format!("later-{number}"), Fate::Good)
                .unwrap();
            world.settle();
            world.audit();
            assert!(world.arrived.contains(&world.job(&healthy, &event)), "{number}");
            assert_eq!(counts(&world, "ns/healthy"), (0, 0, 0));
        }
        world.heal();
        world.audit_end();
    }
}

#[test]
fn a_new_leader_holds_what_was_held_and_continues_ladders() {
    let mut world = down((6, 100, 100), (6, 100, 100), &[("ns", 1)]);
    let webhook: WebhookKey = "ns/0".into();
    let events = flood(&mut world, "ns", 12);
    let jobs: Vec<_> = events.iter().map(|event| world.job(&webhook, event)).collect();
    let told = |world: &World| -> Vec<_> {
        let statuses = jobs.iter().map(|job| world.status(job));
        statuses
            .map(|it| (it.phase, it.retries, it.attempt_count))
            .collect()
    };
    let before = told(&world);
    let (pending, held) = before.split_at(6);
    assert!(
        pending
            .iter()
            .all(|it| it.0 == DeliveryPhase::Pending && it.1 > 0),
        "{before:?}"
    );
    assert!(
        held.iter().all(|it| *it == (DeliveryPhase::Held, 0, 0)),
        "{before:?}"
    );
    world.crash(|_| true);
    world.work(false);
    world.audit();
    assert_eq!(told(&world), before);
    world.heal();
    world.audit_end();
}

#[test]
fn a_retry_that_gives_way_continues_its_ladder_when_there_is_room() {
    let mut world = down((4, 4, 100), (10, 100, 100), &[("ns", 1)]);
    let webhook: WebhookKey = "ns/0".into();
    let events = flood(&mut world, "ns", 4);
    let last = world.job(&webhook, &events[3]);
    let (before, attempts) = (world.status(&last), world.begun.len());
    assert_eq!(before.retries, 1);
    let other = world.add_hook("ns", "slow");
    world.work(false);
    world.record("ns", "i-1", Fate::Good);
    world.work(false);
    assert_eq!(world.status(&last).phase, DeliveryPhase::Held);
    assert_eq!(world.sendings.len(), 1, "the other webhook's");
    assert_eq!(world.sendings[0].webhook, other);
    world.land(0);
    world.work(false);
    assert_eq!(
        world.status(&last).phase,
        DeliveryPhase::Held,
        "its next attempt may be made within a second"
    );
    world.pass(std::time::Duration::from_secs(1));
    world.work(false);
    let after = world.status(&last);
    assert_eq!((after.phase, after.retries), (DeliveryPhase::Pending, 1));
    assert_eq!(
        world.begun.len(),
        attempts + 1,
        "nothing is sent before it is due"
    );
    world.heal();
    world.audit_end();
}

#[test]
fn a_requested_delivery_is_sent_at_once_however_much_its_webhook_owes() {
    let mut world = down((2, 100, 100), (10, 100, 100), &[("ns", 1)]);
    let webhook: WebhookKey = "ns/0".into();
    let events = flood(&mut world, "ns", 5);
    let job = world.job(&webhook, &events[4]);
    assert_eq!(world.status(&job).phase, DeliveryPhase::Held);
    let nonce = world.request(&job);
    world.settle();
    world.audit();
    let status = world.status(&job);
    assert_eq!((status.phase, status.attempt_count), (DeliveryPhase::Held, 1));
    assert_eq!(status.attempt_requested_at, nonce);
    assert_eq!(counts(&world, "ns/0"), (2, 3, 0));
    world.receivers.clear();
    world.request(&job);
    world.settle();
    assert_eq!(world.status(&job).phase, DeliveryPhase::Delivered);
    world.heal();
    world.audit_end();
}

#[test]
fn what_gives_way_to_a_webhook_that_is_enabled_is_not_sent_once_it_is_dropped() {
    let mut world = down((4, 4, 100), (10, 4, 100), &[("ns", 2)]);
    let webhook: WebhookKey = "ns/1".into();
    world.set_secret(&webhook, false);
    flood(&mut world, "ns", 8);
    world.receivers.remove(&webhook);
    world.begun.clear();
    let there: Vec<_> = world.deliveries.keys().cloned().collect();
    world.set_secret(&webhook, true);
    let kept: Vec<_> = world
        .dispatcher
        .jobs
        .iter()
        .filter(|(_, job)| !job.dropped)
        .map(|(key, _)| key.clone())
        .collect();
    assert!(kept.len() < there.len(), "some are dropped");
    world.settle();
    world.audit();
    assert!(world.begun.iter().all(|it| kept.contains(&it.job)));
    world.heal();
    world.audit_end();
}

#[test]
fn an_exhausted_delivery_that_a_quota_refuses_is_counted_as_dropped_after_a_grace_of_its_own() {
    let mut world = down((100, 100, 100), (100, 100, 100), &[("ns", 1)]);
    let webhook: WebhookKey = "ns/0".into();
    world.receivers.insert(webhook.clone(), Receiver::Gone);
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    let job = world.job(&webhook, &event);
    world.work(false);
    world.dispatcher.jobs.get_mut(&job).unwrap().failures = 6;
    world.quota = 0;
    world.settle();
    assert_eq!((world.writes.creates, world.tally(&webhook).0.dropped), (1, 0));
    world.run_until(|world| world.tally(&webhook).0.dropped == 1);
    assert_eq!(world.writes.creates, 6);
}

#[test]
fn with_a_single_slot_retries_and_first_attempts_take_turns() {
    let limits = DeliveryLimits {
        in_flight_per_webhook: 1,
        ..DeliveryLimits::default()
    };
    let mut world = World::with(limits, DeliveryLog::Failures);
    let webhook = world.add_hook("ns", "one");
    world.receivers.insert(webhook.clone(), Receiver::Down);
    world.settle();
    for number in 0..4 {
        world.record("ns", &format!("old-{number}"), Fate::Good);
    }
    world.settle();
    world.begun.clear();
    // While an attempt is in flight, the retries become due.
    world.record("ns", "new-0", Fate::Good);
    world.work(false);
    for number in 1..4 {
        world.record("ns", &format!("new-{number}"), Fate::Good);
    }
    world.pass(std::time::Duration::from_secs(3600));
    for _ in 0..7 {
        world.work(false);
        world.land(0);
    }
    let is_new: Vec<_> = world
        .begun
        .iter()
        .map(|it| it.event.subject.starts_with("new"))
        .collect();
    assert_eq!(is_new[..7], [true, false, true, false, true, false, true]);
    world.heal();
    world.audit_end();
}

#[test]
fn when_the_total_is_reached_the_account_that_owes_most_gives_way() {
    let mut world = down((100, 100, 10), (100, 100, 6), &[("big", 2), ("small", 1)]);
    flood(&mut world, "big", 20);
    let of_big = |world: &World| {
        let [one, two] = ["big/0", "big/1"].map(|webhook| counts(world, webhook));
        (one.0 + two.0, one.1 + two.1, one.2 + two.2)
    };
    assert_eq!(of_big(&world), (10, 6, 24));
    flood(&mut world, "small", 3);
    assert_eq!(counts(&world, "small/0"), (3, 0, 0));
    assert_eq!(of_big(&world), (7, 6, 27));
    assert_eq!(world.deliveries.len(), 16);
    // But not more than its share.
    flood(&mut world, "small", 20);
    let (pending, held, _) = counts(&world, "small/0");
    assert!(pending <= 5 && held <= 3, "{pending} {held}");
    assert_eq!(world.deliveries.len(), 16);
    world.heal();
    world.audit_end();
}

#[test]
fn a_new_leader_keeps_to_the_bounds_even_if_the_last_one_had_none() {
    let mut world = down((100, 100, 100), (100, 100, 100), &[("ns", 2)]);
    flood(&mut world, "ns", 20);
    assert_eq!(world.deliveries.len(), 40);
    world.limits.pending.webhook = 5;
    world.limits.held.account = 6;
    world.crash(|_| true);
    world.settle();
    world.audit();
    assert_eq!(world.deliveries.len(), 16);
    world.heal();
    world.audit_end();
}

#[test]
fn a_released_delivery_says_so_if_its_attempt_has_to_wait() {
    let mut world = World::new(DeliveryLog::Failures);
    let webhook = world.add_hook("ns", "one");
    world.settle();
    world.set_secret(&webhook, false);
    let events = [1, 2].map(|number| world.record("ns", &format!("i-{number}"), Fate::Good).unwrap());
    world.run();
    let phases = |world: &World| {
        events
            .each_ref()
            .map(|event| world.status(&world.job(&webhook, event)).phase)
    };
    assert_eq!(phases(&world), [DeliveryPhase::Held; 2]);
    world.set_secret(&webhook, true);
    world.work(false);
    world.pass(std::time::Duration::from_secs(1));
    world.work(false);
    assert_eq!(world.sendings.len(), 1, "one after the other");
    assert_eq!(phases(&world), [DeliveryPhase::Pending; 2]);
    world.run();
    world.audit_end();
}

#[test]
fn tests_of_a_webhook_that_owes_too_much_end_at_once() {
    let mut world = down((2, 100, 100), (2, 100, 100), &[("ns", 1)]);
    flood(&mut world, "ns", 5);
    let job = world.add_test(&"ns/0".into(), "test");
    world.settle();
    let status = world.status(&job);
    assert_eq!(
        (status.phase, status.last_status_code),
        (DeliveryPhase::Exhausted, None)
    );
    assert!(status.last_error.unwrap().contains("too many deliveries wait"));
    world.heal();
    world.audit_end();
}

#[test]
fn a_delivery_that_a_quota_refuses_is_dropped_after_half_a_minute_and_its_event_is_settled() {
    let mut world = down((100, 100, 100), (100, 100, 100), &[("ns", 1)]);
    let webhook: WebhookKey = "ns/0".into();
    world.quota = 1;
    for number in 0..3 {
        world.record("ns", &format!("i-{number}"), Fate::Good);
    }
    world.settle();
    assert_eq!(
        world.tally(&webhook).0.dropped,
        0,
        "others may finish in the meantime"
    );
    world.run_until(|world| world.tally(&webhook).0.dropped == 2);
    assert_eq!(world.elapsed.as_secs(), 31);
    world.settle();
    world.audit();
    assert!(world.objects.values().all(|object| object.outbox.is_empty()));
    assert_eq!(world.tally(&webhook).0.backlog, Some(Backlog::Refused));
    let attempts = world.writes.creates;
    world.quota = 2;
    world.record("ns", "i-3", Fate::Good);
    world.settle();
    assert_eq!((world.writes.creates, world.deliveries.len()), (attempts + 1, 2));
    assert_eq!(world.tally(&webhook).0.backlog, None);
    world.heal();
    world.audit_end();
}

#[test]
fn a_success_that_a_quota_does_not_let_be_logged_is_not_a_loss() {
    let mut world = World::new(DeliveryLog::All);
    let webhook = world.add_hook("ns", "one");
    world.settle();
    world.quota = 0;
    world.record("ns", "i-1", Fate::Good);
    world.run();
    let (tally, ..) = world.tally(&webhook);
    assert_eq!((tally.delivered, tally.dropped, tally.backlog), (1, 0, None));
    world.audit_end();
}

#[test]
fn a_late_success_whose_record_a_quota_refuses_is_not_a_loss_either() {
    let mut world = World::new(DeliveryLog::Failures);
    let webhook = world.add_hook("ns", "one");
    world.settle();
    world.quota = 0;
    world.record("ns", "i-1", Fate::Good);
    world.work(false);
    world.pass(std::time::Duration::from_secs(1));
    world.work(false);
    world.run();
    assert_eq!(world.writes.creates, 6);
    let (tally, ..) = world.tally(&webhook);
    assert_eq!((tally.delivered, tally.dropped, tally.backlog), (1, 0, None));
    world.audit_end();
}

#[test]
fn only_the_last_attempt_keeps_its_url_and_what_the_receiver_answered() {
    let mut world = World::new(DeliveryLog::Failures);
    let webhook = world.add_hook("ns", "one");
    world.settle();
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    for _ in 0..3 {
        world.run_until(|world| !world.sendings.is_empty());
        let mut report = world.report(500, None);
        if let Report::Sent { attempt, .. } = &mut report {
            attempt.response = Some("busy".to_owned());
            attempt.url = Some("https://example.com/".to_owned());
        }
        world.report_of(0, report);
        world.work(false);
    }
    let attempts = world.status(&world.job(&webhook, &event)).attempts;
    let responses: Vec<_> = attempts.iter().map(|it| it.response.as_deref()).collect();
    assert_eq!(responses, [None, None, Some("busy")]);
    let has_url: Vec<_> = attempts.iter().map(|it| it.url.is_some()).collect();
    assert_eq!(has_url, [false, false, true]);
    assert!(
        attempts
            .iter()
            .all(|it| it.status_code == Some(500) && it.error.is_some())
    );
}

#[test]
fn those_that_owe_about_the_same_take_no_room_from_each_other() {
    let mut world = down((100, 100, 9), (100, 100, 100), &[("big", 1), ("small", 1)]);
    flood(&mut world, "big", 12);
    flood(&mut world, "small", 12);
    assert_eq!(
        [counts(&world, "big/0"), counts(&world, "small/0")],
        [(5, 7, 0), (4, 8, 0)]
    );
    let mut world = down((100, 9, 100), (100, 100, 100), &[("ns", 1)]);
    flood(&mut world, "ns", 12);
    let later = world.add_hook("ns", "later");
    world.receivers.insert(later, Receiver::Down);
    world.settle();
    flood(&mut world, "ns", 12);
    assert_eq!(
        [counts(&world, "ns/0"), counts(&world, "ns/later")],
        [(5, 19, 0), (4, 8, 0)]
    );
    world.heal();
    world.audit_end();
}

#[test]
fn neither_what_is_requested_nor_a_test_gives_way() {
    let mut world = down((6, 5, 100), (10, 100, 100), &[("ns", 1)]);
    let webhook: WebhookKey = "ns/0".into();
    let events = flood(&mut world, "ns", 4);
    let jobs: Vec<_> = events.iter().map(|event| world.job(&webhook, event)).collect();
    // Only one is in flight at a time, because the receiver fails, so the others must wait.
    world.request(&jobs[0]);
    world.work(false);
    world.request(&jobs[3]);
    let test = world.add_test(&webhook, "test");
    world.work(false);
    assert_eq!(world.sendings.len(), 1);
    world.add_hook("ns", "other");
    world.work(false);
    world.record("ns", "i-1", Fate::Good);
    world.work(false);
    world.audit();
    let phases = [&jobs[1], &jobs[2], &jobs[3], &test].map(|job| world.status(job).phase);
    let (pending, held) = (DeliveryPhase::Pending, DeliveryPhase::Held);
    assert_eq!(phases, [pending, held, pending, pending]);
    world.heal();
    world.audit_end();
}

#[test]
fn the_totals_count_all_that_is_pending_held_and_dropped() {
    let mut world = down((2, 100, 100), (3, 100, 100), &[("a", 1), ("b", 1)]);
    flood(&mut world, "a", 7);
    flood(&mut world, "b", 6);
    assert_eq!(world.dispatcher.totals(), (4, 6, 3));
    let dropped = world.dispatcher.dropped();
    assert_eq!((dropped.webhook, dropped.account, dropped.total), (3, 0, 0));
    world.delete_hook(&"a/0".into());
    while world.watch_hooks() {}
    assert_eq!(world.dispatcher.totals(), (2, 3, 3));
}

#[test]
fn a_retry_that_gives_way_for_a_moment_is_not_written() {
    let mut world = down((4, 4, 100), (10, 100, 100), &[("ns", 1)]);
    let events = flood(&mut world, "ns", 4);
    let last = world.job(&"ns/0".into(), &events[3]);
    let (before, writes) = (world.status(&last), world.writes);
    world.add_hook("ns", "fast");
    world.work(false);
    world.record("ns", "i-1", Fate::Good);
    let is_attempt = |command: &Command| matches!(command, Command::Attempt { .. });
    let attempt = world.commands.iter().position(is_attempt).unwrap();
    assert_eq!(world.dispatcher.jobs[&last].state, State::Held);
    world.execute(attempt, Fate::Good);
    world.land(0);
    world.pass(std::time::Duration::from_secs(2));
    world.settle();
    assert_eq!(world.writes.replaces, writes.replaces);
    assert_eq!(world.status(&last), before);
    world.heal();
    world.audit_end();
}

#[test]
fn what_the_watch_no_longer_shows_in_an_outbox_is_forgotten() {
    let mut world = World::new(DeliveryLog::Failures);
    world.add_hook("ns", "one");
    world.settle();
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    let revision = world.objects["i-1"].revision;
    let dispatcher = &mut world.dispatcher;
    dispatcher.outbox_shown(&outbox_version("ns", "i-1", revision - 1, &[]));
    assert!(dispatcher.knows(&event), "that version is older");
    dispatcher.outbox_shown(&outbox_version("ns", "i-1", revision + 1, &[]));
    assert!(!dispatcher.knows(&event));
    assert!(dispatcher.objects_after(None, 1).is_empty());
}

#[test]
fn the_body_of_an_event_is_not_kept_once_it_is_settled_although_it_is_still_in_the_outbox() {
    let mut world = World::new(DeliveryLog::Failures);
    world.add_hook("ns", "one");
    world.settle();
    let id = world.record("ns", "i-1", Fate::Good).unwrap();
    world.begin_lookup();
    world.end_lookup();
    world.execute(0, Fate::Good);
    let event = Arc::downgrade(&world.sendings[0].event);
    world.land(0);
    world.begun.clear();
    assert!(world.dispatcher.is_settled(&id));
    assert!(event.upgrade().is_none());
    world.run();
    world.audit_end();
}

#[test]
fn a_webhook_that_cannot_be_sent_to_holds_deliveries_for_another_reason_than_their_number() {
    let mut world = down((2, 100, 100), (10, 100, 100), &[("ns", 1)]);
    let webhook: WebhookKey = "ns/0".into();
    flood(&mut world, "ns", 5);
    assert_eq!(world.tally(&webhook).0.backlog, Some(Backlog::Held));
    world.set_secret(&webhook, false);
    assert_eq!(world.tally(&webhook).0.backlog, None);
    world.heal();
    world.audit_end();
}

#[test]
fn a_change_of_a_webhook_that_owes_too_much_forgets_no_request() {
    let mut world = down((2, 100, 100), (10, 100, 100), &[("ns", 1)]);
    let webhook: WebhookKey = "ns/0".into();
    let events = flood(&mut world, "ns", 5);
    let jobs: Vec<_> = events.iter().map(|event| world.job(&webhook, event)).collect();
    world.request(&jobs[3]);
    world.work(false);
    world.request(&jobs[4]);
    world.work(false);
    // Only one is in flight at a time, because the receiver fails.
    assert_eq!(world.sendings.len(), 1);
    world.change_hook(&webhook, true);
    world.settle();
    for job in &jobs[3..] {
        let status = world.status(job);
        assert_eq!((status.phase, status.attempt_count), (DeliveryPhase::Held, 1));
    }
    world.heal();
    world.audit_end();
}

#[test]
fn a_requested_retry_for_which_a_new_leader_has_no_room_is_held_with_its_ladder() {
    let mut world = down((100, 100, 100), (100, 100, 100), &[("ns", 1)]);
    let webhook: WebhookKey = "ns/0".into();
    let events = flood(&mut world, "ns", 3);
    let job = world.job(&webhook, &events[2]);
    world.request(&job);
    world.limits.pending.webhook = 1;
    world.crash(|_| true);
    world.settle();
    let status = world.status(&job);
    assert_eq!(
        (status.phase, status.attempt_count, status.retries),
        (DeliveryPhase::Held, 2, 1)
    );
    world.heal();
    world.audit_end();
}

#[test]
fn what_is_requested_lets_nobody_exceed_the_bounds_of_held_ones() {
    for (held, others) in [((10, 12, 100), ["ns/1", "ns/2"]), ((10, 100, 12), ["a/1", "b/1"])] {
        let mut world = down((2, 100, 100), held, &[("ns", 1)]);
        let events = flood(&mut world, "ns", 12);
        assert_eq!(counts(&world, "ns/0"), (2, 10, 0));
        // The receiver does not answer.
        for event in &events[2..] {
            let job = world.job(&"ns/0".into(), event);
            world.request(&job);
            world.work(false);
        }
        assert_eq!(
            (counts(&world, "ns/0"), world.dispatcher.totals().1),
            ((12, 0, 0), 10)
        );
        for other in others {
            let (account, name) = other.split_once('/').unwrap();
            let webhook = world.add_hook(account, name);
            world.work(false);
            world.set_secret(&webhook, false);
        }
        for number in 0..6 {
            for other in others {
                let (account, _) = other.split_once('/').unwrap();
                world.record(account, &format!("{other}-{number}"), Fate::Good);
            }
            world.pass(std::time::Duration::from_secs(1));
            world.work(false);
            world.audit();
            assert!(world.dispatcher.totals().1 <= 12, "{number}");
        }
        let held: i64 = others.iter().map(|other| counts(&world, other).1).sum();
        assert_eq!(held, 2);
        world.heal();
        world.audit_end();
    }
}

#[test]
fn what_is_requested_gives_way_if_its_whole_webhook_is_and_is_then_sent_once() {
    for pending in [(5, 5, 100), (5, 100, 5)] {
        let mut world = down(pending, (10, 100, 100), &[("ns", 1)]);
        let webhook: WebhookKey = "ns/0".into();
        let events = flood(&mut world, "ns", 5);
        let jobs: Vec<_> = events.iter().map(|event| world.job(&webhook, event)).collect();
        for job in &jobs {
            world.request(job);
            world.work(false);
        }
        assert_eq!(world.sendings.len(), 1, "the others wait for it");
        let other = world.add_hook("ns", "other");
        world.work(false);
        world.record("ns", "i-1", Fate::Good);
        world.work(false);
        world.audit();
        assert!(world.sendings.iter().any(|sending| sending.webhook == other));
        assert_eq!(world.dispatcher.jobs[&jobs[4]].phase(), DeliveryPhase::Held);
        world.settle();
        let status = world.status(&jobs[4]);
        assert_eq!(status.attempt_count, 2, "{status:#?}");
        world.heal();
        world.audit_end();
    }
}
