//! What is known about webhooks, and how much of that is kept.

use std::collections::HashSet;

use jiff::SignedDuration;
use kube::api::ObjectMeta;

use super::{
    super::*,
    world::{Fate, Receiver, World},
};
use resources::{SecretReference, WebhookSpec, ids, revision};

fn world() -> (World, WebhookKey) {
    let mut world = World::new(DeliveryLog::Failures);
    let webhook = world.add_hook("ns", "one");
    world.settle();
    (world, webhook)
}

#[test]
fn the_webhooks_of_a_namespace_are_known_until_they_are_gone() {
    let (mut world, one) = world();
    let (two, elsewhere) = (world.add_hook("ns", "two"), world.add_hook("other", "one"));
    world.settle();
    assert_eq!(world.dispatcher.webhooks_in("ns"), [one.clone(), two.clone()]);
    world.delete_hook(&one);
    world.settle();
    assert_eq!(world.dispatcher.webhooks_in("ns"), std::slice::from_ref(&two));
    assert_eq!(world.dispatcher.webhooks_in("other"), [elsewhere]);
    world.delete_hook(&two);
    world.settle();
    assert!(world.dispatcher.webhooks_in("ns").is_empty());
    assert!(!world.dispatcher.by_namespace.contains_key("ns"));
}

#[test]
fn a_namespace_waits_for_first_attempts_at_webhooks_that_can_be_sent_to_until_they_have_ended() {
    let (mut world, webhook) = world();
    assert!(!world.dispatcher.has_unattempted("ns"));
    world.record("ns", "i-1", Fate::Good);
    world.record("ns", "i-1", Fate::Good);
    assert!(world.dispatcher.has_unattempted("ns"));
    assert!(!world.dispatcher.has_unattempted("other"));
    world.work(false);
    assert!(world.dispatcher.has_unattempted("ns"), "in flight");
    world.set_secret(&webhook, false);
    world.settle();
    assert!(!world.dispatcher.has_unattempted("ns"), "blocked");
    world.set_secret(&webhook, true);
    world.run();
    assert!(!world.dispatcher.has_unattempted("ns"));
}

#[test]
fn a_namespace_waits_for_events_that_a_new_leader_has_to_look_up_before_they_can_be_sent() {
    let (mut world, _) = world();
    world.record("ns", "i-1", Fate::Good);
    world.crash(|_| false);
    assert!(world.dispatcher.has_unattempted("ns"));
    world.run();
    assert!(!world.dispatcher.has_unattempted("ns"));
}

#[test]
fn a_namespace_waits_for_a_first_attempt_in_flight_even_if_its_object_is_unknown() {
    let (mut world, webhook) = world();
    world.set_secret(&webhook, false);
    world.record("ns", "i-1", Fate::Good);
    world.settle();
    let (mut record, now) = ((**world.deliveries.values().next().unwrap()).clone(), world.now());
    record.spec.subject.clear();
    let mut dispatcher = Dispatcher::new(world.limits.clone(), world.schedule.clone(), world.log);
    dispatcher.webhook_seen(world.hooks[&webhook].facts.clone(), now);
    dispatcher.delivery_seen(record.into(), true, now);
    let Some(Command::Attempt { job, .. }) = dispatcher.next_command(now) else {
        panic!("it is not sent")
    };
    assert!(dispatcher.has_unattempted("ns"));
    dispatcher.attempted(&job, world.report(200, None), now);
    assert!(!dispatcher.has_unattempted("ns"));
}

#[test]
fn a_delivery_is_known_to_be_for_its_webhook_until_it_has_ended() {
    let (mut world, webhook) = world();
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    let job = world.job(&webhook, &event);
    assert_eq!(world.dispatcher.webhook_of(&job), Some(&webhook));
    world.run();
    assert_eq!(world.dispatcher.webhook_of(&job), None);
}

#[test]
fn a_webhook_that_has_replaced_another_with_its_name_gets_none_of_its_deliveries() {
    let (mut world, webhook) = world();
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    let job = world.job(&webhook, &event);
    let before = world.hooks[&webhook].facts.clone();
    let after = WebhookFacts {
        uid: "another".into(),
        revision: before.revision + 1,
        ..before
    };
    world.dispatcher.webhook_seen(after, world.now());
    assert_eq!(world.dispatcher.webhook_of(&job), None);
    assert!(world.dispatcher.next_command(world.now()).is_none());
    assert_eq!(world.dispatcher.webhooks_in("ns"), [webhook]);
}

#[test]
fn a_delivery_is_in_an_outbox_until_that_has_been_cleared_even_if_it_is_finished() {
    let (mut world, webhook) = world();
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    let job = world.job(&webhook, &event);
    assert!(world.dispatcher.is_in_outbox(&job));
    world.execute(0, Fate::Good);
    world.land(0);
    assert!(world.arrived.contains(&job) && world.dispatcher.is_in_outbox(&job));
    world.clear_outboxes(Fate::Good);
    world.run();
    assert!(!world.dispatcher.is_in_outbox(&job));
}

