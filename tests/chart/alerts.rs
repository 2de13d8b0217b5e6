//! Alerts, their runbooks, and the dashboard: the real promtool checks them, and they use only metrics that exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

use super::{files::read, objects};
use crate::{
    docs::{anchors, described_metrics},
    support::{
        helm::{Helm, chart},
        promtool, run,
    },
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The rules of the chart's PrometheusRule, with these values: what is recorded, and alerts.
async fn all_rules(values: Value) -> Vec<Value> {
    // Its alert is there only with it.
    let backup = json!({ "enabled": true, "target": "s3://backups", "unencrypted": true });
    let values = json!({ "serviceMonitor": { "enabled": true }, "prometheusRule": values, "backup": backup });
    let rendered = Helm::alone().await.template("stellage-system", &values).unwrap();
    let rule = objects(&rendered)
        .into_iter()
        .find(|object| object["kind"] == "PrometheusRule")
        .unwrap();
    let groups = rule["spec"]["groups"].as_array().unwrap().iter();
    groups
        .flat_map(|group| group["rules"].as_array().unwrap().clone())
        .collect()
}

/// The alerts among them.
async fn rules(values: Value) -> Vec<Value> {
    let mut rules = all_rules(values).await;
    rules.retain(|rule| rule["alert"].is_string());
    rules
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name]
        .as_str()
        .unwrap_or_else(|| panic!("there is no {name}: {value}"))
}

/// The panels of the dashboard, each with its expressions.
fn panels() -> BTreeMap<String, Vec<String>> {
    let dashboard: Value = serde_json::from_str(&read(&chart().join("files/dashboard.json"))).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let panels = panels.filter(|panel| panel["type"] != "row").map(|panel| {
        let targets = panel["targets"].as_array().unwrap();
        let expressions = targets.iter().map(|target| text(target, "expr").to_owned());
        (text(panel, "title").to_owned(), expressions.collect())
    });
    panels.collect()
}

/// The words of an expression.
fn words(expression: &str) -> impl Iterator<Item = &str> {
    expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
}

/// What an expression takes from what is recorded.
fn recorded(expression: &str) -> impl Iterator<Item = &str> {
    let parts = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    parts.filter(|part| part.starts_with("stellage:"))
}

/// Fails the test if a metric is not in the table of docs/metrics.md, or is used in a way that its type does not
/// allow.
fn assert_exists(what: &str, expression: &str) {
    let table = described_metrics();
    let metrics: Vec<&str> = words(expression)
        .filter(|word| word.starts_with("stellage_") || word.starts_with("process_"))
        .collect();
    let is_other =
        recorded(expression).next().is_some() || expression.contains("apiserver_storage_size_bytes");
    assert!(!metrics.is_empty() || is_other, "{what}: {expression}");
    for metric in metrics {
        let base = metric.strip_suffix("_bucket").unwrap_or(metric);
        let described = table
            .get(base)
            .unwrap_or_else(|| panic!("{what}: there is no {metric}"));
        assert_eq!(described.kind == "histogram", base != metric, "{what}: {metric}");
        let is_of_counter = ["rate(", "increase("]
            .iter()
            .any(|function| expression.contains(&format!("{function}{metric}")));
        let counts = ["counter", "histogram"].contains(&described.kind.as_str());
        assert_eq!(is_of_counter, counts, "{what}: {metric} is a {}", described.kind);
    }
}

/// The labels by which an expression selects or groups.
fn labels(expression: &str) -> BTreeSet<&str> {
    let grouped = expression
        .split("by (")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let selected = expression
        .split('{')
        .skip(1)
        .filter_map(|rest| rest.split('}').next());
    let selected = selected.flat_map(|inside| inside.split('"').step_by(2));
    grouped
        .chain(selected)
        .flat_map(words)
        .filter(|word| !word.is_empty())
        .collect()
}

#[tokio::test]
async fn alerts_and_dashboard_use_metrics_and_labels_that_exist() {
    let table = described_metrics();
    // The last two are labels of targets.
    let known: BTreeSet<&str> = table
        .values()
        .flat_map(|metric| metric.labels.iter().map(String::as_str))
        .chain(["le", "namespace", "service", "pod"])
        .collect();
    let mut all: Vec<(String, String)> = Vec::new();
    let rules = all_rules(json!({ "enabled": true })).await;
    let records: BTreeSet<&str> = rules.iter().filter_map(|rule| rule["record"].as_str()).collect();
    for rule in &rules {
        let name = rule["alert"].as_str().or(rule["record"].as_str()).unwrap();
        let expression = text(rule, "expr");
        for record in recorded(expression) {
            assert!(records.contains(record), "{name}: nothing records {record}");
        }
        all.push((name.to_owned(), expression.to_owned()));
    }
    for (title, expressions) in panels() {
        all.extend(
            expressions
                .into_iter()
                .map(|expression| (title.clone(), expression)),
        );
    }
    assert!(all.len() > 40, "{all:#?}");
    for (what, expression) in all {
        assert_exists(&what, &expression);
        for label in labels(&expression) {
            assert!(known.contains(label), "{what}: no metric has a label {label}");
        }
    }
}

