//! The chart of a region, and what the token that it makes grants: what Stellage needs, and no more.

use std::{fs, path::Path, process::Command};

use base64::Engine as _;
use control_plane::{ControlPlane, Identity};
use serde_json::{Value, json};

use super::{Helm, files::read, objects, region_chart};
use crate::support::{OwnPlane, bare_plane, eventually, kubectl, run};

const NAMESPACE: &str = "stellage-region";

/// What Stellage may do in a region, by where.
fn rights() -> Value {
    serde_saphyr::from_str(&read(&region_chart().join("files/rights.yaml"))).unwrap()
}

fn rendered(helm: &Helm, values: &Value) -> Vec<Value> {
    objects(
        &helm
            .template_of(&region_chart(), "stellage-region", NAMESPACE, values)
            .unwrap(),
    )
}

/// The rules of a role.
fn rules<'a>(all: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    &all.iter().find(is_it).unwrap_or_else(|| panic!("{kind} {name}"))["rules"]
}

#[tokio::test]
async fn the_roles_of_a_region_have_exactly_the_rights_that_are_written_down() {
    let helm = Helm::alone().await;
    let values = json!({ "networkNamespaces": ["stellage-networks"] });
    let all = rendered(&helm, &values);
    let rights = rights();
    let mut of_cluster = rights["cluster"].as_array().unwrap().clone();
    let alone = json!({ "namespaces": "existing" });
    assert_eq!(
        rules(&rendered(&helm, &alone), "ClusterRole", "stellage-region"),
        &json!(of_cluster)
    );
    of_cluster.extend(rights["managed"].as_array().unwrap().iter().cloned());
    assert_eq!(rules(&all, "ClusterRole", "stellage-region"), &json!(of_cluster));
    assert_eq!(rules(&all, "ClusterRole", "stellage-servers"), &rights["servers"]);
    assert_eq!(rules(&all, "Role", "stellage-region-images"), &rights["images"]);
    assert_eq!(
        rules(&all, "Role", "stellage-region-networks"),
        &rights["networks"]
    );
    // Those for servers hold only where they are bound.
    let bound = all
        .iter()
        .filter(|object| object["kind"] == "ClusterRoleBinding")
        .map(|object| &object["roleRef"]["name"]);
    assert_eq!(bound.collect::<Vec<_>>(), ["stellage-region"]);
    // Secrets may be written and never read.
    let text = rights.to_string();
    for resource in ["secrets", "pods/exec", "nodes"] {
        let all = rights.as_object().unwrap().values();
        let rules = all.flat_map(|rules| rules.as_array().unwrap());
        let verbs: Vec<&str> = rules
            .filter(|rule| rule["resources"].as_array().unwrap().contains(&json!(resource)))
            .flat_map(|rule| rule["verbs"].as_array().unwrap())
            .map(|verb| verb.as_str().unwrap())
            .collect();
        let allowed: &[&str] = if resource == "secrets" {
            &["create", "deletecollection"]
        } else {
            &[]
        };
        assert_eq!(verbs, allowed, "{resource}");
    }
    assert!(!text.contains('*'), "{text}");
}

#[tokio::test]
async fn helm_finds_no_fault_with_the_chart_of_a_region_and_wrong_values_are_refused_with_their_place() {
    let helm = Helm::alone().await;
    let chart = region_chart();
    let chart = chart.to_str().unwrap();
    for values in [
        json!({}),
        json!({ "namespaces": "existing", "token": { "create": false }, "imageNamespaces": [] }),
        json!({
            "fullnameOverride": "frankfurt", "installation": "7", "namespacePrefix": "vm-", "networkNamespaces": ["8"],
            "serviceAccount": { "create": false, "name": "9", "annotations": { "a": "b" } }, "policies": { "install": false },
        }),
    ] {
        helm.with(&["lint", "--strict", chart], &values)
            .unwrap_or_else(|error| panic!("{values}: {error}"));
        rendered(&helm, &values);
    }
    for (wrong, place) in [
        (
            json!({ "secret": 3 }),
            "additional properties 'secret' not allowed",
        ),
        (json!({ "installation": "" }), "at '/installation'"),
        (json!({ "installation": "it's" }), "at '/installation'"),
        (json!({ "namespacePrefix": "kube-" }), "at '/namespacePrefix'"),
        (
            json!({ "namespacePrefix": "much-too-long-a-prefix-" }),
            "at '/namespacePrefix'",
        ),
        (
            json!({ "namespaces": "none" }),
            "value must be one of 'managed', 'existing'",
        ),
        (json!({ "imageNamespaces": ["a/b"] }), "at '/imageNamespaces/0'"),
    ] {
        let refused = helm
            .template_of(&region_chart(), "stellage-region", NAMESPACE, &wrong)
            .unwrap_err();
        assert!(refused.contains(place), "{wrong}: {refused}");
    }
}

