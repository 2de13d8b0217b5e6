//! What the objects of a server say about it.
//!
//! Account holders read fixed words, without the names of nodes and storage. What KubeVirt says goes beside them, to operators.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};

use super::{
    names::{IPV4, IPV6, RUN},
    objects::gibibytes,
    plan::{Action, Kind, Refusal},
    slim::{DataVolume, Phase, RunStrategy, VirtualMachine, VirtualMachineInstance},
};
use domain::{
    catalogue::region::{KubeVirt, Namespaces, Profile},
    provider::{Addresses, Notice, OffCause, Power, Trouble},
};
use resources::{Plan, PowerState};

/// How long a condition may say that a node is silent before account holders are told.
const SILENCE: SignedDuration = SignedDuration::from_secs(60);
/// How long a server may take to come back by itself before account holders are told.
const RESTART: SignedDuration = SignedDuration::from_mins(2);
/// When to look again if the objects of a server contradict each other, which happens while their watches are apart.
pub const UNSETTLED: Duration = Duration::from_secs(2);

/// The keys of `status.providerState`.
pub mod state {
    /// UID of the run that was last seen running.
    pub const RUN: &str = "vmi";
    /// How the last run ended, if that was seen: `Failed` or `Succeeded`.
    pub const LAST: &str = "last";
    /// UID of the run that the platform was seen to shut down.
    pub const INTERRUPTED: &str = "interrupted";
    /// UID of the run that ended while the cluster did not say why.
    pub const UNEXPLAINED: &str = "unexplained";
    /// UID of the run that somebody else was seen to stop.
    pub const OUTSIDE: &str = "deletedOutside";
    /// Name of the root disk.
    pub const DISK: &str = "disk";
    /// Name of the disk that CDI can no longer fill anew.
    pub const SEALED: &str = "sealed";
}

/// Something that is wrong with a server or its region, in words for account holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[cfg_attr(test, derive(strum::VariantNames))]
pub enum Problem {
    /// The claim of the disk is gone.
    DiskMissing,
    /// The disk cannot be filled.
    ImageFailed,
    /// The image is larger than the disk.
    ImageTooLarge,
    /// The region does not have the image.
    ImageMissing,
    /// There is no room for the disk.
    StorageQuota,
    /// The disk is being filled.
    Importing,
    /// No node has room.
    NoCapacity,
    /// The cluster does not permit what is asked for.
    Refused,
    /// The cluster is at fault.
    ClusterFault,
    /// The server crashes before it has booted.
    GuestCrashes,
    /// The server crashes again and again.
    CrashLoop,
    /// The server has been coming back for a while.
    Restarting,
    /// The node takes long.
    NodeSlow,
    /// The node is silent.
    NodeUnreachable,
    /// KubeVirt's controllers do nothing.
    KubeVirtSlow,
    /// Somebody deletes the server.
    ServerBeingDeleted,
    /// The server is gone.
    ServerMissing,
    /// Somebody paused the server.
    Paused,
    /// The storage does not answer.
    StorageUnavailable,
    /// Somebody has changed when the server runs.
    ManagedOutside,
    /// Somebody has changed the server's settings.
    ChangedOutside,
    /// KubeVirt wants its operator to act.
    ManualRecovery,
    /// A snapshot or restore that is not ours is in progress.
    LockedBySnapshot,
    /// Something that is not ours has the name of something of ours.
    NameTaken,
    /// No address is free.
    NoFreeAddress,
    /// The private network does not exist.
    PrivateNetworkMissing,
    /// The private network is being made.
    PrivateNetworkNotReady,
    /// The cluster cannot make private networks.
    PrivateNetworksUnavailable,
    /// Somebody has changed what the private network consists of.
    PrivateNetworkChanged,
    /// The platform team has made no more private networks.
    NoFreePrivateNetwork,
    /// The namespace is being deleted, or is not ours.
    NamespaceUnusable,
    /// The platform team has not made the namespace yet.
    NamespaceMissing,
    /// The storage cannot make a disk larger.
    DiskCannotGrow,
    /// The data of the backup to restore is lost, or cannot be read.
    BackupUnreadable,
    /// Something of the server is still in use.
    StillInUse,
}

