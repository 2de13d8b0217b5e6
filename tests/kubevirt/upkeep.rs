//! What a region needs besides servers: tokens that change, places that are taken, and what is left over.

use std::{fs, path::Path, process::Command};

use control_plane::{Identity, write_private};
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::{Namespace, PersistentVolume, Secret, ServiceAccount},
    rbac::v1::RoleBinding,
};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use reqwest::{Method, StatusCode};
use resources::{
    InstanceState::{Error, Running, Stopped},
    conditions, origin,
};
use serde_json::{Value, json};

use super::installation::Case;
use crate::support::kubevirt::{
    entry::{BACKED, BACKED_PREFIX, NAMESPACE, PREFIX, REGION, catalogue},
    storage::RETAINED,
};
use crate::support::{
    Operator, STELLAGE, Tenant, eventually, kubectl,
    kubevirt::{self, Region, puppet::Import},
    own_plane,
};

/// A token of an installation's service account that is valid as long as the Secret of this name exists.
async fn token(region: &Region, account: &str, secret: &str) -> String {
    let client = region.plane.client(Identity::Admin).await.unwrap();
    let secrets = Api::<Secret>::namespaced(client.clone(), NAMESPACE);
    let new: Secret = serde_json::from_value(json!({ "metadata": { "name": secret } })).unwrap();
    let made = secrets.create(&PostParams::default(), &new).await.unwrap();
    let request = TokenRequest {
        spec: TokenRequestSpec {
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Secret".to_owned()),
                name: Some(secret.to_owned()),
                uid: made.uid(),
            }),
            expiration_seconds: Some(3600),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let answer = Api::<ServiceAccount>::namespaced(client, NAMESPACE)
        .create_token_request(account, &PostParams::default(), &request)
        .await
        .unwrap();
    answer.status.unwrap().token
}

/// Writes the user of a kubeconfig.
fn set_user(kubeconfig: &Path, user: &Value) {
    let mut config: Value = serde_json::from_slice(&fs::read(kubeconfig).unwrap()).unwrap();
    config["users"][0]["user"] = user.clone();
    fs::remove_file(kubeconfig).unwrap();
    write_private(kubeconfig, &config.to_string()).unwrap();
}

#[tokio::test]
async fn a_kubeconfig_that_is_mended_and_a_token_that_is_replaced_are_used_without_a_restart() {
    let region = kubevirt::shared().await;
    let plane = own_plane().await;
    let file = catalogue(&region, "rotated", plane.folder()).await;
    let account = "stellage-region-rotated";
    let kubeconfig = region
        .plane
        .folder()
        .join(format!("{NAMESPACE}.{account}.kubeconfig"));
    set_user(&kubeconfig, &json!({ "token": "expired" }));
    let arguments = ["run", &format!("--catalogue={}", file.display())];
    let mut operator = Operator::start(&plane, &arguments).await;
    let tenant = Tenant::on(&plane, &operator, "kv-rotated").await;
    let case = Case {
        region,
        tenant,
        namespace: format!("{PREFIX}kv-rotated"),
    };
    let id = case.create(json!({})).await;
    let reason = async || {
        let instance = case.tenant.instances().get(&id).await.unwrap();
        let conditions = instance.status.unwrap_or_default().conditions;
        conditions::find(&conditions, conditions::READY).map(|ready| ready.reason.clone())
    };
    eventually("the region to be out of reach", reason, |reason| {
        reason.as_deref() == Some("RegionUnreachable")
    })
    .await;

    let first = token(&case.region, account, "first").await;
    let current = plane.folder().join("token");
    write_private(&current, &first).unwrap();
    set_user(&kubeconfig, &json!({ "tokenFile": current }));
    case.settles(&id, Running).await;

    let second = token(&case.region, account, "second").await;
    let next = plane.folder().join("next");
    write_private(&next, &second).unwrap();
    fs::rename(&next, &current).unwrap();
    let client = case.region.plane.client(Identity::Admin).await.unwrap();
    let secrets = Api::<Secret>::namespaced(client, NAMESPACE);
    secrets.delete("first", &DeleteParams::default()).await.unwrap();
    let with_the_first = plane.folder().join("first.kubeconfig");
    fs::copy(&kubeconfig, &with_the_first).unwrap();
    set_user(&with_the_first, &json!({ "token": first }));
    let config = Kubeconfig::read_from(with_the_first).unwrap();
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await;
    let machines = Api::<DynamicObject>::namespaced_with(
        Client::try_from(config.unwrap()).unwrap(),
        &case.namespace,
        &kubevirt::kinds::VM,
    );
    let is_revoked = async || match machines.list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) => status.code == 401,
        answer => answer.is_err(),
    };
    eventually("the first token to be refused", is_revoked, |is| *is).await;
    let run = case.run(&id).await;
    case.act(&id, "reboot", None, Running).await;
    assert_ne!(case.run(&id).await, run);
    case.act(&id, "stop", None, Stopped).await;
    operator.stop().await;
}

