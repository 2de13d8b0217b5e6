//! The REST facade against a real API server, every answer held against the OpenAPI document.

mod contract;
mod errors;
mod isolation;
mod lifecycle;
mod repeats;
mod visibility;

use reqwest::Method;
use serde_json::{Value, json};

use self::contract::{call, expect};
use crate::support::{Answer, Tenant, eventually};

/// A minimal request.
fn order(name: &str) -> Value {
    json!({ "name": name, "plan": "starter", "region": "fr-par-1", "image": "debian-13" })
}

/// Creates an instance and returns its id.
async fn create(tenant: &Tenant, name: &str) -> String {
    first(tenant, &order(name), &[]).await.json()["data"]["id"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Creates the first instance of an account: Kubernetes may not have counted its quota yet.
async fn first(tenant: &Tenant, body: &Value, headers: &[(&str, &str)]) -> Answer {
    let answer = eventually(
        "the quota to be counted",
        async || call(tenant, Method::POST, "/v1/instances", Some(body), headers).await,
        |answer| answer.status != 503,
    )
    .await;
    assert_eq!(answer.status, 201, "{answer:?}");
    answer
}

/// Waits until REST shows a status.
async fn wait_for(tenant: &Tenant, id: &str, status: &str) -> Value {
    let path = format!("/v1/instances/{id}");
    let answer = eventually(
        status,
        async || expect(tenant, 200, Method::GET, &path, None, &[]).await.json(),
        |detail| detail["data"]["status"] == status,
    )
    .await;
    answer["data"].clone()
}
