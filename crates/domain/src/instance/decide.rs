//! The next status of an instance, given its spec, its status, and the provider's observation.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{
    decision::{Audience, Decision, Gate, Note, Seen},
    requests::{accept, begin, granted, refuse, state_during, take_on, told_apart},
    summary,
};
use crate::{
    alert, backup,
    event::{
        EventType, OutboxEntry, outbox,
        payload::{User, alert_event, instance_event, missed_backup_event},
    },
    invoice::{Period, metering},
    provider::{
        Addresses, Deadlines, Notice, Observation, OffCause, Power, Progress, ProviderError, Trouble,
    },
};
use resources::{
    Backup, BackupError, Instance, InstanceSpec, InstanceState, InstanceStatus, Operation, OperationKind,
    Plan, PowerState, origin, times::milliseconds, tracking,
};

/// How far in the future the start of an operation may be: the clocks of replicas differ a little.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_secs(60);

/// Decides what to do about an instance. Pure: the same input gives the same output, and if nothing has changed, the status
/// does not change either.
pub fn decide(
    instance: &Instance,
    gate: &Gate,
    seen: Seen<'_>,
    audience: Audience<'_>,
    now: Timestamp,
    deadlines: &Deadlines,
) -> Decision {
    let before = instance.status.clone().unwrap_or_default();
    let mut machine = Machine {
        instance,
        user: audience.user,
        now,
        deadlines,
        status: before.clone(),
        trouble: None,
        off_cause: None,
        restarted: None,
        started: false,
        ended: None,
        retry: false,
    };
    refuse(instance, &mut machine.status, gate);
    let mut recheck_after = None;
    let mut finished = false;
    match seen {
        Seen::NotAsked(addresses) => machine.learn_addresses(addresses),
        Seen::Observed(observation) if before.state.is_none() => machine.take_up(observation),
        Seen::Observed(observation) => {
            recheck_after = observation.recheck_after;
            if machine.observe(observation) {
                // The failure of a backup in progress is reported before the deletion.
                finished = !audience.is_backed_up_now && machine.announce_deletion(audience.is_settled);
                // Settling the last event requeues the instance; this is in case the requeue gets lost.
                recheck_after = Some(Duration::from_secs(1));
            } else {
                machine.announce_power(&before, gate);
            }
        }
        Seen::Failed(_) if is_out_of_reach(&before, seen) => {}
        Seen::Failed(error) => machine.provider_failed(error),
    }
    // What was restored is accepted once the provider has said whether it has a server.
    let is_unknown = before.state.is_none() && matches!(seen, Seen::Failed(_));
    if !is_unknown {
        machine.accept(&before, gate);
    }
    meter(instance, &mut machine.status, audience.is_billed, now);
    let next = machine.status.operation.take();
    machine.status.operation = next.map(|next| told_apart(next, machine.ended.as_ref()));
    let Machine {
        mut status,
        trouble,
        off_cause,
        restarted,
        ended,
        retry,
        ..
    } = machine;
    status.id = Some(instance.id());
    if is_out_of_reach(&before, seen) && status.operation.is_none() {
        // The conditions say what was last seen: a region that is cut off must not cost a write for each of its servers.
        status.observed_generation = instance.metadata.generation;
    } else {
        summary::describe(instance, gate, trouble.as_ref(), off_cause, &mut status, now);
    }
    touch(instance, &before, &mut status, now);
    let begun = summary::begun(&before, &status);
    // Not together with the end of another operation: if that is lost too, it is repeated.
    let spec = granted(&instance.spec, &status);
    let may_be_stored_later =
        !retry && ended.is_none() && begun.is_some_and(|begun| is_harmless(begun, &before, &spec));
    let mut notes = summary::notes(
        &before,
        &status,
        ended.as_ref(),
        trouble.as_ref(),
        off_cause,
        restarted,
    );
    notes.extend(watch_alerts(instance, audience, &mut status, now));
    let backup_due = schedule_backup(instance, gate, &mut status, now);
    // A backup that is due while the gate is closed waits for a change.
    if let Some(next) = status.next_backup_at.filter(|next| *next > now) {
        let left = Duration::try_from(next.duration_since(now)).unwrap_or_default();
        recheck_after = Some(recheck_after.map_or(left, |at: Duration| at.min(left)));
    }
    if let Some(wait) = clear_outbox(&mut status, &before, audience, now)
        && !finished
    {
        recheck_after = Some(recheck_after.map_or(wait, |at: Duration| at.min(wait)));
    }
    if before.operation.is_some() && status.operation.is_none() && ended.is_none() {
        // It was dropped. Look at once at what it has left behind.
        recheck_after = Some(Duration::ZERO);
    }
    if status != before {
        alert::alerts::purge(&mut status.alerts, now);
    }
    if let Some(operation) = &status.operation {
        let left = limits(operation, deadlines)
            .into_iter()
            .map(|limit| limit.saturating_sub(elapsed(operation, now)));
        recheck_after = left.filter(|left| !left.is_zero()).chain(recheck_after).min();
    }
    Decision {
        status,
        notes,
        recheck_after,
        retry,
        finished,
        may_be_stored_later: may_be_stored_later && backup_due.is_none(),
        backup_due,
    }
}

