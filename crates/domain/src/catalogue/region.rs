//! A region of the catalogue: simulated, or in a cluster with KubeVirt.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
    path::PathBuf,
    sync::Arc,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

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
    /// The kubeconfig by which the cluster is reached.
    pub kubeconfig: PathBuf,
    /// Value of the label `stellage.dev/installation` of everything in the cluster that is ours. It tells several installations in
    /// one cluster apart, and never changes.
    pub installation: String,
    /// What the names of the namespaces of servers begin with; the rest is that of the account's own namespace. It never changes.
    pub namespace_prefix: String,
    /// Who makes the namespaces of servers.
    pub namespaces: Namespaces,
    /// StorageClass of the disks.
    pub storage_class: String,
    /// VolumeSnapshotClass of backups, which real servers do not have yet.
    pub snapshot_class: Option<String>,
    /// What can be installed, by image identifier.
    pub images: BTreeMap<String, Image>,
    /// How servers are reached.
    pub network: Network,
    /// Labels of the nodes that servers may run on; any node if empty.
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that do not keep servers away.
    pub tolerations: Vec<Toleration>,
    /// What becomes of a server when its node is drained.
    pub eviction_strategy: EvictionStrategy,
    /// CPU model of the servers, such as `host-model`; the cluster's default if it is not set.
    pub cpu_model: Option<String>,
    /// How long operations may take, including the grace of a soft stop.
    pub deadlines: Deadlines,
    /// Number of calls to the cluster that may be in progress at once.
    pub calls_at_once: usize,
    /// What knows the usage of the servers; nothing does if it is not set.
    pub usage: Option<UsageFrom>,
}

/// What knows the usage of the servers of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsageFrom {
    /// A Prometheus that scrapes virt-handler.
    Prometheus(Prometheus),
    /// The cluster's metrics.k8s.io: CPU usage as it is now, and nothing else.
    PodMetrics,
}

/// A server that speaks the HTTP API of Prometheus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prometheus {
    /// URL that `/api/v1/query` is below, without a slash at its end.
    pub url: String,
    /// File with a token, read again before each use.
    pub bearer_token_file: Option<PathBuf>,
    /// Headers of each request, such as `X-Scope-OrgID`.
    pub headers: BTreeMap<String, String>,
    /// File with the certificate authorities to trust instead of the system's.
    pub ca: Option<PathBuf>,
}

/// Who makes the namespaces of servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
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

impl Ipv4Prefix {
    /// Whether a server may have this address.
    pub fn serves(&self, address: Ipv4Addr) -> bool {
        self.prefix.contains(&address)
            && !self
                .reserved()
                .any(|(first, last)| (first..=last).contains(&u32::from(address)))
    }

    /// Number of addresses that servers may have.
    pub fn size(&self) -> u32 {
        let (network, broadcast) = (
            u32::from(self.prefix.network()),
            u32::from(self.prefix.broadcast()),
        );
        let mut reserved: Vec<_> = self.reserved().collect();
        reserved.sort_unstable();
        let (mut size, mut next) = (u64::from(broadcast - network) + 1, u64::from(network));
        for (first, last) in reserved {
            let (first, after) = (u64::from(first).max(next), u64::from(last) + 1);
            size -= after.saturating_sub(first);
            next = next.max(after);
        }
        u32::try_from(size).unwrap_or(u32::MAX)
    }

    /// What is never given to a server: the first and the last of each range, which may overlap.
    fn reserved(&self) -> impl Iterator<Item = (u32, u32)> {
        let (network, broadcast) = (self.prefix.network(), self.prefix.broadcast());
        let ends = [network, broadcast].map(|end| (self.prefix.prefix_len() < 31).then_some(end));
        let gateway = Some(self.gateway).filter(|gateway| self.prefix.contains(gateway));
        let alone = ends.into_iter().chain([gateway]).flatten();
        let excluded = self.exclude.iter().map(|range| (*range.start(), *range.end()));
        let all = alone.map(|address| (address, address)).chain(excluded);
        all.map(|(first, last)| (u32::from(first), u32::from(last)))
    }
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PrivateNetworks {
    /// There are none.
    #[default]
    None,
    /// Through a NetworkAttachmentDefinition that the platform team makes for each, with the network's name in the namespace of the
    /// account's servers. The network gives the addresses, by DHCP.
    Nad,
    /// Through one of these NetworkAttachmentDefinitions of the platform team, each of which is given to one network at a time.
    Pool(Vec<ObjectName>),
    /// Through a Vpc and a Subnet of kube-ovn, which are made for each.
    KubeOvn,
}

impl PrivateNetworks {
    /// Whether servers get the addresses there from Stellage. Otherwise the network gives them, and nobody tells which.
    pub const fn has_known_addresses(&self) -> bool {
        matches!(self, Self::Pool(_) | Self::KubeOvn)
    }
}

/// What becomes of a server when its node is drained; KubeVirt's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum EvictionStrategy {
    /// It is migrated if it can be, else shut down; Stellage starts it again elsewhere.
    #[default]
    LiveMigrateIfPossible,
    /// It is migrated. One that cannot be holds up the drain.
    LiveMigrate,
    /// It is shut down; Stellage starts it again elsewhere.
    None,
}

/// A taint of nodes that does not keep servers away, as in a Pod.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Toleration {
    /// The taint's key; any if it is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Whether the taint must have `value`.
    #[serde(default)]
    pub operator: TolerationOperator,
    /// The taint's value; empty if it is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What the taint does; anything if it is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
}

/// How the value of a taint is compared with that of a [`Toleration`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum TolerationOperator {
    /// They must be equal.
    #[default]
    Equal,
    /// The taint may have any value.
    Exists,
}

/// What a taint does to Pods that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum TaintEffect {
    /// They are not scheduled there.
    NoSchedule,
    /// They are scheduled there only if there is no other place.
    PreferNoSchedule,
    /// Nor may they stay there.
    NoExecute,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_broadcast_gateway_and_exclusions_are_not_for_servers() {
        let prefix = |prefix: &str, gateway: &str, exclude: &[(&str, &str)]| Ipv4Prefix {
            prefix: prefix.parse().unwrap(),
            gateway: gateway.parse().unwrap(),
            exclude: exclude
                .iter()
                .map(|(first, last)| first.parse().unwrap()..=last.parse().unwrap())
                .collect(),
        };
        let overlapping = [
            ("192.0.2.1", "192.0.2.4"),
            ("192.0.2.3", "192.0.2.6"),
            ("192.0.2.0", "192.0.2.0"),
        ];
        for (prefix, size) in [
            (prefix("192.0.2.0/28", "192.0.2.1", &[]), 13),
            (prefix("192.0.2.0/28", "169.254.1.1", &[]), 14),
            (prefix("192.0.2.0/28", "192.0.2.1", &overlapping), 8),
            (prefix("192.0.2.0/31", "10.0.0.1", &[]), 2),
            (prefix("192.0.2.7/32", "10.0.0.1", &[]), 1),
            (
                prefix("192.0.2.0/30", "192.0.2.1", &[("192.0.2.2", "192.0.2.2")]),
                0,
            ),
        ] {
            let served = prefix
                .prefix
                .hosts()
                .chain([prefix.prefix.network(), prefix.prefix.broadcast()]);
            let served: std::collections::HashSet<_> =
                served.filter(|address| prefix.serves(*address)).collect();
            assert_eq!((prefix.size(), served.len()), (size, size as usize), "{prefix:?}");
        }
    }
}
