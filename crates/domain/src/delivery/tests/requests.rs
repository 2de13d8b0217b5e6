//! Requests to send deliveries now.

use std::time::Duration;

use super::{
    super::*,
    world::{Fate, Receiver, World},
};
use resources::DeliveryPhase;

/// A webhook whose receiver is down, and a delivery of it that has failed once.
fn world() -> (World, WebhookKey, JobKey) {
    let (mut world, webhook) = World::with_hook(DeliveryLog::Failures, Receiver::Down);
    let job = record(&mut world, &webhook, "i-1");
    world.settle();
    (world, webhook, job)
}

/// The same, but another delivery is exhausted and has disabled the webhook, so this one is held.
fn disabled() -> (World, WebhookKey, [JobKey; 2]) {
    let (mut world, webhook, exhausted) = world();
    world.run();
    assert_eq!(world.disablements.len(), 1);
    let held = record(&mut world, &webhook, "i-2");
    world.settle();
    assert_eq!(world.status(&held).phase, DeliveryPhase::Held);
    (world, webhook, [exhausted, held])
}

fn record(world: &mut World, webhook: &WebhookKey, uid: &str) -> JobKey {
    let event = world.record("ns", uid, Fate::Good).unwrap();
    world.job(webhook, &event)
}

fn seconds(world: &World) -> Vec<u64> {
    world.begun.iter().map(|sending| sending.at.as_secs()).collect()
}

fn next(world: &mut World) {
    let at = world.dispatcher.next_timer().unwrap();
    world.pass(at.saturating_duration_since(world.now().mono));
}

/// Advances until a retry is due and in flight.
fn retry_begins(world: &mut World) {
    while world.sendings.is_empty() {
        next(world);
        world.work(false);
    }
}

#[test]
fn a_pending_one_is_sent_at_once_and_if_it_fails_its_ladder_is_as_before() {
    let (mut world, _, job) = world();
    let before = world.status(&job);
    for _ in 0..3 {
        let nonce = world.request(&job);
        world.pass(Duration::from_secs(10));
        world.settle();
        let status = world.status(&job);
        assert_eq!(status.attempt_requested_at, nonce);
        assert_eq!(
            (status.phase, status.retries, status.next_attempt_at),
            (before.phase, before.retries, before.next_attempt_at)
        );
    }
    assert_eq!(world.status(&job).attempt_count, 4);
    world.run();
    let minutes = [1, 5, 30, 120, 360].iter().scan(0, |at, minutes| {
        *at += minutes * 60;
        Some(*at)
    });
    assert_eq!(
        seconds(&world),
        [0, 10, 20, 30].into_iter().chain(minutes).collect::<Vec<_>>()
    );
    assert_eq!(world.disablements.len(), 1);
    assert_eq!(world.status(&job).phase, DeliveryPhase::Exhausted);
}

#[test]
fn a_request_costs_its_own_write_and_that_of_the_outcome() {
    let (mut world, webhook, job) = world();
    let before = world.writes.replaces;
    world.request(&job);
    world.settle();
    assert_eq!(world.writes.replaces, before + 1);
    world.receivers.insert(webhook, Receiver::Up);
    world.request(&job);
    world.settle();
    assert_eq!(world.writes.replaces, before + 2);
    assert_eq!(world.status(&job).phase, DeliveryPhase::Delivered);
    world.run();
    world.audit_end();
    assert_eq!(world.begun.len(), 3);
}

#[test]
fn what_is_requested_takes_the_step_of_the_ladder_that_falls_due_meanwhile() {
    let (mut world, _, job) = world();
    world.pass(Duration::from_secs(59));
    world.request(&job);
    world.work(false);
    world.pass(Duration::from_secs(10));
    world.settle();
    let status = world.status(&job);
    assert_eq!((status.attempt_count, status.retries), (2, 2));
    assert_eq!(
        status.next_attempt_at,
        Some(world.wall + Duration::from_secs(300))
    );
    world.heal();
    world.audit_end();
}

