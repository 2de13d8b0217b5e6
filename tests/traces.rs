//! Traces: from the REST call through the reconcile to the delivery, as a receiver of OTLP gets them.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    time::{Duration, Instant},
};

use control_plane::{ControlPlane, Identity};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use reqwest::Method;
use resources::{Instance, InstanceState};
use serde_json::{Value, json};

use crate::{
    facade::{contract::expect, create},
    support::{
        Operator, STELLAGE, Tenant, eventually,
        otlp::{Span, spans},
        own_plane, receiver_arguments,
        receivers::{Answer, Received, Receiver},
        remember_secret, secrets_in, shared,
    },
    webhooks::SECRET,
};

const ANNOTATION: &str = "stellage.dev/traceparent";
const CALLER: &str = "00f067aa0ba902b7";
const TOKEN: &str = "token-of-the-collector";

/// The id of a trace.
fn trace(number: u8) -> String {
    format!("{number:02x}").repeat(16)
}

/// The header of a caller that samples the trace.
fn traceparent(number: u8) -> String {
    format!("00-{}-{CALLER}-01", trace(number))
}

/// An operator that promptly sends its traces to a receiver.
async fn traced(plane: &ControlPlane, arguments: &[&str], collector: &Receiver) -> Operator {
    let ca = plane.folder().join("receivers.pem");
    std::fs::write(&ca, Receiver::ca_pem()).unwrap();
    remember_secret(TOKEN);
    let environment = [
        ("STELLAGE_OTLP_ENDPOINT", collector.url("/")),
        ("OTEL_EXPORTER_OTLP_HEADERS", format!("x-token={TOKEN}")),
        ("OTEL_BSP_SCHEDULE_DELAY", "100".to_owned()),
        ("SSL_CERT_FILE", ca.display().to_string()),
        ("RUST_LOG", "info,stellage_server::facade=debug".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value));
    Operator::start_in(
        plane,
        arguments,
        &environment,
        &plane.kubeconfig(Identity::Operator),
    )
    .await
}

fn annotation(instance: &Instance) -> Option<&str> {
    let annotations = instance.metadata.annotations.as_ref()?;
    annotations.get(ANNOTATION).map(String::as_str)
}

/// The type of the event of a delivery, and the trace in its header.
fn told(delivery: &Received) -> (&str, &str) {
    let parent = delivery.header("traceparent");
    (
        delivery.header("x-service-event-type"),
        parent.get(3..35).unwrap_or(parent),
    )
}

/// The spans of a trace whose parents are the caller's or in the trace, by name.
fn joined(all: &[Span], number: u8) -> BTreeMap<&str, Vec<&Span>> {
    let spans: Vec<&Span> = all.iter().filter(|span| span.trace == trace(number)).collect();
    let ids: BTreeSet<&str> = spans
        .iter()
        .map(|span| span.id.as_str())
        .chain([CALLER])
        .collect();
    let mut by_name: BTreeMap<&str, Vec<&Span>> = BTreeMap::new();
    for span in spans {
        assert!(ids.contains(span.parent.as_str()), "{span:#?} has no parent");
        by_name.entry(&span.name).or_default().push(span);
    }
    by_name
}

/// Whether the parents of all these spans are among the second list of spans.
fn are_within(spans: &[&Span], parents: &[&Span]) -> bool {
    spans
        .iter()
        .all(|span| parents.iter().any(|parent| parent.id == span.parent))
}

