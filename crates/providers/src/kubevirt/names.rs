//! Names, labels and annotations of what a server consists of in its region, and the identity of an operation there.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use domain::catalogue::region::KubeVirt;
use resources::{Backup, Instance, Operation, PrivateNetwork, origin};

/// Label: what manages an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`], and the field manager of writes.
pub const STELLAGE: &str = "stellage";
/// Label: the installation of Stellage that an object belongs to.
pub const INSTALLATION: &str = "stellage.dev/installation";
/// Label: public id of the account. Not its namespace's label, by which the operator knows the namespaces of accounts.
pub const ACCOUNT: &str = "stellage.dev/account-id";
/// Label: the UID that the Instance was first created with.
pub const INSTANCE_UID: &str = "stellage.dev/instance-uid";
/// Label of snapshots: the UID that the Backup was first created with.
pub const BACKUP_UID: &str = "stellage.dev/backup-uid";
/// Label of what a private network consists of: the UID that the `PrivateNetwork` was first created with.
pub const NETWORK_UID: &str = "stellage.dev/network-uid";
/// Label of `DataVolumes`, and so of their claims, and of Secrets: which disk of the server it is, or belongs to.
pub const DISK: &str = "stellage.dev/disk";

/// Annotation, for people: namespace and name of the Instance.
pub const INSTANCE: &str = "stellage.dev/instance";
/// Annotation: the `runStrategy` that Stellage wrote last. If `spec` has another one, somebody else has changed it.
pub const RUN: &str = "stellage.dev/run";
/// Annotation of the virtual machine and of its template, so of each run as well: the operation that powered it on last ([`boot`]).
pub const BOOT: &str = "stellage.dev/boot";
/// Annotation, for people: what was installed.
pub const INSTALLED: &str = "stellage.dev/installed";
/// Annotation: the server's IPv4 address.
pub const IPV4: &str = "stellage.dev/ipv4";
/// Annotation: the server's IPv6 address.
pub const IPV6: &str = "stellage.dev/ipv6";
/// Annotation of snapshots: what the guest knew of it, `agent`, `crash` or `off`.
pub const CONSISTENCY: &str = "stellage.dev/consistency";
/// CDI's annotation that keeps it from filling a lost claim of a finished `DataVolume` anew, from the image.
pub const PREPOPULATED: &str = "cdi.kubevirt.io/storage.prePopulated";
/// CDI's annotation that keeps it from deleting a finished `DataVolume`.
pub const DELETE_AFTER_COMPLETION: &str = "cdi.kubevirt.io/storage.deleteAfterCompletion";
/// KubeVirt's label of the launchers of a run: its UID.
pub const CREATED_BY: &str = "kubevirt.io/created-by";

/// Longest name of a namespace.
const MAX_LABEL: usize = 63;

/// Where the server of an Instance is in its region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Namespace of all its objects.
    pub namespace: String,
    /// Name of its virtual machine, and the beginning of the other names: the Instance's public id.
    pub name: String,
    /// The UID that the Instance was first created with.
    pub uid: String,
}

impl Server {
    /// Where the server of this Instance is.
    pub fn of(instance: &Instance, region: &KubeVirt) -> Self {
        let account = instance.metadata.namespace.as_deref().unwrap_or_default();
        Self {
            namespace: namespace(&region.namespace_prefix, account),
            name: instance.id(),
            uid: origin::uid(&instance.metadata).to_owned(),
        }
    }

    /// Name of the disk that an operation makes, and of its Secret. The same operation finds the same disk, another one makes another.
    pub fn disk(&self, operation: &Operation) -> String {
        format!("{}-{}", self.name, disk_hash(operation))
    }

    /// Selects all disks or Secrets of the server.
    pub fn selector(&self) -> String {
        format!("{INSTANCE_UID}={}", self.uid)
    }

    /// Selects what belongs to the disk of this name.
    pub fn selector_of(&self, disk: &str) -> String {
        format!("{},{DISK}={}", self.selector(), self.suffix(disk))
    }

    /// What comes after the server's name in the name of a disk: its label.
    pub fn suffix<'a>(&self, name: &'a str) -> &'a str {
        let suffix = name.strip_prefix(self.name.as_str());
        suffix.and_then(|suffix| suffix.strip_prefix('-')).unwrap_or(name)
    }

    /// A MAC address that stays the same over the life of the server.
    pub fn mac(&self, interface: &str) -> String {
        let digest = digest(&[&self.uid, interface]);
        let bytes = digest.iter().take(5).map(|byte| format!(":{byte:02x}"));
        format!("02{}", bytes.collect::<String>())
    }
}

/// Where the data of a Backup is in its region: a `VolumeSnapshot`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its namespace, which is that of the account's servers.
    pub namespace: String,
    /// Its name: that which REST would give to the Backup.
    pub name: String,
    /// The UID that the Backup was first created with.
    pub uid: String,
}

