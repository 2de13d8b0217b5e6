//! What is in the chart only if values ask for it.

use std::{collections::BTreeSet, path::Path};

use serde_json::{Value, json};

use super::{files::read, objects, rendered::everything};
use crate::support::helm::Helm;

/// Kind and name of each object.
fn names(helm: &Helm, values: &Value) -> BTreeSet<String> {
    let text = helm
        .template("stellage-system", values)
        .unwrap_or_else(|error| panic!("{values}: {error}"));
    let name = |object: Value| {
        let (kind, name) = (&object["kind"], &object["metadata"]["name"]);
        format!("{} {}", kind.as_str().unwrap(), name.as_str().unwrap())
    };
    objects(&text).into_iter().map(name).collect()
}

#[tokio::test]
async fn an_ingress_and_a_route_serve_the_path_of_the_public_url() {
    let helm = Helm::alone().await;
    for (url, path) in [
        (Value::Null, "/"),
        (json!("https://example.com"), "/"),
        (json!("https://example.com/cloud/"), "/cloud"),
    ] {
        let values = json!({
            "api": { "settings": { "publicUrl": url } },
            "ingress": { "enabled": true, "hosts": ["example.com"] },
            "httpRoute": { "enabled": true, "parentRefs": [{ "name": "gateway" }] },
        });
        let text = helm.template("stellage-system", &values).unwrap();
        let found = |kind: &str, pointer: &str| {
            let object = objects(&text).into_iter().find(|object| object["kind"] == kind);
            object.unwrap().pointer(pointer).cloned().unwrap()
        };
        assert_eq!(found("Ingress", "/spec/rules/0/http/paths/0/path"), path);
        assert_eq!(found("HTTPRoute", "/spec/rules/0/matches/0/path/value"), path);
    }
}

#[tokio::test]
async fn an_optional_object_is_there_if_it_is_asked_for_and_not_otherwise() {
    let helm = Helm::alone().await;
    let usual = names(&helm, &json!({}));
    for (values, more, fewer) in [
        (
            json!({ "ingress": { "enabled": true, "hosts": ["api.example.com"] } }),
            vec!["Ingress stellage"],
            vec![],
        ),
        (
            json!({ "httpRoute": { "enabled": true, "parentRefs": [{ "name": "gateway" }] } }),
            vec!["HTTPRoute stellage"],
            vec![],
        ),
        (
            json!({ "serviceMonitor": { "enabled": true } }),
            vec!["ServiceMonitor stellage"],
            vec![],
        ),
        (
            json!({ "podMonitor": { "enabled": true } }),
            vec!["PodMonitor stellage"],
            vec![],
        ),
        (
            json!({ "extraObjects": [{ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "more" } }] }),
            vec!["ConfigMap more"],
            vec![],
        ),
        (
            json!({ "prometheusRule": { "enabled": true, "targetLabels": { "job": "stellage" } } }),
            vec!["PrometheusRule stellage"],
            vec![],
        ),
        (
            json!({ "priorityAndFairness": { "enabled": false } }),
            vec![],
            vec![
                "FlowSchema stellage-api",
                "FlowSchema stellage-controller",
                "FlowSchema stellage-lease",
                "PriorityLevelConfiguration stellage-api",
                "PriorityLevelConfiguration stellage-controller",
            ],
        ),
        (
            json!({ "dashboard": { "enabled": true } }),
            vec!["ConfigMap stellage-dashboard"],
            vec![],
        ),
        (
            json!({ "networkPolicy": { "enabled": true } }),
            vec!["NetworkPolicy stellage-api", "NetworkPolicy stellage-controller"],
            vec![],
        ),
        (
            json!({ "api": { "autoscaling": { "enabled": true } } }),
            vec!["HorizontalPodAutoscaler stellage-api"],
            vec![],
        ),
        (
            json!({ "api": { "autoscaling": { "enabled": true }, "replicas": 0 } }),
            vec![],
            vec!["PodDisruptionBudget stellage-api"],
        ),
        (
            json!({ "catalogue": { "currency": "CHF" } }),
            vec!["ConfigMap stellage-catalogue"],
            vec![],
        ),
        (json!({ "existingCatalogue": "mine" }), vec![], vec![]),
        (
            json!({ "smtp": { "url": "smtp://mail.example.com" } }),
            vec!["Secret stellage-smtp"],
            vec![],
        ),
        (
            json!({ "smtp": { "url": "smtp://mail.example.com", "existingSecret": "mail" } }),
            vec![],
            vec![],
        ),
        (
            json!({ "api": { "podDisruptionBudget": { "enabled": false } }, "controller": { "replicas": 1 } }),
            vec![],
            vec![
                "PodDisruptionBudget stellage-api",
                "PodDisruptionBudget stellage-controller",
            ],
        ),
        (
            json!({ "serviceAccounts": { "create": false } }),
            vec![],
            vec![
                "ServiceAccount stellage-api",
                "ServiceAccount stellage-controller",
            ],
        ),
        (
            json!({ "policies": { "receivers": false } }),
            vec![],
            vec![
                "ValidatingAdmissionPolicy receivers.stellage.dev",
                "ValidatingAdmissionPolicyBinding receivers.stellage.dev",
            ],
        ),
        (
            json!({ "rbac": { "aggregate": false } }),
            vec![],
            vec![
                "ClusterRole stellage-admin",
                "ClusterRole stellage-edit",
                "ClusterRole stellage-view",
            ],
        ),
    ] {
        let now = names(&helm, &values);
        assert_eq!(now.difference(&usual).collect::<Vec<_>>(), more, "{values}");
        assert_eq!(usual.difference(&now).collect::<Vec<_>>(), fewer, "{values}");
    }
}

