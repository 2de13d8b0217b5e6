//! What belongs into an account's namespace, and whether what is there is as it should be. No I/O.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        core::v1::{Namespace, ResourceQuota, ResourceQuotaSpec},
        rbac::v1::{RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};

use crate::resources::{ACCOUNT_LABEL, Account};

/// Annotation on a namespace that the operator made: the UID of the Account that it was made for. Only such a namespace
/// is ever deleted.
pub(super) const MADE_FOR_ANNOTATION: &str = "stellage.dev/made-for-account";

/// Name of the ResourceQuota.
pub(super) const QUOTA_NAME: &str = "stellage";
/// Name of the RoleBinding.
pub(super) const BINDING_NAME: &str = "stellage-operator";
/// The ClusterRole that the RoleBinding grants: Secrets, in this one namespace.
pub(super) const CLUSTER_ROLE: &str = "stellage-account";

const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "stellage");
/// What the quota counts.
const INSTANCES: &str = "count/instances.stellage.dev";

fn labels(account: &str) -> BTreeMap<String, String> {
    [(ACCOUNT_LABEL, account), MANAGED_BY]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

fn metadata(account: &Account, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(account.wanted_namespace().to_owned()),
        labels: Some(labels(account.metadata.name.as_deref().unwrap_or_default())),
        ..Default::default()
    }
}

/// A namespace that the operator makes. Label and annotation come with it in one request, so that there is no moment at
/// which it could be taken for somebody else's.
pub(super) fn namespace(account: &Account) -> Namespace {
    let uid = account.metadata.uid.clone().unwrap_or_default();
    Namespace {
        metadata: ObjectMeta {
            namespace: None,
            annotations: Some(BTreeMap::from([(MADE_FOR_ANNOTATION.to_owned(), uid)])),
            ..metadata(account, account.wanted_namespace())
        },
        ..Default::default()
    }
}

/// The quota, if the Account has one.
pub(super) fn quota(account: &Account) -> Option<ResourceQuota> {
    let limit = account.spec.instance_quota?;
    Some(ResourceQuota {
        metadata: metadata(account, QUOTA_NAME),
        spec: Some(ResourceQuotaSpec {
            hard: Some(BTreeMap::from([(
                INSTANCES.to_owned(),
                Quantity(limit.to_string()),
            )])),
            ..Default::default()
        }),
        status: None,
    })
}

/// What lets the operator touch Secrets in this namespace.
pub(super) fn role_binding(
    account: &Account,
    operator_namespace: &str,
    service_account: &str,
) -> RoleBinding {
    RoleBinding {
        metadata: metadata(account, BINDING_NAME),
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "ClusterRole".to_owned(),
            name: CLUSTER_ROLE.to_owned(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: service_account.to_owned(),
            namespace: Some(operator_namespace.to_owned()),
            api_group: None,
        }]),
    }
}

/// Whether `is` has all labels and annotations of `wanted`.
pub(super) fn metadata_matches(is: &ObjectMeta, wanted: &ObjectMeta) -> bool {
    let has = |is: &Option<BTreeMap<String, String>>, wanted: &Option<BTreeMap<String, String>>| {
        wanted
            .iter()
            .flatten()
            .all(|(key, value)| is.as_ref().and_then(|map| map.get(key)) == Some(value))
    };
    has(&is.labels, &wanted.labels) && has(&is.annotations, &wanted.annotations)
}

/// Whether the quota allows `limit` instances, and says nothing else.
pub(super) fn limits_to(quota: &ResourceQuota, limit: i32) -> bool {
    let Some(spec) = &quota.spec else { return false };
    let hard = spec.hard.iter().flatten();
    let only = hard
        .map(|(key, value)| (key.as_str(), count(value)))
        .collect::<Vec<_>>();
    // A scope would take instances out of it.
    only == [(INSTANCES, Some(i64::from(limit)))] && spec.scopes.is_none() && spec.scope_selector.is_none()
}

/// Whether the quota says more than how many instances there may be.
pub(super) fn has_more(quota: &ResourceQuota) -> bool {
    quota.spec.as_ref().is_some_and(|spec| {
        spec.scopes.is_some()
            || spec.scope_selector.is_some()
            || spec.hard.iter().flatten().any(|(key, _)| key != INSTANCES)
    })
}

/// Whether Kubernetes has counted what there is against `limit`. Until then it refuses every Instance.
pub(super) fn quota_counts(quota: &ResourceQuota, limit: i32) -> bool {
    let Some(status) = &quota.status else { return false };
    let get =
        |map: &Option<BTreeMap<String, Quantity>>| map.as_ref().and_then(|map| map.get(INSTANCES).cloned());
    get(&status.hard).as_ref().and_then(count) == Some(i64::from(limit)) && get(&status.used).is_some()
}

