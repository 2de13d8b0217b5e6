//! Who asked last for a change of an instance.

use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use resources::Instance;
use serde_json::{Value, json};

use super::{create, wait_for};
use crate::{
    support::{self, Tenant, kubectl, shared},
    tenants::tenant_of,
};

/// The account with another key, and the id of that.
async fn with_new_key(tenant: &Tenant) -> (Tenant, String) {
    let created = tenant.act(201, "/v1/keys").await;
    let key = created.json()["data"].clone();
    let other = Tenant {
        namespace: tenant.namespace.clone(),
        key: key["key"].as_str().unwrap().to_owned(),
        kube: tenant.kube.clone(),
        url: tenant.url.clone(),
        http: tenant.http.clone(),
    };
    (other, key["id"].as_str().unwrap().to_owned())
}

async fn shown(tenant: &Tenant, id: &str) -> Value {
    let path = format!("/v1/instances/{id}");
    tenant.get(&path).await.json()["data"]["last_requested_by"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_shows_whose_key_asked_last_for_a_change_and_that_it_was_changed_in_kubernetes() {
    let tenant = Tenant::new("asked-by").await;
    let (first, first_id) = with_new_key(&tenant).await;
    let (second, second_id) = with_new_key(&tenant).await;
    let id = create(&first, "web").await;
    assert_eq!(shown(&tenant, &id).await, json!(first_id), "at once");
    wait_for(&tenant, &id, "running").await;
    let path = format!("/v1/instances/{id}");
    let tags = json!({ "tags": ["a"] });
    let changed = second.patch(200, &path, &tags).await;
    assert_eq!(changed.json()["data"]["last_requested_by"], json!(second_id));
    // What changes nothing asks for nothing.
    first.patch(200, &path, &tags).await;
    assert_eq!(shown(&tenant, &id).await, json!(second_id));
    let stopped = first.act(202, &format!("{path}/stop")).await;
    assert_eq!(stopped.json()["data"]["last_requested_by"], json!(first_id));
    wait_for(&tenant, &id, "stopped").await;
    let by = |who: &str| {
        let who = who.to_owned();
        move |instance: Option<&Instance>| {
            let status = instance.and_then(|instance| instance.status.as_ref());
            status.is_some_and(|status| status.last_requested_by.as_deref() == Some(&who))
        }
    };
    tenant.wait(&id, "the status to say so", by(&first_id)).await;
    let line = format!("-n {} get inst {id} -o wide", tenant.namespace);
    let listed = kubectl(shared().await.plane, &line, None).unwrap();
    assert!(listed.contains(&first_id), "{listed}");
    tenant.merge(&id, &json!({ "spec": { "tags": ["b"] } })).await;
    tenant
        .wait(&id, "a change with kubectl to be shown", by("kubernetes"))
        .await;
    assert_eq!(shown(&tenant, &id).await, "kubernetes");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_can_say_with_kubectl_that_a_key_asked() {
    let tenant = Tenant::new("asked-forged").await;
    let id = create(&tenant, "web").await;
    wait_for(&tenant, &id, "running").await;
    let client = tenant_of(&tenant, "mallory@example.com").await;
    let instances: Api<Instance> = Api::namespaced(client, &tenant.namespace);
    let forged = json!({ "stellage.dev/requested-by": "2 key-5m2k8x1t" });
    let patch = json!({ "metadata": { "annotations": forged }, "spec": { "tags": ["b"] } });
    let patched = instances
        .patch(&id, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    let mut new = Instance::new("forged", support::spec());
    new.metadata.annotations = serde_json::from_value(forged).unwrap();
    let created = instances.create(&PostParams::default(), &new).await;
    for refused in [patched, created] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("stellage.dev/requested-by"), "{refused}");
    }
    // What REST wrote says nothing about a later change.
    let patch = json!({ "spec": { "tags": ["b"] } });
    let changed = instances
        .patch(&id, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    assert_eq!(changed.unwrap().requested_by(), "kubernetes");
}