#[tokio::test]
async fn without_its_roles_the_chart_has_everything_else() {
    let helm = Helm::alone().await;
    for mode in ["split", "all"] {
        let with = names(&helm, &json!({ "mode": mode }));
        let without = names(&helm, &json!({ "mode": mode, "rbac": { "install": false } }));
        let is_role = |object: &&String| {
            let kind = object.split(' ').next().unwrap();
            let kind = kind.trim_start_matches("Cluster").trim_end_matches("Binding");
            // The tenants' ones have their own value.
            kind == "Role"
                && ![
                    "ClusterRole stellage-view",
                    "ClusterRole stellage-edit",
                    "ClusterRole stellage-admin",
                ]
                .contains(&object.as_str())
        };
        let roles: BTreeSet<String> = with.iter().filter(is_role).cloned().collect();
        assert!(roles.len() > 8, "{roles:?}");
        assert_eq!(&with - &without, roles);
        assert!(without.contains("Secret stellage-console"));
    }
}

#[tokio::test]
async fn with_the_values_that_the_documentation_names_nothing_is_left_for_the_whole_cluster() {
    let helm = Helm::alone().await;
    let values = [
        "crds.install",
        "policies.install",
        "rbac.install",
        "rbac.aggregate",
        "priorityAndFairness.enabled",
    ];
    let documentation = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/install.md"));
    let mut off = json!({});
    for value in values {
        assert!(documentation.contains(&format!("`{value}: false`")), "{value}");
        let (group, name) = value.split_once('.').unwrap();
        off[group][name] = json!(false);
    }
    for mode in ["split", "all"] {
        let mut values = everything();
        values["mode"] = json!(mode);
        for (group, off) in off.as_object().unwrap() {
            values[group] = off.clone();
        }
        for object in objects(&helm.template("stellage-system", &values).unwrap()) {
            assert_eq!(object["metadata"]["namespace"], "stellage-system", "{object}");
        }
    }
}

#[tokio::test]
async fn every_object_has_the_label_of_its_release_by_which_one_sees_what_an_uninstall_has_left() {
    let helm = Helm::alone().await;
    for values in [json!({}), everything()] {
        for object in objects(&helm.template("stellage-system", &values).unwrap()) {
            let labels = &object["metadata"]["labels"];
            let name = format!("{} {}", object["kind"], object["metadata"]["name"]);
            assert_eq!(labels["app.kubernetes.io/instance"], "stellage", "{name}");
        }
    }
}

