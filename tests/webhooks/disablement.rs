//! A webhook whose retries are exhausted is disabled in its status, its account holder is notified once, and no event is lost.

use control_plane::ControlPlane;
use reqwest::Method;
use resources::{Delivery, DeliveryPhase, DisableReason, InstanceState, Webhook, conditions};
use serde_json::{Value, json};

use super::{all_in, phase_of, types};
use crate::support::{
    Operator, Tenant, eventually, kubectl, mail_folder, own_plane, receiver_arguments,
    receivers::{Answer, Receiver},
    shared,
};

/// The mails to this address so far.
fn mails_to(plane: &ControlPlane, address: &str) -> Vec<String> {
    let files = std::fs::read_dir(mail_folder(plane)).into_iter().flatten();
    let files = files.filter_map(|file| Some(file.ok()?.path()));
    let mails = files.filter(|path| path.extension().is_some_and(|extension| extension == "eml"));
    let mails = mails.filter_map(|path| std::fs::read_to_string(path).ok());
    mails.filter(|mail| mail.contains(address)).collect()
}

/// The webhook as `GET /v1/webhooks/<id>` shows it.
async fn shown_by_rest(tenant: &Tenant, webhook: &Webhook) -> Value {
    let answer = tenant
        .call(Method::GET, &format!("/v1/webhooks/{}", webhook.id()), None)
        .await;
    answer.json()["data"].clone()
}

fn is_disabled(webhook: &Webhook) -> bool {
    webhook.disabled().is_some()
}

#[tokio::test]
async fn the_fifth_failed_retry_disables_in_status_tells_the_holder_once_and_holds_what_follows() {
    let plane = shared().await.plane;
    let tenant = Tenant::new("hooks-ladder").await;
    let failing = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let receiver = Receiver::start({
        let failing = failing.clone();
        move |_| {
            if failing.load(std::sync::atomic::Ordering::Relaxed) {
                Answer::status(503).body("busy")
            } else {
                Answer::ok()
            }
        }
    })
    .await;
    tenant
        .webhook(
            "alarm",
            &receiver.url("/hook"),
            &["instance.started", "instance.stopped"],
        )
        .await;
    tenant.apply("web", |_| {}).await;
    let webhook = tenant
        .wait_for_webhook("alarm", "the webhook to be disabled", is_disabled)
        .await;
    let disabled = webhook.disabled().unwrap();
    assert_eq!(
        (disabled.reason, disabled.attempts),
        (DisableReason::RetriesExhausted, 6)
    );
    assert_eq!(disabled.last_status_code, Some(503));
    assert!(webhook.spec.active, "the spec belongs to the user");
    assert_eq!(receiver.count(), 6, "one attempt and five retries");
    let exhausted = tenant
        .wait_for_deliveries("alarm", "it to be exhausted", all_in(1, DeliveryPhase::Exhausted))
        .await;
    let status = exhausted[0].status.as_ref().unwrap();
    assert_eq!((status.attempt_count, status.attempts.len()), (6, 6));
    let responses = status.attempts.iter().map(|attempt| attempt.response.as_deref());
    assert_eq!(
        responses.flatten().collect::<Vec<_>>(),
        ["busy"],
        "only of the last one"
    );
    assert!(exhausted[0].metadata.name.as_deref() == Some(disabled.delivery.as_str()));

    let webhook = tenant
        .wait_for_webhook("alarm", "the mail to be recorded", |webhook| {
            webhook
                .disabled()
                .is_some_and(|disabled| disabled.notified_at.is_some())
        })
        .await;
    let mails = mails_to(plane, "hooks-ladder@example.com");
    assert_eq!(mails.len(), 1, "{mails:?}");
    assert!(mails[0].contains(&webhook.id()), "{}", mails[0]);
    let ready = conditions::find(&webhook.status.as_ref().unwrap().conditions, "Ready").unwrap();
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_str()),
        ("False", "Disabled")
    );
    let shown = kubectl(plane, "get webhooks -n hooks-ladder alarm", None).unwrap();
    assert!(shown.contains("RetriesExhausted"), "{shown}");

    // Events recorded in the meantime are held, and sent in order once the webhook is enabled; the exhausted one stays.
    tenant.power("web", "Stopped").await;
    tenant.wait_for_state("web", InstanceState::Stopped).await;
    tenant.power("web", "Running").await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    let is_held = |delivery: &&Delivery| phase_of(delivery) == Some(DeliveryPhase::Held);
    let all = tenant
        .wait_for_deliveries("alarm", "two held ones", |all| {
            all.iter().filter(is_held).count() == 2
        })
        .await;
    let held = all.iter().filter(is_held);
    let held: Vec<String> = held.map(|delivery| delivery.spec.body.clone()).collect();
    assert_eq!(receiver.count(), 6, "sent although disabled");
    let counted = |shown: &Value| shown["held"] == 2;
    let shown = eventually(
        "both to be counted",
        async || shown_by_rest(&tenant, &webhook).await,
        counted,
    )
    .await;
    assert_eq!(
        (&shown["health"], &shown["health_reason"]),
        (&json!("disabled"), &json!("retries_exhausted"))
    );
    assert!(
        shown["last_failure_at"].is_string() && shown["last_success_at"].is_null(),
        "{shown}"
    );
    failing.store(false, std::sync::atomic::Ordering::Relaxed);
    tenant
        .change_webhook("alarm", json!({ "enableRequestedAt": "2026-11-21T10:00:00Z" }))
        .await;
    let got = receiver.wait_for(8).await;
    assert_eq!(types(&got[6..]), ["instance.stopped", "instance.started"]);
    assert_eq!(
        [&got[6].body, &got[7].body],
        [held[0].as_bytes(), held[1].as_bytes()]
    );
    let is_well = |shown: &Value| {
        shown["health"] == "healthy" && shown["held"] == 0 && shown["last_success_at"].is_string()
    };
    eventually(
        "it to be healthy",
        async || shown_by_rest(&tenant, &webhook).await,
        is_well,
    )
    .await;
    let webhook = tenant
        .wait_for_webhook("alarm", "the webhook to be enabled", |webhook| {
            webhook
                .status
                .as_ref()
                .is_some_and(|status| status.disabled.is_none())
        })
        .await;
    assert!(webhook.is_active());

    // Removing the label sends the exhausted one again.
    let name = exhausted[0].metadata.name.clone().unwrap();
    kubectl(
        plane,
        &format!("label delivery -n hooks-ladder {name} stellage.dev/finished-"),
        None,
    )
    .unwrap();
    let got = receiver.wait_for(9).await;
    assert_eq!(got[8].body, got[0].body);
    tenant
        .wait_for_deliveries(
            "alarm",
            "all to be delivered",
            all_in(3, DeliveryPhase::Delivered),
        )
        .await;
    assert_eq!(mails_to(plane, "hooks-ladder@example.com").len(), 1);
}

