//! The lifecycle, as `kubectl` users see it.

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
    runtime::{conditions::is_deleted, wait::await_condition},
};
use providers::simulator::FAULT_ANNOTATION;
use resources::{
    Instance, InstanceState, PowerState,
    conditions::{READY, RECONCILING, STALLED, find, is_true},
};
use serde_json::json;

use crate::support::{PATIENCE, Tenant, eventually, kubectl, shared, spec};

fn has(condition: &'static str, reason: &'static str) -> impl Fn(Option<&Instance>) -> bool {
    move |instance| {
        instance.and_then(|i| i.status.as_ref()).is_some_and(|s| {
            s.observed_generation == instance.and_then(|i| i.metadata.generation)
                && find(&s.conditions, condition).is_some_and(|c| c.reason == reason)
        })
    }
}

#[tokio::test]
async fn an_applied_instance_becomes_ready_and_tells_its_story() {
    let tenant = Tenant::new("story").await;
    tenant.apply("web", |_| {}).await;
    let plane = shared().await.plane;
    kubectl(
        plane,
        "-n story wait --for=condition=Ready instance/web --timeout=180s",
        None,
    )
    .unwrap();
    let status = tenant.instances().get("web").await.unwrap().status.unwrap();
    assert_eq!(status.state, Some(InstanceState::Running));
    assert!(status.ip_address.unwrap().starts_with("198.1"));
    assert!(status.ipv6_address.unwrap().starts_with("2001:db8:"));
    assert!(status.id.unwrap().starts_with("i-"));
    assert!(!is_true(&status.conditions, RECONCILING) && !is_true(&status.conditions, STALLED));
    let story = eventually(
        "the Events",
        async || kubectl(plane, "-n story describe instance web", None).unwrap(),
        |text| text.contains("Provisioned"),
    )
    .await;
    assert!(
        story.contains("Provisioning") && story.contains("plan starter and image debian-13"),
        "{story}"
    );
    let table = kubectl(plane, "-n story get inst", None).unwrap();
    for column in ["NAME", "STATE", "PLAN", "REGION", "IP", "READY", "AGE"] {
        assert!(table.contains(column), "{table}");
    }
}

#[tokio::test]
async fn any_spec_change_in_the_middle_of_an_operation_converges() {
    let tenant = Tenant::new("middle").await;
    tenant.apply("web", |_| {}).await;
    // While it is still being created: another plan and image, a reboot, power off and on again.
    tenant
        .merge(
            "web",
            &json!({ "spec": { "plan": "business", "image": "debian-12", "powerState": "Stopped" } }),
        )
        .await;
    tenant
        .merge(
            "web",
            &json!({ "spec": { "rebootRequestedAt": "2026-11-21T10:00:00Z" } }),
        )
        .await;
    let done = tenant
        .wait("web", "off with plan and image", has(READY, "Stopped"))
        .await
        .status
        .unwrap();
    assert_eq!(
        (done.plan.unwrap().as_str(), done.image.as_deref()),
        ("business", Some("debian-12"))
    );
    tenant.power("web", "Running").await;
    tenant
        .merge(
            "web",
            &json!({ "spec": { "plan": "performance", "rebuildRequestedAt": "2026-11-21T11:00:00Z" } }),
        )
        .await;
    let done = tenant
        .wait("web", "on again", has(READY, "Running"))
        .await
        .status
        .unwrap();
    assert_eq!(
        (done.plan.unwrap().as_str(), done.disk_size_gb),
        ("performance", Some(160))
    );
    assert_eq!(done.rebuild_requested_at.as_deref(), Some("2026-11-21T11:00:00Z"));
    assert_eq!(done.power_state, Some(PowerState::Running));
}

