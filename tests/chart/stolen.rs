//! What the tokens of the two service accounts grant in the wrong hands, within RBAC and the admission policies of the
//! chart.

use std::path::Path;

use control_plane::{ControlPlane, Identity};
use kube::{
    Api, Client, Config,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use resources::{Account, ApiKey, Backup, BackupPhase, Instance, Webhook};
use serde_json::{Value, json};

use super::{kubeconfig_of, thief::Thief};
use crate::support::{
    self, Change as _, bare_plane,
    helm::{Helm, chart},
    kubectl,
};

const NAMESPACE: &str = "stellage-system";

/// Gives the facade its rights in the namespace `owned`.
fn let_the_facade_in(plane: &ControlPlane) {
    let grant = binding(
        "owned",
        "stellage-operator-api",
        "stellage-account-api",
        &["stellage-api"],
    );
    kubectl(plane, "create -f -", Some(&grant.to_string())).unwrap();
}

impl<'a> Thief<'a> {
    fn of(plane: &'a ControlPlane, service_account: &str) -> Self {
        let kubeconfig = kubeconfig_of(plane, NAMESPACE, service_account);
        Self { plane, kubeconfig }
    }

    /// Once the policy knows that the account is deleted.
    async fn may_in_the_end(&self, line: &str) {
        let done = async || self.kubectl(line, None);
        support::eventually(
            "the policy to know that the account is deleted",
            done,
            Result::is_ok,
        )
        .await
        .unwrap();
    }

    /// The Secret `password` in the namespace `owned`, which belongs to no webhook.
    fn may_not_touch_the_secret_of_somebody_else(&self) {
        for line in [
            "-n owned patch secret password -p {\"data\":{\"a\":null}}",
            "-n owned label secret password stellage.dev/webhook-secret=true",
            "-n owned delete secret password",
        ] {
            self.may_not(line, "changes and deletes only Secrets");
        }
    }
}

fn binding(namespace: &str, name: &str, role: &str, service_accounts: &[&str]) -> Value {
    let subjects: Vec<Value> = service_accounts
        .iter()
        .map(|name| json!({ "kind": "ServiceAccount", "name": name, "namespace": NAMESPACE }))
        .collect();
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": name, "namespace": namespace },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": subjects,
    })
}

fn quota(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": name, "namespace": namespace },
        "spec": { "hard": { "count/instances.stellage.dev": "1" } },
    })
}

fn key(namespace: &str, scope: &str) -> Value {
    json!({
        "apiVersion": "stellage.dev/v1", "kind": "ApiKey", "metadata": { "name": "mine", "namespace": namespace },
        "spec": { "sha256": "0".repeat(64), "scope": scope, "lastCharacters": "0000" },
    })
}

/// A client for patches that kubectl cannot make, because it reads the object first.
async fn client_of(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    Client::try_from(config.unwrap()).unwrap()
}

/// The error of a merge patch, as text.
async fn patch<K>(api: &Api<K>, name: &str, patch: Value) -> Result<(), String>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let patched = api
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    patched.map(drop).map_err(|error| error.to_string())
}

fn namespace(name: &str, labels: Value, annotations: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": name, "labels": labels, "annotations": annotations },
    })
}

/// A Secret as the facade makes it for a webhook, `mine`.
fn secret_of(owner: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": { "name": "mine", "namespace": "owned", "ownerReferences": [owner] },
        "stringData": { "secret": "s" },
    })
}

/// The reference to the ApiKey `made`, which this creates, as the controlling owner.
fn owning_key(plane: &ControlPlane) -> Value {
    let mut key = key("owned", "read");
    key["metadata"]["name"] = json!("made");
    let create = "create -o jsonpath={.metadata.uid} -f -";
    let uid = kubectl(plane, create, Some(&key.to_string())).unwrap();
    json!({ "apiVersion": "stellage.dev/v1", "kind": "ApiKey", "name": "made", "uid": uid, "controller": true })
}

/// The reference to the Instance `web`, which this creates, as the controlling owner.
fn owning_instance(plane: &ControlPlane) -> Value {
    let instance = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance", "metadata": { "name": "web", "namespace": "owned" },
        "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13", "userDataRef": { "name": "boot" } },
    });
    let create = "create -o jsonpath={.metadata.uid} -f -";
    let uid = kubectl(plane, create, Some(&instance.to_string())).unwrap();
    json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance", "name": "web", "uid": uid, "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// Creates the Webhook `orders`, which the garbage collector looks for; returns the reference to it as the controlling owner.
fn owner(plane: &ControlPlane) -> Value {
    let webhook = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Webhook", "metadata": { "name": "orders", "namespace": "owned" },
        "spec": { "url": "https://hooks.example.com/", "events": ["instance.created"], "secretRef": { "name": "mine" } },
    });
    let create = "create -o jsonpath={.metadata.uid} -f -";
    let uid = kubectl(plane, create, Some(&webhook.to_string())).unwrap();
    json!({
        "apiVersion": "stellage.dev/v1", "kind": "Webhook", "name": "orders", "uid": uid, "controller": true,
        "blockOwnerDeletion": true,
    })
}

fn config_map(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": NAMESPACE } })
}

