//! What to do next about a server in a cluster with KubeVirt: a pure function of the Instance, and of what is known of its region.
//!
//! A step of the provider is a loop around [`plan()`]: carry out the [`Action`] of the [`Plan`], hand the [`Answer`] to
//! [`Seen::take`], and plan again, until there is no action or no time left; then report the outcome. If a call has no answer, the step
//! fails, and the next one begins anew: whatever it finds, it continues.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ipnet::Ipv4Net;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde_json::Value;

use super::{
    names::{BOOT, CREATED_BY, INSTANCE_UID, NetworkNames, RUN, Server, Snapshot, boot},
    namespace::{Obstacle, ServerNamespace},
    objects::{
        Attachment, Boot, Fill, Maker, clear_requests_patch, grow_patch, hostname, plan_patch, run_patch,
        seal_patch, undo_boot_patch,
    },
    observe::{self, Problem, Sign, boot_sign, disk_sign, is, is_over, plan_of, remember, set, state},
    slim::{
        DataVolume, NetworkAttachment, Phase, RunStrategy, Subnet, VirtualMachine, VirtualMachineInstance,
        VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent, network_of,
    },
};
use domain::{
    catalogue::region::{Image, KubeVirt, ObjectName, PrivateNetworks, Profile},
    provider::{Addresses, Notice, Observation, OffCause, Power, Progress, ProviderError, Trouble},
    user_data::UserData,
};
use resources::{Instance, InstanceStatus, Operation, OperationKind, PowerState};

/// When to look again if something happens within moments.
const SOON: Duration = Duration::from_secs(1);
/// When to look again if the watches will tell of it first.
const WAIT: Duration = Duration::from_secs(30);
/// How soon to look again at what nothing watches, at first and later.
const POLL: Duration = Duration::from_secs(2);
const POLL_AT_MOST: Duration = Duration::from_secs(10);
/// How often a step tries again what came too late.
const MAX_CONFLICTS: u8 = 3;
/// After how long CDI no longer fills a disk that it has not seen.
const FORGOTTEN: SignedDuration = SignedDuration::from_mins(5);
/// How long to wait for the address of a running server.
const ADDRESS_WITHIN: SignedDuration = SignedDuration::from_secs(20);
/// What the provider reports if a region's cluster does not do something that it could.
pub(super) const NOT_NOW: &str = "the region's cluster cannot do this at the moment";
/// Seconds after which a private network counts as missing that is still being made.
const NETWORK_WITHIN: i64 = 60;
/// What passes within this time is not told.
const BLIP: SignedDuration = SignedDuration::from_secs(30);

/// A kind of object in a region's cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `v1 Namespace`, without a namespace.
    Namespace,
    /// `rbac.authorization.k8s.io/v1 RoleBinding`.
    RoleBinding,
    /// `networking.k8s.io/v1 NetworkPolicy`.
    NetworkPolicy,
    /// `v1 Secret`; it may neither be read nor listed.
    Secret,
    /// `cdi.kubevirt.io/v1beta1 DataVolume`.
    DataVolume,
    /// `kubevirt.io/v1 VirtualMachine`.
    VirtualMachine,
    /// `kubevirt.io/v1 VirtualMachineInstance`.
    Run,
    /// `v1 PersistentVolumeClaim`.
    Claim,
    /// `v1 Pod`.
    Pod,
    /// `k8s.cni.cncf.io/v1 NetworkAttachmentDefinition`.
    NetworkAttachment,
    /// `kubeovn.io/v1 Vpc`, without a namespace.
    Vpc,
    /// `kubeovn.io/v1 Subnet`, without a namespace.
    Subnet,
    /// `snapshot.storage.k8s.io/v1 VolumeSnapshot`.
    Snapshot,
    /// `snapshot.storage.k8s.io/v1 VolumeSnapshotContent`, without a namespace.
    SnapshotContent,
    /// `snapshot.storage.k8s.io/v1 VolumeSnapshotClass`, without a namespace.
    SnapshotClass,
    /// `v1 PersistentVolume`, without a namespace.
    PersistentVolume,
}

impl Kind {
    /// Group, version, and the name in paths.
    pub const fn path(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Namespace => ("", "v1", "namespaces"),
            Self::RoleBinding => ("rbac.authorization.k8s.io", "v1", "rolebindings"),
            Self::NetworkPolicy => ("networking.k8s.io", "v1", "networkpolicies"),
            Self::Secret => ("", "v1", "secrets"),
            Self::DataVolume => ("cdi.kubevirt.io", "v1beta1", "datavolumes"),
            Self::VirtualMachine => ("kubevirt.io", "v1", "virtualmachines"),
            Self::Run => ("kubevirt.io", "v1", "virtualmachineinstances"),
            Self::Claim => ("", "v1", "persistentvolumeclaims"),
            Self::Pod => ("", "v1", "pods"),
            Self::NetworkAttachment => ("k8s.cni.cncf.io", "v1", "network-attachment-definitions"),
            Self::Vpc => ("kubeovn.io", "v1", "vpcs"),
            Self::Subnet => ("kubeovn.io", "v1", "subnets"),
            Self::Snapshot => ("snapshot.storage.k8s.io", "v1", "volumesnapshots"),
            Self::SnapshotContent => ("snapshot.storage.k8s.io", "v1", "volumesnapshotcontents"),
            Self::SnapshotClass => ("snapshot.storage.k8s.io", "v1", "volumesnapshotclasses"),
            Self::PersistentVolume => ("", "v1", "persistentvolumes"),
        }
    }
}

/// A call to the region's cluster. All are in the namespace of [`Server`], but for those about kinds without one.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Create an object.
    Post {
        /// Its kind.
        kind: Kind,
        /// The object, with apiVersion, kind, name and namespace.
        object: Value,
    },
    /// Create an object, or set the fields that it has, by server-side apply. If they are so already, nothing is written.
    Apply {
        /// Its kind.
        kind: Kind,
        /// The object, with apiVersion, kind, name and namespace.
        object: Value,
    },
    /// Read an object.
    Get {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: String,
    },
    /// List objects by label.
    List {
        /// Their kind.
        kind: Kind,
        /// The label selector.
        selector: String,
    },
    /// Change an object by a merge patch.
    Patch {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: String,
        /// The merge patch. That of a virtual machine has its UID and resourceVersion, so a change that comes late is refused.
        patch: Value,
        /// Whether to ask only if it would be done.
        dry_run: bool,
    },
    /// Change the status of a virtual machine by a JSON patch: take away the requests to start it.
    ClearRequests {
        /// The virtual machine's name.
        name: String,
        /// The JSON patch.
        patch: Value,
    },
    /// `PUT /apis/subresources.kubevirt.io/v1/namespaces/…/virtualmachines/…/stop` with `{"gracePeriod": 0}`: end the run of a virtual
    /// machine at once.
    Stop {
        /// The virtual machine's name.
        name: String,
    },
    /// `PUT /apis/subresources.kubevirt.io/v1/namespaces/…/virtualmachineinstances/…/freeze`: have the agent in the guest write all to
    /// the disks, and hold still until [`Thaw`](Self::Thaw), or half a minute.
    Freeze {
        /// The run's name.
        name: String,
    },
    /// `PUT …/unfreeze`: let the guest go on. Nobody waits for it: KubeVirt does the same by itself.
    Thaw {
        /// The run's name.
        name: String,
    },
    /// Delete an object, in the background.
    Delete {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: String,
        /// Its UID, as precondition.
        uid: String,
    },
    /// Delete objects by label. The answer, which may have secrets in it, is not to be read.
    DeleteAll {
        /// Their kind.
        kind: Kind,
        /// The label selector.
        selector: String,
    },
    /// The same in a namespace of the platform team, which the catalogue names.
    In {
        /// The namespace.
        namespace: String,
        /// The call.
        action: Box<Action>,
    },
}

impl Action {
    /// Reads an object.
    pub(super) fn get(kind: Kind, name: &str) -> Self {
        let name = name.to_owned();
        Self::Get { kind, name }
    }

    /// Lists objects by label.
    pub(super) const fn list(kind: Kind, selector: String) -> Self {
        Self::List { kind, selector }
    }

    /// Changes an object.
    pub(super) fn patch(kind: Kind, name: &str, patch: Value) -> Self {
        Self::Patch {
            kind,
            name: name.to_owned(),
            patch,
            dry_run: false,
        }
    }

    /// Deletes the object with this metadata.
    pub(super) fn delete(kind: Kind, metadata: &ObjectMeta) -> Self {
        Self::Delete {
            kind,
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
        }
    }
}

