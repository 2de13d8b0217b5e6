//! Servers in a region, on KubeVirt's real API server and controller.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, EvictParams, ListParams, PostParams},
};
use reqwest::{Method, StatusCode};
use resources::InstanceState::{Error, Running, Stopped};
use serde_json::json;

use super::installation::Case;
use crate::support::{
    Change as _, eventually,
    kubevirt::{
        entry::{PREFIX, REGION},
        puppet::{Boot, End, Import},
    },
};
use control_plane::Identity;

#[tokio::test]
async fn a_server_is_made_with_three_writes_and_told_as_started() {
    let (case, id) = Case::running("kv-made").await;
    case.tells(&id, &["instance.created", "instance.started"]).await;
    let machine = case.machines().await.get(&id).await.unwrap();
    let spec = &machine.data["spec"];
    assert_eq!(spec["runStrategy"], "RerunOnFailure");
    assert_eq!(spec["template"]["spec"]["domain"]["memory"]["guest"], "2Gi");
    case.shows(&id, "its address", |shown| shown["ip_address"].is_string())
        .await;

    // The first server of an account has a namespace to be made; the second one has not.
    let second = case.create(json!({ "name": "second" })).await;
    case.settles(&second, Running).await;
    let requests = case.region.plane.requests().unwrap();
    let writes: Vec<_> = requests
        .iter()
        .filter(|request| {
            request.user.contains("stellage-region")
                && request.namespace == case.namespace
                && request.is_write()
        })
        .filter(|request| request.name.starts_with(&second))
        .map(|request| format!("{} {}", request.verb, request.resource))
        .collect();
    assert!(
        writes.len() <= 4 && writes[..3].iter().all(|write| write.starts_with("create")),
        "three to run, and one to seal the disk: {writes:?}"
    );
}

#[tokio::test]
async fn a_server_stops_starts_and_reboots_with_exactly_one_run_for_each_time_it_is_powered_on() {
    let (case, id) = Case::running("kv-power").await;
    let first = case.run(&id).await;
    case.act(&id, "reboot", None, Running).await;
    let second = case.run(&id).await;
    assert_ne!(first, second);
    case.act(&id, "stop", None, Stopped).await;
    assert!(case.runs().await.get_opt(&id).await.unwrap().is_none());
    case.act(&id, "start", None, Running).await;
    let third = case.run(&id).await;
    case.act(&id, "poweroff", None, Stopped).await;
    assert!(![first, second].contains(&third));
    case.tells(
        &id,
        &[
            "instance.created",
            "instance.started",
            "instance.started",
            "instance.stopped",
            "instance.started",
            "instance.stopped",
        ],
    )
    .await;
    let requests = case.region.plane.requests().unwrap();
    let runs = requests
        .iter()
        .filter(|request| {
            request.resource == "virtualmachineinstances"
                && request.namespace == case.namespace
                && request.verb == "create"
                && request.code == 201
        })
        .count();
    assert_eq!(runs, 3);
}

#[tokio::test]
async fn a_deaf_guest_is_forced_off_after_the_grace() {
    let (case, id) = Case::running("kv-deaf").await;
    case.region
        .puppet
        .order(&case.namespace, &id, |guest| guest.is_deaf = true);
    case.act(&id, "stop", None, Stopped).await;
    case.region
        .puppet
        .order(&case.namespace, &id, |guest| guest.is_deaf = false);
    case.act(&id, "start", None, Running).await;
}

#[tokio::test]
async fn a_resize_changes_processors_and_memory_and_grows_the_disk_on_and_off() {
    let (case, id) = Case::running("kv-resize").await;
    let path = format!("/v1/instances/{id}");
    for (plan, memory, disk, is_on) in [
        ("business", "4Gi", "80Gi", true),
        ("performance", "8Gi", "160Gi", false),
    ] {
        if !is_on {
            case.act(&id, "stop", None, Stopped).await;
        }
        let change = json!({ "plan": plan, "reboot": true });
        let change = if is_on { change } else { json!({ "plan": plan }) };
        let answer = case.tenant.call(Method::PATCH, &path, Some(&change)).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        case.settles(&id, if is_on { Running } else { Stopped }).await;
        let machine = case.machines().await.get(&id).await.unwrap();
        let guest = &machine.data["spec"]["template"]["spec"]["domain"]["memory"]["guest"];
        assert_eq!(*guest, memory);
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(
            case.region.plane.client(Identity::Admin).await.unwrap(),
            &case.namespace,
        );
        let claims = claims.list(&ListParams::default()).await.unwrap().items;
        let requested = |claim: &PersistentVolumeClaim| {
            claim
                .spec
                .as_ref()?
                .resources
                .as_ref()?
                .requests
                .as_ref()?
                .get("storage")
                .cloned()
        };
        assert_eq!(
            claims
                .iter()
                .filter_map(requested)
                .map(|size| size.0)
                .collect::<Vec<_>>(),
            [disk]
        );
    }
}

