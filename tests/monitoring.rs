//! Samples and alerts, with the real program and the real API server. The catalogue of these tests has rules of a few seconds.

use std::{collections::HashSet, path::Path, time::Duration};

use control_plane::Identity;
use k8s_openapi::api::events::v1::Event;
use kube::{Api, ResourceExt as _, api::ListParams};
use reqwest::Method;
use resources::{Instance, InstanceState};
use serde_json::{Value, json};
use standardwebhooks::Webhook as Verifier;

use crate::{
    facade::{
        contract::{code, expect, fields},
        create, wait_for,
    },
    support::{
        Change as _, Operator, OwnPlane, Tenant, eventually, kubectl, own_plane, receiver_arguments,
        receivers::{self, Receiver},
    },
    webhooks::{SECRET, body, types},
};

/// Seconds between two samples. An alert would end after four missing samples in a row, so a busy machine may pause for ten
/// seconds.
const INTERVAL: u64 = 3;

/// A catalogue in which CPU usage above 90 % for as long as an interval fires.
fn catalogue(folder: &Path) -> String {
    let file = folder.join("catalogue.yaml");
    let rules = format!(
        "alerts: {{interval: {INTERVAL}s, rules: [{{name: busy, metric: cpu_usage, threshold: 90, for: {INTERVAL}s, rearmBelow: 80}}]}}"
    );
    std::fs::write(&file, rules).unwrap();
    format!("--catalogue={}", file.display())
}

async fn start(plane: &OwnPlane, command: &str) -> Operator {
    let (catalogue, receivers) = (catalogue(plane.folder()), receiver_arguments(plane));
    let mut arguments = vec![command, "--provisioning-seconds=0", catalogue.as_str()];
    if command == "run" {
        arguments.push("--instance-metrics");
        arguments.extend(receivers.iter().map(String::as_str));
    }
    Operator::start(plane, &arguments).await
}

/// Waits until this many more samples have been taken.
async fn samples(operator: &Operator, more: f64) {
    let taken = async || operator.metric("stellage_usage_samples_total", "ok").await;
    let before = taken().await;
    eventually("more samples", taken, |now| *now >= before + more).await;
}

impl Tenant {
    /// Creates an instance with this CPU usage and waits until it is running.
    async fn busy(&self, name: &str, cpu: u8, is_monitored: bool) -> String {
        self.apply(name, |instance| {
            let cpu = ("simulator.stellage.dev/cpu".to_owned(), cpu.to_string());
            instance.metadata.annotations = Some([cpu].into());
            instance.spec.monitoring_enabled = is_monitored;
        })
        .await;
        self.wait_for_state(name, InstanceState::Running).await.id()
    }

    async fn set_cpu(&self, name: &str, cpu: u8) {
        let change =
            json!({ "metadata": { "annotations": { "simulator.stellage.dev/cpu": cpu.to_string() } } });
        self.merge(name, &change).await;
    }

    /// The alerts in REST, once there are this many with this status.
    async fn alerts(&self, status: &str, count: usize) -> Vec<Value> {
        let path = format!("/v1/alerts?status={status}");
        let look = async || self.get(&path).await.json()["data"].as_array().unwrap().clone();
        eventually(status, look, |alerts| alerts.len() == count).await
    }

    async fn metrics_of(&self, id: &str) -> Value {
        let shown = self
            .get(&format!("/v1/instances/{id}?include=metrics"))
            .await
            .json();
        shown["data"]["metrics"].clone()
    }

    /// Waits until an instance has this CPU usage: on a busy machine the provider may be late.
    async fn wait_for_cpu(&self, id: &str, usage: f64) {
        let cpu = async || self.metrics_of(id).await["cpu_usage"].clone();
        eventually("the CPU usage", cpu, |cpu| *cpu == usage).await;
    }

    /// The version of an instance once nothing is left to write.
    async fn settled(&self, name: &str) -> String {
        self.wait_for_clear_outboxes().await;
        self.version(name).await
    }

