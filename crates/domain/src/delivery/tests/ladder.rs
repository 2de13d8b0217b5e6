//! Retries, on the default schedule.

use std::time::Duration;

use super::{
    super::*,
    world::{Fate, Receiver, World},
};
use resources::DeliveryPhase;

const MINUTE: u64 = 60;
const HOUR: u64 = 3600;

/// A known webhook whose receiver is in this state.
fn world(receiver: Receiver) -> (World, WebhookKey) {
    World::with_hook(DeliveryLog::Failures, receiver)
}

fn record(world: &mut World, uid: &str) -> String {
    world.record("ns", uid, Fate::Good).unwrap()
}

/// Lets time pass up to the next timer.
fn next(world: &mut World) {
    let at = world.dispatcher.next_timer().unwrap();
    world.pass(at.saturating_duration_since(world.now().mono));
    world.settle();
}

fn seconds(world: &World) -> Vec<u64> {
    world.begun.iter().map(|sending| sending.at.as_secs()).collect()
}

#[test]
fn six_attempts_are_made_at_the_times_of_the_schedule_and_the_last_disables() {
    let (mut world, webhook) = world(Receiver::Down);
    let event = record(&mut world, "i-1");
    let job = world.job(&webhook, &event);
    world.settle();
    let mut phases = Vec::new();
    for retry in 1..=5 {
        let status = world.status(&job);
        assert_eq!((status.attempt_count, status.retries), (retry, retry));
        assert!(world.disablements.is_empty());
        let due = status.next_attempt_at.unwrap();
        while world.begun.len() <= usize::try_from(retry).unwrap() {
            next(&mut world);
        }
        assert_eq!(world.wall, due);
        phases.push(status.phase);
    }
    assert_eq!(phases, [DeliveryPhase::Pending; 5]);
    let steps = [MINUTE, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 6 * HOUR];
    let mut times = vec![0];
    times.extend(steps.iter().scan(0, |at, step| {
        *at += step;
        Some(*at)
    }));
    assert_eq!(seconds(&world), times);
    let status = world.status(&job);
    assert_eq!(status.phase, DeliveryPhase::Exhausted);
    assert_eq!(
        (status.attempt_count, status.retries, status.next_attempt_at),
        (6, 5, None)
    );
    let [disablement] = &world.disablements[..] else {
        panic!("{:?}", world.disablements)
    };
    assert_eq!(disablement.reason, DisableReason::RetriesExhausted);
    assert_eq!((disablement.attempts, disablement.generation), (6, 1));
    assert_eq!(&*disablement.event_id, event);
    assert_eq!(key("ns", &disablement.delivery), job);
    assert_eq!(disablement.error, "status 500");
}

#[test]
fn a_retry_that_succeeds_ends_the_ladder() {
    let (mut world, webhook) = world(Receiver::Down);
    let event = record(&mut world, "i-1");
    world.settle();
    world.receivers.insert(webhook.clone(), Receiver::Up);
    world.run();
    assert_eq!(seconds(&world), [0, 60]);
    assert_eq!(
        world.status(&world.job(&webhook, &event)).phase,
        DeliveryPhase::Delivered
    );
    world.audit_end();
}

#[test]
fn retry_after_lengthens_to_at_most_twice_and_never_shortens() {
    for (asked, expected) in [
        (0, 60),
        (59, 60),
        (61, 61),
        (90, 90),
        (120, 120),
        (121, 120),
        (86_400, 120),
    ] {
        let (mut world, _) = world(Receiver::Down);
        record(&mut world, "i-1");
        world.work(false);
        let report = world.report(503, Some(Duration::from_secs(asked)));
        world.report_of(0, report);
        while world.begun.len() < 2 {
            next(&mut world);
        }
        assert_eq!(seconds(&world), [0, expected], "Retry-After: {asked}");
    }
}

#[test]
fn gone_disables_at_once() {
    let (mut world, webhook) = world(Receiver::Gone);
    let event = record(&mut world, "i-1");
    world.run();
    assert_eq!(world.begun.len(), 1);
    assert_eq!(
        world.status(&world.job(&webhook, &event)).phase,
        DeliveryPhase::Exhausted
    );
    assert_eq!(world.disablements[0].reason, DisableReason::Gone);
}

#[test]
fn of_several_that_are_told_gone_at_the_same_time_one_ends_and_the_others_are_held() {
    let (mut world, _) = world(Receiver::Gone);
    for uid in ["i-1", "i-2", "i-3"] {
        record(&mut world, uid);
    }
    world.run();
    assert_eq!(world.disablements.len(), 1);
    let phases: Vec<_> = world
        .deliveries
        .values()
        .map(|it| it.status.as_ref().unwrap().phase)
        .collect();
    assert_eq!(
        phases
            .iter()
            .filter(|phase| **phase == DeliveryPhase::Held)
            .count(),
        2
    );
    world.heal();
    world.audit_end();
}