/// The request for a test event, as the facade makes it, without a name.
fn test_event(owner: &Value) -> Value {
    json!({
        "apiVersion": "stellage.dev/v1", "kind": "Delivery",
        "metadata": {
            "generateName": "dlv-", "namespace": "owned", "ownerReferences": [owner],
            "labels": {
                "stellage.dev/webhook": "orders", "stellage.dev/phase": "pending", "stellage.dev/event-type": "instance.created",
            },
            "annotations": { "stellage.dev/request-hash": "0" },
        },
        "spec": {
            "webhook": "orders", "eventId": "evt_test_abcdefgh01234567", "eventType": "instance.created",
            "eventCreatedAt": "2026-11-23T10:00:00Z", "body": "", "test": true,
        },
    })
}

/// The request to send a delivery of the event log again, as the facade makes it, without a name.
fn of_event_log(owner: &Value) -> Value {
    let mut delivery = test_event(owner);
    delivery["metadata"]["annotations"] = json!({
        "stellage.dev/logged-in": "page", "stellage.dev/event-order": "2026-11-23T10:00:00Z 1", "stellage.dev/idempotency-keys": "[]",
    });
    delivery["spec"]["eventId"] = json!("evt_abcdefgh01234567");
    delivery["spec"]["test"] = json!(false);
    delivery
}

