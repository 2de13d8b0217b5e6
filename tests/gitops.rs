//! What docs/gitops.md says: Argo CD's health checks, in Lua as it runs them, and which fields stay out of Git.

use std::{collections::BTreeMap, fs, path::Path};

use control_plane::Identity;
use kube::Resource as _;
use mlua::{Lua, Value as LuaValue};
use reqwest::Method;
use resources::{Account, Backup, Instance, InstanceState, PowerState, Webhook};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::{Tenant, eventually, kubectl, shared};

#[derive(Deserialize)]
struct Patch {
    data: BTreeMap<String, String>,
}

/// The health checks, by the keys of Argo CD's ConfigMap.
fn checks() -> BTreeMap<String, String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/argocd-cm.yaml");
    let patch: Patch = serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    patch.data
}

/// JSON as Argo CD shows it to a check: null is nil.
fn to_lua(lua: &Lua, value: &Value) -> LuaValue {
    match value {
        Value::Null => LuaValue::Nil,
        Value::Bool(is) => LuaValue::Boolean(*is),
        Value::Number(number) => LuaValue::Number(number.as_f64().unwrap()),
        Value::String(text) => LuaValue::String(lua.create_string(text).unwrap()),
        Value::Array(values) => {
            let values = values.iter().map(|value| to_lua(lua, value));
            LuaValue::Table(lua.create_sequence_from(values).unwrap())
        }
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| (name.as_str(), to_lua(lua, value)));
            LuaValue::Table(lua.create_table_from(fields).unwrap())
        }
    }
}

/// Status and message that the check of a kind gives an object.
fn health(kind: &str, object: &Value) -> (String, String) {
    let lua = Lua::new();
    lua.globals().set("obj", to_lua(&lua, object)).unwrap();
    let check = &checks()[&format!("resource.customizations.health.stellage.dev_{kind}")];
    let health: mlua::Table = lua
        .load(check)
        .eval()
        .unwrap_or_else(|error| panic!("{kind}: {error}"));
    (health.get("status").unwrap(), health.get("message").unwrap())
}

#[test]
fn argo_cd_has_a_health_check_for_every_kind_that_belongs_in_git() {
    let kinds = [
        Account::kind(&()),
        Backup::kind(&()),
        Instance::kind(&()),
        Webhook::kind(&()),
    ];
    let wanted = kinds.map(|kind| format!("resource.customizations.health.stellage.dev_{kind}"));
    let has: Vec<String> = checks().into_keys().collect();
    assert_eq!(has, wanted);
}

#[test]
fn argo_cd_shows_as_health_what_the_conditions_say() {
    let condition = |type_: &str, status: &str, reason: &str| {
        json!({
            "type": type_, "status": status, "reason": reason, "message": format!("{type_} {reason}"), "observedGeneration": 3,
        })
    };
    let settled = [
        condition("Reconciling", "False", "x"),
        condition("Stalled", "False", "x"),
    ];
    let with = |conditions: Vec<Value>| json!({ "metadata": { "name": "web", "generation": 3 }, "spec": {}, "status": { "conditions": conditions } });
    let and = |ready: Value| with([&settled[..], &[ready]].concat());
    let running = and(condition("Ready", "True", "Running"));
    let mut changed = running.clone();
    changed["metadata"]["generation"] = json!(4);
    for (object, status, message) in [
        (
            json!({ "metadata": { "generation": 1 }, "spec": {} }),
            "Progressing",
            "waiting for the operator",
        ),
        (
            json!({ "metadata": { "generation": 1 }, "status": { "state": "provisioning" } }),
            "Progressing",
            "waiting for the operator",
        ),
        (with(vec![]), "Progressing", "waiting for the operator"),
        (running, "Healthy", "Ready Running"),
        (changed, "Progressing", "waiting for the operator"),
        (
            with(vec![
                condition("Reconciling", "True", "Provisioning"),
                condition("Stalled", "False", "x"),
                condition("Ready", "False", "Provisioning"),
            ]),
            "Progressing",
            "Ready Provisioning",
        ),
        (
            and(condition("Ready", "Unknown", "ProviderFailed")),
            "Progressing",
            "Ready ProviderFailed",
        ),
        (
            with(vec![
                condition("Ready", "False", "Error"),
                condition("Stalled", "True", "Error"),
            ]),
            "Degraded",
            "Stalled Error",
        ),
        // A webhook has neither Reconciling nor Stalled.
        (
            with(vec![condition("Ready", "False", "Disabled")]),
            "Degraded",
            "Ready Disabled",
        ),
        (
            with(vec![condition("Ready", "True", "Inactive")]),
            "Suspended",
            "Ready Inactive",
        ),
    ] {
        let expected = (status.to_owned(), message.to_owned());
        assert_eq!(health("Instance", &object), expected, "{object}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_applied_from_git_is_healthy_once_it_runs_and_takes_back_no_operation_that_it_says_nothing_about()
 {
    let plane = shared().await.plane;
    let tenant = Tenant::new("gitops").await;
    let object = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "stellage.dev/v1", "kind": kind, "metadata": { "name": name, "namespace": "gitops" }, "spec": spec,
        })
    };
    let web = object(
        "Instance",
        "web",
        json!({ "plan": "starter", "region": "fr-par-1", "image": "debian-13" }),
    );
    let sync = || {
        let apply = "apply --server-side --field-manager=argocd-controller -f -";
        kubectl(plane, apply, Some(&web.to_string())).unwrap();
    };
    let stored = async |path: &str| {
        let client = plane.client(Identity::Admin).await.unwrap();
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        client.request::<Value>(request).await.unwrap()
    };
    sync();
    let look = async || {
        health(
            "Instance",
            &stored("/apis/stellage.dev/v1/namespaces/gitops/instances/web").await,
        )
    };
    eventually("the instance to be healthy", look, |(status, _)| {
        status == "Healthy"
    })
    .await;
    let account = health("Account", &stored("/apis/stellage.dev/v1/accounts/gitops").await);
    assert_eq!(account.0, "Healthy", "{account:?}");

    let id = tenant.all_instances().await[0].id();
    let stop = format!("/v1/instances/{id}/stop");
    assert_eq!(tenant.call(Method::POST, &stop, None).await.status, 202);
    tenant.wait_for_state("web", InstanceState::Stopped).await;
    sync();
    let web = tenant.all_instances().await.remove(0);
    assert_eq!(web.spec.power_state, PowerState::Stopped);
    eventually(
        "it to be healthy, stopped as requested",
        look,
        |(status, message)| status == "Healthy" && message.contains("stopped, as requested"),
    )
    .await;
}
