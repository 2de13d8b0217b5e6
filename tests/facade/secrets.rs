//! Which Secrets webhooks may use, and in which order a webhook and its Secret change.

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use reqwest::Method;
use resources::conditions;
use serde_json::{Value, json};

use super::{
    contract::{code, expect},
    webhooks::{create, name_of, stored, url_of, webhooks},
};
use crate::support::{Change as _, Tenant, eventually};

fn secrets(tenant: &Tenant) -> Api<Secret> {
    Api::namespaced(tenant.kube.clone(), &tenant.namespace)
}

async fn add(tenant: &Tenant, secret: Value) {
    let secret: Secret = serde_json::from_value(secret).unwrap();
    secrets(tenant)
        .create(&PostParams::default(), &secret)
        .await
        .unwrap();
}

/// Names another Secret in a webhook, as kubectl would.
pub(super) async fn refer(tenant: &Tenant, webhook: &str, name: &str, key: &str) {
    let reference = json!({ "spec": { "secretRef": { "name": name, "key": key } } });
    webhooks(tenant).merge(webhook, &reference).await;
}

#[tokio::test]
async fn a_secret_that_is_not_for_webhooks_is_neither_shown_nor_changed_nor_told_from_a_missing_one() {
    let tenant = Tenant::new("deputy").await;
    let webhook = create(&tenant).await;
    let (path, name) = (url_of(&webhook), name_of(&webhook));
    add(
        &tenant,
        json!({ "metadata": { "name": "private" }, "stringData": { "password": "hunter2" } }),
    )
    .await;
    let rotate = format!("{path}/rotate-secret");
    let mut told = Vec::new();
    for (secret, key) in [
        ("private", "password"),
        ("private", "nothing"),
        ("nowhere", "secret"),
    ] {
        refer(&tenant, &name, secret, key).await;
        for (method, path, body) in [
            (Method::POST, &rotate, json!({})),
            (Method::PATCH, &path, json!({ "secret": "mine", "active": true })),
        ] {
            let refused = expect(&tenant, 409, method, path, Some(&body), &[]).await;
            assert_eq!(code(&refused), "conflict");
            told.push(refused.json()["error"]["message"].clone());
        }
        let message = eventually(
            "the condition",
            async || {
                let status = webhooks(&tenant)
                    .get(&name)
                    .await
                    .unwrap()
                    .status
                    .unwrap_or_default();
                conditions::find(&status.conditions, "SecretReady").cloned()
            },
            |ready| {
                ready.as_ref().is_some_and(|ready| {
                    ready.reason == "SecretMissing"
                        && ready.message.contains(secret)
                        && ready.message.contains(&format!("key {key} "))
                })
            },
        )
        .await;
        let message = message
            .unwrap()
            .message
            .replace(secret, "S")
            .replace(&format!("key {key} "), "key K ");
        told.push(json!(message));
    }
    assert_eq!(told[..3], told[3..6]);
    assert_eq!(told[..3], told[6..]);
    assert_eq!(
        stored(&tenant, "private", "password").await.as_deref(),
        Some("hunter2")
    );
    assert!(secrets(&tenant).get_opt("nowhere").await.unwrap().is_none());

    // The label is consent.
    let label = json!({ "metadata": { "labels": { "stellage.dev/webhook-secret": "true" } } });
    secrets(&tenant).merge("private", &label).await;
    refer(&tenant, &name, "private", "password").await;
    let rotated = tenant.act(200, &rotate).await.json();
    assert_eq!(
        stored(&tenant, "private", "password").await.as_deref(),
        rotated["data"]["secret"].as_str()
    );
}

