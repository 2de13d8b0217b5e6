//! The planner's decisions. Tests named `row_…` are of rows of the design's failure matrix.

use serde_json::{Value, json};

use super::{
    names::{BOOT, NetworkNames, RUN, account_labels, boot},
    objects::Fill,
    plan::{Action, Answer, Joined, Kind, Plan, Reach, Seen, plan},
    slim::NetworkAttachment,
    testing::*,
};
use domain::{
    catalogue::region::{ImageSource, KubeVirt, Namespaces, PrivateNetworks},
    provider::{Notice, Observation, OffCause, Power, Progress, ProviderError},
    user_data::UserData,
};
use resources::Instance;

fn next_in(region: &KubeVirt, instance: &Instance, seen: &Seen, seconds: i64) -> Plan {
    plan(instance, seen, region, at(seconds))
}

fn next(instance: &Instance, seen: &Seen, seconds: i64) -> Plan {
    next_in(&region(), instance, seen, seconds)
}

fn observed(plan: Plan) -> Observation {
    assert_eq!(plan.action, None);
    plan.outcome.unwrap()
}

/// The reason why an operation has failed.
fn failure(plan: Plan) -> &'static str {
    match observed(plan).progress {
        Progress::Failed(trouble) => trouble.reason,
        other => panic!("{other:?}"),
    }
}

/// What is told about a server, and whether it is an error.
fn told(observation: &Observation) -> Option<(&'static str, bool)> {
    observation.notice.as_ref().map(|notice| match notice {
        Notice::Told(trouble) => (trouble.reason, false),
        Notice::Error(trouble) => (trouble.reason, true),
    })
}

/// Goes on with an answer.
fn answer(instance: &Instance, seen: &mut Seen, seconds: i64, answer: Answer) -> Action {
    let action = next(instance, seen, seconds).action.unwrap();
    seen.take(&action, answer);
    action
}

/// An action in short, such as `get VirtualMachine`.
fn short(action: &Action) -> String {
    match action {
        Action::Post { kind, .. } => format!("post {kind:?}"),
        Action::Apply { kind, .. } => format!("apply {kind:?}"),
        Action::Get { kind, .. } => format!("get {kind:?}"),
        Action::List { kind, .. } => format!("list {kind:?}"),
        Action::Patch {
            kind, dry_run: true, ..
        } => format!("try patch {kind:?}"),
        Action::Patch { kind, .. } => format!("patch {kind:?}"),
        Action::Delete { kind, .. } => format!("delete {kind:?}"),
        Action::DeleteAll { kind, .. } => format!("delete all {kind:?}"),
        Action::ClearRequests { .. } => "clear requests".to_owned(),
        Action::Stop { .. } => "stop".to_owned(),
        Action::In { namespace, action } => format!("{} in {namespace}", short(action)),
        Action::Freeze { .. } => "freeze".to_owned(),
        Action::Thaw { .. } => "thaw".to_owned(),
    }
}

/// The strategy and the boot that a patch of the virtual machine writes.
fn patched(plan: &Plan) -> (Option<&str>, Option<&str>) {
    let Some(Action::Patch {
        kind: Kind::VirtualMachine,
        patch,
        ..
    }) = &plan.action
    else {
        panic!("{:?}", plan.action);
    };
    (
        patch["spec"]["runStrategy"].as_str(),
        patch["metadata"]["annotations"][BOOT].as_str(),
    )
}

const OFF: &str = "Halted";
const ON: &str = "RerunOnFailure";

fn no_vm() -> Answer {
    refused(404, "not found")
}

#[test]
fn a_creation_takes_three_writes_once_the_namespace_is_there() {
    let instance = during(&json!({ "kind": "Create" }), None);
    let mut seen = seen(None, None);
    answer(&instance, &mut seen, 1, no_vm());
    let mut written = Vec::new();
    for _ in 0..2 {
        let Action::Post { kind, .. } = answer(&instance, &mut seen, 1, Answer::Done) else {
            panic!()
        };
        written.push(kind);
    }
    let Some(Action::Post { kind, object }) = next(&instance, &seen, 1).action else {
        panic!()
    };
    written.push(kind);
    assert_eq!(written, [Kind::DataVolume, Kind::Secret, Kind::VirtualMachine]);
    let mut vm = object;
    merge(
        &mut vm,
        &json!({ "metadata": { "uid": VM_UID, "resourceVersion": "1", "generation": 1 } }),
    );
    let action = next(&instance, &seen, 1).action.unwrap();
    seen.take(&action, Answer::VirtualMachine(parse_vm(&vm)));
    let busy = observed(next(&instance, &seen, 1));
    assert_eq!(busy.progress, Progress::Busy);
    vm["status"] = json!({ "created": true, "runStrategy": ON });
    let run = run_of(&vm, "run-1", "Running", &json!({}));
    let done = observed(next(&instance, &self::seen(Some(&vm), Some(&run)), 9));
    assert_eq!((done.progress, done.power), (Progress::Done, Some(Power::On)));
    assert_eq!(done.addresses.ipv4.as_deref(), Some("10.244.0.7"));
    assert_eq!(done.state["vmi"], "run-1");
}

#[test]
fn the_first_creation_of_an_account_makes_the_namespace_with_its_rights_and_isolation_first() {
    let instance = during(&json!({ "kind": "Create" }), None);
    let mut seen = seen(None, None);
    seen.has_namespace = false;
    answer(&instance, &mut seen, 1, no_vm());
    for wanted in [
        Kind::Namespace,
        Kind::RoleBinding,
        Kind::NetworkPolicy,
        Kind::DataVolume,
    ] {
        let action = answer(&instance, &mut seen, 1, Answer::Done);
        let (Action::Post { kind, .. } | Action::Apply { kind, .. }) = action else {
            panic!()
        };
        assert_eq!(kind, wanted);
    }
    assert!(seen.has_namespace);
}

#[test]
fn a_namespace_of_the_platform_team_needs_the_label_and_is_isolated_too() {
    let mut region = region();
    region.namespaces = Namespaces::Existing;
    let instance = during(&json!({ "kind": "Create" }), None);
    let namespace =
        |labels: Value| Answer::Object(serde_json::from_value(json!({ "labels": labels })).unwrap());
    let ours = || namespace(json!({ super::names::INSTALLATION: "prod-1" }));
    let after = |answers: Vec<Answer>| {
        let mut seen = seen(None, None);
        seen.has_namespace = false;
        let mut last = None;
        for reply in [no_vm()].into_iter().chain(answers) {
            let action = next_in(&region, &instance, &seen, 1).action.unwrap();
            seen.take(&action, reply);
            last = Some(action);
        }
        (last.unwrap(), next_in(&region, &instance, &seen, 1))
    };
    let (last, plan) = after(vec![ours(), Answer::Done]);
    assert!(matches!(
        last,
        Action::Apply {
            kind: Kind::NetworkPolicy,
            ..
        }
    ));
    assert!(matches!(
        plan.action,
        Some(Action::Post {
            kind: Kind::DataVolume,
            ..
        })
    ));
    for answers in [
        vec![refused(404, "not found")],
        vec![namespace(json!({}))],
        vec![namespace(json!({ super::names::INSTALLATION: "prod-2" }))],
        // There is no RoleBinding yet.
        vec![ours(), refused(403, "cannot patch resource")],
    ] {
        assert_eq!(
            failure(after(answers.clone()).1),
            "NamespaceMissing",
            "{answers:?}"
        );
    }
}

#[test]
fn the_isolation_of_a_namespace_is_applied_once_when_its_servers_are_first_looked_at() {
    let instance = resting("Running", &json!({}));
    let on = vm(&instance, ON, &json!({ "status": { "created": true } }));
    let run = run_of(&on, "run-1", "Running", &json!({}));
    for (reply, is_known) in [
        (Answer::Done, true),
        (refused(403, "cannot patch resource"), false),
    ] {
        let mut seen = seen(Some(&on), Some(&run));
        seen.has_namespace = false;
        let action = answer(&instance, &mut seen, 1, reply);
        let Action::Apply {
            kind: Kind::NetworkPolicy,
            object,
        } = action
        else {
            panic!("{action:?}")
        };
        let wanted = super::objects::network_policy(&region(), ACCOUNT_UID, &server(&instance).namespace);
        assert_eq!(object, wanted);
        assert_eq!(seen.has_namespace, is_known);
        let plan = next(&instance, &seen, 1);
        assert_eq!(plan.raw.is_none(), is_known, "{:?}", plan.raw);
        assert_eq!(observed(plan).power, Some(Power::On));
    }
}

#[test]
fn a_stop_is_done_once_virt_controller_has_seen_it() {
    let instance = during(&json!({ "kind": "Stop", "endsIn": "Stopped" }), Some("Running"));
    let created = json!({ "status": { "created": true } });
    let on = vm(&instance, ON, &created);
    let run = run_of(&on, "run-1", "Running", &json!({}));
    assert_eq!(
        patched(&next(&instance, &seen(Some(&on), Some(&run)), 1)),
        (Some(OFF), None)
    );
    let deleting = json!({ "metadata": { "deletionTimestamp": at(1) } });
    let halting = vm(&instance, OFF, &created);
    let run = run_of(&on, "run-1", "Running", &deleting);
    let busy = observed(next(&instance, &seen(Some(&halting), Some(&run)), 500));
    assert_eq!(busy.progress, Progress::Busy);
    for (more, is_done) in [
        (json!({ "status": { "created": true } }), false),
        (json!({ "status": { "runStrategy": ON } }), false),
        (json!({}), true),
    ] {
        let halted = vm(&instance, OFF, &more);
        let seen = observed(next(&instance, &seen(Some(&halted), None), 10));
        assert_eq!(seen.progress == Progress::Done, is_done, "{more}");
    }
}

#[test]
fn a_forced_stop_and_a_power_off_cut_the_power_and_do_so_once() {
    for operation in [
        json!({ "kind": "Stop", "endsIn": "Stopped", "forced": true }),
        json!({ "kind": "PowerOff", "endsIn": "Stopped" }),
    ] {
        let instance = during(&operation, Some("Running"));
        let halting = vm(&instance, OFF, &json!({ "status": { "created": true } }));
        let run = run_of(&halting, "run-1", "Running", &json!({}));
        let mut seen = seen(Some(&halting), Some(&run));
        let action = answer(&instance, &mut seen, 1, Answer::Done);
        assert_eq!(short(&action), "stop");
        assert_eq!(observed(next(&instance, &seen, 1)).progress, Progress::Busy);
        let run = run_of(
            &halting,
            "run-1",
            "Running",
            &json!({ "spec": { "terminationGracePeriodSeconds": 0 } }),
        );
        let seen = self::seen(Some(&halting), Some(&run));
        assert_eq!(observed(next(&instance, &seen, 2)).progress, Progress::Busy);
    }
}

#[test]
fn a_start_of_a_server_that_is_off_takes_one_write() {
    let instance = during(&json!({ "kind": "Start" }), Some("Stopped"));
    let off = vm(&instance, OFF, &json!({}));
    let plan = next(&instance, &seen(Some(&off), None), 1);
    assert_eq!(
        patched(&plan),
        (Some(ON), Some(boot(operation(&instance)).as_str()))
    );
}

#[test]
fn a_start_after_the_guest_shut_down_goes_through_off() {
    let instance = during(&json!({ "kind": "Start" }), Some("Stopped"));
    let over = vm(&instance, ON, &json!({}));
    assert_eq!(
        patched(&next(&instance, &seen(Some(&over), None), 1)),
        (Some(OFF), None)
    );
}

#[test]
fn a_start_waits_for_a_server_that_is_booting_already() {
    let instance = during(&json!({ "kind": "Start" }), Some("Stopped"));
    for more in [
        json!({ "status": { "runStrategy": OFF } }),
        json!({ "status": { "stateChangeRequests": [{ "action": "Start" }] } }),
    ] {
        let booting = vm(&instance, ON, &more);
        let busy = observed(next(&instance, &seen(Some(&booting), None), 1));
        assert_eq!(busy.progress, Progress::Busy, "{more}");
    }
    let booting = vm(&instance, ON, &json!({ "status": { "created": true } }));
    for (phase, progress) in [("Scheduled", Progress::Busy), ("Running", Progress::Done)] {
        let run = run_of(&booting, "run-1", phase, &json!({}));
        let seen = observed(next(&instance, &seen(Some(&booting), Some(&run)), 1));
        assert_eq!(seen.progress, progress);
    }
}

