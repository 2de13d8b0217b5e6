//! What people may do in the namespace of their account who have a role of Kubernetes there.

use serde_json::Value;

use crate::support::{self, kubectl};

const NAMESPACE: &str = "chart-roles";
const ROLES: [&str; 3] = ["view", "edit", "admin"];

#[tokio::test(flavor = "multi_thread")]
async fn view_reads_edit_writes_and_admin_makes_keys_but_nobody_writes_a_status_or_a_delivery() {
    let plane = support::shared().await.plane;
    kubectl(plane, &["create", "namespace", NAMESPACE], None).unwrap();
    for (number, role) in ROLES.iter().enumerate() {
        let name = format!("stellage-{role}");
        let found = kubectl(plane, &["get", "clusterrole", &name, "-o", "json"], None).unwrap();
        let found: Value = serde_json::from_str(&found).unwrap();
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{role}");
        assert_eq!(found["metadata"]["labels"][label.as_str()], "true");
        // Kubernetes adds them up, in a controller that does not run here: edit has what view has, and admin what both have.
        for user in &ROLES[number..] {
            let binding = format!("{user}-has-{role}");
            let (role, user) = (format!("--clusterrole={name}"), format!("--user={user}"));
            let create = ["-n", NAMESPACE, "create", "rolebinding", &binding, &role, &user];
            kubectl(plane, &create, None).unwrap();
        }
    }
    let may = |user: &str, verb: &str, resource: &str| {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let subresource = format!("--subresource={subresource}");
        let question = [
            "auth",
            "can-i",
            verb,
            resource,
            &subresource,
            "--as",
            user,
            "-n",
            NAMESPACE,
        ];
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
