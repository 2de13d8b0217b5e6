//! What is logged, when, and what the log shows after a crash.

use std::time::Duration;

use super::{
    super::*,
    world::{Fate, World},
};
use resources::{DeliveryPhase, LoggedDelivery, event_log::event_bytes};

/// Maximum size of a page, in bytes.
const PAGE: usize = 256 * 1024;

fn world() -> (World, WebhookKey) {
    let mut world = World::new(DeliveryLog::All);
    let webhook = world.add_hook("ns", "one");
    world.settle();
    (world, webhook)
}

/// The ids of the events on each page, with the number of deliveries of each.
fn pages(world: &World) -> Vec<Vec<(String, usize)>> {
    let page = |page: &Page| {
        let events = page.events.iter();
        events.map(|it| (it.id.clone(), it.deliveries.len())).collect()
    };
    world.pages.values().map(page).collect()
}

/// Lets time pass in small steps, while attempts stay in flight.
fn wait(world: &mut World, time: Duration) {
    let until = world.elapsed + time;
    while world.elapsed < until {
        world.work(false);
        world.pass(Duration::from_millis(50));
    }
    world.work(false);
}

#[test]
fn the_events_of_a_second_are_one_page_with_the_webhooks_that_had_each_at_once() {
    let (mut world, _) = world();
    world.add_hook("ns", "two");
    world.settle();
    let events: Vec<_> = (0..10)
        .map(|number| {
            let event = world.record("ns", &format!("i-{number}"), Fate::Good).unwrap();
            world.settle();
            world.pass(Duration::from_millis(50));
            (event, 2)
        })
        .collect();
    let elsewhere = world.record("other", "i-x", Fate::Good).unwrap();
    world.run();
    assert_eq!(pages(&world), [events, vec![(elsewhere, 0)]]);
    assert_eq!(world.writes.creates, 0);
    world.audit_end();
}

#[test]
fn a_success_is_logged_within_a_second_although_another_webhook_does_not_answer() {
    let (mut world, one) = world();
    let two = world.add_hook("ns", "two");
    world.settle();
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.work(false);
    world.pass(Duration::from_millis(500));
    world.work(false);
    let index = world.sendings.iter().position(|it| it.webhook == one).unwrap();
    world.land(index);
    wait(&mut world, Duration::from_millis(1000));
    assert_eq!(pages(&world), [vec![(event.clone(), 1)]]);
    world.land(0);
    world.run();
    // The event is on its page already, so the other delivery is a Delivery.
    assert_eq!(
        world.status(&world.job(&two, &event)).phase,
        DeliveryPhase::Delivered
    );
    assert_eq!(pages(&world), [vec![(event, 1)]]);
    world.audit_end();
}

#[test]
fn an_entry_stays_in_its_outbox_until_it_is_logged() {
    let (mut world, _) = world();
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.settle();
    assert_eq!(world.arrived.len(), 1);
    assert!(!world.dispatcher.is_settled(&event));
    world.pass(Duration::from_secs(1));
    let is_log = |command: &Command| matches!(command, Command::Log(_));
    let index = world.commands.iter().position(is_log).unwrap();
    world.execute(index, Fate::Good);
    world.write_page(0, Fate::Lost);
    world.answer(0);
    assert!(!world.dispatcher.is_settled(&event));
    world.run();
    assert_eq!(world.writes.pages, 1);
    world.audit_end();
}

#[test]
fn after_a_crash_what_is_on_a_page_is_not_sent_again_and_what_is_not_is() {
    for (page, attempts) in [(Some(Fate::Unheard), 1), (Some(Fate::Lost), 2), (None, 2)] {
        let (mut world, _) = world();
        world.record("ns", "i-1", Fate::Good);
        world.work(true);
        if let Some(fate) = page {
            world.pass(Duration::from_secs(1));
            world.execute(0, Fate::Good);
            world.write_page(0, fate);
        }
        world.crash(|_| false);
        world.run();
        assert_eq!(world.begun.len(), attempts, "{page:?}");
        assert_eq!(pages(&world).len(), 1);
        world.audit_end();
    }
}

