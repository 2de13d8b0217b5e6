//! Backups of servers, and restores from them, with external-provisioner and external-snapshotter. Rows are those of the failure matrix in
//! docs/kubevirt.md.

use control_plane::Identity;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, PostParams},
};
use reqwest::{Method, StatusCode};
use resources::{
    InstanceState::{Error, Running},
    conditions,
};
use serde_json::{Value, json};

use super::installation::Case;
use crate::support::{
    self, Change as _, eventually,
    kubevirt::{
        entry::{BACKED, BACKED_PREFIX, REGION},
        kinds,
        storage::{Order, Storage},
    },
};

impl Case {
    /// A new account with a running server in the region that has backups, and its id.
    async fn backed(name: &str) -> (Self, String) {
        let mut case = Self::new(name).await;
        case.namespace = format!("{BACKED_PREFIX}{name}");
        case.storage().await;
        let id = case.create(json!({ "region": BACKED })).await;
        case.reaches(&id, Running).await;
        (case, id)
    }

    async fn storage(&self) -> &Storage {
        self.region.storage().await
    }

    /// Begins a backup of a server with an agent, which is cut so late that the guest has gone on before.
    pub(super) async fn back_up_late(&self, server: &str) -> String {
        self.order(Some(Order::Dawdle)).await;
        let backup = self.begin_backup(server).await;
        let age = async || {
            let all = self.snapshots().await.list(&ListParams::default()).await.unwrap();
            let made = all.items.first()?.creation_timestamp()?;
            Some(jiff::Timestamp::now().duration_since(made.0).as_secs())
        };
        // Windows goes on after ten seconds.
        eventually("the guest to go on", age, |age| age.is_some_and(|age| age > 11)).await;
        assert_eq!(consistency(&self.snapshot().await), "agent");
        self.order(None).await;
        backup
    }

    /// What goes wrong from now on with the snapshots of the account's servers.
    async fn order(&self, order: Option<Order>) {
        self.storage().await.order(&self.namespace, order);
    }

    /// The volume of the only disk of the account's servers.
    async fn volume(&self) -> String {
        let client = self.region.plane.client(Identity::Admin).await.unwrap();
        let claims = Api::<PersistentVolumeClaim>::namespaced(client, &self.namespace);
        let claim = claims.get(&self.disk().await.name_any()).await.unwrap();
        claim.spec.unwrap().volume_name.unwrap()
    }

    pub(super) async fn snapshots(&self) -> Api<DynamicObject> {
        self.region.api(&kinds::SNAPSHOT, &self.namespace).await
    }

    /// The only snapshot of the account's servers.
    pub(super) async fn snapshot(&self) -> DynamicObject {
        let all = self.snapshots().await.list(&ListParams::default()).await.unwrap();
        let [snapshot] = &all.items[..] else {
            panic!("{:#?}", all.items)
        };
        snapshot.clone()
    }

    /// What the storage has of it.
    async fn content(&self) -> Option<DynamicObject> {
        let client = self.region.plane.client(Identity::Admin).await.unwrap();
        let snapshot = self.snapshot().await;
        let name = snapshot.data["status"]["boundVolumeSnapshotContentName"]
            .as_str()
            .unwrap();
        let contents = Api::<DynamicObject>::all_with(client, &kinds::SNAPSHOT_CONTENT);
        contents.get_opt(name).await.unwrap()
    }

    fn backups(&self) -> Api<resources::Backup> {
        Api::namespaced(self.tenant.kube.clone(), &self.tenant.namespace)
    }

