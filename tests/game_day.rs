//! The disasters of docs/runbooks.md: the commands of the page, run in the order that it has them.

use std::{collections::BTreeMap, os::unix::fs::symlink};

use age::{secrecy::ExposeSecret as _, x25519};
use control_plane::{ControlPlane, Identity};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use reqwest::{Method, StatusCode};
use resources::{Instance, InstanceState};
use serde_json::json;

use crate::{
    chart::kubeconfig_of,
    resilience::{copy_folder, with_servers_stopped},
    support::{
        Operator, OwnPlane, Tenant, bare_plane, eventually,
        helm::{Helm, chart},
        kubectl, receiver_arguments,
        receivers::{Answer, Receiver},
        s3::S3,
        stellage, wait_for_kinds,
        walkthrough::{Shell, steps},
    },
};

const NAMESPACE: &str = "stellage-system";
/// The region that is lost.
const LOST: &str = "fr-par-1";
const OTHER: &str = "de-fra-1";
/// The commands of the pods, each with a Deployment and a service account of its name, such as `stellage-api`.
const COMMANDS: [&str; 2] = ["controller", "api"];

/// What an administrator has when disaster strikes: the values of the chart, the keys, the credentials, and the programs.
struct Desk {
    folder: tempfile::TempDir,
    helm: Helm,
    s3: S3,
    receiver: Receiver,
}

impl Desk {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let identity = x25519::Identity::generate();
        let key = identity.to_string().expose_secret().to_owned();
        std::fs::write(folder.path().join("stellage.keys"), key).unwrap();
        symlink(chart().parent().unwrap(), folder.path().join("charts")).unwrap();
        let desk = Self {
            folder,
            helm: Helm::alone().await,
            s3: S3::start().await,
            receiver: Receiver::start(|_| Answer::ok()).await,
        };
        desk.write_values(&[LOST, OTHER]);
        desk
    }

    fn write_values(&self, regions: &[&str]) {
        // The test's receiver is on loopback.
        let values = json!({
            "catalogue": { "regions": regions, "seller": { "name": "Stellage Ltd" } },
            "settings": { "receiverAllow": ["127.0.0.0/8", "::1/128"] },
        });
        std::fs::write(self.folder.path().join("values.yaml"), values.to_string()).unwrap();
    }

    /// Runs the commands of a section. After each, the operator is as the Deployments say.
    async fn follow(&self, heading: &str, cluster: &mut Cluster) {
        let steps = steps("docs/runbooks.md", heading);
        assert!(!steps.is_empty(), "{heading}");
        for step in steps {
            self.run(&step.command, cluster).await;
        }
    }

    async fn run(&self, command: &str, cluster: &mut Cluster) {
        let helm = self.helm.program().parent().unwrap();
        let homes = ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"];
        let home = self.helm.folder.path().display().to_string();
        let mut environment = self.s3.environment().to_vec();
        environment.extend(homes.map(|name| (name, home.clone())));
        environment.push(("HOME", self.folder.path().display().to_string()));
        let mut shell = Shell::on(&cluster.plane, self.folder.path(), &[helm], &environment).await;
        shell.run(command).await;
        drop(shell);
        cluster.follow_deployments().await;
    }
}

/// A control plane, and those of [`COMMANDS`] whose Deployments have replicas. No nodes: these are what would be in their pods.
struct Cluster {
    plane: OwnPlane,
    client: Client,
    operators: BTreeMap<&'static str, Operator>,
}

impl Cluster {
    async fn new() -> Self {
        let plane = bare_plane(ControlPlane::options()).await;
        Self {
            client: plane.client(Identity::Admin).await.unwrap(),
            plane,
            operators: BTreeMap::new(),
        }
    }