/// A control plane with the chart, and namespaces: `owned` was created for an account, `adopted` was not, `foreign` belongs to
/// none.
async fn installed() -> support::OwnPlane {
    let plane = bare_plane(ControlPlane::options()).await;
    let helm = Helm::on(&plane).await;
    let chart = chart();
    let arguments = [
        "install",
        "stellage",
        chart.to_str().unwrap(),
        "--namespace",
        NAMESPACE,
        "--create-namespace",
    ];
    helm.run(&arguments).unwrap();
    let label = json!({ "stellage.dev/account": "ada" });
    let mark = json!({ "stellage.dev/made-for-account": "uid" });
    for namespace in [
        namespace("owned", label.clone(), mark),
        namespace("adopted", label, json!({ "team": "web" })),
        namespace("foreign", json!({ "team": "web" }), json!({})),
    ] {
        kubectl(&plane, "create -f -", Some(&namespace.to_string())).unwrap();
        let name = namespace["metadata"]["name"].as_str().unwrap();
        for secret in ["password", "signing"] {
            let create = format!("-n {name} create secret generic {secret} --from-literal=a=b");
            kubectl(&plane, &create, None).unwrap();
        }
        let label = format!("-n {name} label secret signing stellage.dev/webhook-secret=true");
        kubectl(&plane, &label, None).unwrap();
    }
    plane
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_controllers_token_no_role_is_bound_and_no_namespace_touched_but_those_of_accounts() {
    let plane = installed().await;
    let thief = Thief::of(&plane, "stellage-controller");
    let own = ["stellage-controller"];

    // Policies take a moment to take effect.
    let probe = async || {
        let line = "create --dry-run=server -f -";
        let namespace = namespace("probe", json!({}), json!({}));
        thief
            .kubectl(line, Some(&namespace))
            .unwrap_or_else(|refused| refused)
    };
    support::eventually("the policies", probe, |said| {
        said.contains("operator-namespaces.stellage.dev")
    })
    .await;

    // What the token is meant for.
    thief.may_apply(&binding("owned", "stellage-operator", "stellage-account", &own));
    thief.may_apply(&binding(
        "adopted",
        "stellage-operator-api",
        "stellage-account-api",
        &["stellage-api"],
    ));
    thief.may_apply(&quota("owned", "stellage"));
    thief.may_apply(&quota(NAMESPACE, "stellage-probe"));
    thief.may("-n stellage-system delete resourcequota stellage-probe");
    thief.may("-n owned get secret password");
    let mark = json!({ "stellage.dev/made-for-account": "u" });
    let labels = json!({ "stellage.dev/account": "grace", "app.kubernetes.io/managed-by": "stellage" });
    thief.may_apply(&namespace("grace", labels, mark.clone()));
    // Its label was removed, and is restored.
    thief.may("label namespace owned stellage.dev/account-");
    thief.may("label namespace owned stellage.dev/account=ada app.kubernetes.io/managed-by=stellage");

    // A role in a namespace where the attacker would find the tokens of others.
    for elsewhere in ["kube-system", "kube-public", NAMESPACE, "default", "foreign"] {
        let forbidden = binding(elsewhere, "stellage-operator", "stellage-account", &own);
        thief.may_not_apply(
            &forbidden,
            "the operator binds roles only in namespaces with the label",
        );
        thief.may_not(&format!("-n {elsewhere} get secrets"), "cannot list resource");
        thief.may_not(
            &format!("-n {elsewhere} get secret password"),
            "cannot get resource",
        );
    }
    for (forbidden, why) in [
        (
            binding("owned", "mine", "stellage-account", &own),
            "cannot patch resource \"rolebindings\"",
        ),
        (
            binding("adopted", "stellage-operator", "stellage-account-api", &own),
            "binds only the ClusterRole",
        ),
        (
            binding("adopted", "stellage-operator", "cluster-admin", &own),
            "attempting to grant RBAC permissions",
        ),
        (
            binding("adopted", "stellage-operator", "stellage-account", &["default"]),
            "to its own service accounts only",
        ),
        (
            binding(
                "adopted",
                "stellage-operator",
                "stellage-account",
                &["stellage-controller", "default"],
            ),
            "to its own service accounts only",
        ),
        (
            binding(
                "adopted",
                "stellage-operator",
                "stellage-account",
                &["stellage-api"],
            ),
            "to its own service accounts only",
        ),
        (quota("owned", "mine"), "cannot patch resource \"resourcequotas\""),
        (
            quota("foreign", "stellage"),
            "the operator writes only the ResourceQuota stellage in namespaces with the label",
        ),
        (
            quota("kube-system", "stellage"),
            "the operator writes only the ResourceQuota stellage",
        ),
        (quota(NAMESPACE, "stellage"), "and stellage-probe in its own"),
    ] {
        thief.may_not_apply(&forbidden, why);
    }
    // A namespace that the attacker would claim, so that the above is allowed there.
    for line in [
        "label namespace foreign stellage.dev/account=ada",
        "annotate namespace foreign stellage.dev/made-for-account=u",
        "annotate namespace adopted stellage.dev/made-for-account=u",
        "label --overwrite namespace adopted stellage.dev/account=grace",
        "label namespace adopted team=mine",
        "label namespace owned pod-security.kubernetes.io/enforce=privileged",
        "annotate namespace owned scheduler.alpha.kubernetes.io/node-selector=disk=ssd",
        "annotate namespace owned stellage.dev/made-for-account-",
    ] {
        thief.may_not(line, "the operator changes nothing of a namespace but its label");
    }
    for line in [
        "label namespace kube-system stellage.dev/account=ada",
        "label namespace stellage-system stellage.dev/account=ada",
        "delete namespace kube-node-lease",
        "delete namespace stellage-system",
    ] {
        thief.may_not(line, "forbidden");
    }
    let privileged =
        json!({ "stellage.dev/account": "x", "pod-security.kubernetes.io/enforce": "privileged" });
    for forbidden in [
        namespace("new", json!({ "stellage.dev/account": "x" }), json!({})),
        namespace("new", json!({}), mark.clone()),
        namespace("new", privileged, mark.clone()),
    ] {
        thief.may_not_apply(&forbidden, "the operator creates namespaces for accounts only");
    }
    let named_as_kubernetes = namespace("kube-mine", json!({ "stellage.dev/account": "x" }), mark);
    thief.may_not_apply(&named_as_kubernetes, "never touches its own namespace or kube-*");
    let mut generated = named_as_kubernetes;
    generated["metadata"] = json!({
        "generateName": "kube-", "labels": { "stellage.dev/account": "x" }, "annotations": { "stellage.dev/made-for-account": "u" },
    });
    thief.may_not_create(&generated, "never touches its own namespace or kube-*");
    for line in ["delete namespace foreign", "delete namespace adopted"] {
        thief.may_not(line, "the operator deletes only namespaces that it has created");
    }
    // What it may patch, but only in some respects.
    let account = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Account", "metadata": { "name": "ada" },
        "spec": { "email": "ada@example.com", "namespace": "owned" },
    });
    for object in [account, key("owned", "read")] {
        let create = "create -f -";
        kubectl(&plane, create, Some(&object.to_string())).unwrap();
    }
    let client = client_of(&thief.kubeconfig).await;
    let accounts: Api<Account> = Api::all(client.clone());
    let keys: Api<ApiKey> = Api::namespaced(client, "owned");
    let finalizer = json!({ "metadata": { "finalizers": ["stellage.dev/account"] } });
    patch(&accounts, "ada", finalizer).await.unwrap();
    let mail = json!({ "spec": { "email": "mine@example.com" } });
    let refused = patch(&accounts, "ada", mail).await.unwrap_err();
    // Two policies refuse it, and either may be first.
    assert!(refused.contains("never change"), "{refused}");
    let write = json!({ "spec": { "scope": "write" } });
    let refused = patch(&keys, "mine", write).await.unwrap_err();
    assert!(refused.contains("cannot patch resource \"apikeys\""), "{refused}");
    let used = Patch::Merge(json!({ "status": { "lastUsedOn": "2026-11-23" } }));
    let refused = keys.patch_status("mine", &PatchParams::default(), &used).await;
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("cannot patch resource \"apikeys/status\""),
        "{refused}"
    );
    // Webhook Secrets, and no others; its own ConfigMaps.
    thief.may("-n owned patch secret signing -p {\"data\":{\"a\":null}}");
    thief.may_not_touch_the_secret_of_somebody_else();
    thief.may("-n owned delete secret signing");
    thief.may_not(
        "-n owned create secret generic mine",
        "creates only Secrets of the type Opaque",
    );
    thief.may_create(&config_map("stellage-prices"));
    thief.may_not_create(&config_map("stellage-catalogue"), "creates only the ConfigMap");
    // What it has no use for at all.
    for line in [
        "create clusterrolebinding mine --clusterrole=cluster-admin --serviceaccount=stellage-system:stellage-controller",
        "-n owned create token default",
        "-n stellage-system create token stellage-api",
        "-n stellage-system get secrets",
        "-n owned create deployment mine --image=mine",
        "delete crd instances.stellage.dev",
        "delete validatingadmissionpolicybinding operator-namespaces.stellage.dev",
    ] {
        thief.may_not(line, "cannot");
    }
    // The namespace of an Account stays with it, whatever its status says.
    let accounts_status = json!({ "status": {} });
    accounts.merge_status("ada", &accounts_status).await;
    for line in [
        "delete namespace owned --wait=false",
        "label namespace owned stellage.dev/account-",
        "label --overwrite namespace owned stellage.dev/account=grace",
    ] {
        thief.may_not(line, "belongs to Account ada");
    }
    // An adopted namespace is given back; one that was created for an account is deleted.
    thief.may("-n adopted delete rolebinding stellage-operator-api");
    thief.may("label namespace adopted stellage.dev/account-");
    kubectl(&plane, "delete account ada --wait=false", None).unwrap();
    thief.may_in_the_end("delete namespace owned --wait=false").await;
}