#[test]
fn a_reboot_gives_the_guest_its_grace_and_then_cuts_the_power() {
    let instance = during(&json!({ "kind": "Reboot" }), Some("Running"));
    let halting = vm(&instance, OFF, &json!({ "status": { "created": true } }));
    let deleting = json!({ "metadata": { "deletionTimestamp": at(10) } });
    let run = run_of(&halting, "run-1", "Running", &deleting);
    let seen = seen(Some(&halting), Some(&run));
    let busy = observed(next(&instance, &seen, 129));
    assert_eq!(busy.recheck_after.unwrap().as_secs(), 1);
    assert_eq!(short(&next(&instance, &seen, 130).action.unwrap()), "stop");
}

#[test]
fn a_resize_asks_whether_the_disk_can_grow_before_anything_is_stopped() {
    let instance = during(
        &json!({ "kind": "Resize", "plan": "performance" }),
        Some("Running"),
    );
    let on = vm(&instance, ON, &json!({ "status": { "created": true } }));
    let run = run_of(&on, "run-1", "Running", &json!({}));
    let mut seen = seen(Some(&on), Some(&run));
    let action = answer(&instance, &mut seen, 1, Answer::Done);
    assert_eq!(short(&action), "try patch Claim");
    assert_eq!(patched(&next(&instance, &seen, 1)), (Some(OFF), None));
    let off = vm(&instance, OFF, &json!({}));
    let mut seen = self::seen(Some(&off), None);
    let action = answer(&instance, &mut seen, 9, Answer::Done);
    let Action::Patch {
        patch,
        dry_run: false,
        ..
    } = action
    else {
        panic!()
    };
    assert_eq!(patch["spec"]["resources"]["requests"]["storage"], "160Gi");
    let plan = next(&instance, &seen, 9);
    assert_eq!(patched(&plan).0, Some(ON));
    let Some(Action::Patch { patch, .. }) = plan.action else {
        panic!()
    };
    assert_eq!(patch["spec"]["template"]["spec"]["domain"]["cpu"]["sockets"], 4);
}

#[test]
fn a_resize_of_a_stopped_server_changes_its_template_and_leaves_it_off() {
    let resize = json!({ "kind": "Resize", "plan": "starter", "endsIn": "Stopped" });
    let instance = during(&resize, Some("Stopped"));
    let off = vm(&instance, OFF, &json!({}));
    let plan = next(&instance, &seen(Some(&off), None), 1);
    assert_eq!(patched(&plan), (None, None));
    let mut off = off;
    let Some(Action::Patch { patch, .. }) = plan.action else {
        panic!()
    };
    merge(&mut off, &patch);
    let done = observed(next(&instance, &seen(Some(&off), None), 1));
    assert_eq!(done.progress, Progress::Done);
}

fn data_volume(instance: &Instance, name: &str, phase: &str, more: &Value) -> Answer {
    let mut disk = json!({
        "metadata": {
            "name": name, "uid": "disk", "creationTimestamp": at(0),
            "labels": { super::names::INSTANCE_UID: server(instance).uid },
        },
        "status": { "phase": phase },
    });
    merge(&mut disk, more);
    Answer::DataVolume(serde_json::from_value(disk).unwrap())
}

#[test]
fn a_rebuild_lets_the_old_server_run_until_the_new_disk_is_good_and_then_swaps_and_deletes() {
    let instance = during(
        &json!({ "kind": "Rebuild", "image": "ubuntu-24.04" }),
        Some("Running"),
    );
    let disk = server(&instance).disk(operation(&instance));
    let on = vm(&instance, ON, &json!({ "status": { "created": true } }));
    let run = run_of(&on, "run-1", "Running", &json!({}));
    let mut first = seen(Some(&on), Some(&run));
    answer(&instance, &mut first, 1, no_vm());
    answer(&instance, &mut first, 1, Answer::DataVolumes(Vec::new()));
    let action = answer(&instance, &mut first, 1, Answer::Done);
    assert_eq!(short(&action), "post DataVolume");
    let busy = observed(next(&instance, &first, 1));
    assert_eq!(told(&busy), Some(("Importing", false)));

    let mut seen = self::seen(Some(&on), Some(&run));
    answer(
        &instance,
        &mut seen,
        20,
        data_volume(&instance, &disk, "ImportInProgress", &json!({})),
    );
    assert_eq!(
        observed(next(&instance, &seen, 20))
            .recheck_after
            .unwrap()
            .as_secs(),
        4
    );

    let mut seen = self::seen(Some(&on), Some(&run));
    answer(
        &instance,
        &mut seen,
        60,
        data_volume(&instance, &disk, "Succeeded", &json!({})),
    );
    assert_eq!(patched(&next(&instance, &seen, 60)), (Some(OFF), None));

    let mut off = vm(&instance, OFF, &json!({}));
    let mut seen = self::seen(Some(&off), None);
    answer(
        &instance,
        &mut seen,
        70,
        data_volume(&instance, &disk, "Succeeded", &json!({})),
    );
    let action = answer(&instance, &mut seen, 70, Answer::Done);
    assert!(matches!(
        action,
        Action::Post {
            kind: Kind::Secret,
            ..
        }
    ));
    let plan = next(&instance, &seen, 70);
    assert_eq!(patched(&plan).0, Some(ON));
    let Some(Action::Patch { patch, .. }) = plan.action else {
        panic!()
    };
    merge(&mut off, &patch);
    assert_eq!(parse_vm(&off).disk(), Some(disk.as_str()));

    off["status"]["created"] = true.into();
    let run = run_of(&off, "run-2", "Running", &json!({}));
    let mut seen = self::seen(Some(&off), Some(&run));
    let old = format!("{}-old", server(&instance).name);
    let disks = [old.as_str(), disk.as_str()].map(|name| {
        let Answer::DataVolume(disk) = data_volume(&instance, name, "Succeeded", &json!({})) else {
            panic!()
        };
        disk
    });
    answer(&instance, &mut seen, 80, Answer::DataVolumes(disks.into()));
    let deleted = answer(&instance, &mut seen, 80, Answer::Done);
    assert_eq!(
        deleted,
        Action::DeleteAll {
            kind: Kind::Secret,
            selector: format!("stellage.dev/instance-uid={UID},stellage.dev/disk=old"),
        },
        "a tenant could fill the cluster with them"
    );
    let deleted = answer(&instance, &mut seen, 80, Answer::Done);
    let (name, uid) = (old, "disk".to_owned());
    assert_eq!(
        deleted,
        Action::Delete {
            kind: Kind::DataVolume,
            name,
            uid
        }
    );
    assert_eq!(observed(next(&instance, &seen, 80)).progress, Progress::Done);
}

