//! What is read of KubeVirt's and CDI's objects: only what is used, because there are tens of thousands of them in memory.

use std::{borrow::Cow, collections::BTreeMap};

use jiff::Timestamp;
use k8s_openapi::{
    NamespaceResourceScope,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::Resource;
use serde::{Deserialize, Deserializer, de::IgnoredAny};

use super::names::{BACKUP_UID, BOOT, CONSISTENCY, INSTANCE, IPV4, IPV6, NETWORK_UID, RUN, Snapshot};

/// When a virtual machine is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum RunStrategy {
    /// Always. KubeVirt also writes it by itself, instead of `Halted`, if it finds a request to start left over from a crash.
    Always,
    /// Once it is started, until its guest shuts down. What Stellage means by on.
    RerunOnFailure,
    /// Never. What Stellage means by off.
    Halted,
    /// Another one, which Stellage does not use.
    #[serde(other)]
    Other,
}

impl RunStrategy {
    /// Its name in a virtual machine; of others, something that none has.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::RerunOnFailure => "RerunOnFailure",
            Self::Halted => "Halted",
            Self::Other => "",
        }
    }
}

/// A condition of a KubeVirt or CDI object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// What it is about.
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, in one word.
    pub reason: Option<String>,
    /// Why, for the operator of the cluster.
    pub message: Option<String>,
    /// Since when. Many conditions do not say.
    pub last_transition_time: Option<Timestamp>,
}

impl Condition {
    /// Whether the condition is `True`.
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }

    /// Whether its reason is this one.
    pub fn is_because(&self, reason: &str) -> bool {
        self.reason.as_deref() == Some(reason)
    }
}

/// The condition of this type.
fn find<'a>(conditions: &'a [Condition], r#type: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.r#type == r#type)
}

/// `kubevirt.io/v1 VirtualMachine`: a server as it is wanted.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachine {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What is wanted.
    pub spec: VmSpec,
    /// What virt-controller says.
    pub status: VmStatus,
}

/// The used part of a virtual machine's `spec`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VmSpec {
    /// When it is to run.
    pub run_strategy: Option<RunStrategy>,
    /// What its runs are made from.
    pub template: Template,
}

/// The used part of a virtual machine's `spec.template`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Template {
    /// The `spec` of its runs.
    pub spec: TemplateSpec,
}

/// The used part of a virtual machine's `spec.template.spec`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TemplateSpec {
    /// The guest's host name.
    pub hostname: Option<String>,
    /// Keys of the labels of the nodes that it may run on.
    #[serde(deserialize_with = "keys")]
    pub node_selector: Vec<String>,
    /// The virtual hardware.
    pub domain: Domain,
    /// Disks.
    pub volumes: Vec<Volume>,
}

/// The keys of a map.
fn keys<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let map: Option<BTreeMap<String, String>> = Option::deserialize(deserializer)?;
    Ok(map.into_iter().flatten().map(|(key, _)| key).collect())
}

/// The used part of the virtual hardware.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Domain {
    /// Processors.
    pub cpu: Cpu,
    /// Memory.
    pub memory: Memory,
}

/// The used part of the virtual processors.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Cpu {
    /// Number of sockets, each with one core.
    pub sockets: Option<i32>,
}

/// The used part of the virtual memory.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// What the guest sees, such as `4Gi`.
    pub guest: Option<String>,
}

/// A disk of a virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    /// The disk's name in the virtual machine.
    pub name: String,
    /// The `DataVolume` that it is.
    pub data_volume: Option<Reference>,
    /// That it shows the cloud-init data as a config drive.
    pub cloud_init_config_drive: Option<IgnoredAny>,
}

/// A reference by name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Reference {
    /// The name.
    pub name: String,
}

/// The used part of a virtual machine's `status`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VmStatus {
    /// Whether virt-controller sees a run of it.
    pub created: bool,
    /// The `runStrategy` that virt-controller has last acted on; none before the first run.
    pub run_strategy: Option<RunStrategy>,
    /// A summary for people. Used for messages, never to tell whether it is on.
    pub printable_status: Option<String>,
    /// The generation of the spec that its last run was made from.
    pub observed_generation: Option<i64>,
    /// What virt-controller still has to do.
    pub state_change_requests: Vec<StateChangeRequest>,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// Something that virt-controller still has to do.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct StateChangeRequest {
    /// `Start` or `Stop`.
    pub action: String,
}