impl Problem {
    /// For conditions and Events.
    pub fn trouble(self) -> Trouble {
        Trouble {
            reason: self.into(),
            message: self.words().to_owned(),
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::DiskMissing => "the server's disk is missing; rebuild the instance",
            Self::ImageFailed => "the disk cannot be filled from the image or backup; still trying",
            Self::ImageTooLarge => {
                "the image is larger than the disk of this plan; choose a larger plan or another image"
            }
            Self::ImageMissing => "the region does not have this image; choose another one",
            Self::StorageQuota => "the region has no room for the disk; still trying",
            Self::Importing => "the disk is being filled",
            Self::NoCapacity => {
                "no host in the region has room for this plan; the server starts once there is some"
            }
            Self::Refused => "the region's cluster refuses to run the server; still trying",
            Self::ClusterFault => "the region's cluster has a fault; still trying",
            Self::GuestCrashes => "the server crashes before it has booted; still trying",
            Self::CrashLoop => {
                "the server crashes again and again, and is restarted each time; stop or rebuild the instance"
            }
            Self::Restarting => "the server is being restarted, and this takes unusually long",
            Self::NodeSlow => "the host takes unusually long to start the server",
            Self::NodeUnreachable => "the server's host does not answer; the server may be running or not",
            Self::KubeVirtSlow => "the region takes unusually long to start the server",
            Self::ServerBeingDeleted => "the server is being deleted by the platform's operators",
            Self::ServerMissing => {
                "the region no longer has this server; a start makes it again if its disk is still there, else rebuild or delete the instance"
            }
            Self::Paused => "the server was paused by the platform's operators",
            Self::StorageUnavailable => {
                "the storage of the server does not answer; if this lasts, power it off and start it"
            }
            Self::ManagedOutside => {
                "the platform's operators have taken over when the server runs; the next action ends this"
            }
            Self::ChangedOutside => {
                "the platform's operators have changed the server's settings; the next reboot sets them back"
            }
            Self::ManualRecovery => "the server needs the platform's operators to recover it",
            Self::LockedBySnapshot => {
                "the platform's operators are saving or restoring the server; it is continued afterwards"
            }
            Self::NameTaken => {
                "something else in the region has the server's name; ask the platform's operators"
            }
            Self::NoFreeAddress => "the region has no free addresses; still trying",
            Self::PrivateNetworkMissing => "the private network does not exist in this region; still trying",
            Self::PrivateNetworkNotReady => "the private network is being made",
            Self::PrivateNetworksUnavailable => {
                "the region cannot make the private network at the moment; still trying"
            }
            Self::PrivateNetworkChanged => {
                "the private network was changed by the platform's operators, and nothing is attached to it; ask them"
            }
            Self::NoFreePrivateNetwork => "the region has no private network left; still trying",
            Self::NamespaceUnusable => {
                "the account's place in the region cannot be used; ask the platform's operators"
            }
            Self::NamespaceMissing => {
                "the account has no place in this region yet; ask the platform's operators"
            }
            Self::DiskCannotGrow => {
                "the storage of the region cannot make the disk larger; choose a plan with the same disk"
            }
            Self::BackupUnreadable => {
                "the backup cannot be read; restore another one, or rebuild the instance from an image"
            }
            Self::StillInUse => "the region has not released the server's disk yet; still trying",
        }
    }
}

/// A [`Problem`] that may pass by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sign {
    /// What it is.
    pub problem: Problem,
    /// After how long an operation counts as failed because of it; only after its deadline if it is not set.
    pub after: Option<SignedDuration>,
    /// Since when there are signs of it, if they say so.
    pub since: Option<Timestamp>,
    /// What KubeVirt or CDI says.
    pub raw: Option<String>,
}

impl Sign {
    pub(super) fn of(problem: Problem, after: Option<i64>) -> Self {
        Self {
            problem,
            after: after.map(SignedDuration::from_secs),
            since: None,
            raw: None,
        }
    }
}

