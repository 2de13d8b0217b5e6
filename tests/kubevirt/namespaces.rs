//! The namespaces of servers: their isolation, and those that are not ours.

use k8s_openapi::api::{core::v1::Namespace, networking::v1::NetworkPolicy};
use kube::{
    Api,
    api::{DeleteParams, ObjectMeta, PostParams},
};
use reqwest::{Method, StatusCode};
use resources::InstanceState::{Error, Running};
use serde_json::json;

use super::installation::{Case, Installation};
use crate::support::kubevirt::entry::PREFIX;
use crate::support::{Tenant, eventually, kubevirt};
use control_plane::Identity;

#[tokio::test]
async fn a_changed_catalogue_changes_the_isolation_of_the_servers_that_there_are_by_one_write() {
    let region = kubevirt::shared().await;
    let installation = Installation::start(&region, "isolation").await;
    let name = "kv-isolated";
    let case = Case {
        tenant: Tenant::on(&installation.plane, &installation.operator, name).await,
        namespace: format!("{PREFIX}{name}"),
        region,
    };
    let id = case.create(json!({})).await;
    case.reaches(&id, Running).await;
    let run = case.run(&id).await;
    let client = case.region.plane.client(Identity::Admin).await.unwrap();
    let policies: Api<NetworkPolicy> = Api::namespaced(client, &case.namespace);
    let kept_away = async || {
        let policy = json!(policies.get("stellage").await.unwrap().spec);
        policy["egress"][0]["to"][0]["ipBlock"]["except"].clone()
    };
    let before = json!(["10.244.0.0/16", "10.96.0.0/12", "169.254.0.0/16"]);
    assert_eq!(kept_away().await, before);

    let file = installation.plane.folder().join("regions.yaml");
    let catalogue = std::fs::read_to_string(&file).unwrap();
    let changed = catalogue.replace("\"10.96.0.0/12\"", "\"10.96.0.0/12\",\"192.168.7.0/24\"");
    assert_ne!(catalogue, changed);
    std::fs::write(&file, changed).unwrap();
    let after = json!([
        "10.244.0.0/16",
        "10.96.0.0/12",
        "169.254.0.0/16",
        "192.168.7.0/24"
    ]);
    eventually("the new prefix", kept_away, |now| *now == after).await;
    // A second server finds everything as it is to be.
    let second = case.create(json!({ "name": "second" })).await;
    case.settles(&second, Running).await;
    assert_eq!(case.run(&id).await, run);
    let requests = case.region.plane.requests().unwrap();
    let writes = requests.iter().filter(|request| {
        request.resource == "networkpolicies"
            && request.namespace == case.namespace
            && request.is_write()
            && request.code < 300
    });
    assert_eq!(writes.count(), 2);
}

#[tokio::test]
async fn an_order_in_a_namespace_of_others_fails_and_can_be_deleted_with_its_account() {
    let case = Case::new("kv-others").await;
    let client = case.region.plane.client(Identity::Admin).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(client);
    let theirs = Namespace {
        metadata: ObjectMeta {
            name: Some(case.namespace.clone()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    namespaces.create(&PostParams::default(), &theirs).await.unwrap();
    let id = case.create(json!({})).await;
    case.reaches(&id, Error).await;
    let path = format!("/v1/instances/{id}");
    let answer = case.tenant.call(Method::DELETE, &path, None).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.text);
    let accounts: Api<resources::Account> = Api::all(case.tenant.kube.clone());
    accounts
        .delete("kv-others", &DeleteParams::default())
        .await
        .unwrap();
    let left = async || accounts.get_opt("kv-others").await.unwrap();
    eventually("the account to go", left, Option::is_none).await;
    assert!(namespaces.get(&case.namespace).await.is_ok());
}
