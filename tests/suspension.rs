//! Suspended accounts: what their holders can still do, and what becomes of their servers.

use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use reqwest::Method;
use resources::{
    Account, ApiKey, Backup, Instance, InstanceState, KeyScope, Webhook, api_key::new_key, conditions,
};
use serde_json::{Value, json};

use crate::{
    console::Person,
    facade::contract::code,
    support::{
        self, Tenant, eventually, kubectl,
        receivers::{Answer, Receiver},
        shared, stellage, stellage_words,
    },
    tenants::tenant_of,
};

const REASON: &str = "invoice 2026-000042 is overdue";

/// What `/v1/account` says about the suspension.
async fn suspended(tenant: &Tenant) -> Value {
    let answer = tenant.call(Method::GET, "/v1/account", None).await;
    answer.json()["data"]["suspended"].clone()
}

/// Suspends the account, and waits until the facade and the namespace say so.
async fn suspend(tenant: &Tenant, options: &[&str]) {
    let suspend = ["account", "suspend", &tenant.namespace, "--reason", REASON];
    stellage_words(shared().await.plane, &[&suspend[..], options].concat()).unwrap();
    let is_stopping = options.contains(&"--stop-servers");
    let expected = json!({ "reason": REASON, "servers_stopped": is_stopping });
    let look = async || suspended(tenant).await;
    eventually("REST to show the suspension", look, |shown| *shown == expected).await;
    let namespaces: Api<Namespace> = Api::all(tenant.kube.clone());
    let annotations = async || {
        let namespace = namespaces.get(&tenant.namespace).await.unwrap();
        let of = |name: &str| namespace.annotations().get(name).cloned();
        (
            of("stellage.dev/suspended"),
            of("stellage.dev/suspended-servers").is_some(),
        )
    };
    let expected = (Some(REASON.to_owned()), is_stopping);
    eventually("the namespace to say so", annotations, |is| *is == expected).await;
}

async fn resume(tenant: &Tenant) {
    stellage(
        shared().await.plane,
        &format!("account resume {}", tenant.namespace),
    )
    .unwrap();
    let look = async || suspended(tenant).await;
    eventually("the suspension to end", look, Value::is_null).await;
}

