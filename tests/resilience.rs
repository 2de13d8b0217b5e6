//! Failures in production: the controller dies, the provider hangs, objects do not match their schema, the CRDs are missing.

use std::{
    collections::BTreeSet,
    net::TcpListener,
    path::Path,
    time::{Duration, Instant},
};

use control_plane::{ControlPlane, Identity};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use providers::simulator::FAULT_ANNOTATION;
use rand::RngExt as _;
use reqwest::{Method, StatusCode};
use resources::{Instance, InstanceState, PowerState, conditions};
use serde_json::{Value, json};

use crate::support::{
    Change as _, Operator, Tenant, bare_plane, eventually, install, install_rights, own_plane,
    spawn_operator, stellage,
};

fn settled(instance: &Instance) -> bool {
    let Some(status) = &instance.status else {
        return false;
    };
    status.observed_generation == instance.metadata.generation
        && status.operation.is_none()
        && status.state.is_some()
}

#[tokio::test]
async fn a_controller_that_is_killed_again_and_again_loses_no_transition_and_makes_no_second_server() {
    const INSTANCES: usize = 50;
    const ROUNDS: usize = 4;
    /// Number of instances that are created in each round and deleted in the next.
    const PASSING: usize = 5;
    let plane = own_plane().await;
    let arguments = ["run", "--provisioning-seconds", "2"];
    let mut operator = Operator::start(&plane, &arguments).await;
    let tenant = Tenant::on(&plane, &operator, "killed").await;
    for i in 0..INSTANCES {
        tenant.apply(&format!("web-{i}"), |_| {}).await;
    }
    let mut addresses = std::collections::HashMap::new();
    for round in 0..ROUNDS {
        // Every instance goes through one more transition, while the controller dies at random points.
        let changes = async {
            for i in 0..INSTANCES {
                let nonce = format!("2026-11-21T10:{round:02}:{i:02}Z");
                let change = match (i + round) % 5 {
                    0 => json!({ "powerState": "Stopped" }),
                    1 => json!({ "powerState": "Running", "rebootRequestedAt": nonce }),
                    2 => {
                        json!({ "powerState": "Running", "plan": if round % 2 == 0 { "business" } else { "starter" } })
                    }
                    3 => json!({ "rebuildRequestedAt": nonce }),
                    _ => json!({ "powerState": "Stopped", "powerOffRequestedAt": nonce }),
                };
                let patch = json!({ "spec": change });
                tenant.merge(&format!("web-{i}"), &patch).await;
            }
        };
        let passing = async {
            for i in 0..PASSING {
                tenant.apply(&format!("passing-{round}-{i}"), |_| {}).await;
                if let Some(last) = round.checked_sub(1) {
                    let name = format!("passing-{last}-{i}");
                    tenant
                        .instances()
                        .delete(&name, &DeleteParams::default())
                        .await
                        .unwrap();
                }
            }
        };
        let deaths = async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_millis(rand::rng().random_range(50..700))).await;
                operator.die(&plane).await;
                operator = Operator::start(&plane, &arguments).await;
            }
        };
        tokio::join!(changes, passing, deaths);
        for instance in tenant.all_instances().await {
            if let Some(ip) = instance.status.as_ref().and_then(|s| s.ip_address.clone()) {
                let known = addresses.entry(instance.name_any()).or_insert_with(|| ip.clone());
                assert_eq!(known, &ip, "an address changed");
            }
        }
    }
    let instances = eventually(
        "all to settle",
        async || tenant.all_instances().await,
        |all| all.iter().all(settled),
    )
    .await;
    let left = INSTANCES + PASSING;
    let instances = if instances.len() == left {
        instances
    } else {
        let all = async || tenant.all_instances().await;
        eventually("the deleted ones to go", all, |all| all.len() == left).await
    };
    for instance in &instances {
        let status = instance.status.as_ref().unwrap();
        assert_eq!(status.power, Some(instance.spec.power_state), "{instance:#?}");
        let state = if instance.spec.power_state == PowerState::Running {
            InstanceState::Running
        } else {
            InstanceState::Stopped
        };
        assert_eq!(status.state, Some(state));
        assert_eq!(status.plan, Some(instance.spec.plan));
        assert_eq!(status.reboot_requested_at, instance.spec.reboot_requested_at);
        assert_eq!(status.rebuild_requested_at, instance.spec.rebuild_requested_at);
    }
    let distinct: BTreeSet<_> = instances
        .iter()
        .filter_map(|i| i.status.as_ref()?.ip_address.clone())
        .collect();
    assert_eq!(
        distinct.len(),
        left,
        "each instance has one server with one address"
    );
    operator.stop().await;
}