#[tokio::test]
async fn gone_disables_at_once() {
    let tenant = Tenant::new("hooks-gone").await;
    let receiver = Receiver::start(|_| Answer::status(410)).await;
    tenant
        .webhook("old", &receiver.url("/hook"), &["instance.created"])
        .await;
    tenant.apply("web", |_| {}).await;
    let webhook = tenant
        .wait_for_webhook("old", "the webhook to be disabled", is_disabled)
        .await;
    assert_eq!(webhook.disabled().unwrap().reason, DisableReason::Gone);
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn who_enables_a_webhook_before_the_mail_could_be_sent_is_told_all_the_same() {
    let plane = own_plane().await;
    let mut arguments = vec!["run".to_owned(), "--provisioning-seconds=0".to_owned()];
    arguments.extend(receiver_arguments(&plane));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut operator = Operator::start(&plane, &arguments).await;
    let tenant = Tenant::on(&plane, &operator, "hooks-untold").await;
    // Mails cannot be written at first.
    let folder = mail_folder(&plane);
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::write(&folder, "").unwrap();
    let receiver = Receiver::start(|_| Answer::status(410)).await;
    tenant
        .webhook("old", &receiver.url("/hook"), &["instance.created"])
        .await;
    tenant.apply("web", |_| {}).await;
    let has_failed = |webhook: &Webhook| {
        let disabled = webhook.disabled();
        let error = disabled.and_then(|disabled| disabled.notification_error.clone());
        error.is_some_and(|error| !error.contains("being sent"))
    };
    tenant
        .wait_for_webhook("old", "the mail to fail", has_failed)
        .await;
    tenant
        .change_webhook("old", json!({ "enableRequestedAt": "2026-11-21T10:00:00Z" }))
        .await;
    let is_enabled = |webhook: &Webhook| !is_disabled(webhook);
    tenant
        .wait_for_webhook("old", "it to be enabled", is_enabled)
        .await;
    std::fs::remove_file(&folder).unwrap();
    std::fs::create_dir(&folder).unwrap();
    let mails = async || mails_to(&plane, "hooks-untold@example.com").len();
    eventually("the mail", mails, |mails| *mails == 1).await;
    operator.stop().await;
}

#[tokio::test]
async fn a_receiver_that_recovers_in_mid_ladder_gets_the_event_and_stays_enabled() {
    let tenant = Tenant::new("hooks-recovers").await;
    let receiver = Receiver::queue([Answer::status(500), Answer::status(301), Answer::ok()]).await;
    tenant
        .webhook("hook", &receiver.url("/hook"), &["instance.created"])
        .await;
    tenant.apply("web", |_| {}).await;
    let got = receiver.wait_for(3).await;
    assert!(got.iter().all(|request| request.body == got[0].body));
    let all = tenant
        .wait_for_deliveries("hook", "it to be delivered", all_in(1, DeliveryPhase::Delivered))
        .await;
    let attempts = &all[0].status.as_ref().unwrap().attempts;
    let codes: Vec<_> = attempts.iter().map(|attempt| attempt.status_code).collect();
    assert_eq!(codes, [Some(500), Some(301), Some(200)]);
    assert!(!is_disabled(&tenant.webhooks().get("hook").await.unwrap()));
}

#[tokio::test]
async fn an_inactive_webhook_records_nothing_and_an_active_one_only_what_it_asks_for() {
    let tenant = Tenant::new("hooks-inactive").await;
    let (off, on) = (
        Receiver::start(|_| Answer::ok()).await,
        Receiver::start(|_| Answer::ok()).await,
    );
    tenant
        .webhook(
            "off",
            &off.url("/hook"),
            &["instance.created", "instance.started"],
        )
        .await;
    tenant.change_webhook("off", json!({ "active": false })).await;
    tenant
        .webhook("on", &on.url("/hook"), &["instance.started"])
        .await;
    let settled = |webhook: &Webhook| {
        webhook
            .status
            .as_ref()
            .and_then(|status| status.observed_generation)
            == webhook.metadata.generation
    };
    tenant
        .wait_for_webhook("off", "the change to be seen", settled)
        .await;
    tenant.apply("web", |_| {}).await;
    let got = on.wait_for(1).await;
    assert_eq!(types(&got), ["instance.started"]);
    // Its entries leave the outbox once no webhook needs them.
    let empty = async || {
        let instance = tenant.instances().get("web").await.unwrap();
        instance.status.unwrap().outbox
    };
    eventually("the outbox to be cleared", empty, Vec::is_empty).await;
    assert_eq!((off.count(), on.count()), (0, 1));
    assert!(tenant.deliveries_of("off").await.is_empty());
}
