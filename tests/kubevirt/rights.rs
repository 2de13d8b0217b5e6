//! What Stellage and its console gateway may do in the cluster of a region, by its API server's audit log: nothing that they ask for is
//! refused, and there is nothing that they may do and never ask for.

use std::{collections::BTreeMap, path::Path, process::Command};

use control_plane::{Identity, audit::Request};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, ResourceExt as _, api::DeleteParams};
use reqwest::{Method, StatusCode};
use resources::InstanceState::{Running, Stopped};
use serde_json::{Value, json};

use super::{
    installation::Case,
    networks::{VLANS, attach},
};
use crate::{
    console_access::{Console, ticket},
    support::{
        Change as _, Operator, OwnPlane, STELLAGE, Tenant, eventually, gateway_url,
        helm::region_chart,
        kubectl,
        kubevirt::{
            self, Region,
            entry::{NAMESPACE, REGION, entry, region_rights_with, write_catalogue},
            puppet::{Boot, End},
            storage,
        },
        own_plane,
        refusals::{is_of_region, refusals_in_region},
        start_gateway,
    },
};

/// The namespaces of the platform team in which a role gives rights.
const IMAGES: &str = "rights-images";
const NETWORKS: &str = "rights-networks";
const POOL: &str = "rights-vlans";
const OF_PLATFORM: [&str; 5] = ["images", VLANS, IMAGES, NETWORKS, POOL];
/// The region in which the platform team has made private networks, and the one in which it makes each.
const WITH_POOL: &str = "de-ber-1";
const WITH_NAD: &str = "fr-par-2";

/// The rights that are used and that the log does not show, by their place in the chart's file, and why.
const UNSEEN: [(&str, &str); 4] = [
    // Kubernetes before 1.34 streams no lists to watches.
    ("cluster", "list virtualmachineinstances.kubevirt.io"),
    // CDI asks whether Stellage has it when it clones an image; its place is taken by a puppet that asks for nothing.
    ("images", "create datavolumes/source.cdi.kubevirt.io"),
    // The API server looks for it itself when a RoleBinding is created.
    ("managed", "bind clusterroles.rbac.authorization.k8s.io"),
    // An apply of what is not there yet needs it, and is in the log as a patch.
    ("servers", "create networkpolicies.networking.k8s.io"),
];

/// An installation of one account that uses all that a region can offer, whichever way private networks are made there.
struct Everything {
    case: Case,
    operator: Operator,
    gateway: Operator,
    catalogue: String,
    _plane: OwnPlane,
}

impl Everything {
    async fn start() -> Self {
        let region = kubevirt::shared().await;
        region.storage().await;
        let plane = own_plane().await;
        prepare_platform(&region).await;
        let everything = json!({
            "privateNetworks": "kubeOvn", "imageNamespaces": [IMAGES], "networkNamespaces": [NETWORKS], "podMetrics": true,
        });
        let account = region_rights_with(&region, "rights", "rights-", &everything).await;
        let mut main = entry(REGION, &account, "rights", "rights-");
        main["kubevirt"]["podMetrics"] = true.into();
        main["kubevirt"]["storageClass"] = storage::VOLUMES.into();
        main["kubevirt"]["snapshotClass"] = storage::SNAPSHOTS.into();
        main["kubevirt"]["images"]["debian-13"]["dataSource"] = format!("{IMAGES}/debian-13").into();
        main["kubevirt"]["network"] = json!({
            "profile": "bridge", "attachment": format!("{NETWORKS}/public"), "antiSpoofing": "external",
            "ipv4": [{ "prefix": "10.78.0.0/24", "gateway": "10.78.0.1" }], "nameservers": ["9.9.9.9"],
            "privateNetworks": "kubeOvn",
        });
        let with_pool = json!({ "privateNetworks": "nad", "privateNetworkNamespaces": [POOL] });
        let account = region_rights_with(&region, "rights-pool", "rightspool-", &with_pool).await;
        let mut pool = entry(WITH_POOL, &account, "rights-pool", "rightspool-");
        pool["kubevirt"]["network"]["privateNetworks"] = "nad".into();
        pool["kubevirt"]["network"]["privateAttachments"] = json!([format!("{POOL}/vlan-7")]);
        let with_nad = json!({ "privateNetworks": "nad" });
        let account = region_rights_with(&region, "rights-nad", "rightsnad-", &with_nad).await;
        let mut nad = entry(WITH_NAD, &account, "rights-nad", "rightsnad-");
        nad["kubevirt"]["network"]["privateNetworks"] = "nad".into();

        let of_gateway = region
            .kubeconfig(NAMESPACE, "stellage-region-rights-consoles")
            .await;
        let mut for_gateway = main.clone();
        for_gateway["kubevirt"]["kubeconfig"] = json!(of_gateway);
        let folder = plane.folder().join("consoles");
        std::fs::create_dir(&folder).unwrap();
        let for_gateway = flag(&write_catalogue(&[for_gateway], &folder));
        let file = write_catalogue(&[main, pool, nad], plane.folder());
        let port = control_plane::free_port().unwrap();
        let arguments = [
            "run",
            "--provisioning-seconds=0.5",
            &flag(&file),
            &gateway_url(port),
        ];
        let operator = Operator::start(&plane, &arguments).await;
        let gateway = start_gateway(&plane, port, &[&for_gateway]).await;
        let tenant = Tenant::on(&plane, &operator, "kv-rights").await;
        Self {
            case: Case {
                region,
                tenant,
                namespace: "rights-kv-rights".to_owned(),
            },
            operator,
            gateway,
            catalogue: flag(&file),
            _plane: plane,
        }
    }

