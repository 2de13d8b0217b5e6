//! The kinds in the API server: it accepts them without warnings and prunes nothing, and its rejections name the field and the
//! fix.

use std::process::Command;

use control_plane::Identity;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use resources::{
    Account, ApiKey, Backup, Delivery, Instance, Invoice, InvoiceNumber, InvoicePage, PrivateNetwork, Webhook,
};
use serde_json::{Value, json};

use crate::support::{self, Change as _};

const SSH_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti user@example.com";

fn dynamic(client: kube::Client, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("stellage.dev", "v1", kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    }
}

/// An Instance with all its fields.
fn whole_instance() -> Value {
    json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance", "metadata": { "name": "whole" },
        "spec": {
            "name": "Web.1", "plan": "business", "region": "de-fra-1", "image": "ubuntu-24.04",
            "sshKeys": [SSH_KEY], "userDataRef": { "name": "boot", "key": "user-data" }, "privateNetwork": "pn-abc1", "backupEnabled": true, "monitoringEnabled": true,
            "tags": ["env:prod", "a"], "powerState": "Stopped", "planOnReboot": "business",
            "startRequestedAt": "2026-11-21T10:00:00Z", "powerOffRequestedAt": "2026-11-21T10:00:01.5Z",
            "rebootRequestedAt": "2026-11-21T10:00:02+01:00", "rebuildRequestedAt": "2026-11-21T10:00:03Z",
            "restoreFrom": "before", "deletionProtection": false,
        },
    })
}

