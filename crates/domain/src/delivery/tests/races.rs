//! Messages that arrive late, twice or out of order: one test for each case that once failed.

use std::time::Duration;

use super::{
    super::*,
    world::{Fate, Receiver, World},
};
use resources::DeliveryPhase;

fn world(log: DeliveryLog) -> (World, WebhookKey) {
    let mut world = World::new(log);
    let webhook = world.add_hook("ns", "one");
    world.settle();
    (world, webhook)
}

#[test]
fn a_webhook_that_the_watch_has_not_shown_gets_the_event_by_the_lookup() {
    let mut world = World::new(DeliveryLog::Failures);
    world.add_hook("ns", "one");
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    assert!(world.commands.is_empty());
    assert!(!world.dispatcher.is_settled(&event));
    world.begin_lookup();
    world.end_lookup();
    assert!(matches!(world.commands[..], [Command::Attempt { .. }]));
    world.run();
    assert_eq!(world.begun.len(), 1);
    world.audit_end();
}

#[test]
fn a_webhook_enabled_before_its_disablement_was_seen_sends_what_was_held() {
    let (mut world, webhook) = world(DeliveryLog::Failures);
    world.receivers.insert(webhook.clone(), Receiver::Gone);
    world.record("ns", "i-1", Fate::Good);
    world.execute(0, Fate::Good);
    world.land(0);
    world.record("ns", "i-2", Fate::Good);
    // So far it is disabled only in this process; the watch shows the changed spec at once.
    world.change_hook(&webhook, true);
    world.receivers.clear();
    world.run();
    assert_eq!(world.arrived.len(), 1);
    world.audit_end();
}

#[test]
fn the_end_of_a_webhook_is_not_the_end_of_another_with_its_name() {
    let (mut world, webhook) = world(DeliveryLog::Failures);
    world.delete_hook(&webhook);
    world.add_hook("ns", "one");
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.begin_lookup();
    world.end_lookup();
    assert!(world.dispatcher.knows(&event));
    while world.watch_hooks() {}
    world.run();
    assert!(world.arrived.contains(&world.job(&webhook, &event)));
    world.audit_end();
}

#[test]
fn a_list_from_before_its_end_does_not_bring_a_webhook_back() {
    let (mut world, webhook) = world(DeliveryLog::Failures);
    world.record("ns", "i-1", Fate::Unheard);
    world.watch_objects();
    world.begin_lookup();
    world.delete_hook(&webhook);
    while world.watch_hooks() {}
    world.end_lookup();
    assert_eq!(world.dispatcher.webhooks().count(), 0);
    world.run();
    world.audit_end();
}

#[test]
fn an_old_version_of_an_outbox_sends_nothing_again() {
    let (mut world, _) = world(DeliveryLog::Failures);
    world.record("ns", "i-1", Fate::Good);
    world.begin_lookup();
    world.end_lookup();
    world.execute(0, Fate::Good);
    world.land(0);
    assert!(world.clear_outboxes(Fate::Good));
    // Only now does the watch show the version with the entry.
    world.run();
    assert_eq!(world.begun.len(), 1);
    world.audit_end();
}

#[test]
fn an_attempt_that_could_not_begin_leaves_no_drain_behind() {
    let (mut world, webhook) = world(DeliveryLog::Failures);
    world.set_secret(&webhook, false);
    world.record("ns", "i-1", Fate::Good);
    world.run();
    world.set_secret(&webhook, true);
    world.work(false);
    world.report_of(0, Report::Unready);
    world.run();
    for number in 0..3 {
        world.record("ns", &format!("j-{number}"), Fate::Good);
    }
    world.work(false);
    assert_eq!(world.sendings.len(), 3);
    world.run();
    world.audit_end();
}

#[test]
fn a_delivery_deleted_while_it_is_sent_does_not_stall_its_webhook() {
    let limits = DeliveryLimits {
        in_flight_per_webhook: 1,
        ..DeliveryLimits::default()
    };
    let mut world = World::with(limits, DeliveryLog::Failures);
    let webhook = world.add_hook("ns", "one");
    world.settle();
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.record("ns", "i-2", Fate::Good);
    world.work(false);
    world.pass(Duration::from_secs(1));
    world.work(false);
    let job = world.job(&webhook, &event);
    world.delete_delivery(&job);
    world.work(false);
    assert_eq!(world.sendings.len(), 1, "it still takes its place");
    world.run();
    assert_eq!(world.begun.len(), 2);
    world.audit_end();
}

