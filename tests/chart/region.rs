//! The chart of a region, and what the token that it makes grants: what Stellage needs, and no more.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use base64::Engine as _;
use control_plane::{ControlPlane, Identity};
use serde_json::{Value, json};

use super::{files::read, objects, thief::Thief};
use crate::support::{
    OwnPlane, STELLAGE, bare_plane, eventually,
    helm::{Helm, region_chart},
    kubectl, run,
};

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
    let values = json!({ "networkNamespaces": ["public-networks"] });
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
    let with_consoles = rendered(&helm, &json!({ "consoles": true }));
    assert_eq!(
        rules(&with_consoles, "ClusterRole", "stellage-region-consoles"),
        &rights["consoles"]
    );
    let verbs = rights["consoles"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| &rule["verbs"]);
    assert!(verbs.into_iter().all(|verbs| verbs == &json!(["get"])));
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
async fn follow_notes(plane: &ControlPlane, notes: &str) -> tempfile::TempDir {
    // Kubernetes fills it within a moment; a person is not faster.
    let token = async || {
        let line = format!("-n {NAMESPACE} get secret stellage-region-token -o jsonpath={{.data.token}}");
        kubectl(plane, &line, None).unwrap()
    };
    eventually("the token", token, |token| !token.is_empty()).await;
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

/// A cluster with the namespaces that the platform makes, the ConfigMap that Kubernetes has in every namespace, and kinds of KubeVirt and CDI.
async fn cluster() -> OwnPlane {
    let plane = bare_plane(ControlPlane::options()).await;
    for name in [NAMESPACE, "golden-images", "public-networks"] {
        kubectl(&plane, &format!("create namespace {name}"), None).unwrap();
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
    let kind = |group: &str, version: &str, kind: &str, plural: &str| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{group}") },
            "spec": {
                "group": group, "scope": "Namespaced", "names": { "kind": kind, "plural": plural },
                "versions": [{
                    "name": version, "served": true, "storage": true,
                    "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
                }],
            },
        })
    };
    let servers = kind("kubevirt.io", "v1", "VirtualMachine", "virtualmachines");
    let disks = kind("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes");
    for object in [authority, servers, disks] {
        kubectl(&plane, "create -f -", Some(&object.to_string())).unwrap();
    }
    let established = "wait --for=condition=Established crd --all --timeout=60s";
    kubectl(&plane, established, None).unwrap();
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
        &json!({ "installation": "prod-1", "networkNamespaces": ["public-networks"] }),
    );
    let folder = follow_notes(&plane, &notes).await;
    let kubeconfig = folder.path().join("de-ber-1/kubeconfig");
    let thief = Thief {
        plane: &plane,
        kubeconfig,
    };

    // The policies apply soon after they were created.
    let unlabelled = namespace("stellage-eve", None);
    let refused = async || {
        let done = thief.create(&unlabelled);
        if done.is_ok() {
            kubectl(&plane, "delete namespace stellage-eve", None).unwrap();
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
    for foreign in ["golden-images", "default", "kube-system"] {
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
    for (foreign, why) in [("golden-images", prefix), ("stellage-region", label)] {
        thief.may_not(&format!("delete namespace {foreign}"), why);
    }
    thief
        .kubectl("delete namespace stellage-ada --wait=false", None)
        .unwrap();

    // Another installation has its own prefix, label and role.
    install(
        "second",
        &json!({ "installation": "prod-2", "namespacePrefix": "test-", "token": { "create": false } }),
    );
    let all = "get clusterroles -o name";
    let roles = kubectl(&plane, all, None).unwrap();
    for role in ["stellage-servers", "test-servers"] {
        let line = format!("clusterrole.rbac.authorization.k8s.io/{role}");
        assert!(roles.lines().any(|it| it == line), "{roles}");
    }
}

/// A server of the account ada, made for the Instance with this UID.
fn server(name: &str, instance_uid: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {
            "name": name, "namespace": "stellage-ada",
            "labels": { "stellage.dev/installation": "prod-1", "stellage.dev/instance-uid": instance_uid },
            "annotations": { "stellage.dev/instance": format!("ada/{name}") },
        },
    })
}

/// A catalogue with the region, whose kubeconfig is in this folder.
fn write_catalogue(folder: &Path, installation: &str) -> PathBuf {
    let catalogue = folder.join(format!("{installation}.yaml"));
    let kubeconfig = folder.join("de-ber-1/kubeconfig");
    let region = json!({
        "code": "de-ber-1",
        "kubevirt": {
            "kubeconfig": kubeconfig, "installation": installation, "storageClass": "ceph-block",
            "images": { "debian-13": { "dataSource": "golden-images/debian-13", "user": "debian" } },
            "network": {
                "profile": "bridge", "attachment": "public-networks/public", "antiSpoofing": "external",
                "ipv4": [{ "prefix": "203.0.113.0/24", "gateway": "203.0.113.1" }], "nameservers": ["9.9.9.9"],
            },
        },
    });
    fs::write(&catalogue, json!({ "regions": ["fr-par-1", region] }).to_string()).unwrap();
    catalogue
}

