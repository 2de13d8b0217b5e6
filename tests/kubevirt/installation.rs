//! Stellage with a region in a cluster with KubeVirt, which is another cluster, and in which it has only the rights of the region's
//! chart.

use std::path::{Path, PathBuf};

use control_plane::Identity;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams},
};
use reqwest::{Method, StatusCode};
use resources::InstanceState;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::support::{
    Operator, OwnPlane, Tenant, eventually, gateway_url,
    kubevirt::{
        self, Region,
        entry::{self, NAMESPACE, PREFIX, REGION, catalogue},
        kinds,
    },
    own_plane, start_gateway,
};

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
        .get_or_init(async || {
            let mut installation = Installation::start(region, "shared").await;
            kubevirt::keep_permit_while_shared(&mut installation.plane);
            installation
        })
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

/// Writes a catalogue with the region for the console gateway, which has a service account of its own there.
async fn console_catalogue(region: &Region, installation: &str, folder: &Path) -> PathBuf {
    let account = format!("stellage-region-{installation}-consoles");
    let account = region.kubeconfig(NAMESPACE, &account).await;
    let folder = folder.join("consoles");
    std::fs::create_dir(&folder).unwrap();
    let regions = [
        json!("nl-ams-1"),
        entry::entry(REGION, &account, installation, PREFIX),
    ];
    entry::write_catalogue(&regions, &folder)
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
        let is_real = body["region"] == REGION;
        let says_minutes = answer.text.contains("takes about 2 to 3 minutes");
        assert!(says_minutes || !is_real, "{}", answer.text);
        answer.json()["data"]["id"].as_str().unwrap().to_owned()
    }

    /// Waits until the instance is in this state, and its owner reads that: REST may lag behind what Kubernetes shows.
    pub async fn reaches(&self, id: &str, state: InstanceState) {
        self.tenant.wait_for_state(id, state).await;
        self.shows(id, state.as_str(), |shown| shown["status"] == state.as_str())
            .await;
    }

    /// Waits until CDI cannot fill the disk of a server anew.
    pub async fn is_sealed(&self, id: &str) {
        let is_sealed = |instance: Option<&resources::Instance>| {
            let status = instance.and_then(|instance| instance.status.as_ref());
            status.is_some_and(|status| status.provider_state.contains_key("sealed"))
        };
        self.tenant.wait(id, "the seal of the disk", is_sealed).await;
    }

    /// Deletes the account, and waits until the namespace of its servers is gone.
    pub async fn delete_account(&self) {
        let accounts: Api<resources::Account> = Api::all(self.tenant.kube.clone());
        accounts
            .delete(&self.tenant.namespace, &DeleteParams::default())
            .await
            .unwrap();
        let client = self.region.plane.client(Identity::Admin).await.unwrap();
        let namespaces: Api<Namespace> = Api::all(client);
        let left = async || namespaces.get_opt(&self.namespace).await.unwrap();
        eventually("the namespace to go", left, Option::is_none).await;
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

    /// Waits until its owner reads this of the instance, and returns what they read: REST may lag behind what Kubernetes shows.
    pub async fn shows(&self, id: &str, what: &str, is_shown: impl Fn(&Value) -> bool) -> Value {
        let path = format!("/v1/instances/{id}");
        let shown = async || self.tenant.call(Method::GET, &path, None).await.json()["data"].clone();
        eventually(what, shown, is_shown).await
    }

    /// Waits until its owner reads this reason.
    pub async fn shows_reason(&self, id: &str, reason: &str) {
        self.shows(id, reason, |shown| shown["status_reason"] == reason)
            .await;
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

    /// The first disk of the account's servers.
    pub async fn disk(&self) -> DynamicObject {
        let all = self.disks().await.list(&ListParams::default()).await.unwrap();
        all.items.into_iter().next().unwrap()
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
