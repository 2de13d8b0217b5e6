//! Backups of servers, and restores from them. Rows are those of the failure matrix in docs/kubevirt.md.

use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use reqwest::{Method, StatusCode};
use resources::{
    InstanceState::{Error, Running},
    conditions,
};
use serde_json::{Value, json};

use super::installation::Case;
use crate::support::{
    self, eventually,
    kubevirt::{
        entry::{BARE, REGION},
        kinds,
        puppet::Snapshots,
    },
};

impl Case {
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
    let (case, id) = Case::running("kv-backups").await;
    case.install_agent(&id).await;
    let backup = case.back_up(&id).await;
    assert_eq!(
        (&backup["region"], &backup["disk_size"], &backup["size_gb"]),
        (&json!(REGION), &json!(40), &json!(40.0)),
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

    // To a new server, with a larger disk, when the first one is gone.
    let answer = case
        .tenant
        .call(Method::DELETE, &format!("/v1/instances/{id}"), None)
        .await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.text);
    let gone = async || case.tenant.instances().get_opt(&id).await.unwrap().is_none();
    eventually("the instance to go", gone, |gone| *gone).await;
    assert_eq!(case.sources().await, []);
    assert_eq!(case.snapshot().await.uid(), snapshot.uid());
    let new = json!({ "name": "new", "region": REGION, "plan": "business", "backup": backup["id"] });
    let answer = case.tenant.call(Method::POST, "/v1/instances", Some(&new)).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text);
    let new = answer.json()["data"]["id"].as_str().unwrap().to_owned();
    case.settles(&new, Running).await;
    assert_eq!(case.sources().await, [(json!(name), json!("80Gi"))]);

    let backup = backup["id"].as_str().unwrap();
    case.delete_backup(backup).await;
    let gone = async || case.is_backup_gone(backup).await;
    eventually("the backup to go", gone, |gone| *gone).await;
    let left = case.snapshots().await.list(&ListParams::default()).await.unwrap();
    assert!(left.items.is_empty(), "{:#?}", left.items);
}

#[tokio::test]
async fn row_45_a_guest_whose_agent_hangs_is_backed_up_as_after_a_power_cut() {
    let (case, id) = Case::running("kv-frozen").await;
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
async fn row_46_a_snapshot_that_is_never_ready_fails_after_an_hour_and_is_deleted() {
    let (case, id) = Case::running("kv-never-ready").await;
    case.region.puppet.snapshots(&case.namespace, Snapshots::Cut);
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
    let name = backup.replace('_', "-");
    let begun = jiff::Timestamp::now() - jiff::SignedDuration::from_mins(61);
    let earlier = Patch::Merge(json!({ "status": { "startedAt": begun } }));
    let plane = &super::installation::shared(&case.region).await.plane;
    let operator = support::as_operator(plane).await;
    let backups: Api<resources::Backup> = Api::namespaced(operator, &case.tenant.namespace);
    backups
        .patch_status(&name, &PatchParams::default(), &earlier)
        .await
        .unwrap();
    let view = case.ended(&backup).await;
    assert_eq!(view["error"]["code"], "timeout", "{view:#}");
    assert_eq!(made().await, 0);
    let told = async || {
        case.tenant
            .call(Method::GET, "/v1/events?limit=100", None)
            .await
            .text
    };
    eventually("the event", told, |told| told.contains("backup.failed")).await;
}

#[tokio::test]
async fn row_47_a_backup_whose_data_is_lost_fails_and_one_lost_later_leaves_the_server_running() {
    let (case, id) = Case::running("kv-lost").await;
    case.region.puppet.snapshots(&case.namespace, Snapshots::Lost);
    let backup = case.begin_backup(&id).await;
    let view = case.ended(&backup).await;
    assert_eq!(view["error"]["code"], "snapshot_failed", "{view:#}");
    // The storage takes a moment to remove it.
    let left = async || {
        let all = case.snapshots().await.list(&ListParams::default()).await;
        all.unwrap().items
    };
    eventually("the snapshot to go", left, Vec::is_empty).await;

    case.region.puppet.snapshots(&case.namespace, Snapshots::Ready);
    let backup = case.back_up(&id).await;
    let run = case.run(&id).await;
    let snapshot = case.snapshot().await.name_any();
    case.snapshots()
        .await
        .delete(&snapshot, &DeleteParams::default())
        .await
        .unwrap();
    let restore = json!({ "backup": backup["id"] });
    case.ask(&id, "rebuild", Some(&restore)).await;
    case.reaches(&id, Error).await;
    let instance = case.tenant.instances().get(&id).await.unwrap();
    let status = instance.status.unwrap();
    let ready = conditions::find(&status.conditions, "Ready").unwrap();
    assert_eq!(ready.reason, "BackupUnreadable", "{}", ready.message);
    assert_eq!(case.run(&id).await, run, "the server still runs");
}

#[tokio::test]
async fn row_61_a_backup_that_the_storage_does_not_release_says_so_and_holds_its_account() {
    let (case, id) = Case::running("kv-held").await;
    let backup = case.back_up(&id).await;
    let backup = backup["id"].as_str().unwrap();
    case.region.puppet.snapshots(&case.namespace, Snapshots::Held);
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
    case.region.puppet.snapshots(&case.namespace, Snapshots::Ready);
    let gone = async || accounts.get_opt("kv-held").await.unwrap().is_none();
    eventually("the account to go", gone, |gone| *gone).await;
}

#[tokio::test]
async fn backups_are_refused_with_what_is_wrong_where_a_region_has_none() {
    let case = Case::new("kv-no-backups").await;
    let id = case.create(json!({ "region": BARE })).await;
    case.reaches(&id, Running).await;
    let call = async |method: Method, path: &str, body: Value| {
        let answer = case.tenant.call(method, path, Some(&body)).await;
        (answer.status, answer.text)
    };
    let (status, error) = call(Method::POST, &format!("/v1/instances/{id}/backups"), json!({})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{error}");
    assert!(
        error.contains("backups are not available in region de-ber-1"),
        "{error}"
    );
    let order = |more: Value| {
        let mut body = json!({ "name": "more", "region": BARE, "plan": "starter", "image": "debian-13" });
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
                && error.contains("must not be true: backups are not available in region de-ber-1"),
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
            error.contains("is in region nl-ams-1, and cannot be restored in region de-ber-1"),
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
