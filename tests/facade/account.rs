//! The account and its API keys.

use k8s_openapi::api::core::v1::ResourceQuota;
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use reqwest::Method;
use resources::{ApiKey, KeyScope, api_key::new_key, ids};
use serde_json::{Value, json};

use super::{
    contract::{code, expect, fields},
    create, limit_instances, webhooks,
};
use crate::support::{Tenant, eventually, kubectl, shared, stellage};

const PATH: &str = "/v1/keys";

/// The account, as another of its keys sees it.
fn with_key(tenant: &Tenant, key: &Value) -> Tenant {
    Tenant {
        namespace: tenant.namespace.clone(),
        key: key["key"].as_str().unwrap().to_owned(),
        kube: tenant.kube.clone(),
        url: tenant.url.clone(),
        http: tenant.http.clone(),
    }
}

async fn create_key(tenant: &Tenant, body: &Value) -> Value {
    let created = tenant.post(201, PATH, body).await;
    let key = created.json()["data"].clone();
    let id = key["id"].as_str().unwrap();
    assert_eq!(created.header("location"), format!("{PATH}/{id}"));
    key
}

#[tokio::test]
async fn the_account_shows_what_it_may_have_and_has() {
    let tenant = Tenant::new("acct-show").await;
    limit_instances(&tenant, 7).await;
    create(&tenant, "web").await;
    webhooks::create(&tenant).await;
    let answer = tenant.get("/v1/account").await;
    let account = &answer.json()["data"];
    assert_eq!(
        (
            &account["name"],
            &account["email"],
            &account["rate_limit_per_hour"],
            &account["account_rate_limit_per_hour"]
        ),
        (
            &json!("acct-show"),
            &json!("acct-show@example.com"),
            &json!(3600),
            &json!(36_000)
        )
    );
    // Every test account has two keys from the start.
    assert_eq!(
        account["quotas"],
        json!({
            "instances": { "used": 1, "limit": 7 }, "webhooks": { "used": 1, "limit": 20 },
            "api_keys": { "used": 2, "limit": 50 },
            "backups": { "used": 0, "limit": 1000 }, "private_networks": { "used": 0, "limit": 10 },
            "vcpu": { "used": 1, "limit": null }, "memory_gb": { "used": 2, "limit": null },
            "disk_gb": { "used": 40, "limit": null },
        })
    );
}

#[tokio::test]
async fn a_key_is_created_works_at_once_is_listed_without_its_secret_and_revoked() {
    let tenant = Tenant::new("acct-keys").await;
    let key = create_key(
        &tenant,
        &json!({ "name": "dashboard", "scope": "read", "expires_at": "2099-01-01T00:00:00Z" }),
    )
    .await;
    assert_eq!(key["name"], "dashboard");
    let (id, secret) = (key["id"].as_str().unwrap(), key["key"].as_str().unwrap());
    assert!(secret.ends_with(key["last_characters"].as_str().unwrap()));
    let other = with_key(&tenant, &key);
    let listed = other.get(PATH).await;
    assert!(!listed.text.contains(secret));
    // Requesting the list is the first use of the key, which is recorded some time later.
    let without = |key: &Value, field: &str| {
        let mut key = key.clone();
        key.as_object_mut().unwrap().remove(field).unwrap();
        key
    };
    assert_eq!(key["last_used_on"], Value::Null);
    let shown = without(&without(&key, "key"), "last_used_on");
    let listed_keys = listed.json()["data"].as_array().unwrap().clone();
    assert!(
        listed_keys
            .iter()
            .any(|key| without(key, "last_used_on") == shown),
        "{}",
        listed.text
    );
    assert_eq!(listed.json()["pagination"]["total"], 3);
    let path = format!("{PATH}/{id}");
    let detail = other.get(&path).await;
    assert_eq!(without(&detail.json()["data"], "last_used_on"), shown);
    let refused = other.act(403, PATH).await;
    assert_eq!(code(&refused), "token_readonly");

    let stale = [("If-Match", "\"nonsense\"")];
    expect(&tenant, 412, Method::DELETE, &path, None, &stale).await;
    let etag = detail.header("etag").to_owned();
    expect(
        &tenant,
        204,
        Method::DELETE,
        &path,
        None,
        &[("If-Match", etag.as_str())],
    )
    .await;
    expect(&other, 401, Method::GET, PATH, None, &[]).await;
    expect(&tenant, 404, Method::DELETE, &path, None, &[]).await;
    let total = tenant.get(PATH).await.json()["pagination"]["total"].clone();
    assert_eq!(total, 2);
}

