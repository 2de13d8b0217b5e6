//! The usage of real servers, as Prometheus knows it: through a stand-in that fails on demand, and with the real one.

use std::{path::Path, process::Command, time::Duration};

use control_plane::Identity;
use domain::{
    catalogue::Catalogue,
    provider::{Usage, Window},
};
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use providers::{RegionalUsage, UsageSource as _, simulator::SimulatedUsage};
use reqwest::Method;
use resources::Instance;
use runtime::shared_catalogue::SharedCatalogue;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{
    Change as _, Operator, Tenant, eventually, own_plane,
    prometheus::{Behaviour, Measured, Prometheus, Real},
    promtool,
    receivers::Authority,
    run,
};

const REGION: &str = "de-fra-1";
/// A server whose every figure is known.
const ALL: Measured = Measured {
    age: 5.0,
    cores: Some(0.5),
    memory: Some(41.26),
    disk: Some(23.0),
    received: Some(1000.0),
    sent: Some(500.0),
};

fn seconds(seconds: i64) -> SignedDuration {
    SignedDuration::from_secs(seconds)
}

/// A catalogue with a region that has this in its settings, and whose cluster is not there.
fn catalogue(settings: &Value) -> Value {
    let mut region = json!({
        "kubeconfig": "/does/not/exist", "installation": "prod-1", "storageClass": "disks",
        "images": { "debian-13": { "pvc": "images/debian-13", "user": "debian" } },
        "network": { "profile": "pod" },
    });
    for (name, value) in settings.as_object().unwrap() {
        region[name] = value.clone();
    }
    json!({ "regions": [{ "code": REGION, "kubevirt": region }] })
}

/// The sources of a process with this catalogue.
fn source(settings: Value) -> RegionalUsage {
    let catalogue = Catalogue::parse(&catalogue(&settings).to_string(), Path::new("test")).unwrap();
    RegionalUsage::new(SharedCatalogue::new(catalogue), SimulatedUsage::default())
}

fn asking(prometheus: &Prometheus) -> RegionalUsage {
    source(json!({ "prometheus": { "url": prometheus.url } }))
}

/// An Instance of the plan business, with two processors, that was started an hour ago.
fn instance(namespace: &str, name: &str, now: Timestamp) -> Instance {
    started(namespace, name, now - seconds(3600))
}

fn started(namespace: &str, name: &str, started_at: Timestamp) -> Instance {
    serde_json::from_value(json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance",
        "metadata": { "namespace": namespace, "name": name, "uid": name, "creationTimestamp": "2026-11-01T00:00:00Z" },
        "spec": { "region": REGION, "plan": "business", "image": "debian-13", "monitoringEnabled": true },
        "status": {
            "id": name, "state": "running", "power": "Running", "plan": "business",
            "provisionedAt": "2026-11-01T00:00:00Z", "startedAt": started_at,
        },
    }))
    .unwrap()
}

/// The id of the Instance of a name, which is the name of its server.
fn id(name: &str) -> String {
    started("acme", name, noon()).id()
}

/// A time of no particular meaning: sources do not look at the clock.
fn noon() -> Timestamp {
    "2026-11-28T12:00:20Z".parse().unwrap()
}

