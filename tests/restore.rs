//! Objects that `kubectl get` saved and `kubectl create` wrote back, in another control plane, are the same accounts, servers, webhooks
//! and backups, and so are those that Velero restores.

use std::{collections::BTreeSet, time::Duration};

use control_plane::{ControlPlane, Identity};
use jiff::{SignedDuration, Timestamp};
use kube::{Api, ResourceExt as _};
use reqwest::{Method, StatusCode};
use resources::{Backup, BackupPhase, InstanceState};
use serde_json::{Value, json};

use crate::{
    support::{
        Operator, Tenant, eventually, kubectl, kubectl_words, own_plane, receiver_arguments,
        receivers::{Answer, Receiver},
        stellage, stellage_words,
    },
    webhooks::body,
};

const NAMESPACE: &str = "saved";
const EVENTS: [&str; 4] = [
    "instance.created",
    "instance.started",
    "instance.stopped",
    "backup.completed",
];
const ORIGIN: &str = "stellage.dev/origin";
/// What is saved, in an order that no tool has promised, but for the invoices (docs/export.md): Backups come before their Instances.
const KINDS: [&str; 10] = [
    "backups",
    "apikeys",
    "eventlogs",
    "invoicenumbers",
    "invoices",
    "invoicepages",
    "instances",
    "privatenetworks",
    "secrets",
    "webhooks",
];

/// Who writes objects back, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tool {
    /// An administrator who lets the operator's user write what only that may.
    Kubectl { has_status: bool },
    /// A service account that the policies name as the restorer: it creates each object without a status, writes that as a subresource, and
    /// leaves out what has its status elsewhere.
    Velero,
}

const VELERO: &str = "system:serviceaccount:velero:velero";

async fn start(plane: &ControlPlane) -> Operator {
    let mut arguments = vec!["run", "--provisioning-seconds", "1"];
    let receivers = receiver_arguments(plane);
    arguments.extend(receivers.iter().map(String::as_str));
    Operator::start(plane, &arguments).await
}

/// The objects of a kind, with nothing that belongs to the control plane that they are in.
fn saved(plane: &ControlPlane, kind: &str) -> Vec<Value> {
    // Invoices are with the operator.
    let namespace = if kind.starts_with("invoice") {
        "stellage-system"
    } else {
        NAMESPACE
    };
    let get = format!("get {kind} -n {namespace} -o json");
    let list: Value = serde_json::from_str(&kubectl(plane, &get, None).unwrap()).unwrap();
    let mut objects = match list["items"].as_array() {
        Some(items) => items.clone(),
        None => vec![list],
    };
    objects.retain(|object| object["type"] != "kubernetes.io/service-account-token");
    for object in &mut objects {
        let metadata = object["metadata"].as_object_mut().unwrap();
        for field in [
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "generation",
            "ownerReferences",
        ] {
            metadata.remove(field);
        }
        // As if an hour had passed since: the first objects of this test are some seconds old.
        if let Some(origin) = metadata.get("annotations").and_then(|all| all[ORIGIN].as_str()) {
            let (uid, created) = origin.split_once(' ').unwrap();
            let created: Timestamp = created.parse().unwrap();
            let earlier = created - SignedDuration::from_hours(1);
            object["metadata"]["annotations"][ORIGIN] = json!(format!("{uid} {earlier}"));
        }
    }
    objects
}

