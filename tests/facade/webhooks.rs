//! Webhooks through REST: their life, their secrets, their limits.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use rand::RngExt as _;
use reqwest::Method;
use resources::{Account, Webhook};
use serde_json::{Value, json};
use server::service::idempotency::IdempotentRequest;

use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use super::contract::{call, code, expect, fields};
use crate::support::{Answer, Change as _, Operator, Tenant, eventually, shared};

pub(super) const PATH: &str = "/v1/webhooks";

/// A minimal request.
pub(super) fn hook() -> Value {
    json!({ "url": "https://hooks.example.com/in", "events": ["instance.created", "instance.deleted"] })
}

/// Creates a webhook.
pub(super) async fn create_with(tenant: &Tenant, body: &Value, headers: &[(&str, &str)]) -> Answer {
    expect(tenant, 201, Method::POST, PATH, Some(body), headers).await
}

/// Creates a webhook and returns its `data`.
pub(super) async fn create(tenant: &Tenant) -> Value {
    create_with(tenant, &hook(), &[]).await.json()["data"].clone()
}

pub(super) fn url_of(webhook: &Value) -> String {
    format!("{PATH}/{}", webhook["id"].as_str().unwrap())
}

pub(super) fn webhooks(tenant: &Tenant) -> Api<Webhook> {
    Api::namespaced(tenant.kube.clone(), &tenant.namespace)
}

pub(super) fn name_of(webhook: &Value) -> String {
    webhook["id"].as_str().unwrap().replace('_', "-")
}

/// The text under a key of a webhook's Secret.
pub(super) async fn stored(tenant: &Tenant, name: &str, key: &str) -> Option<String> {
    let secrets: Api<Secret> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let secret = secrets.get_opt(name).await.unwrap()?;
    let bytes = secret.data?.remove(key)?;
    Some(String::from_utf8(bytes.0).unwrap())
}

#[tokio::test]
async fn what_is_rarely_meant_is_said_in_the_message() {
    let tenant = Tenant::new("hook-remarks").await;
    let said = |answer: Answer| answer.json()["message"].as_str().unwrap_or_default().to_owned();
    let created = create_with(&tenant, &hook(), &[]).await;
    assert!(created.json().get("message").is_none());
    let first = created.json()["data"].clone();
    // The same URL for other events is no remark.
    let mut body = hook();
    body["events"] = json!(["invoice.created"]);
    let second = create_with(&tenant, &body, &[]).await;
    assert!(second.json().get("message").is_none());
    let second = url_of(&second.json()["data"]);
    body["events"] = json!(["instance.deleted", "invoice.created"]);
    let beside = said(
        tenant
            .patch(200, &second, &json!({"events": body["events"]}))
            .await,
    );
    assert!(beside.contains(first["id"].as_str().unwrap()), "{beside}");
    body["secret"] = json!("s3cret\n");
    let both = said(create_with(&tenant, &body, &[]).await);
    assert!(
        both.contains("white space") && both.contains(first["id"].as_str().unwrap()),
        "{both}"
    );
    let secret = json!({ "secret": " s3cret" });
    let changed = said(tenant.patch(200, &second, &secret).await);
    assert!(
        changed.contains("white space") && !changed.contains("wh_"),
        "{changed}"
    );
    let other = json!({ "secret": "another\t" });
    let rotate = format!("{second}/rotate-secret");
    let rotated = said(tenant.post(200, &rotate, &other).await);
    assert!(
        rotated.contains("overlap") && rotated.contains("white space"),
        "{rotated}"
    );
}

