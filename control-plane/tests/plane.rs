//! The library against real servers.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use control_plane::{ControlPlane, Identity};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use std::{
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

fn namespace(name: &str) -> Namespace {
    serde_json::from_value(serde_json::json!({"metadata": {"name": name}})).unwrap()
}

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(serde_json::json!({"metadata": {"name": name}})).unwrap()
}

async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(3);
    while !condition().await {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// One control plane for all of it: starting one is what takes time.
#[tokio::test]
async fn a_control_plane_serves_restarts_and_leaves_nothing() {
    let started = Instant::now();
    let mut plane = ControlPlane::options()
        .audit_log()
        .etcd_arg("--quota-backend-bytes=67108864")
        .apiserver_arg("--max-requests-inflight=500")
        .start()
        .await
        .unwrap();
    eprintln!("ready after {:?}", started.elapsed());
    assert_eq!(plane.revive().await.unwrap(), []);
    let folder = plane.folder().to_owned();
    let pids = plane.pids();
    assert_eq!(pids.len(), 3);

    // Kubeconfigs are private and verify the server.
    for identity in [Identity::Admin, Identity::Operator] {
        let mode = plane
            .kubeconfig(identity)
            .metadata()
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let config = plane.config(Identity::Admin).await.unwrap();
    assert!(!config.accept_invalid_certs);
    assert!(config.root_cert.is_some());

    // The admin may do anything, the operator nothing that it was not granted.
    let admin = plane.client(Identity::Admin).await.unwrap();
    let operator = plane.client(Identity::Operator).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    namespaces
        .create(&PostParams::default(), &namespace("tried"))
        .await
        .unwrap();
    let refused = Api::<ConfigMap>::namespaced(operator, "tried")
        .list(&ListParams::default())
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains(Identity::Operator.user()),
        "{refused}"
    );

    // Writes are counted.
    let before = plane.requests().unwrap().len();
    let config_maps: Api<ConfigMap> = Api::namespaced(admin.clone(), "tried");
    config_maps
        .create(&PostParams::default(), &config_map("kept"))
        .await
        .unwrap();
    let requests = plane.requests().unwrap();
    let writes: Vec<_> = requests[before..]
        .iter()
        .filter(|request| request.is_write() && request.user == Identity::Admin.user())
        .filter(|request| request.resource == "configmaps" && request.name == "kept")
        .collect();
    assert_eq!(writes.len(), 1, "{requests:?}");
    assert_eq!((writes[0].verb.as_str(), writes[0].code), ("create", 201));

    // kubectl verifies the server, too.
    let kubectl = std::process::Command::new(plane.assets().kubectl())
        .args(["get", "configmap", "kept", "-n", "tried", "-o", "name"])
        .env("KUBECONFIG", plane.kubeconfig(Identity::Admin))
        .env("KUBECACHEDIR", folder.join("kubectl"))
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&kubectl.stdout),
        "configmap/kept\n",
        "{kubectl:?}"
    );

    // The controller manager works: it gives up if it does not find the API server at its start.
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "tried");
    eventually("the controller manager to make an account", async || {
        accounts.get_opt("default").await.unwrap().is_some()
    })
    .await;

    // Both servers come back where they were, with what they knew, and the old client works.
    plane.kill_apiserver().unwrap();
    assert_eq!(plane.pids().len(), 2);
    assert!(config_maps.get("kept").await.is_err());
    plane.start_apiserver().await.unwrap();
    assert_eq!(config_maps.get("kept").await.unwrap().name_any(), "kept");
    plane.kill_etcd().unwrap();
    plane.start_etcd().await.unwrap();
    eventually("the API server to find etcd again", async || {
        config_maps.get("kept").await.is_ok()
    })
    .await;

    // The controller manager is there: the namespace goes.
    namespaces
        .delete("tried", &DeleteParams::default())
        .await
        .unwrap();
    eventually("the namespace to go", async || {
        namespaces.get_opt("tried").await.unwrap().is_none()
    })
    .await;

    let pids: Vec<_> = pids.into_iter().chain(plane.pids()).collect();
    let stopping = Instant::now();
    plane.check().unwrap();
    plane.stop().await.unwrap();
    eprintln!("stopped after {:?}", stopping.elapsed());
    for (name, pid) in pids {
        assert!(!is_alive(pid), "{name} still runs");
    }
    assert!(!folder.exists());
}

#[tokio::test]
async fn a_server_that_ended_by_itself_is_reported_to_whoever_checks_kills_or_stops() {
    let plane = ControlPlane::start().await.unwrap();
    plane.check().unwrap();
    let end = async |name: &str| {
        let (_, pid) = plane.pids().into_iter().find(|(one, _)| *one == name).unwrap();
        let killed = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        assert!(killed.unwrap().success());
        eventually("it to end", async || plane.check().is_err()).await;
        let error = plane.check().unwrap_err().to_string();
        assert!(error.starts_with(&format!("{name} exited (signal: 9")), "{error}");
    };
    end("kube-apiserver").await;
    let error = plane.kill_apiserver().unwrap_err().to_string();
    assert!(error.starts_with("kube-apiserver exited"), "{error}");
    // From now on it counts as killed on purpose.
    plane.check().unwrap();
    end("kube-controller-manager").await;
    let error = plane.stop().await.unwrap_err().to_string();
    assert!(error.starts_with("kube-controller-manager exited"), "{error}");
}

#[tokio::test]
async fn a_server_that_cannot_start_is_reported_with_the_end_of_its_log() {
    let error = ControlPlane::options()
        .apiserver_arg("--no-such-flag")
        .start()
        .await
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("kube-apiserver exited"), "{error}");
    assert!(error.contains("unknown flag: --no-such-flag"), "{error}");
}
