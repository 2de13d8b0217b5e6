//! Runs the examples exactly as the README says.

use std::process::Command;

use control_plane::Identity;
use reqwest::StatusCode;

use crate::support::{
    STELLAGE, Tenant, eventually, kubectl, new_key,
    receivers::{Answer, Receiver},
    shared,
};

/// Runs one line of the README in a shell with the variables of `.run/env`.
async fn run_line_of_readme(line: &str, key: &str) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    let readme = std::fs::read_to_string(format!("{root}/README.md")).unwrap();
    assert!(
        readme.lines().any(|l| l.trim_start_matches("$ ").trim() == line),
        "the README does not say: {line}"
    );
    let cluster = shared().await;
    let binaries = std::path::Path::new(STELLAGE).parent().unwrap();
    let path = format!(
        "{}:{}:{}",
        binaries.display(),
        cluster.plane.assets().kubectl_folder().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let (line, key) = (line.to_owned(), key.to_owned());
    let output = tokio::task::spawn_blocking(move || {
        Command::new("bash")
            .args(["-c", &line])
            .current_dir(root)
            .env("PATH", path)
            .env("KUBECONFIG", cluster.plane.kubeconfig(Identity::Admin))
            .env("STELLAGE_URL", &cluster.operator.url)
            .env("STELLAGE_API_KEY", key)
            .output()
            .unwrap()
    })
    .await
    .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    text
}

#[tokio::test]
async fn the_examples_run_as_the_readme_says() {
    run_line_of_readme("kubectl apply -f examples/account.yaml", "").await;
    run_line_of_readme("kubectl wait --for=condition=Ready account/ada --timeout=2m", "").await;
    run_line_of_readme("kubectl apply -f examples/instance.yaml", "").await;
    run_line_of_readme(
        "kubectl -n ada wait --for=condition=Ready instance/web --timeout=5m",
        "",
    )
    .await;
    let key = new_key(shared().await.plane, "ada", "write");
    let plans = format!("{}/v1/plans", shared().await.operator.url);
    let answer = async || {
        let answer = reqwest::Client::new().get(&plans).bearer_auth(&key).send().await;
        answer.unwrap().status()
    };
    eventually("the key to be known", answer, |status| *status == StatusCode::OK).await;
    let seen = run_line_of_readme("examples/create-and-wait.sh", &key).await;
    assert!(
        seen.contains(": provisioning") || seen.contains(": running"),
        "{seen}"
    );
    assert!(seen.contains("\"status\": \"running\""), "{seen}");
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