#[test]
fn a_crash_repeats_no_more_than_what_was_sent_in_the_two_seconds_before() {
    let (mut world, _) = world();
    let mut times = Vec::new();
    for number in 0..100 {
        let event = world.record("ns", &format!("i-{number}"), Fate::Good).unwrap();
        times.push((event, world.elapsed));
        world.settle();
        world.pass(Duration::from_millis(70));
        // A write takes a while.
        world.work(true);
    }
    let crashed_at = world.elapsed;
    let before = world.begun.len();
    world.crash(|_| false);
    world.run();
    let repeated: Vec<_> = world.begun[before..]
        .iter()
        .map(|it| it.event.id.to_string())
        .collect();
    assert!(!repeated.is_empty());
    for (event, at) in times {
        assert!(
            !repeated.contains(&event) || crashed_at <= at + Duration::from_secs(2),
            "{event}"
        );
    }
    world.audit_end();
}

#[test]
fn a_page_has_at_most_200_events_and_a_quarter_of_a_mebibyte() {
    let (mut world, _) = world();
    for number in 0..450 {
        world.record("ns", &format!("i-{number}"), Fate::Good);
    }
    world.run();
    let sizes: Vec<_> = pages(&world).iter().map(Vec::len).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 450);
    assert!(
        sizes.iter().all(|size| *size <= 200) && sizes.len() <= 4,
        "{sizes:?}"
    );
    world.audit_end();

    let (mut world, _) = self::world();
    for number in 0..40 {
        world.record("ns", &format!("i-{number}"), Fate::Good);
    }
    world.work(false);
    assert!(!world.sendings.is_empty());
    while !world.sendings.is_empty() {
        let Report::Sent { mut attempt, .. } = world.report(200, None) else {
            unreachable!()
        };
        attempt.response = Some("x".repeat(16 * 1024));
        let report = Report::Sent {
            attempt,
            retry_after: None,
        };
        world.report_of(0, report);
        world.work(false);
    }
    world.run();
    let sizes: Vec<_> = pages(&world).iter().map(Vec::len).collect();
    assert!(
        sizes.iter().all(|size| *size <= 17) && sizes.len() >= 3,
        "{sizes:?}"
    );
    world.audit_end();
}

#[test]
fn what_was_delivered_is_logged_at_once_when_the_process_ends() {
    let (mut world, _) = world();
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.settle();
    world.dispatcher.stop();
    let now = world.now();
    world.dispatcher.schedule_pages(now);
    world.take_commands();
    world.work(false);
    assert_eq!(pages(&world), [vec![(event, 1)]]);
}

#[test]
fn a_page_that_can_never_be_written_keeps_nothing_waiting() {
    let (mut world, _) = world();
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.settle();
    world.pass(Duration::from_secs(1));
    world.commands.clear();
    let now = world.now();
    world
        .dispatcher
        .page_written(&"ns".into(), PageWritten::Impossible, now);
    assert!(world.dispatcher.is_settled(&event));
}

#[test]
fn an_event_whose_object_is_lost_sight_of_and_found_again_is_not_sent_again() {
    let (mut world, _) = world();
    world.record("ns", "i-1", Fate::Good);
    world.execute(0, Fate::Good);
    world.land(0);
    world.lose_sight("i-1");
    world.show_object("i-1");
    // The patience for its first job ends only now.
    world.pass(Duration::from_secs(1));
    world.run();
    assert_eq!(world.begun.len(), 1);
    assert_eq!(world.writes.creates, 0);
    world.audit_end();
}

/// Ends all attempts with a success whose response has this many bytes.
fn land_all(world: &mut World, bytes: usize) {
    while !world.sendings.is_empty() {
        let mut report = world.report(200, None);
        if let Report::Sent { attempt, .. } = &mut report {
            attempt.response = Some("x".repeat(bytes));
        }
        world.report_of(0, report);
        world.work(false);
    }
}