impl VirtualMachine {
    /// An annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// A label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    /// Whether it is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether the first of the change requests, the only one that virt-controller looks at, is a start.
    pub fn is_start_requested(&self) -> bool {
        let first = self.status.state_change_requests.first();
        first.is_some_and(|request| request.action == "Start")
    }

    /// The condition of this type.
    pub fn condition(&self, r#type: &str) -> Option<&Condition> {
        find(&self.status.conditions, r#type)
    }

    /// Name of the `DataVolume` with the root disk.
    pub fn disk(&self) -> Option<&str> {
        let mut volumes = self.spec.template.spec.volumes.iter();
        let disk = volumes.find_map(|volume| volume.data_volume.as_ref())?;
        Some(&disk.name)
    }

    /// Whether the cloud-init data is a config drive.
    pub fn has_config_drive(&self) -> bool {
        let mut volumes = self.spec.template.spec.volumes.iter();
        volumes.any(|volume| volume.cloud_init_config_drive.is_some())
    }

    /// Takes out what is not used, before it is kept in memory.
    pub fn prune(&mut self) {
        prune(&mut self.metadata);
        let used = ["Failure", "RestartRequired", "ManualRecoveryRequired"];
        self.status
            .conditions
            .retain(|condition| used.contains(&condition.r#type.as_str()));
        self.status.state_change_requests.truncate(1);
        self.status.conditions.shrink_to_fit();
        self.status.state_change_requests.shrink_to_fit();
        self.spec.template.spec.volumes.shrink_to_fit();
    }
}

/// Where a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Phase {
    /// It waits for its disks.
    Pending,
    /// It waits for a node.
    Scheduling,
    /// It waits for its node.
    Scheduled,
    /// The guest runs.
    Running,
    /// The guest has shut down, or was told to.
    Succeeded,
    /// The guest has crashed, or was killed.
    Failed,
    /// Not known; at the very beginning, or while its node is silent.
    #[default]
    #[serde(other)]
    Unknown,
}

/// `kubevirt.io/v1 VirtualMachineInstance`: a run of a server, from power-on to power-off.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachineInstance {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What it was made from.
    pub spec: VmiSpec,
    /// What virt-controller and virt-handler say.
    pub status: VmiStatus,
}

/// The used part of a run's `spec`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VmiSpec {
    /// How long the guest may take to shut down.
    pub termination_grace_period_seconds: Option<i64>,
}

/// The used part of a run's `status`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VmiStatus {
    /// Where it is.
    pub phase: Phase,
    /// When it came to which phase.
    pub phase_transition_timestamps: Vec<PhaseTransition>,
    /// Its node.
    pub node_name: Option<String>,
    /// Network interfaces.
    pub interfaces: Vec<Interface>,
    /// The migration in progress, or the last one.
    pub migration_state: Option<MigrationState>,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// A phase that a run has come to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PhaseTransition {
    /// The phase.
    pub phase: Phase,
    /// When.
    pub phase_transition_timestamp: Option<Timestamp>,
}

/// A network interface of a run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Interface {
    /// Name in the virtual machine.
    pub name: Option<String>,
    /// All addresses.
    pub ip_addresses: Vec<String>,
    /// The first address.
    pub ip_address: Option<String>,
}

/// A live migration.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationState {
    /// Whether it has ended.
    pub completed: bool,
}

