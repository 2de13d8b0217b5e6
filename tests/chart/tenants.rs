//! What people with a Kubernetes role in the namespace of their account may do there.

use serde_json::{Value, json};

use crate::support::{self, eventually, helm::Helm, kubectl};

const NAMESPACE: &str = "chart-roles";
const ROLES: [&str; 3] = ["view", "edit", "admin"];

#[tokio::test(flavor = "multi_thread")]
async fn view_reads_edit_writes_and_admin_makes_keys_but_nobody_writes_a_status_or_a_delivery() {
    let plane = support::shared().await.plane;
    kubectl(plane, &format!("create namespace {NAMESPACE}"), None).unwrap();
    for (number, role) in ROLES.iter().enumerate() {
        let name = format!("stellage-{role}");
        let found = kubectl(plane, &format!("get clusterrole {name} -o json"), None).unwrap();
        let found: Value = serde_json::from_str(&found).unwrap();
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{role}");
        assert_eq!(found["metadata"]["labels"][label.as_str()], "true");
        // Kubernetes aggregates them in a controller that does not run here: edit includes view, and admin includes both.
        for user in &ROLES[number..] {
            let binding = format!("{user}-has-{role}");
            let (role, user) = (format!("--clusterrole={name}"), format!("--user={user}"));
            let create = format!("-n {NAMESPACE} create rolebinding {binding} {role} {user}");
            kubectl(plane, &create, None).unwrap();
        }
    }
    let may = |user: &str, verb: &str, resource: &str| {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let subresource = format!("--subresource={subresource}");
        let question = format!("auth can-i {verb} {resource} {subresource} --as {user} -n {NAMESPACE}");
        kubectl(plane, &question, None).is_ok()
    };
    for (verb, resource, who) in [
        ("list", "instances.stellage.dev", "view edit admin"),
        ("watch", "deliveries.stellage.dev", "view edit admin"),
        ("get", "eventlogs.stellage.dev", "view edit admin"),
        ("create", "instances.stellage.dev", "edit admin"),
        ("patch", "webhooks.stellage.dev", "edit admin"),
        ("delete", "backups.stellage.dev", "edit admin"),
        ("list", "apikeys.stellage.dev", "admin"),
        ("create", "apikeys.stellage.dev", "admin"),
        ("update", "apikeys.stellage.dev", ""),
        ("patch", "apikeys.stellage.dev/status", ""),
        ("patch", "instances.stellage.dev/status", ""),
        ("update", "webhooks.stellage.dev/status", ""),
        ("update", "instances.stellage.dev/finalizers", ""),
        ("create", "deliveries.stellage.dev", ""),
        ("patch", "deliveries.stellage.dev", ""),
        ("delete", "eventlogs.stellage.dev", ""),
        ("get", "accounts.stellage.dev", ""),
        ("get", "secrets", ""),
    ] {
        let have = ROLES.into_iter().filter(|role| may(role, verb, resource));
        assert_eq!(have.collect::<Vec<_>>().join(" "), who, "{verb} {resource}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_may_create_secrets_may_have_the_operator_write_a_key_into_one() {
    const NAMESPACE: &str = "chart-key-secrets";
    let plane = support::shared().await.plane;
    kubectl(plane, &format!("create namespace {NAMESPACE}"), None).unwrap();
    let bind = |name: &str, role: &str| {
        let (role, user) = (format!("--clusterrole={role}"), "--user=keys");
        kubectl(
            plane,
            &format!("-n {NAMESPACE} create rolebinding {name} {role} {user}"),
            None,
        )
        .unwrap();
    };
    bind("keys", "stellage-admin");
    let create = |spec: Value| {
        let key = json!({
            "apiVersion": "stellage.dev/v1", "kind": "ApiKey", "spec": spec,
            "metadata": { "generateName": "k-", "namespace": NAMESPACE },
        });
        let create = "create --dry-run=server --as keys -f -";
        kubectl(plane, create, Some(&key.to_string()))
    };
    let into_a_secret = || create(json!({ "writeSecretRef": { "name": "first" } }));
    let refused = into_a_secret().unwrap_err();
    assert!(
        refused.contains("which you may not do in this namespace"),
        "{refused}"
    );
    create(json!({ "sha256": "0".repeat(64) })).unwrap();
    let role = "create clusterrole chart-key-secrets --verb=create --resource=secrets";
    kubectl(plane, role, None).unwrap();
    bind("secrets", "chart-key-secrets");
    eventually("the right to count", async || into_a_secret(), Result::is_ok)
        .await
        .unwrap();
}

/// A manifest of a webhook or an instance.
fn manifest(kind: &str, name: &str, url: &str) -> String {
    let spec = match kind {
        "Webhook" => json!({ "url": url, "events": ["instance.created"], "secretRef": { "name": "x" } }),
        _ => json!({ "plan": "starter", "region": "fr-par-1", "image": "debian-13" }),
    };
    json!({ "apiVersion": "stellage.dev/v1", "kind": kind, "metadata": { "name": name, "namespace": "ada" }, "spec": spec })
        .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn forbidden_urls_and_names_that_are_ids_are_refused_to_tenants_at_once() {
    let plane = support::own_plane().await;
    let helm = Helm::alone().await;
    kubectl(&plane, "create namespace ada", None).unwrap();
    let binding = "-n ada create rolebinding ada --clusterrole=stellage-edit --user=ada";
    kubectl(&plane, binding, None).unwrap();
    let install = |values: Value| {
        let rendered = helm.template("stellage-system", &values).unwrap();
        let policies = rendered
            .split("\n---")
            .filter(|document| document.contains("name: receivers.stellage.dev"));
        let policies = policies.collect::<Vec<_>>().join("\n---");
        kubectl(&plane, "apply --server-side -f -", Some(&policies)).unwrap();
    };
    let create = |manifest: &str| {
        let create = "create --dry-run=server --as ada -f -";
        kubectl(&plane, create, Some(manifest))
            .map_err(|said| said.lines().last().unwrap_or_default().to_owned())
    };
    let webhook = |url: &str| create(&manifest("Webhook", "w", url));
    install(json!({}));
    eventually(
        "the policy to be in force",
        async || webhook("https://127.0.0.1/").is_err(),
        |is| *is,
    )
    .await;
    for (url, why) in [
        ("https://169.254.169.254/latest", "a public address"),
        ("https://10.1.2.3:8443/", "a public address"),
        ("https://[::1]/", "a public address"),
        ("https://[2001:db8::1]/", "a public address"),
        ("https://[::ffff:127.0.0.1]/", "the usual form"),
        ("https://0300.0250.0.1/x", "the usual form"),
        ("https://2130706433/", "the usual form"),
        ("https://0x7f.1/", "the usual form"),
        ("https://localhost/", "the operator's own machine"),
        ("https://x.LOCALHOST./", "the operator's own machine"),
        ("https://kubernetes/", "an internal name"),
        ("https://hooks.shop.svc.cluster.local/x", "an internal name"),
        ("https://db.internal./", "an internal name"),
    ] {
        let said = webhook(url).expect_err(url);
        assert!(
            said.contains("receivers.stellage.dev") && said.contains(why),
            "{url}: {said}"
        );
    }
    for url in [
        "https://hooks.example.com/a",
        "https://HOOKS.Example.COM.:8443/",
        "https://8.8.8.8/",
        "https://[2606:4700::1111]/",
        "https://1.2.3.4.example/",
        "https://my-localhost.example/",
    ] {
        webhook(url).unwrap_or_else(|said| panic!("{url}: {said}"));
    }

    // What the administrator allows the operator.
    let settings = json!({
        "receiverAllow": ["127.0.0.0/8", "10.1.0.0/16", "10.3.0.7"],
        "receiverAllowName": ["svc.cluster.local", "*.Hooks.Internal."],
    });
    install(json!({ "settings": settings }));
    eventually(
        "the policy to be changed",
        async || webhook("https://127.0.0.1/").is_ok(),
        |is| *is,
    )
    .await;
    for url in [
        "https://localhost/",
        "https://10.1.2.3/",
        "https://10.3.0.7/",
        "https://hooks.shop.svc.cluster.local/x",
        "https://a.hooks.internal/",
    ] {
        webhook(url).unwrap_or_else(|said| panic!("{url}: {said}"));
    }
    for url in [
        "https://10.2.0.1/",
        "https://10.3.0.8/",
        "https://db.internal/",
        "https://kubernetes/",
    ] {
        assert!(webhook(url).is_err(), "{url}");
    }

    for (kind, name) in [
        ("Webhook", "wh-abcdefgh01234567"),
        ("Instance", "i-abcdefgh01234567"),
    ] {
        let id = manifest(kind, name, "https://hooks.example.com/");
        let said = create(&id).expect_err(name);
        assert!(said.contains("reserved-names.stellage.dev"), "{said}");
        // Administrators restore backups.
        kubectl(&plane, "create --dry-run=server -f -", Some(&id)).unwrap();
        let other = manifest(
            kind,
            &name.replace("01234567", "-1234567"),
            "https://hooks.example.com/",
        );
        create(&other).unwrap();
    }
}
