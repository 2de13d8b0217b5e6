//! Backups through REST and kubectl, with the real program and the real API server.

use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::{conditions::is_deleted, wait::await_condition},
};
use providers::simulator::FAULT_ANNOTATION;
use reqwest::Method;
use resources::{Account, Backup, BackupPhase, Instance, InstanceState, conditions};
use serde_json::{Value, json};
use standardwebhooks::Webhook as Verifier;

use crate::{
    facade::{
        contract::{code, expect, fields},
        create, wait_for,
    },
    support::{
        Answer, Change as _, PATIENCE, Tenant, eventually, kubectl, receivers, receivers::Receiver, shared,
    },
    webhooks::{SECRET, body, types},
};

impl Tenant {
    pub fn backups(&self) -> Api<Backup> {
        Api::namespaced(self.kube.clone(), &self.namespace)
    }

    pub async fn all_backups(&self) -> Vec<Backup> {
        self.backups().list(&ListParams::default()).await.unwrap().items
    }

    /// Switches a fault of the simulator on or off.
    async fn fault(&self, instance: &str, fault: Option<&str>) {
        let change = json!({ "metadata": { "annotations": { FAULT_ANNOTATION: fault } } });
        self.merge(instance, &change).await;
    }

    /// Waits until REST shows a status of a backup.
    async fn wait_for_backup(&self, id: &str, status: &str) -> Value {
        let path = format!("/v1/backups/{id}");
        let look = async || self.get(&path).await.json();
        let is = |shown: &Value| shown["data"]["status"] == status;
        eventually(status, look, is).await["data"].clone()
    }

    /// Creates an instance and waits until it is running.
    async fn running(&self, name: &str) -> String {
        let id = create(self, name).await;
        wait_for(self, &id, "running").await;
        id
    }

    async fn backup_of(&self, instance: &str) -> Value {
        let answer = post_backup(self, instance, &json!({})).await;
        answer.json()["data"].clone()
    }
}

fn id_of(answer: &Value) -> &str {
    answer["id"].as_str().unwrap()
}

async fn post_backup(tenant: &Tenant, instance: &str, body: &Value) -> Answer {
    let path = format!("/v1/instances/{instance}/backups");
    tenant.post(201, &path, body).await
}

#[tokio::test]
async fn a_repeated_backup_create_is_answered_although_its_instance_has_changed_or_is_gone() {
    let tenant = Tenant::new("bkp-answered").await;
    let web = tenant.running("web").await;
    let path = format!("/v1/instances/{web}/backups");
    let shown = tenant.get(&format!("/v1/instances/{web}")).await;
    let headers = [("Idempotency-Key", "nightly"), ("If-Match", shown.header("etag"))];
    let first = expect(&tenant, 201, Method::POST, &path, None, &headers).await;
    let id = id_of(&first.json()["data"]).to_owned();
    tenant.wait_for_backup(&id, "completed").await;
    let instance = format!("/v1/instances/{web}");
    let tags = json!({ "tags": ["changed"] });
    tenant.patch(200, &instance, &tags).await;
    for is_gone in [false, true] {
        if is_gone {
            tenant.delete(&instance).await;
        }
        let again = expect(&tenant, 201, Method::POST, &path, None, &headers).await;
        assert_eq!(again.header("idempotency-replayed"), "true");
        assert_eq!(id_of(&again.json()["data"]), id);
    }
    let other = json!({ "name": "other" });
    let reused = expect(&tenant, 422, Method::POST, &path, Some(&other), &headers).await;
    assert_eq!(code(&reused), "idempotency_key_reused");
    expect(
        &tenant,
        404,
        Method::POST,
        &path,
        None,
        &[("Idempotency-Key", "new")],
    )
    .await;
    assert_eq!(tenant.all_backups().await.len(), 1);
}

