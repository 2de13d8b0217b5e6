//! A disk that is backed up, deleted and restored, to see whether the snapshots of a region can be relied upon: with the rights and the
//! kinds of objects of the servers of customers.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{ACCOUNT, account, remove_namespace};
use crate::{
    ipam::Ipam,
    kubevirt::{
        cluster::{self, Cluster, ConnectError, Context},
        names::{self, BACKUP_UID, DISK, INSTANCE_UID, Server, labels},
        objects::{gibibytes, namespace, role_binding},
        plan::{Action, Answer, Kind, says},
    },
};
use domain::catalogue::region::{KubeVirt, Namespaces};
use runtime::Metrics;

/// How often what is waited for is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// Sizes of the disk, and of the one that it is restored to, in GiB.
const SIZES: [i32; 2] = [1, 2];
/// CDI's annotation that has a claim bound although no server uses it.
const BIND: &str = "cdi.kubevirt.io/storage.bind.immediate.requested";

/// How far a test of the storage got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A disk is being made.
    Disk,
    /// A snapshot of it is being made.
    Snapshot,
    /// The disk is being deleted, with its volume.
    Deletion,
    /// The snapshot is being restored to a larger disk.
    Restore,
}

/// A test of the storage of a region.
pub struct StorageTrial {
    cluster: Cluster,
    settings: Arc<KubeVirt>,
    server: Server,
    account: String,
    /// What is being done.
    pub stage: Stage,
    /// What the cluster said last of why that takes time.
    pub words: Option<String>,
    /// The PersistentVolumes of the disks that have been deleted, those that are not known to be gone.
    pub volumes: BTreeSet<String>,
    /// Those that stay, since they have the reclaimPolicy `Retain`.
    pub retained: BTreeSet<String>,
    shutdown: CancellationToken,
}

impl StorageTrial {
    /// Connects the region's cluster. `uid` is to be a new UUID.
    pub async fn begin(code: &str, settings: &Arc<KubeVirt>, uid: &str) -> Result<Self, ConnectError> {
        let account = account(settings, uid);
        let shutdown = CancellationToken::new();
        let context = Context {
            instances: Arc::default(),
            metrics: Metrics::new(),
            ipam: Arc::new(Ipam::new(code, Vec::new(), None)),
            gone: Arc::default(),
            shutdown: shutdown.clone(),
            only: Some(format!("{INSTANCE_UID}={uid}")),
        };
        let config = cluster::config(&settings.kubeconfig).await?;
        Ok(Self {
            cluster: Cluster::connect(code, settings, config, context)?,
            settings: settings.clone(),
            server: Server {
                namespace: names::namespace(&settings.namespace_prefix, &account),
                name: format!("{ACCOUNT}-storage"),
                uid: uid.to_owned(),
            },
            account,
            stage: Stage::Disk,
            words: None,
            volumes: BTreeSet::new(),
            retained: BTreeSet::new(),
            shutdown,
        })
    }

    /// Where all of it is.
    pub fn namespace(&self) -> &str {
        &self.server.namespace
    }

    /// Makes a disk and a snapshot of it, deletes the disk, and restores the snapshot. Tells of each stage. Goes on for ever if
    /// something is not done; an error is what the cluster says against it.
    pub async fn run(&mut self, class: &str, mut tell: impl FnMut(Stage) + Send) -> Result<(), String> {
        let [first, second] = ["first", "second"].map(|suffix| format!("{}-{suffix}", self.server.name));
        tell(self.stage);
        self.make_namespace().await?;
        let blank = self.disk(&first, SIZES[0], &json!({ "blank": {} }));
        self.make(Kind::DataVolume, blank).await?;
        self.filled(&first).await;
        self.enter(Stage::Snapshot, &mut tell);
        let snapshot = self.snapshot(class, &first);
        self.make(Kind::Snapshot, snapshot).await?;
        self.ready().await;
        self.enter(Stage::Deletion, &mut tell);
        self.delete_claims().await;
        self.wait_for_volumes().await?;
        self.enter(Stage::Restore, &mut tell);
        self.ready().await;
        let source = json!({ "snapshot": { "namespace": self.server.namespace, "name": self.server.name } });
        let restored = self.disk(&second, SIZES[1], &source);
        self.make(Kind::DataVolume, restored).await?;
        self.filled(&second).await;
        Ok(())
    }

