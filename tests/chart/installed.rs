//! The chart, installed by the real Helm into a control plane of its own. There are no pods, so the programs of their containers are started
//! as local processes, with the tokens of their service accounts, their arguments, their environment and their files.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use control_plane::{ControlPlane, Identity, audit::Request};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, EnvVar, Namespace, Secret, Volume},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use reqwest::{Method, StatusCode};
use resources::{Account, Instance, InstanceState};
use serde_json::{Value, json};

use super::{kubeconfig_of, objects};
use crate::{
    console::Person,
    support::{
        Operator, Tenant, bare_plane, eventually,
        helm::{Helm, chart},
        kubectl, kubectl_words,
        receivers::{Answer, Receiver},
        run, stellage_words, wait_for_kinds, wait_until_webhooks_are_counted,
    },
};

const NAMESPACE: &str = "stellage-system";
/// Where the containers expect their files.
const MOUNTS: &str = "/etc/stellage/";

/// The values of the test: receivers on loopback, mails written to a folder, everything within seconds.
fn values() -> Value {
    json!({
        "catalogue": { "regions": ["fr-par-1", "de-fra-1"], "seller": { "name": "Stellage Ltd" } },
        "smtp": { "existingSecret": "mail" },
        "receivers": { "caSecret": "receiver-ca" },
        "settings": { "provisioningSeconds": 0.5, "receiverAllow": ["127.0.0.0/8", "::1/128"] },
        "controller": { "settings": { "retrySchedule": "200ms,200ms", "leaseDurationSeconds": 90, "billSimulated": true } },
    })
}

/// What a pod of a Deployment would run.
pub(super) struct Container {
    arguments: Vec<String>,
    pub(super) environment: Vec<(String, String)>,
    service_account: String,
}

impl Container {
    pub(super) async fn start(&self, plane: &ControlPlane, kubeconfig: &Path) -> Operator {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        Operator::start_in(plane, &arguments, &self.environment, kubeconfig).await
    }
}

/// Writes a volume's files as the kubelet does: as links into a folder whose own link is replaced as a whole.
fn mount(folder: &Path, files: &BTreeMap<String, Vec<u8>>) {
    fs::create_dir_all(folder).unwrap();
    let version = format!("..{}", fs::read_dir(folder).unwrap().count());
    fs::create_dir(folder.join(&version)).unwrap();
    for (name, bytes) in files {
        fs::write(folder.join(&version).join(name), bytes).unwrap();
    }
    symlink(&version, folder.join("..data_tmp")).unwrap();
    fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    for name in files.keys().filter(|name| !folder.join(name).is_symlink()) {
        symlink(Path::new("..data").join(name), folder.join(name)).unwrap();
    }
}

/// A control plane with an installed chart.
pub(super) struct Cluster<'a> {
    plane: &'a ControlPlane,
    pub(super) client: Client,
    /// Instead of [`MOUNTS`].
    mounts: tempfile::TempDir,
}

