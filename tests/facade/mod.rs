//! The REST facade against a real API server, every answer held against the OpenAPI document.

mod contract;
mod errors;
mod isolation;
mod lifecycle;
mod repeats;
mod visibility;

use reqwest::Method;
use serde_json::{Value, json};

use self::contract::expect;
use crate::support::Tenant;

/// A minimal request.
fn order(name: &str) -> Value {
    json!({ "name": name, "plan": "starter", "region": "fr-par-1", "image": "debian-13" })
}

/// Creates an instance and returns its id.
async fn create(tenant: &Tenant, name: &str) -> String {
    let answer = expect(tenant, 201, Method::POST, "/v1/instances", Some(&order(name)), &[]).await;
    answer.json()["data"]["id"].as_str().unwrap().to_owned()
}

/// Waits until REST shows a status.
async fn wait_for(tenant: &Tenant, id: &str, status: &str) -> Value {
    let path = format!("/v1/instances/{id}");
    let answer = crate::support::eventually(
        status,
        async || expect(tenant, 200, Method::GET, &path, None, &[]).await.json(),
        |detail| detail["data"]["status"] == status,
    )
    .await;
    answer["data"].clone()
}