#[test]
fn retry_after_may_have_the_next_one_wait_longer_than_it_would() {
    let (mut world, _, job) = world();
    let scheduled = world.status(&job).next_attempt_at.unwrap();
    for (asked, later) in [(5, None), (90, Some(90)), (3600, Some(120))] {
        world.request(&job);
        world.work(false);
        let report = world.report(429, Some(Duration::from_secs(asked)));
        world.report_of(0, report);
        world.settle();
        let expected = later.map_or(scheduled, |seconds| world.wall + Duration::from_secs(seconds));
        assert_eq!(world.status(&job).next_attempt_at, Some(expected), "{asked}");
    }
    world.heal();
    world.audit_end();
}

#[test]
fn one_that_is_told_gone_disables_at_once() {
    let (mut world, webhook, job) = world();
    world.receivers.insert(webhook, Receiver::Gone);
    world.request(&job);
    world.settle();
    assert_eq!(world.disablements.len(), 1);
    assert_eq!(world.status(&job).phase, DeliveryPhase::Exhausted);
}

#[test]
fn a_success_under_way_answers_a_request_and_a_failure_is_followed_by_another_attempt() {
    for (receiver, attempts) in [(Receiver::Up, 2), (Receiver::Down, 3)] {
        let (mut world, webhook, job) = world();
        world.receivers.insert(webhook, receiver);
        retry_begins(&mut world);
        world.request(&job);
        world.request(&job);
        world.work(false);
        assert_eq!(world.sendings.len(), 1, "not twice at the same time");
        world.settle();
        assert_eq!(world.begun.len(), attempts);
        assert_eq!(seconds(&world)[1..], vec![60; attempts - 1]);
        world.heal();
        world.audit_end();
    }
}

#[test]
fn a_request_during_the_last_retry_has_one_more_made_before_the_webhook_is_disabled() {
    let (mut world, _, job) = world();
    while world.status(&job).retries < 5 {
        next(&mut world);
        world.settle();
    }
    retry_begins(&mut world);
    world.request(&job);
    world.work(false);
    world.land(0);
    world.work(false);
    assert!(world.disablements.is_empty());
    assert_eq!(world.sendings.len(), 1);
    world.settle();
    assert_eq!(world.disablements.len(), 1);
    let status = world.status(&job);
    assert_eq!(
        (status.phase, status.attempt_count),
        (DeliveryPhase::Exhausted, 7)
    );
}

#[test]
fn a_request_that_the_record_of_a_failure_meets_is_acted_on() {
    let (mut world, _, job) = world();
    retry_begins(&mut world);
    world.land(0);
    world.request(&job);
    world.settle();
    let status = world.status(&job);
    assert_eq!((status.attempt_count, status.retries), (3, 2));
    assert!(status.attempt_requested_at.is_some());
}

#[test]
fn a_held_one_of_a_disabled_webhook_is_sent_once_and_held_if_it_fails() {
    let (mut world, webhook, [_, held]) = disabled();
    let (begun, writes) = (world.begun.len(), world.writes.replaces);
    let nonce = world.request(&held);
    world.run();
    assert_eq!(world.begun.len(), begun + 1);
    assert_eq!(world.writes.replaces, writes + 1);
    let status = world.status(&held);
    assert_eq!(
        (status.phase, status.attempt_count, status.retries),
        (DeliveryPhase::Held, 1, 0)
    );
    assert_eq!(status.attempt_requested_at, nonce);
    assert_eq!(world.tally(&webhook).2, 1);
    // The receiver is repaired.
    world.receivers.insert(webhook.clone(), Receiver::Up);
    world.request(&held);
    world.run();
    assert_eq!(world.status(&held).phase, DeliveryPhase::Delivered);
    assert_eq!(world.writes.replaces, writes + 2);
    assert_eq!(world.disablements.len(), 1);
    world.heal();
    world.audit_end();
    assert_eq!(world.begun.len(), begun + 2, "only those that were asked for");
}

