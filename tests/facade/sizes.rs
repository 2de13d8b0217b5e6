//! The quotas of vCPUs, memory and disk: through REST and with kubectl, at the same time.

use std::time::Duration;

use futures::future::join_all;
use kube::{Api, api::DeleteParams};
use reqwest::Method;
use resources::{Account, Instance, InstanceState, Plan, conditions};
use serde_json::{Value, json};

use super::{contract::code, wait_for};
use crate::support::{
    Change as _, Operator, PATIENCE, Tenant, eventually,
    network::{Mode, Network},
    shared,
};

async fn tenant(name: &str, vcpus: i32) -> Tenant {
    let cluster = shared().await;
    let limit = |spec: &mut resources::AccountSpec| spec.vcpu_quota = Some(vcpus);
    Tenant::with(cluster.plane, &cluster.operator, name, limit).await
}

async fn tenant_of(
    replica: &Operator,
    name: &str,
    limit: impl FnOnce(&mut resources::AccountSpec),
) -> Tenant {
    Tenant::with(shared().await.plane, replica, name, limit).await
}

/// Sends a request to this replica; returns the status and the answer.
async fn ask(
    tenant: &Tenant,
    replica: &Operator,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> (u16, Value) {
    let request = tenant.http.request(method, format!("{}{path}", replica.url));
    let request = request.bearer_auth(&tenant.key).timeout(PATIENCE);
    let request = match body {
        Some(body) => request.json(body),
        None => request,
    };
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

fn order(plan: &str) -> Value {
    json!({ "name": "web", "plan": plan, "region": "fr-par-1", "image": "debian-13" })
}

async fn create(tenant: &Tenant, plan: &str) -> String {
    let created = tenant.post(201, "/v1/instances", &order(plan)).await;
    created.json()["data"]["id"].as_str().unwrap().to_owned()
}

/// The vCPUs of all instances that have been accepted.
fn accepted(all: &[Instance]) -> i32 {
    let plans = all.iter().filter_map(|instance| {
        let status = instance.status.as_ref()?;
        status.state?;
        let becomes = status.operation.as_ref().map(|operation| operation.plan);
        becomes.max(status.plan)
    });
    plans.map(|plan| plan.size().vcpu).sum()
}

fn reason(instance: &Instance) -> Option<&str> {
    let ready = conditions::find(&instance.status.as_ref()?.conditions, conditions::READY)?;
    Some(ready.reason.as_str())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_and_a_resize_without_room_are_refused_with_what_is_used_and_what_is_needed() {
    let tenant = tenant("sizes-refused", 4).await;
    let id = create(&tenant, "business").await;
    wait_for(&tenant, &id, "running").await;
    let refused = tenant.post(403, "/v1/instances", &order("performance")).await;
    assert_eq!(code(&refused), "resource_limit_exceeded");
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("quota of vCPUs is 4: 2 are used, and this needs 4 more"),
        "{message}"
    );
    let path = format!("/v1/instances/{id}");
    let larger = json!({ "plan": "enterprise" });
    let refused = tenant.patch(403, &path, &larger).await;
    assert_eq!(code(&refused), "resource_limit_exceeded");
    let pending = json!({ "plan": "enterprise", "reboot": false });
    tenant.patch(403, &path, &pending).await;
    // What fits exactly, and what is smaller.
    let fits = json!({ "plan": "performance" });
    tenant.patch(200, &path, &fits).await;
    wait_for(&tenant, &id, "running").await;
    let quotas = tenant.get("/v1/account").await.json()["data"]["quotas"].clone();
    assert_eq!(quotas["vcpu"], json!({ "used": 4, "limit": 4 }));
    assert_eq!(quotas["memory_gb"], json!({ "used": 8, "limit": null }));
    assert_eq!(quotas["instances"]["limit"], 4, "each has a vCPU at least");
    let smaller = json!({ "plan": "starter" });
    tenant.patch(200, &path, &smaller).await;
    wait_for(&tenant, &id, "running").await;
    // What is being deleted has nothing any more.
    let other = create(&tenant, "business").await;
    tenant.delete(&format!("/v1/instances/{other}")).await;
    create(&tenant, "business").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_plan_counts_from_when_it_is_asked_for() {
    let tenant = tenant("sizes-pending", 4).await;
    let id = create(&tenant, "starter").await;
    wait_for(&tenant, &id, "running").await;
    let path = format!("/v1/instances/{id}");
    let pending = json!({ "plan": "business", "reboot": false });
    tenant.patch(200, &path, &pending).await;
    create(&tenant, "business").await;
    tenant.post(403, "/v1/instances", &order("starter")).await;
    let dropped = json!({ "plan": "starter" });
    tenant.patch(200, &path, &dropped).await;
    create(&tenant, "starter").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_creates_and_resizes_of_rest_use_the_quota_up_and_do_not_exceed_it() {
    let tenant = tenant("sizes-at-once", 8).await;
    let id = create(&tenant, "starter").await;
    wait_for(&tenant, &id, "running").await;
    let path = format!("/v1/instances/{id}");
    let larger = json!({ "plan": "business" });
    let body = order("business");
    let resize = async {
        tenant
            .call(Method::PATCH, &path, Some(&larger))
            .await
            .status
            .as_u16()
    };
    let creates = join_all((0..12).map(|_| async {
        let answer = tenant.call(Method::POST, "/v1/instances", Some(&body)).await;
        assert!(
            answer.status == 201 || code(&answer) == "resource_limit_exceeded",
            "{answer:?}"
        );
        u64::from(answer.status == 201)
    }));
    let (resized, created) = tokio::join!(resize, creates);
    // Three beside the larger one, or beside the one that stayed small.
    assert_eq!(created.iter().sum::<u64>(), 3, "{resized}");
    let all = async || tenant.all_instances().await;
    eventually("all to be accepted", all, |all| {
        all.iter().all(|instance| {
            instance
                .status
                .as_ref()
                .is_some_and(|status| status.state.is_some())
        })
    })
    .await;
    assert!(accepted(&all().await) <= 8);
}

/// Each replica checks for itself, and cannot know what another accepts at the same moment.
#[tokio::test(flavor = "multi_thread")]
async fn of_what_two_replicas_accept_at_the_same_moment_the_leader_makes_no_more_than_the_quota() {
    let plane = shared().await.plane;
    let (first, second) = (Network::to(plane).await, Network::to(plane).await);
    let networks = [first, second];
    let mut replicas = [
        Operator::start_with(plane, &["api"], &networks[0].kubeconfig).await,
        Operator::start_with(plane, &["api"], &networks[1].kubeconfig).await,
    ];
    // Each has room for one of the plan performance, and would have for more instances.
    let vcpu = tenant_of(&replicas[0], "sizes-vcpu", |spec| spec.vcpu_quota = Some(4)).await;
    let memory = tenant_of(&replicas[0], "sizes-memory", |spec| {
        spec.memory_quota_gb = Some(8);
    })
    .await;
    let disk = tenant_of(&replicas[0], "sizes-disk", |spec| spec.disk_quota_gb = Some(160)).await;
    let accounts = [
        (
            &vcpu,
            "vcpu",
            "quota of vCPUs is 4: 4 are used, and this needs 4 more",
        ),
        (
            &memory,
            "memory_gb",
            "quota of memory is 8 GB: 8 GB are used, and this needs 8 GB more",
        ),
        (
            &disk,
            "disk_gb",
            "quota of disk is 160 GB: 160 GB are used, and this needs 160 GB more",
        ),
    ];
    for (tenant, quota, _) in accounts {
        for replica in &replicas {
            let known = async || {
                let shown = ask(tenant, replica, Method::GET, "/v1/account", None).await.1;
                shown["data"]["quotas"][quota]["limit"].clone()
            };
            eventually("the quota to be known", known, Value::is_number).await;
        }
    }

    for network in &networks {
        network.set(Mode::Held);
    }
    let body = order("performance");
    let orders = accounts.map(|(tenant, ..)| {
        let orders = [0, 1, 0, 1, 0, 1].map(|replica| {
            ask(
                tenant,
                &replicas[replica],
                Method::POST,
                "/v1/instances",
                Some(&body),
            )
        });
        join_all(orders)
    });
    let open = async {
        for network in &networks {
            let held = async || network.held();
            eventually("the creates", held, |held| *held >= accounts.len()).await;
        }
        // What is held may have been something else.
        tokio::time::sleep(Duration::from_millis(500)).await;
        for network in &networks {
            network.set(Mode::Open);
        }
    };
    let (answers, ()) = tokio::join!(join_all(orders), open);
    for (answers, (tenant, _, says)) in answers.iter().zip(accounts) {
        let (created, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|(status, _)| *status == 201);
        assert_eq!(created.len(), 2, "one of each replica: {answers:#?}");
        for (status, answer) in refused {
            assert_eq!(*status, 403, "{answer:#}");
            assert_eq!(answer["error"]["code"], "resource_limit_exceeded");
        }
        let all = async || {
            let all = tenant.all_instances().await;
            assert!(accepted(&all) <= 4, "{all:#?}");
            all
        };
        let is_decided = |all: &Vec<Instance>| {
            let mut reasons: Vec<_> = all.iter().filter_map(reason).collect();
            reasons.sort_unstable();
            reasons == ["QuotaExceeded", "Running"]
        };
        let all = eventually("one to run and one to wait", all, is_decided).await;
        let waiting = all.iter().find(|it| reason(it) == Some("QuotaExceeded")).unwrap();
        let path = format!("/v1/instances/{}", waiting.id());
        for replica in &replicas {
            let shown = async || ask(tenant, replica, Method::GET, &path, None).await.1["data"].clone();
            let shown = eventually("why it waits", shown, |shown| {
                shown["status_reason"] == "quota_exceeded"
            })
            .await;
            let message = shown["status_message"].as_str().unwrap();
            assert!(message.contains(says), "{message}");
        }
    }
    for replica in &mut replicas {
        replica.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_kubectl_what_has_no_room_waits_until_there_is_some_and_says_so() {
    let tenant = tenant("sizes-kubectl", 8).await;
    let names: Vec<String> = (0..6).map(|number| format!("web-{number}")).collect();
    let business = |instance: &mut Instance| instance.spec.plan = Plan::Business;
    join_all(names.iter().map(|name| tenant.apply(name, business))).await;
    let all = async || tenant.all_instances().await;
    let decided = |all: &Vec<Instance>| {
        let running = |instance: &&Instance| {
            instance
                .status
                .as_ref()
                .is_some_and(|status| status.state == Some(InstanceState::Running))
        };
        let waiting = |instance: &&Instance| reason(instance) == Some("QuotaExceeded");
        (
            all.iter().filter(running).count(),
            all.iter().filter(waiting).count(),
        ) == (4, 2)
    };
    let now = eventually("four to run and two to wait", all, decided).await;
    assert_eq!(accepted(&now), 8);
    // REST shows why, and does not count what waits.
    let waiting = now
        .iter()
        .find(|instance| reason(instance) == Some("QuotaExceeded"))
        .unwrap();
    let shown = tenant.get(&format!("/v1/instances/{}", waiting.id())).await;
    assert_eq!(shown.json()["data"]["status_reason"], "quota_exceeded");
    let used = async || {
        let shown = tenant.get("/v1/account").await;
        shown.json()["data"]["quotas"]["vcpu"]["used"].clone()
    };
    eventually("the use to be shown", used, |used| *used == 8).await;

    // A larger plan waits, too, and everything else goes on.
    let running = now
        .iter()
        .find(|instance| reason(instance) == Some("Running"))
        .unwrap();
    let name = running.metadata.name.as_deref().unwrap();
    tenant
        .merge(
            name,
            &json!({ "spec": { "plan": "performance", "powerState": "Stopped" } }),
        )
        .await;
    let is_refused = |instance: Option<&Instance>| {
        instance.is_some_and(|instance| {
            let status = instance.status.clone().unwrap_or_default();
            reason(instance) == Some("QuotaExceeded")
                && (status.state, status.plan) == (Some(InstanceState::Stopped), Some(Plan::Business))
        })
    };
    tenant.wait(name, "the plan to wait", is_refused).await;

    // One that goes makes room for one of those that wait.
    let other = now.iter().filter(|instance| reason(instance) == Some("Running"));
    let other = other
        .map(|instance| instance.metadata.name.clone().unwrap())
        .find(|other| other != name);
    tenant
        .instances()
        .delete(&other.unwrap(), &DeleteParams::default())
        .await
        .unwrap();
    eventually("the room to be used", all, |all| accepted(all) == 8).await;

    // A higher quota has room for all.
    let accounts: Api<Account> = Api::all(tenant.kube.clone());
    accounts
        .merge(&tenant.namespace, &json!({ "spec": { "vcpuQuota": 100 } }))
        .await;
    eventually("all to be accepted", all, |all| accepted(all) == 12).await;
}
