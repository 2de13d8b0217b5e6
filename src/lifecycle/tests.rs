//! The lifecycle against a model provider that records what was really done to the server.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::{Action, Audience, Gate, Seen, Timings, decide, project};
use crate::{
    events::{OutboxEntry, payload::User},
    providers::{Addresses, Observation, OffCause, Power, Progress, ProviderError},
    resources::{
        Instance, InstanceSpec, InstanceState, InstanceStatus, Operation, OperationKind, Plan, PlanChange,
        PowerState,
        conditions::{self, READY, RECONCILING, STALLED},
    },
};

const TIMINGS: f64 = 150.0;

fn spec() -> InstanceSpec {
    serde_json::from_value(
        serde_json::json!({ "plan": "starter", "region": "fr-par-1", "image": "debian-13" }),
    )
    .unwrap()
}

/// The model's record of its one server.
#[derive(Clone, Debug, Default)]
struct Server {
    exists: bool,
    made: u32,
    on: bool,
    exit: Option<OffCause>,
    boots: Vec<Timestamp>,
    stops: Vec<Timestamp>,
    rebuilds: Vec<Timestamp>,
    done: Option<Operation>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Fault {
    #[default]
    None,
    Unreachable,
    Nonsense,
    Fails,
    HangsSoftStop,
}

struct World {
    instance: Instance,
    /// An older version, for decisions on stale input.
    stale: Instance,
    revision: u64,
    server: Server,
    fault: Fault,
    now: Timestamp,
    writes: u32,
    gone: bool,
    user: User,
    /// All recorded events, in the order of the writes.
    events: Vec<OutboxEntry>,
}

impl World {
    fn new(spec: InstanceSpec) -> Self {
        let mut instance = Instance::new("web", spec);
        instance.metadata.uid = Some("u-1".into());
        instance.metadata.generation = Some(1);
        instance.metadata.resource_version = Some("1".into());
        Self {
            stale: instance.clone(),
            instance,
            revision: 1,
            server: Server::default(),
            fault: Fault::None,
            now: Timestamp::from_second(1_800_000_000).unwrap(),
            writes: 0,
            gone: false,
            user: User {
                id: "usr_1".into(),
                email: "ada@example.com".into(),
            },
            events: Vec::new(),
        }
    }

    fn audience(&self) -> Audience<'_> {
        Audience {
            user: Some(&self.user),
            is_settled: &|_| true,
        }
    }