#[test]
fn the_exhausted_one_is_sent_once_too_and_held_if_it_fails() {
    let (mut world, _, [exhausted, _]) = disabled();
    let (begun, writes) = (world.begun.len(), world.writes.replaces);
    world.request(&exhausted);
    world.run();
    assert_eq!(world.begun.len(), begun + 1);
    assert_eq!(world.writes.replaces, writes + 1);
    let status = world.status(&exhausted);
    assert_eq!(
        (status.phase, status.attempt_count, status.retries),
        (DeliveryPhase::Held, 7, 0)
    );
    world.heal();
    world.audit_end();
}

#[test]
fn nothing_is_sent_to_an_inactive_or_blocked_webhook_before_it_is_so_no_more() {
    for blocked in [false, true] {
        let (mut world, webhook, job) = world();
        if blocked {
            world.set_secret(&webhook, false);
        } else {
            world.change_hook(&webhook, false);
        }
        world.settle();
        world.receivers.insert(webhook.clone(), Receiver::Up);
        world.request(&job);
        world.run();
        assert_eq!(world.begun.len(), 1);
        assert_eq!(world.status(&job).phase, DeliveryPhase::Held);
        world.set_secret(&webhook, true);
        world.change_hook(&webhook, true);
        world.run();
        assert_eq!(world.begun.len(), 2);
        assert_eq!(world.status(&job).phase, DeliveryPhase::Delivered);
        world.audit_end();
    }
}

#[test]
fn what_is_requested_of_an_inactive_webhook_is_sent_when_it_is_only_disabled() {
    let (mut world, webhook, [_, held]) = disabled();
    let begun = world.begun.len();
    let disabled = world.hooks[&webhook].facts.clone();
    let inactive = WebhookFacts {
        gate: WebhookGate::Inactive,
        ..disabled.clone()
    };
    world.dispatcher.webhook_seen(inactive, world.now());
    world.request(&held);
    world.run();
    assert_eq!(world.begun.len(), begun);
    world.dispatcher.webhook_seen(disabled, world.now());
    world.run();
    assert_eq!(world.begun.len(), begun + 1);
    world.heal();
    world.audit_end();
}

#[test]
fn what_a_disabled_webhook_lacks_is_told_of_what_was_requested() {
    let (mut world, webhook, [_, held]) = disabled();
    world.no_secret.insert(webhook);
    world.request(&held);
    world.run();
    let status = world.status(&held);
    assert_eq!((status.phase, status.attempt_count), (DeliveryPhase::Held, 1));
    assert_eq!(status.last_error.as_deref(), Some("no secret"));
}

#[test]
fn while_the_secret_cannot_be_read_what_was_requested_waits_ever_longer() {
    let (mut world, webhook, [_, held]) = disabled();
    world.request(&held);
    world.work(false);
    let began = world.begun.len();
    for _ in 0..4 {
        world.report_of(0, Report::Unready);
        next(&mut world);
        world.work(false);
    }
    let waits: Vec<_> = seconds(&world)[began - 1..]
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .collect();
    assert_eq!(waits, [1, 2, 4, 8]);
    // Once the webhook is enabled, it is sent like all held deliveries.
    world.report_of(0, Report::Unready);
    world.receivers.clear();
    world.change_hook(&webhook, true);
    world.settle();
    assert_eq!(world.status(&held).phase, DeliveryPhase::Delivered);
    world.run();
    world.audit_end();
}

#[test]
fn one_that_fails_although_its_webhook_was_enabled_meanwhile_begins_its_ladder() {
    let (mut world, webhook, [_, held]) = disabled();
    world.request(&held);
    world.work(false);
    world.change_hook(&webhook, true);
    world.work(false);
    world.land(0);
    world.work(false);
    let status = world.status(&held);
    assert_eq!((status.phase, status.retries), (DeliveryPhase::Pending, 1));
    world.heal();
    world.audit_end();
}