#[test]
fn sixty_four_events_are_a_page_at_once_and_fewer_wait_a_second() {
    for (events, at_once) in [(63, 0), (64, 1)] {
        let (mut world, _) = world();
        for number in 0..events {
            world.record("other", &format!("i-{number}"), Fate::Good);
        }
        world.settle();
        assert_eq!(pages(&world).len(), at_once);
        wait(&mut world, Duration::from_millis(1000));
        assert_eq!(pages(&world).len(), 1);
        world.run();
        world.audit_end();
    }
}

#[test]
fn events_that_fill_a_page_with_what_receivers_answered_do_not_wait() {
    let (mut world, _) = world();
    for number in 0..20 {
        world.record("ns", &format!("i-{number}"), Fate::Good);
    }
    world.work(false);
    land_all(&mut world, 16 * 1024);
    assert!(!pages(&world).is_empty());
    assert_eq!(world.elapsed, Duration::ZERO);
    world.run();
    world.audit_end();
}

#[test]
fn what_is_answered_after_the_object_is_gone_counts_for_the_size_of_its_page() {
    let (mut world, _) = world();
    for number in 0..9 {
        world.add_hook("ns", &format!("wh-{number}"));
    }
    world.settle();
    for uid in ["i-1", "i-2"] {
        world.record("ns", uid, Fate::Good);
    }
    world.work(false);
    assert_eq!(world.sendings.len(), 20);
    for uid in ["i-1", "i-2"] {
        world.lose_sight(uid);
    }
    land_all(&mut world, 16 * 1024);
    assert!(!pages(&world).is_empty());
    assert_eq!(world.elapsed, Duration::ZERO);
}

#[test]
fn what_is_answered_after_the_object_is_gone_does_not_fill_a_page_by_far() {
    let (mut world, _) = world();
    world.add_hook("ns", "another");
    world.settle();
    world.record("ns", "i-1", Fate::Good);
    world.work(false);
    assert_eq!(world.sendings.len(), 2);
    world.lose_sight("i-1");
    land_all(&mut world, 4 * 1024);
    assert!(pages(&world).is_empty());
    world.run();
    assert_eq!(pages(&world).len(), 1);
}

#[test]
fn what_a_page_has_no_room_for_is_on_another_one_at_once() {
    let (mut world, _) = world();
    for number in 0..250 {
        world.record("other", &format!("i-{number}"), Fate::Good);
    }
    world.settle();
    let sizes: Vec<_> = pages(&world).iter().map(Vec::len).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 250, "{sizes:?}");
    assert_eq!(sizes.len(), 2);
    world.run();
    world.audit_end();
}

#[test]
fn an_event_that_is_settled_while_a_page_is_written_waits_for_its_own_second() {
    let (mut world, _) = world();
    for number in 0..64 {
        world.record("other", &format!("i-{number}"), Fate::Good);
    }
    world.begin_lookup();
    world.end_lookup();
    world.tick();
    world.execute(0, Fate::Good);
    world.record("other", "late", Fate::Good);
    world.begin_lookup();
    world.end_lookup();
    world.write_page(0, Fate::Good);
    world.settle();
    assert_eq!(pages(&world).len(), 1);
    wait(&mut world, Duration::from_millis(1000));
    assert_eq!(pages(&world).len(), 2);
    world.run();
    world.audit_end();
}

#[test]
fn a_page_that_cannot_be_written_is_tried_again_after_one_second_then_every_two() {
    let (mut world, _) = world();
    world.record("ns", "i-1", Fate::Good);
    world.settle();
    let is_log = |command: &Command| matches!(command, Command::Log(_));
    let mut times = Vec::new();
    for _ in 0..5 {
        world.run_until(|world| world.commands.iter().any(is_log));
        times.push(world.elapsed.as_millis());
        let index = world.commands.iter().position(is_log).unwrap();
        world.execute(index, Fate::Good);
        world.write_page(0, Fate::Lost);
        world.answer(0);
    }
    assert_eq!(times, [1000, 2000, 4000, 6000, 8000]);
    world.run();
    world.audit_end();
}

