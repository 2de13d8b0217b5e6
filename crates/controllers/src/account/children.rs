//! The objects in an account's namespace, and whether existing ones match them. No I/O.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        core::v1::{Namespace, ResourceQuota, ResourceQuotaSpec},
        rbac::v1::{RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};

use domain::backup::retention;
use resources::{
    ACCOUNT_LABEL, Account, MANAGED_BY,
    account::MADE_FOR_ANNOTATION,
    origin,
    quota::{ALL, BACKUPS, DELIVERIES, INSTANCES, KEYS, NETWORKS, WEBHOOKS},
    tracking,
};

/// Name of the ResourceQuota.
pub(super) const QUOTA_NAME: &str = "stellage";
/// Name of the probe quota, which exists until Kubernetes can count all kinds.
const PROBE_NAME: &str = "stellage-probe";
/// What a service account of the operator may do in an account's namespace, in addition to its cluster-wide rights. The
/// admission policy `operator-rolebindings.stellage.dev` lets the operator grant nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// Name of the RoleBinding.
    pub(super) binding: &'static str,
    /// The ClusterRole that the binding grants: access to Secrets, in this namespace only.
    cluster_role: &'static str,
}

/// The rights of the controllers, or of the whole operator if it runs with one service account.
pub(super) const OPERATOR: Grant = Grant {
    binding: "stellage-operator",
    cluster_role: "stellage-account",
};
/// The rights of the facade, if it has a service account of its own.
pub(super) const API: Grant = Grant {
    binding: "stellage-operator-api",
    cluster_role: "stellage-account-api",
};

/// The limits of every account, unless its spec overrides them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultQuotas {
    pub instances: u32,
    /// API keys. The spec cannot override this.
    pub api_keys: u32,
    /// Private networks. The spec cannot override this.
    pub private_networks: u32,
    /// Manual backups. The spec cannot override this.
    pub backups: u32,
    /// Deliveries that are pending or held.
    pub unfinished_deliveries: u32,
    /// Finished Deliveries kept for each webhook.
    pub finished_deliveries: u32,
}

/// The limit for each resource of the quota.
pub(super) type QuotaLimits = BTreeMap<&'static str, i64>;

/// The limits of an account.
pub(super) fn limits(account: &Account, defaults: DefaultQuotas) -> QuotaLimits {
    QuotaLimits::from([
        (INSTANCES, i64::from(account.instance_quota(defaults.instances))),
        (WEBHOOKS, i64::from(account.webhook_quota())),
        (KEYS, i64::from(defaults.api_keys)),
        (NETWORKS, i64::from(defaults.private_networks)),
        (DELIVERIES, deliveries(account, defaults)),
        (BACKUPS, backups(account, defaults)),
    ])
}

/// How many Backups an account may have: its manual ones; for each instance, the scheduled ones that retention keeps, completed and
/// failed, its failed manual ones, and two that are being made or deleted; and the failed ones of deleted instances. So failed
/// backups never crowd out others.
fn backups(account: &Account, defaults: DefaultQuotas) -> i64 {
    let failed = i64::try_from(retention::FAILED_KEPT).unwrap_or(i64::MAX);
    let kept = i64::try_from(2 * retention::KEPT + 2).unwrap_or(i64::MAX) + failed;
    i64::from(defaults.backups) + i64::from(account.instance_quota(defaults.instances)) * kept + failed
}

/// How many Deliveries an account may have: its unfinished ones, plus the finished ones that retention keeps, which may
/// exceed their limit by a fifth until the next round of deletions. So finished Deliveries never crowd out unfinished ones.
fn deliveries(account: &Account, defaults: DefaultQuotas) -> i64 {
    let kept = i64::from(account.webhook_quota()) * i64::from(defaults.finished_deliveries);
    i64::from(defaults.unfinished_deliveries) + kept * 6 / 5
}

/// The limits while Kubernetes cannot count new kinds yet. It would refuse to create any object of a limited kind, so nothing
/// is limited except instances, and those only if the Account itself sets a limit.
pub(super) fn at_first(account: &Account, mut limits: QuotaLimits) -> QuotaLimits {
    limits.retain(|what, _| *what == INSTANCES && account.spec.instance_quota.is_some());
    limits
}

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