#[test]
fn a_test_is_sent_once_and_disables_nothing() {
    for receiver in [Receiver::Down, Receiver::Gone, Receiver::Up] {
        let (mut world, webhook) = world(receiver);
        let job = world.add_test(&webhook, "test");
        world.run();
        assert_eq!(world.begun.len(), 1);
        let expected = match receiver {
            Receiver::Up => DeliveryPhase::Delivered,
            _ => DeliveryPhase::Exhausted,
        };
        assert_eq!(world.status(&job).phase, expected);
        assert!(world.disablements.is_empty());
        world.audit_end();
    }
}

#[test]
fn a_test_goes_out_past_a_closed_gate() {
    let (mut world, webhook) = world(Receiver::Gone);
    record(&mut world, "i-1");
    world.run();
    world.receivers.insert(webhook.clone(), Receiver::Up);
    let job = world.add_test(&webhook, "test");
    world.run();
    assert_eq!(world.status(&job).phase, DeliveryPhase::Delivered);
}

#[test]
fn when_it_is_enabled_again_held_ones_go_out_in_order_one_by_one_and_the_exhausted_one_stays() {
    let (mut world, webhook) = world(Receiver::Gone);
    let poison = record(&mut world, "i-0");
    world.settle();
    let mut events = Vec::new();
    for number in 0..20 {
        world.pass(Duration::from_secs(1));
        events.push(record(&mut world, &format!("i-{}", (number * 7) % 5)));
    }
    world.run();
    assert_eq!(world.tally(&webhook).2, 20);
    assert_eq!(world.begun.len(), 1);
    world.receivers.insert(webhook.clone(), Receiver::Up);
    world.change_hook(&webhook, true);
    for event in &events {
        world.work(false);
        assert_eq!(world.sendings.len(), 1, "one after the other");
        assert_eq!(&*world.sendings[0].event.id, event);
        world.land(0);
    }
    world.run();
    assert_eq!(world.begun.len(), 21);
    assert_eq!(
        world.status(&world.job(&webhook, &poison)).phase,
        DeliveryPhase::Exhausted
    );
    world.audit_end();
}

#[test]
fn what_was_held_in_mid_ladder_has_a_fresh_one() {
    let (mut world, webhook) = world(Receiver::Down);
    let event = record(&mut world, "i-1");
    world.settle();
    while world.begun.len() < 4 {
        next(&mut world);
    }
    world.set_secret(&webhook, false);
    world.run();
    let job = world.job(&webhook, &event);
    assert_eq!(world.status(&job).phase, DeliveryPhase::Held);
    let begun = world.begun.len();
    world.set_secret(&webhook, true);
    world.settle();
    while world.begun.len() < begun + 6 {
        next(&mut world);
    }
    assert_eq!(world.status(&job).attempt_count, 10);
    assert_eq!(world.disablements.len(), 1);
    assert_eq!(world.begun.len(), begun + 6);
    let between: Vec<_> = seconds(&world)[begun..]
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .collect();
    assert_eq!(between, [MINUTE, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 6 * HOUR]);
}

#[test]
fn a_failing_delivery_does_not_hold_back_later_ones() {
    let (mut world, webhook) = world(Receiver::Down);
    record(&mut world, "i-1");
    world.settle();
    world.receivers.insert(webhook, Receiver::Up);
    let later = record(&mut world, "i-1");
    world.settle();
    assert_eq!(&*world.begun[1].event.id, later);
    assert_eq!(world.arrived.len(), 1);
}

#[test]
fn first_attempts_about_one_instance_are_made_in_order_one_at_a_time() {
    let (mut world, webhook) = world(Receiver::Up);
    let mut events = Vec::new();
    for _ in 0..100 {
        events.push(record(&mut world, "i-1"));
    }
    let other = record(&mut world, "i-2");
    world.work(false);
    let under_way: Vec<_> = world.sendings.iter().map(|it| it.event.id.to_string()).collect();
    assert_eq!(
        under_way,
        [events[0].clone(), other],
        "the other instance does not wait"
    );
    world.run();
    let order: Vec<_> = world
        .begun
        .iter()
        .filter(|it| &*it.event.subject == "i-1")
        .collect();
    let order: Vec<_> = order.iter().map(|it| it.event.id.to_string()).collect();
    assert_eq!(order, events);
    assert_eq!(world.tally(&webhook).0.delivered, 101);
    world.audit_end();
}