#[tokio::test]
async fn a_namespace_that_is_somebody_elses_is_left_alone_and_orders_of_the_account_say_so() {
    let case = Case::new("kv-taken").await;
    case.region.namespace(&case.namespace).await;
    let id = case.create(json!({})).await;
    case.reaches(&id, Error).await;
    case.shows_reason(&id, "namespace_unusable").await;
    let instance = case.tenant.instances().get(&id).await.unwrap();
    let conditions = instance.status.unwrap().conditions;
    let ready = conditions::find(&conditions, conditions::READY).unwrap();
    assert_eq!(ready.reason, "NamespaceUnusable");
    assert!(
        ready.message.contains("ask the platform's operators"),
        "{}",
        ready.message
    );
    let client = case.region.plane.client(Identity::Admin).await.unwrap();
    let bindings = Api::<RoleBinding>::namespaced(client.clone(), &case.namespace);
    let all = ListParams::default();
    assert!(bindings.list(&all).await.unwrap().items.is_empty());
    let namespaces = Api::<Namespace>::all(client);
    let found = namespaces.get(&case.namespace).await.unwrap();
    assert!(!found.labels().contains_key("stellage.dev/installation"));
}

/// A disk and a Secret of the server of an Instance with this UID, as a call that was given up may make them.
fn make_late(case: &Case, uid: &str) {
    let labels = json!({ "stellage.dev/installation": "shared", "stellage.dev/instance-uid": uid });
    let disk = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
        "metadata": { "name": "late", "namespace": case.namespace, "labels": labels },
        "spec": {
            "source": { "http": { "url": "https://images.example.com/debian.qcow2" } },
            "storage": { "resources": { "requests": { "storage": "1Gi" } } },
        },
    });
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": "late", "namespace": case.namespace, "labels": labels },
    });
    for object in [disk, secret] {
        kubectl(&case.region.plane, "create -f -", Some(&object.to_string())).unwrap();
    }
}

async fn is_left(case: &Case) -> bool {
    let client = case.region.plane.client(Identity::Admin).await.unwrap();
    let secrets = Api::<Secret>::namespaced(client, &case.namespace);
    let disk = case.disks().await.get_opt("late").await.unwrap();
    disk.is_some() || secrets.get_opt("late").await.unwrap().is_some()
}

#[tokio::test]
async fn row_44_a_disk_that_is_made_after_its_server_was_deleted_is_removed_too() {
    let (case, id) = Case::running("kv-late-disk").await;
    let instance = case.tenant.instances().get(&id).await.unwrap();
    let uid = origin::uid(&instance.metadata);
    let path = format!("/v1/instances/{id}");
    let answer = case.tenant.call(Method::DELETE, &path, None).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.text);
    let gone = async || case.tenant.instances().get_opt(&id).await.unwrap().is_none();
    eventually("the instance to go", gone, |gone| *gone).await;
    make_late(&case, uid);
    eventually(
        "disk and Secret to go",
        async || is_left(&case).await,
        |left| !left,
    )
    .await;
}