#[tokio::test]
async fn a_rest_call_its_reconciles_provider_calls_and_deliveries_are_one_trace() {
    let plane = own_plane().await;
    let collector = Receiver::start(|_| Answer::ok()).await;
    // The first attempt fails.
    let receiver = Receiver::queue([Answer::status(500), Answer::ok()]).await;
    let receivers = receiver_arguments(&plane);
    let of_api = receivers
        .iter()
        .filter(|argument| argument.starts_with("--receiver-"));
    let api: Vec<&str> = ["api"].into_iter().chain(of_api.map(String::as_str)).collect();
    let controller = [
        "controller",
        "--provisioning-seconds=0.5",
        "--retry-schedule=200ms",
    ];
    let controller: Vec<&str> = controller
        .into_iter()
        .chain(receivers.iter().map(String::as_str))
        .collect();
    let mut controller = traced(&plane, &controller, &collector).await;
    let mut api = traced(&plane, &api, &collector).await;
    let tenant = Tenant::on(&plane, &api, "traces").await;
    let events = [
        "instance.created",
        "instance.started",
        "instance.stopped",
        "backup.completed",
    ];
    let url = receiver.url("/path-of-the-hook?token=query-of-the-hook");
    let webhook = tenant.webhook("orders", &url, &events).await;
    let call = async |status, path: &str, body: Value, headers: &[(&str, &str)]| {
        expect(&tenant, status, Method::POST, path, Some(&body), headers).await
    };

    let new = json!({ "name": "web", "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
    let headers = [
        ("traceparent", &*traceparent(1)),
        ("tracestate", "vendor=state-of-the-caller"),
    ];
    let created = call(201, "/v1/instances", new.clone(), &headers).await.json();
    let id = created["data"]["id"].as_str().unwrap();
    let first = receiver.wait_for(3).await;
    let running = tenant.wait_for_state(id, InstanceState::Running).await;
    assert_eq!(annotation(&running).unwrap()[3..35], trace(1));
    let taken_up = |instance: &Instance| instance.status.clone().unwrap().traceparent;
    assert_eq!(taken_up(&running).as_deref(), annotation(&running));

    // The annotation stays, but a later change is not attributed to it.
    tenant.power(id, "Stopped").await;
    assert_eq!(told(&receiver.wait_for(4).await[3]), ("instance.stopped", ""));
    // Another request has its own trace.
    tenant.wait_for_state(id, InstanceState::Stopped).await;
    let path = format!("/v1/instances/{id}/start");
    call(202, &path, json!({}), &[("traceparent", &traceparent(2))]).await;
    assert_eq!(
        told(&receiver.wait_for(5).await[4]),
        ("instance.started", &*trace(2))
    );
    // With kubectl, anybody may start a trace; an invalid value is ignored.
    tenant.wait_for_state(id, InstanceState::Running).await;
    let own = traceparent(3);
    let change =
        json!({ "metadata": { "annotations": { ANNOTATION: own } }, "spec": { "powerState": "Stopped" } });
    tenant.merge(id, &change).await;
    assert_eq!(
        told(&receiver.wait_for(6).await[5]),
        ("instance.stopped", &*trace(3))
    );
    tenant.wait_for_state(id, InstanceState::Stopped).await;
    let nonsense = format!("{own}\" onload=\"{}", "x".repeat(4_000));
    let change = json!({ "metadata": { "annotations": { ANNOTATION: nonsense } }, "spec": { "powerState": "Running" } });
    tenant.merge(id, &change).await;
    assert_eq!(told(&receiver.wait_for(7).await[6]), ("instance.started", ""));
    let running = tenant.wait_for_state(id, InstanceState::Running).await;
    assert_eq!(taken_up(&running), Some(own));

    let path = format!("/v1/webhooks/{}/test", webhook.id());
    call(202, &path, json!({}), &[("traceparent", &traceparent(4))]).await;
    assert_eq!(
        told(&receiver.wait_for(8).await[7]),
        ("instance.created", &*trace(4))
    );
    let path = format!("/v1/instances/{id}/backups");
    call(201, &path, json!({}), &[("traceparent", &traceparent(5))]).await;
    assert_eq!(
        told(&receiver.wait_for(9).await[8]),
        ("backup.completed", &*trace(5))
    );
    // A caller that does not sample its trace is not traced.
    let unsampled = traceparent(6).replace("-01", "-00");
    let created = call(201, "/v1/instances", new, &[("traceparent", &unsampled)])
        .await
        .json();
    let untraced = receiver.wait_for(11).await;
    assert!(
        untraced[9..].iter().all(|delivery| told(delivery).1.is_empty()),
        "{untraced:#?}"
    );
    let untraced = tenant
        .instances()
        .get(created["data"]["id"].as_str().unwrap())
        .await
        .unwrap();
    assert_eq!((annotation(&untraced), taken_up(&untraced)), (None, None));
    // An invalid traceparent starts a new trace.
    let headers = [("traceparent", "00-1-1-01")];
    expect(&tenant, 200, Method::GET, "/v1/instances", None, &headers).await;

    // At shutdown everything is sent.
    api.stop().await;
    controller.stop().await;
    let all = spans(&collector);
    let one = joined(&all, 1);
    let [request] = one["POST /v1/instances"][..] else {
        panic!("{one:#?}")
    };
    assert_eq!(
        (request.kind, &*request.parent, &*request.service),
        (SpanKind::Server, CALLER, "stellage-api")
    );
    assert_eq!(
        [
            &request.attributes["http.route"],
            &request.attributes["http.response.status_code"]
        ],
        ["/v1/instances", "201"]
    );
    let reconciles = &one["reconcile Instance"];
    assert!(are_within(reconciles, &[request]), "{one:#?}");
    assert!(
        reconciles
            .iter()
            .all(|span| span.service == "stellage-controller")
    );
    assert!(are_within(&one["provider step"], reconciles), "{one:#?}");
    assert_eq!(one["provider step"][0].attributes["stellage.operation"], "Create");
    let deliveries = &one["deliver event"];
    assert!(are_within(deliveries, reconciles), "{one:#?}");
    let attempts: BTreeSet<_> = deliveries
        .iter()
        .map(|span| {
            let of = |name: &str| span.attributes[name].as_str();
            let attempt = of("stellage.delivery.attempt");
            (
                of("stellage.event.type"),
                attempt,
                of("http.response.status_code"),
                span.has_failed,
            )
        })
        .collect();
    let expected = [
        ("instance.created", "1", "500", true),
        ("instance.created", "2", "200", false),
        ("instance.started", "1", "200", false),
    ];
    assert_eq!(attempts, BTreeSet::from(expected));
    let sent: BTreeSet<String> = deliveries
        .iter()
        .map(|span| format!("00-{}-{}-01", span.trace, span.id))
        .collect();
    let received = first
        .iter()
        .map(|delivery| delivery.header("traceparent").to_owned());
    assert_eq!(sent, received.collect());

    assert!(
        joined(&all, 2).contains_key("deliver event") && joined(&all, 3).contains_key("reconcile Instance")
    );
    let test = joined(&all, 4);
    let [request] = test["POST /v1/webhooks/{id}/test"][..] else {
        panic!("{test:#?}")
    };
    assert!(are_within(&test["deliver event"], &[request]));
    let backup = joined(&all, 5);
    assert!(
        are_within(&backup["deliver event"], &backup["reconcile Backup"]),
        "{backup:#?}"
    );
    assert!(
        are_within(&backup["provider backup"], &backup["reconcile Backup"]),
        "{backup:#?}"
    );
    assert!(joined(&all, 6).is_empty());
    let traces: Vec<String> = (1..=6).map(trace).collect();
    for span in all.iter().filter(|span| !traces.contains(&span.trace)) {
        assert!(
            span.kind == SpanKind::Server && span.parent.is_empty(),
            "{span:#?}"
        );
    }

    // No secrets are sent with them, and the log names the trace.
    for request in collector.received() {
        assert_eq!(request.header("x-token"), TOKEN);
        let text = String::from_utf8_lossy(&request.body).into_owned();
        assert_eq!(secrets_in(&text), Vec::<String>::new());
        for secret in [
            &*tenant.key,
            SECRET,
            "path-of-the-hook",
            "query-of-the-hook",
            "state-of-the-caller",
            "created_at",
        ] {
            assert!(!text.contains(secret), "{secret}");
        }
    }
    assert!(
        api.log().contains(&format!("trace_id={}", trace(1))),
        "{}",
        api.log()
    );
}

#[tokio::test]
async fn without_an_endpoint_a_traceparent_is_neither_stored_nor_sent() {
    let tenant = Tenant::new("traces-off").await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    tenant
        .webhook("orders", &receiver.url("/hook"), &["instance.created"])
        .await;
    let new = json!({ "name": "web", "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
    let parent = traceparent(1);
    let created = expect(
        &tenant,
        201,
        Method::POST,
        "/v1/instances",
        Some(&new),
        &[("traceparent", &parent)],
    )
    .await;
    tenant
        .apply("kubectl", |instance| {
            instance.metadata.annotations = Some([(ANNOTATION.to_owned(), parent.clone())].into());
        })
        .await;
    let deliveries = receiver.wait_for(2).await;
    assert!(
        deliveries
            .iter()
            .all(|delivery| delivery.header("traceparent").is_empty())
    );
    let id = created.json()["data"]["id"].as_str().unwrap().to_owned();
    assert_eq!(annotation(&tenant.instances().get(&id).await.unwrap()), None);
    let status = tenant
        .wait_for_state("kubectl", InstanceState::Running)
        .await
        .status;
    assert_eq!(status.unwrap().traceparent, None);
}

#[tokio::test]
async fn a_ratio_of_zero_traces_nobody() {
    let plane = shared().await.plane;
    let collector = Receiver::start(|_| Answer::ok()).await;
    let mut api = traced(plane, &["api", "--trace-ratio=0"], &collector).await;
    let tenant = Tenant::on(plane, &api, "traces-ratio").await;
    let headers = [("traceparent", &*traceparent(1))];
    let new = json!({ "name": "web", "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
    let created = expect(&tenant, 201, Method::POST, "/v1/instances", Some(&new), &headers)
        .await
        .json();
    let id = created["data"]["id"].as_str().unwrap();
    assert_eq!(annotation(&tenant.instances().get(id).await.unwrap()), None);
    api.stop().await;
    assert_eq!(collector.count(), 0);
}

#[tokio::test]
async fn a_receiver_of_traces_that_hangs_or_is_down_delays_neither_requests_nor_the_shutdown() {
    let plane = shared().await.plane;
    let hanging = Receiver::start(|_| Answer::ok().after(Duration::from_secs(600))).await;
    let mut api = traced(plane, &["api"], &hanging).await;
    let tenant = Tenant::on(plane, &api, "traces-hang").await;
    hanging.wait_for(1).await;
    create(&tenant, "web").await;
    let begun = Instant::now();
    api.stop().await;
    // Five seconds for the traces.
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());

    let down = Receiver::start(|_| Answer::ok()).await;
    let begun = Instant::now();
    let mut api = {
        let down = down;
        traced(plane, &["api"], &down).await
    };
    let tenant = Tenant::on(plane, &api, "traces-down").await;
    let failed = async || {
        api.metric("stellage_trace_exports_total", "outcome=\"failed\"")
            .await
    };
    eventually("several failures", failed, |failed| *failed >= 2.0).await;
    create(&tenant, "web").await;
    api.stop().await;
    let log = api.log();
    let complaints = log.lines().filter(|line| line.contains("cannot send traces"));
    // One a minute.
    let most = 1 + usize::try_from(begun.elapsed().as_secs() / 60).unwrap();
    assert!((1..=most).contains(&complaints.count()), "{log}");
}

#[tokio::test]
async fn a_bad_endpoint_is_refused_with_its_name_and_what_it_should_be() {
    let plane = shared().await.plane;
    let run = |arguments: &[&str], variable: &str| {
        let output = Command::new(STELLAGE)
            .args(arguments)
            .args(["--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0"])
            .env("KUBECONFIG", plane.kubeconfig(Identity::Operator))
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", variable)
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let said = run(&["api", "--otlp-endpoint=collector:4318"], "");
    assert!(
        said.contains("--otlp-endpoint") && said.contains("http://collector:4318"),
        "{said}"
    );
    let said = run(&["api"], "collector:4318");
    assert!(
        said.contains("OTEL_EXPORTER_OTLP_ENDPOINT") && said.contains("http://collector:4318"),
        "{said}"
    );
    let said = run(&["api", "--trace-ratio=2"], "");
    assert!(
        said.contains("--trace-ratio") && said.contains("from 0 to 1"),
        "{said}"
    );
}
