//! The API server tracks the owners of fields for those who apply objects, but not for objects that only REST has written.

use std::time::Duration;

use jiff::Timestamp;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use reqwest::Method;
use resources::{Instance, Webhook};
use serde_json::{Value, json};

use super::{create, wait_for};
use crate::support::{Tenant, eventually};

/// Managers of the fields of an instance, with their kind of operation.
async fn managers(tenant: &Tenant, name: &str) -> Vec<(String, String)> {
    let instance = tenant.instances().get(name).await.unwrap();
    let entries = instance.metadata.managed_fields.unwrap_or_default().into_iter();
    entries
        .map(|entry| (entry.manager.unwrap(), entry.operation.unwrap()))
        .collect()
}

async fn change(tenant: &Tenant, id: &str, body: Value) -> Value {
    let path = format!("/v1/instances/{id}");
    let answer = tenant.patch(200, &path, &body).await;
    answer.json()["data"].clone()
}

/// Applies on the server side, like Flux and Argo CD.
async fn apply(tenant: &Tenant, name: &str, tags: &[&str], force: bool) -> Instance {
    let manifest = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance", "metadata": { "name": name },
        "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13", "tags": tags },
    });
    let mut params = PatchParams::apply("flux");
    params.force = force;
    tenant
        .instances()
        .patch(name, &params, &Patch::Apply(&manifest))
        .await
        .unwrap()
}

/// When the only instance was last changed, as lists show it.
async fn updated_at(tenant: &Tenant) -> Timestamp {
    let list = tenant.get("/v1/instances").await;
    list.json()["data"][0]["updated_at"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

#[tokio::test]
async fn what_only_rest_has_written_is_tracked_no_more_once_it_changes_and_still_says_when_it_did() {
    let tenant = Tenant::new("rest-tracking").await;
    let id = create(&tenant, "web").await;
    wait_for(&tenant, &id, "running").await;
    assert!(!managers(&tenant, &id).await.is_empty());
    let before = updated_at(&tenant).await;
    // Times are shown in seconds.
    tokio::time::sleep(Duration::from_secs(1)).await;
    change(&tenant, &id, json!({ "name": "web-2" })).await;
    assert!(updated_at(&tenant).await > before);
    assert_eq!(managers(&tenant, &id).await, []);
    for (action, then) in [("stop", "stopped"), ("start", "running")] {
        let path = format!("/v1/instances/{id}/{action}");
        tenant.act(202, &path).await;
        wait_for(&tenant, &id, then).await;
    }
    assert_eq!(managers(&tenant, &id).await, []);

    change(&tenant, &id, json!({ "tags": ["a"] })).await;
    let by_rest = updated_at(&tenant).await;
    let seen = |instance: Option<&Instance>| {
        instance.is_some_and(|it| it.status.as_ref().unwrap().observed_generation == it.metadata.generation)
    };
    tenant.wait(&id, "the controller to see the tags", seen).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        updated_at(&tenant).await,
        by_rest,
        "the controller does not date it anew"
    );
    tenant.merge(&id, &json!({ "spec": { "tags": ["b"] } })).await;
    let look = async || updated_at(&tenant).await;
    eventually("a change with kubectl to be dated", look, |at| *at > by_rest).await;
}

#[tokio::test]
async fn a_webhook_that_only_rest_has_written_is_tracked_no_more_once_it_changes() {
    let tenant = Tenant::new("rest-tracking-hook").await;
    let body = json!({ "url": "https://hooks.example.com/in", "events": ["instance.created"] });
    let created = tenant.post(201, "/v1/webhooks", &body).await;
    let id = created.json()["data"]["id"].clone();
    let webhooks: Api<Webhook> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let path = format!("/v1/webhooks/{}", id.as_str().unwrap());
    let body = json!({ "events": ["instance.deleted"] });
    tenant.patch(200, &path, &body).await;
    let [webhook] = &webhooks.list(&ListParams::default()).await.unwrap().items[..] else {
        panic!("one webhook");
    };
    assert_eq!(webhook.metadata.managed_fields, None);
}

#[tokio::test]
async fn who_applies_a_webhook_still_owns_its_fields_after_changes_through_rest() {
    let tenant = Tenant::new("rest-applied-hook").await;
    let webhooks: Api<Webhook> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let apply = async |events: &[&str]| {
        let manifest = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Webhook", "metadata": { "name": "applied" },
            "spec": {
                "url": "https://hooks.example.com/in", "events": events, "secretRef": { "name": "signing" },
            },
        });
        let params = PatchParams::apply("flux");
        webhooks.patch("applied", &params, &Patch::Apply(&manifest)).await
    };
    let is_tracked = async || {
        let webhook = webhooks.get("applied").await.unwrap();
        let mut entries = webhook.metadata.managed_fields.iter().flatten();
        entries.any(|entry| entry.manager.as_deref() == Some("flux"))
    };
    let applied = apply(&["instance.created", "instance.deleted"]).await.unwrap();
    let path = format!("/v1/webhooks/{}", applied.id());
    let body = json!({ "active": false });
    let answer = async || tenant.call(Method::PATCH, &path, Some(&body)).await;
    eventually("the facade to know the webhook", answer, |it| it.status == 200).await;
    assert!(is_tracked().await);
    // There is no conflict with anybody, and what REST has set stays.
    let after = apply(&["instance.created"]).await.unwrap();
    assert_eq!((after.spec.events.len(), after.spec.active), (1, false));
    assert!(is_tracked().await);
}

#[tokio::test]
async fn who_applies_an_instance_still_owns_its_fields_after_changes_through_rest() {
    let tenant = Tenant::new("rest-applied").await;
    let flux = ("flux".to_owned(), "Apply".to_owned());
    // One that has been applied from the beginning, and one that REST created and nobody has changed.
    let made = create(&tenant, "web").await;
    wait_for(&tenant, &made, "running").await;
    apply(&tenant, &made, &["a"], true).await;
    let applied = apply(&tenant, "applied", &["a"], false).await;
    for (name, id) in [(made.as_str(), made.clone()), ("applied", applied.id())] {
        wait_for(&tenant, &id, "running").await;
        change(&tenant, &id, json!({ "backup_enabled": true })).await;
        let path = format!("/v1/instances/{id}/stop");
        tenant.act(202, &path).await;
        wait_for(&tenant, &id, "stopped").await;
        assert!(managers(&tenant, name).await.contains(&flux), "{name}");
        // There is no conflict with anybody, and fields that are no longer in the manifest are removed.
        let after = apply(&tenant, name, &[], false).await;
        assert_eq!(after.spec.tags, Vec::<String>::new());
        assert!(after.spec.backup_enabled, "what REST has set stays");
    }
    // One that is no longer tracked, until somebody applies it.
    let untracked = create(&tenant, "web").await;
    wait_for(&tenant, &untracked, "running").await;
    change(&tenant, &untracked, json!({ "name": "web-2" })).await;
    assert_eq!(managers(&tenant, &untracked).await, []);
    apply(&tenant, &untracked, &["a"], true).await;
    change(&tenant, &untracked, json!({ "name": "web-3" })).await;
    assert!(managers(&tenant, &untracked).await.contains(&flux));
    apply(&tenant, &untracked, &["b"], false).await;
}