#[tokio::test]
async fn a_key_can_revoke_itself() {
    let tenant = Tenant::new("acct-self").await;
    let key = create_key(&tenant, &json!({})).await;
    let other = with_key(&tenant, &key);
    let path = format!("{PATH}/{}", key["id"].as_str().unwrap());
    other.delete(&path).await;
    expect(&other, 401, Method::GET, PATH, None, &[]).await;
}

#[tokio::test]
async fn the_same_create_of_a_key_is_done_once_and_shows_the_key_once() {
    let tenant = Tenant::new("acct-replay").await;
    let headers = [("Idempotency-Key", "laptop")];
    let body = json!({ "scope": "read" });
    let first = expect(&tenant, 201, Method::POST, PATH, Some(&body), &headers).await;
    let again = expect(&tenant, 201, Method::POST, PATH, Some(&body), &headers).await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    let (first, again) = (first.json()["data"].clone(), again.json()["data"].clone());
    assert_eq!((&first["id"], &again["key"]), (&again["id"], &Value::Null));
    let other = json!({ "scope": "write" });
    let refused = expect(&tenant, 422, Method::POST, PATH, Some(&other), &headers).await;
    assert_eq!(code(&refused), "idempotency_key_reused");
}

#[tokio::test]
async fn wrong_fields_of_a_key_are_named_and_the_fifty_first_is_refused() {
    let tenant = Tenant::new("acct-bounds").await;
    let body =
        json!({ "scope": "admin", "expires_at": "2020-01-01T00:00:00Z", "name": "two\nlines", "names": "x" });
    let refused = tenant.post(422, PATH, &body).await;
    assert_eq!(fields(&refused), ["name", "scope", "expires_at", "names"]);
    for _ in 2..50 {
        create_key(&tenant, &json!({ "scope": "read" })).await;
    }
    let refused = tenant.act(403, PATH).await;
    assert_eq!(code(&refused), "resource_limit_exceeded");
}

#[tokio::test]
async fn a_key_of_rest_is_an_object_that_kubectl_shows() {
    let tenant = Tenant::new("acct-kubectl").await;
    let key = create_key(&tenant, &json!({ "scope": "read" })).await;
    let plane = shared().await.plane;
    let get = format!("-n acct-kubectl get apikey {}", key["id"].as_str().unwrap());
    let shown = kubectl(plane, &get, None);
    let shown = shown.unwrap();
    assert!(
        shown.contains("read") && shown.contains(key["last_characters"].as_str().unwrap()),
        "{shown}"
    );
}

#[tokio::test]
async fn expired_keys_keep_nobody_from_creating_keys_and_sign_in_links() {
    let tenant = Tenant::new("acct-expired").await;
    tenant.wait_until_webhooks_are_counted().await;
    let plane = shared().await.plane;
    let keys: Api<ApiKey> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let link = format!("console link --account acct-expired --url {}", tenant.url);
    let quotas: Api<ResourceQuota> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    for with_link in [false, true] {
        // It notices a little later that keys are gone.
        let count = async || {
            let used = keys.list(&ListParams::default()).await.unwrap().items.len();
            let status = quotas.get("stellage").await.unwrap().status;
            let counted = status.and_then(|status| status.used).unwrap_or_default();
            let counted = counted.get("count/apikeys.stellage.dev");
            (used, counted.map(|count| count.0.clone()))
        };
        eventually("Kubernetes to notice", count, |(used, counted)| {
            let counted = counted.as_ref().and_then(|count| count.parse::<usize>().ok());
            counted.is_some_and(|counted| counted <= *used)
        })
        .await;
        // Until Kubernetes has counted 50. It may have missed one that was created while it counted anew.
        let refused = loop {
            let (_, spec) = new_key(None, "uid", KeyScope::Read, Some(jiff::Timestamp::UNIX_EPOCH));
            let name = format!("old-{}", ids::random_suffix());
            let old = ApiKey::new(&name, spec);
            if let Err(error) = keys.create(&PostParams::default(), &old).await {
                break error.to_string();
            }
        };
        assert!(refused.contains("exceeded quota"), "{refused}");
        if with_link {
            stellage(plane, &link).unwrap();
        } else {
            // This replica knows them once its list has them all.
            let listed = async || tenant.get(PATH).await.json();
            eventually("all keys to be listed", listed, |list| {
                list["pagination"]["total"] == 50
            })
            .await;
            create_key(&tenant, &json!({})).await;
        }
    }
}
