//! User data: in a Secret beside the instance, used when its server is installed, and shown nowhere.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use reqwest::Method;
use resources::{Instance, InstanceState, conditions, instance::UserDataReference};
use serde_json::{Value, json};

use crate::{
    facade::{
        contract::{code, expect, fields},
        new_instance, wait_for,
    },
    support::{Tenant, eventually, kubectl, remember_secret, shared},
};

fn secrets(tenant: &Tenant) -> Api<Secret> {
    Api::namespaced(tenant.kube.clone(), &tenant.namespace)
}

/// Creates a Secret with the user data of instances, as kubectl would.
async fn add(tenant: &Tenant, name: &str, user_data: &str) {
    let secret: Secret = serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "stellage.dev/user-data-secret": "true" } },
        "stringData": { "user-data": user_data },
    }))
    .unwrap();
    let params = PostParams::default();
    secrets(tenant).create(&params, &secret).await.unwrap();
}

async fn remove(tenant: &Tenant, name: &str) {
    let params = DeleteParams::default();
    secrets(tenant).delete(name, &params).await.unwrap();
}

fn body_with(user_data: &str) -> Value {
    let mut body = new_instance("web");
    body["user_data"] = json!(user_data);
    body
}

async fn created(tenant: &Tenant, body: &Value, headers: &[(&str, &str)]) -> String {
    let answer = expect(tenant, 201, Method::POST, "/v1/instances", Some(body), headers).await;
    answer.json()["data"]["id"].as_str().unwrap().to_owned()
}

/// The Secret that an instance refers to.
async fn secret_of(tenant: &Tenant, id: &str) -> Option<Secret> {
    let instance = tenant.instances().get(id).await.unwrap();
    let reference = instance.spec.user_data_ref.unwrap();
    secrets(tenant).get_opt(&reference.name).await.unwrap()
}

