//! API keys that the operator makes and writes into a Secret: `spec.writeSecretRef`.

use control_plane::Identity;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use reqwest::{Method, StatusCode};
use resources::{ApiKey, KeyScope, api_key::new_key, conditions};
use serde_json::{Value, json};

use crate::support::{
    Operator, Tenant, eventually, kubectl, kubectl_words, own_plane, remember_secret, shared, stellage,
};

fn api_key(name: &str, secret: &str) -> ApiKey {
    serde_json::from_value(json!({
        "apiVersion": "stellage.dev/v1", "kind": "ApiKey", "metadata": { "name": name },
        "spec": { "name": "ci", "scope": "read", "writeSecretRef": { "name": secret } },
    }))
    .unwrap()
}

fn ready(key: &ApiKey) -> Option<(String, String)> {
    let conditions = &key.status.as_ref()?.conditions;
    let ready = conditions::find(conditions, conditions::READY)?;
    Some((ready.status.clone(), ready.reason.clone()))
}

/// Waits until the key's condition Ready has this reason.
async fn wait_for(keys: &Api<ApiKey>, name: &str, reason: &str) -> ApiKey {
    let look = async || keys.get(name).await.unwrap();
    eventually(reason, look, |key| ready(key).is_some_and(|(_, is)| is == reason)).await
}