#[tokio::test]
async fn a_backup_is_completed_told_signed_and_restored_to_its_instance_and_to_a_new_one() {
    let tenant = Tenant::new("bkp-rest").await;
    let receiver = Receiver::start(|_| receivers::Answer::ok()).await;
    let wanted = ["backup.completed", "backup.failed"];
    tenant.webhook("orders", &receiver.url("/hook"), &wanted).await;
    let web = tenant.running("web").await;
    let answer = post_backup(&tenant, &web, &json!({ "name": "before-upgrade" })).await;
    let made = answer.json()["data"].clone();
    let id = id_of(&made);
    assert_eq!(answer.header("location"), format!("/v1/backups/{id}"));
    let expected = json!({
        "id": id, "instance_id": web, "instance_name": "web", "instance_deleted": false, "name": "before-upgrade",
        "status": "running", "scheduled": false, "size_gb": null, "disk_size": 40, "image": "debian-13", "region": "fr-par-1",
        "created_at": made["created_at"], "completed_at": null, "error": null,
    });
    assert_eq!(made, expected);
    let done = tenant.wait_for_backup(id, "completed").await;
    assert!((1.0..40.0).contains(&done["size_gb"].as_f64().unwrap()), "{done}");
    assert!(done["completed_at"].is_string());

    let requests = receiver.wait_for(1).await;
    assert_eq!(types(&requests), ["backup.completed"]);
    let event = body(&requests[0]);
    let mut told = done.clone();
    for only_in_rest in ["error", "region"] {
        told.as_object_mut().unwrap().remove(only_in_rest);
    }
    assert_eq!(event["data"]["backup"], told);
    assert_eq!(event["data"]["instance"]["id"], web.as_str());
    assert_eq!(event["data"].get("error"), None);
    let verifier = Verifier::new(SECRET).unwrap();
    verifier.verify(&requests[0].body, &requests[0].headers).unwrap();

    for path in [
        "/v1/backups".to_owned(),
        format!("/v1/instances/{web}/backups"),
        format!("/v1/backups?instance_id={web}&status=completed"),
    ] {
        let list = tenant.get(&path).await.json();
        assert_eq!(list["data"], json!([done]), "{path}");
        assert_eq!(list["pagination"]["total"], 1);
    }
    for filter in [
        "status=failed",
        "status=nonsense",
        "instance_id=i-0000000000000000",
        "page=2",
    ] {
        let path = format!("/v1/backups?{filter}");
        let list = tenant.get(&path).await.json();
        assert_eq!(list["data"], json!([]), "{path}");
    }

    // Meanwhile another image is installed; the backup brings its own back.
    let rebuild = format!("/v1/instances/{web}/rebuild");
    let image = json!({ "image": "debian-12" });
    tenant.post(202, &rebuild, &image).await;
    wait_for(&tenant, &web, "running").await;
    let restore = json!({ "backup": id });
    let restoring = tenant.post(202, &rebuild, &restore).await.json();
    assert_eq!(restoring["data"]["status"], "rebuilding");
    assert!(restoring["message"].as_str().unwrap().contains(id), "{restoring}");
    let restored = wait_for(&tenant, &web, "running").await;
    assert_eq!(restored["image"], "debian-13");
    let object = tenant.instances().get(&web).await.unwrap();
    let name = id.replace('_', "-");
    assert_eq!(object.spec.restore_from.as_deref(), Some(&*name));
    assert_eq!(object.status.unwrap().restored_from.as_deref(), Some(&*name));
    tenant.post(202, &rebuild, &image).await;
    wait_for(&tenant, &web, "running").await;
    let object = tenant.instances().get(&web).await.unwrap();
    assert_eq!(
        (object.spec.restore_from, object.status.unwrap().restored_from),
        (None, None)
    );

    let order = json!({ "name": "copy", "plan": "starter", "region": "fr-par-1", "backup": id });
    let key = [("Idempotency-Key", "copy")];
    let copy = expect(&tenant, 201, Method::POST, "/v1/instances", Some(&order), &key)
        .await
        .json();
    assert_eq!(copy["data"]["image"], "debian-13");
    wait_for(&tenant, id_of(&copy["data"]), "running").await;
    let rebuild = format!("/v1/instances/{}/rebuild", id_of(&copy["data"]));
    expect(&tenant, 202, Method::POST, &rebuild, Some(&restore), &key).await;
    wait_for(&tenant, id_of(&copy["data"]), "running").await;

    let path = format!("/v1/backups/{id}");
    tenant.delete(&path).await;
    expect(&tenant, 404, Method::GET, &path, None, &[]).await;
    // A repeated request gets the same answer, although the backup is gone.
    for (status, path, body) in [(201, "/v1/instances", &order), (202, rebuild.as_str(), &restore)] {
        let repeated = expect(&tenant, status, Method::POST, path, Some(body), &key).await;
        assert_eq!(repeated.header("idempotency-replayed"), "true");
        assert_eq!(repeated.json()["data"]["id"], copy["data"]["id"]);
        let refused = tenant.post(422, path, body).await;
        assert_eq!(fields(&refused), ["backup"]);
        let other =
            json!({ "backup": "bkp_0000000000000000", "name": "-", "region": "fr-par-1", "plan": "starter" });
        let reused = expect(&tenant, 422, Method::POST, path, Some(&other), &key).await;
        assert_eq!(code(&reused), "idempotency_key_reused");
    }
    let wrong = json!({ "name": "-", "plan": "starter", "region": "fr-par-1", "backup": id });
    let refused = tenant.post(422, "/v1/instances", &wrong).await;
    assert_eq!(fields(&refused), ["backup", "name"]);
    let gone = await_condition(
        tenant.backups(),
        &name,
        is_deleted(made["uid"].as_str().unwrap_or_default()),
    );
    let _ = tokio::time::timeout(PATIENCE, gone).await.unwrap();
    assert_eq!(receiver.count(), 1, "one event for one end");
}