#[test]
fn what_is_requested_when_the_webhook_is_disabled_is_sent_once_all_the_same() {
    let (mut world, webhook, first) = world();
    world.pass(Duration::from_secs(1));
    let second = record(&mut world, &webhook, "i-2");
    world.settle();
    while [&first, &second].iter().any(|job| world.status(job).retries < 5) {
        next(&mut world);
        world.settle();
    }
    let attempts = world.status(&second).attempt_count;
    retry_begins(&mut world);
    // Only one is in flight at a time, because the receiver fails, so this one must wait.
    world.request(&second);
    world.work(false);
    assert_eq!(world.sendings.len(), 1);
    assert_eq!(world.sendings[0].job, first);
    world.run();
    assert_eq!(world.disablements.len(), 1);
    let status = world.status(&second);
    assert_eq!(
        (status.phase, status.attempt_count),
        (DeliveryPhase::Held, attempts + 1)
    );
}

#[test]
fn a_crash_between_a_request_and_its_attempt_or_that_and_its_record_loses_nothing() {
    for is_disabled in [false, true] {
        for crash_at in 0..3 {
            let (mut world, webhook, job) = if is_disabled {
                let (world, webhook, [_, held]) = disabled();
                (world, webhook, held)
            } else {
                world()
            };
            let (begun, attempts) = (world.begun.len(), world.status(&job).attempt_count);
            let nonce = world.request(&job);
            if crash_at > 0 {
                world.work(false);
            }
            if crash_at > 1 {
                world.land(0);
            }
            world.crash(|_| false);
            world.settle();
            assert_eq!(world.begun.len(), begun + usize::from(crash_at > 0) + 1);
            let status = world.status(&job);
            assert_eq!(status.attempt_count, attempts + 1);
            assert_eq!(status.attempt_requested_at, nonce);
            // The next leader sends nothing again.
            world.crash(|_| false);
            world.settle();
            assert_eq!(world.status(&job), status);
            world.receivers.insert(webhook, Receiver::Up);
            world.heal();
            world.audit_end();
        }
    }
}

#[test]
fn many_go_out_in_the_order_of_their_events_as_many_at_a_time_as_ever() {
    let (mut world, webhook, first) = world();
    let mut jobs = vec![first];
    for number in 2..=20 {
        world.pass(Duration::from_millis(10));
        jobs.push(record(&mut world, &webhook, &format!("i-{number}")));
        world.settle();
    }
    world.receivers.insert(webhook.clone(), Receiver::Up);
    let begun = world.begun.len();
    for job in jobs.iter().rev() {
        world.request(job);
    }
    while world.watch_deliveries() {}
    let fresh = record(&mut world, &webhook, "i-new");
    while world.begun.len() < begun + 21 {
        world.work(false);
        world.audit();
        world.land(0);
    }
    let order: Vec<_> = world.begun[begun..].iter().map(|it| it.job.clone()).collect();
    // The first requested one is in flight before the others are known.
    let requested: Vec<_> = order.iter().filter(|job| **job != fresh).skip(1).collect();
    assert_eq!(requested, jobs[..19].iter().collect::<Vec<_>>());
    let place = order.iter().position(|job| *job == fresh).unwrap();
    assert!(place <= 2, "what is new takes turns with them: {place}");
    world.run();
    world.audit_end();
}

#[test]
fn a_request_that_is_taken_back_is_none() {
    let (mut world, webhook, [_, held]) = disabled();
    let begun = world.begun.len();
    world.request(&held);
    world.work(false);
    world.report_of(0, Report::Unready);
    world.take_back(&held);
    world.run();
    assert_eq!(world.begun.len(), begun + 1);
    assert_eq!(world.status(&held).phase, DeliveryPhase::Held);
    assert_eq!(world.tally(&webhook).2, 1);
    world.audit();
    world.heal();
    world.audit_end();
}

