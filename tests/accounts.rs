//! Accounts and keys: what `kubectl apply` and `kubectl delete` of an Account do, and the administrator's commands.

use std::collections::BTreeMap;

use control_plane::Identity;
use k8s_openapi::api::{
    core::v1::{Namespace, ResourceQuota, Secret},
    rbac::v1::RoleBinding,
};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
};
use resources::{
    Account, AccountSpec, ApiKey, Delivery, Instance, Webhook,
    conditions::{self, READY, STALLED},
};
use serde_json::{Value, json};

use crate::support::{self, Change as _, eventually};

/// The fixture of account tests.
struct Accounts {
    client: Client,
    api: Api<Account>,
    namespaces: Api<Namespace>,
}

impl Accounts {
    async fn new() -> Self {
        let client = support::shared()
            .await
            .plane
            .client(Identity::Admin)
            .await
            .unwrap();
        Self {
            api: Api::all(client.clone()),
            namespaces: Api::all(client.clone()),
            client,
        }
    }

    async fn apply(&self, name: &str, change: impl FnOnce(&mut AccountSpec)) -> Account {
        let mut account: Account = serde_json::from_value(json!({
            "apiVersion": "stellage.dev/v1", "kind": "Account",
            "metadata": { "name": name }, "spec": { "email": format!("{name}@example.com") },
        }))
        .unwrap();
        change(&mut account.spec);
        self.api.create(&PostParams::default(), &account).await.unwrap()
    }

    /// Waits until a condition of an Account is `True` or `False` for the given reason.
    async fn wait_for(&self, name: &str, type_: &str, status: &str, reason: &str) -> Account {
        eventually(
            &format!("{type_}={status} ({reason}) of account {name}"),
            async || self.api.get_opt(name).await.unwrap(),
            |account| {
                account
                    .as_ref()
                    .and_then(|account| condition(account, type_))
                    .is_some_and(|condition| condition.0 == status && condition.1 == reason)
            },
        )
        .await
        .unwrap()
    }

    async fn wait_until_ready(&self, name: &str) -> Account {
        self.wait_for(name, READY, "True", "AccountReady").await
    }

    async fn delete(&self, name: &str) {
        self.api.delete(name, &DeleteParams::default()).await.unwrap();
    }

    async fn wait_until_gone(&self, name: &str) {
        eventually(
            &format!("account {name} to go"),
            async || self.api.get_opt(name).await.unwrap(),
            Option::is_none,
        )
        .await;
    }

    async fn make_namespace(&self, name: &str, label: Option<&str>) {
        let labels =
            label.map(|account| BTreeMap::from([("stellage.dev/account".to_owned(), account.to_owned())]));
        let namespace = Namespace {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels,
                ..Default::default()
            },
            ..Default::default()
        };
        self.namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
    }

    fn inside<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }
}

/// Status, reason and message of a condition.
fn condition(account: &Account, type_: &str) -> Option<(String, String, String)> {
    let condition = conditions::find(&account.status.as_ref()?.conditions, type_)?;
    Some((
        condition.status.clone(),
        condition.reason.clone(),
        condition.message.clone(),
    ))
}

fn instance(name: &str) -> Instance {
    Instance::new(name, support::spec())
}

const INSTANCES: &str = "count/instances.stellage.dev";
const WEBHOOKS: &str = "count/webhooks.stellage.dev";
const KEYS: &str = "count/apikeys.stellage.dev";
const DELIVERIES: &str = "count/deliveries.stellage.dev";
const BACKUPS: &str = "count/backups.stellage.dev";
const NETWORKS: &str = "count/privatenetworks.stellage.dev";