#[tokio::test]
async fn kubectl_makes_shows_waits_for_and_restores_a_backup() {
    let tenant = Tenant::new("bkp-kubectl").await;
    let plane = shared().await.plane;
    let manifest =
        include_str!("../examples/backup.yaml").replace("namespace: ada", "namespace: bkp-kubectl");
    // Create the backup first: it waits for its instance.
    kubectl(plane, "apply -f -", Some(&manifest)).unwrap();
    let look = async || tenant.backups().get("before-upgrade").await.unwrap();
    let waits = |backup: &Backup| {
        let status = backup.status.as_ref();
        status.is_some_and(|status| {
            conditions::find(&status.conditions, conditions::READY)
                .is_some_and(|ready| ready.reason == "InstanceNotFound")
        })
    };
    eventually("it to wait", look, waits).await;
    tenant
        .apply("web", |instance| {
            instance.spec.power_state = resources::PowerState::Stopped;
        })
        .await;
    let words = "-n bkp-kubectl wait --for=condition=Ready bkp/before-upgrade --timeout=120s";
    kubectl(plane, words, None).unwrap();
    let table = kubectl(plane, "-n bkp-kubectl get backups", None).unwrap();
    for column in ["NAME", "INSTANCE", "PHASE", "SIZE-GB", "AGE", "Completed", "web"] {
        assert!(table.contains(column), "{table}");
    }
    let told = kubectl(plane, "explain instance.spec.restoreFrom", None).unwrap();
    assert!(told.contains("rebuildRequestedAt"), "{told}");
    let patch = |spec: Value| {
        let tenant = &tenant;
        async move {
            let change = json!({ "spec": spec });
            tenant.merge("web", &change).await
        }
    };
    let request = |name: &str, image: &str, at: &str| json!({ "restoreFrom": name, "image": image, "rebuildRequestedAt": at });
    let id = tenant.instances().get("web").await.unwrap().id();
    for (name, image, because, says, in_rest) in [
        (
            "no-such",
            "debian-13",
            "BackupUnavailable",
            "spec.restoreFrom no-such",
            "is gone or was not completed",
        ),
        (
            "before-upgrade",
            "debian-12",
            "BackupImageDiffers",
            "set it to debian-13",
            "has another image",
        ),
    ] {
        patch(request(name, image, "2026-11-22T10:00:00Z")).await;
        tenant
            .wait("web", says, |instance: Option<&Instance>| {
                let status = instance.and_then(|instance| instance.status.as_ref());
                status.is_some_and(|status| {
                    conditions::find(&status.conditions, conditions::READY)
                        .is_some_and(|ready| ready.reason == because && ready.message.contains(says))
                })
            })
            .await;
        let path = format!("/v1/instances/{id}");
        let look = async || tenant.get(&path).await.json();
        eventually(in_rest, look, |shown| {
            let message = shown["data"]["status_message"].as_str();
            message.is_some_and(|message| message.contains(in_rest))
        })
        .await;
    }
    // An image that cannot be installed does not block anything else.
    for (action, shown, state) in [
        ("start", "starting", InstanceState::Running),
        ("stop", "stopping", InstanceState::Stopped),
    ] {
        let path = format!("/v1/instances/{id}/{action}");
        let answer = tenant.act(202, &path).await.json();
        assert_eq!(answer["data"]["status"], shown);
        tenant.wait_for_state("web", state).await;
    }
    patch(request("before-upgrade", "debian-13", "2026-11-22T10:00:01Z")).await;
    tenant
        .wait("web", "the restore", |instance: Option<&Instance>| {
            instance
                .and_then(|instance| instance.status.as_ref())
                .is_some_and(|status| {
                    status
                        .restored_from
                        .as_deref()
                        .is_some_and(|name| name == "before-upgrade")
                        && status.state == Some(InstanceState::Stopped)
                })
        })
        .await;
}

