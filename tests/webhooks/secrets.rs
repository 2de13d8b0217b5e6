//! Signing secrets: missing, changed and rotated.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, PostParams};
use resources::{DeliveryPhase, InstanceState, Webhook, conditions};
use serde_json::json;
use standardwebhooks::Webhook as Verifier;

use super::{SECRET, all_in, phase_of};
use crate::support::{
    Change as _, Tenant, eventually,
    receivers::{Answer, Receiver},
};

/// Seconds within which a Secret changed with `kubectl` takes effect (decisions, section 5).
const NOTICED_WITHIN: i64 = 10;
const OTHER: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

#[tokio::test]
async fn a_missing_secret_is_a_condition_and_its_deliveries_are_held_until_it_is_there() {
    let tenant = Tenant::new("hooks-secretless").await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    tenant
        .webhook("hook", &receiver.url("/hook"), &["instance.created"])
        .await;
    let secrets: kube::Api<Secret> = kube::Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    secrets.delete("hook", &DeleteParams::default()).await.unwrap();
    let orphan = json!({
        "metadata": { "name": "orphan" },
        "spec": { "url": receiver.url("/"), "events": ["instance.deleted"], "secretRef": { "name": "nowhere" } },
    });
    let orphan = tenant.object(&orphan, "Webhook");
    tenant
        .webhooks()
        .create(&PostParams::default(), &orphan)
        .await
        .unwrap();
    let told = tenant
        .wait_for_webhook("orphan", "anything to be said", |webhook| {
            let conditions = webhook.status.iter().flat_map(|status| &status.conditions);
            conditions
                .into_iter()
                .any(|c| c.type_ == "SecretReady" && c.status != "Unknown")
        })
        .await;
    let told = told.status.unwrap().conditions;
    assert_eq!(conditions::find(&told, "SecretReady").unwrap().status, "False");
    assert_eq!(conditions::find(&told, "Ready").unwrap().status, "False");
    let problem = tenant
        .wait_for_webhook("hook", "the missing Secret to show", |webhook| {
            let conditions = webhook.status.iter().flat_map(|status| &status.conditions);
            conditions
                .clone()
                .any(|c| c.type_ == "SecretReady" && c.status == "False")
        })
        .await;
    let ready = conditions::find(&problem.status.as_ref().unwrap().conditions, "Ready")
        .unwrap()
        .clone();
    assert_eq!(ready.reason, "SecretMissing");
    assert!(ready.message.contains("no Secret hook"), "{}", ready.message);
    tenant.apply("web", |_| {}).await;
    tenant
        .wait_for_deliveries("hook", "it to be held", all_in(1, DeliveryPhase::Held))
        .await;
    tenant
        .wait_for_webhook("hook", "it to be counted", |webhook| {
            webhook.status.as_ref().is_some_and(|status| status.held == 1)
        })
        .await;
    tenant.secret("hook", OTHER).await;
    let got = receiver.wait_for(1).await;
    Verifier::new(OTHER)
        .unwrap()
        .verify(&got[0].body, &got[0].headers)
        .unwrap();
    tenant
        .wait_for_deliveries("hook", "it to be delivered", all_in(1, DeliveryPhase::Delivered))
        .await;
}

#[tokio::test]
async fn a_webhook_is_not_blocked_while_rest_creates_its_secret() {
    let tenant = Tenant::new("hooks-pending").await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let object = |name: &str, annotations: serde_json::Value| {
        let spec = json!({ "url": receiver.url("/"), "events": ["instance.created"], "secretRef": { "name": name } });
        tenant.object::<Webhook>(
            &json!({ "metadata": { "name": name, "annotations": annotations }, "spec": spec }),
            "Webhook",
        )
    };
    let by_rest = object("hook", json!({ "stellage.dev/secret-changed": "pending" }));
    let by_hand = object("other", json!({}));
    for webhook in [&by_rest, &by_hand] {
        let created = tenant.webhooks().create(&PostParams::default(), webhook).await;
        created.unwrap();
    }
    let is_shown = |webhook: &Webhook| webhook.status.is_some();
    tenant
        .wait_for_webhook("other", "the later one to be looked at", is_shown)
        .await;
    let pending = tenant.webhooks().get("hook").await.unwrap();
    assert!(pending.status.is_none(), "{:?}", pending.status);
    tenant.apply("web", |_| {}).await;
    tenant
        .wait_for_deliveries("hook", "its delivery", all_in(1, DeliveryPhase::Pending))
        .await;
    tenant.secret("hook", SECRET).await;
    receiver.wait_for(1).await;
}

