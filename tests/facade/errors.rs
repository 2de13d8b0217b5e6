//! Every error code, from an endpoint that returns it.

use std::time::Duration;

use kube::{ResourceExt as _, api::ListParams};
use reqwest::{Client, Method};
use serde_json::json;

use super::{
    contract::{code, expect, fields},
    create, new_instance, wait_for,
};
use crate::support::{
    Answer, Change as _, Operator, Tenant, accepted_after_revocation, eventually, new_key, shared,
};

async fn raw(request: reqwest::RequestBuilder, method: &Method, path: &str) -> Answer {
    let answer = request.send().await.unwrap();
    let answer = Answer {
        status: answer.status(),
        headers: answer.headers().clone(),
        text: answer.text().await.unwrap(),
    };
    super::contract::check(method, path, &answer);
    answer
}

#[tokio::test]
async fn without_a_valid_key_nothing_is_answered() {
    let tenant = Tenant::new("err-key").await;
    let url = format!("{}/v1/instances", tenant.url);
    for header in [
        None,
        Some("Bearer nonsense"),
        Some("Basic YTpi"),
        Some(tenant.key.as_str()),
    ] {
        let mut request = Client::new().get(&url);
        if let Some(header) = header {
            request = request.header("authorization", header);
        }
        let answer = raw(request, &Method::GET, "/v1/instances").await;
        assert_eq!(
            (answer.status.as_u16(), code(&answer).as_str()),
            (401, "unauthorized")
        );
        assert_eq!(answer.header("www-authenticate"), "Bearer");
        assert!(answer.headers.get("ratelimit-limit").is_none());
    }
    let reader = new_key(shared().await.plane, "err-key", "read");
    let read = |method: Method, path: &str| {
        Client::new()
            .request(method, format!("{}{path}", tenant.url))
            .bearer_auth(&reader)
    };
    eventually(
        "the new key",
        async || {
            read(Method::GET, "/v1/instances")
                .send()
                .await
                .unwrap()
                .status()
                .as_u16()
        },
        |status| *status == 200,
    )
    .await;
    let path = "/v1/instances";
    let refused = raw(
        read(Method::POST, path).json(&new_instance("x")),
        &Method::POST,
        path,
    )
    .await;
    assert_eq!(
        (refused.status.as_u16(), code(&refused).as_str()),
        (403, "token_readonly")
    );
}

#[tokio::test]
async fn unknown_paths_and_methods_have_the_format_of_all_errors() {
    let tenant = Tenant::new("err-path").await;
    let ask = async |method: Method, path: &str| {
        let answer = tenant.call(method, path, None).await;
        assert_eq!(
            answer.json()["error"]["request_id"],
            answer.header("x-request-id")
        );
        (
            answer.status.as_u16(),
            code(&answer),
            answer.header("allow").to_owned(),
        )
    };
    for path in [
        "/",
        "/v1",
        "/v2/instances",
        "/v1/instances/",
        "/v1/instances/a/b/c",
        "/v1//instances",
        "/v1/instances/x/start/",
    ] {
        assert_eq!(
            ask(Method::GET, path).await,
            (404, "not_found".to_owned(), String::new()),
            "{path}"
        );
    }
    for (method, path, allow) in [
        (Method::PUT, "/v1/instances", "GET, HEAD, POST"),
        (Method::OPTIONS, "/v1/instances", "GET, HEAD, POST"),
        (
            Method::POST,
            "/v1/instances/i-0000000000000000",
            "DELETE, GET, HEAD, PATCH",
        ),
        (Method::GET, "/v1/instances/i-0000000000000000/start", "POST"),
        (Method::DELETE, "/v1/plans", "GET, HEAD"),
    ] {
        assert_eq!(
            ask(method, path).await,
            (405, "method_not_allowed".to_owned(), allow.to_owned()),
            "{path}"
        );
    }
    let head = tenant.call(Method::HEAD, "/v1/plans", None).await;
    assert!(head.status == 200 && head.text.is_empty() && head.header("content-length") != "0");
    let own = tenant
        .call_with(Method::GET, "/v1/plans", None, &[("X-Request-Id", "mine-1")])
        .await;
    assert_eq!(own.header("x-request-id"), "mine-1");
    let not_sane = tenant
        .call_with(Method::GET, "/v1/plans", None, &[("X-Request-Id", "a b")])
        .await;
    assert_eq!(not_sane.header("x-request-id").len(), 32);
}

