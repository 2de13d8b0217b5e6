//! The metrics of running operators, and their table in docs/metrics.md.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

use reqwest::Method;
use resources::InstanceState;
use serde_json::json;

use crate::{
    docs::described_metrics,
    support::{
        Operator, OwnPlane, Tenant, eventually, kubectl, own_plane, promtool, receiver_arguments,
        receivers::{Answer, Receiver},
        run,
    },
};

/// Type and labels of a metric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Shown {
    kind: String,
    labels: BTreeSet<String>,
}

/// The names of the labels in `a="b",c="d"`.
fn label_names(mut labels: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    while let Some((name, rest)) = labels.split_once("=\"") {
        names.insert(name.trim_start_matches(',').to_owned());
        // The values have no escaped quotes.
        labels = rest.split_once('"').unwrap().1;
    }
    names
}

/// The metrics of a page, under the names that Prometheus gives them.
fn shown(page: &str) -> BTreeMap<String, Shown> {
    let mut metrics: BTreeMap<String, Shown> = BTreeMap::new();
    let mut current = String::new();
    for line in page.lines() {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            let (name, kind) = described.split_once(' ').unwrap();
            current = match kind {
                "counter" => format!("{name}_total"),
                "info" => format!("{name}_info"),
                _ => name.to_owned(),
            };
            let kind = kind.to_owned();
            let labels = BTreeSet::new();
            assert!(
                metrics.insert(current.clone(), Shown { kind, labels }).is_none(),
                "{line}"
            );
        } else if !line.starts_with('#') {
            assert!(line.starts_with(&current), "{line} does not belong to {current}");
            let labels = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once("} "));
            let mut labels = labels.map(|(labels, _)| label_names(labels)).unwrap_or_default();
            labels.remove("le");
            metrics.get_mut(&current).unwrap().labels.extend(labels);
        }
    }
    metrics
}

/// The table, for processes of these kinds.
fn described(processes: &[&str]) -> BTreeMap<String, Shown> {
    let all = described_metrics().into_iter();
    let ours = all.filter(|(_, metric)| processes.contains(&metric.process.as_str()));
    ours.map(|(name, metric)| {
        let (kind, labels) = (metric.kind, metric.labels);
        (name, Shown { kind, labels })
    })
    .collect()
}

async fn page(operator: &Operator) -> String {
    let request = reqwest::Client::new()
        .get(format!("{}/metrics", operator.metrics_url))
        .header("accept", "application/openmetrics-text; version=1.0.0");
    request.send().await.unwrap().text().await.unwrap()
}

/// A catalogue with samples every three seconds.
fn write_catalogue(path: &Path, more: &str) {
    let new = path.with_extension("new");
    let alerts = "alerts: {interval: 3s, rules: [{name: busy, metric: cpu_usage, threshold: 90, for: 3s, rearmBelow: 80}]}";
    std::fs::write(&new, format!("{alerts}\n{more}")).unwrap();
    std::fs::rename(&new, path).unwrap();
}

/// Causes everything that is counted.
async fn make_everything_happen(plane: &OwnPlane, operator: &Operator) {
    let tenant = Tenant::on(plane, operator, "metrics").await;
    let good = Receiver::start(|_| Answer::ok()).await;
    tenant
        .webhook("good", &good.url("/good"), &["instance.created"])
        .await;
    let bad = Receiver::start(|_| Answer::status(500)).await;
    tenant
        .webhook("bad", &bad.url("/bad"), &["instance.created"])
        .await;
    tenant
        .apply("web", |instance| instance.spec.monitoring_enabled = true)
        .await;
    let web = tenant.wait_for_state("web", InstanceState::Running).await;
    let backups = format!("/v1/instances/{}/backups", web.id());
    let made = tenant.call(Method::POST, &backups, Some(&json!({}))).await;
    assert_eq!(made.status, 201, "{made:?}");
    // An e-mail reports it.
    tenant
        .wait_for_webhook("bad", "it to be disabled", |webhook| {
            webhook
                .status
                .as_ref()
                .is_some_and(|status| status.disabled.is_some())
        })
        .await;
    write_catalogue(&plane.folder().join("catalogue.yaml"), "regions: [fr-par-1]\n");
}

