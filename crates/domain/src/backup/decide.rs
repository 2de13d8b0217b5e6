//! Decides what to do next with a Backup, given its instance, the other backups of that instance, and the provider's observation.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{
    restore::{HELD, is_held},
    retention::{has_room, is_newest, is_next, is_replaced, needs_retry},
    schedule::{RETRY_AFTER, next_run},
    summary::describe,
};
use crate::{
    event::{outbox, payload::backup_event},
    provider::{BackupObservation, BackupProgress, ProviderError},
};
use resources::{
    Backup, BackupError, BackupPhase, BackupSource, BackupStatus, Instance, InstanceState,
    conditions::whole_seconds,
    origin::{self, ORIGIN_ANNOTATION},
    times::milliseconds,
};

/// How long a backup may run before it counts as failed.
const DEADLINE: SignedDuration = SignedDuration::from_hours(6);
/// When to check again whether the last event of a deleted Backup is settled, in case that is not reported.
const CHECK_AGAIN: Duration = Duration::from_secs(1);
/// When to check again whether a deleted Backup has been restored.
const CHECK_HELD: Duration = Duration::from_mins(10);
/// How long a restored Backup waits for its Instance, which may be restored after it.
const UNTIL_RESTORED: SignedDuration = SignedDuration::from_mins(10);
/// Longest message of an error that is kept, in bytes.
const MAX_MESSAGE: usize = 1000;
/// Longest code of an error, in characters, as the schema has it.
const MAX_CODE: usize = 64;

/// The instance of a Backup.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// There has been no instance of that name yet.
    Missing,
    /// It has been deleted. The object may still exist while its server is being removed.
    Gone(Option<&'a Instance>),
    /// It exists.
    There(&'a Instance),
}

impl<'a> Source<'a> {
    /// The instance of a Backup, where `named` is the Instance with the name in its spec, if there is one.
    pub fn of(backup: &Backup, named: Option<&'a Instance>) -> Self {
        match named {
            Some(instance) if backup.is_of(instance) => {
                if instance.is_deleting() {
                    Self::Gone(Some(instance))
                } else {
                    Self::There(instance)
                }
            }
            _ if backup.source_uid().is_some() => Self::Gone(None),
            _ => Self::Missing,
        }
    }

    const fn instance(&self) -> Option<&'a Instance> {
        match self {
            Self::Missing => None,
            Self::Gone(instance) => *instance,
            Self::There(instance) => Some(instance),
        }
    }
}

/// How many backups there may be when a manual one is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupLimits {
    /// Of one instance: those that wait, run or are completed.
    pub per_instance: usize,
    /// Of an account: also the completed scheduled ones of its deleted instances.
    pub per_account: usize,
}

/// What a decision depends on, besides the Backup and the provider.
pub struct Situation<'a> {
    /// Its instance.
    pub source: Source<'a>,
    /// The backups of an Instance of the same name, this one included.
    pub others: &'a [&'a Backup],
    /// Whether the account has room for this one. Looks at all backups of the account.
    pub has_room_in_account: &'a dyn Fn() -> bool,
    /// Whether this one, a failed one of a deleted instance, must make room for newer ones. Looks at all of the account.
    pub gives_way: &'a dyn Fn() -> bool,
    /// Name of an Instance to which this one is being restored, or will be.
    pub restored_to: Option<&'a str>,
    /// Name of an older Backup with the same origin, of which this one is a copy.
    pub older_twin: Option<String>,
    /// Whether the namespace belongs to an Account. Otherwise the Backup is left alone, and no event is recorded.
    pub has_account: bool,
    /// Whether nothing is left to do for the outbox entry with this id.
    pub is_settled: &'a dyn Fn(&str) -> bool,
    /// Maximum numbers of manual backups.
    pub limits: BackupLimits,
}

/// What to ask the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    Nothing,
    /// How far the backup is; this also begins it, if it has not begun.
    Progress,
    /// Delete its data.
    Delete,
}