impl VirtualMachineInstance {
    /// An annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Its UID.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Whether it is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether it has ended.
    pub const fn is_final(&self) -> bool {
        matches!(self.status.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Whether its guest runs, and nothing has been done to end that.
    pub fn is_running(&self) -> bool {
        self.status.phase == Phase::Running && !self.is_deleting()
    }

    /// When its guest began to run, if that is known.
    pub fn running_since(&self) -> Option<Timestamp> {
        let mut transitions = self.status.phase_transition_timestamps.iter();
        let running = transitions.find(|transition| transition.phase == Phase::Running)?;
        running.phase_transition_timestamp
    }

    /// Whether it is a run of this virtual machine, not of one of the same name that is gone.
    pub fn is_run_of(&self, vm: &VirtualMachine) -> bool {
        let mut owners = self.metadata.owner_references.iter().flatten();
        owners.any(|owner| Some(&owner.uid) == vm.metadata.uid.as_ref())
    }

    /// Whether it is being migrated to another node.
    pub fn is_migrating(&self) -> bool {
        let state = self.status.migration_state.as_ref();
        state.is_some_and(|state| !state.completed)
    }

    /// The condition of this type.
    pub fn condition(&self, r#type: &str) -> Option<&Condition> {
        find(&self.status.conditions, r#type)
    }

    /// Whether there is an agent in its guest that answers.
    pub fn has_agent(&self) -> bool {
        self.condition("AgentConnected").is_some_and(Condition::is_true)
    }

    /// Takes out what is not used, before it is kept in memory.
    pub fn prune(&mut self) {
        prune(&mut self.metadata);
        let used = [
            "Ready",
            "Paused",
            "Synchronized",
            "PodScheduled",
            "AgentConnected",
        ];
        self.status
            .conditions
            .retain(|condition| used.contains(&condition.r#type.as_str()));
        self.status
            .phase_transition_timestamps
            .retain(|transition| transition.phase == Phase::Running);
        self.status.conditions.shrink_to_fit();
        self.status.phase_transition_timestamps.shrink_to_fit();
        self.status.interfaces.shrink_to_fit();
    }
}

/// `cdi.kubevirt.io/v1beta1 DataVolume`: a disk, and what it is filled from.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DataVolume {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What CDI says.
    pub status: DataVolumeStatus,
}

/// The used part of a disk's `status`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DataVolumeStatus {
    /// CDI's name of where it is.
    pub phase: Option<String>,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

impl DataVolume {
    /// Its name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// A label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    /// CDI's name of where it is; empty if CDI has not seen it yet.
    pub fn phase(&self) -> &str {
        self.status.phase.as_deref().unwrap_or_default()
    }

    /// The condition of this type.
    pub fn condition(&self, r#type: &str) -> Option<&Condition> {
        find(&self.status.conditions, r#type)
    }
}

/// `snapshot.storage.k8s.io/v1 VolumeSnapshot`: the data of a backup.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeSnapshot {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What the storage says.
    pub status: SnapshotStatus,
}

/// The used part of a snapshot's `status`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotStatus {
    /// The VolumeSnapshotContent that has the data.
    pub bound_volume_snapshot_content_name: Option<String>,
    /// The time from which its data is. The data itself may still be copied.
    pub creation_time: Option<Timestamp>,
    /// Whether it can be restored.
    pub ready_to_use: Option<bool>,
    /// What went wrong last.
    pub error: Option<SnapshotError>,
}

/// What went wrong with a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SnapshotError {
    /// For the operator of the cluster.
    pub message: Option<String>,
}

impl VolumeSnapshot {
    /// Whether it is that of the Backup whose data is to be here.
    pub fn is_of(&self, snapshot: &Snapshot) -> bool {
        let labels = self.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get(BACKUP_UID)) == Some(&snapshot.uid)
    }

    /// Whether it can be restored.
    pub fn is_ready(&self) -> bool {
        self.status.ready_to_use == Some(true) && self.metadata.deletion_timestamp.is_none()
    }

    /// What went wrong last.
    pub fn error(&self) -> Option<&str> {
        let error = self.status.error.as_ref()?;
        Some(error.message.as_deref().unwrap_or("an error without a message"))
    }

    /// When it was first cut, in seconds since 1970.
    pub fn cut_at(&self) -> Option<i64> {
        Some(self.status.creation_time?.as_second())
    }

    /// What the guest knew of it.
    pub fn consistency(&self) -> Option<&str> {
        let annotations = self.metadata.annotations.as_ref()?;
        annotations.get(CONSISTENCY).map(String::as_str)
    }
}

/// `snapshot.storage.k8s.io/v1 VolumeSnapshotContent`: what the storage has of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeSnapshotContent {
    /// Where its data is from.
    pub spec: SnapshotContentSpec,
    /// What the storage says.
    pub status: SnapshotContentStatus,
}

/// The used part of a snapshot content's `spec`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SnapshotContentSpec {
    /// A volume, or a snapshot that was made before.
    pub source: SnapshotContentSource,
}

