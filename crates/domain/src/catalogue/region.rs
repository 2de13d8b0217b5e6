//! A region of the catalogue: simulated, or in a cluster with KubeVirt.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
    path::PathBuf,
    sync::Arc,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::provider::Deadlines;

/// A region of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Region code, such as `fr-par-1`.
    pub code: String,
    /// The cluster that runs its servers; `None` if they are simulated.
    pub kubevirt: Option<Arc<KubeVirt>>,
}

/// How the servers of a region run in a cluster with KubeVirt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeVirt {
    /// How the cluster is reached.
    pub cluster: Cluster,
    /// Value of the label `stellage.dev/installation` of everything in the cluster that is ours. It tells several installations in
    /// one cluster apart, and never changes.
    pub installation: String,
    /// What the names of the namespaces of servers begin with; the rest is that of the account's own namespace. It never changes.
    pub namespace_prefix: String,
    /// Who makes the namespaces of servers.
    pub namespaces: Namespaces,
    /// StorageClass of the disks.
    pub storage_class: String,
    /// VolumeSnapshotClass of backups; without it, the region offers no backups.
    pub snapshot_class: Option<String>,
    /// What can be installed, by image identifier.
    pub images: BTreeMap<String, Image>,
    /// How servers are reached.
    pub network: Network,
    /// Labels of the nodes that servers may run on; any node if empty.
    pub node_selector: BTreeMap<String, String>,
    /// What becomes of a server when its node is drained.
    pub eviction_strategy: EvictionStrategy,
    /// CPU model of the servers, such as `host-model`; the cluster's default if it is not set.
    pub cpu_model: Option<String>,
    /// How long operations may take, including the grace of a soft stop.
    pub deadlines: Deadlines,
    /// Number of calls to the cluster that may be in progress at once.
    pub calls_at_once: usize,
}

/// How a region's cluster is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cluster {
    /// It is the cluster that this process runs in; the Pod's ServiceAccount is used.
    InCluster,
    /// Through a kubeconfig file.
    Kubeconfig(PathBuf),
}

/// Who makes the namespaces of servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Namespaces {
    /// The provider makes and deletes them.
    #[default]
    Managed,
    /// The platform team does, together with the RoleBinding. Until it has, a creation fails.
    Existing,
}

/// Something that can be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Where its disk comes from.
    pub source: ImageSource,
    /// Login user of the image, who gets the SSH keys, such as `debian`.
    pub user: String,
    /// cloud-init user data that the image always needs, such as `packages: [qemu-guest-agent]`. What Stellage and the account holder
    /// set takes precedence over it.
    pub user_data: Option<String>,
    /// Whether the image reads a config drive rather than a `NoCloud` disk.
    pub config_drive: bool,
}

/// Where the disk of an image comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageSource {
    /// A DataSource of CDI, which a DataImportCron keeps up to date.
    DataSource(ObjectName),
    /// A VolumeSnapshot.
    Snapshot(ObjectName),
    /// A PersistentVolumeClaim.
    Pvc(ObjectName),
    /// A container image with a disk in it.
    Registry {
        /// URL that begins with `docker://`.
        url: String,
        /// Who pulls it.
        pull_method: PullMethod,
    },
    /// A disk image on a web server.
    Http {
        /// URL that begins with `https://` or `http://`.
        url: String,
        /// ConfigMap with the web server's CA, in the namespace of the server.
        cert_config_map: Option<String>,
    },
}

/// Who pulls a container image with a disk in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PullMethod {
    /// A Pod of CDI, anew for each server.
    #[default]
    Pod,
    /// The node, which keeps the image.
    Node,
}

/// Namespace and name of an object in the region's cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// How the servers of a region are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// How servers are attached to the network.
    pub profile: Profile,
    /// Public IPv4 addresses; none in the profile `pod`, whose addresses the cluster gives.
    pub ipv4: Vec<Ipv4Prefix>,
    /// Public IPv6 addresses; none in the profile `pod`.
    pub ipv6: Option<Ipv6Prefix>,
    /// Name servers of the servers.
    pub nameservers: Vec<IpAddr>,
    /// Prefixes that servers must not reach through the Pod network: those of Pods, Services, nodes, and management.
    pub internal_cidrs: Vec<IpNet>,
    /// How servers are attached to private networks.
    pub private_networks: PrivateNetworks,
    /// Whether the platform team says that something outside of KubeVirt stops servers from using the addresses of others. In the
    /// profile `bridge`, nothing inside does.
    pub anti_spoofing_external: bool,
}

/// How servers are attached to the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Profile {
    /// To the Pod network, behind the node's address.
    Pod,
    /// To a bridge on the nodes.
    Bridge {
        /// Its NetworkAttachmentDefinition.
        attachment: ObjectName,
    },
    /// To a subnet of kube-ovn.
    KubeOvn {
        /// The subnet.
        subnet: String,
        /// A NetworkAttachmentDefinition of the type kube-ovn; the Pod network if it is not set.
        attachment: Option<ObjectName>,
    },
}

/// Public IPv4 addresses of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv4Prefix {
    /// The prefix. Its first and last address are never given to a server, unless it is a /31 or /32.
    pub prefix: Ipv4Net,
    /// The gateway, never given to a server. It need not be in the prefix.
    pub gateway: Ipv4Addr,
    /// Further addresses that are never given to a server.
    pub exclude: Vec<RangeInclusive<Ipv4Addr>>,
}

/// Public IPv6 addresses of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv6Prefix {
    /// The prefix, a /64 or wider.
    pub prefix: Ipv6Net,
    /// The gateway, never given to a server, such as `fe80::1`.
    pub gateway: Ipv6Addr,
}

/// How servers are attached to private networks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrivateNetworks {
    /// There are none.
    #[default]
    None,
    /// Through a NetworkAttachmentDefinition of the network's name in the namespace of the server.
    Nad,
}

/// What becomes of a server when its node is drained; KubeVirt's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionStrategy {
    /// It is migrated if it can be, else shut down; Stellage starts it again elsewhere.
    #[default]
    LiveMigrateIfPossible,
    /// It is migrated. One that cannot be holds up the drain.
    LiveMigrate,
    /// It is shut down; Stellage starts it again elsewhere.
    None,
}

impl EvictionStrategy {
    /// Its name in a VirtualMachine.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LiveMigrateIfPossible => "LiveMigrateIfPossible",
            Self::LiveMigrate => "LiveMigrate",
            Self::None => "None",
        }
    }
}