#[test]
fn a_delivery_deleted_while_it_is_sent_still_keeps_back_later_ones_of_its_instance() {
    let (mut world, webhook) = world(DeliveryLog::Failures);
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.record("ns", "i-1", Fate::Good);
    world.work(false);
    world.pass(Duration::from_secs(1));
    world.work(false);
    let job = world.job(&webhook, &event);
    world.delete_delivery(&job);
    world.work(false);
    assert_eq!(world.sendings.len(), 1);
    world.run();
    assert_eq!(world.begun.len(), 2);
    world.audit_end();
}

#[test]
fn what_is_being_sent_is_not_sent_again_by_whoever_sees_its_record() {
    let (mut world, webhook) = world(DeliveryLog::Failures);
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.work(false);
    world.pass(Duration::from_secs(1));
    world.work(false);
    let job = world.job(&webhook, &event);
    let record = world.deliveries[&job].clone();
    world
        .dispatcher
        .delivery_gone("ns", record.metadata.name.as_deref().unwrap());
    let mut newer = (*record).clone();
    newer.metadata.resource_version = Some("100000".to_owned());
    let now = world.now();
    world.dispatcher.delivery_seen(newer.into(), false, now);
    world.work(false);
    assert_eq!(world.begun.len(), 1);
    world.run();
    assert_eq!(world.begun.len(), 1);
    assert_eq!(world.status(&job).phase, DeliveryPhase::Delivered);
}

#[test]
fn a_creation_that_seemed_to_fail_is_followed_by_the_outcome() {
    let (mut world, webhook) = world(DeliveryLog::Failures);
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.execute(0, Fate::Good);
    world.pass(Duration::from_secs(1));
    world.execute(0, Fate::Good);
    world.write(0, Fate::Unheard);
    world.answer(0);
    world.land(0);
    world.run();
    assert_eq!(
        world.begun.len(),
        1,
        "not sent again for the record that is there"
    );
    assert_eq!(
        world.status(&world.job(&webhook, &event)).phase,
        DeliveryPhase::Delivered
    );
    world.audit_end();
}

#[test]
fn the_exhausted_one_is_not_written_before_the_disablement() {
    let (mut world, webhook) = world(DeliveryLog::Failures);
    world.receivers.insert(webhook.clone(), Receiver::Gone);
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.execute(0, Fate::Good);
    world.pass(Duration::from_secs(1));
    // The write is queued before the attempt ends, and begins afterwards.
    assert!(matches!(world.commands[..], [Command::Write { .. }]));
    world.land(0);
    world.execute(0, Fate::Good);
    assert!(world.requests.is_empty());
    world.run();
    assert_eq!(
        world.status(&world.job(&webhook, &event)).phase,
        DeliveryPhase::Exhausted
    );
    assert_eq!(world.disablements.len(), 1);
}

#[test]
fn a_webhook_that_is_being_disabled_stays_closed_although_it_is_shown_as_it_was() {
    let (mut world, webhook) = world(DeliveryLog::Failures);
    world.receivers.insert(webhook, Receiver::Gone);
    world.record("ns", "i-1", Fate::Good);
    world.execute(0, Fate::Good);
    world.land(0);
    assert!(
        matches!(world.commands[..], [Command::Disable(_)]),
        "{:?}",
        world.commands
    );
    world.begin_lookup();
    world.end_lookup();
    world.record("ns", "i-2", Fate::Good);
    world.run();
    assert_eq!((world.begun.len(), world.disablements.len()), (1, 1));
    world.heal();
    world.audit_end();
}