#[test]
fn a_rebuild_deletes_the_disks_of_rebuilds_that_came_to_nothing_before_it_makes_another() {
    let instance = during(&json!({ "kind": "Rebuild" }), Some("Running"));
    let id = server(&instance).name;
    let on = vm(&instance, ON, &json!({ "status": { "created": true } }));
    let mut seen = seen(Some(&on), None);
    answer(&instance, &mut seen, 1, no_vm());
    let disks = ["old", "failed", "again"].map(|suffix| {
        let disk = data_volume(&instance, &format!("{id}-{suffix}"), "Pending", &json!({}));
        let Answer::DataVolume(disk) = disk else { panic!() };
        disk
    });
    answer(&instance, &mut seen, 1, Answer::DataVolumes(disks.into()));
    let action = answer(&instance, &mut seen, 1, Answer::VirtualMachine(parse_vm(&on)));
    assert!(
        matches!(
            action,
            Action::Get {
                kind: Kind::VirtualMachine,
                ..
            }
        ),
        "which one is in use must be certain"
    );
    let mut deleted = Vec::new();
    loop {
        match answer(&instance, &mut seen, 1, Answer::Done) {
            Action::Delete { name, .. } => deleted.push(name),
            Action::DeleteAll { kind, selector } => {
                assert!(kind == Kind::Secret && !selector.ends_with("=old"), "{selector}");
            }
            Action::Post { kind, .. } => {
                assert_eq!(kind, Kind::DataVolume);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        deleted,
        [format!("{id}-failed"), format!("{id}-again")],
        "the one in use stays"
    );
}

#[test]
fn user_data_that_is_missing_holds_an_installation_up_and_no_server_that_is_installed() {
    let trouble = || domain::provider::Trouble {
        reason: "UserDataMissing",
        message: "there is no Secret boot".to_owned(),
    };
    // Nothing is made, and what runs is not stopped.
    for kind in ["Create", "Rebuild"] {
        let instance = during(&json!({ "kind": kind }), Some("Running"));
        let on = vm(&instance, ON, &json!({ "status": { "created": true } }));
        let mut seen = seen(Some(&on).filter(|_| kind == "Rebuild"), None);
        seen.user_data = Err(trouble());
        answer(&instance, &mut seen, 1, no_vm());
        assert_eq!(failure(next(&instance, &seen, 1)), "UserDataMissing", "{kind}");
    }
    let rebuild = during(&json!({ "kind": "Rebuild" }), Some("Running"));
    let on = vm(&rebuild, ON, &json!({ "status": { "created": true } }));
    let disk = server(&rebuild).disk(operation(&rebuild));
    let mut seen = seen(Some(&on), None);
    seen.user_data = Err(trouble());
    answer(
        &rebuild,
        &mut seen,
        1,
        data_volume(&rebuild, &disk, "Succeeded", &json!({})),
    );
    assert_eq!(failure(next(&rebuild, &seen, 1)), "UserDataMissing");
    // It is installed and boots: it is told as running, and billed.
    for kind in ["Create", "Start", "Rebuild"] {
        let instance = during(&json!({ "kind": kind }), None);
        let booted = booted_vm(&instance, &json!({ "status": { "created": true } }));
        for (phase, progress) in [("Scheduled", Progress::Busy), ("Running", Progress::Done)] {
            let run = run_of(&booted, "run-1", phase, &json!({}));
            let mut seen = self::seen(Some(&booted), Some(&run));
            seen.user_data = Err(trouble());
            if kind == "Rebuild" && phase == "Running" {
                answer(&instance, &mut seen, 1, Answer::DataVolumes(Vec::new()));
            }
            assert_eq!(observed(next(&instance, &seen, 1)).progress, progress, "{kind}");
        }
    }
}

#[test]
fn a_deletion_ends_when_the_claim_is_gone() {
    let instance = during(&json!({ "kind": "Delete", "endsIn": "Stopped" }), Some("Running"));
    let on = vm(&instance, ON, &json!({ "status": { "created": true } }));
    let run = run_of(&on, "run-1", "Running", &json!({}));
    let mut seen = seen(Some(&on), Some(&run));
    let deleting = vm(
        &instance,
        ON,
        &json!({ "metadata": { "deletionTimestamp": at(1) } }),
    );
    let action = answer(
        &instance,
        &mut seen,
        1,
        Answer::VirtualMachine(parse_vm(&deleting)),
    );
    assert_eq!(
        action,
        Action::Delete {
            kind: Kind::VirtualMachine,
            name: server(&instance).name,
            uid: VM_UID.to_owned()
        }
    );
    assert_eq!(short(&answer(&instance, &mut seen, 1, Answer::Done)), "stop");
    assert_eq!(observed(next(&instance, &seen, 1)).progress, Progress::Busy);
    let claim = json!({ "metadata": { "name": "disk", "uid": "claim", "ownerReferences": [
        { "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "disk", "uid": "disk" },
    ] } });
    for claims in [vec![serde_json::from_value(claim).unwrap()], Vec::new()] {
        let is_last = claims.is_empty();
        let mut seen = self::seen(None, None);
        answer(&instance, &mut seen, 5, no_vm());
        for _ in 0..2 {
            let action = answer(&instance, &mut seen, 5, Answer::Done);
            assert!(matches!(action, Action::DeleteAll { .. }));
        }
        answer(&instance, &mut seen, 5, Answer::Claims(claims));
        let observation = observed(next(&instance, &seen, 5));
        assert_eq!(observation.power, None);
        assert_eq!(observation.progress == Progress::Done, is_last);
    }
}

#[test]
fn a_deletion_has_nothing_to_do_where_the_server_cannot_ever_have_been() {
    let deletion = json!({ "kind": "Delete", "endsIn": "Stopped" });
    let made = during(&deletion, Some("Running"));
    let mut never_made = made.clone();
    never_made.status.as_mut().unwrap().provisioned_at = None;
    let namespace =
        |labels: Value| Answer::Object(serde_json::from_value(json!({ "labels": labels })).unwrap());
    let theirs = namespace(json!({ "team": "images" }));
    let ours = namespace(json!(account_labels(&region(), ACCOUNT_UID)));
    let no_rights = || refused(403, "cannot deletecollection resource");
    for (instance, answers, is_done) in [
        (&made, vec![refused(404, "not found")], true),
        (&made, vec![theirs.clone()], true),
        // There is no RoleBinding: it was not made yet, or somebody has taken it away.
        (&never_made, vec![ours.clone(), no_rights()], true),
        (&made, vec![ours, no_rights()], false),
    ] {
        let mut seen = seen(None, None);
        seen.has_namespace = false;
        for reply in [no_vm()].into_iter().chain(answers) {
            answer(instance, &mut seen, 1, reply);
        }
        let plan = next(instance, &seen, 1);
        if is_done {
            assert_eq!(observed(plan).progress, Progress::Done);
        } else {
            assert_eq!(failure(plan), "ClusterFault");
        }
    }
}

#[test]
fn an_idle_server_costs_no_calls_once_its_disk_is_sealed() {
    let instance = idle("Running", &json!({ "vmi": "run-1" }));
    let disk = format!("{}-old", server(&instance).name);
    let on = vm(&instance, ON, &json!({ "status": { "created": true } }));
    let run = run_of(&on, "run-1", "Running", &json!({}));
    let mut seen = seen(Some(&on), Some(&run));
    answer(
        &instance,
        &mut seen,
        1,
        data_volume(&instance, &disk, "Succeeded", &json!({})),
    );
    let Action::Patch {
        kind: Kind::DataVolume,
        patch,
        ..
    } = answer(&instance, &mut seen, 1, Answer::Done)
    else {
        panic!()
    };
    assert_eq!(
        patch["metadata"]["annotations"]["cdi.kubevirt.io/storage.prePopulated"],
        disk.as_str()
    );
    let first = observed(next(&instance, &seen, 1));
    assert_eq!(
        (first.power, first.state["sealed"].as_str()),
        (Some(Power::On), disk.as_str())
    );
    let instance = idle("Running", &json!(first.state));
    let second = observed(next(&instance, &self::seen(Some(&on), Some(&run)), 2));
    assert_eq!(second, first);
}

/// An idle server whose disk is sealed, with what was known of it.
fn resting(power: &str, state: &Value) -> Instance {
    let mut all = json!({ "vmi": "run-1" });
    merge(&mut all, state);
    let name = server(&idle(power, &json!({}))).name;
    merge(
        &mut all,
        &json!({ "disk": format!("{name}-old"), "sealed": format!("{name}-old") }),
    );
    idle(power, &all)
}

fn at_rest(
    instance: &Instance,
    strategy: &str,
    more: &Value,
    run: Option<(&str, &str, Value)>,
) -> Observation {
    let mut vm = vm(instance, strategy, more);
    if run.is_some() {
        vm["status"]["created"] = true.into();
    }
    let run = run.map(|(uid, phase, more)| run_of(&vm, uid, phase, &more));
    observed(next(instance, &seen(Some(&vm), run.as_ref()), 1000))
}

#[test]
fn why_an_idle_server_is_off() {
    for (strategy, more, state, cause) in [
        (OFF, json!({}), json!({}), OffCause::Requested),
        (
            OFF,
            json!({ "metadata": { "annotations": { RUN: ON } } }),
            json!({}),
            OffCause::Outside,
        ),
        (ON, json!({}), json!({}), OffCause::GuestShutdown),
        (
            ON,
            json!({}),
            json!({ "last": "Succeeded" }),
            OffCause::GuestShutdown,
        ),
        (ON, json!({}), json!({ "last": "Failed" }), OffCause::Crashed),
        (
            ON,
            json!({}),
            json!({ "interrupted": "run-1", "last": "Succeeded" }),
            OffCause::Interrupted,
        ),
        (
            ON,
            json!({}),
            json!({ "interrupted": "run-0" }),
            OffCause::GuestShutdown,
        ),
        (
            ON,
            json!({}),
            json!({ "deletedOutside": "run-1" }),
            OffCause::Outside,
        ),
    ] {
        let observation = at_rest(&resting("Running", &state), strategy, &more, None);
        assert_eq!(
            observation.power,
            Some(Power::Off(cause)),
            "{strategy} {more} {state}"
        );
    }
}

#[test]
fn row_01_a_missing_golden_image_is_an_error_at_once() {
    let instance = during(&json!({ "kind": "Create" }), None);
    let mut seen = seen(None, None);
    answer(&instance, &mut seen, 1, no_vm());
    answer(
        &instance,
        &mut seen,
        1,
        refused(422, "DataSource stellage-images/debian-13 not found"),
    );
    assert_eq!(failure(next(&instance, &seen, 1)), "ImageFailed");
    let mut unknown = region();
    unknown.images.clear();
    let mut seen = self::seen(None, None);
    let action = next(&instance, &seen, 1).action.unwrap();
    seen.take(&action, no_vm());
    assert_eq!(failure(next_in(&unknown, &instance, &seen, 1)), "ImageMissing");
}

#[test]
fn row_02_a_failing_import_is_an_error_after_a_minute_and_the_old_server_runs_on() {
    let instance = during(&json!({ "kind": "Rebuild" }), Some("Running"));
    let disk = server(&instance).disk(operation(&instance));
    let on = vm(&instance, ON, &json!({ "status": { "created": true } }));
    let run = run_of(&on, "run-1", "Running", &json!({}));
    let failing = json!({ "status": { "conditions": [{
        "type": "Running", "status": "False", "reason": "Error", "message": "node-7: 404", "lastTransitionTime": at(30),
    }] } });
    let plan = |seconds| {
        let mut seen = seen(Some(&on), Some(&run));
        answer(
            &instance,
            &mut seen,
            seconds,
            data_volume(&instance, &disk, "ImportInProgress", &failing),
        );
        next(&instance, &seen, seconds)
    };
    assert_eq!(observed(plan(89)).progress, Progress::Busy);
    let late = plan(90);
    assert_eq!(late.raw.as_deref(), Some("node-7: 404"));
    assert_eq!(failure(late), "ImageFailed");
}

#[test]
fn row_03_an_image_larger_than_the_disk_is_told_apart() {
    let instance = during(&json!({ "kind": "Create" }), None);
    let mut seen = seen(None, None);
    answer(&instance, &mut seen, 1, no_vm());
    let message = "target resources requests storage size is smaller than the source";
    answer(&instance, &mut seen, 1, refused(422, message));
    assert_eq!(failure(next(&instance, &seen, 1)), "ImageTooLarge");
}

#[test]
fn row_04_a_disk_that_cdi_has_forgotten_is_made_again() {
    let instance = during(&json!({ "kind": "Rebuild" }), Some("Running"));
    let disk = server(&instance).disk(operation(&instance));
    let on = vm(&instance, ON, &json!({}));
    let mut young = seen(Some(&on), None);
    answer(
        &instance,
        &mut young,
        299,
        data_volume(&instance, &disk, "", &json!({})),
    );
    assert_eq!(observed(next(&instance, &young, 299)).progress, Progress::Busy);
    let mut seen = seen(Some(&on), None);
    answer(
        &instance,
        &mut seen,
        300,
        data_volume(&instance, &disk, "", &json!({})),
    );
    answer(&instance, &mut seen, 300, Answer::Claims(Vec::new()));
    let deleted = answer(&instance, &mut seen, 300, Answer::Done);
    assert_eq!(
        deleted,
        Action::Delete {
            kind: Kind::DataVolume,
            name: disk,
            uid: "disk".to_owned()
        }
    );
    let made = answer(&instance, &mut seen, 300, Answer::Done);
    assert_eq!(short(&made), "post DataVolume");
    assert_eq!(observed(next(&instance, &seen, 300)).progress, Progress::Busy);
}

#[test]
fn row_05_no_room_for_the_disk_is_an_error_after_a_minute() {
    let instance = during(&json!({ "kind": "Rebuild" }), Some("Running"));
    let disk = server(&instance).disk(operation(&instance));
    let full = json!({ "status": { "conditions": [{
        "type": "Bound", "status": "False", "reason": "ErrExceededQuota", "lastTransitionTime": at(0),
    }] } });
    let on = vm(&instance, ON, &json!({}));
    let mut seen = seen(Some(&on), None);
    answer(
        &instance,
        &mut seen,
        61,
        data_volume(&instance, &disk, "Pending", &full),
    );
    assert_eq!(failure(next(&instance, &seen, 61)), "StorageQuota");
}

/// What a start comes to whose run has this condition since 10 s.
fn starting(phase: &str, condition: &Value, seconds: i64) -> Plan {
    let instance = during(&json!({ "kind": "Start" }), Some("Stopped"));
    let on = booted_vm(&instance, &json!({ "status": { "created": true } }));
    let mut condition = condition.clone();
    merge(
        &mut condition,
        &json!({ "status": "False", "lastTransitionTime": at(10), "message": "node-7 says no" }),
    );
    let run = run_of(
        &on,
        "run-1",
        phase,
        &json!({ "status": { "conditions": [condition] } }),
    );
    next(&instance, &seen(Some(&on), Some(&run)), seconds)
}

#[test]
fn row_06_a_missing_disk_is_an_error_after_half_a_minute_and_no_other_is_made() {
    let missing = json!({ "type": "Synchronized", "reason": "FailedPvcNotFound" });
    let busy = observed(starting("Pending", &missing, 39));
    assert_eq!((busy.progress, busy.notice), (Progress::Busy, None));
    assert_eq!(failure(starting("Pending", &missing, 40)), "DiskMissing");
}

#[test]
fn row_08_no_capacity_is_told_at_once_and_an_error_after_two_minutes_without_the_names_of_nodes() {
    let full = json!({ "type": "PodScheduled", "reason": "Unschedulable" });
    let busy = observed(starting("Scheduling", &full, 129));
    assert_eq!(
        (busy.progress.clone(), told(&busy)),
        (Progress::Busy, Some(("NoCapacity", false)))
    );
    let failed = starting("Scheduling", &full, 130);
    assert_eq!(failed.raw.as_deref(), Some("node-7 says no"));
    let Ok(Observation {
        progress: Progress::Failed(trouble),
        ..
    }) = failed.outcome
    else {
        panic!()
    };
    assert!(!trouble.message.contains("node-7"), "{}", trouble.message);
}

#[test]
fn row_09_a_launcher_image_that_cannot_be_pulled_is_the_clusters_fault() {
    let pull = json!({ "type": "Synchronized", "reason": "ImagePullBackOff" });
    assert_eq!(failure(starting("Scheduling", &pull, 70)), "ClusterFault");
}

#[test]
fn row_10_a_launcher_that_is_refused_is_told_as_refused() {
    let quota = json!({ "type": "Synchronized", "reason": "FailedCreate" });
    assert_eq!(failure(starting("Pending", &quota, 40)), "Refused");
}

#[test]
fn row_11_a_lost_start_is_found_and_begun_again() {
    let instance = during(&json!({ "kind": "Start" }), Some("Stopped"));
    let lost = booted_vm(&instance, &json!({}));
    let mut seen = seen(Some(&lost), None);
    let action = answer(&instance, &mut seen, 5, no_vm());
    assert_eq!(short(&action), "get Run");
    let plan = next(&instance, &seen, 5);
    assert!(plan.repairs_lost_start);
    assert_eq!(patched(&plan), (Some(OFF), Some("")));
    let Some(Action::Patch { patch, .. }) = plan.action else {
        panic!()
    };
    let mut halted = lost;
    merge(&mut halted, &patch);
    halted["status"]["runStrategy"] = OFF.into();
    let plan = next(&instance, &self::seen(Some(&halted), None), 6);
    assert_eq!(patched(&plan).0, Some(ON));
    assert!(!plan.repairs_lost_start);
}

#[test]
fn row_12_a_guest_that_shuts_itself_down_stays_off_also_right_after_its_boot() {
    assert_eq!(off_cause(&[json!({})], None), Some(OffCause::GuestShutdown));
    // Nobody saw the run of this boot, but virt-controller did.
    let instance = during(&json!({ "kind": "Start" }), Some("Stopped"));
    let over = booted_vm(&instance, &json!({ "status": { "observedGeneration": 3 } }));
    let mut seen = seen(Some(&over), None);
    answer(&instance, &mut seen, 5, no_vm());
    assert_eq!(observed(next(&instance, &seen, 5)).progress, Progress::Done);
}

#[test]
fn row_13_a_guest_that_reboots_itself_is_nothing_to_tell_and_no_plan_takes_effect() {
    let mut instance = resting("Running", &json!({}));
    instance.spec.plan = resources::Plan::Enterprise;
    let without_agent =
        json!({ "status": { "conditions": [{ "type": "AgentConnected", "status": "False" }] } });
    let observation = at_rest(
        &instance,
        ON,
        &json!({}),
        Some(("run-1", "Running", without_agent)),
    );
    assert_eq!(
        (observation.power, observation.restarted, observation.notice),
        (Some(Power::On), None, None)
    );
    assert_eq!(observation.plan, Some(resources::Plan::Business));
}

#[test]
fn row_14_a_crash_that_kubevirt_mended_is_told_once() {
    let instance = resting("Running", &json!({}));
    let first = at_rest(&instance, ON, &json!({}), Some(("run-2", "Running", json!({}))));
    assert_eq!(
        (first.power, first.restarted),
        (Some(Power::On), Some(OffCause::Crashed))
    );
    let second = at_rest(
        &idle("Running", &json!(first.state)),
        ON,
        &json!({}),
        Some(("run-2", "Running", json!({}))),
    );
    assert_eq!(second.restarted, None);
}

#[test]
fn row_15_a_crash_loop_is_an_error_while_kubevirt_goes_on_trying() {
    let looping = json!({ "status": {
        "printableStatus": "CrashLoopBackOff", "stateChangeRequests": [{ "action": "Start" }],
    } });
    let observation = at_rest(&resting("Running", &json!({})), ON, &looping, None);
    assert_eq!(
        (observation.power, told(&observation)),
        (Some(Power::On), Some(("CrashLoop", true)))
    );
}

#[test]
fn row_16_the_request_that_a_crash_leaves_is_taken_away_before_and_after_the_stop() {
    let requested = json!({ "status": { "stateChangeRequests": [{ "action": "Start" }] } });
    let instance = during(&json!({ "kind": "Stop", "endsIn": "Stopped" }), Some("Running"));
    for strategy in [ON, OFF] {
        let looping = vm(&instance, strategy, &requested);
        let plan = next(&instance, &seen(Some(&looping), None), 1);
        assert_eq!(
            short(plan.action.as_ref().unwrap()),
            "clear requests",
            "{:?}",
            plan.action
        );
    }
    // Too late: virt-controller has made it Always.
    let risen = json!({ "metadata": { "annotations": { RUN: OFF } } });
    let always = vm(&instance, "Always", &risen);
    assert_eq!(
        patched(&next(&instance, &seen(Some(&always), None), 1)),
        (Some(OFF), None)
    );
    let stopped = resting("Stopped", &json!({}));
    let always = vm(&stopped, "Always", &risen);
    let run = run_of(&always, "run-2", "Running", &json!({}));
    assert_eq!(
        patched(&next(&stopped, &seen(Some(&always), Some(&run)), 1)),
        (Some(OFF), None)
    );
    let halting = vm(&stopped, OFF, &json!({ "status": { "created": true } }));
    let plan = next(&stopped, &seen(Some(&halting), Some(&run)), 1);
    assert_eq!(short(plan.action.as_ref().unwrap()), "stop", "{:?}", plan.action);
}

#[test]
fn row_18_a_restart_that_was_lost_is_a_crash() {
    let failed = at_rest(
        &resting("Running", &json!({})),
        ON,
        &json!({}),
        Some(("run-1", "Failed", json!({}))),
    );
    assert_eq!(
        (failed.power, failed.state["last"].as_str()),
        (Some(Power::On), "Failed")
    );
    let gone = at_rest(&idle("Running", &json!(failed.state)), ON, &json!({}), None);
    assert_eq!(gone.power, Some(Power::Off(OffCause::Crashed)));
}

#[test]
fn row_19_a_migration_is_nothing_to_tell() {
    let migrating = json!({ "status": {
        "migrationState": { "completed": false },
        "conditions": [
            { "type": "EvictionRequested", "status": "True" },
            { "type": "Paused", "status": "True", "reason": "PausedByMigrationMonitor" },
        ],
    } });
    let observation = at_rest(
        &resting("Running", &json!({})),
        ON,
        &json!({}),
        Some(("run-1", "Running", migrating)),
    );
    assert_eq!((observation.power, observation.notice), (Some(Power::On), None));
}

#[test]
fn row_20_a_drain_is_told_from_a_shutdown_by_the_launchers_pod() {
    let ending = json!({ "status": {
        "nodeName": "n1",
        "conditions": [{ "type": "Ready", "status": "False", "reason": "PodTerminating" }],
    } });
    let instance = resting("Running", &json!({}));
    let on = vm(&instance, ON, &json!({ "status": { "created": true } }));
    let run = run_of(&on, "run-1", "Running", &ending);
    for (node, deleted, is_interrupted) in [("n1", true, true), ("n1", false, false), ("n2", true, false)] {
        let mut pod = json!({ "metadata": { "name": "launcher" }, "spec": { "nodeName": node } });
        if deleted {
            pod["metadata"]["deletionTimestamp"] = json!(at(1));
        }
        let mut seen = seen(Some(&on), Some(&run));
        let action = answer(
            &instance,
            &mut seen,
            1,
            Answer::Pods(vec![serde_json::from_value(pod).unwrap()]),
        );
        let selector = "kubevirt.io/created-by=run-1".to_owned();
        assert_eq!(
            action,
            Action::List {
                kind: Kind::Pod,
                selector
            }
        );
        let observation = observed(next(&instance, &seen, 1));
        assert_eq!(observation.power, Some(Power::On));
        assert_eq!(
            observation.state.contains_key("interrupted"),
            is_interrupted,
            "{node} {deleted}"
        );
    }
}

/// Why a server is off whose run has ended, by the launchers' Pods that are left, and by the run if the cluster is asked for it. `None`: it counts as on until
/// the virtual machine says otherwise.
fn off_cause(pods: &[Value], fresh: Option<Answer>) -> Option<OffCause> {
    let instance = resting("Running", &json!({}));
    let on = vm(&instance, ON, &json!({ "status": { "created": true } }));
    let run = run_of(&on, "run-1", "Succeeded", &json!({}));
    let mut seen = seen(Some(&on), Some(&run));
    let mut answers = vec![("list Pod", {
        let pods = pods
            .iter()
            .map(|pod| serde_json::from_value(pod.clone()).unwrap());
        Answer::Pods(pods.collect())
    })];
    answers.extend(fresh.map(|run| ("get Run", run)));
    for (call, answer) in answers {
        let next = next(&instance, &seen, 1);
        let known = next.outcome.unwrap();
        assert_eq!(known.power, Some(Power::On), "why it is off is not known yet");
        let action = next.action.unwrap();
        assert_eq!(short(&action), call);
        seen.take(&action, answer);
    }
    match observed(next(&instance, &seen, 1)).power {
        Some(Power::Off(cause)) => Some(cause),
        power => {
            assert_eq!(power, Some(Power::On));
            None
        }
    }
}

#[test]
fn row_20_a_drain_of_which_only_the_end_was_seen_is_told_by_the_pod_that_is_going_or_gone() {
    let instance = resting("Running", &json!({}));
    let on = vm(&instance, ON, &json!({}));
    let still_there = || {
        let run = run_of(&on, "run-1", "Succeeded", &json!({}));
        Some(Answer::Run(parse_run(&run)))
    };
    let going = json!({ "metadata": { "deletionTimestamp": at(1) } });
    assert_eq!(off_cause(&[going], None), Some(OffCause::Interrupted));
    assert_eq!(off_cause(&[], still_there()), Some(OffCause::Interrupted));
    let elsewhere = json!({ "spec": { "nodeName": "n2" } });
    assert_eq!(
        off_cause(&[elsewhere], still_there()),
        Some(OffCause::Interrupted)
    );
    assert_eq!(off_cause(&[json!({})], None), Some(OffCause::GuestShutdown));
}

#[test]
fn row_20_why_a_server_is_off_is_asked_again_and_if_its_run_is_gone_before_that_is_said_it_was_the_platform()
{
    let mut instance = resting("Running", &json!({}));
    let on = vm(&instance, ON, &json!({}));
    let run = run_of(&on, "run-1", "Succeeded", &json!({}));
    let refuse = |instance: &Instance| {
        let mut seen = seen(Some(&on), Some(&run));
        let overloaded = refused(429, "too many requests");
        let action = answer(instance, &mut seen, 1, overloaded);
        assert_eq!(short(&action), "list Pod");
        observed(next(instance, &seen, 1))
    };
    let observation = refuse(&instance);
    assert_eq!(observation.power, Some(Power::On));
    assert!(observation.recheck_after.is_some());
    instance.status.as_mut().unwrap().provider_state = observation.state;
    assert_eq!(refuse(&instance).power, Some(Power::On));

    let mut answered = seen(Some(&on), Some(&run));
    let stays = Answer::Pods(vec![serde_json::from_value(json!({})).unwrap()]);
    answer(&instance, &mut answered, 1, stays);
    let power = observed(next(&instance, &answered, 1)).power;
    assert_eq!(power, Some(Power::Off(OffCause::GuestShutdown)));

    let gone = at_rest(&instance, ON, &json!({}), None);
    assert_eq!(gone.power, Some(Power::Off(OffCause::Interrupted)));
}

#[test]
fn a_shutdown_by_the_guest_is_no_drain_if_the_watch_has_yet_to_show_that_the_run_is_gone() {
    let gone = refused(404, "not found");
    assert_eq!(off_cause(&[], Some(gone)), None);
    let instance = resting("Running", &json!({}));
    let on = vm(&instance, ON, &json!({}));
    let going = json!({ "metadata": { "deletionTimestamp": at(1) } });
    let going = run_of(&on, "run-1", "Succeeded", &going);
    let going = Answer::Run(parse_run(&going));
    assert_eq!(off_cause(&[], Some(going)), Some(OffCause::GuestShutdown));
}

#[test]
fn row_22_a_migration_that_fails_is_nothing_to_tell() {
    let failed = json!({ "status": {
        "nodeName": "n1",
        "migrationState": { "completed": true, "failed": true, "sourceNode": "n1", "targetNode": "n2" },
        "conditions": [{ "type": "Ready", "status": "True" }],
    } });
    let observation = at_rest(
        &resting("Running", &json!({})),
        ON,
        &json!({}),
        Some(("run-1", "Running", failed)),
    );
    assert_eq!(
        (observation.power, observation.restarted, observation.notice),
        (Some(Power::On), None, None)
    );
}

#[test]
fn row_23_a_silent_node_is_told_after_a_minute_and_the_server_counts_as_on() {
    let silent = |since| {
        json!({ "status": { "conditions": [{
        "type": "Ready", "status": "False", "reason": "PodNotReady", "lastTransitionTime": at(since),
    }] } })
    };
    let instance = resting("Running", &json!({}));
    for (since, notice) in [(970, None), (930, Some(("NodeUnreachable", false)))] {
        let observation = at_rest(
            &instance,
            ON,
            &json!({}),
            Some(("run-1", "Running", silent(since))),
        );
        assert_eq!((observation.power, told(&observation)), (Some(Power::On), notice));
        assert_eq!(observation.recheck_after.is_some(), notice.is_none());
    }
}

#[test]
fn rows_25_and_26_a_paused_server_is_on_and_the_customer_is_told() {
    for (reason, notice) in [
        ("PausedIOError", Some(("StorageUnavailable", true))),
        ("PausedByUser", Some(("Paused", false))),
        ("PausedByMigrationMonitor", None),
    ] {
        let paused =
            json!({ "status": { "conditions": [{ "type": "Paused", "status": "True", "reason": reason }] } });
        let observation = at_rest(
            &resting("Running", &json!({})),
            ON,
            &json!({}),
            Some(("run-1", "Running", paused)),
        );
        assert_eq!(
            (observation.power, told(&observation)),
            (Some(Power::On), notice),
            "{reason}"
        );
    }
}

#[test]
fn rows_27_and_57_conditions_of_the_virtual_machine_are_told() {
    for (condition, notice) in [
        ("RestartRequired", ("ChangedOutside", false)),
        ("ManualRecoveryRequired", ("ManualRecovery", true)),
    ] {
        let more = json!({ "status": { "conditions": [{ "type": condition, "status": "True", "message": "raw" }] } });
        let instance = resting("Running", &json!({}));
        let on = vm(&instance, ON, &more);
        let run = run_of(&on, "run-1", "Running", &json!({}));
        let plan = next(&instance, &seen(Some(&on), Some(&run)), 1);
        assert_eq!(plan.raw.as_deref(), Some("raw"));
        assert_eq!(told(&observed(plan)), Some(notice));
    }
}

#[test]
fn row_28_a_server_is_missing_only_if_the_cluster_says_so_and_a_start_keeps_its_data() {
    let instance = resting("Running", &json!({}));
    let mut seen = seen(None, None);
    let plan = next(&instance, &seen, 1);
    assert_eq!(short(plan.action.as_ref().unwrap()), "get VirtualMachine");
    assert!(
        plan.outcome.is_err(),
        "it must not count as missing if there is no time to ask"
    );
    answer(&instance, &mut seen, 1, no_vm());
    assert_eq!(observed(next(&instance, &seen, 1)).power, None);

    let instance = during(&json!({ "kind": "Start" }), Some("Running"));
    let mut seen = self::seen(None, None);
    answer(&instance, &mut seen, 1, no_vm());
    let Answer::DataVolume(disk) = data_volume(&instance, "left", "Succeeded", &json!({})) else {
        panic!()
    };
    answer(&instance, &mut seen, 1, Answer::DataVolumes(vec![disk]));
    answer(&instance, &mut seen, 1, Answer::Done);
    let Some(Action::Post {
        kind: Kind::VirtualMachine,
        object,
    }) = next(&instance, &seen, 1).action
    else {
        panic!()
    };
    assert_eq!(
        object["spec"]["template"]["spec"]["volumes"][0]["dataVolume"]["name"],
        "left"
    );
}

#[test]
fn a_server_that_was_never_made_is_made_by_the_first_operation_that_needs_one() {
    for kind in ["Start", "Reboot", "Resize"] {
        let mut instance = during(&json!({ "kind": kind, "plan": "performance" }), None);
        instance.status.as_mut().unwrap().provisioned_at = None;
        let mut seen = seen(None, None);
        answer(&instance, &mut seen, 1, no_vm());
        answer(&instance, &mut seen, 1, Answer::DataVolumes(Vec::new()));
        let action = next(&instance, &seen, 1).action;
        assert!(matches!(action, Some(Action::Post { .. })), "{kind} {action:?}");
    }
}

#[test]
fn a_lost_disk_is_replaced_by_a_rebuild_only() {
    for kind in ["Start", "Reboot", "Resize"] {
        let instance = during(&json!({ "kind": kind }), Some("Running"));
        let mut seen = seen(None, None);
        answer(&instance, &mut seen, 1, no_vm());
        answer(&instance, &mut seen, 1, Answer::DataVolumes(Vec::new()));
        answer(&instance, &mut seen, 1, Answer::Claims(Vec::new()));
        assert_eq!(failure(next(&instance, &seen, 1)), "DiskMissing", "{kind}");
    }
    let instance = during(&json!({ "kind": "Rebuild" }), Some("Running"));
    let mut seen = seen(None, None);
    answer(&instance, &mut seen, 1, no_vm());
    answer(&instance, &mut seen, 1, no_vm());
    let action = next(&instance, &seen, 1).action.unwrap();
    assert_eq!(short(&action), "post DataVolume");
}

#[test]
fn a_claim_that_was_restored_without_its_data_volume_is_a_disk() {
    let instance = during(&json!({ "kind": "Start" }), Some("Running"));
    let mut seen = seen(None, None);
    answer(&instance, &mut seen, 1, no_vm());
    answer(&instance, &mut seen, 1, Answer::DataVolumes(Vec::new()));
    let claims = json!([
        { "metadata": { "name": "left", "creationTimestamp": at(-50) } },
        { "metadata": { "name": "going", "creationTimestamp": at(-40), "deletionTimestamp": at(0) } },
    ]);
    let claims = Answer::Claims(serde_json::from_value(claims).unwrap());
    answer(&instance, &mut seen, 1, claims);
    answer(&instance, &mut seen, 1, Answer::Done);
    let Some(Action::Post { object, .. }) = next(&instance, &seen, 1).action else {
        panic!()
    };
    assert_eq!(
        object["spec"]["template"]["spec"]["volumes"][0]["dataVolume"]["name"],
        "left"
    );
}

#[test]
fn no_disk_counts_as_lost_before_there_are_rights_to_look_for_it() {
    let instance = during(&json!({ "kind": "Start" }), Some("Running"));
    let mut seen = seen(None, None);
    seen.has_namespace = false;
    answer(&instance, &mut seen, 1, no_vm());
    while !seen.has_namespace {
        let action = next(&instance, &seen, 1).action.unwrap();
        assert!(!matches!(action, Action::List { .. }), "{action:?}");
        seen.take(&action, Answer::Done);
    }
    let action = next(&instance, &seen, 1).action.unwrap();
    assert!(matches!(action, Action::List { .. }), "{action:?}");
}

#[test]
fn what_was_refused_before_the_namespace_had_rights_is_asked_again() {
    for kind in ["Start", "Rebuild"] {
        let mut instance = during(&json!({ "kind": kind }), None);
        if kind == "Start" {
            instance.status.as_mut().unwrap().provisioned_at = None;
        }
        let mut seen = seen(None, None);
        seen.has_namespace = false;
        answer(&instance, &mut seen, 1, no_vm());
        let mut posted = Vec::new();
        while let Some(action) = next(&instance, &seen, 1).action {
            let reply = match &action {
                Action::Post { kind, .. } => {
                    posted.push(*kind);
                    Answer::Done
                }
                Action::Apply { .. } => Answer::Done,
                Action::List { .. } if seen.has_namespace => Answer::DataVolumes(Vec::new()),
                Action::Get { .. } if seen.has_namespace => refused(404, "not found"),
                _ => refused(403, "forbidden"),
            };
            seen.take(&action, reply);
        }
        assert!(posted.contains(&Kind::DataVolume), "{kind} {posted:?}");
        assert_eq!(
            observed(next(&instance, &seen, 1)).progress,
            Progress::Busy,
            "{kind}"
        );
    }
}

#[test]
fn rights_that_somebody_has_taken_away_are_bound_again_in_a_namespace_of_ours_only() {
    let refusal = || {
        refused(
            403,
            "virtualmachines \"x\" is forbidden: User \"stellage\" cannot patch it",
        )
    };
    let labels = json!({ "labels": account_labels(&region(), ACCOUNT_UID) });
    let namespace = |metadata: &Value| Answer::Object(serde_json::from_value(metadata.clone()).unwrap());
    for instance in [
        during(&json!({ "kind": "Stop", "endsIn": "Stopped" }), Some("Running")),
        during(&json!({ "kind": "Reboot" }), Some("Running")),
        during(&json!({ "kind": "Delete" }), Some("Running")),
    ] {
        let on = vm(&instance, ON, &json!({}));
        for (metadata, reply, is_bound) in [
            (&labels, Some(Answer::Done), true),
            (&labels, Some(refused(409, "already exists")), false),
            (&json!({}), None, false),
        ] {
            let mut seen = seen(Some(&on), None);
            answer(&instance, &mut seen, 1, refusal());
            let action = answer(&instance, &mut seen, 1, namespace(metadata));
            assert!(matches!(
                action,
                Action::Get {
                    kind: Kind::Namespace,
                    ..
                }
            ));
            if let Some(reply) = reply {
                let action = answer(&instance, &mut seen, 1, reply);
                assert!(matches!(
                    action,
                    Action::Post {
                        kind: Kind::RoleBinding,
                        ..
                    }
                ));
            }
            let progress = observed(next(&instance, &seen, 1)).progress;
            assert_eq!(progress == Progress::Busy, is_bound, "{progress:?}");
        }
    }
}

#[test]
fn row_29_a_run_that_somebody_else_ends_stays_off() {
    let deleting = json!({ "metadata": { "deletionTimestamp": at(1) } });
    let ending = at_rest(
        &resting("Running", &json!({})),
        ON,
        &json!({}),
        Some(("run-1", "Running", deleting)),
    );
    assert_eq!(
        (ending.power, ending.state["deletedOutside"].as_str()),
        (Some(Power::On), "run-1")
    );
    let gone = at_rest(&idle("Running", &json!(ending.state)), ON, &json!({}), None);
    assert_eq!(gone.power, Some(Power::Off(OffCause::Outside)));
}

#[test]
fn row_30_another_strategy_is_somebody_elses_and_the_next_operation_takes_over() {
    let observation = at_rest(
        &resting("Running", &json!({})),
        "Manual",
        &json!({}),
        Some(("run-1", "Running", json!({}))),
    );
    assert_eq!(
        (observation.power, told(&observation)),
        (Some(Power::On), Some(("ManagedOutside", false)))
    );
    let instance = during(&json!({ "kind": "Reboot" }), Some("Running"));
    let manual = vm(&instance, "Manual", &json!({}));
    assert_eq!(
        patched(&next(&instance, &seen(Some(&manual), None), 1)),
        (Some(OFF), None)
    );
}

#[test]
fn row_31_what_has_our_name_and_is_not_ours_is_never_touched() {
    let foreign = json!({ "metadata": { "labels": { super::names::INSTANCE_UID: "another" } } });
    for kind in [
        "Create", "Start", "Stop", "PowerOff", "Reboot", "Resize", "Rebuild",
    ] {
        let instance = during(&json!({ "kind": kind }), Some("Running"));
        let vm = vm(&instance, ON, &foreign);
        assert_eq!(
            failure(next(&instance, &seen(Some(&vm), None), 1)),
            "NameTaken",
            "{kind}"
        );
    }
    let observation = at_rest(&resting("Running", &json!({})), ON, &foreign, None);
    assert_eq!(told(&observation), Some(("NameTaken", true)));
    let instance = during(&json!({ "kind": "Delete" }), Some("Running"));
    let vm = vm(&instance, ON, &foreign);
    let plan = next(&instance, &seen(Some(&vm), None), 1);
    assert!(
        matches!(plan.action, Some(Action::DeleteAll { .. })),
        "what is ours goes all the same"
    );
}

#[test]
fn row_32_a_virtual_machine_that_does_not_go_is_told_after_the_deadline() {
    let instance = during(&json!({ "kind": "Delete", "endsIn": "Stopped" }), Some("Running"));
    let stuck = vm(
        &instance,
        ON,
        &json!({ "metadata": { "deletionTimestamp": at(1) } }),
    );
    let seen = seen(Some(&stuck), None);
    assert_eq!(observed(next(&instance, &seen, 899)).progress, Progress::Busy);
    assert_eq!(failure(next(&instance, &seen, 900)), "DeleteFailed");
}

#[test]
fn row_34_a_cluster_that_refuses_writes_is_unavailable_and_the_server_is_left_alone() {
    let instance = during(&json!({ "kind": "Start" }), Some("Stopped"));
    let off = vm(&instance, OFF, &json!({}));
    let mut seen = seen(Some(&off), None);
    answer(
        &instance,
        &mut seen,
        1,
        refused(500, "failed calling webhook virt-api"),
    );
    let plan = next(&instance, &seen, 1);
    assert!(plan.raw.unwrap().contains("failed calling webhook"));
    assert!(matches!(plan.outcome, Err(ProviderError::Unavailable(_))));
}

#[test]
fn a_right_that_a_cluster_which_has_just_started_does_not_know_yet_is_not_taken_for_a_refusal() {
    let forbidden = |what: &str| {
        let message = format!(
            "{what} is forbidden: User \"stellage\" cannot patch resource \"{what}\" in API group \"\""
        );
        refused(403, &message)
    };
    let resize = during(
        &json!({ "kind": "Resize", "plan": "performance" }),
        Some("Running"),
    );
    let on = vm(&resize, ON, &json!({ "status": { "created": true } }));
    let mut seen = seen(Some(&on), Some(&run_of(&on, "run-1", "Running", &json!({}))));
    answer(&resize, &mut seen, 1, forbidden("persistentvolumeclaims"));
    // Is the binding missing?
    let action = answer(&resize, &mut seen, 1, forbidden("namespaces"));
    assert_eq!(short(&action), "get Namespace");
    let outcome = next(&resize, &seen, 1).outcome;
    assert!(
        matches!(outcome, Err(ProviderError::Unavailable(_))),
        "{outcome:?}"
    );
}

#[test]
fn row_35_a_controller_that_does_nothing_is_told_after_a_minute() {
    let instance = during(&json!({ "kind": "Start" }), Some("Stopped"));
    let waiting = booted_vm(&instance, &json!({ "status": { "runStrategy": OFF } }));
    let seen = seen(Some(&waiting), None);
    assert_eq!(told(&observed(next(&instance, &seen, 60))), None);
    assert_eq!(
        told(&observed(next(&instance, &seen, 61))),
        Some(("KubeVirtSlow", false))
    );
}

#[test]
fn row_36_a_node_that_does_not_take_up_a_server_is_told_after_a_minute() {
    let slow = starting("Scheduled", &json!({ "type": "Ready" }), 61);
    assert_eq!(told(&observed(slow)), Some(("NodeSlow", false)));
}

#[test]
fn row_37_nothing_is_concluded_about_a_region_that_is_cut_off() {
    for instance in [
        resting("Running", &json!({})),
        during(&json!({ "kind": "Start" }), Some("Stopped")),
    ] {
        let mut seen = seen(None, None);
        seen.reach = Reach::Cut(at(-90));
        let plan = next(&instance, &seen, 1);
        assert_eq!(plan.action, None);
        let region = "de-fra-1".to_owned();
        assert_eq!(
            plan.outcome,
            Err(ProviderError::Unreachable {
                region,
                since: at(-90)
            })
        );
    }
}

#[test]
fn row_40_a_creation_goes_on_with_what_it_finds() {
    let instance = during(&json!({ "kind": "Create" }), None);
    let disk = server(&instance).disk(operation(&instance));
    let mut seen = seen(None, None);
    answer(&instance, &mut seen, 1, no_vm());
    answer(&instance, &mut seen, 1, refused(409, "already exists"));
    answer(
        &instance,
        &mut seen,
        1,
        data_volume(&instance, &disk, "Succeeded", &json!({})),
    );
    answer(&instance, &mut seen, 1, refused(409, "already exists"));
    let action = next(&instance, &seen, 1).action;
    assert_eq!(short(action.as_ref().unwrap()), "post VirtualMachine");
}

#[test]
fn row_41_a_reboot_continues_at_whichever_state_it_finds() {
    let instance = during(&json!({ "kind": "Reboot" }), Some("Running"));
    let own = boot(operation(&instance));
    let created = json!({ "status": { "created": true } });
    let on = vm(&instance, ON, &created);
    let run = run_of(&on, "run-1", "Running", &json!({}));
    assert_eq!(
        patched(&next(&instance, &seen(Some(&on), Some(&run)), 1)),
        (Some(OFF), None)
    );
    let off = vm(&instance, OFF, &json!({}));
    assert_eq!(
        patched(&next(&instance, &seen(Some(&off), None), 1)),
        (Some(ON), Some(own.as_str()))
    );
    let booted = booted_vm(&instance, &created);
    for (phase, progress) in [("Scheduled", Progress::Busy), ("Running", Progress::Done)] {
        let run = run_of(&booted, "run-2", phase, &json!({}));
        assert_eq!(
            observed(next(&instance, &seen(Some(&booted), Some(&run)), 1)).progress,
            progress
        );
    }
    // KubeVirt has restarted it after a crash: it is not powered off again.
    let run = run_of(&booted, "run-3", "Running", &json!({}));
    assert_eq!(
        observed(next(&instance, &seen(Some(&booted), Some(&run)), 900)).progress,
        Progress::Done
    );
}

#[test]
fn rows_42_and_43_a_write_that_comes_too_late_is_planned_again_from_what_is_there() {
    let instance = during(&json!({ "kind": "Reboot" }), Some("Running"));
    let off = vm(&instance, OFF, &json!({}));
    let mut seen = seen(Some(&off), None);
    answer(
        &instance,
        &mut seen,
        1,
        refused(409, "the object has been modified"),
    );
    let booted = booted_vm(&instance, &json!({ "status": { "runStrategy": OFF } }));
    let action = answer(&instance, &mut seen, 1, Answer::VirtualMachine(parse_vm(&booted)));
    assert_eq!(short(&action), "get VirtualMachine");
    assert_eq!(observed(next(&instance, &seen, 1)).progress, Progress::Busy);
    // Not for ever.
    let mut seen = self::seen(Some(&off), None);
    for _ in 0..4 {
        answer(
            &instance,
            &mut seen,
            1,
            refused(409, "the object has been modified"),
        );
        if next(&instance, &seen, 1).action.is_some() {
            answer(&instance, &mut seen, 1, Answer::VirtualMachine(parse_vm(&off)));
        }
    }
    assert_eq!(observed(next(&instance, &seen, 1)).progress, Progress::Busy);
}

#[test]
fn row_48_a_disk_that_cannot_grow_fails_the_resize_while_the_server_runs() {
    let instance = during(
        &json!({ "kind": "Resize", "plan": "performance" }),
        Some("Running"),
    );
    let on = vm(&instance, ON, &json!({ "status": { "created": true } }));
    let run = run_of(&on, "run-1", "Running", &json!({}));
    let mut seen = seen(Some(&on), Some(&run));
    answer(
        &instance,
        &mut seen,
        1,
        refused(403, "only dynamically provisioned pvc can be resized"),
    );
    assert_eq!(failure(next(&instance, &seen, 1)), "DiskCannotGrow");
}

#[test]
fn row_50_a_creation_without_a_free_address_makes_nothing() {
    let region = region_with_addresses(bridge());
    let instance = during(&json!({ "kind": "Create" }), None);
    let mut seen = seen(None, None);
    let action = next_in(&region, &instance, &seen, 1).action.unwrap();
    seen.take(&action, no_vm());
    assert_eq!(failure(next_in(&region, &instance, &seen, 1)), "NoFreeAddress");
    seen.addresses = reserved();
    assert!(next_in(&region, &instance, &seen, 1).action.is_some());
}

#[test]
fn row_52_a_creation_in_a_private_network_that_is_not_there_makes_nothing() {
    let mut instance = during(&json!({ "kind": "Create" }), None);
    instance.spec.private_network = Some("pn-backend".to_owned());
    let mut seen = seen(None, None);
    answer(&instance, &mut seen, 1, no_vm());
    let action = answer(&instance, &mut seen, 1, no_vm());
    assert_eq!(short(&action), "get NetworkAttachment");
    assert_eq!(failure(next(&instance, &seen, 1)), "PrivateNetworkMissing");
}

/// A region in which private networks have this driver, and an Instance in one that is ready, with what is known of it.
fn in_private_network(
    driver: PrivateNetworks,
    kind: &str,
    state: Option<&str>,
) -> (KubeVirt, Instance, Joined) {
    let mut region = region();
    region.network.private_networks = driver;
    let mut instance = during(&json!({ "kind": kind }), state);
    instance.spec.private_network = Some("pn-backend".to_owned());
    let joined = Joined {
        names: NetworkNames {
            namespace: "stellage-acme".to_owned(),
            attachment: "pn-backend".to_owned(),
            vpc: "stellage-vpc-1".to_owned(),
            subnet: "stellage-pn-1".to_owned(),
            uid: "network-1".to_owned(),
        },
        is_ready: true,
        address: Some("10.128.4.7/24".parse().unwrap()),
    };
    (region, instance, joined)
}

fn attachment(name: &str, uid: &str) -> NetworkAttachment {
    let labels = json!({ "stellage.dev/network-uid": uid });
    serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels } })).unwrap()
}

