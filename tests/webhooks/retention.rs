//! How long finished deliveries are kept, and how many held ones.

use serde_json::json;
use stellage::resources::{DeliveryPhase, InstanceState};

use super::phase_of;
use crate::support::{
    Operator, Tenant, own_plane, receiver_arguments,
    receivers::{Answer, Receiver},
};

#[tokio::test]
async fn the_oldest_held_deliveries_are_dropped_and_counted_and_few_finished_ones_are_kept() {
    let plane = own_plane().await;
    let mut arguments = vec![
        "run".to_owned(),
        "--provisioning-seconds=0".to_owned(),
        "--retry-schedule=10ms".to_owned(),
        "--held-deliveries=4".to_owned(),
        "--delivery-retention=3".to_owned(),
    ];
    arguments.extend(receiver_arguments(&plane));
    let mut operator =
        Operator::start(&plane, &arguments.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let tenant = Tenant::on(&plane, &operator, "hooks-bounds").await;
    let failing = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let receiver = Receiver::start({
        let failing = failing.clone();
        move |_| {
            if failing.load(std::sync::atomic::Ordering::Relaxed) {
                Answer::status(500)
            } else {
                Answer::ok()
            }
        }
    })
    .await;
    tenant
        .webhook("hook", &receiver.url("/hook"), &["instance.created"])
        .await;
    tenant.apply("first", |_| {}).await;
    tenant
        .wait_for_webhook("hook", "the webhook to be disabled", |webhook| {
            webhook.disabled().is_some()
        })
        .await;
    for number in 0..7 {
        let name = format!("web-{number}");
        tenant.apply(&name, |_| {}).await;
        tenant.wait_for_state(&name, InstanceState::Running).await;
    }
    tenant
        .wait_for_webhook("hook", "three to be dropped", |webhook| {
            webhook
                .status
                .as_ref()
                .is_some_and(|status| (status.held, status.dropped) == (4, 3))
        })
        .await;
    let held = tenant
        .wait_for_deliveries("hook", "the dropped ones to be gone", |all| {
            all.iter()
                .filter(|delivery| phase_of(delivery) == Some(DeliveryPhase::Held))
                .count()
                == 4
        })
        .await;
    let names: Vec<bool> = held
        .iter()
        .map(|delivery| delivery.spec.body.contains("web-6"))
        .collect();
    assert!(names.contains(&true), "the newest is kept");
    failing.store(false, std::sync::atomic::Ordering::Relaxed);
    tenant
        .change_webhook("hook", json!({ "enableRequestedAt": "2026-11-21T10:00:00Z" }))
        .await;
    receiver.wait_for(2 + 4).await;
    operator.stop().await;

    // The next leader counts finished ones, too; with so few, it prunes only at its start.
    let mut operator =
        Operator::start(&plane, &arguments.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let kept = tenant
        .wait_for_deliveries("hook", "the oldest finished ones to be cleared away", |all| {
            all.len() == 3
        })
        .await;
    assert!(
        kept.iter()
            .all(|delivery| phase_of(delivery).is_some_and(DeliveryPhase::is_finished))
    );
    operator.stop().await;
}
