//! Webhooks that the operator's watch does not show yet. A proxy between operator and API server delays that watch by five
//! seconds.

use std::time::{Duration, Instant};

use kube::api::DeleteParams;
use resources::{DeliveryPhase, InstanceState};
use serde_json::json;

use super::{ALL, all_in, body, proxy::Proxy};
use crate::support::{
    Change as _, Operator, Tenant, eventually, own_plane, receiver_arguments,
    receivers::{Answer, Received, Receiver},
};

/// Delay of the watch.
const LAG: Duration = Duration::from_secs(5);

/// Instance and type of the received events, sorted.
fn events(receiver: &Receiver) -> Vec<(String, String)> {
    let event = |request: &Received| {
        let body = body(request);
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        (text(&body["data"]["instance"]["name"]), text(&body["type"]))
    };
    let mut all: Vec<_> = receiver.received().iter().map(event).collect();
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_acknowledged_just_before_the_operation_gets_its_event_though_the_watch_lags() {
    let plane = own_plane().await;
    let proxy = Proxy::start(&plane).await;
    let mut arguments = vec!["run", "--provisioning-seconds", "0"];
    let receivers = receiver_arguments(&plane);
    arguments.extend(receivers.iter().map(String::as_str));
    let mut operator = Operator::start_with(&plane, &arguments, &proxy.kubeconfig).await;
    let tenant = Tenant::on(&plane, &operator, "late").await;
    let instances = tenant.instances();
    let receiver = async || Receiver::start(|_| Answer::ok()).await;
    let (known, created, deleted) = (receiver().await, receiver().await, receiver().await);

    // The watch works: a status is written for what it shows.
    tenant
        .webhook("known", &known.url("/"), &["instance.deleted"])
        .await;
    tenant
        .wait_for_webhook("known", "the status", |webhook| webhook.status.is_some())
        .await;
    for name in ["old", "doomed"] {
        tenant.apply(name, |_| {}).await;
        tenant.wait_for_state(name, InstanceState::Running).await;
    }

    proxy.hold();
    let held_since = Instant::now();
    // Created just before.
    tenant
        .webhook(
            "created",
            &created.url("/"),
            &["instance.created", "instance.started"],
        )
        .await;
    tenant.apply("web", |_| {}).await;
    // Extended just before.
    tenant
        .change_webhook(
            "known",
            json!({ "events": ["instance.deleted", "instance.stopped"] }),
        )
        .await;
    let stop = json!({ "spec": { "powerState": "Stopped" } });
    instances.merge("old", &stop).await;
    // A deletion just after.
    tenant.webhook("deleted", &deleted.url("/"), &ALL).await;
    instances
        .delete("doomed", &DeleteParams::default())
        .await
        .unwrap();

    // Events from just before may arrive as well; one too many is harmless.
    let wanted = [
        ("created", &created, "web", "instance.created"),
        ("created", &created, "web", "instance.started"),
        ("known", &known, "old", "instance.stopped"),
        ("known", &known, "doomed", "instance.deleted"),
        ("deleted", &deleted, "doomed", "instance.deleted"),
    ];
    for (webhook, receiver, instance, event_type) in wanted {
        eventually(
            &format!("{event_type} of {instance} at webhook {webhook}"),
            async || events(receiver),
            |events| events.contains(&(instance.to_owned(), event_type.to_owned())),
        )
        .await;
    }
    let arrived = held_since.elapsed();
    for name in ["created", "deleted"] {
        let text = format!("\"name\":\"{name}\"");
        eventually(
            "the proxy to hold the webhook",
            async || proxy.holds(&text),
            |held| *held,
        )
        .await;
    }
    tokio::time::sleep(LAG.saturating_sub(held_since.elapsed())).await;
    proxy.release();

    // When the watch shows them, nothing is sent again: there is one Delivery for each, with one request.
    for (name, receiver) in [("known", &known), ("created", &created), ("deleted", &deleted)] {
        // The watch shows this change, and so all earlier ones.
        tenant
            .change_webhook(name, json!({ "enableRequestedAt": "2026-11-21T10:00:00Z" }))
            .await;
        tenant
            .wait_for_webhook(name, "the watch to have caught up", |webhook| {
                let status = webhook.status.as_ref();
                status.and_then(|status| status.observed_generation) == webhook.metadata.generation
            })
            .await;
        let events = events(receiver);
        let count = events.len();
        assert!(
            events.windows(2).all(|pair| pair[0] != pair[1]),
            "sent twice: {events:?}"
        );
        tenant
            .wait_for_deliveries(
                name,
                "all to be delivered",
                all_in(count, DeliveryPhase::Delivered),
            )
            .await;
        assert_eq!(receiver.count(), count, "{name}");
    }
    println!(
        "late: with the watch of webhooks held back for {LAG:?}, the last of the 5 events was there after {arrived:?}"
    );
    operator.stop().await;
}