    /// The events since the last call.
    fn new_events(&mut self, since: &mut usize) -> Vec<&'static str> {
        let new = self.events[*since..]
            .iter()
            .map(|event| event.event_type.as_str());
        let new = new.map(|name| name.strip_prefix("instance.").unwrap()).collect();
        *since = self.events.len();
        new
    }

    fn status(&self) -> InstanceStatus {
        self.instance.status.clone().unwrap_or_default()
    }

    fn state(&self) -> Option<InstanceState> {
        self.instance.status.as_ref().and_then(|s| s.state)
    }

    fn wait(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    fn edit(&mut self, change: impl FnOnce(&mut InstanceSpec)) {
        let before = self.instance.spec.clone();
        change(&mut self.instance.spec);
        if before != self.instance.spec {
            self.instance.metadata.generation = self.instance.metadata.generation.map(|g| g + 1);
            self.touch();
        }
    }

    fn touch(&mut self) {
        self.revision += 1;
        self.instance.metadata.resource_version = Some(self.revision.to_string());
    }

    fn delete(&mut self) {
        self.instance.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.now));
        self.touch();
    }

    /// The provider's side of one step: idempotent, and its effects last whatever happens to the caller.
    fn step(&mut self, instance: &Instance) -> Result<Observation, ProviderError> {
        match self.fault {
            Fault::Unreachable => return Err(ProviderError::Timeout(Duration::from_secs(10))),
            Fault::Nonsense => return Err(ProviderError::Nonsense("-1 CPUs".into())),
            _ => {}
        }
        let addresses = Addresses {
            ipv4: self.server.exists.then(|| "198.18.0.7".to_owned()),
            ipv6: None,
        };
        let mut progress = Progress::Idle;
        if let Some(op) = instance.status.as_ref().and_then(|s| s.operation.clone()) {
            let elapsed = self.now.duration_since(op.started_at).max(SignedDuration::ZERO);
            let takes = Timings::for_provisioning(TIMINGS).duration(op.kind);
            let hangs = self.fault == Fault::HangsSoftStop && op.kind == OperationKind::Stop && !op.forced;
            progress = if self.fault == Fault::Fails {
                Progress::Failed("broken".into())
            } else if self.server.done.as_ref() == Some(&op) {
                Progress::Done
            } else if (elapsed >= SignedDuration::try_from(takes).unwrap() && !hangs) || op.forced {
                self.finish(&op);
                Progress::Done
            } else {
                Progress::Busy
            };
        }
        let power = self.server.exists.then_some(if self.server.on {
            Power::On
        } else {
            Power::Off(self.server.exit.unwrap_or(OffCause::Requested))
        });
        Ok(Observation {
            power,
            progress,
            addresses,
            state: BTreeMap::new(),
            recheck_after: None,
        })
    }

    fn finish(&mut self, op: &Operation) {
        let server = &mut self.server;
        match op.kind {
            OperationKind::Delete => {
                *server = Server {
                    made: server.made,
                    ..Server::default()
                };
            }
            OperationKind::Stop | OperationKind::PowerOff => server.stops.push(self.now),
            kind => {
                if !server.exists {
                    server.exists = true;
                    server.made += 1;
                }
                if kind == OperationKind::Rebuild {
                    server.rebuilds.push(self.now);
                }
                if op.ends_in == PowerState::Running {
                    server.boots.push(self.now);
                }
            }
        }
        if server.exists {
            server.on = op.ends_in == PowerState::Running;
            if server.on || matches!(op.kind, OperationKind::Stop | OperationKind::PowerOff) {
                server.exit = None;
            }
        }
        server.done = Some(op.clone());
    }

    /// One pass of the controller. With `crash` it dies between the provider's step and the write.
    fn pass(&mut self, on_stale: bool, crash: bool) {
        if self.gone {
            return;
        }
        let seen_instance = if on_stale {
            self.stale.clone()
        } else {
            self.instance.clone()
        };
        let accepted = seen_instance.status.as_ref().is_some_and(|s| s.state.is_some());
        let none = Addresses::default();
        let answer = accepted.then(|| self.step(&seen_instance));
        let seen = match &answer {
            None => Seen::NotAsked(&none),
            Some(Ok(observation)) => Seen::Observed(observation),
            Some(Err(error)) => Seen::Failed(error),
        };
        let timings = Timings::for_provisioning(TIMINGS);
        let decision = decide(
            &seen_instance,
            &Gate::Open,
            seen,
            self.audience(),
            self.now,
            &timings,
        );
        if crash {
            return;
        }
        let refused = seen_instance.metadata.resource_version != self.instance.metadata.resource_version;
        if refused {
            self.stale = self.instance.clone();
            return;
        }
        if decision.finished {
            self.gone = true;
            return;
        }
        if self.instance.status.as_ref() != Some(&decision.status) {
            self.check_transition(
                &self.status(),
                &decision.status,
                answer.as_ref().and_then(|a| a.as_ref().ok()),
            );
            for entry in &decision.status.outbox {
                if entry.sequence > self.status().event_sequence {
                    assert_eq!(
                        entry.sequence,
                        i64::try_from(self.events.len()).unwrap() + 1,
                        "an event is missing"
                    );
                    self.events.push(entry.clone());
                } else {
                    let recorded = &self.events[usize::try_from(entry.sequence - 1).unwrap()];
                    assert_eq!(recorded, entry, "an event has two bodies");
                }
            }
            self.stale = self.instance.clone();
            self.instance.status = Some(decision.status);
            self.writes += 1;
            self.touch();
        }
    }

    fn check_transition(&self, before: &InstanceStatus, after: &InstanceStatus, seen: Option<&Observation>) {
        assert!(
            before.ip_address.is_none() || after.ip_address.is_some(),
            "a known address was removed"
        );
        assert!(after.disk_size_gb >= before.disk_size_gb, "a disk shrank");
        let (Some(old), new) = (&before.operation, &after.operation) else {
            return;
        };
        let clock_went_back = old.started_at > self.now;
        let same = new
            .as_ref()
            .is_some_and(|new| new.kind == old.kind && (new.started_at == old.started_at || clock_went_back));
        let finished = seen.is_some_and(|s| s.progress == Progress::Done);
        let failing = before.state == Some(InstanceState::Error)
            || seen.is_some_and(|s| matches!(s.progress, Progress::Failed(_)))
            || after.state == Some(InstanceState::Error);
        let may_give_way = new.as_ref().is_some_and(|new| match new.kind {
            OperationKind::Delete => true,
            OperationKind::PowerOff => {
                matches!(
                    old.kind,
                    OperationKind::Start | OperationKind::Stop | OperationKind::Reboot
                )
            }
            _ => false,
        });
        let overdue = self.now.duration_since(old.started_at) >= SignedDuration::from_mins(15);
        assert!(
            same || finished || failing || may_give_way || overdue,
            "{old:?} was dropped for {new:?}"
        );
    }

    /// Runs passes while time advances, until nothing more is written.
    fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..400 {
            let writes = self.writes;
            self.pass(false, false);
            if self.gone {
                return;
            }
            quiet = if self.writes == writes { quiet + 1 } else { 0 };
            let idle = self.status().operation.is_none();
            if quiet > 3 && idle {
                return;
            }
            self.wait(7);
        }
        panic!("does not settle: {:#?}", self.instance);
    }

    fn act(&mut self, action: Action) {
        let nonce = self.now.to_string();
        self.edit(|spec| action.request(spec, &nonce));
    }

    fn running() -> Self {
        let mut world = Self::new(spec());
        world.settle();
        assert_eq!(world.state(), Some(InstanceState::Running));
        world
    }

    fn stopped() -> Self {
        let mut world = Self::running();
        world.act(Action::Stop);
        world.settle();
        assert_eq!(world.state(), Some(InstanceState::Stopped));
        world
    }

    /// The states until nothing more is written, without repetitions.
    fn path(&mut self) -> Vec<InstanceState> {
        let mut path = Vec::new();
        for _ in 0..200 {
            self.pass(false, false);
            if let Some(state) = self.state()
                && path.last() != Some(&state)
            {
                path.push(state);
            }
            self.wait(7);
        }
        path
    }
}