    async fn follow_deployments(&mut self) {
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), NAMESPACE);
        let all = deployments.list(&ListParams::default()).await.unwrap().items;
        for command in COMMANDS {
            let name = format!("stellage-{command}");
            let found = all.iter().find(|deployment| deployment.name_any() == name);
            let replicas = found.and_then(|deployment| deployment.spec.as_ref()?.replicas);
            match (replicas.unwrap_or(0), self.operators.remove(command)) {
                (0, None) => {}
                (0, Some(mut operator)) => operator.stop().await,
                (_, running) => {
                    let operator = match running {
                        Some(operator) => operator,
                        None => self.start(command, &name).await,
                    };
                    self.operators.insert(command, operator);
                }
            }
        }
        if self.operators.is_empty() {
            // Their pods, which no node has.
            let delete = format!("delete pods --all --namespace {NAMESPACE} --force --ignore-not-found");
            kubectl(&self.plane, &delete, None).unwrap();
        }
    }

    /// Starts what a pod of a Deployment would run, with the chart's catalogue.
    async fn start(&self, command: &str, name: &str) -> Operator {
        wait_for_kinds(&self.plane);
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        let map = maps.get("stellage-catalogue").await.unwrap();
        let catalogue = self.plane.folder().join("catalogue.yaml");
        std::fs::write(&catalogue, &map.data.unwrap()["catalogue.yaml"]).unwrap();
        let mut arguments = vec![
            command.to_owned(),
            "--provisioning-seconds=0.5".to_owned(),
            format!("--catalogue={}", catalogue.display()),
        ];
        if command == "controller" {
            arguments.push("--service-account=stellage-controller".to_owned());
            arguments.push("--api-service-account=stellage-api".to_owned());
            arguments.extend(receiver_arguments(&self.plane));
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let kubeconfig = kubeconfig_of(&self.plane, NAMESPACE, name);
        Operator::start_with(&self.plane, &arguments, &kubeconfig).await
    }

    /// What serves the REST API.
    fn api(&self) -> &Operator {
        &self.operators["api"]
    }

    /// An account as a client sees it that has its key.
    fn tenant(&self, known: &Known) -> Tenant {
        Tenant {
            namespace: known.name.clone(),
            key: known.key.clone(),
            kube: self.client.clone(),
            url: self.api().url.clone(),
            http: reqwest::Client::new(),
        }
    }

    /// Waits until an account has what it had.
    async fn has(&self, known: &Known) {
        let tenant = self.tenant(known);
        let ids = async || {
            let answer = tenant.call(Method::GET, "/v1/instances", None).await;
            let ids = |answer: &crate::support::Answer| {
                let all = answer.json()["data"].as_array().unwrap().clone();
                all.iter()
                    .map(|instance| instance["id"].as_str().unwrap().to_owned())
                    .collect::<Vec<_>>()
            };
            (answer.status == StatusCode::OK).then(|| ids(&answer))
        };
        let id = known.instance.id();
        eventually("the instances", ids, |found| {
            found.as_ref() == Some(&vec![id.clone()])
        })
        .await;
        let web = tenant.wait_for_state("web", InstanceState::Running).await;
        let times = |instance: &Instance| {
            let status = instance.status.clone().unwrap();
            (status.provisioned_at, status.ip_address)
        };
        assert_eq!(times(&web), times(&known.instance), "no second server");
    }

    async fn end(&mut self) {
        for operator in self.operators.values_mut() {
            operator.stop().await;
        }
        self.operators.clear();
    }
}

/// What a customer knows.
struct Known {
    name: String,
    key: String,
    instance: Instance,
}

async fn customer(desk: &Desk, cluster: &Cluster, name: &str) -> Known {
    let tenant = Tenant::on(&cluster.plane, cluster.api(), name).await;
    tenant
        .webhook("orders", &desk.receiver.url("/"), &["instance.created"])
        .await;
    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    tenant.wait_for_entries(1).await;
    tenant.wait_for_clear_outboxes().await;
    Known {
        name: name.to_owned(),
        key: tenant.key.clone(),
        instance: tenant.instances().get("web").await.unwrap(),
    }
}

/// An installation with two customers, and a backup of it.
async fn installed(desk: &Desk) -> (Cluster, [Known; 2]) {
    let mut cluster = Cluster::new().await;
    desk.run(
        "helm install stellage charts/stellage --namespace stellage-system --create-namespace --values values.yaml",
        &mut cluster,
    )
    .await;
    let customers = [
        customer(desk, &cluster, "ada").await,
        customer(desk, &cluster, "bob").await,
    ];
    desk.follow("### Be ready", &mut cluster).await;
    (cluster, customers)
}