#[test]
fn row_52_a_creation_waits_a_minute_for_a_network_that_stellage_makes_and_joins_no_other_of_its_name() {
    let (region, instance, joined) = in_private_network(PrivateNetworks::KubeOvn, "Create", None);
    let begin = |joined: Option<Joined>| {
        let mut seen = seen(None, None);
        let action = next_in(&region, &instance, &seen, 1).action.unwrap();
        seen.take(&action, no_vm());
        seen.network = joined;
        seen
    };
    let being_made = Joined {
        is_ready: false,
        ..joined.clone()
    };
    let seen = begin(Some(being_made));
    let waits = observed(next_in(&region, &instance, &seen, 59));
    assert_eq!(waits.progress, Progress::Busy);
    assert_eq!(told(&waits), Some(("PrivateNetworkNotReady", false)));
    let late = next_in(&region, &instance, &seen, 60);
    assert_eq!(failure(late), "PrivateNetworkNotReady");
    assert_eq!(
        failure(next_in(&region, &instance, &begin(None), 1)),
        "PrivateNetworkMissing"
    );
    for (found, is_joined) in [
        (Answer::Attachment(attachment("pn-backend", "network-1")), true),
        (Answer::Attachment(attachment("pn-backend", "network-2")), false),
        (no_vm(), false),
    ] {
        let mut seen = begin(Some(joined.clone()));
        let action = next_in(&region, &instance, &seen, 1).action.unwrap();
        assert_eq!(short(&action), "get NetworkAttachment");
        seen.take(&action, found);
        let plan = next_in(&region, &instance, &seen, 1);
        match plan.action {
            Some(action) => assert_eq!((short(&action).as_str(), is_joined), ("post DataVolume", true)),
            None => assert_eq!((failure(plan), is_joined), ("PrivateNetworkMissing", false)),
        }
    }
}

