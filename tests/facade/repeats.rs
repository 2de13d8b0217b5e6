//! `Idempotency-Key`: a repeated request is carried out once.

use kube::api::{Patch, PatchParams};
use reqwest::Method;
use serde_json::json;

use super::{
    contract::{code, expect},
    create, new_instance, wait_for,
};
use crate::support::{Tenant, eventually};

#[tokio::test]
async fn a_create_with_a_key_is_done_once() {
    let tenant = Tenant::new("idem-create").await;
    // The repetition must find its instance, although that uses up the quota.
    super::limit_instances(&tenant, 1).await;
    let headers = [("Idempotency-Key", "first")];
    let path = "/v1/instances";
    let body = new_instance("web");
    let first = expect(&tenant, 201, Method::POST, path, Some(&body), &headers).await;
    assert!(first.headers.get("idempotency-replayed").is_none());
    assert_eq!(first.header("idempotency-retention"), "resource");
    let id = first.json()["data"]["id"].as_str().unwrap().to_owned();
    wait_for(&tenant, &id, "running").await;
    let again = expect(&tenant, 201, Method::POST, path, Some(&body), &headers).await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.header("idempotency-retention"), "resource");
    assert_eq!(again.header("location"), first.header("location"));
    assert_eq!(
        (&again.json()["data"]["id"], &again.json()["data"]["status"]),
        (&json!(id), &json!("running"))
    );
    let other = expect(
        &tenant,
        422,
        Method::POST,
        path,
        Some(&new_instance("other")),
        &headers,
    )
    .await;
    assert_eq!(code(&other), "idempotency_key_reused");
    // While a finalizer delays the deletion, the key can neither be reused nor replayed.
    let hold =
        Patch::Merge(json!({ "metadata": { "finalizers": ["stellage.dev/server", "example.com/held"] } }));
    tenant
        .instances()
        .patch(&id, &PatchParams::default(), &hold)
        .await
        .unwrap();
    tenant.delete(&format!("{path}/{id}")).await;
    let ending = expect(&tenant, 409, Method::POST, path, Some(&body), &headers).await;
    assert_eq!(code(&ending), "conflict");
    eventually(
        "the deletion to end",
        async || {
            if let Some(object) = tenant.instances().get_opt(&id).await.unwrap() {
                let rest: Vec<_> = object
                    .metadata
                    .finalizers
                    .unwrap_or_default()
                    .into_iter()
                    .filter(|f| f != "example.com/held")
                    .collect();
                let freed = Patch::Merge(json!({ "metadata": { "finalizers": rest, "resourceVersion": object.metadata.resource_version } }));
                let _ = tenant.instances().patch(&id, &PatchParams::default(), &freed).await;
                return false;
            }
            true
        },
        |gone| *gone,
    )
    .await;
    let anew = eventually(
        "the key, and the quota, to be free",
        async || super::contract::call(&tenant, Method::POST, path, Some(&body), &headers).await,
        |answer| answer.status == 201,
    )
    .await;
    assert!(anew.headers.get("idempotency-replayed").is_none());
}

#[tokio::test]
async fn a_hundred_creates_at_once_with_one_key_make_one_instance() {
    let tenant = Tenant::new("idem-burst").await;
    let body = new_instance("web");
    let calls = (0..100).map(|_| {
        expect(
            &tenant,
            201,
            Method::POST,
            "/v1/instances",
            Some(&body),
            &[("Idempotency-Key", "burst")],
        )
    });
    let answers = futures::future::join_all(calls).await;
    let fresh = answers
        .iter()
        .filter(|a| a.headers.get("idempotency-replayed").is_none())
        .count();
    assert_eq!(fresh, 1);
    let list = tenant.call(Method::GET, "/v1/instances", None).await.json();
    assert_eq!(list["pagination"]["total"], 1);
}

#[tokio::test]
async fn an_action_with_a_key_acts_once() {
    let tenant = Tenant::new("idem-action").await;
    let id = create(&tenant, "web").await;
    wait_for(&tenant, &id, "running").await;
    let path = format!("/v1/instances/{id}/reboot");
    let headers = [("Idempotency-Key", "once")];
    let first = expect(&tenant, 202, Method::POST, &path, None, &headers).await;
    assert!(first.headers.get("idempotency-replayed").is_none());
    assert_eq!(first.header("idempotency-retention"), "actions=16");
    wait_for(&tenant, &id, "running").await;
    let nonce = |i: &resources::Instance| i.spec.reboot_requested_at.clone();
    let before = nonce(&tenant.instances().get(&id).await.unwrap());
    let again = expect(&tenant, 202, Method::POST, &path, None, &headers).await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(
        again.json()["data"]["status"],
        "running",
        "it is not rebooted again"
    );
    assert_eq!(nonce(&tenant.instances().get(&id).await.unwrap()), before);
    // The same key on another path is another request; with another body it is refused.
    let rebuild = format!("/v1/instances/{id}/rebuild");
    expect(
        &tenant,
        202,
        Method::POST,
        &rebuild,
        Some(&json!({ "image": "debian-12" })),
        &headers,
    )
    .await;
    let other = expect(
        &tenant,
        422,
        Method::POST,
        &rebuild,
        Some(&json!({ "image": "debian-13" })),
        &headers,
    )
    .await;
    assert_eq!(code(&other), "idempotency_key_reused");
}
