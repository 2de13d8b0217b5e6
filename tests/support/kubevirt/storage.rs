//! Storage with snapshots: external-provisioner and external-snapshotter, with a CSI driver that keeps each volume and each snapshot in a
//! folder (control-plane/tools/driver). It serves the claims of its own classes; those of others are the puppet's.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use control_plane::{ControlPlane, Daemon, Identity};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::{eventually, kubectl};

/// Its StorageClass.
pub const VOLUMES: &str = "volumes";
/// Another one, whose volumes are kept when their claims are deleted.
pub const RETAINED: &str = "retained-volumes";
/// Its VolumeSnapshotClass.
pub const SNAPSHOTS: &str = "snapshots";
/// As the driver calls itself.
pub(super) const DRIVER: &str = "folders.example.com";

/// What goes wrong with the snapshots of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// None is made: `no space left in the pool`.
    Refuse,
    /// It takes until this no longer holds to cut one.
    Dawdle,
    /// They are cut, and not ready until this no longer holds.
    Upload,
    /// Those that are deleted are kept: `the backup target is offline`.
    Hold,
}

impl Order {
    const fn word(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Dawdle => "dawdle",
            Self::Upload => "upload",
            Self::Hold => "hold",
        }
    }
}

/// The driver with its controllers. Dropping it ends all processes.
pub struct Storage {
    daemons: Mutex<Vec<Daemon>>,
    folder: PathBuf,
}

impl Storage {
    /// Starts it, and waits until its controllers of snapshots have read the cluster: a cut that comes late is a weaker one.
    pub(super) async fn start(plane: &ControlPlane) -> Self {
        let programs = tokio::task::spawn_blocking(|| control_plane::storage(|line| eprintln!("{line}")));
        let programs = programs.await.unwrap().unwrap();
        let folder = plane.folder().join("storage");
        fs::create_dir(&folder).unwrap();
        let socket = folder.join("csi.sock");
        let spawn = |name: &str, arguments: &[&str]| {
            let mut command = Command::new(programs.join(name));
            command.args(arguments);
            let log = plane.folder().join(format!("{name}.log"));
            Daemon::spawn(name, command, plane.group(), &log).unwrap()
        };
        let driver = spawn(
            "csi-driver",
            &[&socket.display().to_string(), &folder.display().to_string()],
        );
        eventually("the driver", async || socket.exists(), |is| *is).await;
        let address = format!("--csi-address={}", socket.display());
        let kubeconfig = plane.kubeconfig(Identity::Admin);
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        let of_all = [
            &*kubeconfig,
            "--retry-interval-start=100ms",
            "--retry-interval-max=1s",
            // The default limits would slow down the tests.
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        ];
        let provisioner = spawn("csi-provisioner", &[&of_all[..], &[&*address]].concat());
        // A deletion that is ordered while the storage is asked again after a refusal is seen only then: by default, after up to 15 minutes.
        let of_snapshots = [&of_all[..], &["--resync-period=10s"]].concat();
        let snapshotter = [&of_snapshots[..], &[&*address, "--extra-create-metadata"]].concat();
        let snapshotter = spawn("csi-snapshotter", &snapshotter);
        let controller = spawn("snapshot-controller", &of_snapshots);
        until_snapshots_are_served(plane).await;
        Self {
            daemons: Mutex::new(vec![driver, provisioner, snapshotter, controller]),
            folder,
        }
    }

    /// Fails the test if a process has ended by itself.
    pub(super) fn assert_runs(&self) {
        for daemon in &mut *self.daemons.lock() {
            let ended = daemon.exited();
            assert!(
                ended.is_none(),
                "{} {ended:?}: {}",
                daemon.name(),
                daemon.log_tail()
            );
        }
    }

    /// From now on, this happens to the snapshots of a namespace; nothing goes wrong with `None`.
    pub fn order(&self, namespace: &str, order: Option<Order>) {
        let path = self.folder.join("orders").join(namespace);
        let Some(order) = order else {
            fs::remove_file(path).expect("something was ordered");
            return;
        };
        // At once: the driver may read it at any time.
        let new = self.folder.join(format!("order-for-{namespace}"));
        fs::write(&new, order.word()).unwrap();
        fs::rename(new, path).unwrap();
    }

    /// Names of the volumes: those of their PersistentVolumes.
    pub fn volumes(&self) -> Vec<String> {
        names(&self.folder.join("volumes"))
    }

    /// What is on a volume.
    pub fn read(&self, volume: &str) -> String {
        fs::read_to_string(self.disk(volume)).unwrap()
    }

    /// Writes to a volume, as its guest would.
    pub fn write(&self, volume: &str, text: &str) {
        fs::write(self.disk(volume), text).unwrap();
    }

    fn disk(&self, volume: &str) -> PathBuf {
        self.folder.join("volumes").join(volume).join("disk")
    }

    /// Loses the snapshots that were made of volumes in this namespace.
    pub fn lose(&self, namespace: &str) {
        for snapshot in self.snapshots(namespace) {
            fs::remove_dir_all(snapshot).unwrap();
        }
    }

    /// Folders of the snapshots that were made of volumes in this namespace.
    pub fn snapshots(&self, namespace: &str) -> Vec<PathBuf> {
        let folder = self.folder.join("snapshots");
        let all = names(&folder).into_iter().map(|name| folder.join(name));
        let is_its = |snapshot: &PathBuf| {
            // One that goes at this moment is gone.
            let about = fs::read(snapshot.join("about")).unwrap_or_default();
            let about: Value = serde_json::from_slice(&about).unwrap_or_default();
            about["namespace"] == namespace
        };
        all.filter(is_its).collect()
    }
}

/// Gives both controllers of snapshots something to do that needs no volume: a snapshot that was made before.
async fn until_snapshots_are_served(plane: &ControlPlane) {
    let content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "metadata": { "name": "probe" },
        "spec": {
            "driver": DRIVER, "deletionPolicy": "Retain", "source": { "snapshotHandle": "probe" },
            "volumeSnapshotRef": { "namespace": "default", "name": "probe" },
        },
    });
    let snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": { "namespace": "default", "name": "probe" },
        "spec": { "source": { "volumeSnapshotContentName": "probe" } },
    });
    let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [content, snapshot] }).to_string();
    kubectl(plane, "create -f -", Some(&objects)).unwrap();
    let read = "get volumesnapshot/probe -o jsonpath={.status.readyToUse}";
    let is_ready = async || kubectl(plane, read, None).unwrap();
    eventually("snapshots to be served", is_ready, |is_ready| is_ready == "true").await;
    kubectl(
        plane,
        "delete volumesnapshot/probe volumesnapshotcontent/probe --timeout=1m",
        None,
    )
    .unwrap();
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !name.starts_with('.')).collect()
}

/// Whether it serves the claims of this StorageClass.
pub(super) fn has_class(name: &str) -> bool {
    [VOLUMES, RETAINED].contains(&name)
}

/// Its classes.
pub fn classes() -> [Value; 3] {
    [
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": VOLUMES },
            "provisioner": DRIVER, "allowVolumeExpansion": true,
        }),
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": RETAINED },
            "provisioner": DRIVER, "allowVolumeExpansion": true, "reclaimPolicy": "Retain",
        }),
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": { "name": SNAPSHOTS },
            "driver": DRIVER, "deletionPolicy": "Delete",
        }),
    ]
}