/// The used part of a snapshot content's `spec.source`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotContentSource {
    /// The snapshot, if it was made before.
    pub snapshot_handle: Option<String>,
}

/// The used part of a snapshot content's `status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotContentStatus {
    /// The time from which the data is, in nanoseconds since 1970.
    pub creation_time: Option<i64>,
}

impl VolumeSnapshotContent {
    /// Whether its data is what the snapshot was cut with, not with a later cut. What was imported is never cut again.
    pub fn holds(&self, snapshot: &VolumeSnapshot) -> bool {
        let cut_at = self
            .status
            .creation_time
            .map(|nanoseconds| nanoseconds.div_euclid(1_000_000_000));
        self.spec.source.snapshot_handle.is_some() || cut_at == snapshot.cut_at()
    }
}

/// `snapshot.storage.k8s.io/v1 VolumeSnapshotClass`: how snapshots are made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotClass {
    /// The CSI driver.
    pub driver: String,
    /// What becomes of the data when a snapshot is deleted: `Delete` or `Retain`.
    pub deletion_policy: String,
}

/// `k8s.cni.cncf.io/v1 NetworkAttachmentDefinition`: how servers get an interface in a network.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NetworkAttachment {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What CNI is told.
    pub spec: NetworkAttachmentSpec,
}

/// The used part of a network attachment's `spec`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NetworkAttachmentSpec {
    /// CNI's configuration, in JSON.
    pub config: String,
}

impl NetworkAttachment {
    /// Its name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
}

/// `kubeovn.io/v1 Subnet`, without a namespace: a network, and who may be in it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Subnet {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What is wanted.
    pub spec: SubnetSpec,
    /// What kube-ovn says.
    pub status: SubnetStatus,
}

/// The used part of a Subnet's `spec`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubnetSpec {
    /// The Vpc that it is in.
    pub vpc: String,
    /// Its prefix.
    pub cidr_block: String,
    /// The attachment that it is for.
    pub provider: String,
    /// Whether other Subnets are kept out.
    pub private: bool,
    /// Whether its servers get out with the address of a node.
    pub nat_outgoing: bool,
}

/// The used part of a Subnet's `status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SubnetStatus {
    /// Whether servers can be in it, and what is wrong.
    pub conditions: Vec<Condition>,
}

impl Subnet {
    /// Whether servers can be in it.
    pub fn is_ready(&self) -> bool {
        find(&self.status.conditions, "Ready").is_some_and(Condition::is_true)
    }

    /// What kube-ovn finds wrong with it.
    pub fn error(&self) -> Option<&str> {
        let error = find(&self.status.conditions, "Error").filter(|error| error.is_true())?;
        Some(error.message.as_deref().unwrap_or("an error without a message"))
    }
}

/// The UID of the `PrivateNetwork` that an object is part of.
pub fn network_of(metadata: &ObjectMeta) -> Option<&str> {
    metadata.labels.as_ref()?.get(NETWORK_UID).map(String::as_str)
}

/// Leaves of the metadata only what is used.
fn prune(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    metadata.finalizers = None;
    metadata.generate_name = None;
    metadata.self_link = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|key, _| [INSTANCE, RUN, BOOT, IPV4, IPV6].contains(&key.as_str()));
    }
    if let Some(labels) = &mut metadata.labels {
        labels.retain(|key, _| key.starts_with("stellage.dev/"));
    }
    for owner in metadata.owner_references.iter_mut().flatten() {
        *owner = OwnerReference {
            uid: std::mem::take(&mut owner.uid),
            ..OwnerReference::default()
        };
    }
}

macro_rules! resource {
    ($type:ty, $group:literal, $version:literal, $kind:literal, $plural:literal) => {
        impl Resource for $type {
            type DynamicType = ();
            type Scope = NamespaceResourceScope;

            fn kind((): &()) -> Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> Cow<'_, str> {
                $version.into()
            }

            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

resource!(
    VirtualMachine,
    "kubevirt.io",
    "v1",
    "VirtualMachine",
    "virtualmachines"
);
resource!(
    VirtualMachineInstance,
    "kubevirt.io",
    "v1",
    "VirtualMachineInstance",
    "virtualmachineinstances"
);
resource!(
    DataVolume,
    "cdi.kubevirt.io",
    "v1beta1",
    "DataVolume",
    "datavolumes"
);