#[tokio::test]
async fn a_webhook_is_created_listed_read_changed_and_deleted() {
    let tenant = Tenant::new("hook-life").await;
    let answer = create_with(&tenant, &hook(), &[]).await;
    let first = answer.json()["data"].clone();
    assert_eq!(answer.header("location"), url_of(&first));
    assert_eq!(
        (&first["active"], &first["events"]),
        (&json!(true), &hook()["events"])
    );
    let secret = first["secret"].as_str().unwrap().to_owned();
    assert!(secret.starts_with("whsec_") && secret.len() == 6 + 44, "{secret}");

    // Two objects, one of which owns the other.
    let name = name_of(&first);
    let object = webhooks(&tenant).get(&name).await.unwrap();
    assert_eq!(object.spec.secret_ref.name, name);
    assert_eq!(
        stored(&tenant, &name, "secret").await.as_deref(),
        Some(secret.as_str())
    );
    let secrets: Api<Secret> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let kept = secrets.get(&name).await.unwrap();
    assert_eq!(
        kept.metadata.owner_references.unwrap()[0].uid,
        object.metadata.uid.unwrap()
    );
    assert_eq!(
        kept.metadata.labels.unwrap()["app.kubernetes.io/managed-by"],
        "stellage"
    );

    let mut body = hook();
    body["secret"] = json!("my own, ß");
    body["active"] = json!(false);
    body["events"] = json!(["invoice.created", "invoice.created"]);
    let second = create_with(&tenant, &body, &[]).await.json()["data"].clone();
    assert_eq!(
        (&second["secret"], &second["active"], &second["events"]),
        (&body["secret"], &json!(false), &json!(["invoice.created"]))
    );
    // Created with kubectl, found by its derived id.
    let by_hand: Webhook = serde_json::from_value(json!({
        "apiVersion": "stellage.dev/v1", "kind": "Webhook", "metadata": { "name": "by-hand" },
        "spec": { "url": "https://example.com", "events": ["backup.failed"], "secretRef": { "name": "mine" } },
    }))
    .unwrap();
    let by_hand = webhooks(&tenant)
        .create(&PostParams::default(), &by_hand)
        .await
        .unwrap();
    let third = format!("{PATH}/{}", by_hand.id());
    eventually(
        "the watch to show it",
        async || tenant.call(Method::GET, &third, None).await.status.as_u16(),
        |status| *status == 200,
    )
    .await;

    let list = tenant.get(PATH).await.json();
    assert_eq!(list["pagination"]["total"], 3);
    assert!(!list.to_string().contains(&secret) && !list.to_string().contains("my own"));
    let keys: Vec<(&str, &str)> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| (w["created_at"].as_str().unwrap(), w["id"].as_str().unwrap()))
        .collect();
    let mut sorted = keys.clone();
    sorted.sort_by(|a, b| b.0.cmp(a.0).then(a.1.cmp(b.1)));
    assert_eq!(keys, sorted, "newest first, then id");
    let page = tenant.get(&format!("{PATH}?limit=2&page=2")).await.json();
    assert_eq!(page["data"].as_array().unwrap().len(), 1);
    assert_eq!(
        page["pagination"],
        json!({ "page": 2, "limit": 2, "total": 3, "total_pages": 2 })
    );

    let path = url_of(&first);
    let read = tenant.get(&path).await;
    assert!(read.json()["data"].get("secret").is_none());
    let etag = read.header("etag").to_owned();
    let change =
        json!({ "url": "https://other.example.com", "events": ["instance.started"], "secret": "new one" });
    let changed = expect(
        &tenant,
        200,
        Method::PATCH,
        &path,
        Some(&change),
        &[("If-Match", &etag)],
    )
    .await;
    assert_eq!(changed.json()["data"]["url"], change["url"]);
    assert!(!changed.text.contains("new one"));
    assert_eq!(stored(&tenant, &name, "secret").await.as_deref(), Some("new one"));
    assert_eq!(stored(&tenant, &name, "previous-secret").await, None);
    let again = tenant.get(&path).await.json();
    assert_eq!(again["data"], changed.json()["data"]);
    for (method, body) in [(Method::PATCH, Some(&change)), (Method::DELETE, None)] {
        expect(&tenant, 412, method, &path, body, &[("If-Match", &etag)]).await;
    }

    tenant.delete(&path).await;
    for (method, body) in [
        (Method::GET, None),
        (Method::PATCH, Some(&change)),
        (Method::DELETE, None),
    ] {
        expect(&tenant, 404, method, &path, body, &[]).await;
    }
    eventually(
        "the Secret to go with it",
        async || secrets.get_opt(&name).await.unwrap().is_none(),
        |gone| *gone,
    )
    .await;
}

