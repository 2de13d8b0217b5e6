//! How many finished and held deliveries are kept, and how much of the event log.

use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use resources::{Delivery, DeliveryPhase, EventLog, InstanceState};
use serde_json::json;

use super::phase_of;
use crate::support::{
    Operator, Tenant, as_operator, eventually, own_plane, receiver_arguments,
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

#[tokio::test]
async fn the_oldest_pages_of_the_event_log_go_when_an_account_has_too_many_events() {
    let plane = own_plane().await;
    let arguments = [
        "run",
        "--provisioning-seconds=0",
        "--logged-events-per-account=10",
    ];
    let mut operator = Operator::start(&plane, &arguments).await;
    let tenant = Tenant::on(&plane, &operator, "logged").await;
    for number in 0..8 {
        let name = format!("web-{number}");
        tenant.apply(&name, |_| {}).await;
        tenant.wait_for_state(&name, InstanceState::Running).await;
        let is_new = |all: &Vec<EventLog>| {
            let has_it = |page: &EventLog| page.spec.events.iter().any(|it| it.body.contains(&name));
            all.iter().any(has_it)
        };
        eventually("it to be logged", async || tenant.pages().await, is_new).await;
    }
    let few = |all: &Vec<EventLog>| all.iter().map(|page| page.spec.count).sum::<u32>() <= 10;
    let kept = eventually("the oldest to go", async || tenant.pages().await, few).await;
    let is_newest = |page: &EventLog| page.spec.events.iter().any(|it| it.body.contains("web-7"));
    assert!(is_newest(&kept[0]), "the newest comes first: {kept:?}");
    let is_oldest = |page: &EventLog| page.spec.events.iter().any(|it| it.body.contains("web-0"));
    assert!(!kept.iter().any(is_oldest), "{kept:?}");
    operator.stop().await;
}

#[tokio::test]
async fn deliveries_that_have_lost_their_owner_while_no_operator_ran_are_deleted_finished_or_not() {
    let plane = own_plane().await;
    let deliveries: Api<Delivery> = Api::namespaced(as_operator(&plane).await, "default");
    for (name, labels, phase) in [
        ("pending", json!({}), "Pending"),
        ("held", json!({ "stellage.dev/phase": "held" }), "Held"),
        (
            "exhausted",
            json!({ "stellage.dev/finished": "true" }),
            "Exhausted",
        ),
    ] {
        let delivery = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Delivery", "metadata": { "name": name, "labels": labels },
            "spec": {
                "webhook": "hook", "eventId": format!("evt_{name}"), "eventType": "instance.created",
                "eventCreatedAt": "2026-11-21T10:00:00Z", "body": "{}",
            },
            "status": { "phase": phase },
        });
        let delivery = serde_json::from_value(delivery).unwrap();
        deliveries
            .create(&PostParams::default(), &delivery)
            .await
            .unwrap();
    }
    let mut operator = Operator::start(&plane, &["run"]).await;
    let names = async || {
        let left = deliveries.list(&ListParams::default()).await.unwrap();
        left.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
    };
    eventually("all to be deleted", names, Vec::is_empty).await;
    operator.stop().await;
}
