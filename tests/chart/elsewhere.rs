//! Pods in one cluster, and accounts in another control plane, as docs/install.md installs them.

use std::{os::unix::fs::symlink, path::Path};

use control_plane::{ControlPlane, Identity};
use reqwest::Method;
use resources::InstanceState;
use serde_json::{Value, json};

use super::installed::Cluster;
use crate::support::{
    Operator, Tenant, bare_planes,
    helm::{Helm, chart},
    kubectl, wait_for_kinds,
    walkthrough::{Shell, steps},
};

/// Writes a kubeconfig with a context for each.
fn contexts(folder: &Path, planes: &[(&str, &ControlPlane)]) -> String {
    let mut merged =
        json!({ "apiVersion": "v1", "kind": "Config", "clusters": [], "users": [], "contexts": [] });
    for (name, plane) in planes {
        let text = std::fs::read_to_string(plane.kubeconfig(Identity::Admin)).unwrap();
        let mut one: Value = serde_json::from_str(&text).unwrap();
        one["contexts"][0]["context"] = json!({ "cluster": name, "user": name });
        for list in ["clusters", "users", "contexts"] {
            let mut entry = one[list][0].take();
            entry["name"] = json!(name);
            merged[list].as_array_mut().unwrap().push(entry);
        }
    }
    let path = folder.join("config");
    control_plane::write_private(&path, &merged.to_string()).unwrap();
    path.display().to_string()
}

/// Starts what a pod of a Deployment would run, which reaches the accounts with the kubeconfig that is mounted.
async fn start(pods: &Cluster<'_>, plane: &ControlPlane, deployment: &str) -> Operator {
    let container = pods.container(deployment).await;
    let mut environment = container.environment.iter();
    let (_, kubeconfig) = environment.find(|(name, _)| name == "KUBECONFIG").unwrap();
    container.start(plane, Path::new(kubeconfig)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_in_one_cluster_serve_accounts_in_another_as_the_docs_install_them() {
    let of_pods = ControlPlane::options().without_controller_manager();
    let (accounts, pods) = bare_planes(ControlPlane::options(), of_pods).await;
    let folder = tempfile::tempdir().unwrap();
    let helm = Helm::alone().await;
    symlink(chart().parent().unwrap(), folder.path().join("charts")).unwrap();
    let values = json!({ "settings": { "provisioningSeconds": 0.5 } });
    std::fs::write(folder.path().join("values.yaml"), values.to_string()).unwrap();
    let home = helm.folder.path().display().to_string();
    let homes = ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"];
    let mut environment: Vec<_> = homes.map(|name| (name, home.clone())).into();
    let kubeconfig = contexts(folder.path(), &[("accounts", &accounts), ("pods", &pods)]);
    environment.push(("KUBECONFIG", kubeconfig));
    let programs = [helm.program().parent().unwrap()];
    let mut shell = Shell::on(&accounts, folder.path(), &programs, &environment).await;
    for step in steps("docs/install.md", "## Pods in one cluster, accounts in another") {
        shell.run(&step.command).await;
    }
    wait_for_kinds(&accounts);

    let cluster = Cluster::on(&pods).await;
    let mut api = start(&cluster, &pods, "stellage-api").await;
    let mut controller = start(&cluster, &pods, "stellage-controller").await;
    let ada = Tenant::on(&accounts, &api, "ada").await;
    let order = json!({ "name": "web", "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
    let answer = ada.call(Method::POST, "/v1/instances", Some(&order)).await;
    let id = answer.json()["data"]["id"].as_str().unwrap().to_owned();
    ada.wait_for_state(&id, InstanceState::Running).await;
    let here = kubectl(
        &pods,
        "get crds,clusterroles,validatingadmissionpolicies -o name",
        None,
    );
    assert!(
        !here.unwrap().contains("stellage"),
        "the pods' cluster has the pods alone"
    );
    api.stop().await;
    controller.stop().await;
}