#[tokio::test]
async fn every_wrong_field_of_a_webhook_is_named() {
    let tenant = Tenant::new("hook-wrong").await;
    let wrong = json!({
        "url": "http://user@example.com#x", "events": ["nope", "instance.created"], "secret": "", "active": null, "name": "x",
    });
    let answer = tenant.post(422, PATH, &wrong).await;
    assert_eq!(fields(&answer), ["url", "events[0]", "secret", "active", "name"]);
    let answer = tenant.post(422, PATH, &json!({})).await;
    assert_eq!(fields(&answer), ["url", "events"]);
    // Refusals by the API server's rules have the same format.
    let mut cluster = hook();
    cluster["url"] = json!("https://hooks.shop.svc.cluster.local/in");
    let answer = tenant.post(422, PATH, &cluster).await;
    assert_eq!(fields(&answer), ["url"]);

    let webhook = create(&tenant).await;
    let path = url_of(&webhook);
    for (body, field) in [
        (json!({}), "body"),
        (json!({ "events": [] }), "events"),
        (json!({ "url": null }), "url"),
        (json!({ "secret": "s".repeat(256) }), "secret"),
        (json!({ "created_at": "2026-11-21T10:00:00Z" }), "created_at"),
    ] {
        let answer = tenant.patch(422, &path, &body).await;
        assert_eq!(fields(&answer), [field]);
    }
    for (action, body, field) in [
        ("test", json!({ "type": "invoice.created" }), "type"),
        ("test", json!({ "kind": "instance.created" }), "kind"),
        (
            "rotate-secret",
            json!({ "overlap_seconds": 604_801 }),
            "overlap_seconds",
        ),
        ("rotate-secret", json!({ "secret": "" }), "secret"),
        ("recover", json!({ "since": "yesterday" }), "since"),
    ] {
        let url = format!("{path}/{action}");
        let answer = tenant.post(422, &url, &body).await;
        assert_eq!(fields(&answer), [field], "{action}");
    }
}

#[tokio::test]
async fn one_webhook_too_many_is_refused_and_a_key_still_finds_its_own() {
    let cluster = shared().await;
    let tenant = Tenant::with(cluster.plane, &cluster.operator, "hook-quota", |spec| {
        spec.webhook_quota = Some(2);
    })
    .await;
    let headers = [("Idempotency-Key", "first")];
    let first = create_with(&tenant, &hook(), &headers).await;
    let second = create(&tenant).await;
    let over = tenant.post(403, PATH, &hook()).await;
    assert_eq!(code(&over), "resource_limit_exceeded");
    assert!(over.text.contains("webhooks"), "{over:?}");
    let again = expect(&tenant, 201, Method::POST, PATH, Some(&hook()), &headers).await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.json()["data"], first.json()["data"]);
    tenant.delete(&url_of(&second)).await;
    eventually(
        "the quota to be free",
        async || call(&tenant, Method::POST, PATH, Some(&hook()), &[]).await,
        |answer| answer.status == 201,
    )
    .await;
}

#[tokio::test]
async fn of_many_creates_at_once_no_more_are_accepted_than_the_quota_allows() {
    let cluster = shared().await;
    let tenant = Tenant::with(cluster.plane, &cluster.operator, "hook-race", |spec| {
        spec.webhook_quota = Some(3);
    })
    .await;
    tenant.wait_until_webhooks_are_counted().await;
    let body = hook();
    let calls = (0..12).map(|_| call(&tenant, Method::POST, PATH, Some(&body), &[]));
    let answers = futures::future::join_all(calls).await;
    let accepted = answers.iter().filter(|answer| answer.status == 201).count();
    assert_eq!(accepted, 3, "{answers:#?}");
    for refused in answers.iter().filter(|answer| answer.status != 201) {
        assert_eq!(code(refused), "resource_limit_exceeded");
    }
    let secrets: Api<Secret> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    assert_eq!(secrets.list(&ListParams::default()).await.unwrap().items.len(), 3);
}