/// The namespace to create for an Account. The label and annotation are part of the create request, so the namespace
/// never exists without them.
pub(super) fn namespace(account: &Account) -> Namespace {
    let uid = origin::uid(&account.metadata).to_owned();
    Namespace {
        metadata: ObjectMeta {
            namespace: None,
            annotations: Some(BTreeMap::from([(MADE_FOR_ANNOTATION.to_owned(), uid)])),
            ..metadata(account, account.wanted_namespace())
        },
        ..Default::default()
    }
}

/// The quota with these limits.
pub(super) fn quota(account: &Account, limits: &QuotaLimits) -> ResourceQuota {
    limiting(metadata(account, QUOTA_NAME), limits)
}

fn limiting(metadata: ObjectMeta, limits: &QuotaLimits) -> ResourceQuota {
    let hard = limits.iter();
    ResourceQuota {
        metadata,
        spec: Some(ResourceQuotaSpec {
            hard: Some(
                hard.map(|(what, limit)| ((*what).to_owned(), Quantity(limit.to_string())))
                    .collect(),
            ),
            ..Default::default()
        }),
        status: None,
    }
}

/// A probe quota in the operator's namespace, to find out whether Kubernetes can count all kinds yet. It limits nothing,
/// because there are no such objects in that namespace.
pub(super) fn probe(operator_namespace: &str) -> (ResourceQuota, QuotaLimits) {
    let limits = QuotaLimits::from(ALL.map(|what| (what, 0)));
    let metadata = ObjectMeta {
        name: Some(PROBE_NAME.to_owned()),
        namespace: Some(operator_namespace.to_owned()),
        labels: Some(BTreeMap::from(
            [MANAGED_BY].map(|(k, v)| (k.to_owned(), v.to_owned())),
        )),
        ..Default::default()
    };
    (limiting(metadata, &limits), limits)
}

/// Whether Kubernetes has counted all kinds for this quota.
pub(super) fn counts_all(quota: &ResourceQuota) -> bool {
    let used = quota.status.as_ref().and_then(|status| status.used.as_ref());
    used.is_some_and(|used| ALL.iter().all(|what| used.contains_key(*what)))
}