#[tokio::test]
async fn a_rebuild_leaves_the_old_server_running_until_the_new_disk_is_good() {
    let (case, id) = Case::running("kv-rebuild").await;
    let (run, disks) = (case.run(&id).await, case.disks().await);
    case.region
        .puppet
        .import(&case.namespace, Import::Fails("no such image".to_owned()));
    let path = format!("/v1/instances/{id}/rebuild");
    let answer = case
        .tenant
        .call(Method::POST, &path, Some(&json!({ "image": "broken-1" })))
        .await;
    assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.text);
    eventually(
        "the new disk",
        async || disks.list(&ListParams::default()).await.unwrap().items.len(),
        |count| *count == 2,
    )
    .await;
    assert_eq!(case.run(&id).await, run, "the old server still runs");
    case.region.puppet.import(&case.namespace, Import::Succeeds);
    case.settles(&id, Running).await;
    assert_ne!(case.run(&id).await, run);
    eventually(
        "the old disk to go",
        async || disks.list(&ListParams::default()).await.unwrap().items.len(),
        |count| *count == 1,
    )
    .await;
    let disk = disks.list(&ListParams::default()).await.unwrap().items[0].name_any();
    let client = case.region.plane.client(Identity::Admin).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(client, &case.namespace);
    let secrets = secrets.list(&ListParams::default()).await.unwrap().items;
    let names: Vec<_> = secrets.iter().map(kube::ResourceExt::name_any).collect();
    assert_eq!(names, [disk], "its user data, and no other");
}

#[tokio::test]
async fn a_server_whose_user_data_is_deleted_while_it_boots_runs_and_is_billed() {
    let case = Case::new("kv-user-data").await;
    let id = case.create(json!({ "user_data": "#!/bin/sh\n" })).await;
    case.region
        .puppet
        .order(&case.namespace, &id, |guest| guest.boot = Boot::Waits);
    let machines = case.machines().await;
    let machine = async || machines.get_opt(&id).await.unwrap();
    eventually("the server to be made", machine, Option::is_some).await;
    let instance = case.tenant.instances().get(&id).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(case.tenant.kube.clone(), &case.tenant.namespace);
    let name = instance.spec.user_data_ref.unwrap().name;
    secrets.delete(&name, &DeleteParams::default()).await.unwrap();
    case.region
        .puppet
        .order(&case.namespace, &id, |guest| guest.boot = Boot::Succeeds);
    case.settles(&id, Running).await;
    let status = case.tenant.instances().get(&id).await.unwrap().status.unwrap();
    assert!(status.metering.is_some());
}

#[tokio::test]
async fn a_deleted_server_leaves_nothing_and_neither_does_its_account() {
    let (case, id) = Case::running("kv-gone").await;
    let path = format!("/v1/instances/{id}");
    let answer = case.tenant.call(Method::DELETE, &path, None).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.text);
    let gone = async || case.tenant.instances().get_opt(&id).await.unwrap().is_none();
    eventually("the instance to go", gone, |gone| *gone).await;
    let client = case.region.plane.client(Identity::Admin).await.unwrap();
    let all = ListParams::default();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &case.namespace);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &case.namespace);
    assert!(case.machines().await.list(&all).await.unwrap().items.is_empty());
    assert!(case.disks().await.list(&all).await.unwrap().items.is_empty());
    assert!(claims.list(&all).await.unwrap().items.is_empty());
    assert!(secrets.list(&all).await.unwrap().items.is_empty());

    case.delete_account().await;
}