use InstanceState::{
    Error, Provisioning, Rebooting, Rebuilding, Resizing, Running, Starting, Stopped, Stopping,
};

#[test]
fn every_operation_takes_the_decided_path() {
    assert_eq!(World::new(spec()).path(), [Provisioning, Running]);
    for (action, mut world, path) in [
        (Action::Start, World::stopped(), vec![Starting, Running]),
        (Action::Stop, World::running(), vec![Stopping, Stopped]),
        (Action::PowerOff, World::running(), vec![Stopping, Stopped]),
        (Action::Reboot, World::running(), vec![Rebooting, Running]),
        (Action::Rebuild, World::running(), vec![Rebuilding, Running]),
        (Action::Rebuild, World::stopped(), vec![Rebuilding, Stopped]),
    ] {
        world.act(action);
        assert_eq!(world.path(), path, "{action:?}");
    }
    for (mut world, path) in [
        (World::running(), [Resizing, Running]),
        (World::stopped(), [Resizing, Stopped]),
    ] {
        world.edit(|spec| spec.plan = Plan::Business);
        assert_eq!(world.path(), path);
        assert_eq!(
            (world.status().plan, world.status().disk_size_gb),
            (Some(Plan::Business), Some(80))
        );
    }
}

#[test]
fn every_operation_records_the_decided_events() {
    type Step = Box<dyn Fn(&mut World)>;
    let plan = |change| {
        move |world: &mut World| {
            world.edit(|spec| {
                spec.plan = Plan::Business;
                spec.plan_change = change;
            });
        }
    };
    let act = |action| move |world: &mut World| world.act(action);
    let delete = |world: &mut World| world.delete();
    let shut_down = |world: &mut World| {
        world.server.on = false;
        world.server.exit = Some(OffCause::GuestShutdown);
    };
    let crash = |world: &mut World| {
        world.server.on = false;
        world.server.exit = Some(OffCause::Crashed);
    };
    let cases: Vec<(&str, World, Step, &[&str])> = vec![
        (
            "create",
            World::new(spec()),
            Box::new(|_| {}),
            &["created", "started"],
        ),
        (
            "start",
            World::stopped(),
            Box::new(act(Action::Start)),
            &["started"],
        ),
        (
            "stop",
            World::running(),
            Box::new(act(Action::Stop)),
            &["stopped"],
        ),
        (
            "poweroff",
            World::running(),
            Box::new(act(Action::PowerOff)),
            &["stopped"],
        ),
        (
            "reboot",
            World::running(),
            Box::new(act(Action::Reboot)),
            &["started"],
        ),
        (
            "rebuild on",
            World::running(),
            Box::new(act(Action::Rebuild)),
            &["started"],
        ),
        (
            "rebuild off",
            World::stopped(),
            Box::new(act(Action::Rebuild)),
            &[],
        ),
        (
            "plan on",
            World::running(),
            Box::new(plan(PlanChange::Immediate)),
            &["started"],
        ),
        (
            "plan off",
            World::stopped(),
            Box::new(plan(PlanChange::Immediate)),
            &[],
        ),
        (
            "plan pending",
            World::running(),
            Box::new(plan(PlanChange::OnReboot)),
            &[],
        ),
        ("delete on", World::running(), Box::new(delete), &["deleted"]),
        ("delete off", World::stopped(), Box::new(delete), &["deleted"]),
        (
            "guest shutdown",
            World::running(),
            Box::new(shut_down),
            &["stopped"],
        ),
        ("crash", World::running(), Box::new(crash), &["started"]),
    ];
    for (name, mut world, step, expected) in cases {
        let mut seen = 0;
        world.new_events(&mut seen);
        if name == "create" {
            seen = 0;
        }
        step(&mut world);
        world.settle();
        assert_eq!(world.new_events(&mut seen), expected, "{name}");
    }
}

