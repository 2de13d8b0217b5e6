//! Read-your-writes, and concurrent requests of which one wins.

use reqwest::Method;
use serde_json::json;

use super::{
    contract::{call, code, expect},
    create, new_instance, wait_for,
};
use crate::support::Tenant;

#[tokio::test]
async fn a_client_reads_what_it_wrote() {
    let tenant = Tenant::new("see-writes").await;
    let one = async |number: u32| {
        let name = format!("web-{number}");
        let created = tenant.post(201, "/v1/instances", &new_instance(&name)).await;
        let id = created.json()["data"]["id"].as_str().unwrap().to_owned();
        let path = format!("/v1/instances/{id}");
        tenant.get(&path).await;
        let listed = tenant.get("/v1/instances?limit=100").await.json();
        assert!(
            listed["data"].as_array().unwrap().iter().any(|i| i["id"] == id),
            "{id}"
        );
        let renamed = json!({ "name": format!("db-{number}") });
        tenant.patch(200, &path, &renamed).await;
        let read = tenant.get(&path).await.json();
        assert_eq!(read["data"]["name"], renamed["name"]);
        if number.is_multiple_of(2) {
            tenant.delete(&path).await;
            expect(&tenant, 404, Method::GET, &path, None, &[]).await;
            let listed = tenant.get("/v1/instances?limit=100").await.json();
            assert!(
                !listed["data"].as_array().unwrap().iter().any(|i| i["id"] == id),
                "{id}"
            );
        }
    };
    futures::future::join_all((0..40).map(one)).await;
    let list = tenant.get("/v1/instances").await.json();
    assert_eq!(
        list["pagination"],
        json!({ "page": 1, "limit": 20, "total": 20, "total_pages": 1 })
    );
}

#[tokio::test]
async fn of_many_actions_at_once_one_is_accepted() {
    let tenant = Tenant::new("see-races").await;
    let id = create(&tenant, "web").await;
    wait_for(&tenant, &id, "running").await;
    let path = format!("/v1/instances/{id}");
    for (action, then) in [("stop", "stopped"), ("start", "running")] {
        let url = format!("{path}/{action}");
        let answers =
            futures::future::join_all((0..12).map(|_| call(&tenant, Method::POST, &url, None, &[]))).await;
        let accepted = answers.iter().filter(|a| a.status == 202).count();
        assert_eq!(accepted, 1, "{action}: {answers:#?}");
        for refused in answers.iter().filter(|a| a.status != 202) {
            assert_eq!(code(refused), "invalid_state", "{refused:?}");
        }
        wait_for(&tenant, &id, then).await;
    }
}

#[tokio::test]
async fn changes_of_different_fields_at_once_all_hold() {
    let tenant = Tenant::new("see-fields").await;
    let id = create(&tenant, "web").await;
    let path = format!("/v1/instances/{id}");
    let changes = [
        json!({ "name": "db" }),
        json!({ "tags": ["a"] }),
        json!({ "backup_enabled": true }),
        json!({ "monitoring_enabled": true }),
    ];
    let calls = changes.iter().map(|change| tenant.patch(200, &path, change));
    futures::future::join_all(calls).await;
    let read = tenant.get(&path).await.json();
    for change in &changes {
        for (field, value) in change.as_object().unwrap() {
            assert_eq!(&read["data"][field], value);
        }
    }
}

#[tokio::test]
async fn of_many_changes_of_one_field_at_once_none_is_refused() {
    let tenant = Tenant::new("see-many-changes").await;
    let id = create(&tenant, "web").await;
    let path = format!("/v1/instances/{id}");
    let changes: Vec<_> = (0..40).map(|n| json!({ "tags": [format!("n-{n}")] })).collect();
    let calls = changes.iter().map(|change| tenant.patch(200, &path, change));
    futures::future::join_all(calls).await;
}

#[tokio::test]
async fn lists_are_filtered_ordered_and_paged() {
    let tenant = Tenant::new("see-lists").await;
    let mut ids = Vec::new();
    for number in 0..7 {
        let mut body = new_instance(&format!("web-{number}"));
        body["region"] = json!(if number < 3 { "de-fra-1" } else { "fr-par-1" });
        let created = tenant.post(201, "/v1/instances", &body).await;
        ids.push(created.json()["data"]["id"].as_str().unwrap().to_owned());
    }
    for id in &ids {
        wait_for(&tenant, id, "running").await;
    }
    tenant.act(202, &format!("/v1/instances/{}/stop", ids[0])).await;
    wait_for(&tenant, &ids[0], "stopped").await;
    let total = async |query: &str| {
        let list = tenant.get(&format!("/v1/instances?{query}")).await.json();
        (
            list["pagination"]["total"].as_u64().unwrap(),
            list["data"].as_array().unwrap().len(),
        )
    };
    for (query, expected) in [
        ("", (7, 7)),
        ("limit=3", (7, 3)),
        ("limit=3&page=3", (7, 1)),
        ("limit=3&page=4", (7, 0)),
        ("status=running", (6, 6)),
        ("status=stopped", (1, 1)),
        ("region=de-fra-1", (3, 3)),
        ("region=de-fra-1&status=running&limit=1&page=2", (2, 1)),
        ("status=nonsense", (0, 0)),
        ("region=xx-abc-1", (0, 0)),
        ("status=deleting", (0, 0)),
    ] {
        assert_eq!(total(query).await, expected, "{query}");
    }
    let list = tenant.get("/v1/instances").await.json();
    let keys: Vec<(String, String)> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|i| {
            (
                i["created_at"].as_str().unwrap().to_owned(),
                i["id"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    let mut sorted = keys.clone();
    sorted.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    assert_eq!(keys, sorted, "newest first, then id");
}