#[test]
fn a_delivery_that_may_be_newer_than_the_list_that_lacks_it_is_kept_until_the_next_one_lacks_it_too() {
    let (mut world, webhook) = world();
    world.receivers.insert(webhook.clone(), Receiver::Down);
    let jobs = ["i-1", "i-2"].map(|uid| {
        let event = world.record("ns", uid, Fate::Good).unwrap();
        world.settle();
        world.job(&webhook, &event)
    });
    let [older, newer] = &jobs;
    let as_of = revision(&*world.deliveries[older]);
    let (dispatcher, none) = (&mut world.dispatcher, HashSet::new());
    dispatcher.forget_unlisted(&webhook, &none, as_of);
    assert_eq!(dispatcher.jobs_of(&webhook), std::slice::from_ref(newer));
    dispatcher.forget_unlisted(&webhook, &HashSet::from([newer.clone()]), as_of);
    dispatcher.forget_unlisted(&webhook, &none, as_of);
    assert_eq!(dispatcher.jobs_of(&webhook), std::slice::from_ref(newer));
    dispatcher.forget_unlisted(&webhook, &none, as_of);
    assert!(dispatcher.jobs_of(&webhook).is_empty());
}

#[test]
fn a_delivery_deleted_while_it_is_written_is_forgotten_when_the_write_has_ended() {
    let (mut world, webhook) = world();
    world.receivers.insert(webhook.clone(), Receiver::Down);
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.settle();
    let job = world.job(&webhook, &event);
    world.request(&job);
    world.work(false);
    world.land(0);
    world.execute(0, Fate::Good);
    world
        .dispatcher
        .forget_unlisted(&webhook, &HashSet::new(), u64::MAX);
    assert_eq!(world.dispatcher.webhook_of(&job), Some(&webhook));
    world.write(0, Fate::Good);
    world.answer(0);
    assert_eq!(world.dispatcher.webhook_of(&job), None);
}

#[test]
fn of_deleted_webhooks_the_last_1024_do_not_come_back_with_an_old_list() {
    let (mut world, webhook) = world();
    let now = world.now();
    let facts = world.hooks[&webhook].facts.clone();
    let (late, uid) = (key("ns", "late"), |number: usize| format!("uid-{number}"));
    let is_known_after = |dispatcher: &mut Dispatcher, number, revision| {
        let facts = WebhookFacts {
            name: "late".into(),
            uid: uid(number).into(),
            revision,
            ..facts.clone()
        };
        dispatcher.webhook_seen(facts, now);
        dispatcher.queues.contains_key(&late)
    };
    let dispatcher = &mut world.dispatcher;
    for number in 0..=1024 {
        dispatcher.webhook_gone(&late, &uid(number), 7);
    }
    assert!(!is_known_after(dispatcher, 1, 7) && !is_known_after(dispatcher, 1024, 7));
    assert!(is_known_after(dispatcher, 1, 8), "it is readable again");
    dispatcher.webhook_gone(&late, &uid(1), 9);
    assert!(!is_known_after(dispatcher, 1, 9));
    assert!(is_known_after(dispatcher, 0, 7), "it is forgotten");
}

#[test]
fn a_disablement_is_of_one_generation_of_one_webhook() {
    let (mut world, webhook) = world();
    world.receivers.insert(webhook, Receiver::Gone);
    world.record("ns", "i-1", Fate::Good);
    world.run();
    let disablement = &world.disablements[0];
    let is_of = |uid: &str, generation| {
        let spec = WebhookSpec {
            url: "https://hooks.example.com".to_owned(),
            events: Vec::new(),
            secret_ref: SecretReference {
                name: "secret".to_owned(),
                key: "secret".to_owned(),
            },
            description: None,
            active: true,
            enable_requested_at: None,
        };
        let metadata = ObjectMeta {
            uid: Some(uid.to_owned()),
            generation: Some(generation),
            ..ObjectMeta::default()
        };
        disablement.is_of(&Webhook {
            metadata,
            spec,
            status: None,
        })
    };
    assert!(is_of(&disablement.uid, 1));
    assert!(!is_of(&disablement.uid, 2) && !is_of("another", 1));
}

#[test]
fn finished_records_are_counted_until_somebody_counts_them_anew() {
    let (mut world, webhook) = world();
    for uid in ["i-1", "i-2"] {
        world.receivers.insert(webhook.clone(), Receiver::Down);
        world.record("ns", uid, Fate::Good);
        world.settle();
        world.receivers.clear();
        world.run();
    }
    assert_eq!(world.tally(&webhook).0.finished, 2);
    world.dispatcher.finished_counted(&webhook);
    assert_eq!(world.tally(&webhook).0.finished, 0);
}

