//! The quotas of vCPUs, memory and disk: through REST and with kubectl, at the same time.

use futures::future::join_all;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use reqwest::Method;
use resources::{Account, Instance, InstanceState, Plan, conditions};
use serde_json::{Value, json};

use super::{
    contract::{code, expect},
    wait_for,
};
use crate::support::{Tenant, eventually, shared};

async fn tenant(name: &str, vcpus: i32) -> Tenant {
    let cluster = shared().await;
    let limit = |spec: &mut resources::AccountSpec| spec.vcpu_quota = Some(vcpus);
    Tenant::with(cluster.plane, &cluster.operator, name, limit).await
}

fn order(plan: &str) -> Value {
    json!({ "name": "web", "plan": plan, "region": "fr-par-1", "image": "debian-13" })
}

async fn create(tenant: &Tenant, plan: &str) -> String {
    let created = expect(
        tenant,
        201,
        Method::POST,
        "/v1/instances",
        Some(&order(plan)),
        &[],
    )
    .await;
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
    let refused = expect(
        &tenant,
        403,
        Method::POST,
        "/v1/instances",
        Some(&order("performance")),
        &[],
    )
    .await;
    assert_eq!(code(&refused), "resource_limit_exceeded");
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("quota of vCPUs is 4: 2 are used, and this needs 4 more"),
        "{message}"
    );
    let path = format!("/v1/instances/{id}");
    let larger = json!({ "plan": "enterprise" });
    let refused = expect(&tenant, 403, Method::PATCH, &path, Some(&larger), &[]).await;
    assert_eq!(code(&refused), "resource_limit_exceeded");
    let pending = json!({ "plan": "enterprise", "reboot": false });
    expect(&tenant, 403, Method::PATCH, &path, Some(&pending), &[]).await;
    // What fits exactly, and what is smaller.
    let fits = json!({ "plan": "performance" });
    expect(&tenant, 200, Method::PATCH, &path, Some(&fits), &[]).await;
    wait_for(&tenant, &id, "running").await;
    let quotas = expect(&tenant, 200, Method::GET, "/v1/account", None, &[])
        .await
        .json()["data"]["quotas"]
        .clone();
    assert_eq!(quotas["vcpu"], json!({ "used": 4, "limit": 4 }));
    assert_eq!(quotas["memory_gb"], json!({ "used": 8, "limit": null }));
    assert_eq!(quotas["instances"]["limit"], 4, "each has a vCPU at least");
    let smaller = json!({ "plan": "starter" });
    expect(&tenant, 200, Method::PATCH, &path, Some(&smaller), &[]).await;
    wait_for(&tenant, &id, "running").await;
    // What is being deleted has nothing any more.
    let other = create(&tenant, "business").await;
    expect(
        &tenant,
        204,
        Method::DELETE,
        &format!("/v1/instances/{other}"),
        None,
        &[],
    )
    .await;
    create(&tenant, "business").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_plan_counts_from_when_it_is_asked_for() {
    let tenant = tenant("sizes-pending", 4).await;
    let id = create(&tenant, "starter").await;
    wait_for(&tenant, &id, "running").await;
    let path = format!("/v1/instances/{id}");
    let pending = json!({ "plan": "business", "reboot": false });
    expect(&tenant, 200, Method::PATCH, &path, Some(&pending), &[]).await;
    create(&tenant, "business").await;
    expect(
        &tenant,
        403,
        Method::POST,
        "/v1/instances",
        Some(&order("starter")),
        &[],
    )
    .await;
    let dropped = json!({ "plan": "starter" });
    expect(&tenant, 200, Method::PATCH, &path, Some(&dropped), &[]).await;
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
    let shown = expect(
        &tenant,
        200,
        Method::GET,
        &format!("/v1/instances/{}", waiting.id()),
        None,
        &[],
    )
    .await;
    assert_eq!(shown.json()["data"]["status_reason"], "quota_exceeded");
    let used = async || {
        let shown = expect(&tenant, 200, Method::GET, "/v1/account", None, &[]).await;
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
    let more = Patch::Merge(json!({ "spec": { "vcpuQuota": 100 } }));
    accounts
        .patch(&tenant.namespace, &PatchParams::default(), &more)
        .await
        .unwrap();
    eventually("all to be accepted", all, |all| accepted(all) == 12).await;
}
