//! Backups of the installation in an S3-compatible service and in a folder, and what is restored from them.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use age::{secrecy::ExposeSecret as _, x25519};
use control_plane::{ControlPlane, Identity};
use jiff::{SignedDuration, Timestamp};
use kube::api::DeleteParams;
use reqwest::{Method, StatusCode};
use resources::InstanceState;
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::{
    chart::{kubeconfig_of, objects},
    support::{
        Operator, STELLAGE, Tenant, eventually,
        helm::Helm,
        kubectl, own_plane, receiver_arguments,
        receivers::{Answer, Receiver},
        run,
        s3::S3,
        stellage,
    },
    webhooks::body,
};

const TARGET: &str = "s3://backups/stellage";
const PREFIX: &str = "stellage";

/// Files with a public key, its private one, and another private one.
struct Keys {
    folder: tempfile::TempDir,
}

impl Keys {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [identity, other] = [x25519::Identity::generate(), x25519::Identity::generate()];
        let files = [
            ("public", identity.to_public().to_string()),
            ("private", identity.to_string().expose_secret().to_owned()),
            ("other", other.to_string().expose_secret().to_owned()),
        ];
        for (name, key) in files {
            std::fs::write(folder.path().join(name), key + "\n").unwrap();
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}

/// `stellage installation …`, with the credentials of the service.
fn command(s3: &S3, kubeconfig: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(STELLAGE);
    command
        .arg("installation")
        .args(arguments)
        .envs(s3.environment())
        .env("KUBECONFIG", kubeconfig);
    command
}

fn installation(s3: &S3, plane: &ControlPlane, arguments: &[&str]) -> Result<String, String> {
    let kubeconfig = plane.kubeconfig(Identity::Admin);
    block_in_place(|| run(&mut command(s3, &kubeconfig, arguments), None))
}

/// The names of the backups, the newest first.
fn backups(s3: &S3, plane: &ControlPlane) -> Vec<String> {
    let list = ["backups", "--target", TARGET, "--output", "json"];
    let list: Value = serde_json::from_str(&installation(s3, plane, &list).unwrap()).unwrap();
    let list = list.as_array().unwrap().iter();
    list.map(|backup| backup["name"].as_str().unwrap().to_owned())
        .collect()
}

async fn start(plane: &ControlPlane) -> Operator {
    let mut arguments = vec!["run", "--provisioning-seconds", "0.5"];
    let receivers = receiver_arguments(plane);
    arguments.extend(receivers.iter().map(String::as_str));
    Operator::start(plane, &arguments).await
}

/// What the chart installs for backups: the CronJob, and what it needs.
async fn install_job(plane: &ControlPlane, s3: &S3) -> Value {
    let values = json!({ "backup": {
        "enabled": true, "target": TARGET, "s3": { "endpoint": s3.url, "existingSecret": "s3" },
        "encryption": { "existingSecret": "backup-keys" },
    } });
    let rendered = Helm::alone().await.template("stellage-system", &values).unwrap();
    let mut wanted = objects(&rendered);
    wanted.retain(|object| {
        let name = object["metadata"]["name"].as_str().unwrap();
        name.contains("backup") && name != "stellage-backup-age" && !name.ends_with(".stellage.dev")
    });
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": wanted });
    let apply = "apply --server-side -f -";
    kubectl(plane, apply, Some(&list.to_string())).unwrap();
    wanted
        .into_iter()
        .find(|object| object["kind"] == "CronJob")
        .unwrap()
}

/// What the CronJob's pod runs, as its service account.
fn job(plane: &ControlPlane, s3: &S3, job: &Value, keys: &Keys) -> Command {
    let pod = &job["spec"]["jobTemplate"]["spec"]["template"]["spec"];
    let account = pod["serviceAccountName"].as_str().unwrap();
    let container = &pod["containers"][0];
    let arguments = container["args"].as_array().unwrap().iter();
    let arguments: Vec<String> = arguments
        .map(|argument| match argument.as_str().unwrap() {
            "/etc/stellage/backup-keys/keys" => keys.path("public"),
            other => other.to_owned(),
        })
        .collect();
    let mut command = Command::new(STELLAGE);
    command
        .args(arguments)
        .env("KUBECONFIG", kubeconfig_of(plane, "stellage-system", account));
    let names = container["env"].as_array().unwrap().iter();
    let names: Vec<&str> = names.map(|variable| variable["name"].as_str().unwrap()).collect();
    command.envs(
        s3.environment()
            .into_iter()
            .filter(|(name, _)| names.contains(name)),
    );
    command
}

/// An account with a webhook and a running instance. Its id.
async fn account(
    plane: &ControlPlane,
    operator: &Operator,
    name: &str,
    receiver: &Receiver,
) -> (Tenant, String) {
    let tenant = Tenant::on(plane, operator, name).await;
    tenant
        .webhook(
            "orders",
            &receiver.url("/"),
            &["instance.created", "instance.stopped"],
        )
        .await;
    tenant.apply("web", |_| {}).await;
    let web = tenant.wait_for_state("web", InstanceState::Running).await;
    tenant.wait_for_clear_outboxes().await;
    (tenant, web.id())
}

fn at(before: &Tenant, plane_client: kube::Client, operator: &Operator) -> Tenant {
    Tenant {
        namespace: before.namespace.clone(),
        key: before.key.clone(),
        kube: plane_client,
        url: operator.url.clone(),
        http: reqwest::Client::new(),
    }
}

/// Waits until the key of an account works, and checks that its instance is the one that it was, and that its webhook signs.
async fn goes_on(tenant: &Tenant, id: &str, receiver: &Receiver) {
    let shown = async || tenant.call(Method::GET, "/v1/instances", None).await;
    let shown = eventually("the key to work", shown, |answer| answer.status == StatusCode::OK).await;
    assert_eq!(shown.json()["data"][0]["id"], id);
    let told = receiver.count();
    tenant.power("web", "Stopped").await;
    tenant.wait_for_state("web", InstanceState::Stopped).await;
    eventually("the event", async || receiver.count(), |count| *count > told).await;
    assert_eq!(body(&receiver.received()[told])["type"], "instance.stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_charts_job_backs_an_installation_up_from_which_it_comes_back_whole_or_one_account_alone() {
    let (s3, keys) = (S3::start().await, Keys::new());
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let (ada, ada_web, bob, bob_web, name) = {
        let plane = own_plane().await;
        let cron_job = install_job(&plane, &s3).await;
        let mut operator = start(&plane).await;
        let (ada, ada_web) = account(&plane, &operator, "ada", &receiver).await;
        let (bob, bob_web) = account(&plane, &operator, "bob", &receiver).await;
        // While the operator runs.
        let mut job = job(&plane, &s3, &cron_job, &keys);
        block_in_place(|| run(&mut job, None)).unwrap();
        let names = backups(&s3, &plane);
        assert_eq!(names, s3.objects(PREFIX));
        let bytes = std::fs::read(s3.folder(PREFIX).join(&names[0])).unwrap();
        assert!(bytes.starts_with(b"age-encryption.org/v1\n"));
        let noted = noted(&plane).unwrap();
        assert_eq!(noted["data"]["last-backup"], names[0]);
        assert_eq!(noted["data"]["last-bytes"], bytes.len().to_string());
        let age = async || {
            operator
                .metric("stellage_installation_backup_age_seconds", "")
                .await
        };
        eventually("its age in the metrics", age, |age| 0.0 < *age && *age < 600.0).await;
        operator.stop().await;
        (ada, ada_web, bob, bob_web, names[0].clone())
    };

    // The whole installation, in another control plane.
    let plane = own_plane().await;
    let restore = |key: &str, more: &[&str]| {
        let key = keys.path(key);
        let restore = ["restore", "latest", "--target", TARGET, "--key-file", &key];
        installation(&s3, &plane, &[&restore, more].concat())
    };
    let refused = restore("other", &[]).unwrap_err();
    assert!(refused.contains("none of the keys in"), "{refused}");
    let refused = restore("public", &[]).unwrap_err();
    assert!(refused.contains("only public keys"), "{refused}");
    restore("private", &["--dry-run"]).unwrap();
    restore("private", &[]).unwrap();
    let client = plane.client(Identity::Admin).await.unwrap();
    let mut operator = start(&plane).await;
    goes_on(&at(&ada, client.clone(), &operator), &ada_web, &receiver).await;
    goes_on(&at(&bob, client, &operator), &bob_web, &receiver).await;
    operator.stop().await;
    drop(plane);

    // One account, where there are others.
    let plane = own_plane().await;
    let mut operator = start(&plane).await;
    let other = Tenant::on(&plane, &operator, "other").await;
    let key = keys.path("private");
    let restore = [
        "restore",
        &name,
        "--target",
        TARGET,
        "--key-file",
        &key,
        "--account",
        "ada",
    ];
    installation(&s3, &plane, &restore).unwrap();
    goes_on(&at(&ada, other.kube.clone(), &operator), &ada_web, &receiver).await;
    let all = kubectl(&plane, "get accounts -o name", None).unwrap();
    assert_eq!(all.lines().count(), 2, "{all}");
    operator.stop().await;
}

/// The ConfigMap in which backups are noted.
fn noted(plane: &ControlPlane) -> Option<Value> {
    let get = "get configmap -n stellage-system stellage-backup -o json --ignore-not-found";
    let found = kubectl(plane, get, None).unwrap();
    (!found.trim().is_empty()).then(|| serde_json::from_str(&found).unwrap())
}

/// An account, of which no operator knows.
fn create_account(plane: &ControlPlane) {
    let account = json!({ "apiVersion": "stellage.dev/v1", "kind": "Account", "metadata": { "name": "ada" }, "spec": { "email": "ada@example.com" } });
    kubectl(plane, "create -f -", Some(&account.to_string())).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_without_accounts_is_neither_backed_up_nor_restored() {
    let (s3, keys) = (S3::start().await, Keys::new());
    let plane = own_plane().await;
    let backup = ["backup", "--target", TARGET, "--unencrypted"];
    // By hand, and so that a chart which plans backups later can create its ConfigMap.
    installation(&s3, &plane, &backup).unwrap();
    assert!(noted(&plane).is_none(), "Helm could not take it over");
    // A new installation raises no alert.
    let cron_job = install_job(&plane, &s3).await;
    let mut job = job(&plane, &s3, &cron_job, &keys);
    block_in_place(|| run(&mut job, None)).unwrap();
    let noted = noted(&plane).unwrap();
    assert!(noted["data"]["last-empty-at"].is_string(), "{noted}");
    assert_eq!(backups(&s3, &plane), Vec::<String>::new());

    create_account(&plane);
    block_in_place(|| run(&mut job, None)).unwrap();
    let made = backups(&s3, &plane);
    assert_eq!(made.len(), 1);
    kubectl(&plane, "delete accounts --all", None).unwrap();
    let refused = block_in_place(|| run(&mut job, None)).unwrap_err();
    assert!(refused.contains(&made[0]), "{refused}");
    assert_eq!(backups(&s3, &plane), made);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("empty.export").display().to_string();
    stellage(&plane, &format!("export --output {file}")).unwrap();
    let refused = stellage(&plane, &format!("import {file}")).unwrap_err();
    assert!(refused.contains("it has no accounts"), "{refused}");
}

/// A backup whose end the service does not answer.
async fn held(s3: &S3, plane: &ControlPlane) -> Child {
    let before = s3.held();
    let arguments = ["backup", "--target", TARGET, "--unencrypted"];
    let mut command = command(s3, &plane.kubeconfig(Identity::Admin), &arguments);
    let child = command.stderr(Stdio::null()).spawn().unwrap();
    eventually("the end of the upload", async || s3.held(), |held| *held > before).await;
    child
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_is_cut_off_is_none_and_old_ones_of_this_installation_alone_are_deleted() {
    let s3 = S3::start().await;
    let plane = own_plane().await;
    create_account(&plane);
    let backup = |more: &[&str]| {
        let backup = ["backup", "--target", TARGET, "--unencrypted"];
        installation(&s3, &plane, &[&backup, more].concat())
    };
    let refused = installation(&s3, &plane, &["backup", "--target", TARGET]).unwrap_err();
    assert!(refused.contains("--unencrypted"), "{refused}");
    s3.hold(true);
    let mut killed = held(&s3, &plane).await;
    killed.kill().unwrap();
    killed.wait().unwrap();
    let mut ended = held(&s3, &plane).await;
    let pid = rustix::process::Pid::from_child(&ended);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = block_in_place(|| ended.wait()).unwrap();
    assert_eq!(status.code(), Some(1));
    s3.hold(false);
    assert_eq!(backups(&s3, &plane), Vec::<String>::new());
    let refused = installation(&s3, &plane, &["restore", "latest", "--target", TARGET]).unwrap_err();
    assert!(refused.contains("there are no backups"), "{refused}");

    backup(&[]).unwrap();
    let first = backups(&s3, &plane).remove(0);
    // The same as if they had been made earlier.
    let installation_id = first.split('-').nth(1).unwrap();
    let old = |installation: &str, days: i64| {
        let time = Timestamp::now() - SignedDuration::from_hours(24 * days);
        let time = time.strftime("%Y%m%dT%H%M%SZ");
        let name = format!("stellage-{installation}-{time}-old{days}.export.gz");
        std::fs::copy(s3.folder(PREFIX).join(&first), s3.folder(PREFIX).join(&name)).unwrap();
        name
    };
    let ours = [
        old(installation_id, 3),
        old(installation_id, 8),
        old(installation_id, 40),
    ];
    let of_another = old("0123456789ab", 400);
    let folder = s3.folder(PREFIX);
    std::fs::write(folder.join("notes.txt"), "not a backup").unwrap();
    backup(&["--keep", "7d"]).unwrap();
    let left = backups(&s3, &plane);
    // Both of today may be of the same second.
    assert!(left[..2].contains(&first), "{left:?}");
    assert_eq!(left[2..], [ours[0].clone(), of_another]);
    assert!(s3.objects(PREFIX).contains(&"notes.txt".to_owned()));
    let ambiguous = installation(&s3, &plane, &["restore", "latest", "--target", TARGET]).unwrap_err();
    assert!(ambiguous.contains("several installations"), "{ambiguous}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_has_backups_that_only_their_owner_can_read_and_only_what_the_operators_namespace_had_is_restored()
 {
    let s3 = S3::start().await;
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().to_str().unwrap();
    let plane = own_plane().await;
    let mut operator = start(&plane).await;
    let tenant = Tenant::on(&plane, &operator, "folder").await;
    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    tenant.wait_for_entries(1).await;
    let missing =
        installation(&s3, &plane, &["backup", "--target", "/nowhere", "--unencrypted"]).unwrap_err();
    assert!(missing.contains("there is no folder /nowhere"), "{missing}");
    let backup = ["backup", "--target", target, "--unencrypted"];
    // What is left of one that was killed.
    installation(&s3, &plane, &backup).unwrap();
    let files = || -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let first = files().remove(0);
    std::fs::rename(&first, format!("{}#1", first.display())).unwrap();
    installation(&s3, &plane, &backup).unwrap();
    let left = files();
    assert_eq!(left.len(), 1, "{left:?}");
    let mode = std::fs::metadata(&left[0]).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");

    // The operator's namespace has lost its invoices.
    operator.stop().await;
    let invoices = tenant.all_invoices().await;
    let bindings = "operator-invoices.stellage.dev operator-invoice-numbers.stellage.dev";
    let delete = format!("delete validatingadmissionpolicybinding {bindings}");
    kubectl(&plane, &delete, None).unwrap();
    let api = kube::Api::<resources::Invoice>::namespaced(tenant.kube.clone(), "stellage-system");
    let delete = async || {
        let _ = api
            .delete_collection(&DeleteParams::default(), &kube::api::ListParams::default())
            .await;
        tenant.all_invoices().await.len()
    };
    eventually("the invoices to be gone", delete, |left| *left == 0).await;
    kubectl(&plane, "delete invoicepages --all -n stellage-system", None).unwrap();
    let restore = ["restore", "latest", "--target", target];
    let refused = installation(&s3, &plane, &restore).unwrap_err();
    assert!(refused.contains("not empty"), "{refused}");
    installation(
        &s3,
        &plane,
        &[&restore[..], &["--only-operator-namespace"]].concat(),
    )
    .unwrap();
    let restored = tenant.all_invoices().await;
    assert_eq!(restored.len(), 1);
    assert_eq!(restored[0].spec.entries, invoices[0].spec.entries);
}
