//! Requested attempts. The retry schedule has steps of hours, so that nothing is sent automatically during the tests.

use std::sync::{
    Arc,
    atomic::{AtomicU16, Ordering},
};

use control_plane::ControlPlane;
use reqwest::Method;
use resources::{Delivery, DeliveryPhase, InstanceState, Webhook};
use serde_json::{Value, json};

use super::{all_in, phase_of};
use crate::support::{
    Operator, Tenant, kubectl, own_plane, receiver_arguments,
    receivers::{Answer, Receiver},
};

async fn start(plane: &ControlPlane) -> Operator {
    let mut arguments: Vec<String> = ["run", "--provisioning-seconds=0", "--retry-schedule=3h,6h"]
        .map(ToOwned::to_owned)
        .to_vec();
    arguments.extend(receiver_arguments(plane));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Operator::start(plane, &arguments).await
}

/// A receiver, and the status of its answers.
async fn receiver(status: u16) -> (Receiver, Arc<AtomicU16>) {
    let answer = Arc::new(AtomicU16::new(status));
    let answers = answer.clone();
    let receiver = Receiver::start(move |_| Answer::status(answers.load(Ordering::Relaxed))).await;
    (receiver, answer)
}

/// The answer to `redeliver` or `retry`.
async fn ask(tenant: &Tenant, webhook: &Webhook, rest: &str) -> Value {
    let path = format!("/v1/webhooks/{}/deliveries/{rest}", webhook.id());
    let answer = tenant.call(Method::POST, &path, None).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    answer.json()
}

fn annotate(plane: &ControlPlane, namespace: &str, delivery: &Delivery, nonce: &str) {
    let name = delivery.metadata.name.as_deref().unwrap();
    let annotation = format!("stellage.dev/attempt-requested-at={nonce}");
    let annotate = format!("annotate delivery -n {namespace} {name} --overwrite {annotation}");
    kubectl(plane, &annotate, None).unwrap();
}

fn attempts(delivery: &Delivery) -> i32 {
    delivery.status.as_ref().map_or(0, |status| status.attempt_count)
}

fn failed(count: usize, times: i32) -> impl Fn(&Vec<Delivery>) -> bool {
    move |all| {
        all_in(count, DeliveryPhase::Pending)(all) && all.iter().all(|delivery| attempts(delivery) == times)
    }
}

#[tokio::test]
async fn what_is_pending_for_hours_is_sent_now_by_rest_and_kubectl_whatever_dies() {
    let plane = own_plane().await;
    let mut operator = start(&plane).await;
    let tenant = Tenant::on(&plane, &operator, "asked").await;
    let (receiver, answer) = receiver(503).await;
    let webhook = tenant
        .webhook("orders", &receiver.url("/"), &["instance.created"])
        .await;
    for number in 0..4 {
        let name = format!("web-{number}");
        tenant.apply(&name, |_| {}).await;
        tenant.wait_for_state(&name, InstanceState::Running).await;
    }
    let all = tenant
        .wait_for_deliveries("orders", "all to fail once", failed(4, 1))
        .await;
    let next_attempt_at = |delivery: &Delivery| delivery.status.as_ref().unwrap().next_attempt_at;
    let due: Vec<_> = all.iter().map(next_attempt_at).collect();

    // With kubectl: the attempt fails, and the retry schedule is unchanged.
    annotate(&plane, "asked", &all[0], "2026-11-22T10:00:00Z");
    let is_tried = |all: &Vec<Delivery>| attempts(&all[0]) == 2;
    let all = tenant
        .wait_for_deliveries("orders", "it to be tried", is_tried)
        .await;
    let status = all[0].status.as_ref().unwrap();
    assert_eq!((status.phase, status.retries), (DeliveryPhase::Pending, 1));
    assert_eq!(status.next_attempt_at, due[0]);
    assert_eq!(
        status.attempt_requested_at.as_deref(),
        Some("2026-11-22T10:00:00Z")
    );

    // Through REST, after the receiver was fixed.
    answer.store(200, Ordering::Relaxed);
    let answered = ask(&tenant, &webhook, &format!("{}/redeliver", all[0].id())).await;
    assert_eq!(
        answered["message"],
        format!("Delivery {} is being sent now.", all[0].id())
    );
    let is_delivered = |all: &Vec<Delivery>| phase_of(&all[0]) == Some(DeliveryPhase::Delivered);
    let all = tenant
        .wait_for_deliveries("orders", "it to arrive", is_delivered)
        .await;
    assert!(all[1..].iter().all(|delivery| attempts(delivery) == 1));

    // The operator dies before it sees the request, and the next one sends the delivery.
    operator.die(&plane).await;
    annotate(&plane, "asked", &all[1], "2026-11-22T11:00:00Z");
    assert_eq!(receiver.count(), 6);
    operator = start(&plane).await;
    let is_delivered = |all: &Vec<Delivery>| phase_of(&all[1]) == Some(DeliveryPhase::Delivered);
    tenant
        .wait_for_deliveries("orders", "it to arrive", is_delivered)
        .await;
    assert_eq!(receiver.count(), 7);
    operator.stop().await;
}