#[tokio::test]
async fn the_table_has_the_metrics_of_a_running_operator_with_their_types_and_labels_and_no_others() {
    let plane = own_plane().await;
    // As the chart creates it where backups are planned.
    let noted = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "stellage-backup", "namespace": "stellage-system" } });
    kubectl(&plane, "create -f -", Some(&noted.to_string())).unwrap();
    let file = plane.folder().join("catalogue.yaml");
    write_catalogue(&file, "");
    let (catalogue, receivers) = (
        format!("--catalogue={}", file.display()),
        receiver_arguments(&plane),
    );
    let mut arguments = vec![
        "run",
        "--provisioning-seconds=0",
        "--instance-metrics",
        // Nothing is listening, so sending traces fails.
        "--otlp-endpoint=http://127.0.0.1:9",
        catalogue.as_str(),
    ];
    arguments.extend(["--retry-schedule", "50ms"]);
    arguments.extend(receivers.iter().map(String::as_str));
    let mut operator = Operator::start(&plane, &arguments).await;
    make_everything_happen(&plane, &operator).await;
    let table = described(&["api", "controller", "both"]);
    let differing = async || {
        let metrics = shown(&page(&operator).await);
        let names: BTreeSet<&String> = metrics.keys().chain(table.keys()).collect();
        let differing = names
            .into_iter()
            .filter(|name| metrics.get(*name) != table.get(*name));
        differing
            .map(|name| (name.clone(), metrics.get(name).cloned(), table.get(name).cloned()))
            .collect::<Vec<_>>()
    };
    eventually(
        "the page to have what docs/metrics.md says",
        differing,
        Vec::is_empty,
    )
    .await;
    let whole = page(&operator).await;
    check_conventions(&whole).await;
    check_buckets(&whole);

    // A process on its own has its own metrics and those of both.
    for command in ["api", "controller"] {
        let mut alone = Operator::start(&plane, &[command]).await;
        let table = described(&[command, "both"]);
        let found = shown(&page(&alone).await);
        for name in found.keys() {
            assert!(table.contains_key(name), "{name} of stellage {command}");
        }
        assert!(found.contains_key("stellage_objects"), "{found:?}");
        assert_eq!(found.contains_key("stellage_leader"), command == "controller");
        alone.stop().await;
    }
    operator.stop().await;
}

/// Fails the test if a page does not have the buckets that rules name: such a rule would never fire.
fn check_buckets(page: &str) {
    for (metric, bound) in [
        ("stellage_http_request_duration_seconds", "2.384185791015625"),
        ("stellage_instance_create_duration_seconds", "300.0"),
        ("stellage_event_receipt_delay_seconds", "30.0"),
    ] {
        let bound = format!("le=\"{bound}\"");
        let tried = std::fs::read_to_string("tests/chart/alerts.yaml").unwrap();
        assert!(tried.contains(&bound), "the rules are tried with {bound}");
        let series = format!("{metric}_bucket{{");
        let is_it = |line: &str| line.starts_with(&series) && line.contains(&bound);
        assert!(page.lines().any(is_it), "{metric} has no {bound}");
    }
}

/// Checks a page with promtool, in the older text format, the only one that its lints read.
async fn check_conventions(page: &str) {
    let mut lines: Vec<String> = Vec::new();
    for line in page.lines() {
        let header = line
            .strip_prefix("# TYPE ")
            .map(|rest| rest.split_once(' ').unwrap());
        if let Some((name, kind)) = header {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            // The help comes before the type.
            let help = lines.last_mut().unwrap();
            *help = help.replace(&format!("# HELP {name} "), &format!("# HELP {name}{suffix} "));
            lines.push(format!("# TYPE {name}{suffix} {kind}"));
        } else if !line.starts_with("# UNIT ") && line != "# EOF" {
            lines.push(line.to_owned());
        }
    }
    let text = lines.join("\n") + "\n";
    let said = run(
        Command::new(promtool().await).args(["check", "metrics"]),
        Some(&text),
    );
    assert_eq!(said.as_deref(), Ok(""));
}

#[tokio::test]
async fn a_route_without_requests_takes_no_space_on_the_page() {
    let cluster = crate::support::shared().await;
    // The shared operator is the leader; this one serves the API.
    let mut operator = Operator::start(cluster.plane, &["api"]).await;
    let buckets = async || {
        let page = page(&operator).await;
        let lines = page
            .lines()
            .filter(|line| line.starts_with("stellage_http_request"));
        lines.map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(buckets().await, Vec::<String>::new());
    let tenant = Tenant::on(cluster.plane, &operator, "metrics-routes").await;
    assert_eq!(tenant.call(Method::GET, "/v1/instances", None).await.status, 200);
    let buckets = buckets().await;
    let others =
        |line: &&String| !line.contains("route=\"/v1/instances\"") && !line.contains("route=\"/v1/plans\"");
    assert!(!buckets.is_empty());
    assert_eq!(
        buckets.iter().filter(others).collect::<Vec<_>>(),
        Vec::<&String>::new()
    );
    operator.stop().await;
}