#[tokio::test]
async fn usage_is_what_prometheus_says_and_null_where_it_says_nothing_never_zero() {
    let prometheus = Prometheus::start().await;
    let source = asking(&prometheus);
    let now = noon();
    prometheus.measure("stellage-acme", &id("web"), ALL);
    let without_agent = Measured {
        disk: None,
        memory: Some(f64::NAN),
        cores: Some(3.5),
        ..ALL
    };
    prometheus.measure("stellage-acme", &id("plain"), without_agent);
    prometheus.measure("stellage-acme", &id("late"), Measured { age: 200.0, ..ALL });
    prometheus.measure("stellage-acme", &id("off"), ALL);
    let usage = async |instance: Instance| source.usage(&instance, now).await.unwrap();
    let web = Usage {
        cpu_usage: Some(25.0),
        memory_usage: Some(41.3),
        disk_usage: Some(23.0),
        network_in: Some(1000),
        network_out: Some(500),
    };
    assert_eq!(usage(instance("acme", "web", now)).await, web);
    let plain = Usage {
        cpu_usage: Some(100.0),
        memory_usage: None,
        disk_usage: None,
        ..web
    };
    assert_eq!(usage(instance("acme", "plain", now)).await, plain);
    let mut off = instance("acme", "off", now);
    off.status.as_mut().unwrap().power = Some(resources::PowerState::Stopped);
    let unknown = [
        instance("acme", "new", now),
        instance("acme", "late", now),
        // Of another account, with the name of one that is known.
        instance("other", "web", now),
        // What was measured is that of the run before.
        started("acme", "web", now - seconds(3)),
        off,
    ];
    for instance in unknown {
        assert_eq!(usage(instance.clone()).await, Usage::default(), "{instance:?}");
    }
    let ours = "kubernetes_vmi_label_stellage_dev_installation=\"prod-1\"";
    let asked = prometheus.asked();
    assert_eq!(asked.len(), 6);
    assert!(
        asked.iter().all(|asked| asked.query().contains(ours)),
        "{asked:?}"
    );
}

#[tokio::test]
async fn all_servers_are_asked_about_at_once_and_once_a_minute_however_many_want_to_know() {
    let prometheus = Prometheus::start().await;
    prometheus.measure("stellage-acme", &id("web"), ALL);
    let source = asking(&prometheus);
    let ask = async |at: Timestamp| {
        let instance = instance("acme", "web", noon());
        let all = (0..50).map(|_| source.usage(&instance, at));
        for usage in join_all(all).await {
            assert_eq!(usage.unwrap().cpu_usage, Some(25.0));
        }
        prometheus.asked().len()
    };
    assert_eq!(ask(noon()).await, 6);
    assert_eq!(ask(noon() + seconds(59)).await, 6);
    assert_eq!(ask(noon() + seconds(60)).await, 12);
    // The clock was put back.
    assert_eq!(ask(noon() - seconds(1800)).await, 18);
}

#[tokio::test]
async fn a_slow_prometheus_holds_up_nobody_who_can_have_what_was_known_a_minute_ago() {
    let prometheus = Prometheus::start().await;
    let source = asking(&prometheus);
    let web = instance("acme", "web", noon());
    prometheus.behave(Behaviour::Hangs);
    prometheus.measure("stellage-acme", &id("web"), ALL);
    let impatient = timeout(Duration::from_millis(200), source.usage(&web, noon())).await;
    assert!(impatient.is_err(), "nothing is known yet");
    prometheus.behave(Behaviour::Answers);
    // Whoever did not wait has not called it off.
    assert_eq!(source.usage(&web, noon()).await.unwrap().cpu_usage, Some(25.0));
    assert_eq!(prometheus.asked().len(), 6);

    prometheus.behave(Behaviour::Hangs);
    let later = noon() + seconds(61);
    assert_eq!(source.usage(&web, later).await.unwrap().cpu_usage, Some(25.0));
    let much_later = noon() + seconds(121);
    let waiting = timeout(Duration::from_secs(2), source.usage(&web, much_later)).await;
    assert!(waiting.is_err(), "what is known is too old");
    prometheus.measure(
        "stellage-acme",
        &id("web"),
        Measured {
            cores: Some(1.0),
            ..ALL
        },
    );
    prometheus.behave(Behaviour::Answers);
    let usage = async || source.usage(&web, later).await.unwrap().cpu_usage;
    eventually("the answer", usage, |usage| *usage == Some(50.0)).await;
}