#[tokio::test]
async fn two_hundred_hanging_instances_of_one_account_hold_up_no_other_account() {
    const HANGING: u32 = 200;
    /// A quarter of the slots is for instances whose last provider call failed, and an account gets half of those.
    const SUSPECTS: u32 = 32 / 4 / 2;
    let plane = own_plane().await;
    // With a timeout of five minutes for provider calls, anything queued behind a hanging one would be late.
    let arguments = |seconds| {
        [
            "run",
            "--provisioning-seconds=0",
            "--concurrency=32",
            "--provider-timeout-seconds",
            seconds,
        ]
    };
    let mut operator = Operator::start(&plane, &arguments("300")).await;
    let hanging = Tenant::on(&plane, &operator, "hanging").await;
    let other = Tenant::on(&plane, &operator, "other").await;
    futures::StreamExt::for_each_concurrent(futures::stream::iter(0..HANGING), 16, |i| {
        let hanging = &hanging;
        async move {
            let hangs = |instance: &mut Instance| {
                let fault = (FAULT_ANNOTATION.to_owned(), "unreachable".to_owned());
                instance.annotations_mut().extend([fault]);
            };
            hanging.apply(&format!("web-{i}"), hangs).await;
        }
    })
    .await;
    let accepted = async || {
        let provisioning = ListParams::default().fields("status.state=provisioning");
        let list = hanging.instances().list_metadata(&provisioning).await.unwrap();
        list.items.len()
    };
    eventually("all slots of the account to be taken", accepted, |accepted| {
        *accepted >= 16
    })
    .await;
    // Anything that takes long waits for five minutes.
    let begun = Instant::now();
    operate(&other, "first").await;
    let while_they_hang = begun.elapsed();
    assert!(while_they_hang < PROMPT, "operated after {while_they_hang:?}");

    operator.die(&plane).await;
    operator = Operator::start(&plane, &arguments("1")).await;
    let timed_out = |i: &Instance| {
        let conditions = i
            .status
            .as_ref()
            .map(|s| s.conditions.as_slice())
            .unwrap_or_default();
        conditions::find(conditions, conditions::READY).is_some_and(|c| c.reason == "ProviderTimeout")
    };
    eventually(
        "those that hang to say so",
        async || {
            let all = hanging.all_instances().await;
            all.iter().filter(|i| timed_out(i)).count()
        },
        |timed_out| *timed_out == HANGING as usize,
    )
    .await;
    // From now on they have only the slots for instances that have failed, even if all are due again, and the account's
    // other instances have theirs.
    let calls = async || {
        operator
            .metric("stellage_provider_calls_total", "ProviderTimeout")
            .await
    };
    let begun = Instant::now();
    let before = calls().await;
    operate(&hanging, "healthy").await;
    operate(&other, "second").await;
    let took = begun.elapsed();
    assert!(took < 2 * PROMPT, "operated after {took:?}");
    let asked = calls().await - before;
    let most = f64::from(SUSPECTS) * (begun.elapsed().as_secs_f64() + 2.0);
    assert!(asked <= most, "{asked} calls that hang in {took:?}");
    println!(
        "operated in {while_they_hang:.1?} while {HANGING} hung, then two in {took:.1?} and {asked} calls that hung"
    );
    operator.stop().await;
}

/// How long a busy machine may take for a create, a stop and a start that wait for nothing.
const PROMPT: Duration = Duration::from_secs(120);

/// Creates an instance, stops it and starts it.
async fn operate(tenant: &Tenant, name: &str) {
    tenant.apply(name, |_| {}).await;
    tenant.wait_for_state(name, InstanceState::Running).await;
    for (power, state) in [
        ("Stopped", InstanceState::Stopped),
        ("Running", InstanceState::Running),
    ] {
        let patch = json!({ "spec": { "powerState": power } });
        tenant.merge(name, &patch).await;
        tenant.wait_for_state(name, state).await;
    }
}

