//! Private networks in regions with real servers, made in each of the ways that there are; kube-ovn is played by the puppet.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use reqwest::{Method, StatusCode};
use resources::{InstanceState::Running, PrivateNetwork, origin};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::installation::Case;
use crate::support::{
    Change as _, Operator, OwnPlane, Tenant, eventually,
    kubevirt::{
        self, Region,
        entry::{NAMESPACE, entry, region_rights_with, write_catalogue},
        kinds,
    },
    own_plane,
};
use control_plane::Identity;

/// In which Stellage makes them with kube-ovn.
const KUBE_OVN: Place = Place {
    code: "de-fra-1",
    installation: "ovn",
    prefix: "ovn-",
};
/// In which the platform team has made some.
const POOL: Place = Place {
    code: "de-ber-1",
    installation: "vlans",
    prefix: "vlans-",
};
/// In which the platform team makes each.
const NAD: Place = Place {
    code: "fr-par-2",
    installation: "nads",
    prefix: "nads-",
};
/// Namespace of those of the platform team.
pub(super) const VLANS: &str = "private-vlans";

/// A region, in the one cluster.
#[derive(Clone, Copy)]
struct Place {
    code: &'static str,
    installation: &'static str,
    prefix: &'static str,
}

impl Place {
    fn account(self) -> String {
        format!("stellage-region-{}", self.installation)
    }
}

struct Installation {
    plane: OwnPlane,
    operator: Operator,
}

/// The installation that these tests share.
async fn shared(region: &Region) -> &'static Installation {
    static INSTALLATION: OnceCell<Installation> = OnceCell::const_new();
    INSTALLATION
        .get_or_init(async || {
            let mut plane = own_plane().await;
            kubevirt::keep_permit_while_shared(&mut plane);
            region.namespace(VLANS).await;
            let config = r#"{"cniVersion":"0.3.1","type":"bridge","bridge":"br-101","ipam":{}}"#;
            attach(region, VLANS, "vlan-101", config).await;
            let mut regions = vec![json!("nl-ams-1")];
            for (place, values, network) in [
                (
                    KUBE_OVN,
                    json!({ "privateNetworks": "kubeOvn" }),
                    json!({ "privateNetworks": "kubeOvn" }),
                ),
                (
                    POOL,
                    json!({ "privateNetworks": "nad", "privateNetworkNamespaces": [VLANS] }),
                    json!({ "privateNetworks": "nad", "privateAttachments": [format!("{VLANS}/vlan-101")] }),
                ),
                (
                    NAD,
                    json!({ "privateNetworks": "nad" }),
                    json!({ "privateNetworks": "nad" }),
                ),
            ] {
                let account = region_rights_with(region, place.installation, place.prefix, &values).await;
                let mut entry = entry(place.code, &account, place.installation, place.prefix);
                for (field, value) in network.as_object().unwrap() {
                    entry["kubevirt"]["network"][field] = value.clone();
                }
                regions.push(entry);
            }
            let catalogue = write_catalogue(&regions, plane.folder());
            let catalogue = format!("--catalogue={}", catalogue.display());
            let arguments = ["run", "--provisioning-seconds=0.5", &catalogue];
            let operator = Operator::start(&plane, &arguments).await;
            Installation { plane, operator }
        })
        .await
}

/// Makes a NetworkAttachmentDefinition, as the platform team does.
pub(super) async fn attach(region: &Region, namespace: &str, name: &str, config: &str) {
    let attachment = object(json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": name }, "spec": { "config": config },
    }));
    let api = region.api(&kinds::NETWORK_ATTACHMENT, namespace).await;
    api.create(&PostParams::default(), &attachment).await.unwrap();
}

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

/// A new account, with its servers in this region.
async fn case(name: &str, place: Place) -> Case {
    let region = kubevirt::shared().await;
    let installation = shared(&region).await;
    Case {
        tenant: Tenant::on(&installation.plane, &installation.operator, name).await,
        namespace: format!("{}{name}", place.prefix),
        region,
    }
}