#[tokio::test]
async fn a_create_with_a_key_makes_one_webhook_with_one_secret() {
    let tenant = Tenant::new("hook-idem").await;
    let headers = [("Idempotency-Key", "burst")];
    // Failed attempts must not use up the quota of 20.
    tenant.wait_until_webhooks_are_counted().await;
    let body = hook();
    let calls = (0..50).map(|_| expect(&tenant, 201, Method::POST, PATH, Some(&body), &headers));
    let answers = futures::future::join_all(calls).await;
    let fresh = answers
        .iter()
        .filter(|a| a.headers.get("idempotency-replayed").is_none())
        .count();
    assert_eq!(fresh, 1);
    let webhook = answers[0].json()["data"].clone();
    assert!(
        answers.iter().all(|a| a.json()["data"] == webhook),
        "one secret for all: {answers:#?}"
    );
    let name = name_of(&webhook);
    assert_eq!(
        stored(&tenant, &name, "secret").await.as_deref(),
        webhook["secret"].as_str()
    );
    for (field, value) in [("active", json!(false)), ("secret", json!("other"))] {
        let mut other = hook();
        other[field] = value;
        let answer = expect(&tenant, 422, Method::POST, PATH, Some(&other), &headers).await;
        assert_eq!(code(&answer), "idempotency_key_reused", "{field}");
    }

    // Another `secret` is another body, although the Webhook does not contain it.
    let mut own = hook();
    own["secret"] = json!("mine");
    let headers = [("Idempotency-Key", "own")];
    let made = create_with(&tenant, &own, &headers).await.json()["data"].clone();
    let mut other = own.clone();
    other["secret"] = json!("yours");
    let answer = expect(&tenant, 422, Method::POST, PATH, Some(&other), &headers).await;
    assert_eq!(code(&answer), "idempotency_key_reused");
    let digest = webhooks(&tenant)
        .get(&name_of(&made))
        .await
        .unwrap()
        .metadata
        .annotations;
    let guessed = json!([["events", own["events"]], ["secret", "mine"], ["url", own["url"]]]);
    let guess = serde_json::to_vec(&guessed).unwrap();
    let of_guess = IdempotentRequest::new(PATH, "own", &guess, &guess)
        .body_hash()
        .to_owned();
    assert!(
        digest.is_some() && !format!("{digest:?}").contains(&of_guess),
        "it would tell a good guess"
    );
    let secrets: Api<Secret> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let beside = secrets.get(&name_of(&made)).await.unwrap().metadata.annotations;
    assert!(format!("{beside:?}").contains(&of_guess));

    // A crash between Webhook and Secret: the same request repairs it.
    for (body, headers, made) in [
        (hook(), [("Idempotency-Key", "burst")], &webhook),
        (own, headers, &made),
    ] {
        secrets
            .delete(&name_of(made), &DeleteParams::default())
            .await
            .unwrap();
        let repaired = expect(&tenant, 201, Method::POST, PATH, Some(&body), &headers).await;
        assert_eq!(repaired.header("idempotency-replayed"), "true");
        let secret = repaired.json()["data"]["secret"].clone();
        assert_eq!(
            stored(&tenant, &name_of(made), "secret").await.as_deref(),
            secret.as_str()
        );
        assert_eq!(
            secret == made["secret"],
            body.get("secret").is_some(),
            "a random one is made anew"
        );
    }
}

