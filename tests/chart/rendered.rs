//! The objects of the chart, for several sets of values.

use control_plane::{ControlPlane, Identity};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use serde_json::{Value, json};

use super::{clusters::example, files::read, objects};
use crate::support::{
    self, bare_plane,
    helm::{Helm, chart},
    kubectl,
};

/// An entry of the catalogue for a region in a cluster of its own, as far as the chart looks at it.
fn in_cluster(code: &str) -> Value {
    let kubeconfig = format!("/etc/stellage/regions/{code}/kubeconfig");
    json!({ "code": code, "kubevirt": { "kubeconfig": kubeconfig } })
}

/// Everything that can be switched on, with one process for both.
pub(super) fn everything() -> Value {
    let peers = json!([{ "namespaceSelector": { "matchLabels": { "team": "web" } } }]);
    let constraint = json!([{ "maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule" }]);
    let pods = json!({
        "replicas": 3, "podAnnotations": { "a": "b" }, "podLabels": { "team": "cloud" },
        "nodeSelector": { "disk": "ssd" }, "tolerations": [{ "key": "dedicated", "operator": "Exists" }],
        "affinity": { "nodeAffinity": {} }, "topologySpreadConstraints": constraint, "priorityClassName": "high",
        "extraEnv": [{ "name": "RUST_LOG", "value": "info,stellage=debug" }],
        "extraVolumes": [{ "name": "more-ca", "configMap": { "name": "more-ca" } }],
        "extraVolumeMounts": [{ "name": "more-ca", "mountPath": "/etc/more-ca", "readOnly": true }],
    });
    let mut api = pods.clone();
    api["autoscaling"] = json!({ "enabled": true });
    api["settings"] = json!({
        "trustedProxies": ["10.20.0.0/16", "10.21.0.0/16"], "maxConnections": 1_000_000, "publicUrl": "https://cloud.example.com",
        "oidcIssuer": "https://login.example.com:8443/realms/cloud", "oidcClientId": "console", "oidcName": "Example",
    });
    let mut gateway = pods.clone();
    gateway.as_object_mut().unwrap().remove("replicas");
    gateway["enabled"] = json!(true);
    gateway["serviceAnnotations"] = json!({ "a": "b" });
    gateway["settings"] = json!({ "maxConsoles": 50 });
    let mut controller = pods;
    controller["settings"] = json!({ "retrySchedule": "1s,5m", "mailFrom": "Stellage <it@example.com>", "leaseDurationSeconds": 5, "billSimulated": true });
    json!({
        "image": { "digest": format!("sha256:{}", "a".repeat(64)) },
        "imagePullSecrets": [{ "name": "pull" }],
        "serviceAccounts": { "annotations": { "a": "b" }, "api": "web", "controller": "brain", "consoleGateway": "eyes" },
        "regions": {
            "de-fra-1": { "secretName": "region-de-fra-1", "consoleSecretName": "consoles-de-fra-1" },
            "nl-ams-1": { "secretName": "2", "consoleSecretName": "3" },
        },
        "catalogue": { "regions": ["fr-par-1", in_cluster("de-fra-1"), in_cluster("nl-ams-1")], "plans": { "starter": { "priceMonthly": 4.2 } } },
        "smtp": { "url": "smtps://user:p%40ss@mail.example.com", "caSecret": "mail-ca" },
        "receivers": { "caSecret": "receiver-ca" }, "tls": { "existingSecret": "tls" },
        "oidc": { "existingSecret": "login" }, "traces": { "existingSecret": "collector" },
        "settings": { "otlpEndpoint": "http://collector.observability:4318", "traceRatio": 0.05, "otlpAudit": true, "provisioningSeconds": 0.5, "simulatorFaults": true, "deliveryLog": "failures", "receiverAllowPort": [22, 25], "receiverAllow": ["10.5.0.7", "fd00::/8"], "receiverProxy": "http://10.6.0.1:4750", "receiverNameServer": ["10.6.0.53:53", "[fd00::53]:5353"] },
        "api": api, "controller": controller, "consoleGateway": gateway,
        "service": { "type": "LoadBalancer", "externalTrafficPolicy": "Local", "loadBalancerSourceRanges": ["192.0.2.0/24"] },
        "ingress": { "enabled": true, "className": "nginx", "hosts": ["api.example.com"], "tlsSecret": "web", "annotations": { "a": "b" } },
        "httpRoute": {
            "enabled": true, "parentRefs": [{ "name": "gateway" }], "hostnames": ["api.example.com"], "sessionPersistence": { "type": "Cookie" },
        },
        "serviceMonitor": { "enabled": true, "labels": { "release": "prometheus" } },
        "prometheusRule": { "enabled": true, "labels": { "release": "prometheus" }, "runbooks": "https://wiki.example.com/stellage" },
        "dashboard": { "enabled": true, "annotations": { "grafana_folder": "Cloud" } },
        "networkPolicy": {
            "enabled": true, "rest": peers, "metrics": peers, "apiServerRanges": ["10.0.0.1/32"],
            "regionRanges": ["10.7.0.1/32"], "mailRanges": ["10.1.0.0/16"], "oidcRanges": ["10.3.0.0/16"], "receiverRanges": ["10.2.0.0/16"],
            "tracesRanges": ["10.4.0.0/16"], "extraEgress": [{ "to": peers }],
        },
    })
}