#[test]
fn a_server_is_attached_to_the_network_of_the_platform_team_that_was_given_to_its_own() {
    let pool = ["vlans/vlan-101", "vlans/vlan-102", "more/vlan-900"].map(object_name);
    let (region, instance, joined) = in_private_network(PrivateNetworks::Pool(pool.into()), "Create", None);
    let mut seen = seen(None, None);
    seen.network = Some(joined);
    let mut calls = Vec::new();
    let made = loop {
        let action = next_in(&region, &instance, &seen, 1).action.unwrap();
        calls.push(short(&action));
        let answer = match calls.last().unwrap().as_str() {
            "get VirtualMachine" => no_vm(),
            "list NetworkAttachment in vlans" => Answer::Attachments(Vec::new()),
            "list NetworkAttachment in more" => {
                Answer::Attachments(vec![attachment("vlan-900", "network-1")])
            }
            "post VirtualMachine" => break action,
            _ => Answer::Done,
        };
        seen.take(&action, answer);
    };
    assert_eq!(
        calls[1..3],
        [
            "list NetworkAttachment in vlans",
            "list NetworkAttachment in more"
        ]
    );
    let Action::Post { object, .. } = made else {
        panic!()
    };
    let spec = &object["spec"]["template"]["spec"];
    assert_eq!(spec["networks"][1]["multus"]["networkName"], "more/vlan-900");
    assert_eq!(spec["domain"]["devices"]["interfaces"][1]["name"], "private");
}