#[test]
fn after_a_crash_entries_are_sent_in_order_although_a_lookup_fails() {
    let (mut world, _) = world(DeliveryLog::Failures);
    let events: Vec<_> = (0..3)
        .map(|_| world.record("ns", "i-1", Fate::Good).unwrap())
        .collect();
    world.crash(|_| false);
    assert!(matches!(world.commands[..], [Command::CheckLog(_)]));
    world.execute(0, Fate::Good);
    world.answer(0);
    let checks = world.commands.iter().filter(|it| matches!(it, Command::Check(_)));
    assert_eq!(checks.count(), 3);
    world.execute(0, Fate::Lost);
    world.run();
    let order: Vec<_> = world.begun.iter().map(|it| it.event.id.to_string()).collect();
    assert_eq!(order, events);
    world.audit_end();
}

#[test]
fn the_label_taken_away_before_the_end_was_answered_sends_again() {
    let (mut world, webhook) = world(DeliveryLog::Failures);
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    let job = world.job(&webhook, &event);
    world.work(false);
    world.pass(Duration::from_secs(1));
    world.work(false);
    world.land(0);
    world.execute(0, Fate::Good);
    world.write(0, Fate::Good);
    world.redeliver(&job);
    while world.watch_deliveries() {}
    world.run();
    assert_eq!(world.begun.len(), 2);
    world.audit_end();
}

#[test]
fn the_last_event_of_an_object_is_settled_when_all_are() {
    let (mut world, _) = world(DeliveryLog::Failures);
    world.record("ns", "i-1", Fate::Good);
    world.record_typed("ns", "i-1", crate::event::EventType::InstanceDeleted, Fate::Good);
    world.begin_lookup();
    world.end_lookup();
    world.execute(0, Fate::Good);
    world.land(0);
    assert!(matches!(world.commands[..], [Command::Attempt { .. }]));
    world.execute(0, Fate::Good);
    world.land(0);
    assert_eq!(world.commands, [Command::Settled("i-1".into())]);
}

#[test]
fn an_object_that_is_not_deleted_has_no_last_event() {
    let (mut world, _) = world(DeliveryLog::Failures);
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.begin_lookup();
    world.end_lookup();
    world.execute(0, Fate::Good);
    world.land(0);
    assert!(world.dispatcher.is_settled(&event));
    assert!(world.commands.is_empty(), "{:?}", world.commands);
}

#[test]
fn a_record_held_for_a_webhook_that_is_yet_to_be_seen_shows_as_held() {
    let (mut world, webhook) = world(DeliveryLog::Failures);
    world.receivers.insert(webhook.clone(), Receiver::Down);
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.settle();
    let job = world.job(&webhook, &event);
    let record = world.deliveries[&job].clone();
    let mut facts = world.hooks[&webhook].facts.clone();
    let (limits, now) = (world.limits.clone(), world.now());
    world.dispatcher = Dispatcher::new(limits, world.schedule.clone(), world.log);
    world.dispatcher.delivery_seen(record, false, now);
    assert_eq!(world.dispatcher.next_command(now), None);
    facts.gate = WebhookGate::Disabled;
    world.dispatcher.webhook_seen(facts, now);
    let Some(WriteRequest::Replace(record)) =
        world
            .dispatcher
            .next_command(now)
            .and_then(|command| match command {
                Command::Write { job, .. } => world.dispatcher.begin_write(&job, now),
                _ => None,
            })
    else {
        panic!("it is not written")
    };
    assert_eq!(record.status.unwrap().phase, DeliveryPhase::Held);
}

#[test]
fn what_disabled_a_webhook_stays_failed_though_the_process_ended_before_that_was_written() {
    for receiver in [Receiver::Gone, Receiver::Down] {
        let (mut world, webhook) = world(DeliveryLog::Failures);
        world.receivers.insert(webhook.clone(), receiver);
        let event = world.record("ns", "i-1", Fate::Good).unwrap();
        let is_it = |command: &Command| matches!(command, Command::Disable(_));
        world.run_until(|world| world.commands.iter().any(is_it));
        let disable = world.commands.iter().position(is_it).unwrap();
        world.execute(disable, Fate::Unheard);
        world.crash(|_| false);
        world.run();
        let phase = |world: &World| {
            world.deliveries[&world.job(&webhook, &event)]
                .status
                .as_ref()
                .unwrap()
                .phase
        };
        assert_eq!(phase(&world), DeliveryPhase::Exhausted, "{receiver:?}");
        world.receivers.clear();
        world.change_hook(&webhook, true);
        world.run();
        assert_eq!(
            phase(&world),
            DeliveryPhase::Exhausted,
            "{receiver:?}: sent again"
        );
        assert!(world.arrived.is_empty());
        world.audit_end();
    }
}

