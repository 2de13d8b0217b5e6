//! The REST facade with a real API server; every response is checked against the OpenAPI document.

mod account;
mod connections;
pub mod contract;
mod deliveries;
mod errors;
pub mod events;
mod isolation;
mod lifecycle;
mod limits;
mod memory;
mod networks;
mod repeats;
mod requesters;
mod secrets;
mod sizes;
mod tracking;
mod visibility;
mod webhooks;

use kube::Api;
use resources::{Account, conditions};
use serde_json::{Value, json};

use crate::support::{Change as _, Tenant, eventually};

/// The body of a minimal request for a new instance.
pub fn new_instance(name: &str) -> Value {
    json!({ "name": name, "plan": "starter", "region": "fr-par-1", "image": "debian-13" })
}

/// Creates an instance and returns its id.
pub async fn create(tenant: &Tenant, name: &str) -> String {
    let answer = tenant.post(201, "/v1/instances", &new_instance(name)).await;
    answer.json()["data"]["id"].as_str().unwrap().to_owned()
}

/// Gives an account a quota, and waits until Kubernetes has counted it.
async fn limit_instances(tenant: &Tenant, quota: i32) {
    let accounts: Api<Account> = Api::all(tenant.kube.clone());
    let name = &tenant.namespace;
    accounts
        .merge(name, &json!({ "spec": { "instanceQuota": quota } }))
        .await;
    eventually(
        "the quota to be counted",
        async || accounts.get(name).await.unwrap(),
        |account| {
            let status = account.status.clone().unwrap_or_default();
            status.observed_generation == account.metadata.generation
                && conditions::is_true(&status.conditions, conditions::READY)
        },
    )
    .await;
}

/// Waits until REST shows a status.
pub async fn wait_for(tenant: &Tenant, id: &str, status: &str) -> Value {
    let path = format!("/v1/instances/{id}");
    let answer = eventually(
        status,
        async || tenant.get(&path).await.json(),
        |detail| detail["data"]["status"] == status,
    )
    .await;
    answer["data"].clone()
}