#[test]
fn a_server_whose_private_network_is_lost_is_not_powered_off_for_nothing() {
    for kind in ["Reboot", "Resize", "Rebuild"] {
        let (region, instance, joined) = in_private_network(PrivateNetworks::KubeOvn, kind, Some("Running"));
        let on = vm(&instance, ON, &json!({ "status": { "created": true } }));
        let run = run_of(&on, "run-1", "Running", &json!({}));
        for network in [None, Some(joined)] {
            let is_there = network.is_some();
            let mut seen = seen(Some(&on), Some(&run));
            seen.network = network;
            let mut calls = Vec::new();
            let plan = loop {
                let plan = next_in(&region, &instance, &seen, 1);
                let Some(action) = &plan.action else { break plan };
                calls.push(short(action));
                if calls.last().unwrap() == "patch VirtualMachine" {
                    break plan;
                }
                let disk = server(&instance).disk(operation(&instance));
                let answer = match action {
                    Action::Get { .. } => data_volume(&instance, &disk, "Succeeded", &json!({})),
                    _ => Answer::Done,
                };
                seen.take(action, answer);
            };
            if is_there {
                assert_eq!(patched(&plan).0, Some(OFF), "{kind} {calls:?}");
            } else {
                assert_eq!(failure(plan), "PrivateNetworkMissing", "{kind} {calls:?}");
            }
        }
    }
}