/// A whole number as Kubernetes writes it: 1000 comes back as `1k`.
fn count(quantity: &Quantity) -> Option<i64> {
    let text = quantity.0.as_str();
    let (digits, factor) = match text.char_indices().last()? {
        (end, 'k') => (&text[..end], 1_000),
        (end, 'M') => (&text[..end], 1_000_000),
        (end, 'G') => (&text[..end], 1_000_000_000),
        _ => (text, 1),
    };
    digits.parse::<i64>().ok()?.checked_mul(factor)
}

/// How long Kubernetes normally takes to count, with much room.
const COUNTED_WITHIN: SignedDuration = SignedDuration::from_secs(5);

/// Whether the quota has never been counted although it is old enough. kube-controller-manager learns of new kinds every
/// 30 s, and looks again at a quota that it could not count only after 5 minutes, but at a new one at once.
pub(super) fn quota_is_stuck(quota: &ResourceQuota, limit: i32, now: Timestamp) -> bool {
    let created = quota.metadata.creation_timestamp.as_ref();
    let never_counted = quota
        .status
        .as_ref()
        .and_then(|status| status.used.as_ref())
        .is_none_or(|used| !used.contains_key(INSTANCES));
    never_counted
        && !quota_counts(quota, limit)
        && created.is_some_and(|created| now.duration_since(created.0) > COUNTED_WITHIN)
}

/// Whether the quota is as it should be.
pub(super) fn quota_matches(is: &ResourceQuota, wanted: &ResourceQuota, limit: i32) -> bool {
    metadata_matches(&is.metadata, &wanted.metadata) && limits_to(is, limit)
}

/// Whether the RoleBinding is as it should be.
pub(super) fn binding_matches(is: &RoleBinding, wanted: &RoleBinding) -> bool {
    metadata_matches(&is.metadata, &wanted.metadata)
        && is.role_ref == wanted.role_ref
        && is.subjects == wanted.subjects
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{api::core::v1::ResourceQuotaStatus, apimachinery::pkg::apis::meta::v1::Time};

    use super::super::decide::tests::account;
    use super::*;

    #[test]
    fn the_quota_follows_the_spec_and_drift_is_seen() {
        let mut ada = account("ada", "shop", 1);
        assert_eq!(quota(&ada), None);
        ada.spec.instance_quota = Some(3);
        let wanted = quota(&ada).unwrap();
        assert!(quota_matches(&wanted, &wanted, 3) && !limits_to(&wanted, 4));
        let mut scoped = wanted.clone();
        scoped.spec.as_mut().unwrap().scopes = Some(vec!["Terminating".into()]);
        assert!(!quota_matches(&scoped, &wanted, 3));
        let mut unlabelled = wanted.clone();
        unlabelled.metadata.labels = None;
        assert!(!quota_matches(&unlabelled, &wanted, 3));
    }

    #[test]
    fn a_quota_counts_once_kubernetes_has_counted_and_is_stuck_if_it_never_does() {
        let mut ada = account("ada", "shop", 1);
        ada.spec.instance_quota = Some(3);
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut is = quota(&ada).unwrap();
        is.metadata.creation_timestamp = Some(Time(at(100)));
        assert!(!quota_counts(&is, 3) && !quota_is_stuck(&is, 3, at(104)) && quota_is_stuck(&is, 3, at(111)));
        let counts = |n: &str| Some(BTreeMap::from([(INSTANCES.to_owned(), Quantity(n.to_owned()))]));
        is.status = Some(ResourceQuotaStatus {
            hard: counts("3"),
            used: None,
        });
        assert!(
            quota_is_stuck(&is, 3, at(111)),
            "a limit without a count is what a kind not yet known gives"
        );
        is.status = Some(ResourceQuotaStatus {
            hard: counts("3"),
            used: counts("0"),
        });
        assert!(quota_counts(&is, 3) && !quota_is_stuck(&is, 3, at(999)));
        assert!(
            !quota_counts(&is, 4) && !quota_is_stuck(&is, 4, at(999)),
            "a new limit is on its way"
        );
    }

    #[test]
    fn the_binding_names_the_operators_service_account() {
        let ada = account("ada", "shop", 1);
        let wanted = role_binding(&ada, "sys", "stellage");
        assert_eq!(wanted.metadata.namespace.as_deref(), Some("shop"));
        let mut widened = wanted.clone();
        widened.subjects.as_mut().unwrap().push(Subject::default());
        assert!(binding_matches(&wanted, &wanted) && !binding_matches(&widened, &wanted));
    }
}
