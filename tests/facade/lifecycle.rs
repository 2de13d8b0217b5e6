//! The ten instance endpoints and the catalogue, in the order in which a client uses them.

use reqwest::Method;
use resources::Plan;
use serde_json::json;

use super::{contract::expect, create, new_instance, wait_for};
use crate::support::Tenant;

#[tokio::test]
async fn an_instance_goes_through_all_its_operations() {
    let tenant = Tenant::new("rest-life").await;
    let mut body = new_instance("web-1");
    body["tags"] = json!(["env:prod", "env:prod", "b"]);
    body["backup_enabled"] = json!(true);
    body["ssh_keys"] = json!([
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti user@example.com\n"
    ]);
    let created = tenant.post(201, "/v1/instances", &body).await;
    let data = created.json()["data"].clone();
    let id = data["id"].as_str().unwrap();
    let path = format!("/v1/instances/{id}");
    assert_eq!(created.header("location"), path);
    assert_eq!(
        (&data["status"], &data["name"]),
        (&json!("provisioning"), &json!("web-1"))
    );
    let message = created.json()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("a moment"), "half a second, here: {message}");
    let running = wait_for(&tenant, id, "running").await;
    assert_eq!(running["tags"], json!(["env:prod", "b"]));
    assert_eq!(
        (&running["vcpu"], &running["memory"], &running["disk_size"]),
        (&json!(1), &json!(2), &json!(40))
    );
    assert!(running["ip_address"].is_string() && running["ipv6_address"].is_string());
    assert!(running["backup_enabled"] == true && running["monitoring_enabled"] == false);
    assert!(running.get("metrics").is_none() && running.get("pending_plan").is_none());

    let metered = tenant.get(&format!("{path}?include=metrics")).await;
    assert!(
        metered.json()["data"]["metrics"]["cpu_usage"].is_number(),
        "{metered:?}"
    );

    for (action, at_once, then) in [
        ("stop", "stopping", "stopped"),
        ("start", "starting", "running"),
        ("reboot", "rebooting", "running"),
        ("poweroff", "stopping", "stopped"),
    ] {
        let answer = tenant.act(202, &format!("{path}/{action}")).await;
        assert_eq!(answer.json()["data"]["status"], at_once, "{action}");
        assert!(answer.json()["message"].as_str().unwrap().contains("web-1"));
        wait_for(&tenant, id, then).await;
    }
    let rebuild = json!({ "image": "ubuntu-24.04" });
    let answer = tenant.post(202, &format!("{path}/rebuild"), &rebuild).await;
    assert_eq!(answer.json()["data"]["status"], "rebuilding");
    let reinstalled = wait_for(&tenant, id, "stopped").await;
    assert_eq!(reinstalled["image"], "ubuntu-24.04");

    let gone = tenant.delete(&path).await;
    assert!(gone.text.is_empty());
    for method in [Method::GET, Method::DELETE] {
        expect(&tenant, 404, method, &path, None, &[]).await;
    }
    tenant.act(404, &format!("{path}/start")).await;
    let list = tenant.get("/v1/instances").await.json();
    assert_eq!(
        list,
        json!({ "data": [], "pagination": { "page": 1, "limit": 20, "total": 0, "total_pages": 0 } })
    );
}

#[tokio::test]
async fn a_plan_changes_with_a_reboot_or_waits_for_one() {
    let tenant = Tenant::new("rest-plan").await;
    let id = create(&tenant, "web").await;
    wait_for(&tenant, &id, "running").await;
    let path = format!("/v1/instances/{id}");
    let change = async |body: serde_json::Value| {
        let answer = tenant.patch(200, &path, &body).await.json();
        if body.get("plan").is_some() {
            let message = answer["message"].as_str().unwrap();
            let says = match (&answer["data"]["status"], answer["data"].get("pending_plan")) {
                (status, _) if status == "resizing" => "is changing to the plan",
                (_, Some(_)) => "at its next reboot or start; set the plan starter to drop that",
                _ => "has the plan",
            };
            assert!(message.contains(says), "{answer}");
        }
        answer["data"].clone()
    };
    let pending = change(json!({ "plan": "business", "reboot": false })).await;
    assert_eq!(
        (&pending["status"], &pending["plan"], &pending["pending_plan"]),
        (&json!("running"), &json!("starter"), &json!("business"))
    );
    let on_reboot = async || tenant.instances().get(&id).await.unwrap().spec.plan_on_reboot;
    assert_eq!(on_reboot().await, Some(Plan::Business));
    let cancelled = change(json!({ "plan": "starter" })).await;
    assert_eq!(on_reboot().await, None, "nothing is left behind");
    assert!(
        cancelled["status"] == "running" && cancelled.get("pending_plan").is_none(),
        "{cancelled}"
    );
    change(json!({ "plan": "business", "reboot": false })).await;
    let now = change(json!({ "reboot": true })).await;
    assert_eq!(now["status"], "resizing");
    assert_eq!(on_reboot().await, None);
    let done = wait_for(&tenant, &id, "running").await;
    assert_eq!(
        (&done["plan"], &done["vcpu"], &done["disk_size"]),
        (&json!("business"), &json!(2), &json!(80))
    );
    let smaller =
        change(json!({ "plan": "starter", "name": "db", "tags": ["x"], "monitoring_enabled": true })).await;
    assert_eq!(
        (&smaller["status"], &smaller["name"]),
        (&json!("resizing"), &json!("db"))
    );
    let done = wait_for(&tenant, &id, "running").await;
    assert_eq!(
        (&done["plan"], &done["disk_size"]),
        (&json!("starter"), &json!(80)),
        "a disk never shrinks"
    );
    tenant.wait_for_clear_outboxes().await;
    let before = tenant.instances().get(&id).await.unwrap();
    for nothing in [
        json!({ "reboot": true }),
        json!({ "reboot": false }),
        json!({ "plan": "starter", "name": "db", "tags": ["x"] }),
    ] {
        change(nothing).await;
    }
    let after = tenant.instances().get(&id).await.unwrap();
    assert_eq!(
        before.metadata.resource_version, after.metadata.resource_version,
        "nothing is written"
    );
}