/// The reason of a Backup's Ready condition.
fn reason(backup: &Backup) -> Option<&str> {
    let status = backup.status.as_ref()?;
    let ready = conditions::find(&status.conditions, conditions::READY)?;
    Some(&ready.reason)
}

#[tokio::test]
async fn a_backup_that_is_deleted_before_it_has_been_restored_stays_until_then() {
    let tenant = Tenant::new("bkp-held").await;
    let web = tenant.running("web").await;
    let made = tenant.backup_of(&web).await;
    let id = id_of(&made);
    tenant.wait_for_backup(id, "completed").await;
    tenant.fault(&web, Some("unreachable")).await;
    let rebuild = format!("/v1/instances/{web}/rebuild");
    let restore = json!({ "backup": id });
    tenant.post(202, &rebuild, &restore).await;
    let path = format!("/v1/backups/{id}");
    tenant.delete(&path).await;
    expect(&tenant, 404, Method::GET, &path, None, &[]).await;
    let name = id.replace('_', "-");
    let look = async || tenant.backups().get(&name).await.unwrap();
    eventually("it to wait for the restore", look, |backup| {
        reason(backup) == Some("RestorePending")
    })
    .await;
    tenant.fault(&web, None).await;
    tenant
        .wait(&web, "the restore", |instance: Option<&Instance>| {
            let status = instance.and_then(|instance| instance.status.as_ref());
            status.is_some_and(|status| {
                status.restored_from.as_deref() == Some(&name) && status.state == Some(InstanceState::Running)
            })
        })
        .await;
    let look = async || tenant.backups().get_opt(&name).await.unwrap();
    eventually("it to go", look, Option::is_none).await;
}

#[tokio::test]
async fn an_instance_whose_backup_is_gone_says_what_to_do_and_is_made_from_its_image_then() {
    let tenant = Tenant::new("bkp-gone").await;
    tenant
        .apply("web", |web| {
            web.spec.restore_from = Some("gone".to_owned());
        })
        .await;
    let says = "remove spec.restoreFrom to install spec.image";
    tenant
        .wait("web", "the complaint", |instance: Option<&Instance>| {
            let status = instance.and_then(|instance| instance.status.as_ref());
            status.is_some_and(|status| {
                conditions::find(&status.conditions, conditions::READY)
                    .is_some_and(|ready| ready.reason == "BackupUnavailable" && ready.message.contains(says))
            })
        })
        .await;
    let id = tenant.instances().get("web").await.unwrap().id();
    let shown = tenant.get(&format!("/v1/instances/{id}")).await.json();
    let message = shown["data"]["status_message"].as_str().unwrap();
    assert!(
        message.starts_with("the backup that it is to be restored from is gone"),
        "{shown}"
    );
    let change = json!({ "spec": { "restoreFrom": null } });
    tenant.merge("web", &change).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
}

