//! Numbers of writes: few while objects change, none while nothing changes.

use std::{collections::HashMap, time::Duration};

use control_plane::Identity;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::{Api, ResourceExt as _};
use reqwest::Method;
use resources::{Account, InstanceState, conditions};
use serde_json::json;

use crate::support::{Operator, Tenant, eventually, kubectl, own_plane};

#[tokio::test]
async fn an_instance_takes_three_writes_to_run_one_to_clear_its_outbox_and_none_in_a_quiet_minute_with_1000()
{
    let plane = own_plane().await;
    let mut operator = Operator::start(&plane, &["run", "--provisioning-seconds", "1"]).await;
    let tenant = &Tenant::with(&plane, &operator, "quiet", |spec| {
        spec.rate_limit_per_hour = Some(1_000_000);
    })
    .await;
    futures::stream::iter(0..1000)
        .for_each_concurrent(16, |i| async move {
            let body = json!({ "name": format!("web-{i}"), "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
            let answer = tenant.call(Method::POST, "/v1/instances", Some(&body)).await;
            assert_eq!(answer.status, 201, "{answer:?}");
        })
        .await;
    eventually(
        "1000 running",
        async || {
            let all = tenant.all_instances().await;
            all.iter()
                .filter(|i| i.status.as_ref().and_then(|s| s.state) == Some(InstanceState::Running))
                .count()
        },
        |n| *n == 1000,
    )
    .await;
    tenant.wait_for_clear_outboxes().await;
    // Until Kubernetes counts webhooks, the controller keeps polling the account.
    let accounts: Api<Account> = Api::all(tenant.kube.clone());
    let quotas: Api<ResourceQuota> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let is_counted = async || {
        let used = quotas
            .get_opt("stellage")
            .await
            .unwrap()
            .and_then(|quota| quota.status?.used);
        let status = accounts
            .get(&tenant.namespace)
            .await
            .unwrap()
            .status
            .unwrap_or_default();
        used.is_some_and(|used| used.contains_key("count/webhooks.stellage.dev"))
            && conditions::is_true(&status.conditions, conditions::READY)
    };
    eventually("webhooks to be counted", is_counted, |counted| *counted).await;
    let user = Identity::Operator.user();
    let mut writes: HashMap<String, Vec<String>> = HashMap::new();
    for request in plane.requests().unwrap() {
        if request.user == user && request.is_write() && request.resource == "instances" {
            let what = format!("{} {} {}", request.verb, request.subresource, request.code);
            writes.entry(request.name).or_default().push(what);
        }
    }
    // Refused writes count, too. The name of a created object is in the body, so it may be missing from the
    // log.
    let unnamed = writes.remove("").unwrap_or_default().len();
    let total: usize = writes.values().map(Vec::len).sum::<usize>() + unnamed;
    let most = writes.values().max_by_key(|all| all.len()).unwrap();
    // A busy API server may refuse a write or answer too late. The write is then repeated, and the repetition may be refused
    // because the first one succeeded.
    let is_forgiven = |write: &&String| {
        let code: Option<u16> = write.rsplit(' ').next().and_then(|code| code.parse().ok());
        matches!(code, Some(409 | 429 | 500..))
    };
    let failed = writes.values().flatten().filter(is_forgiven).count();
    assert!(failed <= 200, "{failed} refused writes for 1000 instances");
    assert!(
        total <= 4000 + 2 * failed && most.len() <= 4 + 2 * failed,
        "{total} writes for 1000 instances; for one of them {most:?}"
    );

    let all_writes = || -> Vec<_> {
        let requests = plane.requests().unwrap().into_iter();
        requests
            .filter(|r| r.user == user && r.is_write() && r.resource != "leases")
            .collect()
    };
    // The Events of the last transitions may still be in flight, two for each instance.
    let events =
        |all: &Vec<control_plane::audit::Request>| all.iter().filter(|r| r.resource == "events").count();
    eventually(
        "the last Events",
        async || all_writes(),
        |all| events(all) >= 2000,
    )
    .await;
    let before = all_writes().len();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let written = &all_writes()[before..];
    assert!(written.is_empty(), "written while nothing changed: {written:?}");
    operator.stop().await;
}

#[tokio::test]
async fn what_the_provider_does_at_once_takes_one_write_and_one_event_besides_that_of_finalizer_and_origin() {
    let plane = own_plane().await;
    let mut operator = Operator::start(&plane, &["run", "--provisioning-seconds", "0"]).await;
    let tenant = Tenant::with(&plane, &operator, "prompt", |_| {}).await;
    let created = tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    tenant.wait_for_clear_outboxes().await;
    tenant.power("web", "Stopped").await;
    tenant.wait_for_state("web", InstanceState::Stopped).await;
    let user = Identity::Operator.user();
    let written = || -> Vec<String> {
        let requests = plane.requests().unwrap().into_iter();
        let of_operator = requests.filter(|it| it.user == user && it.is_write() && it.name == "web");
        let of_instance = of_operator.filter(|it| it.resource == "instances");
        of_instance
            .map(|it| format!("{} {}", it.verb, it.subresource))
            .collect()
    };
    // Finalizer and origin; then running, the outbox cleared, stopped; the outbox is cleared again together with the next change.
    let writes = written();
    assert_eq!(writes[0], "patch ");
    assert!(
        writes[1..].iter().all(|write| write == "update status"),
        "{writes:?}"
    );
    assert!((3..=5).contains(&writes.len()), "{writes:?}");
    let written = tenant.instances().get("web").await.unwrap();
    let (uid, created) = (
        created.metadata.uid.unwrap(),
        created.metadata.creation_timestamp.unwrap(),
    );
    assert_eq!(
        written.annotations()["stellage.dev/origin"],
        format!("{uid} {}", created.0)
    );
    let events = async || {
        let of_web = format!(
            "-n {} get events --field-selector=involvedObject.name=web -o jsonpath={{.items[*].reason}}",
            tenant.namespace
        );
        kubectl(&plane, &of_web, None).unwrap()
    };
    eventually("an Event for each operation", events, |reasons| {
        reasons.split(' ').count() >= 2
    })
    .await;
    let reasons = events().await;
    assert_eq!(reasons.split(' ').count(), 2, "{reasons}");
    operator.stop().await;
}