#[test]
fn an_event_whose_object_a_new_leader_loses_sight_of_before_it_has_read_the_log_is_sent() {
    let (mut world, _) = world(DeliveryLog::All);
    world.record("ns", "i-1", Fate::Good);
    world.crash(|_| false);
    world.lose_sight("i-1");
    world.run();
    assert_eq!((world.begun.len(), world.arrived.len()), (1, 1));
    assert!(world.dispatcher.jobs.is_empty());
}

#[test]
fn an_event_whose_object_is_found_again_during_its_attempt_is_settled_by_that_attempt() {
    let (mut world, _) = world(DeliveryLog::Failures);
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.execute(0, Fate::Good);
    world.lose_sight("i-1");
    world.show_object("i-1");
    world.work(false);
    assert!(!world.dispatcher.is_settled(&event));
    world.land(0);
    assert!(world.dispatcher.is_settled(&event));
    world.run();
    assert_eq!(world.begun.len(), 1);
    world.audit_end();
}

#[test]
fn an_event_whose_object_is_found_again_is_not_settled_by_a_webhook_that_no_longer_wants_it() {
    let (mut world, one) = world(DeliveryLog::Failures);
    let two = world.add_hook("ns", "two");
    world.settle();
    world.receivers.insert(one.clone(), Receiver::Down);
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    while !world.commands.is_empty() {
        world.execute(0, Fate::Good);
    }
    // The attempt at `one` fails, and its Delivery is being created; that at `two` stays in flight.
    let to_one = world.sendings.iter().position(|sending| sending.webhook == one);
    world.land(to_one.unwrap());
    world.execute(0, Fate::Good);
    world.change_hook(&one, false);
    while world.watch_hooks() {}
    world.lose_sight("i-1");
    world.show_object("i-1");
    world.begin_lookup();
    world.end_lookup();
    world.write(0, Fate::Good);
    world.answer(0);
    world.work(false);
    assert!(world.dispatcher.knows(&event), "a crash would lose it");
    world.crash(|_| false);
    world.heal();
    assert!(world.arrived.contains(&world.job(&two, &event)));
    world.audit_end();
}

#[test]
fn a_list_from_before_a_change_of_a_webhook_does_not_undo_it() {
    let (mut world, webhook) = world(DeliveryLog::Failures);
    world.begin_lookup();
    world.change_hook(&webhook, false);
    while world.watch_hooks() {}
    world.end_lookup();
    world.record("ns", "i-1", Fate::Good);
    world.run();
    assert!(world.begun.is_empty());
    world.audit_end();
}

#[test]
fn the_end_of_a_webhook_leaves_the_attempts_at_others_as_they_are() {
    let (mut world, webhook) = world(DeliveryLog::Failures);
    let other = world.add_hook("ns", "other");
    world.settle();
    world.record("ns", "i-1", Fate::Good);
    world.work(false);
    assert_eq!(world.sendings.len(), 2);
    world.delete_hook(&webhook);
    world.watch_hooks();
    world.audit();
    assert_eq!(world.dispatcher.queues[&other].in_flight, 1);
    world.run();
    world.audit_end();
}

#[test]
fn a_list_from_before_this_process_led_does_not_bring_back_what_was_finished_then() {
    let (mut world, webhook) = world(DeliveryLog::All);
    world.receivers.insert(webhook.clone(), Receiver::Down);
    world.record("ns", "i-1", Fate::Good);
    world.run_until(|world| !world.deliveries.is_empty());
    let stale: Vec<_> = world.deliveries.values().cloned().collect();
    world.receivers.clear();
    world.run();
    let sent = world.begun.len();
    world.crash(|_| true);
    world.list(&stale);
    world.run();
    assert_eq!(world.begun.len(), sent);
}