#[tokio::test]
async fn a_webhook_whose_secret_is_missing_is_mended_by_naming_another() {
    let tenant = Tenant::new("hooks-renamed").await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    tenant
        .webhook("hook", &receiver.url("/hook"), &["instance.created"])
        .await;
    tenant
        .change_webhook("hook", json!({ "secretRef": { "name": "nowhere" } }))
        .await;
    let reason = |webhook: &Webhook| {
        let conditions = webhook.status.as_ref().map(|status| status.conditions.as_slice());
        conditions::find(conditions.unwrap_or_default(), conditions::READY).map(|ready| ready.reason.clone())
    };
    tenant
        .wait_for_webhook("hook", "the missing Secret to show", |webhook| {
            reason(webhook).as_deref() == Some("SecretMissing")
        })
        .await;
    tenant.apply("web", |_| {}).await;
    tenant
        .wait_for_deliveries("hook", "it to be held", all_in(1, DeliveryPhase::Held))
        .await;
    tenant
        .change_webhook("hook", json!({ "secretRef": { "name": "hook" } }))
        .await;
    receiver.wait_for(1).await;
    tenant
        .wait_for_webhook("hook", "it to be well", |webhook| {
            reason(webhook).as_deref() == Some("Active")
        })
        .await;
}

#[tokio::test]
async fn a_webhook_created_through_rest_sends_from_then_on() {
    let tenant = Tenant::new("hooks-at-once").await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let order = json!({ "url": receiver.url("/hook"), "events": ["instance.created"] });
    for round in 1..=10 {
        let created = tenant.call(Method::POST, "/v1/webhooks", Some(&order)).await;
        assert_eq!(created.status, 201, "{created:?}");
        let created = created.json();
        let path = format!("/v1/webhooks/{}", created["data"]["id"].as_str().unwrap());
        let tested = tenant.call(Method::POST, &format!("{path}/test"), None).await;
        assert_eq!(tested.status, 202);
        let tested = tested.json();
        let delivery = format!("{path}/deliveries/{}", tested["data"]["id"].as_str().unwrap());
        let status = async || {
            let seen = tenant.call(Method::GET, &delivery, None).await.json();
            seen["data"]["status"].as_str().unwrap().to_owned()
        };
        let ended = eventually("an end", status, |status| status != "pending").await;
        assert_eq!(ended, "delivered", "round {round}");
        let got = receiver.wait_for(round).await.pop().unwrap();
        let secret = created["data"]["secret"].as_str().unwrap();
        Verifier::new(secret)
            .unwrap()
            .verify(&got.body, &got.headers)
            .unwrap();
    }
}

#[tokio::test]
async fn a_secret_rotated_through_rest_signs_what_is_sent_from_then_on() {
    let tenant = Tenant::new("hooks-rotated").await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let order = json!({ "url": receiver.url("/hook"), "events": ["instance.created"] });
    let created = tenant.call(Method::POST, "/v1/webhooks", Some(&order)).await;
    assert_eq!(created.status, 201);
    let path = format!("/v1/webhooks/{}", created.json()["data"]["id"].as_str().unwrap());
    for round in 1..=3 {
        let body = json!({ "overlap_seconds": 0 });
        let rotated = tenant
            .call(Method::POST, &format!("{path}/rotate-secret"), Some(&body))
            .await
            .json();
        let secret = rotated["data"]["secret"].as_str().unwrap().to_owned();
        let tested = tenant.call(Method::POST, &format!("{path}/test"), None).await;
        assert_eq!(tested.status, 202);
        let got = receiver.wait_for(round).await.pop().unwrap();
        Verifier::new(&secret)
            .unwrap()
            .verify(&got.body, &got.headers)
            .unwrap();
    }
}