/// Installs the CRDs of Stellage, and makes a server that belongs to no Instance and a disk of another such server, each with a Secret.
fn make_server_without_instance(plane: &ControlPlane) {
    let crds = run(Command::new(STELLAGE).arg("crds"), None).unwrap();
    kubectl(plane, "apply --server-side -f -", Some(&crds)).unwrap();
    let established = "wait --for=condition=Established crd --all --timeout=60s";
    kubectl(plane, established, None).unwrap();
    kubectl(
        plane,
        "create -f -",
        Some(&namespace("stellage-ada", Some("prod-1")).to_string()),
    )
    .unwrap();
    let left = server("left", "gone");
    let mut secret = secret("stellage-ada");
    secret["metadata"]["labels"] = left["metadata"]["labels"].clone();
    let labels = server("late", "gone-before")["metadata"]["labels"].clone();
    let disk = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
        "metadata": { "name": "late", "namespace": "stellage-ada", "labels": labels },
    });
    let mut its_secret = secret.clone();
    its_secret["metadata"]["name"] = "late".into();
    its_secret["metadata"]["labels"] = labels;
    let binding = binding("stellage-ada", "stellage-servers", "stellage-region");
    for object in [&binding, &left, &secret, &disk, &its_secret] {
        kubectl(plane, "create -f -", Some(&object.to_string())).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_charts_token_the_doctor_finds_all_rights_and_orphans_are_deleted_with_what_they_have() {
    let plane = cluster().await;
    let helm = Helm::on(&plane).await;
    let chart = region_chart();
    let values = json!({ "installation": "prod-1", "networkNamespaces": ["public-networks"] });
    let install = [
        "install",
        "stellage-region",
        chart.to_str().unwrap(),
        "--namespace",
        NAMESPACE,
    ];
    let notes = helm.with(&install, &values).unwrap();
    let folder = follow_notes(&plane, &notes).await;
    let [catalogue, other_installation] = ["prod-1", "prod-2"].map(|it| write_catalogue(folder.path(), it));
    let stellage_of = |catalogue: &Path, arguments: &[&str]| {
        let mut command = Command::new(STELLAGE);
        command
            .args(arguments)
            .args(["--region", "de-ber-1", "--output", "json", "--catalogue"])
            .arg(catalogue)
            .env("KUBECONFIG", plane.kubeconfig(Identity::Admin));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let shown: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
        (output.status.code().unwrap(), shown, said)
    };
    let stellage = |arguments: &[&str]| stellage_of(&catalogue, arguments);

    make_server_without_instance(&plane);
    // As far as this cluster has what is looked for.
    let rights = async || {
        let (_, report, _) = stellage(&["doctor"]);
        let checks = report["checks"].as_array().unwrap().clone();
        checks
            .into_iter()
            .map(|check| (check["name"].clone(), check))
            .collect::<Vec<_>>()
    };
    let is_well = |checks: &Vec<(Value, Value)>| {
        checks
            .iter()
            .any(|(name, check)| name == "rights" && check["outcome"] == "ok")
    };
    let checks = eventually("all rights", rights, is_well).await;
    assert!(
        checks
            .iter()
            .any(|(name, check)| name == "namespaces" && check["outcome"] == "ok")
    );
    let (_, report, _) = stellage_of(&other_installation, &["doctor"]);
    let refused = report["checks"].as_array().unwrap().iter();
    let refused: Vec<&Value> = refused.filter(|check| check["name"] == "namespaces").collect();
    let message = refused[0]["message"].as_str().unwrap();
    assert!(
        message.contains("only namespaces with the label stellage.dev/installation: prod-1"),
        "{message}"
    );
    let of = |name: &str| checks.iter().find(|(it, _)| it == name).unwrap().1.clone();
    assert_eq!(
        of("rights")["message"],
        "Stellage may do what it does in this cluster"
    );
    assert_eq!(of("KubeVirt")["outcome"], "failed", "{checks:#?}");
    assert_eq!(of("CDI")["outcome"], "ok", "{checks:#?}");
    assert_eq!(of("storage")["message"], "there is no StorageClass ceph-block");
    assert_eq!(of("images")["message"], "debian-13 is not there");
    assert_eq!(
        of("network")["message"],
        "the NetworkAttachmentDefinition is not there"
    );

    // Without a single Instance, it is probably the wrong cluster.
    let (status, orphans, said) = stellage(&["orphans", "--delete"]);
    assert_eq!((status, orphans.as_array().unwrap().len()), (1, 2), "{said}");
    assert!(said.contains("this cluster has no Instances"), "{said}");
    let instance = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance", "metadata": { "name": "kept", "namespace": "default" },
        "spec": { "plan": "starter", "region": "de-ber-1", "image": "debian-13" },
    });
    let create = "create -o jsonpath={.metadata.uid} -f -";
    let uid = kubectl(&plane, create, Some(&instance.to_string())).unwrap();
    kubectl(&plane, "create -f -", Some(&server("kept", &uid).to_string())).unwrap();
    let (status, orphans, said) = stellage(&["orphans", "--delete"]);
    assert_eq!((status, &orphans[0]["name"]), (0, &json!("left")), "{said}");
    assert!(
        said.contains("younger than ten minutes, and left alone") && !said.contains("deleting"),
        "{said}"
    );
    let (status, orphans, said) = stellage(&["orphans", "--delete", "--force"]);
    assert_eq!(status, 0, "{said}");
    assert_eq!(
        (&orphans[0]["kind"], &orphans[0]["name"]),
        (&json!("server"), &json!("left"))
    );
    assert_eq!(
        (&orphans[1]["kind"], &orphans[1]["name"]),
        (&json!("disk"), &json!("late"))
    );
    assert!(
        said.contains("deleting stellage-ada/left and its disks"),
        "{said}"
    );
    let names = "-n stellage-ada get virtualmachines,datavolumes,secrets -o name";
    let rest = kubectl(&plane, names, None).unwrap();
    assert_eq!(rest.trim(), "virtualmachine.kubevirt.io/kept");
}