async fn create(tenant: &Tenant, name: &str) -> String {
    let body = json!({ "name": name, "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
    let created = tenant.call(Method::POST, "/v1/instances", Some(&body)).await;
    assert_eq!(created.status, 201, "{created:?}");
    created.json()["data"]["id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_of_a_suspended_account_can_read_everything_change_nothing_through_rest_and_is_invoiced() {
    let tenant = Tenant::new("suspended-rest").await;
    let id = create(&tenant, "web").await;
    tenant.wait_for_state(&id, InstanceState::Running).await;
    suspend(&tenant, &[]).await;
    let invoiced = tenant.close_now().await;
    let invoices = tenant.wait_for_invoices(1).await;
    let lines = tenant.lines_of(&invoices[0]).await;
    assert_eq!(lines.iter().map(|line| &*line.name).collect::<Vec<_>>(), ["web"]);
    assert_eq!(invoices[0].spec.period.to, invoiced);
    let path = format!("/v1/instances/{id}");
    for read in [
        "/v1/instances",
        &path,
        "/v1/invoices/current",
        "/v1/events",
        "/v1/keys",
    ] {
        assert_eq!(tenant.call(Method::GET, read, None).await.status, 200, "{read}");
    }
    let order = json!({ "name": "web", "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
    let nonsense = json!({ "nonsense": true });
    for (method, path, body) in [
        (Method::POST, "/v1/instances", Some(&order)),
        // Before what is wrong with the request, its object or its state.
        (Method::POST, "/v1/instances", Some(&nonsense)),
        (Method::PATCH, "/v1/instances/i-0000000000000000", Some(&nonsense)),
        (Method::POST, &format!("{path}/start"), None),
        (Method::DELETE, &path, None),
        (Method::POST, "/v1/keys", None),
    ] {
        let refused = tenant.call(method.clone(), path, body).await;
        assert_eq!(
            (refused.status.as_u16(), code(&refused).as_str()),
            (403, "account_suspended"),
            "{method} {path}: {refused:?}"
        );
        let message = refused.json()["error"]["message"].to_string();
        assert!(message.contains(REASON), "{message}");
    }
    // That the key may not write at all goes before, and that there is no such path.
    let reader = support::new_key(shared().await.plane, &tenant.namespace, "read");
    let refused = async || {
        let request = tenant.http.post(format!("{}/v1/instances", tenant.url));
        let answer = request.bearer_auth(&reader).json(&order).send().await.unwrap();
        answer.json::<Value>().await.unwrap()["error"]["code"].clone()
    };
    eventually("the key to be known", refused, |code| *code == "token_readonly").await;
    assert_eq!(tenant.call(Method::POST, "/v1/nothing", None).await.status, 404);
    // The server is left as it is.
    assert_eq!(
        tenant.call(Method::GET, &path, None).await.json()["data"]["status"],
        "running"
    );
    resume(&tenant).await;
    assert_eq!(tenant.call(Method::DELETE, &path, None).await.status, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_of_a_suspended_account_can_change_nothing_with_kubectl_and_administrators_can() {
    let tenant = Tenant::new("suspended-kubectl").await;
    let client = tenant_of(&tenant, "sue@example.com").await;
    let theirs: Api<Instance> = Api::namespaced(client.clone(), &tenant.namespace);
    let mine = tenant.instances();
    mine.create(&PostParams::default(), &Instance::new("web", support::spec()))
        .await
        .unwrap();
    tenant.wait_for_state("web", InstanceState::Running).await;
    suspend(&tenant, &[]).await;
    let refused = |what: &str, outcome: kube::Result<()>| {
        let refused = outcome.unwrap_err().to_string();
        assert!(
            refused.contains(&format!("account suspended-kubectl is suspended: {REASON}")),
            "{what}: {refused}"
        );
    };
    let post = PostParams::default();
    // The API server may take a moment to see the annotation.
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let created = async || {
        theirs
            .create(&dry, &Instance::new("more", support::spec()))
            .await
            .map(drop)
    };
    let first = eventually("a create to be refused", created, Result::is_err);
    refused("create", first.await);
    let stop = Patch::Merge(json!({ "spec": { "powerState": "Stopped" } }));
    let patched = theirs.patch("web", &PatchParams::default(), &stop).await;
    refused("patch", patched.map(drop));
    let fault = json!({ "metadata": { "annotations": { "simulator.stellage.dev/fault": "crash" } } });
    let annotated = theirs
        .patch("web", &PatchParams::default(), &Patch::Merge(fault))
        .await;
    refused("annotate", annotated.map(drop));
    refused(
        "delete",
        theirs.delete("web", &DeleteParams::default()).await.map(drop),
    );
    let all = theirs
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await;
    refused("delete all", all.map(drop));
    let keys: Api<ApiKey> = Api::namespaced(client.clone(), &tenant.namespace);
    let key = ApiKey::new("mine", new_key(None, "uid", KeyScope::Write, None).1);
    refused("create a key", keys.create(&post, &key).await.map(drop));
    let backups: Api<Backup> = Api::namespaced(client.clone(), &tenant.namespace);
    let backup =
        serde_json::from_value(json!({ "metadata": { "name": "b" }, "spec": { "instance": "web" } }));
    refused("back up", backups.create(&post, &backup.unwrap()).await.map(drop));
    assert_eq!(theirs.list(&ListParams::default()).await.unwrap().items.len(), 1);
    // Administrators help.
    mine.patch("web", &PatchParams::default(), &stop).await.unwrap();
    tenant.wait_for_state("web", InstanceState::Stopped).await;
    let plane = shared().await.plane;
    let shown = kubectl(plane, &format!("get account {} -o wide", tenant.namespace), None).unwrap();
    assert!(shown.contains(REASON), "{shown}");
    resume(&tenant).await;
    let deleted = async || theirs.delete("web", &DeleteParams::default()).await.is_ok();
    eventually("a delete to be allowed again", deleted, |is| *is).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_a_suspended_account_stop_if_that_is_asked_for_and_start_again_afterwards() {
    let tenant = Tenant::new("suspended-off").await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    tenant
        .webhook(
            "all",
            &receiver.url("/"),
            &["instance.started", "instance.stopped"],
        )
        .await;
    let [on, off] = [create(&tenant, "on").await, create(&tenant, "off").await];
    for id in [&on, &off] {
        tenant.wait_for_state(id, InstanceState::Running).await;
    }
    let stopped = tenant
        .call(Method::POST, &format!("/v1/instances/{off}/stop"), None)
        .await;
    assert_eq!(stopped.status, 202, "{stopped:?}");
    tenant.wait_for_state(&off, InstanceState::Stopped).await;
    receiver.wait_for(3).await;
    suspend(&tenant, &["--stop-servers"]).await;
    let is_kept_off = |instance: Option<&Instance>| {
        instance
            .and_then(|instance| instance.status.as_ref())
            .is_some_and(|status| {
                let ready = conditions::find(&status.conditions, conditions::READY);
                status.state == Some(InstanceState::Stopped)
                    && ready.is_some_and(|ready| {
                        ready.reason == "AccountSuspended" && ready.message.contains(REASON)
                    })
            })
    };
    tenant.wait(&on, "the server to be kept off", is_kept_off).await;
    // The facade has a watch of its own.
    let path = format!("/v1/instances/{on}");
    let shown = async || tenant.call(Method::GET, &path, None).await.json()["data"].clone();
    eventually("REST to show it", shown, |shown| {
        shown["status"] == "stopped" && shown["status_reason"] == "account_suspended"
    })
    .await;
    // Webhooks go on.
    let told = receiver.wait_for(4).await;
    let last: Value = serde_json::from_slice(&told[3].body).unwrap();
    assert_eq!(last["type"], "instance.stopped");
    // What was created a moment before waits.
    tenant.apply("late", |_| {}).await;
    let waits = |instance: Option<&Instance>| {
        let status = instance.and_then(|instance| instance.status.as_ref());
        let ready = status.and_then(|status| conditions::find(&status.conditions, conditions::READY));
        ready.is_some_and(|ready| ready.reason == "AccountSuspended")
    };
    tenant.wait("late", "the new instance to wait", waits).await;
    resume(&tenant).await;
    for id in [on.as_str(), "late"] {
        tenant.wait_for_state(id, InstanceState::Running).await;
    }
    let still = tenant
        .call(Method::GET, &format!("/v1/instances/{off}"), None)
        .await;
    assert_eq!(still.json()["data"]["status"], "stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_shows_a_suspended_account_everything_and_lets_nobody_change_anything() {
    let tenant = Tenant::new("suspended-console").await;
    let id = create(&tenant, "web").await;
    tenant.wait_for_state(&id, InstanceState::Running).await;
    suspend(&tenant, &[]).await;
    let person = Person::with_key(&tenant.url, &tenant.key).await;
    for path in [
        "/console/instances".to_owned(),
        format!("/console/instances/{id}"),
        "/console/webhooks".to_owned(),
        "/console/keys".to_owned(),
        "/console/account".to_owned(),
    ] {
        let page = person.get(&path).await;
        page.is(200).shows(REASON).shows("This account is suspended");
        // Signing out is all that is left.
        assert_eq!(page.text.matches("method=\"post\"").count(), 1, "{path}");
    }
    for path in [
        "/console/instances".to_owned(),
        format!("/console/instances/{id}/power/stop"),
    ] {
        let page = person.post(&path, &[("name", "x")]).await;
        page.is(403).shows("account_suspended").shows(REASON);
    }
    person.get("/console/instances/new").await.is(403).shows(REASON);
    resume(&tenant).await;
    person
        .get("/console/instances")
        .await
        .is(200)
        .hides("This account is suspended")
        .shows("New instance");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_says_that_it_is_suspended_and_can_be_deleted() {
    let tenant = Tenant::new("suspended-gone").await;
    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    suspend(&tenant, &["--stop-servers"]).await;
    let accounts: Api<Account> = Api::all(tenant.kube.clone());
    let account = async || accounts.get(&tenant.namespace).await.unwrap();
    let of = |account: &Account| {
        let status = account.status.clone().unwrap_or_default();
        let found = conditions::find(&status.conditions, "Suspended").cloned();
        (
            found.map(|found| found.message),
            conditions::is_true(&status.conditions, conditions::READY),
        )
    };
    eventually("the condition", account, |account| {
        of(account) == (Some(REASON.to_owned()), true)
    })
    .await;
    let webhooks: Api<Webhook> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    tenant
        .webhook("orders", "https://example.com/", &["instance.created"])
        .await;
    accounts
        .delete(&tenant.namespace, &DeleteParams::default())
        .await
        .unwrap();
    let gone = async || accounts.get_opt(&tenant.namespace).await.unwrap();
    eventually("the account to go", gone, Option::is_none).await;
    let quotas: Api<ResourceQuota> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let left = async || {
        let quota = quotas.get_opt("stellage").await.unwrap().is_some();
        quota || webhooks.get_opt("orders").await.unwrap().is_some()
    };
    eventually("what it had to go", left, |left| !left).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_says_of_a_namespace_only_what_its_account_says() {
    let tenant = Tenant::new("suspended-forged").await;
    let operator = support::as_operator(shared().await.plane).await;
    let namespaces: Api<Namespace> = Api::all(operator);
    let annotate = async |annotations: Value| {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        let params = PatchParams::default();
        namespaces
            .patch_metadata(&tenant.namespace, &params, &patch)
            .await
    };
    for annotations in [
        json!({ "stellage.dev/suspended": "stolen" }),
        json!({ "stellage.dev/suspended-servers": "Stop" }),
    ] {
        let refused = annotate(annotations).await.unwrap_err().to_string();
        assert!(refused.contains("say what spec.suspended"), "{refused}");
    }
    suspend(&tenant, &["--stop-servers"]).await;
    let gone = json!({ "stellage.dev/suspended": null, "stellage.dev/suspended-servers": null });
    let refused = annotate(gone).await.unwrap_err().to_string();
    assert!(refused.contains("say what spec.suspended"), "{refused}");
}