#[tokio::test]
async fn the_alert_about_a_backlog_fires_at_a_tenth_of_what_may_wait() {
    let helm = Helm::alone().await;
    let values = json!({
        "serviceMonitor": { "enabled": true }, "prometheusRule": { "enabled": true }, "controller": { "settings": { "pendingDeliveriesInAll": 2500 } },
    });
    let text = helm.template("stellage-system", &values).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    let pending = r#"sum(stellage_deliveries_pending{namespace="stellage-system",service="stellage-metrics"}) > 250 for:"#;
    assert!(words.join(" ").contains(pending), "{text}");
}

/// The template of the pods of a Deployment.
fn pods(all: &[Value], deployment: &str) -> Value {
    let found = all
        .iter()
        .find(|object| object["kind"] == "Deployment" && object["metadata"]["name"] == deployment);
    found.unwrap()["spec"]["template"].clone()
}

#[tokio::test]
async fn pods_have_what_is_asked_of_the_scheduler_and_the_environment_and_nothing_of_it_otherwise() {
    let helm = Helm::alone().await;
    let render = |values: &Value| objects(&helm.template("stellage-system", values).unwrap());
    let (usual, asked) = (render(&json!({})), render(&everything()));
    for name in ["stellage-api", "stellage-controller"] {
        let (usual, asked) = (pods(&usual, name), pods(&asked, name));
        for (field, value) in [
            ("/metadata/annotations/a", json!("b")),
            ("/metadata/labels/team", json!("cloud")),
            ("/spec/priorityClassName", json!("high")),
            ("/spec/nodeSelector", json!({ "disk": "ssd" })),
            (
                "/spec/tolerations",
                json!([{ "key": "dedicated", "operator": "Exists" }]),
            ),
            ("/spec/affinity", json!({ "nodeAffinity": {} })),
            ("/spec/imagePullSecrets", json!([{ "name": "pull" }])),
        ] {
            assert_eq!(asked.pointer(field), Some(&value), "{name}: {field}");
            assert_eq!(usual.pointer(field), None, "{name}: {field}");
        }
        let log = json!({ "name": "RUST_LOG", "value": "info,stellage=debug" });
        let has_log = |pods: &Value| {
            let variables = pods["spec"]["containers"][0]["env"].as_array().unwrap();
            variables.contains(&log)
        };
        assert!(has_log(&asked) && !has_log(&usual), "{name}");
        for list in ["/spec/volumes", "/spec/containers/0/volumeMounts"] {
            let last = asked.pointer(list).unwrap().as_array().unwrap().last().unwrap();
            assert_eq!(last["name"], "more-ca", "{name}: {list}");
            assert_eq!(usual.pointer(list), None, "{name}: {list}");
        }

        let spread = |pods: &Value| -> Vec<(Value, Value, Value)> {
            let constraints = pods["spec"]["topologySpreadConstraints"].as_array().unwrap();
            let of = |one: &Value| {
                let component = &one["labelSelector"]["matchLabels"]["app.kubernetes.io/component"];
                (
                    one["topologyKey"].clone(),
                    one["whenUnsatisfiable"].clone(),
                    component.clone(),
                )
            };
            constraints.iter().map(of).collect()
        };
        let component = json!(name.trim_start_matches("stellage-"));
        let best = |key: &str| (json!(key), json!("ScheduleAnyway"), component.clone());
        assert_eq!(
            spread(&usual),
            [
                best("kubernetes.io/hostname"),
                best("topology.kubernetes.io/zone")
            ]
        );
        assert_eq!(
            spread(&asked),
            [(json!("rack"), json!("DoNotSchedule"), component.clone())]
        );
    }
    // The autoscaler sets the number of replicas, and Helm must not set it back.
    let replicas = |all: &[Value]| {
        let found = all
            .iter()
            .find(|object| object["kind"] == "Deployment" && object["metadata"]["name"] == "stellage-api");
        found.unwrap()["spec"].get("replicas").cloned()
    };
    assert_eq!((replicas(&usual), replicas(&asked)), (Some(json!(2)), None));
}