fn text(secret: &Secret, entry: &str) -> String {
    String::from_utf8(secret.data.as_ref().unwrap()[entry].0.clone()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn with_kubectl_alone_a_key_gets_into_a_secret_works_and_goes_with_its_object() {
    let mut tenant = Tenant::new("made-keys").await;
    let secrets: Api<Secret> = Api::namespaced(tenant.kube.clone(), "made-keys");
    let keys: Api<ApiKey> = Api::namespaced(tenant.kube.clone(), "made-keys");
    let manifest = serde_json::to_string(&api_key("first", "first-key")).unwrap();
    let plane = shared().await.plane;
    kubectl(plane, "-n made-keys create -f -", Some(&manifest)).unwrap();
    let wait = "-n made-keys wait --for=condition=Ready apikey/first --timeout=180s";
    kubectl(plane, wait, None).unwrap();

    let secret = secrets.get("first-key").await.unwrap();
    let key = text(&secret, "key");
    remember_secret(&key);
    assert_eq!(secret.type_.as_deref(), Some("Opaque"));
    let other = std::mem::replace(&mut tenant.key, key.clone());
    let read = async || tenant.call(Method::GET, "/v1/account", None).await.status;
    eventually("the key to work", read, |status| *status == StatusCode::OK).await;
    let refused = tenant.call(Method::POST, "/v1/keys", Some(&json!({}))).await;
    assert_eq!(refused.json()["error"]["code"], "token_readonly", "{refused:?}");
    let listed = tenant.call(Method::GET, "/v1/keys/first", None).await.json();
    assert_eq!(listed["data"]["name"], "ci");
    assert_eq!(listed["data"]["last_characters"], key[key.len() - 4..]);

    // It is made once: a Secret that is gone does not come back, and the key goes on working.
    secrets
        .delete("first-key", &DeleteParams::default())
        .await
        .unwrap();
    keys.create(&PostParams::default(), &api_key("second", "second-key"))
        .await
        .unwrap();
    wait_for(&keys, "second", "Made").await;
    assert!(secrets.get_opt("first-key").await.unwrap().is_none());
    assert_eq!(
        tenant.call(Method::GET, "/v1/account", None).await.status,
        StatusCode::OK
    );

    for name in ["first", "second"] {
        keys.delete(name, &DeleteParams::default()).await.unwrap();
    }
    let answer = async || tenant.call(Method::GET, "/v1/account", None).await.status;
    eventually("the key to be revoked", answer, |status| {
        *status == StatusCode::UNAUTHORIZED
    })
    .await;
    let left = async || secrets.get_opt("second-key").await.unwrap().is_some();
    eventually("the Secret to go with its key", left, |is_left| !is_left).await;
    tenant.key = other;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_manifest_of_the_quickstart_makes_an_account_a_key_and_a_server_at_once() {
    let plane = own_plane().await;
    let mut operator = Operator::start(
        &plane,
        &["run", "--provisioning-seconds", "0.5", "--installation", "eu1"],
    )
    .await;
    let manifest = include_str!("../examples/quickstart.yaml");
    kubectl(&plane, "apply -f -", Some(manifest)).unwrap();
    for what in ["account/ada", "apikey/first", "instance/web"] {
        let wait = format!("-n ada wait --for=condition=Ready {what} --timeout=180s");
        kubectl(&plane, &wait, None).unwrap();
    }
    let client = plane.client(Identity::Admin).await.unwrap();
    let secret = Api::<Secret>::namespaced(client, "ada")
        .get("first-key")
        .await
        .unwrap();
    let key = text(&secret, "key");
    remember_secret(&key);
    // The installation has a name: keys begin with it, and the account shows it.
    assert!(key.starts_with("stl_eu1_"));
    let by_command = stellage(&plane, "key create --account ada").unwrap();
    let by_command = by_command.trim_end();
    remember_secret(by_command);
    assert!(by_command.starts_with("stl_eu1_"));
    let account = async |key: &str| {
        let request = reqwest::Client::new()
            .get(format!("{}/v1/account", operator.url))
            .bearer_auth(key);
        let answer = request.send().await.unwrap();
        answer.json::<Value>().await.unwrap()["data"]["installation"].clone()
    };
    for key in [&*key, by_command] {
        eventually(
            "the key to work",
            async || account(key).await,
            |shown| *shown == "eu1",
        )
        .await;
    }
    // A key from before the installation had its name, or from another one.
    let listed: Value =
        serde_json::from_str(&kubectl(&plane, "get account ada -o json", None).unwrap()).unwrap();
    let uid = listed["metadata"]["uid"].as_str().unwrap();
    for installation in [None, Some("us2")] {
        let (key, spec) = new_key(installation, uid, KeyScope::Read, None);
        remember_secret(&key);
        let object = ApiKey::new(installation.unwrap_or("before"), spec);
        let object = serde_json::to_string(&object).unwrap();
        kubectl(&plane, "-n ada create -f -", Some(&object)).unwrap();
        eventually(
            "the other key to work",
            async || account(&key).await,
            |shown| *shown == "eu1",
        )
        .await;
    }
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_is_there_is_left_alone_until_its_name_is_free() {
    let tenant = Tenant::new("made-keys-taken").await;
    let secrets: Api<Secret> = Api::namespaced(tenant.kube.clone(), "made-keys-taken");
    let keys: Api<ApiKey> = Api::namespaced(tenant.kube.clone(), "made-keys-taken");
    let taken: Secret =
        serde_json::from_value(json!({ "metadata": { "name": "taken" }, "stringData": { "key": "mine" } }))
            .unwrap();
    secrets.create(&PostParams::default(), &taken).await.unwrap();
    keys.create(&PostParams::default(), &api_key("waiting", "taken"))
        .await
        .unwrap();
    let key = wait_for(&keys, "waiting", "SecretExists").await;
    assert_eq!((ready(&key).unwrap().0.as_str(), key.sha256()), ("False", None));
    assert_eq!(text(&secrets.get("taken").await.unwrap(), "key"), "mine");
    secrets.delete("taken", &DeleteParams::default()).await.unwrap();
    let made = wait_for(&keys, "waiting", "Made").await;
    let secret = secrets.get("taken").await.unwrap();
    remember_secret(&text(&secret, "key"));
    assert_eq!(secret.owner_references()[0].uid, made.uid().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn either_a_digest_or_a_secret_is_given_and_neither_is_exchanged_later() {
    let tenant = Tenant::new("made-keys-spec").await;
    let plane = shared().await.plane;
    let create = |spec: Value| {
        let key = json!({
            "apiVersion": "stellage.dev/v1", "kind": "ApiKey", "metadata": { "name": "tried", "namespace": "made-keys-spec" }, "spec": spec,
        });
        kubectl(plane, "create -f -", Some(&key.to_string()))
    };
    let digest = "0".repeat(64);
    for spec in [
        json!({ "scope": "read" }),
        json!({ "sha256": digest, "writeSecretRef": { "name": "a" } }),
    ] {
        let refused = create(spec).unwrap_err();
        assert!(refused.contains("give either sha256"), "{refused}");
    }
    let refused = create(json!({ "writeSecretRef": { "name": "a", "key": "a/b" } })).unwrap_err();
    assert!(refused.contains("writeSecretRef.key"), "{refused}");
    create(json!({ "sha256": digest })).unwrap();
    let patch = json!({ "spec": { "sha256": null, "writeSecretRef": { "name": "a" } } }).to_string();
    let patch = [
        "-n",
        "made-keys-spec",
        "patch",
        "apikey",
        "tried",
        "--type=merge",
        "-p",
        &patch,
    ];
    let refused = kubectl_words(plane, &patch, None).unwrap_err();
    assert!(refused.contains("are immutable"), "{refused}");
    drop(tenant);
}