/// Follows the notes of the chart up to the kubeconfig, as a person would in a shell; returns the folder in which they do.
fn follow_notes(plane: &ControlPlane, notes: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (_, steps) = notes.split_once("1. Write its kubeconfig").unwrap();
    let (steps, _) = steps.split_once("3. In the cluster").unwrap();
    let commands: String = steps
        .lines()
        .filter_map(|line| line.strip_prefix("     "))
        .fold("set -e\n".to_owned(), |all, line| all + line + "\n");
    let path = std::env::var("PATH").unwrap_or_default();
    let tools = plane.assets().kubectl().parent().unwrap().display().to_string();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &commands])
        .current_dir(folder.path())
        .env("PATH", format!("{tools}:{path}"))
        .env("KUBECONFIG", plane.kubeconfig(Identity::Admin));
    let said = run(&mut shell, None).unwrap_or_else(|error| panic!("{commands}: {error}"));
    assert!(said.trim_end().ends_with("yes"), "{said}");
    folder
}

/// The token of a region in the wrong hands.
struct Thief<'a> {
    plane: &'a ControlPlane,
    kubeconfig: &'a Path,
}

impl Thief<'_> {
    fn kubectl(&self, line: &str, object: Option<&Value>) -> Result<String, String> {
        let mut command = Command::new(self.plane.assets().kubectl());
        command.args(line.split(' ')).env("KUBECONFIG", self.kubeconfig);
        run(&mut command, object.map(Value::to_string).as_deref())
    }

    fn create(&self, object: &Value) -> Result<String, String> {
        self.kubectl("create --validate=false -f -", Some(object))
    }

    fn may_create(&self, object: &Value) {
        self.create(object)
            .unwrap_or_else(|error| panic!("{object}: {error}"));
    }

    fn may_not_create(&self, object: &Value, why: &str) {
        match self.create(object) {
            Ok(done) => panic!("{object}: {done}"),
            Err(refused) => assert!(refused.contains(why), "{object}: {refused}"),
        }
    }

    fn may_not(&self, line: &str, why: &str) {
        match self.kubectl(line, None) {
            Ok(done) => panic!("{line}: {done}"),
            Err(refused) => assert!(refused.contains(why), "{line}: {refused}"),
        }
    }
}

fn namespace(name: &str, installation: Option<&str>) -> Value {
    let labels = installation.map(|installation| json!({ "stellage.dev/installation": installation }));
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } })
}

/// A RoleBinding of a ClusterRole to a service account of the chart's namespace.
fn binding(namespace: &str, role: &str, account: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": format!("stellage-{account}"), "namespace": namespace },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": NAMESPACE }],
    })
}

fn secret(namespace: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "user-data", "namespace": namespace } })
}

/// A cluster with the namespaces that the platform makes, the ConfigMap that Kubernetes has in every namespace, and a kind of KubeVirt's.
async fn cluster() -> OwnPlane {
    let plane = bare_plane(ControlPlane::options()).await;
    for name in [NAMESPACE, "stellage-images", "stellage-networks"] {
        kubectl(&plane, &["create", "namespace", name], None).unwrap();
    }
    let kubeconfig = fs::read_to_string(plane.kubeconfig(Identity::Admin)).unwrap();
    let kubeconfig: Value = serde_json::from_str(&kubeconfig).unwrap();
    let data = &kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"];
    let data = base64::engine::general_purpose::STANDARD.decode(data.as_str().unwrap());
    let authority = String::from_utf8(data.unwrap()).unwrap();
    let authority = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "kube-root-ca.crt", "namespace": NAMESPACE },
        "data": { "ca.crt": authority },
    });
    let kind = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "virtualmachines.kubevirt.io" },
        "spec": {
            "group": "kubevirt.io", "scope": "Namespaced", "names": { "kind": "VirtualMachine", "plural": "virtualmachines" },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            }],
        },
    });
    for object in [authority, kind] {
        kubectl(&plane, &["create", "-f", "-"], Some(&object.to_string())).unwrap();
    }
    let established = [
        "wait",
        "--for=condition=Established",
        "crd",
        "--all",
        "--timeout=60s",
    ];
    kubectl(&plane, &established, None).unwrap();
    plane
}

