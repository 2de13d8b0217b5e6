//! What an API server refused to the operator because it has no right to it, according to the audit log.

use std::collections::HashSet;

use control_plane::{Identity, audit::Request};

/// What an audit log says about the operator's rights.
pub struct Refusals<'a> {
    /// The refused requests for which there is no excuse.
    pub unexcused: Vec<&'a Request>,
    /// The accounts' namespaces in which the operator's RoleBinding is known to be in force.
    pub in_force: HashSet<&'a str>,
}

/// Finds the requests of the operator that RBAC refused. What an admission policy refuses is not among them.
pub fn refusals(requests: &[Request]) -> Refusals<'_> {
    // In an account's namespace it has these rights only from the time that the authorizer knows the new RoleBinding, as shown by
    // the first success, until the RoleBinding or the namespace is deleted.
    let needs_binding = |request: &Request| {
        let resource = (&*request.resource, &*request.verb);
        request.namespace != "stellage-system" && matches!(resource, ("secrets", _) | ("apikeys", "create"))
    };
    let mut bound = HashSet::new();
    let mut in_force = HashSet::new();
    let mut unexcused = Vec::new();
    for request in requests {
        let namespace = &*request.namespace;
        match (&*request.resource, &*request.verb, &*request.name) {
            ("namespaces", "delete", _)
            | ("rolebindings", "deletecollection", _)
            | ("rolebindings", "delete", "stellage-operator") => {
                bound.remove(namespace);
                in_force.remove(namespace);
            }
            ("rolebindings", _, "stellage-operator") if request.code == 201 => {
                bound.insert(namespace);
            }
            _ => {}
        }
        if request.user != Identity::Operator.user() {
            continue;
        }
        if !request.is_unauthorized {
            if needs_binding(request) && bound.contains(namespace) {
                in_force.insert(namespace);
            }
        } else if !needs_binding(request) || in_force.contains(namespace) {
            unexcused.push(request);
        }
    }
    Refusals { unexcused, in_force }
}