/// Runs kubectl, for statuses and records as the operator, whom no policy keeps from writing them, or always as Velero. New quotas refuse
/// creates until they are computed.
async fn restore(plane: &ControlPlane, tool: Tool, arguments: &[&str], object: &Value) {
    let user = format!("--as={}", Identity::Operator.user());
    let kind = object["kind"].as_str();
    let is_ours =
        kind.is_none_or(|kind| ["EventLog", "Invoice", "InvoiceNumber", "InvoicePage"].contains(&kind));
    let velero = format!("--as={VELERO}");
    let who: &[&str] = match tool {
        Tool::Velero => &[&velero],
        Tool::Kubectl { .. } if is_ours => &[&user, "--as-group=system:masters"],
        Tool::Kubectl { .. } => &[],
    };
    let arguments = [arguments, who].concat();
    let run = async || kubectl_words(plane, &arguments, Some(&object.to_string()));
    // So does a policy until it knows its new restorer.
    let passes = ["quota", "by the operator alone"];
    let is_final = |outcome: &Result<String, String>| {
        !outcome
            .as_ref()
            .is_err_and(|said| passes.iter().any(|reason| said.contains(reason)))
    };
    eventually("the quota to count", run, is_final).await.unwrap();
}

/// Restores an object as Velero does (pkg/restore/restore.go).
async fn restore_with_velero(plane: &ControlPlane, object: &Value) {
    let mut new = object.clone();
    let status = new.as_object_mut().unwrap().remove("status");
    for label in ["velero.io/backup-name", "velero.io/restore-name"] {
        new["metadata"]["labels"][label] = json!("daily");
    }
    restore(plane, Tool::Velero, &["create", "-f", "-"], &new).await;
    let kind = object["kind"].as_str().unwrap();
    let with_status = [
        "Account",
        "ApiKey",
        "Backup",
        "Instance",
        "PrivateNetwork",
        "Webhook",
    ];
    let Some(status) = status.filter(|_| with_status.contains(&kind)) else {
        return;
    };
    let name = object["metadata"]["name"].as_str().unwrap();
    let created = kubectl(plane, &format!("get {kind} {name} -n {NAMESPACE} -o json"), None).unwrap();
    let mut created: Value = serde_json::from_str(&created).unwrap();
    created["status"] = status;
    restore(
        plane,
        Tool::Velero,
        &["replace", "--subresource=status", "-f", "-"],
        &created,
    )
    .await;
}

/// Applies the policies, with Velero's user as the restorer or without one.
fn apply_policies(plane: &ControlPlane, restorer: &[&str]) {
    let crds = stellage_words(plane, &[&["crds", "--with-policies"], restorer].concat()).unwrap();
    let apply = "apply --server-side --force-conflicts -f -";
    kubectl(plane, apply, Some(&crds)).unwrap();
}

/// Whether Velero may write the status of the account.
fn may_write_statuses(plane: &ControlPlane) -> Result<String, String> {
    let change = json!({ "status": { "id": "usr_0000000000000000" } }).to_string();
    let user = format!("--as={VELERO}");
    let patch = [
        "patch",
        "account",
        NAMESPACE,
        "--subresource=status",
        "--type=merge",
        "--dry-run=server",
        "-p",
        &change,
        &user,
    ];
    kubectl_words(plane, &patch, None)
}

/// What REST shows of instances, private networks, webhooks and backups that must stay the same.
async fn shown(tenant: &Tenant) -> Value {
    let list = async |what: &str, fields: &[&str]| -> Vec<Value> {
        let answer = tenant.call(Method::GET, &format!("/v1/{what}"), None).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        let mut all: Vec<Value> = answer.json()["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| {
                fields
                    .iter()
                    .map(|field| ((*field).to_owned(), item[*field].clone()))
                    .collect()
            })
            .collect();
        all.sort_by_key(|item| item["id"].to_string());
        all
    };
    let shown = async |path: &str, field: &str| {
        tenant.call(Method::GET, path, None).await.json()["data"][field].clone()
    };
    let instances = list(
        "instances",
        &["id", "name", "status", "ip_address", "ipv6_address", "plan"],
    )
    .await;
    let mut private_addresses = Vec::new();
    for instance in &instances {
        let path = format!("/v1/instances/{}", instance["id"].as_str().unwrap());
        private_addresses.push(shown(&path, "private_ip_address").await);
    }
    json!({
        "account": shown("/v1/account", "id").await,
        "private_addresses": private_addresses,
        "networks": list("networks", &["id", "name", "prefix", "ready", "instances"]).await,
        "instances": instances,
        "webhooks": list("webhooks", &["id", "url", "active"]).await,
        "backups": list("backups", &["id", "instance_id", "status", "size_gb"]).await,
    })
}