#[tokio::test]
async fn an_instance_deleted_during_a_backup_fails_it_first_and_keeps_its_completed_ones() {
    let tenant = Tenant::new("bkp-deleted").await;
    let receiver = Receiver::start(|_| receivers::Answer::ok()).await;
    let wanted = ["backup.completed", "backup.failed", "instance.deleted"];
    tenant.webhook("orders", &receiver.url("/hook"), &wanted).await;
    let web = tenant.running("web").await;
    let kept = tenant.backup_of(&web).await;
    tenant.wait_for_backup(id_of(&kept), "completed").await;
    receiver.wait_for(1).await;
    // The provider does not answer, so this backup stays in progress.
    tenant.fault(&web, Some("unreachable")).await;
    let ended = tenant.backup_of(&web).await;
    let path = format!("/v1/instances/{web}");
    tenant.delete(&path).await;
    let shown = tenant.get("/v1/backups").await.json();
    assert_eq!(shown["data"][1]["instance_deleted"], true, "{shown}");
    let failed = tenant.wait_for_backup(id_of(&ended), "failed").await;
    assert_eq!(
        (&failed["error"]["code"], &failed["instance_deleted"]),
        (&json!("instance_deleted"), &json!(true))
    );
    tenant.fault(&web, None).await;
    let requests = receiver.wait_for(3).await;
    assert_eq!(
        types(&requests),
        ["backup.completed", "backup.failed", "instance.deleted"]
    );
    let event = body(&requests[1]);
    assert_eq!(event["data"]["error"], failed["error"]);
    assert_eq!(event["data"]["backup"]["id"], ended["id"]);
    assert_eq!(event["data"]["instance"]["id"], web.as_str());

    let of_it = format!("/v1/backups?instance_id={web}");
    let left = tenant.get(&of_it).await.json();
    assert_eq!(left["pagination"]["total"], 2);
    let marked = async || tenant.all_backups().await;
    eventually("both to be marked", marked, |all| {
        all.iter().all(|backup| {
            backup
                .status
                .as_ref()
                .is_some_and(|status| status.instance_deleted)
        })
    })
    .await;
    let order = json!({ "name": "new", "plan": "business", "region": "fr-par-1", "backup": kept["id"] });
    let new = tenant.post(201, "/v1/instances", &order).await.json();
    wait_for(&tenant, id_of(&new["data"]), "running").await;
}

