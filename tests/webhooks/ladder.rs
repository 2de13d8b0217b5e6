//! A receiver that is down during all retries, and then recovers.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use resources::{Delivery, DeliveryPhase, DisableReason, InstanceState, delivery::FINISHED_LABEL};
use serde_json::json;

use super::{ALL, all_in, phase_of};
use crate::support::{
    Tenant,
    receivers::{Answer, Received, Receiver},
};

/// Number of attempts with the schedule of the shared operator: the first one and five retries.
const ATTEMPTS: usize = 6;

fn ids(received: &[Received]) -> Vec<String> {
    received
        .iter()
        .map(|request| request.header("x-service-event-id").to_owned())
        .collect()
}

async fn set_power(tenant: &Tenant, name: &str, power: &str, state: InstanceState) {
    let patch = json!({ "spec": { "powerState": power } });
    tenant
        .instances()
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    tenant.wait_for_state(name, state).await;
}

#[tokio::test]
async fn after_a_receiver_was_down_for_all_retries_it_gets_what_was_held_in_order_and_the_exhausted_on_demand()
 {
    let tenant = Tenant::new("hooks-down").await;
    let is_down = Arc::new(AtomicBool::new(true));
    let down = is_down.clone();
    let receiver = Receiver::start(move |_| {
        if down.load(Ordering::Relaxed) {
            Answer::status(503)
        } else {
            Answer::ok()
        }
    })
    .await;
    tenant.webhook("orders", &receiver.url("/"), &ALL).await;
    tenant.apply("web", |_| {}).await;

    // Down during all retries of the first event.
    let webhook = tenant
        .wait_for_webhook("orders", "the disablement", |webhook| {
            webhook.disabled().is_some()
        })
        .await;
    let disabled = webhook.disabled().unwrap().clone();
    assert_eq!(
        (disabled.reason, disabled.attempts, disabled.last_status_code),
        (DisableReason::RetriesExhausted, 6, Some(503))
    );
    // More events are recorded in the meantime.
    tenant.wait_for_state("web", InstanceState::Running).await;
    set_power(&tenant, "web", "Stopped", InstanceState::Stopped).await;
    set_power(&tenant, "web", "Running", InstanceState::Running).await;
    tenant.apply("db", |_| {}).await;
    tenant.wait_for_state("db", InstanceState::Running).await;
    set_power(&tenant, "db", "Stopped", InstanceState::Stopped).await;

    let count = |all: &[Delivery], phase| all.iter().filter(|d| phase_of(d) == Some(phase)).count();
    let held: Vec<Delivery> = tenant
        .wait_for_deliveries("orders", "one exhausted and six held", |all| {
            all.len() == 7
                && count(all, DeliveryPhase::Exhausted) == 1
                && count(all, DeliveryPhase::Held) == 6
        })
        .await
        .into_iter()
        .filter(|delivery| phase_of(delivery) == Some(DeliveryPhase::Held))
        .collect();
    let attempts = ids(&receiver.received());
    let of_it = |id: &&String| **id == disabled.event_id;
    assert_eq!(attempts.iter().filter(of_it).count(), ATTEMPTS);
    let held_ids: Vec<String> = held
        .iter()
        .map(|delivery| delivery.spec.event_id.clone())
        .collect();
    // None of the later events was attempted.
    assert!(held_ids[1..].iter().all(|id| !attempts.contains(id)));

    // The receiver is back, and a change of the spec enables the webhook.
    is_down.store(false, Ordering::Relaxed);
    tenant
        .change_webhook("orders", json!({ "enableRequestedAt": "2026-11-21T10:00:00Z" }))
        .await;
    tenant
        .wait_for_deliveries("orders", "all that was held", |all| {
            count(all, DeliveryPhase::Delivered) == 6
        })
        .await;
    let since = &receiver.received()[attempts.len()..];
    assert_eq!(ids(since), held_ids, "in order, each once, and nothing else");
    for (request, delivery) in since.iter().zip(&held) {
        assert_eq!(request.body, delivery.spec.body);
    }
    let enabled = tenant
        .wait_for_webhook("orders", "that it is enabled", |webhook| {
            webhook
                .status
                .as_ref()
                .is_some_and(|status| status.disabled.is_none())
        })
        .await;
    assert!(enabled.disabled().is_none());

    // The exhausted delivery stays as it is, until it is redelivered.
    let exhausted = tenant.deliveries().get(&disabled.delivery).await.unwrap();
    assert_eq!(phase_of(&exhausted), Some(DeliveryPhase::Exhausted));
    assert_eq!(
        exhausted.labels().get(FINISHED_LABEL).map(String::as_str),
        Some("true")
    );
    let unfinished = json!({ "metadata": { "labels": { FINISHED_LABEL: null } } });
    tenant
        .deliveries()
        .patch(
            &disabled.delivery,
            &PatchParams::default(),
            &Patch::Merge(&unfinished),
        )
        .await
        .unwrap();
    tenant
        .wait_for_deliveries(
            "orders",
            "the exhausted one too",
            all_in(7, DeliveryPhase::Delivered),
        )
        .await;
    let requests = receiver.received();
    assert_eq!(requests.len(), attempts.len() + 7, "sent more than once");
    let last = requests.last().unwrap();
    assert_eq!(last.header("x-service-event-id"), disabled.event_id);
    let of_it: HashSet<_> = requests
        .iter()
        .filter(|request| request.header("x-service-event-id") == disabled.event_id)
        .map(|request| request.body.clone())
        .collect();
    assert_eq!(of_it.len(), 1, "the same bytes in all attempts");
    println!(
        "ladder: {} attempts while the receiver was down, then {} held and 1 exhausted delivery arrived once each",
        attempts.len(),
        held.len()
    );
}
