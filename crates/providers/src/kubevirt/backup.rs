//! What to do next about a backup of a server in a cluster: pure, as [`plan`](mod@super::plan) is about the server itself.
//!
//! A backup is a snapshot of the server's disk, which nothing in the cluster owns: it outlives disk and server. If there is an agent in
//! the guest, the guest holds still while the snapshot is cut. That is only as long as it takes, and no reason to have no backup.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    names::{BACKUP_UID, CONSISTENCY, INSTALLATION, INSTANCE_UID, MANAGED_BY, STELLAGE, Server, Snapshot},
    observe::state,
    plan::{Action, Answer, Calls, Conversation, Kind, NOT_NOW, Reach, Refusal, says},
    slim::{VirtualMachine, VirtualMachineInstance, VolumeSnapshot},
};
use domain::{
    catalogue::region::KubeVirt,
    provider::{BackupObservation, BackupProgress, ProviderError},
};
use resources::{Backup, BackupPhase, Instance};

/// How long after it froze the guest surely still was: Windows goes on after ten seconds, others when KubeVirt lets them, after 30.
const HOLDS_STILL: SignedDuration = SignedDuration::from_secs(10);
/// How long a snapshot may report errors; the storage tries again.
const ERRORS_FOR: SignedDuration = SignedDuration::from_mins(5);
/// How long a snapshot may take.
const READY_WITHIN: SignedDuration = SignedDuration::from_hours(1);
/// How soon to look again at a snapshot, which nothing watches, at first and later.
const POLL: Duration = Duration::from_secs(2);
const POLL_AT_MOST: Duration = Duration::from_secs(10);
/// How long after its end a call that was given up may still make a snapshot: an API server gives each a minute.
const LATE: SignedDuration = SignedDuration::from_secs(75);
/// For how long a snapshot that is neither cut nor refused is not deleted: external-snapshotter may be about to take it up, and would then
/// protect the disk for good.
const TAKEN_UP_WITHIN: SignedDuration = SignedDuration::from_mins(1);
/// What external-snapshotter says if a snapshot's data is lost.
const LOST: &str = "VolumeSnapshotContent is missing";

/// Codes of errors, as in `status.error` of a Backup.
mod code {
    pub(super) const NOT_AVAILABLE: &str = "not_available";
    pub(super) const FAILED: &str = "snapshot_failed";
    pub(super) const TIMEOUT: &str = "timeout";
}

/// Keys of `status.providerState`.
mod known {
    /// As the annotation of the snapshot.
    pub(super) const CONSISTENCY: &str = "consistency";
    /// Set until the guest has been told to go on.
    pub(super) const FROZEN: &str = "frozen";
    /// Since when the snapshot has been reporting errors.
    pub(super) const FAILING_SINCE: &str = "failingSince";
}

/// What the guest knew of its backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Consistency {
    /// Its agent had all written to the disk, and nothing more until the snapshot was cut.
    Agent,
    /// Nothing: the disk is as after a power cut.
    Crash,
    /// The server was off.
    Off,
}

/// What is known when a call is planned.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Whether the cluster answers.
    pub reach: Reach,
    /// The server.
    pub vm: Option<Arc<VirtualMachine>>,
    calls: Calls,
}

impl Seen {
    /// What is known before the first call.
    pub fn new(reach: Reach, vm: Option<Arc<VirtualMachine>>) -> Self {
        Self {
            reach,
            vm,
            calls: Calls::default(),
        }
    }
}

impl Conversation for Seen {
    fn calls(&self) -> &Calls {
        &self.calls
    }

    fn take(&mut self, action: Action, answer: Answer) {
        self.calls.push(action, answer);
    }
}

/// What to do next, and what to report if nothing is done.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<T> {
    /// The next call. One that was made before is made again after a moment.
    pub action: Option<Action>,
    /// What to report if there is no call, or no time for it.
    pub outcome: Result<T, ProviderError>,
    /// What the cluster says about trouble, for the log.
    pub raw: Option<String>,
}

impl<T> Plan<T> {
    pub(super) const fn end(outcome: Result<T, ProviderError>, raw: Option<String>) -> Self {
        Self {
            action: None,
            outcome,
            raw,
        }
    }

    /// The end if the region answers something else.
    pub(super) fn nonsense(region: &str) -> Self {
        let message = format!("the region {region} answered something else");
        Self::end(Err(ProviderError::Nonsense(message)), None)
    }
}

