//! `stellage uninstall` removes everything in the right order, also what finalizers and policies hold, and nothing without being told to.

use std::process::{Command, Stdio};

use control_plane::{ControlPlane, Identity};
use resources::InstanceState;
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::support::{
    Operator, STELLAGE, Tenant, install, kubectl, kubectl_words, own_plane, receiver_arguments,
    receivers::{Answer, Receiver},
};

/// Runs it as the administrator, without a terminal. What it says, on success or not.
fn uninstall(plane: &ControlPlane, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(STELLAGE);
    command
        .arg("uninstall")
        .args(arguments)
        .stdin(Stdio::null())
        .env("KUBECONFIG", plane.kubeconfig(Identity::Admin));
    let output = block_in_place(|| command.output()).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    if output.status.success() {
        Ok(said)
    } else {
        Err(said)
    }
}

fn names(plane: &ControlPlane, arguments: &[&str]) -> Vec<String> {
    let get = [&["get", "--output", "name"], arguments].concat();
    let found = kubectl_words(plane, &get, None).unwrap();
    found.lines().map(ToOwned::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_stellage_has_in_the_cluster_is_removed_and_the_servers_are_left_only_if_that_is_wanted() {
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let plane = own_plane().await;
    let mut arguments = vec!["run", "--provisioning-seconds", "0.5"];
    let receivers = receiver_arguments(&plane);
    arguments.extend(receivers.iter().map(String::as_str));
    let mut operator = Operator::start(&plane, &arguments).await;
    // A namespace that was there before its account, with something else in it.
    let grown = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "grown", "labels": { "stellage.dev/account": "grown" } } },
        { "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "mine", "namespace": "grown" }, "stringData": { "a": "b" } },
    ] });
    kubectl(&plane, "create -f -", Some(&grown.to_string())).unwrap();
    for name in ["made", "grown"] {
        let tenant = Tenant::on(&plane, &operator, name).await;
        tenant
            .webhook("orders", &receiver.url("/"), &["instance.created"])
            .await;
        tenant
            .apply("web", |web| web.spec.deletion_protection = true)
            .await;
        tenant.wait_for_state("web", InstanceState::Running).await;
        tenant.wait_for_clear_outboxes().await;
    }

    let refused = uninstall(&plane, &["--force", "--yes"]).unwrap_err();
    assert!(refused.contains("the operator runs"), "{refused}");
    operator.stop().await;
    let refused = uninstall(&plane, &["--yes"]).unwrap_err();
    assert!(
        refused.contains("there are 2 instances") && refused.contains("--force"),
        "{refused}"
    );
    let refused = uninstall(&plane, &["--force"]).unwrap_err();
    for said in ["2 Account", "2 Instance", "made\n", "add --yes"] {
        assert!(refused.contains(said), "{said} in {refused}");
    }
    assert_eq!(names(&plane, &["instances", "--all-namespaces"]).len(), 2);

    let said = uninstall(&plane, &["--force", "--yes"]).unwrap();
    assert!(
        said.contains("kubectl delete namespace stellage-system"),
        "{said}"
    );
    let crds = names(&plane, &["crds"]);
    assert!(
        !crds.iter().any(|name| name.ends_with("stellage.dev")),
        "{crds:?}"
    );
    let kinds = ["validatingadmissionpolicies", "validatingadmissionpolicybindings"];
    for kind in kinds {
        assert_eq!(names(&plane, &[kind]), Vec::<String>::new());
    }
    let ours = [
        "clusterroles,clusterrolebindings",
        "--selector",
        "app.kubernetes.io/part-of=stellage",
    ];
    assert_eq!(names(&plane, &ours), Vec::<String>::new());
    let namespaces = names(&plane, &["namespaces"]);
    assert!(
        !namespaces.contains(&"namespace/made".to_owned()),
        "{namespaces:?}"
    );
    let left = ["secrets,rolebindings,resourcequotas", "--namespace", "grown"];
    assert_eq!(names(&plane, &left), ["secret/mine"]);
    let grown = kubectl(&plane, "get namespace grown -o json", None).unwrap();
    let grown: Value = serde_json::from_str(&grown).unwrap();
    assert!(!grown["metadata"].to_string().contains("stellage.dev"), "{grown}");
    // There is nothing to remove any more, and nothing in the way of the next installation.
    uninstall(&plane, &["--yes"]).unwrap();
    install(&plane);
    let mut operator = Operator::start(&plane, &arguments).await;
    Tenant::on(&plane, &operator, "made").await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_without_stellage_there_is_nothing_to_remove() {
    let plane = crate::support::bare_plane(ControlPlane::options()).await;
    let said = uninstall(&plane, &["--yes"]).unwrap();
    assert!(said.contains("objects: none"), "{said}");
}