    /// Begins a backup of a server, and returns its id.
    pub(super) async fn begin_backup(&self, server: &str) -> String {
        let path = format!("/v1/instances/{server}/backups");
        let answer = self.tenant.call(Method::POST, &path, Some(&json!({}))).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text);
        answer.json()["data"]["id"].as_str().unwrap().to_owned()
    }

    async fn backup(&self, id: &str) -> Value {
        let answer = self
            .tenant
            .call(Method::GET, &format!("/v1/backups/{id}"), None)
            .await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        answer.json()["data"].clone()
    }

    /// Waits until a backup has come to its end.
    pub(super) async fn ended(&self, id: &str) -> Value {
        let view = async || self.backup(id).await;
        eventually("the backup to end", view, |view| view["status"] != "running").await
    }

    /// Makes a backup of a server.
    async fn back_up(&self, server: &str) -> Value {
        let id = self.begin_backup(server).await;
        let view = self.ended(&id).await;
        assert_eq!(view["status"], "completed", "{view:#}");
        view
    }

    /// Changes the status of a backup, as if it had been found so.
    async fn change_status(&self, id: &str, change: &Value) {
        let plane = &super::installation::shared(&self.region).await.plane;
        let backups =
            Api::<resources::Backup>::namespaced(support::as_operator(plane).await, &self.tenant.namespace);
        let (name, change) = (id.replace('_', "-"), json!({ "status": change }));
        backups.merge_status(&name, &change).await;
    }

    pub(super) async fn delete_backup(&self, id: &str) {
        let path = format!("/v1/backups/{id}");
        let answer = self.tenant.call(Method::DELETE, &path, None).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.text);
    }

    /// Whether the object is gone. REST shows none that is being deleted.
    pub(super) async fn is_backup_gone(&self, id: &str) -> bool {
        let name = id.replace('_', "-");
        self.backups().get_opt(&name).await.unwrap().is_none()
    }

    /// Finds that a backup of a running server cannot be restored to it, and that it runs on.
    async fn cannot_be_restored(&self, server: &str, backup: &Value) {
        let run = self.run(server).await;
        let restore = json!({ "backup": backup["id"] });
        self.ask(server, "rebuild", Some(&restore)).await;
        self.reaches(server, Error).await;
        let instance = self.tenant.instances().get(server).await.unwrap();
        let status = instance.status.unwrap();
        let ready = conditions::find(&status.conditions, "Ready").unwrap();
        assert_eq!(ready.reason, "BackupUnreadable", "{}", ready.message);
        assert_eq!(self.run(server).await, run, "the server still runs");
    }

    /// Waits until the storage has removed a volume.
    async fn is_removed(&self, volume: &str) {
        let storage = self.storage().await;
        let has = async || storage.volumes().iter().any(|it| it == volume);
        eventually("the volume to go", has, |has| !has).await;
    }

    /// Lets the guest of a server have an agent.
    pub(super) async fn install_agent(&self, server: &str) {
        self.region.puppet.install_agents(&self.namespace);
        let runs = self.runs().await;
        let conditions = async || runs.get(server).await.unwrap().data["status"]["conditions"].to_string();
        eventually("the agent", conditions, |all| all.contains("AgentConnected")).await;
    }

    /// What the disks of the account's servers are filled from, and their sizes.
    async fn sources(&self) -> Vec<(Value, Value)> {
        let disks = self.disks().await.list(&ListParams::default()).await.unwrap();
        let of = |disk: &DynamicObject| {
            let spec = &disk.data["spec"];
            let size = spec["storage"]["resources"]["requests"]["storage"].clone();
            (spec["source"]["snapshot"]["name"].clone(), size)
        };
        disks.items.iter().map(of).collect()
    }
}

fn consistency(snapshot: &DynamicObject) -> &str {
    &snapshot.annotations()["stellage.dev/consistency"]
}