#[tokio::test]
async fn existing_secrets_reach_the_processes_that_need_them_and_there_are_none_otherwise() {
    let helm = Helm::alone().await;
    let secrets = |values: &Value, name: &str| -> BTreeSet<String> {
        let all = objects(&helm.template("stellage-system", values).unwrap());
        let spec = pods(&all, name)["spec"].clone();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let volumes = spec["volumes"].as_array().cloned().unwrap_or_default();
        let volumes = volumes.iter().map(|volume| text(&volume["secret"]["secretName"]));
        let variables = spec["containers"][0]["env"].as_array().unwrap().iter();
        let variables = variables
            .map(|variable| &variable["valueFrom"]["secretKeyRef"])
            .filter(|secret| !secret.is_null())
            .map(|secret| format!("{}:{}", text(&secret["name"]), text(&secret["key"])));
        volumes.chain(variables).collect()
    };
    let values = json!({
        "smtp": { "existingSecret": "mail", "existingSecretKey": "smtp-url", "caSecret": "mail-ca" },
        "receivers": { "caSecret": "receiver-ca" }, "tls": { "existingSecret": "tls" },
        "traces": { "existingSecret": "collector" }, "oidc": { "existingSecret": "login" },
        "api": { "settings": {
            "publicUrl": "https://cloud.example.com", "oidcIssuer": "https://login.example.com", "oidcClientId": "console",
        } },
    });
    for (name, wanted) in [
        ("stellage-api", "collector:headers login receiver-ca tls"),
        (
            "stellage-controller",
            "collector:headers mail-ca mail:smtp-url receiver-ca",
        ),
    ] {
        let found: Vec<String> = secrets(&values, name).into_iter().collect();
        assert_eq!(found.join(" "), wanted, "{name}");
        assert!(secrets(&json!({}), name).is_empty(), "{name}");
    }
}

/// Values with which the REST API takes the OpenID Connect provider from its environment.
fn login_by_env(mut issuer: Value) -> Value {
    issuer["name"] = json!("STELLAGE_OIDC_ISSUER");
    let id = json!({ "name": "STELLAGE_OIDC_CLIENT_ID", "value": "console" });
    json!({
        "api": { "settings": { "publicUrl": "https://cloud.example.com" }, "extraEnv": [issuer, id] },
        "oidc": { "existingSecret": "login" },
    })
}

