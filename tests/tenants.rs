//! What separates accounts from each other, and from what only the operator may write.

use std::collections::BTreeMap;

use control_plane::{ControlPlane, Identity};
use k8s_openapi::{api::rbac::v1::RoleBinding, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions},
};
use reqwest::Method;
use resources::api_key::new_key;
use resources::{
    ApiKey, Backup, BackupPhase, Delivery, EventLog, Instance, InstanceState, KeyScope, PrivateNetwork,
    Webhook,
};
use serde_json::{Value, json};

use crate::{
    support::{self, Change as _, Tenant, eventually, stellage},
    webhooks::SECRET,
};

#[tokio::test(flavor = "multi_thread")]
async fn an_api_key_that_would_break_the_list_of_keys_or_the_terminal_is_refused() {
    let tenant = Tenant::new("keys-refused").await;
    let plane = support::shared().await.plane;
    let manifest = |field: &str, value: &str| {
        let mut object = json!(ApiKey::new("key", new_key(None, "uid", KeyScope::Write, None).1));
        object["spec"][field] = json!(value);
        object.to_string()
    };
    for (field, value, why) in [
        ("expiresAt", "2027-02-30T00:00:00Z", "a day that exists"),
        ("expiresAt", "2027-02-29T00:00:00Z", "a day that exists"),
        ("expiresAt", "9999-12-29T23:59:59-23:59", "before the year 9000"),
        ("expiresAt", "2027-02-28", "RFC 3339"),
        ("lastCharacters", "\u{1b}[2J", "visible ASCII"),
    ] {
        let refused = support::kubectl(
            plane,
            &format!("-n {} create -f -", tenant.namespace),
            Some(&manifest(field, value)),
        );
        let refused = refused.unwrap_err();
        assert!(
            refused.contains(&format!("spec.{field}")) && refused.contains(why),
            "{value}: {refused}"
        );
    }
    for fine in ["2028-02-29T00:00:00Z", "2027-12-31T23:59:59+14:00"] {
        let arguments = format!("-n {} create --dry-run=server -f -", tenant.namespace);
        support::kubectl(plane, &arguments, Some(&manifest("expiresAt", fine))).unwrap();
    }
}

