//! Existing records: those that a new leader finds, that the watch or a list shows, and that a write meets.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    super::*,
    world::{Fate, Receiver, World},
};
use resources::{DeliveryPhase, revision};

fn world(receiver: Receiver) -> (World, WebhookKey) {
    World::with_hook(DeliveryLog::Failures, receiver)
}

/// A delivery that succeeded after it had been recorded as pending. This is being written, and its event is still in the
/// outbox.
fn delivered() -> (World, WebhookKey, JobKey) {
    let (mut world, webhook) = world(Receiver::Up);
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.execute(0, Fate::Good);
    world.pass(Duration::from_secs(1));
    store(&mut world);
    world.land(0);
    world.execute(0, Fate::Good);
    let job = world.job(&webhook, &event);
    (world, webhook, job)
}

/// A delivery that failed once, which has been written. Its event is still in the outbox.
fn failed() -> (World, JobKey) {
    let (mut world, webhook) = world(Receiver::Down);
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.execute(0, Fate::Good);
    world.land(0);
    store(&mut world);
    let job = world.job(&webhook, &event);
    (world, job)
}

/// Carries out the first command, which is to write.
fn store(world: &mut World) {
    world.execute(0, Fate::Good);
    world.write(0, Fate::Good);
    world.answer(0);
}

fn watch(world: &mut World) {
    while world.watch_deliveries() {}
}

fn attempts(world: &World) -> usize {
    let is_one = |command: &&Command| matches!(command, Command::Attempt { .. });
    world.commands.iter().filter(is_one).count()
}

#[test]
fn a_label_removed_before_a_write_of_the_end_seemed_to_fail_sends_again() {
    for is_seen_before in [false, true] {
        let (mut world, _, job) = delivered();
        world.write(0, Fate::Unheard);
        world.redeliver(&job);
        if is_seen_before {
            watch(&mut world);
            assert_eq!(attempts(&world), 0, "while it is being written");
        }
        world.answer(0);
        watch(&mut world);
        assert_eq!(attempts(&world), 1, "{is_seen_before}");
        world.run();
        assert_eq!(world.begun.len(), 2);
        world.audit_end();
    }
}

#[test]
fn an_end_whose_write_seemed_to_fail_is_counted_when_it_is_found_and_not_written_again() {
    let (mut world, webhook, _) = delivered();
    world.write(0, Fate::Unheard);
    world.answer(0);
    world.pass(Duration::from_secs(1));
    store(&mut world);
    assert!(world.commands.is_empty(), "{:?}", world.commands);
    assert_eq!(world.tally(&webhook).0.finished, 1);
    world.run();
    world.audit_end();
}

#[test]
fn a_change_of_a_record_that_has_just_been_sent_again_does_not_send_it_once_more() {
    let (mut world, _, job) = delivered();
    world.write(0, Fate::Good);
    world.answer(0);
    world.redeliver(&job);
    world.work(false);
    world.land(0);
    world.take_back(&job);
    watch(&mut world);
    world.run();
    assert_eq!(world.begun.len(), 2);
    assert_eq!(world.status(&job).attempt_count, 2);
    world.audit_end();
}

#[test]
fn a_new_leader_sends_what_its_lookup_or_the_watch_shows_to_be_unfinished_whichever_is_first() {
    for is_looked_up in [false, true] {
        let (mut world, _, job) = delivered();
        world.write(0, Fate::Good);
        world.crash(|_| false);
        world.execute(0, Fate::Good);
        world.answer(0);
        assert_eq!(world.commands, [Command::Check(job.clone())]);
        world.redeliver(&job);
        if is_looked_up {
            world.execute(0, Fate::Good);
            world.answer(0);
        } else {
            watch(&mut world);
        }
        assert_eq!(attempts(&world), 1, "{is_looked_up}");
        world.run();
        assert_eq!(world.begun.len(), 2);
        world.audit_end();
    }
}

#[test]
fn an_outcome_whose_write_meets_a_changed_record_is_written_to_that_one() {
    let (mut world, job) = failed();
    world.pass(Duration::from_secs(60));
    world.execute(0, Fate::Good);
    world.land(0);
    world.execute(0, Fate::Good);
    world.take_back(&job);
    world.write(0, Fate::Good);
    world.answer(0);
    world.settle();
    assert_eq!(world.status(&job).attempt_count, 2);
    world.heal();
    world.audit_end();
}

#[test]
fn an_outcome_during_a_write_is_written_after_it() {
    let (mut world, webhook) = world(Receiver::Down);
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.execute(0, Fate::Good);
    world.pass(Duration::from_secs(1));
    world.execute(0, Fate::Good);
    world.land(0);
    assert!(world.commands.is_empty(), "{:?}", world.commands);
    world.write(0, Fate::Good);
    world.answer(0);
    store(&mut world);
    assert_eq!(world.status(&world.job(&webhook, &event)).attempt_count, 1);
    world.heal();
    world.audit_end();
}

#[test]
fn a_finished_delivery_is_not_sent_again_for_an_older_version_of_its_record() {
    let (mut world, _, _) = delivered();
    world.write(0, Fate::Good);
    world.answer(0);
    world.watch_deliveries();
    assert!(world.commands.is_empty(), "{:?}", world.commands);
    world.run();
    assert_eq!(world.begun.len(), 1);
    world.audit_end();
}

