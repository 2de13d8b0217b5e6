//! The commands of docs/privacy.md: handing out and erasing the data of one account.

use std::{fs, process::Command};

use reqwest::Method;
use resources::InstanceState;
use serde_json::{Value, json};

use crate::support::{
    self, Tenant, eventually, kubectl, kubectl_words,
    receivers::{Answer, Receiver},
    shared, stellage_words,
};

/// The command lines of the page that begin with this, for another account than `ada`.
fn commands(begin: &str, account: &str) -> Vec<String> {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/privacy.md")).unwrap();
    let lines = page.lines().filter_map(|line| line.strip_prefix("$ "));
    let found: Vec<_> = lines
        .filter(|line| line.starts_with(begin))
        .map(|line| {
            let line = line.replace(" ada", &format!(" {account}"));
            line.replace("/ada", &format!("/{account}"))
        })
        .collect();
    assert!(!found.is_empty(), "no command {begin}");
    found
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').skip(1).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_data_of_an_account_are_handed_out_without_its_secrets_and_erased() {
    let tenant = Tenant::new("forgetme").await;
    let plane = shared().await.plane;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let webhook = tenant
        .webhook("orders", &receiver.url("/"), &["instance.created"])
        .await;
    let order = json!({
        "name": "forgetme-web", "plan": "starter", "region": "fr-par-1", "image": "debian-13",
        "user_data": "#cloud-config\npassword: geheim\n",
    });
    let created = tenant.call(Method::POST, "/v1/instances", Some(&order)).await;
    assert_eq!(created.status, 201, "{created:?}");
    let id = created.json()["data"]["id"].as_str().unwrap().to_owned();
    tenant.wait_for_state(&id, InstanceState::Running).await;
    receiver.wait_for(1).await;
    let path = format!("/v1/webhooks/{}/deliveries", webhook.id());
    let logged = async || tenant.call(Method::GET, &path, None).await.json();
    eventually("the event to be logged", logged, |list| {
        list["data"][0]["status"] == "delivered"
    })
    .await;

    let folder = tempfile::tempdir().unwrap();
    for line in commands("stellage export", "forgetme") {
        let file = folder.path().join("forgetme.export");
        let line = line.replace("forgetme.export", file.to_str().unwrap());
        stellage_words(plane, &words(&line)).unwrap();
    }
    for line in commands("jq", "forgetme") {
        let mut shell = Command::new("bash");
        shell.args(["-euc", &line]).current_dir(folder.path());
        support::run(&mut shell, None).unwrap();
    }
    let text = fs::read_to_string(folder.path().join("forgetme.json")).unwrap();
    let objects: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for kind in ["Account", "Instance", "Webhook", "ApiKey", "EventLog"] {
        assert!(
            objects.iter().any(|object| object["kind"] == kind),
            "no {kind} in {text}"
        );
    }
    assert!(text.contains("forgetme@example.com") && text.contains("forgetme-web"));
    let secret = kubectl(plane, "get secrets -n forgetme -o json", None).unwrap();
    let secrets: Value = serde_json::from_str(&secret).unwrap();
    for value in secrets["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|it| it["data"].as_object())
    {
        for value in value.values() {
            assert!(!text.contains(value.as_str().unwrap()), "a secret is in {text}");
        }
    }

    for line in commands("kubectl delete account", "forgetme")
        .iter()
        .chain(&commands("kubectl wait", "forgetme"))
    {
        kubectl_words(plane, &words(line), None).unwrap();
    }
    let left = async || {
        let kinds = "namespaces,accounts,instances,webhooks,deliveries,eventlogs,apikeys,backups";
        kubectl(plane, &format!("get {kinds} -A -o json"), None).unwrap()
    };
    eventually("everything to go", left, |left| !left.contains("forgetme")).await;
}