#[tokio::test]
async fn a_prometheus_that_fails_is_an_error_with_its_reason_and_not_asked_again_at_once() {
    let html = "<html>\nplease sign in</html>";
    let number = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{"namespace":"a","name":"b"},"value":[1,"many"]}]}}"#;
    let bad = r#"{"status":"error","errorType":"bad_data","error":"parse \"error\""}"#;
    let overloaded = r#"{"status":"error","errorType":"timeout","error":"query timed out"}"#;
    for (behaviour, reason) in [
        (
            Behaviour::Says(401, "who are you?"),
            "answers 401 Unauthorized: who are you?",
        ),
        (
            Behaviour::Says(503, html),
            "answers 503 Service Unavailable: <html> please sign in</html>",
        ),
        (Behaviour::Says(302, ""), "answers 302 Found"),
        (Behaviour::Says(200, html), "its answer is not that of Prometheus"),
        (
            Behaviour::Says(200, "{}"),
            "its answer is not that of Prometheus: missing field `status`",
        ),
        (Behaviour::Says(200, number), "the value \"many\""),
        (Behaviour::Says(400, bad), "refuses the query: parse \"error\""),
        (
            Behaviour::Says(503, overloaded),
            "refuses the query: query timed out",
        ),
    ] {
        let prometheus = Prometheus::start().await;
        let source = asking(&prometheus);
        prometheus.measure("stellage-acme", &id("web"), ALL);
        prometheus.behave(behaviour);
        let web = instance("acme", "web", noon());
        let error = source.usage(&web, noon()).await.unwrap_err().to_string();
        assert!(error.contains("Prometheus of the region de-fra-1: "), "{error}");
        assert!(error.contains(reason), "{error} should contain {reason}");
        let series = source.series(&web, Window::Hour, noon()).await.unwrap_err();
        assert!(
            series.to_string().contains(reason),
            "{series} should contain {reason}"
        );
        prometheus.behave(Behaviour::Answers);
        let asked = prometheus.asked().len();
        let at_once = source.usage(&web, noon() + seconds(9)).await.unwrap_err();
        assert_eq!((at_once.to_string(), prometheus.asked().len()), (error, asked));
        let later = source.usage(&web, noon() + seconds(10)).await.unwrap();
        assert_eq!(later.cpu_usage, Some(25.0));
        prometheus.behave(Behaviour::Says(500, ""));
        // It fails again: what was known a minute ago will do for another minute.
        for (after, expected) in [(71, Some(Some(25.0))), (129, Some(Some(25.0))), (191, None)] {
            let usage = source.usage(&web, noon() + seconds(after)).await;
            assert_eq!(
                usage.ok().map(|usage| usage.cpu_usage),
                expected,
                "after {after} s"
            );
        }
    }
    let nobody = source(json!({ "prometheus": { "url": "http://127.0.0.1:1" } }));
    let error = nobody
        .usage(&instance("acme", "web", noon()), noon())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("it does not answer: "), "{error}");
    let file = source(
        json!({ "prometheus": { "url": "http://127.0.0.1:1", "bearerTokenFile": "/does/not/exist" } }),
    );
    let error = file
        .usage(&instance("acme", "web", noon()), noon())
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("cannot read /does/not/exist: "),
        "{error}"
    );
}

#[tokio::test]
async fn a_figure_that_cannot_be_had_is_null_and_the_others_are_shown() {
    let prometheus = Prometheus::start().await;
    let source = asking(&prometheus);
    prometheus.measure("stellage-acme", &id("web"), ALL);
    let web = instance("acme", "web", noon());
    prometheus.behave(Behaviour::SaysOf("network_receive", 503, "too much"));
    let usage = source.usage(&web, noon()).await.unwrap();
    assert_eq!((usage.network_in, usage.network_out), (None, Some(500)));
    assert_eq!(usage.memory_usage, Some(41.3));
}

#[tokio::test]
async fn bytes_go_on_counting_when_a_server_is_migrated_live_and_begin_anew_when_it_is_started() {
    let prometheus = Prometheus::start().await;
    let source = asking(&prometheus);
    let mut web = instance("acme", "web", noon());
    let mut now = noon();
    let mut next = async |received: Option<f64>, web: &Instance| {
        prometheus.measure(
            "stellage-acme",
            &id("web"),
            Measured {
                age: 0.0,
                received,
                ..ALL
            },
        );
        now += seconds(60);
        source.usage(web, now).await.unwrap().network_in
    };
    assert_eq!(next(Some(1000.0), &web).await, Some(1000));
    // Migrated.
    assert_eq!(next(Some(10.0), &web).await, Some(1010));
    // A gap is null, and what was counted is not forgotten.
    assert_eq!(next(None, &web).await, None);
    assert_eq!(next(Some(20.0), &web).await, Some(1020));
    // Migrated again.
    assert_eq!(next(Some(5.0), &web).await, Some(1025));
    // Started anew: the samples of this run come after that.
    web.status.as_mut().unwrap().started_at = Some(noon() + seconds(301));
    assert_eq!(next(Some(3.0), &web).await, Some(3));
    assert_eq!(next(Some(4.0), &web).await, Some(4));
}

