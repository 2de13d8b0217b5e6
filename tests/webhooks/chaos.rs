//! An API server that is slow, rejects requests, is unreachable and loses its watch history, while instances change.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{
    crashes::{Scene, arguments},
    ledger::{Kill, Kills, Workload},
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
    for misfortune in ["slow", "refusing", "out of reach", "forgetful", "silent"] {
        let at = Instant::now();
        match misfortune {
            "slow" => {
                network.set(Mode::Slow(Duration::from_secs(1)));
                tokio::time::sleep(CUT_FOR).await;
            }
            "refusing" => {
                kubectl(&plane, &["apply", "--filename", "-"], Some(NO_SEATS)).unwrap();
                tokio::time::sleep(CUT_FOR / 2).await;
                kubectl(&plane, &["delete", "--filename", "-"], Some(NO_SEATS)).unwrap();
            }
            "out of reach" => {
                network.set(Mode::Cut);
                tokio::time::sleep(CUT_FOR).await;
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
        misfortunes.push(Kill {
            at,
            followed: at,
            risen: Instant::now(),
        });
        println!("{misfortune}: changes go on after {:.1?}", at.elapsed());
    }

    let done = workload.stop().await;
    let kills = Kills {
        all: misfortunes,
        repeatable: None,
    };
    println!(
        "an API server that misbehaves,{}",
        scene.close(done, begun, &kills).await
    );
    let grown = operator.memory_kb("VmRSS").saturating_sub(memory) / 1024;
    let complaints = operator
        .log()
        .lines()
        .filter(|line| line.contains(" WARN ") || line.contains("ERROR "))
        .count();
    println!("the operator has grown by {grown} MiB, and complained in {complaints} lines");
    assert!(grown < 48, "memory has grown by {grown} MiB");
    assert!(complaints < 2000, "{complaints} lines of complaints");
    operator.stop().await;
}