impl Case {
    async fn call_network(&self, method: Method, id: &str, status: StatusCode) -> Value {
        let path = format!("/v1/networks/{id}");
        let answer = self.tenant.call(method, &path, None).await;
        assert_eq!(answer.status, status, "{}", answer.text);
        if answer.text.is_empty() {
            Value::Null
        } else {
            answer.json()
        }
    }

    async fn network(&self, id: &str) -> Value {
        self.call_network(Method::GET, id, StatusCode::OK).await["data"].clone()
    }

    /// Orders a private network in a region, and returns its id.
    pub(super) async fn order_network(&self, region: &str) -> String {
        let body = json!({ "region": region, "prefix": "10.7.0.0/28" });
        let answer = self.tenant.call(Method::POST, "/v1/networks", Some(&body)).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text);
        answer.json()["data"]["id"].as_str().unwrap().to_owned()
    }

    pub(super) async fn is_ready(&self, id: &str) {
        let shown = async || self.network(id).await;
        eventually("the network to be ready", shown, |shown| shown["ready"] == true).await;
    }

    pub(super) async fn says(&self, id: &str, message: &str) {
        let shown = async || self.network(id).await;
        let is_said = |shown: &Value| {
            let said = shown["message"].as_str().unwrap_or_default();
            shown["ready"] == false && said.contains(message)
        };
        eventually(message, shown, is_said).await;
    }

    /// Orders a server in a network, and returns its id once it runs.
    async fn join(&self, place: Place, network: &str) -> String {
        let fields = json!({ "region": place.code, "private_network": network });
        let id = self.create(fields).await;
        self.reaches(&id, Running).await;
        id
    }

    async fn private_address(&self, id: &str) -> Value {
        let path = format!("/v1/instances/{id}");
        let answer = self.tenant.call(Method::GET, &path, None).await;
        answer.json()["data"]["private_ip_address"].clone()
    }

    pub(super) async fn delete_server(&self, id: &str) {
        let path = format!("/v1/instances/{id}");
        let answer = self.tenant.call(Method::DELETE, &path, None).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.text);
    }

    /// Deletes a network as soon as nothing is in it any more.
    pub(super) async fn delete_network(&self, id: &str) {
        let path = format!("/v1/networks/{id}");
        let deleted = async || self.tenant.call(Method::DELETE, &path, None).await.status;
        eventually("the network to be deleted", deleted, |status| {
            *status == StatusCode::NO_CONTENT
        })
        .await;
    }

    /// The objects of a kind without a namespace that a network consists of.
    async fn parts(&self, kind: &ApiResource, network: &PrivateNetwork) -> Vec<DynamicObject> {
        let client = self.region.plane.client(Identity::Admin).await.unwrap();
        let its = format!("stellage.dev/network-uid={}", origin::uid(&network.metadata));
        let all = Api::<DynamicObject>::all_with(client, kind);
        all.list(&ListParams::default().labels(&its)).await.unwrap().items
    }

    /// The interfaces that virt-api has accepted of a server, and where they lead.
    async fn template(&self, id: &str) -> Value {
        let vm = self.machines().await.get(id).await.unwrap();
        vm.data["spec"]["template"].clone()
    }
}