#[tokio::test]
async fn objects_of_kubectl_are_served_under_derived_ids() {
    let tenant = Tenant::new("rest-kubectl").await;
    let object = tenant.apply("web", |_| {}).await;
    let id = object.id();
    // Unlike a name, a derived id can only be looked up in the index, which may lag behind kubectl.
    let look = async || {
        tenant
            .call(Method::GET, &format!("/v1/instances/{id}"), None)
            .await
            .status
    };
    crate::support::eventually("the instance to show", look, |status| *status == 200).await;
    let detail = wait_for(&tenant, &id, "running").await;
    assert_eq!(detail["name"], "web");
    tenant.act(202, &format!("/v1/instances/{id}/stop")).await;
    wait_for(&tenant, &id, "stopped").await;
    tenant.delete(&format!("/v1/instances/{id}")).await;
    expect(
        &tenant,
        404,
        Method::GET,
        &format!("/v1/instances/{id}"),
        None,
        &[],
    )
    .await;
}

#[tokio::test]
async fn the_catalogue_is_listed_in_pages() {
    let tenant = Tenant::new("rest-catalogue").await;
    let plans = tenant.get("/v1/plans").await.json();
    assert_eq!(
        plans["data"][3],
        json!({ "id": "enterprise", "vcpu": 8, "memory": 16, "disk_size": 320, "price_monthly": { "value": "60.00", "currency": "EUR" }, "price_hourly": { "value": "0.08929", "currency": "EUR" } })
    );
    let regions = tenant.get("/v1/regions?limit=1&page=2").await.json();
    assert_eq!(
        regions["data"],
        json!([{ "id": "de-fra-1", "country": "de", "city": "fra", "simulated": true, "backups": true, "private_networks": true, "consoles": ["serial"] }])
    );
    assert_eq!(
        regions["pagination"],
        json!({ "page": 2, "limit": 1, "total": 3, "total_pages": 3 })
    );
    let images = tenant.get("/v1/images").await.json();
    assert!(images["data"].as_array().unwrap().contains(
        &json!({ "id": "ubuntu-24.04", "distribution": "ubuntu", "version": "24.04", "user": null })
    ));
    for (region, total) in [("de-fra-1", 5), ("xx-abc-1", 5), ("nonsense", 0)] {
        let path = format!("/v1/images?region={region}");
        let images = tenant.get(&path).await;
        assert_eq!(images.json()["pagination"]["total"], total, "{region}");
    }
    let document = reqwest::get(format!("{}/v1/openapi.json", tenant.url))
        .await
        .unwrap();
    assert_eq!(document.status(), 200, "without a key");
    assert_eq!(
        document.json::<serde_json::Value>().await.unwrap()["openapi"],
        "3.1.0"
    );
}