#[test]
fn the_dashboard_shows_every_metric_but_those_of_single_instances() {
    let all: Vec<String> = panels().into_values().flatten().collect();
    let shown: BTreeSet<&str> = all
        .iter()
        .flat_map(|expression| words(expression))
        .map(|word| word.strip_suffix("_bucket").unwrap_or(word))
        .collect();
    // Rare events have an alert instead.
    let rare = [
        "stellage_invalid_objects_total",
        "stellage_catalogue_reloads_total",
    ];
    for metric in described_metrics().keys() {
        assert!(
            shown.contains(metric.as_str())
                || metric.starts_with("stellage_instance_")
                || rare.contains(&metric.as_str()),
            "the dashboard does not show {metric}"
        );
    }
}

#[test]
fn the_first_row_of_the_dashboard_is_the_objectives() {
    let dashboard: Value = serde_json::from_str(&read(&chart().join("files/dashboard.json"))).unwrap();
    let mut panels: Vec<&Value> = dashboard["panels"].as_array().unwrap().iter().collect();
    panels.sort_by_key(|panel| (panel["gridPos"]["y"].as_i64(), panel["gridPos"]["x"].as_i64()));
    let first: Vec<&str> = panels[1..4].iter().map(|panel| text(panel, "title")).collect();
    assert_eq!(
        first,
        [
            "Writes answered",
            "Servers started in time",
            "Events delivered in time"
        ]
    );
    assert_eq!(
        (&panels[0]["type"], &panels[4]["type"]),
        (&json!("row"), &json!("row"))
    );
}