#[tokio::test]
async fn disks_without_a_server_are_listed_as_orphans() {
    let (case, _) = Case::running("kv-orphans").await;
    make_late(&case, "nobody");
    let installation = super::installation::shared(&case.region).await;
    // Without --delete: other tests have servers whose Instances are not there.
    let mut command = Command::new(STELLAGE);
    command
        .args(["orphans", "--region", REGION, "--output", "json", "--catalogue"])
        .arg(installation.plane.folder().join("regions.yaml"))
        .env("KUBECONFIG", installation.plane.kubeconfig(Identity::Admin));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let all: Vec<Value> =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    let ours = all.iter().filter(|it| it["namespace"] == case.namespace);
    let ours: Vec<_> = ours.map(|it| (&it["kind"], &it["name"])).collect();
    assert_eq!(ours, [(&json!("disk"), &json!("late"))]);
}

/// Runs a test of the doctor in a region, and returns its check, and what it said on the way.
fn doctor(catalogue: &Path, (region, flag, name): (&str, &str, &str), more: &[&str]) -> (Value, String) {
    let mut command = Command::new(STELLAGE);
    command
        .args([
            "doctor",
            "--region",
            region,
            "--output",
            "json",
            flag,
            "--catalogue",
        ])
        .arg(catalogue)
        .args(more);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name);
    (check.unwrap().clone(), said)
}

const SERVER: (&str, &str, &str) = (REGION, "--test", "server");

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_makes_a_server_says_which_proof_it_saw_and_leaves_nothing() {
    let region = kubevirt::shared().await;
    let folder = tempfile::tempdir().unwrap();
    let file = catalogue(&region, "doctor", folder.path()).await;
    // A namespace that is there, so that the puppet knows what to do in it.
    let mut existing: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    existing["regions"][1]["kubevirt"]["namespaces"] = "existing".into();
    let of_existing = folder.path().join("existing.yaml");
    fs::write(&of_existing, existing.to_string()).unwrap();
    let namespace = format!("{PREFIX}doctor");
    let (check, said) = doctor(&of_existing, SERVER, &["--timeout=60s"]);
    assert_eq!(check["outcome"], "failed", "{check:#}\n{said}");
    assert!(
        check["message"].as_str().unwrap().contains("(NamespaceMissing)"),
        "{check:#}"
    );
    assert!(
        check["fix"].as_str().unwrap().contains("account `doctor`"),
        "{check:#}"
    );

    let labels = json!({ "stellage.dev/installation": "doctor" });
    let place = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace, "labels": labels } });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "stellage", "namespace": namespace },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": format!("{PREFIX}servers") },
        "subjects": [{ "kind": "ServiceAccount", "namespace": NAMESPACE, "name": "stellage-region-doctor" }],
    });
    for object in [place, binding] {
        kubectl(&region.plane, "create -f -", Some(&object.to_string())).unwrap();
    }
    region
        .puppet
        .import(&namespace, Import::Fails("no such image".to_owned()));
    let (check, said) = doctor(&of_existing, SERVER, &["--image=broken-1", "--timeout=170s"]);
    assert_eq!(check["outcome"], "failed", "{check:#}\n{said}");
    let message = check["message"].as_str().unwrap();
    assert!(
        message.contains("(ImageFailed)") && message.contains("no such image"),
        "{check:#}"
    );
    assert!(check["fix"].as_str().unwrap().contains("--image"), "{check:#}");

    region.puppet.import(&namespace, Import::Succeeds);
    region.puppet.install_agents(&namespace);
    let (check, said) = doctor(&of_existing, SERVER, &["--image=debian-13"]);
    assert_eq!(check["outcome"], "ok", "{check:#}\n{said}");
    assert!(
        said.contains("the agent in its guest answers") && said.contains("nothing of it is left"),
        "{said}"
    );
    let all = ListParams::default();
    let client = region.plane.client(Identity::Admin).await.unwrap();
    let secrets = Api::<Secret>::namespaced(client.clone(), &namespace);
    for kind in [&kubevirt::kinds::VM, &kubevirt::kinds::DISK] {
        let left = region.api(kind, &namespace).await.list(&all).await.unwrap().items;
        assert!(left.is_empty(), "{left:#?}");
    }
    assert!(secrets.list(&all).await.unwrap().items.is_empty());

    // In a namespace of its own, and without an agent.
    let (check, said) = doctor(
        &file,
        SERVER,
        &["--image=debian-13", "--plan=business", "--timeout=40s"],
    );
    assert_eq!(check["outcome"], "unknown", "{check:#}\n{said}");
    let message = check["message"].as_str().unwrap();
    assert!(
        message.contains("no agent in its guest answered within 40 s"),
        "{check:#}"
    );
    let ours = ListParams::default().labels("stellage.dev/installation=doctor");
    let namespaces = Api::<Namespace>::all(client).list(&ours).await.unwrap();
    let names: Vec<String> = namespaces.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, [namespace], "{said}");
}