#[tokio::test(flavor = "multi_thread")]
async fn the_notes_make_a_kubeconfig_whose_token_manages_servers_in_its_own_namespaces_and_nothing_else() {
    let plane = cluster().await;
    let helm = Helm::on(&plane).await;
    let chart = region_chart();
    let chart = chart.to_str().unwrap();
    let install = |release: &str, values: &Value| {
        helm.with(&["install", release, chart, "--namespace", NAMESPACE], values)
            .unwrap_or_else(|error| panic!("{release}: {error}"))
    };
    let notes = install(
        "stellage-region",
        &json!({ "installation": "prod-1", "networkNamespaces": ["stellage-networks"] }),
    );
    // Kubernetes fills it within a moment; a person is not faster.
    let token = async || {
        let line = [
            "-n",
            NAMESPACE,
            "get",
            "secret",
            "stellage-region-token",
            "-o",
            "jsonpath={.data.token}",
        ];
        kubectl(&plane, &line, None).unwrap()
    };
    eventually("the token", token, |token| !token.is_empty()).await;
    let folder = follow_notes(&plane, &notes);
    let kubeconfig = folder.path().join("de-fra-1/kubeconfig");
    let thief = Thief {
        plane: &plane,
        kubeconfig: &kubeconfig,
    };

    // The policies apply soon after they were created.
    let unlabelled = namespace("stellage-eve", None);
    let refused = async || {
        let done = thief.create(&unlabelled);
        if done.is_ok() {
            kubectl(&plane, &["delete", "namespace", "stellage-eve"], None).unwrap();
        }
        done
    };
    let said = eventually("the policy to refuse a namespace", refused, Result::is_err).await;
    let label = "only namespaces with the label stellage.dev/installation: prod-1";
    assert!(said.as_ref().is_err_and(|said| said.contains(label)), "{said:?}");
    thief.may_not_create(&namespace("stellage-eve", Some("prod-2")), label);
    let prefix = "only namespaces whose names begin with stellage-";
    thief.may_not_create(&namespace("eve", Some("prod-1")), prefix);
    thief.may_create(&namespace("stellage-ada", Some("prod-1")));

    // In it, it lets itself in, and nobody else.
    let others = "only to its own service account stellage-region/stellage-region";
    let elsewhere = "only in namespaces whose names begin with stellage- and that have the label stellage.dev/installation: prod-1";
    thief.may_not_create(&secret("stellage-ada"), "cannot create resource \"secrets\"");
    thief.may_not_create(&binding("stellage-ada", "stellage-servers", "default"), others);
    thief.may_not_create(
        &binding("stellage-ada", "cluster-admin", "stellage-region"),
        "is attempting to grant RBAC permissions not currently held",
    );
    for foreign in ["stellage-images", "default", "kube-system"] {
        thief.may_not_create(
            &binding(foreign, "stellage-servers", "stellage-region"),
            elsewhere,
        );
    }
    thief.may_create(&binding("stellage-ada", "stellage-servers", "stellage-region"));
    let created = async || thief.create(&secret("stellage-ada"));
    eventually("the RoleBinding to take effect", created, Result::is_ok)
        .await
        .unwrap();
    thief.may_not("-n stellage-ada get secrets", "cannot list resource \"secrets\"");
    thief.may_not(
        "-n stellage-region get secrets",
        "cannot list resource \"secrets\"",
    );
    thief.may_not(
        "-n stellage-ada get rolebindings",
        "cannot list resource \"rolebindings\"",
    );

    // It deletes its own namespaces alone.
    for foreign in ["stellage-images", "stellage-region"] {
        thief.may_not(&format!("delete namespace {foreign}"), label);
    }
    thief
        .kubectl("delete namespace stellage-ada --wait=false", None)
        .unwrap();

    // Another installation has its own prefix, label and role.
    install(
        "second",
        &json!({ "installation": "prod-2", "namespacePrefix": "test-", "token": { "create": false } }),
    );
    let all = ["get", "clusterroles", "-o", "name"];
    let roles = kubectl(&plane, &all, None).unwrap();
    for role in ["stellage-servers", "test-servers"] {
        let line = format!("clusterrole.rbac.authorization.k8s.io/{role}");
        assert!(roles.lines().any(|it| it == line), "{roles}");
    }
}