#[test]
fn a_failed_look_up_in_the_log_is_tried_again_ever_more_slowly() {
    let (mut world, _) = world();
    world.record("ns", "i-1", Fate::Good);
    world.crash(|_| false);
    let mut times = Vec::new();
    while times.len() < 8 {
        assert_eq!(world.commands, [Command::CheckLog("ns".into())]);
        times.push(world.elapsed.as_secs());
        world.execute(0, Fate::Lost);
        world.answer(0);
        let at = world.dispatcher.next_timer().unwrap();
        world.pass(at.saturating_duration_since(world.now().mono));
    }
    let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    world.run();
    assert_eq!(world.begun.len(), 1);
    world.audit_end();
}

#[test]
fn events_are_looked_up_in_the_log_in_the_order_of_time_so_that_they_are_on_few_pages() {
    let (mut world, _) = world();
    let mut recorded = Vec::new();
    for number in 0..501 {
        world.pass(Duration::from_millis(1));
        recorded.extend(world.record("ns", &format!("i-{number}"), Fate::Good));
    }
    let first = world.wall - jiff::SignedDuration::from_millis(500);
    world.crash(|_| false);
    assert_eq!(world.commands, [Command::CheckLog("ns".into())]);
    let question = world.dispatcher.unknown_to_log("ns").unwrap();
    assert_eq!(question.since, first);
    let mut asked: Vec<_> = question.events.iter().map(ToString::to_string).collect();
    asked.sort();
    let mut earliest = recorded[..500].to_vec();
    earliest.sort();
    assert_eq!(asked, earliest);
    let now = world.now();
    let none = Ok(Mentions::new());
    world
        .dispatcher
        .log_checked(&"ns".into(), &question.events, none, now);
    let last = world.dispatcher.unknown_to_log("ns").unwrap();
    assert_eq!(last.events, [recorded[500].as_str().into()]);
}

#[test]
fn a_log_that_was_refused_five_times_in_a_row_counts_as_empty() {
    let (mut world, _) = world();
    world.record("ns", "i-1", Fate::Good);
    world.crash(|_| false);
    let mut is_asked_again = |answer| {
        let question = world.dispatcher.unknown_to_log("ns").unwrap();
        let now = world.now();
        world
            .dispatcher
            .log_checked(&"ns".into(), &question.events, Err(answer), now);
        world.dispatcher.unknown_to_log("ns").is_some()
    };
    for answer in [[Unreadable::Failed; 9], [Unreadable::Refused; 9]]
        .concat()
        .into_iter()
        .take(14)
    {
        assert!(is_asked_again(answer));
    }
    assert!(is_asked_again(Unreadable::Failed), "its refusals no longer count");
    for _ in 0..5 {
        assert!(is_asked_again(Unreadable::Refused));
    }
    assert!(!is_asked_again(Unreadable::Refused));
}

#[test]
fn an_event_that_waits_for_its_other_webhooks_is_not_on_the_page_of_an_earlier_one() {
    let (mut world, one) = world();
    world.add_hook("ns", "two");
    world.settle();
    let land_one = |world: &mut World| {
        world.work(false);
        let index = world.sendings.iter().rposition(|it| it.webhook == one).unwrap();
        world.land(index);
    };
    let early = world.record("ns", "i-1", Fate::Good).unwrap();
    land_one(&mut world);
    wait(&mut world, Duration::from_millis(600));
    let late = world.record("ns", "i-2", Fate::Good).unwrap();
    land_one(&mut world);
    wait(&mut world, Duration::from_millis(700));
    assert_eq!(pages(&world), [vec![(early.clone(), 1)]]);
    let index = world.sendings.iter().position(|it| *it.event.id == *late);
    world.land(index.unwrap());
    wait(&mut world, Duration::from_millis(300));
    assert_eq!(pages(&world), [vec![(early, 1)], vec![(late, 2)]]);
    world.run();
    world.audit_end();
}

#[test]
fn an_event_has_at_most_256_webhooks_on_its_page_and_the_others_have_deliveries() {
    let (mut world, _) = world();
    for number in 0..257 {
        world.add_hook("ns", &format!("wh-{number}"));
    }
    world.settle();
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.run();
    assert_eq!(world.arrived.len(), 258);
    assert_eq!(pages(&world), [vec![(event, 256)]]);
    assert_eq!(world.deliveries.len(), 2);
    world.audit_end();
}