fn whole_instance_status() -> Value {
    json!({
        "id": "i-abcdefgh01234567", "state": "resizing", "observedGeneration": 3,
        "ipAddress": "198.18.0.1", "ipv6Address": "2001:db8::1", "privateIPAddress": "10.128.4.7", "plan": "starter", "image": "ubuntu-24.04",
        "diskSizeGB": 40, "power": "Running", "powerState": "Running",
        "operation": { "kind": "Resize", "startedAt": "2026-11-21T10:00:00Z", "endsIn": "Running", "plan": "business", "image": "ubuntu-24.04", "restoreFrom": "before", "forced": true, "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" },
        "startRequestedAt": "2026-11-21T10:00:00Z", "powerOffRequestedAt": "2026-11-21T10:00:01.5Z",
        "rebootRequestedAt": "2026-11-21T10:00:02+01:00", "rebuildRequestedAt": "2026-11-21T10:00:03Z",
        "restoredFrom": "before", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "lastRequestedBy": "key-5m2k8x1t", "refusedPlan": "enterprise", "suspended": true,
        "refusedInstallation": { "image": "debian-13", "restoreFrom": "gone", "rebuildRequestedAt": "2026-11-21T10:00:00Z" },
        "nextBackupAt": "2026-11-21T10:00:00Z",
        "metering": { "since": "2026-11-21T10:00:00Z", "changes": [{ "hour": 0, "plan": "starter", "then": "business" }] },
        "provisionedAt": "2026-11-21T10:00:00Z", "startedAt": "2026-11-21T10:00:00Z", "updatedAt": "2026-11-21T10:00:00Z",
        "announcedPower": "Running", "eventSequence": 7,
        "alerts": [{
            "id": "alr_a", "rule": "cpu_usage_high", "phase": "Ended", "metric": "cpu_usage", "threshold": 90.5, "value": 95.25,
            "since": "2026-11-21T10:00:00Z", "firedAt": "2026-11-21T10:05:00Z", "endedAt": "2026-11-21T10:10:00Z",
        }],
        "outbox": [{ "id": "evt_a", "type": "instance.started", "sequence": 7, "createdAt": "2026-11-21T10:00:00Z", "body": "{}", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" }],
        "providerState": { "any": "thing" },
        "conditions": [condition()],
    })
}

/// A PrivateNetwork with all its fields.
fn whole_network() -> Value {
    json!({
        "apiVersion": "stellage.dev/v1", "kind": "PrivateNetwork", "metadata": { "name": "pn-whole" },
        "spec": { "name": "backend", "region": "fr-par-1", "prefix": "10.128.4.0/24" },
    })
}

/// A Backup with all its fields.
fn whole_backup() -> Value {
    json!({
        "apiVersion": "stellage.dev/v1", "kind": "Backup", "metadata": { "name": "whole" },
        "spec": {
            "instance": "web", "instanceUID": "u", "name": "nightly", "scheduledFor": "2026-11-21T10:00:00Z", "retry": true,
        },
    })
}

fn whole_backup_status() -> Value {
    json!({
        "id": "bkp_abcdefgh01234567", "phase": "Failed", "instanceDeleted": true, "dataLeft": true, "startedAt": "2026-11-21T10:00:00Z",
        "source": {
            "id": "i-abcdefgh01234567", "uid": "u", "name": "web", "region": "fr-par-1", "plan": "starter",
            "image": "debian-13", "diskSizeGB": 40, "ipAddress": "198.18.0.1",
        },
        "completedAt": "2026-11-21T10:00:00Z", "sizeGB": 12.4, "error": { "code": "timeout", "message": "why" },
        "retried": true, "eventSequence": 1,
        "outbox": [{ "id": "evt_a", "type": "backup.failed", "sequence": 1, "createdAt": "2026-11-21T10:00:00Z", "body": "{}", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" }],
        "providerState": { "any": "thing" },
        "conditions": [condition()],
    })
}

fn whole_webhook() -> Value {
    json!({
        "apiVersion": "stellage.dev/v1", "kind": "Webhook", "metadata": { "name": "whole" },
        "spec": {
            "url": "https://hooks.example.com:8443/in?a=b", "events": ["instance.created", "invoice.created"],
            "secretRef": { "name": "signing", "key": "key" }, "description": "orders", "active": false, "enableRequestedAt": "2026-11-21T10:00:00.5Z",
        },
    })
}

fn whole_webhook_status() -> Value {
    json!({
        "id": "wh_abcdefgh01234567", "observedGeneration": 3, "pending": 1, "held": 2, "delivered": 3, "failedAttempts": 4,
        "dropped": 5, "lastSuccessAt": "2026-11-21T10:00:00Z", "lastFailureAt": "2026-11-21T10:00:00Z", "lastFailure": "no",
        "previousSecretExpiresAt": "2026-11-21T10:00:00Z",
        "notifiedAt": "2026-11-21T10:00:00Z",
        "backlog": {
            "since": "2026-11-21T10:00:00Z", "droppedBefore": 2, "notifiedAt": "2026-11-21T10:00:00Z",
            "notificationError": "no",
        },
        "unnotified": {
            "at": "2026-11-21T10:00:00Z", "reason": "Gone", "message": "why", "delivery": "dlv-abcdefgh01234567",
            "eventId": "evt_a", "eventType": "instance.created", "attempts": 6, "lastStatusCode": 500, "error": "no",
            "generation": 3, "notifiedAt": "2026-11-21T10:00:00Z", "notificationError": "no",
        },
        "disabled": {
            "at": "2026-11-21T10:00:00Z", "reason": "Gone", "message": "why", "delivery": "dlv-abcdefgh01234567",
            "eventId": "evt_a", "eventType": "instance.created", "attempts": 6, "lastStatusCode": 500, "error": "no",
            "generation": 3, "notifiedAt": "2026-11-21T10:00:00Z", "notificationError": "no",
        },
        "conditions": [condition()],
    })
}

/// An Invoice with all its fields. Its status is an ordinary field, set in the same write.
fn whole_invoice() -> Value {
    json!({
        "apiVersion": "stellage.dev/v1", "kind": "Invoice", "metadata": { "name": "inv-abcdefgh01234567" },
        "spec": {
            "account": "u", "accountName": "ada", "accountNamespace": "ada", "type": "CreditNote", "currency": "EUR",
            "period": { "from": "2026-11-01T00:00:00Z", "to": "2026-12-01T00:00:00Z" },
            "credit": { "invoice": "inv-abcdefgh01234568", "number": "2026-000001", "amountCents": 5, "reason": "outage" },
            "entries": entries(), "lines": lines(),
        },
        "status": {
            "id": "inv_abcdefgh01234567", "phase": "Issued", "number": "2026-000001", "issuedAt": "2026-12-01T00:00:05Z",
            "dueDate": "2026-12-15", "amount": "5.95 EUR", "netCents": 500, "taxCents": 95, "taxRate": "19.00", "linesCount": 1,
            "pageLines": [1, 0], "seller": party(), "buyer": party(), "taxNote": "reverse charge", "correctedOn": "2026-12-01",
            "held": "no seller", "fullAt": "2026-11-21T10:00:00Z", "nothingUntil": "2026-11-21T10:00:00Z", "eventSequence": 1,
            "outbox": [{ "id": "evt_a", "type": "invoice.created", "sequence": 1, "createdAt": "2026-11-21T10:00:00Z", "body": "{}", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" }],
        },
    })
}

/// A seller or a buyer with all its fields.
fn party() -> Value {
    json!({
        "name": "Ada Ltd", "address": ["1 Main Street"], "country": "DE", "vatId": "DE123456789", "email": "ada@example.com",
        "reference": "PO 4711",
    })
}

/// An InvoiceNumber with all its fields.
fn whole_invoice_number() -> Value {
    json!({
        "apiVersion": "stellage.dev/v1", "kind": "InvoiceNumber",
        "metadata": { "name": "kinds-1999-000001", "labels": { "stellage.dev/row": "KINDS-1999" } },
        "spec": {
            "number": "KINDS-1999-000001", "invoice": "inv-abcdefgh01234567", "account": "u", "accountName": "ada",
        },
    })
}

/// An InvoicePage with all its fields.
fn whole_invoice_page() -> Value {
    json!({
        "apiVersion": "stellage.dev/v1", "kind": "InvoicePage", "metadata": { "name": "inv-abcdefgh01234567-00001" },
        "spec": {
            "account": "u", "invoice": "inv-abcdefgh01234567", "number": 1,
            "entries": entries(), "lines": lines(),
        },
    })
}

/// What was metered, with all its fields.
fn entries() -> Value {
    json!([{
        "uid": "i", "instanceId": "i-abcdefgh01234567", "name": "web", "since": "2026-11-21T10:00:00Z",
        "changes": [{ "hour": 0, "plan": "starter", "then": "business" }],
        "backups": [{
            "uid": "b", "since": "2026-11-21T10:00:00Z", "megabytes": 12_400, "ended": "2026-11-21T10:00:00Z",
            "billedUntil": "2026-11-21T10:00:00Z", "billed": 3, "capCents": 4,
        }],
        "ended": "2026-11-21T10:00:00Z", "billedUntil": "2026-11-21T10:00:00Z", "billedCents": 1, "capCents": 2, "openHour": { "hour": 5, "unitPrice": 745 },
    }])
}

/// The lines of an invoice, with all their fields.
fn lines() -> Value {
    json!([{
        "instanceId": "i-abcdefgh01234567", "name": "web",
        "hours": [{ "plan": "starter", "thousandths": 720_000, "unitPrice": 745, "monthCents": 500 }], "reduction": 36400, "monthPrice": 500, "billedBefore": 1, "amountCents": 500,
    }])
}

/// A Delivery with all its fields. Its status is an ordinary field, set in the same write.
fn whole_delivery() -> Value {
    json!({
        "apiVersion": "stellage.dev/v1", "kind": "Delivery",
        "metadata": { "name": "dlv-abcdefgh01234567", "labels": { "stellage.dev/finished": "true" } },
        "spec": {
            "webhook": "whole", "eventId": "evt_a", "eventType": "alert.triggered", "eventCreatedAt": "2026-11-21T10:00:00Z",
            "sequence": 7, "subject": "uid", "body": "{\"id\":\"evt_a\"}", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "test": true,
        },
        "status": {
            "phase": "Exhausted", "attemptCount": 6, "retries": 5, "nextAttemptAt": "2026-11-21T10:00:00Z",
            "attemptRequestedAt": "2026-11-21T10:00:00Z", "lastStatusCode": 503, "lastError": "no",
            "attempts": [{ "at": "2026-11-21T10:00:00.123456Z", "durationMs": 7, "statusCode": 503, "error": "no", "response": "x", "url": "https://example.com/" }],
        },
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
    resources::crds()
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

/// The paths of the fields that `kubectl explain --recursive` prints: an indentation of two for each level.
fn explained(text: &str) -> Vec<String> {
    let (mut path, mut paths) = (Vec::new(), Vec::new());
    for line in text.lines().filter(|line| line.contains("\t<")) {
        let name = line.trim_start();
        let level = (line.len() - name.len()) / 2;
        path.truncate(level.saturating_sub(1));
        path.push(name.split('\t').next().unwrap());
        paths.push(path.join("."));
    }
    paths
}

/// The paths of the fields of a schema.
fn paths(schema: &Value, path: &str, found: &mut Vec<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}{name}");
        found.push(path.clone());
        let path = format!("{path}.");
        paths(field, &path, found);
        paths(&field["items"], &path, found);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_explains_every_field_of_every_kind() {
    let plane = support::shared().await.plane;
    for crd in resources::crds() {
        let schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap();
        let schema = &schema["openAPIV3Schema"]["properties"];
        for part in ["spec", "status"] {
            let mut fields = Vec::new();
            paths(&schema[part], "", &mut fields);
            if fields.is_empty() {
                continue;
            }
            let resource = format!("{}.{part}", crd.spec.names.plural);
            let text = support::kubectl(plane, &format!("explain {resource} --recursive"), None).unwrap();
            fields.sort();
            let mut shown = explained(&text);
            shown.sort();
            assert_eq!(shown, fields, "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_survives_a_round_trip_through_the_api_server() {
    let plane = support::shared().await.plane;
    let client = plane.client(Identity::Admin).await.unwrap();
    // Only the operator writes statuses, Deliveries and scheduled Backups.
    let operator = support::as_operator(plane).await;
    // No Account owns this namespace, so the operator ignores the objects, except for one condition.
    support::kubectl(plane, "create namespace kinds-round-trip", None).unwrap();
    let key = json!({
        "apiVersion": "stellage.dev/v1", "kind": "ApiKey", "metadata": { "name": "whole" },
        "spec": { "sha256": "0".repeat(64), "name": "dashboard", "scope": "read", "expiresAt": "2027-01-31T00:00:00Z", "lastCharacters": "abcd" },
    });
    let made_key = json!({
        "apiVersion": "stellage.dev/v1", "kind": "ApiKey", "metadata": { "name": "made" },
        "spec": { "writeSecretRef": { "name": "a", "key": "b" }, "name": "dashboard", "scope": "read", "expiresAt": "2027-01-31T00:00:00Z", "lastCharacters": "abcd" },
    });
    let key_status = json!({
        "lastUsedOn": "2026-11-23", "sha256": "0".repeat(64), "lastCharacters": "abcd", "conditions": [condition()],
    });
    let account = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Account", "metadata": { "name": "kinds-whole" },
        "spec": { "email": "ada@example.com", "namespace": "kinds-round-trip", "instanceQuota": 0, "webhookQuota": 3, "vcpuQuota": 4, "memoryQuotaGB": 8, "diskQuotaGB": 160, "suspended": { "reason": "overdue", "servers": "Stop" }, "rateLimitPerHour": 100, "billing": {
                "name": "Ada Ltd", "address": ["1 Main Street"], "country": "FR", "vatId": "FR12345678901", "reference": "PO 4711",
                "taxRate": "7.70", "taxNote": "reverse charge",
            }, "invoicesClosedUntil": "2026-11-21T10:00:00Z" },
    });
    let account_status = json!({
        "id": "usr_a", "installation": "eu1", "namespace": "x", "observedGeneration": 3, "notifiedAt": ["2026-11-21T10:00:00Z"], "conditions": [condition()],
    });
    let whole = [
        (
            whole_instance(),
            Some(whole_instance_status()),
            Some("kinds-round-trip"),
        ),
        (
            whole_network(),
            Some(
                json!({ "id": "pn-abcdefgh01234567", "prefix": "10.128.4.0/24", "conditions": [condition()] }),
            ),
            Some("kinds-round-trip"),
        ),
        (
            whole_backup(),
            Some(whole_backup_status()),
            Some("kinds-round-trip"),
        ),
        (key, Some(key_status.clone()), Some("kinds-round-trip")),
        (made_key, Some(key_status), Some("kinds-round-trip")),
        (
            whole_webhook(),
            Some(whole_webhook_status()),
            Some("kinds-round-trip"),
        ),
        (whole_delivery(), None, Some("kinds-round-trip")),
        (whole_invoice(), None, Some("kinds-round-trip")),
        (whole_invoice_page(), None, Some("kinds-round-trip")),
        (whole_invoice_number(), None, None),
        (account, Some(account_status), None),
    ];
    for (object, status, namespace) in whole {
        let kind = object["kind"].as_str().unwrap().to_owned();
        let crd = crd(&kind);
        for field in fields(&crd, "spec") {
            // A key has one or the other.
            let other = match field.as_str() {
                "sha256" => "writeSecretRef",
                "writeSecretRef" => "sha256",
                _ => &field,
            };
            assert!(
                object["spec"].get(&field).or(object["spec"].get(other)).is_some(),
                "this test leaves out {kind}.spec.{field}"
            );
        }
        let api = dynamic(client.clone(), &kind, namespace);
        let operators = dynamic(operator.clone(), &kind, namespace);
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let made: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        let by_operator =
            ["Backup", "Delivery", "Invoice", "InvoicePage", "InvoiceNumber"].contains(&kind.as_str());
        let creating = if by_operator { &operators } else { &api };
        let back = creating.create(&PostParams::default(), &made).await.unwrap();
        assert_eq!(back.data["spec"], object["spec"], "{kind}");
        if ["Delivery", "Invoice"].contains(&kind.as_str()) {
            for field in fields(&crd, "status") {
                assert!(
                    object["status"].get(&field).is_some(),
                    "this test leaves out {kind}.status.{field}"
                );
            }
            assert_eq!(back.data["status"], object["status"], "written with the rest");
        }
        let typed: Value = match kind.as_str() {
            "Instance" => spec_of(&serde_json::from_value::<Instance>(object.clone()).unwrap()),
            "PrivateNetwork" => spec_of(&serde_json::from_value::<PrivateNetwork>(object.clone()).unwrap()),
            "Backup" => spec_of(&serde_json::from_value::<Backup>(object.clone()).unwrap()),
            "Webhook" => spec_of(&serde_json::from_value::<Webhook>(object.clone()).unwrap()),
            "Delivery" => spec_of(&serde_json::from_value::<Delivery>(object.clone()).unwrap()),
            "Invoice" => spec_of(&serde_json::from_value::<Invoice>(object.clone()).unwrap()),
            "InvoicePage" => spec_of(&serde_json::from_value::<InvoicePage>(object.clone()).unwrap()),
            "InvoiceNumber" => spec_of(&serde_json::from_value::<InvoiceNumber>(object.clone()).unwrap()),
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
            let back = operators.merge_status(&name, &patch).await;
            for (field, value) in status
                .as_object()
                .unwrap()
                .iter()
                .filter(|(field, _)| *field != "conditions")
            {
                assert_eq!(&back.data["status"][field], value, "{kind}.status.{field}");
            }
            if status.get("conditions").is_some() {
                let kept = back.data["status"]["conditions"].as_array().unwrap();
                assert!(kept.contains(&condition()), "{kept:?}");
            }
        }
        let deleting = if kind.starts_with("Invoice") {
            &operators
        } else {
            &api
        };
        let deleted = deleting.delete(&name, &DeleteParams::default()).await;
        // A number is never deleted.
        assert_eq!(deleted.is_err(), kind == "InvoiceNumber", "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invoices_are_written_and_deleted_by_the_operator_alone() {
    let plane = support::shared().await.plane;
    let (admin, operator) = (
        plane.client(Identity::Admin).await.unwrap(),
        plane.client(Identity::Operator).await.unwrap(),
    );
    for object in [whole_invoice(), whole_invoice_page()] {
        let kind = object["kind"].as_str().unwrap().to_owned();
        let admins = dynamic(admin.clone(), &kind, Some("stellage-system"));
        let operators = dynamic(operator.clone(), &kind, Some("stellage-system"));
        let made: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        let refused = |outcome: Result<(), kube::Error>| {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("by the operator alone"), "{kind}: {error}");
        };
        refused(admins.create(&PostParams::default(), &made).await.map(drop));
        operators.create(&PostParams::default(), &made).await.unwrap();
        let name = object["metadata"]["name"].as_str().unwrap();
        let change = json!({ "spec": { "account": "other" } });
        let patch = Patch::Merge(&change);
        refused(
            admins
                .patch(name, &PatchParams::default(), &patch)
                .await
                .map(drop),
        );
        refused(admins.delete(name, &DeleteParams::default()).await.map(drop));
        let annotate = json!({ "metadata": { "annotations": { "example.com/note": "mine" } } });
        admins.merge(name, &annotate).await;
    }
    let table = support::kubectl(plane, "-n stellage-system get inv inv-abcdefgh01234567", None).unwrap();
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    let shown = [
        "inv-abcdefgh01234567",
        "ada",
        "CreditNote",
        "2026-000001",
        "2026-11-01T00:00:00Z",
        "2026-12-01T00:00:00Z",
        "5.95",
        "EUR",
        "Issued",
    ];
    assert_eq!(row[..9], shown, "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issued_invoice_and_a_number_never_change_not_even_for_the_operator() {
    let plane = support::shared().await.plane;
    // With the right to patch, too.
    let operator = support::as_operator(plane).await;
    let admin = plane.client(Identity::Admin).await.unwrap();
    // Where the operator may write them.
    let invoices = dynamic(operator.clone(), "Invoice", Some("stellage-system"));
    let mut issued = whole_invoice();
    issued["metadata"]["name"] = json!("inv-abcdefgh01234560");
    issued["spec"]["entries"] = json!([]);
    issued["spec"]["type"] = json!("Invoice");
    let made: DynamicObject = serde_json::from_value(issued.clone()).unwrap();
    let name = made.metadata.name.clone().unwrap();
    invoices.create(&PostParams::default(), &made).await.unwrap();
    let patch = async |change: Value| {
        let patch = Patch::Merge(change);
        invoices.patch(&name, &PatchParams::default(), &patch).await
    };
    for change in [
        json!({ "spec": { "lines": [] } }),
        json!({ "spec": { "currency": "USD" } }),
        json!({ "status": { "phase": "Open" } }),
        json!({ "status": { "number": "2026-000002" } }),
        json!({ "status": { "taxCents": null } }),
        json!({ "status": { "buyer": { "name": "Mallory Ltd" } } }),
        json!({ "status": null }),
    ] {
        let error = patch(change.clone()).await.unwrap_err().to_string();
        assert!(
            error.contains("an issued invoice never changes"),
            "{change}: {error}"
        );
    }
    // Its event is settled, and it is marked.
    patch(
        json!({ "status": { "outbox": null }, "metadata": { "labels": { "stellage.dev/settled": "true" } } }),
    )
    .await
    .unwrap();

    let numbers = dynamic(operator, "InvoiceNumber", None);
    let mut number = whole_invoice_number();
    number["metadata"]["name"] = json!("kinds-1999-000002");
    number["spec"]["number"] = json!("KINDS-1999-000002");
    let number: DynamicObject = serde_json::from_value(number).unwrap();
    let by_admin = dynamic(admin.clone(), "InvoiceNumber", None);
    let error = by_admin
        .create(&PostParams::default(), &number)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("created by the operator alone"),
        "{error}"
    );
    numbers.create(&PostParams::default(), &number).await.unwrap();
    let never = |error: kube::Error| {
        let error = error.to_string();
        assert!(error.contains("is never changed or deleted"), "{error}");
    };
    let change = json!({ "spec": { "invoice": "inv-zzzzzzzz01234567" } });
    for api in [&numbers, &by_admin] {
        let change = Patch::Merge(&change);
        never(
            api.patch("kinds-1999-000002", &PatchParams::default(), &change)
                .await
                .unwrap_err(),
        );
        never(
            api.delete("kinds-1999-000002", &DeleteParams::default())
                .await
                .unwrap_err(),
        );
    }

    // An administrator asks for a credit note, and for nothing else.
    support::kubectl(plane, "create namespace kinds-issued", None).unwrap();
    let by_admin = dynamic(admin, "Invoice", Some("kinds-issued"));
    let mut asked = whole_invoice();
    asked["metadata"]["name"] = json!("inv-cbcdefgh01234569");
    let issue = serde_json::from_value(asked.clone()).unwrap();
    assert!(
        by_admin.create(&PostParams::default(), &issue).await.is_err(),
        "issued by hand"
    );
    asked.as_object_mut().unwrap().remove("status");
    let mut bill = asked.clone();
    bill["spec"]["type"] = json!("Invoice");
    let bill = serde_json::from_value(bill).unwrap();
    assert!(
        by_admin.create(&PostParams::default(), &bill).await.is_err(),
        "billed by hand"
    );
    (asked["spec"]["entries"], asked["spec"]["lines"]) = (Value::Null, Value::Null);
    asked["metadata"]["labels"] = json!({ "stellage.dev/account-origin": "u" });
    let mut foreign = asked.clone();
    foreign["metadata"]["labels"] = json!({ "stellage.dev/account-origin": "other" });
    let mut oddly_named = asked.clone();
    oddly_named["metadata"]["name"] = json!("mine");
    let mut like_an_invoice = asked.clone();
    like_an_invoice["metadata"]["name"] = json!("inv-ibcdefgh01234569");
    for wrong in [foreign, oddly_named, like_an_invoice] {
        let wrong = serde_json::from_value(wrong).unwrap();
        assert!(by_admin.create(&PostParams::default(), &wrong).await.is_err());
    }
    let asked = serde_json::from_value(asked).unwrap();
    by_admin.create(&PostParams::default(), &asked).await.unwrap();
    // And takes it back, as long as it is not issued.
    by_admin
        .delete("inv-cbcdefgh01234569", &DeleteParams::default())
        .await
        .unwrap();
}

fn spec_of(object: &impl serde::Serialize) -> Value {
    serde_json::to_value(object).unwrap()["spec"].clone()
}

/// The API server's answer to a manifest.
fn refusal(manifest: &Value) -> String {
    let plane = control_plane_of_tests();
    support::kubectl(plane, "create --dry-run=server -f -", Some(&manifest.to_string())).unwrap_err()
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
    let network = |name: &str, spec: Value| {
        json!({
            "apiVersion": "stellage.dev/v1", "kind": "PrivateNetwork",
            "metadata": { "name": name, "namespace": "default" }, "spec": spec,
        })
    };
    let prefix = |prefix: &str| network("pn-bad", json!({ "region": "fr-par-1", "prefix": prefix }));
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
            instance(
                "sshKeys",
                json!(vec![
                    format!("{SSH_KEY} {}", "x".repeat(8192 - SSH_KEY.len() - 1));
                    3
                ]),
            ),
            "spec.sshKeys",
            "must be at most 16384 characters in all; leave out keys or shorten their comments",
        ),
        (
            instance("sshKeys", json!(["-----BEGIN OPENSSH PRIVATE KEY-----"])),
            "spec.sshKeys[0]",
            "this is a private key",
        ),
        (
            instance(
                "sshKeys",
                json!(["---- BEGIN SSH2 PUBLIC KEY ----\nAAAA\n---- END SSH2 PUBLIC KEY ----\n"]),
            ),
            "spec.sshKeys[0]",
            "ssh-keygen -i -f FILE converts it",
        ),
        (
            instance(
                "sshKeys",
                json!(["PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\n"]),
            ),
            "spec.sshKeys[0]",
            "puttygen FILE -L prints the public one",
        ),
        (
            instance("sshKeys", json!([format!("command=\"ls\" {SSH_KEY}")])),
            "spec.sshKeys[0]",
            "must have no options in front of the key, such as command",
        ),
        (
            instance("sshKeys", json!([format!("{SSH_KEY}\n{SSH_KEY}")])),
            "spec.sshKeys[0]",
            "must be one line",
        ),
        (
            instance("userDataRef", json!({ "name": "Boot" })),
            "spec.userDataRef.name",
            "must be the name of an object",
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
            network("backend", json!({ "region": "fr-par-1" })),
            "metadata.name",
            "must be pn- followed by",
        ),
        (
            network("pn-bad", json!({ "region": "Paris" })),
            "spec.region",
            "such as fr-par-1",
        ),
        (prefix("10.128.4.0"), "spec.prefix", "such as 10.128.4.0/24"),
        (
            prefix("10.128.4.1/24"),
            "spec.prefix",
            "begins at its first address",
        ),
        (prefix("192.0.2.0/24"), "spec.prefix", "from 10.0.0.0/8"),
        (prefix("fd00::/64"), "spec.prefix", "an IPv4 prefix"),
        (prefix("10.0.0.0/8"), "spec.prefix", "from /16 to /28"),
        (prefix("10.1.2.0/29"), "spec.prefix", "from /16 to /28"),
        (
            prefix("10.0.0.0/16"),
            "spec.prefix",
            "must not overlap 10.0.2.0/24",
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

fn webhook(name: &str, field: &str, value: Value) -> Value {
    let mut manifest = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Webhook", "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "url": "https://hooks.example.com/in", "events": ["instance.created"], "secretRef": { "name": "signing" },
        },
    });
    if !field.is_empty() {
        manifest["spec"][field] = value;
    }
    manifest
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_webhook_is_refused_in_words_that_name_the_field_and_the_fix() {
    let plane = support::shared().await.plane;
    let url = |url: &str| webhook("bad", "url", json!(url));
    let cases = [
        (url("http://example.com"), "spec.url", "must begin with https://"),
        (url("HTTPS://example.com"), "spec.url", "must begin with https://"),
        (url("https://"), "spec.url", "must be a URL with a host"),
        (url("https:///path"), "spec.url", "must be a URL with a host"),
        (
            url("https://user@example.com"),
            "spec.url",
            "must not have a user name or password",
        ),
        (
            url("https://user:pw@example.com/x"),
            "spec.url",
            "must not have a user name or password",
        ),
        (
            url("https://example.com/#top"),
            "spec.url",
            "must not have a fragment",
        ),
        (
            url(&format!("https://example.com/{}", "x".repeat(2048))),
            "spec.url",
            "may not be more than 2048",
        ),
        (webhook("bad", "url", Value::Null), "spec.url", "Required value"),
        (
            webhook("bad", "events", json!(["instance.exploded"])),
            "spec.events[0]",
            "supported values: \"instance.created\"",
        ),
        (
            webhook("bad", "events", json!([])),
            "spec.events",
            "should have at least 1 items",
        ),
        (
            webhook("bad", "events", json!(["instance.created", "instance.created"])),
            "spec.events[1]",
            "Duplicate value",
        ),
        (
            webhook("bad", "events", Value::Null),
            "spec.events",
            "Required value",
        ),
        (
            webhook("bad", "secretRef", Value::Null),
            "spec.secretRef",
            "Required value",
        ),
        (
            webhook("bad", "secretRef", json!({})),
            "spec.secretRef.name",
            "Required value",
        ),
        (
            webhook("bad", "secretRef", json!({ "name": "" })),
            "spec.secretRef.name",
            "should be at least 1 chars",
        ),
        (
            webhook("bad", "enableRequestedAt", json!("now")),
            "spec.enableRequestedAt",
            "such as 2026-11-21T10:00:00Z",
        ),
        (
            webhook(&"a".repeat(64), "", Value::Null),
            "metadata.name",
            "at most 63 characters",
        ),
    ];
    for (manifest, field, fix) in cases {
        let words = refusal(&manifest);
        assert!(words.contains(field) && words.contains(fix), "{field}: {words}");
    }
    for good in [
        "https://hooks.example.com",
        "https://hooks.example.com:8443/in?next=https://other.example.com/@x",
        "https://localhost.example.com/svc",
        "https://svc-hooks.example.com/?a=localhost",
        "https://203.0.113.7/in",
        "https://[2001:db8::7]:8443/in",
        "https://xn--mnchen-3ya.example/x",
    ] {
        let manifest = url(good).to_string();
        let create = "create --dry-run=server -f -";
        support::kubectl(plane, create, Some(&manifest)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ssh_keys_are_admitted_as_sshd_takes_them() {
    let plane = support::shared().await.plane;
    let tabs = SSH_KEY.replace(' ', "\t");
    let keys = [
        format!("{SSH_KEY}\n"),
        format!("{SSH_KEY}\r\n"),
        format!(" \t{}  ", SSH_KEY.replace(' ', "  ")),
        tabs,
    ];
    let manifest = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance", "metadata": { "name": "blanks", "namespace": "default" },
        "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13", "sshKeys": keys },
    });
    let create = "create --dry-run=server -f -";
    support::kubectl(plane, create, Some(&manifest.to_string())).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_field_that_names_an_object_takes_no_text_that_would_change_the_path_of_a_request() {
    let plane = support::shared().await.plane;
    let object = |kind: &str, spec: Value| {
        json!({
            "apiVersion": "stellage.dev/v1", "kind": kind, "metadata": { "name": "odd", "namespace": "default" }, "spec": spec,
        })
    };
    let naming = |name: &str| {
        [
            (
                "spec.secretRef.name",
                webhook("odd", "secretRef", json!({ "name": name })),
            ),
            ("spec.instance", object("Backup", json!({ "instance": name }))),
            (
                "spec.restoreFrom",
                object(
                    "Instance",
                    json!({ "plan": "starter", "region": "fr-par-1", "image": "debian-13", "restoreFrom": name }),
                ),
            ),
        ]
    };
    for odd in [
        "x?dryRun=All",
        "../../default/secrets/x",
        "..",
        "a/b",
        "a%2fb",
        "a#b",
        "a b",
        "a\n",
        "A",
    ] {
        for (field, manifest) in naming(odd) {
            let words = refusal(&manifest);
            assert!(
                words.contains(field) && words.contains("must be the name of an object"),
                "{odd:?} in {field}: {words}"
            );
        }
    }
    for (field, manifest) in naming("web-1.example") {
        let create = "create --dry-run=server -f -";
        support::kubectl(plane, create, Some(&manifest.to_string()))
            .unwrap_or_else(|refused| panic!("{field}: {refused}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_events_in_an_outbox_are_bounded_in_number_and_length_even_for_the_operator() {
    let plane = support::shared().await.plane;
    support::kubectl(plane, "create namespace kinds-outbox", None).unwrap();
    let mut manifest = whole_instance();
    manifest["metadata"]["name"] = json!("full");
    let operator = support::as_operator(plane).await;
    let instances: Api<Instance> = Api::namespaced(operator, "kinds-outbox");
    let admin: Api<Instance> = Api::namespaced(plane.client(Identity::Admin).await.unwrap(), "kinds-outbox");
    admin
        .create(&PostParams::default(), &serde_json::from_value(manifest).unwrap())
        .await
        .unwrap();
    let entry = |body: &str| json!({ "id": "evt_a", "type": "instance.started", "sequence": 7, "createdAt": "2026-11-21T10:00:00Z", "body": body });
    let write = async |outbox: Vec<Value>| {
        let mut status = whole_instance_status();
        status["outbox"] = json!(outbox);
        let patch = Patch::Merge(json!({ "status": status }));
        instances
            .patch_status("full", &PatchParams::default(), &patch)
            .await
            .map(drop)
    };
    write(vec![entry("{}"); 256]).await.unwrap();
    write(vec![entry(&"b".repeat(16_384))]).await.unwrap();
    for (outbox, why) in [
        (vec![entry("{}"); 257], "must have at most 256 items"),
        (vec![entry(&"b".repeat(16_385))], "may not be more than 16384"),
    ] {
        let refused = write(outbox).await.unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_delivery_sends_never_changes() {
    let plane = support::shared().await.plane;
    support::kubectl(plane, "create namespace kinds-delivery", None).unwrap();
    let mut manifest = whole_delivery();
    manifest["metadata"]["namespace"] = json!("kinds-delivery");
    let operator = support::as_operator(plane).await;
    let delivery: Delivery = serde_json::from_value(manifest).unwrap();
    Api::<Delivery>::namespaced(operator, "kinds-delivery")
        .create(&PostParams::default(), &delivery)
        .await
        .unwrap();
    let patch = |patch: Value| {
        let patch = patch.to_string();
        let arguments = [
            "patch",
            "delivery",
            "dlv-abcdefgh01234567",
            "-n",
            "kinds-delivery",
            "--type=merge",
            "-p",
            &patch,
        ];
        support::kubectl_words(plane, &arguments, None)
    };
    for spec in [
        json!({ "body": "{}" }),
        json!({ "eventId": "evt_b" }),
        json!({ "test": null }),
    ] {
        let words = patch(json!({ "spec": spec })).unwrap_err();
        assert!(
            words.contains("is immutable: the bytes of an event are the same in every attempt"),
            "{words}"
        );
    }
    let words = patch(json!({ "status": { "phase": "Lost" } })).unwrap_err();
    assert!(
        words.contains("status.phase") && words.contains("supported values: \"Pending\""),
        "{words}"
    );
    // As the kind's description says.
    let again = "label delivery dlv-abcdefgh01234567 -n kinds-delivery stellage.dev/finished-";
    support::kubectl(plane, again, None).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_immutable_says_what_to_do_instead() {
    let plane = support::shared().await.plane;
    support::kubectl(plane, "create namespace kinds-immutable", None).unwrap();
    let manifest = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance", "metadata": { "name": "fixed", "namespace": "kinds-immutable" },
        "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
    });
    support::kubectl(plane, "create -f -", Some(&manifest.to_string())).unwrap();
    for (patch, field) in [
        (json!({ "region": "de-fra-1" }), "spec.region"),
        (json!({ "sshKeys": [SSH_KEY] }), "spec.sshKeys"),
        (json!({ "userDataRef": { "name": "boot" } }), "spec.userDataRef"),
        (json!({ "privateNetwork": "pn-abc" }), "spec.privateNetwork"),
    ] {
        let patch = json!({ "spec": patch }).to_string();
        let words = support::kubectl_words(
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
        "delete instance fixed -n kinds-immutable --wait=false",
        None,
    )
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_protection_holds_for_kubectl() {
    let plane = support::shared().await.plane;
    support::kubectl(plane, "create namespace kinds-protected", None).unwrap();
    let manifest = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance", "metadata": { "name": "precious", "namespace": "kinds-protected" },
        "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13", "deletionProtection": true },
    });
    support::kubectl(plane, "create -f -", Some(&manifest.to_string())).unwrap();
    let delete = "delete instance precious -n kinds-protected --wait=false";
    let words = support::kubectl(plane, delete, None).unwrap_err();
    assert!(
        words.contains(
            "spec.deletionProtection is true on instance precious: set it to false before deleting"
        ),
        "{words}"
    );
    let patch = |spec: Value| {
        let patch = json!({ "spec": spec }).to_string();
        let (namespace, merge) = ("--namespace=kinds-protected", "--type=merge");
        let arguments = ["patch", "instance", "precious", namespace, merge, "-p", &patch];
        support::kubectl_words(plane, &arguments, None)
    };
    // What erases the disk is refused, too, unless the protection goes with the same change.
    let now = "2026-11-21T10:00:00Z";
    for reinstalled in [
        json!({ "image": "debian-12" }),
        json!({ "rebuildRequestedAt": now }),
        json!({ "rebuildRequestedAt": now, "restoreFrom": "before" }),
    ] {
        let words = patch(reinstalled).unwrap_err();
        let fix = "spec.deletionProtection is true: set it to false before reinstalling the server";
        assert!(words.contains(fix), "{words}");
    }
    patch(json!({ "plan": "business", "rebootRequestedAt": now })).unwrap();
    patch(json!({ "deletionProtection": false, "rebuildRequestedAt": now })).unwrap();
    patch(json!({ "deletionProtection": true })).unwrap();
    patch(json!({ "rebuildRequestedAt": null })).unwrap();
    patch(json!({ "deletionProtection": false })).unwrap();
    support::kubectl(plane, delete, None).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_is_bounded_and_what_is_over_a_bound_may_stay_or_shrink() {
    let plane = support::shared().await.plane;
    let namespace = "kinds-metadata";
    support::kubectl(plane, &format!("create namespace {namespace}"), None).unwrap();
    let client = plane.client(Identity::Admin).await.unwrap();
    let operator = support::as_operator(plane).await;
    let post = PostParams::default();
    let many = |count: usize| -> Value { (0..count).map(|n| (format!("n{n}"), json!("x"))).collect() };
    let of_bytes = |count: usize| "ä".repeat(count / 2);
    let last_applied = "kubectl.kubernetes.io/last-applied-configuration";
    let owner = |n| json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": format!("u{n}") });
    let owners = (0..9).map(owner).collect::<Vec<_>>();
    // The owner's kind does not exist, so the garbage collector leaves the dependents alone.
    let long_owner = |length: usize| json!([{ "apiVersion": "example.com/v1", "kind": "X", "name": "x".repeat(length), "uid": "u" }]);
    let finalizers: Vec<_> = (0..9).map(|n| format!("example.com/f{n}")).collect();
    // The API server keeps the names of unknown fields.
    let tracked = |field: &str| json!([{ "manager": "m", "operation": "Update", "apiVersion": "stellage.dev/v1", "fieldsType": "FieldsV1", "fieldsV1": { "f:metadata": { "f:labels": { format!("f:{field}"): {} } } } }]);
    let too_large = [
        (
            json!({ "labels": many(33) }),
            "metadata.labels: there may be at most 32; remove some",
        ),
        (
            json!({ "annotations": many(33) }),
            "metadata.annotations: there may be at most 32; remove some",
        ),
        (
            json!({ "annotations": { "n": of_bytes(8192) } }),
            "metadata.labels and metadata.annotations: keys and values may take at most 8192 bytes in all",
        ),
        (
            json!({ "annotations": { last_applied: of_bytes(32770) } }),
            "use kubectl apply --server-side",
        ),
        (
            json!({ "finalizers": finalizers }),
            "metadata.finalizers: there may be at most 8; remove some",
        ),
        (
            json!({ "ownerReferences": owners }),
            "metadata.ownerReferences: there may be at most 8; remove some",
        ),
        (
            json!({ "ownerReferences": long_owner(8192) }),
            "metadata.ownerReferences: they may take at most 8192 bytes in all",
        ),
        (
            json!({ "managedFields": tracked(&of_bytes(32_768)) }),
            "metadata.managedFields: it may take at most 32768 bytes",
        ),
    ];
    let whole_key = json!({
        "apiVersion": "stellage.dev/v1", "kind": "ApiKey", "metadata": { "name": "whole" },
        "spec": { "sha256": "0".repeat(64), "scope": "read", "lastCharacters": "abcd" },
    });
    let mut backup = whole_backup();
    for set_by_operator in ["scheduledFor", "retry"] {
        backup["spec"].as_object_mut().unwrap().remove(set_by_operator);
    }
    for mut manifest in [whole_instance(), backup, whole_webhook(), whole_key] {
        let kind = manifest["kind"].as_str().unwrap().to_owned();
        let api = dynamic(client.clone(), &kind, Some(namespace));
        for (metadata, words) in &too_large {
            manifest["metadata"] = metadata.clone();
            manifest["metadata"]["name"] = json!("large");
            let object: DynamicObject = serde_json::from_value(manifest.clone()).unwrap();
            let refused = api.create(&post, &object).await.unwrap_err().to_string();
            assert!(refused.contains(words), "{kind}: {refused}");
        }
        // Fits to the last byte.
        manifest["metadata"] = json!({
            "name": "full", "labels": { "n": "x" },
            "annotations": { "n": of_bytes(8188), "o": "", last_applied: of_bytes(16384) },
        });
        let object: DynamicObject = serde_json::from_value(manifest.clone()).unwrap();
        api.create(&post, &object).await.unwrap();
        // The API server checks this only on create.
        let named = json!({ "metadata": { "generateName": "x".repeat(254) } });
        let refused = api
            .patch("full", &PatchParams::default(), &Patch::Merge(&named))
            .await;
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("metadata.generateName: it may have at most 253 characters"),
            "{kind}: {refused}"
        );
    }
    // Objects that the operator writes, but whose metadata others may change.
    let page = json!({
        "apiVersion": "stellage.dev/v1", "kind": "EventLog", "metadata": {},
        "spec": {
            "account": "u", "count": 0, "delivered": 0, "events": [],
            "from": "2026-11-21T10:00:00Z", "to": "2026-11-21T10:00:00Z",
        },
    });
    for mut manifest in [whole_delivery(), page, whole_invoice(), whole_invoice_page()] {
        let kind = manifest["kind"].as_str().unwrap().to_owned();
        // The shared operator deletes a Delivery whose webhook does not exist.
        manifest["metadata"] = json!({ "name": "full", "finalizers": ["example.com/kept"] });
        let object: DynamicObject = serde_json::from_value(manifest).unwrap();
        // The operator writes invoices in its own namespace alone.
        let namespace = if kind.starts_with("Invoice") {
            "stellage-system"
        } else {
            namespace
        };
        let operators = dynamic(operator.clone(), &kind, Some(namespace));
        operators.create(&post, &object).await.unwrap();
        let api = dynamic(client.clone(), &kind, Some(namespace));
        for (metadata, words) in [
            (
                json!({ "generateName": "x".repeat(254) }),
                "metadata.generateName",
            ),
            (
                json!({ "managedFields": tracked(&of_bytes(32_768)) }),
                "metadata.managedFields",
            ),
        ] {
            let patch = json!({ "metadata": metadata });
            let refused = api
                .patch("full", &PatchParams::default(), &Patch::Merge(&patch))
                .await;
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains(words), "{kind}: {refused}");
        }
    }

    // As stored before there were bounds.
    let instances = dynamic(client.clone(), "Instance", Some(namespace));
    let mut manifest = whole_instance();
    manifest["metadata"] = json!({
        "name": "old", "labels": many(40), "annotations": { "n": of_bytes(20_000), last_applied: of_bytes(40_000) },
        "ownerReferences": long_owner(20_000),
    });
    let object: DynamicObject = serde_json::from_value(manifest).unwrap();
    let operators = dynamic(operator, "Instance", Some(namespace));
    operators.create(&post, &object).await.unwrap();
    let patch = async |api: &Api<DynamicObject>, patch: Value| {
        api.patch("old", &PatchParams::default(), &Patch::Merge(&patch))
            .await
    };
    patch(&instances, json!({ "spec": { "tags": [] } }))
        .await
        .unwrap();
    patch(
        &operators,
        json!({ "metadata": { "annotations": { "stellage.dev/request-hash": "h" }, "generateName": "x".repeat(300) } }),
    )
    .await
    .unwrap();
    for smaller in [
        json!({ "labels": { "n0": null } }),
        json!({ "annotations": { "n": of_bytes(19_000) } }),
        json!({ "annotations": { last_applied: of_bytes(39_000) } }),
        json!({ "generateName": "x".repeat(299) }),
        json!({ "ownerReferences": long_owner(19_000) }),
    ] {
        patch(&instances, json!({ "metadata": smaller })).await.unwrap();
    }
    let all_larger_are_refused = async || {
        for larger in [
            json!({ "labels": { "new": "x" } }),
            json!({ "annotations": { "n": of_bytes(19_200) } }),
            json!({ "annotations": { last_applied: of_bytes(39_200) } }),
            json!({ "generateName": "x".repeat(301) }),
            json!({ "ownerReferences": long_owner(19_200) }),
            json!({ "finalizers": finalizers }),
        ] {
            let refused = patch(&instances, json!({ "metadata": larger })).await.err();
            let refused = refused.map(|error| error.to_string()).unwrap_or_default();
            assert!(refused.contains("at most"), "{refused}");
        }
    };
    all_larger_are_refused().await;
    let tracking = |length| json!({ "metadata": { "managedFields": tracked(&of_bytes(length)) } });
    patch(&operators, tracking(50_000)).await.unwrap();
    patch(&instances, tracking(40_000)).await.unwrap();
    let refused = patch(&instances, tracking(40_200)).await.unwrap_err().to_string();
    assert!(refused.contains("metadata.managedFields"), "{refused}");
    let afresh = json!({ "metadata": { "managedFields": [{}] } });
    patch(&instances, afresh).await.unwrap();
    // The API server no longer tracks who wrote which field, so an update changes nothing but what it names.
    all_larger_are_refused().await;

    let applied = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Webhook", "metadata": { "name": "full" }, "spec": { "active": false },
    });
    let webhooks = dynamic(client, "Webhook", Some(namespace));
    let mut refused = None;
    for manager in 0..17 {
        let params = PatchParams::apply(&format!("manager-{manager}"));
        let applied = webhooks.patch("full", &params, &Patch::Apply(&applied)).await;
        refused = applied.err().map(|error| (manager, error.to_string()));
        if refused.is_some() {
            break;
        }
    }
    let (managers, words) = refused.expect("a refusal");
    assert!(
        managers >= 12 && words.contains("at most 16 field managers"),
        "{managers}: {words}"
    );
}
