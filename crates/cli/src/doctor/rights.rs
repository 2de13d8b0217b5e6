//! The permissions that the operator needs: those of the chart, from which `make chart` generates both files.

use std::fmt;

use k8s_openapi::api::{
    authorization::v1::ResourceAttributes,
    rbac::v1::{PolicyRule, RoleRef, Subject},
};
use serde::Deserialize;

/// The roles of an installation without Helm, where one service account has all rights.
const TOGETHER: &str = include_str!("../../../../deploy/rbac.yaml");
/// The roles if the REST API and the controllers have separate service accounts.
const SEPARATE: &str = include_str!("separate_rights.yaml");

/// What a service account is for: the value of its label `app.kubernetes.io/component`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Component {
    All,
    Api,
    Controller,
}

impl Component {
    /// Returns `None` for a value that neither the chart nor deploy/rbac.yaml sets.
    pub(super) fn of_label(value: &str) -> Option<Self> {
        match value {
            "all" => Some(Self::All),
            "api" => Some(Self::Api),
            "controller" => Some(Self::Controller),
            _ => None,
        }
    }

    /// The file with its roles, its service account there, and the ClusterRole that it has in each account's namespace.
    const fn roles(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::All => (TOGETHER, "stellage", "stellage-account"),
            Self::Api => (SEPARATE, "stellage-api", "stellage-account-api"),
            Self::Controller => (SEPARATE, "stellage-controller", "stellage-account"),
        }
    }
}

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

impl From<&Right> for ResourceAttributes {
    fn from(right: &Right) -> Self {
        Self {
            group: Some(right.group.clone()),
            resource: Some(right.resource.clone()),
            subresource: right.subresource.clone(),
            verb: Some(right.verb.clone()),
            name: right.name.clone(),
            namespace: right.namespace.clone(),
            ..Self::default()
        }
    }
}

/// An object of a file: a role, the binding of one, or something else.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    kind: String,
    metadata: Metadata,
    #[serde(default)]
    rules: Vec<PolicyRule>,
    role_ref: Option<RoleRef>,
    #[serde(default)]
    subjects: Vec<Subject>,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

/// All rights that a component needs in the cluster and in the operator's `namespace`, and, if `of_account` is given, in that
/// account's namespace.
pub(super) fn needed(
    component: Component,
    namespace: &str,
    of_account: Option<&str>,
) -> Result<Vec<Right>, String> {
    let (file, service_account, account_role) = component.roles();
    // What precedes the first document is a comment, or the comment and a document.
    let texts = file.split("\n---\n").filter(|text| text.contains("\nkind: "));
    let documents: Vec<Document> = texts
        .map(serde_saphyr::from_str)
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())?;
    let is_bound = |role: &Document| {
        documents.iter().any(|binding| {
            let is_its = |it: &RoleRef| it.kind == role.kind && it.name == role.metadata.name;
            binding.role_ref.as_ref().is_some_and(is_its)
                && binding
                    .subjects
                    .iter()
                    .any(|subject| subject.name == service_account)
        })
    };
    let mut rights = Vec::new();
    for document in &documents {
        let within = match document.kind.as_str() {
            "ClusterRole" if document.metadata.name == account_role => match of_account {
                Some(of_account) => Some(of_account),
                None => continue,
            },
            "ClusterRole" if is_bound(document) => None,
            "Role" if is_bound(document) => Some(namespace),
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

/// Every right of a rule.
pub(super) fn of_rule(rule: &PolicyRule, namespace: Option<&str>) -> Vec<Right> {
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

    fn shown(component: Component, of_account: Option<&str>) -> Vec<String> {
        let needed = needed(component, "ops", of_account).unwrap();
        needed.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_rights_are_those_of_the_cluster_of_the_operators_namespace_and_of_an_accounts() {
        let rights = shown(Component::All, Some("ada"));
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
        assert_eq!(shown(Component::All, None), others);
    }

    #[test]
    fn separate_service_accounts_need_each_its_own_rights_and_together_all_of_them() {
        let [all, api, controller] = [Component::All, Component::Api, Component::Controller]
            .map(|component| shown(component, Some("ada")));
        for (right, of_api, of_controller) in [
            ("create apikeys.stellage.dev in ada", true, false),
            ("list secrets in ada", false, true),
            (
                "update leases.coordination.k8s.io stellage-controller in ops",
                false,
                true,
            ),
            ("update configmaps stellage-prices in ops", false, true),
            ("watch instances.stellage.dev", true, true),
            ("update webhooks/status.stellage.dev", false, true),
        ] {
            assert_eq!(api.iter().any(|it| it == right), of_api, "{right} in {api:#?}");
            assert_eq!(
                controller.iter().any(|it| it == right),
                of_controller,
                "{right} in {controller:#?}"
            );
        }
        for right in &all {
            assert!(api.contains(right) || controller.contains(right), "{right}");
        }
    }
}
