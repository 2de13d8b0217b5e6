//! The chart on the clusters that there are: the values in `examples/clusters/`, OpenShift's rules for pods, another control plane, and names
//! of the operator's that are not the usual ones.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};

use control_plane::{ControlPlane, Identity};
use serde_json::{Value, json};

use super::{
    files::read,
    objects,
    rendered::{everything, sets},
};
use crate::support::{self, STELLAGE, bare_plane, helm::Helm, kubectl, wait_for_kinds};

/// The values of a cluster, from `examples/clusters/`.
pub(super) fn example(cluster: &str) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("examples/clusters/{cluster}.yaml"));
    serde_saphyr::from_str(&read(&path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The objects for these values.
async fn render(values: &Value) -> Vec<Value> {
    objects(&Helm::alone().await.template("stellage-system", values).unwrap())
}

fn of_kind<'a>(all: &'a [Value], kind: &str) -> Vec<&'a Value> {
    all.iter().filter(|object| object["kind"] == kind).collect()
}

/// The ids of a namespace on OpenShift, as its annotations `openshift.io/sa.scc.uid-range` and `…supplemental-groups` have them.
const IDS: std::ops::Range<i64> = 1_000_680_000..1_000_690_000;

/// Why OpenShift's SCC restricted-v2 refuses a pod: MustRunAsRange for users, MustRunAs for the groups of volumes and for SELinux, no
/// host, no privileges, all capabilities dropped, the runtime's seccomp profile, and no volumes of nodes.
fn refused_by_restricted_v2(pod: &Value) -> Vec<String> {
    const VOLUMES: &[&str] = &[
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    let mut reasons = Vec::new();
    let spec = &pod["spec"];
    let outside = |value: &Value| value.as_i64().is_some_and(|id| !IDS.contains(&id));
    let containers = ["initContainers", "containers"]
        .iter()
        .filter_map(|list| spec[*list].as_array())
        .flatten();
    let contexts = containers.map(|container| ("container", &container["securityContext"]));
    for (whose, context) in std::iter::once(("pod", &spec["securityContext"])).chain(contexts) {
        for field in ["runAsUser", "fsGroup"] {
            if outside(&context[field]) {
                reasons.push(format!("{whose}: {field}: {} is not in {IDS:?}", context[field]));
            }
        }
        if !context["seLinuxOptions"].is_null() {
            reasons.push(format!("{whose}: seLinuxOptions are the namespace's"));
        }
        let profile = &context["seccompProfile"]["type"];
        if !profile.is_null() && profile != "RuntimeDefault" {
            reasons.push(format!("{whose}: seccompProfile: {profile}"));
        }
        if whose == "pod" {
            continue;
        }
        if context["privileged"] == true || context["allowPrivilegeEscalation"] == true {
            reasons.push("container: privileges".to_owned());
        }
        let added = context["capabilities"]["add"].as_array();
        if added
            .into_iter()
            .flatten()
            .any(|capability| capability != "NET_BIND_SERVICE")
        {
            reasons.push("container: capabilities.add".to_owned());
        }
    }
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        if spec[field] == true {
            reasons.push(format!("pod: {field}"));
        }
    }
    for volume in spec["volumes"].as_array().into_iter().flatten() {
        let mut sources = volume.as_object().unwrap().keys().filter(|key| *key != "name");
        if !sources.all(|source| VOLUMES.contains(&source.as_str())) {
            reasons.push(format!("volume: {volume}"));
        }
    }
    reasons
}

#[tokio::test]
async fn openshift_takes_the_pods_for_every_set_of_values_that_names_no_ids() {
    for (set, values) in sets() {
        let all = render(&values).await;
        let deployments = of_kind(&all, "Deployment");
        let jobs = of_kind(&all, "CronJob")
            .into_iter()
            .map(|job| &job["spec"]["jobTemplate"]);
        for pod in deployments
            .into_iter()
            .chain(jobs)
            .map(|made| &made["spec"]["template"])
        {
            assert_eq!(refused_by_restricted_v2(pod), Vec::<String>::new(), "{set}");
            assert_eq!(pod["spec"]["securityContext"]["runAsNonRoot"], true, "{set}");
            // With no group of its own, the pod's user is in none that volumes have.
            for volume in pod["spec"]["volumes"].as_array().into_iter().flatten() {
                let mode = &volume["secret"]["defaultMode"];
                assert!(mode.is_null() || mode == 0o444, "{set}: {volume}");
            }
        }
    }
    // A user by number, so that the kubelet can tell that it is not root.
    for file in ["packer/src/image.rs", "Dockerfile"] {
        let text = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
        assert!(text.contains("65532:65532"), "{file}");
    }
}