#[tokio::test]
async fn an_object_that_does_not_parse_is_told_so_and_stops_nobody_else() {
    let plane = own_plane().await;
    let mut operator = Operator::start(&plane, &["run", "--provisioning-seconds", "0"]).await;
    let tenant = Tenant::on(&plane, &operator, "poison").await;
    tenant.apply("good", |_| {}).await;
    tenant.apply("bad", |_| {}).await;
    tenant.wait_for_state("bad", InstanceState::Running).await;
    // An old schema, which accepts anything in the spec.
    let crds: Api<CustomResourceDefinition> = Api::all(tenant.kube.clone());
    let mut lax = crds.get("instances.stellage.dev").await.unwrap();
    let schema = lax.spec.versions[0]
        .schema
        .as_mut()
        .and_then(|s| s.open_api_v3_schema.as_mut())
        .unwrap();
    let anything = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    schema
        .properties
        .as_mut()
        .unwrap()
        .insert("spec".into(), serde_json::from_value(anything).unwrap());
    // Remove the other parts of the schema that refer to fields of the spec.
    schema.x_kubernetes_validations = None;
    lax.spec.versions[0].selectable_fields = None;
    lax.metadata.managed_fields = None;
    crds.replace("instances.stellage.dev", &PostParams::default(), &lax)
        .await
        .unwrap();
    let poison = json!({ "spec": { "plan": 7, "tags": "none" } });
    let raw: Api<kube::core::DynamicObject> = Api::namespaced_with(
        tenant.kube.clone(),
        "poison",
        &kube::api::ApiResource::erase::<Instance>(&()),
    );
    eventually(
        "the lax schema",
        async || {
            raw.patch("bad", &PatchParams::default(), &Patch::Merge(&poison))
                .await
                .map_err(|e| e.to_string())
        },
        Result::is_ok,
    )
    .await
    .unwrap();
    let ready = eventually(
        "the condition",
        async || {
            let object = raw.get("bad").await.unwrap();
            let conditions = object
                .data
                .pointer("/status/conditions")
                .cloned()
                .unwrap_or(Value::Null);
            conditions
                .as_array()
                .and_then(|list| list.iter().find(|c| c["type"] == "Ready").cloned())
        },
        |ready| ready.as_ref().is_some_and(|c| c["reason"] == "Unreadable"),
    )
    .await
    .unwrap();
    let message = ready["message"].as_str().unwrap();
    assert!(
        message.contains("spec.plan: ") || message.contains("spec.tags: "),
        "{message}"
    );
    assert!(
        operator
            .metric("stellage_invalid_objects_total", "Instance")
            .await
            >= 1.0
    );
    // Others are processed, now and after a restart that lists the broken object.
    for restart in [false, true] {
        if restart {
            operator.stop().await;
            operator = Operator::start(&plane, &["run", "--provisioning-seconds", "0"]).await;
        }
        let name = format!("new-{restart}");
        tenant.apply(&name, |_| {}).await;
        tenant.wait_for_state(&name, InstanceState::Running).await;
    }
    // Once fixed, it is processed again.
    let mended = json!({ "spec": { "plan": "business", "tags": null } });
    raw.merge("bad", &mended).await;
    tenant
        .wait("bad", "the mended one", |instance: Option<&Instance>| {
            instance.and_then(|i| i.status.as_ref()).is_some_and(|s| {
                s.plan.is_some_and(|plan| plan.as_str() == "business")
                    && s.state == Some(InstanceState::Running)
            })
        })
        .await;
    operator.stop().await;
}

#[tokio::test]
async fn a_process_that_is_started_before_the_crds_says_what_it_waits_for_and_serves_once_they_are_there() {
    let plane = bare_plane(ControlPlane::options()).await;
    install_rights(&plane);
    // Free, and at an address that nothing else uses, so that it stays free.
    let address = {
        let listener = TcpListener::bind("127.0.0.9:0").unwrap();
        listener.local_addr().unwrap()
    };
    let metrics = format!("--metrics-listen={address}");
    let arguments = ["run", &metrics, "--provisioning-seconds=0"];
    let process = spawn_operator(&plane, &arguments, &plane.kubeconfig(Identity::Operator));
    let ask = async |path: &str| {
        let answer = reqwest::get(format!("http://{address}{path}")).await.ok()?;
        let status = answer.status();
        Some((status, answer.text().await.ok()?))
    };
    let kinds = [
        "Account", "ApiKey", "Backup", "Delivery", "Instance", "Invoice", "Webhook",
    ];
    let waits = |kind: &str, text: &str| {
        let begin = format!("watch {kind}: ");
        let mut lines = text.lines();
        lines.any(|line| line.starts_with(&begin) && line.contains("are the CRDs installed?"))
    };
    eventually(
        "every kind to be named",
        async || ask("/readyz").await,
        |answer| {
            answer.as_ref().is_some_and(|(status, text)| {
                assert_eq!(*status, StatusCode::SERVICE_UNAVAILABLE, "{text}");
                kinds.iter().all(|kind| waits(kind, text))
            })
        },
    )
    .await;
    // It has requested them by now, and does not give up.
    let errors = async || {
        let (_, page) = ask("/metrics").await?;
        let has_failed = |kind: &&str| {
            let counter = format!("stellage_watch_errors_total{{kind=\"{kind}\"}} ");
            let mut lines = page.lines();
            lines.any(|line| line.strip_prefix(&counter).is_some_and(|count| count != "0"))
        };
        Some(kinds.iter().filter(|kind| has_failed(kind)).count())
    };
    eventually("every watch to fail", errors, |failed| {
        *failed == Some(kinds.len())
    })
    .await;
    assert_eq!(ask("/healthz").await.unwrap().0, StatusCode::OK);
    assert_eq!(ask("/readyz").await.unwrap().0, StatusCode::SERVICE_UNAVAILABLE);

    install(&plane);
    let mut operator = Operator::serving(process).await;
    assert_eq!(ask("/readyz").await.unwrap().0, StatusCode::OK);
    let tenant = Tenant::on(&plane, &operator, "early").await;
    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    operator.stop().await;
}