/// UIDs and beginnings of what is on the open invoice.
async fn billed(tenant: &Tenant) -> BTreeSet<(String, Timestamp)> {
    let invoices = tenant.all_invoices().await;
    let entries = invoices.iter().flat_map(|invoice| &invoice.spec.entries);
    entries.map(|entry| (entry.uid.clone(), entry.since)).collect()
}

async fn goes_on(tool: Tool) {
    let has_status = tool != Tool::Kubectl { has_status: false };
    let folder = tempfile::tempdir().unwrap();
    let exported = folder.path().join("stellage.export");
    let exported = exported.to_str().unwrap();
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let ids = |from: usize| -> Vec<String> {
        let received = receiver.received();
        let events = received[from..].iter().map(|request| body(request)["id"].clone());
        events.map(|id| id.as_str().unwrap().to_owned()).collect()
    };
    let (objects, before, was, entries) = {
        let plane = own_plane().await;
        let mut operator = start(&plane).await;
        let tenant = Tenant::on(&plane, &operator, NAMESPACE).await;
        tenant.webhook("orders", &receiver.url("/"), &EVENTS).await;
        tenant.apply("web", |_| {}).await;
        let mut made =
            json!({ "name": "by-rest", "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
        if has_status {
            let network = json!({ "name": "backend", "region": "fr-par-1", "prefix": "10.128.7.0/24" });
            let network = tenant.call(Method::POST, "/v1/networks", Some(&network)).await;
            made["private_network"] = network.json()["data"]["id"].clone();
        }
        let made = tenant.call(Method::POST, "/v1/instances", Some(&made)).await;
        let by_rest = made.json()["data"]["id"].as_str().unwrap().to_owned();
        tenant.wait_for_state("web", InstanceState::Running).await;
        tenant.wait_for_state(&by_rest, InstanceState::Running).await;
        stellage(&plane, &format!("backup create web -n {NAMESPACE} --wait")).unwrap();
        tenant.wait_for_entries(2).await;
        // Created and started twice, and a backup.
        eventually("the events", async || receiver.count(), |count| *count == 5).await;
        tenant.wait_for_clear_outboxes().await;
        if has_status {
            tenant.close_now().await;
            tenant.wait_for_invoices(1).await;
        }
        let (was, entries) = (shown(&tenant).await, billed(&tenant).await);
        operator.stop().await;
        stellage(&plane, &format!("export --output {exported}")).unwrap();
        let account = ["account", NAMESPACE].join("/");
        let namespace = ["namespace", NAMESPACE].join("/");
        let mut objects = [saved(&plane, &namespace), saved(&plane, &account)].concat();
        for kind in KINDS {
            objects.extend(saved(&plane, kind));
        }
        (objects, tenant, was, entries)
    };
    let told = receiver.count();

    let plane = own_plane().await;
    // Without statuses, an operator may run: then it sees them come one by one.
    let early = if has_status {
        None
    } else {
        Some(start(&plane).await)
    };
    if tool == Tool::Velero {
        let role =
            "create clusterrolebinding velero --clusterrole=cluster-admin --serviceaccount=velero:velero";
        kubectl(&plane, role, None).unwrap();
        apply_policies(&plane, &["--restorer", VELERO]);
        let of_elsewhere =
            |object: &&Value| !["Invoice", "InvoicePage"].contains(&object["kind"].as_str().unwrap());
        for object in objects.iter().filter(of_elsewhere) {
            restore_with_velero(&plane, object).await;
        }
        apply_policies(&plane, &[]);
        let refused = eventually("no restorer", async || may_write_statuses(&plane), Result::is_err).await;
        assert!(refused.unwrap_err().contains("written by the operator alone"));
        stellage(&plane, &format!("import --only-operator-namespace {exported}")).unwrap();
    }
    for object in objects.iter().filter(|_| tool != Tool::Velero) {
        restore(&plane, tool, &["create", "-f", "-"], object).await;
        let is_record = ["Invoice", "Namespace"].contains(&object["kind"].as_str().unwrap());
        if has_status && !object["status"].is_null() && !is_record {
            let (kind, name) = (
                object["kind"].as_str().unwrap(),
                object["metadata"]["name"].as_str().unwrap(),
            );
            let status = json!({ "status": object["status"] }).to_string();
            let patch = [
                "patch",
                kind,
                name,
                "-n",
                NAMESPACE,
                "--subresource=status",
                "--type=merge",
                "-p",
                &status,
            ];
            restore(&plane, tool, &patch, &Value::Null).await;
        }
    }
    let mut operator = match early {
        Some(operator) => operator,
        None => start(&plane).await,
    };
    let tenant = Tenant {
        namespace: NAMESPACE.to_owned(),
        key: before.key.clone(),
        kube: plane.client(Identity::Admin).await.unwrap(),
        url: operator.url.clone(),
        http: reqwest::Client::new(),
    };
    let is_known = async || tenant.call(Method::GET, "/v1/account", None).await.status;
    eventually("the key to work", is_known, |status| *status == StatusCode::OK).await;
    eventually(
        "the same to be shown",
        async || shown(&tenant).await,
        |now| *now == was,
    )
    .await;
    let backups: Api<Backup> = Api::namespaced(tenant.kube.clone(), NAMESPACE);
    let backups = backups
        .list(&kube::api::ListParams::default())
        .await
        .unwrap()
        .items;
    assert_eq!(backups.len(), 1, "no second one was made");
    assert_eq!(backups[0].phase(), BackupPhase::Completed);
    for instance in tenant.all_instances().await {
        let status = instance.status.clone().unwrap();
        let origin = instance.annotations()[ORIGIN].split_once(' ').unwrap();
        let uid = origin.0.to_owned();
        assert!(entries.iter().any(|(known, _)| *known == uid), "{uid}");
        if !has_status {
            assert_eq!(
                status.provisioned_at,
                Some(origin.1.parse().unwrap()),
                "no second server"
            );
        }
    }

    // What happens next is told under an id of its own, and nothing is told again.
    tenant.power("web", "Stopped").await;
    tenant.wait_for_state("web", InstanceState::Stopped).await;
    eventually("the next event", async || receiver.count(), |count| *count > told).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        ids(told).len(),
        1,
        "{:?}",
        receiver.received()[told..].iter().map(body).collect::<Vec<_>>()
    );
    assert_eq!(body(&receiver.received()[told])["type"], "instance.stopped");
    let all: BTreeSet<String> = ids(0).into_iter().collect();
    assert_eq!(all.len(), told + 1, "its id is new");
    assert_eq!(billed(&tenant).await, entries, "nothing is billed twice");
    if has_status {
        // The next invoice has the next number.
        tenant.apply("next", |_| {}).await;
        tenant.wait_for_state("next", InstanceState::Running).await;
        let is_billed = async || billed(&tenant).await.len();
        eventually("its entry", is_billed, |count| *count > entries.len()).await;
        tenant.close_now().await;
        let invoices = tenant.wait_for_invoices(2).await;
        let numbers = invoices
            .iter()
            .map(|invoice| invoice.number().unwrap().rsplit('-').next().unwrap());
        assert_eq!(numbers.collect::<Vec<_>>(), ["000001", "000002"]);
    }
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_kubectl_saved_and_wrote_back_with_its_status_goes_on() {
    goes_on(Tool::Kubectl { has_status: true }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_kubectl_saved_and_wrote_back_without_its_status_converges_and_nothing_is_done_twice() {
    goes_on(Tool::Kubectl { has_status: false }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_velero_writes_back_as_the_restorer_that_the_policies_name_goes_on() {
    goes_on(Tool::Velero).await;
}