/// What an account has: one object of each kind that the controllers may patch, and a key that lasts for ever and one that does not.
fn belongings() -> Vec<Value> {
    let object = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "stellage.dev/v1", "kind": kind, "spec": spec,
            "metadata": { "name": name, "namespace": "owned", "labels": { "team": "web" }, "annotations": { "note": "mine" }, "finalizers": ["example.com/other", "stellage.dev/backup"] },
        })
    };
    let key = |expires: Value| {
        let mut key = json!({ "sha256": "0".repeat(64), "scope": "read", "lastCharacters": "0000" });
        key["expiresAt"] = expires;
        key
    };
    vec![
        object(
            "Instance",
            "web",
            json!({ "plan": "starter", "region": "fr-par-1", "image": "debian-13" }),
        ),
        object(
            "Webhook",
            "orders",
            json!({ "url": "https://hooks.example.com/", "events": ["instance.created"], "secretRef": { "name": "mine" } }),
        ),
        object("Backup", "weekly", json!({ "instance": "web" })),
        object("Backup", "failed", json!({ "instance": "web" })),
        object("ApiKey", "lasting", key(Value::Null)),
        object("ApiKey", "passing", key(json!("2099-01-01T00:00:00Z"))),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_controllers_token_no_spec_is_changed_and_nothing_deleted_whose_account_stays() {
    let plane = installed().await;
    let thief = Thief::of(&plane, "stellage-controller");
    let account = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Account", "metadata": { "name": "ada", "finalizers": ["example.com/other"] },
        "spec": { "email": "ada@example.com", "namespace": "owned" },
    });
    let wants_it_too = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Account", "metadata": { "name": "grace" },
        "spec": { "email": "grace@example.com", "namespace": "owned" },
    });
    for object in belongings().into_iter().chain([account, wants_it_too]) {
        kubectl(&plane, "create -f -", Some(&object.to_string())).unwrap();
    }
    // Policies take a moment to take effect, and to know the Accounts.
    for (policy, line) in [
        (
            "operator-metadata.stellage.dev",
            "-n owned patch instance web --type=merge --dry-run=server -p {\"spec\":{\"powerState\":\"Stopped\"}}",
        ),
        (
            "operator-deletions.stellage.dev",
            "-n owned delete instance web --dry-run=server",
        ),
    ] {
        let refused = async || thief.kubectl(line, None).unwrap_or_else(|refused| refused);
        support::eventually(policy, refused, |said| said.contains(policy)).await;
    }

    // kubectl reads what it patches, and the controllers only list backups.
    let client = client_of(&thief.kubeconfig).await;
    let write = async |object: &str, change: Value| {
        let (kind, name) = object.split_once(' ').unwrap();
        let resource = match kind {
            "instance" => ApiResource::erase::<Instance>(&()),
            "webhook" => ApiResource::erase::<Webhook>(&()),
            _ => ApiResource::erase::<Backup>(&()),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "owned", &resource);
        patch(&api, name, change).await
    };
    let may_not = async |object: &str, change: Value, why: &str| {
        let refused = write(object, change.clone()).await;
        assert!(
            refused.as_ref().is_err_and(|refused| refused.contains(why)),
            "{object}: {change}: {refused:?}"
        );
    };
    for (object, spec) in [
        ("instance web", json!({ "powerState": "Stopped" })),
        ("instance web", json!({ "plan": "business" })),
        (
            "instance web",
            json!({ "rebootRequestedAt": "2026-11-27T10:00:00Z" }),
        ),
        (
            "instance web",
            json!({ "rebuildRequestedAt": "2026-11-27T10:00:00Z", "image": "debian-12" }),
        ),
        ("instance web", json!({ "deletionProtection": true })),
        ("webhook orders", json!({ "url": "https://example.com/" })),
        ("webhook orders", json!({ "active": false })),
    ] {
        may_not(
            object,
            json!({ "spec": spec }),
            "the controllers never change a spec",
        )
        .await;
    }
    for object in ["instance web", "webhook orders", "backup weekly"] {
        let annotate = |name: &str, value: Value| json!({ "metadata": { "annotations": { name: value } } });
        let finalizers = ["example.com/other", "stellage.dev/server", "stellage.dev/backup"];
        write(object, json!({ "metadata": { "finalizers": finalizers } }))
            .await
            .unwrap();
        let (kind, name) = object.split_once(' ').unwrap();
        let uid = kubectl(
            &plane,
            &format!("-n owned get {kind} {name} -o=jsonpath={{.metadata.uid}}"),
            None,
        );
        let origin = format!("{} 2026-11-27T10:00:00Z", uid.unwrap());
        let foreign = annotate("stellage.dev/origin", json!("another 2026-11-27T10:00:00Z"));
        may_not(object, foreign, "begins with the UID of its object").await;
        let unreadable = format!("-n owned annotate {kind} {name} stellage.dev/origin=unreadable");
        kubectl(&plane, &unreadable, None).unwrap();
        write(object, annotate("stellage.dev/origin", json!(origin)))
            .await
            .unwrap();
        let owner = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x" });
        for metadata in [
            json!({ "finalizers": ["stellage.dev/server"] }),
            json!({ "finalizers": ["example.com/mine", "example.com/other"] }),
            json!({ "labels": { "team": null } }),
            json!({ "labels": { "mine": "1" } }),
            json!({ "ownerReferences": [owner] }),
        ] {
            let why = "of metadata, the controllers change nothing";
            may_not(object, json!({ "metadata": metadata }), why).await;
        }
        for change in [
            annotate("stellage.dev/origin", json!(format!("{origin}.5"))),
            annotate("stellage.dev/origin", Value::Null),
            annotate("stellage.dev/idempotency-keys", json!("[]")),
            annotate("note", json!("other")),
            annotate("note", Value::Null),
        ] {
            may_not(object, change, "of the annotations, the controllers write").await;
        }
    }

    let backup = |name: &str, scheduled: Option<&str>| {
        let mut backup = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Backup", "metadata": { "name": name, "namespace": "owned" },
            "spec": { "instance": "web" },
        });
        if let Some(scheduled) = scheduled {
            backup["spec"]["scheduledFor"] = json!(scheduled);
        }
        backup
    };
    thief.may_not_create(
        &backup("mine", None),
        "the controllers create scheduled backups alone",
    );
    let mut labelled = backup("labelled", Some("2026-11-27T10:00:00Z"));
    labelled["metadata"]["labels"] = json!({ "team": "web" });
    thief.may_not_create(&labelled, "with no metadata but their finalizer");
    thief.may_create(&backup("daily", Some("2026-11-27T10:00:00Z")));
    let read: Api<Backup> = Api::namespaced(plane.client(Identity::Admin).await.unwrap(), "owned");
    let written: Api<Backup> = Api::namespaced(client.clone(), "owned");
    let end = async |name: &str, phase: BackupPhase| {
        let mut backup = read.get(name).await.unwrap();
        backup.status.get_or_insert_default().phase = Some(phase);
        let written = written
            .replace_status(name, &PostParams::default(), &backup)
            .await;
        written.map(drop).map_err(|error| error.to_string())
    };
    end("weekly", BackupPhase::Completed).await.unwrap();
    let refused = end("weekly", BackupPhase::Failed).await.unwrap_err();
    assert!(
        refused.contains("a completed backup stays completed"),
        "{refused}"
    );
    end("failed", BackupPhase::Failed).await.unwrap();

    let deleting = [
        "instance web",
        "webhook orders",
        "backup weekly",
        "apikey lasting",
    ];
    for object in deleting {
        thief.may_not(
            &format!("-n owned delete {object} --wait=false"),
            "the controllers delete this only with its Account, ada, which is not being deleted",
        );
    }
    for object in ["backup daily", "backup failed", "apikey passing"] {
        thief.may(&format!("-n owned delete {object} --wait=false"));
    }
    kubectl(&plane, "delete account ada --wait=false", None).unwrap();
    for object in deleting {
        thief
            .may_in_the_end(&format!("-n owned delete {object} --wait=false"))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_controllers_token_no_operation_begins_that_the_spec_does_not_ask_for() {
    let plane = installed().await;
    let thief = Thief::of(&plane, "stellage-controller");
    let instance = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance", "metadata": { "name": "web", "namespace": "owned", "finalizers": ["example.com/other"] },
        "spec": {
            "plan": "starter", "region": "fr-par-1", "image": "debian-13",
            "powerOffRequestedAt": "2026-11-27T10:01:00Z", "rebootRequestedAt": "2026-11-27T10:11:00Z", "rebuildRequestedAt": "2026-11-27T10:21:00Z",
        },
    });
    kubectl(&plane, "create -f -", Some(&instance.to_string())).unwrap();
    let admin: Api<Instance> = Api::namespaced(plane.client(Identity::Admin).await.unwrap(), "owned");
    let stolen: Api<Instance> = Api::namespaced(client_of(&thief.kubeconfig).await, "owned");
    let running = json!({
        "state": "running", "power": "Running", "powerState": "Running", "plan": "starter", "image": "debian-13",
        "powerOffRequestedAt": "2026-11-27T10:01:00Z", "rebootRequestedAt": "2026-11-27T10:11:00Z", "rebuildRequestedAt": "2026-11-27T10:21:00Z",
    });
    let operation = |kind: &str, changes: Value| {
        let mut operation = json!({ "kind": kind, "startedAt": "2026-11-27T10:00:00Z", "endsIn": "Running", "plan": "starter", "image": "debian-13" });
        overlay(&mut operation, changes);
        json!({ "operation": operation })
    };
    let write = async |api: &Api<Instance>, status: Value| {
        let patch = Patch::Merge(json!({ "status": status }));
        let written = api.patch_status("web", &PatchParams::default(), &patch).await;
        written.map(drop).map_err(|error| error.to_string())
    };
    // The situations are prepared by hand.
    let others = "delete validatingadmissionpolicybinding operator-status.stellage.dev";
    kubectl(&plane, others, None).unwrap();
    let prepared = async || write(&admin, running.clone()).await;
    support::eventually("a status by hand", prepared, Result::is_ok)
        .await
        .unwrap();
    let policy = "operator-operations.stellage.dev";
    let forged = async || {
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({ "status": operation("Delete", json!({})) }));
        let written = stolen.patch_status("web", &params, &patch).await;
        written.map_or_else(|error| error.to_string(), |_| "written".to_owned())
    };
    support::eventually(policy, forged, |said| said.contains(policy)).await;

    let keeps = json!({});
    let (rebuild, reboot, off) = (
        json!({ "rebuildRequestedAt": "2026-11-27T10:22:00Z" }),
        json!({ "rebootRequestedAt": "2026-11-27T10:12:00Z" }),
        json!({ "powerOffRequestedAt": "2026-11-27T10:02:00Z" }),
    );
    // The change of the status before, of the spec, of the status after, and whether that may be.
    for (before, spec, after, may) in [
        (
            &keeps,
            &keeps,
            json!({ "state": "stopped", "power": "Stopped" }),
            true,
        ),
        (&keeps, &keeps, Value::Null, false),
        (&keeps, &keeps, json!({ "state": null }), false),
        (&keeps, &keeps, json!({ "image": "debian-12" }), false),
        (&keeps, &keeps, json!({ "image": null }), false),
        (
            &operation("Rebuild", json!({ "image": "debian-12" })),
            &keeps,
            json!({ "image": "debian-12", "operation": null }),
            true,
        ),
        (&keeps, &keeps, json!({ "rebuildRequestedAt": null }), false),
        (&keeps, &keeps, json!({ "rebootRequestedAt": null }), false),
        (
            &keeps,
            &keeps,
            json!({ "powerOffRequestedAt": "2026-11-27T10:00:00Z" }),
            false,
        ),
        (&keeps, &keeps, operation("Create", json!({})), false),
        (&keeps, &keeps, operation("Stop", json!({})), false),
        (
            &keeps,
            &json!({ "powerState": "Stopped" }),
            operation("Stop", json!({})),
            true,
        ),
        (&keeps, &keeps, operation("PowerOff", json!({})), false),
        (&keeps, &off, operation("PowerOff", json!({})), true),
        (&keeps, &keeps, operation("Reboot", json!({})), false),
        (&keeps, &reboot, operation("Reboot", json!({})), true),
        (
            &operation("Reboot", json!({})),
            &keeps,
            operation("Reboot", json!({ "startedAt": "2026-11-27T10:01:00Z" })),
            true,
        ),
        (
            &operation("Start", json!({})),
            &keeps,
            operation("Reboot", json!({})),
            false,
        ),
        (&keeps, &keeps, operation("Resize", json!({})), false),
        (
            &keeps,
            &json!({ "plan": "business" }),
            operation("Resize", json!({ "plan": "business" })),
            true,
        ),
        (&keeps, &keeps, operation("Rebuild", json!({})), false),
        (&keeps, &rebuild, operation("Rebuild", json!({})), true),
        (
            &keeps,
            &rebuild,
            operation("Rebuild", json!({ "image": "debian-12" })),
            false,
        ),
        (
            &keeps,
            &rebuild,
            operation("Rebuild", json!({ "restoreFrom": "old" })),
            false,
        ),
        (
            &keeps,
            &json!({ "image": "debian-12" }),
            operation("Rebuild", json!({ "image": "debian-12" })),
            true,
        ),
        (
            &operation("Rebuild", json!({})),
            &keeps,
            operation("Rebuild", json!({ "image": "debian-12" })),
            false,
        ),
        (
            &operation("Rebuild", json!({})),
            &keeps,
            operation("Rebuild", json!({ "endsIn": "Stopped" })),
            false,
        ),
        (
            &operation("Rebuild", json!({})),
            &keeps,
            operation("Rebuild", json!({ "forced": true })),
            true,
        ),
        (
            &operation("Rebuild", json!({})),
            &keeps,
            json!({ "rebuildRequestedAt": null, "operation": null }),
            true,
        ),
        (&keeps, &keeps, operation("Delete", json!({})), false),
    ] {
        let mut reset = running.clone();
        reset["operation"] = Value::Null;
        overlay(&mut reset, before.clone());
        let mut asked = instance["spec"].clone();
        asked["powerState"] = json!("Running");
        overlay(&mut asked, spec.clone());
        write(&admin, reset).await.unwrap();
        admin.merge("web", &json!({ "spec": asked })).await;
        let written = write(&stolen, after.clone()).await;
        match written {
            Ok(()) => assert!(may, "{before} {spec}: {after} was written"),
            Err(refused) => assert!(
                !may && refused.contains(policy),
                "{before} {spec} {after}: {refused}"
            ),
        }
    }
    kubectl(&plane, "-n owned delete instance web --wait=false", None).unwrap();
    write(&stolen, operation("Delete", json!({}))).await.unwrap();
}