/// Waits until the condition Ready has this reason; returns its message.
async fn told(tenant: &Tenant, name: &str, reason: &'static str) -> String {
    let ready = move |instance: Option<&Instance>| {
        let status = instance.and_then(|instance| instance.status.as_ref());
        let ready = status.and_then(|status| conditions::find(&status.conditions, "Ready"));
        ready.is_some_and(|ready| ready.reason == reason)
    };
    let instance = tenant.wait(name, reason, ready).await;
    let status = instance.status.unwrap_or_default();
    let ready = conditions::find(&status.conditions, "Ready");
    ready.unwrap().message.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn user_data_sent_through_rest_is_kept_in_a_secret_of_the_instance_and_shown_nowhere() {
    const PASSWORD: &str = "correct-horse-battery";
    remember_secret(PASSWORD);
    let tenant = Tenant::new("user-data-rest").await;
    let user_data = format!("#cloud-config\npassword: {PASSWORD}\n");
    let id = created(&tenant, &body_with(&user_data), &[]).await;
    let secret = secret_of(&tenant, &id).await.unwrap();
    let instance = tenant.instances().get(&id).await.unwrap();
    let data = BTreeMap::from([("user-data".to_owned(), ByteString(user_data.into_bytes()))]);
    assert!(instance.owns(&secret) && secret.data == Some(data), "{secret:?}");
    assert_eq!(secret.type_.as_deref(), Some("Opaque"));

    // The server is there only if the user data was read.
    wait_for(&tenant, &id, "running").await;
    let plane = shared().await.plane;
    for shown in [
        format!("/v1/instances/{id}"),
        "/v1/instances".to_owned(),
        "/v1/events".to_owned(),
    ] {
        let answer = tenant.get(&shown).await;
        assert!(
            !answer.text.contains(PASSWORD) && !answer.text.contains("user_data"),
            "{answer:?}"
        );
    }
    let events = async || {
        let list = format!("get instances,events,eventlogs -n {} -o yaml", tenant.namespace);
        kubectl(plane, &list, None).unwrap()
    };
    let objects = eventually("its Events", events, |text| text.contains("Provisioned")).await;
    assert!(!objects.contains(PASSWORD));

    let path = format!("/v1/instances/{id}");
    tenant.delete(&path).await;
    let left = async || secrets(&tenant).get_opt(&secret.name_any()).await.unwrap();
    eventually("the Secret to be gone", left, Option::is_none).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_create_must_have_the_same_user_data_but_tenants_can_read_no_digest_of_it() {
    let tenant = Tenant::new("user-data-again").await;
    let once = [("Idempotency-Key", "once")];
    let (one, other) = (body_with("#!/bin/sh\necho 1\n"), body_with("#!/bin/sh\necho 2\n"));
    let id = created(&tenant, &one, &once).await;
    assert_eq!(created(&tenant, &one, &once).await, id);
    for reused in [&other, &new_instance("web")] {
        let refused = expect(&tenant, 422, Method::POST, "/v1/instances", Some(reused), &once).await;
        assert_eq!(code(&refused), "idempotency_key_reused");
    }
    let second = created(&tenant, &other, &[("Idempotency-Key", "twice")]).await;
    let digest = async |id: &str| {
        let instance = tenant.instances().get(id).await.unwrap();
        instance.annotations()["stellage.dev/request-hash"].clone()
    };
    assert_eq!(digest(&id).await, digest(&second).await);

    // As if the process had died between the two writes.
    let secret = secret_of(&tenant, &id).await.unwrap();
    remove(&tenant, &secret.name_any()).await;
    assert_eq!(created(&tenant, &one, &once).await, id);
    assert_eq!(secret_of(&tenant, &id).await.unwrap().data, secret.data);
}

#[tokio::test(flavor = "multi_thread")]
async fn user_data_that_cloud_init_would_not_take_is_refused_before_anything_is_made() {
    let tenant = Tenant::new("user-data-bad").await;
    let too_long = format!("#!/bin/sh\n{}", "#".repeat(32 * 1024));
    for (user_data, says) in [
        ("echo hello", "must begin with #cloud-config"),
        ("#cloud-config\na: [\n", "line 2"),
        (&too_long, "at most 32 KiB"),
    ] {
        let body = body_with(user_data);
        let refused = tenant.post(422, "/v1/instances", &body).await;
        assert_eq!(fields(&refused), ["user_data"]);
        assert!(refused.text.contains(says), "{refused:?}");
    }
    let too_large = body_with(&"#".repeat(64 * 1024));
    let refused = tenant.post(413, "/v1/instances", &too_large).await;
    assert_eq!(code(&refused), "payload_too_large");
    assert!(tenant.all_instances().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_server_is_installed_without_its_user_data_and_it_goes_on_once_that_is_there() {
    let tenant = Tenant::new("user-data-kube").await;
    // A Secret of this name in another namespace is another.
    let neighbour = Tenant::new("user-data-next").await;
    add(&neighbour, "boot", "#!/bin/sh\n").await;
    tenant
        .apply("web", |instance| {
            instance.spec.user_data_ref = Some(UserDataReference {
                name: "boot".to_owned(),
                key: "user-data".to_owned(),
            });
        })
        .await;
    let message = told(&tenant, "web", "UserDataMissing").await;
    assert!(message.contains("no Secret boot"), "{message}");
    let waiting = tenant.wait_for_state("web", InstanceState::Error).await;
    let path = format!("/v1/instances/{}", waiting.id());
    assert_eq!(waiting.status.unwrap_or_default().power, None);
    let shown = tenant.get(&path).await.json();
    assert_eq!(shown["data"]["status_reason"], "user_data_missing");
    assert!(!shown.to_string().contains("boot"), "{shown}");

    add(&tenant, "boot", &"#".repeat(32 * 1024 + 1)).await;
    let message = told(&tenant, "web", "UserDataInvalid").await;
    assert!(
        message.contains("Secret boot") && message.contains("32 KiB"),
        "{message}"
    );
    remove(&tenant, "boot").await;
    add(&tenant, "boot", "#!/bin/sh\n").await;
    tenant.wait_for_state("web", InstanceState::Running).await;

    // What installs nothing needs none.
    remove(&tenant, "boot").await;
    tenant.power("web", "Stopped").await;
    tenant.wait_for_state("web", InstanceState::Stopped).await;
    tenant.power("web", "Running").await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    let rebuild = json!({ "spec": { "rebuildRequestedAt": "2026-11-27T10:00:00Z" } });
    tenant.merge("web", &rebuild).await;
    told(&tenant, "web", "UserDataMissing").await;
    add(&tenant, "boot", "#!/bin/sh\n").await;
    let rebuilt = tenant.wait_for_state("web", InstanceState::Running).await;
    let status = rebuilt.status.unwrap_or_default();
    assert_eq!(
        status.rebuild_requested_at.as_deref(),
        Some("2026-11-27T10:00:00Z")
    );
}
