//! A region in a catalogue, and what its cluster permits to Stellage: what the region's chart grants.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::{
    super::{helm::install_region, kubectl},
    KubeVirt,
};

/// The region that the catalogue maps to KubeVirt; `nl-ams-1` beside it is simulated.
pub const REGION: &str = "de-fra-1";
/// What the names of the namespaces of servers begin with.
pub const PREFIX: &str = "real-";
/// Namespace of its service account in the region.
const NAMESPACE: &str = "stellage";

/// Writes a catalogue with the region.
pub async fn catalogue(region: &KubeVirt, installation: &str, folder: &Path) -> PathBuf {
    let account = region_rights(region, installation).await;
    let catalogue = json!({
        "regions": ["nl-ams-1", {
            "code": REGION,
            "kubevirt": {
                "kubeconfig": account,
                "installation": installation,
                "namespacePrefix": PREFIX,
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
        }],
    });
    let path = folder.join("regions.yaml");
    std::fs::write(&path, catalogue.to_string()).unwrap();
    path
}

/// Gives the installation a service account in the region, with the rights of the region's chart, and returns its kubeconfig.
async fn region_rights(region: &KubeVirt, installation: &str) -> PathBuf {
    let account = format!("stellage-region-{installation}");
    let exists = kubectl(&region.plane, &["create", "namespace", NAMESPACE], None);
    assert!(exists.is_ok() || exists.unwrap_err().contains("AlreadyExists"));
    let values = json!({
        "installation": installation, "namespacePrefix": PREFIX, "imageNamespaces": [], "token": { "create": false },
    });
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "disks" },
        "provisioner": "example.com/disks", "allowVolumeExpansion": true,
    });
    kubectl(
        &region.plane,
        &["apply", "--server-side", "-f", "-"],
        Some(&class.to_string()),
    )
    .unwrap();
    install_region(&region.plane, &account, NAMESPACE, &values).await;
    region.kubeconfig(NAMESPACE, &account).await
}