#[tokio::test]
async fn who_is_asking_and_whom_to_trust_is_read_from_files_each_time() {
    let authority = Authority::new();
    let prometheus = Prometheus::start_tls(authority.server(&["localhost"], &["http/1.1"])).await;
    prometheus.measure("stellage-acme", &id("web"), ALL);
    let folder = tempfile::tempdir().unwrap();
    let (token, ca) = (folder.path().join("token"), folder.path().join("ca.crt"));
    std::fs::write(&token, "first\n").unwrap();
    std::fs::write(&ca, Authority::new().pem()).unwrap();
    let source = source(json!({ "prometheus": {
        "url": format!("{}/tenant/", prometheus.url), "bearerTokenFile": token, "ca": ca,
        "headers": { "X-Scope-OrgID": "platform" },
    } }));
    let web = instance("acme", "web", noon());
    let error = source.usage(&web, noon()).await.unwrap_err().to_string();
    assert!(error.contains("invalid peer certificate"), "{error}");
    std::fs::write(&ca, "no certificate").unwrap();
    let error = source
        .usage(&web, noon() + seconds(10))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("ca.crt: ") && error.contains("it has no certificate"),
        "{error}"
    );
    std::fs::write(&ca, authority.pem()).unwrap();
    assert!(source.usage(&web, noon() + seconds(20)).await.is_ok());
    std::fs::write(&token, "second").unwrap();
    assert!(source.usage(&web, noon() + seconds(80)).await.is_ok());
    let asked = prometheus.asked();
    let tokens: Vec<_> = asked
        .iter()
        .map(|asked| asked.headers["authorization"].to_str().unwrap())
        .collect();
    assert_eq!(tokens, [["Bearer first"; 6], ["Bearer second"; 6]].concat());
    for asked in &asked {
        assert_eq!(
            (asked.path.as_str(), &asked.headers["x-scope-orgid"]),
            ("/tenant/api/v1/query", &"platform".parse().unwrap())
        );
    }
}

