//! `stellage doctor` on a real API server: a healthy installation, and one that is broken in each way.

use std::{collections::BTreeMap, fs::File, io::Read as _, path::Path, process::Command};

use control_plane::{ControlPlane, Identity};
use flate2::read::GzDecoder;
use jiff::Timestamp;
use providers::simulator::FAULT_ANNOTATION;
use reqwest::Method;
use resources::{Account, InstanceState, Webhook, account::Billing, conditions};
use serde_json::{Value, json};

use crate::{
    support::{
        Change as _, Operator, STELLAGE, Tenant, as_operator, eventually, kubectl, kubectl_words, own_plane,
        receiver_arguments,
        receivers::{Answer, Receiver},
    },
    webhooks::SECRET,
};

/// Returns whether it exits with 0, and its report.
fn doctor(plane: &ControlPlane, arguments: &[&str]) -> (bool, Value) {
    let (status, report) = doctor_with(&plane.kubeconfig(Identity::Admin), arguments);
    (status == 0, report)
}

/// Its exit status and report.
fn doctor_with(kubeconfig: &Path, arguments: &[&str]) -> (i32, Value) {
    let output = Command::new(STELLAGE)
        .args(["doctor", "--output", "json"])
        .args(arguments)
        .env("KUBECONFIG", kubeconfig)
        .output()
        .unwrap();
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code().unwrap(), report)
}

/// The outcomes of a report that are not `ok`: their messages by name.
fn complaints(report: &Value) -> BTreeMap<String, (String, String)> {
    let text = |check: &Value, field: &str| check[field].as_str().unwrap_or_default().to_owned();
    let checks = report["checks"].as_array().unwrap().iter();
    let bad = checks.filter(|check| check["outcome"] != "ok");
    bad.map(|check| {
        assert!(!text(check, "fix").is_empty(), "nothing to do: {check}");
        (
            text(check, "name"),
            (text(check, "outcome"), text(check, "message")),
        )
    })
    .collect()
}

/// Runs it until only this problem is reported, which may take the operator a moment. `also` may be reported
/// as well.
async fn finds(plane: &ControlPlane, name: &str, outcome: &str, message: &str, also: &[&str]) {
    let look = async || {
        let (is_well, report) = doctor(plane, &[]);
        (is_well, complaints(&report))
    };
    let (is_well, found) = eventually(message, look, |(_, found)| {
        let is_found = found
            .get(name)
            .is_some_and(|(of, said)| of == outcome && said.contains(message));
        let mut others = found.keys().map(String::as_str).filter(|it| *it != name);
        is_found && others.all(|other| also.contains(&other))
    })
    .await;
    let fails = found.values().any(|(of, _)| of == "failed");
    assert_eq!(is_well, !fails, "{found:#?}");
}

async fn finds_nothing(plane: &ControlPlane) {
    let look = async || {
        let (is_well, report) = doctor(plane, &[]);
        (is_well, complaints(&report))
    };
    let found = eventually("everything to be well", look, |(_, found)| found.is_empty()).await;
    assert!(found.0);
}

fn apply(plane: &ControlPlane, file: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let apply = format!("apply --server-side --force-conflicts -f {}", file.display());
    kubectl(plane, &apply, None).unwrap();
}

/// Changes the schema of webhooks.
fn change_schema(plane: &ControlPlane, operation: &str, path: &str, value: Value) {
    let path = format!("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/{path}");
    let patch = json!([{ "op": operation, "path": path, "value": value }]).to_string();
    let patch = [
        "patch",
        "crd",
        "webhooks.stellage.dev",
        "--type=json",
        "-p",
        &patch,
    ];
    kubectl_words(plane, &patch, None).unwrap();
}

/// The exit status and the complaints for a user who may read nothing.
fn as_nobody(plane: &ControlPlane) -> (i32, BTreeMap<String, (String, String)>) {
    let text = std::fs::read_to_string(plane.kubeconfig(Identity::Admin)).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["users"][0]["user"]["as"] = json!("nobody");
    let path = plane.folder().join("nobody.kubeconfig");
    control_plane::write_private(&path, &config.to_string()).unwrap();
    let (status, report) = doctor_with(&path, &[]);
    assert_eq!(report["outcome"], "unknown");
    (status, complaints(&report))
}

