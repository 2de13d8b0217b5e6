//! Runs the examples, and the commands that the README and the pages under docs/ show.

use std::process::Command;

use kube::api::{Patch, PatchParams};
use reqwest::Method;
use serde_json::json;
use stellage::providers::simulator::FAULT_ANNOTATION;
use tokio::time::timeout;

use crate::{
    facade::{contract::expect, wait_for},
    support::{
        PATIENCE, Tenant, eventually, kubectl,
        receivers::{Answer, Receiver},
        shared,
        walkthrough::{Shell, steps},
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
    let mut shell = Shell::start(&tenant).await;
    let mut ran = Vec::new();
    for step in steps("README.md", "## A short tour") {
        // The shared cluster takes their place.
        if step.command.starts_with("make run") || step.command == "source .run/env" {
            continue;
        }
        if step.command.contains("$instance/stop") {
            // kubectl may have seen the end of the resize a moment before the facade.
            let id = shell.run("echo $id").await;
            wait_for(&tenant, &id, "running").await;
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
    expect(&tenant, 404, Method::GET, &path, None, &[]).await;
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
    // Its server may have been made by now, so it is made once more. The script looks again after five seconds.
    let fault = Patch::Merge(json!({
        "metadata": { "annotations": { FAULT_ANNOTATION: "provisioning" } },
        "spec": { "rebuildRequestedAt": "2026-11-21T10:00:00Z" },
    }));
    let name = found[0].metadata.name.as_deref().unwrap();
    let params = PatchParams::default();
    tenant.instances().patch(name, &params, &fault).await.unwrap();
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
    let applied = kubectl(shared().await.plane, &["apply", "-f", "-"], Some(&manifest)).unwrap();
    assert!(
        applied.contains("webhook.stellage.dev/receiver created"),
        "{applied}"
    );
}