#[tokio::test]
async fn a_repeated_rotation_is_refused_once_the_webhook_names_another_secret() {
    let tenant = Tenant::new("moved-secret").await;
    let webhook = create(&tenant).await;
    let (path, name) = (url_of(&webhook), name_of(&webhook));
    let rotate = format!("{path}/rotate-secret");
    let headers = [("Idempotency-Key", "once")];
    let first = expect(&tenant, 200, Method::POST, &rotate, None, &headers)
        .await
        .json();
    add(
        &tenant,
        json!({
            "metadata": { "name": "other", "labels": { "stellage.dev/webhook-secret": "true" } },
            "stringData": { "secret": "theirs", "another": "theirs too" },
        }),
    )
    .await;
    refer(&tenant, &name, "other", "secret").await;
    let refused = expect(&tenant, 409, Method::POST, &rotate, None, &headers).await;
    assert!(code(&refused) == "conflict" && !refused.text.contains("theirs"));
    assert_eq!(
        stored(&tenant, "other", "secret").await.as_deref(),
        Some("theirs")
    );
    refer(&tenant, &name, &name, "secret").await;
    let again = expect(&tenant, 200, Method::POST, &rotate, None, &headers)
        .await
        .json();
    assert_eq!(again["data"]["secret"], first["data"]["secret"]);
    // The same for another key of one Secret.
    refer(&tenant, &name, "other", "secret").await;
    let headers = [("Idempotency-Key", "twice")];
    expect(&tenant, 200, Method::POST, &rotate, None, &headers).await;
    refer(&tenant, &name, "other", "another").await;
    expect(&tenant, 409, Method::POST, &rotate, None, &headers).await;
    assert_eq!(
        stored(&tenant, "other", "another").await.as_deref(),
        Some("theirs too")
    );
}

#[tokio::test]
async fn a_change_with_a_secret_changes_the_secret_before_anything_else_and_can_be_repeated() {
    let tenant = Tenant::new("secret-first").await;
    let webhook = create(&tenant).await;
    let (path, name) = (url_of(&webhook), name_of(&webhook));
    let shown = tenant.get(&path).await;
    let etag = shown.header("etag").to_owned();
    let lock = json!({ "immutable": true });
    secrets(&tenant).merge(&name, &lock).await;
    let change = json!({ "secret": "new", "url": "https://hooks.example.com/other", "active": false });
    let headers = [("If-Match", etag.as_str())];
    expect(&tenant, 409, Method::PATCH, &path, Some(&change), &headers).await;
    let object = webhooks(&tenant).get(&name).await.unwrap();
    assert!(
        object.spec.active && object.spec.url.ends_with("/in"),
        "{:?}",
        object.spec
    );

    secrets(&tenant)
        .delete(&name, &DeleteParams::default())
        .await
        .unwrap();
    let changed = expect(&tenant, 200, Method::PATCH, &path, Some(&change), &headers).await;
    assert_eq!(changed.json()["data"]["active"], false);
    assert_eq!(stored(&tenant, &name, "secret").await.as_deref(), Some("new"));
    // A single write told the controller about both.
    let version = secrets(&tenant)
        .get(&name)
        .await
        .unwrap()
        .metadata
        .resource_version;
    let object = webhooks(&tenant).get(&name).await.unwrap();
    assert_eq!(object.metadata.generation, Some(2));
    let annotations = object.metadata.annotations.unwrap();
    assert_eq!(annotations.get("stellage.dev/secret-changed"), version.as_ref());
}

#[tokio::test]
async fn an_expired_previous_secret_is_removed() {
    let tenant = Tenant::new("secret-expired").await;
    let webhook = create(&tenant).await;
    let (path, name) = (url_of(&webhook), name_of(&webhook));
    let body = json!({ "overlap_seconds": 1 });
    tenant.post(200, &format!("{path}/rotate-secret"), &body).await;
    eventually(
        "the previous secret to go",
        async || {
            (
                stored(&tenant, &name, "previous-secret").await,
                stored(&tenant, &name, "previous-expires-at").await,
            )
        },
        |left| *left == (None, None),
    )
    .await;
    assert!(stored(&tenant, &name, "secret").await.is_some());
}
