//! What is said of the time that events take.

use std::time::Duration;

use super::{
    super::*,
    world::{Fate, Receiver, World},
};

const SECOND: Duration = Duration::from_secs(1);

/// Whether each receipt was expected, and after how many seconds it came.
fn receipts(world: &mut World) -> Vec<(bool, u64)> {
    let receipts = std::mem::take(&mut world.receipts).into_iter();
    receipts
        .map(|receipt| (receipt.was_expected, receipt.after.as_secs()))
        .collect()
}

#[test]
fn a_receipt_is_expected_unless_the_receiver_or_its_account_holder_delayed_it() {
    let (mut world, webhook) = World::with_hook(DeliveryLog::All, Receiver::Up);
    world.record("ns", "i-1", Fate::Good);
    world.settle();
    assert_eq!(receipts(&mut world), [(true, 0)]);

    // What waits for us counts.
    world.record("ns", "i-2", Fate::Good);
    world.elapsed += SECOND;
    world.wall += SECOND;
    world.settle();
    assert_eq!(receipts(&mut world), [(true, 1)]);

    // So does what a dead leader has left.
    world.record("ns", "i-2b", Fate::Good);
    world.crash(|_| false);
    world.pass(20 * SECOND);
    world.settle();
    assert_eq!(receipts(&mut world), [(true, 20)]);

    world.receivers.insert(webhook.clone(), Receiver::Down);
    world.record("ns", "i-3", Fate::Good);
    world.settle();
    world.receivers.clear();
    world.record("ns", "i-4", Fate::Good);
    world.settle();
    world.pass(60 * SECOND);
    world.settle();
    // The fourth came at once, but to a receiver that had failed before, which may make others wait.
    assert_eq!(receipts(&mut world), [(false, 0), (false, 60)]);

    world.set_secret(&webhook, false);
    world.record("ns", "i-5", Fate::Good);
    world.settle();
    world.pass(5 * SECOND);
    world.set_secret(&webhook, true);
    world.settle();
    assert_eq!(receipts(&mut world), [(false, 5)], "it was held");

    world.record("ns", "i-6", Fate::Good);
    world.work(false);
    world.pass(3 * SECOND);
    world.settle();
    assert_eq!(receipts(&mut world), [(false, 3)], "its receiver was slow");
    world.heal();
    world.audit_end();
}

#[test]
fn the_oldest_event_that_is_owed_is_known_until_it_is_delivered_held_or_its_webhook_is_gone() {
    let (mut world, webhook) = World::with_hook(DeliveryLog::All, Receiver::Down);
    let begin = world.wall;
    assert_eq!(world.dispatcher.oldest_owed(), None);
    world.record("ns", "i-1", Fate::Good);
    world.settle();
    world.pass(10 * SECOND);
    world.record("ns", "i-2", Fate::Good);
    world.settle();
    assert_eq!(world.dispatcher.oldest_owed(), Some(begin));
    world.audit();
    world.set_secret(&webhook, false);
    world.settle();
    assert_eq!(
        world.dispatcher.oldest_owed(),
        None,
        "held ones wait for their account holder"
    );
    world.set_secret(&webhook, true);
    world.work(false);
    assert_eq!(world.dispatcher.oldest_owed(), Some(begin));
    world.delete_hook(&webhook);
    while world.watch_hooks() {}
    assert_eq!(world.dispatcher.oldest_owed(), None);
    world.audit();
}
