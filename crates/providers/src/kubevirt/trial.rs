//! A server that is made without an Instance, to see whether a region works: with the same planner, the same objects and the same rights
//! as the servers of customers. [`storage`] does the same with a disk and its backup.

pub mod storage;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    cluster::{self, Cluster, ConnectError, Context},
    names::{INSTANCE_UID, Server},
};
use crate::{Step, ipam::Ipam};
use domain::{
    catalogue::region::{KubeVirt, Namespaces, Profile},
    provider::{Observation, ProviderError},
    user_data::UserData,
};
use resources::{Instance, Operation, OperationKind, Plan, PowerState};
use runtime::Metrics;

/// What stands for the account in names and labels.
const ACCOUNT: &str = "doctor";
/// Lets the agent be there even if the image has none.
const USER_DATA: &str = "#cloud-config
packages: [qemu-guest-agent]
runcmd:
  - [systemctl, enable, --now, qemu-guest-agent]
";

/// A server for a test.
pub struct Trial {
    cluster: Cluster,
    instance: Instance,
    server: Server,
    user_data: Option<UserData>,
    is_managed: bool,
    shutdown: CancellationToken,
}

impl Trial {
    /// Connects the region's cluster. The server is made by [`step`](Self::step). `uid` is to be a new UUID.
    pub async fn begin(
        code: &str,
        settings: &Arc<KubeVirt>,
        (image, plan): (&str, Plan),
        uid: &str,
        now: Timestamp,
    ) -> Result<Self, ConnectError> {
        let is_managed = settings.namespaces == Namespaces::Managed;
        let account = account(settings, uid);
        let mut instance: Instance = serde_json::from_value(json!({
            "apiVersion": "stellage.dev/v1", "kind": "Instance",
            "metadata": { "name": ACCOUNT, "namespace": account, "uid": uid, "creationTimestamp": now },
            "spec": { "plan": plan, "region": code, "image": image },
            "status": {},
        }))
        .map_err(kube::Error::SerdeError)?;
        let server = Server::of(&instance, settings);
        order(&mut instance, OperationKind::Create, now);
        let shutdown = CancellationToken::new();
        let context = Context {
            instances: Arc::default(),
            metrics: Metrics::new(),
            ipam: Arc::new(Ipam::new(
                code,
                settings.network.ipv4.clone(),
                settings.network.ipv6.clone(),
            )),
            gone: Arc::default(),
            shutdown: shutdown.clone(),
            // The addresses of all others are taken; without addresses, the others do not matter.
            only: (settings.network.profile == Profile::Pod).then(|| format!("{INSTANCE_UID}={uid}")),
        };
        Ok(Self {
            cluster: Cluster::connect(
                code,
                settings,
                cluster::config(&settings.kubeconfig).await?,
                context,
            )?,
            instance,
            server,
            user_data: UserData::parse(USER_DATA.as_bytes()).ok(),
            is_managed,
            shutdown,
        })
    }

    /// Namespace and name of the server in the region.
    pub fn place(&self) -> (&str, &str) {
        (&self.server.namespace, &self.server.name)
    }

    /// What is missing until the region is reached.
    pub fn waits_for(&self) -> Vec<String> {
        self.cluster.waits_for()
    }

    /// Goes on with the creation, or with the deletion if that was asked for. Returns also what the cluster itself says of trouble.
    pub async fn step(&mut self, now: Timestamp) -> (Result<Observation, ProviderError>, Option<String>) {
        let step = Step {
            instance: &self.instance,
            account: ACCOUNT,
            user_data: Ok(self.user_data.as_ref()),
            restore: None,
            network: None,
            now,
        };
        let mut words = None;
        let outcome = self.cluster.steps(step, &mut words).await;
        if let (Ok(observation), Some(status)) = (&outcome, &mut self.instance.status) {
            status.provider_state.clone_from(&observation.state);
        }
        (outcome, words)
    }

    /// Whether the agent in the guest answers.
    pub async fn has_agent(&self) -> bool {
        self.cluster.has_agent(&self.server).await.unwrap_or_default()
    }

    /// From now on, the steps delete it.
    pub fn delete(&mut self, now: Timestamp) {
        order(&mut self.instance, OperationKind::Delete, now);
    }

    /// Removes its namespace, once it is deleted. Returns whether nothing is left.
    pub async fn remove_namespace(&self, now: Timestamp) -> Result<bool, ProviderError> {
        if !self.is_managed {
            return Ok(true);
        }
        let account = self.instance.metadata.namespace.as_deref().unwrap_or_default();
        remove_namespace(&self.cluster, account, &self.server.namespace, now).await
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Removes the namespace of an account. Returns whether it is gone.
async fn remove_namespace(
    cluster: &Cluster,
    account: &str,
    namespace: &str,
    now: Timestamp,
) -> Result<bool, ProviderError> {
    cluster.forget_account(account, ACCOUNT, now).await?;
    Ok(cluster.is_namespace_gone(namespace).await.unwrap_or_default())
}

/// What the account is called in names. Where others make the namespaces, it is always the same.
fn account(settings: &KubeVirt, uid: &str) -> String {
    let is_managed = settings.namespaces == Namespaces::Managed;
    match uid.get(..8).filter(|_| is_managed) {
        Some(begin) => format!("{ACCOUNT}-{begin}"),
        None => ACCOUNT.to_owned(),
    }
}

fn order(instance: &mut Instance, kind: OperationKind, now: Timestamp) {
    let operation = Operation {
        kind,
        started_at: now,
        counted_from: None,
        ends_in: if kind == OperationKind::Create {
            PowerState::Running
        } else {
            PowerState::Stopped
        },
        plan: instance.spec.plan,
        image: instance.spec.image.clone(),
        restore_from: None,
        forced: false,
        traceparent: None,
    };
    instance.status.get_or_insert_default().operation = Some(operation);
}
