//! What one account can make the facade keep in memory.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream::FuturesUnordered};
use kube::{Api, Resource as _, api::PostParams};
use reqwest::Method;
use resources::{Delivery, delivery::set_event_order};
use serde_json::json;

use super::{
    contract::code,
    webhooks::{create, name_of, url_of, webhooks},
};
use crate::support::{Operator, Tenant, shared};

/// Deliveries in the log, each with as much text as a Delivery keeps of its receiver.
const DELIVERIES: usize = 1300;
/// Number of concurrent lists.
const LISTS: usize = 50;
/// How many of them may run at a time, and how long the others wait for their turn.
const AT_A_TIME: u32 = 2;
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// By how much they may increase the facade's memory, in KiB. It grew by 120 MiB when each list kept all
/// deliveries.
const GROWTH_KB: u64 = 48 * 1024;

/// Writes exhausted Deliveries into the log of a webhook.
async fn fill(tenant: &Tenant, webhook: &str) {
    let owner = webhooks(tenant).get(webhook).await.unwrap().owner_ref(&());
    // Nobody else may create Deliveries.
    let operator = crate::support::as_operator(shared().await.plane).await;
    let deliveries: Api<Delivery> = Api::namespaced(operator, &tenant.namespace);
    let creates = (0..DELIVERIES).map(|number| {
        let delivery = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Delivery",
            "metadata": {
                "name": format!("dlv-{number:0>16}"),
                "labels": {
                    "stellage.dev/webhook": webhook, "stellage.dev/phase": "exhausted",
                    "stellage.dev/event-type": "instance.stopped", "stellage.dev/finished": "true",
                },
                "annotations": { "stellage.dev/finished-at": "2036-11-21T10:00:00Z" },
                "ownerReferences": [owner],
            },
            "spec": {
                "webhook": webhook, "eventId": format!("evt_{number}"), "eventType": "instance.stopped",
                "eventCreatedAt": "2026-11-21T10:00:00Z", "sequence": number, "body": "x".repeat(2048),
            },
            "status": { "phase": "Exhausted", "attemptCount": 1, "attempts": [{
                "at": "2026-11-21T10:00:00Z", "durationMs": 42, "statusCode": 503, "error": "answered 503",
                "response": "y".repeat(1024),
            }] },
        });
        let mut delivery: Delivery = serde_json::from_value(delivery).unwrap();
        let (at, sequence) = (delivery.spec.event_created_at, delivery.spec.sequence);
        set_event_order(&mut delivery.metadata, at, sequence);
        let deliveries = &deliveries;
        async move {
            deliveries
                .create(&PostParams::default(), &delivery)
                .await
                .unwrap()
        }
    });
    futures::stream::iter(creates)
        .buffer_unordered(32)
        .for_each(async |_| {})
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_lists_of_a_long_log_at_once_take_little_memory() {
    let plane = shared().await.plane;
    let mut api = Operator::start(plane, &["api"]).await;
    let tenant = Tenant::on(plane, &api, "dlv-memory").await;
    let hook = create(&tenant).await;
    fill(&tenant, &name_of(&hook)).await;
    let path = format!("{}/deliveries", url_of(&hook));
    let list = async || {
        let path = format!("{path}?limit=100");
        tenant.call(Method::GET, &path, None).await
    };
    list().await;
    let begun = Instant::now();
    let first = list().await;
    let alone = begun.elapsed();
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(first.json()["data"].as_array().unwrap().len(), 100);

    api.forget_peak_of_memory();
    let before = api.memory_kb("VmRSS");
    let mut lists: FuturesUnordered<_> = (0..LISTS).map(|_| list()).collect();
    let (mut listed, mut grown) = (0_u32, 0);
    while let Some(answer) = lists.next().await {
        // The account's other lists wait for their turns, some of them for too long.
        if answer.status == 200 {
            listed += 1;
        } else {
            assert_eq!(code(&answer), "service_unavailable");
            assert_ne!(answer.header("retry-after"), "");
        }
        if lists.len() >= 2 {
            // Until now, as many as may have run at a time.
            grown = api.memory_kb("VmHWM").saturating_sub(before);
        }
    }
    println!(
        "{LISTS} lists at once of {DELIVERIES} deliveries, {listed} of them answered, took {grown} KiB; one alone took {alone:.1?}"
    );
    // Allow each list twice the time of one alone, and as much again for a busy machine.
    let least = AT_A_TIME * u32::try_from(LONGEST_WAIT.as_millis() / (4 * alone.as_millis()).max(1)).unwrap();
    let least = least.clamp(AT_A_TIME, u32::try_from(LISTS).unwrap() / 2);
    assert!(listed >= least, "{listed} of at least {least}");
    assert!(grown < GROWTH_KB, "{grown} KiB");
    api.stop().await;
}
