//! `stellage webhook …` and `stellage delivery …`.

use std::process::Stdio;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use resources::{DeliveryPhase, Webhook};
use serde_json::json;
use standardwebhooks::Webhook as Verifier;
use tokio::io::AsyncWriteExt as _;

use super::{Ran, command, run};
use crate::{
    support::{
        Tenant, kubectl_words,
        receivers::{Answer, Received, Receiver},
        shared,
    },
    webhooks::{SECRET, all_in},
};

const OTHER: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

fn verifies(received: &Received, secret: &str) -> bool {
    let verifier = Verifier::new(secret).unwrap();
    verifier.verify(&received.body, &received.headers).is_ok()
}

/// Creates a webhook `hook`, and waits until the operator has read its secret.
pub async fn hook(tenant: &Tenant, receiver: &Receiver, events: &[&str]) -> Webhook {
    tenant.webhook("hook", &receiver.url("/hook"), events).await;
    tenant
        .wait_for_webhook("hook", "it to be well", |webhook| {
            reason(webhook).as_deref() == Some("Active")
        })
        .await
}

fn reason(webhook: &Webhook) -> Option<String> {
    let conditions = webhook.status.as_ref().map(|status| status.conditions.as_slice());
    resources::conditions::find(conditions.unwrap_or_default(), "Ready").map(|ready| ready.reason.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_is_tried_out_by_name_or_id() {
    let tenant = Tenant::new("cmd-test").await;
    let receiver = Receiver::start(|received| {
        let is_refused = received.header("x-service-event-type") == "instance.stopped";
        Answer::status(if is_refused { 500 } else { 204 })
    })
    .await;
    let webhook = hook(&tenant, &receiver, &["instance.created", "instance.stopped"]).await;
    let run = async |line: &str| run("cmd-test", line).await;

    let tested = run("webhook test hook --wait").await;
    assert!(
        tested.text().contains("is delivered: answered 204 in "),
        "{tested:?}"
    );
    let sent = receiver.wait_for(1).await.pop().unwrap();
    assert!(verifies(&sent, SECRET));
    assert_eq!(sent.header("x-service-event-type"), "instance.created");
    assert!(sent.header("x-service-event-id").starts_with("evt_test_"));

    let line = format!("webhook test {} --type instance.stopped --wait", webhook.id());
    let failed = run(&line).await;
    assert!(
        failed.error().contains("has failed after 1 attempt: "),
        "{failed:?}"
    );
    let look = "`kubectl describe delivery dlv-";
    assert!(failed.error().contains(look), "{failed:?}");

    let object = run("webhook test hook -o json").await.json();
    assert_eq!(
        (&object["kind"], &object["spec"]["test"]),
        (&json!("Delivery"), &json!(true))
    );
    receiver.wait_for(3).await;

    let foreign = run("webhook test hook --type invoice.created").await;
    assert!(
        foreign
            .error()
            .contains("--type must be one of its types: instance.created, instance.stopped"),
        "{foreign:?}"
    );
    tenant.change_webhook("hook", json!({ "active": false })).await;
    let inactive = run("webhook test hook").await;
    assert!(
        inactive.error().contains("webhook enable hook -n cmd-test"),
        "{inactive:?}"
    );
    let unknown = run("webhook test nope").await;
    assert!(
        unknown
            .error()
            .contains("there is no webhook nope in namespace cmd-test"),
        "{unknown:?}"
    );
    let unknown = run("webhook test wh_aaaaaaaaaaaaaaaa").await;
    assert!(
        unknown
            .error()
            .contains("`kubectl get webhooks -n cmd-test -o wide`"),
        "{unknown:?}"
    );
    let unknown = run("delivery redeliver dlv_aaaaaaaaaaaaaaaa").await;
    assert!(
        unknown
            .error()
            .contains("`kubectl get deliveries -n cmd-test -o wide`"),
        "{unknown:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disabled_webhook_is_enabled_again_and_what_failed_is_sent_again() {
    let tenant = Tenant::new("cmd-enable").await;
    let is_mended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mended = is_mended.clone();
    let receiver = Receiver::start(move |_| {
        Answer::status(if mended.load(std::sync::atomic::Ordering::Relaxed) {
            200
        } else {
            410
        })
    })
    .await;
    hook(&tenant, &receiver, &["instance.created"]).await;
    tenant.apply("web", |_| {}).await;
    tenant
        .wait_for_webhook("hook", "it to be disabled", |webhook| {
            webhook.disabled().is_some()
        })
        .await;
    let exhausted = tenant
        .wait_for_deliveries("hook", "it to be given up", all_in(1, DeliveryPhase::Exhausted))
        .await;
    let id = exhausted[0].id();
    let run = async |line: &str| run("cmd-enable", line).await;
    let plane = shared().await.plane;

    let kubectl = |words: &[&str]| {
        let words = [words, &["-n", "cmd-enable", "--no-headers"]].concat();
        kubectl_words(plane, &words, None).unwrap()
    };
    let row = kubectl(&["get", "webhooks", "hook"]);
    let row: Vec<&str> = row.split_whitespace().collect();
    assert!(row[3] == "False" && row.contains(&"Gone"), "{row:?}");
    let row = kubectl(&["get", "deliveries", "-l", "stellage.dev/webhook=hook"]);
    let row: Vec<&str> = row.split_whitespace().collect();
    let expected = ["instance.created", "hook", "Exhausted", "1"];
    assert_eq!(row[1..5], expected, "{row:?}");

    is_mended.store(true, std::sync::atomic::Ordering::Relaxed);
    let enabled = run("webhook enable hook --wait").await;
    assert_eq!(enabled.text(), "webhook hook is enabled");
    let webhook = tenant.webhooks().get("hook").await.unwrap();
    assert!(webhook.is_active() && webhook.spec.enable_requested_at.is_some());
    let again = run("webhook enable hook -o json").await.json();
    assert_eq!(
        again["metadata"]["generation"],
        json!(webhook.metadata.generation),
        "nothing to write"
    );

    let before = receiver.count();
    let sent = run(&format!("delivery redeliver {id} --wait")).await;
    assert!(
        sent.text()
            .contains(&format!("delivery {id} is delivered: answered 200 in ")),
        "{sent:?}"
    );
    assert_eq!(receiver.count(), before + 1);
    let requests = receiver.received();
    assert_eq!(
        requests[0].body,
        requests.last().unwrap().body,
        "the same event, byte for byte"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_cannot_be_sent_to_is_not_waited_for_and_what_is_held_goes_out_by_itself() {
    let tenant = Tenant::new("cmd-blocked").await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    hook(&tenant, &receiver, &["instance.created"]).await;
    tenant
        .change_webhook(
            "hook",
            json!({ "secretRef": { "name": "nowhere" }, "active": false }),
        )
        .await;
    let enabled = run("cmd-blocked", "webhook enable hook --wait").await;
    assert!(
        enabled
            .error()
            .contains("webhook hook is not ready: SecretMissing: "),
        "{enabled:?}"
    );
    tenant.apply("web", |_| {}).await;
    let held = tenant
        .wait_for_deliveries("hook", "it to be held", all_in(1, DeliveryPhase::Held))
        .await;
    let redeliver = format!("delivery redeliver {}", held[0].name_any());
    let later = "will be sent as soon as its webhook is no longer blocked";
    let asked = run("cmd-blocked", &redeliver).await;
    assert!(asked.text().contains(later), "{asked:?}");
    let waited = run("cmd-blocked", &format!("{redeliver} --wait")).await;
    assert!(waited.error().contains(later), "{waited:?}");
    assert!(
        waited
            .error()
            .contains("`kubectl describe webhook hook -n cmd-blocked`"),
        "{waited:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_secret_signs_at_once_and_the_old_one_too_for_a_while() {
    let tenant = Tenant::new("cmd-rotate").await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    hook(&tenant, &receiver, &["instance.created"]).await;
    let run = async |line: &str| run("cmd-rotate", line).await;
    let next = async |count: usize| {
        super::run("cmd-rotate", "webhook test hook --wait").await.text();
        receiver.wait_for(count).await.pop().unwrap()
    };

    let rotated = run("webhook rotate-secret hook").await;
    let first = rotated.text().to_owned();
    assert!(
        first.starts_with("whsec_") && !first.contains('\n'),
        "the secret alone: {rotated:?}"
    );
    assert!(rotated.notes.contains("it will not be shown again") && !rotated.notes.contains(&first));
    let sent = next(1).await;
    assert!(verifies(&sent, &first) && verifies(&sent, SECRET), "both sign");

    let rotated = run(&format!(
        "webhook rotate-secret hook --secret {OTHER} --overlap 2h --output json"
    ))
    .await
    .json();
    assert_eq!(
        (&rotated["name"], &rotated["namespace"], &rotated["secret"]),
        (&json!("hook"), &json!("cmd-rotate"), &json!(OTHER))
    );
    let until: Timestamp = rotated["previous_secret_expires_at"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let ahead = until.as_second() - Timestamp::now().as_second();
    assert!((7000..=7200).contains(&ahead), "{ahead}");
    let sent = next(2).await;
    assert!(verifies(&sent, OTHER) && verifies(&sent, &first) && !verifies(&sent, SECRET));

    // From stdin, without an overlap, and with another webhook that uses the same Secret.
    let twin = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Webhook", "metadata": { "name": "twin" },
        "spec": { "url": receiver.url("/twin"), "events": ["instance.deleted"], "secretRef": { "name": "hook" } },
    });
    let params = PatchParams::apply("tests").force();
    tenant
        .webhooks()
        .patch("twin", &params, &Patch::Apply(&twin))
        .await
        .unwrap();
    let words = [
        "webhook",
        "rotate-secret",
        "hook",
        "-n",
        "cmd-rotate",
        "--secret-file",
        "-",
        "--overlap",
        "0s",
    ];
    let mut child = command(&words).await;
    let mut child = child
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"correct horse\n").await.unwrap();
    drop(stdin);
    let rotated = Ran::of(child.wait_with_output().await.unwrap());
    assert_eq!(rotated.text(), "correct horse");
    assert!(
        rotated.notes.contains("also signs for webhooks twin"),
        "{rotated:?}"
    );
    let secrets: Api<Secret> = Api::namespaced(tenant.kube.clone(), "cmd-rotate");
    let data = secrets.get("hook").await.unwrap().data.unwrap();
    assert_eq!(data.keys().collect::<Vec<_>>(), ["secret"]);
    assert_eq!(data["secret"].0, b"correct horse");

    for (line, expected) in [
        ("webhook rotate-secret hook --overlap 8d", "at most 7d"),
        (
            "webhook rotate-secret hook --secret a --secret-file b",
            "cannot be used with",
        ),
    ] {
        let ran = run(line).await;
        assert!(
            ran.code == Some(2) && ran.notes.contains(expected),
            "{line}: {ran:?}"
        );
    }
    let missing = run("webhook rotate-secret hook --secret-file /nowhere/at/all").await;
    assert!(
        missing
            .error()
            .contains("--secret-file: cannot read /nowhere/at/all"),
        "{missing:?}"
    );
}
