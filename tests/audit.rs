//! Who did what: the lines about writes, in the log and over OTLP.

use control_plane::Identity;
use reqwest::Method;
use serde_json::{Value, json};

use crate::console::Person;
use crate::support::{
    Operator, Tenant, eventually,
    otlp::log_records,
    receivers::{Answer, Receiver},
    secrets_in, shared,
};

const SERVER: &str = r#"{ "name": "web", "plan": "starter", "region": "fr-par-1", "image": "debian-13" }"#;

async fn started(arguments: &[&str], environment: &[(&str, &str)]) -> Operator {
    let plane = shared().await.plane;
    let environment: Vec<_> = environment
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    Operator::start_in(
        plane,
        arguments,
        &environment,
        &plane.kubeconfig(Identity::Operator),
    )
    .await
}

/// The lines about writes of an account, in a log in JSON.
pub fn lines(operator: &Operator, account: &str) -> Vec<Value> {
    let log = operator.log();
    let lines = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let own =
        lines.filter(|line| line["target"] == "stellage::audit" && line["fields"]["account"] == account);
    own.map(|mut line| line["fields"].take()).collect()
}

#[tokio::test]
async fn each_write_is_a_line_with_the_key_the_address_the_object_and_the_outcome_whatever_the_filter() {
    let mut api = started(
        &["api", "--log-json", "--trusted-proxies=127.0.0.0/8"],
        &[("RUST_LOG", "error")],
    )
    .await;
    let tenant = Tenant::on(shared().await.plane, &api, "audit").await;
    let server: Value = serde_json::from_str(SERVER).unwrap();
    let proxied = [("X-Forwarded-For", "203.0.113.9"), ("X-Request-Id", "audit-me")];
    let created = tenant
        .call_with(Method::POST, "/v1/instances", Some(&server), &proxied)
        .await;
    assert_eq!(created.status.as_u16(), 201, "{}", created.text);
    let path = format!("/v1/instances/{}", created.json()["data"]["id"].as_str().unwrap());
    tenant.call(Method::GET, &path, None).await;
    let refused = tenant
        .call(Method::PATCH, &path, Some(&json!({ "plan": "none" })))
        .await;
    assert_eq!(refused.status.as_u16(), 422, "{}", refused.text);
    tenant.call(Method::DELETE, &path, None).await;
    let told = eventually(
        "three lines",
        async || lines(&api, "audit"),
        |lines| lines.len() >= 3,
    )
    .await;
    let shown = |line: &Value| {
        ["operation", "object", "status", "error"]
            .map(|field| line[field].to_string().trim_matches('"').to_owned())
    };
    assert_eq!(
        told.iter().map(shown).collect::<Vec<_>>(),
        [
            ["POST /v1/instances", &*path, "201", "null"],
            ["PATCH /v1/instances/{id}", &*path, "422", "invalid_input"],
            ["DELETE /v1/instances/{id}", &*path, "204", "null"],
        ]
    );
    assert_eq!(
        (&told[0]["client"], &told[0]["request_id"], &told[0]["audit"]),
        (&json!("203.0.113.9"), &json!("audit-me"), &json!(true))
    );
    assert_eq!(told[1]["client"], "127.0.0.1");
    assert!(
        told.iter()
            .all(|line| line["key"] == told[0]["key"] && line["key"].is_string())
    );
    assert_eq!(secrets_in(&api.log()), Vec::<String>::new());
    api.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sign_ins_to_the_console_and_writes_through_it_are_lines_with_the_name_of_the_key() {
    let mut api = started(&["api", "--log-json", "--console-insecure-cookie"], &[]).await;
    let tenant = Tenant::on(shared().await.plane, &api, "audit-console").await;
    let body = json!({ "name": "laptop", "scope": "write" });
    let key = tenant.call(Method::POST, "/v1/keys", Some(&body)).await.json()["data"].take();
    let person = Person::with_key(&api.url, key["key"].as_str().unwrap()).await;
    person.get("/console/keys").await.is(200);
    person
        .submit(
            &format!("/console/keys/{}/revoke", key["id"].as_str().unwrap()),
            &[],
        )
        .await;
    let told = eventually(
        "three lines",
        async || lines(&api, "audit-console"),
        |lines| lines.len() >= 3,
    )
    .await;
    let shown = |line: &Value| {
        ["operation", "object", "status", "key_name", "client"]
            .map(|field| line[field].to_string().trim_matches('"').to_owned())
    };
    let revoked = format!("/v1/keys/{}", key["id"].as_str().unwrap());
    assert_eq!(
        told[1..].iter().map(shown).collect::<Vec<_>>(),
        [
            ["sign-in", "null", "303", "laptop", "127.0.0.1"],
            ["DELETE /v1/keys/{id}", &*revoked, "204", "laptop", "127.0.0.1"],
        ]
    );
    assert!(told[1..].iter().all(|line| line["key"] == key["id"]), "{told:?}");
    assert!(told[2]["request_id"].is_string());
    api.stop().await;
}

#[tokio::test]
async fn audit_lines_are_also_sent_over_otlp_if_that_is_wanted() {
    let collector = Receiver::start(|_| Answer::ok()).await;
    let plane = shared().await.plane;
    let ca = plane.folder().join("audit-receiver.pem");
    std::fs::write(&ca, Receiver::ca_pem()).unwrap();
    let environment = [
        ("STELLAGE_OTLP_ENDPOINT", &*collector.url("/")),
        ("OTEL_BLRP_SCHEDULE_DELAY", "100"),
        ("SSL_CERT_FILE", ca.to_str().unwrap()),
    ];
    let mut api = started(&["api", "--otlp-audit", "--trace-ratio=0"], &environment).await;
    let tenant = Tenant::on(plane, &api, "audit-otlp").await;
    let server: Value = serde_json::from_str(SERVER).unwrap();
    let created = tenant.call(Method::POST, "/v1/instances", Some(&server)).await;
    assert_eq!(created.status.as_u16(), 201, "{}", created.text);
    let records = eventually(
        "the record",
        async || log_records(&collector, "stellage.audit"),
        |records| !records.is_empty(),
    )
    .await;
    let own = records
        .iter()
        .find(|record| record["account"] == "audit-otlp")
        .unwrap();
    assert_eq!(
        (&*own["operation"], &*own["status"], &*own["request_id"]),
        ("POST /v1/instances", "201", created.header("x-request-id"))
    );
    api.stop().await;
}