#[test]
fn a_test_is_sent_once_whatever_is_requested() {
    let (mut world, webhook, _) = world();
    let test = world.add_test(&webhook, "test-1");
    world.request(&test);
    world.settle();
    let attempts = |world: &World| world.begun.iter().filter(|it| it.job == test).count();
    assert_eq!(attempts(&world), 1);
    assert_eq!(world.status(&test).phase, DeliveryPhase::Exhausted);
    world.request(&test);
    world.settle();
    assert_eq!(attempts(&world), 2, "sent again, once");
    world.heal();
    world.audit_end();
}

#[test]
fn a_requested_attempt_that_fails_just_when_the_retry_is_due_is_that_retry() {
    let (mut world, _, job) = world();
    world.pass(Duration::from_secs(59));
    world.request(&job);
    world.work(false);
    world.pass(Duration::from_secs(1));
    world.settle();
    let status = world.status(&job);
    assert_eq!((status.attempt_count, status.retries), (2, 2));
    world.heal();
    world.audit_end();
}

#[test]
fn a_requested_first_attempt_begins_the_ladder_although_the_clock_was_set_back() {
    let limits = DeliveryLimits {
        in_flight_per_webhook: 1,
        ..DeliveryLimits::default()
    };
    let mut world = World::with(limits, DeliveryLog::Failures);
    let webhook = world.add_hook("ns", "one");
    world.receivers.insert(webhook.clone(), Receiver::Down);
    world.settle();
    record(&mut world, &webhook, "i-1");
    let job = record(&mut world, &webhook, "i-2");
    world.work(false);
    world.pass(Duration::from_secs(1));
    world.work(false);
    world.request(&job);
    world.work(false);
    world.wall -= jiff::SignedDuration::from_hours(1);
    world.settle();
    let status = world.status(&job);
    assert_eq!((status.attempt_count, status.retries), (1, 1));
    world.heal();
    world.audit_end();
}

#[test]
fn a_requested_retry_that_cannot_be_sent_for_now_waits_and_that_is_no_attempt() {
    for report in [Report::Unready, Report::Blocked("so".to_owned())] {
        let (mut world, _, job) = world();
        let nonce = world.request(&job);
        world.work(false);
        world.report_of(0, report);
        world.work(false);
        assert_eq!(world.status(&job).attempt_count, 1);
        world.pass(Duration::from_secs(1));
        world.settle();
        let status = world.status(&job);
        assert_eq!((status.phase, status.attempt_count), (DeliveryPhase::Pending, 2));
        assert_eq!(status.attempt_requested_at, nonce);
        world.heal();
        world.audit_end();
    }
}

#[test]
fn the_exhausted_one_that_is_to_be_sent_again_is_held_until_its_webhook_is_enabled() {
    let (mut world, webhook, [exhausted, _]) = disabled();
    let begun = world.begun.len();
    world.redeliver(&exhausted);
    world.run();
    assert_eq!(world.begun.len(), begun);
    let status = world.status(&exhausted);
    assert_eq!((status.phase, status.retries), (DeliveryPhase::Held, 0));
    world.receivers.clear();
    world.change_hook(&webhook, true);
    world.run();
    assert_eq!(world.status(&exhausted).phase, DeliveryPhase::Delivered);
    world.audit_end();
}

#[test]
fn a_first_attempt_that_waits_keeps_its_place_whatever_is_requested() {
    let mut world = World::new(DeliveryLog::Failures);
    let webhook = world.add_hook("ns", "one");
    world.settle();
    let job = record(&mut world, &webhook, "i-1");
    world.work(false);
    for pause in [1, 1, 2] {
        world.report_of(0, Report::Unready);
        world.work(false);
        if world.deliveries.contains_key(&job) {
            world.request(&job);
            world.work(false);
        }
        assert!(world.sendings.is_empty());
        world.pass(Duration::from_secs(pause));
        world.work(false);
    }
    world.run();
    assert_eq!(world.status(&job).phase, DeliveryPhase::Delivered);
    world.audit_end();
}