#[tokio::test]
async fn kube_ovn_makes_a_network_for_servers_of_one_account_and_all_of_it_goes_with_it() {
    let case = case("kv-ovn", KUBE_OVN).await;
    let network = case.order_network(KUBE_OVN.code).await;
    case.is_ready(&network).await;
    let networks = Api::<PrivateNetwork>::namespaced(case.tenant.kube.clone(), &case.tenant.namespace);
    let known = networks.get(&network).await.unwrap();
    let [subnet] = &case.parts(&kinds::SUBNET, &known).await[..] else {
        panic!()
    };
    let spec = &subnet.data["spec"];
    let [vpc] = &case.parts(&kinds::VPC, &known).await[..] else {
        panic!()
    };
    assert_eq!(spec["vpc"], vpc.name_any());
    assert_eq!(
        (&spec["cidrBlock"], &spec["private"]),
        (&json!("10.7.0.0/28"), &json!(true))
    );
    let attachments = case.region.api(&kinds::NETWORK_ATTACHMENT, &case.namespace).await;
    let attachment = attachments.get(&network).await.unwrap();
    let provider = spec["provider"].as_str().unwrap();
    assert!(
        attachment.data["spec"]["config"]
            .as_str()
            .unwrap()
            .contains(provider)
    );

    // What somebody deletes is made again when the network is looked at.
    attachments
        .delete(&network, &DeleteParams::default())
        .await
        .unwrap();
    networks
        .merge(
            &network,
            &json!({ "metadata": { "labels": { "test/touched": "1" } } }),
        )
        .await;
    let again = async || attachments.get_opt(&network).await.unwrap();
    eventually("the attachment to be made again", again, Option::is_some).await;

    let one = case.join(KUBE_OVN, &network).await;
    let other = case.join(KUBE_OVN, &network).await;
    let (address, second) = (
        case.private_address(&one).await,
        case.private_address(&other).await,
    );
    let text = address.as_str().unwrap();
    assert!(
        text.starts_with("10.7.0.") && address != second,
        "{address} {second}"
    );
    let template = case.template(&one).await;
    let annotation =
        |key: &str| &template["metadata"]["annotations"][format!("{provider}.kubernetes.io/{key}")];
    assert_eq!(annotation("ip_address"), text);
    assert_eq!(*annotation("logical_switch"), subnet.name_any());
    assert_eq!(annotation("port_security"), "true");
    let named = format!("{}/{network}", case.namespace);
    assert_eq!(template["spec"]["networks"][1]["multus"]["networkName"], named);
    let client = case.region.plane.client(Identity::Admin).await.unwrap();
    let secrets = Api::<Secret>::namespaced(client, &case.namespace);
    let all = secrets
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .into_iter();
    let data = all.filter_map(|secret| secret.data?.get("networkdata").cloned());
    let data: Vec<String> = data.map(|data| String::from_utf8(data.0).unwrap()).collect();
    let with_length = format!("\"{text}/28\"");
    assert!(data.iter().any(|data| data.contains(&with_length)), "{data:?}");
    // It stays the same.
    case.act(&one, "reboot", None, Running).await;
    assert_eq!(case.private_address(&one).await, address);
    assert_eq!(
        case.template(&one).await["spec"]["networks"],
        template["spec"]["networks"]
    );

    case.call_network(Method::DELETE, &network, StatusCode::CONFLICT)
        .await;
    for id in [&one, &other] {
        case.delete_server(id).await;
    }
    case.delete_network(&network).await;
    let left = async || {
        let mut left = case.parts(&kinds::SUBNET, &known).await;
        left.extend(case.parts(&kinds::VPC, &known).await);
        left.extend(attachments.get_opt(&network).await.unwrap());
        left.len()
    };
    eventually("nothing to be left of it", left, |left| *left == 0).await;
    let gone = async || networks.get_opt(&network).await.unwrap();
    eventually("the network to be gone", gone, Option::is_none).await;
}

#[tokio::test]
async fn each_network_of_the_platform_team_is_one_accounts_at_a_time() {
    let (one, other) = (case("kv-vlan-a", POOL).await, case("kv-vlan-b", POOL).await);
    let first = one.order_network(POOL.code).await;
    one.is_ready(&first).await;
    let second = other.order_network(POOL.code).await;
    other.says(&second, "no private network left").await;
    let server = one.join(POOL, &first).await;
    let address = one.private_address(&server).await;
    assert!(address.as_str().unwrap().starts_with("10.7.0."), "{address}");
    let named = |template: &Value| template["spec"]["networks"][1]["multus"]["networkName"].clone();
    let vlan = format!("{VLANS}/vlan-101");
    assert_eq!(named(&one.template(&server).await), vlan);
    one.delete_server(&server).await;
    one.delete_network(&first).await;
    other.is_ready(&second).await;
    let server = other.join(POOL, &second).await;
    assert_eq!(named(&other.template(&server).await), vlan);
}

#[tokio::test]
async fn a_network_that_the_platform_team_is_to_make_says_so_until_it_is_there() {
    let case = case("kv-nad", NAD).await;
    let network = case.order_network(NAD.code).await;
    case.says(&network, "does not exist in this region").await;
    // The namespace is there for it.
    attach(&case.region, &case.namespace, &network, "{}").await;
    case.is_ready(&network).await;
    let server = case.join(NAD, &network).await;
    assert_eq!(case.private_address(&server).await, Value::Null, "by DHCP");
    let named = format!("{}/{network}", case.namespace);
    let template = case.template(&server).await;
    assert_eq!(template["spec"]["networks"][1]["multus"]["networkName"], named);
}