#[tokio::test]
async fn a_backup_outlives_its_server_restores_it_and_another_and_its_deletion_leaves_no_data() {
    let (case, id) = Case::backed("kv-backups").await;
    case.install_agent(&id).await;
    let (storage, first) = (case.storage().await, case.volume().await);
    storage.write(&first, "then");
    let backup = case.back_up(&id).await;
    storage.write(&first, "later");
    assert_eq!(
        (&backup["region"], &backup["disk_size"], &backup["size_gb"]),
        (&json!(BACKED), &json!(40), &json!(40.0)),
        "the size is that of the disk: {backup:#}"
    );
    let snapshot = case.snapshot().await;
    let name = snapshot.name_any();
    assert_eq!(name.replacen('-', "_", 1), backup["id"].as_str().unwrap());
    assert_eq!(consistency(&snapshot), "agent");
    assert!(snapshot.owner_references().is_empty());
    let disk = case.disk().await.name_any();
    assert_eq!(snapshot.data["spec"]["volumeSnapshotClassName"], "snapshots");
    assert_eq!(snapshot.data["spec"]["source"]["persistentVolumeClaimName"], disk);
    assert_eq!(snapshot.data["status"]["restoreSize"], "40Gi");
    let told = async || case.region.handler.told(&case.namespace);
    eventually("the guest to go on", told, |told| *told == ["freeze", "unfreeze"]).await;

    // To the same server, which runs until the new disk is good.
    let run = case.run(&id).await;
    let restore = json!({ "backup": backup["id"] });
    case.act(&id, "rebuild", Some(&restore), Running).await;
    assert_ne!(case.run(&id).await, run);
    let restored = (json!(name), json!("40Gi"));
    eventually(
        "the old disk to go",
        async || case.sources().await,
        |all| *all == [restored.clone()],
    )
    .await;
    let second = case.volume().await;
    assert_eq!(storage.read(&second), "then");
    case.is_removed(&first).await;

    // To a new server, with a larger disk, when the first one is gone.
    let answer = case
        .tenant
        .call(Method::DELETE, &format!("/v1/instances/{id}"), None)
        .await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.text);
    let gone = async || case.tenant.instances().get_opt(&id).await.unwrap().is_none();
    eventually("the instance to go", gone, |gone| *gone).await;
    assert_eq!(case.sources().await, []);
    case.is_removed(&second).await;
    assert_eq!(case.snapshot().await.uid(), snapshot.uid());
    let new = json!({ "name": "new", "region": BACKED, "plan": "business", "backup": backup["id"] });
    let answer = case.tenant.call(Method::POST, "/v1/instances", Some(&new)).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text);
    let new = answer.json()["data"]["id"].as_str().unwrap().to_owned();
    case.settles(&new, Running).await;
    assert_eq!(case.sources().await, [(json!(name), json!("80Gi"))]);
    assert_eq!(storage.read(&case.volume().await), "then");

    assert_eq!(storage.snapshots(&case.namespace).len(), 1);
    let backup = backup["id"].as_str().unwrap();
    case.delete_backup(backup).await;
    let gone = async || case.is_backup_gone(backup).await;
    eventually("the backup to go", gone, |gone| *gone).await;
    assert!(storage.snapshots(&case.namespace).is_empty(), "its data is left");
    let left = case.snapshots().await.list(&ListParams::default()).await.unwrap();
    assert!(left.items.is_empty(), "{:#?}", left.items);
}

#[tokio::test]
async fn row_45_a_guest_whose_agent_hangs_is_backed_up_as_after_a_power_cut() {
    let (case, id) = Case::backed("kv-frozen").await;
    case.install_agent(&id).await;
    case.region.handler.silence_agents(&case.namespace);
    case.back_up(&id).await;
    assert_eq!(consistency(&case.snapshot().await), "crash");
    let told = async || case.region.handler.told(&case.namespace);
    eventually("the guest to go on", told, |told| *told == ["freeze", "unfreeze"]).await;
    let object = case
        .backups()
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .remove(0);
    assert_eq!(object.status.unwrap().provider_state["consistency"], "crash");
}

#[tokio::test]
async fn a_cut_that_comes_when_the_guest_may_have_gone_on_counts_as_after_a_power_cut() {
    let (case, id) = Case::backed("kv-late-cut").await;
    case.install_agent(&id).await;
    let backup = case.back_up_late(&id).await;
    assert_eq!(case.ended(&backup).await["status"], "completed");
    assert_eq!(consistency(&case.snapshot().await), "crash");
}

#[tokio::test]
async fn row_46_a_snapshot_that_is_never_ready_fails_after_an_hour_and_is_deleted() {
    let (case, id) = Case::backed("kv-never-ready").await;
    case.order(Some(Order::Upload)).await;
    let backup = case.begin_backup(&id).await;
    let made = async || {
        case.snapshots()
            .await
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .len()
    };
    eventually("the snapshot", made, |made| *made == 1).await;
    // An hour passes.
    let begun = jiff::Timestamp::now() - jiff::SignedDuration::from_mins(61);
    case.change_status(&backup, &json!({ "startedAt": begun })).await;
    let view = case.ended(&backup).await;
    assert_eq!(view["error"]["code"], "timeout", "{view:#}");
    eventually("the snapshot to go", made, |made| *made == 0).await;
    assert!(case.storage().await.snapshots(&case.namespace).is_empty());
    let told = async || {
        case.tenant
            .call(Method::GET, "/v1/events?limit=100", None)
            .await
            .text
    };
    eventually("the event", told, |told| told.contains("backup.failed")).await;
}