    /// Private networks, in each of the ways in which they are made, and a server in the one that Stellage makes.
    async fn join_networks(&self) -> (String, String) {
        let case = &self.case;
        let of_pool = case.order_network(WITH_POOL).await;
        case.is_ready(&of_pool).await;
        case.delete_network(&of_pool).await;
        let missing = case.order_network(WITH_NAD).await;
        case.says(&missing, "does not exist in this region").await;
        case.delete_network(&missing).await;

        let network = case.order_network(REGION).await;
        case.is_ready(&network).await;
        let id = case.create(json!({ "private_network": network })).await;
        case.reaches(&id, Running).await;
        case.is_sealed(&id).await;
        (network, id)
    }

    async fn look_on(&self, id: &str) {
        let case = &self.case;
        let with_usage = format!("/v1/instances/{id}?include=metrics");
        let answer = case.tenant.call(Method::GET, &with_usage, None).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        let mut serial = Console::open(&ticket(&case.tenant, id, "serial").await)
            .await
            .unwrap();
        serial.shows(&format!("console of {id}\r\n")).await;
        let mut screen = Console::open(&ticket(&case.tenant, id, "vnc").await)
            .await
            .unwrap();
        screen.shows("RFB 003.008\n").await;
        let mut doctor = Command::new(STELLAGE);
        doctor.args(["doctor", "--region", REGION, "--test-storage", "--output", "json"]);
        doctor.arg(&self.catalogue);
        let output = tokio::task::spawn_blocking(move || doctor.output().unwrap());
        let output = output.await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
        let mut checks = report["checks"].as_array().unwrap().iter();
        for name in ["rights", "backups test"] {
            let check = checks.find(|check| check["name"] == name).unwrap();
            assert_eq!(check["outcome"], "ok", "{check:#}");
        }
    }

    /// A backup that is cut so late that the guest has gone on before.
    async fn back_up_and_restore(&self, id: &str) {
        let case = &self.case;
        case.install_agent(id).await;
        let backup = case.back_up_late(id).await;
        let view = case.ended(&backup).await;
        assert_eq!(view["status"], "completed", "{view:#}");
        let told = async || case.region.handler.told(&case.namespace);
        eventually("the guest to go on", told, |told| told.contains(&"unfreeze")).await;
        let restore = json!({ "backup": backup });
        case.act(id, "rebuild", Some(&restore), Running).await;
        case.delete_backup(&backup).await;
        let gone = async || case.is_backup_gone(&backup).await;
        eventually("the backup to go", gone, |gone| *gone).await;
    }