#[tokio::test(flavor = "multi_thread")]
async fn game_day_the_cluster_is_gone_and_then_the_namespace_and_then_an_accounts_data_is_wrong() {
    let desk = Desk::new().await;
    let (mut lost, customers) = installed(&desk).await;
    lost.end().await;
    drop(lost);

    let mut cluster = Cluster::new().await;
    desk.follow("### The cluster is gone", &mut cluster).await;
    for known in &customers {
        cluster.has(known).await;
    }

    let invoices = cluster.tenant(&customers[0]).all_invoices().await;
    cluster.end().await;
    kubectl(
        &cluster.plane,
        &format!("delete namespace {NAMESPACE} --timeout=120s"),
        None,
    )
    .unwrap();
    desk.follow("### The namespace is gone", &mut cluster).await;
    for known in &customers {
        cluster.has(known).await;
    }
    let restored = cluster.tenant(&customers[0]).all_invoices().await;
    assert_eq!(restored.len(), invoices.len());
    assert_eq!(restored[0].spec.entries, invoices[0].spec.entries);

    // Somebody deletes a webhook, and makes a mess of the instance.
    let ada = cluster.tenant(&customers[0]);
    let wrong = json!({ "spec": { "name": "wrong" } });
    ada.merge("web", &wrong).await;
    kubectl(&cluster.plane, "delete webhook orders -n ada", None).unwrap();
    desk.follow("### One account's data is wrong", &mut cluster).await;
    for known in &customers {
        cluster.has(known).await;
    }
    let web = ada.instances().get("web").await.unwrap();
    assert_eq!(web.spec.name, None);
    kubectl(&cluster.plane, "get webhook orders -n ada", None).unwrap();
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn game_day_etcd_is_two_hours_old_and_then_the_region_is_gone() {
    let desk = Desk::new().await;
    let (mut cluster, customers) = installed(&desk).await;
    let etcd = cluster.plane.folder().join("etcd");
    let snapshot = cluster.plane.folder().join("etcd-snapshot");
    with_servers_stopped(&cluster.plane, || copy_folder(&etcd, &snapshot)).await;
    let ada = cluster.tenant(&customers[0]);
    ada.apply("lost", |_| {}).await;
    ada.wait_for_state("lost", InstanceState::Running).await;

    // What the page has: stop, put the snapshot back, look, start.
    let commands = steps("docs/runbooks.md", "### etcd is two hours old");
    let (stop, rest) = commands.split_first().unwrap();
    desk.run(&stop.command, &mut cluster).await;
    with_servers_stopped(&cluster.plane, || {
        std::fs::remove_dir_all(&etcd).unwrap();
        std::fs::rename(&snapshot, &etcd).unwrap();
    })
    .await;
    // It has replicas again, as it had two hours ago.
    desk.run(&stop.command, &mut cluster).await;
    for step in rest {
        desk.run(&step.command, &mut cluster).await;
    }
    for known in &customers {
        cluster.has(known).await;
    }

    // All that can be in a region; and a server in another.
    let ada = cluster.tenant(&customers[0]);
    let network = json!({ "region": LOST });
    let network = ada.call(Method::POST, "/v1/networks", Some(&network)).await;
    let network = network.json()["data"]["id"].as_str().unwrap().to_owned();
    ada.apply("inside", |inside| inside.spec.private_network = Some(network))
        .await;
    ada.apply("elsewhere", |elsewhere| {
        elsewhere.spec.region = OTHER.to_owned();
        elsewhere.spec.deletion_protection = true;
    })
    .await;
    for name in ["inside", "elsewhere"] {
        ada.wait_for_state(name, InstanceState::Running).await;
        stellage(&cluster.plane, &format!("backup create {name} -n ada --wait")).unwrap();
    }
    ada.merge("web", &json!({ "spec": { "deletionProtection": true } }))
        .await;

    let commands = steps("docs/runbooks.md", "### The region is gone");
    let (start, rest) = commands.split_last().unwrap();
    for step in rest {
        desk.run(&step.command, &mut cluster).await;
    }
    desk.write_values(&[OTHER]);
    desk.run(&start.command, &mut cluster).await;
    let left = |kind: &str| {
        let get = format!("get {kind} --all-namespaces -o custom-columns=:.metadata.name --no-headers");
        let left = kubectl(&cluster.plane, &get, None).unwrap();
        left.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(left("instances"), ["elsewhere"]);
    assert_eq!(left("privatenetworks"), Vec::<String>::new());
    assert_eq!(left("backups").len(), 1);
    let ada = cluster.tenant(&customers[0]);
    let elsewhere = ada.instances().get("elsewhere").await.unwrap();
    assert!(elsewhere.spec.deletion_protection);
    let offered = ada.call(Method::GET, "/v1/regions", None).await.json();
    let offered = offered["data"].as_array().unwrap();
    assert_eq!((offered.len(), &offered[0]["id"]), (1, &json!(OTHER)));
    cluster.end().await;
}