    async fn version(&self, name: &str) -> String {
        self.instances()
            .get(name)
            .await
            .unwrap()
            .resource_version()
            .unwrap()
    }
}

#[tokio::test]
async fn an_alert_is_sent_once_also_across_a_restart_and_anew_after_it_has_ended() {
    let plane = own_plane().await;
    let mut operator = start(&plane, "run").await;
    let mut tenant = Tenant::on(&plane, &operator, "alerts").await;
    let mut other = Tenant::on(&plane, &operator, "no-alerts").await;
    let receiver = Receiver::start(|_| receivers::Answer::ok()).await;
    let wanted = ["alert.triggered"];
    tenant.webhook("orders", &receiver.url("/hook"), &wanted).await;
    let id = tenant.busy("web", 95, true).await;
    let other_id = other.busy("web", 50, true).await;
    let unmonitored = tenant.busy("quiet", 99, false).await;

    let requests = receiver.wait_for(1).await;
    Verifier::new(SECRET)
        .unwrap()
        .verify(&requests[0].body, &requests[0].headers)
        .unwrap();
    let event = body(&requests[0]);
    let alerts = tenant.alerts("firing", 1).await;
    let alert = &alerts[0];
    assert_eq!(
        event["data"]["alert"],
        json!({ "id": alert["id"], "rule": "busy", "threshold": 90.0, "since": alert["since"] })
    );
    assert_eq!(
        event["data"]["metric"],
        json!({ "name": "cpu_usage", "value": 95.0, "unit": "percent" })
    );
    assert_eq!(event["data"]["instance"]["id"], id.as_str());
    assert_eq!(
        *alert,
        json!({
            "id": alert["id"], "rule": "busy", "status": "firing", "instance_id": id, "metric": "cpu_usage",
            "threshold": 90.0, "value": 95.0, "since": alert["since"], "fired_at": alert["fired_at"], "ended_at": null,
        })
    );
    assert!(alert["since"].as_str() < alert["fired_at"].as_str(), "{alert}");
    assert_eq!(other.get("/v1/alerts").await.json()["pagination"]["total"], 0);
    let wide = kubectl(&plane, "get inst web -n alerts -o wide", None).unwrap();
    assert!(wide.contains("ALERT") && wide.contains("busy"), "{wide}");
    let told: Api<Event> = Api::namespaced(tenant.kube.clone(), "alerts");
    let reason = ListParams::default().fields("reason=AlertTriggered");
    let told = eventually(
        "an Event",
        async || told.list(&reason).await.unwrap().items,
        |events| !events.is_empty(),
    )
    .await;
    let note = told[0].note.as_deref().unwrap_or_default();
    assert!(
        note.starts_with("busy: cpu_usage is 95 %, and has been above 90 % since "),
        "{note}"
    );

    // It keeps firing, which costs no write, not even after a restart, whose first samples say the same again.
    let version = tenant.settled("web").await;
    let version_of_other = other.settled("web").await;
    samples(&operator, 6.0).await;
    let page = reqwest::get(format!("{}/metrics", operator.metrics_url))
        .await
        .unwrap();
    let page = page.text().await.unwrap();
    let shown = format!("stellage_instance_cpu_usage_percent{{namespace=\"alerts\",instance=\"{id}\"}} 95.0");
    assert!(page.contains(&shown), "{page}");
    assert!(!page.contains(&unmonitored) && page.contains(&other_id), "{page}");
    operator.die(&plane).await;
    let mut operator = start(&plane, "run").await;
    (tenant.url, other.url) = (operator.url.clone(), operator.url.clone());
    samples(&operator, 10.0).await;
    assert_eq!(tenant.version("web").await, version);
    assert_eq!(other.version("web").await, version_of_other);
    assert_eq!(receiver.received().len(), 1);
    assert_eq!(tenant.alerts("firing", 1).await, alerts);

    // Between the two values nothing changes.
    tenant.set_cpu("web", 85).await;
    let version = tenant.version("web").await;
    samples(&operator, 4.0).await;
    assert_eq!(tenant.version("web").await, version);
    tenant.set_cpu("web", 10).await;
    let ended = tenant.alerts("ended", 1).await;
    assert_eq!(
        (&ended[0]["id"], ended[0]["ended_at"].is_string()),
        (&alert["id"], true)
    );
    tenant.set_cpu("web", 97).await;
    let requests = receiver.wait_for(2).await;
    assert_eq!(types(&requests), ["alert.triggered", "alert.triggered"]);
    let ids: HashSet<String> = requests
        .iter()
        .map(|request| body(request)["data"]["alert"]["id"].to_string())
        .collect();
    assert_eq!(ids.len(), 2);

    // A stop ends an alert silently; so does switching monitoring off.
    let stop = format!("/v1/instances/{id}/stop");
    tenant.act(202, &stop).await;
    tenant.alerts("ended", 2).await;
    let start_again = format!("/v1/instances/{id}/start");
    wait_for(&tenant, &id, "stopped").await;
    tenant.act(202, &start_again).await;
    assert_eq!(receiver.wait_for(3).await.len(), 3);
    let off = json!({ "monitoring_enabled": false });
    let path = format!("/v1/instances/{id}");
    tenant.patch(200, &path, &off).await;
    let ended = tenant.alerts("ended", 3).await;
    let newest = body(&receiver.received()[2])["data"]["alert"]["id"].clone();
    assert_eq!(ended[0]["id"], newest, "newest first");
    let pages = tenant.get("/v1/alerts?limit=2&page=2").await.json();
    assert_eq!(pages["data"], json!([ended[2]]));
    assert_eq!(
        pages["pagination"],
        json!({ "page": 2, "limit": 2, "total": 3, "total_pages": 2 })
    );
    for (filter, total) in [
        (format!("instance_id={id}"), 3),
        (format!("instance_id={unmonitored}"), 0),
        ("status=nonsense".to_owned(), 0),
    ] {
        let list = tenant.get(&format!("/v1/alerts?{filter}")).await.json();
        assert_eq!(list["pagination"]["total"], total, "{filter}");
    }
    assert_eq!(receiver.received().len(), 3);
    operator.stop().await;
}

