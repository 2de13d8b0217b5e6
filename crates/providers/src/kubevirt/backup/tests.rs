//! Backups in a model of a region's storage. Tests named `row_…` are of rows of the design's failure matrix.

use jiff::SignedDuration;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{super::testing::*, *};
use resources::BackupStatus;

const NAME: &str = "bkp-3f9k2m1x8q7r5t4v";

/// A region's storage, and the agent in the guest.
struct World {
    now: Timestamp,
    class: Option<&'static str>,
    snapshot: Option<Value>,
    /// When a snapshot is cut, and when it is ready, after it was made, in seconds; never if not set.
    cut_after: Option<i64>,
    ready_after: Option<i64>,
    /// How much later the disk was cut again, in seconds, since the data was lost.
    cut_again_after: i64,
    error: Option<&'static str>,
    /// What a snapshot is refused with.
    refuses: Option<(u16, &'static str)>,
    /// Whether the storage keeps what is deleted.
    holds: bool,
    has_namespace: bool,
    /// The run of the server.
    run: Option<Value>,
    /// Whether the agent answers.
    answers: bool,
    frozen_until: Option<Timestamp>,
    made: u32,
    calls: Vec<String>,
}

impl World {
    fn new() -> Self {
        Self {
            now: at(0),
            class: Some("Delete"),
            snapshot: None,
            cut_after: Some(1),
            ready_after: Some(3),
            cut_again_after: 0,
            error: None,
            refuses: None,
            holds: false,
            has_namespace: true,
            run: None,
            answers: true,
            frozen_until: None,
            made: 0,
            calls: Vec::new(),
        }
    }

    fn is_frozen(&self) -> bool {
        self.frozen_until.is_some_and(|until| self.now < until)
    }

