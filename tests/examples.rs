//! Runs the examples, and the commands that the README and the pages under docs/ show.

use std::{path::Path, process::Command};

use providers::simulator::FAULT_ANNOTATION;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use crate::{
    facade::wait_for,
    kubevirt::installation::{self, Case},
    support::{
        PATIENCE, Tenant, eventually, kubectl,
        kubevirt::entry::REGION,
        receivers::{Answer, OWN_ADDRESS, Options, Receiver},
        shared,
        walkthrough::{Shell, Step, steps},
    },
};

/// The output of the only command that contains this text.
fn output_of<'a>(ran: &'a [(String, String)], text: &str) -> &'a str {
    let mut found = ran.iter().filter(|(command, _)| command.contains(text));
    match (found.next(), found.next()) {
        (Some((_, output)), None) => output,
        found => panic!("not one command with {text}: {found:?}"),
    }
}

#[tokio::test]
async fn the_tour_runs_as_the_readme_says() {
    let tenant = Tenant::new("demo").await;
    tour(&tenant, Shell::start(&tenant).await).await;
}

#[tokio::test]
async fn the_tour_runs_as_the_readme_says_with_servers_of_kubevirt() {
    let case = Case::new("demo").await;
    let plane = &installation::shared(&case.region).await.plane;
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::create_dir(folder.path().join("examples")).unwrap();
    for example in ["account.yaml", "instance.yaml", "create-and-wait.sh"] {
        let (from, to) = (
            root.join("examples").join(example),
            folder.path().join("examples").join(example),
        );
        std::fs::copy(&from, &to).unwrap();
        let text = std::fs::read_to_string(&to).unwrap();
        std::fs::write(&to, text.replace("fr-par-1", REGION)).unwrap();
    }
    let shell = Shell::of(&case.tenant, plane, folder.path()).await;
    tour(&case.tenant, shell).await;
}

async fn tour(tenant: &Tenant, mut shell: Shell) {
    let mut ran = Vec::new();
    for step in steps("README.md", "## A short tour") {
        // The shared cluster is used instead.
        if step.command.starts_with("make run") || step.command == "source .run/env" {
            continue;
        }
        if step.command.contains("$instance/stop") {
            // kubectl may have seen the end of the resize a moment before the facade.
            let id = shell.run("echo $id").await;
            wait_for(tenant, &id, "running").await;
        }
        let output = shell.run(&step.command).await;
        ran.push((step.command, output));
    }
    let output_of = |text| output_of(&ran, text);
    assert!(output_of("apply -f examples/account.yaml").contains("account.stellage.dev/ada"));
    assert!(output_of("-n ada wait").contains("instance.stellage.dev/web condition met"));
    let created = output_of("examples/create-and-wait.sh");
    assert!(created.contains(": Instance web is being created"), "{created}");
    assert!(created.ends_with(": running"), "{created}");
    let id = shell.run("echo $id").await;
    assert!(output_of("get instances -A").contains(&id));
    let resized = output_of("PATCH");
    for expected in [
        r#""status":"resizing""#,
        r#""plan":"starter","pending_plan":"business""#,
    ] {
        assert!(resized.contains(expected), "{resized}");
    }
    assert!(output_of("-n demo wait").contains("condition met"));
    assert_eq!(output_of("/stop"), r#""Instance web is being shut down.""#);
    let refused = output_of("/reboot");
    assert!(refused.starts_with("the instance is stop"), "{refused}");
    assert!(
        refused.ends_with("; reboot is allowed from running, error"),
        "{refused}"
    );
    assert_eq!(output_of("DELETE"), "");
    let path = format!("/v1/instances/{id}");
    let status = async || tenant.call(Method::GET, &path, None).await.status;
    eventually("it to be gone", status, |status| *status == StatusCode::NOT_FOUND).await;
}

/// A server that gives these answers, one after the other, each on its own connection. Returns its URL and the requests that came.
async fn answering(answers: &'static [&'static str]) -> (String, tokio::task::JoinHandle<Vec<String>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serve = async move {
        let mut requests = Vec::new();
        for answer in answers {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            let is_whole = |request: &[u8]| {
                let text = String::from_utf8_lossy(request).into_owned();
                text.split_once("\r\n\r\n")
                    .is_some_and(|(head, body)| head.starts_with("GET ") || body.ends_with('}'))
            };
            while !is_whole(&request) {
                assert_ne!(connection.read_buf(&mut request).await.unwrap(), 0);
            }
            requests.push(String::from_utf8(request).unwrap());
            let answer = answer.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
            connection.write_all(answer.as_bytes()).await.unwrap();
        }
        requests
    };
    (url, tokio::spawn(serve))
}