    /// Deletes all of it, and waits until nothing is left but the volumes that the storage is told to keep.
    pub async fn remove(&mut self) {
        loop {
            match self.answer(&Action::get(Kind::Snapshot, &self.server.name)).await {
                Some(Answer::Snapshot(found)) if found.metadata.deletion_timestamp.is_none() => {
                    let delete = Action::delete(Kind::Snapshot, &found.metadata);
                    self.answer(&delete).await;
                }
                Some(Answer::Refused(gone)) if matches!(gone.status, 403 | 404) => break,
                _ => {}
            }
            sleep(EVERY).await;
        }
        self.delete_claims().await;
        if self.settings.namespaces != Namespaces::Existing {
            let (cluster, namespace) = (&self.cluster, &self.server.namespace);
            while !remove_namespace(cluster, &self.account, namespace, Timestamp::now())
                .await
                .unwrap_or_default()
            {
                sleep(EVERY).await;
            }
        }
        // Last, since the storage may take long. Without a right to look at them, they stay in `volumes`.
        let _ = self.wait_for_volumes().await;
    }

    fn enter(&mut self, stage: Stage, tell: &mut (impl FnMut(Stage) + Send)) {
        self.stage = stage;
        self.words = None;
        tell(stage);
    }

    async fn make_namespace(&mut self) -> Result<(), String> {
        if self.settings.namespaces == Namespaces::Existing {
            return Ok(());
        }
        let user = self.cluster.user().await.map_err(|error| error.to_string())?;
        let name = &self.server.namespace;
        let binding = role_binding(&self.settings, ACCOUNT, name, &user);
        let namespace = namespace(&self.settings, ACCOUNT, name);
        self.make(Kind::Namespace, namespace).await?;
        self.make(Kind::RoleBinding, binding).await
    }

    fn labels(&self) -> Value {
        json!(labels(&self.settings, ACCOUNT, &self.server))
    }