#[tokio::test]
async fn bodies_are_checked_before_anything_is_done() {
    let tenant = Tenant::new("err-body").await;
    let path = "/v1/instances";
    let url = format!("{}{path}", tenant.url);
    let post = || Client::new().post(&url).bearer_auth(&tenant.key);
    for (request, status, expected) in [
        (post(), 400, "json_error"),
        (post().body("{"), 400, "json_error"),
        (post().body("[]"), 422, "invalid_input"),
        (
            post().body("{}").header("content-type", "text/plain"),
            415,
            "unsupported_media_type",
        ),
        (post().body(" ".repeat(65_537)), 413, "payload_too_large"),
        // More than the kernel buffers: a client that sends the whole body first must still see the answer.
        (post().body(" ".repeat(12 << 20)), 413, "payload_too_large"),
        (
            post().body("{}").header("Idempotency-Key", "a b"),
            422,
            "invalid_input",
        ),
    ] {
        let answer = raw(request, &Method::POST, path).await;
        assert_eq!(
            (answer.status.as_u16(), code(&answer).as_str()),
            (status, expected),
            "{answer:?}"
        );
    }
    let wrong = json!({ "plan": "huge", "region": 5, "tags": ["ok", "not ok"], "rebot": true, "backup_enabled": null });
    let answer = tenant.post(422, path, &wrong).await;
    assert_eq!(
        fields(&answer),
        [
            "name",
            "plan",
            "region",
            "image",
            "backup_enabled",
            "tags[1]",
            "rebot"
        ]
    );
    for query in ["page=0", "limit=0", "limit=101", "page=x", "x=y"] {
        let answer = expect(&tenant, 422, Method::GET, &format!("{path}?{query}"), None, &[]).await;
        assert_eq!(fields(&answer), [query.split('=').next().unwrap()]);
    }
    tenant
        .get(&format!("{path}?page=9007199254740991&limit=100"))
        .await;
    assert_eq!(
        tenant.call(Method::GET, path, None).await.json()["pagination"]["total"],
        0
    );
}

#[tokio::test]
async fn what_the_status_or_an_administrator_forbids_is_refused() {
    let tenant = Tenant::new("err-state").await;
    super::limit_instances(&tenant, 1).await;
    let id = create(&tenant, "web").await;
    let path = format!("/v1/instances/{id}");
    let over = eventually(
        "the quota to be counted",
        async || {
            super::contract::call(
                &tenant,
                Method::POST,
                "/v1/instances",
                Some(&new_instance("more")),
                &[],
            )
            .await
        },
        |answer| answer.status == 403,
    )
    .await;
    assert_eq!(code(&over), "resource_limit_exceeded");
    wait_for(&tenant, &id, "running").await;
    let refused = tenant.act(409, &format!("{path}/start")).await;
    assert_eq!(
        (code(&refused).as_str(), fields(&refused)),
        ("invalid_state", vec!["status".to_owned()])
    );
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("running") && message.contains("stopped, error"),
        "{message}"
    );
    let immutable = json!({ "image": "debian-12", "region": "de-fra-1" });
    let refused = tenant.patch(422, &path, &immutable).await;
    assert_eq!(fields(&refused), ["image", "region"]);

    let protect = async |on: bool| {
        tenant
            .merge(&id, &json!({ "spec": { "deletionProtection": on } }))
            .await;
    };
    protect(true).await;
    let refused = expect(&tenant, 409, Method::DELETE, &path, None, &[]).await;
    assert_eq!(code(&refused), "protected");
    protect(false).await;
    tenant.delete(&path).await;
}