/// Names that YAML misinterprets unless they are quoted.
fn misleading_names() -> Value {
    json!({
        "nameOverride": "7", "fullnameOverride": "true", "serviceAccounts": { "api": "1e3", "controller": "8" },
        "existingCatalogue": "9", "smtp": { "existingSecret": "10", "existingSecretKey": "11", "caSecret": "12" },
        "tls": { "existingSecret": "null" }, "traces": { "existingSecret": "13", "existingSecretKey": "14" },
        "api": { "priorityClassName": "15" },
        "ingress": { "enabled": true, "className": "16", "hosts": ["api.example.com"], "tlsSecret": "17" },
    })
}

/// The sets of values to try.
pub(super) fn sets() -> Vec<(&'static str, Value)> {
    let mut in_one = everything();
    in_one["mode"] = json!("all");
    in_one["serviceMonitor"]["enabled"] = json!(false);
    in_one["podMonitor"] = json!({ "enabled": true, "labels": { "release": "prometheus" } });
    let clusters = ["k3s", "gke", "eks", "aks", "openshift"].map(|cluster| (cluster, example(cluster)));
    let mut sets = vec![
        ("the defaults", json!({})),
        ("one process", json!({ "mode": "all" })),
        ("everything", everything()),
        ("everything in one process", in_one),
        ("misleading names", misleading_names()),
        (
            "hardly anything",
            json!({
                "crds": { "install": false }, "policies": { "install": false }, "rbac": { "install": false, "aggregate": false },
                "serviceAccounts": { "create": false }, "existingCatalogue": "catalogue",
                "smtp": { "existingSecret": "mail", "existingSecretKey": "smtp-url" },
                "api": { "replicas": 1, "topologySpreadConstraints": [] }, "controller": { "replicas": 1 },
            }),
        ),
        (
            "another control plane",
            json!({
                "kubeconfig": { "existingSecret": "plane" }, "dnsConfig": { "options": [{ "name": "ndots", "value": "1" }] },
                "commonLabels": { "cost": "cloud" },
                "extraObjects": [{ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "more" } }],
            }),
        ),
    ];
    sets.extend(clusters);
    let more = json!([{ "name": "more", "configMap": { "name": "more" } }]);
    let s3 = json!({
        "enabled": true, "target": "s3://backups/stellage", "s3": { "endpoint": "https://s3.example.com:9000", "existingSecret": "18" },
        "encryption": { "existingSecret": "19" }, "serviceAccountAnnotations": { "a": "b" }, "podLabels": { "team": "cloud" },
        "podAnnotations": { "a": "b" }, "nodeSelector": { "disk": "ssd" }, "priorityClassName": "20", "extraVolumes": more,
        "extraVolumeMounts": [{ "name": "more", "mountPath": "/more" }], "extraEnv": [{ "name": "SSL_CERT_FILE", "value": "/more/ca.crt" }],
    });
    let claim = json!({ "enabled": true, "target": "/backups", "existingClaim": "21", "unencrypted": true, "retention": "" });
    let network = json!({ "enabled": true, "backupRanges": ["10.8.0.0/16"] });
    sets.extend([
        (
            "backups into a bucket",
            json!({ "backup": s3, "networkPolicy": network, "imagePullSecrets": [{ "name": "pull" }], "serviceAccounts": { "backup": "22" } }),
        ),
        (
            "backups onto a volume",
            json!({ "backup": claim, "mode": "all", "kubeconfig": { "existingSecret": "plane" } }),
        ),
    ]);
    sets
}