#[tokio::test]
async fn the_etag_of_a_webhook_changes_with_its_secret_and_a_repeated_rotation_is_answered_all_the_same() {
    let tenant = Tenant::new("hook-versions").await;
    let made = tenant.post(201, PATH, &hook()).await;
    let path = url_of(&made.json()["data"]);
    let (rotate, first) = (format!("{path}/rotate-secret"), made.header("etag").to_owned());
    let shown = async || tenant.get(&path).await.header("etag").to_owned();
    assert_eq!(shown().await, first);
    let conditional = [("Idempotency-Key", "k"), ("If-Match", first.as_str())];
    let mine = json!({ "secret": "the first one" });
    let rotated = expect(&tenant, 200, Method::POST, &rotate, Some(&mine), &conditional).await;
    let second = rotated.header("etag").to_owned();
    assert_ne!(second, first);
    assert_eq!(shown().await, second);
    // The repetition: its If-Match is the version from before.
    let again = expect(&tenant, 200, Method::POST, &rotate, Some(&mine), &conditional).await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.json()["data"]["secret"], "the first one");
    let other = json!({ "secret": "another" });
    let reused = expect(&tenant, 422, Method::POST, &rotate, Some(&other), &conditional).await;
    assert_eq!(code(&reused), "idempotency_key_reused");
    // Others with that version are refused, one after the other and at the same time.
    let stale = [("If-Match", first.as_str())];
    for (method, path) in [(Method::POST, &rotate), (Method::PATCH, &path)] {
        let refused = expect(&tenant, 412, method, path, Some(&other), &stale).await;
        assert_eq!(code(&refused), "precondition_failed");
    }
    let current = [("If-Match", second.as_str())];
    let calls = (0..8).map(|_| call(&tenant, Method::POST, &rotate, None, &current));
    let answers = futures::future::join_all(calls).await;
    let mut statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 412, 412, 412, 412, 412, 412, 412]);
    let changed = tenant.patch(200, &path, &other).await;
    assert_eq!(changed.header("etag"), shown().await);
    assert_ne!(
        changed.header("etag"),
        answers.iter().find(|a| a.status == 200).unwrap().header("etag")
    );

    // Who may see the webhook, but not its Secret, cannot check a guess.
    let object = webhooks(&tenant)
        .get(&name_of(&made.json()["data"]))
        .await
        .unwrap();
    let seen = serde_json::to_string(&object).unwrap();
    let guess = serde_json::to_vec(&json!([["secret", "the first one"]])).unwrap();
    let request = IdempotentRequest::new(&rotate, "k", &guess, &guess);
    assert!(
        seen.contains("idempotency-keys") && !seen.contains(request.body_hash()),
        "{seen}"
    );
}

#[tokio::test]
async fn of_rotations_of_one_version_at_two_replicas_one_succeeds() {
    let tenant = Tenant::new("hook-replicas").await;
    let cluster = shared().await;
    let mut second = Operator::start(cluster.plane, &["api"]).await;
    let made = tenant.post(201, PATH, &hook()).await;
    let path = url_of(&made.json()["data"]);
    let get = async |url: &str| {
        let request = tenant.http.get(format!("{url}{path}")).bearer_auth(&tenant.key);
        let answer = request.send().await.unwrap();
        answer
            .headers()
            .get("etag")
            .map(|etag| etag.to_str().unwrap().to_owned())
    };
    let mut etag = made.header("etag").to_owned();
    for round in 0..10 {
        let known = async || tokio::join!(get(&cluster.operator.url), get(&second.url));
        eventually("both to know the version", known, |known| {
            [&known.0, &known.1].iter().all(|it| it.as_ref() == Some(&etag))
        })
        .await;
        let rotate = async |url: &str| {
            let request = tenant
                .http
                .post(format!("{url}{path}/rotate-secret"))
                .bearer_auth(&tenant.key);
            let answer = request.header("If-Match", &etag).send().await.unwrap();
            let next = answer.headers().get("etag").cloned();
            (answer.status().as_u16(), next)
        };
        let answers = <[_; 2]>::from(tokio::join!(rotate(&cluster.operator.url), rotate(&second.url)));
        let mut statuses = answers.each_ref().map(|(status, _)| *status);
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 412], "round {round}");
        let next = answers.into_iter().find(|(status, _)| *status == 200).unwrap().1;
        next.unwrap().to_str().unwrap().clone_into(&mut etag);
    }
    second.stop().await;
}