#[test]
fn a_finished_delivery_is_remembered_until_two_lists_lack_it_if_the_watch_does_not_show_its_end() {
    let (mut world, _, job) = delivered();
    world.write(0, Fate::Good);
    world.answer(0);
    assert_eq!(
        world.dispatcher.tombstones_after(None, 2),
        std::slice::from_ref(&job)
    );
    world.list(&[]);
    assert_eq!(
        world.dispatcher.tombstones_after(None, 2),
        std::slice::from_ref(&job)
    );
    world.list(&[]);
    assert!(world.dispatcher.tombstones_after(None, 2).is_empty());
}

#[test]
fn a_new_leader_does_not_send_what_its_lookup_shows_to_be_finished() {
    let (mut world, _, job) = delivered();
    world.write(0, Fate::Good);
    world.crash(|_| false);
    world.execute(0, Fate::Good);
    world.answer(0);
    assert_eq!(world.commands, [Command::Check(job)]);
    world.execute(0, Fate::Good);
    world.answer(0);
    assert_eq!(attempts(&world), 0);
    world.run();
    assert_eq!(world.begun.len(), 1);
    world.audit_end();
}

#[test]
fn an_older_version_of_a_record_does_not_replace_a_newer_one() {
    let (mut world, job) = failed();
    let older = world.deliveries[&job].clone();
    world.take_back(&job);
    watch(&mut world);
    let now = world.now();
    world.dispatcher.delivery_seen(older, false, now);
    let newest = revision(&*world.deliveries[&job]);
    assert_eq!(world.dispatcher.jobs[&job].version(), newest);
}

#[test]
fn for_a_new_leader_an_event_is_settled_once_it_has_a_record_although_that_is_not_finished() {
    let (mut world, job) = failed();
    world.crash(|_| false);
    world.settle();
    assert!(world.objects["i-1"].outbox.is_empty());
    assert_eq!(world.status(&job).phase, DeliveryPhase::Pending);
    world.heal();
    world.audit_end();
}

#[test]
fn a_new_leader_releases_what_was_held_for_a_webhook_that_can_be_sent_to_now() {
    let (mut world, webhook) = world(Receiver::Up);
    world.set_secret(&webhook, false);
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.settle();
    let job = world.job(&webhook, &event);
    assert_eq!(world.status(&job).phase, DeliveryPhase::Held);
    world.no_secret.clear();
    world.crash(|_| false);
    world.work(false);
    world.pass(Duration::from_secs(1));
    world.work(false);
    assert_eq!(world.sendings.len(), 1);
    assert_eq!(world.status(&job).phase, DeliveryPhase::Pending);
    world.run();
    world.audit_end();
}

#[test]
fn a_new_leader_makes_the_first_attempts_that_are_left_over_one_after_another_but_not_the_retries() {
    for (receiver, at_a_time) in [(None, 1), (Some(Receiver::Down), 3)] {
        let (mut world, webhook) = world(Receiver::Up);
        for uid in ["i-1", "i-2", "i-3"] {
            world.record("ns", uid, Fate::Good);
        }
        world.work(false);
        if let Some(receiver) = receiver {
            world.receivers.insert(webhook, receiver);
            world.settle();
        }
        world.pass(Duration::from_secs(1));
        world.work(false);
        assert_eq!(world.deliveries.len(), 3);
        world.crash(|_| false);
        world.pass(Duration::from_secs(60));
        world.work(false);
        assert_eq!(world.sendings.len(), at_a_time);
        world.heal();
        world.audit_end();
    }
}

#[test]
fn a_record_without_a_webhook_is_kept_until_two_lists_in_a_row_lack_it_if_it_may_be_newer() {
    let (world, job) = failed();
    let (record, now) = (&world.deliveries[&job], world.now());
    let version = revision(&**record);
    let mut dispatcher = Dispatcher::new(world.limits.clone(), world.schedule.clone(), world.log);
    dispatcher.delivery_seen(record.clone(), true, now);
    dispatcher.forget_orphan(&job, version - 1);
    dispatcher.delivery_listed(record, version, now);
    dispatcher.forget_orphan(&job, version - 1);
    assert_eq!(dispatcher.orphans_after(None, 2), std::slice::from_ref(&job));
    dispatcher.forget_orphan(&job, version - 1);
    assert!(dispatcher.orphans_after(None, 2).is_empty());
}

#[test]
fn a_test_without_a_webhook_is_lost_if_it_was_created_before_a_time_and_not_at_that_time() {
    let (mut world, webhook) = world(Receiver::Up);
    let test = world.add_test(&webhook, "test");
    let (mut record, now) = ((*world.deliveries[&test]).clone(), world.now());
    record.metadata.creation_timestamp = Some(Time(now.wall));
    let mut dispatcher = Dispatcher::new(world.limits.clone(), world.schedule.clone(), world.log);
    dispatcher.delivery_seen(record.into(), true, now);
    assert!(dispatcher.lost_test(&test, now.wall).is_none());
    assert!(
        dispatcher
            .lost_test(&test, now.wall + Duration::from_millis(1))
            .is_some()
    );
}
