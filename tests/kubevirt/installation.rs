//! Stellage with a region in a cluster with KubeVirt, which is another cluster, and in which it has only the rights of the region's
//! chart.

use std::path::{Path, PathBuf};

use kube::{Api, ResourceExt as _, api::DynamicObject};
use reqwest::{Method, StatusCode};
use resources::InstanceState;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{
    chart::install_region,
    support::{
        Operator, OwnPlane, Tenant, eventually, gateway_url, kubectl,
        kubevirt::{self, Region, kinds},
        own_plane, start_gateway,
    },
};

/// The region that the catalogue maps to KubeVirt; `nl-ams-1` beside it is simulated.
pub const REGION: &str = "de-fra-1";
/// Another one in the same cluster, which has no class of snapshots.
pub const BARE: &str = "de-ber-1";
const BARE_PREFIX: &str = "bare-";
/// What the names of the namespaces of servers begin with.
pub const PREFIX: &str = "real-";
/// Namespace of its service account in the region.
pub const NAMESPACE: &str = "stellage";

/// A management cluster with an operator, and the region.
pub struct Installation {
    pub plane: OwnPlane,
    pub operator: Operator,
    pub gateway: Operator,
}

/// The installation that most tests share.
pub async fn shared(region: &Region) -> &'static Installation {
    static INSTALLATION: OnceCell<Installation> = OnceCell::const_new();
    INSTALLATION
        .get_or_init(async || Installation::start(region, "shared").await)
        .await
}

impl Installation {
    /// Starts one. `installation` is the label by which it knows its servers.
    pub async fn start(region: &Region, installation: &str) -> Self {
        let plane = own_plane().await;
        let catalogue = catalogue(region, installation, plane.folder()).await;
        let catalogue = format!("--catalogue={}", catalogue.display());
        let port = control_plane::free_port().unwrap();
        let gateway = gateway_url(port);
        let arguments = ["run", "--provisioning-seconds=0.5", &catalogue, &gateway];
        let operator = Operator::start(&plane, &arguments).await;
        let catalogue = console_catalogue(region, installation, plane.folder()).await;
        let catalogue = format!("--catalogue={}", catalogue.display());
        let gateway = start_gateway(&plane, port, &[&catalogue]).await;
        Self {
            plane,
            operator,
            gateway,
        }
    }
}

/// Writes a catalogue with the regions.
pub async fn catalogue(region: &Region, installation: &str, folder: &Path) -> PathBuf {
    let account = region_rights(region, installation, PREFIX).await;
    let of_bare = format!("{installation}-bare");
    let rights = region_rights(region, &of_bare, BARE_PREFIX).await;
    let mut bare = entry(BARE, &rights, &of_bare, BARE_PREFIX);
    bare["kubevirt"]["snapshotClass"].take();
    let regions = [
        json!("nl-ams-1"),
        entry(REGION, &account, installation, PREFIX),
        bare,
    ];
    write_catalogue(&regions, folder)
}

/// The same for the console gateway, which has another service account there.
async fn console_catalogue(region: &Region, installation: &str, folder: &Path) -> PathBuf {
    let account = format!("stellage-region-{installation}-consoles");
    let account = region.kubeconfig(NAMESPACE, &account).await;
    let folder = folder.join("consoles");
    std::fs::create_dir(&folder).unwrap();
    let regions = [json!("nl-ams-1"), entry(REGION, &account, installation, PREFIX)];
    write_catalogue(&regions, &folder)
}

/// The entry of a region in the catalogue.
pub fn entry(code: &str, kubeconfig: &Path, installation: &str, prefix: &str) -> Value {
    json!({
        "code": code,
        "kubevirt": {
            "kubeconfig": kubeconfig,
            "installation": installation,
            "namespacePrefix": prefix,
            "storageClass": "disks",
            "snapshotClass": "snapshots",
            "images": {
                "debian-13": { "dataSource": "images/debian-13", "user": "debian" },
                "broken-1": { "http": "https://images.example.com/broken.qcow2", "user": "root" },
            },
            "network": {
                "profile": "pod",
                "nameservers": ["9.9.9.9"],
                "internalCidrs": ["10.244.0.0/16", "10.96.0.0/12"],
            },
            "softStopGrace": "4s",
        },
    })
}

pub fn write_catalogue(regions: &[Value], folder: &Path) -> PathBuf {
    let path = folder.join("regions.yaml");
    std::fs::write(&path, json!({ "regions": regions }).to_string()).unwrap();
    path
}