    async fn resize(&self, id: &str) {
        let larger = json!({ "plan": "business", "reboot": true });
        let path = format!("/v1/instances/{id}");
        let answer = self.case.tenant.call(Method::PATCH, &path, Some(&larger)).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        self.case.settles(id, Running).await;
    }

    /// A guest that crashes, one whose node is drained, one that shuts itself down, and one that does not.
    async fn power_off(&self, id: &str) {
        let case = &self.case;
        let order = |change: fn(&mut kubevirt::puppet::Guest)| {
            case.region.puppet.order(&case.namespace, id, change);
        };
        order(|guest| {
            guest.boot = Boot::Crashes;
            guest.ends = Some(End::Crashes);
        });
        let machines = case.machines().await;
        let is_requested = async || {
            let machine = machines.get(id).await.unwrap();
            machine.data["status"]["stateChangeRequests"][0]["action"] == "Start"
        };
        eventually("KubeVirt to note a start", is_requested, |is| *is).await;
        case.act(id, "poweroff", None, Stopped).await;
        order(|guest| {
            guest.boot = Boot::Succeeds;
            guest.ends = None;
        });
        case.act(id, "start", None, Running).await;
        let run = case.run(id).await;
        case.delete_launcher(id).await;
        let runs = case.runs().await;
        let next = async || runs.get_opt(id).await.unwrap().and_then(|next| next.uid());
        eventually("another run", next, |next| {
            next.as_ref().is_some_and(|next| *next != run)
        })
        .await;
        case.settles(id, Running).await;
        order(|guest| guest.ends = Some(End::ShutsDown));
        case.settles(id, Stopped).await;
        case.act(id, "start", None, Running).await;
        order(|guest| guest.is_deaf = true);
        case.act(id, "stop", None, Stopped).await;
    }

    /// The server, whose claim somebody has kept although its disk is gone; the network; and the account.
    async fn delete(&self, id: &str, network: &str) {
        let case = &self.case;
        let client = case.region.plane.client(Identity::Admin).await.unwrap();
        let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), &case.namespace);
        let disk = case.disk().await.name_any();
        claims
            .merge(&disk, &json!({ "metadata": { "ownerReferences": null } }))
            .await;
        case.disks()
            .await
            .delete(&disk, &DeleteParams::background())
            .await
            .unwrap();
        case.delete_server(id).await;
        let gone = async || case.tenant.instances().get_opt(id).await.unwrap().is_none();
        eventually("the instance to go", gone, |gone| *gone).await;
        assert!(claims.get_opt(&disk).await.unwrap().is_none());
        case.delete_network(network).await;
        case.delete_account().await;
    }
}

fn flag(catalogue: &Path) -> String {
    format!("--catalogue={}", catalogue.display())
}

/// Makes what the platform team has made.
async fn prepare_platform(region: &Region) {
    for namespace in [IMAGES, NETWORKS, POOL] {
        region.namespace(namespace).await;
    }
    let config = r#"{"cniVersion":"0.3.1","name":"public","type":"bridge","bridge":"br-public","ipam":{}}"#;
    attach(region, NETWORKS, "public", config).await;
    attach(region, POOL, "vlan-7", config).await;
    let image = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource",
        "metadata": { "name": "debian-13", "namespace": IMAGES },
        "spec": { "source": { "pvc": { "namespace": IMAGES, "name": "debian-13" } } },
    });
    kubectl(&region.plane, "create -f -", Some(&image.to_string())).unwrap();
}