#[tokio::test]
async fn a_webhook_is_described_and_the_description_is_removed_by_an_empty_one() {
    let tenant = Tenant::new("hook-described").await;
    let body =
        json!({ "url": "https://example.com", "events": ["instance.created"], "description": "orders" });
    let created = tenant.post(201, PATH, &body).await.json();
    assert_eq!(created["data"]["description"], "orders");
    let path = url_of(&created["data"]);
    let shown = tenant.get(&path).await.json();
    assert_eq!(shown["data"]["description"], "orders");
    let kept = json!({ "active": false });
    let changed = tenant.patch(200, &path, &kept).await.json();
    assert_eq!(changed["data"]["description"], "orders");
    let none = json!({ "description": "" });
    let changed = tenant.patch(200, &path, &none).await.json();
    assert_eq!(changed["data"]["description"], Value::Null);
}

#[tokio::test]
async fn a_secret_is_rotated_once_for_a_key_and_none_is_lost_when_many_rotate() {
    let tenant = Tenant::new("hook-rotate").await;
    let webhook = create(&tenant).await;
    let (path, name) = (url_of(&webhook), name_of(&webhook));
    let rotate = format!("{path}/rotate-secret");
    let key = [("Idempotency-Key", "once")];
    let first = expect(&tenant, 200, Method::POST, &rotate, None, &key).await;
    let now = first.json()["data"].clone();
    assert_ne!(now["secret"], webhook["secret"]);
    assert!(now["previous_secret_expires_at"].is_string());
    let shown = async || tenant.get(&path).await.json()["data"].clone();
    let until = shown().await["previous_secret_expires_at"].clone();
    assert_eq!(until, now["previous_secret_expires_at"]);
    assert_eq!(
        stored(&tenant, &name, "secret").await.as_deref(),
        now["secret"].as_str()
    );
    assert_eq!(
        stored(&tenant, &name, "previous-secret").await.as_deref(),
        webhook["secret"].as_str()
    );
    assert_eq!(
        stored(&tenant, &name, "previous-expires-at").await.as_deref(),
        now["previous_secret_expires_at"].as_str()
    );
    let again = expect(&tenant, 200, Method::POST, &rotate, None, &key).await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.json()["data"], now);
    let body = json!({ "overlap_seconds": 1 });
    let other = expect(&tenant, 422, Method::POST, &rotate, Some(&body), &key).await;
    assert_eq!(code(&other), "idempotency_key_reused");

    let at_once = json!({ "secret": "my own", "overlap_seconds": 0 });
    let rotated = tenant.post(200, &rotate, &at_once).await.json();
    assert_eq!(rotated["data"]["secret"], "my own");
    assert!(rotated["data"].get("previous_secret_expires_at").is_none());
    assert!(shown().await.get("previous_secret_expires_at").is_none());
    for gone in ["previous-secret", "previous-expires-at"] {
        assert_eq!(stored(&tenant, &name, gone).await, None);
    }

    let calls = (0..6).map(|_| tenant.act(200, &rotate));
    let mut told: Vec<String> = futures::future::join_all(calls)
        .await
        .iter()
        .map(|answer| answer.json()["data"]["secret"].as_str().unwrap().to_owned())
        .collect();
    told.sort();
    told.dedup();
    assert_eq!(told.len(), 6);
    let (last, before) = (
        stored(&tenant, &name, "secret").await.unwrap(),
        stored(&tenant, &name, "previous-secret").await.unwrap(),
    );
    assert!(
        last != before && told.contains(&last) && told.contains(&before),
        "the one before is one that somebody was told"
    );

    // A Secret of the account holder, with its own key and another entry.
    let secrets: Api<Secret> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let mine: Secret = serde_json::from_value(json!({
        "metadata": { "name": "mine", "labels": { "stellage.dev/webhook-secret": "true" } },
        "stringData": { "signing": "old", "other": "x" },
    }))
    .unwrap();
    secrets.create(&PostParams::default(), &mine).await.unwrap();
    webhooks(&tenant)
        .merge(
            &name,
            &json!({ "spec": { "secretRef": { "name": "mine", "key": "signing" } } }),
        )
        .await;
    let rotated = tenant.act(200, &rotate).await.json();
    assert_eq!(
        stored(&tenant, "mine", "signing").await.as_deref(),
        rotated["data"]["secret"].as_str()
    );
    assert_eq!(
        stored(&tenant, "mine", "signing.previous").await.as_deref(),
        Some("old")
    );
    assert_eq!(stored(&tenant, "mine", "other").await.as_deref(), Some("x"));
    // The webhook's own Secret is created again if it is missing.
    webhooks(&tenant)
        .merge(
            &name,
            &json!({ "spec": { "secretRef": { "name": name, "key": "secret" } } }),
        )
        .await;
    secrets.delete(&name, &DeleteParams::default()).await.unwrap();
    let rotated = tenant.act(200, &rotate).await.json();
    assert_eq!(
        stored(&tenant, &name, "secret").await.as_deref(),
        rotated["data"]["secret"].as_str()
    );
}