async fn client(kubeconfig: PathBuf) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    Client::try_from(config.unwrap()).unwrap()
}

#[tokio::test]
async fn whoever_steals_the_token_of_a_region_can_touch_no_network_but_stellages() {
    let case = case("kv-thief", KUBE_OVN).await;
    // So that there are rights in the namespace of its servers.
    let network = case.order_network(KUBE_OVN.code).await;
    case.is_ready(&network).await;
    let thief = client(case.region.kubeconfig(NAMESPACE, &KUBE_OVN.account()).await).await;
    let of_pool = client(case.region.kubeconfig(NAMESPACE, &POOL.account()).await).await;
    let refused = async |client: &Client, kind: &ApiResource, namespace: Option<&str>, object_: Value| {
        let api = match namespace {
            Some(namespace) => Api::<DynamicObject>::namespaced_with(client.clone(), namespace, kind),
            None => Api::<DynamicObject>::all_with(client.clone(), kind),
        };
        let error = api.create(&PostParams::default(), &object(object_)).await;
        error.unwrap_err().to_string()
    };
    let ours = json!({ "stellage.dev/installation": KUBE_OVN.installation });
    let attachment = |name: &str, config: &str| {
        json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name, "labels": ours }, "spec": { "config": config },
        })
    };
    let host = r#"{"cniVersion":"0.3.1","type":"host-device","device":"eth0"}"#;
    let said = refused(
        &thief,
        &kinds::NETWORK_ATTACHMENT,
        Some(&case.namespace),
        attachment("pn-evil", host),
    )
    .await;
    assert!(
        said.contains("only NetworkAttachmentDefinitions of kube-ovn"),
        "{said}"
    );
    let said = refused(
        &of_pool,
        &kinds::NETWORK_ATTACHMENT,
        Some(VLANS),
        attachment("pn-evil", host),
    )
    .await;
    assert!(said.contains("forbidden"), "{said}");
    let subnet = |labels: &Value, vpc: &str| {
        json!({
            "apiVersion": "kubeovn.io/v1", "kind": "Subnet", "metadata": { "name": "pn-evil", "labels": labels },
            "spec": { "vpc": vpc, "cidrBlock": "10.9.0.0/24" },
        })
    };
    for (labels, vpc, says) in [
        (&json!({}), "stellage-vpc-1", "only networks with the label"),
        (&ours, "ovn-cluster", "only in Vpcs of its own"),
    ] {
        let said = refused(&thief, &kinds::SUBNET, None, subnet(labels, vpc)).await;
        assert!(said.contains(says), "{said}");
    }
    // The network of the Pods.
    let admin = case.region.plane.client(Identity::Admin).await.unwrap();
    let of_cluster = json!({ "apiVersion": "kubeovn.io/v1", "kind": "Vpc", "metadata": { "name": "ovn-cluster" }, "spec": {} });
    let vpcs = Api::<DynamicObject>::all_with(admin, &kinds::VPC);
    vpcs.create(&PostParams::default(), &object(of_cluster))
        .await
        .unwrap();
    let theirs = Api::<DynamicObject>::all_with(thief, &kinds::VPC);
    let error = theirs.delete("ovn-cluster", &DeleteParams::default()).await;
    let said = error.unwrap_err().to_string();
    assert!(said.contains("only networks with the label"), "{said}");
    // A label says whose an attachment of the platform team is, and no more is changed.
    let vlans = Api::<DynamicObject>::namespaced_with(of_pool, VLANS, &kinds::NETWORK_ATTACHMENT);
    let change = kube::api::Patch::Merge(json!({ "spec": { "config": host } }));
    let error = vlans
        .patch("vlan-101", &kube::api::PatchParams::default(), &change)
        .await;
    let said = error.unwrap_err().to_string();
    assert!(
        said.contains("does not change what a NetworkAttachmentDefinition says"),
        "{said}"
    );
    case.delete_network(&network).await;
}
