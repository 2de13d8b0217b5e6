//! One instance, its controller and its provider, with time as a number.

use std::{collections::BTreeSet, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    cloud::{Cloud, Fault},
    table,
};
use crate::{
    alert::evaluation::Findings,
    event::{EventType, OutboxEntry, payload::User},
    instance::{
        Action, Audience, Gate, Next, Note, Notes, Question, Refused, Seen, decide, question,
        user_data::Installs,
    },
    provider::{Addresses, Observation, OffCause, Power, Progress, ProviderError, Timings, Trouble},
};
use resources::{
    Instance, InstanceSpec, InstanceState, InstanceStatus, Operation, OperationKind, PowerState, Refusal,
    refusal::Cause,
};

const PROVISIONING: f64 = 150.0;

/// Longest backoff of the controller, in seconds.
const LONGEST_BACKOFF: u64 = 300;

pub fn spec() -> InstanceSpec {
    serde_json::from_value(
        serde_json::json!({ "plan": "starter", "region": "fr-par-1", "image": "debian-13" }),
    )
    .unwrap()
}

/// The gate of an instance whose image cannot be installed.
pub fn cannot_install() -> Gate {
    let refusal = Refusal::invalid("spec.image unknown-1 is not available");
    Refused {
        installation: Some(refusal),
        ..Refused::default()
    }
    .gate()
}

/// The gate of an instance for whose plan there is no room.
pub fn no_room() -> Gate {
    let refusal = Refusal {
        cause: Cause::QuotaExceeded,
        message: "the account's quota of vCPUs is 1".to_owned(),
    };
    Refused {
        plan: Some(refusal),
        ..Refused::default()
    }
    .gate()
}

/// The gate of an instance whose account is suspended, and its servers stopped.
pub fn kept_off() -> Gate {
    let refusal = Refusal {
        cause: Cause::AccountSuspended,
        message: "the account is suspended".to_owned(),
    };
    Refused {
        power: Some(refusal),
        ..Refused::default()
    }
    .gate()
}

#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own about the world"
)]
pub struct World {
    pub instance: Instance,
    /// An older version, for decisions on stale input.
    stale: Box<Instance>,
    revision: u64,
    pub cloud: Cloud,
    /// Seconds that it takes to create a server; all other times follow from it.
    pub provisioning: f64,
    pub gate: Gate,
    /// Whether receivers take events.
    pub settles: bool,
    /// Time since the world began. Timers count it.
    uptime: Duration,
    /// The wall clock at its beginning; it moves when the clock is set.
    epoch: Timestamp,
    /// When the controller looks again if nothing happens first; `None` for never.
    wake: Option<Duration>,
    /// Failures in a row, for the backoff.
    failures: u32,
    pub writes: u32,
    /// Whether a backup is under way.
    pub is_backed_up_now: bool,
    pub is_billed: bool,
    /// What is missing that installations need.
    pub missing: Option<Trouble>,
    /// What the samples say.
    pub findings: Option<Findings>,
    /// The times of the schedule for which a backup was made. A second one for the same time has the same name.
    pub backups: BTreeSet<Timestamp>,
    pub gone: bool,
    /// Whether it went while its namespace belonged to no account, so that nobody could be notified.
    pub gone_without_account: bool,
    pub user: User,
    /// All recorded events, in the order of the writes.
    pub events: Vec<OutboxEntry>,
    /// All Kubernetes Events, in the order of the writes.
    pub notes: Vec<Note>,
}

impl World {
    pub fn new(spec: InstanceSpec) -> Self {
        let mut instance = Instance::new("web", spec);
        instance.metadata.uid = Some("u-1".into());
        instance.metadata.generation = Some(1);
        instance.metadata.resource_version = Some("1".into());
        let epoch = Timestamp::from_second(1_800_000_000).unwrap();
        instance.metadata.creation_timestamp = Some(Time(epoch));
        Self {
            stale: Box::new(instance.clone()),
            instance,
            revision: 1,
            cloud: Cloud::default(),
            provisioning: PROVISIONING,
            gate: Gate::Open,
            settles: true,
            uptime: Duration::ZERO,
            epoch,
            wake: Some(Duration::ZERO),
            failures: 0,
            writes: 0,
            is_backed_up_now: false,
            missing: None,
            findings: None,
            is_billed: true,
            backups: BTreeSet::new(),
            gone: false,
            gone_without_account: false,
            user: User {
                id: "usr_1".into(),
                email: "ada@example.com".into(),
            },
            events: Vec::new(),
            notes: Vec::new(),
        }
    }

    pub fn running() -> Self {
        let mut world = Self::new(spec());
        world.settle();
        assert_eq!(world.state(), Some(InstanceState::Running));
        world
    }