#[tokio::test]
async fn requests_that_cannot_be_are_refused_as_decided() {
    let (tenant, other) = (
        Tenant::new("bkp-errors").await,
        Tenant::new("bkp-errors-other").await,
    );
    let foreign = other.running("web").await;
    let foreign = other.backup_of(&foreign).await;
    let big = json!({ "name": "big", "plan": "business", "region": "fr-par-1", "image": "debian-13" });
    let big = tenant.post(201, "/v1/instances", &big).await.json();
    let big = id_of(&big["data"]).to_owned();
    let small = tenant.running("small").await;
    wait_for(&tenant, &big, "running").await;
    let large = tenant.backup_of(&big).await;
    tenant.wait_for_backup(id_of(&large), "completed").await;

    // The cases in which a restore is refused, through REST and through kubectl.
    let rebuild = format!("/v1/instances/{small}/rebuild");
    for (body, field) in [
        (json!({ "backup": "bkp_0000000000000000" }), "backup"),
        (json!({ "backup": foreign["id"] }), "backup"),
        (json!({ "backup": "nonsense" }), "backup"),
        (json!({ "backup": large["id"] }), "backup"),
        (json!({ "backup": large["id"], "image": "debian-13" }), "backup"),
        (json!({}), "image"),
    ] {
        let refused = tenant.post(422, &rebuild, &body).await;
        assert_eq!(
            (code(&refused).as_str(), fields(&refused)),
            ("invalid_input", vec![field.to_owned()]),
            "{body}"
        );
        let mut order = json!({ "name": "x", "plan": "starter", "region": "fr-par-1" });
        order
            .as_object_mut()
            .unwrap()
            .extend(body.as_object().unwrap().clone());
        let refused = tenant.post(422, "/v1/instances", &order).await;
        assert_eq!(fields(&refused), [field], "{order}");
    }
    let answers = [
        json!({ "backup": "bkp_0000000000000000" }),
        json!({ "backup": foreign["id"] }),
    ];
    let [unknown, anothers] = answers.map(|body| {
        let (tenant, rebuild) = (&tenant, &rebuild);
        async move { tenant.post(422, rebuild, &body).await.json() }
    });
    assert_eq!(
        unknown.await["error"]["details"],
        anothers.await["error"]["details"]
    );

    // While a backup is under way.
    tenant.fault(&small, Some("unreachable")).await;
    let running = tenant.backup_of(&small).await;
    let backups = format!("/v1/instances/{small}/backups");
    let refused = tenant.act(409, &backups).await;
    assert_eq!(
        (code(&refused).as_str(), fields(&refused)),
        ("invalid_state", vec!["status".to_owned()])
    );
    let path = format!("/v1/backups/{}", id_of(&running));
    let refused = expect(&tenant, 409, Method::DELETE, &path, None, &[]).await;
    assert_eq!(
        (code(&refused).as_str(), fields(&refused)),
        ("invalid_state", vec!["status".to_owned()])
    );
    let body = json!({ "backup": running["id"] });
    let refused = tenant.post(409, &rebuild, &body).await;
    assert_eq!(code(&refused), "invalid_state");
    tenant.fault(&small, None).await;
    tenant.wait_for_backup(id_of(&running), "completed").await;

    // While the instance is being provisioned.
    let slow = Instance {
        metadata: kube::api::ObjectMeta {
            name: Some("i-slowslowslowslow".to_owned()),
            annotations: Some([(FAULT_ANNOTATION.to_owned(), "unreachable".to_owned())].into()),
            ..kube::api::ObjectMeta::default()
        },
        ..Instance::new("", crate::support::spec())
    };
    tenant
        .instances()
        .create(&PostParams::default(), &slow)
        .await
        .unwrap();
    wait_for(&tenant, "i-slowslowslowslow", "provisioning").await;
    let path = "/v1/instances/i-slowslowslowslow/backups";
    let refused = tenant.act(409, path).await;
    assert_eq!(
        (code(&refused).as_str(), fields(&refused)),
        ("invalid_state", vec!["status".to_owned()])
    );
    tenant.fault("i-slowslowslowslow", None).await;

    for (body, field) in [
        (json!({ "name": "no spaces" }), "name"),
        (json!({ "size": 1 }), "size"),
    ] {
        let refused = tenant.post(422, &backups, &body).await;
        assert_eq!(fields(&refused), [field]);
    }
}

#[tokio::test]
async fn a_create_is_repeated_safely_and_preconditions_hold() {
    let tenant = Tenant::new("bkp-repeat").await;
    let web = tenant.running("web").await;
    let path = format!("/v1/instances/{web}/backups");
    let key = [("Idempotency-Key", "nightly")];
    let first = expect(&tenant, 201, Method::POST, &path, None, &key).await;
    let id = id_of(&first.json()["data"]).to_owned();
    tenant.wait_for_backup(&id, "completed").await;
    let again = expect(&tenant, 201, Method::POST, &path, None, &key).await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(
        (&again.json()["data"]["id"], &again.json()["data"]["status"]),
        (&json!(id), &json!("completed"))
    );
    let other = json!({ "name": "other" });
    let reused = expect(&tenant, 422, Method::POST, &path, Some(&other), &key).await;
    assert_eq!(code(&reused), "idempotency_key_reused");
    assert_eq!(tenant.all_backups().await.len(), 1);
    let stale = [("If-Match", "\"nothing-1\"")];
    expect(&tenant, 412, Method::POST, &path, None, &stale).await;
    let backup = format!("/v1/backups/{id}");
    expect(&tenant, 412, Method::DELETE, &backup, None, &stale).await;
    let shown = tenant.get(&backup).await;
    let current = [("If-Match", shown.header("etag"))];
    expect(&tenant, 204, Method::DELETE, &backup, None, &current).await;
}

