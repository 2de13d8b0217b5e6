//! The permissions that the operator needs: those in deploy/rbac.yaml, which `make chart` generates from the chart.

use std::fmt;

use k8s_openapi::api::rbac::v1::PolicyRule;
use serde::Deserialize;

/// The roles of an installation without Helm, in which one service account has all rights.
const ROLES: &str = include_str!("../../../deploy/rbac.yaml");
/// The ClusterRole of the operator. Others are for accounts' namespaces and for tenants.
const CLUSTER_ROLE: &str = "stellage";

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Right {
    pub(super) verb: String,
    pub(super) group: String,
    pub(super) resource: String,
    pub(super) subresource: Option<String>,
    /// The one object.
    pub(super) name: Option<String>,
    /// The one namespace.
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
        match &self.name {
            Some(name) => write!(f, " {name}"),
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

/// All rights of the operator, whose namespace is `namespace`.
pub(super) fn needed(namespace: &str) -> Result<Vec<Right>, String> {
    let mut rights = Vec::new();
    for document in ROLES.split("\n---\n") {
        let document: Document = serde_saphyr::from_str(document).map_err(|error| error.to_string())?;
        let within = match document.kind.as_str() {
            "ClusterRole" if document.metadata.name == CLUSTER_ROLE => None,
            "Role" => Some(namespace.to_owned()),
            _ => continue,
        };
        for rule in &document.rules {
            rights.extend(of_rule(rule, within.as_ref()));
        }
    }
    Ok(rights)
}

fn of_rule(rule: &PolicyRule, namespace: Option<&String>) -> Vec<Right> {
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
                    namespace: namespace.cloned(),
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
    fn the_rights_are_those_of_the_cluster_and_of_the_operators_namespace() {
        let rights: Vec<String> = needed("ops").unwrap().iter().map(ToString::to_string).collect();
        for right in [
            "patch instances.stellage.dev",
            "update webhooks/status.stellage.dev",
            "get leases.coordination.k8s.io stellage-controller",
            "bind clusterroles.rbac.authorization.k8s.io stellage-account",
            "list nodes",
        ] {
            assert!(rights.iter().any(|it| it == right), "{right} in {rights:#?}");
        }
        // Those in accounts' namespaces are bound there.
        assert!(!rights.iter().any(|right| right == "get secrets"), "{rights:#?}");
        let of_roles = needed("ops")
            .unwrap()
            .into_iter()
            .filter(|right| right.namespace.is_some());
        assert!(
            of_roles
                .into_iter()
                .all(|right| right.namespace.as_deref() == Some("ops"))
        );
    }
}