async fn break_the_installation(plane: &ControlPlane) {
    change_schema(plane, "remove", "enableRequestedAt", Value::Null);
    finds(plane, "CRDs", "failed", "webhooks: spec.enableRequestedAt", &[]).await;
    apply(plane, "crds/webhooks.yaml");
    change_schema(plane, "add", "colour", json!({ "type": "string" }));
    finds(plane, "CRDs", "warning", "webhooks: spec.colour", &[]).await;
    change_schema(plane, "remove", "colour", Value::Null);
    change_schema(plane, "replace", "url/maxLength", json!(4096));
    finds(
        plane,
        "CRDs",
        "warning",
        "differ from this program's: webhooks",
        &[],
    )
    .await;
    change_schema(plane, "replace", "url/maxLength", json!(2048));
    finds_nothing(plane).await;

    let binding = "operator-status.stellage.dev";
    kubectl(
        plane,
        &format!("delete validatingadmissionpolicybinding {binding}"),
        None,
    )
    .unwrap();
    finds(plane, "policies", "failed", binding, &[]).await;
    kubectl(
        plane,
        &format!("delete validatingadmissionpolicy {binding}"),
        None,
    )
    .unwrap();
    finds(plane, "policies", "failed", "missing: operator-status", &[]).await;
    apply(plane, "crds/operator-only.yaml");
    finds_nothing(plane).await;
    // As in an installation with other names.
    for other in [":elsewhere:stellage'", ":stellage-system:cloud'"] {
        let get = format!("get validatingadmissionpolicy {binding} --output json");
        let policy = kubectl(plane, &get, None).unwrap();
        let policy = policy.replace(":stellage-system:stellage'", other);
        kubectl(plane, "replace -f -", Some(&policy)).unwrap();
        let message =
            "do not name all service accounts of the operator, stellage: operator-status.stellage.dev";
        finds(plane, "policies", "failed", message, &[]).await;
        apply(plane, "crds/operator-only.yaml");
        finds_nothing(plane).await;
    }

    kubectl(plane, "delete clusterrolebinding stellage", None).unwrap();
    finds(plane, "rights", "failed", "stellage may not: ", &[]).await;
    apply(plane, "deploy/rbac.yaml");
    finds_nothing(plane).await;
    kubectl(plane, "delete clusterrole stellage-account", None).unwrap();
    finds(plane, "rights", "failed", " secrets in doctor", &[]).await;
    apply(plane, "deploy/rbac.yaml");
    finds_nothing(plane).await;

    // There is no kubelet to run it. Its name is that of a release with the value nameOverride.
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "stuck", "namespace": "stellage-system", "labels": { "app.kubernetes.io/name": "cloud", "app.kubernetes.io/part-of": "stellage" } },
        "spec": {
            "serviceAccountName": "stellage", "automountServiceAccountToken": false,
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{ "name": "stellage", "image": "example.com/stellage:1", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
            } }],
        },
    });
    kubectl(plane, "create -f -", Some(&pod.to_string())).unwrap();
    finds(plane, "pods", "failed", "none of 1 is ready: stuck", &[]).await;
    let delete = "-n stellage-system delete pod stuck --grace-period=0 --force";
    kubectl(plane, delete, None).unwrap();

    let account = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Account", "metadata": { "name": "squatter" },
        "spec": { "email": "s@example.com", "namespace": "default" },
    });
    kubectl(plane, "create -f -", Some(&account.to_string())).unwrap();
    finds(plane, "accounts", "failed", "squatter", &["mail"]).await;
    kubectl(plane, "delete account squatter", None).unwrap();
    finds_nothing(plane).await;
}

/// Rights that one of two service accounts lacks are missed although the other one has them.
async fn take_a_right_from_one_of_two_service_accounts(plane: &ControlPlane) {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/crates/cli/src/doctor/separate_rights.yaml"
    );
    kubectl(plane, &format!("apply -f {file}"), None).unwrap();
    for (role, account) in [
        ("stellage-account-api", "stellage-api"),
        ("stellage-account", "stellage-controller"),
    ] {
        let (role, subject) = (
            format!("--clusterrole={role}"),
            format!("--serviceaccount=stellage-system:{account}"),
        );
        let bind = format!("-n doctor create rolebinding {account} {role} {subject}");
        kubectl(plane, &bind, None).unwrap();
    }
    let look = async || {
        let named = [
            "--service-account=stellage-api",
            "--service-account=stellage-controller",
        ];
        let (_, report) = doctor(plane, &named);
        complaints(&report).remove("rights")
    };
    eventually("rights that suffice", look, Option::is_none).await;
    let delete = "-n stellage-system delete role stellage-prices";
    kubectl(plane, delete, None).unwrap();
    let said = eventually("the missing right", look, Option::is_some).await;
    let (outcome, message) = said.unwrap();
    assert_eq!(outcome, "failed");
    assert!(
        message.starts_with("stellage-api may not: get invoices.stellage.dev in stellage-system, "),
        "{message}"
    );
    assert!(!message.contains("stellage-controller"), "{message}");

    let unbind = "-n doctor delete rolebinding stellage-api stellage-controller";
    kubectl(plane, unbind, None).unwrap();
    kubectl(plane, &format!("delete --ignore-not-found -f {file}"), None).unwrap();
    apply(plane, "deploy/rbac.yaml");
    finds_nothing(plane).await;
}