#[tokio::test]
async fn both_security_contexts_are_values_and_the_rules_of_openshift_notice_ids() {
    let values = json!({
        "podSecurityContext": { "runAsUser": 65532, "fsGroup": 65532 },
        "securityContext": { "runAsUser": 7, "readOnlyRootFilesystem": null },
    });
    let all = render(&values).await;
    let pod = &of_kind(&all, "Deployment")[0]["spec"]["template"];
    let container = &pod["spec"]["containers"][0]["securityContext"];
    assert_eq!(container["allowPrivilegeEscalation"], false);
    assert!(
        container.get("readOnlyRootFilesystem").is_none_or(Value::is_null),
        "{container}"
    );
    let reasons = refused_by_restricted_v2(pod);
    let wanted = ["pod: runAsUser", "pod: fsGroup", "container: runAsUser"];
    assert_eq!(reasons.len(), wanted.len(), "{reasons:?}");
    for reason in wanted {
        assert!(
            reasons.iter().any(|found| found.starts_with(reason)),
            "{reason}: {reasons:?}"
        );
    }
}

#[tokio::test]
async fn every_example_of_a_cluster_is_among_the_sets_of_values_that_the_api_server_takes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/clusters");
    let tried: BTreeSet<&str> = sets().into_iter().map(|(set, _)| set).collect();
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(tried.contains(name.trim_end_matches(".yaml")), "{name}");
    }
}

#[tokio::test]
async fn the_network_policies_let_pods_ask_openshifts_dns_which_listens_on_another_port() {
    let all = render(&example("openshift")).await;
    for policy in of_kind(&all, "NetworkPolicy") {
        let rules = policy["spec"]["egress"].as_array().unwrap();
        let dns = rules.iter().find(|rule| {
            let peers = rule["to"].as_array().into_iter().flatten();
            let mut labels =
                peers.map(|peer| &peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]);
            labels.any(|name| name == "openshift-dns")
        });
        let ports = dns.unwrap()["ports"].as_array().unwrap();
        for protocol in ["UDP", "TCP"] {
            assert!(
                ports.contains(&json!({ "protocol": protocol, "port": 5353 })),
                "{ports:?}"
            );
        }
    }
}

#[tokio::test]
async fn labels_for_all_objects_are_on_all_objects_and_pods_and_in_no_selector() {
    let mut values = everything();
    values["commonLabels"] = json!({ "cost": "cloud" });
    for object in render(&values).await {
        assert_eq!(
            object["metadata"]["labels"]["cost"], "cloud",
            "{}",
            object["metadata"]
        );
        if object["kind"] == "Deployment" {
            let spec = &object["spec"];
            assert_eq!(spec["template"]["metadata"]["labels"]["cost"], "cloud");
            assert!(spec["selector"]["matchLabels"]["cost"].is_null());
        }
    }
}