#[test]
fn a_server_that_crashes_and_is_stopped_before_it_runs_again_records_stopped() {
    let mut world = World::running();
    let mut seen = world.events.len();
    world.server.on = false;
    world.server.exit = Some(OffCause::Crashed);
    world.pass(false, false);
    world.act(Action::PowerOff);
    world.settle();
    assert_eq!(world.new_events(&mut seen), ["stopped"]);
}

#[test]
fn an_event_stays_in_the_outbox_until_it_is_settled_and_the_object_until_its_last_is() {
    let mut world = World::running();
    world.delete();
    world.settle();
    let last = world.events.last().unwrap().clone();
    assert!(world.gone && last.event_type.as_str() == "instance.deleted");
    let mut instance = world.instance.clone();
    instance.status.as_mut().unwrap().outbox = vec![last];
    let observation = Observation {
        addresses: Addresses::default(),
        power: None,
        progress: Progress::Done,
        recheck_after: None,
        state: BTreeMap::new(),
    };
    for settled in [false, true] {
        let decision = decide(
            &instance,
            &Gate::Open,
            Seen::Observed(&observation),
            Audience {
                user: Some(&world.user),
                is_settled: &|_| settled,
            },
            world.now,
            &Timings::default(),
        );
        assert_eq!(decision.finished, settled);
        assert_eq!(decision.status.outbox.len(), 1);
    }
    let mut world = World::new(spec());
    world.pass(false, false);
    let decide_with = |world: &World, settled: bool, later: i64| {
        let audience = Audience {
            user: Some(&world.user),
            is_settled: &|_| settled,
        };
        let now = world.now + SignedDuration::from_secs(later);
        let busy = Observation {
            addresses: Addresses {
                ipv4: Some("198.18.0.7".into()),
                ipv6: None,
            },
            power: None,
            progress: Progress::Busy,
            recheck_after: None,
            state: BTreeMap::new(),
        };
        let decision = decide(
            &world.instance,
            &Gate::Open,
            Seen::Observed(&busy),
            audience,
            now,
            &Timings::default(),
        );
        decision.status.outbox.len()
    };
    // The address is new, so the same write removes the settled event.
    assert_eq!(decide_with(&world, false, 1), 1);
    assert_eq!(decide_with(&world, true, 1), 0);
    world.pass(false, false);
}

#[test]
fn the_facade_shows_at_once_what_the_controller_will_write() {
    for (action, mut world) in [
        (Action::Start, World::stopped()),
        (Action::Stop, World::running()),
        (Action::PowerOff, World::running()),
        (Action::Reboot, World::running()),
        (Action::Rebuild, World::running()),
    ] {
        world.act(action);
        let projected = project(&world.instance, world.now);
        world.pass(false, false);
        assert_eq!(projected.state, world.state(), "{action:?}");
        assert_eq!(projected.operation, world.status().operation, "{action:?}");
    }
}