async fn break_what_is_in_it(plane: &ControlPlane, tenant: &Tenant) {
    tenant
        .apply("broken", |instance| {
            let fault = (FAULT_ANNOTATION.to_owned(), "unreachable".to_owned());
            instance.metadata.annotations = Some([fault].into());
        })
        .await;
    finds(plane, "provider", "warning", "doctor/broken (Provider", &[]).await;
    let mend = json!({ "metadata": { "annotations": { FAULT_ANNOTATION: null } } });
    tenant.merge("broken", &mend).await;
    finds_nothing(plane).await;

    let receiver = Receiver::start(|_| Answer::status(500)).await;
    tenant
        .webhook("dead", &receiver.url("/"), &["instance.stopped"])
        .await;
    let stop = json!({ "spec": { "powerState": "Stopped" } });
    tenant.merge("broken", &stop).await;
    finds(
        plane,
        "webhooks",
        "warning",
        "doctor/dead (RetriesExhausted)",
        &[],
    )
    .await;
    kubectl(plane, "-n doctor delete webhook dead", None).unwrap();
    finds_nothing(plane).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_installation_is_well_and_each_defect_is_named_with_what_to_do() {
    let plane = own_plane().await.expecting_refusals();
    let receivers = receiver_arguments(&plane);
    let mut arguments = vec!["run", "--provisioning-seconds=0", "--retry-schedule", "50ms"];
    arguments.extend(receivers.iter().map(String::as_str));
    let mut operator = Operator::start(&plane, &arguments).await;
    let tenant = Tenant::on(&plane, &operator, "doctor").await;
    finds_nothing(&plane).await;
    let (status, found) = as_nobody(&plane);
    assert_eq!(status, 2, "{found:#?}");
    for name in [
        "CRDs", "policies", "rights", "pods", "leader", "accounts", "mail", "provider", "webhooks",
        "backlog", "invoices", "schemas",
    ] {
        let (outcome, message) = &found[name];
        assert_eq!(outcome, "unknown", "{name}: {message}");
        assert!(message.starts_with("not checked: "), "{name}: {message}");
    }
    break_the_installation(&plane).await;
    take_a_right_from_one_of_two_service_accounts(&plane).await;
    break_what_is_in_it(&plane, &tenant).await;

    operator.stop().await;
    finds(&plane, "leader", "failed", "nobody leads", &[]).await;
    let mut silent: Vec<&str> = arguments.clone();
    silent.retain(|argument| !argument.starts_with("--smtp-url"));
    let mut operator = Operator::start(&plane, &silent).await;
    finds(&plane, "mail", "warning", "no mail server", &["leader"]).await;
    let account: Account = kube::Api::all(tenant.kube.clone()).get("doctor").await.unwrap();
    assert!(conditions::is_true(
        &account.status.unwrap().conditions,
        "MailUnavailable"
    ));
    assert!(operator.metric("stellage_mail_configured", "").await < 0.5);
    operator.stop().await;
    let mut operator = Operator::start(&plane, &arguments).await;
    finds_nothing(&plane).await;
    assert!(operator.metric("stellage_mail_configured", "").await > 0.5);
    tenant
        .webhook("slow", "https://hooks.example.com/", &["backup.failed"])
        .await;
    tenant
        .wait_for_webhook("slow", "its status", |webhook| webhook.status.is_some())
        .await;
    operator.stop().await;

    let webhooks: kube::Api<Webhook> = kube::Api::namespaced(as_operator(&plane).await, "doctor");
    for (status, outcome, message) in [
        (json!({ "dropped": 5 }), "warning", "dropped of doctor/slow"),
        (
            json!({ "dropped": 0, "pending": 60_000 }),
            "warning",
            "60000 deliveries pending",
        ),
        (json!({ "held": 30_000 }), "failed", "30000 held"),
    ] {
        webhooks.merge_status("slow", &json!({ "status": status })).await;
        finds(&plane, "backlog", outcome, message, &["leader"]).await;
    }
    let renewed = Timestamp::now();
    let lease = json!({ "spec": {
        "holderIdentity": "stellage-import-abcd0123", "renewTime": format!("{renewed:.6}"), "leaseDurationSeconds": i32::MAX,
    } })
    .to_string();
    let patch = format!("-n stellage-system patch lease stellage-controller --type=merge --patch {lease}");
    kubectl(&plane, &patch, None).unwrap();
    finds(
        &plane,
        "leader",
        "failed",
        "the import of export abcd0123 is not finished",
        &["backlog"],
    )
    .await;
    let delete = "-n stellage-system delete lease stellage-controller";
    kubectl(&plane, delete, None).unwrap();
    finds(
        &plane,
        "leader",
        "failed",
        "no controller has ever led",
        &["backlog"],
    )
    .await;
    kubectl(&plane, "delete crd apikeys.stellage.dev", None).unwrap();
    finds(
        &plane,
        "CRDs",
        "failed",
        "missing: apikeys",
        &["backlog", "leader"],
    )
    .await;
}

/// The files of an archive.
fn unpack(path: &Path) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(GzDecoder::new(File::open(path).unwrap()));
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (entry.path().unwrap().display().to_string(), text)
    });
    entries.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_has_what_a_bug_report_needs_and_no_secret() {
    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti ada@laptop";
    let plane = own_plane().await;
    let receivers = receiver_arguments(&plane);
    let mut arguments = vec!["run", "--provisioning-seconds=0", "--retry-schedule", "1h"];
    arguments.extend(receivers.iter().map(String::as_str));
    let mut operator = Operator::start(&plane, &arguments).await;
    let tenant = Tenant::with(&plane, &operator, "bundled", |spec| {
        spec.email = "very.private@example.com".to_owned();
        spec.billing = Some(Billing {
            address: vec!["12 Secret Street".to_owned()],
            ..Billing::default()
        });
    })
    .await;
    let receiver = Receiver::start(|_| Answer::status(500).body("a private answer")).await;
    tenant
        .webhook(
            "hook",
            &receiver.url("/path-token?query=token"),
            &["instance.created"],
        )
        .await;
    let created = json!({ "url": receiver.url("/rest-token"), "events": ["instance.created"] });
    let created = tenant
        .call(Method::POST, "/v1/webhooks", Some(&created))
        .await
        .json();
    let secret = created["data"]["secret"].as_str().unwrap().to_owned();
    tenant
        .apply("web", |instance| {
            instance.spec.name = Some("private-name".to_owned());
            instance.spec.ssh_keys = vec![KEY.to_owned()];
            instance.spec.tags = vec!["private-tag".to_owned()];
        })
        .await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    receiver.wait_for(2).await;
    let has_failed = |webhook: &Webhook| {
        webhook
            .status
            .as_ref()
            .is_some_and(|status| status.last_failure.is_some())
    };
    tenant
        .wait_for_webhook("hook", "the failure in its status", has_failed)
        .await;

    let path = plane.folder().join("bundle.tar.gz");
    doctor(&plane, &["--bundle", path.to_str().unwrap()]);
    let files = unpack(&path);
    for name in [
        "report",
        "version",
        "crds",
        "policies",
        "lease",
        "pods",
        "accounts",
        "instances",
        "webhooks",
        "events",
    ] {
        let text = &files[&format!("stellage/{name}.json")];
        let content: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(content["error"].is_null(), "{name}: {content}");
    }
    assert!(files["stellage/instances.json"].contains("\"bundled\""));
    assert!(
        files["stellage/webhooks.json"].contains("\"lastFailure"),
        "{}",
        files["stellage/webhooks.json"]
    );
    assert!(
        files["stellage/events.json"].contains("\"regarding\""),
        "{}",
        files["stellage/events.json"]
    );
    let digest = "-n bundled get apikeys -o jsonpath={.items[0].spec.sha256}";
    let digest = kubectl(&plane, digest, None).unwrap();
    let all = files.into_values().collect::<Vec<_>>().join("\n");
    for private in [
        tenant.key.as_str(),
        secret.as_str(),
        SECRET,
        digest.as_str(),
        "path-token",
        "query=token",
        "rest-token",
        "very.private",
        "12 Secret Street",
        "a private answer",
        "private-name",
        "private-tag",
        &KEY[12..40],
    ] {
        assert!(
            !private.is_empty() && !all.contains(private),
            "the bundle has {private:?}"
        );
    }
    operator.stop().await;
}

#[test]
fn an_api_server_that_cannot_be_reached_is_an_error_with_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let config = json!({
        "clusters": [{ "name": "c", "cluster": { "server": "https://127.0.0.1:1" } }],
        "users": [{ "name": "u", "user": {} }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }], "current-context": "x",
    });
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let output = Command::new(STELLAGE)
        .arg("doctor")
        .env("KUBECONFIG", kubeconfig)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains("cannot reach the API server") && said.contains("kubectl version"),
        "{said}"
    );
}