#[tokio::test]
async fn row_46_a_storage_that_refuses_is_asked_again_for_five_minutes() {
    let (case, id) = Case::backed("kv-refused").await;
    case.order(Some(Order::Refuse)).await;
    let failing = async |backup: &str| {
        let backup = case.backups().get(&backup.replace('_', "-")).await.unwrap();
        let state = backup.status.unwrap_or_default().provider_state;
        state.contains_key("failingSince")
    };
    let passes = case.begin_backup(&id).await;
    eventually("the refusal", async || failing(&passes).await, |is| *is).await;
    assert_eq!(case.backup(&passes).await["status"], "running");
    let error = case.snapshot().await.data["status"]["error"]["message"].clone();
    assert!(
        error.as_str().unwrap().contains("no space left in the pool"),
        "{error}"
    );
    case.order(None).await;
    assert_eq!(case.ended(&passes).await["status"], "completed");

    case.order(Some(Order::Refuse)).await;
    let stays = case.begin_backup(&id).await;
    eventually("the refusal", async || failing(&stays).await, |is| *is).await;
    // Five minutes pass.
    let since = jiff::Timestamp::now() - jiff::SignedDuration::from_mins(6);
    let earlier = json!({ "providerState": { "failingSince": since } });
    case.change_status(&stays, &earlier).await;
    let view = case.ended(&stays).await;
    assert_eq!(view["error"]["code"], "snapshot_failed", "{view:#}");
    assert!(!view.to_string().contains("pool"), "{view:#}");
    // The snapshot may have been made, so external-snapshotter asks again before it deletes anything.
    case.order(None).await;
    let left = async || case.snapshots().await.list(&ListParams::default()).await.unwrap();
    // That of the first backup stays.
    eventually("the snapshot to go", left, |left| left.items.len() == 1).await;
    assert_eq!(case.storage().await.snapshots(&case.namespace).len(), 1);
}

#[tokio::test]
async fn row_47_a_backup_whose_snapshot_is_deleted_leaves_the_server_running() {
    let (case, id) = Case::backed("kv-deleted").await;
    let backup = case.back_up(&id).await;
    let snapshot = case.snapshot().await.name_any();
    case.snapshots()
        .await
        .delete(&snapshot, &DeleteParams::default())
        .await
        .unwrap();
    case.cannot_be_restored(&id, &backup).await;
}

/// external-snapshotter cuts it anew as long as the disk is there, under the same names.
#[tokio::test]
async fn row_47_a_backup_whose_data_is_lost_and_cut_anew_is_not_restored() {
    let (case, id) = Case::backed("kv-lost").await;
    let backup = case.back_up(&id).await;
    let lost = case.content().await.unwrap();
    let cut = lost.data["status"]["creationTime"].as_i64().unwrap();
    let age = async || jiff::Timestamp::now().as_nanosecond() - i128::from(cut);
    eventually("another second", age, |age| *age > 2_000_000_000).await;
    case.storage().await.lose(&case.namespace);
    let content = format!("volumesnapshotcontent/{}", lost.name_any());
    let release = r#"--patch={"metadata":{"finalizers":null}}"#;
    let plane = &case.region.plane;
    support::kubectl(plane, &format!("delete {content} --wait=false"), None).unwrap();
    support::kubectl(plane, &format!("patch {content} --type=merge {release}"), None).unwrap();
    let is_anew = async || {
        let is_another = case.content().await.is_some_and(|it| it.uid() != lost.uid());
        is_another && case.snapshot().await.data["status"]["readyToUse"] == true
    };
    eventually("a new cut", is_anew, |is| *is).await;
    case.cannot_be_restored(&id, &backup).await;
}

