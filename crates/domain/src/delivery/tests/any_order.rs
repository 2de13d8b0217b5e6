//! Whatever happens, in any order and with crashes: every event arrives, and nothing is left over.

use std::time::Duration;

use jiff::SignedDuration;
use proptest::prelude::*;

use super::{
    super::*,
    world::{Fate, Receiver, World},
};

/// The next action, and which object it is applied to.
type Step = (u8, u8, u8);

fn fate(dice: u8) -> Fate {
    match dice % 6 {
        0 => Fate::Lost,
        1 => Fate::Unheard,
        _ => Fate::Good,
    }
}

fn nth<T: Clone>(all: impl Iterator<Item = T>, pick: u8) -> Option<T> {
    let all: Vec<T> = all.collect();
    (!all.is_empty()).then(|| all[usize::from(pick) % all.len()].clone())
}

fn take(world: &mut World, (what, pick, dice): Step) {
    let index = |len: usize| (len > 0).then(|| usize::from(pick) % len);
    let webhook = nth(world.hooks.keys().cloned(), pick);
    match (what % 42, webhook) {
        (0..=5, _) => {
            let uid = format!("i-{}", pick % 3);
            let event_type = crate::event::EventType::InstanceStarted;
            world.record_typed("ns", &uid, event_type, fate(dice));
        }
        (6..=12, _) => {
            if let Some(index) = index(world.commands.len()) {
                world.execute(index, fate(dice));
            }
        }
        (13..=15, _) => {
            if let Some(index) = index(world.requests.len() + world.page_requests.len()) {
                match index.checked_sub(world.requests.len()) {
                    Some(index) => world.write_page(index, fate(dice)),
                    None => world.write(index, fate(dice)),
                }
            }
        }
        (16..=18, _) => {
            if let Some(index) = index(world.answers.len()) {
                world.answer(index);
            }
        }
        (19..=20, _) => {
            if let Some(index) = index(world.sendings.len()) {
                world.land(index);
            }
        }
        (21, _) => {
            if let Some(index) = index(world.sendings.len()) {
                let report =
                    [Report::Unready, Report::Blocked("so".to_owned())][usize::from(dice % 2)].clone();
                world.report_of(index, report);
            }
        }
        (22, _) => drop(world.watch_hooks()),
        (23..=24, _) => drop(world.watch_deliveries()),
        (25..=26, _) => drop(world.watch_objects()),
        (27, _) => world.begin_lookup(),
        (28, _) => world.end_lookup(),
        (29, Some(webhook)) => {
            let modes = [Receiver::Up, Receiver::Down, Receiver::Gone];
            world.receivers.insert(webhook, modes[usize::from(dice) % 3]);
        }
        (30, Some(webhook)) => world.change_hook(&webhook, dice % 3 > 0),
        (31, Some(webhook)) => world.set_secret(&webhook, dice % 2 > 0),
        (32, Some(webhook)) if dice % 4 == 0 => {
            world.delete_hook(&webhook);
            if pick % 2 == 0 {
                world.add_hook("ns", webhook.split_once('/').unwrap().1);
            }
        }
        (33, Some(webhook)) => drop(world.add_test(&webhook, &format!("test-{pick}-{dice}"))),
        (34, _) => {
            let logged = world
                .arrived
                .iter()
                .cloned()
                .collect::<std::collections::BTreeSet<_>>();
            if let Some(job) = nth(world.deliveries.keys().cloned().chain(logged), pick) {
                match dice % 8 {
                    0 if world.deliveries.contains_key(&job) => world.delete_delivery(&job),
                    1..=3 => world.redeliver(&job),
                    4 if world.deliveries.contains_key(&job) => world.take_back(&job),
                    _ => drop(world.request(&job)),
                }
            }
        }
        (35, _) => drop(world.clear_outboxes(fate(dice))),
        (36..=37, _) => {
            let until_next = world.dispatcher.next_timer();
            let until_next = until_next.map(|at| at.saturating_duration_since(world.now().mono));
            let some = Duration::from_millis(u64::from(dice) * 20);
            world.pass(until_next.filter(|_| dice % 2 == 0).unwrap_or(some));
        }
        (38, _) => {
            let hours = [24, -1, -1, 1][usize::from(dice) % 4];
            world.wall += SignedDuration::from_hours(hours);
        }
        (40, _) if dice % 2 == 0 => world.lose_sight(&format!("i-{}", pick % 3)),
        (40..=41, _) => world.show_object(&format!("i-{}", pick % 3)),
        (39, _) if dice % 3 == 0 => world.relist(),
        (39, _) => world.crash(|order| (usize::from(pick) >> (order % 8)) % 2 == 0),
        _ => {}
    }
}

fn bound() -> impl Strategy<Value = Bound> {
    let few = (1..4_usize, 1..5_usize, 1..6_usize);
    prop_oneof![Just((1000, 1000, 1000)), few].prop_map(|(webhook, account, total)| Bound {
        webhook,
        account,
        total,
    })
}

fn limits() -> impl Strategy<Value = DeliveryLimits> {
    (1..4_usize, 1..6_usize, bound(), bound(), 1..4_usize).prop_map(
        |(per_webhook, in_flight, pending, held, unrecorded)| DeliveryLimits {
            in_flight_per_webhook: per_webhook,
            in_flight,
            pending,
            held,
            unrecorded_per_webhook: unrecorded,
            ..DeliveryLimits::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(400), max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn everything_arrives_whatever_happens(
        steps in prop::collection::vec(any::<Step>(), 0..200),
        limits in limits(),
        all in any::<bool>(),
    ) {
        let log = if all { DeliveryLog::All } else { DeliveryLog::Failures };
        let mut world = World::with(limits, log);
        world.add_hook("ns", "one");
        world.add_hook("ns", "two");
        for step in steps {
            take(&mut world, step);
            world.audit();
        }
        world.heal();
        world.audit_end();
    }
}
