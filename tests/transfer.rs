//! A whole installation is moved through a file to an empty control plane, where the operator continues.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use control_plane::{ControlPlane, Identity};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt as _, api::DeleteParams};
use reqwest::{Method, StatusCode};
use resources::{DeliveryPhase, Instance, InstanceState, Webhook, conditions};
use serde_json::{Value, json};

use crate::{
    support::{
        Operator, STELLAGE, Tenant, eventually, install, kubectl, kubectl_words, own_plane,
        receiver_arguments,
        receivers::{Answer, Received, Receiver},
        stellage,
    },
    webhooks::{ALL, body, phase_of},
};

/// Takes `spec.tags` out of the schema of Instances, as if the CRD were of a version that did not have it.
fn drop_a_field(plane: &ControlPlane) {
    let crd = "instances.stellage.dev";
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/tags";
    let patch = json!([{ "op": "remove", "path": path }]).to_string();
    kubectl_words(
        plane,
        &["patch", "crd", crd, "--type", "json", "--patch", &patch],
        None,
    )
    .unwrap();
}

const FAULT: &str = "simulator.stellage.dev/fault";

/// What REST shows of an account, except for usage, which changes every moment, and ETags, which belong to an
/// object.
async fn shown(tenant: &Tenant) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let mut paths: Vec<String> = [
        "account",
        "instances",
        "webhooks",
        "events",
        "keys",
        "backups",
        "invoices",
        "alerts",
    ]
    .map(|what| format!("/v1/{what}"))
    .into();
    while let Some(path) = paths.pop() {
        let answer = tenant.call(Method::GET, &path, None).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {answer:?}");
        let data = answer.json()["data"].clone();
        if path == "/v1/webhooks" || path == "/v1/invoices" || path == "/v1/instances" {
            for item in data.as_array().unwrap() {
                let id = item["id"].as_str().unwrap();
                paths.push(format!("{path}/{id}"));
                if path == "/v1/webhooks" {
                    paths.push(format!("{path}/{id}/deliveries"));
                }
            }
        }
        all.insert(path, data);
    }
    all
}

/// Leaves out what changes by itself from one moment to the next.
fn lasting(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let volatile = [
                "cpu_usage",
                "memory_usage",
                "disk_usage",
                "network_in",
                "network_out",
                "uptime",
                "metrics",
            ];
            let kept = fields
                .iter()
                .filter(|(name, _)| !volatile.contains(&name.as_str()));
            kept.map(|(name, value)| (name.clone(), lasting(value))).collect()
        }
        Value::Array(values) => values.iter().map(lasting).collect(),
        other => other.clone(),
    }
}

fn event_ids(received: &[Received], path: &str) -> Vec<String> {
    let of_path = received.iter().filter(|request| request.path == path);
    of_path
        .map(|request| body(request)["id"].as_str().unwrap().to_owned())
        .collect()
}

async fn set_fault(tenant: &Tenant, name: &str, fault: Option<&str>) {
    let patch = json!({ "metadata": { "annotations": { FAULT: fault } } });
    tenant.merge(name, &patch).await;
}

/// Who has written which fields of an instance, except for its status.
async fn written_by(tenant: &Tenant) -> Value {
    let web = tenant.instances().get("web").await.unwrap();
    let mut fields = web.metadata.managed_fields.unwrap();
    fields.retain(|entry| entry.subresource.is_none());
    json!(fields)
}

async fn start(plane: &ControlPlane) -> Operator {
    let mut arguments = vec![
        "run",
        "--provisioning-seconds",
        "0.5",
        "--retry-schedule",
        "1h,1h,1h",
    ];
    let receivers = receiver_arguments(plane);
    arguments.extend(receivers.iter().map(String::as_str));
    Operator::start(plane, &arguments).await
}

async fn held(tenant: &Tenant, webhook: &str, count: usize, phase: DeliveryPhase) -> Vec<String> {
    let are = |all: &Vec<resources::Delivery>| {
        all.iter()
            .filter(|delivery| phase_of(delivery) == Some(phase))
            .count()
            == count
    };
    let all = tenant.wait_for_deliveries(webhook, phase.as_str(), are).await;
    let of_phase = all
        .into_iter()
        .filter(|delivery| phase_of(delivery) == Some(phase));
    of_phase.map(|delivery| delivery.spec.event_id).collect()
}