/// The hard limits of an account's quota.
async fn hard(quotas: &Api<ResourceQuota>) -> BTreeMap<String, String> {
    let quota = quotas.get_opt("stellage").await.unwrap();
    let hard = quota.and_then(|quota| quota.spec?.hard).unwrap_or_default();
    hard.into_iter().map(|(what, limit)| (what, limit.0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_gets_a_namespace_a_quota_and_a_binding_and_they_are_kept_as_decided() {
    let test = Accounts::new().await;
    test.apply("acc-full", |spec| spec.instance_quota = Some(2)).await;
    let account = test.wait_until_ready("acc-full").await;
    let status = account.status.clone().unwrap();
    assert!(status.id.as_deref().unwrap().starts_with("usr_"));
    assert_eq!(status.namespace.as_deref(), Some("acc-full"));
    assert_eq!(status.observed_generation, account.metadata.generation);
    assert!(
        status
            .conditions
            .iter()
            .all(|c| c.observed_generation == account.metadata.generation)
    );

    let namespace = test.namespaces.get("acc-full").await.unwrap();
    assert_eq!(namespace.labels()["stellage.dev/account"], "acc-full");
    assert_eq!(namespace.labels()["app.kubernetes.io/managed-by"], "stellage");
    assert_eq!(
        namespace.annotations()["stellage.dev/made-for-account"],
        account.uid().unwrap()
    );
    let bindings = test.inside::<RoleBinding>("acc-full");
    let binding = bindings.get("stellage-operator").await.unwrap();
    assert_eq!(binding.role_ref.name, "stellage-account");
    assert_eq!(
        binding.subjects.as_ref().unwrap()[0].namespace.as_deref(),
        Some("stellage-system")
    );

    // Drift is repaired.
    let quotas = test.inside::<ResourceQuota>("acc-full");
    bindings
        .delete("stellage-operator", &DeleteParams::default())
        .await
        .unwrap();
    let as_decided = BTreeMap::from(
        [
            (INSTANCES, "2"),
            (WEBHOOKS, "20"),
            (KEYS, "50"),
            (DELIVERIES, "34k"),
            (BACKUPS, "1062"),
            (NETWORKS, "10"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned())),
    );
    support::wait_until_webhooks_are_counted(&quotas).await;
    assert_eq!(hard(&quotas).await, as_decided);
    let more = json!({ "spec": { "hard": { INSTANCES: "99", WEBHOOKS: "99", "count/secrets": "1" } } });
    quotas.merge("stellage", &more).await;
    let unlabel = json!({ "metadata": { "labels": { "app.kubernetes.io/managed-by": null } } });
    test.namespaces.merge("acc-full", &unlabel).await;
    eventually(
        "the binding, the quota and the label to be back",
        async || {
            let limits = hard(&quotas).await;
            let namespace = test.namespaces.get("acc-full").await.unwrap();
            let label = namespace.labels().get("app.kubernetes.io/managed-by").cloned();
            (
                bindings.get_opt("stellage-operator").await.unwrap().is_some(),
                limits,
                label,
            )
        },
        |(binding, limits, label)| *binding && *limits == as_decided && label.as_deref() == Some("stellage"),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quota_holds_for_kubectl_and_is_the_default_again_when_it_is_unset() {
    let test = Accounts::new().await;
    test.apply("acc-quota", |spec| spec.instance_quota = Some(1))
        .await;
    test.wait_until_ready("acc-quota").await;
    let instances = test.inside::<Instance>("acc-quota");
    // Once the account is ready, the first create is accepted.
    instances
        .create(&PostParams::default(), &instance("one"))
        .await
        .unwrap();
    let refused = instances
        .create(&PostParams::default(), &instance("two"))
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("exceeded quota: stellage"), "{refused}");

    let unset = json!({ "spec": { "instanceQuota": null } });
    test.api.merge("acc-quota", &unset).await;
    let quotas = test.inside::<ResourceQuota>("acc-quota");
    eventually(
        "the default limit",
        async || hard(&quotas).await,
        |hard| hard.get(INSTANCES).is_some_and(|limit| limit == "100k"),
    )
    .await;
    eventually(
        "another instance to be accepted",
        async || {
            instances
                .create(&PostParams::default(), &instance("two"))
                .await
                .map(|_| ())
        },
        Result::is_ok,
    )
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_webhook_quota_holds_for_kubectl_and_a_new_one_is_counted() {
    let test = Accounts::new().await;
    test.apply("acc-hooks", |spec| spec.webhook_quota = Some(1)).await;
    test.wait_until_ready("acc-hooks").await;
    support::wait_until_webhooks_are_counted(&test.inside("acc-hooks")).await;
    let webhooks = test.inside::<Webhook>("acc-hooks");
    let create = async |name: &str| {
        let webhook: Webhook = serde_json::from_value(json!({
            "apiVersion": "stellage.dev/v1", "kind": "Webhook", "metadata": { "name": name },
            "spec": { "url": "https://example.com", "events": ["instance.created"], "secretRef": { "name": "s" } },
        }))
        .unwrap();
        webhooks
            .create(&PostParams::default(), &webhook)
            .await
            .map(|_| ())
    };
    create("one").await.unwrap();
    let refused = create("two").await.unwrap_err().to_string();
    assert!(refused.contains("exceeded quota: stellage"), "{refused}");
    let more = json!({ "spec": { "webhookQuota": 2 } });
    test.api.merge("acc-hooks", &more).await;
    eventually(
        "another webhook to be accepted",
        async || create("two").await,
        Result::is_ok,
    )
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_there_is_adopted_only_with_the_label_and_stays_when_the_account_goes() {
    let test = Accounts::new().await;
    test.make_namespace("acc-theirs", None).await;
    // With another propagation policy, the deletion would leave its deliveries without an owner.
    let webhook: Webhook = serde_json::from_value(json!({
        "apiVersion": "stellage.dev/v1", "kind": "Webhook", "metadata": { "name": "hook", "finalizers": ["orphan"] },
        "spec": { "url": "https://example.com", "events": ["instance.created"], "secretRef": { "name": "s" } },
    }))
    .unwrap();
    let webhooks = test.inside::<Webhook>("acc-theirs");
    let webhook = webhooks.create(&PostParams::default(), &webhook).await.unwrap();
    test.apply("acc-adopts", |spec| {
        spec.namespace = Some("acc-theirs".into());
        spec.instance_quota = Some(5);
    })
    .await;
    let refused = test
        .wait_for("acc-adopts", "NamespaceReady", "False", "NamespaceNotOwned")
        .await;
    let (_, _, message) = condition(&refused, STALLED).unwrap();
    let command = "kubectl label namespace acc-theirs stellage.dev/account=acc-adopts";
    assert!(message.contains(command), "{message}");
    assert_eq!(condition(&refused, STALLED).unwrap().0, "True");
    assert_eq!(refused.status.unwrap().namespace, None);
    assert!(
        test.inside::<RoleBinding>("acc-theirs")
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );

    // Do exactly what the message says.
    let plane = support::shared().await.plane;
    let (_, line) = command.split_once(' ').unwrap();
    support::kubectl(plane, line, None).unwrap();
    let adopted = test.wait_until_ready("acc-adopts").await;
    assert_eq!(
        condition(&adopted, "NamespaceReady").unwrap().1,
        "NamespaceAdopted"
    );
    let namespace = test.namespaces.get("acc-theirs").await.unwrap();
    let mark = &namespace.annotations()["stellage.dev/adopted-for-account"];
    assert_eq!(Some(mark), adopted.metadata.uid.as_ref());

    // Deliveries as `kubectl delete webhook --cascade=orphan` leaves them, and deliveries of an existing
    // webhook.
    let operator = support::as_operator(plane).await;
    let deliveries: Api<Delivery> = Api::namespaced(operator, "acc-theirs");
    for (name, owner) in [("left", None), ("owned", webhook.owner_ref(&()))] {
        let delivery = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Delivery",
            "metadata": {
                "name": name, "labels": { "stellage.dev/finished": "true" }, "ownerReferences": Vec::from_iter(owner),
            },
            "spec": {
                "webhook": "hook", "eventId": format!("evt_{name}"), "eventType": "instance.created",
                "eventCreatedAt": "2026-11-21T10:00:00Z", "body": "{}",
            },
            "status": { "phase": "Exhausted" },
        });
        let delivery = serde_json::from_value(delivery).unwrap();
        deliveries
            .create(&PostParams::default(), &delivery)
            .await
            .unwrap();
    }
    let secrets = test.inside::<Secret>("acc-theirs");
    for (name, label) in [
        ("s", "stellage.dev/webhook-secret"),
        ("other", "example.com/other"),
    ] {
        let secret = json!({ "metadata": { "name": name, "labels": { label: "true" } } });
        let secret = serde_json::from_value(secret).unwrap();
        secrets.create(&PostParams::default(), &secret).await.unwrap();
    }

    test.delete("acc-adopts").await;
    test.wait_until_gone("acc-adopts").await;
    // Nothing that the account owned is left.
    assert!(webhooks.get_opt("hook").await.unwrap().is_none());
    let left = deliveries.list(&ListParams::default()).await.unwrap();
    assert!(left.items.is_empty(), "{left:#?}");
    assert!(
        secrets.get_opt("s").await.unwrap().is_none() && secrets.get_opt("other").await.unwrap().is_some()
    );
    let namespace = test.namespaces.get("acc-theirs").await.unwrap();
    assert!(namespace.metadata.deletion_timestamp.is_none());
    assert!(!namespace.labels().contains_key("stellage.dev/account"));
    let mark = "stellage.dev/adopted-for-account";
    assert!(!namespace.annotations().contains_key(mark));
    assert!(
        test.inside::<RoleBinding>("acc-theirs")
            .get_opt("stellage-operator")
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        test.inside::<ResourceQuota>("acc-theirs")
            .get_opt("stellage")
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_account_had_is_adopted_by_nobody_and_a_copy_of_an_account_has_nothing() {
    let test = Accounts::new().await;
    let namespace = |name: &str, account: &str, annotations: Value| {
        let labels = json!({ "stellage.dev/account": account });
        let metadata = json!({ "name": name, "labels": labels, "annotations": annotations });
        serde_json::from_value::<Namespace>(json!({ "metadata": metadata })).unwrap()
    };
    let create = async |namespace: &Namespace| {
        let created = test.namespaces.create(&PostParams::default(), namespace).await;
        created.unwrap();
    };
    let theirs = json!({ "stellage.dev/made-for-account": "of-another" });
    create(&namespace("acc-left", "acc-left", theirs)).await;
    test.apply("acc-left", |_| {}).await;
    let refused = test
        .wait_for("acc-left", "NamespaceReady", "False", "NamespaceNotOwned")
        .await;
    let (_, _, message) = condition(&refused, READY).unwrap();
    assert!(message.contains("belonged to another Account"), "{message}");

    // Somebody wrote an object back, but not the annotation of its namespace.
    create(&namespace("acc-used", "acc-used", json!({}))).await;
    let mut used = instance("web");
    let origin = "5d3c9d6e-0000-4000-8000-000000000001 2026-11-21T10:00:00Z";
    let annotation = ("stellage.dev/origin".to_owned(), origin.to_owned());
    used.metadata.annotations = Some([annotation.clone()].into());
    let instances = test.inside::<Instance>("acc-used");
    instances.create(&PostParams::default(), &used).await.unwrap();
    test.apply("acc-used", |_| {}).await;
    let refused = test
        .wait_for("acc-used", "NamespaceReady", "False", "NamespaceInUse")
        .await;
    let (_, _, message) = condition(&refused, READY).unwrap();
    assert!(message.contains("1 instance: web"), "{message}");
    // Do exactly what the message says.
    let command = message
        .split("kubectl ")
        .nth(1)
        .unwrap()
        .split(';')
        .next()
        .unwrap();
    let plane = support::shared().await.plane;
    support::kubectl(plane, command, None).unwrap();
    test.wait_until_ready("acc-used").await;

    let mut first = test.apply("acc-first", |_| {}).await;
    test.wait_until_ready("acc-first").await;
    let written = test.api.get("acc-first").await.unwrap();
    let origin = written.annotations()["stellage.dev/origin"].clone();
    assert!(
        origin.starts_with(first.metadata.uid.as_ref().unwrap()),
        "{origin}"
    );
    first.metadata = ObjectMeta {
        name: Some("acc-copy".to_owned()),
        annotations: Some([(annotation.0, origin)].into()),
        ..ObjectMeta::default()
    };
    // In whole seconds, the older one would be told by its UID.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    test.api.create(&PostParams::default(), &first).await.unwrap();
    let refused = test
        .wait_for("acc-copy", "NamespaceReady", "False", "OriginTaken")
        .await;
    let (_, _, message) = condition(&refused, READY).unwrap();
    assert!(message.contains("a copy of Account acc-first"), "{message}");
    assert!(test.namespaces.get_opt("acc-copy").await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_with_a_protected_instance_loses_nothing_however_it_is_deleted() {
    let tenant = support::Tenant::new("acc-protected").await;
    let namespace = tenant.namespace.as_str();
    tenant
        .apply("web", |web| web.spec.deletion_protection = true)
        .await;
    tenant
        .wait_for_state("web", resources::InstanceState::Running)
        .await;
    let plane = support::shared().await.plane;
    let kubectl = |line: &str| support::kubectl(plane, line, None);
    let refused = kubectl(&format!("delete namespace {namespace} --wait=false")).unwrap_err();
    assert!(refused.contains("delete the Account instead"), "{refused}");
    for change in ["stellage.dev/account-", "stellage.dev/account=other --overwrite"] {
        let refused = kubectl(&format!("label namespace {namespace} {change}")).unwrap_err();
        assert!(
            refused.contains("cannot be changed while the Account exists"),
            "{refused}"
        );
    }
    kubectl(&format!("label namespace {namespace} theirs=1")).unwrap();

    tenant.apply("unprotected", |_| {}).await;
    let test = Accounts::new().await;
    test.delete(namespace).await;
    let held = test.wait_for(namespace, READY, "False", "DeletionHeldBack").await;
    let (_, _, message) = condition(&held, READY).unwrap();
    assert_eq!(
        message,
        "cannot be deleted yet: 1 protected instance: web; set spec.deletionProtection of the instances to false first: until then, nothing else is deleted"
    );
    assert_eq!(held.owned_namespace(), Some(namespace), "still looked after");
    let refused = kubectl(&format!("delete namespace {namespace} --wait=false")).unwrap_err();
    assert!(refused.contains("delete the Account instead"), "{refused}");
    tenant
        .wait_for_state("unprotected", resources::InstanceState::Running)
        .await;
    // The watch of the REST API may still be behind the API server's answer.
    eventually(
        "REST to show both instances as running",
        async || {
            let shown = tenant.call(reqwest::Method::GET, "/v1/instances", None).await;
            let all = shown.json()["data"].as_array().unwrap().clone();
            all.iter()
                .map(|one| one["status"].clone())
                .collect::<Vec<Value>>()
        },
        |statuses| *statuses == ["running", "running"],
    )
    .await;
    tenant
        .merge("web", &json!({ "spec": { "deletionProtection": false } }))
        .await;
    test.wait_until_gone(namespace).await;
    eventually(
        "the namespace to go",
        async || test.namespaces.get_opt(namespace).await.unwrap(),
        Option::is_none,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_accounts_that_want_one_namespace_the_older_has_it_and_the_other_takes_over() {
    let test = Accounts::new().await;
    let want = |spec: &mut AccountSpec| spec.namespace = Some("acc-shared".into());
    test.apply("acc-older", want).await;
    test.wait_until_ready("acc-older").await;
    test.apply("acc-younger", want).await;
    let refused = test
        .wait_for("acc-younger", "NamespaceReady", "False", "NamespaceTaken")
        .await;
    let (_, _, message) = condition(&refused, READY).unwrap();
    assert!(message.contains("belongs to Account acc-older"), "{message}");

    test.delete("acc-older").await;
    test.wait_until_gone("acc-older").await;
    let owner = test.wait_until_ready("acc-younger").await;
    assert_eq!(owner.owned_namespace(), Some("acc-shared"));
    let namespace = test.namespaces.get("acc-shared").await.unwrap();
    assert_eq!(namespace.labels()["stellage.dev/account"], "acc-younger");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_account_is_deleted_without_touching_the_namespace_that_it_wanted() {
    let test = Accounts::new().await;
    test.make_namespace("acc-foreign", None).await;
    let wants = [
        ("acc-wants-foreign", "acc-foreign", "NamespaceNotOwned"),
        ("acc-wants-ours", "stellage-system", "NamespaceReserved"),
    ];
    for (name, namespace, reason) in wants {
        test.apply(name, |spec| spec.namespace = Some(namespace.into()))
            .await;
        test.wait_for(name, "NamespaceReady", "False", reason).await;
        test.delete(name).await;
        test.wait_until_gone(name).await;
        let namespace = test.namespaces.get(namespace).await.unwrap();
        assert!(namespace.metadata.deletion_timestamp.is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_takes_instances_namespace_and_keys_along() {
    let test = Accounts::new().await;
    test.apply("acc-full-house", |_| {}).await;
    test.wait_until_ready("acc-full-house").await;
    let plane = support::shared().await.plane;
    support::new_key(plane, "acc-full-house", "read");
    let instances = test.inside::<Instance>("acc-full-house");
    for name in ["c", "a", "b"] {
        let mut instance = instance(name);
        // Holds it until the test has looked.
        instance.metadata.finalizers = Some(vec!["example.com/test".to_owned()]);
        instances.create(&PostParams::default(), &instance).await.unwrap();
    }
    test.delete("acc-full-house").await;
    let deleting = test.wait_for("acc-full-house", READY, "False", "Deleting").await;
    let (_, _, message) = condition(&deleting, READY).unwrap();
    assert_eq!(message, "deleting 3 instances: a, b, c");
    assert_eq!(
        deleting.owned_namespace(),
        Some("acc-full-house"),
        "still looked after"
    );
    eventually(
        "the instances to be deleted",
        async || instances.list(&ListParams::default()).await.unwrap().items,
        |all| {
            all.iter()
                .all(|instance| instance.metadata.deletion_timestamp.is_some())
        },
    )
    .await;
    let keys = test.inside::<ApiKey>("acc-full-house");
    assert_eq!(
        keys.list(&ListParams::default()).await.unwrap().items.len(),
        1,
        "keys still work"
    );

    for name in ["a", "b", "c"] {
        let release = r#"[{"op":"test","path":"/metadata/finalizers/0","value":"example.com/test"},{"op":"remove","path":"/metadata/finalizers/0"}]"#;
        let patch = format!("-n acc-full-house patch instance {name} --type=json -p {release}");
        support::kubectl(plane, &patch, None).unwrap();
    }
    test.wait_until_gone("acc-full-house").await;
    eventually(
        "the namespace to go",
        async || {
            test.namespaces
                .get_opt("acc-full-house")
                .await
                .unwrap()
                .map(|n| n.status)
        },
        Option::is_none,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_while_nothing_changes() {
    let test = Accounts::new().await;
    test.apply("acc-quiet", |spec| spec.instance_quota = Some(3))
        .await;
    test.wait_until_ready("acc-quiet").await;
    // Until Kubernetes counts webhooks, too, the controller keeps polling the account.
    support::wait_until_webhooks_are_counted(&test.inside("acc-quiet")).await;
    let ready = test.wait_until_ready("acc-quiet").await;
    // A change that triggers a reconcile but is irrelevant to the controller.
    let annotate = json!({ "metadata": { "annotations": { "example.com/note": "x" } } });
    let annotated = test.api.merge("acc-quiet", &annotate).await;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let later = test.api.get("acc-quiet").await.unwrap();
    assert_eq!(later.resource_version(), annotated.resource_version());
    assert_eq!(later.status, ready.status);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_may_touch_secrets_and_create_keys_in_accounts_namespaces_and_nowhere_else() {
    let test = Accounts::new().await;
    test.apply("acc-rights", |_| {}).await;
    test.wait_until_ready("acc-rights").await;
    let plane = support::shared().await.plane;
    let may = |verb: &str, resource: &str, namespace: &str| {
        let operator = Identity::Operator.user();
        let answer = support::kubectl(
            plane,
            &format!("auth can-i {verb} {resource} --as {operator} -n {namespace}"),
            None,
        );
        answer.is_ok()
    };
    for verb in ["get", "list", "watch", "create", "update", "patch", "delete"] {
        let has_use = !["watch", "update"].contains(&verb);
        assert_eq!(may(verb, "secrets", "acc-rights"), has_use, "{verb}");
        assert!(
            !may(verb, "secrets", "kube-system") && !may(verb, "secrets", "stellage-system"),
            "{verb}"
        );
    }
    assert!(may("create", "apikeys", "acc-rights"), "POST /v1/keys");
    for verb in ["get", "update"] {
        assert!(!may(verb, "configmaps/others", "stellage-system"), "{verb}");
        assert!(may(verb, "secrets/stellage-console", "stellage-system"), "{verb}");
        assert!(!may(verb, "secrets/others", "stellage-system"), "{verb}");
    }
    for (verb, resource) in [
        ("create", "clusterrolebindings"),
        ("update", "clusterroles"),
        ("escalate", "clusterroles"),
        ("create", "accounts"),
        ("delete", "accounts"),
        ("create", "apikeys"),
        ("get", "pods"),
        ("create", "pods"),
        ("impersonate", "users"),
        ("update", "leases"),
        ("update", "configmaps"),
        ("get", "configmaps"),
    ] {
        assert!(!may(verb, resource, "default"), "{verb} {resource}");
    }
    // It may write no RoleBinding other than its own; chart/stolen.rs covers the rest of what it must not do.
    let operator = plane.client(Identity::Operator).await.unwrap();
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": { "name": "greedy" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "kind": "ServiceAccount", "name": "stellage", "namespace": "stellage-system" }],
    }))
    .unwrap();
    let refused = Api::<RoleBinding>::namespaced(operator, "acc-rights")
        .create(&PostParams::default(), &binding)
        .await
        .unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("cannot create resource \"rolebindings\""),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn administrators_make_accounts_and_keys_with_the_command() {
    let test = Accounts::new().await;
    let plane = support::shared().await.plane;
    let stellage = |arguments: &[&str]| support::stellage_words(plane, arguments);
    let json_of =
        |arguments: &[&str]| -> Value { serde_json::from_str(&stellage(arguments).unwrap()).unwrap() };

    let made = json_of(&[
        "account",
        "create",
        "acc-cli",
        "--email",
        "ada@example.com",
        "--instance-quota",
        "7",
        "--timeout",
        "90s",
        "--output",
        "json",
    ]);
    assert_eq!(
        (&made["ready"], &made["namespace"]),
        (&json!(true), &json!("acc-cli"))
    );
    assert!(made["id"].as_str().unwrap().starts_with("usr_"));
    let again = stellage(&["account", "create", "acc-cli", "--email", "ada@example.com"]).unwrap_err();
    assert!(
        again.contains("already exists") && again.contains("kubectl describe account acc-cli"),
        "{again}"
    );
    let wrong = stellage(&["account", "create", "acc-wrong", "--email", "nobody"]).unwrap_err();
    assert!(
        wrong.contains("spec.email") && wrong.contains("must be an e-mail address"),
        "{wrong}"
    );
    let unknown = stellage(&["key", "create", "--account", "acc-nobody"]).unwrap_err();
    assert!(unknown.contains("there is no account acc-nobody"), "{unknown}");

    // With text output, only the key is on stdout.
    let key = stellage(&["key", "create", "--account", "acc-cli", "--scope", "read"]).unwrap();
    let key = key.trim_end();
    assert!(key.starts_with("stl_") && key.len() == 63, "{key}");
    let made = json_of(&[
        "key",
        "create",
        "--account",
        "acc-cli",
        "--name",
        "ci",
        "--expires",
        "90d",
        "--output",
        "json",
    ]);
    assert_eq!(
        (&made["name"], &made["account"], &made["scope"]),
        (&json!("ci"), &json!("acc-cli"), &json!("write"))
    );
    assert!(made["expires_at"].as_str().unwrap().ends_with('Z'));
    let stored = test.inside::<ApiKey>("acc-cli").get("ci").await.unwrap();
    let secret = made["key"].as_str().unwrap();
    assert_eq!(stored.spec.last_characters.as_deref(), Some(&secret[59..]));
    assert!(
        !serde_json::to_string(&stored).unwrap().contains(secret),
        "only the digest is kept"
    );
    let forever = json_of(&[
        "key",
        "create",
        "--account",
        "acc-cli",
        "--name",
        "forever",
        "--output",
        "json",
    ]);
    assert_eq!(forever["expires_at"], Value::Null);

    let twice = stellage(&["key", "create", "--account", "acc-cli", "--name", "ci"]).unwrap_err();
    assert!(twice.contains("already has a key ci"), "{twice}");
    let by_value = stellage(&["key", "revoke", secret, "--account", "acc-cli"]).unwrap_err();
    assert!(
        by_value.contains("stellage key revoke ci --account acc-cli") && !by_value.contains(secret),
        "{by_value}"
    );
    let unknown = stellage(&["key", "revoke", "stl_nobody", "--account", "acc-cli"]).unwrap_err();
    assert!(unknown.contains("has no key with that value"), "{unknown}");
    stellage(&["key", "revoke", "ci", "--account", "acc-cli"]).unwrap();
    assert!(
        test.inside::<ApiKey>("acc-cli")
            .get_opt("ci")
            .await
            .unwrap()
            .is_none()
    );
    let gone = stellage(&["key", "revoke", "ci", "--account", "acc-cli"]).unwrap_err();
    assert!(gone.contains("has no key ci"), "{gone}");
    for past in ["2020-01-01T00:00:00Z", "soon", "0d"] {
        let refused = stellage(&["key", "create", "--account", "acc-cli", "--expires", past]).unwrap_err();
        assert!(refused.contains("must be"), "{refused}");
    }
    let nobody = stellage(&["key", "create", "--account", "acc-nobody"]).unwrap_err();
    assert!(nobody.contains("account create acc-nobody"), "{nobody}");
}