#[tokio::test]
async fn a_guest_that_shuts_itself_down_stays_off_and_one_that_crashes_is_told_as_started() {
    let (case, id) = Case::running("kv-ends").await;
    case.region
        .puppet
        .order(&case.namespace, &id, |guest| guest.ends = Some(End::Crashes));
    case.tells(&id, &["instance.created", "instance.started", "instance.started"])
        .await;
    case.settles(&id, Running).await;
    case.region
        .puppet
        .order(&case.namespace, &id, |guest| guest.ends = Some(End::ShutsDown));
    case.settles(&id, Stopped).await;
    let instance = case.tenant.instances().get(&id).await.unwrap();
    let ready = resources::conditions::find(&instance.status.unwrap().conditions, "Ready")
        .unwrap()
        .clone();
    assert_eq!(ready.reason, "GuestShutdown");
    case.act(&id, "start", None, Running).await;
}

impl Case {
    /// The Pods of the account's servers, and the name of the one in which a server runs now.
    async fn launcher(&self, server: &str) -> (Api<Pod>, String) {
        let client = self.region.plane.client(Identity::Admin).await.unwrap();
        let pods: Api<Pod> = Api::namespaced(client, &self.namespace);
        let of_run = format!("kubevirt.io/created-by={}", self.run(server).await);
        let launchers = pods.list(&ListParams::default().labels(&of_run)).await.unwrap();
        (pods, launchers.items[0].name_any())
    }

    /// Deletes the Pod in which a server runs, as a drain does.
    pub(super) async fn delete_launcher(&self, server: &str) {
        let (pods, launcher) = self.launcher(server).await;
        pods.delete(&launcher, &DeleteParams::default()).await.unwrap();
    }
}

/// Rows 20 and 55 of the failure matrix: drains, and upgrades of KubeVirt, evict.
#[tokio::test]
async fn a_server_whose_pod_is_deleted_or_evicted_is_started_again_and_is_not_told_as_stopped() {
    let (case, id) = Case::running("kv-drain").await;
    let run = case.run(&id).await;
    case.delete_launcher(&id).await;
    case.tells(&id, &["instance.created", "instance.started", "instance.started"])
        .await;
    case.settles(&id, Running).await;
    let second = case.run(&id).await;
    assert_ne!(second, run);

    let (pods, launcher) = case.launcher(&id).await;
    pods.evict(&launcher, &EvictParams::default()).await.unwrap();
    let started = ["instance.started"; 3];
    case.tells(&id, &[&["instance.created"], &started[..]].concat())
        .await;
    case.settles(&id, Running).await;
    assert_ne!(case.run(&id).await, second);
}

#[tokio::test]
async fn a_server_that_is_stopped_outside_stays_off_and_one_that_is_deleted_outside_keeps_its_disk() {
    let (case, id) = Case::running("kv-outside").await;
    let machines = case.machines().await;
    let halt = json!({ "spec": { "runStrategy": "Halted" } });
    machines.merge(&id, &halt).await;
    case.settles(&id, Stopped).await;
    let instance = case.tenant.instances().get(&id).await.unwrap();
    let ready = resources::conditions::find(&instance.status.unwrap().conditions, "Ready")
        .unwrap()
        .clone();
    assert_eq!(ready.reason, "StoppedOutside");
    case.act(&id, "start", None, Running).await;

    let disk = case.disk().await.uid();
    machines.delete(&id, &DeleteParams::default()).await.unwrap();
    case.reaches(&id, Error).await;
    case.act(&id, "start", None, Running).await;
    let disks = case
        .disks()
        .await
        .list(&ListParams::default())
        .await
        .unwrap()
        .items;
    assert_eq!(
        disks.iter().map(kube::ResourceExt::uid).collect::<Vec<_>>(),
        [disk]
    );
}