/// Why a server is not running yet, while it boots.
pub fn boot_sign(
    vm: &VirtualMachine,
    run: Option<&VirtualMachineInstance>,
    begun: Timestamp,
    now: Timestamp,
) -> Option<Sign> {
    if let Some(run) = run {
        let made_at = run.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let signs = |condition: &str, reasons: &[(&str, Problem, i64)]| {
            let condition = run.condition(condition).filter(|found| found.status == "False")?;
            let of = |(reason, ..): &&(&str, Problem, i64)| condition.is_because(reason);
            let (_, problem, after) = reasons.iter().find(of)?;
            Some(Sign {
                since: condition.last_transition_time.or(made_at),
                raw: condition.message.clone(),
                ..Sign::of(*problem, Some(*after))
            })
        };
        let of_run = signs(
            "Synchronized",
            &[
                ("FailedPvcNotFound", Problem::DiskMissing, 30),
                ("FailedCreate", Problem::Refused, 30),
                ("ErrImagePull", Problem::ClusterFault, 60),
                ("ImagePullBackOff", Problem::ClusterFault, 60),
            ],
        );
        let of_run = of_run.or_else(|| signs("PodScheduled", &[("Unschedulable", Problem::NoCapacity, 120)]));
        if of_run.is_some() {
            return of_run;
        }
        let is_slow = made_at.is_some_and(|at| now.duration_since(at) > SILENCE);
        if run.status.phase == Phase::Scheduled && is_slow {
            return Some(Sign::of(Problem::NodeSlow, None));
        }
    }
    let raw = || {
        vm.condition("Failure")
            .and_then(|failure| failure.message.clone())
    };
    let of_vm = match vm.status.printable_status.as_deref() {
        Some("ErrorPvcNotFound") => Some(Sign::of(Problem::DiskMissing, Some(30))),
        Some("DataVolumeError") => Some(Sign::of(Problem::ImageFailed, Some(60))),
        Some("CrashLoopBackOff") => Some(Sign::of(Problem::GuestCrashes, Some(120))),
        _ => None,
    };
    if let Some(sign) = of_vm {
        return Some(Sign { raw: raw(), ..sign });
    }
    let failure = vm.condition("Failure").filter(|failure| failure.is_true());
    if let Some(failure) = failure {
        return Some(Sign {
            since: failure.last_transition_time,
            raw: failure.message.clone(),
            ..Sign::of(Problem::Refused, Some(30))
        });
    }
    match vm.status.printable_status.as_deref() {
        Some("Provisioning" | "WaitingForVolumeBinding") => Some(Sign::of(Problem::Importing, None)),
        _ if run.is_none() && !vm.status.created && now.duration_since(begun) > SILENCE => {
            Some(Sign::of(Problem::KubeVirtSlow, None))
        }
        _ => None,
    }
}

/// Why a disk is not filled yet, if something is wrong with it.
pub fn disk_sign(disk: &DataVolume) -> Option<Sign> {
    let made_at = disk.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let condition = |name: &str| {
        let condition = disk.condition(name)?;
        (condition.status == "False").then_some(condition)
    };
    let of = |problem, condition: &super::slim::Condition| Sign {
        since: condition.last_transition_time.or(made_at),
        raw: condition.message.clone(),
        ..Sign::of(problem, Some(60))
    };
    if let Some(bound) = condition("Bound")
        && bound.is_because("ErrExceededQuota")
    {
        return Some(of(Problem::StorageQuota, bound));
    }
    let is_too_large = |text: &str| text.contains("smaller than") || text.contains("larger than");
    for name in ["Running", "Bound"] {
        let Some(condition) = condition(name) else {
            continue;
        };
        if condition.message.as_deref().is_some_and(is_too_large) {
            return Some(of(Problem::ImageTooLarge, condition));
        }
        if condition.is_because("Error") || condition.is_because("ImagePullFailed") {
            return Some(of(Problem::ImageFailed, condition));
        }
    }
    let sign = Sign {
        since: made_at,
        raw: Some("the DataVolume's phase is Failed".to_owned()),
        ..Sign::of(Problem::ImageFailed, Some(60))
    };
    (disk.phase() == "Failed").then_some(sign)
}