impl Snapshot {
    /// Where the data of this Backup is.
    pub fn of(backup: &Backup, region: &KubeVirt) -> Self {
        let account = backup.metadata.namespace.as_deref().unwrap_or_default();
        Self {
            namespace: namespace(&region.namespace_prefix, account),
            name: backup.id().replace('_', "-"),
            uid: origin::uid(&backup.metadata).to_owned(),
        }
    }
}

/// Where a private network is in its region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkNames {
    /// The namespace of the account's servers.
    pub namespace: String,
    /// Name of its `NetworkAttachmentDefinition` there: that of the `PrivateNetwork`.
    pub attachment: String,
    /// Name of its Vpc, which no other network is in, so that nothing leads from one network to another.
    pub vpc: String,
    /// Name of its Subnet.
    pub subnet: String,
    /// The UID that the `PrivateNetwork` was first created with.
    pub uid: String,
}

impl NetworkNames {
    /// Where this network is.
    pub fn of(network: &PrivateNetwork, region: &KubeVirt) -> Self {
        let account = network.metadata.namespace.as_deref().unwrap_or_default();
        let uid = origin::uid(&network.metadata);
        // Vpcs and Subnets have no namespace, and kube-ovn wants different names for the two.
        let hash = hex(&[&region.installation, uid], 16);
        Self {
            namespace: namespace(&region.namespace_prefix, account),
            attachment: network.metadata.name.clone().unwrap_or_default(),
            vpc: format!("stellage-vpc-{hash}"),
            subnet: format!("stellage-pn-{hash}"),
            uid: uid.to_owned(),
        }
    }

    /// What kube-ovn knows the attachment by, and the Subnet that is for it.
    pub fn provider(&self) -> String {
        format!("{}.{}.ovn", self.attachment, self.namespace)
    }

    /// Selects what the network consists of.
    pub fn selector(&self) -> String {
        format!("{NETWORK_UID}={}", self.uid)
    }
}

/// The namespace of an account's servers in a region.
pub fn namespace(prefix: &str, account: &str) -> String {
    let name = format!("{prefix}{account}");
    if name.len() <= MAX_LABEL {
        return name;
    }
    let hash = hex(&[account], 8);
    let room = MAX_LABEL - prefix.len().min(MAX_LABEL) - hash.len() - 1;
    let begin: String = account.chars().take(room.min(40)).collect();
    format!("{prefix}{begin}-{hash}")
}

/// The identity of an operation in its region, which is the value of [`BOOT`]: `<kind>/<startedAt>/<hash>`. The hash can differ for
/// one kind and time only in a creation that is repeated with another plan or image.
pub fn boot(operation: &Operation) -> String {
    let parts = [
        operation.plan.as_str(),
        &operation.image,
        operation.restore_from.as_deref().unwrap_or_default(),
    ];
    let hash = hex(&parts, 6);
    format!("{}/{}/{hash}", operation.kind.as_str(), operation.started_at)
}

/// Which disk of the server an operation makes: the value of [`DISK`].
pub fn disk_hash(operation: &Operation) -> String {
    let started_at = operation.started_at.to_string();
    let parts = [
        started_at.as_str(),
        &operation.image,
        operation.restore_from.as_deref().unwrap_or_default(),
    ];
    hex(&parts, 10)
}

/// Labels of everything that belongs to an account.
pub fn account_labels(region: &KubeVirt, account_uid: &str) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        (MANAGED_BY, STELLAGE.to_owned()),
        (INSTALLATION, region.installation.clone()),
        (ACCOUNT, account_uid.to_owned()),
    ])
}

/// Labels of everything that belongs to a server.
pub fn labels(region: &KubeVirt, account_uid: &str, server: &Server) -> BTreeMap<&'static str, String> {
    let mut labels = account_labels(region, account_uid);
    labels.insert(INSTANCE_UID, server.uid.clone());
    labels
}

/// Labels of everything that a private network consists of.
pub fn network_labels(
    region: &KubeVirt,
    account_uid: &str,
    network: &NetworkNames,
) -> BTreeMap<&'static str, String> {
    let mut labels = account_labels(region, account_uid);
    labels.insert(NETWORK_UID, network.uid.clone());
    labels
}

/// Labels of a run. virt-handler exports each of them as a label of its metrics, so they are few.
pub fn run_labels(region: &KubeVirt, server: &Server) -> Value {
    json!({ INSTALLATION: region.installation, INSTANCE_UID: server.uid })
}

/// The first digits of the hash of these parts.
pub fn hex(parts: &[&str], digits: usize) -> String {
    let mut all = hex::encode(digest(parts));
    all.truncate(digits);
    all
}

fn digest(parts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
        // No part contains it, so no two lists of parts are hashed alike.
        hash.update([0]);
    }
    hash.finalize().into()
}
