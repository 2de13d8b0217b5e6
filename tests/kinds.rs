//! The kinds as the API server has them: accepted without a warning, nothing pruned, and what is refused is refused in words
//! that name the field and the fix.

use std::process::Command;

use control_plane::Identity;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};
use stellage::resources::{Account, ApiKey, Instance};

use crate::support;

const SSH_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti user@example.com";

fn dynamic(client: kube::Client, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("stellage.dev", "v1", kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    }
}

/// Every field of an Instance that there is.
fn whole_instance() -> Value {
    json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance", "metadata": { "name": "whole" },
        "spec": {
            "name": "Web.1", "plan": "business", "region": "de-fra-1", "image": "ubuntu-24.04",
            "sshKeys": [SSH_KEY], "privateNetwork": "pn-abc1", "backupEnabled": true, "monitoringEnabled": true,
            "tags": ["env:prod", "a"], "powerState": "Stopped", "planChange": "OnReboot",
            "startRequestedAt": "2026-11-21T10:00:00Z", "powerOffRequestedAt": "2026-11-21T10:00:01.5Z",
            "rebootRequestedAt": "2026-11-21T10:00:02+01:00", "rebuildRequestedAt": "2026-11-21T10:00:03Z",
            "deletionProtection": false,
        },
    })
}

fn whole_instance_status() -> Value {
    json!({
        "id": "i-abcdefgh01234567", "state": "resizing", "observedGeneration": 3,
        "ipAddress": "198.18.0.1", "ipv6Address": "2001:db8::1", "plan": "starter", "image": "ubuntu-24.04",
        "diskSizeGB": 40, "power": "Running", "powerState": "Running",
        "operation": { "kind": "Resize", "startedAt": "2026-11-21T10:00:00Z", "endsIn": "Running", "plan": "business", "image": "ubuntu-24.04", "forced": true },
        "startRequestedAt": "2026-11-21T10:00:00Z", "powerOffRequestedAt": "2026-11-21T10:00:00Z",
        "rebootRequestedAt": "2026-11-21T10:00:00Z", "rebuildRequestedAt": "2026-11-21T10:00:00Z",
        "provisionedAt": "2026-11-21T10:00:00Z", "startedAt": "2026-11-21T10:00:00Z", "updatedAt": "2026-11-21T10:00:00Z",
        "providerState": { "any": "thing" },
        "conditions": [condition()],
    })
}

fn condition() -> Value {
    json!({
        "type": "Ready", "status": "False", "reason": "Because", "message": "why",
        "observedGeneration": 3, "lastTransitionTime": "2026-11-21T10:00:00Z",
    })
}

/// The names of all fields of a schema, at the first level.
fn fields(
    crd: &k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    part: &str,
) -> Vec<String> {
    let schema = crd.spec.versions[0]
        .schema
        .as_ref()
        .unwrap()
        .open_api_v3_schema
        .as_ref()
        .unwrap();
    let part = schema.properties.as_ref().unwrap().get(part);
    part.and_then(|part| part.properties.as_ref())
        .into_iter()
        .flat_map(|properties| properties.keys().cloned())
        .collect()
}