#[test]
fn a_plan_change_on_reboot_waits_for_the_next_reboot_or_stop_and_start() {
    for actions in [vec![Action::Reboot], vec![Action::Stop, Action::Start]] {
        let mut world = World::running();
        world.edit(|spec| {
            spec.plan = Plan::Enterprise;
            spec.plan_change = PlanChange::OnReboot;
        });
        world.settle();
        assert_eq!(
            (world.state(), world.status().plan),
            (Some(Running), Some(Plan::Starter))
        );
        assert!(conditions::is_true(
            &world.status().conditions,
            conditions::RESTART_REQUIRED
        ));
        for action in actions {
            assert_eq!(world.status().plan, Some(Plan::Starter));
            world.act(action);
            world.settle();
        }
        assert_eq!(
            (world.state(), world.status().plan),
            (Some(Running), Some(Plan::Enterprise))
        );
        assert!(conditions::find(&world.status().conditions, conditions::RESTART_REQUIRED).is_none());
    }
}

#[test]
fn a_disk_never_shrinks() {
    let mut world = World::running();
    world.edit(|spec| spec.plan = Plan::Performance);
    world.settle();
    world.edit(|spec| spec.plan = Plan::Starter);
    world.settle();
    assert_eq!(
        (world.status().plan, world.status().disk_size_gb),
        (Some(Plan::Starter), Some(160))
    );
}

#[test]
fn a_guest_that_shuts_itself_down_stays_off_until_a_start_is_requested() {
    for by_toggle in [false, true] {
        let mut world = World::running();
        (world.server.on, world.server.exit) = (false, Some(OffCause::GuestShutdown));
        world.settle();
        assert_eq!(world.state(), Some(Stopped));
        let ready = conditions::find(&world.status().conditions, READY)
            .unwrap()
            .clone();
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_str()),
            ("False", "GuestShutdown")
        );
        assert!(conditions::is_true(&world.status().conditions, STALLED));
        if by_toggle {
            world.edit(|spec| spec.power_state = PowerState::Stopped);
            world.settle();
            world.edit(|spec| spec.power_state = PowerState::Running);
        } else {
            world.act(Action::Start);
        }
        world.settle();
        assert_eq!(world.state(), Some(Running));
    }
}

#[test]
fn a_server_that_crashes_is_started_again() {
    let mut world = World::running();
    (world.server.on, world.server.exit) = (false, Some(OffCause::Crashed));
    assert_eq!(world.path(), [Starting, Running]);
}

#[test]
fn a_soft_stop_is_forced_after_the_grace() {
    let mut world = World::running();
    world.fault = Fault::HangsSoftStop;
    world.act(Action::Stop);
    world.pass(false, false);
    world.wait(119);
    world.pass(false, false);
    assert!(!world.status().operation.unwrap().forced);
    world.wait(1);
    world.pass(false, false);
    assert!(world.status().operation.unwrap().forced);
    world.settle();
    assert_eq!(world.state(), Some(Stopped));
}

#[test]
fn poweroff_cuts_a_soft_stop_a_start_and_a_reboot_short() {
    for first in [Action::Stop, Action::Reboot] {
        let mut world = World::running();
        world.fault = Fault::HangsSoftStop;
        world.act(first);
        world.pass(false, false);
        world.wait(1);
        world.act(Action::PowerOff);
        world.pass(false, false);
        assert_eq!(world.status().operation.unwrap().kind, OperationKind::PowerOff);
        world.settle();
        assert_eq!(world.state(), Some(Stopped));
    }
}

#[test]
fn error_is_shown_past_the_deadline_and_clears_by_itself() {
    let mut world = World::new(spec());
    world.pass(false, false);
    world.fault = Fault::Unreachable;
    world.wait(14 * 60);
    world.pass(false, false);
    assert_eq!(world.state(), Some(Provisioning));
    world.wait(60);
    world.pass(false, false);
    assert_eq!(world.state(), Some(Error));
    assert!(conditions::is_true(&world.status().conditions, STALLED));
    world.fault = Fault::None;
    world.settle();
    assert_eq!(world.state(), Some(Running));
    assert!(conditions::is_true(&world.status().conditions, READY));
    assert_eq!(world.server.made, 1);
}