    pub fn stopped() -> Self {
        let mut world = Self::running();
        world.act(Action::Stop);
        world.settle();
        assert_eq!(world.state(), Some(InstanceState::Stopped));
        world
    }

    pub fn now(&self) -> Timestamp {
        self.epoch + SignedDuration::try_from(self.uptime).unwrap()
    }

    pub fn status(&self) -> InstanceStatus {
        self.instance.status.clone().unwrap_or_default()
    }

    pub fn state(&self) -> Option<InstanceState> {
        self.instance.status.as_ref().and_then(|s| s.state)
    }

    /// The types of the events since the last call, without `instance.`.
    pub fn new_events(&self, since: &mut usize) -> Vec<&'static str> {
        let new = self.events[*since..]
            .iter()
            .map(|event| event.event_type.as_str());
        let new = new
            .map(|name| name.strip_prefix("instance.").unwrap_or(name))
            .collect();
        *since = self.events.len();
        new
    }

    /// The Kubernetes Events since the last call; Normal ones without their type.
    pub fn new_notes(&mut self) -> Vec<String> {
        let text = |note: Note| {
            let warning = if note.warning { "Warning " } else { "" };
            format!("{warning}{}: {}", note.reason, note.message)
        };
        self.notes.drain(..).map(text).collect()
    }

    /// Something changes that the controller is notified of.
    pub fn wake(&mut self) {
        self.wake = Some(self.uptime);
    }

    /// Sets the wall clock.
    pub fn set_clock(&mut self, by: SignedDuration) {
        self.epoch += by;
    }

    pub fn edit(&mut self, change: impl FnOnce(&mut InstanceSpec)) {
        let before = self.instance.spec.clone();
        change(&mut self.instance.spec);
        if before != self.instance.spec {
            self.instance.metadata.generation = self.instance.metadata.generation.map(|g| g + 1);
            self.touch();
            self.wake();
        }
    }

    pub fn act(&mut self, action: Action) {
        let nonce = self.now().to_string();
        self.edit(|spec| action.request(spec, &nonce));
    }

    pub fn delete(&mut self) {
        self.instance.metadata.deletion_timestamp = Some(Time(self.now()));
        self.touch();
        self.wake();
    }

    /// The guest ends by itself, which the provider reports.
    pub fn exit(&mut self, cause: OffCause) {
        self.cloud.exit(cause);
        self.wake();
    }

    /// Somebody removes the server behind the operator's back, which the provider reports.
    pub fn lose_server(&mut self) {
        self.cloud.servers.clear();
        self.wake();
    }

    /// The account appears or goes, or the spec becomes valid or invalid.
    pub fn set_gate(&mut self, gate: Gate) {
        if self.gate != gate {
            self.gate = gate;
            self.wake();
        }
    }

    /// Whether receivers take events from now on.
    pub fn set_settles(&mut self, settles: bool) {
        if self.settles != settles {
            self.settles = settles;
            self.wake();
        }
    }

    /// The API server stores a version, which takes at least a millisecond.
    fn touch(&mut self) {
        self.uptime += Duration::from_millis(1);
        self.revision += 1;
        self.instance.metadata.resource_version = Some(self.revision.to_string());
    }

    /// Lets time pass; the controller looks when it said that it would.
    pub fn wait(&mut self, time: Duration) {
        let end = self.uptime + time;
        while let Some(at) = self.wake.filter(|at| *at <= end && !self.gone) {
            self.uptime = self.uptime.max(at);
            self.pass();
        }
        self.uptime = end;
    }

    /// Lets time pass without a controller; the next one looks at everything.
    pub fn outage(&mut self, time: Duration) {
        self.uptime += time;
        self.failures = 0;
        self.wake();
    }

    /// Lets time pass until the controller waits for a change, or writes nothing more however often it looks.
    pub fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..1000 {
            let Some(at) = self.wake.filter(|_| !self.gone && quiet < 20) else {
                return;
            };
            let writes = self.writes;
            self.uptime = self.uptime.max(at);
            self.pass();
            quiet = if self.writes == writes { quiet + 1 } else { 0 };
        }
        panic!("does not settle: {:#?}", self.instance);
    }

    /// As [`settle`](Self::settle), and returns the states on the way, without repetitions.
    pub fn path(&mut self) -> Vec<InstanceState> {
        let mut path = Vec::new();
        while let Some(at) = self.wake.filter(|_| !self.gone) {
            assert!(path.len() < 20, "{path:?}");
            self.uptime = self.uptime.max(at);
            self.pass();
            path.extend(self.state().filter(|state| path.last() != Some(state)));
        }
        path
    }

    /// A pass of the controller.
    pub fn pass(&mut self) {
        self.reconcile(false, false);
    }

    /// A pass of the controller, perhaps on an older version. With `crash`, it dies between the provider's step and the
    /// write.
    pub fn reconcile(&mut self, on_stale: bool, crash: bool) {
        if self.gone {
            return;
        }
        let mut seen_instance = if on_stale {
            (*self.stale).clone()
        } else {
            self.instance.clone()
        };
        let is_current = seen_instance.metadata.resource_version == self.instance.metadata.resource_version;
        let (now, timings) = (self.now(), Timings::for_provisioning(self.provisioning));
        let has_account = !matches!(self.gate, Gate::NoAccount(_));
        let mut notes = Notes::default();
        let (decision, changed) = loop {
            let addresses = Addresses::default();
            let asked = question(&seen_instance, &self.gate, now);
            let needs = asked == Question::Step && Installs::of(&seen_instance) == Installs::Yes;
            let answer = match (asked, self.missing.as_ref().filter(|_| needs)) {
                (Question::Step, Some(missing)) => Some(Ok(Observation {
                    progress: Progress::Failed(missing.clone()),
                    ..Observation::default()
                })),
                (Question::Step, None) => Some(self.cloud.step(&seen_instance, self.uptime, &timings)),
                (Question::Nothing | Question::Addresses, _) => None,
            };
            let seen = match &answer {
                None => Seen::NotAsked(&addresses),
                Some(Ok(observation)) => Seen::Observed(observation),
                Some(Err(error)) => Seen::Failed(error),
            };
            let recorded = |id: &str| self.events.iter().any(|event| event.id == id);
            let audience = Audience {
                user: Some(&self.user).filter(|_| has_account),
                is_settled: &|id| self.settles && recorded(id),
                is_backed_up_now: self.is_backed_up_now,
                may_wait: false,
                findings: self.findings.as_ref(),
                is_billed: self.is_billed,
            };
            let decision = decide(
                &seen_instance,
                &self.gate,
                seen,
                audience,
                now,
                &timings.deadlines(),
            );
            let before = seen_instance.status.clone();
            let changed = before.as_ref() != Some(&decision.status);
            if is_current && changed && !decision.finished {
                self.check(&before.unwrap_or_default(), &decision.status, answer.as_ref());
            }
            notes.add(
                seen_instance.status.as_ref().and_then(|s| s.operation.as_ref()),
                &decision,
            );
            self.backups.extend(decision.backup_due);
            if !decision.may_be_stored_later {
                break (decision, changed);
            }
            seen_instance.status = Some(decision.status);
        };
        if crash {
            // The next process lists what is stored.
            *self.stale = self.instance.clone();
            self.outage(Duration::ZERO);
            return;
        }
        if !is_current {
            // The API server refuses the write, and the watch shows the newer version.
            *self.stale = self.instance.clone();
            self.wake();
            return;
        }
        self.plan(decision.next(changed));
        if decision.finished {
            self.gone = true;
            self.gone_without_account = !has_account;
            return;
        }
        if self.instance.status.as_ref() != Some(&decision.status) {
            self.record(&decision.status.outbox);
            *self.stale = self.instance.clone();
            self.instance.status = Some(decision.status);
            self.notes.extend(notes);
            self.writes += 1;
            self.touch();
        }
    }

    fn plan(&mut self, next: Next) {
        if next != Next::AfterBackoff {
            self.failures = 0;
        }
        self.wake = match next {
            Next::Now => Some(self.uptime),
            Next::After(delay) => Some(self.uptime + delay),
            Next::AfterBackoff => {
                let delay = 1_u64 << self.failures.min(9);
                self.failures += 1;
                Some(self.uptime + Duration::from_secs(delay.min(LONGEST_BACKOFF)))
            }
            Next::OnChange => None,
        };
    }

    fn record(&mut self, outbox: &[OutboxEntry]) {
        for entry in outbox {
            if entry.sequence <= self.status().event_sequence {
                let recorded = &self.events[usize::try_from(entry.sequence - 1).unwrap()];
                assert_eq!(recorded, entry, "an event has two bodies");
                continue;
            }
            let number = i64::try_from(self.events.len()).unwrap() + 1;
            assert_eq!(entry.sequence, number, "an event is missing");
            // Alerts fire between any two other events of a running server.
            let types = self.events.iter().map(|event| event.event_type);
            let last = types.rev().find(|of| *of != EventType::AlertTriggered);
            let fits = match entry.event_type {
                EventType::InstanceCreated => last.is_none(),
                EventType::InstanceStopped | EventType::AlertTriggered => {
                    last == Some(EventType::InstanceStarted)
                }
                EventType::InstanceStarted => last.is_some() && last != Some(EventType::InstanceDeleted),
                EventType::InstanceDeleted => {
                    last != Some(EventType::InstanceDeleted) && self.cloud.servers.is_empty()
                }
                _ => false,
            };
            assert!(fits, "{:?} after {last:?}", entry.event_type);
            self.events.push(entry.clone());
        }
    }

    /// Checks what must hold for every decision.
    fn check(
        &self,
        before: &InstanceStatus,
        after: &InstanceStatus,
        answer: Option<&Result<Observation, ProviderError>>,
    ) {
        assert!(
            before.ip_address.is_none() || after.ip_address.is_some(),
            "a known address was removed"
        );
        assert!(after.disk_size_gb >= before.disk_size_gb, "a disk shrank");
        let is_closed = !self.gate.is_open(before) && self.instance.metadata.deletion_timestamp.is_none();
        if is_closed {
            assert_eq!(before.operation, after.operation, "the gate is closed");
            assert_eq!(before.state, after.state, "the gate is closed");
            return;
        }
        if let (Gate::InPart(refused), Some(begun)) = (&self.gate, &after.operation)
            && before.operation.as_ref().map(Operation::id) != Some(begun.id())
            && begun.kind != OperationKind::Delete
        {
            assert!(
                refused.installation.is_none() || begun.kind != OperationKind::Rebuild,
                "what cannot be installed is being installed"
            );
            assert!(
                refused.plan.is_none() || Some(begun.plan) == after.plan,
                "a plan without room takes effect"
            );
            assert!(
                !after.suspended || !matches!(begun.kind, OperationKind::Start | OperationKind::Reboot),
                "a server that is kept off is being started"
            );
        }
        let asked = if after.suspended {
            PowerState::Stopped
        } else {
            self.instance.spec.power_state
        };
        table::check(before, after, self.shown(before, answer), asked);
        let (Some(old), new) = (&before.operation, &after.operation) else {
            return;
        };
        let is_same = new.as_ref().is_some_and(|new| new.id() == old.id());
        let is_done = matches!(answer, Some(Ok(Observation { progress, .. })) if *progress == Progress::Done);
        let is_cut_short = new.as_ref().is_some_and(|new| {
            let stops = matches!(
                old.kind,
                OperationKind::Start | OperationKind::Stop | OperationKind::Reboot
            );
            new.kind == OperationKind::Delete || (new.kind == OperationKind::PowerOff && stops)
        });
        let is_failing = self.shown(before, answer) == Some(InstanceState::Error);
        assert!(
            is_same || is_done || is_failing || is_cut_short,
            "{old:?} was dropped for {new:?}"
        );
    }

    /// The state that the provider's answer leads to, before another operation begins.
    fn shown(
        &self,
        status: &InstanceStatus,
        answer: Option<&Result<Observation, ProviderError>>,
    ) -> Option<InstanceState> {
        use InstanceState::{Error, Running, Stopped};
        let is_overdue = status.operation.as_ref().is_some_and(|op| {
            op.kind != OperationKind::Delete
                && self.now().duration_since(op.counted_from()) >= SignedDuration::from_mins(15)
        });
        let observation = match answer {
            Some(Err(_)) if is_overdue => return Some(Error),
            None | Some(Err(_)) => return status.state,
            Some(Ok(observation)) => observation,
        };
        let Some(operation) = &status.operation else {
            return Some(match observation.power {
                Some(Power::On) => Running,
                Some(Power::Off(_)) => Stopped,
                // The first start will create it.
                None if status.provisioned_at.is_none() && status.power == Some(PowerState::Stopped) => {
                    Stopped
                }
                None => Error,
            });
        };
        match (&observation.progress, operation.ends_in) {
            (Progress::Done, _) if operation.kind == OperationKind::Delete => Some(InstanceState::Deleting),
            (Progress::Done, _) => Some(match observation.power {
                Some(Power::On) => Running,
                Some(Power::Off(OffCause::Requested)) => Stopped,
                _ if operation.ends_in == PowerState::Running => Running,
                _ => Stopped,
            }),
            (Progress::Failed(_), _) => Some(Error),
            (Progress::Busy | Progress::Idle, _) if is_overdue => Some(Error),
            // It clears an error.
            (Progress::Busy | Progress::Idle, _) => match status.state {
                Some(Error) => Some(table::during(operation.kind)),
                state => state,
            },
        }
    }

    pub fn fault(&mut self, fault: Fault) {
        self.cloud.fault = fault;
    }
}
