//! What operators log, and what they never do.

use std::fs;

use control_plane::Identity;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    support::{
        Operator, Tenant, eventually,
        receivers::{Answer, Receiver},
        refusals::{Refusals, refusals},
        secrets_in, shared, shared_at_last,
    },
    webhooks::ALL,
};

const ID: &str = "trace-me-4711";

/// An operator that logs each request. It runs next to the shared one, which is the leader.
async fn talkative(arguments: &[&str]) -> Operator {
    let plane = shared().await.plane;
    let environment = [(
        "RUST_LOG".to_owned(),
        "info,stellage_server::facade=debug".to_owned(),
    )];
    Operator::start_in(
        plane,
        arguments,
        &environment,
        &plane.kubeconfig(Identity::Operator),
    )
    .await
}

/// Sends a request that is logged under [`ID`]; returns its log line.
async fn logged(operator: &Operator, account: &str) -> String {
    let tenant = Tenant::on(shared().await.plane, operator, account).await;
    let headers = [("X-Request-Id", ID)];
    let answer = tenant
        .call_with(Method::GET, "/v1/instances/i-0000000000000000", None, &headers)
        .await;
    assert_eq!((answer.status.as_u16(), answer.header("x-request-id")), (404, ID));
    let line = async || {
        operator
            .log()
            .lines()
            .find(|line| line.contains(ID))
            .map(ToOwned::to_owned)
    };
    eventually("the line", line, Option::is_some).await.unwrap()
}

#[tokio::test]
async fn each_line_about_a_request_has_its_id_as_json_and_as_text() {
    let mut json = talkative(&["api", "--log-json"]).await;
    let line: Value = serde_json::from_str(&logged(&json, "logs-json").await).unwrap();
    assert_eq!(
        line["span"],
        json!({ "name": "request", "request_id": ID }),
        "{line}"
    );
    assert_eq!(
        (&line["fields"]["message"], &line["fields"]["status"]),
        (&json!("answered"), &json!(404))
    );
    for line in json.log().lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
    }
    json.stop().await;
    let mut text = talkative(&["api"]).await;
    let line = logged(&text, "logs-text").await;
    assert!(
        line.contains(&format!("request{{request_id=\"{ID}\"}}")),
        "{line}"
    );
    text.stop().await;
}

#[tokio::test]
async fn no_secret_that_tests_have_used_and_no_body_of_an_event_is_in_the_logs() {
    let cluster = shared_at_last().await;
    let tenant = Tenant::new("logs-secrets").await;
    // One receiver fails, so that there is something to log.
    let receiver = Receiver::start(|_| Answer::status(500)).await;
    let webhook = json!({ "url": receiver.url("/hook"), "events": ALL });
    let created = tenant
        .call(Method::POST, "/v1/webhooks", Some(&webhook))
        .await
        .json();
    let secret = created["data"]["secret"].as_str().unwrap().to_owned();
    assert_eq!(
        secrets_in(&format!("a line with {secret}")),
        [secret.clone(), "whsec_".to_owned()]
    );
    assert_eq!(secrets_in(&format!("{} in it", tenant.key)).len(), 2);
    tenant.apply("web", |_| {}).await;
    receiver.wait_for(2).await;
    let logs = fs::read_dir(cluster.plane.folder())
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let logs = logs.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    let mut count = 0;
    for path in logs.filter(|path| {
        path.file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("stellage-")
    }) {
        let log = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
        assert_eq!(secrets_in(&log), Vec::<String>::new(), "{}", path.display());
        count += 1;
    }
    assert!(count > 0);
}

#[tokio::test]
async fn no_operator_that_tests_have_shared_asked_the_api_server_for_what_it_has_no_right_to() {
    let cluster = shared_at_last().await;
    let requests = cluster.plane.requests().unwrap();
    let Refusals {
        mut unexcused,
        in_force,
    } = refusals(&requests);
    // A test requests more in the operator's name, and is refused.
    unexcused.retain(|request| (&*request.namespace, &*request.resource) != ("acc-rights", "rolebindings"));
    assert!(unexcused.is_empty(), "{unexcused:#?}");
    assert!(!in_force.is_empty());
}