/// What a refusal means. `None`: the cluster cannot do it at the moment.
pub fn refused(action: &Action, refusal: &Refusal, region: &KubeVirt) -> Option<Problem> {
    if refusal.status >= 500 || refusal.status == 429 {
        return None;
    }
    let says = |text: &str| refusal.message.contains(text);
    if says("being terminated") {
        return Some(Problem::NamespaceUnusable);
    }
    let is_missing = matches!(refusal.status, 403 | 404) && region.namespaces == Namespaces::Existing;
    // An API server that has just started does not know anybody's rights yet.
    let is_of_rights = refusal.status == 403 && says(" cannot ") && says(" resource ");
    if is_of_rights && !is_missing {
        return None;
    }
    Some(match action {
        Action::Post {
            kind: Kind::DataVolume,
            ..
        } if says("smaller than") => Problem::ImageTooLarge,
        Action::Post {
            kind: Kind::DataVolume,
            ..
        } if says("exceeded quota") => Problem::StorageQuota,
        Action::Post {
            kind: Kind::DataVolume,
            ..
        } if refusal.status != 404 || says("DataSource") || says("datasource") => Problem::ImageFailed,
        Action::Post { .. } | Action::Apply { .. } if is_missing => Problem::NamespaceMissing,
        Action::Post { .. } | Action::Apply { .. } if refusal.status == 404 => Problem::NamespaceUnusable,
        Action::Patch {
            kind: Kind::VirtualMachine,
            ..
        } if refusal.status == 422 && (says("snapshot") || says("restore")) => Problem::LockedBySnapshot,
        Action::Patch {
            kind: Kind::Claim, ..
        } if refusal.status == 404 => Problem::DiskMissing,
        Action::Patch {
            kind: Kind::Claim, ..
        } => Problem::DiskCannotGrow,
        Action::Post { .. } | Action::Apply { .. } | Action::Patch { .. } => Problem::Refused,
        _ => Problem::ClusterFault,
    })
}

/// The plan that a virtual machine is as large as.
pub fn plan_of(vm: &VirtualMachine) -> Option<Plan> {
    let domain = &vm.spec.template.spec.domain;
    Plan::ALL.into_iter().find(|plan| {
        let size = plan.size();
        domain.cpu.sockets == Some(size.vcpu)
            && domain.memory.guest.as_deref() == Some(gibibytes(size.memory_gb).as_str())
    })
}

/// The addresses of a server, as far as they are known.
pub fn addresses(
    region: &KubeVirt,
    reserved: &Addresses,
    vm: Option<&VirtualMachine>,
    run: Option<&VirtualMachineInstance>,
) -> Addresses {
    if region.network.profile != Profile::Pod {
        let of = |reserved: &Option<String>, key| {
            let noted = || vm?.annotation(key).map(str::to_owned);
            reserved.clone().or_else(noted)
        };
        return Addresses {
            ipv4: of(&reserved.ipv4, IPV4),
            ipv6: of(&reserved.ipv6, IPV6),
            private: None,
        };
    }
    let interfaces = run.into_iter().flat_map(|run| &run.status.interfaces);
    let public = interfaces.filter(|interface| interface.name.as_deref() == Some("default"));
    let all = public.flat_map(|interface| interface.ip_address.iter().chain(&interface.ip_addresses));
    let believed: Vec<IpAddr> = all
        .filter_map(|text| text.parse().ok())
        .filter(is_believable)
        .collect();
    let first = |is_wanted: fn(&IpAddr) -> bool| {
        let found = believed.iter().find(|address| is_wanted(address));
        found.map(ToString::to_string)
    };
    Addresses {
        ipv4: first(IpAddr::is_ipv4),
        ipv6: first(IpAddr::is_ipv6),
        private: None,
    }
}

/// Whether an address can be that of a Pod: not those that every guest has behind its masquerade, as its agent reports them.
fn is_believable(address: &IpAddr) -> bool {
    let behind = ["10.0.2.0/24", "fd10:0:2::/120", "fe80::/10"].map(str::parse::<IpNet>);
    !behind.iter().flatten().any(|net| net.contains(address))
}