#[tokio::test]
async fn the_network_policies_let_pods_call_what_the_values_name_and_nothing_of_it_otherwise() {
    let helm = Helm::alone().await;
    let render = |values: &Value| {
        let mut values = values.clone();
        values["networkPolicy"]["enabled"] = json!(true);
        objects(&helm.template("stellage-system", &values).unwrap())
    };
    let rules = |all: &[Value], name: &str, direction: &str| -> Vec<Value> {
        let policy = all
            .iter()
            .find(|object| object["kind"] == "NetworkPolicy" && object["metadata"]["name"] == name);
        policy.unwrap()["spec"][direction].as_array().unwrap().clone()
    };
    let usual = render(&json!({}));
    let block = |range: &str| json!({ "ipBlock": { "cidr": range } });
    let tcp = |port: u16, to: Value| json!({ "ports": [{ "protocol": "TCP", "port": port }], "to": to });
    let dns = |port: u16, range: &str| {
        let ports = ["UDP", "TCP"].map(|protocol| json!({ "protocol": protocol, "port": port }));
        json!({ "ports": ports, "to": [block(range)] })
    };
    let any_port = json!([{ "protocol": "TCP", "port": 1, "endPort": 65535 }]);
    let extra = json!({ "to": [{ "podSelector": { "matchLabels": { "app": "collector" } } }], "ports": [{ "port": 4318 }] });
    let login = json!({ "publicUrl": "https://cloud.example.com", "oidcClientId": "console", "oidcIssuer": "https://login.example.com" });
    for (values, of_api, of_controller) in [
        (
            json!({ "settings": { "receiverNameServer": ["10.0.0.53:5353", "[fd00::53]:53"] } }),
            vec![],
            vec![dns(5353, "10.0.0.53/32"), dns(53, "fd00::53/128")],
        ),
        (
            json!({ "settings": { "receiverAllow": ["10.1.2.3", "fd00::/8"] }, "networkPolicy": { "receiverRanges": ["10.9.0.0/16"] } }),
            vec![],
            vec![
                json!({ "ports": any_port, "to": [block("10.9.0.0/16"), block("10.1.2.3/32"), block("fd00::/8")] }),
            ],
        ),
        (
            json!({ "settings": { "receiverProxy": "http://ada:secret@10.4.0.1:4750" } }),
            vec![],
            vec![tcp(4750, json!([block("10.4.0.1/32")]))],
        ),
        (
            json!({ "settings": { "receiverProxy": "http://[fd00::7]" } }),
            vec![],
            vec![tcp(80, json!([block("fd00::7/128")]))],
        ),
        (
            json!({ "settings": { "receiverProxy": "http://proxy.example:4750" } }),
            vec![],
            vec![json!({ "ports": [{ "protocol": "TCP", "port": 4750 }] })],
        ),
        (
            json!({ "settings": { "receiverProxy": "http://proxy.example:4750" }, "networkPolicy": { "receiverRanges": ["10.4.0.1/32"] } }),
            vec![],
            vec![json!({ "ports": any_port, "to": [block("10.4.0.1/32")] })],
        ),
        (
            json!({ "settings": { "otlpEndpoint": "https://collector.example" } }),
            vec![json!({ "ports": [{ "protocol": "TCP", "port": 443 }] })],
            vec![json!({ "ports": [{ "protocol": "TCP", "port": 443 }] })],
        ),
        (
            json!({ "api": { "settings": login }, "oidc": { "existingSecret": "login" } }),
            vec![json!({ "ports": [{ "protocol": "TCP", "port": 443 }] })],
            vec![],
        ),
        // Values in `extraEnv` count as well, as far as they are known.
        (
            login_by_env(json!({ "value": "https://login.example.com:8443/realms/cloud" })),
            vec![json!({ "ports": [{ "protocol": "TCP", "port": 8443 }] })],
            vec![],
        ),
        (
            login_by_env(json!({ "valueFrom": { "secretKeyRef": { "name": "login", "key": "issuer" } } })),
            vec![json!({ "ports": [{ "protocol": "TCP", "port": 443 }] })],
            vec![],
        ),
        (
            json!({ "networkPolicy": { "mailRanges": ["10.1.0.0/16"], "mailPorts": [2525] } }),
            vec![],
            vec![tcp(2525, json!([block("10.1.0.0/16")]))],
        ),
        (
            json!({ "networkPolicy": { "extraEgress": [extra] } }),
            vec![extra.clone()],
            vec![extra.clone()],
        ),
    ] {
        let all = render(&values);
        for (name, wanted) in [("stellage-api", of_api), ("stellage-controller", of_controller)] {
            let usual = rules(&usual, name, "egress");
            let mut more = rules(&all, name, "egress");
            more.retain(|rule| !usual.contains(rule));
            assert_eq!(more, wanted, "{name} with {values}");
        }
    }
}

#[tokio::test]
async fn the_kubeconfig_of_a_region_is_mounted_as_a_folder_in_the_controllers_alone_and_they_may_call_its_api_server()
 {
    let helm = Helm::alone().await;
    let values = json!({
        "regions": { "de-fra-1": { "secretName": "frankfurt" } }, "existingCatalogue": "mine",
        "networkPolicy": { "enabled": true, "regionRanges": ["10.7.0.1/32"], "regionPorts": [16443] },
    });
    let egress = json!({
        "ports": [{ "protocol": "TCP", "port": 16443 }], "to": [{ "ipBlock": { "cidr": "10.7.0.1/32" } }],
    });
    for (mode, name, has_regions) in [
        ("split", "stellage-api", false),
        ("split", "stellage-controller", true),
        ("all", "stellage", true),
    ] {
        let mut values = values.clone();
        values["mode"] = json!(mode);
        let all = objects(&helm.template("stellage-system", &values).unwrap());
        let find = |kind: &str| {
            let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
            all.iter().find(is_it).unwrap()
        };
        let pod = &find("Deployment")["spec"]["template"]["spec"];
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let mount = list(&pod["containers"][0]["volumeMounts"])
            .into_iter()
            .find(|mount| mount["mountPath"] == "/etc/stellage/regions/de-fra-1");
        assert_eq!(mount.is_some(), has_regions, "{mode} {name}");
        if let Some(mount) = mount {
            // A single file would never be updated.
            assert_eq!(mount["subPath"], Value::Null);
            let volumes = list(&pod["volumes"]);
            let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]);
            assert_eq!(volume.unwrap()["secret"]["secretName"], "frankfurt");
        }
        let rules = list(&find("NetworkPolicy")["spec"]["egress"]);
        assert_eq!(rules.contains(&egress), has_regions, "{mode} {name}: {rules:#?}");
    }
}