/// Kinds of other projects that the chart can create. Their schemas have megabytes, so only their metadata is
/// checked.
fn foreign_kinds() -> String {
    let kinds = [
        ("monitoring.coreos.com", "ServiceMonitor", "servicemonitors"),
        ("monitoring.coreos.com", "PrometheusRule", "prometheusrules"),
        ("monitoring.coreos.com", "PodMonitor", "podmonitors"),
        ("gateway.networking.k8s.io", "HTTPRoute", "httproutes"),
        ("networking.gke.io", "HealthCheckPolicy", "healthcheckpolicies"),
        ("networking.gke.io", "GCPBackendPolicy", "gcpbackendpolicies"),
    ];
    let crds = kinds.map(|(group, kind, plural)| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {
                "name": format!("{plural}.{group}"),
                "annotations": { "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api/pull/2466" },
            },
            "spec": {
                "group": group, "scope": "Namespaced", "names": { "kind": kind, "plural": plural },
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
                }],
            },
        })
        .to_string()
    });
    crds.join("\n---\n")
}

/// The API server's answer to these objects, without storing any.
fn dry_run(plane: &ControlPlane, text: &str) {
    let arguments = "apply --server-side --dry-run=server --validate=strict -f -";
    kubectl(plane, arguments, Some(text)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_takes_every_object_for_every_set_of_values_and_pods_are_restricted() {
    const NAMESPACE: &str = "stellage-elsewhere";
    let plane = bare_plane(ControlPlane::options()).await;
    let client = plane.client(Identity::Admin).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let restricted = [(
        "pod-security.kubernetes.io/enforce".to_owned(),
        "restricted".to_owned(),
    )];
    let namespace = Namespace {
        metadata: ObjectMeta {
            name: Some(NAMESPACE.to_owned()),
            labels: Some(restricted.into()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    kubectl(&plane, "apply --server-side -f -", Some(&foreign_kinds())).unwrap();
    support::wait_for_kinds(&plane);
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let helm = Helm::alone().await;
    let parameters = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    for (set, values) in sets() {
        let text = helm
            .template(NAMESPACE, &values)
            .unwrap_or_else(|error| panic!("{set}: {error}"));
        dry_run(&plane, &text);
        let all = objects(&text);
        let deployments: Vec<&Value> = all
            .iter()
            .filter(|object| object["kind"] == "Deployment")
            .collect();
        let of_operator = if values["mode"] == "all" { 1 } else { 2 };
        let of_gateway = usize::from(values["consoleGateway"]["enabled"] == true);
        assert_eq!(deployments.len(), of_operator + of_gateway, "{set}");
        let jobs = all.iter().filter(|object| object["kind"] == "CronJob");
        let of_jobs = jobs.map(|job| &job["spec"]["jobTemplate"]);
        for of_pods in deployments.into_iter().chain(of_jobs) {
            let mut pod = of_pods["spec"]["template"].clone();
            pod["metadata"]["name"] = json!("tried");
            // Nothing creates the service accounts' tokens, or the priority classes, in a dry run.
            pod["spec"]["priorityClassName"] = Value::Null;
            let pod: Pod = serde_json::from_value(pod).unwrap();
            pods.create(&parameters, &pod)
                .await
                .unwrap_or_else(|error| panic!("{set}: {error}"));
        }
        // Every namespaced object belongs to the namespace of the release.
        for object in &all {
            let namespace = &object["metadata"]["namespace"];
            assert!(namespace.is_null() || namespace == NAMESPACE, "{set}: {object}");
        }
        let expressions = text.lines().filter(|line| line.contains("expression:"));
        let fixed: Vec<&str> = expressions
            .filter(|line| line.contains("stellage-system"))
            .collect();
        assert!(fixed.is_empty(), "{set}: {fixed:#?}");
        let has_names = |name: &str| text.contains(&format!("system:serviceaccount:{NAMESPACE}:{name}"));
        let names = match (set, values["mode"] == "all") {
            ("everything", _) => vec!["web", "brain"],
            ("everything in one process", _) => vec!["web"],
            ("misleading names", _) => vec!["1e3", "8"],
            ("hardly anything", _) => vec![],
            (_, true) => vec!["stellage"],
            (_, false) => vec!["stellage-api", "stellage-controller"],
        };
        for name in names {
            assert!(
                has_names(&format!("{name}'")),
                "{set}: the policies do not name {name}"
            );
        }
    }
}

#[tokio::test]
async fn pods_and_service_accounts_have_the_label_that_the_doctor_looks_for_whatever_the_name_and_selectors_have_not()
 {
    const LABEL: &str = "app.kubernetes.io/part-of";
    let values = json!({ "nameOverride": "cloud" });
    let text = Helm::alone().await.template("stellage-system", &values).unwrap();
    let all = objects(&text);
    let of = |kind: &'static str| all.iter().filter(move |object| object["kind"] == kind);
    assert_eq!((of("Deployment").count(), of("ServiceAccount").count()), (2, 2));
    for deployment in of("Deployment") {
        let spec = &deployment["spec"];
        assert_eq!(spec["template"]["metadata"]["labels"][LABEL], "stellage");
        assert_eq!(spec["selector"]["matchLabels"]["app.kubernetes.io/name"], "cloud");
        assert!(
            spec["selector"]["matchLabels"][LABEL].is_null(),
            "a selector cannot be changed"
        );
    }
    for account in of("ServiceAccount") {
        assert_eq!(account["metadata"]["labels"][LABEL], "stellage");
    }
}

/// The names and values of variables in an object that are not strings.
fn no_texts(object: &Value, found: &mut Vec<String>) {
    const TEXTS: &[&str] = &[
        "ingressClassName",
        "key",
        "name",
        "namespace",
        "priorityClassName",
        "secretName",
        "serviceAccountName",
        "value",
    ];
    match object {
        Value::Object(fields) => {
            for (field, inner) in fields {
                let is_text = TEXTS.contains(&field.as_str()) || field.starts_with("app.kubernetes.io/");
                // In the schema of a CRD, they are fields.
                if is_text && !inner.is_string() && !inner.is_object() {
                    found.push(format!("{field}: {inner}"));
                }
                no_texts(inner, found);
            }
        }
        Value::Array(all) => all.iter().for_each(|inner| no_texts(inner, found)),
        _ => {}
    }
}

#[tokio::test]
async fn names_and_a_namespace_that_look_like_numbers_are_still_names() {
    let helm = Helm::alone().await;
    let mut in_one = misleading_names();
    in_one["mode"] = json!("all");
    for values in [misleading_names(), in_one] {
        let all = objects(&helm.template("7", &values).unwrap());
        let mut found = Vec::new();
        for object in &all {
            no_texts(object, &mut found);
        }
        assert!(found.is_empty(), "{found:#?}");
        let deployment = all.iter().find(|object| object["kind"] == "Deployment").unwrap();
        assert_eq!(deployment["metadata"]["namespace"], "7");
        assert_eq!(
            deployment["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"],
            "7"
        );
        assert_eq!(
            deployment["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"],
            "7"
        );
    }
}

#[tokio::test]
async fn an_empty_list_of_a_setting_is_as_good_as_none() {
    let schema: Value = serde_json::from_str(&read(&chart().join("values.schema.json"))).unwrap();
    let none = json!({ "networkPolicy": { "enabled": true } });
    let (mut empty, mut lists) = (none.clone(), 0);
    for place in [
        &["settings"][..],
        &["api", "settings"],
        &["controller", "settings"],
    ] {
        let part = place
            .iter()
            .fold(&schema, |part, name| &part["properties"][*name]);
        for (name, part) in part["properties"].as_object().unwrap() {
            if part["items"].is_object() {
                place.iter().fold(&mut empty, |values, name| &mut values[*name])[name] = json!([]);
                lists += 1;
            }
        }
    }
    assert!(lists > 5, "{empty}");
    let helm = Helm::alone().await;
    let [without, with] = [none, empty].map(|values| helm.template("stellage-system", &values).unwrap());
    assert_eq!(with, without);
}

#[tokio::test]
async fn helm_finds_no_fault_with_the_chart_and_wrong_values_are_refused_with_their_place() {
    let helm = Helm::alone().await;
    let chart = chart();
    let chart = chart.to_str().unwrap();
    for (set, values) in sets() {
        let said = helm.with(&["lint", "--strict", chart], &values);
        said.unwrap_or_else(|error| panic!("{set}: {error}"));
    }
    for (wrong, place) in [
        (
            json!({ "replicas": 3 }),
            "additional properties 'replicas' not allowed",
        ),
        (
            json!({ "api": { "settings": { "retrySchedule": "5m" } } }),
            "at '/api/settings'",
        ),
        (
            json!({ "controller": { "settings": { "retrySchedule": "5 minutes" } } }),
            "at '/controller/settings/retrySchedule'",
        ),
        (
            json!({ "controller": { "settings": { "leaseDurationSeconds": 3 } } }),
            "minimum: got 3, want 4",
        ),
        (
            json!({ "mode": "both" }),
            "at '/mode': value must be one of 'split', 'all'",
        ),
        (
            json!({ "fullnameOverride": "my.cloud" }),
            "at '/fullnameOverride'",
        ),
        (json!({ "ingress": { "enabled": true } }), "at '/ingress/hosts'"),
        (
            json!({ "httpRoute": { "enabled": true } }),
            "at '/httpRoute/parentRefs'",
        ),
        (json!({ "smtp": { "url": "mail.example.com" } }), "at '/smtp/url'"),
        (json!({ "image": { "digest": "latest" } }), "at '/image/digest'"),
        (
            json!({ "networkPolicy": { "apiServerRanges": ["10.0.0.1"] } }),
            "at '/networkPolicy/apiServerRanges/0'",
        ),
        (
            json!({ "serviceAccounts": { "api": "cloud", "controller": "cloud" } }),
            "serviceAccounts.api and serviceAccounts.controller are both cloud",
        ),
        (
            json!({ "api": { "autoscaling": { "enabled": true, "minReplicas": 7 } } }),
            "api.autoscaling.minReplicas (7) must be at most api.autoscaling.maxReplicas (6)",
        ),
        (
            json!({ "settings": { "otlpEndpoint": "http://collector:4318/v1/traces" } }),
            "must be without /v1/traces",
        ),
        (
            json!({ "regions": { "frankfurt": { "secretName": "a" } } }),
            "'frankfurt' does not match pattern",
        ),
        (
            json!({ "regions": { "de-fra-1": {} } }),
            "missing property 'secretName'",
        ),
        (
            json!({ "catalogue": { "regions": [in_cluster("de-fra-1")] } }),
            "names /etc/stellage/regions/de-fra-1/kubeconfig for the region de-fra-1, and regions.de-fra-1.secretName is not set",
        ),
        (
            json!({ "regions": { "de-fra-1": { "secretName": "a" } }, "catalogue": { "regions": ["de-fra-1"] } }),
            "regions.de-fra-1: kubevirt.kubeconfig of the region de-fra-1 in the catalogue must be /etc/stellage/regions/de-fra-1/kubeconfig",
        ),
        (
            json!({ "regions": { "de-fra-1": { "secretName": "a" } }, "catalogue": { "regions": [{ "code": "de-fra-1" }] } }),
            "regions.de-fra-1: kubevirt.kubeconfig of the region de-fra-1",
        ),
        (
            json!({ "oidc": { "existingSecret": "login" } }),
            "also needs api.settings.oidcClientId, api.settings.oidcIssuer, api.settings.publicUrl: oidc.existingSecret",
        ),
        (
            json!({ "api": { "settings": { "oidcIssuer": "https://login.example.com", "oidcClientId": "console" } } }),
            "also needs api.settings.publicUrl, oidc.existingSecret: ",
        ),
        (
            json!({ "api": { "settings": { "oidcName": "Example" } } }),
            "oidc.existingSecret: api.settings.oidcName alone is refused",
        ),
    ] {
        let refused = helm.template("stellage-system", &wrong).unwrap_err();
        assert!(refused.contains(place), "{wrong}: {refused}");
    }
    // Values that would be refused in combination with another one.
    let from_secret = json!({ "name": "STELLAGE_OIDC_CLIENT_ID", "valueFrom": { "secretKeyRef": { "name": "login", "key": "id" } } });
    for right in [
        json!({ "api": { "autoscaling": { "minReplicas": 7 } } }),
        json!({ "regions": { "de-fra-1": { "secretName": "a" } }, "existingCatalogue": "mine" }),
        // It is being taken out: docs/kubevirt.md.
        json!({ "regions": { "de-fra-1": { "secretName": "a" } }, "catalogue": { "regions": ["nl-ams-1"] } }),
        json!({ "api": { "settings": { "publicUrl": "https://cloud.example.com" } } }),
        json!({
            "oidc": { "existingSecret": "login" },
            "api": {
                "settings": { "publicUrl": "https://cloud.example.com", "oidcIssuer": "https://login.example.com" },
                "extraEnv": [from_secret],
            },
        }),
    ] {
        helm.template("stellage-system", &right)
            .unwrap_or_else(|error| panic!("{right}: {error}"));
    }
}

#[tokio::test]
async fn settings_reach_the_processes_that_take_them_and_pods_have_time_to_end() {
    let text = Helm::alone()
        .await
        .template("stellage-system", &everything())
        .unwrap();
    let all = objects(&text);
    let environment = |name: &str| {
        let deployment = all
            .iter()
            .find(|object| object["kind"] == "Deployment" && object["metadata"]["name"] == name);
        let pod = &deployment.unwrap()["spec"]["template"]["spec"];
        let variables = pod["containers"][0]["env"].as_array().unwrap().clone();
        let value = move |variable: &str| {
            let found = variables.iter().find(|one| one["name"] == variable)?;
            Some(
                found["value"]
                    .as_str()
                    .map_or_else(|| found["valueFrom"].to_string(), ToOwned::to_owned),
            )
        };
        (value, pod["terminationGracePeriodSeconds"].clone())
    };
    let (api, time_of_api) = environment("stellage-api");
    let (controller, time_of_controller) = environment("stellage-controller");
    let (gateway, _) = environment("stellage-console-gateway");
    assert_eq!(gateway("STELLAGE_MAX_CONSOLES").as_deref(), Some("50"));
    assert_eq!(
        gateway("STELLAGE_TLS_KEY").as_deref(),
        Some("/etc/stellage/tls/tls.key")
    );
    for variable in [
        "STELLAGE_SMTP_URL",
        "STELLAGE_OIDC_ISSUER",
        "STELLAGE_LISTEN",
        "STELLAGE_OWN_ADDRESSES",
    ] {
        assert_eq!(gateway(variable), None, "{variable}");
    }
    for (variable, of_api, of_controller) in [
        ("STELLAGE_PROVISIONING_SECONDS", Some("0.5"), Some("0.5")),
        ("STELLAGE_SIMULATOR_FAULTS", Some("true"), Some("true")),
        ("STELLAGE_BILL_SIMULATED", None, Some("true")),
        ("STELLAGE_LOG_JSON", Some("true"), Some("true")),
        (
            "STELLAGE_OTLP_ENDPOINT",
            Some("http://collector.observability:4318"),
            Some("http://collector.observability:4318"),
        ),
        ("STELLAGE_TRACE_RATIO", Some("0.05"), Some("0.05")),
        ("STELLAGE_OTLP_AUDIT", Some("true"), Some("true")),
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            Some(r#"{"secretKeyRef":{"key":"headers","name":"collector"}}"#),
            Some(r#"{"secretKeyRef":{"key":"headers","name":"collector"}}"#),
        ),
        ("STELLAGE_RECEIVER_ALLOW_PORT", Some("22,25"), Some("22,25")),
        (
            "STELLAGE_TRUSTED_PROXIES",
            Some("10.20.0.0/16,10.21.0.0/16"),
            None,
        ),
        ("STELLAGE_MAX_CONNECTIONS", Some("1000000"), None),
        ("STELLAGE_SHUTDOWN_DELAY_SECONDS", Some("5"), None),
        (
            "STELLAGE_CONSOLE_GATEWAY_URL",
            Some("wss://cloud.example.com/v1/console"),
            None,
        ),
        (
            "STELLAGE_OIDC_ISSUER",
            Some("https://login.example.com:8443/realms/cloud"),
            None,
        ),
        (
            "STELLAGE_OIDC_CLIENT_SECRET_FILE",
            Some("/etc/stellage/oidc/client-secret"),
            None,
        ),
        ("STELLAGE_RETRY_SCHEDULE", None, Some("1s,5m")),
        ("STELLAGE_MAIL_FROM", None, Some("Stellage <it@example.com>")),
        ("STELLAGE_SERVICE_ACCOUNT", None, Some("brain")),
        ("STELLAGE_API_SERVICE_ACCOUNT", None, Some("web")),
        (
            "STELLAGE_SMTP_URL",
            None,
            Some(r#"{"secretKeyRef":{"key":"url","name":"stellage-smtp"}}"#),
        ),
        ("STELLAGE_TLS_KEY", Some("/etc/stellage/tls/tls.key"), None),
        (
            "STELLAGE_OWN_ADDRESSES",
            Some("$(POD_IPS),$(HOST_IPS)"),
            Some("$(POD_IPS),$(HOST_IPS)"),
        ),
        ("STELLAGE_CLUSTER_DOMAIN", None, None),
    ] {
        assert_eq!(api(variable).as_deref(), of_api, "{variable}");
        assert_eq!(controller(variable).as_deref(), of_controller, "{variable}");
    }
    // Only the REST API may reach the provider's port.
    let provider = json!({
        "ports": [{ "protocol": "TCP", "port": 8443 }], "to": [{ "ipBlock": { "cidr": "10.3.0.0/16" } }],
    });
    let may_call = |name: &str, peer: &Value| {
        let policy = all
            .iter()
            .find(|object| object["kind"] == "NetworkPolicy" && object["metadata"]["name"] == name);
        let rules = policy.unwrap()["spec"]["egress"].as_array().unwrap();
        rules.contains(peer)
    };
    assert!(may_call("stellage-api", &provider) && !may_call("stellage-controller", &provider));
    // Both may reach the port of the trace receiver.
    let collector = json!({
        "ports": [{ "protocol": "TCP", "port": 4318 }], "to": [{ "ipBlock": { "cidr": "10.4.0.0/16" } }],
    });
    assert!(may_call("stellage-api", &collector) && may_call("stellage-controller", &collector));
    // The grace of 20 s, the delay of 5 s, and a margin.
    assert_eq!((time_of_api, time_of_controller), (json!(35), json!(30)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_notes_warn_of_what_is_missing_of_simulated_servers_and_of_an_uninstall_that_deletes_the_crds() {
    let plane = support::shared().await.plane;
    let helm = Helm::on(plane).await;
    let chart = chart();
    // A dry run against the cluster of the other tests, which is not changed.
    let arguments = [
        "install",
        "notes",
        chart.to_str().unwrap(),
        "--namespace",
        "default",
        "--dry-run=client",
        "--hide-secret",
    ];
    let without = helm.with(&arguments, &json!({})).unwrap();
    assert!(without.contains("account holders will NOT be told"), "{without}");
    assert!(without.contains("stellage key create --account ada"), "{without}");
    let with = helm
        .with(&arguments, &json!({ "smtp": { "existingSecret": "mail" } }))
        .unwrap();
    assert!(
        with.contains("NOTES:") && !with.contains("will NOT be told"),
        "{with}"
    );
    for missing in ["NO BACKUPS", "there are no alerts"] {
        assert!(without.contains(missing), "{missing}: {without}");
    }
    let lockout = "locks out EVERYBODY";
    assert!(!without.contains(lockout), "nothing is in front: {without}");
    let mut values = json!({
        "backup": { "enabled": true, "target": "s3://backups", "unencrypted": true },
        "prometheusRule": { "enabled": true, "targetLabels": { "job": "stellage" } },
        "ingress": { "enabled": true, "hosts": ["cloud.example.com"] },
    });
    let behind_proxy = helm.with(&arguments, &values).unwrap();
    assert!(behind_proxy.contains(lockout), "{behind_proxy}");
    values["api"] = json!({ "settings": { "trustedProxies": ["10.42.0.0/16"] } });
    let complete = helm.with(&arguments, &values).unwrap();
    for missing in [lockout, "NO BACKUPS", "there are no alerts"] {
        assert!(!complete.contains(missing), "{missing}: {complete}");
    }
    assert!(
        without.contains("Servers are SIMULATED in all regions"),
        "{without}"
    );
    let catalogue = json!({ "regions": ["fr-par-1", in_cluster("de-fra-1")] });
    let regions = json!({ "de-fra-1": { "secretName": "region-de-fra-1" } });
    let some = helm
        .with(&arguments, &json!({ "catalogue": catalogue, "regions": regions }))
        .unwrap();
    assert!(some.contains("Servers are SIMULATED in fr-par-1: "), "{some}");
    let catalogue = json!({ "regions": [in_cluster("de-fra-1")] });
    let real = helm
        .with(&arguments, &json!({ "catalogue": catalogue, "regions": regions }))
        .unwrap();
    assert!(!real.contains("SIMULATED"), "{real}");
    let by_hand = json!({ "policies": { "install": false }, "serviceAccounts": { "controller": "brain" } });
    let by_hand = helm.with(&arguments, &by_hand).unwrap();
    let command = "stellage crds --with-policies --operator-namespace default --service-account brain --api-service-account notes-stellage-api | kubectl";
    assert!(by_hand.contains(command), "{by_hand}");
    let accounts_first = "kubectl delete accounts.stellage.dev --all";
    assert!(!with.contains(accounts_first), "{with}");
    let without_crds = helm
        .with(&arguments, &json!({ "crds": { "keep": false } }))
        .unwrap();
    assert!(without_crds.contains(accounts_first), "{without_crds}");
}