/// An exported installation: its account, what REST showed last, and what its receiver has got.
struct Exported {
    tenant: Tenant,
    shown: BTreeMap<String, Value>,
    held: Vec<String>,
    pending: Vec<String>,
    secret: Secret,
    managers: Value,
}

/// Creates some of everything, stops the operator, and exports the installation.
async fn export(file: &Path, receiver: &Receiver) -> Exported {
    let plane = own_plane().await;
    let mut operator = start(&plane).await;
    let tenant = Tenant::on(&plane, &operator, "moved").await;
    tenant.webhook("healthy", &receiver.url("/healthy"), &ALL).await;
    tenant.webhook("gone", &receiver.url("/gone"), &ALL).await;
    tenant.webhook("failing", &receiver.url("/failing"), &ALL).await;

    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    let made = json!({ "name": "by-rest", "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
    let made = tenant.call(Method::POST, "/v1/instances", Some(&made)).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    let by_rest = made.json()["data"]["id"].as_str().unwrap().to_owned();
    tenant.wait_for_state(&by_rest, InstanceState::Running).await;
    let stopped = tenant
        .call(Method::POST, &format!("/v1/instances/{by_rest}/stop"), None)
        .await;
    assert!(stopped.status.is_success(), "{stopped:?}");
    tenant.wait_for_state(&by_rest, InstanceState::Stopped).await;
    tenant
        .apply("stuck", |stuck| {
            stuck
                .annotations_mut()
                .insert(FAULT.to_owned(), "provisioning".to_owned());
        })
        .await;
    tenant.wait_for_state("stuck", InstanceState::Error).await;
    tenant.apply("leaving", |_| {}).await;
    tenant.wait_for_state("leaving", InstanceState::Running).await;
    set_fault(&tenant, "leaving", Some("unreachable")).await;
    tenant
        .instances()
        .delete("leaving", &DeleteParams::default())
        .await
        .unwrap();

    tenant.wait_for_entries(3).await;
    stellage(&plane, "backup create web -n moved --wait").unwrap();
    tenant.close_now().await;
    tenant.wait_for_invoices(1).await;

    // created and started of four instances, but stuck has not started; and stopped of one.
    let pending = held(&tenant, "failing", 8, DeliveryPhase::Pending).await;
    let held = held(&tenant, "gone", 7, DeliveryPhase::Held).await;
    let healthy = async || event_ids(&receiver.received(), "/healthy").len();
    eventually("all to be delivered", healthy, |count| *count == 8).await;
    let logged = async || {
        tenant.call(Method::GET, "/v1/events", None).await.json()["data"]
            .as_array()
            .unwrap()
            .len()
    };
    eventually("all to be logged", logged, |count| *count == 10).await;
    // Counters are written some seconds later.
    let webhooks = async || tenant.call(Method::GET, "/v1/webhooks", None).await.json()["data"].clone();
    let are_counted = |all: &Value| {
        let all = all.as_array().unwrap().iter();
        let counts: BTreeSet<_> = all
            .map(|it| (it["pending"].as_u64(), it["last_success_at"].is_null()))
            .collect();
        counts == [(Some(8), true), (Some(0), true), (Some(0), false)].into()
    };
    eventually("the counters", webhooks, are_counted).await;
    let keys = async || tenant.call(Method::GET, "/v1/keys", None).await.json()["data"].clone();
    let are_recorded = |keys: &Value| {
        let mut keys = keys.as_array().unwrap().iter();
        keys.all(|key| key["last_used_on"].is_string())
    };
    eventually("the last uses of the keys", keys, are_recorded).await;
    // Wait until nothing is written any more.
    let look = async || {
        let before = shown(&tenant).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        (before, shown(&tenant).await)
    };
    let (_, shown) = eventually("REST to show the same for a while", look, |(before, after)| {
        lasting(&json!(before)) == lasting(&json!(after))
    })
    .await;
    let running = stellage(&plane, &format!("export --output {}", file.display())).unwrap_err();
    assert!(running.contains("the operator runs"), "{running}");
    assert!(!file.exists());
    let at_once = file.with_extension("running");
    stellage(
        &plane,
        &format!("export --while-running --output {}", at_once.display()),
    )
    .unwrap();
    operator.stop().await;

    stellage(&plane, &format!("export --output {}", file.display())).unwrap();
    let mode = std::fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it has the secrets of webhooks");
    let again = stellage(&plane, &format!("export --output {}", file.display())).unwrap_err();
    assert!(again.contains("exists"), "{again}");
    let secrets: Api<Secret> = Api::namespaced(tenant.kube.clone(), "moved");
    let secret = secrets.get("healthy").await.unwrap();
    let managers = written_by(&tenant).await;
    Exported {
        tenant,
        shown,
        held,
        pending,
        secret,
        managers,
    }
}

fn import(plane: &ControlPlane, file: &Path) -> Result<String, String> {
    stellage(plane, &format!("import {}", file.display()))
}

fn holder(plane: &ControlPlane) -> String {
    let path = "jsonpath={.spec.holderIdentity}";
    kubectl(
        plane,
        &format!("get lease -n stellage-system stellage-controller -o {path}"),
        None,
    )
    .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exported_installation_goes_on_in_another_control_plane_and_nothing_is_done_twice() {
    let is_well = Arc::new(AtomicBool::new(false));
    let receiver = Receiver::start({
        let is_well = is_well.clone();
        move |request| match request.path.as_str() {
            "/gone" if !is_well.load(Ordering::Relaxed) => Answer::status(410),
            "/failing" if !is_well.load(Ordering::Relaxed) => Answer::status(503),
            _ => Answer::ok(),
        }
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stellage.export");
    let Exported {
        tenant: before,
        shown: was,
        held,
        pending,
        secret,
        managers,
    } = export(&file, &receiver).await;
    let delivered = receiver.count();

    let plane = own_plane().await;
    let kube = plane.client(Identity::Admin).await.unwrap();
    // Import into CRDs of an older version.
    drop_a_field(&plane);
    let refused = import(&plane, &file).unwrap_err();
    assert!(
        refused.contains("older than this program") && refused.contains("instances: spec.tags"),
        "{refused}"
    );
    install(&plane);
    // A truncated file.
    let cut = folder.path().join("cut");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let refused = import(&plane, &cut).unwrap_err();
    assert!(refused.contains("cut off"), "{refused}");
    // A file of a newer program.
    let newer = folder.path().join("newer");
    let own = format!(r#""version":"{}""#, env!("CARGO_PKG_VERSION"));
    let text = String::from_utf8(bytes).unwrap();
    std::fs::write(&newer, text.replacen(&own, r#""version":"99.0.0""#, 1)).unwrap();
    let refused = import(&plane, &newer).unwrap_err();
    assert!(refused.contains("written by version 99.0.0"), "{refused}");
    // An installation that is not empty.
    stellage(&plane, "account create other --email o@example.com --timeout 1s").unwrap_err();
    let refused = import(&plane, &file).unwrap_err();
    assert!(refused.contains("not empty, it has accounts"), "{refused}");
    kubectl(&plane, "delete account other", None).unwrap();
    stellage(&plane, &format!("import --dry-run {}", file.display())).unwrap();
    assert_eq!(holder(&plane), "");
    // An interrupted import: something stands in its way.
    let way = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "moved", "labels": { "stellage.dev/account": "moved" } } },
        { "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "healthy", "namespace": "moved" }, "stringData": { "secret": "another" } },
    ] });
    kubectl(&plane, "create -f -", Some(&way.to_string())).unwrap();
    let interrupted = import(&plane, &file).unwrap_err();
    assert!(
        interrupted.contains("another Secret moved/healthy"),
        "{interrupted}"
    );
    assert!(
        holder(&plane).starts_with("stellage-import-"),
        "no operator may lead now"
    );
    let refused = import(&plane, &file.with_extension("running")).unwrap_err();
    assert!(refused.contains("is not finished"), "{refused}");
    kubectl(&plane, "delete secret -n moved healthy", None).unwrap();
    import(&plane, &file).unwrap();
    assert_eq!(holder(&plane), "");

    let mut operator = start(&plane).await;
    let tenant = Tenant {
        namespace: "moved".to_owned(),
        key: before.key.clone(),
        kube: kube.clone(),
        url: operator.url.clone(),
        http: reqwest::Client::new(),
    };
    eventually("it to lead", async || holder(&plane), |holder| !holder.is_empty()).await;
    // Until the operator has its rights in the account's namespace, webhooks say that their secrets cannot be read.
    let was = lasting(&json!(was));
    let look = async || lasting(&json!(shown(&tenant).await));
    eventually(&format!("REST to show what it did: {was:#}"), look, |now| {
        *now == was
    })
    .await;
    assert_eq!(
        written_by(&tenant).await,
        managers,
        "who has written which field, and when"
    );
    let secrets: Api<Secret> = Api::namespaced(kube, "moved");
    let moved = secrets.get("healthy").await.unwrap();
    assert_eq!(
        (moved.data, moved.metadata.labels),
        (secret.data, secret.metadata.labels)
    );

    // The interrupted import continues.
    set_fault(&tenant, "stuck", None).await;
    tenant.wait_for_state("stuck", InstanceState::Running).await;
    set_fault(&tenant, "leaving", None).await;
    let leaving = async || tenant.instances().get_opt("leaving").await.unwrap();
    eventually("the deletion to be completed", leaving, Option::is_none).await;
    let healthy = async || event_ids(&receiver.received(), "/healthy");
    let got = eventually("the new events", healthy, |ids| ids.len() >= 10).await;
    assert_eq!(
        got.iter().collect::<BTreeSet<_>>().len(),
        10,
        "none of them twice: {got:?}"
    );
    let received = receiver.received();
    let mut happened: Vec<(String, String)> = received
        .iter()
        .filter(|request| request.path == "/healthy")
        .map(|request| {
            let event = body(request);
            let instance = event["data"]["instance"]["name"].as_str().unwrap().to_owned();
            (instance, event["type"].as_str().unwrap().to_owned())
        })
        .collect();
    happened.sort();
    let expected = [
        ("by-rest", "created"),
        ("by-rest", "started"),
        ("by-rest", "stopped"),
        ("leaving", "created"),
        ("leaving", "deleted"),
        ("leaving", "started"),
        ("stuck", "created"),
        ("stuck", "started"),
        ("web", "created"),
        ("web", "started"),
    ];
    let expected = expected.map(|(name, what)| (name.to_owned(), format!("instance.{what}")));
    assert_eq!(happened, expected, "no server was made again");
    let others = |path| event_ids(&received[delivered..], path);
    assert_eq!(others("/gone"), Vec::<String>::new(), "it is still disabled");
    // Two new events at most: the others are due in an hour.
    assert!(
        others("/failing").iter().all(|id| !pending.contains(id)),
        "{:?}",
        others("/failing")
    );

    // What was held and what was pending is sent under its original ids.
    is_well.store(true, Ordering::Relaxed);
    let gone: Webhook = tenant.webhooks().get("gone").await.unwrap();
    let active = json!({ "active": true });
    let enabled = tenant
        .call(
            Method::PATCH,
            &format!("/v1/webhooks/{}", gone.id()),
            Some(&active),
        )
        .await;
    assert_eq!(enabled.status, StatusCode::OK, "{enabled:?}");
    let failing: Webhook = tenant.webhooks().get("failing").await.unwrap();
    let retried = tenant
        .call(
            Method::POST,
            &format!("/v1/webhooks/{}/deliveries/retry", failing.id()),
            None,
        )
        .await;
    assert!(retried.status.is_success(), "{retried:?}");
    for (path, owed) in [("/gone", &held), ("/failing", &pending)] {
        let late = async || event_ids(&receiver.received()[delivered..], path);
        eventually("what is owed", late, |late| {
            owed.iter().all(|id| late.contains(id))
        })
        .await;
    }
    let bodies_of = |id: &str| -> BTreeSet<Vec<u8>> {
        let of_it = received.iter().filter(|request| body(request)["id"] == *id);
        of_it.map(|request| request.body.to_vec()).collect()
    };
    for id in held.iter().chain(&pending) {
        assert_eq!(bodies_of(id).len(), 1, "the same bytes as before");
    }
    let answer = tenant
        .call(
            Method::POST,
            "/v1/instances",
            Some(&json!({ "name": "new", "plan": "starter", "region": "fr-par-1", "image": "debian-13" })),
        )
        .await;
    assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_account_goes_on_in_an_installation_that_has_others_while_its_operator_runs() {
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ada.export");
    let (key, was) = {
        let plane = own_plane().await;
        let mut operator = start(&plane).await;
        let ada = Tenant::on(&plane, &operator, "ada").await;
        Tenant::on(&plane, &operator, "stays").await;
        ada.webhook("orders", &receiver.url("/"), &ALL).await;
        ada.apply("web", |_| {}).await;
        ada.wait_for_state("web", InstanceState::Running).await;
        ada.wait_for_entries(1).await;
        eventually("the events", async || receiver.count(), |count| *count == 2).await;
        ada.wait_for_clear_outboxes().await;
        operator.stop().await;
        let export = format!("export --account ada --output {}", file.display());
        stellage(&plane, &export).unwrap();
        let web = ada.instances().get("web").await.unwrap();
        (ada.key.clone(), web)
    };
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        !text.contains("stays") && !text.contains("stellage-console"),
        "{text}"
    );

    let plane = own_plane().await;
    let mut operator = start(&plane).await;
    let other = Tenant::on(&plane, &operator, "other").await;
    let import = |name| stellage(&plane, &format!("import --account {name} {}", file.display()));
    let refused = import("stays").unwrap_err();
    assert!(refused.contains("it has no account stays"), "{refused}");
    import("ada").unwrap();
    // As after an interruption.
    import("ada").unwrap();
    let ada = Tenant {
        namespace: "ada".to_owned(),
        key,
        kube: other.kube.clone(),
        url: other.url.clone(),
        http: other.http.clone(),
    };
    let known = async || ada.call(Method::GET, "/v1/instances", None).await;
    let known = eventually("the key to work", known, |answer| answer.status == StatusCode::OK).await;
    assert_eq!(known.json()["data"][0]["id"], was.id());
    // It is said that there is no account only until there is one.
    let is_ready = async || ada.instances().get("web").await.unwrap();
    let web = eventually("the instance to be ready", is_ready, |web| {
        let status = web.status.as_ref().unwrap();
        conditions::is_true(&status.conditions, conditions::READY)
    })
    .await;
    let times = |instance: &Instance| {
        let status = instance.status.clone().unwrap();
        (
            status.provisioned_at,
            status.started_at,
            status.ip_address,
            status.event_sequence,
        )
    };
    assert_eq!(times(&web), times(&was), "no second server");
    ada.power("web", "Stopped").await;
    let told = async || receiver.received();
    let told = eventually("the next event", told, |told| told.len() > 2).await;
    assert_eq!(body(&told[2])["type"], "instance.stopped");
    ada.wait_for_entries(1).await;
    operator.stop().await;
}

fn create(plane: &ControlPlane, objects: &Value) {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    kubectl(plane, "create -f -", Some(&list.to_string())).unwrap();
}

/// An object as JSON.
fn get(plane: &ControlPlane, kind: &str, namespace: &str, name: &str) -> Value {
    let get = format!("get {kind} {name} --namespace {namespace} --output json");
    serde_json::from_str(&kubectl(plane, &get, None).unwrap()).unwrap()
}

fn namespace(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": { "stellage.dev/account": name } } })
}

fn account(name: &str) -> Value {
    json!({
        "apiVersion": "stellage.dev/v1", "kind": "Account", "metadata": { "name": name },
        "spec": { "email": "ada@example.com", "namespace": name },
    })
}

fn instance(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance",
        "metadata": { "name": name, "namespace": namespace, "finalizers": ["stellage.dev/server"] },
        "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
    })
}

fn webhook(name: &str) -> Value {
    json!({
        "apiVersion": "stellage.dev/v1", "kind": "Webhook", "metadata": { "name": name, "namespace": "ada" },
        "spec": { "url": "https://hooks.example.com/", "events": ["instance.created"], "secretRef": { "name": name } },
    })
}

/// A reference to an object as an owner.
fn owner(object: &Value) -> Value {
    json!({
        "apiVersion": object["apiVersion"], "kind": object["kind"],
        "name": object["metadata"]["name"], "uid": object["metadata"]["uid"],
    })
}

/// Adds the maximum number of annotations; an import adds one more.
fn annotated(mut object: Value) -> Value {
    object["metadata"]["annotations"] = (0..32).map(|i| (format!("example.com/{i}"), json!(""))).collect();
    object
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_leaves_out_owners_that_are_not_in_the_file_and_says_so_but_not_what_they_own() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stellage.export");
    {
        let plane = own_plane().await;
        create(
            &plane,
            &json!([
                namespace("ada"), account("ada"), annotated(instance("ada", "web")), instance("ada", "past"),
                { "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "app", "namespace": "ada" } },
                webhook("gone"), webhook("kept"),
            ]),
        );
        let app = owner(&get(&plane, "configmap", "ada", "app"));
        let kept = owner(&get(&plane, "webhook", "ada", "kept"));
        let gone = owner(&get(&plane, "webhook", "ada", "gone"));
        let [web, past] = ["web", "past"].map(|name| owner(&get(&plane, "instance", "ada", name)));
        let mut owned = instance("ada", "owned");
        owned["metadata"]["ownerReferences"] = json!([app, kept]);
        let secret = |name: &str, label: &str, owner: &Value| {
            json!({
                "apiVersion": "v1", "kind": "Secret", "stringData": { "secret": "whsec_0123" },
                "metadata": {
                    "name": name, "namespace": "ada", "labels": { label: "true" },
                    "ownerReferences": [owner], "finalizers": ["example.com/wait"],
                },
            })
        };
        create(
            &plane,
            &json!([
                owned,
                secret("signing", "stellage.dev/webhook-secret", &app),
                secret("gone", "stellage.dev/webhook-secret", &gone),
                secret("boot", "app.kubernetes.io/managed-by", &web),
                secret("past", "app.kubernetes.io/managed-by", &past),
            ]),
        );
        kubectl(&plane, "delete webhook --namespace ada gone", None).unwrap();
        let unfinished = r#"{"metadata":{"finalizers":null}}"#;
        let patch = format!("patch instance past --namespace ada --type=merge --patch {unfinished}");
        kubectl(&plane, &patch, None).unwrap();
        kubectl(&plane, "delete instance --namespace ada past", None).unwrap();
        stellage(&plane, &format!("export --output {}", file.display())).unwrap();
    }

    let plane = own_plane().await;
    let import = Command::new(STELLAGE)
        .arg("import")
        .arg(&file)
        .env("KUBECONFIG", plane.kubeconfig(Identity::Admin))
        .output()
        .unwrap();
    let said = String::from_utf8(import.stderr).unwrap();
    assert!(import.status.success(), "{said}");
    for line in [
        "Secret ada/signing: without its owner ConfigMap app, which was not imported before it",
        "Instance ada/owned: without its owner ConfigMap app, which was not imported before it",
        "left out, because what they belong to is deleted: 2 Secret",
    ] {
        assert!(said.lines().any(|it| it == line), "{line} in {said}");
    }
    // A namespace, an account, two instances, a webhook and two Secrets; in addition, what the chart creates empty.
    let of_rights = ["configmap", "secret"].map(|kind| {
        let list = format!("get {kind} --namespace stellage-system --output name");
        let found = kubectl(&plane, &list, None).unwrap();
        // Consoles that are open end with the export.
        let tickets = |line: &&str| !line.ends_with("console-tickets");
        found.lines().filter(tickets).count()
    });
    let count = format!("imported {} objects;", 7 + of_rights.iter().sum::<usize>());
    assert!(said.contains(&count), "{count} in {said}");
    let kept = owner(&get(&plane, "webhook", "ada", "kept"));
    let owned = get(&plane, "instance", "ada", "owned");
    assert_eq!(owned["metadata"]["ownerReferences"], json!([kept]));
    let signing = get(&plane, "secret", "ada", "signing");
    assert_eq!(signing["metadata"]["ownerReferences"], Value::Null);
    assert!(signing["data"]["secret"].is_string());
    let web = owner(&get(&plane, "instance", "ada", "web"));
    let boot = get(&plane, "secret", "ada", "boot");
    assert_eq!(boot["metadata"]["ownerReferences"], json!([web]));
    for name in ["gone", "past"] {
        let left_out = kubectl(&plane, &format!("get secret --namespace ada {name}"), None).unwrap_err();
        assert!(left_out.contains("NotFound"), "{left_out}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_is_interrupted_while_it_deletes_what_was_being_deleted_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stellage.export");
    let delete = "delete namespace ada --wait=false";
    let is_deleted = |object: &Value| object["metadata"]["deletionTimestamp"].is_string();
    {
        let plane = own_plane().await;
        create(
            &plane,
            &json!([namespace("ada"), account("ada"), instance("ada", "web")]),
        );
        kubectl(&plane, delete, None).unwrap();
        let web = async || get(&plane, "instance", "ada", "web");
        eventually("the instance to be deleted", web, is_deleted).await;
        stellage(&plane, &format!("export --output {}", file.display())).unwrap();
    }

    let plane = own_plane().await;
    // Stops an import when it deletes the instance, and when it has deleted everything.
    let rule = |group: &str, resource: &str, operation: &str| json!({ "apiGroups": [group], "apiVersions": ["v1"], "resources": [resource], "operations": [operation] });
    let may = "request.resource.resource == 'instances' && has(oldObject.metadata.labels) || request.resource.resource == 'leases' && object.spec.holderIdentity != ''";
    create(
        &plane,
        &json!([
            {
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": { "name": "stop" },
                "spec": {
                    "matchConstraints": { "resourceRules": [
                        rule("stellage.dev", "instances", "DELETE"), rule("coordination.k8s.io", "leases", "UPDATE"), rule("", "configmaps", "CREATE"),
                    ] },
                    "validations": [{ "expression": may, "message": "stopped by the test" }],
                },
            },
            {
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": "stop" },
                "spec": { "policyName": "stop", "validationActions": ["Deny"] },
            },
        ]),
    );
    let try_to_create = "create configmap tried --dry-run=server";
    let tried = async || kubectl(&plane, try_to_create, None);
    eventually("the policy to be in force", tried, Result::is_err)
        .await
        .unwrap_err();
    let stopped = import(&plane, &file).unwrap_err();
    assert!(
        stopped.contains("delete Instance ada/web") && stopped.contains("stopped by the test"),
        "{stopped}"
    );
    assert!(
        !is_deleted(&get(&plane, "namespace", "", "ada")),
        "nothing can be created in one that is being deleted"
    );
    let label = "label instance --namespace ada web may=go";
    kubectl(&plane, label, None).unwrap();
    let stopped = import(&plane, &file).unwrap_err();
    assert!(
        stopped.contains("write the Lease") && stopped.contains("stopped by the test"),
        "{stopped}"
    );
    assert!(is_deleted(&get(&plane, "namespace", "", "ada")));
    kubectl(&plane, "delete validatingadmissionpolicybinding stop", None).unwrap();
    let tried = async || kubectl(&plane, try_to_create, None);
    eventually("the policy to be gone", tried, Result::is_ok)
        .await
        .unwrap();
    import(&plane, &file).unwrap();
    assert_eq!(holder(&plane), "");
    let web = get(&plane, "instance", "ada", "web");
    assert!(is_deleted(&web) && web["metadata"]["annotations"]["stellage.dev/origin"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_imported_into_a_namespace_that_somebody_deletes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stellage.export");
    {
        let plane = own_plane().await;
        create(
            &plane,
            &json!([namespace("ada"), account("ada"), instance("ada", "web")]),
        );
        stellage(&plane, &format!("export --output {}", file.display())).unwrap();
    }

    let plane = own_plane().await;
    let waits = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "waits", "namespace": "ada", "finalizers": ["example.com/wait"] },
    });
    create(&plane, &json!([namespace("ada"), waits]));
    kubectl(&plane, "delete namespace ada --wait=false", None).unwrap();
    let refused = import(&plane, &file).unwrap_err();
    assert!(
        refused.contains("the namespace ada is being deleted"),
        "{refused}"
    );
    let goes = json!({ "metadata": { "finalizers": null } }).to_string();
    kubectl(
        &plane,
        &format!("patch configmap waits --namespace ada --type=merge --patch {goes}"),
        None,
    )
    .unwrap();
    kubectl(&plane, "wait --for=delete namespace ada --timeout=60s", None).unwrap();
    import(&plane, &file).unwrap();
    get(&plane, "instance", "ada", "web");
}