/// What is to be known of a server at the next step: `providerState` with what its objects say now.
pub fn remember(
    before: &BTreeMap<String, String>,
    vm: Option<&VirtualMachine>,
    run: Option<&VirtualMachineInstance>,
) -> BTreeMap<String, String> {
    let mut after = before.clone();
    let Some(vm) = vm else { return after };
    if let Some(disk) = vm.disk() {
        set(&mut after, state::DISK, disk);
    }
    let Some(run) = run else { return after };
    match run.status.phase {
        Phase::Running if is(&after, state::RUN, run.uid()) => {}
        Phase::Running => {
            set(&mut after, state::RUN, run.uid());
            for key in [
                state::LAST,
                state::INTERRUPTED,
                state::UNEXPLAINED,
                state::OUTSIDE,
            ] {
                after.remove(key);
            }
        }
        Phase::Failed => set(&mut after, state::LAST, "Failed"),
        Phase::Succeeded => set(&mut after, state::LAST, "Succeeded"),
        Phase::Pending | Phase::Scheduling | Phase::Scheduled | Phase::Unknown => {}
    }
    after
}

/// Whether a value of `providerState` is this one.
pub fn is(state: &BTreeMap<String, String>, key: &str, value: &str) -> bool {
    state.get(key).is_some_and(|found| found == value)
}

/// Sets a value of `providerState`.
pub fn set(state: &mut BTreeMap<String, String>, key: &str, value: &str) {
    if !is(state, key, value) {
        state.insert(key.to_owned(), value.to_owned());
    }
}

/// What an idle server does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Idle {
    /// Whether it is on.
    pub power: Option<Power>,
    /// Why it was power-cycled.
    pub restarted: Option<OffCause>,
    /// What is wrong.
    pub notice: Option<Notice>,
    /// What KubeVirt says about that.
    pub raw: Option<String>,
    /// When to look again.
    pub recheck_after: Option<Duration>,
}

/// What a server does of which nothing is asked. `known` is its power as last observed, `state` is what is known of its runs before
/// this one is taken note of.
pub fn idle(
    vm: &VirtualMachine,
    run: Option<&VirtualMachineInstance>,
    known: Option<PowerState>,
    state: &BTreeMap<String, String>,
    now: Timestamp,
) -> Idle {
    let strategy = vm.spec.run_strategy.unwrap_or(RunStrategy::Other);
    let off = Power::Off(off_cause(vm, state));
    let before = match known {
        Some(PowerState::Stopped) => off,
        None if strategy == RunStrategy::Halted => off,
        Some(PowerState::Running) | None => Power::On,
    };
    let unsettled = || Idle {
        power: Some(before),
        recheck_after: Some(UNSETTLED),
        ..Idle::default()
    };
    let is_gone = run.is_none() && !vm.status.created;
    let mut seen = match (strategy, run) {
        (_, Some(run)) if run.is_deleting() && !run.is_final() => unsettled(),
        (RunStrategy::Halted, Some(run)) if run.is_final() => of_power(off),
        (RunStrategy::Halted, _) if is_gone => of_power(off),
        (RunStrategy::Halted, _) => unsettled(),
        (_, Some(run)) if run.status.phase == Phase::Running => running(run, known, state, now),
        (RunStrategy::RerunOnFailure, Some(run)) if run.status.phase == Phase::Succeeded => of_power(off),
        (RunStrategy::RerunOnFailure, None) if is_gone && is_over(vm) => of_power(off),
        (RunStrategy::Other, _) if is_gone || run.is_some_and(VirtualMachineInstance::is_final) => {
            of_power(Power::Off(OffCause::Outside))
        }
        (_, None) if vm.status.created => unsettled(),
        _ => restarting(vm, run, before, now),
    };
    if strategy == RunStrategy::Other {
        seen.notice = Some(Notice::Told(Problem::ManagedOutside.trouble()));
    }
    if let Some(recovery) = vm
        .condition("ManualRecoveryRequired")
        .filter(|found| found.is_true())
    {
        seen.notice = Some(Notice::Error(Problem::ManualRecovery.trouble()));
        seen.raw.clone_from(&recovery.message);
    }
    if vm.is_deleting() {
        seen.notice = Some(Notice::Told(Problem::ServerBeingDeleted.trouble()));
    }
    let changed = vm.condition("RestartRequired").filter(|found| found.is_true());
    if let Some(changed) = changed
        && seen.notice.is_none()
        && seen.power == Some(Power::On)
    {
        seen.notice = Some(Notice::Told(Problem::ChangedOutside.trouble()));
        seen.raw.clone_from(&changed.message);
    }
    seen
}

