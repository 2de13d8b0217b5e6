//! etcd is temporarily full: it answers every write with `mvcc: database space exceeded`.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use control_plane::{ControlPlane, Identity};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use resources::{DeliveryPhase, Instance, InstanceState};
use serde_json::{Value, json};

use super::{ALL, all_in};
use crate::support::{
    Operator, Supervised, Tenant, USUAL_LEASE, eventually, plane_with, receiver_arguments,
    receivers::{Answer, Receiver},
};

/// etcd's quota, small so that it fills up quickly.
const QUOTA_BYTES: usize = 24 * 1024 * 1024;
/// What is left of it when the instances are applied.
const ROOM_BYTES: usize = 6 * 1024 * 1024;
const INSTANCES: usize = 10;
const IS_FULL: &str = "database space exceeded";
/// Longer than the deadline for renewing the Lease.
const FULL_FOR: Duration = Duration::from_secs(15);

/// Fills etcd with up to this many objects of a given size, until it accepts no more.
async fn fill(maps: &Api<ConfigMap>, ballast: &[(usize, std::ops::Range<usize>)]) {
    for (size, numbers) in ballast {
        for i in numbers.clone() {
            let map = json!({
                "metadata": { "name": format!("ballast-{size}-{i}") }, "data": { "ballast": "x".repeat(*size) },
            });
            let map: ConfigMap = serde_json::from_value(map).unwrap();
            if let Err(error) = maps.create(&PostParams::default(), &map).await {
                if error.to_string().contains(IS_FULL) {
                    break;
                }
                // Other errors come from a busy machine.
                println!("full: {error}");
            }
        }
    }
}

/// Fills etcd until no more than [`ROOM_BYTES`] are left. Returns the number of objects for that. How much has been written until
/// then depends on how long it took to start.
async fn nearly_fill(plane: &ControlPlane, maps: &Api<ConfigMap>, size: usize) -> usize {
    let used = async || -> usize {
        let status = etcd(plane, "/v3/maintenance/status", &json!({})).await;
        status["dbSize"].as_str().unwrap().parse().unwrap()
    };
    let mut objects = 0;
    while used().await + ROOM_BYTES <= QUOTA_BYTES {
        fill(maps, &[(size, objects..objects + 1)]).await;
        objects += 1;
    }
    objects
}

/// Sends a request to etcd.
async fn etcd(plane: &ControlPlane, path: &str, body: &Value) -> Value {
    let url = format!("{}{path}", plane.etcd_url());
    let answer = reqwest::Client::new().post(url).json(body).send().await.unwrap();
    answer.error_for_status().unwrap().json().await.unwrap()
}

/// Removes old versions of objects from etcd. Returns etcd's status before that.
pub(super) async fn compact(plane: &ControlPlane) -> Value {
    let status = etcd(plane, "/v3/maintenance/status", &json!({})).await;
    let revision = &status["header"]["revision"];
    etcd(
        plane,
        "/v3/kv/compaction",
        &json!({ "revision": revision, "physical": true }),
    )
    .await;
    status
}

/// Defragments etcd's file.
pub(super) async fn defragment(plane: &ControlPlane) {
    etcd(plane, "/v3/maintenance/defragment", &json!({})).await;
}

/// Frees space, as the administrator of a full etcd does.
async fn make_room(plane: &ControlPlane, maps: &Api<ConfigMap>) {
    maps.delete_collection(&DeleteParams::default(), &ListParams::default())
        .await
        .unwrap();
    let status = compact(plane).await;
    defragment(plane).await;
    let member = &status["header"]["member_id"];
    let alarm = json!({ "action": "DEACTIVATE", "memberID": member, "alarm": "NOSPACE" });
    etcd(plane, "/v3/maintenance/alarm", &alarm).await;
}