fn known(series: &Value) -> usize {
    let points = series["series"]["cpu_usage"].as_array().unwrap();
    points.iter().filter(|point| !point[1].is_null()).count()
}

#[tokio::test]
async fn every_replica_of_the_api_knows_the_usage_even_without_a_leader() {
    let plane = own_plane().await;
    let mut controller = start(&plane, "controller").await;
    let (mut api, mut second) = tokio::join!(start(&plane, "api"), start(&plane, "api"));
    let mut tenant = Tenant::on(&plane, &api, "replicas").await;
    let id = tenant.busy("web", 95, true).await;
    let unmonitored = tenant.busy("quiet", 40, false).await;
    let unreachable = tenant.busy("gone", 30, true).await;
    controller.die(&plane).await;
    let hang = json!({ "metadata": { "annotations": { "simulator.stellage.dev/fault": "unreachable" } } });
    tenant.merge("gone", &hang).await;
    // It has been running for ten minutes.
    let since = jiff::Timestamp::now() - jiff::SignedDuration::from_mins(10);
    let since = format!("{since:.0}");
    let past = json!({ "status": { "provisionedAt": since, "startedAt": since } });
    let operator = plane.client(Identity::Operator).await.unwrap();
    Api::<Instance>::namespaced(operator, "replicas")
        .merge_status("web", &past)
        .await;

    let path = format!("/v1/instances/{id}/metrics");
    let series = async || tenant.get(&path).await.json()["data"].clone();
    let ten_minutes = |series: &Value| series["known_since"] == since.as_str();
    let hour = eventually("the past", series, ten_minutes).await;
    assert_eq!(
        (&hour["window"], &hour["resolution_seconds"]),
        (&json!("1h"), &json!(60))
    );
    let points = hour["series"]["cpu_usage"].as_array().unwrap();
    assert_eq!((points.len(), &points[59][1]), (60, &json!(95.0)));
    assert!([10, 11].contains(&known(&hour)), "{hour}");
    let day = tenant.get(&format!("{path}?window=24h")).await.json()["data"].clone();
    assert_eq!(
        (
            &day["resolution_seconds"],
            day["series"]["disk_usage"].as_array().unwrap().len()
        ),
        (&json!(300), 288)
    );
    tenant.wait_for_cpu(&id, 95.0).await;
    tenant.wait_for_cpu(&unmonitored, 40.0).await;

    let nothing = json!({
        "cpu_usage": null, "memory_usage": null, "disk_usage": null, "network_in": null, "network_out": null,
    });
    eventually(
        "the provider to hang",
        async || tenant.metrics_of(&unreachable).await,
        |metrics| *metrics == nothing,
    )
    .await;
    let hangs = format!("/v1/instances/{unreachable}/metrics");
    let refused = expect(&tenant, 503, Method::GET, &hangs, None, &[]).await;
    assert_eq!(code(&refused), "service_unavailable");
    assert!(!refused.header("retry-after").is_empty());

    // A minute may end between two answers.
    let before = tenant.get(&path).await.json()["data"]["series"].clone();
    tenant.url = second.url.clone();
    let other = async || tenant.get(&path).await.json()["data"].clone();
    let other = eventually("the other replica", other, ten_minutes).await["series"].clone();
    tenant.url = api.url.clone();
    let after = tenant.get(&path).await.json()["data"]["series"].clone();
    assert!([before, after].contains(&other), "{other}");
    api.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn a_series_needs_monitoring_and_a_known_window() {
    let tenant = Tenant::new("series").await;
    let id = create(&tenant, "web").await;
    let path = format!("/v1/instances/{id}/metrics");
    let refused = expect(&tenant, 409, Method::GET, &path, None, &[]).await;
    assert_eq!(
        (code(&refused).as_str(), fields(&refused)),
        ("invalid_state", vec!["monitoring_enabled".to_owned()])
    );
    let on = json!({ "monitoring_enabled": true });
    let instance = format!("/v1/instances/{id}");
    tenant.patch(200, &instance, &on).await;
    let series = tenant.get(&path).await.json()["data"].clone();
    assert_eq!(series["series"]["network_in"].as_array().unwrap().len(), 60);
    for window in ["2h", "", "1H"] {
        let wrong = format!("{path}?window={window}");
        let refused = expect(&tenant, 422, Method::GET, &wrong, None, &[]).await;
        assert_eq!(fields(&refused), ["window"], "{window}");
    }
}

#[tokio::test]
async fn an_account_whose_provider_hangs_keeps_nobody_from_being_sampled() {
    let plane = own_plane().await;
    let mut operator = start(&plane, "run").await;
    let (big, small) = (
        Tenant::on(&plane, &operator, "hanging").await,
        Tenant::on(&plane, &operator, "sampled").await,
    );
    // More than may be sampled at a time.
    for number in 0..80 {
        big.apply(&format!("i{number}"), |instance| {
            instance.spec.monitoring_enabled = true;
        })
        .await;
    }
    for number in 0..80 {
        big.wait_for_state(&format!("i{number}"), InstanceState::Running)
            .await;
    }
    let hang = json!({ "metadata": { "annotations": { "simulator.stellage.dev/fault": "unreachable" } } });
    for instance in big.all_instances().await {
        big.instances().merge(&instance.name_any(), &hang).await;
    }
    let timeouts = async || {
        operator
            .metric("stellage_usage_samples_total", "ProviderTimeout")
            .await
    };
    eventually("samples to time out", timeouts, |count| *count >= 40.0).await;
    let receiver = Receiver::start(|_| receivers::Answer::ok()).await;
    small
        .webhook("orders", &receiver.url("/hook"), &["alert.triggered"])
        .await;
    let begun = tokio::time::Instant::now();
    small.busy("web", 95, true).await;
    receiver.wait_for(1).await;
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(120), "{took:?}");
    operator.stop().await;
}