#[test]
fn from_a_failed_creation_every_allowed_operation_leads_on_once_the_provider_recovers() {
    for (action, end) in [
        (Action::Start, Running),
        (Action::Reboot, Running),
        (Action::Rebuild, Running),
        (Action::PowerOff, Stopped),
    ] {
        assert!(action.allowed_from().contains(&Error));
        let mut world = World::new(spec());
        world.pass(false, false);
        world.fault = Fault::Fails;
        world.pass(false, false);
        assert_eq!(world.state(), Some(Error));
        world.fault = Fault::None;
        world.act(action);
        world.settle();
        assert_eq!(world.state(), Some(end), "{action:?}");
    }
}

#[test]
fn a_server_that_was_stopped_before_it_was_created_is_created_by_the_first_start() {
    let mut world = World::new(spec());
    world.pass(false, false);
    world.fault = Fault::Fails;
    world.pass(false, false);
    world.fault = Fault::None;
    world.act(Action::PowerOff);
    world.settle();
    world.act(Action::Start);
    world.settle();
    assert_eq!((world.state(), world.server.made), (Some(Running), 1));
}

#[test]
fn an_instance_created_off_ends_off() {
    let mut world = World::new(InstanceSpec {
        power_state: PowerState::Stopped,
        ..spec()
    });
    assert_eq!(world.path(), [Provisioning, Stopped]);
    assert!(conditions::is_true(&world.status().conditions, READY));
}

#[test]
fn a_closed_gate_starts_nothing_and_says_why() {
    let world = World::new(spec());
    let none = Addresses::default();
    let gate = Gate::NoAccount("namespace x belongs to no Account".into());
    let decision = decide(
        &world.instance,
        &gate,
        Seen::NotAsked(&none),
        world.audience(),
        world.now,
        &Timings::default(),
    );
    assert_eq!(
        (decision.status.state, decision.status.operation.clone()),
        (None, None)
    );
    assert_eq!(
        conditions::find(&decision.status.conditions, READY)
            .unwrap()
            .reason,
        "NoAccount"
    );
    assert!(conditions::is_true(&decision.status.conditions, STALLED));
}

#[test]
fn a_settled_world_is_never_written_again() {
    for mut world in [World::running(), World::stopped()] {
        let writes = world.writes;
        for _ in 0..50 {
            world.wait(3600);
            world.pass(false, false);
        }
        assert_eq!(world.writes, writes);
        assert!(!conditions::is_true(&world.status().conditions, RECONCILING));
    }
}

#[test]
fn deletion_ends_once_the_server_is_gone_and_not_before() {
    let mut world = World::running();
    world.delete();
    world.fault = Fault::Unreachable;
    world.pass(false, false);
    world.wait(3600);
    world.pass(false, false);
    assert_eq!(
        (world.gone, world.state()),
        (false, Some(InstanceState::Deleting))
    );
    world.fault = Fault::None;
    world.settle();
    assert!(world.gone && !world.server.exists);
}

#[test]
fn an_instance_deleted_before_it_was_seen_records_created_and_deleted() {
    let (mut world, mut since) = (World::new(spec()), 0);
    world.delete();
    world.settle();
    assert!(world.gone && !world.server.exists);
    assert_eq!(world.new_events(&mut since), ["created", "deleted"]);
}