#[tokio::test]
async fn active_enables_a_webhook_that_was_disabled() {
    let tenant = Tenant::new("hook-enable").await;
    let webhook = create(&tenant).await;
    let (path, name) = (url_of(&webhook), name_of(&webhook));
    let object = webhooks(&tenant).get(&name).await.unwrap();
    let disabled = json!({ "status": { "disabled": {
        "at": "2026-11-21T10:00:00Z", "reason": "RetriesExhausted", "message": "the last retry failed",
        "delivery": "dlv-abcdefgh01234567", "eventId": "evt_1", "eventType": "instance.created", "attempts": 6,
        "error": "no", "generation": object.metadata.generation,
    }}});
    let operator = crate::support::as_operator(shared().await.plane).await;
    Api::<Webhook>::namespaced(operator, &tenant.namespace)
        .merge_status(&name, &disabled)
        .await;
    let seen = eventually(
        "the watch to show it",
        async || tenant.get(&path).await.json()["data"].clone(),
        |data| data["active"] == false,
    )
    .await;
    assert_eq!(seen["disabled"]["reason"], "retries_exhausted");
    assert_eq!(seen["disabled"]["delivery_id"], "dlv_abcdefgh01234567");
    // The receiver can be tested before the webhook is enabled.
    tenant.act(202, &format!("{path}/test")).await;

    let on = json!({ "active": true });
    let enabled = tenant.patch(200, &path, &on).await.json();
    assert_eq!(enabled["data"]["active"], true);
    assert!(enabled["data"].get("disabled").is_none());
    let spec = webhooks(&tenant).get(&name).await.unwrap().spec;
    let nonce = spec.enable_requested_at.unwrap();
    assert!(nonce.parse::<jiff::Timestamp>().is_ok(), "{nonce}");
    // An enabled webhook is not changed.
    tenant.patch(200, &path, &on).await;
    let spec = webhooks(&tenant).get(&name).await.unwrap().spec;
    assert_eq!(spec.enable_requested_at.as_deref(), Some(nonce.as_str()));
}

#[tokio::test]
async fn a_webhook_that_cannot_have_a_secret_is_not_left_behind() {
    let tenant = Tenant::new("hook-none").await;
    create(&tenant).await;
    // Another Secret already has the name of the webhook's Secret.
    let accounts: Api<Account> = Api::all(tenant.kube.clone());
    let uid = accounts
        .get(&tenant.namespace)
        .await
        .unwrap()
        .metadata
        .uid
        .unwrap();
    let suffix = IdempotentRequest::new(PATH, "taken", b"", b"").name_suffix(&uid);
    let name = format!("wh-{suffix}");
    let secrets: Api<Secret> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let foreign: Secret = serde_json::from_value(
        json!({ "metadata": { "name": name }, "stringData": { "secret": "private" } }),
    )
    .unwrap();
    secrets.create(&PostParams::default(), &foreign).await.unwrap();
    let headers = [("Idempotency-Key", "taken")];
    let refused = expect(&tenant, 409, Method::POST, PATH, Some(&hook()), &headers).await;
    assert_eq!(code(&refused), "conflict");
    assert!(!refused.text.contains("private"));
    assert!(webhooks(&tenant).get_opt(&name).await.unwrap().is_none());
    let list = tenant.get(PATH).await.json();
    assert_eq!(list["pagination"]["total"], 1);
    assert_eq!(stored(&tenant, &name, "secret").await.as_deref(), Some("private"));
}