#[tokio::test]
async fn a_window_is_asked_of_prometheus_for_one_server_and_shows_nothing_from_before_its_instance() {
    let prometheus = Prometheus::start().await;
    let source = asking(&prometheus);
    let now = noon();
    let first = now.as_second() - 20 - 59 * 60;
    let minute = |index: i64| first + index * 60;
    let at = |index: i64| Timestamp::from_second(minute(index)).unwrap();
    let mut web = started("acme", "web", at(30));
    web.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(5)));
    let measured = |received: f64| Measured {
        received: Some(received),
        ..ALL
    };
    // Of another server with its name, of the run before, of this run, and of this run after a live migration.
    let history = [
        (3, 7.0),
        (10, 900.0),
        (31, 40.0),
        (32, 60.0),
        (40, 8.0),
        (59, 9.0),
    ];
    prometheus.remember(
        history
            .map(|(index, received)| (minute(index), measured(received)))
            .into(),
    );
    let series = source.series(&web, Window::Hour, now).await.unwrap().unwrap();
    assert_eq!((series.points.len(), series.known_since), (60, Some(at(10))));
    let known: Vec<_> = series
        .points
        .iter()
        .filter(|(_, usage)| *usage != Usage::default())
        .collect();
    let bytes: Vec<_> = known
        .iter()
        .map(|(time, usage)| (*time, usage.network_in))
        .collect();
    let expected = [(10, 900), (31, 40), (32, 60), (40, 68), (59, 69)];
    assert_eq!(bytes, expected.map(|(index, bytes)| (at(index), Some(bytes))));
    assert_eq!(known[0].1.cpu_usage, Some(25.0));
    let asked = prometheus.asked();
    assert_eq!(asked.len(), 6);
    for asked in &asked {
        assert_eq!(asked.path, "/api/v1/query_range");
        assert!(
            asked
                .query()
                .contains(&format!(r#",namespace="stellage-acme",name="{}""#, id("web"))),
            "{}",
            asked.query()
        );
    }
    let day = source.series(&web, Window::Day, now).await.unwrap().unwrap();
    assert_eq!(
        (
            day.points.len(),
            prometheus.asked()[6].parameters["step"].as_str()
        ),
        (288, "300")
    );
    // No system keeps it.
    for settings in [json!({}), json!({ "podMetrics": true })] {
        let without = self::source(settings);
        assert_eq!(without.series(&web, Window::Hour, now).await.unwrap(), None);
    }
    assert_eq!(
        self::source(json!({})).usage(&web, now).await.unwrap(),
        Usage::default()
    );
}

/// A series of virt-handler, by metric, server, and further labels.
fn series(metric: &str, name: &str, installation: &str, more: &str) -> String {
    format!(
        r#"kubevirt_vmi_{metric}{{namespace="stellage-acme",name="{name}",kubernetes_vmi_label_stellage_dev_installation="{installation}",kubernetes_vmi_label_stellage_dev_instance_uid="uid"{more}}}"#
    )
}

#[tokio::test]
async fn promtool_evaluates_what_is_asked_to_the_figures_of_each_server_of_the_installation() {
    let prometheus = Prometheus::start().await;
    let source = asking(&prometheus);
    let _ = source.usage(&instance("acme", "web", noon()), noon()).await;
    let asked = prometheus.asked();
    let (n1, n2) = (r#",node="n1""#, r#",node="n2""#);
    let root = |node: &str, mount: &str| {
        format!(r#"{node},disk_name="vda",file_system_type="ext4",mount_point="{mount}""#)
    };
    let interface = |node: &str, name: &str| format!(r#"{node},interface="{name}""#);
    let (cpu, usable, available) = (
        "cpu_usage_seconds_total",
        "memory_usable_bytes",
        "memory_available_bytes",
    );
    let (used, capacity) = ("filesystem_used_bytes", "filesystem_capacity_bytes");
    let (received, sent) = ("network_receive_bytes_total", "network_transmit_bytes_total");
    let minutes = |metric: &str, name: &str, more: &str, values: &str| json!({ "series": series(metric, name, "prod-1", more), "values": values });
    let input = json!([
        minutes(cpu, "web", n1, "0+30x9"),
        minutes(usable, "web", n1, "600x9"),
        minutes(available, "web", n1, "1000x9"),
        minutes(used, "web", &root(n1, "/"), "30x9"),
        minutes(capacity, "web", &root(n1, "/"), "120x9"),
        minutes(used, "web", &root(n1, "/boot"), "99x9"),
        minutes(capacity, "web", &root(n1, "/boot"), "100x9"),
        minutes(received, "web", &interface(n1, "default"), "0+100x9"),
        minutes(received, "web", &interface(n1, "private"), "0+900x9"),
        minutes(sent, "web", &interface(n1, "default"), "0+50x9"),
        // In the middle of a live migration, and on Windows.
        minutes(cpu, "moves", n1, "0+60x9"),
        minutes(cpu, "moves", n2, "_x5 0+6x3"),
        minutes(used, "moves", &root(n1, r"C:\\"), "50x9"),
        minutes(used, "moves", &root(n2, r"C:\\"), "50x9"),
        minutes(capacity, "moves", &root(n1, r"C:\\"), "100x9"),
        minutes(capacity, "moves", &root(n2, r"C:\\"), "100x9"),
        minutes(received, "moves", &interface(n1, "public"), "700x9"),
        minutes(received, "moves", &interface(n2, "public"), "_x5 5x3"),
        // Not scraped for four minutes, and that of another installation.
        minutes(cpu, "late", n1, "0+60x5"),
        json!({ "series": series(cpu, "web", "prod-2", n1), "values": "0+999x9" }),
    ]);
    let expected = [
        vec![("web", 540.0), ("moves", 540.0)],
        vec![("web", 0.5), ("moves", 1.0)],
        vec![("web", 40.0)],
        vec![("web", 25.0), ("moves", 50.0)],
        vec![("web", 900.0), ("moves", 700.0)],
        vec![("web", 450.0)],
    ];
    let test = asked.iter().zip(expected).map(|(asked, expected)| {
        let samples = expected.into_iter().map(|(name, value)| {
            json!({ "labels": format!(r#"{{namespace="stellage-acme", name="{name}"}}"#), "value": value })
        });
        json!({ "expr": asked.query(), "eval_time": "9m", "exp_samples": samples.collect::<Vec<_>>() })
    });
    let test = test.collect::<Vec<_>>();
    let file = json!({ "evaluation_interval": "1m", "fuzzy_compare": true, "tests": [
        { "interval": "1m", "input_series": input, "promql_expr_test": test },
    ] });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("usage.yaml");
    std::fs::write(&path, file.to_string()).unwrap();
    let mut test = Command::new(promtool().await);
    run(test.args(["test", "rules"]).arg(path), None).unwrap_or_else(|said| panic!("{said}"));
}

#[tokio::test]
async fn the_real_prometheus_knows_the_usage_of_a_server_that_it_scrapes_from_virt_handler_now_and_over_a_window()
 {
    let prometheus = Real::start().await;
    let source = source(json!({ "prometheus": { "url": prometheus.url } }));
    let begin = std::time::Instant::now();
    let show = || {
        let line = |metric: &str, more: &str, value: f64| {
            format!("{} {value}\n", series(metric, &id("web"), "prod-1", more))
        };
        let (default, root) = (r#",interface="default""#, r#",mount_point="/""#);
        prometheus.show(
            [
                line("cpu_usage_seconds_total", "", begin.elapsed().as_secs_f64()),
                line("memory_usable_bytes", "", 600.0),
                line("memory_available_bytes", "", 1000.0),
                line("filesystem_used_bytes", root, 30.0),
                line("filesystem_capacity_bytes", root, 120.0),
                line("network_receive_bytes_total", default, 1e9),
                line("network_transmit_bytes_total", default, 7.0),
            ]
            .concat(),
        );
    };
    // It is asked each time.
    let mut now = Timestamp::now();
    let web = instance("acme", "web", now);
    let usage = async || {
        show();
        now += seconds(61);
        source.usage(&web, now).await.unwrap()
    };
    let known = |usage: &Usage| usage.cpu_usage.is_some_and(|cpu| (20.0..=80.0).contains(&cpu));
    let usage = eventually("the usage", usage, known).await;
    let rest = (
        usage.memory_usage,
        usage.disk_usage,
        usage.network_in,
        usage.network_out,
    );
    assert_eq!(rest, (Some(40.0), Some(25.0), Some(1_000_000_000), Some(7)));
    let other = source.usage(&instance("other", "web", now), now).await.unwrap();
    assert_eq!(other, Usage::default());
    let newest = async || {
        // At the end of the current minute, so that there is a point after the samples.
        let now = Timestamp::from_second((Timestamp::now().as_second() / 60 + 1) * 60).unwrap();
        let series = source.series(&web, Window::Hour, now).await.unwrap().unwrap();
        (series.known_since, series.points.last().map(|(_, usage)| *usage))
    };
    let newest = eventually("the window", newest, |(since, _)| since.is_some()).await;
    let usage = newest.1.unwrap();
    assert_eq!(
        (usage.memory_usage, usage.network_in),
        (Some(40.0), Some(1_000_000_000))
    );
    let other = source
        .series(&instance("other", "web", now), Window::Hour, Timestamp::now())
        .await;
    assert_eq!(other.unwrap().unwrap().known_since, None);
}

#[tokio::test]
async fn rest_shows_the_usage_of_real_servers_fires_alerts_on_it_and_takes_null_for_no_sample() {
    let prometheus = Prometheus::start().await;
    let plane = own_plane().await;
    let rule = |metric: &str| json!({ "name": metric, "metric": metric, "threshold": 90, "for": "2s", "rearmBelow": 80 });
    let mut catalogue = catalogue(&json!({ "prometheus": { "url": prometheus.url } }));
    catalogue["alerts"] = json!({ "interval": "2s", "rules": [rule("cpu_usage"), rule("memory_usage")] });
    let file = plane.folder().join("catalogue.yaml");
    std::fs::write(&file, catalogue.to_string()).unwrap();
    let file = format!("--catalogue={}", file.display());
    let operator = Operator::start(&plane, &["run", &file]).await;
    let tenant = Tenant::on(&plane, &operator, "usage").await;
    // The region's cluster is away, which says nothing about usage.
    let since = Timestamp::now() - seconds(600);
    let running = json!({ "status": {
        "state": "running", "power": "Running", "plan": "starter", "operation": null,
        "provisionedAt": since, "startedAt": since, "providerState": { "provider": "kubevirt" },
    } });
    let admin = kube::Api::<Instance>::namespaced(plane.client(Identity::Operator).await.unwrap(), "usage");
    let mut ids = Vec::new();
    let hot = Measured {
        cores: Some(0.955),
        ..ALL
    };
    for (name, measured) in [
        ("hot", hot),
        (
            "unknown",
            Measured {
                cores: None,
                memory: Some(95.0),
                ..ALL
            },
        ),
    ] {
        let made = tenant
            .apply(name, |instance| {
                instance.spec.region = REGION.to_owned();
                instance.spec.monitoring_enabled = true;
            })
            .await;
        let is_accepted = |instance: Option<&Instance>| {
            let status = instance.and_then(|instance| instance.status.as_ref());
            status.is_some_and(|status| status.state.is_some())
        };
        tenant.wait(name, "its status", is_accepted).await;
        prometheus.measure("stellage-usage", &made.id(), measured);
        admin.merge_status(name, &running).await;
        ids.push(made.id());
    }
    let get = async |path: String| tenant.call(Method::GET, &path, None).await.json();
    let fired = async || get("/v1/alerts?status=firing".to_owned()).await["data"].clone();
    let fired = eventually("the alerts", fired, |alerts| {
        alerts.as_array().unwrap().len() == 2
    })
    .await;
    for (id, metric, value) in [(&ids[0], "cpu_usage", 95.5), (&ids[1], "memory_usage", 95.0)] {
        let alert = fired
            .as_array()
            .unwrap()
            .iter()
            .find(|alert| alert["instance_id"] == id.as_str());
        let alert = alert.unwrap();
        assert_eq!(
            (&alert["metric"], &alert["value"]),
            (&json!(metric), &json!(value)),
            "{fired:#}"
        );
    }
    let shown = get(format!("/v1/instances/{}?include=metrics", ids[1])).await;
    assert_eq!(
        shown["data"]["metrics"],
        json!({ "cpu_usage": null, "memory_usage": 95.0, "disk_usage": 23.0, "network_in": 1000, "network_out": 500 })
    );
    // REST and the leader have asked together, and not for each sample.
    assert!(prometheus.asked().len() <= 12, "{:#?}", prometheus.asked());
    let window = get(format!("/v1/instances/{}/metrics", ids[0])).await["data"].clone();
    let points = window["series"]["cpu_usage"].as_array().unwrap().len();
    assert_eq!((points, &window["known_since"]), (60, &Value::Null), "{window:#}");
    let of_server = format!(r#",namespace="stellage-usage",name="{}""#, ids[0]);
    let asked = prometheus.asked();
    let ranges = asked.iter().filter(|asked| asked.path.ends_with("/query_range"));
    assert_eq!(
        ranges.filter(|asked| asked.query().contains(&of_server)).count(),
        6,
        "{asked:#?}"
    );
    prometheus.behave(Behaviour::Says(401, "no"));
    let path = format!("/v1/instances/{}/metrics", ids[0]);
    let refused = tenant.call(Method::GET, &path, None).await;
    assert_eq!(
        refused.status,
        reqwest::StatusCode::SERVICE_UNAVAILABLE,
        "{}",
        refused.text
    );
    assert!(!refused.text.contains("Prometheus"), "{}", refused.text);
}