#[tokio::test]
async fn an_instance_says_why_it_is_not_as_asked() {
    let tenant = Tenant::new("rest-why").await;
    let id = create(&tenant, "web").await;
    let detail = wait_for(&tenant, &id, "running").await;
    assert!(detail.get("status_reason").is_none() && detail.get("status_message").is_none());
    let path = format!("/v1/instances/{id}");
    let change = json!({ "plan": "business", "reboot": false });
    let changed = tenant.patch(200, &path, &change).await;
    assert_eq!(changed.json()["data"]["status_reason"], "plan_change_pending");
    let stopped = tenant.act(202, &format!("{path}/stop")).await;
    let stopped = &stopped.json()["data"];
    assert_eq!(
        (&stopped["status"], &stopped["status_reason"]),
        (&serde_json::json!("stopping"), &serde_json::json!("stopping"))
    );

    tenant
        .apply("broken", |instance| {
            let fault = ("simulator.stellage.dev/fault", "provisioning");
            let annotations = instance.metadata.annotations.get_or_insert_default();
            annotations.insert(fault.0.to_owned(), fault.1.to_owned());
        })
        .await;
    let object = tenant
        .wait_for_state("broken", resources::InstanceState::Error)
        .await;
    let broken = wait_for(&tenant, &object.id(), "error").await;
    assert_eq!(broken["status_reason"], "provisioning_failed", "{broken}");
    assert!(!broken["status_message"].as_str().unwrap().is_empty());
}

#[tokio::test]
async fn deletion_protection_is_set_and_lifted_through_rest() {
    let tenant = Tenant::new("rest-protect").await;
    let id = create(&tenant, "web").await;
    let path = format!("/v1/instances/{id}");
    let protect = |on: bool| json!({ "deletion_protection": on });
    let changed = tenant.patch(200, &path, &protect(true)).await;
    assert_eq!(changed.json()["data"]["deletion_protection"], true);
    let refused = expect(&tenant, 409, Method::DELETE, &path, None, &[]).await;
    assert_eq!(super::contract::code(&refused), "protected");
    tenant.patch(200, &path, &protect(false)).await;
    tenant.delete(&path).await;
}

#[tokio::test]
async fn an_instance_can_be_created_protected_and_stopped_and_is_neither_deleted_nor_rebuilt() {
    let tenant = Tenant::new("rest-born-off").await;
    let mut body = super::new_instance("web");
    body["deletion_protection"] = json!(true);
    body["power_state"] = json!("stopped");
    let made = tenant.post(201, "/v1/instances", &body).await;
    let id = made.json()["data"]["id"].as_str().unwrap().to_owned();
    assert_eq!(made.json()["data"]["status"], "provisioning");
    let stopped = wait_for(&tenant, &id, "stopped").await;
    assert_eq!(stopped["deletion_protection"], true);
    let path = format!("/v1/instances/{id}");
    let rebuild = format!("{path}/rebuild");
    let image = json!({ "image": "debian-12" });
    for (method, path, body) in [
        (Method::DELETE, &path, None),
        (Method::POST, &rebuild, Some(&image)),
    ] {
        let refused = expect(&tenant, 409, method, path, body, &[]).await;
        assert_eq!(super::contract::code(&refused), "protected");
    }
    tenant.act(202, &format!("{path}/start")).await;
    wait_for(&tenant, &id, "running").await;
    let off = json!({ "deletion_protection": false });
    tenant.patch(200, &path, &off).await;
    tenant.post(202, &rebuild, &image).await;
}

#[tokio::test]
async fn lists_are_filtered_by_name_and_tag_and_show_tags() {
    let tenant = Tenant::new("rest-filter").await;
    for (name, tag) in [("web-1", "env:prod"), ("web-1", "env:test"), ("db-1", "env:prod")] {
        let mut body = super::new_instance(name);
        body["tags"] = json!([tag, "team.a"]);
        tenant.post(201, "/v1/instances", &body).await;
    }
    // No id has a dash where these have one.
    let found = async |query: &str| {
        let path = format!("/v1/instances?{query}");
        let list = tenant.get(&path).await.json();
        let items = list["data"].as_array().unwrap().clone();
        assert_eq!(list["pagination"]["total"], items.len(), "{query}");
        items
    };
    assert_eq!(found("name=web-1").await.len(), 2);
    assert_eq!(found("search=WEB-").await.len(), 2);
    let id = found("search=db-").await[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(found(&format!("search={}", &id[5..])).await[0]["name"], "db-1");
    assert!(found("search=web-&tag=env:other").await.is_empty());
    assert_eq!(found("tag=env:prod").await.len(), 2);
    assert_eq!(found("tag=env:prod&tag=team.a").await.len(), 2);
    assert!(found("tag=env:prod&tag=env:test").await.is_empty());
    for misspelt in ["tags=env:prod", "name=web-1&name=db-1"] {
        let path = format!("/v1/instances?{misspelt}");
        let refused = expect(&tenant, 422, Method::GET, &path, None, &[]).await;
        assert_eq!(super::contract::code(&refused), "invalid_input");
    }
    assert_eq!(
        found("tag=env%3Aprod&name=db-1").await[0]["tags"],
        json!(["env:prod", "team.a"])
    );
    for none in ["name=web", "tag=env", "tag=env:prod&region=de-fra-1", "name="] {
        assert!(found(none).await.is_empty(), "{none}");
    }
}
