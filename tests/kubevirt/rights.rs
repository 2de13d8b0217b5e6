//! What an installation may do in a region: the manifests of the region's chart.

use serde_json::{Value, json};

/// The service account with its rights, in the namespace `stellage`.
pub fn manifests(account: &str, _prefix: &str) -> Vec<Value> {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({ "apiGroups": [group], "resources": resources, "verbs": verbs });
    vec![
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "stellage" } }),
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": account, "namespace": "stellage" } }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "stellage" },
            "rules": [
                rule("kubevirt.io", &["virtualmachines", "virtualmachineinstances"], &["get", "list", "watch"]),
                rule("", &["namespaces"], &["get", "create", "delete"]),
                rule("rbac.authorization.k8s.io", &["rolebindings"], &["get", "create"]),
                json!({ "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "resourceNames": ["stellage-servers"], "verbs": ["bind"] }),
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "stellage-servers" },
            "rules": [
                rule("kubevirt.io", &["virtualmachines"], &["create", "patch", "delete"]),
                rule("kubevirt.io", &["virtualmachines/status"], &["patch"]),
                rule("subresources.kubevirt.io", &["virtualmachines/stop"], &["update"]),
                rule("cdi.kubevirt.io", &["datavolumes"], &["get", "list", "create", "patch", "delete", "deletecollection"]),
                rule("", &["persistentvolumeclaims"], &["get", "list", "patch", "delete"]),
                rule("", &["secrets"], &["create", "deletecollection"]),
                rule("", &["pods"], &["list"]),
                rule("networking.k8s.io", &["networkpolicies"], &["get", "create", "patch"]),
                rule("k8s.cni.cncf.io", &["network-attachment-definitions"], &["get"]),
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": account },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "stellage" },
            "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": "stellage" }],
        }),
    ]
}