/// Keeps `status.updatedAt` up to date.
fn touch(instance: &Instance, before: &InstanceStatus, status: &mut InstanceStatus, now: Timestamp) {
    if visible(status) != visible(before) {
        status.updated_at = Some(milliseconds(now));
    } else if status.observed_generation != before.observed_generation
        && !tracking::is_tracked(&instance.metadata)
    {
        // Unless REST changed the spec, nothing else says when it was changed.
        let by_rest = tracking::spec_changed_at(&instance.metadata);
        status.updated_at = by_rest
            .filter(|at| before.updated_at < Some(*at))
            .or(Some(milliseconds(now)));
    }
}

/// Whether nothing is known about a server that nothing is asked of, because its region cannot be reached.
fn is_out_of_reach(before: &InstanceStatus, seen: Seen<'_>) -> bool {
    matches!(seen, Seen::Failed(ProviderError::Unreachable { .. }))
        && before.state.is_some()
        && before.operation.is_none()
}

/// Keeps `status.metering` up to date. An instance is billed from when it first runs until its deletion is accepted,
/// for the plan in effect. What began to be billed goes on being billed.
fn meter(instance: &Instance, status: &mut InstanceStatus, is_billed: bool, now: Timestamp) {
    if instance.is_deleting() {
        return;
    }
    let plan = status.plan.unwrap_or(instance.spec.plan);
    let Some(hours) = &mut status.metering else {
        if is_billed && status.power == Some(PowerState::Running) {
            // If the clock was wrong then, do not bill for the time before the instance existed.
            let since = milliseconds(now).max(instance.created_at());
            status.metering = Some(metering::begin(plan, since));
        }
        return;
    };
    if metering::change(hours, plan, milliseconds(now)) {
        // Anything older has long been copied to the account's ledger.
        let last_month = Period::before(Period::month_of(now));
        metering::forget(hours, last_month.from);
    }
}

/// Keeps `status.nextBackupAt` up to date, even while the spec asks for what cannot be done. Returns the scheduled time
/// for which a backup is to be made now, before the status is stored.
fn schedule_backup(
    instance: &Instance,
    gate: &Gate,
    status: &mut InstanceStatus,
    now: Timestamp,
) -> Option<Timestamp> {
    if matches!(gate, Gate::NoAccount(_) | Gate::NoRegion(_)) && !instance.is_deleting() {
        return None;
    }
    let is_wanted =
        instance.spec.backup_enabled && !instance.is_deleting() && status.provisioned_at.is_some();
    let plan = backup::schedule::plan(&instance.id(), is_wanted, status.next_backup_at, now);
    status.next_backup_at = plan.next;
    plan.due
}