#[test]
fn what_is_known_can_be_gone_through_a_few_at_a_time() {
    let (mut world, _) = world();
    let uids = ["i-1", "i-2", "i-3"];
    let mut events: Vec<_> = uids
        .map(|uid| world.record("ns", uid, Fate::Good).unwrap())
        .into();
    let dispatcher = &world.dispatcher;
    let some = dispatcher.objects_after(None, 2);
    assert_eq!(some.iter().map(|uid| &**uid).collect::<Vec<_>>(), uids[..2]);
    assert_eq!(dispatcher.objects_after(some.last(), 2), ["i-3".into()]);
    let mut some = dispatcher.unverified_after(None, 2);
    assert_eq!(some.len(), 2);
    some.extend(dispatcher.unverified_after(some.last(), 2));
    events.sort();
    let ids: Vec<_> = some.iter().map(|it| it.event.to_string()).collect();
    assert_eq!(ids, events);
    for it in some {
        let object = uids.map(|uid| &world.objects[uid]);
        let object = object.iter().find(|object| object.outbox[0].id == *it.event);
        assert_eq!(it.revision, object.unwrap().revision);
    }
}

#[test]
fn an_event_more_than_a_day_older_than_a_webhook_is_not_sent_to_it() {
    for (later, attempts) in [(0, 1), (1, 0)] {
        let mut world = World::new(DeliveryLog::Failures);
        world.record("ns", "i-1", Fate::Unheard);
        let webhook = world.add_hook("ns", "one");
        let facts = &mut world.hooks.get_mut(&webhook).unwrap().facts;
        facts.created_at += SignedDuration::from_hours(24) + SignedDuration::from_millis(later);
        world.change_hook(&webhook, true);
        while world.watch_hooks() {}
        world.run();
        assert_eq!(world.begun.len(), attempts);
        world.audit_end();
    }
}

#[test]
fn an_unknown_delivery_of_a_list_is_new_only_if_it_is_newer_than_the_first_list() {
    let (mut world, webhook) = world();
    world.receivers.insert(webhook.clone(), Receiver::Down);
    world.record("ns", "i-1", Fate::Good);
    world.settle();
    let record = world.deliveries.values().next().unwrap().clone();
    let now = world.now();
    let mut dispatcher = Dispatcher::new(world.limits.clone(), world.schedule.clone(), world.log);
    dispatcher.webhook_seen(world.hooks[&webhook].facts.clone(), now);
    dispatcher.delivery_listed(&record, revision(&*record), now);
    assert!(dispatcher.jobs.is_empty());
    dispatcher.delivery_listed(&record, revision(&*record) - 1, now);
    assert_eq!(dispatcher.jobs.len(), 1);
}

#[test]
fn a_record_is_kept_in_memory_once_whoever_reads_it() {
    let (mut world, webhook) = world();
    world.receivers.insert(webhook, Receiver::Down);
    world.record("ns", "i-1", Fate::Good);
    world.settle();
    let (job, record) = world.deliveries.iter().next().unwrap();
    let read = Arc::new((**record).clone());
    let now = world.now();
    world.dispatcher.delivery_seen(read.clone(), false, now);
    assert!(Arc::ptr_eq(world.dispatcher.jobs[job].record().unwrap(), &read));
}

#[test]
fn what_a_deleted_webhook_has_left_without_an_owner_is_not_sent_to_the_next_one_of_its_name() {
    let (mut world, webhook) = world();
    world.receivers.insert(webhook.clone(), Receiver::Down);
    world.record("ns", "i-1", Fate::Good);
    world.settle();
    assert_eq!(world.begun.len(), 1);
    world.orphan_hook(&webhook);
    world.add_hook("ns", "one");
    world.run();
    world.crash(|_| true);
    world.run();
    assert_eq!((world.deliveries.len(), world.begun.len()), (1, 1));
    let left = world.deliveries.keys().next().unwrap();
    assert_eq!(
        world.dispatcher.orphans_after(None, 2),
        std::slice::from_ref(left)
    );
    assert!(world.dispatcher.unowned(left).is_some());
}

#[test]
fn what_is_owed_to_a_webhook_that_is_not_known_has_its_owner() {
    let (mut world, webhook) = world();
    world.receivers.insert(webhook.clone(), Receiver::Down);
    world.record("ns", "i-1", Fate::Good);
    world.settle();
    let (job, facts) = (
        world.deliveries.keys().next().unwrap(),
        &world.hooks[&webhook].facts,
    );
    let dispatcher = &mut world.dispatcher;
    assert!(dispatcher.unowned(job).is_none());
    dispatcher.webhook_gone(&webhook, &facts.uid, facts.revision);
    assert_eq!(dispatcher.orphans_after(None, 2), std::slice::from_ref(job));
    assert!(dispatcher.unowned(job).is_none());
}

#[test]
fn a_test_event_with_the_name_of_a_delivery_to_come_does_not_take_its_place() {
    let one_at_a_time = DeliveryLimits {
        in_flight_per_webhook: 1,
        ..DeliveryLimits::default()
    };
    let mut world = World::with(one_at_a_time, DeliveryLog::Failures);
    let webhook = world.add_hook("ns", "one");
    world.settle();
    let event = ids::event_id("i-1", 1);
    let name = ids::delivery_name(&world.hooks[&webhook].facts.uid, &event);
    world.add_test(&webhook, "first");
    world.add_test(&webhook, &name);
    while world.watch_deliveries() {}
    assert_eq!(world.dispatcher.jobs.len(), 2);
    world.record("ns", "i-1", Fate::Good);
    world.run();
    assert!(world.begun.iter().any(|sending| *sending.event.id == *event));
}