#[tokio::test]
async fn the_console_gateway_is_one_replica_with_few_rights_and_other_secrets_of_regions() {
    let helm = Helm::alone().await;
    let mut values = json!({
        "consoleGateway": { "enabled": true },
        "regions": { "de-fra-1": { "secretName": "frankfurt" } }, "existingCatalogue": "mine",
        "ingress": { "enabled": true, "hosts": ["cloud.example.com"] },
    });
    let refused = helm.template("stellage-system", &values).unwrap_err();
    assert!(refused.contains("also needs api.settings.publicUrl"), "{refused}");
    values["api"] = json!({ "settings": { "publicUrl": "https://cloud.example.com/below" } });
    let refused = helm.template("stellage-system", &values).unwrap_err();
    assert!(
        refused.contains("also needs regions.de-fra-1.consoleSecretName"),
        "{refused}"
    );
    values["regions"]["de-fra-1"]["consoleSecretName"] = json!("frankfurt-consoles");
    let all = objects(&helm.template("stellage-system", &values).unwrap());
    let find = |kind: &str, name: &str| {
        let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
        all.iter().find(is_it).unwrap_or_else(|| panic!("{kind} {name}"))
    };
    let deployment = &find("Deployment", "stellage-console-gateway")["spec"];
    assert_eq!(
        (&deployment["replicas"], &deployment["strategy"]["type"]),
        (&json!(1), &json!("Recreate"))
    );
    let pod = &deployment["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], "stellage-console-gateway");
    let secrets = pod["volumes"].as_array().unwrap().iter();
    let secrets: Vec<&str> = secrets
        .filter_map(|volume| volume["secret"]["secretName"].as_str())
        .collect();
    assert_eq!(secrets, ["frankfurt-consoles"]);
    let mount = &pod["containers"][0]["volumeMounts"][1]["mountPath"];
    assert_eq!(mount, "/etc/stellage/regions/de-fra-1");

    let api = pods(&all, "stellage-api")["spec"]["containers"][0]["env"].clone();
    let url = json!({ "name": "STELLAGE_CONSOLE_GATEWAY_URL", "value": "wss://cloud.example.com/below/v1/console" });
    assert!(api.as_array().unwrap().contains(&url), "{api}");
    let paths = &find("Ingress", "stellage")["spec"]["rules"][0]["http"]["paths"];
    assert_eq!(paths[0]["path"], "/below/v1/console");
    assert_eq!(paths[0]["backend"]["service"]["name"], "stellage-console");
    assert_eq!(paths[1]["path"], "/below");

    let rights = |kind: &str, name: &str| {
        let rules = find(kind, name)["rules"].as_array().unwrap().clone();
        rules
            .iter()
            .map(|rule| format!("{} {}", rule["verbs"], rule["resources"]))
            .collect::<Vec<_>>()
            .join("; ")
    };
    assert_eq!(
        rights("ClusterRole", "stellage-console-gateway"),
        r#"["list","watch"] ["instances","apikeys"]; ["create"] ["events"]"#
    );
    assert_eq!(
        rights("Role", "stellage-console-tickets"),
        r#"["get"] ["secrets"]"#
    );
}