/// The rights in the chart's file, by their place there.
fn granted() -> Vec<(String, Granted)> {
    let file = std::fs::read_to_string(region_chart().join("files/rights.yaml")).unwrap();
    let places: BTreeMap<String, Vec<Value>> = serde_saphyr::from_str(&file).unwrap();
    let mut all = Vec::new();
    let words = |rule: &Value, field: &str| -> Vec<String> {
        let words = rule[field].as_array().unwrap().iter();
        words.map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    for (place, rules) in places {
        for rule in rules {
            for (group, resource) in words(&rule, "apiGroups").iter().flat_map(|group| {
                words(&rule, "resources")
                    .into_iter()
                    .map(move |it| (group.clone(), it))
            }) {
                all.extend(words(&rule, "verbs").into_iter().map(|verb| {
                    let right = Granted {
                        verb,
                        group: group.clone(),
                        resource: resource.clone(),
                    };
                    (place.clone(), right)
                }));
            }
        }
    }
    all
}

#[derive(Debug)]
struct Granted {
    verb: String,
    group: String,
    /// With its subresource.
    resource: String,
}

impl Granted {
    /// As [`UNSEEN`] has it.
    fn name(&self) -> String {
        let dot = if self.group.is_empty() { "" } else { "." };
        format!("{} {}{dot}{}", self.verb, self.resource, self.group)
    }

    fn is_used_by(&self, request: &Request) -> bool {
        let slash = if request.subresource.is_empty() { "" } else { "/" };
        let resource = format!("{}{slash}{}", request.resource, request.subresource);
        (&self.verb, &self.group, &self.resource) == (&request.verb, &request.group, &resource)
    }
}

/// Whether a request needed the rights of this place.
fn is_in(place: &str, request: &Request) -> bool {
    let namespace = &*request.namespace;
    let is_of_gateway = request.user.ends_with("-consoles");
    match place {
        "consoles" => is_of_gateway,
        "cluster" | "managed" | "podMetrics" | "privateKubeOvn" => !is_of_gateway,
        "servers" | "privateKubeOvnServers" => namespace == "rights-kv-rights",
        "privateNad" => namespace == "rightsnad-kv-rights",
        "images" => namespace == IMAGES,
        "networks" => namespace == NETWORKS,
        "privatePool" => namespace == POOL,
        place => panic!("no test uses what {place} grants"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_uses_all_that_a_region_offers_is_refused_nothing_and_leaves_no_right_unused() {
    let mut everything = Everything::start().await;
    let (network, id) = everything.join_networks().await;
    everything.look_on(&id).await;
    everything.back_up_and_restore(&id).await;
    everything.resize(&id).await;
    everything.power_off(&id).await;
    everything.delete(&id, &network).await;
    everything.gateway.stop().await;
    everything.operator.stop().await;

    let plane = &everything.case.region.plane;
    let refused = plane.requests().unwrap();
    let mut refused = refusals_in_region(&refused, &OF_PLATFORM).unexcused;
    refused.retain(|request| is_of_everything(&request.user));
    assert!(refused.is_empty(), "{refused:#?}");
    let unseen = UNSEEN.map(|(place, right)| (place.to_owned(), right.to_owned()));
    // A watch is logged when it ends.
    let unused = async || unused(&plane.requests().unwrap());
    eventually("every right to have been used", unused, |unused| {
        *unused == unseen
    })
    .await;
}

fn is_of_everything(user: &str) -> bool {
    is_of_region(user) && user.contains("stellage-region-rights")
}

/// The rights that no request has used, by their place.
fn unused(requests: &[Request]) -> Vec<(String, String)> {
    let used = requests
        .iter()
        .filter(|request| is_of_everything(&request.user) && !request.is_unauthorized);
    let used: Vec<&Request> = used.collect();
    let is_used = |place: &str, right: &Granted| {
        used.iter()
            .any(|request| right.is_used_by(request) && is_in(place, request))
    };
    let unused = granted()
        .into_iter()
        .filter(|(place, right)| !is_used(place, right));
    let mut unused: Vec<(String, String)> = unused.map(|(place, right)| (place, right.name())).collect();
    unused.sort();
    unused
}

#[tokio::test]
async fn a_region_that_tests_have_shared_has_refused_stellage_and_the_console_gateway_nothing() {
    let region = kubevirt::shared_at_last().await;
    let requests = region.plane.requests().unwrap();
    let mut unexcused = refusals_in_region(&requests, &OF_PLATFORM).unexcused;
    unexcused.retain(|request| {
        let asked = (&*request.namespace, &*request.verb, &*request.resource);
        // A test uses the token as a thief would; in those of the doctor, its accounts may read no golden images.
        asked != (VLANS, "create", "network-attachment-definitions")
            && !(request.user.contains(":stellage-region-doctor") && request.resource == "datasources")
    });
    assert!(unexcused.is_empty(), "{unexcused:#?}");
}