#[tokio::test]
async fn a_pod_with_another_control_plane_has_its_own_kubeconfig_and_no_token_of_this_cluster() {
    for (mode, components) in [
        ("split", &["api", "controller", "console-gateway"][..]),
        ("all", &["all", "console-gateway"]),
    ] {
        let values = json!({
            "mode": mode, "kubeconfig": { "existingSecret": "plane" },
            "consoleGateway": { "enabled": true }, "api": { "settings": { "publicUrl": "https://cloud.example.com" } },
        });
        let all = render(&values).await;
        let pods = of_kind(&all, "Deployment");
        assert_eq!(pods.len(), components.len());
        for component in components {
            let is_it = |pod: &&&Value| {
                pod["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] == **component
            };
            let spec = &pods.iter().find(is_it).unwrap()["spec"]["template"]["spec"];
            assert_eq!(spec["automountServiceAccountToken"], false);
            let variable =
                json!({ "name": "KUBECONFIG", "value": format!("/etc/stellage/kubeconfig/{component}") });
            assert!(
                spec["containers"][0]["env"]
                    .as_array()
                    .unwrap()
                    .contains(&variable)
            );
            let volumes = spec["volumes"].as_array().unwrap();
            let volume = volumes
                .iter()
                .find(|volume| volume["name"] == "kubeconfig")
                .unwrap();
            assert_eq!(
                volume["secret"]["items"],
                json!([{ "key": component, "path": component }])
            );
        }
    }
}

#[tokio::test]
async fn a_pod_monitor_has_the_label_that_alerts_look_for_and_relabelings_follow() {
    let relabelings = json!([{ "action": "labeldrop", "regex": "pod" }]);
    let monitor = json!({ "enabled": true, "relabelings": relabelings, "metricRelabelings": relabelings });
    let all = render(&json!({ "podMonitor": monitor })).await;
    let endpoint = &of_kind(&all, "PodMonitor")[0]["spec"]["podMetricsEndpoints"][0];
    let service = json!({ "targetLabel": "service", "replacement": "stellage-metrics" });
    assert_eq!(endpoint["relabelings"], json!([service, relabelings[0]]));
    assert_eq!(endpoint["metricRelabelings"], relabelings);
    let all = render(&json!({ "serviceMonitor": monitor })).await;
    let endpoint = &of_kind(&all, "ServiceMonitor")[0]["spec"]["endpoints"][0];
    assert_eq!(
        (&endpoint["relabelings"], &endpoint["metricRelabelings"]),
        (&relabelings, &relabelings)
    );
    let both = json!({ "podMonitor": monitor, "serviceMonitor": monitor });
    let refusal = Helm::alone()
        .await
        .template("stellage-system", &both)
        .unwrap_err();
    assert!(refusal.contains("choose one"), "{refusal}");
}

#[tokio::test]
async fn another_mail_url_restarts_the_controllers_and_nothing_else() {
    const CHECKSUM: &str = "checksum/smtp";
    let checksums = async |url: &str| {
        let all = render(&json!({ "smtp": { "url": url } })).await;
        let of =
            |deployment: &&Value| deployment["spec"]["template"]["metadata"]["annotations"][CHECKSUM].clone();
        of_kind(&all, "Deployment").iter().map(of).collect::<Vec<_>>()
    };
    let (one, other) = (checksums("smtp://a").await, checksums("smtp://b").await);
    assert_eq!(one.len(), 2);
    assert_ne!(one, other);
    assert_eq!(one.iter().filter(|checksum| checksum.is_null()).count(), 1);
    let none = checksums("").await;
    assert!(none.iter().all(Value::is_null), "{none:?}");
}

/// `stellage crds --with-policies` with these options.
fn crds(options: &[&str]) -> String {
    let mut command = Command::new(STELLAGE);
    support::run(command.args(["crds", "--with-policies"]).args(options), None).unwrap()
}

#[tokio::test]
async fn the_program_prints_the_policies_that_the_chart_renders_for_the_same_operator() {
    for (values, options) in [
        (
            json!({ "mode": "split" }),
            &[
                "--service-account=stellage-controller",
                "--api-service-account=stellage-api",
            ][..],
        ),
        (
            json!({ "mode": "all", "serviceAccounts": { "api": "brain" } }),
            &["--service-account=brain"],
        ),
        (
            json!({ "serviceAccounts": { "api": "web", "controller": "brain" } }),
            &["--service-account=brain", "--api-service-account=web"],
        ),
    ] {
        let mut values = values;
        let restorer = "system:serviceaccount:velero:velero";
        values["policies"] = json!({ "receivers": false, "restorer": restorer });
        let all = objects(&Helm::alone().await.template("cloud", &values).unwrap());
        let restorer = format!("--restorer={restorer}");
        let printed = objects(&crds(
            &[options, &["--operator-namespace=cloud", &restorer]].concat(),
        ));
        let mut compared = 0;
        for kind in ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"] {
            let (rendered, printed) = (of_kind(&all, kind), of_kind(&printed, kind));
            assert_eq!(rendered.len(), printed.len());
            for policy in printed {
                let name = &policy["metadata"]["name"];
                let found = rendered.iter().find(|found| found["metadata"]["name"] == *name);
                assert_eq!(policy["spec"], found.unwrap()["spec"], "{name}");
                compared += 1;
            }
        }
        assert!(compared > 30, "{compared}");
    }
}

/// The fix that `stellage doctor` names for a check that has failed, or nothing if it has not.
fn fix(plane: &ControlPlane, check: &str) -> Option<String> {
    let output = Command::new(STELLAGE)
        .args(["doctor", "--output", "json", "--operator-namespace", "cloud"])
        .env("KUBECONFIG", plane.kubeconfig(Identity::Admin))
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|found| found["name"] == check).unwrap();
    (found["outcome"] == "failed").then(|| found["fix"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_of_the_doctor_does_not_lock_out_an_operator_in_another_namespace() {
    let plane = bare_plane(ControlPlane::options()).await;
    let values = json!({
        "serviceAccounts": { "api": "web", "controller": "brain" },
        "consoleGateway": { "enabled": true }, "api": { "settings": { "publicUrl": "https://cloud.example.com" } },
    });
    let rendered = Helm::alone().await.template("cloud", &values).unwrap();
    let apply = |text: &str| {
        kubectl(&plane, "apply --server-side --force-conflicts -f -", Some(text)).unwrap();
    };
    kubectl(&plane, "create namespace cloud", None).unwrap();
    apply(&rendered);
    wait_for_kinds(&plane);
    assert_eq!(fix(&plane, "policies"), None, "with a console gateway, too");

    // What an administrator did who took the command from the notes of another installation.
    apply(&crds(&[]));
    let fixes = fix(&plane, "policies").expect("the policies name nobody of this installation");
    let (_, command) = fixes.split_once("stellage crds --with-policies ").unwrap();
    let (options, _) = command.split_once(" | kubectl apply --server-side -f -").unwrap();
    assert_eq!(
        options,
        "--operator-namespace cloud --service-account brain --api-service-account web"
    );
    apply(&crds(&options.split(' ').collect::<Vec<_>>()));
    assert_eq!(fix(&plane, "policies"), None);
}