#[tokio::test]
async fn the_doctors_server_is_deleted_after_ctrl_c() {
    let region = kubevirt::shared().await;
    let folder = tempfile::tempdir().unwrap();
    let file = catalogue(&region, "doctor-stopped", folder.path()).await;
    let doctor = tokio::process::Command::new(STELLAGE)
        .args(["doctor", "--region", REGION, "--test", "--catalogue"])
        .arg(&file)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let ours = ListParams::default().labels("stellage.dev/installation=doctor-stopped");
    let client = region.plane.client(Identity::Admin).await.unwrap();
    let machines = Api::<DynamicObject>::all_with(client.clone(), &kubevirt::kinds::VM);
    let namespaces = Api::<Namespace>::all(client);
    let made = async || namespaces.list(&ours).await.unwrap().items.len();
    // The first step, which makes everything, is not done yet.
    eventually("the server's namespace", made, |made| *made == 1).await;
    let pid = doctor.id().unwrap().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status().unwrap();
    assert!(sent.success());
    let output = doctor.wait_with_output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("nothing of its server is left"), "{said}");
    assert_eq!(machines.list(&ours).await.unwrap().items.len(), 0, "{said}");
    assert_eq!(made().await, 0, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_restores_the_backup_of_a_disk_that_is_deleted_and_says_which_volumes_are_left() {
    let region = kubevirt::shared().await;
    let folder = tempfile::tempdir().unwrap();
    let file = catalogue(&region, "doctor-storage", folder.path()).await;
    region.storage().await;
    let (check, said) = doctor(&file, (BACKED, "--test-storage", "backups test"), &[]);
    assert_eq!(check["outcome"], "ok", "{check:#}\n{said}");
    let stages = [
        "making a disk",
        "making a snapshot",
        "deleting the disk",
        "restoring the snapshot",
    ];
    let at: Vec<_> = stages.iter().map(|stage| said.find(stage)).collect();
    assert!(at.is_sorted() && at.iter().all(Option::is_some), "{said}");
    assert!(said.contains("nothing of it is left"), "{said}");
    let ours = ListParams::default().labels("stellage.dev/installation=doctor-storage-backed");
    let client = region.plane.client(Identity::Admin).await.unwrap();
    let namespaces = Api::<Namespace>::all(client.clone()).list(&ours).await.unwrap();
    assert!(namespaces.items.is_empty(), "{said}");
    let volumes = Api::<PersistentVolume>::all(client);
    let left = async || -> Vec<String> {
        let all = volumes.list(&ListParams::default()).await.unwrap().items;
        let is_its = |volume: &PersistentVolume| {
            let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
            let namespace = claim.and_then(|claim| claim.namespace.as_deref());
            namespace.is_some_and(|namespace| namespace.starts_with(&format!("{BACKED_PREFIX}doctor-")))
        };
        all.iter()
            .filter(|it| is_its(it))
            .map(ResourceExt::name_any)
            .collect()
    };
    assert!(left().await.is_empty(), "{said}");

    let mut retained: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let regions = retained["regions"].as_array_mut().unwrap();
    let backed = regions
        .iter_mut()
        .find(|region| region["code"] == BACKED)
        .unwrap();
    backed["kubevirt"]["storageClass"] = RETAINED.into();
    fs::write(&file, retained.to_string()).unwrap();
    let (check, said) = doctor(&file, (BACKED, "--test-storage", "backups test"), &[]);
    assert_eq!(check["outcome"], "warning", "{check:#}\n{said}");
    let left = left().await;
    assert_eq!(left.len(), 2, "{left:?}");
    for volume in left {
        let message = check["message"].as_str().unwrap();
        assert!(
            message.contains(&volume) && said.contains(&volume),
            "{check:#}\n{said}"
        );
    }
}