    fn disk(&self, name: &str, size_gb: i32, source: &Value) -> Value {
        let mut labels = self.labels();
        labels[DISK] = self.server.suffix(name).into();
        json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "metadata": {
                "name": name, "namespace": self.server.namespace, "labels": labels,
                "annotations": { BIND: "true", names::DELETE_AFTER_COMPLETION: "false" },
            },
            "spec": {
                "source": source,
                "storage": {
                    "storageClassName": self.settings.storage_class,
                    "resources": { "requests": { "storage": gibibytes(size_gb) } },
                },
            },
        })
    }

    fn snapshot(&self, class: &str, disk: &str) -> Value {
        let mut labels = self.labels();
        labels[BACKUP_UID] = self.server.uid.as_str().into();
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": { "name": self.server.name, "namespace": self.server.namespace, "labels": labels },
            "spec": {
                "volumeSnapshotClassName": class,
                "source": { "persistentVolumeClaimName": disk },
            },
        })
    }

    /// Makes a call. What fails is noted.
    async fn answer(&mut self, action: &Action) -> Option<Answer> {
        match self.cluster.call(&self.server.namespace, action).await {
            Ok(answer) => {
                if let Answer::Refused(refusal) = &answer {
                    self.words = Some(says(refusal));
                }
                Some(answer)
            }
            Err(error) => {
                self.words = Some(error.to_string());
                None
            }
        }
    }

    /// Creates an object. It takes the API server a moment to learn of new rights.
    async fn make(&mut self, kind: Kind, object: Value) -> Result<(), String> {
        let post = Action::Post { kind, object };
        loop {
            match self.answer(&post).await {
                Some(Answer::Refused(refusal)) => match refusal.status {
                    409 => return Ok(()),
                    403 if refusal.message.contains(" cannot ") => {}
                    429 | 500.. => {}
                    _ => return Err(says(&refusal)),
                },
                Some(_) => return Ok(()),
                None => {}
            }
            sleep(EVERY).await;
        }
    }

    /// Waits until a disk is filled.
    async fn filled(&mut self, name: &str) {
        let look = Action::get(Kind::DataVolume, name);
        loop {
            if let Some(Answer::DataVolume(disk)) = self.answer(&look).await {
                if disk.phase() == "Succeeded" {
                    return;
                }
                let conditions = disk.status.conditions.iter();
                let messages = conditions.filter_map(|condition| condition.message.as_deref());
                let messages: Vec<&str> = messages.filter(|message| !message.is_empty()).collect();
                self.words = Some(format!("{} {}", disk.phase(), messages.join("; ")));
            }
            sleep(EVERY).await;
        }
    }

    /// Waits until the snapshot is ready.
    async fn ready(&mut self) {
        let look = Action::get(Kind::Snapshot, &self.server.name);
        loop {
            if let Some(Answer::Snapshot(snapshot)) = self.answer(&look).await {
                if snapshot.is_ready() {
                    return;
                }
                self.words = snapshot.error().map(str::to_owned);
            }
            sleep(EVERY).await;
        }
    }

    /// Waits until the volumes of the deleted disks are gone. A claim may go although its volume cannot be deleted, since there is a
    /// snapshot of it.
    async fn wait_for_volumes(&mut self) -> Result<(), String> {
        while let Some(name) = self.volumes.first().cloned() {
            if self.wait_for_volume(&name).await? {
                self.retained.insert(name.clone());
            }
            self.volumes.remove(&name);
        }
        Ok(())
    }

    /// Waits until a volume is gone, or the storage is known to keep it. Returns whether it is kept.
    async fn wait_for_volume(&mut self, name: &str) -> Result<bool, String> {
        let look = Action::get(Kind::PersistentVolume, name);
        loop {
            match self.answer(&look).await {
                Some(Answer::PersistentVolume(volume)) => {
                    let policy = volume.spec.unwrap_or_default().persistent_volume_reclaim_policy;
                    if policy.as_deref() == Some("Retain") {
                        return Ok(true);
                    }
                    let status = volume.status.unwrap_or_default();
                    let (phase, message) = (
                        status.phase.unwrap_or_default(),
                        status.message.unwrap_or_default(),
                    );
                    self.words = Some(format!("PersistentVolume {name}: {phase} {message}"));
                }
                Some(Answer::Refused(gone)) if gone.status == 404 => return Ok(false),
                Some(Answer::Refused(refusal)) if refusal.status == 403 => return Err(says(&refusal)),
                _ => {}
            }
            sleep(EVERY).await;
        }
    }

    async fn delete_claims(&mut self) {
        let selector = self.server.selector();
        let delete = Action::DeleteAll {
            kind: Kind::DataVolume,
            selector: selector.clone(),
        };
        let list = Action::list(Kind::Claim, selector);
        let mut is_asked = false;
        loop {
            match self.answer(&list).await {
                Some(Answer::Claims(claims)) if claims.is_empty() && is_asked => return,
                Some(Answer::Claims(claims)) => {
                    let names = claims.into_iter().filter_map(|claim| claim.spec?.volume_name);
                    self.volumes.extend(names);
                }
                // Rights and all else are gone with the namespace.
                Some(Answer::Refused(gone)) if gone.status == 403 => return,
                _ => {}
            }
            self.answer(&delete).await;
            if std::mem::replace(&mut is_asked, true) {
                sleep(EVERY).await;
            }
        }
    }
}

impl Drop for StorageTrial {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}