/// Plans the next call about a backup, which is begun if it is not there.
pub fn plan(
    backup: &Backup,
    instance: &Instance,
    seen: &Seen,
    region: &KubeVirt,
    now: Timestamp,
) -> Plan<BackupObservation> {
    let planner = Planner::new(backup, &instance.spec.region, seen, region, now);
    if let Some(unreachable) = planner.unreachable() {
        return Plan::end(Err(unreachable), None);
    }
    let step = match planner.snapshot() {
        Err(action) => Err(planner.todo(action)),
        Ok(Found::Snapshot(snapshot)) => planner.follow(snapshot, &Server::of(instance, region)),
        Ok(Found::Nothing) if planner.known(known::CONSISTENCY).is_some() => {
            Err(failed(code::FAILED, "the snapshot of the disk is lost", None))
        }
        Ok(Found::Nothing) => planner.begin(instance),
        Ok(Found::Refused(refusal)) => Err(not_now(refusal)),
    };
    *step.map_or_else(|plan| plan, |progress| observed(progress, BTreeMap::new()))
}

/// Plans the next call that deletes the data of a backup.
pub fn plan_deletion(
    backup: &Backup,
    code: &str,
    seen: &Seen,
    region: &KubeVirt,
    now: Timestamp,
) -> Plan<()> {
    let planner = Planner::new(backup, code, seen, region, now);
    if let Some(unreachable) = planner.unreachable() {
        return Plan::end(Err(unreachable), None);
    }
    planner.delete()
}

/// What there is of a backup in the cluster.
enum Found<'a> {
    Snapshot(&'a VolumeSnapshot),
    Nothing,
    Refused(&'a Refusal),
}

/// A part of the work: its result, unless something has to be done first or the work ends there.
type Step<T> = Result<T, Box<Plan<BackupObservation>>>;

struct Planner<'a> {
    backup: &'a Backup,
    code: &'a str,
    seen: &'a Seen,
    region: &'a KubeVirt,
    place: Snapshot,
    now: Timestamp,
}

impl<'a> Planner<'a> {
    fn new(backup: &'a Backup, code: &'a str, seen: &'a Seen, region: &'a KubeVirt, now: Timestamp) -> Self {
        Self {
            backup,
            code,
            seen,
            region,
            place: Snapshot::of(backup, region),
            now,
        }
    }

    fn unreachable(&self) -> Option<ProviderError> {
        let Reach::Cut(since) = self.seen.reach else {
            return None;
        };
        Some(ProviderError::Unreachable {
            region: self.code.to_owned(),
            since,
        })
    }