/// Merges an object into another, one level deep.
fn overlay(target: &mut Value, changes: Value) {
    let changes = changes.as_object().unwrap().clone();
    target.as_object_mut().unwrap().extend(changes);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_facades_token_no_other_status_than_a_keys_and_no_account_role_or_namespace_is_written() {
    let plane = installed().await;
    let thief = Thief::of(&plane, "stellage-api");
    let instance = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance", "metadata": { "name": "web", "namespace": "owned" },
        "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
    });
    let known = async || thief.kubectl("-n owned get instances", None);
    support::eventually("the CRDs", known, Result::is_ok)
        .await
        .unwrap();
    thief.may_apply(&instance);
    thief.may_not("-n owned get secret password", "cannot get resource");
    let_the_facade_in(&plane);
    let read = async || thief.kubectl("-n owned get secret password", None);
    support::eventually("the right to read a signing secret", read, Result::is_ok)
        .await
        .unwrap();

    for (line, what) in [
        ("-n owned get secrets", "cannot list resource \"secrets\""),
        (
            "-n foreign get secret password",
            "cannot get resource \"secrets\"",
        ),
        ("-n kube-system get secrets", "cannot list resource \"secrets\""),
        (
            "-n stellage-system get secret password",
            "cannot get resource \"secrets\"",
        ),
        (
            "-n owned patch instance web --subresource=status --type=merge -p {\"status\":{}}",
            "resource \"instances/status\"",
        ),
        (
            "-n owned create rolebinding mine --clusterrole=stellage-account --user=mine",
            "cannot create resource \"rolebindings\"",
        ),
        ("create namespace mine", "cannot create resource \"namespaces\""),
        ("delete namespace owned", "cannot delete resource \"namespaces\""),
        (
            "label namespace foreign stellage.dev/account=ada",
            "cannot get resource \"namespaces\"",
        ),
        (
            "patch account ada --type=merge -p {\"spec\":{\"email\":\"mine@example.com\"}}",
            "cannot",
        ),
        ("delete account ada", "cannot delete resource \"accounts\""),
        (
            "-n stellage-system delete lease stellage-controller",
            "cannot delete resource \"leases\"",
        ),
        (
            "-n stellage-system get configmaps",
            "cannot list resource \"configmaps\"",
        ),
        ("-n owned delete eventlog page", "cannot delete resource"),
        ("-n owned delete delivery some", "cannot delete resource"),
        (
            "-n owned create token default",
            "cannot create resource \"serviceaccounts/token\"",
        ),
    ] {
        thief.may_not(line, what);
    }
    // Keys only where the account controller allows it, and quotas nowhere.
    let create = |object: &Value| thief.create(object);
    let refused = create(&key("foreign", "write")).unwrap_err();
    assert!(
        refused.contains("cannot create resource \"apikeys\""),
        "{refused}"
    );
    create(&key("owned", "write")).unwrap();
    let keys: Api<ApiKey> = Api::namespaced(client_of(&thief.kubeconfig).await, "owned");
    let read = json!({ "spec": { "scope": "read" } });
    let refused = patch(&keys, "mine", read).await.unwrap_err();
    assert!(refused.contains("never changes the spec"), "{refused}");
    // The day of a key's last use, which is never set back; nothing else of the key can be changed in this
    // way.
    let made = keys.get("mine").await.unwrap();
    let params = PatchParams::default();
    let used = json!({ "spec": { "sha256": "1".repeat(64) }, "status": { "lastUsedOn": "2026-11-23" } });
    let used = keys.patch_status("mine", &params, &Patch::Merge(used)).await;
    let used = used.unwrap();
    assert_eq!(used.spec, made.spec);
    assert_eq!(used.last_used_on(), Some("2026-11-23".parse().unwrap()));
    let earlier = json!({ "status": { "lastUsedOn": "2026-11-22" } });
    let refused = keys.patch_status("mine", &params, &Patch::Merge(earlier)).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("is never set back"), "{refused}");
    thief.may_not_apply(
        &quota("owned", "stellage"),
        "cannot patch resource \"resourcequotas\"",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_facades_token_no_delivery_is_forged_or_settled_and_only_secrets_of_webhooks_are_written() {
    let plane = installed().await;
    let thief = Thief::of(&plane, "stellage-api");
    let_the_facade_in(&plane);
    let owner = owner(&plane);
    // Policies take a moment to take effect.
    let mut forged = test_event(&owner);
    forged["spec"]["body"] = json!("{}");
    let mut token = secret_of(&owner);
    token["metadata"] = json!({
        "generateName": "mine-", "namespace": "owned", "ownerReferences": [owner],
        "annotations": { "kubernetes.io/service-account.name": "default" },
    });
    token["type"] = json!("kubernetes.io/service-account-token");
    for (probe, policy) in [
        (&forged, "operator-deliveries.stellage.dev"),
        (&token, "operator-secrets.stellage.dev"),
    ] {
        let refused = async || thief.create(probe).unwrap_or_else(|refused| refused);
        support::eventually(policy, refused, |said| said.contains(policy)).await;
    }

    // Deliveries: only what makes the controllers send something of their own, and nothing that the attacker
    // has written.
    thief.may_create(&test_event(&owner));
    thief.may_create(&of_event_log(&owner));
    for (field, value) in [
        ("/spec/body", json!("{}")),
        ("/spec/eventId", json!("evt_abcdefgh01234567")),
        ("/status", json!({ "phase": "Pending" })),
        ("/metadata/labels/stellage.dev~1finished", json!("true")),
        (
            "/metadata/annotations/stellage.dev~1finished-at",
            json!("2026-11-23T10:00:00Z"),
        ),
        ("/metadata/annotations/stellage.dev~1origin", json!("u")),
        ("/metadata/ownerReferences", json!([])),
        ("/metadata/finalizers", json!(["example.com/mine"])),
    ] {
        for request in [test_event(&owner), of_event_log(&owner)] {
            if field == "/spec/eventId" && request["spec"]["test"] == false {
                continue;
            }
            let (parent, name) = field.rsplit_once('/').unwrap();
            let mut forged = request;
            forged.pointer_mut(parent).unwrap()[name.replace("~1", "/")] = value.clone();
            thief.may_not_create(&forged, "stellage.dev' with binding");
        }
    }
    let mut asked = of_event_log(&owner);
    asked["metadata"]["name"] = json!("asked");
    thief.may_create(&asked);
    let mut owed = of_event_log(&owner);
    owed["metadata"]["name"] = json!("owed");
    owed["spec"]["body"] = json!("{}");
    owed["status"] = json!({ "phase": "Exhausted" });
    owed["metadata"]["labels"]["stellage.dev/finished"] = json!("true");
    let controller = "--as=system:serviceaccount:stellage-system:stellage-controller";
    kubectl(
        &plane,
        &format!("create {controller} -f -"),
        Some(&owed.to_string()),
    )
    .unwrap();
    for line in [
        "-n owned patch delivery owed --type=merge -p {\"status\":{\"phase\":\"Delivered\"}}",
        "-n owned patch delivery asked --type=merge -p {\"status\":{\"phase\":\"Pending\"}}",
        "-n owned patch delivery asked --type=merge -p {\"spec\":{\"body\":\"{}\"}}",
        "-n owned label delivery owed stellage.dev/phase=delivered --overwrite",
        "-n owned annotate delivery owed stellage.dev/finished-at=2026-11-23T10:00:00Z",
        "-n owned patch delivery owed --type=merge -p {\"metadata\":{\"ownerReferences\":null}}",
    ] {
        thief.may_not(line, "forbidden");
    }
    thief.may("-n owned label delivery owed stellage.dev/finished-");
    thief.may_not(
        "-n owned label delivery owed stellage.dev/finished=true",
        "forbidden",
    );
    thief.may(
        "-n owned annotate delivery owed --overwrite stellage.dev/attempt-requested-at=now stellage.dev/idempotency-keys=[1]",
    );

    // Secrets.
    thief.may_create(&secret_of(&owner));
    for secret in ["mine", "signing"] {
        thief.may(&format!(
            "-n owned patch secret {secret} -p {{\"data\":{{\"a\":null}}}}"
        ));
        thief.may(&format!("-n owned delete secret {secret}"));
    }
    // Keys are written again until one works, and go with their ApiKey.
    let mut key = secret_of(&owning_key(&plane));
    key["metadata"]["name"] = json!("first-key");
    thief.may_create(&key);
    thief.may("-n owned patch secret first-key -p {\"data\":{\"a\":null}}");
    thief.may_not(
        "-n owned delete secret first-key",
        "those of an ApiKey it changes alone",
    );
    // User data is written once.
    let mut user_data = secret_of(&owning_instance(&plane));
    user_data["metadata"]["name"] = json!("boot");
    thief.may_create(&user_data);
    for line in [
        "-n owned patch secret boot -p {\"data\":{\"a\":null}}",
        "-n owned delete secret boot",
    ] {
        thief.may_not(line, "changes and deletes only Secrets");
    }
    let mut without_owner = secret_of(&owner);
    without_owner["metadata"] = json!({ "name": "mine", "namespace": "owned" });
    let mut not_controlled = secret_of(&owner);
    not_controlled["metadata"]["ownerReferences"][0]["controller"] = json!(false);
    for forbidden in [without_owner, not_controlled] {
        thief.may_not_create(&forbidden, "creates only Secrets of the type Opaque");
    }
    thief.may_not_touch_the_secret_of_somebody_else();
    // What no policy can prevent: docs/operations.md warns about it.
    thief.may("-n owned get secret password");

    // The ConfigMap that decides prices.
    thief.may_not_create(
        &config_map("stellage-prices"),
        "cannot create resource \"configmaps\"",
    );
}