#[test]
fn pages_stay_a_second_apart_however_much_has_been_logged() {
    let (mut world, _) = world();
    for number in 0..20 {
        world.record("ns", &format!("i-{number}"), Fate::Good);
        world.work(false);
        land_all(&mut world, 16 * 1024);
        assert_eq!(pages(&world).len(), number);
        world.pass(Duration::from_secs(1));
        world.settle();
        assert_eq!(pages(&world).len(), number + 1);
    }
    world.run();
    world.audit_end();
}

/// Ends the first attempt with a success that brings its event to this many bytes.
fn land_with_bytes(world: &mut World, bytes: usize) {
    let sending = &world.sendings[0];
    let Report::Sent { mut attempt, .. } = world.report(200, None) else {
        unreachable!()
    };
    attempt.response = Some(String::new());
    let facts = &world.hooks[&sending.webhook].facts;
    let delivery = LoggedDelivery {
        webhook: facts.name.to_string(),
        webhook_uid: facts.uid.to_string(),
        attempt: attempt.clone(),
    };
    let without = event_bytes(&String::from_utf8_lossy(sending.event.body())) + delivery.bytes();
    attempt.response = Some("x".repeat(bytes - without));
    let report = Report::Sent {
        attempt,
        retry_after: None,
    };
    world.report_of(0, report);
    world.work(false);
}

#[test]
fn an_event_may_fill_its_page_to_the_last_byte_and_no_more() {
    for (beyond, deliveries) in [(0, 0), (1, 1)] {
        let (mut world, _) = world();
        world.record("ns", "i-1", Fate::Good);
        world.work(false);
        land_with_bytes(&mut world, PAGE + beyond);
        world.run();
        assert_eq!(world.deliveries.len(), deliveries);
        world.audit_end();
    }
}

#[test]
fn two_events_share_a_page_if_they_fit() {
    for (beyond, expected) in [(0, 1), (1, 2)] {
        let (mut world, _) = world();
        for uid in ["i-1", "i-2"] {
            world.record("ns", uid, Fate::Good);
        }
        world.work(false);
        land_with_bytes(&mut world, PAGE / 2);
        assert!(pages(&world).is_empty());
        land_with_bytes(&mut world, PAGE / 2 + beyond);
        assert_eq!(pages(&world).len(), expected);
        world.run();
        world.audit_end();
    }
}

#[test]
fn of_an_event_whose_receivers_answer_much_some_deliveries_are_not_on_its_page() {
    let (mut world, _) = world();
    for number in 0..19 {
        world.add_hook("ns", &format!("wh-{number}"));
    }
    world.settle();
    let event = world.record("ns", "i-1", Fate::Good).unwrap();
    world.work(false);
    land_all(&mut world, 16 * 1024);
    world.run();
    assert_eq!(pages(&world), [vec![(event, 15)]]);
    assert_eq!(world.deliveries.len(), 5);
    world.audit_end();
}

#[test]
fn a_success_is_due_on_a_page_after_a_second_although_other_records_are_not_written_yet() {
    let (mut world, _) = world();
    world.add_hook("ns", "two");
    world.settle();
    world.record("ns", "i-1", Fate::Good);
    world.work(false);
    world.land(0);
    world.work(false);
    world.pass(Duration::from_secs(1));
    assert!(world.commands.contains(&Command::Log("ns".into())));
    world.run();
    world.audit_end();
}

#[test]
fn a_success_waits_a_second_for_others_however_short_the_time_since_the_last_page() {
    let (mut world, _) = world();
    world.record("ns", "i-1", Fate::Good);
    world.settle();
    wait(&mut world, Duration::from_millis(1500));
    assert_eq!(pages(&world).len(), 1);
    world.record("ns", "i-2", Fate::Good);
    world.settle();
    wait(&mut world, Duration::from_millis(950));
    assert_eq!(pages(&world).len(), 1);
    wait(&mut world, Duration::from_millis(50));
    assert_eq!(pages(&world).len(), 2);
    world.run();
    world.audit_end();
}