#[tokio::test]
async fn if_match_holds_for_changes_deletes_and_actions() {
    let tenant = Tenant::new("err-etag").await;
    let id = create(&tenant, "web").await;
    let path = format!("/v1/instances/{id}");
    let etag = tenant.get(&path).await.header("etag").to_owned();
    wait_for(&tenant, &id, "running").await;
    let same = tenant.get(&path).await;
    assert_eq!(same.header("etag"), etag, "a change of status leaves it alone");
    let change = json!({ "name": "other" });
    let stop = format!("{path}/stop");
    for stale in ["\"x\"", "W/\"x\"", "nonsense"] {
        let headers = [("If-Match", stale)];
        for (method, path, body) in [
            (Method::PATCH, &path, Some(&change)),
            (Method::DELETE, &path, None),
            (Method::POST, &stop, None),
        ] {
            let refused = expect(&tenant, 412, method, path, body, &headers).await;
            assert_eq!(code(&refused), "precondition_failed");
        }
    }
    let changed = expect(
        &tenant,
        200,
        Method::PATCH,
        &path,
        Some(&change),
        &[("If-Match", &etag)],
    )
    .await;
    let newer = changed.header("etag").to_owned();
    assert_ne!(newer, etag);
    expect(&tenant, 412, Method::POST, &stop, None, &[("If-Match", &etag)]).await;
    let either = format!("{etag}, {newer}");
    expect(&tenant, 202, Method::POST, &stop, None, &[("If-Match", &either)]).await;
    expect(&tenant, 412, Method::DELETE, &path, None, &[("If-Match", &newer)]).await;
    expect(&tenant, 204, Method::DELETE, &path, None, &[("If-Match", "*")]).await;
}

#[tokio::test]
async fn a_key_that_is_used_up_waits() {
    let cluster = shared().await;
    let tenant = Tenant::with(cluster.plane, &cluster.operator, "err-rate", |spec| {
        spec.rate_limit_per_hour = Some(5);
    })
    .await;
    let mut remaining = Vec::new();
    let refused = loop {
        let answer = super::contract::call(&tenant, Method::GET, "/v1/plans", None, &[]).await;
        assert_eq!(answer.header("ratelimit-limit"), "5");
        if answer.status != 200 {
            break answer;
        }
        remaining.push(answer.header("ratelimit-remaining").to_owned());
    };
    assert_eq!(remaining, ["4", "3", "2", "1", "0"]);
    assert_eq!(
        (refused.status.as_u16(), code(&refused).as_str()),
        (429, "rate_limit_exceeded")
    );
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    assert!((600..=720).contains(&wait), "{wait}");
    assert_eq!(
        (
            refused.header("ratelimit-remaining"),
            refused.header("ratelimit-reset")
        ),
        ("0", "3600")
    );
    let accounts: kube::Api<resources::Account> = kube::Api::all(tenant.kube.clone());
    accounts
        .merge("err-rate", &json!({ "spec": { "rateLimitPerHour": 100 } }))
        .await;
    eventually(
        "the new limit",
        async || tenant.call(Method::GET, "/v1/plans", None).await.status.as_u16(),
        |s| *s == 200,
    )
    .await;
}

#[tokio::test]
async fn a_revoked_key_is_refused_by_each_replica_within_a_second() {
    let tenant = Tenant::new("err-revoked").await;
    let cluster = shared().await;
    let mut second = Operator::start(cluster.plane, &["api"]).await;
    let keys: kube::Api<resources::ApiKey> = kube::Api::namespaced(tenant.kube.clone(), "err-revoked");
    let mut late = Vec::new();
    for _ in 0..5 {
        let key = new_key(cluster.plane, "err-revoked", "read");
        let status = async |url: &str| {
            let request = tenant.http.get(format!("{url}/v1/plans")).bearer_auth(&key);
            request.send().await.unwrap().status().as_u16()
        };
        let answers =
            async || <[u16; 2]>::from(tokio::join!(status(&cluster.operator.url), status(&second.url)));
        eventually("the key to be known", answers, |answers| *answers == [200, 200]).await;
        let all = keys.list(&ListParams::default()).await.unwrap();
        let this = |one: &&resources::ApiKey| {
            one.spec
                .last_characters
                .as_deref()
                .is_some_and(|last| key.ends_with(last))
        };
        let name = all.iter().find(this).unwrap().name_any();
        let is_accepted = async || {
            let answers = answers().await;
            assert!(
                answers.iter().all(|status| [200, 401].contains(status)),
                "{answers:?}"
            );
            answers.contains(&200)
        };
        late.push(accepted_after_revocation(&keys, &name, is_accepted).await);
    }
    println!("revoked keys were still accepted after {late:.2?}");
    assert!(late.iter().all(|late| *late < Duration::from_secs(1)), "{late:?}");
    second.stop().await;
}