fn crd(
    kind: &str,
) -> k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition {
    stellage::resources::crds()
        .into_iter()
        .find(|crd| crd.spec.names.kind == kind)
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_takes_the_crds_without_a_warning() {
    let plane = support::shared().await.plane;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/crds");
    let output = Command::new(plane.assets().kubectl())
        .args([
            "apply",
            "--server-side",
            "--force-conflicts",
            "--warnings-as-errors",
            "--dry-run=server",
            "-f",
            folder,
        ])
        .env("KUBECONFIG", plane.kubeconfig(Identity::Admin))
        .output()
        .unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaints.is_empty(), "{complaints}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_survives_a_round_trip_through_the_api_server() {
    let plane = support::shared().await.plane;
    let client = plane.client(Identity::Admin).await.unwrap();
    // No Account has this namespace, so the operator leaves the objects alone but for one condition.
    support::kubectl(plane, &["create", "namespace", "kinds-round-trip"], None).unwrap();
    let key = json!({
        "apiVersion": "stellage.dev/v1", "kind": "ApiKey", "metadata": { "name": "whole" },
        "spec": { "sha256": "0".repeat(64), "scope": "read", "expiresAt": "2027-01-31T00:00:00Z", "lastCharacters": "abcd" },
    });
    let account = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Account", "metadata": { "name": "kinds-whole" },
        "spec": { "email": "ada@example.com", "namespace": "kinds-round-trip", "instanceQuota": 0, "webhookQuota": 3, "rateLimitPerHour": 100 },
    });
    let account_status = json!({
        "id": "usr_a", "namespace": "x", "observedGeneration": 3, "conditions": [condition()],
    });
    let whole = [
        (
            whole_instance(),
            Some(whole_instance_status()),
            Some("kinds-round-trip"),
        ),
        (key, None, Some("kinds-round-trip")),
        (account, Some(account_status), None),
    ];
    for (object, status, namespace) in whole {
        let kind = object["kind"].as_str().unwrap().to_owned();
        let crd = crd(&kind);
        for field in fields(&crd, "spec") {
            assert!(
                object["spec"].get(&field).is_some(),
                "this test leaves out {kind}.spec.{field}"
            );
        }
        let api = dynamic(client.clone(), &kind, namespace);
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let made: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        let back = api.create(&PostParams::default(), &made).await.unwrap();
        assert_eq!(back.data["spec"], object["spec"], "{kind}");
        let typed: Value = match kind.as_str() {
            "Instance" => spec_of(&serde_json::from_value::<Instance>(object.clone()).unwrap()),
            "ApiKey" => spec_of(&serde_json::from_value::<ApiKey>(object.clone()).unwrap()),
            _ => spec_of(&serde_json::from_value::<Account>(object.clone()).unwrap()),
        };
        assert_eq!(typed, object["spec"], "{kind}");
        if let Some(status) = status {
            for field in fields(&crd, "status") {
                assert!(
                    status.get(&field).is_some(),
                    "this test leaves out {kind}.status.{field}"
                );
            }
            let patch = json!({ "status": status });
            let back = api
                .patch_status(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await
                .unwrap();
            for (field, value) in status
                .as_object()
                .unwrap()
                .iter()
                .filter(|(field, _)| *field != "conditions")
            {
                assert_eq!(&back.data["status"][field], value, "{kind}.status.{field}");
            }
            let kept = back.data["status"]["conditions"].as_array().unwrap();
            assert!(kept.contains(&condition()), "{kept:?}");
        }
        api.delete(&name, &DeleteParams::default()).await.unwrap();
    }
}

fn spec_of(object: &impl serde::Serialize) -> Value {
    serde_json::to_value(object).unwrap()["spec"].clone()
}

/// What the API server says to a manifest.
fn refusal(manifest: &Value) -> String {
    let plane = control_plane_of_tests();
    support::kubectl(
        plane,
        &["create", "--dry-run=server", "-f", "-"],
        Some(&manifest.to_string()),
    )
    .unwrap_err()
}