#[tokio::test]
async fn the_thirty_first_manual_backup_of_an_instance_is_refused() {
    let tenant = Tenant::new("bkp-many").await;
    let web = tenant.running("web").await;
    for _ in 0..30 {
        let made = tenant.backup_of(&web).await;
        tenant.wait_for_backup(id_of(&made), "completed").await;
    }
    let path = format!("/v1/instances/{web}/backups");
    let refused = tenant.act(403, &path).await;
    assert_eq!(code(&refused), "resource_limit_exceeded");
    // With kubectl the object exists, but the result is the same.
    let backup: Backup = serde_json::from_value(json!({
        "metadata": { "name": "one-more" }, "spec": { "instance": web },
    }))
    .unwrap();
    tenant
        .backups()
        .create(&PostParams::default(), &backup)
        .await
        .unwrap();
    let look = async || tenant.backups().get("one-more").await.unwrap();
    let failed = eventually("it to fail", look, |backup| backup.phase() == BackupPhase::Failed).await;
    assert_eq!(
        failed.status.unwrap().error.unwrap().code,
        "resource_limit_exceeded"
    );
    // A failed backup does not count, and one fewer makes room.
    let oldest = tenant
        .all_backups()
        .await
        .into_iter()
        .find(|b| b.phase() == BackupPhase::Completed)
        .unwrap();
    let path_of_oldest = format!("/v1/backups/{}", oldest.id());
    tenant.delete(&path_of_oldest).await;
    tenant.act(201, &path).await;
}

/// Makes the operator believe that the next backup of an instance is due.
async fn make_due(operator: &Api<Instance>, name: &str, at: &str) {
    let change = json!({ "status": { "nextBackupAt": at } });
    operator.merge_status(name, &change).await;
}

#[tokio::test]
async fn the_schedule_makes_one_backup_for_each_due_time_keeps_seven_and_tells_of_a_failure() {
    let tenant = Tenant::new("bkp-daily").await;
    let operator = crate::support::as_operator(shared().await.plane).await;
    let operator: Api<Instance> = Api::namespaced(operator, "bkp-daily");
    let web = tenant.running("web").await;
    let path = format!("/v1/instances/{web}");
    let on = json!({ "backup_enabled": true });
    tenant.patch(200, &path, &on).await;
    let is_planned = |instance: Option<&Instance>| {
        let status = instance.and_then(|instance| instance.status.as_ref());
        status.is_some_and(|status| {
            status
                .next_backup_at
                .is_some_and(|next| next > jiff::Timestamp::now())
        })
    };
    tenant.wait(&web, "the plan", is_planned).await;
    assert_eq!(tenant.all_backups().await.len(), 0, "first at the next time");
    let manual = tenant.backup_of(&web).await;
    tenant.wait_for_backup(id_of(&manual), "completed").await;
    for day in 1..=9 {
        let at = format!("2026-10-{day:02}T03:00:00Z");
        // Twice, as after a crash between the two writes: there is still only one Backup for that time.
        for _ in 0..2 {
            make_due(&operator, &web, &at).await;
            tenant.wait(&web, "the next time", is_planned).await;
        }
        let made = async || tenant.all_backups().await;
        let due: jiff::Timestamp = at.parse().unwrap();
        let is_completed = |all: &Vec<Backup>| {
            all.iter().any(|backup| {
                backup.spec.scheduled_for == Some(due) && backup.phase() == BackupPhase::Completed
            })
        };
        eventually("the scheduled backup", made, is_completed).await;
    }
    let left = async || {
        let all = tenant.all_backups().await;
        let mut days: Vec<String> = all
            .iter()
            .filter_map(|backup| backup.spec.scheduled_for)
            .map(|time| time.to_string()[8..10].to_owned())
            .collect();
        days.sort();
        (days, all.len())
    };
    let expected = ["03", "04", "05", "06", "07", "08", "09"]
        .map(str::to_owned)
        .to_vec();
    eventually("seven to be kept", left, |(days, all)| {
        *days == expected && *all == 8
    })
    .await;
    let list = tenant.get("/v1/backups?limit=100").await.json();
    let scheduled = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|backup| backup["scheduled"] == true);
    assert_eq!(scheduled.count(), 7);

    let receiver = Receiver::start(|_| receivers::Answer::ok()).await;
    tenant
        .webhook("orders", &receiver.url("/hook"), &["backup.failed"])
        .await;
    tenant.fault(&web, Some("backup")).await;
    make_due(&operator, &web, "2026-10-10T03:00:00Z").await;
    let told = body(&receiver.wait_for(1).await[0]);
    assert_eq!(told["data"]["error"]["code"], "storage_unavailable");
    assert_eq!(told["data"]["backup"]["scheduled"], true);
    let off = json!({ "backup_enabled": false });
    tenant.patch(200, &path, &off).await;
    let is_off = |instance: Option<&Instance>| {
        let status = instance.and_then(|instance| instance.status.as_ref());
        status.is_some_and(|status| status.next_backup_at.is_none())
    };
    tenant.wait(&web, "no plan", is_off).await;
}

