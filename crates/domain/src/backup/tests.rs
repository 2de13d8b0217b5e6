//! Property tests: any history of time, requests, faults, crashes and deletions, against a model of an instance and a provider.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::json;

use super::{
    retention::{FAILED_KEPT, KEPT, gives_way, has_room},
    *,
};
use crate::{
    event::EventType,
    provider::{BackupObservation, BackupProgress, ProviderError},
};
use resources::{Backup, BackupPhase, BackupSpec, Instance, InstanceState, backup::FINALIZER};

const LIMIT: usize = 4;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// What the provider does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    Fails,
    Unreachable,
}

struct World {
    now: i64,
    instance: Option<Instance>,
    backups: BTreeMap<String, Backup>,
    fault: Fault,
    /// How long a backup takes, in seconds.
    takes: i64,
    made: u64,
    /// Events by the UID of their Backup.
    events: HashMap<String, Vec<EventType>>,
    /// UIDs of the Backups of which the provider has data.
    data: HashSet<String>,
    /// Manual backups that somebody has deleted.
    deleted: HashSet<String>,
    has_account: bool,
    settled: bool,
    limits: BackupLimits,
    restored_to: Option<String>,
}

fn instance() -> Instance {
    serde_json::from_value(json!({
        "metadata": { "name": "web", "namespace": "ns", "uid": "web-uid" },
        "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13", "backupEnabled": true },
        "status": {
            "state": "running", "plan": "starter", "image": "debian-13", "provisionedAt": at(0), "diskSizeGB": 40,
        },
    }))
    .unwrap()
}

impl World {
    fn new() -> Self {
        Self {
            now: 0,
            instance: Some(instance()),
            backups: BTreeMap::new(),
            fault: Fault::None,
            takes: 60,
            made: 0,
            events: HashMap::new(),
            data: HashSet::new(),
            deleted: HashSet::new(),
            has_account: true,
            settled: true,
            limits: BackupLimits {
                per_instance: LIMIT,
                per_account: usize::MAX,
            },
            restored_to: None,
        }
    }

    fn make(&mut self, name: String, spec: BackupSpec) {
        // The API server refuses a second one of the same name.
        if self.backups.contains_key(&name) {
            return;
        }
        self.made += 1;
        let mut backup = Backup::new(&name, spec);
        backup.metadata.uid = Some(format!("uid-{}", self.made));
        backup.metadata.namespace = Some("ns".to_owned());
        backup.metadata.creation_timestamp = Some(Time(at(self.now)));
        backup.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        self.backups.insert(name, backup);
    }

    fn make_manual(&mut self) {
        let name = format!("manual-{}", self.made);
        let spec = BackupSpec {
            instance: "web".to_owned(),
            instance_uid: None,
            name: None,
            scheduled_for: None,
            retry: false,
        };
        self.make(name, spec);
    }

    fn make_scheduled(&mut self, scheduled_for: Timestamp, retry: bool) {
        let spec = BackupSpec {
            instance: "web".to_owned(),
            instance_uid: Some("web-uid".to_owned()),
            name: None,
            scheduled_for: Some(scheduled_for),
            retry,
        };
        self.make(schedule::scheduled_name("web-uid", scheduled_for, retry), spec);
    }

    /// The instance controller looks at its schedule. If it `crashes`, it makes the backup but stores nothing.
    fn look_at_schedule(&mut self, crashes: bool) {
        let Some(instance) = &mut self.instance else {
            return;
        };
        let id = instance.id();
        let status = instance.status.as_mut().unwrap();
        let plan = schedule::plan(&id, true, status.next_backup_at, at(self.now));
        if !crashes {
            status.next_backup_at = plan.next;
        }
        if let Some(due) = plan.due {
            self.make_scheduled(due, false);
        }
    }