/// What may happen, in any order.
#[derive(Clone, Debug)]
enum Happening {
    Act(Action),
    Plan(Plan, PlanChange),
    Image(&'static str),
    Power(PowerState),
    PowerOffNonce,
    GuestExit(bool),
    Fault(Fault),
    Pass { stale: bool, crash: bool },
    Wait(i64),
}

fn happening() -> impl Strategy<Value = Happening> {
    use Happening as H;
    let action = prop_oneof![
        Just(Action::Start),
        Just(Action::Stop),
        Just(Action::PowerOff),
        Just(Action::Reboot),
        Just(Action::Rebuild)
    ];
    let plan = prop_oneof![Just(Plan::Starter), Just(Plan::Business), Just(Plan::Enterprise)];
    let change = prop_oneof![Just(PlanChange::Immediate), Just(PlanChange::OnReboot)];
    let fault = prop_oneof![
        3 => Just(Fault::None),
        1 => Just(Fault::Unreachable),
        1 => Just(Fault::Nonsense),
        1 => Just(Fault::Fails),
        1 => Just(Fault::HangsSoftStop)
    ];
    prop_oneof![
        3 => action.prop_map(H::Act),
        1 => (plan, change).prop_map(|(p, c)| H::Plan(p, c)),
        1 => prop_oneof![Just("debian-12"), Just("debian-13")].prop_map(H::Image),
        1 => prop_oneof![Just(PowerState::Running), Just(PowerState::Stopped)].prop_map(H::Power),
        1 => Just(H::PowerOffNonce),
        1 => any::<bool>().prop_map(H::GuestExit),
        2 => fault.prop_map(H::Fault),
        8 => (any::<bool>(), prop::bool::weighted(0.2)).prop_map(|(stale, crash)| H::Pass { stale, crash }),
        // Time advances, jumps a day ahead, or goes back an hour.
        4 => prop_oneof![6 => 0..200_i64, 1 => Just(86_400), 1 => Just(-3_600)].prop_map(H::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn any_history_of_requests_faults_restarts_and_clock_jumps_converges_and_loses_no_request(
        history in prop::collection::vec(happening(), 0..60),
        delete in prop::bool::weighted(0.2),
    ) {
        let mut world = World::new(spec());
        let (mut step, mut last_rebuild, mut last_reboot) = (0_i64, None, None);
        for event in history {
            // Distinct nonces whatever the clock does.
            step += 1;
            let nonce = format!("2026-11-21T10:00:00.{step:03}Z");
            match event {
                Happening::Act(action) => {
                    world.edit(|spec| action.request(spec, &nonce));
                    let done = (world.server.rebuilds.len(), world.server.boots.len() + world.server.stops.len());
                    match action {
                        // Creating the server satisfies a request made before that.
                        _ if world.state().is_none() => {}
                        Action::Rebuild => last_rebuild = Some(done.0),
                        Action::Reboot => last_reboot = Some(done.1),
                        _ => {}
                    }
                }
                Happening::Plan(plan, change) => world.edit(|spec| (spec.plan, spec.plan_change) = (plan, change)),
                Happening::Image(image) => world.edit(|spec| spec.image = image.to_owned()),
                Happening::Power(power) => world.edit(|spec| spec.power_state = power),
                Happening::PowerOffNonce => world.edit(|spec| spec.power_off_requested_at = Some(nonce)),
                Happening::GuestExit(crash) => {
                    if world.server.on && world.status().operation.is_none() {
                        world.server.on = false;
                        world.server.exit = Some(if crash { OffCause::Crashed } else { OffCause::GuestShutdown });
                    }
                }
                Happening::Fault(fault) => world.fault = fault,
                Happening::Pass { stale, crash } => world.pass(stale, crash),
                Happening::Wait(seconds) => world.wait(seconds),
            }
            prop_assert!(world.server.made <= 1, "a second server was made");
        }
        world.fault = Fault::None;
        if delete {
            world.delete();
            world.settle();
            prop_assert!(world.gone && !world.server.exists);
            return Ok(());
        }
        world.settle();
        let (spec, status) = (world.instance.spec.clone(), world.status());
        prop_assert!(world.server.made <= 1);
        let power = if world.server.on { PowerState::Running } else { PowerState::Stopped };
        let self_inflicted = world.server.exit == Some(OffCause::GuestShutdown);
        prop_assert!(power == spec.power_state || self_inflicted, "{power:?} {spec:?}");
        prop_assert_eq!(status.power, Some(power));
        prop_assert_eq!(status.image.as_ref(), Some(&spec.image));
        prop_assert!(status.plan == Some(spec.plan) || spec.plan_change == PlanChange::OnReboot);
        for (asked, handled) in [
            (&spec.start_requested_at, &status.start_requested_at),
            (&spec.power_off_requested_at, &status.power_off_requested_at),
            (&spec.reboot_requested_at, &status.reboot_requested_at),
            (&spec.rebuild_requested_at, &status.rebuild_requested_at),
        ] {
            prop_assert!(asked.is_none() || asked == handled, "{asked:?} {handled:?}");
        }
        if let Some(before) = last_rebuild {
            prop_assert!(world.server.rebuilds.len() > before, "a rebuild was lost");
        }
        if let Some(before) = last_reboot && world.server.on {
            prop_assert!(world.server.boots.len() + world.server.stops.len() > before, "a reboot was lost");
        }
        prop_assert_eq!(status.observed_generation, world.instance.metadata.generation);
        prop_assert!(conditions::is_true(&status.conditions, READY) || self_inflicted);
    }
}