#[tokio::test]
async fn an_account_is_held_back_by_its_backups_and_says_so() {
    let tenant = Tenant::new("bkp-account").await;
    let web = tenant.running("web").await;
    let kept = tenant.backup_of(&web).await;
    tenant.wait_for_backup(id_of(&kept), "completed").await;
    let accounts: Api<Account> = Api::all(tenant.kube.clone());
    accounts
        .delete("bkp-account", &DeleteParams::default())
        .await
        .unwrap();
    let look = async || accounts.get_opt("bkp-account").await.unwrap();
    let says_so = |account: &Option<Account>| {
        let status = account.as_ref().and_then(|account| account.status.as_ref());
        status.is_some_and(|status| {
            conditions::find(&status.conditions, conditions::READY).is_some_and(|ready| {
                ready.reason == "DeletionHeldBack" && ready.message.contains("1 completed backup: bkp-")
            })
        })
    };
    eventually("the condition", look, says_so).await;
    let path = format!("/v1/instances/{web}");
    let shown = tenant.get(&path).await;
    assert_eq!(shown.json()["data"]["status"], "running", "nothing is touched");
    let name = id_of(&kept).replace('_', "-");
    tenant
        .backups()
        .delete(&name, &DeleteParams::default())
        .await
        .unwrap();
    eventually("the account to go", look, Option::is_none).await;
}

#[tokio::test]
async fn what_the_operator_alone_writes_nobody_else_does() {
    let tenant = Tenant::new("bkp-admission").await;
    let params = PostParams::default();
    let backup = |spec: Value| -> Backup {
        serde_json::from_value(json!({ "metadata": { "name": "forged" }, "spec": spec })).unwrap()
    };
    let forged = backup(json!({ "instance": "web", "scheduledFor": "2026-11-21T10:00:00Z" }));
    let refused = tenant.backups().create(&params, &forged).await.unwrap_err();
    assert!(
        refused.to_string().contains("set by the operator alone"),
        "{refused}"
    );
    let made = tenant
        .backups()
        .create(&params, &backup(json!({ "instance": "web" })))
        .await
        .unwrap();
    let status = json!({ "status": { "phase": "Completed" } });
    let params = PatchParams::default();
    let refused = tenant
        .backups()
        .patch_status("forged", &params, &Patch::Merge(&status))
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("written by the operator alone"),
        "{refused}"
    );
    let spec = json!({ "spec": { "instance": "other" } });
    let refused = tenant
        .backups()
        .patch("forged", &params, &Patch::Merge(&spec))
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("immutable"), "{refused}");
    tenant
        .backups()
        .delete(&made.name_any(), &DeleteParams::default())
        .await
        .unwrap();
    let look = async || tenant.backups().get_opt("forged").await.unwrap();
    eventually("it to go", look, Option::is_none).await;
}