#[tokio::test]
async fn the_example_asks_again_with_the_same_key_when_it_is_told_to_wait_or_gets_no_answer() {
    const LOST: &str = "";
    const WAIT: &str = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 0\r\n\r\n{\"error\":{\"code\":\"rate_limit_exceeded\",\"message\":\"wait\"}}";
    let (url, requests) = answering(&[
        WAIT,
        LOST,
        "HTTP/1.1 201 Created\r\n\r\n{\"data\":{\"id\":\"i-1\"},\"message\":\"soon\"}",
        WAIT,
        "HTTP/1.1 200 OK\r\n\r\n{\"data\":{\"id\":\"i-1\",\"status\":\"running\"}}",
    ])
    .await;
    let mut script = tokio::process::Command::new("examples/create-and-wait.sh");
    script
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("STELLAGE_URL", &url)
        .env("STELLAGE_API_KEY", "stl_x")
        .kill_on_drop(true);
    let ended = timeout(PATIENCE, script.output()).await.unwrap().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let requests = requests.await.unwrap();
    let keys = requests.iter().map(|request| {
        let key = request
            .lines()
            .find_map(|line| line.strip_prefix("Idempotency-Key: "));
        key.map(str::to_owned)
    });
    let keys: Vec<_> = keys.collect();
    assert!(
        keys[0].is_some() && keys[0] == keys[1] && keys[1] == keys[2],
        "{keys:?}"
    );
    assert_eq!(keys[3..], [None, None], "of a POST alone");
}

#[tokio::test]
async fn the_example_says_why_an_instance_could_not_be_created() {
    let tenant = Tenant::new("example-error").await;
    let mut script = tokio::process::Command::new("examples/create-and-wait.sh");
    script
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("STELLAGE_URL", &tenant.url)
        .env("STELLAGE_API_KEY", &tenant.key)
        .kill_on_drop(true);
    let script = tokio::spawn(async move { script.output().await.unwrap() });
    let instances = async || tenant.all_instances().await;
    let found = eventually("the instance", instances, |found| !found.is_empty()).await;
    // Its server may already have been provisioned, so provision it once more. The script checks again after
    // five seconds.
    let name = found[0].metadata.name.as_deref().unwrap();
    tenant
        .merge(
            name,
            &json!({
                "metadata": { "annotations": { FAULT_ANNOTATION: "provisioning" } },
                "spec": { "rebuildRequestedAt": "2026-11-21T10:00:00Z" },
            }),
        )
        .await;
    let ended = timeout(PATIENCE, script).await.unwrap().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let said = String::from_utf8_lossy(&ended.stderr);
    let last = said.lines().last().unwrap_or_default();
    let shown = wait_for(&tenant, &found[0].id(), "error").await;
    let message = shown["status_message"].as_str().unwrap();
    assert!(
        message.contains("the simulated fault 'provisioning' is switched on"),
        "{message}"
    );
    assert_eq!(last, format!("{} could not be created: {message}", found[0].id()));
}

/// Whether two JSON values have the same fields. Lists are compared by their first items.
fn have_the_same_fields(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(name, value)| {
                    other
                        .get(name)
                        .is_some_and(|other| have_the_same_fields(value, other))
                })
        }
        (Value::Array(one), Value::Array(other)) => match (one.first(), other.first()) {
            (Some(one), Some(other)) => have_the_same_fields(one, other),
            (one, other) => one.is_none() == other.is_none(),
        },
        _ => true,
    }
}

