//! A region in a catalogue, and what its cluster permits to Stellage: what the region's chart grants.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{
    super::{helm::install_region, kubectl},
    KubeVirt, storage,
};

/// The region that the catalogue maps to KubeVirt; `nl-ams-1` beside it is simulated. It has no class of snapshots.
pub const REGION: &str = "de-fra-1";
/// Another one in the same cluster, whose storage makes snapshots: [`KubeVirt::storage`] starts it.
pub const BACKED: &str = "de-ber-1";
/// What the names of the namespaces of its servers begin with.
pub const BACKED_PREFIX: &str = "backed-";
/// What the names of the namespaces of servers begin with.
pub const PREFIX: &str = "real-";
/// Namespace of its service account in the region.
pub const NAMESPACE: &str = "stellage";

/// Writes a catalogue with the regions.
pub async fn catalogue(region: &KubeVirt, installation: &str, folder: &Path) -> PathBuf {
    let account = region_rights(region, installation, PREFIX).await;
    let of_backed = format!("{installation}-backed");
    let rights = region_rights(region, &of_backed, BACKED_PREFIX).await;
    let mut backed = entry(BACKED, &rights, &of_backed, BACKED_PREFIX);
    backed["kubevirt"]["storageClass"] = storage::VOLUMES.into();
    backed["kubevirt"]["snapshotClass"] = storage::SNAPSHOTS.into();
    let regions = [
        json!("nl-ams-1"),
        entry(REGION, &account, installation, PREFIX),
        backed,
    ];
    write_catalogue(&regions, folder)
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
pub async fn region_rights(region: &KubeVirt, installation: &str, prefix: &str) -> PathBuf {
    region_rights_with(region, installation, prefix, &json!({})).await
}

/// The same with further values of the chart.
pub async fn region_rights_with(
    region: &KubeVirt,
    installation: &str,
    prefix: &str,
    further: &Value,
) -> PathBuf {
    let account = format!("stellage-region-{installation}");
    let exists = kubectl(&region.plane, &format!("create namespace {NAMESPACE}"), None);
    assert!(exists.is_ok() || exists.unwrap_err().contains("AlreadyExists"));
    let mut values = json!({
        "installation": installation, "namespacePrefix": prefix, "imageNamespaces": [], "token": { "create": false },
        "consoles": true,
    });
    for (name, value) in further.as_object().unwrap() {
        values[name] = value.clone();
    }
    let played = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "disks" },
        "provisioner": "example.com/disks", "allowVolumeExpansion": true,
    });
    for class in storage::classes().into_iter().chain([played]) {
        let apply = "apply --server-side -f -";
        kubectl(&region.plane, apply, Some(&class.to_string())).unwrap();
    }
    install_region(&region.plane, &account, NAMESPACE, &values).await;
    region.kubeconfig(NAMESPACE, &account).await
}