/// Ends and fires alerts, in the status and so also in the outbox. Nobody is notified when an alert ends.
fn watch_alerts(
    instance: &Instance,
    audience: Audience<'_>,
    status: &mut InstanceStatus,
    now: Timestamp,
) -> Vec<Note> {
    let now = milliseconds(now);
    let is_watched = instance.spec.monitoring_enabled
        && !instance.is_deleting()
        && status.power == Some(PowerState::Running);
    if !is_watched {
        alert::alerts::end_all(&mut status.alerts, now);
        return Vec::new();
    }
    let findings = audience
        .findings
        .filter(|findings| findings.started_at == status.started_at && audience.user.is_some());
    let Some(findings) = findings else {
        return Vec::new();
    };
    let uid = origin::uid(&instance.metadata);
    let fired = alert::alerts::advance(&mut status.alerts, findings, uid, status.event_sequence, now);
    for alert in &fired {
        status.event_sequence += 1;
        let entry = alert_event(instance, status, alert, status.event_sequence, now);
        status.outbox.push(entry);
    }
    fired.iter().map(summary::fired).collect()
}

/// Tells of a scheduled backup that the API server has refused to create.
pub fn tell_missed_backup(
    instance: &Instance,
    status: &mut InstanceStatus,
    backup: &Backup,
    message: String,
    now: Timestamp,
) {
    let error = BackupError {
        code: "resource_limit_exceeded".to_owned(),
        message,
    };
    status.event_sequence += 1;
    let entry = missed_backup_event(backup, error, instance, status, status.event_sequence, now);
    status.outbox.push(entry);
}

/// Whether it does no harm to run another operation of this kind, if a process dies before it has stored that there was
/// one.
fn is_harmless(operation: &Operation, before: &InstanceStatus, spec: &InstanceSpec) -> bool {
    match operation.kind {
        // A creation that is decided again is the same operation.
        OperationKind::Create | OperationKind::Stop | OperationKind::Delete => true,
        // A start that makes the server, or changes its plan, is like a creation or a resize.
        OperationKind::Start => before.provisioned_at.is_some() && before.plan == Some(operation.plan),
        // Otherwise a start follows, and a server that is running again would be cut off again.
        OperationKind::PowerOff => matches!(spec.power_state, PowerState::Stopped),
        OperationKind::Reboot | OperationKind::Resize | OperationKind::Rebuild => false,
    }
}

/// Removes settled events from the outbox, together with another change of the status or after a while
/// ([`outbox::clear`]). Returns the time until the next check. The outbox of a deleted server is left alone: it
/// disappears with the object.
fn clear_outbox(
    status: &mut InstanceStatus,
    before: &InstanceStatus,
    audience: Audience<'_>,
    now: Timestamp,
) -> Option<Duration> {
    let is_last = |entry: &OutboxEntry| entry.event_type == EventType::InstanceDeleted;
    if status.outbox.iter().any(is_last) {
        return None;
    }
    let has_changed = status != before;
    outbox::clear(
        &mut status.outbox,
        has_changed,
        audience.may_wait,
        before.event_sequence,
        audience.is_settled,
        now,
    )
}

/// The times after an operation's start at which it must be looked at again.
fn limits(operation: &Operation, deadlines: &Deadlines) -> Vec<Duration> {
    let grace =
        (operation.kind == OperationKind::Stop && !operation.forced).then_some(deadlines.soft_stop_grace);
    grace.into_iter().chain([deadlines.of(operation.kind)]).collect()
}

/// When the creation of a server was requested: with its object, or with the last change of a spec that could not be carried out before.
pub fn creation_began(instance: &Instance) -> Timestamp {
    let created = instance.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let operation = instance
        .status
        .as_ref()
        .and_then(|status| status.operation.as_ref());
    match (created, operation) {
        (Some(created), _) if instance.metadata.generation == Some(1) => created,
        (created, operation) => operation
            .map(Operation::counted_from)
            .or(created)
            .unwrap_or_else(|| instance.created_at()),
    }
}

/// Whether an operation has not ended within its deadline.
pub fn is_overdue(operation: &Operation, deadlines: &Deadlines, now: Timestamp) -> bool {
    elapsed(operation, now) >= deadlines.of(operation.kind)
}