/// The provider's answer.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'a> {
    /// It was not asked.
    NotAsked,
    /// How far the backup is.
    Observed(&'a BackupObservation),
    /// Its data is deleted.
    Deleted,
    /// The call failed.
    Failed(&'a ProviderError),
}

/// A Kubernetes Event to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether its type is Warning; else it is Normal.
    pub warning: bool,
    /// CamelCase reason.
    pub reason: &'static str,
    /// Message for people.
    pub message: String,
}

/// The output of a decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The status to write, if it differs from the current one.
    pub status: BackupStatus,
    /// Event to publish once the status is written.
    pub note: Option<Note>,
    /// When to reconcile again if nothing happens before then.
    pub recheck_after: Option<Duration>,
    /// Whether the provider could not answer, so that the next reconcile comes after a backoff.
    pub retry: bool,
    /// What else to do.
    pub effect: Effect,
}

/// What to do besides writing the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// Make the second attempt at this backup, before the status is written.
    TryAgain,
    /// Delete it: newer backups have replaced it.
    Delete,
    /// Remove the finalizer: nothing is left of it.
    Finish,
}

/// What to ask the provider before [`decide()`].
pub fn question(backup: &Backup, situation: &Situation<'_>) -> Question {
    if backup.is_deleting() {
        if situation.older_twin.is_some() {
            // The data is the older one's.
            return Question::Nothing;
        }
        // First its end is recorded, and that it can no longer be restored.
        let waits = backup.is_unfinished() || situation.restored_to.is_some() || is_held(backup);
        return if waits && situation.has_account {
            Question::Nothing
        } else {
            Question::Delete
        };
    }
    match (backup.phase(), &situation.source) {
        (BackupPhase::Running, Source::There(_)) if situation.has_account => Question::Progress,
        (BackupPhase::Failed, _) if situation.has_account && backup.has_data_left() => Question::Delete,
        _ => Question::Nothing,
    }
}

/// Decides what to do about a Backup. Pure: the same input gives the same output, and if nothing has changed, the status does not
/// change either.
pub fn decide(backup: &Backup, situation: &Situation<'_>, seen: Seen<'_>, now: Timestamp) -> Decision {
    let before = backup.status.clone().unwrap_or_default();
    let mut machine = Machine {
        backup,
        situation,
        now,
        decision: Decision {
            status: before.clone(),
            note: None,
            recheck_after: None,
            retry: false,
            effect: Effect::None,
        },
    };
    machine.decision.status.id = Some(backup.id());
    if backup.is_deleting() && situation.older_twin.is_some() {
        machine.decision.effect = Effect::Finish;
        return machine.decision;
    }
    if backup.is_deleting() {
        machine.remove(seen);
        return machine.decision;
    }
    if !situation.has_account {
        let namespace = backup.metadata.namespace.as_deref().unwrap_or_default();
        machine.decision.status.phase = Some(backup.phase());
        if backup.is_unfinished() {
            machine.describe(
                "NoAccount",
                &format!("namespace {namespace} belongs to no Account, so the backup is ignored; create an Account with spec.namespace {namespace}"),
            );
        }
        return machine.decision;
    }
    if let Some(older) = &situation.older_twin {
        let message = format!(
            "this is a copy of Backup {older}, which is older: both have the same annotation {ORIGIN_ANNOTATION}; delete this one, or create it without the annotation"
        );
        machine.describe("OriginTaken", &message);
        return machine.decision;
    }
    match backup.phase() {
        BackupPhase::Waiting => machine.wait(),
        BackupPhase::Running => machine.run(seen),
        BackupPhase::Completed | BackupPhase::Failed => machine.keep(seen),
    }
    let Decision {
        status,
        recheck_after,
        ..
    } = &mut machine.decision;
    let has_changed = *status != before;
    let wait = outbox::clear(
        &mut status.outbox,
        has_changed,
        false,
        before.event_sequence,
        situation.is_settled,
        now,
    );
    if let Some(wait) = wait {
        *recheck_after = Some(recheck_after.map_or(wait, |at| at.min(wait)));
    }
    machine.decision
}

