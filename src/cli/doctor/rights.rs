//! The permissions that the operator needs: those in deploy/rbac.yaml, which `make chart` generates from the chart.

use std::fmt;

use k8s_openapi::api::rbac::v1::PolicyRule;
use serde::Deserialize;

/// The roles of an installation without Helm, where one service account has all rights.
const ROLES: &str = include_str!("../../../deploy/rbac.yaml");
/// The operator's ClusterRole for the whole cluster. The other ClusterRoles are for tenants.
const CLUSTER_ROLE: &str = "stellage";
/// The ClusterRole that the operator has in each account's namespace. If the REST API and the controllers have separate service
/// accounts, stellage-account-api has some of these rights.
const ACCOUNT_ROLE: &str = "stellage-account";

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Right {
    pub(super) verb: String,
    pub(super) group: String,
    pub(super) resource: String,
    pub(super) subresource: Option<String>,
    /// The object, if the right is limited to one.
    pub(super) name: Option<String>,
    /// The namespace, if the right is limited to one.
    pub(super) namespace: Option<String>,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if let Some(subresource) = &self.subresource {
            write!(f, "/{subresource}")?;
        }
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        if let Some(name) = &self.name {
            write!(f, " {name}")?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in {namespace}"),
            None => Ok(()),
        }
    }
}

/// An object of the file.
#[derive(Deserialize)]
struct Document {
    kind: String,
    metadata: Metadata,
    #[serde(default)]
    rules: Vec<PolicyRule>,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

/// All rights that the operator needs in the cluster and in its own `namespace`, and, if `of_account` is given, in that
/// account's namespace.
pub(super) fn needed(namespace: &str, of_account: Option<&str>) -> Result<Vec<Right>, String> {
    let mut rights = Vec::new();
    for document in ROLES.split("\n---\n") {
        let document: Document = serde_saphyr::from_str(document).map_err(|error| error.to_string())?;
        let within = match (document.kind.as_str(), document.metadata.name.as_str()) {
            ("ClusterRole", CLUSTER_ROLE) => None,
            ("ClusterRole", ACCOUNT_ROLE) if of_account.is_some() => of_account,
            ("Role", _) => Some(namespace),
            _ => continue,
        };
        for rule in &document.rules {
            // Rules overlap.
            for right in of_rule(rule, within) {
                if !rights.contains(&right) {
                    rights.push(right);
                }
            }
        }
    }
    Ok(rights)
}

fn of_rule(rule: &PolicyRule, namespace: Option<&str>) -> Vec<Right> {
    let names: Vec<Option<&String>> = match rule.resource_names.as_deref() {
        None | Some([]) => vec![None],
        Some(names) => names.iter().map(Some).collect(),
    };
    let mut rights = Vec::new();
    for group in rule.api_groups.iter().flatten() {
        for path in rule.resources.iter().flatten() {
            let (resource, subresource) = match path.split_once('/') {
                Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
                None => (path.as_str(), None),
            };
            for verb in &rule.verbs {
                rights.extend(names.iter().map(|name| Right {
                    verb: verb.clone(),
                    group: group.clone(),
                    resource: resource.to_owned(),
                    subresource: subresource.clone(),
                    name: name.cloned(),
                    namespace: namespace.map(ToOwned::to_owned),
                }));
            }
        }
    }
    rights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rights_are_those_of_the_cluster_of_the_operators_namespace_and_of_an_accounts() {
        let shown = |of_account| -> Vec<String> {
            let needed = needed("ops", of_account).unwrap();
            needed.iter().map(ToString::to_string).collect()
        };
        let rights = shown(Some("ada"));
        for right in [
            "patch instances.stellage.dev",
            "update webhooks/status.stellage.dev",
            "get leases.coordination.k8s.io stellage-controller in ops",
            "bind clusterroles.rbac.authorization.k8s.io stellage-account",
            "list nodes",
            "get secrets in ada",
            "list secrets in ada",
            "create apikeys.stellage.dev in ada",
        ] {
            assert!(rights.iter().any(|it| it == right), "{right} in {rights:#?}");
        }
        // The operator must not read Secrets outside the accounts' namespaces.
        assert!(!rights.iter().any(|right| right == "get secrets"), "{rights:#?}");
        let (of_ada, others): (Vec<String>, _) =
            rights.into_iter().partition(|right| right.ends_with(" in ada"));
        assert!(of_ada.len() >= 5, "{of_ada:#?}");
        assert_eq!(shown(None), others);
    }
}