#[tokio::test]
async fn what_was_held_goes_out_signed_with_the_secret_of_the_request_that_enables_the_webhook() {
    const ROUNDS: usize = 4;
    const HELD: usize = 3;
    let tenant = Tenant::new("hooks-enabled").await;
    let gone = Arc::new(AtomicBool::new(false));
    let is_gone = gone.clone();
    let receiver = Receiver::start(move |_| {
        if is_gone.load(Ordering::Relaxed) {
            Answer::status(410)
        } else {
            Answer::ok()
        }
    })
    .await;
    let order = json!({ "url": receiver.url("/"), "events": ["instance.created"] });
    let created = tenant
        .call(Method::POST, "/v1/webhooks", Some(&order))
        .await
        .json();
    let id = created["data"]["id"].as_str().unwrap();
    let (path, name) = (format!("/v1/webhooks/{id}"), id.replace('_', "-"));
    for round in 0..ROUNDS {
        gone.store(true, Ordering::Relaxed);
        tenant.apply(&format!("web-{round}-gone"), |_| {}).await;
        tenant
            .wait_for_webhook(&name, "it to be disabled", |webhook| webhook.disabled().is_some())
            .await;
        gone.store(false, Ordering::Relaxed);
        let before = receiver.count();
        for number in 0..HELD {
            tenant.apply(&format!("web-{round}-{number}"), |_| {}).await;
        }
        tenant
            .wait_for_deliveries(&name, "them to be held", |all| {
                let held = all
                    .iter()
                    .filter(|one| phase_of(one) == Some(DeliveryPhase::Held));
                held.count() == HELD
            })
            .await;
        assert_eq!(receiver.count(), before);
        let secret = format!("the secret of round {round}");
        let change = json!({ "secret": secret, "active": true });
        let changed = tenant.call(Method::PATCH, &path, Some(&change)).await;
        assert_eq!(changed.status, 200, "{changed:?}");
        let verifier = Verifier::from_bytes(secret.into_bytes()).unwrap();
        for request in &receiver.wait_for(before + HELD).await[before..] {
            let outcome = verifier.verify(&request.body, &request.headers);
            assert!(outcome.is_ok(), "round {round}: {request:?}");
        }
        tenant
            .wait_for_webhook(&name, "it to be enabled", |webhook| webhook.disabled().is_none())
            .await;
    }
}

#[tokio::test]
async fn a_secret_changed_with_kubectl_signs_within_ten_seconds_and_in_an_overlap_both_sign() {
    let tenant = Tenant::new("hooks-rotation").await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    tenant
        .webhook(
            "hook",
            &receiver.url("/hook"),
            &["instance.started", "instance.stopped"],
        )
        .await;
    tenant.apply("web", |_| {}).await;
    receiver.wait_for(1).await;
    let secrets: kube::Api<Secret> = kube::Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let rotated = json!({ "stringData": {
        "secret": OTHER, "previous-secret": SECRET, "previous-expires-at": "2099-01-01T00:00:00Z",
    }});
    secrets.merge("hook", &rotated).await;
    let changed_at = Timestamp::now().as_second();
    let mut next = "Stopped";
    let verifies = |request: &crate::support::receivers::Received, secret: &str| {
        Verifier::new(secret)
            .unwrap()
            .verify(&request.body, &request.headers)
            .is_ok()
    };
    let last = eventually(
        "a delivery signed with the new secret",
        async || {
            let count = receiver.count();
            tenant.power("web", next).await;
            let state = if next == "Stopped" {
                InstanceState::Stopped
            } else {
                InstanceState::Running
            };
            tenant.wait_for_state("web", state).await;
            next = if next == "Stopped" { "Running" } else { "Stopped" };
            receiver.wait_for(count + 1).await.pop().unwrap()
        },
        |request| verifies(request, OTHER),
    )
    .await;
    for request in receiver.received() {
        // The time of signing, not of arrival, because the machine may be busy.
        let signed_at: i64 = request.header("webhook-timestamp").parse().unwrap();
        let age = signed_at - changed_at;
        // Both are whole seconds.
        assert!(age <= NOTICED_WITHIN + 1 || verifies(&request, OTHER), "{age} s");
    }
    assert!(verifies(&last, SECRET), "the previous secret signs too");
    tenant
        .wait_for_webhook("hook", "the overlap to show", |webhook| {
            webhook
                .status
                .as_ref()
                .is_some_and(|status| status.previous_secret_expires_at.is_some())
        })
        .await;
}