struct Machine<'a> {
    backup: &'a Backup,
    situation: &'a Situation<'a>,
    now: Timestamp,
    decision: Decision,
}

impl Machine<'_> {
    fn others(&self) -> impl Iterator<Item = &Backup> {
        self.situation.others.iter().copied()
    }

    fn describe(&mut self, reason: &'static str, message: &str) {
        let generation = self.backup.metadata.generation;
        describe(&mut self.decision.status, reason, message, generation, self.now);
    }

    /// A Backup that was restored without its status. The provider knows what has become of it; its end has been told before.
    fn take_up(&mut self) {
        let metadata = &self.backup.metadata;
        let since = metadata.creation_timestamp.as_ref();
        let age = since.map_or(SignedDuration::ZERO, |since| self.now.duration_since(since.0));
        let source = self.situation.source;
        if !matches!(source, Source::There(_)) && age < UNTIL_RESTORED {
            let message = format!(
                "the backup was restored, but Instance {} was not yet",
                self.backup.spec.instance
            );
            self.describe("InstanceNotFound", &message);
            self.decision.recheck_after = Duration::try_from(UNTIL_RESTORED - age).ok();
            return;
        }
        self.decision.status.event_sequence = origin::sequence(metadata);
        let Source::There(instance) = source else {
            self.instance_deleted();
            return;
        };
        self.decision.status.phase = Some(BackupPhase::Running);
        self.decision.status.source = Some(BackupSource::of(instance));
        self.decision.status.started_at = Some(self.backup.created_at());
        self.describe("Running", "the provider is asked for the backup");
    }

    /// A Backup that has not begun.
    fn wait(&mut self) {
        if self.decision.status.phase.is_none() && origin::is_restored(&self.backup.metadata) {
            self.take_up();
            return;
        }
        let instance = match self.situation.source {
            Source::Gone(_) => {
                self.instance_deleted();
                return;
            }
            Source::Missing => {
                self.decision.status.phase = Some(BackupPhase::Waiting);
                let message = format!(
                    "there is no Instance {}; the backup begins once there is one",
                    self.backup.spec.instance
                );
                self.describe("InstanceNotFound", &message);
                return;
            }
            Source::There(instance) => instance,
        };
        let limit = self.situation.limits.per_instance;
        if !has_room(self.backup, self.others(), limit) {
            let message =
                format!("the instance has {limit} manual backups already; delete one, then create another");
            self.fail("resource_limit_exceeded", message);
            return;
        }
        if !(self.situation.has_room_in_account)() {
            let limit = self.situation.limits.per_account;
            let message = format!(
                "the account has {limit} manual backups and scheduled ones of deleted instances already; delete one, then create another"
            );
            self.fail("resource_limit_exceeded", message);
            return;
        }
        let status = instance.status.as_ref();
        let state = status.and_then(|status| status.state);
        let is_busy = status.is_none_or(|status| status.operation.is_some());
        if is_busy || !matches!(state, Some(InstanceState::Running | InstanceState::Stopped)) {
            let state = state.map_or("not accepted yet", InstanceState::as_str);
            self.wait_for(instance, "InstanceBusy", &format!("the instance is {state}"));
        } else if is_next(self.backup, self.others()) {
            let message = "the backup is being made";
            self.decision.status.phase = Some(BackupPhase::Running);
            self.decision.status.source = Some(BackupSource::of(instance));
            self.decision.status.started_at = Some(milliseconds(self.now));
            self.describe("Running", message);
            self.note(false, "BackupStarted", message.to_owned());
        } else {
            self.wait_for(
                instance,
                "AnotherBackup",
                "another backup of the instance is under way",
            );
        }
    }

    /// Waits for what is in the way; a scheduled backup only until the next one is due.
    fn wait_for(&mut self, instance: &Instance, reason: &'static str, obstacle: &str) {
        let mut message = format!(
            "{obstacle}; the backup begins once the instance is running or stopped and no other backup is under way"
        );
        if let Some(due) = self.backup.spec.scheduled_for {
            let next = next_run(&instance.id(), due.max(self.backup.created_at()));
            let left = next.duration_since(self.now);
            if left <= SignedDuration::ZERO {
                self.decision.status.retried = true;
                let message = format!("it could not begin before the next backup was due: {obstacle}");
                self.fail("instance_not_ready", message);
                return;
            }
            message = format!("{message}, if that is before {}", whole_seconds(next));
            self.decision.recheck_after = Duration::try_from(left).ok();
        }
        self.decision.status.phase = Some(BackupPhase::Waiting);
        // From now on this instance is meant, whatever gets its name later.
        self.decision
            .status
            .source
            .get_or_insert_with(|| BackupSource::of(instance));
        self.describe(reason, &message);
    }

    /// A Backup that has begun.
    fn run(&mut self, seen: Seen<'_>) {
        if let Source::Gone(_) | Source::Missing = self.situation.source {
            self.instance_deleted();
            return;
        }
        match seen {
            Seen::NotAsked | Seen::Deleted => {}
            Seen::Observed(observation) => {
                self.decision.status.provider_state.clone_from(&observation.state);
                match &observation.progress {
                    BackupProgress::Done { size_gb } => {
                        self.decision.status.size_gb = Some(*size_gb);
                        self.end(BackupPhase::Completed);
                        self.describe("Completed", "the backup can be restored");
                        self.note(
                            false,
                            "BackupCompleted",
                            format!("the backup was completed; it has {size_gb} GB"),
                        );
                        return;
                    }
                    BackupProgress::Failed { code, message } => {
                        self.fail(code, message.clone());
                        return;
                    }
                    BackupProgress::Busy => {
                        self.describe("Running", "the backup is being made");
                        self.decision.recheck_after = observation.recheck_after;
                    }
                }
            }
            Seen::Failed(error) => {
                self.decision.retry = true;
                self.describe(error.reason(), &error.to_string());
                if origin::is_restored(&self.backup.metadata) {
                    // It began long ago, and only the provider knows what has become of it.
                    return;
                }
            }
        }
        let begun = self.decision.status.started_at.unwrap_or(self.now);
        let left = DEADLINE - self.now.duration_since(begun);
        if left <= SignedDuration::ZERO {
            let hours = DEADLINE.as_hours();
            self.decision.retry = false;
            self.fail(
                "timeout",
                format!("the backup was not completed within {hours} hours"),
            );
        } else if left > DEADLINE {
            // The clock was set back.
            self.decision.status.started_at = Some(milliseconds(self.now));
        } else {
            let left = Duration::try_from(left).unwrap_or_default();
            let recheck = &mut self.decision.recheck_after;
            *recheck = Some(recheck.map_or(left, |at| at.min(left)));
        }
    }

    /// A Backup that has come to its end.
    fn keep(&mut self, seen: Seen<'_>) {
        match seen {
            Seen::Deleted => self.decision.status.data_left = false,
            Seen::Failed(_) => self.decision.retry = true,
            Seen::NotAsked | Seen::Observed(_) => {}
        }
        let is_gone = matches!(self.situation.source, Source::Gone(_));
        self.decision.status.instance_deleted |= is_gone;
        if is_replaced(self.backup, self.others()) || is_gone && (self.situation.gives_way)() {
            self.decision.effect = Effect::Delete;
        }
        if !needs_retry(self.backup) {
            return;
        }
        let is_wanted = matches!(self.situation.source, Source::There(instance) if instance.spec.backup_enabled)
            && is_newest(self.backup, self.others());
        let ended = self.decision.status.completed_at.unwrap_or(self.now);
        let left = (RETRY_AFTER - self.now.duration_since(ended)).min(RETRY_AFTER);
        if is_wanted && left > SignedDuration::ZERO {
            self.decision.recheck_after = Duration::try_from(left).ok();
        } else {
            if is_wanted {
                self.decision.effect = Effect::TryAgain;
            }
            self.decision.status.retried = true;
        }
    }

    /// A Backup that is being deleted: if it is in progress, it ends first; then its data is deleted, and then the
    /// object, once its event is settled.
    fn remove(&mut self, seen: Seen<'_>) {
        if self.backup.is_unfinished() && self.situation.has_account {
            self.fail(
                "backup_deleted",
                "the backup was deleted before it was completed".to_owned(),
            );
            return;
        }
        if let Some(instance) = self.situation.restored_to.filter(|_| self.situation.has_account) {
            let message = format!("it is deleted once it has been restored to Instance {instance}");
            self.describe(HELD, &message);
            self.decision.recheck_after = Some(CHECK_HELD);
            return;
        }
        if self.situation.has_account && is_held(self.backup) {
            self.describe("Deleting", "its data is being deleted");
            return;
        }
        match seen {
            Seen::Deleted => {
                let outbox = &self.decision.status.outbox;
                let is_settled = |id: &str| (self.situation.is_settled)(id);
                if !self.situation.has_account || outbox.iter().all(|entry| is_settled(&entry.id)) {
                    self.decision.effect = Effect::Finish;
                }
                self.decision.recheck_after = Some(CHECK_AGAIN);
            }
            Seen::Failed(error) => {
                self.decision.retry = true;
                self.describe(error.reason(), &error.to_string());
            }
            Seen::NotAsked | Seen::Observed(_) => {}
        }
    }

    fn instance_deleted(&mut self) {
        self.decision.status.instance_deleted = true;
        self.decision.status.retried = self.backup.is_scheduled();
        self.fail(
            "instance_deleted",
            "the instance was deleted before the backup was completed".to_owned(),
        );
    }

    fn fail(&mut self, code: &str, mut message: String) {
        let end = (0..=message.len().min(MAX_MESSAGE))
            .rev()
            .find(|end| message.is_char_boundary(*end));
        message.truncate(end.unwrap_or(0));
        if self.decision.status.source.is_none()
            && let Some(instance) = self.situation.source.instance()
        {
            self.decision.status.source = Some(BackupSource::of(instance));
        }
        self.decision.status.error = Some(BackupError {
            code: code.chars().take(MAX_CODE).collect(),
            message: message.clone(),
        });
        // One that was restored may have been completed before.
        self.decision.status.data_left =
            self.decision.status.started_at.is_some() && !origin::is_restored(&self.backup.metadata);
        self.end(BackupPhase::Failed);
        self.describe("Failed", &message);
        self.note(true, "BackupFailed", message);
    }

    /// Records the end and its event. The event is recorded only once, because an end is written once, and there is no
    /// other. A Backup of whose instance nothing is known gets no event, nor does one whose end was told before it was restored.
    fn end(&mut self, phase: BackupPhase) {
        let now = milliseconds(self.now);
        let status = &mut self.decision.status;
        status.phase = Some(phase);
        status.completed_at = Some(now);
        let Some(source) = status.source.clone().filter(|_| status.event_sequence == 0) else {
            return;
        };
        status.event_sequence += 1;
        let sequence = status.event_sequence;
        let entry = backup_event(
            self.backup,
            status,
            &source,
            self.situation.source.instance(),
            sequence,
            now,
        );
        status.outbox.push(entry);
    }

    fn note(&mut self, warning: bool, reason: &'static str, message: String) {
        self.decision.note = Some(Note {
            warning,
            reason,
            message,
        });
    }
}
