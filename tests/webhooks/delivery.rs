//! From a transition to a receiver, and the records of the delivery.

use http::Method;
use kube::api::DeleteParams;
use resources::{DeliveryPhase, InstanceState};
use serde_json::json;
use standardwebhooks::Webhook as Verifier;

use super::{ALL, SECRET, all_in, body, types};
use crate::support::{
    Change as _, Tenant, eventually,
    receivers::{Answer, Received, Receiver},
};

#[tokio::test]
async fn an_instance_that_is_deleted_at_once_was_created_and_deleted_to_its_webhooks() {
    let tenant = Tenant::new("hooks-brief").await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    tenant.webhook("orders", &receiver.url("/hook"), &ALL).await;
    let order = json!({ "name": "web", "region": "fr-par-1", "plan": "starter", "image": "debian-13" });
    for number in 1..=5 {
        let made = tenant.call(Method::POST, "/v1/instances", Some(&order)).await;
        assert_eq!(made.status, 201, "{made:?}");
        let id = made.json()["data"]["id"].as_str().unwrap().to_owned();
        let path = format!("/v1/instances/{id}");
        assert_eq!(tenant.call(Method::DELETE, &path, None).await.status, 204);
        let told = async || {
            let of_it = |request: &Received| body(request)["data"]["instance"]["id"] == id.as_str();
            let all = receiver.received();
            types(&all.into_iter().filter(of_it).collect::<Vec<_>>())
        };
        let told = eventually("both events", told, |told| told.len() >= 2).await;
        assert_eq!(told, ["instance.created", "instance.deleted"], "{number}");
    }
}

#[tokio::test]
async fn every_transition_arrives_once_signed_and_with_the_bytes_that_were_recorded() {
    let tenant = Tenant::new("hooks-life").await;
    let receiver = Receiver::start(|_| Answer::ok().body("thanks")).await;
    tenant.webhook("orders", &receiver.url("/hook"), &ALL).await;
    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    receiver.wait_for(2).await;
    let stop = json!({ "spec": { "powerState": "Stopped" } });
    let instances = tenant.instances();
    instances.merge("web", &stop).await;
    receiver.wait_for(3).await;
    instances.delete("web", &DeleteParams::default()).await.unwrap();
    receiver.wait_for(4).await;

    let all = tenant
        .wait_for_deliveries(
            "orders",
            "four deliveries in the log",
            all_in(4, DeliveryPhase::Delivered),
        )
        .await;
    let got = receiver.received();
    assert_eq!(
        types(&got),
        [
            "instance.created",
            "instance.started",
            "instance.stopped",
            "instance.deleted"
        ]
    );
    let verifier = Verifier::new(SECRET).unwrap();
    for (request, delivery) in got.iter().zip(&all) {
        verifier.verify(&request.body, &request.headers).unwrap();
        let body = body(request);
        assert_eq!(request.body, delivery.spec.body);
        assert_eq!(body["id"], request.header("x-service-event-id"));
        assert_eq!(body["id"], delivery.spec.event_id);
        assert_eq!(body["data"]["instance"]["name"], "web");
        let is_about_the_account =
            ["instance.created", "instance.deleted"].contains(&body["type"].as_str().unwrap());
        assert_eq!(
            body["data"]["user"]["email"] == "hooks-life@example.com",
            is_about_the_account
        );
        let attempts = &delivery.status.as_ref().unwrap().attempts;
        assert_eq!(attempts.len(), 1);
        assert_eq!(
            (attempts[0].status_code, attempts[0].response.as_deref()),
            (Some(200), Some("thanks"))
        );
    }
    assert_eq!(receiver.count(), 4, "sent more than once");
}