/// Time since the operation began; zero if the clock went back.
fn elapsed(operation: &Operation, now: Timestamp) -> Duration {
    Duration::try_from(
        now.duration_since(operation.counted_from())
            .max(SignedDuration::ZERO),
    )
    .unwrap_or_default()
}

/// The part of a status that an account holder sees, for `updated_at`.
pub fn visible(status: &InstanceStatus) -> impl PartialEq + '_ {
    (
        status.state,
        &status.ip_address,
        &status.ipv6_address,
        &status.private_ip_address,
        status.plan,
        &status.image,
        status.disk_size_gb,
    )
}

struct Machine<'a> {
    instance: &'a Instance,
    user: Option<&'a User>,
    now: Timestamp,
    deadlines: &'a Deadlines,
    status: InstanceStatus,
    trouble: Option<Trouble>,
    off_cause: Option<OffCause>,
    /// Why the provider has power-cycled the server by itself.
    restarted: Option<OffCause>,
    /// The server is running after it was stopped or power-cycled.
    started: bool,
    /// The operation that has finished.
    ended: Option<Operation>,
    retry: bool,
}

impl Machine<'_> {
    /// Accepts a new instance, and takes on what the spec asks for. It is accepted even if it is already being deleted: REST has
    /// confirmed its creation, so receivers get both events.
    fn accept(&mut self, before: &InstanceStatus, gate: &Gate) {
        if *gate == Gate::Open && self.status.state.is_none() {
            accept(self.instance, &mut self.status, self.now);
        }
        // A sequence number that is no longer 0 says that it was told before the instance was restored.
        if before.state.is_none() && self.status.state.is_some() && self.status.event_sequence == 0 {
            self.announce(EventType::InstanceCreated);
        }
        if gate.is_open(&self.status) || self.instance.is_deleting() {
            take_on(self.instance, &mut self.status, self.now);
        }
    }

    /// Copies new addresses; a known address is never removed.
    fn learn_addresses(&mut self, addresses: &Addresses) {
        if addresses.ipv4.is_some() {
            self.status.ip_address.clone_from(&addresses.ipv4);
        }
        if addresses.ipv6.is_some() {
            self.status.ipv6_address.clone_from(&addresses.ipv6);
        }
        if addresses.private.is_some() {
            self.status.private_ip_address.clone_from(&addresses.private);
        }
    }

    /// Returns whether the server is gone after a delete operation.
    fn observe(&mut self, observation: &Observation) -> bool {
        self.learn_addresses(&observation.addresses);
        self.status.provider_state.clone_from(&observation.state);
        let Some(operation) = self.status.operation.clone() else {
            if let Some(plan) = observation.plan {
                self.has_plan(plan);
            }
            self.observe_power(observation.power);
            if let (Some(cause), Some(Power::On)) = (observation.restarted, observation.power) {
                self.restarted = Some(cause);
                self.started = true;
                self.status.started_at = Some(milliseconds(self.now));
            }
            self.notice(observation.notice.as_ref());
            return false;
        };
        match &observation.progress {
            Progress::Done if operation.kind == OperationKind::Delete => {
                self.status.state = Some(InstanceState::Deleting);
                self.retry |= observation.power.is_some();
                return observation.power.is_none();
            }
            Progress::Done => {
                self.complete(&operation);
                // More may have been done than was stored, by a process that died or whose decision was refused.
                if let (Some(Power::On), PowerState::Stopped)
                | (Some(Power::Off(OffCause::Requested)), PowerState::Running) =
                    (observation.power, operation.ends_in)
                {
                    self.observe_power(observation.power);
                }
            }
            Progress::Failed(trouble) => {
                self.retry = true;
                self.fail(operation.kind, trouble.clone());
            }
            Progress::Busy | Progress::Idle => {
                if operation.kind == OperationKind::Stop
                    && !operation.forced
                    && elapsed(&operation, self.now) >= self.deadlines.soft_stop_grace
                {
                    self.status.operation = Some(Operation {
                        forced: true,
                        ..operation.clone()
                    });
                }
                if self.now.duration_since(operation.counted_from()) < -CLOCK_TOLERANCE
                    && let Some(operation) = &mut self.status.operation
                {
                    // The clock went back. Count from now, or the operation would take that much longer.
                    operation.counted_from = Some(milliseconds(self.now));
                }
                if !self.check_deadline(&operation) {
                    self.status.state = Some(state_during(operation.kind));
                    self.notice(observation.notice.as_ref());
                }
            }
        }
        false
    }

    /// Shows what is wrong with the server although no operation has failed.
    fn notice(&mut self, notice: Option<&Notice>) {
        match notice {
            Some(Notice::Error(trouble)) => {
                self.status.state = Some(InstanceState::Error);
                self.trouble = Some(trouble.clone());
            }
            Some(Notice::Told(trouble)) => self.trouble = Some(trouble.clone()),
            None => {}
        }
    }

    /// Takes up an instance that was restored without its status, with the server that it has, if it has one. Its events were told
    /// before.
    fn take_up(&mut self, observation: &Observation) {
        self.learn_addresses(&observation.addresses);
        self.status.provider_state.clone_from(&observation.state);
        self.status.event_sequence = origin::sequence(&self.instance.metadata);
        let Some(power) = observation.power else { return };
        accept(self.instance, &mut self.status, self.now);
        self.status.operation = None;
        self.status.provisioned_at = Some(self.instance.created_at());
        self.status
            .restored_from
            .clone_from(&self.instance.spec.restore_from);
        self.status.power = Some(match power {
            Power::On => PowerState::Running,
            Power::Off(_) => PowerState::Stopped,
        });
        self.status.announced_power = self.status.power;
        if power == Power::On {
            self.status.started_at = Some(milliseconds(self.now));
        }
        self.observe_power(Some(power));
    }

    fn observe_power(&mut self, power: Option<Power>) {
        match power {
            Some(Power::On) => {
                if self.status.power != Some(PowerState::Running) {
                    self.status.started_at = Some(milliseconds(self.now));
                    self.started = true;
                }
                self.status.power = Some(PowerState::Running);
                self.status.state = Some(InstanceState::Running);
            }
            Some(Power::Off(cause)) => {
                self.off_cause = Some(cause);
                // Caused by an operation that was never stored, because its process died.
                let stop_was_lost =
                    cause == OffCause::Requested && self.status.power == Some(PowerState::Running);
                self.status.power = Some(PowerState::Stopped);
                self.status.state = Some(InstanceState::Stopped);
                let spec = granted(&self.instance.spec, &self.status);
                if (matches!(cause, OffCause::Crashed | OffCause::Interrupted) || stop_was_lost)
                    && spec.power_state == PowerState::Running
                    && !self.instance.is_deleting()
                {
                    begin(
                        &mut self.status,
                        &spec,
                        OperationKind::Start,
                        PowerState::Running,
                        self.now,
                    );
                }
            }
            // Stopped before it was created: the first start creates it.
            None if self.status.provisioned_at.is_none()
                && self.status.power == Some(PowerState::Stopped) =>
            {
                self.status.state = Some(InstanceState::Stopped);
            }
            None => {
                self.retry = true;
                self.status.state = Some(InstanceState::Error);
                self.trouble = Some(Trouble {
                    reason: "ServerMissing",
                    message: "the provider no longer has this server; a start makes it again if its disk is still there, else rebuild or delete the instance"
                        .to_owned(),
                });
            }
        }
    }

    /// Adds an event with the current status to the outbox.
    fn announce(&mut self, event_type: EventType) {
        let Some(user) = self.user else { return };
        self.status.event_sequence += 1;
        let (sequence, now) = (self.status.event_sequence, milliseconds(self.now));
        let entry = instance_event(self.instance, &self.status, event_type, user, sequence, now);
        self.status.outbox.push(entry);
    }

    /// Records a started event if the server is running after it was stopped or power-cycled, and a stopped event if it
    /// was running and is now off for good (decisions, section 3).
    fn announce_power(&mut self, before: &InstanceStatus, gate: &Gate) {
        let announced = self.status.announced_power.or(before.power);
        if self.started {
            self.status.announced_power = Some(PowerState::Running);
            self.announce(EventType::InstanceStarted);
        } else if self.status.power == Some(PowerState::Stopped)
            && announced == Some(PowerState::Running)
            && self.stays_off(gate)
        {
            self.status.announced_power = Some(PowerState::Stopped);
            self.announce(EventType::InstanceStopped);
        }
    }

    /// Whether the server stays off: neither the operation in progress nor the one that follows at once starts it, as
    /// after a crash or in a power cycle, or removes it.
    fn stays_off(&self, gate: &Gate) -> bool {
        let mut next = self.status.clone();
        if gate.is_open(&next) || self.instance.is_deleting() {
            take_on(self.instance, &mut next, self.now);
        }
        next.operation
            .is_none_or(|op| op.ends_in == PowerState::Stopped && op.kind != OperationKind::Delete)
    }

    /// Records the deleted event of a server that is gone. Returns whether all its events are settled. A server that was
    /// never announced needs no deleted event.
    fn announce_deletion(&mut self, is_settled: &dyn Fn(&str) -> bool) -> bool {
        let was_announced = self.status.event_sequence > 0 || self.status.provisioned_at.is_some();
        if self.user.is_none() || !was_announced {
            return true;
        }
        let outbox = &self.status.outbox;
        if outbox
            .iter()
            .any(|entry| entry.event_type == EventType::InstanceDeleted)
        {
            return outbox.iter().all(|entry| is_settled(&entry.id));
        }
        self.announce(EventType::InstanceDeleted);
        false
    }

    fn complete(&mut self, operation: &Operation) {
        self.ended = Some(operation.clone());
        let status = &mut self.status;
        status.operation = None;
        status.power = Some(operation.ends_in);
        status.state = Some(match operation.ends_in {
            PowerState::Running => InstanceState::Running,
            PowerState::Stopped => InstanceState::Stopped,
        });
        if operation.ends_in == PowerState::Running {
            status.started_at = Some(milliseconds(self.now));
            self.started = true;
        }
        if !matches!(operation.kind, OperationKind::Stop | OperationKind::PowerOff) {
            status
                .provisioned_at
                .get_or_insert_with(|| milliseconds(self.now));
            status.image = Some(operation.image.clone());
            if matches!(operation.kind, OperationKind::Create | OperationKind::Rebuild)
                || operation.restore_from.is_some()
            {
                status.restored_from.clone_from(&operation.restore_from);
            }
            self.has_plan(operation.plan);
        }
    }

    fn has_plan(&mut self, plan: Plan) {
        let disk = plan.size().disk_gb;
        let status = &mut self.status;
        status.plan = Some(plan);
        status.disk_size_gb = Some(status.disk_size_gb.map_or(disk, |known| known.max(disk)));
    }

    fn provider_failed(&mut self, error: &ProviderError) {
        self.retry = true;
        self.trouble = Some(Trouble {
            reason: error.reason(),
            message: error.to_string(),
        });
        if let Some(operation) = self.status.operation.clone() {
            self.check_deadline(&operation);
        }
    }

    fn check_deadline(&mut self, operation: &Operation) -> bool {
        let deadline = self.deadlines.of(operation.kind);
        let overdue = is_overdue(operation, self.deadlines, self.now);
        self.retry |= overdue;
        if overdue && operation.kind != OperationKind::Delete {
            let minutes = deadline.as_secs() / 60;
            let message = format!(
                "{} has not finished after {minutes} minutes; still trying",
                operation.kind.as_str()
            );
            self.fail(
                operation.kind,
                Trouble {
                    reason: "DeadlineExceeded",
                    message,
                },
            );
        }
        overdue
    }

    /// Shows a failing operation as `error`. The operation stays, and clears the error when it completes.
    fn fail(&mut self, kind: OperationKind, trouble: Trouble) {
        if kind != OperationKind::Delete {
            self.status.state = Some(InstanceState::Error);
        }
        self.trouble = Some(trouble);
    }
}