/// A Delivery for this webhook, `finished` or `pending`, as one that is gone has left it.
fn left_delivery(webhook: &str, what: &str, owner: Option<OwnerReference>) -> Delivery {
    let is_finished = what == "finished";
    let mut labels = json!({ "stellage.dev/webhook": webhook });
    if is_finished {
        labels["stellage.dev/finished"] = json!("true");
    }
    serde_json::from_value(json!({
        "apiVersion": "stellage.dev/v1", "kind": "Delivery",
        "metadata": {
            "name": format!("dlv-{what:0<16}"), "labels": labels, "ownerReferences": Vec::from_iter(owner),
        },
        "spec": {
            "webhook": webhook, "eventId": "evt_left", "eventType": "instance.created",
            "eventCreatedAt": "2026-11-21T10:00:00Z", "body": "{\"of\":\"another\"}",
        },
        "status": { "phase": if is_finished { "Exhausted" } else { "Pending" } },
    }))
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_owed_to_a_webhook_that_is_gone_is_neither_sent_to_nor_shown_for_the_next_one_of_its_name() {
    let tenant = Tenant::new("left-deliveries").await;
    let operator = support::as_operator(support::shared().await.plane).await;
    let deliveries: Api<Delivery> = Api::namespaced(operator, &tenant.namespace);
    // As `kubectl delete webhook orders --cascade=orphan` leaves them.
    for what in ["pending", "finished"] {
        let left = left_delivery("orders", what, None);
        deliveries.create(&PostParams::default(), &left).await.unwrap();
    }
    let receiver = support::receivers::Receiver::start(|_| support::receivers::Answer::ok()).await;
    let webhook = tenant
        .webhook("orders", &receiver.url("/"), &["instance.created"])
        .await;
    tenant.apply("web", |_| {}).await;
    let got = receiver.wait_for(1).await;
    let sent: Vec<Value> = got
        .iter()
        .map(|it| serde_json::from_slice(&it.body).unwrap())
        .collect();
    assert_eq!((sent.len(), &sent[0]["type"]), (1, &json!("instance.created")));
    let path = format!("/v1/webhooks/{}/deliveries", webhook.id());
    let list = async || tenant.call(Method::GET, &path, None).await.json()["data"].clone();
    let is_logged = |shown: &Value| shown.as_array().is_some_and(|shown| !shown.is_empty());
    let shown = eventually("the delivery to be shown", list, is_logged).await;
    let events: Vec<_> = shown
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["event_id"])
        .collect();
    assert_eq!(events, [&sent[0]["id"]]);
    for what in ["pending", "finished"] {
        let one = format!("{path}/dlv_{what:0<16}");
        assert_eq!(tenant.call(Method::GET, &one, None).await.status, 404);
    }
    // Such a delivery would count towards no bound; a finished one is deleted later.
    let pending = async || deliveries.get_opt("dlv-pending000000000").await.unwrap();
    eventually("what is still owed to go", pending, Option::is_none).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_takes_its_deliveries_away_from_a_webhook() {
    let tenant = Tenant::new("deliveries-stay").await;
    let webhook = tenant
        .webhook("orders", "https://example.com/", &["instance.created"])
        .await;
    let client = tenant_of(&tenant, "eve@example.com").await;
    let theirs: Api<Webhook> = Api::namespaced(client.clone(), &tenant.namespace);
    let is_refused = |what: &str, refused: String| {
        assert!(
            refused.contains("the deliveries of a webhook are deleted with it"),
            "{what}: {refused}"
        );
    };
    for api in [&theirs, &tenant.webhooks()] {
        let refused = api.delete("orders", &DeleteParams::orphan()).await;
        is_refused("a deletion", refused.map(drop).unwrap_err().to_string());
        let mut other = webhook.clone();
        other.metadata = ObjectMeta {
            name: Some("other".to_owned()),
            finalizers: Some(vec!["orphan".to_owned()]),
            ..ObjectMeta::default()
        };
        let refused = api.create(&PostParams::default(), &other).await;
        is_refused("a create", refused.unwrap_err().to_string());
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": ["orphan"] } }));
        let refused = api.patch("orders", &PatchParams::default(), &patch).await;
        is_refused("a patch", refused.unwrap_err().to_string());
    }
    let path = format!("/apis/stellage.dev/v1/namespaces/{}/webhooks", tenant.namespace);
    let options = [
        json!({ "orphanDependents": true }),
        json!({ "propagationPolicy": "Orphan" }),
    ];
    for (path, mut options) in [path.clone() + "/orders", path].iter().zip(options) {
        options["kind"] = json!("DeleteOptions");
        options["apiVersion"] = json!("v1");
        let request = http::Request::delete(path).header("content-type", "application/json");
        let request = request.body(options.to_string().into_bytes()).unwrap();
        let refused = client.request::<Value>(request).await;
        is_refused(path, refused.unwrap_err().to_string());
    }
    // The garbage collector removes the finalizer that this adds.
    theirs
        .delete("orders", &DeleteParams::foreground())
        .await
        .unwrap();
    let gone = async || theirs.get_opt("orders").await.unwrap();
    eventually("the webhook to go", gone, Option::is_none).await;
}

/// A user who may do everything in one namespace.
pub async fn tenant_of(tenant: &Tenant, user: &str) -> Client {
    let plane = support::shared().await.plane;
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": { "name": user },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
    }))
    .unwrap();
    let bindings: Api<RoleBinding> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    let mut config = plane.config(Identity::Admin).await.unwrap();
    config.auth_info.impersonate = Some(user.to_owned());
    let client = Client::try_from(config).unwrap();
    let theirs: Api<Instance> = Api::namespaced(client.clone(), &tenant.namespace);
    eventually(
        "the binding to count",
        async || theirs.list(&ListParams::default()).await.is_ok(),
        |may| *may,
    )
    .await;
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_operator_and_administrators_say_which_object_it_is() {
    let tenant = Tenant::new("origin").await;
    let client = tenant_of(&tenant, "ada@example.com").await;
    let instances: Api<Instance> = Api::namespaced(client, &tenant.namespace);
    let annotated =
        |origin: Option<&str>| json!({ "metadata": { "annotations": { "stellage.dev/origin": origin } } });
    let theirs = annotated(Some("5d3c9d6e-0000-4000-8000-000000000001 2026-11-21T10:00:00Z"));
    let mut forged = Instance::new("forged", support::spec());
    forged.metadata.annotations = serde_json::from_value(theirs["metadata"]["annotations"].clone()).unwrap();
    let refused = instances
        .create(&PostParams::default(), &forged)
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("administrators alone"), "{refused}");
    let params = PatchParams::default();
    let made = instances
        .create(&PostParams::default(), &Instance::new("web", support::spec()))
        .await
        .unwrap();
    let own = format!(
        "{} {}",
        made.metadata.uid.unwrap(),
        made.metadata.creation_timestamp.unwrap().0
    );
    let look = async || {
        let web = instances.get("web").await.unwrap();
        web.annotations().get("stellage.dev/origin").cloned()
    };
    eventually("the operator to write it", look, |is| is.as_ref() == Some(&own)).await;
    let refused = instances
        .patch("web", &params, &Patch::Merge(&theirs))
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("administrators alone"), "{refused}");
    let other = json!({ "metadata": { "annotations": { "theirs": "1" } } });
    instances.merge("web", &other).await;
    // What kubectl replace takes away comes back.
    let none = annotated(None);
    instances.merge("web", &none).await;
    eventually("the operator to write it again", look, |is| {
        is.as_ref() == Some(&own)
    })
    .await;
    // Without its own, this object would be another one.
    tenant.merge("web", &theirs).await;
    let refused = instances
        .patch("web", &params, &Patch::Merge(&none))
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("administrators alone"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_operator_creates_deliveries_and_writes_what_it_has_observed() {
    let tenant = Tenant::new("operator-only").await;
    let receiver = support::receivers::Receiver::start(|_| support::receivers::Answer::ok()).await;
    tenant
        .webhook("hook", &receiver.url("/"), &["instance.created"])
        .await;
    let client = tenant_of(&tenant, "ada@example.com").await;
    let deliveries: Api<Delivery> = Api::namespaced(client.clone(), &tenant.namespace);
    let webhooks: Api<Webhook> = Api::namespaced(client, &tenant.namespace);

    let status = json!({ "status": { "delivered": 7, "disabled": null } });
    for api in [&webhooks, &tenant.webhooks()] {
        let refused = api
            .patch_status("hook", &PatchParams::default(), &Patch::Merge(&status))
            .await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("written by the operator alone"), "{refused}");
    }
    let keys: Api<ApiKey> = Api::namespaced(webhooks.clone().into_client(), &tenant.namespace);
    let administrators: Api<ApiKey> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    let mut forged = ApiKey::new("forged", new_key(None, "uid", KeyScope::Read, None).1);
    forged.status = Some(serde_json::from_value(json!({ "lastUsedOn": "2026-11-21" })).unwrap());
    for api in [&keys, &administrators] {
        let made = api.create(&PostParams::default(), &forged).await.unwrap();
        assert_eq!(made.last_used_on(), None, "the status of a new key is dropped");
        let status = Patch::Merge(json!({ "status": forged.status }));
        let patched = api.patch("forged", &PatchParams::default(), &status).await;
        assert_eq!(patched.unwrap().last_used_on(), None);
        let refused = api.patch_status("forged", &PatchParams::default(), &status).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("written by the operator alone"), "{refused}");
        api.delete("forged", &DeleteParams::default()).await.unwrap();
    }
    let delivery = |test: bool, body: &str, status: Value| -> Delivery {
        let name = tenant.namespace.len().to_string() + "-forged";
        let mut object = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Delivery", "metadata": { "name": name },
            "spec": {
                "webhook": "hook", "eventId": "evt_test_abcdefgh01234567", "eventType": "instance.created",
                "eventCreatedAt": "2026-11-21T10:00:00Z", "body": body, "test": test,
            },
        });
        if !status.is_null() {
            object["status"] = status;
        }
        serde_json::from_value(object).unwrap()
    };
    let logged = |body: &str, status: Value| {
        let mut request = delivery(false, body, status);
        let page = ("stellage.dev/logged-in".to_owned(), "evlog-1".to_owned());
        request.metadata.annotations = Some(BTreeMap::from([page]));
        request
    };
    for forged in [
        delivery(false, "{}", Value::Null),
        delivery(false, "", Value::Null),
        delivery(true, "{}", Value::Null),
        delivery(true, "", json!({ "phase": "Delivered" })),
        logged("{}", Value::Null),
        logged("", json!({ "phase": "Delivered" })),
    ] {
        for api in [&deliveries, &tenant.deliveries()] {
            let refused = api
                .create(&PostParams::default(), &forged)
                .await
                .unwrap_err()
                .to_string();
            assert!(refused.contains("created by the operator alone"), "{refused}");
        }
    }

    let uid = tenant.webhooks().get("hook").await.unwrap().metadata.uid;
    let owner = json!({ "apiVersion": "stellage.dev/v1", "kind": "Webhook", "name": "hook", "uid": uid });
    let other = json!({ "apiVersion": "v1", "kind": "Secret", "name": "hook", "uid": "u" });
    let many: BTreeMap<_, _> = (0..17).map(|n| (format!("mine-{n}"), "yes")).collect();
    let finished = json!({ "stellage.dev/finished": "true" });
    for (metadata, why) in [
        (json!({ "ownerReferences": [] }), "exactly one owner"),
        (json!({ "ownerReferences": [owner, other] }), "exactly one owner"),
        (
            json!({ "ownerReferences": [owner], "labels": finished }),
            "the command sets",
        ),
        (
            json!({ "ownerReferences": [owner], "annotations": finished }),
            "the command sets",
        ),
        (
            json!({ "ownerReferences": [owner], "annotations": { "stellage.dev/logged-in": "evlog-1" } }),
            "the command sets",
        ),
        (
            json!({ "ownerReferences": [owner], "annotations": many }),
            "at most 16 annotations",
        ),
        (
            json!({ "ownerReferences": [owner], "labels": many }),
            "at most 16 labels",
        ),
        (
            json!({ "ownerReferences": [owner], "finalizers": ["example.com/kept"] }),
            "finalizers of a Delivery",
        ),
        (
            json!({ "ownerReferences": [owner], "annotations": { "mine": "x".repeat(2049) } }),
            "2048",
        ),
    ] {
        let mut forged = serde_json::to_value(delivery(true, "", Value::Null)).unwrap();
        forged["metadata"] = metadata;
        forged["metadata"]["name"] = json!("forged");
        forged["metadata"]["labels"]["stellage.dev/webhook"] = json!("hook");
        let forged: Delivery = serde_json::from_value(forged).unwrap();
        let refused = deliveries.create(&PostParams::default(), &forged).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(why), "{why}: {refused}");
    }

    // Its owner, its spec and its label name one webhook.
    let named = |webhook: &str, label: &str, version: &str, name: &str| -> Delivery {
        let mut forged = serde_json::to_value(delivery(true, "", Value::Null)).unwrap();
        forged["spec"]["webhook"] = json!(webhook);
        forged["metadata"]["labels"] = json!({ "stellage.dev/webhook": label });
        let owner = json!({ "apiVersion": version, "kind": "Webhook", "name": name, "uid": uid });
        forged["metadata"]["ownerReferences"] = json!([owner]);
        serde_json::from_value(forged).unwrap()
    };
    for forged in [
        named("nope", "nope", "stellage.dev/v1", "hook"),
        named("nope", "hook", "stellage.dev/v1", "hook"),
        named("hook", "", "stellage.dev/v1", "hook"),
        named("hook", "nope", "stellage.dev/v1", "hook"),
        named("hook", "hook", "example.com/v1", "hook"),
        named("hook", "hook", "stellage.dev/v1", "nope"),
    ] {
        let refused = deliveries.create(&PostParams::default(), &forged).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("name as well"), "{forged:?}: {refused}");
    }
    let tried = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let whole = named("hook", "hook", "stellage.dev/v1", "hook");
    deliveries.create(&tried, &whole).await.unwrap();
    // What the operator has written can be changed, whatever it names.
    let operator = support::as_operator(support::shared().await.plane).await;
    let operators: Api<Delivery> = Api::namespaced(operator, &tenant.namespace);
    let owner = tenant.webhooks().get("hook").await.unwrap().owner_ref(&());
    let earlier = left_delivery("nope", "finished", owner);
    let earlier = operators.create(&PostParams::default(), &earlier).await.unwrap();
    let (earlier, mine) = (
        earlier.name_any(),
        json!({ "metadata": { "annotations": { "mine": "yes" } } }),
    );
    deliveries.merge(&earlier, &mine).await;
    deliveries
        .delete(&earlier, &DeleteParams::default())
        .await
        .unwrap();

    // What the command for tests creates is sent with the operator's own example.
    let plane = support::shared().await.plane;
    let test = format!("webhook test hook -n {} --wait", tenant.namespace);
    stellage(plane, &test).unwrap();
    let got = receiver.wait_for(1).await.pop().unwrap();
    let body: Value = serde_json::from_slice(&got.body).unwrap();
    assert_eq!(
        (&body["type"], body["data"]["instance"].is_object()),
        (&json!("instance.created"), true)
    );
    standardwebhooks::Webhook::new(SECRET)
        .unwrap()
        .verify(&got.body, &got.headers)
        .unwrap();

    // Of a finished one, nothing but the request to send it again may change.
    let sent = tenant
        .wait_for_deliveries("hook", "it to be recorded", |all| {
            all.len() == 1 && all[0].is_finished()
        })
        .await
        .pop()
        .unwrap();
    let name = sent.metadata.name.unwrap();
    let patch = async |patch: Value| {
        deliveries
            .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map(drop)
    };
    for (change, why) in [
        (
            json!({ "status": { "attempts": [] } }),
            "written by the operator alone",
        ),
        (
            json!({ "metadata": { "labels": { "stellage.dev/webhook": "other" } } }),
            "stellage.dev/finished may be changed",
        ),
        (
            json!({ "metadata": { "annotations": { "stellage.dev/finished-at": "2099-01-01T00:00:00Z" } } }),
            "attempt-requested-at may be changed",
        ),
        (
            json!({ "metadata": { "annotations": { "mine": "x".repeat(2049) } } }),
            "2048",
        ),
        (
            json!({ "metadata": { "ownerReferences": null } }),
            "ownerReferences of a Delivery",
        ),
    ] {
        let refused = patch(change).await.unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    patch(json!({ "metadata": { "labels": { "mine": "yes" }, "annotations": { "mine": "yes" } } }))
        .await
        .unwrap();
    let again = json!({ "metadata": {
        "labels": { "stellage.dev/finished": null },
        "annotations": { "stellage.dev/attempt-requested-at": "2026-11-22T10:00:00Z" },
    } });
    patch(again).await.unwrap();
    receiver.wait_for(2).await;
    deliveries.delete(&name, &DeleteParams::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_writes_little_into_the_metadata_of_a_delivery_and_the_operator_whatever_it_has_to() {
    let tenant = Tenant::new("delivery-metadata").await;
    let hook = tenant
        .webhook("hook", "https://example.com/", &["instance.created"])
        .await;
    let operator = support::as_operator(support::shared().await.plane).await;
    let operators: Api<Delivery> = Api::namespaced(operator, &tenant.namespace);
    let theirs: Api<Delivery> =
        Api::namespaced(tenant_of(&tenant, "eve@example.com").await, &tenant.namespace);
    let finished = left_delivery("hook", "finished", hook.owner_ref(&()));
    let name = finished.name_any();
    operators.create(&PostParams::default(), &finished).await.unwrap();
    let patch = async |api: &Api<Delivery>, metadata: Value| {
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let patched = api.patch(&name, &PatchParams::default(), &patch).await;
        patched.map(drop).map_err(|error| error.to_string())
    };
    let annotated = |key: &str, bytes: usize| json!({ "annotations": { key: "x".repeat(bytes) } });
    let tracked = |bytes: usize| {
        let field = format!("f:{}", "x".repeat(bytes));
        json!({ "managedFields": [{
            "manager": "m", "operation": "Update", "apiVersion": "stellage.dev/v1", "fieldsType": "FieldsV1",
            "fieldsV1": { "f:metadata": { "f:labels": { field: {} } } },
        }] })
    };
    // Requests recorded by the facade take up none of a tenant's room.
    patch(&operators, annotated("stellage.dev/idempotency-keys", 2000))
        .await
        .unwrap();
    patch(&theirs, annotated("mine", 1024)).await.unwrap();
    patch(&theirs, tracked(2048)).await.unwrap();
    for (over, why) in [
        (annotated("more", 1024), "of a Delivery 2048"),
        (
            annotated("kubectl.kubernetes.io/last-applied-configuration", 1024),
            "of a Delivery 2048",
        ),
        (tracked(4096), "of a Delivery 4096"),
    ] {
        let refused = patch(&theirs, over).await.unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
    // The operator's own writes are not bounded, and what they leave behind may shrink.
    patch(&operators, annotated("stellage.dev/error", 2000))
        .await
        .unwrap();
    patch(&theirs, json!({ "annotations": { "mine": null } }))
        .await
        .unwrap();
    patch(&operators, tracked(8192)).await.unwrap();
    theirs.delete(&name, &DeleteParams::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_may_delete_pages_of_the_event_log_but_neither_forge_change_nor_keep_them() {
    let tenant = Tenant::new("pages").await;
    tenant.apply("web", |_| {}).await;
    let client = tenant_of(&tenant, "ada@example.com").await;
    let pages: Api<EventLog> = Api::namespaced(client, &tenant.namespace);
    let logged = |all: &Vec<EventLog>| !all.is_empty();
    let mut page = eventually("a page", async || tenant.pages().await, logged)
        .await
        .remove(0);
    let name = page.name_any();
    for change in [
        json!({ "spec": { "delivered": 7 } }),
        json!({ "metadata": { "annotations": { "stellage.dev/index": "{}" } } }),
        json!({ "metadata": { "finalizers": ["example.com/mine"] } }),
    ] {
        let patch = Patch::Merge(&change);
        let refused = pages.patch(&name, &PatchParams::default(), &patch).await;
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("written by the operator alone"),
            "{change}: {refused}"
        );
    }
    page.metadata = ObjectMeta {
        name: Some("forged".to_owned()),
        ..ObjectMeta::default()
    };
    let refused = pages.create(&PostParams::default(), &page).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("written by the operator alone"), "{refused}");
    // The garbage collector removes the finalizer that this adds.
    pages.delete(&name, &DeleteParams::foreground()).await.unwrap();
    let is_gone = |all: &Vec<EventLog>| all.iter().all(|page| page.name_any() != name);
    eventually("the page to go", async || tenant.pages().await, is_gone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_tenant_deletes_a_backup_without_its_data() {
    let tenant = Tenant::new("backup-finalizers").await;
    let eve = tenant_of(&tenant, "eve@example.com").await;
    let theirs: Api<Backup> = Api::namespaced(eve, &tenant.namespace);
    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    let spec = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Backup", "metadata": { "name": "mine" }, "spec": { "instance": "web" },
    });
    let backup: Backup = serde_json::from_value(spec).unwrap();
    theirs.create(&PostParams::default(), &backup).await.unwrap();
    let look = async || theirs.get("mine").await.unwrap();
    let is_kept = |backup: &Backup| backup.phase() == BackupPhase::Completed && backup.has_finalizer();
    eventually("the backup", look, is_kept).await;
    let without = theirs
        .merge("mine", &json!({ "metadata": { "finalizers": null } }))
        .await;
    let version = Preconditions {
        resource_version: without.metadata.resource_version,
        uid: None,
    };
    // The operator adds it again; in between the backup is not deleted.
    let refused = theirs
        .delete("mine", &DeleteParams::default().preconditions(version))
        .await;
    let refused = refused.map(drop).unwrap_err().to_string();
    assert!(
        refused.contains("has to be back before the backup is deleted") || refused.contains("recondition"),
        "{refused}"
    );
    eventually("the finalizer to be back", look, is_kept).await;
    theirs.delete("mine", &DeleteParams::default()).await.unwrap();
    let gone = async || theirs.get_opt("mine").await.unwrap();
    eventually("the backup to go", gone, Option::is_none).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_tenant_deletes_a_private_network_and_leaves_it_in_its_region() {
    let tenant = Tenant::new("network-finalizers").await;
    let eve = tenant_of(&tenant, "eve@example.com").await;
    let theirs: Api<PrivateNetwork> = Api::namespaced(eve, &tenant.namespace);
    let network: PrivateNetwork = serde_json::from_value(json!({
        "apiVersion": "stellage.dev/v1", "kind": "PrivateNetwork", "metadata": { "name": "pn-mine" },
        "spec": { "region": "fr-par-1" },
    }))
    .unwrap();
    theirs.create(&PostParams::default(), &network).await.unwrap();
    let look = async || theirs.get("pn-mine").await.unwrap();
    let is_kept = |network: &PrivateNetwork| {
        let is_ready = network.ready().is_some_and(|ready| ready.status == "True");
        is_ready && network.has_finalizer()
    };
    eventually("the network", look, is_kept).await;
    let bare = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let params = PatchParams::default();
    let without = theirs.patch("pn-mine", &params, &bare).await.unwrap();
    let version = Preconditions {
        resource_version: without.metadata.resource_version,
        uid: None,
    };
    // The operator adds it again; in between the network is not deleted.
    let refused = theirs
        .delete("pn-mine", &DeleteParams::default().preconditions(version))
        .await;
    let refused = refused.map(drop).unwrap_err().to_string();
    assert!(
        refused.contains("has to be back before the network is deleted") || refused.contains("recondition"),
        "{refused}"
    );
    eventually("the finalizer to be back", look, is_kept).await;
    // While an instance is in it, it waits, and cannot be hurried.
    let in_network = |instance: &mut Instance| instance.spec.private_network = Some("pn-mine".to_owned());
    tenant.apply("web", in_network).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    theirs.delete("pn-mine", &DeleteParams::default()).await.unwrap();
    let refused = theirs.patch("pn-mine", &params, &bare).await.unwrap_err();
    let refused = refused.to_string();
    assert!(
        refused.contains("removed by the operator once no instance is in the network"),
        "{refused}"
    );
    let instances: Api<Instance> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    instances.delete("web", &DeleteParams::default()).await.unwrap();
    let gone = async || theirs.get_opt("pn-mine").await.unwrap();
    eventually("the network to go", gone, Option::is_none).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_tenant_deletes_an_instance_without_its_server() {
    let tenant = Tenant::new("finalizers").await;
    let theirs: Api<Instance> =
        Api::namespaced(tenant_of(&tenant, "eve@example.com").await, &tenant.namespace);
    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    let patch = async |api: &Api<Instance>, metadata: Value| {
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        api.patch("web", &PatchParams::default(), &patch).await
    };
    let is_back = async |when: &str| {
        let has_it = |instance: Option<&Instance>| instance.is_some_and(Instance::has_finalizer);
        tenant
            .wait("web", &format!("the finalizer to be back {when}"), has_it)
            .await;
    };
    // `kubectl replace` removes it, too, and the operator adds it again; in between the instance is not deleted.
    let without = patch(&theirs, json!({ "finalizers": null })).await.unwrap();
    let version = Preconditions {
        resource_version: without.metadata.resource_version,
        uid: None,
    };
    let refused = theirs
        .delete("web", &DeleteParams::default().preconditions(version))
        .await;
    let refused = refused.map(drop).unwrap_err().to_string();
    assert!(
        refused.contains("has to be back before the instance is deleted") || refused.contains("recondition"),
        "{refused}"
    );
    is_back("after that").await;
    // Also while its spec is refused, and for users who are otherwise exempt.
    let refused_image =
        Patch::Merge(json!({ "metadata": { "finalizers": null }, "spec": { "image": "debian-99" } }));
    theirs
        .patch("web", &PatchParams::default(), &refused_image)
        .await
        .unwrap();
    is_back("again").await;
    let operator = support::shared()
        .await
        .plane
        .client(Identity::Operator)
        .await
        .unwrap();
    let operators: Api<Instance> = Api::namespaced(operator, &tenant.namespace);
    let without = patch(&theirs, json!({ "finalizers": null })).await.unwrap();
    let version = Preconditions {
        resource_version: without.metadata.resource_version,
        uid: None,
    };
    let refused = operators
        .delete("web", &DeleteParams::default().preconditions(version))
        .await;
    assert!(refused.is_err(), "{refused:?}");
    is_back("once more").await;
    patch(
        &theirs,
        json!({ "annotations": { "simulator.stellage.dev/fault": "unreachable" } }),
    )
    .await
    .unwrap();
    theirs.delete("web", &DeleteParams::default()).await.unwrap();
    let refused = patch(&theirs, json!({ "finalizers": null })).await.unwrap_err();
    let refused = refused.to_string();
    assert!(
        refused.contains("removed by the operator once the server is gone"),
        "{refused}"
    );
    // A user who may do so in the whole cluster can, in case a provider is gone for good.
    patch(&tenant.instances(), json!({ "finalizers": null }))
        .await
        .unwrap();
}

/// Creates a namespace with the label but without an Account, containing an Instance and a Backup that have begun and have no
/// finalizer. Returns their kinds and names.
fn abandon(plane: &ControlPlane, namespace: &str) -> [(&'static str, &'static str); 2] {
    let create = |object: Value| support::kubectl(plane, "create -f -", Some(&object.to_string())).unwrap();
    create(json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": namespace, "labels": { "stellage.dev/account": "gone" } },
    }));
    let objects = [
        (
            "instance",
            "web",
            json!({ "kind": "Instance", "spec": support::spec() }),
            json!({ "state": "stopped" }),
        ),
        (
            "backup",
            "mine",
            json!({ "kind": "Backup", "spec": { "instance": "web" } }),
            json!({ "phase": "Completed" }),
        ),
    ];
    objects.map(|(kind, name, mut object, status)| {
        object["apiVersion"] = json!("stellage.dev/v1");
        object["metadata"] = json!({ "name": name, "namespace": namespace });
        create(object);
        let status = json!({ "status": status }).to_string();
        let who = format!("--as={} --as-group=system:masters", Identity::Operator.user());
        let line = format!("patch {kind} {name} --subresource=status --type=merge -n {namespace} {who} -p");
        let line = line.split(' ').chain([status.as_str()]);
        support::kubectl_words(plane, &line.collect::<Vec<_>>(), None).unwrap();
        (kind, name)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_lost_its_finalizer_is_deleted_by_nobody_but_administrators_in_person() {
    // No operator is running that would restore it.
    let plane = support::own_plane().await;
    let objects = abandon(&plane, "abandoned");
    let kubectl = |line: &str| support::kubectl(&plane, line, None);
    kubectl("create rolebinding eve --clusterrole=cluster-admin --user=eve -n abandoned").unwrap();
    let operator = format!(
        "--as={} --as-group=system:serviceaccounts",
        Identity::Operator.user()
    );
    for (kind, name) in objects {
        let delete = |who: &str| {
            kubectl(&format!(
                "delete {kind} {name} -n abandoned --dry-run=server {who}"
            ))
        };
        for who in ["--as=eve", &operator] {
            // The policies take a moment to take effect.
            let refused = async || delete(who).err();
            let refused = eventually("a refusal", refused, Option::is_some).await.unwrap();
            assert!(
                refused.contains(&format!("has to be back before the {kind} is deleted"))
                    && refused.contains("a cluster administrator deletes"),
                "{who}: {refused}"
            );
        }
        delete("--wait=false").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_account_the_finalizers_are_put_back_too_and_the_namespace_can_be_deleted() {
    let plane = support::shared().await.plane;
    let objects = abandon(plane, "finalizers-back");
    let kubectl = |line: &str| support::kubectl(plane, line, None);
    for (kind, name) in objects {
        let get = format!("get {kind} {name} -n finalizers-back -o jsonpath={{.metadata.finalizers}}");
        let finalizers = async || kubectl(&get).unwrap();
        eventually("the finalizer", finalizers, |finalizers| {
            finalizers.contains("stellage.dev/")
        })
        .await;
    }
    kubectl("delete namespace finalizers-back --wait=false").unwrap();
    let is_gone = async || kubectl("get namespace finalizers-back").is_err();
    eventually("the namespace to go", is_gone, |is_gone| *is_gone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_while_a_deletion_frees_the_quota_waits_and_is_told_to_try_again() {
    let tenant = Tenant::with(
        support::shared().await.plane,
        &support::shared().await.operator,
        "quota-freed",
        |spec| spec.instance_quota = Some(1),
    )
    .await;
    let order = json!({ "name": "web", "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
    let create = async || tenant.call(Method::POST, "/v1/instances", Some(&order)).await;
    let created = create().await;
    assert_eq!(created.status, 201, "{created:?}");
    let id = created.json()["data"]["id"].as_str().unwrap().to_owned();
    let full = create().await;
    assert_eq!(
        (full.status.as_u16(), full.json()["error"]["code"].as_str()),
        (403, Some("resource_limit_exceeded"))
    );
    // Something delays the deletion, like a server that takes its time.
    let hold = json!({ "metadata": { "finalizers": ["stellage.dev/server", "example.com/held"] } });
    tenant.merge(&id, &hold).await;
    let gone = tenant
        .call(Method::DELETE, &format!("/v1/instances/{id}"), None)
        .await;
    assert_eq!(gone.status, 204);
    let early = create().await;
    assert_eq!(early.status, 503, "{early:?}");
    assert!(!early.header("retry-after").is_empty());
    let freed = async || {
        let Some(object) = tenant.instances().get_opt(&id).await.unwrap() else {
            return true;
        };
        let rest: Vec<_> = object.metadata.finalizers.unwrap_or_default();
        let rest: Vec<_> = rest.into_iter().filter(|it| it != "example.com/held").collect();
        let patch = json!({ "metadata": { "finalizers": rest, "resourceVersion": object.metadata.resource_version } });
        let _ = tenant
            .instances()
            .patch(&id, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        false
    };
    let (created, _) = tokio::join!(
        eventually("a create", create, |answer| answer.status == 201),
        eventually("the deletion to end", freed, |gone| *gone)
    );
    assert_eq!(created.status, 201);
}