impl<'a> Cluster<'a> {
    pub(super) async fn on(plane: &'a ControlPlane) -> Self {
        Self {
            plane,
            client: plane.client(Identity::Admin).await.unwrap(),
            mounts: tempfile::tempdir().unwrap(),
        }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn mount(&self, volume: &Volume) {
        let files = match (&volume.config_map, &volume.secret) {
            (Some(config_map), _) => {
                let config_map: ConfigMap = self.api().get(&config_map.name).await.unwrap();
                let files = config_map.data.unwrap().into_iter();
                files.map(|(name, text)| (name, text.into_bytes())).collect()
            }
            (_, Some(secret)) => {
                let secret: Secret = self
                    .api()
                    .get(secret.secret_name.as_deref().unwrap())
                    .await
                    .unwrap();
                let files = secret.data.unwrap().into_iter();
                files.map(|(name, bytes)| (name, bytes.0)).collect()
            }
            other => panic!("{other:?}"),
        };
        mount(&self.mounts.path().join(&volume.name), &files);
    }

    async fn value_of(&self, variable: &EnvVar, before: &[(String, String)]) -> String {
        let Some(from) = &variable.value_from else {
            let value = variable.value.clone().unwrap_or_default();
            return before.iter().fold(value, |value, (name, text)| {
                value.replace(&format!("$({name})"), text)
            });
        };
        if let Some(field) = &from.field_ref {
            return match field.field_path.as_str() {
                "status.podIPs" => "198.51.100.7".to_owned(),
                "status.hostIPs" => "198.51.100.8,2001:db8::8".to_owned(),
                other => panic!("{other}"),
            };
        }
        let reference = from.secret_key_ref.as_ref().unwrap();
        let secret: Secret = self.api().get(&reference.name).await.unwrap();
        String::from_utf8(secret.data.unwrap()[&reference.key].0.clone()).unwrap()
    }

    /// What a pod of this Deployment would run now, with its files in place.
    pub(super) async fn container(&self, deployment: &str) -> Container {
        let deployment: Deployment = self.api().get(deployment).await.unwrap();
        let pod = deployment.spec.unwrap().template.spec.unwrap();
        for volume in pod.volumes.iter().flatten() {
            self.mount(volume).await;
        }
        let container = &pod.containers[0];
        assert!(
            container.command.is_none(),
            "the image's entry point is the program"
        );
        let mounts = format!("{}/", self.mounts.path().display());
        let mut environment = Vec::new();
        for variable in container.env.iter().flatten() {
            let value = self.value_of(variable, &environment).await;
            environment.push((variable.name.clone(), value.replace(MOUNTS, &mounts)));
        }
        Container {
            arguments: container.args.clone().unwrap(),
            environment,
            service_account: pod.service_account_name.unwrap(),
        }
    }

    async fn start(&self, deployment: &str) -> Operator {
        let container = self.container(deployment).await;
        let kubeconfig = kubeconfig_of(self.plane, NAMESPACE, &container.service_account);
        container.start(self.plane, &kubeconfig).await
    }

    /// The requests of the operator's service accounts.
    fn requests(&self) -> Vec<Request> {
        let prefix = format!("system:serviceaccount:{NAMESPACE}:");
        let all = self.plane.requests().unwrap().into_iter();
        all.filter(|request| request.user.starts_with(&prefix)).collect()
    }
}

fn printer_columns(plane: &ControlPlane) -> String {
    let query = "jsonpath={.spec.versions[0].additionalPrinterColumns[*].name}";
    kubectl(plane, &format!("get crd instances.stellage.dev -o {query}"), None).unwrap()
}

/// A copy of the chart whose CRD of instances has another column, as a later version may.
fn later_chart(folder: &Path) -> PathBuf {
    let later = folder.join("stellage");
    run(Command::new("cp").arg("-r").arg(chart()).arg(&later), None).unwrap();
    let crd = later.join("files/crds/instances.yaml");
    let column =
        "additionalPrinterColumns:\n    - jsonPath: .metadata.uid\n      name: Later\n      type: string\n";
    let text = fs::read_to_string(&crd).unwrap();
    fs::write(&crd, text.replacen("additionalPrinterColumns:\n", column, 1)).unwrap();
    later
}

/// A request that must succeed.
async fn call(tenant: &Tenant, method: Method, path: &str, body: Value) -> Value {
    let body = Some(body).filter(|body| !body.is_null());
    let answer = tenant.call(method.clone(), path, body.as_ref()).await;
    assert!(answer.status.is_success(), "{method} {path}: {answer:?}");
    if answer.text.is_empty() {
        Value::Null
    } else {
        answer.json()["data"].clone()
    }
}

async fn wait_for_status(tenant: &Tenant, path: &str, status: &str) {
    let get = async || call(tenant, Method::GET, path, Value::Null).await["status"].clone();
    eventually(&format!("{path} to be {status}"), get, |now| now == status).await;
}

/// Does everything that an account holder does through REST.
async fn tour(plane: &ControlPlane, tenant: &Tenant, receiver: &Receiver) {
    let events = [
        "instance.created",
        "instance.started",
        "instance.stopped",
        "instance.deleted",
        "backup.completed",
    ];
    let hook = json!({ "url": receiver.url("/"), "events": events });
    let hook = call(tenant, Method::POST, "/v1/webhooks", hook).await;
    let hook = format!("/v1/webhooks/{}", hook["id"].as_str().unwrap());
    let spec = json!({ "name": "web", "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
    let web = call(tenant, Method::POST, "/v1/instances", spec).await;
    let web = format!("/v1/instances/{}", web["id"].as_str().unwrap());
    wait_for_status(tenant, &web, "running").await;
    let first = receiver.wait_for(2).await;
    assert!(!first[0].header("webhook-signature").is_empty());

    call(tenant, Method::PATCH, &web, json!({ "tags": ["a"] })).await;
    call(tenant, Method::POST, &format!("{web}/stop"), Value::Null).await;
    wait_for_status(tenant, &web, "stopped").await;
    let backup = call(tenant, Method::POST, &format!("{web}/backups"), json!({})).await;
    let backup = format!("/v1/backups/{}", backup["id"].as_str().unwrap());
    wait_for_status(tenant, &backup, "completed").await;
    call(tenant, Method::DELETE, &backup, Value::Null).await;

    call(tenant, Method::POST, &format!("{hook}/rotate-secret"), json!({})).await;
    call(tenant, Method::PATCH, &hook, json!({ "secret": "another" })).await;
    let test = call(tenant, Method::POST, &format!("{hook}/test"), json!({})).await;
    let test = format!("{hook}/deliveries/{}", test["id"].as_str().unwrap());
    wait_for_status(tenant, &test, "delivered").await;
    call(tenant, Method::POST, &format!("{test}/redeliver"), json!({})).await;
    wait_for_status(tenant, &test, "delivered").await;
    call(tenant, Method::GET, &format!("{hook}/deliveries"), Value::Null).await;
    let is_logged = async || call(tenant, Method::GET, "/v1/events", Value::Null).await;
    let logged = eventually("the events to be logged", is_logged, |events| {
        !events.as_array().unwrap().is_empty()
    })
    .await;
    let event = format!("/v1/events/{}", logged[0]["id"].as_str().unwrap());
    call(tenant, Method::GET, &event, Value::Null).await;
    // As with kubectl, which leaves reading the log to the controller.
    let path = format!("{hook}/deliveries?status=delivered");
    let of_events = async || {
        let all = call(tenant, Method::GET, &path, Value::Null).await;
        let ids: Vec<&Value> = logged
            .as_array()
            .unwrap()
            .iter()
            .map(|event| &event["id"])
            .collect();
        let found = all.as_array().unwrap().iter();
        let mut found = found.filter(|delivery| ids.contains(&&delivery["event_id"]));
        found
            .next()
            .map(|delivery| delivery["id"].as_str().unwrap().to_owned())
    };
    let delivery = eventually("a delivery in the log", of_events, Option::is_some).await;
    let again = [
        "delivery",
        "redeliver",
        &delivery.unwrap(),
        "--wait",
        "-n",
        &tenant.namespace,
    ];
    stellage_words(plane, &again).unwrap();
    for unknown in [
        "instances/i-0000000000000000",
        "webhooks/wh_0000000000000000",
        "backups/bkp_0000000000000000",
        "keys/key-0000000000000000",
        "networks/pn-0000000000000000",
    ] {
        let answer = tenant.call(Method::GET, &format!("/v1/{unknown}"), None).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{unknown}: {answer:?}");
    }

    let key = call(tenant, Method::POST, "/v1/keys", json!({ "scope": "read" })).await;
    let key = format!("/v1/keys/{}", key["id"].as_str().unwrap());
    call(tenant, Method::GET, &key, Value::Null).await;
    call(tenant, Method::DELETE, &key, Value::Null).await;
    made_key(plane, &tenant.namespace);
    let network = make_network(tenant).await;
    call(tenant, Method::PATCH, &network, json!({ "name": "renamed" })).await;
    call(tenant, Method::DELETE, &network, Value::Null).await;
    call(tenant, Method::DELETE, &web, Value::Null).await;
    let gone = async || tenant.call(Method::GET, &web, None).await.status;
    eventually("the instance to be gone", gone, |status| {
        *status == StatusCode::NOT_FOUND
    })
    .await;
    call(tenant, Method::DELETE, &hook, Value::Null).await;
}

/// Makes a private network, and waits until it is ready; returns its path.
async fn make_network(tenant: &Tenant) -> String {
    let network = call(
        tenant,
        Method::POST,
        "/v1/networks",
        json!({ "region": "fr-par-1" }),
    )
    .await;
    let path = format!("/v1/networks/{}", network["id"].as_str().unwrap());
    let ready = async || call(tenant, Method::GET, &path, Value::Null).await["ready"].clone();
    eventually("the network to be ready", ready, |ready| *ready == true).await;
    path
}

/// Has the operator write a key into a Secret.
fn made_key(plane: &ControlPlane, namespace: &str) {
    let key = json!({
        "apiVersion": "stellage.dev/v1", "kind": "ApiKey", "metadata": { "name": "made" },
        "spec": { "writeSecretRef": { "name": "made" } },
    });
    kubectl(
        plane,
        &format!("-n {namespace} create -f -"),
        Some(&key.to_string()),
    )
    .unwrap();
    let ready = format!("-n {namespace} wait --for=condition=Ready apikey/made --timeout=180s");
    kubectl(plane, &ready, None).unwrap();
    kubectl(plane, &format!("-n {namespace} delete apikey made"), None).unwrap();
}

/// A webhook whose receiver is down: deliveries are written, retried and given up, and the account holder is
/// notified.
async fn misfortune(tenant: &Tenant, mails: &Path) {
    let down = Receiver::start(|_| Answer::status(500)).await;
    let hook = json!({ "url": down.url("/"), "events": ["instance.created"] });
    let hook = call(tenant, Method::POST, "/v1/webhooks", hook).await;
    let hook = format!("/v1/webhooks/{}", hook["id"].as_str().unwrap());
    let spec = json!({ "name": "stays", "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
    call(tenant, Method::POST, "/v1/instances", spec).await;
    let is_active = async || call(tenant, Method::GET, &hook, Value::Null).await["active"].clone();
    eventually("the webhook to be disabled", is_active, |active| {
        *active == json!(false)
    })
    .await;
    let told = async || fs::read_dir(mails).map(Iterator::count).unwrap_or_default();
    eventually("the e-mail", told, |count| *count > 0).await;
}

/// An account in a namespace that existed before, with a webhook and its Secret; then the Account is deleted.
async fn adopted(cluster: &Cluster<'_>, api: &Operator, receiver: &Receiver) {
    let namespace =
        json!({ "metadata": { "name": "adopted", "labels": { "stellage.dev/account": "adopted" } } });
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let namespace: Namespace = serde_json::from_value(namespace).unwrap();
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let tenant = Tenant::on(cluster.plane, api, "adopted").await;
    tenant
        .webhook("hook", &receiver.url("/adopted"), &["instance.created"])
        .await;
    delete(cluster, "adopted").await;
    let left = namespaces.get("adopted").await.unwrap();
    assert!(
        !left.labels().contains_key("stellage.dev/account"),
        "it is given back: {left:?}"
    );
    let webhooks = tenant
        .webhooks()
        .list(&kube::api::ListParams::default())
        .await
        .unwrap();
    assert!(webhooks.items.is_empty());
}

async fn delete(cluster: &Cluster<'_>, account: &str) {
    let accounts: Api<Account> = Api::all(cluster.client.clone());
    accounts.delete(account, &DeleteParams::default()).await.unwrap();
    let found = async || {
        accounts
            .get_opt(account)
            .await
            .unwrap()
            .map(|account| account.status)
    };
    eventually("the Account to be gone", found, Option::is_none).await;
}

/// What an account holder does with kubectl and a browser, and the operator's part of a month's end.
async fn business(cluster: &Cluster<'_>, api: &Operator) {
    let tenant = &Tenant::on(cluster.plane, api, "business").await;
    let mine = tenant
        .apply("by-kubectl", |instance| instance.spec.monitoring_enabled = true)
        .await;
    tenant.wait_for_state("by-kubectl", InstanceState::Running).await;
    let metrics = format!("/v1/instances/{}/metrics?window=1h", mine.id());
    call(tenant, Method::GET, &metrics, Value::Null).await;

    tenant.wait_for_entries(1).await;
    tenant.close_now().await;
    tenant.wait_for_invoices(1).await;
    let listed = async || call(tenant, Method::GET, "/v1/invoices", Value::Null).await;
    let invoices = eventually("the invoice to be listed", listed, |all| {
        !all.as_array().unwrap().is_empty()
    })
    .await;
    let invoice = format!("/v1/invoices/{}", invoices[0]["id"].as_str().unwrap());
    call(tenant, Method::GET, &invoice, Value::Null).await;
    call(tenant, Method::GET, "/v1/invoices/current", Value::Null).await;
    Person::with_key(&api.url, &tenant.key).await;

    // It goes with the account.
    make_network(tenant).await;
    delete(cluster, "business").await;
}

/// Verbs that the test does not use, by service account and resource, and why they are needed.
const UNUSED: &[&str] = &[
    "stellage-api secrets delete: a Secret that a deleted webhook of the same name has left",
    "stellage-controller instances get: an object that does not match its schema",
    "stellage-controller instances/status patch: an object that does not match its schema",
    "stellage-controller backups delete: scheduled backups that newer ones have replaced, after a week",
    "stellage-controller eventlogs delete: pages beyond the retention, which is a day",
    "stellage-controller resourcequotas create: checked when a patch creates; it is no request of its own",
    "stellage-controller rolebindings create: checked when a patch creates; it is no request of its own",
    "stellage-controller backups create: scheduled backups, which are made once a day",
    "stellage-controller deliveries delete: deliveries beyond the retention, which is a day",
    "stellage-controller secrets patch: previous secrets whose overlap is over, after a day",
    "stellage-controller clusterroles bind: checked when a RoleBinding is written; it is no request of its own",
    "stellage-controller invoicepages create: an account with more than 100 instances",
    "stellage-controller invoicepages update: the same, when something changes, and the issue",
    "stellage-controller invoicepages delete: invoices that come to nothing, and those beyond the retention",
    "stellage-controller invoicepages get: a page that a process that died has written",
    "stellage-controller invoicenumbers get: a number that another process has taken",
    "stellage-controller configmaps update: prices that change",
    "stellage-controller invoicenumbers update: the number of an invoice beyond the retention",
    "stellage-controller accounts get: an Account that is gone without having been closed",
    "stellage-api apikeys patch: a sign-in link of the console that is used",
];

/// Verbs that the test may or may not use, likewise.
const SOMETIMES: &[&str] = &[
    "stellage-controller invoices delete: those that come to nothing, and those beyond the retention",
    "stellage-controller webhooks get: after a conflict, and when the watch lags behind",
    "stellage-controller resourcequotas delete: a quota that Kubernetes has never counted, or that has more limits than its account",
];

/// Service account, resource and verb, without why they are needed.
fn right_of(line: &str) -> &str {
    line.split_once(": ").unwrap().0
}

/// Where a right applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// In the whole cluster. Most are used in accounts' namespaces, which come and go.
    Cluster,
    /// In accounts' namespaces.
    Accounts,
    /// In the operator's namespace.
    Own,
}

/// A right of a service account: one verb of a rule on one resource.
#[derive(Debug)]
struct Grant {
    scope: Scope,
    /// With its subresource, such as `webhooks/status`.
    resource: String,
    /// The only objects that it is for, unless empty.
    names: Vec<String>,
    verb: String,
}

impl Grant {
    fn allows(&self, request: &Request) -> bool {
        let is_in_scope = match self.scope {
            // For what is only used in the operator's namespace, a Role is enough.
            Scope::Cluster => request.namespace != NAMESPACE,
            Scope::Accounts => request.namespace != NAMESPACE && !request.namespace.is_empty(),
            Scope::Own => request.namespace == NAMESPACE,
        };
        let resource = match request.subresource.as_str() {
            "" => request.resource.clone(),
            subresource => format!("{}/{subresource}", request.resource),
        };
        // Before Kubernetes 1.34, a watch does not start with the existing objects.
        let is_verb = self.verb == request.verb || self.verb == "list" && request.verb == "watch";
        let is_named = self.names.is_empty() || self.names.contains(&request.name);
        is_in_scope && self.resource == resource && is_verb && is_named
    }
}

fn words(list: &Value) -> Vec<String> {
    serde_json::from_value(list.clone()).unwrap()
}

/// What the roles of a service account allow. The operator itself binds the ClusterRole `in_accounts`.
fn granted(rendered: &[Value], service_account: &str, in_accounts: &str) -> Vec<Grant> {
    let scope_of = |role: &Value| {
        let kind = role["kind"].as_str().unwrap();
        let is_bound = || {
            rendered.iter().any(|binding| {
                binding["kind"] == format!("{kind}Binding")
                    && binding["roleRef"]["name"] == role["metadata"]["name"]
                    && binding["subjects"][0]["name"] == service_account
            })
        };
        match kind {
            "ClusterRole" if role["metadata"]["name"] == in_accounts => Some(Scope::Accounts),
            "ClusterRole" if is_bound() => Some(Scope::Cluster),
            "Role" if is_bound() => Some(Scope::Own),
            _ => None,
        }
    };
    let mut grants = Vec::new();
    for role in rendered {
        let Some(scope) = scope_of(role) else { continue };
        for rule in role["rules"].as_array().unwrap() {
            let names = rule.get("resourceNames").map(words).unwrap_or_default();
            for resource in words(&rule["resources"]) {
                for verb in words(&rule["verbs"]) {
                    grants.push(Grant {
                        scope,
                        resource: resource.clone(),
                        names: names.clone(),
                        verb,
                    });
                }
            }
        }
    }
    grants
}

#[tokio::test(flavor = "multi_thread")]
async fn installed_with_helm_it_drives_the_tour_is_upgraded_rolled_back_and_uninstalled_with_exactly_its_rights()
 {
    let plane = bare_plane(ControlPlane::options().audit_log()).await;
    let cluster = &Cluster::on(&plane).await;
    let mails = plane.folder().join("mail");
    kubectl(&plane, &format!("create namespace {NAMESPACE}"), None).unwrap();
    for (name, key, value) in [
        ("mail", "url", format!("file://{}", mails.display())),
        ("receiver-ca", "ca.crt", Receiver::ca_pem()),
    ] {
        let literal = format!("--from-literal={key}={value}");
        let create = ["-n", NAMESPACE, "create", "secret", "generic", name, &literal];
        kubectl_words(&plane, &create, None).unwrap();
    }
    let helm = Helm::on(&plane).await;
    let chart = chart();
    let release = ["stellage", chart.to_str().unwrap(), "--namespace", NAMESPACE];
    // Enough time to query a pod that is ending, even on a busy machine.
    let mut with_delay = values();
    with_delay["api"]["settings"]["shutdownDelaySeconds"] = json!(15);
    helm.with(&[&["install"], &release[..]].concat(), &with_delay)
        .unwrap();
    wait_for_kinds(&plane);

    let mut controller = cluster.start("stellage-controller").await;
    let mut api = cluster.start("stellage-api").await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let tenant = Tenant::on(&plane, &api, "tour").await;
    wait_until_webhooks_are_counted(&Api::namespaced(cluster.client.clone(), "tour")).await;
    tour(&plane, &tenant, &receiver).await;
    adopted(cluster, &api, &receiver).await;
    let mut stays = Tenant::on(&plane, &api, "stays").await;
    misfortune(&stays, &mails).await;
    business(cluster, &api).await;
    delete(cluster, "tour").await;

    // An upgrade: another CRD, other settings, another catalogue.
    assert!(!printer_columns(&plane).contains("Later"));
    let folder = tempfile::tempdir().unwrap();
    let later = later_chart(folder.path());
    let mut changed = values();
    changed["catalogue"]["regions"] = json!(["nl-ams-1"]);
    changed["controller"]["settings"]["retrySchedule"] = json!("1s");
    let upgrade = [
        "upgrade",
        "stellage",
        later.to_str().unwrap(),
        "--namespace",
        NAMESPACE,
    ];
    helm.with(&upgrade, &changed).unwrap();
    assert!(printer_columns(&plane).contains("Later"), "the CRDs are upgraded");
    // Kubelet replaces the files of a running pod.
    cluster.container("stellage-api").await;
    let regions = async || call(&stays, Method::GET, "/v1/regions", Value::Null).await[0]["id"].clone();
    eventually("the new catalogue, without a restart", regions, |region| {
        region == "nl-ams-1"
    })
    .await;
    // The rolling update: each new pod is ready before the old one is told to end.
    let schedule = |container: &Container| {
        let mut all = container.environment.iter();
        all.find(|(name, _)| name == "STELLAGE_RETRY_SCHEDULE")
            .unwrap()
            .1
            .clone()
    };
    assert_eq!(schedule(&cluster.container("stellage-controller").await), "1s");
    let next = cluster.start("stellage-controller").await;
    controller.stop().await;
    controller = next;
    let leads = async || controller.metric("stellage_leader", "").await;
    eventually("the new controller to lead", leads, |leads| *leads > 0.5).await;
    let next = cluster.start("stellage-api").await;
    run(Command::new("kill").args(["-TERM", &api.pid().to_string()]), None).unwrap();
    let ready = format!("{}/readyz", api.metrics_url);
    let readiness = async || reqwest::get(&ready).await.unwrap().status();
    eventually("the old pod to be taken out of service", readiness, |status| {
        *status == StatusCode::SERVICE_UNAVAILABLE
    })
    .await;
    // Load balancers take a moment to notice.
    let late = call(&stays, Method::GET, "/v1/instances", Value::Null).await;
    assert_eq!(late.as_array().unwrap().len(), 1);
    let ended = async || api.ended();
    let status = eventually("the old pod to end", ended, Option::is_some)
        .await
        .unwrap();
    assert!(status.success(), "{status}");
    api = next;
    stays.url.clone_from(&api.url);
    call(&stays, Method::GET, "/v1/instances", Value::Null).await;

    helm.run(&["rollback", "stellage", "1", "--namespace", NAMESPACE])
        .unwrap();
    assert!(
        !printer_columns(&plane).contains("Later"),
        "the CRDs are rolled back"
    );
    assert_eq!(
        schedule(&cluster.container("stellage-controller").await),
        "200ms,200ms"
    );
    api.stop().await;
    controller.stop().await;

    // What users have created survives an uninstall, and is there after the next install.
    let rendered = helm.template(NAMESPACE, &values()).unwrap();
    helm.run(&["uninstall", "stellage", "--namespace", NAMESPACE])
        .unwrap();
    let deployments: Api<Deployment> = cluster.api();
    assert!(
        deployments
            .list(&kube::api::ListParams::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );
    let roles = kubectl(
        &plane,
        "get clusterrole,clusterrolebinding,validatingadmissionpolicy -o name",
        None,
    );
    let left: Vec<String> = roles
        .unwrap()
        .lines()
        .filter(|name| name.contains("stellage"))
        .map(ToOwned::to_owned)
        .collect();
    assert_eq!(left, Vec::<String>::new());
    let instances: Api<Instance> = Api::namespaced(cluster.client.clone(), "stays");
    let accounts: Api<Account> = Api::all(cluster.client.clone());
    let counts = async || {
        let instances = instances.list(&kube::api::ListParams::default()).await.unwrap();
        (
            accounts.get_opt("stays").await.unwrap().is_some(),
            instances.items.len(),
        )
    };
    assert_eq!(counts().await, (true, 1));
    helm.with(&[&["install"], &release[..]].concat(), &values())
        .unwrap();
    let mut all = [
        cluster.start("stellage-controller").await,
        cluster.start("stellage-api").await,
    ];
    stays.url.clone_from(&all[1].url);
    call(&stays, Method::GET, "/v1/instances", Value::Null).await;
    for one in &mut all {
        one.stop().await;
    }
    assert_eq!(counts().await, (true, 1));

    // Nothing was forbidden, and nothing is allowed that is not needed.
    let requests = cluster.requests();
    let forbidden: Vec<_> = requests.iter().filter(|request| request.code == 403).collect();
    assert!(forbidden.is_empty(), "{forbidden:#?}");
    let rendered = objects(&rendered);
    let mut superfluous = Vec::new();
    let mut stale: BTreeSet<_> = UNUSED
        .iter()
        .chain(SOMETIMES)
        .map(|line| right_of(line).to_owned())
        .collect();
    for (service_account, in_accounts) in [
        ("stellage-api", "stellage-account-api"),
        ("stellage-controller", "stellage-account"),
    ] {
        let caller = format!("system:serviceaccount:{NAMESPACE}:{service_account}");
        let used: Vec<&Request> = requests.iter().filter(|request| request.user == caller).collect();
        let granted = granted(&rendered, service_account, in_accounts);
        assert!(granted.len() > 15, "{granted:?}");
        for grant in &granted {
            // A right in the whole cluster must be for more than what one in accounts' namespaces allows.
            let is_narrower = |other: &Grant| other.scope == Scope::Accounts && grant.scope == Scope::Cluster;
            let is_used = used.iter().any(|request| {
                let mut narrower = granted.iter().filter(|other| is_narrower(other));
                grant.allows(request) && !narrower.any(|narrower| narrower.allows(request))
            });
            let this = format!("{service_account} {} {}", grant.resource, grant.verb);
            let is_among = |known: &[&str]| known.iter().any(|line| right_of(line) == this);
            if !is_used && !is_among(UNUSED) && !is_among(SOMETIMES) {
                superfluous.push(format!("{service_account}: {grant:?}"));
            }
            if !is_used || is_among(SOMETIMES) {
                stale.retain(|known| *known != this);
            }
        }
    }
    assert!(superfluous.is_empty(), "granted, but not used: {superfluous:#?}");
    assert!(
        stale.is_empty(),
        "in the list of what is not used, but used, or not granted: {stale:#?}"
    );
}