#[tokio::test]
async fn a_webhook_shows_its_health_and_what_blocks_it() {
    let tenant = Tenant::new("hook-health").await;
    let webhook = create(&tenant).await;
    let shown = tenant.get(&url_of(&webhook)).await;
    let shown = &shown.json()["data"];
    assert_eq!(
        (
            &shown["health"],
            &shown["pending"],
            &shown["held"],
            &shown["dropped"]
        ),
        (&json!("healthy"), &json!(0), &json!(0), &json!(0))
    );
    assert!(shown.get("health_reason").is_none() && shown.get("health_message").is_none());
    assert!(shown["last_success_at"].is_null());
    // Created with kubectl, without its Secret.
    let object: Webhook = serde_json::from_value(json!({
        "metadata": { "name": "wh-abcdefgh01234567" },
        "spec": {
            "url": "https://hooks.example.com/in", "events": ["instance.created"], "secretRef": { "name": "none" },
        },
    }))
    .unwrap();
    webhooks(&tenant)
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
    let look = async || {
        let answer = tenant
            .call(Method::GET, "/v1/webhooks/wh_abcdefgh01234567", None)
            .await;
        answer.json()["data"].clone()
    };
    let blocked = eventually("it to be blocked", look, |shown| shown["health"] == "blocked").await;
    assert_eq!(blocked["health_reason"], "secret_missing");
    let message = blocked["health_message"].as_str().unwrap();
    assert!(message.contains("the signing secret is missing"), "{message}");
}

#[tokio::test]
async fn a_create_whose_client_hangs_up_leaves_a_whole_webhook_or_nothing() {
    const CREATES: usize = 30;
    let cluster = shared().await;
    let tenant = Tenant::with(cluster.plane, &cluster.operator, "hook-cut", |spec| {
        spec.webhook_quota = Some(100);
    })
    .await;
    let body = hook().to_string();
    let request = format!(
        "POST {PATH} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        tenant.key,
        body.len()
    );
    let address = tenant.url.strip_prefix("http://").unwrap();
    // How long an answered request takes, unless the machine is busy.
    let begun = Instant::now();
    create(&tenant).await;
    let usual = begun.elapsed().min(Duration::from_millis(150));
    for _ in 0..CREATES {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        tokio::time::sleep(usual.mul_f64(rand::rng().random_range(0.0..1.2))).await;
    }
    let made = async || {
        let all = webhooks(&tenant)
            .list(&ListParams::default())
            .await
            .unwrap()
            .items;
        let mut whole = 0;
        for webhook in &all {
            let name = &webhook.spec.secret_ref.name;
            whole += usize::from(stored(&tenant, name, "secret").await.is_some());
        }
        (all.len(), whole)
    };
    // Requests that the facade had read when their clients hung up continue, usually all of them; wait for those that are
    // still running.
    let all_done = async {
        while made().await.0 <= CREATES {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(10), all_done).await;
    let (all, whole) = eventually("every webhook to have its Secret", made, |(all, whole)| {
        all == whole
    })
    .await;
    let secrets: Api<Secret> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let secrets = secrets.list(&ListParams::default()).await.unwrap().items;
    let owned = secrets.iter().filter(|secret| {
        let owners = secret.metadata.owner_references.iter().flatten();
        owners.into_iter().any(|owner| owner.kind == "Webhook")
    });
    assert_eq!(owned.count(), whole, "a Secret without a webhook");
    println!(
        "{CREATES} creates were cut off after up to 1.2 times {usual:.1?}; they made {} webhooks",
        all - 1
    );
}