#[test]
fn row_53_addresses_behind_the_masquerade_are_not_believed() {
    let behind = json!({ "status": { "interfaces": [{
        "name": "default", "ipAddress": "10.0.2.2", "ipAddresses": ["10.0.2.2", "fd10:0:2::2", "fe80::1"],
    }] } });
    let observation = at_rest(
        &resting("Running", &json!({})),
        ON,
        &json!({}),
        Some(("run-1", "Running", behind)),
    );
    assert_eq!(
        (observation.addresses.ipv4, observation.addresses.ipv6),
        (None, None)
    );
}

#[test]
fn row_54_a_namespace_that_is_foreign_or_being_deleted_is_not_used() {
    let instance = during(&json!({ "kind": "Create" }), None);
    let labels = json!(account_labels(&region(), ACCOUNT_UID));
    for (metadata, is_usable) in [
        (json!({ "labels": labels }), true),
        (json!({ "labels": {} }), false),
        (json!({ "labels": labels, "deletionTimestamp": at(0) }), false),
    ] {
        let mut seen = seen(None, None);
        seen.has_namespace = false;
        answer(&instance, &mut seen, 1, no_vm());
        answer(&instance, &mut seen, 1, refused(409, "already exists"));
        answer(
            &instance,
            &mut seen,
            1,
            Answer::Object(serde_json::from_value(metadata).unwrap()),
        );
        let plan = next(&instance, &seen, 1);
        assert_eq!(plan.action.is_some(), is_usable);
        if !is_usable {
            assert_eq!(failure(plan), "NamespaceUnusable");
        }
    }
    let mut existing = region();
    existing.namespaces = Namespaces::Existing;
    let mut seen = seen(None, None);
    seen.has_namespace = false;
    for reply in [no_vm(), refused(404, "namespaces \"stellage-acme\" not found")] {
        let action = next_in(&existing, &instance, &seen, 1).action.unwrap();
        seen.take(&action, reply);
    }
    assert_eq!(
        failure(next_in(&existing, &instance, &seen, 1)),
        "NamespaceMissing"
    );
}

