//! The kinds of KubeVirt and of its importer of disks.

use std::sync::LazyLock;

use kube::api::{ApiResource, GroupVersionKind};

/// How servers get an interface in a network.
pub static NETWORK_ATTACHMENT: LazyLock<ApiResource> = LazyLock::new(|| {
    let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
    ApiResource::from_gvk_with_plural(&kind, "network-attachment-definitions")
});

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $group:literal $version:literal $kind:literal;)*) => {
        $($(#[$doc])* pub static $name: LazyLock<ApiResource> =
            LazyLock::new(|| ApiResource::from_gvk(&GroupVersionKind::gvk($group, $version, $kind)));)*
    };
}

kinds! {
    /// The installation of KubeVirt.
    KUBEVIRT = "kubevirt.io" "v1" "KubeVirt";
    VM = "kubevirt.io" "v1" "VirtualMachine";
    /// One run of a virtual machine, from power-on to power-off.
    RUN = "kubevirt.io" "v1" "VirtualMachineInstance";
    DISK = "cdi.kubevirt.io" "v1beta1" "DataVolume";
    VPC = "kubeovn.io" "v1" "Vpc";
    SUBNET = "kubeovn.io" "v1" "Subnet";
    /// The data of a backup.
    SNAPSHOT = "snapshot.storage.k8s.io" "v1" "VolumeSnapshot";
    SNAPSHOT_CONTENT = "snapshot.storage.k8s.io" "v1" "VolumeSnapshotContent";
}
