//! An API server that is slow, rejects requests, is unreachable, has no etcd and loses its watch history, while instances change.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    crashes::{Scene, arguments},
    ledger::Workload,
};
use crate::support::{
    Operator, USUAL_LEASE, eventually, kubectl,
    network::{Mode, Network},
    plane_with,
};

/// Number of changes that must be completed between two failures.
const CHANGES: usize = 40;
/// Longer than a leader whose Lease lasts for 15 s tries to renew it.
const CUT_FOR: Duration = Duration::from_secs(12);
/// How often the operator may log the same complaint, whatever it is about. The most frequent one is about watches: each of a dozen
/// fails anew every two seconds, for half a minute in all.
const SAME_COMPLAINTS: usize = 400;
/// How many complaints it may log in all.
const COMPLAINTS: usize = 1000;

/// Makes the API server refuse all the operator's requests with 429.
const NO_SEATS: &str = r#"
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: no-seats}
spec:
  type: Limited
  limited: {nominalConcurrencyShares: 0, lendablePercent: 0, borrowingLimitPercent: 0, limitResponse: {type: Reject}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: no-seats}
spec:
  priorityLevelConfiguration: {name: no-seats}
  matchingPrecedence: 2
  rules:
    - subjects: [{kind: User, user: {name: "system:serviceaccount:stellage-system:stellage"}}]
      resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], namespaces: ["*"], clusterScope: true}]
"#;

/// Removes all old versions from etcd, so that a watch cannot resume.
async fn compact(etcd: &str) {
    let http = reqwest::Client::new();
    let post = async |path: &str, body: Value| -> Value {
        let answer = http
            .post(format!("{etcd}{path}"))
            .json(&body)
            .send()
            .await
            .unwrap();
        answer.error_for_status().unwrap().json().await.unwrap()
    };
    let status = post("/v3/maintenance/status", json!({})).await;
    let revision = &status["header"]["revision"];
    post(
        "/v3/kv/compaction",
        json!({ "revision": revision, "physical": true }),
    )
    .await;
}

/// The warnings and errors in a log, without what they are about (`key=value`), and how often each is there; the most frequent ones
/// first.
fn complaints(log: &str) -> Vec<(usize, String)> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for line in log.lines() {
        let complaint = line.split_once(" WARN ").or_else(|| line.split_once(" ERROR "));
        if let Some((_, complaint)) = complaint {
            let words = complaint.split(' ').take_while(|word| !word.contains('='));
            *counts.entry(words.collect::<Vec<_>>().join(" ")).or_default() += 1;
        }
    }
    let mut complaints: Vec<_> = counts.into_iter().map(|(text, count)| (count, text)).collect();
    complaints.sort_unstable_by(|one, other| other.cmp(one));
    complaints
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_the_api_server_does_everything_converges_every_event_arrives_and_memory_and_log_stay_small()
{
    let plane = plane_with(control_plane::ControlPlane::options()).await;
    let network = Network::to(&plane).await;
    let mut arguments = arguments(&plane, "all");
    arguments.push(USUAL_LEASE.to_owned());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut operator = Operator::start_with(&plane, &arguments, &network.kubeconfig).await;
    let scene = Scene::new(&plane, &operator, "chaos", "all").await;
    let begun = Instant::now();
    let workload = Workload::start(&scene.tenant, &scene.names, Duration::from_millis(500)).await;
    let go_on = async || {
        let done = workload.count();
        let count = async || workload.count();
        eventually("changes to go on", count, |now| *now >= done + CHANGES).await;
    };
    go_on().await;
    let memory = operator.memory_kb("VmRSS");

    let mut misfortunes = Vec::new();
    for misfortune in [
        "slow",
        "refusing",
        "out of reach",
        "without etcd",
        "forgetful",
        "silent",
    ] {
        let at = Instant::now();
        match misfortune {
            "slow" => {
                network.set(Mode::Slow(Duration::from_secs(1)));
                tokio::time::sleep(CUT_FOR).await;
            }
            "refusing" => {
                kubectl(&plane, "apply --filename -", Some(NO_SEATS)).unwrap();
                tokio::time::sleep(CUT_FOR / 2).await;
                kubectl(&plane, "delete --filename -", Some(NO_SEATS)).unwrap();
            }
            "out of reach" => {
                network.set(Mode::Cut);
                tokio::time::sleep(CUT_FOR).await;
            }
            "without etcd" => {
                plane.kill_etcd().unwrap();
                tokio::time::sleep(CUT_FOR / 2).await;
                plane.start_etcd().await.unwrap();
            }
            "forgetful" => {
                network.set(Mode::Cut);
                tokio::time::sleep(CUT_FOR / 6).await;
                compact(&plane.etcd_url()).await;
                plane.kill_apiserver().unwrap();
                plane.start_apiserver().await.unwrap();
            }
            _ => network.set(Mode::OldOnesSilent),
        }
        if misfortune != "silent" {
            network.set(Mode::Open);
        }
        go_on().await;
        misfortunes.push(at);
        println!("{misfortune}: changes go on after {:.1?}", at.elapsed());
    }

    let done = workload.stop().await;
    println!(
        "an API server that misbehaves,{}",
        scene.close(done, begun, &misfortunes).await
    );
    let grown = operator.memory_kb("VmRSS").saturating_sub(memory) / 1024;
    let complaints = complaints(&operator.log());
    let total: usize = complaints.iter().map(|(count, _)| count).sum();
    let most_frequent = &complaints[..complaints.len().min(3)];
    println!(
        "the operator has grown by {grown} MiB, and complained in {total} lines; most often: {most_frequent:#?}"
    );
    assert!(grown < 48, "memory has grown by {grown} MiB");
    assert!(
        total <= COMPLAINTS && complaints.iter().all(|(count, _)| *count <= SAME_COMPLAINTS),
        "{total} lines of complaints, most often {most_frequent:#?}"
    );
    operator.stop().await;
}