#[tokio::test]
async fn trap_1_a_crash_looping_server_that_is_stopped_stays_off() {
    let (case, id) = Case::running("kv-trap1").await;
    case.region.puppet.order(&case.namespace, &id, |guest| {
        guest.boot = Boot::Crashes;
        guest.ends = Some(End::Crashes);
    });
    let machines = case.machines().await;
    let is_requested = async || {
        let machine = machines.get(&id).await.unwrap();
        machine.data["status"]["stateChangeRequests"][0]["action"] == "Start"
    };
    eventually("KubeVirt to note a start", is_requested, |is| *is).await;
    case.act(&id, "poweroff", None, Stopped).await;
    let machine = machines.get(&id).await.unwrap();
    assert_eq!(machine.data["spec"]["runStrategy"], "Halted");
}

#[tokio::test]
async fn trap_2_a_start_that_kubevirt_has_lost_is_repeated() {
    let (case, id) = Case::running("kv-trap2").await;
    case.act(&id, "stop", None, Stopped).await;
    case.region.refuse_runs(&case.namespace, true).await;
    case.ask(&id, "start", None).await;
    let machines = case.machines().await;
    let is_lost = async || {
        let machine = machines.get(&id).await.unwrap();
        machine.data["spec"]["runStrategy"] == "RerunOnFailure"
            && machine.data["status"]["runStrategy"] == "RerunOnFailure"
            && machine.data["status"]["created"] != true
    };
    eventually("the start to be lost", is_lost, |is| *is).await;
    case.region.refuse_runs(&case.namespace, false).await;
    case.settles(&id, Running).await;
}

/// Rows 6 and 7 of the failure matrix: a claim is deleted while its server is off, or on.
#[tokio::test]
async fn trap_6_a_sealed_disk_whose_claim_is_deleted_is_missing_and_no_fresh_one_takes_its_place() {
    let (case, id) = Case::running("kv-trap6").await;
    let is_sealed = |instance: Option<&resources::Instance>| {
        let status = instance.and_then(|instance| instance.status.as_ref());
        status.is_some_and(|status| status.provider_state.contains_key("sealed"))
    };
    case.tenant.wait(&id, "the seal", is_sealed).await;
    let client = case.region.plane.client(Identity::Admin).await.unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client, &case.namespace);
    let uids = async || -> Vec<String> {
        let claims = claims.list(&ListParams::default()).await.unwrap().items;
        claims.iter().filter_map(kube::ResourceExt::uid).collect()
    };
    let claim = claims.list(&ListParams::default()).await.unwrap().items.remove(0);
    let (run, name) = (case.run(&id).await, claim.name_any());

    // Kubernetes keeps it as long as the server runs.
    claims.delete(&name, &DeleteParams::default()).await.unwrap();
    assert!(
        claims
            .get(&name)
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_some()
    );
    case.settles(&id, Running).await;
    assert_eq!((case.run(&id).await, uids().await.len()), (run, 1));
    case.act(&id, "stop", None, Stopped).await;
    eventually("the claim to go", uids, Vec::is_empty).await;

    case.ask(&id, "start", None).await;
    case.shows_reason(&id, "disk_missing").await;
    assert_eq!(uids().await, Vec::<String>::new());
    let image = json!({ "image": "debian-13" });
    case.act(&id, "rebuild", Some(&image), Running).await;
    assert_eq!(uids().await.len(), 1);

    // Without the seal, the importer would fill the disk anew, and the server boot into an empty system.
    case.act(&id, "stop", None, Stopped).await;
    let unseal = json!({ "metadata": { "annotations": { "cdi.kubevirt.io/storage.prePopulated": null } } });
    let disk = case.disk().await;
    case.disks().await.merge(&disk.name_any(), &unseal).await;
    let before = uids().await;
    claims
        .delete(&disk.name_any(), &DeleteParams::default())
        .await
        .unwrap();
    eventually("a fresh claim", uids, |uids| uids.len() == 1 && *uids != before).await;
}

/// A call that Stellage has given up may still be carried out.
#[tokio::test]
async fn row_44_a_virtual_machine_that_comes_after_its_instance_was_deleted_is_removed() {
    let (case, id) = Case::running("kv-late").await;
    let machines = case.machines().await;
    let made = machines.get(&id).await.unwrap();
    let mut late = made.clone();
    late.data["status"].take();
    late.metadata = kube::api::ObjectMeta {
        name: made.metadata.name,
        labels: made.metadata.labels,
        annotations: made.metadata.annotations,
        ..kube::api::ObjectMeta::default()
    };
    let path = format!("/v1/instances/{id}");
    let answer = case.tenant.call(Method::DELETE, &path, None).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.text);
    let left = async || case.tenant.instances().get_opt(&id).await.unwrap().is_some();
    eventually("the instance to go", left, |left| !left).await;
    machines.create(&PostParams::default(), &late).await.unwrap();
    // All of it, for the message of a failure.
    let left = async || machines.get_opt(&id).await.unwrap();
    eventually("the late one to go", left, Option::is_none).await;
}