#[test]
fn an_attempt_that_could_not_begin_keeps_its_place() {
    let (mut world, _) = world(Receiver::Up);
    let events = [record(&mut world, "i-1"), record(&mut world, "i-1")];
    world.work(false);
    world.report_of(0, Report::Unready);
    world.run();
    let order: Vec<_> = world.begun.iter().map(|it| it.event.id.to_string()).collect();
    assert_eq!(order, [events[0].clone(), events[0].clone(), events[1].clone()]);
    world.audit_end();
}

#[test]
fn attempts_that_fail_for_reasons_of_our_own_come_ever_more_seldom_and_use_up_no_retry() {
    let (mut world, webhook) = world(Receiver::Up);
    record(&mut world, "i-1");
    world.work(false);
    for _ in 0..9 {
        world.report_of(0, Report::Unready);
        world.work(false);
        while world.sendings.is_empty() {
            let at = world.dispatcher.next_timer().unwrap();
            world.pass(at.saturating_duration_since(world.now().mono));
            world.work(false);
        }
    }
    let waits: Vec<_> = seconds(&world).windows(2).map(|pair| pair[1] - pair[0]).collect();
    // The second wait is no longer, because the delivery was recorded after the first.
    assert_eq!(waits, [1, 1, 2, 4, 8, 16, 30, 30, 30]);
    world.run();
    let (tally, ..) = world.tally(&webhook);
    assert_eq!((tally.delivered, tally.failed_attempts), (1, 0));
    world.audit_end();
}

#[test]
fn a_retry_that_ends_lets_no_second_first_attempt_of_its_instance_begin() {
    let (mut world, _) = world(Receiver::Down);
    record(&mut world, "i-1");
    world.settle();
    let events = [record(&mut world, "i-1"), record(&mut world, "i-1")];
    world.work(false);
    world.pass(Duration::from_secs(MINUTE));
    world.work(false);
    if let Some(retry) = world.sendings.iter().position(|it| *it.event.id != *events[0]) {
        world.land(retry);
        world.work(false);
    }
    assert!(world.sendings.iter().all(|it| *it.event.id != *events[1]));
    world.audit();
}

#[test]
fn what_an_attempt_to_the_old_url_says_does_not_disable_the_new_one() {
    let (mut world, webhook) = world(Receiver::Down);
    record(&mut world, "i-1");
    world.settle();
    while world.status(world.deliveries.keys().next().unwrap()).retries < 5 {
        next(&mut world);
    }
    while world.sendings.is_empty() {
        let at = world.dispatcher.next_timer().unwrap();
        world.pass(at.saturating_duration_since(world.now().mono));
        world.work(false);
    }
    world.change_hook(&webhook, true);
    world.work(false);
    world.settle();
    assert!(world.disablements.is_empty());
    world.receivers.clear();
    world.run();
    world.audit_end();
    assert_eq!(world.arrived.len(), 1);
}

#[test]
fn sending_again_begins_a_new_ladder() {
    let (mut world, webhook) = world(Receiver::Gone);
    let event = record(&mut world, "i-1");
    world.run();
    world.change_hook(&webhook, true);
    world.receivers.insert(webhook.clone(), Receiver::Down);
    let job = world.job(&webhook, &event);
    world.redeliver(&job);
    world.settle();
    let status = world.status(&job);
    assert_eq!(
        (status.phase, status.attempt_count, status.retries),
        (DeliveryPhase::Pending, 2, 1)
    );
    world.heal();
    world.audit_end();
    assert!(world.arrived.contains(&job));
}

#[test]
fn a_test_of_a_webhook_that_cannot_be_sent_to_ends_at_once_and_says_why() {
    let blocked = Report::Blocked("no secret".to_owned());
    for (report, why) in [
        (blocked, "no secret"),
        (
            Report::Unready,
            "nothing can be sent to the webhook; its conditions say why",
        ),
    ] {
        let (mut world, webhook) = world(Receiver::Up);
        world.set_secret(&webhook, false);
        let job = world.add_test(&webhook, "test");
        world.work(false);
        world.report_of(0, report);
        world.settle();
        let status = world.status(&job);
        assert_eq!(
            (status.phase, status.attempt_count),
            (DeliveryPhase::Exhausted, 1)
        );
        assert_eq!(status.last_error.as_deref(), Some(why));
        world.heal();
        world.audit_end();
        assert_eq!(world.begun.len(), 1);
    }
}