#[tokio::test]
async fn a_failed_delivery_is_understood_and_sent_again_as_the_page_says() {
    let tenant = Tenant::new("walk-delivery").await;
    // Tests of other checkouts may run at the same time.
    let port = 20_000 + u16::try_from(std::process::id() % 5000).unwrap();
    let options = Options {
        listen: format!("{OWN_ADDRESS}:{port}").parse().unwrap(),
        ..Options::default()
    };
    let mut shell = Shell::start(&tenant).await;
    let mut receiver = None;
    let mut ran = Vec::new();
    for Step { command, shown } in steps("docs/receivers.md", "## A failed delivery, step by step") {
        // The shared cluster is used instead; its retries take a second in total.
        if command.starts_with("make run") || command == "source .run/env" {
            continue;
        }
        if command.contains("receiver.py") {
            assert!(receiver.is_none());
            receiver = Some(Receiver::with(options, |_| Answer::ok()).await);
            continue;
        }
        let command = command.replace("127.0.0.1:8443", &options.listen.to_string());
        let output = shell.run(&command).await;
        if let Ok(shown) = serde_json::from_str::<Value>(&shown) {
            let output: Value = serde_json::from_str(&output).unwrap();
            assert!(
                have_the_same_fields(&shown, &output),
                "{command} shows {output:#}"
            );
        }
        ran.push((command, output));
    }
    let output_of = |text| output_of(&ran, text);
    let webhook = output_of("{active, health,");
    assert!(
        webhook.contains(r#""health_reason": "retries_exhausted""#),
        "{webhook}"
    );
    let listed = output_of("join(");
    for expected in ["instance.created exhausted", "instance.started held"] {
        assert!(listed.lines().any(|line| line.ends_with(expected)), "{listed}");
    }
    let delivery: Value = serde_json::from_str(output_of(".attempts |=")).unwrap();
    assert_eq!(
        delivery["attempts"][0]["error"],
        "cannot connect to the receiver: connection refused"
    );
    let sent = output_of("/redeliver");
    assert!(
        sent.ends_with("but only once, because its webhook is disabled."),
        "{sent}"
    );
    assert_eq!(output_of("PATCH"), "true");
    let received = receiver.unwrap().wait_for(2).await;
    let types: Vec<_> = received
        .iter()
        .map(|it| it.header("X-Service-Event-Type"))
        .collect();
    assert_eq!(types, ["instance.created", "instance.started"]);
    assert_eq!(
        received[0].header("X-Service-Event-ID"),
        delivery["event_id"].as_str().unwrap()
    );
}

#[tokio::test]
async fn an_api_key_is_rotated_as_the_page_says() {
    let tenant = Tenant::new("walk-key").await;
    let mut shell = Shell::start(&tenant).await;
    let auth = steps("docs/rest-api.md", "## Requests")
        .into_iter()
        .find(|step| step.command.starts_with("auth="));
    shell.run(&auth.unwrap().command).await;
    let mut ran = Vec::new();
    for Step { command, .. } in steps("docs/rest-api.md", "### Rotating an API key") {
        let output = shell.run(&command).await;
        ran.push((command, output));
    }
    assert_eq!(output_of(&ran, "/v1/account"), "walk-key");
    assert_eq!(output_of(&ran, "DELETE"), "");
    let status = async || tenant.call(Method::GET, "/v1/plans", None).await.status;
    eventually("the old key to be refused", status, |status| {
        *status == StatusCode::UNAUTHORIZED
    })
    .await;
    let new = shell.run("echo $new").await;
    let client = reqwest::Client::new();
    let plans = format!("{}/v1/plans", tenant.url);
    let answer = client.get(plans).bearer_auth(new).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
}

#[tokio::test]
async fn the_example_creates_a_webhook_over_rest_and_shows_what_it_was_sent() {
    let tenant = Tenant::new("example-rest-hook").await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let mut command = Command::new("examples/webhook.sh");
    command
        .arg(receiver.url("/hook"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("STELLAGE_URL", &tenant.url)
        .env("STELLAGE_API_KEY", &tenant.key)
        .env_remove("WEBHOOK_SECRET");
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await;
    let output = output.unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(shown.contains("instance.created\tevt_test_"), "{shown}");
    assert!(shown.contains("\tdelivered\t200"), "{shown}");
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn the_example_of_a_webhook_is_one_that_the_cluster_takes() {
    let tenant = Tenant::new("example-webhook").await;
    let manifest = include_str!("../examples/webhook.yaml")
        .replace("namespace: ada", &format!("namespace: {}", tenant.namespace));
    let applied = kubectl(shared().await.plane, "apply -f -", Some(&manifest)).unwrap();
    assert!(
        applied.contains("webhook.stellage.dev/receiver created"),
        "{applied}"
    );
}