async fn all(tenant: &Tenant) -> Vec<Instance> {
    let list = tenant.instances().list(&ListParams::default()).await;
    list.unwrap().items
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_etcd_is_full_nothing_is_lost_and_work_resumes_by_itself() {
    let options = ControlPlane::options().etcd_arg(format!("--quota-backend-bytes={QUOTA_BYTES}"));
    let plane = Arc::new(plane_with(options).await);
    // Longer than etcd stays full.
    let ladder = ["5s"; 20].join(",");
    let mut arguments = vec![
        "run",
        USUAL_LEASE,
        "--provisioning-seconds",
        "25",
        "--retry-schedule",
        &ladder,
    ];
    let receivers = receiver_arguments(&plane);
    arguments.extend(receivers.iter().map(String::as_str));
    let operator = Operator::start(&plane, &arguments).await;
    let tenant = Tenant::on(&plane, &operator, "full").await;
    let operator = Supervised::new(&plane, operator, &arguments);
    let maps: Api<ConfigMap> = Api::default_namespaced(plane.client(Identity::Admin).await.unwrap());
    // Answers only once etcd is full, at first with errors.
    let (is_full, is_over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (full, over) = (is_full.clone(), is_over.clone());
    let receiver = Receiver::start(move |_| {
        if over.load(Ordering::Relaxed) {
            Answer::ok()
        } else if full.load(Ordering::Relaxed) {
            Answer::status(503)
        } else {
            Answer::status(503).after(Duration::from_millis(800))
        }
    })
    .await;
    tenant.webhook("orders", &receiver.url("/"), &ALL).await;
    let large = nearly_fill(&plane, &maps, 900_000).await;
    // These start while etcd is full.
    for i in 0..INSTANCES {
        tenant.apply(&format!("web-{i}"), |_| {}).await;
    }
    receiver.wait_for(1).await;
    let begun = Instant::now();
    // Large objects first, then small ones that still fit.
    fill(&maps, &[(900_000, large..100), (20_000, 0..100), (100, 0..1000)]).await;
    is_full.store(true, Ordering::Relaxed);
    let filled = begun.elapsed();
    let mut attempt = 0_u32;
    let refusal = async || {
        attempt += 1;
        // A change without effect would not be written.
        let patch = json!({ "metadata": { "annotations": { "test/attempt": attempt.to_string() } } });
        let params = PatchParams::default();
        let patched = tenant
            .instances()
            .patch("web-0", &params, &Patch::Merge(&patch))
            .await;
        match patched {
            Ok(_) => {
                // There is room again.
                fill(&maps, &[(100, 0..1000)]).await;
                String::new()
            }
            Err(error) => error.to_string(),
        }
    };
    eventually("etcd to say that it is full", refusal, |refusal| {
        refusal.contains(IS_FULL)
    })
    .await;
    let known = all(&tenant).await;
    let running = |all: &[Instance]| {
        all.iter()
            .filter(|i| i.status.as_ref().and_then(|s| s.state) == Some(InstanceState::Running))
            .count()
    };
    assert!(running(&known) < INSTANCES, "something is left to be written");
    tokio::time::sleep(FULL_FOR).await;
    let requests_while_full = receiver.count();
    is_over.store(true, Ordering::Relaxed);
    make_room(&plane, &maps).await;
    let begun = Instant::now();
    eventually(
        "all instances to run",
        async || running(&all(&tenant).await),
        |count| *count == INSTANCES,
    )
    .await;
    let resumed = begun.elapsed();
    let deliveries = tenant
        .wait_for_deliveries(
            "orders",
            "all to be delivered",
            all_in(2 * INSTANCES, DeliveryPhase::Delivered),
        )
        .await;
    let requests = receiver.received();
    let bodies: HashSet<_> = requests.iter().map(|request| request.body.clone()).collect();
    let ids: HashSet<_> = requests
        .iter()
        .map(|request| request.header("x-service-event-id").to_owned())
        .collect();
    let logged: HashSet<_> = deliveries
        .iter()
        .map(|delivery| delivery.spec.event_id.clone())
        .collect();
    assert_eq!(ids, logged);
    assert_eq!(bodies.len(), ids.len(), "one id, two bodies");
    for instance in all(&tenant).await {
        assert_eq!(instance.status.unwrap().event_sequence, 2);
    }
    let restarts = operator.stop().await;
    println!(
        "full: {large} large objects, filled in {filled:.1?}, full for {FULL_FOR:?}, {restarts} restarts of the operator; {resumed:.1?} after there was room all {INSTANCES} instances ran; {} events in {} requests, {requests_while_full} of them before there was room",
        ids.len(),
        requests.len()
    );
}