#[tokio::test]
async fn row_61_a_backup_that_the_storage_does_not_release_says_so_and_holds_its_account() {
    let (case, id) = Case::backed("kv-held").await;
    let backup = case.back_up(&id).await;
    let backup = backup["id"].as_str().unwrap();
    case.order(Some(Order::Hold)).await;
    let name = backup.replace('_', "-");
    let backups = case.backups();
    backups.delete(&name, &DeleteParams::default()).await.unwrap();
    let says = async || {
        let status = backups.get(&name).await.unwrap().status.unwrap_or_default();
        let ready = conditions::find(&status.conditions, "Ready");
        ready.map_or_else(String::new, |ready| ready.message.clone())
    };
    eventually("what it waits for", says, |says| {
        says.contains("the storage of the region has not removed the data yet")
    })
    .await;
    let accounts: Api<resources::Account> = Api::all(case.tenant.kube.clone());
    accounts
        .delete("kv-held", &DeleteParams::default())
        .await
        .unwrap();
    let says = async || {
        let status = accounts.get("kv-held").await.unwrap().status.unwrap_or_default();
        serde_json::to_string(&status.conditions).unwrap()
    };
    eventually("the account to wait", says, |says| says.contains("ackup")).await;
    assert_eq!(case.storage().await.snapshots(&case.namespace).len(), 1);
    case.order(None).await;
    let gone = async || accounts.get_opt("kv-held").await.unwrap().is_none();
    eventually("the account to go", gone, |gone| *gone).await;
    assert!(case.storage().await.snapshots(&case.namespace).is_empty());
}

#[tokio::test]
async fn backups_are_refused_with_what_is_wrong_where_a_region_has_none() {
    let (case, id) = Case::running("kv-no-backups").await;
    let call = async |method: Method, path: &str, body: Value| {
        let answer = case.tenant.call(method, path, Some(&body)).await;
        (answer.status, answer.text)
    };
    let (status, error) = call(Method::POST, &format!("/v1/instances/{id}/backups"), json!({})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{error}");
    assert!(
        error.contains("backups are not available in region de-fra-1"),
        "{error}"
    );
    let order = |more: Value| {
        let mut body = json!({ "name": "more", "region": REGION, "plan": "starter", "image": "debian-13" });
        for (field, value) in more.as_object().unwrap() {
            body[field] = value.clone();
        }
        body
    };
    let daily = json!({ "backup_enabled": true });
    for (method, path, body) in [
        (Method::POST, "/v1/instances".to_owned(), order(daily.clone())),
        (Method::PATCH, format!("/v1/instances/{id}"), daily),
    ] {
        let (status, error) = call(method, &path, body).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{error}");
        assert!(
            error.contains("backup_enabled")
                && error.contains("must not be true: backups are not available in region de-fra-1"),
            "{error}"
        );
    }

    // A backup of a simulated server.
    let simulated = case
        .create(json!({ "name": "simulated", "region": "nl-ams-1" }))
        .await;
    case.settles(&simulated, Running).await;
    let path = format!("/v1/instances/{simulated}/backups");
    let answer = case.tenant.call(Method::POST, &path, Some(&json!({}))).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text);
    let backup = answer.json()["data"]["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/backups/{backup}");
    let status = async || {
        let answer = case.tenant.call(Method::GET, &path, None).await;
        answer.json()["data"]["status"].clone()
    };
    eventually("the backup", status, |status| *status == "completed").await;
    let restore = json!({ "backup": backup });
    let mut new = order(restore.clone());
    new.as_object_mut().unwrap().remove("image");
    for (path, body) in [
        ("/v1/instances".to_owned(), new),
        (format!("/v1/instances/{id}/rebuild"), restore),
    ] {
        let (status, error) = call(Method::POST, &path, body).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{path}: {error}");
        assert!(
            error.contains("is in region nl-ams-1, and cannot be restored in region de-fra-1"),
            "{path}: {error}"
        );
    }

    // With kubectl, the Backup says so.
    let instance = case.tenant.instances().get(&id).await.unwrap();
    let object = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Backup", "metadata": { "name": "by-hand", "namespace": "kv-no-backups" },
        "spec": { "instance": instance.name_any() },
    });
    let backups: Api<resources::Backup> = Api::namespaced(case.tenant.kube.clone(), "kv-no-backups");
    let object = serde_json::from_value(object).unwrap();
    backups.create(&PostParams::default(), &object).await.unwrap();
    let failed = async || {
        let status = backups.get("by-hand").await.unwrap().status.unwrap_or_default();
        serde_json::to_string(&status).unwrap()
    };
    eventually("the Backup to fail", failed, |status| {
        status.contains("backups are not available in this region")
    })
    .await;
}
