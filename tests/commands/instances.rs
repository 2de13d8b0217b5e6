//! `stellage instance …`.

use std::process::Stdio;

use kube::ResourceExt as _;
use providers::simulator::FAULT_ANNOTATION;
use resources::{Instance, InstanceState, Plan, PowerState};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

use super::{command, run};
use crate::support::{PATIENCE, Tenant};

fn fault(name: &'static str) -> impl FnOnce(&mut Instance) {
    move |instance| {
        let annotations = instance.annotations_mut();
        annotations.insert(FAULT_ANNOTATION.to_owned(), name.to_owned());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_are_operated_by_name_or_id_and_nobody_types_a_time() {
    let tenant = Tenant::new("cmd-operate").await;
    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    let status = async || tenant.instances().get("web").await.unwrap().status.unwrap();
    let id = status().await.id.unwrap();
    let run = async |line: &str| run("cmd-operate", line).await;

    let stopped = run("instance stop web --wait --timeout 3m").await;
    assert_eq!(stopped.text(), "instance web is stopped");
    assert!(stopped.notes.contains("instance web: "), "progress: {stopped:?}");
    assert_eq!(status().await.state, Some(InstanceState::Stopped));

    let started = run(&format!("instance start {id} --wait --timeout 3m --output json")).await;
    let started = started.json();
    assert_eq!(started["kind"], "Instance");
    assert_eq!(started["status"]["state"], "running");
    assert_eq!(
        started["spec"]["startRequestedAt"],
        started["status"]["startRequestedAt"]
    );
    assert!(
        started["spec"]["startRequestedAt"]
            .as_str()
            .unwrap()
            .ends_with('Z')
    );
    assert!(started["metadata"]["managedFields"].is_null());

    let resized = run("instance resize web --plan business --wait --timeout 3m").await;
    assert_eq!(resized.text(), "instance web has plan business");
    assert_eq!(status().await.plan, Some(Plan::Business));
    let again = run("instance resize web --plan business").await;
    assert_eq!(again.text(), "instance web has plan business");
    let later = run("instance resize web --plan performance --on-reboot --wait --timeout 3m").await;
    let expected = "instance web changes to plan performance with its next reboot, or stop and start";
    assert_eq!(later.text(), expected);
    assert_eq!(status().await.plan, Some(Plan::Business));

    let rebooted = run("instance reboot web --wait --timeout 3m").await;
    assert_eq!(rebooted.text(), "instance web is running");
    assert_eq!(status().await.plan, Some(Plan::Performance));
    let first = tenant
        .instances()
        .get("web")
        .await
        .unwrap()
        .spec
        .reboot_requested_at;
    run("instance reboot web --wait --timeout 3m").await.text();
    let second = tenant
        .instances()
        .get("web")
        .await
        .unwrap()
        .spec
        .reboot_requested_at;
    assert!(first.is_some() && second > first);

    let rebuilt = run("instance rebuild web --image debian-12 --wait --timeout 3m").await;
    assert_eq!(rebuilt.text(), "instance web is running");
    assert_eq!(status().await.image.as_deref(), Some("debian-12"));
    let off = run("instance poweroff web").await;
    assert_eq!(off.text(), "the power of instance web is being cut");
    let off = tenant.wait_for_state("web", InstanceState::Stopped).await;
    assert_eq!(off.spec.power_state, PowerState::Stopped);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_named_with_what_to_do() {
    let tenant = Tenant::new("cmd-wrong").await;
    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    for (line, namespace, expected) in [
        (
            "instance stop nope",
            "cmd-wrong",
            "there is no instance nope in namespace cmd-wrong",
        ),
        (
            "instance reboot i-aaaaaaaaaaaaaaaa",
            "cmd-wrong",
            "`kubectl get instances -n cmd-wrong -o wide`",
        ),
        (
            "instance stop web",
            "cmd-nowhere",
            "there is no namespace cmd-nowhere",
        ),
        (
            "instance start web",
            "cmd-wrong",
            "instance web is running; start is allowed from stopped, error",
        ),
    ] {
        let ran = run(namespace, line).await;
        assert!(ran.error().contains(expected), "{line}: {ran:?}");
    }
    for (line, expected) in [
        (
            "instance resize web --plan huge",
            "starter, business, performance, enterprise",
        ),
        ("instance resize web", "--plan"),
        ("instance rebuild web --image Debian", "--image"),
        ("instance stop web/status", "must be a name"),
        ("instance stop web --timeout 3m", "--wait"),
        ("instance stop web --wait --timeout soon", "such as 30s or 90d"),
        ("instance explode web", "unrecognized subcommand"),
    ] {
        let ran = run("cmd-wrong", line).await;
        assert_eq!(ran.code, Some(2), "{line}: {ran:?}");
        assert!(ran.notes.contains(expected), "{line}: {ran:?}");
    }
    let spec = tenant.instances().get("web").await.unwrap().spec;
    assert_eq!(spec.power_state, PowerState::Running, "nothing was written");

    run("cmd-wrong", "instance stop web --wait --timeout 3m")
        .await
        .text();
    let refused = run("cmd-wrong", "instance reboot web").await;
    assert!(
        refused
            .error()
            .contains("is stopped; reboot is allowed from running, error")
            && refused.error().contains("instance start web -n cmd-wrong"),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_fails_with_the_reason_where_the_operation_does() {
    let tenant = Tenant::new("cmd-fails").await;
    tenant.apply("broken", fault("provisioning")).await;
    tenant.wait_for_state("broken", InstanceState::Error).await;
    let failed = run(
        "cmd-fails",
        "instance rebuild broken --image debian-12 --wait --timeout 3m",
    )
    .await;
    assert!(
        failed
            .error()
            .contains("instance broken is not ready: RebuildFailed: ")
            && failed
                .error()
                .contains("`kubectl describe instance broken -n cmd-fails` shows details"),
        "{failed:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_ends_in_time_or_with_ctrl_c_and_what_was_asked_for_goes_on() {
    let tenant = Tenant::new("cmd-waits").await;
    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    let annotate =
        |value: serde_json::Value| json!({ "metadata": { "annotations": { FAULT_ANNOTATION: value } } });
    let patch = async |patch: serde_json::Value| tenant.merge("web", &patch).await;
    patch(annotate(json!("unreachable"))).await;

    let late = run("cmd-waits", "instance reboot web --wait --timeout 2s").await;
    assert!(
        late.error()
            .contains("instance web is not done after 2 s; last seen: ")
            && late.error().contains("The operation continues"),
        "{late:?}"
    );

    let arguments = ["instance", "poweroff", "web", "--wait", "-n", "cmd-waits"];
    let mut child = command(&arguments).await;
    let mut child = child
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut notes = BufReader::new(child.stderr.take().unwrap());
    let (mut cluster, mut first) = (String::new(), String::new());
    notes.read_line(&mut cluster).await.unwrap();
    notes.read_line(&mut first).await.unwrap();
    assert!(first.starts_with("instance web: "), "{cluster}{first}");
    let pid = child.id().unwrap().to_string();
    let sent = tokio::process::Command::new("kill")
        .args(["-INT", &pid])
        .status()
        .await;
    assert!(sent.unwrap().success());
    let status = tokio::time::timeout(PATIENCE, child.wait())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(status.code(), Some(130));
    let mut rest = String::new();
    notes.read_to_string(&mut rest).await.unwrap();
    assert!(
        rest.contains("stopped waiting for instance web; the operation continues"),
        "{rest}"
    );

    patch(annotate(serde_json::Value::Null)).await;
    tenant.wait_for_state("web", InstanceState::Stopped).await;
}