#[tokio::test]
async fn row_49_a_server_runs_although_its_disk_has_yet_to_grow() {
    let (case, id) = Case::running("kv-grows").await;
    case.region.puppet.grow(&case.namespace, false);
    let change = json!({ "plan": "business", "reboot": true });
    let path = format!("/v1/instances/{id}");
    let answer = case.tenant.call(Method::PATCH, &path, Some(&change)).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    case.settles(&id, Running).await;
    let client = case.region.plane.client(Identity::Admin).await.unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client, &case.namespace);
    let capacity = async || {
        let claim = claims.list(&ListParams::default()).await.unwrap().items.remove(0);
        claim.status.unwrap().capacity.unwrap()["storage"].0.clone()
    };
    assert_eq!(capacity().await, "40Gi");
    case.shows(&id, "the plan", |shown| shown["plan"] == "business")
        .await;
    case.region.puppet.grow(&case.namespace, true);
    eventually("the disk to grow", capacity, |size| size == "80Gi").await;
}

#[tokio::test]
async fn a_server_that_finds_no_room_says_so_and_starts_once_there_is_room() {
    let (case, id) = Case::running("kv-room").await;
    case.act(&id, "stop", None, Stopped).await;
    case.region
        .puppet
        .order(&case.namespace, &id, |guest| guest.boot = Boot::FindsNoNode);
    let path = format!("/v1/instances/{id}");
    case.ask(&id, "start", None).await;
    case.shows_reason(&id, "no_capacity").await;
    let shown = case.tenant.call(Method::GET, &path, None).await.text;
    assert!(!shown.contains("node"), "the customer reads fixed words: {shown}");
    case.region
        .puppet
        .order(&case.namespace, &id, |guest| guest.boot = Boot::Succeeds);
    case.settles(&id, Running).await;
}

#[tokio::test]
async fn an_object_of_the_servers_name_that_is_not_ours_is_never_touched() {
    let (case, id) = Case::running("kv-theirs").await;
    let machines = case.machines().await;
    let foreign = json!({ "metadata": { "labels": { "stellage.dev/instance-uid": "another" } } });
    machines.merge(&id, &foreign).await;
    let before = machines.get(&id).await.unwrap().resource_version();
    let path = format!("/v1/instances/{id}/reboot");
    case.tenant.call(Method::POST, &path, None).await;
    case.reaches(&id, Error).await;
    let after = machines.get(&id).await.unwrap();
    assert_eq!(after.data["spec"]["runStrategy"], "RerunOnFailure");
    assert!(before.is_some());
}

#[tokio::test]
async fn a_simulated_region_beside_it_works_as_before() {
    let case = Case::new("kv-mixed").await;
    let simulated = case
        .create(json!({ "region": "nl-ams-1", "image": "fedora-42" }))
        .await;
    let real = case.create(json!({ "name": "real" })).await;
    case.settles(&simulated, Running).await;
    case.settles(&real, Running).await;
    let regions = case.tenant.call(Method::GET, "/v1/regions", None).await.json();
    let of = |code: &str| {
        let all = regions["data"].as_array().unwrap();
        all.iter()
            .find(|region| region["id"] == code || region["code"] == code)
            .unwrap()
            .clone()
    };
    assert_eq!(of(REGION)["simulated"], false, "{regions}");
    assert_eq!(of("nl-ams-1")["simulated"], true);
    let body = json!({ "name": "x", "region": REGION, "plan": "starter", "image": "fedora-42" });
    let refused = case.tenant.call(Method::POST, "/v1/instances", Some(&body)).await;
    assert_eq!(
        refused.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{}",
        refused.text
    );
    assert!(PREFIX.len() > 1);
}