/// What the region's cluster has answered to an [`Action`].
#[derive(Clone, Debug)]
pub enum Answer {
    /// A virtual machine: created, read or changed.
    VirtualMachine(Arc<VirtualMachine>),
    /// A run.
    Run(Arc<VirtualMachineInstance>),
    /// A disk.
    DataVolume(DataVolume),
    /// A list of disks.
    DataVolumes(Vec<DataVolume>),
    /// A snapshot: created, read or changed.
    Snapshot(VolumeSnapshot),
    /// What the storage has of a snapshot.
    SnapshotContent(VolumeSnapshotContent),
    /// How snapshots are made.
    SnapshotClass(VolumeSnapshotClass),
    /// What the storage has of a disk.
    PersistentVolume(Box<PersistentVolume>),
    /// A network attachment: created, read or changed.
    Attachment(NetworkAttachment),
    /// A list of network attachments.
    Attachments(Vec<NetworkAttachment>),
    /// A subnet of kube-ovn.
    Subnet(Subnet),
    /// Another object.
    Object(ObjectMeta),
    /// A list of claims.
    Claims(Vec<PersistentVolumeClaim>),
    /// A list of Pods.
    Pods(Vec<Pod>),
    /// It is accepted, and there is nothing more to know.
    Done,
    /// It is refused.
    Refused(Refusal),
}

/// The region's cluster does not do something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// The reason, such as `AlreadyExists`.
    pub reason: String,
    /// The text. It is for the operator: it may name nodes and storage.
    pub message: String,
}

/// The calls so far, and their answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls(Vec<(Action, Answer)>);

impl Calls {
    /// From the last to the first.
    pub(super) fn rev(&self) -> impl Iterator<Item = &(Action, Answer)> {
        self.0.iter().rev()
    }

    /// What this call was last answered with.
    pub(super) fn answer(&self, action: &Action) -> Option<&Answer> {
        self.rev()
            .find_map(|(asked, answer)| (asked == action).then_some(answer))
    }

    pub(super) fn push(&mut self, action: Action, answer: Answer) {
        self.0.push((action, answer));
    }

    /// Forgets what was asked before there were rights.
    pub(super) fn forget_forbidden(&mut self) {
        self.0
            .retain(|(_, answer)| !matches!(answer, Answer::Refused(refusal) if refusal.status == 403));
    }
}

/// What is known while one call is made after the other.
pub(super) trait Conversation {
    fn calls(&self) -> &Calls;

    /// Takes note of an answer.
    fn take(&mut self, action: Action, answer: Answer);
}

/// Whether what is known of a region is up to date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Both stores have seen a full list, and both watches are alive.
    Live,
    /// Something of this is missing, since then.
    Cut(Timestamp),
}

/// A private network that a server is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Where it is.
    pub names: NetworkNames,
    /// Whether servers can be attached to it.
    pub is_ready: bool,
    /// The address of the server there, with the length of the prefix, where Stellage gives it.
    pub address: Option<Ipv4Net>,
}

/// The namespaces that attachments of the platform team are in, each once.
pub(super) fn namespaces_of(pool: &[ObjectName]) -> Vec<&str> {
    let mut all: Vec<&str> = Vec::new();
    for ObjectName { namespace, .. } in pool {
        if !all.contains(&namespace.as_str()) {
            all.push(namespace);
        }
    }
    all
}

/// The call that lists the attachments of a namespace.
pub(super) fn list_attachments(namespace: &str, selector: String) -> Action {
    Action::In {
        namespace: namespace.to_owned(),
        action: Box::new(Action::list(Kind::NetworkAttachment, selector)),
    }
}

/// What is known about a server and its region when a step is planned.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Whether the stores can be believed.
    pub reach: Reach,
    /// The virtual machine with the server's name, from the store or from the latest write.
    pub vm: Option<Arc<VirtualMachine>>,
    /// The run with the server's name, from the store.
    pub run: Option<Arc<VirtualMachineInstance>>,
    /// The last that the watch has shown of the latest run that is gone. KubeVirt removes a run within moments of its end, so how it
    /// ended is often seen nowhere else.
    pub ended: Option<Arc<VirtualMachineInstance>>,
    /// Whether the namespace is known to be complete: since it has the region's settings, this process has applied the NetworkPolicy,
    /// which comes last.
    pub has_namespace: bool,
    /// UID of the Account.
    pub account_uid: String,
    /// Our user name in the cluster, for the RoleBinding.
    pub user: String,
    /// The addresses that are reserved for the server.
    pub addresses: Addresses,
    /// What the account holder wants cloud-init to do; or why that cannot be had.
    pub user_data: Result<Option<Arc<UserData>>, Trouble>,
    /// Where the data of the backup is that the operation restores, if there is that Backup.
    pub restore: Option<Snapshot>,
    /// The private network that the Instance names, if there is one.
    pub network: Option<Joined>,
    /// Whether the virtual machine, or that there is none, is the answer to a call of this step.
    is_read: bool,
    /// Whether the virtual machine is known to have changed since.
    is_stale: bool,
    /// How often a call of this step came too late.
    conflicts: u8,
    /// The calls of this step, and what else they have answered.
    calls: Calls,
}

impl Seen {
    /// What is known before the first call of a step.
    pub fn new(reach: Reach, account_uid: String, user: String) -> Self {
        Self {
            reach,
            vm: None,
            run: None,
            ended: None,
            has_namespace: false,
            account_uid,
            user,
            addresses: Addresses::default(),
            user_data: Ok(None),
            restore: None,
            network: None,
            is_read: false,
            is_stale: false,
            conflicts: 0,
            calls: Calls::default(),
        }
    }

    /// Takes note of an answer.
    pub fn take(&mut self, action: &Action, answer: Answer) {
        let status = match &answer {
            Answer::Refused(refusal) => refusal.status,
            _ => 200,
        };
        match (action, &answer) {
            (_, Answer::VirtualMachine(vm)) => {
                self.vm = Some(vm.clone());
                self.is_read = true;
                self.is_stale = false;
                if !matches!(action, Action::Delete { .. }) {
                    return;
                }
            }
            (
                Action::Get {
                    kind: Kind::VirtualMachine,
                    ..
                },
                _,
            ) if status == 404 => {
                self.vm = None;
                self.is_read = true;
                self.is_stale = false;
                return;
            }
            // Somebody was faster, or this comes late.
            (
                Action::Post {
                    kind: Kind::VirtualMachine,
                    ..
                }
                | Action::Patch {
                    kind: Kind::VirtualMachine,
                    ..
                }
                | Action::Delete {
                    kind: Kind::VirtualMachine,
                    ..
                }
                | Action::ClearRequests { .. },
                Answer::Refused(refusal),
            ) if is_race(action, refusal) => {
                self.is_stale = true;
                self.conflicts += 1;
                return;
            }
            (Action::Stop { .. }, Answer::Refused(refusal))
                if status == 500 && refusal.message.contains("test") =>
            {
                self.conflicts += 1;
                return;
            }
            (Action::Get { kind: Kind::Run, .. }, Answer::Run(run)) => self.run = Some(run.clone()),
            (Action::Get { kind: Kind::Run, .. }, _) if status == 404 => self.run = None,
            (
                Action::Apply {
                    kind: Kind::NetworkPolicy,
                    ..
                },
                _,
            ) if !matches!(answer, Answer::Refused(_)) => {
                self.has_namespace = true;
                self.calls.forget_forbidden();
            }
            (Action::Post { kind, .. }, _)
                if status == 404 && *kind != Kind::DataVolume && self.has_namespace =>
            {
                // It was there, but somebody has deleted it.
                self.has_namespace = false;
                return;
            }
            _ => {}
        }
        self.calls.push(action.clone(), answer);
    }
}

/// Whether a refusal says only that the object has changed meanwhile, or that there is already one, or none any more.
fn is_race(action: &Action, refusal: &Refusal) -> bool {
    match action {
        Action::Post { .. } => refusal.status == 409,
        Action::ClearRequests { .. } => matches!(refusal.status, 404 | 409 | 422),
        _ => matches!(refusal.status, 404 | 409),
    }
}

/// What to do next, and what to report if nothing is done.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The next call.
    pub action: Option<Action>,
    /// What the step reports if there is no action, or no time for it.
    pub outcome: Result<Observation, ProviderError>,
    /// What the cluster says about a problem, for the log and for operators. Account holders get fixed words instead, without
    /// the names of nodes.
    pub raw: Option<String>,
    /// The action repairs a start that KubeVirt has lost. For a metric.
    pub repairs_lost_start: bool,
}