#[tokio::test]
async fn simulated_faults_show_as_decided_and_clear_by_themselves() {
    let tenant = Tenant::new("faults").await;
    let fault = |name: &'static str| {
        move |instance: &mut Instance| {
            instance
                .annotations_mut()
                .insert(FAULT_ANNOTATION.into(), name.into());
        }
    };
    tenant.apply("broken", fault("provisioning")).await;
    tenant.apply("shy", |_| {}).await;
    tenant.apply("frail", |_| {}).await;
    tenant.apply("stubborn", fault("stop-hangs")).await;

    let broken = tenant
        .wait_for_state("broken", InstanceState::Error)
        .await
        .status
        .unwrap();
    assert_eq!(
        find(&broken.conditions, READY).unwrap().reason,
        "ProvisioningFailed"
    );
    assert!(is_true(&broken.conditions, STALLED));
    tenant
        .merge(
            "broken",
            &json!({ "metadata": { "annotations": { FAULT_ANNOTATION: null } } }),
        )
        .await;
    tenant.wait_for_state("broken", InstanceState::Running).await;

    tenant.wait_for_state("shy", InstanceState::Running).await;
    tenant
        .merge(
            "shy",
            &json!({ "metadata": { "annotations": { FAULT_ANNOTATION: "shutdown" } } }),
        )
        .await;
    tenant
        .wait("shy", "a guest shutdown", has(READY, "GuestShutdown"))
        .await;
    tenant
        .merge(
            "shy",
            &json!({ "spec": { "startRequestedAt": "2026-11-21T10:00:00Z" } }),
        )
        .await;
    tenant.wait_for_state("shy", InstanceState::Running).await;

    let before = tenant
        .wait_for_state("frail", InstanceState::Running)
        .await
        .status
        .unwrap()
        .started_at;
    tenant
        .merge(
            "frail",
            &json!({ "metadata": { "annotations": { FAULT_ANNOTATION: "crash" } } }),
        )
        .await;
    tenant
        .wait(
            "frail",
            "a start after the crash",
            move |instance: Option<&Instance>| {
                instance
                    .and_then(|i| i.status.as_ref())
                    .is_some_and(|s| s.state == Some(InstanceState::Running) && s.started_at > before)
            },
        )
        .await;

    tenant.wait_for_state("stubborn", InstanceState::Running).await;
    tenant.power("stubborn", "Stopped").await;
    tenant.wait_for_state("stubborn", InstanceState::Stopped).await;
    let plane = shared().await.plane;
    eventually(
        "the Event of the forced stop",
        async || kubectl(plane, "-n faults get events", None).unwrap(),
        |events| events.contains("ForcedStop"),
    )
    .await;
}

#[tokio::test]
async fn an_instance_in_a_namespace_without_an_account_is_left_alone_until_there_is_one() {
    let cluster = shared().await;
    let tenant = Tenant::new("neighbour").await;
    let namespaces: Api<Namespace> = Api::all(tenant.kube.clone());
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some("orphanage".into());
    namespace
        .labels_mut()
        .insert("stellage.dev/account".into(), "orphanage".into());
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let orphans: Api<Instance> = Api::namespaced(tenant.kube.clone(), "orphanage");
    for name in ["web", "unwanted"] {
        let orphan = Instance::new(name, spec());
        orphans.create(&PostParams::default(), &orphan).await.unwrap();
    }
    let alone = tokio::time::timeout(
        PATIENCE,
        await_condition(orphans.clone(), "web", has(READY, "NoAccount")),
    )
    .await;
    let alone = alone.unwrap().unwrap().unwrap();
    assert_eq!(alone.status.unwrap().state, None);
    let unwanted = orphans
        .delete("unwanted", &DeleteParams::default())
        .await
        .unwrap();
    let uid = unwanted
        .left()
        .and_then(|deleting| deleting.metadata.uid)
        .unwrap_or_default();
    tokio::time::timeout(
        PATIENCE,
        await_condition(orphans.clone(), "unwanted", is_deleted(&uid)),
    )
    .await
    .unwrap()
    .unwrap();
    kubectl(cluster.plane, "apply -f -", Some("{apiVersion: stellage.dev/v1, kind: Account, metadata: {name: orphanage}, spec: {email: o@example.com}}")).unwrap();
    tokio::time::timeout(PATIENCE, await_condition(orphans, "web", has(READY, "Running")))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn once_the_server_is_gone_only_the_finalizers_of_other_controllers_are_left() {
    let tenant = Tenant::new("finalizers-of-others").await;
    tenant
        .apply("web", |instance| {
            instance.metadata.finalizers = Some(vec!["example.com/mine".into()]);
        })
        .await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    tenant
        .instances()
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    tenant
        .wait("web", "our finalizer to go", |instance: Option<&Instance>| {
            instance.is_some_and(|i| i.finalizers() == ["example.com/mine"])
        })
        .await;
    tenant
        .merge("web", &json!({ "metadata": { "finalizers": null } }))
        .await;
}