    /// The snapshot, as it was last seen; or the call that looks.
    fn snapshot(&self) -> Result<Found<'a>, Action> {
        let last = self.seen.calls.rev().find_map(|call| match call {
            (_, Answer::Snapshot(snapshot)) => Some(Ok(Found::Snapshot(snapshot))),
            (Action::Get { kind, .. }, Answer::Refused(refusal)) if *kind == Kind::Snapshot => {
                Some(Ok(match refusal.status {
                    404 => Found::Nothing,
                    _ => Found::Refused(refusal),
                }))
            }
            (Action::Post { .. }, Answer::Refused(refusal)) => match refusal.status {
                // A call that had been given up has made it.
                409 => Some(Err(self.look())),
                _ => Some(Ok(Found::Nothing)),
            },
            _ => None,
        });
        last.unwrap_or_else(|| Err(self.look()))
    }

    fn look(&self) -> Action {
        Action::get(Kind::Snapshot, &self.place.name)
    }

    /// Begins the backup.
    fn begin(&self, instance: &Instance) -> Step<BackupProgress> {
        let unavailable = |raw| {
            failed(
                code::NOT_AVAILABLE,
                "backups are not available in this region",
                raw,
            )
        };
        let Some(class) = &self.region.snapshot_class else {
            return Err(unavailable(None));
        };
        match self.call(Action::get(Kind::SnapshotClass, class))? {
            Answer::SnapshotClass(found) if found.deletion_policy == "Delete" => {}
            Answer::SnapshotClass(found) => {
                let policy = &found.deletion_policy;
                let raw = format!(
                    "VolumeSnapshotClass {class} has deletionPolicy {policy}, so deleted backups would leave their data; it must be Delete"
                );
                return Err(unavailable(Some(raw)));
            }
            Answer::Refused(refusal) if refusal.status == 404 => {
                return Err(unavailable(Some(says(refusal))));
            }
            Answer::Refused(refusal) => return Err(not_now(refusal)),
            _ => return Err(self.nonsense()),
        }
        let server = Server::of(instance, self.region);
        let vm = self.seen.vm.as_deref();
        let last = instance.status.as_ref();
        let last = last.and_then(|status| status.provider_state.get(state::DISK));
        let Some(disk) = vm.and_then(VirtualMachine::disk).or(last.map(String::as_str)) else {
            return Err(failed(code::FAILED, "the server has no disk", None));
        };
        let consistency = self.freeze(&server)?;
        let post = Action::Post {
            kind: Kind::Snapshot,
            object: self.object(class, disk, &server, consistency),
        };
        let Answer::Refused(refusal) = self.call(post)? else {
            return Err(self.nonsense());
        };
        if consistency == Consistency::Agent {
            self.thaw(&server)?;
        }
        // An API server that has just started does not know anybody's rights yet.
        let may_pass = matches!(refusal.status, 404 | 408 | 429) || refusal.message.contains(" cannot ");
        if may_pass || !(400..500).contains(&refusal.status) {
            return Err(not_now(refusal));
        }
        let words = "the cluster of the region refuses the snapshot";
        Err(failed(code::FAILED, words, Some(says(refusal))))
    }

    /// Has the guest go on.
    fn thaw(&self, server: &Server) -> Step<()> {
        let name = server.name.clone();
        self.call(Action::Thaw { name }).map(drop)
    }

    /// Has the guest hold still, if it can.
    fn freeze(&self, server: &Server) -> Step<Consistency> {
        let vm = self.seen.vm.as_deref();
        let Some(run) = self.run(server, vm)?.filter(|run| !run.is_final()) else {
            let is_seen = vm.is_some_and(|vm| vm.status.created);
            return Ok(if is_seen {
                Consistency::Crash
            } else {
                Consistency::Off
            });
        };
        if !run.is_running() || run.is_migrating() || !run.has_agent() {
            return Ok(Consistency::Crash);
        }
        let name = server.name.clone();
        Ok(match self.call(Action::Freeze { name })? {
            Answer::Refused(_) => Consistency::Crash,
            _ => Consistency::Agent,
        })
    }

    /// The server's run. The watch may not have shown yet that an agent has come, and what it shows late would be wrong of the backup for
    /// good.
    fn run(&self, server: &Server, vm: Option<&VirtualMachine>) -> Step<Option<&'a VirtualMachineInstance>> {
        match self.call(Action::get(Kind::Run, &server.name))? {
            Answer::Run(run) => Ok(Some(&**run).filter(|run| vm.is_some_and(|vm| run.is_run_of(vm)))),
            Answer::Refused(refusal) if refusal.status == 404 => Ok(None),
            Answer::Refused(refusal) => Err(not_now(refusal)),
            _ => Err(self.nonsense()),
        }
    }

    fn object(&self, class: &str, disk: &str, server: &Server, consistency: Consistency) -> Value {
        let consistency: &str = consistency.into();
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {
                "name": self.place.name, "namespace": self.place.namespace,
                "labels": {
                    MANAGED_BY: STELLAGE, INSTALLATION: self.region.installation, INSTANCE_UID: server.uid,
                    BACKUP_UID: self.place.uid,
                },
                "annotations": { CONSISTENCY: consistency },
            },
            "spec": {
                "volumeSnapshotClassName": class,
                // A claim has the name of its DataVolume.
                "source": { "persistentVolumeClaimName": disk },
            },
        })
    }

    /// Follows a snapshot that there is.
    fn follow(&self, snapshot: &VolumeSnapshot, server: &Server) -> Step<BackupProgress> {
        if !snapshot.is_of(&self.place) {
            let raw = format!("VolumeSnapshot {} is not that of this backup", self.place.name);
            return Err(failed(
                code::FAILED,
                "something else in the region has its name",
                Some(raw),
            ));
        }
        if snapshot.metadata.deletion_timestamp.is_some() {
            let words = "the snapshot was deleted by the platform's operators";
            return Err(failed(code::FAILED, words, None));
        }
        let mut state = BTreeMap::new();
        let has_cut = snapshot.status.creation_time.is_some();
        let mut calls = self.seen.calls.rev();
        let asked = calls.find(|(action, _)| matches!(action, Action::Freeze { .. }));
        // One that was not answered may have been done.
        let has_failed = matches!(asked, Some((_, Answer::Refused(_))));
        let is_frozen = asked.is_some() || self.known(known::FROZEN).is_some();
        if is_frozen && (has_cut || has_failed) {
            self.thaw(server)?;
        } else if is_frozen {
            state.insert(known::FROZEN.to_owned(), "true".to_owned());
        }
        let consistency = self.judged(snapshot)?;
        state.insert(known::CONSISTENCY.to_owned(), consistency.to_owned());
        if snapshot.is_ready() {
            self.is_first_cut(snapshot)?;
            return Err(observed(self.done(), state));
        }
        let status = self.backup.status.as_ref();
        let begun = status.and_then(|status| status.started_at).unwrap_or(self.now);
        let elapsed = self.now.duration_since(begun);
        if let Some(error) = snapshot.error() {
            let since = self.known(known::FAILING_SINCE).and_then(|at| at.parse().ok());
            let since = since.unwrap_or(self.now);
            state.insert(known::FAILING_SINCE.to_owned(), since.to_string());
            if error.contains(LOST) || self.now.duration_since(since) >= ERRORS_FOR {
                let words = "the storage of the region could not make the snapshot";
                return Err(failed(code::FAILED, words, Some(error.to_owned())));
            }
        }
        if elapsed >= READY_WITHIN {
            let words = format!(
                "the storage of the region has not completed the snapshot within {} minutes",
                READY_WITHIN.as_mins()
            );
            let raw = snapshot.error().map(str::to_owned);
            return Err(failed(code::TIMEOUT, &words, raw));
        }
        let elapsed = Duration::try_from(elapsed).unwrap_or_default();
        let mut plan = observed(BackupProgress::Busy, state);
        if let Ok(seen) = &mut plan.outcome {
            seen.recheck_after = Some((elapsed / 5).clamp(POLL, POLL_AT_MOST));
        }
        if is_frozen && !has_cut && !has_failed {
            // The guest goes on as soon as that is possible.
            plan.action = Some(self.look());
        }
        plan.raw = snapshot.error().map(str::to_owned);
        Err(plan)
    }

    /// Whether the data is that of the first cut: if that was lost before it was ready, external-snapshotter has cut the disk again.
    fn is_first_cut(&self, snapshot: &VolumeSnapshot) -> Step<()> {
        let name = snapshot.status.bound_volume_snapshot_content_name.as_deref();
        match self.call(Action::get(Kind::SnapshotContent, name.unwrap_or_default()))? {
            Answer::SnapshotContent(content) if content.holds(snapshot) => Ok(()),
            Answer::Refused(refusal) if refusal.status != 404 => Err(not_now(refusal)),
            _ => {
                let words = "the storage of the region has lost the snapshot";
                Err(failed(code::FAILED, words, None))
            }
        }
    }

    /// What the guest knew of it. Before it is cut, that can still become less.
    fn judged(&self, snapshot: &VolumeSnapshot) -> Step<&'static str> {
        let written = snapshot.consistency().unwrap_or_default();
        let made_at = snapshot.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let took = made_at.zip(snapshot.status.creation_time);
        let took = took.map(|(made_at, cut)| cut.duration_since(made_at));
        if written == "agent" && took.is_some_and(|took| took > HOLDS_STILL) {
            let patch = json!({
                "metadata": { "uid": snapshot.metadata.uid, "annotations": { CONSISTENCY: "crash" } },
            });
            let patch = Action::patch(Kind::Snapshot, &self.place.name, patch);
            if let Answer::Refused(refusal) = self.call(patch)? {
                return Err(not_now(refusal));
            }
            return Ok("crash");
        }
        Ok(match written {
            "agent" => "agent",
            "off" => "off",
            _ => "crash",
        })
    }

    /// It is billed by the size of the disk: the storage does not say how much of it is in use.
    fn done(&self) -> BackupProgress {
        let status = self.backup.status.as_ref();
        let source = status.and_then(|status| status.source.as_ref());
        BackupProgress::Done {
            size_gb: source.map_or(0.0, |source| f64::from(source.disk_size_gb)),
        }
    }

    /// Deletes the data: it is gone once the snapshot is, which the storage holds until then.
    fn delete(&self) -> Plan<()> {
        let not_now = |words: &str| Err(ProviderError::Unavailable(words.to_owned()));
        let held = "the storage of the region has not removed the data yet; still trying";
        let todo = |action| Plan {
            action: Some(action),
            outcome: not_now(held),
            raw: None,
        };
        let snapshot = match self.snapshot() {
            Err(action) => return todo(action),
            Ok(Found::Snapshot(snapshot)) => snapshot,
            Ok(Found::Nothing) if self.may_come_late() => {
                let words = "a call that was given up may still make it, for up to a minute";
                return Plan::end(not_now(words), None);
            }
            Ok(Found::Nothing) => return Plan::end(Ok(()), None),
            Ok(Found::Refused(refusal)) if refusal.status == 403 => {
                // The rights are gone with the namespace, and so is all that was in it.
                let get = Action::get(Kind::Namespace, &self.place.namespace);
                return match self.seen.calls.answer(&get) {
                    None => todo(get),
                    Some(Answer::Refused(gone)) if gone.status == 404 => Plan::end(Ok(()), None),
                    Some(_) => Plan::end(not_now(NOT_NOW), Some(says(refusal))),
                };
            }
            Ok(Found::Refused(refusal)) => return Plan::end(not_now(NOT_NOW), Some(says(refusal))),
        };
        if !snapshot.is_of(&self.place) {
            return Plan::end(Ok(()), None);
        }
        let delete = Action::delete(Kind::Snapshot, &snapshot.metadata);
        if snapshot.metadata.deletion_timestamp.is_none() {
            if !self.is_taken_up(snapshot) {
                let words = "the storage of the region has yet to take the snapshot up";
                return Plan::end(not_now(words), None);
            }
            match self.seen.calls.answer(&delete) {
                None => return todo(delete),
                Some(Answer::Refused(refusal)) if !matches!(refusal.status, 404 | 409) => {
                    return Plan::end(not_now(NOT_NOW), Some(says(refusal)));
                }
                Some(_) => {}
            }
        }
        Plan {
            action: Some(self.look()),
            outcome: not_now(held),
            raw: snapshot.error().map(str::to_owned),
        }
    }

    fn is_taken_up(&self, snapshot: &VolumeSnapshot) -> bool {
        let made_at = snapshot.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let is_old = made_at.is_none_or(|made_at| self.now.duration_since(made_at) >= TAKEN_UP_WITHIN);
        is_old || snapshot.status.creation_time.is_some() || snapshot.error().is_some()
    }

    /// Whether a call of this process, or of the leader before, may still be carried out that makes the snapshot. What is completed was
    /// seen to be there.
    fn may_come_late(&self) -> bool {
        let status = self.backup.status.as_ref();
        let ended = status.and_then(|status| status.completed_at);
        let is_late = |ended: Timestamp| self.now.duration_since(ended) < LATE;
        self.backup.phase() == BackupPhase::Failed && ended.is_some_and(is_late)
    }

    /// What is known from earlier calls.
    fn known(&self, key: &str) -> Option<&str> {
        let status = self.backup.status.as_ref()?;
        status.provider_state.get(key).map(String::as_str)
    }

    /// The answer to a call; makes the call first.
    fn call(&self, action: Action) -> Step<&'a Answer> {
        let answer = self.seen.calls.answer(&action);
        answer.ok_or_else(|| self.todo(action))
    }

    fn todo(&self, action: Action) -> Box<Plan<BackupObservation>> {
        let state = self.backup.status.as_ref();
        let state = state.map(|status| status.provider_state.clone());
        let mut plan = observed(BackupProgress::Busy, state.unwrap_or_default());
        if let Ok(seen) = &mut plan.outcome {
            seen.recheck_after = Some(POLL);
        }
        plan.action = Some(action);
        plan
    }

    fn nonsense(&self) -> Box<Plan<BackupObservation>> {
        Box::new(Plan::nonsense(self.code))
    }
}

fn observed(progress: BackupProgress, state: BTreeMap<String, String>) -> Box<Plan<BackupObservation>> {
    let seen = BackupObservation {
        progress,
        state,
        recheck_after: None,
    };
    Box::new(Plan::end(Ok(seen), None))
}

/// The end of a backup that cannot be made. Account holders read the words, and operators what the cluster says.
fn failed(code: &'static str, words: &str, raw: Option<String>) -> Box<Plan<BackupObservation>> {
    let message = words.to_owned();
    let mut plan = observed(BackupProgress::Failed { code, message }, BTreeMap::new());
    plan.raw = raw;
    plan
}

fn not_now(refusal: &Refusal) -> Box<Plan<BackupObservation>> {
    let error = ProviderError::Unavailable(NOT_NOW.to_owned());
    Box::new(Plan::end(Err(error), Some(says(refusal))))
}

#[cfg(test)]
mod tests;