/// The RoleBinding that lets a service account of the operator access Secrets in this namespace.
pub(super) fn role_binding(
    account: &Account,
    grant: Grant,
    operator_namespace: &str,
    service_account: &str,
) -> RoleBinding {
    RoleBinding {
        metadata: metadata(account, grant.binding),
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "ClusterRole".to_owned(),
            name: grant.cluster_role.to_owned(),
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

/// Whether the quota has exactly these limits.
pub(super) fn limits_to(quota: &ResourceQuota, limits: &QuotaLimits) -> bool {
    let Some(spec) = &quota.spec else { return false };
    let hard: BTreeMap<&str, Option<i64>> = spec
        .hard
        .iter()
        .flatten()
        .map(|(what, limit)| (what.as_str(), count(limit)))
        .collect();
    // A scope would exclude objects from the quota.
    hard.into_iter()
        .eq(limits.iter().map(|(what, limit)| (*what, Some(*limit))))
        && spec.scopes.is_none()
        && spec.scope_selector.is_none()
}

/// Whether the quota contains anything besides the limits of an account.
pub(super) fn has_more(quota: &ResourceQuota) -> bool {
    quota.spec.as_ref().is_some_and(|spec| {
        spec.scopes.is_some()
            || spec.scope_selector.is_some()
            || spec
                .hard
                .iter()
                .flatten()
                .any(|(what, _)| !ALL.contains(&what.as_str()))
    })
}

/// Whether Kubernetes has counted the existing objects for these limits. Until then it refuses to create more.
pub(super) fn quota_counts(quota: &ResourceQuota, limits: &QuotaLimits) -> bool {
    let Some(status) = &quota.status else { return false };
    let get = |map: &Option<BTreeMap<String, Quantity>>, what| map.as_ref()?.get(what).and_then(count);
    limits
        .iter()
        .all(|(what, limit)| get(&status.hard, *what) == Some(*limit) && get(&status.used, *what).is_some())
}

/// Parses a whole number in Kubernetes' format, where 1000 is `1k`.
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

/// How long Kubernetes normally takes to count, with a large margin.
const COUNTED_WITHIN: SignedDuration = SignedDuration::from_secs(5);

/// Whether Kubernetes should have counted the quota's resources by now, but has not. kube-controller-manager discovers new
/// kinds every 30 s. It retries a quota that it could not count only after 5 minutes, but counts a new quota at once.
pub(super) fn quota_is_stuck(quota: &ResourceQuota, limits: &QuotaLimits, now: Timestamp) -> bool {
    let created = quota
        .metadata
        .creation_timestamp
        .as_ref()
        .map(|created| created.0);
    let written = tracking::spec_written_at(quota).max(created);
    let used = quota.status.as_ref().and_then(|status| status.used.as_ref());
    let never_counted = limits
        .keys()
        .any(|what| used.is_none_or(|used| !used.contains_key(*what)));
    never_counted && written.is_some_and(|written| now.duration_since(written) > COUNTED_WITHIN)
}

/// Whether the quota needs no change.
pub(super) fn quota_matches(is: &ResourceQuota, wanted: &ResourceQuota, limits: &QuotaLimits) -> bool {
    metadata_matches(&is.metadata, &wanted.metadata) && limits_to(is, limits)
}

/// Whether the RoleBinding needs no change.
pub(super) fn binding_matches(is: &RoleBinding, wanted: &RoleBinding) -> bool {
    metadata_matches(&is.metadata, &wanted.metadata)
        && is.role_ref == wanted.role_ref
        && is.subjects == wanted.subjects
}

#[cfg(test)]
pub(super) mod tests {
    use k8s_openapi::{
        api::core::v1::ResourceQuotaStatus,
        apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, Time},
    };

    use super::*;
    use resources::testing::account;

    pub(in super::super) const DEFAULTS: DefaultQuotas = DefaultQuotas {
        instances: 100,
        api_keys: 50,
        private_networks: 10,
        backups: 1000,
        unfinished_deliveries: 10_000,
        finished_deliveries: 1000,
    };

    fn limits(account: &Account) -> QuotaLimits {
        super::limits(account, DEFAULTS)
    }

    #[test]
    fn every_account_is_limited_by_default_but_only_to_what_kubernetes_can_count() {
        let mut ada = account("ada", "shop", 1);
        let defaults = QuotaLimits::from([
            (INSTANCES, 100),
            (WEBHOOKS, 20),
            (KEYS, 50),
            (NETWORKS, 10),
            (DELIVERIES, 34_000),
            (BACKUPS, 3610),
        ]);
        assert_eq!(limits(&ada), defaults);
        assert!(at_first(&ada, defaults).is_empty());
        let fewer_keys = DefaultQuotas {
            api_keys: 7,
            ..DEFAULTS
        };
        assert_eq!(super::limits(&ada, fewer_keys)[KEYS], 7);
        ada.spec.memory_quota_gb = Some(9);
        assert_eq!(limits(&ada)[INSTANCES], 4, "the smallest has 2 GB");
        ada.spec.memory_quota_gb = Some(9000);
        assert_eq!(limits(&ada)[INSTANCES], 100);
        ada.spec.webhook_quota = Some(40);
        assert_eq!(limits(&ada)[DELIVERIES], 58_000, "more webhooks keep more");
        ada.spec.instance_quota = Some(3);
        assert_eq!(at_first(&ada, limits(&ada)), [(INSTANCES, 3)].into());
    }

    #[test]
    fn the_quota_follows_the_spec_and_drift_is_seen() {
        let mut ada = account("ada", "shop", 1);
        ada.spec.instance_quota = Some(3);
        ada.spec.webhook_quota = Some(1000);
        let both = QuotaLimits::from([(INSTANCES, 3), (WEBHOOKS, 1000)]);
        let wanted = quota(&ada, &both);
        assert!(quota_matches(&wanted, &wanted, &both));
        // As Kubernetes normalizes it.
        let mut stored = wanted.clone();
        let hard = stored.spec.as_mut().unwrap().hard.as_mut().unwrap();
        hard.insert(WEBHOOKS.to_owned(), Quantity("1k".to_owned()));
        assert!(limits_to(&stored, &both));
        for other in [
            [(INSTANCES, 4), (WEBHOOKS, 1000)].into(),
            [(WEBHOOKS, 1000)].into(),
            QuotaLimits::new(),
        ] {
            assert!(!limits_to(&wanted, &other), "{other:?}");
        }
        let mut scoped = wanted.clone();
        scoped.spec.as_mut().unwrap().scopes = Some(vec!["Terminating".into()]);
        assert!(!quota_matches(&scoped, &wanted, &both) && has_more(&scoped) && !has_more(&wanted));
        let mut unlabelled = wanted.clone();
        unlabelled.metadata.labels = None;
        assert!(!quota_matches(&unlabelled, &wanted, &both));
    }

    #[test]
    fn a_quota_counts_once_kubernetes_has_counted_all_and_is_stuck_if_it_never_does() {
        let mut ada = account("ada", "shop", 1);
        ada.spec.instance_quota = Some(3);
        let at = |second| Timestamp::from_second(second).unwrap();
        let counts = |instances: &str, webhooks: Option<&str>| {
            let instances = [(INSTANCES.to_owned(), Quantity(instances.to_owned()))];
            let webhooks = webhooks.map(|n| (WEBHOOKS.to_owned(), Quantity(n.to_owned())));
            Some(instances.into_iter().chain(webhooks).collect())
        };
        let limits_of = |ada: &Account| {
            let mut limits = limits(ada);
            limits.retain(|what, _| [INSTANCES, WEBHOOKS].contains(what));
            limits
        };
        let limits_now = limits_of(&ada);
        let mut is = quota(&ada, &limits_now);
        is.metadata.creation_timestamp = Some(Time(at(100)));
        let stuck = |is: &ResourceQuota, second| quota_is_stuck(is, &limits_now, at(second));
        assert!(!quota_counts(&is, &limits_now) && !stuck(&is, 104) && stuck(&is, 111));
        is.status = Some(ResourceQuotaStatus {
            hard: counts("3", Some("20")),
            used: None,
        });
        assert!(
            stuck(&is, 111),
            "a kind that is not yet known has a limit but no count"
        );
        is.status = Some(ResourceQuotaStatus {
            hard: counts("3", Some("20")),
            used: counts("0", None),
        });
        assert!(
            !quota_counts(&is, &limits_now) && stuck(&is, 111),
            "one of two is not all"
        );
        let mut changed = is.clone();
        changed.metadata.managed_fields = Some(vec![ManagedFieldsEntry {
            time: Some(Time(at(110))),
            ..Default::default()
        }]);
        assert!(
            !stuck(&changed, 111),
            "a limit set a second ago cannot be counted yet"
        );
        is.status = Some(ResourceQuotaStatus {
            hard: counts("3", Some("20")),
            used: counts("0", Some("0")),
        });
        assert!(quota_counts(&is, &limits_now) && !stuck(&is, 999));
        ada.spec.instance_quota = Some(4);
        assert!(
            !quota_counts(&is, &limits_of(&ada)) && !quota_is_stuck(&is, &limits_of(&ada), at(999)),
            "a new limit has not been counted yet"
        );
    }

    #[test]
    fn the_binding_names_the_operators_service_account() {
        let ada = account("ada", "shop", 1);
        let wanted = role_binding(&ada, OPERATOR, "sys", "stellage");
        assert_eq!(wanted.metadata.namespace.as_deref(), Some("shop"));
        let of_the_api = role_binding(&ada, API, "sys", "stellage-api");
        assert!(!binding_matches(&of_the_api, &wanted));
        let mut widened = wanted.clone();
        widened.subjects.as_mut().unwrap().push(Subject::default());
        assert!(binding_matches(&wanted, &wanted) && !binding_matches(&widened, &wanted));
    }
}