#[tokio::test]
async fn after_a_first_install_only_creates_wait_until_kubernetes_counts_the_quota_and_are_told_how_long() {
    // As in a real cluster, kube-controller-manager is there before the CRDs.
    let plane = bare_plane(ControlPlane::options()).await;
    install(&plane);
    let mut operator = Operator::start(&plane, &["run", "--provisioning-seconds=0"]).await;
    let arguments = "account create ada --email ada@example.com --instance-quota 1 --no-wait";
    stellage(&plane, arguments).unwrap();
    let key = stellage(&plane, "key create --account ada").unwrap();
    let url = format!("{}/v1/instances", operator.url);
    let http = reqwest::Client::new();
    let list = async || {
        let answer = http.get(&url).bearer_auth(key.trim()).send().await.unwrap();
        answer.status()
    };
    eventually("the key to be known", list, |status| *status == StatusCode::OK).await;

    let instance = json!({ "name": "web", "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
    let create = async || {
        let request = http.post(&url).bearer_auth(key.trim()).json(&instance);
        let answer = request.send().await.unwrap();
        let status = answer.status();
        let text = answer.text().await.unwrap();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            assert!(text.contains("up to 40 s after an installation"), "{text}");
            assert_eq!(list().await, StatusCode::OK);
            stellage(&plane, "key create --account ada").unwrap();
        }
        status
    };
    eventually("a create to be accepted", create, |status| {
        *status == StatusCode::CREATED
    })
    .await;
    operator.stop().await;
}

/// Copies etcd's data, or puts it back, while neither etcd nor the API server runs.
pub async fn with_servers_stopped(plane: &ControlPlane, act: impl FnOnce()) {
    plane.kill_apiserver().unwrap();
    plane.kill_etcd().unwrap();
    act();
    plane.start_etcd().await.unwrap();
    plane.start_apiserver().await.unwrap();
}

pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[tokio::test]
async fn etcd_put_back_to_an_older_state_is_noticed_and_the_operator_starts_afresh_with_that() {
    // An API server that has just started refuses what it has not read the rights for.
    let plane = own_plane().await.expecting_refusals();
    let arguments = ["run", "--provisioning-seconds", "1"];
    let mut operator = Operator::start(&plane, &arguments).await;
    let mut tenant = Tenant::on(&plane, &operator, "back").await;
    tenant.apply("old", |_| {}).await;
    tenant.wait_for_state("old", InstanceState::Running).await;
    tenant.wait_for_clear_outboxes().await;
    let etcd = plane.folder().join("etcd");
    let backup = plane.folder().join("etcd-backup");
    with_servers_stopped(&plane, || copy_folder(&etcd, &backup)).await;
    // An API server that was away for a while is none that was put back.
    tenant.power("old", "Stopped").await;
    tenant.wait_for_state("old", InstanceState::Stopped).await;
    tenant.apply("lost", |_| {}).await;
    tenant.wait_for_state("lost", InstanceState::Running).await;
    tenant.wait_for_clear_outboxes().await;
    assert!(operator.ended().is_none());

    let put_back = || {
        std::fs::remove_dir_all(&etcd).unwrap();
        std::fs::rename(&backup, &etcd).unwrap();
    };
    with_servers_stopped(&plane, put_back).await;
    let ended = async || operator.ended();
    let status = eventually("the operator to end", ended, Option::is_some).await;
    assert_eq!(status.unwrap().code(), Some(1));
    assert!(operator.log().contains("put back to an older state"));

    // As Kubernetes does with a container that has ended.
    operator = Operator::start(&plane, &arguments).await;
    tenant.url = operator.url.clone();
    let list = tenant.call(Method::GET, "/v1/instances", None).await.json();
    assert_eq!(
        (&list["data"][0]["name"], &list["pagination"]["total"]),
        (&json!("old"), &json!(1))
    );
    tenant.wait_for_state("old", InstanceState::Running).await;
    tenant.power("old", "Stopped").await;
    tenant.wait_for_state("old", InstanceState::Stopped).await;
    let new = json!({ "name": "new", "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
    let new = tenant
        .call(Method::POST, "/v1/instances", Some(&new))
        .await
        .json();
    let name = new["data"]["id"].as_str().unwrap();
    tenant.wait_for_state(name, InstanceState::Running).await;
    operator.stop().await;
}