#[test]
fn row_34_a_refused_read_or_status_patch_ends_the_step_and_is_told() {
    let starting = during(&json!({ "kind": "Start" }), Some("Stopped"));
    let stopping = during(&json!({ "kind": "Stop", "endsIn": "Stopped" }), Some("Running"));
    let requested = json!({ "status": { "stateChangeRequests": [{ "action": "Start" }] } });
    let looping = vm(&stopping, ON, &requested);
    for (instance, vm) in [(starting, None), (stopping, Some(&looping))] {
        for status in [403, 500] {
            let mut seen = seen(vm, None);
            answer(&instance, &mut seen, 1, refused(status, "no"));
            let plan = next(&instance, &seen, 1);
            assert_eq!(plan.action, None, "not again and again");
            assert!(plan.raw.unwrap().contains("no"));
            match plan.outcome {
                Ok(observation) if status == 403 => {
                    assert!(matches!(observation.progress, Progress::Failed(_)));
                }
                Err(ProviderError::Unavailable(_)) if status == 500 => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn row_56_a_server_that_others_are_saving_waits() {
    let instance = during(&json!({ "kind": "Start" }), Some("Stopped"));
    let off = vm(&instance, OFF, &json!({}));
    let mut seen = seen(Some(&off), None);
    answer(
        &instance,
        &mut seen,
        1,
        refused(422, "Cannot update VM runStrategy until snapshot \"x\" completes"),
    );
    let busy = observed(next(&instance, &seen, 1));
    assert_eq!(
        (busy.progress.clone(), told(&busy)),
        (Progress::Busy, Some(("LockedBySnapshot", false)))
    );
}

#[test]
fn rows_16_and_56_a_repair_that_does_not_succeed_is_told_and_the_server_is_not_missing() {
    let stopped = resting("Stopped", &json!({}));
    let risen = json!({ "metadata": { "annotations": { RUN: OFF } } });
    let always = vm(&stopped, "Always", &risen);
    let run = run_of(&always, "run-2", "Running", &json!({}));
    let locked = "Cannot update VM runStrategy until snapshot \"x\" completes";
    for (status, message, notice) in [
        (422, locked, "LockedBySnapshot"),
        (422, "denied the request", "Refused"),
        (403, "denied the request", "Refused"),
    ] {
        let mut seen = seen(Some(&always), Some(&run));
        answer(&stopped, &mut seen, 1, refused(status, message));
        let observation = observed(next(&stopped, &seen, 1));
        assert!(observation.power.is_some(), "{message}");
        assert_eq!(told(&observation), Some((notice, false)));
        assert!(observation.recheck_after.is_some());
    }
    // Others change it all the time.
    let mut seen = seen(Some(&always), Some(&run));
    while let Some(action) = next(&stopped, &seen, 1).action {
        let reply = match action {
            Action::Get { .. } => Answer::VirtualMachine(parse_vm(&always)),
            _ => refused(409, "the object has been modified"),
        };
        seen.take(&action, reply);
    }
    let last = next(&stopped, &seen, 1).outcome;
    assert!(!matches!(last, Ok(Observation { power: None, .. })), "{last:?}");
    // Nobody knows whether it is there.
    let mut seen = self::seen(None, None);
    answer(&stopped, &mut seen, 1, refused(403, "forbidden"));
    assert!(next(&stopped, &seen, 1).outcome.is_err());
}

#[test]
fn row_58_the_grace_does_not_depend_on_the_clock_of_the_cluster() {
    let instance = during(&json!({ "kind": "Reboot" }), Some("Running"));
    let halting = vm(&instance, OFF, &json!({ "status": { "created": true } }));
    for (deleted_at, seconds, is_over) in [
        (3600, 119, false),
        (3600, 120, true),
        (-3600, 119, false),
        (-3600, 120, true),
    ] {
        let deleting = json!({ "metadata": { "deletionTimestamp": at(deleted_at) } });
        let run = run_of(&halting, "run-1", "Running", &deleting);
        let plan = next(&instance, &seen(Some(&halting), Some(&run)), seconds);
        assert_eq!(plan.action.is_some(), is_over, "{deleted_at} {seconds}");
    }
}

#[test]
fn row_62_a_server_is_off_only_when_its_run_is_gone() {
    let instance = during(
        &json!({ "kind": "PowerOff", "endsIn": "Stopped" }),
        Some("Running"),
    );
    let halted = vm(&instance, OFF, &json!({}));
    let migrating = json!({
        "metadata": { "deletionTimestamp": at(1) }, "status": { "migrationState": { "completed": false } },
        "spec": { "terminationGracePeriodSeconds": 0 },
    });
    let run = run_of(&halted, "run-1", "Running", &migrating);
    let busy = observed(next(&instance, &seen(Some(&halted), Some(&run)), 1));
    assert_eq!(busy.progress, Progress::Busy);
}

#[test]
fn a_run_made_from_what_was_before_the_operation_is_replaced() {
    let instance = during(&json!({ "kind": "Rebuild" }), Some("Running"));
    let booted = booted_vm(&instance, &json!({ "status": { "created": true } }));
    let stale = json!({ "metadata": { "annotations": { BOOT: "Start/before/abcdef" } } });
    let run = run_of(&booted, "run-1", "Running", &stale);
    let mut seen = seen(Some(&booted), Some(&run));
    answer(&instance, &mut seen, 1, Answer::Run(parse_run(&run)));
    let plan = next(&instance, &seen, 1);
    assert_eq!(patched(&plan), (Some(OFF), Some("")));
}

#[test]
fn what_is_not_used_is_not_kept() {
    let instance = resting("Running", &json!({}));
    let full = vm(
        &instance,
        ON,
        &json!({
            "metadata": {
                "managedFields": [{ "manager": "x" }], "finalizers": ["x"],
                "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "{}" },
            },
            "spec": { "running": null, "template": { "spec": { "domain": { "machine": { "type": "q35" } } } } },
            "status": { "conditions": [{ "type": "Ready", "status": "True", "lastProbeTime": null }] },
        }),
    );
    let kept = parse_vm(&full);
    assert_eq!(kept.metadata.managed_fields, None);
    assert_eq!(kept.metadata.annotations.as_ref().unwrap().len(), 2);
    assert!(kept.status.conditions.is_empty());
    let unknown: super::slim::VmSpec =
        serde_json::from_value(json!({ "runStrategy": "WaitAsReceiver" })).unwrap();
    assert_eq!(unknown.run_strategy, Some(super::slim::RunStrategy::Other));
    let unknown: super::slim::VmiStatus = serde_json::from_value(json!({ "phase": "" })).unwrap();
    assert_eq!(unknown.phase, super::slim::Phase::Unknown);
}

#[test]
fn all_image_sources_are_written_as_cdi_wants_them() {
    let instance = during(&json!({ "kind": "Create" }), None);
    let server = server(&instance);
    let region = region();
    let maker = super::objects::Maker {
        instance: &instance,
        region: &region,
        server: &server,
        account_uid: ACCOUNT_UID,
        addresses: &reserved(),
        user_data: None,
        private_address: None,
    };
    let name = || object_name("stellage-images/debian-13");
    let url = || "https://mirror.example/debian-13.qcow2".to_owned();
    for (source, path, wanted) in [
        (
            ImageSource::DataSource(name()),
            "/spec/sourceRef/kind",
            "DataSource",
        ),
        (
            ImageSource::Snapshot(name()),
            "/spec/source/snapshot/name",
            "debian-13",
        ),
        (
            ImageSource::Pvc(name()),
            "/spec/source/pvc/namespace",
            "stellage-images",
        ),
        (
            ImageSource::Registry {
                url: "docker://x".to_owned(),
                pull_method: domain::catalogue::region::PullMethod::Node,
            },
            "/spec/source/registry/pullMethod",
            "node",
        ),
        (
            ImageSource::Http {
                url: url(),
                cert_config_map: Some("ca".to_owned()),
            },
            "/spec/source/http/certConfigMap",
            "ca",
        ),
    ] {
        let mut image = region.images["debian-13"].clone();
        image.source = source;
        let disk = maker.data_volume(operation(&instance), Fill::Image(&image), 80);
        assert_eq!(disk.pointer(path).and_then(Value::as_str), Some(wanted), "{disk}");
    }
}

#[test]
fn the_objects_of_a_server_in_each_kind_of_network_are_as_before() {
    let kube_ovn = |attachment| domain::catalogue::region::Profile::KubeOvn {
        subnet: "public-fra1".to_owned(),
        attachment,
    };
    let private = |driver| {
        let mut region = region();
        region.network.private_networks = driver;
        region
    };
    for (name, region) in [
        ("pod", region()),
        ("bridge", region_with_addresses(bridge())),
        ("kube-ovn", region_with_addresses(kube_ovn(None))),
        (
            "kube-ovn-attachment",
            region_with_addresses(kube_ovn(Some(object_name("stellage-networks/public")))),
        ),
        ("private-kube-ovn", private(PrivateNetworks::KubeOvn)),
        ("private-pool", private(PrivateNetworks::Pool(Vec::new()))),
    ] {
        let mut instance = during(&json!({ "kind": "Create" }), None);
        instance.spec.private_network = Some("pn-backend".to_owned());
        let server = server(&instance);
        let is_known = region.network.private_networks.has_known_addresses();
        let of_network = match &region.network.private_networks {
            PrivateNetworks::Pool(_) => "vlans/vlan-101",
            _ => "stellage-acme/pn-backend",
        };
        let attachment = super::objects::Attachment {
            name: object_name(of_network),
            subnet: (region.network.private_networks == PrivateNetworks::KubeOvn)
                .then(|| "stellage-pn-4f".to_owned()),
        };
        let none = domain::provider::Addresses::default();
        let reserved = reserved();
        let maker = super::objects::Maker {
            instance: &instance,
            region: &region,
            server: &server,
            account_uid: ACCOUNT_UID,
            addresses: if name == "pod" || is_known {
                &none
            } else {
                &reserved
            },
            user_data: None,
            private_address: is_known.then(|| "10.128.4.7/24".parse().unwrap()),
        };
        let operation = operation(&instance);
        let image = &region.images["debian-13"];
        let disk = server.disk(operation);
        let secret = maker.secret(&disk, Some(image));
        let boot = super::objects::Boot {
            operation,
            run: super::slim::RunStrategy::RerunOnFailure,
            disk: &disk,
            hostname: &super::objects::hostname(&instance, &server),
            config_drive: false,
            attachment: Some(&attachment),
        };
        let mut all = vec![secret, maker.virtual_machine(&boot)];
        if name == "pod" {
            let user = "system:serviceaccount:stellage:stellage";
            all.extend([
                super::objects::namespace(&region, ACCOUNT_UID, &server.namespace),
                super::objects::role_binding(&region, ACCOUNT_UID, &server.namespace, user),
                super::objects::network_policy(&region, ACCOUNT_UID, &server.namespace),
                maker.data_volume(operation, Fill::Image(image), 80),
            ]);
        }
        golden(&format!("{name}.json"), &format!("{:#}\n", Value::Array(all)));
    }
}

#[test]
fn a_boot_takes_away_the_node_labels_that_the_region_no_longer_asks_for() {
    let instance = during(&json!({ "kind": "Start" }), Some("Stopped"));
    let old =
        json!({ "spec": { "template": { "spec": { "nodeSelector": { "pool": "old", "zone": "a" } } } } });
    let mut off = vm(&instance, OFF, &old);
    let Some(Action::Patch { patch, .. }) = next(&instance, &seen(Some(&off), None), 1).action else {
        panic!()
    };
    merge(&mut off, &patch);
    assert_eq!(
        off["spec"]["template"]["spec"]["nodeSelector"],
        json!({ "pool": "vms" })
    );
}

#[test]
fn the_patches_are_as_before() {
    let instance = during(
        &json!({ "kind": "Resize", "plan": "performance" }),
        Some("Running"),
    );
    let region = region();
    let server = server(&instance);
    let maker = super::objects::Maker {
        instance: &instance,
        region: &region,
        server: &server,
        account_uid: ACCOUNT_UID,
        addresses: &domain::provider::Addresses::default(),
        user_data: None,
        private_address: None,
    };
    let vm = parse_vm(&vm(&instance, OFF, &json!({})));
    let boot = super::objects::Boot {
        operation: operation(&instance),
        run: super::slim::RunStrategy::RerunOnFailure,
        disk: vm.disk().unwrap(),
        hostname: "web-1",
        config_drive: false,
        attachment: None,
    };
    let all = json!({
        "boot": maker.boot_patch(&vm, &boot),
        "halt": super::objects::run_patch(&vm, super::slim::RunStrategy::Halted),
        "undo": super::objects::undo_boot_patch(&vm),
        "plan": super::objects::plan_patch(&vm, resources::Plan::Starter),
        "clear": super::objects::clear_requests_patch(&vm),
        "grow": super::objects::grow_patch(160),
    });
    golden("patches.json", &format!("{all:#}\n"));
}

#[test]
fn what_the_account_holder_gives_to_cloud_init_comes_first_and_so_takes_precedence() {
    let instance = during(&json!({ "kind": "Create" }), None);
    let region = region();
    let server = server(&instance);
    let mut image = region.images["debian-13"].clone();
    let made = |image: &domain::catalogue::region::Image, data: Option<&str>| {
        let data = data.map(|text| UserData::parse(text.as_bytes()).unwrap());
        let maker = super::objects::Maker {
            instance: &instance,
            region: &region,
            server: &server,
            account_uid: ACCOUNT_UID,
            addresses: &domain::provider::Addresses::default(),
            user_data: data.as_ref(),
            private_address: None,
        };
        let secret = maker.secret("disk", Some(image));
        secret["stringData"]["userdata"].as_str().unwrap().to_owned()
    };
    assert!(made(&image, None).starts_with("#cloud-config\n{"));
    image.user_data = Some("packages: [qemu-guest-agent]".to_owned());
    golden(
        "user-data-all.txt",
        &made(&image, Some("#!/bin/sh\necho hello\n")),
    );
    image.user_data = None;
    let archive = "Content-Type: multipart/mixed; boundary=\"x\"\nMIME-Version: 1.0\n\n--x\nContent-Type: text/x-shellscript\n\n#!/bin/sh\n--x--\n";
    golden("user-data-archive.txt", &made(&image, Some(archive)));
}

#[test]
fn every_reason_is_explained_in_the_docs() {
    use strum::VariantNames as _;
    let page = format!("{}/../../docs/kubevirt.md", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(page).unwrap();
    let section = page.split_once("## What customers see").unwrap().1;
    let section = section.split_once("\n## ").unwrap().0;
    let missing: Vec<_> = super::observe::Problem::VARIANTS
        .iter()
        .filter(|reason| !section.contains(&format!("`{reason}`")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn row_47_a_restore_fills_the_new_disk_from_the_snapshot_and_one_that_is_lost_leaves_the_server_running() {
    use super::names::{BACKUP_UID, Snapshot};
    const CUT: &str = "2026-11-26T04:00:00Z";
    let rebuild = json!({ "kind": "Rebuild", "restoreFrom": "by-hand" });
    let create = json!({ "kind": "Create", "restoreFrom": "by-hand" });
    let place = Snapshot {
        namespace: "stellage-acme".to_owned(),
        name: "bkp-3f9k2m1x8q7r5t4v".to_owned(),
        uid: "backup-1".to_owned(),
    };
    let snapshot = |uid: &str, status: Value| {
        let object = json!({ "metadata": { "labels": { BACKUP_UID: uid } }, "status": status });
        Answer::Snapshot(serde_json::from_value(object).unwrap())
    };
    let ready =
        || json!({ "readyToUse": true, "creationTime": CUT, "boundVolumeSnapshotContentName": "content" });
    let content = |cut: &str| {
        let cut: jiff::Timestamp = cut.parse().unwrap();
        let status = json!({ "creationTime": i64::try_from(cut.as_nanosecond()).unwrap() });
        Answer::SnapshotContent(serde_json::from_value(json!({ "status": status })).unwrap())
    };
    let whole = || content("2026-11-26T04:00:00.9Z");
    let lost = json!({ "readyToUse": false, "error": { "message": "VolumeSnapshotContent is missing" } });
    for (order, power) in [(&rebuild, Some("Running")), (&create, None)] {
        let instance = during(order, power);
        let vm = vm(&instance, ON, &json!({ "status": { "created": true } }));
        let vm = power.map(|_| &vm);
        let run = vm.map(|vm| run_of(vm, "run-1", "Running", &json!({})));
        let after = |restore: Option<&Snapshot>, found: Answer, content: Answer| {
            let mut seen = seen(vm, run.as_ref());
            seen.restore = restore.cloned();
            for _ in 0..7 {
                let plan = next(&instance, &seen, 1);
                let Some(action) = plan.action else { return plan };
                let answer = match &action {
                    Action::Get {
                        kind: Kind::Snapshot,
                        name,
                    } => {
                        assert_eq!(*name, place.name);
                        found.clone()
                    }
                    Action::Get {
                        kind: Kind::SnapshotContent,
                        name,
                    } => {
                        assert_eq!(name, "content");
                        content.clone()
                    }
                    Action::Get { .. } => no_vm(),
                    Action::List { .. } => Answer::DataVolumes(Vec::new()),
                    _ => return next(&instance, &seen, 1),
                };
                seen.take(&action, answer);
            }
            panic!("{:?}", next(&instance, &seen, 1).action)
        };
        let Some(Action::Post { kind, object }) =
            after(Some(&place), snapshot("backup-1", ready()), whole()).action
        else {
            panic!()
        };
        assert_eq!(kind, Kind::DataVolume);
        let source = json!({ "snapshot": { "namespace": "stellage-acme", "name": place.name } });
        assert_eq!(object["spec"]["source"], source);
        assert_eq!(object["spec"]["sourceRef"], Value::Null);
        assert_eq!(
            object["spec"]["storage"]["resources"]["requests"]["storage"],
            "80Gi"
        );
        let found = || snapshot("backup-1", ready());
        let imported = || {
            let content =
                json!({ "spec": { "source": { "snapshotHandle": "7" } }, "status": { "creationTime": 1 } });
            Answer::SnapshotContent(serde_json::from_value(content).unwrap())
        };
        let again = after(Some(&place), found(), imported()).action;
        assert!(matches!(again, Some(Action::Post { .. })), "{again:?}");
        for (restore, found, content) in [
            (None, no_vm(), no_vm()),
            (Some(&place), no_vm(), no_vm()),
            (Some(&place), snapshot("another", ready()), whole()),
            (Some(&place), snapshot("backup-1", lost.clone()), no_vm()),
            (Some(&place), found(), no_vm()),
            (Some(&place), found(), content("2026-11-26T04:00:01Z")),
        ] {
            assert_eq!(failure(after(restore, found, content)), "BackupUnreadable");
        }
    }
}

#[test]
fn names_are_stable_and_fit() {
    use super::names::{Server, disk_hash, namespace};
    let instance = during(&json!({ "kind": "Create" }), None);
    let first = operation(&instance);
    assert_eq!(
        boot(first).split('/').take(2).collect::<Vec<_>>(),
        ["Create", "2026-11-26T20:51:04Z"]
    );
    let mut other = first.clone();
    other.plan = resources::Plan::Starter;
    assert_ne!(boot(first), boot(&other));
    assert_eq!(
        disk_hash(first),
        disk_hash(&other),
        "a disk does not depend on the plan"
    );
    other.image = "ubuntu-24.04".to_owned();
    assert_ne!(disk_hash(first), disk_hash(&other));
    let server = Server::of(&instance, &region());
    let mac = server.mac("public");
    assert!(
        mac.starts_with("02:") && mac.len() == 17 && mac != server.mac("private"),
        "{mac}"
    );
    assert_eq!(namespace("stellage-", "acme"), "stellage-acme");
    let long = namespace("stellage-", &"a".repeat(63));
    assert!(long.len() <= 63 && long.starts_with("stellage-aaaa"), "{long}");
    assert_ne!(long, namespace("stellage-", &format!("{}b", "a".repeat(62))));
}