/// Plans the next call of a step.
pub fn plan(instance: &Instance, seen: &Seen, region: &KubeVirt, now: Timestamp) -> Plan {
    let status = instance.status.clone().unwrap_or_default();
    let planner = Planner {
        instance,
        status: &status,
        seen,
        region,
        server: Server::of(instance, region),
        now,
    };
    let next = match (&seen.reach, &status.operation) {
        (Reach::Cut(since), _) => Next::error(ProviderError::Unreachable {
            region: instance.spec.region.clone(),
            since: *since,
        }),
        (Reach::Live, Some(operation)) => planner.operate(operation).unwrap_or_else(|next| next),
        (Reach::Live, None) => planner.idle().unwrap_or_else(|next| planner.at_best(next)),
    };
    let todo = |action: Box<Action>, repairs_lost_start| Plan {
        outcome: planner.unfinished(),
        action: Some(*action),
        raw: None,
        repairs_lost_start,
    };
    match next {
        Next::Do(action) => todo(action, false),
        Next::Repair(action) => todo(action, true),
        Next::End(end) => Plan {
            action: None,
            outcome: end.0,
            raw: end.1,
            repairs_lost_start: false,
        },
    }
}

/// What a step comes to.
enum Next {
    /// A call.
    Do(Box<Action>),
    /// A call that repairs a start that KubeVirt has lost.
    Repair(Box<Action>),
    /// Its end: the outcome, and what the cluster says about it.
    End(Box<(Result<Observation, ProviderError>, Option<String>)>),
}

impl Next {
    fn call(action: Action) -> Self {
        Self::Do(Box::new(action))
    }

    fn end(observation: Observation, raw: Option<String>) -> Self {
        Self::End(Box::new((Ok(observation), raw)))
    }

    fn error(error: ProviderError) -> Self {
        Self::End(Box::new((Err(error), None)))
    }
}

/// A part of a step: its result, unless something has to be done first or the step ends there.
type Step<T> = Result<T, Next>;

struct Planner<'a> {
    instance: &'a Instance,
    status: &'a InstanceStatus,
    seen: &'a Seen,
    region: &'a KubeVirt,
    server: Server,
    now: Timestamp,
}