#[tokio::test]
async fn retry_sends_all_that_is_pending_and_survives_the_death_of_who_was_asked() {
    let plane = own_plane().await;
    let mut operator = start(&plane).await;
    let tenant = Tenant::on(&plane, &operator, "all").await;
    let (receiver, answer) = receiver(503).await;
    let webhook = tenant
        .webhook("orders", &receiver.url("/"), &["instance.created"])
        .await;
    for number in 0..20 {
        tenant.apply(&format!("web-{number}"), |_| {}).await;
    }
    tenant
        .wait_for_deliveries("orders", "all to fail once", failed(20, 1))
        .await;
    let answered = ask(&tenant, &webhook, "retry").await;
    assert_eq!(answered["data"]["retried"], 20);
    let all = tenant
        .wait_for_deliveries("orders", "all to fail twice", failed(20, 2))
        .await;
    assert_eq!(receiver.count(), 40, "none twice");
    assert!(
        all.iter()
            .all(|delivery| delivery.status.as_ref().unwrap().retries == 1)
    );

    answer.store(200, Ordering::Relaxed);
    let answered = ask(&tenant, &webhook, "retry").await;
    assert_eq!(answered["message"], "20 deliveries are being sent now.");
    operator.die(&plane).await;
    operator = start(&plane).await;
    tenant
        .wait_for_deliveries("orders", "all to arrive", all_in(20, DeliveryPhase::Delivered))
        .await;
    operator.stop().await;
}

#[tokio::test]
async fn a_held_one_of_a_disabled_webhook_shows_whether_the_receiver_is_mended() {
    let plane = own_plane().await;
    let mut operator = start(&plane).await;
    let tenant = Tenant::on(&plane, &operator, "mended").await;
    let (receiver, answer) = receiver(410).await;
    let webhook = tenant
        .webhook("orders", &receiver.url("/"), &["instance.created"])
        .await;
    tenant.apply("web-0", |_| {}).await;
    tenant
        .wait_for_webhook("orders", "it to be disabled", |webhook| {
            webhook.disabled().is_some()
        })
        .await;
    tenant.apply("web-1", |_| {}).await;
    let is_held = |all: &Vec<Delivery>| all.iter().any(|it| phase_of(it) == Some(DeliveryPhase::Held));
    let all = tenant
        .wait_for_deliveries("orders", "one to be held", is_held)
        .await;
    assert_eq!((all.len(), receiver.count()), (2, 1));
    let path = format!("{}/redeliver", all[1].id());
    let once = format!(
        "Delivery {} is being sent now, but only once, because its webhook is disabled.",
        all[1].id()
    );

    // The receiver still fails.
    assert_eq!(ask(&tenant, &webhook, &path).await["message"], once);
    let is_tried = |all: &Vec<Delivery>| attempts(&all[1]) == 1;
    let all = tenant
        .wait_for_deliveries("orders", "it to be tried", is_tried)
        .await;
    assert_eq!(phase_of(&all[1]), Some(DeliveryPhase::Held));
    // Now it works, and so the exhausted delivery arrives, too.
    answer.store(200, Ordering::Relaxed);
    ask(&tenant, &webhook, &path).await;
    ask(&tenant, &webhook, &format!("{}/redeliver", all[0].id())).await;
    tenant
        .wait_for_deliveries("orders", "both to arrive", all_in(2, DeliveryPhase::Delivered))
        .await;
    assert_eq!(receiver.count(), 4);
    assert!(
        tenant
            .webhooks()
            .get("orders")
            .await
            .unwrap()
            .disabled()
            .is_some()
    );

    // Nothing is sent to a webhook that is not active.
    tenant.change_webhook("orders", json!({ "active": false })).await;
    let is_off = |webhook: &Webhook| {
        let status = webhook.status.as_ref();
        status.and_then(|status| status.observed_generation) == webhook.metadata.generation
    };
    tenant
        .wait_for_webhook("orders", "the change to be seen", is_off)
        .await;
    let answered = ask(&tenant, &webhook, &path).await;
    let message = answered["message"].as_str().unwrap();
    assert!(
        message.ends_with("will be sent as soon as its webhook is active."),
        "{message}"
    );
    let is_held = |all: &Vec<Delivery>| phase_of(&all[1]) == Some(DeliveryPhase::Held);
    tenant
        .wait_for_deliveries("orders", "it to be held", is_held)
        .await;
    assert_eq!(receiver.count(), 4);
    tenant.change_webhook("orders", json!({ "active": true })).await;
    assert_eq!(receiver.wait_for(5).await.len(), 5);
    operator.stop().await;
}
