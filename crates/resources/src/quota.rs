//! The ResourceQuota of an account: what it counts, and how the API server rejects requests because of it.

use kube::core::{Status, response::StatusDetails};

/// The account's Instances.
pub const INSTANCES: &str = "count/instances.stellage.dev";
/// Its Webhooks.
pub const WEBHOOKS: &str = "count/webhooks.stellage.dev";
/// Its `ApiKeys`.
pub const KEYS: &str = "count/apikeys.stellage.dev";
/// Its Deliveries.
pub const DELIVERIES: &str = "count/deliveries.stellage.dev";
/// Its Backups.
pub const BACKUPS: &str = "count/backups.stellage.dev";
/// Its `PrivateNetworks`.
pub const NETWORKS: &str = "count/privatenetworks.stellage.dev";
/// Everything that is counted.
pub const ALL: [&str; 6] = [INSTANCES, WEBHOOKS, KEYS, DELIVERIES, BACKUPS, NETWORKS];

/// Whether a request is refused because a quota is used up, as far as Kubernetes has counted.
pub fn is_exceeded(refusal: &Status) -> bool {
    refusal.code == 403 && refusal.message.contains("forbidden: exceeded quota")
}

/// Whether a request is refused only because Kubernetes has not computed the quota yet.
pub fn is_pending(refusal: &Status) -> bool {
    refusal.code == 403 && refusal.message.contains("forbidden: status unknown for quota")
}

/// Whether a create is refused only because the API server could not count it: other writers, such as the controller manager, kept
/// changing the quota meanwhile. Nothing has been counted.
pub fn is_contended(refusal: &Status) -> bool {
    let is_of_quota = |details: &StatusDetails| details.kind == "resourcequotas";
    refusal.code == 409 && refusal.details.as_ref().is_some_and(is_of_quota)
}