impl Planner<'_> {
    fn operate(&self, operation: &Operation) -> Step<Next> {
        match operation.kind {
            OperationKind::Create => self.create(operation)?,
            OperationKind::Start => self.start(operation)?,
            OperationKind::Stop => self.stop(operation, operation.forced)?,
            OperationKind::PowerOff => self.stop(operation, true)?,
            OperationKind::Reboot => self.reboot(operation)?,
            OperationKind::Resize => self.resize(operation)?,
            OperationKind::Rebuild => self.rebuild(operation)?,
            OperationKind::Delete => return self.delete(operation),
        }
        let power = match operation.ends_in {
            PowerState::Running => Power::On,
            PowerState::Stopped => Power::Off(OffCause::Requested),
        };
        Ok(self.done(Some(power)))
    }

    fn create(&self, operation: &Operation) -> Step<()> {
        let Some(vm) = self.vm()? else {
            return self.make(operation, None);
        };
        if is_prepared(vm, operation) {
            self.off(operation, vm, Force::AtOnce)?;
            return self.disk_ready(operation, vm.disk().unwrap_or_default());
        }
        if is_booting(vm, operation) {
            return self.on(operation, vm);
        }
        let disk = self.server.disk(operation);
        if vm.disk() == Some(&disk) {
            return self.power_cycle(operation, vm, Force::AtOnce);
        }
        // The creation is repeated with another image. Nobody has used the server, so its disk goes first.
        self.off(operation, vm, Force::AtOnce)?;
        self.new_disk(operation)?;
        self.post_secret(operation, &disk)?;
        self.delete_other_disks(&disk)?;
        self.boot(vm, operation, &disk)
    }

    fn start(&self, operation: &Operation) -> Step<()> {
        let Some(vm) = self.vm()? else {
            return self.remake(operation);
        };
        if is_booting(vm, operation) {
            return self.on(operation, vm);
        }
        let is_wanted = vm.spec.run_strategy != Some(RunStrategy::Halted) && !vm.is_deleting();
        let run = self.run_of(vm);
        match run {
            // It is being started already, by a start that was never stored or by somebody else.
            Some(run) if is_wanted && !run.is_deleting() && !run.is_final() => {
                if run.is_running() {
                    return self.address(run);
                }
                Err(self.wait_for_boot(operation, vm))
            }
            None if is_wanted
                && vm.spec.run_strategy == Some(RunStrategy::RerunOnFailure)
                && !is_over(vm) =>
            {
                Err(self.wait_for_boot(operation, vm))
            }
            _ => self.power_cycle(operation, vm, Force::AfterGrace),
        }
    }

    fn stop(&self, operation: &Operation, is_forced: bool) -> Step<()> {
        let Some(vm) = self.vm()? else {
            return Err(self.done(None));
        };
        self.off(
            operation,
            vm,
            if is_forced { Force::AtOnce } else { Force::Never },
        )
    }

    fn reboot(&self, operation: &Operation) -> Step<()> {
        match self.vm()? {
            Some(vm) => self.power_cycle(operation, vm, Force::AfterGrace),
            None => self.remake(operation),
        }
    }

    fn resize(&self, operation: &Operation) -> Step<()> {
        let Some(vm) = self.vm()? else {
            if operation.ends_in == PowerState::Running || self.status.provisioned_at.is_none() {
                return self.remake(operation);
            }
            return Err(self.failed(Problem::ServerMissing, None));
        };
        if is_booting(vm, operation) {
            return self.on(operation, vm);
        }
        if vm.spec.run_strategy != Some(RunStrategy::Halted) {
            // Ask before the server is stopped for nothing.
            self.grow(operation, vm, true)?;
        }
        if operation.ends_in == PowerState::Running {
            return self.power_cycle(operation, vm, Force::AfterGrace);
        }
        self.off(operation, vm, Force::AfterGrace)?;
        self.grow(operation, vm, false)?;
        if plan_of(vm) == Some(operation.plan) {
            return Ok(());
        }
        Err(self.patch(plan_patch(vm, operation.plan)))
    }

    fn rebuild(&self, operation: &Operation) -> Step<()> {
        let vm = self.vm()?;
        let disk = self.server.disk(operation);
        match vm {
            Some(vm) if is_prepared(vm, operation) => {
                self.off(operation, vm, Force::AtOnce)?;
                return self.delete_other_disks(&disk);
            }
            Some(vm) if is_booting(vm, operation) && operation.ends_in == PowerState::Running => {
                self.on(operation, vm)?;
                return self.delete_other_disks(&disk);
            }
            _ => {}
        }
        // The old server runs until the new disk is known to be good.
        if self.disk(&disk)?.is_none() {
            self.can_install(operation)?;
            self.namespace()?;
            let in_use = vm.and_then(VirtualMachine::disk);
            if let Some(in_use) = in_use.or(self.status.provider_state.get(state::DISK).map(String::as_str)) {
                // Left by rebuilds that came to nothing.
                let is_left = |name: &str| name != in_use && name != disk;
                if !self.seen.is_read && self.disks()?.iter().any(|disk| is_left(disk.name())) {
                    // The watch may not have shown yet which one is in use.
                    return Err(self.renewing(self.get_vm()));
                }
                self.delete_disks(is_left)?;
            }
            self.post_disk(operation)?;
            return Err(self.busy(Some(Problem::Importing), POLL));
        }
        self.disk_ready(operation, &disk)?;
        let Some(vm) = vm else {
            return self.make(operation, Some(&disk));
        };
        self.has_user_data()?;
        // Else, the server would be off for nothing.
        self.attachment()?;
        self.off(operation, vm, Force::AtOnce)?;
        self.post_secret(operation, &disk)?;
        self.boot(vm, operation, &disk)
    }

    fn delete(&self, operation: &Operation) -> Step<Next> {
        if let Some(vm) = self.own_vm()? {
            if !vm.is_deleting() {
                self.must(Action::delete(Kind::VirtualMachine, &vm.metadata))?;
            }
            if let Some(run) = &self.seen.run {
                self.end_at_once(run)?;
            }
            return Err(self.still_in_use(operation));
        }
        if !self.seen.has_namespace {
            match self.call(self.place().get())? {
                Answer::Refused(refusal) if refusal.status == 404 => return Ok(self.done(None)),
                // Nothing is ever made in a namespace of others.
                Answer::Object(found) if !self.place().is_of_installation(found) => {
                    return Ok(self.done(None));
                }
                _ => {}
            }
        }
        let disks = Action::DeleteAll {
            kind: Kind::DataVolume,
            selector: self.server.selector(),
        };
        // Without the RoleBinding, nothing was made.
        if self.status.provisioned_at.is_none()
            && let Answer::Refused(refusal) = self.call(disks.clone())?
            && refusal.status == 403
        {
            return Ok(self.done(None));
        }
        self.must(disks)?;
        self.delete_all(Kind::Secret, self.server.selector())?;
        let claims = self.claims()?;
        for claim in claims {
            let metadata = &claim.metadata;
            let mut owners = metadata.owner_references.iter().flatten();
            let is_owned = owners.any(|owner| owner.kind == "DataVolume");
            if !is_owned && metadata.deletion_timestamp.is_none() {
                self.must(Action::delete(Kind::Claim, metadata))?;
            }
        }
        if claims.is_empty() {
            return Ok(self.done(None));
        }
        Err(self.still_in_use(operation))
    }

    /// Makes a server that is not there any more around its disk, or one that was never made. Only a rebuild replaces a lost disk:
    /// nobody is to take an empty one for their data.
    fn remake(&self, operation: &Operation) -> Step<()> {
        match self.left_disk()? {
            Some(disk) => self.make(operation, Some(&disk)),
            None if self.status.provisioned_at.is_none() => self.make(operation, None),
            None => Err(self.failed(Problem::DiskMissing, None)),
        }
    }

    /// Makes the virtual machine, around this disk or a new one.
    fn make(&self, operation: &Operation, disk: Option<&str>) -> Step<()> {
        let own = self.server.disk(operation);
        if disk.is_some() {
            self.can_attach(operation)?;
            self.namespace()?;
        } else {
            self.new_disk(operation)?;
        }
        let disk = disk.unwrap_or(&own);
        self.post_secret(operation, disk)?;
        let hostname = hostname(self.instance, &self.server);
        let attachment = self.attachment()?;
        let boot = Boot {
            operation,
            run: run_for(operation),
            disk,
            hostname: &hostname,
            config_drive: self.image(operation).is_some_and(|image| image.config_drive),
            attachment: attachment.as_ref(),
        };
        let action = Action::Post {
            kind: Kind::VirtualMachine,
            object: self.maker().virtual_machine(&boot),
        };
        self.must(action)?;
        Err(self.busy(None, SOON))
    }

    /// Begins to make the disk, with all that it needs.
    fn new_disk(&self, operation: &Operation) -> Step<()> {
        self.can_install(operation)?;
        self.can_attach(operation)?;
        self.namespace()?;
        self.post_disk(operation)
    }

    /// Whether there is something to install.
    fn can_install(&self, operation: &Operation) -> Step<()> {
        self.fill(operation)?;
        self.has_user_data()
    }

    /// What the disk is filled from.
    fn fill(&self, operation: &Operation) -> Step<Fill<'_>> {
        if operation.restore_from.is_some() {
            return self.restore().map(Fill::Backup);
        }
        let image = self.image(operation).map(Fill::Image);
        image.ok_or_else(|| self.failed(Problem::ImageMissing, None))
    }

    /// Where the data of the backup is that is restored. Whoever keeps snapshots may have lost it.
    fn restore(&self) -> Step<&Snapshot> {
        let lost = |raw: String| self.failed(Problem::BackupUnreadable, Some(raw));
        let Some(wanted) = &self.seen.restore else {
            return Err(lost("there is no Backup of that name".to_owned()));
        };
        let action = Action::get(Kind::Snapshot, &wanted.name);
        match self.call(action.clone())? {
            Answer::Snapshot(found) if found.is_of(wanted) && found.is_ready() => {
                self.is_first_cut(found)?;
                Ok(wanted)
            }
            Answer::Snapshot(found) => {
                let says = found
                    .error()
                    .unwrap_or("it is not ready, or that of another backup");
                Err(lost(format!("VolumeSnapshot {}: {says}", wanted.name)))
            }
            Answer::Refused(refusal) if refusal.status == 404 => Err(lost(refusal.message.clone())),
            Answer::Refused(refusal) => Err(self.refused(&action, refusal)),
            _ => Err(self.nonsense()),
        }
    }

    /// Whether the data is that of the first cut. If the content is removed by force and the storage has lost the data as well,
    /// external-snapshotter cuts the disk again under the same names, and leaves the time of the first cut in the VolumeSnapshot.
    fn is_first_cut(&self, snapshot: &VolumeSnapshot) -> Step<()> {
        let lost = |raw: String| self.failed(Problem::BackupUnreadable, Some(raw));
        let Some(name) = &snapshot.status.bound_volume_snapshot_content_name else {
            return Err(lost("it names no VolumeSnapshotContent".to_owned()));
        };
        let action = Action::get(Kind::SnapshotContent, name);
        match self.call(action.clone())? {
            Answer::SnapshotContent(content) if content.holds(snapshot) => Ok(()),
            Answer::SnapshotContent(_) => Err(lost(
                "the data of its VolumeSnapshot was lost, and the disk cut again later".to_owned(),
            )),
            Answer::Refused(refusal) if refusal.status == 404 => Err(lost(refusal.message.clone())),
            Answer::Refused(refusal) => Err(self.refused(&action, refusal)),
            _ => Err(self.nonsense()),
        }
    }

    /// Whether it is known what cloud-init is to do.
    fn has_user_data(&self) -> Step<()> {
        match &self.seen.user_data {
            Ok(_) => Ok(()),
            Err(trouble) => Err(self.troubled(trouble.clone(), None)),
        }
    }

    /// Whether the server can be attached to its networks.
    fn can_attach(&self, operation: &Operation) -> Step<()> {
        let is_pod = self.region.network.profile == Profile::Pod;
        if !is_pod && self.addresses().ipv4.is_none() && !self.region.network.ipv4.is_empty() {
            return Err(self.failed(Problem::NoFreeAddress, None));
        }
        if self.instance.spec.private_network.is_none() {
            return Ok(());
        }
        let is_being_made = self
            .seen
            .network
            .as_ref()
            .is_some_and(|network| !network.is_ready);
        if is_being_made && self.region.network.private_networks.has_known_addresses() {
            return Err(self.wait(
                operation,
                Sign::of(Problem::PrivateNetworkNotReady, Some(NETWORK_WITHIN)),
            ));
        }
        let Some(Attachment { name, subnet }) = self.attachment()? else {
            return Err(self.failed(Problem::PrivateNetworkMissing, None));
        };
        if name.namespace != self.server.namespace {
            // It has just been read.
            return Ok(());
        }
        let action = Action::get(Kind::NetworkAttachment, &name.name);
        match self.call(action.clone())? {
            Answer::Refused(refusal) if matches!(refusal.status, 403 | 404) => {
                Err(self.failed(Problem::PrivateNetworkMissing, None))
            }
            Answer::Refused(refusal) => Err(self.refused(&action, refusal)),
            // Something else may have its name.
            Answer::Attachment(found) if subnet.is_some() && !self.is_of_network(&found.metadata) => {
                Err(self.failed(Problem::PrivateNetworkMissing, None))
            }
            _ => Ok(()),
        }
    }

    /// Whether an object is part of the private network that the Instance names.
    fn is_of_network(&self, metadata: &ObjectMeta) -> bool {
        let uid = self
            .seen
            .network
            .as_ref()
            .map(|network| network.names.uid.as_str());
        uid.is_some() && network_of(metadata) == uid
    }

    /// How the server is attached to the private network that its Instance names.
    fn attachment(&self) -> Step<Option<Attachment>> {
        let Some(name) = &self.instance.spec.private_network else {
            return Ok(None);
        };
        let missing = || self.failed(Problem::PrivateNetworkMissing, None);
        let in_namespace = |subnet| Attachment {
            name: ObjectName {
                namespace: self.server.namespace.clone(),
                name: name.clone(),
            },
            subnet,
        };
        Ok(Some(match &self.region.network.private_networks {
            PrivateNetworks::None => return Ok(None),
            PrivateNetworks::Nad => in_namespace(None),
            PrivateNetworks::KubeOvn => {
                let network = self.seen.network.as_ref().ok_or_else(missing)?;
                if network.address.is_none() {
                    return Err(missing());
                }
                in_namespace(Some(network.names.subnet.clone()))
            }
            PrivateNetworks::Pool(pool) => {
                let network = self.seen.network.as_ref().ok_or_else(missing)?;
                let taken = self.taken(pool, &network.names)?;
                let (namespace, attachment) = taken.ok_or_else(missing)?;
                Attachment {
                    name: ObjectName {
                        namespace: namespace.to_owned(),
                        name: attachment.name().to_owned(),
                    },
                    subnet: None,
                }
            }
        }))
    }

    /// The attachment of the platform team that was given to a network, and its namespace.
    fn taken<'p>(
        &self,
        pool: &'p [ObjectName],
        network: &NetworkNames,
    ) -> Step<Option<(&'p str, &NetworkAttachment)>> {
        for namespace in namespaces_of(pool) {
            let action = list_attachments(namespace, network.selector());
            match self.call(action.clone())? {
                Answer::Attachments(found) => {
                    if let Some(attachment) = found.first() {
                        return Ok(Some((namespace, attachment)));
                    }
                }
                Answer::Refused(refusal) => return Err(self.refused(&action, refusal)),
                _ => return Err(self.nonsense()),
            }
        }
        Ok(None)
    }

    /// Makes the namespace of the account's servers, unless the platform team does, and isolates them.
    fn namespace(&self) -> Step<()> {
        if self.seen.has_namespace {
            return Ok(());
        }
        self.place()
            .prepare(&|action: &Action| self.seen.calls.answer(action))
            .map_err(|obstacle| self.hindered(obstacle))
    }

    fn place(&self) -> ServerNamespace<'_> {
        ServerNamespace {
            region: self.region,
            name: &self.server.namespace,
            account: &self.seen.account_uid,
            user: &self.seen.user,
        }
    }

    /// What has to happen to the namespace first.
    fn hindered(&self, obstacle: Obstacle<'_>) -> Next {
        match obstacle {
            Obstacle::Call(action) => self.call(action).err().unwrap_or_else(|| self.nonsense()),
            Obstacle::Wait => self.busy(None, SOON),
            Obstacle::Refused(action, refusal) => self.refused(&action, refusal),
            Obstacle::Problem(problem, raw) => self.failed(problem, Some(raw)),
            Obstacle::Nonsense => self.nonsense(),
        }
    }

    /// If a call is refused for want of rights in the account's namespace, somebody may have deleted their binding.
    fn bind_again(&self, refusal: &Refusal) -> Step<()> {
        self.place()
            .bind_again(refusal, &|action: &Action| self.seen.calls.answer(action))
            .map_err(|obstacle| self.hindered(obstacle))
    }

    /// Makes the Secret that belongs to a disk. It comes after the disk, and goes with it: Secrets can be neither read nor listed.
    fn post_secret(&self, operation: &Operation, disk: &str) -> Step<()> {
        self.has_user_data()?;
        self.must(Action::Post {
            kind: Kind::Secret,
            object: self.maker().secret(disk, self.image(operation)),
        })
    }

    fn post_disk(&self, operation: &Operation) -> Step<()> {
        let fill = self.fill(operation)?;
        let size = operation.plan.size().disk_gb;
        let size = self.status.disk_size_gb.map_or(size, |known| known.max(size));
        let action = Action::Post {
            kind: Kind::DataVolume,
            object: self.maker().data_volume(operation, fill, size),
        };
        match self.call(action.clone())? {
            Answer::Refused(refusal) if refusal.status == 409 => {
                // Checks whose it is.
                self.disk(&self.server.disk(operation))?;
                Ok(())
            }
            Answer::Refused(refusal) => Err(self.refused(&action, refusal)),
            _ => Ok(()),
        }
    }

    /// The disk of this name.
    fn disk(&self, name: &str) -> Step<Option<&DataVolume>> {
        let action = Action::get(Kind::DataVolume, name);
        match self.call(action.clone())? {
            Answer::DataVolume(disk) if disk.label(INSTANCE_UID) == Some(&self.server.uid) => Ok(Some(disk)),
            Answer::DataVolume(_) => Err(self.failed(Problem::NameTaken, None)),
            Answer::Refused(refusal) if refusal.status == 404 => Ok(None),
            // Not before there are a namespace and rights in it.
            Answer::Refused(refusal) if refusal.status == 403 && !self.seen.has_namespace => Ok(None),
            Answer::Refused(refusal) => Err(self.refused(&action, refusal)),
            _ => Err(self.nonsense()),
        }
    }

    /// All disks of the server.
    fn disks(&self) -> Step<&[DataVolume]> {
        let action = Action::list(Kind::DataVolume, self.server.selector());
        match self.call(action.clone())? {
            Answer::DataVolumes(disks) => Ok(disks),
            Answer::Refused(refusal) if matches!(refusal.status, 403 | 404) && !self.seen.has_namespace => {
                Ok(&[])
            }
            Answer::Refused(refusal) => Err(self.refused(&action, refusal)),
            _ => Err(self.nonsense()),
        }
    }

    /// The claims of all disks of the server.
    fn claims(&self) -> Step<&[PersistentVolumeClaim]> {
        let action = Action::list(Kind::Claim, self.server.selector());
        match self.call(action.clone())? {
            Answer::Claims(claims) => Ok(claims),
            Answer::Refused(refusal) => Err(self.refused(&action, refusal)),
            _ => Err(self.nonsense()),
        }
    }

    /// The newest disk of a server that has none in use.
    fn left_disk(&self) -> Step<Option<String>> {
        let is_provisioned = self.status.provisioned_at.is_some();
        if is_provisioned {
            // Without rights there, the disk would seem lost.
            self.namespace()?;
        }
        let mut disks: Vec<&ObjectMeta> = self.disks()?.iter().map(|disk| &disk.metadata).collect();
        if disks.is_empty() && is_provisioned {
            // A claim that was restored without its DataVolume is a disk, too.
            let claims = self.claims()?.iter();
            disks = claims
                .map(|claim| &claim.metadata)
                .filter(|claim| claim.deletion_timestamp.is_none())
                .collect();
        }
        let last = self.status.provider_state.get(state::DISK);
        let known = disks
            .iter()
            .find(|disk| last.is_some() && disk.name.as_ref() == last);
        let newest = disks
            .iter()
            .max_by_key(|disk| disk.creation_timestamp.as_ref().map(|time| time.0));
        Ok(known.or(newest).and_then(|disk| disk.name.clone()))
    }

    /// Waits until a disk is filled, or is filled as soon as the server boots.
    fn disk_ready(&self, operation: &Operation, name: &str) -> Step<()> {
        let Some(disk) = self.disk(name)? else {
            return Err(self.failed(Problem::DiskMissing, None));
        };
        if matches!(
            disk.phase(),
            "Succeeded" | "WaitForFirstConsumer" | "PendingPopulation"
        ) {
            return Ok(());
        }
        self.renew(operation, disk)?;
        match disk_sign(disk) {
            Some(sign) => Err(self.wait(operation, sign)),
            None => Err(self.busy(Some(Problem::Importing), self.poll(operation))),
        }
    }

    /// Makes a disk again that CDI has forgotten: it must see a disk within five minutes to be permitted to fill it.
    fn renew(&self, operation: &Operation, disk: &DataVolume) -> Step<()> {
        let made_at = disk.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let is_old = made_at.is_some_and(|at| self.now.duration_since(at) >= FORGOTTEN);
        if !is_old || !matches!(disk.phase(), "" | "Pending") || disk.name() != self.server.disk(operation) {
            return Ok(());
        }
        let list = Action::list(Kind::Claim, self.server.selector_of(disk.name()));
        let Answer::Claims(claims) = self.call(list)? else {
            return Ok(());
        };
        if !claims.is_empty() {
            return Ok(());
        }
        self.must(Action::delete(Kind::DataVolume, &disk.metadata))?;
        self.post_disk(operation)?;
        Err(self.busy(Some(Problem::Importing), POLL))
    }

    /// Makes the disk as large as the plan's, or asks whether that can be done.
    fn grow(&self, operation: &Operation, vm: &VirtualMachine, dry_run: bool) -> Step<()> {
        let size = operation.plan.size().disk_gb;
        if self.status.disk_size_gb.is_some_and(|known| known >= size) {
            return Ok(());
        }
        let action = Action::Patch {
            kind: Kind::Claim,
            name: vm.disk().unwrap_or_default().to_owned(),
            patch: grow_patch(size),
            dry_run,
        };
        match self.call(action.clone())? {
            // It is larger already.
            Answer::Refused(refusal) if refusal.message.contains("less than") => Ok(()),
            Answer::Refused(refusal) => Err(self.refused(&action, refusal)),
            _ => Ok(()),
        }
    }

    /// Powers a virtual machine off, if this operation has not powered it on yet, and on.
    fn power_cycle(&self, operation: &Operation, vm: &VirtualMachine, force: Force) -> Step<()> {
        if is_booting(vm, operation) {
            return self.on(operation, vm);
        }
        // Else, the server would be off for nothing.
        self.attachment()?;
        self.off(operation, vm, force)?;
        self.grow(operation, vm, false)?;
        let Some(disk) = vm.disk() else {
            return Err(self.failed(Problem::DiskMissing, None));
        };
        self.boot(vm, operation, disk)
    }

    /// The call that powers a virtual machine on, with this disk.
    fn boot(&self, vm: &VirtualMachine, operation: &Operation, disk: &str) -> Step<()> {
        let is_new = vm.disk() != Some(disk);
        let attachment = self.attachment()?;
        let own = hostname(self.instance, &self.server);
        let image = self.image(operation).filter(|_| is_new);
        let boot = Boot {
            operation,
            run: run_for(operation),
            disk,
            // It changes only with the disk, since it is also inside.
            hostname: vm
                .spec
                .template
                .spec
                .hostname
                .as_deref()
                .filter(|_| !is_new)
                .unwrap_or(&own),
            config_drive: image.map_or_else(|| vm.has_config_drive(), |image| image.config_drive),
            attachment: attachment.as_ref(),
        };
        Err(self.patch(self.maker().boot_patch(vm, &boot)))
    }

    /// Powers a virtual machine off. Done once virt-controller has seen that too, for only then can it be started again.
    fn off(&self, operation: &Operation, vm: &VirtualMachine, force: Force) -> Step<()> {
        if vm.is_deleting() {
            return Err(self.busy(Some(Problem::ServerBeingDeleted), WAIT));
        }
        // Left over from a crash, it would make KubeVirt start the server.
        if vm.is_start_requested() {
            return Err(self.clear_requests(vm));
        }
        if vm.spec.run_strategy != Some(RunStrategy::Halted) {
            return Err(self.patch(run_patch(vm, RunStrategy::Halted)));
        }
        if let Some(run) = &self.seen.run {
            if run.is_final() {
                return Err(self.busy(None, SOON));
            }
            let left = self.patience(operation, run, force);
            if left == Some(Duration::ZERO) {
                self.end_at_once(run)?;
            }
            return Err(self.busy(None, left.filter(|left| !left.is_zero()).unwrap_or(WAIT)));
        }
        let has_seen = matches!(vm.status.run_strategy, None | Some(RunStrategy::Halted));
        if vm.status.created || !has_seen {
            return Err(self.busy(None, SOON));
        }
        Ok(())
    }

    /// How long the guest may still take to shut down; `None`: as long as it likes.
    fn patience(
        &self,
        operation: &Operation,
        run: &VirtualMachineInstance,
        force: Force,
    ) -> Option<Duration> {
        match force {
            Force::Never => None,
            Force::AtOnce => Some(Duration::ZERO),
            Force::AfterGrace => {
                let told_at = run.metadata.deletion_timestamp.as_ref()?.0;
                let begun = operation.counted_from();
                // The clock there may differ from this one.
                let told_at = if told_at > self.now {
                    begun
                } else {
                    told_at.max(begun)
                };
                let taken = Duration::try_from(self.now.duration_since(told_at)).unwrap_or_default();
                Some(self.region.deadlines.soft_stop_grace.saturating_sub(taken))
            }
        }
    }

    /// Cuts the power of a run, unless that has been done.
    fn end_at_once(&self, run: &VirtualMachineInstance) -> Step<()> {
        if run.is_final() || run.spec.termination_grace_period_seconds == Some(0) {
            return Ok(());
        }
        let action = Action::Stop {
            name: self.server.name.clone(),
        };
        match self.call(action.clone())? {
            // It is ending already, or has ended.
            Answer::Refused(refusal) if matches!(refusal.status, 404 | 409) => Ok(()),
            Answer::Refused(refusal) => Err(self.refused(&action, refusal)),
            _ => Ok(()),
        }
    }

    /// Waits until the virtual machine runs that this operation has powered on. It is never powered off again for the same
    /// operation, unless KubeVirt has lost the start.
    fn on(&self, operation: &Operation, vm: &VirtualMachine) -> Step<()> {
        if vm.is_deleting() {
            return Err(self.busy(Some(Problem::ServerBeingDeleted), WAIT));
        }
        if vm.spec.run_strategy != Some(RunStrategy::RerunOnFailure) {
            return Err(self.patch(run_patch(vm, RunStrategy::RerunOnFailure)));
        }
        let own = boot(operation);
        let is_own = |run: &VirtualMachineInstance| run.annotation(BOOT) == Some(&own);
        let repair = || Next::Repair(Box::new(self.change(undo_boot_patch(vm))));
        match self.run_of(vm) {
            Some(run) if is_own(run) && run.is_running() => self.address(run),
            // It has booted, and shut itself down.
            Some(run) if is_own(run) && run.status.phase == Phase::Succeeded && !run.is_deleting() => Ok(()),
            Some(run) if is_own(run) || run.is_deleting() || run.is_final() => {
                Err(self.wait_for_boot(operation, vm))
            }
            // KubeVirt has made it from what the virtual machine was before this operation.
            Some(run) => match self.fresh_run()? {
                Some(fresh)
                    if fresh.uid() == run.uid()
                        && !is_own(fresh)
                        && !fresh.is_deleting()
                        && !fresh.is_final() =>
                {
                    Err(repair())
                }
                _ => Err(self.busy(None, SOON)),
            },
            None if vm.status.created => Err(self.busy(None, SOON)),
            None if !is_over(vm) => Err(self.wait_for_boot(operation, vm)),
            None => {
                if self.fresh_run()?.is_some() {
                    return Err(self.busy(None, SOON));
                }
                let generation = vm.metadata.generation;
                let has_run = generation.is_some() && vm.status.observed_generation == generation;
                let ended = self.seen.ended.as_deref().filter(|run| is_own(run));
                let has_crashed = ended.map_or_else(
                    || is(&self.status.provider_state, state::LAST, "Failed"),
                    |run| run.status.phase == Phase::Failed,
                );
                if has_run && !has_crashed {
                    // As above, but nobody has seen it.
                    return Ok(());
                }
                Err(repair())
            }
        }
    }

    /// The run, read now rather than as the store shows it.
    fn fresh_run(&self) -> Step<Option<&VirtualMachineInstance>> {
        let action = Action::get(Kind::Run, &self.server.name);
        match self.call(action.clone())? {
            Answer::Run(run) => Ok(Some(run)),
            Answer::Refused(refusal) if refusal.status == 404 => Ok(None),
            Answer::Refused(refusal) => Err(self.refused(&action, refusal)),
            _ => Err(self.nonsense()),
        }
    }

    /// Waits for the address of a server that runs, if the cluster gives it.
    fn address(&self, run: &VirtualMachineInstance) -> Step<()> {
        let is_known = self.status.ip_address.is_some() || self.status.ipv6_address.is_some();
        if self.region.network.profile != Profile::Pod || is_known || self.addresses() != Addresses::default()
        {
            return Ok(());
        }
        match run.running_since() {
            Some(since) if self.now.duration_since(since) < ADDRESS_WITHIN => Err(self.busy(None, SOON)),
            _ => Ok(()),
        }
    }

    /// What there is to say while a virtual machine boots.
    fn wait_for_boot(&self, operation: &Operation, vm: &VirtualMachine) -> Next {
        let run = self.run_of(vm);
        let sign = boot_sign(vm, run, operation.counted_from(), self.now);
        let disk = vm.disk().filter(|disk| *disk == self.server.disk(operation));
        let problem = sign.as_ref().map(|sign| sign.problem);
        let is_late = self.now.duration_since(operation.counted_from()) >= FORGOTTEN;
        let has_begun = run.is_some_and(|run| !matches!(run.status.phase, Phase::Pending | Phase::Unknown));
        let is_of_disk = matches!(
            problem,
            Some(Problem::ImageFailed | Problem::Importing | Problem::DiskMissing)
        );
        if let Some(disk) = disk
            && (is_of_disk || is_late && !has_begun && problem != Some(Problem::NoCapacity))
            && let Err(next) = self.look_at_disk(operation, disk)
        {
            return next;
        }
        match sign {
            Some(sign) => self.wait(operation, sign),
            None => self.busy(None, WAIT),
        }
    }

    /// What is wrong with the disk that this operation makes.
    fn look_at_disk(&self, operation: &Operation, name: &str) -> Step<()> {
        let Some(disk) = self.disk(name)? else {
            // Nothing has ever been written to it.
            self.post_disk(operation)?;
            return Ok(());
        };
        self.renew(operation, disk)?;
        disk_sign(disk).map_or(Ok(()), |sign| Err(self.wait(operation, sign)))
    }

    /// Deletes all disks of the server but this one, with their Secrets. Each is named, for a call that comes late must not delete
    /// what a later operation makes.
    fn delete_other_disks(&self, disk: &str) -> Step<()> {
        self.delete_disks(|name| name != disk)
    }

    fn delete_disks(&self, is_over: impl Fn(&str) -> bool) -> Step<()> {
        for disk in self.disks()?.iter().filter(|disk| is_over(disk.name())) {
            // First: without its disk, nobody would find it.
            self.delete_all(Kind::Secret, self.server.selector_of(disk.name()))?;
            self.must(Action::delete(Kind::DataVolume, &disk.metadata))?;
        }
        Ok(())
    }

    /// The call that deletes all objects of this kind that the server has.
    fn delete_all(&self, kind: Kind, selector: String) -> Step<()> {
        self.must(Action::DeleteAll { kind, selector })
    }

    fn idle(&self) -> Step<Next> {
        let mut state = self.known();
        let known = self.status.power;
        let vm = if self.seen.vm.is_none() && self.is_never_made() {
            None
        } else {
            self.any_vm()?
        };
        let Some(vm) = vm else {
            return Ok(Next::end(self.observation(), None));
        };
        if !self.is_own(vm) {
            let power = known.map(|known| match known {
                PowerState::Running => Power::On,
                PowerState::Stopped => Power::Off(OffCause::Requested),
            });
            let observation = Observation {
                power,
                notice: Some(Notice::Error(Problem::NameTaken.trouble())),
                ..self.observation()
            };
            return Ok(Next::end(observation, None));
        }
        let run = self.run_of(vm);
        if !vm.is_deleting() {
            self.keep_off(vm, run)?;
        }
        let mut refused = None;
        if !self.seen.has_namespace {
            // The settings of the region may have changed. A refusal is no reason not to look at the server.
            if let Answer::Refused(refusal) = self.call(self.place().isolation())? {
                refused = Some(says(refusal));
            }
        }
        if let Some(run) = run {
            let is_rerun = vm.spec.run_strategy == Some(RunStrategy::RerunOnFailure);
            if is_rerun && run.is_deleting() && !run.is_final() && !vm.is_deleting() {
                set(&mut state, state::OUTSIDE, run.uid());
            }
            if self.is_interrupted(vm, run)? {
                set(&mut state, state::INTERRUPTED, run.uid());
            } else if self.has_just_ended(vm, run) {
                state.remove(state::UNEXPLAINED);
            }
            if run.is_running() && self.seal(vm)? {
                set(&mut state, state::SEALED, vm.disk().unwrap_or_default());
            }
        }
        let (observation, raw) = self.at_rest(vm, &state);
        Ok(Next::end(observation, raw.or(refused)))
    }

    /// The observation of a server of which nothing is asked, and what the cluster says about it.
    fn at_rest(
        &self,
        vm: &VirtualMachine,
        state: &BTreeMap<String, String>,
    ) -> (Observation, Option<String>) {
        let run = self.run_of(vm);
        let idle = observe::idle(vm, run, self.status.power, state, self.now);
        let observation = Observation {
            power: idle.power,
            plan: plan_of(vm),
            restarted: idle.restarted,
            notice: idle.notice,
            progress: Progress::Idle,
            addresses: self.addresses(),
            state: remember(state, Some(vm), run),
            recheck_after: idle.recheck_after,
        };
        (observation, idle.raw)
    }

    /// What a step reports that has no time for its next call. The next step goes on.
    fn unfinished(&self) -> Result<Observation, ProviderError> {
        if self.status.operation.is_some() {
            return Ok(Observation {
                progress: Progress::Busy,
                recheck_after: Some(SOON),
                ..self.observation()
            });
        }
        // Not that there is no server.
        let vm = self.seen.vm.as_deref().filter(|vm| self.is_own(vm));
        let Some(vm) = vm.filter(|_| !self.seen.is_stale) else {
            return Err(ProviderError::Unavailable(NOT_NOW.to_owned()));
        };
        if let Some(run) = self.run_of(vm).filter(|run| self.has_just_ended(vm, run)) {
            return Ok(self.unexplained(run));
        }
        Ok(Observation {
            recheck_after: Some(SOON),
            ..self.at_rest(vm, &self.known()).0
        })
    }

    /// A server whose run has ended counts as on until the cluster has said why. It may not say so before the run is gone.
    fn unexplained(&self, run: &VirtualMachineInstance) -> Observation {
        let mut observation = self.observation();
        set(&mut observation.state, state::UNEXPLAINED, run.uid());
        observation.power = Some(Power::On);
        observation.recheck_after = Some(SOON);
        observation
    }

    /// An idle step that comes to its end early reports what is known of the server, rather than that there is none.
    fn at_best(&self, next: Next) -> Next {
        let Next::End(end) = next else { return next };
        let (outcome, raw) = *end;
        let outcome = outcome.and_then(|early| {
            let failure = match early.progress {
                Progress::Failed(trouble) => Some(Notice::Told(trouble)),
                _ => None,
            };
            let known = self.unfinished()?;
            Ok(Observation {
                notice: failure.or(early.notice).or(known.notice),
                recheck_after: Some(early.recheck_after.unwrap_or(WAIT)),
                ..known
            })
        });
        Next::End(Box::new((outcome, raw)))
    }

    /// Whether the server of an idle Instance was never made, because it was stopped before.
    const fn is_never_made(&self) -> bool {
        self.status.state.is_some() && self.status.provisioned_at.is_none()
    }

    /// Takes back what KubeVirt makes of a virtual machine that is to be off, after a crash.
    fn keep_off(&self, vm: &VirtualMachine, run: Option<&VirtualMachineInstance>) -> Step<()> {
        if vm.annotation(RUN) != Some(RunStrategy::Halted.as_str()) {
            return Ok(());
        }
        match vm.spec.run_strategy {
            Some(RunStrategy::Always) => Err(self.patch(run_patch(vm, RunStrategy::Halted))),
            Some(RunStrategy::Halted) if vm.is_start_requested() => Err(self.clear_requests(vm)),
            Some(RunStrategy::Halted) if self.status.power == Some(PowerState::Stopped) => {
                let risen = run.filter(|run| !is(&self.status.provider_state, state::RUN, run.uid()));
                risen.map_or(Ok(()), |run| self.end_at_once(run))
            }
            _ => Ok(()),
        }
    }

    /// Whether a run has ended since the server was last seen, without a crash, and nobody has asked for that.
    fn has_just_ended(&self, vm: &VirtualMachine, run: &VirtualMachineInstance) -> bool {
        run.status.phase == Phase::Succeeded
            && !run.is_deleting()
            && self.status.power == Some(PowerState::Running)
            && vm.spec.run_strategy == Some(RunStrategy::RerunOnFailure)
            && is(&self.status.provider_state, state::RUN, run.uid())
    }

    /// Whether the platform is shutting a run down, or has, rather than its guest.
    fn is_interrupted(&self, vm: &VirtualMachine, run: &VirtualMachineInstance) -> Step<bool> {
        let state = &self.status.provider_state;
        let ready = run.condition("Ready");
        let is_ending = run.is_running()
            && ready.is_some_and(|ready| ready.status == "False" && ready.is_because("PodTerminating"));
        // Its controller may have been too slow to say so, as in the drain of a large node.
        let has_just_ended = self.has_just_ended(vm, run);
        if !(is_ending || has_just_ended) || is(state, state::INTERRUPTED, run.uid()) {
            return Ok(false);
        }
        let list = Action::list(Kind::Pod, format!("{CREATED_BY}={}", run.uid()));
        let pods = match self.call(list)? {
            Answer::Pods(pods) => pods,
            Answer::Refused(refusal) if has_just_ended => {
                return Err(Next::end(self.unexplained(run), Some(says(refusal))));
            }
            _ => return Ok(false),
        };
        // After a migration, the launcher on the node before is ending too.
        let is_its = |pod: &&Pod| {
            let spec = pod.spec.as_ref();
            spec.and_then(|spec| spec.node_name.as_ref()) == run.status.node_name.as_ref()
        };
        let mut its = pods.iter().filter(is_its).peekable();
        if has_just_ended && its.peek().is_none() {
            // After a guest's own shutdown, the Pod stays until the run is deleted, which the watch may have yet to show.
            let fresh = self.fresh_run()?;
            return Ok(fresh.is_some_and(|fresh| fresh.uid() == run.uid() && !fresh.is_deleting()));
        }
        Ok(its.any(|pod| pod.metadata.deletion_timestamp.is_some()))
    }

    /// Keeps CDI from filling the disk of a running server anew. Returns whether that is certain now.
    fn seal(&self, vm: &VirtualMachine) -> Step<bool> {
        let Some(name) = vm.disk() else { return Ok(false) };
        if is(&self.status.provider_state, state::SEALED, name) {
            return Ok(false);
        }
        let disk = match self.call(Action::get(Kind::DataVolume, name))? {
            Answer::DataVolume(disk) if disk.phase() == "Succeeded" => disk,
            // Without a DataVolume, CDI makes no claim.
            Answer::Refused(refusal) => return Ok(refusal.status == 404),
            _ => return Ok(false),
        };
        let patch = Action::patch(Kind::DataVolume, name, seal_patch(disk));
        Ok(!matches!(self.call(patch)?, Answer::Refused(_)))
    }

    /// The virtual machine with the server's name; the cluster is asked before it counts as missing.
    fn any_vm(&self) -> Step<Option<&VirtualMachine>> {
        let seen = self.seen;
        if seen.conflicts > MAX_CONFLICTS {
            return Err(self.busy(None, SOON));
        }
        if seen.is_stale || seen.vm.is_none() && !seen.is_read {
            return Err(self.renewing(self.get_vm()));
        }
        Ok(seen.vm.as_deref())
    }

    fn get_vm(&self) -> Action {
        Action::get(Kind::VirtualMachine, &self.server.name)
    }

    /// The virtual machine, which must be ours if there is one.
    fn vm(&self) -> Step<Option<&VirtualMachine>> {
        match self.any_vm()? {
            Some(vm) if !self.is_own(vm) => Err(self.failed(Problem::NameTaken, None)),
            vm => Ok(vm),
        }
    }

    /// The virtual machine if it is ours.
    fn own_vm(&self) -> Step<Option<&VirtualMachine>> {
        Ok(self.any_vm()?.filter(|vm| self.is_own(vm)))
    }

    fn is_own(&self, vm: &VirtualMachine) -> bool {
        vm.label(INSTANCE_UID) == Some(&self.server.uid)
    }

    fn run_of(&self, vm: &VirtualMachine) -> Option<&VirtualMachineInstance> {
        self.seen.run.as_deref().filter(|run| run.is_run_of(vm))
    }

    fn image(&self, operation: &Operation) -> Option<&Image> {
        self.region.images.get(&operation.image)
    }

    fn maker(&self) -> Maker<'_> {
        Maker {
            instance: self.instance,
            region: self.region,
            server: &self.server,
            account_uid: &self.seen.account_uid,
            addresses: &self.seen.addresses,
            user_data: self.seen.user_data.as_ref().ok().and_then(Option::as_deref),
            private_address: self.seen.network.as_ref().and_then(|network| network.address),
        }
    }

    /// What is known of the server's runs.
    fn known(&self) -> BTreeMap<String, String> {
        let mut state = self.status.provider_state.clone();
        // It may be younger than the one that the status knows of.
        if self.seen.run.is_none()
            && let Some((vm, ended)) = self.seen.vm.as_deref().zip(self.seen.ended.as_deref())
            && ended.is_run_of(vm)
        {
            state = remember(&state, Some(vm), Some(ended));
        }
        state
    }

    fn addresses(&self) -> Addresses {
        let vm = self.seen.vm.as_deref().filter(|vm| self.is_own(vm));
        let run = vm.and_then(|vm| self.run_of(vm));
        observe::addresses(self.region, &self.seen.addresses, vm, run)
    }

    /// What is the same in all observations.
    fn observation(&self) -> Observation {
        let vm = self.seen.vm.as_deref().filter(|vm| self.is_own(vm));
        let run = vm.and_then(|vm| self.run_of(vm));
        Observation {
            addresses: self.addresses(),
            state: remember(&self.known(), vm, run),
            ..Observation::default()
        }
    }

    /// The answer to a call; makes the call first.
    fn call(&self, action: Action) -> Step<&Answer> {
        match self.seen.calls.answer(&action) {
            Some(answer) => Ok(answer),
            None if self.seen.conflicts > MAX_CONFLICTS => Err(self.busy(None, SOON)),
            None => Err(Next::call(action)),
        }
    }

    /// Makes a call that must succeed. What is there already, or is not there any more, is as it should be.
    fn must(&self, action: Action) -> Step<()> {
        let fine: &[u16] = match &action {
            Action::Post { .. } => &[409],
            // There is another one of that name.
            Action::Delete { .. } => &[404, 409],
            Action::DeleteAll { .. } => &[404],
            _ => &[],
        };
        match self.call(action.clone())? {
            Answer::Refused(refusal) if !fine.contains(&refusal.status) => {
                Err(self.refused(&action, refusal))
            }
            _ => Ok(()),
        }
    }

    /// A change of the virtual machine.
    fn patch(&self, patch: Value) -> Next {
        self.renewing(self.change(patch))
    }

    fn clear_requests(&self, vm: &VirtualMachine) -> Next {
        self.renewing(Action::ClearRequests {
            name: self.server.name.clone(),
            patch: clear_requests_patch(vm),
        })
    }

    /// A call that is answered with the virtual machine. Once it is done, the virtual machine looks different.
    fn renewing(&self, action: Action) -> Next {
        match self.call(action.clone()) {
            Ok(Answer::Refused(refusal)) => self.refused(&action, refusal),
            Ok(_) => self.nonsense(),
            Err(next) => next,
        }
    }

    fn change(&self, patch: Value) -> Action {
        Action::patch(Kind::VirtualMachine, &self.server.name, patch)
    }

    fn done(&self, power: Option<Power>) -> Next {
        let observation = Observation {
            power,
            progress: Progress::Done,
            ..self.observation()
        };
        Next::end(observation, None)
    }

    fn busy(&self, problem: Option<Problem>, recheck_after: Duration) -> Next {
        let observation = Observation {
            progress: Progress::Busy,
            notice: problem.map(|problem| Notice::Told(problem.trouble())),
            recheck_after: Some(recheck_after),
            ..self.observation()
        };
        Next::end(observation, None)
    }

    fn failed(&self, problem: Problem, raw: Option<String>) -> Next {
        self.troubled(problem.trouble(), raw)
    }

    fn troubled(&self, trouble: Trouble, raw: Option<String>) -> Next {
        let observation = Observation {
            progress: Progress::Failed(trouble),
            ..self.observation()
        };
        Next::end(observation, raw)
    }

    fn refused(&self, action: &Action, refusal: &Refusal) -> Next {
        if let Err(next) = self.bind_again(refusal) {
            return next;
        }
        let raw = Some(says(refusal));
        match observe::refused(action, refusal, self.region) {
            Some(Problem::LockedBySnapshot) => {
                let observation = Observation {
                    progress: Progress::Busy,
                    notice: Some(Notice::Told(Problem::LockedBySnapshot.trouble())),
                    recheck_after: Some(WAIT),
                    ..self.observation()
                };
                Next::end(observation, raw)
            }
            Some(problem) => self.failed(problem, raw),
            None => {
                let error = ProviderError::Unavailable(NOT_NOW.to_owned());
                Next::End(Box::new((Err(error), raw)))
            }
        }
    }

    fn nonsense(&self) -> Next {
        let message = format!("the region {} answered something else", self.instance.spec.region);
        Next::error(ProviderError::Nonsense(message))
    }

    /// Waits for something to pass by itself, and reports a failure after a while.
    fn wait(&self, operation: &Operation, sign: Sign) -> Next {
        let run = self.seen.run.as_ref();
        let made_at = run.and_then(|run| run.metadata.creation_timestamp.as_ref());
        let since = sign
            .since
            .or(made_at.map(|time| time.0))
            .unwrap_or_else(|| operation.counted_from());
        let told = Notice::Told(sign.problem.trouble());
        let (notice, recheck_after) = match sign.after {
            None => (Some(told), WAIT),
            Some(after) => {
                let left = after - self.now.duration_since(since);
                let Some(left) = Duration::try_from(left).ok().filter(|left| !left.is_zero()) else {
                    return self.failed(sign.problem, sign.raw);
                };
                // What is normal for a moment is not worth telling.
                ((after > BLIP).then_some(told), left.min(WAIT))
            }
        };
        let observation = Observation {
            progress: Progress::Busy,
            notice,
            recheck_after: Some(recheck_after),
            ..self.observation()
        };
        Next::end(observation, sign.raw)
    }

    /// Waits for what KubeVirt and the storage still hold of a server that is being deleted.
    fn still_in_use(&self, operation: &Operation) -> Next {
        if self.elapsed(operation) >= self.region.deadlines.other {
            let message = Problem::StillInUse.trouble().message;
            return self.troubled(Trouble::failed(OperationKind::Delete, message), None);
        }
        self.busy(None, self.poll(operation))
    }

    /// How soon to look again at what nothing watches.
    fn poll(&self, operation: &Operation) -> Duration {
        (self.elapsed(operation) / 5).clamp(POLL, POLL_AT_MOST)
    }

    fn elapsed(&self, operation: &Operation) -> Duration {
        let elapsed = self.now.duration_since(operation.counted_from());
        Duration::try_from(elapsed).unwrap_or_default()
    }
}

/// What the cluster says, for the log.
pub(super) fn says(refusal: &Refusal) -> String {
    format!("{} {}: {}", refusal.status, refusal.reason, refusal.message)
}

/// When a run is ended without waiting for its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Force {
    /// Never.
    Never,
    /// When its guest has had the region's grace.
    AfterGrace,
    /// At once.
    AtOnce,
}

/// Whether this operation has powered the virtual machine on.
fn is_booting(vm: &VirtualMachine, operation: &Operation) -> bool {
    vm.annotation(BOOT) == Some(&boot(operation)) && vm.spec.run_strategy != Some(RunStrategy::Halted)
}

/// Whether this operation, at the end of which the server is off, has done all else.
fn is_prepared(vm: &VirtualMachine, operation: &Operation) -> bool {
    operation.ends_in == PowerState::Stopped && vm.annotation(BOOT) == Some(&boot(operation))
}

/// When the virtual machine is to run at the end of an operation.
const fn run_for(operation: &Operation) -> RunStrategy {
    match operation.ends_in {
        PowerState::Running => RunStrategy::RerunOnFailure,
        PowerState::Stopped => RunStrategy::Halted,
    }
}