    /// The storage gets on with it.
    fn act(&mut self) {
        let Some(snapshot) = &mut self.snapshot else {
            return;
        };
        let made_at: Timestamp = snapshot["metadata"]["creationTimestamp"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        let age = self.now.duration_since(made_at).as_secs();
        if let Some(after) = self.cut_after.filter(|after| age >= *after) {
            snapshot["status"]["creationTime"] = json!(made_at + SignedDuration::from_secs(after));
        }
        let is_ready = self.ready_after.is_some_and(|after| age >= after) && self.error.is_none();
        snapshot["status"]["readyToUse"] = is_ready.into();
        snapshot["status"]["error"] = self
            .error
            .map_or(Value::Null, |message| json!({ "message": message }));
        if !self.holds && snapshot["metadata"]["deletionTimestamp"].is_string() {
            self.snapshot = None;
        }
    }

    fn shown(&self) -> Answer {
        match &self.snapshot {
            Some(snapshot) => Answer::Snapshot(serde_json::from_value(snapshot.clone()).unwrap()),
            None => refused(404, "not found"),
        }
    }

    fn content(&self) -> Answer {
        let cut = self
            .snapshot
            .as_ref()
            .and_then(|snapshot| snapshot["status"]["creationTime"].as_str());
        let Some(cut) = cut.and_then(|cut| cut.parse::<Timestamp>().ok()) else {
            return refused(404, "not found");
        };
        let cut = cut + SignedDuration::from_secs(self.cut_again_after);
        let cut = i64::try_from(cut.as_nanosecond()).unwrap();
        Answer::SnapshotContent(serde_json::from_value(json!({ "status": { "creationTime": cut } })).unwrap())
    }

    fn execute(&mut self, action: &Action) -> Answer {
        self.act();
        match action {
            Action::Get {
                kind: Kind::SnapshotClass,
                ..
            } => self.class.map_or_else(
                || refused(404, "not found"),
                |policy| {
                    Answer::SnapshotClass(
                        serde_json::from_value(json!({ "deletionPolicy": policy })).unwrap(),
                    )
                },
            ),
            Action::Get {
                kind: Kind::Namespace,
                ..
            } => refused(404, "not found"),
            Action::Get { kind: Kind::Run, .. } => match &self.run {
                Some(run) => Answer::Run(parse_run(run)),
                None => refused(404, "not found"),
            },
            _ if !self.has_namespace => {
                refused(403, "volumesnapshots is forbidden: User cannot get resource")
            }
            Action::Get {
                kind: Kind::Snapshot, ..
            } => self.shown(),
            Action::Get {
                kind: Kind::SnapshotContent,
                ..
            } => self.content(),
            Action::Freeze { .. } if self.answers => {
                self.frozen_until = Some(self.now + SignedDuration::from_secs(30));
                Answer::Done
            }
            Action::Freeze { .. } => refused(500, "the agent does not answer"),
            Action::Thaw { .. } => {
                self.frozen_until = None;
                Answer::Done
            }
            Action::Post {
                kind: Kind::Snapshot,
                object,
            } => {
                if let Some((status, message)) = self.refuses {
                    return refused(status, message);
                }
                if self.snapshot.is_some() {
                    return refused(409, "already exists");
                }
                self.made += 1;
                let mut object = object.clone();
                object["metadata"]["uid"] = format!("snapshot-{}", self.made).into();
                object["metadata"]["creationTimestamp"] = json!(self.now);
                self.snapshot = Some(object);
                self.shown()
            }
            Action::Patch {
                kind: Kind::Snapshot,
                patch,
                ..
            } => {
                merge(self.snapshot.as_mut().unwrap(), patch);
                self.shown()
            }
            Action::Delete {
                kind: Kind::Snapshot,
                uid,
                ..
            } => {
                let now = self.now;
                let Some(snapshot) = &mut self.snapshot else {
                    return refused(404, "not found");
                };
                if snapshot["metadata"]["uid"] != **uid {
                    return refused(409, "the UID in the precondition does not match");
                }
                snapshot["metadata"]["deletionTimestamp"] = json!(now);
                self.act();
                Answer::Done
            }
            other => panic!("{other:?}"),
        }
    }

    /// Carries out what is planned, as a step does.
    fn carry_out<T: std::fmt::Debug>(
        &mut self,
        mut seen: Seen,
        plan: impl Fn(&Seen) -> Plan<T>,
        mut fate: impl FnMut() -> Fate,
    ) -> Option<Result<T, ProviderError>> {
        let until = self.now + SignedDuration::from_secs(8);
        for _ in 0..24 {
            let next = plan(&seen);
            let Some(action) = next.action.filter(|_| self.now < until) else {
                return Some(next.outcome);
            };
            if seen.calls.answer(&action).is_some() {
                self.now += SignedDuration::from_millis(500);
            }
            self.calls.push(brief(&action));
            let fate = fate();
            if fate == Fate::DiesBefore {
                return None;
            }
            let answer = self.execute(&action);
            if fate == Fate::DiesAfter {
                return None;
            }
            seen.take(action, answer);
        }
        panic!("the step does not end: {:?}", self.calls);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    GoesWell,
    DiesBefore,
    DiesAfter,
}

/// A call in short, such as `get Snapshot`.
fn brief(action: &Action) -> String {
    match action {
        Action::Get { kind, .. } => format!("get {kind:?}"),
        Action::Post { kind, .. } => format!("post {kind:?}"),
        Action::Patch { kind, .. } => format!("patch {kind:?}"),
        Action::Delete { kind, .. } => format!("delete {kind:?}"),
        Action::Freeze { .. } => "freeze".to_owned(),
        Action::Thaw { .. } => "thaw".to_owned(),
        other => panic!("{other:?}"),
    }
}

/// A server, its backup, and what is known of both.
struct Case {
    world: World,
    region: KubeVirt,
    instance: Instance,
    backup: Backup,
    vm: Value,
}

impl Case {
    /// A server that runs, with an agent in its guest.
    fn new() -> Self {
        let mut region = region();
        region.snapshot_class = Some("ceph-block-stellage".to_owned());
        let instance = idle("Running", &json!({}));
        let vm = vm(
            &instance,
            "RerunOnFailure",
            &json!({ "status": { "created": true } }),
        );
        let agent = json!({ "type": "AgentConnected", "status": "True" });
        let run = run_of(
            &vm,
            "run-1",
            "Running",
            &json!({ "status": { "conditions": [agent] } }),
        );
        let source = resources::BackupSource::of(&instance);
        let backup: Backup = serde_json::from_value(json!({
            "metadata": { "name": NAME, "namespace": "acme", "uid": "backup-1" },
            "spec": { "instance": "web-1" },
            "status": { "phase": "Running", "startedAt": at(0), "source": source },
        }))
        .unwrap();
        Self {
            world: World {
                run: Some(run),
                ..World::new()
            },
            region,
            instance,
            backup,
            vm,
        }
    }

    fn status(&mut self) -> &mut BackupStatus {
        self.backup.status.as_mut().unwrap()
    }

    /// Asks once, as the controller does, and stores the answer.
    fn ask(&mut self, fate: impl FnMut() -> Fate) -> Option<BackupProgress> {
        let now = self.world.now;
        let seen = Seen::new(Reach::Live, Some(parse_vm(&self.vm)));
        let (backup, instance, region) = (&self.backup, &self.instance, &self.region);
        let next = |seen: &Seen| plan(backup, instance, seen, region, now);
        let Ok(observed) = self.world.carry_out(seen, next, fate)? else {
            return Some(BackupProgress::Busy);
        };
        self.status().provider_state = observed.state;
        Some(observed.progress)
    }

    /// Asks until the backup has ended, at most for two hours.
    fn ends(&mut self) -> BackupProgress {
        let begun = self.world.now;
        while self.world.now.duration_since(begun) < SignedDuration::from_hours(2) {
            match self.ask(|| Fate::GoesWell).unwrap() {
                BackupProgress::Busy => {}
                ended => {
                    let is_done = matches!(ended, BackupProgress::Done { .. });
                    let now = self.world.now;
                    let status = self.status();
                    status.completed_at = Some(now);
                    status.phase = Some(if is_done {
                        BackupPhase::Completed
                    } else {
                        BackupPhase::Failed
                    });
                    return ended;
                }
            }
            self.world.now += SignedDuration::from_secs(2);
        }
        panic!("it does not end: {:?}", self.world.calls);
    }

    fn delete(&mut self) -> Result<(), ProviderError> {
        let seen = Seen::new(Reach::Live, None);
        let (backup, region, now) = (&self.backup, &self.region, self.world.now);
        let next = |seen: &Seen| plan_deletion(backup, "de-fra-1", seen, region, now);
        self.world.carry_out(seen, next, || Fate::GoesWell).unwrap()
    }

    fn consistency(&self) -> &str {
        let snapshot = self.world.snapshot.as_ref().unwrap();
        let written = snapshot["metadata"]["annotations"][CONSISTENCY].as_str().unwrap();
        let known = &self.backup.status.as_ref().unwrap().provider_state["consistency"];
        assert_eq!(written, known);
        written
    }
}

fn code(progress: &BackupProgress) -> &'static str {
    match progress {
        BackupProgress::Failed { code, .. } => code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_guest_with_an_agent_holds_still_until_its_snapshot_is_cut_and_the_size_is_that_of_the_disk() {
    let mut case = Case::new();
    assert_eq!(case.ends(), BackupProgress::Done { size_gb: 80.0 });
    let calls = case.world.calls.join(", ");
    assert!(
        calls.starts_with(
            "get Snapshot, get SnapshotClass, get Run, freeze, post Snapshot, get Snapshot, get Snapshot, thaw"
        ),
        "{calls}"
    );
    assert_eq!(calls.matches("thaw").count(), 1, "{calls}");
    assert_eq!(case.consistency(), "agent");
    let server = Server::of(&case.instance, &case.region);
    let snapshot = case.world.snapshot.unwrap();
    assert_eq!(
        snapshot["metadata"],
        json!({
            "name": NAME, "namespace": "stellage-acme", "uid": "snapshot-1", "creationTimestamp": at(0),
            "labels": {
                "app.kubernetes.io/managed-by": "stellage", "stellage.dev/installation": "prod-1",
                "stellage.dev/instance-uid": UID, "stellage.dev/backup-uid": "backup-1",
            },
            "annotations": { "stellage.dev/consistency": "agent" },
        }),
        "nothing owns it"
    );
    assert_eq!(
        snapshot["spec"],
        json!({
            "volumeSnapshotClassName": "ceph-block-stellage",
            "source": { "persistentVolumeClaimName": format!("{}-old", server.name) },
        })
    );
}

#[test]
fn what_the_guest_did_not_know_is_noted() {
    type Change = fn(&mut Case);
    let table: [(&str, Change, &str); 4] = [
        (
            "no agent",
            |case| case.world.run.as_mut().unwrap()["status"]["conditions"] = json!([]),
            "crash",
        ),
        (
            "it moves",
            |case| {
                case.world.run.as_mut().unwrap()["status"]["migrationState"] = json!({ "completed": false });
            },
            "crash",
        ),
        (
            "it starts",
            |case| case.world.run.as_mut().unwrap()["status"]["phase"] = "Scheduled".into(),
            "crash",
        ),
        (
            "it is off",
            |case| {
                case.world.run = None;
                case.vm["status"]["created"] = false.into();
            },
            "off",
        ),
    ];
    for (what, change, wanted) in table {
        let mut case = Case::new();
        change(&mut case);
        case.ends();
        let calls = case.world.calls.join(", ");
        assert!(
            !calls.contains("freeze") && !calls.contains("thaw"),
            "{what}: {calls}"
        );
        assert_eq!(case.consistency(), wanted, "{what}");
    }
}

#[test]
fn a_cut_that_takes_longer_than_a_guest_holds_still_is_not_called_consistent() {
    for (seconds, wanted) in [(1, "agent"), (9, "agent"), (11, "crash"), (300, "crash")] {
        let mut case = Case::new();
        case.world.cut_after = Some(seconds);
        case.world.ready_after = Some(seconds + 2);
        case.ends();
        assert_eq!(case.consistency(), wanted, "{seconds} s");
        let thaws = case.world.calls.iter().filter(|call| *call == "thaw").count();
        assert_eq!(thaws, 1, "{seconds} s: {:?}", case.world.calls);
    }
}

#[test]
fn row_45_a_guest_that_does_not_freeze_is_backed_up_all_the_same_and_told_to_go_on() {
    let mut case = Case::new();
    case.world.answers = false;
    assert_eq!(case.ends(), BackupProgress::Done { size_gb: 80.0 });
    assert_eq!(case.consistency(), "crash");
    let calls = case.world.calls.join(", ");
    assert!(calls.contains("freeze, post Snapshot, thaw"), "{calls}");
}

#[test]
fn row_46_a_snapshot_that_is_never_ready_fails_after_5_minutes_of_errors_or_an_hour() {
    for (error, wanted, minutes) in [
        (Some("no space left in pool ssd-2"), "snapshot_failed", 5..6),
        (None, "timeout", 60..61),
    ] {
        let mut case = Case::new();
        (case.world.ready_after, case.world.error) = (None, error);
        let ended = case.ends();
        assert_eq!(code(&ended), wanted);
        let BackupProgress::Failed { message, .. } = &ended else {
            panic!()
        };
        assert!(!message.contains("ssd-2"), "{message}");
        let took = case.world.now.duration_since(at(0)).as_mins();
        assert!(minutes.contains(&took), "{took} min");
    }
    // Errors that pass are none.
    let mut case = Case::new();
    case.world.error = Some("busy");
    for _ in 0..100 {
        assert_eq!(case.ask(|| Fate::GoesWell), Some(BackupProgress::Busy));
        case.world.now += SignedDuration::from_secs(2);
    }
    case.world.error = None;
    assert!(matches!(case.ends(), BackupProgress::Done { .. }));
}

#[test]
fn row_47_a_snapshot_without_its_data_and_one_that_is_gone_fail_at_once() {
    let mut case = Case::new();
    case.world.ready_after = None;
    assert_eq!(case.ask(|| Fate::GoesWell), Some(BackupProgress::Busy));
    case.world.error = Some("VolumeSnapshotContent is missing");
    let ended = case.ask(|| Fate::GoesWell).unwrap();
    assert_eq!(code(&ended), "snapshot_failed");

    let mut case = Case::new();
    case.world.ready_after = None;
    case.ask(|| Fate::GoesWell).unwrap();
    case.world.snapshot = None;
    let ended = case.ask(|| Fate::GoesWell).unwrap();
    assert_eq!(code(&ended), "snapshot_failed");
    assert_eq!(case.world.made, 1, "no younger one takes its place");

    let mut case = Case::new();
    case.world.cut_again_after = 60;
    let ended = case.ends();
    assert_eq!(code(&ended), "snapshot_failed", "{ended:?}");
}

#[test]
fn where_snapshots_cannot_be_made_or_would_leave_data_nothing_is_begun() {
    let table: [fn(&mut Case); 3] = [
        |case| case.region.snapshot_class = None,
        |case| case.world.class = None,
        |case| case.world.class = Some("Retain"),
    ];
    for change in table {
        let mut case = Case::new();
        change(&mut case);
        assert_eq!(code(&case.ends()), "not_available");
        let calls = case.world.calls.join(", ");
        assert!(!calls.contains("freeze") && !calls.contains("post"), "{calls}");
    }
}

#[test]
fn a_guest_is_told_to_go_on_if_its_snapshot_is_refused() {
    for (status, message, is_final) in [
        (403, "exceeded quota: snapshots", true),
        (403, "User cannot create resource", false),
        (500, "etcd has no leader", false),
    ] {
        let mut case = Case::new();
        case.world.refuses = Some((status, message));
        let asked = case.ask(|| Fate::GoesWell).unwrap();
        assert_eq!(asked != BackupProgress::Busy, is_final, "{message}");
        assert!(!case.world.is_frozen(), "{message}");
    }
}

#[test]
fn a_deletion_waits_until_the_storage_has_taken_the_snapshot_up_and_a_minute_at_most() {
    for (seconds, cut_after, error, is_deleted) in [
        (1, None, None, false),
        (1, Some(0), None, true),
        (1, None, Some("no space left"), true),
        (60, None, None, true),
    ] {
        let mut case = Case::new();
        (case.world.cut_after, case.world.error) = (cut_after, error);
        case.ask(|| Fate::GoesWell).unwrap();
        case.world.now = at(seconds);
        case.delete().ok();
        let what = format!("after {seconds} s, cut after {cut_after:?}, {error:?}");
        assert_eq!(case.world.snapshot.is_none(), is_deleted, "{what}");
    }
}

#[test]
fn row_61_a_deletion_waits_for_as_long_as_the_storage_holds_the_data() {
    let mut case = Case::new();
    case.ends();
    case.world.holds = true;
    for _ in 0..3 {
        let Err(ProviderError::Unavailable(why)) = case.delete() else {
            panic!()
        };
        assert!(why.contains("has not removed the data yet"), "{why}");
    }
    let deletions = case.world.calls.iter().filter(|call| *call == "delete Snapshot");
    assert_eq!(deletions.count(), 1);
    case.world.holds = false;
    case.delete().unwrap();
    assert!(case.world.snapshot.is_none());
    case.delete().unwrap();
}

#[test]
fn a_deletion_leaves_what_is_of_others_and_ends_with_the_namespace() {
    let mut case = Case::new();
    case.ends();
    case.world.snapshot.as_mut().unwrap()["metadata"]["labels"][BACKUP_UID] = "another".into();
    case.delete().unwrap();
    assert!(case.world.snapshot.is_some());
    case.world.has_namespace = false;
    case.delete().unwrap();
}

#[test]
fn the_deletion_of_a_failed_backup_waits_for_calls_that_come_late() {
    let mut case = Case::new();
    case.world.refuses = Some((403, "exceeded quota: snapshots"));
    case.ends();
    assert!(case.delete().is_err());
    case.world.now += SignedDuration::from_secs(75);
    case.delete().unwrap();
}

proptest! {
    #[test]
    fn whenever_stellage_dies_there_is_one_snapshot_and_no_guest_stays_frozen(
        fates in prop::collection::vec(0_u8..12, 0..60),
        cut_after in 0_i64..20,
        answers: bool,
        is_deleted: bool,
    ) {
        let mut case = Case::new();
        case.world.cut_after = Some(cut_after);
        case.world.ready_after = Some(cut_after + 3);
        case.world.answers = answers;
        let mut fates = fates.into_iter();
        let mut fate = || match fates.next() {
            Some(0) => Fate::DiesBefore,
            Some(1) => Fate::DiesAfter,
            _ => Fate::GoesWell,
        };
        let mut ended = None;
        for _ in 0..100 {
            match case.ask(&mut fate) {
                Some(BackupProgress::Busy) | None => {}
                Some(end) => {
                    ended = Some(end);
                    break;
                }
            }
            case.world.now += SignedDuration::from_secs(2);
        }
        prop_assert_eq!(ended, Some(BackupProgress::Done { size_gb: 80.0 }), "{:?}", case.world.calls);
        prop_assert_eq!(case.world.made, 1);
        prop_assert!(answers || case.consistency() == "crash");
        prop_assert!(cut_after <= 10 || case.consistency() == "crash");
        case.status().phase = Some(BackupPhase::Completed);
        case.world.now += SignedDuration::from_secs(30);
        prop_assert!(!case.world.is_frozen());
        if is_deleted {
            case.delete().unwrap();
            prop_assert!(case.world.snapshot.is_none());
        }
    }
}
