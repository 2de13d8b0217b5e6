//! What an API server refused to Stellage because it has no right to it, according to the audit log.

use std::collections::HashSet;

use control_plane::{Identity, audit::Request};

/// What an audit log says about Stellage's rights.
pub struct Refusals<'a> {
    /// The refused requests for which there is no excuse.
    pub unexcused: Vec<&'a Request>,
    /// The namespaces in which the RoleBinding that gives Stellage rights is known to be in force.
    pub in_force: HashSet<&'a str>,
}

/// Finds the requests of the operator that RBAC refused. What an admission policy refuses is not among them.
pub fn refusals(requests: &[Request]) -> Refusals<'_> {
    let needs_binding = |request: &Request| {
        let resource = (&*request.resource, &*request.verb);
        request.namespace != "stellage-system" && matches!(resource, ("secrets", _) | ("apikeys", "create"))
    };
    find(
        requests,
        |user| user == Identity::Operator.user(),
        "stellage-operator",
        needs_binding,
    )
}

/// The same in the cluster of a region, for the service accounts of Stellage and of the console gateway there. `of_platform` are the
/// namespaces in which they have the same rights all the time.
pub fn refusals_in_region<'a>(requests: &'a [Request], of_platform: &[&str]) -> Refusals<'a> {
    let needs_binding = |request: &Request| {
        let holds_everywhere = match &*request.resource {
            "virtualmachines" | "virtualmachineinstances" => {
                request.subresource.is_empty() && matches!(&*request.verb, "get" | "list" | "watch")
                    || matches!(&*request.subresource, "console" | "vnc")
            }
            "rolebindings" => request.verb == "create",
            "namespaces" => true,
            _ => false,
        };
        !holds_everywhere
            && !request.namespace.is_empty()
            && !of_platform.contains(&request.namespace.as_str())
    };
    find(requests, is_of_region, "stellage", needs_binding)
}

/// Whether a user of a region's cluster is Stellage or its console gateway.
pub fn is_of_region(user: &str) -> bool {
    user.starts_with("system:serviceaccount:stellage:stellage-region-")
}

/// In some namespaces a user has the rights that need the `binding` only from the time that the authorizer knows the new RoleBinding,
/// as shown by the first success, until the RoleBinding or the namespace is deleted.
fn find<'a>(
    requests: &'a [Request],
    is_user: impl Fn(&str) -> bool,
    binding: &str,
    needs_binding: impl Fn(&Request) -> bool,
) -> Refusals<'a> {
    let mut bound = HashSet::new();
    let mut in_force = HashSet::new();
    let mut unexcused = Vec::new();
    for request in requests {
        let namespace = &*request.namespace;
        let is_of_binding = request.resource == "rolebindings" && request.name == binding;
        let is_removed = match (&*request.resource, &*request.verb) {
            ("namespaces", "delete") | ("rolebindings", "deletecollection") => true,
            (_, verb) => is_of_binding && verb == "delete",
        };
        if is_removed {
            bound.remove(namespace);
            in_force.remove(namespace);
        } else if is_of_binding && request.code == 201 {
            bound.insert(namespace);
        }
        if !is_user(&request.user) {
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
