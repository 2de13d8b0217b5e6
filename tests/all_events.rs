//! All event types, from the actions of an account holder and an administrator to an example receiver.

use std::{collections::BTreeSet, process::Command};

use control_plane::ControlPlane;
use domain::event::EventType;
use serde_json::{Value, json};

use crate::{
    facade::{create, wait_for},
    receivers::{self, Certificate},
    support::{Operator, SELLER, Tenant, eventually, kubectl, own_plane, stellage},
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const ACCOUNT: &str = "all-events";

/// Requests a backup and waits until it has this status.
async fn back_up(tenant: &Tenant, instance: &str, status: &str) {
    let path = format!("/v1/instances/{instance}/backups");
    let made = tenant.post(201, &path, &json!({})).await.json();
    let path = format!("/v1/backups/{}", made["data"]["id"].as_str().unwrap());
    let look = async || tenant.get(&path).await.json();
    eventually(status, look, |shown: &Value| shown["data"]["status"] == status).await;
}

fn annotate(plane: &ControlPlane, instance: &str, annotation: &str) {
    let annotation = format!("simulator.stellage.dev/{annotation}");
    kubectl(
        plane,
        &format!("annotate instance -n {ACCOUNT} {instance} {annotation}"),
        None,
    )
    .unwrap();
}

/// Only REST, kubectl and `stellage` are used; the receiver prints an event once it has verified its signature.
#[tokio::test]
async fn all_eight_event_types_arrive_signed_at_an_example_receiver() {
    let certificate = Certificate::new();
    let mut command = Command::new(receivers::rust_example().await);
    command.env("WEBHOOK_SECRET", SECRET);
    let receiver = receivers::Receiver::start(command, Some(&certificate));

    let plane = own_plane().await;
    let catalogue = plane.folder().join("catalogue.yaml");
    let rules = "alerts: {interval: 1s, rules: [{name: busy, metric: cpu_usage, threshold: 90, for: 1s, rearmBelow: 80}]}";
    std::fs::write(&catalogue, format!("{rules}\n{SELLER}\n")).unwrap();
    let arguments = [
        "run",
        "--provisioning-seconds=0",
        "--receiver-allow=127.0.0.0/8",
        &format!("--catalogue={}", catalogue.display()),
        &format!(
            "--receiver-ca={}",
            certificate.folder.path().join("cert.pem").display()
        ),
    ];
    let mut operator = Operator::start(&plane, &arguments).await;
    let tenant = Tenant::on(&plane, &operator, ACCOUNT).await;

    let wanted = EventType::ALL.map(EventType::as_str);
    let url = format!("https://127.0.0.1:{}/", receiver.port());
    let webhook = json!({ "url": url, "events": wanted, "secret": SECRET });
    tenant.post(201, "/v1/webhooks", &webhook).await;

    let web = create(&tenant, "web").await;
    wait_for(&tenant, &web, "running").await;
    back_up(&tenant, &web, "completed").await;
    annotate(&plane, &web, "fault=backup");
    back_up(&tenant, &web, "failed").await;
    annotate(&plane, &web, "cpu=95");
    let path = format!("/v1/instances/{web}");
    let monitored = json!({ "monitoring_enabled": true });
    tenant.patch(200, &path, &monitored).await;
    let alerts = async || tenant.get("/v1/alerts").await.json();
    // More than one if some samples were missing.
    eventually("an alert", alerts, |list| list["pagination"]["total"] != 0).await;
    tenant.act(202, &format!("{path}/stop")).await;
    wait_for(&tenant, &web, "stopped").await;
    tenant.delete(&path).await;
    stellage(&plane, &format!("invoice close --account {ACCOUNT}")).unwrap();

    let mut missing = BTreeSet::from(wanted);
    while !missing.is_empty() {
        let line = receiver.line();
        let (_, what) = line.split_once("received ").unwrap_or_else(|| panic!("{line}"));
        missing.remove(what.split(' ').next().unwrap());
    }
    operator.stop().await;
}