    /// Reconciles a Backup. Returns whether that changed anything.
    fn reconcile(&mut self, name: &str) -> bool {
        let Some(backup) = self.backups.get(name).cloned() else {
            return false;
        };
        let all: Vec<&Backup> = self.backups.values().collect();
        let of_same = |other: &&Backup| match (other.source_uid(), backup.source_uid()) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        let others: Vec<&Backup> = all.iter().copied().filter(of_same).collect();
        let situation = Situation {
            older_twin: None,
            source: Source::of(&backup, self.instance.as_ref()),
            others: &others,
            has_account: self.has_account,
            is_settled: &|_| self.settled,
            limits: self.limits,
            has_room_in_account: &|| has_room(&backup, all.iter().copied(), self.limits.per_account),
            gives_way: &|| gives_way(&backup, all.iter().copied()),
            restored_to: self.restored_to.as_deref(),
        };
        let unavailable = ProviderError::Unavailable("away".to_owned());
        let begun = backup.status.as_ref().and_then(|status| status.started_at);
        let left = begun.map_or(0, |begun| {
            self.takes - at(self.now).duration_since(begun).as_secs()
        });
        let observation = BackupObservation {
            progress: match self.fault {
                Fault::Fails => BackupProgress::Failed {
                    code: "storage_unavailable",
                    message: "no".to_owned(),
                },
                _ if left > 0 => BackupProgress::Busy,
                _ => BackupProgress::Done { size_gb: 12.4 },
            },
            state: BTreeMap::new(),
            recheck_after: u64::try_from(left).ok().map(Duration::from_secs),
        };
        let question = question(&backup, &situation);
        let seen = match question {
            Question::Nothing => Seen::NotAsked,
            _ if self.fault == Fault::Unreachable => Seen::Failed(&unavailable),
            Question::Progress => Seen::Observed(&observation),
            Question::Delete => Seen::Deleted,
        };
        let decision = decide(&backup, &situation, seen, at(self.now));
        assert_eq!(
            decide(&backup, &situation, seen, at(self.now)),
            decision,
            "decisions are pure"
        );
        let uid = backup.metadata.uid.clone().unwrap();
        match (question, seen) {
            // A call that failed may have begun it.
            (Question::Progress, _) => drop(self.data.insert(uid.clone())),
            (Question::Delete, Seen::Deleted) => drop(self.data.remove(&uid)),
            _ => {}
        }
        if decision.effect == Effect::Finish {
            self.backups.remove(name);
            return true;
        }
        if decision.effect == Effect::TryAgain {
            self.make_scheduled(backup.spec.scheduled_for.unwrap(), true);
        }
        let has_changed = backup.status.as_ref() != Some(&decision.status);
        let before = backup.status.as_ref().map_or(0, |status| status.event_sequence);
        for entry in decision
            .status
            .outbox
            .iter()
            .filter(|entry| entry.sequence > before)
        {
            self.events.entry(uid.clone()).or_default().push(entry.event_type);
        }
        let stored = self.backups.get_mut(name).unwrap();
        stored.status = Some(decision.status);
        if decision.effect == Effect::Delete {
            stored.metadata.deletion_timestamp = Some(Time(at(self.now)));
        }
        has_changed || decision.effect == Effect::Delete
    }