/// Gives the installation a service account in the region, with the rights of the region's chart, and returns its kubeconfig.
pub async fn region_rights(region: &Region, installation: &str, prefix: &str) -> PathBuf {
    let account = format!("stellage-region-{installation}");
    let exists = kubectl(&region.plane, &["create", "namespace", NAMESPACE], None);
    assert!(exists.is_ok() || exists.unwrap_err().contains("AlreadyExists"));
    let values = json!({
        "installation": installation, "namespacePrefix": prefix, "imageNamespaces": [], "token": { "create": false },
        "consoles": true,
    });
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "disks" },
        "provisioner": "example.com/disks", "allowVolumeExpansion": true,
    });
    let snapshots = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": { "name": "snapshots" },
        "driver": "example.com/disks", "deletionPolicy": "Delete",
    });
    for class in [class, snapshots] {
        let apply = ["apply", "--server-side", "-f", "-"];
        kubectl(&region.plane, &apply, Some(&class.to_string())).unwrap();
    }
    install_region(&region.plane, &account, NAMESPACE, &values).await;
    region.kubeconfig(NAMESPACE, &account).await
}

/// A tenant with a server in the region.
pub struct Case {
    pub region: Region,
    pub tenant: Tenant,
    /// Namespace of its servers.
    pub namespace: String,
}

impl Case {
    /// A new account on the shared installation.
    pub async fn new(name: &str) -> Self {
        let region = kubevirt::shared().await;
        let installation = shared(&region).await;
        let tenant = Tenant::on(&installation.plane, &installation.operator, name).await;
        Self {
            region,
            tenant,
            namespace: format!("{PREFIX}{name}"),
        }
    }

    /// A new account with a running server, and its id.
    pub async fn running(name: &str) -> (Self, String) {
        let case = Self::new(name).await;
        let id = case.create(json!({})).await;
        case.reaches(&id, InstanceState::Running).await;
        (case, id)
    }

    /// Orders a server, and returns its id.
    pub async fn create(&self, fields: Value) -> String {
        let mut body = json!({
            "name": "web", "region": REGION, "plan": "starter", "image": "debian-13",
            "ssh_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB5YzVvV0kYCBSmaVxIoZWnoCNHzfZ9oVx0bDNdPjNG+ ada"],
        });
        for (field, value) in fields.as_object().unwrap() {
            body[field] = value.clone();
        }
        let answer = self.tenant.call(Method::POST, "/v1/instances", Some(&body)).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text);
        answer.json()["data"]["id"].as_str().unwrap().to_owned()
    }

    pub async fn reaches(&self, id: &str, state: InstanceState) {
        self.tenant.wait_for_state(id, state).await;
    }

    /// Asks for an action, and waits until the instance is in this state and nothing is in progress.
    pub async fn act(&self, id: &str, action: &str, body: Option<&Value>, state: InstanceState) {
        self.ask(id, action, body).await;
        self.settles(id, state).await;
    }

    /// Asks for an action.
    pub async fn ask(&self, id: &str, action: &str, body: Option<&Value>) {
        let path = format!("/v1/instances/{id}/{action}");
        let answer = self.tenant.call(Method::POST, &path, body).await;
        assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.text);
    }

    /// Waits until the instance is in this state, as its spec asks, and nothing is in progress.
    pub async fn settles(&self, id: &str, state: InstanceState) {
        let settled = move |instance: Option<&resources::Instance>| {
            let Some(instance) = instance else { return false };
            let status = instance.status.as_ref();
            status.is_some_and(|status| {
                status.state == Some(state)
                    && status.operation.is_none()
                    && status.observed_generation == instance.metadata.generation
            })
        };
        self.tenant.wait(id, state.as_str(), settled).await;
    }

    pub async fn machines(&self) -> Api<DynamicObject> {
        self.region.api(&kinds::VM, &self.namespace).await
    }

    pub async fn runs(&self) -> Api<DynamicObject> {
        self.region.api(&kinds::RUN, &self.namespace).await
    }

    pub async fn disks(&self) -> Api<DynamicObject> {
        self.region.api(&kinds::DISK, &self.namespace).await
    }

    /// UID of the run of a server, which is on.
    pub async fn run(&self, id: &str) -> String {
        self.runs().await.get(id).await.unwrap().uid().unwrap()
    }

    /// Types of the events of the server so far.
    pub async fn events(&self, id: &str) -> Vec<String> {
        let path = format!("/v1/events?instance_id={id}&limit=100");
        let answer = self.tenant.call(Method::GET, &path, None).await;
        let mut types: Vec<String> = answer.json()["data"]
            .as_array()
            .unwrap_or_else(|| panic!("{}", answer.text))
            .iter()
            .map(|event| event["type"].as_str().unwrap().to_owned())
            .collect();
        types.reverse();
        types
    }

    /// Waits until the server has had these events.
    pub async fn tells(&self, id: &str, expected: &[&str]) {
        eventually(
            "the events",
            async || self.events(id).await,
            |types| types == expected,
        )
        .await;
    }
}
