//! What an older version left behind when it was killed continues under this version.
//!
//! `record` wrote it. Its objects are put into etcd unchanged, so that they keep their UIDs, from which ids are derived.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use control_plane::{ControlPlane, Identity};
use jiff::Timestamp;
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

/// Replaces this version's CRDs with those of the older one.
pub fn install_older_crds(plane: &ControlPlane) {
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

/// The plural of a kind, as used in etcd's keys and by kubectl.
fn plural(object: &Value) -> String {
    format!("{}s", object["kind"].as_str().unwrap().to_lowercase()).replace("deliverys", "deliveries")
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

/// Writes an object directly to etcd, bypassing the API server.
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

/// A pending Delivery as it would be had it been delivered just now under a version without an event log, which kept such objects.
fn delivered(pending: &Value) -> Value {
    let now = Timestamp::now();
    let mut delivery = pending.clone();
    let metadata = delivery["metadata"].as_object_mut().unwrap();
    metadata["name"] = "dlv-delivered0000000".into();
    metadata["uid"] = "00000000-0000-4000-8000-000000000000".into();
    metadata["creationTimestamp"] = now.strftime("%FT%TZ").to_string().into();
    metadata["labels"]["stellage.dev/finished"] = "true".into();
    metadata["labels"]["stellage.dev/phase"] = "delivered".into();
    delivery["spec"]["eventId"] = "evt_delivered0000000".into();
    delivery["status"] = json!({
        "phase": "Delivered", "attemptCount": 1, "lastStatusCode": 200,
        "attempts": [{ "at": now, "durationMs": 1, "statusCode": 200 }],
    });
    delivery
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

/// The schemas in YAML documents of CRDs, by kind.
fn schemas(text: &str) -> BTreeMap<String, Value> {
    let crds = text
        .split("\n---\n")
        .map(|document| serde_saphyr::from_str::<Value>(document).unwrap());
    crds.map(|crd| {
        let kind = crd["spec"]["names"]["kind"].as_str().unwrap().to_owned();
        (
            kind,
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone(),
        )
    })
    .collect()
}

/// The outermost fields of a schema that another one lacks.
fn lacks(now: &Value, before: &Value, path: &str, found: &mut BTreeSet<String>) {
    for (name, schema) in now["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}{name}");
        match &before["properties"][name] {
            Value::Null => {
                found.insert(path);
            }
            before => {
                lacks(schema, before, &format!("{path}."), found);
                lacks(&schema["items"], &before["items"], &format!("{path}[]."), found);
            }
        }
    }
}

/// The fields of this version's kinds that those of the older one lack, as `Kind path`; a new kind as `Kind`.
fn new_fields() -> BTreeSet<String> {
    let before = schemas(&fs::read_to_string(recorded("crds.yaml")).unwrap());
    let mut new = BTreeSet::new();
    let complete = stellage::resources::crds();
    let complete: Vec<_> = complete
        .iter()
        .map(|crd| serde_json::to_string(crd).unwrap())
        .collect();
    for (kind, schema) in schemas(&complete.join("\n---\n")) {
        let Some(before) = before.get(&kind) else {
            new.insert(kind);
            continue;
        };
        let mut fields = BTreeSet::new();
        lacks(&schema, before, "", &mut fields);
        new.extend(fields.into_iter().map(|field| format!("{kind} {field}")));
    }
    new
}

/// The fields that an object has in its spec and its status, as `Kind path`.
fn fields(object: &Value) -> BTreeSet<String> {
    fn add(value: &Value, path: &str, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let path = format!("{path}.{name}");
                    add(value, &path, found);
                    found.insert(path);
                }
            }
            Value::Array(values) => values
                .iter()
                .for_each(|value| add(value, &format!("{path}[]"), found)),
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    for part in ["spec", "status"] {
        let path = format!("{} {part}", object["kind"].as_str().unwrap());
        add(&object[part], &path, &mut found);
        found.extend((!object[part].is_null()).then_some(path));
    }
    found
}

#[test]
fn what_the_way_back_loses_is_in_the_documents() {
    let page = fs::read_to_string(recorded("../../docs/upgrading.md")).unwrap();
    let rows = page
        .lines()
        .skip_while(|line| !line.starts_with("| Field that the older version lacks"));
    let mut told = BTreeSet::new();
    for row in rows.skip(2).take_while(|line| line.starts_with('|')) {
        let fields = row.split('|').nth(1).unwrap().trim();
        if let Some(kinds) = fields.strip_prefix("the kinds ") {
            told.extend(kinds.split(", ").map(str::to_owned));
            continue;
        }
        for of_kind in fields.split("; ") {
            let (kind, fields) = of_kind.split_once(' ').unwrap();
            told.extend(
                fields
                    .split(", ")
                    .map(|field| format!("{kind} {}", field.trim_matches('`'))),
            );
        }
    }
    assert_eq!(new_fields(), told, "the table of docs/upgrading.md");
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
    put(&plane, &delivered(of("Delivery").next().unwrap())).await;

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
    // Undelivered events are sent as they were written.
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
    // What had been delivered is still shown, and not sent again.
    let webhook = data(&tenant, "/v1/webhooks").await[0]["id"].clone();
    let path = format!("/v1/webhooks/{}/deliveries?limit=100", webhook.as_str().unwrap());
    let deliveries = data(&tenant, &path).await;
    let mut shown = deliveries.as_array().unwrap().iter();
    let delivered = shown.find(|delivery| delivery["id"] == "dlv_delivered0000000");
    assert_eq!(delivered.unwrap()["status"], "delivered", "{deliveries}");
    assert!(!sent.contains_key("evt_delivered0000000"));
    // Interrupted operations are finished.
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

    // The way back: under the older schema, every object is still valid, as each update verifies, and loses only the fields that
    // are new in this version.
    let kinds = "accounts,apikeys,backups,instances,webhooks";
    let stored = || {
        let list = ["get", kinds, "--all-namespaces", "-o", "json"];
        let list: Value = serde_json::from_str(&kubectl(&plane, &list, None).unwrap()).unwrap();
        list["items"].as_array().unwrap().clone()
    };
    let newest = stored();
    install_older_crds(&plane);
    // Objects are pruned on read as soon as the API server knows the older schema; stored objects are pruned only when
    // they are written.
    eventually("new fields to be pruned", metering, Value::is_null).await;
    let annotate = ["annotate", kinds, "--all-namespaces", "--all", "older=yes"];
    kubectl(&plane, &annotate, None).unwrap();
    let may_be_lost = new_fields();
    let mut lost = BTreeSet::new();
    for (was, now) in newest.iter().zip(stored()) {
        assert_eq!(was["metadata"]["uid"], now["metadata"]["uid"]);
        lost.extend(fields(was).difference(&fields(&now)).cloned());
    }
    assert!(lost.contains("Instance status.metering"), "{lost:?}");
    for field in &lost {
        let is_new = |new: &String| {
            field
                .strip_prefix(new.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        assert!(may_be_lost.iter().any(is_new), "{field}");
    }
    of("Webhook").for_each(untouched);
    // A rollback replaces the CRDs before the pods. Until the pods follow, this version must not keep writing what is
    // pruned.
    operator = Operator::start(&plane, &arguments).await;
    let written_meanwhile = async || -> Vec<Value> {
        let before = stored();
        // Longer than the period of any controller.
        tokio::time::sleep(Duration::from_secs(12)).await;
        let pairs = std::iter::zip(before, stored());
        pairs.filter(|(was, is)| was != is).map(|(_, is)| is).collect()
    };
    eventually("writes to cease", written_meanwhile, Vec::is_empty).await;
    operator.stop().await;

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