    fn settle(&mut self) {
        for _ in 0..200 {
            let names: Vec<_> = self.backups.keys().cloned().collect();
            let mut has_changed = false;
            for name in names {
                has_changed |= self.reconcile(&name);
            }
            if !has_changed {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    fn of_phase(&self, phase: BackupPhase) -> Vec<&Backup> {
        self.backups
            .values()
            .filter(|backup| backup.phase() == phase)
            .collect()
    }

    fn check(&self) {
        assert!(self.of_phase(BackupPhase::Running).len() <= 1, "one at a time");
        for backup in self.backups.values() {
            let uid = backup.metadata.uid.as_ref().unwrap();
            let events = self.events.get(uid);
            let expected = match backup.phase() {
                BackupPhase::Completed => Some(vec![EventType::BackupCompleted]),
                // A Backup that never had an instance gets no event.
                BackupPhase::Failed if backup.status.as_ref().unwrap().source.is_some() => {
                    Some(vec![EventType::BackupFailed])
                }
                _ => None,
            };
            assert_eq!(events, expected.as_ref(), "one event for each end");
            let may_have_data = backup.phase() != BackupPhase::Failed || backup.has_data_left();
            assert!(may_have_data || !self.data.contains(uid), "{backup:#?}");
        }
        for events in self.events.values() {
            assert_eq!(events.len(), 1);
        }
        for phase in [BackupPhase::Completed, BackupPhase::Failed] {
            let scheduled = self.of_phase(phase).into_iter();
            let scheduled = scheduled.filter(|backup| backup.is_scheduled() && !backup.is_deleting());
            // A failed one that may be tried once more stays a little longer.
            assert!(scheduled.count() <= KEPT + 1);
        }
        let failed = self.of_phase(BackupPhase::Failed).into_iter();
        let failed = failed.filter(|backup| !backup.is_scheduled() && !backup.is_deleting());
        assert!(failed.count() <= FAILED_KEPT);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Advance(i64),
    Manual,
    DeleteBackup(usize),
    DeleteInstance,
    Busy(bool),
    Fault(Fault),
    Crash,
    Unsettled(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..100_000_i64).prop_map(Step::Advance),
        2 => Just(Step::Manual),
        1 => (0..20_usize).prop_map(Step::DeleteBackup),
        1 => prop::bool::weighted(0.1).prop_map(|it| if it { Step::DeleteInstance } else { Step::Crash }),
        1 => any::<bool>().prop_map(Step::Busy),
        1 => prop_oneof![3 => Just(Fault::None), 1 => Just(Fault::Fails), 1 => Just(Fault::Unreachable)].prop_map(Step::Fault),
        1 => Just(Step::Crash),
        1 => any::<bool>().prop_map(Step::Unsettled),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_each_backup_ends_once_and_the_schedule_keeps_what_is_manual(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut world = World::new();
        world.look_at_schedule(false);
        for step in steps {
            match step {
                Step::Advance(seconds) => {
                    world.now += seconds;
                    world.look_at_schedule(false);
                }
                Step::Crash => world.look_at_schedule(true),
                Step::Manual => world.make_manual(),
                Step::DeleteBackup(number) => {
                    let now = Time(at(world.now));
                    if let Some((name, backup)) = world.backups.iter_mut().nth(number) {
                        backup.metadata.deletion_timestamp.get_or_insert(now);
                        world.deleted.insert(name.clone());
                    }
                }
                Step::DeleteInstance => world.instance = None,
                Step::Busy(is_busy) => if let Some(instance) = &mut world.instance {
                    let state = if is_busy { InstanceState::Rebuilding } else { InstanceState::Stopped };
                    instance.status.as_mut().unwrap().state = Some(state);
                },
                Step::Fault(fault) => world.fault = fault,
                Step::Unsettled(is_unsettled) => world.settled = !is_unsettled,
            }
            let manual: HashSet<String> = world.of_phase(BackupPhase::Completed).into_iter()
                .filter(|backup| !backup.is_scheduled() && !backup.is_deleting())
                .map(|backup| backup.metadata.name.clone().unwrap())
                .collect();
            world.settle();
            world.check();
            for name in manual {
                prop_assert!(world.backups.contains_key(&name), "the schedule deleted {}", name);
            }
            if world.instance.is_none() {
                prop_assert!(world.backups.values().all(|backup| !backup.is_unfinished()
                    || backup.spec.instance_uid.is_none() && backup.source_uid().is_none()));
            }
        }
        // Once all is well, the schedule goes on.
        world.fault = Fault::None;
        world.settled = true;
        if let Some(instance) = &mut world.instance {
            instance.status.as_mut().unwrap().state = Some(InstanceState::Running);
            for _ in 0..10 {
                for _ in 0..2 {
                    world.now += 43_200;
                    world.look_at_schedule(false);
                    world.settle();
                    world.now += 100;
                    world.settle();
                }
            }
            world.check();
            let kept = world.of_phase(BackupPhase::Completed).into_iter().filter(|backup| backup.is_scheduled()).count();
            prop_assert_eq!(kept, KEPT);
        }
    }
}

#[test]
fn a_failed_scheduled_backup_is_tried_once_more_an_hour_later() {
    let mut world = World::new();
    world.fault = Fault::Fails;
    world.make_scheduled(at(0), false);
    world.settle();
    assert_eq!(world.of_phase(BackupPhase::Failed).len(), 1);
    world.now += 3599;
    world.settle();
    assert_eq!(world.backups.len(), 1, "not yet");
    world.now += 1;
    world.settle();
    assert_eq!(world.of_phase(BackupPhase::Failed).len(), 2);
    world.now += 36_000;
    world.settle();
    assert_eq!(world.backups.len(), 2, "once more, not twice");
}

#[test]
fn a_backup_of_a_busy_instance_waits_and_a_stopped_one_is_backed_up() {
    let mut world = World::new();
    for state in [
        InstanceState::Rebuilding,
        InstanceState::Resizing,
        InstanceState::Error,
    ] {
        world.instance.as_mut().unwrap().status.as_mut().unwrap().state = Some(state);
        world.make_manual();
        world.settle();
        assert!(world.of_phase(BackupPhase::Running).is_empty(), "{state}");
    }
    world.instance.as_mut().unwrap().status.as_mut().unwrap().state = Some(InstanceState::Stopped);
    for completed in 0..3 {
        world.settle();
        assert_eq!(world.of_phase(BackupPhase::Running).len(), 1);
        assert_eq!(world.of_phase(BackupPhase::Completed).len(), completed);
        world.now += 60;
    }
    world.settle();
    assert_eq!(world.of_phase(BackupPhase::Completed).len(), 3);
}

#[test]
fn an_instance_that_is_deleted_meanwhile_fails_its_backup_and_keeps_those_that_are_completed() {
    let mut world = World::new();
    world.make_manual();
    world.settle();
    world.now += 60;
    world.settle();
    world.make_manual();
    world.settle();
    let instance = world.instance.as_mut().unwrap();
    instance.metadata.deletion_timestamp = Some(Time(at(61)));
    world.settle();
    let [failed] = world.of_phase(BackupPhase::Failed)[..] else {
        panic!("one fails");
    };
    let status = failed.status.as_ref().unwrap();
    assert_eq!(status.error.as_ref().unwrap().code, "instance_deleted");
    let uid = failed.metadata.uid.as_ref().unwrap();
    assert!(
        !status.data_left && !world.data.contains(uid),
        "what was begun is deleted"
    );
    let [completed] = world.of_phase(BackupPhase::Completed)[..] else {
        panic!("one is kept");
    };
    assert!(completed.status.as_ref().unwrap().instance_deleted);
}

#[test]
fn beyond_a_limit_a_manual_backup_fails_and_the_schedule_goes_on() {
    for (per_instance, per_account, whose) in [
        (LIMIT, usize::MAX, "the instance has 4"),
        (usize::MAX, LIMIT, "the account has 4"),
    ] {
        let mut world = World::new();
        world.limits = BackupLimits {
            per_instance,
            per_account,
        };
        for _ in 0..=LIMIT {
            world.make_manual();
            world.settle();
            world.now += 60;
            world.settle();
        }
        let [refused] = world.of_phase(BackupPhase::Failed)[..] else {
            panic!("one is too many");
        };
        let error = refused.status.as_ref().unwrap().error.as_ref().unwrap();
        assert_eq!(error.code, "resource_limit_exceeded");
        assert!(error.message.starts_with(whose), "{}", error.message);
        world.make_scheduled(at(world.now), false);
        world.settle();
        assert_eq!(world.of_phase(BackupPhase::Running).len(), 1);
    }
}

#[test]
fn a_scheduled_backup_waits_for_its_instance_until_the_next_one_is_due() {
    let mut world = World::new();
    world.instance.as_mut().unwrap().status.as_mut().unwrap().state = Some(InstanceState::Error);
    let id = world.instance.as_ref().unwrap().id();
    let due = schedule::next_run(&id, at(0));
    let second = |time: Timestamp| time.duration_since(at(0)).as_secs();
    world.now = second(due);
    world.make_scheduled(due, false);
    world.now = second(schedule::next_run(&id, due)) - 1;
    world.settle();
    assert_eq!(world.of_phase(BackupPhase::Waiting).len(), 1);
    world.now += 1;
    world.settle();
    let [failed] = world.of_phase(BackupPhase::Failed)[..] else {
        panic!("it has not failed");
    };
    let error = failed.status.as_ref().unwrap().error.as_ref().unwrap();
    assert_eq!(error.code, "instance_not_ready");
    assert!(
        error.message.contains("the instance is error"),
        "{}",
        error.message
    );
    world.check();
    world.now += 7_200;
    world.settle();
    assert_eq!(world.backups.len(), 1, "the next one is the next try");
    // One that is made up for, after days without an operator, waits until the next one from then on.
    world.now += 3 * 86_400;
    world.make_scheduled(at(world.now - 2 * 86_400), false);
    world.settle();
    assert_eq!(world.of_phase(BackupPhase::Waiting).len(), 1);
}

#[test]
fn the_completed_backups_of_a_deleted_instance_stay_and_count_when_a_manual_one_is_made() {
    for manual in [0, LIMIT] {
        let mut world = World::new();
        world.limits.per_account = LIMIT;
        for _ in 0..manual {
            world.make_manual();
            world.settle();
            world.now += 60;
            world.settle();
        }
        for day in 0..3 {
            world.make_scheduled(at(day), false);
            world.settle();
            world.now += 60;
            world.settle();
        }
        world.instance = None;
        world.settle();
        let mut next = instance();
        next.metadata.uid = Some("next".to_owned());
        world.instance = Some(next);
        for _ in 0..3 {
            world.make_manual();
            world.settle();
            world.now += 60;
            world.settle();
        }
        let completed = world.of_phase(BackupPhase::Completed);
        let scheduled = completed.iter().filter(|backup| backup.is_scheduled());
        assert_eq!(scheduled.count(), 3, "they never give way");
        assert_eq!(completed.len(), LIMIT.max(manual + 3), "the others are refused");
    }
}

#[test]
fn of_failed_manual_backups_the_last_ten_of_an_instance_are_kept_and_ten_of_all_deleted_ones() {
    let mut world = World::new();
    let failed = |world: &World| -> Vec<String> {
        let all = world.of_phase(BackupPhase::Failed).into_iter();
        let mut names: Vec<_> = all.map(|backup| backup.metadata.name.clone().unwrap()).collect();
        names.sort_unstable_by_key(|name| name.trim_start_matches("manual-").parse::<u32>().unwrap());
        names
    };
    let fail = |world: &mut World, count: usize| {
        world.fault = Fault::Fails;
        for _ in 0..count {
            world.make_manual();
            world.settle();
            world.now += 60;
        }
        world.fault = Fault::None;
        world.settle();
    };
    fail(&mut world, FAILED_KEPT + 2);
    let last_ten: Vec<_> = (2..12).map(|number| format!("manual-{number}")).collect();
    assert_eq!(failed(&world), last_ten);
    world.make_manual();
    world.settle();
    world.now += 60;
    world.settle();
    let mut next = instance();
    next.metadata.uid = Some("next".to_owned());
    world.instance = Some(next);
    fail(&mut world, 3);
    assert_eq!(failed(&world).len(), 13, "each instance has its own");
    world.instance = None;
    world.settle();
    let last_ten: Vec<_> = (5..12)
        .chain(13..16)
        .map(|number| format!("manual-{number}"))
        .collect();
    assert_eq!(failed(&world), last_ten);
    assert_eq!(world.of_phase(BackupPhase::Completed).len(), 1);
}

#[test]
fn a_deleted_backup_is_kept_until_it_has_been_restored() {
    let mut world = World::new();
    world.make_manual();
    world.settle();
    world.now += 60;
    world.settle();
    let name = world.backups.keys().next().unwrap().clone();
    let may_be_restored = |world: &World| {
        restore::complaint(&name, world.backups.get(&name), &instance(), |from, to| {
            from == to
        })
        .is_none()
    };
    assert!(may_be_restored(&world));
    world.restored_to = Some("web".to_owned());
    world.backups.get_mut(&name).unwrap().metadata.deletion_timestamp = Some(Time(at(world.now)));
    assert!(!may_be_restored(&world), "its data may be gone");
    world.settle();
    assert!(may_be_restored(&world), "it waits for the restore");
    world.restored_to = None;
    assert!(world.reconcile(&name));
    assert!(
        !may_be_restored(&world) && world.backups.len() == 1,
        "told before its data goes"
    );
    world.settle();
    assert!(world.backups.is_empty());
}

#[test]
fn a_backup_that_never_had_an_instance_ends_without_an_event() {
    let mut world = World::new();
    world.instance = None;
    world.make_manual();
    world.settle();
    let backup = world.backups.values_mut().next().unwrap();
    assert_eq!(backup.phase(), BackupPhase::Waiting);
    backup.metadata.deletion_timestamp = Some(Time(at(0)));
    world.settle();
    assert!(
        world.backups.is_empty() && world.events.is_empty(),
        "{:?}",
        world.events
    );
}

#[test]
fn a_provider_that_does_not_answer_fails_a_backup_after_six_hours_and_holds_back_its_deletion() {
    let mut world = World::new();
    world.make_manual();
    world.settle();
    world.fault = Fault::Unreachable;
    world.now += 6 * 3600 - 1;
    world.settle();
    assert_eq!(world.of_phase(BackupPhase::Running).len(), 1);
    world.now += 1;
    world.settle();
    assert_eq!(world.of_phase(BackupPhase::Failed).len(), 1);
    let backup = world.backups.values_mut().next().unwrap();
    backup.metadata.deletion_timestamp = Some(Time(at(0)));
    world.settle();
    assert_eq!(world.backups.len(), 1, "its data is still there");
    world.fault = Fault::None;
    world.settled = false;
    world.settle();
    assert_eq!(world.backups.len(), 1, "its event is not settled");
    world.settled = true;
    world.settle();
    assert!(world.backups.is_empty());
}

#[test]
fn without_an_account_a_backup_is_left_alone_but_can_be_deleted() {
    let mut world = World::new();
    world.has_account = false;
    world.make_manual();
    world.settle();
    assert_eq!(world.of_phase(BackupPhase::Waiting).len(), 1);
    let backup = world.backups.values_mut().next().unwrap();
    backup.metadata.deletion_timestamp = Some(Time(at(0)));
    world.settle();
    assert!(world.backups.is_empty() && world.events.is_empty());
}

#[test]
fn a_clock_that_is_set_back_neither_ends_nor_prolongs_a_backup() {
    let mut world = World::new();
    world.now = 100_000;
    world.make_manual();
    world.settle();
    world.now = 0;
    world.settle();
    let [running] = world.of_phase(BackupPhase::Running)[..] else {
        panic!("it runs");
    };
    let begun = running.status.as_ref().unwrap().started_at.unwrap();
    assert!(begun.duration_since(at(0)) <= SignedDuration::ZERO);
}

#[test]
fn a_backup_that_was_restored_without_its_status_is_taken_up_and_its_end_is_not_told_again() {
    let mut backup = Backup::new(
        "mine",
        BackupSpec {
            instance: "web".to_owned(),
            instance_uid: Some("uid-web".to_owned()),
            name: None,
            scheduled_for: None,
            retry: false,
        },
    );
    let first = at(0);
    let restored = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(86_400));
    backup.metadata.creation_timestamp = Some(restored);
    let origin = resources::origin::annotation("first", first);
    backup.metadata.annotations = Some([("stellage.dev/origin".to_owned(), origin)].into());
    let mut instance = Instance::new(
        "web",
        serde_json::from_value(json!({ "plan": "starter", "region": "fr-par-1", "image": "debian-13" }))
            .unwrap(),
    );
    instance.metadata.uid = Some("uid-web".to_owned());
    let decided = |backup: &Backup, instance: Option<&Instance>, seen: Seen<'_>, now: i64| {
        let situation = Situation {
            older_twin: None,
            source: Source::of(backup, instance),
            others: &[backup],
            has_account: true,
            is_settled: &|_| false,
            limits: BackupLimits {
                per_instance: 30,
                per_account: 1000,
            },
            has_room_in_account: &|| true,
            gives_way: &|| false,
            restored_to: None,
        };
        decide(backup, &situation, seen, at(now)).status
    };
    // Its instance may be restored after it.
    let status = decided(&backup, None, Seen::NotAsked, 86_405);
    assert_eq!((status.phase, status.error), (None, None));
    let status = decided(&backup, None, Seen::NotAsked, 86_400 + 600);
    assert_eq!(
        (status.phase, status.outbox.len()),
        (Some(BackupPhase::Failed), 0)
    );

    let status = decided(&backup, Some(&instance), Seen::NotAsked, 86_405);
    assert_eq!(
        (status.phase, status.started_at),
        (Some(BackupPhase::Running), Some(first))
    );
    backup.status = Some(status);
    let away = ProviderError::Unavailable("away".to_owned());
    let status = decided(&backup, Some(&instance), Seen::Failed(&away), 86_405);
    assert_eq!((status.phase, status.error), (Some(BackupPhase::Running), None));
    let status = decided(&backup, None, Seen::NotAsked, 86_405);
    assert_eq!(
        (status.phase, status.data_left),
        (Some(BackupPhase::Failed), false),
        "it may have been completed"
    );
    let done = BackupObservation {
        progress: BackupProgress::Done { size_gb: 12.4 },
        state: BTreeMap::new(),
        recheck_after: None,
    };
    let status = decided(&backup, Some(&instance), Seen::Observed(&done), 86_405);
    assert_eq!(
        (status.phase, status.outbox.len()),
        (Some(BackupPhase::Completed), 0)
    );
}

#[test]
fn a_copy_that_is_deleted_leaves_the_data_to_the_one_that_it_is_a_copy_of() {
    let spec = json!({ "instance": "web", "scheduledFor": "2026-11-27T10:00:00Z" });
    let mut backup = Backup::new("copy", serde_json::from_value(spec).unwrap());
    backup.metadata.deletion_timestamp = Some(Time(at(60)));
    backup.status.get_or_insert_default().phase = Some(BackupPhase::Completed);
    let situation = |older_twin: Option<&str>| Situation {
        older_twin: older_twin.map(str::to_owned),
        source: Source::of(&backup, None),
        others: &[],
        has_account: true,
        is_settled: &|_| true,
        limits: BackupLimits {
            per_instance: 30,
            per_account: 1000,
        },
        has_room_in_account: &|| true,
        gives_way: &|| false,
        restored_to: None,
    };
    let copy = situation(Some("original"));
    assert_eq!(question(&backup, &copy), Question::Nothing);
    let decided = decide(&backup, &copy, Seen::NotAsked, at(60));
    assert_eq!(decided.effect, Effect::Finish);
    assert_eq!(question(&backup, &situation(None)), Question::Delete);
}