#[tokio::test]
async fn the_dashboard_is_a_config_map_that_grafana_finds() {
    let helm = Helm::alone().await;
    let config_map = |values: Value| {
        let rendered = helm.template("stellage-system", &values).unwrap();
        let objects = objects(&rendered).into_iter();
        objects
            .filter(|object| object["metadata"]["name"] == "stellage-dashboard")
            .collect::<Vec<_>>()
    };
    assert_eq!(config_map(json!({})), Vec::<Value>::new());
    let found = config_map(json!({ "dashboard": { "enabled": true } }));
    assert_eq!(found[0]["metadata"]["labels"]["grafana_dashboard"], "1");
    let dashboard: Value = serde_json::from_str(text(&found[0]["data"], "stellage.json")).unwrap();
    let file: Value = serde_json::from_str(&read(&chart().join("files/dashboard.json"))).unwrap();
    assert_eq!(dashboard, file);
    let ids: BTreeSet<i64> = dashboard["panels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|panel| panel["id"].as_i64().unwrap())
        .collect();
    assert_eq!(ids.len(), dashboard["panels"].as_array().unwrap().len());
}

#[tokio::test]
async fn each_alert_has_a_section_that_says_what_it_means_how_to_look_and_what_to_do() {
    let page = read(&root().join("docs/runbooks.md"));
    let sections: BTreeMap<&str, &str> = page
        .split("\n## ")
        .skip(1)
        .map(|section| section.split_once('\n').unwrap())
        // The others are about no alert.
        .filter(|(heading, _)| heading.starts_with("Stellage"))
        .collect();
    let rules = rules(json!({ "enabled": true })).await;
    let alerts: BTreeSet<&str> = rules.iter().map(|rule| text(rule, "alert")).collect();
    assert_eq!(alerts.len(), rules.len(), "an alert is there twice");
    assert_eq!(sections.keys().copied().collect::<BTreeSet<_>>(), alerts);
    for (alert, section) in sections {
        for part in ["\n**Meaning.** ", "\n**Look.** ", "\n**Do.** "] {
            assert!(section.contains(part), "{alert} has no {part}");
        }
        for metric in words(section).filter(|word| word.starts_with("stellage_")) {
            let metric = metric.strip_suffix("_bucket").unwrap_or(metric);
            assert!(
                described_metrics().contains_key(metric),
                "{alert}: there is no {metric}"
            );
        }
    }
    let anchors = anchors(&page);
    for rule in &rules {
        let annotations = &rule["annotations"];
        let (path, anchor) = text(annotations, "runbook_url").split_once('#').unwrap();
        assert_eq!(path, "https://stellage.dev/docs/runbooks");
        assert!(anchors.contains(anchor), "{anchor}");
        assert_eq!(anchor, text(rule, "alert").to_lowercase());
        let severity = text(&rule["labels"], "severity");
        assert!(["critical", "warning"].contains(&severity), "{rule}");
        assert!(!text(annotations, "summary").is_empty() && !text(annotations, "description").is_empty());
    }
}

#[tokio::test]
async fn the_links_to_runbooks_lead_where_the_value_says() {
    let values = json!({ "enabled": true, "runbooks": "https://wiki.example.com/stellage" });
    for rule in rules(values).await {
        let url = text(&rule["annotations"], "runbook_url");
        assert!(
            url.starts_with("https://wiki.example.com/stellage#stellage"),
            "{url}"
        );
    }
}

#[tokio::test]
async fn an_alert_can_be_left_out_and_all_have_the_labels_that_route_them() {
    let all = rules(json!({ "enabled": true })).await;
    let left_out = ["StellageStartsBurnFast", "StellageStartsBurnSlow"];
    let values = json!({
        "enabled": true, "disabled": left_out, "alertLabels": { "team": "cloud", "severity": "none" },
    });
    let some = rules(values).await;
    assert_eq!(some.len(), all.len() - left_out.len());
    for rule in &some {
        assert!(!left_out.contains(&text(rule, "alert")), "{rule}");
        let labels = &rule["labels"];
        assert_eq!(
            (text(labels, "team"), text(labels, "namespace")),
            ("cloud", "stellage-system")
        );
        assert_ne!(labels["severity"], "none", "{rule}");
    }
    let values = json!({ "prometheusRule": { "enabled": true, "targetLabels": { "job": "a" }, "disabled": ["StellageNothing"] } });
    let refused = Helm::alone()
        .await
        .template("stellage-system", &values)
        .unwrap_err();
    for said in [
        "prometheusRule.disabled names StellageNothing",
        "StellageApiDown, ",
    ] {
        assert!(refused.contains(said), "{refused}");
    }
}

#[tokio::test]
async fn rules_select_the_targets_that_the_values_name_and_are_refused_where_none_could_match() {
    let helm = Helm::alone().await;
    let refused = |values: Value| helm.template("stellage-system", &values).unwrap_err();
    let said = refused(json!({ "prometheusRule": { "enabled": true } }));
    assert!(said.contains("prometheusRule.targetLabels"), "{said}");
    let said = refused(json!({ "prometheusRule": { "runbooks": "docs/runbooks.md" } }));
    assert!(said.contains("runbooks"), "it is no URL: {said}");
    let values =
        json!({ "prometheusRule": { "enabled": true, "targetLabels": { "job": "cloud", "zone": "a" } } });
    let rendered = helm.template("stellage-system", &values).unwrap();
    assert!(
        rendered.contains(r#"sum(stellage_leader{job="cloud",zone="a"})"#),
        "{rendered}"
    );
    assert!(!rendered.contains(r#"service="stellage-metrics""#));
}

#[tokio::test]
async fn an_objective_says_how_fast_may_fail_what_may_fail() {
    let rules = rules(json!({ "enabled": true, "objectives": { "writes": 99.5 } })).await;
    let of = |alert: &str| {
        let rule = rules.iter().find(|rule| rule["alert"] == alert).unwrap();
        text(rule, "expr").to_owned()
    };
    let fast = of("StellageWritesBurnFast");
    assert!(fast.contains("> 0.072 ") && fast.contains("> 0.03 "), "{fast}");
    let slow = of("StellageWritesBurnSlow");
    assert!(slow.contains("> 0.005 "), "{slow}");
}

/// A folder with a file `rules.yaml`.
fn folder_with(rules: &[Value]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    let groups = json!({ "groups": [{ "name": "stellage", "rules": rules }] });
    std::fs::write(&path, groups.to_string()).unwrap();
    (folder, path)
}

#[tokio::test]
async fn promtool_finds_nothing_wrong_with_the_rules_and_with_the_expressions_of_the_dashboard() {
    let mut rules = all_rules(json!({ "enabled": true })).await;
    for (position, expression) in panels().into_values().flatten().enumerate() {
        let expression = expression.replace("$__rate_interval", "5m");
        rules.push(json!({ "record": format!("panel:{position}"), "expr": expression }));
    }
    let (_folder, path) = folder_with(&rules);
    let mut check = Command::new(promtool().await);
    let said = run(
        check
            .args(["check", "rules", "--lint=all", "--lint-fatal"])
            .arg(path),
        None,
    )
    .unwrap();
    assert!(said.contains(&format!("{} rules found", rules.len())), "{said}");
}

#[tokio::test]
async fn each_alert_fires_when_it_should_and_otherwise_not_says_promtool() {
    let mut rules = all_rules(json!({ "enabled": true })).await;
    for rule in rules.iter_mut().filter(|rule| rule["alert"].is_string()) {
        rule["annotations"] = json!({ "summary": rule["annotations"]["summary"] });
    }
    let source = read(&root().join("tests/chart/alerts.yaml"));
    for alert in rules.iter().filter_map(|rule| rule["alert"].as_str()) {
        for case in ["fires", "does not fire"] {
            assert!(
                source.contains(&format!("\n  - name: {alert} {case}\n")),
                "no test says that {alert} {case}"
            );
        }
    }
    let (folder, _) = folder_with(&rules);
    let tests = folder.path().join("tests.yaml");
    std::fs::write(&tests, source).unwrap();
    let mut test = Command::new(promtool().await);
    run(test.args(["test", "rules"]).arg(tests), None).unwrap_or_else(|said| panic!("{said}"));
}
