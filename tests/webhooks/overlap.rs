//! Two operators that both believe they are the leader.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use resources::DeliveryPhase;

use super::all_in;
use crate::support::{
    Operator, Tenant, USUAL_LEASE, eventually, own_plane, receiver_arguments,
    receivers::{Answer, Receiver},
};

const INSTANCES: usize = 20;
/// Longer than a Lease lasts (15 s), so that the retries of both fall due after the change of leaders.
const RETRIES: &str = "35s,35s,35s";

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_halted_for_longer_than_its_lease_lasts_sends_nothing_again_when_it_wakes_up() {
    let plane = own_plane().await;
    let mut arguments = vec![
        "run",
        USUAL_LEASE,
        "--provisioning-seconds=0",
        "--retry-schedule",
        RETRIES,
    ];
    let receivers = receiver_arguments(&plane);
    arguments.extend(receivers.iter().map(String::as_str));
    let mut first = Operator::start(&plane, &arguments).await;
    let tenant = Tenant::on(&plane, &first, "halted").await;
    // The second one waits for as long as the first one's Lease says. Its own Lease lasts longer, so that it keeps it on a busy
    // machine.
    arguments.retain(|argument| *argument != USUAL_LEASE);
    let mut second = Operator::start(&plane, &arguments).await;
    let is_up = Arc::new(AtomicBool::new(false));
    let up = is_up.clone();
    let receiver = Receiver::start(move |_| {
        if up.load(Ordering::Relaxed) {
            Answer::ok()
        } else {
            Answer::status(503)
        }
    })
    .await;
    tenant
        .webhook("hook", &receiver.url("/"), &["instance.created"])
        .await;
    for i in 0..INSTANCES {
        tenant.apply(&format!("web-{i}"), |_| {}).await;
    }
    tenant
        .wait_for_deliveries("hook", "all to wait for a retry", |all| {
            let has_failed = |status: &resources::DeliveryStatus| status.attempt_count == 1;
            let failed = all
                .iter()
                .filter(|delivery| delivery.status.as_ref().is_some_and(has_failed));
            failed.count() == INSTANCES
        })
        .await;

    first.halt();
    is_up.store(true, Ordering::Relaxed);
    tenant
        .wait_for_deliveries(
            "hook",
            "the next leader to deliver them",
            all_in(INSTANCES, DeliveryPhase::Delivered),
        )
        .await;
    assert_eq!(receiver.count(), 2 * INSTANCES);

    // All its retries are overdue by now.
    first.resume();
    eventually(
        "the first one to see that it has lost the Lease",
        async || first.metric("stellage_leader", "").await,
        |leader| *leader < 0.5,
    )
    .await;
    // It leads again after the second one, and knows what that one has delivered.
    second.stop().await;
    eventually(
        "the first one to lead again",
        async || first.metric("stellage_leader", "").await,
        |leader| *leader > 0.5,
    )
    .await;
    tenant.wait_for_clear_outboxes().await;
    assert_eq!(receiver.count(), 2 * INSTANCES, "sent again");
    first.stop().await;
}