/// Whether KubeVirt has done all that it does for a virtual machine that is to run until its guest shuts down.
pub fn is_over(vm: &VirtualMachine) -> bool {
    !vm.is_start_requested() && vm.status.run_strategy == vm.spec.run_strategy
}

fn of_power(power: Power) -> Idle {
    Idle {
        power: Some(power),
        ..Idle::default()
    }
}

/// Why a server is off.
fn off_cause(vm: &VirtualMachine, state: &BTreeMap<String, String>) -> OffCause {
    if vm.spec.run_strategy == Some(RunStrategy::Halted) {
        let is_ours = vm.annotation(RUN) == Some(RunStrategy::Halted.as_str());
        return if is_ours {
            OffCause::Requested
        } else {
            OffCause::Outside
        };
    }
    let was = |key| state.contains_key(key) && state.get(key) == state.get(state::RUN);
    let is_looping = vm.status.printable_status.as_deref() == Some("CrashLoopBackOff");
    if was(state::OUTSIDE) {
        OffCause::Outside
    } else if was(state::INTERRUPTED) || was(state::UNEXPLAINED) {
        // A cluster that refuses to say why is one in trouble, and the account holder wants the server to run.
        OffCause::Interrupted
    } else if is_looping || is(state, state::LAST, "Failed") {
        // KubeVirt would have restarted it, but has lost track of that.
        OffCause::Crashed
    } else {
        OffCause::GuestShutdown
    }
}

fn running(
    run: &VirtualMachineInstance,
    known: Option<PowerState>,
    state: &BTreeMap<String, String>,
    now: Timestamp,
) -> Idle {
    let mut seen = of_power(Power::On);
    let is_another = state.get(state::RUN).is_some_and(|last| last != run.uid());
    if is_another && known == Some(PowerState::Running) {
        let was = |key| state.contains_key(key) && state.get(key) == state.get(state::RUN);
        seen.restarted = Some(if was(state::OUTSIDE) {
            OffCause::Outside
        } else if was(state::INTERRUPTED) {
            OffCause::Interrupted
        } else {
            OffCause::Crashed
        });
    }
    let paused = run.condition("Paused").filter(|paused| paused.is_true());
    if let Some(paused) = paused {
        seen.raw.clone_from(&paused.message);
        seen.notice = match paused.reason.as_deref() {
            Some("PausedIOError") => Some(Notice::Error(Problem::StorageUnavailable.trouble())),
            Some("PausedByMigrationMonitor") => None,
            _ if run.is_migrating() => None,
            _ => Some(Notice::Told(Problem::Paused.trouble())),
        };
        return seen;
    }
    let silent = run.condition("Ready").filter(|ready| ready.status == "False");
    if let Some(ready) = silent
        && !ready.is_because("PodTerminating")
        && let Some(since) = ready.last_transition_time
    {
        let left = SILENCE - now.duration_since(since);
        if left.is_positive() {
            seen.recheck_after = Duration::try_from(left).ok();
        } else {
            seen.notice = Some(Notice::Told(Problem::NodeUnreachable.trouble()));
            seen.raw.clone_from(&ready.message);
        }
    }
    seen
}

/// A server that KubeVirt restarts, or that somebody else has started.
fn restarting(
    vm: &VirtualMachine,
    run: Option<&VirtualMachineInstance>,
    before: Power,
    now: Timestamp,
) -> Idle {
    let mut seen = of_power(before);
    let is_looping = vm.status.printable_status.as_deref() == Some("CrashLoopBackOff");
    if is_looping {
        seen.notice = Some(Notice::Error(Problem::CrashLoop.trouble()));
        return seen;
    }
    let begun = run.and_then(|run| run.metadata.creation_timestamp.as_ref());
    let Some(begun) = begun.map(|time| time.0) else {
        return seen;
    };
    let left = RESTART - now.duration_since(begun);
    if left.is_positive() {
        seen.recheck_after = Duration::try_from(left).ok();
        return seen;
    }
    let sign = boot_sign(vm, run, begun, now).filter(|sign| sign.after.is_some());
    let problem = sign.as_ref().map_or(Problem::Restarting, |sign| sign.problem);
    seen.notice = Some(Notice::Error(problem.trouble()));
    seen.raw = sign.and_then(|sign| sign.raw);
    seen
}