fn control_plane_of_tests() -> &'static control_plane::ControlPlane {
    tokio::task::block_in_place(|| {
        tokio::runtime::Handle::current().block_on(async { support::shared().await.plane })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_manifest_is_refused_in_words_that_name_the_field_and_the_fix() {
    support::shared().await;
    let instance = |field: &str, value: Value| {
        let mut manifest = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Instance", "metadata": { "name": "bad", "namespace": "default" },
            "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
        });
        manifest["spec"][field] = value;
        manifest
    };
    let account = |name: &str, spec: Value| json!({ "apiVersion": "stellage.dev/v1", "kind": "Account", "metadata": { "name": name }, "spec": spec });
    let email = "ada@example.com";
    let cases = [
        (
            instance("plan", json!("huge")),
            "spec.plan",
            "supported values: \"starter\", \"business\", \"performance\", \"enterprise\"",
        ),
        (instance("plan", Value::Null), "spec.plan", "Required value"),
        (
            instance("region", json!("Paris")),
            "spec.region",
            "such as fr-par-1",
        ),
        (
            instance("image", json!("Debian 13")),
            "spec.image",
            "such as debian-13",
        ),
        (
            instance("name", json!("-x")),
            "spec.name",
            "letter or digit at both ends",
        ),
        (
            instance("tags", json!(["ok", "not ok"])),
            "spec.tags[1]",
            "must be 1 to 63 letters",
        ),
        (
            instance("tags", json!(vec!["t"; 51])),
            "spec.tags",
            "must have at most 50 items",
        ),
        (
            instance("sshKeys", json!(["ssh-ed25519"])),
            "spec.sshKeys[0]",
            "such as 'ssh-ed25519 AAAA",
        ),
        (
            instance("sshKeys", json!(["-----BEGIN OPENSSH PRIVATE KEY-----"])),
            "spec.sshKeys[0]",
            "this is a private one",
        ),
        (
            instance("privateNetwork", json!("net1")),
            "spec.privateNetwork",
            "pn- followed by",
        ),
        (
            instance("rebootRequestedAt", json!("now")),
            "spec.rebootRequestedAt",
            "such as 2026-11-21T10:00:00Z",
        ),
        (
            instance("powerState", json!("On")),
            "spec.powerState",
            "supported values: \"Running\", \"Stopped\"",
        ),
        (
            account("bad", json!({ "email": "nobody" })),
            "spec.email",
            "such as ada@example.com",
        ),
        (
            account("bad", json!({ "email": email, "namespace": "Shop" })),
            "spec.namespace",
            "must be a namespace name",
        ),
        (
            account("bad", json!({ "email": email, "namespace": "kube-public" })),
            "spec.namespace",
            "must not be a kube-* namespace",
        ),
        (
            account("kube-mine", json!({ "email": email })),
            "metadata.name",
            "choose another name or set spec.namespace",
        ),
        (
            account("a.b", json!({ "email": email })),
            "metadata.name",
            "must not have dots",
        ),
        (
            account(&"a".repeat(64), json!({ "email": email })),
            "metadata.name",
            "at most 63 characters",
        ),
        (
            account("bad", json!({ "email": email, "instanceQuota": -1 })),
            "spec.instanceQuota",
            "greater than or equal to 0",
        ),
    ];
    for (manifest, field, fix) in cases {
        let words = refusal(&manifest);
        assert!(words.contains(field) && words.contains(fix), "{field}: {words}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_immutable_says_what_to_do_instead() {
    let plane = support::shared().await.plane;
    support::kubectl(plane, &["create", "namespace", "kinds-immutable"], None).unwrap();
    let manifest = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance", "metadata": { "name": "fixed", "namespace": "kinds-immutable" },
        "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
    });
    support::kubectl(plane, &["create", "-f", "-"], Some(&manifest.to_string())).unwrap();
    for (patch, field) in [
        (json!({ "region": "de-fra-1" }), "spec.region"),
        (json!({ "sshKeys": [SSH_KEY] }), "spec.sshKeys"),
        (json!({ "privateNetwork": "pn-abc" }), "spec.privateNetwork"),
    ] {
        let patch = json!({ "spec": patch }).to_string();
        let words = support::kubectl(
            plane,
            &[
                "patch",
                "instance",
                "fixed",
                "-n",
                "kinds-immutable",
                "--type=merge",
                "-p",
                &patch,
            ],
            None,
        )
        .unwrap_err();
        assert!(
            words.contains(field)
                && words.contains("is immutable")
                && words.contains("create another instance"),
            "{words}"
        );
    }
    support::kubectl(
        plane,
        &[
            "delete",
            "instance",
            "fixed",
            "-n",
            "kinds-immutable",
            "--wait=false",
        ],
        None,
    )
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_protection_holds_for_kubectl() {
    let plane = support::shared().await.plane;
    support::kubectl(plane, &["create", "namespace", "kinds-protected"], None).unwrap();
    let manifest = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance", "metadata": { "name": "precious", "namespace": "kinds-protected" },
        "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13", "deletionProtection": true },
    });
    support::kubectl(plane, &["create", "-f", "-"], Some(&manifest.to_string())).unwrap();
    let delete = [
        "delete",
        "instance",
        "precious",
        "-n",
        "kinds-protected",
        "--wait=false",
    ];
    let words = support::kubectl(plane, &delete, None).unwrap_err();
    assert!(
        words.contains(
            "spec.deletionProtection is true on instance precious: set it to false before deleting"
        ),
        "{words}"
    );
    let patch = r#"{"spec":{"deletionProtection":false}}"#;
    support::kubectl(
        plane,
        &[
            "patch",
            "instance",
            "precious",
            "-n",
            "kinds-protected",
            "--type=merge",
            "-p",
            patch,
        ],
        None,
    )
    .unwrap();
    support::kubectl(plane, &delete, None).unwrap();
}