#[test]
fn a_test_that_cannot_be_sent_for_a_moment_is_sent_later() {
    let (mut world, webhook) = world(Receiver::Up);
    let job = world.add_test(&webhook, "test");
    world.work(false);
    world.report_of(0, Report::Unready);
    world.run();
    let status = world.status(&job);
    assert_eq!(
        (status.phase, status.attempt_count),
        (DeliveryPhase::Delivered, 1)
    );
    world.audit_end();
}

#[test]
fn what_could_not_be_sent_to_a_webhook_that_was_disabled_meanwhile_is_held() {
    for report in [Report::Unready, Report::Blocked("so".to_owned())] {
        let (mut world, webhook) = world(Receiver::Gone);
        let [_, held] = ["i-1", "i-2"].map(|uid| record(&mut world, uid));
        world.work(false);
        world.land(0);
        world.work(false);
        assert_eq!(world.disablements.len(), 1);
        world.report_of(0, report);
        world.settle();
        let status = world.status(&world.job(&webhook, &held));
        assert_eq!((status.phase, status.attempt_count), (DeliveryPhase::Held, 0));
        assert_eq!(world.tally(&webhook).2, 1);
        world.heal();
        world.audit_end();
    }
}

#[test]
fn a_change_of_the_webhook_during_an_attempt_leaves_the_ladder_as_it_is_unless_it_has_ended() {
    let (mut world, webhook) = world(Receiver::Down);
    let event = record(&mut world, "i-1");
    let job = world.job(&webhook, &event);
    world.settle();
    for retries in [2, 3, 4, 5, 1] {
        while world.sendings.is_empty() {
            let at = world.dispatcher.next_timer().unwrap();
            world.pass(at.saturating_duration_since(world.now().mono));
            world.work(false);
        }
        world.change_hook(&webhook, true);
        world.work(false);
        world.land(0);
        world.work(false);
        assert_eq!(world.status(&job).retries, retries);
    }
    assert!(world.disablements.is_empty());
    world.heal();
    world.audit_end();
}

#[test]
fn of_two_deliveries_whose_last_retries_fail_at_the_same_time_one_disables() {
    let (mut world, webhook) = world(Receiver::Down);
    let jobs = ["i-1", "i-2"].map(|uid| {
        let event = record(&mut world, uid);
        world.job(&webhook, &event)
    });
    world.settle();
    while jobs.iter().any(|job| world.status(job).retries < 5) {
        next(&mut world);
    }
    // So that both are sent at the same time.
    world.receivers.insert(webhook.clone(), Receiver::Up);
    for number in 0..4 {
        record(&mut world, &format!("j-{number}"));
        world.settle();
    }
    world.receivers.insert(webhook, Receiver::Down);
    while world.sendings.len() < 2 {
        let at = world.dispatcher.next_timer().unwrap();
        world.pass(at.saturating_duration_since(world.now().mono));
        world.work(false);
    }
    world.land(0);
    world.land(0);
    let disables = |command: &&Command| matches!(command, Command::Disable(_));
    assert_eq!(world.commands.iter().filter(disables).count(), 1);
    world.settle();
    assert_eq!(
        jobs.map(|job| world.status(&job).phase),
        [DeliveryPhase::Exhausted; 2]
    );
}

#[test]
fn the_counters_of_a_webhook_tell_how_many_attempts_failed_and_when_and_why() {
    let (mut world, webhook) = world(Receiver::Down);
    record(&mut world, "i-1");
    world.run_until(|world| world.begun.len() == 2);
    world.settle();
    let failed_at = world.wall;
    let (tally, ..) = world.tally(&webhook);
    assert_eq!((tally.delivered, tally.failed_attempts), (0, 2));
    assert_eq!(
        (
            tally.last_failure_at,
            tally.last_failure.as_deref(),
            tally.last_success_at
        ),
        (Some(failed_at), Some("status 500"), None)
    );
    world.receivers.insert(webhook.clone(), Receiver::Up);
    world.run();
    let (tally, ..) = world.tally(&webhook);
    assert_eq!((tally.delivered, tally.failed_attempts), (1, 2));
    assert_eq!(
        (tally.last_failure_at, tally.last_success_at),
        (Some(failed_at), Some(world.wall))
    );
}

#[test]
fn a_test_that_waits_goes_on_waiting_when_its_webhook_is_enabled() {
    let (mut world, webhook) = world(Receiver::Gone);
    record(&mut world, "i-1");
    world.run();
    let job = world.add_test(&webhook, "test");
    world.receivers.clear();
    world.work(false);
    world.report_of(0, Report::Unready);
    world.change_hook(&webhook, true);
    world.work(false);
    assert!(world.sendings.is_empty());
    world.pass(Duration::from_secs(1));
    world.settle();
    assert_eq!(world.status(&job).phase, DeliveryPhase::Delivered);
    world.audit_end();
}
