//! What an older version has left behind when it was killed goes on under this one.
//!
//! `record` has written it. Its objects are put into etcd as they were, so that they keep their UIDs, from which ids are derived.

use std::{collections::BTreeMap, fs, path::PathBuf};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use control_plane::{ControlPlane, Identity};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{
    Operator, Tenant, bare_plane, eventually, install, kubectl, receiver_arguments,
    receivers::{Answer, Receiver},
};

/// The receiver's port when the objects were recorded.
const RECORDED_PORT: &str = "https://127.0.0.1:8443/";

fn recorded(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/upgrade")
        .join(name)
}

fn install_older_crds(plane: &ControlPlane) {
    let crds = recorded("crds.yaml");
    let apply = ["apply", "--server-side", "--force-conflicts", "-f"];
    kubectl(plane, &[&apply[..], &[crds.to_str().unwrap()]].concat(), None).unwrap();
    let established = [
        "wait",
        "--for=condition=Established",
        "crd",
        "--all",
        "--timeout=180s",
    ];
    kubectl(plane, &established, None).unwrap();
}

/// The plural of a kind, as etcd's keys and kubectl have it.
fn plural(object: &Value) -> String {
    format!("{}s", object["kind"].as_str().unwrap().to_lowercase()).replace("deliverys", "deliveries")
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

/// Writes an object past the API server.
async fn put(plane: &ControlPlane, object: &Value) {
    let namespace = object["metadata"]["namespace"]
        .as_str()
        .map(|namespace| format!("{namespace}/"));
    let key = format!(
        "/registry/stellage.dev/{}/{}{}",
        plural(object),
        namespace.unwrap_or_default(),
        name(object)
    );
    let body = json!({ "key": STANDARD.encode(key), "value": STANDARD.encode(object.to_string()) });
    let url = format!("{}/v3/kv/put", plane.etcd_url());
    let answer = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
    answer.error_for_status().unwrap();
}

/// Puts everything that was recorded into a control plane.
async fn restore(plane: &ControlPlane, objects: &Value) {
    install_older_crds(plane);
    for object in objects["own"].as_array().unwrap() {
        put(plane, object).await;
    }
    let others = json!({ "apiVersion": "v1", "kind": "List", "items": objects["others"] });
    // The ServiceAccount that the RoleBinding names is not needed for that.
    kubectl(plane, &["create", "-f", "-"], Some(&others.to_string())).unwrap();
}

/// An object of the account as it is now.
fn get(plane: &ControlPlane, kind: &str, name: &str) -> Value {
    let text = kubectl(plane, &["get", kind, name, "-n", "ada", "-o", "json"], None);
    serde_json::from_str(&text.unwrap()).unwrap()
}

async fn data(tenant: &Tenant, path: &str) -> Value {
    let answer = tenant.call(Method::GET, path, None).await;
    assert_eq!(answer.status, StatusCode::OK, "{path}: {answer:?}");
    answer.json()["data"].clone()
}

/// Each instance's name, with its id, addresses and plan.
async fn instances(tenant: &Tenant) -> BTreeMap<String, Value> {
    let all = data(tenant, "/v1/instances").await;
    let all = all.as_array().unwrap().iter();
    all.map(|instance| {
        let fields = ["id", "ip_address", "ipv6_address", "plan"];
        let kept = fields.map(|field| (field, instance[field].clone()));
        (
            instance["name"].as_str().unwrap().to_owned(),
            json!(BTreeMap::from(kept)),
        )
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_older_version_has_left_goes_on_under_this_one_and_survives_the_way_back() {
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let text = fs::read_to_string(recorded("objects.json")).unwrap();
    let objects: Value = serde_json::from_str(&text.replace(RECORDED_PORT, &receiver.url("/"))).unwrap();
    let own = objects["own"].as_array().unwrap();
    let of = |kind: &'static str| own.iter().filter(move |object| object["kind"] == kind);
    let plane = bare_plane(ControlPlane::options()).await;
    restore(&plane, &objects).await;

    install(&plane);
    let receivers = receiver_arguments(&plane);
    let mut arguments = vec!["run", "--provisioning-seconds", "0.5"];
    arguments.extend(receivers.iter().map(String::as_str));
    let mut operator = Operator::start(&plane, &arguments).await;
    let mut tenant = Tenant {
        namespace: "ada".to_owned(),
        key: objects["key"].as_str().unwrap().to_owned(),
        kube: plane.client(Identity::Admin).await.unwrap(),
        url: operator.url.clone(),
        http: reqwest::Client::new(),
    };

    // Its key works, and it has the same servers.
    let is_known = async || tenant.call(Method::GET, "/v1/instances", None).await.status;
    eventually("the key to be known", is_known, |status| {
        *status == StatusCode::OK
    })
    .await;
    let before = instances(&tenant).await;
    assert_eq!(before.len(), of("Instance").count());
    for instance in of("Instance") {
        let shown = before
            .values()
            .find(|shown| shown["id"] == instance["status"]["id"])
            .unwrap_or_else(|| panic!("{} has another id", name(instance)));
        assert_eq!(shown["ip_address"], instance["status"]["ipAddress"], "{shown}");
    }
    // What was owed is sent, as it was written.
    let owed: BTreeMap<&str, &str> = of("Delivery")
        .map(|delivery| &delivery["spec"])
        .map(|spec| (spec["eventId"].as_str().unwrap(), spec["body"].as_str().unwrap()))
        .collect();
    assert!(!owed.is_empty());
    let sent = async || {
        let requests = receiver.received();
        let sent = requests.iter().map(|request| {
            (
                request.header("x-service-event-id").to_owned(),
                request.body.clone(),
            )
        });
        sent.collect::<BTreeMap<_, _>>()
    };
    let sent = eventually("what was owed", sent, |sent| {
        owed.keys().all(|id| sent.contains_key(*id))
    })
    .await;
    for (id, body) in &owed {
        assert_eq!(sent[*id], body.as_bytes(), "{id}");
    }
    // What was interrupted is finished.
    let midway = async || get(&plane, "instances", "midway")["status"]["state"].clone();
    eventually("the interrupted instance to run", midway, |state| {
        state == "running"
    })
    .await;
    let started = async || {
        let requests = receiver.received();
        let events = requests
            .iter()
            .map(|request| serde_json::from_slice(&request.body).unwrap());
        let started = events.filter(|event: &Value| {
            event["type"] == "instance.started" && event["data"]["instance"]["name"] == "midway"
        });
        started.count()
    };
    eventually("its event", started, |count| *count == 1).await;
    // From now on it is billed.
    let metering = async || get(&plane, "instances", "midway")["status"]["metering"].clone();
    eventually("the instance to be metered", metering, Value::is_object).await;
    // A backup can be restored.
    let backup = data(&tenant, "/v1/backups").await[0].clone();
    let rest = &before["rest"]["id"].as_str().unwrap();
    let body = json!({ "backup": backup["id"] });
    let rebuild = format!("/v1/instances/{rest}/rebuild");
    let answer = tenant.call(Method::POST, &rebuild, Some(&body)).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED, "{answer:?}");
    let status = async || data(&tenant, &format!("/v1/instances/{rest}")).await["status"].clone();
    eventually("the restored instance to run", status, |status| {
        status == "running"
    })
    .await;
    // Nothing else has changed.
    let untouched = |object: &Value| {
        let now = get(&plane, &plural(object), name(object));
        assert_eq!(now["metadata"]["uid"], object["metadata"]["uid"], "{now}");
        assert_eq!(now["spec"], object["spec"], "{now}");
    };
    of("Account").for_each(untouched);
    of("ApiKey").for_each(untouched);
    of("Webhook").for_each(untouched);
    of("Backup").for_each(untouched);
    of("Instance")
        .filter(|instance| name(instance) != *rest)
        .for_each(untouched);
    assert!(operator.metric("stellage_invalid_objects_total", "").await < 0.5);
    operator.stop().await;

    // The way back: under the older schema every object is still valid, which each update checks, and loses what only this one has.
    install_older_crds(&plane);
    let annotate = [
        "annotate",
        "instances,webhooks,apikeys,backups",
        "-n",
        "ada",
        "--all",
        "older=yes",
    ];
    kubectl(&plane, &annotate, None).unwrap();
    eventually("new fields to be pruned", metering, Value::is_null).await;
    of("Webhook").for_each(untouched);

    install(&plane);
    operator = Operator::start(&plane, &arguments).await;
    tenant.url.clone_from(&operator.url);
    let again = async || tenant.call(Method::GET, "/v1/instances", None).await.status;
    eventually("the key to be known", again, |status| *status == StatusCode::OK).await;
    assert_eq!(instances(&tenant).await, before);
    eventually("the instance to be metered again", metering, Value::is_object).await;
    assert!(operator.metric("stellage_invalid_objects_total", "").await < 0.5);
    operator.stop().await;
}
